/* Goal: the JSON has every key of `vllm bench serve` and those that load_report.h promises, the
 * table equals the golden one, and pages escape everything from servers. `--page FILE RUNS` writes
 * a page for tests/cli/test_load_page.py. */
#include "base/memory.h"
#include "bench/load/load_report.h"
#include "tests/support/load_fixture.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVIL "<script>alert('x')</script>&\"\x01\xff\x1b[31m"

static struct load_fixture run;
static struct rp_load_summary summary;
static struct rp_load_rules rules;
static struct rp_load_source source;
static struct rp_load_metadata metadata[4];
static struct rp_load_report report;
static struct rp_buffer out;
static json_t *root;

/* 400 requests, three of which failed; the server counts cached tokens, and all names are evil. */
static void make_report(void) {
    struct rp_error err;
    load_fixture_queue(&run, 400, 40, 8, 100, 7);
    for (uint32_t i = 0; i < 400; i++) {
        run.plan.requests[i].cached_tokens = 5;
        run.records.records[i].cached_tokens = i % 2 ? 4 : UINT32_MAX;
        run.records.records[i].sent_ns += 250000;
    }
    static const enum rp_load_outcome outcomes[] = {RP_LOAD_STATUS, RP_LOAD_TIMEOUT,
                                                    RP_LOAD_SERVER_ERROR};
    for (uint32_t i = 0; i < 3; i++) {
        struct rp_load_record *record = &run.records.records[200 + i];
        record->outcome = outcomes[i];
        snprintf(record->error, sizeof record->error, "%s", i == 1 ? "" : EVIL);
    }
    run.records.lag_ns = rp_calloc(10, sizeof(uint64_t));
    for (run.records.lag_count = 0; run.records.lag_count < 10; run.records.lag_count++)
        run.records.lag_ns[run.records.lag_count] = 1000000 * run.records.lag_count;
    run.records.connections = 16;
    run.records.max_in_flight = 17;
    run.plan.skipped = 2;
    rules = (struct rp_load_rules){.goodput = {{[RP_LOAD_TTFT] = 100}}, .exclude_warm_up = true};
    source = (struct rp_load_source){.dataset = RP_LOAD_MOONCAKE,
                                     .path = "trace" EVIL ".jsonl",
                                     .seed = 11,
                                     .arrival = RP_LOAD_GAMMA,
                                     .rate = 40,
                                     .burstiness = 0.5,
                                     .ramp = RP_LOAD_RAMP_LINEAR,
                                     .ramp_begin = 1,
                                     .ramp_end = 9,
                                     .time_scale = 1,
                                     .length_scale = 0.5,
                                     .block_tokens = 16};
    assert_int_equal(rp_load_metadata_parse("gpu=H200", &metadata[0], &err), RP_OK);
    assert_int_equal(rp_load_metadata_parse("gpu=a=b" EVIL, &metadata[1], &err), RP_OK);
    assert_int_equal(rp_load_metadata_parse("duration=9", &metadata[2], &err), RP_OK);
    assert_int_equal(rp_load_metadata_parse("metadata=m", &metadata[3], &err), RP_OK);
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    report = (struct rp_load_report){.summary = &summary,
                                     .rules = &rules,
                                     .source = &source,
                                     .records = &run.records,
                                     .date = "20261121-155100",
                                     .label = "label" EVIL,
                                     .backend = "openai",
                                     .model = "model" EVIL,
                                     .tokenizer = "model",
                                     .command = "reprise bench serve --x '<b>'",
                                     .server_version = EVIL,
                                     .request_rate = 40,
                                     .max_concurrency = 64,
                                     .metadata = metadata,
                                     .metadata_count = 4,
                                     .details = true};
}

