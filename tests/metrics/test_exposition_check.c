/* Goal: each fault inserted into a valid text is found by its rule, and the checker handles any
 * bytes. */
#include "tests/support/exposition_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char open_text[] =
    "# TYPE a_seconds counter\n"
    "# UNIT a_seconds seconds\n"
    "# HELP a_seconds A \\\"b\\\" \\\\.\n"
    "a_seconds_total{x=\"1\",y=\"\\n\"} 3 # {trace_id=\"ab\"} 0.5 12.5\n"
    "a_seconds_total{x=\"2\"} 0\n"
    "# TYPE b gauge\n"
    "# HELP b B.\n"
    "b -7\n"
    "# TYPE h_seconds histogram\n"
    "# UNIT h_seconds seconds\n"
    "# HELP h_seconds H.\n"
    "h_seconds_bucket{k=\"v\",le=\"0.5\"} 1 # {trace_id=\"cd\"} 0.25\n"
    "h_seconds_bucket{k=\"v\",le=\"1.0\"} 2\n"
    "h_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\n"
    "h_seconds_sum{k=\"v\"} 3.5\n"
    "h_seconds_count{k=\"v\"} 4\n"
    "h_seconds_bucket{k=\"w\",le=\"0.5\"} 0\n"
    "h_seconds_bucket{k=\"w\",le=\"+Inf\"} 0\n"
    "h_seconds_sum{k=\"w\"} 0\n"
    "h_seconds_count{k=\"w\"} 0\n"
    "# TYPE i info\n"
    "i_info{version=\"1\"} 1\n"
    "# EOF\n";

static const char plain_text[] = "# HELP a_seconds_total A \\\\.\n"
                                 "# TYPE a_seconds_total counter\n"
                                 "a_seconds_total{x=\"1\",y=\"\\n\"} 3\n"
                                 "a_seconds_total{x=\"2\"} 0 1700000000000\n"
                                 "\n"
                                 "# a comment\n"
                                 "# HELP h_seconds H.\n"
                                 "# TYPE h_seconds histogram\n"
                                 "h_seconds_bucket{le=\"0.5\",} 1\n"
                                 "h_seconds_bucket { le = \"+Inf\" } 4\n"
                                 "h_seconds_sum 3.5\n"
                                 "h_seconds_count\t4\n"
                                 "# HELP q Q.\n"
                                 "# TYPE q summary\n"
                                 "q{quantile=\"0.5\"} 1\n"
                                 "q_sum 1\n"
                                 "q_count 1\n"
                                 "u NaN\n";

struct mutation {
    const char *from, *to, *fault; /* fault: part of the message; NULL: the text stays valid */
};

