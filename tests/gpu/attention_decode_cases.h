/* attention_decode_cases.h - the tests of decode attention for pages of `page_type`: bf16 in
 * test_attention_decode_cuda.c, 8 bits in test_attention_8_cuda.c. */
#ifndef RP_TESTS_GPU_ATTENTION_DECODE_CASES_H
#define RP_TESTS_GPU_ATTENTION_DECODE_CASES_H

#include "attention/attention_internal_cuda.h"
#include "base/bf16.h"
#include "device/quantize_row.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SLOTS  40
#define ROWS   48
#define TOKENS 200
#define LAYERS 2
#define LAYER  1

struct shape {
    uint32_t heads, kv_heads, head_dim, page_tokens, pages_per_slot;
    enum rp_dtype out_dtype;
    uint32_t pad; /* added to the strides */
};

static enum rp_dtype page_type = RP_DTYPE_BF16;

static struct {
    struct shape shape;
    struct rp_gpu_step step;
    struct rp_attention_cuda_config config;
    struct rp_attention_args args; /* the host's */
    struct rp_arena memory;
    size_t kv_bytes, out_bytes;
    unsigned char *kv_device; /* NULL: not uploaded since the last change */
    float *q;                 /* host */
    float *own[2]; /* (tokens, kv_heads * head_dim) K and V that are written right before */
    uint32_t lengths[SLOTS];
    uint32_t sequences[ROWS]; /* of a row */
} f;

static void drop(void) {
    rp_free_aligned(f.args.kv.base);
    rp_free(f.q);
    rp_free(f.args.out);
    rp_arena_deinit(&f.memory);
    if (f.step.host_state)
        rp_gpu_step_close(&f.step);
    rp_gpu_free_all();
    memset(&f, 0, sizeof f);
}

/* Magnitudes far from 1: queries out of f16's range, keys as small, values that grow and shrink
 * from key to key. */
static bool has_odd_sizes;

static int teardown(void **state) {
    (void)state;
    has_odd_sizes = false;
    drop();
    return 0;
}

/* Buffers for a step; every slot has all its pages, scattered over the pool. */
static void make(const struct shape *shape) {
    drop();
    f.shape = *shape;
    struct rp_attention_args *args = &f.args;
    const struct rp_step_config config = {.slot_count = SLOTS,
                                          .pages_per_slot = shape->pages_per_slot,
                                          .row_capacity = ROWS,
                                          .token_capacity = TOKENS,
                                          .logit_row_capacity = ROWS,
                                          .edit_capacity = 8,
                                          .prompt_ring_capacity = 256};
    rp_gpu_step_open(&f.step, &config);
    args->step = f.step.host;
    uint32_t width = shape->heads * shape->head_dim;
    assert_true(rp_kv_layout_init(&args->kv, LAYERS, shape->kv_heads, shape->head_dim,
                                  shape->page_tokens, page_type));
    uint32_t pages = 1 + SLOTS * shape->pages_per_slot;
    f.kv_bytes = args->kv.page_stride * pages;
    args->kv.base = rp_alloc_aligned(f.kv_bytes, 64);
    assert_non_null(args->kv.base);
    memset(args->kv.base, 0xFF, f.kv_bytes);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < shape->pages_per_slot; i++)
            args->step.slots[slot * args->step.slot_words + RP_SLOT_PAGES + i] =
                1 + i * SLOTS + (slot * 7 + i) % SLOTS;
    args->heads = shape->heads;
    args->kv_heads = shape->kv_heads;
    args->head_dim = shape->head_dim;
    args->layer = LAYER;
    args->scale = 1.0f / sqrtf((float)shape->head_dim);
    args->q_stride = args->out_stride = width + shape->pad;
    args->out_dtype = shape->out_dtype;
    f.out_bytes = TOKENS * args->out_stride * rp_dtype_bytes(shape->out_dtype);
    f.q = rp_alloc(TOKENS * args->q_stride * sizeof(float));
    args->q = f.q;
    args->out = rp_alloc(f.out_bytes);
    assert_true(f.q && args->out);
    memset(f.q, 0xFF, TOKENS * args->q_stride * sizeof(float));
    rp_gpu_limits(&f.config.limits);
}

