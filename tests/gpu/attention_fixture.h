/* attention_fixture.h - sequences whose q, k and v are functions of (slot, position, head), on
 * the host and on the GPU; shared by the tests of attention kernels.
 *
 * Pages are NaN where the step's rows may not read. A slot has two page tables, of which the layer
 * reads the second. The first has invalid pages alone, the second has them after a sequence's last
 * page and before the pages that a row's window reaches. q of dead tokens is NaN, and outputs are
 * poisoned. */
#ifndef RP_TESTS_GPU_ATTENTION_FIXTURE_H
#define RP_TESTS_GPU_ATTENTION_FIXTURE_H

#include "attention/attention_internal_cuda.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "kvcache/kv_groups.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_SLOTS  4
#define FIXTURE_TOKENS 1024 /* of a step */
#define FIXTURE_ROWS   16
#define FIXTURE_LAYERS 2
#define FIXTURE_LAYER  1
#define BF16           RP_DTYPE_BF16
#define F32            RP_DTYPE_F32
#define INT8           RP_DTYPE_INT8
#define FP8            RP_DTYPE_FP8_E4M3

struct fixture_shape {
    uint32_t heads, kv_heads, head_dim, page_tokens, window;
    enum rp_dtype kv, out;
    uint32_t length; /* of every sequence, at most */
};

/* Fixtures that are opened from now on have sinks, until the test ends. */
static bool fixture_has_sinks;

#define FIXTURE_HEAD_DIM_MAX 512
#define FIXTURE_NO_PAGE      0x7FFFFFFFu

/* Query head h has [h % 12]. */
static const float fixture_sinks[12] = {-6.0f, 1.5f,   0.25f, 9.0f, -0.5f, 3.0f,
                                        20.0f, -30.0f, 2.0f,  0.0f, -1.0f, 5.0f};

struct fixture {
    struct fixture_shape shape;
    struct rp_gpu_step step;
    struct rp_attention_args host;      /* for the reference: host pointers */
    struct rp_attention_cuda_args call; /* for the kernels */
    size_t pages_bytes, q_bytes, out_bytes;
    unsigned char *got; /* out, downloaded */
    float *expect;      /* (slot, position, heads * head_dim): the expected bits of a row */
    float sinks[64];
};

static inline void check_cuda(int error) {
    if (error != 0)
        fail_msg("%s", cudaGetErrorString((cudaError_t)error));
}

static inline uint32_t *fixture_slot(struct fixture *f, uint32_t slot) {
    return f->step.host.slots + (size_t)slot * f->step.host.slot_words;
}

static inline void fixture_close(struct fixture *f) {
    if (f->step.host_state)
        rp_gpu_step_close(&f->step);
    rp_free_aligned(f->host.kv.base);
    rp_free((void *)f->host.q);
    rp_free(f->host.out);
    rp_free(f->got);
    rp_free(f->expect);
    rp_gpu_free_all();
    memset(f, 0, sizeof *f);
}

/* The GPU's half: pages, q, out and the plan's lists. */
static inline void fixture_open_gpu(struct fixture *f) {
    struct rp_attention_cuda_args *call = &f->call;
    call->args = f->host;
    call->args.step = f->step.device;
    call->args.kv.base = rp_gpu_poisoned(f->pages_bytes);
    call->args.q = rp_gpu_poisoned(f->q_bytes);
    call->args.out = rp_gpu_poisoned(f->out_bytes);
    if (f->host.sinks)
        call->args.sinks = rp_gpu_upload(f->sinks, f->shape.heads * sizeof *f->sinks);
    rp_gpu_limits(&call->config.limits);
    call->config.step = f->step.device;
    call->config.kv = call->args.kv;
    call->config.heads = f->shape.heads;
    call->config.kv_heads = f->shape.kv_heads;
    call->config.head_dim = f->shape.head_dim;
    call->config.tables = 2;
    call->config.windows[0] = f->shape.window;
    call->config.window_count = 1;
    call->rows = RP_ATTENTION_ALL_ROWS;
    call->workspace.tile_capacity = FIXTURE_TOKENS + FIXTURE_ROWS;
    call->workspace.claims = rp_gpu_zeroed(RP_ATTENTION_CLAIMS * sizeof(uint32_t));
    call->workspace.plans[0].head = rp_gpu_zeroed(sizeof(struct rp_attention_plan_head));
    call->workspace.plans[0].rows =
        rp_gpu_poisoned(FIXTURE_ROWS * sizeof(struct rp_attention_plan_row));
    call->workspace.plans[0].tiles =
        rp_gpu_poisoned(call->workspace.tile_capacity * sizeof(struct rp_attention_plan_tile));
}