static const struct mutation open_mutations[] = {
    {"# EOF\n", "# EOF", NULL},
    {"b -7\n", "b -7 12.5\n", NULL},
    {"b -7\n", "b +Inf\n", NULL},
    {"# EOF\n", "", "no # EOF"},
    {"# EOF\n", "# EOF\n\n", "behind EOF"},
    {"b -7\n", "b -7\n\n", "empty line"},
    {"b -7\n", "b -7\r\n", "bad value"},
    {"b -7\n", "b  -7\n", "bad value"},
    {"b -7\n", " b -7\n", "no name"},
    {"b -7\n", "b -7 \n", "bad timestamp"},
    {"b -7\n", "b -7,5\n", "bad value"},
    {"b -7\n", "b\t-7\n", "no blank"},
    {"b -7\n", "b 0x7\n", "bad value"},
    {"b -7\n", "b -7\nb -7\n", "same series"},
    {"b -7\n", "c -7\n# TYPE b gauge\n", "clashes"},
    {"b -7\n", "b -7\n# HELP b B.\n", "HELP behind"},
    {"b -7\n", "b -7 # {} 1\n", "where none may be"},
    {"# HELP b B.\n", "# HELP b B.\n# HELP b B.\n", "second HELP"},
    {"# HELP b B.\n", "# Help b B.\n", "neither TYPE"},
    {"# HELP b B.\n", "#HELP b B.\n", "neither TYPE"},
    {"# HELP b B.\n", "# HELP b \xFF\n", "UTF-8"},
    {"# TYPE b gauge\n", "# TYPE b guage\n", "no type"},
    {"# TYPE b gauge\n", "# TYPE b Gauge\n", "no type"},
    {"# TYPE b gauge\n", "# TYPE b gauge\n# TYPE b gauge\n", "second TYPE"},
    {"# TYPE b gauge\n", "# TYPE b counter\n", "clashes"},
    {"# TYPE b gauge\n", "# TYPE b gauge\n# UNIT b seconds\n", "does not end in its unit"},
    {"# TYPE b gauge\n", "# TYPE a_seconds_total gauge\n", "clashes"},
    {"# UNIT a_seconds seconds", "# UNIT a_seconds second", "does not end in its unit"},
    {"a_seconds_total{x=\"2\"} 0\n", "a_seconds{x=\"2\"} 0\n", "clashes"},
    {"a_seconds_total{x=\"2\"} 0\n", "a_seconds_total{x=\"2\"} -1\n", "negative"},
    {"a_seconds_total{x=\"2\"} 0\n", "a_seconds_total{x=\"2\"} NaN\n", "no number"},
    {"{x=\"2\"}", "{y=\"\\n\",x=\"1\"}", "same series"},
    {"{x=\"2\"}", "{x=\"2\",}", "bad labels"},
    {"{x=\"2\"}", "{x=\"2\" ,y=\"\"}", "bad labels"},
    {"{x=\"2\"}", "{x=\"2\",x=\"3\"}", "bad labels"},
    {"{x=\"2\"}", "{x:=\"2\"}", "bad labels"},
    {"{x=\"2\"}", "{x=\"2\\\"}", "bad labels"},
    {"{trace_id=\"ab\"} 0.5 12.5", "{trace_id=\"ab\"}", "value of an exemplar"},
    {"{trace_id=\"ab\"} 0.5 12.5", "{trace_id=\"ab\"} 0.5 now", "timestamp of an exemplar"},
    {"{trace_id=\"ab\"} 0.5 12.5", "{trace_id=\"ab} 0.5 12.5", "labels of an exemplar"},
    {"{trace_id=\"cd\"} 0.25", "{trace_id=\"cd\"} 0.75", "beyond its bucket"},
    {"{trace_id=\"cd\"}",
     "{trace_id=\"123456789012345678901234567890123456789012345678901234567890"
     "12345678901234567890123456789012345678901234567890123456789x\"}",
     NULL}, /* 128 */
    {"{trace_id=\"cd\"}",
     "{trace_id=\"123456789012345678901234567890123456789012345678901234567890"
     "12345678901234567890123456789012345678901234567890123456789xy\"}",
     "too long"},
    {"le=\"1.0\"} 2", "le=\"1.0\"} 0", "less than the one before"},
    {"le=\"1.0\"} 2", "le=\"0.4\"} 2", "not in order"},
    {"le=\"1.0\"} 2", "le=\"0.5\"} 2", "not in order"},
    {"le=\"1.0\"} 2", "le=\"1.0\"} 2.5", "no count"},
    {"le=\"1.0\"} 2", "le=\"one\"} 2", "without a threshold"},
    {"h_seconds_bucket{k=\"v\",le=\"1.0\"} 2", "h_seconds_bucket{k=\"v\"} 2",
     "without a threshold"},
    {"h_seconds_bucket{k=\"v\",le=\"+Inf\"} 4\n", "", "no bucket for +Inf"},
    {"h_seconds_count{k=\"v\"} 4", "h_seconds_count{k=\"v\"} 5", "not what the +Inf bucket has"},
    {"h_seconds_count{k=\"v\"} 4\n", "", "sum and count"},
    {"h_seconds_sum{k=\"v\"} 3.5\n", "", "sum and count"},
    {"h_seconds_sum{k=\"v\"} 3.5\n", "h_seconds_sum{k=\"v\"} NaN\n", "no number"},
    {"h_seconds_sum{k=\"v\"} 3.5", "h_seconds_sum{k=\"w\"} 3.5", "apart from the same metric"},
    {"h_seconds_sum{k=\"v\"} 3.5", "h_seconds_sum{k=\"v\"} 3.5 1", "timestamps on some"},
    {"le=\"0.5\"} 1 # {trace_id=\"cd\"} 0.25", "le=\"-0.5\"} 1", "beside buckets below 0"},
    {"i_info{version=\"1\"} 1", "i_info{version=\"1\"} 2", "an info is 1"},
    {"i_info{version=\"1\"} 1", "i{version=\"1\"} 1", "clashes"},
    {"# TYPE i info\n", "# TYPE i_x info\n# UNIT i_x x\n", "has no unit"},
};

