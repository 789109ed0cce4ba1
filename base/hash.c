#include "base/hash.h"

#include <sys/random.h>
#include <xxhash.h>

uint64_t rp_hash64(const void *bytes, size_t len, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, len, seed);
}

struct rp_hash128 rp_hash128_chain(struct rp_hash128 previous, uint64_t key, const void *bytes,
                                   size_t len) {
    /* The digest of the new bytes is folded with the previous one by hashing both together, so that
     * equal pages after different beginnings differ. */
    XXH128_hash_t fresh = XXH3_128bits_withSeed(bytes, len, key);
    uint64_t both[4] = {previous.low, previous.high, fresh.low64, fresh.high64};
    XXH128_hash_t chained = XXH3_128bits_withSeed(both, sizeof both, key);
    return (struct rp_hash128){.low = chained.low64, .high = chained.high64};
}

bool rp_random_fill(void *out, size_t len) {
    unsigned char *at = out;
    while (len > 0) {
        ssize_t got = getrandom(at, len, 0);
        if (got <= 0)
            return false;
        at += got;
        len -= (size_t)got;
    }
    return true;
}
