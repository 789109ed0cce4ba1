/* Goal: attention with mask programs and capped scores on a GPU agrees with a sum in f64 over the
 * visible pairs, and reads nothing else; a row's bits depend on its position, its program and its
 * parameters alone, not on batch, chunk, tile or graph. Method: K, V and q are functions of (slot,
 * position, head); K and V are NaN where no row of the step sees them; programs are compiled here,
 * by NVRTC. */
#include "base/bf16.h"
#include "device/quantize_row.h"
#include "tests/gpu/mask_programs.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS  6
#define ROWS   8
#define TOKENS 1024
#define LAYERS 2
#define LAYER  1

/* Query head h has [h % 4]. */
static const float sinks[4] = {2.0f, -5.0f, 12.0f, 0.5f};
static bool has_sinks;

struct row {
    uint32_t slot, begin, count, flags;
};

static struct {
    struct mask_shape shape;
    struct rp_gpu_step step;
    struct rp_attention_cuda_config config;
    struct rp_attention_args args; /* on the host, except q and out on the GPU */
    struct rp_mask *mask;          /* NULL: none */
    struct rp_attention_program *program;
    struct rp_nvrtc *nvrtc;
    struct rp_arena memory;
    struct rp_cuda_launch launches[RP_ATTENTION_PLANS_MAX + RP_ATTENTION_LAUNCHES_MAX];
    uint32_t launch_count;
    size_t kv_bytes, q_bytes, out_bytes;
    float *q;
    unsigned char *got;
} f;

static float rounded(float x) {
    return f.shape.kv != RP_DTYPE_F32 ? rp_bf16_to_f32(rp_f32_to_bf16(x)) : x;
}
static float q_of(uint32_t slot, uint32_t position, uint32_t head, uint32_t d) {
    return rp_test_value_of(2, slot, position, head, d);
}

static uint32_t *slot_words(uint32_t slot) {
    return f.step.host.slots + (size_t)slot * f.step.host.slot_words;
}

static void drop(void) {
    rp_attention_program_close(f.program);
    rp_mask_free(f.mask);
    rp_free_aligned(f.args.kv.base);
    rp_free(f.q);
    rp_free(f.got);
    rp_arena_deinit(&f.memory);
    if (f.step.host_state)
        rp_gpu_step_close(&f.step);
    rp_gpu_free_all();
    struct rp_nvrtc *kept = f.nvrtc;
    memset(&f, 0, sizeof f);
    f.nvrtc = kept;
}

static int teardown(void **state) {
    (void)state;
    has_sinks = false;
    drop();
    return 0;
}

static void parse(const char *text) {
    struct rp_error err = {0};
    struct rp_buffer source;
    if (mask_program_text(text, &f.shape, &f.mask, &source, &err) != RP_OK)
        fail_msg("%s: %s", text, err.text);
    if (rp_attention_program_open(f.nvrtc, &f.config, source.data, &f.program, &err) != RP_OK)
        fail_msg("%s: %s", text, err.text);
    rp_buffer_deinit(&source);
    f.config.masks[0] = f.args.mask = f.mask;
    f.config.programs[0] = f.program;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < rp_mask_param_count(f.mask); i++)
            slot_words(slot)[RP_SLOT_MASK_PARAMS + i] = (uint32_t)rp_mask_param(f.mask, i)->value;
}

/* Buffers, the program's kernels and the launches of a step. text NULL: causal, with window and
 * cap. */
