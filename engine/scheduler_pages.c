/* A sequence's pages, by group: taken at the end of its tables, given back at the front once its
 * window has passed them, and entered in the prefix table.
 *
 * A page may be passed before its prompt is complete, so before logits have proven it clean. It is
 * then entered unproven (kv_prefix.h): if it stays in the cache until the proof comes, the same
 * beginning is found again, however short the window. */
#include "engine/scheduler_internal.h"

uint64_t rp_sched_pages_max(const struct rp_scheduler_config *config, uint64_t tokens) {
    return rp_kv_pages_max(&config->groups, config->page_tokens, rp_sched_chunk_max(config),
                           tokens);
}

uint64_t rp_sched_tokens_max(const struct rp_scheduler_config *config) {
    return rp_kv_tokens_max(&config->groups, config->page_tokens, rp_sched_chunk_max(config),
                            config->page_count - 1, config->max_model_len);
}

uint32_t rp_sched_held(const struct rp_scheduler *scheduler, const struct rp_sequence *sequence) {
    uint32_t count = 0;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        count += sequence->held[g].end - sequence->held[g].first;
    return count;
}

uint32_t rp_sched_content(const struct rp_scheduler *scheduler,
                          const struct rp_sequence *sequence) {
    uint32_t end = rp_sched_pages_of(scheduler, sequence->planned_length), count = 0;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        count += end - sequence->held[g].first;
    return count;
}

uint32_t rp_sched_take_page(struct rp_scheduler *scheduler, struct rp_step_store *step,
                            struct rp_sequence *sequence, uint32_t group, bool overwritten) {
    struct rp_held_pages *held = &sequence->held[group];
    uint32_t page = rp_kv_pool_try_alloc(&scheduler->pool);
    if (page == RP_KV_NO_PAGE && scheduler->config.prefix_cache &&
        rp_kv_prefix_evict(&scheduler->prefix))
        page = rp_kv_pool_try_alloc(&scheduler->pool);
    RP_ASSERT_CMP(page, !=, RP_KV_NO_PAGE);
    RP_ASSERT_CMP(step->page_count, <, scheduler->config.page_edit_capacity);
    RP_ASSERT_CMP(held->end, <, scheduler->pages_per_slot);
    /* Zeroing is done after the step's copies, so a page that was just swapped out is safe. */
    if (scheduler->pool.pages[page].dirty && !overwritten)
        step->zero_pages[step->zero_count++] = page;
    scheduler->pool.pages[page].dirty = false;
    step->pages[step->page_count++] =
        (struct rp_sched_page){sequence->slot, group * scheduler->pages_per_slot + held->end, page};
    held->table[held->end++] = page;
    return page;
}

/* Tokens of a page that is full. Those of the prompt are still with the request; generated ones are
 * in the tail, because no page after this one has been hashed. */
static const int32_t *page_token_ids(struct rp_scheduler *scheduler,
                                     const struct rp_sequence *sequence, uint32_t index) {
    uint32_t page_tokens = scheduler->config.page_tokens, begin = index * page_tokens;
    if (begin + page_tokens <= sequence->prompt_count)
        return sequence->request->prompt + begin;
    for (uint32_t i = 0; i < page_tokens; i++)
        scheduler->page_scratch[i] = begin + i < sequence->prompt_count
                                         ? sequence->request->prompt[begin + i]
                                         : sequence->tail_tokens[i];
    return scheduler->page_scratch;
}

/* Extends the chain to `full` pages and enters them. While swapped out only the chain goes on: the
 * pages that would be entered are on the host. */
static void enter_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence,
                        uint32_t full) {
    uint32_t clean = sequence->verified_length / scheduler->config.page_tokens;
    while (sequence->hashed_pages < full) {
        uint32_t index = sequence->hashed_pages++;
        const int32_t *tokens = page_token_ids(scheduler, sequence, index);
        if (index == 0)
            sequence->chain = rp_kv_prefix_root(&scheduler->prefix, sequence->salt);
        struct rp_kv_prefix_link link = {.salt = sequence->salt,
                                         .previous = sequence->chain,
                                         .owner = index < clean ? 0 : sequence->age};
        sequence->chain = rp_kv_prefix_next(&scheduler->prefix, sequence->chain, tokens);
        rp_kv_snapshots_name(&scheduler->snapshots, sequence->pending_snapshots,
                             sequence->hashed_pages * scheduler->config.page_tokens, sequence->salt,
                             sequence->chain);
        for (uint32_t g = 0; g < scheduler->group_count; g++) {
            link.hash = rp_sched_group_hash(scheduler, sequence->chain, g);
            link.is_silent = g != scheduler->lead_group;
            if (sequence->state == RP_SEQUENCE_RUNNING && index >= sequence->held[g].first)
                rp_kv_prefix_enter(&scheduler->prefix, sequence->held[g].table[index], &link,
                                   tokens);
        }
    }
}

