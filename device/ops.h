/* ops.h - the small operators on the CPU: embed, norm, layer_norm, rope, activation, add, scale,
 * gather_rows, soft_cap, glu.
 *
 * Arguments are fixed when a program is lowered; how many rows are live is read from the step's
 * counts when it runs. Tensors are f32 or bf16 (rp_values): a store to bf16 rounds to nearest even.
 * Each function computes this worker's share of the rows, and has no barrier inside.
 * Thread: the workers of one job. Errors: none; ids past the table give the row of id 0 (the server
 * has checked them; a kernel never reads outside). */
#ifndef RP_DEVICE_OPS_H
#define RP_DEVICE_OPS_H

#include "device/cpu_team.h"
#include "device/program.h"
#include "device/step.h"

/* Columns of a tensor in memory. */
struct rp_values {
    void *data;    /* first column of row 0 */
    size_t stride; /* elements from row to row */
    enum rp_dtype dtype;
};

/* Live rows of a domain: tokens or logit rows of the step in work. */
static inline uint32_t rp_live_rows(const struct rp_step_view *step, enum rp_rows rows) {
    return rows == RP_ROWS_TOKEN ? step->counts->token_count : step->counts->logit_row_count;
}

/* Rows [begin, end) of an operator, for operators that work row by row: a backend may run several
 * of them one after the other on one row range without a barrier (a fused chain). */
typedef void (*rp_row_op)(const void *args, uint32_t begin, uint32_t end);

struct rp_embed_args {
    struct rp_step_view step;
    const struct rp_matrix *table;
    void (*read_row)(const struct rp_matrix *table, uint32_t row, float *out); /* quant's */
    uint32_t vocab, hidden;
    float scale;
    struct rp_values out; /* (tokens, hidden) f32 */
    /* The table has the ids [first_id, first_id + vocab) of a larger one: rows of others are
     * zeros. */
    uint32_t first_id;
    bool is_shard;
};
void rp_embed_rows(const void *args, uint32_t begin, uint32_t end);

/* y[c] = x[c] / sqrt(mean(x^2) + eps) * (weight[c] + weight_offset), per group of columns
 * (RMSNorm, Zhang and Sennrich 2019). in and out may be the same columns. */
struct rp_norm_args {
    struct rp_values in, out;
    const float *weight; /* (group) */
    uint32_t cols, group;
    float eps, weight_offset;
};
void rp_norm_rows(const void *args, uint32_t begin, uint32_t end);

/* y[c] = (x[c] - mean) / sqrt(variance + eps) * weight[c] + bias[c], mean and variance per group of
 * columns (LayerNorm, Ba, Kiros and Hinton 2016). in and out may be the same columns. */
struct rp_layer_norm_args {
    struct rp_values in, out;
    const float *weight, *bias; /* (cols) each; bias may be NULL */
    uint32_t cols, group;
    float eps;
};
void rp_layer_norm_rows(const void *args, uint32_t begin, uint32_t end);

/* Rotates pairs (x[i], x[i + rotary/2]) of every head by the angle of the token's position (RoPE in
 * the half-split form of Hugging Face). Columns past rotary_dim stay. */
struct rp_rope_args {
    struct rp_step_view step;
    struct rp_values x;
    const float *table; /* (position_count, rotary_dim / 2, {cos, sin}) */
    uint32_t heads, head_dim, rotary_dim, position_count;
};
void rp_rope_rows(const void *args, uint32_t begin, uint32_t end);

/* Of RP_ACTIVATION_SWIGLU_CLAMPED: gpt-oss's configuration and code. */
#define RP_SWIGLU_LIMIT 7.0f
#define RP_SWIGLU_ALPHA 1.702f

/* out[c] = act(in[c]) * in[cols + c] (enum rp_activation) */
struct rp_activation_args {
    struct rp_values in, out;
    uint32_t cols;
    enum rp_activation fn;
};
void rp_activation_rows(const void *args, uint32_t begin, uint32_t end);
/* Columns [col_begin, col_end) of one row: a single row is shared between workers by columns. */
void rp_activation_cols(const struct rp_activation_args *args, uint32_t row, uint32_t col_begin,
                        uint32_t col_end);

/* The formula itself: out[i] = fn(gate[i]) * up[i], i < count; out is f32 or bf16, and may be f32
 * over gate. */
void rp_gate_values(enum rp_activation fn, const float *gate, const float *up, size_t count,
                    void *out, enum rp_dtype out_dtype);

/* out[c] = fn(gate[c]) * up[c], f32 inputs. `formula`: rp_gate_values, or its fast form. */
struct rp_glu_args {
    struct rp_values gate, up, out;
    uint32_t cols;
    enum rp_activation fn;
    void (*formula)(enum rp_activation fn, const float *gate, const float *up, size_t count,
                    void *out, enum rp_dtype out_dtype);
};
void rp_glu_rows(const void *args, uint32_t begin, uint32_t end);

struct rp_add_args {
    struct rp_values a, b, out;
    uint32_t cols;
};
void rp_add_rows(const void *args, uint32_t begin, uint32_t end);

/* out[c] = in[c] * (factor * table[position of the row]); without a table: in[c] * factor. in and
 * out may be the same columns. */
struct rp_scale_args {
    struct rp_step_view step;
    struct rp_values in, out;
    const float *table; /* (position_count), or NULL */
    uint32_t cols, position_count;
    float factor;
};
void rp_scale_rows(const void *args, uint32_t begin, uint32_t end);

/* out[c] = cap * tanh(in[c] / cap), f32; NaN stays NaN. in and out may be the same columns. */
struct rp_soft_cap_args {
    struct rp_values in, out;
    uint32_t cols;
    float cap;
};
/* Columns [col_begin, col_end) of one row: few rows of many columns are shared between workers by
 * columns. */
void rp_soft_cap_cols(const struct rp_soft_cap_args *args, uint32_t row, uint32_t col_begin,
                      uint32_t col_end);

struct rp_gather_args {
    struct rp_step_view step;
    struct rp_values in, out; /* (tokens, cols) -> (logit rows, cols), f32 */
    uint32_t cols;
};
void rp_gather_rows(const void *args, uint32_t begin, uint32_t end);

#endif
