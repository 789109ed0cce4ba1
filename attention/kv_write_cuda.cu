/* kv_write_cuda.cu - stores K and V in pages: alone, or fused with the other operators after the
 * qkv matmul.
 *
 * One warp computes one head of one token: few tokens still give many warps, and the chain of
 * dependent loads (row, slot, page) is as short as possible. With many tokens a warp computes
 * several heads (qkv_post_many_kernel).
 *
 * For 8-bit pages the warp holds a whole row, and so its maximum: quantized values and scale are
 * computed from the f32 values, with no other rounding, bit-equal to the CPU. */
#include "attention/attention_cuda.h"
#include "attention/kv_place.cuh"

#include "device/cuda_vector.cuh"
#include "device/ops_math.cuh"
#include "device/quantize_row.cuh"

#define WARPS         4   /* of a block */
#define SPECULATE_MAX 256 /* with so few rows all are read before the live count is known */
#define MANY_HEADS    4   /* of a warp, with more rows */

/* K and V; latents have no V. */
static __host__ __device__ __forceinline__ uint32_t planes_of(const rp_kv_layout &kv) {
    return kv.latent ? 1 : 2;
}

/* QUANTIZED: 8-bit pages. */
template <bool QUANTIZED>
static __global__ void __launch_bounds__(WARPS * 32)
    kv_write_kernel(const __grid_constant__ rp_kv_write_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const rp_kv_write_args &write = args.write;
    const rp_kv_layout &kv = write.kv;
    uint32_t lane = threadIdx.x % 32, head = blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t token = blockIdx.y;
    stamp.begin();
    stamp.look();
    if (head >= planes_of(kv) * kv.kv_heads || token >= rp_live_count(write.step, RP_ROWS_TOKEN))
        return;
    uint32_t plane = head / kv.kv_heads;
    head -= plane * kv.kv_heads;
    kv_place place = kv_find(write.step, kv, write.step.token_rows[token],
                             write.step.positions[token], write.layer, write.table, plane, head);
    if (!place.run)
        return;
    const float *from =
        plane == 0 ? write.k + token * write.k_stride : write.v + token * write.v_stride;
    from += (size_t)head * kv.head_dim;
    if constexpr (QUANTIZED) {
        uint32_t most = 0;
        for (uint32_t c = lane; c < kv.head_dim; c += 32)
            most = max(most, rp_magnitude_bits(from[c]));
        const rp_quantized_row row(rp_warp_max_bits(most), kv.dtype);
        for (uint32_t c = lane; c < kv.head_dim; c += 32)
            place.run[place.at + c] = (unsigned char)row.quantize(from[c]);
        if (lane == 0)
            store_scale(kv, place, row.scale);
    } else {
        for (uint32_t c = lane; c < kv.head_dim; c += 32)
            rp_store(place.run, kv.dtype, place.at + c, from[c]);
    }
}

int rp_kv_write_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_kv_write_cuda *args = (const rp_kv_write_cuda *)args_void;
    const rp_kv_layout &kv = args->write.kv;
    dim3 grid(RP_CEIL_DIV(planes_of(kv) * kv.kv_heads, WARPS), args->rows.max_rows);
    return rp_cuda_start(args->write.kv.scales_at ? kv_write_kernel<true> : kv_write_kernel<false>,
                         grid, dim3(WARPS * 32), 0, stream, !args->rows.plain_edges, *args);
}

/* The columns of one head held by a lane: 4 * (lane + 32 * i). */
template <int QUADS> struct head_columns { float4 x[QUADS]; };

