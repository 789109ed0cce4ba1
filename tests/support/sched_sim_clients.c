/* The configuration of a run, its clients, and the oracle that computes each answer. */
#include "tests/support/sched_sim_internal.h"

#include <stdio.h>
#include <string.h>

void sched_sim_fail(struct sim *sim, const char *text, uint64_t a, uint64_t b) {
    const struct rp_scheduler_config *config = &sim->config;
    if (sim->report->failed)
        return;
    sim->report->failed = true;
    snprintf(sim->report->text, sizeof sim->report->text,
             "%s (%llu, %llu) at step %llu; %u slots, %u pages and %u on the host, %u tokens each, "
             "run-ahead %d, cache %d",
             text, (unsigned long long)a, (unsigned long long)b, (unsigned long long)sim->planned,
             config->slot_count, config->page_count - 1, config->host_page_count,
             config->page_tokens, config->run_ahead, config->prefix_cache);
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t sched_sim_mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Every choice of a run is made here. */
uint32_t sched_sim_choose(struct sim *sim, uint32_t count) {
    sim->random += 0x9E3779B97F4A7C15u;
    return (uint32_t)(sched_sim_mix(sim->random) % count);
}
bool sched_sim_chance(struct sim *sim, uint32_t percent) {
    return sched_sim_choose(sim, 100) < percent;
}
uint32_t sched_sim_between(struct sim *sim, uint32_t low, uint32_t high) {
    return low + sched_sim_choose(sim, high - low + 1);
}

/* The salt is part of the values, so that pages shared between salts give wrong tokens. */
uint64_t sched_sim_kv_root(uint64_t salt) { return sched_sim_mix(salt ^ 0x5A17) | 1; }
uint64_t sched_sim_kv_value(uint32_t position, int32_t token, uint64_t before) {
    return sched_sim_mix(before ^ sched_sim_mix(((uint64_t)position << 32) | (uint32_t)token)) | 1;
}
uint64_t sched_sim_fold(uint64_t fold, uint64_t value) { return sched_sim_mix(fold * 31 + value); }
uint32_t sched_sim_first(const struct sim *sim, uint32_t group, uint32_t position) {
    uint32_t window = sim->config.groups.window[group];
    return window && position >= window ? position + 1 - window : 0;
}

/* ---- configuration ---- */

static void draw_buckets(struct sim *sim) {
    static const uint32_t all[] = {1, 2, 5, 8, 16, 32, 64, 100};
    uint32_t count = 0;
    while (count == 0)
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(all); i++)
            if (sched_sim_chance(sim, 40))
                sim->buckets[count++] = all[i];
    sim->config.token_buckets = sim->buckets;
    sim->config.token_bucket_count = count;
}

/* Every other run has up to four groups, some with windows of two tokens and more. Draws no random
 * number, so that campaigns stay the same otherwise. */
static void draw_groups(struct sim *sim) {
    struct rp_scheduler_config *config = &sim->config;
    uint64_t bits = sched_sim_mix(config->hash_key ^ 0x6A0);
    uint32_t longest = RP_CEIL_DIV(config->max_model_len, config->page_tokens);
    if (!config->whole_prompts && bits % 2)
        config->groups.count = 1 + (uint32_t)(bits >> 8) % GROUPS_MAX;
    for (uint32_t g = 0; g < config->groups.count; g++) {
        uint32_t window = 2 + (uint32_t)(bits >> 16) % (config->max_model_len / 2 + 1);
        config->groups.window[g] = (bits >> (g + 1)) % 2 ? window : 0;
    }
    sim->group_count = RP_MAX(config->groups.count, 1u);
    sim->pages_per_slot = longest;
    if (sim->group_count == 1)
        return;
    config->page_count = RP_MIN((config->page_count - 1) * sim->group_count + 1, PAGES_MAX);
    config->host_page_count = RP_MIN(config->host_page_count * sim->group_count, PAGES_MAX);
    config->page_edit_capacity += longest * (sim->group_count - 1);
}

