/* load_json.c - the JSON of a run; its keys are listed in load_report.h. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/load/load_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int rp_load_metadata_parse(const char *text, struct rp_load_metadata *out, struct rp_error *err) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return rp_error_set(err, RP_STATUS_INVALID, "metadata: '%.64s': expected KEY=VALUE", text);
    *out = (struct rp_load_metadata){text, equals + 1, (size_t)(equals - text)};
    return RP_OK;
}

static void write_text(struct rp_json *json, const char *key, const char *text) {
    if (text)
        rp_json_string(json, key, text);
    else
        rp_json_null(json, key);
}

static void write_date(struct rp_json *json, const char *date) {
    char text[32] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (!date && gmtime_r(&now, &parts))
        strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
    rp_json_string(json, "date", date ? date : text);
}

/* ---- statistics ----------------------------------------------------------------------------- */

static void write_stat(struct rp_json *json, const struct rp_load_stat *stat,
                       enum rp_load_quantity quantity) {
    const struct {
        const char *name;
        double value;
    } values[] = {{"mean", stat->mean}, {"median", stat->p50}, {"std", stat->std},
                  {"p50", stat->p50},   {"p90", stat->p90},    {"p95", stat->p95},
                  {"p99", stat->p99},   {"max", stat->max}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s_ms", values[i].name, rp_load_quantity_name(quantity));
        rp_json_double(json, key, values[i].value);
    }
}

static void write_lag(struct rp_json *json, const struct rp_load_stat *lag) {
    rp_json_object_begin(json, "client_lag_ms");
    rp_json_uint(json, "samples", lag->count);
    rp_json_double(json, "mean", lag->mean);
    rp_json_double(json, "std", lag->std);
    rp_json_double(json, "p50", lag->p50);
    rp_json_double(json, "p90", lag->p90);
    rp_json_double(json, "p95", lag->p95);
    rp_json_double(json, "p99", lag->p99);
    rp_json_double(json, "max", lag->max);
    rp_json_object_end(json);
}

static void write_latencies(struct rp_json *json, const struct rp_load_summary *summary) {
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        write_stat(json, &summary->latency[q], (enum rp_load_quantity)q);
    rp_json_object_begin(json, "samples");
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        rp_json_uint(json, rp_load_quantity_name((enum rp_load_quantity)q),
                     summary->latency[q].count);
    rp_json_object_end(json);
    rp_json_object_begin(json, "service");
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        write_stat(json, &summary->service[q], (enum rp_load_quantity)q);
    rp_json_object_end(json);
    write_lag(json, &summary->lag);
}

/* ---- requests ------------------------------------------------------------------------------- */

static const char *const dataset_names[] = {[RP_LOAD_RANDOM] = "random",
                                            [RP_LOAD_SONNET] = "sonnet",
                                            [RP_LOAD_TEXT] = "text",
                                            [RP_LOAD_AZURE] = "azure",
                                            [RP_LOAD_MOONCAKE] = "mooncake"};
static const char *const arrival_names[] = {[RP_LOAD_CLOSED] = "closed",
                                            [RP_LOAD_CONSTANT] = "constant",
                                            [RP_LOAD_GAMMA] = "gamma",
                                            [RP_LOAD_TRACE] = "trace"};

static void write_lengths(struct rp_json *json, const char *key,
                          const struct rp_load_lengths *lengths) {
    rp_json_object_begin(json, key);
    rp_json_uint(json, "mean", lengths->mean);
    rp_json_double(json, "range", lengths->range);
    rp_json_object_end(json);
}

