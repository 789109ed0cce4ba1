/* Goal: attention over pages of latents on a GPU agrees with the scalar reference for decode and
 * prompt rows, writes nothing else, and a row's bits depend on its sequence alone. Method: latents
 * and q are functions of (sequence, position, head), so a sequence can be in any slot, row and
 * pages; keys that no row may see are NaN and their pages invalid, outputs are poisoned, and the
 * number of blocks is varied, which moves every border between blocks. */
#include "attention/attention_internal_cuda.h"
#include "base/bf16.h"
#include "device/quantize_row.h"
#include "kvcache/kv_groups.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SLOTS   24
#define ROWS    32
#define TOKENS  400
#define LAYERS  2
#define LAYER   1 /* half of a layer's bytes is a plane: an odd one tells */
#define NO_PAGE 0x7FFFFFFFu
#define BF16    RP_DTYPE_BF16
#define F32     RP_DTYPE_F32
#define INT8    RP_DTYPE_INT8
#define FP8     RP_DTYPE_FP8_E4M3

struct shape {
    uint32_t heads, head_dim, value_dim, page_tokens;
    enum rp_dtype pages, out;
    uint32_t window, pad; /* pad: added to the strides */
    bool sinks;
    uint32_t length; /* of a sequence, at most */
};

static struct {
    struct shape shape;
    struct rp_gpu_step step;
    struct rp_attention_cuda_config config;
    struct rp_attention_args args; /* the host's */
    struct rp_arena memory;
    size_t kv_bytes, out_bytes;
    float *q;
    float sinks[128];
    uint32_t lengths[SLOTS];
    float *own; /* latents that kv_write stores right before attention; NULL: none */
} f;

static void drop(void) {
    rp_free_aligned(f.args.kv.base);
    rp_free(f.q);
    rp_free(f.own);
    rp_free(f.args.out);
    rp_arena_deinit(&f.memory);
    if (f.step.host_state)
        rp_gpu_step_close(&f.step);
    rp_gpu_free_all();
    memset(&f, 0, sizeof f);
}

static int teardown(void **state) {
    (void)state;
    drop();
    return 0;
}

static uint32_t pages_per_slot(void) { return RP_CEIL_DIV(f.shape.length, f.shape.page_tokens); }

static uint32_t *table_of(uint32_t slot) {
    return f.args.step.slots + (size_t)slot * f.args.step.slot_words + RP_SLOT_PAGES + f.args.table;
}

/* Every slot has all its pages, scattered over the pool, in the second of two tables. */
static void make(const struct shape *shape) {
    drop();
    f.shape = *shape;
    struct rp_attention_args *args = &f.args;
    uint32_t per_slot = pages_per_slot();
    const struct rp_step_config config = {.slot_count = SLOTS,
                                          .pages_per_slot = 2 * per_slot,
                                          .row_capacity = ROWS,
                                          .token_capacity = TOKENS,
                                          .logit_row_capacity = ROWS,
                                          .edit_capacity = 8,
                                          .prompt_ring_capacity = 256};
    rp_gpu_step_open(&f.step, &config);
    args->step = f.step.host;
    args->table = per_slot;
    args->heads = shape->heads;
    args->kv_heads = 1;
    args->head_dim = shape->head_dim;
    args->value_dim = shape->value_dim;
    args->window = shape->window;
    args->layer = LAYER;
    args->scale = 1.0f / sqrtf((float)shape->head_dim);
    args->q_stride = shape->heads * shape->head_dim + shape->pad;
    args->out_stride = shape->heads * shape->value_dim + shape->pad;
    args->out_dtype = shape->out;
    assert_true(shape->heads <= RP_ARRAY_COUNT(f.sinks));
    for (uint32_t h = 0; h < shape->heads; h++)
        f.sinks[h] = 6.0f * rp_test_value_of(7, 0, 0, h, 0);
    args->sinks = shape->sinks ? f.sinks : NULL;
    assert_true(rp_kv_layout_init_latent(&args->kv, LAYERS, shape->head_dim, shape->page_tokens,
                                         shape->pages));
    f.kv_bytes = args->kv.page_stride * (1 + (size_t)SLOTS * per_slot);
    f.out_bytes = TOKENS * args->out_stride * rp_dtype_bytes(shape->out);
    args->kv.base = rp_alloc_aligned(f.kv_bytes, 64);
    args->q = f.q = rp_alloc(TOKENS * args->q_stride * sizeof(float));
    args->out = rp_alloc(f.out_bytes);
    assert_true(args->kv.base && f.q && args->out);
    memset(args->kv.base, 0xFF, f.kv_bytes);
    memset(f.q, 0xFF, TOKENS * args->q_stride * sizeof(float));
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < per_slot; i++) {
            table_of(slot)[(int32_t)i - (int32_t)per_slot] = NO_PAGE;
            table_of(slot)[i] = 1 + i * SLOTS + (slot * 7 + i) % SLOTS;
        }
    rp_gpu_limits(&f.config.limits);
}

