/* load_report.h - what a run of load becomes for people and programs: JSON, a table, a page with
 * pictures.
 *
 * Everything is written into a buffer; buffer->failed says that memory was out. Strings that come
 * from a server (model names, errors) are escaped for where they stand; what is no UTF-8 becomes
 * U+FFFD.
 *
 * JSON: the keys of `vllm bench serve --save-result`, one object. Times that end in _ms are
 * milliseconds, `duration`, `ttfts`, `itls`, `start_times` seconds, as there. From it:
 *   date, backend, label, model_id, tokenizer_id, num_prompts, request_rate (a number or "inf"), burstiness,
 *   max_concurrency (null: none), duration, completed, failed, total_input_tokens, total_output_tokens,
 *   request_throughput, request_goodput (null: no bounds), output_throughput, total_token_throughput,
 *   {mean,median,std,p50,p90,p95,p99}_{ttft,tpot,itl,e2el}_ms, ramp_up_{strategy,start_rps,end_rps} of a ramp,
 *   and with details, one entry for each request that was sent, in the plan's order:
 *   input_lens, output_lens, ttfts, itls, start_times, errors ("" without one). Texts are not kept: no generated_texts.
 * Latencies, ttfts and start_times are from the intended time (load.h); in vllm they are from the
 * sending. Beside them:
 *   max_{ttft,tpot,itl,e2el}_ms; samples {ttft,tpot,itl,e2el}: how many values each has
 *   service {mean_ttft_ms, ...}: the same from the sending; client_lag_ms {mean, p50, ..., max}
 *   outcomes {ok, not_sent, connect, ...}: requests by how they ended
 *   reliable, why_not; warm_up {requests, seconds}: what is left out of the latencies
 *   prefix_cache {prompt_tokens, expected_tokens, cached_tokens (null: not told), expected_share, share}
 *   arrival, offered_rate (null: none), seed, source {dataset, path, ...}, left_out, max_in_flight, connections
 *   goodput_bounds {ttft_ms, ...}, good_requests; command; version, server_version
 *   metadata {key: value}, whose keys stand at the top too, as vllm has them, where they do not hide one of these
 *   and with details: e2els (seconds; null: it failed), service_delays (seconds from the intended time to the sending),
 *   outcomes_by_request, counted (false: a warm-up request, or one that failed), cached_tokens (null: not told). */
#ifndef RP_BENCH_LOAD_REPORT_H
#define RP_BENCH_LOAD_REPORT_H

#include "base/buffer.h"
#include "bench/load/load_metrics.h"
#include "bench/load/load_plan.h"

/* KEY=VALUE of --metadata; both borrowed. */
struct rp_load_metadata {
    const char *key, *value;
    size_t key_len;
};
/* RP_STATUS_INVALID: no `=`, or no key. */
int rp_load_metadata_parse(const char *text, struct rp_load_metadata *out,
                           struct rp_error *err) RP_MUST_USE;

/* One run. Pointers are borrowed; strings may be NULL ("not known"). */
struct rp_load_report {
    const struct rp_load_summary *summary;
    const struct rp_load_rules *rules;
    const struct rp_load_source *source; /* NULL: not known */
    /* NULL: no longer there; no details, no pictures over time */
    const struct rp_load_records *records;
    const char *title; /* of the page; NULL: the model */
    const char *date;  /* NULL: now; as vllm writes it: 20261121-155100 */
    const char *label, *backend, *model, *tokenizer, *command, *server_version;
    /* as it was asked for; INFINITY: all at once, or a closed loop. JSON: "inf" */
    double request_rate;
    uint32_t max_concurrency; /* 0: none */
    const struct rp_load_metadata *metadata;
    uint32_t metadata_count;
    bool details; /* JSON: per request too */
};

/* One object and a newline. */
void rp_load_json_write(const struct rp_load_report *report, struct rp_buffer *out);

/* For a terminal, as `vllm bench serve` prints it, and what it lacks. */
void rp_load_table_write(const struct rp_load_report *report, struct rp_buffer *out);

/* One page that needs nothing else, with pictures as inline SVG; light and dark.
 *
 * One run: latencies over time, their percentiles, gaps between tokens, numbers in flight and
 * tokens over time. Several (a sweep, a list of runs): first what they reach at what is offered,
 * with `objective` marked, and a table; then each run that has records. `objective` NULL: none. */
struct rp_load_objective {
    const char *name;              /* "llama2-70b-interactive"; NULL: none */
    struct rp_load_goodput bounds; /* at p99 */
    double highest_rate; /* the highest offered rate that holds it; 0: none did, or not known */
};
void rp_load_html_write(const struct rp_load_report *reports, uint32_t count,
                        const struct rp_load_objective *objective, struct rp_buffer *out);

#endif
