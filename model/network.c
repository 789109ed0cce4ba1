/* The network of Llama, Mistral, Qwen2, Qwen3 and Gemma2 as a program:
 *
 *   x = embed[token] (* sqrt(hidden): Gemma2)
 *   per layer:
 *     q, k, v = norm(x) Wqkv^T (+ bias);  q, k = norm per head (Qwen3);  q, k = rope(q, k)
 *     x += attention(q, K, V) Wo^T (+ bias)                     (each sum is normed before it is added: Gemma2)
 *     g, u = norm(x) Wgate_up^T (+ bias);  x += (act(g) * u) Wdown^T (+ bias)
 *   logits = norm(x[logit rows]) Wlm_head^T;  logits = cap * tanh(logits / cap) (Gemma2)
 *   sample(logits)
 *
 * x and every sum are f32. What a product reads has its weights' dtype, so the operator before it
 * rounds. Every value has a tensor of its own: lifetimes decide which of them share memory. */
#include "base/bf16.h"
#include "model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct emit {
    struct rp_program *program;
    const struct rp_model *model;
    const struct rp_model_config *config;
    uint32_t layer; /* RP_LAYER_NONE outside the layers */
    int status;     /* the first failure; later calls do nothing */
};

static const struct rp_view nothing = {RP_NO_TENSOR, 0, 0};

/* "layer.3." before the name, inside a layer. */
static void write_name(const struct emit *e, char *out, size_t out_bytes, const char *name) {
    int len = e->layer == RP_LAYER_NONE ? snprintf(out, out_bytes, "%s", name)
                                        : snprintf(out, out_bytes, "layer.%u.%s", e->layer, name);
    RP_ASSERT_CMP(len, <, (int)out_bytes);
}

static struct rp_view tensor(struct emit *e, const char *name, enum rp_rows rows,
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

static struct rp_op op(const struct emit *e, enum rp_op_kind kind, enum rp_rows rows,
                       const char *name) {
    struct rp_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.rows = rows;
    op.layer = (uint16_t)e->layer;
    op.in[0] = op.in[1] = op.out = nothing;
    write_name(e, op.name, sizeof op.name, name);
    return op;
}

static void add(struct emit *e, const struct rp_op *op) {
    if (e->status != RP_OK)
        return;
    int32_t index = rp_program_add_op(e->program, op);
    if (index < 0)
        e->status = index;
}

/* --- one function per operator -----------------------------------------------------------------
 */

static void step_begin(struct emit *e) {
    struct rp_op begin = op(e, RP_OP_STEP_BEGIN, RP_ROWS_NONE, "step_begin");
    add(e, &begin);
}

/* In the type in which the model computes: 59.867 is 59.75 in bf16, and the weights are used to it. */
static float embed_scale(const struct emit *e) {
    float scale = (float)sqrt((double)e->config->hidden);
    if (!e->config->embed_scaled)
        return 1.0f;
    return e->model->dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(scale)) : scale;
}

static struct rp_view embed(struct emit *e, const struct rp_matrix *weight) {
    struct rp_op embed = op(e, RP_OP_EMBED, RP_ROWS_TOKEN, "embed");
    embed.weight = weight;
    embed.out = tensor(e, "residual", RP_ROWS_TOKEN, RP_DTYPE_F32, weight->cols);
    embed.u.embed.scale = embed_scale(e);
    add(e, &embed);
    return embed.out;
}

/* out may be in: a norm in place. */
static void norm(struct emit *e, enum rp_rows rows, const char *name, struct rp_view in,
                 const float *weight, uint32_t group, struct rp_view out) {
    struct rp_op norm = op(e, RP_OP_NORM, rows, name);
    norm.in[0] = in;
    norm.vector = weight;
    norm.out = out;
    norm.u.norm.eps = e->config->norm_eps;
    norm.u.norm.group = group;
    norm.u.norm.weight_offset = e->config->norm_offset;
    add(e, &norm);
}

