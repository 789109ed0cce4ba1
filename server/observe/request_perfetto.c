/* One request for chrome://tracing and ui.perfetto.dev: a process per record with four tracks:
 * phases (nested in the request), prompt chunks on the device, tokens, and device steps from its
 * first to its last. Times are microseconds since the first record's first byte. */
#include "server/observe/request_json.h"

#include "engine/observe/step_record.h"

#include <stdio.h>

enum { LANE_PHASES = 1, LANE_CHUNKS, LANE_TOKENS, LANE_STEPS };

struct writer {
    struct rp_json *json;
    uint64_t zero_ns;
    uint32_t process;
};

static double micros(uint64_t ns) { return (double)ns / 1e3; }

static void write_name(const struct writer *w, const char *what, uint32_t lane, const char *name) {
    rp_json_object_begin(w->json, NULL);
    rp_json_string(w->json, "ph", "M");
    rp_json_string(w->json, "name", what);
    rp_json_uint(w->json, "pid", w->process);
    rp_json_uint(w->json, "tid", lane);
    rp_json_object_begin(w->json, "args");
    rp_json_string(w->json, "name", name);
    rp_json_object_end(w->json);
    rp_json_object_end(w->json);
}

/* Begins a slice whose args the caller writes. False: the phase did not happen, nothing was
 * written. */
static bool begin_slice(const struct writer *w, uint32_t lane, const char *name, uint64_t begin_ns,
                        uint64_t end_ns) {
    if (begin_ns < w->zero_ns || end_ns < begin_ns)
        return false;
    rp_json_object_begin(w->json, NULL);
    rp_json_string(w->json, "ph", "X");
    rp_json_string(w->json, "name", name);
    rp_json_string(w->json, "cat", "request");
    rp_json_uint(w->json, "pid", w->process);
    rp_json_uint(w->json, "tid", lane);
    rp_json_double(w->json, "ts", micros(begin_ns - w->zero_ns));
    rp_json_double(w->json, "dur", micros(end_ns - begin_ns));
    rp_json_object_begin(w->json, "args");
    return true;
}

static void end_slice(const struct writer *w) {
    rp_json_object_end(w->json);
    rp_json_object_end(w->json);
}

static void write_phase(const struct writer *w, const char *name, uint64_t begin_ns,
                        uint64_t end_ns) {
    if (begin_ns && end_ns && begin_slice(w, LANE_PHASES, name, begin_ns, end_ns))
        end_slice(w);
}

static void write_request(const struct writer *w, const struct rp_request_record *record,
                          const struct rp_record_context *context) {
    char trace[RP_TRACE_ID_HEX + 1];
    uint64_t end_ns = RP_MAX(record->written_ns, record->closed_ns);
    if (!record->sequence)
        end_ns = context->now_ns;
    rp_trace_id_text(&record->trace, trace);
    if (!begin_slice(w, LANE_PHASES, "request", record->first_byte_ns, end_ns))
        return;
    rp_json_string(w->json, "request_id", record->request_id);
    rp_json_string(w->json, "trace_id", trace);
    rp_json_string(w->json, "model", context->model);
    rp_json_string(w->json, "state", rp_record_state(record));
    rp_json_string(w->json, "finish_reason", rp_record_finish(record));
    rp_json_uint(w->json, "prompt_tokens", record->prompt_tokens);
    rp_json_uint(w->json, "cached_tokens", record->cached_tokens);
    rp_json_uint(w->json, "output_tokens", record->output_tokens);
    rp_json_uint(w->json, "swaps", record->swaps);
    rp_json_double(w->json, "device_ms", (double)record->stats.device_ns / 1e6);
    rp_json_uint(w->json, "first_step", record->stats.first_step);
    rp_json_uint(w->json, "last_step", record->stats.last_step);
    end_slice(w);
    write_phase(w, "receive", record->first_byte_ns, record->received_ns);
    write_phase(w, "parse", record->received_ns, record->parsed_ns);
    write_phase(w, "tokenize", record->parsed_ns, record->tokenized_ns);
    write_phase(w, "queue", record->queued_ns, record->admitted_ns);
    write_phase(w, "prefill", record->admitted_ns, record->first_token_ns);
    write_phase(w, "decode", record->first_token_ns, record->last_token_ns);
    write_phase(w, "write", RP_MAX(record->last_token_ns, record->closed_ns), record->written_ns);
}

