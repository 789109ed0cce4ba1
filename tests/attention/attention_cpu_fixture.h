/* attention_cpu_fixture.h - pages, slots and steps for tests of attention: q, k and v are functions
 * of (slot, position, head), pages hold NaN where nothing was stored. Included by one file each. */
#ifndef TESTS_ATTENTION_ATTENTION_CPU_FIXTURE_H
#define TESTS_ATTENTION_ATTENTION_CPU_FIXTURE_H

#include "attention/attention.h"
#include "attention/cpu/attention_internal.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLOTS      4
#define TOKENS_MAX 400
#define LAYERS     2
#define LAYER      1
#define PAD        3 /* odd strides */

struct fixture {
    struct rp_attention_args args;
    struct rp_live_counts counts;
    struct rp_live_row rows[16];
    uint32_t positions[TOKENS_MAX], token_rows[TOKENS_MAX];
    uint32_t page_count;
    size_t out_elements;
    float *q, *out, *expect; /* expect: (slot, position, heads * head_dim) */
    double *want;            /* (position, heads * head_dim) of slot 0 */
};

static const enum rp_dtype kv_dtypes[] = {RP_DTYPE_F32, RP_DTYPE_BF16, RP_DTYPE_FP8_E4M3,
                                          RP_DTYPE_INT8};

static inline float kv_unrounded(uint32_t kv, uint32_t slot, uint32_t position, uint32_t head,
                                 uint32_t d) {
    return rp_test_value_of(kv, slot, position, head, d) * (kv == 0 ? 3.0f : 1.0f);
}

/* One token and head in 8 bits; the result is the scale. */
static inline float kv_quantized(const struct fixture *f, uint32_t kv, uint32_t slot,
                                 uint32_t position, uint32_t head, unsigned char *quantized) {
    float row[RP_ATTENTION_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < f->args.head_dim; d++)
        row[d] = kv_unrounded(kv, slot, position, head, d);
    return rp_quantize_row(row, RP_DTYPE_F32, f->args.head_dim, f->args.kv.dtype, quantized);
}

/* What a page holds for it, as f32. */
static inline float kv_value(const struct fixture *f, uint32_t kv, uint32_t slot, uint32_t position,
                             uint32_t head, uint32_t d) {
    /* The last token asked for: its scale hangs on the whole row. */
    static struct {
        uint32_t key[6];
        float scale;
        unsigned char quantized[RP_ATTENTION_HEAD_DIM_MAX];
    } last;
    float value = kv_unrounded(kv, slot, position, head, d);
    if (!f->args.kv.scales_at)
        return f->args.kv.dtype == RP_DTYPE_BF16 ? rp_round_bf16(value) : value;
    const uint32_t key[6] = {
        kv, slot, position, head, f->args.head_dim, (uint32_t)f->args.kv.dtype};
    if (memcmp(key, last.key, sizeof key) != 0) {
        last.scale = kv_quantized(f, kv, slot, position, head, last.quantized);
        memcpy(last.key, key, sizeof key);
    }
    return rp_quantized_to_f32(last.quantized, f->args.kv.dtype, d) * last.scale;
}

static inline float q_value(uint32_t slot, uint32_t position, uint32_t head, uint32_t d) {
    return rp_test_value_of(2, slot, position, head, d);
}

static inline int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static inline void drop(struct fixture *f) {
    rp_free_aligned(f->args.kv.base);
    rp_free(f->args.step.slots);
    rp_free(f->q);
    rp_free(f->out);
    rp_free(f->expect);
    rp_free(f->want);
    memset(f, 0, sizeof *f);
}

static inline int teardown(void **state) {
    drop(*state);
    rp_free(*state);
    return 0;
}

/* Pages, slots and buffers for SLOTS sequences of up to `length` tokens. Page tables are
 * scattered. */
