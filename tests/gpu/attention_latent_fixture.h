/* attention_latent_fixture.h - sequences of latents in pages, steps with rows of them, the kernels'
 * output and its comparison with the scalar reference. Included once per test program. */
#ifndef RP_TESTS_GPU_ATTENTION_LATENT_FIXTURE_H
#define RP_TESTS_GPU_ATTENTION_LATENT_FIXTURE_H

#include "tests/gpu/attention_rows.h"

#define SLOTS  24
#define ROWS   400
#define TOKENS 400
#define BF16   RP_DTYPE_BF16
#define F32    RP_DTYPE_F32
#define INT8   RP_DTYPE_INT8
#define FP8    RP_DTYPE_FP8_E4M3

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
    config->limits.sm_count = rp_gpu_is_tiny() ? RP_MIN(sm_count, 7u) : sm_count;
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
        assert_true(all_poisoned(row + written, f.args.out_stride * element - written));
        if (!is_live(t))
            continue;
        rp_to_f32(got, row, f.args.out_dtype, width);
        double error = rp_relative_error(got, want, width);
        float ulp, worst = worst_of(got, want, width, &ulp);
        if (!(error <= (exact ? 1e-5 : 4e-3)) || !(worst <= 8 * ulp))
            fail_msg("%s, heads %u dims %u/%u page %u window %u position %u: error %g, %g ulp",
                     rp_dtype_name(f.shape.pages), f.args.heads, f.args.head_dim, f.args.value_dim,
                     f.shape.page_tokens, f.shape.window, f.args.step.positions[t], error,
                     (double)(worst / ulp));
    }
    rp_free(got);
    rp_free(truth.out);
}

#endif
