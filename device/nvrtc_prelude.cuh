/* nvrtc_prelude.cuh - what kernels need of CUDA's and the C library's headers where neither is:
 * every <header> that they include is this file when NVRTC compiles them (nvrtc_cuda.h). */
#ifndef RP_DEVICE_NVRTC_PRELUDE_CUH
#define RP_DEVICE_NVRTC_PRELUDE_CUH

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long uintptr_t;
typedef unsigned long size_t;

#define INT32_MAX  2147483647
#define UINT32_MAX 4294967295u
#define INFINITY   __int_as_float(0x7F800000)
#ifndef NULL
#define NULL 0
#endif

typedef struct CUstream_st *cudaStream_t;
#ifndef RP_TENSOR_MAP_ALIGN
#define RP_TENSOR_MAP_ALIGN 128 /* 64 before CUDA 13 */
#endif
struct alignas(RP_TENSOR_MAP_ALIGN) CUtensorMap {
    uint64_t opaque[16];
};

struct __nv_bfloat16 {
    unsigned short bits;
    __device__ __forceinline__ operator float() const {
        return __uint_as_float((uint32_t)bits << 16);
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x) { return x; }
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x) {
    __nv_bfloat16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
__device__ __forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    __nv_bfloat162 out;
    out.x.bits = (unsigned short)both;
    out.y.bits = (unsigned short)(both >> 16);
    return out;
}

#endif
