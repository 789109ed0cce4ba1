/* ops_tile.h - the small operators, included once per instruction set by ops_cpu_simd.c.
 *
 * The includer defines for its vectors of LANES floats:
 *   V(name)     the name of everything here and of the primitives
 *   VECTOR      the vector type            INLINE, TARGET  for this instruction set
 *   V(set1) V(load) V(store) V(add) V(sub) V(mul) V(div) V(exp) V(tanh)
 *   V(most)(x, limit)            the smaller of both; NaN stays NaN
 *   V(load_part)(from, count)    the first `count` floats, zeros after;  V(store_part)
 *   V(store_bf16)(to, x, count)  rounded as rp_f32_to_bf16 does; count up to LANES
 *   V(squares)(from, count)      sum of squares in f64, in an order that only count decides
 *   V(total)(from, count)        sum in f64, likewise
 *   V(angles)(from, count, cosines, sines)   pairs taken apart */

INLINE VECTOR V(get)(const float *from, size_t count) {
    return count >= LANES ? V(load)(from) : V(load_part)(from, (uint32_t)count);
}

/* Elements from `at` on of a tensor; count may be more than LANES. */
INLINE void V(put)(void *to, enum rp_dtype dtype, size_t at, VECTOR x, size_t count) {
    uint32_t live = (uint32_t)RP_MIN(count, (size_t)LANES);
    if (dtype == RP_DTYPE_BF16)
        V(store_bf16)((uint16_t *)to + at, x, live);
    else if (live == LANES)
        V(store)((float *)to + at, x);
    else
        V(store_part)((float *)to + at, x, live);
}

/* x / (1 + exp(-x)); GELU's tanh form is the same with another exponent: (1 + tanh u) / 2 = 1 / (1
 * + exp(-2u)). */
INLINE VECTOR V(activate)(enum rp_activation fn, VECTOR x) {
    const VECTOR one = V(set1)(1.0f);
    VECTOR exponent = V(sub)(V(set1)(0.0f), x);
    if (fn == RP_ACTIVATION_SWIGLU_CLAMPED) {
        exponent = V(mul)(V(set1)(-RP_SWIGLU_ALPHA), x);
    } else if (fn == RP_ACTIVATION_GELU_TANH) {
        VECTOR cube = V(mul)(V(mul)(V(mul)(V(set1)(0.044715f), x), x), x);
        exponent = V(mul)(V(set1)(-2.0f * 0.7978845608f), V(add)(x, cube));
    }
    /* 88: the largest argument of exp without overflow; dividing by more than 10^38 gives a value
     * that is zero beside any other. */
    VECTOR above = fn == RP_ACTIVATION_SIGMOID ? one : x;
    return V(div)(above, V(add)(one, V(exp)(V(most)(exponent, V(set1)(88.0f)))));
}

TARGET static void V(gate)(enum rp_activation fn, const float *gate, const float *up, size_t count,
                           void *out, enum rp_dtype out_dtype) {
    const VECTOR zero = V(set1)(0.0f), limit = V(set1)(RP_SWIGLU_LIMIT);
    for (size_t i = 0; i < count; i += LANES) {
        VECTOR x = V(get)(gate + i, count - i), u = V(get)(up + i, count - i);
        if (fn == RP_ACTIVATION_SWIGLU_CLAMPED) {
            x = V(most)(x, limit);
            u = V(most)(V(sub)(zero, V(most)(u, limit)), limit);
            u = V(sub)(V(set1)(1.0f), u);
        }
        V(put)(out, out_dtype, i, V(mul)(V(activate)(fn, x), u), count - i);
    }
}

TARGET static void V(activation_cols)(const struct rp_activation_args *args, uint32_t row,
                                      uint32_t begin, uint32_t end) {
    if (args->in.dtype != RP_DTYPE_F32) {
        rp_activation_cols(args, row, begin, end);
        return;
    }
    const float *in = (const float *)args->in.data + row * args->in.stride;
    size_t at = row * args->out.stride + begin;
    V(gate)
    (args->fn, in + begin, in + args->cols + begin, end - begin,
     (unsigned char *)args->out.data + at * rp_dtype_bytes(args->out.dtype), args->out.dtype);
}

TARGET static void V(activation_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_activation_args *args = args_void;
    for (uint32_t row = begin; row < end; row++)
        V(activation_cols)(args, row, 0, args->cols);
}

TARGET static void V(norm_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_norm_args *args = args_void;
    if (args->in.dtype != RP_DTYPE_F32) {
        rp_norm_rows(args, begin, end);
        return;
    }
    const VECTOR offset = V(set1)(args->weight_offset);
    for (uint32_t row = begin; row < end; row++) {
        for (uint32_t first = 0; first < args->cols; first += args->group) {
            const float *in = (const float *)args->in.data + row * args->in.stride + first;
            double sum = V(squares)(in, args->group);
            VECTOR inverse = V(set1)(1.0f / sqrtf((float)(sum / args->group) + args->eps));
            for (uint32_t c = 0; c < args->group; c += LANES) {
                size_t left = args->group - c;
                VECTOR weight = V(add)(V(get)(args->weight + c, left), offset);
                VECTOR y = V(mul)(V(mul)(V(get)(in + c, left), inverse), weight);
                V(put)
                (args->out.data, args->out.dtype, row * args->out.stride + first + c, y, left);
            }
        }
    }
}

