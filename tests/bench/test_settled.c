/* Goal: a list of times counts from where it has settled, and one that never settles is reported as
 * unreliable. */
#include "bench/settled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 600

static double samples[MOST];
static uint64_t state_of_noise;

/* -1 to 1 */
static double noise(void) {
    state_of_noise = state_of_noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(state_of_noise >> 33) * 0x1p-30 - 1;
}

static void steady_times_count_from_the_first(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++)
        samples[i] = 5 + 0.05 * noise();
    struct rp_settled found = rp_settled_find(samples, 100);
    assert_true(found.reliable);
    assert_int_equal(found.after, 0);
    assert_null(found.why_not);
}

static void fewer_than_a_hundred_are_unreliable(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++)
        samples[i] = 5;
    for (uint32_t count = 0; count < 100; count++) {
        struct rp_settled found = rp_settled_find(samples, count);
        assert_false(found.reliable);
        assert_int_equal(found.after, 0);
        assert_string_equal(found.why_not, "fewer than 100 samples");
    }
    assert_true(rp_settled_find(samples, 100).reliable);
}

/* 80 slow ones: the window of 50 has settled when its median is one of the others. */
static void a_slow_start_is_left_out(void **state) {
    (void)state;
    for (int i = 0; i < 400; i++)
        samples[i] = (i < 80 ? 9 - 4.0 * i / 80 : 5) + 0.01 * noise();
    struct rp_settled found = rp_settled_find(samples, 400);
    assert_true(found.reliable);
    assert_in_range(found.after, 50, 80);
}

static void a_step_in_the_middle_is_left_out_where_a_hundred_follow(void **state) {
    (void)state;
    for (int i = 0; i < 130; i++)
        samples[i] = i < 24 ? 10 : 5;
    assert_int_equal(rp_settled_find(samples, 130).after, 0); /* 24 of 50 do not make a median */
    for (int i = 0; i < 130; i++)
        samples[i] = i < 30 ? 10 : 5;
    struct rp_settled found = rp_settled_find(samples, 130);
    assert_true(found.reliable);
    assert_in_range(found.after, 5, 6);
}

static void times_that_keep_rising_never_settle(void **state) {
    (void)state;
    for (int i = 0; i < MOST; i++)
        samples[i] = 5 + 0.01 * i; /* 50 steps are 0.5 of at most 11 */
    struct rp_settled found = rp_settled_find(samples, MOST);
    assert_false(found.reliable);
    assert_int_equal(found.after, 0);
    assert_string_equal(found.why_not, "not settled");
}

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median_by_sorting(const double *values) {
    double sorted[RP_SETTLED_WINDOW];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, RP_SETTLED_WINDOW, sizeof *sorted, by_value);
    return (sorted[RP_SETTLED_WINDOW / 2 - 1] + sorted[RP_SETTLED_WINDOW / 2]) / 2;
}

static void the_moving_medians_are_those_of_sorting(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t want = 0, count = 100 + round * 5;
        double level = 20;
        for (uint32_t i = 0; i < count; i++) {
            level *= 1 + 0.008 * noise() - 0.004;
            samples[i] = (double)(int)((level + noise()) * 16) / 16; /* with ties */
        }
        struct rp_settled found = rp_settled_find(samples, count);
        for (; want + 100 <= count; want++) {
            double now = median_by_sorting(samples + want),
                   next = median_by_sorting(samples + want + 50);
            if (now <= next * 1.02 && now >= next * 0.98)
                break;
        }
        assert_int_equal(found.reliable, want + 100 <= count);
        assert_int_equal(found.after, found.reliable ? want : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_times_count_from_the_first),
        cmocka_unit_test(fewer_than_a_hundred_are_unreliable),
        cmocka_unit_test(a_slow_start_is_left_out),
        cmocka_unit_test(a_step_in_the_middle_is_left_out_where_a_hundred_follow),
        cmocka_unit_test(times_that_keep_rising_never_settle),
        cmocka_unit_test(the_moving_medians_are_those_of_sorting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