static inline uint32_t fixture_pages_per_slot(const struct fixture *f) {
    return RP_CEIL_DIV(f->shape.length, f->shape.page_tokens);
}

/* Scattered pages. */
static inline void fixture_fill_tables(struct fixture *f) {
    for (uint32_t slot = 0; slot < FIXTURE_SLOTS; slot++) {
        uint32_t *pages = fixture_slot(f, slot) + RP_SLOT_PAGES;
        for (uint32_t i = 0; i < f->step.host.config.pages_per_slot; i++)
            pages[i] = FIXTURE_NO_PAGE;
        for (uint32_t i = 0; i < fixture_pages_per_slot(f); i++)
            pages[f->host.table + i] = 1 + (i * FIXTURE_SLOTS + (slot + i) % FIXTURE_SLOTS);
    }
}

/* An odd window gives odd strides. */
static inline void fixture_open(struct fixture *f, const struct fixture_shape *shape) {
    fixture_close(f);
    f->shape = *shape;
    uint32_t per_slot = RP_CEIL_DIV(shape->length, shape->page_tokens);
    struct rp_step_config config = {.slot_count = FIXTURE_SLOTS,
                                    .pages_per_slot = 2 * (per_slot + 3),
                                    .row_capacity = FIXTURE_ROWS,
                                    .token_capacity = FIXTURE_TOKENS,
                                    .logit_row_capacity = FIXTURE_ROWS,
                                    .edit_capacity = 16,
                                    .prompt_ring_capacity = 16};
    rp_gpu_step_open(&f->step, &config);
    struct rp_attention_args *host = &f->host;
    uint32_t columns = shape->heads * shape->head_dim + (shape->window % 2 == 1 ? 3 : 8);
    *host = (struct rp_attention_args){.step = f->step.host,
                                       .q_stride = columns,
                                       .out_stride = columns,
                                       .out_dtype = shape->out,
                                       .heads = shape->heads,
                                       .kv_heads = shape->kv_heads,
                                       .head_dim = shape->head_dim,
                                       .layer = FIXTURE_LAYER,
                                       .table = per_slot + 3,
                                       .window = shape->window,
                                       .scale = 1.0f / sqrtf((float)shape->head_dim)};
    assert_true(rp_kv_layout_init(&host->kv, FIXTURE_LAYERS, shape->kv_heads, shape->head_dim,
                                  shape->page_tokens, shape->kv));
    f->pages_bytes = host->kv.page_stride * (1 + FIXTURE_SLOTS * per_slot);
    f->q_bytes = FIXTURE_TOKENS * host->q_stride * sizeof(float);
    f->out_bytes = FIXTURE_TOKENS * host->out_stride * sizeof(float);
    host->kv.base = rp_alloc_aligned(f->pages_bytes, 64);
    host->q = rp_alloc(f->q_bytes);
    host->out = rp_alloc(f->out_bytes);
    f->got = rp_alloc(f->out_bytes);
    f->expect =
        rp_calloc((size_t)FIXTURE_SLOTS * shape->length * shape->heads * shape->head_dim, 4);
    assert_true(host->kv.base && host->q && host->out && f->got && f->expect);
    assert_true(shape->heads <= RP_ARRAY_COUNT(f->sinks));
    for (uint32_t h = 0; h < shape->heads; h++)
        f->sinks[h] = fixture_sinks[h % RP_ARRAY_COUNT(fixture_sinks)];
    host->sinks = fixture_has_sinks ? f->sinks : NULL;
    fixture_fill_tables(f);
    fixture_open_gpu(f);
}

