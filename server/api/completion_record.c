/* completion_record.c - a completion's request records: created with it, filled as it progresses,
 * logged when it has ended. */
#include "metrics/tick.h"
#include "server/api/completion_internal.h"
#include "server/observe/request_json.h"

#include <stdio.h>
#include <string.h>

void rp_completion_record_begin(struct rp_completion *c, const char *completion_id) {
    struct rp_conn *conn = c->conn;
    uint64_t now_ns = rp_tick_ns();
    conn->recorded = true;
    for (uint32_t i = 0; i < c->choice_count; i++) {
        struct rp_request_record *record = &c->choices[i].record;
        /* The first record uses the span in the answer's traceparent; the others are its
         * siblings. */
        rp_record_begin(record, conn, i ? rp_server_random(c->server) : conn->trace.span);
        rp_record_params(record, &c->params);
        record->parsed_ns = now_ns;
        record->prompt_index = i / c->per_prompt;
        record->prompt_count = c->prompt_count;
        record->choice_index = i % c->per_prompt;
        snprintf(record->completion_id, sizeof record->completion_id, "%s", completion_id);
    }
}

void rp_completion_record_tokenized(struct rp_completion *c) {
    uint64_t now_ns = rp_tick_ns();
    for (uint32_t i = 0; i < c->choice_count; i++)
        c->choices[i].record.tokenized_ns = now_ns;
}

void rp_completion_answered(struct rp_completion *c, uint16_t status, const char *error) {
    c->answered_ns = rp_tick_ns();
    c->status = status;
    snprintf(c->error, sizeof c->error, "%s", error ? error : "");
    if (c->conn)
        c->stall_ns = rp_conn_stall_ns(c->conn);
}

void rp_completion_log(struct rp_completion *c) {
    struct rp_server *server = c->server;
    uint64_t now_ns = rp_tick_ns();
    if (c->logged)
        return;
    c->logged = true;
    for (uint32_t i = 0; i < c->choice_count; i++) {
        struct rp_choice *choice = &c->choices[i];
        struct rp_request_record *record = &choice->record;
        record->reasoning_tokens = choice->reasoning_tokens;
        record->tool_calls = choice->calls;
        record->stop_string =
            (choice->match.found >= 0 || choice->calls_ended) && record->engine_id;
        record->status = c->status;
        record->client_left = c->left;
        record->stall_ns = c->stall_ns;
        /* The connection sets this stamp later if the answer is not written yet. */
        record->written_ns = c->conn || c->left ? 0 : c->answered_ns;
        record->closed_ns = record->closed_ns ? record->closed_ns : now_ns;
        memcpy(record->error, c->error, sizeof record->error);
        uint64_t sequence = rp_request_log_add(&server->log, record);
        rp_goodput_note(&server->goodput, record);
        /* Only records of the engine's requests get the time at which their answer is written. */
        if (!c->conn || !record->engine_id)
            rp_request_log_complete(&server->log, record);
        if (c->conn && c->conn->log_count++ == 0)
            c->conn->log_first = sequence;
    }
}

void rp_record_refused(struct rp_conn *conn, const struct rp_http_error *error) {
    struct rp_request_record record;
    if (!conn->recordable || conn->recorded)
        return;
    memset(&record, 0, sizeof record);
    conn->recorded = true;
    rp_record_begin(&record, conn, conn->trace.span);
    record.status = (uint16_t)error->status;
    record.closed_ns = rp_tick_ns();
    snprintf(record.error, sizeof record.error, "%s", error->code ? error->code : "");
    rp_request_log_add(&conn->server->log, &record);
    rp_request_log_complete(&conn->server->log, &record);
}

static void list_records(const struct rp_completion *c,
                         const struct rp_request_record *out[RP_PROMPTS_MAX]) {
    for (uint32_t i = 0; i < c->choice_count; i++)
        out[i] = &c->choices[i].record;
}

void rp_completion_timing(struct rp_completion *c, struct rp_buffer *out) {
    const struct rp_request_record *records[RP_PROMPTS_MAX];
    struct rp_json json;
    if (!c->params.include_timing)
        return;
    list_records(c, records);
    rp_buffer_puts(out, ",\"timing\":");
    rp_json_init(&json, out);
    rp_request_timing_json(&json, records, c->choice_count, rp_tick_ns());
}

const char *rp_completion_timing_header(struct rp_completion *c, struct rp_buffer *out) {
    const struct rp_request_record *records[RP_PROMPTS_MAX];
    if (!c->params.include_timing)
        return NULL;
    list_records(c, records);
    rp_request_timing_header(out, records, c->choice_count, rp_tick_ns());
    rp_buffer_append(out, "", 1);
    return out->failed ? NULL : out->data;
}