/* Steps shorter than the largest bucket, by measured times; draws no random number either. */
static void draw_step_tokens(struct sim *sim) {
    struct rp_scheduler_config *config = &sim->config;
    uint64_t bits = sched_sim_mix(sim->random + 3);
    uint32_t largest = config->token_buckets[config->token_bucket_count - 1];
    config->step_tokens = bits % 2 ? 1 + (uint32_t)(bits >> 8) % largest : 0;
    config->step_ns_max = bits % 4 == 1 ? 1 + (bits >> 16) % 6 : 0;
}

/* Recurrent state, and small numbers of snapshots; draws no random number either. */
static void draw_state(struct sim *sim) {
    struct rp_scheduler_config *config = &sim->config;
    uint64_t bits = sched_sim_mix(sim->random + 2);
    if (bits % 2)
        return;
    config->state_unit = 1u << (bits >> 8) % 5;
    config->snapshot_count = (uint32_t)(bits >> 16) % (SNAPSHOTS_MAX + 1);
    config->snapshot_interval = 1 + (uint32_t)(bits >> 24) % 40;
}

/* Mostly without a limit, because too many limits prevent concurrency. */
static uint32_t few_or_all(struct sim *sim, uint32_t all) {
    return sched_sim_chance(sim, 75) ? all : sched_sim_between(sim, 1, all);
}

static void draw_sizes(struct sim *sim) {
    struct rp_scheduler_config *config = &sim->config;
    config->slot_count = sched_sim_between(sim, 1, sched_sim_chance(sim, 50) ? 4 : SLOTS_MAX);
    config->queue_capacity = sched_sim_between(sim, 1, 20);
    config->row_capacity = few_or_all(sim, config->slot_count + 4);
    config->decode_rows_max = few_or_all(sim, config->row_capacity);
    config->logit_rows_max = few_or_all(sim, config->row_capacity);
    config->page_tokens = 1u << sched_sim_choose(sim, 6);
    config->max_model_len = sched_sim_between(sim, 2, sched_sim_chance(sim, 50) ? 40 : MODEL_MAX);
    uint32_t longest = RP_CEIL_DIV(config->max_model_len, config->page_tokens);
    /* Mostly small pools, so that pages are swapped and reused. */
    uint32_t pages = sched_sim_chance(sim, 75)
                         ? sched_sim_between(sim, RP_MAX(longest / 2, 1), 3 * longest + 2)
                         : sched_sim_between(sim, 4, PAGES_MAX - 1);
    config->page_count = pages + 1;
    config->host_page_count =
        sched_sim_chance(sim, 20) ? 0 : sched_sim_between(sim, 1, RP_MIN(12 * longest, PAGES_MAX));
    config->page_edit_capacity = longest + sched_sim_choose(sim, 17);
    config->join_capacity = sched_sim_chance(sim, 80) ? 0 : sched_sim_between(sim, 1, 3);
    config->prefix_cache = sched_sim_chance(sim, 65);
    /* Draws no random number, so that campaigns stay the same otherwise. */
    config->whole_prompts = !config->prefix_cache && config->slot_count % 2 == 0;
    config->prefix_prompt_only = sched_sim_chance(sim, 20);
    config->run_ahead = sched_sim_chance(sim, 65);
    config->hash_key = sched_sim_mix(sim->random);
    draw_buckets(sim);
    draw_groups(sim);
    draw_state(sim);
    draw_step_tokens(sim);
}

