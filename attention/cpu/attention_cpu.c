/* attention_cpu.c - the reference, in two passes over the keys: the largest score, then the sums.
 *
 *   s_j   = scale * (q . k_j)              j ascending, over the keys that the token sees: first .. position, or those
 *           cap * tanh(s_j / cap)          that the program lets it see; the cap, or the program's score rules
 *           v_j is the beginning of k_j in pages of latents
 *   out   = sum_j exp(s_j - m) v_j / (sum_j exp(s_j - m) + exp(sink - m))       m = max(s, sink); zeros where no
 *           key is seen; without sinks, exp(sink - m) is 0 */
#include "attention/cpu/attention_blocks.h"
#include "base/bf16.h"
#include "device/quantize_row.h"

#include <math.h>
#include <string.h>

/* Element i of a row of the page's type; scale: 8-bit pages only. */
static inline float kv_at(const struct rp_kv_layout *kv, const void *run, size_t i, float scale) {
    return kv->dtype == RP_DTYPE_F32    ? ((const float *)run)[i]
           : kv->dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(((const uint16_t *)run)[i])
                                        : rp_quantized_to_f32(run, kv->dtype, i) * scale;
}

static inline float kv_scale(const struct rp_kv_layout *kv, const unsigned char *run,
                             uint32_t in_page) {
    return kv->scales_at ? rp_kv_scale(kv, run, in_page) : 1.0f;
}

/* One (token, query head) and the pages of its sequence. */
struct row {
    const struct rp_attention_args *args;
    const uint32_t *pages;
    const int32_t *params;
    const float *q;
    uint32_t position, head, kv_head;
    float max, total;
    float out[RP_ATTENTION_HEAD_DIM_MAX];
};

/* The score of the key at `position`, d ascending. */
static inline __attribute__((always_inline)) float score(const struct row *row, uint32_t position) {
    const struct rp_attention_args *args = row->args;
    const struct rp_kv_layout *kv = &args->kv;
    uint32_t in_page = position % kv->page_tokens;
    const unsigned char *run =
        rp_kv_run(kv, row->pages[position / kv->page_tokens], args->layer, 0, row->kv_head);
    const float scale = kv_scale(kv, run, in_page);
    const uint32_t head_dim = args->head_dim;
    const float *q = row->q;
    float sum = 0.0f;
    for (uint32_t d = 0; d < head_dim; d++)
        sum += q[d] * kv_at(kv, run, (size_t)in_page * head_dim + d, scale);
    sum *= args->scale;
    if (args->mask) {
        const struct rp_mask_pair pair = {.q = (int32_t)row->position,
                                          .kv = (int32_t)position,
                                          .h = (int32_t)(args->first_head + row->head),
                                          .layer = (int32_t)args->layer};
        return rp_mask_score(args->mask, &pair, row->params, sum);
    }
    return args->soft_cap != 0.0f ? args->soft_cap * tanhf(sum / args->soft_cap) : sum;
}

static inline __attribute__((always_inline)) void find_max(struct row *row, uint32_t position) {
    row->max = fmaxf(row->max, score(row, position));
}

static inline __attribute__((always_inline)) void add_key(struct row *row, uint32_t position) {
    const struct rp_attention_args *args = row->args;
    const struct rp_kv_layout *kv = &args->kv;
    const unsigned char *run = rp_kv_run(kv, row->pages[position / kv->page_tokens], args->layer,
                                         rp_attention_value_plane(args), row->kv_head);
    size_t at = (size_t)(position % kv->page_tokens) * args->head_dim;
    float value = score(row, position);
    /* A rule that returns -infinity masks the key. */
    float weight = args->mask && value == -INFINITY ? 0.0f : expf(value - row->max);
    row->total += weight;
    const uint32_t value_dim = rp_attention_value_dim(args);
    const float scale = kv_scale(kv, run, position % kv->page_tokens);
    float *restrict out = row->out; /* does not alias the pages */
    for (uint32_t d = 0; d < value_dim; d++)
        out[d] += weight * kv_at(kv, run, at + d, scale);
}

/* Calls `take` for each visible key in ascending order. Inlined with it: a head may have only eight
 * columns. */
