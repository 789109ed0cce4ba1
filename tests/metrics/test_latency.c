/* Goal: percentiles are within 3 % of a sorted oracle, windows drop old values and nothing else,
 * merged shards equal one histogram of everything, and a concurrent reader sees no slice that is
 * being cleared. */
#include "metrics/latency.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND ((uint64_t)1000000000)
enum { VALUES = 20000 };

static struct rp_latency latency, second;
static uint64_t values[VALUES];
static uint64_t seed;

static int setup(void **state) {
    (void)state;
    memset(&latency, 0, sizeof latency);
    memset(&second, 0, sizeof second);
    seed = 88172645463325252u;
    return 0;
}

static double uniform(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void) {
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

enum shape { UNIFORM, LOGNORMAL, BIMODAL, SINGLE, TINY, HUGE_VALUES, SHAPES };

static uint64_t draw(enum shape shape) {
    switch (shape) {
    case UNIFORM:
        return (uint64_t)(uniform() * 5e8);
    case LOGNORMAL:
        return (uint64_t)exp(15 + 1.7 * normal());
    case BIMODAL: /* decode steps, and a few with a prompt chunk */
        return (uint64_t)((uniform() < 0.93 ? 3e6 : 9e7) * (1 + 0.02 * normal()));
    case SINGLE:
        return 123456789;
    case TINY:
        return (uint64_t)(uniform() * 40);
    default:
        return (uint64_t)(uniform() * 3.6e12); /* up to an hour */
    }
}

static int by_value(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static void near(const char *what, double found, double expected) {
    double slack = fmax(expected * 0.03, 0.5); /* half a ns: below 16 ns slots are integers */
    if (fabs(found - expected) > slack)
        fail_msg("%s: %.1f where the oracle says %.1f", what, found, expected);
}

static double rank(uint32_t count, double share) {
    uint32_t at = (uint32_t)ceil(share * count);
    return (double)values[(at ? at : 1) - 1];
}

static void check_against_oracle(const struct rp_latency_stats *stats, uint32_t count) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)values[i];
    qsort(values, count, sizeof values[0], by_value);
    assert_int_equal(stats->count, count);
    near("p50", stats->p50, rank(count, 0.5));
    near("p90", stats->p90, rank(count, 0.9));
    near("p95", stats->p95, rank(count, 0.95));
    near("p99", stats->p99, rank(count, 0.99));
    assert_true(stats->max == (double)values[count - 1]);
    assert_true(fabs(stats->mean - sum / count) <= 1e-9 * sum);
}

static void test_percentiles_are_within_three_per_cent_of_a_sorted_oracle(void **state) {
    static const uint32_t counts[] = {1, 2, 3, 10, 99, 100, 101, 5000, VALUES};
    const struct rp_latency *shard = &latency;
    (void)state;
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t c = 0; c < RP_ARRAY_COUNT(counts); c++) {
            struct rp_latency_stats stats;
            memset(&latency, 0, sizeof latency);
            for (uint32_t i = 0; i < counts[c]; i++) {
                values[i] = draw((enum shape)shape);
                rp_latency_record(&latency, 100 * SECOND, values[i]);
            }
            for (int w = 0; w < RP_LATENCY_WINDOWS; w++) {
                rp_latency_read(&shard, 1, (enum rp_latency_window)w, 100 * SECOND, &stats);
                check_against_oracle(&stats, counts[c]);
            }
        }
}

static void test_each_slot_holds_its_middle_and_is_a_32nd_of_an_octave(void **state) {
    (void)state;
    assert_int_equal(rp_latency_slot(0), 0);
    assert_int_equal(rp_latency_slot(31), 31);
    assert_int_equal(rp_latency_slot(32), 32);
    assert_int_equal(rp_latency_slot(UINT64_MAX), RP_LATENCY_SLOTS - 1);
    assert_int_equal(rp_latency_slot(RP_LATENCY_MAX_NS), RP_LATENCY_SLOTS - 1);
    for (uint32_t slot = 0; slot < RP_LATENCY_SLOTS; slot++) {
        double middle = rp_latency_middle(slot);
        assert_int_equal(rp_latency_slot((uint64_t)middle), slot);
        assert_true(slot == 0 || middle > rp_latency_middle(slot - 1));
        if (slot >= 32)
            assert_true(middle / rp_latency_middle(slot - 1) < 1.033);
    }
}