static const struct mutation plain_mutations[] = {
    {"u NaN\n", "u 1\n  u2\t2  -5 \n", NULL},
    {"# TYPE a_seconds_total counter\n", "", NULL},
    {"# HELP a_seconds_total A \\\\.\n", "# HELP a_seconds_total\n", NULL},
    {"u NaN\n", "u NaN", "does not end"},
    {"u NaN\n", "u Nan0\n", "bad value"},
    {"u NaN\n", "u 1_0\n", "bad value"},
    {"u NaN\n", "u{} NaN\r\n", "bad value"},
    {"u NaN\n", "u 1 1.5\n", "bad timestamp"},
    {"u NaN\n", "u 1 1 1\n", "behind the timestamp"},
    {"u NaN\n", "u 1 1 # {a=\"b\"} 1\n", "behind the timestamp"},
    {"u NaN\n", "u 1\nu 2 5\n", "same series"},
    {"u NaN\n", "u{x=\"\\t\"} 1\n", "bad labels"},
    {"u NaN\n", "u{x=\"1\" y=\"2\"} 1\n", "bad labels"},
    {"u NaN\n", "q{quantile=\"0.9\"} 1\n", NULL},
    {"u NaN\n", "a_seconds_total{x=\"3\"} 1\n", "apart from"},
    {"u NaN\n", "# TYPE u untyped\nu NaN\n", NULL},
    {"u NaN\n", "# TYPE u unknown\nu NaN\n", "no type"},
    {"u NaN\n", "u NaN\n# TYPE u gauge\n", "TYPE behind"},
    {"# HELP a_seconds_total A \\\\.\n", "# HELP a_seconds_total A \\x\n", "escape in HELP"},
    {"# HELP q Q.\n", "# HELP q Q.\n# HELP q Q.\n", "second HELP"},
    {"quantile=\"0.5\"", "quantile=\"1.5\"", "quantile that is none"},
    {"quantile=\"0.5\"", "quantil=\"0.5\"", "quantile that is none"},
    {"h_seconds_bucket { le = \"+Inf\" } 4\n", "", "no bucket for +Inf"},
    {"h_seconds_count\t4\n", "h_seconds_count 3\n", "not what the +Inf bucket has"},
    {"h_seconds_count\t4\n", "", "sum and count"},
    {"h_seconds_sum 3.5\n", "", "sum and count"},
    {"le=\"0.5\",} 1", "le=\"0.5\",} 5", "less than the one before"},
    {"a_seconds_total{x=\"2\"}", "a_seconds_total{y=\"\\n\",x=\"1\"}", "same series"},
    {"a_seconds_total{x=\"2\"}", "a-seconds_total{x=\"2\"}", "no blank"},
};

static void apply(const char *text, const struct mutation *mutation, char *out, size_t size) {
    const char *at = strstr(text, mutation->from);
    assert_non_null(at);
    int len = snprintf(out, size, "%.*s%s%s", (int)(at - text), text, mutation->to,
                       at + strlen(mutation->from));
    assert_true(len > 0 && (size_t)len < size);
}

static void check_all(enum rp_exposition format, const char *text, const struct mutation *mutations,
                      size_t count) {
    struct rp_exposition_report report;
    char mutant[4096];
    rp_exposition_check(format, text, strlen(text), &report);
    if (report.fault_count)
        fail_msg("line %u: %s", report.faults[0].line, report.faults[0].text);
    for (size_t i = 0; i < count; i++) {
        bool found = mutations[i].fault == NULL;
        apply(text, &mutations[i], mutant, sizeof mutant);
        rp_exposition_check(format, mutant, strlen(mutant), &report);
        for (uint32_t f = 0; mutations[i].fault && f < report.fault_count; f++)
            found = found || strstr(report.faults[f].text, mutations[i].fault);
        if (!found || (!mutations[i].fault && report.fault_count))
            fail_msg("%s -> %s: expected %s; %u faults, first: %s", mutations[i].from,
                     mutations[i].to, mutations[i].fault ? mutations[i].fault : "nothing",
                     report.fault_count, report.fault_count ? report.faults[0].text : "");
    }
}