static void store_latent(uint32_t slot, uint32_t sequence, uint32_t position) {
    const struct rp_kv_layout *kv = &f.args.kv;
    uint32_t in_page = position % kv->page_tokens;
    unsigned char *run = rp_kv_run(kv, table_of(slot)[position / kv->page_tokens], LAYER, 0, 0);
    size_t at = (size_t)in_page * kv->head_dim;
    float row[RP_ATTENTION_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < kv->head_dim; d++)
        row[d] = 3.0f * rp_test_value_of(0, sequence, position, 0, d);
    if (kv->scales_at)
        rp_kv_set_scale(kv, run, in_page,
                        rp_quantize_row(row, F32, kv->head_dim, kv->dtype, run + at));
    for (uint32_t d = 0; d < kv->head_dim && !kv->scales_at; d++)
        rp_test_put(run, kv->dtype, at + d, row[d]);
}

/* The sequence's first `length` tokens; those that no row of its last `count` sees are NaN, and
 * their pages are no longer the slot's. */
static void store(uint32_t slot, uint32_t sequence, uint32_t length, uint32_t count) {
    uint32_t window = f.shape.window, begin = length - count;
    uint32_t first = window != 0 && begin >= window ? begin + 1 - window : 0;
    assert_true(length <= f.shape.length);
    f.lengths[slot] = length;
    for (uint32_t position = first; position < length; position++)
        store_latent(slot, sequence, position);
    for (uint32_t i = 0; i < rp_kv_first_page(window, f.shape.page_tokens, begin); i++)
        table_of(slot)[i] = NO_PAGE;
}

static void begin_step(void) {
    memset(f.args.step.counts, 0, sizeof *f.args.step.counts);
    memset(f.args.step.rows, 0, ROWS * sizeof *f.args.step.rows);
    memset(f.args.step.token_rows, 0xFF, TOKENS * sizeof *f.args.step.token_rows);
}

/* A row of `count` tokens of the slot's sequence, from position `begin`. */
static void add_row(uint32_t slot, uint32_t sequence, uint32_t begin, uint32_t count,
                    uint32_t flags) {
    struct rp_step_view *step = &f.args.step;
    uint32_t row = step->counts->row_count++, token = step->counts->token_count;
    bool finished = step->slots[slot * step->slot_words + RP_SLOT_FINISHED] != 0;
    assert_true(row < ROWS && token + count <= TOKENS);
    step->rows[row] = (struct rp_live_row){.slot = slot,
                                           .token_begin = token,
                                           .token_count = count,
                                           .kv_begin = begin,
                                           .flags = finished ? 0 : flags};
    for (uint32_t i = 0; i < count; i++) {
        step->token_rows[token + i] = finished ? RP_ROW_NONE : row;
        step->positions[token + i] = finished ? 0 : begin + i;
        for (uint32_t c = 0; c < f.args.heads * f.args.head_dim; c++)
            f.q[(token + i) * f.args.q_stride + c] = rp_test_value_of(2, sequence, begin + i, 0, c);
    }
    step->counts->token_count += count;
}