static void test_an_empty_window_has_no_values(void **state) {
    const struct rp_latency *shard = &latency;
    struct rp_latency_stats stats;
    (void)state;
    for (int w = 0; w < RP_LATENCY_WINDOWS; w++) {
        rp_latency_read(&shard, 1, (enum rp_latency_window)w, 5 * SECOND, &stats);
        assert_int_equal(stats.count, 0);
        assert_true(stats.p99 == 0.0 && stats.mean == 0.0);
    }
}

static void test_windows_drop_old_values_and_nothing_else(void **state) {
    static const uint64_t lengths[] = {10, 60, 300};
    const struct rp_latency *shard = &latency;
    struct rp_latency_stats stats;
    (void)state;
    /* One value each half second for twenty minutes; its size encodes its time. */
    for (uint64_t half = 2; half <= 2400; half++) {
        uint64_t now = half * SECOND / 2;
        rp_latency_record(&latency, now, half);
        if (half % 37)
            continue;
        for (int w = 0; w < 3; w++) {
            rp_latency_read(&shard, 1, (enum rp_latency_window)w, now, &stats);
            uint64_t least = RP_MIN(2 * lengths[w], half - 1);
            assert_true(stats.count >= least);
            assert_true(stats.count <= 2 * lengths[w] + 2 * lengths[w] / 5 + 1);
            assert_true(stats.max == (double)half);
        }
        rp_latency_read(&shard, 1, RP_LATENCY_TOTAL, now, &stats);
        assert_int_equal(stats.count, half - 1);
    }
    /* Without new values each window empties. */
    for (int w = 0; w < 3; w++) {
        rp_latency_read(&shard, 1, (enum rp_latency_window)w,
                        (1200 + lengths[w] * 6 / 5 + 1) * SECOND, &stats);
        assert_int_equal(stats.count, 0);
    }
    /* And starts again after a long pause. */
    rp_latency_record(&latency, 100000 * SECOND, 77);
    for (int w = 0; w < 3; w++) {
        rp_latency_read(&shard, 1, (enum rp_latency_window)w, 100001 * SECOND, &stats);
        assert_int_equal(stats.count, 1);
        assert_true(stats.max == 77.0);
    }
}

static void test_a_time_a_moment_too_old_is_counted_and_breaks_nothing(void **state) {
    const struct rp_latency *shard = &latency;
    struct rp_latency_stats stats;
    (void)state;
    rp_latency_record(&latency, 120 * SECOND, 1000);
    rp_latency_record(&latency, 120 * SECOND - 1, 2000);
    for (int w = 0; w < RP_LATENCY_WINDOWS; w++) {
        rp_latency_read(&shard, 1, (enum rp_latency_window)w, 120 * SECOND, &stats);
        assert_int_equal(stats.count, 2);
    }
}

static void test_shards_merge_to_one_histogram_of_everything(void **state) {
    const struct rp_latency *shards[] = {&latency, &second};
    struct rp_latency_stats stats;
    (void)state;
    for (uint32_t i = 0; i < VALUES; i++) {
        values[i] = draw(i % 2 ? LOGNORMAL : BIMODAL);
        rp_latency_record(i % 2 ? &latency : &second, 50 * SECOND, values[i]);
    }
    rp_latency_read(shards, 2, RP_LATENCY_10S, 50 * SECOND, &stats);
    check_against_oracle(&stats, VALUES);
}

static void take_gauge(void *ctx, const char *labels, double value) {
    char *text = ctx;
    size_t len = strlen(text);
    snprintf(text + len, 1024 - len, "%s %.3g\n", labels, value);
}

static void test_gauges_are_in_seconds_and_not_a_number_when_nothing_is_known(void **state) {
    char text[1024] = "";
    (void)state;
    for (int i = 0; i < 10; i++)
        rp_latency_record(&latency, 50 * SECOND, SECOND / 4);
    rp_latency_gauges(&latency, RP_LATENCY_10S, 50 * SECOND, take_gauge, text);
    assert_string_equal(text, "window=\"10s\",percentile=\"50\" 0.25\n"
                              "window=\"10s\",percentile=\"90\" 0.25\n"
                              "window=\"10s\",percentile=\"95\" 0.25\n"
                              "window=\"10s\",percentile=\"99\" 0.25\n"
                              "window=\"10s\",percentile=\"100\" 0.25\n");
    text[0] = '\0';
    rp_latency_gauges(&latency, RP_LATENCY_10S, 500 * SECOND, take_gauge, text);
    assert_non_null(strstr(text, "percentile=\"50\" nan"));
}