static int setup(void **state) {
    (void)state;
    rp_buffer_init(&out, 0);
    make_report();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_alloc_fail_at(0);
    json_decref(root);
    root = NULL;
    rp_buffer_deinit(&out);
    load_fixture_close(&run);
    return 0;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void load_json(void) {
    json_error_t where;
    rp_buffer_clear(&out);
    json_decref(root);
    rp_load_json_write(&report, &out);
    assert_false(out.failed);
    root = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        fail_msg("%s, column %d", where.text, where.column);
}

static json_t *get(const char *key) {
    json_t *value = json_object_get(root, key);
    if (!value)
        fail_msg("no \"%s\"", key);
    return value;
}

static double number(const char *key) {
    if (!json_is_number(get(key)))
        fail_msg("\"%s\" is no number", key);
    return json_number_value(get(key));
}

static void every_key_of_vllm_is_there_with_its_type(void **state) {
    (void)state;
    static const char *const numbers[] = {
        "num_prompts",        "burstiness",      "max_concurrency",    "duration",
        "completed",          "failed",          "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput",  "total_token_throughput",
        "ramp_up_start_rps",  "ramp_up_end_rps", "request_rate"};
    static const char *const texts[] = {"date",     "backend",      "label",
                                        "model_id", "tokenizer_id", "ramp_up_strategy"};
    static const char *const lists[] = {"input_lens", "output_lens", "ttfts",
                                        "itls",       "start_times", "errors"};
    static const char *const stats[] = {"mean", "median", "std", "p50", "p90", "p95", "p99", "max"};
    load_json();
    for (size_t i = 0; i < RP_ARRAY_COUNT(numbers); i++)
        (void)number(numbers[i]);
    for (size_t i = 0; i < RP_ARRAY_COUNT(texts); i++)
        assert_true(json_is_string(get(texts[i])));
    for (size_t i = 0; i < RP_ARRAY_COUNT(lists); i++)
        assert_int_equal(json_array_size(get(lists[i])), 400);
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        for (size_t s = 0; s < RP_ARRAY_COUNT(stats); s++) {
            char key[32];
            snprintf(key, sizeof key, "%s_%s_ms", stats[s],
                     rp_load_quantity_name((enum rp_load_quantity)q));
            assert_true(number(key) > 0);
            assert_true(json_is_number(json_object_get(get("service"), key)));
        }
    assert_null(json_object_get(root, "generated_texts"));
    /* Its rates agree with its totals. */
    assert_true(fabs(number("request_throughput") * number("duration") - number("completed")) <
                1e-6);
    assert_true(fabs(number("output_throughput") * number("duration") -
                     number("total_output_tokens")) < 1e-6);
}

static void what_vllm_lacks_stands_beside_it(void **state) {
    (void)state;
    static const char *const keys[] = {
        "samples",  "service",        "client_lag_ms",  "outcomes",
        "reliable", "why_not",        "warm_up",        "prefix_cache",
        "arrival",  "offered_rate",   "seed",           "source",
        "left_out", "max_in_flight",  "connections",    "command",
        "version",  "goodput_bounds", "server_version", "good_requests",
        "metadata", "e2els",          "service_delays", "outcomes_by_request",
        "counted",  "cached_tokens"};
    load_json();
    for (size_t i = 0; i < RP_ARRAY_COUNT(keys); i++)
        (void)get(keys[i]);
    assert_int_equal(json_integer_value(json_object_get(get("outcomes"), "timeout")), 1);
    assert_int_equal(json_integer_value(json_object_get(get("outcomes"), "ok")), 397);
    assert_int_equal(json_object_size(get("outcomes")), RP_LOAD_OUTCOMES);
    assert_true(json_is_true(get("reliable")));
    assert_int_equal(json_integer_value(json_object_get(get("prefix_cache"), "cached_tokens")),
                     4 * 199);
    assert_true(json_number_value(json_object_get(get("goodput_bounds"), "ttft_ms")) == 100);
    assert_int_equal(json_object_size(get("goodput_bounds")), 1);
}

/* Values computed from the details by vllm's definitions equal those in the file. */
static void details_give_the_same_means(void **state) {
    (void)state;
    double ttft = 0, e2el = 0, tpot = 0;
    uint32_t counted = 0;
    load_json();
    for (size_t i = 0; i < 400; i++) {
        if (!json_is_true(json_array_get(get("counted"), i)))
            continue;
        double first = json_number_value(json_array_get(get("ttfts"), i)), rest = 0;
        json_t *gaps = json_array_get(get("itls"), i);
        for (size_t g = 0; g < json_array_size(gaps); g++)
            rest += json_number_value(json_array_get(gaps, g));
        counted++;
        ttft += first;
        e2el += first + rest;
        tpot += rest / (json_number_value(json_array_get(get("output_lens"), i)) - 1);
        assert_true(fabs(json_number_value(json_array_get(get("e2els"), i)) - first - rest) < 1e-8);
        assert_true(fabs(json_number_value(json_array_get(get("service_delays"), i)) - 0.00025) <
                    1e-9);
    }
    assert_int_equal(counted, json_integer_value(json_object_get(get("samples"), "e2el")));
    assert_true(fabs(ttft / counted * 1e3 - number("mean_ttft_ms")) < 1e-6);
    assert_true(fabs(e2el / counted * 1e3 - number("mean_e2el_ms")) < 1e-6);
    assert_true(fabs(tpot / counted * 1e3 - number("mean_tpot_ms")) < 1e-6);
    assert_string_equal(json_string_value(json_array_get(get("errors"), 201)), "timeout");
    assert_int_equal(json_integer_value(json_array_get(get("output_lens"), 200)), 0);
    assert_true(json_is_null(json_array_get(get("e2els"), 200)));
}

static void what_is_not_known_is_null_and_no_rate_is_inf(void **state) {
    (void)state;
    static const char *const nulls[] = {
        "request_goodput", "max_concurrency", "offered_rate", "source", "seed",
        "model_id",        "server_version",  "arrival"};
    struct rp_error err;
    memset(&rules, 0, sizeof rules);
    rules.closed = true;
    for (uint32_t i = 0; i < 400; i++)
        run.records.records[i].cached_tokens = UINT32_MAX;
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    report = (struct rp_load_report){
        .summary = &summary, .rules = &rules, .request_rate = INFINITY, .details = true};
    load_json();
    for (size_t i = 0; i < RP_ARRAY_COUNT(nulls); i++)
        assert_true(json_is_null(get(nulls[i])));
    assert_true(json_is_null(json_object_get(get("prefix_cache"), "share")));
    assert_string_equal(json_string_value(get("request_rate")), "inf");
    assert_int_equal(json_string_length(get("date")), 15);
    assert_null(json_object_get(root, "ttfts")); /* no records */
}

static void metadata_stands_at_the_top_and_hides_nothing(void **state) {
    (void)state;
    load_json();
    assert_memory_equal(json_string_value(get("gpu")), "a=b<script>", 11); /* the last one */
    assert_true(json_is_real(get("duration")));
    assert_true(json_is_object(get("metadata")));
    assert_int_equal(json_object_size(get("metadata")), 3);
    assert_string_equal(json_string_value(json_object_get(get("metadata"), "duration")), "9");
}

static void metadata_without_a_key_is_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "=", "=x", "gpu"};
    struct rp_error err;
    for (size_t i = 0; i < RP_ARRAY_COUNT(wrong); i++)
        assert_int_equal(rp_load_metadata_parse(wrong[i], &metadata[0], &err), RP_STATUS_INVALID);
    assert_int_equal(rp_load_metadata_parse("k=", &metadata[0], &err), RP_OK);
    assert_string_equal(metadata[0].value, "");
    assert_int_equal(metadata[0].key_len, 1);
}

