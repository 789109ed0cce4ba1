#include "server/observe/request_json.h"

#include "engine/engine.h"

#include <string.h>

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

static void text_or_null(struct rp_json *json, const char *key, const char *text) {
    if (*text)
        rp_json_string(json, key, text);
    else
        rp_json_null(json, key);
}

static void write_identity(struct rp_json *json, const struct rp_request_record *record,
                           const struct rp_record_context *context) {
    char trace[RP_TRACE_ID_HEX + 1], span[RP_SPAN_ID_HEX + 1], parent[RP_SPAN_ID_HEX + 1] = "";
    rp_trace_id_text(&record->trace, trace);
    rp_span_id_text(record->trace.span, span);
    if (record->trace.parent)
        rp_span_id_text(record->trace.parent, parent);
    rp_json_string(json, "id", record->request_id);
    text_or_null(json, "completion_id", record->completion_id);
    rp_json_string(json, "trace_id", trace);
    rp_json_string(json, "span_id", span);
    text_or_null(json, "parent_span_id", parent);
    rp_json_uint(json, "engine_id", record->engine_id);
    rp_json_string(json, "model", context->model);
    rp_json_uint(json, "prompt_index", record->prompt_index);
    rp_json_uint(json, "prompt_count", record->prompt_count);
    rp_json_uint(json, "choice_index", record->choice_index);
    text_or_null(json, "route", record->route ? record->route : "");
    if (record->key_index >= 0)
        rp_json_int(json, "key_index", record->key_index);
    else
        rp_json_null(json, "key_index");
    text_or_null(json, "key", record->key_name);
    rp_json_double(json, "started_unix_seconds",
                   (double)((int64_t)record->first_byte_ns + record->unix_offset_ns) / 1e9);
}

static void write_end(struct rp_json *json, const struct rp_request_record *record) {
    rp_json_string(json, "state", rp_record_state(record));
    if (record->status)
        rp_json_uint(json, "status", record->status);
    else
        rp_json_null(json, "status");
    text_or_null(json, "finish_reason", rp_record_finish(record));
    text_or_null(json, "error", record->error);
    rp_json_bool(json, "client_left", record->client_left);
}

static void write_params(struct rp_json *json, const struct rp_request_record *record) {
    rp_json_object_begin(json, "params");
    rp_json_bool(json, "stream", record->stream);
    rp_json_uint(json, "max_tokens", record->max_tokens);
    rp_json_uint(json, "min_tokens", record->min_tokens);
    rp_json_double(json, "temperature", record->temperature);
    rp_json_double(json, "top_p", record->top_p);
    rp_json_uint(json, "top_k", record->top_k);
    rp_json_double(json, "min_p", record->min_p);
    rp_json_uint(json, "seed", record->seed);
    rp_json_object_end(json);
}

/* A timestamp in seconds since the first byte. */
static void stamp(struct rp_json *json, const struct rp_request_record *record, const char *key,
                  uint64_t ns) {
    if (ns >= record->first_byte_ns)
        rp_json_double(json, key, seconds(ns - record->first_byte_ns));
    else
        rp_json_null(json, key);
}

static void write_stamps(struct rp_json *json, const struct rp_request_record *record) {
    rp_json_object_begin(json, "stamps_seconds");
    stamp(json, record, "first_byte", record->first_byte_ns);
    stamp(json, record, "received", record->received_ns);
    stamp(json, record, "parsed", record->parsed_ns);
    stamp(json, record, "tokenized", record->tokenized_ns);
    stamp(json, record, "queued", record->queued_ns);
    stamp(json, record, "admitted", record->admitted_ns);
    stamp(json, record, "first_token", record->first_token_ns);
    stamp(json, record, "last_token", record->last_token_ns);
    stamp(json, record, "closed", record->closed_ns);
    stamp(json, record, "written", record->written_ns);
    rp_json_object_end(json);
}

