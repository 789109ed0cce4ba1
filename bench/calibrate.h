/* calibrate.h - collects input rows of a model's layer GEMMs on a text, for model/balance.h and
 * model/quant_write.h.
 *
 * The text is run through the same graphs as serving, but without fusion and with a separate arena
 * range for every tensor, so that after a step the input of each GEMM is still in memory. Thread:
 * one, the device's. */
#ifndef RP_BENCH_CALIBRATE_H
#define RP_BENCH_CALIBRATE_H

#include "bench/eval_ppl.h"
#include "model/balance.h"
#include "model/quant_write.h"

#define RP_CALIBRATE_ROWS 32u /* rows sampled per site, spread over the text */

struct rp_calibration {
    uint32_t layers;
    struct rp_balance_sample *samples; /* (layers, RP_BALANCE_SITES) */
    struct rp_quant_inputs *inputs;    /* the same with every row; NULL unless requested */
};

/* Number of tokens in a text's windows, including a BOS in each. */
size_t rp_calibrate_tokens(const struct rp_eval_text *text);

/* run: open, configured with `guarded`, no_fusion and the CPU backend. Processes all windows of the
 * text; inputs: stores every row. FORMAT: a row contains a non-finite value. */
int rp_calibrate(struct rp_eval_run *run, const struct rp_eval_text *text, bool inputs,
                 struct rp_calibration *out, struct rp_error *err) RP_MUST_USE;
void rp_calibration_deinit(struct rp_calibration *calibration);

#endif
