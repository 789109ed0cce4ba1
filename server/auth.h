/* auth.h - API keys: from --api-key-file, --api-key or the environment.
 * Comparing takes the same time whatever the key is; only the length of what the client sent shows.
 * Keys are never logged. */
#ifndef RP_SERVER_AUTH_H
#define RP_SERVER_AUTH_H

#include "base/status.h"

#define RP_KEYS_MAX      64
#define RP_KEY_BYTES_MAX 256

struct rp_auth {
    struct rp_auth_key {
        char bytes[RP_KEY_BYTES_MAX];
        size_t len;
    } keys[RP_KEYS_MAX];
    uint32_t count; /* 0: no key is asked for */
};

/* 1 to 256 visible ASCII characters. */
int rp_auth_add(struct rp_auth *auth, const char *key, size_t len,
                struct rp_error *err) RP_MUST_USE;
/* One key per line; empty lines and lines that begin with '#' are skipped. The file must not be readable
 * by group or others. */
int rp_auth_read_file(struct rp_auth *auth, const char *path, struct rp_error *err) RP_MUST_USE;
/* Of the value of an Authorization field (NULL: none). Index of the key, or -1. */
int32_t rp_auth_check(const struct rp_auth *auth, const char *authorization);
/* Forgets the keys. */
void rp_auth_deinit(struct rp_auth *auth);

#endif
