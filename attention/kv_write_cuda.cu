/* kv_write_cuda.cu - K and V into pages: alone, and as the last part of everything behind the qkv product.
 *
 * One warp computes one head of one token: few tokens still give many warps, and the chain of loads
 * (row, slot, page) is as short as it can be. */
#include "attention/attention_cuda.h"

#include "device/ops_math.cuh"

#define WARPS 4 /* of a block */

/* Where K or V of one live token and head lie, or NULL when the token is dead. */
struct kv_place {
    unsigned char *run;
    size_t at; /* elements into the run */
};

static __device__ __forceinline__ kv_place kv_find(const rp_step_view &step, const rp_kv_layout &kv,
                                                   uint32_t index, uint32_t position,
                                                   uint32_t layer, uint32_t plane, uint32_t head) {
    kv_place place = {NULL, 0};
    if (index == RP_ROW_NONE)
        return place;
    const rp_live_row *row = &step.rows[index];
    const uint32_t *slot = step.slots + (size_t)row->slot * step.slot_words;
    uint32_t page = slot[RP_SLOT_PAGES + position / kv.page_tokens];
    if (row->flags == 0 && slot[RP_SLOT_FINISHED] != 0)
        return place;
    place.run = kv.base + (size_t)page * kv.page_stride +
                ((size_t)layer * 2 + plane) * kv.plane_stride + (size_t)head * kv.head_stride;
    place.at = (size_t)(position % kv.page_tokens) * kv.head_dim;
    return place;
}

static __global__ void __launch_bounds__(WARPS * 32)
    kv_write_kernel(const __grid_constant__ rp_kv_write_cuda args) {
    const rp_kv_write_args &write = args.write;
    const rp_kv_layout &kv = write.kv;
    uint32_t lane = threadIdx.x % 32, head = blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t token = blockIdx.y;
    rp_pdl_begin();
    if (head >= 2 * kv.kv_heads || token >= rp_live_count(write.step, RP_ROWS_TOKEN))
        return;
    uint32_t plane = head / kv.kv_heads;
    head -= plane * kv.kv_heads;
    kv_place place = kv_find(write.step, kv, write.step.token_rows[token],
                             write.step.positions[token], write.layer, plane, head);
    if (!place.run)
        return;
    const float *from =
        plane == 0 ? write.k + token * write.k_stride : write.v + token * write.v_stride;
    from += (size_t)head * kv.head_dim;
    for (uint32_t c = lane; c < kv.head_dim; c += 32)
        rp_store(place.run, kv.dtype, place.at + c, from[c]);
}

int rp_kv_write_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_kv_write_cuda *args = (const rp_kv_write_cuda *)args_void;
    dim3 grid(RP_CEIL_DIV(2 * args->write.kv.kv_heads, WARPS), args->rows.max_rows);
    return rp_cuda_start(kv_write_kernel, grid, dim3(WARPS * 32), 0, stream, true, *args);
}

/* The rotated value of each column of a lane. Whole: rotary_dim == head_dim == 64 * (Words / 2), so that
 * both columns of a pair are in one lane; otherwise they meet in shared memory. */
template <int Words, bool Whole>
static __device__ __forceinline__ void rotate(float (&x)[Words], float *shared,
                                              const float2 *angles, uint32_t half, uint32_t lane) {
    if constexpr (Whole) {
#pragma unroll
        for (int j = 0; j < Words / 2; j++) {
            float2 angle = angles[lane + 32 * j];
            float low = x[j], high = x[j + Words / 2];
            x[j] = rp_rope_low(low, high, angle.x, angle.y);
            x[j + Words / 2] = rp_rope_high(low, high, angle.x, angle.y);
        }
    } else {
#pragma unroll
        for (int j = 0; j < Words; j++)
            shared[lane + 32 * j] = x[j];
        __syncwarp();
#pragma unroll
        for (int j = 0; j < Words; j++) {
            uint32_t c = lane + 32 * j;
            if (c < half) {
                float2 angle = angles[c];
                x[j] = rp_rope_low(x[j], shared[c + half], angle.x, angle.y);
            } else if (c < 2 * half) {
                float2 angle = angles[c - half];
                x[j] = rp_rope_high(shared[c - half], x[j], angle.x, angle.y);
            }
        }
    }
}

