/* Results become tokens, ends and cacheable pages. */
#include "engine/scheduler_internal.h"

#include <math.h>
#include <string.h>

void rp_sched_push_event(struct rp_scheduler *scheduler, const struct rp_event *event) {
    struct rp_sched_events *events = &scheduler->events;
    RP_ASSERT_CMP(events->count, <, events->capacity);
    rp_sched_copy_event(&events->slots[(events->first + events->count++) % events->capacity],
                        event);
    events->closed_count += event->kind == RP_EVENT_CLOSED;
}

bool rp_scheduler_next_event(struct rp_scheduler *scheduler, struct rp_event *out_event) {
    struct rp_sched_events *events = &scheduler->events;
    if (events->count == 0)
        return false;
    rp_sched_copy_event(out_event, &events->slots[events->first]);
    events->first = (events->first + 1) % events->capacity;
    events->count--;
    events->closed_count -= out_event->kind == RP_EVENT_CLOSED;
    return true;
}

void rp_sched_close_request(struct rp_scheduler *scheduler, struct rp_request *request,
                            uint32_t tokens, enum rp_finish_reason reason, uint64_t now_ns) {
    request->closed_ns = now_ns;
    struct rp_event event = {.request = request,
                             .kind = RP_EVENT_CLOSED,
                             .finish_reason = (uint8_t)reason,
                             .token = -1,
                             .index = tokens,
                             .time_ns = now_ns};
    rp_sched_push_event(scheduler, &event);
}

static void free_slot(struct rp_scheduler *scheduler, struct rp_sequence *sequence) {
    sequence->state = RP_SEQUENCE_FREE;
    scheduler->free_slots[scheduler->free_slot_count++] = sequence->slot;
    scheduler->release_epoch++;
}

void rp_sched_close(struct rp_scheduler *scheduler, struct rp_sequence *sequence,
                    enum rp_finish_reason reason, uint64_t now_ns) {
    rp_sched_forget_unproven(scheduler, sequence);
    rp_kv_snapshots_drop(&scheduler->snapshots, &sequence->pending_snapshots);
    if (sequence->state == RP_SEQUENCE_RUNNING) {
        rp_sched_release_pages(scheduler, sequence, sequence->last_step);
        rp_sched_list_remove(scheduler->running, &scheduler->running_count, sequence->slot);
    } else {
        RP_ASSERT_CMP(sequence->state, ==, RP_SEQUENCE_SWAPPED);
        /* Only copies touch host pages, and they run in stream order: no fence. */
        for (uint32_t g = 0; g < scheduler->group_count; g++) {
            struct rp_held_pages *held = &sequence->held[g];
            while (held->end > held->first)
                rp_kv_pool_release(&scheduler->host, held->table[--held->end], 0);
        }
        rp_sched_list_remove(scheduler->swapped, &scheduler->swapped_count, sequence->slot);
    }
    scheduler->worst_page_sum -= sequence->worst_pages;
    rp_sched_tenant_close(scheduler, sequence->request);
    rp_sched_close_request(scheduler, sequence->request, sequence->outputs, reason, now_ns);
    sequence->request = NULL;
    if (sequence->last_step > scheduler->committed_step) {
        sequence->state = RP_SEQUENCE_CLOSED;
        scheduler->closed[scheduler->closed_count++] = sequence->slot;
    } else {
        free_slot(scheduler, sequence);
    }
}

void rp_sched_retire(struct rp_scheduler *scheduler) {
    uint32_t kept = 0;
    if (rp_kv_pool_count(&scheduler->pool, RP_KV_PENDING))
        scheduler->release_epoch++;
    rp_kv_pool_retire(&scheduler->pool, scheduler->committed_step);
    for (uint32_t i = 0; i < scheduler->closed_count; i++) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->closed[i]];
        if (sequence->last_step > scheduler->committed_step)
            scheduler->closed[kept++] = sequence->slot;
        else
            free_slot(scheduler, sequence);
    }
    scheduler->closed_count = kept;
}

static void condemn_page(struct rp_scheduler *scheduler, uint32_t page) {
    if (scheduler->config.prefix_cache)
        rp_kv_prefix_remove(&scheduler->prefix, page);
    scheduler->pool.pages[page].dirty = true;
}

