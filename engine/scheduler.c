/* The calls of scheduler.h that are not plan or commit. */
#include "engine/scheduler.h"

#include "base/memory.h"
#include "engine/scheduler_internal.h"

#include <string.h>

void rp_sched_list_insert(const struct rp_scheduler *scheduler, uint32_t *list, uint32_t *count,
                          uint32_t slot) {
    uint32_t at = (*count)++;
    while (at > 0 && scheduler->sequences[list[at - 1]].age > scheduler->sequences[slot].age) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = slot;
}

void rp_sched_list_remove(uint32_t *list, uint32_t *count, uint32_t slot) {
    uint32_t at = 0;
    while (at < *count && list[at] != slot)
        at++;
    RP_ASSERT_CMP(at, <, *count);
    memmove(&list[at], &list[at + 1], (*count - at - 1) * sizeof *list);
    (*count)--;
}

static int check_config(const struct rp_scheduler_config *config, struct rp_error *err) {
    uint32_t page_tokens = config->page_tokens;
    if (!config->slot_count || !config->queue_capacity || !config->row_capacity ||
        !config->max_model_len || !config->decode_rows_max || !config->logit_rows_max ||
        !config->token_bucket_count)
        return rp_error_set(err, RP_STATUS_INVALID, "a limit of the scheduler is zero");
    if (page_tokens == 0 || (page_tokens & (page_tokens - 1)) != 0)
        return rp_error_set(err, RP_STATUS_INVALID, "pages of %u tokens: not a power of two",
                            page_tokens);
    if (config->state_unit & (config->state_unit - 1))
        return rp_error_set(err, RP_STATUS_INVALID, "states of %u tokens: not a power of two",
                            config->state_unit);
    if (config->whole_prompts && config->prefix_cache)
        return rp_error_set(err, RP_STATUS_INVALID, "whole prompts cannot use a prefix cache");
    for (uint32_t g = 0; g < config->groups.count && config->whole_prompts; g++)
        if (config->groups.window[g])
            return rp_error_set(err, RP_STATUS_INVALID, "whole prompts cannot have windows");
    if (config->page_count < 2)
        return rp_error_set(err, RP_STATUS_INVALID, "%u pages: one is for padding, none is left",
                            config->page_count);
    if (config->groups.count > RP_KV_GROUPS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "%u groups of layers", config->groups.count);
    if (config->page_edit_capacity < rp_sched_pages_max(config, config->max_model_len))
        return rp_error_set(
            err, RP_STATUS_INVALID,
            "%u page-table entries per step cannot bring in a sequence of %u tokens",
            config->page_edit_capacity, config->max_model_len);
    for (uint32_t i = 0; i < config->token_bucket_count; i++)
        if (config->token_buckets[i] <= (i ? config->token_buckets[i - 1] : 0))
            return rp_error_set(err, RP_STATUS_INVALID, "token buckets must ascend from 1");
    return RP_OK;
}

static bool alloc_stores(struct rp_scheduler *scheduler) {
    const struct rp_scheduler_config *config = &scheduler->config;
    /* Out: each copy takes a host page. In: each copy writes a page-table entry. */
    size_t copies = (size_t)config->host_page_count + config->page_edit_capacity;
    bool ok = true;
    for (uint32_t i = 0; i < RP_SCHED_IN_FLIGHT_MAX; i++) {
        struct rp_step_store *step = &scheduler->stores[i];
        step->rows = rp_calloc(config->row_capacity, sizeof *step->rows);
        step->pages = rp_calloc(config->page_edit_capacity, sizeof *step->pages);
        step->joins = rp_calloc(config->slot_count, sizeof *step->joins);
        step->copies = rp_calloc(copies, sizeof *step->copies);
        step->zero_pages = rp_calloc(config->page_edit_capacity, sizeof *step->zero_pages);
        step->swaps = rp_calloc(config->slot_count, sizeof *step->swaps);
        step->saves = rp_calloc(config->row_capacity, sizeof *step->saves);
        ok = ok && step->swaps && step->saves && step->rows && step->pages && step->joins &&
             step->copies && step->zero_pages;
    }
    return ok;
}

