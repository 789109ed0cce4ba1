/* response_store.h - answers of /v1/responses that clients may refer to or read again. The least
 * recently used are dropped when the limit on bytes is reached. An answer belongs to the API key
 * that it was made with; for other keys it does not exist. Thread: loop. */
#ifndef RP_SERVER_RESPONSE_STORE_H
#define RP_SERVER_RESPONSE_STORE_H

#include "base/base.h"

#include <jansson.h>

struct rp_response_store;

struct rp_stored_response {
    const char *id;
    json_t *items;      /* the conversation: input, then output */
    size_t input_count; /* of the items */
    const char *body;   /* the response object, as JSON */
    size_t len;
};

/* NULL: no memory. bytes_max 0: nothing is stored. */
struct rp_response_store *rp_response_store_create(uint64_t bytes_max);
void rp_response_store_destroy(struct rp_response_store *store); /* NULL is allowed */
bool rp_response_store_is_on(const struct rp_response_store *store);
uint64_t rp_response_store_bytes(const struct rp_response_store *store);

/* Copies everything but the items, which are shared. One that is larger than the limit, or for
 * which there is no memory, is not stored. */
void rp_response_store_put(struct rp_response_store *store, uint64_t owner,
                           const struct rp_stored_response *response);
/* Valid until the next put or delete. NULL: there is none. */
const struct rp_stored_response *rp_response_store_find(struct rp_response_store *store,
                                                        uint64_t owner, const char *id, size_t len);
bool rp_response_store_delete(struct rp_response_store *store, uint64_t owner, const char *id,
                              size_t len);

#endif
