/* attention_generic_cuda.cu - attention for shapes that no faster kernel supports: any head dim up
 * to 640, pages of f32, bf16 and 8 bits, of latents too, any page size and group, decode and prompt
 * rows.
 *
 * One block of four warps computes one (token, query head) in f32. Keys are processed in blocks of
 * 32 at absolute multiples of 32; warp w computes the blocks whose index is w modulo 4, in rising
 * order, one key per lane; the warps' sums are merged in warp order. So the bits depend only on the
 * row's q, its keys, its position and the window. Masked keys are not read. */
#include "attention/generic/attention_generic_kernel.cuh"
#include "attention/program/attention_program_cuda.h"

template <bool Capped, bool Quantized, uint32_t MOST>
static __global__ void __launch_bounds__(RP_GENERIC_THREADS)
    generic_kernel(const __grid_constant__ rp_attention_cuda_args call) {
    generic<plain_mask<Capped>, Quantized, MOST>(call);
}

template <bool Quantized, uint32_t MOST>
static const void *kernel_of(const rp_attention_cuda_args *call) {
    return call->args.soft_cap > 0 ? (const void *)generic_kernel<true, Quantized, MOST>
                                   : (const void *)generic_kernel<false, Quantized, MOST>;
}

template <uint32_t MOST> static const void *kernel_up_to(const rp_attention_cuda_args *call) {
    return call->args.kv.scales_at ? kernel_of<true, MOST>(call) : kernel_of<false, MOST>(call);
}

int rp_attention_generic_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    if (call->args.head_dim > RP_GENERIC_HEAD_DIM_MAX)
        return (int)cudaErrorInvalidValue;
    dim3 grid(call->args.heads, call->config.bucket.tokens);
    const void *kernel = call->program ? call->program->generic
                         : call->args.head_dim <= RP_GENERIC_HEAD_DIM
                             ? kernel_up_to<RP_GENERIC_HEAD_DIM>(call)
                             : kernel_up_to<RP_GENERIC_HEAD_DIM_MAX>(call);
    return rp_cuda_start(kernel, grid, dim3(RP_GENERIC_THREADS), 0, stream,
                         call->config.limits.dependent_launch, call);
}