/* The last token as a decode row, and `count` last tokens as a prompt row. */
static void add_decode(uint32_t slot, uint32_t sequence, uint32_t length) {
    store(slot, sequence, length, 1);
    add_row(slot, sequence, length - 1, 1, RP_ROW_DECODE);
}
static void add_prompt(uint32_t slot, uint32_t sequence, uint32_t length, uint32_t count) {
    store(slot, sequence, length, count);
    add_row(slot, sequence, length - count, count, RP_ROW_SAMPLE);
}

/* Plans and runs all kernels on this many SMs; downloads the output. */
static const unsigned char *run(uint32_t sm_count, bool dependent) {
    struct rp_attention_cuda_config *config = &f.config;
    struct rp_attention_args args = f.args;
    struct rp_cuda_launch launches[RP_ATTENTION_LAUNCHES_MAX];
    struct rp_error err;
    uint32_t count;
    rp_gpu_step_upload(&f.step);
    config->limits.sm_count = sm_count;
    config->limits.dependent_launch = dependent;
    config->step = args.step = f.step.device;
    args.kv.base = rp_gpu_upload(f.args.kv.base, f.kv_bytes);
    config->kv = args.kv;
    config->bucket = (struct rp_bucket){.tokens = TOKENS, .rows = ROWS, .logit_rows = ROWS};
    config->heads = args.heads;
    config->kv_heads = 1;
    config->head_dim = args.head_dim;
    config->value_dim = args.value_dim;
    config->tables = 2;
    config->windows[0] = 12345; /* another class besides the one in use */
    config->windows[1] = args.window;
    config->window_count = 2;
    config->workspace_bytes = rp_attention_cuda_workspace_bytes(config);
    config->workspace = rp_gpu_zeroed(RP_MAX(config->workspace_bytes, (size_t)1));
    args.sinks = args.sinks ? rp_gpu_upload(f.sinks, args.heads * sizeof *f.sinks) : NULL;
    args.q = rp_gpu_upload(f.q, TOKENS * args.q_stride * sizeof(float));
    args.out = rp_gpu_poisoned(f.out_bytes);
    assert_int_equal(rp_attention_cuda_plan(config, &f.memory, launches, &count, &err), RP_OK);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(launches[i].run(launches[i].args, NULL), 0);
    assert_int_equal(rp_attention_cuda_lower(config, &args, &f.memory, launches, &count, &err),
                     RP_OK);
    assert_true(count > 0);
    for (uint32_t i = 0; i < 2 * count; i++) { /* twice: with the first run's counters */
        const struct rp_cuda_launch *launch = &launches[i % count];
        if (f.own && i >= count && strcmp(launch->kernel, "attention_latent") == 0) {
            /* Behind what writes the step's own keys. */
            struct rp_kv_write_cuda write = {
                .rows = {f.step.device, RP_ROWS_TOKEN, TOKENS, !dependent},
                .write = {.step = f.step.device,
                          .kv = args.kv,
                          .k = rp_gpu_upload(f.own, TOKENS * f.args.head_dim * sizeof *f.own),
                          .k_stride = f.args.head_dim,
                          .layer = LAYER,
                          .table = f.args.table}};
            rp_gpu_synchronize();
            assert_int_equal(launch->run(launch->args, NULL), 0); /* a long kernel ahead of it */
            assert_int_equal(rp_kv_write_cuda_run(&write, NULL), 0);
            ((struct rp_attention_cuda_args *)(uintptr_t)launch->args)->config.behind_product =
                true;
        }
        assert_int_equal(launch->run(launch->args, NULL), 0);
    }
    void *out = rp_arena_alloc(&f.memory, f.out_bytes);
    assert_non_null(out);
    rp_gpu_download(out, args.out, f.out_bytes);
    assert_true(rp_gpu_canaries_hold());
    return out;
}

