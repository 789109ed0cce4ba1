/* balance.h - factors that make activations and weights easier to quantize together, folded into
 * the operator before a GEMM.
 *
 *   y = W x = (W S) (S^-1 x)         S = diag(s): columns of W times s_j, elements of x divided by it
 *
 * In many models a few elements of x are far larger than the others, and a per-row scale must cover
 * them: INT8 then has few steps for the rest. Dividing by s moves that into the weights, whose
 * scales are per output (SmoothQuant, Xiao et al. 2023: s_j = max|x_j|^a / max|W_j|^(1-a)). x is
 * divided in the operator that produces it:
 *
 *   site       x                         divided in
 *   qkv        the attention's norm      the norm's weights       not where these are stored less 1 (Gemma)
 *   o          what attention gathers    rows of v, and its bias  one factor for the heads that share a KV head
 *   gate_up    the MLP's norm            the norm's weights       the same
 *   down       act(gate) * up            rows of up, and its bias
 *
 * Factors are powers of two, so that norms, biases and rows stay exact: without quantization the
 * model is unchanged. For each site a of 1/4, 1/2, 3/4 and 1 are tried on the sample, with the
 * noise that rounding adds by rows and by weights, and none is used unless it reduces the noise by
 * half a dB. */
#ifndef RP_MODEL_BALANCE_H
#define RP_MODEL_BALANCE_H

#include "model/model.h"

enum rp_balance_site {
    RP_BALANCE_QKV,
    RP_BALANCE_O,
    RP_BALANCE_GATE_UP,
    RP_BALANCE_DOWN,
    RP_BALANCE_SITES
};

/* The matrix whose input is balanced. */
static inline enum rp_weight_role rp_balance_role(enum rp_balance_site site) {
    static const enum rp_weight_role roles[RP_BALANCE_SITES] = {[RP_BALANCE_QKV] = RP_WEIGHT_QKV,
                                                                [RP_BALANCE_O] = RP_WEIGHT_O,
                                                                [RP_BALANCE_GATE_UP] =
                                                                    RP_WEIGHT_GATE_UP,
                                                                [RP_BALANCE_DOWN] = RP_WEIGHT_DOWN};
    return roles[site];
}

/* The site of a role; RP_BALANCE_SITES: none. */
static inline enum rp_balance_site rp_balance_site_of(enum rp_weight_role role) {
    for (int site = 0; site < RP_BALANCE_SITES; site++)
        if (rp_balance_role((enum rp_balance_site)site) == role)
            return (enum rp_balance_site)site;
    return RP_BALANCE_SITES;
}

/* Input rows of one site's weights. */
struct rp_balance_sample {
    uint32_t cols, rows;
    float *values;  /* (rows, cols) */
    float *largest; /* (cols) of |x_j|, over more rows than these */
};

struct rp_balance_factors {
    float *values;   /* (cols) powers of two; NULL: all 1 */
    double noise_db; /* estimated reduction of the rounding noise; 0 without factors */
};

struct rp_balance {
    uint32_t layers;
    struct rp_balance_factors *sites; /* (layers, RP_BALANCE_SITES) */
};

/* samples: (layers, RP_BALANCE_SITES). The model's matrices are F32 or BF16, in any layout.
 * NO_MEMORY leaves *out empty. */
int rp_balance_choose(const struct rp_model *model, const struct rp_balance_sample *samples,
                      struct rp_balance *out, struct rp_error *err) RP_MUST_USE;
void rp_balance_deinit(struct rp_balance *balance);

static inline const struct rp_balance_factors *
rp_balance_at(const struct rp_balance *balance, uint32_t layer, enum rp_balance_site site) {
    return &balance->sites[layer * RP_BALANCE_SITES + site];
}

#endif
