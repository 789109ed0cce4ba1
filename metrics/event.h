/* event.h - the 32-byte events of the flight recorder, and their kinds.
 *
 * Each traced thread writes events into its own ring (trace_ring.h); a trace of the past is made
 * from copies of the rings. A kind says which lane an event belongs to and what its fields hold:
 * the table below defines it for the writers of traces and the documentation.
 *
 * Spans are written once, at their end: ns is the begin, v the duration. Instants and counters have
 * ns alone. All times are rp_clock_ns (CLOCK_MONOTONIC); times of a device were mapped to it before
 * they were written. They are in the rings roughly in the order in which they ended; a
 * request's first byte, the steps of a device and its idle time are written when they are known,
 * which is later.
 *
 * Not separate rows: a decode row is recorded by its TOKEN (its step is v), ROW is a part of a
 * prompt. Turns of the engine thread that did nothing are part of the SLEEP that follows. LOAD and
 * PAGES are written when they have changed, at most once a millisecond, and ten
 * times a second; SWAP for each step that copies pages to or from the host; RATE ten times a
 * second: tokens a second since the RATE before. b of WORK is a
 * rp_trace_job. Requests are named by rp_request.id, steps by the device's step number. No event
 * holds text of a request. */
#ifndef RP_METRICS_EVENT_H
#define RP_METRICS_EVENT_H

#include "base/base.h"

#include <assert.h>

struct rp_trace_event {
    uint64_t ns;
    uint16_t kind; /* rp_trace_kind */
    uint16_t b;
    uint32_t a;
    uint64_t id;
    uint64_t v;
};
static_assert(sizeof(struct rp_trace_event) == 32, "two events are a cache line");

enum rp_trace_shape { RP_TRACE_SPAN, RP_TRACE_INSTANT, RP_TRACE_COUNTER };
enum rp_trace_lane {
    RP_LANE_REQUESTS,
    RP_LANE_SCHEDULER, /* the engine thread */
    RP_LANE_REPLAYS,   /* steps on the device */
    RP_LANE_NODES,     /* inside sampled steps */
    RP_LANE_IDLE,      /* of the device, by cause */
    RP_LANE_LOOP,
    RP_LANE_WORKERS,
    RP_LANE_COUNTERS,
    RP_LANE_COPIES, /* between host and device */
    RP_LANE_RANKS,  /* nodes of a group's ranks past the first, a track for each */
    RP_LANE_COUNT
};

/* clang-format off */
/*    kind       lane        shape    name             a                b              id        v */
#define RP_TRACE_KINDS(X)                                                                          \
    X(ACCEPT,    SCHEDULER,  SPAN,    "accept",        "requests",      "",            "",       "") \
    X(PLAN,      SCHEDULER,  SPAN,    "plan",          "rows",          "",            "step",   "") \
    X(LAUNCH,    SCHEDULER,  SPAN,    "launch",        "packet_bytes",  "bucket",      "step",   "") \
    X(WAIT,      SCHEDULER,  SPAN,    "wait",          "",              "",            "step",   "") \
    X(COMMIT,    SCHEDULER,  SPAN,    "commit",        "tokens",        "",            "step",   "") \
    X(EMIT,      SCHEDULER,  SPAN,    "emit",          "events",        "",            "",       "") \
    X(SLEEP,     SCHEDULER,  SPAN,    "sleep",         "",              "",            "",       "") \
    X(REPLAY,    REPLAYS,    SPAN,    "replay",        "tokens",        "bucket",      "step",   "") \
    X(PADDING,   REPLAYS,    INSTANT, "padding",       "padded_tokens", "bucket",      "step",   "rows") \
    X(NODE,      NODES,      SPAN,    "node",          "node",          "bucket",      "step",   "") \
    X(IDLE,      IDLE,       SPAN,    "idle",          "",              "cause",       "step",   "") \
    X(RECEIVED,  REQUESTS,   INSTANT, "received",      "body_bytes",    "",            "request","") \
    X(TOKENIZED, REQUESTS,   SPAN,    "tokenize",      "prompt_tokens", "",            "request","") \
    X(QUEUED,    REQUESTS,   INSTANT, "queued",        "prompt_tokens", "",            "request","max_tokens") \
    X(ADMITTED,  REQUESTS,   INSTANT, "admitted",      "cached_tokens", "slot",        "request","step") \
    X(ROW,       REQUESTS,   INSTANT, "row",           "tokens",        "samples",     "request","step") \
    X(TOKEN,     REQUESTS,   INSTANT, "token",         "index",         "",            "request","step") \
    X(SWAP_OUT,  REQUESTS,   INSTANT, "swap_out",      "pages",         "",            "request","step") \
    X(SWAP_IN,   REQUESTS,   INSTANT, "swap_in",       "pages",         "",            "request","step") \
    X(CLOSED,    REQUESTS,   INSTANT, "closed",        "tokens",        "reason",      "request","") \
    X(WRITTEN,   REQUESTS,   INSTANT, "written",       "bytes",         "",            "request","index") \
    X(ANSWERED,  REQUESTS,   INSTANT, "answered",      "bytes",         "status",      "request","") \
    X(POLL,      LOOP,       SPAN,    "poll",          "",              "",            "",       "") \
    X(READ,      LOOP,       SPAN,    "read",          "bytes",         "",            "",       "") \
    X(EVENTS,    LOOP,       SPAN,    "events",        "events",        "",            "",       "") \
    X(SCRAPE,    LOOP,       SPAN,    "scrape",        "bytes",         "",            "",       "") \
    X(WORK,      WORKERS,    SPAN,    "work",          "bytes",         "job",         "request","") \
    X(LOAD,      COUNTERS,   COUNTER, "load",          "running",       "",            "waiting","swapped") \
    X(PAGES,     COUNTERS,   COUNTER, "pages",         "free",          "",            "held",   "cached") \
    X(SWAP,      COUNTERS,   COUNTER, "swap",          "",              "",            "out_bytes","in_bytes") \
    X(RATE,      COUNTERS,   COUNTER, "rate",          "prompt_tokens", "",            "generated_tokens", "") \
    X(PAGE,      COUNTERS,   INSTANT, "page",          "page",          "state",       "before", "") \
    X(POWER,     COUNTERS,   COUNTER, "power",         "milliwatts",    "celsius",     "sm_mhz", "") \
    X(MISS,      REPLAYS,    INSTANT, "not_replayed",  "tokens",        "reason",      "step",   "") \
    X(COPY,      COPIES,     SPAN,    "copy",          "pages",         "direction",   "step",   "") \
    X(RANK_NODE, RANKS,      SPAN,    "rank_node",     "rank_node",     "bucket",      "step",   "")
