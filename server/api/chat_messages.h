/* chat_messages.h - the variables of a chat template from a request: messages, tools, switches.
 * Any thread. */
#ifndef RP_SERVER_CHAT_MESSAGES_H
#define RP_SERVER_CHAT_MESSAGES_H

#include "server/api/params.h"
#include "text/template/chat_template.h"

/* The function or the custom tool of a call; its arguments or its input (NULL: none). */
const json_t *rp_chat_called(const json_t *call);
const json_t *rp_chat_written_arguments(const json_t *function);
/* The text of a content part. */
const json_t *rp_chat_part_text(const json_t *part);

/* The request has passed rp_chat_prompt_check. The pool reports a lack of memory. */
struct rp_chat_value *rp_chat_variables(struct rp_chat_values *values,
                                        const struct rp_completion_params *params,
                                        const struct rp_serving *serving);

#endif
