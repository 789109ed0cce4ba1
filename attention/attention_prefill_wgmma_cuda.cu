/* attention_prefill_wgmma_cuda.cu - prompt rows over bf16 pages on Hopper: head dim 64, 128 and 256.
 *
 * The shape of the work is FlashAttention-3's (Shah et al. 2024). One block per SM claims tiles of 128 rows
 * (tokens times the query heads of one KV head), longest first. Its first warpgroup feeds the two others:
 * one thread copies K and V page by page (bulk tensor copies), three warps round Q of the next tile to
 * bf16. Each of the other two computes 64 rows: the product Q K^T of a block runs on the tensor cores
 * together with P V of the block before, and beside the softmax.
 *
 *   claim -> q_full -> | S = Q K0 | softmax | S = Q K1, O += P V0 | softmax | ... | O += P Vn | store
 *
 * Blocks of keys lie at absolute multiples of their size, in rising order. A row's bits do not depend on
 * its tile, for the reasons given in attention_prefill_cuda.cu; V of keys that no row of the tile sees is
 * set to zero in shared memory before it is multiplied by a weight of zero. */
#include "attention/attention_prefill_wgmma_kernel.cuh"
#include "attention/attention_program_cuda.h"

template <int D, bool Turns, bool Capped>
static __global__ void __launch_bounds__(THREADS, 1)
    prefill_wgmma_kernel(const __grid_constant__ wgmma_args args) {
    prefill_wgmma<D, Turns, plain_mask<Capped>>(args);
}

/* --- launching --- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The pool as a tensor of five dimensions. How many pages there are is not known when a graph is
 * captured, and no page past the last is ever asked for: a number that is large enough stands for it. */
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

template <int D, bool Turns> static const void *kernel_of(const rp_attention_cuda_args *call) {
    if (call->program)
        return call->program->prefill;
    return call->args.soft_cap > 0 ? (const void *)prefill_wgmma_kernel<D, Turns, true>
                                   : (const void *)prefill_wgmma_kernel<D, Turns, false>;
}

/* tanh x = x (1 + TANH_POWERS[0] x^2 + ...), as rp_tanh_small has it. Bounded: 2^ of a score lies within 2^80 and its
 * inverse, so that sums over 2^24 keys stay within f32. */
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

template <int D, bool Turns>
static int start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    const void *kernel = kernel_of<D, Turns>(call);
    int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          shape<D>::shared_bytes);
    if (error != 0)
        return error;
    wgmma_args args = {};
    args.call = *call;
    if (call->args.soft_cap > 0)
        args.cap = powers_of(call->args.scale, call->args.soft_cap);
    args.box_tokens = RP_MIN(call->args.kv.page_tokens, (uint32_t)shape<D>::keys);
    error = describe_pages(&args.map, &call->args.kv, args.box_tokens);
    if (error != 0)
        return error;
    const rp_bucket &bucket = call->config.bucket;
    uint32_t tile = rp_attention_prefill_wgmma_cuda_tile(&call->config);
    uint32_t most = (RP_CEIL_DIV(bucket.tokens, tile) + bucket.rows) * call->args.kv_heads;
    dim3 grid(RP_MIN(most, call->config.limits.sm_count));
    return rp_cuda_start(kernel, grid, dim3(THREADS), shape<D>::shared_bytes, stream,
                         call->config.limits.dependent_launch, &args);
}

bool rp_attention_prefill_wgmma_cuda_supports(const rp_attention_cuda_config *config) {
    uint32_t dim = config->head_dim;
    return rp_cuda_has_hopper(&config->limits) && config->kv.dtype == RP_DTYPE_BF16 &&
           config->heads / config->kv_heads <= ROWS && config->kv.page_tokens >= 8 &&
           (dim == 64 || dim == 128 || dim == 256);
}

uint32_t rp_attention_prefill_wgmma_cuda_tile(const rp_attention_cuda_config *config) {
    return ROWS / (config->heads / config->kv_heads);
}

uint32_t rp_attention_prefill_wgmma_cuda_keys(const rp_attention_cuda_config *config) {
    return config->head_dim == 256 ? shape<256>::keys : shape<128>::keys;
}

int rp_attention_prefill_wgmma_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    switch (call->args.head_dim) {
    case 64:
        return start<64, true>(call, stream);
    case 128:
        return start<128, true>(call, stream);
    case 256:
        return start<256, false>(call, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
