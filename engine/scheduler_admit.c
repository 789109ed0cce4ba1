/* Admission: the request that its tenant's share picks, and only when nobody can get stuck because
 * of it. */
#include "engine/scheduler_internal.h"

uint32_t rp_scheduler_whole_prompt_max(const struct rp_scheduler_config *config, bool scored) {
    uint32_t tokens = config->token_buckets[config->token_bucket_count - 1];
    if (!config->whole_prompts)
        return 0;
    return scored ? RP_MIN(tokens, RP_MIN(config->row_capacity, config->logit_rows_max)) : tokens;
}

uint32_t rp_scheduler_output_max(const struct rp_scheduler_config *config, uint32_t prompt_count) {
    /* The last token of an answer is not written to a page, and page 0 is for padding. */
    uint64_t written_max = (uint64_t)(config->page_count - 1) * config->page_tokens;
    uint64_t tokens_max = RP_MIN(written_max + 1, (uint64_t)config->max_model_len);
    bool too_long =
        config->whole_prompts && prompt_count > rp_scheduler_whole_prompt_max(config, false);
    if (prompt_count == 0 || too_long || prompt_count >= tokens_max)
        return 0;
    return (uint32_t)(tokens_max - prompt_count);
}

bool rp_scheduler_prompt_fits(const struct rp_scheduler_config *config, uint32_t prompt_count) {
    uint32_t written_max = (config->page_count - 1) * config->page_tokens;
    bool too_long =
        config->whole_prompts && prompt_count > rp_scheduler_whole_prompt_max(config, false);
    return prompt_count && !too_long && prompt_count <= RP_MIN(written_max, config->max_model_len);
}

/* Whether every sequence can always finish, with one more of this size. Either all of them fit the
 * device at their worst, so nobody is ever swapped out; or all but the oldest fit the host, so the
 * oldest can always have the whole device. Both stay true when any of them leaves. */
static bool cannot_get_stuck(const struct rp_scheduler *scheduler, uint32_t worst_pages,
                             bool *out_all_fit) {
    const struct rp_sequence *oldest = rp_sched_oldest(scheduler);
    uint64_t sum = scheduler->worst_page_sum + worst_pages;
    uint64_t oldest_pages = oldest ? oldest->worst_pages : worst_pages;
    *out_all_fit = sum <= scheduler->config.page_count - 1;
    return *out_all_fit || sum - oldest_pages <= scheduler->config.host_page_count;
}

/* Longest beginning of the prompt that is in the prefix table, in whole pages and without the last
 * token, which must give logits; of a prompt that is to be scored all must. Pages go to
 * scheduler->match; out_cached: how many of them only the cache holds; out_chain: the hash of the
 * last one. */
static uint32_t match_prefix(const struct rp_scheduler *scheduler, const struct rp_request *request,
                             struct rp_hash128 *out_chain, uint32_t *out_cached) {
    const struct rp_kv_prefix *prefix = &scheduler->prefix;
    uint32_t page_tokens = scheduler->config.page_tokens, count = 0;
    uint64_t salt = request->cache_salt;
    uint32_t limit = (request->prompt_count - 1) / page_tokens;
    *out_cached = 0;
    if (!scheduler->config.prefix_cache || request->prompt_logprobs)
        return 0;
    *out_chain = rp_kv_prefix_root(prefix, salt);
    while (count < limit) {
        const int32_t *tokens = request->prompt + (size_t)count * page_tokens;
        struct rp_hash128 hash = rp_kv_prefix_next(prefix, *out_chain, tokens);
        uint32_t page = rp_kv_prefix_find(prefix, salt, hash, tokens);
        if (page == RP_KV_NO_PAGE)
            break;
        *out_cached += scheduler->pool.pages[page].state == RP_KV_CACHED;
        scheduler->match[count++] = page;
        *out_chain = hash;
    }
    return count;
}

/* A slot in its first state. */
static struct rp_sequence *open_sequence(struct rp_scheduler *scheduler, struct rp_request *request,
                                         uint32_t worst_pages) {
    uint32_t slot = scheduler->free_slots[--scheduler->free_slot_count];
    struct rp_sequence *sequence = &scheduler->sequences[slot];
    uint32_t *pages = sequence->pages;
    int32_t *tail_tokens = sequence->tail_tokens;
    *sequence = (struct rp_sequence){.request = request,
                                     .state = RP_SEQUENCE_RUNNING,
                                     .slot = slot,
                                     .age = ++scheduler->age_next,
                                     .turn = ++scheduler->turns,
                                     .prompt_count = request->prompt_count,
                                     .max_tokens = request->max_tokens,
                                     .salt = request->cache_salt,
                                     .worst_pages = worst_pages,
                                     .pages = pages,
                                     .tail_tokens = tail_tokens};
    scheduler->worst_page_sum += worst_pages;
    rp_sched_list_insert(scheduler, scheduler->running, &scheduler->running_count, slot);
    return sequence;
}

