/* attention_plan_program.cuh - the lists of a program class: the keys that each decode row and each
 * tile reads.
 *
 * Runs after the planner, which has listed rows and tiles. A warp processes one of them and
 * classifies key blocks with the program, first 32 at once (a word), then one per lane. The last
 * block to finish sums the rows' splits and sorts the tiles. The keys that a row reads, and its
 * splits, depend only on its position and parameters. */
#ifndef RP_ATTENTION_ATTENTION_PLAN_PROGRAM_CUH
#define RP_ATTENTION_ATTENTION_PLAN_PROGRAM_CUH

#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_mask_policy.cuh"
#include "device/cuda_kernel.cuh"

namespace plan_program {

constexpr uint32_t THREADS = RP_ATTENTION_PLAN_PROGRAM_THREADS, WARPS = THREADS / 32;
constexpr uint32_t SORTED_MAX = 1024; /* tiles that are sorted; more stay in the planner's order */

/* Queries [q, q + queries) of a sequence whose keys end at key_end. */
template <typename Mask> struct classifier {
    uint32_t q, queries, key_end, heads;
    mask_params<Mask> params;

    __device__ __forceinline__ int classify(uint32_t kv, uint32_t kv_end) const {
        if (kv >= key_end)
            return RP_MASK_SKIP;
        int all = Mask::classify(q, queries, kv, min(kv_end, key_end), 0, heads, params.value);
        return all == RP_MASK_FULL && kv_end > key_end ? (int)RP_MASK_PARTIAL : all;
    }
};

/* Calls put(word, any, partial) by all lanes for each word of 32 blocks in rising order. */
template <typename Mask, typename Put>
__device__ __forceinline__ void each_word(const classifier<Mask> &program, uint32_t words,
                                          uint32_t keys, uint32_t lane, const Put &put) {
    for (uint32_t base = 0; base < words; base += 32) {
        uint32_t begin = (base + lane) * 32 * keys;
        int mine = base + lane < words ? program.classify(begin, begin + 32 * keys) : RP_MASK_SKIP;
        for (uint32_t i = 0; i < min(32u, words - base); i++) {
            int all = __shfl_sync(0xFFFFFFFFu, mine, i);
            uint32_t any = all == RP_MASK_SKIP ? 0 : 0xFFFFFFFFu, partial = 0;
            if (all == RP_MASK_PARTIAL) {
                uint32_t kv = ((base + i) * 32 + lane) * keys;
                int one = program.classify(kv, kv + keys);
                any = __ballot_sync(0xFFFFFFFFu, one != RP_MASK_SKIP);
                partial = __ballot_sync(0xFFFFFFFFu, one == RP_MASK_PARTIAL);
            }
            put(base + i, any, partial);
        }
    }
}

template <typename Mask>
__device__ __forceinline__ void list_row(const rp_attention_plan_program_args &args, uint32_t index,
                                         uint32_t lane) {
    rp_attention_plan_row row = args.plan.rows[index];
    const uint32_t *slot = args.step.slots + (size_t)row.slot * args.step.slot_words;
    uint32_t position = args.step.positions[row.token], count = 0;
    uint32_t *units = args.plan.units + (size_t)index * args.unit_capacity;
    classifier<Mask> program = {position, 1, position + 1, args.heads, {}};
    program.params.load(slot);
    uint32_t words = (position / RP_ATTENTION_SPLIT + 1 + 31) / 32;
    each_word<Mask>(program, words, RP_ATTENTION_SPLIT, lane,
                    [&](uint32_t word, uint32_t any, uint32_t partial) {
                        uint32_t at = count + __popc(any & ((1u << lane) - 1));
                        if (any >> lane & 1 && at < args.unit_capacity)
                            units[at] = (word * 32 + lane) * 2 + (partial >> lane & 1);
                        count += __popc(any);
                    });
    if (lane != 0)
        return;
    if (count == 0)
        units[count++] = 1;
    row.first = position;
    row.position = count * RP_ATTENTION_SPLIT - 1;
    row.split_log2 = 31 - __clz(RP_ATTENTION_SPLIT);
    while ((uint64_t)count * RP_ATTENTION_SPLIT > (uint64_t)RP_ATTENTION_SPLITS << row.split_log2)
        row.split_log2++;
    row.first_split = 0;
    row.splits = (row.position >> row.split_log2) + 1;
    args.plan.rows[index] = row;
}

template <typename Mask>
__device__ __forceinline__ void list_tile(const rp_attention_plan_program_args &args,
                                          uint32_t index, uint32_t lane) {
    const rp_attention_plan_tile tile = args.plan.tiles[index];
    const uint32_t *slot = args.step.slots + (size_t)tile.slot * args.step.slot_words;
    const rp_live_row row = args.step.rows[args.step.token_rows[tile.token]];
    uint32_t key_end =
        Mask::is_causal ? tile.position + tile.count : row.kv_begin + row.token_count;
    uint2 *blocks = (uint2 *)args.plan.blocks + (size_t)index * args.block_words;
    classifier<Mask> program = {tile.position, tile.count, key_end, args.heads, {}};
    program.params.load(slot);
    uint32_t used = min(((key_end - 1) / args.block_keys + 32) / 32, args.block_words), count = 0;
    each_word<Mask>(program, used, args.block_keys, lane,
                    [&](uint32_t word, uint32_t any, uint32_t partial) {
                        if (lane == 0)
                            blocks[word] = make_uint2(any, partial);
                        count += __popc(any);
                    });
    for (uint32_t word = used + lane; word < args.block_words; word += 32)
        blocks[word] = make_uint2(0, 0);
    if (lane != 0)
        return;
    if (count == 0) {
        blocks[0] = make_uint2(1, 1);
        count = 1;
    }
    args.plan.bounds[index * 2] = key_end;
    args.plan.bounds[index * 2 + 1] = count;
}

/* One warp: each row's splits begin where those of the previous row end. */
static __device__ __forceinline__ void add_up(const rp_attention_plan_program_args &args,
                                              uint32_t rows, uint32_t lane) {
    uint32_t before = 0;
    for (uint32_t base = 0; base < rows; base += 32) {
        uint32_t mine = base + lane < rows ? __ldcg(&args.plan.rows[base + lane].splits) : 0;
        uint32_t up_to = mine;
        for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
            uint32_t other = __shfl_up_sync(0xFFFFFFFFu, up_to, lanes);
            if (lane >= lanes)
                up_to += other;
        }
        if (base + lane < rows)
            args.plan.rows[base + lane].begin = before + up_to - mine;
        before += __shfl_sync(0xFFFFFFFFu, up_to, 31);
    }
    if (lane == 0)
        args.plan.head->decode_splits = before;
}

