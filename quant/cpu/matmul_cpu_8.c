/* matmul_cpu_8.c - GEMMs on 8-bit weights: the reference, and the blocking of the fast ones.
 *
 * Each worker prepares the input rows it needs in its scratch (quantized, or f32), a block of rows
 * at a time: a thousandth of the GEMM's work at model widths, and no barrier. Work items are (block
 * of rows, panels), blocks of rows outermost. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/tsan.h"
#include "device/ops_simd.h"
#include "device/quantize_row.h"
#include "quant/cpu/matmul_internal.h"
#include "quant/rounding/quantize.h"

#include <string.h>

#define PANEL      16u
#define QUAD_BYTES 64u
#define BLOCK_ROWS 96u
/* Quads of k per block when there are many rows: 16 KiB of a panel, with the inputs of the block in
 * L2. */
#define BLOCK_QUADS 256u
#define SCALE_QUADS 32u /* of a scale block: 128 columns */
/* As in matmul_cpu_simd.c. */
#define PART_BYTES  (512u << 10)
#define PART_ROWS   8u
#define SHARE_PARTS 16u

static bool is_integers(const struct rp_matrix *w) {
    return w->dtype == RP_DTYPE_INT8 && w->input == RP_INPUT_QUANTIZED;
}

static size_t row_bytes_of(const struct rp_matrix *w) {
    size_t padded = RP_ALIGN_UP((size_t)w->cols, 4);
    return RP_ALIGN_UP(is_integers(w) ? padded : padded * sizeof(float), RP_CACHE_LINE);
}

/* The scales of a block of m rows, in front of them in the scratch. */
static size_t scale_bytes(uint32_t m) {
    return RP_ALIGN_UP(RP_MIN(RP_MAX(m, 1u), BLOCK_ROWS) * sizeof(float), RP_CACHE_LINE);
}

size_t rp_matmul_scratch_bytes(const struct rp_matrix *weight, uint32_t m) {
    if (weight->dtype == RP_DTYPE_BLOCKS)
        return rp_matmul_scratch_blocks(weight, m);
    if (rp_dtype_bytes(weight->dtype) != 1)
        return 0;
    return scale_bytes(m) + RP_MIN(RP_MAX(m, 1u), BLOCK_ROWS) * row_bytes_of(weight);
}

/* One prepared input row and its scale; zero-padded to whole quads. */
static float ready_row(const struct rp_matmul_args *args, size_t row, void *to) {
    const struct rp_matrix *w = args->weight;
    const uint16_t *from = (const uint16_t *)args->in + row * args->in_stride;
    size_t cols = w->cols;
    if (is_integers(w)) {
        memset((int8_t *)to + cols, 0, RP_ALIGN_UP(cols, 4) - cols);
        return rp_quantize_row(from, RP_DTYPE_BF16, cols, RP_DTYPE_INT8, to);
    }
    float *values = to, scale = 1.0f;
    if (w->input == RP_INPUT_QUANTIZED) {
        /* Quantized values are placed at the end of the row and widened in place from its
         * beginning. */
        uint8_t *quantized = (uint8_t *)to + cols * 3;
        scale = rp_quantize_row(from, RP_DTYPE_BF16, cols, RP_DTYPE_FP8_E4M3, quantized);
        for (size_t i = 0; i < cols; i++) {
            uint8_t code = quantized[i];
            values[i] = rp_fp8_to_f32(code);
        }
    } else {
        for (size_t i = 0; i < cols; i++)
            values[i] = rp_bf16_to_f32(from[i]);
    }
    for (size_t i = cols; i < RP_ALIGN_UP(cols, 4); i++)
        values[i] = 0.0f;
    return scale;
}

/* --- the reference ------------------------------------------------------------------------- */

static float sum_of(const struct rp_matrix *w, size_t n, size_t begin, size_t end, const float *x) {
    float sum = 0.0f;
    for (size_t k = begin; k < end; k++)
        sum += x[k] * rp_matrix_quantized(w, n, k);
    return sum;
}

