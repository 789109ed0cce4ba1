#include "quant/matrix.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "quant/matmul.h"
#include "quant/tiles.h"

#include <string.h>

#define PANEL 16u

enum rp_dtype rp_matrix_input_dtype(const struct rp_matrix *matrix) {
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return matrix->input == RP_INPUT_PLAIN ? RP_DTYPE_F32 : RP_DTYPE_BF16;
    return rp_dtype_bytes(matrix->dtype) == 1 ? RP_DTYPE_BF16 : matrix->dtype;
}

static size_t part_bytes(const struct rp_matrix *matrix, const struct rp_matrix_part *part) {
    if (matrix->layout == RP_LAYOUT_TILES)
        return rp_tiles_part_bytes(part, matrix->cols);
    size_t rows =
        matrix->layout == RP_LAYOUT_PANEL_16 ? RP_ALIGN_UP((size_t)part->rows, PANEL) : part->rows;
    return rows * rp_blocks_row_bytes(part->type, matrix->cols); /* 2^20 x 2^18 values at most */
}

size_t rp_matrix_part_offset(const struct rp_matrix *matrix, uint32_t part) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < part; i++)
        bytes += part_bytes(matrix, &matrix->parts[i]);
    return bytes;
}

void rp_matrix_block(const struct rp_matrix *matrix, const struct rp_matrix_part *part, size_t row,
                     size_t block, unsigned char *out) {
    size_t row_bytes = rp_blocks_row_bytes(part->type, matrix->cols), in = row - part->row_begin;
    uint32_t bytes = rp_block_info(part->type).bytes;
    const unsigned char *data = (const unsigned char *)matrix->data +
                                rp_matrix_part_offset(matrix, (uint32_t)(part - matrix->parts));
    if (matrix->layout == RP_LAYOUT_PANEL_16)
        rp_blocks_unpack_row(part->type, data + in / PANEL * PANEL * row_bytes, block,
                             (uint32_t)(in % PANEL), out);
    else
        memcpy(out, data + in * row_bytes + block * bytes, bytes);
}

void rp_matrix_part_scale(const struct rp_matrix_part *part, float *scales, size_t count) {
    if (part->factor == 0.0f)
        return;
    for (size_t i = 0; i < count; i++)
        scales[i] = part->divides ? scales[i] / part->factor : scales[i] * part->factor;
}

void rp_matrix_block_f32(const struct rp_matrix *matrix, const struct rp_matrix_part *part,
                         size_t row, size_t block, float *out) {
    unsigned char bytes[RP_BLOCK_BYTES_MAX];
    rp_matrix_block(matrix, part, row, block, bytes);
    if (part->factor == 0.0f) {
        rp_blocks_to_f32(part->type, bytes, 1, out);
        return;
    }
    int8_t codes[RP_BLOCK_VALUES_MAX];
    float scale[16], minimum[16];
    uint32_t group = rp_blocks_split(part->type, bytes, codes, scale, minimum);
    uint32_t values = rp_block_info(part->type).values;
    rp_matrix_part_scale(part, scale, values / group);
    for (uint32_t k = 0; k < values; k++)
        out[k] = scale[k / group] * (float)codes[k];
}

size_t rp_matrix_bytes(const struct rp_matrix *matrix) {
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return rp_matrix_part_offset(matrix, matrix->part_count);
    size_t rows = matrix->rows, cols = matrix->cols, bytes;
    if (matrix->layout == RP_LAYOUT_PANEL_16) {
        rows = RP_ALIGN_UP(rows, PANEL);
        cols = matrix->dtype == RP_DTYPE_BF16       ? RP_ALIGN_UP(cols, 2)
               : rp_dtype_bytes(matrix->dtype) == 1 ? rp_matrix_panel_bytes_8(matrix->cols) / PANEL
                                                    : cols;
    }
    if (rp_mul_overflow(rows, cols, &bytes) ||
        rp_mul_overflow(bytes, rp_dtype_bytes(matrix->dtype), &bytes))
        return 0;
    return bytes;
}

size_t rp_matrix_scale_count(const struct rp_matrix *matrix) {
    switch (matrix->scale_kind) {
    case RP_SCALE_NONE:
        return 0;
    case RP_SCALE_TENSOR:
        return 1;
    case RP_SCALE_CHANNEL:
        return matrix->rows;
    case RP_SCALE_BLOCK_128:
        return RP_CEIL_DIV((size_t)matrix->rows, 128) * RP_CEIL_DIV((size_t)matrix->cols, 128);
    case RP_SCALE_GROUP_K:
        return matrix->rows * RP_CEIL_DIV((size_t)matrix->cols, RP_MAX(matrix->scale_group, 1u));
    }
    return 0;
}

