/* calibrate.h - what rows the products of a model's layers meet on a text, for model/balance.h and
 * model/quant_write.h.
 *
 * The text goes through the graphs that serve, one operator a kernel and every tensor in a place of
 * its own, so that after a step the input of each product is still there. Thread: one, the
 * device's. */
#ifndef RP_BENCH_CALIBRATE_H
#define RP_BENCH_CALIBRATE_H

#include "bench/eval_ppl.h"
#include "model/balance.h"
#include "model/quant_write.h"

#define RP_CALIBRATE_ROWS 32u /* of each site in its sample, spread over the text */

struct rp_calibration {
    uint32_t layers;
    struct rp_balance_sample *samples; /* (layers, RP_BALANCE_SITES) */
    struct rp_quant_inputs *inputs;    /* the same, every row; NULL unless asked for */
};

/* Tokens that a text's windows have, a BOS in each included. */
size_t rp_calibrate_tokens(const struct rp_eval_text *text);

/* run: open, of a configuration with `guarded`, no_fusion and the CPU's backend. Takes all windows
 * of the text; inputs: and keeps every row. FORMAT: a row holds what is no number. */
int rp_calibrate(struct rp_eval_run *run, const struct rp_eval_text *text, bool inputs,
                 struct rp_calibration *out, struct rp_error *err) RP_MUST_USE;
void rp_calibration_deinit(struct rp_calibration *calibration);

#endif
