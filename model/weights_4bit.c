/* Reads 4-bit tensors with their scales and zero points into the blocks of a matrix
 * (base/block_type.h). Codes, scales and zero points keep their bits.
 *
 *   K inputs, N outputs, G groups of K                 scales              zero points
 *   PACKED     weight_packed I32 (N, K/8)              weight_scale (N, G)  weight_zero_point I32
 *                                                                           (N/8, G)
 *   AWQ        qweight I32 (K, N/8): nibble i of a     scales (G, N)        qzeros I32 (G, N/8),
 *              word is output {0,2,4,6,1,3,5,7}[i]                          in the same order
 *   GPTQ       qweight I32 (K/8, N): nibble i of a     scales (G, N)        qzeros I32 (G, N/8),
 *              word is input i                                              v1: less one
 *   NVFP4      weight_packed U8 (N, K/2)               weight_scale E4M3 (N, K/16), divided by
 *                                                      weight_global_scale
 *   NVFP4_OPT  weight U8 (N, K/2)                      the same, times weight_scale_2
 *   MXFP4      weight_packed U8 (N, K/2)               weight_scale U8 (N, K/32): exponents
 *
 * The low nibble is the lower index. GPTQ's g_idx and weight_g_idx I32 (K) are the group of each
 * input column: the columns are then ordered by group, and the matrix knows their order. */
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

/* Names by layout; NULL: the layout has none. `scales` by output, then group; else the reverse. */
static const struct layout {
    const char *codes, *scales, *zeros, *order, *factor;
    bool words, by_output;
} layouts[] = {
    [RP_QUANT_PACKED] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", NULL,
                         true, true},
    [RP_QUANT_AWQ] = {"qweight", "scales", "qzeros", NULL, NULL, true, false},
    [RP_QUANT_GPTQ] = {"qweight", "scales", "qzeros", "g_idx", NULL, true, false},
    [RP_QUANT_NVFP4] = {"weight_packed", "weight_scale", NULL, NULL, "weight_global_scale", false,
                        true},
    [RP_QUANT_NVFP4_OPT] = {"weight", "weight_scale", NULL, NULL, "weight_scale_2", false, true},
    [RP_QUANT_MXFP4] = {"weight_packed", "weight_scale", NULL, NULL, NULL, false, true},
};

static const struct rp_safetensor *find(const struct rp_safetensors *files,
                                        const struct rp_weight_part *part, const char *suffix,
                                        char name[128]) {
    size_t len = strlen(part->name) - strlen("weight");
    snprintf(name, 128, "%.*s%s", (int)len, part->name, suffix);
    return rp_safetensors_find(files, name);
}

const struct rp_safetensor *rp_weight_main_tensor(const struct rp_safetensors *files,
                                                  const struct rp_model_config *config,
                                                  const struct rp_weight_part *part) {
    char name[128];
    if (!part->quantized || config->quant.layout == RP_QUANT_8_BITS)
        return rp_safetensors_find(files, part->name);
    return find(files, part, layouts[config->quant.layout].codes, name);
}

static int refuse(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                  enum rp_status status, const char *what, struct rp_error *err) {
    return rp_error_set(err, status, "%s: tensor %s %s", rp_safetensors_file(files, tensor),
                        tensor->name, what);
}

/* --- checks ---------------------------------------------------------------------------------- */

struct check {
    const struct rp_safetensors *files;
    const struct rp_weight_part *part;
    unsigned char *used;
    struct rp_error *err;
    int status;
};

static const struct rp_safetensor *need(struct check *c, const char *suffix) {
    char name[128];
    const struct rp_safetensor *tensor = find(c->files, c->part, suffix, name);
    if (c->status != RP_OK)
        return NULL;
    if (tensor)
        c->used[tensor - c->files->tensors] = 1;
    else
        c->status =
            rp_error_set(c->err, RP_STATUS_NOT_FOUND,
                         "tensor %s is missing: quantization_config says that its module has 4-bit "
                         "weights; others belong in the list of modules left out",
                         name);
    return tensor;
}

static void expect_shape(struct check *c, const struct rp_safetensor *tensor, uint64_t rows,
                         uint64_t cols) {
    char what[192], has[96], wants[64];
    const uint64_t shape[2] = {rows, cols};
    if (c->status != RP_OK)
        return;
    if (tensor->rank == 2 && memcmp(tensor->shape, shape, sizeof shape) == 0)
        return;
    if (cols == 1 && tensor->rank == 1 && tensor->shape[0] == rows)
        return;
    snprintf(what, sizeof what, "has shape %s, must have %s",
             rp_safetensors_shape_text(tensor->shape, tensor->rank, has, sizeof has),
             rp_safetensors_shape_text(shape, 2, wants, sizeof wants));
    c->status = refuse(c->files, tensor, RP_STATUS_FORMAT, what, c->err);
}