static void write_source(struct rp_json *json, const struct rp_load_source *source) {
    bool trace;
    if (!source) {
        rp_json_null(json, "seed");
        rp_json_null(json, "source");
        return;
    }
    trace = source->dataset == RP_LOAD_AZURE || source->dataset == RP_LOAD_MOONCAKE;
    rp_json_uint(json, "seed", source->seed);
    rp_json_object_begin(json, "source");
    rp_json_string(json, "dataset", dataset_names[source->dataset]);
    write_text(json, "path", source->path);
    if (trace) {
        rp_json_double(json, "time_scale", source->time_scale);
        rp_json_double(json, "length_scale", source->length_scale);
    } else {
        write_lengths(json, "input", &source->input);
        write_lengths(json, "output", &source->output);
        rp_json_uint(json, "prefix_tokens", source->prefix_tokens);
    }
    if (source->dataset == RP_LOAD_MOONCAKE)
        rp_json_uint(json, "block_tokens", source->block_tokens);
    rp_json_uint(json, "max_context", source->max_context);
    rp_json_uint(json, "page_tokens", source->page_tokens);
    rp_json_object_end(json);
    if (source->ramp != RP_LOAD_NO_RAMP) {
        rp_json_string(json, "ramp_up_strategy",
                       source->ramp == RP_LOAD_RAMP_LINEAR ? "linear" : "exponential");
        rp_json_double(json, "ramp_up_start_rps", source->ramp_begin);
        rp_json_double(json, "ramp_up_end_rps", source->ramp_end);
    }
}

static void write_traffic(struct rp_json *json, const struct rp_load_report *report) {
    const struct rp_load_source *source = report->source;
    if (isfinite(report->request_rate))
        rp_json_double(json, "request_rate", report->request_rate);
    else
        rp_json_string(json, "request_rate", "inf");
    rp_json_double(json, "burstiness",
                   source && source->arrival == RP_LOAD_GAMMA ? source->burstiness : 1.0);
    if (report->max_concurrency)
        rp_json_uint(json, "max_concurrency", report->max_concurrency);
    else
        rp_json_null(json, "max_concurrency");
    bool at_once = source && source->arrival == RP_LOAD_CLOSED && !report->rules->closed;
    write_text(json, "arrival",
               at_once  ? "at_once"
               : source ? arrival_names[source->arrival]
                        : NULL);
    if (report->summary->offered_rate > 0)
        rp_json_double(json, "offered_rate", report->summary->offered_rate);
    else
        rp_json_null(json, "offered_rate");
    write_source(json, source);
}

/* ---- results -------------------------------------------------------------------------------- */

static void write_totals(struct rp_json *json, const struct rp_load_report *report) {
    const struct rp_load_summary *summary = report->summary;
    const struct rp_load_goodput *bounds = &report->rules->goodput;
    bool bounded = bounds->ms[RP_LOAD_TTFT] > 0 || bounds->ms[RP_LOAD_TPOT] > 0 ||
                   bounds->ms[RP_LOAD_E2EL] > 0;
    rp_json_double(json, "duration", summary->seconds);
    rp_json_uint(json, "completed", summary->completed);
    rp_json_uint(json, "failed", rp_load_failed(summary));
    rp_json_uint(json, "total_input_tokens", summary->input_tokens);
    rp_json_uint(json, "total_output_tokens", summary->output_tokens);
    rp_json_double(json, "request_throughput", summary->request_rate);
    if (bounded)
        rp_json_double(json, "request_goodput", summary->goodput);
    else
        rp_json_null(json, "request_goodput");
    rp_json_double(json, "output_throughput", summary->output_rate);
    rp_json_double(json, "total_token_throughput", summary->total_rate);
    rp_json_object_begin(json, "goodput_bounds");
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
        char key[16];
        snprintf(key, sizeof key, "%s_ms", rp_load_quantity_name((enum rp_load_quantity)q));
        if (bounds->ms[q] > 0)
            rp_json_double(json, key, bounds->ms[q]);
    }
    rp_json_object_end(json);
    rp_json_uint(json, "good_requests", summary->good);
    rp_json_object_begin(json, "outcomes");
    for (int i = 0; i < RP_LOAD_OUTCOMES; i++)
        rp_json_uint(json, rp_load_outcome_name((enum rp_load_outcome)i), summary->outcomes[i]);
    rp_json_object_end(json);
    rp_json_uint(json, "left_out", summary->skipped);
    rp_json_uint(json, "max_in_flight", summary->max_in_flight);
    rp_json_uint(json, "connections", summary->connections);
}