static struct rp_view linear(struct emit *e, enum rp_rows rows, const char *name,
                             const char *out_name, struct rp_view in,
                             const struct rp_matrix *weight, bool has_bias, const float *bias) {
    struct rp_op linear = op(e, RP_OP_LINEAR, rows, name);
    linear.in[0] = in;
    linear.weight = weight;
    linear.vector = bias;
    linear.u.linear.bias = has_bias;
    linear.out = tensor(e, out_name, rows, RP_DTYPE_F32, weight->rows);
    add(e, &linear);
    return linear.out;
}

static void rope(struct emit *e, struct rp_view heads) {
    struct rp_op rope = op(e, RP_OP_ROPE, RP_ROWS_TOKEN, "attn.rope");
    rope.in[0] = rope.out = heads;
    rope.table = e->model->rope_table;
    rope.u.rope.heads = heads.cols / e->config->head_dim;
    rope.u.rope.head_dim = rope.u.rope.rotary_dim = e->config->head_dim;
    rope.u.rope.position_count = e->model->rope_positions;
    add(e, &rope);
}

static void kv_write(struct emit *e, struct rp_view k, struct rp_view v) {
    struct rp_op write = op(e, RP_OP_KV_WRITE, RP_ROWS_TOKEN, "attn.kv_write");
    write.in[0] = k;
    write.in[1] = v;
    write.u.kv_write.kv_heads = e->config->kv_heads;
    write.u.kv_write.head_dim = e->config->head_dim;
    add(e, &write);
}

static struct rp_view attention(struct emit *e, struct rp_view q) {
    const struct rp_model_config *config = e->config;
    struct rp_op attention = op(e, RP_OP_ATTENTION, RP_ROWS_TOKEN, "attn.attention");
    attention.in[0] = q;
    attention.out = tensor(e, "attn.out", RP_ROWS_TOKEN, e->model->dtype, q.cols);
    attention.u.attention.heads = config->heads;
    attention.u.attention.kv_heads = config->kv_heads;
    attention.u.attention.head_dim = config->head_dim;
    double scalar = config->query_scalar > 0 ? config->query_scalar : config->head_dim;
    attention.u.attention.scale = (float)(1.0 / sqrt(scalar));
    struct rp_layer_mask mask = rp_model_layer_mask(e->model, e->layer);
    attention.u.attention.window = mask.window;
    attention.u.attention.soft_cap = mask.soft_cap;
    attention.u.attention.mask = mask.program;
    attention.u.attention.mask_text = mask.program ? rp_mask_text(mask.program) : NULL;
    add(e, &attention);
    return attention.out;
}

static struct rp_view activation(struct emit *e, struct rp_view gate_up) {
    struct rp_op act = op(e, RP_OP_ACTIVATION, RP_ROWS_TOKEN, "mlp.act");
    act.in[0] = gate_up;
    act.out = tensor(e, "mlp.act", RP_ROWS_TOKEN, e->model->dtype, gate_up.cols / 2);
    act.u.activation.fn = e->config->activation;
    add(e, &act);
    return act.out;
}

static void add_to(struct emit *e, const char *name, struct rp_view sum, struct rp_view term) {
    struct rp_op plus = op(e, RP_OP_ADD, RP_ROWS_TOKEN, name);
    plus.in[0] = plus.out = sum;
    plus.in[1] = term;
    add(e, &plus);
}

static struct rp_view gather_rows(struct emit *e, struct rp_view in) {
    struct rp_op gather = op(e, RP_OP_GATHER_ROWS, RP_ROWS_LOGIT, "final.gather");
    gather.in[0] = in;
    gather.out = tensor(e, "final.rows", RP_ROWS_LOGIT, RP_DTYPE_F32, in.cols);
    add(e, &gather);
    return gather.out;
}

static void soft_cap(struct emit *e, struct rp_view logits) {
    struct rp_op capped = op(e, RP_OP_SOFT_CAP, RP_ROWS_LOGIT, "soft_cap");
    capped.in[0] = capped.out = logits;
    capped.u.soft_cap.cap = e->config->logit_cap;
    add(e, &capped);
}

static void sample(struct emit *e, struct rp_view logits) {
    struct rp_op sample = op(e, RP_OP_SAMPLE, RP_ROWS_LOGIT, "sample");
    sample.in[0] = logits;
    sample.u.sample.vocab = e->config->vocab;
    e->program->sample_begin = e->program->op_count;
    add(e, &sample);
}

