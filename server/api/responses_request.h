/* responses_request.h - a request to /v1/responses as one to /v1/chat/completions. Thread: loop. */
#ifndef RP_SERVER_RESPONSES_REQUEST_H
#define RP_SERVER_RESPONSES_REQUEST_H

#include "server/http/http_error.h"

#include <jansson.h>

/* The request's `input` as a new list of items, after `before` (a list, or NULL: none); the items
 * are shared. NULL with *error. */
json_t *rp_responses_items(json_t *request, json_t *before, struct rp_http_error *error);

/* late_system: chat_build.h. *out_names: an object of the tools whose names were changed, because
 * they are in a namespace: {name in the chat: {"namespace", "name"}}. The caller owns both. False
 * with *error. */
bool rp_responses_to_chat(json_t *request, json_t *items, bool late_system, json_t **out_chat,
                          json_t **out_names, struct rp_http_error *error);

/* Reasoning in `encrypted_content`: its text in base64, which only this server reads back. */
json_t *rp_responses_pack_reasoning(const char *text, size_t len);
json_t *rp_responses_unpack_reasoning(const json_t *packed); /* NULL: of another server */

#endif
