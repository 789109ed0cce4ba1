/* Routing and the order of choices (experts_cuda.h).
 *
 * Route: a warp has a row, in registers. Scores become keys whose order as integers is that of
 * the scores: the best is found by two reductions over the warp, the lowest number among equals.
 *
 * Order: one block sorts all choices by counting. Each warp has a run of choices: it counts them,
 * then learns from the counts of the warps before it where its own go, and ranks 32 choices at a
 * time by comparing them: stable, whatever the warps' speed. */
#include "device/experts_cuda.h"

#include "device/cuda_vector.cuh"

#define ALL 0xFFFFFFFFu
/* Threads that order choices. A small block, for up to ROWS_FEW rows and as many experts as
 * threads, shares an SM with the kernel ahead: it starts before that ends. */
#define BLOCK        1024
#define BLOCK_FEW    256
#define ROWS_FEW     8u
#define WARPS        (BLOCK / 32)
#define ROUTE_WARPS  4
#define SHARED_WORDS 8192
#define LOADED       8 /* choices of a lane whose experts are loaded at a time */

namespace {

/* --- route ----------------------------------------------------------------------------------- */

/* Rises with x, from 1; NaN is the greatest; 0 stands for what is taken. */
__device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 and 0 are equal */
    return x != x ? ALL : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* What a warp has of its row in shared memory: `count` words each. */
struct row_memory {
    uint32_t *keys;
    float *chosen; /* or keys of groups */
};

__device__ __forceinline__ row_memory memory_of(uint32_t *words, uint32_t warp, uint32_t count) {
    uint32_t *at = words + warp * 2 * count;
    return {at, (float *)(at + count)};
}

/* The number of the first greatest key, for all lanes. best, at: this lane's. */
__device__ __forceinline__ uint32_t first_best(uint32_t best, uint32_t at, uint32_t count) {
    uint32_t most = __reduce_max_sync(ALL, best);
    return min(__reduce_min_sync(ALL, best == most ? at : count), count - 1);
}

/* The same of keys in shared memory; it becomes taken. */
__device__ __forceinline__ uint32_t take_best(uint32_t *keys, uint32_t count) {
    uint32_t best = 0, at = count;
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32)
        if (keys[i] > best) {
            best = keys[i];
            at = i;
        }
    uint32_t id = first_best(best, at, count);
    if (id % 32 == threadIdx.x % 32)
        keys[id] = 0;
    return id;
}

/* The sum of the `best` greatest of a group's choices, greatest first. One lane. */
__device__ float group_score(const uint32_t *keys, uint32_t size, uint32_t best) {
    uint64_t before = ~(uint64_t)0;
    float sum = 0.0f;
    for (uint32_t n = 0; n < best; n++) {
        uint64_t found = 0;
        for (uint32_t i = 0; i < size; i++) { /* the number breaks ties, the lower is greater */
            uint64_t with = (uint64_t)keys[i] << 32 | (size - i);
            found = with < before && with > found ? with : found;
        }
        sum += value_of((uint32_t)(found >> 32));
        before = found;
    }
    return sum;
}

/* Experts outside the best groups become taken. */
__device__ void limit_groups(const rp_route_args &args, const row_memory &m) {
    uint32_t count = args.experts.count, size = count / args.groups, lane = threadIdx.x % 32;
    uint32_t *groups = (uint32_t *)m.chosen;
    for (uint32_t g = lane; g < args.groups; g += 32)
        groups[g] = key_of(group_score(m.keys + g * size, size, args.group_best));
    __syncwarp();
    for (uint32_t i = 0; i < args.groups_used; i++)
        take_best(groups, args.groups);
    __syncwarp();
    for (uint32_t i = lane; i < count; i += 32)
        if (groups[i / size] != 0)
            m.keys[i] = 0;
    __syncwarp();
}

/* x[i] is the value of lane + 32 i; those at or past count are none. */
template <int EACH> __device__ __forceinline__ void softmax(float (&x)[EACH], uint32_t count) {
    uint32_t lane = threadIdx.x % 32;
    float most = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < count)
            most = fmaxf(most, x[i]);
    most = rp_warp_max(most);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = lane + 32 * i < count ? expf(x[i] - most) : 0.0f;
        sum += x[i];
    }
    sum = rp_warp_sum(sum);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        x[i] = __fdiv_rn(x[i], sum);
}

