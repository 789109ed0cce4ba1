/* sse.h - the JSON of a completion or a chat: stream chunks as server-sent events, and the whole
 * answer. Written straight into a buffer; no tree is built. Thread: loop. */
#ifndef RP_SERVER_SSE_H
#define RP_SERVER_SSE_H

#include "base/buffer.h"
#include "server/api/params.h"
#include "server/http/http_error.h"

/* "cmpl-" or "chatcmpl-". */
const char *rp_sse_id_prefix(enum rp_api api);
/* The members that do not change during a completion, as JSON without the closing brace:
 * {"id":...,"object":...,"created":...,"model":... */
void rp_sse_head(struct rp_buffer *out, enum rp_api api, bool stream, const char *id,
                 int64_t created, const char *model);

struct rp_sse_choice {
    uint32_t index;
    bool first; /* first chunk of the choice; in a chat it includes the role */
    const char *text;
    size_t text_len;
    const char *finish_reason; /* NULL: not finished */
    const char *stop_string;   /* stop_reason as a string */
    size_t stop_string_len;
    /* stop_reason as an id given by the client; -1: null */
    int32_t stop_token;
    const struct rp_buffer *logprobs;        /* JSON; NULL: null */
    const struct rp_buffer *prompt_logprobs; /* JSON; NULL: no such member */
    /* return_token_ids; NULL: no such member */
    const struct rp_token_ids *token_ids, *prompt_ids;
};

enum rp_sse_usage {
    RP_SSE_USAGE_NONE,
    RP_SSE_USAGE_NULL,
    RP_SSE_USAGE_RUNNING,
    RP_SSE_USAGE_FINAL
};

struct rp_sse_tokens {
    uint64_t prompt, completion, cached;
};

/* "data: {...}\n\n". choice NULL: "choices":[]; more (may be NULL): additional members, each
 * preceded by a comma. */
void rp_sse_chunk(struct rp_buffer *out, enum rp_api api, const struct rp_buffer *head,
                  const struct rp_sse_choice *choice, enum rp_sse_usage usage,
                  const struct rp_sse_tokens *tokens, const struct rp_buffer *more);
void rp_sse_error(struct rp_buffer *out, const struct rp_http_error *error);

/* An answer without streaming: begin, each choice, end. */
void rp_sse_whole_begin(struct rp_buffer *out, const struct rp_buffer *head);
void rp_sse_whole_choice(struct rp_buffer *out, enum rp_api api,
                         const struct rp_sse_choice *choice);
void rp_sse_whole_end(struct rp_buffer *out, const struct rp_sse_tokens *tokens,
                      const struct rp_buffer *more);

#endif
