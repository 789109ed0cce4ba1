/* model.h - a model: its configuration, its weights, and its network as a program.
 *
 * Files: a Hugging Face directory (config.json, generation_config.json, model.safetensors or its
 * sharded index), or a GGUF file: a path that ends in .gguf. Files are read with pread, never
 * mapped; every size is checked against the file's length before use, and names and shapes against
 * what the configuration implies. An error names the file and the key or tensor.
 * Thread: one owner while loading, then read-only. */
#ifndef RP_MODEL_MODEL_H
#define RP_MODEL_MODEL_H

#include "attention/mask/mask.h"
#include "device/program.h"
#include "kvcache/kv_layout.h"
#include "model/weights.h"
#include "quant/rounding/quantize.h"

#define RP_EOS_IDS_MAX 16

#define RP_LAYERS_MAX 1024

/* One line for each family: RP_FAMILY_<NAME>, rp_family_<name> (family_<name>.c), its display
 * name. */
#define RP_FAMILY_MAP(X)                                                                           \
    X(LLAMA, llama, "Llama")                                                                       \
    X(MISTRAL, mistral, "Mistral")                                                                 \
    X(QWEN2, qwen2, "Qwen2")                                                                       \
    X(QWEN3, qwen3, "Qwen3")                                                                       \
    X(GEMMA2, gemma2, "Gemma2")                                                                    \
    X(PHI3, phi3, "Phi3")                                                                          \
    X(GEMMA3, gemma3, "Gemma3")                                                                    \
    X(GRANITE, granite, "Granite")                                                                 \
    X(GRANITE_HYBRID, granite_hybrid, "Granite4")                                                  \
    X(OLMO2, olmo2, "Olmo2")                                                                       \
    X(OLMO3, olmo3, "Olmo3")                                                                       \
    X(SMOLLM3, smollm3, "SmolLM3")                                                                 \
    X(MINISTRAL, ministral, "Ministral")                                                           \
    X(MINISTRAL3, ministral3, "Ministral3")                                                        \
    X(INTERNLM2, internlm2, "InternLM2")                                                           \
    X(INTERNLM3, internlm3, "InternLM3")                                                           \
    X(STABLELM, stablelm, "StableLM")                                                              \
    X(GLM, glm, "GLM")                                                                             \
    X(GLM4, glm4, "GLM4")                                                                          \
    X(COHERE, cohere, "Cohere")                                                                    \
    X(COHERE2, cohere2, "Cohere2")                                                                 \
    X(MIXTRAL, mixtral, "Mixtral")                                                                 \
    X(QWEN2_MOE, qwen2_moe, "Qwen2-MoE")                                                           \
    X(QWEN3_MOE, qwen3_moe, "Qwen3-MoE")                                                           \
    X(OLMOE, olmoe, "OLMoE")                                                                       \
    X(GRANITE_MOE, granite_moe, "Granite-MoE")                                                     \
    X(GLM4_MOE, glm4_moe, "GLM4-MoE")                                                              \
    X(DEEPSEEK_V2, deepseek_v2, "DeepSeek-V2")                                                     \
    X(DEEPSEEK_V3, deepseek_v3, "DeepSeek-V3")                                                     \
    X(GPT_OSS, gpt_oss, "gpt-oss")                                                                 \
    X(GEMMA4, gemma4, "Gemma4")                                                                    \
    X(LFM2, lfm2, "LFM2")                                                                          \
    X(QWEN3_NEXT, qwen3_next, "Qwen3-Next")                                                        \
    X(QWEN3_5, qwen3_5, "Qwen3.5")                                                                 \
    X(QWEN3_5_MOE, qwen3_5_moe, "Qwen3.5-MoE")

enum rp_family {
#define X(id, name, title) RP_FAMILY_##id,
    RP_FAMILY_MAP(X)
#undef X
        RP_FAMILY_COUNT
};

/* There is no kind for "dynamic": up to max_position_embeddings, the longest sequence served, it is
 * the default. */
enum rp_rope_kind {
    RP_ROPE_DEFAULT,
    RP_ROPE_LINEAR,
    RP_ROPE_LLAMA3,
    RP_ROPE_YARN,
    RP_ROPE_LONGROPE,
    RP_ROPE_PROPORTIONAL /* the first pairs turn as if all did, the others stay */
};

