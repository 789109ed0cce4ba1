/* attention_latent_cuda.cu - attention over pages of latents of 512 + 64 values, in bf16 or 8 bits.
 *
 * All query heads read the same keys, so the rows of a tensor-core tile are heads (decode), or
 * tokens and heads (prompts). A block reads 32 keys at a time into shared memory and uses them
 * twice: as K, all 576 columns, and as V, the first 512.
 *
 *   scores   warp w: columns [144 (w % 4), + 144) of 16 keys; the four sums are added in order
 *   softmax  warp w: some of the rows, a lane for each key
 *   values   warp w: 64 of the 512 columns, all rows
 *
 * q and the weights are rounded to bf16; of 8-bit pages the quantized values are exact in bf16, and
 * a key's scale multiplies its score and its weight.
 *
 * Decode rows of up to 16 heads over bf16 pages have a kernel of their own on Hopper
 * (attention_latent_chains.cuh), with the same plan, splits and partial sums.
 *
 * Decode rows have up to 16 or 32 heads to a block. As in decode/, the splits of all rows form one
 * sequence, of which a block computes an equal part, for one group of heads; blocks of all groups
 * compute the same part at the same time, so that latents come from L2 for all but the first. A
 * split is summed from zero, and a row's splits are folded in rising order whichever block computed
 * them. Behind a matmul (attention_cuda.h) a block reads the plan, the page table and its first
 * tiles before its wait, unless the row's own key is in them. Prompt rows have 64 rows to a block
 * and are not split.
 *
 * Bits depend on a row's q, its keys, its position and the window alone. */
#include "attention/latent/attention_latent_chains.cuh"
#include "attention/latent/attention_latent_kernel.cuh"

namespace {

constexpr uint32_t PREFILL_ROWS = 64;

uint32_t decode_tiles(const rp_attention_cuda_config *config) {
    return config->heads <= 16 ? 1 : 2;
}

bool has_chains(const rp_attention_cuda_config *config) {
    return rp_cuda_has_hopper(&config->limits) && config->kv.dtype == RP_DTYPE_BF16 &&
           decode_tiles(config) == 1 &&
           sizeof(latent_chains_shared) <= config->limits.shared_bytes_block;
}

/* Blocks of all groups, for decode. */
uint32_t blocks_of(const rp_attention_cuda_config *config, uint32_t per_sm) {
    const uint32_t groups = rp_attention_latent_cuda_groups(config);
    return RP_MAX(config->limits.sm_count * per_sm / groups, 1u) * groups;
}

template <rp_dtype Page>
__global__ void __launch_bounds__(THREADS, 2)
    latent_decode_16(const __grid_constant__ latent_args args) {
    extern __shared__ __align__(16) unsigned char memory[];
    latent_decode<1, Page>(args, *(latent_shared<1> *)memory);
}
template <rp_dtype Page>
__global__ void __launch_bounds__(THREADS, 1)
    latent_decode_32(const __grid_constant__ latent_args args) {
    extern __shared__ __align__(16) unsigned char memory[];
    latent_decode<2, Page>(args, *(latent_shared<2> *)memory);
}
__global__ void __launch_bounds__(CHAINS_THREADS, 1)
    latent_decode_chains(const __grid_constant__ latent_args args) {
#if RP_CUDA_HOPPER
    extern __shared__ __align__(16) unsigned char memory[];
    latent_chains(args, *(latent_chains_shared *)memory);
#else
    (void)args;
    __trap(); /* never planned */
#endif
}
template <rp_dtype Page>
__global__ void __launch_bounds__(THREADS, 1)
    latent_prefill_64(const __grid_constant__ latent_args args) {
    extern __shared__ __align__(16) unsigned char memory[];
    latent_prefill<4, Page>(args, *(latent_shared<4> *)memory);
}

latent_args arguments_of(const rp_attention_cuda_args *call) {
    const rp_attention_args *op = &call->args;
    const rp_kv_layout *kv = &op->kv;
    latent_args to = {};
    to.kv = kv->base + (size_t)op->layer * 2 * kv->plane_stride;
    to.page_stride = kv->page_stride;
    to.tables = op->step.slots + RP_SLOT_PAGES + op->table;
    to.slot_words = op->step.slot_words;
    while (1u << to.page_log2 < kv->page_tokens)
        to.page_log2++;
    to.scales_at = kv->scales_at;
    to.plan = call->workspace.plans[call->mask_class].head;
    to.rows = call->workspace.plans[call->mask_class].rows;
    to.tiles = call->workspace.plans[call->mask_class].tiles;
    to.row_capacity = call->workspace.row_capacity;
    to.q = op->q;
    to.out = op->out;
    to.sinks = op->sinks;
    to.q_stride = op->q_stride;
    to.out_stride = op->out_stride;
    to.out_dtype = op->out_dtype;
    to.arrivals = call->workspace.arrivals;
    to.partials = call->workspace.partials;
    to.heads = op->heads;
    to.window = op->window;
    to.scale = op->scale * LOG2_E;
    if (op->soft_cap > 0) {
        to.cap_in = op->scale / op->soft_cap;
        to.cap_out = op->soft_cap * LOG2_E;
    }
    to.q_aligned = (uintptr_t)op->q % 16 == 0 && op->q_stride % 4 == 0;
    to.out_aligned = (uintptr_t)op->out % 8 == 0 && op->out_stride % 2 == 0;
    to.early = call->config.behind_product;
    to.stamp = call->stamp;
    return to;
}

int start(const void *kernel, uint32_t blocks, size_t shared_bytes,
          const rp_attention_cuda_args *call, const latent_args &args, cudaStream_t stream,
          uint32_t threads = THREADS) {
    int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)shared_bytes);
    return error != 0 ? error
                      : rp_cuda_start(kernel, dim3(blocks), dim3(threads), shared_bytes, stream,
                                      call->config.limits.dependent_launch, &args);
}