struct rp_matrix rp_matrix_slice(const struct rp_matrix *matrix, uint32_t begin, uint32_t rows) {
    struct rp_matrix slice = *matrix, before = *matrix;
    bool panels = matrix->layout == RP_LAYOUT_PANEL_16;
    RP_ASSERT(matrix->dtype != RP_DTYPE_BLOCKS || matrix->part_count == 1);
    RP_ASSERT_CMP((uint64_t)begin + rows, <=, matrix->rows);
    RP_ASSERT(!panels || begin % PANEL == 0);
    RP_ASSERT(matrix->scale_kind != RP_SCALE_BLOCK_128 || begin % 128 == 0);
    before.rows = before.parts[0].rows = begin;
    slice.rows = slice.parts[0].rows = rows;
    if (matrix->data)
        slice.data = (unsigned char *)matrix->data + rp_matrix_bytes(&before);
    if (matrix->scales && matrix->scale_kind != RP_SCALE_TENSOR)
        slice.scales = matrix->scales + rp_matrix_scale_count(&before);
    return slice;
}

void rp_matrix_deinit(struct rp_matrix *matrix) {
    rp_free_aligned(matrix->data);
    rp_free_aligned((void *)(uintptr_t)matrix->scales);
    for (uint32_t i = 0; i < matrix->part_count; i++) {
        bool shared = false;
        for (uint32_t j = 0; j < i; j++)
            shared = shared || matrix->parts[j].columns == matrix->parts[i].columns;
        if (!shared)
            rp_free(matrix->parts[i].columns);
    }
    memset(matrix, 0, sizeof *matrix);
}

/* Steps of k that are packed at a time: 16 KiB of the panel, which stay in L1 while 16 rows are
 * scattered into them. */
#define PACK_STEPS 256u

/* Rows [16p, 16p + 16) of a row-major bf16 matrix, k in pairs. */
static void pack_panel_bf16(const struct rp_matrix *matrix, uint32_t panel, uint16_t *to) {
    size_t k = matrix->cols, pairs = RP_CEIL_DIV(k, 2), row = (size_t)panel * PANEL;
    const uint16_t *from = (const uint16_t *)matrix->data + row * k;
    size_t live = RP_MIN(matrix->rows - row, (size_t)PANEL);
    if (live < PANEL || k % 2 != 0)
        memset(to, 0, pairs * PANEL * 2 * sizeof *to);
    for (size_t begin = 0; begin < k; begin += 2 * PACK_STEPS) {
        size_t end = RP_MIN(begin + 2 * PACK_STEPS, k);
        for (size_t j = 0; j < live; j++) {
            const uint16_t *source = from + j * k;
            size_t i = begin;
            for (; i + 1 < end; i += 2)
                memcpy(&to[i * PANEL + j * 2], &source[i], 2 * sizeof *to);
            if (i < end)
                to[i * PANEL + j * 2] = source[i];
        }
    }
}

static void pack_panel_f32(const struct rp_matrix *matrix, uint32_t panel, float *to) {
    size_t k = matrix->cols, row = (size_t)panel * PANEL;
    const float *from = (const float *)matrix->data + row * k;
    size_t live = RP_MIN(matrix->rows - row, (size_t)PANEL);
    if (live < PANEL)
        memset(to, 0, k * PANEL * sizeof *to);
    for (size_t begin = 0; begin < k; begin += PACK_STEPS) {
        size_t end = RP_MIN(begin + PACK_STEPS, k);
        for (size_t j = 0; j < live; j++)
            for (size_t i = begin; i < end; i++)
                to[i * PANEL + j] = from[j * k + i];
    }
}

/* Rows [16p, 16p + 16) of a row-major matrix of 8 bits: -128 times the sums of INT8 rows, then k in
 * quads. */
