/* server_keys.h - per-key concurrency limits, and reloading keys at run time. Thread: loop. */
#ifndef RP_SERVER_SERVER_KEYS_H
#define RP_SERVER_SERVER_KEYS_H

#include "server/server_internal.h"

struct rp_http_error;

/* Counts one more request for this key (-1: no key). False with *error: the key is at its limit. */
bool rp_server_key_take(struct rp_server *server, int32_t key, struct rp_http_error *error);
void rp_server_key_give(struct rp_server *server, int32_t key);
/* Salt that separates the key's pages in the prefix cache from those of other keys; 0: no key. */
uint64_t rp_server_key_salt(const struct rp_server *server, int32_t key);
/* The key's name, "" if it has none. */
const char *rp_server_key_name(const struct rp_server *server, int32_t key);

/* Reads the keys again. On failure the old keys stay in force. Requests in progress continue, also
 * those of removed keys. */
void rp_server_reload_keys(struct rp_server *server);

#endif
