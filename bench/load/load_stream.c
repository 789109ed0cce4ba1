#include "bench/load/load_stream.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

void rp_load_stream_reset(struct rp_load_stream *stream) {
    rp_load_sse_reset(&stream->sse);
    rp_load_text_hash_init(&stream->text);
    stream->usage.has_usage = false;
    stream->chunk_count = stream->status = stream->other_bytes = 0;
    stream->is_events = stream->is_done = stream->server_error = false;
    stream->finished = stream->stopped = false;
}

void rp_load_stream_deinit(struct rp_load_stream *stream) {
    rp_load_sse_deinit(&stream->sse);
    rp_free(stream->chunk_ns);
    stream->chunk_ns = NULL;
}

void rp_load_stream_head(struct rp_load_exchange *exchange, uint32_t status, bool is_event_stream) {
    struct rp_load_stream *stream = (struct rp_load_stream *)exchange;
    stream->status = status;
    stream->is_events = status == 200 && is_event_stream;
}

static void set_why(struct rp_load_stream *stream, const char *why) {
    snprintf(stream->exchange.why, sizeof stream->exchange.why, "%s", why);
}

/* Flag in chunk_ns: a chunk without text, which may or may not be a token
 * (discard_empty_chunks). */
#define WITHOUT_TEXT ((uint64_t)1 << 63)

static bool add_chunk(struct rp_load_stream *stream, bool has_content) {
    if (stream->chunk_count == stream->chunk_capacity) {
        uint32_t capacity = stream->chunk_capacity ? 2 * stream->chunk_capacity : 256;
        uint64_t *chunk_ns = capacity > RP_LOAD_CHUNKS_MAX
                                 ? NULL
                                 : rp_realloc(stream->chunk_ns, capacity * sizeof *chunk_ns);
        if (!chunk_ns) {
            set_why(stream, "the stream has too many chunks");
            return false;
        }
        stream->chunk_ns = chunk_ns;
        stream->chunk_capacity = capacity;
    }
    stream->chunk_ns[stream->chunk_count++] =
        stream->exchange.read_ns | (has_content ? 0 : WITHOUT_TEXT);
    return true;
}

/* False with `why` set: an error object from the server, or a bad answer. */
static bool on_event(void *context, const char *data, size_t len) {
    struct rp_load_stream *stream = context;
    struct rp_load_chunk chunk;
    if (stream->is_done)
        return true;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        stream->is_done = true;
        return true;
    }
    if (!rp_load_chunk_read(data, len, &chunk, &stream->text)) {
        char message[96];
        rp_load_error_message(data, len, message);
        snprintf(stream->exchange.why, sizeof stream->exchange.why,
                 "invalid JSON in an event: %.60s", message);
        return false;
    }
    stream->finished |= chunk.finished;
    stream->stopped |= chunk.stopped;
    if (chunk.has_usage)
        stream->usage = chunk;
    if (chunk.has_error) {
        stream->server_error = true;
        set_why(stream, chunk.error[0] ? chunk.error : "an error without a message");
        return false;
    }
    return (!chunk.has_content && !chunk.has_empty) || add_chunk(stream, chunk.has_content);
}

static enum rp_load_outcome other_body(struct rp_load_stream *stream, const char *bytes,
                                       size_t len) {
    if (stream->other_bytes < sizeof stream->other)
        memcpy(stream->other + stream->other_bytes, bytes,
               RP_MIN(len, sizeof stream->other - stream->other_bytes));
    if (len > RP_LOAD_OTHER_BYTES - stream->other_bytes) {
        rp_load_error_message(stream->other, sizeof stream->other, stream->exchange.why);
        return stream->status == 200 ? RP_LOAD_BAD_ANSWER : RP_LOAD_STATUS;
    }
    stream->other_bytes += (uint32_t)len;
    return RP_LOAD_OK;
}

