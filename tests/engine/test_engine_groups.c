/* Goal: an engine on a group of ranks answers as on one device, at any load and with every feature,
 * and a rank that fails or hangs ends every request with the cause.
 * Method: the demo model on CPU workers and on fake GPUs. */
#include "engine/layout.h"
#include "engine/observe/step_profile.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"
#include "tests/engine/engine_fixture.h"

#include <math.h>

static struct rp_engine_config group_config(const struct rp_backend *backend, uint32_t ranks) {
    struct rp_engine_config config = fixture_config(backend);
    config.device.ranks = config.device.threads = ranks;
    return config;
}

static void load(enum rp_dtype dtype) {
    char path[1024];
    struct rp_error err = {0};
    rp_model_deinit(&fixture_model);
    rp_test_source("models/demo", path, sizeof path);
    if (rp_model_open(path, dtype, NULL, 0, &fixture_model, &err) != RP_OK)
        fail_msg("%s", err.text); /* its matrices are divided as they come from the file */
}

static void close_engine(void) {
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

/* --- answers --------------------------------------------------------------------------------- */

enum { TOKENS = FIXTURE_REQUESTS * FIXTURE_OUTPUT };
struct answers {
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    uint32_t preemptions, hit_tokens;
};

static struct rp_sample_hold holds[FIXTURE_REQUESTS];

/* The next token's mask: the bits stay as they are. */
static void release_hold(const struct rp_event *event) {
    if (!event->request->hold)
        return;
    atomic_store_explicit(&event->request->hold->released, event->index + 2, memory_order_release);
    rp_engine_notify(fixture_engine);
}

static void drain(struct answers *out, uint32_t count) {
    struct rp_event event;
    while (count > 0) {
        rp_test_await_events(&fixture_wake, fixture_engine);
        while (rp_engine_next_event(fixture_engine, &event)) {
            if (event.kind == RP_EVENT_CLOSED) {
                assert_int_equal(event.finish_reason, RP_FINISH_LENGTH);
                assert_int_equal(event.index, FIXTURE_OUTPUT);
                count--;
                continue;
            }
            assert_int_equal(event.kind, RP_EVENT_TOKEN);
            size_t at = (size_t)event.request->id * FIXTURE_OUTPUT + event.index;
            out->tokens[at] = event.token;
            out->logprobs[at] = event.logprob;
            release_hold(&event);
        }
    }
}

/* Penalties, biases, forbidden words and an allow mask, each for some of the requests. held: the
 * mask comes token by token, as in structured output. */
static void add_features(bool held) {
    static const struct rp_logit_bias biases[] = {{4000, 2.0f}, {7, -1.0f}};
    static const int32_t bad_words[] = {1, 300, 2, 16, 17};
    static uint32_t allowed[4096 / 32];
    memset(allowed, 0x77, sizeof allowed);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        struct rp_request *request = &fixture_requests[i];
        request->logprobs = true;
        request->top_logprobs = 2;
        if (i % 4 == 1)
            request->sampling.repetition_penalty = 1.2f;
        if (i % 4 == 2) {
            request->biases = biases;
            request->bias_count = RP_ARRAY_COUNT(biases);
            request->bad_words = bad_words;
            request->bad_word_ints = RP_ARRAY_COUNT(bad_words);
        }
        if (i % 4 != 3)
            continue;
        holds[i] = (struct rp_sample_hold){.released = 1, .allowed = allowed};
        if (held)
            request->hold = &holds[i];
        else
            request->allowed = allowed;
    }
}

/* All requests at once, or one after the other. */
static void answer(struct rp_engine_config *config, bool alone, bool held, struct answers *out) {
    memset(out, 0, sizeof *out);
    config->mask_deadline_ns = (uint64_t)3600 * 1000000000u;
    fixture_create(config);
    fixture_make_requests();
    add_features(held);
    if (alone)
        fixture_start();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
        if (alone)
            drain(out, 1);
    }
    if (!alone) {
        fixture_start();
        drain(out, FIXTURE_REQUESTS);
    }
    rp_engine_stop(fixture_engine);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    out->preemptions = (uint32_t)rp_counter_read(&metrics->preemptions);
    out->hit_tokens = (uint32_t)rp_counter_read(&metrics->prefix_hit_tokens);
    close_engine();
}

static void test_groups_answer_as_one_device_does_in_f32(void **state) {
    static struct answers one, many;
    (void)state;
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        struct rp_engine_config config = group_config(NULL, ranks);
        double worst = 0.0;
        config.kv_dtype = RP_DTYPE_F32;
        load(RP_DTYPE_F32);
        answer(&config, false, false, ranks == 1 ? &one : &many);
        for (uint32_t i = 0; i < TOKENS && ranks > 1; i++)
            worst = fmax(worst, fabs((double)one.logprobs[i] - (double)many.logprobs[i]));
        printf("%u ranks: worst log-probability %.2e\n", ranks, worst);
        assert_true(worst <= 1e-4);
        if (ranks > 1)
            assert_memory_equal(one.tokens, many.tokens, sizeof one.tokens);
    }
}

