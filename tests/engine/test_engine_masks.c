/* Goal: a mask program changes only which tokens attend to which. A program equivalent to the
 * model's mask does not change answers; each request has its own parameter values in any batch;
 * prompts under a noncausal mask are computed whole; the cost of rows counts only visible keys.
 * Method: engines on the CPU with the demo model; requests alone and together, in chunks and
 * swapped out; pages of 16 tokens, steps of 64. */
#include "tests/engine/engine_fixture.h"

static struct fixture_answer kept[FIXTURE_REQUESTS];

static void set_mask(const char *text) {
    struct rp_mask *mask;
    struct rp_error err = {0};
    const struct rp_mask_limits limits = rp_model_mask_limits(&fixture_model.config, 0);
    if (rp_mask_parse(text, strlen(text), &limits, &mask, &err) != RP_OK ||
        rp_model_set_mask(&fixture_model, mask, &err) != RP_OK)
        fail_msg("%s: %s", text, err.text);
}

static struct rp_engine_config config_default(void) {
    struct rp_engine_config config = fixture_config(NULL);
    config.page_count_override = 200;
    config.max_model_len = 200;
    return config;
}

static void close_engine(void) {
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

/* Values for a program with one parameter, different for each request. */
static void give_values(void) {
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        fixture_requests[i].mask_param_count = 1;
        fixture_requests[i].mask_params[0] = (int32_t)(1 + i * 5 % 40);
        fixture_requests[i].cache_salt = (uint64_t)fixture_requests[i].mask_params[0];
    }
}

enum values { DEFAULTS, OWN };

static void run_alone(const struct rp_engine_config *config, enum values values) {
    fixture_open(config);
    fixture_make_requests();
    if (values == OWN)
        give_values();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
        fixture_drain(1);
    }
    close_engine();
    memcpy(kept, fixture_answers, sizeof kept);
}

static void submit_all_with_values(void) {
    fixture_make_requests();
    give_values();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
}

/* All at once; returns how often one was swapped out. */
static uint64_t run_together(const struct rp_engine_config *config, enum values values) {
    fixture_open(config);
    if (values == OWN)
        submit_all_with_values();
    else
        fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    uint64_t preemptions = rp_counter_read(&rp_engine_metrics(fixture_engine)->preemptions);
    close_engine();
    return preemptions;
}

static void assert_kept(const char *what) {
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        if (kept[i].count != fixture_answers[i].count ||
            memcmp(kept[i].tokens, fixture_answers[i].tokens,
                   kept[i].count * sizeof kept[i].tokens[0]) != 0)
            fail_msg("%s changes the answer of request %u", what, i);
}

static bool differs_from_kept(void) { return memcmp(kept, fixture_answers, sizeof kept) != 0; }

/* A pool of so few pages that requests are swapped out. */
static struct rp_engine_config config_small(void) {
    struct rp_engine_config config = config_default();
    config.page_tokens = 4;
    config.page_count_override = 50;
    config.max_model_len = FIXTURE_PROMPT + FIXTURE_OUTPUT;
    return config;
}

static void test_a_program_that_says_what_the_model_says_changes_no_answer(void **state) {
    (void)state;
    static const char *const same[] = {"causal",
                                       "param w = 1000 in 900..1024; causal && sliding_window(w)"};
    struct rp_engine_config config = config_default(), small = config_small();
    run_together(&config, DEFAULTS);
    memcpy(kept, fixture_answers, sizeof kept);
    for (size_t i = 0; i < RP_ARRAY_COUNT(same); i++) {
        set_mask(same[i]);
        assert_int_equal(fixture_model.layer_masks[0].program != NULL, i);
        run_together(&config, DEFAULTS);
        assert_kept(same[i]);
        assert_true(run_together(&small, DEFAULTS) > 0);
        assert_kept("swapping");
    }
}

static void test_a_window_program_is_the_models_own_window(void **state) {
    (void)state;
    static const char *const same[] = {"causal && sliding_window(24)",
                                       "param w = 24 in 1..64; causal && sliding_window(w)"};
    struct rp_engine_config config = config_default();
    run_together(&config, DEFAULTS);
    memcpy(kept, fixture_answers, sizeof kept);
    fixture_model.config.window = 24;
    run_together(&config, DEFAULTS);
    assert_true(differs_from_kept());
    memcpy(kept, fixture_answers, sizeof kept);
    fixture_model.config.window = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(same); i++) {
        set_mask(same[i]);
        run_together(&config, DEFAULTS);
        assert_kept(same[i]);
    }
}