static void pack_panel_8(const struct rp_matrix *matrix, uint32_t panel, unsigned char *to) {
    size_t k = matrix->cols, row = (size_t)panel * PANEL;
    const unsigned char *from = (const unsigned char *)matrix->data + row * k;
    size_t live = RP_MIN(matrix->rows - row, (size_t)PANEL);
    memset(to, 0, rp_matrix_panel_bytes_8(matrix->cols));
    for (size_t j = 0; matrix->dtype == RP_DTYPE_INT8 && j < live; j++) {
        int32_t sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += ((const int8_t *)from)[j * k + i];
        sum *= -128;
        memcpy(to + j * sizeof sum, &sum, sizeof sum);
    }
    to += PANEL * sizeof(int32_t);
    for (size_t begin = 0; begin < k; begin += 4 * PACK_STEPS) {
        size_t end = RP_MIN(begin + 4 * PACK_STEPS, k);
        for (size_t j = 0; j < live; j++)
            for (size_t i = begin; i < end; i += 4)
                memcpy(&to[i * PANEL + j * 4], &from[j * k + i], RP_MIN(end - i, (size_t)4));
    }
}

/* Limits of the 8-bit GEMMs; INT8 sums must stay below 2^31. */
static int check_8(const struct rp_matrix *matrix, struct rp_error *err) {
    bool channels = matrix->scale_kind == RP_SCALE_TENSOR || matrix->scale_kind == RP_SCALE_CHANNEL;
    if (!channels && (matrix->scale_kind != RP_SCALE_BLOCK_128 || matrix->dtype == RP_DTYPE_INT8))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "the CPU has no GEMM for %s with these scales; per tensor and per "
                            "channel work, for fp8 blocks of 128 x 128, too",
                            rp_dtype_name(matrix->dtype));
    if (matrix->cols > RP_INT8_COLS_MAX)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "8-bit matrices have at most %u columns, not %u", RP_INT8_COLS_MAX,
                            matrix->cols);
    return RP_OK;
}

static void pack_blocks(const struct rp_matrix *matrix, const struct rp_matrix *packed) {
    for (uint32_t i = 0; i < matrix->part_count; i++) {
        const struct rp_matrix_part *part = &matrix->parts[i];
        size_t row_bytes = rp_blocks_row_bytes(part->type, matrix->cols);
        const unsigned char *from =
            (const unsigned char *)matrix->data + rp_matrix_part_offset(matrix, i);
        unsigned char *to = (unsigned char *)packed->data + rp_matrix_part_offset(packed, i);
        for (size_t row = 0; row < part->rows; row += PANEL)
            rp_blocks_pack(part->type, from + row * row_bytes,
                           (uint32_t)RP_MIN(part->rows - row, (size_t)PANEL), row_bytes,
                           to + row * row_bytes);
    }
}

static int check_type(const struct rp_matrix *matrix, struct rp_error *err) {
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return RP_OK;
    if (matrix->dtype == RP_DTYPE_F32 || matrix->dtype == RP_DTYPE_BF16)
        return RP_OK;
    if (matrix->dtype == RP_DTYPE_INT8 || matrix->dtype == RP_DTYPE_FP8_E4M3)
        return check_8(matrix, err);
    return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                        "the CPU has GEMMs for f32, bf16, int8 and fp8 only");
}

/* q, k and v have one input and mostly one order of its columns: rows are then prepared once. */
static void share_columns(struct rp_matrix *matrix) {
    size_t bytes = matrix->cols * sizeof *matrix->parts[0].columns;
    for (uint32_t i = 1; i < matrix->part_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint32_t *one = matrix->parts[j].columns, *other = matrix->parts[i].columns;
            if (!one || !other || one == other || memcmp(one, other, bytes) != 0)
                continue;
            for (uint32_t k = i; k < matrix->part_count; k++)
                if (matrix->parts[k].columns == other)
                    matrix->parts[k].columns = one;
            rp_free(other);
        }
}

int rp_matrix_prepare_cpu(struct rp_matrix *matrix, enum rp_cpu_isa isa, struct rp_error *err) {
    int status = check_type(matrix, err);
    if (status != RP_OK)
        return status;
    share_columns(matrix);
    if (matrix->layout != RP_LAYOUT_ROW_MAJOR)
        return RP_OK;
    if (isa == RP_ISA_SCALAR)
        return RP_OK;
    struct rp_matrix packed = *matrix;
    packed.layout = RP_LAYOUT_PANEL_16;
    size_t bytes = rp_matrix_bytes(&packed);
    if (bytes == 0 && matrix->rows != 0 && matrix->cols != 0)
        return rp_error_set(err, RP_STATUS_OVERFLOW, "matrix of %u x %u is too large", matrix->rows,
                            matrix->cols);
    if (matrix->data) {
        packed.data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
        if (!packed.data)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory to repack a matrix of %u x %u",
                                matrix->rows, matrix->cols);
        uint32_t panels = RP_CEIL_DIV(matrix->rows, PANEL);
        if (matrix->dtype == RP_DTYPE_BLOCKS) {
            pack_blocks(matrix, &packed);
            panels = 0;
        }
        for (uint32_t p = 0; p < panels; p++) {
            if (rp_dtype_bytes(matrix->dtype) == 1)
                pack_panel_8(matrix, p,
                             (unsigned char *)packed.data +
                                 p * rp_matrix_panel_bytes_8(matrix->cols));
            else if (matrix->dtype == RP_DTYPE_BF16)
                pack_panel_bf16(matrix, p,
                                (uint16_t *)packed.data + p * RP_ALIGN_UP(matrix->cols, 2) * PANEL);
            else
                pack_panel_f32(matrix, p, (float *)packed.data + (size_t)p * matrix->cols * PANEL);
        }
        rp_free_aligned(matrix->data);
    }
    *matrix = packed;
    return RP_OK;
}

