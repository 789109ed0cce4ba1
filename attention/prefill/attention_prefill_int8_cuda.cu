/* attention_prefill_int8_cuda.cu - attention_prefill_cuda.cu over pages of INT8 values. */
#include "attention/prefill/attention_prefill_launch.cuh"

int rp_attention_prefill_int8_cuda_run(const rp_attention_cuda_args *call, cudaStream_t stream) {
    return prefill_run<RP_DTYPE_INT8>(call, stream);
}
