/* What must hold after every plan and commit. */
#include "engine/scheduler_internal.h"

#include <string.h>

static const char *check_lengths(const struct rp_scheduler *scheduler,
                                 const struct rp_sequence *sequence) {
    uint32_t content = rp_sched_pages_of(scheduler, sequence->planned_length);
    if (sequence->verified_length > sequence->planned_length)
        return "more tokens are proven clean than planned";
    if (sequence->planned_length >
        rp_sched_written_max(sequence->prompt_count, sequence->max_tokens))
        return "a sequence is planned past its last position";
    if (sequence->outputs > sequence->planned_outputs ||
        sequence->planned_outputs > sequence->max_tokens)
        return "more tokens were received than asked for, or asked for than wanted";
    if (!rp_sequence_in_prompt(sequence) &&
        sequence->planned_length != sequence->prompt_count + sequence->planned_outputs - 1)
        return "length and outputs do not agree";
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        const struct rp_held_pages *held = &sequence->held[g];
        if (sequence->state == RP_SEQUENCE_SWAPPED ? held->end != content : held->end < content)
            return "a sequence has not the pages that its length needs";
        if (held->first > rp_kv_first_page(scheduler->config.groups.window[g],
                                           scheduler->config.page_tokens, sequence->planned_length))
            return "a sequence has given back pages that its window covers";
    }
    if (rp_sched_held(scheduler, sequence) > sequence->worst_pages)
        return "a sequence has more pages than it can ever need";
    if (sequence->planned_outputs - sequence->outputs > rp_scheduler_in_flight(scheduler))
        return "a result was lost";
    return NULL;
}

/* Pages from the one being written on belong to this sequence alone, and nobody can find them. */
static const char *check_private_pages(const struct rp_scheduler *scheduler,
                                       const struct rp_sequence *sequence) {
    uint32_t clean = sequence->verified_length / scheduler->config.page_tokens;
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        const struct rp_held_pages *held = &sequence->held[g];
        for (uint32_t i = RP_MAX(clean, held->first); i < held->end; i++) {
            const struct rp_kv_page *page = &scheduler->pool.pages[held->table[i]];
            if (page->refs != 1 ||
                (page->retained &&
                 !rp_kv_prefix_owns(&scheduler->prefix, held->table[i], sequence->age)))
                return "a page that is still written is shared or cached";
        }
    }
    return NULL;
}

/* One slot: its state against the list that should name it, and its references. */
static const char *check_slot(const struct rp_scheduler *scheduler, uint32_t slot) {
    const struct rp_sequence *sequence = &scheduler->sequences[slot];
    if (sequence->slot != slot)
        return "a sequence has left its slot";
    if ((sequence->request != NULL) !=
        (sequence->state == RP_SEQUENCE_RUNNING || sequence->state == RP_SEQUENCE_SWAPPED))
        return "a closed sequence has a request, or an open one has none";
    if (sequence->state == RP_SEQUENCE_CLOSED && sequence->last_step <= scheduler->committed_step)
        return "a closed sequence waits for a step that is over";
    if (!sequence->request)
        return NULL;
    const char *broken = check_lengths(scheduler, sequence);
    if (!broken && sequence->state == RP_SEQUENCE_RUNNING)
        broken = check_private_pages(scheduler, sequence);
    return broken;
}

static const char *check_list(const struct rp_scheduler *scheduler, const uint32_t *list,
                              uint32_t count, enum rp_sequence_state state, bool by_age) {
    uint32_t in_state = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[list[i]];
        if (sequence->state != state)
            return "a sequence is in the list of another state";
        if (by_age && i && scheduler->sequences[list[i - 1]].age >= sequence->age)
            return "a list is not in order of age";
    }
    for (uint32_t slot = 0; slot < scheduler->config.slot_count; slot++)
        in_state += scheduler->sequences[slot].state == state;
    return in_state == count ? NULL : "a sequence is in no list, or in one twice";
}

