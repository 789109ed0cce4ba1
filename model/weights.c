/* Where weights lie in memory: the list of parts, shapes, allocation, random filling. */
#include "base/bf16.h"
#include "base/checked.h"
#include "base/memory.h"
#include "model/rope.h"
#include "model/weights_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A cache line, and the widest vector load there is. */
#define WEIGHT_ALIGN 64

/* --- the list of parts ---------------------------------------------------------------------------
 */

struct visitor {
    int (*visit)(void *ctx, const struct rp_weight_part *part);
    void *ctx;
    int status;
};

static void visit_matrix(struct visitor *visitor, struct rp_matrix *matrix, bool quantized,
                         uint32_t row_begin, uint32_t rows, const char *format, ...)
    RP_PRINTF(6, 7);
static void visit_vector(struct visitor *visitor, float **vector, uint32_t vector_len,
                         uint32_t begin, uint32_t len, bool is_norm, const char *format, ...)
    RP_PRINTF(7, 8);

static void visit_matrix(struct visitor *visitor, struct rp_matrix *matrix, bool quantized,
                         uint32_t row_begin, uint32_t rows, const char *format, ...) {
    struct rp_weight_part part = {.matrix = matrix,
                                  .row_begin = row_begin,
                                  .rows = rows,
                                  .cols = matrix->cols,
                                  .quantized = quantized};
    va_list args;
    va_start(args, format);
    vsnprintf(part.name, sizeof part.name, format, args);
    va_end(args);
    if (visitor->status == RP_OK)
        visitor->status = visitor->visit(visitor->ctx, &part);
}

static void visit_vector(struct visitor *visitor, float **vector, uint32_t vector_len,
                         uint32_t begin, uint32_t len, bool is_norm, const char *format, ...) {
    struct rp_weight_part part = {.vector = vector,
                                  .vector_len = vector_len,
                                  .row_begin = begin,
                                  .rows = len,
                                  .is_norm = is_norm};
    va_list args;
    va_start(args, format);
    vsnprintf(part.name, sizeof part.name, format, args);
    va_end(args);
    if (visitor->status == RP_OK)
        visitor->status = visitor->visit(visitor->ctx, &part);
}

static bool has_8_bits(const struct rp_model_config *config, uint32_t layer,
                       enum rp_module module) {
    return config->quant.modules[layer] >> module & 1;
}

static void visit_attention(struct visitor *v, const struct rp_model_config *config,
                            struct rp_layer_weights *w, uint32_t layer) {
    uint32_t q_rows = config->heads * config->head_dim,
             kv_rows = config->kv_heads * config->head_dim;
    const struct {
        const char *name;
        uint32_t begin, rows;
    } qkv[] = {
        {"q_proj", 0, q_rows}, {"k_proj", q_rows, kv_rows}, {"v_proj", q_rows + kv_rows, kv_rows}};

    visit_vector(v, &w->attn_norm, config->hidden, 0, config->hidden, true,
                 "model.layers.%u.input_layernorm.weight", layer);
    for (size_t i = 0; i < RP_ARRAY_COUNT(qkv); i++)
        visit_matrix(v, &w->qkv, has_8_bits(config, layer, RP_MODULE_Q), qkv[i].begin, qkv[i].rows,
                     "model.layers.%u.self_attn.%s.weight", layer, qkv[i].name);
    for (size_t i = 0; config->qkv_bias && i < RP_ARRAY_COUNT(qkv); i++)
        visit_vector(v, &w->qkv_bias, w->qkv.rows, qkv[i].begin, qkv[i].rows, false,
                     "model.layers.%u.self_attn.%s.bias", layer, qkv[i].name);
    if (config->qk_norm) {
        visit_vector(v, &w->q_norm, config->head_dim, 0, config->head_dim, true,
                     "model.layers.%u.self_attn.q_norm.weight", layer);
        visit_vector(v, &w->k_norm, config->head_dim, 0, config->head_dim, true,
                     "model.layers.%u.self_attn.k_norm.weight", layer);
    }
    visit_matrix(v, &w->o, has_8_bits(config, layer, RP_MODULE_O), 0, w->o.rows,
                 "model.layers.%u.self_attn.o_proj.weight", layer);
    if (config->o_bias)
        visit_vector(v, &w->o_bias, config->hidden, 0, config->hidden, false,
                     "model.layers.%u.self_attn.o_proj.bias", layer);
    if (config->post_norms)
        visit_vector(v, &w->attn_post_norm, config->hidden, 0, config->hidden, true,
                     "model.layers.%u.post_attention_layernorm.weight", layer);
}

