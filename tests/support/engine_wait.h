/* engine_wait.h - a wait for an engine's events that ends: a test whose engine stands still says
 * what it stands at, where a limit of ctest would only say that it took too long. */
#ifndef RP_TESTS_ENGINE_WAIT_H
#define RP_TESTS_ENGINE_WAIT_H

#include "base/clock.h"
#include "base/threads.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { RP_TEST_STILL_SECONDS = 300 };

/* Until `wake` is posted, which the engine does with its events. */
static inline void rp_test_await_events(sem_t *wake, const struct rp_engine *engine) {
    if (rp_sem_wait_ns(wake, RP_TEST_STILL_SECONDS * (uint64_t)1000000000))
        return;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    uint64_t age_ns = rp_clock_ns() - rp_engine_last_progress_ns(engine);
    fprintf(
        stderr,
        "no event of the engine in %d s: last progress %.3f s ago, %llu steps, running %lld, "
        "waiting %lld, swapped %lld, pages free %lld, held %lld, cached %lld of %lld\n",
        RP_TEST_STILL_SECONDS, (double)age_ns * 1e-9,
        (unsigned long long)rp_counter_read(&metrics->steps),
        (long long)rp_gauge_read(&metrics->running), (long long)rp_gauge_read(&metrics->waiting),
        (long long)rp_gauge_read(&metrics->swapped), (long long)rp_gauge_read(&metrics->pages_free),
        (long long)rp_gauge_read(&metrics->pages_held),
        (long long)rp_gauge_read(&metrics->pages_cached),
        (long long)rp_gauge_read(&metrics->pages_total));
    abort();
}

#endif
