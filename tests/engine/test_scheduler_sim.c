/* Goal: for any clients and sizes, each request gets exactly the tokens that it would get alone,
 * ends exactly once, and no page is lost. Method: tests/support/sched_sim.h.
 * REPRISE_SIM_SEED runs one seed, REPRISE_SIM_RUNS another number of them. */
#include "tests/support/sched_sim.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define RUNS 4000

static void print_report(const struct sched_sim_report *report, double seconds) {
#define P(name) printf("%s %llu  ", #name, (unsigned long long)report->name)
    P(steps), P(rows), P(tokens), P(requests), P(refused), P(stops), P(lengths), P(cancels);
    P(cancels_while_swapped), P(numerics), P(withheld), P(errors), P(preemptions), P(swap_ins),
        P(hit_tokens);
    P(shared_pages), P(evictions), P(zeroed_pages), P(wasted_rows), P(results_while_swapped);
    P(window_hits), P(passed_pages), P(state_hits), P(snapshot_evictions);
#undef P
    printf("\n%.2f s, %.0f steps/s\n", seconds, (double)report->steps / seconds);
}

static void test_every_request_gets_its_own_tokens_and_ends_once(void **state) {
    (void)state;
    const char *seed_text = getenv("REPRISE_SIM_SEED"), *runs_text = getenv("REPRISE_SIM_RUNS");
    uint64_t first = seed_text ? strtoull(seed_text, NULL, 0) : 1;
    uint64_t runs = runs_text ? strtoull(runs_text, NULL, 0) : seed_text ? 1 : RUNS;
    struct sched_sim_report report = {0};
    uint64_t began_ns = rp_clock_ns();
    for (uint64_t seed = first; seed < first + runs; seed++)
        if (!sched_sim_run(seed, &report))
            fail_msg("seed %llu: %s (again with REPRISE_SIM_SEED=%llu)", (unsigned long long)seed,
                     report.text, (unsigned long long)seed);
    print_report(&report, (double)(rp_clock_ns() - began_ns) * 1e-9);
    if (runs < RUNS)
        return;
    /* A campaign that does not reach these states proves nothing. */
    assert_true(report.preemptions > 100 && report.swap_ins > 100);
    assert_true(report.results_while_swapped > 20 && report.cancels_while_swapped > 20);
    assert_true(report.hit_tokens > 1000 && report.evictions > 100);
    assert_true(report.numerics > 50 && report.withheld > 50 && report.zeroed_pages > 50);
    assert_true(report.stops > 100 && report.lengths > 100 && report.cancels > 100);
    assert_true(report.window_hits > 100 && report.passed_pages > 1000);
    assert_true(report.state_hits > 100 && report.snapshot_evictions > 100);
    assert_true(report.errors > 20 && report.wasted_rows > 100 && report.refused > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_request_gets_its_own_tokens_and_ends_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
