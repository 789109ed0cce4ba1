#include "engine/observe/kv_events.h"

bool rp_kv_events_init(struct rp_kv_events *events, uint32_t capacity, uint32_t page_tokens) {
    size_t bytes = rp_kv_event_bytes(page_tokens);
    memset(events, 0, sizeof *events);
    events->page_tokens = page_tokens;
    events->next = rp_calloc(1, bytes);
    if (events->next && rp_ring_init(&events->ring, capacity, (uint32_t)bytes))
        return true;
    rp_kv_events_deinit(events);
    return false;
}

void rp_kv_events_deinit(struct rp_kv_events *events) {
    rp_free(events->next);
    rp_ring_deinit(&events->ring);
    memset(events, 0, sizeof *events);
}

void rp_kv_events_note(void *ctx, const struct rp_kv_prefix_change *change) {
    struct rp_kv_events *events = ctx;
    struct rp_kv_event *next = events->next;
    next->hash = change->hash.low;
    next->parent = change->previous.low;
    next->is_stored = change->tokens != NULL;
    next->has_parent = change->tokens && !change->is_first;
    next->follows_gap = events->lost;
    if (change->tokens)
        memcpy(next->tokens, change->tokens, events->page_tokens * sizeof *next->tokens);
    events->lost = !rp_ring_try_push(&events->ring, next);
    if (events->lost)
        rp_counter_add(&events->dropped, 1);
}
