/* attention_prefill_wgmma_feed.cuh - prompt rows on Hopper: what lies in shared memory, and how it gets there. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_FEED_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_FEED_CUH

#include "attention/attention_tile_cuda.cuh"
#include "attention/attention_wgmma_cuda.cuh"

#define ROWS    128 /* of a tile */
#define STAGES  2   /* of K, and of V */
#define THREADS 384
#define CLAIM   1 /* which counter of the workspace */
#define LEAD    3 /* so many blocks before a tile's last one is asked for, the next tile is claimed */

/* Barriers of hardware: 0 is __syncthreads. */
enum { SYNC_FEEDERS = 1, SYNC_ROWS = 2 /* and 3 */, SYNC_TURN = 4 /* and 5 */ };

template <int D> struct shape {
    static constexpr int keys = D == 256 ? 64 : 128; /* of a block */
    static constexpr int parts = D / 64;             /* columns come in parts of 64: 128 bytes */
    static constexpr int q_stages = D == 256 ? 1 : 2;
    /* Of a thread: together the register file, 128 * 72 + 256 * 216 of 65536. */
    static constexpr int feed_registers = D == 256 ? 56 : 72;
    static constexpr int compute_registers = D == 256 ? 224 : 216;
    static constexpr int feed_batch = D == 256 ? 2 : 4; /* pieces of Q in flight */
    static constexpr uint32_t q_bytes = ROWS * D * 2, block_bytes = keys * D * 2;
    static constexpr uint32_t part_bytes = keys * 128; /* of K and V */
    static constexpr size_t shared_bytes =
        1024 + 1024 + q_stages * q_bytes + 2 * STAGES * block_bytes;
};

struct claimed_tile {
    prefill_tile tile;
    uint32_t kv_head;
};

/* The first KiB of shared memory; Q, K and V follow. */
struct control {
    uint64_t q_full[2], q_empty[2];
    uint64_t full[2][STAGES], empty[2][STAGES]; /* of K, of V */
    uint64_t tile_full[2], may_claim;
    claimed_tile tiles[2];
    int32_t params[2][RP_MASK_PARAMS_MAX]; /* of a program, for each tile */
    uint32_t blocks[STAGES]; /* of a program: key + BLOCK_IS_... of what is in K's stage */
};

struct wgmma_args {
    CUtensorMap map; /* (page, layer and plane, head, token, column) */
    rp_attention_cuda_args call;
    uint32_t box_tokens;
    capped_powers cap;
};

struct addresses { /* in shared memory */
    control *shared;
    uint32_t q, kv[2];
};

static __device__ __forceinline__ uint32_t at(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* A place in a ring of stages. */
struct turn {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* --- feeding --- */

/* One block's K and V: a lane with a page asks for its part of the columns. entry: of a program. */
template <int D, typename Mask>
static __device__ __forceinline__ void ask_block(const wgmma_args &args, const addresses &to,
                                                 uint32_t kv_head, turn &ring, uint32_t position,
                                                 uint32_t page, bool mine, uint32_t entry) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens;
    uint32_t bytes = __popc(__ballot_sync(0xFFFFFFFFu, mine)) * box * 128;
#pragma unroll
    for (uint32_t plane = 0; plane < 2; plane++) {
        uint32_t barrier = at(&to.shared->full[plane][ring.stage]);
        if (lane == 0) {
            barrier_wait(at(&to.shared->empty[plane][ring.stage]), ring.parity ^ 1);
            if (Mask::is_program && plane == 0)
                to.shared->blocks[ring.stage] = entry;
            barrier_expect(barrier, bytes);
        }
        __syncwarp();
        if (mine)
            copy_box(to.kv[plane] + ring.stage * shape<D>::block_bytes +
                         lane % parts * shape<D>::part_bytes + position % keys * 128,
                     &args.map, barrier, lane % parts * 64,
                     position & (args.call.args.kv.page_tokens - 1), kv_head,
                     args.call.args.layer * 2 + plane, page);
    }
    ring.next();
}

/* K and V of a tile's blocks, by one warp: a lane asks for one part of the columns of one page, if a key
 * in it is seen by some row. The next block's pages are looked up while this one's copies are waited for. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed_blocks(const wgmma_args &args, const addresses &to,
                                                   const claimed_tile &work, turn &ring) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    const rp_attention_args &attention = args.call.args;
    const prefill_tile &tile = work.tile;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens;
    uint32_t shift = 31 - __clz(attention.kv.page_tokens);
    uint32_t offset = lane / parts * box; /* of the lane's page, in the block */
    auto is_needed = [&](uint32_t position) {
        return offset < keys && position + box > tile.first_key && position < tile.key_end;
    };
    uint32_t key = tile.first_key / keys * keys;
    uint32_t page = is_needed(key + offset) ? tile.pages[(key + offset) >> shift] : 0;
    bool may_claim = false;
    for (; key < tile.key_end; key += keys) {
        uint32_t position = key + offset, next = position + keys, next_page = 0;
        if (is_needed(next))
            next_page = tile.pages[next >> shift];
        if (!may_claim && key + LEAD * keys >= tile.key_end) {
            may_claim = true;
            if (lane == 0)
                barrier_arrive(at(&to.shared->may_claim));
        }
        ask_block<D, Mask>(args, to, work.kv_head, ring, position, page, is_needed(position), 0);
        page = next_page;
    }
}

