/* attention_plan_cuda.cu - builds work lists from the live rows: one block per mask class. */
#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_program_cuda.h"

#include "device/cuda_kernel.cuh"

namespace {

constexpr int THREADS = 256;
constexpr uint32_t SORTED_MAX = 512; /* tiles that are sorted; more stay in row order */

struct sums {
    uint32_t rows, splits, tiles;
};

__device__ __forceinline__ sums operator+(const sums &a, const sums &b) {
    return {a.rows + b.rows, a.splits + b.splits, a.tiles + b.tiles};
}

__device__ __forceinline__ sums shuffle_up(const sums &x, int lanes) {
    return {__shfl_up_sync(0xFFFFFFFFu, x.rows, lanes),
            __shfl_up_sync(0xFFFFFFFFu, x.splits, lanes),
            __shfl_up_sync(0xFFFFFFFFu, x.tiles, lanes)};
}

/* Exclusive prefix sum over the threads of the block; *total is the sum. */
__device__ __forceinline__ sums scan(const sums &mine, sums (&warps)[THREADS / 32], sums *total) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    sums up_to = mine;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        sums other = shuffle_up(up_to, lanes);
        if (lane >= (uint32_t)lanes)
            up_to = up_to + other;
    }
    if (lane == 31)
        warps[warp] = up_to;
    __syncthreads();
    sums before = {0, 0, 0};
    *total = {0, 0, 0};
#pragma unroll
    for (uint32_t w = 0; w < THREADS / 32; w++) {
        if (w < warp)
            before = before + warps[w];
        *total = *total + warps[w];
    }
    __syncthreads();
    before.rows += up_to.rows - mine.rows;
    before.splits += up_to.splits - mine.splits;
    before.tiles += up_to.tiles - mine.tiles;
    return before;
}

/* Padding and finished slots are dead. Flags are not enough: a chunk in mid-prompt has none. */
__device__ __forceinline__ bool is_live(const rp_step_view &step, const rp_live_row &row,
                                        uint32_t index) {
    return row.token_count != 0 && step.token_rows[row.token_begin] == index &&
           (row.flags != 0 ||
            step.slots[(size_t)row.slot * step.slot_words + RP_SLOT_FINISHED] == 0);
}

__device__ __forceinline__ uint32_t first_seen(uint32_t window, uint32_t position) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

/* Splits of a decode row: of `shortest` keys, doubled until RP_ATTENTION_SPLITS hold them all. */
__device__ __forceinline__ rp_attention_plan_row plan_row(const rp_live_row &row, uint32_t window,
                                                          uint32_t shortest) {
    rp_attention_plan_row plan;
    plan.token = row.token_begin;
    plan.slot = row.slot;
    plan.position = row.kv_begin;
    plan.first = first_seen(window, row.kv_begin);
    uint32_t keys = plan.position + 1 - plan.first;
    plan.split_log2 = 31 - __clz(shortest);
    while ((uint64_t)keys > (uint64_t)RP_ATTENTION_SPLITS << plan.split_log2)
        plan.split_log2++;
    plan.first_split = plan.first >> plan.split_log2;
    plan.splits = (plan.position >> plan.split_log2) - plan.first_split + 1;
    return plan;
}

struct tile_list {
    rp_attention_plan_tile tiles[SORTED_MAX];
    uint32_t keys[SORTED_MAX]; /* that a tile reads */
};

/* The tiles of a row, last first: those see most keys. */
__device__ __forceinline__ void put_tiles(const rp_live_row &row, uint32_t window, uint32_t tile,
                                          bool pairs, uint32_t at, rp_attention_plan_tile *out,
                                          tile_list *list) {
    const uint32_t count = (row.token_count + tile - 1) / tile, together = pairs ? 2 : 1;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t index = count - 1 - i, query = index / together * together * tile;
        rp_attention_plan_tile next = {row.slot, row.token_begin + query, row.kv_begin + query,
                                       min(tile * together, row.token_count - query),
                                       index % together};
        out[at + i] = next;
        if (at + i < SORTED_MAX) {
            list->tiles[at + i] = next;
            list->keys[at + i] = next.position + next.count - first_seen(window, next.position);
        }
    }
}

/* Longest first, so that no long tile starts late; stable. */
__device__ __forceinline__ void sort_tiles(const tile_list &list, uint32_t count,
                                           rp_attention_plan_tile *out) {
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        uint32_t mine = list.keys[i], rank = 0;
        for (uint32_t j = 0; j < count; j++)
            rank += list.keys[j] > mine || (list.keys[j] == mine && j < i);
        out[rank] = list.tiles[i];
    }
}

__global__ void __launch_bounds__(THREADS)
    attention_plan_kernel(const __grid_constant__ rp_attention_plan_cuda args) {
    __shared__ sums warps[THREADS / 32];
    __shared__ tile_list list;
    rp_stamp stamp(args.stamp);
    stamp.begin();
    stamp.look();
    const rp_step_view &step = args.config.step;
    const uint32_t window = args.config.windows[blockIdx.x];
    const uint32_t shortest = RP_ATTENTION_SHORTEST_SPLIT(args.config.kv.dtype);
    const rp_attention_cuda_plan_view &plan = args.workspace.plans[blockIdx.x];
    const uint32_t row_count = step.counts->row_count;
    sums at = {0, 0, 0};
    for (uint32_t base = 0; base < row_count; base += THREADS) {
        uint32_t index = base + threadIdx.x;
        sums mine = {0, 0, 0}, total;
        rp_live_row row = {};
        rp_attention_plan_row decode = {};
        if (index < row_count) {
            row = step.rows[index];
            if (is_live(step, row, index)) {
                if (row.flags & RP_ROW_DECODE) {
                    decode = plan_row(row, window, shortest);
                    mine = {1, decode.splits, 0};
                } else if (args.tile_queries != 0) {
                    mine.tiles = (row.token_count + args.tile_queries - 1) / args.tile_queries;
                }
            }
        }
        sums before = at + scan(mine, warps, &total);
        if (mine.rows != 0) {
            decode.begin = before.splits;
            plan.rows[before.rows] = decode;
        }
        if (mine.tiles != 0)
            put_tiles(row, window, args.tile_queries, args.pairs, before.tiles, plan.tiles, &list);
        at = at + total;
    }
    __syncthreads();
    if (at.tiles > 1 && at.tiles <= SORTED_MAX)
        sort_tiles(list, at.tiles, plan.tiles);
    if (threadIdx.x == 0) {
        plan.head->decode_rows = at.rows;
        plan.head->decode_splits = at.splits;
        plan.head->tiles = at.tiles;
    }
}
} // namespace

int rp_attention_plan_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_plan_cuda *args = (const rp_attention_plan_cuda *)args_void;
    return rp_cuda_start(attention_plan_kernel, dim3(args->config.window_count), dim3(THREADS), 0,
                         stream, args->config.limits.dependent_launch, *args);
}

int rp_attention_plan_program_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_plan_program *args = (const rp_attention_plan_program *)args_void;
    return rp_cuda_start(args->program->plan, dim3(args->blocks),
                         dim3(RP_ATTENTION_PLAN_PROGRAM_THREADS), 0, stream, args->dependent_launch,
                         &args->args);
}
