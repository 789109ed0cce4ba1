#include "engine/observe/request_notes.h"

#include "base/checked.h"
#include "base/memory.h"
#include "engine/observe/request_account.h"

#include <string.h>

/* --- One row ---------------------------------------------------------------------------------- */

static void note_bucket(struct rp_request_stats *stats, uint32_t graph, uint32_t steps) {
    uint32_t i = stats->last_bucket; /* as a rule it is the one of the step before */
    if (stats->buckets[i].graph != graph || stats->bucket_count == 0)
        for (i = 0; i < stats->bucket_count && stats->buckets[i].graph != graph;)
            i++;
    if (i == RP_STATS_BUCKETS) {
        stats->other_steps += steps;
        return;
    }
    if (i == stats->bucket_count)
        stats->buckets[stats->bucket_count++] = (struct rp_stats_bucket){graph, 0};
    stats->buckets[i].steps += steps;
    stats->last_bucket = i;
}

static void note_chunk(struct rp_request *request, const struct rp_account_step *step,
                       const struct rp_account_row *row) {
    struct rp_request_stats *stats = &request->stats;
    uint32_t kept = RP_MIN(stats->chunk_count, (uint32_t)RP_STATS_CHUNKS);
    uint64_t floor_ns = kept ? stats->chunks[kept - 1].end_ns : request->scheduled_ns;
    if (stats->chunk_count++ < RP_STATS_CHUNKS) {
        stats->chunks[kept] =
            (struct rp_prefill_chunk){.begin_ns = RP_MAX(step->begin_ns, floor_ns),
                                      .end_ns = step->end_ns,
                                      .start = row->start,
                                      .tokens = row->count};
        return;
    }
    stats->chunks[RP_STATS_CHUNKS - 1].end_ns = step->end_ns;
    stats->chunks[RP_STATS_CHUNKS - 1].tokens += row->count;
}

static void note_pages(struct rp_request *request, bool swapped, uint64_t read_ns, uint32_t pages) {
    struct rp_request_stats *stats = &request->stats;
    bool first = stats->steps == 1;
    uint64_t since_ns = first ? request->scheduled_ns : stats->pages_since_ns;
    if (!swapped && read_ns > since_ns)
        stats->page_ns += (first ? pages : stats->seen_pages) * (read_ns - since_ns);
    stats->pages_since_ns = read_ns;
    stats->seen_pages = pages;
    stats->pages_peak = RP_MAX(stats->pages_peak, pages);
}

/* A gap over its causes; returns the one that has most of it. other: of the time in which the
 * device did nothing for it. */
static enum rp_gap_cause split_gap(uint64_t gap_ns, uint64_t device_ns, uint64_t prefill_ns,
                                   enum rp_gap_cause other, uint64_t out_ns[RP_GAP_CAUSE_COUNT]) {
    device_ns = RP_MIN(device_ns, gap_ns);
    prefill_ns = RP_MIN(prefill_ns, device_ns);
    uint64_t step_ns = device_ns - prefill_ns, other_ns = gap_ns - device_ns;
    out_ns[RP_GAP_STEP] += step_ns;
    out_ns[RP_GAP_PREFILL] += prefill_ns;
    out_ns[other] += other_ns;
    if (other_ns > step_ns && other_ns > prefill_ns)
        return other;
    return prefill_ns > step_ns ? RP_GAP_PREFILL : RP_GAP_STEP;
}

/* The time since the last token of a row that was not in the step before, or is new in its
 * streak. */
static enum rp_gap_cause split_own_gap(const struct rp_account *account,
                                       const struct rp_account_step *step,
                                       struct rp_request_stats *stats, bool swapped,
                                       uint64_t step_prefill_ns, uint64_t gap_ns) {
    bool missed = account->steps > stats->seen_steps + 1;
    bool apart = swapped || missed; /* what steps did without it does not count as its own */
    uint64_t device_ns =
        apart ? step->device_ns : account->totals.device_ns - stats->seen_device_ns;
    uint64_t prefill_ns = apart ? step_prefill_ns : account->prefill_ns - stats->seen_prefill_ns;
    bool squeezed = account->squeezed_ns >= stats->last_token_ns;
    enum rp_gap_cause other = swapped    ? RP_GAP_SWAP
                              : squeezed ? RP_GAP_CLIENT
                              : missed   ? RP_GAP_PAGES
                                         : RP_GAP_HOST;
    return split_gap(gap_ns, device_ns, prefill_ns, other, stats->gap_ns);
}

static void note_token(const struct rp_account *account, const struct rp_account_step *step,
                       struct rp_request_stats *stats, bool swapped, uint64_t step_prefill_ns) {
    if (stats->tokens++ > 0) {
        uint64_t gap_ns = step->read_ns - RP_MIN(step->read_ns, stats->last_token_ns);
        enum rp_gap_cause cause =
            split_own_gap(account, step, stats, swapped, step_prefill_ns, gap_ns);
        if (gap_ns > stats->worst_gap_ns) {
            stats->worst_gap_ns = gap_ns;
            stats->worst_gap_step = step->step;
            stats->worst_gap_token = stats->tokens - 1;
            stats->worst_gap_cause = cause;
        }
    }
    stats->last_token_ns = step->read_ns;
    stats->seen_device_ns = account->totals.device_ns;
    stats->seen_prefill_ns = account->prefill_ns;
}

