#include "tests/support/sched_sim.h"

#include "base/memory.h"
#include "engine/scheduler_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_MAX    16u
#define REQUESTS_MAX 40u
#define MODEL_MAX    160u /* tokens */
#define TABLE_MAX    (MODEL_MAX + 1)
#define PAGES_MAX    512u
#define PAGE_STRIDE  32u /* largest page */
#define ROWS_MAX     24u
#define EDITS_MAX    (TABLE_MAX + 16)
#define RING_MAX     128u

/* Values of a place that are no chain values (those are odd). */
#define POISON 0xDEADDEADDEADDEA0u
#define NAN_KV 0x7FF800000000000Eu

struct sim_request {
    struct rp_request base;
    int32_t prompt[MODEL_MAX];
    uint64_t order; /* of submission */
    bool open;
    bool told_stop;   /* the last TOKEN event was a stop id */
    uint32_t nan_at;  /* K and V are NaN from this position on */
    uint32_t outputs; /* TOKEN events seen */
    /* The oracle: places 0 .. length-1 are folded. */
    uint32_t length;
    uint64_t chain, fold;
};

/* What a join writes into a slot. */
struct device_join {
    uint32_t slot, length;
    uint64_t root;
    uint32_t nan_at, stop_count;
    int32_t stop_id;
};

struct device_slot {
    uint32_t table[TABLE_MAX];
    struct device_join join;
    uint32_t length;
    int32_t last_token;
    bool finished;
};

/* A launched step, copied as an engine would encode it. */
struct device_step {
    uint64_t id;
    bool done;
    uint32_t row_count, page_count, join_count, copy_count, zero_count;
    struct rp_sched_row rows[ROWS_MAX];
    int32_t tokens[ROWS_MAX][MODEL_MAX];
    struct rp_sched_page pages[EDITS_MAX];
    struct device_join joins[SLOTS_MAX];
    struct rp_sched_copy copies[PAGES_MAX + EDITS_MAX];
    uint32_t zero_pages[EDITS_MAX];
    struct rp_sched_result results[ROWS_MAX];
};

struct sim {
    uint64_t random;
    struct sched_sim_report *report;
    struct rp_scheduler_config config;
    uint32_t buckets[8];
    struct rp_scheduler *scheduler;

    /* What this run is like. */
    uint32_t vocab, template_count, salt_count, request_count, nan_percent, cancel_percent;
    uint32_t prompt_max, stop_percent, submit_percent, late_percent, drain_percent, ring_capacity;
    bool nan_finishes, fails;
    int32_t templates[4][MODEL_MAX];

    struct sim_request requests[REQUESTS_MAX];
    struct device_slot slots[SLOTS_MAX];
    uint64_t kv[PAGES_MAX * PAGE_STRIDE];
    uint64_t host_kv[PAGES_MAX * PAGE_STRIDE];
    bool is_free[PAGES_MAX]; /* as the scheduler last said */

    /* The host's own view of the tables, and the last step that names a page or slot. */
    uint32_t tables[SLOTS_MAX][TABLE_MAX];
    uint64_t page_step[PAGES_MAX], slot_step[SLOTS_MAX];
    uint32_t starved[SLOTS_MAX]; /* steps without a row */
    uint64_t starved_age[SLOTS_MAX];

    struct device_step launched[4]; /* by id */
    uint64_t planned, committed;
    struct rp_event ring[RING_MAX];
    uint32_t ring_count;
    uint64_t submitted, joined_order, closed, swap_sum, now_ns, alloc_count;
};

