/* chat_prompt.h - renders chat messages to a prompt with the model's chat template.
 *
 * check is cheap and validates every member that is used; make renders and may run on any thread
 * while the tree is not modified. Client text is template input: special tokens in it are encoded
 * as plain text (chat_template.h). */
#ifndef RP_SERVER_CHAT_PROMPT_H
#define RP_SERVER_CHAT_PROMPT_H

#include "server/api/params.h"
#include "text/template/chat_template.h"

/* False with *error, which names the field. *out_work: estimated cost of make, in bytes. */
bool rp_chat_prompt_check(const struct rp_completion_params *params,
                          const struct rp_serving *serving, size_t *out_work,
                          struct rp_http_error *error);
/* work: from check; the template's budget grows with it. RP_OK with *out, which the caller frees
 * with rp_chat_prompt_deinit; otherwise *error is filled. */
int rp_chat_prompt_make(const struct rp_completion_params *params, const struct rp_serving *serving,
                        size_t work, struct rp_chat_prompt *out, struct rp_http_error *error);

#endif
