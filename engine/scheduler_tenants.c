/* Fair shares. A tenant is whoever requests are charged to: an API key, else a connection.
 *
 * Measure: the time of each step is split over the tenants by the tokens of their rows. A tenant
 * that becomes active starts at the service of the least served active one, so that nobody saves up
 * time while idle or is charged for it later (start-time fair queueing).
 *
 * Admission: of the waiting requests that may enter, the first one of the least served tenant; the
 * last free slots are kept for tenants that have none.
 *
 * In a step, where several tenants are or were just active, one with more than one request is
 * limited:
 * - It gets as many decode rows as all others together and as many prompt tokens as these have
 *   left, or what lengthens the step little, whichever is more. That is what fills the largest
 *   size of step that took at most 1.25 times as long as one of twice the others' tokens, where
 *   an equal share ends; a quarter of it is for prompts. On a GPU tens of rows cost little more
 *   than two, on a CPU they do not.
 * - It has no part in a step that computes the prompt of a tenant with one request that is not
 *   served more than it, at most in every other step in the long run.
 * Where the limits are in vain (no such prompt has entered, or the step is empty) the step is
 * planned without them. So a request beside a client that sends hundreds is served about as beside
 * another one like itself, and equals do not slow each other down.
 */
#include "engine/scheduler_internal.h"

#include "base/memory.h"

/* A client that sends one request after the other is inactive in between: the next one should not
 * find steps that were planned without limits. */
#define CONTENDED_NS ((uint64_t)100000000)

enum { YIELDS_MAX = 2, SLOTS_PER_RESERVED = 16 };

static struct rp_tenant *tenant_at(const struct rp_scheduler *scheduler, uint32_t index) {
    return &scheduler->tenants[scheduler->active_tenants[index]];
}

/* Starts at the least service of those that are active, which never falls. */
static void lift_service(struct rp_scheduler *scheduler) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++)
        least = RP_MIN(least, tenant_at(scheduler, i)->service_ns);
    if (least != UINT64_MAX)
        scheduler->service_floor_ns = RP_MAX(scheduler->service_floor_ns, least);
}

static struct rp_tenant *find_or_add(struct rp_scheduler *scheduler, uint64_t id) {
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++)
        if (tenant_at(scheduler, i)->id == id)
            return tenant_at(scheduler, i);
    lift_service(scheduler);
    uint32_t slot = scheduler->free_tenants[--scheduler->free_tenant_count];
    struct rp_tenant *tenant = &scheduler->tenants[slot];
    *tenant = (struct rp_tenant){.id = id,
                                 .service_ns = scheduler->service_floor_ns,
                                 .row_limit = UINT32_MAX,
                                 .prompt_left = UINT32_MAX,
                                 .place = scheduler->active_tenant_count};
    scheduler->active_tenants[scheduler->active_tenant_count++] = slot;
    return tenant;
}

static void remove_if_idle(struct rp_scheduler *scheduler, struct rp_tenant *tenant) {
    if (tenant->waiting || tenant->admitted)
        return;
    lift_service(scheduler);
    uint32_t last = scheduler->active_tenants[--scheduler->active_tenant_count];
    scheduler->active_tenants[tenant->place] = last;
    scheduler->tenants[last].place = tenant->place;
    scheduler->free_tenants[scheduler->free_tenant_count++] =
        (uint32_t)(tenant - scheduler->tenants);
}

static bool is_full(const struct rp_scheduler *scheduler, const struct rp_tenant *tenant) {
    uint32_t capacity = scheduler->config.queue_capacity;
    return tenant->id != 0 && tenant->waiting >= RP_MAX(capacity - capacity / 8, 1u);
}

bool rp_sched_tenant_enqueue(struct rp_scheduler *scheduler, struct rp_request *request) {
    struct rp_tenant *tenant = find_or_add(scheduler, request->tenant);
    if (is_full(scheduler, tenant))
        return false;
    request->tenant_slot = (uint32_t)(tenant - scheduler->tenants);
    tenant->waiting++;
    tenant->waiting_tokens += request->prompt_count;
    return true;
}

