/* Routing, with or without the router's GEMM, and the order of choices (experts_cuda.h).
 *
 * Route: a warp has a row (route_row.cuh).
 *
 * Router: a cluster of blocks computes the logits. A block has one or more segments of K, of all
 * experts, as fragments of mma.sync in registers: weights are loaded before the wait. The segments'
 * sums go into the first block's shared memory; it adds them up, routes, and orders the choices.
 *
 * Order: one block sorts all choices by counting. Each warp has a run of choices: it counts them,
 * then learns from the counts of the warps before it where its own go, and ranks 32 choices at a
 * time by comparing them: stable, whatever the warps' speed. */
#include "device/experts_cuda.h"

#include "device/cluster.cuh"
#include "device/route_row.cuh"

/* Threads that order choices. A small block, for up to ROWS_FEW rows and as many experts as
 * threads, shares an SM with the kernel ahead: it starts before that ends. */
#define BLOCK        1024
#define BLOCK_FEW    256
#define ROWS_FEW     8u
#define WARPS        (BLOCK / 32)
#define ROUTE_WARPS  4
#define SHARED_WORDS 8192
#define LOADED       8 /* choices of a lane whose experts are loaded at a time */
/* The router's GEMM: blocks of the cluster at most and at least (cluster.cuh); steps of 16 columns
 * of a segment, for which there are registers. */
#define ROUTER_BLOCKS       8u
#define ROUTER_BLOCKS_LEAST 2u
#define ROUTER_STEPS        16

namespace {

/* --- route ----------------------------------------------------------------------------------- */

template <int EACH>
__global__ void __launch_bounds__(ROUTE_WARPS * 32) route_kernel(rp_route_cuda args) {
    extern __shared__ uint32_t words[];
    uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ROUTE_WARPS + warp;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    if (row >= args.rows.max_rows)
        return;
    /* The row is read before it is known to be live. */
    uint32_t live = rp_live_count(args.rows.step, args.rows.rows);
    float logits[EACH];
    load_logits<EACH>(args, row, logits);
    if (row < live)
        route_row<EACH>(args.route, row, logits, memory_of(words, warp, args.route.experts.count),
                        nullptr);
}

/* --- order ----------------------------------------------------------------------------------- */

struct order_memory {
    /* A count, then a position, of each (warp, expert); before that the rows of route_row. */
    uint32_t words[SHARED_WORDS];
    uint32_t sums[2][WARPS];
    uint32_t bins[RP_EXPERT_BINS], most, touched;
    uint16_t ids[BLOCK]; /* of the choices that this launch has made, if there are no more */
};

/* Exclusive sums of two values over the block's threads, and the sums of all. */
__device__ uint2 scan_block(order_memory &m, uint2 own, uint2 &total) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint2 sum = own;
    for (uint32_t step = 1; step < 32; step *= 2) {
        uint32_t x = __shfl_up_sync(ALL, sum.x, step), y = __shfl_up_sync(ALL, sum.y, step);
        if (lane >= step) {
            sum.x += x;
            sum.y += y;
        }
    }
    if (lane == 31) {
        m.sums[0][warp] = sum.x;
        m.sums[1][warp] = sum.y;
    }
    __syncthreads();
    bool exists = lane < blockDim.x / 32;
    uint32_t x = exists ? m.sums[0][lane] : 0, y = exists ? m.sums[1][lane] : 0;
    bool before = lane < warp;
    total = make_uint2(__reduce_add_sync(ALL, x), __reduce_add_sync(ALL, y));
    return make_uint2(__reduce_add_sync(ALL, before ? x : 0) + sum.x - own.x,
                      __reduce_add_sync(ALL, before ? y : 0) + sum.y - own.y);
}

/* The expert of a choice. */
__device__ __forceinline__ uint32_t expert_of(const rp_expert_order_cuda &args, uint32_t choice) {
    uint32_t used = args.experts.used, row = choice / used;
    const float *ids = (const float *)args.ids.data + row * args.ids.stride;
    return min((uint32_t)ids[choice - row * used], args.experts.count - 1);
}

