/* load.h - data exchanged between parts of the load generator: the plan of requests, and a record
 * of each.
 *
 *   load_arrival, load_trace, load_prompt  ->  struct rp_load_plan     what to send, and when
 *   load_client, load_run                  ->  struct rp_load_record   what happened, one for each request
 *   load_metrics                           ->  struct rp_load_summary  (load_metrics.h): percentiles, rates
 *   load_json, load_table, load_html       ->  reports; bench_sweep, bench_compare, bench_pair build on them
 *
 * Times are nanoseconds of CLOCK_MONOTONIC since the start of the run unless stated otherwise; a
 * run has one thread (libuv's loop).
 *
 * Definitions, as in `vllm bench serve` unless stated otherwise:
 *   TTFT   first chunk with content - start          ITL   each gap between chunks with content
 *   E2EL   last chunk with content - start           TPOT  (E2EL - TTFT) / (output tokens - 1)
 * A chunk has content when its text is not empty; one with empty text counts as well if `usage`
 * shows that it was a token (no more chunks than tokens): a partial character, a special token. A
 * chunk with only the role never does. `start` is when the request should have been sent (open
 * loop: latency counts from the intended time, so that a stalling server is charged for requests
 * that had to wait; vllm counts from the actual send). Service times, counted from the actual send,
 * are reported as well. In a closed loop both are equal.
 *
 * Memory: a plan owns its requests and token ids, a run its records; each is freed as a whole. */
#ifndef RP_BENCH_LOAD_H
#define RP_BENCH_LOAD_H

#include "base/status.h"

/* One request to send. */
struct rp_load_request {
    uint64_t at_ns;         /* intended send time; 0 in a closed loop */
    const int32_t *ids;     /* (input_tokens) prompt; NULL: text */
    const char *text;       /* NUL-terminated UTF-8 prompt, if ids is NULL */
    uint32_t input_tokens;  /* 0: text of unknown length */
    uint32_t output_tokens; /* max_tokens, forced with ignore_eos */
    /* Leading prompt tokens, in whole blocks, that an unbounded prefix cache would contain if this
     * request came after all earlier ones of the plan. */
    uint32_t cached_tokens;
};

struct rp_load_plan {
    struct rp_load_request *requests; /* ascending by at_ns */
    uint32_t count;
    uint32_t skipped; /* requests of the source that exceed the model's context */
    int32_t *ids;     /* storage that requests point into; NULL: none */
    char *text;
};

void rp_load_plan_free(struct rp_load_plan *plan);

/* How a request ended. Each outcome is counted separately in the reports. */
enum rp_load_outcome {
    RP_LOAD_OK,
    /* the run ended before it was sent; in a stopped run also: before its answer was complete */
    RP_LOAD_NOT_SENT,
    RP_LOAD_CONNECT,      /* no connection */
    RP_LOAD_RESET,        /* the connection closed before the answer was complete */
    RP_LOAD_STATUS,       /* an HTTP status other than 200: record.status */
    RP_LOAD_BAD_ANSWER,   /* not HTTP, not an event stream, not JSON, or an unterminated stream */
    RP_LOAD_SERVER_ERROR, /* an error object inside the stream */
    RP_LOAD_SHORT,        /* fewer output tokens than requested with ignore_eos */
    RP_LOAD_TIMEOUT,
    RP_LOAD_OUTCOMES
};

/* What happened to one request. */
struct rp_load_record {
    uint32_t request; /* its index in the plan */
    enum rp_load_outcome outcome;
    uint32_t status;            /* HTTP status; 0: none received */
    uint64_t intended_ns;       /* open loop: as planned; closed loop: when a slot was free */
    uint64_t sent_ns;           /* when its last byte was passed to the kernel */
    uint64_t first_ns, last_ns; /* first and last chunk with content; 0: none received */
    uint64_t end_ns;            /* end of the answer, or of the attempt */
    uint32_t chunk_count;       /* chunks with content */
    uint64_t chunks;            /* index of its first entry in rp_load_records.chunk_ns */
    uint32_t input_tokens,
        output_tokens;      /* from `usage`; without it: as sent, and the number of chunks */
    uint32_t cached_tokens; /* prompt_tokens_details.cached_tokens; UINT32_MAX: not reported */
    bool usage_seen;
    uint64_t text_hash; /* XXH3 of the answer's text */
    char error[96];     /* the beginning of an error message; "" if none */
};

struct rp_load_records {
    struct rp_load_record *records;
    uint32_t count;
    /* Arrival of every chunk with content, request by request: a record's are chunk_ns[chunks,
     * chunks + chunk_count). */
    uint64_t *chunk_ns;
    uint64_t chunk_total;
    uint64_t begin_ns, end_ns; /* of the run: first intended send time, last end */
    /* CLOCK_MONOTONIC at time 0 of the above, to relate them to other timestamps */
    uint64_t clock_ns;
    /* The client's own lag: how late the loop was for each intended send and for a timer that fires
     * every 10 ms; one sample each, nanoseconds. Above 20 ms at p99 the client is the
     * bottleneck. */
    uint64_t *lag_ns;
    uint64_t lag_count;
    uint32_t connections, max_in_flight;
};

void rp_load_records_free(struct rp_load_records *records);

#endif
