/* latent_post_cuda.cu - a block of 128 threads has a token's latent row, four columns a thread;
 * other blocks have q, four columns a thread, or a pair of them where columns are rotated. */
#include "attention/latent/latent_post_cuda.h"

#include "attention/kv_place.cuh"
#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_row.cuh"

namespace {

constexpr uint32_t THREADS = 128, RANK = RP_LATENT_POST_RANK, ROPE = RP_LATENT_POST_ROPE;
constexpr uint32_t HALF = ROPE / 2, PAIRS = HALF / 4; /* of four columns with their partners */
static_assert(RANK == THREADS * 4, "the norm's team of threads (device/norm_cuda.cu)");

/* Rotates four columns and their partners; at: of the first one in its half. */
__device__ __forceinline__ void rotate(float4 &low, float4 &high, const float *angles,
                                       uint32_t at) {
    float *x = &low.x, *y = &high.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 angle = ((const float2 *)angles)[at + i];
        const float a = x[i], b = y[i];
        x[i] = rp_rope_low(a, b, angle.x, angle.y);
        y[i] = rp_rope_high(a, b, angle.x, angle.y);
    }
}

/* The sum over the block, in the order of a norm of 512 columns. */
__device__ __forceinline__ float block_sum(float value, float (&sums)[THREADS / 32]) {
    value = rp_warp_sum(value);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = value;
    __syncthreads();
    return (((0.0f + sums[0]) + sums[1]) + sums[2]) + sums[3];
}

__device__ __forceinline__ uint32_t largest(float4 x) {
    return max(max(rp_magnitude_bits(x.x), rp_magnitude_bits(x.y)),
               max(rp_magnitude_bits(x.z), rp_magnitude_bits(x.w)));
}

/* The token's row into its page: c of all threads, rotated pairs of the first ones. */
__device__ __forceinline__ void store_row(const rp_kv_layout &kv, const kv_place &place, float4 c,
                                          float4 low, float4 high, uint32_t (&most)[THREADS / 32]) {
    const uint32_t t = threadIdx.x, cols = RANK + ROPE;
    if (!kv.scales_at) {
        rp_store4<true>(place.run, kv.dtype, place.at + 4 * t, 4 * t, cols, c);
        if (t < PAIRS) {
            const uint32_t col = RANK + 4 * t;
            rp_store4<true>(place.run, kv.dtype, place.at + col, col, cols, low);
            rp_store4<true>(place.run, kv.dtype, place.at + col + HALF, col + HALF, cols, high);
        }
        return;
    }
    uint32_t mine = largest(c);
    if (t < PAIRS)
        mine = max(mine, max(largest(low), largest(high)));
    mine = rp_warp_max_bits(mine);
    if (t % 32 == 0)
        most[t / 32] = mine;
    __syncthreads();
    const rp_quantized_row row(max(max(most[0], most[1]), max(most[2], most[3])), kv.dtype);
    uint32_t *to = (uint32_t *)(place.run + place.at);
    to[t] = row.four(c);
    if (t < PAIRS) {
        to[RANK / 4 + t] = row.four(low);
        to[RANK / 4 + PAIRS + t] = row.four(high);
    }
    if (t == 0)
        store_scale(kv, place, row.scale);
}

template <bool VEC>
__device__ __forceinline__ void latent_row(const rp_latent_post_cuda &args, uint32_t token,
                                           uint32_t position, const float *angles) {
    __shared__ float sums[THREADS / 32];
    __shared__ uint32_t most[THREADS / 32];
    const uint32_t t = threadIdx.x, cols = RANK + ROPE;
    float4 c = rp_load4<VEC>(args.row, token, 4 * t, cols), low = {}, high = {};
    if (t < PAIRS) {
        low = rp_load4<VEC>(args.row, token, RANK + 4 * t, cols);
        high = rp_load4<VEC>(args.row, token, RANK + HALF + 4 * t, cols);
    }
    const float4 weight = rp_load4<VEC>(args.norm, RP_DTYPE_F32, 4 * t, 4 * t, RANK);
    const kv_place place = kv_find(args.rows.step, args.kv, args.rows.step.token_rows[token],
                                   position, args.layer, args.table, 0, 0);
    const float sum = block_sum(rp_add_squares(0.0f, c), sums);
    if (!place.run) /* of a dead token; the same in all threads */
        return;
    c = rp_norm_values(c, rp_inverse_root(sum, RANK, args.eps), weight, args.weight_offset);
    if (t < PAIRS)
        rotate(low, high, angles, 4 * t);
    store_row(args.kv, place, c, low, high, most);
}

/* item: of a row of q; four columns that are not rotated, or eight that are. */
template <bool VEC>
__device__ __forceinline__ void query(const rp_latent_post_cuda &args, uint32_t token,
                                      uint32_t item, const float *angles) {
    const uint32_t plain = (args.head_dim - ROPE) / 4, items = plain + PAIRS;
    const uint32_t head = item / items, at = item % items, cols = args.heads * args.head_dim;
    const uint32_t first = head * args.head_dim;
    if (head >= args.heads)
        return;
    if (at < plain) {
        const uint32_t col = first + 4 * at;
        if (args.rounded.data)
            rp_store4<VEC>(args.rounded, token, col, cols, rp_load4<VEC>(args.q, token, col, cols));
        return;
    }
    const uint32_t col = first + 4 * plain + 4 * (at - plain);
    float4 low = rp_load4<VEC>(args.q, token, col, cols);
    float4 high = rp_load4<VEC>(args.q, token, col + HALF, cols);
    rotate(low, high, angles, 4 * (at - plain));
    rp_store4<VEC>(args.q, token, col, cols, low);
    rp_store4<VEC>(args.q, token, col + HALF, cols, high);
    if (args.rounded.data) {
        rp_store4<VEC>(args.rounded, token, col, cols, low);
        rp_store4<VEC>(args.rounded, token, col + HALF, cols, high);
    }
}

template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    latent_post_kernel(const __grid_constant__ rp_latent_post_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t token = blockIdx.y, has_row = args.row.data ? 1 : 0;
    stamp.begin();
    stamp.look();
    if (token >= rp_live_count(args.rows.step, args.rows.rows))
        return;
    const uint32_t position = args.rows.step.positions[token];
    const float *angles = args.rope_table + (size_t)min(position, args.position_count - 1) * ROPE;
    if (blockIdx.x < has_row)
        latent_row<VEC>(args, token, position, angles);
    else
        query<VEC>(args, token, (blockIdx.x - has_row) * THREADS + threadIdx.x, angles);
}

bool is_vector(const rp_values &values) { return !values.data || rp_vector_ok(values); }

} // namespace

int rp_latent_post_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_latent_post_cuda *args = (const rp_latent_post_cuda *)args_void;
    uint32_t items = args->q.data ? args->heads * ((args->head_dim - ROPE) / 4 + PAIRS) : 0;
    dim3 grid((args->row.data ? 1 : 0) + RP_CEIL_DIV(items, THREADS), args->rows.max_rows);
    if (grid.x == 0 || grid.y == 0)
        return 0;
    const bool vector = is_vector(args->row) && is_vector(args->q) && is_vector(args->rounded) &&
                        ((uintptr_t)args->norm & 15u) == 0;
    return rp_cuda_start(vector ? latent_post_kernel<true> : latent_post_kernel<false>, grid,
                         dim3(THREADS), 0, stream, !args->rows.plain_edges, *args);
}