enum rp_load_outcome rp_load_stream_body(struct rp_load_exchange *exchange, const char *bytes,
                                         size_t len) {
    struct rp_load_stream *stream = (struct rp_load_stream *)exchange;
    if (!stream->is_events)
        return other_body(stream, bytes, len);
    if (rp_load_sse_feed(&stream->sse, bytes, len, on_event, stream))
        return RP_LOAD_OK;
    if (stream->server_error)
        return RP_LOAD_SERVER_ERROR;
    if (stream->sse.line.failed || stream->sse.event.failed)
        set_why(stream, "an event is too long");
    return RP_LOAD_BAD_ANSWER;
}

/* Discards chunks without text, unless usage confirms that they are tokens: there are no more
 * chunks than tokens. */
static void discard_empty_chunks(struct rp_load_stream *stream) {
    bool all = stream->usage.has_usage && stream->chunk_count <= stream->usage.completion_tokens;
    uint32_t count = 0;
    for (uint32_t i = 0; i < stream->chunk_count; i++)
        if (all || !(stream->chunk_ns[i] & WITHOUT_TEXT))
            stream->chunk_ns[count++] = stream->chunk_ns[i] & ~WITHOUT_TEXT;
    stream->chunk_count = count;
}

/* Determines the outcome of a complete answer. */
static enum rp_load_outcome judge(struct rp_load_stream *stream,
                                  const struct rp_load_request *request, bool forced) {
    if (stream->status != 200 || !stream->is_events) {
        rp_load_error_message(stream->other, RP_MIN(stream->other_bytes, sizeof stream->other),
                              stream->exchange.why);
        return stream->status == 200 ? RP_LOAD_BAD_ANSWER : RP_LOAD_STATUS;
    }
    if (!rp_load_sse_finish(&stream->sse, on_event, stream))
        return stream->server_error ? RP_LOAD_SERVER_ERROR : RP_LOAD_BAD_ANSWER;
    discard_empty_chunks(stream);
    if (!stream->is_done && !stream->finished) {
        set_why(stream, "the stream ends without [DONE] and without a finish_reason");
        return RP_LOAD_BAD_ANSWER;
    }
    /* Without usage the number of tokens per chunk is unknown. */
    uint32_t tokens = stream->usage.has_usage ? stream->usage.completion_tokens : 0;
    bool is_short = stream->usage.has_usage ? tokens < request->output_tokens
                                            : stream->stopped || stream->chunk_count == 0;
    if (!forced || !is_short)
        return RP_LOAD_OK;
    snprintf(stream->exchange.why, sizeof stream->exchange.why, "%u tokens of %u",
             stream->usage.has_usage ? tokens : stream->chunk_count, request->output_tokens);
    return RP_LOAD_SHORT;
}

void rp_load_stream_result(struct rp_load_stream *stream, const struct rp_load_request *request,
                           bool forced, enum rp_load_outcome outcome, const char *why,
                           struct rp_load_record *out) {
    if (why != stream->exchange.why)
        set_why(stream, why);
    /* A reset or timeout after [DONE] is ignored: the answer was complete. */
    if (outcome == RP_LOAD_OK ||
        (stream->is_done && (outcome == RP_LOAD_RESET || outcome == RP_LOAD_TIMEOUT)))
        outcome = judge(stream, request, forced);
    discard_empty_chunks(stream);
    if (outcome == RP_LOAD_OK)
        set_why(stream, "");
    out->outcome = outcome;
    out->status = stream->status;
    out->chunk_count = stream->chunk_count;
    out->usage_seen = stream->usage.has_usage;
    out->input_tokens = out->usage_seen ? stream->usage.prompt_tokens : request->input_tokens;
    out->output_tokens = out->usage_seen ? stream->usage.completion_tokens : stream->chunk_count;
    out->cached_tokens = out->usage_seen ? stream->usage.cached_tokens : UINT32_MAX;
    out->text_hash = rp_load_text_hash_get(&stream->text);
    memcpy(out->error, stream->exchange.why, sizeof out->error);
}
