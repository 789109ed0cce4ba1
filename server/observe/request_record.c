#include "server/observe/request_record.h"

#include "server/api/params.h"
#include "server/api/server_keys.h"
#include "server/http/http_conn.h"
#include "server/http/router.h"

#include <stdio.h>
#include <string.h>

void rp_record_begin(struct rp_request_record *record, const struct rp_conn *conn, uint64_t span) {
    memcpy(record->request_id, conn->request_id, sizeof record->request_id);
    record->trace = conn->trace;
    record->trace.span = span;
    record->unix_offset_ns = conn->unix_offset_ns;
    record->first_byte_ns = conn->first_byte_ns;
    record->received_ns = conn->received_ns;
    record->key_index = conn->key_index;
    record->route = conn->route ? conn->route->path : "";
    snprintf(record->key_name, sizeof record->key_name, "%s",
             rp_server_key_name(conn->server, conn->key_index));
    record->prompt_count = 1;
    record->price_per_hour = conn->server->config.price_per_hour;
}

void rp_record_params(struct rp_request_record *record, const struct rp_completion_params *params) {
    record->stream = params->stream;
    /* replaced once the prompt is known */
    record->max_tokens = (uint32_t)RP_MAX(params->max_tokens, 0);
    record->min_tokens = (uint32_t)params->min_tokens;
    record->temperature = params->temperature;
    record->top_p = params->top_p;
    record->min_p = params->min_p;
    record->top_k = (uint32_t)params->top_k;
}

void rp_record_queued(struct rp_request_record *record, const struct rp_request *request) {
    record->engine_id = request->id;
    record->queued_ns = request->submit_ns;
    record->prompt_tokens = request->prompt_count;
    record->max_tokens = request->max_tokens;
    record->seed = request->sampling.seed;
}

static void keep_time(struct rp_request_record *record, uint64_t delta_us) {
    uint8_t bytes[10];
    uint32_t count = 0;
    do {
        bytes[count++] = (uint8_t)((delta_us & 0x7f) | (delta_us > 0x7f ? 0x80 : 0));
        delta_us >>= 7;
    } while (delta_us);
    if (record->token_bytes + count > RP_RECORD_TOKEN_BYTES) {
        /* full: drop all later times, too, also shorter encodings */
        record->token_bytes = RP_RECORD_TOKEN_BYTES;
        return;
    }
    memcpy(record->token_times + record->token_bytes, bytes, count);
    record->token_bytes += count;
    record->kept_tokens++;
}

void rp_record_token(struct rp_request_record *record, const struct rp_event *event) {
    const struct rp_request *request = event->request;
    record->output_tokens++;
    if (record->output_tokens == 1) {
        /* Written once, before the first token's event: safe to read. */
        record->admitted_ns = request->scheduled_ns;
        record->cached_tokens = request->cached_tokens;
        record->first_token_ns = record->last_token_ns = event->time_ns;
        record->kept_tokens = 1;
        return;
    }
    /* Differences of rounded times since the first token, so that rounding errors do not
     * accumulate. */
    uint64_t before_us = (record->last_token_ns - record->first_token_ns) / 1000;
    uint64_t now_us = (event->time_ns - record->first_token_ns) / 1000;
    keep_time(record, now_us - RP_MIN(now_us, before_us));
    record->last_token_ns = RP_MAX(record->last_token_ns, event->time_ns);
}

void rp_record_closed(struct rp_request_record *record, const struct rp_request *request,
                      uint8_t finish) {
    record->admitted_ns = request->scheduled_ns;
    record->cached_tokens = request->cached_tokens;
    record->swaps = request->swap_count;
    record->closed_ns = request->closed_ns;
    record->finish = finish;
    record->stats = request->stats;
}

uint32_t rp_record_token_times(const struct rp_request_record *record, uint64_t *out,
                               uint32_t capacity) {
    uint64_t us = 0;
    uint32_t at = 0, count = RP_MIN(record->kept_tokens, capacity);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t delta = 0;
        for (uint32_t shift = 0; i > 0 && at < RP_RECORD_TOKEN_BYTES; shift += 7) {
            delta |= (uint64_t)(record->token_times[at] & 0x7f) << shift;
            if (!(record->token_times[at++] & 0x80))
                break;
        }
        us += delta;
        out[i] = record->first_token_ns + us * 1000;
    }
    return count;
}

static uint64_t between(uint64_t begin_ns, uint64_t end_ns) {
    return begin_ns && end_ns > begin_ns ? end_ns - begin_ns : 0;
}

void rp_record_times(const struct rp_request_record *record, struct rp_record_times *out) {
    uint64_t end_ns = RP_MAX(record->written_ns, record->closed_ns);
    *out = (struct rp_record_times){
        .receive = between(record->first_byte_ns, record->received_ns),
        .parse = between(record->received_ns, record->parsed_ns),
        .tokenize = between(record->parsed_ns, record->tokenized_ns),
        .queue = between(record->queued_ns, record->admitted_ns),
        .prefill = between(record->admitted_ns, record->first_token_ns),
        .ttft = between(record->first_byte_ns, record->first_token_ns),
        .decode = between(record->first_token_ns, record->last_token_ns),
        .total = between(record->first_byte_ns, end_ns),
    };
    if (record->output_tokens > 1)
        out->per_token = out->decode / (record->output_tokens - 1);
}

bool rp_record_joules(const struct rp_request_record *record, double *out) {
    *out = (double)record->stats.energy_pj * 1e-12;
    return record->stats.energy_pj > 0;
}

bool rp_record_cost(const struct rp_request_record *record, double *out) {
    *out = (double)record->stats.device_ns * record->price_per_hour / 3600e9;
    return record->price_per_hour > 0;
}

const char *rp_record_finish(const struct rp_request_record *record) {
    if (!record->engine_id && record->sequence)
        return "refused";
    if (record->finish == RP_FINISH_NONE && !record->stop_string)
        return "";
    return record->stop_string ? "stop" : rp_finish_name(record->finish);
}

const char *rp_record_state(const struct rp_request_record *record) {
    if (record->sequence)
        return record->engine_id ? "finished" : "refused";
    return record->first_token_ns ? "decode" : record->queued_ns ? "queued" : "preparing";
}