/* ---- the table ------------------------------------------------------------------------------ */

static const char golden_table[] =
    "============ Serving Benchmark Result ============\n"
    "Model: model<script>alert('x')</script>&\"?\?\?[31m\n"
    "Successful requests:                     4\n"
    "Failed requests:                         1\n"
    "  not sent before the end of the run:    1\n"
    "  HTTP status other than 200:            1\n"
    "    first: busy ?[31m?\n"
    "Skipped, beyond the model's context:     7\n"
    "Maximum request concurrency:             64\n"
    "Request rate configured (RPS):           40.00\n"
    "Request rate offered (RPS):              5.56\n"
    "Benchmark duration (s):                  1.00\n"
    "Total input tokens:                      40\n"
    "Total generated tokens:                  20\n"
    "Request throughput (req/s):              4.00\n"
    "Request goodput (req/s):                 3.00\n"
    "Output token throughput (tok/s):         20.00\n"
    "Total token throughput (tok/s):          60.00\n"
    "Peak concurrent requests:                3\n"
    "Prefix cache hits (% of prompt tokens):  20.00\n"
    "Client lag, p99 (ms):                    0.00\n"
    "---------------Time to First Token----------------\n"
    "Mean TTFT (ms):                          21.50      from actual send: 20.00\n"
    "Median TTFT (ms):                        21.50      from actual send: 20.00\n"
    "P90 TTFT (ms):                           22.70      from actual send: 20.00\n"
    "P95 TTFT (ms):                           22.85      from actual send: 20.00\n"
    "P99 TTFT (ms):                           22.97      from actual send: 20.00\n"
    "Max TTFT (ms):                           23.00      from actual send: 20.00\n"
    "-----Time per Output Token (excl. 1st token)------\n"
    "Mean TPOT (ms):                          10.00\n"
    "Median TPOT (ms):                        10.00\n"
    "P90 TPOT (ms):                           10.00\n"
    "P95 TPOT (ms):                           10.00\n"
    "P99 TPOT (ms):                           10.00\n"
    "Max TPOT (ms):                           10.00\n"
    "---------------Inter-token Latency----------------\n"
    "Mean ITL (ms):                           10.00\n"
    "Median ITL (ms):                         10.00\n"
    "P90 ITL (ms):                            10.00\n"
    "P95 ITL (ms):                            10.00\n"
    "P99 ITL (ms):                            10.00\n"
    "Max ITL (ms):                            10.00\n"
    "----------------End-to-end Latency----------------\n"
    "Mean E2EL (ms):                          61.50      from actual send: 60.00\n"
    "Median E2EL (ms):                        61.50      from actual send: 60.00\n"
    "P90 E2EL (ms):                           62.70      from actual send: 60.00\n"
    "P95 E2EL (ms):                           62.85      from actual send: 60.00\n"
    "P99 E2EL (ms):                           62.97      from actual send: 60.00\n"
    "Max E2EL (ms):                           63.00      from actual send: 60.00\n"
    "==================================================\n"
    "UNRELIABLE: 4 samples, fewer than 100; 1 of 5 requests failed.\n";

