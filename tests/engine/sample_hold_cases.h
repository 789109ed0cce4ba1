/* sample_hold_cases.h - steps whose rows wait for the host before sampling, on hold_backend and on
 * the CPU. The test owns the holds and advances the deadline's clock. Included once per test
 * program. */
#ifndef RP_TESTS_ENGINE_SAMPLE_HOLD_CASES_H
#define RP_TESTS_ENGINE_SAMPLE_HOLD_CASES_H

#include "tests/engine/engine_fixture.h"

#include "metrics/metrics.h"

#include <stdlib.h>
#include <time.h>

enum { DEADLINE_NS = 500, HELD = 4, POLLS = 20 };

static const struct rp_backend *hold_backend;            /* set by main */
static struct fixture_answer expected[FIXTURE_REQUESTS]; /* without holds */
static struct rp_sample_hold hold;
static uint32_t *mask;     /* hold.allowed */
static uint32_t mask_keys; /* masks repeat after so many tokens, with keys; 0: never, without */
static _Atomic uint64_t clock_ns, clock_calls;
static struct rp_backend counted;
static uint32_t launches, idle_waits;

static uint64_t read_clock(void *ctx) {
    (void)ctx;
    atomic_fetch_add(&clock_calls, 1);
    return atomic_load(&clock_ns);
}

static int count_launch(struct rp_device *device, struct rp_graph *graph) {
    launches++;
    return hold_backend->launch(device, graph);
}

static int count_idle_wait(struct rp_device *device, uint64_t deadline_ns) {
    idle_waits++;
    return hold_backend->wait_idle(device, deadline_ns);
}

static struct rp_engine_config hold_config(void) {
    struct rp_engine_config config = fixture_config(&counted);
    counted = *hold_backend;
    counted.launch = count_launch;
    counted.wait_idle = count_idle_wait;
    config.kv_cache_bytes = (uint64_t)16 << 20;
    config.mask_deadline_ns = DEADLINE_NS;
    config.hold_clock = read_clock;
    atomic_store(&clock_ns, 1000);
    atomic_store(&clock_calls, 0);
    return config;
}

/* All requests with the hold (NULL: without) on one of them, none of them running yet. */
static void begin(const struct rp_engine_config *config, struct rp_sample_hold *held) {
    fixture_create(config);
    fixture_make_requests();
    fixture_requests[HELD].hold = held;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
    launches = idle_waits = 0;
    fixture_start();
}

static void end(void) {
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
    rp_model_deinit(&fixture_model);
    fixture_load_model(); /* its weights were moved to the GPU */
    while (sem_trywait(&fixture_wake) == 0) {
    }
}

/* The only id that the mask of token `index` allows. */
static uint32_t only_id(uint32_t index) {
    uint32_t which = mask_keys ? index % mask_keys : index;
    return (which * 61 + 7) % fixture_model.config.vocab;
}

/* Releases the tokens up to `index`, with the mask of that one if the hold has masks. */
static void release_token(uint32_t index) {
    if (mask) {
        memset(mask, 0, RP_CEIL_DIV(fixture_model.config.vocab, 32) * sizeof *mask);
        mask[only_id(index) / 32] |= 1u << only_id(index) % 32;
        hold.key = mask_keys ? 1 + index % mask_keys : 0;
    }
    atomic_store(&hold.released, index + 1);
    rp_engine_notify(fixture_engine);
}

/* Drains the event ring; the owner of the hold releases tokens up to `limit`, each after its
 * predecessor was received. Returns how many requests have closed. */
static uint32_t drain(uint32_t limit) {
    struct rp_event event;
    uint32_t closed = 0;
    while (rp_engine_next_event(fixture_engine, &event)) {
        struct fixture_answer *answer = &fixture_answers[event.request->id];
        assert_int_equal(answer->closed, 0);
        if (event.kind == RP_EVENT_CLOSED) {
            answer->finish = event.finish_reason;
            answer->closed++;
            closed++;
            continue;
        }
        answer->tokens[answer->count++] = event.token;
        if (event.request->hold && answer->count < limit)
            release_token(answer->count);
    }
    return closed;
}

static uint32_t token_count(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        count += fixture_answers[i].count;
    return count;
}

/* Waits until the engine has checked its deadline this many more times: it is in a held step whose
 * forward has ended, and everything before it was emitted. */