static void write_chunks(const struct writer *w, const struct rp_request_stats *stats) {
    uint32_t kept = RP_MIN(stats->chunk_count, (uint32_t)RP_STATS_CHUNKS);
    for (uint32_t i = 0; i < kept; i++) {
        const struct rp_prefill_chunk *chunk = &stats->chunks[i];
        if (!begin_slice(w, LANE_CHUNKS, "prompt chunk", chunk->begin_ns, chunk->end_ns))
            continue;
        rp_json_uint(w->json, "start", chunk->start);
        rp_json_uint(w->json, "tokens", chunk->tokens);
        end_slice(w);
    }
}

/* Each slice is the wait for a token: from the previous token to this one. */
static void write_tokens(const struct writer *w, const struct rp_request_record *record) {
    const struct rp_request_stats *stats = &record->stats;
    uint64_t times[RP_RECORD_TOKEN_BYTES + 1];
    uint32_t count = rp_record_token_times(record, times, RP_ARRAY_COUNT(times));
    uint64_t before_ns = record->admitted_ns;
    for (uint32_t i = 0; i < count; i++) {
        if (begin_slice(w, LANE_TOKENS, i ? "token" : "first token", RP_MIN(before_ns, times[i]),
                        times[i])) {
            rp_json_uint(w->json, "index", i);
            if (stats->worst_gap_ns && i == stats->worst_gap_token &&
                stats->worst_gap_cause < RP_GAP_CAUSE_COUNT) {
                rp_json_bool(w->json, "worst", true);
                rp_json_string(w->json, "cause", rp_gap_causes[stats->worst_gap_cause]);
                rp_json_uint(w->json, "step", stats->worst_gap_step);
            }
            end_slice(w);
        }
        before_ns = times[i];
    }
}

static void write_steps(const struct writer *w, const struct rp_request_stats *stats,
                        const struct rp_record_context *context) {
    for (uint32_t i = 0; i < context->step_count; i++) {
        const struct rp_step_record *step = &context->steps[i];
        if (step->step < stats->first_step || step->step > stats->last_step ||
            !begin_slice(w, LANE_STEPS, step->decode_only ? "decode step" : "mixed step",
                         step->begin_ns, step->end_ns))
            continue;
        rp_json_uint(w->json, "step", step->step);
        rp_json_uint(w->json, "graph", step->graph);
        rp_json_uint(w->json, "rows", step->rows);
        rp_json_uint(w->json, "tokens", step->tokens);
        rp_json_uint(w->json, "prompt_tokens", step->prompt_tokens);
        rp_json_uint(w->json, "padded_tokens", step->padded_tokens);
        end_slice(w);
    }
}

void rp_request_perfetto(struct rp_json *json, const struct rp_request_record *const *records,
                         uint32_t count, const struct rp_record_context *context) {
    struct writer w = {.json = json, .zero_ns = UINT64_MAX};
    char name[64];
    for (uint32_t i = 0; i < count; i++)
        w.zero_ns = RP_MIN(w.zero_ns, records[i]->first_byte_ns);
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "displayTimeUnit", "ns"); /* see metrics/trace_json.c */
    rp_json_array_begin(json, "traceEvents");
    for (uint32_t i = 0; i < count; i++) {
        w.process = i + 1;
        snprintf(name, sizeof name, "request %u, prompt %u", i + 1, records[i]->prompt_index);
        write_name(&w, "process_name", 0, name);
        write_name(&w, "thread_name", LANE_PHASES, "phases");
        write_name(&w, "thread_name", LANE_CHUNKS, "prompt on the device");
        write_name(&w, "thread_name", LANE_TOKENS, "tokens");
        write_name(&w, "thread_name", LANE_STEPS, "steps");
        write_request(&w, records[i], context);
        write_chunks(&w, &records[i]->stats);
        write_tokens(&w, records[i]);
        write_steps(&w, &records[i]->stats, context);
    }
    rp_json_array_end(json);
    rp_json_object_end(json);
}
