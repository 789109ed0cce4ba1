/* weights.h - the table of a model's weights: the role of each in the network, and its memory.
 *
 * All code that handles weights iterates over this table: describing, allocating, loading, filling
 * at random, quantizing, repacking, uploading, writing, counting. The table knows no tensor names;
 * those are the family's (family.h).
 *
 * Ownership: the model owns the table and, until a device takes ownership, the matrices' data.
 * Thread: one owner while loading, then read-only. */
#ifndef RP_MODEL_WEIGHTS_H
#define RP_MODEL_WEIGHTS_H

#include "quant/matrix.h"

enum rp_weight_role {
    /* outside the layers */
    RP_WEIGHT_EMBED,           /* matrix (vocab, hidden) */
    RP_WEIGHT_HEAD,            /* matrix (vocab, hidden); a tied head has no entry of its own */
    RP_WEIGHT_FINAL_NORM,      /* (hidden) */
    RP_WEIGHT_FINAL_NORM_BIAS, /* (hidden) */
    /* of each layer */
    RP_WEIGHT_ATTN_NORM,      /* (hidden) */
    RP_WEIGHT_ATTN_NORM_BIAS, /* (hidden) */
    /* matrix ((heads + 2 kv_heads) * head_dim, hidden): q, k, v rows; with output_gate after
     * those of the gate, as many as q's; with latents (q + rank + rope_dim, hidden): the rows of
     * q, or q_rank ones, and of the latent */
    RP_WEIGHT_QKV,
    RP_WEIGHT_QKV_BIAS, /* (qkv rows) */
    RP_WEIGHT_Q_NORM,   /* (head_dim), or (heads * head_dim): enum rp_qk_norm; latents: (q_rank) */
    RP_WEIGHT_K_NORM,   /* (head_dim), or (kv_heads * head_dim); latents: (rank) */
    /* of latents (struct rp_model_latent); K_B and V_B are halves of one tensor, never quantized */
    RP_WEIGHT_Q_B,            /* matrix (heads * head_dim, q_rank) */
    RP_WEIGHT_K_B,            /* matrix (heads * rank, nope_dim): of each head, transposed */
    RP_WEIGHT_V_B,            /* matrix (heads * value_dim, rank) */
    RP_WEIGHT_SINKS,          /* (heads): a logit in the softmax of each head, without a value */
    RP_WEIGHT_O,              /* matrix (hidden, heads * head_dim) */
    RP_WEIGHT_O_BIAS,         /* (hidden) */
    RP_WEIGHT_ATTN_POST_NORM, /* (hidden): norm of attention's output before it is added */
    RP_WEIGHT_MLP_NORM,       /* (hidden) */
    RP_WEIGHT_MLP_NORM_BIAS,  /* (hidden) */
    RP_WEIGHT_GATE_UP,        /* matrix (2 * intermediate, hidden): gate rows, then up rows */
    RP_WEIGHT_GATE_UP_BIAS,   /* (2 * intermediate) */
    RP_WEIGHT_DOWN,           /* matrix (hidden, intermediate) */
    RP_WEIGHT_DOWN_BIAS,      /* (hidden) */
    RP_WEIGHT_MLP_POST_NORM,  /* (hidden): norm of the MLP's output before it is added */
    /* of layers with experts (struct rp_model_experts), in place of gate_up and down */
    RP_WEIGHT_ROUTER,         /* matrix (experts, hidden) */
    RP_WEIGHT_ROUTER_BIAS,    /* (experts): added to the scores for the choice */
    RP_WEIGHT_EXPERT_GATE_UP, /* matrix (experts * 2 * inner, hidden): gate, up of expert 0, .. */
    RP_WEIGHT_EXPERT_DOWN,    /* matrix (experts * hidden, inner) */
    RP_WEIGHT_SHARED_GATE_UP, /* matrix (2 * shared inner, hidden): of the expert of all rows */
    RP_WEIGHT_SHARED_DOWN,    /* matrix (hidden, shared inner) */
    RP_WEIGHT_SHARED_GATE, /* matrix (1, hidden): the shared expert is multiplied by its sigmoid */
    RP_WEIGHT_ROUTER_LOGIT_BIAS,   /* (experts): added to the router's logits */
    RP_WEIGHT_EXPERT_GATE_UP_BIAS, /* (experts * 2 * inner) */
    RP_WEIGHT_EXPERT_DOWN_BIAS,    /* (experts * hidden) */
    RP_WEIGHT_ROUTER_NORM,         /* (hidden): norm of the residual that the router reads */
    RP_WEIGHT_ROUTER_SCALES,       /* (experts): the weight of each is multiplied by it */
    RP_WEIGHT_MLP_POST_NORM_1,     /* (hidden): of the MLP beside experts */
    RP_WEIGHT_EXPERT_NORM,         /* (hidden): of what the experts read */
    RP_WEIGHT_EXPERT_POST_NORM,    /* (hidden): of their sum */
    RP_WEIGHT_LAYER_GATE,          /* matrix (layer_embed, hidden) */
    RP_WEIGHT_LAYER_OUT,           /* matrix (hidden, layer_embed) */
    RP_WEIGHT_LAYER_NORM,          /* (hidden): of what it adds */
    RP_WEIGHT_LAYER_SCALAR,        /* (1) */
    /* outside the layers */
    RP_WEIGHT_LAYER_EMBED,     /* matrix (layer_embed_vocab, layers * layer_embed) */
    RP_WEIGHT_LAYER_PROJ,      /* matrix (layers * layer_embed, hidden) */
    RP_WEIGHT_LAYER_PROJ_NORM, /* (layer_embed) */
    /* of layers with state (struct rp_model_state), in place of qkv and o */
    RP_WEIGHT_MIX_IN,     /* matrix: (3 hidden, hidden): B, C, x; delta rule: q, k, v, z rows */
    RP_WEIGHT_MIX_BA,     /* matrix (2 value_heads, hidden): b rows, a rows */
    RP_WEIGHT_MIX_OUT,    /* matrix (hidden, hidden) or (hidden, value_heads * value_dim) */
    RP_WEIGHT_CONV,       /* (columns * conv_width) */
    RP_WEIGHT_A_LOG,      /* (value_heads) */
    RP_WEIGHT_DT_BIAS,    /* (value_heads) */
    RP_WEIGHT_DELTA_NORM, /* (value_dim) */
    RP_WEIGHT_ROLE_COUNT
};

