/* load_run.h - sends a plan to an OpenAI-compatible server and records the outcome of each request.
 *
 * One thread, one libuv loop, thousands of streams. Responses are parsed by llhttp; a chunk is
 * timestamped when its bytes were read, before parsing. Connections are kept alive and reused; all
 * are TCP_NODELAY.
 *
 * Each request has stream: true, stream_options.include_usage, ignore_eos, max_tokens =
 * output_tokens, and by default temperature 0. */
#ifndef RP_BENCH_LOAD_RUN_H
#define RP_BENCH_LOAD_RUN_H

#include "bench/load/load.h"

enum rp_load_api { RP_LOAD_COMPLETIONS, RP_LOAD_CHAT };

struct rp_load_target {
    const char *base_url; /* http://host:port[/prefix] */
    enum rp_load_api api;
    const char *model;   /* NULL: the first of GET /v1/models */
    const char *api_key; /* NULL: none */
    double temperature;
    bool no_ignore_eos; /* do not send the field: the server then decides the output length */
};

/* Called about every 200 ms while a run lasts. */
struct rp_load_progress {
    uint32_t sent, done, failed, in_flight, planned;
    uint64_t elapsed_ns, output_tokens;
};

struct rp_load_run_options {
    struct rp_load_target target;
    bool closed; /* keep max_concurrency requests in flight; ignore at_ns */
    /* 0: no limit. In an open loop a request beyond it waits, and the wait counts as latency. */
    uint32_t max_concurrency;
    double timeout_s;   /* per-request timeout, from the send */
    double max_seconds; /* later requests are RP_LOAD_NOT_SENT; 0: no limit */
    void (*progress)(void *context, const struct rp_load_progress *now);
    void *context;
    /* May be NULL. Called as often as `progress`; true ends the run: requests without a complete
     * answer are then RP_LOAD_NOT_SENT. Requests in flight are RP_LOAD_NOT_SENT in `records`, with
     * intended_ns, and with first_ns once it is known. */
    bool (*give_up)(void *context, const struct rp_load_records *records, uint64_t now_ns);
    void *give_up_context;
    /* may be NULL; ends the run early once true (set by a signal handler) */
    const volatile bool *stop;
};

/* The server's self-description, for the report and for defaults; "" and 0 if unknown. */
struct rp_load_server {
    char model[256];
    char version[64];
    uint32_t max_model_len, vocab, page_tokens, slots; /* slots: sequences that run together */
};

/* Reads GET /v1/models and, if they exist, /version and /metrics. */
int rp_load_probe(const struct rp_load_target *target, struct rp_load_server *out,
                  struct rp_error *err) RP_MUST_USE;

/* The body of GET `path`, NUL-terminated, to be freed with rp_free; NULL when not available. */
char *rp_load_get(const struct rp_load_target *target, const char *path, struct rp_error *err);

/* Checks that this many connections can be open: raises the soft file limit if needed.
 * RP_STATUS_RANGE has a hint; the limit is then as high as permitted. rp_load_run calls it with the
 * minimum that its plan needs. */
int rp_load_check_files(uint32_t connections, struct rp_error *err) RP_MUST_USE;

/* Runs the plan to its end. Failed requests are in the records; an error is returned only when
 * nothing could be measured (bad URL, out of memory). */
int rp_load_run(const struct rp_load_run_options *options, const struct rp_load_plan *plan,
                struct rp_load_records *out, struct rp_error *err) RP_MUST_USE;

#endif
