/* Goal: percentiles equal numpy's, latencies and rates follow load.h, the warm-up ends where a run
 * has settled, and a run with insufficient data is reported as unreliable. */
#include "base/memory.h"
#include "bench/load/load_metrics.h"
#include "bench/load/load_warmup.h"
#include "tests/support/load_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct load_fixture run;
static struct rp_load_summary summary;
static const struct rp_load_rules all_count = {.exclude_warm_up = false};
static const struct rp_load_rules settled_counts = {.exclude_warm_up = true};

static int close_run(void **state) {
    (void)state;
    load_fixture_close(&run);
    return 0;
}

static void near(double got, double want) {
    if (fabs(got - want) > 1e-9 * (1 + fabs(want)))
        fail_msg("%.12g where %.12g is wanted", got, want);
}

static void summarize(const struct rp_load_rules *rules) {
    struct rp_error err = {0};
    assert_int_equal(rp_load_summarize(&run.plan, &run.records, rules, &summary, &err), RP_OK);
}

/* ---- statistics ----------------------------------------------------------------------------- */

/* numpy 2: percentile, mean, std. */
static void statistics_are_those_of_numpy(void **state) {
    (void)state;
    double few[] = {3, 1, 4, 1.5, 9, 2.6, 5.3}, many[1000], two[] = {8, 2};
    struct rp_load_stat stat;
    rp_load_stat_compute(few, 7, &stat);
    near(stat.p50, 3.0);
    near(stat.p90, 6.78);
    near(stat.p95, 7.89);
    near(stat.p99, 8.778);
    near(stat.mean, 3.7714285714285714);
    near(stat.std, 2.5223086282861047);
    near(stat.max, 9);
    for (uint32_t i = 0; i < 1000; i++)
        many[i] = (i * 7919) % 1000 / 7.0;
    rp_load_stat_compute(many, 1000, &stat);
    near(stat.p50, 71.35714285714286);
    near(stat.p90, 128.44285714285715);
    near(stat.p95, 135.57857142857142);
    near(stat.p99, 141.28714285714287);
    near(stat.mean, 71.35714285714286);
    near(stat.std, 41.2392843224585);
    rp_load_stat_compute(two, 2, &stat);
    near(stat.p50, 5);
    near(stat.p99, 7.94);
    near(stat.std, 3);
    rp_load_stat_compute(two, 1, &stat);
    near(stat.p50, 2);
    near(stat.p99, 2);
    rp_load_stat_compute(two, 0, &stat);
    assert_int_equal(stat.count, 0);
    near(stat.mean + stat.max + stat.p99, 0);
}

/* Rank by counting, no sorting: value of rank r is the one with r smaller ones. */
static double oracle(const double *values, uint32_t count, double q) {
    double rank = q * (count - 1), low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t below = 0;
        for (uint32_t k = 0; k < count; k++)
            below += values[k] < values[i] || (values[k] == values[i] && k < i);
        if (below == (uint32_t)floor(rank))
            low = values[i];
        if (below == (uint32_t)ceil(rank))
            high = values[i];
    }
    return low + (high - low) * (rank - floor(rank));
}

static void quantiles_of_random_lists_agree_with_ranks_counted_one_by_one(void **state) {
    (void)state;
    double values[150], sorted[150];
    for (uint32_t round = 1; round <= 150; round++) {
        struct rp_load_stat stat;
        for (uint32_t i = 0; i < round; i++) /* with ties */
            values[i] = floor(load_fixture_exponential(&run) * 40) / 8;
        memcpy(sorted, values, sizeof sorted);
        rp_load_stat_compute(sorted, round, &stat);
        near(stat.p50, oracle(values, round, 0.5));
        near(stat.p90, oracle(values, round, 0.9));
        near(stat.p95, oracle(values, round, 0.95));
        near(stat.p99, oracle(values, round, 0.99));
        near(rp_load_quantile(sorted, round, 0), oracle(values, round, 0));
        near(rp_load_quantile(sorted, round, 1), stat.max);
    }
}

