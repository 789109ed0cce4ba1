/* bad_words.h - converts bad_words (words that an answer must not contain) to tokens. Thread:
 * loop. */
#ifndef RP_SERVER_BAD_WORDS_H
#define RP_SERVER_BAD_WORDS_H

#include "server/api/params.h"

/* Tokenizes params->bad_words into params->bad_tokens: each word at the start of a text, and after
 * a space where the tokens differ (as vLLM does). False with *error. */
bool rp_bad_words_read(struct rp_server *server, struct rp_completion_params *params,
                       struct rp_http_error *error);

#endif
