/* Who gets a row in the next step: decode rows, prompt chunks, newcomers. */
#include "engine/scheduler_internal.h"

#include <string.h>

static inline void add_row(struct rp_step_store *step, struct rp_sequence *sequence, uint32_t count,
                           bool decode, bool samples) {
    struct rp_sched_row *row = &step->rows[step->row_count++];
    *row = (struct rp_sched_row){.request = sequence->request,
                                 .slot = sequence->slot,
                                 .start = sequence->planned_length,
                                 .count = count,
                                 .decode = decode,
                                 .samples = samples,
                                 .output = sequence->planned_outputs,
                                 .scores = !decode && sequence->request->prompt_logprobs};
    step->scored |= sequence->request->logprobs | row->scores;
    step->holds |= samples && sequence->request->hold;
    step->token_count += count;
    step->chunk_count += !decode;
    step->sample_count += rp_row_logits(row);
    step->sample_room -= rp_row_logits(row);
    sequence->planned_length += count;
    sequence->planned_outputs += rp_row_outputs(row);
    sequence->last_step = step->id;
    if (sequence->request->scheduled_ns == 0)
        sequence->request->scheduled_ns = step->now_ns;
}

/* Pages that the sequence lacks for positions below `end`, of all groups. */
static uint32_t missing_pages(const struct rp_scheduler *scheduler,
                              const struct rp_sequence *sequence, uint32_t end) {
    uint32_t pages = rp_sched_pages_of(scheduler, end), count = 0;
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        count += pages - RP_MIN(pages, sequence->held[g].end);
    return count;
}

static void take_missing_pages(struct rp_scheduler *scheduler, struct rp_step_store *step,
                               struct rp_sequence *sequence, uint32_t end) {
    uint32_t pages = rp_sched_pages_of(scheduler, end);
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        while (sequence->held[g].end < pages)
            rp_sched_take_page(scheduler, step, sequence, g, false);
}

/* The pages of a decode row whose token is the first of a page; false: there are too few. */
static RP_COLD bool begin_page(struct rp_scheduler *scheduler, struct rp_step_store *step,
                               struct rp_sequence *sequence) {
    uint32_t end = sequence->planned_length + 1;
    uint32_t missing = missing_pages(scheduler, sequence, end);
    if (missing > scheduler->config.page_edit_capacity - step->page_count ||
        !rp_sched_make_room(scheduler, step, sequence, missing))
        return false;
    take_missing_pages(scheduler, step, sequence, end);
    return true;
}

/* A decode row, with pages when its token is the first of one; false: no page, wait. */
static bool try_decode(struct rp_scheduler *scheduler, struct rp_step_store *step,
                       struct rp_sequence *sequence) {
    uint32_t index = sequence->planned_length / scheduler->config.page_tokens;
    if (scheduler->windowed_count)
        rp_sched_drop_passed(scheduler, sequence);
    for (uint32_t g = 0; g < scheduler->group_count; g++)
        if (sequence->held[g].end <= index) {
            if (!begin_page(scheduler, step, sequence))
                return false;
            break;
        }
    add_row(step, sequence, RP_DECODE_QUERIES, true, true);
    sequence->turn = RP_MAX(sequence->turn, sequence->next_turn);
    return true;
}

/* Whether rows should be left for prompts: one is being computed, or one might come in. */
static bool prompts_want_room(const struct rp_scheduler *scheduler) {
    if (scheduler->waiting_count && scheduler->free_slot_count && !scheduler->swapped_count &&
        rp_sched_tenant_pick(scheduler) != RP_SCHED_NOBODY)
        return true;
    for (uint32_t i = 0; i < scheduler->running_count; i++)
        if (rp_sequence_in_prompt(&scheduler->sequences[scheduler->running[i]]))
            return true;
    return false;
}

/* The waiting prompt that is next and must be computed whole and to which decode rows leave
 * room; NULL: none. Not twice running, so that they are not held up by one prompt after the
 * other. */
