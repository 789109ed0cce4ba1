/* network.h - emits the operators of a layer: the functions that families' formulas are written in.
 * Tensors and operators are named after the layer: "layer.3.attn.qkv". The first failure is kept in
 * `status`; later calls do nothing. */
#ifndef RP_MODEL_NETWORK_H
#define RP_MODEL_NETWORK_H

#include "model/family.h"

struct rp_emit {
    struct rp_program *program;
    const struct rp_model *model;
    const struct rp_model_config *config;
    uint32_t layer; /* RP_LAYER_NONE outside the layers */
    /* What the operators that are emitted now have. */
    enum rp_branch branch;
    uint32_t branch_tokens;
    int status;
    struct rp_view layer_embeds; /* (tokens, layers * layer_embed), where the model has them */
};

/* Columns of the output of the qkv GEMM; qk is q and k side by side. Layers that read another's K
 * and V have no columns of k and v. */
struct rp_qkv {
    struct rp_view q, k, v, qk;
    struct rp_view gate; /* of attention's output, where the model has one */
};

static inline struct rp_view rp_emit_columns(struct rp_view view, uint32_t col, uint32_t cols) {
    return (struct rp_view){view.tensor, view.col + col, cols};
}
/* A new tensor of token rows, or of others; an operator on token rows; and its end. */
struct rp_view rp_emit_tensor(struct rp_emit *e, const char *name, enum rp_dtype dtype,
                              uint32_t cols);
struct rp_view rp_emit_tensor_of(struct rp_emit *e, const char *name, uint32_t rows,
                                 enum rp_dtype dtype, uint32_t cols);
struct rp_op rp_emit_op(const struct rp_emit *e, enum rp_op_kind kind, const char *name);
void rp_emit_push(struct rp_emit *e, const struct rp_op *op);
/* The sum over the ranks, in place; nothing where there is no group. */
void rp_emit_allreduce(struct rp_emit *e, const char *name, struct rp_view x,
                       enum rp_dtype payload);
/* The distance between the ranks' vectors of a weight. */
uint32_t rp_emit_vector_step(const struct rp_emit *e, enum rp_weight_role role);

/* RMSNorm or LayerNorm, as the model has it, of whole rows into a new tensor of the model's dtype;
 * RMSNorm in place. */
struct rp_view rp_emit_norm(struct rp_emit *e, const char *name, struct rp_view x,
                            enum rp_weight_role role);
void rp_emit_norm_in_place(struct rp_emit *e, const char *name, struct rp_view x,
                           enum rp_weight_role role);
/* in * W^T, plus the bias of the role where the model has one. */
struct rp_view rp_emit_linear(struct rp_emit *e, const char *name, struct rp_view in,
                              enum rp_weight_role role);
/* x in the model's dtype, which a GEMM can read; x itself in f32. */
struct rp_view rp_emit_rounded(struct rp_emit *e, const char *name, struct rp_view x);
/* x *= factor */
void rp_emit_scale_in_place(struct rp_emit *e, const char *name, struct rp_view x, float factor);
struct rp_view rp_emit_activation(struct rp_emit *e, struct rp_view gate_up);
/* sum += term */
void rp_emit_add(struct rp_emit *e, const char *name, struct rp_view sum, struct rp_view term);

struct rp_qkv rp_emit_qkv(struct rp_emit *e, struct rp_view in);
/* The norms of q and k, in place, of the kind that the model has (enum rp_qk_norm). */
void rp_emit_qk_norms(struct rp_emit *e, const struct rp_qkv *qkv);
/* RoPE of q and k in layers that have it, K and V to their pages, attention, and the o GEMM. */
struct rp_view rp_emit_attention(struct rp_emit *e, const struct rp_qkv *qkv);
/* network_latent.c. Multi-head latent attention, in the form that reads the latents as they are
 * stored (absorbed):
 *
 *   q = in Wq^T, or norm(in Wqa^T) Wqb^T       of each head [q_n | q_r];  q_r rotated
 *   [c | k_r] = in Wkv^T                       c normed, k_r rotated; both stored, once for all heads
 *   p_j  = softmax_j(scale * ((q_n Wk) . c_j + q_r . k_r_j))
 *   out  = [of each head (sum_j p_j c_j) Wv^T] Wo^T
 *
 * (q_n Wk) . c is q_n . (Wk c), the score with the head's own K; so is V. Prompts and decode rows
 * compute the same: a token's bits do not depend on how its prompt was cut. */
struct rp_view rp_emit_latent_attention(struct rp_emit *e, struct rp_view in);
/* network_state.c: what layers with state have in place of attention: the short convolution, or the
 * gated delta rule. */
struct rp_view rp_emit_state(struct rp_emit *e, struct rp_view in);
/* fn(gate) * x, of a type that a GEMM can read. */
struct rp_view rp_emit_glu(struct rp_emit *e, const char *name, struct rp_view gate,
                           struct rp_view x, enum rp_activation fn);
/* The gate_up GEMM, the activation, and the down GEMM; in layers with experts the route, the chosen
 * experts' GEMMs and their weighted sum. */
struct rp_view rp_emit_mlp(struct rp_emit *e, struct rp_view in);

/* The parts of layers that have both an MLP and experts. The router reads `router_in`.
 * rp_emit_experts: network_experts.c. */
struct rp_view rp_emit_dense_mlp(struct rp_emit *e, struct rp_view in);
struct rp_view rp_emit_experts(struct rp_emit *e, struct rp_view router_in, struct rp_view in);
/* norm(x) * factor, in the model's dtype: what the router reads. */
struct rp_view rp_emit_router_norm(struct rp_emit *e, struct rp_view x, float factor);
/* v, or k where that is v, normed by heads without a weight; before the norm of k. */
void rp_emit_v_norm(struct rp_emit *e, struct rp_qkv *qkv);
/* x += norm((act(x Wgate^T) * the layer's embedding) Wout^T) */
void rp_emit_layer_embed(struct rp_emit *e, struct rp_view x);

#endif
