/* request_json.h - request records as JSON, the `timing` member of an answer, Server-Timing, OTLP
 * and Chrome traces.
 * Thread: any that may access the records. */
#ifndef RP_SERVER_REQUEST_JSON_H
#define RP_SERVER_REQUEST_JSON_H

#include "base/json_writer.h"
#include "server/observe/request_record.h"

struct rp_engine_graph;
struct rp_step_record;

/* Context that a record does not contain. */
struct rp_record_context {
    const char *model;
    uint64_t now_ns; /* end time for open records */
    /* Looks up the bucket with that index; false: unknown. May be NULL. */
    bool (*graph)(const void *ctx, uint32_t index, struct rp_engine_graph *out);
    const void *graph_ctx;
    const struct rp_step_record *steps; /* for Chrome traces: the available steps, oldest first */
    uint32_t step_count;
};

/* Writes one object. tokens: include the time of each token. */
void rp_request_json(struct rp_json *json, const struct rp_request_record *record,
                     const struct rp_record_context *context, bool tokens);

/* The members of an answer's "timing", over the records of all its prompts. now_ns: current
 * time. */
void rp_request_timing_json(struct rp_json *json, const struct rp_request_record *const *records,
                            uint32_t count, uint64_t now_ns);
/* "Server-Timing: ...\r\n": the phases known so far, each the longest over the records, in
 * milliseconds. */
void rp_request_timing_header(struct rp_buffer *out, const struct rp_request_record *const *records,
                              uint32_t count, uint64_t now_ns);

/* OTLP/JSON: an ExportTraceServiceRequest with a server span per record and the phases as its
 * children. */
void rp_request_otlp(struct rp_json *json, const struct rp_request_record *const *records,
                     uint32_t count, const struct rp_record_context *context);
/* Chrome trace format (readable by Perfetto): phases, prompt chunks, tokens, and concurrent steps;
 * times are relative to the first byte of the first record. */
void rp_request_perfetto(struct rp_json *json, const struct rp_request_record *const *records,
                         uint32_t count, const struct rp_record_context *context);

#endif