static const struct rp_request *prompt_to_yield_to(const struct rp_scheduler *scheduler) {
    if (!scheduler->config.whole_prompts || !scheduler->waiting_count ||
        !scheduler->free_slot_count || scheduler->swapped_count || scheduler->decodes_yielded)
        return NULL;
    uint32_t at = rp_sched_tenant_pick(scheduler);
    return at == RP_SCHED_NOBODY ? NULL : scheduler->waiting[at];
}

/* Decode rows of this step at most. When they could fill the step, prompts keep a row, a sample and
 * a quarter of the tokens: otherwise many long answers would hold up every new one. */
static uint32_t decode_limit(const struct rp_scheduler *scheduler, const struct rp_step_store *step,
                             bool prompts) {
    const struct rp_scheduler_config *config = &scheduler->config;
    uint32_t samples = step->sample_room + step->row_count; /* rows so far are decode rows */
    uint32_t limit = RP_MIN(RP_MIN(config->row_capacity, config->decode_rows_max), samples);
    if (!prompts)
        return limit;
    uint32_t budget = scheduler->token_budget;
    limit = RP_MIN(limit, budget - RP_MIN(budget - 1, RP_MAX(budget / 4, 1)));
    uint32_t rows = RP_MIN(config->row_capacity, samples);
    return rows > 1 ? RP_MIN(limit, rows - 1) : limit;
}

uint32_t rp_sched_choose_decodes(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                                 uint32_t tenant, uint32_t limit) {
    uint32_t *chosen = scheduler->chosen, count = 0;
    for (uint32_t i = 0; i < scheduler->running_count && limit; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        uint32_t at = count;
        if (!rp_sequence_can_decode(sequence, step->id) ||
            (tenant != RP_SCHED_NOBODY && sequence->request->tenant_slot != tenant))
            continue;
        while (at > 0 && scheduler->sequences[chosen[at - 1]].turn > sequence->turn)
            at--;
        if (at == limit)
            continue;
        count = RP_MIN(count + 1, limit);
        memmove(&chosen[at + 1], &chosen[at], (count - at - 1) * sizeof *chosen);
        chosen[at] = sequence->slot;
    }
    for (uint32_t i = 0; i < count; i++) {
        scheduler->sequences[chosen[i]].chosen_step = step->id;
        scheduler->sequences[chosen[i]].next_turn = ++scheduler->turns;
    }
    return count;
}

/* Sequences that can take a decode row, into scheduler->order: first those whose turn it is, at
 * most `limit`, then the others, both oldest first. Returns how many. */
static uint32_t order_decodes(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                              uint32_t limit) {
    uint32_t count = 0, kept = 0, others = 0;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        if (rp_sequence_can_decode(sequence, step->id))
            scheduler->order[count++] = sequence->slot;
    }
    if (count <= limit)
        return count;
    /* More than there are rows: those whose turn it is move to the front. */
    rp_sched_choose_decodes(scheduler, step, RP_SCHED_NOBODY, limit);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = scheduler->order[i];
        if (scheduler->sequences[slot].chosen_step == step->id)
            scheduler->order[kept++] = slot;
        else
            scheduler->chosen[others++] = slot;
    }
    memcpy(&scheduler->order[kept], scheduler->chosen, others * sizeof *scheduler->chosen);
    return count;
}

/* first: a prompt that these rows leave room to, or NULL. Once more in a step: those rows that were
 * left out. */
