/* attention_prefill_wgmma_cuda.cu - prompt rows on Hopper: head dim 64, 128 and 256; over pages of
 * 8 bits 64 and 128.
 *
 * The pipeline is that of FlashAttention-3 (Shah et al. 2024). One block per SM claims tiles of 128
 * rows (tokens times the query heads of one KV head), longest first. Its first warpgroup is the
 * producer for the two others: one thread copies K and V page by page (bulk tensor copies), three
 * warps round Q of the next tile to bf16, which they request into the L2 when the tile is claimed,
 * a few blocks ahead. Each of the other two computes 64 rows: the matmul Q K^T
 * of a block runs on the tensor cores together with P V of the previous block, overlapped with the
 * softmax.
 *
 * Two blocks form a cluster that claims a tile of the plan of twice as many tokens: each has half
 * of them, both walk the same blocks of keys, and one copies K to both, the other V. Long prompts
 * run at the GPU's power limit, and this halves the bytes read from the L2. A stage is free when
 * the warps of both blocks have read it. A tile that fits into one block is computed by both, each
 * with a KV head and copies of its own. Over 8-bit pages each block works for itself.
 *
 *   claim -> q_full -> | S = Q K0 | softmax | S = Q K1, O += P V0 | softmax | ... | O += P Vn | store
 *
 * Key blocks are at absolute multiples of their size, in rising order. A row's bits do not depend
 * on its tile, for the reasons given in attention_prefill_cuda.cu; V of keys that no row of the
 * tile sees is set to zero in shared memory before it is multiplied by a weight of zero.
 *
 * Over 8-bit pages the copies are quantized values, and a fourth warpgroup converts them to bf16
 * (attention_prefill_wgmma_quantized.cuh). */
#include "attention/prefill/attention_prefill_wgmma_launch.cuh"

bool rp_attention_prefill_wgmma_cuda_supports(const rp_attention_cuda_config *config) {
    const uint32_t dim = config->head_dim;
    const bool is_quantized = rp_dtype_bytes(config->kv.dtype) == 1;
    return rp_cuda_has_hopper(&config->limits) && config->kv.dtype != RP_DTYPE_F32 &&
           !config->kv.latent && config->heads / config->kv_heads <= ROWS &&
           config->kv.page_tokens >= 8 &&
           (dim == 64 || dim == 128 || (dim == 256 && !is_quantized));
}

static uint32_t cluster_of(const rp_attention_cuda_config *config) {
    return rp_dtype_bytes(config->kv.dtype) == 1 ? teams<128, RP_DTYPE_INT8>::cluster
                                                 : teams<128, RP_DTYPE_BF16>::cluster;
}

/* Without pairs (an odd number of KV heads) the plan lists a cluster's tiles, each once. */
uint32_t rp_attention_prefill_wgmma_cuda_tile(const rp_attention_cuda_config *config) {
    const uint32_t tile = ROWS / (config->heads / config->kv_heads);
    return rp_attention_prefill_wgmma_cuda_pairs(config) ? tile : tile * cluster_of(config);
}

bool rp_attention_prefill_wgmma_cuda_pairs(const rp_attention_cuda_config *config) {
    return cluster_of(config) == 2 && config->kv_heads % 2 == 0;
}

uint32_t rp_attention_prefill_wgmma_cuda_keys(const rp_attention_cuda_config *config) {
    return config->head_dim == 256 ? shape<256>::keys : shape<128>::keys;
}

int rp_attention_prefill_wgmma_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    const uint32_t dim = call->args.head_dim;
    switch (call->args.kv.dtype) {
    case RP_DTYPE_INT8:
        return rp_attention_prefill_wgmma_int8_cuda_run(call, stream);
    case RP_DTYPE_FP8_E4M3:
        return rp_attention_prefill_wgmma_fp8_cuda_run(call, stream);
    default:
        return dim == 64    ? wgmma_start<64, true, RP_DTYPE_BF16>(call, stream)
               : dim == 128 ? wgmma_start<128, true, RP_DTYPE_BF16>(call, stream)
               : dim == 256 ? wgmma_start<256, false, RP_DTYPE_BF16>(call, stream)
                            : (int)cudaErrorInvalidValue;
    }
}
