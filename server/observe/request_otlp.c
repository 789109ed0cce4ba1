/* OTLP/JSON (opentelemetry-proto, docs/specification.md): ids are hexadecimal, 64-bit integers are
 * decimal strings, enums are integers, keys lowerCamelCase. Attribute names follow OpenTelemetry's
 * semantic conventions for generative AI servers. */
#include "base/hash.h"
#include "server/observe/request_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { KIND_INTERNAL = 1, KIND_SERVER = 2, STATUS_ERROR = 2 };
/* Span.flags: the trace flags, and whether the parent is known to be remote. */
enum { FLAG_HAS_IS_REMOTE = 0x100, FLAG_IS_REMOTE = 0x200 };

static void write_u64(struct rp_json *json, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    rp_json_string(json, key, text);
}

static void write_time(struct rp_json *json, const char *key, uint64_t ns,
                       const struct rp_request_record *record) {
    write_u64(json, key, (uint64_t)((int64_t)ns + record->unix_offset_ns));
}

/* Writes {"key":...,"value":{ and leaves the value's member to the caller. */
static void begin_attribute(struct rp_json *json, const char *key) {
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "key", key);
    rp_json_object_begin(json, "value");
}

static void end_attribute(struct rp_json *json) {
    rp_json_object_end(json);
    rp_json_object_end(json);
}

static void text_attribute(struct rp_json *json, const char *key, const char *value) {
    begin_attribute(json, key);
    rp_json_string(json, "stringValue", value);
    end_attribute(json);
}

static void int_attribute(struct rp_json *json, const char *key, uint64_t value) {
    begin_attribute(json, key);
    write_u64(json, "intValue", value);
    end_attribute(json);
}

static void double_attribute(struct rp_json *json, const char *key, double value) {
    begin_attribute(json, key);
    rp_json_double(json, "doubleValue", value);
    end_attribute(json);
}

static void bool_attribute(struct rp_json *json, const char *key, bool value) {
    begin_attribute(json, key);
    rp_json_bool(json, "boolValue", value);
    end_attribute(json);
}

/* Operation name of the semantic conventions for generative AI. */
static const char *operation(const struct rp_request_record *record) {
    bool chat = record->route && strcmp(record->route, "/v1/chat/completions") == 0;
    return chat ? "chat" : "text_completion";
}

static void write_request_attributes(struct rp_json *json, const struct rp_request_record *record,
                                     const char *model) {
    text_attribute(json, "gen_ai.operation.name", operation(record));
    text_attribute(json, "gen_ai.provider.name", "reprise");
    text_attribute(json, "gen_ai.request.model", model);
    text_attribute(json, "gen_ai.response.model", model);
    if (*record->completion_id)
        text_attribute(json, "gen_ai.response.id", record->completion_id);
    int_attribute(json, "gen_ai.request.max_tokens", record->max_tokens);
    double_attribute(json, "gen_ai.request.temperature", record->temperature);
    double_attribute(json, "gen_ai.request.top_p", record->top_p);
    int_attribute(json, "gen_ai.request.top_k", record->top_k);
    bool_attribute(json, "gen_ai.request.stream", record->stream);
    int_attribute(json, "gen_ai.usage.input_tokens", record->prompt_tokens);
    int_attribute(json, "gen_ai.usage.output_tokens", record->output_tokens);
    int_attribute(json, "gen_ai.usage.cache_read.input_tokens", record->cached_tokens);
    const char *finish = rp_record_finish(record);
    if (*finish) {
        begin_attribute(json, "gen_ai.response.finish_reasons");
        rp_json_object_begin(json, "arrayValue");
        rp_json_array_begin(json, "values");
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "stringValue", finish);
        rp_json_object_end(json);
        rp_json_array_end(json);
        rp_json_object_end(json);
        end_attribute(json);
    }
}

static void write_own_attributes(struct rp_json *json, const struct rp_request_record *record) {
    const struct rp_request_stats *stats = &record->stats;
    text_attribute(json, "reprise.request_id", record->request_id);
    if (record->status)
        int_attribute(json, "http.response.status_code", record->status);
    if (*record->error)
        text_attribute(json, "error.type", record->error);
    double_attribute(json, "reprise.device.seconds", (double)stats->device_ns / 1e9);
    double joules, cost;
    if (rp_record_joules(record, &joules))
        double_attribute(json, "reprise.energy.joules", joules);
    if (rp_record_cost(record, &cost))
        double_attribute(json, "reprise.cost", cost);
    int_attribute(json, "reprise.device.bytes", stats->bytes);
    int_attribute(json, "reprise.device.flops", stats->flops);
    int_attribute(json, "reprise.steps", stats->steps);
    int_attribute(json, "reprise.kv_pages.peak", stats->pages_peak);
    int_attribute(json, "reprise.swaps", record->swaps);
    double_attribute(json, "reprise.client_stall.seconds", (double)record->stall_ns / 1e9);
    if (stats->worst_gap_ns && stats->worst_gap_cause < RP_GAP_CAUSE_COUNT) {
        double_attribute(json, "reprise.inter_token.worst_seconds",
                         (double)stats->worst_gap_ns / 1e9);
        text_attribute(json, "reprise.inter_token.worst_cause",
                       rp_gap_causes[stats->worst_gap_cause]);
    }
}

