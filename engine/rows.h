/* rows.h - how many query tokens, logit rows and answer tokens a row of a step has: the one place
 * that knows that a decode row is one query and one token.
 *
 * Rows of several tokens (speculation: {query count, result span}) change these functions, and what
 * they describe elsewhere: rp_row_result (device/step.h) has one token, SAMPLE advances a slot by
 * one, rp_account_row (request_account.h) weighs one sampled row. */
#ifndef RP_ENGINE_ROWS_H
#define RP_ENGINE_ROWS_H

#include "engine/scheduler.h"

/* Query tokens of a decode row. */
#define RP_DECODE_QUERIES 1u

/* Tokens of the row that get logits. */
static inline uint32_t rp_row_logits(const struct rp_sched_row *row) {
    return row->scores ? row->count : row->samples;
}

/* Tokens that the row adds to its answer, if nothing fails. */
static inline uint32_t rp_row_outputs(const struct rp_sched_row *row) { return row->samples; }

/* Tokens of the row whose logits score the next token of the prompt: all but those that give
 * outputs. */
static inline uint32_t rp_row_scores(const struct rp_sched_row *row) {
    return row->scores ? row->count - rp_row_outputs(row) : 0;
}

/* Prompt tokens to stage for the row: its own, and the one after them when that is scored. */
static inline uint32_t rp_row_staged(const struct rp_sched_row *row) {
    return row->count + (row->scores && rp_row_outputs(row) == 0);
}

#endif
