/* Random weights for a shape: benchmarks and tests. */
#include "base/bf16.h"
#include "base/memory.h"
#include "model/weights_internal.h"
#include "quant/rounding/int4.h"

#include <math.h>
#include <string.h>

/* Uniform with a standard deviation of 0.02, as models are initialized. Every value is taken from a
 * table of 4096: five of them per 64-bit random number make billions of weights in seconds, and all
 * are exact in bf16, so that a seed gives the same weights in both types. */
#define RANDOM_BITS 12

struct random_weights {
    uint64_t state;
    size_t filled; /* values */
    float norm;    /* mean of norm weights */
    float f32[1 << RANDOM_BITS];
    uint16_t bf16[1 << RANDOM_BITS];
};

static void random_init(struct random_weights *random, uint64_t seed) {
    const double half_width = 0.02 * sqrt(3.0), count = 1 << RANDOM_BITS;
    random->state = seed;
    random->filled = 0;
    for (int i = 0; i < 1 << RANDOM_BITS; i++) {
        random->bf16[i] = rp_f32_to_bf16((float)(((i + 0.5) / count * 2 - 1) * half_width));
        random->f32[i] = rp_bf16_to_f32(random->bf16[i]);
    }
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(struct random_weights *random) {
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#define FILL(data, count, table)                                                                   \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        while (i < (count)) {                                                                      \
            uint64_t bits = random_next(random);                                                   \
            size_t end = RP_MIN(i + 64 / RANDOM_BITS, (count));                                    \
            for (; i < end; i++, bits >>= RANDOM_BITS)                                             \
                (data)[i] = (table)[bits & ((1 << RANDOM_BITS) - 1)];                              \
        }                                                                                          \
    } while (0)

/* MXFP4 experts: each code as likely, and a scale of 2^-7, which give a standard deviation of
 * 0.023. */
static void fill_mxfp4(struct random_weights *random, const struct rp_weight_part *part) {
    struct rp_matrix *matrix = &part->weight->matrix;
    uint32_t bytes = rp_block_info(RP_BLOCK_MXFP4).bytes;
    size_t row_bytes = rp_blocks_row_bytes(RP_BLOCK_MXFP4, part->cols);
    unsigned char *rows = (unsigned char *)matrix->data + part->row_begin * row_bytes;
    for (size_t at = 0; at < part->rows * row_bytes; at += bytes) {
        rows[at] = 120;
        for (size_t i = 1; i < bytes; i += sizeof(uint64_t)) {
            uint64_t codes = random_next(random);
            memcpy(rows + at + i, &codes, sizeof codes);
        }
    }
}

/* The same values as an unquantized part has, a row at a time. */
static int fill_quantized(struct random_weights *random, const struct rp_weight_part *part) {
    struct rp_matrix *matrix = &part->weight->matrix;
    float *row = rp_alloc(part->cols * sizeof *row);
    uint64_t bits = 0;
    uint32_t left = 0;
    size_t bad;
    if (!row)
        return RP_STATUS_NO_MEMORY;
    for (size_t i = part->row_begin; i < (size_t)part->row_begin + part->rows; i++) {
        for (uint32_t k = 0; k < part->cols; k++, left--, bits >>= RANDOM_BITS) {
            if (left == 0) {
                bits = random_next(random);
                left = 64 / RANDOM_BITS;
            }
            row[k] = random->f32[bits & ((1 << RANDOM_BITS) - 1)];
        }
        bool finite = matrix->dtype == RP_DTYPE_BLOCKS
                          ? rp_quantize_row_to_blocks(
                                &matrix->parts[0], row, part->cols,
                                (unsigned char *)matrix->data +
                                    i * rp_blocks_row_bytes(matrix->parts[0].type, part->cols),
                                NULL)
                          : rp_quantize_weights(row, RP_DTYPE_F32, 1, part->cols, matrix->dtype,
                                                (unsigned char *)matrix->data + i * part->cols,
                                                (float *)(uintptr_t)&matrix->scales[i], NULL, &bad);
        RP_ASSERT(finite);
    }
    rp_free(row);
    return RP_OK;
}

