/* Gemma 4, text: Gemma 3 with plain norm weights, scores that are not scaled, a norm of v without a
 * weight, and a factor of each layer's output. Layers without a window have larger heads, other KV
 * heads, and in some models no v of their own. Besides, by model:
 *
 *   E2B, E4B     the last layers read the K and V of an earlier one; each layer adds a projection of
 *                its part of a second embedding (rp_emit_layer_embed)
 *   26B-A4B      experts beside the MLP, both normed, then their sum; the router reads the residual:
 *                p = softmax(norm(x) * scale / sqrt(hidden) Wrouter^T)
 *                experts(x) = sum over the best k of p_e / (their sum) * s_e * mlp_e(norm(x)) */
#include "model/config_reader.h"
#include "model/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct rp_tensor_rule tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    RP_TENSORS_QK_NORMS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_ATTN_POST_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "pre_feedforward_layernorm.weight"},
    RP_TENSORS_MLP,
    {RP_WEIGHT_MLP_POST_NORM_1, RP_SPAN_ALL, "post_feedforward_layernorm_1.weight"},
    {RP_WEIGHT_ROUTER_NORM, RP_SPAN_ALL, "router.scale"},
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "router.proj.weight"},
    {RP_WEIGHT_ROUTER_SCALES, RP_SPAN_ALL, "router.per_expert_scale"},
    {RP_WEIGHT_EXPERT_NORM, RP_SPAN_ALL, "pre_feedforward_layernorm_2.weight"},
    {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_ALL, "experts.gate_up_proj"},
    {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "experts.down_proj"},
    {RP_WEIGHT_EXPERT_POST_NORM, RP_SPAN_ALL, "post_feedforward_layernorm_2.weight"},
    {RP_WEIGHT_MLP_POST_NORM, RP_SPAN_ALL, "post_feedforward_layernorm.weight"},
    {RP_WEIGHT_LAYER_GATE, RP_SPAN_ALL, "per_layer_input_gate.weight"},
    {RP_WEIGHT_LAYER_OUT, RP_SPAN_ALL, "per_layer_projection.weight"},
    {RP_WEIGHT_LAYER_NORM, RP_SPAN_ALL, "post_per_layer_input_norm.weight"},
    {RP_WEIGHT_LAYER_SCALAR, RP_SPAN_ALL, "layer_scalar"},
};

static struct rp_view feed_forward(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    struct rp_view out = rp_emit_dense_mlp(e, in);
    if (!rp_model_has_experts(e->config, e->layer))
        return out;
    rp_emit_norm_in_place(e, "mlp.post_norm_1", out, RP_WEIGHT_MLP_POST_NORM_1);
    struct rp_view router_in = rp_emit_router_norm(e, x, 1.0f / sqrtf((float)e->config->hidden));
    in = rp_emit_norm(e, "moe.norm", x, RP_WEIGHT_EXPERT_NORM);
    struct rp_view sum = rp_emit_experts(e, router_in, in);
    rp_emit_norm_in_place(e, "moe.post_norm", sum, RP_WEIGHT_EXPERT_POST_NORM);
    rp_emit_add(e, "moe.add", out, sum);
    return out;
}

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    rp_emit_v_norm(e, &qkv);
    rp_emit_qk_norms(e, &qkv);
    struct rp_view o = rp_emit_attention(e, &qkv);
    rp_emit_norm_in_place(e, "attn.post_norm", o, RP_WEIGHT_ATTN_POST_NORM);
    rp_emit_add(e, "attn.add", x, o);
    struct rp_view out = feed_forward(e, x);
    rp_emit_norm_in_place(e, "mlp.post_norm", out, RP_WEIGHT_MLP_POST_NORM);
    rp_emit_add(e, "mlp.add", x, out);
    rp_emit_layer_embed(e, x);
    const float *scalar = rp_model_vector(e->model, RP_WEIGHT_LAYER_SCALAR, e->layer);
    rp_emit_scale_in_place(e, "layer.scale", x, scalar ? scalar[0] : 1.0f);
}

/* --- configuration --------------------------------------------------------------------------- */

/* transformers' own spelling: an object for each layer whose heads differ. */
static void read_per_layer(struct rp_config_reader *reader, const json_t *object,
                           struct rp_model_config *config) {
    const char *key;
    json_t *inner;
    struct rp_config_reader of = *reader;
    of.keys = NULL;
    of.file = "config.json: per_layer_config";
    if (!json_is_object(object)) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, "per_layer_config", "must be an object");
        return;
    }
    config->full_head_dim = config->head_dim;
    json_object_foreach((json_t *)object, key, inner) {
        char *end;
        unsigned long layer = strtoul(key, &end, 10);
        bool number = *key && !*end && layer < config->layers;
        of.object = inner;
        if (!number || !json_is_object(inner) || rp_model_window(config, (uint32_t)layer) != 0) {
            rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "per_layer_config",
                             "must have objects for layers of full_attention alone");
            return;
        }
        uint32_t dim = rp_config_uint(&of, "head_dim", config->head_dim, 1, 512);
        uint32_t kv = rp_config_uint(&of, "num_key_value_heads", config->kv_heads, 1, 1024);
        bool first = config->full_kv_heads == 0;
        if (!first && (dim != config->full_head_dim || kv != config->full_kv_heads))
            rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "per_layer_config",
                             "must give all layers of full_attention the same heads");
        config->full_head_dim = dim;
        config->full_kv_heads = kv;
        if (json_object_size(inner) !=
            json_is_integer(json_object_get(inner, "head_dim")) +
                (size_t)json_is_integer(json_object_get(inner, "num_key_value_heads")))
            rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "per_layer_config",
                             "may have head_dim and num_key_value_heads alone");
    }
}

