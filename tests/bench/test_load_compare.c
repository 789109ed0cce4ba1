/* Goal: a constructed difference of 10 % is found, equal sides are not reported as different, and
 * drift cancels within a block. */
#include "base/memory.h"
#include "bench/load/load_compare.h"
#include "bench/load/load_report.h"
#include "tests/support/load_fixture.h"

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

#define BLOCKS      8
#define SIMULATIONS 200

static struct load_fixture run; /* its generator too */
static struct rp_comparison found;
static struct rp_error err;
static struct rp_load_result *files[2];
static char paths[2][64];

static int setup(void **state) {
    (void)state;
    memset(&err, 0, sizeof err);
    snprintf(paths[0], sizeof paths[0], "/tmp/load_compare_%d_a.json", (int)getpid());
    snprintf(paths[1], sizeof paths[1], "/tmp/load_compare_%d_b.json", (int)getpid());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    load_fixture_close(&run);
    for (int i = 0; i < 2; i++) {
        rp_load_result_free(files[i]);
        files[i] = NULL;
        remove(paths[i]);
    }
    return 0;
}

static void near(double got, double want, double within) {
    if (!(fabs(got - want) <= within))
        fail_msg("%.12g where %.12g is wanted", got, want);
}

static void expect_text(const char *want) {
    char text[128];
    rp_compare_text(&found, text, sizeof text);
    assert_string_equal(text, want);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void student_quantiles_are_those_of_tables(void **state) {
    (void)state;
    near(rp_student_t975(1), 12.7062, 1e-4);
    near(rp_student_t975(4), 2.7764, 1e-4);
    near(rp_student_t975(30), 2.0423, 1e-4);
    near(rp_student_t975(31), 2.0395, 1e-4);
    near(rp_student_t975(60), 2.0003, 1e-4);
    near(rp_student_t975(1000), 1.9623, 1e-4);
}

static void the_interval_is_t_over_the_blocks_log_ratios(void **state) {
    (void)state;
    /* log ratios log 1.1, log 1.2, log 1.3: scipy.stats.t.interval of them */
    const double values[] = {10, 11, 11, 10, 9, 12, 12, 11, 20, 25, 27, 20};
    assert_int_equal(rp_compare_blocks("ms", false, values, 3, 0.02, &found, &err), RP_OK);
    near(found.ratio, cbrt(1.1 * 1.2 * 1.3), 1e-12);
    double mean = log(found.ratio), a = log(1.1) - mean, b = log(1.2) - mean, c = log(1.3) - mean;
    double half = 4.302653 * sqrt((a * a + b * b + c * c) / 2 / 3);
    near(found.low, exp(mean - half), 1e-6);
    near(found.high, exp(mean + half), 1e-6);
    near(found.b / found.a, found.ratio, 1e-12);
    assert_int_equal(found.verdict, RP_COMPARE_SAME);
}

static void a_linear_drift_cancels_within_abba(void **state) {
    (void)state;
    double values[4 * BLOCKS];
    for (int i = 0; i < 4 * BLOCKS; i++) {
        bool is_b = i % 4 == 1 || i % 4 == 2;
        values[i] = (is_b ? 1.1 : 1) * (100 + 3 * i); /* the machine ends twice as slow */
    }
    assert_int_equal(rp_compare_blocks("ms", false, values, BLOCKS, 0.02, &found, &err), RP_OK);
    near(found.ratio, 1.1, 1e-12);
    near(found.low, 1.1, 1e-12);
    near(found.high, 1.1, 1e-12);
    expect_text("B is 10.0 % slower (95 % interval 10.0 to 10.0)");
}

static void verdicts_say_which_way(void **state) {
    (void)state;
    found = (struct rp_comparison){.a = 1, .b = 1.101, .low = 1.092, .high = 1.11, .margin = 0.02};
    rp_compare_judge(&found);
    expect_text("B is 10.1 % slower (95 % interval 9.2 to 11.0)");
    found.larger_is_better = true;
    rp_compare_judge(&found);
    expect_text("B is 10.1 % faster (95 % interval 9.2 to 11.0)");
    found = (struct rp_comparison){.a = 1, .b = 0.9, .low = 0.88, .high = 0.95, .margin = 0.02};
    rp_compare_judge(&found);
    expect_text("B is 10.0 % faster (95 % interval 5.0 to 12.0)");
    found.larger_is_better = true;
    rp_compare_judge(&found);
    expect_text("B is 10.0 % slower (95 % interval 5.0 to 12.0)");
    found = (struct rp_comparison){.a = 1, .b = 1.012, .low = 1.009, .high = 1.015, .margin = 0.02};
    rp_compare_judge(&found);
    expect_text("no difference (ratio 1.012, 95 % interval 1.009 to 1.015, within the margin)");
    found.high = 1.021;
    rp_compare_judge(&found);
    assert_int_equal(found.verdict, RP_COMPARE_SLOWER);
    found = (struct rp_comparison){.a = 1, .b = 1.1, .low = 0.99, .high = 1.2};
    rp_compare_judge(&found);
    expect_text("no difference (ratio 1.100, 95 % interval 0.990 to 1.200)");
    found = (struct rp_comparison){.a = 1, .b = 2};
    rp_compare_judge(&found);
    expect_text("no interval: only totals");
}

static void blocks_that_say_nothing_are_refused(void **state) {
    (void)state;
    const double values[] = {1, 2, 2, 1, 1, 0, 2, 1};
    assert_int_equal(rp_compare_blocks("ms", false, values, 0, 0.02, &found, &err),
                     RP_STATUS_INVALID);
    assert_int_equal(rp_compare_blocks("ms", false, values, 1, 0.02, &found, &err), RP_OK);
    near(found.ratio, 2, 1e-12);
    expect_text("no interval: one block");
    assert_int_equal(rp_compare_blocks("ms", false, values, 2, 0.02, &found, &err),
                     RP_STATUS_INVALID);
    assert_string_equal(err.text, "ms: block 2 has a value of 0");
}

/* Like a shared machine: it slows down by 15 %, drifts randomly, and each run has noise of 2 %. */
static void simulate_blocks(uint64_t seed, double slower, double margin) {
    double values[4 * BLOCKS], wander = 0;
    run.state = seed * 1000003;
    for (int i = 0; i < 4 * BLOCKS; i++) {
        bool is_b = i % 4 == 1 || i % 4 == 2;
        wander += 0.01 * load_fixture_normal(&run);
        values[i] = (is_b ? slower : 1) * 50 * (1 + 0.15 * i / (4 * BLOCKS)) *
                    exp(wander + 0.02 * load_fixture_normal(&run));
    }
    assert_int_equal(rp_compare_blocks("ms", false, values, BLOCKS, margin, &found, &err), RP_OK);
}

static void a_planted_slowdown_is_found_and_a_against_a_is_not(void **state) {
    (void)state;
    int planted = 0, false_ones = 0, beyond_margin = 0, covered = 0;
    for (uint64_t seed = 1; seed <= SIMULATIONS; seed++) {
        simulate_blocks(seed, 1.1, RP_COMPARE_MARGIN);
        planted += found.verdict == RP_COMPARE_SLOWER;
        covered += found.low <= 1.1 && found.high >= 1.1;
        simulate_blocks(seed + SIMULATIONS, 1, 0);
        false_ones += found.verdict != RP_COMPARE_SAME;
        simulate_blocks(seed + SIMULATIONS, 1, RP_COMPARE_MARGIN);
        beyond_margin += found.verdict != RP_COMPARE_SAME;
    }
    print_message("of %d: planted found %d, covered %d, A against A differs %d, with a margin %d\n",
                  SIMULATIONS, planted, covered, false_ones, beyond_margin);
    assert_true(planted >= SIMULATIONS - 1);
    /* 5 % of 200 are 10; more than 18 have a probability of 1 in 200. */
    assert_in_range(false_ones, 1, 18);
    assert_in_range(covered, SIMULATIONS - 18, SIMULATIONS);
    assert_true(beyond_margin <= false_ones);
}

/* ---- result files --------------------------------------------------------------------------- */

static void write_text(int file, const char *text, size_t len) {
    FILE *out = fopen(paths[file], "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, len, out), len);
    fclose(out);
}

static int read_file(int file) {
    rp_load_result_free(files[file]);
    files[file] = NULL;
    return rp_load_result_read(paths[file], &files[file], &err);
}

/* The run in `run`, as file 0 or 1. */
static void save_run(int file, bool details) {
    static const struct rp_load_rules rules = {.exclude_warm_up = true};
    struct rp_load_summary summary;
    struct rp_buffer out;
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    struct rp_load_report report = {.summary = &summary,
                                    .rules = &rules,
                                    .records = &run.records,
                                    .model = "m",
                                    .request_rate = INFINITY,
                                    .details = details};
    rp_buffer_init(&out, 0);
    rp_load_json_write(&report, &out);
    assert_false(out.failed);
    write_text(file, out.data, out.len);
    rp_buffer_deinit(&out);
    assert_int_equal(read_file(file), RP_OK);
}

static void save_queue(int file, double slower, uint64_t seed, bool details) {
    load_fixture_queue(&run, 600, 20, 8, 100 * slower, seed);
    save_run(file, details);
    load_fixture_close(&run);
}

static void compare(const char *metric) {
    memset(&err, 0, sizeof err);
    if (rp_compare_results(files[0], files[1], metric, RP_COMPARE_MARGIN, &found, &err) != RP_OK)
        fail_msg("%s: %s", metric, err.text);
}

static void the_same_requests_are_compared_pair_by_pair(void **state) {
    (void)state;
    save_queue(0, 1, 5, true);
    save_queue(1, 1.1, 5, true); /* the same lengths and arrivals, 10 % slower */
    compare("mean_e2el_ms");
    assert_true(found.paired);
    assert_int_equal(found.verdict, RP_COMPARE_SLOWER);
    assert_true(found.low > 1.08 && found.high < 1.12 && found.low < found.ratio &&
                found.ratio < found.high);
    compare("median_itl_ms");
    assert_int_equal(found.verdict, RP_COMPARE_SLOWER);
    near(found.ratio, 1.1, 0.02);
    compare("p93_e2el_ms"); /* no key of the file */
    near(found.ratio, 1.1, 0.03);
    compare("std_tpot_ms");
    assert_int_equal(found.verdict, RP_COMPARE_SLOWER);
    compare("max_ttft_ms");
    expect_text("no interval: only totals");
    compare("output_throughput");
    assert_true(found.larger_is_better);
    expect_text("no interval: only totals");
}

static void a_file_against_itself_has_no_difference(void **state) {
    (void)state;
    save_queue(0, 1, 5, true);
    save_queue(1, 1, 5, true);
    compare("p99_ttft_ms");
    near(found.low, 1, 0);
    near(found.high, 1, 0);
    expect_text("no difference (ratio 1.000, 95 % interval 1.000 to 1.000)");
}

/* Different arrivals and lengths: differences are due to chance. */
static void two_runs_of_one_server_do_not_differ_and_the_bootstrap_repeats_itself(void **state) {
    (void)state;
    static const char *const metrics[] = {"mean_ttft_ms", "p95_ttft_ms", "mean_tpot_ms",
                                          "p99_e2el_ms"};
    int differ[RP_ARRAY_COUNT(metrics)] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        load_fixture_queue(&run, 500, 40, 8, 100, seed * 2);
        save_run(0, true);
        load_fixture_close(&run);
        load_fixture_queue(&run, 500, 40, 8, 100, seed * 2 + 1);
        run.records.records[150].input_tokens = 11; /* else they look like the same requests */
        save_run(1, true);
        load_fixture_close(&run);
        for (size_t i = 0; i < RP_ARRAY_COUNT(metrics); i++) {
            compare(metrics[i]);
            assert_false(found.paired);
            differ[i] += found.verdict != RP_COMPARE_SAME;
            struct rp_comparison first = found;
            compare(metrics[i]);
            assert_memory_equal(&first, &found, sizeof found);
        }
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(metrics); i++) {
        print_message("of 40: %d differ in %s\n", differ[i], metrics[i]);
        assert_in_range(differ[i], 0, 6);
    }
}

static void files_without_details_have_totals_only(void **state) {
    (void)state;
    save_queue(0, 1, 5, false);
    save_queue(1, 1.5, 6, false);
    compare("mean_e2el_ms");
    near(found.ratio, 1.5, 0.2);
    expect_text("no interval: only totals");
    assert_int_equal(rp_compare_results(files[0], files[1], "p93_e2el_ms", 0, &found, &err),
                     RP_STATUS_NOT_FOUND);
}

/* As written by vllm's --save-detailed: 30 requests, the last one failed. */
static void results_of_vllm_are_read(void **state) {
    (void)state;
    for (int file = 0; file < 2; file++) {
        struct rp_buffer out;
        rp_buffer_init(&out, 0);
        rp_buffer_puts(&out, "{\"backend\": \"vllm\", \"model_id\": \"m\", \"num_prompts\": 30, "
                             "\"request_rate\": \"inf\", \"max_concurrency\": null, "
                             "\"duration\": 3.5, \"completed\": 29, \"request_goodput\": null, "
                             "\"mean_ttft_ms\": 100.0, \"input_lens\": [");
        for (int i = 0; i < 30; i++)
            rp_buffer_printf(&out, "%s10", i ? ", " : "");
        rp_buffer_puts(&out, "], \"output_lens\": [");
        for (int i = 0; i < 30; i++)
            rp_buffer_printf(&out, "%s%d", i ? ", " : "", i < 29 ? 3 : 0);
        rp_buffer_puts(&out, "], \"ttfts\": [");
        for (int i = 0; i < 30; i++)
            rp_buffer_printf(&out, "%s%.4f", i ? ", " : "", i < 29 ? 0.1 + 0.001 * i : 0.0);
        rp_buffer_puts(&out, "], \"itls\": [");
        for (int i = 0; i < 30; i++)
            rp_buffer_printf(&out, i < 29 ? "%s[%.3f, 0.02]" : "%s[]", i ? ", " : "",
                             0.02 + 0.002 * file);
        rp_buffer_puts(&out, "], \"generated_texts\": [\"\"], \"errors\": [");
        for (int i = 0; i < 30; i++)
            rp_buffer_printf(&out, "%s\"%s\"", i ? ", " : "", i < 29 ? "" : "Timeout");
        rp_buffer_puts(&out, "]}");
        write_text(file, out.data, out.len);
        rp_buffer_deinit(&out);
        if (read_file(file) != RP_OK)
            fail_msg("%s", err.text);
    }
    compare("mean_tpot_ms");
    near(found.a, 20, 1e-9);
    near(found.b, 21, 1e-9);
    assert_int_equal(found.samples, 29);
    assert_true(found.paired);
    expect_text("B is 5.0 % slower (95 % interval 5.0 to 5.0)");
    compare("p50_ttft_ms");
    near(found.a, 114, 1e-9);
    compare("mean_e2el_ms");
    near(found.a, 154, 1e-9);
    assert_int_equal(rp_compare_results(files[0], files[1], "request_goodput", 0, &found, &err),
                     RP_STATUS_NOT_FOUND);
    assert_int_equal(rp_compare_results(files[0], files[1], "duration", 0, &found, &err),
                     RP_STATUS_INVALID);
}

static void warnings_say_what_differs_and_what_is_unreliable(void **state) {
    (void)state;
    struct rp_buffer out;
    static const char a[] =
        "{\"duration\":1,\"num_prompts\":5,\"model_id\":\"m\",\"reliable\":false,"
        "\"why_not\":\"not settled\"}";
    static const char b[] = "{\"duration\":1,\"num_prompts\":5.0,\"model_id\":\"n\",\"failed\":2}";
    write_text(0, a, strlen(a));
    write_text(1, b, strlen(b));
    assert_int_equal(read_file(0), RP_OK);
    assert_int_equal(read_file(1), RP_OK);
    rp_buffer_init(&out, 0);
    rp_load_result_warnings(files[0], files[1], &out);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, "A is unreliable: not settled\nB: 2 requests failed\n"
                                  "A and B differ in model_id\n");
    rp_buffer_deinit(&out);
}

