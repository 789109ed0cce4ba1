#include "server/observe/trace_words.h"

#include "engine/engine.h"
#include "engine/observe/profile_report.h"

#include <stdio.h>

static bool bucket_name(const struct rp_engine *engine, uint32_t index, char *out, size_t size) {
    struct rp_engine_graph graph;
    if (index >= rp_engine_graph_count(engine))
        return false;
    rp_engine_graph(engine, index, &graph);
    snprintf(out, size, "%s %u", graph.bucket.decode ? "decode" : "mixed", graph.bucket.tokens);
    return true;
}

static bool name(void *ctx, enum rp_trace_name_of of, uint32_t bucket, uint32_t value, char *out,
                 size_t size) {
    if (of == RP_NAME_BUCKET)
        return bucket_name(ctx, value, out, size);
    if (of == RP_NAME_NODE)
        return rp_engine_node_name(ctx, bucket, value, out, size);
    if (of != RP_NAME_REASON || value >= RP_FINISH_COUNT)
        return false;
    snprintf(out, size, "%s", rp_finish_name((enum rp_finish_reason)value));
    return true;
}

struct rp_trace_names rp_server_trace_names(const struct rp_engine *engine) {
    return (struct rp_trace_names){.name = name, .ctx = (void *)engine};
}
