/* Builds the network of a model as a program. The formula of a layer is the family's (family.h);
 * this file has one function per operator, and what lies around the layers:
 *
 *   x = embed[token] (* sqrt(hidden) or another factor in some families)
 *   the layers
 *   logits = norm(x[logit rows]) Whead^T (* a factor);  cap * tanh(logits / cap) where a cap is set
 *   sample(logits)
 *
 * In a group of devices a rank has a share of the heads, of the columns between gate_up and down,
 * and of the vocabulary: embedding, o and down are sums over the ranks, and logits are gathered.
 *
 * x and every sum are f32. The input of a GEMM has the dtype of its weights, so the operator before
 * it rounds. Every value has a tensor of its own: lifetimes decide which of them share memory. */
#include "model/network.h"
#include "base/bf16.h"
#include "model/rope.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct rp_view nothing = {RP_NO_TENSOR, 0, 0};

/* "layer.3." before the name, inside a layer. */
static void write_name(const struct rp_emit *e, char *out, size_t out_bytes, const char *name) {
    int len = e->layer == RP_LAYER_NONE ? snprintf(out, out_bytes, "%s", name)
                                        : snprintf(out, out_bytes, "layer.%u.%s", e->layer, name);
    RP_ASSERT_CMP(len, <, (int)out_bytes);
}

static struct rp_view tensor(struct rp_emit *e, const char *name, uint32_t rows,
                             enum rp_dtype dtype, uint32_t cols) {
    char full[RP_OP_NAME_MAX];
    if (e->status != RP_OK)
        return nothing;
    write_name(e, full, sizeof full, name);
    int32_t index = rp_program_add_tensor(e->program, rows, dtype, cols, "%s", full);
    if (index < 0) {
        e->status = index;
        return nothing;
    }
    return rp_view_all(e->program, index);
}

static struct rp_view columns(struct rp_view view, uint32_t col, uint32_t cols) {
    return (struct rp_view){view.tensor, view.col + col, cols};
}

static struct rp_op op(const struct rp_emit *e, enum rp_op_kind kind, uint32_t rows,
                       const char *name) {
    struct rp_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.rows = rows;
    op.branch = e->branch;
    op.branch_tokens = e->branch_tokens;
    op.layer = (uint16_t)e->layer;
    op.out = nothing;
    write_name(e, op.name, sizeof op.name, name);
    return op;
}

static void add(struct rp_emit *e, const struct rp_op *op) {
    if (e->status != RP_OK)
        return;
    int32_t index = rp_program_add_op(e->program, op);
    if (index < 0)
        e->status = index;
}

struct rp_view rp_emit_tensor(struct rp_emit *e, const char *name, enum rp_dtype dtype,
                              uint32_t cols) {
    return tensor(e, name, RP_ROWS_TOKEN, dtype, cols);
}

struct rp_view rp_emit_tensor_of(struct rp_emit *e, const char *name, uint32_t rows,
                                 enum rp_dtype dtype, uint32_t cols) {
    return tensor(e, name, rows, dtype, cols);
}

struct rp_op rp_emit_op(const struct rp_emit *e, enum rp_op_kind kind, const char *name) {
    return op(e, kind, RP_ROWS_TOKEN, name);
}

void rp_emit_push(struct rp_emit *e, const struct rp_op *op) { add(e, op); }

/* --- one function per operator -----------------------------------------------------------------
 */

static void step_begin(struct rp_emit *e) {
    struct rp_op begin = op(e, RP_OP_STEP_BEGIN, RP_ROWS_NONE, "step_begin");
    add(e, &begin);
}

void rp_emit_allreduce(struct rp_emit *e, const char *name, struct rp_view x,
                       enum rp_dtype payload) {
    struct rp_op reduce = op(e, RP_OP_ALLREDUCE, RP_ROWS_TOKEN, name);
    if (e->model->ranks <= 1)
        return;
    rp_op_add_input(&reduce, x);
    reduce.out = x;
    reduce.u.exchange.payload = payload;
    add(e, &reduce);
}