static __device__ __forceinline__ float &part(float4 &x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Four angles of a row of the table, {cos, sin} each. */
struct four_angles {
    float4 first, second;
};

static __device__ __forceinline__ float2 angle_of(const four_angles &angles, int i) {
    return i == 0   ? make_float2(angles.first.x, angles.first.y)
           : i == 1 ? make_float2(angles.first.z, angles.first.w)
           : i == 2 ? make_float2(angles.second.x, angles.second.y)
                    : make_float2(angles.second.z, angles.second.w);
}

/* Cosine and sine for the lane's columns; unset for columns without rotation. */
template <bool VEC, int QUADS>
static __device__ __forceinline__ void load_angles(four_angles (&angles)[QUADS], const float *row,
                                                   uint32_t half, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t first = 4 * (lane + 32 * i);
        if constexpr (VEC) { /* a quad lies in one half */
            uint32_t at = first < half ? first : first - half;
            if (first < 2 * half) {
                angles[i].first = *(const float4 *)(row + 2 * at);
                angles[i].second = *(const float4 *)(row + 2 * at + 4);
            }
        } else {
            float2 pairs[4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (first + j < 2 * half)
                    pairs[j] = ((const float2 *)row)[(first + j) % half];
            angles[i].first = make_float4(pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y);
            angles[i].second = make_float4(pairs[2].x, pairs[2].y, pairs[3].x, pairs[3].y);
        }
    }
}

/* Pairs are half a head apart, in two lanes: exchanged by shuffles when a lane has one quad of the
 * head, else through shared memory. */
template <bool VEC, int QUADS>
static __device__ __forceinline__ void rotate(head_columns<QUADS> &head,
                                              const four_angles (&angles)[QUADS], float *shared,
                                              uint32_t half, uint32_t lane) {
    if (!VEC || QUADS > 1) {
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            *(float4 *)&shared[4 * (lane + 32 * i)] = head.x[i];
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t c = 4 * (lane + 32 * i) + j;
            bool is_low = c < half, is_rotated = c < 2 * half;
            uint32_t partner = is_low ? c + half : is_rotated ? c - half : c;
            float &x = part(head.x[i], j);
            float other =
                VEC && QUADS == 1 ? __shfl_sync(0xFFFFFFFFu, x, partner / 4) : shared[partner];
            float2 angle = angle_of(angles[i], j);
            float rotated = is_low ? rp_rope_low(x, other, angle.x, angle.y)
                                   : rp_rope_high(other, x, angle.x, angle.y);
            x = is_rotated ? rotated : x;
        }
}

/* The norm of a head; its columns past the end are zeros. */
template <int QUADS>
static __device__ __forceinline__ void
norm_head(head_columns<QUADS> &head, const float4 (&weight)[QUADS], const rp_qkv_post_cuda &args) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        sum = rp_add_squares(sum, head.x[i]);
    const float inverse = rp_inverse_root(rp_warp_sum(sum), args.head_dim, args.eps);
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        head.x[i] = rp_norm_values(head.x[i], inverse, weight[i], args.weight_offset);
}

/* The warp's row of K or V as quantized values; columns past the head are zeros. */
template <bool VEC, int QUADS>
static __device__ __forceinline__ void store_quantized(const rp_kv_layout &kv,
                                                       const kv_place &place,
                                                       head_columns<QUADS> &head, uint32_t lane) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < QUADS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            most = max(most, rp_magnitude_bits(part(head.x[i], j)));
    const rp_quantized_row row(rp_warp_max_bits(most), kv.dtype);
    unsigned char *to = place.run + place.at;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const uint32_t c = 4 * (lane + 32 * i);
        const uint32_t quantized = row.four(head.x[i]);
        if (VEC && c < kv.head_dim)
            *(uint32_t *)(to + c) = quantized;
#pragma unroll
        for (int j = 0; j < 4 && !VEC; j++)
            if (c + j < kv.head_dim)
                to[c + j] = (unsigned char)(quantized >> 8 * j);
    }
    if (lane == 0)
        store_scale(kv, place, row.scale);
}