static void fail(struct sim *sim, const char *text, uint64_t a, uint64_t b) {
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

#define CHECK(sim, ok, text, a, b)                                                                 \
    do {                                                                                           \
        if (!(ok)) {                                                                               \
            fail(sim, text, (uint64_t)(a), (uint64_t)(b));                                         \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Every choice of a run is made here. */
static uint32_t choose(struct sim *sim, uint32_t count) {
    sim->random += 0x9E3779B97F4A7C15u;
    return (uint32_t)(mix(sim->random) % count);
}
static bool chance(struct sim *sim, uint32_t percent) {
    return choose(sim, 100) < percent;
}
static uint32_t between(struct sim *sim, uint32_t low, uint32_t high) {
    return low + choose(sim, high - low + 1);
}

/* The salt is part of the values, so that pages shared between salts give wrong tokens. */
static uint64_t kv_root(uint64_t salt) {
    return mix(salt ^ 0x5A17) | 1;
}
static uint64_t kv_value(uint32_t position, int32_t token, uint64_t before) {
    return mix(before ^ mix(((uint64_t)position << 32) | (uint32_t)token)) | 1;
}
static uint64_t fold_value(uint64_t fold, uint64_t value) {
    return mix(fold * 31 + value);
}

/* ---- configuration ---- */

static void draw_buckets(struct sim *sim) {
    static const uint32_t all[] = {1, 2, 5, 8, 16, 32, 64, 100};
    uint32_t count = 0;
    while (count == 0)
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(all); i++)
            if (chance(sim, 40))
                sim->buckets[count++] = all[i];
    sim->config.token_buckets = sim->buckets;
    sim->config.token_bucket_count = count;
}

/* Mostly no limit, or too many of them at once leave no concurrency to test. */
static uint32_t few_or_all(struct sim *sim, uint32_t all) {
    return chance(sim, 75) ? all : between(sim, 1, all);
}

static void draw_sizes(struct sim *sim) {
    struct rp_scheduler_config *config = &sim->config;
    config->slot_count = between(sim, 1, chance(sim, 50) ? 4 : SLOTS_MAX);
    config->queue_capacity = between(sim, 1, 20);
    config->row_capacity = few_or_all(sim, config->slot_count + 4);
    config->decode_rows_max = few_or_all(sim, config->row_capacity);
    config->logit_rows_max = few_or_all(sim, config->row_capacity);
    config->page_tokens = 1u << choose(sim, 6);
    config->max_model_len = between(sim, 2, chance(sim, 50) ? 40 : MODEL_MAX);
    uint32_t longest = RP_CEIL_DIV(config->max_model_len, config->page_tokens);
    /* Tight pools most of the time: that is where pages are taken and given back. */
    uint32_t pages = chance(sim, 75) ? between(sim, RP_MAX(longest / 2, 1), 3 * longest + 2)
                                     : between(sim, 4, PAGES_MAX - 1);
    config->page_count = pages + 1;
    config->host_page_count =
        chance(sim, 20) ? 0 : between(sim, 1, RP_MIN(12 * longest, PAGES_MAX));
    config->page_edit_capacity = longest + choose(sim, 17);
    config->join_capacity = chance(sim, 80) ? 0 : between(sim, 1, 3);
    config->prefix_cache = chance(sim, 65);
    config->prefix_prompt_only = chance(sim, 20);
    config->run_ahead = chance(sim, 65);
    config->hash_key = mix(sim->random);
    draw_buckets(sim);
}

static void draw_config(struct sim *sim) {
    draw_sizes(sim);
    sim->vocab = chance(sim, 20) ? 2 : between(sim, 3, 60);
    sim->template_count = between(sim, 1, 4);
    sim->salt_count = between(sim, 1, 3);
    /* Short prompts with long answers are what outgrows a pool. */
    sim->prompt_max = between(sim, 1, chance(sim, 60) ? 12 : MODEL_MAX);
    sim->stop_percent = chance(sim, 50) ? 60 : 5;
    sim->request_count = between(sim, 1, REQUESTS_MAX);
    sim->nan_percent = chance(sim, 30) ? between(sim, 1, 40) : 0;
    sim->cancel_percent = chance(sim, 50) ? between(sim, 1, 10) : 0;
    sim->submit_percent = between(sim, 5, 100);
    sim->late_percent = chance(sim, 50) ? 100 : choose(sim, 101);
    sim->drain_percent = chance(sim, 60) ? 100 : between(sim, 10, 100);
    sim->ring_capacity = chance(sim, 60) ? RING_MAX : between(sim, 2, 12);
    sim->nan_finishes = chance(sim, 50);
    sim->fails = chance(sim, 4);
    for (uint32_t i = 0; i < sim->template_count; i++)
        for (uint32_t k = 0; k < MODEL_MAX; k++)
            sim->templates[i][k] = (int32_t)choose(sim, sim->vocab);
}

/* ---- clients and the oracle ---- */

static void oracle_push(struct sim_request *request, int32_t token) {
    request->chain = request->length >= request->nan_at
                         ? NAN_KV
                         : kv_value(request->length, token, request->chain);
    request->fold = fold_value(request->fold, request->chain);
    request->length++;
}

static void draw_request(struct sim *sim, struct sim_request *request) {
    uint32_t model = sim->config.max_model_len;
    const int32_t *template = sim->templates[choose(sim, sim->template_count)];
    uint32_t prompt_count = between(sim, 1, RP_MIN(sim->prompt_max, model - 1));
    uint32_t shared = choose(sim, prompt_count + 1);
    memset(request, 0, sizeof *request);
    if (chance(sim, 30))
        shared = prompt_count;
    for (uint32_t i = 0; i < prompt_count; i++)
        request->prompt[i] = i < shared ? template[i] : (int32_t)choose(sim, sim->vocab);
    request->base.prompt = request->prompt;
    request->base.prompt_count = prompt_count;
    request->base.max_tokens = between(sim, 1, chance(sim, 10) ? model : model - prompt_count);
    request->base.cache_salt = choose(sim, sim->salt_count);
    request->base.stop_count = chance(sim, sim->stop_percent);
    request->base.stop_ids[0] = (int32_t)choose(sim, sim->vocab);
    request->nan_at = chance(sim, sim->nan_percent) ? choose(sim, model) : UINT32_MAX;
    request->chain = kv_root(request->base.cache_salt);
    for (uint32_t i = 0; i < prompt_count; i++)
        oracle_push(request, request->prompt[i]);
}

static void submit_some(struct sim *sim) {
    while (sim->submitted < sim->request_count && chance(sim, sim->submit_percent)) {
        struct sim_request *request = NULL;
        /* The first place that is not open: memory of closed requests comes back at once. */
        for (uint32_t i = 0; !request && i < REQUESTS_MAX; i++)
            if (!sim->requests[i].open)
                request = &sim->requests[i];
        draw_request(sim, request);
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
            sim->request_count--; /* or a run could draw misfits for ever */
            continue;
        }
        request->open = true;
        request->order = ++sim->submitted;
        sim->report->requests++;
    }
}

static void cancel_some(struct sim *sim) {
    if (!chance(sim, sim->cancel_percent))
        return;
    if (sim->scheduler->swapped_count && chance(sim, 40)) {
        uint32_t slot = sim->scheduler->swapped[choose(sim, sim->scheduler->swapped_count)];
        atomic_store(&sim->scheduler->sequences[slot].request->cancelled, true);
        return;
    }
    uint32_t first = choose(sim, REQUESTS_MAX);
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

static void see_token(struct sim *sim, struct sim_request *request, const struct rp_event *event) {
    CHECK(sim, !request->told_stop, "a token after the stop token", request->order, event->token);
    CHECK(sim, request->outputs < request->base.max_tokens, "more tokens than max_tokens",
          request->order, request->outputs);
    CHECK(sim, !oracle_says_nan(request), "a token where logits are NaN", request->order, 0);
    int32_t expected = (int32_t)(request->fold % sim->vocab);
    CHECK(sim, event->token == expected, "a wrong token", request->order, request->outputs);
    request->told_stop = request->base.stop_count && expected == request->base.stop_ids[0];
    CHECK(sim, event->is_stop == request->told_stop, "is_stop is wrong", request->order,
          event->is_stop);
    request->outputs++;
    oracle_push(request, expected);
    sim->report->tokens++;
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
              request->base.cached_tokens % sim->config.page_tokens == 0,
          "impossible cached_tokens", request->base.cached_tokens, request->base.prompt_count);
    sim->swap_sum += request->base.swap_count;
    sim->closed++;
    /* The loop may use the memory again: nobody may look at it any more. */
    memset(request, 0x5C, sizeof *request);
    request->open = false;
    atomic_store(&request->base.cancelled, false);
}

static void consume_ring(struct sim *sim) {
    for (uint32_t i = 0; i < sim->ring_count && !sim->report->failed; i++) {
        const struct rp_event *event = &sim->ring[i];
        struct sim_request *request = (struct sim_request *)event->request;
        CHECK(sim, request >= sim->requests && request < sim->requests + REQUESTS_MAX,
              "an event of no request", i, event->kind);
        CHECK(sim, request->open, "an event after CLOSED", event->kind, event->finish_reason);
        if (event->kind == RP_EVENT_TOKEN)
            see_token(sim, request, event);
        else
            see_closed(sim, request, event);
    }
    sim->ring_count = 0;
}

static void drain_events(struct sim *sim) {
    while (sim->ring_count < sim->ring_capacity &&
           rp_scheduler_next_event(sim->scheduler, &sim->ring[sim->ring_count]))
        sim->ring_count++;
    /* Only the ends of cancelled requests may come unannounced. */
    bool announced = sim->cancel_percent == 0 && !sim->scheduler->failed;
    CHECK(sim, !announced || sim->scheduler->events.count == 0, "an event found no room",
          sim->scheduler->events.count, sim->ring_capacity);
    if (chance(sim, sim->drain_percent))
        consume_ring(sim);
}

/* ---- the device ---- */

static void poison_page(struct sim *sim, uint32_t page) {
    sim->is_free[page] = true;
    for (uint32_t i = 0; i < sim->config.page_tokens; i++)
        /* NaN stays: it is what zero_pages is for. */
        if (sim->kv[page * PAGE_STRIDE + i] != NAN_KV)
            sim->kv[page * PAGE_STRIDE + i] = POISON;
}

static void run_copies(struct sim *sim, const struct device_step *step) {
    size_t bytes = sim->config.page_tokens * sizeof *sim->kv;
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const struct rp_sched_copy *copy = &step->copies[i];
        if (copy->kind == RP_COPY_TO_HOST) {
            memcpy(&sim->host_kv[copy->to * PAGE_STRIDE], &sim->kv[copy->from * PAGE_STRIDE],
                   bytes);
            if (sim->scheduler->pool.pages[copy->from].state == RP_KV_FREE)
                poison_page(sim, copy->from);
            continue;
        }
        memcpy(&sim->kv[copy->to * PAGE_STRIDE], &sim->host_kv[copy->from * PAGE_STRIDE], bytes);
        for (uint32_t k = 0; k < sim->config.page_tokens; k++)
            sim->host_kv[copy->from * PAGE_STRIDE + k] = POISON;
    }
    for (uint32_t i = 0; i < step->zero_count; i++)
        memset(&sim->kv[step->zero_pages[i] * PAGE_STRIDE], 0, bytes);
}