static void visit_mlp(struct visitor *v, const struct rp_model_config *config,
                      struct rp_layer_weights *w, uint32_t layer) {
    const char *const gate_up[] = {"gate_proj", "up_proj"};
    uint32_t inner = config->intermediate;

    /* Where what attention adds is normed, too, that one has the name. */
    visit_vector(v, &w->mlp_norm, config->hidden, 0, config->hidden, true,
                 "model.layers.%u.%s_layernorm.weight", layer,
                 config->post_norms ? "pre_feedforward" : "post_attention");
    for (uint32_t i = 0; i < 2; i++) {
        visit_matrix(v, &w->gate_up, has_8_bits(config, layer, RP_MODULE_GATE), i * inner, inner,
                     "model.layers.%u.mlp.%s.weight", layer, gate_up[i]);
        if (config->mlp_bias)
            visit_vector(v, &w->gate_up_bias, 2 * inner, i * inner, inner, false,
                         "model.layers.%u.mlp.%s.bias", layer, gate_up[i]);
    }
    visit_matrix(v, &w->down, has_8_bits(config, layer, RP_MODULE_DOWN), 0, w->down.rows,
                 "model.layers.%u.mlp.down_proj.weight", layer);
    if (config->mlp_bias)
        visit_vector(v, &w->down_bias, config->hidden, 0, config->hidden, false,
                     "model.layers.%u.mlp.down_proj.bias", layer);
    if (config->post_norms)
        visit_vector(v, &w->mlp_post_norm, config->hidden, 0, config->hidden, true,
                     "model.layers.%u.post_feedforward_layernorm.weight", layer);
}

int rp_weight_parts(struct rp_model *model,
                    int (*visit)(void *ctx, const struct rp_weight_part *part), void *ctx) {
    const struct rp_model_config *config = &model->config;
    struct visitor visitor = {visit, ctx, RP_OK};
    visit_matrix(&visitor, &model->embed, false, 0, model->embed.rows, "model.embed_tokens.weight");
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        visit_attention(&visitor, config, &model->layers[layer], layer);
        visit_mlp(&visitor, config, &model->layers[layer], layer);
    }
    visit_vector(&visitor, &model->final_norm, config->hidden, 0, config->hidden, true,
                 "model.norm.weight");
    if (!config->tied)
        visit_matrix(&visitor, &model->lm_head, config->quant.head, 0, model->lm_head.rows,
                     "lm_head.weight");
    return visitor.status;
}

/* --- shapes and memory ---------------------------------------------------------------------------
 */

static struct rp_matrix shape(uint32_t rows, uint32_t cols, enum rp_dtype dtype) {
    return (struct rp_matrix){.rows = rows, .cols = cols, .dtype = dtype};
}

/* 8 bits with one scale a row, or one a block, as the checkpoint has them. */
static void describe_8_bits(const struct rp_model_quant *quant, bool covered,
                            struct rp_matrix *matrix) {
    if (!covered || matrix->dtype != RP_DTYPE_BF16)
        return;
    matrix->dtype = quant->dtype;
    matrix->scale_kind =
        quant->scales == RP_SCALE_BLOCK_128 ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL;
    matrix->input = quant->input;
}

