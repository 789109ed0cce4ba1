/* route_row.cuh - how a warp chooses the experts of a row, in registers (experts_cuda.h).
 *
 * Scores become keys whose order as integers is that of the scores: the best is found by two
 * reductions over the warp, the lowest number among equals. */
#ifndef RP_DEVICE_ROUTE_ROW_CUH
#define RP_DEVICE_ROUTE_ROW_CUH

#include "device/cuda_kernel.cuh"
#include "device/experts_cuda.h"

#define ALL 0xFFFFFFFFu

namespace {

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

} // namespace

#endif
