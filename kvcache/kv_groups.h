/* kv_groups.h - how many pages a sequence holds where layers have different windows.
 *
 * Layers whose pages live equally long form a group, and each group has a page table of its own
 * for every sequence. A page holds K and V of page_tokens positions for the layers of one group;
 * all pages have the same bytes, so one pool serves all groups (kv_geometry.h).
 *
 *   positions      0 ......................... S .. S + count      a row of `count` tokens from S
 *   no window      |======================================|        all pages, to the end of the answer
 *   window W              S + 1 - W  |====================|        pages before are given back
 *
 * Thread: any. Memory: none. */
#ifndef RP_KVCACHE_KV_GROUPS_H
#define RP_KVCACHE_KV_GROUPS_H

#include "base/base.h"

#define RP_KV_GROUPS_MAX 16u

struct rp_kv_groups {
    uint32_t count;                    /* 0 is the same as one group without a window */
    uint32_t window[RP_KV_GROUPS_MAX]; /* tokens that its layers see; 0: all */
};

static inline uint32_t rp_kv_group_count(const struct rp_kv_groups *groups) {
    return RP_MAX(groups->count, 1u);
}

/* The first page that a token at `position`, or any after it, still reads. */
static inline uint32_t rp_kv_first_page(uint32_t window, uint32_t page_tokens, uint32_t position) {
    return window && position >= window ? (position + 1 - window) / page_tokens : 0;
}

/* The most pages, of all groups, that a sequence holds at any time while `tokens` positions are
 * written in steps of at most `chunk`. Never falls as tokens rise. */
uint64_t rp_kv_pages_max(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                         uint64_t tokens);

/* The most tokens, at most `limit`, for which that is at most `pages`. */
uint64_t rp_kv_tokens_max(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                          uint64_t pages, uint64_t limit);

/* Tokens that `pages` pages hold: of sequences of `length` tokens, and of one more that fits beside
 * them. Without windows the length does not matter. */
uint64_t rp_kv_capacity(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                        uint64_t pages, uint32_t length);

#endif
