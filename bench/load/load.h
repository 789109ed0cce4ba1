/* load.h - what the parts of the load generator hand to each other: the plan of requests, the
 * record of each.
 *
 *   load_arrival, load_trace, load_prompt  ->  struct rp_load_plan     what to send, and when
 *   load_client, load_run                  ->  struct rp_load_record   what happened, one for each request
 *   load_metrics                           ->  struct rp_load_summary  (load_metrics.h): percentiles, rates
 *   load_json, load_table, load_html       ->  reports; bench_sweep, bench_compare, bench_pair build on them
 *
 * Times are nanoseconds of CLOCK_MONOTONIC from the run's beginning unless said; a run has one
 * thread (libuv's loop).
 *
 * Definitions, those of `vllm bench serve` unless said:
 *   TTFT   first chunk with content - start          ITL   each gap between chunks with content
 *   E2EL   last chunk with content - start           TPOT  (E2EL - TTFT) / (output tokens - 1)
 * A chunk has content when its text is not empty; one without counts as well where `usage` shows it
 * to be a token's (no more chunks than tokens): half a character, a special token. The chunk that
 * only tells the role never does. `start` is when the request should have been sent (open loop:
 * latency counts from the intended time, so a server that stalls is charged for what it kept
 * waiting; vllm counts from the sending). Service times, counted from the sending, are reported
 * beside them. In a closed loop both are the same.
 *
 * Memory: a plan owns its requests and token ids, a run its records; both freed as a whole. */
#ifndef RP_BENCH_LOAD_H
#define RP_BENCH_LOAD_H

#include "base/status.h"

/* One request to send. */
struct rp_load_request {
    uint64_t at_ns;         /* intended time of sending; 0 in a closed loop */
    const int32_t *ids;     /* (input_tokens) prompt; NULL: text */
    const char *text;       /* NUL-terminated UTF-8 prompt, where ids are NULL */
    uint32_t input_tokens;  /* 0: text of unknown length */
    uint32_t output_tokens; /* max_tokens, forced with ignore_eos */
    /* Leading prompt tokens, in whole blocks, that an unbounded prefix cache would hold when this
     * request comes after all earlier ones of the plan. */
    uint32_t cached_tokens;
};

struct rp_load_plan {
    struct rp_load_request *requests; /* in rising at_ns */
    uint32_t count;
    uint32_t left_out; /* of the source: they would not have fitted into the model's context */
    int32_t *ids;      /* what requests point into; NULL: none */
    char *text;
};

void rp_load_plan_free(struct rp_load_plan *plan);

/* How a request ended. Each is counted by itself in the reports. */
enum rp_load_outcome {
    RP_LOAD_OK,
    RP_LOAD_NOT_SENT,     /* the run ended before; one that was stopped: or before its answer did */
    RP_LOAD_CONNECT,      /* no connection */
    RP_LOAD_RESET,        /* the connection ended in the middle */
    RP_LOAD_STATUS,       /* an answer other than 200: record.status */
    RP_LOAD_BAD_ANSWER,   /* no HTTP, no event stream, no JSON, or a stream without its end */
    RP_LOAD_SERVER_ERROR, /* an error object inside the stream */
    RP_LOAD_SHORT,        /* fewer output tokens than were forced */
    RP_LOAD_TIMEOUT,
    RP_LOAD_OUTCOMES
};

/* What happened to one request. */
struct rp_load_record {
    uint32_t request; /* its index in the plan */
    enum rp_load_outcome outcome;
    uint32_t status;            /* of HTTP; 0: none came */
    uint64_t intended_ns;       /* open loop: as planned; closed loop: when its turn came */
    uint64_t sent_ns;           /* when its last byte was given to the kernel */
    uint64_t first_ns, last_ns; /* first and last chunk with content; 0: none came */
    uint64_t end_ns;            /* of the answer, or of the attempt */
    uint32_t chunk_count;       /* with content */
    uint64_t chunks;            /* index of its first entry in rp_load_records.chunk_ns */
    uint32_t input_tokens,
        output_tokens;      /* as `usage` says; without usage: as sent, and the chunks */
    uint32_t cached_tokens; /* prompt_tokens_details.cached_tokens; UINT32_MAX: not told */
    bool usage_seen;
    uint64_t text_hash; /* XXH3 of the answer's text: the same text has the same hash */
    char error[96];     /* the first bytes of a message; "" without one */
};

struct rp_load_records {
    struct rp_load_record *records;
    uint32_t count;
    /* Arrival of every chunk with content, request by request: a record's are chunk_ns[chunks,
     * chunks + chunk_count). */
    uint64_t *chunk_ns;
    uint64_t chunk_total;
    uint64_t begin_ns, end_ns; /* of the run: first intended time, last end */
    /* CLOCK_MONOTONIC at the time 0 of all these, for whoever has stamps of his own */
    uint64_t clock_ns;
    /* The client's own lag: how late the loop was when it had something to do (each intended
     * sending, and a timer that fires every 10 ms); one sample each, nanoseconds. Above 20 ms at
     * p99 the client is what was measured. */
    uint64_t *lag_ns;
    uint64_t lag_count;
    uint32_t connections, most_in_flight;
};

void rp_load_records_free(struct rp_load_records *records);

#endif
