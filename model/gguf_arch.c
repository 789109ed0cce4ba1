#include "model/gguf_arch.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

#define LAYER_NORM_EPS                                                                             \
    { "attention.layer_norm_epsilon", "layer_norm_eps" }
#define LOGIT_SCALE                                                                                \
    { "logit_scale", "logit_scale" }

static const struct rp_gguf_arch arches[] = {
    {"llama", "LlamaForCausalLM", .interleaved = true},
    {"qwen2", "Qwen2ForCausalLM", .interleaved = false},
    {"qwen3", "Qwen3ForCausalLM", .interleaved = false},
    {"gemma2", "Gemma2ForCausalLM", .gemma = true, .post_norms = true, .large_layers = 46},
    {"gemma3", "Gemma3ForCausalLM", .gemma = true, .post_norms = true, .large_layers = 62},
    {"phi3", "Phi3ForCausalLM", .partial = true},
    {"granite", "GraniteForCausalLM", .interleaved = true,
     .numbers = {{"attention.scale", "attention_multiplier"},
                 {"embedding_scale", "embedding_multiplier"},
                 {"residual_scale", "residual_multiplier"},
                 {"logit_scale", "logits_scaling"}}},
    {"olmo2", "Olmo2ForCausalLM", .post_norms = true, .layer_types = true},
    {"smollm3", "SmolLM3ForCausalLM", .interleaved = true},
    /* InternLM2's tensors become Llama's in files. */
    {"internlm2", "LlamaForCausalLM", .interleaved = true},
    {"stablelm", "StableLmForCausalLM", .partial = true, .numbers = {LAYER_NORM_EPS}},
    {"glm4", "Glm4ForCausalLM", .partial = true},
    {"command-r", "CohereForCausalLM", .numbers = {LAYER_NORM_EPS, LOGIT_SCALE}},
    {"cohere2", "Cohere2ForCausalLM", .layer_types = true,
     .numbers = {LAYER_NORM_EPS, LOGIT_SCALE}},
};

const struct rp_gguf_arch *rp_gguf_arch_find(const char *name, size_t len) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(arches); i++)
        if (strlen(arches[i].name) == len && memcmp(arches[i].name, name, len) == 0)
            return &arches[i];
    return NULL;
}

const char *rp_gguf_arch_names(char *out, size_t out_bytes) {
    out[0] = '\0';
    for (size_t i = 0; i < RP_ARRAY_COUNT(arches); i++) {
        size_t len = strlen(out);
        snprintf(out + len, out_bytes - len, "%s%s", i ? ", " : "", arches[i].name);
    }
    return out;
}

static const struct {
    const char *family, *gguf;
} outside_names[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"model.norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
};

/* Inside a layer; .weight and .bias follow. `post` is the name beside post_norms. */
static const struct {
    const char *family, *gguf, *post;
} layer_names[] = {
    {"input_layernorm", "attn_norm", NULL},
    {"self_attn.q_proj", "attn_q", NULL},
    {"self_attn.k_proj", "attn_k", NULL},
    {"self_attn.v_proj", "attn_v", NULL},
    {"self_attn.qkv_proj", "attn_qkv", NULL},
    {"self_attn.o_proj", "attn_output", NULL},
    {"self_attn.q_norm", "attn_q_norm", NULL},
    {"self_attn.k_norm", "attn_k_norm", NULL},
    {"post_self_attn_layernorm", "post_attention_norm", NULL},
    {"post_attention_layernorm", "ffn_norm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm", NULL},
    {"post_feedforward_layernorm", "post_ffw_norm", NULL},
    {"post_mlp_layernorm", "post_ffw_norm", NULL},
    {"mlp.gate_proj", "ffn_gate", NULL},
    {"mlp.up_proj", "ffn_up", NULL},
    {"mlp.gate_up_proj", "ffn_up", NULL},
    {"mlp.down_proj", "ffn_down", NULL},
};

const char *rp_gguf_tensor_name(const struct rp_gguf_arch *arch, const char *name, char *out,
                                size_t out_bytes) {
    unsigned layer;
    int at = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(outside_names); i++)
        if (strcmp(name, outside_names[i].family) == 0)
            return outside_names[i].gguf;
    if (sscanf(name, "model.layers.%u.%n", &layer, &at) != 1 || at == 0)
        return name;
    for (size_t i = 0; i < RP_ARRAY_COUNT(layer_names); i++) {
        size_t len = strlen(layer_names[i].family);
        if (strncmp(name + at, layer_names[i].family, len) == 0 && name[at + (int)len] == '.') {
            bool post = arch->post_norms && layer_names[i].post;
            snprintf(out, out_bytes, "blk.%u.%s%s", layer,
                     post ? layer_names[i].post : layer_names[i].gguf, name + at + len);
            return out;
        }
    }
    return name;
}
