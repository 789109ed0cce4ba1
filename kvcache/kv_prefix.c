#include "kvcache/kv_prefix.h"

#include "base/checked.h"
#include "base/memory.h"

#include <string.h>

int rp_kv_prefix_init(struct rp_kv_prefix *prefix, struct rp_kv_pool *pool, uint32_t page_tokens,
                      uint64_t hash_key, struct rp_error *err) {
    memset(prefix, 0, sizeof *prefix);
    size_t token_count;
    uint64_t bucket_count = 1;
    while (bucket_count < pool->page_count)
        bucket_count *= 2;
    if (rp_mul_overflow(pool->page_count, page_tokens, &token_count))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "%u pages of %u tokens are too many",
                            pool->page_count, page_tokens);
    prefix->pool = pool;
    prefix->page_tokens = page_tokens;
    prefix->hash_key = hash_key;
    prefix->bucket_mask = (uint32_t)(bucket_count - 1);
    prefix->entries = rp_calloc(pool->page_count, sizeof *prefix->entries);
    prefix->tokens = rp_calloc(token_count, sizeof *prefix->tokens);
    prefix->buckets = rp_calloc(bucket_count, sizeof *prefix->buckets);
    if (!prefix->entries || !prefix->tokens || !prefix->buckets) {
        rp_kv_prefix_deinit(prefix);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a prefix table of %u pages",
                            pool->page_count);
    }
    for (uint64_t i = 0; i < bucket_count; i++)
        prefix->buckets[i] = RP_KV_NO_PAGE;
    return RP_OK;
}

void rp_kv_prefix_deinit(struct rp_kv_prefix *prefix) {
    rp_free(prefix->entries);
    rp_free(prefix->tokens);
    rp_free(prefix->buckets);
    memset(prefix, 0, sizeof *prefix);
}

struct rp_hash128 rp_kv_prefix_root(const struct rp_kv_prefix *prefix, uint64_t salt) {
    return rp_hash128_chain((struct rp_hash128){0, 0}, prefix->hash_key, &salt, sizeof salt);
}

struct rp_hash128 rp_kv_prefix_next(const struct rp_kv_prefix *prefix, struct rp_hash128 previous,
                                    const int32_t *tokens) {
    return rp_hash128_chain(previous, prefix->hash_key, tokens,
                            prefix->page_tokens * sizeof *tokens);
}

static uint32_t *bucket_of(const struct rp_kv_prefix *prefix, struct rp_hash128 hash) {
    return &prefix->buckets[hash.low & prefix->bucket_mask];
}

static int32_t *tokens_of(const struct rp_kv_prefix *prefix, uint32_t page) {
    return prefix->tokens + (size_t)page * prefix->page_tokens;
}

/* The page entered under this hash, whatever its content. */
static uint32_t find_hash(const struct rp_kv_prefix *prefix, struct rp_hash128 hash) {
    uint32_t page = *bucket_of(prefix, hash);
    while (page != RP_KV_NO_PAGE && !rp_hash128_equal(prefix->entries[page].hash, hash))
        page = prefix->entries[page].next;
    return page;
}

uint32_t rp_kv_prefix_find(const struct rp_kv_prefix *prefix, uint64_t salt, struct rp_hash128 hash,
                           const int32_t *tokens) {
    uint32_t page = find_hash(prefix, hash);
    if (page == RP_KV_NO_PAGE || prefix->entries[page].salt != salt ||
        prefix->entries[page].owner != 0 ||
        memcmp(tokens_of(prefix, page), tokens, prefix->page_tokens * sizeof *tokens) != 0)
        return RP_KV_NO_PAGE;
    return page;
}

static void note_entered(const struct rp_kv_prefix *prefix, uint32_t page) {
    const struct rp_kv_prefix_entry *entry = &prefix->entries[page];
    if (!prefix->note || entry->owner || entry->is_silent)
        return;
    struct rp_hash128 root = rp_kv_prefix_root(prefix, entry->salt);
    prefix->note(prefix->note_ctx, &(struct rp_kv_prefix_change){
                                       .hash = entry->hash,
                                       .previous = entry->previous,
                                       .tokens = tokens_of(prefix, page),
                                       .is_first = rp_hash128_equal(entry->previous, root)});
}