/* The pages of its prompt that it read or wrote and gave back. Its tables may name pages of others
 * by now, so they are looked up. */
static void condemn_passed(struct rp_scheduler *scheduler, const struct rp_sequence *sequence) {
    const struct rp_kv_prefix *prefix = &scheduler->prefix;
    uint32_t page_tokens = scheduler->config.page_tokens, end = 0, begin[RP_KV_GROUPS_MAX];
    struct rp_hash128 chain = rp_kv_prefix_root(prefix, sequence->salt);
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        begin[g] = rp_kv_first_page(scheduler->config.groups.window[g], page_tokens,
                                    sequence->request->cached_tokens);
        end = RP_MAX(end, sequence->held[g].first);
    }
    end = RP_MIN(end, sequence->prompt_count / page_tokens);
    for (uint32_t i = 0; i < end; i++) {
        const int32_t *tokens = sequence->request->prompt + (size_t)i * page_tokens;
        chain = rp_kv_prefix_next(prefix, chain, tokens);
        for (uint32_t g = 0; g < scheduler->group_count; g++) {
            uint32_t page = rp_kv_prefix_find(prefix, sequence->salt,
                                              rp_sched_group_hash(scheduler, chain, g), tokens);
            if (page != RP_KV_NO_PAGE && i >= begin[g] && i < sequence->held[g].first)
                condemn_page(scheduler, page);
        }
    }
}

/* Nobody shall find what this sequence read or wrote, and its pages are zeroed before they are used
 * again. Pages found in the cache count too: were one of them broken, each hit would fail a
 * request. */
static void condemn_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence) {
    uint32_t snapshot =
        sequence->request->cached_tokens && scheduler->config.state_unit
            ? rp_kv_snapshots_find(&scheduler->snapshots, sequence->salt, sequence->hit)
            : RP_NO_SNAPSHOT;
    if (snapshot != RP_NO_SNAPSHOT)
        rp_kv_snapshots_remove(&scheduler->snapshots, snapshot);
    if (sequence->state != RP_SEQUENCE_RUNNING)
        return;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        for (uint32_t i = sequence->held[g].first; i < sequence->held[g].end; i++)
            condemn_page(scheduler, sequence->held[g].table[i]);
    if (scheduler->config.prefix_cache)
        condemn_passed(scheduler, sequence);
}

static const struct rp_sched_scores *last_scores(const struct rp_sched_row *row,
                                                 const struct rp_sched_result *result) {
    return &result->scores[rp_row_logits(row) - 1];
}

static void add_scores(struct rp_event *event, const struct rp_sched_scores *scores) {
    event->logprob = scores->logprob;
    event->rank = scores->rank;
    event->top_count = (uint8_t)RP_MIN(scores->top_count, (uint32_t)RP_LOGPROBS_MAX);
    memcpy(event->top, scores->top, event->top_count * sizeof *event->top);
}

/* The prompt's tokens after the row's, each with its scores. */
static void take_prompt_scores(struct rp_scheduler *scheduler, const struct rp_sched_row *row,
                               const struct rp_sched_result *result, uint64_t now_ns) {
    struct rp_request *request = scheduler->sequences[row->slot].request;
    for (uint32_t i = 0; i < rp_row_scores(row); i++) {
        uint32_t index = row->start + i + 1;
        struct rp_event event = {.request = request,
                                 .kind = RP_EVENT_PROMPT,
                                 .token = request->prompt[index],
                                 .index = index,
                                 .time_ns = now_ns};
        add_scores(&event, &result->scores[i]);
        rp_sched_push_event(scheduler, &event);
    }
}

/* A score that is not a number means what a NaN among the logits means. */
static bool scores_failed(const struct rp_sched_row *row, const struct rp_request *request,
                          const struct rp_sched_result *result) {
    for (uint32_t i = 0; i < rp_row_scores(row); i++)
        if (isnan(result->scores[i].logprob))
            return true;
    return row->samples && request->logprobs && isnan(last_scores(row, result)->logprob);
}

