#include "device/ops.h"

#include "base/bf16.h"

#include <math.h>
#include <string.h>

static inline float load(const struct rp_values *values, size_t row, size_t col) {
    size_t at = row * values->stride + col;
    return values->dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(((const uint16_t *)values->data)[at])
                                          : ((const float *)values->data)[at];
}

static inline void store(const struct rp_values *values, size_t row, size_t col, float value) {
    size_t at = row * values->stride + col;
    if (values->dtype == RP_DTYPE_BF16)
        ((uint16_t *)values->data)[at] = rp_f32_to_bf16(value);
    else
        ((float *)values->data)[at] = value;
}

void rp_embed_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_embed_args *args = args_void;
    for (uint32_t row = begin; row < end; row++) {
        uint32_t id = (uint32_t)args->step.token_ids[row];
        float *out = (float *)args->out.data + row * args->out.stride;
        if (args->is_shard) {
            id -= args->first_id; /* wraps below it */
            if (id >= args->vocab) {
                memset(out, 0, args->hidden * sizeof *out);
                continue;
            }
        }
        args->read_row(args->table, id < args->vocab ? id : 0, out);
        if (args->scale != 1.0f)
            for (uint32_t c = 0; c < args->hidden; c++)
                out[c] *= args->scale;
    }
}

void rp_norm_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_norm_args *args = args_void;
    for (uint32_t row = begin; row < end; row++) {
        for (uint32_t first = 0; first < args->cols; first += args->group) {
            /* f64 sum: its order then does not show in f32, and it costs nothing here. */
            double sum = 0.0;
            for (uint32_t c = 0; c < args->group; c++) {
                double x = load(&args->in, row, first + c);
                sum += x * x;
            }
            float inverse = 1.0f / sqrtf((float)(sum / args->group) + args->eps);
            for (uint32_t c = 0; c < args->group; c++)
                store(&args->out, row, first + c,
                      load(&args->in, row, first + c) * inverse *
                          (args->weight[c] + args->weight_offset));
        }
    }
}

void rp_layer_norm_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_layer_norm_args *args = args_void;
    for (uint32_t row = begin; row < end; row++) {
        for (uint32_t first = 0; first < args->cols; first += args->group) {
            double sum = 0.0, squares = 0.0;
            for (uint32_t c = 0; c < args->group; c++)
                sum += (double)load(&args->in, row, first + c);
            double mean = sum / args->group;
            for (uint32_t c = 0; c < args->group; c++) {
                double x = (double)load(&args->in, row, first + c) - mean;
                squares += x * x;
            }
            float inverse = 1.0f / sqrtf((float)(squares / args->group) + args->eps);
            for (uint32_t c = first; c < first + args->group; c++)
                store(&args->out, row, c,
                      (load(&args->in, row, c) - (float)mean) * inverse * args->weight[c] +
                          (args->bias ? args->bias[c] : 0.0f));
        }
    }
}

void rp_rope_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_rope_args *args = args_void;
    uint32_t half = args->rotary_dim / 2;
    for (uint32_t row = begin; row < end; row++) {
        uint32_t position = args->step.positions[row];
        if (position >= args->position_count)
            position = args->position_count - 1; /* never reached: the server limits the length */
        const float *angles = args->table + (size_t)position * half * 2;
        for (uint32_t head = 0; head < args->heads; head++) {
            for (uint32_t i = 0; i < half; i++) {
                size_t at = (size_t)head * args->head_dim + i;
                float cosine = angles[2 * i], sine = angles[2 * i + 1];
                float low = load(&args->x, row, at), high = load(&args->x, row, at + half);
                store(&args->x, row, at, low * cosine - high * sine);
                store(&args->x, row, at + half, high * cosine + low * sine);
            }
        }
    }
}

/* NaN stays NaN. */
static inline float clamped(float x, float least, float most) {
    return x > most ? most : x < least ? least : x;
}

static inline float gated(enum rp_activation fn, float x, float up) {
    if (fn == RP_ACTIVATION_SWIGLU_CLAMPED) {
        x = clamped(x, -INFINITY, RP_SWIGLU_LIMIT);
        return x / (1.0f + expf(-RP_SWIGLU_ALPHA * x)) *
               (clamped(up, -RP_SWIGLU_LIMIT, RP_SWIGLU_LIMIT) + 1.0f);
    }
    if (fn == RP_ACTIVATION_SIGMOID)
        return up / (1.0f + expf(-x));
    if (fn == RP_ACTIVATION_SILU)
        return x / (1.0f + expf(-x)) * up;
    /* GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel
     * 2016. */
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))) * up;
}

void rp_activation_cols(const struct rp_activation_args *args, uint32_t row, uint32_t col_begin,
                        uint32_t col_end) {
    for (uint32_t c = col_begin; c < col_end; c++)
        store(&args->out, row, c,
              gated(args->fn, load(&args->in, row, c), load(&args->in, row, args->cols + c)));
}

void rp_activation_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_activation_args *args = args_void;
    for (uint32_t row = begin; row < end; row++)
        rp_activation_cols(args, row, 0, args->cols);
}

void rp_gate_values(enum rp_activation fn, const float *gate, const float *up, size_t count,
                    void *out, enum rp_dtype out_dtype) {
    const struct rp_values to = {out, 0, out_dtype};
    for (size_t i = 0; i < count; i++)
        store(&to, 0, i, gated(fn, gate[i], up[i]));
}

void rp_glu_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_glu_args *args = args_void;
    for (uint32_t row = begin; row < end; row++)
        args->formula(args->fn, (const float *)args->gate.data + row * args->gate.stride,
                      (const float *)args->up.data + row * args->up.stride, args->cols,
                      (unsigned char *)args->out.data +
                          row * args->out.stride * rp_dtype_bytes(args->out.dtype),
                      args->out.dtype);
}

void rp_add_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_add_args *args = args_void;
    for (uint32_t row = begin; row < end; row++)
        for (uint32_t c = 0; c < args->cols; c++)
            store(&args->out, row, c, load(&args->a, row, c) + load(&args->b, row, c));
}

void rp_scale_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_scale_args *args = args_void;
    for (uint32_t row = begin; row < end; row++) {
        float factor = args->factor;
        if (args->table)
            factor *= args->table[RP_MIN(args->step.positions[row], args->position_count - 1)];
        for (uint32_t c = 0; c < args->cols; c++)
            store(&args->out, row, c, load(&args->in, row, c) * factor);
    }
}

void rp_soft_cap_cols(const struct rp_soft_cap_args *args, uint32_t row, uint32_t col_begin,
                      uint32_t col_end) {
    for (uint32_t c = col_begin; c < col_end; c++)
        store(&args->out, row, c, args->cap * tanhf(load(&args->in, row, c) / args->cap));
}

void rp_gather_rows(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_gather_args *args = args_void;
    for (uint32_t row = begin; row < end; row++) {
        uint32_t token = args->step.logit_tokens[row];
        memcpy((float *)args->out.data + row * args->out.stride,
               (const float *)args->in.data + token * args->in.stride,
               (size_t)args->cols * sizeof(float));
    }
}
