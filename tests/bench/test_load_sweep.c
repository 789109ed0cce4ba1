/* Goal: the sweep finds the highest rate that holds, whatever a server's response looks like, in
 * few runs, and is not led astray by noise. Method: synthetic servers: a capacity, a noisy edge,
 * hiccups that break one run in ten, a server that never breaks or never holds, a client that is
 * too slow. */
#include "base/memory.h"
#include "bench/load/load_random.h"
#include "bench/load/load_sweep.h"
#include "tests/support/load_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A synthetic server: the share of good requests falls around `capacity` over a relative
 * `width`. */
struct server {
    double capacity, width;
    double hiccup; /* probability that a run loses a tenth of its requests */
    double client_limit;
    struct rp_load_random random;
};

static struct rp_sweep_run runs[RP_SWEEP_RUNS_MAX];
static uint32_t run_count;

static struct rp_sweep_config config_of(void) {
    return (struct rp_sweep_config){.share = 0.99,
                                    .first_rate = 1,
                                    .min_rate = 0.01,
                                    .max_rate = 1e6,
                                    .growth = 2,
                                    .tolerance = 0.05,
                                    .repeats = 3,
                                    .runs = 60,
                                    .seconds = 30,
                                    .requests_min = 300,
                                    .requests_max = 5000};
}

static struct rp_sweep_run answer(struct server *server, double rate, uint32_t requests) {
    double distance = log(rate / server->capacity) / RP_MAX(server->width, 1e-12);
    double share = 1 / (1 + exp(RP_MIN(distance, 300.0)) / 99); /* 0.99 at the capacity */
    struct rp_sweep_run run = {.rate = rate, .requests = requests};
    if (server->hiccup > 0 && rp_load_random_unit(&server->random) < server->hiccup)
        share *= 0.9;
    for (uint32_t i = 0; i < requests; i++)
        run.good += rp_load_random_unit(&server->random) < share;
    run.client_slow = server->client_limit > 0 && rate > server->client_limit;
    if (run.client_slow)
        run.good /= 2;
    return run;
}

static struct rp_sweep_step sweep(const struct rp_sweep_config *config, struct server *server) {
    struct rp_sweep_step step;
    struct rp_error err;
    if (rp_sweep_check(config, &err) != RP_OK)
        fail_msg("%s", err.text);
    run_count = 0;
    while ((step = rp_sweep_next(config, runs, run_count)).state == RP_SWEEP_GOES_ON) {
        assert_in_range(step.requests, config->requests_min, config->requests_max);
        assert_true(step.rate >= config->min_rate && step.rate <= config->max_rate);
        assert_true(run_count < config->runs);
        runs[run_count++] = answer(server, step.rate, step.requests);
    }
    return step;
}

static struct server server_of(double capacity, double width, uint64_t seed) {
    return (struct server){.capacity = capacity,
                           .width = width,
                           .random = rp_load_random_begin(seed, RP_LOAD_STREAM_ARRIVAL, 0)};
}

static void test_a_sharp_edge_is_found_within_the_tolerance(void **state) {
    (void)state;
    for (double capacity = 0.02; capacity < 9e5; capacity *= 3.7) {
        struct rp_sweep_config config = config_of();
        struct server server = server_of(capacity, 0, 1);
        struct rp_sweep_step step = sweep(&config, &server);
        assert_int_equal(step.state, RP_SWEEP_FOUND);
        assert_true(step.holds <= capacity && step.breaks > capacity);
        assert_true(step.breaks <= step.holds * 1.05);
        /* doublings or halvings from 1, five bisections, and two that confirm */
        assert_true(run_count <= fabs(log2(capacity)) + 2 + 5 + 2);
    }
}

