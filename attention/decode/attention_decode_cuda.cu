/* attention_decode_cuda.cu - one query per sequence: a stream over K and V.
 *
 * The splits of all (row, KV head) pairs form one sequence (attention_internal_cuda.h); each block
 * computes an equal part of it, whatever the mixture of lengths. Inside a split the keys are
 * distributed to the block's four warps in units of 32 (16 at head dim 256): warp u % 4 computes
 * unit u of the sequence. A warp streams K and V of its units through its own ring in shared memory
 * (cp.async), prefetching across splits, heads and rows.
 *
 * After a matmul (attention_cuda.h) a block reads the plan, the page table and its first unit
 * before its wait. The kernels in between write q, and K and V of the step's own tokens: for a
 * decode row only its last key. Older keys of its sequence were written by earlier steps, or by
 * other sequences whose prefix it shares: pages are shared when the step that filled them is
 * committed (engine/scheduler_commit.c), and a sequence has one row in a step.
 *
 * Tensor core operands are transposed, so that up to 8 query heads of a group fill the n dimension
 * of one instruction and none of its 16 rows is wasted:  S^T (keys, heads) = K Q^T,  O^T (dims,
 * heads) += V^T P^T.
 *
 * 8-bit pages (attention_quantized_cuda.cuh): the same stream with rows of half the bytes; the
 * scales of K and V are copied along with each unit's K, four keys per copy. ldmatrix gives a lane
 * four quantized values of one key, or two of two keys each; both are converted to pairs of f16, so
 * columns of q and rows of O^T are permuted in pairs. q and the weights are f16 too, scaled by
 * powers of two: by that of the head's largest element of q, and by that of the largest V scale
 * that the warp has seen.
 *
 * The reduction order is fixed: the units of a warp in a split in rising order by online softmax
 * from zero; then the four warps of the split in order; then the splits in rising order (fold).
 * Which block computes a split does not matter: a block that owns a row's first splits folds them
 * at once, any other block stores each split as a partial sum, and the last block to arrive folds
 * the rest. */
#include "attention/decode/attention_decode_launch.cuh"

namespace {

template <rp_dtype Page> size_t shared_bytes_of_page(uint32_t dim, uint32_t group) {
    const bool is_one = group <= 8;
    switch (dim) {
    case 64:
        return is_one ? kernel_sizes<64, 1, Page>::shared_bytes(group)
                      : kernel_sizes<64, 2, Page>::shared_bytes(group);
    case 96:
        return is_one ? kernel_sizes<96, 1, Page>::shared_bytes(group)
                      : kernel_sizes<96, 2, Page>::shared_bytes(group);
    case 128:
        return is_one ? kernel_sizes<128, 1, Page>::shared_bytes(group)
                      : kernel_sizes<128, 2, Page>::shared_bytes(group);
    default:
        return is_one ? kernel_sizes<256, 1, Page>::shared_bytes(group)
                      : kernel_sizes<256, 2, Page>::shared_bytes(group);
    }
}

size_t shared_bytes_of(uint32_t dim, uint32_t group, bool is_quantized) {
    return is_quantized ? shared_bytes_of_page<RP_DTYPE_INT8>(dim, group)
                        : shared_bytes_of_page<RP_DTYPE_BF16>(dim, group);
}

} // namespace

bool rp_attention_decode_cuda_supports(const rp_attention_cuda_config *config) {
    const rp_kv_layout *kv = &config->kv;
    uint32_t dim = config->head_dim, group = config->heads / config->kv_heads;
    uint64_t line =
        (uint64_t)config->step.config.row_capacity * RP_ATTENTION_SPLITS_MAX * config->kv_heads;
    return kv->dtype != RP_DTYPE_F32 && !kv->latent && kv->page_tokens >= TILE &&
           (kv->page_tokens & (kv->page_tokens - 1)) == 0 &&
           config->heads % config->kv_heads == 0 && group <= RP_ATTENTION_GROUP_MAX &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256) &&
           shared_bytes_of(dim, group, rp_dtype_bytes(kv->dtype) == 1) + sizeof(block_state) <=
               config->limits.shared_bytes_block &&
           (line + 1) * rp_attention_decode_cuda_blocks(config) <= UINT32_MAX;
}

/* A unit of quantized values has half the bytes of a bf16 unit: a third block per SM keeps nearly
 * as many bytes in flight, where 168 registers per thread allow it. */
uint32_t rp_attention_decode_cuda_blocks(const rp_attention_cuda_config *config) {
    const uint32_t group = config->heads / config->kv_heads, dim = config->head_dim;
    const bool is_quantized = rp_dtype_bytes(config->kv.dtype) == 1;
    /* Shared memory of an SM: 1 KiB more than a block may request; each block reserves 1 KiB. */
    const size_t three =
        3 * (shared_bytes_of(dim, group, is_quantized) + sizeof(block_state) + 1024);
    const bool has_room = is_quantized && dim <= 128 && group <= 8 &&
                          three <= (size_t)config->limits.shared_bytes_block + 1024;
    return config->limits.sm_count * (has_room ? BLOCKS_PER_SM + 1 : BLOCKS_PER_SM);
}

size_t rp_attention_decode_cuda_partial_floats(const rp_attention_cuda_config *config) {
    return (size_t)SLOTS * (config->heads / config->kv_heads) * (config->head_dim + 4);
}

int rp_attention_decode_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *args = (const rp_attention_cuda_args *)args_void;
    const rp_dtype page = args->args.kv.dtype;
    return page == RP_DTYPE_INT8       ? rp_attention_decode_int8_cuda_run(args, stream)
           : page == RP_DTYPE_FP8_E4M3 ? rp_attention_decode_fp8_cuda_run(args, stream)
                                       : decode_run<RP_DTYPE_BF16>(args, stream);
}
