/* attention_tile.h - the fast attention, included once per instruction set by attention_cpu_simd.c.
 *
 * The includer defines for its vectors of LANES floats:
 *   V(name)     the name of everything here and of the primitives
 *   VECTOR      the vector type            INLINE   always inlined, for this instruction set
 *   V(zero) V(set1) V(load) V(store) V(add) V(mul) V(div) V(max) V(fma) V(exp) V(tanh)
 *   V(load_part)(from, count)    the first `count` floats, zeros after
 *   V(load_kv)(run, at, dtype)   LANES elements of a run as f32;  V(load_kv_part) `count` of them
 *   V(load_int8) V(load_fp8)(quantized values)   LANES quantized values as f32
 *   V(sums)(v)                   lane i = the sum of the lanes of v[i], i < LANES, every i by one tree
 *   V(transpose)(v)              lane j of v[i] and lane i of v[j] change places
 *   V(sum) V(largest)            of the lanes of one vector
 *   ROWS_MAX                     LANES / 4: rows of a score tile */

/* Scores of `rows` heads x LANES / rows keys from place j on, into scores[row][j ..]. Entries past
 * the end repeat the last key and are overwritten by online_softmax. */
INLINE void V(score_tile)(const struct state *states, const uint32_t rows, const struct span *span,
                          uint32_t j, const struct shape *shape, const bool half,
                          float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK]) {
    const uint32_t keys = LANES / rows;
    const void *run[LANES];
    VECTOR acc[LANES];
    EACH(i, keys) { run[i] = span->block->k[RP_MIN(j + i, span->end - 1)]; }
    EACH(i, LANES) { acc[i] = V(zero)(); }
    uint32_t d = 0;
    for (; d + LANES <= shape->head_dim; d += LANES) {
        VECTOR q[ROWS_MAX];
        EACH(r, rows) { q[r] = V(load)(states[r].q + d); }
        EACH(i, keys) {
            VECTOR k = V(load_kv)(run[i], d, half);
            EACH(r, rows) { acc[r * keys + i] = V(fma)(q[r], k, acc[r * keys + i]); }
        }
    }
    if (d < shape->head_dim) {
        uint32_t count = shape->head_dim - d;
        EACH(i, keys) {
            VECTOR k = V(load_kv_part)(run[i], d, half, count);
            EACH(r, rows) {
                VECTOR q = V(load_part)(states[r].q + d, count);
                acc[r * keys + i] = V(fma)(q, k, acc[r * keys + i]);
            }
        }
    }
    float sums[LANES];
    V(store)(sums, V(mul)(V(sums)(acc), V(set1)(shape->scale)));
    EACH(r, rows) { memcpy(&scores[r][j], sums + r * keys, keys * sizeof(float)); }
}

/* The same scores, bit for bit, of LANES contiguous keys (K transposed): lane i of V(sums)'
 * argument is here the vector of dimensions i, LANES + i, .. of all these keys, and the tree over
 * lanes becomes one over vectors. */
INLINE void V(score_wide)(const struct state *states, const uint32_t rows, uint32_t j,
                          const struct shape *shape,
                          float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK]) {
    const uint32_t chunks = shape->head_dim / LANES;
    VECTOR sums[ROWS_MAX], pair[ROWS_MAX];
    EACH(quad, LANES / 4) {
        VECTOR four[ROWS_MAX];
        EACH(half, 2) {
            VECTOR a[ROWS_MAX], b[ROWS_MAX];
            const uint32_t at = 4 * quad + half;
            EACH(r, rows) { a[r] = b[r] = V(zero)(); }
            for (uint32_t c = 0; c < chunks; c++) {
                const float *key = shape->keys + (size_t)(c * LANES + at) * BLOCK_KEYS + j;
                VECTOR k_a = V(load)(key), k_b = V(load)(key + 2 * BLOCK_KEYS);
                EACH(r, rows) {
                    const float *q = states[r].q + c * LANES + at;
                    a[r] = V(fma)(V(set1)(q[0]), k_a, a[r]);
                    b[r] = V(fma)(V(set1)(q[2]), k_b, b[r]);
                }
            }
            EACH(r, rows) {
                VECTOR two = V(add)(a[r], b[r]);
                four[r] = half ? V(add)(four[r], two) : two;
            }
        }
        EACH(r, rows) {
            pair[r] = quad % 2 ? V(add)(pair[r], four[r]) : four[r];
            if (quad % 2)
                sums[r] = quad > 1 ? V(add)(sums[r], pair[r]) : pair[r];
        }
    }
    EACH(r, rows) { V(store)(&scores[r][j], V(mul)(sums[r], V(set1)(shape->scale))); }
}