/* ---- definitions ---------------------------------------------------------------------------- */

/* Sent 5 ms late, 5 tokens 10 ms apart: the intended time counts, and the sending for service
 * times. */
static void
latencies_count_from_the_intended_time_and_service_times_from_the_sending(void **state) {
    (void)state;
    load_fixture_open(&run, 1, 5);
    load_fixture_add(&run, 100, 105, 130, 10, 5);
    summarize(&all_count);
    near(summary.latency[RP_LOAD_TTFT].p50, 30);
    near(summary.latency[RP_LOAD_E2EL].p50, 70);
    near(summary.latency[RP_LOAD_TPOT].p50, 10);
    near(summary.latency[RP_LOAD_ITL].p99, 10);
    assert_int_equal(summary.latency[RP_LOAD_ITL].count, 4);
    near(summary.service[RP_LOAD_TTFT].p50, 25);
    near(summary.service[RP_LOAD_E2EL].p50, 65);
    near(summary.service[RP_LOAD_TPOT].p50, 10);
    assert_int_equal(summary.service[RP_LOAD_ITL].count, 4);
}

/* Two tokens in one chunk: usage has 8 tokens, but there are 4 chunks. */
static void tokens_are_those_of_usage_and_gaps_those_of_chunks(void **state) {
    (void)state;
    load_fixture_open(&run, 1, 4);
    load_fixture_add(&run, 0, 0, 10, 7, 4)->output_tokens = 8;
    summarize(&all_count);
    near(summary.latency[RP_LOAD_TPOT].p50, 3);
    near(summary.latency[RP_LOAD_ITL].p50, 7);
    assert_int_equal(summary.output_tokens, 8);
}

static void one_output_token_has_no_tpot_and_no_content_no_ttft(void **state) {
    (void)state;
    load_fixture_open(&run, 3, 8);
    load_fixture_add(&run, 0, 0, 20, 0, 1);
    load_fixture_add(&run, 0, 0, 40, 0, 0);
    summarize(&all_count);
    assert_int_equal(summary.completed, 2);
    assert_int_equal(summary.latency[RP_LOAD_TPOT].count, 0);
    assert_int_equal(summary.latency[RP_LOAD_ITL].count, 0);
    assert_int_equal(summary.latency[RP_LOAD_TTFT].count, 1);
    near(summary.latency[RP_LOAD_TTFT].mean, 20);
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 2);
    near(summary.latency[RP_LOAD_E2EL].max, 40);
}

static void failures_are_counted_by_kind_and_have_no_latency(void **state) {
    (void)state;
    load_fixture_open(&run, 12, 16);
    load_fixture_add(&run, 0, 0, 10, 10, 4);
    for (int outcome = RP_LOAD_NOT_SENT; outcome < RP_LOAD_OUTCOMES; outcome++)
        load_fixture_fail(&run, 1, 900, (enum rp_load_outcome)outcome, "no");
    load_fixture_fail(&run, 1, 2000, RP_LOAD_TIMEOUT, "no");
    summarize(&all_count);
    assert_int_equal(summary.planned, 10);
    assert_int_equal(summary.completed, 1);
    assert_int_equal(summary.outcomes[RP_LOAD_OK], 1);
    assert_int_equal(summary.outcomes[RP_LOAD_SHORT], 1);
    assert_int_equal(summary.outcomes[RP_LOAD_TIMEOUT], 2);
    assert_int_equal(rp_load_failed(&summary), 8);
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 1);
    near(summary.seconds, 2);
    near(summary.request_rate, 0.5);
    near(summary.output_rate, 2);
    near(summary.total_rate, 7);
}

static void cached_tokens_that_a_server_leaves_out_are_zero_once_it_told_any(void **state) {
    (void)state;
    load_fixture_open(&run, 4, 16);
    for (int i = 0; i < 3; i++) {
        load_fixture_add(&run, i, i, 10 + i, 1, 4);
        run.plan.requests[i].cached_tokens = (uint32_t)(3 * i);
    }
    summarize(&all_count);
    assert_false(summary.cached_reported);
    assert_int_equal(summary.expected_cached_tokens, 9);
    run.records.records[1].cached_tokens = 3;
    summarize(&all_count);
    assert_true(summary.cached_reported);
    assert_int_equal(summary.cached_tokens, 3);
    assert_int_equal(summary.prompt_tokens, 30);
}

