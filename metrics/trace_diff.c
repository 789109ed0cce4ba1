#include "metrics/trace_diff.h"

#include "metrics/trace_build.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define OPERATORS "1 operators, by launch"
#define STEPS     "2 steps on the device, by captured size"
#define REQUESTS  "3 requests, by phase"
#define ENGINE    "4 engine thread, by span"
#define IDLE      "5 device idle, by cause"
#define COPIES    "6 copies between host and device"

static uint64_t length(const struct rp_trace_span *span) { return span->end_ns - span->begin_ns; }

/* layer.3.mlp.down+layer.3.mlp.add -> mlp.down+mlp.add */
static void without_layers(const char *name, char *out, size_t size) {
    static const char prefix[] = "layer.";
    size_t len = 0;
    while (*name && len + 1 < size) {
        const char *after = name + sizeof prefix - 1;
        if (strncmp(name, prefix, sizeof prefix - 1) == 0 && isdigit((unsigned char)*after)) {
            while (isdigit((unsigned char)*after))
                after++;
            name = *after == '.' ? after + 1 : after;
            continue;
        }
        out[len++] = *name++;
    }
    out[len] = '\0';
}

static void add_device(struct rp_time_diff *diff, enum rp_diff_side side,
                       const struct rp_trace_spans *spans) {
    struct rp_trace_map buckets = {NULL, NULL, 0, 0}; /* step -> its span */
    uint32_t count, step_count;
    const struct rp_trace_span *steps = rp_trace_spans_of(spans, RP_SPAN_STEP, &step_count);
    for (uint32_t i = 0; i < step_count; i++) {
        if (!rp_trace_map_put(&buckets, steps[i].number, i))
            diff->failed = true;
        if (!steps[i].cut)
            rp_time_diff_add(diff, side, STEPS, steps[i].name, "", length(&steps[i]));
    }
    const struct rp_trace_span *nodes = rp_trace_spans_of(spans, RP_SPAN_NODE, &count);
    for (uint32_t i = 0; i < count && !diff->failed; i++) {
        char name[128];
        uint32_t step = rp_trace_map_find(&buckets, nodes[i].number);
        if (nodes[i].cut || step == RP_TRACE_NONE)
            continue;
        without_layers(nodes[i].name, name, sizeof name);
        rp_time_diff_add(diff, side, OPERATORS, name, steps[step].name, length(&nodes[i]));
    }
    rp_trace_map_deinit(&buckets);
}

static void add_kind(struct rp_time_diff *diff, enum rp_diff_side side,
                     const struct rp_trace_spans *spans, enum rp_trace_span_kind kind,
                     const char *group, const char *const *except) {
    uint32_t count;
    const struct rp_trace_span *all = rp_trace_spans_of(spans, kind, &count);
    for (uint32_t i = 0; i < count; i++) {
        bool wanted = !all[i].cut;
        for (const char *const *name = except; wanted && *name; name++)
            wanted = strcmp(all[i].name, *name) != 0;
        if (wanted)
            rp_time_diff_add(diff, side, group, all[i].name, "", length(&all[i]));
    }
}

static void add_requests(struct rp_time_diff *diff, enum rp_diff_side side,
                         const struct rp_trace_spans *spans) {
    uint32_t count, tokens_count;
    const struct rp_trace_span *requests = rp_trace_spans_of(spans, RP_SPAN_REQUEST, &count);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_trace_span *request = &requests[i];
        const struct rp_trace_span *tokens =
            rp_trace_spans_of_request(spans, RP_SPAN_TOKEN, request->number, &tokens_count);
        if (!request->cut) {
            rp_time_diff_add(diff, side, REQUESTS, "whole request", "", length(request));
            if (tokens_count)
                rp_time_diff_add(diff, side, REQUESTS, "to the first token", "",
                                 tokens[0].begin_ns -
                                     RP_MIN(request->begin_ns, tokens[0].begin_ns));
        }
        for (uint32_t t = 1; t < tokens_count; t++)
            rp_time_diff_add(diff, side, REQUESTS, "between two tokens", "",
                             tokens[t].begin_ns - tokens[t - 1].begin_ns);
    }
}

void rp_trace_diff_add(struct rp_time_diff *diff, enum rp_diff_side side,
                       const struct rp_trace_spans *spans) {
    static const char *const none[] = {NULL};
    /* They end when there is something to do or the device is done: not the thread's own time. */
    static const char *const waits[] = {"sleep", "wait", NULL};
    static const char *const no_work[] = {"idle: no_work", NULL};
    add_device(diff, side, spans);
    add_requests(diff, side, spans);
    add_kind(diff, side, spans, RP_SPAN_PHASE, REQUESTS, none);
    add_kind(diff, side, spans, RP_SPAN_CHUNK, REQUESTS, none);
    add_kind(diff, side, spans, RP_SPAN_HOST, ENGINE, waits);
    add_kind(diff, side, spans, RP_SPAN_IDLE, IDLE, no_work);
    add_kind(diff, side, spans, RP_SPAN_COPY, COPIES, none);
}