static bool alloc_arrays(struct rp_scheduler *scheduler) {
    const struct rp_scheduler_config *config = &scheduler->config;
    uint32_t slots = config->slot_count;
    struct rp_sched_events *events = &scheduler->events;
    uint64_t capacity =
        (uint64_t)config->queue_capacity + slots +
        (uint64_t)RP_SCHED_IN_FLIGHT_MAX * RP_SCHED_ROW_EVENTS * config->row_capacity;
    if (capacity > UINT32_MAX)
        return false;
    events->capacity = (uint32_t)capacity;
    events->slots = rp_calloc(events->capacity, sizeof *events->slots);
    scheduler->sequences = rp_calloc(slots, sizeof *scheduler->sequences);
    size_t table_entries = (size_t)scheduler->group_count * scheduler->pages_per_slot;
    scheduler->page_tables = rp_calloc(slots * table_entries, sizeof(uint32_t));
    scheduler->tail_tokens = rp_calloc((size_t)slots * config->page_tokens, sizeof(int32_t));
    scheduler->free_slots = rp_calloc(slots, sizeof(uint32_t));
    scheduler->running = rp_calloc(slots, sizeof(uint32_t));
    scheduler->swapped = rp_calloc(slots, sizeof(uint32_t));
    scheduler->closed = rp_calloc(slots, sizeof(uint32_t));
    scheduler->order = rp_calloc(slots, sizeof(uint32_t));
    scheduler->chosen = rp_calloc((size_t)slots + 1, sizeof(uint32_t));
    scheduler->order_victims = rp_calloc(slots, sizeof(uint32_t));
    scheduler->waiting = rp_calloc(config->queue_capacity, sizeof *scheduler->waiting);
    scheduler->match = rp_calloc(table_entries, sizeof(uint32_t));
    scheduler->page_scratch = rp_calloc(config->page_tokens, sizeof(int32_t));
    scheduler->ref_scratch =
        rp_calloc(RP_MAX(config->page_count, config->host_page_count), sizeof(uint32_t));
    return events->slots && scheduler->sequences && scheduler->page_tables &&
           scheduler->tail_tokens && scheduler->free_slots && scheduler->running &&
           scheduler->swapped && scheduler->closed && scheduler->order && scheduler->chosen &&
           scheduler->order_victims && scheduler->waiting && scheduler->match &&
           scheduler->page_scratch && scheduler->ref_scratch && rp_sched_tenants_alloc(scheduler) &&
           alloc_stores(scheduler);
}

int rp_scheduler_create(const struct rp_scheduler_config *config, struct rp_scheduler **out,
                        struct rp_error *err) {
    *out = NULL;
    int status = check_config(config, err);
    if (status != RP_OK)
        return status;
    struct rp_scheduler *scheduler = rp_calloc(1, sizeof *scheduler);
    if (!scheduler)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the scheduler");
    scheduler->config = *config;
    if (config->join_capacity == 0)
        scheduler->config.join_capacity = config->slot_count;
    uint32_t *buckets = rp_calloc(config->token_bucket_count, sizeof *buckets);
    scheduler->config.token_buckets = buckets;
    scheduler->pages_per_slot = rp_scheduler_pages_per_slot(config);
    scheduler->group_count = rp_kv_group_count(&config->groups);
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        scheduler->windowed_count += config->groups.window[g] != 0;
    /* One without a window, if there is: its pages are there as long as any can be found. */
    while (scheduler->lead_group + 1 < scheduler->group_count &&
           config->groups.window[scheduler->lead_group])
        scheduler->lead_group++;
    if (!buckets || !alloc_arrays(scheduler)) {
        status =
            rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for %u slots of %u pages",
                         config->slot_count, scheduler->group_count * scheduler->pages_per_slot);
        goto fail;
    }
    memcpy(buckets, config->token_buckets, config->token_bucket_count * sizeof *buckets);
    scheduler->token_budget = buckets[config->token_bucket_count - 1];
    status = rp_kv_pool_init(&scheduler->pool, config->page_count, 1, err);
    if (status == RP_OK)
        status = rp_kv_pool_init(&scheduler->host, config->host_page_count, 0, err);
    if (status == RP_OK && config->prefix_cache)
        status = rp_kv_prefix_init(&scheduler->prefix, &scheduler->pool, config->page_tokens,
                                   config->hash_key, err);
    if (config->state_unit && config->snapshot_count && config->prefix_cache) {
        scheduler->state_unit = RP_MAX(config->state_unit, config->page_tokens);
        scheduler->snapshot_interval =
            RP_CEIL_DIV(RP_MAX(config->snapshot_interval, 1u), scheduler->state_unit) *
            scheduler->state_unit;
    }
    if (status == RP_OK)
        status = rp_kv_snapshots_init(&scheduler->snapshots,
                                      scheduler->state_unit ? config->snapshot_count : 0, err);
    if (status != RP_OK)
        goto fail;
    for (uint32_t slot = config->slot_count; slot-- > 0;) {
        struct rp_sequence *sequence = &scheduler->sequences[slot];
        sequence->slot = slot;
        sequence->held[0].table = scheduler->page_tables +
                                  (size_t)slot * scheduler->group_count * scheduler->pages_per_slot;
        sequence->tail_tokens = scheduler->tail_tokens + (size_t)slot * config->page_tokens;
        scheduler->free_slots[scheduler->free_slot_count++] = slot;
    }
    *out = scheduler;
    return RP_OK;
