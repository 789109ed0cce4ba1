/* Goal: a window of steps counts no time from before it. */
#include "engine/observe/step_record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Runs from 1,000 to 1,200, after 600 idle: 400 without work, then 150 planning, 50 launching. */
static struct rp_step_record make_record(void) {
    struct rp_step_record record = {.step = 7, .begin_ns = 1000, .end_ns = 1200};
    record.idle_ns[RP_IDLE_NO_WORK] = 400;
    record.idle_ns[RP_IDLE_PLAN] = 150;
    record.idle_ns[RP_IDLE_LAUNCH] = 50;
    return record;
}

static void expect(uint64_t since_ns, uint64_t begin, uint64_t no_work, uint64_t plan,
                   uint64_t launch) {
    struct rp_step_record record = make_record();
    rp_step_record_clip(&record, since_ns);
    assert_int_equal(record.begin_ns, begin);
    assert_int_equal(record.end_ns, 1200);
    assert_int_equal(record.idle_ns[RP_IDLE_NO_WORK], no_work);
    assert_int_equal(record.idle_ns[RP_IDLE_PLAN], plan);
    assert_int_equal(record.idle_ns[RP_IDLE_LAUNCH], launch);
}

static void test_idle_time_from_before_the_window_is_cut_off(void **state) {
    (void)state;
    expect(0, 1000, 400, 150, 50);
    expect(400, 1000, 400, 150, 50);
    expect(500, 1000, 300, 150, 50);
    expect(800, 1000, 0, 150, 50);
    expect(900, 1000, 0, 75, 25);
    expect(1000, 1000, 0, 0, 0);
}

static void test_a_step_that_runs_when_the_window_begins_is_cut(void **state) {
    (void)state;
    expect(1150, 1150, 0, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_time_from_before_the_window_is_cut_off),
        cmocka_unit_test(test_a_step_that_runs_when_the_window_begins_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