static float output(const struct rp_matrix *w, size_t n, const void *x, float scale) {
    float total = 0.0f;
    if (is_integers(w)) {
        int32_t sum = 0;
        for (size_t k = 0; k < w->cols; k++)
            sum += ((const int8_t *)x)[k] * (int32_t)rp_matrix_quantized(w, n, k);
        return (float)sum * (scale * rp_matrix_scale(w, n, 0));
    }
    if (w->scale_kind != RP_SCALE_BLOCK_128)
        return sum_of(w, n, 0, w->cols, x) * (scale * rp_matrix_scale(w, n, 0));
    for (size_t k = 0; k < w->cols; k += 128)
        total += sum_of(w, n, k, RP_MIN(k + 128, (size_t)w->cols), x) * rp_matrix_scale(w, n, k);
    return total * scale;
}

void rp_matmul_finish(const struct rp_matmul_args *args, size_t row, size_t n, size_t count,
                      float *values) {
    size_t at = row * args->out_stride + n;
    for (size_t i = 0; args->bias && i < count; i++)
        values[i] += args->bias[n + i];
    for (size_t i = 0; i < count; i++) {
        if (args->out_dtype == RP_DTYPE_BF16)
            ((uint16_t *)args->out)[at + i] = rp_f32_to_bf16(values[i]);
        else if (args->accumulate)
            ((float *)args->out)[at + i] += values[i];
        else
            ((float *)args->out)[at + i] = values[i];
    }
}

void rp_matmul_finish_gated(const struct rp_matmul_args *args, enum rp_cpu_isa isa, size_t row,
                            size_t n, size_t half, size_t count, float *gates, float *ups) {
    size_t at = row * args->out_stride + n;
    for (size_t i = 0; args->bias && i < count; i++) {
        gates[i] += args->bias[n + i];
        ups[i] += args->bias[half + n + i];
    }
    rp_fast_ops_select(isa)->gate(args->fn, gates, ups, count,
                                  (unsigned char *)args->out + at * rp_dtype_bytes(args->out_dtype),
                                  args->out_dtype);
}

static void *scratch_of(const struct rp_matmul_args *args, const struct rp_cpu_worker *worker,
                        uint32_t m) {
    RP_ASSERT(args->scratch != NULL);
    RP_ASSERT_CMP(args->scratch_bytes, >=, rp_matmul_scratch_bytes(args->weight, m));
    RP_ASSERT(args->out_dtype == RP_DTYPE_F32 ||
              (args->out_dtype == RP_DTYPE_BF16 && !args->accumulate));
    RP_ASSERT(!args->gated || (!args->accumulate && rp_matmul_gates(args->weight)));
    return (unsigned char *)args->scratch + worker->index * args->scratch_bytes;
}

static void scalar_8_row(const struct rp_matmul_args *args, const void *x, float scale, size_t to,
                         size_t begin, size_t end) {
    const struct rp_matrix *w = args->weight;
    for (size_t n = begin; n < end; n++) {
        float value = output(w, n, x, scale);
        if (args->gated) {
            float up = output(w, w->rows / 2 + n, x, scale);
            rp_matmul_finish_gated(args, RP_ISA_SCALAR, to, n, w->rows / 2, 1, &value, &up);
        } else {
            rp_matmul_finish(args, to, n, 1, &value);
        }
    }
}

static void matmul_8_scalar(const struct rp_matmul_args *args, uint32_t m,
                            const struct rp_cpu_worker *worker) {
    size_t outputs = args->gated ? args->weight->rows / 2 : args->weight->rows, begin, end;
    void *x = scratch_of(args, worker, m);
    rp_cpu_share(worker, outputs, PANEL, &begin, &end);
    for (size_t row = 0; row < m && begin < end; row++)
        scalar_8_row(args, x, ready_row(args, row, x), row, begin, end);
}

/* --- the fast ones --------------------------------------------------------------------- */

#if RP_MATMUL_HAS_SIMD

#define SUMS (RP_TILE_8_PANELS * PANEL)