bool rp_kv_prefix_enter(struct rp_kv_prefix *prefix, uint32_t page,
                        const struct rp_kv_prefix_link *link, const int32_t *tokens) {
    struct rp_kv_prefix_entry *entry = &prefix->entries[page];
    uint32_t *bucket = bucket_of(prefix, link->hash);
    if (entry->used || find_hash(prefix, link->hash) != RP_KV_NO_PAGE)
        return false;
    *entry = (struct rp_kv_prefix_entry){.hash = link->hash,
                                         .previous = link->previous,
                                         .salt = link->salt,
                                         .owner = link->owner,
                                         .next = *bucket,
                                         .used = true,
                                         .is_silent = link->is_silent};
    *bucket = page;
    memcpy(tokens_of(prefix, page), tokens, prefix->page_tokens * sizeof *tokens);
    prefix->entry_count++;
    rp_kv_pool_keep(prefix->pool, page);
    note_entered(prefix, page);
    return true;
}

bool rp_kv_prefix_insert(struct rp_kv_prefix *prefix, uint32_t page, uint64_t salt,
                         struct rp_hash128 previous, struct rp_hash128 hash,
                         const int32_t *tokens) {
    const struct rp_kv_prefix_link link = {.salt = salt, .previous = previous, .hash = hash};
    return rp_kv_prefix_enter(prefix, page, &link, tokens);
}

void rp_kv_prefix_prove(struct rp_kv_prefix *prefix, uint32_t page, uint64_t owner) {
    if (!rp_kv_prefix_owns(prefix, page, owner))
        return;
    prefix->entries[page].owner = 0;
    note_entered(prefix, page);
}

bool rp_kv_prefix_contains(const struct rp_kv_prefix *prefix, uint32_t page) {
    return prefix->entries[page].used;
}

void rp_kv_prefix_remove(struct rp_kv_prefix *prefix, uint32_t page) {
    struct rp_kv_prefix_entry *entry = &prefix->entries[page];
    if (!entry->used)
        return;
    uint32_t *link = bucket_of(prefix, entry->hash);
    while (*link != page)
        link = &prefix->entries[*link].next;
    *link = entry->next;
    entry->used = false;
    prefix->entry_count--;
    rp_kv_pool_forget(prefix->pool, page);
    prefix->pool->pages[page].dirty |= entry->owner != 0;
    if (prefix->note && !entry->owner && !entry->is_silent)
        prefix->note(prefix->note_ctx, &(struct rp_kv_prefix_change){.hash = entry->hash});
}

bool rp_kv_prefix_evict(struct rp_kv_prefix *prefix) {
    uint32_t page = rp_kv_pool_oldest_cached(prefix->pool);
    if (page == RP_KV_NO_PAGE)
        return false;
    rp_kv_prefix_remove(prefix, page);
    return true;
}

const char *rp_kv_prefix_check(const struct rp_kv_prefix *prefix) {
    uint32_t used = 0, chained = 0;
    for (uint32_t page = 0; page < prefix->pool->page_count; page++) {
        if (prefix->entries[page].used != prefix->pool->pages[page].retained)
            return "a page is retained without an entry, or has an entry but is not retained";
        used += prefix->entries[page].used;
    }
    for (uint32_t i = 0; i <= prefix->bucket_mask; i++) {
        for (uint32_t page = prefix->buckets[i]; page != RP_KV_NO_PAGE;
             page = prefix->entries[page].next) {
            const struct rp_kv_prefix_entry *entry = &prefix->entries[page];
            if (!entry->used || (entry->hash.low & prefix->bucket_mask) != i || ++chained > used)
                return "a bucket of the prefix table is broken";
        }
    }
    return used == prefix->entry_count && chained == used ? NULL
                                                          : "the prefix table has lost an entry";
}