static unsigned char *run_at(uint32_t which, uint32_t slot, uint32_t position, uint32_t head) {
    const struct rp_kv_layout *kv = &f.args.kv;
    const uint32_t *pages =
        f.args.step.slots + (size_t)slot * f.args.step.slot_words + RP_SLOT_PAGES;
    return rp_kv_run(kv, pages[position / kv->page_tokens], LAYER, which, head);
}

static float kv_value(uint32_t which, uint32_t sequence, uint32_t position, uint32_t head,
                      uint32_t d) {
    float x = rp_test_value_of(which, sequence, position, head, d) * (which == 0 ? 3.0f : 1.0f);
    if (!has_odd_sizes)
        return x;
    return which == 0 ? x * 0x1p-25f : ldexpf(x, (int)(position * 11 % 71) - 40 + (int)sequence);
}

/* Stores `length` tokens of the sequence in the slot's pages. */
static void store(uint32_t slot, uint32_t sequence, uint32_t length) {
    const struct rp_kv_layout *kv = &f.args.kv;
    float row[256];
    assert_true(length <= f.shape.pages_per_slot * f.shape.page_tokens);
    f.lengths[slot] = length;
    f.kv_device = NULL;
    for (uint32_t position = 0; position < length; position++)
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t head = 0; head < f.args.kv_heads; head++) {
                unsigned char *run = run_at(which, slot, position, head);
                uint32_t in_page = position % kv->page_tokens;
                size_t at = (size_t)in_page * kv->head_dim;
                for (uint32_t d = 0; d < kv->head_dim; d++)
                    row[d] = kv_value(which, sequence, position, head, d);
                if (kv->scales_at)
                    rp_kv_set_scale(
                        kv, run, in_page,
                        rp_quantize_row(row, RP_DTYPE_F32, kv->head_dim, kv->dtype, run + at));
                for (uint32_t d = 0; d < kv->head_dim && !kv->scales_at; d++)
                    ((uint16_t *)(void *)run)[at + d] = rp_f32_to_bf16(row[d]);
            }
}

/* NaN again in one token of every head. */
static void forget_token(uint32_t slot, uint32_t position) {
    const struct rp_kv_layout *kv = &f.args.kv;
    uint32_t in_page = position % kv->page_tokens;
    size_t bytes = (size_t)kv->head_dim * rp_dtype_bytes(kv->dtype);
    f.kv_device = NULL;
    for (uint32_t which = 0; which < 2; which++)
        for (uint32_t head = 0; head < f.args.kv_heads; head++) {
            unsigned char *run = run_at(which, slot, position, head);
            memset(run + in_page * bytes, 0xFF, bytes);
            if (kv->scales_at)
                memset(run + kv->scales_at + in_page * sizeof(float), 0xFF, sizeof(float));
        }
}

/* NaN again in all but the last `kept` tokens. */
static void forget(uint32_t slot, uint32_t kept) {
    for (uint32_t position = 0; position + kept < f.lengths[slot]; position++)
        forget_token(slot, position);
}

static void begin_step(void) {
    memset(f.args.step.counts, 0, sizeof *f.args.step.counts);
    memset(f.args.step.rows, 0, ROWS * sizeof *f.args.step.rows);
    memset(f.args.step.token_rows, 0xFF, TOKENS * sizeof *f.args.step.token_rows);
}

/* A row of the last `count` tokens of the slot's sequence. */
static void add_row(uint32_t slot, uint32_t sequence, uint32_t count, uint32_t flags) {
    struct rp_step_view *step = &f.args.step;
    uint32_t row = step->counts->row_count++, token = step->counts->token_count;
    bool finished = step->slots[slot * step->slot_words + RP_SLOT_FINISHED] != 0;
    f.sequences[row] = sequence;
    step->rows[row] = (struct rp_live_row){.slot = slot,
                                           .token_begin = token,
                                           .token_count = count,
                                           .kv_begin = f.lengths[slot] - count,
                                           .flags = finished ? 0 : flags};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = f.lengths[slot] - count + i;
        step->token_rows[token + i] = finished ? RP_ROW_NONE : row;
        step->positions[token + i] = finished ? 0 : position;
        for (uint32_t c = 0; c < f.args.heads * f.args.head_dim; c++)
            f.q[(token + i) * f.args.q_stride + c] =
                rp_test_value_of(2, sequence, position, 0, c) * (has_odd_sizes ? 0x1p25f : 1.0f);
    }
    step->counts->token_count += count;
}

