/* Multi-head latent attention (network.h has the formula). */
#include "model/network.h"
#include "model/rope.h"

#include <math.h>

/* The eps of the classes' norms of low-rank projections, whatever rms_norm_eps says. */
#define LATENT_NORM_EPS 1e-6f

/* RMSNorm of all columns of `in`. */
static void latent_norm(struct rp_emit *e, const char *name, struct rp_view in,
                        enum rp_weight_role role, struct rp_view out) {
    struct rp_op norm = rp_emit_op(e, RP_OP_NORM, name);
    rp_op_add_input(&norm, in);
    norm.vector = rp_model_vector(e->model, role, e->layer);
    norm.out = out;
    norm.u.norm.eps = LATENT_NORM_EPS;
    norm.u.norm.group = in.cols;
    rp_emit_push(e, &norm);
}

/* In place; the first columns of every `step` ones are rotated. */
static void rope(struct rp_emit *e, const char *name, struct rp_view x, uint32_t heads,
                 uint32_t step) {
    struct rp_op rope = rp_emit_op(e, RP_OP_ROPE, name);
    rp_op_add_input(&rope, x);
    rope.out = x;
    rope.table = e->model->rope_table;
    rope.u.rope.heads = heads;
    rope.u.rope.head_dim = step;
    rope.u.rope.rotary_dim = e->config->latent.rope_dim;
    rope.u.rope.position_count = e->model->rope_positions;
    rp_emit_push(e, &rope);
}

static void kv_write(struct rp_emit *e, struct rp_view row) {
    struct rp_op write = rp_emit_op(e, RP_OP_KV_WRITE, "attn.kv_write");
    rp_op_add_input(&write, row);
    write.u.kv_write.kv_heads = 1;
    write.u.kv_write.head_dim = row.cols;
    rp_emit_push(e, &write);
}

/* The first columns of every in_step ones, times the matrix of that head; with `copied`, followed
 * by so many columns of `copy`, in steps of in_step, too. */
static struct rp_view head_linear(struct rp_emit *e, const char *name, struct rp_view in,
                                  uint32_t in_step, enum rp_weight_role role, enum rp_dtype dtype,
                                  const struct rp_view *copy, uint32_t copied) {
    struct rp_op linear = rp_emit_op(e, RP_OP_HEAD_LINEAR, name);
    uint32_t heads = e->config->heads;
    linear.weight = rp_model_matrix(e->model, role, e->layer);
    uint32_t out_step = linear.weight->rows / heads + copied;
    rp_op_add_input(&linear, in);
    if (copied)
        rp_op_add_input(&linear, *copy);
    linear.out = rp_emit_tensor(e, name, dtype, heads * out_step);
    linear.u.head_linear.heads = heads;
    linear.u.head_linear.in_step = in_step;
    linear.u.head_linear.out_step = out_step;
    linear.u.head_linear.copied = copied;
    linear.u.head_linear.copied_step = in_step;
    rp_emit_push(e, &linear);
    return linear.out;
}

/* q: of each head as wide as a stored row. The weighted sums of latents, of each head. */
static struct rp_view attention(struct rp_emit *e, struct rp_view q) {
    const struct rp_model_config *config = e->config;
    struct rp_op attention = rp_emit_op(e, RP_OP_ATTENTION, "attn.attention");
    const struct rp_layer_mask mask = rp_model_layer_mask(e->model, e->layer);
    double scale = config->attention_scale;
    rp_op_add_input(&attention, q);
    attention.out =
        rp_emit_tensor(e, "attn.out", e->model->dtype, config->heads * config->latent.rank);
    attention.u.attention.heads = config->heads;
    attention.u.attention.kv_heads = 1;
    attention.u.attention.head_dim = rp_model_latent_cols(&config->latent);
    attention.u.attention.value_dim = config->latent.rank;
    attention.u.attention.scale = (float)(scale > 0 ? scale : 1.0 / sqrt(config->head_dim));
    attention.u.attention.window = mask.window;
    attention.u.attention.soft_cap = mask.soft_cap;
    attention.u.attention.mask = mask.program;
    attention.u.attention.mask_text = mask.program ? rp_mask_text(mask.program) : NULL;
    rp_emit_push(e, &attention);
    return attention.out;
}

struct rp_view rp_emit_latent_attention(struct rp_emit *e, struct rp_view in) {
    const struct rp_model_latent *latent = &e->config->latent;
    uint32_t dim = e->config->head_dim, cols = rp_model_latent_cols(latent);
    struct rp_view both = rp_emit_linear(e, "attn.qkv", in, RP_WEIGHT_QKV);
    struct rp_view q = rp_emit_columns(both, 0, both.cols - cols);
    struct rp_view row = rp_emit_columns(both, q.cols, cols);
    struct rp_view c = rp_emit_columns(row, 0, latent->rank);
    if (latent->q_rank) {
        struct rp_view low = rp_emit_tensor(e, "attn.q_norm", e->model->dtype, q.cols);
        latent_norm(e, "attn.q_norm", q, RP_WEIGHT_Q_NORM, low);
        q = rp_emit_linear(e, "attn.q_b", low, RP_WEIGHT_Q_B);
    }
    struct rp_view q_rope = rp_emit_columns(q, latent->nope_dim, q.cols - latent->nope_dim);
    latent_norm(e, "attn.k_norm", c, RP_WEIGHT_K_NORM, c);
    rope(e, "attn.q_rope", q_rope, e->config->heads, dim);
    rope(e, "attn.k_rope", rp_emit_columns(row, latent->rank, latent->rope_dim), 1,
         latent->rope_dim);
    kv_write(e, row);
    struct rp_view rounded = rp_emit_rounded(e, "attn.q_rounded", q);
    struct rp_view q_latent = head_linear(e, "attn.k_b", rounded, dim, RP_WEIGHT_K_B, RP_DTYPE_F32,
                                          &q_rope, latent->rope_dim);
    struct rp_view v = head_linear(e, "attn.v_b", attention(e, q_latent), latent->rank,
                                   RP_WEIGHT_V_B, e->model->dtype, NULL, 0);
    return rp_emit_linear(e, "attn.o", v, RP_WEIGHT_O);
}
