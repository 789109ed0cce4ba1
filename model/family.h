/* family.h - what distinguishes a model family: the keys of its configuration, the names of its
 * tensors, and the formula of a layer. One file each (family_llama.c, ...), found by name.
 *
 * To add one: a file with a struct rp_model_family, and its line in RP_FAMILY_MAP (model.h). */
#ifndef RP_MODEL_FAMILY_H
#define RP_MODEL_FAMILY_H

#include "model/model.h"

struct rp_config_reader; /* config_reader.h */
struct rp_emit;          /* network.h */

/* Which rows of a weight a tensor holds. */
enum rp_weight_span {
    RP_SPAN_ALL,
    RP_SPAN_Q, /* of RP_WEIGHT_QKV and its bias */
    RP_SPAN_K,
    RP_SPAN_V,
    RP_SPAN_GATE, /* of RP_WEIGHT_GATE_UP and its bias */
    RP_SPAN_UP
};

/* A tensor of a checkpoint: "model.layers.3." is put before the names of a layer's tensors. */
struct rp_tensor_rule {
    enum rp_weight_role role;
    enum rp_weight_span span;
    const char *name;
};

struct rp_model_family {
    enum rp_family id;
    const char *architecture, *model_type; /* "LlamaForCausalLM", "llama" */
    uint32_t head_dim_default;             /* 0: hidden_size / num_attention_heads */
    bool tied_default;
    /* Reads the keys specific to this family, after the common ones. */
    void (*configure)(struct rp_config_reader *reader, struct rp_model_config *config);
    /* In the order of the network. A rule whose weight the model does not have is skipped. */
    const struct rp_tensor_rule *tensors;
    uint32_t tensor_count;
    /* Emits one layer: updates the residual x in place. */
    void (*layer)(struct rp_emit *e, struct rp_view x);
};

#define X(id, name, title) extern const struct rp_model_family rp_family_##name;
RP_FAMILY_MAP(X)
#undef X

/* By id, or by name: `architecture` where it is not NULL, else `model_type`. NULL: unknown. */
const struct rp_model_family *rp_model_family(enum rp_family id);
const struct rp_model_family *rp_model_family_find(const char *architecture,
                                                   const char *model_type);

/* Tensors and layer of Llama, shared by Mistral and Qwen except for their extra configuration. */
#define RP_LLAMA_TENSOR_COUNT 18
extern const struct rp_tensor_rule rp_llama_tensors[RP_LLAMA_TENSOR_COUNT];
void rp_llama_layer(struct rp_emit *e, struct rp_view x);

#endif
