/* matmul_cpu_blocks.c - GEMMs on blocks, GGUF's and of 4-bit weights: the reference, and the
 * blocking of the fast ones.
 *
 * A panel's columns are decoded a chunk at a time into buffers that stay in L1, and multiplied with
 * all rows of the block; the tiles know no types. Each worker prepares the input rows that it
 * needs, as in matmul_cpu_8.c. All levels give the same bits (quant/matrix.h has the order). */
#include "base/bf16.h"
#include "base/tsan.h"
#include "device/quantize_row.h"
#include "quant/blocks_decode.h"
#include "quant/cpu/matmul_internal.h"

#include <math.h>
#include <string.h>

#define PANEL      16u
#define BLOCK_ROWS 96u
/* As in matmul_cpu_8.c. */
#define PART_BYTES (512u << 10)
#define PART_ROWS  8u
/* Measured: 2 KiB to 16 KiB differ by a fifth. */
#define PREFETCH_BYTES 8192u
#define SHARE_PARTS    16u

/* Fields of a prepared row, as offsets: f32 values, in each part's order of columns; 8 bits with
 * their scales and sums. */
struct row_layout {
    size_t values[RP_MATRIX_PARTS_MAX]; /* of the parts; equal where parts share their columns */
    size_t quantized, scales, sums, bytes;
};

static bool is_quantized(const struct rp_matrix *w) { return w->input == RP_INPUT_QUANTIZED; }

static bool has_plain_part(const struct rp_matrix *w) {
    for (uint32_t i = 0; i < w->part_count; i++)
        if (rp_block_is_plain(w->parts[i].type))
            return true;
    return false;
}

/* The first part whose columns have the order of this one. */
static uint32_t first_like(const struct rp_matrix *w, uint32_t part) {
    uint32_t first = 0;
    while (w->parts[first].columns != w->parts[part].columns)
        first++;
    return first;
}

/* Rows of f32 are read where they are. */
static struct row_layout layout_of(const struct rp_matrix *w) {
    struct row_layout layout = {0};
    size_t cols = RP_ALIGN_UP((size_t)w->cols, 32);
    if (w->input == RP_INPUT_PLAIN)
        return layout;
    if (w->input == RP_INPUT_BF16) {
        for (uint32_t i = 0; i < w->part_count; i++) {
            uint32_t first = first_like(w, i);
            layout.values[i] = first < i ? layout.values[first] : layout.bytes;
            layout.bytes += first < i ? 0 : cols * sizeof(float);
        }
        return layout; /* 32 columns of f32 are two cache lines */
    }
    layout.quantized = has_plain_part(w) ? cols * sizeof(float) : 0;
    layout.scales = layout.quantized + cols;
    layout.sums = layout.scales + cols / 32 * sizeof(float);
    layout.bytes = RP_ALIGN_UP(layout.sums + cols / 16 * sizeof(int32_t), RP_CACHE_LINE);
    return layout;
}

size_t rp_matmul_scratch_blocks(const struct rp_matrix *weight, uint32_t m) {
    return RP_MIN(RP_MAX(m, 1u), BLOCK_ROWS) * layout_of(weight).bytes;
}

static void widen_row(const struct rp_matrix *w, const struct row_layout *layout,
                      const uint16_t *from, unsigned char *to) {
    for (uint32_t part = 0; part < w->part_count; part++) {
        float *values = (float *)(void *)(to + layout->values[part]);
        const uint32_t *columns = w->parts[part].columns;
        if (first_like(w, part) < part)
            continue;
        for (size_t i = 0; i < w->cols; i++)
            values[i] = rp_bf16_to_f32(from[columns ? columns[i] : i]);
    }
}

static void ready_row(const struct rp_matmul_args *args, const struct row_layout *layout,
                      size_t row, unsigned char *to) {
    const uint16_t *from = (const uint16_t *)args->in + row * args->in_stride;
    size_t cols = args->weight->cols;
    if (!is_quantized(args->weight)) {
        widen_row(args->weight, layout, from, to);
        return;
    }
    if (layout->quantized)
        for (size_t i = 0; i < cols; i++)
            ((float *)(void *)to)[i] = rp_bf16_to_f32(from[i]);
    int8_t *quantized = (int8_t *)to + layout->quantized;
    float *scales = (float *)(void *)(to + layout->scales);
    int32_t *sums = (int32_t *)(void *)(to + layout->sums);
    for (size_t k = 0; k + 32 <= cols; k += 32) {
        scales[k / 32] = rp_quantize_row(from + k, RP_DTYPE_BF16, 32, RP_DTYPE_INT8, quantized + k);
        for (size_t half = k; half < k + 32; half += 16) {
            int32_t sum = 0;
            for (size_t i = half; i < half + 16; i++)
                sum += quantized[i];
            sums[half / 16] = sum;
        }
    }
}