static void write_durations(struct rp_json *json, const struct rp_request_record *record,
                            const struct rp_record_times *times) {
    rp_json_object_begin(json, "durations_seconds");
    rp_json_double(json, "receive", seconds(times->receive));
    rp_json_double(json, "parse", seconds(times->parse));
    rp_json_double(json, "tokenize", seconds(times->tokenize));
    rp_json_double(json, "queue", seconds(times->queue));
    rp_json_double(json, "prefill", seconds(times->prefill));
    rp_json_double(json, "decode", seconds(times->decode));
    rp_json_double(json, "time_to_first_token", seconds(times->ttft));
    rp_json_double(json, "time_per_output_token", seconds(times->per_token));
    rp_json_double(json, "total", seconds(times->total));
    rp_json_double(json, "client_stall", seconds(record->stall_ns));
    rp_json_object_end(json);
}

static void write_buckets(struct rp_json *json, const struct rp_request_stats *stats,
                          const struct rp_record_context *context) {
    rp_json_array_begin(json, "buckets");
    for (uint32_t i = 0; i < stats->bucket_count; i++) {
        struct rp_engine_graph graph;
        rp_json_object_begin(json, NULL);
        rp_json_uint(json, "graph", stats->buckets[i].graph);
        if (context->graph && context->graph(context->graph_ctx, stats->buckets[i].graph, &graph)) {
            rp_json_uint(json, "tokens", graph.bucket.tokens);
            rp_json_uint(json, "logit_rows", graph.bucket.logit_rows);
            rp_json_bool(json, "decode", graph.bucket.decode);
        }
        rp_json_uint(json, "steps", stats->buckets[i].steps);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
    rp_json_uint(json, "other_bucket_steps", stats->other_steps);
}

static void write_device(struct rp_json *json, const struct rp_request_stats *stats,
                         const struct rp_record_context *context) {
    rp_json_object_begin(json, "device");
    rp_json_double(json, "seconds", seconds(stats->device_ns));
    rp_json_uint(json, "nanoseconds", stats->device_ns);
    rp_json_double(json, "prefill_seconds", seconds(stats->prefill_device_ns));
    rp_json_uint(json, "bytes", stats->bytes);
    rp_json_uint(json, "flops", stats->flops);
    rp_json_uint(json, "steps", stats->steps);
    rp_json_uint(json, "decode_steps", stats->decode_steps);
    rp_json_uint(json, "first_step", stats->first_step);
    rp_json_uint(json, "last_step", stats->last_step);
    rp_json_double(
        json, "padding_ratio",
        stats->bucket_tokens ? (double)stats->padded_tokens / (double)stats->bucket_tokens : 0);
    write_buckets(json, stats, context);
    rp_json_object_end(json);
}

static void double_or_null(struct rp_json *json, const char *key, bool known, double value) {
    if (known)
        rp_json_double(json, key, value);
    else
        rp_json_null(json, key);
}

static void write_energy(struct rp_json *json, const struct rp_request_record *record) {
    double joules, cost, tokens = record->output_tokens;
    bool measured = rp_record_joules(record, &joules), priced = rp_record_cost(record, &cost);
    rp_json_object_begin(json, "energy");
    double_or_null(json, "joules", measured, joules);
    double_or_null(json, "joules_per_output_token", measured && tokens > 0, joules / tokens);
    rp_json_object_end(json);
    rp_json_object_begin(json, "cost");
    double_or_null(json, "total", priced, cost);
    double_or_null(json, "per_output_token", priced && tokens > 0, cost / tokens);
    rp_json_object_end(json);
}

static void write_prefill(struct rp_json *json, const struct rp_request_record *record) {
    const struct rp_request_stats *stats = &record->stats;
    uint32_t kept = RP_MIN(stats->chunk_count, (uint32_t)RP_STATS_CHUNKS);
    rp_json_uint(json, "prefill_chunk_count", stats->chunk_count);
    rp_json_array_begin(json, "prefill_chunks");
    for (uint32_t i = 0; i < kept; i++) {
        const struct rp_prefill_chunk *chunk = &stats->chunks[i];
        rp_json_object_begin(json, NULL);
        stamp(json, record, "begin_seconds", chunk->begin_ns);
        stamp(json, record, "end_seconds", chunk->end_ns);
        rp_json_uint(json, "start", chunk->start);
        rp_json_uint(json, "tokens", chunk->tokens);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
}

static void write_gaps(struct rp_json *json, const struct rp_request_record *record) {
    const struct rp_request_stats *stats = &record->stats;
    rp_json_object_begin(json, "inter_token");
    rp_json_object_begin(json, "worst");
    rp_json_double(json, "seconds", seconds(stats->worst_gap_ns));
    rp_json_uint(json, "token", stats->worst_gap_token);
    rp_json_uint(json, "step", stats->worst_gap_step);
    if (stats->worst_gap_ns && stats->worst_gap_cause < RP_GAP_CAUSE_COUNT)
        rp_json_string(json, "cause", rp_gap_causes[stats->worst_gap_cause]);
    else
        rp_json_null(json, "cause");
    rp_json_object_end(json);
    rp_json_double(json, "worst_write_seconds", seconds(record->worst_write_ns));
    rp_json_object_begin(json, "seconds_by_cause");
    for (uint32_t i = 0; i < RP_GAP_CAUSE_COUNT; i++)
        rp_json_double(json, rp_gap_causes[i], seconds(stats->gap_ns[i]));
    rp_json_object_end(json);
    rp_json_object_end(json);
}

static void write_tokens(struct rp_json *json, const struct rp_request_record *record) {
    uint64_t times[RP_RECORD_TOKEN_BYTES + 1];
    uint32_t count = rp_record_token_times(record, times, RP_ARRAY_COUNT(times));
    rp_json_array_begin(json, "token_seconds");
    for (uint32_t i = 0; i < count; i++)
        stamp(json, record, NULL, times[i]);
    rp_json_array_end(json);
}

void rp_request_json(struct rp_json *json, const struct rp_request_record *record,
                     const struct rp_record_context *context, bool tokens) {
    struct rp_record_times times;
    rp_record_times(record, &times);
    if (!record->sequence && context->now_ns > record->first_byte_ns)
        times.total = context->now_ns - record->first_byte_ns;
    rp_json_object_begin(json, NULL);
    write_identity(json, record, context);
    write_end(json, record);
    write_params(json, record);
    rp_json_object_begin(json, "tokens");
    rp_json_uint(json, "prompt", record->prompt_tokens);
    rp_json_uint(json, "cached", record->cached_tokens);
    rp_json_uint(json, "output", record->output_tokens);
    rp_json_uint(json, "reasoning", record->reasoning_tokens);
    rp_json_object_end(json);
    rp_json_uint(json, "tool_calls", record->tool_calls);
    write_stamps(json, record);
    write_durations(json, record, &times);
    write_prefill(json, record);
    write_gaps(json, record);
    write_device(json, &record->stats, context);
    write_energy(json, record);
    rp_json_object_begin(json, "memory");
    rp_json_uint(json, "pages_peak", record->stats.pages_peak);
    rp_json_double(json, "page_seconds", seconds(record->stats.page_ns));
    rp_json_uint(json, "swaps", record->swaps);
    rp_json_object_end(json);
    if (tokens)
        write_tokens(json, record);
    rp_json_object_end(json);
}

/* --- In the answer --------------------------------------------------------------------------- */

/* The maximum of each phase over the prompts of an answer. */
static void longest(const struct rp_request_record *const *records, uint32_t count, uint64_t now_ns,
                    struct rp_record_times *out, uint64_t *out_device_ns) {
    memset(out, 0, sizeof *out);
    *out_device_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct rp_record_times times;
        rp_record_times(records[i], &times);
        out->receive = RP_MAX(out->receive, times.receive);
        out->parse = RP_MAX(out->parse, times.parse);
        out->tokenize = RP_MAX(out->tokenize, times.tokenize);
        out->queue = RP_MAX(out->queue, times.queue);
        out->prefill = RP_MAX(out->prefill, times.prefill);
        out->ttft =
            out->ttft && times.ttft ? RP_MIN(out->ttft, times.ttft) : RP_MAX(out->ttft, times.ttft);
        out->decode = RP_MAX(out->decode, times.decode);
        out->per_token = RP_MAX(out->per_token, times.per_token);
        *out_device_ns += records[i]->stats.device_ns;
    }
    out->total =
        count && now_ns > records[0]->first_byte_ns ? now_ns - records[0]->first_byte_ns : 0;
}

static void write_prompt_timing(struct rp_json *json, const struct rp_request_record *record) {
    struct rp_record_times times;
    rp_record_times(record, &times);
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "index", record->prompt_index);
    rp_json_double(json, "queue_seconds", seconds(times.queue));
    rp_json_double(json, "prefill_seconds", seconds(times.prefill));
    rp_json_double(json, "time_to_first_token_seconds", seconds(times.ttft));
    rp_json_double(json, "decode_seconds", seconds(times.decode));
    rp_json_double(json, "time_per_output_token_seconds", seconds(times.per_token));
    rp_json_uint(json, "cached_tokens", record->cached_tokens);
    rp_json_uint(json, "swaps", record->swaps);
    rp_json_uint(json, "steps", record->stats.steps);
    rp_json_double(json, "device_seconds", seconds(record->stats.device_ns));
    write_gaps(json, record);
    rp_json_object_end(json);
}

