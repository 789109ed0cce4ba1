/* response_replay.h - the events of a stored answer of /v1/responses. Thread: any. */
#ifndef RP_SERVER_RESPONSE_REPLAY_H
#define RP_SERVER_RESPONSE_REPLAY_H

#include "base/buffer.h"

/* Appends the events of the stream of an answer, whose object is `body`, from sequence number
 * `from` on, as server-sent events. They are those of the stream that made it, except that each
 * text is one delta. Takes time and memory in proportion to the body. out->failed: no memory. */
void rp_response_replay(const char *body, size_t len, uint64_t from, struct rp_buffer *out);

#endif
