/* attention_decode_fp8_cuda.cu - attention_decode_cuda.cu over pages of FP8 values. */
#include "attention/decode/attention_decode_launch.cuh"

int rp_attention_decode_fp8_cuda_run(const rp_attention_cuda_args *args, cudaStream_t stream) {
    return decode_run<RP_DTYPE_FP8_E4M3>(args, stream);
}
