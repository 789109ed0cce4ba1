/* chat_prompt.h - the messages of a chat become the text that the model's template makes of them.
 *
 * check is quick and looks at every member that is used; make does the work and may run on any
 * thread, while nobody changes the tree. What a client wrote is input to the template: special
 * tokens in it stay text (chat_template.h). */
#ifndef RP_SERVER_CHAT_PROMPT_H
#define RP_SERVER_CHAT_PROMPT_H

#include "server/api/params.h"
#include "text/template/chat_template.h"

/* False with *error, which names the field. *out_work: bytes, as a measure of what make will
 * cost. */
bool rp_chat_prompt_check(const struct rp_completion_params *params,
                          const struct rp_chat_templates *templates, size_t *out_work,
                          struct rp_http_error *error);
/* RP_OK with *out, which the caller frees by rp_chat_prompt_deinit; else *error is the answer. */
int rp_chat_prompt_make(const struct rp_completion_params *params,
                        const struct rp_chat_templates *templates, struct rp_chat_prompt *out,
                        struct rp_http_error *error);

#endif