/* 8-bit quantized values of one token and head as f32: q * scale, as the scalar reference reads
 * them. */
TARGET static void V(decode)(const unsigned char *quantized, float scale, enum rp_dtype dtype,
                             uint32_t count, float *to) {
    const VECTOR by = V(set1)(scale);
    uint32_t d = 0;
    if (dtype == RP_DTYPE_INT8)
        for (; d + LANES <= count; d += LANES)
            V(store)(to + d, V(mul)(V(load_int8)(quantized + d), by));
    else
        for (; d + LANES <= count; d += LANES)
            V(store)(to + d, V(mul)(V(load_fp8)(quantized + d), by));
    for (; d < count; d++)
        to[d] = rp_quantized_to_f32(quantized, dtype, d) * scale;
}

/* Converts the keys in `seen` of a block at position `at` to f32; the others get the address of an
 * earlier one. Prefetches the next block meanwhile. */
TARGET static void V(decode_block)(const struct rp_kv_layout *kv, const struct block *block,
                                   const struct block *next, uint64_t seen, uint32_t at,
                                   struct decoded *out) {
    const uint32_t head_dim = kv->head_dim;
    const float *k = out->k, *v = out->v;
    out->block.begin = block->begin;
    out->block.end = block->end;
    for (uint32_t j = 0; j < BLOCK_KEYS; j++) {
        if (next) {
            prefetch(next, j, next->k, head_dim);
            prefetch(next, j, next->v, head_dim);
        }
        if (j < block->begin || j >= block->end)
            continue;
        if (seen >> j & 1) {
            uint32_t in_page = (at + j) % kv->page_tokens;
            /* from the run's begin to the quantized values */
            size_t before = (size_t)in_page * head_dim;
            const unsigned char *k_quantized = block->k[j], *v_quantized = block->v[j];
            float *k_to = out->k + (size_t)j * head_dim, *v_to = out->v + (size_t)j * head_dim;
            V(decode)
            (k_quantized, rp_kv_scale(kv, k_quantized - before, in_page), kv->dtype, head_dim,
             k_to);
            if (v_quantized == k_quantized) { /* latents */
                k = v = k_to;
                out->block.k[j] = out->block.v[j] = k_to;
                continue;
            }
            V(decode)
            (v_quantized, rp_kv_scale(kv, v_quantized - before, in_page), kv->dtype, head_dim,
             v_to);
            k = k_to;
            v = v_to;
        }
        out->block.k[j] = k;
        out->block.v[j] = v;
    }
}

/* Converts K (transposed) and V to f32, and points the block's V addresses at them. */
INLINE void V(lay_out)(const struct block *block, const struct block *next,
                       const struct shape *shape, const bool half, float *keys, float *values,
                       struct block *wide) {
    const uint32_t head_dim = shape->head_dim;
    for (uint32_t j = 0; j < BLOCK_KEYS; j += LANES)
        for (uint32_t d = 0; d < head_dim; d += LANES) {
            VECTOR v[LANES];
            EACH(i, LANES) {
                bool there = j + i >= block->begin && j + i < block->end;
                v[i] = there ? V(load_kv)(block->k[j + i], d, half) : V(zero)();
            }
            V(transpose)(v);
            EACH(i, LANES) { V(store)(keys + (size_t)(d + i) * BLOCK_KEYS + j, v[i]); }
        }
    wide->begin = block->begin;
    wide->end = block->end;
    for (uint32_t j = block->begin; j < block->end; j++) {
        float *to = values + (size_t)j * head_dim;
        wide->v[j] = to;
        for (uint32_t d = 0; d < head_dim; d += LANES)
            V(store)(to + d, V(load_kv)(block->v[j], d, half));
    }
    for (uint32_t j = 0; next && j < BLOCK_KEYS; j++) {
        prefetch(next, j, next->k, shape->key_bytes);
        prefetch(next, j, next->v, shape->value_bytes);
    }
}