static void write_ids(struct rp_json *json, const struct rp_request_record *record, uint64_t span,
                      uint64_t parent) {
    char text[RP_TRACE_ID_HEX + 1];
    rp_trace_id_text(&record->trace, text);
    rp_json_string(json, "traceId", text);
    rp_span_id_text(span, text);
    rp_json_string(json, "spanId", text);
    if (parent) {
        rp_span_id_text(parent, text);
        rp_json_string(json, "parentSpanId", text);
    }
}

/* A child span for a phase; nothing when it did not happen. */
static void write_phase(struct rp_json *json, const struct rp_request_record *record,
                        const char *name, uint64_t begin_ns, uint64_t end_ns) {
    /* the first three letters of phase names are unique */
    uint64_t span = rp_hash64(name, 3, record->trace.span);
    if (!begin_ns || end_ns < begin_ns)
        return;
    rp_json_object_begin(json, NULL);
    write_ids(json, record, span ? span : 1, record->trace.span);
    rp_json_uint(json, "flags", record->trace.flags | FLAG_HAS_IS_REMOTE);
    rp_json_string(json, "name", name);
    rp_json_uint(json, "kind", KIND_INTERNAL);
    write_time(json, "startTimeUnixNano", begin_ns, record);
    write_time(json, "endTimeUnixNano", end_ns, record);
    rp_json_object_end(json);
}

static void write_event(struct rp_json *json, const struct rp_request_record *record,
                        const char *name, uint64_t ns) {
    if (!ns)
        return;
    rp_json_object_begin(json, NULL);
    write_time(json, "timeUnixNano", ns, record);
    rp_json_string(json, "name", name);
    rp_json_object_end(json);
}

static void write_request(struct rp_json *json, const struct rp_request_record *record,
                          const struct rp_record_context *context) {
    char name[256];
    uint64_t end_ns = RP_MAX(record->written_ns, record->closed_ns);
    if (!record->sequence || end_ns < record->first_byte_ns)
        end_ns = RP_MAX(context->now_ns, record->first_byte_ns);
    snprintf(name, sizeof name, "%s %.200s", operation(record), context->model);
    rp_json_object_begin(json, NULL);
    write_ids(json, record, record->trace.span, record->trace.parent);
    rp_json_uint(json, "flags",
                 record->trace.flags |
                     (record->trace.parent ? FLAG_HAS_IS_REMOTE | FLAG_IS_REMOTE : 0));
    rp_json_string(json, "name", name);
    rp_json_uint(json, "kind", KIND_SERVER);
    write_time(json, "startTimeUnixNano", record->first_byte_ns, record);
    write_time(json, "endTimeUnixNano", end_ns, record);
    rp_json_array_begin(json, "attributes");
    write_request_attributes(json, record, context->model);
    write_own_attributes(json, record);
    rp_json_array_end(json);
    rp_json_array_begin(json, "events");
    write_event(json, record, "received", record->received_ns);
    write_event(json, record, "first_token", record->first_token_ns);
    write_event(json, record, "last_token", record->last_token_ns);
    rp_json_array_end(json);
    rp_json_object_begin(json, "status");
    /* A client error is not an error of the server span. */
    if (record->status >= 500 || record->finish >= RP_FINISH_NUMERIC) {
        rp_json_uint(json, "code", STATUS_ERROR);
        rp_json_string(json, "message", *record->error ? record->error : rp_record_finish(record));
    }
    rp_json_object_end(json);
    rp_json_object_end(json);
    write_phase(json, record, "receive", record->first_byte_ns, record->received_ns);
    write_phase(json, record, "tokenize", record->parsed_ns, record->tokenized_ns);
    write_phase(json, record, "queue", record->queued_ns, record->admitted_ns);
    write_phase(json, record, "prefill", record->admitted_ns, record->first_token_ns);
    write_phase(json, record, "decode", record->first_token_ns, record->last_token_ns);
}

void rp_request_otlp(struct rp_json *json, const struct rp_request_record *const *records,
                     uint32_t count, const struct rp_record_context *context) {
    rp_json_object_begin(json, NULL);
    rp_json_array_begin(json, "resourceSpans");
    rp_json_object_begin(json, NULL);
    rp_json_object_begin(json, "resource");
    rp_json_array_begin(json, "attributes");
    text_attribute(json, "service.name", "reprise");
    text_attribute(json, "service.version", RP_VERSION);
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_begin(json, "scopeSpans");
    rp_json_object_begin(json, NULL);
    rp_json_object_begin(json, "scope");
    rp_json_string(json, "name", "reprise.requests");
    rp_json_string(json, "version", RP_VERSION);
    rp_json_object_end(json);
    rp_json_array_begin(json, "spans");
    for (uint32_t i = 0; i < count; i++)
        write_request(json, records[i], context);
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_end(json);
    rp_json_object_end(json);
    rp_json_array_end(json);
    rp_json_object_end(json);
}