/* The experts of 32 times LOADED choices from `first` on, a lane's 32 apart, all requested at once;
 * ALL: at or past the end. ids: those of all choices, or NULL. */
__device__ __forceinline__ void load_experts(const rp_expert_order_cuda &args, const uint16_t *ids,
                                             uint32_t first, uint32_t end,
                                             uint32_t (&experts)[LOADED]) {
#pragma unroll
    for (uint32_t i = 0; i < LOADED; i++) {
        uint32_t c = first + 32 * i + threadIdx.x % 32;
        experts[i] = c >= end ? ALL : ids ? ids[c] : expert_of(args, c);
    }
}

/* The tiles of this thread's expert. */
__device__ void write_tiles(const rp_expert_order_cuda &args, uint32_t first, uint32_t rows,
                            uint32_t tile, uint32_t tiles) {
    uint32_t each = tiles ? RP_ALIGN_UP(RP_CEIL_DIV(rows, tiles), 8u) : 0;
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t skipped = i * each;
        *(uint4 *)&args.tiles[1 + tile + i] =
            make_uint4(threadIdx.x, first + skipped, min(each, rows - skipped), 0);
    }
}

/* Adds to a total, and in the last layer the total to the host's. One thread for each field. */
__device__ __forceinline__ void add_total(const rp_expert_order_cuda &args, uint64_t *total,
                                          uint64_t *host, uint64_t value) {
    if (!args.is_last) { /* the sum is not waited for */
        atomicAdd((unsigned long long *)total, (unsigned long long)value);
        return;
    }
    *(volatile uint64_t *)host += *total + value;
    *total = 0;
}

/* What count_totals counts, of this thread's expert and its rows. */
__device__ __forceinline__ void count_rows(order_memory &m, uint32_t own) {
    uint32_t bin = own > 1 ? min(32u - __clz(own - 1), RP_EXPERT_BINS - 1) : 0;
    atomicAdd(&m.bins[bin], 1);
    atomicMax(&m.most, own);
    atomicAdd(&m.touched, 1);
}

/* As count_rows of experts_cpu.c. By threads 0, 1 and so on, after the block's count_rows. */
__device__ void count_totals(const rp_expert_order_cuda &args, const order_memory &m, uint32_t i,
                             uint32_t rows) {
    rp_expert_stats *to = args.totals, *host = args.stats;
    uint32_t bin = 0;
    if (i >= RP_EXPERT_BINS + 4)
        return;
    double ratio = (double)m.most * args.experts.count / rows;
    while (bin < RP_EXPERT_BINS - 1 && ratio > args.ratio_bounds[bin])
        bin++;
    if (i < RP_EXPERT_BINS) {
        add_total(args, &to->rows_bins[i], &host->rows_bins[i], m.bins[i]);
        add_total(args, &to->ratio_bins[i], &host->ratio_bins[i], i == bin);
    } else if (i == RP_EXPERT_BINS) {
        add_total(args, &to->samples, &host->samples, 1);
    } else if (i == RP_EXPERT_BINS + 1) {
        add_total(args, &to->rows, &host->rows, rows);
    } else if (i == RP_EXPERT_BINS + 2) {
        add_total(args, &to->touched, &host->touched, m.touched);
    } else {
        add_total(args, &to->ratio_thousandths, &host->ratio_thousandths,
                  (uint64_t)(ratio * 1000 + 0.5));
    }
}

/* Where a warp's 32 choices go, one of each lane: after those of the same expert that have a lower
 * number. own: the experts' next positions. */
__device__ __forceinline__ void place_choices(int32_t *order, uint32_t *own, uint32_t choice,
                                              uint32_t expert) {
    uint32_t same = __match_any_sync(ALL, expert), lower = same & ((1u << threadIdx.x % 32) - 1);
    if (expert != ALL)
        order[own[expert] + __popc(lower)] = (int32_t)choice;
    __syncwarp();
    if (expert != ALL && lower == 0)
        own[expert] += __popc(same);
    __syncwarp();
}