fail:
    rp_scheduler_destroy(scheduler);
    return status;
}

void rp_scheduler_destroy(struct rp_scheduler *scheduler) {
    if (!scheduler)
        return;
    for (uint32_t i = 0; i < RP_SCHED_IN_FLIGHT_MAX; i++) {
        struct rp_step_store *step = &scheduler->stores[i];
        rp_free(step->rows);
        rp_free(step->pages);
        rp_free(step->joins);
        rp_free(step->copies);
        rp_free(step->zero_pages);
        rp_free(step->swaps);
        rp_free(step->saves);
    }
    rp_kv_snapshots_deinit(&scheduler->snapshots);
    rp_kv_prefix_deinit(&scheduler->prefix);
    rp_kv_pool_deinit(&scheduler->host);
    rp_kv_pool_deinit(&scheduler->pool);
    rp_free(scheduler->events.slots);
    rp_free(scheduler->sequences);
    rp_free(scheduler->page_tables);
    rp_free(scheduler->tail_tokens);
    rp_free(scheduler->free_slots);
    rp_free(scheduler->running);
    rp_free(scheduler->swapped);
    rp_free(scheduler->closed);
    rp_free(scheduler->order);
    rp_free(scheduler->chosen);
    rp_free(scheduler->order_victims);
    rp_free(scheduler->waiting);
    rp_sched_tenants_free(scheduler);
    rp_free(scheduler->match);
    rp_free(scheduler->page_scratch);
    rp_free(scheduler->ref_scratch);
    rp_free((void *)scheduler->config.token_buckets);
    rp_free(scheduler);
}

int rp_scheduler_submit(struct rp_scheduler *scheduler, struct rp_request *request) {
    const struct rp_scheduler_config *config = &scheduler->config;
    if (scheduler->failed)
        return RP_STATUS_SHUTTING_DOWN;
    bool scored_whole = config->whole_prompts && request->prompt_logprobs;
    bool fits =
        request->prompt_only
            ? rp_scheduler_prompt_fits(config, request->prompt_count) && request->max_tokens == 1
            : rp_scheduler_fits(config, request->prompt_count, request->max_tokens);
    if (!fits ||
        (scored_whole && request->prompt_count > rp_scheduler_whole_prompt_max(config, true)))
        return RP_STATUS_RANGE;
    /* Every open request keeps a place for its CLOSED event: undrained ones count as well. */
    uint64_t open = (uint64_t)scheduler->waiting_count + scheduler->running_count +
                    scheduler->swapped_count + scheduler->events.closed_count;
    if (scheduler->waiting_count == config->queue_capacity ||
        open >= (uint64_t)config->queue_capacity + config->slot_count)
        return RP_STATUS_FULL;
    if (!rp_sched_tenant_enqueue(scheduler, request))
        return RP_STATUS_FULL;
    request->cached_tokens = request->swap_count = 0;
    request->scheduled_ns = request->first_token_ns = request->closed_ns = 0;
    memset(&request->stats, 0, sizeof request->stats);
    uint32_t at = (scheduler->waiting_first + scheduler->waiting_count++) % config->queue_capacity;
    scheduler->waiting[at] = request;
    return RP_OK;
}

void rp_scheduler_fail_all(struct rp_scheduler *scheduler, enum rp_finish_reason reason,
                           uint64_t now_ns) {
    /* The device is not asked any more, so no step in flight matters. */
    scheduler->failed = true;
    scheduler->committed_step = scheduler->planned_step;
    for (uint32_t slot = 0; slot < scheduler->config.slot_count; slot++)
        if (scheduler->sequences[slot].request)
            rp_sched_close(scheduler, &scheduler->sequences[slot], reason, now_ns);
    for (; scheduler->waiting_count > 0; scheduler->waiting_count--) {
        rp_sched_tenant_dequeue(scheduler, scheduler->waiting[scheduler->waiting_first]);
        rp_sched_close_request(scheduler, scheduler->waiting[scheduler->waiting_first], 0, reason,
                               now_ns);
        scheduler->waiting_first =
            (scheduler->waiting_first + 1) % scheduler->config.queue_capacity;
    }
    rp_sched_retire(scheduler);
}

