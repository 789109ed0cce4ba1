#include "kvcache/kv_groups.h"

/* Beyond the window and the chunk, a sequence holds up to two positions more: those of generated
 * tokens whose results the host has not seen. */
#define UNSEEN 2u

/* The most pages that the positions from the first that is seen to the end of a chunk lie in. */
static uint64_t window_pages(uint32_t window, uint32_t page_tokens, uint32_t chunk) {
    uint64_t positions = (uint64_t)window - 1 + UNSEEN + chunk;
    return (positions + page_tokens - 2) / page_tokens + 1;
}

uint64_t rp_kv_pages_max(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                         uint64_t tokens) {
    uint64_t all = RP_CEIL_DIV(tokens, page_tokens), sum = 0;
    for (uint32_t g = 0; g < rp_kv_group_count(groups); g++) {
        uint32_t window = groups->window[g];
        sum += window ? RP_MIN(all, window_pages(window, page_tokens, chunk)) : all;
    }
    return sum;
}

uint64_t rp_kv_tokens_max(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                          uint64_t pages, uint64_t limit) {
    uint64_t fits = 0, exceeds = limit + 1;
    while (exceeds - fits > 1) {
        uint64_t middle = fits + (exceeds - fits) / 2;
        if (rp_kv_pages_max(groups, page_tokens, chunk, middle) <= pages)
            fits = middle;
        else
            exceeds = middle;
    }
    return fits;
}

uint64_t rp_kv_capacity(const struct rp_kv_groups *groups, uint32_t page_tokens, uint32_t chunk,
                        uint64_t pages, uint32_t length) {
    uint32_t windows = 0;
    for (uint32_t g = 0; g < groups->count; g++)
        windows += groups->window[g] != 0;
    if (windows == 0)
        return pages / rp_kv_group_count(groups) * page_tokens;
    uint64_t each = rp_kv_pages_max(groups, page_tokens, chunk, length), whole = pages / each;
    return whole * length +
           rp_kv_tokens_max(groups, page_tokens, chunk, pages - whole * each, length);
}