static void begin_streak(struct rp_account *account, const struct rp_account_row *row) {
    struct rp_streaks *streaks = &account->streaks;
    struct rp_request_stats *stats = &row->request->stats;
    uint32_t graphs = streaks->graph_count;
    streaks->of[row->slot] = (struct rp_streak){.request = row->request,
                                                .worst_gap_ns = stats->worst_gap_ns,
                                                .pages_since_ns = stats->pages_since_ns,
                                                .pages = stats->seen_pages};
    streaks->bases[row->slot] = streaks->sums;
    memcpy(streaks->base_steps + (size_t)row->slot * graphs, streaks->graph_steps,
           graphs * sizeof *streaks->base_steps);
    stats->streak = row->slot + 1;
    streaks->open++;
}

void rp_note_row(struct rp_account *account, const struct rp_account_step *step,
                 const struct rp_account_row *row, uint64_t step_prefill_ns) {
    struct rp_request_stats *stats = &row->request->stats;
    /* A swap planned for the next step is not between this row and the last. */
    bool missed = account->steps > stats->seen_steps + 1;
    bool swapped = (missed || step->swaps) && row->request->swap_count != stats->seen_swaps;
    stats->first_step = stats->steps++ ? stats->first_step : step->step;
    stats->last_step = step->step;
    stats->decode_steps += row->decode;
    stats->bucket_tokens += step->bucket.tokens;
    stats->padded_tokens += step->bucket.tokens - step->token_count;
    note_bucket(stats, step->graph, 1);
    if (!row->decode)
        note_chunk(row->request, step, row);
    note_pages(row->request, swapped, step->read_ns, row->pages);
    if (row->sampled)
        note_token(account, step, stats, swapped, step_prefill_ns);
    if (swapped)
        stats->seen_swaps = row->request->swap_count;
    stats->seen_steps = account->steps;
    if (row->sampled)
        begin_streak(account, row);
}

/* --- Streaks ---------------------------------------------------------------------------------- */

bool rp_streaks_init(struct rp_streaks *streaks, uint32_t slot_count, uint32_t graph_count) {
    size_t all = 0;
    memset(streaks, 0, sizeof *streaks);
    streaks->slot_count = slot_count;
    streaks->graph_count = graph_count;
    if (rp_mul_overflow(slot_count, graph_count, &all))
        return false;
    streaks->graph_steps = rp_calloc(graph_count, sizeof *streaks->graph_steps);
    streaks->of = rp_calloc(slot_count, sizeof *streaks->of);
    streaks->bases = rp_calloc(slot_count, sizeof *streaks->bases);
    streaks->base_steps = rp_calloc(all, sizeof *streaks->base_steps);
    return streaks->graph_steps && streaks->of && streaks->bases && streaks->base_steps;
}

void rp_streaks_deinit(struct rp_streaks *streaks) {
    rp_free(streaks->graph_steps);
    rp_free(streaks->of);
    rp_free(streaks->bases);
    rp_free(streaks->base_steps);
    memset(streaks, 0, sizeof *streaks);
}

static void add_pages(struct rp_request_stats *stats, const struct rp_streak *streak,
                      uint64_t until_ns) {
    if (until_ns > streak->pages_since_ns)
        stats->page_ns += streak->pages * (until_ns - streak->pages_since_ns);
}

static void take_time(struct rp_request_stats *stats, struct rp_streak *streak, uint32_t power_mw) {
    stats->device_ns += streak->device_ns;
    stats->energy_pj += streak->device_ns * power_mw;
    streak->device_ns = 0;
}

void rp_streaks_settle_energy(struct rp_account *account, uint32_t power_mw) {
    struct rp_streaks *streaks = &account->streaks;
    for (uint32_t slot = 0; streaks->open && slot < streaks->slot_count; slot++)
        if (streaks->of[slot].request)
            take_time(&streaks->of[slot].request->stats, &streaks->of[slot], account->power_mw);
    account->power_mw = power_mw;
}

