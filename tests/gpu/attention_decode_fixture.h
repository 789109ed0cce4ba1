/* attention_decode_fixture.h - sequences in pages of `page_type`, steps with rows of them, the
 * decode kernel's output and the scalar reference's. Included once per test program. */
#ifndef RP_TESTS_GPU_ATTENTION_DECODE_FIXTURE_H
#define RP_TESTS_GPU_ATTENTION_DECODE_FIXTURE_H

#include "tests/gpu/attention_rows.h"

#define SLOTS  40
#define ROWS   48
#define TOKENS 200

struct shape {
    uint32_t heads, kv_heads, head_dim, page_tokens, pages_per_slot;
    enum rp_dtype out_dtype;
    uint32_t pad; /* added to the strides */
};

/* Query head h has [h % 12]. */
static const float sinks[12] = {-6.0f, 1.5f,   0.25f, 9.0f, -0.5f, 3.0f,
                                20.0f, -30.0f, 2.0f,  0.0f, -1.0f, 5.0f};

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
    float sinks[32];
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
static bool has_sinks; /* of what is made from now on */

static int teardown(void **state) {
    (void)state;
    has_odd_sizes = has_sinks = false;
    drop();
    return 0;
}

/* Buffers for a step; every slot has all its pages, scattered over the pool. The layer's page
 * table is the second of three; the others have invalid pages. */
static void make(const struct shape *shape) {
    drop();
    f.shape = *shape;
    struct rp_attention_args *args = &f.args;
    const struct rp_step_config config = {.slot_count = SLOTS,
                                          .pages_per_slot = 3 * shape->pages_per_slot,
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
        for (uint32_t i = 0; i < 3 * shape->pages_per_slot; i++)
            args->step.slots[slot * args->step.slot_words + RP_SLOT_PAGES + i] =
                i / shape->pages_per_slot != 1 ? NO_PAGE
                                               : 1 + i % shape->pages_per_slot * SLOTS +
                                                     (slot * 7 + i % shape->pages_per_slot) % SLOTS;
    args->table = shape->pages_per_slot;
    args->heads = shape->heads;
    args->kv_heads = shape->kv_heads;
    args->head_dim = shape->head_dim;
    args->layer = LAYER;
    assert_true(shape->heads <= RP_ARRAY_COUNT(f.sinks));
    for (uint32_t h = 0; h < shape->heads; h++)
        f.sinks[h] = sinks[h % RP_ARRAY_COUNT(sinks)];
    args->sinks = has_sinks ? f.sinks : NULL;
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

static uint32_t page_of(uint32_t slot, uint32_t position) {
    const struct rp_attention_args *args = &f.args;
    return args->step.slots[(size_t)slot * args->step.slot_words + RP_SLOT_PAGES + args->table +
                            position / args->kv.page_tokens];
}

static unsigned char *run_at(uint32_t which, uint32_t slot, uint32_t position, uint32_t head) {
    return rp_kv_run(&f.args.kv, page_of(slot, position), LAYER, which, head);
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
    if (page_of(slot, position) == NO_PAGE)
        return;
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

/* Pages that lie before the last `kept` tokens are no longer the slot's. */
static void give_back(uint32_t slot, uint32_t kept) {
    uint32_t first = rp_kv_first_page(kept, f.shape.page_tokens, f.lengths[slot] - 1);
    for (uint32_t i = 0; i < first; i++)
        f.args.step.slots[slot * f.args.step.slot_words + RP_SLOT_PAGES + f.args.table + i] =
            NO_PAGE;
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
    struct rp_kv_write_args write = {
        .step = f.step.device, .kv = f.config.kv, .layer = LAYER, .table = f.args.table};
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
    config->tables = 3;
    config->windows[0] = 12345; /* another class besides the one in use */
    config->windows[1] = window;
    config->window_count = 2;
    config->workspace_bytes = rp_attention_cuda_workspace_bytes(config);
    config->workspace = rp_gpu_zeroed(config->workspace_bytes);
    args.window = window;
    if (args.sinks)
        args.sinks = rp_gpu_upload(f.sinks, args.heads * sizeof *f.sinks);
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
        float ulp, worst = worst_of(got, want, width, &ulp);
        if (!(error <= 4e-3) || !(worst <= 8 * ulp))
            fail_msg("%s, heads %u/%u dim %u page %u window %u position %u: error %g, %g ulp",
                     rp_dtype_name(page_type), args->heads, args->kv_heads, args->head_dim,
                     args->kv.page_tokens, window, args->step.positions[t], error,
                     (double)(worst / ulp));
    }
}

#endif
