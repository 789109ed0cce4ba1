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
    int status;
};

/* Columns of the output of the qkv GEMM; qk is q and k side by side. */
struct rp_qkv {
    struct rp_view q, k, v, qk;
};

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
/* The gate_up GEMM, the activation, and the down GEMM; in layers with experts the route, the chosen
 * experts' GEMMs and their weighted sum. */
struct rp_view rp_emit_mlp(struct rp_emit *e, struct rp_view in);

#endif
