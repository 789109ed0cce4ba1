/* attention_tile.h - the fast attention, included once per instruction set by attention_cpu_simd.c.
 *
 * The includer defines for its vectors of LANES floats:
 *   V(name)     the name of everything here and of the primitives
 *   VECTOR      the vector type            INLINE   always inlined, for this instruction set
 *   V(zero) V(set1) V(load) V(store) V(add) V(mul) V(max) V(fma) V(exp)
 *   V(load_part)(from, count)    the first `count` floats, zeros behind
 *   V(load_kv)(run, at, dtype)   LANES elements of a run as f32;  V(load_kv_part) `count` of them
 *   V(sums)(v)                   lane i = the sum of the lanes of v[i], i < LANES, every i by one tree
 *   V(sum) V(largest)            of the lanes of one vector
 *   ROWS_MAX                     LANES / 4: rows of a score tile */

/* Scores of `rows` heads x LANES / rows keys from place j on, into scores[row][j ..]. Places past the
 * end are read as the last one and overwritten by soften. */
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

/* Scores to weights exp(s - max), in place; the running maximum and total move on. Returns what the
 * earlier sums are to be multiplied with. */
INLINE float V(soften)(struct state *state, float *scores, const struct span *span) {
    for (uint32_t j = 0; j < span->begin; j++)
        scores[j] = -INFINITY;
    for (uint32_t j = span->end; j < BLOCK_KEYS; j++)
        scores[j] = -INFINITY;
    VECTOR max = V(load)(scores), sum = V(zero)();
    for (uint32_t j = LANES; j < BLOCK_KEYS; j += LANES)
        max = V(max)(max, V(load)(scores + j));
    float largest = V(largest)(max);
    largest = largest > state->max ? largest : state->max;
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
                          const struct shape *shape, const bool half, const float *fade,
                          float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK]) {
    VECTOR acc[ROWS_MAX][4];
    EACH(r, rows) {
        EACH(i, vectors) {
            acc[r][i] = V(mul)(V(load)(states[r].out + d + i * LANES), V(set1)(fade[r]));
        }
    }
    for (uint32_t j = span->begin; j < span->end; j++) {
        const void *run = span->block->v[j];
        VECTOR v[4];
        if (d == 0 && span->next)
            prefetch(span->next, j, span->next->v, shape->key_bytes);
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

/* One block of keys for `rows` heads of one token. */
INLINE void V(block_rows)(struct state *states, const uint32_t rows, const struct span *span,
                          const struct shape *shape, const bool half) {
    _Alignas(RP_CACHE_LINE) float scores[ROWS_MAX][BLOCK_KEYS + BLOCK_SLACK];
    const uint32_t keys = LANES / rows, head_dim = shape->head_dim;
    float fade[ROWS_MAX];
    for (uint32_t j = span->begin; j < span->end; j += keys) {
        for (uint32_t i = j; span->next && i < j + keys; i++)
            prefetch(span->next, i, span->next->k, shape->key_bytes);
        V(score_tile)(states, rows, span, j, shape, half, scores);
    }
    for (uint32_t r = 0; r < rows; r++)
        fade[r] = V(soften)(&states[r], scores[r], span);
    uint32_t d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        V(value_tile)(states, rows, 4, span, d, LANES, shape, half, fade, scores);
    for (; d + LANES <= head_dim; d += LANES)
        V(value_tile)(states, rows, 1, span, d, LANES, shape, half, fade, scores);
    if (d < head_dim)
        V(value_tile)(states, rows, 1, span, d, head_dim - d, shape, half, fade, scores);
}

/* One block of keys for all heads of one token. */
INLINE void V(block_token)(struct state *states, uint32_t heads, struct span span,
                           const struct shape *shape, const bool half) {
    uint32_t h = 0;
#if ROWS_MAX >= 4
    for (; h + 4 <= heads; h += 4) {
        V(block_rows)(states + h, 4, &span, shape, half);
        span.next = NULL;
    }
#endif
    for (; h + 2 <= heads; h += 2) {
        V(block_rows)(states + h, 2, &span, shape, half);
        span.next = NULL;
    }
    if (h < heads)
        V(block_rows)(states + h, 1, &span, shape, half);
}

INLINE void V(piece)(const struct rp_attention_args *args, const struct piece *piece,
                     const bool half) {
    _Alignas(RP_CACHE_LINE) float sums[SUMS_MAX];
    struct state states[STATES_MAX];
    struct block blocks[2], *block = &blocks[0], *next = &blocks[1];
    const struct shape shape = {.head_dim = args->head_dim,
                                .scale = args->scale,
                                .key_bytes = args->head_dim * (half ? 2u : 4u)};
    uint32_t heads = piece->head_count, stride = sums_stride(args->head_dim);
    memset(sums, 0, (size_t)piece->token_count * heads * stride * sizeof *sums);
    for (uint32_t i = 0; i < piece->token_count * heads; i++)
        states[i] = (struct state){
            .out = sums + (size_t)i * stride,
            .q = args->q + (piece->token + i / heads) * args->q_stride +
                 (size_t)(piece->head + i % heads) * args->head_dim,
            .max = -INFINITY,
        };
    const uint32_t *positions = args->step.positions + piece->token;
    uint32_t last = positions[piece->token_count - 1];
    uint32_t first_of_all = rp_attention_first(args->window, positions[0]);
    uint32_t at = first_of_all / BLOCK_KEYS * BLOCK_KEYS;
    locate(args, piece, first_of_all, last, at, block);
    for (;;) {
        bool more = last - at >= BLOCK_KEYS;
        if (more)
            locate(args, piece, first_of_all, last, at + BLOCK_KEYS, next);
        for (uint32_t t = 0; t < piece->token_count; t++) {
            uint32_t first = rp_attention_first(args->window, positions[t]);
            uint32_t begin = first > at ? first - at : 0;
            uint32_t end = positions[t] < at ? 0 : RP_MIN(positions[t] - at + 1, BLOCK_KEYS);
            struct span span = {block, more && t == 0 ? next : NULL, begin, end};
            if (begin < end)
                V(block_token)(states + (size_t)t * heads, heads, span, &shape, half);
        }
        if (!more)
            break;
        at += BLOCK_KEYS;
        struct block *done = block;
        block = next;
        next = done;
    }
    for (uint32_t i = 0; i < piece->token_count * heads; i++)
        store_head(args, piece->token + i / heads, piece->head + i % heads, states[i].out,
                   states[i].total);
}

TARGET static void V(piece_f32)(const struct rp_attention_args *args, const struct piece *piece) {
    V(piece)(args, piece, false);
}

TARGET static void V(piece_bf16)(const struct rp_attention_args *args, const struct piece *piece) {
    V(piece)(args, piece, true);
}