void rp_streak_end(struct rp_account *account, uint32_t slot) {
    struct rp_streaks *streaks = &account->streaks;
    struct rp_streak *streak = &streaks->of[slot];
    struct rp_request_stats *stats = &streak->request->stats;
    const struct rp_streak_sums *now = &streaks->sums, *base = &streaks->bases[slot];
    const uint32_t *base_steps = streaks->base_steps + (size_t)slot * streaks->graph_count;
    uint32_t steps = (uint32_t)(now->steps - base->steps);
    streak->request = NULL;
    streaks->open--;
    stats->streak = 0;
    if (!steps)
        return;
    take_time(stats, streak, account->power_mw);
    stats->bytes += streak->bytes;
    stats->flops += streak->flops;
    stats->last_step = streaks->last_step;
    stats->steps += steps;
    stats->decode_steps += steps;
    stats->tokens += steps;
    stats->bucket_tokens += now->bucket_tokens - base->bucket_tokens;
    stats->padded_tokens += now->padded_tokens - base->padded_tokens;
    for (uint32_t i = 0; i < RP_GAP_CAUSE_COUNT; i++)
        stats->gap_ns[i] += now->gap_ns[i] - base->gap_ns[i];
    for (uint32_t i = 0; i < streaks->graph_count; i++)
        if (streaks->graph_steps[i] != base_steps[i])
            note_bucket(stats, i, streaks->graph_steps[i] - base_steps[i]);
    add_pages(stats, streak, streaks->last_read_ns);
    stats->seen_pages = streak->pages;
    stats->pages_since_ns = stats->last_token_ns = streaks->last_read_ns;
    stats->seen_device_ns = account->totals.device_ns;
    stats->seen_prefill_ns = account->prefill_ns;
    stats->seen_steps = account->steps;
}

/* Whether a row of a request that has a streak goes on with it. */
static bool goes_on(const struct rp_account_step *step, const struct rp_account_row *row) {
    if (step->swaps && row->request->swap_count != row->request->stats.seen_swaps)
        return false;
    return row->decode && row->sampled;
}

void rp_streaks_find(struct rp_account *account, const struct rp_account_step *step,
                     const struct rp_account_row *rows, uint32_t row_count) {
    struct rp_streaks *streaks = &account->streaks;
    uint64_t number = account->steps + 1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        struct rp_streak *streak = &streaks->of[rows[i].slot];
        bool same = rows[i].request && streak->request == rows[i].request;
        account->costs[i].goes_on = same && goes_on(step, &rows[i]);
        if (account->costs[i].goes_on) {
            streak->step = number;
            count++;
        }
    }
    for (uint32_t slot = 0; streaks->open > count; slot++) {
        RP_ASSERT_CMP(slot, <, streaks->slot_count);
        if (streaks->of[slot].request && streaks->of[slot].step != number)
            rp_streak_end(account, slot);
    }
}

void rp_streaks_step(struct rp_account *account, const struct rp_account_step *step,
                     uint64_t step_prefill_ns) {
    struct rp_streaks *streaks = &account->streaks;
    bool squeezed = account->squeezed_ns >= streaks->last_read_ns;
    streaks->gap_ns = step->read_ns - RP_MIN(step->read_ns, streaks->last_read_ns);
    streaks->gap_cause = split_gap(streaks->gap_ns, step->device_ns, step_prefill_ns,
                                   squeezed ? RP_GAP_CLIENT : RP_GAP_HOST, streaks->sums.gap_ns);
    streaks->last_read_ns = step->read_ns;
    streaks->last_step = step->step;
    streaks->sums.steps++;
    streaks->sums.bucket_tokens += step->bucket.tokens;
    streaks->sums.padded_tokens += step->bucket.tokens - step->token_count;
    streaks->graph_steps[step->graph]++;
}

/* A new count of pages, or the worst gap so far: rare. */
RP_COLD static void note_change(struct rp_account *account, const struct rp_account_step *step,
                                const struct rp_account_row *row) {
    struct rp_streaks *streaks = &account->streaks;
    struct rp_streak *streak = &streaks->of[row->slot];
    struct rp_request_stats *stats = &row->request->stats;
    if (row->pages != streak->pages) {
        add_pages(stats, streak, step->read_ns);
        stats->pages_peak = RP_MAX(stats->pages_peak, row->pages);
        streak->pages_since_ns = step->read_ns;
        streak->pages = row->pages;
    }
    if (streaks->gap_ns > streak->worst_gap_ns) {
        uint64_t steps = streaks->sums.steps - streaks->bases[row->slot].steps;
        streak->worst_gap_ns = stats->worst_gap_ns = streaks->gap_ns;
        stats->worst_gap_step = step->step;
        stats->worst_gap_token = stats->tokens + (uint32_t)steps - 1;
        stats->worst_gap_cause = streaks->gap_cause;
    }
}

uint32_t rp_streaks_add(struct rp_account *account, const struct rp_account_step *step,
                        const struct rp_account_row *rows, uint32_t row_count) {
    struct rp_streak *of = account->streaks.of;
    uint64_t gap_ns = account->streaks.gap_ns;
    uint32_t count = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        const struct rp_account_cost *own = &account->costs[i];
        struct rp_streak *streak = &of[rows[i].slot];
        if (!own->goes_on)
            continue;
        streak->device_ns += own->ns;
        streak->bytes += own->bytes;
        streak->flops += own->flops;
        count++;
        if (RP_UNLIKELY(rows[i].pages != streak->pages || gap_ns > streak->worst_gap_ns))
            note_change(account, step, &rows[i]);
    }
    return count;
}
