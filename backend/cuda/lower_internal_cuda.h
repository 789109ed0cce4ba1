/* lower_internal_cuda.h - a lowering under way, and what its files share: lower_cuda.c the table of patterns,
 * attention and the ends of a step; lower_products_cuda.c products; lower_small_cuda.c the small operators. */
#ifndef RP_BACKEND_LOWER_INTERNAL_CUDA_H
#define RP_BACKEND_LOWER_INTERNAL_CUDA_H

#include "attention/attention_cuda.h"
#include "backend/cuda/device_cuda.h"
#include "backend/lowering.h"
#include "device/ops_cuda.h"
#include "quant/matmul_cuda.h"

#include <string.h>

/* No operator has its rows as codes. */
#define RP_LOWER_NO_CODES UINT32_MAX

struct lowering {
    struct rp_device *device;
    struct rp_graph *graph;
    const struct rp_program *program;
    const struct rp_bindings *bindings;
    struct rp_bucket bucket;
    uint32_t end;
    bool fuse;
    uint64_t layout; /* of scratch: the same for all buckets of one graph set */
    struct rp_attention_cuda_config attention; /* behind_product: whether one was lowered */
    struct rp_cuda_partials pending;           /* count 0: none */
    int32_t pending_tensor;
    struct rp_matmul_norm norm; /* of the tokens of the product at hand; weight NULL: none */
    /* Rows of the product that runs next, as codes: one buffer for all. Whoever writes it has waited for all that
     * read it, and a product reads it behind its own wait (device/cuda_launch.h). NULL: no product wants codes. */
    unsigned char *codes;
    float *code_scales;
    uint32_t
        codes_for; /* the product whose rows lie there, when its operator is lowered; or RP_LOWER_NO_CODES */
    struct rp_error *err;
};

static inline const struct rp_op *op_at(const struct lowering *low, uint32_t at) {
    return &low->program->ops[at];
}

static inline struct rp_values values_of(const struct lowering *low, const struct rp_view *view) {
    return rp_lowering_values(low->program, low->bindings, view);
}

/* Of the launch that is lowered next. */
static inline struct rp_cuda_stamp stamp_of(const struct lowering *low) {
    return rp_cuda_stamp_at(&low->bindings->step,
                            low->bindings->stamp_base + low->graph->node_count);
}

static inline struct rp_cuda_rows rows_of(const struct lowering *low, enum rp_rows rows) {
    return (struct rp_cuda_rows){.step = low->bindings->step,
                                 .rows = rows,
                                 .max_rows = rp_bucket_rows(&low->bucket, rows),
                                 .plain_edges = !low->device->limits.dependent_launch,
                                 .stamp = stamp_of(low)};
}

static inline int out_of_memory(struct lowering *low, const char *what) {
    return rp_error_set(low->err, RP_STATUS_NO_MEMORY, "cuda: no memory for %s", what);
}

static inline unsigned char *scratch_of(const struct lowering *low, enum rp_cuda_scratch_kind kind,
                                        size_t bytes) {
    return rp_cuda_scratch(low->device, kind, bytes, low->layout);
}

/* Appends a launch whose arguments live already. */
static inline void append(struct lowering *low, uint32_t at, uint32_t count,
                          const struct rp_cuda_launch *launch) {
    struct rp_cuda_node *node = &low->graph->nodes[low->graph->node_count++];
    node->launch = *launch;
    rp_lowering_name(&node->info, low->program, at, count, launch->kernel);
}

/* Appends a launch with a copy of its arguments. */
static inline int add_launch(struct lowering *low, uint32_t at, uint32_t count, const char *kernel,
                             rp_cuda_run run, const void *args, size_t bytes) {
    void *copy = rp_arena_alloc(&low->graph->memory, bytes);
    if (!copy)
        return out_of_memory(low, "arguments");
    memcpy(copy, args, bytes);
    append(low, at, count, &(struct rp_cuda_launch){kernel, run, copy});
    return RP_OK;
}

#define ADD_LAUNCH(low, at, count, kernel, run, args)                                              \
    add_launch((low), (at), (count), (kernel), (run), &(args), sizeof(args))

/* Device copy of a host vector of an operator; *out NULL when there is none. */
static inline int constant_of(struct lowering *low, const float *host, size_t count,
                              const float **out) {
    *out = NULL;
    if (!host)
        return RP_OK;
    *out = rp_cuda_constant(low->device, host, count * sizeof *host);
    return *out ? RP_OK : out_of_memory(low, "a vector of the model");
}

/* The unsummed product that this tensor stands for, if it does; it is read once. */
static inline struct rp_cuda_partials take_pending(struct lowering *low, int32_t tensor) {
    struct rp_cuda_partials taken = {0};
    if (low->pending.count && low->pending_tensor == tensor) {
        taken = low->pending;
        low->pending.count = 0;
    }
    return taken;
}

/* -- products: a pattern's match (operators taken; 0: none) and emit ------------------------------------- */

/* Between the qkv product and attention: lower_cuda.c emits it. */
static inline uint32_t rp_lower_match_qkv_post(const struct lowering *low, uint32_t at) {
    return rp_lowering_qkv_post(low->program, at, low->end);
}

uint32_t rp_lower_match_normed(const struct lowering *low, uint32_t at);
int rp_lower_normed(struct lowering *low, uint32_t at, uint32_t count);
uint32_t rp_lower_match_gated(const struct lowering *low, uint32_t at);
int rp_lower_gated(struct lowering *low, uint32_t at, uint32_t count);
uint32_t rp_lower_match_linear(const struct lowering *low, uint32_t at);
int rp_lower_linear(struct lowering *low, uint32_t at, uint32_t count);

/* Room for the codes of any product's rows, where a product wants them. */
int rp_lower_codes_open(struct lowering *low);
/* By an operator that gives rows to `out`, with `next` the operator behind it: where it shall put their codes, since
 * `next` is a product that alone reads them and takes codes; data NULL: it does not. The answer binds: the product
 * finds codes, and nobody reads `out` itself. */
struct rp_cuda_codes rp_lower_codes_of(struct lowering *low, uint32_t next,
                                       const struct rp_view *out);

/* -- small operators: a pattern's match (operators taken; 0: none) and emit ------------------------------ */

int rp_lower_embed(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_norm(struct lowering *low, uint32_t at, uint32_t count);
uint32_t rp_lower_match_gather_norm(const struct lowering *low, uint32_t at);
int rp_lower_gather_norm(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_rope(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_activation(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_add(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_soft_cap(struct lowering *low, uint32_t at, uint32_t count);
int rp_lower_gather(struct lowering *low, uint32_t at, uint32_t count);
uint32_t rp_lower_match_add_norm(const struct lowering *low, uint32_t at);
int rp_lower_add_norm(struct lowering *low, uint32_t at, uint32_t count);

#endif