uint32_t rp_emit_vector_step(const struct rp_emit *e, enum rp_weight_role role) {
    const struct rp_weight *weight = rp_model_weight(e->model, role, e->layer);
    return weight ? weight->rank_length : 0;
}

/* Rounded to the type in which the model computes: 59.867 is 59.75 in bf16, as in training. */
static float rounded_scale(const struct rp_emit *e, float scale) {
    return e->model->dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(scale)) : scale;
}

static float embed_scale(const struct rp_emit *e) {
    if (!e->config->embed_scaled)
        return e->config->embed_factor != 0.0f ? e->config->embed_factor : 1.0f;
    return rounded_scale(e, (float)sqrt((double)e->config->hidden));
}

static struct rp_view embed(struct rp_emit *e) {
    const struct rp_matrix *weight = rp_model_matrix(e->model, RP_WEIGHT_EMBED, RP_LAYER_NONE);
    struct rp_op embed = op(e, RP_OP_EMBED, RP_ROWS_TOKEN, "embed");
    embed.weight = weight;
    embed.out = tensor(e, "residual", RP_ROWS_TOKEN, RP_DTYPE_F32, weight->cols);
    embed.u.embed.scale = embed_scale(e);
    add(e, &embed);
    /* One rank has the row, the others zeros: exact in bf16 where the weights are, unscaled. */
    bool bf16 = weight->dtype == RP_DTYPE_BF16 && embed.u.embed.scale == 1.0f;
    rp_emit_allreduce(e, "embed.reduce", embed.out, bf16 ? RP_DTYPE_BF16 : RP_DTYPE_F32);
    return embed.out;
}

/* The role of a norm's bias; of other weights: the role itself, which is no bias. */
static enum rp_weight_role norm_bias_of(enum rp_weight_role role) {
    return role == RP_WEIGHT_ATTN_NORM    ? RP_WEIGHT_ATTN_NORM_BIAS
           : role == RP_WEIGHT_MLP_NORM   ? RP_WEIGHT_MLP_NORM_BIAS
           : role == RP_WEIGHT_FINAL_NORM ? RP_WEIGHT_FINAL_NORM_BIAS
                                          : role;
}

/* Every column has its own weight. */
static void add_layer_norm(struct rp_emit *e, uint32_t rows, const char *name, struct rp_view in,
                           enum rp_weight_role role, uint32_t group, struct rp_view out) {
    struct rp_op norm = op(e, RP_OP_LAYER_NORM, rows, name);
    enum rp_weight_role bias_role = norm_bias_of(role);
    const struct rp_weight *bias =
        bias_role != role ? rp_model_weight(e->model, bias_role, e->layer) : NULL;
    rp_op_add_input(&norm, in);
    norm.vector = rp_model_vector(e->model, role, e->layer);
    norm.vector_step = rp_emit_vector_step(e, role);
    norm.bias = bias ? bias->vector : NULL;
    norm.out = out;
    norm.u.layer_norm.eps = e->config->norm_eps;
    norm.u.layer_norm.group = group;
    norm.u.layer_norm.bias = bias != NULL;
    add(e, &norm);
}

/* out may be in: a norm in place. */
static void add_norm(struct rp_emit *e, uint32_t rows, const char *name, struct rp_view in,
                     enum rp_weight_role role, uint32_t group, struct rp_view out) {
    struct rp_op norm = op(e, RP_OP_NORM, rows, name);
    rp_op_add_input(&norm, in);
    norm.vector = rp_model_vector(e->model, role, e->layer);
    norm.out = out;
    norm.u.norm.eps = e->config->norm_eps;
    norm.u.norm.group = group;
    norm.u.norm.weight_offset = e->config->norm_offset;
    add(e, &norm);
}

static struct rp_view norm_of_rows(struct rp_emit *e, uint32_t rows, const char *name,
                                   struct rp_view x, enum rp_weight_role role) {
    struct rp_view out = tensor(e, name, rows, e->model->dtype, x.cols);
    if (e->config->layer_norm)
        add_layer_norm(e, rows, name, x, role, x.cols, out);
    else
        add_norm(e, rows, name, x, role, x.cols, out);
    return out;
}

