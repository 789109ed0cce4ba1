/* Goal: an engine on a GPU uses its share of the memory, reports it by purpose, and allocates no
 * more once it is ready.
 * Method: the demo model on a fake GPU (tests/support/fake_backend.h) of a few hundred MiB. Only
 * its kernels can access device addresses, and its driver reports more memory in use than was
 * allocated. */
#include "engine/layout.h"
#include "engine/observe/profile_report.h"
#include "tests/engine/engine_fixture.h"

static uint64_t bytes_of(const struct rp_memory_plan *plan, const char *name) {
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, name) == 0)
            return plan->items[i].bytes;
    fail_msg("no %s", name);
    return 0;
}

static uint64_t difference(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

/* As in `reprise inspect`: nothing is loaded. */
static void plan_without_loading(const struct rp_engine_config *given, struct rp_memory_plan *out) {
    struct rp_engine_config config = *given;
    struct rp_engine_layout *layout = rp_calloc(1, sizeof *layout);
    struct rp_device_info info;
    struct rp_device_memory memory;
    struct rp_device *device;
    struct rp_model described;
    struct rp_program program;
    assert_non_null(layout);
    rp_program_init(&program);
    assert_int_equal(
        rp_model_describe(&fixture_model.config, RP_MODEL_DTYPE_AUTO, &described, NULL), RP_OK);
    assert_int_equal(rp_model_emit(&described, &program, NULL), RP_OK);
    assert_int_equal(config.backend->open(&config.device, &device, NULL), RP_OK);
    config.backend->info(device, &info);
    config.backend->memory(device, &memory);
    rp_engine_config_resolve(&config, &info);
    assert_int_equal(
        rp_engine_layout_make(&config, &described, &program, &info, &memory, layout, NULL), RP_OK);
    *out = layout->plan;
    config.backend->close(device);
    rp_program_deinit(&program);
    rp_model_deinit(&described);
    rp_free(layout);
}

static void test_the_table_adds_up_to_what_the_driver_says(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_device_memory memory;
    fixture_open(&config);
    const struct rp_memory_plan *plan = rp_engine_memory_plan(fixture_engine);
    uint64_t sum = 0;
    fake_backend_memory(&memory);
    uint64_t used = memory.total_bytes - memory.free_bytes;
    for (uint32_t i = 0; i < plan->item_count; i++)
        sum += plan->items[i].on_host ? 0 : plan->items[i].bytes;
    assert_int_equal(sum, plan->total_bytes);
    assert_true(plan->measured);
    assert_true(difference(sum, used) <= used / 100);
    assert_int_equal(bytes_of(plan, "context"), fake_backend_config.context_bytes);
    /* Two captures per size, each with its first replay. */
    uint64_t per_graph = fake_backend_config.capture_bytes + fake_backend_config.first_replay_bytes;
    assert_int_equal(bytes_of(plan, "graphs"),
                     2 * rp_engine_graph_count(fixture_engine) * per_graph);
    /* Its whole share, up to a granule and a page. */
    uint64_t limit = (uint64_t)(0.92 * (double)memory.total_bytes);
    assert_true(used <= limit && limit - used < (uint64_t)1 << 20);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint64_t exported = 0;
    for (int use = 0; use < RP_MEMORY_USE_COUNT; use++)
        exported += (uint64_t)rp_gauge_read(&metrics->memory[use]);
    assert_int_equal(exported, sum);
}

static void test_answers_are_those_of_the_host_and_nothing_allocates_after_ready(void **state) {
    (void)state;
    struct fixture_answer expected[FIXTURE_REQUESTS];
    struct rp_device_memory before, after;
    struct rp_engine_config config = fixture_config(NULL);
    config.page_count_override = 512;
    fixture_open(&config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    memcpy(expected, fixture_answers, sizeof expected);
    rp_engine_destroy(fixture_engine);
    for (int small = 0; small < 2; small++) { /* with so few pages that sequences are swapped */
        config = fixture_config(fake_backend());
        config.page_count_override = small ? 24 : 0;
        config.page_tokens = small ? 8 : 16;
        fixture_create(&config);
        fake_backend_memory(&before);
        uint64_t host_before = rp_alloc_count();
        fixture_submit_all();
        fixture_start();
        fixture_drain(FIXTURE_REQUESTS);
        fake_backend_memory(&after);
        assert_int_equal(rp_alloc_count(), host_before);
        assert_int_equal(after.allocation_count, before.allocation_count);
        assert_int_equal(after.free_bytes, before.free_bytes);
        for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
            assert_int_equal(fixture_answers[i].finish, expected[i].finish);
            assert_int_equal(fixture_answers[i].count, expected[i].count);
            assert_memory_equal(fixture_answers[i].tokens, expected[i].tokens,
                                sizeof expected[i].tokens);
        }
        rp_engine_stop(fixture_engine);
        assert_true(!small || rp_counter_read(&rp_engine_metrics(fixture_engine)->preemptions) > 0);
        assert_int_equal(rp_counter_read(&rp_engine_metrics(fixture_engine)->allocations),
                         after.allocation_count);
        rp_engine_destroy(fixture_engine); /* the fake asserts that everything was freed */
        fixture_engine = NULL;
        rp_model_deinit(&fixture_model);
        fixture_load_model();
    }
}

static void test_what_was_planned_is_never_more_than_what_is_mapped(void **state) {
    (void)state;
    for (uint64_t mib = 64; mib <= 512; mib *= 2) {
        struct rp_memory_plan planned;
        struct rp_engine_config config = fixture_config(fake_backend());
        fake_backend_config.memory_bytes = mib << 20;
        plan_without_loading(&config, &planned);
        assert_false(planned.measured);
        fixture_open(&config);
        const struct rp_memory_plan *plan = rp_engine_memory_plan(fixture_engine);
        assert_true(planned.kv_tokens <= plan->kv_tokens);
        assert_int_equal(planned.max_model_len, plan->max_model_len);
        assert_true(plan->max_model_len <= plan->kv_tokens);
        /* The plan counts norms with the weights; after the upload they count as workspace. */
        uint64_t weights = bytes_of(plan, "weights");
        assert_in_range(bytes_of(&planned, "weights"), weights, weights + weights / 100);
        assert_int_equal(bytes_of(&planned, "activations"), bytes_of(plan, "activations"));
        assert_int_equal(bytes_of(&planned, "slots"), bytes_of(plan, "slots"));
        rp_engine_destroy(fixture_engine);
        fixture_engine = NULL;
        rp_model_deinit(&fixture_model);
        fixture_load_model();
    }
}

static void test_a_context_that_is_cut_to_the_gpu_is_served_in_full(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_memory_plan planned;
    /* Just enough for a few pages. */
    fake_backend_config.memory_bytes = (uint64_t)48 << 20;
    for (plan_without_loading(&config, &planned); planned.max_model_len == 1024;
         plan_without_loading(&config, &planned))
        fake_backend_config.memory_bytes -= (uint64_t)256 << 10;
    fixture_open(&config);
    uint32_t context = rp_engine_max_model_len(fixture_engine);
    assert_in_range(context, 16, 1023);
    assert_true(rp_engine_fits(fixture_engine, context / 2, context - context / 2));
}

/* Creates an engine that does not fit, and returns the error. */
static void refused(const struct rp_engine_config *config, struct rp_error *err) {
    memset(err, 0, sizeof *err);
    assert_int_equal(rp_engine_create(config, &fixture_model, &fixture_engine, err),
                     RP_STATUS_NO_MEMORY);
    rp_model_deinit(&fixture_model);
    fixture_load_model();
}

static void test_a_gpu_that_is_too_small_says_what_is_missing_and_what_would_fit(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_error err;
    double share;
    fake_backend_config.memory_bytes = (uint64_t)64 << 20;
    config.memory_utilization = 0.3;
    refused(&config, &err);
    assert_non_null(strstr(err.text, "weights 14.0"));
    assert_non_null(strstr(err.text, "the GPU has 64.00 MiB"));
    assert_int_equal(sscanf(err.hint, "try --gpu-memory-utilization %lf", &share), 1);
    config.memory_utilization = share;
    fixture_open(&config);
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
    rp_model_deinit(&fixture_model);
    fixture_load_model();
    fake_backend_config.memory_bytes = (uint64_t)16 << 20;
    refused(&config, &err);
    assert_non_null(strstr(err.text, "needed"));
    assert_int_not_equal(err.hint[0], '\0');
}

static void test_a_pool_that_was_asked_for_is_made_or_refused_with_the_largest(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_error err;
    unsigned pages;
    config.page_count_override = 1000000;
    refused(&config, &err);
    assert_int_equal(sscanf(err.hint, "try --num-gpu-blocks-override %u", &pages), 1);
    config.page_count_override = pages - 1; /* and the padding page */
    fixture_open(&config);
    assert_int_equal(rp_engine_memory_plan(fixture_engine)->page_count, pages);
}

static void test_graphs_that_take_more_than_was_planned_end_the_start(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_error err;
    /* Two graphs for each of seven sizes: detected only at their first replays, when the promised
     * context no longer fits. */
    fake_backend_config.first_replay_bytes = fake_backend_config.memory_bytes / 16;
    config.max_model_len = 1024;
    refused(&config, &err);
    assert_non_null(strstr(err.text, "graphs and slots"));
    assert_int_not_equal(err.hint[0], '\0');
}

static void test_a_size_whose_capture_fails_is_left_out_and_its_steps_still_run(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    uint32_t failed = 0;
    fake_backend_config.failing_tokens = 16;
    fixture_open(&config);
    for (uint32_t i = 0; i < rp_engine_graph_count(fixture_engine); i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(fixture_engine, i, &graph);
        assert_int_equal(graph.captured, graph.bucket.tokens != 16);
        failed += !graph.captured;
    }
    assert_true(failed > 0);
    fixture_submit_all(); /* prompts of 1 to 120 tokens */
    fixture_drain(FIXTURE_REQUESTS);
    uint32_t ended = 0;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        ended += fixture_answers[i].finish == RP_FINISH_LENGTH;
    assert_int_equal(ended, FIXTURE_REQUESTS);
    fixture_make_requests(); /* a short one alone would run in it */
    fixture_requests[0].prompt_count = 8;
    assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[0]), RP_OK);
    fixture_drain(1);
    uint64_t replays = 0;
    for (uint32_t i = 0; i < rp_engine_graph_count(fixture_engine); i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(fixture_engine, i, &graph);
        assert_true(graph.captured || graph.replays == 0);
        replays += graph.replays;
    }
    rp_engine_stop(fixture_engine);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint64_t fallbacks = rp_counter_read(&metrics->misses[RP_MISS_CAPTURE_FAILED]);
    assert_int_equal(replays, rp_counter_read(&metrics->steps));
    assert_true(fallbacks > 0 && fallbacks < replays);
    assert_int_equal(rp_counter_read(&metrics->misses[RP_MISS_NONE]), replays - fallbacks);
    struct rp_profile_query query = {.group = RP_PROFILE_BY_BUCKET};
    struct rp_profile_table table;
    assert_int_equal(rp_engine_profile_table(fixture_engine, &query, &table), RP_OK);
    assert_int_equal(table.footer.misses[RP_MISS_CAPTURE_FAILED], fallbacks);
    assert_int_equal(table.footer.misses[RP_MISS_NONE], replays - fallbacks);
    rp_profile_table_deinit(&table);
}

