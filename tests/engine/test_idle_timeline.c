/* Goal: every nanosecond of a device's idle gap is attributed to one cause, and a device clock that
 * has an offset, drifts and is read late is mapped so that no step ends after it was read. */
#include "engine/observe/device_clock.h"
#include "engine/observe/idle_timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_idle_timeline timeline;
static struct rp_idle_piece pieces[RP_IDLE_PIECES_MAX];

static int setup(void **state) {
    (void)state;
    memset(&timeline, 0, sizeof timeline);
    return 0;
}

static uint64_t sum_of(uint32_t count, enum rp_idle_cause cause) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += pieces[i].cause == cause ? pieces[i].end_ns - pieces[i].begin_ns : 0;
    return sum;
}

static void expect_piece(uint32_t index, uint64_t begin, uint64_t end, enum rp_idle_cause cause) {
    assert_int_equal(pieces[index].begin_ns, begin);
    assert_int_equal(pieces[index].end_ns, end);
    assert_int_equal(pieces[index].cause, cause);
}

static void test_a_gap_is_split_by_what_the_thread_did(void **state) {
    (void)state;
    /* One step at a time: read, commit, emit, plan, launch. */
    rp_idle_timeline_add(&timeline, 0, 110, RP_IDLE_RESULT);
    rp_idle_timeline_add(&timeline, 110, 120, RP_IDLE_RESULT); /* merged with the previous one */
    rp_idle_timeline_add(&timeline, 120, 150, RP_IDLE_EMIT);
    rp_idle_timeline_add(&timeline, 150, 190, RP_IDLE_PLAN);
    rp_idle_timeline_add(&timeline, 190, 220, RP_IDLE_LAUNCH);
    rp_idle_timeline_add(&timeline, 220, 900, RP_IDLE_RESULT); /* waits for the next one */
    assert_int_equal(timeline.count, 5);
    /* The device was idle from 100 to 250; its step had been launched at 220. */
    assert_int_equal(rp_idle_timeline_split(&timeline, 100, 250, 220, pieces), 5);
    expect_piece(0, 100, 120, RP_IDLE_RESULT);
    expect_piece(1, 120, 150, RP_IDLE_EMIT);
    expect_piece(2, 150, 190, RP_IDLE_PLAN);
    expect_piece(3, 190, 220, RP_IDLE_LAUNCH);
    expect_piece(4, 220, 250, RP_IDLE_START);
}

static void test_a_step_that_was_queued_behind_another_only_starts(void **state) {
    (void)state;
    rp_idle_timeline_add(&timeline, 0, 500, RP_IDLE_RESULT);
    assert_int_equal(rp_idle_timeline_split(&timeline, 400, 403, 90, pieces), 1);
    expect_piece(0, 400, 403, RP_IDLE_START);
}

static void test_what_no_span_covers_is_unknown(void **state) {
    (void)state;
    assert_int_equal(rp_idle_timeline_split(&timeline, 10, 30, UINT64_MAX, pieces), 1);
    expect_piece(0, 10, 30, RP_IDLE_UNKNOWN);
    rp_idle_timeline_add(&timeline, 40, 50, RP_IDLE_PLAN);
    rp_idle_timeline_add(&timeline, 60, 70, RP_IDLE_EMIT);
    assert_int_equal(rp_idle_timeline_split(&timeline, 30, 80, UINT64_MAX, pieces), 5);
    assert_int_equal(sum_of(5, RP_IDLE_UNKNOWN), 30);
    assert_int_equal(rp_idle_timeline_split(&timeline, 80, 80, UINT64_MAX, pieces), 0);
    /* Spans that were overwritten. */
    for (uint64_t i = 0; i < 2 * RP_TIMELINE_SPANS; i++)
        rp_idle_timeline_add(&timeline, 100 + i, 101 + i, i % 2 ? RP_IDLE_PLAN : RP_IDLE_EMIT);
    uint32_t count =
        rp_idle_timeline_split(&timeline, 100, 100 + 2 * RP_TIMELINE_SPANS, UINT64_MAX, pieces);
    assert_int_equal(sum_of(count, RP_IDLE_UNKNOWN), RP_TIMELINE_SPANS);
    assert_int_equal(sum_of(count, RP_IDLE_PLAN), RP_TIMELINE_SPANS / 2);
}

