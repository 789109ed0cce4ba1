/* Goal: values are exact, and an exemplar that is read while it is written is never mixed. */
#include "metrics/metrics.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const double bounds[] = {0.0005, 0.1, 1, 2.5};
static struct rp_histogram histogram;
static struct rp_exemplars exemplars;

static int setup(void **state) {
    (void)state;
    memset(&exemplars, 0, sizeof exemplars);
    rp_histogram_init(&histogram, bounds, RP_ARRAY_COUNT(bounds));
    histogram.exemplars = &exemplars;
    return 0;
}

static void test_a_value_on_a_bound_is_below_it(void **state) {
    const double values[] = {0, 0.0005, 0.00051, 0.1, 1, 1.5, 2.5, 2.6, INFINITY, NAN, -1};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++)
        rp_histogram_observe(&histogram, values[i]);
    const uint64_t expected[] = {3, 2, 1, 2, 2}; /* NaN is not a value */
    for (size_t i = 0; i < RP_ARRAY_COUNT(expected); i++)
        assert_int_equal(atomic_load(&histogram.buckets[i]), expected[i]);
}

static void test_a_bucket_keeps_the_last_trace_that_fell_into_it(void **state) {
    struct rp_exemplar_copy copy;
    (void)state;
    for (uint32_t i = 0; i <= RP_ARRAY_COUNT(bounds); i++)
        assert_false(rp_histogram_exemplar(&histogram, i, &copy));
    rp_histogram_observe_at(&histogram, 0.5, 0x0123456789abcdef, 1, 1000);
    rp_histogram_observe_at(&histogram, 0.75, 0xfedcba9876543210, 2, 2345);
    rp_histogram_observe_at(&histogram, 9, 0, 3, 3000);
    assert_true(rp_histogram_exemplar(&histogram, 2, &copy));
    assert_string_equal(copy.trace_id, "fedcba98765432100000000000000002");
    assert_float_equal(copy.value, 0.75, 0);
    assert_int_equal(copy.unix_ms, 2345);
    assert_true(rp_histogram_exemplar(&histogram, 4, &copy));
    assert_string_equal(copy.trace_id, "00000000000000000000000000000003");
    assert_false(rp_histogram_exemplar(&histogram, 1, &copy));
    assert_int_equal(atomic_load(&histogram.buckets[2]), 2);
}

#define TRACE_HIGH 0x0123456789abcdefu
#define TRACE_LOW  0x0123456789abcdefu

static void test_what_is_no_trace_is_counted_and_not_kept(void **state) {
    struct rp_exemplar_copy copy;
    (void)state;
    rp_histogram_observe_at(&histogram, 0.5, 0, 0, 7);
    rp_histogram_observe_at(&histogram, NAN, TRACE_HIGH, TRACE_LOW, 7);
    assert_int_equal(atomic_load(&histogram.buckets[2]), 1);
    for (uint32_t i = 0; i <= RP_ARRAY_COUNT(bounds); i++)
        assert_false(rp_histogram_exemplar(&histogram, i, &copy));
    histogram.exemplars = NULL;
    rp_histogram_observe_at(&histogram, 0.5, TRACE_HIGH, TRACE_LOW, 7);
    assert_false(rp_histogram_exemplar(&histogram, 2, &copy));
}

static void test_a_traced_value_has_the_calendar_time(void **state) {
    struct rp_exemplar_copy copy;
    (void)state;
    rp_histogram_observe_at(&histogram, 0.5, TRACE_HIGH, TRACE_LOW, rp_unix_ms());
    assert_true(rp_histogram_exemplar(&histogram, 2, &copy));
    assert_string_equal(copy.trace_id, "0123456789abcdef0123456789abcdef");
    assert_true(copy.unix_ms > 1500000000000); /* 2017 */
}

/* The writer stores one number in all words; the reader must see equal words. */
enum { WRITES = 200000 };
static _Atomic bool writing;

static void *write_exemplars(void *ctx) {
    (void)ctx;
    for (uint64_t i = 1; i <= WRITES; i++)
        rp_histogram_observe_at(&histogram, 1 + (double)i * 1e-6, i, i, i);
    atomic_store(&writing, false);
    return NULL;
}

static void test_a_racing_reader_never_sees_a_mixture(void **state) {
    struct rp_exemplar_copy copy;
    pthread_t writer;
    uint64_t seen = 0, last = 0;
    bool more = true;
    (void)state;
    atomic_store(&writing, true);
    assert_int_equal(pthread_create(&writer, NULL, write_exemplars, NULL), 0);
    while (more) {
        more = atomic_load(&writing); /* once more after its end */
        if (!rp_histogram_exemplar(&histogram, 3, &copy))
            continue;
        char id[64];
        unsigned long long n = (unsigned long long)copy.unix_ms;
        snprintf(id, sizeof id, "%016llx%016llx", n, n);
        assert_string_equal(copy.trace_id, id);
        assert_float_equal(copy.value, 1 + (double)n * 1e-6, 0);
        assert_true(n >= last);
        last = n;
        seen++;
    }
    pthread_join(writer, NULL);
    assert_int_equal(last, WRITES);
    assert_true(seen > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_value_on_a_bound_is_below_it, setup),
        cmocka_unit_test_setup(test_a_bucket_keeps_the_last_trace_that_fell_into_it, setup),
        cmocka_unit_test_setup(test_what_is_no_trace_is_counted_and_not_kept, setup),
        cmocka_unit_test_setup(test_a_traced_value_has_the_calendar_time, setup),
        cmocka_unit_test_setup(test_a_racing_reader_never_sees_a_mixture, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
