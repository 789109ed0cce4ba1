/* Goal: each trigger fires when it should, once while its cause lasts, and not in normal
 * operation. */
#include "server/observe/flight_watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_flight_watch watch;
static struct rp_flight_view view;
static struct rp_flight_cause cause;
static struct rp_step_record steps[200];

static int setup(void **state) {
    struct rp_flight_rules rules = rp_flight_rules_default();
    (void)state;
    rules.slo_ns[0] = 100000000;
    rules.slo_ns[3] = 50000000;
    memset(&view, 0, sizeof view);
    view.now_ns = UINT64_C(1000000000000);
    rp_flight_watch_init(&watch, &rules);
    return 0;
}

static bool look(void) {
    view.now_ns += 500000000;
    return rp_flight_watch_look(&watch, &view, &cause);
}

/* The steps of a check: count of `us` microseconds in a bucket. */
static void step_times(uint32_t bucket, uint32_t count, uint64_t us) {
    static uint64_t number;
    for (uint32_t i = 0; i < count; i++)
        steps[i] = (struct rp_step_record){
            .step = ++number, .graph = bucket, .begin_ns = 1000, .end_ns = 1000 + us * 1000};
    view.steps = steps;
    view.step_count = count;
}

static void test_nothing_happens_on_an_idle_server(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_false(look());
}

static void test_an_objective_that_is_missed_is_said_once(void **state) {
    (void)state;
    view.latency[0].count = 19;
    view.latency[0].p99_ns = 150e6;
    assert_false(look()); /* too few to decide */
    view.latency[0].count = 20;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLO_TTFT);
    assert_string_equal(cause.text, "time to first token: p99 of the last 10 s is 150 ms, the "
                                    "objective 100 ms");
    assert_false(look());
    view.latency[0].p99_ns = 90e6;
    assert_false(look());
    view.latency[0].p99_ns = 110e6;
    assert_true(look()); /* again */
    view.latency[1].count = 1000;
    view.latency[1].p99_ns = 1e12; /* no objective */
    assert_false(look());
    view.latency[3].count = 20;
    view.latency[3].p99_ns = 51e6;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLO_ITL);
    assert_string_equal(cause.text, "time between tokens: p99 of the last 10 s is 51 ms, the "
                                    "objective 50 ms");
    assert_false(look());
}

static void test_a_step_is_slow_by_the_median_of_its_own_bucket(void **state) {
    (void)state;
    step_times(3, 100, 1000);
    assert_false(look());
    step_times(4, 100, 20000); /* a larger one is slower, as expected */
    assert_false(look());
    step_times(3, 1, 9900);
    assert_false(look());
    step_times(3, 1, 10100);
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLOW_STEP);
    assert_int_equal(cause.step, steps[0].step);
    assert_true(cause.value > 0.0100 && cause.limit > 0.0099 && cause.limit < 0.0101);
    step_times(4, 1, 10100);
    assert_false(look());
}

static void test_a_step_needs_a_history_and_some_length_to_be_slow(void **state) {
    (void)state;
    step_times(0, 31, 1000);
    assert_false(look());
    step_times(0, 1, 1000000);
    assert_false(look());
    step_times(1, 100, 10);
    assert_false(look());
    step_times(1, 1, 1500); /* 150 times as long, and still short */
    assert_false(look());
    step_times(RP_FLIGHT_BUCKETS, 100, 10);
    assert_false(look()); /* one that is not watched */
}

static void test_a_burst_of_preemptions_counts_and_a_trickle_does_not(void **state) {
    (void)state;
    assert_false(look());
    for (int i = 0; i < 40; i++) {
        view.preemptions++;
        assert_false(look());
    }
    view.preemptions += 8;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_PAGES_OUT);
    assert_false(look());
}

static void test_what_was_there_before_is_no_burst(void **state) {
    (void)state;
    view.preemptions = 1000;
    assert_false(look());
    assert_false(look());
}

static void test_a_missing_graph_is_said_with_the_first_steps(void **state) {
    (void)state;
    view.graphs_missing = 2;
    assert_false(look());
    view.steps_total = 1;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_GRAPH_MISSING);
    assert_false(look());
}

static void test_of_several_causes_the_gravest_counts(void **state) {
    (void)state;
    step_times(3, 100, 1000);
    assert_false(look());
    step_times(3, 1, 50000);
    view.graphs_missing = 1;
    view.steps_total = 100;
    view.failure = "an illegal address";
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_DEVICE);
    view.step_count = 0;
    assert_false(look()); /* the others were noticed as well */
}