int rp_weights_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                        struct rp_model *out_model, struct rp_error *err) {
    struct rp_model model;
    memset(&model, 0, sizeof model);
    model.config = *config;
    model.dtype = dtype;
    model.layers = rp_calloc(config->layers, sizeof *model.layers);
    if (!model.layers)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory for %u layers",
                            config->layers);
    model.embed = shape(config->vocab, config->hidden, dtype);
    model.lm_head = shape(config->vocab, config->hidden, dtype);
    for (uint32_t i = 0; i < config->layers; i++) {
        struct rp_layer_weights *w = &model.layers[i];
        uint32_t q_rows = config->heads * config->head_dim;
        w->qkv = shape(q_rows + 2 * config->kv_heads * config->head_dim, config->hidden, dtype);
        w->o = shape(config->hidden, q_rows, dtype);
        w->gate_up = shape(2 * config->intermediate, config->hidden, dtype);
        w->down = shape(config->hidden, config->intermediate, dtype);
        describe_8_bits(&config->quant, has_8_bits(config, i, RP_MODULE_Q), &w->qkv);
        describe_8_bits(&config->quant, has_8_bits(config, i, RP_MODULE_O), &w->o);
        describe_8_bits(&config->quant, has_8_bits(config, i, RP_MODULE_GATE), &w->gate_up);
        describe_8_bits(&config->quant, has_8_bits(config, i, RP_MODULE_DOWN), &w->down);
        rp_quant_describe(&w->qkv, config->quantization);
        rp_quant_describe(&w->o, config->quantization);
        rp_quant_describe(&w->gate_up, config->quantization);
        rp_quant_describe(&w->down, config->quantization);
    }
    describe_8_bits(&config->quant, config->quant.head, &model.lm_head);
    if (config->quantize_head)
        rp_quant_describe(&model.lm_head, config->quantization);
    if (config->quantize_head && config->tied)
        rp_quant_describe(&model.embed, config->quantization);
    model.rope_positions = config->max_position;
    *out_model = model;
    return RP_OK;
}

static int allocate_scales(struct rp_matrix *matrix) {
    size_t count = rp_matrix_scale_count(matrix);
    if (count > 0 && !matrix->scales)
        matrix->scales = rp_alloc_aligned(count * sizeof(float), WEIGHT_ALIGN);
    return count == 0 || matrix->scales ? RP_OK : RP_STATUS_NO_MEMORY;
}

/* ctx: bool, whether only vectors are wanted. */
static int allocate_part(void *ctx, const struct rp_weight_part *part) {
    if (part->matrix) {
        if (*(const bool *)ctx)
            return RP_OK;
        if (!part->matrix->data) {
            size_t bytes = rp_matrix_bytes(part->matrix);
            part->matrix->data = bytes ? rp_alloc_aligned(bytes, WEIGHT_ALIGN) : NULL;
        }
        return part->matrix->data ? allocate_scales(part->matrix) : RP_STATUS_NO_MEMORY;
    }
    if (!*part->vector)
        *part->vector = rp_alloc_aligned(part->vector_len * sizeof(float), WEIGHT_ALIGN);
    return *part->vector ? RP_OK : RP_STATUS_NO_MEMORY;
}

int rp_weights_allocate(struct rp_model *model, uint32_t position_count, bool vectors_only,
                        struct rp_error *err) {
    const struct rp_model_config *config = &model->config;
    size_t table_bytes;
    uint32_t positions = position_count ? position_count : config->max_position;
    bool fits = !rp_mul_overflow(positions, config->head_dim * sizeof(float), &table_bytes);
    int status = rp_weight_parts(model, allocate_part, &vectors_only);
    if (config->tied)
        model->lm_head = model->embed;
    if (status == RP_OK && fits)
        model->rope_table = rp_alloc_aligned(table_bytes, WEIGHT_ALIGN);
    if (!model->rope_table) {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: no memory for %llu MiB of weights",
                              (unsigned long long)(rp_model_weight_bytes(model) >> 20));
        rp_error_hint(err, "try --dtype bfloat16, or a smaller --max-model-len");
        return status;
    }
    model->rope_positions = positions;
    rp_rope_table_fill(config, positions, model->rope_table);
    return RP_OK;
}