struct gemm {
    const struct rp_matmul_args *args;
    const struct rp_kernel_8 *kernel;
    size_t panel_bytes, quads;
    size_t half;         /* gated: panels of each half; else 0 */
    unsigned char *rows; /* prepared rows of the block */
    float *row_scales;
    size_t row_bytes;
    size_t ready;            /* the prepared block of rows; SIZE_MAX: none */
    const int32_t *out_rows; /* rp_expert_out_row */
};

/* Accumulators of a block of rows and panels. */
union sums {
    float f32[BLOCK_ROWS][SUMS];
    int32_t i32[BLOCK_ROWS][SUMS];
};

/* int8 + 128, where the kernel wants that. */
static void offset_row(const struct rp_kernel_8 *kernel, unsigned char *row, size_t bytes) {
    for (size_t i = 0; kernel->offset && i < bytes; i++)
        row[i] ^= 0x80u;
}

static void make_ready(struct gemm *gemm, size_t block, uint32_t m) {
    const struct rp_matmul_args *args = gemm->args;
    size_t begin = block * BLOCK_ROWS, end = RP_MIN(begin + BLOCK_ROWS, (size_t)m);
    if (gemm->ready == block)
        return;
    for (size_t row = begin; row < end; row++) {
        unsigned char *to = gemm->rows + (row - begin) * gemm->row_bytes;
        gemm->row_scales[row - begin] = ready_row(args, row, to);
        offset_row(gemm->kernel, to, gemm->quads * 4);
    }
    gemm->ready = block;
}

static void run_tiles(const struct gemm *gemm, size_t rows, size_t panel, uint32_t panels,
                      size_t begin, size_t end, bool fresh, union sums *sums) {
    const unsigned char *data = (const unsigned char *)gemm->args->weight->data;
    const struct rp_kernel_8 *kernel = gemm->kernel;
    size_t input_bytes = kernel->integers ? 4 : 16;
    for (size_t r = 0; r < rows; r += kernel->rows[panels]) {
        struct rp_tile_8 tile = {
            .weights = data + panel * gemm->panel_bytes + QUAD_BYTES + begin * QUAD_BYTES,
            .heads = (const void *)(data + panel * gemm->panel_bytes),
            .inputs = gemm->rows + r * gemm->row_bytes + begin * input_bytes,
            .sums = sums->f32[r],
            .panel_stride = (gemm->half ? gemm->half : 1) * gemm->panel_bytes,
            .row_bytes = gemm->row_bytes,
            .quads = end - begin,
            .begin = fresh,
        };
        kernel->tiles[RP_MIN(rows - r, (size_t)kernel->rows[panels]) - 1][panels - 1](&tile);
    }
}

/* First output of the tile's panel p. */
static size_t output_of(const struct gemm *gemm, size_t panel, uint32_t p) {
    return (panel + p * (gemm->half ? gemm->half : 1)) * PANEL;
}

/* A sum for each 128 columns, added up with their scales. */
static void sum_blocks(const struct gemm *gemm, size_t rows, size_t panel, uint32_t panels,
                       union sums *totals) {
    union sums sums;
    memset(totals, 0, rows * sizeof totals->f32[0]);
    for (size_t q = 0; q < gemm->quads; q += SCALE_QUADS) {
        run_tiles(gemm, rows, panel, panels, q, RP_MIN(q + SCALE_QUADS, gemm->quads), true, &sums);
        for (uint32_t p = 0; p < panels; p++) {
            float scale = rp_matrix_scale(gemm->args->weight, output_of(gemm, panel, p), q * 4);
            for (size_t r = 0; r < rows; r++)
                for (size_t i = p * PANEL; i < (p + 1) * PANEL; i++)
                    totals->f32[r][i] += sums.f32[r][i] * scale;
        }
    }
}

