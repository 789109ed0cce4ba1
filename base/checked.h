/* checked.h - size arithmetic that says when it overflows. Used for every size that a file or a
 * client can influence: true means overflow (as with __builtin_*_overflow), *out is then not to be
 * used. */
#ifndef RP_BASE_CHECKED_H
#define RP_BASE_CHECKED_H

#include "base/base.h"

static inline bool rp_add_overflow(size_t a, size_t b, size_t *out) {
    return __builtin_add_overflow(a, b, out);
}

static inline bool rp_mul_overflow(size_t a, size_t b, size_t *out) {
    return __builtin_mul_overflow(a, b, out);
}

/* Rounds a up to a multiple of align, a power of two. */
static inline bool rp_align_overflow(size_t a, size_t align, size_t *out) {
    size_t sum;
    if (__builtin_add_overflow(a, align - 1, &sum))
        return true;
    *out = sum & ~(align - 1);
    return false;
}

#endif