static void plan_decodes(struct rp_scheduler *scheduler, struct rp_step_store *step,
                         const struct rp_request *first) {
    bool prompts = prompts_want_room(scheduler);
    uint32_t limit = decode_limit(scheduler, step, prompts), before = step->row_count;
    uint32_t room = first && first->prompt_logprobs ? step->sample_room : scheduler->token_budget;
    limit = RP_MIN(limit, first ? room - RP_MIN(room, first->prompt_count) : limit);
    limit -= RP_MIN(limit, before);
    /* The oldest go first: only younger ones without a row yet can be swapped out for a page. Those
     * whose turn it is not get rows that the others cannot use. */
    uint32_t count = order_decodes(scheduler, step, limit);
    for (uint32_t i = 0; i < count && step->row_count - before < limit; i++) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->order[i]];
        if (sequence->state == RP_SEQUENCE_RUNNING)
            try_decode(scheduler, step, sequence);
    }
    uint32_t tokens = prompts || scheduler->waiting_count
                          ? rp_sched_step_tokens(scheduler, step->row_count)
                          : scheduler->token_budget;
    step->token_room = tokens - RP_MIN(tokens, step->token_count);
}

/* How many of the next `count` tokens of a prompt have pages in this step, which are then taken.
 * Groups without a window have the pages of the whole prompt since its admission. As many as there
 * are pages for; only a sequence that has none swaps younger ones out. */
static uint32_t take_chunk_pages(struct rp_scheduler *scheduler, struct rp_step_store *step,
                                 struct rp_sequence *sequence, uint32_t count) {
    uint32_t page_tokens = scheduler->config.page_tokens, begin = sequence->planned_length;
    if (scheduler->windowed_count == 0)
        return count;
    rp_sched_drop_passed(scheduler, sequence);
    uint32_t edits = scheduler->config.page_edit_capacity - step->page_count;
    uint32_t least = missing_pages(scheduler, sequence, begin + 1);
    if (least > edits || (least > 0 && !rp_sched_make_room(scheduler, step, sequence, least)))
        return 0;
    uint32_t room = RP_MIN(rp_kv_pool_available(&scheduler->pool), edits);
    while (missing_pages(scheduler, sequence, begin + count) > room)
        count = (begin + count - 1) / page_tokens * page_tokens - begin;
    take_missing_pages(scheduler, step, sequence, begin + count);
    return count;
}

bool rp_sched_plan_chunk(struct rp_scheduler *scheduler, struct rp_step_store *step,
                         struct rp_sequence *sequence) {
    uint32_t rest = sequence->prompt_count - sequence->planned_length;
    uint32_t count =
        RP_MIN(RP_MIN(rest, step->token_room), rp_sched_tenant_prompt_left(scheduler, sequence));
    if (scheduler->windowed_count)
        count = RP_MIN(count, rp_sched_chunk_max(&scheduler->config));
    if (sequence->request->prompt_logprobs)
        count = RP_MIN(count, step->sample_room);
    else if (count == rest && step->sample_room == 0)
        count--;
    if (count == 0 || step->row_count == scheduler->config.row_capacity)
        return false;
    count = rp_sched_limit_saves(scheduler, sequence, count);
    count = take_chunk_pages(scheduler, step, sequence, count);
    if (count == 0)
        return false;
    RP_ASSERT(!scheduler->config.whole_prompts || count == rest); /* rp_sched_has_room */
    step->token_room -= count;
    rp_sched_tenant_use_prompt(scheduler, sequence, count);
    add_row(step, sequence, count, false, count == rest);
    return true;
}

/* Smallest bucket that holds this many tokens. */
static uint32_t bucket_above(const struct rp_scheduler *scheduler, uint32_t tokens) {
    uint32_t i = 0;
    while (i + 1 < scheduler->config.token_bucket_count &&
           scheduler->config.token_buckets[i] < tokens)
        i++;
    return scheduler->config.token_buckets[i];
}

/* Shortens the last chunk so that the step fills the bucket below, when there are decode rows (the
 * next step runs anyway) and the padding that this saves is more than the tokens that move to the
 * next step and the padding that they cause there. So 8 decodes and a prompt of 57 run as 64 and 9
 * in 16, not as 65 in 128; 8 and 492 stay together in 512. */
