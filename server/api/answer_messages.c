/* answer_messages.c - answers of /v1/messages (Anthropic's API): content blocks, one after another.
 * A block of reasoning ends with a signature, without which clients refuse it; ours carries no
 * meaning. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/answer.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

struct state {
    enum block block; /* the one that is open */
    uint32_t index;   /* its index; without an open one: of the next */
    bool called;      /* there is a tool_use block */
    bool has_input;   /* the open block has a part of its input */
    const char *stop_reason;
    struct rp_buffer stop_sequence; /* JSON; empty: null */
};

static bool open_answer(struct rp_answer *answer, json_t *root,
                        const struct rp_completion_params *params) {
    (void)root;
    (void)params;
    answer->state = rp_calloc(1, sizeof(struct state));
    return answer->state != NULL;
}

static void close_answer(struct rp_answer *answer) {
    struct state *s = answer->state;
    if (s)
        rp_buffer_deinit(&s->stop_sequence);
    rp_free(s);
}

static void write_usage(struct rp_buffer *out, const struct rp_answer_usage *usage) {
    rp_buffer_printf(out,
                     "\"usage\":{\"input_tokens\":%" PRIu64
                     ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%" PRIu64
                     ",\"output_tokens\":%" PRIu64 "}",
                     usage->prompt - usage->cached, usage->cached, usage->completion);
}

/* The message up to its content. */
static void write_head(struct rp_answer *answer) {
    rp_buffer_printf(
        &answer->out,
        "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", answer->id);
    rp_json_escape(&answer->out, answer->model, strlen(answer->model));
    rp_buffer_puts(&answer->out, ",\"content\":[");
}

static void write_stop(struct rp_buffer *out, const struct state *s) {
    if (s->stop_reason)
        rp_buffer_printf(out, "\"stop_reason\":\"%s\"", s->stop_reason);
    else
        rp_buffer_puts(out, "\"stop_reason\":null");
    rp_buffer_puts(out, ",\"stop_sequence\":");
    if (s->stop_sequence.len)
        rp_buffer_append(out, s->stop_sequence.data, s->stop_sequence.len);
    else
        rp_buffer_puts(out, "null");
}

static void note_stop(struct state *s, const struct rp_answer_choice *choice) {
    const char *reason = choice->finish_reason;
    s->stop_reason = strcmp(reason, "length") == 0                    ? "max_tokens"
                     : s->called || strcmp(reason, "tool_calls") == 0 ? "tool_use"
                     : choice->stop_string                            ? "stop_sequence"
                                                                      : "end_turn";
    if (choice->stop_string)
        rp_json_escape(&s->stop_sequence, choice->stop_string, choice->stop_string_len);
}

/* --- Streams --------------------------------------------------------------------------------- */