static void test_an_engine_whose_largest_size_fails_does_not_start(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_error err;
    fake_backend_config.failing_tokens = 64;
    refused(&config, &err);
    assert_non_null(strstr(err.hint, "--max-num-batched-tokens"));
}

static void test_a_gpu_makes_random_weights_by_itself(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_model_config shape = fixture_model.config;
    rp_model_deinit(&fixture_model);
    assert_int_equal(rp_model_random_vectors(&shape, RP_DTYPE_BF16, 1, 0, &fixture_model, NULL),
                     RP_OK);
    assert_null(rp_model_matrix(&fixture_model, RP_WEIGHT_EMBED, RP_LAYER_NONE)->data);
    fixture_open(&config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(fixture_answers[i].finish, RP_FINISH_LENGTH); /* no NaN */
}

static void test_defaults_are_those_of_the_device(void **state) {
    (void)state;
    const struct rp_device_info cpu = {.page_tokens = 16};
    const struct rp_device_info gpu = {.page_tokens = 64, .separate_memory = true};
    struct rp_engine_config config = {.swap_bytes = RP_SWAP_BYTES_AUTO};
    rp_engine_config_resolve(&config, &cpu);
    assert_int_equal(config.max_num_seqs, 64);
    assert_int_equal(config.max_num_batched_tokens, 512);
    assert_int_equal(config.page_tokens, 16);
    assert_true(config.swap_bytes <= (uint64_t)4 << 30);
    config = (struct rp_engine_config){.max_num_seqs = 3};
    rp_engine_config_resolve(&config, &gpu);
    assert_int_equal(config.max_num_seqs, 3);
    assert_int_equal(config.max_num_batched_tokens, 2048);
    assert_int_equal(config.page_tokens, 64);
    assert_int_equal(config.swap_bytes, 0);
    assert_true(config.memory_utilization > 0.919 && config.memory_utilization < 0.921);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_the_table_adds_up_to_what_the_driver_says),
        TEST(test_answers_are_those_of_the_host_and_nothing_allocates_after_ready),
        TEST(test_what_was_planned_is_never_more_than_what_is_mapped),
        TEST(test_a_context_that_is_cut_to_the_gpu_is_served_in_full),
        TEST(test_a_gpu_that_is_too_small_says_what_is_missing_and_what_would_fit),
        TEST(test_a_pool_that_was_asked_for_is_made_or_refused_with_the_largest),
        TEST(test_graphs_that_take_more_than_was_planned_end_the_start),
        TEST(test_a_size_whose_capture_fails_is_left_out_and_its_steps_still_run),
        TEST(test_an_engine_whose_largest_size_fails_does_not_start),
        TEST(test_a_gpu_makes_random_weights_by_itself),
        TEST(test_defaults_are_those_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