#define RP_ROPE_PAIRS_MAX 256 /* of head_dim 512 */

/* One table of angles (model/rope.h). */
struct rp_rope {
    enum rp_rope_kind kind;
    double theta; /* 0: the model has no such table */
    double factor, low_freq_factor, high_freq_factor;
    double beta_fast, beta_slow; /* yarn */
    bool whole_range;            /* yarn: the ends of the ramp are not rounded to pairs */
    double attention_factor;     /* cos and sin are multiplied by it; 0: 1 */
    uint32_t original_max_position;
    uint32_t rotary_dim; /* leading columns of a head that are rotated; 0: head_dim */
    uint32_t live_pairs; /* proportional: pairs that turn */
    /* longrope: divisors of the frequencies, by the positions that the table holds */
    float short_factor[RP_ROPE_PAIRS_MAX], long_factor[RP_ROPE_PAIRS_MAX];
};

/* RMSNorm of q and k before RoPE. */
enum rp_qk_norm {
    RP_QK_NORM_NONE,
    RP_QK_NORM_HEAD,      /* over each head, one weight (head_dim) for all: Qwen3, Gemma3 */
    RP_QK_NORM_WHOLE,     /* over all heads at once: OLMo */
    RP_QK_NORM_EACH_HEAD, /* LayerNorm over each head, which has its own weight: StableLM, Cohere */
};

/* The modules of a layer that may have 8 or 4 bits, as bits of rp_model_quant.modules. */
enum rp_module {
    RP_MODULE_Q,
    RP_MODULE_K,
    RP_MODULE_V,
    RP_MODULE_O,
    RP_MODULE_GATE,
    RP_MODULE_UP,
    RP_MODULE_DOWN,
    RP_MODULE_Q_B,
    RP_MODULE_KV_B,
    RP_MODULE_EXPERT_GATE,
    RP_MODULE_EXPERT_UP,
    RP_MODULE_EXPERT_DOWN,
    RP_MODULE_SHARED_GATE,
    RP_MODULE_SHARED_UP,
    RP_MODULE_SHARED_DOWN,
    RP_MODULE_COUNT
};

/* How 4-bit weights lie in files (model/weights_4bit.c). */
enum rp_quant_layout {
    RP_QUANT_8_BITS,       /* they have 8 bits */
    RP_QUANT_PACKED,       /* compressed-tensors, integers */
    RP_QUANT_AWQ,          /* words of eight outputs */
    RP_QUANT_GPTQ,         /* words of eight inputs */
    RP_QUANT_NVFP4_PACKED, /* compressed-tensors */
    RP_QUANT_NVFP4_OPT,    /* ModelOpt */
    RP_QUANT_MXFP4_PACKED, /* compressed-tensors */
    RP_QUANT_MXFP4_EXPERTS /* gpt-oss: one tensor for all experts of a layer */
};

/* What quantization_config says (model/quant_config.h); scales RP_SCALE_NONE: there is none. */
struct rp_model_quant {
    enum rp_dtype dtype;       /* INT8 or FP8_E4M3, as in the file; BLOCKS: 4 bits */
    enum rp_scale_kind scales; /* as in the file: TENSOR, CHANNEL, BLOCK_128 or GROUP_K */
    enum rp_quant_layout layout;
    uint32_t group;             /* of 4 bits: columns per scale; 0: all of them */
    bool zeros;                 /* of 4 bits: groups have zero points */
    bool zeros_less_one;        /* GPTQ's first version: they are stored less one */
    bool scale_inv;             /* their name ends in weight_scale_inv; but still multiply */
    enum rp_matrix_input input; /* of the inputs of GEMMs */
    /* the file also has scales for inputs: checked but unused, rows get dynamic scales */
    bool static_input;
    bool input_ignored; /* of 4 bits: the file describes quantized inputs, which stay bf16 here */
    bool head;          /* lm_head is quantized */
    uint32_t modules[RP_LAYERS_MAX]; /* bit rp_module: that module is quantized */
    /* of 4 bits: rp_block_type; that of the scales is known once the tensors are */
    uint8_t types[RP_LAYERS_MAX][RP_MODULE_COUNT], head_type;
};