void sched_sim_draw_config(struct sim *sim) {
    draw_sizes(sim);
    sim->vocab = sched_sim_chance(sim, 20) ? 2 : sched_sim_between(sim, 3, 60);
    sim->template_count = sched_sim_between(sim, 1, 4);
    sim->salt_count = sched_sim_between(sim, 1, 3);
    /* Short prompts with long answers outgrow a pool. */
    sim->prompt_max = sched_sim_between(sim, 1, sched_sim_chance(sim, 60) ? 12 : MODEL_MAX);
    sim->stop_percent = sched_sim_chance(sim, 50) ? 60 : 5;
    sim->request_count = sched_sim_between(sim, 1, REQUESTS_MAX);
    sim->nan_percent = sched_sim_chance(sim, 30) ? sched_sim_between(sim, 1, 40) : 0;
    sim->cancel_percent = sched_sim_chance(sim, 50) ? sched_sim_between(sim, 1, 10) : 0;
    sim->submit_percent = sched_sim_between(sim, 5, 100);
    sim->late_percent = sched_sim_chance(sim, 50) ? 100 : sched_sim_choose(sim, 101);
    sim->drain_percent = sched_sim_chance(sim, 60) ? 100 : sched_sim_between(sim, 10, 100);
    sim->ring_capacity = sched_sim_chance(sim, 60) ? RING_MAX : sched_sim_between(sim, 2, 12);
    sim->nan_finishes = sched_sim_chance(sim, 50);
    sim->fails = sched_sim_chance(sim, 4);
    sim->withhold_percent = sched_sim_chance(sim, 30) ? sched_sim_between(sim, 1, 40) : 0;
    for (uint32_t i = 0; i < sim->template_count; i++)
        for (uint32_t k = 0; k < MODEL_MAX; k++)
            sim->templates[i][k] = (int32_t)sched_sim_choose(sim, sim->vocab);
}

/* ---- clients and the oracle ---- */

static void oracle_push(struct sim_request *request, int32_t token) {
    request->chain = request->length >= request->nan_at
                         ? NAN_KV
                         : sched_sim_kv_value(request->length, token, request->chain);
    request->values[request->length++] = request->chain;
}

/* What logits are made of: all positions that the last token sees, group by group. */
static uint64_t oracle_fold(const struct sim *sim, const struct sim_request *request) {
    uint64_t fold = 0;
    for (uint32_t g = 0; g < sim->group_count; g++)
        for (uint32_t i = sched_sim_first(sim, g, request->length - 1); i < request->length; i++)
            fold = sched_sim_fold(fold, OF_GROUP(request->values[i], g));
    return fold;
}

static void draw_request(struct sim *sim, struct sim_request *request) {
    uint32_t model = sim->config.max_model_len;
    const int32_t *template = sim->templates[sched_sim_choose(sim, sim->template_count)];
    uint32_t prompt_count = sched_sim_between(sim, 1, RP_MIN(sim->prompt_max, model - 1));
    uint32_t shared = sched_sim_choose(sim, prompt_count + 1);
    memset(request, 0, sizeof *request);
    if (sched_sim_chance(sim, 30))
        shared = prompt_count;
    for (uint32_t i = 0; i < prompt_count; i++)
        request->prompt[i] = i < shared ? template[i] : (int32_t)sched_sim_choose(sim, sim->vocab);
    request->base.prompt = request->prompt;
    request->base.prompt_count = prompt_count;
    request->base.max_tokens =
        sched_sim_between(sim, 1, sched_sim_chance(sim, 10) ? model : model - prompt_count);
    request->base.cache_salt = sched_sim_choose(sim, sim->salt_count);
    request->base.stop_count = sched_sim_chance(sim, sim->stop_percent);
    request->base.stop_ids[0] = (int32_t)sched_sim_choose(sim, sim->vocab);
    request->nan_at =
        sched_sim_chance(sim, sim->nan_percent) ? sched_sim_choose(sim, model) : UINT32_MAX;
    request->base.logprobs = sched_sim_chance(sim, 20);
    /* All scores of a whole prompt need room at once, which a short event ring never has. */
    request->base.prompt_logprobs = sched_sim_chance(sim, 10) && !sim->config.whole_prompts;
    request->withhold_at =
        sched_sim_chance(sim, sim->withhold_percent) ? sched_sim_choose(sim, model) : UINT32_MAX;
    request->chain = sched_sim_kv_root(request->base.cache_salt);
    for (uint32_t i = 0; i < prompt_count; i++)
        oracle_push(request, request->prompt[i]);
}

