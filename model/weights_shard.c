/* Divides the weights among the ranks of a group, by the table's shard axis:
 *
 *   qkv            by heads: a rank's q heads and the KV heads that they read, with their biases; a
 *                  KV head that several ranks read is copied to each
 *   gate_up        by intermediate columns: the same rows of gate and of up
 *   o, down        by columns: partial sums, whose biases rank 0 alone adds
 *   experts        each expert like gate_up and down; every rank has the router and routes alike
 *   embed, head    by the vocabulary, in multiples of 128 rows
 *   norms of q, k  with their heads, sinks too; all other vectors are the same on every rank
 *
 * Matrices are read whole, one after the other, and cut in host memory: what is quantized at load
 * gets the scales that it has without a group, and every byte of the file is read once. */
#include "base/memory.h"
#include "model/weights_internal.h"
#include "quant/matrix_cut.h"

#include <stdio.h>
#include <string.h>

#define WEIGHT_ALIGN 64
/* Rows of a rank of the vocabulary: whole tiles of GEMMs, and whole blocks of scales. */
#define VOCAB_ROWS 128u
/* Gate rows of an expert come in multiples of these on each rank (quant/matmul_experts.h). */
#define EXPERT_COLS 16u

static uint32_t ranks_of(const struct rp_model *model) { return RP_MAX(model->ranks, 1u); }

uint32_t rp_model_rank_heads(const struct rp_model *model) {
    return model->config.heads / ranks_of(model);
}

uint32_t rp_model_rank_kv_heads(const struct rp_model *model) {
    return RP_MAX(model->config.kv_heads / ranks_of(model), 1u);
}

uint32_t rp_model_rank_intermediate(const struct rp_model *model) {
    return model->config.intermediate / ranks_of(model);
}

uint32_t rp_model_rank_expert_intermediate(const struct rp_model *model) {
    return model->config.experts.intermediate / ranks_of(model);
}

uint32_t rp_model_rank_vocab(const struct rp_model *model) {
    uint32_t ranks = ranks_of(model), vocab = model->config.vocab;
    return ranks == 1 ? vocab : RP_ALIGN_UP(RP_CEIL_DIV(vocab, ranks), VOCAB_ROWS);
}

/* --- which part of a weight a rank has ------------------------------------------------------- */

static void add_run(struct rp_matrix_cut *cut, uint32_t from, uint32_t rows) {
    cut->runs[cut->run_count].from = from;
    cut->runs[cut->run_count++].rows = rows;
}

/* Gate and up rows of a rank, of `whole` each. */
static void add_gate_up(struct rp_matrix_cut *cut, uint32_t whole, uint32_t ranks, uint32_t rank) {
    uint32_t own = whole / ranks;
    add_run(cut, rank * own, own);
    add_run(cut, whole + rank * own, own);
}

/* run_count 0, of vectors alone: the same on every rank. */
static struct rp_matrix_cut cut_of(const struct rp_model *model, const struct rp_weight *weight,
                                   uint32_t rank) {
    const struct rp_model_config *config = &model->config;
    uint32_t dim = config->head_dim, q = rp_model_rank_heads(model) * dim;
    uint32_t kv = rp_model_rank_kv_heads(model) * dim;
    uint32_t first_kv = (uint32_t)((uint64_t)rank * config->kv_heads / ranks_of(model)) * dim;
    uint32_t q_rows = config->heads * dim, kv_rows = config->kv_heads * dim;
    struct rp_matrix_cut cut = {.cols = weight->matrix.cols};
    switch (weight->role) {
    case RP_WEIGHT_EMBED:
    case RP_WEIGHT_HEAD:
        add_run(&cut, rank * rp_model_rank_vocab(model), rp_model_rank_vocab(model));
        break;
    case RP_WEIGHT_QKV:
    case RP_WEIGHT_QKV_BIAS:
        add_run(&cut, rank * q, q);
        add_run(&cut, q_rows + first_kv, kv);
        add_run(&cut, q_rows + kv_rows + first_kv, kv);
        break;
    case RP_WEIGHT_GATE_UP:
    case RP_WEIGHT_GATE_UP_BIAS:
        add_gate_up(&cut, config->intermediate, ranks_of(model), rank);
        break;
    case RP_WEIGHT_EXPERT_GATE_UP:
    case RP_WEIGHT_EXPERT_GATE_UP_BIAS:
        cut.sections = weight->experts;
        add_gate_up(&cut, config->experts.intermediate, ranks_of(model), rank);
        break;
    case RP_WEIGHT_SHARED_GATE_UP:
        add_gate_up(&cut, config->experts.shared, ranks_of(model), rank);
        break;
    case RP_WEIGHT_O:
    case RP_WEIGHT_DOWN:
    case RP_WEIGHT_EXPERT_DOWN:
    case RP_WEIGHT_SHARED_DOWN:
        add_run(&cut, 0, weight->matrix.rows);
        cut.cols = weight->matrix.cols / ranks_of(model);
        cut.col = rank * cut.cols;
        break;
    case RP_WEIGHT_ROUTER:
    case RP_WEIGHT_SHARED_GATE:
        add_run(&cut, 0, weight->matrix.rows);
        break;
    case RP_WEIGHT_SINKS:
        add_run(&cut, rank * rp_model_rank_heads(model), rp_model_rank_heads(model));
        break;
    case RP_WEIGHT_Q_NORM:
        if (weight->length > dim)
            add_run(&cut, rank * q, q);
        break;
    case RP_WEIGHT_K_NORM:
        if (weight->length > dim)
            add_run(&cut, first_kv, kv);
        break;
    default:
        break;
    }
    return cut;
}

