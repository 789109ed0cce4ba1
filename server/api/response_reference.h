/* response_reference.h - items of a request to /v1/responses that only name an item of a stored
 * answer: {"type":"item_reference","id":"msg_.."}. Thread: loop. */
#ifndef RP_SERVER_RESPONSE_REFERENCE_H
#define RP_SERVER_RESPONSE_REFERENCE_H

#include "server/api/response_store.h"
#include "server/http/http_error.h"

/* Replaces them in the request's `input` by the items, which are shared. An item may be named once,
 * so that a small request cannot become a conversation much larger than the store. False with
 * *error. */
bool rp_response_references_resolve(json_t *request, struct rp_response_store *store,
                                    uint64_t owner, struct rp_http_error *error);

#endif
