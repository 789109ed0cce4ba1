/* Goal: both formats of a fixed registry, byte for byte, and the choice of the format. */
#include "metrics/exposition.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const double bounds[] = {0.0005, 0.1, 1, 2.5, 100000, 2e6};
static const double shown[] = {0.1, 2.5};
static const struct rp_metric_family
    counted = {"reprise_a_seconds_total", "seconds", "A \\ and\nmore \"so\".", RP_METRIC_COUNTER,
               0},
    level = {"reprise_b", NULL, "B.", RP_METRIC_GAUGE, RP_METRICS_OWN},
    spread = {"reprise_h_seconds", "seconds", "H.", RP_METRIC_HISTOGRAM, RP_METRICS_OWN},
    alias = {"vllm:h_seconds", NULL, "H, by another name.", RP_METRIC_HISTOGRAM, RP_METRICS_VLLM},
    info = {"reprise_build_info", NULL, "Build.", RP_METRIC_INFO, RP_METRICS_OWN},
    collected = {"reprise_c_ratio", "ratio", "C.", RP_METRIC_GAUGE, RP_METRICS_OWN},
    silent = {"reprise_nothing_total", NULL, "N.", RP_METRIC_COUNTER, RP_METRICS_OWN};

struct fixture {
    struct rp_registry registry;
    struct rp_buffer out;
    struct rp_counter counter, other;
    struct rp_gauge gauge;
    struct rp_histogram histogram;
    struct rp_exemplars exemplars;
};

static int setup(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof f);
    rp_histogram_init(&f.histogram, bounds, RP_ARRAY_COUNT(bounds));
    f.histogram.exemplars = &f.exemplars;
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    rp_buffer_deinit(&((struct fixture *)*state)->out);
    return 0;
}

static const char *written(struct fixture *f, enum rp_exposition format, unsigned sets) {
    rp_buffer_clear(&f->out);
    rp_exposition_write(&f->registry, format, sets, &f->out);
    rp_buffer_append(&f->out, "", 1);
    assert_false(f->out.failed);
    return f->out.data;
}

static void collect(void *ctx, struct rp_metric_out *out) {
    char labels[64] = "";
    (void)ctx;
    rp_metric_put(out, NULL, 0.25);
    assert_true(rp_label_append(labels, sizeof labels, "k", "a\"b\\c\nd\xFF"));
    assert_true(rp_label_append(labels, sizeof labels, "l", ""));
    rp_metric_put(out, labels, NAN);
    rp_metric_put(out, "k=\"inf\"", INFINITY);
    rp_metric_put(out, "k=\"large\"", 123456789.5);
}

static void collect_nothing(void *ctx, struct rp_metric_out *out) {
    (void)ctx;
    (void)out;
}

static void fill(struct fixture *f) {
    rp_registry_add(&f->registry, &counted, "x=\"1\"", &f->counter);
    rp_registry_add(&f->registry, &counted, "x=\"2\"", &f->other);
    rp_registry_add(&f->registry, &level, NULL, &f->gauge);
    rp_registry_add(&f->registry, &spread, "k=\"v\"", &f->histogram);
    rp_registry_add(&f->registry, &info, "version=\"1\"", NULL);
    rp_registry_add_collected(&f->registry, &collected, collect, f);
    rp_registry_add_collected(&f->registry, &silent, collect_nothing, NULL);
    rp_registry_add_projected(&f->registry, &alias, "k=\"v\"", &f->histogram, shown,
                              RP_ARRAY_COUNT(shown));
    rp_counter_add(&f->counter, 3);
    rp_counter_add(&f->counter, UINT64_MAX / 2);
    rp_gauge_set(&f->gauge, -7);
    rp_histogram_observe(&f->histogram, 0.0001);
    rp_histogram_observe_at(&f->histogram, 0.25, 0x0123456789abcdef, 0x0123456789abcdef,
                            1700000000007);
    rp_histogram_observe_at(&f->histogram, 2, 0x0123456789abcdef, 0x0123456789abcdee,
                            1700000000123);
    rp_histogram_observe(&f->histogram, 3e6);
}

