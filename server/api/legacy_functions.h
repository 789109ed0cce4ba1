/* legacy_functions.h - OpenAI's older form of calls in a conversation: the assistant's
 * `function_call`, and its result in a message of the role `function`. Thread: loop. */
#ifndef RP_SERVER_LEGACY_FUNCTIONS_H
#define RP_SERVER_LEGACY_FUNCTIONS_H

#include "server/http/http_error.h"

#include <jansson.h>

/* Turns them into tool_calls and messages of the role `tool`, in place, so that templates and
 * checks have one form to know. Values of other types are left to the checks of messages. False
 * with *error. */
bool rp_legacy_functions_convert(json_t *messages, struct rp_http_error *error);

#endif