/* --- the formula --------------------------------------------------------------------------------
 */

static void attention_block(struct emit *e, const struct rp_layer_weights *w, struct rp_view x) {
    const struct rp_model_config *config = e->config;
    uint32_t q_cols = config->heads * config->head_dim,
             kv_cols = config->kv_heads * config->head_dim;

    struct rp_view in = tensor(e, "attn.norm", RP_ROWS_TOKEN, e->model->dtype, config->hidden);
    norm(e, RP_ROWS_TOKEN, "attn.norm", x, w->attn_norm, config->hidden, in);
    struct rp_view qkv = linear(e, RP_ROWS_TOKEN, "attn.qkv", "attn.qkv", in, &w->qkv,
                                config->qkv_bias, w->qkv_bias);
    struct rp_view q = columns(qkv, 0, q_cols);
    struct rp_view k = columns(qkv, q_cols, kv_cols);
    struct rp_view v = columns(qkv, q_cols + kv_cols, kv_cols);
    if (config->qk_norm) {
        norm(e, RP_ROWS_TOKEN, "attn.q_norm", q, w->q_norm, config->head_dim, q);
        norm(e, RP_ROWS_TOKEN, "attn.k_norm", k, w->k_norm, config->head_dim, k);
    }
    rope(e, columns(qkv, 0, q_cols + kv_cols)); /* q and k lie side by side */
    kv_write(e, k, v);
    struct rp_view heads = attention(e, q);
    struct rp_view o =
        linear(e, RP_ROWS_TOKEN, "attn.o", "attn.o", heads, &w->o, config->o_bias, w->o_bias);
    if (config->post_norms)
        norm(e, RP_ROWS_TOKEN, "attn.post_norm", o, w->attn_post_norm, config->hidden, o);
    add_to(e, "attn.add", x, o);
}

static void mlp_block(struct emit *e, const struct rp_layer_weights *w, struct rp_view x) {
    const struct rp_model_config *config = e->config;

    struct rp_view in = tensor(e, "mlp.norm", RP_ROWS_TOKEN, e->model->dtype, config->hidden);
    norm(e, RP_ROWS_TOKEN, "mlp.norm", x, w->mlp_norm, config->hidden, in);
    struct rp_view gate_up = linear(e, RP_ROWS_TOKEN, "mlp.gate_up", "mlp.gate_up", in, &w->gate_up,
                                    config->mlp_bias, w->gate_up_bias);
    struct rp_view act = activation(e, gate_up);
    struct rp_view down = linear(e, RP_ROWS_TOKEN, "mlp.down", "mlp.down", act, &w->down,
                                 config->mlp_bias, w->down_bias);
    if (config->post_norms)
        norm(e, RP_ROWS_TOKEN, "mlp.post_norm", down, w->mlp_post_norm, config->hidden, down);
    add_to(e, "mlp.add", x, down);
}

int rp_model_emit(const struct rp_model *model, struct rp_program *out_program,
                  struct rp_error *err) {
    struct emit emit = {out_program, model, &model->config, RP_LAYER_NONE, RP_OK}, *e = &emit;
    rp_program_init(out_program);

    step_begin(e);
    struct rp_view x = embed(e, &model->embed);
    for (e->layer = 0; e->layer < model->config.layers; e->layer++) {
        attention_block(e, &model->layers[e->layer], x);
        mlp_block(e, &model->layers[e->layer], x);
    }
    e->layer = RP_LAYER_NONE;
    struct rp_view rows = gather_rows(e, x);
    struct rp_view in = tensor(e, "final.norm", RP_ROWS_LOGIT, model->dtype, rows.cols);
    norm(e, RP_ROWS_LOGIT, "final.norm", rows, model->final_norm, rows.cols, in);
    struct rp_view logits =
        linear(e, RP_ROWS_LOGIT, "lm_head", "logits", in, &model->lm_head, false, NULL);
    if (model->config.logit_cap > 0)
        soft_cap(e, logits);
    sample(e, logits);

    if (e->status != RP_OK) {
        rp_program_deinit(out_program);
        return rp_error_set(err, e->status, "program: %s", rp_status_text(e->status));
    }
    return RP_OK;
}
