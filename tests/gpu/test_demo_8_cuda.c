/* Goal: the demo model in 8 bits on a GPU gives the CPU's logits, and with INT8 the same greedy
 * text in any company, from graphs and without them. Method: each scheme made at load, and FP8
 * with a scale per block made here; a few prompts and forced tokens behind them, as prompt rows
 * and decode rows. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "tests/support/driver.h"
#include "tests/support/gpu_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 8, PROMPT = 12, FORCED = 2, WRITTEN = 10, PAGE_TOKENS = 64 };

static struct rp_model model;
static struct rp_driver driver;

static int tear_down(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

static uint32_t sequence_count(void) { return rp_gpu_is_tiny() ? 2 : SEQUENCES; }

static int32_t token_of(uint32_t sequence, uint32_t at) {
    return (int32_t)((sequence * 1009u + at * 277u + 31u) % (model.config.vocab - 64) + 32);
}

/* A bf16 matrix in FP8 with a scale per block of 128 x 128, its largest at 448. */
static void make_blocks(struct rp_matrix *matrix) {
    const uint16_t *from = matrix->data;
    uint32_t cols = matrix->cols, across = RP_CEIL_DIV(cols, 128u);
    struct rp_matrix made = {.rows = matrix->rows,
                             .cols = cols,
                             .dtype = RP_DTYPE_FP8_E4M3,
                             .scale_kind = RP_SCALE_BLOCK_128,
                             .input = RP_INPUT_QUANTIZED};
    size_t count = rp_matrix_scale_count(&made);
    float *scales = rp_alloc_aligned(count * sizeof *scales, RP_CACHE_LINE);
    made.data = rp_alloc_aligned(rp_matrix_bytes(&made), RP_CACHE_LINE);
    assert_true(scales && made.data);
    memset(scales, 0, count * sizeof *scales);
    for (size_t i = 0; i < (size_t)made.rows * cols; i++) {
        float *scale = &scales[i / cols / 128 * across + i % cols / 128];
        *scale = fmaxf(*scale, fabsf(rp_bf16_to_f32(from[i])) / RP_FP8_MAX);
    }
    for (size_t i = 0; i < (size_t)made.rows * cols; i++)
        ((uint8_t *)made.data)[i] = rp_f32_to_fp8(rp_bf16_to_f32(from[i]) /
                                                  scales[i / cols / 128 * across + i % cols / 128]);
    made.scales = scales;
    rp_matrix_deinit(matrix);
    *matrix = made;
}

static void open_model(const struct rp_backend *backend, enum rp_quant_scheme scheme, bool blocks,
                       bool eager) {
    static const struct rp_bucket buckets[] = {{1, 1, 1, true},
                                               {SEQUENCES, SEQUENCES, SEQUENCES, true},
                                               {16, 1, 1, false},
                                               {SEQUENCES * PROMPT, SEQUENCES, SEQUENCES, false}};
    const struct rp_model_quantization quantization = {blocks ? RP_QUANT_NONE : scheme, false};
    tear_down(NULL);
    int status = rp_model_load_quantized("models/demo", RP_DTYPE_BF16, &quantization, 0, NULL, NULL,
                                         &model, NULL);
    assert_int_equal(status, RP_OK);
    for (uint32_t i = 0; i < model.weights.count && blocks; i++) {
        struct rp_weight *weight = &model.weights.entries[i];
        if (rp_weight_is_matrix(weight) && weight->layer != RP_LAYER_NONE)
            make_blocks(&weight->matrix);
    }
    struct rp_driver_config config = {.backend = backend,
                                      .slots = SEQUENCES,
                                      .pages_per_slot = 1,
                                      .page_tokens = PAGE_TOKENS,
                                      .threads = 2,
                                      .scalar_only = backend == NULL,
                                      .buckets = buckets,
                                      .bucket_count = RP_ARRAY_COUNT(buckets),
                                      .kv_dtype = RP_DTYPE_BF16,
                                      .eager = eager};
    rp_driver_open(&driver, &model, &config);
    assert_int_equal(rp_graph_set_failed(driver.graphs), 0);
}

