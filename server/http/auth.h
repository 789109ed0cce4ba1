/* auth.h - API keys: from --api-key-file, --api-key or the environment. Each key is a tenant with a
 * name and limits. Only SHA-256 digests are kept and compared, in constant time. Keys are never
 * logged; names are. */
#ifndef RP_SERVER_AUTH_H
#define RP_SERVER_AUTH_H

#include "base/status.h"

#define RP_KEYS_MAX         64
#define RP_KEY_BYTES_MAX    256
#define RP_KEY_DIGEST_BYTES 32
#define RP_KEY_NAME_MAX     32

struct rp_auth {
    struct rp_auth_key {
        unsigned char digest[RP_KEY_DIGEST_BYTES];
        char name[RP_KEY_NAME_MAX + 1]; /* "" when the file gives none */
        uint32_t limit;                 /* concurrent answers allowed; 0: unlimited */
        uint64_t token_limit; /* tokens of these answers and their prompts; 0: unlimited */
    } keys[RP_KEYS_MAX];
    uint32_t count; /* 0: no key is required */
};

/* Adds a key of 1 to 256 visible ASCII characters. */
int rp_auth_add(struct rp_auth *auth, const char *key, size_t len,
                struct rp_error *err) RP_MUST_USE;
/* One key per line, followed in any order by name=NAME (1 to 32 letters, digits, "_", "-", ".";
 * unique), limit=N (answers) and tokens=N, separated by spaces or tabs; empty lines and lines
 * starting with '#' are skipped. The file must not be readable by group or others. */
int rp_auth_read_file(struct rp_auth *auth, const char *path, struct rp_error *err) RP_MUST_USE;
/* Looks up the value of an Authorization header (NULL: none). Returns the key's index, or -1. */
int32_t rp_auth_check(const struct rp_auth *auth, const char *authorization);
/* Looks up a key itself. */
int32_t rp_auth_check_key(const struct rp_auth *auth, const char *key);
/* Index of the same key in another set; -1 when it is absent or index is -1. */
int32_t rp_auth_same(const struct rp_auth *auth, int32_t index, const struct rp_auth *other);
/* Erases the digests. */
void rp_auth_deinit(struct rp_auth *auth);

#endif