void rp_model_deinit(struct rp_model *model) {
    for (uint32_t i = 0; model->layers && i < model->config.layers; i++) {
        struct rp_layer_weights *w = &model->layers[i];
        float *vectors[] = {w->attn_norm,    w->mlp_norm, w->attn_post_norm, w->mlp_post_norm,
                            w->q_norm,       w->k_norm,   w->qkv_bias,       w->o_bias,
                            w->gate_up_bias, w->down_bias};
        for (size_t at = 0; at < RP_ARRAY_COUNT(vectors); at++)
            rp_free_aligned(vectors[at]);
        rp_matrix_deinit(&w->qkv);
        rp_matrix_deinit(&w->o);
        rp_matrix_deinit(&w->gate_up);
        rp_matrix_deinit(&w->down);
    }
    rp_model_drop_mask(model);
    rp_free(model->layers);
    if (model->lm_head.data != model->embed.data)
        rp_matrix_deinit(&model->lm_head);
    rp_matrix_deinit(&model->embed);
    rp_free_aligned(model->final_norm);
    rp_free_aligned(model->rope_table);
    memset(model, 0, sizeof *model);
}

static uint64_t bytes_of(const struct rp_matrix *matrix) {
    return rp_matrix_bytes(matrix) + rp_matrix_scale_count(matrix) * sizeof(float);
}

uint64_t rp_model_weight_bytes(const struct rp_model *model) {
    const struct rp_model_config *config = &model->config;
    uint64_t bytes = bytes_of(&model->embed) + config->hidden * sizeof(float);
    if (!config->tied)
        bytes += bytes_of(&model->lm_head);
    for (uint32_t i = 0; i < config->layers; i++) {
        const struct rp_layer_weights *w = &model->layers[i];
        uint64_t floats = (config->post_norms ? 4 : 2) * (uint64_t)config->hidden;
        if (config->qk_norm)
            floats += 2 * (uint64_t)config->head_dim;
        if (config->qkv_bias)
            floats += w->qkv.rows;
        if (config->o_bias)
            floats += config->hidden;
        if (config->mlp_bias)
            floats += 2 * (uint64_t)config->intermediate + config->hidden;
        bytes += bytes_of(&w->qkv) + bytes_of(&w->o) + bytes_of(&w->gate_up) + bytes_of(&w->down) +
                 floats * sizeof(float);
    }
    return bytes;
}

static int add_parameters(void *ctx, const struct rp_weight_part *part) {
    *(uint64_t *)ctx += (uint64_t)part->rows * RP_MAX(part->cols, 1u);
    return RP_OK;
}

uint64_t rp_model_parameter_count(const struct rp_model *model) {
    uint64_t count = 0;
    /* The walk changes nothing of the model; only its other users write through the parts. */
    int status = rp_weight_parts((struct rp_model *)(uintptr_t)model, add_parameters, &count);
    RP_ASSERT(status == RP_OK);
    return count;
}

int rp_weights_check_dtype(const struct rp_model_config *config, enum rp_dtype dtype,
                           struct rp_error *err) {
    if (config->quantization != RP_QUANT_NONE && config->quant.scales != RP_SCALE_NONE) {
        int status = rp_error_set(err, RP_STATUS_INVALID,
                                  "model: the checkpoint has 8-bit weights, which are not made %s",
                                  rp_quant_scheme_name(config->quantization));
        rp_error_hint(err, "leave --quantization out, or take the checkpoint of 16 bits");
        return status;
    }
    if (config->quantization != RP_QUANT_NONE && dtype == RP_DTYPE_F32)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "model: %s weights are multiplied with bf16, not with f32",
                            rp_quant_scheme_name(config->quantization));
    if (dtype == RP_DTYPE_F32 || dtype == RP_DTYPE_BF16 || dtype == RP_MODEL_DTYPE_AUTO)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_INVALID, "model: weights in memory are f32 or bf16, not %s",
                        rp_dtype_name(dtype));
}

