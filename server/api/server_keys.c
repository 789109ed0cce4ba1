#include "server/api/server_keys.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/api/completion_internal.h"

#include <inttypes.h>
#include <string.h>

/* 429 when it may succeed later, 400 when the request alone is larger than the limit. */
static bool exceeds(struct rp_server *server, uint64_t limit, uint64_t wanted, const char *what,
                    struct rp_http_error *error) {
    rp_counter_add(&server->metrics.rejected[RP_REJECTED_KEY_LIMIT], 1);
    if (wanted > limit)
        return rp_http_error_set(error, 400, NULL, "key_limit",
                                 "this request needs %" PRIu64 " %s, this API key may have %" PRIu64
                                 " at a time",
                                 wanted, what, limit);
    return rp_http_error_set(error, 429, NULL, "key_limit",
                             "this API key may have %" PRIu64 " %s at a time, try again later",
                             limit, what);
}

bool rp_server_key_take(struct rp_server *server, int32_t key, uint32_t answers,
                        struct rp_http_error *error) {
    if (key < 0)
        return true;
    uint32_t limit = server->config.auth->keys[key].limit;
    if (limit && (uint64_t)server->key_open[key] + answers > limit)
        return exceeds(server, limit, answers, "answers", error);
    server->key_open[key] += answers;
    return true;
}

bool rp_server_key_take_tokens(struct rp_server *server, int32_t key, uint64_t tokens,
                               struct rp_http_error *error) {
    if (key < 0)
        return true;
    uint64_t limit = server->config.auth->keys[key].token_limit;
    if (limit && server->key_tokens[key] + tokens > limit)
        return exceeds(server, limit, tokens, "tokens", error);
    server->key_tokens[key] += tokens;
    return true;
}

void rp_server_key_give(struct rp_server *server, int32_t key, uint32_t answers, uint64_t tokens) {
    if (key < 0)
        return;
    RP_ASSERT(server->key_open[key] >= answers && server->key_tokens[key] >= tokens);
    server->key_open[key] -= answers;
    server->key_tokens[key] -= tokens;
}

uint64_t rp_conn_tenant(const struct rp_conn *conn) {
    /* The top bit keeps numbers of connections and digests of keys apart. */
    const uint64_t key_bit = (uint64_t)1 << 63;
    return conn->key_index < 0 ? conn->number
                               : rp_server_key_salt(conn->server, conn->key_index) | key_bit;
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
    uint64_t tokens[RP_KEYS_MAX] = {0};
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
        if (c->key >= 0) {
            open[c->key] += c->choice_count;
            tokens[c->key] += c->key_tokens;
        }
    }
    memcpy(server->key_open, open, sizeof open);
    memcpy(server->key_tokens, tokens, sizeof tokens);
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
