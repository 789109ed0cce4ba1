/* Granite 3 and 4: Llama with factors of embeddings, scores, logits, and of what attention and MLP
 * add. Granite-MoE has a mixture of experts in place of the MLP, whose weights are a softmax of the
 * chosen experts' logits. Granite 4 names its MLP as the dense one beside experts, which the models
 * that are supported have none of, and may do without RoPE. */
#include "model/config_reader.h"
#include "model/network.h"

#include <string.h>

static const struct rp_tensor_rule hybrid_tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_GATE_UP, RP_SPAN_ALL, "shared_mlp.input_linear.weight"},
    {RP_WEIGHT_DOWN, RP_SPAN_ALL, "shared_mlp.output_linear.weight"},
};

static const struct rp_tensor_rule moe_tensors[] = {
    {RP_WEIGHT_ATTN_NORM, RP_SPAN_ALL, "input_layernorm.weight"},
    RP_TENSORS_QKV,
    RP_TENSORS_QKV_BIAS,
    {RP_WEIGHT_O, RP_SPAN_ALL, "self_attn.o_proj.weight"},
    {RP_WEIGHT_O_BIAS, RP_SPAN_ALL, "self_attn.o_proj.bias"},
    {RP_WEIGHT_MLP_NORM, RP_SPAN_ALL, "post_attention_layernorm.weight"},
    {RP_WEIGHT_ROUTER, RP_SPAN_ALL, "block_sparse_moe.router.layer.weight"},
    {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_ALL, "block_sparse_moe.input_linear.weight"},
    {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL, "block_sparse_moe.output_linear.weight"},
};

static void add_scaled(struct rp_emit *e, const char *scale, const char *add, struct rp_view x,
                       struct rp_view term) {
    if (e->config->residual_factor != 1.0f)
        rp_emit_scale_in_place(e, scale, term, e->config->residual_factor);
    rp_emit_add(e, add, x, term);
}

static void layer(struct rp_emit *e, struct rp_view x) {
    struct rp_view in = rp_emit_norm(e, "attn.norm", x, RP_WEIGHT_ATTN_NORM);
    struct rp_qkv qkv = rp_emit_qkv(e, in);
    add_scaled(e, "attn.scale", "attn.add", x, rp_emit_attention(e, &qkv));
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    add_scaled(e, "mlp.scale", "mlp.add", x, rp_emit_mlp(e, in));
}

static void configure_factors(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    config->embed_factor = (float)rp_config_double(reader, "embedding_multiplier", 1, 0, true, 1e6);
    config->residual_factor =
        (float)rp_config_double(reader, "residual_multiplier", 1, 0, true, 1e6);
    config->attention_scale = rp_config_double(reader, "attention_multiplier", 1, 0, true, 1e6);
    config->logit_factor =
        (float)(1.0 / rp_config_double(reader, "logits_scaling", 1, 1e-6, false, 1e6));
}

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_factors(reader, config);
    config->mlp_bias = rp_config_bool(reader, "mlp_bias", false);
}

static void configure_moe(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {
        .count = "num_local_experts", .count_default = 8, .used_default = 2};
    configure_factors(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    rp_config_experts(reader, &keys, config);
    config->experts.score = RP_ROUTE_SOFTMAX_CHOSEN;
}

static void configure_hybrid(struct rp_config_reader *reader, struct rp_model_config *config) {
    configure_factors(reader, config);
    rp_config_no_bias(reader, "mlp_bias");
    if (rp_config_uint(reader, "num_local_experts", 8, 0, 1u << 16) != 0)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "num_local_experts",
                         "must be 0: layers of experts are not supported");
    /* Both names of the list; absent, every layer is recurrent. */
    if (!rp_config_get(reader, "layer_types")) {
        if (!rp_config_get(reader, "layers_block_type"))
            rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "layer_types",
                             "is missing: recurrent layers are not supported");
        rp_config_layer_types(reader, "layers_block_type", config);
    }
    config->intermediate =
        rp_config_uint(reader, "shared_intermediate_size", RP_CONFIG_REQUIRED, 1, 1u << 20);
    const char *position = rp_config_string(reader, "position_embedding_type");
    const char *norm = rp_config_string(reader, "normalization_function");
    if (!position || strcmp(position, "nope") == 0)
        memset(config->nope_layers, 0xFF, sizeof config->nope_layers);
    else if (strcmp(position, "rope") != 0)
        rp_config_refuse_name(reader, "position_embedding_type", position, "rope, nope");
    if (norm && strcmp(norm, "rmsnorm") != 0)
        rp_config_refuse_name(reader, "normalization_function", norm, "rmsnorm");
}

static const char *const hybrid_ignored[] = {"mamba_conv_bias", "mamba_proj_bias", NULL};

const struct rp_model_family rp_family_granite = {
    .id = RP_FAMILY_GRANITE,
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .configure = configure,
    .tensors = rp_llama_tensors,
    .tensor_count = RP_LLAMA_TENSOR_COUNT,
    .layer = layer,
};

const struct rp_model_family rp_family_granite_hybrid = {
    .id = RP_FAMILY_GRANITE_HYBRID,
    .architecture = "GraniteMoeHybridForCausalLM",
    .model_type = "granitemoehybrid",
    .ignored_keys = hybrid_ignored,
    .configure = configure_hybrid,
    .tensors = hybrid_tensors,
    .tensor_count = RP_ARRAY_COUNT(hybrid_tensors),
    .layer = layer,
};

const struct rp_model_family rp_family_granite_moe = {
    .id = RP_FAMILY_GRANITE_MOE,
    .architecture = "GraniteMoeForCausalLM",
    .model_type = "granitemoe",
    .configure = configure_moe,
    .tensors = moe_tensors,
    .tensor_count = RP_ARRAY_COUNT(moe_tensors),
    .layer = layer,
};