static int fill_random(void *ctx, const struct rp_weight_part *part) {
    struct random_weights *random = ctx;
    struct rp_matrix *matrix = &part->weight->matrix;
    random->filled += part->split ? (size_t)matrix->rows * matrix->cols
                                  : (size_t)part->rows * RP_MAX(part->cols, 1u);
    if (!rp_weight_is_matrix(part->weight)) {
        float *values = part->weight->vector + part->row_begin;
        FILL(values, part->rows, random->f32);
        for (uint32_t i = 0; rp_weight_is_norm(part->weight->role) && i < part->rows; i++)
            values[i] += random->norm;
        return RP_OK;
    }
    if (!matrix->data)
        return RP_OK; /* the device makes it */
    size_t begin = (size_t)part->row_begin * part->cols;
    size_t count =
        part->split ? (size_t)matrix->rows * matrix->cols : (size_t)part->rows * part->cols;
    if (part->weight->experts && matrix->dtype == RP_DTYPE_BLOCKS &&
        matrix->parts[0].type == RP_BLOCK_MXFP4) {
        fill_mxfp4(random, part);
        return RP_OK;
    }
    if (rp_dtype_bytes(matrix->dtype) == 1 || matrix->dtype == RP_DTYPE_BLOCKS)
        return fill_quantized(random, part);
    if (matrix->dtype == RP_DTYPE_BF16) {
        uint16_t *values = (uint16_t *)matrix->data + begin;
        FILL(values, count, random->bf16);
    } else {
        float *values = (float *)matrix->data + begin;
        FILL(values, count, random->f32);
    }
    return RP_OK;
}

static size_t value_count(const struct rp_model *model) {
    size_t count = 0;
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_weight *weight = &model->weights.entries[i];
        count += rp_weight_is_matrix(weight) ? (size_t)weight->matrix.rows * weight->matrix.cols
                                             : weight->length;
    }
    return count;
}

static int make_random(const struct rp_model_config *config, enum rp_dtype dtype, uint64_t seed,
                       uint32_t max_position, bool vectors_only, struct rp_model *out_model,
                       struct rp_error *err) {
    int status = rp_model_describe(config, dtype, out_model, err);
    if (status != RP_OK)
        return status;
    struct random_weights *random = rp_alloc(sizeof *random);
    status = rp_weights_allocate_vectors(out_model, max_position, err);
    for (uint32_t i = 0; i < out_model->weights.count && status == RP_OK && !vectors_only; i++) {
        struct rp_weight *weight = &out_model->weights.entries[i];
        if (rp_weight_is_matrix(weight) && rp_weights_allocate_matrix(&weight->matrix) != RP_OK)
            status = rp_weights_no_memory(out_model, err);
    }
    if (status == RP_OK && !random)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    if (status == RP_OK) {
        random_init(random, seed);
        random->norm = 1.0f - config->norm_offset;
        status = rp_weight_parts(out_model, fill_random, random);
        if (status != RP_OK)
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
        /* A weight that belongs to no part would have what its memory held. */
        RP_ASSERT(status != RP_OK || random->filled == value_count(out_model));
        out_model->loaded = !vectors_only;
    }
    if (status != RP_OK)
        rp_model_deinit(out_model);
    rp_free(random);
    return status;
}

int rp_model_random(const struct rp_model_config *config, enum rp_dtype dtype, uint64_t seed,
                    uint32_t max_position, struct rp_model *out_model, struct rp_error *err) {
    return make_random(config, dtype, seed, max_position, false, out_model, err);
}

int rp_model_random_vectors(const struct rp_model_config *config, enum rp_dtype dtype,
                            uint64_t seed, uint32_t max_position, struct rp_model *out_model,
                            struct rp_error *err) {
    return make_random(config, dtype, seed, max_position, true, out_model, err);
}
