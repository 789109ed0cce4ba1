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
    RP_SPAN_Q_A,  /* of RP_WEIGHT_QKV with latents: what q is made of; the latent is RP_SPAN_K */
    RP_SPAN_GATE, /* of gate_up matrices and their biases */
    RP_SPAN_UP,
    RP_SPAN_EACH_HEAD, /* of the norms of q and k: a tensor per head, its number in place of '*' */
    RP_SPAN_MIX_QKV,   /* of RP_WEIGHT_MIX_IN */
    RP_SPAN_MIX_Z,
    RP_SPAN_MIX_B, /* of RP_WEIGHT_MIX_BA */
    RP_SPAN_MIX_A,
    RP_SPAN_GROUPED /* all rows of these two, key head by key head */
};

/* The order of q's, k's and v's rows in the tensors, where it is not ours. */
enum rp_qkv_order {
    RP_QKV_PLAIN,
    RP_QKV_PAIRS, /* RoPE rotates neighbors: rows are brought into our order at load */
    RP_QKV_GROUPS /* one tensor: for each KV head its heads of q, k, v (InternLM2) */
};

/* A tensor of a checkpoint: "model.layers.3." is put before the names of a layer's tensors. Of the
 * matrices of experts there may be rules of both kinds; the files decide which is used: a name with
 * '*', the number of the expert, and one without, a tensor (experts, rows, cols). */
struct rp_tensor_rule {
    enum rp_weight_role role;
    enum rp_weight_span span;
    const char *name;
};

struct rp_model_family {
    enum rp_family id;
    const char *architecture, *model_type; /* "LlamaForCausalLM", "llama" */
    const char *other_type;                /* another model_type of the same class; NULL: none */
    uint32_t head_dim_default;             /* 0: hidden_size / num_attention_heads */
    /* 0: must be there; as many as heads; must be there; 2048 */
    uint32_t heads_default, kv_heads_default, vocab_default, max_position_default;
    uint32_t intermediate_default; /* 0: must be there */
    const char *intermediate_key;  /* another name of intermediate_size; NULL: none */
    bool tied_default;
    const char *norm_eps_key;      /* NULL: rms_norm_eps */
    double norm_eps_default;       /* 0: 1e-6 */
    double rope_theta_default;     /* 0: 10000 */
    double partial_rotary_default; /* 0: the family rotates whole heads */
    bool scales_q;                 /* rope_parameters has factors of q */
    bool image_rope;               /* rope_parameters may have keys of images, which are ignored */
    enum rp_qkv_order qkv_order;
    /* In tensors of all experts rows of gate and up alternate; unquantized ones are (experts, cols,
     * rows). */
    bool expert_pairs, expert_transposed;
    const char *embed_name, *head_name; /* NULL: model.embed_tokens.weight, lm_head.weight */
    const char *final_norm_name;        /* NULL: model.norm.weight */
    /* Keys that name attention, norms or the like and that transformers' class does not read, after
     * those of config_keys.c; ends with NULL. NULL: none. */
    const char *const *ignored_keys;
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

const char *rp_family_embed_name(const struct rp_model_family *family);
const char *rp_family_head_name(const struct rp_model_family *family);
const char *rp_family_final_norm_name(const struct rp_model_family *family);

/* Rows of tables of tensors, by the names that most checkpoints have. */
#define RP_TENSOR(role, span, name)                                                                \
    { RP_WEIGHT_##role, RP_SPAN_##span, name }
#define RP_TENSORS_QKV                                                                             \
    RP_TENSOR(QKV, Q, "self_attn.q_proj.weight"), RP_TENSOR(QKV, K, "self_attn.k_proj.weight"),    \
        RP_TENSOR(QKV, V, "self_attn.v_proj.weight")
#define RP_TENSORS_QKV_BIAS                                                                        \
    RP_TENSOR(QKV_BIAS, Q, "self_attn.q_proj.bias"),                                               \
        RP_TENSOR(QKV_BIAS, K, "self_attn.k_proj.bias"),                                           \
        RP_TENSOR(QKV_BIAS, V, "self_attn.v_proj.bias")
#define RP_TENSORS_QK_NORMS                                                                        \
    RP_TENSOR(Q_NORM, ALL, "self_attn.q_norm.weight"),                                             \
        RP_TENSOR(K_NORM, ALL, "self_attn.k_norm.weight")
#define RP_TENSORS_MLP                                                                             \
    RP_TENSOR(GATE_UP, GATE, "mlp.gate_proj.weight"),                                              \
        RP_TENSOR(GATE_UP, UP, "mlp.up_proj.weight"), RP_TENSOR(DOWN, ALL, "mlp.down_proj.weight")
#define RP_TENSORS_EXPERTS                                                                         \
    RP_TENSOR(EXPERT_GATE_UP, ALL, "mlp.experts.gate_up_proj"),                                    \
        RP_TENSOR(EXPERT_DOWN, ALL, "mlp.experts.down_proj"),                                      \
        RP_TENSOR(EXPERT_GATE_UP, GATE, "mlp.experts.*.gate_proj.weight"),                         \
        RP_TENSOR(EXPERT_GATE_UP, UP, "mlp.experts.*.up_proj.weight"),                             \
        RP_TENSOR(EXPERT_DOWN, ALL, "mlp.experts.*.down_proj.weight")
#define RP_TENSORS_SHARED_EXPERT(prefix)                                                           \
    RP_TENSOR(SHARED_GATE_UP, GATE, prefix "gate_proj.weight"),                                    \
        RP_TENSOR(SHARED_GATE_UP, UP, prefix "up_proj.weight"),                                    \
        RP_TENSOR(SHARED_DOWN, ALL, prefix "down_proj.weight")

/* Tensors and layers that families share, except for their extra configuration. */
#define RP_LLAMA_TENSOR_COUNT 19
extern const struct rp_tensor_rule rp_llama_tensors[RP_LLAMA_TENSOR_COUNT];
void rp_llama_layer(struct rp_emit *e, struct rp_view x);
void rp_qwen3_layer(struct rp_emit *e, struct rp_view x);
/* Qwen3's layer, or in layers with state rp_emit_state in place of its attention. */
void rp_state_layer(struct rp_emit *e, struct rp_view x);
#define RP_GEMMA_TENSOR_COUNT 17
extern const struct rp_tensor_rule rp_gemma_tensors[RP_GEMMA_TENSOR_COUNT];
/* Llama's, with experts named mlp.experts.*.gate_proj: of Qwen, OLMoE and GLM. */
#define RP_EXPERT_TENSOR_COUNT 26
extern const struct rp_tensor_rule rp_expert_tensors[RP_EXPERT_TENSOR_COUNT];

#endif