static void add_padding(uint32_t count) { f.args.step.counts->token_count += count; }

/* The predecessors of a kernel that reads older keys early: a long one, and the one that writes K
 * and V of the step's own tokens. Both trigger their dependents immediately. */
static void write_own_keys(const struct rp_cuda_launch *attention) {
    struct rp_kv_write_args write = {.step = f.step.device, .kv = f.config.kv, .layer = LAYER};
    write.k_stride = write.v_stride = f.args.kv_heads * f.args.head_dim;
    write.k = rp_gpu_upload(f.own[0], TOKENS * write.k_stride * sizeof(float));
    write.v = rp_gpu_upload(f.own[1], TOKENS * write.v_stride * sizeof(float));
    const struct rp_kv_write_cuda op = {.rows = {f.step.device, RP_ROWS_TOKEN, TOKENS, false},
                                        .write = write};
    rp_gpu_synchronize();
    assert_int_equal(attention->run(attention->args, NULL), 0);
    assert_int_equal(rp_kv_write_cuda_run(&op, NULL), 0);
}

/* Plans and runs the decode kernel of this window on this many SMs; downloads the output. */
static void *run(uint32_t window, uint32_t sm_count, bool dependent) {
    struct rp_attention_cuda_config *config = &f.config;
    struct rp_attention_args args = f.args;
    struct rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    struct rp_error err;
    uint32_t count;
    rp_gpu_step_upload(&f.step);
    if (!f.kv_device)
        f.kv_device = rp_gpu_upload(f.args.kv.base, f.kv_bytes);
    config->limits.sm_count = sm_count;
    config->limits.dependent_launch = dependent;
    config->step = args.step = f.step.device;
    args.kv.base = f.kv_device;
    config->kv = args.kv;
    config->bucket = (struct rp_bucket){.tokens = TOKENS, .rows = ROWS, .logit_rows = ROWS};
    config->heads = args.heads;
    config->kv_heads = args.kv_heads;
    config->head_dim = args.head_dim;
    config->windows[0] = 12345; /* another class besides the one in use */
    config->windows[1] = window;
    config->window_count = 2;
    config->workspace_bytes = rp_attention_cuda_workspace_bytes(config);
    config->workspace = rp_gpu_zeroed(config->workspace_bytes);
    args.window = window;
    args.q = rp_gpu_upload(f.q, TOKENS * args.q_stride * sizeof(float));
    args.out = rp_gpu_poisoned(f.out_bytes);
    assert_int_equal(rp_attention_cuda_plan(config, &f.memory, launches, &count, &err), RP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(launches[0].run(launches[0].args, NULL), 0);
    assert_int_equal(rp_attention_cuda_lower(config, &args, &f.memory, launches, &count, &err),
                     RP_OK);
    bool found = false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(launches[i].kernel, "attention_decode") == 0) {
            if (f.own[0]) {
                struct rp_attention_cuda_args *early = (void *)(uintptr_t)launches[i].args;
                write_own_keys(&launches[i]);
                early->config.behind_product = true;
            }
            /* Twice: the second run starts with the first one's counters. */
            assert_int_equal(launches[i].run(launches[i].args, NULL), 0);
            assert_int_equal(launches[i].run(launches[i].args, NULL), 0);
            found = true;
        }
    assert_true(found);
    void *out = rp_arena_alloc(&f.memory, f.out_bytes);
    assert_non_null(out);
    rp_gpu_download(out, args.out, f.out_bytes);
    assert_true(rp_gpu_canaries_hold());
    return out;
}

