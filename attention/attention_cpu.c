/* attention_cpu.c - the truth, in two passes over the keys: the largest score, then the sums.
 *
 *   s_j   = scale * (q . k_j)              j = first .. position, ascending
 *   out   = sum_j exp(s_j - max s) v_j / sum_j exp(s_j - max s) */
#include "attention/attention_internal.h"
#include "base/bf16.h"

#include <math.h>

/* Element i of a run of the page's type. */
static inline float kv_at(const struct rp_kv_layout *kv, const void *run, size_t i) {
    return kv->dtype == RP_DTYPE_F32 ? ((const float *)run)[i]
                                     : rp_bf16_to_f32(((const uint16_t *)run)[i]);
}

/* q . k_j for the key at `position`, d ascending. */
static float score(const struct rp_attention_args *args, const uint32_t *pages, uint32_t kv_head,
                   uint32_t position, const float *q) {
    const struct rp_kv_layout *kv = &args->kv;
    uint32_t in_page = position % kv->page_tokens;
    const void *run = rp_kv_run(kv, pages[position / kv->page_tokens], args->layer, 0, kv_head);
    float sum = 0.0f;
    for (uint32_t d = 0; d < args->head_dim; d++)
        sum += q[d] * kv_at(kv, run, (size_t)in_page * args->head_dim + d);
    return args->scale * sum;
}

static void attend(const struct rp_attention_args *args, uint32_t token, uint32_t head) {
    const struct rp_kv_layout *kv = &args->kv;
    const struct rp_live_row *row = rp_attention_live_row(&args->step, token);
    const uint32_t *pages = rp_attention_pages(&args->step, row);
    uint32_t position = args->step.positions[token], head_dim = args->head_dim;
    uint32_t first = rp_attention_first(args->window, position);
    uint32_t kv_head = head / (args->heads / args->kv_heads);
    const float *q = args->q + token * args->q_stride + (size_t)head * head_dim;
    float out[RP_ATTENTION_HEAD_DIM_MAX] = {0.0f};
    float max = -INFINITY, total = 0.0f;
    for (uint32_t j = first; j <= position; j++)
        max = fmaxf(max, score(args, pages, kv_head, j, q));
    for (uint32_t j = first; j <= position; j++) {
        const void *run = rp_kv_run(kv, pages[j / kv->page_tokens], args->layer, 1, kv_head);
        size_t at = (size_t)(j % kv->page_tokens) * head_dim;
        float weight = expf(score(args, pages, kv_head, j, q) - max);
        total += weight;
        for (uint32_t d = 0; d < head_dim; d++)
            out[d] += weight * kv_at(kv, run, at + d);
    }
    size_t at = token * args->out_stride + (size_t)head * head_dim;
    for (uint32_t d = 0; d < head_dim; d++) {
        if (args->out_dtype == RP_DTYPE_F32)
            ((float *)args->out)[at + d] = out[d] / total;
        else
            ((uint16_t *)args->out)[at + d] = rp_f32_to_bf16(out[d] / total);
    }
}

void rp_attention_scalar(const struct rp_attention_args *args, const struct rp_cpu_worker *worker) {
    struct rp_attention_line line = rp_attention_line(args);
    uint32_t group = args->heads / args->kv_heads;
    uint64_t at = 0;
    RP_ASSERT_CMP(args->head_dim, <=, RP_ATTENTION_HEAD_DIM_MAX);
    for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
        for (uint32_t t = 0; t < args->step.counts->token_count; t++) {
            uint64_t cost = rp_attention_token_cost(args, t);
            if (cost != 0 && rp_attention_is_mine(&line, at, worker))
                for (uint32_t g = 0; g < group; g++)
                    attend(args, t, kv_head * group + g);
            at += cost;
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

static void store_run(const struct rp_kv_layout *kv, void *run, size_t at, const float *from) {
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        if (kv->dtype == RP_DTYPE_F32)
            ((float *)run)[at + d] = from[d];
        else
            ((uint16_t *)run)[at + d] = rp_f32_to_bf16(from[d]);
    }
}

void rp_kv_write_range(const struct rp_kv_write_args *args, uint32_t begin, uint32_t end) {
    const struct rp_kv_layout *kv = &args->kv;
    for (uint32_t t = begin; t < end; t++) {
        const struct rp_live_row *row = rp_attention_live_row(&args->step, t);
        if (!row)
            continue;
        uint32_t position = args->step.positions[t];
        uint32_t page = rp_attention_pages(&args->step, row)[position / kv->page_tokens];
        size_t at = (size_t)(position % kv->page_tokens) * kv->head_dim;
        for (uint32_t head = 0; head < kv->kv_heads; head++) {
            size_t column = (size_t)head * kv->head_dim;
            store_run(kv, rp_kv_run(kv, page, args->layer, 0, head), at,
                      args->k + t * args->k_stride + column);
            store_run(kv, rp_kv_run(kv, page, args->layer, 1, head), at,
                      args->v + t * args->v_stride + column);
        }
    }
}
