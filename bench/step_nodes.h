/* step_nodes.h - what the nodes of stamped steps took, by kernel (device/step.h: rp_node_stamp).
 *
 * A node's own time runs from when it began, or when the node before it ended, whichever is later,
 * until it ended: what nodes do beside the one before them counts once. Thread: the caller's. */
#ifndef RP_BENCH_STEP_NODES_H
#define RP_BENCH_STEP_NODES_H

#include "base/base.h"

#define RP_STEP_NODES_KERNELS_MAX 24

struct rp_step_nodes {
    uint32_t steps;  /* that were stamped */
    uint64_t own_ns; /* of all nodes of all these steps */
    uint64_t run_ns; /* of these steps, from their first node's begin to their last one's end */
    uint32_t kernel_count;
    struct {
        const char *name;                 /* static text */
        uint64_t nodes, missing, own_ns;  /* missing: without a stamp */
    } kernels[RP_STEP_NODES_KERNELS_MAX]; /* the last takes what has no room */
};

struct rp_node_stamp;

/* A step's stamps, in order. kernel: the name of a node's. */
void rp_step_nodes_add(struct rp_step_nodes *nodes, const struct rp_node_stamp *stamps,
                       uint32_t count, const char *(*kernel)(void *ctx, uint32_t node), void *ctx);

#endif
