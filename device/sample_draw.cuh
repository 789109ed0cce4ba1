/* sample_draw.cuh - what the kernels of sample_cuda.cu share: keys that order logits, Gumbel noise
 * from Philox, sums over a block. The formulas are those of sample_cpu.c, rounded at the same
 * places. */
#ifndef RP_DEVICE_SAMPLE_DRAW_CUH
#define RP_DEVICE_SAMPLE_DRAW_CUH

#include "device/cuda_vector.cuh"

#define RP_SAMPLE_THREADS 256u
#define RP_SAMPLE_WARPS   (RP_SAMPLE_THREADS / 32)

/* Keys: larger score first, then lower id. A plain maximum over keys chooses; 0 is "none", all bits
 * set are "a NaN was there". */
#define RP_KEY_NONE 0ull
#define RP_KEY_NAN  0xFFFFFFFFFFFFFFFFull

/* Order-preserving; -0 equals 0. */
static __device__ __forceinline__ uint32_t rp_ordered(float value) {
    uint32_t bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float rp_unordered(uint32_t ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7FFFFFFFu : ~ordered);
}

static __device__ __forceinline__ uint64_t rp_key(float score, uint32_t id) {
    return (uint64_t)rp_ordered(score) << 32 | (0xFFFFFFFFu - id);
}

static __device__ __forceinline__ uint32_t rp_key_id(uint64_t key) {
    return 0xFFFFFFFFu - (uint32_t)key;
}

static __device__ __forceinline__ float rp_key_score(uint64_t key) {
    return rp_unordered((uint32_t)(key >> 32));
}

static __device__ __forceinline__ uint64_t rp_warp_key_max(uint64_t key) {
    uint32_t high = (uint32_t)(key >> 32), top = __reduce_max_sync(0xFFFFFFFFu, high);
    uint32_t low = __reduce_max_sync(0xFFFFFFFFu, high == top ? (uint32_t)key : 0);
    return (uint64_t)top << 32 | low;
}

/* All threads get the maximum. shared: RP_SAMPLE_WARPS keys, reusable after the next barrier. */
static __device__ __forceinline__ uint64_t rp_block_key_max(uint64_t key, uint64_t *shared) {
    key = rp_warp_key_max(key);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = key;
    __syncthreads();
    uint64_t best = shared[0];
    for (uint32_t w = 1; w < RP_SAMPLE_WARPS; w++)
        best = shared[w] > best ? shared[w] : best;
    return best;
}

/* Inclusive sum over the block's threads. shared: RP_SAMPLE_WARPS words. */
static __device__ __forceinline__ uint64_t rp_block_scan(uint64_t value, uint64_t *shared) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        uint64_t other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
        if (lane >= distance)
            value += other;
    }
    __syncthreads();
    if (lane == 31)
        shared[warp] = value;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        value += shared[w];
    return value;
}

static __device__ __forceinline__ uint32_t rp_philox_cuda(uint64_t key, uint32_t counter0,
                                                          uint32_t counter1) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter0, c1 = counter1, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

static __device__ __forceinline__ float rp_gumbel(uint32_t word) {
    double u = ((double)word + 0.5) * 0x1p-32;
    return (float)-log(-log(u));
}

/* The same within RP_GUMBEL_MARGIN / 4, in single precision: tells which draws cannot win. Near u =
 * 1 the inner logarithm is a series in 1 - u, which keeps its digits. */
#define RP_GUMBEL_MARGIN 1e-3f
static __device__ __forceinline__ float rp_gumbel_near(uint32_t word) {
    float v = ((float)~word + 0.5f) * 0x1p-32f; /* 1 - u */
    float e = v < 0.01f ? v * (1.0f + v * (0.5f + v * (1.0f / 3.0f)))
                        : -__logf(v < 0.5f ? 1.0f - v : ((float)word + 0.5f) * 0x1p-32f);
    return -__logf(e);
}

/* Draws of one row, seen by one warp. Only those near the best so far are computed in full. */
struct rp_drawing {
    uint64_t seed;
    uint32_t position;
    float near_best; /* the warp's */
    uint64_t best;   /* this thread's key */
};

/* COUNT ids of each lane at once; all lanes call it together. */
template <int COUNT>
static __device__ __forceinline__ void rp_draw(rp_drawing &drawing, const float *logits,
                                               const uint32_t *ids, const bool *kept) {
    float near[COUNT], largest = -INFINITY;
    uint32_t words[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        words[i] = rp_philox_cuda(drawing.seed, ids[i], drawing.position);
        near[i] = kept[i] ? logits[i] + rp_gumbel_near(words[i]) : -INFINITY;
        largest = fmaxf(largest, near[i]);
    }
    largest = rp_unordered(__reduce_max_sync(0xFFFFFFFFu, rp_ordered(largest)));
    drawing.near_best = fmaxf(drawing.near_best, largest);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (!kept[i] || near[i] < drawing.near_best - RP_GUMBEL_MARGIN)
            continue;
        uint64_t key = rp_key(__fadd_rn(logits[i], rp_gumbel(words[i])), ids[i]);
        drawing.best = key > drawing.best ? key : drawing.best;
    }
}

#endif
