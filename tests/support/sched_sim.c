/* The engine's part of a run, and the invariants of every step. */
#include "base/memory.h"
#include "tests/support/sched_sim_internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_copied_out(const struct rp_sched_copy *copies, uint32_t count, uint32_t page) {
    for (uint32_t i = 0; i < count; i++)
        if (copies[i].kind == RP_COPY_TO_HOST && copies[i].from == page)
            return true;
    return false;
}

/* Poisons pages that became free since the last call: no launched step may need them. Pages that
 * wait for a copy to the host are poisoned after the copy. */
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
                sched_sim_poison_page(sim, page);
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
        CHECK(sim, row->decode || !config->whole_prompts || row->count == prompt_count,
              "a prompt in parts", row->start, row->count);
        CHECK(sim, row->scores == (!row->decode && row->request->prompt_logprobs),
              "a prompt that is not scored as asked", row->scores, row->decode);
        CHECK(sim, step->scored || !(row->scores || row->request->logprobs),
              "a step that gives no scores", row->slot, 0);
        tokens += row->count;
        samples += row->scores ? row->count : row->samples;
        chunks += !row->decode;
    }
    CHECK(sim, tokens == step->token_count && samples == step->sample_count, "a step's counts",
          tokens, samples);
    CHECK(sim, samples <= config->logit_rows_max, "logit rows", samples, 0);
    CHECK(sim, step->decode_only == (chunks == 0), "decode_only", chunks, 0);
    CHECK(sim, step->row_count - chunks <= config->decode_rows_max, "decode rows", chunks, 0);
    CHECK(sim, chunks == 0 || tokens <= sim->scheduler->token_budget, "tokens", tokens, chunks);
}

