/* request_record.h - the record of one prompt of a request: timestamps, costs, and how it ended.
 *
 * Part of the completion while that is open (completion_internal.h), then of the log
 * (request_log.h). It contains no prompt or answer text and no keys. All timestamps are rp_tick_ns;
 * 0: not reached.
 * Thread: loop. Memory: plain data of fixed size. */
#ifndef RP_SERVER_REQUEST_RECORD_H
#define RP_SERVER_REQUEST_RECORD_H

#include "engine/request.h"
#include "server/http/auth.h"
#include "server/observe/trace_context.h"

#define RP_REQUEST_ID_MAX       128
#define RP_RECORD_TOKEN_BYTES   768
#define RP_RECORD_ERROR_MAX     40
#define RP_RECORD_COMPLETION_ID 32

struct rp_conn;
struct rp_completion_params;

struct rp_request_record {
    uint64_t sequence; /* order in which requests ended, from 1; 0: still open */
    char request_id[RP_REQUEST_ID_MAX + 1];
    char completion_id[RP_RECORD_COMPLETION_ID];
    const char *route;                  /* static; "" for none */
    char key_name[RP_KEY_NAME_MAX + 1]; /* name of the API key; "": none */
    char error[RP_RECORD_ERROR_MAX];    /* the error code sent to the client; "": none */
    struct rp_trace_context trace;      /* span: of this record */
    uint64_t engine_id;                 /* rp_request.id; 0: never submitted */
    uint32_t prompt_index, prompt_count, choice_index; /* choice: which answer to the prompt */
    /* In chronological order. */
    int64_t unix_offset_ns; /* time since the epoch less rp_tick_ns, read once: at the first byte */
    uint64_t first_byte_ns, received_ns, parsed_ns, tokenized_ns, queued_ns, admitted_ns;
    uint64_t first_token_ns, last_token_ns, closed_ns, written_ns;
    uint32_t prompt_tokens, cached_tokens, output_tokens, swaps;
    uint32_t reasoning_tokens, tool_calls; /* of the answer */
    uint32_t max_tokens, min_tokens, top_k;
    double temperature, top_p, min_p;
    uint64_t seed;
    int32_t key_index; /* index of the API key; -1: none */
    uint16_t status;   /* HTTP status of the answer; 0: none was begun */
    uint8_t finish;    /* rp_finish_reason */
    bool stop_string;  /* ended by a stop string, or after its only call (finish: STOP) */
    bool stream, client_left;
    uint64_t stall_ns;       /* time that output waited for the client to read */
    uint64_t worst_write_ns; /* streams: the longest time between two tokens at the socket */
    double price_per_hour;   /* of the machine; 0: none was given */
    struct rp_request_stats stats;
    /* Microseconds between tokens, from the second token on, as LEB128: 7 bits per byte, lowest
     * first, the top bit set when more follow. Times that do not fit are dropped. */
    uint32_t kept_tokens; /* tokens with a stored time, including the first */
    uint32_t token_bytes;
    uint8_t token_times[RP_RECORD_TOKEN_BYTES];
};

/* Initializes the record of a request of this connection. span: span id of this record. */
void rp_record_begin(struct rp_request_record *record, const struct rp_conn *conn, uint64_t span);
void rp_record_params(struct rp_request_record *record, const struct rp_completion_params *params);
/* The request was submitted to the engine. */
void rp_record_queued(struct rp_request_record *record, const struct rp_request *request);
void rp_record_token(struct rp_request_record *record, const struct rp_event *event);
/* Its CLOSED event was drained: copies the engine's statistics. */
void rp_record_closed(struct rp_request_record *record, const struct rp_request *request,
                      uint8_t finish);

/* Stored token times, oldest first; returns how many. */
uint32_t rp_record_token_times(const struct rp_request_record *record, uint64_t *out,
                               uint32_t capacity);

/* Durations between timestamps in ns; 0 when either is missing. */
struct rp_record_times {
    uint64_t receive, parse, tokenize, queue, prefill, ttft, decode, total;
    uint64_t per_token; /* decode time divided by the output tokens after the first */
};
void rp_record_times(const struct rp_request_record *record, struct rp_record_times *out);

/* Joules of its share of steps, and its cost: its share of device time at the price. False, and
 * *out 0: unknown. */
bool rp_record_joules(const struct rp_request_record *record, double *out);
bool rp_record_cost(const struct rp_request_record *record, double *out);

/* rp_finish_name; "refused": never submitted; "": still open. */
const char *rp_record_finish(const struct rp_request_record *record);
/* "preparing", "queued", "decode", "finished", "refused". An open request in prefill counts as
 * "queued" until its first token: only the engine knows more. */
const char *rp_record_state(const struct rp_request_record *record);

#endif
