#include "quant/matrix_cut.h"

#include "base/memory.h"

#include <string.h>

#define BLOCK 128u /* of RP_SCALE_BLOCK_128 */
#define ALIGN 64

/* Rows that a run has of the matrix itself. */
static uint32_t live_rows(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                          uint32_t run) {
    uint32_t from = RP_MIN(cut->runs[run].from, matrix->rows);
    return RP_MIN(cut->runs[run].rows, matrix->rows - from);
}

static bool splits(uint32_t begin, uint32_t end, uint32_t whole, uint32_t unit) {
    return begin % unit != 0 || (end % unit != 0 && end != whole);
}

const char *rp_matrix_cut_refusal(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut) {
    uint32_t unit = 1;
    if (matrix->input == RP_INPUT_BF16)
        return "4-bit weights are served by one device so far";
    for (uint32_t i = 0; i < matrix->part_count; i++)
        unit = RP_MAX(unit, rp_block_info(matrix->parts[i].type).values);
    if (splits(cut->col, cut->col + cut->cols, matrix->cols, unit) || cut->cols % unit != 0)
        return "a rank would have parts of blocks of the GGUF type";
    if (matrix->scale_kind == RP_SCALE_GROUP_K &&
        splits(cut->col, cut->col + cut->cols, matrix->cols, RP_MAX(matrix->scale_group, 1u)))
        return "a rank would have parts of groups of scales";
    if (matrix->scale_kind != RP_SCALE_BLOCK_128)
        return NULL;
    if (splits(cut->col, cut->col + cut->cols, matrix->cols, BLOCK))
        return "a rank would have parts of blocks of 128 columns with one scale";
    for (uint32_t i = 0; i < cut->run_count; i++) {
        uint32_t end = cut->runs[i].from + cut->runs[i].rows;
        bool last = i + 1 == cut->run_count; /* only the last one may end inside a block */
        if (cut->runs[i].from % BLOCK != 0 || (cut->runs[i].rows % BLOCK != 0 && !last) ||
            (cut->runs[i].rows % BLOCK != 0 && end < matrix->rows))
            return "a rank would have parts of blocks of 128 rows with one scale";
    }
    return NULL;
}

struct rp_matrix rp_matrix_cut_shape(const struct rp_matrix *matrix,
                                     const struct rp_matrix_cut *cut) {
    struct rp_matrix out = *matrix;
    out.data = NULL;
    out.scales = NULL;
    out.layout = RP_LAYOUT_ROW_MAJOR;
    out.rows = 0;
    out.cols = cut->cols;
    RP_ASSERT(matrix->part_count == 0 || matrix->part_count == cut->run_count);
    for (uint32_t i = 0; i < cut->run_count; i++) {
        if (matrix->part_count)
            out.parts[i] = (struct rp_matrix_part){
                .row_begin = out.rows, .rows = cut->runs[i].rows, .type = matrix->parts[i].type};
        out.rows += cut->runs[i].rows;
    }
    return out;
}

/* Copies `rows` rows of `bytes` each, at these distances from one to the next. */
static void copy_rows(void *to, size_t to_stride, const void *from, size_t from_stride, size_t rows,
                      size_t bytes) {
    if (to_stride == bytes && from_stride == bytes) {
        memcpy(to, from, rows * bytes);
        return;
    }
    for (size_t row = 0; row < rows; row++)
        memcpy((unsigned char *)to + row * to_stride,
               (const unsigned char *)from + row * from_stride, bytes);
}

static void copy_data(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                      struct rp_matrix *out) {
    size_t at = 0; /* row of out, of a matrix without parts */
    for (uint32_t i = 0; i < cut->run_count; i++) {
        bool blocks = matrix->dtype == RP_DTYPE_BLOCKS;
        uint32_t type = blocks ? matrix->parts[i].type : 0, size = rp_dtype_bytes(matrix->dtype);
        size_t from_row =
            blocks ? rp_blocks_row_bytes(type, matrix->cols) : (size_t)matrix->cols * size;
        size_t to_row = blocks ? rp_blocks_row_bytes(type, cut->cols) : (size_t)cut->cols * size;
        size_t skip = blocks ? rp_blocks_row_bytes(type, cut->col) : (size_t)cut->col * size;
        const unsigned char *from = matrix->data;
        unsigned char *to = out->data;
        if (blocks) {
            from += rp_matrix_part_offset(matrix, i) +
                    (cut->runs[i].from - matrix->parts[i].row_begin) * from_row;
            to += rp_matrix_part_offset(out, i);
        } else {
            from += cut->runs[i].from * from_row;
            to += at * to_row;
        }
        size_t rows = live_rows(matrix, cut, i);
        if (rows)
            copy_rows(to, to_row, from + skip, from_row, rows, to_row);
        memset(to + rows * to_row, 0, (cut->runs[i].rows - rows) * to_row);
        at += cut->runs[i].rows;
    }
}

/* Scales in a grid: one for `unit_rows` rows and `unit_cols` columns. */
static void copy_grid(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                      uint32_t unit_rows, uint32_t unit_cols, float *out) {
    size_t from_row = RP_CEIL_DIV((size_t)matrix->cols, unit_cols);
    size_t to_row = RP_CEIL_DIV((size_t)cut->cols, unit_cols);
    for (uint32_t i = 0; i < cut->run_count; i++) {
        size_t all = RP_CEIL_DIV(cut->runs[i].rows, unit_rows);
        size_t rows = RP_CEIL_DIV(live_rows(matrix, cut, i), unit_rows);
        if (rows)
            copy_rows(out, to_row * sizeof *out,
                      matrix->scales + cut->runs[i].from / unit_rows * from_row +
                          cut->col / unit_cols,
                      from_row * sizeof *out, rows, to_row * sizeof *out);
        for (size_t k = rows * to_row; k < all * to_row; k++)
            out[k] = 1.0f;
        out += all * to_row;
    }
}

static void copy_scales(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                        float *out) {
    switch (matrix->scale_kind) {
    case RP_SCALE_NONE:
        break;
    case RP_SCALE_TENSOR:
        out[0] = matrix->scales[0];
        break;
    case RP_SCALE_CHANNEL:
        copy_grid(matrix,
                  &(struct rp_matrix_cut){.runs = {cut->runs[0], cut->runs[1], cut->runs[2]},
                                          .run_count = cut->run_count,
                                          .cols = matrix->cols},
                  1, matrix->cols, out);
        break;
    case RP_SCALE_BLOCK_128:
        copy_grid(matrix, cut, BLOCK, BLOCK, out);
        break;
    case RP_SCALE_GROUP_K:
        copy_grid(matrix, cut, 1, RP_MAX(matrix->scale_group, 1u), out);
        break;
    }
}

int rp_matrix_cut(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                  struct rp_matrix *out) {
    size_t bytes = rp_matrix_bytes(out), scales = rp_matrix_scale_count(out);
    RP_ASSERT(matrix->data && matrix->layout == RP_LAYOUT_ROW_MAJOR && !out->data);
    out->data = bytes ? rp_alloc_aligned(bytes, ALIGN) : NULL;
    float *own = out->data && scales ? rp_alloc_aligned(scales * sizeof *own, ALIGN) : NULL;
    if (!out->data || (scales && !own)) {
        rp_free_aligned(out->data);
        out->data = NULL;
        return RP_STATUS_NO_MEMORY;
    }
    copy_data(matrix, cut, out);
    copy_scales(matrix, cut, own);
    out->scales = own;
    return RP_OK;
}