static void enter(struct rp_scheduler *scheduler, struct rp_step_store *step,
                  struct rp_request *request, uint32_t worst_pages, uint32_t page_count,
                  uint32_t hits, struct rp_hash128 chain) {
    struct rp_sequence *sequence = open_sequence(scheduler, request, worst_pages);
    uint32_t hit_tokens = hits * scheduler->config.page_tokens;
    /* Found pages first: taking new ones may evict, and must not evict these. */
    for (uint32_t i = 0; i < hits; i++) {
        uint32_t page = scheduler->match[i];
        rp_kv_pool_acquire(&scheduler->pool, page);
        step->pages[step->page_count++] = (struct rp_sched_page){sequence->slot, i, page};
        sequence->pages[sequence->page_count++] = page;
    }
    while (sequence->page_count < page_count)
        rp_sched_take_page(scheduler, step, sequence, false);
    sequence->planned_length = sequence->verified_length = hit_tokens;
    sequence->hashed_pages = hits;
    sequence->chain = chain;
    request->cached_tokens = hit_tokens;
    if (scheduler->config.prefix_cache) {
        scheduler->prefix_query_tokens += request->prompt_count;
        scheduler->prefix_hit_tokens += hit_tokens;
    }
    step->joins[step->join_count++] = (struct rp_sched_join){request, sequence->slot, hit_tokens};
    bool planned = rp_sched_plan_chunk(scheduler, step, sequence);
    RP_ASSERT(planned);
}

/* Whether the pages that the request is to share are still being computed. They are in the prefix
 * table with the first token of number 0; whoever does not find them then computes them. */
static bool must_wait_for_prompt(const struct rp_scheduler *scheduler,
                                 const struct rp_request *request) {
    if (request->choice == 0 || request->prompt_logprobs || !scheduler->config.prefix_cache ||
        request->prompt_count <= scheduler->config.page_tokens)
        return false;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        const struct rp_request *first = sequence->request;
        if (first->prompt == request->prompt && first->choice == 0 && sequence->outputs == 0)
            return true;
    }
    return false;
}

/* Removes one request; those that arrived before it move up by one place. */
static void take_waiting(struct rp_scheduler *scheduler, uint32_t at) {
    uint32_t capacity = scheduler->config.queue_capacity;
    while (at != scheduler->waiting_first) {
        uint32_t before = (at + capacity - 1) % capacity;
        scheduler->waiting[at] = scheduler->waiting[before];
        at = before;
    }
    scheduler->waiting_first = (scheduler->waiting_first + 1) % capacity;
    scheduler->waiting_count--;
}

bool rp_sched_try_admit(struct rp_scheduler *scheduler, struct rp_step_store *step) {
    const struct rp_scheduler_config *config = &scheduler->config;
    if (scheduler->waiting_count == 0 || scheduler->swapped_count || !scheduler->free_slot_count)
        return false;
    /* Its first chunk must find a place in this step, even if that is the whole prompt. */
    if (step->token_room == 0 || step->sample_room == 0 ||
        step->row_count == config->row_capacity || step->join_count == config->join_capacity)
        return false;
    uint32_t at = rp_sched_tenant_pick(scheduler);
    if (at == RP_SCHED_NOBODY)
        return false;
    struct rp_request *request = scheduler->waiting[at];
    if (request == scheduler->blocked_head && scheduler->blocked_epoch == scheduler->release_epoch)
        return false;
    if (must_wait_for_prompt(scheduler, request) || !rp_sched_has_room(scheduler, step, request))
        return false;
    uint64_t worst_tokens = rp_sched_written_max(request->prompt_count, request->max_tokens);
    uint32_t worst_pages = rp_sched_pages_of(scheduler, worst_tokens);
    uint32_t page_count =
        rp_sched_pages_of(scheduler, RP_MIN((uint64_t)request->prompt_count + 1, worst_tokens));
    bool all_fit;
    if (!cannot_get_stuck(scheduler, worst_pages, &all_fit) ||
        page_count > config->page_edit_capacity - step->page_count)
        return false;
    struct rp_hash128 chain = {0, 0};
    uint32_t cached, hits = match_prefix(scheduler, request, &chain, &cached);
    uint32_t available = rp_kv_pool_available(&scheduler->pool) - cached;
    uint32_t margin = all_fit ? 0 : rp_sched_margin(scheduler);
    if ((uint64_t)page_count - hits + margin > available) {
        scheduler->blocked_head = request;
        scheduler->blocked_epoch = scheduler->release_epoch;
        return false;
    }
    take_waiting(scheduler, at);
    rp_sched_tenant_admit(scheduler, request);
    scheduler->blocked_head = NULL;
    enter(scheduler, step, request, worst_pages, page_count, hits, chain);
    return true;
}