/* The whole block. ids: the experts of the choices, or NULL: they are in memory. */
__device__ void sort_choices(const rp_expert_order_cuda &args, uint32_t live, order_memory &m,
                             const uint16_t *ids) {
    uint32_t count = args.experts.count, choices = live * args.experts.used;
    uint32_t warps = min(min(blockDim.x / 32, SHARED_WORDS / count), RP_CEIL_DIV(choices, 32u));
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t run = warps ? RP_ALIGN_UP(RP_CEIL_DIV(choices, warps), 32u) : 0;
    uint32_t begin = min(warp * run, choices), end = min(begin + run, choices);
    uint32_t *own = m.words + warp * count, experts[LOADED];
    if (warp >= warps)
        begin = end = 0;
    for (uint32_t i = threadIdx.x; i < warps * count; i += blockDim.x)
        m.words[i] = 0;
    if (threadIdx.x < RP_EXPERT_BINS)
        m.bins[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        m.most = m.touched = 0;
    __syncthreads();
    for (uint32_t first = begin; first < end; first += 32 * LOADED) {
        load_experts(args, ids, first, end, experts);
#pragma unroll
        for (uint32_t i = 0; i < LOADED; i++)
            if (experts[i] != ALL)
                atomicAdd(&own[experts[i]], 1);
    }
    __syncthreads();
    uint2 mine = make_uint2(0, 0), total;
    for (uint32_t w = 0; threadIdx.x < count && w < warps; w++) {
        uint32_t rows = m.words[w * count + threadIdx.x];
        m.words[w * count + threadIdx.x] = mine.x;
        mine.x += rows;
    }
    mine.y = RP_CEIL_DIV(mine.x, args.tile_rows);
    uint2 at = scan_block(m, mine, total);
    for (uint32_t w = 0; threadIdx.x < count && w < warps; w++)
        m.words[w * count + threadIdx.x] += at.x;
    if (threadIdx.x < count) {
        args.order[threadIdx.x] = (int32_t)at.x;
        write_tiles(args, at.x, mine.x, at.y, mine.y);
    }
    if (threadIdx.x == 0) {
        args.order[count] = (int32_t)choices;
        args.tiles[0].count = total.y;
    }
    bool counted = args.stats && choices > 0;
    if (counted && mine.x > 0)
        count_rows(m, mine.x);
    __syncthreads();
    for (uint32_t first = begin; first < end; first += 32 * LOADED) {
        if (run > 32 * LOADED) /* else they are still there */
            load_experts(args, ids, first, end, experts);
#pragma unroll
        for (uint32_t i = 0; i < LOADED; i++)
            if (first + 32 * i < end)
                place_choices(args.order + count + 1, own, first + 32 * i + lane, experts[i]);
    }
    if (counted) /* by the last warps, which place no choices when there are few */
        count_totals(args, m, blockDim.x - 1 - threadIdx.x, choices);
}

__global__ void __launch_bounds__(BLOCK, 1) order_kernel(rp_expert_order_cuda args) {
    __shared__ order_memory memory;
    rp_stamp stamp(args.rows.stamp);
    stamp.begin();
    stamp.look();
    sort_choices(args, rp_live_count(args.rows.step, args.rows.rows), memory, nullptr);
}

template <int EACH, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) route_order_kernel(rp_route_order_cuda args) {
    __shared__ order_memory memory;
    const rp_route_cuda &route = args.route;
    const rp_experts &experts = route.route.experts;
    uint32_t warp = threadIdx.x / 32, warps = min(THREADS / 32, SHARED_WORDS / (2 * experts.count));
    uint32_t last = warp < warps ? route.rows.max_rows : 0;
    uint16_t *ids = route.rows.max_rows * experts.used <= BLOCK ? memory.ids : nullptr;
    rp_stamp stamp(route.rows.stamp);
    stamp.begin();
    stamp.look();
    uint32_t live = rp_live_count(route.rows.step, route.rows.rows);
    for (uint32_t row = warp; row < last; row += warps) {
        float logits[EACH];
        load_logits<EACH>(route, row, logits); /* before the row is known to be live */
        if (row >= live)
            break;
        route_row<EACH>(route.route, row, logits, memory_of(memory.words, warp, experts.count),
                        ids ? ids + row * experts.used : nullptr);
    }
    __syncthreads();
    sort_choices(args.order, live, memory, ids);
}

