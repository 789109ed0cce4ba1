/* attention_prefill_wgmma_int8_cuda.cu - attention_prefill_wgmma_cuda.cu over pages of INT8
 * values. */
#include "attention/prefill/attention_prefill_wgmma_launch.cuh"

int rp_attention_prefill_wgmma_int8_cuda_run(const rp_attention_cuda_args *call,
                                             cudaStream_t stream) {
    return call->args.head_dim == 64    ? wgmma_start<64, true, RP_DTYPE_INT8>(call, stream)
           : call->args.head_dim == 128 ? wgmma_start<128, true, RP_DTYPE_INT8>(call, stream)
                                        : (int)cudaErrorInvalidValue;
}