static void read_heads(struct rp_config_reader *reader, struct rp_model_config *config) {
    const json_t *per_layer = rp_config_get(reader, "per_layer_config");
    uint32_t dim = rp_config_uint(reader, "global_head_dim", 512, 1, 512);
    uint32_t kv = rp_config_uint(reader, "num_global_key_value_heads", config->kv_heads, 1, 1024);
    config->full_k_is_v = rp_config_bool(reader, "attention_k_eq_v", false);
    if (per_layer) {
        read_per_layer(reader, per_layer, config);
    } else {
        config->full_head_dim = dim;
        config->full_kv_heads = config->full_k_is_v ? kv : config->kv_heads;
    }
    if (config->full_kv_heads && config->heads % config->full_kv_heads != 0)
        rp_config_refuse(reader, RP_STATUS_RANGE, "num_global_key_value_heads",
                         "must divide num_attention_heads");
    if (config->full_head_dim % 2 != 0)
        rp_config_refuse(reader, RP_STATUS_RANGE, "global_head_dim", "must be even");
}

/* Each kind of the layers that share has one before them with K and V of its own. */
static void read_shared(struct rp_config_reader *reader, struct rp_model_config *config) {
    config->kv_shared = rp_config_uint(reader, "num_kv_shared_layers", 0, 0, config->layers - 1);
    config->wide_shared = rp_config_bool(reader, "use_double_wide_mlp", false);
    for (uint32_t i = config->layers - config->kv_shared; i < config->layers; i++)
        if (rp_model_layer_heads(config, i).source == i)
            rp_config_refuse(reader, RP_STATUS_RANGE, "num_kv_shared_layers",
                             "leaves no layer of each type with K and V of its own");
}

static void read_layer_embed(struct rp_config_reader *reader, struct rp_model_config *config) {
    config->layer_embed = rp_config_uint(reader, "hidden_size_per_layer_input", 256, 0, 1u << 14);
    config->layer_embed_vocab =
        rp_config_uint(reader, "vocab_size_per_layer_input", 262144, 1, 1u << 24);
    if ((uint64_t)config->layer_embed * config->layers > 1u << 20)
        rp_config_refuse(reader, RP_STATUS_RANGE, "hidden_size_per_layer_input", "is too large");
    if (config->layer_embed && config->layer_embed_vocab < config->vocab)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "vocab_size_per_layer_input",
                         "must be at least vocab_size");
}

static void read_experts(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {.count = "num_experts",
                                                       .used = "top_k_experts",
                                                       .intermediate = "moe_intermediate_size",
                                                       .count_default = RP_CONFIG_REQUIRED,
                                                       .used_default = RP_CONFIG_REQUIRED,
                                                       .intermediate_default = RP_CONFIG_REQUIRED};
    if (!rp_config_bool(reader, "enable_moe_block", false)) {
        (void)rp_config_get(reader, keys.count); /* has no effect then */
        (void)rp_config_get(reader, keys.used);
        return;
    }
    rp_config_experts(reader, &keys, config);
    config->experts.renormalize = config->experts.parallel = true;
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    const char *bidirectional = rp_config_string(reader, "use_bidirectional_attention");
    rp_config_activation(reader, "hidden_activation", "gelu_pytorch_tanh", config);
    config->post_norms = config->embed_scaled = true;
    config->v_norm = config->layer_scalars = true;
    config->qk_norm = RP_QK_NORM_HEAD;
    config->attention_scale = 1;
    config->logit_cap = rp_config_cap(reader, "final_logit_softcapping", 0);
    /* "vision": images alone; text is causal. */
    if (bidirectional && strcmp(bidirectional, "vision") != 0)
        rp_config_refuse_name(reader, "use_bidirectional_attention", bidirectional, "vision");
    rp_config_attention_bias(reader, config);
    config->window = rp_config_window(reader, 512);
    rp_config_window_pattern(reader, NULL, 6, config);
    rp_config_layer_types(reader, "layer_types", config);
    if (!rp_config_get(reader, "layer_types"))
        rp_config_set_full(config, config->layers - 1, true);
    else if (*reader->status == RP_OK && rp_model_window(config, config->layers - 1) != 0)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "layer_types",
                         "must end with full_attention");
    config->local_rope.theta = 10000;
    if (*reader->status != RP_OK)
        return;
    read_heads(reader, config);
    read_shared(reader, config);
    read_layer_embed(reader, config);
    read_experts(reader, config);
    if (!rp_config_get(reader, "rope_parameters"))
        rp_config_refuse(reader, RP_STATUS_FORMAT, "rope_parameters", "is missing");
}

static const char *const ignored[] = {"hidden_act", NULL};

const struct rp_model_family rp_family_gemma4 = {
    .id = RP_FAMILY_GEMMA4,
    .architecture = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    .head_dim_default = 256,
    .heads_default = 8,
    .kv_heads_default = 4,
    .vocab_default = 262144,
    .max_position_default = 131072,
    .tied_default = true,
    .rope_theta_default = 1e6,
    .ignored_keys = ignored,
    .configure = configure,
    .tensors = tensors,
    .tensor_count = RP_ARRAY_COUNT(tensors),
    .layer = layer,
};
