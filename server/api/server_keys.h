/* server_keys.h - per-key limits, who a request is charged to, and reloading keys at run time.
 * Thread: loop. */
#ifndef RP_SERVER_SERVER_KEYS_H
#define RP_SERVER_SERVER_KEYS_H

#include "server/server_internal.h"

struct rp_conn;
struct rp_http_error;

/* Charges answers to this key (-1: no key), and later the tokens of these answers and their
 * prompts. False with *error: the key's limit would be exceeded, and nothing is charged. */
bool rp_server_key_take(struct rp_server *server, int32_t key, uint32_t answers,
                        struct rp_http_error *error);
bool rp_server_key_take_tokens(struct rp_server *server, int32_t key, uint64_t tokens,
                               struct rp_http_error *error);
void rp_server_key_give(struct rp_server *server, int32_t key, uint32_t answers, uint64_t tokens);
/* Whose fair share a request of this connection belongs to: its key's, else its own. Not 0. */
uint64_t rp_conn_tenant(const struct rp_conn *conn);
/* Salt that separates the key's pages in the prefix cache from those of other keys; 0: no key. */
uint64_t rp_server_key_salt(const struct rp_server *server, int32_t key);
/* The key's name, "" if it has none. */
const char *rp_server_key_name(const struct rp_server *server, int32_t key);

/* Reads the keys again. On failure the old keys stay in force. Requests in progress continue, also
 * those of removed keys. */
void rp_server_reload_keys(struct rp_server *server);

#endif