/* Latents of the step's own tokens, as kv_write gets them; NaN in the pages. */
static float *take_own_keys(void) {
    const uint32_t cols = f.args.head_dim;
    float *k = rp_calloc((size_t)TOKENS * cols, sizeof *k);
    assert_non_null(k);
    for (uint32_t t = 0; t < f.args.step.counts->token_count; t++) {
        const struct rp_live_row *row = &f.args.step.rows[f.args.step.token_rows[t]];
        uint32_t position = f.args.step.positions[t], page = f.args.kv.page_tokens;
        unsigned char *run =
            rp_kv_run(&f.args.kv, table_of(row->slot)[position / page], LAYER, 0, 0);
        size_t bytes = (size_t)cols * rp_dtype_bytes(f.args.kv.dtype);
        memset(run + position % page * bytes, 0xFF, bytes);
        for (uint32_t d = 0; d < cols; d++) /* the sequence of a slot is its index here */
            k[t * cols + d] = 3.0f * rp_test_value_of(0, row->slot, position, 0, d);
    }
    return k;
}

static bool all_poisoned(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

static bool is_live(uint32_t token) {
    return token < f.args.step.counts->token_count && f.args.step.token_rows[token] != RP_ROW_NONE;
}

/* Every live row against the reference; every other byte is unchanged. */
static void check(const unsigned char *out) {
    const struct rp_cpu_worker alone = {.index = 0, .count = 1};
    struct rp_attention_args truth = f.args;
    uint32_t width = f.args.heads * f.args.value_dim;
    size_t element = rp_dtype_bytes(f.args.out_dtype);
    /* Kernels of f32 arithmetic, else of bf16 operands. */
    bool exact = !rp_attention_latent_cuda_supports(&f.config) && f.args.out_dtype == F32;
    float *got = rp_calloc(width, sizeof *got);
    truth.out_dtype = F32;
    truth.out = rp_calloc(TOKENS * f.args.out_stride, sizeof(float));
    assert_true(got && truth.out);
    if (f.args.step.counts->token_count)
        rp_attention_scalar(&truth, &alone);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const unsigned char *row = out + t * f.args.out_stride * element;
        const float *want = (const float *)truth.out + t * f.args.out_stride;
        size_t written = is_live(t) ? width * element : 0;
        float largest = 0, worst = 0;
        assert_true(all_poisoned(row + written, f.args.out_stride * element - written));
        if (!is_live(t))
            continue;
        rp_to_f32(got, row, f.args.out_dtype, width);
        double error = rp_relative_error(got, want, width);
        for (uint32_t c = 0; c < width; c++) {
            largest = fmaxf(largest, fabsf(want[c]));
            worst = fmaxf(worst, fabsf(want[c] - got[c]));
        }
        float ulp = exp2f(floorf(log2f(largest)) - 7.0f);
        if (!(error <= (exact ? 1e-5 : 4e-3)) || !(worst <= 8 * ulp))
            fail_msg("%s, heads %u dims %u/%u page %u window %u position %u: error %g, %g ulp",
                     rp_dtype_name(f.shape.pages), f.args.heads, f.args.head_dim, f.args.value_dim,
                     f.shape.page_tokens, f.shape.window, f.args.step.positions[t], error,
                     (double)(worst / ulp));
    }
    rp_free(got);
    rp_free(truth.out);
}

static const enum rp_dtype page_types[] = {BF16, INT8, FP8};