void rp_sched_tenant_dequeue(struct rp_scheduler *scheduler, const struct rp_request *request) {
    struct rp_tenant *tenant = &scheduler->tenants[request->tenant_slot];
    tenant->waiting--;
    tenant->waiting_tokens -= request->prompt_count;
    remove_if_idle(scheduler, tenant);
}

void rp_sched_tenant_admit(struct rp_scheduler *scheduler, const struct rp_request *request) {
    struct rp_tenant *tenant = &scheduler->tenants[request->tenant_slot];
    tenant->waiting--;
    tenant->waiting_tokens -= request->prompt_count;
    tenant->admitted++;
}

void rp_sched_tenant_close(struct rp_scheduler *scheduler, const struct rp_request *request) {
    struct rp_tenant *tenant = &scheduler->tenants[request->tenant_slot];
    tenant->admitted--;
    remove_if_idle(scheduler, tenant);
}

/* Slots that only a tenant without a sequence may take. */
static uint32_t reserved_slots(const struct rp_scheduler *scheduler) {
    return scheduler->config.slot_count / SLOTS_PER_RESERVED;
}

static bool may_enter(const struct rp_scheduler *scheduler, const struct rp_tenant *tenant) {
    bool reserved = scheduler->free_slot_count <= reserved_slots(scheduler);
    if (tenant->id != 0 && tenant->admitted && reserved)
        return false;
    return tenant->prompt_left > 0;
}

/* A newcomer starts at the least service of the others: among equals the one with fewer sequences
 * is first. */
static bool is_less_served(const struct rp_tenant *a, const struct rp_tenant *b) {
    return a->service_ns != b->service_ns ? a->service_ns < b->service_ns
                                          : a->admitted < b->admitted;
}

uint32_t rp_sched_tenant_pick(const struct rp_scheduler *scheduler) {
    uint32_t capacity = scheduler->config.queue_capacity, best = RP_SCHED_NOBODY;
    const struct rp_tenant *best_tenant = NULL;
    for (uint32_t i = 0; i < scheduler->waiting_count; i++) {
        uint32_t at = (scheduler->waiting_first + i) % capacity;
        const struct rp_request *request = scheduler->waiting[at];
        const struct rp_tenant *tenant = &scheduler->tenants[request->tenant_slot];
        if (!may_enter(scheduler, tenant))
            continue;
        bool better =
            !best_tenant || is_less_served(tenant, best_tenant) ||
            (tenant == best_tenant && request->priority < scheduler->waiting[best]->priority);
        if (better) {
            best = at;
            best_tenant = tenant;
        }
    }
    return best;
}

/* --- Limits of one step ---------------------------------------------------------------------- */

/* Tokens that a tenant may add to those of the others while the step becomes little longer. */
static uint32_t quantum(const struct rp_scheduler *scheduler, uint32_t others) {
    uint32_t size = rp_sched_size_of(scheduler, 2 * RP_MAX(others, 1u));
    uint64_t limit_ns = rp_sched_size_time(scheduler, size) / 4 * 5;
    while (size + 1 < rp_sched_size_count(scheduler) &&
           rp_sched_size_time(scheduler, size + 1) < limit_ns)
        size++;
    uint32_t tokens = rp_sched_size_tokens(scheduler, size);
    return RP_MAX(tokens - RP_MIN(tokens, others), 1u);
}

/* For a tenant with more ready sequences than rows: those that had a row longest ago get one, the
 * others skip this step. */
static void choose_rows(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                        uint32_t tenant) {
    rp_sched_choose_decodes(scheduler, step, tenant, scheduler->tenants[tenant].row_limit);
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        if (sequence->request->tenant_slot == tenant && sequence->chosen_step != step->id)
            sequence->skip_step = step->id;
        sequence->chosen_step = 0;
    }
}

/* Least service of the tenants with one request whose prompt is being computed, or may enter now;
 * UINT64_MAX: there is none. */