/* The variance is the mean square less the squared mean: in f64 its error is below that of f32
 * inputs. */
TARGET static void V(layer_norm_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_layer_norm_args *args = args_void;
    if (args->in.dtype != RP_DTYPE_F32) {
        rp_layer_norm_rows(args, begin, end);
        return;
    }
    for (uint32_t row = begin; row < end; row++) {
        for (uint32_t first = 0; first < args->cols; first += args->group) {
            const float *in = (const float *)args->in.data + row * args->in.stride + first;
            double average = V(total)(in, args->group) / args->group;
            double variance = V(squares)(in, args->group) / args->group - average * average;
            VECTOR mean = V(set1)((float)average);
            VECTOR inverse = V(set1)(1.0f / sqrtf((float)RP_MAX(variance, 0.0) + args->eps));
            for (uint32_t c = 0; c < args->group; c += LANES) {
                size_t left = args->group - c, at = row * args->out.stride + first + c;
                VECTOR y = V(mul)(V(sub)(V(get)(in + c, left), mean), inverse);
                y = V(mul)(y, V(get)(args->weight + first + c, left));
                if (args->bias)
                    y = V(add)(y, V(get)(args->bias + first + c, left));
                V(put)(args->out.data, args->out.dtype, at, y, left);
            }
        }
    }
}

TARGET static void V(rope_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_rope_args *args = args_void;
    uint32_t half = args->rotary_dim / 2;
    if (args->x.dtype != RP_DTYPE_F32) {
        rp_rope_rows(args, begin, end);
        return;
    }
    for (uint32_t row = begin; row < end; row++) {
        uint32_t position = RP_MIN(args->step.positions[row], args->position_count - 1);
        const float *angles = args->table + (size_t)position * half * 2;
        float *x = (float *)args->x.data + row * args->x.stride;
        for (uint32_t i = 0; i < half; i += LANES) {
            uint32_t count = RP_MIN(half - i, LANES);
            VECTOR cosine, sine;
            V(angles)(angles + 2 * (size_t)i, count, &cosine, &sine);
            for (uint32_t head = 0; head < args->heads; head++) {
                float *low_at = x + (size_t)head * args->head_dim + i, *high_at = low_at + half;
                VECTOR low = V(get)(low_at, count), high = V(get)(high_at, count);
                V(put)
                (low_at, RP_DTYPE_F32, 0, V(sub)(V(mul)(low, cosine), V(mul)(high, sine)), count);
                V(put)
                (high_at, RP_DTYPE_F32, 0, V(add)(V(mul)(high, cosine), V(mul)(low, sine)), count);
            }
        }
    }
}

TARGET static void V(add_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_add_args *args = args_void;
    if (args->a.dtype != RP_DTYPE_F32 || args->b.dtype != RP_DTYPE_F32) {
        rp_add_rows(args, begin, end);
        return;
    }
    for (uint32_t row = begin; row < end; row++) {
        const float *a = (const float *)args->a.data + row * args->a.stride;
        const float *b = (const float *)args->b.data + row * args->b.stride;
        for (uint32_t c = 0; c < args->cols; c += LANES) {
            VECTOR sum = V(add)(V(get)(a + c, args->cols - c), V(get)(b + c, args->cols - c));
            V(put)
            (args->out.data, args->out.dtype, row * args->out.stride + c, sum, args->cols - c);
        }
    }
}

TARGET static void V(scale_rows)(const void *args_void, uint32_t begin, uint32_t end) {
    const struct rp_scale_args *args = args_void;
    if (args->in.dtype != RP_DTYPE_F32) {
        rp_scale_rows(args, begin, end);
        return;
    }
    for (uint32_t row = begin; row < end; row++) {
        const float *in = (const float *)args->in.data + row * args->in.stride;
        float scale = args->factor;
        if (args->table)
            scale *= args->table[RP_MIN(args->step.positions[row], args->position_count - 1)];
        VECTOR factor = V(set1)(scale);
        for (uint32_t c = 0; c < args->cols; c += LANES) {
            VECTOR y = V(mul)(V(get)(in + c, args->cols - c), factor);
            V(put)
            (args->out.data, args->out.dtype, row * args->out.stride + c, y, args->cols - c);
        }
    }
}

TARGET static void V(soft_cap_cols)(const struct rp_soft_cap_args *args, uint32_t row,
                                    uint32_t begin, uint32_t end) {
    const float *in = (const float *)args->in.data + row * args->in.stride;
    float *out = (float *)args->out.data + row * args->out.stride;
    const VECTOR cap = V(set1)(args->cap);
    for (size_t c = begin; c < end; c += LANES) {
        VECTOR y = V(mul)(cap, V(tanh)(V(div)(V(get)(in + c, end - c), cap)));
        V(put)(out, RP_DTYPE_F32, c, y, end - c);
    }
}

static const struct rp_fast_ops V(ops) = {.norm = V(norm_rows),
                                          .layer_norm = V(layer_norm_rows),
                                          .rope = V(rope_rows),
                                          .activation = V(activation_rows),
                                          .add = V(add_rows),
                                          .scale = V(scale_rows),
                                          .activation_cols = V(activation_cols),
                                          .soft_cap_cols = V(soft_cap_cols),
                                          .gate = V(gate)};