static void write_reliability(struct rp_json *json, const struct rp_load_summary *summary) {
    rp_json_bool(json, "reliable", summary->reliable);
    rp_json_string(json, "why_not", summary->why_not);
    rp_json_object_begin(json, "warm_up");
    rp_json_uint(json, "requests", summary->warm_up);
    rp_json_double(json, "seconds", summary->warm_up_seconds);
    rp_json_object_end(json);
}

static void write_cache(struct rp_json *json, const struct rp_load_summary *summary) {
    double prompt = (double)RP_MAX(summary->prompt_tokens, (uint64_t)1);
    rp_json_object_begin(json, "prefix_cache");
    rp_json_uint(json, "prompt_tokens", summary->prompt_tokens);
    rp_json_uint(json, "expected_tokens", summary->expected_cached_tokens);
    rp_json_double(json, "expected_share", (double)summary->expected_cached_tokens / prompt);
    if (summary->cached_reported) {
        rp_json_uint(json, "cached_tokens", summary->cached_tokens);
        rp_json_double(json, "share", (double)summary->cached_tokens / prompt);
    } else {
        rp_json_null(json, "cached_tokens");
        rp_json_null(json, "share");
    }
    rp_json_object_end(json);
}

/* ---- each request --------------------------------------------------------------------------- */

static void write_gaps(struct rp_json *json, const struct rp_load_records *records,
                       const struct rp_load_record *record) {
    rp_json_array_begin(json, NULL);
    for (uint32_t c = 1; c < record->chunk_count; c++) {
        const uint64_t *chunk = records->chunk_ns + record->chunks + c;
        rp_json_double(json, NULL, (double)(chunk[0] - chunk[-1]) * 1e-9);
    }
    rp_json_array_end(json);
}

static void write_latency(struct rp_json *json, const struct rp_load_record *record,
                          enum rp_load_quantity quantity) {
    double ms = rp_load_latency_ms(record, record->intended_ns, quantity);
    if (ms >= 0)
        rp_json_double(json, NULL, ms * 1e-3);
    else if (quantity == RP_LOAD_TTFT) /* as in vllm */
        rp_json_double(json, NULL, 0.0);
    else
        rp_json_null(json, NULL);
}

enum column { INPUT, OUTPUT, TTFT, ITL, E2EL, START, DELAY, ERROR, OUTCOME, COUNTED, CACHED };

static void write_value(struct rp_json *json, const struct rp_load_report *report,
                        const struct rp_load_record *record, enum column column) {
    const struct rp_load_records *records = report->records;
    bool ok = record->outcome == RP_LOAD_OK;
    const char *outcome = rp_load_outcome_name(record->outcome);
    switch (column) {
    case INPUT:
        rp_json_uint(json, NULL, record->input_tokens);
        break;
    case OUTPUT:
        rp_json_uint(json, NULL, ok ? record->output_tokens : 0);
        break;
    case TTFT:
        write_latency(json, record, RP_LOAD_TTFT);
        break;
    case E2EL:
        write_latency(json, record, RP_LOAD_E2EL);
        break;
    case ITL:
        write_gaps(json, records, record);
        break;
    case START:
        rp_json_double(json, NULL, (double)record->intended_ns * 1e-9);
        break;
    case DELAY:
        rp_json_double(json, NULL, ((double)record->sent_ns - (double)record->intended_ns) * 1e-9);
        break;
    case ERROR:
        rp_json_string(json, NULL, ok ? "" : *record->error ? record->error : outcome);
        break;
    case OUTCOME:
        rp_json_string(json, NULL, outcome);
        break;
    case COUNTED:
        rp_json_bool(json, NULL, ok && record->intended_ns >= report->summary->counted_ns);
        break;
    case CACHED:
        if (record->cached_tokens == UINT32_MAX)
            rp_json_null(json, NULL);
        else
            rp_json_uint(json, NULL, record->cached_tokens);
        break;
    }
}

