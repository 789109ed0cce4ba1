/* sched_sim.h - a seeded simulator of the scheduler: clients, a device and an oracle, without time.
 *
 * Shadow KV: a place in a page holds, instead of K and V, the chain value h(position, token, value
 * before it). The fake device follows the page tables that the steps really wrote, and its next
 * token is a hash of every place that it reads. The oracle computes the same from the request's own
 * tokens, without pages. So a wrong page, a stale or early reuse, a wrong prefix hit, an off-by-one
 * or a lost token changes a token. Steps run in launch order, some as late as their commit; pages
 * are poisoned when they become free; a request may write NaN from some position on.
 *
 * All choices come from one generator seeded with `seed`: a seed is a complete test case. Each run
 * draws its own configuration. */
#ifndef RP_TESTS_SUPPORT_SCHED_SIM_H
#define RP_TESTS_SUPPORT_SCHED_SIM_H

#include "base/base.h"

struct sched_sim_report {
    bool failed;
    char text[320]; /* what went wrong, and where */
    /* What happened, to show that a campaign reaches the states that it is about. */
    uint64_t steps, rows, tokens, requests;
    uint64_t preemptions, swap_ins, hit_tokens, evictions, shared_pages;
    uint64_t cancels, cancels_while_swapped, stops, lengths, numerics, withheld, errors;
    uint64_t wasted_rows, zeroed_pages, refused, results_while_swapped;
};

/* Runs one seed. The counts are added to the report; true when nothing went wrong. */
bool sched_sim_run(uint64_t seed, struct sched_sim_report *report);

#endif