static void run_edits(struct sim *sim, const struct device_step *step) {
    for (uint32_t i = 0; i < step->join_count; i++) {
        struct device_slot *slot = &sim->slots[step->joins[i].slot];
        slot->join = step->joins[i];
        slot->length = slot->join.length;
        slot->finished = false;
        slot->last_token = -1;
    }
    for (uint32_t i = 0; i < step->page_count; i++)
        sim->slots[step->pages[i].slot].table[step->pages[i].index] = step->pages[i].page;
}

static uint64_t *place(struct sim *sim, const struct device_slot *slot, uint32_t position) {
    uint32_t page = slot->table[position / sim->config.page_tokens];
    if (page == 0 || page >= sim->config.page_count || sim->is_free[page]) {
        fail(sim, "a row touches a page that is not its own", page, position);
        page = 0;
    }
    return &sim->kv[page * PAGE_STRIDE + position % sim->config.page_tokens];
}

static void write_kv(struct sim *sim, struct device_slot *slot, int32_t token) {
    uint32_t position = slot->length++;
    uint64_t before = position ? *place(sim, slot, position - 1) : slot->join.root;
    *place(sim, slot, position) =
        position >= slot->join.nan_at ? NAN_KV : kv_value(position, token, before);
}

/* Attention over all places: their fold, or NaN when one of them is. Kernels read whole pages, and
 * a masked place that holds NaN would spoil the sum. */