static inline void make(struct fixture *f, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                        uint32_t page_tokens, enum rp_dtype dtype, uint32_t length) {
    drop(f);
    struct rp_attention_args *args = &f->args;
    assert_true(rp_kv_layout_init(&args->kv, LAYERS, kv_heads, head_dim, page_tokens, dtype));
    uint32_t per_slot = RP_CEIL_DIV(length, page_tokens);
    f->page_count = 1 + SLOTS * per_slot;
    args->kv.base = rp_alloc_aligned(args->kv.page_stride * f->page_count, 64);
    assert_non_null(args->kv.base);
    memset(args->kv.base, 0xFF,
           args->kv.page_stride * f->page_count); /* NaN, or quantized values of a scale NaN */
    struct rp_step_view *step = &args->step;
    step->config.slot_count = SLOTS;
    step->config.pages_per_slot = per_slot;
    step->slot_words = (uint32_t)RP_SLOT_PAGES + per_slot;
    step->slots = rp_calloc((size_t)SLOTS * step->slot_words, sizeof(uint32_t));
    assert_non_null(step->slots);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < per_slot; i++)
            step->slots[slot * step->slot_words + RP_SLOT_PAGES + i] =
                1 + (i * SLOTS + (slot + i) % SLOTS);
    step->counts = &f->counts;
    step->rows = f->rows;
    step->positions = f->positions;
    step->token_rows = f->token_rows;
    args->heads = heads;
    args->kv_heads = kv_heads;
    args->head_dim = head_dim;
    args->layer = LAYER;
    args->scale = 1.0f / sqrtf((float)head_dim);
    args->q_stride = heads * head_dim + PAD;
    args->out_stride = heads * head_dim + PAD;
    f->out_elements = TOKENS_MAX * args->out_stride;
    f->q = rp_alloc(TOKENS_MAX * args->q_stride * sizeof(float));
    f->out = rp_alloc(f->out_elements * sizeof(float));
    f->expect = rp_calloc((size_t)SLOTS * length * heads * head_dim, sizeof(float));
    assert_true(f->q && f->out && f->expect);
    args->q = f->q;
    args->out = f->out;
}

static inline unsigned char *kv_at(struct fixture *f, uint32_t kv, uint32_t slot, uint32_t position,
                                   uint32_t head) {
    const struct rp_kv_layout *layout = &f->args.kv;
    const uint32_t *pages =
        f->args.step.slots + (size_t)slot * f->args.step.slot_words + RP_SLOT_PAGES;
    size_t token = (size_t)(position % layout->page_tokens) * layout->head_dim;
    return rp_kv_run(layout, pages[position / layout->page_tokens], LAYER, kv, head) +
           token * rp_dtype_bytes(layout->dtype);
}

/* K or V of one token and head into its page. */
static inline void store_row(struct fixture *f, uint32_t kv, uint32_t slot, uint32_t position,
                             uint32_t head) {
    const struct rp_kv_layout *layout = &f->args.kv;
    unsigned char *to = kv_at(f, kv, slot, position, head);
    if (layout->scales_at) {
        uint32_t in_page = position % layout->page_tokens;
        rp_kv_set_scale(layout, to - (size_t)in_page * layout->head_dim, in_page,
                        kv_quantized(f, kv, slot, position, head, to));
        return;
    }
    for (uint32_t d = 0; d < f->args.head_dim; d++) {
        float value = kv_value(f, kv, slot, position, head, d);
        if (layout->dtype == RP_DTYPE_F32)
            memcpy(to + d * 4, &value, 4);
        else
            memcpy(to + d * 2, &(uint16_t){rp_f32_to_bf16(value)}, 2);
    }
}

static inline void store_kv(struct fixture *f, uint32_t slot, uint32_t begin, uint32_t end) {
    for (uint32_t position = begin; position < end; position++)
        for (uint32_t kv = 0; kv < 2; kv++)
            for (uint32_t head = 0; head < f->args.kv_heads; head++)
                store_row(f, kv, slot, position, head);
}

static inline void begin_step(struct fixture *f) { memset(&f->counts, 0, sizeof f->counts); }

/* A row of `count` tokens from position `begin` of the slot. flags 0: a chunk in mid-prompt. */
static inline void add_row(struct fixture *f, uint32_t slot, uint32_t begin, uint32_t count,
                           uint32_t flags) {
    uint32_t row = f->counts.row_count++, token = f->counts.token_count;
    f->rows[row] = (struct rp_live_row){.slot = slot,
                                        .token_begin = token,
                                        .token_count = count,
                                        .kv_begin = begin,
                                        .flags = flags};
    for (uint32_t i = 0; i < count; i++) {
        f->token_rows[token + i] = row;
        f->positions[token + i] = begin + i;
        for (uint32_t head = 0; head < f->args.heads; head++)
            for (uint32_t d = 0; d < f->args.head_dim; d++)
                f->q[(token + i) * f->args.q_stride + head * f->args.head_dim + d] =
                    q_value(slot, begin + i, head, d);
    }
    f->counts.token_count += count;
}

static inline void add_padding(struct fixture *f, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        f->token_rows[f->counts.token_count] = RP_ROW_NONE;
        f->positions[f->counts.token_count++] = 0;
    }
}

/* All workers, one after the other: attention has no barrier inside. */
static inline void run(struct fixture *f, rp_attention_fn fn, uint32_t workers) {
    memset(f->out, 0xFF, f->out_elements * sizeof(float));
    for (uint32_t w = 0; w < workers; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = workers};
        fn(&f->args, &worker);
    }
}

static inline bool is_untouched(const float *out, size_t count) {
    const unsigned char *bytes = (const unsigned char *)out;
    for (size_t i = 0; i < count * sizeof *out; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

#endif