struct rp_view rp_emit_norm(struct rp_emit *e, const char *name, struct rp_view x,
                            enum rp_weight_role role) {
    return norm_of_rows(e, RP_ROWS_TOKEN, name, x, role);
}

void rp_emit_norm_in_place(struct rp_emit *e, const char *name, struct rp_view x,
                           enum rp_weight_role role) {
    add_norm(e, RP_ROWS_TOKEN, name, x, role, x.cols, x);
}

static void add_scale(struct rp_emit *e, uint32_t rows, const char *name, struct rp_view in,
                      float factor, struct rp_view out) {
    struct rp_op scale = op(e, RP_OP_SCALE, rows, name);
    rp_op_add_input(&scale, in);
    scale.out = out;
    scale.u.scale.factor = factor;
    add(e, &scale);
}

struct rp_view rp_emit_rounded(struct rp_emit *e, const char *name, struct rp_view x) {
    if (e->model->dtype == RP_DTYPE_F32)
        return x;
    struct rp_view out = tensor(e, name, RP_ROWS_TOKEN, e->model->dtype, x.cols);
    add_scale(e, RP_ROWS_TOKEN, name, x, 1.0f, out);
    return out;
}

void rp_emit_scale_in_place(struct rp_emit *e, const char *name, struct rp_view x, float factor) {
    add_scale(e, RP_ROWS_TOKEN, name, x, factor, x);
}

/* The role of a matrix's bias; of the head: itself, which has none. */
static enum rp_weight_role bias_of(enum rp_weight_role role) {
    return role == RP_WEIGHT_QKV       ? RP_WEIGHT_QKV_BIAS
           : role == RP_WEIGHT_O       ? RP_WEIGHT_O_BIAS
           : role == RP_WEIGHT_GATE_UP ? RP_WEIGHT_GATE_UP_BIAS
           : role == RP_WEIGHT_DOWN    ? RP_WEIGHT_DOWN_BIAS
           : role == RP_WEIGHT_ROUTER  ? RP_WEIGHT_ROUTER_LOGIT_BIAS
                                       : RP_WEIGHT_ROLE_COUNT;
}

static struct rp_view linear(struct rp_emit *e, uint32_t rows, const char *name,
                             const char *out_name, struct rp_view in, enum rp_weight_role role) {
    struct rp_op linear = op(e, RP_OP_LINEAR, rows, name);
    enum rp_weight_role bias_role = bias_of(role);
    const struct rp_weight *bias =
        bias_role < RP_WEIGHT_ROLE_COUNT ? rp_model_weight(e->model, bias_role, e->layer) : NULL;
    rp_op_add_input(&linear, in);
    linear.weight = rp_model_matrix(e->model, role, e->layer);
    linear.vector = bias ? rp_model_vector(e->model, bias_role, e->layer) : NULL;
    linear.vector_step = bias ? bias->rank_length : 0;
    linear.u.linear.bias = bias != NULL;
    linear.u.linear.first_rank_bias =
        e->model->ranks > 1 && (role == RP_WEIGHT_O || role == RP_WEIGHT_DOWN);
    linear.out = tensor(e, out_name, rows, RP_DTYPE_F32, linear.weight->rows);
    add(e, &linear);
    return linear.out;
}

struct rp_view rp_emit_linear(struct rp_emit *e, const char *name, struct rp_view in,
                              enum rp_weight_role role) {
    return linear(e, RP_ROWS_TOKEN, name, name, in, role);
}

/* Those of a rank, where the layer is divided. */
static struct rp_layer_heads heads_of(const struct rp_emit *e) {
    struct rp_layer_heads heads = rp_model_layer_heads(e->config, e->layer);
    if (e->model->ranks > 1)
        heads.kv_heads = rp_model_rank_kv_heads(e->model);
    return heads;
}

