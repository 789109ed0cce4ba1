/* attention_prefill_cuda.cu - prompt rows over bf16 pages: mma.sync, any page size, head dim 64, 96, 128, 256.
 *
 * The algorithm is FlashAttention-2 (Dao 2023). A tile is 64 rows: tokens times the query heads of one KV
 * head; a warp owns 16 of them. It walks over blocks of 64 keys at absolute multiples of 64, from the
 * first that any of its rows sees; K and V of the next block arrive by cp.async meanwhile.
 *
 * A row's bits do not depend on its tile: a block in which it sees nothing changes no bit of its state
 * (weights exactly 0, scale exactly 1), and each row's sums have an order of their own. Keys that no row
 * of the tile sees are not read: zeros stand in their place. */
#include "attention/attention_prefill_kernel.cuh"
#include "attention/attention_program_cuda.h"

template <int D, bool Capped>
static __global__ void __launch_bounds__(THREADS)
    prefill_kernel(const __grid_constant__ rp_attention_cuda_args call) {
    prefill<D, plain_mask<Capped>>(call);
}

template <int D> static const void *kernel_of(const rp_attention_cuda_args *call) {
    if (call->program)
        return call->program->prefill;
    return call->args.soft_cap > 0 ? (const void *)prefill_kernel<D, true>
                                   : (const void *)prefill_kernel<D, false>;
}

template <int D> static int prefill_start(const rp_attention_cuda_args *call, cudaStream_t stream) {
    const void *kernel = kernel_of<D>(call);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             shape<D>::shared_bytes);
    if (error != cudaSuccess)
        return (int)error;
    uint32_t tokens = rp_attention_prefill_cuda_tile(&call->config);
    const rp_bucket &bucket = call->config.bucket;
    dim3 grid(call->args.kv_heads, RP_CEIL_DIV(bucket.tokens, tokens) + bucket.rows);
    return rp_cuda_start(kernel, grid, dim3(THREADS), shape<D>::shared_bytes, stream,
                         call->config.limits.dependent_launch, call);
}

static uint32_t shared_bytes_of(uint32_t dim) {
    return dim == 64    ? shape<64>::shared_bytes
           : dim == 96  ? shape<96>::shared_bytes
           : dim == 128 ? shape<128>::shared_bytes
                        : shape<256>::shared_bytes;
}

bool rp_attention_prefill_cuda_supports(const rp_attention_cuda_config *config) {
    uint32_t dim = config->head_dim;
    return shared_bytes_of(dim) <= config->limits.shared_bytes_block &&
           config->kv.dtype == RP_DTYPE_BF16 && config->heads / config->kv_heads <= ROWS &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256);
}

uint32_t rp_attention_prefill_cuda_tile(const rp_attention_cuda_config *config) {
    if (rp_attention_prefill_wgmma_cuda_supports(config))
        return rp_attention_prefill_wgmma_cuda_tile(config);
    return ROWS / (config->heads / config->kv_heads);
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
    switch (call->args.head_dim) {
    case 64:
        return prefill_start<64>(call, stream);
    case 96:
        return prefill_start<96>(call, stream);
    case 128:
        return prefill_start<128>(call, stream);
    case 256:
        return prefill_start<256>(call, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