template <bool VEC, int QUADS, bool QUANTIZED>
static __global__ void __launch_bounds__(WARPS * 32, VEC &&QUADS == 1 ? 12 : 8)
    qkv_post_kernel(const __grid_constant__ rp_qkv_post_cuda args) {
    __shared__ __align__(16) float scratch[WARPS][QUADS * 128];
    rp_stamp stamp(args.rows.stamp);
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    uint32_t index = blockIdx.x * WARPS + warp, dim = args.head_dim;
    bool is_q = index < args.heads, is_k = !is_q && index < args.heads + args.kv_heads;
    const float *norm = is_q ? args.q_norm : is_k ? args.k_norm : NULL;
    float4 weight[QUADS];
    head_columns<QUADS> head;
    rp_pdl_trigger();
#pragma unroll
    for (int i = 0; i < QUADS; i++) { /* constants: before the wait */
        uint32_t c = 4 * (lane + 32 * i);
        weight[i] = norm ? rp_load4<VEC>(norm, RP_DTYPE_F32, c, c, dim) : float4();
    }
    /* Row and slot of the token; 'live' stays false when it is dead. */
    bool computes = index < args.heads + 2 * args.kv_heads, live = false;
    uint32_t position = 0;
    kv_place place = {NULL, 0, 0};
    auto look_up = [&]() {
        const rp_step_view &step = args.rows.step;
        uint32_t count = rp_live_count(step, RP_ROWS_TOKEN);
        if (!computes || (args.rows.max_rows > SPECULATE_MAX && token >= count))
            return;
        uint32_t row = step.token_rows[token];
        position = step.positions[token];
        live = token < count && row != RP_ROW_NONE;
        if (is_q || !live)
            return;
        uint32_t plane = is_k ? 0 : 1;
        place = kv_find(step, args.kv, row, position, args.layer, args.table, plane,
                        index - args.heads - plane * args.kv_heads);
        live = place.run != NULL;
    };
    if (args.behind_product) {
        look_up();
        stamp.look();
    }
    stamp.wait();
    if (!args.behind_product) {
        look_up();
        stamp.look();
    }
    if (!live)
        return;
    uint32_t first = index * dim, end = first + dim, half = args.rotary_dim / 2;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t c = first + 4 * (lane + 32 * i);
        head.x[i] = c >= end ? float4()
                    : args.partials.count == 0
                        ? rp_load4<VEC>(args.qkv, token, c, end)
                        : rp_partials_sum4<VEC, 4>(args.partials, token, c, end);
    }
    four_angles angles[QUADS];
    if (is_q || is_k)
        load_angles<VEC, QUADS>(angles,
                                args.rope_table + (size_t)min(position, args.position_count - 1) *
                                                      args.rotary_dim,
                                half, lane);
    if (norm)
        norm_head(head, weight, args);
    if (is_q || is_k)
        rotate<VEC, QUADS>(head, angles, scratch[warp], half, lane);
    if (QUANTIZED && !is_q) {
        store_quantized<VEC, QUADS>(args.kv, place, head, lane);
        return;
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        uint32_t c = 4 * (lane + 32 * i);
        if (c >= dim)
            break;
        if (is_q)
            rp_store4<VEC>(args.qkv, token, first + c, end, head.x[i]);
        else
            rp_store4<VEC>(place.run, args.kv.dtype, place.at + c, c, dim, head.x[i]);
    }
}

/* The same for many tokens, limited by bytes in flight. A warp has several heads of a token, all
 * loaded at once together with the token's row and slot; its angles are loaded once. */
