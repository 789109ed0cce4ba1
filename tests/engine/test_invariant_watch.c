/* Goal: invariants of pages, slots, lists and queues are checked while serving, and a violation
 * is counted. Method: an engine on a fake GPU whose state is corrupted in one place at a time. */
#include "engine/engine_internal.h"
#include "engine/scheduler_internal.h"
#include "tests/engine/engine_fixture.h"

enum { SECOND_NS = 1000000000 };

static uint64_t violations(void) {
    return rp_counter_read(&rp_engine_metrics(fixture_engine)->invariant_violations);
}

static void check_at(uint64_t seconds) {
    rp_invariant_watch_turn(fixture_engine, seconds * SECOND_NS);
}

/* An engine that has served all requests and was stopped. */
static void serve_and_stop(void) {
    struct rp_engine_config config = fixture_config(fake_backend());
    fixture_create(&config);
    fixture_submit_all();
    fixture_start();
    fixture_drain(FIXTURE_REQUESTS);
    rp_engine_stop(fixture_engine);
    fixture_engine->invariants.next_ns = 0;
}

static void test_an_engine_that_has_served_breaks_none(void **state) {
    (void)state;
    serve_and_stop();
    check_at(1);
    assert_int_equal(fixture_engine->invariants.next_ns, (uint64_t)2 * SECOND_NS);
    assert_int_equal(violations(), 0);
    assert_true(rp_engine_is_consistent(fixture_engine));
}

static void test_each_broken_invariant_is_counted_once_a_second(void **state) {
    (void)state;
    serve_and_stop();
    struct rp_scheduler *scheduler = fixture_engine->scheduler;
    uint32_t *const counts[] = {
        &scheduler->pool.counts[RP_KV_FREE], &scheduler->pool.counts[RP_KV_HELD],
        &scheduler->pool.pages[1].refs,      &scheduler->host.counts[RP_KV_FREE],
        &scheduler->free_slot_count,         &scheduler->running_count,
        &scheduler->waiting_count,           &scheduler->active_tenant_count,
        &scheduler->prefix.entry_count,      &fixture_engine->pending_count};
    uint64_t now = 1;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(counts); i++) {
        uint32_t before = *counts[i];
        /* List counts are decreased where possible, because an increased one reads past the end. */
        *counts[i] = before ? before - 1 : before + 1;
        check_at(now);
        if (violations() != i + 1)
            fail_msg("broken count %u was not found", i);
        assert_false(rp_engine_is_consistent(fixture_engine));
        rp_invariant_watch_turn(fixture_engine, now * SECOND_NS + SECOND_NS / 2);
        assert_int_equal(violations(), i + 1);
        *counts[i] = before;
        check_at(now + 1);
        assert_int_equal(violations(), i + 1);
        assert_true(rp_engine_is_consistent(fixture_engine));
        now += 2;
    }
    assert_true(fixture_engine->invariants.logged);
}

static void test_the_step_loop_checks(void **state) {
    (void)state;
    struct rp_engine_config config = fixture_config(fake_backend());
    if (RP_DEBUG) {
        print_message("a debug build ends at the first broken invariant\n");
        skip();
    }
    fixture_create(&config);
    fixture_engine->scheduler->worst_page_sum++;
    fixture_submit_all();
    fixture_start();
    fixture_drain(FIXTURE_REQUESTS);
    rp_engine_stop(fixture_engine);
    assert_true(violations() >= 1);
    fixture_engine->scheduler->worst_page_sum--;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_engine_that_has_served_breaks_none, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(test_each_broken_invariant_is_counted_once_a_second,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_the_step_loop_checks, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
