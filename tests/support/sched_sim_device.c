/* The fake device: steps in launch order on shadow KV. */
#include "tests/support/sched_sim_internal.h"

#include <math.h>

#include <string.h>

void sched_sim_poison_page(struct sim *sim, uint32_t page) {
    sim->is_free[page] = true;
    for (uint32_t i = 0; i < sim->config.page_tokens; i++)
        /* NaN stays: only zero_pages removes it. */
        if (sim->kv[page * PAGE_STRIDE + i] != NAN_KV)
            sim->kv[page * PAGE_STRIDE + i] = POISON;
}

/* A step launched after this one copies the page out: another sequence had it in between. */
static bool is_copied_later(const struct sim *sim, uint64_t id, uint32_t page) {
    for (id++; id <= sim->planned; id++) {
        const struct device_step *later = &sim->launched[id % 4];
        for (uint32_t i = 0; i < later->copy_count; i++)
            if (later->copies[i].kind == RP_COPY_TO_HOST && later->copies[i].from == page)
                return true;
    }
    return false;
}

static void run_copies(struct sim *sim, const struct device_step *step) {
    size_t bytes = sim->config.page_tokens * sizeof *sim->kv;
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const struct rp_sched_copy *copy = &step->copies[i];
        if (copy->kind == RP_COPY_TO_HOST) {
            memcpy(&sim->host_kv[copy->to * PAGE_STRIDE], &sim->kv[copy->from * PAGE_STRIDE],
                   bytes);
            memcpy(&sim->host_by_decode[copy->to * PAGE_STRIDE],
                   &sim->by_decode[copy->from * PAGE_STRIDE], sim->config.page_tokens);
            if (sim->scheduler->pool.pages[copy->from].state == RP_KV_FREE &&
                !is_copied_later(sim, step->id, copy->from))
                sched_sim_poison_page(sim, copy->from);
            continue;
        }
        memcpy(&sim->kv[copy->to * PAGE_STRIDE], &sim->host_kv[copy->from * PAGE_STRIDE], bytes);
        memcpy(&sim->by_decode[copy->to * PAGE_STRIDE],
               &sim->host_by_decode[copy->from * PAGE_STRIDE], sim->config.page_tokens);
        for (uint32_t k = 0; k < sim->config.page_tokens; k++)
            sim->host_kv[copy->from * PAGE_STRIDE + k] = POISON;
    }
    for (uint32_t i = 0; i < step->zero_count; i++)
        memset(&sim->kv[step->zero_pages[i] * PAGE_STRIDE], 0, bytes);
}

/* Positions that a sequence found in the cache; only prompt rows may have written them. */
static void check_hits(struct sim *sim, const struct device_slot *slot) {
    uint32_t page_tokens = sim->config.page_tokens, length = slot->join.length;
    for (uint32_t g = 0; g < sim->group_count && sim->config.prefix_prompt_only; g++) {
        const uint32_t *table = slot->table + g * sim->pages_per_slot;
        for (uint32_t i = sched_sim_first(sim, g, length); i < length; i++)
            if (sim->by_decode[table[i / page_tokens] * PAGE_STRIDE + i % page_tokens])
                sched_sim_fail(sim, "a prompt found what decode wrote", i, length);
    }
}

/* What a step reads before it stores: the snapshots that sequences begin with. */
static void load_states(struct sim *sim, const struct device_step *step) {
    for (uint32_t i = 0; i < step->join_count && sim->config.state_unit; i++) {
        const struct device_join *join = &step->joins[i];
        sim->states[join->slot] = join->root;
        if (join->length == 0)
            continue;
        CHECK(sim, join->snapshot < sim->config.snapshot_count, "a snapshot that does not exist",
              join->snapshot, join->slot);
        sim->states[join->slot] = sim->snapshots[join->snapshot];
        for (uint32_t k = 0; k < step->save_count; k++)
            CHECK(sim, step->saves[k].snapshot != join->snapshot,
                  "a snapshot is read and stored in one step", join->snapshot, join->slot);
    }
    /* Rows that are dead store nothing. */
    for (uint32_t i = 0; i < step->save_count; i++)
        sim->snapshots[step->saves[i].snapshot] = POISON;
}

/* The row's token goes through the recurrence, whose state is then that of the pages. */
static void advance_state(struct sim *sim, const struct device_step *step, uint32_t slot_index,
                          uint64_t value) {
    const struct device_slot *slot = &sim->slots[slot_index];
    uint64_t *state = &sim->states[slot_index];
    *state = value;
    for (uint32_t i = 0; i < step->save_count; i++) {
        const struct rp_sched_save *save = &step->saves[i];
        if (save->slot == slot_index && save->position == slot->length)
            sim->snapshots[save->snapshot] = *state;
    }
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
    for (uint32_t i = 0; i < step->join_count; i++)
        check_hits(sim, &sim->slots[step->joins[i].slot]);
}

