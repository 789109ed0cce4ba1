/* response_replay.h - the events of a stored answer of /v1/responses. Thread: loop. */
#ifndef RP_SERVER_RESPONSE_REPLAY_H
#define RP_SERVER_RESPONSE_REPLAY_H

#include "base/buffer.h"
#include "server/api/response_store.h"

/* Appends the events of its stream from sequence number `from` on, as server-sent events. They are
 * those of the stream that made it, except that each text is one delta. out->failed: no memory. */
void rp_response_replay(const struct rp_stored_response *response, uint64_t from,
                        struct rp_buffer *out);

#endif