static void a_closed_loop_has_no_offered_rate(void **state) {
    (void)state;
    struct rp_load_rules closed = {.closed = true};
    load_fixture_queue(&run, 11, 100, 4, 10, 1);
    for (uint32_t i = 0; i < 11; i++)
        run.plan.requests[i].at_ns = i * 500000000ull;
    summarize(&all_count);
    near(summary.offered_rate, 2);
    summarize(&closed);
    near(summary.offered_rate, 0);
}

/* ---- goodput -------------------------------------------------------------------------------- */

static void goodput_counts_requests_within_every_bound(void **state) {
    (void)state;
    struct rp_load_rules rules = {.goodput = {{0}}};
    struct rp_error err;
    load_fixture_open(&run, 4, 16);
    load_fixture_add(&run, 0, 0, 100, 10, 4); /* good */
    load_fixture_add(&run, 0, 0, 501, 10, 4); /* late */
    load_fixture_add(&run, 0, 0, 100, 40, 4); /* slow */
    load_fixture_add(&run, 0, 0, 2000, 0, 1); /* late, no TPOT */
    assert_int_equal(rp_load_goodput_parse("ttft:500,tpot:30", &rules.goodput, &err), RP_OK);
    summarize(&rules);
    assert_int_equal(summary.good, 1);
    near(summary.goodput, 0.5);
    assert_int_equal(rp_load_goodput_parse(" e2el=2000  tpot:10 ", &rules.goodput, &err), RP_OK);
    summarize(&rules);
    assert_int_equal(summary.good, 3);
    near(summary.goodput, 1.5);
}

static void goodput_that_is_none_is_refused_by_its_name(void **state) {
    (void)state;
    static const char *const wrong[] = {"ttft",           "ttft:",    "ttft:x",   "ttft:-1",
                                        "ttft:0",         "ttft:nan", "ttft:inf", "ttft:1e999",
                                        "itl:5",          "foo:5",    "ttft:1,",  ",ttft:1",
                                        "ttft:1,,tpot:2", "TTFT:1",   ":5",       "ttft:1 ttft:2",
                                        "ttft:5ms",       "ttft:1:2", ","};
    struct rp_load_goodput bounds;
    struct rp_error err;
    for (size_t i = 0; i < RP_ARRAY_COUNT(wrong); i++) {
        memset(&err, 0, sizeof err);
        if (rp_load_goodput_parse(wrong[i], &bounds, &err) != RP_STATUS_INVALID ||
            strstr(err.text, "goodput: ") != err.text)
            fail_msg("'%s' passed, or without a reason: %s", wrong[i], err.text);
    }
    assert_int_equal(rp_load_goodput_parse("", &bounds, &err), RP_OK);
    near(bounds.ms[RP_LOAD_TTFT] + bounds.ms[RP_LOAD_TPOT] + bounds.ms[RP_LOAD_E2EL], 0);
    assert_int_equal(rp_load_goodput_parse("ttft:0.5,tpot:30,e2el:1e4", &bounds, &err), RP_OK);
    near(bounds.ms[RP_LOAD_TTFT], 0.5);
    near(bounds.ms[RP_LOAD_TPOT], 30);
    near(bounds.ms[RP_LOAD_E2EL], 10000);
}

/* ---- warm-up -------------------------------------------------------------------------------- */

static struct rp_load_warm_up warm_up(void) {
    struct rp_load_warm_up found;
    rp_load_warm_up_find(&run.records, &found);
    assert_int_equal(found.settled, found.why_not == NULL);
    return found;
}

