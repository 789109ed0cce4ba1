/* request_json.h - records as text: JSON, the `timing` member of an answer, Server-Timing, OTLP,
 * Chrome traces.
 * Thread: any that may read the records. */
#ifndef RP_SERVER_REQUEST_JSON_H
#define RP_SERVER_REQUEST_JSON_H

#include "base/json_writer.h"
#include "server/observe/request_record.h"

struct rp_engine_graph;
struct rp_step_record;

/* What a record does not say by itself. */
struct rp_record_context {
    const char *model;
    uint64_t now_ns; /* of open records: until now */
    /* The bucket of that index; false: unknown. May be NULL. */
    bool (*graph)(const void *ctx, uint32_t index, struct rp_engine_graph *out);
    const void *graph_ctx;
    const struct rp_step_record *steps; /* for Chrome's trace: those that are known, oldest first */
    uint32_t step_count;
};

/* One object. tokens: with the time of each token. */
void rp_request_json(struct rp_json *json, const struct rp_request_record *record,
                     const struct rp_record_context *context, bool tokens);

/* The members of an answer's "timing": of the records of all its prompts. now_ns: when it is
 * written. */
void rp_request_timing_json(struct rp_json *json, const struct rp_request_record *const *records,
                            uint32_t count, uint64_t now_ns);
/* "Server-Timing: ...\r\n": what is known of them by now; the longest of each phase, in
 * milliseconds. */
void rp_request_timing_header(struct rp_buffer *out, const struct rp_request_record *const *records,
                              uint32_t count, uint64_t now_ns);

/* OTLP/JSON: an ExportTraceServiceRequest with a server span per record and the phases below it. */
void rp_request_otlp(struct rp_json *json, const struct rp_request_record *const *records,
                     uint32_t count, const struct rp_record_context *context);
/* Chrome's trace format, which Perfetto reads: phases, prompt chunks, tokens, and the steps
 * meanwhile; times are relative to the first byte of the first record. */
void rp_request_perfetto(struct rp_json *json, const struct rp_request_record *const *records,
                         uint32_t count, const struct rp_record_context *context);

#endif