/* cap * tanh(s / cap) of the scores of a span; entries after it change, too. */
INLINE void V(cap)(float *scores, const struct span *span, float soft_cap) {
    const VECTOR cap = V(set1)(soft_cap);
    for (uint32_t j = span->begin; j < span->end; j += LANES)
        V(store)(scores + j, V(mul)(cap, V(tanh)(V(div)(V(load)(scores + j), cap))));
}

/* Scores to weights exp(s - max), in place; updates the running maximum and total. Returns the
 * factor that rescales the earlier sums. */
INLINE float V(online_softmax)(struct state *state, float *scores, const struct span *span,
                               const struct shape *shape, const bool holes) {
    for (uint32_t j = 0; j < span->begin; j++)
        scores[j] = -INFINITY;
    for (uint32_t j = span->end; j < BLOCK_KEYS; j++)
        scores[j] = -INFINITY;
    for (uint32_t j = 0; holes && j < BLOCK_KEYS; j++)
        scores[j] = span->seen >> j & 1 ? scores[j] : -INFINITY;
    VECTOR max = V(load)(scores), sum = V(zero)();
    for (uint32_t j = LANES; j < BLOCK_KEYS; j += LANES)
        max = V(max)(max, V(load)(scores + j));
    float largest = V(largest)(max);
    largest = largest > state->max ? largest : state->max;
    if (shape->rules && largest == -INFINITY && hide_all(scores))
        return 1.0f;
    for (uint32_t j = 0; j < BLOCK_KEYS; j += LANES) {
        VECTOR weight = V(exp)(V(add)(V(load)(scores + j), V(set1)(-largest)));
        sum = V(add)(sum, weight);
        V(store)(scores + j, weight);
    }
    float fade[LANES];
    V(store)(fade, V(exp)(V(set1)(state->max - largest)));
    state->max = largest;
    state->total = state->total * fade[0] + V(sum)(sum);
    return fade[0];
}

/* out = out * fade + sum_j weight_j v_j for `rows` heads x `vectors` vectors of elements from d on;
 * `count` elements when that is less than one vector. */
INLINE void V(value_tile)(struct state *states, const uint32_t rows, const uint32_t vectors,
                          const struct span *span, uint32_t d, uint32_t count,
                          const struct shape *shape, const bool half, const bool holes,
                          const float *fade, float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK]) {
    VECTOR acc[ROWS_MAX][4];
    EACH(r, rows) {
        EACH(i, vectors) {
            acc[r][i] = V(mul)(V(load)(states[r].out + d + i * LANES), V(set1)(fade[r]));
        }
    }
    for (uint32_t j = span->begin; j < span->end; j++) {
        const void *run = span->block->v[j];
        VECTOR v[4];
        if (holes && !(span->seen >> j & 1))
            continue;
        if (d == 0 && span->next)
            prefetch(span->next, j, span->next->v, shape->value_bytes);
        EACH(i, vectors) {
            v[i] = count < LANES ? V(load_kv_part)(run, d, half, count)
                                 : V(load_kv)(run, d + i * LANES, half);
        }
        EACH(r, rows) {
            VECTOR weight = V(set1)(scores[r][j]);
            EACH(i, vectors) { acc[r][i] = V(fma)(weight, v[i], acc[r][i]); }
        }
    }
    EACH(r, rows) {
        EACH(i, vectors) { V(store)(states[r].out + d + i * LANES, acc[r][i]); }
    }
}

/* Softmax and weighted sums of `rows` heads of one token, after their scores. */
INLINE void V(finish_rows)(struct state *states, const uint32_t rows, const struct span *span,
                           const struct shape *shape, const bool half, const bool holes,
                           float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK]) {
    const uint32_t value_dim = shape->value_dim;
    float fade[ROWS_MAX];
    for (uint32_t r = 0; r < rows; r++) {
        if (shape->soft_cap != 0.0f)
            V(cap)(scores[r], span, shape->soft_cap);
        if (shape->rules)
            apply_rules(shape, &states[r], span, scores[r]);
        fade[r] = V(online_softmax)(&states[r], scores[r], span, shape, holes);
    }
    uint32_t d = 0;
    for (; d + 4 * LANES <= value_dim; d += 4 * LANES)
        V(value_tile)(states, rows, 4, span, d, LANES, shape, half, holes, fade, scores);
    for (; d + LANES <= value_dim; d += LANES)
        V(value_tile)(states, rows, 1, span, d, LANES, shape, half, holes, fade, scores);
    if (d < value_dim)
        V(value_tile)(states, rows, 1, span, d, value_dim - d, shape, half, holes, fade, scores);
}