static unsigned char *scratch_of(const struct rp_matmul_args *args,
                                 const struct rp_cpu_worker *worker, uint32_t m) {
    RP_ASSERT(args->scratch != NULL || args->weight->input == RP_INPUT_PLAIN);
    RP_ASSERT_CMP(args->scratch_bytes, >=, rp_matmul_scratch_blocks(args->weight, m));
    RP_ASSERT(args->out_dtype == RP_DTYPE_F32 ||
              (args->out_dtype == RP_DTYPE_BF16 && !args->accumulate));
    RP_ASSERT(!args->gated || (!args->accumulate && rp_matmul_gates(args->weight)));
    return args->scratch ? (unsigned char *)args->scratch + worker->index * args->scratch_bytes
                         : NULL;
}

/* --- the reference ------------------------------------------------------------------------- */

static float integers_of(uint32_t type, const unsigned char *block, size_t k,
                         const struct row_layout *layout, const unsigned char *x, float total) {
    int8_t codes[RP_BLOCK_VALUES_MAX];
    float scale[16], minimum[16];
    const int8_t *quantized = (const int8_t *)x + layout->quantized;
    const float *scales = (const float *)(const void *)(x + layout->scales);
    uint32_t group = rp_blocks_split(type, block, codes, scale, minimum);
    for (uint32_t g = 0; g < rp_block_info(type).values / group; g++) {
        int32_t sum = 0, inputs = 0;
        size_t first = k + g * group;
        for (uint32_t i = 0; i < group; i++) {
            sum += codes[g * group + i] * quantized[first + i];
            inputs += quantized[first + i];
        }
        float xs = scales[first / 32];
        total = fmaf(scale[g], (float)sum * xs, total);
        if (rp_block_has_min(type))
            total = fmaf(-minimum[g], xs * (float)inputs, total);
    }
    return total;
}

static float output(const struct rp_matmul_args *args, const struct row_layout *layout, size_t row,
                    const unsigned char *x, size_t n) {
    const struct rp_matrix *w = args->weight;
    const struct rp_matrix_part *part = w->parts;
    while (n >= part->row_begin + part->rows)
        part++;
    struct rp_block_info info = rp_block_info(part->type);
    bool integers = is_quantized(w) && info.values > 1;
    const float *values = (const float *)(const void *)(x + layout->values[part - w->parts]);
    if (w->input == RP_INPUT_PLAIN)
        values = (const float *)args->in + row * args->in_stride;
    float total = 0.0f;
    for (size_t k = 0; k < w->cols; k += info.values) {
        unsigned char block[RP_BLOCK_BYTES_MAX];
        float weights[RP_BLOCK_VALUES_MAX];
        if (integers) {
            rp_matrix_block(w, part, n, k / info.values, block);
            total = integers_of(part->type, block, k, layout, x, total);
            continue;
        }
        size_t count = RP_MIN(w->cols - k, (size_t)info.values);
        rp_matrix_block_f32(w, part, n, k / info.values, weights);
        for (size_t i = 0; i < count; i++)
            total = fmaf(weights[i], values[k + i], total);
    }
    return total;
}

/* Outputs [begin, end) of a row, or of their gates, to row `to`. x: the row, prepared. */
static void scalar_blocks_row(const struct rp_matmul_args *args, const struct row_layout *layout,
                              size_t row, const unsigned char *x, size_t to, size_t begin,
                              size_t end) {
    size_t half = args->weight->rows / 2;
    for (size_t n = begin; n < end; n++) {
        float value = output(args, layout, row, x, n);
        if (args->gated) {
            float up = output(args, layout, row, x, half + n);
            rp_matmul_finish_gated(args, RP_ISA_SCALAR, to, n, half, 1, &value, &up);
        } else {
            rp_matmul_finish(args, to, n, 1, &value);
        }
    }
}