/* How a group of devices divides a weight: by output rows, or by input columns (partial sums). */
enum rp_shard_axis { RP_SHARD_NONE, RP_SHARD_ROWS, RP_SHARD_COLS };

struct rp_weight {
    enum rp_weight_role role;
    uint16_t layer; /* RP_LAYER_NONE outside the layers */
    /* The matrix (or vector) is those of so many experts, one after the other, each of rows /
     * experts rows; 0: of all tokens. One matrix has one address and one device allocation, which a
     * kernel of a captured graph indexes by expert. */
    uint16_t experts;
    enum rp_shard_axis shard;
    struct rp_matrix matrix; /* rows 0: this weight is a vector */
    float *vector;           /* (length) f32; rp_alloc_aligned */
    uint32_t length;
    /* What each rank of a group has (weights_shard.c); NULL and 0: there is no group. */
    struct rp_matrix *shards; /* (ranks); the matrix above is only read from the file then */
    float *rank_vectors;      /* (ranks, rank_length) of a vector that is divided; aligned */
    uint32_t rank_length;
};

/* In the order in which matrices go to a device: layer by layer, then final norm, head,
 * embedding. */
struct rp_weights {
    struct rp_weight *entries;
    uint32_t count;
    uint32_t *index; /* ((layers + 1) * RP_WEIGHT_ROLE_COUNT): entry + 1 of (layer, role), or 0 */
};

static inline bool rp_weight_is_matrix(const struct rp_weight *weight) {
    return weight->matrix.rows > 0;
}

/* Norm weights multiply; all other vectors are added. */
static inline bool rp_weight_is_norm(enum rp_weight_role role) {
    return role == RP_WEIGHT_FINAL_NORM || role == RP_WEIGHT_ATTN_NORM ||
           role == RP_WEIGHT_Q_NORM || role == RP_WEIGHT_K_NORM ||
           role == RP_WEIGHT_ATTN_POST_NORM || role == RP_WEIGHT_MLP_NORM ||
           role == RP_WEIGHT_MLP_POST_NORM || role == RP_WEIGHT_MLP_POST_NORM_1 ||
           role == RP_WEIGHT_EXPERT_NORM || role == RP_WEIGHT_EXPERT_POST_NORM ||
           role == RP_WEIGHT_ROUTER_NORM || role == RP_WEIGHT_ROUTER_SCALES ||
           role == RP_WEIGHT_LAYER_NORM || role == RP_WEIGHT_LAYER_SCALAR ||
           role == RP_WEIGHT_LAYER_PROJ_NORM || role == RP_WEIGHT_DELTA_NORM;
}

#endif
