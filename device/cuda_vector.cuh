/* cuda_vector.cuh - four columns of a row at a time, of either dtype.
 *
 * VEC: the tensor's first column and stride allow vector accesses (rp_vector_ok); without it the
 * same columns are read one by one. Either way a thread has the same four columns, so a sum over
 * them has the same bits. Columns at or past `end` are not touched; they load as 0. */
#ifndef RP_DEVICE_CUDA_VECTOR_CUH
#define RP_DEVICE_CUDA_VECTOR_CUH

#include "device/cuda_kernel.cuh"

/* 16 bytes of f32, 8 bytes of bf16. */
static inline bool rp_vector_ok(const void *data, rp_dtype dtype, size_t stride) {
    return ((uintptr_t)data & (dtype == RP_DTYPE_F32 ? 15u : 7u)) == 0 && stride % 4 == 0;
}

static inline bool rp_vector_ok(const rp_values &values) {
    return rp_vector_ok(values.data, values.dtype, values.stride);
}

static inline bool rp_vector_ok(const rp_cuda_partials &partials) {
    return rp_vector_ok(partials.data, RP_DTYPE_F32, partials.row_stride) &&
           partials.split_stride % 4 == 0 && ((uintptr_t)partials.bias & 15u) == 0;
}

template <bool VEC>
__device__ __forceinline__ float4 rp_load4(const void *data, rp_dtype dtype, size_t at,
                                           uint32_t col, uint32_t end) {
    if (VEC && col + 4 <= end) {
        if (dtype == RP_DTYPE_F32)
            return *(const float4 *)((const float *)data + at);
        uint2 raw = *(const uint2 *)((const __nv_bfloat16 *)data + at);
        return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                           __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
    }
    float4 out;
    out.x = col < end ? rp_load(data, dtype, at) : 0.0f;
    out.y = col + 1 < end ? rp_load(data, dtype, at + 1) : 0.0f;
    out.z = col + 2 < end ? rp_load(data, dtype, at + 2) : 0.0f;
    out.w = col + 3 < end ? rp_load(data, dtype, at + 3) : 0.0f;
    return out;
}

template <bool VEC>
__device__ __forceinline__ void rp_store4(void *data, rp_dtype dtype, size_t at, uint32_t col,
                                          uint32_t end, float4 value) {
    if (VEC && col + 4 <= end) {
        if (dtype == RP_DTYPE_F32) {
            *(float4 *)((float *)data + at) = value;
            return;
        }
        __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y);
        __nv_bfloat162 high = __floats2bfloat162_rn(value.z, value.w);
        uint2 raw;
        raw.x = *(const uint32_t *)&low;
        raw.y = *(const uint32_t *)&high;
        *(uint2 *)((__nv_bfloat16 *)data + at) = raw;
        return;
    }
    if (col < end)
        rp_store(data, dtype, at, value.x);
    if (col + 1 < end)
        rp_store(data, dtype, at + 1, value.y);
    if (col + 2 < end)
        rp_store(data, dtype, at + 2, value.z);
    if (col + 3 < end)
        rp_store(data, dtype, at + 3, value.w);
}

/* Columns [col, col + 4) of a row of `values`. */
template <bool VEC>
__device__ __forceinline__ float4 rp_load4(const rp_values &values, size_t row, uint32_t col,
                                           uint32_t end) {
    return rp_load4<VEC>(values.data, values.dtype, row * values.stride + col, col, end);
}

template <bool VEC>
__device__ __forceinline__ void rp_store4(const rp_values &values, size_t row, uint32_t col,
                                          uint32_t end, float4 value) {
    rp_store4<VEC>(values.data, values.dtype, row * values.stride + col, col, end, value);
}

__device__ __forceinline__ float4 rp_add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* rp_partials_sum of four columns, FLIGHT partials in flight. */
template <bool VEC, uint32_t FLIGHT = 8>
__device__ __forceinline__ float4 rp_partials_sum4(const rp_cuda_partials &partials, size_t row,
                                                   uint32_t col, uint32_t end) {
    size_t at = row * partials.row_stride + col;
    float4 sum = rp_load4<VEC>(partials.data, RP_DTYPE_F32, at, col, end);
    for (uint32_t first = 1; first < partials.count; first += FLIGHT) {
        float4 part[FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++)
            if (first + i < partials.count)
                part[i] = rp_load4<VEC>(partials.data, RP_DTYPE_F32,
                                        at + (first + i) * partials.split_stride, col, end);
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++)
            if (first + i < partials.count)
                sum = rp_add4(sum, part[i]);
    }
    if (partials.bias)
        sum = rp_add4(sum, rp_load4<VEC>(partials.bias, RP_DTYPE_F32, col, col, end));
    return sum;
}

#endif
