/* Preemption: pages go to the host and come back; nothing is ever computed twice.
 *
 * Why the order of copies is safe. A step's copies run in stream order: after all graphs of the
 * steps before, before its own zeroing and its own graphs. So
 * - a victim may have a row in the step that is in flight: that row's K and V, slot length and last
 * token are written before the copy reads the pages. Its planned_length counts that row;
 * - a page that a swap-out releases may be given to another sequence in the very same step: the
 * copy out, and the zeroing if it is needed, come before the new owner's first write. The release
 * needs no fence for the same reason;
 * - a host page that a return releases may be the target of a swap-out of the same step, since
 * returns are listed first. What would not be safe is a victim with a row in the step being
 * planned: its copy would come before that row's writes. Such sequences, and those that returned in
 * this step, are never victims.
 *
 * All of the victim's pages are copied, shared ones too: what it shares stays with the others or in
 * the prefix cache, but may be gone when it returns. On return all its pages are fresh and private.
 */
#include "engine/scheduler_internal.h"

uint32_t rp_sched_margin(const struct rp_scheduler *scheduler) {
    return scheduler->running_count * scheduler->group_count;
}

/* Copies the pages that have content to the host, and puts those into the tables: for
 * release_pages, which needs the device's, later. Returns how many. */
static uint32_t copy_out(struct rp_scheduler *scheduler, struct rp_step_store *step,
                         const struct rp_sequence *sequence) {
    uint32_t end = rp_sched_pages_of(scheduler, sequence->planned_length);
    uint32_t copy_begin = step->copy_count;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        for (uint32_t i = sequence->held[g].first; i < end; i++) {
            uint32_t to = rp_kv_pool_try_alloc(&scheduler->host);
            RP_ASSERT_CMP(to, !=, RP_KV_NO_PAGE);
            step->copies[step->copy_count++] =
                (struct rp_sched_copy){RP_COPY_TO_HOST, sequence->held[g].table[i], to};
        }
    return step->copy_count - copy_begin;
}

static void swap_out(struct rp_scheduler *scheduler, struct rp_step_store *step,
                     struct rp_sequence *sequence) {
    /* The copies name device pages, which release_pages forgets. */
    uint32_t copy = step->copy_count, content = copy_out(scheduler, step, sequence);
    uint32_t end = rp_sched_pages_of(scheduler, sequence->planned_length);
    step->swaps[step->swap_count++] = (struct rp_sched_swap){sequence->request->id, content, true};
    rp_sched_release_pages(scheduler, sequence, 0);
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        struct rp_held_pages *held = &sequence->held[g];
        while (held->end < end)
            held->table[held->end++] = step->copies[copy++].to;
    }
    sequence->state = RP_SEQUENCE_SWAPPED;
    sequence->request->swap_count++;
    rp_sched_list_remove(scheduler->running, &scheduler->running_count, sequence->slot);
    rp_sched_list_insert(scheduler, scheduler->swapped, &scheduler->swapped_count, sequence->slot);
    bool in_prompt = rp_sequence_in_prompt(sequence);
    scheduler->preempted[in_prompt ? RP_PREEMPTED_PREFILL : RP_PREEMPTED_DECODE]++;
}

/* Adds (sign 1) or takes back (-1) a sequence's references in ref_scratch. Returns how many of its
 * pages are then referenced by nobody else, so that swapping out all sequences added makes them
 * available. */
static uint32_t count_refs(struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                           int sign) {
    uint32_t frees = 0;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        for (uint32_t i = sequence->held[g].first; i < sequence->held[g].end; i++) {
            uint32_t page = sequence->held[g].table[i];
            const struct rp_kv_page *entry = &scheduler->pool.pages[page];
            scheduler->ref_scratch[page] += (uint32_t)sign;
            frees += scheduler->ref_scratch[page] == entry->refs &&
                     entry->fence <= scheduler->pool.retired_step;
        }
    return frees;
}

static bool may_be_victim(const struct rp_sequence *victim, const struct rp_step_store *step,
                          const struct rp_sequence *sequence) {
    return victim->age > sequence->age && victim->last_step != step->id &&
           victim->return_step != step->id;
}