struct rp_qkv rp_emit_qkv(struct rp_emit *e, struct rp_view in) {
    const struct rp_layer_heads heads = heads_of(e);
    uint32_t q_cols = rp_model_rank_heads(e->model) * heads.head_dim;
    uint32_t k_cols = heads.source == e->layer ? heads.kv_heads * heads.head_dim : 0;
    uint32_t v_cols = heads.k_is_v ? 0 : k_cols;
    struct rp_view qkv = rp_emit_linear(e, "attn.qkv", in, RP_WEIGHT_QKV);
    uint32_t gate_cols = e->config->output_gate ? q_cols : 0;
    return (struct rp_qkv){.q = columns(qkv, gate_cols, q_cols),
                           .k = columns(qkv, gate_cols + q_cols, k_cols),
                           .v = columns(qkv, gate_cols + q_cols + k_cols, v_cols),
                           .qk = columns(qkv, gate_cols, q_cols + k_cols),
                           .gate = columns(qkv, 0, gate_cols)};
}

/* Over the columns of all ranks, of which each has `x`. */
static void group_norm(struct rp_emit *e, const char *name, struct rp_view x,
                       enum rp_weight_role role) {
    struct rp_op norm = op(e, RP_OP_GROUP_NORM, RP_ROWS_TOKEN, name);
    rp_op_add_input(&norm, x);
    norm.out = x;
    norm.vector = rp_model_vector(e->model, role, e->layer);
    norm.vector_step = rp_emit_vector_step(e, role);
    norm.u.group_norm.eps = e->config->norm_eps;
    norm.u.group_norm.cols = x.cols * e->model->ranks;
    add(e, &norm);
}

static void qk_norm(struct rp_emit *e, const char *name, struct rp_view heads,
                    enum rp_weight_role role) {
    if (e->model->ranks > 1 && e->config->qk_norm == RP_QK_NORM_WHOLE)
        group_norm(e, name, heads, role);
    else if (e->config->qk_norm == RP_QK_NORM_EACH_HEAD)
        add_layer_norm(e, RP_ROWS_TOKEN, name, heads, role, heads_of(e).head_dim, heads);
    else
        add_norm(e, RP_ROWS_TOKEN, name, heads, role,
                 e->config->qk_norm == RP_QK_NORM_WHOLE ? heads.cols : heads_of(e).head_dim, heads);
}

void rp_emit_qk_norms(struct rp_emit *e, const struct rp_qkv *qkv) {
    qk_norm(e, "attn.q_norm", qkv->q, RP_WEIGHT_Q_NORM);
    if (qkv->k.cols)
        qk_norm(e, "attn.k_norm", qkv->k, RP_WEIGHT_K_NORM);
}

void rp_emit_v_norm(struct rp_emit *e, struct rp_qkv *qkv) {
    struct rp_op norm = op(e, RP_OP_NORM, RP_ROWS_TOKEN, "attn.v_norm");
    bool from_k = qkv->v.cols == 0;
    if (qkv->k.cols == 0)
        return;
    rp_op_add_input(&norm, from_k ? qkv->k : qkv->v);
    if (from_k)
        qkv->v = tensor(e, "attn.v", RP_ROWS_TOKEN, RP_DTYPE_F32, qkv->k.cols);
    norm.out = qkv->v;
    norm.vector = e->model->ones;
    norm.u.norm.eps = e->config->norm_eps;
    norm.u.norm.group = heads_of(e).head_dim;
    add(e, &norm);
}

/* Nothing in a layer that does not rotate. */
static void rope(struct rp_emit *e, struct rp_view heads) {
    const struct rp_rope *angles = rp_model_rope(e->config, e->layer);
    struct rp_op rope = op(e, RP_OP_ROPE, RP_ROWS_TOKEN, "attn.rope");
    if (!angles)
        return;
    rp_op_add_input(&rope, heads);
    rope.out = heads;
    rope.table = angles == &e->config->rope ? e->model->rope_table : e->model->local_rope_table;
    uint32_t head_dim = heads_of(e).head_dim;
    rope.u.rope.heads = heads.cols / head_dim;
    rope.u.rope.head_dim = head_dim;
    rope.u.rope.rotary_dim = 2 * rp_rope_pairs(angles, head_dim);
    rope.u.rope.position_count = e->model->rope_positions;
    add(e, &rope);
}