/* clang-format on */

enum rp_trace_kind {
#define X(name, lane, shape, text, a, b, id, v) RP_TRACE_##name,
    RP_TRACE_KINDS(X)
#undef X
        RP_TRACE_KIND_COUNT
};

/* The field a of RANK_NODE: rank << 16 | node. */
static inline uint32_t rp_trace_rank_node(uint32_t rank, uint32_t node) {
    return rank << 16 | (node & 0xFFFFu);
}

/* What a thread of the pool did: the field b of WORK. */
/* clang-format off */
#define RP_TRACE_JOBS(X)                                                                           \
    X(JSON, "json")         /* parsed a large body; a request has no number yet: id 0 */           \
    X(TEXT, "tokenize")     /* prompts to ids; id 0 as well, TOKENIZED names the request */       \
    X(OTHER, "other")       /* requested by /debug */
/* clang-format on */
enum rp_trace_job {
#define X(name, text) RP_TRACE_JOB_##name,
    RP_TRACE_JOBS(X)
#undef X
        RP_TRACE_JOB_COUNT
};
extern const char *const rp_trace_jobs[RP_TRACE_JOB_COUNT];

/* Names of the fields; "" for an unused field. v of a span is the duration in ns and has no name.
 * */
struct rp_trace_kind_info {
    const char *name, *a, *b, *id, *v;
    enum rp_trace_lane lane;
    enum rp_trace_shape shape;
};
extern const struct rp_trace_kind_info rp_trace_kinds[RP_TRACE_KIND_COUNT];
extern const char *const rp_trace_lanes[RP_LANE_COUNT];

/* Why a device stood idle before a step: the field b of IDLE. Every nanosecond of a gap goes to one
 * of them. */
/* clang-format off */
#define RP_IDLE_CAUSES(X)                                                                           \
    X(NO_WORK, "no_work")       /* no request that could be planned */                             \
    X(ADMISSION, "admission")   /* requests wait for pages or slots */                             \
    X(CLIENT, "client")         /* the event ring is full: the loop thread does not drain it */     \
    X(PLAN, "plan")             /* the scheduler was planning */                                   \
    X(LAUNCH, "launch")         /* packet, page copies, launch calls */                            \
    X(RESULT, "result")         /* waiting for and committing the result before planning on */      \
    X(EMIT, "emit")             /* handing events to the loop thread */                            \
    X(START, "start")           /* launched, and not yet begun on the device */                    \
    X(UNKNOWN, "unknown")
/* clang-format on */

enum rp_idle_cause {
#define X(name, text) RP_IDLE_##name,
    RP_IDLE_CAUSES(X)
#undef X
        RP_IDLE_CAUSE_COUNT
};
extern const char *const rp_idle_causes[RP_IDLE_CAUSE_COUNT];

/* Why a step did not replay the captured graphs of its size: the field b of MISS. */
/* clang-format off */
#define RP_REPLAY_MISSES(X)                                                                        \
    X(NONE, "replayed")                                                                            \
    X(ENFORCE_EAGER, "enforce_eager")   /* --enforce-eager: its launches were made one by one */   \
    X(CAPTURE_FAILED, "capture_failed") /* its size was not captured: it ran in a larger one */    \
    X(NO_GRAPH, "no_graph")             /* nothing captured holds it: the engine fails */
/* clang-format on */

enum rp_replay_miss {
#define X(miss, text) RP_MISS_##miss,
    RP_REPLAY_MISSES(X)
#undef X
        RP_MISS_COUNT
};
extern const char *const rp_replay_misses[RP_MISS_COUNT];

/* Where a step's page copies went: the field b of COPY. */
enum rp_copy_direction { RP_COPIES_IN, RP_COPIES_OUT, RP_COPIES_BOTH, RP_COPIES_DIRECTION_COUNT };
extern const char *const rp_copy_directions[RP_COPIES_DIRECTION_COUNT];

#endif
