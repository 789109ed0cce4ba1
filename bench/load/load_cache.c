/* load_cache.c - hits of an unbounded prefix cache. It contains whole pages of prompts, as the
 * server's does; a page is a hit if an earlier prompt began with the same tokens up to its end. The
 * last token of a prompt is always computed, for its logits, so a page that ends with it is not a
 * hit. Ignored: pages of generated tokens, which a server may cache too, and misses of requests
 * that arrive before an equal prefix has been computed.
 *
 * A tree of pages with its edges in one hash table: (parent, tokens of the page) -> page. Tokens
 * are compared, so that the count is exact. */
#include "base/checked.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bench/load/load_plan_internal.h"

#include <string.h>

struct page {
    uint64_t hash;
    const int32_t *tokens;
    uint32_t parent;
};

struct tree {
    struct page *pages;
    uint32_t *slots; /* (slot_count, a power of two) index of a page; 0: none */
    size_t slot_count;
    uint32_t page_count; /* page 0 is the root */
    uint32_t page_tokens;
};

/* Allocates room for `pages`, with a load factor of at most one half. */
static int tree_open(struct tree *tree, size_t pages, struct rp_error *err) {
    size_t bytes;
    tree->slot_count = 16;
    while (tree->slot_count < pages * 2)
        tree->slot_count *= 2;
    if (pages >= UINT32_MAX || rp_mul_overflow(pages + 1, sizeof *tree->pages, &bytes))
        return rp_error_set(err, RP_STATUS_RANGE, "the prompts have too many pages");
    tree->pages = rp_alloc(bytes);
    tree->slots = rp_calloc(tree->slot_count, sizeof *tree->slots);
    if (!tree->pages || !tree->slots)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for %zu prompt pages", pages);
    tree->page_count = 1;
    return RP_OK;
}

static void tree_close(struct tree *tree) {
    rp_free(tree->pages);
    rp_free(tree->slots);
}

/* Returns the child of `parent` with these tokens; adds it if it does not exist (*found false). */
static uint32_t tree_add(struct tree *tree, uint32_t parent, const int32_t *tokens, bool *found) {
    size_t bytes = tree->page_tokens * sizeof *tokens;
    uint64_t hash = rp_hash64(tokens, bytes, parent);
    size_t slot = hash & (tree->slot_count - 1);
    for (; tree->slots[slot]; slot = (slot + 1) & (tree->slot_count - 1)) {
        const struct page *page = &tree->pages[tree->slots[slot]];
        if (page->hash == hash && page->parent == parent &&
            memcmp(page->tokens, tokens, bytes) == 0) {
            *found = true;
            return tree->slots[slot];
        }
    }
    *found = false;
    tree->pages[tree->page_count] = (struct page){hash, tokens, parent};
    tree->slots[slot] = tree->page_count;
    return tree->page_count++;
}

/* Adds a prompt's whole pages; returns the number of leading pages that are hits. */
static uint32_t add_prompt(struct tree *tree, const struct rp_load_request *request) {
    uint32_t pages = request->input_tokens / tree->page_tokens, known = 0, page = 0;
    for (uint32_t i = 0; i < pages; i++) {
        bool found;
        page = tree_add(tree, page, request->ids + (size_t)i * tree->page_tokens, &found);
        known += found; /* pages after a new one are new as well */
    }
    return RP_MIN(known, (request->input_tokens - 1) / tree->page_tokens);
}

int rp_load_cache_count(struct rp_load_plan *plan, uint32_t page_tokens, struct rp_error *err) {
    struct tree tree = {.page_tokens = page_tokens};
    size_t pages = 0; /* below 2^30: all ids are in 4 GiB */
    for (uint32_t i = 0; i < plan->count; i++)
        pages += plan->requests[i].ids ? plan->requests[i].input_tokens / page_tokens : 0;
    int status = tree_open(&tree, pages, err);
    for (uint32_t i = 0; status == RP_OK && i < plan->count; i++) {
        struct rp_load_request *request = &plan->requests[i];
        request->cached_tokens = request->ids ? add_prompt(&tree, request) * page_tokens : 0;
    }
    tree_close(&tree);
    return status;
}
