/* request_stats.h - what one request cost and what held it up, as the engine saw it.
 *
 * Part of struct rp_request: written by the engine thread (request_account.h) from the request's
 * first step on, read by the loop thread after its CLOSED event. All times are rp_tick_ns. Plain
 * data, no pointers. */
#ifndef RP_ENGINE_REQUEST_STATS_H
#define RP_ENGINE_REQUEST_STATS_H

#include "base/base.h"

/* Where the time between two tokens of a request went. The nanoseconds between its first and its
 * last token are split over these without a rest. */
/* clang-format off */
#define RP_GAP_CAUSES(X)                                                                            \
    X(STEP, "step")       /* the device computed decode rows: its own step, however long */        \
    X(PREFILL, "other_prefill") /* prompt tokens of other requests in the same steps */                  \
    X(HOST, "host")       /* the device was idle: planning, launching, reading */                   \
    X(SWAP, "swap")       /* it was swapped out */                                                 \
    X(PAGES, "pages")     /* steps ran without it: no free page, or not its turn */                \
    X(CLIENT, "client")   /* events had no room: the loop thread, or its clients, did not keep up */
/* clang-format on */

enum rp_gap_cause {
#define X(name, text) RP_GAP_##name,
    RP_GAP_CAUSES(X)
#undef X
        RP_GAP_CAUSE_COUNT
};
extern const char *const rp_gap_causes[RP_GAP_CAUSE_COUNT];

/* A part of the prompt that one step computed. */
struct rp_prefill_chunk {
    uint64_t begin_ns, end_ns; /* of its step on the device */
    uint32_t start, tokens;
};

enum { RP_STATS_CHUNKS = 8, RP_STATS_BUCKETS = 12 };

struct rp_request_stats {
    /* Its share of the steps that it was in: the shares of all requests, padding and unused rows
     * add up to the steps' device time. */
    uint64_t device_ns, prefill_device_ns, bytes, flops;
    uint64_t energy_pj; /* its share of the device's energy, in picojoules; 0: power is unknown */
    uint64_t first_step, last_step; /* the device's numbers; 0: none */
    uint32_t steps, decode_steps;
    uint64_t bucket_tokens,
        padded_tokens;    /* of its steps: token rows, and those that were padding */
    uint32_t tokens;      /* sampled */
    uint32_t chunk_count; /* of its prompt; those past the last kept one are added to that */
    struct rp_prefill_chunk chunks[RP_STATS_CHUNKS];
    struct rp_stats_bucket {
        uint32_t graph; /* rp_engine_graph */
        uint32_t steps;
    } buckets[RP_STATS_BUCKETS];
    uint32_t bucket_count, other_steps; /* in buckets that found no place above */
    uint32_t pages_peak;                /* on the device */
    uint64_t page_ns;                   /* pages times time, while it was not swapped out */
    uint64_t gap_ns[RP_GAP_CAUSE_COUNT];
    uint64_t worst_gap_ns, worst_gap_step;
    uint32_t worst_gap_token; /* index of the next token */
    uint32_t worst_gap_cause; /* the one that had most of it */
    /* The engine's own notes. */
    uint64_t last_token_ns, pages_since_ns, seen_device_ns, seen_prefill_ns, seen_steps;
    uint32_t seen_swaps, seen_pages, last_bucket;
    uint32_t streak; /* slot + 1 while it has one (request_notes.h): above is what was before */
};

#endif
