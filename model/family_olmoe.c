/* OLMoE: Llama with norms of q and k over all heads at once, and a mixture of experts in place of
 * the MLP, whose weights need not add up to one. */
#include "model/config_reader.h"
#include "model/network.h"

static void configure(struct rp_config_reader *reader, struct rp_model_config *config) {
    static const struct rp_config_experts_keys keys = {
        .count = "num_experts", .count_default = 64, .used_default = 8};
    rp_config_activation(reader, "hidden_act", "silu", config);
    rp_config_attention_bias(reader, config);
    config->qk_norm = RP_QK_NORM_WHOLE;
    if (rp_config_get(reader, "clip_qkv"))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "clip_qkv", "must be null");
    rp_config_experts(reader, &keys, config);
    config->experts.renormalize = rp_config_bool(reader, "norm_topk_prob", false);
}

const struct rp_model_family rp_family_olmoe = {
    .id = RP_FAMILY_OLMOE,
    .architecture = "OlmoeForCausalLM",
    .model_type = "olmoe",
    .heads_default = 16,
    .vocab_default = 50304,
    .max_position_default = 4096,
    .norm_eps_default = 1e-5,
    .configure = configure,
    .tensors = rp_expert_tensors,
    .tensor_count = RP_EXPERT_TENSOR_COUNT,
    .layer = rp_qwen3_layer,
};
