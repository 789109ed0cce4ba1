/* token_log.h - log-probabilities of the tokens of a text, kept until that text has gone out, and
 * their JSON.
 *
 * An entry belongs to the place where its token's text begins. It is ready when anything behind
 * that place is certain to be part of the answer; where a stop string cuts the text, the entries of
 * what was cut go with it.
 * Thread: loop. Memory: grows with the tokens; deinit frees. A zeroed log is empty. */
#ifndef RP_SERVER_TOKEN_LOG_H
#define RP_SERVER_TOKEN_LOG_H

#include "base/buffer.h"
#include "engine/request.h"
#include "text/tokenizer/tokenizer.h"

struct rp_token_log {
    struct rp_buffer entries;
    uint32_t count;     /* of tokens in it */
    size_t sent, ready; /* bytes of entries: written out already; may be written */
};

void rp_token_log_deinit(struct rp_token_log *log);
/* A token whose text begins at byte `at` of the answer, `chars` characters behind the begin of the
 * text that is shown. event NULL: nothing is known of its probability. */
void rp_token_log_add(struct rp_token_log *log, int32_t token, const struct rp_event *event,
                      uint64_t at, uint64_t chars);
/* The first `bytes` bytes of the answer are certain. */
void rp_token_log_release(struct rp_token_log *log, uint64_t bytes);
/* The answer ends at that byte. */
void rp_token_log_cut(struct rp_token_log *log, uint64_t bytes);
/* All that is there may be written: the text has ended. */
void rp_token_log_release_all(struct rp_token_log *log);

struct rp_token_style {
    const struct rp_tokenizer *tokenizer;
    uint32_t top;      /* likeliest tokens that are shown */
    bool as_token_ids; /* "token_id:17" in place of texts */
};

/* Completions: {"text_offset","token_logprobs","tokens","top_logprobs"} of `before` (may be NULL:
 * none; all of it) and of what is ready and unsent of log, which is sent then. */
void rp_token_log_completion(const struct rp_token_log *before, struct rp_token_log *log,
                             const struct rp_token_style *style, struct rp_buffer *out);
/* Chat: {"content":[...],"refusal":null}. */
void rp_token_log_chat(struct rp_token_log *log, const struct rp_token_style *style,
                       struct rp_buffer *out);
/* prompt_logprobs as vLLM has it: [null,{"17":{"logprob","rank","decoded_token"}},...]. */
void rp_token_log_prompt(const struct rp_token_log *log, const struct rp_token_style *style,
                         struct rp_buffer *out);

#endif
