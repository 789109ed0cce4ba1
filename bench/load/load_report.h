/* load_report.h - reports of a load test: JSON, a table, an HTML page with charts.
 *
 * Everything is written into a buffer; buffer->failed means out of memory. Strings from a server
 * (model names, errors) are escaped for their context; invalid UTF-8 becomes U+FFFD.
 *
 * JSON: the keys of `vllm bench serve --save-result`, one object. Times that end in _ms are
 * milliseconds; `duration`, `ttfts`, `itls`, `start_times` are seconds, as in vllm. From vllm:
 *   date, backend, label, model_id, tokenizer_id, num_prompts, request_rate (a number or "inf"),
 *   burstiness, max_concurrency (null: none), duration, completed, failed, total_input_tokens,
 *   total_output_tokens, request_throughput, request_goodput (null: no bounds),
 *   output_throughput, total_token_throughput, {mean,median,std,p50,p90,p95,p99}_
 *   {ttft,tpot,itl,e2el}_ms, ramp_up_{strategy,start_rps,end_rps} for a ramp
 *   with details, one entry per request sent, in the plan's order: input_lens, output_lens, ttfts,
 *   itls, start_times, errors ("" if none). Texts are not stored: no generated_texts.
 * Latencies, ttfts and start_times are from the intended send time (load.h); in vllm from the
 * actual send. Additional keys:
 *   max_{ttft,tpot,itl,e2el}_ms; samples {ttft,tpot,itl,e2el}: number of values of each
 *   service {mean_ttft_ms, ...}: the same from the actual send
 *   client_lag_ms {mean, p50, ..., max}
 *   outcomes {ok, not_sent, connect, ...}: requests by outcome
 *   reliable, why_not; warm_up {requests, seconds}: excluded from latencies
 *   prefix_cache {prompt_tokens, expected_tokens, cached_tokens (null: not reported),
 *     expected_share, share}
 *   arrival, offered_rate (null: none), seed, source {dataset, path, ...}, left_out,
 *   max_in_flight, connections
 *   goodput_bounds {ttft_ms, ...}, good_requests; command; version, server_version
 *   metadata {key: value}, whose keys are also at the top level, as in vllm, unless they would
 *     hide one of these
 *   with details: e2els (seconds; null: failed), service_delays (seconds from the intended to the
 *     actual send), outcomes_by_request, counted (false: warm-up or failed), cached_tokens (null:
 *     not reported). */
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
/* RP_STATUS_INVALID: no `=` or no key. */
int rp_load_metadata_parse(const char *text, struct rp_load_metadata *out,
                           struct rp_error *err) RP_MUST_USE;

/* One run. Pointers are borrowed; strings may be NULL (unknown). */
struct rp_load_report {
    const struct rp_load_summary *summary;
    const struct rp_load_rules *rules;
    const struct rp_load_source *source; /* NULL: unknown */
    /* NULL: not available; no details, no charts over time */
    const struct rp_load_records *records;
    const char *date; /* NULL: now; in vllm's format: 20261121-155100 */
    const char *label, *backend, *model, *tokenizer, *command, *server_version;
    /* as requested; INFINITY: all at once, or a closed loop. JSON: "inf" */
    double request_rate;
    uint32_t max_concurrency; /* 0: none */
    const struct rp_load_metadata *metadata;
    uint32_t metadata_count;
    bool details; /* JSON: include per-request values */
};

/* Writes one object and a newline. */
void rp_load_json_write(const struct rp_load_report *report, struct rp_buffer *out);

/* For a terminal, in the format of `vllm bench serve` with additional lines. */
void rp_load_table_write(const struct rp_load_report *report, struct rp_buffer *out);

/* One self-contained page with charts as inline SVG; light and dark.
 *
 * One run: latencies over time, their percentiles, gaps between tokens, requests in flight and
 * tokens over time. Several (a sweep, a list of runs): first results over offered load, with
 * `objective` marked, and a table; then each run that has records. `objective` NULL: none. */
struct rp_load_objective {
    const char *name;              /* "llama2-70b-interactive"; NULL: none */
    struct rp_load_goodput bounds; /* at p99 */
    double highest_rate; /* the highest offered rate that meets it; 0: none did, or unknown */
};
void rp_load_html_write(const struct rp_load_report *reports, uint32_t count,
                        const struct rp_load_objective *objective, struct rp_buffer *out);

#endif