static void make(const struct mask_shape *shape, const char *text, uint32_t window, float cap) {
    drop();
    f.shape = *shape;
    uint32_t per_slot = mask_shape_pages(shape);
    const struct rp_step_config config = {.slot_count = SLOTS,
                                          .pages_per_slot = 2 * per_slot,
                                          .row_capacity = ROWS,
                                          .token_capacity = TOKENS,
                                          .logit_row_capacity = ROWS,
                                          .edit_capacity = 8,
                                          .prompt_ring_capacity = 16};
    rp_gpu_step_open(&f.step, &config);
    uint32_t width = shape->heads * shape->head_dim;
    f.args = (struct rp_attention_args){.step = f.step.device,
                                        .q_stride = width,
                                        .out_stride = width,
                                        .out_dtype = shape->out,
                                        .heads = shape->heads,
                                        .kv_heads = shape->kv_heads,
                                        .head_dim = shape->head_dim,
                                        .layer = LAYER,
                                        .table = per_slot,
                                        .window = window,
                                        .soft_cap = cap,
                                        .scale = 1.0f / sqrtf((float)shape->head_dim)};
    assert_true(rp_kv_layout_init(&f.args.kv, LAYERS, shape->kv_heads, shape->head_dim,
                                  shape->page_tokens, shape->kv));
    f.kv_bytes = f.args.kv.page_stride * (1 + SLOTS * per_slot);
    f.args.kv.base = rp_alloc_aligned(f.kv_bytes, 64);
    f.q_bytes = (size_t)TOKENS * width * sizeof(float);
    f.out_bytes = (size_t)TOKENS * width * rp_dtype_bytes(shape->out);
    f.q = rp_alloc(f.q_bytes);
    f.got = rp_alloc(f.out_bytes);
    assert_true(f.args.kv.base && f.q && f.got);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < per_slot; i++) {
            uint32_t *pages = slot_words(slot) + RP_SLOT_PAGES;
            pages[i] = 0x7FFFFFFFu; /* another layer's table */
            pages[per_slot + i] =
                i + 1 < per_slot ? 1 + i * SLOTS + (slot * 5 + i) % SLOTS : 0x7FFFFFFFu;
        }
    rp_gpu_limits(&f.config.limits);
    f.config.step = f.step.device;
    f.config.heads = shape->heads;
    f.config.kv_heads = shape->kv_heads;
    f.config.head_dim = shape->head_dim;
    f.config.bucket = (struct rp_bucket){.tokens = TOKENS, .rows = ROWS, .logit_rows = ROWS};
    f.config.windows[0] = window;
    f.config.window_count = 1;
    f.config.tables = 2;
    f.config.kv = f.args.kv;
    if (text)
        parse(text);
    f.config.kv.base = rp_gpu_poisoned(f.kv_bytes);
    f.config.workspace_bytes = rp_attention_cuda_workspace_bytes(&f.config);
    f.config.workspace = rp_gpu_zeroed(f.config.workspace_bytes);
    struct rp_attention_args args = f.args;
    struct rp_error err = {0};
    uint32_t more = 0;
    args.kv = f.config.kv;
    float repeated[64];
    for (uint32_t h = 0; h < RP_ARRAY_COUNT(repeated); h++)
        repeated[h] = sinks[h % RP_ARRAY_COUNT(sinks)];
    args.sinks = has_sinks ? rp_gpu_upload(repeated, sizeof repeated) : NULL;
    f.args.q = args.q = rp_gpu_poisoned(f.q_bytes);
    f.args.out = args.out = rp_gpu_poisoned(f.out_bytes);
    assert_int_equal(
        rp_attention_cuda_plan(&f.config, &f.memory, f.launches, &f.launch_count, &err), RP_OK);
    if (rp_attention_cuda_lower(&f.config, &args, &f.memory, f.launches + f.launch_count, &more,
                                &err) != RP_OK)
        fail_msg("%s", err.text);
    f.launch_count += more;
}

/* K (0) or V in the host's pages. */
static float kv_of(uint32_t which, uint32_t slot, uint32_t position, uint32_t head, uint32_t d) {
    const struct rp_kv_layout *kv = &f.args.kv;
    uint32_t page = slot_words(slot)[RP_SLOT_PAGES + f.args.table + position / kv->page_tokens];
    uint32_t in_page = position % kv->page_tokens;
    const unsigned char *run = rp_kv_run(kv, page, LAYER, which, head);
    size_t at = (size_t)in_page * kv->head_dim + d;
    return kv->scales_at ? rp_quantized_to_f32(run, kv->dtype, at) * rp_kv_scale(kv, run, in_page)
           : kv->dtype == RP_DTYPE_F32 ? ((const float *)(const void *)run)[at]
                                       : rp_bf16_to_f32(((const uint16_t *)(const void *)run)[at]);
}