static uint64_t read_kv(struct sim *sim, const struct device_slot *slot, bool *out_nan) {
    uint64_t fold = 0;
    *out_nan = false;
    for (uint32_t i = 0; i < slot->length && !sim->report->failed; i++) {
        uint64_t value = *place(sim, slot, i);
        if (value == POISON)
            fail(sim, "a row reads a page that was freed", i, slot->length);
        *out_nan |= value == NAN_KV;
        fold = fold_value(fold, value);
    }
    for (uint32_t i = slot->length; i % sim->config.page_tokens && !sim->report->failed; i++)
        if (*place(sim, slot, i) == NAN_KV)
            fail(sim, "NaN was left behind in a page", i, slot->length);
    return fold;
}

static void run_row(struct sim *sim, struct device_step *step, uint32_t index) {
    const struct rp_sched_row *row = &step->rows[index];
    struct rp_sched_result *result = &step->results[index];
    struct device_slot *slot = &sim->slots[row->slot];
    bool nan;
    *result = (struct rp_sched_result){.token = -1};
    if (slot->finished) {
        result->flags = RP_SCHED_RESULT_SKIPPED;
        sim->report->wasted_rows++;
        return;
    }
    CHECK(sim, slot->length == row->start, "the host's length is not the device's", row->start,
          slot->length);
    for (uint32_t i = 0; i < row->count; i++)
        write_kv(sim, slot, row->decode ? slot->last_token : step->tokens[index][i]);
    uint64_t fold = read_kv(sim, slot, &nan);
    if (!row->samples)
        return;
    if (nan) {
        result->flags = RP_SCHED_RESULT_NAN;
        slot->finished = sim->nan_finishes;
        slot->last_token = 0;
        return;
    }
    result->token = slot->last_token = (int32_t)(fold % sim->vocab);
    if (slot->join.stop_count && result->token == slot->join.stop_id) {
        result->flags = RP_SCHED_RESULT_STOPPED;
        slot->finished = true;
    }
}