static inline unsigned char *fixture_run_at(struct fixture *f, uint32_t kv, uint32_t slot,
                                            uint32_t position, uint32_t head) {
    const struct rp_kv_layout *layout = &f->host.kv;
    const uint32_t *pages = fixture_slot(f, slot) + RP_SLOT_PAGES + f->host.table;
    uint32_t page = pages[position / layout->page_tokens];
    return rp_kv_run(layout, page, FIXTURE_LAYER, kv, head);
}

static inline unsigned char *fixture_kv_at(struct fixture *f, uint32_t kv, uint32_t slot,
                                           uint32_t position, uint32_t head) {
    const struct rp_kv_layout *layout = &f->host.kv;
    size_t token = (size_t)(position % layout->page_tokens) * layout->head_dim;
    return fixture_run_at(f, kv, slot, position, head) + token * rp_dtype_bytes(layout->dtype);
}

static inline void fixture_store_row(struct fixture *f, uint32_t kv, uint32_t slot,
                                     uint32_t position, uint32_t head) {
    const struct rp_kv_layout *layout = &f->host.kv;
    unsigned char *to = fixture_kv_at(f, kv, slot, position, head);
    float row[FIXTURE_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < layout->head_dim; d++)
        row[d] = rp_test_value_of(kv, slot, position, head, d) * (kv == 0 ? 3.0f : 1.0f);
    if (layout->scales_at)
        rp_kv_set_scale(layout, fixture_run_at(f, kv, slot, position, head),
                        position % layout->page_tokens,
                        rp_quantize_row(row, RP_DTYPE_F32, layout->head_dim, layout->dtype, to));
    for (uint32_t d = 0; d < layout->head_dim && !layout->scales_at; d++)
        if (f->shape.kv == RP_DTYPE_F32)
            ((float *)to)[d] = row[d];
        else
            ((uint16_t *)to)[d] = rp_f32_to_bf16(row[d]);
}

static inline void fixture_store_kv(struct fixture *f, uint32_t slot, uint32_t begin,
                                    uint32_t end) {
    for (uint32_t position = begin; position < end; position++)
        for (uint32_t kv = 0; kv < 2; kv++)
            for (uint32_t head = 0; head < f->shape.kv_heads; head++)
                fixture_store_row(f, kv, slot, position, head);
}

/* An empty step; every page holds NaN. */
static inline void fixture_begin(struct fixture *f) {
    memset(f->step.host.counts, 0, sizeof *f->step.host.counts);
    memset((void *)f->host.q, 0xFF, f->q_bytes);
    memset(f->host.kv.base, 0xFF, f->pages_bytes);
    fixture_fill_tables(f);
    for (uint32_t slot = 0; slot < FIXTURE_SLOTS; slot++)
        fixture_slot(f, slot)[RP_SLOT_FINISHED] = 0;
    for (uint32_t t = 0; t < FIXTURE_TOKENS; t++) {
        f->step.host.token_rows[t] = RP_ROW_NONE;
        f->step.host.positions[t] = 0;
    }
}

/* A row of `count` tokens from position `begin`; K and V are stored where visible to them. Pages
 * that none of them sees are given back. */