static void the_table_is_the_golden_one(void **state) {
    (void)state;
    struct rp_error err;
    load_fixture_close(&run);
    load_fixture_open(&run, 6, 20);
    for (int i = 0; i < 4; i++)
        load_fixture_add(&run, i * 100, i * 100 + i, i * 100 + 20 + i, 10, 5)->cached_tokens = 2;
    load_fixture_fail(&run, 500, 600, RP_LOAD_STATUS, "busy \x1b[31m\xff");
    load_fixture_fail(&run, 900, 1000, RP_LOAD_NOT_SENT, "");
    run.records.max_in_flight = 3;
    run.plan.skipped = 7;
    rules = (struct rp_load_rules){.goodput = {{[RP_LOAD_TTFT] = 22}}, .exclude_warm_up = true};
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    rp_load_table_write(&report, &out);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, golden_table);
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* Runs at 10, 30 and 20 requests per second; the second without records. */
static void write_page(uint32_t runs) {
    static struct rp_load_summary summaries[3];
    static const double rates[] = {10, 30, 20};
    static const struct rp_load_objective objective = {
        .name = "o" EVIL, .bounds = {{[RP_LOAD_TTFT] = 50}}, .highest_rate = 20};
    struct rp_load_report reports[3];
    rp_buffer_clear(&out);
    for (uint32_t i = 0; i < 3; i++) {
        reports[i] = report;
        summaries[i] = summary;
        summaries[i].offered_rate = rates[i];
        summaries[i].reliable = i != 0;
        snprintf(summaries[i].why_not, sizeof summaries[i].why_not, "%s", i ? "" : EVIL);
        reports[i].summary = &summaries[i];
        if (i == 1)
            reports[i].records = NULL;
    }
    rp_load_html_write(reports, runs, runs > 1 ? &objective : NULL, &out);
}