static void test_both_ends_of_the_answer_were_run_twice(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(77, 0, 1);
    struct rp_sweep_point points[RP_SWEEP_RUNS_MAX];
    (void)state;
    struct rp_sweep_step step = sweep(&config, &server);
    uint32_t count = rp_sweep_points(&config, runs, run_count, points), ends = 0, all = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(i == 0 || points[i].rate > points[i - 1].rate);
        bool end = points[i].rate == step.holds || points[i].rate == step.breaks;
        assert_int_equal(points[i].runs, end ? 2 : 1);
        assert_int_equal(points[i].firm, end);
        assert_int_equal(points[i].verdict,
                         points[i].rate <= 77 ? RP_SWEEP_HOLDS : RP_SWEEP_BREAKS);
        assert_true(points[i].requests >= 300 * points[i].runs);
        ends += end;
        all += points[i].runs;
    }
    assert_int_equal(ends, 2);
    assert_int_equal(all, run_count);
}

static void test_noise_at_the_edge_moves_the_answer_little(void **state) {
    uint32_t far = 0, most = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rp_sweep_config config = config_of();
        struct server server = server_of(40, 0.05, seed); /* 40: 0.99; 44: 0.936; 36: 0.9988 */
        struct rp_sweep_step step = sweep(&config, &server);
        assert_int_equal(step.state, RP_SWEEP_FOUND);
        far += fabs(step.holds / 40 - 1) > 0.1;
        most = RP_MAX(most, run_count);
    }
    assert_true(far <= 6);
    assert_true(most <= 40);
}

/* How many of 300 sweeps end more than a tenth away from the capacity. */
static uint32_t far_answers(uint32_t repeats) {
    uint32_t far = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rp_sweep_config config = config_of();
        struct server server = server_of(40, 0.01, seed);
        config.repeats = repeats;
        server.hiccup = 0.1;
        struct rp_sweep_step step = sweep(&config, &server);
        far += step.state != RP_SWEEP_FOUND || fabs(step.holds / 40 - 1) > 0.1;
    }
    return far;
}

static void test_hiccups_lead_it_astray_only_when_they_hit_a_majority(void **state) {
    (void)state;
    /* About ten rates below the answer matter, and each is lost when a first hiccup is followed by
     * enough others: 0.1 at one run, 0.1 * 0.19 at up to three, 0.1 * 0.05 at up to five. */
    uint32_t once = far_answers(1), thrice = far_answers(3), five = far_answers(5);
    assert_true(once > 100);
    assert_true(thrice < 70);
    assert_true(five < 30);
}

static void test_a_false_break_far_below_is_taken_back(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(100, 0, 1);
    struct rp_sweep_step step;
    (void)state;
    run_count = 0;
    while ((step = rp_sweep_next(&config, runs, run_count)).state == RP_SWEEP_GOES_ON) {
        runs[run_count] = answer(&server, step.rate, step.requests);
        if (run_count == 2) /* rate 4 */
            runs[run_count].good /= 2;
        run_count++;
    }
    assert_int_equal(step.state, RP_SWEEP_FOUND);
    assert_true(step.holds <= 100 && step.breaks > 100);
    assert_true(run_count < 30);
}

static void test_a_server_that_never_breaks_is_driven_to_the_highest_rate(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(1e9, 0, 1);
    (void)state;
    config.max_rate = 1000;
    struct rp_sweep_step step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_NEVER_BROKE);
    assert_true(step.holds == 1000 && step.breaks == 0);
    assert_int_equal(run_count, 12); /* 1, 2, ..., 512, 1000, 1000 */
}

static void test_a_server_that_never_holds_is_followed_down_to_the_lowest_rate(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(1e-9, 0, 1);
    (void)state;
    struct rp_sweep_step step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_NEVER_HELD);
    assert_true(step.holds == 0 && step.breaks == 0.01);
    assert_int_equal(run_count, 9); /* 1, 1/2, ..., 1/64, 0.01, 0.01 */
    for (uint32_t i = 0; i < run_count; i++)
        runs[i].good = runs[i].requests = 0; /* no request was ever answered */
    assert_int_equal(rp_sweep_next(&config, runs, run_count).state, RP_SWEEP_NEVER_HELD);
}