/* --- what cannot be divided ------------------------------------------------------------------ */

/* NULL, or the key of the configuration and its value, which `ranks` do not divide. */
static const char *bad_key(const struct rp_model_config *config, uint32_t ranks,
                           uint32_t *out_value) {
    *out_value = config->heads;
    if (config->heads % ranks)
        return "num_attention_heads";
    *out_value = config->kv_heads;
    if (config->kv_heads % ranks && ranks % config->kv_heads)
        return "num_key_value_heads";
    bool dense = false;
    for (uint32_t layer = 0; layer < config->layers; layer++)
        dense = dense || !rp_model_has_experts(config, layer);
    *out_value = config->intermediate;
    if (dense && config->intermediate % ranks)
        return "intermediate_size";
    *out_value = config->experts.shared;
    if (config->experts.shared % ranks)
        return "the shared expert's intermediate size";
    /* Panels of 16 outputs begin with each half of an expert. */
    *out_value = config->experts.intermediate;
    return config->experts.intermediate % (EXPERT_COLS * ranks) ? "the experts' intermediate size"
                                                                : NULL;
}

/* NULL, or the first matrix that cannot be cut, and why. */
static const struct rp_weight *bad_matrix(const struct rp_model *model, const char **out_why) {
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_weight *weight = &model->weights.entries[i];
        for (uint32_t rank = 0; rank < model->ranks && rp_weight_is_matrix(weight); rank++) {
            const struct rp_matrix_cut cut = cut_of(model, weight, rank);
            *out_why = cut.run_count ? rp_matrix_cut_refusal(&weight->matrix, &cut)
                                     : "matrices of this kind are not divided yet";
            if (*out_why)
                return weight;
        }
    }
    return NULL;
}

static bool divides(const struct rp_model *model, uint32_t ranks) {
    struct rp_model other = *model; /* the table is only read */
    uint32_t value;
    const char *why;
    other.ranks = ranks;
    return !bad_key(&model->config, ranks, &value) && !bad_matrix(&other, &why);
}

static void hint_sizes(const struct rp_model *model, struct rp_error *err) {
    char sizes[32] = "1";
    for (uint32_t ranks = 2; ranks <= RP_RANKS_MAX; ranks *= 2)
        if (divides(model, ranks))
            snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %u", ranks);
    if (sizes[1])
        rp_error_hint(err, "this model can be divided by --tensor-parallel-size %s", sizes);
    else
        rp_error_hint(err, "this model cannot be divided: omit --tensor-parallel-size");
}

static const char *name_of(enum rp_weight_role role) {
    switch (role) {
    case RP_WEIGHT_QKV:
        return "q, k and v";
    case RP_WEIGHT_O:
        return "o";
    case RP_WEIGHT_GATE_UP:
        return "gate and up";
    case RP_WEIGHT_DOWN:
        return "down";
    case RP_WEIGHT_EXPERT_GATE_UP:
    case RP_WEIGHT_EXPERT_DOWN:
    case RP_WEIGHT_SHARED_GATE_UP:
    case RP_WEIGHT_SHARED_DOWN:
        return "a layer of experts";
    case RP_WEIGHT_EMBED:
        return "the embedding";
    case RP_WEIGHT_HEAD:
        return "the output layer";
    default:
        return "a matrix of the layers";
    }
}

static int check(struct rp_model *model, struct rp_error *err) {
    const char *why;
    uint32_t value, ranks = model->ranks;
    if (!rp_model_has_equal_layers(&model->config) || model->config.layer_embed) {
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                  "--tensor-parallel-size: layers with different heads, shared K "
                                  "and V or embeddings of their own are not divided yet");
        rp_error_hint(err, "omit --tensor-parallel-size");
        return status;
    }
    const char *key = bad_key(&model->config, ranks, &value);
    const struct rp_weight *weight = key ? NULL : bad_matrix(model, &why);
    if (!key && !weight)
        return RP_OK;
    int status;
    if (key)
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "--tensor-parallel-size: %s of %u cannot be divided among %u ranks",
                              key, value, ranks);
    else
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "--tensor-parallel-size: %s cannot be divided among %u ranks: %s",
                              name_of(weight->role), ranks, why);
    hint_sizes(model, err);
    return status;
}