/* Where the tensors of a text model lie that is a part of a larger one, with images. */
enum rp_tensor_prefix {
    RP_PREFIX_NONE,
    RP_PREFIX_OUTSIDE, /* language_model.model.layers, language_model.lm_head */
    RP_PREFIX_INSIDE   /* model.language_model.layers, lm_head */
};

/* What a GGUF file says about its matrices (model/gguf_model.h); all zero: there is none. */
struct rp_model_gguf {
    bool present;
    bool blocks;      /* matrices keep the file's blocks: some are neither F32 nor BF16 */
    bool interleaved; /* rows of q and k are stored in pairs (2i, 2i + 1) of a head */
    uint8_t types[RP_LAYERS_MAX][RP_MODULE_COUNT]; /* rp_block_type */
    uint8_t embed, head;
};

/* A mixture of experts in place of the MLP: count 0: the model has none. */
struct rp_model_experts {
    uint32_t count, used;  /* used: by each token */
    uint32_t intermediate; /* of one expert */
    uint32_t shared;       /* intermediate size of the expert of all tokens; 0: none */
    bool shared_gate;      /* which is multiplied by a sigmoid */
    /* The route: rp_op's, program.h */
    enum rp_route_score score;
    bool bias, renormalize;
    uint32_t groups, groups_used, group_best;
    float factor;
    bool linear_bias; /* the router's logits and the experts' GEMMs have biases */
    bool parallel;    /* layers have an MLP beside their experts: Gemma 4 */
    uint32_t dense_layers[RP_LAYERS_MAX / 32]; /* bit i % 32 of word i / 32: layer i has an MLP */
    bool stacked; /* the files have one tensor for all experts; chosen by the names in them */
};

/* Multi-head latent attention (rp_emit_latent_attention, network.h). rank 0: the model has none;
 * else head_dim is nope_dim + rope_dim, and there is one KV head. */
struct rp_model_latent {
    uint32_t rank;               /* values from which each head makes its K and V */
    uint32_t rope_dim, nope_dim; /* columns of q and k that are rotated, and that are not */
    uint32_t value_dim;          /* columns of a head's V */
    uint32_t q_rank; /* values from which q is made; 0: it is made of the layer's input */
};

/* Values that a token's K and V are stored as. */
static inline uint32_t rp_model_latent_cols(const struct rp_model_latent *latent) {
    return latent->rank + latent->rope_dim;
}

/* Layers that carry a state from token to token, in place of attention. */
struct rp_model_state {
    uint32_t layers[RP_LAYERS_MAX / 32]; /* bit i % 32 of word i / 32: layer i has one */
    uint32_t conv_width;                 /* of the causal convolution */
    /* The gated delta rule (program.h); value_heads 0: there is only the convolution. */
    uint32_t key_heads, value_heads, key_dim, value_dim;
};