static void test_a_client_that_is_too_slow_ends_the_search_below(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(500, 0, 1);
    (void)state;
    server.client_limit = 100;
    struct rp_sweep_step step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_CLIENT_LIMIT);
    assert_true(step.holds == 64 && step.breaks == 0);
    assert_int_equal(run_count, 10); /* 1 to 64, 128 twice, 64 again */
    server.capacity = 50;            /* what breaks below the client's limit is found */
    step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_FOUND);
    assert_true(step.holds <= 50 && step.breaks > 50);
    server.client_limit = 0.5;
    step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_CLIENT_LIMIT);
    assert_true(step.holds == 0);
}

static void test_one_slow_moment_of_the_client_is_run_again(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(50, 0, 1);
    struct rp_sweep_step step;
    (void)state;
    run_count = 0;
    while ((step = rp_sweep_next(&config, runs, run_count)).state == RP_SWEEP_GOES_ON) {
        runs[run_count] = answer(&server, step.rate, step.requests);
        if (run_count == 3 || run_count == 6) {
            runs[run_count].client_slow = true;
            runs[run_count].good /= run_count == 3 ? 2 : 1; /* the second holds all the same */
        }
        run_count++;
    }
    assert_int_equal(step.state, RP_SWEEP_FOUND);
    assert_true(step.holds <= 50 && step.breaks > 50);
    assert_true(runs[3].rate == runs[4].rate && runs[5].rate > runs[4].rate);
    assert_true(runs[6].rate == 32 && runs[7].rate == 64);
}

static void test_runs_end_with_the_best_so_far(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(100, 0, 1);
    (void)state;
    config.runs = 9;
    struct rp_sweep_step step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_OUT_OF_RUNS);
    assert_true(step.holds == 90.5 && step.breaks == 128);
    config.runs = 1;
    server.capacity = 0.5;
    step = sweep(&config, &server);
    assert_int_equal(step.state, RP_SWEEP_OUT_OF_RUNS);
    assert_true(step.holds == 0 && step.breaks == 1);
}

static void test_every_run_has_a_seed_of_its_own(void **state) {
    uint64_t seeds[4 * 64];
    uint32_t count = 0;
    (void)state;
    struct rp_sweep_config config = config_of();
    struct server server = server_of(1000, 0.05, 1);
    sweep(&config, &server);
    for (config.seed = 0; config.seed < 4; config.seed++)
        for (uint32_t n = 0; n < run_count; n++)
            seeds[count++] = rp_sweep_next(&config, runs, n).seed;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_true(seeds[i] != seeds[j] && seeds[i] < UINT64_C(1) << 53);
    /* pure: the same results give the same step */
    config.seed = 3;
    struct rp_sweep_step a = rp_sweep_next(&config, runs, 7), b = rp_sweep_next(&config, runs, 7);
    assert_true(a.seed == b.seed && a.rate == b.rate && a.requests == b.requests);
    assert_true(a.seed == seeds[3 * run_count + 7]);
}

static void test_any_results_end_within_the_runs(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct rp_load_random random = rp_load_random_begin(seed, RP_LOAD_STREAM_PROMPT, 0);
        struct rp_sweep_config config = config_of();
        config.repeats = 1 + 2 * rp_load_random_below(&random, 4);
        config.runs = 1 + rp_load_random_below(&random, RP_SWEEP_RUNS_MAX);
        config.tolerance = 0.005;
        struct rp_sweep_step step;
        run_count = 0;
        while ((step = rp_sweep_next(&config, runs, run_count)).state == RP_SWEEP_GOES_ON) {
            assert_true(run_count < config.runs);
            assert_true(step.rate >= config.min_rate && step.rate <= config.max_rate);
            uint32_t requests = rp_load_random_below(&random, 400);
            runs[run_count++] = (struct rp_sweep_run){
                .rate = step.rate,
                .requests = requests,
                .good = requests - requests * rp_load_random_below(&random, 3) / 40,
                .client_slow = rp_load_random_below(&random, 9) == 0};
        }
        assert_true(step.holds == 0 || step.breaks == 0 || step.holds < step.breaks);
    }
}