static inline void fixture_add_row(struct fixture *f, uint32_t slot, uint32_t begin, uint32_t count,
                                   uint32_t flags) {
    struct rp_step_view *step = &f->step.host;
    uint32_t index = step->counts->row_count++, token = step->counts->token_count;
    bool finished = fixture_slot(f, slot)[RP_SLOT_FINISHED] != 0;
    uint32_t window = f->shape.window;
    step->rows[index] = (struct rp_live_row){.slot = slot,
                                             .token_begin = token,
                                             .token_count = count,
                                             .kv_begin = begin,
                                             .flags = finished ? 0 : flags};
    step->counts->token_count += count;
    for (uint32_t i = 0; i < count; i++) {
        step->token_rows[token + i] = finished ? RP_ROW_NONE : index;
        step->positions[token + i] = finished ? 0 : begin + i;
        float *q = (float *)f->host.q + (token + i) * f->host.q_stride;
        for (uint32_t head = 0; head < f->shape.heads && !finished; head++)
            for (uint32_t d = 0; d < f->shape.head_dim; d++)
                q[head * f->shape.head_dim + d] = rp_test_value_of(2, slot, begin + i, head, d);
    }
    if (finished)
        return;
    fixture_store_kv(f, slot, window != 0 && begin >= window ? begin + 1 - window : 0,
                     begin + count);
    for (uint32_t i = 0; i < rp_kv_first_page(window, f->shape.page_tokens, begin); i++)
        fixture_slot(f, slot)[RP_SLOT_PAGES + f->host.table + i] = FIXTURE_NO_PAGE;
}

static inline void fixture_add_padding(struct fixture *f, uint32_t count) {
    f->step.host.counts->token_count += count;
}

static inline void fixture_plan(struct fixture *f) {
    const struct rp_attention_plan_cuda plan = {
        .config = f->call.config,
        .workspace = f->call.workspace,
        .tile_queries = rp_attention_prefill_cuda_tile(&f->call.config),
        .pairs = rp_attention_prefill_cuda_pairs(&f->call.config)};
    check_cuda(rp_attention_plan_cuda_run(&plan, NULL));
}