struct rp_model_config {
    enum rp_family family;
    bool wrapped;                 /* config.json has it as text_config */
    enum rp_tensor_prefix prefix; /* of wrapped ones; chosen by the names in the files */
    char architecture[64];        /* LlamaForCausalLM */
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_position;
    float norm_eps;
    enum rp_activation activation;
    bool tied;     /* lm_head is the embedding */
    bool qkv_bias; /* Qwen2, or attention_bias */
    bool o_bias, mlp_bias;
    enum rp_qk_norm qk_norm;
    uint32_t window; /* sliding window in tokens, 0 = none; rp_model_window */
    uint32_t full_layers[RP_LAYERS_MAX / 32]; /* bit i % 32 of word i / 32: layer i has no window */
    /* From here to local_rope: zero and false are what Llama has. */
    double query_scalar;    /* scores are q . k / sqrt(it); 0: head_dim */
    double attention_scale; /* scores are q . k * it; 0: by query_scalar */
    float attention_cap;    /* scores become cap * tanh(score / cap); 0: as they are */
    bool attention_sinks;   /* each head has a learned logit that joins its softmax */
    float logit_cap;        /* logits, too */
    float norm_offset;      /* added to the weights of norms */
    bool post_norms;        /* what attention and MLP add is normed first */
    /* embeddings are multiplied with sqrt(hidden), rounded to the matrices' dtype */
    bool embed_scaled;
    float embed_factor;    /* embeddings are multiplied by it, too; 0: 1 */
    float residual_factor; /* what attention and MLP add is multiplied by it; 0: 1 */
    float logit_factor;    /* logits, before the cap; 0: 1 */
    bool no_pre_norms;     /* attention and MLP read the residual as it is: OLMo */
    bool parallel;         /* attention and MLP read one norm: residual + attention + MLP */
    bool layer_norm;       /* LayerNorm in place of RMSNorm */
    bool norm_bias;        /* of LayerNorm */
    uint32_t nope_layers[RP_LAYERS_MAX / 32]; /* bits as above: layer i does not rotate q and k */
    bool nope_full_layers;                    /* nor do layers without a window */
    /* From here to layer_scalars: Gemma 4. Heads of layers without a window; 0: the same. */
    uint32_t full_head_dim, full_kv_heads;
    bool v_norm;        /* RMSNorm of each head of v, without a weight */
    bool full_k_is_v;   /* in layers without a window v is k before its norm */
    uint32_t kv_shared; /* so many last layers read the K and V of an earlier one of their kind */
    bool wide_shared;   /* and their MLP is twice as wide */
    /* Width of each layer's part of a second embedding, which gates what the layer adds last; 0:
     * none. */
    uint32_t layer_embed, layer_embed_vocab;
    bool layer_scalars; /* the residual is multiplied by a number of each layer */
    /* q of position p is multiplied by 1 + it * ln(1 + floor(p / rope.original_max_position)) */
    double q_scale_beta;
    struct rp_model_experts experts;
    struct rp_model_latent latent;
    struct rp_model_state state;
    bool output_gate; /* attention's output is multiplied by a sigmoid; q_proj has its rows, too */
    struct rp_rope rope, local_rope; /* local_rope: of layers with a window, where theta is not 0 */
    enum rp_dtype file_dtype; /* of the weights on disk; with quant: of those that are not 8 bits */
    struct rp_model_quant quant;
    struct rp_model_gguf gguf;
    /* Scheme of the layers' matrices in memory, and of the head if quantize_head. All others are
     * bf16 then. */
    enum rp_quant_scheme quantization;
    bool quantize_head;
    uint32_t bos_id; /* RP_ID_NONE when unknown */
    uint32_t eos_ids[RP_EOS_IDS_MAX];
    uint32_t eos_count;
    /* generation_config.json: defaults of a request's sampling; NAN / 0 when absent */
    float default_temperature, default_top_p;
    uint32_t default_top_k;
};
#define RP_ID_NONE 0xFFFFFFFFu

/* The layer's window in tokens; 0: none. */
static inline uint32_t rp_model_window(const struct rp_model_config *config, uint32_t layer) {
    return config->full_layers[layer / 32] >> layer % 32 & 1 ? 0 : config->window;
}

static inline bool rp_model_has_experts(const struct rp_model_config *config, uint32_t layer) {
    return config->experts.count > 0 && layer < RP_MIN(config->layers, RP_LAYERS_MAX) &&
           !(config->experts.dense_layers[layer / 32] >> layer % 32 & 1);
}

/* What attention of a layer has. */
struct rp_layer_heads {
    uint32_t head_dim, kv_heads;
    uint32_t source; /* the layer whose K and V it reads: itself, or an earlier one */
    bool k_is_v;
};
struct rp_layer_heads rp_model_layer_heads(const struct rp_model_config *config, uint32_t layer);
/* Rows of q (and the gate of attention's output), k and v of a layer; 0: it has none. With latents:
 * of q or what it is made of, of the latent, and 0. */
