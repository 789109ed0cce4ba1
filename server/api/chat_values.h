/* chat_values.h - converts JSON to chat template values. */
#ifndef RP_SERVER_CHAT_VALUES_H
#define RP_SERVER_CHAT_VALUES_H

#include "text/template/chat_template.h"

#include <jansson.h>

/* Recurses as deep as the tree, whose parser limits the depth. NULL when memory or the limit on
 * values is exhausted. Any thread. */
struct rp_chat_value *rp_chat_values_from_json(struct rp_chat_values *values, const json_t *json);

#endif
