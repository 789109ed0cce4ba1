/* attention_prefill_wgmma_launch.cuh - launches the Hopper kernels of one page type. One source
 * file per page type, so that they compile in parallel. */
#ifndef RP_ATTENTION_ATTENTION_PREFILL_WGMMA_LAUNCH_CUH
#define RP_ATTENTION_ATTENTION_PREFILL_WGMMA_LAUNCH_CUH

#include "attention/prefill/attention_prefill_wgmma_kernel.cuh"
#include "attention/program/attention_program_cuda.h"

template <int D, bool Turns, rp_dtype Page, bool Capped>
static __global__ void __launch_bounds__(teams<D, Page>::threads, 1)
    prefill_wgmma_kernel(const __grid_constant__ wgmma_args args) {
    prefill_wgmma<D, Turns, plain_mask<Capped>, Page>(args);
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Tensor map of the bf16 pool, five dimensions. The number of pages is not known when a graph is
 * captured, and no page past the last is ever accessed, so a large enough bound is used. */
static int describe_pages(CUtensorMap *map, const rp_kv_layout *kv, uint32_t box_tokens) {
    static encode_fn encode = NULL;
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
        if (error != cudaSuccess || result != cudaDriverEntryPointSuccess)
            return error != cudaSuccess ? (int)error : (int)cudaErrorNotSupported;
        encode = (encode_fn)found;
    }
    const cuuint64_t sizes[5] = {kv->head_dim, kv->page_tokens, kv->kv_heads, 2 * kv->layers,
                                 1u << 24};
    const cuuint64_t strides[4] = {kv->head_dim * 2, kv->head_stride, kv->plane_stride,
                                   kv->page_stride};
    const cuuint32_t box[5] = {64, box_tokens, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, kv->base, sizes, strides,
                             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : (int)cudaErrorInvalidValue;
}

template <int D, bool Turns, rp_dtype Page>
static const void *kernel_of(const rp_attention_cuda_args *call) {
    if (call->program)
        return call->program->prefill;
    return call->args.soft_cap > 0 ? (const void *)prefill_wgmma_kernel<D, Turns, Page, true>
                                   : (const void *)prefill_wgmma_kernel<D, Turns, Page, false>;
}

/* tanh x = x (1 + TANH_POWERS[0] x^2 + ...), as in rp_tanh_small. Bounded: 2^score is within 2^-80
 * and 2^80, so that sums over 2^24 keys stay within f32. */
static capped_powers powers_of(float scale, float cap) {
    static const float terms[4] = {RP_TANH_TERMS};
    capped_powers powers = {};
    float in = scale / cap, out = cap * LOG2_E, factor = in * out;
    powers.in = in;
    powers.out = out;
    powers.small = RP_TANH_SMALL / in;
    powers.a[0] = factor;
    for (int i = 0; i < 4; i++) {
        factor *= in * in;
        powers.a[i + 1] = factor * terms[i];
    }
    powers.is_bounded = out <= 80.0f && in >= 1e-4f && in <= 1e4f;
    return powers;
}

template <int D, bool Turns, rp_dtype Page>
static int wgmma_start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    using team = teams<D, Page>;
    const void *kernel = kernel_of<D, Turns, Page>(call);
    int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          team::shared_bytes);
    if (error != 0)
        return error;
    wgmma_args args = {};
    args.call = *call;
    if (call->args.soft_cap > 0)
        args.cap = powers_of(call->args.scale, call->args.soft_cap);
    args.box_tokens =
        RP_MIN(call->args.kv.page_tokens, (uint32_t)shape<D>::keys / (team::is_quantized ? 2 : 1));
    if (!team::is_quantized)
        error = describe_pages(&args.map, &call->args.kv, args.box_tokens);
    if (error != 0)
        return error;
    const rp_bucket &bucket = call->config.bucket;
    uint32_t tile = rp_attention_prefill_wgmma_cuda_tile(&call->config);
    uint32_t heads = heads_of_tile<team::cluster>(call->args.kv_heads);
    uint32_t most = (RP_CEIL_DIV(bucket.tokens, tile) + bucket.rows) * heads;
    uint32_t clusters = RP_MAX(call->config.limits.sm_count / team::cluster, 1u);
    dim3 grid(RP_MIN(most, clusters) * team::cluster);
    return rp_cuda_start(kernel, grid, dim3(team::threads), team::shared_bytes, stream,
                         call->config.limits.dependent_launch, &args, team::cluster);
}

#endif