static struct rp_sched_waits waits;

/* A sample of one thread: at `at` microseconds after the steps' begin it had waited so long. */
static void sample_at(int64_t at_us, uint64_t waited_us) {
    struct rp_sched_sample *sample = &waits.samples[waits.sample_count++];
    sample->at_ns = (uint64_t)(1000 + at_us * 1000);
    sample->waited_ns[0] = waited_us * 1000;
}

static void begin_waits(void) {
    memset(&waits, 0, sizeof waits);
    waits.tids[0] = 4711;
    waits.thread_count = 1;
    view.waits = &waits;
    step_times(3, 100, 1000);
    assert_false(look());
}

static void test_a_slow_step_without_a_processor_is_descheduled(void **state) {
    (void)state;
    begin_waits();
    sample_at(0, 500000); /* what it had waited before does not count */
    sample_at(30000, 515000);
    sample_at(60000, 530000);
    step_times(3, 1, 50000);
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_DESCHEDULED);
    assert_int_equal(cause.step, steps[0].step);
    assert_int_equal(cause.wait.tid, 4711);
    assert_int_equal(cause.wait.waited_ns, 30000000);
    assert_int_equal(cause.wait.window_ns, 60000000);
    assert_non_null(strstr(cause.text, "thread 4711 was runnable without a processor for 30 ms of "
                                       "60 ms around it"));
    assert_false((view.step_count = 0, look())); /* said once */
}

static void test_a_slow_step_whose_threads_ran_is_slow(void **state) {
    (void)state;
    begin_waits();
    sample_at(0, 500000);
    sample_at(60000, 524000); /* less than half of the 49 ms above the median */
    step_times(3, 1, 50000);
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLOW_STEP);
    assert_true(cause.wait_known && cause.wait.waited_ns == 24000000);
}

static void test_a_step_that_no_samples_enclose_is_slow(void **state) {
    (void)state;
    begin_waits();
    sample_at(10000, 500000); /* after its begin */
    sample_at(60000, 540000);
    step_times(3, 1, 50000);
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLOW_STEP);
    assert_false(cause.wait_known);
}

static void test_a_wait_measured_over_much_more_than_the_step_counts_in_part(void **state) {
    (void)state;
    begin_waits();
    sample_at(0, 500000);
    sample_at(200000, 590000); /* a quarter of it is the step: 22 of the 49 ms */
    step_times(3, 1, 50000);
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLOW_STEP);
    waits.samples[1].waited_ns[0] = 600000000; /* 25 ms */
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_DESCHEDULED);
}

static void test_any_other_cause_precedes_a_descheduled_step(void **state) {
    (void)state;
    begin_waits();
    sample_at(0, 500000);
    sample_at(60000, 550000);
    step_times(3, 1, 50000);
    view.graphs_missing = 1;
    view.steps_total = 101;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_GRAPH_MISSING);
    /* A slow step too, though it was shorter. */
    step_times(3, 2, 50000);
    steps[1].begin_ns = 200000000; /* after the samples */
    steps[1].end_ns = steps[1].begin_ns + 20000000;
    assert_true(look());
    assert_int_equal(cause.trigger, RP_FLIGHT_SLOW_STEP);
    assert_int_equal(cause.step, steps[1].step);
}

int main(void) {
#define RUN(test) cmocka_unit_test_setup(test, setup)
    const struct CMUnitTest tests[] = {
        RUN(test_nothing_happens_on_an_idle_server),
        RUN(test_an_objective_that_is_missed_is_said_once),
        RUN(test_a_step_is_slow_by_the_median_of_its_own_bucket),
        RUN(test_a_step_needs_a_history_and_some_length_to_be_slow),
        RUN(test_a_burst_of_preemptions_counts_and_a_trickle_does_not),
        RUN(test_what_was_there_before_is_no_burst),
        RUN(test_a_missing_graph_is_said_with_the_first_steps),
        RUN(test_of_several_causes_the_gravest_counts),
        RUN(test_a_slow_step_without_a_processor_is_descheduled),
        RUN(test_a_slow_step_whose_threads_ran_is_slow),
        RUN(test_a_step_that_no_samples_enclose_is_slow),
        RUN(test_a_wait_measured_over_much_more_than_the_step_counts_in_part),
        RUN(test_any_other_cause_precedes_a_descheduled_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
