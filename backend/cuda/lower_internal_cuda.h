/* lower_internal_cuda.h - a lowering in progress, and what its files share: lower_cuda.c attention
 * and the ends of a step; fusions_cuda.c the table of fusions and its conditions;
 * lower_matmul_cuda.c GEMMs; lower_experts_cuda.c experts; lower_recurrent_cuda.c
 * operators with recurrent state; lower_small_cuda.c the small operators. */
#ifndef RP_BACKEND_LOWER_INTERNAL_CUDA_H
#define RP_BACKEND_LOWER_INTERNAL_CUDA_H

#include "attention/attention_cuda.h"
#include "attention/latent/latent_post_cuda.h"
#include "backend/cuda/device_cuda.h"
#include "backend/lowering.h"
#include "device/exchange_cuda.h"
#include "device/ops_cuda.h"
#include "quant/experts/matmul_experts_cuda.h"
#include "quant/heads/matmul_heads_cuda.h"
#include "quant/matmul_cuda.h"

#include <string.h>

/* Different sizes of heads in one network. */
#define RP_LOWER_ATTENTION_MAX 4
/* Rows of W8A8 GEMMs. */
struct rp_lower_quantized {
    unsigned char *data;
    float *scales;
};

/* Scratch memory of experts' operators, the same for all layers; NULL: there are none. */
struct rp_lower_experts {
    struct rp_expert_stats *totals;
    struct rp_expert_tile *tiles;
    unsigned char *quantized; /* rows of W8A8 GEMMs */
    float *quantized_scales;
};

struct lowering {
    struct rp_device *device;
    struct rp_graph *graph;
    const struct rp_program *program;
    const struct rp_bindings *bindings;
    struct rp_bucket bucket;
    uint64_t layout; /* of scratch: the same for all buckets of one graph set */
    struct rp_attention_cuda_config attention[RP_LOWER_ATTENTION_MAX];
    uint32_t attention_count;
    struct rp_fused fused;
    /* For each fused operator: the partial sums that the operator in partials_to adds up. */
    struct rp_cuda_partials *partials;
    /* The fused operator whose terms the GEMM before it has stored at the peer; RP_FUSED_NONE. */
    uint32_t pushed_to;
    /* Quantized rows of the GEMM that runs next: one buffer for all. A kernel that fills it has
     * waited for all that read it, and a GEMM reads it after its own wait (device/cuda_launch.h).
     * data NULL: no GEMM needs quantized rows. */
    struct rp_lower_quantized quantized;
    struct rp_lower_quantized quantized_side; /* those that operators of a side branch make */
    /* Rows with the columns of act-order, likewise. NULL: no matrix has an order. */
    void *ordered;
    struct rp_lower_experts experts;
    bool explain; /* rp_lower_options */
    struct rp_error *err;
};

static inline const struct rp_op *op_at(const struct lowering *low, uint32_t at) {
    return &low->program->ops[at];
}

static inline struct rp_values values_of(const struct lowering *low, const struct rp_view *view) {
    return rp_lowering_values(low->program, low->bindings, view);
}

static inline const struct rp_op *member_of(const struct lowering *low,
                                            const struct rp_fused_op *fused, uint32_t member) {
    return op_at(low, fused->ops[member]);
}

static inline const struct rp_op *last_of(const struct lowering *low,
                                          const struct rp_fused_op *fused) {
    return member_of(low, fused, fused->op_count - 1);
}

/* RP_BRANCH_NONE in a bucket whose operators all run one after the other. Rows in the order of
 * columns have one buffer: with them nothing runs beside. */
static inline enum rp_branch branch_of(const struct lowering *low,
                                       const struct rp_fused_op *fused) {
    const struct rp_op *op = member_of(low, fused, 0);
    return low->bucket.tokens <= op->branch_tokens && !low->ordered ? op->branch : RP_BRANCH_NONE;
}

/* The stamp of the launch that is lowered next. */
static inline struct rp_cuda_stamp stamp_of(const struct lowering *low) {
    return rp_cuda_stamp_at(&low->bindings->step,
                            low->bindings->stamp_base + low->graph->node_count);
}

static inline struct rp_cuda_rows rows_of(const struct lowering *low, const struct rp_op *op) {
    return (struct rp_cuda_rows){.step = low->bindings->step,
                                 .rows = low->program->domains[op->rows].kind,
                                 .max_rows = rp_program_rows(low->program, &low->bucket, op->rows),
                                 .plain_edges = !low->device->limits.dependent_launch,
                                 .stamp = stamp_of(low)};
}

static inline int out_of_memory(const struct lowering *low, const char *what) {
    return rp_error_set(low->err, RP_STATUS_NO_MEMORY, "cuda: no memory for %s", what);
}

static inline unsigned char *scratch_of(const struct lowering *low, enum rp_cuda_scratch_kind kind,
                                        size_t bytes) {
    return rp_cuda_scratch(low->device, kind, bytes, low->layout);
}

/* Appends a launch whose arguments live already. */
static inline int append(struct lowering *low, const struct rp_fused_op *fused,
                         const struct rp_cuda_launch *launch) {
    struct rp_cuda_node *node = &low->graph->nodes[low->graph->node_count++];
    node->launch = *launch;
    node->branch = branch_of(low, fused);
    return rp_lowering_describe(&node->info, low->program, fused, launch->kernel, low->explain,
                                &low->graph->memory)
               ? RP_OK
               : out_of_memory(low, "the list of launches");
}