/* event: NAME, data: {"type":NAME */
static void begin_event(struct rp_answer *answer, const char *name) {
    rp_buffer_printf(&answer->out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_event(struct rp_answer *answer) { rp_buffer_puts(&answer->out, "}\n\n"); }

static void begin_stream(struct rp_answer *answer, const struct rp_answer_usage *usage) {
    const struct state none = {.block = BLOCK_NONE};
    begin_event(answer, "message_start");
    rp_buffer_puts(&answer->out, ",\"message\":");
    write_head(answer);
    rp_buffer_puts(&answer->out, "],");
    write_stop(&answer->out, &none);
    rp_buffer_puts(&answer->out, ",");
    write_usage(&answer->out, usage);
    rp_buffer_puts(&answer->out, "}");
    end_event(answer);
}

static void write_delta(struct rp_answer *answer, const char *type, const char *member,
                        const char *text, size_t len) {
    const struct state *s = answer->state;
    begin_event(answer, "content_block_delta");
    rp_buffer_printf(&answer->out, ",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", s->index,
                     type, member);
    rp_json_escape(&answer->out, text, len);
    rp_buffer_puts(&answer->out, "}");
    end_event(answer);
}

static void close_block(struct rp_answer *answer) {
    struct state *s = answer->state;
    if (s->block == BLOCK_NONE)
        return;
    if (s->block == BLOCK_THINKING)
        write_delta(answer, "signature_delta", "signature", answer->id, strlen(answer->id));
    if (s->block == BLOCK_TOOL && !s->has_input)
        write_delta(answer, "input_json_delta", "partial_json", "{}", 2);
    begin_event(answer, "content_block_stop");
    rp_buffer_printf(&answer->out, ",\"index\":%u", s->index);
    end_event(answer);
    s->block = BLOCK_NONE;
    s->index++;
}

static void write_tool(struct rp_buffer *out, const char *bytes,
                       const struct rp_answer_event *call) {
    rp_buffer_puts(out, "{\"type\":\"tool_use\",\"id\":");
    rp_json_escape(out, bytes, call->id_len);
    rp_buffer_puts(out, ",\"name\":");
    rp_json_escape(out, bytes + call->id_len, call->len - call->id_len);
    rp_buffer_puts(out, ",\"input\":");
}

/* event: the call, for a tool. */
static void open_block(struct rp_answer *answer, enum block block, const char *bytes,
                       const struct rp_answer_event *event) {
    struct state *s = answer->state;
    if (s->block == block && block != BLOCK_TOOL)
        return;
    close_block(answer);
    s->block = block;
    s->has_input = false;
    begin_event(answer, "content_block_start");
    rp_buffer_printf(&answer->out, ",\"index\":%u,\"content_block\":", s->index);
    if (block == BLOCK_TEXT)
        rp_buffer_puts(&answer->out, "{\"type\":\"text\",\"text\":\"\"}");
    else if (block == BLOCK_THINKING)
        rp_buffer_puts(&answer->out,
                       "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    else
        write_tool(&answer->out, bytes, event);
    rp_buffer_puts(&answer->out, block == BLOCK_TOOL ? "{}}" : "");
    end_event(answer);
}

static void write_event(struct rp_answer *answer, const struct rp_answer_events *events,
                        const struct rp_answer_event *event) {
    struct state *s = answer->state;
    const char *bytes = rp_answer_bytes(events, event);
    switch (event->kind) {
    case RP_ANSWER_REASONING:
        open_block(answer, BLOCK_THINKING, NULL, NULL);
        write_delta(answer, "thinking_delta", "thinking", bytes, event->len);
        break;
    case RP_ANSWER_TEXT:
        open_block(answer, BLOCK_TEXT, NULL, NULL);
        write_delta(answer, "text_delta", "text", bytes, event->len);
        break;
    case RP_ANSWER_CALL:
        open_block(answer, BLOCK_TOOL, bytes, event);
        s->called = true;
        break;
    case RP_ANSWER_ARGUMENTS:
        write_delta(answer, "input_json_delta", "partial_json", bytes, event->len);
        s->has_input = true;
        break;
    case RP_ANSWER_CALL_END:
        close_block(answer);
        break;
    }
}

static void write_part(struct rp_answer *answer, const struct rp_answer_choice *choice,
                       const struct rp_answer_usage *usage) {
    (void)usage;
    for (uint32_t i = 0; i < rp_answer_count(choice->events); i++)
        write_event(answer, choice->events, rp_answer_event(choice->events, i));
    if (!choice->finish_reason)
        return;
    close_block(answer);
    note_stop(answer->state, choice);
}

static void end_stream(struct rp_answer *answer, const struct rp_answer_usage *usage,
                       const struct rp_buffer *more) {
    struct state *s = answer->state;
    (void)more; /* members that the clients of this API do not ask for */
    begin_event(answer, "message_delta");
    rp_buffer_puts(&answer->out, ",\"delta\":{");
    write_stop(&answer->out, s);
    rp_buffer_puts(&answer->out, "},");
    write_usage(&answer->out, usage);
    end_event(answer);
    begin_event(answer, "message_stop");
    end_event(answer);
    answer->out.failed |= s->stop_sequence.failed;
}

static void write_error(struct rp_answer *answer, const struct rp_http_error *error) {
    rp_buffer_puts(&answer->out, "event: error\ndata: ");
    rp_http_error_write_as(RP_ERRORS_ANTHROPIC, error, NULL, &answer->out);
    rp_buffer_puts(&answer->out, "\n\n");
}

/* --- Whole answers --------------------------------------------------------------------------- */

static void begin_whole(struct rp_answer *answer) { write_head(answer); }

/* Arguments are JSON as the model wrote it. Those of an answer that was cut off may be incomplete:
 * then their text is kept in a member. */
static void write_input(struct rp_buffer *out, const char *text, size_t len) {
    json_t *input = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(input)) {
        rp_buffer_append(out, text, len);
    } else if (len == 0) {
        rp_buffer_puts(out, "{}");
    } else {
        rp_buffer_puts(out, "{\"partial_json\":");
        rp_json_escape(out, text, len);
        rp_buffer_puts(out, "}");
    }
    json_decref(input);
}

static void write_block(struct rp_answer *answer, const struct rp_answer_events *events,
                        uint32_t i) {
    const struct rp_answer_event *event = rp_answer_event(events, i);
    const struct rp_answer_event *next =
        i + 1 < rp_answer_count(events) ? rp_answer_event(events, i + 1) : NULL;
    const char *bytes = rp_answer_bytes(events, event);
    struct rp_buffer *out = &answer->out;
    if (event->kind == RP_ANSWER_CALL) {
        bool has_input = next && next->kind == RP_ANSWER_ARGUMENTS;
        write_tool(out, bytes, event);
        write_input(out, has_input ? rp_answer_bytes(events, next) : "", has_input ? next->len : 0);
    } else if (event->kind == RP_ANSWER_REASONING) {
        rp_buffer_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        rp_json_escape(out, bytes, event->len);
        rp_buffer_printf(out, ",\"signature\":\"%s\"", answer->id);
    } else {
        rp_buffer_puts(out, "{\"type\":\"text\",\"text\":");
        rp_json_escape(out, bytes, event->len);
    }
    rp_buffer_puts(out, "}");
}

static void write_whole(struct rp_answer *answer, const struct rp_answer_choice *choice) {
    struct state *s = answer->state;
    for (uint32_t i = 0; i < rp_answer_count(choice->events); i++) {
        enum rp_answer_event_kind kind = rp_answer_event(choice->events, i)->kind;
        if (kind == RP_ANSWER_ARGUMENTS || kind == RP_ANSWER_CALL_END)
            continue;
        rp_buffer_puts(&answer->out, s->index++ ? "," : "");
        write_block(answer, choice->events, i);
        s->called |= kind == RP_ANSWER_CALL;
    }
    note_stop(s, choice);
}

static void end_whole(struct rp_answer *answer, const struct rp_answer_usage *usage,
                      const struct rp_buffer *more) {
    struct state *s = answer->state;
    (void)more;
    rp_buffer_puts(&answer->out, "],");
    write_stop(&answer->out, s);
    rp_buffer_puts(&answer->out, ",");
    write_usage(&answer->out, usage);
    rp_buffer_puts(&answer->out, "}\n");
    answer->out.failed |= s->stop_sequence.failed;
}

const struct rp_answer_api rp_answer_messages = {
    .id_prefix = "msg_",
    .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .open = open_answer,
    .close = close_answer,
    .begin = begin_stream,
    .part = write_part,
    .end = end_stream,
    .error = write_error,
    .whole_begin = begin_whole,
    .whole_choice = write_whole,
    .whole_end = end_whole,
    .logprobs = rp_token_log_chat,
};