static void expect_type(struct check *c, const struct rp_safetensor *tensor, const char *name) {
    char what[96];
    if (c->status != RP_OK || strcmp(tensor->type_name, name) == 0)
        return;
    snprintf(what, sizeof what, "is of type %s, must be %s", tensor->type_name, name);
    c->status = refuse(c->files, tensor, RP_STATUS_UNSUPPORTED, what, c->err);
}

/* The rows of words: eight to a word must be whole. */
static void expect_eights(struct check *c, uint32_t count, const char *what) {
    if (c->status == RP_OK && count % 8 != 0)
        c->status = rp_error_set(c->err, RP_STATUS_FORMAT,
                                 "tensor %s: %u %s are no multiple of 8, which one word holds",
                                 c->part->name, count, what);
}

static uint32_t groups_of(const struct rp_model_quant *quant, uint32_t cols) {
    return quant->group ? RP_CEIL_DIV(cols, quant->group) : 1;
}

static void check_codes(struct check *c, const struct rp_model_quant *quant) {
    const struct layout *layout = &layouts[quant->layout];
    const struct rp_safetensor *codes = need(c, layout->codes);
    uint32_t rows = c->part->rows, cols = c->part->cols;
    if (!codes)
        return;
    expect_type(c, codes, layout->words ? "I32" : "U8");
    if (quant->layout == RP_QUANT_AWQ) {
        expect_eights(c, rows, "outputs");
        expect_shape(c, codes, cols, rows / 8);
    } else if (quant->layout == RP_QUANT_GPTQ) {
        expect_eights(c, rows, "outputs");
        expect_eights(c, cols, "inputs");
        expect_shape(c, codes, cols / 8, rows);
    } else {
        expect_shape(c, codes, rows, layout->words ? RP_CEIL_DIV(cols, 8) : RP_CEIL_DIV(cols, 2));
    }
}

/* Returns the type of blocks that the scales' type makes. */
static uint32_t check_scales(struct check *c, const struct rp_model_quant *quant) {
    const struct layout *layout = &layouts[quant->layout];
    const struct rp_safetensor *scales = need(c, layout->scales);
    uint32_t rows = c->part->rows, groups = groups_of(quant, c->part->cols);
    enum rp_int4_scale kind = RP_INT4_F16;
    if (!scales)
        return 0;
    expect_shape(c, scales, layout->by_output ? rows : groups, layout->by_output ? groups : rows);
    if (layout->factor) {
        expect_type(c, scales, "F8_E4M3");
        return RP_BLOCK_NVFP4;
    }
    if (quant->layout == RP_QUANT_MXFP4) {
        expect_type(c, scales, strcmp(scales->type_name, "F8_E8M0") == 0 ? "F8_E8M0" : "U8");
        return RP_BLOCK_MXFP4;
    }
    if (scales->type == RP_SAFETENSOR_BF16)
        kind = RP_INT4_BF16;
    else if (scales->type == RP_SAFETENSOR_F32)
        kind = RP_INT4_F32;
    else
        expect_type(c, scales, "F16");
    return rp_block_int4(quant->group, kind, quant->zeros);
}

static void check_others(struct check *c, const struct rp_model_quant *quant) {
    const struct layout *layout = &layouts[quant->layout];
    const struct rp_safetensor *tensor;
    uint32_t rows = c->part->rows, groups = groups_of(quant, c->part->cols);
    char name[128];
    if (quant->zeros && (tensor = need(c, layout->zeros)) != NULL) {
        expect_type(c, tensor, "I32");
        expect_shape(c, tensor, layout->by_output ? RP_CEIL_DIV(rows, 8) : groups,
                     layout->by_output ? groups : rows / 8);
    }
    if (!quant->zeros && c->status == RP_OK && layout->zeros &&
        (tensor = find(c->files, c->part, layout->zeros, name)) != NULL)
        c->status = refuse(c->files, tensor, RP_STATUS_FORMAT,
                           "is there, but quantization_config says symmetric", c->err);
    if (layout->factor && (tensor = need(c, layout->factor)) != NULL) {
        expect_type(c, tensor, "F32");
        if (c->status == RP_OK && tensor->bytes != sizeof(float))
            c->status = refuse(c->files, tensor, RP_STATUS_FORMAT, "must hold one number", c->err);
    }
    if (layout->order && (tensor = find(c->files, c->part, layout->order, name)) != NULL) {
        c->used[tensor - c->files->tensors] = 1;
        expect_type(c, tensor, "I32");
        if (c->status == RP_OK && (tensor->rank != 1 || tensor->shape[0] != c->part->cols))
            c->status =
                refuse(c->files, tensor, RP_STATUS_FORMAT, "must have one number a column", c->err);
    }
    if ((tensor = find(c->files, c->part, "weight_shape", name)) != NULL)
        c->used[tensor - c->files->tensors] = 1;
}