/* Runs everything launched up to this step, in order. */
static void run_device(struct sim *sim, uint64_t up_to) {
    for (uint64_t id = sim->committed + 1; id <= up_to && !sim->report->failed; id++) {
        struct device_step *step = &sim->launched[id % 4];
        if (step->done)
            continue;
        run_copies(sim, step);
        run_edits(sim, step);
        for (uint32_t i = 0; i < step->row_count && !sim->report->failed; i++)
            run_row(sim, step, i);
        step->done = true;
    }
}

/* ---- the engine's part ---- */

static bool is_copied_out(const struct rp_sched_copy *copies, uint32_t count, uint32_t page) {
    for (uint32_t i = 0; i < count; i++)
        if (copies[i].kind == RP_COPY_TO_HOST && copies[i].from == page)
            return true;
    return false;
}

/* Pages that became free since the last look are poisoned at once: nothing launched may still need
 * them. Those that wait for a copy to the host are poisoned when the copy has run. */
static void look_at_free_pages(struct sim *sim, const struct rp_sched_step *step) {
    for (uint32_t page = 1; page < sim->config.page_count; page++) {
        bool free_now = sim->scheduler->pool.pages[page].state == RP_KV_FREE;
        if (!free_now) {
            sim->is_free[page] = false;
        } else if (!sim->is_free[page]) {
            bool copied = step && is_copied_out(step->copies, step->copy_count, page);
            for (uint64_t id = sim->committed + 1; id <= sim->planned; id++) {
                const struct device_step *other = &sim->launched[id % 4];
                if (!other->done)
                    copied |= is_copied_out(other->copies, other->copy_count, page);
            }
            if (!copied)
                poison_page(sim, page);
        }
    }
}

