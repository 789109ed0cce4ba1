/* target_logits.h - logits of a list of tokens by the model of a benchmark, to compare modes with
 * different weights, pages or kernels. The graphs are the same as in serving (eval_run.h). One
 * model is in memory at a time.
 *
 * Thread: one, the device's. */
#ifndef RP_BENCH_TARGET_LOGITS_H
#define RP_BENCH_TARGET_LOGITS_H

#include "bench/bench_engine.h"
#include "bench/eval_ppl.h"

/* device: open, remains so. *out: (count, vocab), to be freed with rp_free, also after an error. */
int rp_target_logits(const struct rp_bench_target *target, struct rp_device *device,
                     const int32_t *ids, uint32_t count, float **out,
                     struct rp_error *err) RP_MUST_USE;

/* Compares logits (count, vocab) with others of the same tokens; ids: (count + 1). FORMAT: one is
 * not finite. */
int rp_target_compare(const float *logits, const float *other, uint32_t vocab, const int32_t *ids,
                      uint32_t count, struct rp_eval_sums *out, struct rp_error *err) RP_MUST_USE;

/* count random ids below vocab, always the same. */
void rp_target_random_ids(uint32_t vocab, int32_t *out, uint32_t count);

#endif