/* Energy and cost of all prompts. */
static void write_sums(struct rp_json *json, const struct rp_request_record *const *records,
                       uint32_t count) {
    double joules = 0, cost = 0, one;
    bool measured = false, priced = false;
    for (uint32_t i = 0; i < count; i++) {
        measured |= rp_record_joules(records[i], &one);
        joules += one;
        priced |= rp_record_cost(records[i], &one);
        cost += one;
    }
    double_or_null(json, "energy_joules", measured, joules);
    double_or_null(json, "cost", priced, cost);
}

void rp_request_timing_json(struct rp_json *json, const struct rp_request_record *const *records,
                            uint32_t count, uint64_t now_ns) {
    struct rp_record_times times;
    uint64_t device_ns;
    char trace[RP_TRACE_ID_HEX + 1];
    longest(records, count, now_ns, &times, &device_ns);
    rp_trace_id_text(&records[0]->trace, trace);
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "request_id", records[0]->request_id);
    rp_json_string(json, "trace_id", trace);
    rp_json_double(json, "receive_seconds", seconds(times.receive));
    rp_json_double(json, "parse_seconds", seconds(times.parse));
    rp_json_double(json, "tokenize_seconds", seconds(times.tokenize));
    rp_json_double(json, "queue_seconds", seconds(times.queue));
    rp_json_double(json, "prefill_seconds", seconds(times.prefill));
    rp_json_double(json, "time_to_first_token_seconds", seconds(times.ttft));
    rp_json_double(json, "decode_seconds", seconds(times.decode));
    rp_json_double(json, "time_per_output_token_seconds", seconds(times.per_token));
    rp_json_double(json, "total_seconds", seconds(times.total));
    rp_json_double(json, "device_seconds", seconds(device_ns));
    write_sums(json, records, count);
    rp_json_array_begin(json, "prompts");
    for (uint32_t i = 0; i < count; i++)
        write_prompt_timing(json, records[i]);
    rp_json_array_end(json);
    rp_json_object_end(json);
}

void rp_request_timing_header(struct rp_buffer *out, const struct rp_request_record *const *records,
                              uint32_t count, uint64_t now_ns) {
    struct rp_record_times times;
    uint64_t device_ns;
    longest(records, count, now_ns, &times, &device_ns);
    const struct {
        const char *name;
        uint64_t ns;
    } parts[] = {
        {"receive", times.receive}, {"parse", times.parse},     {"tokenize", times.tokenize},
        {"queue", times.queue},     {"prefill", times.prefill}, {"ttft", times.ttft},
        {"decode", times.decode},   {"device", device_ns},      {"total", times.total}};
    const char *separator = "Server-Timing: ";
    for (size_t i = 0; i < RP_ARRAY_COUNT(parts); i++) {
        if (parts[i].ns == 0)
            continue;
        rp_buffer_printf(out, "%s%s;dur=%.3f", separator, parts[i].name,
                         (double)parts[i].ns * 1e-6);
        separator = ", ";
    }
    if (*separator == ',')
        rp_buffer_puts(out, "\r\n");
}
