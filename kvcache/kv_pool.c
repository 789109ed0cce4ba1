#include "kvcache/kv_pool.h"

#include "base/memory.h"

#include <string.h>

const char *const rp_kv_states[RP_KV_STATE_COUNT] = {[RP_KV_RESERVED] = "reserved",
                                                     [RP_KV_FREE] = "free",
                                                     [RP_KV_HELD] = "held",
                                                     [RP_KV_CACHED] = "cached",
                                                     [RP_KV_PENDING] = "pending"};

/* Its word of the map. */
static void show_page(struct rp_kv_pool *pool, uint32_t page) {
    const struct rp_kv_page *entry = &pool->pages[page];
    atomic_store_explicit(&pool->map[page], entry->state | entry->refs << RP_KV_MAP_STATE_BITS,
                          memory_order_relaxed);
}

/* Takes a page out of the list of its state. */
static void unlink_page(struct rp_kv_pool *pool, uint32_t page) {
    struct rp_kv_page *entry = &pool->pages[page];
    struct rp_kv_list *list = &pool->lists[entry->state];
    if (entry->state != RP_KV_HELD) {
        if (entry->previous == RP_KV_NO_PAGE)
            list->first = entry->next;
        else
            pool->pages[entry->previous].next = entry->next;
        if (entry->next == RP_KV_NO_PAGE)
            list->last = entry->previous;
        else
            pool->pages[entry->next].previous = entry->previous;
    }
    pool->counts[entry->state]--;
}

/* Puts a page, which is in no list, at the end of a state's list. */
static void link_page(struct rp_kv_pool *pool, uint32_t page, enum rp_kv_state state) {
    struct rp_kv_page *entry = &pool->pages[page];
    struct rp_kv_list *list = &pool->lists[state];
    entry->state = (uint8_t)state;
    entry->next = entry->previous = RP_KV_NO_PAGE;
    if (state != RP_KV_HELD) {
        entry->previous = list->last;
        if (list->last == RP_KV_NO_PAGE)
            list->first = page;
        else
            pool->pages[list->last].next = page;
        list->last = page;
    }
    pool->counts[state]++;
}

static void move_page(struct rp_kv_pool *pool, uint32_t page, enum rp_kv_state state) {
    enum rp_kv_state from = (enum rp_kv_state)pool->pages[page].state;
    unlink_page(pool, page);
    link_page(pool, page, state);
    show_page(pool, page);
    if (pool->note)
        pool->note(pool->note_ctx, page, from, state);
}

int rp_kv_pool_init(struct rp_kv_pool *pool, uint32_t page_count, uint32_t reserved_count,
                    struct rp_error *err) {
    memset(pool, 0, sizeof *pool);
    if (page_count == RP_KV_NO_PAGE || reserved_count > page_count)
        return rp_error_set(err, RP_STATUS_INVALID, "a pool of %u pages, %u of them reserved",
                            page_count, reserved_count);
    pool->pages = rp_calloc(page_count, sizeof *pool->pages);
    pool->map = rp_calloc(page_count, sizeof *pool->map);
    if (!pool->pages || !pool->map)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory to keep track of %u pages",
                            page_count);
    pool->page_count = page_count;
    pool->reserved_count = reserved_count;
    for (uint32_t state = 0; state < RP_KV_STATE_COUNT; state++)
        pool->lists[state] = (struct rp_kv_list){RP_KV_NO_PAGE, RP_KV_NO_PAGE};
    for (uint32_t page = 0; page < page_count; page++)
        link_page(pool, page, page < reserved_count ? RP_KV_RESERVED : RP_KV_FREE);
    for (uint32_t page = 0; page < page_count; page++)
        show_page(pool, page);
    return RP_OK;
}

void rp_kv_pool_deinit(struct rp_kv_pool *pool) {
    rp_free(pool->pages);
    rp_free(pool->map);
    memset(pool, 0, sizeof *pool);
}

uint32_t rp_kv_pool_try_alloc(struct rp_kv_pool *pool) {
    if (pool->counts[RP_KV_FREE] == 0)
        return RP_KV_NO_PAGE;
    uint32_t page = pool->lists[RP_KV_FREE].first;
    move_page(pool, page, RP_KV_HELD);
    pool->pages[page].refs = 1;
    pool->pages[page].fence = 0;
    show_page(pool, page);
    return page;
}