template <bool QUANTIZED>
static __global__ void __launch_bounds__(WARPS * 32, 8)
    qkv_post_many_kernel(const __grid_constant__ rp_qkv_post_cuda args) {
    rp_stamp stamp(args.rows.stamp);
    const uint32_t lane = threadIdx.x % 32, token = blockIdx.y, dim = args.head_dim;
    const uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * MANY_HEADS;
    const uint32_t rotated = args.heads + args.kv_heads, total = rotated + args.kv_heads;
    const rp_step_view &step = args.rows.step;
    head_columns<1> head[MANY_HEADS];
    stamp.begin();
    stamp.look();
    if (first >= total)
        return;
    const uint32_t count = rp_live_count(step, RP_ROWS_TOKEN);
    const uint32_t row = step.token_rows[token], position = step.positions[token];
#pragma unroll
    for (int h = 0; h < MANY_HEADS; h++) {
        const uint32_t end = min(first + h + 1, total) * dim, c = (first + h) * dim + 4 * lane;
        head[h].x[0] = c >= end ? float4()
                       : args.partials.count == 0
                           ? rp_load4<true>(args.qkv, token, c, end)
                           : rp_partials_sum4<true, 1>(args.partials, token, c, end);
    }
    if (token >= count || row == RP_ROW_NONE)
        return;
    kv_place all = {NULL, 0, 0}; /* of K's first head */
    if (first + MANY_HEADS > args.heads)
        all = kv_find(step, args.kv, row, position, args.layer, args.table, 0, 0);
    four_angles angles[1];
    load_angles<true, 1>(
        angles, args.rope_table + (size_t)min(position, args.position_count - 1) * args.rotary_dim,
        args.rotary_dim / 2, lane);
#pragma unroll
    for (int h = 0; h < MANY_HEADS; h++) {
        const uint32_t index = first + h;
        const bool is_q = index < args.heads, is_k = !is_q && index < rotated;
        if (index >= total || (!is_q && !all.run))
            break;
        const float *norm = is_q ? args.q_norm : is_k ? args.k_norm : NULL;
        if (norm) {
            const float4 weight[1] = {rp_load4<true>(norm, RP_DTYPE_F32, 4 * lane, 4 * lane, dim)};
            norm_head(head[h], weight, args);
        }
        if (is_q || is_k)
            rotate<true, 1>(head[h], angles, NULL, args.rotary_dim / 2, lane);
        if (is_q) {
            if (4 * lane < dim)
                rp_store4<true>(args.qkv, token, index * dim + 4 * lane, (index + 1) * dim,
                                head[h].x[0]);
            continue;
        }
        kv_place place = all;
        place.run += is_k ? (index - args.heads) * args.kv.head_stride
                          : args.kv.plane_stride + (index - rotated) * args.kv.head_stride;
        if (QUANTIZED)
            store_quantized<true, 1>(args.kv, place, head[h], lane);
        else if (4 * lane < dim)
            rp_store4<true>(place.run, args.kv.dtype, place.at + 4 * lane, 4 * lane, dim,
                            head[h].x[0]);
    }
}

static int qkv_post_many_start(const rp_qkv_post_cuda *args, cudaStream_t stream) {
    dim3 grid(RP_CEIL_DIV(args->heads + 2 * args->kv_heads, WARPS * MANY_HEADS),
              args->rows.max_rows);
    return rp_cuda_start(args->kv.scales_at ? qkv_post_many_kernel<true>
                                            : qkv_post_many_kernel<false>,
                         grid, dim3(WARPS * 32), 0, stream, !args->rows.plain_edges, *args);
}

template <bool VEC, int QUADS> static auto qkv_post_of(const rp_qkv_post_cuda *args) {
    return args->kv.scales_at ? qkv_post_kernel<VEC, QUADS, true>
                              : qkv_post_kernel<VEC, QUADS, false>;
}

template <bool VEC> static int qkv_post_start(const rp_qkv_post_cuda *args, cudaStream_t stream) {
    dim3 grid(RP_CEIL_DIV(args->heads + 2 * args->kv_heads, WARPS), args->rows.max_rows);
    return rp_cuda_start(args->head_dim <= 128 ? qkv_post_of<VEC, 1>(args)
                                               : qkv_post_of<VEC, 2>(args),
                         grid, dim3(WARPS * 32), 0, stream, !args->rows.plain_edges, *args);
}

int rp_qkv_post_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_qkv_post_cuda *args = (const rp_qkv_post_cuda *)args_void;
    if (args->head_dim > RP_QKV_POST_HEAD_DIM_MAX || args->rotary_dim > args->head_dim)
        return (int)cudaErrorInvalidValue;
    bool norms =
        rp_vector_ok(args->q_norm, RP_DTYPE_F32, 0) && rp_vector_ok(args->k_norm, RP_DTYPE_F32, 0);
    bool table = args->rotary_dim % 8 == 0 && rp_vector_ok(args->rope_table, RP_DTYPE_F32, 0);
    bool vector = args->head_dim % 4 == 0 && norms && table && rp_vector_ok(args->qkv) &&
                  (args->partials.count == 0 || rp_vector_ok(args->partials));
    if (vector && args->head_dim <= 128 && args->rows.max_rows > SPECULATE_MAX)
        return qkv_post_many_start(args, stream);
    return vector ? qkv_post_start<true>(args, stream) : qkv_post_start<false>(args, stream);
}