/* --- the table ------------------------------------------------------------------------------- */

static bool divide_vector(const struct rp_model *model, struct rp_weight *weight) {
    struct rp_matrix_cut cut = cut_of(model, weight, 0);
    uint32_t sections = RP_MAX(cut.sections, 1u), section = weight->length / sections;
    for (uint32_t i = 0; i < cut.run_count; i++)
        weight->rank_length += cut.runs[i].rows * sections;
    if (!weight->rank_length || !weight->vector)
        return true;
    float *to =
        rp_alloc_aligned((size_t)model->ranks * weight->rank_length * sizeof *to, WEIGHT_ALIGN);
    weight->rank_vectors = to;
    for (uint32_t rank = 0; to && rank < model->ranks; rank++) {
        cut = cut_of(model, weight, rank);
        for (uint32_t i = 0; i < cut.run_count * sections; i++) {
            uint32_t run = i % cut.run_count, rows = cut.runs[run].rows;
            memcpy(to, weight->vector + i / cut.run_count * section + cut.runs[run].from,
                   rows * sizeof *to);
            to += rows;
        }
    }
    return weight->rank_vectors != NULL;
}

static bool describe_shards(const struct rp_model *model, struct rp_weight *weight) {
    weight->shards = rp_calloc(model->ranks, sizeof *weight->shards);
    for (uint32_t rank = 0; weight->shards && rank < model->ranks; rank++) {
        const struct rp_matrix_cut cut = cut_of(model, weight, rank);
        weight->shards[rank] = rp_matrix_cut_shape(&weight->matrix, &cut);
        weight->shards[rank].rank = rank;
    }
    return weight->shards != NULL;
}

int rp_model_shard(struct rp_model *model, uint32_t ranks, struct rp_error *err) {
    RP_ASSERT(model->ranks == 0 && ranks <= RP_RANKS_MAX);
    if (ranks <= 1)
        return RP_OK;
    if (model->config.latent.rank) {
        int refused = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                   "--tensor-parallel-size: models with latent attention "
                                   "(kv_lora_rank) cannot be divided among %u ranks",
                                   ranks);
        rp_error_hint(err, "omit --tensor-parallel-size");
        return refused;
    }
    model->ranks = ranks;
    int status = check(model, err);
    for (uint32_t i = 0; i < model->weights.count && status == RP_OK; i++) {
        struct rp_weight *weight = &model->weights.entries[i];
        if (!(rp_weight_is_matrix(weight) ? describe_shards(model, weight)
                                          : divide_vector(model, weight)))
            status = rp_weights_no_memory(model, err);
    }
    return status;
}

static int refuse_order(const struct rp_weight *weight, struct rp_error *err) {
    int status =
        rp_error_set(err, RP_STATUS_UNSUPPORTED,
                     "--tensor-parallel-size: %s of layer %u has its columns in an order of "
                     "its own (desc_act), which cannot be divided",
                     name_of(weight->role), weight->layer);
    rp_error_hint(err, "omit --tensor-parallel-size, or use a checkpoint without desc_act");
    return status;
}

int rp_weight_divide_values(const struct rp_model *model, const struct rp_weight *weight,
                            uint32_t rank, const struct rp_matrix *values, struct rp_matrix *out,
                            uint32_t *out_col, struct rp_error *err) {
    struct rp_matrix_cut cut = cut_of(model, weight, rank);
    *out_col = cut.col;
    *out = *values;
    if (cut.cols != values->cols) /* a cut of columns has all rows */
        return RP_OK;
    *out = rp_matrix_cut_shape(values, &cut);
    if (rp_matrix_cut(values, &cut, out) == RP_OK)
        return RP_OK;
    rp_matrix_deinit(out);
    return rp_weights_no_memory(model, err);
}

int rp_weight_divide(const struct rp_model *model, struct rp_weight *weight, struct rp_error *err) {
    if (!weight->shards || !weight->matrix.data)
        return RP_OK;
    for (uint32_t rank = 0; rank < model->ranks; rank++) {
        const struct rp_matrix_cut cut = cut_of(model, weight, rank);
        int status = rp_matrix_cut(&weight->matrix, &cut, &weight->shards[rank]);
        if (status == RP_STATUS_UNSUPPORTED)
            return refuse_order(weight, err);
        if (status != RP_OK)
            return rp_weights_no_memory(model, err);
    }
    const struct rp_matrix whole = weight->matrix;
    rp_matrix_deinit(&weight->matrix);
    weight->matrix = whole; /* the shape stays */
    weight->matrix.data = NULL;
    weight->matrix.scales = NULL;
    for (uint32_t i = 0; i < weight->matrix.part_count; i++)
        weight->matrix.parts[i].columns = NULL;
    return RP_OK;
}