static uint32_t drain_until_polled(uint32_t limit) {
    const struct timespec pause = {.tv_nsec = 100000};
    uint64_t until = atomic_load(&clock_calls) + POLLS;
    uint32_t closed = 0;
    while (atomic_load(&clock_calls) < until) {
        closed += drain(limit);
        nanosleep(&pause, NULL);
    }
    return closed + drain(limit);
}

static void drain_all(uint32_t limit, uint32_t closed) {
    while (closed < FIXTURE_REQUESTS) {
        rp_test_await_events(&fixture_wake, fixture_engine);
        closed += drain(limit);
    }
}

static void assert_answers(bool with_held) {
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        if (i == HELD && !with_held)
            continue;
        assert_int_equal(fixture_answers[i].finish, expected[i].finish);
        assert_int_equal(fixture_answers[i].count, expected[i].count);
        assert_memory_equal(fixture_answers[i].tokens, expected[i].tokens,
                            expected[i].count * sizeof expected[i].tokens[0]);
    }
}

static void assert_pages_are_free(void) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    rp_engine_stop(fixture_engine); /* gauges are from the last turn */
    assert_int_equal(rp_gauge_read(&metrics->pages_held), 0);
    assert_int_equal(rp_gauge_read(&metrics->pages_free) + rp_gauge_read(&metrics->pages_cached),
                     rp_gauge_read(&metrics->pages_total));
}

enum { CONFIGS = 4 };

static void expect_answers(const struct rp_engine_config *config, uint32_t index) {
    static struct fixture_answer answers[CONFIGS][FIXTURE_REQUESTS];
    if (!answers[index][0].closed) {
        begin(config, NULL);
        drain_all(0, 0);
        memcpy(answers[index], fixture_answers, sizeof fixture_answers);
        end();
    }
    memcpy(expected, answers[index], sizeof expected);
}

static void test_steps_without_holds_launch_and_wait_as_ever(void **state) {
    (void)state;
    const struct rp_engine_config config = hold_config();
    begin(&config, NULL);
    drain_all(0, 0);
    rp_engine_stop(fixture_engine);
    assert_int_equal(launches, 2 * rp_counter_read(&rp_engine_metrics(fixture_engine)->steps));
    assert_int_equal(idle_waits, 0);
    assert_int_equal(atomic_load(&clock_calls), 0);
}

/* Launch modes of steps: bit i of `which` for the i-th. */
static void for_configs(uint32_t which, void (*check)(const struct rp_engine_config *config)) {
    for (uint32_t i = 0; i < CONFIGS; i++) {
        if (!(which >> i & 1))
            continue;
        struct rp_engine_config config = hold_config();
        config.run_ahead = i != 1;
        config.enforce_eager = i == 2;
        config.debug_poison = i == 1;
        config.profile_every = i == 0;
        if (i == 3) {
            config.backend = NULL; /* the CPU */
            config.device.short_steps_here = true;
        }
        expect_answers(&config, i);
        check(&config);
        end();
    }
}

static void check_released(const struct rp_engine_config *config) {
    hold = (struct rp_sample_hold){.released = 1};
    begin(config, &hold);
    drain_all(UINT32_MAX, 0);
    assert_answers(true);
    assert_pages_are_free();
    assert_int_equal(rp_counter_read(&rp_engine_metrics(fixture_engine)->mask_deadlines), 0);
}

static void test_holds_released_in_time_change_no_token(void **state) {
    (void)state;
    for_configs(0x3, check_released);
}

static void check_withheld(const struct rp_engine_config *config) {
    const uint32_t limit = 5;
    hold = (struct rp_sample_hold){.released = 1};
    begin(config, &hold);
    /* Its sixth token is held: no request gets a token until the deadline has passed. */
    uint32_t closed = 0;
    while (fixture_answers[HELD].count < limit) {
        rp_test_await_events(&fixture_wake, fixture_engine);
        closed += drain(limit);
    }
    closed += drain_until_polled(limit);
    uint32_t tokens = token_count();
    atomic_fetch_add(&clock_ns, DEADLINE_NS - 1);
    assert_int_equal(drain_until_polled(limit), 0);
    assert_int_equal(token_count(), tokens);
    atomic_fetch_add(&clock_ns, 1);
    drain_all(limit, closed);
    assert_answers(false);
    assert_int_equal(fixture_answers[HELD].finish, RP_FINISH_MASK_DEADLINE);
    assert_int_equal(fixture_answers[HELD].count, limit);
    assert_memory_equal(fixture_answers[HELD].tokens, expected[HELD].tokens,
                        limit * sizeof expected[HELD].tokens[0]);
    assert_pages_are_free();
    assert_int_equal(rp_counter_read(&rp_engine_metrics(fixture_engine)->mask_deadlines), 1);
}