static void matmul_blocks_scalar(const struct rp_matmul_args *args, uint32_t m,
                                 const struct rp_cpu_worker *worker) {
    size_t outputs = args->gated ? args->weight->rows / 2 : args->weight->rows, begin, end;
    struct row_layout layout = layout_of(args->weight);
    unsigned char *x = scratch_of(args, worker, m);
    rp_cpu_share(worker, outputs, PANEL, &begin, &end);
    for (size_t row = 0; row < m && begin < end; row++) {
        if (layout.bytes)
            ready_row(args, &layout, row, x);
        scalar_blocks_row(args, &layout, row, x, row, begin, end);
    }
}

/* --- the fast ones --------------------------------------------------------------------- */

#if RP_MATMUL_HAS_SIMD

struct product {
    const struct rp_matmul_args *args;
    const struct rp_kernel_blocks *kernel;
    struct row_layout layout;
    unsigned char *rows;     /* prepared rows of the block */
    size_t ready;            /* the prepared block of rows; SIZE_MAX: none */
    const int32_t *out_rows; /* rp_expert_out_row */
};

/* Buffers of one chunk of a panel. */
struct chunk {
    _Alignas(64) int8_t codes[RP_CHUNK_COLS * PANEL];
    _Alignas(64) float scale[RP_CHUNK_COLS / 16 * PANEL];
    _Alignas(64) float minimum[RP_CHUNK_COLS / 16 * PANEL];
    _Alignas(64) float w[RP_CHUNK_COLS * PANEL];
};

/* A panel of 16 outputs. */
struct panel {
    const struct rp_matrix_part *part;
    size_t values;   /* offset of its inputs in a prepared row */
    size_t n, count; /* first output, outputs that exist */
    const unsigned char *data;
};

static size_t panels_of(const struct rp_matrix *w) {
    size_t panels = 0;
    for (uint32_t i = 0; i < w->part_count; i++)
        panels += RP_CEIL_DIV((size_t)w->parts[i].rows, PANEL);
    return panels;
}

static struct panel panel_at(const struct product *product, size_t index) {
    const struct rp_matrix *w = product->args->weight;
    uint32_t i = 0;
    while (index >= RP_CEIL_DIV((size_t)w->parts[i].rows, PANEL))
        index -= RP_CEIL_DIV((size_t)w->parts[i++].rows, PANEL);
    const struct rp_matrix_part *part = &w->parts[i];
    return (struct panel){part, product->layout.values[i], part->row_begin + index * PANEL,
                          RP_MIN(part->rows - index * PANEL, (size_t)PANEL),
                          (const unsigned char *)w->data + rp_matrix_part_offset(w, i) +
                              index * PANEL * rp_blocks_row_bytes(part->type, w->cols)};
}

static void make_ready(struct product *product, size_t block, uint32_t m) {
    size_t begin = block * BLOCK_ROWS, end = RP_MIN(begin + BLOCK_ROWS, (size_t)m);
    if (product->ready == block || !product->layout.bytes)
        return;
    for (size_t row = begin; row < end; row++)
        ready_row(product->args, &product->layout, row,
                  product->rows + (row - begin) * product->layout.bytes);
    product->ready = block;
}

/* Tiles of 8, 4, 2 and 1 rows over one chunk, whose tile is that of the block's first row. */
static void run_tiles(const rp_tile_blocks_fn tiles[4], struct rp_tile_blocks tile, size_t rows) {
    for (int i = 3; i >= 0; i--)
        for (; tiles[i] && rows >= (size_t)1 << i; rows -= (size_t)1 << i) {
            size_t step = tile.row_bytes << i;
            tiles[i](&tile);
            tile.totals += PANEL << i;
            tile.x = (const float *)(const void *)((const unsigned char *)tile.x + step);
            tile.quantized += step;
            tile.input_scales =
                (const float *)(const void *)((const unsigned char *)tile.input_scales + step);
            tile.input_sums =
                (const int32_t *)(const void *)((const unsigned char *)tile.input_sums + step);
        }
}

/* The processor fetches too little by itself: the fields of a block are read side by side. May go
 * past the matrix, which is harmless. */
static void prefetch(const unsigned char *from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += RP_CACHE_LINE)
        __builtin_prefetch(from + line);
}

