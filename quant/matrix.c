#include "quant/matrix.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/memory.h"
#include "quant/matmul.h"

#include <string.h>

#define PANEL 16u

size_t rp_matrix_bytes(const struct rp_matrix *matrix) {
    size_t rows = matrix->rows, cols = matrix->cols, bytes;
    if (matrix->layout == RP_LAYOUT_PANEL_16) {
        rows = RP_ALIGN_UP(rows, PANEL);
        cols = matrix->dtype == RP_DTYPE_BF16 ? RP_ALIGN_UP(cols, 2) : cols;
    }
    if (rp_mul_overflow(rows, cols, &bytes) ||
        rp_mul_overflow(bytes, rp_dtype_bytes(matrix->dtype), &bytes))
        return 0;
    return bytes;
}

void rp_matrix_deinit(struct rp_matrix *matrix) {
    rp_free_aligned(matrix->data);
    memset(matrix, 0, sizeof *matrix);
}

/* Steps of k that are packed at a time: 16 KiB of the panel, which stay in the first-level cache while
 * 16 rows are strewn over them. */
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

int rp_matrix_prepare_cpu(struct rp_matrix *matrix, enum rp_cpu_isa isa, struct rp_error *err) {
    if (matrix->dtype != RP_DTYPE_F32 && matrix->dtype != RP_DTYPE_BF16)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "the CPU has products for f32 and bf16 only");
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
        for (uint32_t p = 0; p < panels; p++) {
            if (matrix->dtype == RP_DTYPE_BF16)
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

void rp_matrix_row_f32(const struct rp_matrix *matrix, uint32_t row, float *out) {
    RP_ASSERT_CMP(row, <, matrix->rows);
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
