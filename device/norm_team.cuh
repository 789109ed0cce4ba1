/* norm_team.cuh - the threads that norm a row together, for norm_cuda.cu and exchange_norm_cuda.cu.
 *
 * A team of threads computes one group of one row: thread t has columns 4 * (t + threads * i). How
 * large a team is depends on the group's size alone, and so does the order of the sum, however the
 * team's threads are carried. */
#ifndef RP_DEVICE_NORM_TEAM_CUH
#define RP_DEVICE_NORM_TEAM_CUH

#include "device/cluster.cuh"
#include "device/cuda_vector.cuh"
#include "device/quantize_packed.cuh"

#define RP_NORM_TEAM_MAX     1024
#define RP_NORM_CLUSTER      8  /* blocks of a team that is spread */
#define RP_NORM_CLUSTER_ROWS 32 /* most rows that are spread */

static uint32_t rp_norm_team_threads(uint32_t group) {
    uint32_t quads = (group + 3) / 4;
    return quads <= 64                 ? 32
           : quads >= RP_NORM_TEAM_MAX ? RP_NORM_TEAM_MAX
                                       : (quads + 127) / 128 * 128;
}

/* How a team's threads are carried: by BLOCKS blocks of a cluster, each thread doing the work of
 * FOLD of them. The warps of the team are the same ones in every shape, and so is the sum. */
template <int BLOCKS, int FOLD> struct rp_norm_team {
    /* This thread as the first of the team's threads that it carries; the others lie `stride`
     * apart. */
    static __device__ __forceinline__ uint32_t thread() {
        return BLOCKS == 1 ? threadIdx.x : blockIdx.x % BLOCKS * blockDim.x + threadIdx.x;
    }
    static __device__ __forceinline__ uint32_t stride() { return blockDim.x * BLOCKS; }
    static __device__ __forceinline__ uint32_t threads() { return stride() * FOLD; }

    /* What the warps of the team tell one another. */
    struct board {
        __align__(16) float sums[RP_NORM_TEAM_MAX / 32];
        uint64_t barrier;
    };
    /* The sum over the team, for all its threads; warps' sums are added in rising order. */
    static __device__ __forceinline__ float sum(board &shared, const float *values) {
        float *sums = shared.sums;
        uint32_t lane = threadIdx.x % 32;
        float total = 0.0f;
#pragma unroll
        for (int f = 0; f < FOLD; f++) {
            uint32_t warp = (thread() + stride() * f) / 32;
            total = rp_warp_sum(values[f]);
            if (BLOCKS > 1 && lane < BLOCKS)
                rp_cluster_store(&sums[warp], &shared.barrier, lane, total);
            else if (BLOCKS == 1 && lane == 0)
                sums[warp] = total;
        }
        if (threads() == 32)
            return total;
        if (BLOCKS > 1)
            rp_cluster_await(&shared.barrier);
        else
            __syncthreads();
        total = 0.0f;
        for (uint32_t w = 0; w < threads() / 32; w += 4) {
            float4 four = *(const float4 *)&sums[w];
            total = (((total + four.x) + four.y) + four.z) + four.w;
        }
        return total;
    }

    /* The same for the largest value, which needs no order: one of each thread, as bits of bf16. */
    struct peak_board {
        uint32_t most[RP_NORM_TEAM_MAX / 32];
        uint64_t barrier;
    };
    static __device__ __forceinline__ uint32_t peak(peak_board &shared, uint32_t most) {
        if (BLOCKS == 1)
            return rp_block_largest(shared.most, most);
        uint32_t lane = threadIdx.x % 32;
        most = rp_warp_max_bits(most);
        if (lane < BLOCKS)
            rp_cluster_store((float *)&shared.most[thread() / 32], &shared.barrier, lane,
                             __uint_as_float(most));
        rp_cluster_await(&shared.barrier);
        return rp_warp_max_bits(lane < stride() / 32 ? shared.most[lane] : 0);
    }

    /* By all threads, before anything is put on them. peaks: NULL, if there are none. */
    static __device__ __forceinline__ void open(board &sums, peak_board *peaks) {
        if (BLOCKS == 1)
            return;
        rp_cluster_barrier_init(&sums.barrier);
        if (peaks)
            rp_cluster_barrier_init(&peaks->barrier);
        rp_cluster_meet();
        rp_cluster_barrier_expect(&sums.barrier, threads() / 32 * sizeof(float));
        if (peaks)
            rp_cluster_barrier_expect(&peaks->barrier, stride() / 32 * sizeof(uint32_t));
    }
};

/* What a tensor of this type has of a value. */
static __device__ __forceinline__ float rp_norm_as_stored(rp_dtype dtype, float value) {
    return dtype == RP_DTYPE_F32 ? value : __bfloat162float(__float2bfloat16_rn(value));
}
static __device__ __forceinline__ float4 rp_norm_as_stored(rp_dtype dtype, float4 x) {
    return make_float4(rp_norm_as_stored(dtype, x.x), rp_norm_as_stored(dtype, x.y),
                       rp_norm_as_stored(dtype, x.z), rp_norm_as_stored(dtype, x.w));
}

/* Quantizes this thread's part of the scaled row. */
template <typename SHAPE, int OWN>
static __device__ __forceinline__ void
rp_norm_quantize(const rp_cuda_quantized &to, typename SHAPE::peak_board &board, uint32_t row,
                 uint32_t cols, uint32_t begin, uint32_t step, const float4 (&x)[OWN]) {
    uint2 packed[OWN];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        packed[i] = rp_pack_bf16(x[i]);
        if (begin + step * i < cols)
            most = rp_largest(rp_largest(most, packed[i].x), packed[i].y);
    }
    rp_quantized_row quantized = rp_quantized_row_of(SHAPE::peak(board, most), to.dtype);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (begin + step * i < cols)
            rp_store_quantized(to, row, begin + step * i, cols, packed[i], quantized);
    if (SHAPE::thread() == 0)
        to.scales[row] = quantized.scale;
}

#endif