void rp_kv_pool_acquire(struct rp_kv_pool *pool, uint32_t page) {
    struct rp_kv_page *entry = &pool->pages[page];
    RP_ASSERT_CMP(page, <, pool->page_count);
    RP_ASSERT(entry->state == RP_KV_HELD || entry->state == RP_KV_CACHED ||
              entry->state == RP_KV_PENDING);
    if (entry->state != RP_KV_HELD)
        move_page(pool, page, RP_KV_HELD);
    entry->refs++;
    show_page(pool, page);
}

/* A page without references whose fence is retired. */
static void settle_page(struct rp_kv_pool *pool, uint32_t page) {
    move_page(pool, page, pool->pages[page].retained ? RP_KV_CACHED : RP_KV_FREE);
}

void rp_kv_pool_release(struct rp_kv_pool *pool, uint32_t page, uint64_t fence) {
    struct rp_kv_page *entry = &pool->pages[page];
    RP_ASSERT_CMP(page, <, pool->page_count);
    RP_ASSERT_CMP(entry->refs, >, 0);
    /* The largest of all its holders' fences counts, whoever lets go last. */
    entry->fence = RP_MAX(entry->fence, fence);
    entry->refs--;
    show_page(pool, page);
    if (entry->refs > 0)
        return;
    if (entry->fence > pool->retired_step)
        move_page(pool, page, RP_KV_PENDING);
    else
        settle_page(pool, page);
}

void rp_kv_pool_retire(struct rp_kv_pool *pool, uint64_t step) {
    RP_ASSERT(step >= pool->retired_step);
    pool->retired_step = step;
    uint32_t page = pool->lists[RP_KV_PENDING].first;
    while (page != RP_KV_NO_PAGE) {
        uint32_t next = pool->pages[page].next;
        if (pool->pages[page].fence <= step)
            settle_page(pool, page);
        page = next;
    }
}

void rp_kv_pool_keep(struct rp_kv_pool *pool, uint32_t page) {
    RP_ASSERT_CMP(pool->pages[page].refs, >, 0);
    pool->pages[page].retained = true;
}

void rp_kv_pool_forget(struct rp_kv_pool *pool, uint32_t page) {
    pool->pages[page].retained = false;
    if (pool->pages[page].state == RP_KV_CACHED)
        move_page(pool, page, RP_KV_FREE);
}

uint32_t rp_kv_pool_oldest_cached(const struct rp_kv_pool *pool) {
    return pool->lists[RP_KV_CACHED].first;
}

static const char *check_page(const struct rp_kv_pool *pool, uint32_t page) {
    const struct rp_kv_page *entry = &pool->pages[page];
    bool reserved = page < pool->reserved_count;
    if (reserved != (entry->state == RP_KV_RESERVED))
        return "a reserved page is in use, or a page that is not is reserved";
    if ((entry->refs > 0) != (entry->state == RP_KV_HELD))
        return "a page is held without references, or referenced without being held";
    if (entry->state == RP_KV_PENDING && entry->fence <= pool->retired_step)
        return "a page waits for a step that is over";
    if (entry->retained && (reserved || entry->state == RP_KV_FREE))
        return "a free page is marked as retained";
    if (entry->retained && entry->dirty)
        return "a page that may hold NaN is retained for reuse";
    if (entry->state == RP_KV_CACHED && !entry->retained)
        return "a page is cached and holds nothing";
    return NULL;
}

const char *rp_kv_pool_check(const struct rp_kv_pool *pool, const uint32_t *expected_refs) {
    uint64_t sum = 0, listed = 0;
    for (uint32_t state = 0; state < RP_KV_STATE_COUNT; state++) {
        uint32_t previous = RP_KV_NO_PAGE, count = 0;
        sum += pool->counts[state];
        if (state == RP_KV_HELD)
            continue;
        for (uint32_t page = pool->lists[state].first; page != RP_KV_NO_PAGE;
             page = pool->pages[page].next) {
            if (pool->pages[page].state != state || pool->pages[page].previous != previous ||
                ++count > pool->counts[state])
                return "a list of pages is broken";
            previous = page;
        }
        if (count != pool->counts[state] || pool->lists[state].last != previous)
            return "a list of pages has lost one";
        listed += count;
    }
    if (sum != pool->page_count || listed + pool->counts[RP_KV_HELD] != sum)
        return "free + held + cached + pending is not the number of pages";
    for (uint32_t page = 0; page < pool->page_count; page++) {
        const char *broken = check_page(pool, page);
        if (broken)
            return broken;
        if (expected_refs && pool->pages[page].refs != expected_refs[page])
            return "a page's references are not those of the tables that name it";
    }
    return NULL;
}