void rp_model_qkv_rows(const struct rp_model_config *config, uint32_t layer, uint32_t out_rows[3]);
/* Width of a layer's MLP. */
uint32_t rp_model_intermediate(const struct rp_model_config *config, uint32_t layer);
/* Whether all layers have the same heads and K and V of their own. */
bool rp_model_has_equal_layers(const struct rp_model_config *config);
static inline bool rp_model_has_state(const struct rp_model_config *config, uint32_t layer) {
    return layer < RP_MIN(config->layers, RP_LAYERS_MAX) &&
           (config->state.layers[layer / 32] >> layer % 32 & 1);
}
/* Columns that go through the convolution: q, k and v of the delta rule, or hidden. */
static inline uint32_t rp_model_conv_cols(const struct rp_model_config *config) {
    const struct rp_model_state *state = &config->state;
    return state->value_heads
               ? 2 * state->key_heads * state->key_dim + state->value_heads * state->value_dim
               : config->hidden;
}

/* The angles of a layer's q and k; NULL: they are not rotated. */
static inline const struct rp_rope *rp_model_rope(const struct rp_model_config *config,
                                                  uint32_t layer) {
    bool full = rp_model_window(config, layer) == 0;
    if (config->nope_layers[layer / 32] >> layer % 32 & 1 || (full && config->nope_full_layers))
        return NULL;
    return full || config->local_rope.theta == 0 ? &config->rope : &config->local_rope;
}

/* The mask of one layer: its program, or the window and cap that all kernels support built in. */
struct rp_layer_mask {
    struct rp_mask *program; /* NULL: causal, within the window, capped */
    uint32_t window;
    float soft_cap;
};

struct rp_model {
    struct rp_model_config config;
    /* rp_model_set_mask; both NULL: as the configuration says. */
    struct rp_mask *mask;              /* of all layers */
    struct rp_layer_mask *layer_masks; /* (config.layers) */
    enum rp_dtype dtype; /* of the matrices in memory that are not quantized: F32 or BF16 */
    struct rp_weights weights;
    /* (max_position or fewer, rotary_dim / 2, {cos, sin}): of config.rope and config.local_rope, or
     * NULL */
    float *rope_table, *local_rope_table;
    float *q_scale_table; /* (the same positions), or NULL */
    float *ones;          /* (head_dim): the weight of norms without one, or NULL */
    uint32_t rope_positions;
    /* Files that the matrices have yet to be read from (rp_model_open), or NULL. */
    struct rp_weight_source *source;
    bool loaded;    /* false: the matrices are shapes only, their data pointers NULL */
    uint32_t ranks; /* of the group that the weights are divided among; 0: one device has them */
};

#define RP_RANKS_MAX 8u

/* Divides the weights among `ranks` devices (tensor parallel), after describe, open or load, and
 * before a program is emitted: the tables get each rank's shapes and vectors; the data of matrices
 * is divided when they are prepared (rp_weight_divide). Does nothing for one rank. What cannot be
 * divided is UNSUPPORTED, by name and with the sizes that can. */
int rp_model_shard(struct rp_model *model, uint32_t ranks, struct rp_error *err) RP_MUST_USE;
/* Makes the shards' data of a matrix that has been read, and frees the matrix's. Nothing for
 * matrices that are divided already. */
int rp_weight_divide(const struct rp_model *model, struct rp_weight *weight,
                     struct rp_error *err) RP_MUST_USE;
/* The rows of `values`, the whole matrix's, that the rank's shard is quantized of, and the first of
 * its columns: a scale is that of the whole row. *out borrows the data where it has all rows, else
 * the caller releases it. */
int rp_weight_divide_values(const struct rp_model *model, const struct rp_weight *weight,
                            uint32_t rank, const struct rp_matrix *values, struct rp_matrix *out,
                            uint32_t *out_col, struct rp_error *err) RP_MUST_USE;
/* Query heads of a rank, KV heads of a rank (a KV head is replicated where there are fewer than
 * ranks), columns of a rank between gate_up and down, and rows of a rank's head and embedding
 * (equal on all ranks: the last ones have rows of zeros past the vocabulary). */
uint32_t rp_model_rank_heads(const struct rp_model *model);
uint32_t rp_model_rank_kv_heads(const struct rp_model *model);
uint32_t rp_model_rank_intermediate(const struct rp_model *model);
uint32_t rp_model_rank_expert_intermediate(const struct rp_model *model);
uint32_t rp_model_rank_vocab(const struct rp_model *model);