/* The sums of row r and panel p times their scales, into `values` (16). */
static void scale_sums(const struct gemm *gemm, const union sums *sums, size_t r, uint32_t p,
                       size_t n, size_t count, float *values) {
    const struct rp_matrix *w = gemm->args->weight;
    float xs = gemm->row_scales[r];
    const float *ws = w->scales + (w->scale_kind == RP_SCALE_CHANNEL ? n : 0);
    size_t step = w->scale_kind == RP_SCALE_CHANNEL ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        if (w->scale_kind == RP_SCALE_BLOCK_128)
            values[i] = sums->f32[r][p * PANEL + i] * xs;
        else if (gemm->kernel->integers)
            values[i] = (float)sums->i32[r][p * PANEL + i] * (xs * ws[i * step]);
        else
            values[i] = sums->f32[r][p * PANEL + i] * (xs * ws[i * step]);
    }
}

static void run_block(const struct gemm *gemm, size_t row, size_t rows, size_t panel,
                      uint32_t panels) {
    _Alignas(RP_CACHE_LINE) union sums sums;
    const struct rp_matmul_args *args = gemm->args;
    size_t quads = gemm->quads;
    rp_tsan_reads(gemm->rows, rows * gemm->row_bytes);
    /* Blocking k does not help with a single tile of rows. */
    size_t block = rows <= gemm->kernel->rows[panels] ? RP_MAX(quads, (size_t)1) : BLOCK_QUADS;
    if (args->weight->scale_kind == RP_SCALE_BLOCK_128)
        sum_blocks(gemm, rows, panel, panels, &sums);
    else
        for (size_t q = 0; q == 0 || q < quads; q += block)
            run_tiles(gemm, rows, panel, panels, q, RP_MIN(q + block, quads), q == 0, &sums);
    for (size_t r = 0; r < rows; r++) {
        size_t to = rp_expert_out_row(gemm->out_rows, row + r);
        float values[RP_TILE_8_PANELS][PANEL];
        for (uint32_t p = 0; p < panels; p++) {
            size_t n = output_of(gemm, panel, p);
            size_t count = RP_MIN(args->weight->rows - n, (size_t)PANEL);
            scale_sums(gemm, &sums, r, p, n, count, values[p]);
            if (!gemm->half)
                rp_matmul_finish(args, to, n, count, values[p]);
        }
        if (gemm->half)
            rp_matmul_finish_gated(args, gemm->kernel->isa, to, panel * PANEL, gemm->half * PANEL,
                                   PANEL, values[0], values[1]);
    }
}

/* scratch: of up to BLOCK_ROWS of the m rows. */
static struct gemm gemm_of(const struct rp_matmul_args *args, uint32_t m, void *scratch,
                           const struct rp_kernel_8 *kernel) {
    const struct rp_matrix *w = args->weight;
    return (struct gemm){.args = args,
                         .kernel = kernel,
                         .panel_bytes = rp_matrix_panel_bytes_8(w->cols),
                         .quads = RP_CEIL_DIV((size_t)w->cols, 4),
                         .half = args->gated ? w->rows / PANEL / 2 : 0,
                         .row_scales = scratch,
                         .rows = (unsigned char *)scratch + scale_bytes(m),
                         .row_bytes = row_bytes_of(w),
                         .ready = SIZE_MAX};
}

static void run(const struct rp_matmul_args *args, uint32_t m, const struct rp_cpu_worker *worker,
                const struct rp_kernel_8 *kernel) {
    const struct rp_matrix *w = args->weight;
    size_t panels = RP_CEIL_DIV((size_t)w->rows, PANEL), begin, end;
    if (m == 0 || panels == 0)
        return;
    struct gemm gemm = gemm_of(args, m, scratch_of(args, worker, m), kernel);
    uint32_t width = RP_TILE_8_PANELS;
    if (gemm.half)
        panels = gemm.half;
    else if (kernel->rows[width] < RP_MIN(m, RP_TILE_8_ROWS))
        width = 1;
    /* Items are (block of rows, `width` panels), gated: a panel of gates and one of ups. */
    uint32_t step = gemm.half ? 1 : width;
    size_t groups = RP_CEIL_DIV(panels, step), blocks = RP_CEIL_DIV((size_t)m, BLOCK_ROWS);
    size_t part =
        PART_BYTES / (width * gemm.panel_bytes * (1 + RP_MIN(m, BLOCK_ROWS) / PART_ROWS)) + 1;
    struct rp_cpu_parts parts;
    rp_cpu_parts_begin(&parts, worker, groups * blocks, 1,
                       RP_MAX(groups * blocks / worker->count / SHARE_PARTS + 1, part));
    while (rp_cpu_parts_next(&parts, &begin, &end))
        for (size_t item = begin; item < end; item++) {
            size_t block = item / groups, panel = item % groups * step;
            uint32_t count = gemm.half ? 2 : (uint32_t)RP_MIN(panels - panel, (size_t)width);
            make_ready(&gemm, block, m);
            run_block(&gemm, block * BLOCK_ROWS, RP_MIN(m - block * BLOCK_ROWS, BLOCK_ROWS), panel,
                      count);
        }
}