static void files_that_are_no_results_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *says;
    } cases[] = {
        {"", RP_STATUS_FORMAT, "not valid JSON"},
        {"[1]", RP_STATUS_FORMAT, "no \"duration\""},
        {"{}", RP_STATUS_FORMAT, "no \"duration\""},
        {"{\"duration\":1,\"ttfts\":[1,2],\"itls\":[[]],\"output_lens\":[1,1]}", RP_STATUS_FORMAT,
         "\"itls\""},
        {"{\"duration\":1,\"ttfts\":[1],\"itls\":[[]],\"output_lens\":[1],\"errors\":{}}",
         RP_STATUS_FORMAT, "\"errors\""},
        {"{\"duration\":1,\"ttfts\":[\"x\"],\"itls\":[[]],\"output_lens\":[1]}", RP_STATUS_FORMAT,
         "\"ttfts\""},
        {"{\"duration\":1,\"ttfts\":[1],\"itls\":[[null]],\"output_lens\":[1]}", RP_STATUS_FORMAT,
         "\"ttfts\""},
        {"{\"duration\":1,\"ttfts\":[-1],\"itls\":[[]],\"output_lens\":[1]}", RP_STATUS_FORMAT,
         "\"ttfts\""},
        {"{\"duration\":1,\"ttfts\":7,\"itls\":7}", RP_OK, ""},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        write_text(0, cases[i].text, strlen(cases[i].text));
        if (read_file(0) != cases[i].status ||
            (cases[i].status != RP_OK && !strstr(err.text, cases[i].says)))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
    assert_int_equal(rp_load_result_read("/nowhere/a.json", &files[1], &err), RP_STATUS_NOT_FOUND);
    assert_null(files[1]);
}

int main(void) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(student_quantiles_are_those_of_tables),
        RUN(the_interval_is_t_over_the_blocks_log_ratios),
        RUN(a_linear_drift_cancels_within_abba),
        RUN(verdicts_say_which_way),
        RUN(blocks_that_say_nothing_are_refused),
        RUN(a_planted_slowdown_is_found_and_a_against_a_is_not),
        RUN(the_same_requests_are_compared_pair_by_pair),
        RUN(a_file_against_itself_has_no_difference),
        RUN(two_runs_of_one_server_do_not_differ_and_the_bootstrap_repeats_itself),
        RUN(files_without_details_have_totals_only),
        RUN(results_of_vllm_are_read),
        RUN(warnings_say_what_differs_and_what_is_unreliable),
        RUN(files_that_are_no_results_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
