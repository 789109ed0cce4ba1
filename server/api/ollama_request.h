/* ollama_request.h - requests to Ollama's /api/chat and /api/generate as ones to
 * /v1/chat/completions or, if `raw`, to /v1/completions. Thread: loop. */
#ifndef RP_SERVER_OLLAMA_REQUEST_H
#define RP_SERVER_OLLAMA_REQUEST_H

#include "server/http/http_error.h"

#include <jansson.h>

/* *out: owned by the caller; it always has `stream`. False with *error. */
bool rp_ollama_chat(json_t *request, bool late_system, json_t **out, struct rp_http_error *error);
/* *out_raw: *out is for /v1/completions. */
bool rp_ollama_generate(json_t *request, bool late_system, json_t **out, bool *out_raw,
                        struct rp_http_error *error);
/* Whether the request only loads the model: it has no messages, or no prompt. */
bool rp_ollama_is_empty(json_t *request, bool generate);

#endif