/* --- router ---------------------------------------------------------------------------------- */

/* Sixteen experts and a segment of K: one chain of instructions. */
struct router_unit {
    uint32_t expert, segment, steps; /* steps of 16 columns; 0: there is no such unit */
};

/* Unit `index` of this block, whose segments lie side by side. */
__device__ __forceinline__ router_unit unit_of(const rp_router_cuda &args, uint32_t index) {
    uint32_t tiles = args.order.route.route.experts.count / 16;
    uint32_t segments = RP_CEIL_DIV(args.k, args.segment);
    uint32_t each = RP_CEIL_DIV(segments, gridDim.x), at = index / tiles;
    uint32_t segment = blockIdx.x * each + at, begin = segment * args.segment;
    bool exists = at < each && segment < segments;
    return {index % tiles * 16, segment, exists ? min(args.segment, args.k - begin) / 16 : 0};
}

/* The words of a row that this lane has in the fragments of a unit's first step. */
__device__ __forceinline__ const uint32_t *fragments_of(const rp_router_cuda &args,
                                                        const void *rows, size_t row, size_t stride,
                                                        const router_unit &unit) {
    size_t at = row * stride + unit.segment * args.segment + threadIdx.x % 4 * 2;
    return (const uint32_t *)((const __nv_bfloat16 *)rows + at);
}

typedef uint32_t router_weights[ROUTER_STEPS][4];
typedef uint32_t router_tokens[ROUTER_STEPS][2];

/* WHOLE: a unit of ROUTER_STEPS steps, whose loads need no conditions. */
template <bool WHOLE>
__device__ __forceinline__ void load_weights(const rp_router_cuda &args, const router_unit &unit,
                                             router_weights &to) {
    const uint32_t *from =
        fragments_of(args, args.weight, unit.expert + threadIdx.x % 32 / 4, args.k, unit);
    const uint32_t *below = from + 4 * (size_t)args.k; /* 8 rows */
#pragma unroll
    for (uint32_t step = 0; step < ROUTER_STEPS; step++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (WHOLE || step < unit.steps)
                to[step][i] = (i % 2 ? below : from)[step * 8 + i / 2 * 4];
}

/* The row that this lane has in the fragments; in place of one that does not exist, whose sums are
 * dropped, the last one. */
template <bool WHOLE>
__device__ __forceinline__ void load_tokens(const rp_router_cuda &args, const router_unit &unit,
                                            router_tokens &to) {
    uint32_t token = min(threadIdx.x % 32 / 4, args.order.route.rows.max_rows - 1);
    const uint32_t *from = fragments_of(args, args.in, token, args.in_stride, unit);
#pragma unroll
    for (uint32_t step = 0; step < ROUTER_STEPS; step++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (WHOLE || step < unit.steps)
                to[step][i] = from[step * 8 + i * 4];
}

template <bool WHOLE>
__device__ __forceinline__ void multiply(const router_unit &unit, const router_weights &weights,
                                         const router_tokens &tokens, float (&sums)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        sums[i] = 0.0f;
#pragma unroll
    for (uint32_t step = 0; step < ROUTER_STEPS; step++)
        if (WHOLE || step < unit.steps)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                         "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                         : "r"(weights[step][0]), "r"(weights[step][1]), "r"(weights[step][2]),
                           "r"(weights[step][3]), "r"(tokens[step][0]), "r"(tokens[step][1]));
}

/* The units of a warp, all of the same segment and length, or without any steps. stamp: waits.
 * Returns the live count. */
template <int UNITS, bool WHOLE>
__device__ __forceinline__ uint32_t compute_units(const rp_router_cuda &args,
                                                  const router_unit (&units)[UNITS],
                                                  rp_stamp &stamp, float (&sums)[UNITS][4]) {
    const rp_cuda_rows &rows = args.order.route.rows;
    router_weights weights[UNITS];
    router_tokens tokens;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        load_weights<WHOLE>(args, units[u], weights[u]);
    stamp.wait();
    rp_pdl_trigger();
    stamp.look();
    uint32_t live = rp_live_count(rows.step, rows.rows);
    load_tokens<WHOLE>(args, units[0], tokens);
    __syncwarp(); /* all are requested before the first instruction waits for its own */
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        multiply<WHOLE>(units[u], weights[u], tokens, sums[u]);
    return live;
}

/* A segment's sums go to the first block: (segment)(token)(expert). */
__device__ __forceinline__ void hand_over(const rp_router_cuda &args, const router_unit &unit,
                                          const float (&sums)[4], uint32_t *words,
                                          uint64_t *barrier) {
    uint32_t rows = args.order.route.rows.max_rows, lane = threadIdx.x % 32;
    uint32_t count = args.order.route.route.experts.count;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = lane % 4 * 2 + i % 2, expert = unit.expert + lane / 4 + i / 2 * 8;
        if (unit.steps > 0 && token < rows)
            rp_cluster_store((float *)words + (unit.segment * rows + token) * count + expert,
                             barrier, 0, sums[i]);
    }
}

