/* chat_values.h - JSON as values of a chat template. */
#ifndef RP_SERVER_CHAT_VALUES_H
#define RP_SERVER_CHAT_VALUES_H

#include "text/template/chat_template.h"

#include <jansson.h>

/* As deep as the tree is, which its reader bounds. NULL when memory or the limit of values is out.
 * Any thread. */
struct rp_chat_value *rp_chat_values_from_json(struct rp_chat_values *values, const json_t *json);

#endif