/* The same of a program: the blocks that the planner left, and of them the pages. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed_program(const wgmma_args &args, const addresses &to,
                                                    const claimed_tile &work, turn &ring) {
    constexpr uint32_t keys = shape<D>::keys, parts = shape<D>::parts;
    const rp_attention_args &attention = args.call.args;
    const rp_attention_cuda_workspace &workspace = args.call.workspace;
    const rp_attention_cuda_plan_view &plan = workspace.plans[args.call.mask_class];
    const prefill_tile &tile = work.tile;
    const uint2 *words = (const uint2 *)plan.blocks + (size_t)tile.index * workspace.block_words;
    uint32_t lane = threadIdx.x % 32, box = args.box_tokens, left = plan.bounds[tile.index * 2 + 1];
    uint32_t shift = 31 - __clz(attention.kv.page_tokens), offset = lane / parts * box;
    uint32_t group = attention.heads / attention.kv_heads;
    mask_params<Mask> params;
    params.load(tile.pages - RP_SLOT_PAGES);
    bool may_claim = false;
    for (uint32_t base = 0; left != 0; base += 32) {
        uint2 mine = make_uint2(0, 0);
        if (base + lane < workspace.block_words)
            mine = words[base + lane];
        for (uint32_t some = __ballot_sync(0xFFFFFFFFu, mine.x != 0); some != 0; some &= some - 1) {
            uint32_t word = __ffs((int)some) - 1;
            uint32_t any = __shfl_sync(0xFFFFFFFFu, mine.x, word);
            uint32_t partial = __shfl_sync(0xFFFFFFFFu, mine.y, word);
            for (; any != 0; any &= any - 1) {
                uint32_t bit = __ffs((int)any) - 1, position = ((base + word) * 32 + bit) * keys;
                uint32_t entry = position | (partial >> bit & 1 ? BLOCK_IS_PARTIAL : 0);
                if (!may_claim && left <= LEAD) {
                    may_claim = true;
                    if (lane == 0)
                        barrier_arrive(at(&to.shared->may_claim));
                }
                if (--left == 0)
                    entry |= BLOCK_IS_LAST;
                position += offset;
                bool is_needed =
                    offset < keys && position < tile.key_end &&
                    ((entry & BLOCK_IS_PARTIAL) == 0 ||
                     Mask::classify(tile.position, tile.tokens, position,
                                    min(position + box, tile.key_end), work.kv_head * group, group,
                                    params.value) != RP_MASK_SKIP);
                uint32_t page = is_needed ? tile.pages[position >> shift] : 0;
                ask_block<D, Mask>(args, to, work.kv_head, ring, position, page, is_needed, entry);
            }
        }
    }
}

template <bool Wide>
static __device__ __forceinline__ void load_eight(float4 (&x)[2], const float *from) {
    if (Wide) {
        x[0] = *(const float4 *)from;
        x[1] = *(const float4 *)(from + 4);
    } else {
        x[0] = make_float4(from[0], from[1], from[2], from[3]);
        x[1] = make_float4(from[4], from[5], from[6], from[7]);
    }
}

/* Rows [first, first + count) of Q, rounded to bf16; zeros where there is no token. Batch rows of a
 * thread are in flight at once: no load stands behind a branch. */