static void test_answers_of_a_group_are_equal_at_any_load(void **state) {
    static struct answers first, other;
    (void)state;
    struct rp_engine_config config = group_config(NULL, 2);
    load(RP_MODEL_DTYPE_AUTO);
    answer(&config, false, false, &first);
    assert_true(first.hit_tokens > 0);
    for (int way = 0; way < 5; way++) {
        config = group_config(way == 4 ? fake_backend() : NULL, 2);
        config.run_ahead = way != 1;
        config.page_count_override = way == 2 ? 24 : 0; /* sequences are swapped */
        config.page_tokens = way == 2 ? 8 : 16;
        config.enforce_eager = way == 3;
        config.debug_poison = way == 3;
        load(RP_MODEL_DTYPE_AUTO);
        answer(&config, way == 0, way == 0 || way == 4, &other);
        assert_int_equal(other.preemptions > 0, way == 2);
        assert_memory_equal(first.tokens, other.tokens, sizeof first.tokens);
        assert_memory_equal(first.logprobs, other.logprobs, sizeof first.logprobs);
    }
}

/* The weights of both have the same bits. */
static void test_devices_that_quantize_answer_as_the_host_s_weights_do(void **state) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_INT8, RP_QUANT_FP8};
    static struct answers host, device;
    char path[1024];
    (void)state;
    rp_test_source("models/demo", path, sizeof path);
    for (uint32_t i = 0; i < 4; i++) {
        const struct rp_model_quantization quantization = {schemes[i / 2], false};
        for (int way = 0; way < 2; way++) {
            rp_model_deinit(&fixture_model);
            assert_int_equal(
                rp_model_open(path, RP_MODEL_DTYPE_AUTO, &quantization, 0, &fixture_model, NULL),
                RP_OK);
            fake_backend_config.host_quantizes = way == 0;
            fake_backend_quantized = 0;
            struct rp_engine_config config = group_config(fake_backend(), 1 + i % 2);
            answer(&config, false, false, way == 0 ? &host : &device);
            /* FP8: down alone has rows that are wide enough. */
            uint32_t late = fixture_model.config.layers * (i < 2 ? 4 : 1) * (1 + i % 2);
            assert_int_equal(fake_backend_quantized, way == 0 ? 0 : late);
        }
        assert_memory_equal(host.tokens, device.tokens, sizeof host.tokens);
        assert_memory_equal(host.logprobs, device.logprobs, sizeof host.logprobs);
    }
}

/* --- profiles -------------------------------------------------------------------------------- */

/* Nodes of every rank, with their names: that a rank waits for the others is a node of its own. */
static void test_profiles_show_each_rank_and_its_waiting(void **state) {
    static const struct rp_recorder_config sizes = {.seconds = 8, .mib = 8};
    struct rp_recorder *recorder;
    struct rp_recording recording = {0};
    struct rp_error err = {0};
    (void)state;
    rp_tick_start();
    assert_int_equal(rp_recorder_create(&sizes, &recorder, &err), RP_OK);
    struct rp_engine_config config = group_config(NULL, 4);
    config.profile_every = 1;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    load(RP_MODEL_DTYPE_AUTO);
    fixture_open(&config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    rp_engine_stop(fixture_engine);
    assert_true(rp_recorder_copy(recorder, 0, &recording));
    const struct rp_profile_nodes *nodes = &rp_engine_profile(fixture_engine)->nodes;
    uint32_t seen[4] = {0}, waits[4] = {0};
    for (uint64_t i = 0; i < recording.event_count; i++) {
        const struct rp_trace_event *event = &recording.events[i];
        if (event->kind != RP_TRACE_NODE && event->kind != RP_TRACE_RANK_NODE)
            continue;
        uint32_t rank = event->kind == RP_TRACE_NODE ? 0 : event->a >> 16;
        const struct rp_profile_node *node = &nodes->buckets[event->b].nodes[event->a & 0xFFFFu];
        char name[RP_PROFILE_NAME_MAX];
        assert_in_range(rank, 0, 3);
        rp_profile_node_name(nodes, node, true, name);
        seen[rank]++;
        waits[rank] += strstr(name, "(exchange_wait)") != NULL;
    }
    for (uint32_t rank = 0; rank < 4; rank++) {
        uint64_t steps = rp_counter_read(&rp_engine_metrics(fixture_engine)->steps);
        /* Two for each layer; a node that took no time that the clock shows has no event. */
        assert_true(waits[rank] > steps * fixture_model.config.layers);
        assert_true(seen[rank] > 2 * waits[rank]);
    }
    close_engine();
    rp_recording_deinit(&recording);
    rp_recorder_destroy(recorder);
    rp_tick_stop();
}

/* --- memory ---------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct rp_memory_plan *plan, const char *name) {
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, name) == 0)
            return plan->items[i].bytes;
    return 0;
}

static void test_the_memory_plan_is_of_each_rank(void **state) {
    struct rp_memory_plan alone, shared;
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct rp_engine_config config = group_config(NULL, ranks);
        config.page_count_override = 64;
        load(RP_MODEL_DTYPE_AUTO);
        fixture_create(&config);
        *(ranks == 1 ? &alone : &shared) = *rp_engine_memory_plan(fixture_engine);
        close_engine();
    }
    assert_int_equal(alone.ranks, 1);
    assert_int_equal(shared.ranks, 2);
    assert_int_equal(bytes_of(&alone, "exchange"), 0);
    assert_true(bytes_of(&shared, "exchange") > 0);
    assert_int_equal(2 * bytes_of(&shared, "KV pool"), bytes_of(&alone, "KV pool"));
    assert_int_equal(shared.page_count, alone.page_count);
    uint64_t whole = bytes_of(&alone, "weights"), part = bytes_of(&shared, "weights");
    assert_true(2 * part >= whole && 2 * part - whole < whole / 100); /* norms are on each */
}