static void take_token(struct rp_scheduler *scheduler, const struct rp_sched_row *row,
                       const struct rp_sched_result *result, uint64_t now_ns) {
    struct rp_sequence *sequence = &scheduler->sequences[row->slot];
    struct rp_request *request = sequence->request;
    bool stopped = result->flags & RP_SCHED_RESULT_STOPPED;
    if (scheduler->config.prefix_cache) {
        uint32_t position = sequence->prompt_count + sequence->outputs;
        rp_sched_prove_pages(scheduler, sequence);
        sequence->tail_tokens[position % scheduler->config.page_tokens] = result->token;
    }
    uint32_t index = sequence->outputs++;
    if (index == 0)
        request->first_token_ns = now_ns;
    struct rp_event event; /* without clearing its top, of which top_count are there */
    event.request = request;
    event.kind = RP_EVENT_TOKEN;
    event.finish_reason = RP_FINISH_NONE;
    event.is_stop = stopped;
    event.top_count = 0;
    event.token = result->token;
    event.logprob = 0.0f;
    event.rank = 0;
    event.index = index;
    event.time_ns = now_ns;
    if (result->scores && request->logprobs)
        add_scores(&event, last_scores(row, result));
    rp_sched_push_event(scheduler, &event);
    if (stopped) {
        /* A row that is already planned finds the slot finished and writes nothing. */
        sequence->planned_length = sequence->verified_length;
        rp_sched_close(scheduler, sequence, RP_FINISH_STOP, now_ns);
    } else if (rp_sequence_is_complete(sequence, sequence->outputs)) {
        rp_sched_close(scheduler, sequence, RP_FINISH_LENGTH, now_ns);
    }
}

static void commit_row(struct rp_scheduler *scheduler, const struct rp_sched_row *row,
                       const struct rp_sched_result *result, uint64_t now_ns) {
    struct rp_sequence *sequence = &scheduler->sequences[row->slot];
    if (sequence->state == RP_SEQUENCE_CLOSED)
        return;
    RP_ASSERT(sequence->request != NULL);
    if (result->flags & RP_SCHED_RESULT_SKIPPED) {
        /* The device thinks that it is finished and we do not: nothing good can follow. */
        rp_sched_close(scheduler, sequence, RP_FINISH_ERROR, now_ns);
        return;
    }
    if (result->flags & RP_SCHED_RESULT_WITHHELD) {
        /* Nobody waits for the hold of a request that was cancelled. */
        bool cancelled = atomic_load_explicit(&sequence->request->cancelled, memory_order_relaxed);
        rp_sched_close(scheduler, sequence,
                       cancelled ? RP_FINISH_CANCELLED : RP_FINISH_MASK_DEADLINE, now_ns);
        return;
    }
    bool failed = (result->flags & RP_SCHED_RESULT_NAN) || (row->samples && result->token < 0);
    if (result->scores && !failed) {
        failed = scores_failed(row, sequence->request, result);
        if (row->scores && !failed)
            take_prompt_scores(scheduler, row, result, now_ns);
    }
    if (failed) {
        condemn_pages(scheduler, sequence);
        rp_sched_close(scheduler, sequence, RP_FINISH_NUMERIC, now_ns);
    } else if (row->samples) {
        sequence->verified_length = row->start + row->count;
        take_token(scheduler, row, result, now_ns);
    }
}

void rp_scheduler_commit(struct rp_scheduler *scheduler, uint64_t step_id,
                         const struct rp_sched_result *results, uint64_t now_ns) {
    RP_ASSERT_CMP(step_id, ==, scheduler->committed_step + 1);
    RP_ASSERT_CMP(step_id, <=, scheduler->planned_step);
    const struct rp_step_store *step = &scheduler->stores[step_id % RP_SCHED_IN_FLIGHT_MAX];
    rp_sched_tenants_charge(scheduler, step, now_ns);
    /* First, so that what ends with this step need not wait for it. */
    scheduler->committed_step = step_id;
    for (uint32_t i = 0; i < step->row_count; i++)
        commit_row(scheduler, &step->rows[i], &results[i], now_ns);
    /* Last, so that rows of closed sequences still find their slots. */
    rp_sched_retire(scheduler);
}
