#include "server/api/sse.h"

#include "base/json_writer.h"

#include <inttypes.h>
#include <string.h>

/* Differences between the two routes. */
struct shape {
    const char *id_prefix, *object, *chunk_object;
    void (*write_whole)(struct rp_buffer *out, const struct rp_sse_choice *choice);
    void (*write_part)(struct rp_buffer *out, const struct rp_sse_choice *choice);
};

static void write_text(struct rp_buffer *out, const struct rp_sse_choice *choice) {
    rp_json_escape(out, choice->text_len ? choice->text : "", choice->text_len);
}

static void write_completion(struct rp_buffer *out, const struct rp_sse_choice *choice) {
    rp_buffer_puts(out, ",\"text\":");
    write_text(out, choice);
}

static void write_message(struct rp_buffer *out, const struct rp_sse_choice *choice) {
    rp_buffer_puts(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    write_text(out, choice);
    rp_buffer_puts(out, ",\"refusal\":null}");
}

static void write_delta(struct rp_buffer *out, const struct rp_sse_choice *choice) {
    bool last = choice->finish_reason && choice->text_len == 0;
    rp_buffer_puts(out, ",\"delta\":{");
    if (choice->first)
        rp_buffer_puts(out, "\"role\":\"assistant\",");
    if (choice->first || !last) {
        rp_buffer_puts(out, "\"content\":");
        write_text(out, choice);
    }
    rp_buffer_puts(out, "}");
}

static const struct shape shapes[] = {
    [RP_API_COMPLETIONS] = {"cmpl-", "text_completion", "text_completion", write_completion,
                            write_completion},
    [RP_API_CHAT] = {"chatcmpl-", "chat.completion", "chat.completion.chunk", write_message,
                     write_delta},
};

const char *rp_sse_id_prefix(enum rp_api api) { return shapes[api].id_prefix; }

void rp_sse_head(struct rp_buffer *out, enum rp_api api, bool stream, const char *id,
                 int64_t created, const char *model) {
    rp_buffer_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", id,
                     stream ? shapes[api].chunk_object : shapes[api].object, created);
    rp_json_escape(out, model, strlen(model));
}

static void write_json(struct rp_buffer *out, const char *key, const struct rp_buffer *json) {
    rp_buffer_puts(out, key);
    if (json)
        rp_buffer_append(out, json->data, json->len);
    else
        rp_buffer_puts(out, "null");
    out->failed = out->failed || (json && json->failed);
}

static void write_ids(struct rp_buffer *out, const char *key, const struct rp_token_ids *ids) {
    if (!ids)
        return;
    rp_buffer_puts(out, key);
    for (size_t i = 0; i < ids->count; i++)
        rp_buffer_printf(out, "%s%" PRId32, i ? "," : "", ids->ids[i]);
    rp_buffer_puts(out, "]");
}

static void write_choice(struct rp_buffer *out, const struct rp_sse_choice *choice,
                         void (*write)(struct rp_buffer *, const struct rp_sse_choice *)) {
    rp_buffer_printf(out, "{\"index\":%u", choice->index);
    write(out, choice);
    write_json(out, ",\"logprobs\":", choice->logprobs);
    if (choice->finish_reason)
        rp_buffer_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice->finish_reason);
    else
        rp_buffer_puts(out, ",\"finish_reason\":null,\"stop_reason\":");
    if (choice->finish_reason && choice->stop_string)
        rp_json_escape(out, choice->stop_string, choice->stop_string_len);
    else if (choice->finish_reason && choice->stop_token >= 0)
        rp_buffer_printf(out, "%" PRId32, choice->stop_token);
    else
        rp_buffer_puts(out, "null");
    write_ids(out, ",\"token_ids\":[", choice->token_ids);
    write_ids(out, ",\"prompt_token_ids\":[", choice->prompt_ids);
    if (choice->prompt_logprobs)
        write_json(out, ",\"prompt_logprobs\":", choice->prompt_logprobs);
    rp_buffer_puts(out, "}");
}

static void write_usage(struct rp_buffer *out, enum rp_sse_usage usage,
                        const struct rp_sse_tokens *tokens) {
    if (usage == RP_SSE_USAGE_NONE)
        return;
    if (usage == RP_SSE_USAGE_NULL) {
        rp_buffer_puts(out, ",\"usage\":null");
        return;
    }
    rp_buffer_printf(out,
                     ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                     ",\"total_tokens\":%" PRIu64,
                     tokens->prompt, tokens->completion, tokens->prompt + tokens->completion);
    if (usage == RP_SSE_USAGE_FINAL)
        rp_buffer_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}",
                         tokens->cached);
    rp_buffer_puts(out, "}");
}

static void write_more(struct rp_buffer *out, const struct rp_buffer *more) {
    if (more && more->len)
        rp_buffer_append(out, more->data, more->len);
    out->failed = out->failed || (more && more->failed);
}

void rp_sse_chunk(struct rp_buffer *out, enum rp_api api, const struct rp_buffer *head,
                  const struct rp_sse_choice *choice, enum rp_sse_usage usage,
                  const struct rp_sse_tokens *tokens, const struct rp_buffer *more) {
    rp_buffer_puts(out, "data: ");
    rp_buffer_append(out, head->data, head->len);
    rp_buffer_puts(out, ",\"choices\":[");
    if (choice)
        write_choice(out, choice, shapes[api].write_part);
    rp_buffer_puts(out, "]");
    write_usage(out, usage, tokens);
    write_more(out, more);
    rp_buffer_puts(out, "}\n\n");
}

void rp_sse_error(struct rp_buffer *out, const struct rp_http_error *error) {
    rp_buffer_puts(out, "data: ");
    rp_http_error_write(error, out);
    rp_buffer_puts(out, "\n\n");
}

void rp_sse_whole_begin(struct rp_buffer *out, const struct rp_buffer *head) {
    rp_buffer_append(out, head->data, head->len);
    rp_buffer_puts(out, ",\"choices\":[");
}

void rp_sse_whole_choice(struct rp_buffer *out, enum rp_api api,
                         const struct rp_sse_choice *choice) {
    if (choice->index)
        rp_buffer_puts(out, ",");
    write_choice(out, choice, shapes[api].write_whole);
}

void rp_sse_whole_end(struct rp_buffer *out, const struct rp_sse_tokens *tokens,
                      const struct rp_buffer *more) {
    rp_buffer_puts(out, "]");
    write_usage(out, RP_SSE_USAGE_FINAL, tokens);
    write_more(out, more);
    rp_buffer_puts(out, "}\n");
}
