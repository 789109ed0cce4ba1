/* sched_sim.h - a seeded simulator of the scheduler: clients, a device and an oracle, without time.
 *
 * Shadow KV: instead of K and V, each position of a page stores the chain value h(position, token,
 * previous value). The fake device follows the page tables that the steps wrote, and its next
 * token is a hash of every position that it reads. The oracle computes the same from the request's
 * own tokens, without pages. So a wrong page, a stale or early reuse, a wrong prefix hit, an
 * off-by-one or a lost token changes a token. Steps run in launch order, some as late as their
 * commit; freed pages are poisoned; a request may write NaN from some position on.
 *
 * Half of the configurations have recurrent state: a slot, or a snapshot, stores the chain value of
 * the last token, which every row compares with that of its pages.
 *
 * All choices come from one generator seeded with `seed`: a seed is a complete test case. Each run
 * draws its own configuration. */
#ifndef RP_TESTS_SUPPORT_SCHED_SIM_H
#define RP_TESTS_SUPPORT_SCHED_SIM_H

#include "base/base.h"

struct sched_sim_report {
    bool failed;
    char text[320]; /* the failure, and its place */
    /* Counts of events, to show that a campaign reaches the intended states. */
    uint64_t steps, rows, tokens, requests;
    uint64_t preemptions, swap_ins, hit_tokens, evictions, shared_pages;
    uint64_t cancels, cancels_while_swapped, stops, lengths, numerics, withheld, errors;
    uint64_t wasted_rows, zeroed_pages, refused, results_while_swapped;
    uint64_t window_hits; /* hits of which a group with a window needed only the end */
    uint64_t state_hits, snapshot_evictions;
    uint64_t passed_pages; /* behind the windows of rows: they are not held any more */
};

/* Runs one seed and adds its counts to the report; true if it passes. */
bool sched_sim_run(uint64_t seed, struct sched_sim_report *report);

#endif