static void check_rows(struct sim *sim, const struct rp_sched_step *step) {
    const struct rp_scheduler_config *config = &sim->config;
    uint32_t tokens = 0, samples = 0, chunks = 0;
    bool seen[SLOTS_MAX] = {false};
    CHECK(sim, step->row_count >= 1 && step->row_count <= config->row_capacity, "rows", 0,
          step->row_count);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        const struct rp_sequence *sequence = &sim->scheduler->sequences[row->slot];
        uint32_t prompt_count = row->request->prompt_count, end = row->start + row->count;
        CHECK(sim, sequence->request == row->request && sequence->state == RP_SEQUENCE_RUNNING,
              "a row of a sequence that does not run", row->slot, sequence->state);
        CHECK(sim, !seen[row->slot], "two rows of one sequence", row->slot, 0);
        seen[row->slot] = true;
        if (row->decode)
            CHECK(sim, row->count == 1 && row->samples && row->start >= prompt_count,
                  "a wrong decode row", row->start, row->count);
        else
            CHECK(sim, row->count && end <= prompt_count && row->samples == (end == prompt_count),
                  "a wrong chunk", row->start, row->count);
        tokens += row->count;
        samples += row->samples;
        chunks += !row->decode;
    }
    CHECK(sim, tokens == step->token_count && samples == step->sample_count, "a step's counts",
          tokens, samples);
    CHECK(sim, samples <= config->logit_rows_max, "logit rows", samples, 0);
    CHECK(sim, step->decode_only == (chunks == 0), "decode_only", chunks, 0);
    CHECK(sim, step->row_count - chunks <= config->decode_rows_max, "decode rows", chunks, 0);
    CHECK(sim, chunks == 0 || tokens <= sim->scheduler->token_budget, "tokens", tokens, chunks);
}

/* Nothing that a step in flight names may be given to somebody else. */
static void check_edits(struct sim *sim, const struct rp_sched_step *step) {
    uint32_t hits[SLOTS_MAX] = {0}, page_tokens = sim->config.page_tokens;
    CHECK(sim, step->page_count <= sim->config.page_edit_capacity, "page edits", step->page_count,
          0);
    for (uint32_t i = 0; i < step->join_count; i++) {
        const struct rp_sched_join *join = &step->joins[i];
        const struct sim_request *request = (const struct sim_request *)join->request;
        CHECK(sim, sim->slot_step[join->slot] <= sim->committed, "a slot is reused too early",
              join->slot, 0);
        CHECK(sim, request->order > sim->joined_order, "not first come, first served",
              request->order, sim->joined_order);
        sim->joined_order = request->order;
        hits[join->slot] = join->length / page_tokens;
        sim->report->hit_tokens += join->length;
    }
    for (uint32_t i = 0; i < step->page_count; i++) {
        const struct rp_sched_page *edit = &step->pages[i];
        bool hit = edit->index < hits[edit->slot];
        CHECK(sim,
              hit || sim->page_step[edit->page] <= sim->committed ||
                  is_copied_out(step->copies, step->copy_count, edit->page),
              "a page is reused before the last step that names it is over", edit->page,
              sim->page_step[edit->page]);
        sim->tables[edit->slot][edit->index] = edit->page;
        sim->report->shared_pages += hit;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        sim->slot_step[row->slot] = step->id;
        for (uint32_t k = 0; k < RP_CEIL_DIV(row->start + row->count, page_tokens); k++)
            sim->page_step[sim->tables[row->slot][k]] = step->id;
    }
}

/* A sequence that could take a decode row gets one within a few rounds, when only rows are scarce.
 */
static void check_fairness(struct sim *sim, const struct rp_sched_step *step) {
    const struct rp_scheduler *scheduler = sim->scheduler;
    bool has_row[SLOTS_MAX] = {false};
    uint32_t decodes = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        has_row[step->rows[i].slot] = true;
        decodes += step->rows[i].decode;
    }
    bool pages_are_scarce = scheduler->worst_page_sum >= sim->config.page_count;
    for (uint32_t i = 0; i < scheduler->running_count && decodes > 0; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        uint32_t slot = sequence->slot;
        if (has_row[slot] || pages_are_scarce || sim->starved_age[slot] != sequence->age ||
            rp_sequence_in_prompt(sequence) || rp_sequence_is_ending(sequence))
            sim->starved[slot] = 0;
        else
            sim->starved[slot]++;
        sim->starved_age[slot] = sequence->age;
        CHECK(sim, sim->starved[slot] <= 2 * sim->config.slot_count, "a sequence is starved", slot,
              sim->starved[slot]);
    }
}