/* Most blocks first; stable. */
static __device__ __forceinline__ void put_in_order(const rp_attention_plan_program_args &args,
                                                    uint32_t tiles,
                                                    uint32_t (&counts)[SORTED_MAX]) {
    const bool sorts = tiles <= SORTED_MAX;
    for (uint32_t i = threadIdx.x; i < tiles && sorts; i += THREADS)
        counts[i] = __ldcg(&args.plan.bounds[i * 2 + 1]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < tiles; i += THREADS) {
        uint32_t rank = sorts ? 0 : i;
        for (uint32_t j = 0; j < tiles && sorts; j++)
            rank += counts[j] > counts[i] || (counts[j] == counts[i] && j < i);
        args.plan.order[rank] = i;
    }
}

template <typename Mask>
static __device__ __forceinline__ void plan(const rp_attention_plan_program_args &args) {
    __shared__ uint32_t counts[SORTED_MAX], is_last;
    rp_stamp stamp(args.stamp);
    stamp.begin();
    stamp.look();
    const uint32_t lane = threadIdx.x % 32, rows = args.plan.head->decode_rows;
    const uint32_t tiles = args.block_keys != 0 ? args.plan.head->tiles : 0;
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / 32; i < rows + tiles;
         i += gridDim.x * WARPS) {
        if (i < tiles)
            list_tile<Mask>(args, i, lane);
        else
            list_row<Mask>(args, i - tiles, lane);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(args.plan.done, 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        *args.plan.done = 0;
    if (threadIdx.x < 32)
        add_up(args, rows, lane);
    put_in_order(args, tiles, counts);
}

} // namespace plan_program

#endif