static void test_pieces_of_random_gaps_add_up(void **state) {
    uint32_t seed = 1;
    uint64_t now = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint64_t ns = seed >> 24, hole = (seed >> 8) % 7 == 0 ? (seed >> 16) % 50 : 0;
        rp_idle_timeline_add(&timeline, now + hole, now + hole + ns,
                             (enum rp_idle_cause)((seed >> 4) % RP_IDLE_UNKNOWN));
        now += hole + ns;
        seed = seed * 1664525u + 1013904223u;
        uint64_t begin = now - RP_MIN(now, (uint64_t)(seed >> 18)), end = begin + (seed >> 20);
        uint64_t launched = begin + (seed >> 12) % 20000;
        uint32_t count = rp_idle_timeline_split(&timeline, begin, end, launched, pieces);
        uint64_t at = begin;
        assert_true(count <= RP_IDLE_PIECES_MAX);
        for (uint32_t p = 0; p < count; p++) {
            assert_int_equal(pieces[p].begin_ns, at);
            assert_true(pieces[p].end_ns > at);
            assert_true(p == 0 || pieces[p].cause != pieces[p - 1].cause);
            at = pieces[p].end_ns;
        }
        assert_int_equal(at, end);
    }
}

/* --- The device's clock ----------------------------------------------------------------------- */

static void test_a_device_with_the_hosts_clock_is_not_mapped(void **state) {
    struct rp_device_clock clock = {.same = true};
    (void)state;
    rp_device_clock_note(&clock, 100, 200);
    assert_int_equal(rp_device_clock_map(&clock, 150), 150);
}

/* Steps of 2 ms for `seconds`, read up to 40 us late, a third of them with less than 1 us. Returns
 * the worst error of a mapped end in ns after the first two seconds. */
static double worst_error(double drift, double seconds) {
    struct rp_device_clock clock = {.same = false};
    uint32_t seed = 7;
    double worst = 0;
    for (uint64_t host = 5000000000u; host < 5000000000u + (uint64_t)(seconds * 1e9);
         host += 2000000) {
        double since = (double)(host - 5000000000u);
        /* The device clock has another origin and steps of 32 ns. */
        uint64_t device = ((uint64_t)1 << 60) + (uint64_t)(since * (1.0 + drift)) / 32 * 32;
        seed = seed * 1664525u + 1013904223u;
        uint64_t late = seed >> 30 ? (seed >> 10) % 40000 : 300 + (seed >> 10) % 500;
        rp_device_clock_note(&clock, device, host + late);
        uint64_t mapped = rp_device_clock_map(&clock, device);
        if (mapped > host + late)
            fail_msg("a step ends %llu ns after it was read",
                     (unsigned long long)(mapped - host - late));
        double error = (double)(int64_t)(mapped - host);
        if (since > 2e9)
            worst = RP_MAX(worst, error < 0 ? -error : error);
    }
    return worst;
}

static void test_a_clock_that_is_far_away_is_mapped_to_microseconds(void **state) {
    (void)state;
    assert_true(worst_error(0, 10) < 5000);
}

static void test_a_clock_that_drifts_is_followed(void **state) {
    (void)state;
    assert_true(worst_error(30e-6, 20) < 8000);
    assert_true(worst_error(-30e-6, 20) < 8000);
}

static void test_after_a_long_silence_the_offset_is_measured_again(void **state) {
    struct rp_device_clock clock = {.same = false};
    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        rp_device_clock_note(&clock, 1000 + i * 1000000, 9000 + i * 1000000);
    /* An hour later the clocks are 50 ms further apart. */
    uint64_t hour = 3600000000000u;
    rp_device_clock_note(&clock, 1000 + hour, 9000 + hour + 50000000);
    assert_int_equal(rp_device_clock_map(&clock, 1000 + hour), 9000 + hour + 50000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_gap_is_split_by_what_the_thread_did, setup),
        cmocka_unit_test_setup(test_a_step_that_was_queued_behind_another_only_starts, setup),
        cmocka_unit_test_setup(test_what_no_span_covers_is_unknown, setup),
        cmocka_unit_test_setup(test_pieces_of_random_gaps_add_up, setup),
        cmocka_unit_test(test_a_device_with_the_hosts_clock_is_not_mapped),
        cmocka_unit_test(test_a_clock_that_is_far_away_is_mapped_to_microseconds),
        cmocka_unit_test(test_a_clock_that_drifts_is_followed),
        cmocka_unit_test(test_after_a_long_silence_the_offset_is_measured_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