/* A request that took ttft to its first token, and tpot for each of nine more. */
static void add(struct load_fixture *run, double at_ms, double ttft, double tpot) {
    assert_non_null(load_fixture_add(run, at_ms, at_ms, at_ms + ttft, tpot, 10));
}

static void test_a_run_is_judged_by_each_bound_or_by_all_at_once(void **state) {
    struct load_fixture run;
    struct rp_load_summary summary = {.counted_ns = 100000000};
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 500, [RP_LOAD_TPOT] = 30}},
                                           .share = 0.99};
    (void)state;
    load_fixture_open(&run, 10, 100);
    add(&run, 99, 900, 99); /* warm-up */
    add(&run, 100, 500, 30);
    add(&run, 200, 400, 20);
    add(&run, 300, 600, 20);
    add(&run, 400, 400, 40);
    add(&run, 500, 400, 50);
    load_fixture_fail(&run, 600, 700, RP_LOAD_TIMEOUT, "late");
    load_fixture_fail(&run, 700, 700, RP_LOAD_NOT_SENT, "");
    struct rp_sweep_run judged = rp_sweep_judge(&objective, 7, &run.records, &summary);
    assert_int_equal(judged.requests, 6);
    assert_int_equal(judged.good, 2);
    assert_true(judged.rate == 7 && !judged.client_slow);
    objective.each = true;
    summary.lag.p99 = RP_LOAD_LAG_MAX_MS + 1;
    judged = rp_sweep_judge(&objective, 7, &run.records, &summary);
    assert_int_equal(judged.good, 3); /* four are within the first bound, three within the second */
    assert_false(judged.client_slow); /* one failed: it breaks however slow the client was */
    objective.share = 0.8;
    assert_true(rp_sweep_judge(&objective, 7, &run.records, &summary).client_slow == false);
    summary.lag.p99 = 51; /* TTFT 600 - 102, TPOT 50 - 102 / 9 */
    judged = rp_sweep_judge(&objective, 7, &run.records, &summary);
    assert_int_equal(judged.good, 3);
    assert_false(judged.client_slow);
    summary.lag.p99 = 101;
    assert_true(rp_sweep_judge(&objective, 7, &run.records, &summary).client_slow);
    objective.share = 0.5; /* holds all the same */
    assert_false(rp_sweep_judge(&objective, 7, &run.records, &summary).client_slow);
    objective.bounds = (struct rp_load_goodput){{[RP_LOAD_E2EL] = 1000}};
    assert_int_equal(rp_sweep_judge(&objective, 7, &run.records, &summary).good, 5);
    load_fixture_close(&run);
}

static void test_a_search_that_begins_near_the_answer_needs_few_runs(void **state) {
    (void)state;
    for (double first = 0.5; first < 1.6; first += 0.05) {
        struct rp_sweep_config config = config_of();
        struct server server = server_of(40.1, 0, 1);
        config.growth = 1.25;
        config.first_rate = 40 * first;
        struct rp_sweep_step step = sweep(&config, &server);
        assert_int_equal(step.state, RP_SWEEP_FOUND);
        assert_true(step.holds <= 40.1 && step.breaks > 40.1 && step.breaks <= step.holds * 1.05);
        assert_true(run_count <= 10);
    }
}

static void test_steps_away_from_the_first_rate_grow_up_to_two(void **state) {
    struct rp_sweep_config config = config_of();
    struct server server = server_of(1e9, 0, 1);
    static const double factors[] = {1.25, 1.5625, 1.953125, 2, 2};
    (void)state;
    config.growth = 1.25;
    config.max_rate = 15;
    assert_int_equal(sweep(&config, &server).state, RP_SWEEP_NEVER_BROKE);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(factors); i++)
        assert_true(fabs(runs[i + 1].rate / runs[i].rate - RP_MIN(factors[i], 15 / runs[i].rate)) <
                    1e-9);
    server.capacity = 1e-9;
    config.min_rate = 1e-3;
    assert_int_equal(sweep(&config, &server).state, RP_SWEEP_NEVER_HELD);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(factors); i++)
        assert_true(fabs(runs[i].rate / runs[i + 1].rate - factors[i]) < 1e-9);
}

