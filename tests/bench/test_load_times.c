/* Whether the load generator's times are true: against delays that are known, a stall, and
 * thousands of streams.
 *
 * The other end stamps what it does on the same clock. A machine that is busy makes it late: its
 * stamps, not its script, are then what the client is held against, and a comparison that fails is
 * made again, five times in all. */
#include "bench/load/load_metrics.h"
#include "tests/support/scripted_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#else
#define SLOW_BUILD 0
#endif

enum { TRIES = 5 };

/* A client whose own timers are this late at p99 was delayed by the machine: its reads are late as
 * well, and a comparison proves nothing. Another test checks that it is otherwise punctual. */
#define HELD_UP_MS 5.0

static int set_up(void **state) {
    *state = scripted_fixture_start();
    return *state ? 0 : -1;
}

static int tear_down(void **state) {
    scripted_fixture_free(*state);
    return 0;
}

/* --- Known delays ---------------------------------------------------------------------------- */

enum { KNOWN = 300, KNOWN_TOKENS = 6 };
#define KNOWN_GAP_MS 8.3

static double known_ttft_ms(int i) { return 15 + (i * 37) % 83; }
static double known_itl_ms(int i) { return 2 + (i * 13) % 11; }

/* Milliseconds of every request, in the order of enum rp_load_quantity; ITL has several for
 * each. */
struct times {
    double of[RP_LOAD_QUANTITIES][KNOWN * KNOWN_TOKENS];
    size_t count[RP_LOAD_QUANTITIES];
};

static void add_time(struct times *times, enum rp_load_quantity quantity, double ms) {
    times->of[quantity][times->count[quantity]++] = ms;
}

static void wished_times(struct times *times) {
    memset(times, 0, sizeof *times);
    for (int i = 0; i < KNOWN; i++) {
        add_time(times, RP_LOAD_TTFT, known_ttft_ms(i));
        add_time(times, RP_LOAD_TPOT, known_itl_ms(i));
        add_time(times, RP_LOAD_E2EL, known_ttft_ms(i) + (KNOWN_TOKENS - 1) * known_itl_ms(i));
        for (int k = 1; k < KNOWN_TOKENS; k++)
            add_time(times, RP_LOAD_ITL, known_itl_ms(i));
    }
}

/* From the intended times, or from the times of sending, to the server's writes. */
static void stamped_times(const struct scripted_fixture *f, bool intended, struct times *times) {
    memset(times, 0, sizeof *times);
    for (int i = 0; i < KNOWN; i++) {
        const struct scripted_stamp *stamp = &f->server.shared->stamps[i];
        const struct rp_load_record *record = &f->records.records[i];
        uint64_t begin = f->records.clock_ns + (intended ? record->intended_ns : record->sent_ns);
        double first = (double)(stamp->token_ns[0] - begin) * 1e-6;
        double last = (double)(stamp->token_ns[KNOWN_TOKENS - 1] - begin) * 1e-6;
        assert_int_equal(stamp->tokens, KNOWN_TOKENS);
        add_time(times, RP_LOAD_TTFT, first);
        add_time(times, RP_LOAD_TPOT, (last - first) / (KNOWN_TOKENS - 1));
        add_time(times, RP_LOAD_E2EL, last);
        for (int k = 1; k < KNOWN_TOKENS; k++)
            add_time(times, RP_LOAD_ITL,
                     (double)(stamp->token_ns[k] - stamp->token_ns[k - 1]) * 1e-6);
    }
}

/* The error in units of the allowed one: 1 % or 0.2 ms. */
static double off(double seen, double truth) {
    return fabs(seen - truth) / fmax(0.2, 0.01 * truth);
}

static double worst_of(const struct rp_load_stat *seen, double *truth, size_t count) {
    const struct {
        double percent, value;
    } quantiles[] = {{50, seen->p50}, {90, seen->p90}, {95, seen->p95}, {99, seen->p99}};
    double worst = 0, sum = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(quantiles); i++)
        worst = fmax(worst, off(quantiles[i].value,
                                scripted_fixture_percentile(truth, count, quantiles[i].percent)));
    for (size_t i = 0; i < count; i++)
        sum += truth[i];
    return fmax(worst, off(seen->mean, sum / (double)count));
}