uint32_t rp_scheduler_pages_per_slot(const struct rp_scheduler_config *config) {
    return RP_CEIL_DIV(config->max_model_len, config->page_tokens);
}

uint32_t rp_scheduler_in_flight(const struct rp_scheduler *scheduler) {
    return (uint32_t)(scheduler->planned_step - scheduler->committed_step);
}

bool rp_scheduler_is_idle(const struct rp_scheduler *scheduler) {
    return scheduler->waiting_count == 0 && scheduler->running_count == 0 &&
           scheduler->swapped_count == 0 && rp_scheduler_in_flight(scheduler) == 0;
}

struct rp_request *rp_scheduler_request_of(const struct rp_scheduler *scheduler, uint32_t slot,
                                           uint32_t *out_pages) {
    const struct rp_sequence *sequence = &scheduler->sequences[slot];
    *out_pages = sequence->state == RP_SEQUENCE_RUNNING ? rp_sched_held(scheduler, sequence) : 0;
    return sequence->request; /* NULL once closed, and the slot waits for its last planned step */
}

void rp_scheduler_stats(const struct rp_scheduler *scheduler, struct rp_sched_stats *out_stats) {
    const struct rp_kv_pool *pool = &scheduler->pool;
    *out_stats =
        (struct rp_sched_stats){.waiting = scheduler->waiting_count,
                                .running = scheduler->running_count,
                                .swapped = scheduler->swapped_count,
                                .pages_total = pool->page_count - pool->reserved_count,
                                .pages_free = rp_kv_pool_count(pool, RP_KV_FREE),
                                .pages_cached = rp_kv_pool_count(pool, RP_KV_CACHED),
                                .pages_held = rp_kv_pool_count(pool, RP_KV_HELD),
                                .pages_pending = rp_kv_pool_count(pool, RP_KV_PENDING),
                                .host_pages_total = scheduler->host.page_count,
                                .host_pages_free = rp_kv_pool_count(&scheduler->host, RP_KV_FREE),
                                .prefix_query_tokens = scheduler->prefix_query_tokens,
                                .prefix_hit_tokens = scheduler->prefix_hit_tokens,
                                .steps = scheduler->planned_step,
                                .snapshots_kept = scheduler->snapshots.kept,
                                .snapshots_saved = scheduler->snapshots.saved,
                                .snapshot_hits = scheduler->snapshots.hits,
                                .snapshot_evictions = scheduler->snapshots.evictions};
    for (int i = 0; i < RP_PREEMPTED_COUNT; i++) {
        out_stats->preempted[i] = scheduler->preempted[i];
        out_stats->preemptions += scheduler->preempted[i];
    }
}

uint64_t rp_scheduler_wasted_tokens(const struct rp_scheduler *scheduler) {
    uint64_t wasted = 0;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        for (uint32_t g = 0; g < scheduler->group_count; g++)
            wasted += (uint64_t)sequence->held[g].end * scheduler->config.page_tokens -
                      sequence->planned_length;
    }
    return wasted;
}

void rp_scheduler_watch_pages(struct rp_scheduler *scheduler,
                              void (*note)(void *ctx, uint32_t page, enum rp_kv_state from,
                                           enum rp_kv_state to),
                              void *ctx) {
    scheduler->pool.note = note;
    scheduler->pool.note_ctx = ctx;
}

void rp_scheduler_watch_prefix(struct rp_scheduler *scheduler,
                               void (*note)(void *ctx, const struct rp_kv_prefix_change *change),
                               void *ctx) {
    scheduler->prefix.note = note;
    scheduler->prefix.note_ctx = ctx;
}

uint32_t rp_scheduler_page_map(const struct rp_scheduler *scheduler, uint32_t *out,
                               uint32_t capacity) {
    const struct rp_kv_pool *pool = &scheduler->pool;
    for (uint32_t page = 0; page < pool->page_count && page < capacity; page++)
        out[page] = atomic_load_explicit(&pool->map[page], memory_order_relaxed);
    return pool->page_count;
}
