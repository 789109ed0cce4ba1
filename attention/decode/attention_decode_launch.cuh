/* attention_decode_launch.cuh - launches the decode attention kernels of one page type. One source
 * file per page type, so that they compile in parallel. */
#ifndef RP_ATTENTION_ATTENTION_DECODE_LAUNCH_CUH
#define RP_ATTENTION_ATTENTION_DECODE_LAUNCH_CUH

#include "attention/decode/attention_decode_kernel.cuh"
#include "attention/program/attention_program_cuda.h"

namespace {

/* For bf16 pages. Three blocks per SM, with or without deeper rings, gained nothing
 * (bench/results). */
constexpr uint32_t BLOCKS_PER_SM = 2;

template <int D, int NT, rp_dtype Page, bool Capped>
__global__ void __launch_bounds__(THREADS)
    attention_decode_kernel(const __grid_constant__ decode_args args) {
    attention_decode<D, NT, plain_mask<Capped>, Page>(args);
}

template <int D, int NT, rp_dtype Page> const void *kernel_of(const rp_attention_cuda_args *args) {
    if (args->program)
        return args->program->decode;
    return args->args.soft_cap > 0 ? (const void *)attention_decode_kernel<D, NT, Page, true>
                                   : (const void *)attention_decode_kernel<D, NT, Page, false>;
}

template <int D, int NT, rp_dtype Page>
int start(const rp_attention_cuda_args *args, cudaStream_t stream) {
    const rp_attention_args *op = &args->args;
    const rp_kv_layout *kv = &op->kv;
    decode_args to = {};
    to.kv = kv->base + (size_t)op->layer * 2 * kv->plane_stride;
    to.page_stride = kv->page_stride;
    to.plane_stride = kv->plane_stride;
    to.head_stride = kv->head_stride;
    to.slots = op->step.slots;
    to.tables = op->step.slots + RP_SLOT_PAGES + op->table;
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
    to.scales_at = kv->scales_at;
    to.sinks = op->sinks;
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
    /* One block per SM is faster when there is no more work than that. */
    uint32_t blocks = rp_attention_decode_cuda_blocks(&args->config),
             sm_count = args->config.limits.sm_count,
             most = args->config.bucket.rows * to.kv_heads * RP_ATTENTION_SPLITS;
    if (most <= sm_count && sm_count < blocks)
        blocks = sm_count;
    if (args->program) /* whose registers are its own */
        blocks = RP_MIN(blocks, sm_count * BLOCKS_PER_SM);
    size_t shared_bytes = kernel_sizes<D, NT, Page>::shared_bytes(to.group);
    const void *kernel = kernel_of<D, NT, Page>(args);
    int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)shared_bytes);
    if (error != 0)
        return error;
    return rp_cuda_start(kernel, dim3(blocks), dim3(THREADS), shared_bytes, stream,
                         args->config.limits.dependent_launch, &to);
}

template <int D, rp_dtype Page>
int start_dim(const rp_attention_cuda_args *args, cudaStream_t stream) {
    return args->args.heads / args->args.kv_heads <= 8 ? start<D, 1, Page>(args, stream)
                                                       : start<D, 2, Page>(args, stream);
}

/* rp_attention_decode_cuda_run for this page type. */
template <rp_dtype Page> int decode_run(const rp_attention_cuda_args *args, cudaStream_t stream) {
    switch (args->args.head_dim) {
    case 64:
        return start_dim<64, Page>(args, stream);
    case 96:
        return start_dim<96, Page>(args, stream);
    case 128:
        return start_dim<128, Page>(args, stream);
    case 256:
        return start_dim<256, Page>(args, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}

} // namespace

#endif