static void write_details(struct rp_json *json, const struct rp_load_report *report) {
    static const char *const keys[] = {[INPUT] = "input_lens",
                                       [OUTPUT] = "output_lens",
                                       [TTFT] = "ttfts",
                                       [ITL] = "itls",
                                       [E2EL] = "e2els",
                                       [START] = "start_times",
                                       [DELAY] = "service_delays",
                                       [ERROR] = "errors",
                                       [OUTCOME] = "outcomes_by_request",
                                       [COUNTED] = "counted",
                                       [CACHED] = "cached_tokens"};
    for (size_t k = 0; k < RP_ARRAY_COUNT(keys); k++) {
        rp_json_array_begin(json, keys[k]);
        for (uint32_t i = 0; i < report->records->count; i++)
            if (report->records->records[i].outcome != RP_LOAD_NOT_SENT)
                write_value(json, report, &report->records->records[i], (enum column)k);
        rp_json_array_end(json);
    }
}

/* ---- the object ----------------------------------------------------------------------------- */

/* Whether some object of the text already has the key; it is then written only to "metadata". The
 * quotes of a key cannot match inside a string, where they are escaped. */
static bool key_exists(const struct rp_buffer *text, const char *key, size_t key_len) {
    struct rp_buffer quoted;
    bool found = true;
    if (key_len == strlen("metadata") && memcmp(key, "metadata", key_len) == 0)
        return true;
    rp_buffer_init(&quoted, 0);
    rp_json_escape(&quoted, key, key_len);
    rp_buffer_puts(&quoted, ":");
    if (!quoted.failed && !text->failed) {
        found = false;
        for (size_t at = 0; !found && at + quoted.len <= text->len; at++)
            found = memcmp(text->data + at, quoted.data, quoted.len) == 0;
    }
    rp_buffer_deinit(&quoted);
    return found;
}

/* Copies the key, since the writer needs it NUL-terminated. */
static void write_pair(struct rp_json *json, const struct rp_load_metadata *pair) {
    char *key = rp_strndup(pair->key, pair->key_len);
    if (key)
        rp_json_string(json, key, pair->value);
    else
        json->out->failed = true;
    rp_free(key);
}

static bool is_last(const struct rp_load_report *report, uint32_t i) {
    const struct rp_load_metadata *pairs = report->metadata;
    for (uint32_t k = i + 1; k < report->metadata_count; k++)
        if (pairs[k].key_len == pairs[i].key_len &&
            memcmp(pairs[k].key, pairs[i].key, pairs[i].key_len) == 0)
            return false;
    return true;
}

/* If a key is repeated, the last pair is written. */
static void write_metadata(struct rp_json *json, const struct rp_load_report *report) {
    for (uint32_t i = 0; i < report->metadata_count; i++)
        if (is_last(report, i) &&
            !key_exists(json->out, report->metadata[i].key, report->metadata[i].key_len))
            write_pair(json, &report->metadata[i]);
    rp_json_object_begin(json, "metadata");
    for (uint32_t i = 0; i < report->metadata_count; i++)
        if (is_last(report, i))
            write_pair(json, &report->metadata[i]);
    rp_json_object_end(json);
}

void rp_load_json_write(const struct rp_load_report *report, struct rp_buffer *out) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    write_date(&json, report->date);
    write_text(&json, "backend", report->backend);
    write_text(&json, "label", report->label);
    write_text(&json, "model_id", report->model);
    write_text(&json, "tokenizer_id", report->tokenizer);
    rp_json_uint(&json, "num_prompts", report->summary->planned);
    write_traffic(&json, report);
    write_totals(&json, report);
    write_latencies(&json, report->summary);
    write_reliability(&json, report->summary);
    write_cache(&json, report->summary);
    write_text(&json, "command", report->command);
    rp_json_string(&json, "version", RP_VERSION);
    write_text(&json, "server_version", report->server_version);
    if (report->details && report->records)
        write_details(&json, report);
    write_metadata(&json, report);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}