static void decode_rows_agree_with_the_reference_around_tiles_and_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1,   2,   31,  32,  33,  63,  64,   65,   127,  128, 129,
                                       160, 255, 256, 257, 384, 513, 1023, 1025, 1999, 2049};
    for (size_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        const struct shape shape = {.heads = 16,
                                    .head_dim = 576,
                                    .value_dim = 512,
                                    .page_tokens = 64,
                                    .pages = page_types[type],
                                    .out = BF16,
                                    .length = 2100};
        make(&shape);
        begin_step();
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 6 : 1)
            add_decode(i, i, lengths[i]);
        check(run(rp_gpu_is_tiny() ? 3 : f.config.limits.sm_count, true));
    }
}

static void every_number_of_heads_page_size_and_type_agrees(void **state) {
    (void)state;
    static const uint32_t heads[] = {1, 5, 15, 16, 17, 20, 32, 33, 64, 65, 100, 128};
    static const uint32_t pages[] = {16, 64, 32, 128, 1};
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(heads); i += rp_gpu_is_tiny() ? 4 : 1) {
        const struct shape shape = {.heads = heads[i],
                                    .head_dim = 576,
                                    .value_dim = 512,
                                    .page_tokens = pages[i % RP_ARRAY_COUNT(pages)],
                                    .pages = page_types[i % RP_ARRAY_COUNT(page_types)],
                                    .out = i % 2 ? F32 : BF16,
                                    .window = i % 4 == 3 ? 40 + i : 0,
                                    .pad = i % 3,
                                    .sinks = i % 5 == 1,
                                    .length = 700};
        make(&shape);
        begin_step();
        add_decode(0, 0, 1 + i);
        add_prompt(1, 1, 45 + i, 45 + i);
        add_decode(2, 2, 130 + i);
        add_prompt(3, 3, 210 + i, 7);
        add_decode(4, 4, 680 + i);
        check(run(1 + i * 11, i % 2 == 0));
    }
}

static void other_sizes_and_f32_pages_agree(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {3, 40, 32, 16, F32, F32, 0, 1, false, 100},
        {17, 40, 32, 4, BF16, BF16, 9, 0, true, 100},
        {4, 576, 512, 64, F32, F32, 33, 0, false, 100},
        {2, 640, 512, 64, BF16, F32, 0, 0, true, 90},
        {5, 23, 16, 8, INT8, F32, 0, 3, false, 100},
        {8, 128, 64, 64, BF16, F32, 0, 0, false, 90},
        {6, 320, 256, 32, FP8, F32, 0, 0, true, 100},
        {8, 64, 48, 64, BF16, F32, 0, 0, false, 90},
    };
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i += rp_gpu_is_tiny() ? 3 : 1) {
        make(&shapes[i]);
        begin_step();
        add_decode(0, 0, 1);
        add_prompt(1, 1, 61, 61);
        add_decode(2, 2, 88);
        check(run(f.config.limits.sm_count, true));
    }
}

/* Bits of a row in this step. */
static const unsigned char *row_of(const unsigned char *out, uint32_t token) {
    return out + token * f.args.out_stride * rp_dtype_bytes(f.args.out_dtype);
}

static void company_slot_and_number_of_blocks_change_no_bit(void **state) {
    (void)state;
    static const uint32_t lengths[] = {700, 129, 1, 1500, 64, 333}, blocks[] = {1, 2, 5, 50, 132};
    for (uint32_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        const struct shape shape = {.heads = type == 1 ? 40 : 16,
                                    .head_dim = 576,
                                    .value_dim = 512,
                                    .page_tokens = 64,
                                    .pages = page_types[type],
                                    .out = F32,
                                    .sinks = type == 2,
                                    .length = 1600};
        size_t bytes = (size_t)shape.heads * shape.value_dim * sizeof(float);
        unsigned char *alone = rp_alloc(bytes * RP_ARRAY_COUNT(lengths));
        assert_non_null(alone);
        make(&shape);
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++) {
            begin_step();
            add_decode(i, i, lengths[i]);
            memcpy(alone + i * bytes, row_of(run(132, true), 0), bytes);
        }
        for (uint32_t b = 0; b < RP_ARRAY_COUNT(blocks); b++) {
            begin_step();
            for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
                add_decode((i + b) % SLOTS, i, lengths[i]);
            const unsigned char *out = run(blocks[b], b % 2 == 0);
            for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
                if (memcmp(row_of(out, i), alone + i * bytes, bytes) != 0)
                    fail_msg("%s: row %u has other bits with %u SMs",
                             rp_dtype_name(page_types[type]), i, blocks[b]);
        }
        rp_free(alone);
    }
}