static bool all_poisoned(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

static bool is_decoded(uint32_t row) { return (f.args.step.rows[row].flags & RP_ROW_DECODE) != 0; }

/* Output of all decode rows by the scalar reference, f32. */
static const float *truth_of(uint32_t window) {
    const struct rp_cpu_worker alone = {.index = 0, .count = 1};
    uint32_t *token_rows = f.args.step.token_rows, kept[TOKENS];
    struct rp_attention_args truth = f.args;
    truth.window = window;
    truth.out_dtype = RP_DTYPE_F32;
    truth.out = rp_arena_alloc(&f.memory, TOKENS * f.args.out_stride * sizeof(float));
    assert_non_null(truth.out);
    memcpy(kept, token_rows, sizeof kept);
    for (uint32_t t = 0; t < f.args.step.counts->token_count; t++)
        if (token_rows[t] != RP_ROW_NONE && !is_decoded(token_rows[t]))
            token_rows[t] = RP_ROW_NONE;
    if (f.args.step.counts->token_count != 0)
        rp_attention_scalar(&truth, &alone);
    memcpy(token_rows, kept, sizeof kept);
    return truth.out;
}

/* Every live decode row against the reference; every other byte is unchanged. */
static void check(uint32_t window, const void *out) {
    const struct rp_attention_args *args = &f.args;
    uint32_t width = args->heads * args->head_dim;
    size_t element = rp_dtype_bytes(args->out_dtype);
    const float *truth = truth_of(window);
    float got[8192];
    assert_true(width <= RP_ARRAY_COUNT(got));
    for (uint32_t t = 0; t < TOKENS; t++) {
        const unsigned char *row = (const unsigned char *)out + t * args->out_stride * element;
        const float *want = truth + t * args->out_stride;
        uint32_t index = args->step.token_rows[t];
        bool live = t < args->step.counts->token_count && index != RP_ROW_NONE && is_decoded(index);
        size_t written = live ? width * element : 0;
        assert_true(all_poisoned(row + written, args->out_stride * element - written));
        if (!live)
            continue;
        rp_to_f32(got, row, args->out_dtype, width);
        double error = rp_relative_error(got, want, width);
        float largest = 0, worst = 0;
        for (uint32_t c = 0; c < width; c++) {
            largest = fmaxf(largest, fabsf(want[c]));
            worst = fmaxf(worst, fabsf(want[c] - got[c]));
        }
        float ulp = exp2f(floorf(log2f(largest)) - 7.0f);
        if (!(error <= 4e-3) || !(worst <= 8 * ulp))
            fail_msg("%s, heads %u/%u dim %u page %u window %u position %u: error %g, %g ulp",
                     rp_dtype_name(page_type), args->heads, args->kv_heads, args->head_dim,
                     args->kv.page_tokens, window, args->step.positions[t], error,
                     (double)(worst / ulp));
    }
}

static void a_row_agrees_with_the_truth_at_lengths_around_pages_and_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1,    2,    15,   16,   17,   31,   32,  33,  63,   64,
                                       65,   66,   100,  127,  128,  129,  191, 192, 193,  255,
                                       256,  257,  383,  511,  512,  513,  640, 999, 1023, 1024,
                                       1025, 1500, 1919, 1920, 1921, 1999, 2000};
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_BF16, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 7 : 1) {
        store(i, i, lengths[i]);
        add_row(i, i, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
    }
    /* Tiny: blocks still process several heads and rows. */
    check(0, run(0, rp_gpu_is_tiny() ? 3 : f.config.limits.sm_count, true));
}

static void every_head_dim_group_page_size_and_output_type_agrees(void **state) {
    (void)state;
    static const uint32_t dims[] = {64, 96, 128, 256}, groups[] = {1, 2, 3, 4, 7, 8, 9, 16},
                          pages[] = {16, 32, 64, 128};
    uint32_t turn = 0;
    for (uint32_t d = 0; d < RP_ARRAY_COUNT(dims); d++)
        for (uint32_t g = 0; g < RP_ARRAY_COUNT(groups); g++, turn++) {
            if (rp_gpu_is_tiny() && g % 4 != 3)
                continue;
            uint32_t page = pages[(turn + d) % RP_ARRAY_COUNT(pages)];
            const struct shape shape = {groups[g] * 2, 2,
                                        dims[d],       page,
                                        512 / page,    turn % 2 ? RP_DTYPE_F32 : RP_DTYPE_BF16,
                                        turn % 3};
            make(&shape);
            begin_step();
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t longest = rp_gpu_is_tiny() ? 300 : 500;
                store(i, i, i == 0 ? 1 + turn : i == 1 ? 130 + turn : longest - turn * 3);
                add_row(i, i, 1, RP_ROW_DECODE);
            }
            check(0, run(0, 1 + turn * 5, turn % 2 == 0));
        }
}

