/* Goal: a request to a model with recurrent state gets the bits that it has alone: beside 64 others
 * that are swapped out and in, after prefix hits that begin with a snapshot, whatever the chunks.
 * Method: small random models of the short convolution and of the gated delta rule on the CPU;
 * tokens and logprobs are compared bit for bit with those of an engine that runs one request at a
 * time without a prefix cache. */
#include "engine/engine_internal.h"
#include "engine/memory_plan.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/family_configs.h"

enum { REQUESTS = 64, PROMPT_MAX = 200, OUTPUT = 48, VOCAB = 211 };

static struct rp_request requests[REQUESTS];
static int32_t prompts[REQUESTS][PROMPT_MAX];
struct answers {
    int32_t tokens[REQUESTS][OUTPUT];
    float logprobs[REQUESTS][OUTPUT];
};
static struct answers alone, together;

static void make_model(enum rp_family family) {
    struct rp_model_config config = {.family = family,
                                     .hidden = 32,
                                     .intermediate = 32,
                                     .layers = 3,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 16,
                                     .vocab = VOCAB,
                                     .max_position = 512,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .bos_id = RP_ID_NONE};
    rp_test_set_family(&config);
    config.state.layers[0] = 5; /* layers 0 and 2 */
    rp_model_deinit(&fixture_model);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_F32, 3, 512, &fixture_model, NULL), RP_OK);
    /* Large enough weights that every part shows in the logits. */
    for (uint32_t i = 0; i < fixture_model.weights.count; i++) {
        struct rp_weight *weight = &fixture_model.weights.entries[i];
        size_t values = (size_t)weight->matrix.rows * weight->matrix.cols;
        for (size_t k = 0; k < values; k++)
            ((float *)weight->matrix.data)[k] *= 10;
        for (size_t k = 0; k < weight->length && !rp_weight_is_norm(weight->role); k++)
            weight->vector[k] *= 10;
    }
}

/* Prompts of 1 to PROMPT_MAX tokens; those of three of four begin alike. */
static void make_requests(void) {
    memset(requests, 0, sizeof requests);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct rp_request *request = &requests[i];
        uint32_t kind = i % 4 ? i % 4 : 4 + i, shared = i % 3 == 0 ? PROMPT_MAX : 64 + i;
        for (uint32_t t = 0; t < PROMPT_MAX; t++)
            prompts[i][t] = (int32_t)((kind * 97 + t * 31 + (t < shared ? 0 : i)) % VOCAB);
        request->id = i;
        request->prompt = prompts[i];
        request->prompt_count = i == 0 ? 1 : 1 + i * 53 % PROMPT_MAX;
        request->max_tokens = OUTPUT;
        request->logprobs = true;
        request->sampling =
            (struct rp_sampling){.temperature = i % 2 ? 1.0f : 0.0f, .top_p = 1.0f, .seed = i + 1};
    }
}

static void take(struct answers *out, uint32_t count) {
    struct rp_event event;
    while (count > 0) {
        rp_test_await_events(&fixture_wake, fixture_engine);
        while (rp_engine_next_event(fixture_engine, &event)) {
            if (event.kind == RP_EVENT_CLOSED) {
                assert_int_equal(event.finish_reason, RP_FINISH_LENGTH);
                count--;
                continue;
            }
            out->tokens[event.request->id][event.index] = event.token;
            out->logprobs[event.request->id][event.index] = event.logprob;
        }
    }
}

static struct rp_engine_config config_of(uint32_t chunk) {
    struct rp_engine_config config = fixture_config(NULL);
    config.kv_dtype = RP_DTYPE_F32;
    config.max_num_seqs = REQUESTS;
    config.queue_capacity = REQUESTS;
    config.max_num_batched_tokens = chunk;
    config.max_model_len = 256;
    return config;
}

static void run_alone(void) {
    struct rp_engine_config config = config_of(512);
    config.prefix_cache = config.run_ahead = false;
    config.device.threads = 1;
    fixture_open(&config);
    make_requests();
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(rp_engine_submit(fixture_engine, &requests[i]), RP_OK);
        take(&alone, 1);
    }
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

/* All at once. */
static void submit_all(void) {
    make_requests();
    memset(&together, 0, sizeof together);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &requests[i]), RP_OK);
}

static void check_answers(void) {
    take(&together, REQUESTS);
    assert_memory_equal(&together, &alone, sizeof alone);
}

