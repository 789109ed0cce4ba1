#include "device/recurrent.h"

#include "base/bf16.h"

#include <math.h>
#include <string.h>

/* Columns of a work item of CONV. */
#define CONV_COLS 64u

static const float *f32_at(const struct rp_values *values, size_t row, size_t col) {
    return (const float *)values->data + row * values->stride + col;
}

static void store(const struct rp_values *out, size_t row, size_t col, float value) {
    size_t at = row * out->stride + col;
    if (out->dtype == RP_DTYPE_F32)
        ((float *)out->data)[at] = value;
    else
        ((uint16_t *)out->data)[at] = rp_f32_to_bf16(value);
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static bool is_dead(const struct rp_step_view *step, const struct rp_live_row *live) {
    return step->token_rows[live->token_begin] == RP_ROW_NONE;
}

static void store_zeros(const struct rp_values *out, const struct rp_live_row *live, size_t col,
                        size_t cols) {
    for (uint32_t i = 0; i < live->token_count; i++)
        for (size_t c = col; c < col + cols; c++)
            store(out, live->token_begin + i, c, 0.0f);
}

/* An operator's part of a place. */
static float *state_at(const struct rp_step_view *step, uint32_t place, uint32_t offset) {
    return (float *)(void *)(rp_state_place(step, place) + offset);
}

/* --- CONV ------------------------------------------------------------------------------------ */

/* The last width - 1 values of x, and the next one. */
struct window {
    float x[RP_CONV_WIDTH_MAX][CONV_COLS];
};

/* Columns [col, col + cols) of the values that a place holds. */
static void load_window(const struct rp_conv_args *args, uint32_t place, uint32_t col,
                        uint32_t cols, struct window *window) {
    for (uint32_t j = 0; j + 1 < args->conv.width; j++) {
        if (place == RP_STATE_ZERO)
            memset(window->x[j], 0, cols * sizeof(float));
        else
            memcpy(window->x[j],
                   state_at(&args->step, place, args->conv.state_offset) + (size_t)j * args->cols +
                       col,
                   cols * sizeof(float));
    }
}

static void store_window(const struct rp_conv_args *args, uint32_t place, uint32_t col,
                         uint32_t cols, const struct window *window) {
    float *state = state_at(&args->step, place, args->conv.state_offset);
    for (uint32_t j = 0; j + 1 < args->conv.width; j++)
        memcpy(state + (size_t)j * args->cols + col, window->x[j], cols * sizeof(float));
}

static void conv_token(const struct rp_conv_args *args, size_t token, uint32_t col, uint32_t cols,
                       struct window *window) {
    uint32_t width = args->conv.width;
    const float *in = f32_at(&args->in, token, col);
    const float *before = args->conv.gated ? f32_at(&args->gate_in, token, col) : NULL;
    const float *after = args->conv.gated ? f32_at(&args->gate_out, token, col) : NULL;
    for (uint32_t c = 0; c < cols; c++)
        window->x[width - 1][c] = before ? in[c] * before[c] : in[c];
    for (uint32_t c = 0; c < cols; c++) {
        const float *weight = args->weight + (size_t)(col + c) * width;
        float y = 0.0f;
        for (uint32_t j = 0; j < width; j++)
            y += weight[j] * window->x[j][c];
        if (args->conv.silu)
            y *= sigmoid(y);
        store(&args->out, token, col + c, after ? y * after[c] : y);
    }
    memmove(window->x[0], window->x[1], (width - 1) * sizeof window->x[0]);
}

static void conv_row(const struct rp_conv_args *args, const struct rp_live_row *live, uint32_t col,
                     uint32_t cols) {
    struct window window;
    if (is_dead(&args->step, live)) {
        store_zeros(&args->out, live, col, cols);
        return;
    }
    load_window(args, live->state_from, col, cols, &window);
    for (uint32_t i = 0; i < live->token_count; i++) {
        conv_token(args, live->token_begin + i, col, cols, &window);
        if (i + 1 == live->save_at)
            store_window(args, live->save_to, col, cols, &window);
    }
    store_window(args, live->slot, col, cols, &window);
}

void rp_conv_cpu(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_conv_args *args = args_void;
    size_t blocks = RP_CEIL_DIV(args->cols, CONV_COLS), begin, end;
    rp_cpu_share(worker, args->step.counts->row_count * blocks, 1, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        uint32_t col = (uint32_t)(i % blocks) * CONV_COLS;
        conv_row(args, &args->step.rows[i / blocks], col, RP_MIN(CONV_COLS, args->cols - col));
    }
}

/* --- GATED_DELTA ----------------------------------------------------------------------------- */

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* out = x / |x| * factor */
static void normalize(const float *x, uint32_t dim, float factor, float *out) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum + 1e-6f);
    for (uint32_t i = 0; i < dim; i++)
        out[i] = x[i] * scale * factor;
}