static void test_prometheus_text_byte_for_byte(void **state) {
    struct fixture *f = *state;
    fill(f);
    assert_string_equal(written(f, RP_EXPOSITION_PROMETHEUS, RP_METRICS_OWN),
                        "# HELP reprise_a_seconds_total A \\\\ and\\nmore \"so\".\n"
                        "# TYPE reprise_a_seconds_total counter\n"
                        "reprise_a_seconds_total{x=\"1\"} 9223372036854775810\n"
                        "reprise_a_seconds_total{x=\"2\"} 0\n"
                        "# HELP reprise_b B.\n"
                        "# TYPE reprise_b gauge\n"
                        "reprise_b -7\n"
                        "# HELP reprise_h_seconds H.\n"
                        "# TYPE reprise_h_seconds histogram\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"0.0005\"} 1\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"0.1\"} 1\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"1\"} 2\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"2.5\"} 3\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"100000\"} 3\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"2e+06\"} 3\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\n"
                        "reprise_h_seconds_sum{k=\"v\"} 3.0000022501e+06\n"
                        "reprise_h_seconds_count{k=\"v\"} 4\n"
                        "# HELP reprise_build_info Build.\n"
                        "# TYPE reprise_build_info gauge\n"
                        "reprise_build_info{version=\"1\"} 1\n"
                        "# HELP reprise_c_ratio C.\n"
                        "# TYPE reprise_c_ratio gauge\n"
                        "reprise_c_ratio 0.25\n"
                        "reprise_c_ratio{k=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\",l=\"\"} NaN\n"
                        "reprise_c_ratio{k=\"inf\"} +Inf\n"
                        "reprise_c_ratio{k=\"large\"} 1.234567895e+08\n"
                        "# HELP reprise_nothing_total N.\n"
                        "# TYPE reprise_nothing_total counter\n");
}

static void test_openmetrics_byte_for_byte(void **state) {
    struct fixture *f = *state;
    fill(f);
    assert_string_equal(written(f, RP_EXPOSITION_OPENMETRICS, RP_METRICS_OWN | RP_METRICS_VLLM),
                        "# TYPE reprise_a_seconds counter\n"
                        "# UNIT reprise_a_seconds seconds\n"
                        "# HELP reprise_a_seconds A \\\\ and\\nmore \\\"so\\\".\n"
                        "reprise_a_seconds_total{x=\"1\"} 9223372036854775810\n"
                        "reprise_a_seconds_total{x=\"2\"} 0\n"
                        "# TYPE reprise_b gauge\n"
                        "# HELP reprise_b B.\n"
                        "reprise_b -7\n"
                        "# TYPE reprise_h_seconds histogram\n"
                        "# UNIT reprise_h_seconds seconds\n"
                        "# HELP reprise_h_seconds H.\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"0.0005\"} 1\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"0.1\"} 1\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"1.0\"} 2 # "
                        "{trace_id=\"0123456789abcdef0123456789abcdef\"} 0.25 1700000000.007\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"2.5\"} 3 # "
                        "{trace_id=\"0123456789abcdef0123456789abcdee\"} 2 1700000000.123\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"100000.0\"} 3\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"2e+06\"} 3\n"
                        "reprise_h_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\n"
                        "reprise_h_seconds_sum{k=\"v\"} 3.0000022501e+06\n"
                        "reprise_h_seconds_count{k=\"v\"} 4\n"
                        "# TYPE reprise_build info\n"
                        "# HELP reprise_build Build.\n"
                        "reprise_build_info{version=\"1\"} 1\n"
                        "# TYPE reprise_c_ratio gauge\n"
                        "# UNIT reprise_c_ratio ratio\n"
                        "# HELP reprise_c_ratio C.\n"
                        "reprise_c_ratio 0.25\n"
                        "reprise_c_ratio{k=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\",l=\"\"} NaN\n"
                        "reprise_c_ratio{k=\"inf\"} +Inf\n"
                        "reprise_c_ratio{k=\"large\"} 1.234567895e+08\n"
                        "# TYPE reprise_nothing counter\n"
                        "# HELP reprise_nothing N.\n"
                        "# TYPE vllm:h_seconds histogram\n"
                        "# HELP vllm:h_seconds H, by another name.\n"
                        "vllm:h_seconds_bucket{k=\"v\",le=\"0.1\"} 1\n"
                        "vllm:h_seconds_bucket{k=\"v\",le=\"2.5\"} 3 # "
                        "{trace_id=\"0123456789abcdef0123456789abcdee\"} 2 1700000000.123\n"
                        "vllm:h_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\n"
                        "vllm:h_seconds_sum{k=\"v\"} 3.0000022501e+06\n"
                        "vllm:h_seconds_count{k=\"v\"} 4\n"
                        "# EOF\n");
}