int rp_model_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                      struct rp_model *out_model, struct rp_error *err) {
    int status = rp_weights_check_dtype(config, dtype, err);
    if (status != RP_OK)
        return status;
    if (dtype == RP_MODEL_DTYPE_AUTO)
        dtype = config->file_dtype == RP_DTYPE_BF16 || config->quant.scales != RP_SCALE_NONE ||
                        config->quantization != RP_QUANT_NONE
                    ? RP_DTYPE_BF16
                    : RP_DTYPE_F32;
    return rp_weights_describe(config, dtype, out_model, err);
}

/* --- random weights ------------------------------------------------------------------------------
 */

/* Uniform with a standard deviation of 0.02, as models are initialized. Every value is taken from a
 * table of 4096: five of them per 64-bit random number make billions of weights in seconds, and all
 * are exact in bf16, so that a seed gives the same weights in both types. */
#define RANDOM_BITS 12

struct random_weights {
    uint64_t state;
    float norm; /* what the weights of norms lie around */
    float f32[1 << RANDOM_BITS];
    uint16_t bf16[1 << RANDOM_BITS];
};

static void random_init(struct random_weights *random, uint64_t seed) {
    const double half_width = 0.02 * sqrt(3.0), count = 1 << RANDOM_BITS;
    random->state = seed;
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

/* The same values as an unquantized part has, a row at a time. */
static int fill_quantized(struct random_weights *random, const struct rp_weight_part *part) {
    struct rp_matrix *matrix = part->matrix;
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
        bool finite = rp_quantize_weights(row, RP_DTYPE_F32, 1, part->cols, matrix->dtype,
                                          (unsigned char *)matrix->data + i * part->cols,
                                          (float *)(uintptr_t)&matrix->scales[i], NULL, &bad);
        RP_ASSERT(finite);
    }
    rp_free(row);
    return RP_OK;
}

static int fill_random(void *ctx, const struct rp_weight_part *part) {
    struct random_weights *random = ctx;
    if (part->vector) {
        float *values = *part->vector + part->row_begin;
        FILL(values, part->rows, random->f32);
        for (uint32_t i = 0; part->is_norm && i < part->rows; i++)
            values[i] += random->norm;
        return RP_OK;
    }
    if (!part->matrix->data)
        return RP_OK; /* the device makes it */
    size_t begin = (size_t)part->row_begin * part->cols, count = (size_t)part->rows * part->cols;
    if (rp_dtype_bytes(part->matrix->dtype) == 1)
        return fill_quantized(random, part);
    if (part->matrix->dtype == RP_DTYPE_BF16) {
        uint16_t *values = (uint16_t *)part->matrix->data + begin;
        FILL(values, count, random->bf16);
    } else {
        float *values = (float *)part->matrix->data + begin;
        FILL(values, count, random->f32);
    }
    return RP_OK;
}

static int make_random(const struct rp_model_config *config, enum rp_dtype dtype, uint64_t seed,
                       uint32_t max_position, bool vectors_only, struct rp_model *out_model,
                       struct rp_error *err) {
    int status = rp_model_describe(config, dtype, out_model, err);
    if (status != RP_OK)
        return status;
    struct random_weights *random = rp_alloc(sizeof *random);
    status = rp_weights_allocate(out_model, max_position, vectors_only, err);
    if (status == RP_OK && !random)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    if (status == RP_OK) {
        random_init(random, seed);
        random->norm = 1.0f - config->norm_offset;
        status = rp_weight_parts(out_model, fill_random, random);
        if (status != RP_OK)
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
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