/* 100 requests, one every 10 ms; the first `answered` had their first token after ttft_ms, and
 * ended 9 ms later. */
static void open_run(struct load_fixture *run, uint32_t answered, double ttft_ms) {
    load_fixture_open(run, 100, 400);
    for (uint32_t i = 0; i < 100; i++)
        if (i < answered)
            load_fixture_add(run, 10 * i, 10 * i, 10 * i + ttft_ms, 3, 4);
        else
            load_fixture_fail(run, 10 * i, 0, RP_LOAD_NOT_SENT, "");
}

static bool is_lost(const struct rp_sweep_objective *objective, const struct load_fixture *run,
                    bool warm_up, double now_ms) {
    return rp_sweep_is_lost(objective, &run->plan, &run->records, warm_up,
                            (uint64_t)(now_ms * 1e6));
}

static void test_a_run_is_lost_once_too_many_requests_are_late(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 100}}, .share = 0.99};
    struct load_fixture run;
    uint32_t late;
    (void)state;
    open_run(&run, 0, 0);
    for (late = 0; !is_lost(&objective, &run, true, 100 + 10 * late - 5); late++)
        assert_true(late < 100);
    /* The upper end of the 90 % interval of 95 of 100 is 0.976, that of 97 of 100 is 0.989. */
    assert_int_equal(late, 3);
    /* A first token in time is not late, whatever the answer takes. */
    for (uint32_t i = 0; i < 100; i++)
        run.records.records[i].first_ns = run.records.records[i].intended_ns + 50000000;
    assert_false(is_lost(&objective, &run, true, 5000));
    /* Four tokens: more than 3 * 30 ms after the first one no answer has a mean gap of 30 ms. */
    objective.bounds.ms[RP_LOAD_TPOT] = 30;
    assert_false(is_lost(&objective, &run, true, 50 + 90 + 15));
    assert_true(is_lost(&objective, &run, true, 50 + 90 + 35));
    objective.bounds = (struct rp_load_goodput){{[RP_LOAD_E2EL] = 400}};
    assert_false(is_lost(&objective, &run, true, 415));
    assert_true(is_lost(&objective, &run, true, 435));
    load_fixture_close(&run);
}

static void test_a_run_that_may_still_hold_is_not_lost(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 100}}, .share = 0.9};
    struct load_fixture run;
    (void)state;
    open_run(&run, 60, 50);
    assert_false(is_lost(&objective, &run, true, 700));
    for (uint32_t i = 0; i < 10; i++) /* a tenth may fail */
        run.records.records[20 + i].outcome = RP_LOAD_STATUS;
    assert_false(is_lost(&objective, &run, true, 700));
    for (uint32_t i = 0; i < 10; i++)
        run.records.records[30 + i].outcome = RP_LOAD_STATUS;
    assert_true(is_lost(&objective, &run, true, 700));
    struct rp_sweep_run judged =
        rp_sweep_judge_lost(&objective, 5, &run.plan, &run.records, 0, false, 700000000);
    assert_true(judged.ended_early && !judged.client_slow && judged.rate == 5);
    assert_int_equal(judged.requests, 100);
    assert_int_equal(judged.good, 80);
    load_fixture_close(&run);
}

static void test_a_run_is_not_lost_as_long_as_the_clients_lag_may_be_the_cause(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 100}}, .share = 0.9};
    struct load_fixture run;
    (void)state;
    open_run(&run, 100, 150);
    assert_true(is_lost(&objective, &run, false, 2000));
    run.records.lag_ns = rp_calloc(1, sizeof *run.records.lag_ns);
    run.records.lag_count = 1;
    run.records.lag_ns[0] = 60000000; /* the bound is 220 ms then */
    assert_false(is_lost(&objective, &run, false, 2000));
    run.records.lag_ns[0] = 24000000; /* 148 ms */
    assert_true(is_lost(&objective, &run, false, 2000));
    load_fixture_close(&run);
}