template <rp_dtype Page>
int decode_run(const rp_attention_cuda_args *call, const latent_args &args, cudaStream_t stream) {
    const uint32_t most = call->config.bucket.rows * args.groups * RP_ATTENTION_SPLITS_MAX;
    if (args.group == 32)
        return start((const void *)latent_decode_32<Page>, blocks_of(&call->config, 1),
                     sizeof(latent_shared<2>), call, args, stream);
    if (has_chains(&call->config))
        return start((const void *)latent_decode_chains, blocks_of(&call->config, 1),
                     sizeof(latent_chains_shared), call, args, stream, CHAINS_THREADS);
    /* With no more splits than SMs, each has one to itself. */
    const uint32_t per_sm = most <= call->config.limits.sm_count ? 1 : 2;
    return start((const void *)latent_decode_16<Page>, blocks_of(&call->config, per_sm),
                 sizeof(latent_shared<1>), call, args, stream);
}

template <rp_dtype Page>
int prefill_run(const rp_attention_cuda_args *call, const latent_args &args, cudaStream_t stream) {
    const rp_bucket *bucket = &call->config.bucket;
    const uint64_t most =
        (uint64_t)(bucket->tokens / rp_attention_latent_cuda_tile(&call->config) + bucket->rows) *
        args.groups;
    const uint32_t blocks = (uint32_t)RP_MIN(most, (uint64_t)call->config.limits.sm_count);
    return start((const void *)latent_prefill_64<Page>, RP_MAX(blocks, 1u),
                 sizeof(latent_shared<4>), call, args, stream);
}

} // namespace

bool rp_attention_latent_cuda_supports(const rp_attention_cuda_config *config) {
    const rp_kv_layout *kv = &config->kv;
    for (uint32_t i = 0; i < config->window_count; i++)
        if (config->programs[i])
            return false;
    return kv->latent && config->head_dim == DIM && config->value_dim == VALUE &&
           config->kv_heads == 1 && kv->dtype != RP_DTYPE_F32 &&
           (kv->page_tokens & (kv->page_tokens - 1)) == 0 &&
           config->limits.compute_capability >= 80 &&
           sizeof(latent_shared<4>) <= config->limits.shared_bytes_block &&
           (uint64_t)config->step.config.row_capacity * RP_ATTENTION_SPLITS_MAX *
                   rp_attention_latent_cuda_blocks(config) <=
               UINT32_MAX;
}

uint32_t rp_attention_latent_cuda_groups(const rp_attention_cuda_config *config) {
    return RP_CEIL_DIV(config->heads, decode_tiles(config) * 16);
}

uint32_t rp_attention_latent_cuda_tile(const rp_attention_cuda_config *config) {
    return RP_MAX(PREFILL_ROWS / config->heads, 1u);
}

uint32_t rp_attention_latent_cuda_blocks(const rp_attention_cuda_config *config) {
    return blocks_of(config, decode_tiles(config) == 1 ? 2 : 1);
}

size_t rp_attention_latent_cuda_partial_floats(const rp_attention_cuda_config *config) {
    return (size_t)SLOTS * partial_floats(decode_tiles(config));
}

int rp_attention_latent_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    latent_args args = arguments_of(call);
    args.group = decode_tiles(&call->config) * 16;
    args.groups = rp_attention_latent_cuda_groups(&call->config);
    const rp_dtype page = call->args.kv.dtype;
    return page == RP_DTYPE_INT8       ? decode_run<RP_DTYPE_INT8>(call, args, stream)
           : page == RP_DTYPE_FP8_E4M3 ? decode_run<RP_DTYPE_FP8_E4M3>(call, args, stream)
                                       : decode_run<RP_DTYPE_BF16>(call, args, stream);
}

int rp_attention_latent_prefill_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *call = (const rp_attention_cuda_args *)args_void;
    latent_args args = arguments_of(call);
    args.group = RP_MIN(args.heads, PREFILL_ROWS);
    args.groups = RP_CEIL_DIV(args.heads, PREFILL_ROWS);
    const rp_dtype page = call->args.kv.dtype;
    return page == RP_DTYPE_INT8       ? prefill_run<RP_DTYPE_INT8>(call, args, stream)
           : page == RP_DTYPE_FP8_E4M3 ? prefill_run<RP_DTYPE_FP8_E4M3>(call, args, stream)
                                       : prefill_run<RP_DTYPE_BF16>(call, args, stream);
}