/* The chosen ones of a row to `chosen` and their numbers to out and ids, by falling key. */
template <int EACH>
__device__ __forceinline__ void choose(const rp_route_args &args, const float (&scores)[EACH],
                                       uint32_t (&keys)[EACH], float *chosen, float *out,
                                       uint16_t *ids) {
    uint32_t count = args.experts.count, lane = threadIdx.x % 32;
    for (uint32_t r = 0; r < args.experts.used; r++) {
        uint32_t best = 0, at = count;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (keys[i] > best) {
                best = keys[i];
                at = lane + 32 * i;
            }
        uint32_t id = first_best(best, at, count);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i == id) {
                keys[i] = 0;
                chosen[r] = scores[i];
                out[r] = (float)id;
                if (ids)
                    ids[r] = (uint16_t)id;
            }
    }
    __syncwarp();
}

/* Weights of the chosen ones, up to 32 EACH. */
template <int EACH>
__device__ __forceinline__ void store_weights(const rp_route_args &args, const float *chosen,
                                              float *out) {
    uint32_t used = args.experts.used, lane = threadIdx.x % 32;
    float weights[EACH], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        weights[i] = lane + 32 * i < used ? chosen[lane + 32 * i] : 0.0f;
    if (args.score == RP_ROUTE_SOFTMAX_CHOSEN)
        softmax<EACH>(weights, used);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sum += weights[i];
    sum = rp_warp_sum(sum);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = lane + 32 * i;
        if (r >= used)
            continue;
        float weight = args.renormalize ? __fdiv_rn(weights[i], sum + 1e-20f) : weights[i];
        weight *= args.factor;
        out[r] = args.scales ? weight * args.scales[(uint32_t)out[used + r]] : weight;
    }
    __syncwarp(); /* the memory is that of the warp's next row */
}

/* The logits of a row, or the sums of their partials; loads of several partials are in flight.
 * EACH: experts of a lane. */
template <int EACH>
__device__ __forceinline__ void load_logits(const rp_route_cuda &from, uint32_t row,
                                            float (&logits)[EACH]) {
    constexpr uint32_t FLIGHT = EACH >= 32 ? 1 : 32 / EACH < 8 ? 32 / EACH : 8;
    const rp_cuda_partials &partials = from.partials;
    const rp_values &whole = from.route.logits;
    uint32_t count = from.route.experts.count, lane = threadIdx.x % 32;
    const float *first = partials.count ? partials.data + row * partials.row_stride
                                        : (const float *)whole.data + row * whole.stride;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        logits[i] = lane + 32 * i < count ? first[lane + 32 * i] : 0.0f;
    for (uint32_t begin = 1; begin < partials.count; begin += FLIGHT) {
        float parts[FLIGHT][EACH];
#pragma unroll
        for (uint32_t p = 0; p < FLIGHT; p++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                parts[p][i] = begin + p < partials.count && lane + 32 * i < count
                                  ? first[(begin + p) * partials.split_stride + lane + 32 * i]
                                  : 0.0f;
#pragma unroll
        for (uint32_t p = 0; p < FLIGHT; p++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (begin + p < partials.count)
                    logits[i] += parts[p][i];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (partials.count && partials.bias && lane + 32 * i < count)
            logits[i] += partials.bias[lane + 32 * i];
}

/* scores: the row's logits. ids: where the numbers of the chosen ones go, too, or NULL. */
template <int EACH>
__device__ __forceinline__ void route_row(const rp_route_args &args, uint32_t row,
                                          float (&scores)[EACH], const row_memory &m,
                                          uint16_t *ids) {
    uint32_t count = args.experts.count, lane = threadIdx.x % 32;
    float *out = (float *)args.out.data + row * args.out.stride;
    uint32_t keys[EACH];
    if (args.score == RP_ROUTE_SOFTMAX)
        softmax<EACH>(scores, count);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t at = lane + 32 * i;
        if (args.score == RP_ROUTE_SIGMOID)
            scores[i] = __fdiv_rn(1.0f, 1.0f + expf(-scores[i]));
        keys[i] = at >= count ? 0 : key_of(args.bias ? scores[i] + args.bias[at] : scores[i]);
        if (args.groups > 1 && at < count)
            m.keys[at] = keys[i];
    }
    if (args.groups > 1) {
        __syncwarp();
        limit_groups(args, m);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            keys[i] = lane + 32 * i < count ? m.keys[lane + 32 * i] : 0;
        __syncwarp();
    }
    choose<EACH>(args, scores, keys, m.chosen, out + args.experts.used, ids);
    if (args.experts.used <= 32)
        store_weights<1>(args, m.chosen, out);
    else
        store_weights<EACH>(args, m.chosen, out);
}

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