/* The step on the GPU; the bucket has room for `extra` tokens more. */
static inline void fixture_run(struct fixture *f, rp_cuda_run run, uint32_t extra) {
    f->call.config.bucket = (struct rp_bucket){
        .tokens = RP_MIN(f->step.host.counts->token_count + extra, FIXTURE_TOKENS),
        .rows = f->step.host.counts->row_count + (extra ? 2 : 0)};
    rp_gpu_step_upload(&f->step);
    fixture_plan(f);
    check_cuda(
        cudaMemcpy(f->call.args.kv.base, f->host.kv.base, f->pages_bytes, cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy((void *)f->call.args.q, f->host.q, f->q_bytes, cudaMemcpyHostToDevice));
    check_cuda(cudaMemset(f->call.args.out, 0xFF, f->out_bytes));
    check_cuda(run(&f->call, NULL));
    rp_gpu_download(f->got, f->call.args.out, f->out_bytes);
    assert_true(rp_gpu_canaries_hold());
}

static inline size_t fixture_out_size(const struct fixture *f) {
    return f->shape.out == RP_DTYPE_F32 ? 4 : 2;
}

static inline bool fixture_untouched(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

/* Whether this launch has to compute the token. */
static inline bool fixture_is_computed(const struct fixture *f, uint32_t token) {
    const struct rp_step_view *step = &f->step.host;
    if (token >= step->counts->token_count || step->token_rows[token] == RP_ROW_NONE)
        return false;
    uint32_t kind = step->rows[step->token_rows[token]].flags & RP_ROW_DECODE
                        ? RP_ATTENTION_DECODE_ROWS
                        : RP_ATTENTION_PROMPT_ROWS;
    return (f->call.rows & kind) != 0;
}

/* Rows that are not computed, and bytes between rows, are unchanged. */
static inline void fixture_check_untouched(const struct fixture *f, const char *what) {
    size_t size = fixture_out_size(f), cols = (size_t)f->shape.heads * f->shape.head_dim;
    for (uint32_t t = 0; t < FIXTURE_TOKENS; t++) {
        const unsigned char *row = f->got + t * f->host.out_stride * size;
        size_t skip = fixture_is_computed(f, t) ? cols * size : 0;
        if (!fixture_untouched(row + skip, f->host.out_stride * size - skip))
            fail_msg("%s: token %u: written where nothing may be", what, t);
    }
}

/* Against the reference: the norm of the difference, and the largest difference in bf16 ulps of
 * the head's largest value (f32 pages: relative to it). */
static inline void fixture_check_truth(struct fixture *f, double norm_limit, double worst_limit) {
    struct rp_cpu_worker worker = {.index = 0, .count = 1};
    size_t dim = f->shape.head_dim, size = fixture_out_size(f);
    double difference = 0, total = 1e-300, worst = 0;
    float got[FIXTURE_HEAD_DIM_MAX], want[FIXTURE_HEAD_DIM_MAX];
    memset(f->host.out, 0xFF, f->out_bytes);
    rp_attention_scalar(&f->host, &worker);
    for (uint32_t t = 0; t < FIXTURE_TOKENS; t++)
        for (uint32_t head = 0; head < f->shape.heads && fixture_is_computed(f, t); head++) {
            size_t at = (t * f->host.out_stride + head * dim) * size;
            float largest = 0;
            rp_to_f32(got, f->got + at, f->shape.out, dim);
            rp_to_f32(want, (unsigned char *)f->host.out + at, f->shape.out, dim);
            for (size_t d = 0; d < dim; d++)
                largest = fmaxf(largest, fabsf(want[d]));
            double unit =
                f->shape.kv != RP_DTYPE_F32 ? ldexp(1.0, ilogbf(largest) - 7) : (double)largest;
            for (size_t d = 0; d < dim; d++) {
                double x = (double)got[d] - (double)want[d];
                if (!(fabs(x) <= worst_limit * unit))
                    fail_msg("token %u head %u column %zu: %g instead of %g", t, head, d,
                             (double)got[d], (double)want[d]);
                worst = fmax(worst, fabs(x) / unit);
                difference += x * x;
                total += (double)want[d] * (double)want[d];
            }
        }
    double norm = sqrt(difference / total);
    printf("    %s heads %u/%u dim %zu pages %u window %u%s: error %.2e, worst %.2e\n",
           rp_dtype_name(f->shape.kv), f->shape.heads, f->shape.kv_heads, dim, f->shape.page_tokens,
           f->shape.window, f->host.sinks ? " sinks" : "", norm, worst);
    if (!(norm <= norm_limit))
        fail_msg("relative error %g", norm);
    fixture_check_untouched(f, "the truth");
}

/* A prompt and a decode row by the kernel for any shape. */
static inline void fixture_check_generic(struct fixture *f, const struct fixture_shape *shape,
                                         double norm_limit, double worst_limit) {
    fixture_open(f, shape);
    fixture_begin(f);
    fixture_add_row(f, 2, 0, shape->length, 0);
    fixture_add_row(f, 0, shape->length - 1, 1, RP_ROW_DECODE);
    fixture_run(f, rp_attention_generic_cuda_run, 3);
    fixture_check_truth(f, norm_limit, worst_limit);
}

static inline unsigned char *fixture_expected(struct fixture *f, uint32_t slot, uint32_t position) {
    return (unsigned char *)(f->expect + ((size_t)slot * f->shape.length + position) *
                                             f->shape.heads * f->shape.head_dim);
}

/* Stores the result as the expected bits of every other step. */
static inline void fixture_keep(struct fixture *f) {
    size_t size = fixture_out_size(f);
    for (uint32_t t = 0; t < f->step.host.counts->token_count; t++)
        if (fixture_is_computed(f, t))
            memcpy(fixture_expected(f, f->step.host.rows[f->step.host.token_rows[t]].slot,
                                    f->step.host.positions[t]),
                   f->got + t * f->host.out_stride * size,
                   (size_t)f->shape.heads * f->shape.head_dim * size);
}

static inline void fixture_check_bits(struct fixture *f, const char *what) {
    size_t size = fixture_out_size(f);
    for (uint32_t t = 0; t < f->step.host.counts->token_count; t++) {
        if (!fixture_is_computed(f, t))
            continue;
        uint32_t slot = f->step.host.rows[f->step.host.token_rows[t]].slot;
        if (memcmp(f->got + t * f->host.out_stride * size,
                   fixture_expected(f, slot, f->step.host.positions[t]),
                   (size_t)f->shape.heads * f->shape.head_dim * size) != 0)
            fail_msg("%s changes the bits of slot %u position %u", what, slot,
                     f->step.host.positions[t]);
    }
    fixture_check_untouched(f, what);
}

/* One prompt of `length` tokens in chunks of each size, against the stored bits. */
static inline void fixture_check_chunks(struct fixture *f, rp_cuda_run run, uint32_t length,
                                        const uint32_t *chunks, size_t count) {
    char what[32];
    for (size_t c = 0; c < count; c++)
        for (uint32_t begin = 0; begin < length; begin += chunks[c]) {
            fixture_begin(f);
            fixture_add_row(f, 1, begin, RP_MIN(chunks[c], length - begin), 0);
            fixture_run(f, run, begin % 2 ? 40 : 0);
            snprintf(what, sizeof what, "a chunk of %u", chunks[c]);
            fixture_check_bits(f, what);
        }
}

/* Every shape's prompt of its full length against the reference, over pages of this type. */
static inline void fixture_check_prompts(struct fixture *f, const struct fixture_shape *shapes,
                                         size_t count, enum rp_dtype kv) {
    for (size_t i = 0; i < count; i++) {
        struct fixture_shape shape = shapes[i];
        shape.kv = kv;
        if (rp_gpu_is_tiny())
            shape.length = RP_MIN(shape.length, 150u);
        fixture_open(f, &shape);
        fixture_begin(f);
        fixture_add_row(f, 2, 0, shape.length, RP_ROW_SAMPLE);
        fixture_run(f, rp_attention_prefill_cuda_run, 0);
        fixture_check_truth(f, 4e-3, 8);
    }
}

/* A whole prompt in one step, stored as the expected bits of every other step. */
static inline void fixture_keep_prompt(struct fixture *f, rp_cuda_run run, uint32_t slot,
                                       uint32_t length) {
    fixture_begin(f);
    fixture_add_row(f, slot, 0, length, 0);
    fixture_run(f, run, 0);
    fixture_keep(f);
}

/* A NaN key at position 70 of K/V head 1 shows in that group's heads from there on, and nowhere
 * else. */
static inline void fixture_check_nan_key(struct fixture *f, enum rp_dtype kv) {
    const struct fixture_shape shape = {4, 2, 128, 64, 0, kv, RP_DTYPE_F32, 200};
    fixture_open(f, &shape);
    fixture_begin(f);
    fixture_add_row(f, 0, 0, 200, 0);
    if (f->host.kv.scales_at)
        rp_kv_set_scale(&f->host.kv, fixture_run_at(f, 0, 0, 70, 1), 70 % 64, NAN);
    else
        memset(fixture_kv_at(f, 0, 0, 70, 1), 0xFF, 4);
    fixture_run(f, rp_attention_prefill_cuda_run, 0);
    for (uint32_t t = 0; t < 200; t++)
        for (uint32_t head = 0; head < 4; head++) {
            float x = ((float *)(void *)f->got)[t * f->host.out_stride + head * 128];
            assert_int_equal(isnan(x) != 0, t >= 70 && head >= 2);
        }
}

/* A cmocka test with its own fixture. */
#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

static inline int fixture_setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static inline int fixture_teardown(void **state) {
    fixture_has_sinks = false;
    fixture_close(*state);
    rp_free(*state);
    return 0;
}

#endif