bool rp_sched_make_room(struct rp_scheduler *scheduler, struct rp_step_store *step,
                        const struct rp_sequence *sequence, uint32_t need) {
    uint32_t victim_count = 0, walked = 0, host_pages = 0;
    uint32_t available = rp_kv_pool_available(&scheduler->pool);
    if (available >= need)
        return true;
    /* Pages that come free by themselves with the results of a step in flight are worth that wait.
     */
    if (rp_kv_pool_count(&scheduler->pool, RP_KV_PENDING) > 0)
        return false;
    for (uint32_t i = 0; i < scheduler->running_count; i++)
        if (rp_sequence_is_ending(&scheduler->sequences[scheduler->running[i]]))
            return false;
    /* Youngest first, as many as it takes: pages may be shared between victims. */
    while (available < need && walked < scheduler->running_count) {
        struct rp_sequence *victim =
            &scheduler->sequences[scheduler->running[scheduler->running_count - 1 - walked++]];
        if (!may_be_victim(victim, step, sequence))
            continue;
        host_pages += rp_sched_content(scheduler, victim);
        available += count_refs(scheduler, victim, 1);
        scheduler->order_victims[victim_count++] = victim->slot;
    }
    for (uint32_t i = 0; i < victim_count; i++)
        count_refs(scheduler, &scheduler->sequences[scheduler->order_victims[i]], -1);
    if (available < need || host_pages > rp_kv_pool_count(&scheduler->host, RP_KV_FREE))
        return false;
    for (uint32_t i = 0; i < victim_count; i++)
        swap_out(scheduler, step, &scheduler->sequences[scheduler->order_victims[i]]);
    scheduler->release_epoch++;
    return true;
}

/* Where a group's pages end that a sequence has when it returns: with room for its next token;
 * without a window, for its whole prompt. */
static uint32_t return_end(const struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                           uint32_t group) {
    uint64_t tokens = sequence->planned_length;
    if (scheduler->config.groups.window[group] == 0)
        tokens = RP_MAX(sequence->planned_length, sequence->prompt_count);
    return rp_sched_pages_of(
        scheduler,
        RP_MIN(tokens + 1, rp_sched_written_max(sequence->prompt_count, sequence->max_tokens)));
}

static void swap_in_group(struct rp_scheduler *scheduler, struct rp_step_store *step,
                          struct rp_sequence *sequence, uint32_t group) {
    struct rp_held_pages *held = &sequence->held[group];
    uint32_t content = held->end, end = return_end(scheduler, sequence, group);
    held->end = held->first;
    while (held->end < end) {
        bool has_content = held->end < content;
        uint32_t host_page = held->table[held->end];
        uint32_t page = rp_sched_take_page(scheduler, step, sequence, group, has_content);
        if (!has_content)
            continue;
        step->copies[step->copy_count++] =
            (struct rp_sched_copy){RP_COPY_TO_DEVICE, host_page, page};
        rp_kv_pool_release(&scheduler->host, host_page, 0);
    }
}

static void swap_in(struct rp_scheduler *scheduler, struct rp_step_store *step,
                    struct rp_sequence *sequence) {
    step->swaps[step->swap_count++] =
        (struct rp_sched_swap){sequence->request->id, rp_sched_held(scheduler, sequence), false};
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        swap_in_group(scheduler, step, sequence, g);
    sequence->state = RP_SEQUENCE_RUNNING;
    sequence->return_step = step->id;
    rp_sched_list_remove(scheduler->swapped, &scheduler->swapped_count, sequence->slot);
    rp_sched_list_insert(scheduler, scheduler->running, &scheduler->running_count, sequence->slot);
}

void rp_sched_return_swapped(struct rp_scheduler *scheduler, struct rp_step_store *step) {
    /* A step without samples might have no row at all, and copies need a step. */
    while (scheduler->swapped_count && step->sample_room > 0) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->swapped[0]];
        if (rp_sequence_is_ending(sequence))
            return;
        uint32_t page_count = 0;
        for (uint32_t g = 0; g < scheduler->group_count; g++)
            page_count += return_end(scheduler, sequence, g) - sequence->held[g].first;
        uint64_t need = (uint64_t)page_count + rp_sched_margin(scheduler);
        if (need > rp_kv_pool_available(&scheduler->pool) ||
            page_count > scheduler->config.page_edit_capacity - step->page_count)
            return;
        swap_in(scheduler, step, sequence);
    }
}
