/* step_nodes.h - time of the graph nodes of stamped steps, by kernel (device/step.h:
 * rp_node_stamp).
 *
 * A node's own time runs from its start, or the end of the previous node, whichever is later, until
 * its end: overlap with the previous node counts once. Thread: the caller's. */
#ifndef RP_BENCH_STEP_NODES_H
#define RP_BENCH_STEP_NODES_H

#include "base/base.h"

#define RP_STEP_NODES_KERNELS_MAX 24

struct rp_step_nodes {
    uint32_t steps;  /* stamped steps */
    uint64_t own_ns; /* sum over all nodes of these steps */
    uint64_t run_ns; /* sum over these steps, from the first node's start to the last node's end */
    uint32_t kernel_count;
    struct {
        const char *name;                 /* static text */
        uint64_t nodes, missing, own_ns;  /* missing: nodes without a stamp */
    } kernels[RP_STEP_NODES_KERNELS_MAX]; /* the last entry collects kernels that do not fit */
};

struct rp_node_stamp;

/* Adds a step's stamps, in order. kernel: returns the kernel name of a node. */
void rp_step_nodes_add(struct rp_step_nodes *nodes, const struct rp_node_stamp *stamps,
                       uint32_t count, const char *(*kernel)(void *ctx, uint32_t node), void *ctx);

#endif
