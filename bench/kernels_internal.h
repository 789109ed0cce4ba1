/* kernels_internal.h - one case of bench_kernels: program, memory and graph. */
#ifndef RP_BENCH_KERNELS_INTERNAL_H
#define RP_BENCH_KERNELS_INTERNAL_H

#include "bench/bench_kernels.h"
#include "kvcache/kv_layout.h"
#include "model/model.h"
#include "quant/matrix.h"

#define KERNELS_DECODE_ROWS_MAX 256u
#define KERNELS_SETS_MAX        32u
#define KERNELS_WEIGHTS_MAX     32u

enum kernels_kind {
    KERNELS_GEMM,
    KERNELS_NORM,
    KERNELS_ADD_NORM, /* fused */
    KERNELS_ACTIVATION,
    KERNELS_ROPE, /* of q and k together */
    KERNELS_KV_WRITE,
    KERNELS_QKV_POST, /* fused: rope, kv_write */
    KERNELS_ATTENTION,
    KERNELS_SAMPLE,    /* greedy */
    KERNELS_SAMPLE_TOP /* temperature, top-k, top-p */
};

struct kernels_case {
    const char *op;
    enum kernels_kind kind;
    enum rp_rows domain;
    uint32_t n, k; /* of a GEMM */
    uint32_t rows, context;
};

/* State shared by all cases. */
struct kernels_bench {
    const struct rp_bench_kernels_config *config;
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_device_info info;
    uint64_t cold_bytes;
    struct rp_model_config shape;
    struct rp_step_view host, view; /* step state, on the host and on the device */
    unsigned char *host_state, *device_state, *rings;
    size_t state_bytes;
    float *norm_weight, *rope_table;
    uint32_t rope_positions;
    unsigned char *pattern;                        /* rp_random_pattern */
    struct rp_matrix weights[KERNELS_WEIGHTS_MAX]; /* copies of the GEMM's weights */
    uint32_t weight_count;
};

/* One case: its memory, and the most recently captured program. */
struct kernels_run {
    const struct kernels_case *op_case;
    struct rp_bucket bucket;
    struct rp_kv_layout kv;
    unsigned char *arena, *pages;
    uint32_t sets;                  /* copies of tensors, and layers of pages */
    uint32_t repeats;               /* repetitions of the operator in the graph */
    struct rp_graph *graph, *start; /* start: launches at the start of every replay, or NULL */
    struct rp_cost cost;            /* of one repetition */
    char kernel[64];
};

/* Prepares the step state for rows and context on the device. */
int rp_kernels_step_open(struct kernels_bench *bench, struct rp_error *err);
void rp_kernels_step_close(struct kernels_bench *bench);
int rp_kernels_step_set(struct kernels_bench *bench, const struct kernels_case *op_case);

/* Creates as many copies of a GEMM's weights as needed; replaces earlier ones. */
int rp_kernels_weights_make(struct kernels_bench *bench, uint32_t n, uint32_t k,
                            struct rp_error *err);
void rp_kernels_weights_free(struct kernels_bench *bench);

/* Allocates memory for the case. RP_STATUS_NO_MEMORY when it does not fit. */
int rp_kernels_run_open(struct kernels_bench *bench, const struct kernels_case *op_case,
                        struct kernels_run *run, struct rp_error *err);
/* Captures a program of `repeats` repetitions; may be called again. */
int rp_kernels_run_capture(struct kernels_bench *bench, struct kernels_run *run, uint32_t repeats,
                           struct rp_error *err);
/* 8-bit GEMMs: signal-to-noise ratio of the outputs against bf16. The run is captured again. */
int rp_kernels_gemm_error(struct kernels_bench *bench, struct kernels_run *run, double *out_db,
                          struct rp_error *err);
void rp_kernels_run_close(struct kernels_bench *bench, struct kernels_run *run);

#endif