template <int Words>
static __device__ __forceinline__ void load_head(float (&x)[Words], const rp_qkv_post_cuda &args,
                                                 uint32_t token, size_t column, uint32_t lane) {
    const rp_cuda_partials &partials = args.partials;
    const float *from = partials.count == 0
                            ? (const float *)args.qkv.data + token * args.qkv.stride + column
                            : partials.data + token * partials.row_stride + column;
#pragma unroll
    for (int j = 0; j < Words; j++)
        x[j] = lane + 32 * j < args.head_dim ? from[lane + 32 * j] : 0.0f;
    /* The order of rp_partials_sum, with the loads of all columns in flight at once. */
    for (uint32_t i = 1; i < partials.count; i++)
#pragma unroll
        for (int j = 0; j < Words; j++)
            if (lane + 32 * j < args.head_dim)
                x[j] += from[i * partials.split_stride + lane + 32 * j];
    if (partials.count != 0 && partials.bias)
#pragma unroll
        for (int j = 0; j < Words; j++)
            if (lane + 32 * j < args.head_dim)
                x[j] += partials.bias[column + lane + 32 * j];
}

template <int Words, bool Whole>
static __global__ void __launch_bounds__(WARPS * 32)
    qkv_post_kernel(const __grid_constant__ rp_qkv_post_cuda args) {
    __shared__ float scratch[Whole ? 1 : WARPS][Whole ? 1 : Words * 32];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    uint32_t head = blockIdx.x * WARPS + warp, dim = args.head_dim;
    bool is_q = head < args.heads, is_k = !is_q && head < args.heads + args.kv_heads;
    const float *norm = is_q ? args.q_norm : is_k ? args.k_norm : NULL;
    float weight[Words], x[Words];
    rp_pdl_trigger();
#pragma unroll
    for (int j = 0; j < Words; j++) /* constants: before the wait */
        weight[j] = norm && lane + 32 * j < dim ? norm[lane + 32 * j] : 0.0f;
    rp_pdl_wait();
    if (head >= args.heads + 2 * args.kv_heads ||
        token >= rp_live_count(args.rows.step, RP_ROWS_TOKEN))
        return;
    uint32_t index = args.rows.step.token_rows[token], position = args.rows.step.positions[token];
    load_head<Words>(x, args, token, (size_t)head * dim, lane);
    if (index == RP_ROW_NONE)
        return;
    kv_place place = {NULL, 0};
    if (!is_q) {
        uint32_t plane = is_k ? 0 : 1;
        place = kv_find(args.rows.step, args.kv, index, position, args.layer, plane,
                        head - args.heads - plane * args.kv_heads);
        if (!place.run)
            return;
    }
    if (norm) {
        float inverse = rp_head_inverse<Words>(x, dim, args.eps);
#pragma unroll
        for (int j = 0; j < Words; j++)
            x[j] = rp_norm_value(x[j], inverse, weight[j], args.weight_offset);
    }
    if (is_q || is_k) {
        uint32_t half = args.rotary_dim / 2;
        uint32_t row = position < args.position_count ? position : args.position_count - 1;
        rotate<Words, Whole>(x, scratch[Whole ? 0 : warp],
                             (const float2 *)args.rope_table + (size_t)row * half, half, lane);
    }
#pragma unroll
    for (int j = 0; j < Words; j++) {
        uint32_t c = lane + 32 * j;
        if (c >= dim)
            break;
        if (is_q)
            ((float *)args.qkv.data)[token * args.qkv.stride + (size_t)head * dim + c] = x[j];
        else
            rp_store(place.run, args.kv.dtype, place.at + c, x[j]);
    }
}

template <int Words> static int qkv_post_start(const rp_qkv_post_cuda *args, cudaStream_t stream) {
    dim3 grid(RP_CEIL_DIV(args->heads + 2 * args->kv_heads, WARPS), args->rows.max_rows);
    bool whole = Words % 2 == 0 && args->head_dim == Words * 32 && args->rotary_dim == Words * 32;
    if (whole)
        return rp_cuda_start(qkv_post_kernel<Words, Words % 2 == 0>, grid, dim3(WARPS * 32), 0,
                             stream, true, *args);
    return rp_cuda_start(qkv_post_kernel<Words, false>, grid, dim3(WARPS * 32), 0, stream, true,
                         *args);
}

int rp_qkv_post_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_qkv_post_cuda *args = (const rp_qkv_post_cuda *)args_void;
    if (args->head_dim > RP_HEAD_COLS_MAX || args->rotary_dim > args->head_dim)
        return (int)cudaErrorInvalidValue;
    switch (RP_CEIL_DIV(args->head_dim, 32)) {
    case 1:
        return qkv_post_start<1>(args, stream);
    case 2:
        return qkv_post_start<2>(args, stream);
    case 3:
        return qkv_post_start<3>(args, stream);
    case 4:
        return qkv_post_start<4>(args, stream);
    default:
        return qkv_post_start<8>(args, stream);
    }
}