/* The chunk's columns from the panel's block `from` on, as what the tiles read. */
static void decode_chunk(const struct product *product, const struct panel *panel,
                         const unsigned char *from, uint32_t count, struct chunk *chunk) {
    const struct rp_kernel_blocks *kernel = product->kernel;
    uint32_t type = panel->part->type, group = rp_block_group(type);
    struct rp_block_info info = rp_block_info(type);
    if (info.values == 1) {
        kernel->widen(type, from, count, chunk->w);
        return;
    }
    for (uint32_t at = 0; at < count; at += info.values)
        kernel->decode(type, from + at / info.values * info.bytes * PANEL,
                       chunk->codes + at * PANEL, chunk->scale + at / group * PANEL,
                       chunk->minimum + at / group * PANEL);
    if (is_quantized(product->args->weight))
        return;
    rp_matrix_part_scale(panel->part, chunk->scale, RP_CEIL_DIV(count, group) * PANEL);
    kernel->expand(chunk->codes, chunk->scale, rp_block_has_min(type) ? chunk->minimum : NULL,
                   group, count, chunk->w);
}

/* totals (rows, 16) of rows [row, row + rows) and one panel. */
static void run_panel(const struct product *product, const struct panel *panel, size_t row,
                      size_t rows, float *totals) {
    struct chunk chunk;
    const struct rp_matmul_args *args = product->args;
    const struct rp_kernel_blocks *kernel = product->kernel;
    const struct row_layout *layout = &product->layout;
    struct rp_block_info info = rp_block_info(panel->part->type);
    size_t cols = args->weight->cols;
    bool quantized = is_quantized(args->weight);
    uint32_t group = rp_block_group(panel->part->type);
    const float *minimum = rp_block_has_min(panel->part->type) ? chunk.minimum : NULL;
    bool in_place = args->weight->input == RP_INPUT_PLAIN;
    const float *inputs = in_place ? (const float *)args->in + row * args->in_stride
                                   : (const float *)(const void *)(product->rows + panel->values);
    rp_few_blocks_fn few =
        quantized && kernel->few ? rp_kernel_blocks_few(panel->part->type, rows) : NULL;
    memset(totals, 0, rows * PANEL * sizeof *totals);
    for (size_t k = 0; k < cols; k += RP_CHUNK_COLS) {
        uint32_t count = (uint32_t)RP_MIN(cols - k, (size_t)RP_CHUNK_COLS);
        const unsigned char *from = panel->data + k / info.values * info.bytes * PANEL;
        struct rp_tile_blocks tile = {.totals = totals,
                                      .w = chunk.w,
                                      .x = inputs + k,
                                      .row_bytes = in_place ? args->in_stride * sizeof(float)
                                                            : layout->bytes,
                                      .cols = count,
                                      .codes = chunk.codes,
                                      .scale = chunk.scale,
                                      .minimum = minimum,
                                      .group = group};
        if (quantized) {
            tile.quantized = (const int8_t *)product->rows + layout->quantized + k;
            tile.input_scales =
                (const float *)(const void *)(product->rows + layout->scales) + k / 32;
            tile.input_sums =
                (const int32_t *)(const void *)(product->rows + layout->sums) + k / 16;
        } else {
            tile.quantized = (const int8_t *)tile.x; /* unused, as the next; advanced with rows */
            tile.input_scales = tile.x;
            tile.input_sums = (const int32_t *)(const void *)tile.x;
        }
        prefetch(from + PREFETCH_BYTES, RP_CHUNK_COLS / info.values * info.bytes * PANEL);
        if (few) {
            few(from, &tile);
            continue;
        }
        decode_chunk(product, panel, from, count, &chunk);
        run_tiles(info.values == 1 || !quantized ? kernel->floats : kernel->integers, tile, rows);
    }
}

static void run_item(const struct product *product, size_t row, size_t rows, size_t index,
                     size_t half) {
    _Alignas(RP_CACHE_LINE) float totals[2][BLOCK_ROWS * PANEL];
    const struct rp_matmul_args *args = product->args;
    struct panel panel = panel_at(product, index);
    rp_tsan_reads(product->rows, rows * product->layout.bytes);
    run_panel(product, &panel, row, rows, totals[0]);
    if (half) {
        struct panel up = panel_at(product, index + half);
        run_panel(product, &up, row, rows, totals[1]);
    }
    for (size_t r = 0; r < rows; r++) {
        size_t to = rp_expert_out_row(product->out_rows, row + r);
        if (half)
            rp_matmul_finish_gated(args, product->kernel->isa, to, panel.n, half * PANEL, PANEL,
                                   &totals[0][r * PANEL], &totals[1][r * PANEL]);
        else
            rp_matmul_finish(args, to, panel.n, panel.count, &totals[0][r * PANEL]);
    }
}