/* Whether a table's entry names a page on the device, held or given back. */
static bool is_on_device(const struct rp_sequence *sequence, uint32_t group, uint32_t index) {
    return sequence->state == RP_SEQUENCE_RUNNING || index < sequence->held[group].first;
}

void rp_sched_prove_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence) {
    uint32_t tokens_end = sequence->verified_length;
    if (scheduler->config.prefix_prompt_only)
        tokens_end = RP_MIN(tokens_end, sequence->prompt_count);
    uint32_t full = tokens_end / scheduler->config.page_tokens;
    /* What was entered before its proof; nothing below it, nor where a page went on to another. */
    for (; sequence->proven_pages < RP_MIN(full, sequence->hashed_pages); sequence->proven_pages++)
        for (uint32_t g = 0; g < scheduler->group_count; g++)
            if (is_on_device(sequence, g, sequence->proven_pages))
                rp_kv_prefix_prove(&scheduler->prefix,
                                   sequence->held[g].table[sequence->proven_pages], sequence->age);
    enter_pages(scheduler, sequence, full);
    sequence->proven_pages = RP_MAX(sequence->proven_pages, full);
    if (sequence->pending_snapshots != RP_NO_SNAPSHOT)
        rp_kv_snapshots_keep(&scheduler->snapshots, &sequence->pending_snapshots, tokens_end);
}

void rp_sched_forget_unproven(struct rp_scheduler *scheduler, struct rp_sequence *sequence) {
    if (!scheduler->config.prefix_cache)
        return;
    for (uint32_t i = sequence->proven_pages; i < sequence->hashed_pages; i++)
        for (uint32_t g = 0; g < scheduler->group_count; g++) {
            uint32_t page = sequence->held[g].table[i];
            if (is_on_device(sequence, g, i) &&
                rp_kv_prefix_owns(&scheduler->prefix, page, sequence->age))
                rp_kv_prefix_remove(&scheduler->prefix, page);
        }
}

/* Gives one device page back. */
static void release_page(struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                         uint32_t page, bool is_clean, uint64_t fence) {
    bool unproven = scheduler->config.prefix_cache &&
                    rp_kv_prefix_owns(&scheduler->prefix, page, sequence->age);
    if (!is_clean && !unproven)
        scheduler->pool.pages[page].dirty = true;
    rp_kv_pool_release(&scheduler->pool, page, fence);
}

void rp_sched_drop_passed(struct rp_scheduler *scheduler, struct rp_sequence *sequence) {
    uint32_t page_tokens = scheduler->config.page_tokens;
    uint32_t clean = sequence->verified_length / page_tokens;
    /* The tokens of these are known, so they can be hashed. */
    uint32_t known = RP_MAX(sequence->verified_length, sequence->prompt_count) / page_tokens;
    for (uint32_t g = 0; g < scheduler->group_count && scheduler->windowed_count; g++) {
        struct rp_held_pages *held = &sequence->held[g];
        uint32_t first = rp_kv_first_page(scheduler->config.groups.window[g], page_tokens,
                                          sequence->planned_length);
        first = RP_MIN(RP_MIN(first, known), held->end);
        if (first <= held->first)
            continue;
        if (scheduler->config.prefix_cache)
            enter_pages(scheduler, sequence, RP_MIN(first, sequence->prompt_count / page_tokens));
        while (held->first < first) {
            uint32_t i = held->first++;
            release_page(scheduler, sequence, held->table[i], i < clean, sequence->last_step);
        }
        scheduler->release_epoch++;
    }
}

void rp_sched_release_pages(struct rp_scheduler *scheduler, struct rp_sequence *sequence,
                            uint64_t fence) {
    uint32_t page_tokens = scheduler->config.page_tokens, end = 0;
    uint32_t clean = sequence->verified_length / page_tokens;
    uint32_t written = rp_sched_pages_of(scheduler, sequence->planned_length);
    if (sequence->planned_length == sequence->verified_length)
        clean = written;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        end = RP_MAX(end, sequence->held[g].end);
    /* Last page first: the cache evicts in this order, and a page is of no use without those
     * before. */
    while (end-- > 0)
        for (uint32_t g = 0; g < scheduler->group_count; g++) {
            struct rp_held_pages *held = &sequence->held[g];
            if (end < held->first || end >= held->end)
                continue;
            uint32_t page = held->table[end];
            held->end = end;
            if (scheduler->config.prefix_cache &&
                rp_kv_prefix_owns(&scheduler->prefix, page, sequence->age))
                rp_kv_prefix_remove(&scheduler->prefix, page);
            release_page(scheduler, sequence, page, end < clean || end >= written, fence);
        }
    scheduler->release_epoch++;
}
