/* tokenize_chat.h - the tokens of a chat's prompt, without an answer. Thread: loop; rendering and
 * tokenizing run on a worker. */
#ifndef RP_SERVER_TOKENIZE_CHAT_H
#define RP_SERVER_TOKENIZE_CHAT_H

#include "server/http/http_conn.h"
#include "text/tokenizer/tokenizer.h"

#include <jansson.h>

/* Answers the request with its tokens. */
typedef void rp_write_tokens(struct rp_conn *conn, const struct rp_token_ids *ids);

/* Takes over `chat`, a request to /v1/chat/completions, of which only the prompt is used. Calls
 * write with its tokens, or answers with the error. */
void rp_tokenize_chat(struct rp_conn *conn, json_t *chat, rp_write_tokens *write);

#endif
