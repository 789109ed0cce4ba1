/* memory.h - the only door to malloc, and arenas that are freed in one call.
 * Thread: rp_alloc and rp_free any; an arena belongs to one thread at a time.
 * Errors: NULL when memory is out. Tests fail the n-th allocation with rp_alloc_fail_at. */
#ifndef RP_BASE_MEMORY_H
#define RP_BASE_MEMORY_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* size 0 gives a valid pointer to nothing. rp_calloc checks count * size for overflow and touches
 * the pages of large blocks, so that the first use of a planned buffer costs no page fault and the
 * resident memory of a server does not rise for hours. */
void *rp_alloc(size_t size) RP_MUST_USE;
void *rp_calloc(size_t count, size_t size) RP_MUST_USE;
void *rp_realloc(void *ptr, size_t size) RP_MUST_USE;
char *rp_strdup(const char *text) RP_MUST_USE;
char *rp_strndup(const char *text, size_t len) RP_MUST_USE;
void rp_free(void *ptr);

/* Aligned to `align` (a power of two, at least 16); free with rp_free_aligned. Large blocks ask the
 * kernel for huge pages: weights are streamed, and page-table misses cost bandwidth. */
void *rp_alloc_aligned(size_t size, size_t align) RP_MUST_USE;
void rp_free_aligned(void *ptr);

/* Test hook: the n-th allocation from now on fails (n = 1 is the next one); 0 turns it off. */
void rp_alloc_fail_at(uint64_t n);
/* Allocations since the process began, all threads. Shows that nothing allocates after ready. */
uint64_t rp_alloc_count(void);

/* A bump allocator over a chain of blocks. Zero-initialized is valid and empty. Every result is
 * zeroed and 16-byte aligned, and lives until rp_arena_reset or rp_arena_deinit. `limit_bytes` 0
 * means no limit; an allocation past it gives NULL. */
struct rp_arena_block;
struct rp_arena {
    struct rp_arena_block *head;
    size_t used_bytes;
    size_t limit_bytes;
};

void *rp_arena_alloc(struct rp_arena *arena, size_t size) RP_MUST_USE;
void *rp_arena_calloc(struct rp_arena *arena, size_t count, size_t size) RP_MUST_USE;
char *rp_arena_strndup(struct rp_arena *arena, const char *text, size_t len) RP_MUST_USE;
/* Frees all but one block, which is kept for the next use. */
void rp_arena_reset(struct rp_arena *arena);
void rp_arena_deinit(struct rp_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