/* Nothing that a step in flight names may be assigned to another request. */
static void check_edits(struct sim *sim, const struct rp_sched_step *step) {
    uint32_t hits[SLOTS_MAX] = {0}, page_tokens = sim->config.page_tokens;
    CHECK(sim, step->page_count <= sim->config.page_edit_capacity, "page edits", step->page_count,
          0);
    for (uint32_t i = 0; i < step->join_count; i++) {
        const struct rp_sched_join *join = &step->joins[i];
        const struct sim_request *request = (const struct sim_request *)join->request;
        CHECK(sim, sim->slot_step[join->slot] <= sim->committed, "a slot is reused too early",
              join->slot, 0);
        uint64_t *joined_order = &sim->joined_order[request->base.tenant];
        CHECK(sim, request->order > *joined_order, "not in the order of arrival of its tenant",
              request->order, *joined_order);
        *joined_order = request->order;
        hits[join->slot] = join->length / page_tokens;
        sim->report->hit_tokens += join->length;
        sim->report->state_hits += sim->config.state_unit && join->length;
        for (uint32_t g = 0; g < sim->group_count; g++)
            sim->report->window_hits +=
                rp_kv_first_page(sim->config.groups.window[g], page_tokens, join->length) > 0;
    }
    for (uint32_t i = 0; i < step->page_count; i++) {
        const struct rp_sched_page *edit = &step->pages[i];
        bool hit = edit->index % sim->pages_per_slot < hits[edit->slot];
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
        for (uint32_t g = 0; g < sim->group_count; g++) {
            const uint32_t *table = sim->tables[row->slot] + g * sim->pages_per_slot;
            uint32_t first = sched_sim_first(sim, g, row->start) / page_tokens;
            sim->report->passed_pages += first;
            for (uint32_t k = first; k < RP_CEIL_DIV(row->start + row->count, page_tokens); k++)
                sim->page_step[table[k]] = step->id;
        }
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
        /* Several tenants: at most every other step is reserved for first tokens of others. */
        uint32_t bound = 2 * sim->config.slot_count;
        bound += sim->config.hash_key % 2 ? bound + 4 : 0;
        CHECK(sim, sim->starved[slot] <= bound, "a sequence is starved", slot, sim->starved[slot]);
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
    copy->scored = step->scored;
    copy->row_count = step->row_count;
    copy->page_count = step->page_count;
    copy->join_count = step->join_count;
    copy->copy_count = step->copy_count;
    copy->zero_count = step->zero_page_count;
    copy->save_count = step->save_count;
    memcpy(copy->saves, step->saves, step->save_count * sizeof *step->saves);
    memcpy(copy->rows, step->rows, step->row_count * sizeof *step->rows);
    memcpy(copy->pages, step->pages, step->page_count * sizeof *step->pages);
    memcpy(copy->copies, step->copies, step->copy_count * sizeof *step->copies);
    memcpy(copy->zero_pages, step->zero_pages, step->zero_page_count * sizeof *step->zero_pages);
    for (uint32_t i = 0; i < step->join_count; i++) {
        const struct sim_request *request = (const struct sim_request *)step->joins[i].request;
        copy->joins[i] = (struct device_join){.slot = step->joins[i].slot,
                                              .length = step->joins[i].length,
                                              .snapshot = step->joins[i].snapshot,
                                              .root = sched_sim_kv_root(request->base.cache_salt),
                                              .nan_at = request->nan_at,
                                              .withhold_at = request->withhold_at,
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

/* True if a step was planned. */
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
    if (!sim->report->failed && !sched_sim_chance(sim, sim->late_percent))
        sched_sim_run_device(sim, sim->planned);
    return planned;
}

static void commit_once(struct sim *sim) {
    uint64_t id = sim->committed + 1;
    sched_sim_run_device(sim, id);
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

/* One turn of the engine's loop. A scheduler with nothing in flight and room for events must make
 * progress. */
static void turn(struct sim *sim) {
    uint32_t depth = sim->config.run_ahead && sched_sim_chance(sim, 80) ? 2 : 1;
    sched_sim_submit_some(sim);
    sched_sim_cancel_some(sim);
    while (!sim->report->failed && rp_scheduler_in_flight(sim->scheduler) < depth) {
        bool must_move = rp_scheduler_in_flight(sim->scheduler) == 0 && sim->ring_count == 0 &&
                         sim->scheduler->events.count == 0;
        bool planned = plan_once(sim);
        if (must_move && !planned && !sim->report->failed && sim->scheduler->events.count == 0 &&
            !rp_scheduler_is_idle(sim->scheduler))
            sched_sim_fail(sim, "stuck", sim->scheduler->waiting_count,
                           sim->scheduler->running_count);
        if (!sim->report->failed)
            sched_sim_drain_events(sim);
        if (!planned)
            break;
    }
    if (!sim->report->failed)
        sched_sim_cancel_some(sim);
    if (!sim->report->failed && rp_scheduler_in_flight(sim->scheduler) > 0)
        commit_once(sim);
    if (!sim->report->failed)
        sched_sim_drain_events(sim);
}

static void check_end(struct sim *sim) {
    struct rp_sched_stats stats;
    while (!sim->report->failed && (sim->ring_count || sim->scheduler->events.count)) {
        sched_sim_consume_ring(sim);
        if (!sim->report->failed)
            sched_sim_drain_events(sim);
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
    /* Each step advances at least one row, so requests end within the sum of their tokens; the
     * rest is for turns that clients or a full event ring delay. */
    const uint32_t turns_max = 20000;
    uint32_t fail_at = sim->fails ? sched_sim_between(sim, 1, 60) : turns_max;
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
    sim->random = sched_sim_mix(seed);
    sim->report = report;
    sched_sim_draw_config(sim);
    if (rp_scheduler_create(&sim->config, &sim->scheduler, &err) == RP_OK) {
        sim->alloc_count = rp_alloc_count();
        run_turns(sim);
        report->snapshot_evictions += sim->scheduler->snapshots.evictions;
    } else {
        sched_sim_fail(sim, "create failed", (uint64_t)-err.status, 0);
    }
    rp_scheduler_destroy(sim->scheduler);
    free(sim);
    return !report->failed;
}