static void pages_hold_evil_text_only_escaped(void **state) {
    (void)state;
    for (uint32_t runs = 0; runs <= 3; runs++) {
        write_page(runs);
        assert_false(out.failed);
        rp_buffer_append(&out, "", 1);
        assert_null(strstr(out.data, "<script"));
        assert_null(strstr(out.data, "http://"));
        assert_null(strstr(out.data, "https://"));
        assert_null(strchr(out.data, 0x1b));
        assert_null(strchr(out.data, 0x01));
        assert_null(strstr(out.data, "nan"));
        if (runs)
            assert_non_null(strstr(out.data,
                                   "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot; "
                                   "\xEF\xBF\xBD [31m"));
    }
}

static void pages_of_strange_runs_are_drawn_too(void **state) {
    (void)state;
    struct rp_error err;
    load_fixture_close(&run);
    load_fixture_open(&run, 6, 20);
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    rp_load_html_write(&report, 1, NULL, &out); /* nothing happened */
    load_fixture_fail(&run, 0, 10, RP_LOAD_CONNECT, "");
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    rp_load_html_write(&report, 1, NULL, &out); /* all failed */
    load_fixture_add(&run, 0, 0, 0, 0, 3);
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, &rules, &summary, &err), RP_OK);
    rp_load_html_write(&report, 1, NULL, &out); /* in no time */
    struct rp_load_report twice[] = {report, report};
    rp_load_html_write(twice, 2, NULL, &out);
    assert_false(out.failed);
    rp_buffer_append(&out, "", 1);
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf "));
}

static void no_memory_marks_the_buffer(void **state) {
    (void)state;
    for (uint64_t at = 1; at < 400; at += at < 40 ? 1 : 37) {
        uint64_t before = rp_alloc_count();
        rp_buffer_deinit(&out);
        rp_alloc_fail_at(at);
        write_page(3);
        rp_load_json_write(&report, &out);
        rp_alloc_fail_at(0);
        if (rp_alloc_count() - before < at)
            break;
        assert_true(out.failed);
        rp_buffer_deinit(&out);
        rp_buffer_init(&out, 0);
    }
}

static int write_page_file(const char *path, uint32_t runs) {
    setup(NULL);
    write_page(runs);
    FILE *file = fopen(path, "wb");
    bool written = file && !out.failed && fwrite(out.data, 1, out.len, file) == out.len;
    if (file)
        fclose(file);
    teardown(NULL);
    return written ? 0 : 1;
}

int main(int argc, char **argv) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(every_key_of_vllm_is_there_with_its_type),
        RUN(what_vllm_lacks_stands_beside_it),
        RUN(details_give_the_same_means),
        RUN(what_is_not_known_is_null_and_no_rate_is_inf),
        RUN(metadata_stands_at_the_top_and_hides_nothing),
        RUN(metadata_without_a_key_is_refused),
        RUN(the_table_is_the_golden_one),
        RUN(pages_hold_evil_text_only_escaped),
        RUN(pages_of_strange_runs_are_drawn_too),
        RUN(no_memory_marks_the_buffer),
    };
    if (argc == 4 && strcmp(argv[1], "--page") == 0)
        return write_page_file(argv[2], (uint32_t)atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
