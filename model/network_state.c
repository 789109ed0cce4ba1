/* Operators of layers that carry a state from token to token in place of keys and values:
 *
 *   short convolution (LFM2)
 *     B, C, x = in Win^T;  y = (C * conv(B * x)) Wout^T
 *   gated delta rule (Qwen3-Next)
 *     q, k, v, z = in Win^T;  b, a = in Wba^T;  q, k, v = silu(conv([q; k; v]))
 *     o = delta rule(q, k, v, b, a);  y = (norm(o) * silu(z)) Wout^T, the norm over each head
 *
 * conv is causal and of each column alone; program.h has both formulas. */
#include "model/network.h"

/* Bytes of the sequence's state for an operator; an error is kept in e->status. */
static uint32_t add_state(struct rp_emit *e, uint64_t bytes) {
    int32_t offset = e->status == RP_OK ? rp_program_add_state(e->program, bytes) : 0;
    if (offset < 0)
        e->status = offset;
    return offset < 0 ? 0 : (uint32_t)offset;
}

/* gates: B and C of the short convolution, or NULL: silu. */
static struct rp_view conv(struct rp_emit *e, struct rp_view in, const struct rp_view *gates,
                           enum rp_dtype dtype) {
    struct rp_op conv = rp_emit_op(e, RP_OP_CONV, "state.conv");
    uint32_t width = e->config->state.conv_width;
    rp_op_add_input(&conv, in);
    for (int i = 0; i < 2 && gates; i++)
        rp_op_add_input(&conv, gates[i]);
    conv.vector = rp_model_vector(e->model, RP_WEIGHT_CONV, e->layer);
    conv.out = rp_emit_tensor(e, "state.conv", dtype, in.cols);
    conv.u.conv.width = width;
    conv.u.conv.gated = gates != NULL;
    conv.u.conv.silu = gates == NULL;
    conv.u.conv.state_offset = add_state(e, (uint64_t)(width - 1) * in.cols * sizeof(float));
    rp_emit_push(e, &conv);
    return conv.out;
}

static struct rp_view delta(struct rp_emit *e, struct rp_view qkv, struct rp_view ba) {
    const struct rp_model_state *state = &e->config->state;
    struct rp_op delta = rp_emit_op(e, RP_OP_GATED_DELTA, "state.delta");
    rp_op_add_input(&delta, qkv);
    rp_op_add_input(&delta, ba);
    delta.vector = rp_model_vector(e->model, RP_WEIGHT_A_LOG, e->layer);
    delta.bias = rp_model_vector(e->model, RP_WEIGHT_DT_BIAS, e->layer);
    delta.out =
        rp_emit_tensor(e, "state.delta", RP_DTYPE_F32, state->value_heads * state->value_dim);
    uint64_t values = (uint64_t)state->value_heads * state->key_dim * state->value_dim;
    delta.u.delta = (struct rp_gated_delta){state->key_heads, state->value_heads, state->key_dim,
                                            state->value_dim, add_state(e, values * sizeof(float))};
    rp_emit_push(e, &delta);
    return delta.out;
}

/* In place, over each head; its weight is not offset as those of the other norms are. */
static void delta_norm(struct rp_emit *e, struct rp_view heads) {
    struct rp_op norm = rp_emit_op(e, RP_OP_NORM, "state.norm");
    rp_op_add_input(&norm, heads);
    norm.out = heads;
    norm.vector = rp_model_vector(e->model, RP_WEIGHT_DELTA_NORM, e->layer);
    norm.u.norm.eps = e->config->norm_eps;
    norm.u.norm.group = e->config->state.value_dim;
    rp_emit_push(e, &norm);
}

struct rp_view rp_emit_glu(struct rp_emit *e, const char *name, struct rp_view gate,
                           struct rp_view x, enum rp_activation fn) {
    struct rp_op glu = rp_emit_op(e, RP_OP_GLU, name);
    rp_op_add_input(&glu, gate);
    rp_op_add_input(&glu, x);
    glu.out = rp_emit_tensor(e, name, e->model->dtype, x.cols);
    glu.u.activation.fn = fn;
    rp_emit_push(e, &glu);
    return glu.out;
}

static struct rp_view emit_delta(struct rp_emit *e, struct rp_view in) {
    uint32_t cols = rp_model_conv_cols(e->config);
    e->branch = RP_BRANCH_MAIN;
    e->branch_tokens = RP_BRANCH_TOKENS;
    struct rp_view all = rp_emit_linear(e, "state.in", in, RP_WEIGHT_MIX_IN);
    struct rp_view qkv = conv(e, rp_emit_columns(all, 0, cols), NULL, RP_DTYPE_F32);
    e->branch = RP_BRANCH_SIDE;
    struct rp_view ba = rp_emit_linear(e, "state.ba", in, RP_WEIGHT_MIX_BA);
    e->branch = RP_BRANCH_NONE;
    struct rp_view out = delta(e, qkv, ba);
    delta_norm(e, out);
    struct rp_view z = rp_emit_columns(all, cols, out.cols);
    return rp_emit_glu(e, "state.gate", z, out, RP_ACTIVATION_SILU);
}

static struct rp_view emit_short_conv(struct rp_emit *e, struct rp_view in) {
    uint32_t cols = e->config->hidden;
    struct rp_view all = rp_emit_linear(e, "state.in", in, RP_WEIGHT_MIX_IN);
    const struct rp_view gates[] = {rp_emit_columns(all, 0, cols),
                                    rp_emit_columns(all, cols, cols)};
    return conv(e, rp_emit_columns(all, 2 * cols, cols), gates, e->model->dtype);
}

struct rp_view rp_emit_state(struct rp_emit *e, struct rp_view in) {
    struct rp_view out = e->config->state.value_heads ? emit_delta(e, in) : emit_short_conv(e, in);
    return rp_emit_linear(e, "state.out", out, RP_WEIGHT_MIX_OUT);
}

void rp_state_layer(struct rp_emit *e, struct rp_view x) {
    if (!rp_model_has_state(e->config, e->layer)) {
        rp_qwen3_layer(e, x);
        return;
    }
    struct rp_view in = rp_emit_norm(e, "state.in_norm", x, RP_WEIGHT_ATTN_NORM);
    rp_emit_add(e, "state.add", x, rp_emit_state(e, in));
    in = rp_emit_norm(e, "mlp.norm", x, RP_WEIGHT_MLP_NORM);
    rp_emit_add(e, "mlp.add", x, rp_emit_mlp(e, in));
}