#define DEFINE_KERNEL(isa)                                                                         \
    static void matmul_8_##isa(const struct rp_matmul_args *args, uint32_t m,                      \
                               const struct rp_cpu_worker *worker) {                               \
        run(args, m, worker,                                                                       \
            rp_kernel_8_select(RP_ISA_##isa, args->weight->dtype, is_integers(args->weight)));     \
    }

DEFINE_KERNEL(AVX2)
DEFINE_KERNEL(AVX512)

static const struct rp_kernel_8 *kernel_of(enum rp_cpu_isa isa, const struct rp_matrix *w) {
    if (w->layout != RP_LAYOUT_PANEL_16 || isa == RP_ISA_SCALAR)
        return NULL;
    return rp_kernel_8_select(isa == RP_ISA_AVX2 ? RP_ISA_AVX2 : RP_ISA_AVX512, w->dtype,
                              is_integers(w));
}

#endif

/* --- experts ------------------------------------------------------------------------------- */

void rp_expert_prepare_8(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t row,
                         uint32_t at) {
    size_t row_bytes = row_bytes_of(&block->weight);
    unsigned char *to = block->scratch + scale_bytes(block->rows) + at * row_bytes;
    ((float *)(void *)block->scratch)[at] = ready_row(&block->args, row, to);
#if RP_MATMUL_HAS_SIMD
    const struct rp_kernel_8 *kernel = kernel_of(isa, &block->weight);
    if (kernel)
        offset_row(kernel, to, RP_ALIGN_UP((size_t)block->weight.cols, 4));
#else
    (void)isa;
#endif
}

void rp_expert_run_8(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                     size_t panels) {
#if RP_MATMUL_HAS_SIMD
    const struct rp_kernel_8 *kernel = kernel_of(isa, &block->weight);
    if (kernel) {
        struct gemm gemm = gemm_of(&block->args, block->rows, block->scratch, kernel);
        uint32_t step = gemm.half ? 1 : RP_TILE_8_PANELS;
        if (!gemm.half && kernel->rows[step] < RP_MIN(block->rows, RP_TILE_8_ROWS))
            step = 1;
        gemm.out_rows = block->out_rows;
        for (size_t at = panel; at < panel + panels; at += step)
            run_block(&gemm, 0, block->rows, at,
                      gemm.half ? 2 : (uint32_t)RP_MIN(panel + panels - at, (size_t)step));
        return;
    }
#else
    (void)isa;
#endif
    const float *scales = (const void *)block->scratch;
    for (size_t r = 0; r < block->rows; r++)
        scalar_8_row(&block->args,
                     block->scratch + scale_bytes(block->rows) + r * row_bytes_of(&block->weight),
                     scales[r], rp_expert_out_row(block->out_rows, r), panel * PANEL,
                     (panel + panels) * PANEL);
}

rp_matmul_fn rp_matmul_select_8(enum rp_cpu_isa isa, const struct rp_matrix *weight) {
    RP_ASSERT(weight->scale_kind != RP_SCALE_NONE && weight->scale_kind != RP_SCALE_GROUP_K);
#if RP_MATMUL_HAS_SIMD
    if (weight->layout == RP_LAYOUT_PANEL_16 && isa != RP_ISA_SCALAR)
        return isa == RP_ISA_AVX2 ? matmul_8_AVX2 : matmul_8_AVX512;
#else
    (void)isa;
#endif
    return matmul_8_scalar;
}