static void a_load_that_a_server_carries_settles_early(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        load_fixture_queue(&run, 2000, 60, 8, 100, seed); /* 3/4 of the capacity */
        struct rp_load_warm_up found = warm_up();
        double share = (double)found.end_ns / (double)run.records.end_ns;
        if (!found.settled || share > 0.2)
            fail_msg("seed %d: settled %d after %.2f of the run", (int)seed, found.settled, share);
        load_fixture_close(&run);
    }
}

static void few_requests_at_a_time_are_no_trend(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        load_fixture_queue(&run, 300, 3, 8, 100, seed);
        assert_true(warm_up().settled);
        load_fixture_close(&run);
    }
}

static void a_load_beyond_the_server_never_settles(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        load_fixture_queue(&run, 2000, 160, 8, 100, seed); /* twice the capacity */
        struct rp_load_warm_up found = warm_up();
        assert_false(found.settled);
        assert_string_equal(found.why_not, "the number in flight kept rising");
        load_fixture_close(&run);
    }
}

/* Service takes 2 s, requests arrive every 10 ms for 20 s: 200 in flight, reached after 2 s. */
static void the_rise_to_a_plateau_is_left_out(void **state) {
    (void)state;
    load_fixture_open(&run, 2000, 2000);
    for (int i = 0; i < 2000; i++)
        load_fixture_add(&run, i * 10, i * 10, i * 10 + 2000, 0, 1);
    struct rp_load_warm_up found = warm_up();
    assert_true(found.settled);
    assert_in_range(found.end_ns, 1500000000ull, 2500000000ull);
    summarize(&settled_counts);
    assert_in_range(summary.warm_up, 150, 250);
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 2000 - summary.warm_up);
    /* Tokens in the window count for rates, also from requests that began before it. */
    assert_in_range(summary.completed, 1995, 2000);
    assert_in_range((uint64_t)(summary.request_rate * 10), 980, 1011);
    assert_true(summary.reliable);
}

static void a_stall_in_the_middle_is_no_warm_up(void **state) {
    (void)state;
    load_fixture_open(&run, 2000, 2000);
    for (int i = 0; i < 2000; i++) {
        double at = i * 5, done = at + 20;
        load_fixture_add(&run, at, at, at > 5000 && at < 6000 ? 6020 : done, 0, 1);
    }
    assert_true(warm_up().settled);
    summarize(&settled_counts);
    assert_true(summary.reliable);
    assert_true(summary.latency[RP_LOAD_TTFT].p99 > 800);
    assert_true(summary.latency[RP_LOAD_TTFT].p50 < 21);
}

/* 8 at a time, each 100 ms: the first 8 start together. */
static void the_first_round_of_a_closed_loop_is_left_out(void **state) {
    (void)state;
    struct rp_load_rules rules = {.exclude_warm_up = true, .closed = true};
    load_fixture_open(&run, 800, 800);
    for (int i = 0; i < 800; i++)
        load_fixture_add(&run, (i / 8) * 100, (i / 8) * 100, (i / 8) * 100 + 100, 0, 1);
    summarize(&rules);
    assert_int_equal(summary.warm_up, 8);
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 792);
    assert_true(summary.reliable);
}

static void what_comes_at_once_or_ends_late_has_not_settled(void **state) {
    (void)state;
    load_fixture_open(&run, 300, 600);
    for (int i = 0; i < 200; i++)
        load_fixture_add(&run, 0, 0, 10 + i, 0, 1);
    summarize(&settled_counts);
    assert_string_equal(summary.why_not, "not settled: all requests were sent at once");
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 200);
    assert_int_equal(summary.warm_up, 0);
    load_fixture_close(&run);
    load_fixture_open(&run, 300, 600);
    for (int i = 0; i < 200; i++)
        load_fixture_add(&run, i, i, 150 + i, 0, 1);
    assert_false(warm_up().settled);
    load_fixture_close(&run);
    load_fixture_open(&run, 300, 600);
    load_fixture_fail(&run, 0, 5, RP_LOAD_CONNECT, "");
    summarize(&settled_counts);
    assert_non_null(strstr(summary.why_not, "no request succeeded"));
}

