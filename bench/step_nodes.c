#include "bench/step_nodes.h"

#include "device/step.h"

#include <string.h>

static uint32_t find_kernel(struct rp_step_nodes *nodes, const char *name) {
    uint32_t i = 0;
    while (i < nodes->kernel_count && strcmp(nodes->kernels[i].name, name) != 0)
        i++;
    if (i < nodes->kernel_count)
        return i;
    if (i == RP_STEP_NODES_KERNELS_MAX)
        return i - 1;
    nodes->kernels[nodes->kernel_count++].name =
        i + 1 == RP_STEP_NODES_KERNELS_MAX ? "others" : name;
    return i;
}

void rp_step_nodes_add(struct rp_step_nodes *nodes, const struct rp_node_stamp *stamps,
                       uint32_t count, const char *(*kernel)(void *ctx, uint32_t node), void *ctx) {
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = find_kernel(nodes, kernel(ctx, i));
        nodes->kernels[at].nodes++;
        struct rp_node_stamp stamp = rp_node_stamp_at(stamps, count, i);
        if (stamp.begin_ns > stamp.end_ns) {
            nodes->kernels[at].missing++;
            continue;
        }
        uint64_t begin = RP_MAX(stamp.begin_ns, end);
        uint64_t own = stamp.end_ns > begin ? stamp.end_ns - begin : 0;
        nodes->kernels[at].own_ns += own;
        nodes->own_ns += own;
        first = RP_MIN(first, stamp.begin_ns);
        end = RP_MAX(end, stamp.end_ns);
    }
    nodes->steps++;
    nodes->run_ns += end > first ? end - first : 0;
}