static void test_each_planted_fault_of_openmetrics_is_found(void **state) {
    (void)state;
    check_all(RP_EXPOSITION_OPENMETRICS, open_text, open_mutations, RP_ARRAY_COUNT(open_mutations));
}

static void test_each_planted_fault_of_prometheus_text_is_found(void **state) {
    (void)state;
    check_all(RP_EXPOSITION_PROMETHEUS, plain_text, plain_mutations,
              RP_ARRAY_COUNT(plain_mutations));
}

static void test_a_text_cut_anywhere_is_no_openmetrics(void **state) {
    struct rp_exposition_report report;
    (void)state;
    for (size_t len = 0; len + 1 < strlen(open_text); len++) {
        rp_exposition_check(RP_EXPOSITION_OPENMETRICS, open_text, len, &report);
        assert_true(report.fault_count > 0);
    }
}

static void test_any_bytes_are_judged(void **state) {
    struct rp_exposition_report report;
    char mutant[sizeof open_text];
    uint64_t random = 88172645463325252u;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        memcpy(mutant, open_text, sizeof mutant);
        for (int n = 0; n < 4; n++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64 */
            mutant[random % (sizeof mutant - 1)] = "\0\n\"{}\\#= ,1e\xFFz+-"[(random >> 32) % 17];
        }
        rp_exposition_check((enum rp_exposition)(i % 2), mutant, sizeof mutant - 1, &report);
        rp_exposition_lint(mutant, sizeof mutant - 1, &report);
    }
}

static void test_the_style_of_names(void **state) {
    static const struct {
        const char *type, *sample, *fault; /* fault NULL: none */
    } cases[] = {
        {"counter", "good_seconds_total 1", NULL},
        {"gauge", "good_bytes 1", NULL},
        {"gauge", "good_ratio{state=\"x\"} 1", NULL},
        {"untyped", "good_count 1", NULL},
        {"counter", "bad 1", "should have \"_total\""},
        {"gauge", "bad_total 1", "should not have \"_total\""},
        {"gauge", "bad_count 1", "\"_count\" suffix"},
        {"gauge", "bad_sum 1", "\"_sum\" suffix"},
        {"gauge", "bad_bucket 1", "\"_bucket\" suffix"},
        {"gauge", "bad_minutes 1", "use base unit \"seconds\" instead of \"minutes\""},
        {"gauge", "bad_milliseconds 1", "use base unit \"seconds\" instead of \"milliseconds\""},
        {"gauge", "bad_kibibytes_used 1", "instead of \"kibibytes\""},
        {"gauge", "bad_ms 1", "abbreviated"},
        {"gauge", "bad_mb_used 1", "abbreviated"},
        {"gauge", "bad_gauge 1", "type 'gauge'"},
        {"counter", "bad_counter_total 1", "type 'counter'"},
        {"gauge", "bad:name 1", "':'"},
        {"gauge", "badName 1", "metric names should be written"},
        {"gauge", "good{badLabel=\"\"} 1", "label names"},
        {"gauge", "good{le=\"1\"} 1", "\"le\" label"},
        {"gauge", "good{quantile=\"1\"} 1", "\"quantile\" label"},
    };
    struct rp_exposition_report report;
    char text[512], name[64];
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(cases[i].sample, " {"), cases[i].sample);
        snprintf(text, sizeof text, "# HELP %s H.\n# TYPE %s %s\n%s\n", name, name, cases[i].type,
                 cases[i].sample);
        rp_exposition_lint(text, strlen(text), &report);
        assert_int_equal(report.fault_count, cases[i].fault != NULL);
        if (cases[i].fault && !strstr(report.faults[0].text, cases[i].fault))
            fail_msg("%s: %s", cases[i].sample, report.faults[0].text);
    }
    rp_exposition_lint("a 1\n", 4, &report);
    assert_int_equal(report.fault_count, 1);
    assert_string_equal(report.faults[0].text, "no help text");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_planted_fault_of_openmetrics_is_found),
        cmocka_unit_test(test_each_planted_fault_of_prometheus_text_is_found),
        cmocka_unit_test(test_a_text_cut_anywhere_is_no_openmetrics),
        cmocka_unit_test(test_any_bytes_are_judged),
        cmocka_unit_test(test_the_style_of_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
