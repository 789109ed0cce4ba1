#include "quant/matrix_cut.h"

#include "base/memory.h"

#include <string.h>

#define BLOCK 128u /* of RP_SCALE_BLOCK_128 */
#define ALIGN 64

static uint32_t sections_of(const struct rp_matrix_cut *cut) { return RP_MAX(cut->sections, 1u); }

static uint32_t section_rows(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut) {
    return matrix->rows / sections_of(cut);
}

/* Rows that a run has of its section of the matrix. */
static uint32_t live_rows(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                          uint32_t run) {
    uint32_t rows = section_rows(matrix, cut), from = RP_MIN(cut->runs[run].from, rows);
    return RP_MIN(cut->runs[run].rows, rows - from);
}

static bool splits(uint32_t begin, uint32_t end, uint32_t whole, uint32_t unit) {
    return begin % unit != 0 || (end % unit != 0 && end != whole);
}

const char *rp_matrix_cut_refusal(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut) {
    uint32_t unit = 1;
    if (cut->sections > 1 && matrix->part_count)
        return "experts in blocks are not divided yet";
    for (uint32_t i = 0; i < matrix->part_count; i++)
        unit = RP_MAX(unit, rp_block_info(matrix->parts[i].type).values);
    if (splits(cut->col, cut->col + cut->cols, matrix->cols, unit))
        return "a rank would have parts of blocks of weights that share scales";
    if (matrix->scale_kind == RP_SCALE_GROUP_K &&
        splits(cut->col, cut->col + cut->cols, matrix->cols, RP_MAX(matrix->scale_group, 1u)))
        return "a rank would have parts of groups of scales";
    if (matrix->scale_kind != RP_SCALE_BLOCK_128)
        return NULL;
    if (splits(cut->col, cut->col + cut->cols, matrix->cols, BLOCK))
        return "a rank would have parts of blocks of 128 columns with one scale";
    if (cut->sections > 1 && section_rows(matrix, cut) % BLOCK != 0)
        return "an expert has parts of blocks of 128 rows with one scale";
    for (uint32_t i = 0; i < cut->run_count; i++) {
        uint32_t end = cut->runs[i].from + cut->runs[i].rows;
        /* Only the last one may end inside a block. */
        bool last = cut->sections <= 1 && i + 1 == cut->run_count;
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
    RP_ASSERT(matrix->part_count <= 1 || matrix->part_count == cut->run_count);
    for (uint32_t i = 0; i < cut->run_count; i++) {
        if (matrix->part_count > 1)
            out.parts[i] = (struct rp_matrix_part){
                .row_begin = out.rows, .rows = cut->runs[i].rows, .type = matrix->parts[i].type};
        out.rows += cut->runs[i].rows;
    }
    if (matrix->part_count == 1)
        out.parts[0] = (struct rp_matrix_part){.rows = out.rows, .type = matrix->parts[0].type};
    RP_ASSERT(cut->sections <= 1 || matrix->part_count == 0);
    out.rows *= sections_of(cut);
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

/* The part that a run of a matrix of blocks lies in: each has its own, or there is one part. */
static uint32_t part_of(const struct rp_matrix *matrix, uint32_t run) {
    return matrix->part_count == 1 ? 0 : run;
}

static unsigned char *copy_blocks(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                                  uint32_t run, unsigned char *to) {
    const struct rp_matrix_part *part = &matrix->parts[part_of(matrix, run)];
    size_t from_row = rp_blocks_row_bytes(part->type, matrix->cols);
    size_t to_row = rp_blocks_row_bytes(part->type, cut->cols), rows = live_rows(matrix, cut, run);
    const unsigned char *from = (const unsigned char *)matrix->data +
                                rp_matrix_part_offset(matrix, part_of(matrix, run)) +
                                rp_blocks_row_bytes(part->type, cut->col);
    if (rows)
        copy_rows(to, to_row, from + (cut->runs[run].from - part->row_begin) * from_row, from_row,
                  rows, to_row);
    memset(to + rows * to_row, 0, (cut->runs[run].rows - rows) * to_row);
    return to + cut->runs[run].rows * to_row;
}

static void copy_data(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                      struct rp_matrix *out) {
    size_t size = rp_dtype_bytes(matrix->dtype), from_row = matrix->cols * size;
    size_t to_row = cut->cols * size;
    unsigned char *to = out->data;
    for (uint32_t i = 0; i < cut->run_count && matrix->dtype == RP_DTYPE_BLOCKS; i++)
        to = copy_blocks(matrix, cut, i, to);
    if (matrix->dtype == RP_DTYPE_BLOCKS)
        return;
    for (uint32_t s = 0; s < sections_of(cut); s++)
        for (uint32_t i = 0; i < cut->run_count; i++) {
            size_t first = (size_t)s * section_rows(matrix, cut) + cut->runs[i].from;
            size_t rows = live_rows(matrix, cut, i);
            if (rows)
                copy_rows(to, to_row,
                          (const unsigned char *)matrix->data + first * from_row + cut->col * size,
                          from_row, rows, to_row);
            memset(to + rows * to_row, 0, (cut->runs[i].rows - rows) * to_row);
            to += cut->runs[i].rows * to_row;
        }
}

/* Scales in a grid: one for `unit_rows` rows and `unit_cols` columns. */
static void copy_grid(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                      uint32_t unit_rows, uint32_t unit_cols, float *out) {
    size_t from_row = RP_CEIL_DIV((size_t)matrix->cols, unit_cols);
    size_t to_row = RP_CEIL_DIV((size_t)cut->cols, unit_cols);
    for (uint32_t s = 0; s < sections_of(cut); s++)
        for (uint32_t i = 0; i < cut->run_count; i++) {
            size_t first = ((size_t)s * section_rows(matrix, cut) + cut->runs[i].from) / unit_rows;
            size_t all = RP_CEIL_DIV(cut->runs[i].rows, unit_rows);
            size_t rows = RP_CEIL_DIV(live_rows(matrix, cut, i), unit_rows);
            if (rows)
                copy_rows(out, to_row * sizeof *out,
                          matrix->scales + first * from_row + cut->col / unit_cols,
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
                                          .sections = cut->sections,
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

/* The scales and the orders of columns of parts, which are known once they are read. */
static int copy_parts(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                      struct rp_matrix *out) {
    size_t bytes = matrix->cols * sizeof *matrix->parts[0].columns;
    for (uint32_t i = 0; i < matrix->part_count; i++) {
        const struct rp_matrix_part *from = &matrix->parts[i];
        struct rp_matrix_part *to = &out->parts[i];
        to->factor = from->factor;
        to->divides = from->divides;
        if (!from->columns)
            continue;
        if (cut->cols != matrix->cols)
            return RP_STATUS_UNSUPPORTED;
        to->columns = rp_alloc(bytes);
        if (!to->columns)
            return RP_STATUS_NO_MEMORY;
        memcpy(to->columns, from->columns, bytes);
    }
    return RP_OK;
}

int rp_matrix_cut(const struct rp_matrix *matrix, const struct rp_matrix_cut *cut,
                  struct rp_matrix *out) {
    size_t bytes = rp_matrix_bytes(out), scales = rp_matrix_scale_count(out);
    RP_ASSERT(matrix->data && matrix->layout == RP_LAYOUT_ROW_MAJOR && !out->data);
    out->data = bytes ? rp_alloc_aligned(bytes, ALIGN) : NULL;
    float *own = out->data && scales ? rp_alloc_aligned(scales * sizeof *own, ALIGN) : NULL;
    if (!out->data || (scales && !own))
        return RP_STATUS_NO_MEMORY;
    int status = copy_parts(matrix, cut, out);
    if (status != RP_OK) {
        rp_free_aligned(own);
        return status;
    }
    copy_data(matrix, cut, out);
    copy_scales(matrix, cut, own);
    out->scales = own;
    return RP_OK;
}
