/* tsan.h - code that the thread sanitizer does not instrument, and annotations in place of it.
 *
 * It checks every load. In a GEMM's tile these are almost all loads of weights, which are written
 * before the threads that read them begin, and 32 bytes at a time cost it most (the streams of
 * tests/engine/test_engine.c ran for over 20 minutes instead of 3). So a tile is not instrumented,
 * and its caller declares once which inputs it reads; outputs are written by instrumented callers.
 * */
#ifndef RP_BASE_TSAN_H
#define RP_BASE_TSAN_H

#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
#define RP_TSAN_LEAVE_ALONE __attribute__((no_sanitize_thread))
void __tsan_read_range(void *begin, unsigned long bytes); /* of the sanitizer's runtime */
static inline void rp_tsan_reads(const void *begin, size_t bytes) {
    __tsan_read_range((void *)(size_t)begin, bytes);
}
#else
#define RP_TSAN_LEAVE_ALONE
static inline void rp_tsan_reads(const void *begin, size_t bytes) {
    (void)begin;
    (void)bytes;
}
#endif

#endif