static void run(const struct rp_matmul_args *args, uint32_t m, const struct rp_cpu_worker *worker,
                const struct rp_kernel_blocks *kernel) {
    size_t panels = panels_of(args->weight), begin, end;
    if (m == 0 || panels == 0)
        return;
    for (size_t row = 0; row < m && args->weight->input == RP_INPUT_PLAIN; row++)
        rp_tsan_reads((const float *)args->in + row * args->in_stride,
                      args->weight->cols * sizeof(float));
    struct product product = {.args = args,
                              .kernel = kernel,
                              .layout = layout_of(args->weight),
                              .rows = scratch_of(args, worker, m),
                              .ready = SIZE_MAX};
    size_t bytes = rp_matrix_bytes(args->weight) / panels;
    size_t half = args->gated ? panels / 2 : 0;
    if (half) {
        panels = half;
        bytes *= 2;
    }
    /* Items are (block of rows, panel), gated: a panel of gates and one of ups. */
    size_t blocks = RP_CEIL_DIV((size_t)m, BLOCK_ROWS), items = panels * blocks;
    size_t part = PART_BYTES / (bytes * (1 + RP_MIN(m, BLOCK_ROWS) / PART_ROWS) + 1) + 1;
    struct rp_cpu_parts parts;
    rp_cpu_parts_begin(&parts, worker, items, 1,
                       RP_MAX(items / worker->count / SHARE_PARTS + 1, part));
    while (rp_cpu_parts_next(&parts, &begin, &end))
        for (size_t item = begin; item < end; item++) {
            size_t block = item / panels, row = block * BLOCK_ROWS;
            make_ready(&product, block, m);
            run_item(&product, row, RP_MIN(m - row, (size_t)BLOCK_ROWS), item % panels, half);
        }
}

#define DEFINE_KERNEL(isa)                                                                         \
    static void matmul_blocks_##isa(const struct rp_matmul_args *args, uint32_t m,                 \
                                    const struct rp_cpu_worker *worker) {                          \
        run(args, m, worker, rp_kernel_blocks_select(RP_ISA_##isa));                               \
    }

DEFINE_KERNEL(AVX2)
DEFINE_KERNEL(AVX512)

#endif

/* --- experts ------------------------------------------------------------------------------- */

void rp_expert_prepare_blocks(const struct rp_expert_block *block, size_t row, uint32_t at) {
    struct row_layout layout = layout_of(&block->weight);
    ready_row(&block->args, &layout, row, block->scratch + at * layout.bytes);
}

void rp_expert_run_blocks(enum rp_cpu_isa isa, const struct rp_expert_block *block, size_t panel,
                          size_t panels) {
    struct row_layout layout = layout_of(&block->weight);
#if RP_MATMUL_HAS_SIMD
    if (isa != RP_ISA_SCALAR && block->weight.layout == RP_LAYOUT_PANEL_16) {
        size_t half = block->args.gated ? block->weight.rows / PANEL / 2 : 0;
        struct product product = {
            .args = &block->args,
            .kernel = rp_kernel_blocks_select(isa == RP_ISA_AVX2 ? RP_ISA_AVX2 : RP_ISA_AVX512),
            .layout = layout,
            .rows = block->scratch,
            .out_rows = block->out_rows};
        for (size_t at = panel; at < panel + panels; at++)
            run_item(&product, 0, block->rows, at, half);
        return;
    }
#else
    (void)isa;
#endif
    for (size_t r = 0; r < block->rows; r++)
        scalar_blocks_row(&block->args, &layout, r, block->scratch + r * layout.bytes,
                          rp_expert_out_row(block->out_rows, r), panel * PANEL,
                          (panel + panels) * PANEL);
}

rp_matmul_fn rp_matmul_select_blocks(enum rp_cpu_isa isa, const struct rp_matrix *weight) {
#if RP_MATMUL_HAS_SIMD
    if (weight->layout == RP_LAYOUT_PANEL_16 && isa != RP_ISA_SCALAR)
        return isa == RP_ISA_AVX2 ? matmul_blocks_AVX2 : matmul_blocks_AVX512;
#else
    (void)isa;
    (void)weight;
#endif
    return matmul_blocks_scalar;
}
