/* hash.h - the two hashes of the project, both xxHash's XXH3.
 * Neither is cryptographic: users of a hash as a key compare the hashed data on a hit. */
#ifndef RP_BASE_HASH_H
#define RP_BASE_HASH_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_hash128 {
    uint64_t low, high;
};

uint64_t rp_hash64(const void *bytes, size_t len, uint64_t seed);
/* Keyed and chained: `previous` is the hash of what came before (zero at the start), `key` a secret
 * of this process (rp_random_fill). */
struct rp_hash128 rp_hash128_chain(struct rp_hash128 previous, uint64_t key, const void *bytes,
                                   size_t len);

static inline bool rp_hash128_equal(struct rp_hash128 a, struct rp_hash128 b) {
    return a.low == b.low && a.high == b.high;
}

/* Fills from the kernel's random source; false when there is none. */
bool rp_random_fill(void *out, size_t len);

#ifdef __cplusplus
}
#endif
#endif
