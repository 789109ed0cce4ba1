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

/* RMSNorm of whole rows into a new tensor of the model's dtype, or in place. */
struct rp_view rp_emit_norm(struct rp_emit *e, const char *name, struct rp_view x,
                            enum rp_weight_role role);
void rp_emit_norm_in_place(struct rp_emit *e, const char *name, struct rp_view x,
                           enum rp_weight_role role);
/* in * W^T, plus the bias of the role where the model has one. */
struct rp_view rp_emit_linear(struct rp_emit *e, const char *name, struct rp_view in,
                              enum rp_weight_role role);
struct rp_view rp_emit_activation(struct rp_emit *e, struct rp_view gate_up);
/* sum += term */
void rp_emit_add(struct rp_emit *e, const char *name, struct rp_view sum, struct rp_view term);

struct rp_qkv rp_emit_qkv(struct rp_emit *e, struct rp_view in);
/* RMSNorm over each head of q and k. */
void rp_emit_head_norms(struct rp_emit *e, const struct rp_qkv *qkv);
/* RoPE of q and k, K and V to their pages, attention, and the o GEMM. */
struct rp_view rp_emit_attention(struct rp_emit *e, const struct rp_qkv *qkv);
/* The gate_up GEMM, the activation, and the down GEMM. */
struct rp_view rp_emit_mlp(struct rp_emit *e, struct rp_view in);

#endif