static const char *check_lists(const struct rp_scheduler *scheduler) {
    const char *broken = check_list(scheduler, scheduler->running, scheduler->running_count,
                                    RP_SEQUENCE_RUNNING, true);
    if (!broken)
        broken = check_list(scheduler, scheduler->swapped, scheduler->swapped_count,
                            RP_SEQUENCE_SWAPPED, true);
    if (!broken)
        broken = check_list(scheduler, scheduler->closed, scheduler->closed_count,
                            RP_SEQUENCE_CLOSED, false);
    if (!broken)
        broken = check_list(scheduler, scheduler->free_slots, scheduler->free_slot_count,
                            RP_SEQUENCE_FREE, false);
    return broken;
}

static const char *check_snapshots(const struct rp_scheduler *scheduler) {
    const struct rp_kv_snapshot *entries = scheduler->snapshots.entries;
    uint32_t pending = 0;
    for (uint32_t slot = 0; slot < scheduler->config.slot_count; slot++) {
        const struct rp_sequence *sequence = &scheduler->sequences[slot];
        uint32_t at = sequence->request ? sequence->pending_snapshots : RP_NO_SNAPSHOT;
        for (; at != RP_NO_SNAPSHOT && pending <= scheduler->snapshots.count;
             at = entries[at].next, pending++)
            if (entries[at].position > sequence->planned_length ||
                entries[at].position % scheduler->state_unit)
                return "a snapshot is of tokens that are not planned";
    }
    return rp_kv_snapshots_check(&scheduler->snapshots, pending);
}

/* References that the tables of all sequences in this state hold, against the pool's. */
static const char *check_refs(const struct rp_scheduler *scheduler, const struct rp_kv_pool *pool,
                              enum rp_sequence_state state) {
    uint32_t *refs = scheduler->ref_scratch;
    const char *broken = NULL;
    for (uint32_t slot = 0; slot < scheduler->config.slot_count; slot++) {
        const struct rp_sequence *sequence = &scheduler->sequences[slot];
        for (uint32_t g = 0; sequence->state == state && g < scheduler->group_count; g++) {
            const struct rp_held_pages *held = &sequence->held[g];
            for (uint32_t i = held->first; i < held->end; i++) {
                if (held->table[i] >= pool->page_count)
                    broken = "a table names a page that does not exist";
                else
                    refs[held->table[i]]++;
            }
        }
    }
    if (!broken)
        broken = rp_kv_pool_check(pool, refs);
    memset(refs, 0, pool->page_count * sizeof *refs);
    return broken;
}

const char *rp_scheduler_check(const struct rp_scheduler *scheduler) {
    uint64_t worst = 0, worst_oldest = 0;
    const char *broken = check_lists(scheduler);
    for (uint32_t slot = 0; !broken && slot < scheduler->config.slot_count; slot++) {
        broken = check_slot(scheduler, slot);
        if (scheduler->sequences[slot].request)
            worst += scheduler->sequences[slot].worst_pages;
    }
    if (!broken)
        broken = check_refs(scheduler, &scheduler->pool, RP_SEQUENCE_RUNNING);
    if (!broken)
        broken = check_refs(scheduler, &scheduler->host, RP_SEQUENCE_SWAPPED);
    if (!broken && scheduler->config.prefix_cache)
        broken = rp_kv_prefix_check(&scheduler->prefix);
    if (!broken)
        broken = check_snapshots(scheduler);
    if (!broken)
        broken = rp_sched_tenants_check(scheduler);
    if (broken)
        return broken;
    if (worst != scheduler->worst_page_sum)
        return "the sum of worst cases is not that of the admitted sequences";
    if (rp_sched_oldest(scheduler))
        worst_oldest = rp_sched_oldest(scheduler)->worst_pages;
    if (worst > scheduler->config.page_count - 1 &&
        worst - worst_oldest > scheduler->config.host_page_count)
        return "the admitted sequences could get stuck";
    if (scheduler->host.counts[RP_KV_FREE] + scheduler->host.counts[RP_KV_HELD] !=
        scheduler->host.page_count)
        return "a host page is neither free nor held";
    if (scheduler->waiting_count > scheduler->config.queue_capacity)
        return "the queue is longer than its capacity";
    return NULL;
}
