/* attention_decode_cuda.cu - one query per sequence: a stream over K and V.
 *
 * The splits of all (row, KV head) pairs form one line (attention_internal_cuda.h); a block takes an equal
 * part of it, whatever the mixture of lengths. Inside a split the keys go to the block's four warps in
 * units of 32 (16 at head dim 256): unit u of the sequence is warp u % 4's. A warp streams K and V of its
 * units through a ring in shared memory of its own (cp.async), running ahead over splits, heads and rows.
 *
 * Behind a product (attention_cuda.h) a block reads the plan, the page table and its first unit before its
 * wait. What the kernels in between write is q and K and V of the step's own tokens; of a decode row that is
 * its last key alone. Older keys of its sequence were written by earlier steps, or by other sequences whose
 * prefix it shares: pages are shared when the step that filled them is committed (engine/scheduler_commit.c),
 * and a sequence has one row in a step.
 *
 * Tensor cores, transposed, so that up to 8 query heads of a group are the n side of one instruction and
 * none of its 16 rows is wasted:  S^T (keys, heads) = K Q^T,  O^T (dims, heads) += V^T P^T.
 *
 * What fixes the bits: a warp's units of a split in rising order by online softmax from zero; then the
 * four warps of the split in order; then the splits in rising order (fold). Who computes a split decides
 * nothing: a block that has splits from a row's first one on folds them at once, any other leaves each by
 * itself as a partial, and the block that arrives last folds what is missing. */
#include "attention/attention_decode_kernel.cuh"
#include "attention/attention_program_cuda.h"

/* Three, with or without longer rings: nothing (bench/results). */
#define BLOCKS_PER_SM 2

namespace {

template <int D, int NT, bool Capped>
__global__ void __launch_bounds__(THREADS)
    attention_decode_kernel(const __grid_constant__ decode_args args) {
    attention_decode<D, NT, plain_mask<Capped>>(args);
}

template <int D, int NT> const void *kernel_of(const rp_attention_cuda_args *args) {
    if (args->program)
        return args->program->decode;
    return args->args.soft_cap > 0 ? (const void *)attention_decode_kernel<D, NT, true>
                                   : (const void *)attention_decode_kernel<D, NT, false>;
}

template <int D, int NT> int start(const rp_attention_cuda_args *args, cudaStream_t stream) {
    const rp_attention_args *op = &args->args;
    const rp_kv_layout *kv = &op->kv;
    decode_args to = {};
    to.kv = kv->base + (size_t)op->layer * 2 * kv->plane_stride;
    to.page_stride = kv->page_stride;
    to.plane_stride = kv->plane_stride;
    to.head_stride = kv->head_stride;
    to.slots = op->step.slots;
    to.plan = args->workspace.plans[args->mask_class].head;
    to.rows = args->workspace.plans[args->mask_class].rows;
    to.q = op->q;
    to.out = (unsigned char *)op->out;
    to.q_stride = op->q_stride;
    to.out_stride = op->out_stride;
    to.arrivals = args->workspace.arrivals;
    to.partials = args->workspace.partials;
    to.slot_words = op->step.slot_words;
    while (1u << to.page_log2 < kv->page_tokens)
        to.page_log2++;
    to.group = op->heads / op->kv_heads;
    to.kv_heads = op->kv_heads;
    to.row_capacity = args->workspace.row_capacity;
    to.scale = op->scale * 1.4426950408889634f;
    to.natural_scale = op->scale;
    if (op->soft_cap > 0) {
        to.cap_in = op->scale / op->soft_cap;
        to.cap_out = op->soft_cap * 1.4426950408889634f;
    }
    to.units = args->workspace.plans[args->mask_class].units;
    to.unit_capacity = args->workspace.unit_capacity;
    to.out_dtype = op->out_dtype;
    to.stamp = args->stamp;
    to.early = args->config.behind_product;
    to.q_aligned = (((uintptr_t)op->q | op->q_stride * 4) & 15) == 0;
    /* One block an SM is quicker where there is not more to do than that. */
    uint32_t blocks = rp_attention_decode_cuda_blocks(&args->config),
             sm_count = args->config.limits.sm_count,
             most = args->config.bucket.rows * to.kv_heads * RP_ATTENTION_SPLITS;
    if (most <= sm_count && sm_count < blocks)
        blocks = sm_count;
    size_t shared_bytes = kernel_sizes<D, NT>::shared_bytes(to.group);
    const void *kernel = kernel_of<D, NT>(args);
    int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)shared_bytes);
    if (error != 0)
        return error;
    return rp_cuda_start(kernel, dim3(blocks), dim3(THREADS), shared_bytes, stream,
                         args->config.limits.dependent_launch, &to);
}

template <int D> int start_dim(const rp_attention_cuda_args *args, cudaStream_t stream) {
    return args->args.heads / args->args.kv_heads <= 8 ? start<D, 1>(args, stream)
                                                       : start<D, 2>(args, stream);
}

template <int D> size_t shared_bytes_of_dim(uint32_t group) {
    return group <= 8 ? kernel_sizes<D, 1>::shared_bytes(group)
                      : kernel_sizes<D, 2>::shared_bytes(group);
}

size_t shared_bytes_of(uint32_t dim, uint32_t group) {
    return dim == 64    ? shared_bytes_of_dim<64>(group)
           : dim == 96  ? shared_bytes_of_dim<96>(group)
           : dim == 128 ? shared_bytes_of_dim<128>(group)
                        : shared_bytes_of_dim<256>(group);
}

} // namespace

bool rp_attention_decode_cuda_supports(const rp_attention_cuda_config *config) {
    const rp_kv_layout *kv = &config->kv;
    uint32_t dim = config->head_dim, group = config->heads / config->kv_heads;
    uint64_t line =
        (uint64_t)config->step.config.row_capacity * RP_ATTENTION_SPLITS_MAX * config->kv_heads;
    return kv->dtype == RP_DTYPE_BF16 && kv->page_tokens >= TILE &&
           (kv->page_tokens & (kv->page_tokens - 1)) == 0 &&
           config->heads % config->kv_heads == 0 && group <= RP_ATTENTION_GROUP_MAX &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 256) &&
           shared_bytes_of(dim, group) + sizeof(block_state) <= config->limits.shared_bytes_block &&
           (line + 1) * rp_attention_decode_cuda_blocks(config) <= UINT32_MAX;
}

uint32_t rp_attention_decode_cuda_blocks(const rp_attention_cuda_config *config) {
    return config->limits.sm_count * BLOCKS_PER_SM;
}

size_t rp_attention_decode_cuda_partial_floats(const rp_attention_cuda_config *config) {
    return (size_t)SLOTS * (config->heads / config->kv_heads) * (config->head_dim + 4);
}

int rp_attention_decode_cuda_run(const void *args_void, cudaStream_t stream) {
    const rp_attention_cuda_args *args = (const rp_attention_cuda_args *)args_void;
    switch (args->args.head_dim) {
    case 64:
        return start_dim<64>(args, stream);
    case 96:
        return start_dim<96>(args, stream);
    case 128:
        return start_dim<128>(args, stream);
    case 256:
        return start_dim<256>(args, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
