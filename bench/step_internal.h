/* step_internal.h - one case of bench_step: memory, graphs and packets. */
#ifndef RP_BENCH_STEP_INTERNAL_H
#define RP_BENCH_STEP_INTERNAL_H

#include "bench/bench_step.h"
#include "graphs/graph_set.h"
#include "kvcache/kv_layout.h"
#include "model/model.h"

/* Sequence lengths are reset after this many decode steps. */
#define STEP_REWIND 16u

/* State shared by all cases. */
struct step_bench {
    const struct rp_bench_step_config *config;
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_device_info info;
    struct rp_model model;
    uint32_t prepared;
    unsigned char *pattern;
};

/* Times of a step, by the device's clock. */
struct step_stamps {
    uint64_t begin_ns, end_ns;
};

struct step_case {
    struct step_bench *bench;
    uint32_t batch, context;
    struct rp_bucket bucket;
    struct rp_program program;
    struct rp_kv_layout kv;
    struct rp_step_view view;
    unsigned char *state, *rings, *pages;
    struct rp_graph_set *graphs;
    uint64_t step; /* the last step whose packet was written */
    uint32_t prompt_cursor;
    struct rp_step_nodes nodes;
};

/* Tokens of one step. */
uint32_t rp_step_case_tokens(const struct step_case *c);

/* NO_MEMORY when it does not fit. Close is legal after a failure. */
int rp_step_case_open(struct step_bench *bench, uint32_t batch, uint32_t context,
                      struct step_case *c, struct rp_error *err);
void rp_step_case_close(struct step_case *c);

/* Writes the next step's packet; at most RP_STEP_RING_ENTRIES - 1 may be unread. */
void rp_step_case_write(struct step_case *c);
int rp_step_case_launch(struct step_case *c);
int rp_step_case_wait(struct step_case *c, uint64_t step, struct rp_error *err);
/* Reads every result of the step, as the engine does, and its device timestamps. */
int rp_step_case_read(struct step_case *c, uint64_t step, struct step_stamps *out,
                      struct rp_error *err);
int rp_step_device_failed(const struct step_bench *bench, struct rp_error *err);

/* Operations/s of the layers' largest GEMM with the token count of the last step. */
int rp_step_case_gemm_rate(struct step_case *c, double *out, struct rp_error *err);

#endif