static void test_an_empty_registry_is_a_text(void **state) {
    struct fixture *f = *state;
    assert_string_equal(written(f, RP_EXPOSITION_PROMETHEUS, RP_METRICS_OWN), "");
    assert_string_equal(written(f, RP_EXPOSITION_OPENMETRICS, RP_METRICS_OWN), "# EOF\n");
}

static void collect_many(void *ctx, struct rp_metric_out *out) {
    for (int i = 0; i < *(int *)ctx; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "i=\"%d\"", i);
        rp_metric_put_count(out, labels, 1);
    }
}

static void test_a_family_never_has_more_than_so_many_series(void **state) {
    struct fixture *f = *state;
    int count = RP_FAMILY_SERIES_MAX + 9;
    char last[64];
    rp_registry_add_collected(&f->registry, &collected, collect_many, &count);
    rp_registry_add(&f->registry, &level, NULL, &f->gauge);
    const char *text = written(f, RP_EXPOSITION_PROMETHEUS, RP_METRICS_OWN);
    snprintf(last, sizeof last, "{i=\"%d\"} 1\n# HELP reprise_b", RP_FAMILY_SERIES_MAX - 1);
    assert_non_null(strstr(text, last));
    assert_int_equal(rp_counter_read(&f->registry.dropped), 9);
}

static void test_labels_that_do_not_fit_are_left_out_whole(void **state) {
    char labels[16] = "";
    (void)state;
    assert_true(rp_label_append(labels, sizeof labels, "a", "12345"));
    assert_string_equal(labels, "a=\"12345\"");
    assert_true(rp_label_append(labels, sizeof labels, "b", "1"));
    assert_string_equal(labels, "a=\"12345\",b=\"1\"");
    char exact[16] = "";
    assert_true(rp_label_append(exact, sizeof exact, "a", "12345678901"));
    assert_false(rp_label_append(exact, sizeof exact, "b", ""));
    assert_string_equal(exact, "a=\"12345678901\"");
    char small[16] = "";
    assert_false(rp_label_append(small, sizeof small, "a", "123456789012"));
    assert_string_equal(small, "");
    assert_false(rp_label_append(small, sizeof small, "a", "1234567890\""));
    assert_string_equal(small, "");
    assert_false(rp_label_append(small, sizeof small, "a_name_too_long_for_it", ""));
    assert_string_equal(small, "");
}

static void test_who_gets_openmetrics(void **state) {
    static const struct {
        const char *accept;
        bool openmetrics;
    } cases[] = {
        {NULL, false},
        {"", false},
        {"*/*", false},
        {"text/plain", false},
        {"application/*", false},
        {"application/openmetrics-text", true},
        {"application/openmetrics-text; version=1.0.0", true},
        {"Application/OpenMetrics-Text;Version=\"1.0.0\"", true},
        {"application/openmetrics-text; version=2.0.0", false},
        {"application/openmetrics-text;q=0", false},
        {"application/openmetrics-text;q=0.000, */*", false},
        {"application/openmetrics-text;q=nonsense", false},
        {"application/openmetrics-textual", false},
        /* Prometheus from 2.5, from 2.49, and 3; the last with its preference reversed. */
        {"application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         true},
        {"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
         "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         true},
        {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
         "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
         "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
         true},
        {"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding="
         "delimited;q=0.7,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
         "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
         true},
        {"text/plain;version=0.0.4;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
         "version=1.0.0;q=0.4,*/*;q=0.2",
         false},
        {"text/plain;q=0.5, application/openmetrics-text;q=0.5", true},
        {"text/plain;q=0.5;x=\"a,b;q=1\", application/openmetrics-text;q=0.4", false},
        {"text/plain;version=1.0.0, application/openmetrics-text;q=0.4", true},
        {";;;,,,q=1", false},
        {"application/openmetrics-text\"", true},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++)
        if ((rp_exposition_accepted(cases[i].accept) == RP_EXPOSITION_OPENMETRICS) !=
            cases[i].openmetrics)
            fail_msg("Accept: %s", cases[i].accept ? cases[i].accept : "(none)");
    assert_string_equal(rp_exposition_type(RP_EXPOSITION_PROMETHEUS),
                        "text/plain; version=0.0.4; charset=utf-8");
    assert_string_equal(rp_exposition_type(RP_EXPOSITION_OPENMETRICS),
                        "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_prometheus_text_byte_for_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_openmetrics_byte_for_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_empty_registry_is_a_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_family_never_has_more_than_so_many_series, setup,
                                        teardown),
        cmocka_unit_test(test_labels_that_do_not_fit_are_left_out_whole),
        cmocka_unit_test(test_who_gets_openmetrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