static void cut_last_chunk(struct rp_scheduler *scheduler, struct rp_step_store *step) {
    uint32_t decodes = step->row_count - step->chunk_count;
    if (decodes == 0 || step->chunk_count == 0 || step->token_count > scheduler->token_budget ||
        scheduler->config.whole_prompts)
        return;
    uint32_t below = rp_sched_bucket_below(scheduler, step->token_count);
    uint32_t moved = step->token_count - below;
    struct rp_sched_row *row = &step->rows[step->row_count - 1];
    if (below == 0 || moved == 0 || moved >= row->count ||
        decodes + moved > scheduler->token_budget)
        return;
    uint32_t saved = bucket_above(scheduler, step->token_count) - step->token_count;
    uint32_t caused = bucket_above(scheduler, decodes + moved) - (decodes + moved);
    if (saved <= moved + caused)
        return;
    struct rp_sequence *sequence = &scheduler->sequences[row->slot];
    step->sample_count -= rp_row_logits(row);
    sequence->planned_outputs -= rp_row_outputs(row);
    row->count -= moved;
    row->samples = false;
    step->sample_count += rp_row_logits(row);
    step->token_count -= moved;
    sequence->planned_length -= moved;
}

/* How many tokens may get logits without losing an event: those of the steps in flight come
 * first. */
static uint32_t sample_room(const struct rp_scheduler *scheduler, uint32_t event_room) {
    const struct rp_scheduler_config *config = &scheduler->config;
    uint32_t own_room = RP_SCHED_IN_FLIGHT_MAX * RP_SCHED_ROW_EVENTS * config->row_capacity;
    uint64_t taken = scheduler->events.count, room = RP_MIN(event_room, own_room);
    for (uint64_t id = scheduler->committed_step + 1; id <= scheduler->planned_step; id++)
        taken += (uint64_t)scheduler->stores[id % RP_SCHED_IN_FLIGHT_MAX].sample_count *
                 RP_SCHED_ROW_EVENTS;
    uint64_t rows = taken < room ? (room - taken) / RP_SCHED_ROW_EVENTS : 0;
    return (uint32_t)RP_MIN(rows, RP_MIN(config->row_capacity, config->logit_rows_max));
}

/* Why a request ends without the model's doing; RP_FINISH_NONE: it goes on. */
static enum rp_finish_reason end_reason(const struct rp_request *request, bool waits,
                                        uint64_t now_ns) {
    if (atomic_load_explicit(&request->cancelled, memory_order_relaxed))
        return RP_FINISH_CANCELLED;
    if (request->deadline_ns && now_ns >= request->deadline_ns)
        return RP_FINISH_TIMEOUT;
    if (waits && request->queue_deadline_ns && now_ns >= request->queue_deadline_ns)
        return RP_FINISH_QUEUE_TIMEOUT;
    return RP_FINISH_NONE;
}

static void close_ended(struct rp_scheduler *scheduler, uint64_t now_ns) {
    uint32_t kept = 0, capacity = scheduler->config.queue_capacity;
    for (uint32_t i = 0; i < scheduler->waiting_count; i++) {
        struct rp_request *request = scheduler->waiting[(scheduler->waiting_first + i) % capacity];
        enum rp_finish_reason reason = end_reason(request, true, now_ns);
        if (reason != RP_FINISH_NONE) {
            rp_sched_tenant_dequeue(scheduler, request);
            rp_sched_close_request(scheduler, request, 0, reason, now_ns);
            scheduler->blocked_head = NULL; /* its memory may come back as another request */
        } else {
            scheduler->waiting[(scheduler->waiting_first + kept++) % capacity] = request;
        }
    }
    scheduler->waiting_count = kept;
    for (uint32_t slot = 0; slot < scheduler->config.slot_count; slot++) {
        struct rp_sequence *sequence = &scheduler->sequences[slot];
        enum rp_finish_reason reason =
            sequence->request ? end_reason(sequence->request, false, now_ns) : RP_FINISH_NONE;
        if (reason != RP_FINISH_NONE)
            rp_sched_close(scheduler, sequence, reason, now_ns);
    }
}

