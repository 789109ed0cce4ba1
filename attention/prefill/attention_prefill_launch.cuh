/* attention_prefill_launch.cuh - launches the mma.sync kernels of one page type. One source file
 * per page type, so that they compile in parallel. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_LAUNCH_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_LAUNCH_CUH

#include "attention/prefill/attention_prefill_kernel.cuh"
#include "attention/program/attention_program_cuda.h"

template <int D, rp_dtype Page, bool Capped>
static __global__ void __launch_bounds__(THREADS)
    prefill_kernel(const __grid_constant__ rp_attention_cuda_args call) {
    prefill<D, plain_mask<Capped>, Page>(call);
}

template <int D, rp_dtype Page> static const void *kernel_of(const rp_attention_cuda_args *call) {
    if (call->program)
        return call->program->prefill;
    return call->args.soft_cap > 0 ? (const void *)prefill_kernel<D, Page, true>
                                   : (const void *)prefill_kernel<D, Page, false>;
}

template <int D, rp_dtype Page>
static int prefill_start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    const void *kernel = kernel_of<D, Page>(call);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             shape<D, Page>::shared_bytes);
    if (error != cudaSuccess)
        return (int)error;
    uint32_t tokens = rp_attention_prefill_cuda_tile(&call->config);
    const rp_bucket &bucket = call->config.bucket;
    dim3 grid(call->args.kv_heads, RP_CEIL_DIV(bucket.tokens, tokens) + bucket.rows);
    return rp_cuda_start(kernel, grid, dim3(THREADS), shape<D, Page>::shared_bytes, stream,
                         call->config.limits.dependent_launch, call);
}

/* Head dim 64, 96, 128 or 256. */
template <rp_dtype Page>
static int prefill_run(const rp_attention_cuda_args *call, cudaStream_t stream) {
    switch (call->args.head_dim) {
    case 64:
        return prefill_start<64, Page>(call, stream);
    case 96:
        return prefill_start<96, Page>(call, stream);
    case 128:
        return prefill_start<128, Page>(call, stream);
    case 256:
        return prefill_start<256, Page>(call, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}

#endif
