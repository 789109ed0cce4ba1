/* eval_run.h - logits of every token of a text: one sequence, computed in steps of up to `chunk`
 * tokens.
 *
 *   rp_eval_run_open -> (rp_eval_run_feed, restart at the begin of each window)* -> rp_eval_run_close
 *
 * The graphs are the same as in serving: prompt rows with logits for each token (RP_ROW_SCORE).
 * Thread: one, the device's. Memory: allocated at open; close is legal after a failure. */
#ifndef RP_BENCH_EVAL_RUN_H
#define RP_BENCH_EVAL_RUN_H

#include "device/device.h"
#include "graphs/graph_set.h"
#include "kvcache/kv_layout.h"
#include "model/model.h"

struct rp_eval_run_config {
    const struct rp_backend *backend;
    struct rp_device *device;     /* open; owned by the caller */
    const struct rp_model *model; /* with its matrices prepared for the device */
    uint32_t window;              /* maximum tokens between two restarts */
    uint32_t chunk;               /* maximum tokens of a step */
    enum rp_dtype kv_dtype;
    bool no_fusion, eager;
    bool guarded; /* every tensor has its own arena range (graph_set.h), for calibrate.h */
};

struct rp_eval_run {
    struct rp_eval_run_config config;
    uint32_t vocab, logits_cols; /* columns of the program's logits: padded in a group */
    struct rp_program program;
    struct rp_graph_set *graphs;
    struct rp_step_view view;
    struct rp_kv_layout kv;
    unsigned char *state, *rings, *pages;
    size_t logits_offset; /* offset of the logits in the arena */
    float *logits;        /* (chunk, vocab), host copy */
    uint64_t step;
    uint32_t prompt_cursor, length; /* tokens since the restart */
};

/* NO_MEMORY: the error's hint says how to reduce the size. */
int rp_eval_run_open(const struct rp_eval_run_config *config, struct rp_eval_run *out,
                     struct rp_error *err) RP_MUST_USE;
void rp_eval_run_close(struct rp_eval_run *run);

/* Appends ids[0, count), 1 to chunk of them, to those since the last restart; *out: (count, vocab)
 * f32 logits, valid until the next call. DEVICE when the device failed. */
int rp_eval_run_feed(struct rp_eval_run *run, const int32_t *ids, uint32_t count, bool restart,
                     const float **out, struct rp_error *err) RP_MUST_USE;

/* Tokens per step whose logits need at most 64 MiB: 16 to 512. */
uint32_t rp_eval_run_chunk(uint32_t vocab, uint32_t window);

#endif