/* By the position, where the model has such factors. */
static void scale_q(struct rp_emit *e, struct rp_view q) {
    struct rp_op scale = op(e, RP_OP_SCALE, RP_ROWS_TOKEN, "attn.q_scale");
    if (e->config->q_scale_beta == 0)
        return;
    rp_op_add_input(&scale, q);
    scale.out = q;
    scale.table = e->model->q_scale_table;
    scale.u.scale.factor = 1.0f;
    scale.u.scale.position_count = e->model->rope_positions;
    add(e, &scale);
}

static void kv_write(struct rp_emit *e, struct rp_view k, struct rp_view v) {
    struct rp_op write = op(e, RP_OP_KV_WRITE, RP_ROWS_TOKEN, "attn.kv_write");
    rp_op_add_input(&write, k);
    rp_op_add_input(&write, v);
    write.u.kv_write.kv_heads = heads_of(e).kv_heads;
    write.u.kv_write.head_dim = heads_of(e).head_dim;
    add(e, &write);
}

static struct rp_view attention(struct rp_emit *e, struct rp_view q) {
    const struct rp_model_config *config = e->config;
    struct rp_op attention = op(e, RP_OP_ATTENTION, RP_ROWS_TOKEN, "attn.attention");
    rp_op_add_input(&attention, q);
    attention.out = tensor(e, "attn.out", RP_ROWS_TOKEN,
                           config->output_gate ? RP_DTYPE_F32 : e->model->dtype, q.cols);
    attention.u.attention.heads = rp_model_rank_heads(e->model);
    const struct rp_layer_heads heads = heads_of(e);
    attention.u.attention.kv_heads = heads.kv_heads;
    attention.u.attention.head_dim = heads.head_dim;
    attention.u.attention.kv_back = e->layer - heads.source;
    double scalar = config->query_scalar > 0 ? config->query_scalar : heads.head_dim;
    attention.u.attention.scale =
        (float)(config->attention_scale > 0 ? config->attention_scale : 1.0 / sqrt(scalar));
    struct rp_layer_mask mask = rp_model_layer_mask(e->model, e->layer);
    attention.u.attention.window = mask.window;
    attention.u.attention.soft_cap = mask.soft_cap;
    attention.u.attention.mask = mask.program;
    attention.u.attention.mask_text = mask.program ? rp_mask_text(mask.program) : NULL;
    attention.u.attention.sinks = config->attention_sinks;
    if (config->attention_sinks)
        attention.vector = rp_model_vector(e->model, RP_WEIGHT_SINKS, e->layer);
    attention.vector_step = config->attention_sinks ? rp_emit_vector_step(e, RP_WEIGHT_SINKS) : 0;
    add(e, &attention);
    return attention.out;
}

struct rp_view rp_emit_activation(struct rp_emit *e, struct rp_view gate_up) {
    struct rp_op act = op(e, RP_OP_ACTIVATION, RP_ROWS_TOKEN, "mlp.act");
    rp_op_add_input(&act, gate_up);
    act.out = tensor(e, "mlp.act", RP_ROWS_TOKEN, e->model->dtype, gate_up.cols / 2);
    act.u.activation.fn = e->config->activation;
    add(e, &act);
    return act.out;
}

void rp_emit_add(struct rp_emit *e, const char *name, struct rp_view sum, struct rp_view term) {
    struct rp_op plus = op(e, RP_OP_ADD, RP_ROWS_TOKEN, name);
    rp_op_add_input(&plus, sum);
    plus.out = sum;
    rp_op_add_input(&plus, term);
    add(e, &plus);
}

