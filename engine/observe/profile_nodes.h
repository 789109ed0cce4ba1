/* profile_nodes.h - the launches of each captured bucket: their operators, and what these cost.
 *
 * A program is freed once it is captured; this keeps the few numbers of it that a profile needs.
 * Costs are linear in what a step holds, so that they are kept as factors: an operator's bytes are
 * fixed + per token x tokens + per logit row x logit rows, and attention's are per position read.
 * They are those of backend/op_cost.h: each operator by itself, so that a launch that fuses several
 * counts what passes between them, which never leaves the processor.
 *
 * Thread: any, constant after make. Memory: all at make. */
#ifndef RP_ENGINE_PROFILE_NODES_H
#define RP_ENGINE_PROFILE_NODES_H

#include "graphs/graph_set.h"

struct rp_profile_op {
    char name[RP_OP_NAME_MAX];
    enum rp_op_kind kind;
    enum rp_rows rows;
    uint16_t layer;                             /* RP_LAYER_NONE outside the layers */
    uint32_t n, k;                              /* of its matrix; n alone: columns of its output */
    uint32_t heads, kv_heads, head_dim, window; /* attention */
    const struct rp_mask *mask;                 /* in place of the window; NULL: none */
    double bytes_fixed, bytes_per_token, bytes_per_logit, bytes_per_kv; /* kv: positions read */
    double flops_per_token, flops_per_logit, flops_per_pair; /* pair: token and position */
};

struct rp_profile_node {
    uint32_t op_count, ops[RP_LAUNCH_OPS_MAX];
    bool repeated; /* another launch runs the same operators: their cost is counted there */
    const char *kernel;
};

struct rp_profile_bucket {
    struct rp_bucket bucket;
    struct rp_profile_node *nodes; /* forward, then sample; NULL: not captured */
    uint32_t count, forward_count;
};

struct rp_profile_nodes {
    struct rp_profile_op *ops;
    struct rp_profile_bucket *buckets; /* as in the graph set */
    struct rp_profile_node *all;
    uint32_t op_count, bucket_count, nodes_max;
};

/* RP_STATUS_NO_MEMORY with *out empty. */
int rp_profile_nodes_make(const struct rp_backend *backend, const struct rp_program *program,
                          struct rp_graph_set *graphs, enum rp_dtype kv_dtype,
                          struct rp_profile_nodes *out) RP_MUST_USE;
void rp_profile_nodes_deinit(struct rp_profile_nodes *nodes); /* legal on a zeroed struct */

/* The properties of a step that costs depend on. */
struct rp_profile_demand {
    uint64_t tokens, logit_rows;
    uint64_t kv_read;  /* positions whose K and V are read */
    uint64_t kv_pairs; /* pairs of a token and a position that it attends to */
};
void rp_profile_node_cost(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                          const struct rp_profile_demand *work, double *out_bytes,
                          double *out_flops);
/* The attention among its operators, or NULL. */
const struct rp_profile_op *rp_profile_node_attention(const struct rp_profile_nodes *nodes,
                                                      const struct rp_profile_node *node);

#define RP_PROFILE_NAME_MAX 112
/* Its operators' names joined with '+', cut where they do not fit; without `layers` the layer's
 * number is left out of each. A launch that repeats the one before it names its kernel too. */
void rp_profile_node_name(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                          bool layers, char out[RP_PROFILE_NAME_MAX]);
/* "3072 x 1024" (outputs x inputs) of a GEMM, "32/8 x 64" (heads/KV heads x their size) of
 * attention, else its columns; of the operator that costs most. */
void rp_profile_node_shape(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                           char out[48]);
/* The layer of the node's first operator that is in one; RP_LAYER_NONE: none is. */
uint16_t rp_profile_node_layer(const struct rp_profile_nodes *nodes,
                               const struct rp_profile_node *node);

#endif