static void queries_and_values_of_any_size_agree(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 16, RP_DTYPE_F32, 0};
    make(&shape);
    has_odd_sizes = true;
    begin_step();
    for (uint32_t i = 0; i < 8; i += rp_gpu_is_tiny() ? 3 : 1) {
        store(i, i, 40 + i * 130);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    /* And a row whose queries are all zero. */
    memset(f.q, 0, (size_t)f.args.heads * f.args.head_dim * sizeof(float));
    check(0, run(0, rp_gpu_is_tiny() ? 3 : f.config.limits.sm_count, true));
}

static void windows_begin_anywhere_and_nothing_before_them_is_read(void **state) {
    (void)state;
    static const uint32_t windows[] = {1000, 512, 300, 129, 128, 100, 64, 17, 16, 15, 2, 1};
    const struct shape shape = {8, 2, 64, 32, 32, RP_DTYPE_F32, 1};
    make(&shape);
    for (uint32_t i = 0; i < 12; i++)
        store(i, i, i == 0 ? 1 : 47 + i * 85);
    for (uint32_t w = 0; w < RP_ARRAY_COUNT(windows); w += rp_gpu_is_tiny() ? 5 : 1) {
        begin_step();
        for (uint32_t i = 0; i < (rp_gpu_is_tiny() ? 5u : 12u); i++) {
            add_row(i, i, 1, RP_ROW_DECODE);
            forget(i, windows[w]);
        }
        check(windows[w], run(windows[w], w % 2 ? 132 : 3, true));
    }
}

static void long_rows_have_wider_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {4095, 4096, 4097, 8192, 8193, 9999};
    const struct shape shape = {4, 1, 64, 64, 160, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 2 : 1) {
        store(i, i, lengths[i]);
        add_row(i, i, 1, RP_ROW_DECODE);
        if (rp_gpu_is_tiny() && i == 2)
            break;
    }
    check(0, run(0, f.config.limits.sm_count, true));
    check(4500, run(4500, 20, true));
}

static void prompt_rows_dead_rows_and_padding_are_left_alone(void **state) {
    (void)state;
    const struct shape shape = {12, 3, 128, 16, 20, RP_DTYPE_BF16, 0};
    make(&shape);
    for (uint32_t i = 0; i < 8; i++)
        store(i, i, 40 * i + 33);
    f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    begin_step();
    add_row(0, 0, 1, RP_ROW_DECODE);
    add_row(1, 1, 17, 0);
    add_row(2, 2, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
    add_row(3, 3, 1, RP_ROW_DECODE);
    add_row(4, 4, 30, RP_ROW_SAMPLE);
    add_row(5, 5, 1, RP_ROW_SAMPLE); /* a prompt's last token alone is not a decode row */
    add_row(6, 6, 1, RP_ROW_DECODE);
    add_padding(7);
    check(0, run(0, 132, true));
    begin_step();
    check(0, run(0, 132, true));
    begin_step();
    add_row(3, 3, 1, RP_ROW_DECODE);
    check(0, run(0, 132, true));
}

/* The output of the row that holds the sequence. */
static const void *row_of(const void *out, uint32_t sequence) {
    for (uint32_t row = 0; row < f.args.step.counts->row_count; row++)
        if (f.sequences[row] == sequence)
            return (const unsigned char *)out + f.args.step.rows[row].token_begin *
                                                    f.args.out_stride *
                                                    rp_dtype_bytes(f.args.out_dtype);
    fail();
    return NULL;
}

/* Four sequences among others, also prompt rows, in slots that depend on the turn. */
static void mixed_step(uint32_t turn, const uint32_t sequences[4]) {
    begin_step();
    for (uint32_t i = 4; i < 30; i++) {
        if (i % (5 + turn) == 0)
            add_row(i, i, 3, 0);
        else
            add_row(i, i, 1, RP_ROW_DECODE);
        if (i % 7 == 6)
            add_row(turn % 2 ? i / 7 : 30 + i / 7 * 3 % 4, sequences[i / 7], 1, RP_ROW_DECODE);
    }
}

static void a_row_has_the_same_bits_alone_in_any_batch_slot_and_grid(void **state) {
    (void)state;
    static const uint32_t grids[] = {1, 2, 5, 13, 66, 132, 500};
    static const uint32_t sequences[4] = {700, 701, 702, 703};
    static const uint32_t lengths[4] = {1, 200, 777, 2000};
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_F32, 0};
    make(&shape);
    size_t bytes = f.args.heads * f.args.head_dim * sizeof(float);
    for (uint32_t i = 0; i < 4; i++) {
        store(i, sequences[i], lengths[i]);
        store(30 + i * 3 % 4, sequences[i], lengths[i]);
    }
    for (uint32_t i = 4; i < 30; i++)
        store(i, i, 3 + i * 61 % (rp_gpu_is_tiny() ? 200 : 1900));
    for (uint32_t window = 0; window <= (rp_gpu_is_tiny() ? 0u : 600u); window += 600) {
        void *alone[4];
        for (uint32_t i = 0; i < 4; i++) {
            begin_step();
            add_row(i, sequences[i], 1, RP_ROW_DECODE);
            alone[i] = run(window, 132, true);
        }
        for (uint32_t g = rp_gpu_is_tiny() ? 1 : 0; g < RP_ARRAY_COUNT(grids);
             g += rp_gpu_is_tiny() ? 4 : 1) {
            mixed_step(g, sequences);
            for (uint32_t again = 0; again < 2; again++) {
                const void *out = run(window, grids[g], again != 0);
                for (uint32_t i = 0; i < 4; i++)
                    assert_memory_equal(row_of(out, sequences[i]), alone[i], bytes);
            }
        }
    }
}