static bool is_seen(uint32_t slot, uint32_t end, uint32_t q, uint32_t kv, uint32_t h) {
    const struct rp_mask_pair pair = {(int32_t)q, (int32_t)kv, (int32_t)h, LAYER};
    if (kv >= end)
        return false;
    if (!f.mask)
        return kv <= q && (f.args.window == 0 || q - kv < f.args.window);
    return rp_mask_sees(f.mask, &pair, (const int32_t *)slot_words(slot) + RP_SLOT_MASK_PARAMS);
}

/* K and V of one position; NaN unless visible. */
static void store(uint32_t slot, uint32_t position, bool seen) {
    const struct rp_kv_layout *kv = &f.args.kv;
    uint32_t page = slot_words(slot)[RP_SLOT_PAGES + f.args.table + position / kv->page_tokens];
    uint32_t in_page = position % kv->page_tokens;
    size_t at = (size_t)in_page * kv->head_dim;
    for (uint32_t i = 0; i < 2 * kv->kv_heads; i++) {
        uint32_t which = i % 2, head = i / 2;
        unsigned char *run = rp_kv_run(kv, page, LAYER, which, head);
        float row[256];
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            float x = rp_test_value_of(which, slot, position, head, d) * (which == 0 ? 3.0f : 1.0f);
            row[d] = seen ? x : NAN;
        }
        if (kv->scales_at)
            rp_kv_set_scale(kv, run, in_page,
                            rp_quantize_row(row, RP_DTYPE_F32, kv->head_dim, kv->dtype, run + at));
        for (uint32_t d = 0; d < kv->head_dim && !kv->scales_at; d++)
            if (kv->dtype == RP_DTYPE_F32)
                ((float *)(void *)run)[at + d] = row[d];
            else
                ((uint16_t *)(void *)run)[at + d] = seen ? rp_f32_to_bf16(row[d]) : 0x7FFF;
        if (kv->scales_at && !seen)
            memset(run + at, 0xFF, kv->head_dim);
    }
}

/* The step of these rows, on the GPU. Keys that no row sees are NaN if `poisons`. */
static void upload(const struct row *rows, uint32_t count, bool poisons) {
    struct rp_step_view *step = &f.step.host;
    uint32_t width = f.shape.heads * f.shape.head_dim;
    memset(step->counts, 0, sizeof *step->counts);
    memset(step->token_rows, 0xFF, TOKENS * sizeof *step->token_rows);
    memset(f.q, 0xFF, f.q_bytes);
    memset(f.args.kv.base, 0xFF, f.kv_bytes);
    for (uint32_t r = 0; r < count; r++) {
        const struct row *row = &rows[r];
        uint32_t token = step->counts->token_count, end = row->begin + row->count;
        step->rows[r] = (struct rp_live_row){.slot = row->slot,
                                             .token_begin = token,
                                             .token_count = row->count,
                                             .kv_begin = row->begin,
                                             .flags = row->flags};
        for (uint32_t i = 0; i < row->count; i++) {
            step->token_rows[token + i] = r;
            step->positions[token + i] = row->begin + i;
            for (uint32_t c = 0; c < width; c++)
                f.q[(size_t)(token + i) * width + c] =
                    q_of(row->slot, row->begin + i, c / f.shape.head_dim, c % f.shape.head_dim);
        }
        step->counts->row_count++;
        step->counts->token_count += row->count;
        for (uint32_t kv = 0; kv < end; kv++) {
            bool seen = !poisons;
            for (uint32_t i = 0; i < row->count && !seen; i++)
                for (uint32_t h = 0; h < f.shape.heads && !seen; h++) {
                    seen = is_seen(row->slot, end, row->begin + row->count - 1 - i, kv, h);
                    if (!f.mask || !rp_mask_reads_head(f.mask))
                        break;
                }
            store(row->slot, kv, seen);
        }
    }
    rp_gpu_step_upload(&f.step);
    assert_int_equal(
        cudaMemcpy(f.config.kv.base, f.args.kv.base, f.kv_bytes, cudaMemcpyHostToDevice), 0);
    assert_int_equal(cudaMemcpy((void *)f.args.q, f.q, f.q_bytes, cudaMemcpyHostToDevice), 0);
    assert_int_equal(cudaMemset(f.args.out, 0xFF, f.out_bytes), 0);
}