static inline __attribute__((always_inline)) void each_key(struct row *row, uint32_t token,
                                                           void (*take)(struct row *, uint32_t)) {
    const struct rp_attention_args *args = row->args;
    const struct rp_attention_piece piece = {
        .token = token, .token_count = 1, .head = row->head, .head_count = 1};
    struct rp_attention_blocks blocks;
    struct rp_attention_seen seen;
    if (!args->mask) {
        for (uint32_t j = rp_attention_first(args->window, row->position); j <= row->position; j++)
            take(row, j);
        return;
    }
    rp_attention_blocks_begin(&blocks, args, &piece);
    while (rp_attention_blocks_next(&blocks, &seen))
        for (uint32_t i = 0; i < RP_ATTENTION_BLOCK_KEYS; i++)
            if (seen.rows[0] >> i & 1)
                take(row, seen.at + i);
}

static void attend(const struct rp_attention_args *args, uint32_t token, uint32_t head) {
    const struct rp_live_row *live = rp_attention_live_row(&args->step, token);
    uint32_t head_dim = args->head_dim, value_dim = rp_attention_value_dim(args);
    struct row row = {.args = args,
                      .pages = rp_attention_pages(&args->step, live, args->table),
                      .params = rp_attention_params(&args->step, live),
                      .q = args->q + token * args->q_stride + (size_t)head * head_dim,
                      .position = args->step.positions[token],
                      .head = head,
                      .kv_head = head / (args->heads / args->kv_heads),
                      .max = args->sinks ? args->sinks[head] : -INFINITY};
    each_key(&row, token, find_max);
    row.total = args->sinks ? expf(args->sinks[head] - row.max) : 0.0f;
    each_key(&row, token, add_key);
    size_t at = token * args->out_stride + (size_t)head * value_dim;
    for (uint32_t d = 0; d < value_dim; d++) {
        float value = row.total == 0.0f ? 0.0f : row.out[d] / row.total;
        if (args->out_dtype == RP_DTYPE_F32)
            ((float *)args->out)[at + d] = value;
        else
            ((uint16_t *)args->out)[at + d] = rp_f32_to_bf16(value);
    }
}

void rp_attention_scalar(const struct rp_attention_args *args, const struct rp_cpu_worker *worker) {
    struct rp_attention_line line;
    uint32_t group = args->heads / args->kv_heads;
    uint64_t at = 0;
    RP_ASSERT_CMP(args->head_dim, <=, RP_ATTENTION_HEAD_DIM_MAX);
    rp_attention_line_begin(&line, args, 1, args->kv_heads);
    for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
        for (uint32_t t = 0; t < args->step.counts->token_count; t++) {
            uint64_t length = rp_attention_line_length(&line, args, t, t, 1);
            if (length != 0 && rp_attention_is_mine(&line, at, worker))
                for (uint32_t g = 0; g < group; g++)
                    attend(args, t, kv_head * group + g);
            at += length;
        }
    }
}

rp_attention_fn rp_attention_select(enum rp_cpu_isa isa, const struct rp_kv_layout *kv) {
    rp_attention_fn fn = NULL;
#if RP_ATTENTION_HAS_SIMD
    fn = rp_attention_select_simd(isa, kv);
#else
    (void)isa;
    (void)kv;
#endif
    return fn ? fn : rp_attention_scalar;
}

static void store_run(const struct rp_kv_layout *kv, unsigned char *run, uint32_t in_page,
                      const float *from) {
    size_t at = (size_t)in_page * kv->head_dim;
    if (kv->scales_at)
        rp_kv_set_scale(kv, run, in_page,
                        rp_quantize_row(from, RP_DTYPE_F32, kv->head_dim, kv->dtype, run + at));
    else if (kv->dtype == RP_DTYPE_F32)
        memcpy((float *)(void *)run + at, from, kv->head_dim * sizeof *from);
    else
        for (uint32_t d = 0; d < kv->head_dim; d++)
            ((uint16_t *)(void *)run)[at + d] = rp_f32_to_bf16(from[d]);
}

void rp_kv_write_range(const struct rp_kv_write_args *args, uint32_t begin, uint32_t end) {
    const struct rp_kv_layout *kv = &args->kv;
    for (uint32_t t = begin; t < end; t++) {
        const struct rp_live_row *row = rp_attention_live_row(&args->step, t);
        if (!row)
            continue;
        uint32_t position = args->step.positions[t];
        uint32_t page =
            rp_attention_pages(&args->step, row, args->table)[position / kv->page_tokens];
        uint32_t in_page = position % kv->page_tokens;
        for (uint32_t head = 0; head < kv->kv_heads; head++) {
            size_t column = (size_t)head * kv->head_dim;
            store_run(kv, rp_kv_run(kv, page, args->layer, 0, head), in_page,
                      args->k + t * args->k_stride + column);
            if (!kv->latent)
                store_run(kv, rp_kv_run(kv, page, args->layer, 1, head), in_page,
                          args->v + t * args->v_stride + column);
        }
    }
}
