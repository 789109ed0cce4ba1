/* bench_modes.h - speed and error of the ways to run one model: eager, graphs, fast numerics, 8-bit
 * weights, 8-bit pages.
 *
 * Each mode has its own device, model and engine, one after another. Speed is that of
 * bench_decode.h. The error is the difference of the logits of fixed tokens from those of the first
 * mode: eager, invariant numerics, unquantized weights and pages. Graphs are expected to have none.
 *
 * Thread: one, in the role of the engine's loop thread. */
#ifndef RP_BENCH_BENCH_MODES_H
#define RP_BENCH_BENCH_MODES_H

#include "bench/bench_decode.h"

#define RP_BENCH_MODES         9u
#define RP_BENCH_MODES_BATCHES 4u

/* The names, the reference first. */
const char *rp_bench_mode_name(uint32_t mode);

struct rp_bench_mode_result {
    const char *name;
    char device[96];
    char left_out[192]; /* why the mode does not run here; "": it did */
    struct rp_bench_decode_result decode[RP_BENCH_MODES_BATCHES]; /* (batch_count) */
    double weight_bytes;
    uint32_t tokens; /* compared */
    double logit_max, kl_mean, kl_max, cosine_min, top1_share;
};

struct rp_bench_modes_config {
    struct rp_bench_target target; /* of the reference; backend is set, opened is NULL */
    unsigned modes;                /* bits; the reference runs in any case */
    const int32_t *ids;            /* (count + 1) */
    uint32_t count;
    const uint32_t *batches; /* (batch_count), at most RP_BENCH_MODES_BATCHES */
    uint32_t batch_count, context, tokens, rounds, warm_up; /* as in bench_decode.h */
    void (*report)(void *ctx, const struct rp_bench_mode_result *result);
    void *report_ctx;
};

/* Reports each mode when it is done. A mode that the device or model does not support is left out
 * with the reason; an error of the reference, or a lack of memory, ends the run. */
int rp_bench_modes(const struct rp_bench_modes_config *config, struct rp_error *err) RP_MUST_USE;

#endif