static void put_prompt(uint32_t sequence) {
    int32_t prompt[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = token_of(sequence, i);
    rp_driver_edit(&driver, sequence, RP_SLOT_LENGTH, 0, 0);
    rp_driver_row(&driver, sequence, prompt, PROMPT, true);
}

/* Logits behind each prompt and each forced token, one sequence after another; (sequences, 1 +
 * FORCED, vocab). */
static float *forced_logits(void) {
    uint32_t vocab = model.config.vocab;
    float *out = rp_calloc((size_t)sequence_count() * (1 + FORCED) * vocab, sizeof *out);
    assert_non_null(out);
    float *at = out;
    for (uint32_t s = 0; s < sequence_count(); s++)
        for (uint32_t i = 0; i <= FORCED; i++, at += vocab) {
            if (i == 0)
                put_prompt(s);
            else {
                rp_driver_edit(&driver, s, RP_SLOT_LAST_TOKEN, 0,
                               (uint32_t)token_of(s, PROMPT + i));
                rp_driver_row(&driver, s, NULL, 1, true);
            }
            rp_driver_run(&driver, NULL);
            memcpy(at, rp_driver_logits(&driver, 0), vocab * sizeof *at);
        }
    return out;
}

static uint32_t argmax(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* The first choice agrees wherever the CPU's two best are further apart than four times the
 * largest difference. */
static void check_choice(const float *got, const float *want, uint32_t vocab) {
    uint32_t best = argmax(want, vocab);
    float second = -INFINITY, difference = 0.0f;
    for (uint32_t v = 0; v < vocab; v++) {
        difference = fmaxf(difference, fabsf(want[v] - got[v]));
        second = v == best ? second : fmaxf(second, want[v]);
    }
    if (want[best] - second > 4.0f * difference)
        assert_int_equal(argmax(got, vocab), best);
}

static void check_scheme(enum rp_quant_scheme scheme, bool blocks, double allowed) {
    open_model(NULL, scheme, blocks, false);
    float *want = forced_logits();
    open_model(rp_backend_cuda_table(), scheme, blocks, false);
    float *got = forced_logits();
    uint32_t vocab = model.config.vocab, count = sequence_count() * (1 + FORCED);
    double error = rp_relative_error(got, want, (size_t)count * vocab);
    printf("%s%s: relative error of the logits %.2e\n", rp_quant_scheme_name(scheme),
           blocks ? " in blocks" : "", error);
    for (uint32_t i = 0; i < count; i++)
        check_choice(got + (size_t)i * vocab, want + (size_t)i * vocab, vocab);
    rp_free(got);
    rp_free(want);
    assert_true(error <= allowed);
}

static void test_logits_in_8_bits_are_those_of_the_cpu(void **state) {
    (void)state;
    /* Quantized rows: where two sums round to different bf16, a quantized value may differ. */
    check_scheme(RP_QUANT_INT8, false, 3e-2);
    check_scheme(RP_QUANT_INT8_W8A16, false, 1e-2);
    check_scheme(RP_QUANT_FP8, false, 6e-2);
    check_scheme(RP_QUANT_FP8, true, 6e-2);
}

/* Greedy tokens of the sequences, all in each step or one after another. */
static void write_tokens(bool together, int32_t (*out)[WRITTEN]) {
    uint32_t total = sequence_count(), each = together ? total : 1;
    for (uint32_t first = 0; first < total; first += each)
        for (uint32_t i = 0; i < WRITTEN; i++) {
            for (uint32_t s = first; s < first + each; s++) {
                if (i == 0)
                    put_prompt(s);
                else
                    rp_driver_row(&driver, s, NULL, 1, true);
            }
            rp_driver_run(&driver, NULL);
            for (uint32_t s = first; s < first + each; s++)
                out[s][i] = rp_driver_result(&driver, s - first)->token;
        }
}

static void test_int8_writes_the_same_in_any_company_with_graphs_and_without(void **state) {
    (void)state;
    static int32_t alone[SEQUENCES][WRITTEN], others[SEQUENCES][WRITTEN];
    open_model(rp_backend_cuda_table(), RP_QUANT_INT8, false, false);
    write_tokens(false, alone);
    write_tokens(true, others);
    assert_memory_equal(alone, others, sizeof alone);
    open_model(rp_backend_cuda_table(), RP_QUANT_INT8, false, true);
    memset(others, 0, sizeof others);
    write_tokens(true, others);
    assert_memory_equal(alone, others, sizeof alone);
}

RP_GPU_TEST_MAIN(NULL, NULL,
                 cmocka_unit_test_teardown(test_logits_in_8_bits_are_those_of_the_cpu, tear_down),
                 cmocka_unit_test_teardown(
                     test_int8_writes_the_same_in_any_company_with_graphs_and_without, tear_down))
