/* memory_snapshot.h - device memory in the format of PyTorch's memory_viz
 * (torch/cuda/_memory_viz.py; the page https://pytorch.org/memory_viz): a pickled dict of segments
 * with blocks, and the trace of allocations and frees.
 *
 * One segment per owner of static memory (weights, activations, ...), and one for the KV pool,
 * whose blocks are runs of pages in the same state. The trace is the initial allocation, then the
 * page history (engine/observe/page_watch.h); a frame gives the owner or state instead of a stack.
 * Thread: any. */
#ifndef RP_SERVER_MEMORY_SNAPSHOT_H
#define RP_SERVER_MEMORY_SNAPSHOT_H

#include "base/buffer.h"
#include "engine/observe/page_watch.h"

struct rp_memory_plan;

struct rp_memory_snapshot {
    const struct rp_memory_plan *plan;
    uint64_t pool_address, page_bytes;
    const uint32_t *map; /* (page_count) words of kv_pool.h */
    uint32_t page_count;
    const struct rp_trace_event *history; /* RP_TRACE_PAGE, oldest first */
    uint64_t history_count;
    uint64_t start_ns; /* when the memory of the plan was allocated */
};

void rp_memory_snapshot_write(const struct rp_memory_snapshot *snapshot, struct rp_buffer *out);

#endif
