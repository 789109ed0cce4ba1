/* Goal: a file of baselines reads back unchanged and an invalid one is refused with row and field;
 * a measurement holds, is better, fails, is missing, new or skipped; an update keeps rows that
 * hold. */
#include "base/memory.h"
#include "bench/bench_check.h"
#include "bench/expectations.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static int make_path(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/reprise-expectations-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int remove_path(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static void write_text(const char *text) {
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static struct rp_expectation number(double value, enum rp_expect_direction direction,
                                    double relative, double absolute) {
    return (struct rp_expectation){.metric = "a.b",
                                   .value = value,
                                   .direction = direction,
                                   .relative = relative,
                                   .absolute = absolute,
                                   .error = NAN};
}

static void a_file_reads_back_as_it_was_written(void **state) {
    struct rp_expectations list = {.hardware = "some \"GPU\""}, read;
    struct rp_error err = {0};
    (void)state;
    struct rp_expectation *row = rp_expectations_add(&list, "nodes.demo.decode.%u", 16u);
    row->value = 1.0 / 3;
    row->relative = 0.05;
    row->direction = RP_EXPECT_LOWER;
    row->error = 1e-3;
    snprintf(row->commit, sizeof row->commit, "abc");
    snprintf(row->command, sizeof row->command, "reprise bench check");
    row = rp_expectations_add(&list, "nodes.demo.decode.%u", 8u);
    row->value = 51;
    row->absolute = 2;
    row = rp_expectations_add(&list, "answers.demo");
    snprintf(row->text, sizeof row->text, "0123456789abcdef");
    assert_int_equal(rp_expectations_save(path, &list, &err), RP_OK);
    assert_int_equal(rp_expectations_load(path, &read, &err), RP_OK);
    assert_string_equal(read.hardware, list.hardware);
    assert_int_equal(read.count, 3);
    /* Sorted, numbers by their value. */
    assert_string_equal(read.rows[0].metric, "answers.demo");
    assert_string_equal(read.rows[0].text, "0123456789abcdef");
    assert_true(isnan(read.rows[0].error));
    assert_string_equal(read.rows[1].metric, "nodes.demo.decode.8");
    assert_true(read.rows[1].value == 51 && read.rows[1].absolute == 2);
    assert_int_equal(read.rows[1].direction, RP_EXPECT_EXACT);
    assert_string_equal(read.rows[2].metric, "nodes.demo.decode.16");
    assert_true(read.rows[2].value == 1.0 / 3 && read.rows[2].relative == 0.05);
    assert_int_equal(read.rows[2].direction, RP_EXPECT_LOWER);
    assert_true(read.rows[2].error == 1e-3);
    assert_string_equal(read.rows[2].commit, "abc");
    assert_string_equal(read.rows[2].command, "reprise bench check");
    rp_expectations_deinit(&list);
    rp_expectations_deinit(&read);
}

static void a_broken_file_is_refused_by_row_and_field(void **state) {
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"", "1: "},
        {"[]", "not an object"},
        {"{\"hardware\": 1, \"expectations\": []}", "not an object"},
        {"{\"hardware\": \"x\"}", "not an object"},
        {"{\"hardware\": \"x\", \"expectations\": [{\"value\": 1}]}", "row 1 (): \"metric\""},
        {"{\"hardware\": \"x\", \"expectations\": [{\"metric\": \"m\"}]}", "row 1 (m): \"value\""},
        {"{\"hardware\": \"x\", \"expectations\": [1]}", "row 1 (): \"metric\""},
        {"{\"hardware\": \"x\", \"expectations\": [{\"metric\": \"m\", \"value\": [1]}]}",
         "row 1 (m): \"value\""},
        {"{\"hardware\": \"x\", \"expectations\": [{\"metric\": \"m\", \"value\": 1}, "
         "{\"metric\": \"n\", \"value\": 1, \"relative\": -1}]}",
         "row 2 (n): \"relative\""},
        {"{\"hardware\": \"x\", \"expectations\": [{\"metric\": \"m\", \"value\": 1, "
         "\"direction\": \"up\"}]}",
         "\"direction\""},
        {"{\"hardware\": \"x\", \"expectations\": [{\"metric\": \"m\", \"value\": 1, "
         "\"commit\": 7}]}",
         "\"commit\""},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_expectations list;
        struct rp_error err = {0};
        write_text(cases[i].text);
        assert_int_equal(rp_expectations_load(path, &list, &err), RP_STATUS_FORMAT);
        if (!strstr(err.text, cases[i].named) || !strstr(err.text, path))
            fail_msg("case %zu: %s", i, err.text);
        assert_null(list.rows);
    }
    struct rp_expectations list;
    assert_int_equal(rp_expectations_load("/nowhere/x.json", &list, NULL), RP_STATUS_NOT_FOUND);
}

