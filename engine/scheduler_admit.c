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
    uint64_t tokens_max = RP_MIN(rp_sched_tokens_max(config) + 1, (uint64_t)config->max_model_len);
    bool too_long =
        config->whole_prompts && prompt_count > rp_scheduler_whole_prompt_max(config, false);
    if (prompt_count == 0 || too_long || prompt_count >= tokens_max)
        return 0;
    return (uint32_t)(tokens_max - prompt_count);
}

bool rp_scheduler_prompt_fits(const struct rp_scheduler_config *config, uint32_t prompt_count) {
    bool too_long =
        config->whole_prompts && prompt_count > rp_scheduler_whole_prompt_max(config, false);
    return prompt_count && !too_long && prompt_count <= config->max_model_len &&
           prompt_count <= rp_sched_tokens_max(config);
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

/* What the prefix table has of a prompt. */
struct prefix_match {
    uint32_t pages;          /* of its beginning */
    struct rp_hash128 chain; /* the hash of the last one */
    uint32_t found, cached;  /* pages of all groups to use, and those that only the cache holds */
    uint32_t snapshot;       /* with recurrent state: that after the last one */
};

/* The first page of a group that a sequence needs which begins after `pages` pages. */
static uint32_t first_needed(const struct rp_scheduler *scheduler, uint32_t group, uint32_t pages) {
    uint32_t page_tokens = scheduler->config.page_tokens;
    return rp_kv_first_page(scheduler->config.groups.window[group], page_tokens,
                            pages * page_tokens);
}

/* Looks up the page at `index` of each group, and notes in run_begin where a group's unbroken run
 * of pages begins. False: a group without a window has no such page, and so none after it. */
static bool match_page(const struct rp_scheduler *scheduler, uint32_t index, uint64_t salt,
                       struct rp_hash128 hash, const int32_t *tokens, uint32_t *run_begin) {
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        uint32_t page = rp_kv_prefix_find(&scheduler->prefix, salt,
                                          rp_sched_group_hash(scheduler, hash, g), tokens);
        scheduler->match[g * scheduler->pages_per_slot + index] = page;
        if (page != RP_KV_NO_PAGE)
            continue;
        run_begin[g] = index + 1;
        if (scheduler->config.groups.window[g] == 0)
            return false;
    }
    return true;
}

static void count_match(const struct rp_scheduler *scheduler, struct prefix_match *match) {
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        for (uint32_t i = first_needed(scheduler, g, match->pages); i < match->pages; i++) {
            uint32_t page = scheduler->match[g * scheduler->pages_per_slot + i];
            match->found++;
            match->cached += scheduler->pool.pages[page].state == RP_KV_CACHED;
        }
}

/* Longest beginning of the prompt that is in the prefix table, in whole pages and without the last
 * token, which must give logits; of a prompt that is to be scored all must. A group with a window
 * needs only the pages that the next token sees; with recurrent state there must be a snapshot.
 * Pages go to scheduler->match. */
static struct prefix_match match_prefix(const struct rp_scheduler *scheduler,
                                        const struct rp_request *request) {
    const struct rp_kv_prefix *prefix = &scheduler->prefix;
    struct prefix_match match = {0};
    uint32_t page_tokens = scheduler->config.page_tokens, run_begin[RP_KV_GROUPS_MAX] = {0};
    uint64_t salt = request->cache_salt;
    uint32_t limit = (request->prompt_count - 1) / page_tokens;
    if (!scheduler->config.prefix_cache || request->prompt_logprobs)
        return match;
    struct rp_hash128 chain = rp_kv_prefix_root(prefix, salt);
    for (uint32_t index = 0; index < limit; index++) {
        const int32_t *tokens = request->prompt + (size_t)index * page_tokens;
        bool whole = true;
        chain = rp_kv_prefix_next(prefix, chain, tokens);
        if (!match_page(scheduler, index, salt, chain, tokens, run_begin))
            break;
        for (uint32_t g = 0; g < scheduler->group_count; g++)
            whole &= run_begin[g] <= first_needed(scheduler, g, index + 1);
        uint32_t snapshot = RP_NO_SNAPSHOT;
        if (whole && scheduler->config.state_unit) {
            snapshot = rp_kv_snapshots_find(&scheduler->snapshots, salt, chain);
            whole = snapshot != RP_NO_SNAPSHOT;
        }
        if (whole) {
            match.snapshot = snapshot;
            match.pages = index + 1;
            match.chain = chain;
        }
    }
    count_match(scheduler, &match);
    return match;
}