/* One block of keys for `rows` heads of one token. wide: all_scores has their scores. */
INLINE void V(block_rows)(struct state *states, const uint32_t rows, const struct span *span,
                          const struct shape *shape, const bool half, const bool wide,
                          const bool holes, float (*all_scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    _Alignas(RP_CACHE_LINE) float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK];
    const uint32_t keys = LANES / rows;
    if (wide) {
        V(finish_rows)(states, rows, span, shape, false, holes, all_scores);
        return;
    }
    for (uint32_t j = span->begin; j < span->end; j += keys) {
        for (uint32_t i = j; span->next && i < j + keys; i++)
            prefetch(span->next, i, span->next->k, shape->key_bytes);
        V(score_tile)(states, rows, span, j, shape, half, scores);
    }
    V(finish_rows)(states, rows, span, shape, half, holes, scores);
}

/* One block of keys for `heads` heads of one token. */
INLINE void V(block_token)(struct state *states, uint32_t heads, struct span span,
                           const struct shape *shape, const bool half, const bool wide,
                           const bool holes, float (*scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    uint32_t h = 0;
#if ROWS_MAX >= 4
    for (; h + 4 <= heads; h += 4) {
        V(block_rows)(states + h, 4, &span, shape, half, wide, holes, scores + h);
        span.next = NULL;
    }
#endif
    for (; h + 2 <= heads; h += 2) {
        V(block_rows)(states + h, 2, &span, shape, half, wide, holes, scores + h);
        span.next = NULL;
    }
    if (h < heads)
        V(block_rows)(states + h, 1, &span, shape, half, wide, holes, scores + h);
}

/* Scores of all rows of a piece (token by token, head by head) and the block's keys, LANES keys at
 * a time, so that the keys stay in L1. Masked scores within a tile are computed too and overwritten
 * by online_softmax. */
INLINE void V(score_piece)(const struct state *states, const struct rp_attention_piece *piece,
                           const struct block *block, const uint32_t *positions, uint32_t at,
                           const struct shape *shape, float (*scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    uint32_t heads = piece->head_count, count = piece->token_count * heads;
    for (uint32_t j = block->begin / LANES * LANES; j < block->end; j += LANES) {
        /* Positions rise: rows before the first that reaches key j see none of these keys. */
        uint32_t token = 0;
        while (positions[token] < at + j)
            token++;
        uint32_t row = token * heads;
        for (; row + ROWS_MAX <= count; row += ROWS_MAX)
            V(score_wide)(states + row, ROWS_MAX, j, shape, scores + row);
        for (; row < count; row++)
            V(score_wide)(states + row, 1, j, shape, scores + row);
    }
}

/* The same with a program: row tiles that see none of these keys are skipped. */
INLINE void V(score_piece_seen)(const struct state *states, uint32_t count,
                                const struct rp_attention_seen *seen, const struct shape *shape,
                                float (*scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    for (uint32_t j = 0; j < BLOCK_KEYS; j += LANES) {
        const uint64_t keys = (((uint64_t)1 << LANES) - 1) << j;
        uint32_t row = 0;
        for (; row + ROWS_MAX <= count; row += ROWS_MAX) {
            uint64_t any = 0;
            EACH(r, ROWS_MAX) { any |= seen->rows[row + r]; }
            if (any & keys)
                V(score_wide)(states + row, ROWS_MAX, j, shape, scores + row);
        }
        for (; row < count; row++)
            if (seen->rows[row] & keys)
                V(score_wide)(states + row, 1, j, shape, scores + row);
    }
}

/* One block of keys for `heads` heads of one token that see the same of it. */
INLINE void V(block_seen)(struct state *states, uint32_t heads, uint64_t seen,
                          const struct block *block, const struct block *next, uint32_t at,
                          const struct shape *shape, const bool half, const bool wide,
                          float (*scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    if (seen == 0)
        return;
    struct span span = {.block = block,
                        .next = next,
                        .begin = (uint32_t)__builtin_ctzll(seen),
                        .end = BLOCK_KEYS - (uint32_t)__builtin_clzll(seen),
                        .at = at,
                        .seen = seen};
    uint64_t gaps = seen ^ (~(uint64_t)0 >> (BLOCK_KEYS - (span.end - span.begin)) << span.begin);
    if (gaps)
        V(block_token)(states, heads, span, shape, half, wide, true, scores);
    else
        V(block_token)(states, heads, span, shape, half, wide, false, scores);
}

INLINE void V(piece_seen)(struct state *states, const struct rp_attention_piece *piece,
                          const struct rp_attention_seen *seen, const struct block *block,
                          const struct block *next, const struct shape *shape, const bool half,
                          const bool wide, float (*scores)[BLOCK_KEYS + BLOCK_SLACK]) {
    /* Heads that see different keys are computed one by one: a weight of 0 would still propagate a
     * NaN. */
    uint32_t heads = seen->heads_differ ? 1 : piece->head_count;
    for (uint32_t row = 0; row < piece->token_count * piece->head_count; row += heads) {
        V(block_seen)
        (states + row, heads, seen->rows[row], block, next, seen->at, shape, half, wide,
         scores + row);
        if (seen->rows[row])
            next = NULL;
    }
}

/* All keys of a piece that are visible under its program, block by block. */
INLINE void V(walk_seen)(const struct rp_attention_args *args,
                         const struct rp_attention_piece *piece, struct state *states,
                         struct decoded *decoded, const bool half, const bool wide) {
    _Alignas(RP_CACHE_LINE) float keys[BLOCK_KEYS * WIDE_HEAD_DIM];
    _Alignas(RP_CACHE_LINE) float values[BLOCK_KEYS * WIDE_HEAD_DIM];
    _Alignas(RP_CACHE_LINE) float scores[STATES_MAX][BLOCK_KEYS + BLOCK_SLACK];
    struct rp_attention_blocks walk;
    struct rp_attention_seen seen[2];
    struct block blocks[2], laid_out;
    uint32_t now = 0;
    rp_attention_blocks_begin(&walk, args, piece);
    const struct shape shape = shape_of(args, keys, walk.params);
    bool more = rp_attention_blocks_next(&walk, &seen[0]);
    if (more)
        locate_seen(args, piece, &seen[0], &blocks[0]);
    while (more) {
        more = rp_attention_blocks_next(&walk, &seen[!now]);
        if (more)
            locate_seen(args, piece, &seen[!now], &blocks[!now]);
        const struct block *block = &blocks[now], *next = more ? &blocks[!now] : NULL;
        if (decoded) {
            V(decode_block)(&args->kv, block, next, seen[now].any, seen[now].at, decoded);
            block = &decoded->block;
            next = NULL;
        }
        if (wide) {
            V(lay_out)(block, next, &shape, half, keys, values, &laid_out);
            V(score_piece_seen)
            (states, piece->token_count * piece->head_count, &seen[now], &shape, scores);
            block = &laid_out;
            next = NULL;
        }
        V(piece_seen)(states, piece, &seen[now], block, next, &shape, half, wide, scores);
        now = !now;
    }
}

/* All keys of a piece, block by block. */
INLINE void V(walk)(const struct rp_attention_args *args, const struct rp_attention_piece *piece,
                    struct state *states, struct decoded *decoded, const bool half,
                    const bool wide) {
    _Alignas(RP_CACHE_LINE) float keys[BLOCK_KEYS * WIDE_HEAD_DIM];
    _Alignas(RP_CACHE_LINE) float values[BLOCK_KEYS * WIDE_HEAD_DIM];
    _Alignas(RP_CACHE_LINE) float scores[STATES_MAX][BLOCK_KEYS + BLOCK_SLACK];
    struct block blocks[2], laid_out, *block = &blocks[0], *next = &blocks[1];
    const struct shape shape = shape_of(args, keys, NULL);
    uint32_t heads = piece->head_count;
    const uint32_t *positions = args->step.positions + piece->token;
    uint32_t last = positions[piece->token_count - 1];
    uint32_t first_of_all = rp_attention_first(args->window, positions[0]);
    uint32_t at = first_of_all / BLOCK_KEYS * BLOCK_KEYS;
    locate(args, piece, first_of_all, last, at, block);
    for (;;) {
        bool more = last - at >= BLOCK_KEYS;
        if (more)
            locate(args, piece, first_of_all, last, at + BLOCK_KEYS, next);
        const struct block *now = block, *prefetched = more ? next : NULL;
        if (decoded) {
            V(decode_block)(&args->kv, block, prefetched, ~(uint64_t)0, at, decoded);
            now = &decoded->block;
            prefetched = NULL;
        }
        if (wide) {
            V(lay_out)(now, prefetched, &shape, half, keys, values, &laid_out);
            V(score_piece)(states, piece, now, positions, at, &shape, scores);
            now = &laid_out;
            prefetched = NULL;
        }
        for (uint32_t t = 0; t < piece->token_count; t++) {
            uint32_t first = rp_attention_first(args->window, positions[t]);
            uint32_t begin = first > at ? first - at : 0;
            uint32_t end = positions[t] < at ? 0 : RP_MIN(positions[t] - at + 1, BLOCK_KEYS);
            struct span span = {now, t == 0 ? prefetched : NULL, begin, end, at, 0};
            if (begin < end)
                V(block_token)
            (states + (size_t)t * heads, heads, span, &shape, half, wide, false,
             scores + (size_t)t * heads);
        }
        if (!more)
            break;
        at += BLOCK_KEYS;
        struct block *done = block;
        block = next;
        next = done;
    }
}

/* decoded: buffer for dequantized blocks of 8-bit pages; NULL for other page types. */
INLINE void V(piece)(const struct rp_attention_args *args, const struct rp_attention_piece *piece,
                     struct decoded *decoded, const bool half, const bool masked) {
    _Alignas(RP_CACHE_LINE) float sums[SUMS_MAX];
    struct state states[STATES_MAX];
    uint32_t heads = piece->head_count, stride = sums_stride(rp_attention_value_dim(args));
    bool wide = piece->token_count >= WIDE_TOKENS && args->head_dim <= WIDE_HEAD_DIM &&
                args->head_dim % LANES == 0;
    memset(sums, 0, (size_t)piece->token_count * heads * stride * sizeof *sums);
    for (uint32_t i = 0; i < piece->token_count * heads; i++)
        states[i] = (struct state){
            .out = sums + (size_t)i * stride,
            .q = args->q + (piece->token + i / heads) * args->q_stride +
                 (size_t)(piece->head + i % heads) * args->head_dim,
            .max = -INFINITY,
            .position = args->step.positions[piece->token + i / heads],
            .head = piece->head + i % heads,
        };
    if (masked && wide)
        V(walk_seen)(args, piece, states, decoded, half, true);
    else if (masked)
        V(walk_seen)(args, piece, states, decoded, half, false);
    else if (wide)
        V(walk)(args, piece, states, decoded, half, true);
    else
        V(walk)(args, piece, states, decoded, half, false);
    for (uint32_t i = 0; i < piece->token_count * heads; i++)
        store_head(args, piece->token + i / heads, piece->head + i % heads, &states[i]);
}

#define DEFINE_F32(name, masked)                                                                   \
    TARGET static void V(name)(const struct rp_attention_args *args,                               \
                               const struct rp_attention_piece *piece) {                           \
        struct decoded decoded;                                                                    \
        V(piece)(args, piece, args->kv.scales_at ? &decoded : NULL, false, masked);                \
    }
#define DEFINE_BF16(name, masked)                                                                  \
    TARGET static void V(name)(const struct rp_attention_args *args,                               \
                               const struct rp_attention_piece *piece) {                           \
        V(piece)(args, piece, NULL, true, masked);                                                 \
    }

DEFINE_F32(piece_f32, false)
DEFINE_BF16(piece_bf16, false)
DEFINE_F32(piece_f32_masked, true)
DEFINE_BF16(piece_bf16_masked, true)

#undef DEFINE_F32
#undef DEFINE_BF16