static uint64_t least_single_prompt(const struct rp_scheduler *scheduler) {
    uint32_t next = rp_sched_tenant_pick(scheduler);
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        const struct rp_tenant *tenant = tenant_at(scheduler, i);
        bool enters = next != RP_SCHED_NOBODY && scheduler->free_slot_count &&
                      scheduler->waiting[next]->tenant_slot == scheduler->active_tenants[i];
        bool in_prompt = tenant->admitted && tenant->prompt_tokens;
        if (tenant->waiting + tenant->admitted == 1 && (in_prompt || enters))
            least = RP_MIN(least, tenant->service_ns);
    }
    return least;
}

/* What a tenant with several requests may add to the step. ready and prompt: decode rows and prompt
 * tokens of all tenants. */
static void limit_tenant(const struct rp_scheduler *scheduler, struct rp_tenant *tenant,
                         uint64_t ready, uint64_t prompt, uint64_t single_ns) {
    uint64_t others = ready - tenant->ready, other_prompt = prompt - tenant->prompt_tokens;
    uint64_t share = quantum(scheduler, (uint32_t)RP_MIN(others + other_prompt, UINT32_MAX / 2));
    tenant->yields = single_ns <= tenant->service_ns && tenant->yielded < YIELDS_MAX;
    if (tenant->yields) {
        tenant->row_limit = tenant->prompt_left = 0;
        return;
    }
    uint64_t prompt_share = tenant->prompt_tokens ? RP_MAX(share / 4, 1u) : 0;
    uint64_t row_share = RP_MAX(share - RP_MIN(share, prompt_share), 1u);
    tenant->row_limit = (uint32_t)RP_MIN(RP_MAX(others, row_share), UINT32_MAX);
    tenant->prompt_left = (uint32_t)RP_MIN(RP_MAX(others + other_prompt, prompt_share), UINT32_MAX);
}

void rp_sched_tenants_begin_step(struct rp_scheduler *scheduler, const struct rp_step_store *step) {
    bool several = scheduler->active_tenant_count > 1;
    if (several)
        scheduler->contended_until_ns = step->now_ns + CONTENDED_NS;
    bool contended = (several || step->now_ns < scheduler->contended_until_ns) &&
                     !scheduler->config.whole_prompts;
    uint64_t ready = 0, prompt = 0;
    scheduler->limits = contended;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        struct rp_tenant *tenant = tenant_at(scheduler, i);
        tenant->ready = 0;
        tenant->yields = false;
        /* A single request that waits has its turn by itself; it is no reason to give more to
         * others. */
        tenant->prompt_tokens = tenant->waiting + tenant->admitted > 1 ? tenant->waiting_tokens : 0;
        prompt += tenant->prompt_tokens;
        tenant->row_limit = tenant->prompt_left = UINT32_MAX;
    }
    if (!contended)
        return;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        const struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        struct rp_tenant *tenant = &scheduler->tenants[sequence->request->tenant_slot];
        bool can_decode = rp_sequence_can_decode(sequence, step->id);
        uint32_t rest =
            rp_sequence_in_prompt(sequence) ? sequence->prompt_count - sequence->planned_length : 0;
        tenant->ready += can_decode;
        tenant->prompt_tokens += rest;
        ready += can_decode;
        prompt += rest;
    }
    uint64_t single_ns = least_single_prompt(scheduler);
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        struct rp_tenant *tenant = tenant_at(scheduler, i);
        if (tenant->id != 0 && tenant->admitted + tenant->waiting > 1)
            limit_tenant(scheduler, tenant, ready, prompt, single_ns);
        if (tenant->ready > tenant->row_limit)
            choose_rows(scheduler, step, scheduler->active_tenants[i]);
    }
}

bool rp_sched_tenants_lift(struct rp_scheduler *scheduler, const struct rp_step_store *step) {
    bool limited = false, yields = false;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        limited |= tenant_at(scheduler, i)->row_limit != UINT32_MAX;
        yields |= tenant_at(scheduler, i)->yields;
    }
    bool in_vain = yields && step->chunk_count == 0;
    if (!in_vain && !(limited && step->row_count == 0))
        return false;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        struct rp_tenant *tenant = tenant_at(scheduler, i);
        tenant->row_limit = tenant->prompt_left = UINT32_MAX;
        /* `yields` stays: rows may be taken by others by now. */
    }
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        struct rp_sequence *sequence = &scheduler->sequences[scheduler->running[i]];
        if (sequence->skip_step == step->id)
            sequence->skip_step = 0;
    }
    return true;
}

