/* attention_prefill_fp8_cuda.cu - attention_prefill_cuda.cu over pages of FP8 values. */
#include "attention/prefill/attention_prefill_launch.cuh"

int rp_attention_prefill_fp8_cuda_run(const rp_attention_cuda_args *call, cudaStream_t stream) {
    return prefill_run<RP_DTYPE_FP8_E4M3>(call, stream);
}