static void a_nan_in_one_row_stays_there(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 8, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < 3; i++) {
        store(i, i, 300);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    size_t row = f.args.out_stride;
    const float *before = run(0, 132, true);
    for (size_t c = 0; c < row; c++)
        f.q[row + c] = NAN;
    const float *after = run(0, 132, true);
    assert_memory_equal(after, before, row * sizeof(float));
    assert_memory_equal(after + 2 * row, before + 2 * row, row * sizeof(float));
    for (size_t c = 0; c < row; c++)
        assert_true(isnan(after[row + c]));
}

static void older_keys_may_be_read_before_the_last_ones_are_written(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < 12; i++) {
        store(i, i, i == 0 ? 1 : i * (rp_gpu_is_tiny() ? 40 : 150) + i % 3);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    const uint32_t width = f.args.kv_heads * f.args.head_dim, row = f.args.out_stride;
    for (uint32_t sm_count = rp_gpu_is_tiny() ? 4 : 1; sm_count <= 125;
         sm_count += rp_gpu_is_tiny() ? 121 : 31) {
        const float *want = run(0, sm_count, true);
        for (uint32_t which = 0; which < 2; which++) {
            f.own[which] = rp_arena_calloc(&f.memory, TOKENS * width, sizeof(float));
            assert_non_null(f.own[which]);
            for (uint32_t i = 0; i < width * 12; i++) {
                uint32_t slot = i / width, column = i % width;
                f.own[which][i] = kv_value(which, slot, f.lengths[slot] - 1,
                                           column / f.args.head_dim, column % f.args.head_dim);
            }
        }
        for (uint32_t slot = 0; slot < 12; slot++)
            forget_token(slot, f.lengths[slot] - 1);
        f.kv_device = NULL;
        const float *got = run(0, sm_count, true);
        f.own[0] = f.own[1] = NULL;
        for (uint32_t i = 0; i < 12; i++)
            store(i, i, f.lengths[i]);
        assert_memory_equal(got, want, 12 * row * sizeof(float));
    }
}

#define DECODE_CASES                                                                               \
    cmocka_unit_test_teardown(a_row_agrees_with_the_truth_at_lengths_around_pages_and_splits,      \
                              teardown),                                                           \
        cmocka_unit_test_teardown(every_head_dim_group_page_size_and_output_type_agrees,           \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(queries_and_values_of_any_size_agree, teardown),                 \
        cmocka_unit_test_teardown(windows_begin_anywhere_and_nothing_before_them_is_read,          \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(long_rows_have_wider_splits, teardown),                          \
        cmocka_unit_test_teardown(prompt_rows_dead_rows_and_padding_are_left_alone, teardown),     \
        cmocka_unit_test_teardown(a_row_has_the_same_bits_alone_in_any_batch_slot_and_grid,        \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(a_nan_in_one_row_stays_there, teardown),                         \
        cmocka_unit_test_teardown(older_keys_may_be_read_before_the_last_ones_are_written,         \
                                  teardown)

#endif