/* --- A concurrent reader --------------------------------------------------------------------- */

/* Within a slice of two seconds every value is the slice's number, so a reader that sees values of
 * a cleared slice finds one that is too old. */
static void *record_on(void *arg) {
    for (uint64_t half = 2; half < *(uint64_t *)arg; half++)
        for (int i = 0; i < 20; i++)
            rp_latency_record(&latency, half * SECOND / 2, half / 4 % 16 + 1);
    return NULL;
}

static bool is_of_window(double value, uint64_t newest) {
    for (uint64_t k = 0; k < RP_LATENCY_SLICES && k < newest; k++)
        if (value == (double)((newest - 1 - k) % 16 + 1))
            return true;
    return false;
}

static void test_a_reader_that_races_sees_no_slice_that_is_cleared(void **state) {
    pthread_t writer;
    uint64_t halves = 100000, seen = 0;
    const struct rp_latency *shard = &latency;
    (void)state;
    assert_int_equal(pthread_create(&writer, NULL, record_on, &halves), 0);
    for (bool last = false; !last;) {
        struct rp_latency_stats total, stats;
        rp_latency_read(&shard, 1, RP_LATENCY_TOTAL, 0, &total);
        last = total.count == (halves - 2) * 20;
        uint64_t now = (total.count / 20 + 2) * SECOND / 2;
        rp_latency_read(&shard, 1, RP_LATENCY_10S, now, &stats);
        uint64_t newest = now / (2 * SECOND) + 1;
        if (stats.count && !(is_of_window(stats.p50, newest) && is_of_window(stats.p99, newest) &&
                             is_of_window(stats.p90, newest)))
            fail_msg("values %.0f, %.0f of a slice that is gone", stats.p50, stats.p99);
        seen += stats.count > 0;
    }
    pthread_join(writer, NULL);
    assert_true(seen > 0);
}

static void test_a_mark_gives_what_was_recorded_since_it(void **state) {
    static struct rp_latency_mark mark;
    struct rp_latency_stats stats;
    (void)state;
    memset(&mark, 0, sizeof mark);
    rp_latency_since(&latency, &mark, &stats);
    assert_int_equal(stats.count, 0);
    for (uint32_t i = 0; i < 100; i++)
        rp_latency_record(&latency, SECOND, i < 50 ? 1000 : 2000000);
    rp_latency_since(&latency, &mark, &stats);
    assert_int_equal(stats.count, 100);
    near("p50", stats.p50, 1000);
    near("p99", stats.p99, 2000000);
    near("max", stats.max, 2000000);
    near("mean", stats.mean, 1000500);
    rp_latency_record(&latency, 2 * SECOND, 5000);
    rp_latency_since(&latency, &mark, &stats); /* none of the larger ones before the mark */
    assert_int_equal(stats.count, 1);
    near("p99", stats.p99, 5000);
    near("mean", stats.mean, 5000);
    near("max", stats.max, 5000);
    rp_latency_since(&latency, &mark, &stats);
    assert_int_equal(stats.count, 0);
    assert_true(stats.p99 == 0 && stats.mean == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_percentiles_are_within_three_per_cent_of_a_sorted_oracle,
                               setup),
        cmocka_unit_test_setup(test_each_slot_holds_its_middle_and_is_a_32nd_of_an_octave, setup),
        cmocka_unit_test_setup(test_an_empty_window_has_no_values, setup),
        cmocka_unit_test_setup(test_windows_drop_old_values_and_nothing_else, setup),
        cmocka_unit_test_setup(test_a_time_a_moment_too_old_is_counted_and_breaks_nothing, setup),
        cmocka_unit_test_setup(test_shards_merge_to_one_histogram_of_everything, setup),
        cmocka_unit_test_setup(test_gauges_are_in_seconds_and_not_a_number_when_nothing_is_known,
                               setup),
        cmocka_unit_test_setup(test_a_mark_gives_what_was_recorded_since_it, setup),
        cmocka_unit_test_setup(test_a_reader_that_races_sees_no_slice_that_is_cleared, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