static void deviations_within_the_spread_hold(void **state) {
    static const struct {
        enum rp_expect_direction direction;
        double baseline, relative, absolute, measured;
        enum rp_expect_verdict verdict;
    } cases[] = {
        {RP_EXPECT_EXACT, 10, 0, 0, 10, RP_EXPECT_HOLDS},
        {RP_EXPECT_EXACT, 10, 0, 0, 11, RP_EXPECT_FAILS},
        {RP_EXPECT_EXACT, 10, 0, 0, 9, RP_EXPECT_FAILS},
        {RP_EXPECT_EXACT, 10, 0.1, 0, 9, RP_EXPECT_HOLDS},
        {RP_EXPECT_EXACT, 10, 0.1, 2, 12, RP_EXPECT_HOLDS},
        {RP_EXPECT_EXACT, 10, 0.1, 2, 12.5, RP_EXPECT_FAILS},
        {RP_EXPECT_EXACT, 0, 0.5, 0, 1e-9, RP_EXPECT_FAILS},
        {RP_EXPECT_LOWER, 10, 0.1, 0, 11, RP_EXPECT_HOLDS},
        {RP_EXPECT_LOWER, 10, 0.1, 0, 11.5, RP_EXPECT_FAILS},
        {RP_EXPECT_LOWER, 10, 0.1, 0, 5, RP_EXPECT_BETTER},
        {RP_EXPECT_HIGHER, 10, 0.1, 0, 5, RP_EXPECT_FAILS},
        {RP_EXPECT_HIGHER, 10, 0.1, 0, 12, RP_EXPECT_BETTER},
        {RP_EXPECT_LOWER, 10, 0.1, 0, NAN, RP_EXPECT_FAILS},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        const struct rp_expectation baseline = number(cases[i].baseline, cases[i].direction,
                                                      cases[i].relative, cases[i].absolute),
                                    now = number(cases[i].measured, RP_EXPECT_EXACT, 0, 0);
        if (rp_expectation_judge(&baseline, &now) != cases[i].verdict)
            fail_msg("case %zu", i);
    }
    struct rp_expectation text = {.text = "abc"}, other = {.text = "abd"},
                          one = number(1, RP_EXPECT_EXACT, 0, 0);
    assert_int_equal(rp_expectation_judge(&text, &text), RP_EXPECT_HOLDS);
    assert_int_equal(rp_expectation_judge(&text, &other), RP_EXPECT_FAILS);
    assert_int_equal(rp_expectation_judge(&text, &one), RP_EXPECT_FAILS);
    assert_int_equal(rp_expectation_judge(NULL, &one), RP_EXPECT_NEW);
    assert_int_equal(rp_expectation_judge(&one, NULL), RP_EXPECT_MISSING);
    snprintf(other.skipped, sizeof other.skipped, "why");
    assert_int_equal(rp_expectation_judge(&text, &other), RP_EXPECT_SKIPPED);
}

static void add(struct rp_expectations *list, const char *metric, double value,
                const char *skipped) {
    struct rp_expectation *row = rp_expectations_add(list, "%s", metric);
    assert_non_null(row);
    row->value = value;
    snprintf(row->skipped, sizeof row->skipped, "%s", skipped);
}

