/* Goal: an answer depends only on its request, and an engine keeps its promises when it is full,
 * stopped or short of memory. Method: streams_fixture.h with the prefix cache on and off, run-ahead
 * 0 and 1, graphs and eager, and a pool so small that sequences are swapped. */
#include "tests/engine/streams_fixture.h"

#include <time.h>

static void test_64_streams_equal_each_one_alone(void **state) {
    (void)state;
    run_alone();
    /* Under the sanitizers a run takes 15 s, so each option has both values, but not all eight
     * combinations. */
    for (int variant = 0; variant < 8; variant += RP_DEBUG ? 3 : 1) {
        struct rp_engine_config config = config_default();
        bool small = variant & 4;
        config.prefix_cache = variant & 1;
        config.run_ahead = variant & 2;
        if (small) { /* room for one of the longest sequences, or a dozen short ones */
            config.page_count_override = SMALL_POOL;
            config.page_tokens = SMALL_PAGE;
        }
        config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
        uint64_t preemptions = run_together(&config);
        printf("prefix cache %d, run-ahead %d, %u pages: %llu preemptions\n", config.prefix_cache,
               config.run_ahead, config.page_count_override, (unsigned long long)preemptions);
        if (small)
            assert_true(preemptions > 0);
    }
}

static void test_eager_unfused_and_poisoned_engines_and_short_steps_give_the_same(void **state) {
    (void)state;
    run_alone();
    for (int variant = 0; variant < 5; variant += RP_DEBUG ? 2 : 1) {
        struct rp_engine_config config = config_default();
        config.device.short_steps_here = variant >= 3;
        config.device.threads = variant == 4 ? 1 : config.device.threads;
        config.enforce_eager = variant == 0;
        config.no_fusion = variant == 1;
        config.debug_poison = variant == 2;
        run_together(&config);
    }
}

static void test_cancelled_requests_close_and_leave_the_others_alone(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.page_count_override = SMALL_POOL;
    config.page_tokens = SMALL_PAGE;
    config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
    run_alone();
    submit_all(&config);
    for (uint32_t i = 0; i < REQUESTS; i += 4) {
        drain(together, i % 8 == 0 && i < 32 ? 1 : 0);
        atomic_store(&requests[i].cancelled, true);
        rp_engine_notify(engine);
    }
    uint32_t open = 0;
    for (uint32_t i = 0; i < REQUESTS; i++)
        open += together[i].closed == 0;
    drain(together, open);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(together[i].closed, 1);
        if (together[i].finish == RP_FINISH_CANCELLED) {
            assert_int_equal(i % 4, 0);
            /* The delivered tokens are the beginning of the answer that it gets alone. */
            assert_memory_equal(together[i].tokens, alone[i].tokens,
                                together[i].count * sizeof alone[i].tokens[0]);
        } else {
            assert_answers_equal(i);
        }
    }
    assert_pages_are_back();
}

/* After a stop: every request has closed once. */
static void assert_all_closed_once(void) {
    struct rp_event event;
    rp_engine_stop(engine);
    while (rp_engine_next_event(engine, &event))
        together[event.request->id].closed += event.kind == RP_EVENT_CLOSED;
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(together[i].closed, 1);
}

static void test_stopping_closes_every_open_request_once(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    submit_all(&config);
    assert_all_closed_once();
}

/* The same with a ring of two events: the others are delivered later. */
static void test_a_full_event_ring_loses_nothing(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.event_capacity = 2;
    run_alone();
    run_together(&config);
    submit_all(&config);
    assert_all_closed_once();
}

/* Nothing is left to plan then, only CLOSED events to deliver, two at a time. */
static void test_ends_follow_at_once_when_a_full_ring_is_drained(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.event_capacity = 2;
    config.max_num_seqs = 1;
    submit_all(&config);
    for (uint32_t i = 0; i < REQUESTS; i++)
        atomic_store(&requests[i].cancelled, true);
    rp_engine_notify(engine);
    uint64_t begin = rp_clock_ns();
    drain(together, REQUESTS);
    assert_true(rp_clock_ns() - begin < 1500000000u); /* 3 s with a sleep of 100 ms each */
}

static void test_a_full_queue_refuses_until_it_has_room(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.queue_capacity = 4;
    config.max_num_seqs = 1;
    make_requests();
    memset(together, 0, sizeof together);
    open_engine(&config);
    uint32_t taken = 0;
    while (taken < REQUESTS && rp_engine_submit(engine, &requests[taken]) == RP_OK)
        taken++;
    assert_in_range(taken, 4, REQUESTS - 1);
    drain(together, taken);
    assert_int_equal(rp_engine_submit(engine, &requests[taken]), RP_OK);
    drain(together, 1);
}