/* Appends a launch with a copy of its arguments. */
static inline int add_launch(struct lowering *low, const struct rp_fused_op *fused,
                             const char *kernel, rp_cuda_run run, const void *args, size_t bytes) {
    void *copy = rp_arena_alloc(&low->graph->memory, bytes);
    if (!copy)
        return out_of_memory(low, "arguments");
    memcpy(copy, args, bytes);
    return append(low, fused, &(struct rp_cuda_launch){kernel, run, copy});
}

#define ADD_LAUNCH(low, fused, kernel, run, args)                                                  \
    add_launch((low), (fused), (kernel), (run), &(args), sizeof(args))

/* Device copy of a host vector of an operator; *out NULL when there is none. */
static inline int constant_of(const struct lowering *low, const float *host, size_t count,
                              const float **out) {
    *out = NULL;
    if (!host)
        return RP_OK;
    *out = rp_cuda_constant(low->device, host, count * sizeof *host);
    return *out ? RP_OK : out_of_memory(low, "a vector of the model");
}

/* The partial sums that the fused operator adds up; count 0: it reads its operand. */
static inline struct rp_cuda_partials partials_of(const struct lowering *low,
                                                  const struct rp_fused_op *fused) {
    return fused->partials_from == RP_FUSED_NONE ? (struct rp_cuda_partials){0}
                                                 : low->partials[fused->partials_from];
}

/* --- fusions_cuda.c */
extern const struct rp_fusion_table rp_cuda_fusions; /* callbacks' backend: struct lowering */
int rp_lower_emit(struct lowering *low, const struct rp_fused_op *fused);

/* --- lower_cuda.c: one emit function for each row of the table */
int rp_lower_step_begin(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_qkv_post(struct lowering *low, const struct rp_fused_op *fused);
/* The members of a fusion between the GEMMs and attention over latents; NULL: there is none. */
struct rp_latent_post_ops {
    const struct rp_op *norm, *k_rope, *write; /* all or none */
    const struct rp_op *q_rope, *rounded;
};
/* NULL, or why the operators are no such fusion. */
const char *rp_lower_latent_post_ops(const struct lowering *low, const struct rp_fused_op *fused,
                                     struct rp_latent_post_ops *out);
int rp_lower_latent_post(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_kv_write(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_attention(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_sample(struct lowering *low, const struct rp_fused_op *fused);

/* --- lower_matmul_cuda.c */
/* Room for the quantized and the ordered rows of any GEMM, where one needs them. */
int rp_lower_rows_open(struct lowering *low);
/* Where `maker` stores the quantized rows of a GEMM, of experts' first one too. */
struct rp_cuda_quantized rp_lower_quantize(const struct lowering *low,
                                           const struct rp_fused_op *maker,
                                           const struct rp_op *reader);
/* Describes the GEMM of a fused operator, on quantized rows or on its rows as they are, without
 * what has to be allocated or uploaded. */
struct rp_matmul_cuda rp_lower_describe_matmul(const struct lowering *low,
                                               const struct rp_fused_op *fused, bool quantized);
bool rp_lower_uses_library(const struct lowering *low, const struct rp_matmul_cuda *matmul);
bool rp_lower_is_w8a8(const struct rp_op *linear);
/* Adds the vectors and the workspace and chooses the kernel; arguments are allocated in `memory`.
 * copy: where the output goes, too; NULL, or to NULL: nowhere. */
int rp_lower_plan_matmul(const struct lowering *low, const struct rp_fused_op *fused,
                         bool quantized, const struct rp_matmul_copy *copy, struct rp_arena *memory,
                         struct rp_cuda_launch *launch, struct rp_cuda_partials *partials);
int rp_lower_matmul(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_head_linear(struct lowering *low, const struct rp_fused_op *fused);

/* --- lower_experts_cuda.c */
int rp_lower_experts_open(struct lowering *low);
bool rp_lower_experts_are_w8a8(const struct rp_op *gemm);
int rp_lower_route(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_expert_order(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_route_order(struct lowering *low, const struct rp_fused_op *fused);
/* The sizes and places of a router whose GEMM is a member of the launch; no vectors. */
struct rp_router_cuda rp_lower_describe_router(const struct lowering *low, const struct rp_op *gemm,
                                               const struct rp_op *route);
int rp_lower_router(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_expert_gemm(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_expert_sum(struct lowering *low, const struct rp_fused_op *fused); /* with ADD too */
/* The rows, weights and shared expert of an EXPERT_SUM; out is its own. */
struct rp_expert_sum_args rp_lower_describe_sum(const struct lowering *low, const struct rp_op *op);

/* --- lower_recurrent_cuda.c */
int rp_lower_conv(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_gated_delta(struct lowering *low, const struct rp_fused_op *fused);

/* --- lower_small_cuda.c */
int rp_lower_embed(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_norm(struct lowering *low, const struct rp_fused_op *fused); /* gather_norm too */
int rp_lower_add_norm(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_expert_sum_norm(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_rope(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_activation(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_glu(struct lowering *low, const struct rp_fused_op *fused); /* norm_glu too */
int rp_lower_add(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_gather(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_soft_cap(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_scale(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_layer_norm(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_exchange(struct lowering *low, const struct rp_fused_op *fused);
int rp_lower_allreduce_norm(struct lowering *low, const struct rp_fused_op *fused);

#endif