static void an_update_keeps_what_holds_and_the_spread(void **state) {
    struct rp_expectations base = {.count = 0}, now = {.count = 0};
    (void)state;
    add(&base, "nodes.a", 10, "");
    base.rows[0].absolute = 1;
    snprintf(base.rows[0].commit, sizeof base.rows[0].commit, "old");
    add(&base, "nodes.b", 10, "");
    base.rows[1].absolute = 1;
    add(&base, "nodes.gone", 1, "");
    add(&base, "other.kept", 2, "");
    add(&base, "valgrind.skipped", 3, "");
    add(&now, "nodes.a", 11, "");
    add(&now, "nodes.b", 12, "");
    add(&now, "nodes.new", 4, "");
    add(&now, "valgrind.skipped", 0, "no valgrind");
    assert_true(rp_expectations_update(&base, &now, "new", "command"));
    assert_int_equal(base.count, 5);
    assert_null(rp_expectations_find(&base, "nodes.gone"));
    const struct rp_expectation *a = rp_expectations_find(&base, "nodes.a"),
                                *b = rp_expectations_find(&base, "nodes.b");
    assert_true(a->value == 10 && strcmp(a->commit, "old") == 0);
    assert_true(b->value == 12 && b->absolute == 1 && strcmp(b->commit, "new") == 0);
    assert_true(rp_expectations_find(&base, "nodes.new")->value == 4);
    assert_true(rp_expectations_find(&base, "other.kept")->value == 2);
    assert_true(rp_expectations_find(&base, "valgrind.skipped")->value == 3);
    rp_expectations_deinit(&base);
    rp_expectations_deinit(&now);
}

static void hardware_has_a_short_stable_name(void **state) {
    char name[64];
    (void)state;
    rp_hardware_name("AMD EPYC, 2 threads, avx512_bf16", false, name);
    assert_string_equal(name, "amd_epyc_2_threads_avx512_bf16");
    rp_hardware_name("NVIDIA H200, 132 SMs, sm_90, cuBLASLt 13.0", true, name);
    assert_string_equal(name, "nvidia_h200");
    rp_hardware_name("../(R)  x!", false, name);
    assert_string_equal(name, "r_x");
    rp_hardware_name("", false, name);
    assert_string_equal(name, "");
    char many[200];
    memset(many, 'a', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    rp_hardware_name(many, false, name);
    assert_int_equal(strlen(name), 63);
}

static void no_memory_is_an_answer(void **state) {
    struct rp_expectations list = {.count = 0}, read;
    (void)state;
    add(&list, "a.b", 1, "");
    assert_int_equal(rp_expectations_save(path, &list, NULL), RP_OK);
    rp_alloc_fail_at(1);
    assert_int_equal(rp_expectations_load(path, &read, NULL), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(1);
    assert_int_equal(rp_expectations_save(path, &list, NULL), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    rp_expectations_deinit(&list);
}

static struct rp_expectations run_of(double step, double rate) {
    struct rp_expectations run = {.count = 0};
    struct rp_expectation *row = rp_expectations_add(&run, "decode.a");
    assert_non_null(row);
    row->value = step;
    row->relative = 0.03;
    row->direction = RP_EXPECT_LOWER;
    row = rp_expectations_add(&run, "prompts.a");
    assert_non_null(row);
    row->value = rate;
    row->relative = 0.05;
    row->direction = RP_EXPECT_HIGHER;
    return run;
}

static void test_repeated_runs_give_the_median_and_their_range_as_the_spread(void **state) {
    struct rp_expectations runs[] = {run_of(10.1, 100), run_of(10.0, 80), run_of(9.9, 90)};
    struct rp_expectations merged = {.count = 0};
    (void)state;
    assert_true(rp_check_merge(runs, 3, &merged));
    assert_int_equal(merged.count, 2);
    const struct rp_expectation *step = rp_expectations_find(&merged, "decode.a"),
                                *rate = rp_expectations_find(&merged, "prompts.a");
    assert_true(step->value == 10.0 && step->relative == 0.03); /* the range is 2 % */
    assert_true(step->direction == RP_EXPECT_LOWER && rate->direction == RP_EXPECT_HIGHER);
    assert_true(rate->value == 90 && fabs(rate->relative - 20.0 / 90) < 1e-12);
    rp_expectations_deinit(&merged);
    assert_true(rp_check_merge(runs, 1, &merged));
    assert_true(rp_expectations_find(&merged, "decode.a")->value == 10.1);
    rp_expectations_deinit(&merged);
    for (int i = 0; i < 3; i++)
        rp_expectations_deinit(&runs[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_reads_back_as_it_was_written),
        cmocka_unit_test(a_broken_file_is_refused_by_row_and_field),
        cmocka_unit_test(deviations_within_the_spread_hold),
        cmocka_unit_test(an_update_keeps_what_holds_and_the_spread),
        cmocka_unit_test(hardware_has_a_short_stable_name),
        cmocka_unit_test(no_memory_is_an_answer),
        cmocka_unit_test(test_repeated_runs_give_the_median_and_their_range_as_the_spread),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
