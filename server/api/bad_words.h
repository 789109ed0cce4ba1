/* bad_words.h - the words that an answer must not have, as tokens. Thread: loop. */
#ifndef RP_SERVER_BAD_WORDS_H
#define RP_SERVER_BAD_WORDS_H

#include "server/api/params.h"

/* Tokenizes params->bad_words into params->bad_tokens: each word as it begins a text, and behind a
 * space where that is another token (as vLLM does). False with *error. */
bool rp_bad_words_read(struct rp_server *server, struct rp_completion_params *params,
                       struct rp_http_error *error);

#endif
