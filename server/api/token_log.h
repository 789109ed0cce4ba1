/* token_log.h - log-probabilities of the tokens of a text, buffered until that text is sent, and
 * their JSON.
 *
 * An entry's position is where its token's text begins. It is ready when text after that position
 * is certain to be part of the answer; when a stop string cuts the text, the entries of the removed
 * text are dropped.
 * Thread: loop. Memory: grows with the tokens; deinit frees. A zeroed log is empty. */
#ifndef RP_SERVER_TOKEN_LOG_H
#define RP_SERVER_TOKEN_LOG_H

#include "base/buffer.h"
#include "engine/request.h"
#include "text/tokenizer/tokenizer.h"

struct rp_token_log {
    struct rp_buffer entries;
    uint32_t count;     /* number of tokens */
    uint32_t allowed;   /* how many tokens the next one added was chosen among; 0: all */
    size_t sent, ready; /* bytes of entries already written; bytes that may be written */
};

void rp_token_log_deinit(struct rp_token_log *log);
/* Adds a token whose text begins at byte `at` of the answer, `chars` characters after the start of
 * the returned text. event NULL: its probability is unknown. */
void rp_token_log_add(struct rp_token_log *log, int32_t token, const struct rp_event *event,
                      uint64_t at, uint64_t chars);
/* The first `bytes` bytes of the answer are certain. */
void rp_token_log_release(struct rp_token_log *log, uint64_t bytes);
/* The answer ends at that byte: drops the entries after it. */
void rp_token_log_cut(struct rp_token_log *log, uint64_t bytes);
/* All entries may be written: the text has ended. */
void rp_token_log_release_all(struct rp_token_log *log);

struct rp_token_style {
    const struct rp_tokenizer *tokenizer;
    uint32_t top;      /* number of most likely tokens shown */
    bool as_token_ids; /* "token_id:17" instead of texts */
};

/* Completions: {"text_offset","token_logprobs","tokens","top_logprobs"} for all of `before` (NULL:
 * none) and for the ready, unsent entries of log, which are then marked as sent. */
void rp_token_log_completion(const struct rp_token_log *before, struct rp_token_log *log,
                             const struct rp_token_style *style, struct rp_buffer *out);
/* Chat: {"content":[...],"refusal":null}, with the ready, unsent entries. before: not used, because
 * chats have no echo. */
void rp_token_log_chat(const struct rp_token_log *before, struct rp_token_log *log,
                       const struct rp_token_style *style, struct rp_buffer *out);
/* prompt_logprobs in vLLM's format: [null,{"17":{"logprob","rank","decoded_token"}},...]. */
void rp_token_log_prompt(const struct rp_token_log *log, const struct rp_token_style *style,
                         struct rp_buffer *out);

#endif
