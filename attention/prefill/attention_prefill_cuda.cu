/* attention_prefill_cuda.cu - prompt rows over bf16 and 8-bit pages with mma.sync: any page size,
 * head dim 64, 96, 128, 256.
 *
 * The algorithm is FlashAttention-2 (Dao 2023). A tile is 64 rows: tokens times the query heads of
 * one KV head; a warp owns 16 of them. It iterates over blocks of 64 keys at absolute multiples of
 * 64, from the first that any of its rows sees; K and V of the next block are prefetched by
 * cp.async. 8-bit values are converted to bf16 once per block, in shared memory.
 *
 * A row's bits do not depend on its tile: a block in which it sees nothing changes no bit of its
 * state (weights exactly 0, scale exactly 1), and the order of each row's sums is independent of
 * the other rows. Keys that no row of the tile sees are not read but zero-filled. */
#include "attention/prefill/attention_prefill_launch.cuh"

template <rp_dtype Page> static uint32_t shared_bytes_of(uint32_t dim) {
    return dim == 64    ? shape<64, Page>::shared_bytes
           : dim == 96  ? shape<96, Page>::shared_bytes
           : dim == 128 ? shape<128, Page>::shared_bytes
                        : shape<256, Page>::shared_bytes;
}

bool rp_attention_prefill_cuda_supports(const rp_attention_cuda_config *config) {
    uint32_t dim = config->head_dim;
    uint32_t bytes = rp_dtype_bytes(config->kv.dtype) == 1 ? shared_bytes_of<RP_DTYPE_INT8>(dim)
                                                           : shared_bytes_of<RP_DTYPE_BF16>(dim);
    return bytes <= config->limits.shared_bytes_block && config->kv.dtype != RP_DTYPE_F32 &&
           !config->kv.latent && config->heads / config->kv_heads <= ROWS &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256);
}

uint32_t rp_attention_prefill_cuda_tile(const rp_attention_cuda_config *config) {
    if (rp_attention_prefill_wgmma_cuda_supports(config))
        return rp_attention_prefill_wgmma_cuda_tile(config);
    return ROWS / (config->heads / config->kv_heads);
}

bool rp_attention_prefill_cuda_pairs(const rp_attention_cuda_config *config) {
    return rp_attention_prefill_wgmma_cuda_supports(config) &&
           rp_attention_prefill_wgmma_cuda_pairs(config);
}

bool rp_attention_prefill_cuda_has_wgmma(const rp_attention_cuda_config *config) {
    return rp_attention_prefill_wgmma_cuda_supports(config);
}

uint32_t rp_attention_prefill_cuda_keys(const rp_attention_cuda_config *config) {
    return rp_attention_prefill_wgmma_cuda_supports(config)
               ? rp_attention_prefill_wgmma_cuda_keys(config)
               : KEYS;
}

int rp_attention_prefill_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    if (rp_attention_prefill_wgmma_cuda_supports(&call->config))
        return rp_attention_prefill_wgmma_cuda_run(call, stream);
    const rp_dtype page = call->args.kv.dtype;
    return page == RP_DTYPE_INT8       ? rp_attention_prefill_int8_cuda_run(call, stream)
           : page == RP_DTYPE_FP8_E4M3 ? rp_attention_prefill_fp8_cuda_run(call, stream)
                                       : prefill_run<RP_DTYPE_BF16>(call, stream);
}