/* Notes the type of each module whose rows the part has. */
static void set_type(struct rp_model_config *config, const struct rp_weight_part *part,
                     uint32_t type) {
    const struct rp_weight *weight = part->weight;
    if (weight->layer == RP_LAYER_NONE) {
        config->quant.head_type = (uint8_t)type;
        return;
    }
    uint8_t *types = config->quant.types[weight->layer];
    uint32_t q_rows = config->heads * config->head_dim;
    bool whole = part->rows == weight->matrix.rows, first = part->row_begin == 0;
    switch (weight->role) {
    case RP_WEIGHT_QKV:
        types[first                       ? RP_MODULE_Q
              : part->row_begin == q_rows ? RP_MODULE_K
                                          : RP_MODULE_V] = (uint8_t)type;
        if (whole)
            types[RP_MODULE_K] = types[RP_MODULE_V] = (uint8_t)type;
        break;
    case RP_WEIGHT_GATE_UP:
        types[first ? RP_MODULE_GATE : RP_MODULE_UP] = (uint8_t)type;
        if (whole)
            types[RP_MODULE_UP] = (uint8_t)type;
        break;
    default:
        types[weight->role == RP_WEIGHT_O ? RP_MODULE_O : RP_MODULE_DOWN] = (uint8_t)type;
        break;
    }
}

int rp_weight_4bit_check(const struct rp_safetensors *files, struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *used,
                         struct rp_error *err) {
    struct check c = {files, part, used, err, RP_OK};
    check_codes(&c, &config->quant);
    uint32_t type = check_scales(&c, &config->quant);
    check_others(&c, &config->quant);
    if (c.status == RP_OK)
        set_type(config, part, type);
    return c.status;
}

/* --- reading --------------------------------------------------------------------------------- */

/* Calls `take` with pieces of whole rows of `row_bytes` each. */
static int read_pieces(struct target *t, const struct rp_safetensor *tensor, size_t row_bytes,
                       int (*take)(struct target *t, const unsigned char *bytes, size_t row,
                                   size_t rows)) {
    size_t count = row_bytes ? (size_t)(tensor->bytes / row_bytes) : 0;
    size_t step = RP_WEIGHT_STAGING_BYTES / RP_MAX(row_bytes, (size_t)1);
    if (step == 0)
        return refuse(t->files, tensor, RP_STATUS_UNSUPPORTED, "has rows that are too long",
                      t->err);
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
    bool by_output = layouts[t->quant->layout].by_output;
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
            status = refuse(t->files, tensor, RP_STATUS_FORMAT, what, t->err);
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
    const char *suffix = layouts[t->quant->layout].order;
    char name[128];
    const struct rp_safetensor *tensor = suffix ? find(t->files, t->part, suffix, name) : NULL;
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
    const char *suffix = layouts[t->quant->layout].factor;
    char name[128], what[96];
    if (!suffix)
        return RP_OK;
    const struct rp_safetensor *tensor = find(t->files, t->part, suffix, name);
    int status = rp_safetensors_read(t->files, tensor, 0, &t->factor, sizeof t->factor, t->err);
    if (status != RP_OK || (isfinite(t->factor) && t->factor > 0.0f))
        return status;
    snprintf(what, sizeof what, "holds %g: it must be finite and above 0", (double)t->factor);
    return refuse(t->files, tensor, RP_STATUS_FORMAT, what, t->err);
}

/* --- a part ---------------------------------------------------------------------------------- */

static int read_tensors(struct target *t) {
    const struct layout *layout = &layouts[t->quant->layout];
    const struct rp_weight_part *part = t->part;
    char name[128];
    const struct rp_safetensor *codes = find(t->files, part, layout->codes, name);
    const struct rp_safetensor *scales = find(t->files, part, layout->scales, name);
    bool awq = t->quant->layout == RP_QUANT_AWQ, gptq = t->quant->layout == RP_QUANT_GPTQ;
    size_t by_rows = layout->by_output ? t->groups : part->rows;
    int status = read_order(t);
    if (status == RP_OK)
        status = read_factor(t);
    if (status == RP_OK)
        status = read_pieces(t, codes,
                             (size_t)(codes->bytes / (awq    ? part->cols
                                                      : gptq ? part->cols / 8
                                                             : part->rows)),
                             awq    ? take_awq
                             : gptq ? take_gptq
                                    : take_rows);
    if (status == RP_OK)
        status = read_pieces(t, scales, by_rows * scale_bytes(t), take_scales);
    if (status == RP_OK && t->quant->zeros) {
        const struct rp_safetensor *zeros = find(t->files, part, layout->zeros, name);
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
    return refuse(t->files, find(t->files, t->part, layouts[t->quant->layout].scales, name),
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
                                            .divides = t->quant->layout == RP_QUANT_NVFP4,
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
    part->divides = t->quant->layout == RP_QUANT_NVFP4;
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
                       .groups = groups_of(&config->quant, part->cols)};
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