void sched_sim_submit_some(struct sim *sim) {
    while (sim->submitted < sim->request_count && sched_sim_chance(sim, sim->submit_percent)) {
        struct sim_request *request = NULL;
        /* The first entry that is not open: memory of closed requests is reused immediately. */
        for (uint32_t i = 0; !request && i < REQUESTS_MAX; i++)
            if (!sim->requests[i].open)
                request = &sim->requests[i];
        draw_request(sim, request);
        /* Draws no random number, so that campaigns stay the same otherwise. */
        request->base.tenant =
            sim->config.hash_key % 2 ? sched_sim_mix(sim->submitted) % SIM_TENANTS : 0;
        const struct rp_request *base = &request->base;
        bool fits = rp_scheduler_fits(&sim->config, base->prompt_count, base->max_tokens);
        bool full = sim->scheduler->waiting_count == sim->config.queue_capacity;
        int status = rp_scheduler_submit(sim->scheduler, &request->base);
        CHECK(sim, fits == (status != RP_STATUS_RANGE), "submit and fits disagree",
              base->prompt_count, base->max_tokens);
        CHECK(sim, !(fits && full) || status == RP_STATUS_FULL, "a full queue took a request", 0,
              0);
        if (status != RP_OK) {
            sim->report->refused++;
            if (status == RP_STATUS_FULL)
                return;
            sim->request_count--; /* or a run could draw unservable requests forever */
            continue;
        }
        request->open = true;
        request->order = ++sim->submitted;
        sim->report->requests++;
    }
}

void sched_sim_cancel_some(struct sim *sim) {
    if (!sched_sim_chance(sim, sim->cancel_percent))
        return;
    if (sim->scheduler->swapped_count && sched_sim_chance(sim, 40)) {
        uint32_t slot =
            sim->scheduler->swapped[sched_sim_choose(sim, sim->scheduler->swapped_count)];
        atomic_store(&sim->scheduler->sequences[slot].request->cancelled, true);
        return;
    }
    uint32_t first = sched_sim_choose(sim, REQUESTS_MAX);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        struct sim_request *request = &sim->requests[(first + i) % REQUESTS_MAX];
        if (request->open) {
            atomic_store(&request->base.cancelled, true);
            return;
        }
    }
}

static bool oracle_says_nan(const struct sim_request *request) {
    return request->length > request->nan_at;
}

static void check_scores(struct sim *sim, const struct sim_request *request,
                         const struct rp_event *event, uint32_t position) {
    CHECK(sim,
          event->logprob == -(float)position && event->rank == position + 1 &&
              event->top_count == 1 && event->top[0].token == (int32_t)position - 1,
          "scores of another position", request->order, position);
}

static void see_token(struct sim *sim, struct sim_request *request, const struct rp_event *event) {
    CHECK(sim, !request->told_stop, "a token after the stop token", request->order, event->token);
    CHECK(sim, request->outputs < request->base.max_tokens, "more tokens than max_tokens",
          request->order, request->outputs);
    CHECK(sim, !oracle_says_nan(request), "a token where logits are NaN", request->order, 0);
    int32_t expected = (int32_t)(oracle_fold(sim, request) % sim->vocab);
    CHECK(sim, event->token == expected, "a wrong token", request->order, request->outputs);
    if (request->base.logprobs)
        check_scores(sim, request, event, request->base.prompt_count + request->outputs);
    else
        CHECK(sim, event->rank + event->top_count == 0, "scores that nobody asked for",
              request->order, event->rank);
    CHECK(sim, !request->base.prompt_logprobs || request->scored + 1 == request->base.prompt_count,
          "a prompt was not scored whole", request->order, request->scored);
    request->told_stop = request->base.stop_count && expected == request->base.stop_ids[0];
    CHECK(sim, event->is_stop == request->told_stop, "is_stop is wrong", request->order,
          event->is_stop);
    request->outputs++;
    oracle_push(request, expected);
    sim->report->tokens++;
}