static void launch_all(struct CUstream_st *stream) {
    for (uint32_t i = 0; i < f.launch_count; i++) {
        int error = f.launches[i].run(f.launches[i].args, stream);
        if (error != 0)
            fail_msg("%s: %s", f.launches[i].kernel, cudaGetErrorString((cudaError_t)error));
    }
}

static void download(void) {
    rp_gpu_download(f.got, f.args.out, f.out_bytes);
    assert_true(rp_gpu_canaries_hold());
}

static void run(const struct row *rows, uint32_t count, bool poisons) {
    upload(rows, count, poisons);
    launch_all(NULL);
    download();
}

/* One (token, head) by the formula. */
static void truth(const struct row *row, uint32_t q, uint32_t h, double *out) {
    uint32_t dim = f.shape.head_dim, kv_head = h / (f.shape.heads / f.shape.kv_heads);
    uint32_t end = row->begin + row->count;
    double sum = 0, largest = -INFINITY;
    double *scores = rp_arena_alloc(&f.memory, end * sizeof *scores);
    assert_non_null(scores);
    for (uint32_t kv = 0; kv < end; kv++) {
        double score = 0;
        if (!is_seen(row->slot, end, q, kv, h)) {
            scores[kv] = -INFINITY;
            continue;
        }
        for (uint32_t d = 0; d < dim; d++)
            score += (double)rounded(q_of(row->slot, q, h, d)) *
                     (double)kv_of(0, row->slot, kv, kv_head, d);
        score *= (double)f.args.scale;
        if (f.args.soft_cap > 0)
            score = (double)f.args.soft_cap * tanh(score / (double)f.args.soft_cap);
        if (f.mask && rp_mask_has_score(f.mask)) {
            const struct rp_mask_pair pair = {(int32_t)q, (int32_t)kv, (int32_t)h, LAYER};
            score = (double)rp_mask_score(
                f.mask, &pair, (const int32_t *)slot_words(row->slot) + RP_SLOT_MASK_PARAMS,
                (float)score);
        }
        scores[kv] = score;
        largest = fmax(largest, score);
    }
    if (has_sinks) {
        largest = fmax(largest, (double)sinks[h % RP_ARRAY_COUNT(sinks)]);
        sum = exp((double)sinks[h % RP_ARRAY_COUNT(sinks)] - largest);
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] = 0;
    for (uint32_t kv = 0; kv < end; kv++) {
        if (scores[kv] == -INFINITY)
            continue;
        double weight = exp(scores[kv] - largest);
        sum += weight;
        for (uint32_t d = 0; d < dim; d++)
            out[d] += weight * (double)kv_of(1, row->slot, kv, kv_head, d);
    }
    for (uint32_t d = 0; d < dim && sum > 0; d++)
        out[d] /= sum;
}

/* Every `stride`-th token against the formula. */
static void check(const char *what, const struct row *rows, uint32_t count, uint32_t stride) {
    uint32_t dim = f.shape.head_dim, token = 0;
    double difference = 0, total = 1e-300, want[256];
    float got[256];
    for (uint32_t r = 0; r < count; token += rows[r++].count)
        for (uint32_t i = rows[r].count % stride; i < rows[r].count; i += stride)
            for (uint32_t h = 0; h < f.shape.heads; h++) {
                size_t at = ((size_t)(token + i) * f.shape.heads + h) * dim;
                truth(&rows[r], rows[r].begin + i, h, want);
                rp_to_f32(got, f.got + at * rp_dtype_bytes(f.shape.out), f.shape.out, dim);
                for (uint32_t d = 0; d < dim; d++) {
                    double x = (double)got[d] - want[d];
                    if (!(fabs(x) < 0.05))
                        fail_msg("%s: slot %u position %u head %u column %u: %g, not %g", what,
                                 rows[r].slot, rows[r].begin + i, h, d, (double)got[d], want[d]);
                    difference += x * x;
                    total += want[d] * want[d];
                }
            }
    double error = sqrt(difference / total);
    printf("    %-60.60s heads %u/%u dim %u pages %u: error %.2e\n", what, f.shape.heads,
           f.shape.kv_heads, dim, f.shape.page_tokens, error);
    if (!(error <= 5e-3))
        fail_msg("%s: relative error %g", what, error);
}