static struct rp_view gather_rows(struct rp_emit *e, struct rp_view in) {
    struct rp_op gather = op(e, RP_OP_GATHER_ROWS, RP_ROWS_LOGIT, "final.gather");
    rp_op_add_input(&gather, in);
    gather.out = tensor(e, "final.rows", RP_ROWS_LOGIT, RP_DTYPE_F32, in.cols);
    add(e, &gather);
    return gather.out;
}

static void soft_cap(struct rp_emit *e, struct rp_view logits) {
    struct rp_op capped = op(e, RP_OP_SOFT_CAP, RP_ROWS_LOGIT, "soft_cap");
    rp_op_add_input(&capped, logits);
    capped.out = logits;
    capped.u.soft_cap.cap = e->config->logit_cap;
    add(e, &capped);
}

/* Every rank gets all logits, and samples: slots advance alike on all of them. */
static struct rp_view gather_logits(struct rp_emit *e, struct rp_view shard) {
    struct rp_op gather = op(e, RP_OP_ALLGATHER, RP_ROWS_LOGIT, "logits.gather");
    if (e->model->ranks <= 1)
        return shard;
    rp_op_add_input(&gather, shard);
    gather.out = tensor(e, "logits", RP_ROWS_LOGIT, RP_DTYPE_F32, shard.cols * e->model->ranks);
    add(e, &gather);
    return gather.out;
}

static void sample(struct rp_emit *e, struct rp_view logits) {
    struct rp_op sample = op(e, RP_OP_SAMPLE, RP_ROWS_LOGIT, "sample");
    rp_op_add_input(&sample, logits);
    sample.u.sample.vocab = e->config->vocab;
    e->program->sample_begin = e->program->op_count;
    add(e, &sample);
}

/* --- the network ----------------------------------------------------------------------------- */

struct rp_view rp_emit_attention(struct rp_emit *e, const struct rp_qkv *qkv) {
    rope(e, qkv->qk);
    if (qkv->k.cols)
        kv_write(e, qkv->k, qkv->v);
    scale_q(e, qkv->q);
    struct rp_view out = attention(e, qkv->q);
    if (e->config->output_gate)
        out = rp_emit_glu(e, "attn.gate", qkv->gate, out, RP_ACTIVATION_SIGMOID);
    struct rp_view o = rp_emit_linear(e, "attn.o", out, RP_WEIGHT_O);
    rp_emit_allreduce(e, "attn.reduce", o, e->model->dtype);
    return o;
}

struct rp_view rp_emit_router_norm(struct rp_emit *e, struct rp_view x, float factor) {
    struct rp_view normed = tensor(e, "moe.router_norm", RP_ROWS_TOKEN, RP_DTYPE_F32, x.cols);
    struct rp_view out = tensor(e, "moe.router_in", RP_ROWS_TOKEN, e->model->dtype, x.cols);
    add_norm(e, RP_ROWS_TOKEN, "moe.router_norm", x, RP_WEIGHT_ROUTER_NORM, x.cols, normed);
    add_scale(e, RP_ROWS_TOKEN, "moe.router_in", normed, factor, out);
    return out;
}

void rp_emit_layer_embed(struct rp_emit *e, struct rp_view x) {
    uint32_t width = e->config->layer_embed;
    struct rp_op glu = op(e, RP_OP_GLU, RP_ROWS_TOKEN, "layer_embed.glu");
    if (width == 0)
        return;
    struct rp_view in = rp_emit_rounded(e, "layer_embed.in", x);
    rp_op_add_input(&glu, rp_emit_linear(e, "layer_embed.gate", in, RP_WEIGHT_LAYER_GATE));
    rp_op_add_input(&glu, columns(e->layer_embeds, e->layer * width, width));
    glu.out = tensor(e, "layer_embed.glu", RP_ROWS_TOKEN, e->model->dtype, width);
    glu.u.activation.fn = e->config->activation;
    add(e, &glu);
    struct rp_view out = rp_emit_linear(e, "layer_embed.out", glu.out, RP_WEIGHT_LAYER_OUT);
    rp_emit_norm_in_place(e, "layer_embed.norm", out, RP_WEIGHT_LAYER_NORM);
    rp_emit_add(e, "layer_embed.add", x, out);
}

