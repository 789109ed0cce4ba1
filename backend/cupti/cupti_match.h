/* cupti_match.h - assigns kernel records to nodes of replays.
 *
 * Known are the replays in order, and how many kernels each graph has. A record names the graph (an
 * opaque id) and the node (an id that rises in the order of capture). So a node is identified by
 * its rank among the graph's ids, a replay ends where ranks start over, and the k-th replay seen is
 * the k-th launched. Where records are missing, graphs are identified by their number of kernels;
 * ambiguous records are counted and omitted. Thread: any. */
#ifndef RP_BACKEND_CUPTI_MATCH_H
#define RP_BACKEND_CUPTI_MATCH_H

#include "backend/cupti/cupti_session.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rp_cupti_match {
    uint32_t replay; /* index of the launch; UINT32_MAX: unknown */
    uint32_t graph;  /* index */
    uint32_t kernel; /* of the graph, in order of capture */
};

struct rp_cupti_matching {
    /* (kernel_count), sorted by begin */
    const struct rp_cupti_kernel *kernels;
    uint32_t kernel_count;
    const uint32_t *graph_kernels; /* (graph_count) kernels of each graph, at least 1 */
    uint32_t graph_count;
    const uint32_t *replays; /* (replay_count) graph of each launch, in order */
    uint32_t replay_count;
};

/* Fills out (kernel_count); *out_unmatched: records whose graph is ambiguous, with graph
 * UINT32_MAX. Replays are assigned only when as many were seen as launched. RP_OK, NO_MEMORY, or
 * FORMAT: nodes do not follow the order of capture, or more replays were seen than launched. */
int rp_cupti_match(const struct rp_cupti_matching *from, struct rp_cupti_match *out,
                   uint32_t *out_unmatched) RP_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
