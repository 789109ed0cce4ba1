/* engine_windows_cases.h - the tests of an engine whose layers have different windows: on the CPU
 * in test_engine_windows.c, on a GPU in tests/gpu/test_engine_windows_cuda.c. Included once per
 * test program.
 *
 * A small random model, 4 of whose 6 layers see 24 tokens; answers with all pages kept, one request
 * after the other, are the reference. */
#ifndef RP_TESTS_ENGINE_WINDOWS_CASES_H
#define RP_TESTS_ENGINE_WINDOWS_CASES_H

#include "base/bf16.h"
#include "engine/layout.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/family_configs.h"

#define WINDOW 24u
#define LAYERS 6u

/* Where the model runs, and its sizes. */
struct windows_case {
    const struct rp_backend *backend; /* NULL: the CPU's */
    bool wide;                        /* bf16, heads of 64 columns, sinks; else f32 and 8 columns */
    uint32_t page_tokens[3];          /* with budgets of 16, 24 and 64 tokens a step */
    uint32_t few_tokens, few_pages;   /* a page's, and a pool that is too small for all requests */
    uint32_t mode_step; /* of the four ways with and without prefix cache and run-ahead; 1: all */
};
static struct windows_case windows = {
    .page_tokens = {1, 4, 16},
    .few_tokens = 4,
    .mode_step = 1,
    .few_pages = 130 /* one sequence: 36 pages, and 2 groups of up to 12 */
};

/* Layers 2 and 5 have no window; with `full` none has one. */
static void make_model(bool full) {
    struct rp_model_config config;
    assert_int_equal(rp_model_shape("stories260k", &config, NULL), RP_OK);
    if (windows.wide) {
        config.hidden = 256;
        config.heads = 4;
        config.kv_heads = 2;
        config.head_dim = 64;
        config.attention_sinks = true;
    }
    config.layers = LAYERS;
    config.window = full ? 0 : WINDOW;
    config.full_layers[0] = 1u << 2 | 1u << 5;
    rp_model_deinit(&fixture_model);
    assert_int_equal(rp_model_random(&config, windows.wide ? RP_DTYPE_BF16 : RP_DTYPE_F32, 7, 0,
                                     &fixture_model, NULL),
                     RP_OK);
    rp_test_set_vectors(&fixture_model);
    /* Larger weights, so that what attention sees decides the answers. */
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        static const enum rp_weight_role roles[] = {RP_WEIGHT_QKV, RP_WEIGHT_O};
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(roles); i++) {
            struct rp_matrix *matrix = rp_model_matrix(&fixture_model, roles[i], layer);
            for (size_t k = 0; k < (size_t)matrix->rows * matrix->cols; k++)
                if (windows.wide) {
                    uint16_t *value = (uint16_t *)matrix->data + k;
                    *value = rp_f32_to_bf16(8.0f * rp_bf16_to_f32(*value));
                } else {
                    ((float *)matrix->data)[k] *= 8.0f;
                }
        }
    }
}

static bool windows_full; /* the model's layers have no window */

static int windows_setup(void **state) {
    (void)state;
    sem_init(&fixture_wake, 0, 0);
    windows_full = false;
    return 0;
}

struct outcome {
    struct fixture_answer answers[FIXTURE_REQUESTS];
    uint64_t preemptions, hits, steps;
};

/* An engine with a model of its own, whose weights it may move to a GPU. */
static void create(const struct rp_engine_config *config) {
    make_model(windows_full);
    fixture_create(config);
}

/* All requests at once, through one engine. */
static void answer_all(const struct rp_engine_config *config, struct outcome *out) {
    create(config);
    fixture_submit_all();
    fixture_start();
    fixture_drain(FIXTURE_REQUESTS);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    memcpy(out->answers, fixture_answers, sizeof fixture_answers);
    out->preemptions = rp_counter_read(&metrics->preemptions);
    out->hits = rp_counter_read(&metrics->prefix_hit_tokens);
    out->steps = rp_counter_read(&metrics->steps);
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

static struct rp_engine_config config_of(uint32_t budget) {
    struct rp_engine_config config = fixture_config(windows.backend);
    config.kv_dtype = windows.wide ? RP_DTYPE_BF16 : RP_DTYPE_F32;
    config.max_model_len = FIXTURE_PROMPT + FIXTURE_OUTPUT;
    config.max_num_batched_tokens = budget;
    config.page_tokens = 4;
    config.page_count_override = 2000;
    return config;
}

static void reference(struct outcome *out) {
    struct rp_engine_config config = config_of(64);
    config.no_kv_groups = true;
    config.prefix_cache = config.run_ahead = false;
    config.max_num_seqs = 1;
    config.page_tokens = windows.few_tokens; /* pages of fewer than 16 tokens have other kernels */
    answer_all(&config, out);
}

static void assert_same_answers(const struct outcome *a, const struct outcome *b) {
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(a->answers[i].finish, b->answers[i].finish);
        assert_int_equal(a->answers[i].count, b->answers[i].count);
        assert_memory_equal(a->answers[i].tokens, b->answers[i].tokens,
                            a->answers[i].count * sizeof *a->answers[i].tokens);
    }
}

static void test_answers_are_those_of_a_cache_that_keeps_all_pages(void **state) {
    static const uint32_t budgets[] = {16, 24, 64};
    struct outcome expected, found;
    (void)state;
    reference(&expected);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(budgets); i++)
        for (uint32_t mode = 0; mode < 4; mode += windows.mode_step) {
            struct rp_engine_config config = config_of(budgets[i]);
            config.page_tokens = windows.page_tokens[i];
            config.prefix_cache = mode % 2;
            config.run_ahead = mode / 2;
            answer_all(&config, &found);
            assert_same_answers(&found, &expected);
            assert_true(config.prefix_cache == (found.hits > 0));
        }
}