/* A slot in its first state. */
static struct rp_sequence *open_sequence(struct rp_scheduler *scheduler, struct rp_request *request,
                                         uint32_t worst_pages) {
    uint32_t slot = scheduler->free_slots[--scheduler->free_slot_count];
    struct rp_sequence *sequence = &scheduler->sequences[slot];
    uint32_t *table = sequence->held[0].table;
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
                                     .pending_snapshots = RP_NO_SNAPSHOT,
                                     .tail_tokens = tail_tokens};
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        sequence->held[g].table = table + (size_t)g * scheduler->pages_per_slot;
    scheduler->worst_page_sum += worst_pages;
    rp_sched_list_insert(scheduler, scheduler->running, &scheduler->running_count, slot);
    return sequence;
}

/* A new sequence's pages: what was found of each group, and, without a window, those for the whole
 * prompt. */
static void fill_tables(struct rp_scheduler *scheduler, struct rp_step_store *step,
                        struct rp_sequence *sequence, uint32_t page_count, uint32_t hits) {
    /* Found pages first: taking new ones may evict, and must not evict these. */
    for (uint32_t g = 0; g < scheduler->group_count; g++) {
        struct rp_held_pages *held = &sequence->held[g];
        held->first = held->end = first_needed(scheduler, g, hits);
        for (; held->end < hits; held->end++) {
            uint32_t at = g * scheduler->pages_per_slot + held->end, page = scheduler->match[at];
            rp_kv_pool_acquire(&scheduler->pool, page);
            step->pages[step->page_count++] = (struct rp_sched_page){sequence->slot, at, page};
            held->table[held->end] = page;
        }
    }
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        while (scheduler->config.groups.window[g] == 0 && sequence->held[g].end < page_count)
            rp_sched_take_page(scheduler, step, sequence, g, false);
}

static void enter(struct rp_scheduler *scheduler, struct rp_step_store *step,
                  struct rp_request *request, uint32_t worst_pages, uint32_t page_count,
                  const struct prefix_match *match) {
    struct rp_sequence *sequence = open_sequence(scheduler, request, worst_pages);
    uint32_t hits = match->pages, hit_tokens = hits * scheduler->config.page_tokens;
    fill_tables(scheduler, step, sequence, page_count, hits);
    sequence->planned_length = sequence->verified_length = hit_tokens;
    sequence->hashed_pages = sequence->proven_pages = hits;
    sequence->chain = sequence->hit = match->chain;
    request->cached_tokens = hit_tokens;
    if (scheduler->config.prefix_cache) {
        scheduler->prefix_query_tokens += request->prompt_count;
        scheduler->prefix_hit_tokens += hit_tokens;
    }
    if (hits && scheduler->config.state_unit)
        rp_kv_snapshots_use(&scheduler->snapshots, match->snapshot, step->id);
    step->joins[step->join_count++] =
        (struct rp_sched_join){request, sequence->slot, hit_tokens, match->snapshot};
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
    uint32_t worst_pages = (uint32_t)rp_sched_pages_max(config, worst_tokens);
    uint32_t page_count =
        rp_sched_pages_of(scheduler, RP_MIN((uint64_t)request->prompt_count + 1, worst_tokens));
    bool all_fit;
    if (!cannot_get_stuck(scheduler, worst_pages, &all_fit))
        return false;
    struct prefix_match match = match_prefix(scheduler, request);
    /* Groups with a window take the pages of each chunk with it: one page each is a beginning. */
    uint32_t fresh =
        (page_count - match.pages) * (scheduler->group_count - scheduler->windowed_count) +
        scheduler->windowed_count;
    if (match.found + fresh > config->page_edit_capacity - step->page_count)
        return false;
    uint32_t available = rp_kv_pool_available(&scheduler->pool) - match.cached;
    uint32_t margin = all_fit ? 0 : rp_sched_margin(scheduler);
    if ((uint64_t)fresh + margin > available) {
        scheduler->blocked_head = request;
        scheduler->blocked_epoch = scheduler->release_epoch;
        return false;
    }
    take_waiting(scheduler, at);
    rp_sched_tenant_admit(scheduler, request);
    scheduler->blocked_head = NULL;
    enter(scheduler, step, request, worst_pages, page_count, &match);
    return true;
}
