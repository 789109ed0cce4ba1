/* Goal: when a device fails or hangs, each request is closed once with an error that names the
 * cause, no request is accepted afterwards, and no thread waits for the device.
 * Method: faults injected before a step, on the CPU's backend and on the fake GPU, with run-ahead
 * 0 and 1, graphs and eager. */
#include "tests/engine/engine_fixture.h"

static void assert_everything_failed(const char *cause) {
    fixture_drain(FIXTURE_REQUESTS);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(fixture_answers[i].closed, 1);
        assert_int_equal(fixture_answers[i].finish, RP_FINISH_ERROR);
    }
    assert_false(rp_engine_is_healthy(fixture_engine));
    assert_int_equal(rp_gauge_read(&rp_engine_metrics(fixture_engine)->healthy), 0);
    assert_non_null(rp_engine_failure(fixture_engine));
    if (!strstr(rp_engine_failure(fixture_engine), cause))
        fail_msg("\"%s\" does not say \"%s\"", rp_engine_failure(fixture_engine), cause);
    fixture_make_requests();
    assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[0]), RP_STATUS_DEVICE);
}

/* The hold of every request, or NULL. A step that waits for it is watched as well. */
static struct rp_sample_hold *held, never_released;

static void run_fault(struct rp_engine_config *config, enum rp_device_fault fault,
                      const char *cause) {
    config->fault = fault;
    config->fault_step = held ? 1 : 3;
    fixture_open(config);
    fixture_make_requests();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        fixture_requests[i].hold = held;
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
    }
    assert_everything_failed(cause);
    rp_engine_stop(fixture_engine);
}

static void test_a_fault_closes_everything_with_its_cause(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct rp_engine_config config =
            fixture_config(variant & 1 ? fake_backend() : rp_backend_cpu());
        config.run_ahead = variant & 2;
        config.enforce_eager = variant & 4;
        bool trap = variant % 3 == 0;
        run_fault(&config, trap ? RP_DEVICE_FAULT_TRAP : RP_DEVICE_FAULT_ILLEGAL_ADDRESS,
                  trap ? "trap" : "illegal address");
        rp_engine_destroy(fixture_engine);
        fixture_engine = NULL;
        rp_model_deinit(&fixture_model);
        fixture_load_model();
    }
}

/* Such an engine and its weights cannot be freed; referenced here for the leak checker. */
static struct rp_engine *hanging[4];
static struct rp_model hanging_models[4];

static void test_a_device_that_hangs_trips_the_watchdog_and_nobody_waits_for_it(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct rp_engine_config config =
            fixture_config(variant & 1 ? fake_backend() : rp_backend_cpu());
        config.watchdog_seconds = 0.3;
        held = variant & 2 ? &never_released : NULL;
        run_fault(&config, RP_DEVICE_FAULT_HANG, "no progress for 0.3 s");
        rp_engine_destroy(fixture_engine); /* returns */
        hanging[variant] = fixture_engine;
        fixture_engine = NULL;
        hanging_models[variant] = fixture_model;
        fixture_load_model();
    }
}

/* Prefill and decode give different bits, so pages of an answer's tokens are not prefix hits of a
 * prompt. */
static uint32_t cached_of_a_continued_answer(bool fast) {
    struct rp_engine_config config = fixture_config(fake_backend());
    struct rp_request *first = &fixture_requests[0], *second = &fixture_requests[1];
    fake_backend_config.decode_differs = true;
    config.device.fast_numerics = fast;
    fixture_open(&config);
    fixture_make_requests();
    first->prompt_count = 40; /* two full pages of 16, and a half */
    assert_int_equal(rp_engine_submit(fixture_engine, first), RP_OK);
    fixture_drain(1);
    memcpy(fixture_prompts[1], fixture_prompts[0], 40 * sizeof(int32_t));
    memcpy(fixture_prompts[1] + 40, fixture_answers[0].tokens, FIXTURE_OUTPUT * sizeof(int32_t));
    second->prompt_count = 40 + FIXTURE_OUTPUT;
    assert_int_equal(rp_engine_submit(fixture_engine, second), RP_OK);
    fixture_drain(1);
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
    rp_model_deinit(&fixture_model);
    fixture_load_model();
    return second->cached_tokens;
}

static void test_what_decode_wrote_is_reused_only_where_its_bits_do_not_matter(void **state) {
    (void)state;
    assert_int_equal(cached_of_a_continued_answer(false), 32);
    assert_int_equal(cached_of_a_continued_answer(true), 48); /* the last token is not written */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_fault_closes_everything_with_its_cause),
        TEST(test_a_device_that_hangs_trips_the_watchdog_and_nobody_waits_for_it),
        TEST(test_what_decode_wrote_is_reused_only_where_its_bits_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
