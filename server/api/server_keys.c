#include "server/api/server_keys.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/api/completion_internal.h"

#include <inttypes.h>
#include <string.h>

bool rp_server_key_take(struct rp_server *server, int32_t key, struct rp_http_error *error) {
    if (key < 0)
        return true;
    uint32_t limit = server->config.auth->keys[key].limit;
    if (limit && server->key_open[key] >= limit) {
        rp_counter_add(&server->metrics.rejected[RP_REJECTED_KEY_LIMIT], 1);
        return rp_http_error_set(
            error, 429, NULL, "key_limit",
            "this API key may have %" PRIu32 " concurrent requests, try again later", limit);
    }
    server->key_open[key]++;
    return true;
}

void rp_server_key_give(struct rp_server *server, int32_t key) {
    if (key < 0)
        return;
    RP_ASSERT(server->key_open[key] > 0);
    server->key_open[key]--;
}

uint64_t rp_server_key_salt(const struct rp_server *server, int32_t key) {
    if (key < 0)
        return 0;
    /* Hash of the key itself, so that the order of keys in the file has no effect. */
    const struct rp_auth_key *entry = &server->config.auth->keys[key];
    uint64_t salt = rp_hash64(entry->digest, sizeof entry->digest, server->id_secret);
    return salt ? salt : 1;
}

const char *rp_server_key_name(const struct rp_server *server, int32_t key) {
    return key < 0 ? "" : server->config.auth->keys[key].name;
}

/* Maps stored key indices to the new set. */
static void move_indices(struct rp_server *server, const struct rp_auth *fresh) {
    const struct rp_auth *old = server->config.auth;
    uint32_t open[RP_KEYS_MAX] = {0};
    for (struct rp_conn *conn = server->conns, *next; conn; conn = next) {
        next = conn->next;
        bool had_key = conn->key_index >= 0;
        conn->key_index = rp_auth_same(old, conn->key_index, fresh);
        conn->revoked |= had_key && conn->key_index < 0;
        if (conn->revoked && conn->state == RP_CONN_BODY) {
            rp_conn_abandon_request(conn);
            rp_conn_fail_revoked(conn);
        }
    }
    for (struct rp_completion *c = server->completions; c; c = c->next) {
        c->key = rp_auth_same(old, c->key, fresh);
        if (c->key >= 0)
            open[c->key]++;
    }
    memcpy(server->key_open, open, sizeof open);
}

void rp_server_reload_keys(struct rp_server *server) {
    struct rp_error err = {0};
    struct rp_auth *fresh = rp_calloc(1, sizeof *fresh);
    int status = fresh ? server->config.reload_keys(server->config.reload_ctx, fresh, &err)
                       : rp_error_set(&err, RP_STATUS_NO_MEMORY, "no memory");
    if (status == RP_OK && fresh->count == 0)
        status = rp_error_set(&err, RP_STATUS_FORMAT, "no key is configured");
    if (status == RP_OK) {
        move_indices(server, fresh);
        *server->config.auth = *fresh;
        rp_log(RP_LOG_INFO, "server: API keys reloaded count=%" PRIu32, fresh->count);
    } else {
        rp_log(RP_LOG_ERROR, "server: API keys not reloaded, the old ones stay in force: %s",
               err.text);
    }
    if (fresh)
        rp_auth_deinit(fresh);
    rp_free(fresh);
}
