/* The table of weights: which a model has, their shapes and memory. */
#include "base/checked.h"
#include "base/memory.h"
#include "model/family.h"
#include "model/rope.h"
#include "model/weights_internal.h"

#include <stdio.h>
#include <string.h>

/* A cache line, and the widest vector load. */
#define WEIGHT_ALIGN 64

/* --- shapes ---------------------------------------------------------------------------------- */

/* cols 0: a vector. rows 0: this model has no such weight. */
struct shape {
    uint32_t rows, cols;
    enum rp_shard_axis shard;
    int module; /* enum rp_module that quant.modules names it by, or -1 */
};

static struct shape vector_if(bool there, uint32_t length, enum rp_shard_axis shard) {
    return (struct shape){there ? length : 0, 0, shard, -1};
}

static struct shape matrix_if(bool there, uint32_t rows, uint32_t cols, enum rp_shard_axis shard,
                              int module) {
    return (struct shape){there ? rows : 0, cols, shard, module};
}

/* Weights of a mixture of experts. */
static struct shape expert_shape(const struct rp_model_config *config, enum rp_weight_role role,
                                 bool there) {
    const struct rp_model_experts *experts = &config->experts;
    uint32_t hidden = config->hidden, inner = experts->intermediate, shared = experts->shared;
    switch (role) {
    case RP_WEIGHT_ROUTER:
        return matrix_if(there, experts->count, hidden, RP_SHARD_NONE, -1);
    case RP_WEIGHT_ROUTER_BIAS:
        return vector_if(there && experts->bias, experts->count, RP_SHARD_NONE);
    case RP_WEIGHT_EXPERT_GATE_UP:
        return matrix_if(there, experts->count * 2 * inner, hidden, RP_SHARD_ROWS,
                         RP_MODULE_EXPERT_GATE);
    case RP_WEIGHT_EXPERT_DOWN:
        return matrix_if(there, experts->count * hidden, inner, RP_SHARD_COLS,
                         RP_MODULE_EXPERT_DOWN);
    case RP_WEIGHT_SHARED_GATE_UP:
        return matrix_if(there, 2 * shared, hidden, RP_SHARD_ROWS, RP_MODULE_SHARED_GATE);
    case RP_WEIGHT_SHARED_DOWN:
        return matrix_if(there && shared, hidden, shared, RP_SHARD_COLS, RP_MODULE_SHARED_DOWN);
    case RP_WEIGHT_ROUTER_NORM:
    case RP_WEIGHT_MLP_POST_NORM_1:
    case RP_WEIGHT_EXPERT_NORM:
    case RP_WEIGHT_EXPERT_POST_NORM:
        return vector_if(there && experts->parallel, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_ROUTER_SCALES:
        return vector_if(there && experts->parallel, experts->count, RP_SHARD_NONE);
    case RP_WEIGHT_ROUTER_LOGIT_BIAS:
        return vector_if(there && experts->linear_bias, experts->count, RP_SHARD_NONE);
    case RP_WEIGHT_EXPERT_GATE_UP_BIAS:
        return vector_if(there && experts->linear_bias, experts->count * 2 * inner, RP_SHARD_ROWS);
    case RP_WEIGHT_EXPERT_DOWN_BIAS:
        return vector_if(there && experts->linear_bias, experts->count * hidden, RP_SHARD_NONE);
    default:
        return matrix_if(there && experts->shared_gate, 1, hidden, RP_SHARD_NONE, -1);
    }
}

/* Weights of attention over latents; false: not one of them, or none in this model. */
static bool latent_shape(const struct rp_model_config *config, enum rp_weight_role role,
                         struct shape *out) {
    const struct rp_model_latent *latent = &config->latent;
    uint32_t heads = config->heads, hidden = config->hidden;
    bool own = role == RP_WEIGHT_Q_B || role == RP_WEIGHT_K_B || role == RP_WEIGHT_V_B;
    *out = matrix_if(false, 0, 0, RP_SHARD_NONE, -1);
    if (!latent->rank)
        return own;
    uint32_t qkv[3] = {0};
    if (role == RP_WEIGHT_QKV)
        rp_model_qkv_rows(config, 0, qkv);
    if (role == RP_WEIGHT_QKV)
        *out = matrix_if(true, qkv[0] + qkv[1], hidden, RP_SHARD_NONE, RP_MODULE_Q);
    else if (role == RP_WEIGHT_Q_NORM)
        *out = vector_if(latent->q_rank, latent->q_rank, RP_SHARD_NONE);
    else if (role == RP_WEIGHT_K_NORM)
        *out = vector_if(true, latent->rank, RP_SHARD_NONE);
    else if (role == RP_WEIGHT_Q_B)
        *out = matrix_if(latent->q_rank, heads * config->head_dim, latent->q_rank, RP_SHARD_NONE,
                         RP_MODULE_Q_B);
    else if (role == RP_WEIGHT_K_B)
        *out =
            matrix_if(true, heads * latent->rank, latent->nope_dim, RP_SHARD_NONE, RP_MODULE_KV_B);
    else if (role == RP_WEIGHT_V_B)
        *out =
            matrix_if(true, heads * latent->value_dim, latent->rank, RP_SHARD_NONE, RP_MODULE_KV_B);
    else if (role == RP_WEIGHT_O)
        *out = matrix_if(true, hidden, heads * latent->value_dim, RP_SHARD_NONE, RP_MODULE_O);
    else
        return false;
    return true;
}

/* Weights of a layer with state. */
static struct shape state_shape(const struct rp_model_config *config, enum rp_weight_role role,
                                bool there) {
    const struct rp_model_state *state = &config->state;
    bool delta = there && state->value_heads;
    uint32_t hidden = config->hidden, cols = rp_model_conv_cols(config);
    uint32_t values = state->value_heads ? state->value_heads * state->value_dim : hidden;
    switch (role) {
    case RP_WEIGHT_MIX_IN:
        return matrix_if(there, delta ? cols + values : 3 * hidden, hidden, RP_SHARD_NONE, -1);
    case RP_WEIGHT_MIX_BA:
        return matrix_if(delta, 2 * state->value_heads, hidden, RP_SHARD_NONE, -1);
    case RP_WEIGHT_MIX_OUT:
        return matrix_if(there, hidden, values, RP_SHARD_NONE, -1);
    case RP_WEIGHT_CONV:
        return vector_if(there, cols * state->conv_width, RP_SHARD_NONE);
    case RP_WEIGHT_DELTA_NORM:
        return vector_if(delta, state->value_dim, RP_SHARD_NONE);
    default:
        return vector_if(delta, state->value_heads, RP_SHARD_NONE);
    }
}

static struct shape shape_of(const struct rp_model_config *config, enum rp_weight_role role,
                             uint32_t layer) {
    struct shape latent;
    if (latent_shape(config, role, &latent))
        return latent;
    bool experts = rp_model_has_experts(config, layer), in_layer = layer < config->layers;
    uint32_t hidden = config->hidden, rows[3] = {0}, inner = 0;
    if (in_layer)
        rp_model_qkv_rows(config, layer, rows);
    if (in_layer && (!experts || config->experts.parallel))
        inner = rp_model_intermediate(config, layer);
    uint32_t q_rows = rows[0] / (config->output_gate ? 2 : 1);
    uint32_t qkv_rows = rows[0] + rows[1] + rows[2];
    bool state = rp_model_has_state(config, layer);
    uint32_t dim = in_layer ? q_rows / config->heads : 0;
    bool whole = config->qk_norm == RP_QK_NORM_WHOLE || config->qk_norm == RP_QK_NORM_EACH_HEAD;
    switch (role) {
    case RP_WEIGHT_EMBED:
        return (struct shape){config->vocab, hidden, RP_SHARD_ROWS, -1};
    case RP_WEIGHT_HEAD:
        return (struct shape){config->tied ? 0 : config->vocab, hidden, RP_SHARD_ROWS, -1};
    case RP_WEIGHT_QKV:
        return matrix_if(!state, qkv_rows, hidden, RP_SHARD_ROWS, RP_MODULE_Q);
    case RP_WEIGHT_O:
        return matrix_if(!state, hidden, q_rows, RP_SHARD_COLS, RP_MODULE_O);
    case RP_WEIGHT_GATE_UP:
        return (struct shape){2 * inner, hidden, RP_SHARD_ROWS, RP_MODULE_GATE};
    case RP_WEIGHT_DOWN:
        return matrix_if(inner > 0, hidden, inner, RP_SHARD_COLS, RP_MODULE_DOWN);
    case RP_WEIGHT_QKV_BIAS:
        return vector_if(config->qkv_bias && !state, qkv_rows, RP_SHARD_ROWS);
    case RP_WEIGHT_GATE_UP_BIAS:
        return vector_if(config->mlp_bias, 2 * inner, RP_SHARD_ROWS);
    case RP_WEIGHT_Q_NORM:
        return vector_if(config->qk_norm, whole ? q_rows : dim, RP_SHARD_NONE);
    case RP_WEIGHT_K_NORM:
        return vector_if(config->qk_norm && rows[1], whole ? rows[1] : dim, RP_SHARD_NONE);
    case RP_WEIGHT_SINKS:
        return vector_if(config->attention_sinks, config->heads, RP_SHARD_ROWS);
    case RP_WEIGHT_ATTN_NORM:
        return vector_if(!config->no_pre_norms, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_MLP_NORM:
        return vector_if(!config->no_pre_norms && !config->parallel, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_FINAL_NORM_BIAS:
    case RP_WEIGHT_ATTN_NORM_BIAS:
        return vector_if(config->norm_bias, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_MLP_NORM_BIAS:
        return vector_if(config->norm_bias && !config->parallel, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_O_BIAS:
        return vector_if(config->o_bias && !state, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_DOWN_BIAS:
        return vector_if(config->mlp_bias && inner, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_ATTN_POST_NORM:
    case RP_WEIGHT_MLP_POST_NORM:
        return vector_if(config->post_norms, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_FINAL_NORM:
        return vector_if(true, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_LAYER_GATE:
        return matrix_if(config->layer_embed, config->layer_embed, hidden, RP_SHARD_NONE, -1);
    case RP_WEIGHT_LAYER_OUT:
        return matrix_if(config->layer_embed, hidden, config->layer_embed, RP_SHARD_NONE, -1);
    case RP_WEIGHT_LAYER_NORM:
        return vector_if(config->layer_embed, hidden, RP_SHARD_NONE);
    case RP_WEIGHT_LAYER_SCALAR:
        return vector_if(config->layer_scalars, 1, RP_SHARD_NONE);
    case RP_WEIGHT_LAYER_EMBED:
        return matrix_if(!in_layer && config->layer_embed, config->layer_embed_vocab,
                         config->layers * config->layer_embed, RP_SHARD_NONE, -1);
    case RP_WEIGHT_LAYER_PROJ:
        return matrix_if(!in_layer && config->layer_embed, config->layers * config->layer_embed,
                         hidden, RP_SHARD_NONE, -1);
    case RP_WEIGHT_LAYER_PROJ_NORM:
        return vector_if(!in_layer, config->layer_embed, RP_SHARD_NONE);
    default:
        return role >= RP_WEIGHT_MIX_IN ? state_shape(config, role, state)
                                        : expert_shape(config, role, experts);
    }
}

bool rp_weight_is_quantized(const struct rp_model_config *config, enum rp_weight_role role,
                            uint32_t layer) {
    int module = shape_of(config, role, layer).module;
    if (role == RP_WEIGHT_HEAD)
        return config->quant.head;
    return module >= 0 && layer < RP_LAYERS_MAX && (config->quant.modules[layer] >> module & 1);
}

/* A part of blocks for each tensor of a layer's matrix. */
static void describe_parts(const struct rp_model_config *config, struct rp_weight *weight,
                           const uint8_t types[RP_MODULE_COUNT]) {
    struct rp_matrix *matrix = &weight->matrix;
    struct rp_matrix_part *parts = matrix->parts;
    uint32_t rows[3], inner = rp_model_intermediate(config, weight->layer);
    static const enum rp_module modules[3] = {RP_MODULE_Q, RP_MODULE_K, RP_MODULE_V};
    uint8_t type = types[shape_of(config, weight->role, weight->layer).module];
    matrix->part_count = 1;
    parts[0] = (struct rp_matrix_part){.rows = matrix->rows, .type = type};
    if (rp_weight_is_fused(config, weight->role))
        return;
    if (weight->role == RP_WEIGHT_QKV) {
        uint32_t begin = 0;
        rp_model_qkv_rows(config, weight->layer, rows);
        matrix->part_count = 0;
        for (uint32_t i = 0; i < 3 && rows[i]; i++) {
            parts[matrix->part_count++] = (struct rp_matrix_part){
                .row_begin = begin, .rows = rows[i], .type = types[modules[i]]};
            begin += rows[i];
        }
    } else if (weight->role == RP_WEIGHT_GATE_UP) {
        matrix->part_count = 2;
        parts[0].rows = inner;
        parts[1] =
            (struct rp_matrix_part){.row_begin = inner, .rows = inner, .type = types[RP_MODULE_UP]};
    }
}

/* GGUF's blocks as they are in the file. */
static void describe_blocks(const struct rp_model_config *config, struct rp_weight *weight,
                            enum rp_dtype dtype) {
    struct rp_matrix *matrix = &weight->matrix;
    const struct rp_model_gguf *gguf = &config->gguf;
    matrix->dtype = RP_DTYPE_BLOCKS;
    matrix->input = dtype == RP_DTYPE_BF16 ? RP_INPUT_QUANTIZED : RP_INPUT_PLAIN;
    matrix->part_count = 1;
    matrix->parts[0] = (struct rp_matrix_part){
        .rows = matrix->rows, .type = weight->role == RP_WEIGHT_HEAD ? gguf->head : gguf->embed};
    if (weight->layer < RP_LAYERS_MAX)
        describe_parts(config, weight, gguf->types[weight->layer]);
}

void rp_weight_describe_4bit(const struct rp_model_config *config, struct rp_weight *weight) {
    struct rp_matrix *matrix = &weight->matrix;
    const struct rp_model_quant *quant = &config->quant;
    matrix->dtype = RP_DTYPE_BLOCKS;
    matrix->input = RP_INPUT_BF16;
    matrix->part_count = 1;
    matrix->parts[0] = (struct rp_matrix_part){.rows = matrix->rows, .type = quant->head_type};
    if (weight->layer < RP_LAYERS_MAX)
        describe_parts(config, weight, quant->types[weight->layer]);
}

/* Type and scales in memory: those of the checkpoint, or of --quantization. */
static void describe_type(const struct rp_model_config *config, struct rp_weight *weight) {
    const struct rp_model_quant *quant = &config->quant;
    struct rp_matrix *matrix = &weight->matrix;
    bool quantized = rp_weight_is_quantized(config, weight->role, weight->layer);
    if (rp_weight_is_split(weight->role))
        return;
    if (quantized && matrix->dtype == RP_DTYPE_BF16 && quant->dtype == RP_DTYPE_BLOCKS) {
        rp_weight_describe_4bit(config, weight);
    } else if (quantized && matrix->dtype == RP_DTYPE_BF16) {
        matrix->dtype = quant->dtype;
        matrix->scale_kind =
            quant->scales == RP_SCALE_BLOCK_128 ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL;
        matrix->input = quant->input;
    }
    /* One row, or a choice that rounding would change, for a thousandth of the bytes. */
    if (weight->role == RP_WEIGHT_ROUTER || weight->role == RP_WEIGHT_SHARED_GATE ||
        weight->role == RP_WEIGHT_MIX_BA)
        return;
    bool head = weight->role == RP_WEIGHT_HEAD || (weight->role == RP_WEIGHT_EMBED && config->tied);
    if (weight->layer != RP_LAYER_NONE || (head && config->quantize_head))
        rp_quant_describe(matrix, config->quantization);
}

static void add_weight(struct rp_model *model, enum rp_weight_role role, uint32_t layer) {
    struct shape shape = shape_of(&model->config, role, layer);
    bool stack = role == RP_WEIGHT_EXPERT_GATE_UP || role == RP_WEIGHT_EXPERT_DOWN ||
                 role == RP_WEIGHT_EXPERT_GATE_UP_BIAS || role == RP_WEIGHT_EXPERT_DOWN_BIAS;
    if (shape.rows == 0)
        return;
    struct rp_weights *weights = &model->weights;
    struct rp_weight *weight = &weights->entries[weights->count++];
    *weight = (struct rp_weight){.role = role,
                                 .layer = (uint16_t)layer,
                                 .experts = stack ? (uint16_t)model->config.experts.count : 0,
                                 .shard = shape.shard};
    if (shape.cols) {
        weight->matrix =
            (struct rp_matrix){.rows = shape.rows, .cols = shape.cols, .dtype = model->dtype};
        if (model->config.gguf.blocks)
            describe_blocks(&model->config, weight, model->dtype);
        else
            describe_type(&model->config, weight);
    } else {
        weight->length = shape.rows;
    }
    uint32_t row = layer == RP_LAYER_NONE ? model->config.layers : layer;
    weights->index[row * RP_WEIGHT_ROLE_COUNT + role] = weights->count;
}

int rp_weights_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                        struct rp_model *out_model, struct rp_error *err) {
    static const enum rp_weight_role outside[] = {
        RP_WEIGHT_FINAL_NORM,  RP_WEIGHT_FINAL_NORM_BIAS, RP_WEIGHT_HEAD,           RP_WEIGHT_EMBED,
        RP_WEIGHT_LAYER_EMBED, RP_WEIGHT_LAYER_PROJ,      RP_WEIGHT_LAYER_PROJ_NORM};
    struct rp_model model;
    memset(&model, 0, sizeof model);
    model.config = *config;
    rp_tensor_default_stacked(&model.config);
    model.dtype = dtype;
    size_t places = (size_t)(config->layers + 1) * RP_WEIGHT_ROLE_COUNT;
    model.weights.entries = rp_calloc(places, sizeof *model.weights.entries);
    model.weights.index = rp_calloc(places, sizeof *model.weights.index);
    if (!model.weights.entries || !model.weights.index) {
        rp_model_deinit(&model);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory for %u layers",
                            config->layers);
    }
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (int role = RP_WEIGHT_ATTN_NORM; role < RP_WEIGHT_ROLE_COUNT; role++)
            add_weight(&model, (enum rp_weight_role)role, layer);
    for (size_t i = 0; i < RP_ARRAY_COUNT(outside); i++)
        add_weight(&model, outside[i], RP_LAYER_NONE);
    model.rope_positions = config->max_position;
    *out_model = model;
    return RP_OK;
}

struct rp_weight *rp_model_weight(const struct rp_model *model, enum rp_weight_role role,
                                  uint32_t layer) {
    uint32_t row = layer == RP_LAYER_NONE ? model->config.layers : layer;
    RP_ASSERT_CMP(row, <=, model->config.layers);
    if (role == RP_WEIGHT_HEAD && model->config.tied)
        role = RP_WEIGHT_EMBED;
    uint32_t at = model->weights.index[row * RP_WEIGHT_ROLE_COUNT + role];
    return at ? &model->weights.entries[at - 1] : NULL;
}

struct rp_matrix *rp_model_matrix(const struct rp_model *model, enum rp_weight_role role,
                                  uint32_t layer) {
    struct rp_weight *weight = rp_model_weight(model, role, layer);
    RP_ASSERT(weight && rp_weight_is_matrix(weight));
    return weight->shards ? weight->shards : &weight->matrix;
}

float *rp_model_vector(const struct rp_model *model, enum rp_weight_role role, uint32_t layer) {
    struct rp_weight *weight = rp_model_weight(model, role, layer);
    if (!weight)
        return NULL;
    return weight->rank_length ? weight->rank_vectors : weight->vector;
}

/* --- memory ---------------------------------------------------------------------------------- */

int rp_weights_no_memory(const struct rp_model *model, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: no memory for %llu MiB of weights",
                              (unsigned long long)(rp_model_weight_bytes(model) >> 20));
    rp_error_hint(err, "try --dtype bfloat16, or a smaller --max-model-len");
    return status;
}

int rp_weights_allocate_matrix(struct rp_matrix *matrix) {
    size_t bytes = rp_matrix_bytes(matrix), scales = rp_matrix_scale_count(matrix);
    if (!matrix->data)
        matrix->data = bytes ? rp_alloc_aligned(bytes, WEIGHT_ALIGN) : NULL;
    if (scales > 0 && !matrix->scales)
        matrix->scales = rp_alloc_aligned(scales * sizeof(float), WEIGHT_ALIGN);
    return matrix->data && (scales == 0 || matrix->scales) ? RP_OK : RP_STATUS_NO_MEMORY;
}

/* false: no memory. */
static bool make_rope_table(const struct rp_model *model, const struct rp_rope *rope, float **out) {
    uint32_t full_dim = model->config.full_head_dim, head_dim = model->config.head_dim;
    if (rope == &model->config.rope && full_dim)
        head_dim = full_dim;
    size_t bytes, row = 2 * rp_rope_pairs(rope, head_dim) * sizeof(float);
    if (rope->theta == 0)
        return true;
    *out = rp_mul_overflow(model->rope_positions, row, &bytes)
               ? NULL
               : rp_alloc_aligned(bytes, WEIGHT_ALIGN);
    if (*out)
        rp_rope_table_fill(rope, head_dim, model->rope_positions, *out);
    return *out != NULL;
}

int rp_weights_allocate_vectors(struct rp_model *model, uint32_t position_count,
                                struct rp_error *err) {
    const struct rp_model_config *config = &model->config;
    uint32_t positions = position_count ? position_count : config->max_position;
    bool ok = true;
    for (uint32_t i = 0; i < model->weights.count && ok; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        if (rp_weight_is_matrix(weight))
            continue;
        weight->vector = rp_alloc_aligned(weight->length * sizeof(float), WEIGHT_ALIGN);
        ok = weight->vector != NULL;
    }
    model->rope_positions = positions;
    ok = ok && make_rope_table(model, &config->rope, &model->rope_table) &&
         make_rope_table(model, &config->local_rope, &model->local_rope_table);
    if (ok && config->q_scale_beta != 0) {
        model->q_scale_table = rp_alloc_aligned(positions * sizeof(float), WEIGHT_ALIGN);
        ok = model->q_scale_table != NULL;
    }
    if (ok && config->v_norm) {
        uint32_t count = RP_MAX(config->head_dim, config->full_head_dim);
        model->ones = rp_alloc_aligned(count * sizeof(float), WEIGHT_ALIGN);
        ok = model->ones != NULL;
        for (uint32_t i = 0; ok && i < count; i++)
            model->ones[i] = 1.0f;
    }
    if (!ok)
        return rp_weights_no_memory(model, err);
    if (model->q_scale_table)
        rp_q_scale_table_fill(config->q_scale_beta, config->rope.original_max_position, positions,
                              model->q_scale_table);
    return RP_OK;
}

void rp_model_deinit(struct rp_model *model) {
    for (uint32_t i = 0; i < model->weights.count; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        rp_matrix_deinit(&weight->matrix);
        for (uint32_t rank = 0; weight->shards && rank < model->ranks; rank++)
            rp_matrix_deinit(&weight->shards[rank]);
        rp_free(weight->shards);
        rp_free_aligned(weight->vector);
        rp_free_aligned(weight->rank_vectors);
    }
    rp_weight_source_destroy(model->source);
    rp_model_drop_mask(model);
    rp_free(model->weights.entries);
    rp_free(model->weights.index);
    rp_free_aligned(model->rope_table);
    rp_free_aligned(model->local_rope_table);
    rp_free_aligned(model->q_scale_table);
    rp_free_aligned(model->ones);
    memset(model, 0, sizeof *model);
}

uint64_t rp_model_weight_bytes(const struct rp_model *model) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_weight *weight = &model->weights.entries[i];
        const struct rp_matrix *matrix = weight->shards ? weight->shards : &weight->matrix;
        bytes += (weight->rank_length ? weight->rank_length : weight->length) * sizeof(float);
        if (rp_weight_is_matrix(weight))
            bytes += rp_matrix_bytes(matrix) + rp_matrix_scale_count(matrix) * sizeof(float);
    }
    return bytes;
}

uint64_t rp_model_parameter_count(const struct rp_model *model) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_weight *weight = &model->weights.entries[i];
        count += weight->length + (uint64_t)weight->matrix.rows * weight->matrix.cols;
    }
    return count;
}

uint64_t rp_model_active_parameter_count(const struct rp_model *model) {
    uint64_t count = rp_model_parameter_count(model);
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_weight *weight = &model->weights.entries[i];
        uint64_t values = weight->length + (uint64_t)weight->matrix.rows * weight->matrix.cols;
        if (weight->experts)
            count -= values / weight->experts * (weight->experts - model->config.experts.used);
    }
    return count;
}

/* --- types ----------------------------------------------------------------------------------- */

enum rp_dtype rp_weights_blocks_dtype(const struct rp_model_config *config) {
    const struct rp_model_gguf *gguf = &config->gguf;
    bool scales = !rp_block_is_plain(gguf->embed) || !rp_block_is_plain(gguf->head);
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (int i = 0; i < RP_MODULE_COUNT; i++)
            scales = scales || !rp_block_is_plain(gguf->types[layer][i]);
    return scales ? RP_DTYPE_BF16 : RP_DTYPE_F32;
}

int rp_weights_check_dtype(const struct rp_model_config *config, enum rp_dtype dtype,
                           struct rp_error *err) {
    if (config->quantization != RP_QUANT_NONE && config->gguf.present) {
        int status = rp_error_set(err, RP_STATUS_INVALID,
                                  "model: the weights of a GGUF file are not made %s",
                                  rp_quant_scheme_name(config->quantization));
        rp_error_hint(err, "omit --quantization: blocks keep their bits");
        return status;
    }
    if (config->quantization != RP_QUANT_NONE && config->quant.scales != RP_SCALE_NONE) {
        int status =
            rp_error_set(err, RP_STATUS_INVALID,
                         "model: the weights of the checkpoint are quantized, they are not made %s",
                         rp_quant_scheme_name(config->quantization));
        rp_error_hint(err, "omit --quantization, or use the 16-bit checkpoint");
        return status;
    }
    if (rp_quant_scheme_has_blocks(config->quantization) && config->experts.count) {
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                  "model: 4-bit weights of experts are not supported");
        rp_error_hint(err, "--quantization int8 or fp8 quantizes them");
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
    if (dtype == RP_MODEL_DTYPE_AUTO && config->gguf.blocks)
        dtype = rp_weights_blocks_dtype(config);
    if (dtype == RP_MODEL_DTYPE_AUTO)
        dtype = config->file_dtype == RP_DTYPE_BF16 || config->quant.scales != RP_SCALE_NONE ||
                        config->quantization != RP_QUANT_NONE
                    ? RP_DTYPE_BF16
                    : RP_DTYPE_F32;
    return rp_weights_describe(config, dtype, out_model, err);
}
