/* matmul_experts.c - which rows, which expert and which panels: the work items of experts' GEMMs,
 * the same for all kernels. */
#include "quant/matmul_experts.h"

#include "base/tsan.h"
#include "quant/cpu/matmul_internal.h"

#include <string.h>

#define PANEL 16u
/* Panels of an item (gated: of the gates), and its size: as in matmul_cpu_simd.c. */
#define ITEM_PANELS 4u
#define PART_BYTES  (512u << 10)
#define PART_ROWS   8u
#define SHARE_PARTS 16u

static bool is_8(const struct rp_matrix *w) { return rp_dtype_bytes(w->dtype) == 1; }

static bool is_blocks(const struct rp_matrix *w) { return w->dtype == RP_DTYPE_BLOCKS; }

/* Its kernels read rows that they prepare themselves. */
static bool is_prepared(const struct rp_matrix *w) { return is_8(w) || is_blocks(w); }

static size_t row_bytes_of(const struct rp_matrix *w) {
    return RP_ALIGN_UP((size_t)w->cols * rp_dtype_bytes(w->dtype), RP_CACHE_LINE);
}

size_t rp_expert_matmul_scratch_bytes(const struct rp_matrix *weight, uint32_t tokens) {
    uint32_t rows = RP_MIN(RP_MAX(tokens, 1u), RP_EXPERT_ROWS);
    return is_prepared(weight) ? rp_matmul_scratch_bytes(weight, rows)
                               : rows * row_bytes_of(weight);
}

/* The blocks of rows of all experts, in order; a cursor, since items rise. */
struct cursor {
    uint32_t expert;
    size_t first; /* the expert's first block */
};

static uint32_t rows_of(const int32_t *offsets, uint32_t expert) {
    return (uint32_t)(offsets[expert + 1] - offsets[expert]);
}

static size_t blocks_of(const int32_t *offsets, uint32_t expert) {
    return RP_CEIL_DIV((size_t)rows_of(offsets, expert), RP_EXPERT_ROWS);
}

static void seek(struct cursor *cursor, const int32_t *offsets, size_t block) {
    if (block < cursor->first)
        *cursor = (struct cursor){0, 0};
    while (block - cursor->first >= blocks_of(offsets, cursor->expert)) {
        cursor->first += blocks_of(offsets, cursor->expert);
        cursor->expert++;
    }
}

/* Rows of the block to scratch: gathered, or as the kernels want them. */
static void prepare_rows(const struct rp_expert_matmul_args *args, struct rp_expert_block *block,
                         const int32_t *choices, size_t position) {
    const struct rp_matrix *w = &block->weight;
    size_t size = rp_dtype_bytes(w->dtype), stride = args->gemm.in_stride * size;
    size_t row_bytes = row_bytes_of(w);
    const unsigned char *in = args->gemm.in;
    if (!is_prepared(w) && args->in_divisor == 0) {
        block->args.in = in + position * stride;
        rp_tsan_reads(block->args.in, block->rows * stride);
        return;
    }
    for (uint32_t i = 0; i < block->rows; i++) {
        size_t row = args->in_divisor ? (uint32_t)choices[i] / args->in_divisor : position + i;
        if (is_8(w))
            rp_expert_prepare_8(args->isa, block, row, i);
        else if (is_blocks(w))
            rp_expert_prepare_blocks(block, row, i);
        else
            memcpy(block->scratch + i * row_bytes, in + row * stride, w->cols * size);
    }
    if (!is_prepared(w)) {
        block->args.in = block->scratch;
        block->args.in_stride = row_bytes / size;
    }
}

/* Block `index` of the cursor's expert. */
static void make_block(const struct rp_expert_matmul_args *args, const struct cursor *cursor,
                       size_t index, struct rp_expert_block *block) {
    const int32_t *offsets = args->order, *choices = offsets + args->experts + 1;
    uint32_t each = args->gemm.weight->rows / args->experts;
    size_t skipped = (index - cursor->first) * RP_EXPERT_ROWS;
    size_t position = (size_t)offsets[cursor->expert] + skipped;
    block->weight = rp_matrix_slice(args->gemm.weight, cursor->expert * each, each);
    block->args = args->gemm;
    block->args.weight = &block->weight;
    if (args->gemm.bias)
        block->args.bias = args->gemm.bias + (size_t)cursor->expert * each;
    block->rows = RP_MIN(rows_of(offsets, cursor->expert) - (uint32_t)skipped, RP_EXPERT_ROWS);
    block->out_rows = args->by_choice ? choices + position : NULL;
    if (!args->by_choice)
        block->args.out = (unsigned char *)args->gemm.out +
                          position * args->gemm.out_stride * rp_dtype_bytes(args->gemm.out_dtype);
    prepare_rows(args, block, choices + position, position);
}

static void run_block(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                      size_t panels) {
    if (is_8(&block->weight)) {
        rp_expert_run_8(isa, block, panel, panels);
        return;
    }
    if (is_blocks(&block->weight)) {
        rp_expert_run_blocks(isa, block, panel, panels);
        return;
    }
#if RP_MATMUL_HAS_SIMD
    if (isa != RP_ISA_SCALAR && block->weight.layout == RP_LAYOUT_PANEL_16) {
        rp_expert_run_simd(isa, block, panel, panels);
        return;
    }
#endif
    rp_expert_run_scalar(block, panel, panels);
}

void rp_expert_matmul(const struct rp_expert_matmul_args *args,
                      const struct rp_cpu_worker *worker) {
    const struct rp_matrix *w = args->gemm.weight;
    uint32_t each = w->rows / args->experts;
    size_t panels = each / PANEL / (args->gemm.gated ? 2 : 1), blocks = 0, begin, end;
    RP_ASSERT(each * args->experts == w->rows && each % PANEL == 0);
    RP_ASSERT(!args->gemm.accumulate);
    RP_ASSERT(!is_blocks(w) || (w->part_count == 1 && w->input != RP_INPUT_PLAIN));
    for (uint32_t e = 0; e < args->experts; e++)
        blocks += blocks_of(args->order, e);
    if (blocks == 0)
        return;
    size_t groups = RP_CEIL_DIV(panels, ITEM_PANELS), items = blocks * groups;
    size_t rows = (size_t)args->order[args->experts] / blocks;
    size_t bytes = rp_matrix_bytes(w) / args->experts / groups * (1 + rows / PART_ROWS) + 1;
    size_t grain = RP_MAX(items / worker->count / SHARE_PARTS + 1, PART_BYTES / bytes + 1);
    struct rp_expert_block block = {.rows = 0};
    struct cursor cursor = {0, 0};
    size_t ready = SIZE_MAX;
    block.scratch = (unsigned char *)args->gemm.scratch + worker->index * args->gemm.scratch_bytes;
    struct rp_cpu_parts parts;
    rp_cpu_parts_begin(&parts, worker, items, 1, grain);
    while (rp_cpu_parts_next(&parts, &begin, &end))
        for (size_t item = begin; item < end; item++) {
            size_t panel = item % groups * ITEM_PANELS;
            if (item / groups != ready) {
                ready = item / groups;
                seek(&cursor, args->order, ready);
                make_block(args, &cursor, ready, &block);
            }
            run_block(args->isa, &block, panel, RP_MIN(panels - panel, (size_t)ITEM_PANELS));
        }
}