static void launch(struct sim *sim, const struct rp_sched_step *step) {
    struct device_step *copy = &sim->launched[step->id % 4];
    CHECK(sim, step->id == sim->planned + 1, "steps are not numbered in order", step->id, 0);
    CHECK(sim,
          step->copy_count <= RP_ARRAY_COUNT(copy->copies) && step->zero_page_count <= EDITS_MAX,
          "copies", step->copy_count, step->zero_page_count);
    sim->planned = copy->id = step->id;
    copy->done = false;
    copy->row_count = step->row_count;
    copy->page_count = step->page_count;
    copy->join_count = step->join_count;
    copy->copy_count = step->copy_count;
    copy->zero_count = step->zero_page_count;
    memcpy(copy->rows, step->rows, step->row_count * sizeof *step->rows);
    memcpy(copy->pages, step->pages, step->page_count * sizeof *step->pages);
    memcpy(copy->copies, step->copies, step->copy_count * sizeof *step->copies);
    memcpy(copy->zero_pages, step->zero_pages, step->zero_page_count * sizeof *step->zero_pages);
    for (uint32_t i = 0; i < step->join_count; i++) {
        const struct sim_request *request = (const struct sim_request *)step->joins[i].request;
        copy->joins[i] = (struct device_join){.slot = step->joins[i].slot,
                                              .length = step->joins[i].length,
                                              .root = kv_root(request->base.cache_salt),
                                              .nan_at = request->nan_at,
                                              .stop_count = request->base.stop_count,
                                              .stop_id = request->base.stop_ids[0]};
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        for (uint32_t k = 0; !row->decode && k < row->count; k++)
            copy->tokens[i][k] = row->request->prompt[row->start + k];
    }
    for (uint32_t i = 0; i < step->copy_count; i++)
        sim->report->swap_ins += step->copies[i].kind == RP_COPY_TO_DEVICE;
    sim->report->steps++;
    sim->report->rows += step->row_count;
    sim->report->zeroed_pages += step->zero_page_count;
}

static void check_invariants(struct sim *sim, const struct rp_sched_step *step) {
    const char *broken = rp_scheduler_check(sim->scheduler);
    CHECK(sim, broken == NULL, broken, 0, 0);
    look_at_free_pages(sim, step);
}

static void count_before_plan(struct sim *sim) {
    const struct rp_scheduler *scheduler = sim->scheduler;
    for (uint32_t i = 0; i < scheduler->swapped_count; i++)
        sim->report->cancels_while_swapped +=
            atomic_load(&scheduler->sequences[scheduler->swapped[i]].request->cancelled);
}

/* True when a step was made. */
static bool plan_once(struct sim *sim) {
    static void (*const parts[])(struct sim *, const struct rp_sched_step *) = {
        check_rows, check_edits, check_fairness, launch};
    struct rp_sched_step step;
    uint32_t room = sim->ring_capacity - sim->ring_count;
    bool cache = sim->config.prefix_cache;
    uint32_t entries = cache ? sim->scheduler->prefix.entry_count : 0;
    count_before_plan(sim);
    bool planned = rp_scheduler_plan(sim->scheduler, ++sim->now_ns, room, &step);
    if (cache && sim->scheduler->prefix.entry_count < entries)
        sim->report->evictions += entries - sim->scheduler->prefix.entry_count;
    check_invariants(sim, planned ? &step : NULL);
    for (uint32_t i = 0; planned && i < RP_ARRAY_COUNT(parts) && !sim->report->failed; i++)
        parts[i](sim, &step);
    if (!sim->report->failed && !chance(sim, sim->late_percent))
        run_device(sim, sim->planned);
    return planned;
}

static void commit_once(struct sim *sim) {
    uint64_t id = sim->committed + 1;
    run_device(sim, id);
    if (sim->report->failed)
        return;
    struct device_step *step = &sim->launched[id % 4];
    for (uint32_t i = 0; i < step->row_count; i++)
        sim->report->results_while_swapped +=
            sim->scheduler->sequences[step->rows[i].slot].state == RP_SEQUENCE_SWAPPED;
    sim->committed = id;
    rp_scheduler_commit(sim->scheduler, id, step->results, ++sim->now_ns);
    check_invariants(sim, NULL);
}

