/* weights_tensors.c - which tensors of a checkpoint become which rows of the table of weights: a
 * family's rules, their names in the files, and the order of their rows. */
#include "model/family.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"

#include <stdio.h>
#include <string.h>

/* Rows of the tensor that has both halves of each head. */
static uint32_t latent_kv_rows(const struct rp_model_config *config) {
    return config->heads * (config->latent.nope_dim + config->latent.value_dim);
}

static void set_span(const struct rp_model_config *config, enum rp_weight_span span,
                     struct rp_weight_part *part) {
    const struct rp_weight *weight = part->weight;
    bool split = rp_weight_is_split(weight->role);
    uint32_t qkv[3] = {0};
    bool in_layer = weight->layer < config->layers;
    if (in_layer)
        rp_model_qkv_rows(config, weight->layer, qkv);
    uint32_t conv = rp_model_conv_cols(config), heads = config->state.value_heads;
    uint32_t inner = weight->role == RP_WEIGHT_EXPERT_GATE_UP   ? config->experts.intermediate
                     : weight->role == RP_WEIGHT_SHARED_GATE_UP ? config->experts.shared
                     : in_layer ? rp_model_intermediate(config, weight->layer)
                                : 0;
    const struct {
        uint32_t begin, rows;
    } spans[] = {
        [RP_SPAN_ALL] = {0, split                         ? latent_kv_rows(config)
                            : rp_weight_is_matrix(weight) ? weight->matrix.rows
                                                          : weight->length},
        [RP_SPAN_Q] = {0, config->latent.q_rank ? 0 : qkv[0]},
        [RP_SPAN_Q_A] = {0, config->latent.q_rank},
        [RP_SPAN_K] = {qkv[0], qkv[1]},
        [RP_SPAN_V] = {qkv[0] + qkv[1], qkv[2]},
        [RP_SPAN_GATE] = {0, inner},
        [RP_SPAN_UP] = {inner, inner},
        [RP_SPAN_EACH_HEAD] = {0, config->head_dim},
        [RP_SPAN_MIX_QKV] = {0, conv},
        [RP_SPAN_MIX_Z] = {conv, heads * config->state.value_dim},
        [RP_SPAN_MIX_B] = {0, heads},
        [RP_SPAN_MIX_A] = {heads, heads},
        [RP_SPAN_GROUPED] = {0, weight->matrix.rows},
    };
    part->row_begin = spans[span].begin;
    part->rows = spans[span].rows;
    part->cols = split ? config->latent.rank : weight->matrix.cols;
    part->split = split;
}

uint32_t rp_row_order_place(const struct rp_row_order *order, uint32_t row) {
    if (order->gate_up)
        return row / order->gate_up * order->gate_up + row % order->gate_up / 2 +
               row % 2 * (order->gate_up / 2);
    if (order->section_count)
        return rp_row_section_place(order, row);
    uint32_t dim = order->head_dim, head = row / dim, i = row % dim;
    if (order->group) {
        uint32_t set = head / (order->group + 2), at = head % (order->group + 2);
        uint32_t heads = order->group * order->kv_heads;
        head = at < order->group    ? set * order->group + at
               : at == order->group ? heads + set
                                    : heads + order->kv_heads + set;
    }
    uint32_t pair = i - order->skip; /* wraps below it */
    if (pair < order->pairs)
        i = order->skip + pair / 2 + pair % 2 * (order->pairs / 2);
    return head * dim + i;
}