/* A row's logits: sums of the segments in rising order, then the bias. Those past the last expert
 * are the last one's, and mean nothing. */
template <int EACH>
__device__ __forceinline__ void add_segments(const rp_router_cuda &args, const uint32_t *words,
                                             uint32_t row, const float (&bias)[EACH],
                                             float (&logits)[EACH]) {
    uint32_t rows = args.order.route.rows.max_rows, count = args.order.route.route.experts.count;
    uint32_t segments = RP_CEIL_DIV(args.k, args.segment);
    const float *from = (const float *)words + row * count;
#pragma unroll 4
    for (uint32_t segment = 0; segment < segments; segment++, from += rows * count)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float part = from[min(threadIdx.x % 32 + 32 * i, count - 1)];
            logits[i] = segment == 0 ? part : logits[i] + part;
        }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (args.bias)
            logits[i] += bias[i];
}

/* The trigger comes after the wait, as in GEMMs. */
template <int EACH>
__global__ void __launch_bounds__(BLOCK_FEW, 1) router_kernel(rp_router_cuda args) {
    constexpr int UNITS = EACH > 4 ? 2 : 1; /* of a warp */
    __shared__ order_memory memory;
    __shared__ uint64_t barrier;
    const rp_route_cuda &route = args.order.route;
    const rp_experts &experts = route.route.experts;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = route.rows.max_rows;
    router_unit units[UNITS];
    float sums[UNITS][4], bias[EACH], logits[EACH];
    bool whole = true;
    rp_stamp stamp(route.rows.stamp);
    rp_cluster_barrier_init(&barrier);
    rp_cluster_meet();
    if (blockIdx.x == 0)
        rp_cluster_barrier_expect(&barrier, RP_CEIL_DIV(args.k, args.segment) * rows *
                                                experts.count * (uint32_t)sizeof(float));
#pragma unroll
    for (int i = 0; i < EACH; i++)
        bias[i] = args.bias && lane + 32 * i < experts.count ? args.bias[lane + 32 * i] : 0.0f;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        units[u] = unit_of(args, warp + u * (BLOCK_FEW / 32));
        whole = whole && units[u].steps == ROUTER_STEPS;
    }
    uint32_t live = whole ? compute_units<UNITS, true>(args, units, stamp, sums)
                          : compute_units<UNITS, false>(args, units, stamp, sums);
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        hand_over(args, units[u], sums[u], memory.words, &barrier);
    if (blockIdx.x > 0)
        return;
    rp_cluster_await(&barrier);
    if (warp < rows)
        add_segments<EACH>(args, memory.words, warp, bias, logits);
    __syncthreads(); /* the rows' memory is where the sums were */
    if (warp < min(live, rows))
        route_row<EACH>(route.route, warp, logits, memory_of(memory.words, warp, experts.count),
                        memory.ids + warp * experts.used);
    __syncthreads();
    sort_choices(args.order.order, live, memory, memory.ids);
}

} // namespace

/* --- launches -------------------------------------------------------------------------------- */

