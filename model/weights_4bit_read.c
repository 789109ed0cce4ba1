/* Reads 4-bit tensors with their scales and zero points, as weights_4bit.c describes them, into the
 * blocks of a matrix (base/block_type.h). Codes, scales and zero points keep their bits. */
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"
#include "quant/matmul.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where a part's rows go, and how a column becomes a nibble of a block. */
struct target {
    const struct rp_safetensors *files;
    const struct rp_model_quant *quant;
    const struct rp_weight_part *part;
    struct rp_error *err;
    unsigned char *staging;
    uint32_t type, bytes, values; /* of a block; values: 2^log_values */
    uint32_t log_values;
    uint32_t groups;
    size_t row_bytes;
    unsigned char *rows; /* (part->rows, row_bytes): the matrix's memory, or own */
    uint32_t *columns;   /* (cols) input column of each place; NULL: the same */
    uint32_t *places;    /* its inverse */
    uint8_t at[128];     /* byte of the code of column k of a block */
    uint8_t shift[128];  /* and its bits */
    float factor;        /* of NVFP4 */
};

/* Calls `take` with pieces of whole rows of `row_bytes` each. */
static int read_pieces(struct target *t, const struct rp_safetensor *tensor, size_t row_bytes,
                       int (*take)(struct target *t, const unsigned char *bytes, size_t row,
                                   size_t rows)) {
    size_t count = row_bytes ? (size_t)(tensor->bytes / row_bytes) : 0;
    size_t step = RP_WEIGHT_STAGING_BYTES / RP_MAX(row_bytes, (size_t)1);
    if (step == 0)
        return rp_weight_4bit_refuse(t->files, tensor, RP_STATUS_UNSUPPORTED,
                                     "has rows that are too long", t->err);
    for (size_t row = 0; row < count; row += step) {
        size_t rows = RP_MIN(step, count - row);
        int status = rp_safetensors_read(t->files, tensor, row * row_bytes, t->staging,
                                         rows * row_bytes, t->err);
        if (status == RP_OK)
            status = take(t, t->staging, row, rows);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static inline uint32_t word_at(const unsigned char *bytes, size_t i) {
    uint32_t word;
    memcpy(&word, bytes + i * 4, sizeof word);
    return word;
}

/* The row of the blocks that row `row` of the tensor becomes. */
static unsigned char *row_of(const struct target *t, size_t row) {
    const struct rp_row_order *order = &t->part->order;
    size_t place = rp_row_order_is_plain(order) ? row : rp_row_order_place(order, (uint32_t)row);
    return t->rows + place * t->row_bytes;
}

static inline void put(const struct target *t, unsigned char *row, size_t k, uint32_t code) {
    size_t place = t->places ? t->places[k] : k, in = place & (t->values - 1);
    row[(place >> t->log_values) * t->bytes + t->at[in]] |= (unsigned char)(code << t->shift[in]);
}

/* Blocks of 16 bytes: columns 2i and 2i + 1 in byte i become i and i + 16 of ours. */
static int take_mxfp4(struct target *t, const unsigned char *bytes, size_t row, size_t rows) {
    size_t blocks = t->part->cols / 32;
    for (size_t n = row; n < row + rows; n++) {
        unsigned char *to = row_of(t, n) + t->bytes - 16;
        for (size_t b = 0; b < blocks; b++, bytes += 16, to += t->bytes)
            for (size_t i = 0; i < 8; i++) {
                to[2 * i] = (unsigned char)((bytes[i] & 15) | bytes[i + 8] << 4);
                to[2 * i + 1] = (unsigned char)(bytes[i] >> 4 | (bytes[i + 8] & 0xF0));
            }
    }
    return RP_OK;
}

static int take_rows(struct target *t, const unsigned char *bytes, size_t row, size_t rows) {
    size_t cols = t->part->cols, step = t->quant->layout == RP_QUANT_PACKED
                                            ? RP_CEIL_DIV(cols, (size_t)8) * 4
                                            : RP_CEIL_DIV(cols, (size_t)2);
    for (size_t n = 0; n < rows; n++, bytes += step) {
        unsigned char *to = row_of(t, row + n);
        for (size_t k = 0; k < cols; k++)
            put(t, to, k, bytes[k / 2] >> k % 2 * 4 & 15);
    }
    return RP_OK;
}

static const uint8_t awq_outputs[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* Rows of K; eight outputs at a time, whose blocks stay in the cache. */
static int take_awq(struct target *t, const unsigned char *bytes, size_t k, size_t count) {
    size_t words = t->part->rows / 8;
    for (size_t n = 0; n < words; n++) {
        unsigned char *to[8];
        for (size_t i = 0; i < 8; i++)
            to[i] = row_of(t, 8 * n + awq_outputs[i]);
        for (size_t row = 0; row < count; row++) {
            uint32_t word = word_at(bytes, row * words + n);
            for (size_t i = 0; i < 8; i++)
                put(t, to[i], k + row, word >> 4 * i & 15);
        }
    }
    return RP_OK;
}

static int take_gptq(struct target *t, const unsigned char *bytes, size_t k8, size_t count) {
    size_t outputs = t->part->rows;
    for (size_t n = 0; n < outputs; n++) {
        unsigned char *to = row_of(t, n);
        for (size_t row = 0; row < count; row++) {
            uint32_t word = word_at(bytes, row * outputs + n);
            for (size_t i = 0; i < 8; i++)
                put(t, to, 8 * (k8 + row) + i, word >> 4 * i & 15);
        }
    }
    return RP_OK;
}

static uint32_t scale_bytes(const struct target *t) {
    return rp_block_is_int4(t->type) ? rp_block_int4_scale_bytes(t->type) : 1;
}

/* Writes `len` bytes at `at` of every block of the group: more than one where groups are long. */
static void put_group(const struct target *t, size_t row, size_t group, size_t at,
                      const unsigned char *from, size_t len) {
    uint32_t cols = t->part->cols, size = t->quant->group ? t->quant->group : cols;
    unsigned char *to = row_of(t, row);
    for (size_t k = group * size; k < RP_MIN((group + 1) * (size_t)size, (size_t)cols);
         k += t->values)
        memcpy(to + k / t->values * t->bytes + at, from, len);
}

static int take_scales(struct target *t, const unsigned char *bytes, size_t first, size_t count) {
    bool by_output = rp_weight_4bit_layouts[t->quant->layout].by_output;
    size_t across = by_output ? t->groups : t->part->rows, len = scale_bytes(t);
    for (size_t i = first; i < first + count; i++)
        for (size_t j = 0; j < across; j++, bytes += len)
            put_group(t, by_output ? i : j, by_output ? j : i, 0, bytes, len);
    return RP_OK;
}

static int put_zero(const struct target *t, size_t row, size_t group, uint32_t zero) {
    unsigned char byte = (unsigned char)(zero + t->quant->zeros_less_one);
    put_group(t, row, group, scale_bytes(t), &byte, 1);
    return RP_OK;
}

static int take_zeros(struct target *t, const unsigned char *bytes, size_t first, size_t count) {
    enum rp_quant_layout layout = t->quant->layout;
    size_t across = layout == RP_QUANT_PACKED ? t->groups : t->part->rows / 8;
    for (size_t row = first; row < first + count; row++)
        for (size_t j = 0; j < across; j++) {
            uint32_t word = word_at(bytes, (row - first) * across + j);
            for (size_t i = 0; i < 8; i++) {
                size_t n = 8 * (layout == RP_QUANT_PACKED ? row : j) +
                           (layout == RP_QUANT_AWQ ? awq_outputs[i] : i);
                if (n < t->part->rows)
                    put_zero(t, n, layout == RP_QUANT_PACKED ? j : row, word >> 4 * i & 15);
            }
        }
    return RP_OK;
}

/* --- the order of columns -------------------------------------------------------------------- */

/* Columns ordered by group, those of one group ascending. `groups` (cols) becomes the places. */
static int order_columns(struct target *t, const struct rp_safetensor *tensor, uint32_t *places) {
    uint32_t cols = t->part->cols, size = t->quant->group ? t->quant->group : cols;
    uint32_t *filled = rp_calloc(t->groups, sizeof *filled);
    bool moved = false, none = true;
    int status = filled ? RP_OK : rp_error_set(t->err, RP_STATUS_NO_MEMORY, "model: out of memory");
    for (uint32_t k = 0; k < cols && filled; k++)
        none = none && places[k] == UINT32_MAX; /* -1: not in use */
    for (uint32_t k = 0; k < cols && status == RP_OK && !none; k++) {
        uint32_t group = places[k],
                 room = group < t->groups ? RP_MIN(size, cols - group * size) : 0;
        char what[96];
        if (group >= t->groups || filled[group] == room) {
            snprintf(what, sizeof what, "puts column %u into group %d: %s", k, (int)group,
                     group >= t->groups ? "there is no such group" : "it is full");
            status = rp_weight_4bit_refuse(t->files, tensor, RP_STATUS_FORMAT, what, t->err);
            break;
        }
        places[k] = group * size + filled[group]++;
        moved = moved || places[k] != k;
    }
    rp_free(filled);
    if (status != RP_OK || !moved)
        return status;
    t->columns = rp_alloc(cols * sizeof *t->columns);
    if (!t->columns)
        return rp_error_set(t->err, RP_STATUS_NO_MEMORY, "model: out of memory");
    for (uint32_t k = 0; k < cols; k++)
        t->columns[places[k]] = k;
    return RP_OK;
}

/* Leaves t->places NULL where the order is that of the input. */
static int read_order(struct target *t) {
    const char *suffix = rp_weight_4bit_layouts[t->quant->layout].order;
    char name[128];
    const struct rp_safetensor *tensor =
        suffix ? rp_weight_4bit_find(t->files, t->part, suffix, name) : NULL;
    if (!tensor)
        return RP_OK;
    size_t bytes = t->part->cols * sizeof *t->places;
    t->places = rp_alloc(bytes);
    int status = t->places ? rp_safetensors_read(t->files, tensor, 0, t->places, bytes, t->err)
                           : rp_error_set(t->err, RP_STATUS_NO_MEMORY, "model: out of memory");
    if (status == RP_OK)
        status = order_columns(t, tensor, t->places);
    if (!t->columns) {
        rp_free(t->places);
        t->places = NULL;
    }
    return status;
}

static int read_factor(struct target *t) {
    const char *suffix = rp_weight_4bit_layouts[t->quant->layout].factor;
    char name[128], what[96];
    if (!suffix)
        return RP_OK;
    const struct rp_safetensor *tensor = rp_weight_4bit_find(t->files, t->part, suffix, name);
    int status = rp_safetensors_read(t->files, tensor, 0, &t->factor, sizeof t->factor, t->err);
    if (status != RP_OK || (isfinite(t->factor) && t->factor > 0.0f))
        return status;
    snprintf(what, sizeof what, "holds %g: it must be finite and above 0", (double)t->factor);
    return rp_weight_4bit_refuse(t->files, tensor, RP_STATUS_FORMAT, what, t->err);
}

/* --- a part ---------------------------------------------------------------------------------- */

static int read_tensors(struct target *t) {
    const struct rp_weight_4bit_names *layout = &rp_weight_4bit_layouts[t->quant->layout];
    const struct rp_weight_part *part = t->part;
    char name[128];
    const struct rp_safetensor *codes = rp_weight_4bit_find(t->files, part, layout->codes, name);
    const struct rp_safetensor *scales = rp_weight_4bit_find(t->files, part, layout->scales, name);
    bool awq = t->quant->layout == RP_QUANT_AWQ, gptq = t->quant->layout == RP_QUANT_GPTQ;
    bool whole_mxfp4 = t->type == RP_BLOCK_MXFP4 && part->cols % 32 == 0;
    size_t by_rows = layout->by_output ? t->groups : part->rows;
    int status = read_order(t);
    if (status == RP_OK)
        status = read_factor(t);
    if (status == RP_OK)
        status = read_pieces(t, codes,
                             (size_t)(codes->bytes / (awq    ? part->cols
                                                      : gptq ? part->cols / 8
                                                             : part->rows)),
                             awq           ? take_awq
                             : gptq        ? take_gptq
                             : whole_mxfp4 ? take_mxfp4
                                           : take_rows);
    if (status == RP_OK)
        status = read_pieces(t, scales, by_rows * scale_bytes(t), take_scales);
    if (status == RP_OK && t->quant->zeros) {
        const struct rp_safetensor *zeros =
            rp_weight_4bit_find(t->files, part, layout->zeros, name);
        status =
            read_pieces(t, zeros, (layout->by_output ? t->groups : part->rows / 8) * 4, take_zeros);
    }
    return status;
}

static int check_finite(const struct target *t) {
    size_t blocks = t->row_bytes / t->bytes, bad;
    char what[96], name[128];
    if (rp_blocks_finite(t->type, t->rows, t->part->rows * blocks, &bad))
        return RP_OK;
    snprintf(what, sizeof what,
             "holds a scale that is not finite, or too large, in row %zu of ours", bad / blocks);
    return rp_weight_4bit_refuse(
        t->files,
        rp_weight_4bit_find(t->files, t->part, rp_weight_4bit_layouts[t->quant->layout].scales,
                            name),
        RP_STATUS_FORMAT, what, t->err);
}

/* An F32 matrix gets the values. */
static void dequantize(const struct target *t) {
    const struct rp_weight_part *part = t->part;
    struct rp_matrix rows = {
        .rows = part->rows, .cols = part->cols, .dtype = RP_DTYPE_BLOCKS, .part_count = 1};
    rows.data = t->rows;
    rows.parts[0] = (struct rp_matrix_part){.rows = part->rows,
                                            .type = t->type,
                                            .factor = t->factor,
                                            .divides = t->quant->layout == RP_QUANT_NVFP4_PACKED,
                                            .columns = t->columns};
    float *out = (float *)part->weight->matrix.data + (size_t)part->row_begin * part->cols;
    for (uint32_t row = 0; row < part->rows; row++)
        rp_matrix_row_f32(&rows, row, out + (size_t)row * part->cols);
}

/* The part of the matrix that the tensor's rows are. */
static uint32_t part_index(const struct rp_matrix *matrix, const struct rp_weight_part *part) {
    uint32_t index = 0;
    while (matrix->parts[index].row_begin != part->row_begin)
        index++;
    return index;
}

static uint32_t type_of(const struct rp_model_config *config, const struct rp_weight_part *part) {
    /* The matrix may be F32, and other threads fill its parts. */
    struct rp_weight blocks = {
        .role = part->weight->role,
        .layer = part->weight->layer,
        .matrix = {.rows = part->weight->matrix.rows, .cols = part->weight->matrix.cols}};
    rp_weight_describe_4bit(config, &blocks);
    return blocks.matrix.parts[part_index(&blocks.matrix, part)].type;
}

static void keep(struct target *t) {
    struct rp_matrix *matrix = &t->part->weight->matrix;
    struct rp_matrix_part *part = &matrix->parts[part_index(matrix, t->part)];
    part->factor = t->factor;
    part->divides = t->quant->layout == RP_QUANT_NVFP4_PACKED;
    part->columns = t->columns;
    t->columns = NULL;
}

int rp_weight_4bit_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                        const struct rp_weight_part *part, unsigned char *staging,
                        struct rp_error *err) {
    struct rp_matrix *matrix = &part->weight->matrix;
    bool values = matrix->dtype == RP_DTYPE_F32;
    struct target t = {.files = files,
                       .quant = &config->quant,
                       .part = part,
                       .err = err,
                       .staging = staging,
                       .type = type_of(config, part),
                       .groups = rp_weight_4bit_groups(&config->quant, part->cols)};
    struct rp_block_info info = rp_block_info(t.type);
    t.values = info.values;
    while (1u << t.log_values < t.values)
        t.log_values++;
    t.bytes = info.bytes;
    t.row_bytes = rp_blocks_row_bytes(t.type, part->cols);
    for (uint32_t k = 0; k < info.values; k++) {
        unsigned char block[RP_BLOCK_BYTES_MAX] = {0};
        rp_block_put_code(t.type, block, k, 1);
        while (!block[t.at[k]])
            t.at[k]++;
        t.shift[k] = block[t.at[k]] == 1 ? 0 : 4;
    }
    size_t bytes = part->rows * t.row_bytes;
    unsigned char *own = values ? rp_alloc(bytes) : NULL;
    if (values && !own)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    t.rows = values ? own
                    : (unsigned char *)matrix->data +
                          rp_matrix_part_offset(matrix, part_index(matrix, part));
    memset(t.rows, 0, bytes);
    int status = read_tensors(&t);
    if (status == RP_OK)
        status = check_finite(&t);
    if (status == RP_OK && values)
        dequantize(&t);
    else if (status == RP_OK)
        keep(&t);
    rp_free(own);
    rp_free(t.columns);
    rp_free(t.places);
    return status;
}
