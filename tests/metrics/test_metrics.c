/* Goal: the registry's text is Prometheus' format and its numbers are those that were counted. */
#include "metrics/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_registry registry;
    struct rp_buffer out;
    struct rp_counter counter, other;
    struct rp_gauge gauge;
    struct rp_histogram histogram;
};

static const double bounds[] = {0.0005, 0.1, 1, 2.5};

static int setup(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof f);
    rp_histogram_init(&f.histogram, bounds, RP_ARRAY_COUNT(bounds));
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    rp_buffer_deinit(&((struct fixture *)*state)->out);
    return 0;
}

static const char *written(struct fixture *f) {
    rp_registry_write(&f->registry, &f->out);
    rp_buffer_append(&f->out, "", 1);
    assert_false(f->out.failed);
    return f->out.data;
}

static void test_a_family_has_one_help_and_one_type(void **state) {
    struct fixture *f = *state;
    rp_registry_add(&f->registry, "reprise_a_total", "A \\ and\nmore.", RP_METRIC_COUNTER,
                    "x=\"1\"", &f->counter);
    rp_registry_add(&f->registry, "reprise_a_total", "A \\ and\nmore.", RP_METRIC_COUNTER,
                    "x=\"2\"", &f->other);
    rp_registry_add(&f->registry, "reprise_b", "B.", RP_METRIC_GAUGE, NULL, &f->gauge);
    rp_counter_add(&f->counter, 3);
    rp_counter_add(&f->counter, UINT64_MAX / 2);
    rp_gauge_set(&f->gauge, -7);
    assert_string_equal(written(f), "# HELP reprise_a_total A \\\\ and\\nmore.\n"
                                    "# TYPE reprise_a_total counter\n"
                                    "reprise_a_total{x=\"1\"} 9223372036854775810\n"
                                    "reprise_a_total{x=\"2\"} 0\n"
                                    "# HELP reprise_b B.\n"
                                    "# TYPE reprise_b gauge\n"
                                    "reprise_b -7\n");
}

static void test_a_value_on_a_bound_is_below_it(void **state) {
    struct fixture *f = *state;
    const double values[] = {0, 0.0005, 0.00051, 0.1, 1, 1.5, 2.5, 2.6, INFINITY, NAN, -1};
    for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++)
        rp_histogram_observe(&f->histogram, values[i]);
    const uint64_t expected[] = {3, 2, 1, 2, 2}; /* NaN is not a value */
    for (size_t i = 0; i < RP_ARRAY_COUNT(expected); i++)
        assert_int_equal(atomic_load(&f->histogram.buckets[i]), expected[i]);
}

static void test_buckets_are_written_cumulatively(void **state) {
    struct fixture *f = *state;
    rp_registry_add(&f->registry, "reprise_h_seconds", "H.", RP_METRIC_HISTOGRAM, "k=\"v\"",
                    &f->histogram);
    rp_histogram_observe(&f->histogram, 0.25);
    rp_histogram_observe(&f->histogram, 0.0001);
    rp_histogram_observe(&f->histogram, 100);
    assert_string_equal(written(f), "# HELP reprise_h_seconds H.\n"
                                    "# TYPE reprise_h_seconds histogram\n"
                                    "reprise_h_seconds_bucket{k=\"v\",le=\"0.0005\"} 1\n"
                                    "reprise_h_seconds_bucket{k=\"v\",le=\"0.1\"} 1\n"
                                    "reprise_h_seconds_bucket{k=\"v\",le=\"1\"} 2\n"
                                    "reprise_h_seconds_bucket{k=\"v\",le=\"2.5\"} 2\n"
                                    "reprise_h_seconds_bucket{k=\"v\",le=\"+Inf\"} 3\n"
                                    "reprise_h_seconds_sum{k=\"v\"} 100.2501\n"
                                    "reprise_h_seconds_count{k=\"v\"} 3\n");
}

static void test_the_count_is_the_last_bucket_without_labels_too(void **state) {
    struct fixture *f = *state;
    rp_registry_add(&f->registry, "reprise_h_seconds", "H.", RP_METRIC_HISTOGRAM, NULL,
                    &f->histogram);
    rp_histogram_observe(&f->histogram, 1);
    const char *text = written(f);
    assert_non_null(strstr(text, "reprise_h_seconds_bucket{le=\"+Inf\"} 1\n"));
    assert_non_null(strstr(text, "reprise_h_seconds_count 1\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_family_has_one_help_and_one_type, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_value_on_a_bound_is_below_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_buckets_are_written_cumulatively, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_count_is_the_last_bucket_without_labels_too, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
