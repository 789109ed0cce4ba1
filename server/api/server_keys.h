/* server_keys.h - what each API key has in work, and new keys while the server runs. Thread:
 * loop. */
#ifndef RP_SERVER_SERVER_KEYS_H
#define RP_SERVER_SERVER_KEYS_H

#include "server/server_internal.h"

struct rp_http_error;

/* A place for one more request of this key (-1: no key). False with *error: it has its share
 * already. */
bool rp_server_key_take(struct rp_server *server, int32_t key, struct rp_http_error *error);
void rp_server_key_give(struct rp_server *server, int32_t key);
/* What separates the key's pages in the prefix cache from those of others; 0: no key. */
uint64_t rp_server_key_salt(const struct rp_server *server, int32_t key);
/* The key's name; "": it has none. */
const char *rp_server_key_name(const struct rp_server *server, int32_t key);

/* Reads the keys again. Where that fails the old ones stay. Requests in work go on, also those of
 * keys that are gone. */
void rp_server_reload_keys(struct rp_server *server);

#endif
