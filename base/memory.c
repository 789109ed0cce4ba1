#include "base/memory.h"

#include "base/checked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096, TOUCH_BYTES = 64 << 10 };

static _Atomic uint64_t alloc_count;
static _Atomic uint64_t alloc_fail_at;

/* True when the test hook wants this allocation to fail. */
static bool must_fail(void) {
    uint64_t n = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&alloc_fail_at, memory_order_relaxed);
    return RP_UNLIKELY(at != 0 && n == at);
}

void rp_alloc_fail_at(uint64_t n) {
    uint64_t now = atomic_load(&alloc_count);
    atomic_store(&alloc_fail_at, n == 0 ? 0 : now + n);
}

uint64_t rp_alloc_count(void) { return atomic_load_explicit(&alloc_count, memory_order_relaxed); }

void *rp_alloc(size_t size) { return must_fail() ? NULL : malloc(size ? size : 1); }

/* The system gives large blocks without pages. */
static void touch_pages(volatile char *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE_BYTES)
        block[at] = 0;
}

void *rp_calloc(size_t count, size_t size) {
    void *block = must_fail() ? NULL : calloc(count ? count : 1, size ? size : 1);
    if (block && count * size >= TOUCH_BYTES)
        touch_pages(block, count * size);
    return block;
}

void *rp_realloc(void *ptr, size_t size) {
    return must_fail() ? NULL : realloc(ptr, size ? size : 1);
}

char *rp_strndup(const char *text, size_t len) {
    char *copy = rp_alloc(len + 1);
    if (copy) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}

char *rp_strdup(const char *text) { return rp_strndup(text, strlen(text)); }

void rp_free(void *ptr) { free(ptr); }

void *rp_alloc_aligned(size_t size, size_t align) {
    /* One huge page is 2 MiB on the machines we know; below that the advice is useless. */
    const size_t huge = (size_t)2 << 20;
    size_t rounded;
    if (must_fail())
        return NULL;
    if (size >= huge && align < huge)
        align = huge;
    if (rp_align_overflow(size ? size : 1, align, &rounded))
        return NULL;
    void *ptr = aligned_alloc(align, rounded);
#ifdef MADV_HUGEPAGE
    if (ptr && rounded >= huge)
        (void)madvise(ptr, rounded, MADV_HUGEPAGE); /* advice only: failure changes nothing */
#endif
    return ptr;
}

void rp_free_aligned(void *ptr) { free(ptr); }

struct rp_arena_block {
    struct rp_arena_block *next;
    size_t size;
    size_t used;
    size_t pad; /* keeps data 16-byte aligned */
    unsigned char data[];
};

void *rp_arena_alloc(struct rp_arena *arena, size_t size) {
    size_t need, total;
    if (rp_align_overflow(size ? size : 1, 16, &need) ||
        rp_add_overflow(arena->used_bytes, need, &total))
        return NULL;
    if (arena->limit_bytes && total > arena->limit_bytes)
        return NULL;
    struct rp_arena_block *block = arena->head;
    if (!block || block->size - block->used < need) {
        size_t size_min = block ? RP_MIN(block->size * 2, (size_t)1 << 20) : 4096;
        size_t block_size = RP_MAX(need, size_min), bytes;
        if (rp_add_overflow(block_size, sizeof *block, &bytes))
            return NULL;
        struct rp_arena_block *fresh = rp_alloc(bytes);
        if (!fresh)
            return NULL;
        fresh->next = block;
        fresh->size = block_size;
        fresh->used = 0;
        arena->head = block = fresh;
    }
    void *ptr = block->data + block->used;
    block->used += need;
    arena->used_bytes = total;
    return memset(ptr, 0, need);
}

void *rp_arena_calloc(struct rp_arena *arena, size_t count, size_t size) {
    size_t bytes;
    return rp_mul_overflow(count, size, &bytes) ? NULL : rp_arena_alloc(arena, bytes);
}

char *rp_arena_strndup(struct rp_arena *arena, const char *text, size_t len) {
    size_t bytes;
    if (rp_add_overflow(len, 1, &bytes))
        return NULL;
    char *copy = rp_arena_alloc(arena, bytes);
    if (copy)
        memcpy(copy, text, len);
    return copy;
}

void rp_arena_reset(struct rp_arena *arena) {
    struct rp_arena_block *keep = arena->head;
    if (keep) {
        struct rp_arena_block *block = keep->next;
        while (block) {
            struct rp_arena_block *next = block->next;
            rp_free(block);
            block = next;
        }
        keep->next = NULL;
        keep->used = 0;
    }
    arena->used_bytes = 0;
}

void rp_arena_deinit(struct rp_arena *arena) {
    rp_arena_reset(arena);
    rp_free(arena->head);
    arena->head = NULL;
}