/* One turn of the engine's loop. A scheduler with nothing in flight and room for events must move.
 */
static void turn(struct sim *sim) {
    uint32_t depth = sim->config.run_ahead && chance(sim, 80) ? 2 : 1;
    submit_some(sim);
    cancel_some(sim);
    while (!sim->report->failed && rp_scheduler_in_flight(sim->scheduler) < depth) {
        bool must_move = rp_scheduler_in_flight(sim->scheduler) == 0 && sim->ring_count == 0 &&
                         sim->scheduler->events.count == 0;
        bool planned = plan_once(sim);
        if (must_move && !planned && !sim->report->failed && sim->scheduler->events.count == 0 &&
            !rp_scheduler_is_idle(sim->scheduler))
            fail(sim, "stuck", sim->scheduler->waiting_count, sim->scheduler->running_count);
        if (!sim->report->failed)
            drain_events(sim);
        if (!planned)
            break;
    }
    if (!sim->report->failed)
        cancel_some(sim);
    if (!sim->report->failed && rp_scheduler_in_flight(sim->scheduler) > 0)
        commit_once(sim);
    if (!sim->report->failed)
        drain_events(sim);
}

static void check_end(struct sim *sim) {
    struct rp_sched_stats stats;
    while (!sim->report->failed && (sim->ring_count || sim->scheduler->events.count)) {
        consume_ring(sim);
        if (!sim->report->failed)
            drain_events(sim);
    }
    if (sim->report->failed)
        return;
    rp_scheduler_stats(sim->scheduler, &stats);
    CHECK(sim, sim->closed == sim->submitted, "not one CLOSED per request", sim->closed,
          sim->submitted);
    CHECK(sim, rp_scheduler_is_idle(sim->scheduler), "not idle at the end", 0, 0);
    CHECK(sim, stats.pages_free + stats.pages_cached == stats.pages_total,
          "pages are missing at the end", stats.pages_free, stats.pages_total);
    CHECK(sim, stats.host_pages_free == stats.host_pages_total, "host pages are missing at the end",
          stats.host_pages_free, stats.host_pages_total);
    CHECK(sim, stats.preemptions == sim->swap_sum, "swap counts", stats.preemptions, sim->swap_sum);
    CHECK(sim, stats.steps == sim->planned, "step counts", stats.steps, sim->planned);
    CHECK(sim, rp_alloc_count() == sim->alloc_count, "memory was allocated after create",
          rp_alloc_count(), sim->alloc_count);
    sim->report->preemptions += stats.preemptions;
}

static void run_turns(struct sim *sim) {
    /* Each step moves at least one row, so requests end within the sum of their tokens; the rest is
     * for turns in which clients or a full event ring hold things up. */
    const uint32_t turns_max = 20000;
    uint32_t fail_at = sim->fails ? between(sim, 1, 60) : turns_max;
    for (uint32_t i = 0; i < turns_max && !sim->report->failed; i++) {
        if (i == fail_at) {
            rp_scheduler_fail_all(sim->scheduler, RP_FINISH_ERROR, ++sim->now_ns);
            sim->planned = sim->committed = sim->scheduler->planned_step;
            sim->request_count = (uint32_t)sim->submitted;
            check_invariants(sim, NULL);
        } else {
            turn(sim);
        }
        if (sim->submitted == sim->request_count && rp_scheduler_is_idle(sim->scheduler))
            break;
    }
    if (!sim->report->failed)
        check_end(sim);
}

bool sched_sim_run(uint64_t seed, struct sched_sim_report *report) {
    struct sim *sim = calloc(1, sizeof *sim);
    struct rp_error err;
    if (!sim)
        return false;
    sim->random = mix(seed);
    sim->report = report;
    draw_config(sim);
    if (rp_scheduler_create(&sim->config, &sim->scheduler, &err) == RP_OK) {
        sim->alloc_count = rp_alloc_count();
        run_turns(sim);
    } else {
        fail(sim, "create failed", (uint64_t)-err.status, 0);
    }
    rp_scheduler_destroy(sim->scheduler);
    free(sim);
    return !report->failed;
}