static void test_pages_of_8_bits_are_shared_and_swapped_like_others(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.kv_dtype = RP_DTYPE_INT8;
    config.page_count_override = SMALL_POOL;
    config.page_tokens = SMALL_PAGE;
    config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
    run_alone_with(RP_DTYPE_INT8);
    assert_true(run_together(&config) > 0);
}

/* 100 tokens with the scalar kernels take most of a second. Without the watch inside the step only
 * its beginning and end would be visible. */
static void test_a_long_step_shows_progress_while_it_runs(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    struct rp_event event;
    config.device.scalar_only = true;
    config.device.threads = 1;
    make_requests();
    open_engine(&config);
    requests[0].prompt_count = PROMPT_MAX;
    requests[0].max_tokens = 1;
    assert_int_equal(rp_engine_submit(engine, &requests[0]), RP_OK);
    uint64_t begin = rp_clock_ns(), seen = 0;
    uint32_t changes = 0;
    while (!rp_engine_next_event(engine, &event)) {
        uint64_t progress = rp_engine_last_progress_ns(engine);
        changes += progress != seen;
        seen = progress;
        const struct timespec pause = {.tv_nsec = 5000000};
        nanosleep(&pause, NULL);
    }
    assert_true(rp_clock_ns() - begin < 500000000u || changes > 2);
    rp_engine_stop(engine);
}

static void test_nothing_allocates_while_serving(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    make_requests();
    memset(together, 0, sizeof together);
    open_engine(&config);
    uint64_t before = rp_alloc_count();
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(rp_engine_submit(engine, &requests[i]), RP_OK);
    drain(together, REQUESTS);
    assert_int_equal(rp_alloc_count(), before);
}

static void test_an_allocation_that_fails_at_start_fails_cleanly(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    struct rp_error err = {0};
    config.max_num_seqs = 2;
    config.max_num_batched_tokens = 16;
    int status = RP_STATUS_NO_MEMORY;
    uint32_t failures = 0;
    for (uint32_t n = 1; status != RP_OK; n += 1 + n / 8) {
        rp_alloc_fail_at(n);
        status = rp_engine_create(&config, &model, &engine, &err);
        rp_alloc_fail_at(0);
        failures += status != RP_OK;
        if (status != RP_OK)
            assert_int_not_equal(err.text[0], '\0');
    }
    assert_true(failures > 10);
}

/* For each failing allocation: an engine that starts can run every step that it may plan. */
static void test_an_engine_that_starts_has_its_largest_set(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.max_num_seqs = 2;
    config.max_num_batched_tokens = 16;
    config.page_count_override = 64;
    config.swap_bytes = 0;
    config.device.threads = 1;
    uint64_t before = rp_alloc_count();
    open_engine(&config);
    uint64_t total = rp_alloc_count() - before;
    close_engine(NULL);
    uint32_t survived = 0;
    const uint64_t stride = RP_DEBUG ? 7 : 1; /* under the sanitizers each start costs a second */
    for (uint64_t n = 1; n <= total; n += stride) {
        struct rp_error err = {0};
        rp_alloc_fail_at(n);
        int status = rp_engine_create(&config, &model, &engine, &err);
        rp_alloc_fail_at(0);
        if (status != RP_OK)
            continue;
        survived++;
        make_requests();
        memset(together, 0, sizeof together);
        requests[0].prompt_count = 40; /* three steps, of which two fill the largest set */
        requests[0].max_tokens = 2;
        assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
        assert_int_equal(rp_engine_submit(engine, &requests[0]), RP_OK);
        drain(together, 1);
        assert_int_not_equal(together[0].finish, RP_FINISH_ERROR);
        close_engine(NULL);
    }
    assert_true(survived > 0); /* smaller sets may be missing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_64_streams_equal_each_one_alone, close_engine),
        cmocka_unit_test_teardown(
            test_eager_unfused_and_poisoned_engines_and_short_steps_give_the_same, close_engine),
        cmocka_unit_test_teardown(test_cancelled_requests_close_and_leave_the_others_alone,
                                  close_engine),
        cmocka_unit_test_teardown(test_stopping_closes_every_open_request_once, close_engine),
        cmocka_unit_test_teardown(test_a_full_event_ring_loses_nothing, close_engine),
        cmocka_unit_test_teardown(test_ends_follow_at_once_when_a_full_ring_is_drained,
                                  close_engine),
        cmocka_unit_test_teardown(test_a_full_queue_refuses_until_it_has_room, close_engine),
        cmocka_unit_test_teardown(test_pages_of_8_bits_are_shared_and_swapped_like_others,
                                  close_engine),
        cmocka_unit_test_teardown(test_a_long_step_shows_progress_while_it_runs, close_engine),
        cmocka_unit_test_teardown(test_nothing_allocates_while_serving, close_engine),
        cmocka_unit_test_teardown(test_an_allocation_that_fails_at_start_fails_cleanly,
                                  close_engine),
        cmocka_unit_test_teardown(test_an_engine_that_starts_has_its_largest_set, close_engine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