float rp_matrix_scale(const struct rp_matrix *matrix, size_t row, size_t col) {
    switch (matrix->scale_kind) {
    case RP_SCALE_NONE:
        return 1.0f;
    case RP_SCALE_TENSOR:
        return matrix->scales[0];
    case RP_SCALE_CHANNEL:
        return matrix->scales[row];
    case RP_SCALE_BLOCK_128:
        return matrix->scales[row / 128 * RP_CEIL_DIV((size_t)matrix->cols, 128) + col / 128];
    case RP_SCALE_GROUP_K:
        return matrix->scales[row * RP_CEIL_DIV(matrix->cols, matrix->scale_group) +
                              col / matrix->scale_group];
    }
    return 1.0f;
}

float rp_matrix_quantized(const struct rp_matrix *matrix, size_t row, size_t col) {
    size_t at = row * matrix->cols + col;
    if (matrix->layout == RP_LAYOUT_PANEL_16)
        at = row / PANEL * rp_matrix_panel_bytes_8(matrix->cols) + PANEL * sizeof(int32_t) +
             col / 4 * PANEL * 4 + row % PANEL * 4 + col % 4;
    return matrix->dtype == RP_DTYPE_INT8 ? (float)((const int8_t *)matrix->data)[at]
                                          : rp_fp8_to_f32(((const uint8_t *)matrix->data)[at]);
}

static void blocks_row(const struct rp_matrix *matrix, uint32_t row, float *out) {
    const struct rp_matrix_part *part = matrix->parts;
    while (row >= part->row_begin + part->rows)
        part++;
    struct rp_block_info info = rp_block_info(part->type);
    for (size_t k = 0; k < matrix->cols; k += info.values) {
        float values[RP_BLOCK_VALUES_MAX];
        size_t count = RP_MIN(matrix->cols - k, (size_t)info.values);
        rp_matrix_block_f32(matrix, part, row, k / info.values, values);
        for (size_t i = 0; i < count; i++)
            out[part->columns ? part->columns[k + i] : k + i] = values[i];
    }
}

void rp_matrix_row_f32(const struct rp_matrix *matrix, uint32_t row, float *out) {
    RP_ASSERT_CMP(row, <, matrix->rows);
    if (matrix->dtype == RP_DTYPE_BLOCKS) {
        blocks_row(matrix, row, out);
        return;
    }
    if (rp_dtype_bytes(matrix->dtype) == 1) {
        for (size_t i = 0; i < matrix->cols; i++)
            out[i] = rp_matrix_quantized(matrix, row, i) * rp_matrix_scale(matrix, row, i);
        return;
    }
    RP_ASSERT(matrix->dtype == RP_DTYPE_F32 || matrix->dtype == RP_DTYPE_BF16);
    size_t k = matrix->cols, panel = row / PANEL, j = row % PANEL;
    const uint16_t *half = matrix->data;
    const float *full = matrix->data;
    if (matrix->layout == RP_LAYOUT_ROW_MAJOR) {
        for (size_t i = 0; i < k; i++)
            out[i] = matrix->dtype == RP_DTYPE_F32 ? full[row * k + i]
                                                   : rp_bf16_to_f32(half[row * k + i]);
    } else if (matrix->dtype == RP_DTYPE_F32) {
        for (size_t i = 0; i < k; i++)
            out[i] = full[(panel * k + i) * PANEL + j];
    } else {
        half += panel * RP_ALIGN_UP(k, 2) * PANEL + j * 2;
        for (size_t i = 0; i < k; i++)
            out[i] = rp_bf16_to_f32(half[i / 2 * PANEL * 2 + i % 2]);
    }
}