static void see_prompt(struct sim *sim, struct sim_request *request, const struct rp_event *event) {
    uint32_t index = ++request->scored;
    CHECK(sim, request->base.prompt_logprobs && request->outputs == 0, "a score out of place",
          request->order, index);
    CHECK(sim, event->index == index && index < request->base.prompt_count,
          "scores are not in order", event->index, index);
    CHECK(sim, event->token == request->prompt[index], "the score of another token", request->order,
          index);
    check_scores(sim, request, event, index);
}

static bool count_reason(struct sim *sim, const struct sim_request *request, uint8_t reason) {
    struct sched_sim_report *report = sim->report;
    switch (reason) {
    case RP_FINISH_STOP:
        report->stops++;
        return request->told_stop;
    case RP_FINISH_LENGTH:
        report->lengths++;
        return !request->told_stop && request->outputs == request->base.max_tokens;
    case RP_FINISH_CANCELLED:
        report->cancels++;
        return atomic_load(&request->base.cancelled) && !request->told_stop;
    case RP_FINISH_NUMERIC:
        report->numerics++;
        return oracle_says_nan(request) && !request->told_stop;
    case RP_FINISH_MASK_DEADLINE:
        report->withheld++;
        return request->outputs == request->withhold_at && !request->told_stop;
    case RP_FINISH_ERROR:
        report->errors++;
        return sim->scheduler->failed;
    default:
        return false;
    }
}

static void see_closed(struct sim *sim, struct sim_request *request, const struct rp_event *event) {
    CHECK(sim, count_reason(sim, request, event->finish_reason), "a wrong finish reason",
          request->order, event->finish_reason);
    CHECK(sim,
          request->base.cached_tokens < request->base.prompt_count &&
              request->base.cached_tokens % sim->config.page_tokens == 0 &&
              !(request->base.cached_tokens && request->base.prompt_logprobs),
          "impossible cached_tokens", request->base.cached_tokens, request->base.prompt_count);
    sim->swap_sum += request->base.swap_count;
    sim->closed++;
    /* The loop may reuse the memory, so the scheduler must not access it. */
    memset(request, 0x5C, sizeof *request);
    request->open = false;
    atomic_store(&request->base.cancelled, false);
}

void sched_sim_consume_ring(struct sim *sim) {
    for (uint32_t i = 0; i < sim->ring_count && !sim->report->failed; i++) {
        const struct rp_event *event = &sim->ring[i];
        struct sim_request *request = (struct sim_request *)event->request;
        CHECK(sim, request >= sim->requests && request < sim->requests + REQUESTS_MAX,
              "an event of no request", i, event->kind);
        CHECK(sim, request->open, "an event after CLOSED", event->kind, event->finish_reason);
        if (event->kind == RP_EVENT_TOKEN)
            see_token(sim, request, event);
        else if (event->kind == RP_EVENT_PROMPT)
            see_prompt(sim, request, event);
        else
            see_closed(sim, request, event);
    }
    sim->ring_count = 0;
}

void sched_sim_drain_events(struct sim *sim) {
    while (sim->ring_count < sim->ring_capacity &&
           rp_scheduler_next_event(sim->scheduler, &sim->ring[sim->ring_count]))
        sim->ring_count++;
    /* Only cancelled requests may end without a final event before. */
    bool announced = sim->cancel_percent == 0 && !sim->scheduler->failed;
    CHECK(sim, !announced || sim->scheduler->events.count == 0, "an event found no room",
          sim->scheduler->events.count, sim->ring_capacity);
    if (sched_sim_chance(sim, sim->drain_percent))
        sched_sim_consume_ring(sim);
}