static const struct row mixed[] = {
    {0, 299, 1, RP_ROW_DECODE}, {1, 0, 200, RP_ROW_SAMPLE}, {2, 130, 77, 0},
    {3, 512, 1, RP_ROW_DECODE}, {4, 0, 1, RP_ROW_DECODE},   {5, 31, 300, 0}};
#define LENGTH MASK_LENGTH

static void capped_scores_are_the_formula_at_every_head_dim(void **state) {
    (void)state;
    static const struct mask_shape shapes[] = {
        {8, 2, 64, 16, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {8, 1, 96, 32, LENGTH, RP_DTYPE_BF16, RP_DTYPE_BF16},
        {8, 2, 128, 64, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {16, 1, 128, 16, LENGTH, RP_DTYPE_BF16, RP_DTYPE_BF16},
        {4, 2, 256, 64, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {4, 2, 80, 16, LENGTH, RP_DTYPE_F32, RP_DTYPE_F32},
        {8, 2, 128, 64, LENGTH, RP_DTYPE_INT8, RP_DTYPE_F32},
        {8, 1, 64, 16, LENGTH, RP_DTYPE_FP8_E4M3, RP_DTYPE_F32},
        {4, 2, 256, 32, LENGTH, RP_DTYPE_FP8_E4M3, RP_DTYPE_BF16},
    };
    /* Small scores, and a score of 100, which gives the softmax an offset. */
    static const float caps[] = {50, 0.5f, 2, 100, 5, 1.5f, 2, 100, 0.5f};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        make(&shapes[i], NULL, i % 2 ? 100 : 0, caps[i]);
        run(mixed, RP_ARRAY_COUNT(mixed), true);
        check("soft_cap", mixed, RP_ARRAY_COUNT(mixed), rp_gpu_is_tiny() ? 97 : 13);
    }
}

static void programs_are_the_formula_on_every_kernel(void **state) {
    (void)state;
    if (!f.nvrtc)
        skip();
    for (size_t p = 0; p < RP_ARRAY_COUNT(mask_programs); p++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(mask_shapes); i++) {
            if (!mask_program_meets(p, i) || (rp_gpu_is_tiny() && (p > 3 || i > 2)))
                continue;
            make(&mask_shapes[i], mask_programs[p], 0, 0);
            run(mixed, RP_ARRAY_COUNT(mixed), true);
            check(mask_programs[p], mixed, RP_ARRAY_COUNT(mixed), rp_gpu_is_tiny() ? 97 : 13);
        }
}

static void sinks_join_the_softmax_of_capped_scores_and_of_programs(void **state) {
    (void)state;
    static const struct mask_shape shapes[] = {
        {8, 2, 64, 16, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {4, 2, 256, 64, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {4, 2, 80, 16, LENGTH, RP_DTYPE_F32, RP_DTYPE_F32},
        {8, 2, 128, 64, LENGTH, RP_DTYPE_INT8, RP_DTYPE_F32}};
    static const size_t programs[] = {1, 7, 9, 13}; /* 9 has rows that see nothing */
    has_sinks = true;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        make(&shapes[i], NULL, i % 2 ? 100 : 0, i < 2 ? 50 : 2);
        run(mixed, RP_ARRAY_COUNT(mixed), true);
        check("soft_cap and sinks", mixed, RP_ARRAY_COUNT(mixed), rp_gpu_is_tiny() ? 97 : 13);
    }
    for (size_t p = 0; p < RP_ARRAY_COUNT(programs) && f.nvrtc && !rp_gpu_is_tiny(); p++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(mask_shapes); i++) {
            if (!mask_program_meets(programs[p], i))
                continue;
            make(&mask_shapes[i], mask_programs[programs[p]], 0, 0);
            run(mixed, RP_ARRAY_COUNT(mixed), true);
            check(mask_programs[programs[p]], mixed, RP_ARRAY_COUNT(mixed), 13);
        }
}

/* Outputs of the step's tokens by row, to compare with those of other steps. */
static unsigned char *keep_row(const struct row *rows, uint32_t r) {
    size_t token = 0,
           bytes = (size_t)f.shape.heads * f.shape.head_dim * rp_dtype_bytes(f.shape.out);
    for (uint32_t i = 0; i < r; i++)
        token += rows[i].count;
    unsigned char *kept = rp_arena_alloc(&f.memory, rows[r].count * bytes);
    assert_non_null(kept);
    memcpy(kept, f.got + token * bytes, rows[r].count * bytes);
    return kept;
}

/* Moves every border between the blocks of a grid. */
static void use_multiprocessors(uint32_t sm_count) {
    for (uint32_t i = 0; i < f.launch_count; i++)
        if (strcmp(f.launches[i].kernel, "attention_prefill") == 0 ||
            strcmp(f.launches[i].kernel, "attention_decode") == 0)
            ((struct rp_attention_cuda_args *)(uintptr_t)f.launches[i].args)
                ->config.limits.sm_count = sm_count;
}

static void a_row_has_the_same_bits_in_any_batch_and_chunk(void **state) {
    (void)state;
    if (!f.nvrtc)
        skip();
    static const char *const texts[] = {
        "param w = 90 in 1..600; causal && (sliding_window(w) || sink(4))",
        "causal && dilated(2); alibi"};
    static const struct mask_shape shapes[] = {
        {8, 2, 128, 64, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {4, 2, 256, 16, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32},
        {8, 2, 128, 64, LENGTH, RP_DTYPE_FP8_E4M3, RP_DTYPE_F32}};
    for (size_t t = 0; t < RP_ARRAY_COUNT(shapes); t++) {
        make(&shapes[t], texts[t % 2], 0, 0);
        size_t bytes = (size_t)f.shape.heads * f.shape.head_dim * sizeof(float);
        const struct row prompt = {2, 0, 400, 0}, decode = {3, 512, 1, RP_ROW_DECODE};
        run(&prompt, 1, false);
        const unsigned char *whole = keep_row(&prompt, 0);
        run(&decode, 1, true);
        const unsigned char *alone = keep_row(&decode, 0);
        for (uint32_t sm_count = 1; sm_count <= 132; sm_count += 131) {
            const struct row others[] = {{1, 17, 150, 0},
                                         {2, 130, 77, 0},
                                         decode,
                                         {0, 299, 1, RP_ROW_DECODE},
                                         {5, 0, 300, 0}};
            use_multiprocessors(sm_count);
            run(others, RP_ARRAY_COUNT(others), true);
            assert_memory_equal(keep_row(others, 1), whole + 130 * bytes, 77 * bytes);
            assert_memory_equal(keep_row(others, 2), alone, bytes);
        }
    }
}

static void a_replay_with_other_lengths_and_parameters_equals_eager(void **state) {
    (void)state;
    if (!f.nvrtc)
        skip();
    static const struct mask_shape shape = {8, 2, 128, 64, LENGTH, RP_DTYPE_BF16, RP_DTYPE_F32};
    make(&shape,
         "param w = 256 in 1..600; param s = 2 in 0..64; causal && (sliding_window(w) || kv < s)",
         0, 0);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    run(mixed, RP_ARRAY_COUNT(mixed), true);
    assert_int_equal(cudaStreamCreate(&stream), 0);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
    launch_all(stream);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    unsigned char *eager = rp_arena_alloc(&f.memory, f.out_bytes);
    assert_non_null(eager);
    for (uint32_t turn = 0; turn < 5; turn++) {
        const struct row rows[] = {{0, 250 + turn * 50, 1, RP_ROW_DECODE},
                                   {1, turn * 10, 100 + turn * 20, 0},
                                   {3, 5 + turn * 100, 1, RP_ROW_DECODE},
                                   {4, 64 * turn, 65, 0}};
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            slot_words(slot)[RP_SLOT_MASK_PARAMS] = 1 + turn * 37 + slot * 11;
            slot_words(slot)[RP_SLOT_MASK_PARAMS + 1] = turn * slot % 65;
        }
        run(rows, RP_ARRAY_COUNT(rows), true);
        check("parameters per request", rows, RP_ARRAY_COUNT(rows), 29);
        memcpy(eager, f.got, f.out_bytes);
        upload(rows, RP_ARRAY_COUNT(rows), true);
        assert_int_equal(cudaGraphLaunch(exec, stream), 0);
        assert_int_equal(cudaStreamSynchronize(stream), 0);
        download();
        assert_memory_equal(f.got, eager, f.out_bytes);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

/* A decode row far into a long sequence reads only its window's units. */
static void the_plan_lists_what_a_row_sees_and_nothing_else(void **state) {
    (void)state;
    if (!f.nvrtc)
        skip();
    static const struct mask_shape shape = {8, 2, 128, 64, 9000, RP_DTYPE_BF16, RP_DTYPE_F32};
    make(&shape, "param w = 256 in 1..8192; causal && (sliding_window(w) || sink(4))", 0, 0);
    const struct row row = {1, 8999, 1, RP_ROW_DECODE};
    run(&row, 1, true);
    check("a window on a long context", &row, 1, 1);
    struct rp_attention_cuda_workspace workspace;
    struct rp_attention_plan_row planned;
    uint32_t units[8];
    rp_attention_cuda_carve(&f.config, f.config.workspace, &workspace);
    rp_gpu_download(&planned, workspace.plans[0].rows, sizeof planned);
    rp_gpu_download(units, workspace.plans[0].units, sizeof units);
    assert_int_equal(planned.first, 8999);
    assert_int_equal(planned.position, 4 * RP_ATTENTION_SPLIT - 1);
    assert_int_equal(units[0], 0 * 2 + 1);
    assert_int_equal(units[1], (8999 - 255) / 128 * 2 + 1);
    assert_int_equal(units[2], ((8999 - 255) / 128 + 1) * 2);
    assert_int_equal(units[3], 8999 / 128 * 2 + 1);
}

static char own_folder[] = "/tmp/reprise-masks-XXXXXX"; /* unless the environment names one */

static int open_nvrtc(void **state) {
    const char *folder = getenv("REPRISE_CACHE_DIR");
    struct rp_cuda_limits limits;
    struct rp_error err = {0};
    (void)state;
    if (!folder)
        folder = mkdtemp(own_folder);
    if (rp_nvrtc_open(folder, &f.nvrtc, &err) != RP_OK) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    rp_gpu_limits(&limits);
    if (!rp_gpu_is_tiny())
        assert_int_equal(mask_programs_compile(folder, &limits, NULL), 0);
    return 0;
}

static int close_nvrtc(void **state) {
    (void)state;
    if (f.nvrtc)
        printf("    %s: %u programs compiled, %u from disk\n", rp_nvrtc_describe(f.nvrtc),
               rp_nvrtc_stats(f.nvrtc).compiled, rp_nvrtc_stats(f.nvrtc).from_disk);
    rp_nvrtc_close(f.nvrtc);
    f.nvrtc = NULL;
    if (!getenv("REPRISE_CACHE_DIR"))
        mask_programs_delete(own_folder);
    return 0;
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

RP_GPU_TEST_MAIN(open_nvrtc, close_nvrtc, TEST(capped_scores_are_the_formula_at_every_head_dim),
                 TEST(programs_are_the_formula_on_every_kernel),
                 TEST(sinks_join_the_softmax_of_capped_scores_and_of_programs),
                 TEST(a_row_has_the_same_bits_in_any_batch_and_chunk),
                 TEST(a_replay_with_other_lengths_and_parameters_equals_eager),
                 TEST(the_plan_lists_what_a_row_sees_and_nothing_else))
