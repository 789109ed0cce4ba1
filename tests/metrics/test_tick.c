/* Goal: the recording clock equals CLOCK_MONOTONIC to a few microseconds, never goes back in a
 * thread while its owner publishes updates, and follows a drifting clock. */
#include "metrics/tick.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define RATE_2GHZ ((uint64_t)1 << 31) /* half a ns per tick */

static int teardown(void **state) {
    (void)state;
    rp_tick_stop();
    return 0;
}

static void test_before_the_start_it_is_the_systems_clock(void **state) {
    (void)state;
    assert_true(rp_tick_hertz() == 0.0);
    uint64_t before = rp_clock_ns(), ns = rp_tick_ns(), after = rp_clock_ns();
    assert_in_range(ns, before, after);
}

static void test_started_it_agrees_with_the_systems_clock(void **state) {
    (void)state;
    if (!rp_tick_start()) {
        fprintf(stderr, "no sound counter on this machine: rp_clock_ns is used\n");
        skip();
    }
    assert_true(rp_tick_start());
    assert_true(rp_tick_hertz() > 1e6);
    /* Interrupts may occur between two readings, so the smallest of many distances counts. */
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        uint64_t before = rp_clock_ns(), ns = rp_tick_ns(), after = rp_clock_ns();
        uint64_t off = ns < before ? before - ns : ns > after ? ns - after : 0;
        least = off < least ? off : least;
    }
    assert_true(least < 100000);
}

static void test_a_line_is_exact_at_both_sides_of_its_beginning(void **state) {
    (void)state;
    assert_int_equal(rp_tick_line_ns(1000, 1000, 5000, RATE_2GHZ, RATE_2GHZ), 5000);
    assert_int_equal(rp_tick_line_ns(1200, 1000, 5000, RATE_2GHZ, 2 * RATE_2GHZ), 5200);
    assert_int_equal(rp_tick_line_ns(800, 1000, 5000, RATE_2GHZ, 2 * RATE_2GHZ), 4900);
    /* A year at 4 GHz does not overflow. */
    uint64_t year = (uint64_t)365 * 86400 * 4000000000u;
    assert_int_equal(rp_tick_line_ns(year, 0, 0, 1u << 30, 1u << 30), year / 4);
}

static void test_a_new_line_meets_the_old_one_and_then_the_truth(void **state) {
    static const int64_t wrongs[] = {0, 40, -40, 3000, -3000, 200000, -200000};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(wrongs); i++) {
        uint64_t ours = 1000000000, truth = ours + (uint64_t)wrongs[i], counter = 777777;
        struct rp_tick_next next =
            rp_tick_follow(counter, ours, truth, RATE_2GHZ, RATE_2GHZ, 2000000);
        /* Before its beginning the old mapping applies. */
        assert_int_equal(rp_tick_line_ns(counter, next.counter0, next.ns0, next.before, next.after),
                         ours);
        assert_int_equal(
            rp_tick_line_ns(counter + 1000, next.counter0, next.ns0, next.before, next.after),
            ours + 500);
        /* A second later it is exact. */
        uint64_t then = rp_tick_line_ns(next.counter0 + 2000000000u, next.counter0, next.ns0,
                                        next.before, next.after);
        assert_in_range(then - (truth + 1001000000u) + 2, 0, 4);
    }
    struct rp_tick_next fast = rp_tick_follow(0, 0, 900000, RATE_2GHZ, RATE_2GHZ, 0);
    assert_true((double)fast.after / (double)RATE_2GHZ < 1.000501);
}

static void test_a_clock_that_drifts_is_followed(void **state) {
    /* The counter runs 60 ppm faster than measured at start, and changes by 1 ppm per second. */
    double truth = 1e9, rate = 0.5;
    uint64_t counter = 0;
    struct rp_tick_next line = {0, 1000000000, (uint64_t)(0.5 * (1 - 60e-6) * 4294967296.0), 0};
    line.after = line.before;
    (void)state;
    for (int second = 0; second < 30; second++) {
        uint64_t ticks = 2000000000u;
        counter += ticks;
        truth += (double)ticks * rate;
        uint64_t ours = rp_tick_line_ns(counter, line.counter0, line.ns0, line.before, line.after);
        if (second > 1)
            assert_in_range((uint64_t)((int64_t)ours - (int64_t)truth + 2000), 0, 4000);
        line = rp_tick_follow(counter, ours, (uint64_t)truth, line.after,
                              (uint64_t)(rate * 4294967296.0), 2000000);
        rate *= 1 + 1e-6;
    }
}

static _Atomic bool done;

static void *read_on(void *arg) {
    uint64_t last = 0, *backwards = arg;
    while (!atomic_load_explicit(&done, memory_order_relaxed)) {
        uint64_t now = rp_tick_ns();
        *backwards += now < last;
        last = now;
    }
    return NULL;
}

static void test_a_thread_never_sees_time_go_back_while_lines_are_published(void **state) {
    pthread_t reader;
    uint64_t backwards = 0;
    (void)state;
    if (!rp_tick_start())
        skip();
    atomic_store(&done, false);
    assert_int_equal(pthread_create(&reader, NULL, read_on, &backwards), 0);
    uint64_t version = atomic_load(&rp_tick_version), end = rp_clock_ns() + 2200000000u;
    while (rp_clock_ns() < end) {
        rp_tick_check(); /* has an effect at most once per second */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    atomic_store(&done, true);
    pthread_join(reader, NULL);
    uint64_t published = atomic_load(&rp_tick_version);
    assert_true(published == 0 || published > version); /* 0: the counter is unreliable */
    if (published)
        assert_int_equal(backwards, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_before_the_start_it_is_the_systems_clock, teardown),
        cmocka_unit_test_teardown(test_started_it_agrees_with_the_systems_clock, teardown),
        cmocka_unit_test(test_a_line_is_exact_at_both_sides_of_its_beginning),
        cmocka_unit_test(test_a_new_line_meets_the_old_one_and_then_the_truth),
        cmocka_unit_test(test_a_clock_that_drifts_is_followed),
        cmocka_unit_test_teardown(test_a_thread_never_sees_time_go_back_while_lines_are_published,
                                  teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
