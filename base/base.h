/* base.h - the few macros that every folder uses.
 * RP_ASSERT guards against errors of ours and stays on in release builds; what a client or a file
 * can cause is never an assertion but a status (status.h). */
#ifndef RP_BASE_BASE_H
#define RP_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RP_ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define RP_MIN(a, b)      ((a) < (b) ? (a) : (b))
#define RP_MAX(a, b)      ((a) > (b) ? (a) : (b))
#define RP_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
/* Rounds up to a multiple of `to`, a power of two. */
#define RP_ALIGN_UP(a, to) (((a) + ((to)-1)) & ~((size_t)(to)-1))

#if defined(__GNUC__)
#define RP_MUST_USE         __attribute__((warn_unused_result))
#define RP_PRINTF(fmt, arg) __attribute__((format(printf, fmt, arg)))
#define RP_NORETURN         __attribute__((noreturn))
#define RP_COLD             __attribute__((cold, noinline)) /* rare: its code lies apart */
#define RP_LIKELY(x)        __builtin_expect(!!(x), 1)
#define RP_UNLIKELY(x)      __builtin_expect(!!(x), 0)
#else
#define RP_MUST_USE
#define RP_PRINTF(fmt, arg)
#define RP_NORETURN
#define RP_COLD
#define RP_LIKELY(x)   (x)
#define RP_UNLIKELY(x) (x)
#endif

/* Cache line of every machine we run on; keeps the two ends of a ring apart. */
#define RP_CACHE_LINE 64

RP_NORETURN void rp_assert_fail(const char *file, int line, const char *expr);
RP_NORETURN void rp_assert_fail_cmp(const char *file, int line, const char *expr, long long left,
                                    long long right);

#define RP_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (RP_UNLIKELY(!(expr)))                                                                  \
            rp_assert_fail(__FILE__, __LINE__, #expr);                                             \
    } while (0)

/* Compares two integers and prints both when the comparison fails: RP_ASSERT_CMP(a, <=, b). */
#define RP_ASSERT_CMP(a, op, b)                                                                    \
    do {                                                                                           \
        long long rp_left = (long long)(a), rp_right = (long long)(b);                             \
        if (RP_UNLIKELY(!(rp_left op rp_right)))                                                   \
            rp_assert_fail_cmp(__FILE__, __LINE__, #a " " #op " " #b, rp_left, rp_right);          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
