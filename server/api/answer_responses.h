/* answer_responses.h - what the routes of /v1/responses and their answers share. Thread: loop. */
#ifndef RP_SERVER_ANSWER_RESPONSES_H
#define RP_SERVER_ANSWER_RESPONSES_H

#include "base/buffer.h"

struct rp_answer;

/* The member of the chat request, next to those of a chat, with what the answer needs of the
 * client's request: {"request", "names", "items", "store"}. The rest as in responses_request.h. */
#define RP_RESPONSES_ORIGIN ""

/* The response object of an answer in progress that is being cancelled. */
void rp_answer_responses_cancelled(const struct rp_answer *answer, struct rp_buffer *out);

#endif