/* One token of one value head: updates S, o to `out` (value_dim). */
static void delta_token(const struct rp_gated_delta_args *args, size_t token, uint32_t head,
                        float *restrict state, float *restrict out) {
    const struct rp_gated_delta *delta = &args->delta;
    uint32_t key_dim = delta->key_dim, value_dim = delta->value_dim;
    uint32_t key_head = head / (delta->value_heads / delta->key_heads);
    uint32_t key_cols = delta->key_heads * key_dim;
    float q[RP_DELTA_HEAD_DIM_MAX], k[RP_DELTA_HEAD_DIM_MAX], d[RP_DELTA_HEAD_DIM_MAX];
    const float *v = f32_at(&args->qkv, token, 2 * (size_t)key_cols + (size_t)head * value_dim);
    const float *ba = f32_at(&args->ba, token, 0);
    float rate = softplus(ba[delta->value_heads + head] + args->dt_bias[head]);
    float decay = expf(-expf(args->a_log[head]) * rate), beta = sigmoid(ba[head]);
    normalize(f32_at(&args->qkv, token, key_head * key_dim), key_dim, 1.0f / sqrtf((float)key_dim),
              q);
    normalize(f32_at(&args->qkv, token, key_cols + key_head * key_dim), key_dim, 1.0f, k);
    for (uint32_t j = 0; j < value_dim; j++)
        d[j] = out[j] = 0.0f;
    for (uint32_t i = 0; i < key_dim; i++)
        for (uint32_t j = 0; j < value_dim; j++) {
            float *s = &state[(size_t)i * value_dim + j];
            *s *= decay;
            d[j] += *s * k[i];
        }
    for (uint32_t j = 0; j < value_dim; j++)
        d[j] = beta * (v[j] - d[j]);
    for (uint32_t i = 0; i < key_dim; i++)
        for (uint32_t j = 0; j < value_dim; j++) {
            float *s = &state[(size_t)i * value_dim + j];
            *s += k[i] * d[j];
            out[j] += *s * q[i];
        }
}

static void delta_row(const struct rp_gated_delta_args *args, const struct rp_live_row *live,
                      uint32_t head) {
    const struct rp_gated_delta *delta = &args->delta;
    size_t size = (size_t)delta->key_dim * delta->value_dim, at = head * size;
    size_t col = (size_t)head * delta->value_dim;
    if (is_dead(&args->step, live)) {
        store_zeros(&args->out, live, col, delta->value_dim);
        return;
    }
    float *state = state_at(&args->step, live->slot, delta->state_offset) + at;
    if (live->state_from == RP_STATE_ZERO)
        memset(state, 0, size * sizeof *state);
    else if (live->state_from != live->slot)
        memcpy(state, state_at(&args->step, live->state_from, delta->state_offset) + at,
               size * sizeof *state);
    for (uint32_t i = 0; i < live->token_count; i++) {
        size_t token = live->token_begin + i;
        delta_token(args, token, head, state,
                    (float *)args->out.data + token * args->out.stride + col);
        if (i + 1 == live->save_at)
            memcpy(state_at(&args->step, live->save_to, delta->state_offset) + at, state,
                   size * sizeof *state);
    }
}

void rp_gated_delta_cpu(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_gated_delta_args *args = args_void;
    size_t heads = args->delta.value_heads, begin, end;
    rp_cpu_share(worker, args->step.counts->row_count * heads, 1, &begin, &end);
    for (size_t i = begin; i < end; i++)
        delta_row(args, &args->step.rows[i / heads], (uint32_t)(i % heads));
}