static void numbers_in_flight_are_means_over_time(void **state) {
    (void)state;
    double parts[4];
    load_fixture_open(&run, 3, 3);
    load_fixture_add(&run, 0, 0, 10, 0, 1);
    load_fixture_add(&run, 5, 5, 25, 0, 1);
    load_fixture_fail(&run, 30, 100, RP_LOAD_NOT_SENT, "");
    rp_load_in_flight(&run.records, 0, 40000000, parts, 4);
    near(parts[0], 1.5);
    near(parts[1], 1);
    near(parts[2], 0.5);
    near(parts[3], 0);
}

/* ---- reliability ---------------------------------------------------------------------------- */

static void each_reason_for_doubt_is_said(void **state) {
    (void)state;
    load_fixture_queue(&run, 400, 60, 8, 100, 3);
    summarize(&settled_counts);
    assert_string_equal(summary.why_not, "");
    assert_true(summary.reliable);
    for (uint32_t i = 0; i < 5; i++)
        run.records.records[100 + i].outcome = RP_LOAD_RESET;
    run.records.lag_count = 100;
    run.records.lag_ns = rp_calloc(100, sizeof(uint64_t));
    for (uint32_t i = 0; i < 100; i++)
        run.records.lag_ns[i] = i < 90 ? 100000 : 30000000;
    summarize(&settled_counts);
    assert_false(summary.reliable);
    assert_string_equal(summary.why_not, "5 of 400 requests failed; the client's lag was 30.0 ms "
                                         "at p99 and is included in the latencies");
    near(summary.lag.p50, 0.1);
    load_fixture_close(&run);
    load_fixture_queue(&run, 99, 60, 8, 100, 3);
    summarize(&settled_counts);
    assert_non_null(strstr(summary.why_not, "99 samples, fewer than 100"));
    assert_int_equal(summary.latency[RP_LOAD_E2EL].count, 99);
}

static void an_empty_run_is_summarized_too(void **state) {
    (void)state;
    load_fixture_open(&run, 1, 1);
    summarize(&settled_counts);
    assert_int_equal(summary.completed, 0);
    assert_false(summary.reliable);
    near(summary.request_rate + summary.goodput + summary.offered_rate, 0);
}

static void no_memory_is_an_error(void **state) {
    (void)state;
    struct rp_error err = {0};
    load_fixture_queue(&run, 10, 60, 8, 100, 3);
    rp_alloc_fail_at(1);
    int status = rp_load_summarize(&run.plan, &run.records, &all_count, &summary, &err);
    rp_alloc_fail_at(0);
    assert_int_equal(status, RP_STATUS_NO_MEMORY);
}

int main(void) {
#define RUN(test) cmocka_unit_test_teardown(test, close_run)
    const struct CMUnitTest tests[] = {
        RUN(statistics_are_those_of_numpy),
        RUN(quantiles_of_random_lists_agree_with_ranks_counted_one_by_one),
        RUN(latencies_count_from_the_intended_time_and_service_times_from_the_sending),
        RUN(tokens_are_those_of_usage_and_gaps_those_of_chunks),
        RUN(one_output_token_has_no_tpot_and_no_content_no_ttft),
        RUN(failures_are_counted_by_kind_and_have_no_latency),
        RUN(cached_tokens_that_a_server_leaves_out_are_zero_once_it_told_any),
        RUN(a_closed_loop_has_no_offered_rate),
        RUN(goodput_counts_requests_within_every_bound),
        RUN(goodput_that_is_none_is_refused_by_its_name),
        RUN(a_load_that_a_server_carries_settles_early),
        RUN(few_requests_at_a_time_are_no_trend),
        RUN(a_load_beyond_the_server_never_settles),
        RUN(the_rise_to_a_plateau_is_left_out),
        RUN(a_stall_in_the_middle_is_no_warm_up),
        RUN(the_first_round_of_a_closed_loop_is_left_out),
        RUN(what_comes_at_once_or_ends_late_has_not_settled),
        RUN(numbers_in_flight_are_means_over_time),
        RUN(each_reason_for_doubt_is_said),
        RUN(an_empty_run_is_summarized_too),
        RUN(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