static void set_order(const struct rp_model_config *config, const struct rp_tensor_rule *rule,
                      struct rp_weight_part *part) {
    enum rp_qkv_order order =
        config->gguf.interleaved ? RP_QKV_PAIRS : rp_model_family(config->family)->qkv_order;
    bool qkv = rule->role == RP_WEIGHT_QKV || rule->role == RP_WEIGHT_QKV_BIAS;
    bool norm = rule->role == RP_WEIGHT_Q_NORM || rule->role == RP_WEIGHT_K_NORM;
    bool gate_up =
        rule->role == RP_WEIGHT_EXPERT_GATE_UP || rule->role == RP_WEIGHT_EXPERT_GATE_UP_BIAS;
    part->order.head_dim = config->head_dim;
    if (config->latent.rank) {
        bool q = rule->role == RP_WEIGHT_Q_B || (qkv && rule->span == RP_SPAN_Q);
        bool row = qkv && rule->span == RP_SPAN_K;
        if (row)
            part->order.head_dim = rp_model_latent_cols(&config->latent);
        if (order == RP_QKV_PAIRS && (q || row)) {
            part->order.skip = part->order.head_dim - config->latent.rope_dim;
            part->order.pairs = config->latent.rope_dim;
        }
        return;
    }
    if (gate_up && part->stacked && rp_model_family(config->family)->expert_pairs)
        part->order.gate_up = part->rows / part->weight->experts;
    rp_row_order_set_sections(config, rule, &part->order);
    if (order == RP_QKV_PAIRS && (norm || (qkv && rule->span != RP_SPAN_V)))
        part->order.pairs = config->rope.rotary_dim ? config->rope.rotary_dim : config->head_dim;
    if (order == RP_QKV_GROUPS && qkv) {
        part->order.group = config->heads / config->kv_heads;
        part->order.kv_heads = config->kv_heads;
    }
}

bool rp_weight_is_fused(const struct rp_model_config *config, enum rp_weight_role role) {
    const struct rp_model_family *family = rp_model_family(config->family);
    for (uint32_t i = 0; i < family->tensor_count; i++)
        if (family->tensors[i].role == role && family->tensors[i].span == RP_SPAN_ALL)
            return true;
    return false;
}

void rp_tensor_name(const struct rp_model_config *config, const char *name, char *out,
                    size_t out_bytes) {
    bool inside = config->prefix == RP_PREFIX_INSIDE && strncmp(name, "model.", 6) == 0;
    const char *prefix = inside                                ? "model.language_model."
                         : config->prefix == RP_PREFIX_OUTSIDE ? "language_model."
                                                               : "";
    snprintf(out, out_bytes, "%s%s", prefix, inside ? name + 6 : name);
}

void rp_tensor_choose_prefix(const struct rp_safetensors *files, struct rp_model_config *config) {
    static const enum rp_tensor_prefix prefixes[] = {RP_PREFIX_OUTSIDE, RP_PREFIX_INSIDE};
    char name[96];
    config->prefix = RP_PREFIX_NONE;
    for (size_t i = 0; config->wrapped && i < RP_ARRAY_COUNT(prefixes); i++) {
        config->prefix = prefixes[i];
        rp_tensor_name(config, "model.norm.weight", name, sizeof name);
        if (rp_safetensors_find(files, name))
            return;
    }
    config->prefix = RP_PREFIX_NONE;
}

/* Whether files of the family may have a tensor for each expert (or one for all). */
static bool names_experts(const struct rp_model_family *family, bool each) {
    for (uint32_t i = 0; i < family->tensor_count; i++) {
        const struct rp_tensor_rule *rule = &family->tensors[i];
        if (rule->role == RP_WEIGHT_EXPERT_GATE_UP && (strchr(rule->name, '*') != NULL) == each)
            return true;
    }
    return false;
}

void rp_tensor_default_stacked(struct rp_model_config *config) {
    const struct rp_model_family *family = rp_model_family(config->family);
    bool all = names_experts(family, false);
    if (config->experts.count && all != names_experts(family, true))
        config->experts.stacked = all;
}

void rp_tensor_choose_stacked(const struct rp_safetensors *files, struct rp_model_config *config) {
    const struct rp_model_family *family = rp_model_family(config->family);
    char inner[96], name[96];
    config->experts.stacked = false;
    rp_tensor_default_stacked(config);
    for (uint32_t i = 0; i < family->tensor_count; i++) {
        const struct rp_tensor_rule *rule = &family->tensors[i];
        if (rule->role != RP_WEIGHT_EXPERT_GATE_UP || strchr(rule->name, '*'))
            continue;
        for (uint32_t layer = 0; layer < config->layers; layer++) {
            snprintf(inner, sizeof inner, "model.layers.%u.%s", layer, rule->name);
            rp_tensor_name(config, inner, name, sizeof name);
            config->experts.stacked |= rp_safetensors_find(files, name) != NULL;
        }
    }
}

