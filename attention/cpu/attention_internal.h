/* attention_internal.h - visible keys of a token and the distribution of work: shared by the
 * reference and the fast variants, so that they cannot disagree. */
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

/* Keys are processed in blocks at multiples of it. */
#define RP_ATTENTION_BLOCK_KEYS 64u

/* The plane in which V lies: K's own in pages of latents. */
static inline uint32_t rp_attention_value_plane(const struct rp_attention_args *args) {
    return args->value_dim ? 0 : 1;
}

/* The row of a token, or NULL when the token is dead: padding, or of a finished slot. Flags are not
 * enough: a chunk in the middle of a prompt has none. */
static inline const struct rp_live_row *rp_attention_live_row(const struct rp_step_view *step,
                                                              uint32_t token) {
    uint32_t index = step->token_rows[token];
    if (index == RP_ROW_NONE)
        return NULL;
    const struct rp_live_row *row = &step->rows[index];
    const uint32_t *slot = step->slots + (size_t)row->slot * step->slot_words;
    return row->flags == 0 && slot[RP_SLOT_FINISHED] != 0 ? NULL : row;
}

/* The page table of a row's slot that begins at entry `table`. */
static inline const uint32_t *rp_attention_pages(const struct rp_step_view *step,
                                                 const struct rp_live_row *row, uint32_t table) {
    return step->slots + (size_t)row->slot * step->slot_words + RP_SLOT_PAGES + table;
}

/* First position that a token at `position` sees. */
static inline uint32_t rp_attention_first(uint32_t window, uint32_t position) {
    return window != 0 && position >= window ? position + 1 - window : 0;
}

/* End of the keys that a token may see. A non-causal program also sees later tokens of the step;
 * such a prompt is computed in one step. */
static inline uint32_t rp_attention_end(const struct rp_attention_args *args, uint32_t token) {
    const struct rp_live_row *row = &args->step.rows[args->step.token_rows[token]];
    if (!args->mask || rp_mask_is_causal(args->mask))
        return args->step.positions[token] + 1;
    return row->kv_begin + row->token_count;
}

/* Number of tokens from `token` on that belong to one sequence, at most `limit`. */
static inline uint32_t rp_attention_piece_tokens(const struct rp_step_view *step, uint32_t token,
                                                 uint32_t limit) {
    uint32_t count = 1;
    while (count < limit && token + count < step->counts->token_count &&
           step->token_rows[token + count] == step->token_rows[token])
        count++;
    return count;
}

/* attention_blocks.c: estimates the keys that `count` tokens read under a mask program, with a few
 * classifications. */
uint64_t rp_attention_masked_length(const struct rp_attention_args *args, uint32_t token,
                                    uint32_t count);

/* The work of a step is a sequence of items, unit by unit and piece by piece, each weighted by the
 * number of keys that it reads. A unit is a KV head, or some of the query heads that read it.
 * Worker i computes the items that begin in the i-th equal share of the total. Balanced to within
 * one item, whatever the mixture of decode rows and prompt chunks. */
#define RP_ATTENTION_LENGTHS 1024u
struct rp_attention_line {
    uint64_t unit_length; /* of all tokens of one unit */
    uint64_t total;
    /* With a program: exact for the first items of a unit only, since classifying takes time;
     * the others are estimated without the program. */
    uint32_t lengths[RP_ATTENTION_LENGTHS];
};

/* Tokens of one sequence; 0: dead rows. */
static inline uint64_t rp_attention_item_length(const struct rp_attention_args *args,
                                                uint32_t token, uint32_t count, bool exact) {
    /* Fixed cost of a token, in units of keys: loading q, storing, dividing. */
    const uint64_t fixed = 8;
    uint64_t length = fixed * count;
    if (!rp_attention_live_row(&args->step, token))
        return 0;
    if (args->mask && exact)
        return length + rp_attention_masked_length(args, token, count);
    for (uint32_t i = token; i < token + count; i++) {
        uint32_t position = args->step.positions[i];
        length += position + 1 - (args->mask ? 0 : rp_attention_first(args->window, position));
    }
    return length;
}

/* Item `index` of a unit. */
static inline uint64_t rp_attention_line_length(const struct rp_attention_line *line,
                                                const struct rp_attention_args *args,
                                                uint32_t index, uint32_t token, uint32_t count) {
    return args->mask && index < RP_ATTENTION_LENGTHS
               ? line->lengths[index]
               : rp_attention_item_length(args, token, count, false);
}

/* Items have at most `limit` tokens. */
static inline void rp_attention_line_begin(struct rp_attention_line *line,
                                           const struct rp_attention_args *args, uint32_t limit,
                                           uint32_t units) {
    uint32_t count, index = 0;
    line->unit_length = 0;
    for (uint32_t t = 0; t < args->step.counts->token_count; t += count, index++) {
        bool exact = index < RP_ATTENTION_LENGTHS;
        count = rp_attention_piece_tokens(&args->step, t, limit);
        uint64_t length = rp_attention_item_length(args, t, count, exact);
        if (args->mask && exact)
            line->lengths[index] = (uint32_t)length;
        line->unit_length += length;
    }
    line->total = line->unit_length * units;
}

/* Whether the item that begins at offset `at` belongs to this worker. */
static inline bool rp_attention_is_mine(const struct rp_attention_line *line, uint64_t at,
                                        const struct rp_cpu_worker *worker) {
    return at * worker->count / line->total == worker->index;
}

#endif
