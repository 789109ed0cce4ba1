/* messages_request.h - a request to /v1/messages (Anthropic's API) as one to /v1/chat/completions.
 * Thread: loop. */
#ifndef RP_SERVER_MESSAGES_REQUEST_H
#define RP_SERVER_MESSAGES_REQUEST_H

#include "server/http/http_error.h"

#include <jansson.h>

/* late_system: chat_build.h. counting: only the prompt matters, so max_tokens may be absent.
 * *out_chat: owned by the caller. False with *error. */
bool rp_messages_to_chat(json_t *request, bool late_system, bool counting, json_t **out_chat,
                         struct rp_http_error *error);

#endif
