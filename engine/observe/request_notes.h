/* request_notes.h - what is noted of a request in each step that it was in: steps, buckets, pages,
 * the time between its tokens and its causes. Part of request_account.h, which calls it once a
 * step.
 *
 * Most rows are those of requests that decode, step after step. What happens to such a row happens
 * to all of them (the step and its bucket, the time since the token before, where that went): a
 * streak. It is added up once a step, for all; a request takes the difference when its streak ends,
 * which is at the latest when the engine hands on its end. Only what is its own is kept for each:
 * one cache line in place of the five that its stats take.
 *
 * Thread: the engine thread. Memory: all at init. */
#ifndef RP_ENGINE_REQUEST_NOTES_H
#define RP_ENGINE_REQUEST_NOTES_H

#include "engine/request.h"

struct rp_account;
struct rp_account_row;
struct rp_account_step;

/* The rows of one slot. All of these are of the steps since the streak began. */
struct rp_streak {
    struct rp_request *request; /* NULL: none */
    uint64_t step;      /* rp_account.steps with the step in progress, when that goes on with it */
    uint64_t device_ns; /* at account->power_mw: what was before is in the request's stats */
    uint64_t bytes, flops;
    uint64_t worst_gap_ns;   /* since the request's begin */
    uint64_t pages_since_ns; /* it had `pages` since then */
    uint32_t pages;
};

/* Sums over all steps so far. */
struct rp_streak_sums {
    uint64_t steps, bucket_tokens, padded_tokens;
    uint64_t gap_ns[RP_GAP_CAUSE_COUNT]; /* of a row that decodes in every step */
};

struct rp_streaks {
    struct rp_streak_sums sums;
    uint32_t *graph_steps; /* (graphs) steps of each bucket */
    uint32_t slot_count, graph_count, open;
    struct rp_streak *of;         /* (slots) */
    struct rp_streak_sums *bases; /* (slots) the sums when the streak began */
    uint32_t *base_steps;         /* (slots, graphs) likewise */
    /* The step before, and the time since it in the step in progress. */
    uint64_t last_step, last_read_ns, gap_ns;
    enum rp_gap_cause gap_cause; /* that had most of it */
};

/* False when memory is out. */
bool rp_streaks_init(struct rp_streaks *streaks, uint32_t slot_count, uint32_t graph_count);
void rp_streaks_deinit(struct rp_streaks *streaks); /* legal on a zeroed struct */

/* Which rows of a step go on with their slots' streaks (account->costs[i].goes_on), before the step
 * is in the account; ends the other streaks. */
void rp_streaks_find(struct rp_account *account, const struct rp_account_step *step,
                     const struct rp_account_row *rows, uint32_t row_count);
/* Its request's stats are then as if rp_note_row had been called for each of its rows. The account
 * is at the step that was its last. */
void rp_streak_end(struct rp_account *account, uint32_t slot);
/* The device's power is another one from now on: open streaks keep the energy of their steps so
 * far. At most once a second. */
void rp_streaks_settle_energy(struct rp_account *account, uint32_t power_mw);
/* The step is in the account: what its rows have in common. */
void rp_streaks_step(struct rp_account *account, const struct rp_account_step *step,
                     uint64_t step_prefill_ns);
/* Then: their shares (account->costs) to those that go on. Returns how many do. */
uint32_t rp_streaks_add(struct rp_account *account, const struct rp_account_step *step,
                        const struct rp_account_row *rows, uint32_t row_count);
/* Any other row of a request: all of it; begins a streak where one may follow. */
void rp_note_row(struct rp_account *account, const struct rp_account_step *step,
                 const struct rp_account_row *row, uint64_t step_prefill_ns);

#endif