static void test_each_gpu_of_a_group_has_what_the_plan_says(void **state) {
    struct rp_device_memory memory;
    (void)state;
    struct rp_engine_config config = group_config(fake_backend(), 2);
    load(RP_MODEL_DTYPE_AUTO);
    fixture_open(&config);
    const struct rp_memory_plan *plan = rp_engine_memory_plan(fixture_engine);
    fake_backend_memory(&memory); /* of the last rank */
    uint64_t used = memory.total_bytes - memory.free_bytes;
    assert_true(plan->measured);
    assert_true(plan->total_bytes <= used + used / 100 && used <= plan->total_bytes + used / 100);
    assert_true(used <= (uint64_t)(0.92 * (double)memory.total_bytes));
    uint64_t allocations = memory.allocation_count;
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    fake_backend_memory(&memory);
    assert_int_equal(memory.allocation_count, allocations);
}

static void test_a_model_that_cannot_be_divided_is_refused_by_name(void **state) {
    struct rp_error err = {0};
    (void)state;
    struct rp_engine_config config = group_config(NULL, 8);
    load(RP_MODEL_DTYPE_AUTO); /* 4 heads */
    assert_int_equal(rp_engine_create(&config, &fixture_model, &fixture_engine, &err),
                     RP_STATUS_UNSUPPORTED);
    fixture_engine = NULL;
    assert_non_null(strstr(err.text, "num_attention_heads of 4"));
    assert_non_null(strstr(err.hint, "--tensor-parallel-size 1, 2, 4"));
}

/* --- faults ---------------------------------------------------------------------------------- */

static void fail_with(struct rp_engine_config *config, enum rp_device_fault fault,
                      const char *cause) {
    config->fault = fault;
    config->fault_step = 3;
    fixture_open(config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(fixture_answers[i].closed, 1);
        assert_int_equal(fixture_answers[i].finish, RP_FINISH_ERROR);
    }
    if (!strstr(rp_engine_failure(fixture_engine), cause))
        fail_msg("\"%s\" does not say \"%s\"", rp_engine_failure(fixture_engine), cause);
    rp_engine_stop(fixture_engine);
}

static void test_a_rank_that_fails_ends_every_request_with_its_cause(void **state) {
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        struct rp_engine_config config =
            group_config(variant == 1 ? fake_backend() : NULL, variant == 2 ? 4 : 2);
        config.run_ahead = variant != 2;
        load(RP_MODEL_DTYPE_AUTO);
        fail_with(&config, RP_DEVICE_FAULT_TRAP,
                  variant == 2 ? "rank 3 of 4: injected: trap" : "rank 1 of 2: injected: trap");
        close_engine();
    }
}

/* Such an engine and its weights cannot be freed; referenced here for the leak checker. */
static struct rp_engine *volatile hanging;
static struct rp_model *volatile hanging_model;

static void test_a_rank_that_hangs_trips_the_watchdog_and_nobody_waits_for_it(void **state) {
    (void)state;
    struct rp_engine_config config = group_config(NULL, 2);
    config.watchdog_seconds = 0.3;
    load(RP_MODEL_DTYPE_AUTO);
    fail_with(&config, RP_DEVICE_FAULT_HANG, "no progress for 0.3 s");
    rp_engine_destroy(fixture_engine); /* returns */
    struct rp_model *model = rp_alloc(sizeof *model);
    assert_non_null(model);
    *model = fixture_model;
    memset(&fixture_model, 0, sizeof fixture_model);
    hanging_model = model;
    hanging = fixture_engine;
    fixture_engine = NULL;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_groups_answer_as_one_device_does_in_f32),
        TEST(test_answers_of_a_group_are_equal_at_any_load),
        TEST(test_devices_that_quantize_answer_as_the_host_s_weights_do),
        TEST(test_profiles_show_each_rank_and_its_waiting),
        TEST(test_the_memory_plan_is_of_each_rank),
        TEST(test_each_gpu_of_a_group_has_what_the_plan_says),
        TEST(test_a_model_that_cannot_be_divided_is_refused_by_name),
        TEST(test_a_rank_that_fails_ends_every_request_with_its_cause),
        TEST(test_a_rank_that_hangs_trips_the_watchdog_and_nobody_waits_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
