#include "bench/random_pattern.h"

#include "base/memory.h"

unsigned char *rp_random_pattern(void) {
    unsigned char *pattern = rp_alloc_aligned(RP_RANDOM_PATTERN_BYTES, RP_CACHE_LINE);
    uint16_t *values = (uint16_t *)(void *)pattern;
    uint32_t state = 0x2545F491u;
    for (size_t i = 0; pattern && i < RP_RANDOM_PATTERN_BYTES / sizeof *values; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        /* Exponents as of uniform values; the last bit is 0, so that no byte is an FP8 NaN. */
        uint32_t exponent = 126u - (uint32_t)__builtin_clz(state | 0x100u);
        values[i] = (uint16_t)((state & 0x80u) << 8 | exponent << 7 | (state & 0x7Eu));
    }
    return pattern;
}

int rp_random_pattern_fill(const struct rp_backend *backend, struct rp_device *device, void *to,
                           const unsigned char *pattern, size_t bytes) {
    int status = RP_OK;
    for (size_t at = 0; at < bytes && status == RP_OK; at += RP_RANDOM_PATTERN_BYTES)
        status = backend->copy(device, (unsigned char *)to + at, pattern,
                               RP_MIN(RP_RANDOM_PATTERN_BYTES, bytes - at));
    return status;
}

int rp_random_pattern_alloc(const struct rp_backend *backend, struct rp_device *device,
                            const unsigned char *pattern, size_t bytes, unsigned char **out,
                            struct rp_error *err) {
    struct rp_device_memory memory;
    backend->memory(device, &memory);
    if (bytes > memory.free_bytes / 2 || !(*out = backend->alloc(device, bytes, RP_MEMORY_DEVICE)))
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "not enough memory for %zu bytes", bytes);
    return rp_random_pattern_fill(backend, device, *out, pattern, bytes);
}