/* model_kv.c. The layout of pages that hold all layers, which are equal
 * (rp_model_has_equal_layers), of a rank; false on overflow. Bytes of a token's K and V in all
 * layers. */
bool rp_model_kv_layout(const struct rp_model *model, uint32_t page_tokens, enum rp_dtype dtype,
                        struct rp_kv_layout *out);
uint64_t rp_model_kv_token_bytes(const struct rp_model *model, enum rp_dtype dtype);

/* The weight of a role: layer RP_LAYER_NONE outside the layers. NULL: this model has none. A tied
 * head is the embedding, which is owned once. */
struct rp_weight *rp_model_weight(const struct rp_model *model, enum rp_weight_role role,
                                  uint32_t layer);
/* The same for a matrix, which must be there; of a group: the shard of rank 0, where those of the
 * other ranks follow. */
struct rp_matrix *rp_model_matrix(const struct rp_model *model, enum rp_weight_role role,
                                  uint32_t layer);
/* The same for a vector; NULL also in a described model. Of a group: the one of rank 0; the others
 * follow at a distance of rp_weight.rank_length. */
float *rp_model_vector(const struct rp_model *model, enum rp_weight_role role, uint32_t layer);

/* Rejects paths that are neither a model directory nor a GGUF file, with the reason: a path that
 * does not exist, a LoRA adapter. */
int rp_model_dir_check(const char *path, struct rp_error *err) RP_MUST_USE;

/* Reads config.json and generation_config.json, or the metadata of a GGUF file. */
int rp_model_config_load(const char *dir, struct rp_model_config *out_config,
                         struct rp_error *err) RP_MUST_USE;

/* Shapes only: every matrix has rows, cols and dtype, data NULL; vectors NULL. dtype as for
 * load. */
int rp_model_describe(const struct rp_model_config *config, enum rp_dtype dtype,
                      struct rp_model *out_model, struct rp_error *err) RP_MUST_USE;

/* dtype: BF16 or F32 in memory; RP_MODEL_DTYPE_AUTO keeps bf16 as bf16 and f32 as f32 (f16 becomes
 * f32, which holds it exactly). A quantized checkpoint keeps its 8 bits and is BF16 around them;
 * with F32 its values are multiplied by their scales while they are read. A scale per tensor
 * becomes one per row, since q, k and v differ.
 * GGUF's blocks keep their bits: with BF16, the choice of AUTO where any of them has scales, GEMMs
 * take inputs of 8 bits, with F32 inputs of f32. max_position: rows of the RoPE table (0: the
 * configuration's). */
#define RP_MODEL_DTYPE_AUTO ((enum rp_dtype) - 1)

/* Quantization while reading; scheme RP_QUANT_NONE: none. dtype is BF16 or RP_MODEL_DTYPE_AUTO
 * then. A NaN or an infinity in a quantized tensor is FORMAT, with its row. */
struct rp_model_quantization {
    enum rp_quant_scheme scheme;
    bool head;
};

/* Checks every tensor against the configuration and reads the vectors; matrices have no data yet:
 * rp_model_stream reads them. quantization may be NULL. */
int rp_model_open(const char *dir, enum rp_dtype dtype,
                  const struct rp_model_quantization *quantization, uint32_t max_position,
                  struct rp_model *out_model, struct rp_error *err) RP_MUST_USE;

/* Limit on host memory of matrices in flight: read, or being read, and not yet consumed. A single
 * matrix may be larger. */
#define RP_MODEL_STREAM_BYTES ((uint64_t)512 << 20)