static void test_a_withheld_row_ends_and_the_others_get_their_tokens(void **state) {
    (void)state;
    for_configs(0xf, check_withheld);
}

static void check_cancelled(const struct rp_engine_config *config) {
    hold = (struct rp_sample_hold){.released = 1};
    begin(config, &hold);
    uint32_t closed = drain_until_polled(1); /* held at its second token forever */
    atomic_store(&fixture_requests[HELD].cancelled, true);
    rp_engine_notify(fixture_engine);
    drain_all(1, closed);
    assert_answers(false);
    assert_int_equal(fixture_answers[HELD].finish, RP_FINISH_CANCELLED);
    assert_pages_are_free();
    assert_int_equal(rp_counter_read(&rp_engine_metrics(fixture_engine)->mask_deadlines), 0);
}

static void test_a_cancelled_request_holds_nobody_up(void **state) {
    (void)state;
    for_configs(0x1, check_cancelled);
}

static void test_an_engine_can_be_stopped_while_a_step_is_held(void **state) {
    (void)state;
    const struct rp_engine_config config = hold_config();
    hold = (struct rp_sample_hold){.released = 0};
    begin(&config, &hold);
    uint32_t closed = drain_until_polled(0);
    rp_engine_stop(fixture_engine);
    closed += drain(0);
    assert_int_equal(closed, FIXTURE_REQUESTS);
    assert_int_equal(fixture_answers[HELD].finish, RP_FINISH_ERROR);
}

static void check_masks(const struct rp_engine_config *config) {
    mask = calloc(RP_CEIL_DIV(fixture_model.config.vocab, 32), sizeof *mask);
    assert_non_null(mask);
    hold = (struct rp_sample_hold){.allowed = mask};
    begin(config, &hold);
    release_token(0);
    drain_all(UINT32_MAX, 0);
    free(mask);
    mask = NULL;
    assert_answers(false);
    assert_int_equal(fixture_answers[HELD].count, FIXTURE_OUTPUT);
    for (uint32_t i = 0; i < FIXTURE_OUTPUT; i++)
        assert_int_equal(fixture_answers[HELD].tokens[i], (int32_t)only_id(i));
    assert_int_equal(rp_counter_read(&rp_engine_metrics(fixture_engine)->masks_placed),
                     mask_keys ? mask_keys : FIXTURE_OUTPUT);
}

static void test_a_mask_written_while_forward_runs_is_obeyed(void **state) {
    (void)state;
    for_configs(0x9, check_masks);
}

static void test_a_mask_that_the_device_has_is_not_copied_again(void **state) {
    (void)state;
    mask_keys = 3;
    for_configs(0x9, check_masks);
    mask_keys = 0;
}

/* A device that fails while a step is held: everything ends with the device's failure. */
static void test_a_device_fault_ends_a_held_step(void **state) {
    (void)state;
    struct rp_engine_config config = hold_config();
    config.fault_step = 1;
    hold = (struct rp_sample_hold){.released = 0};
    begin(&config, &hold);
    drain_all(0, 0);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(fixture_answers[i].finish, RP_FINISH_ERROR);
    assert_non_null(rp_engine_failure(fixture_engine));
}

static const struct CMUnitTest hold_tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    TEST(test_steps_without_holds_launch_and_wait_as_ever),
    TEST(test_holds_released_in_time_change_no_token),
    TEST(test_a_withheld_row_ends_and_the_others_get_their_tokens),
    TEST(test_a_cancelled_request_holds_nobody_up),
    TEST(test_an_engine_can_be_stopped_while_a_step_is_held),
    TEST(test_a_mask_written_while_forward_runs_is_obeyed),
    TEST(test_a_mask_that_the_device_has_is_not_copied_again),
    TEST(test_a_device_fault_ends_a_held_step),
#undef TEST
};

#endif