/* Percentiles of all quantities; stats: latency or service. */
static double worst_percentile(const struct rp_load_stat stats[RP_LOAD_QUANTITIES],
                               struct times *truth) {
    double worst = 0;
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
        assert_int_equal(stats[q].count, truth->count[q]);
        worst = fmax(worst, worst_of(&stats[q], truth->of[q], truth->count[q]));
    }
    return worst;
}

static void run_known(struct scripted_fixture *f, struct rp_load_summary *summary) {
    struct rp_load_rules rules = {.exclude_warm_up = false};
    assert_true(scripted_fixture_again(f));
    for (int i = 0; i < KNOWN; i++)
        scripted_fixture_add(f, KNOWN_GAP_MS * i, KNOWN_TOKENS, "ttft=%g itl=%g", known_ttft_ms(i),
                             known_itl_ms(i));
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    scripted_stop(&f->server);
    for (int i = 0; i < KNOWN; i++)
        assert_int_equal(f->records.records[i].outcome, RP_LOAD_OK);
    assert_int_equal(rp_load_summarize(&f->plan, &f->records, &rules, summary, NULL), RP_OK);
}

static void every_percentile_is_within_1_percent_or_200_us_of_known_delays(void **state) {
    struct scripted_fixture *f = *state;
    static struct times wished, written, served;
    double latency = 0, service = 0;
    bool judged = false;
    for (int try = 0; try < TRIES; try++) {
        struct rp_load_summary summary;
        run_known(f, &summary);
        wished_times(&wished);
        stamped_times(f, true, &written);
        stamped_times(f, false, &served);
        double wish = worst_percentile(summary.latency, &wished);
        latency = worst_percentile(summary.latency, &written);
        service = worst_percentile(summary.service, &served);
        print_message("of what is allowed: %.2f from the script; from the server's stamps %.2f, "
                      "service %.2f; client lag p99 %.3f ms\n",
                      wish, latency, service, summary.lag.p99);
        if (latency <= 1 && service <= 1)
            return;
        judged = judged || summary.lag.p99 < HELD_UP_MS;
    }
    if (!judged) {
        print_message("skipped: the machine held the client up in each of %d runs\n", TRIES);
        skip();
    }
    fail_msg("%g times of what is allowed, service %g", latency, service);
}

/* --- A stall --------------------------------------------------------------------------------- */

enum { STALLED = 300, STALL_AT = 100 };

/* Requests every 10 ms; one stalls the server for a second. */
static void run_stalled(struct scripted_fixture *f, uint32_t max_concurrency,
                        struct rp_load_summary *summary) {
    struct rp_load_rules rules = {.exclude_warm_up = false};
    assert_true(scripted_fixture_again(f));
    for (int i = 0; i < STALLED; i++)
        scripted_fixture_add(f, 10 * i, 4, "ttft=4 itl=1%s", i == STALL_AT ? " stall=1000" : "");
    f->options.max_concurrency = max_concurrency;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    scripted_stop(&f->server);
    for (int i = 0; i < STALLED; i++)
        assert_int_equal(f->records.records[i].outcome, RP_LOAD_OK);
    assert_int_equal(rp_load_summarize(&f->plan, &f->records, &rules, summary, NULL), RP_OK);
}

/* Requests that were not sent while the server was stalled: their number, and the median and the
 * largest of their service times. */
static size_t others(const struct rp_load_records *records, double *out_median, double *out_max) {
    static double service_ms[STALLED];
    uint64_t begin = records->records[STALL_AT].sent_ns, end = begin + 1000000000u;
    size_t count = 0;
    for (int i = 0; i < STALLED; i++) {
        const struct rp_load_record *record = &records->records[i];
        bool in_flight = record->sent_ns <= end && record->first_ns >= begin;
        if (!in_flight)
            service_ms[count++] = (double)(record->first_ns - record->sent_ns) * 1e-6;
    }
    *out_median = scripted_fixture_percentile(service_ms, count, 50);
    *out_max = service_ms[count - 1];
    return count;
}

