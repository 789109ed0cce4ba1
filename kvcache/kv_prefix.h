/* kv_prefix.h - finds a page that already holds K and V of the same tokens after the same
 * beginning.
 *
 *   hash 0 = H(salt)    hash i+1 = H(hash i, tokens of page i)        H: 128 bits, keyed
 * (base/hash.h)
 *
 * Only full pages are entered, one entry per page. The hash is not trusted: a hit compares the salt
 * and the page's tokens, and whoever walks a prompt has compared every page before. Content that is
 * computed twice keeps the entry that came first; the second page stays private.
 *
 * An entered page that loses its last reference is CACHED in the pool until it is found again or
 * evicted, least recently used first. Release a sequence's pages last page first, so that a page
 * goes before the ones that lead to it.
 *
 * Groups (kv_groups.h): the pages of all groups at one index have the same tokens; an entry's hash
 * is the chain's, altered by the group.
 *
 * Unproven entries: a page may have to leave its sequence before anything proved that it holds no
 * NaN. It is entered with the sequence as its owner: it stays in the cache, but nobody finds it,
 * and no change is noted, until the owner has proved it. A page whose unproven entry is removed is
 * marked dirty.
 *
 * Thread: engine thread only. Memory: all at init. Errors: init only. */
#ifndef RP_KVCACHE_KV_PREFIX_H
#define RP_KVCACHE_KV_PREFIX_H

#include "base/hash.h"
#include "kvcache/kv_pool.h"

struct rp_kv_prefix_entry {
    struct rp_hash128 hash;
    struct rp_hash128 previous;
    uint64_t salt;
    uint64_t owner; /* 0: proven, anybody may find it */
    uint32_t next;  /* page of the next entry in the same bucket */
    bool used;
    bool is_silent; /* its changes are not noted */
};

/* What a page is entered as. */
struct rp_kv_prefix_link {
    uint64_t salt;
    struct rp_hash128 previous, hash; /* the link before it, and its own */
    uint64_t owner;                   /* 0, or whose proof it still needs */
    bool is_silent;                   /* not noted: another group's page tells the same */
};

/* A page's content can be found from now on, or no longer. */
struct rp_kv_prefix_change {
    struct rp_hash128 hash, previous; /* previous: of the page before; only when it was entered */
    const int32_t *tokens;            /* (page_tokens) of an entered page; NULL: it was removed */
    bool is_first;                    /* entered: no page comes before it */
};

struct rp_kv_prefix {
    struct rp_kv_pool *pool;
    struct rp_kv_prefix_entry *entries; /* (page_count): the entry of page p is entries[p] */
    int32_t *tokens;                    /* (page_count, page_tokens) */
    uint32_t *buckets;                  /* (bucket_mask + 1) first page, or RP_KV_NO_PAGE */
    uint32_t bucket_mask;
    uint32_t page_tokens;
    uint32_t entry_count;
    uint64_t hash_key;
    /* NULL, or called for every change, after it. */
    void (*note)(void *ctx, const struct rp_kv_prefix_change *change);
    void *note_ctx;
};

/* The pool is borrowed and must outlive the prefix table. */
int rp_kv_prefix_init(struct rp_kv_prefix *prefix, struct rp_kv_pool *pool, uint32_t page_tokens,
                      uint64_t hash_key, struct rp_error *err) RP_MUST_USE;
void rp_kv_prefix_deinit(struct rp_kv_prefix *prefix); /* legal on a zeroed struct */

/* Where the chain of a salt begins, and its next link: `tokens` has page_tokens ids. */
struct rp_hash128 rp_kv_prefix_root(const struct rp_kv_prefix *prefix, uint64_t salt);
struct rp_hash128 rp_kv_prefix_next(const struct rp_kv_prefix *prefix, struct rp_hash128 previous,
                                    const int32_t *tokens);

/* The hash of a group's page, from the chain's: the same for group 0. */
static inline struct rp_hash128 rp_kv_prefix_of_group(struct rp_hash128 chain, uint32_t group) {
    chain.low ^= group;
    return chain;
}

/* The proven page with this content, or RP_KV_NO_PAGE. It is not acquired. */
uint32_t rp_kv_prefix_find(const struct rp_kv_prefix *prefix, uint64_t salt, struct rp_hash128 hash,
                           const int32_t *tokens);
/* Enters a referenced page; `previous` is the link before `hash`. False: the content (or its hash)
 * is there already, the page stays as it is. */
bool rp_kv_prefix_insert(struct rp_kv_prefix *prefix, uint32_t page, uint64_t salt,
                         struct rp_hash128 previous, struct rp_hash128 hash, const int32_t *tokens);
bool rp_kv_prefix_enter(struct rp_kv_prefix *prefix, uint32_t page,
                        const struct rp_kv_prefix_link *link, const int32_t *tokens);
/* Whether the page's entry is unproven and this owner's. */
static inline bool rp_kv_prefix_owns(const struct rp_kv_prefix *prefix, uint32_t page,
                                     uint64_t owner) {
    return prefix->entries[page].used && prefix->entries[page].owner == owner;
}
/* The page holds no NaN: its entry, if it is this owner's, may be found from now on. */
void rp_kv_prefix_prove(struct rp_kv_prefix *prefix, uint32_t page, uint64_t owner);
bool rp_kv_prefix_contains(const struct rp_kv_prefix *prefix, uint32_t page);
/* Nobody will find the page any more. Legal for pages that were not entered. */
void rp_kv_prefix_remove(struct rp_kv_prefix *prefix, uint32_t page);
/* Removes the least recently used page that nobody references, which is then free; false: none. */
bool rp_kv_prefix_evict(struct rp_kv_prefix *prefix);

/* NULL, or the name of what is broken. */
const char *rp_kv_prefix_check(const struct rp_kv_prefix *prefix);

#endif
