/* attention_program.cuh - root source of a program's module; compiled only by NVRTC
 * (attention_program_cuda.c).
 *
 *   RP_MASK_PROGRAM    how its text is included
 *   RP_PROGRAM_PLAN, _DECODE, _WGMMA, _PREFILL, _GENERIC   1 for each kernel that these sizes use
 *   RP_PROGRAM_DIM     head dim
 *   RP_PROGRAM_PAGE    enum rp_dtype of the pages
 *   RP_PROGRAM_IS_SHORT   whether evaluating a pair takes a few instructions
 *   RP_PROGRAM_ARGS_BYTES of struct rp_attention_cuda_args
 *   RP_PROGRAM_TILES   of query heads, eight a tile: 1 or 2 */
#include "attention/attention_internal_cuda.h"
#include "attention/attention_quantized_cuda.cuh"
#include "attention/program/attention_mask_policy.cuh"
#include "device/cuda_kernel.cuh"

#include <math.h>

static_assert(sizeof(rp_attention_cuda_args) == RP_PROGRAM_ARGS_BYTES,
              "host and NVRTC lay out the same arguments");
constexpr rp_dtype program_page = (rp_dtype)RP_PROGRAM_PAGE;

#ifdef RP_PROGRAM_PLAN
#include "attention/plan/attention_plan_program.cuh"
extern "C" __global__ void __launch_bounds__(RP_ATTENTION_PLAN_PROGRAM_THREADS)
    rp_program_plan(const __grid_constant__ rp_attention_plan_program_args args) {
    plan_program::plan<program_mask>(args);
}
#endif

#ifdef RP_PROGRAM_DECODE
/* decode and prefill define the same short names, so each is included in its own namespace. */
namespace decode {
#include "attention/decode/attention_decode_kernel.cuh"
extern "C" __global__ void __launch_bounds__(THREADS)
    rp_program_decode(const __grid_constant__ decode_args args) {
    attention_decode<RP_PROGRAM_DIM, RP_PROGRAM_TILES, program_mask, program_page>(args);
}
} // namespace decode
#endif

#ifdef RP_PROGRAM_WGMMA
#include "attention/prefill/attention_prefill_wgmma_kernel.cuh"
extern "C" __global__ void __launch_bounds__(teams<RP_PROGRAM_DIM, program_page>::threads, 1)
    rp_program_prefill(const __grid_constant__ wgmma_args args) {
    prefill_wgmma<RP_PROGRAM_DIM, RP_PROGRAM_DIM != 256, program_mask, program_page>(args);
}
#endif

#ifdef RP_PROGRAM_PREFILL
#include "attention/prefill/attention_prefill_kernel.cuh"
extern "C" __global__ void __launch_bounds__(THREADS)
    rp_program_prefill(const __grid_constant__ rp_attention_cuda_args call) {
    prefill<RP_PROGRAM_DIM, program_mask, program_page>(call);
}
#endif

#ifdef RP_PROGRAM_GENERIC
#include "attention/generic/attention_generic_kernel.cuh"
extern "C" __global__ void __launch_bounds__(RP_GENERIC_THREADS)
    rp_program_generic(const __grid_constant__ rp_attention_cuda_args call) {
    generic<program_mask, page_of<program_page>::is_quantized,
            RP_PROGRAM_DIM <= RP_GENERIC_HEAD_DIM ? RP_GENERIC_HEAD_DIM : RP_GENERIC_HEAD_DIM_MAX>(
        call);
}
#endif
