/* auth.h - API keys: from --api-key-file, --api-key or the environment. Each is a tenant with a
 * name and a share. Comparing takes the same time whatever the key is; only the length of what the
 * client sent shows. Keys are never logged; names are. */
#ifndef RP_SERVER_AUTH_H
#define RP_SERVER_AUTH_H

#include "base/status.h"

#define RP_KEYS_MAX      64
#define RP_KEY_BYTES_MAX 256
#define RP_KEY_NAME_MAX  32

struct rp_auth {
    struct rp_auth_key {
        char bytes[RP_KEY_BYTES_MAX];
        size_t len;
        char name[RP_KEY_NAME_MAX + 1]; /* "" when the file gives none */
        uint32_t limit;                 /* requests that may be in work at once; 0: any number */
    } keys[RP_KEYS_MAX];
    uint32_t count; /* 0: no key is asked for */
};

/* 1 to 256 visible ASCII characters. */
int rp_auth_add(struct rp_auth *auth, const char *key, size_t len,
                struct rp_error *err) RP_MUST_USE;
/* One key per line, then in any order name=NAME (1 to 32 letters, digits, "_", "-", "."; no two
 * keys have one) and limit=N, spaces or tabs between; empty lines and lines that begin with '#' are
 * skipped. The file must not be readable by group or others. */
int rp_auth_read_file(struct rp_auth *auth, const char *path, struct rp_error *err) RP_MUST_USE;
/* Looks up the value of an Authorization header (NULL: none). Index of the key, or -1. */
int32_t rp_auth_check(const struct rp_auth *auth, const char *authorization);
/* Whether both are the same. Looks at every byte of `given`, whatever the key holds; at most
 * RP_KEY_BYTES_MAX count. */
bool rp_auth_equal(const struct rp_auth_key *key, const char *given, size_t len);
/* Where another set has the same key; -1: nowhere, or index is. */
int32_t rp_auth_same(const struct rp_auth *auth, int32_t index, const struct rp_auth *other);
/* Forgets the keys. */
void rp_auth_deinit(struct rp_auth *auth);

#endif