static void close_engine(void) {
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

static void check_family(enum rp_family family) {
    static const uint32_t chunks[] = {512, 64, 37};
    uint64_t preemptions = 0;
    make_model(family);
    run_alone();
    for (uint32_t i = 1; i < REQUESTS; i++) /* the model tells prompts apart */
        assert_memory_not_equal(alone.logprobs[i], alone.logprobs[i - 1], sizeof alone.logprobs[0]);
    for (size_t i = 0; i < RP_ARRAY_COUNT(chunks); i++) {
        struct rp_engine_config config = config_of(chunks[i]);
        config.page_count_override = 120; /* a fifth of what the requests need */
        config.snapshot_interval = i == 2 ? 64 : 2048;
        fixture_create(&config);
        submit_all();
        fixture_start();
        check_answers();
        const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
        preemptions += rp_counter_read(&metrics->preemptions);
        submit_all(); /* once more: they find what the first ones left */
        check_answers();
        assert_true(rp_counter_read(&metrics->snapshot_hits) > 0);
        close_engine();
    }
    assert_true(preemptions > 0);
}

static void test_a_short_convolution_gives_each_request_the_bits_that_it_has_alone(void **state) {
    (void)state;
    check_family(RP_FAMILY_LFM2);
}

static void test_a_gated_delta_rule_gives_each_request_the_bits_that_it_has_alone(void **state) {
    (void)state;
    check_family(RP_FAMILY_QWEN3_NEXT);
}

/* One request after the other. */
static void run_one(uint32_t id, uint32_t prompt_count) {
    requests[id].prompt_count = prompt_count;
    requests[id].max_tokens = 4;
    assert_int_equal(rp_engine_submit(fixture_engine, &requests[id]), RP_OK);
    take(&together, 1);
}

static void
test_a_hit_ends_at_the_last_snapshot_and_the_least_recently_used_goes_first(void **state) {
    (void)state;
    make_model(RP_FAMILY_LFM2);
    struct rp_engine_config config = config_of(512);
    config.snapshot_interval = 64;
    config.snapshot_bytes = 2 * 2 * 2 * 32 * sizeof(float); /* of two sequences */
    fixture_open(&config);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    make_requests();
    assert_int_equal(rp_engine_memory_plan(fixture_engine)->snapshot_count, 2);
    run_one(1, 130); /* snapshots at 64 and 128 */
    run_one(1, 130);
    assert_int_equal(requests[1].cached_tokens, 128);
    run_one(1, 128); /* the last token of a prompt is always computed; stores 128 again */
    assert_int_equal(requests[1].cached_tokens, 64);
    run_one(4, 70); /* takes the place of 64 */
    run_one(1, 130);
    assert_int_equal(requests[1].cached_tokens, 128);
    run_one(1, 100); /* takes the place of the other request's */
    assert_int_equal(requests[1].cached_tokens, 0);
    run_one(4, 70);
    assert_int_equal(requests[4].cached_tokens, 0);
    run_one(8, 50); /* too short for one */
    run_one(8, 50);
    assert_int_equal(requests[8].cached_tokens, 0);
    assert_int_equal(rp_counter_read(&metrics->snapshot_hits), 3);
    assert_int_equal(rp_counter_read(&metrics->snapshot_evictions), 4);
    assert_int_equal(rp_gauge_read(&metrics->snapshots_kept), 2);
    close_engine();
}

static void test_the_memory_plan_counts_state_and_snapshots(void **state) {
    (void)state;
    struct rp_buffer text = {.data = NULL};
    make_model(RP_FAMILY_LFM2);
    struct rp_engine_config config = config_of(64);
    config.max_num_seqs = 3;
    config.snapshot_bytes = 5000;
    fixture_open(&config);
    const struct rp_memory_plan *plan = rp_engine_memory_plan(fixture_engine);
    uint64_t bytes = 0;
    assert_int_equal(plan->state_bytes, 2 * 2 * 32 * sizeof(float)); /* layers, width - 1, hidden */
    assert_int_equal(plan->snapshot_count, 5000 / plan->state_bytes);
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, "state") == 0)
            bytes += plan->items[i].bytes;
        else if (strcmp(plan->items[i].name, "snapshots") == 0)
            bytes += plan->items[i].bytes;
    assert_int_equal(bytes, (3 + plan->snapshot_count) * plan->state_bytes);
    assert_int_equal(rp_gauge_read(&rp_engine_metrics(fixture_engine)->memory[RP_MEMORY_STATE]),
                     bytes);
    rp_memory_plan_text(plan, &text);
    rp_buffer_append(&text, "", 1);
    assert_non_null(strstr(text.data, "recurrent: 512 bytes for each of 3 sequences"));
    rp_buffer_deinit(&text);
    close_engine();
}

static void test_a_pool_of_snapshots_that_does_not_fit_is_refused_with_its_flag(void **state) {
    (void)state;
    struct rp_error err = {0};
    make_model(RP_FAMILY_LFM2);
    struct rp_engine_config config = config_of(64);
    config.snapshot_bytes = (uint64_t)1 << 50;
    assert_int_equal(rp_engine_create(&config, &fixture_model, &fixture_engine, &err),
                     RP_STATUS_NO_MEMORY);
    assert_non_null(strstr(err.hint, "--state-snapshot-memory-bytes"));
    fixture_engine = NULL;
}

static void test_ranks_of_a_group_are_refused(void **state) {
    (void)state;
    struct rp_error err = {0};
    make_model(RP_FAMILY_LFM2);
    struct rp_engine_config config = config_of(64);
    config.device.ranks = 2;
    assert_int_equal(rp_engine_create(&config, &fixture_model, &fixture_engine, &err),
                     RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "not divided yet"));
    fixture_engine = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_a_short_convolution_gives_each_request_the_bits_that_it_has_alone, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_a_gated_delta_rule_gives_each_request_the_bits_that_it_has_alone, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_a_hit_ends_at_the_last_snapshot_and_the_least_recently_used_goes_first,
            fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_the_memory_plan_counts_state_and_snapshots,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_a_pool_of_snapshots_that_does_not_fit_is_refused_with_its_flag, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_ranks_of_a_group_are_refused, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
