/* attention_internal.h - which keys a token sees, and who computes what: shared by the truth and
 * the fast variants, so that they cannot disagree. */
#ifndef RP_ATTENTION_ATTENTION_INTERNAL_H
#define RP_ATTENTION_ATTENTION_INTERNAL_H

#include "attention/attention.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define RP_ATTENTION_HAS_SIMD 1
/* NULL when `isa` has no kernel for these pages. */
rp_attention_fn rp_attention_select_simd(enum rp_cpu_isa isa, const struct rp_kv_layout *kv);
#else
#define RP_ATTENTION_HAS_SIMD 0
#endif

/* Larger heads than any model we know has. */
#define RP_ATTENTION_HEAD_DIM_MAX 512u

/* The row of a token, or NULL when the token is dead: padding, or of a finished slot. Flags alone do
 * not say it: a chunk in the middle of a prompt has none. */
static inline const struct rp_live_row *rp_attention_live_row(const struct rp_step_view *step,
                                                              uint32_t token) {
    uint32_t index = step->token_rows[token];
    if (index == RP_ROW_NONE)
        return NULL;
    const struct rp_live_row *row = &step->rows[index];
    const uint32_t *slot = step->slots + (size_t)row->slot * step->slot_words;
    return row->flags == 0 && slot[RP_SLOT_FINISHED] != 0 ? NULL : row;
}

/* The page table of a row's slot. */
static inline const uint32_t *rp_attention_pages(const struct rp_step_view *step,
                                                 const struct rp_live_row *row) {
    return step->slots + (size_t)row->slot * step->slot_words + RP_SLOT_PAGES;
}

/* First position that a token at `position` sees. */
static inline uint32_t rp_attention_first(uint32_t window, uint32_t position) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

/* The work of a step is a line of items, KV head by KV head and token by token, each as long as the
 * keys that it reads; worker i takes the items that begin in the i-th equal part of the line.
 * Balanced to within one item, whatever the mixture of decode rows and prompt chunks. */
struct rp_attention_line {
    uint64_t head_length; /* of all tokens of one KV head */
    uint64_t total;
};

static inline uint64_t rp_attention_token_cost(const struct rp_attention_args *args,
                                               uint32_t token) {
    /* What a token costs beside its keys, in keys: loading q, storing, dividing. */
    const uint64_t fixed = 8;
    uint32_t position = args->step.positions[token];
    if (!rp_attention_live_row(&args->step, token))
        return 0;
    return position + 1 - rp_attention_first(args->window, position) + fixed;
}

static inline struct rp_attention_line rp_attention_line(const struct rp_attention_args *args) {
    struct rp_attention_line line = {0, 0};
    for (uint32_t t = 0; t < args->step.counts->token_count; t++)
        line.head_length += rp_attention_token_cost(args, t);
    line.total = line.head_length * args->kv_heads;
    return line;
}

/* Whether the item that begins at `at` on the line is this worker's. */
static inline bool rp_attention_is_mine(const struct rp_attention_line *line, uint64_t at,
                                        const struct rp_cpu_worker *worker) {
    return at * worker->count / line->total == worker->index;
}

#endif