/* The kernel whose lanes hold so many experts. */
#define FOR_EXPERTS(kernel, count)                                                                 \
    ((count) <= 32    ? kernel(1)                                                                  \
     : (count) <= 64  ? kernel(2)                                                                  \
     : (count) <= 128 ? kernel(4)                                                                  \
     : (count) <= 256 ? kernel(8)                                                                  \
                      : kernel(32))
#define ROUTE(each)           route_kernel<each>
#define ROUTE_ORDER(each)     route_order_kernel<each, BLOCK>
#define ROUTE_ORDER_FEW(each) route_order_kernel<each, BLOCK_FEW>

int rp_route_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_route_cuda *args = (const rp_route_cuda *)args_void;
    uint32_t count = args->route.experts.count;
    dim3 grid(RP_CEIL_DIV(args->rows.max_rows, (uint32_t)ROUTE_WARPS));
    return rp_cuda_start(FOR_EXPERTS(ROUTE, count), grid, dim3(ROUTE_WARPS * 32),
                         ROUTE_WARPS * 2 * sizeof(uint32_t) * count, stream,
                         !args->rows.plain_edges, *args);
}

int rp_expert_order_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_expert_order_cuda *args = (const rp_expert_order_cuda *)args_void;
    return rp_cuda_start(order_kernel, dim3(1), dim3(BLOCK), 0, stream, !args->rows.plain_edges,
                         *args);
}

int rp_route_order_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_route_order_cuda *args = (const rp_route_order_cuda *)args_void;
    uint32_t count = args->route.route.experts.count;
    bool few = args->route.rows.max_rows <= ROWS_FEW && count <= BLOCK_FEW;
    return rp_cuda_start(
        few ? FOR_EXPERTS(ROUTE_ORDER_FEW, count) : FOR_EXPERTS(ROUTE_ORDER, count), dim3(1),
        dim3(few ? BLOCK_FEW : BLOCK), 0, stream, !args->route.rows.plain_edges, *args);
}

static uint32_t router_segments(const struct rp_router_cuda *args) {
    return RP_CEIL_DIV(args->k, args->segment);
}
/* Segments of a block. */
static uint32_t router_each(const struct rp_router_cuda *args) {
    return RP_CEIL_DIV(router_segments(args), ROUTER_BLOCKS);
}

bool rp_router_cuda_fits(const struct rp_router_cuda *args) {
    const struct rp_experts *experts = &args->order.route.route.experts;
    uint32_t rows = args->order.route.rows.max_rows;
    if (rows == 0 || rows > ROWS_FEW || experts->count == 0 || experts->count > BLOCK_FEW ||
        experts->count % 16 != 0 || rows * experts->used > BLOCK || args->k == 0 ||
        args->k % 16 != 0 || args->segment == 0 || args->segment % 16 != 0 ||
        args->segment > 16 * ROUTER_STEPS)
        return false;
    /* A warp has one unit, or two of one segment. */
    uint32_t tiles = experts->count / 16, each = router_each(args), warps = BLOCK_FEW / 32;
    return (experts->count > 128 ? each == 1 && tiles <= 2 * warps : tiles * each <= warps) &&
           (size_t)router_segments(args) * rows * experts->count <= SHARED_WORDS &&
           args->in_stride % 2 == 0 && (uintptr_t)args->in % 4 == 0 &&
           (uintptr_t)args->weight % 4 == 0;
}

int rp_router_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_router_cuda *args = (const rp_router_cuda *)args_void;
    uint32_t count = args->order.route.route.experts.count;
    if (!rp_router_cuda_fits(args))
        return cudaErrorInvalidValue;
    /* If there is one segment, the second block has no units: it waits and ends. */
    uint32_t blocks =
        RP_MAX(RP_CEIL_DIV(router_segments(args), router_each(args)), ROUTER_BLOCKS_LEAST);
    return rp_cuda_start(count <= 32    ? router_kernel<1>
                         : count <= 64  ? router_kernel<2>
                         : count <= 128 ? router_kernel<4>
                                        : router_kernel<8>,
                         dim3(blocks), dim3(BLOCK_FEW), 0, stream,
                         !args->order.route.rows.plain_edges, *args, blocks);
}