void rp_sched_tenants_end_step(struct rp_scheduler *scheduler) {
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        struct rp_tenant *tenant = tenant_at(scheduler, i);
        if (tenant->yields)
            tenant->yielded++;
        else
            tenant->yielded -= tenant->yielded > 0;
    }
}

void rp_sched_tenant_use_prompt(struct rp_scheduler *scheduler, const struct rp_sequence *sequence,
                                uint32_t tokens) {
    struct rp_tenant *tenant = &scheduler->tenants[sequence->request->tenant_slot];
    if (tenant->prompt_left != UINT32_MAX)
        tenant->prompt_left -= tokens;
}

uint32_t rp_sched_tenant_prompt_left(const struct rp_scheduler *scheduler,
                                     const struct rp_sequence *sequence) {
    return scheduler->tenants[sequence->request->tenant_slot].prompt_left;
}

/* --- Service --------------------------------------------------------------------------------- */

void rp_sched_tenants_charge(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                             uint64_t now_ns) {
    uint64_t begin_ns = RP_MAX(step->now_ns, scheduler->committed_ns);
    uint64_t took_ns = now_ns > begin_ns ? now_ns - begin_ns : 0;
    scheduler->committed_ns = now_ns;
    rp_sched_step_took(scheduler, step, took_ns);
    if (scheduler->active_tenant_count < 2)
        return; /* whoever comes starts where the only one is */
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct rp_sched_row *row = &step->rows[i];
        const struct rp_sequence *sequence = &scheduler->sequences[row->slot];
        if (sequence->request) /* closed requests have left their tenant */
            scheduler->tenants[sequence->request->tenant_slot].service_ns +=
                took_ns * row->count / step->token_count;
    }
}

/* --- Memory and invariants ------------------------------------------------------------------- */

bool rp_sched_tenants_alloc(struct rp_scheduler *scheduler) {
    const struct rp_scheduler_config *config = &scheduler->config;
    uint32_t count = config->queue_capacity + config->slot_count;
    scheduler->tenants = rp_calloc(count, sizeof *scheduler->tenants);
    scheduler->active_tenants = rp_calloc(count, sizeof(uint32_t));
    scheduler->free_tenants = rp_calloc(count, sizeof(uint32_t));
    scheduler->size_ns = rp_calloc(rp_sched_size_count(scheduler), sizeof(uint64_t));
    if (!scheduler->tenants || !scheduler->active_tenants || !scheduler->free_tenants ||
        !scheduler->size_ns)
        return false;
    for (uint32_t i = count; i-- > 0;)
        scheduler->free_tenants[scheduler->free_tenant_count++] = i;
    return true;
}

void rp_sched_tenants_free(struct rp_scheduler *scheduler) {
    rp_free(scheduler->tenants);
    rp_free(scheduler->active_tenants);
    rp_free(scheduler->free_tenants);
    rp_free(scheduler->size_ns);
}

const char *rp_sched_tenants_check(const struct rp_scheduler *scheduler) {
    uint64_t waiting = 0, admitted = 0;
    for (uint32_t i = 0; i < scheduler->active_tenant_count; i++) {
        const struct rp_tenant *tenant = tenant_at(scheduler, i);
        if (tenant->place != i)
            return "a tenant is not in its place";
        if (!tenant->waiting && !tenant->admitted)
            return "an active tenant has no request";
        waiting += tenant->waiting;
        admitted += tenant->admitted;
    }
    if (waiting != scheduler->waiting_count ||
        admitted != (uint64_t)scheduler->running_count + scheduler->swapped_count)
        return "the tenants' counts are not those of the lists";
    return NULL;
}