/* `rule_name` after the layer's prefix, its '*' replaced by the number of a head. */
static void set_name(const struct rp_model_config *config, struct rp_weight_part *part,
                     const char *rule_name, uint32_t layer, uint32_t head) {
    const char *star = strchr(rule_name, '*');
    char prefix[32] = "", number[12], name[96];
    if (layer != RP_LAYER_NONE)
        snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
    snprintf(number, sizeof number, "%u", head);
    snprintf(name, sizeof name, "%s%.*s%s%s", prefix,
             star ? (int)(star - rule_name) : (int)strlen(rule_name), rule_name, star ? number : "",
             star ? star + 1 : "");
    rp_tensor_name(config, name, part->name, sizeof part->name);
}

static int visit_tensor(const struct rp_model *model, const struct rp_tensor_rule *rule,
                        uint32_t layer, int (*visit)(void *ctx, const struct rp_weight_part *part),
                        void *ctx) {
    struct rp_weight_part part;
    memset(&part, 0, sizeof part);
    part.weight = rp_model_weight(model, rule->role, layer);
    if (!part.weight || (rule->role == RP_WEIGHT_HEAD && model->config.tied))
        return RP_OK;
    bool each_head = rule->span == RP_SPAN_EACH_HEAD, each = strchr(rule->name, '*') != NULL;
    if (part.weight->experts && model->config.experts.stacked == each)
        return RP_OK; /* the files have the other kind */
    set_span(&model->config, rule->span, &part);
    if (part.rows == 0)
        return RP_OK; /* of a model or layer that has it elsewhere, or not at all */
    uint32_t experts = part.weight->experts, stride = part.rows;
    part.stacked = experts && !each;
    if (experts && each) {
        stride = part.weight->matrix.rows / experts;
        part.rows = RP_MIN(part.rows, stride);
    }
    part.quantized = rp_weight_is_matrix(part.weight) &&
                     rp_weight_is_quantized(&model->config, rule->role, part.weight->layer);
    part.transposed = part.stacked && rp_weight_is_matrix(part.weight) && !part.quantized &&
                      rp_model_family(model->config.family)->expert_transposed;
    set_order(&model->config, rule, &part);
    uint32_t count = each_head ? part.weight->length / part.rows : experts && each ? experts : 1;
    int status = RP_OK;
    for (uint32_t i = 0; i < count && status == RP_OK; i++) {
        set_name(&model->config, &part, rule->name, layer, i);
        status = visit(ctx, &part);
        part.row_begin += stride;
    }
    return status;
}

int rp_weight_parts(const struct rp_model *model,
                    int (*visit)(void *ctx, const struct rp_weight_part *part), void *ctx) {
    const struct rp_model_family *family = rp_model_family(model->config.family);
    const struct rp_tensor_rule first[] = {
        {RP_WEIGHT_EMBED, RP_SPAN_ALL, rp_family_embed_name(family)},
        {RP_WEIGHT_LAYER_EMBED, RP_SPAN_ALL, "model.embed_tokens_per_layer.weight"},
        {RP_WEIGHT_LAYER_PROJ, RP_SPAN_ALL, "model.per_layer_model_projection.weight"},
        {RP_WEIGHT_LAYER_PROJ_NORM, RP_SPAN_ALL, "model.per_layer_projection_norm.weight"},
    };
    const struct rp_tensor_rule last[] = {
        {RP_WEIGHT_FINAL_NORM, RP_SPAN_ALL, rp_family_final_norm_name(family)},
        {RP_WEIGHT_FINAL_NORM_BIAS, RP_SPAN_ALL, "model.norm.bias"},
        {RP_WEIGHT_HEAD, RP_SPAN_ALL, rp_family_head_name(family)},
    };
    int status = RP_OK;
    for (size_t i = 0; i < RP_ARRAY_COUNT(first) && status == RP_OK; i++)
        status = visit_tensor(model, &first[i], RP_LAYER_NONE, visit, ctx);
    for (uint32_t layer = 0; layer < model->config.layers; layer++)
        for (uint32_t i = 0; i < family->tensor_count && status == RP_OK; i++)
            status = visit_tensor(model, &family->tensors[i], layer, visit, ctx);
    for (size_t i = 0; i < RP_ARRAY_COUNT(last) && status == RP_OK; i++)
        status = visit_tensor(model, &last[i], RP_LAYER_NONE, visit, ctx);
    return status;
}