static void test_requests_before_the_first_answer_are_no_loss_if_warm_up_is_excluded(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 100}}, .share = 0.99};
    struct load_fixture run;
    (void)state;
    open_run(&run, 50, 50);
    for (uint32_t i = 0; i < 30; i++) { /* all answered at 300 ms: the server was cold */
        run.records.records[i].first_ns = 300000000;
        run.records.records[i].end_ns = run.records.records[i].last_ns = 300000001;
    }
    for (uint32_t i = 30; i < 50; i++)
        run.records.records[i].end_ns += 300000000;
    assert_false(is_lost(&objective, &run, true, 550));
    assert_true(is_lost(&objective, &run, false, 550));
    load_fixture_close(&run);
}

static void test_a_slow_client_does_not_make_a_lost_run_the_servers_fault(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 100}}, .share = 0.99};
    struct load_fixture run;
    (void)state;
    open_run(&run, 50, 150);
    for (uint32_t lag = 0; lag < 60; lag += 10) {
        struct rp_sweep_run judged =
            rp_sweep_judge_lost(&objective, 1, &run.plan, &run.records, lag, false, 500000000);
        assert_int_equal(judged.good, 50);
        assert_int_equal(judged.client_slow, lag >= 30);
    }
    load_fixture_close(&run);
}

static void test_the_first_rate_is_near_what_a_closed_loop_completes(void **state) {
    struct rp_sweep_estimate estimate = {.first_rate = 0};
    struct load_fixture run;
    (void)state;
    open_run(&run, 80, 50);
    run.records.records[79].end_ns = 2000000000;
    rp_sweep_estimate_rate(&run.records, 8, 3000000000, &estimate);
    assert_true(fabs(estimate.first_rate - 0.8 * 80 / 2) < 1e-6);
    /* Fewer answers than slots: tokens of the answers in progress count. */
    run.records.records[80].first_ns = 1;
    rp_sweep_estimate_rate(&run.records, 90, 3000000000, &estimate);
    assert_true(fabs(estimate.first_rate - 0.8 * 81 / 3) < 1e-6);
    load_fixture_close(&run);
    open_run(&run, 0, 0);
    rp_sweep_estimate_rate(&run.records, 8, 3000000000, &estimate);
    assert_true(estimate.first_rate == 0);
    load_fixture_close(&run);
}

static void test_an_objective_that_a_request_alone_misses_is_hopeless(void **state) {
    struct rp_sweep_objective objective = {.bounds = {{[RP_LOAD_TTFT] = 60}}, .share = 0.99};
    struct load_fixture run;
    (void)state;
    open_run(&run, 3, 70);
    run.records.records[1].first_ns -= 20000000; /* the fastest counts */
    struct rp_sweep_estimate estimate = {.first_rate = 0};
    rp_sweep_estimate_alone(&objective, &run.records, &estimate);
    assert_true(fabs(estimate.alone_ms[RP_LOAD_TTFT] - 50) < 1e-6);
    assert_false(estimate.is_hopeless);
    estimate = (struct rp_sweep_estimate){.first_rate = 0};
    objective.bounds.ms[RP_LOAD_TTFT] = 49;
    rp_sweep_estimate_alone(&objective, &run.records, &estimate);
    assert_true(estimate.is_hopeless);
    load_fixture_close(&run);
}

static void test_runs_have_as_many_requests_as_the_time_permits(void **state) {
    (void)state;
    assert_int_equal(rp_sweep_requests_min(2, 0), 300);
    assert_int_equal(rp_sweep_requests_min(0.1, 120), 20);
    assert_int_equal(rp_sweep_requests_min(5, 120), 50);
    assert_int_equal(rp_sweep_requests_min(1000, 120), 300);
}