static struct rp_step_store *begin_step(struct rp_scheduler *scheduler, uint64_t now_ns,
                                        uint32_t event_room) {
    uint64_t id = scheduler->planned_step + 1;
    struct rp_step_store *step = &scheduler->stores[id % RP_SCHED_IN_FLIGHT_MAX];
    step->id = id;
    step->row_count = step->page_count = step->join_count = 0;
    step->copy_count = step->zero_count = step->swap_count = step->save_count = 0;
    step->token_count = step->chunk_count = 0;
    step->scored = step->holds = false;
    step->now_ns = now_ns;
    step->token_room = scheduler->token_budget;
    step->sample_count = 0;
    step->sample_room = sample_room(scheduler, event_room);
    return step;
}

static void plan_rows(struct rp_scheduler *scheduler, struct rp_step_store *step) {
    const struct rp_request *first = prompt_to_yield_to(scheduler);
    plan_decodes(scheduler, step, first);
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        if (rp_sequence_in_prompt(sequence))
            rp_sched_plan_chunk(scheduler, step, sequence);
    }
    while (scheduler->waiting_count && rp_sched_try_admit(scheduler, step)) {
    }
    if (first && step->chunk_count == 0) /* it found no pages */
        plan_decodes(scheduler, step, NULL);
    scheduler->decodes_yielded = first && step->chunk_count;
}

bool rp_scheduler_plan(struct rp_scheduler *scheduler, uint64_t now_ns, uint32_t event_room,
                       struct rp_sched_step *out_step) {
    uint32_t in_flight_max = scheduler->config.run_ahead ? RP_SCHED_IN_FLIGHT_MAX : 1;
    memset(out_step, 0, sizeof *out_step);
    if (scheduler->failed)
        return false;
    close_ended(scheduler, now_ns);
    if (rp_scheduler_in_flight(scheduler) >= in_flight_max)
        return false;
    struct rp_step_store *step = begin_step(scheduler, now_ns, event_room);
    if (scheduler->swapped_count)
        rp_sched_return_swapped(scheduler, step);
    if (scheduler->active_tenant_count > 1 || scheduler->limits ||
        now_ns < scheduler->contended_until_ns)
        rp_sched_tenants_begin_step(scheduler, step);
    plan_rows(scheduler, step);
    if (scheduler->limits && rp_sched_tenants_lift(scheduler, step))
        plan_rows(scheduler, step);
    if (step->row_count == 0) {
        /* Nothing is moved unless another sequence gets a row for it. */
        RP_ASSERT_CMP(step->copy_count + step->page_count + step->join_count, ==, 0);
        return false;
    }
    cut_last_chunk(scheduler, step);
    if (scheduler->state_unit)
        rp_sched_plan_saves(scheduler, step);
    if (scheduler->limits)
        rp_sched_tenants_end_step(scheduler);
    scheduler->planned_step = step->id;
    *out_step = (struct rp_sched_step){.id = step->id,
                                       .rows = step->rows,
                                       .row_count = step->row_count,
                                       .token_count = step->token_count,
                                       .sample_count = step->sample_count,
                                       .decode_only = step->chunk_count == 0,
                                       .scored = step->scored,
                                       .holds = step->holds,
                                       .pages = step->pages,
                                       .page_count = step->page_count,
                                       .joins = step->joins,
                                       .join_count = step->join_count,
                                       .saves = step->saves,
                                       .save_count = step->save_count,
                                       .copies = step->copies,
                                       .copy_count = step->copy_count,
                                       .zero_pages = step->zero_pages,
                                       .zero_page_count = step->zero_count,
                                       .swaps = step->swaps,
                                       .swap_count = step->swap_count};
    return true;
}
