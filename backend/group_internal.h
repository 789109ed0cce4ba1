/* group_internal.h - a group and its graphs, shared by group.c (memory, matrices, opening) and
 * group_graph.c (captures, launches, steps, faults). */
#ifndef RP_BACKEND_GROUP_INTERNAL_H
#define RP_BACKEND_GROUP_INTERNAL_H

#include "backend/group.h"
#include "backend/group_launch.h"
#include "quant/matrix.h"

/* As many bytes on every rank, or shared by them. An engine has six: state, rings, pages, swap
 * pool, arena, and one while it measures. */
#define RP_GROUP_BLOCKS 32u
struct rp_group_block {
    unsigned char *base[RP_GROUP_RANKS_MAX];
    size_t bytes;
    bool is_shared; /* host memory, with one address for all ranks */
};

/* Where the ranks publish the results and stamps of a step view; rank 0 into the view's rings, and
 * the others into memory that lives as long as those. */
#define RP_GROUP_RESULTS 4u
struct rp_group_results {
    const unsigned char *results; /* of the view */
    const void *stamp_ring;       /* of the view */
    size_t result_bytes, stamp_bytes;
    unsigned char *blocks[RP_GROUP_RANKS_MAX]; /* results, then stamps; not of rank 0 */
};

struct rp_device {
    struct rp_backend table;
    const struct rp_backend *member;
    struct rp_device *ranks[RP_GROUP_RANKS_MAX];             /* rp_group_rank says when */
    struct rp_group_launcher *launchers[RP_GROUP_RANKS_MAX]; /* NULL: the owner launches */
    uint32_t count;
    struct rp_device_info info;
    struct rp_group_block blocks[RP_GROUP_BLOCKS];
    uint32_t block_count;
    struct rp_group_results results[RP_GROUP_RESULTS];
    uint32_t result_count;
    char error[384]; /* what last_error says */
    char behind[RP_GROUP_RANKS_MAX][64];
};

struct rp_graph {
    struct rp_device *group;
    bool eager;
    struct rp_graph *ranks[RP_GROUP_RANKS_MAX];
};

static inline uint32_t rp_group_matrix_rank(const struct rp_device *group,
                                            const struct rp_matrix *matrix) {
    RP_ASSERT_CMP(matrix->rank, <, group->count);
    return matrix->rank;
}

/* Waits until no launch thread is at work. NOT_FOUND: the deadline (rp_clock_ns) passed first; else
 * the status of the first launch that failed. */
int rp_group_settle(struct rp_device *group, uint64_t deadline_ns);
/* A rank, to call the member's functions with. Nothing but launches is done beside launches: a call
 * that waits for one GPU could keep the driver from launching what that GPU waits for. */
struct rp_device *rp_group_rank(struct rp_device *group, uint32_t rank);

/* Other addresses than those of blocks are the same on every rank. */
void *rp_group_address(struct rp_device *group, uint32_t rank, const void *address);
/* Until what was queued has run on every rank. */
void rp_group_wait(struct rp_device *group);

/* group_graph.c: functions of the table */
int rp_group_synchronize(struct rp_device *group);
int rp_group_capture(struct rp_device *group, const struct rp_program *program, uint32_t begin,
                     uint32_t end, const struct rp_bucket *bucket,
                     const struct rp_bindings *bindings, const struct rp_lower_options *options,
                     bool eager, struct rp_graph **out, struct rp_error *err);
void rp_group_graph_destroy(struct rp_device *group, struct rp_graph *graph);
uint32_t rp_group_launch_count(const struct rp_graph *graph);
void rp_group_launch_info(const struct rp_graph *graph, uint32_t index, struct rp_launch_info *out);
void rp_group_graph_info(const struct rp_graph *graph, struct rp_graph_info *out);
int rp_group_launch(struct rp_device *group, struct rp_graph *graph);
int rp_group_wait_step(struct rp_device *group, const struct rp_step_view *view, uint64_t step,
                       uint64_t deadline_ns);
int rp_group_wait_idle(struct rp_device *group, uint64_t deadline_ns);
uint64_t rp_group_progress(struct rp_device *group);
uint64_t rp_group_last_replay_ns(struct rp_device *group);
const char *rp_group_last_error(struct rp_device *group);
int rp_group_inject_fault(struct rp_device *group, enum rp_device_fault fault);
void *rp_group_rank_address(struct rp_device *group, uint32_t rank, const void *address);

#endif