static void test_a_layer_may_have_what_another_has_not(void **state) {
    (void)state;
    set_mask("causal && (layer % 2 == 0 ? q - kv < 16 : true); soft_cap(30)");
    for (uint32_t layer = 0; layer < fixture_model.config.layers; layer++) {
        struct rp_layer_mask mask = rp_model_layer_mask(&fixture_model, layer);
        assert_null(mask.program);
        assert_int_equal(mask.window, layer % 2 ? 0 : 16);
        assert_true(mask.soft_cap == 30.0f);
    }
    set_mask("causal && (layer % 2 == 0 ? kv < 4 || q - kv < 16 : true)");
    assert_non_null(rp_model_layer_mask(&fixture_model, 2).program);
    assert_null(rp_model_layer_mask(&fixture_model, 3).program);
    struct rp_engine_config config = config_default();
    run_alone(&config, DEFAULTS);
    run_together(&config, DEFAULTS);
    assert_kept("a batch");
}

static void test_each_request_has_its_own_values_in_one_batch(void **state) {
    (void)state;
    struct rp_engine_config config = config_default(), small = config_small();
    set_mask("param w = 1 in 1..64; causal && sliding_window(w)");
    run_alone(&config, OWN);
    run_together(&config, OWN);
    assert_kept("a batch");
    assert_true(run_together(&small, OWN) > 0);
    assert_kept("swapping");
    run_together(&config, DEFAULTS);
    assert_true(differs_from_kept());
}

static void test_prompts_under_a_mask_that_is_not_causal_are_computed_whole(void **state) {
    (void)state;
    struct rp_engine_config config = config_default(), small = config_small();
    set_mask("param p = 30 in 0..64; prefix_lm(p)");
    config.max_num_batched_tokens = small.max_num_batched_tokens = 128;
    run_alone(&config, OWN);
    fixture_open(&config);
    assert_int_equal(rp_engine_whole_prompt_max(fixture_engine, false), 128);
    assert_int_equal(rp_engine_whole_prompt_max(fixture_engine, true), config.max_num_seqs);
    assert_true(rp_engine_fits(fixture_engine, 128, 10));
    assert_false(rp_engine_fits(fixture_engine, 129, 10));
    close_engine();
    run_together(&config, OWN);
    assert_kept("a batch");
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(fixture_requests[i].cached_tokens, 0);
        assert_int_equal(fixture_requests[i].stats.chunk_count, 1);
    }
    assert_true(run_together(&small, OWN) > 0);
    assert_kept("swapping");
    /* The prefix is visible: a causal mask gives other answers. */
    set_mask("causal");
    run_together(&config, DEFAULTS);
    assert_true(differs_from_kept());
}

/* Bytes and operations of one request of 119 prompt tokens and 24 of its answer. */
static struct rp_request_stats stats_with(const char *mask) {
    struct rp_engine_config config = config_default();
    config.prefix_cache = false;
    config.run_ahead = false; /* a wasted row also has a cost */
    if (mask)
        set_mask(mask);
    fixture_open(&config);
    fixture_make_requests();
    fixture_requests[0].prompt_count = 119;
    fixture_requests[0].sampling.temperature = 0.0f;
    assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[0]), RP_OK);
    fixture_drain(1);
    close_engine();
    assert_int_equal(fixture_answers[0].count, FIXTURE_OUTPUT);
    return fixture_requests[0].stats;
}

static void test_the_bytes_of_a_request_are_those_of_the_pages_that_it_may_see(void **state) {
    (void)state;
    const struct rp_model_config *model = &fixture_model.config;
    uint64_t key_bytes = 2ull * model->layers * model->kv_heads * model->head_dim * 2;
    struct rp_request_stats whole = stats_with(NULL);
    struct rp_request_stats same =
        stats_with("param w = 1000 in 900..1024; causal && sliding_window(w)");
    struct rp_request_stats near = stats_with("param w = 8 in 1..64; causal && sliding_window(w)");
    /* Keys by chunk: 64 and 119; by token of the answer: 120 .. 142. Cached counts may lag by 15 of
     * these. */
    uint64_t keys = 64 + 119, lag = 0;
    for (uint32_t i = 1; i < FIXTURE_OUTPUT; i++) {
        keys += 119 + i;
        lag += 15;
    }
    assert_true(same.bytes <= whole.bytes && same.bytes + lag * key_bytes >= whole.bytes);
    /* A window of 8 is in at most two blocks of 64 keys, the last of which is not full. */
    uint64_t most = 64 + 119;
    for (uint32_t i = 1; i < FIXTURE_OUTPUT; i++)
        most += 119 + i < 128 ? 119 + i - 64 : 119 + i < 136 ? 119 + i - 64 : 119 + i - 128;
    assert_true(whole.bytes - near.bytes >= (keys - most) * key_bytes);
    assert_true(whole.bytes - near.bytes <= keys * key_bytes);
    assert_true(near.flops < whole.flops);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_program_that_says_what_the_model_says_changes_no_answer),
        TEST(test_a_window_program_is_the_models_own_window),
        TEST(test_a_layer_may_have_what_another_has_not),
        TEST(test_each_request_has_its_own_values_in_one_batch),
        TEST(test_prompts_under_a_mask_that_is_not_causal_are_computed_whole),
        TEST(test_the_bytes_of_a_request_are_those_of_the_pages_that_it_may_see),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