/* Consumer of the matrices of an opened model. */
struct rp_weight_consumer {
    /* Called by the caller's thread for each matrix of the table in order, when it is complete. It
     * may take ownership of the data (rp_backend.matrix_prepare). */
    int (*consume)(void *ctx, struct rp_weight *weight, struct rp_error *err);
    /* Or NULL: called by the caller's thread with rising numbers, finally with the total. */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *ctx;
    uint64_t window_bytes; /* RP_MODEL_STREAM_BYTES; UINT64_MAX: all matrices stay */
    uint64_t peak_bytes;   /* out: peak bytes in flight */
    /* NULL: matrices that the model quantizes at load are quantized while they are read. Or: takes
     * the place of consume for those of 8 bits whose rule is plain (rp_weight_late_dtype). values
     * (F32, F16 or BF16; the matrix's rows and columns) is the stream's, and weight->matrix has no
     * data yet. FORMAT: a value is not finite; the stream finds it and names its tensor. */
    int (*quantize)(void *ctx, struct rp_weight *weight, const struct rp_matrix *values,
                    struct rp_error *err);
    /* NULL, or: takes the place of consume. values (of the model's type, with scales; not BLOCKS)
     * is the stream's; the model's table is only read, here as where quantize is called, so that
     * another thread may read matrices that have device memory already. */
    int (*fill)(void *ctx, struct rp_weight *weight, const struct rp_matrix *values,
                struct rp_error *err);
};

/* Reads all matrices of an opened model with up to eight threads while the caller consumes them.
 * Closes the files. An error names the first bad tensor in reading order, whatever the threads
 * did. */
int rp_model_stream(struct rp_model *model, struct rp_weight_consumer *consumer,
                    struct rp_error *err) RP_MUST_USE;

/* Opens a model and reads everything into host memory. progress may be NULL. */
int rp_model_load_quantized(const char *dir, enum rp_dtype dtype,
                            const struct rp_model_quantization *quantization, uint32_t max_position,
                            void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes),
                            void *ctx, struct rp_model *out_model,
                            struct rp_error *err) RP_MUST_USE;
int rp_model_load(const char *dir, enum rp_dtype dtype, uint32_t max_position,
                  void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes), void *ctx,
                  struct rp_model *out_model, struct rp_error *err) RP_MUST_USE;

/* Random weights in memory for a shape, seeded: benchmarks (`--shape llama-3.2-1b`). */
int rp_model_random(const struct rp_model_config *config, enum rp_dtype dtype, uint64_t seed,
                    uint32_t max_position, struct rp_model *out_model,
                    struct rp_error *err) RP_MUST_USE;
/* The same without data for the matrices: the GPU generates them when they are prepared. */
int rp_model_random_vectors(const struct rp_model_config *config, enum rp_dtype dtype,
                            uint64_t seed, uint32_t max_position, struct rp_model *out_model,
                            struct rp_error *err) RP_MUST_USE;
/* Named shapes: "llama-3.2-1b", "llama-3.1-8b", "demo", ...; NOT_FOUND lists them in err. */
int rp_model_shape(const char *name, struct rp_model_config *out_config,
                   struct rp_error *err) RP_MUST_USE;

void rp_model_deinit(struct rp_model *model);

/* Writes the network of the model as a program (model/network.c: reads as the formula). The program
 * borrows matrices and vectors of the model. Works on described models too. */
int rp_model_emit(const struct rp_model *model, struct rp_program *out_program,
                  struct rp_error *err) RP_MUST_USE;

/* model/model_mask.c. The limits that a program of this model is proved for; longest: positions, at
 * most the model's maximum; 0: that maximum. */
struct rp_mask_limits rp_model_mask_limits(const struct rp_model_config *config, uint32_t longest);
/* Takes ownership of `mask`, even when it fails (out of memory). It replaces the configuration's
 * window in all layers of programs emitted from now on, and lives as long as the model. */
int rp_model_set_mask(struct rp_model *model, struct rp_mask *mask,
                      struct rp_error *err) RP_MUST_USE;
/* The mask of a layer. */
struct rp_layer_mask rp_model_layer_mask(const struct rp_model *model, uint32_t layer);
void rp_model_drop_mask(struct rp_model *model); /* legal without one */

/* Numbers in the checkpoint, a tied head counted once. */
uint64_t rp_model_parameter_count(const struct rp_model *model);
/* Those that one token uses: of each layer's experts the chosen ones. */
uint64_t rp_model_active_parameter_count(const struct rp_model *model);
/* Bytes of all weights in memory, each counted once; of a group: of one rank. */
uint64_t rp_model_weight_bytes(const struct rp_model *model);

#endif
