/* answer_json.c - JSON that /v1/completions and /v1/chat/completions share: chunks as server-sent
 * events, the members of a choice, usage. Written straight into a buffer; no tree is built. */
#include "base/json_writer.h"
#include "server/api/answer.h"

#include <inttypes.h>
#include <string.h>

bool rp_answer_json_head(struct rp_answer *answer, const char *object) {
    rp_buffer_printf(&answer->head,
                     "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                     answer->id, object, answer->created);
    rp_json_escape(&answer->head, answer->model, strlen(answer->model));
    return !answer->head.failed;
}

static void append(struct rp_buffer *out, const struct rp_buffer *more) {
    if (more && more->len)
        rp_buffer_append(out, more->data, more->len);
    out->failed = out->failed || (more && more->failed);
}

static void write_json(struct rp_buffer *out, const char *key, const struct rp_buffer *json) {
    rp_buffer_puts(out, key);
    if (json)
        append(out, json);
    else
        rp_buffer_puts(out, "null");
}

static void write_ids(struct rp_buffer *out, const char *key, const struct rp_token_ids *ids) {
    if (!ids)
        return;
    rp_buffer_puts(out, key);
    for (size_t i = 0; i < ids->count; i++)
        rp_buffer_printf(out, "%s%" PRId32, i ? "," : "", ids->ids[i]);
    rp_buffer_puts(out, "]");
}

void rp_answer_json_choice_tail(struct rp_buffer *out, const struct rp_answer_choice *choice,
                                bool finished) {
    write_json(out, ",\"logprobs\":", choice->logprobs);
    if (finished)
        rp_buffer_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice->finish_reason);
    else
        rp_buffer_puts(out, ",\"finish_reason\":null,\"stop_reason\":");
    if (finished && choice->stop_string)
        rp_json_escape(out, choice->stop_string, choice->stop_string_len);
    else if (finished && choice->stop_token >= 0)
        rp_buffer_printf(out, "%" PRId32, choice->stop_token);
    else
        rp_buffer_puts(out, "null");
    write_ids(out, ",\"token_ids\":[", choice->token_ids);
    write_ids(out, ",\"prompt_token_ids\":[", choice->prompt_ids);
    if (choice->prompt_logprobs)
        write_json(out, ",\"prompt_logprobs\":", choice->prompt_logprobs);
    rp_buffer_puts(out, "}");
}

void rp_answer_json_joined(struct rp_answer *answer, const struct rp_answer_events *events,
                           enum rp_answer_event_kind kind) {
    const struct rp_answer_event *only = NULL;
    struct rp_buffer *joined = &answer->scratch;
    uint32_t found = 0;
    rp_buffer_clear(joined);
    for (uint32_t i = 0; i < rp_answer_count(events); i++) {
        const struct rp_answer_event *event = rp_answer_event(events, i);
        if (event->kind != kind)
            continue;
        if (found++ == 1)
            rp_buffer_append(joined, rp_answer_bytes(events, only), only->len);
        if (found > 1)
            rp_buffer_append(joined, rp_answer_bytes(events, event), event->len);
        else
            only = event;
    }
    if (found == 1)
        rp_json_escape(&answer->out, rp_answer_bytes(events, only), only->len);
    else
        rp_json_escape(&answer->out, joined->len ? joined->data : "", joined->len);
    answer->out.failed = answer->out.failed || joined->failed;
}

/* details: those that only a final count has. */
static void write_usage(struct rp_buffer *out, const struct rp_answer_usage *usage, bool details) {
    rp_buffer_printf(out,
                     ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                     ",\"total_tokens\":%" PRIu64,
                     usage->prompt, usage->completion, usage->prompt + usage->completion);
    if (details)
        rp_buffer_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}",
                         usage->cached);
    if (details && usage->reasoning)
        rp_buffer_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%" PRIu64 "}",
                         usage->reasoning);
    rp_buffer_puts(out, "}");
}

void rp_answer_json_begin(struct rp_answer *answer) {
    rp_buffer_puts(&answer->out, "data: ");
    rp_buffer_append(&answer->out, answer->head.data, answer->head.len);
    rp_buffer_puts(&answer->out, ",\"choices\":[");
}

void rp_answer_json_end(struct rp_answer *answer, const struct rp_answer_usage *usage,
                        const struct rp_buffer *more) {
    struct rp_buffer *out = &answer->out;
    rp_buffer_puts(out, "]");
    if (answer->continuous_usage)
        write_usage(out, usage, false);
    else if (answer->include_usage)
        rp_buffer_puts(out, ",\"usage\":null");
    append(out, more);
    rp_buffer_puts(out, "}\n\n");
}

void rp_answer_json_last(struct rp_answer *answer, const struct rp_answer_usage *usage,
                         const struct rp_buffer *more) {
    struct rp_buffer *out = &answer->out;
    if (answer->include_usage || more->len) {
        rp_answer_json_begin(answer);
        rp_buffer_puts(out, "]");
        if (answer->include_usage)
            write_usage(out, usage, true);
        append(out, more);
        rp_buffer_puts(out, "}\n\n");
    }
    rp_buffer_puts(out, "data: [DONE]\n\n");
}

void rp_answer_json_error(struct rp_answer *answer, const struct rp_http_error *error) {
    rp_buffer_puts(&answer->out, "data: ");
    rp_http_error_write(error, &answer->out);
    rp_buffer_puts(&answer->out, "\n\n");
}

void rp_answer_json_whole_begin(struct rp_answer *answer) {
    rp_buffer_append(&answer->out, answer->head.data, answer->head.len);
    rp_buffer_puts(&answer->out, ",\"choices\":[");
}

void rp_answer_json_whole_end(struct rp_answer *answer, const struct rp_answer_usage *usage,
                              const struct rp_buffer *more) {
    rp_buffer_puts(&answer->out, "]");
    write_usage(&answer->out, usage, true);
    append(&answer->out, more);
    rp_buffer_puts(&answer->out, "}\n");
}