static void test_presets_are_mlperfs(void **state) {
    static const struct {
        const char *name;
        double ttft, tpot;
    } expected[] = {{"llama2-70b-server", 2000, 200},
                    {"llama2-70b-interactive", 450, 40},
                    {"llama3.1-8b-server", 2000, 100},
                    {"llama3.1-8b-interactive", 500, 30}};
    (void)state;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(expected); i++) {
        const struct rp_sweep_objective *preset = rp_sweep_preset(expected[i].name);
        assert_true(preset->bounds.ms[RP_LOAD_TTFT] == expected[i].ttft);
        assert_true(preset->bounds.ms[RP_LOAD_TPOT] == expected[i].tpot);
        assert_true(preset->bounds.ms[RP_LOAD_E2EL] == 0 && preset->each && preset->share == 0.99);
    }
    assert_null(rp_sweep_preset("gpt"));
}

static void test_bad_configurations_are_refused_by_name(void **state) {
    struct rp_sweep_config config = config_of();
    struct rp_error err;
    (void)state;
    assert_int_equal(rp_sweep_check(&config, &err), RP_OK);
#define REFUSE(field, value, word)                                                                 \
    do {                                                                                           \
        struct rp_sweep_config changed = config;                                                   \
        changed.field = value;                                                                     \
        assert_int_equal(rp_sweep_check(&changed, &err), RP_STATUS_INVALID);                       \
        assert_non_null(strstr(err.text, word));                                                   \
    } while (0)
    REFUSE(share, 1, "share");
    REFUSE(share, NAN, "share");
    REFUSE(min_rate, 0, "rates");
    REFUSE(min_rate, 2, "rates");
    REFUSE(first_rate, 1e7, "rates");
    REFUSE(max_rate, INFINITY, "rates");
    REFUSE(growth, 1, "growth");
    REFUSE(tolerance, 0, "tolerance");
    REFUSE(repeats, 2, "repeats");
    REFUSE(runs, 0, "runs");
    REFUSE(runs, 257, "runs");
    REFUSE(seconds, NAN, "seconds");
    REFUSE(requests_min, 0, "requests");
    REFUSE(requests_max, 299, "requests");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sharp_edge_is_found_within_the_tolerance),
        cmocka_unit_test(test_both_ends_of_the_answer_were_run_twice),
        cmocka_unit_test(test_noise_at_the_edge_moves_the_answer_little),
        cmocka_unit_test(test_hiccups_lead_it_astray_only_when_they_hit_a_majority),
        cmocka_unit_test(test_a_false_break_far_below_is_taken_back),
        cmocka_unit_test(test_a_server_that_never_breaks_is_driven_to_the_highest_rate),
        cmocka_unit_test(test_a_server_that_never_holds_is_followed_down_to_the_lowest_rate),
        cmocka_unit_test(test_a_client_that_is_too_slow_ends_the_search_below),
        cmocka_unit_test(test_one_slow_moment_of_the_client_is_run_again),
        cmocka_unit_test(test_runs_end_with_the_best_so_far),
        cmocka_unit_test(test_every_run_has_a_seed_of_its_own),
        cmocka_unit_test(test_any_results_end_within_the_runs),
        cmocka_unit_test(test_a_run_is_judged_by_each_bound_or_by_all_at_once),
        cmocka_unit_test(test_a_search_that_begins_near_the_answer_needs_few_runs),
        cmocka_unit_test(test_steps_away_from_the_first_rate_grow_up_to_two),
        cmocka_unit_test(test_a_run_is_lost_once_too_many_requests_are_late),
        cmocka_unit_test(test_a_run_that_may_still_hold_is_not_lost),
        cmocka_unit_test(test_a_run_is_not_lost_as_long_as_the_clients_lag_may_be_the_cause),
        cmocka_unit_test(test_requests_before_the_first_answer_are_no_loss_if_warm_up_is_excluded),
        cmocka_unit_test(test_a_slow_client_does_not_make_a_lost_run_the_servers_fault),
        cmocka_unit_test(test_the_first_rate_is_near_what_a_closed_loop_completes),
        cmocka_unit_test(test_an_objective_that_a_request_alone_misses_is_hopeless),
        cmocka_unit_test(test_runs_have_as_many_requests_as_the_time_permits),
        cmocka_unit_test(test_presets_are_mlperfs),
        cmocka_unit_test(test_bad_configurations_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