static void bits_do_not_depend_on_where_a_prompt_is_cut(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {16, 576, 512, 64, BF16, F32, 0, 0, false, 200},
        {20, 576, 512, 16, BF16, F32, 50, 0, true, 200},
        {16, 576, 512, 64, INT8, F32, 0, 0, false, 200},
    };
    static const uint32_t chunks[] = {77, 64, 13, 1};
    const uint32_t length = 150;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        size_t bytes = (size_t)shapes[i].heads * shapes[i].value_dim * sizeof(float);
        unsigned char *whole = rp_alloc(bytes * length);
        assert_non_null(whole);
        make(&shapes[i]);
        begin_step();
        add_prompt(0, 9, length, length);
        const unsigned char *out = run(132, true);
        for (uint32_t t = 0; t < length; t++)
            memcpy(whole + t * bytes, row_of(out, t), bytes);
        for (uint32_t c = 0; c < RP_ARRAY_COUNT(chunks); c += rp_gpu_is_tiny() ? 2 : 1)
            for (uint32_t begin = 0; begin < length; begin += chunks[c] == 1 ? 31 : chunks[c]) {
                uint32_t count = RP_MIN(chunks[c], length - begin);
                begin_step();
                add_row(0, 9, begin, count, 0);
                out = run(1 + begin % 9, true);
                for (uint32_t t = 0; t < count; t++)
                    if (memcmp(row_of(out, t), whole + (begin + t) * bytes, bytes) != 0)
                        fail_msg("a chunk of %u from %u changes position %u", count, begin,
                                 begin + t);
            }
        rp_free(whole);
    }
}

static void older_keys_may_be_read_early_and_the_rows_own_key_may_not(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 32, 33, 64, 65, 97, 128, 129, 300, 1000, 1025};
    for (size_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        const struct shape shape = {.heads = type == 2 ? 20 : 16,
                                    .head_dim = 576,
                                    .value_dim = 512,
                                    .page_tokens = 64,
                                    .pages = page_types[type],
                                    .out = F32,
                                    .length = 1100};
        make(&shape);
        begin_step();
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
            add_decode(i, i, lengths[i]);
        f.own = take_own_keys();
        const unsigned char *out = run(f.config.limits.sm_count, true);
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
            store_latent(i, i, lengths[i] - 1); /* for the reference */
        check(out);
    }
}

static void dead_rows_padding_and_empty_steps_are_left_alone(void **state) {
    (void)state;
    const struct shape shape = {.heads = 16,
                                .head_dim = 576,
                                .value_dim = 512,
                                .page_tokens = 64,
                                .pages = BF16,
                                .out = BF16,
                                .pad = 8,
                                .length = 300};
    make(&shape);
    begin_step();
    check(run(132, true));
    f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    f.args.step.slots[5 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    add_decode(0, 0, 33);
    add_prompt(1, 1, 90, 17);
    add_decode(3, 3, 200);
    add_prompt(5, 5, 70, 30);
    add_decode(6, 6, 290);
    f.args.step.counts->token_count += 7; /* padding */
    check(run(132, true));
    begin_step(); /* prompt rows alone */
    add_prompt(1, 1, 90, 17);
    check(run(2, false));
}

static void a_nan_key_shows_in_the_rows_that_see_it_alone(void **state) {
    (void)state;
    const struct shape shape = {.heads = 16,
                                .head_dim = 576,
                                .value_dim = 512,
                                .page_tokens = 64,
                                .pages = BF16,
                                .out = F32,
                                .length = 200};
    make(&shape);
    begin_step();
    add_decode(0, 0, 200);
    add_decode(1, 1, 150);
    unsigned char *key = rp_kv_run(&f.args.kv, table_of(0)[1], LAYER, 0, 0);
    memset(key + 6 * 576 * 2, 0xFF, 576 * 2); /* position 70 */
    const unsigned char *out = run(132, true);
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t c = 0; c < 16 * 512; c += 37)
            assert_int_equal(isnan(rp_test_get(row_of(out, t), F32, c)) != 0, t == 0);
}