template <int D, bool Wide, uint32_t Threads, uint32_t Batch>
static __device__ __forceinline__ void load_q(const rp_attention_args &args, uint32_t to,
                                              const claimed_tile &work, uint32_t thread,
                                              uint32_t group, uint32_t first, uint32_t count) {
    constexpr uint32_t chunks = D / 8, step = Threads / chunks;
    uint32_t chunk = thread % chunks, rows = work.tile.tokens * group;
    uint32_t divisor = (65535 + group) / group; /* row / group for rows below 256 */
    const float *base = args.q + (size_t)work.tile.token * args.q_stride +
                        (size_t)work.kv_head * group * D + chunk * 8;
    for (uint32_t row = first + thread / chunks; row < first + count; row += step * Batch) {
        float4 x[Batch][2];
#pragma unroll
        for (uint32_t i = 0; i < Batch; i++) {
            uint32_t at = min(row + i * step, rows - 1), token = at * divisor >> 16;
            load_eight<Wide>(x[i], base + (size_t)token * args.q_stride + (at - token * group) * D);
        }
#pragma unroll
        for (uint32_t i = 0; i < Batch; i++) {
            uint32_t at = row + i * step;
            bool has_token = at < rows;
            uint32_t place = to + chunk / 8 * (ROWS * 128) + at * 128 + (chunk % 8 ^ at % 8) * 16;
            if (at < first + count)
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place),
                             "r"(has_token ? pack_bf16(x[i][0].x, x[i][0].y) : 0),
                             "r"(has_token ? pack_bf16(x[i][0].z, x[i][0].w) : 0),
                             "r"(has_token ? pack_bf16(x[i][1].x, x[i][1].y) : 0),
                             "r"(has_token ? pack_bf16(x[i][1].z, x[i][1].w) : 0)
                             : "memory");
        }
    }
    fence_async_proxy();
}

template <int D, uint32_t Threads, uint32_t Batch>
static __device__ __forceinline__ void feed_q(const rp_attention_args &args, uint32_t to,
                                              const claimed_tile &work, uint32_t thread,
                                              uint32_t group, uint32_t first, uint32_t count) {
    if (args.q_stride % 4 == 0 && (uintptr_t)args.q % 16 == 0)
        load_q<D, true, Threads, Batch>(args, to, work, thread, group, first, count);
    else
        load_q<D, false, Threads, Batch>(args, to, work, thread, group, first, count);
}

/* One thread's: claims a tile and tells everybody. Each block has its first one without asking. */
template <typename Mask>
static __device__ __forceinline__ void claim_tile(const rp_attention_cuda_args &call,
                                                  control *shared, uint32_t count) {
    uint32_t *counter = &call.workspace.claims[CLAIM];
    uint32_t items = call.workspace.plans[call.mask_class].head->tiles * call.args.kv_heads;
    uint32_t claim = blockIdx.x;
    if (count != 0) {
        barrier_wait(at(&shared->may_claim), (count - 1) & 1);
        uint32_t before = atomicAdd(counter, 1);
        claim = gridDim.x + before;
        if (before == items - 1)
            *counter = 0; /* so many ask in all */
    }
    claimed_tile work = {};
    if (claim < items) {
        work.tile = find_tile<Mask>(call, claim / call.args.kv_heads);
        work.kv_head = claim % call.args.kv_heads;
        for (int i = 0; i < Mask::param_count; i++)
            shared->params[count % 2][i] =
                (int32_t)work.tile.pages[i + RP_SLOT_MASK_PARAMS - RP_SLOT_PAGES];
    }
    shared->tiles[count % 2] = work;
    barrier_arrive(at(&shared->tile_full[count % 2]));
}

/* Warp 0 asks for K and V, the three others for Q, a tile ahead of it. The first tile's Q is left to those who
 * compute: they are many, and have nothing to do yet. */
template <int D, typename Mask>
static __device__ __forceinline__ void feed(const wgmma_args &args, const addresses &to,
                                            uint32_t group) {
    const rp_attention_cuda_args &call = args.call;
    control *shared = to.shared;
    if (threadIdx.x < 32) {
        turn ring;
        for (uint32_t count = 0;; count++) {
            barrier_wait(at(&shared->tile_full[count % 2]), count / 2 & 1);
            claimed_tile work = shared->tiles[count % 2];
            if (work.tile.tokens == 0)
                return;
            if constexpr (Mask::is_program)
                feed_program<D, Mask>(args, to, work, ring);
            else
                feed_blocks<D, Mask>(args, to, work, ring);
        }
    }
    constexpr uint32_t stages = shape<D>::q_stages;
    for (uint32_t count = 0;; count++) {
        uint32_t slot = count % stages;
        /* tiles[count % 2] is free when the tile before the last one is done. */
        if (stages == 2)
            barrier_wait(at(&shared->q_empty[slot]), (count / stages & 1) ^ 1);
        if (threadIdx.x == 32)
            claim_tile<Mask>(call, shared, count);
        asm volatile("bar.sync %0, 96;" ::"r"(SYNC_FEEDERS) : "memory");
        claimed_tile work = shared->tiles[count % 2];
        if (stages == 1)
            barrier_wait(at(&shared->q_empty[slot]), (count / stages & 1) ^ 1);
        if (work.tile.tokens != 0 && count != 0)
            feed_q<D, 96, shape<D>::feed_batch>(call.args, to.q + slot * shape<D>::q_bytes, work,
                                                threadIdx.x - 32, group, 0, ROWS);
        barrier_arrive(at(&shared->q_full[slot]));
        if (work.tile.tokens == 0)
            return;
    }
}

#endif