struct rp_view rp_emit_mlp(struct rp_emit *e, struct rp_view in) {
    return rp_model_has_experts(e->config, e->layer) ? rp_emit_experts(e, in, in)
                                                     : rp_emit_dense_mlp(e, in);
}

struct rp_view rp_emit_dense_mlp(struct rp_emit *e, struct rp_view in) {
    struct rp_view gate_up = rp_emit_linear(e, "mlp.gate_up", in, RP_WEIGHT_GATE_UP);
    struct rp_view down =
        rp_emit_linear(e, "mlp.down", rp_emit_activation(e, gate_up), RP_WEIGHT_DOWN);
    rp_emit_allreduce(e, "mlp.reduce", down, e->model->dtype);
    return down;
}

/* The second embedding's part of every layer: (norm((x Wproj^T) / sqrt(hidden)) + its row *
 * sqrt(layer_embed)) / sqrt(2). */
static void embed_layers(struct rp_emit *e, struct rp_view x) {
    uint32_t width = e->config->layer_embed;
    if (width == 0)
        return;
    struct rp_view in = rp_emit_rounded(e, "embed.layers_in", x);
    struct rp_view proj = linear(e, RP_ROWS_TOKEN, "embed.layers_proj", "embed.layers_proj", in,
                                 RP_WEIGHT_LAYER_PROJ);
    rp_emit_scale_in_place(e, "embed.layers_scale", proj, 1.0f / sqrtf((float)e->config->hidden));
    add_norm(e, RP_ROWS_TOKEN, "embed.layers_norm", proj, RP_WEIGHT_LAYER_PROJ_NORM, width, proj);
    struct rp_op rows = op(e, RP_OP_EMBED, RP_ROWS_TOKEN, "embed.layers");
    rows.weight = rp_model_matrix(e->model, RP_WEIGHT_LAYER_EMBED, RP_LAYER_NONE);
    rows.out = tensor(e, "embed.layers", RP_ROWS_TOKEN, RP_DTYPE_F32, rows.weight->cols);
    rows.u.embed.scale = rounded_scale(e, sqrtf((float)width));
    add(e, &rows);
    rp_emit_add(e, "embed.layers_add", rows.out, proj);
    rp_emit_scale_in_place(e, "embed.layers_half", rows.out, sqrtf(0.5f));
    e->layer_embeds = rows.out;
}

int rp_model_emit(const struct rp_model *model, struct rp_program *out_program,
                  struct rp_error *err) {
    struct rp_emit emit = {.program = out_program,
                           .model = model,
                           .config = &model->config,
                           .layer = RP_LAYER_NONE},
                   *e = &emit;
    const struct rp_model_family *family = rp_model_family(model->config.family);
    rp_program_init(out_program);
    out_program->ranks = model->ranks;

    step_begin(e);
    struct rp_view x = embed(e);
    embed_layers(e, x);
    for (e->layer = 0; e->layer < model->config.layers; e->layer++)
        family->layer(e, x);
    e->layer = RP_LAYER_NONE;
    struct rp_view rows = gather_rows(e, x);
    struct rp_view in = norm_of_rows(e, RP_ROWS_LOGIT, "final.norm", rows, RP_WEIGHT_FINAL_NORM);
    struct rp_view logits =
        linear(e, RP_ROWS_LOGIT, "lm_head", model->ranks > 1 ? "logits.shard" : "logits", in,
               RP_WEIGHT_HEAD);
    if (model->config.logit_factor != 0.0f)
        add_scale(e, RP_ROWS_LOGIT, "logit_scale", logits, model->config.logit_factor, logits);
    if (model->config.logit_cap > 0)
        soft_cap(e, logits);
    sample(e, gather_logits(e, logits));

    if (e->status != RP_OK) {
        rp_program_deinit(out_program);
        return rp_error_set(err, e->status, "program: %s", rp_status_text(e->status));
    }
    return RP_OK;
}