static uint64_t *place(struct sim *sim, const struct device_slot *slot, uint32_t group,
                       uint32_t position) {
    uint32_t page = slot->table[group * sim->pages_per_slot + position / sim->config.page_tokens];
    if (page == 0 || page >= sim->config.page_count || sim->is_free[page]) {
        sched_sim_fail(sim, "a row touches a page that is not its own", page, position);
        page = 0;
    }
    return &sim->kv[page * PAGE_STRIDE + position % sim->config.page_tokens];
}

static void write_kv(struct sim *sim, struct device_slot *slot, int32_t token, bool decode) {
    uint32_t position = slot->length++;
    uint32_t slot_index = (uint32_t)(slot - sim->slots);
    if (sim->config.state_unit && position && !sim->report->failed) {
        uint64_t before = OF_GROUP(*place(sim, slot, 0, position - 1), 0);
        CHECK(sim, sim->states[slot_index] == before,
              "a row's recurrent state is not that of its tokens", slot_index, position);
    }
    for (uint32_t g = 0; g < sim->group_count; g++) {
        uint64_t before =
            position ? OF_GROUP(*place(sim, slot, g, position - 1), g) : slot->join.root;
        uint64_t *to = place(sim, slot, g, position);
        uint64_t value = sched_sim_kv_value(position, token, before);
        sim->by_decode[to - sim->kv] = decode;
        *to = position >= slot->join.nan_at ? NAN_KV : OF_GROUP(value, g);
    }
}

/* Attention over the positions that the last token sees: their fold, or NaN if one of them is NaN.
 * Kernels read whole pages, and a NaN at a masked position would spoil the sum. */
static uint64_t read_kv(struct sim *sim, const struct device_slot *slot, bool *out_nan) {
    uint64_t fold = 0;
    *out_nan = false;
    for (uint32_t g = 0; g < sim->group_count; g++) {
        uint32_t first = sched_sim_first(sim, g, slot->length - 1);
        for (uint32_t i = first; i < slot->length && !sim->report->failed; i++) {
            uint64_t value = *place(sim, slot, g, i);
            if (value == POISON)
                sched_sim_fail(sim, "a row reads a page that was freed", i, slot->length);
            *out_nan |= value == NAN_KV;
            fold = sched_sim_fold(fold, value);
        }
        for (uint32_t i = slot->length; i % sim->config.page_tokens && !sim->report->failed; i++)
            if (*place(sim, slot, g, i) == NAN_KV)
                sched_sim_fail(sim, "NaN was left behind in a page", i, slot->length);
    }
    return fold;
}

/* For the row's tokens with logits: the position after each, which can be reported again. */
static void score_row(struct sim *sim, struct device_step *step, uint32_t index) {
    const struct rp_sched_row *row = &step->rows[index];
    const struct device_slot *slot = &sim->slots[row->slot];
    uint32_t count = row->scores ? row->count : row->samples;
    step->results[index].scores = step->scored ? &step->scores[step->score_count] : NULL;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = slot->length - count + i;
        CHECK(sim, step->score_count < ROWS_MAX, "too many logit rows", row->slot, count);
        step->scores[step->score_count++] = (struct rp_sched_scores){
            .logprob = position >= slot->join.nan_at ? NAN : -(float)(position + 1),
            .rank = position + 2,
            .top_count = 1,
            .top[0].token = (int32_t)position};
    }
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
    for (uint32_t i = 0; i < row->count && !sim->report->failed; i++) {
        write_kv(sim, slot, row->decode ? slot->last_token : step->tokens[index][i], row->decode);
        if (sim->config.state_unit)
            advance_state(sim, step, row->slot,
                          OF_GROUP(*place(sim, slot, 0, slot->length - 1), 0));
    }
    uint64_t fold = read_kv(sim, slot, &nan);
    score_row(sim, step, index);
    if (!row->samples)
        return;
    if (row->output == slot->join.withhold_at) {
        result->flags = RP_SCHED_RESULT_WITHHELD;
        slot->finished = true;
        return;
    }
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

void sched_sim_run_device(struct sim *sim, uint64_t up_to) {
    for (uint64_t id = sim->committed + 1; id <= up_to && !sim->report->failed; id++) {
        struct device_step *step = &sim->launched[id % 4];
        if (step->done)
            continue;
        step->score_count = 0;
        run_copies(sim, step);
        run_edits(sim, step);
        load_states(sim, step);
        for (uint32_t i = 0; i < step->row_count && !sim->report->failed; i++)
            run_row(sim, step, i);
        step->done = true;
    }
}