static void the_percentiles_show_a_stall_that_requests_had_to_wait_for(void **state) {
    struct scripted_fixture *f = *state;
    static const uint32_t concurrencies[] = {0, 2};
    for (size_t i = 0; i < RP_ARRAY_COUNT(concurrencies); i++) {
        struct rp_load_summary summary;
        double median, most;
        run_stalled(f, concurrencies[i], &summary);
        size_t count = others(&f->records, &median, &most);
        print_message(
            "max_concurrency %u: ttft p99 %.0f ms, p50 %.1f; from the sending p99 %.0f ms; "
            "of %zu not sent during the stall p50 %.1f, max %.1f ms\n",
            concurrencies[i], summary.latency[RP_LOAD_TTFT].p99, summary.latency[RP_LOAD_TTFT].p50,
            summary.service[RP_LOAD_TTFT].p99, count, median, most);
        /* About a third of all had to wait, up to a second. */
        assert_true(summary.latency[RP_LOAD_TTFT].p99 > 900);
        assert_true(summary.latency[RP_LOAD_TTFT].p90 > 400);
        assert_true(count >= 150 && median < 50 && most < 500);
        /* Two were sent; the others waited here and were served quickly, which coordinated omission
         * hides. */
        if (concurrencies[i])
            assert_true(count >= STALLED - 10 && summary.service[RP_LOAD_TTFT].p90 < 100);
    }
}

static void a_wait_for_max_concurrency_counts(void **state) {
    struct scripted_fixture *f = *state;
    for (int i = 0; i < 5; i++)
        scripted_fixture_add(f, 0, 1, "ttft=40");
    f->options.max_concurrency = 1;
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    for (int i = 0; i < 5; i++) {
        const struct rp_load_record *record = &f->records.records[i];
        assert_int_equal(record->outcome, RP_LOAD_OK);
        assert_int_equal(record->intended_ns, 0);
        assert_true(record->first_ns >= (uint64_t)(i + 1) * 40000000u);
        assert_true(record->sent_ns >= (uint64_t)i * 40000000u);
    }
    assert_int_equal(f->records.max_in_flight, 1);
}

/* --- Many streams ---------------------------------------------------------------------------- */

/* One starts every ms, and none ends before all have begun. */
static void run_many(struct scripted_fixture *f, uint32_t streams, double *out_p99_ms) {
    struct rp_load_rules rules = {.exclude_warm_up = false};
    struct rp_load_summary summary;
    assert_true(scripted_fixture_again(f));
    for (uint32_t i = 0; i < streams; i++)
        scripted_fixture_add(f, i, 30, "ttft=100 itl=100");
    assert_int_equal(rp_load_check_files(streams, &f->err), RP_OK);
    assert_int_equal(scripted_fixture_run(f), RP_OK);
    scripted_stop(&f->server);
    for (uint32_t i = 0; i < streams; i++) {
        const struct rp_load_record *record = &f->records.records[i];
        if (record->outcome != RP_LOAD_OK || record->chunk_count != 30)
            fail_msg("request %u: outcome %d, %s", i, record->outcome, record->error);
    }
    assert_int_equal(f->records.max_in_flight, streams);
    assert_int_equal(f->records.connections, streams);
    assert_int_equal(f->server.shared->most_open, streams);
    assert_int_equal(f->records.chunk_total, streams * 30);
    assert_int_equal(rp_load_summarize(&f->plan, &f->records, &rules, &summary, NULL), RP_OK);
    *out_p99_ms = summary.lag.p99;
    print_message("%u streams: client lag p50 %.3f, p99 %.2f, max %.2f ms\n", streams,
                  summary.lag.p50, summary.lag.p99, summary.lag.max);
}

static void lag_stays_under_20_ms(struct scripted_fixture *f, uint32_t streams) {
    double p99_ms = 0;
    for (int try = 0; try < TRIES; try++) {
        run_many(f, streams, &p99_ms);
        if (p99_ms < 20)
            return;
    }
    fail_msg("client lag %g ms at p99", p99_ms);
}

#if SLOW_BUILD
static void two_hundred_streams_under_a_sanitizer_leave_the_client_punctual(void **state) {
    lag_stays_under_20_ms(*state, 200);
}
#else
static void two_thousand_streams_leave_the_client_punctual(void **state) {
    lag_stays_under_20_ms(*state, 2000);
}
#endif

int main(void) {
#define RUN_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        RUN_TEST(every_percentile_is_within_1_percent_or_200_us_of_known_delays),
        RUN_TEST(the_percentiles_show_a_stall_that_requests_had_to_wait_for),
        RUN_TEST(a_wait_for_max_concurrency_counts),
#if SLOW_BUILD
        RUN_TEST(two_hundred_streams_under_a_sanitizer_leave_the_client_punctual),
#else
        RUN_TEST(two_thousand_streams_leave_the_client_punctual),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