static void test_answers_are_the_same_when_sequences_are_swapped(void **state) {
    struct outcome expected, found;
    (void)state;
    reference(&expected);
    for (int cache = 0; cache < 2; cache++) {
        struct rp_engine_config config = config_of(16);
        config.prefix_cache = cache;
        config.page_tokens = windows.few_tokens;
        config.page_count_override = windows.few_pages;
        answer_all(&config, &found);
        assert_same_answers(&found, &expected);
        assert_true(found.preemptions > 0);
    }
}

static void test_the_window_changes_what_these_answers_are(void **state) {
    struct outcome windowed, full;
    (void)state;
    reference(&windowed);
    windows_full = true;
    reference(&full);
    uint32_t differ = 0;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        differ += memcmp(windowed.answers[i].tokens, full.answers[i].tokens,
                         sizeof full.answers[i].tokens) != 0;
    assert_true(differ > FIXTURE_REQUESTS / 2);
}

/* One after the other: a prompt; the same; its beginning, whose pages the windows have passed long
 * before the prompt's end, with another end. */
static void test_a_beginning_is_found_although_the_windows_have_passed_it(void **state) {
    static const uint32_t shared[] = {FIXTURE_PROMPT, FIXTURE_PROMPT, 50};
    static const uint32_t cached[] = {0, FIXTURE_PROMPT - 4, 48};
    struct rp_engine_config config = config_of(16);
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        config.no_kv_groups = keep;
        create(&config);
        fixture_start();
        fixture_make_requests();
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(shared); i++) {
            struct rp_request *request = &fixture_requests[i];
            memcpy(fixture_prompts[i], fixture_prompts[0],
                   shared[i] * sizeof fixture_prompts[0][0]);
            request->prompt_count = FIXTURE_PROMPT;
            assert_int_equal(rp_engine_submit(fixture_engine, request), RP_OK);
            fixture_drain(1);
            assert_int_equal(request->cached_tokens, cached[i]);
        }
        rp_engine_destroy(fixture_engine);
        fixture_engine = NULL;
    }
}

/* The plan of a described model: nothing is loaded. */
static void plan_of(struct rp_model_config *model_config, bool keep, uint32_t context,
                    struct rp_memory_plan *out) {
    struct rp_engine_config config = fixture_config(windows.backend);
    struct rp_engine_layout *layout = rp_calloc(1, sizeof *layout);
    struct rp_device_info info;
    struct rp_device_memory memory;
    struct rp_device *device;
    struct rp_model described;
    struct rp_program program;
    const struct rp_backend *backend = windows.backend ? windows.backend : rp_backend_cpu();
    assert_non_null(layout);
    rp_program_init(&program);
    config.backend = backend;
    config.no_kv_groups = keep;
    config.max_model_len = context;
    config.max_num_batched_tokens = 512;
    config.kv_cache_bytes = (uint64_t)8 << 30;
    assert_int_equal(rp_model_describe(model_config, RP_DTYPE_BF16, &described, NULL), RP_OK);
    assert_int_equal(rp_model_emit(&described, &program, NULL), RP_OK);
    assert_int_equal(backend->open(&config.device, &device, NULL), RP_OK);
    backend->info(device, &info);
    backend->memory(device, &memory);
    rp_engine_config_resolve(&config, &info);
    assert_int_equal(
        rp_engine_layout_make(&config, &described, &program, &info, &memory, layout, NULL), RP_OK);
    *out = layout->plan;
    backend->close(device);
    rp_program_deinit(&program);
    rp_model_deinit(&described);
    rp_free(layout);
}

/* Every n-th layer of `layers` has no window. */
static void assert_tokens(uint32_t layers, uint32_t every, uint32_t window, uint32_t context,
                          uint32_t percent) {
    struct rp_memory_plan keep, give;
    struct rp_model_config config;
    assert_int_equal(rp_model_shape("llama-3.2-1b", &config, NULL), RP_OK);
    config.layers = layers;
    config.window = window;
    for (uint32_t i = every - 1; i < layers; i += every)
        config.full_layers[i / 32] |= 1u << i % 32;
    plan_of(&config, true, context, &keep);
    plan_of(&config, false, context, &give);
    assert_true(give.kv_tokens * 100 >= keep.kv_tokens * percent);
    assert_true(give.longest_context >= keep.longest_context);
    assert_int_equal(keep.layers_count, 1);
    assert_int_equal(give.layers_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t full = layers / every;
        assert_int_equal(give.layers[i].layers, give.layers[i].window ? layers - full : full);
    }
}

static void test_the_plan_counts_the_tokens_that_windows_save(void **state) {
    (void)state;
    assert_tokens(24, 2, 128, 16384, 185);  /* as gpt-oss-20b */
    assert_tokens(26, 6, 512, 32768, 520);  /* as Gemma 3 1B */
    assert_tokens(32, 4, 4096, 32768, 240); /* as OLMo-3 */
}

#define WINDOWS_TEST(name) cmocka_unit_test_setup_teardown(name, windows_setup, fixture_teardown)

#define WINDOWS_CASES                                                                              \
    WINDOWS_TEST(test_answers_are_those_of_a_cache_that_keeps_all_pages),                          \
        WINDOWS_TEST(test_answers_are_the_same_when_sequences_are_swapped),                        \
        WINDOWS_TEST(test_the_window_changes_what_these_answers_are),                              \
        WINDOWS_TEST(test_a_beginning_is_found_although_the_windows_have_passed_it),               \
        WINDOWS_TEST(test_the_plan_counts_the_tokens_that_windows_save)

#endif
