#include "server/sse.h"

#include "base/json_writer.h"

#include <inttypes.h>
#include <string.h>

void rp_sse_head(struct rp_buffer *out, const char *id, int64_t created, const char *model) {
    rp_buffer_printf(
        out, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%" PRId64 ",\"model\":", id,
        created);
    rp_json_escape(out, model, strlen(model));
}

static void write_choice(struct rp_buffer *out, const struct rp_sse_choice *choice) {
    rp_buffer_printf(out, "{\"index\":%u,\"text\":", choice->index);
    rp_json_escape(out, choice->text_len ? choice->text : "", choice->text_len);
    if (!choice->finish_reason) {
        rp_buffer_puts(out, ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}");
        return;
    }
    rp_buffer_printf(
        out, ",\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":", choice->finish_reason);
    if (choice->stop_string)
        rp_json_escape(out, choice->stop_string, choice->stop_string_len);
    else if (choice->stop_token >= 0)
        rp_buffer_printf(out, "%" PRId32, choice->stop_token);
    else
        rp_buffer_puts(out, "null");
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

void rp_sse_chunk(struct rp_buffer *out, const struct rp_buffer *head,
                  const struct rp_sse_choice *choice, enum rp_sse_usage usage,
                  const struct rp_sse_tokens *tokens) {
    rp_buffer_puts(out, "data: ");
    rp_buffer_append(out, head->data, head->len);
    rp_buffer_puts(out, ",\"choices\":[");
    if (choice)
        write_choice(out, choice);
    rp_buffer_puts(out, "]");
    write_usage(out, usage, tokens);
    rp_buffer_puts(out, "}\n\n");
}

void rp_sse_error(struct rp_buffer *out, const struct rp_http_error *error) {
    rp_buffer_puts(out, "data: ");
    rp_http_error_write(error, out);
    rp_buffer_puts(out, "\n\n");
}

void rp_sse_whole(struct rp_buffer *out, const struct rp_buffer *head,
                  const struct rp_sse_choice *choices, uint32_t count,
                  const struct rp_sse_tokens *tokens) {
    rp_buffer_append(out, head->data, head->len);
    rp_buffer_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            rp_buffer_puts(out, ",");
        write_choice(out, &choices[i]);
    }
    rp_buffer_puts(out, "]");
    write_usage(out, RP_SSE_USAGE_FINAL, tokens);
    rp_buffer_puts(out, "}\n");
}