static void kv_write_stores_one_row_a_token_and_nothing_else(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {16, 576, 512, 64, BF16, BF16, 0, 0, false, 300},
        {2, 576, 512, 16, INT8, BF16, 0, 0, false, 300},
        {2, 576, 512, 32, FP8, BF16, 0, 0, false, 300},
        {2, 40, 32, 16, F32, F32, 0, 0, false, 300},
        {2, 23, 16, 1, BF16, F32, 0, 0, false, 300},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        make(&shapes[i]);
        const uint32_t cols = shapes[i].head_dim, stride = cols + 3;
        float *k = rp_calloc((size_t)TOKENS * stride, sizeof *k);
        unsigned char *got = rp_alloc(f.kv_bytes);
        assert_true(k && got);
        memset(k, 0xFF, (size_t)TOKENS * stride * sizeof *k);
        f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
        begin_step();
        add_row(0, 0, 131, 1, RP_ROW_DECODE);
        add_row(3, 3, 9, 4, 0);
        add_row(1, 1, 3, 70, 0);
        f.args.step.counts->token_count += 5; /* padding */
        for (uint32_t t = 0; t < TOKENS; t++)
            for (uint32_t c = 0; c < cols && is_live(t); c++)
                k[t * stride + c] = rp_test_value_of(4, 0, t, 0, c);
        rp_gpu_step_upload(&f.step);
        struct rp_kv_write_args host = {.step = f.args.step,
                                        .kv = f.args.kv,
                                        .k = k,
                                        .k_stride = stride,
                                        .layer = LAYER,
                                        .table = f.args.table};
        struct rp_kv_write_cuda gpu = {.rows = {f.step.device, RP_ROWS_TOKEN, TOKENS, false},
                                       .write = host};
        gpu.write.step = f.step.device;
        gpu.write.kv.base = rp_gpu_upload(f.args.kv.base, f.kv_bytes);
        gpu.write.k = rp_gpu_upload(k, (size_t)TOKENS * stride * sizeof *k);
        rp_kv_write_range(&host, 0, f.args.step.counts->token_count);
        assert_int_equal(rp_kv_write_cuda_run(&gpu, NULL), 0);
        rp_gpu_download(got, gpu.write.kv.base, f.kv_bytes);
        assert_memory_equal(got, f.args.kv.base, f.kv_bytes);
        assert_true(rp_gpu_canaries_hold());
        rp_free(k);
        rp_free(got);
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

RP_GPU_TEST_MAIN(NULL, NULL, TEST(decode_rows_agree_with_the_reference_around_tiles_and_splits),
                 TEST(every_number_of_heads_page_size_and_type_agrees),
                 TEST(other_sizes_and_f32_pages_agree),
                 TEST(company_slot_and_number_of_blocks_change_no_bit),
                 TEST(bits_do_not_depend_on_where_a_prompt_is_cut),
                 TEST(older_keys_may_be_read_early_and_the_rows_own_key_may_not),
                 TEST(dead_rows_padding_and_empty_steps_are_left_alone),
                 TEST(a_nan_key_shows_in_the_rows_that_see_it_alone),
                 TEST(kv_write_stores_one_row_a_token_and_nothing_else))
