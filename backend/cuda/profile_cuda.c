/* Kernel records through CUPTI (backend/cupti/cupti_session.h), with the graphs that they are
 * of. */
#include "backend/cuda/device_cuda.h"
#include "backend/cupti/cupti_match.h"
#include "base/clock.h"
#include "device/profiler.h"

#include <stdio.h>
#include <string.h>

#define REPLAYS_MAX 65536u /* a session of ten seconds has fewer */

struct rp_profile {
    struct rp_device *device;
    struct rp_cupti_session *session;
    const struct rp_graph **replays; /* of each launch, in order */
    uint32_t replay_count;           /* may pass REPLAYS_MAX */
    struct rp_kernel_record *records;
};

static void profile_close(struct rp_profile *profile) {
    if (!profile)
        return;
    if (profile->device->profile == profile)
        profile->device->profile = NULL;
    rp_cupti_close(profile->session);
    rp_free(profile->replays);
    rp_free(profile->records);
    rp_free(profile);
}

static int profile_open(struct rp_device *device, uint32_t records_max, struct rp_profile **out,
                        struct rp_error *err) {
    *out = NULL;
    void *library = rp_cuda_cupti_library(err);
    if (!library)
        return RP_STATUS_NOT_FOUND;
    struct rp_profile *profile = rp_calloc(1, sizeof *profile);
    if (!profile)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    profile->device = device;
    profile->replays = rp_calloc(REPLAYS_MAX, sizeof(void *));
    int status = profile->replays ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK)
        status = rp_cupti_open(library, records_max, &profile->session, err);
    if (status != RP_OK) {
        profile_close(profile);
        return status;
    }
    *out = profile;
    return RP_OK;
}

static int profile_begin(struct rp_profile *profile, struct rp_error *err) {
    int status = rp_cupti_begin(profile->session, err);
    if (status == RP_OK)
        profile->device->profile = profile;
    return status;
}

void rp_cuda_profile_launch(struct rp_profile *profile, const struct rp_graph *graph) {
    if (profile->replay_count < REPLAYS_MAX)
        profile->replays[profile->replay_count] = graph;
    profile->replay_count++;
}

static bool profile_is_due(const struct rp_profile *profile, uint64_t now_ns) {
    return profile->replay_count + 2 > REPLAYS_MAX || rp_cupti_is_due(profile->session, now_ns);
}

static int profile_end(struct rp_profile *profile, struct rp_error *err) {
    struct rp_device *device = profile->device;
    int status = RP_OK;
    if (device->profile != profile)
        return RP_OK;
    device->profile = NULL;
    if (RP_CUDA_TRY(device, cudaStreamSynchronize(device->stream)) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "%s", device->error);
    int ended = rp_cupti_end(profile->session, err);
    return status != RP_OK ? status : ended;
}

/* The graphs of the session, each once, and which one each launch was of. */
struct graph_list {
    const struct rp_graph **graphs;
    uint32_t *kernels, *replays;
    uint32_t count;
};

static int list_graphs(const struct rp_profile *profile, uint32_t replay_count,
                       struct graph_list *list) {
    list->graphs = rp_calloc(replay_count + (size_t)1, sizeof(void *));
    list->kernels = rp_calloc(replay_count + (size_t)1, sizeof *list->kernels);
    list->replays = rp_calloc(replay_count + (size_t)1, sizeof *list->replays);
    if (!list->graphs || !list->kernels || !list->replays)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < replay_count; i++) {
        const struct rp_graph *graph = profile->replays[i];
        uint32_t at = 0;
        while (at < list->count && list->graphs[at] != graph)
            at++;
        if (at == list->count) {
            list->graphs[list->count] = graph;
            list->kernels[list->count++] = graph->captured_kernels;
        }
        list->replays[i] = at;
    }
    return RP_OK;
}

/* The launch whose kernels the k-th of the graph belongs to. */
static uint32_t launch_of(const struct rp_graph *graph, uint32_t kernel) {
    uint32_t low = 0, high = graph->node_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (graph->nodes[middle].first_kernel <= kernel)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int name_records(struct rp_profile *profile, const struct rp_cupti_kernel *kernels,
                        uint32_t count, const struct graph_list *list, uint32_t replay_count,
                        struct rp_profile_records *out) {
    struct rp_cupti_match *matches = rp_calloc(count + (size_t)1, sizeof *matches);
    profile->records = rp_calloc(count + (size_t)1, sizeof *profile->records);
    struct rp_cupti_matching from = {kernels,     count,         list->kernels,
                                     list->count, list->replays, replay_count};
    uint32_t unmatched = 0;
    int status = matches && profile->records ? rp_cupti_match(&from, matches, &unmatched)
                                             : RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < count && status == RP_OK; i++) {
        const struct rp_graph *graph =
            matches[i].graph == UINT32_MAX ? NULL : list->graphs[matches[i].graph];
        if (graph)
            profile->records[out->count++] =
                (struct rp_kernel_record){kernels[i].begin_ns, kernels[i].end_ns, graph,
                                          launch_of(graph, matches[i].kernel), matches[i].replay};
    }
    out->records = profile->records;
    out->unmatched = unmatched;
    rp_free(matches);
    return status;
}

static int profile_read(struct rp_profile *profile, struct rp_profile_records *out,
                        struct rp_error *err) {
    struct rp_cupti_counts counts;
    struct graph_list list = {0};
    uint32_t count, replay_count = RP_MIN(profile->replay_count, REPLAYS_MAX);
    memset(out, 0, sizeof *out);
    rp_free(profile->records);
    profile->records = NULL;
    const struct rp_cupti_kernel *kernels = rp_cupti_read(profile->session, &count, &counts);
    out->replays = profile->replay_count;
    out->without_time = counts.without_time;
    out->outside = counts.outside;
    out->over = counts.over;
    out->dropped = counts.dropped;
    snprintf(out->source, sizeof out->source, "CUPTI %u", rp_cupti_version(profile->session));
    int status = list_graphs(profile, replay_count, &list);
    if (status == RP_OK)
        status = name_records(profile, kernels, count, &list, replay_count, out);
    rp_free(list.graphs);
    rp_free(list.kernels);
    rp_free(list.replays);
    return status == RP_OK
               ? RP_OK
               : rp_error_set(err, status, "%s: %s", out->source, rp_status_text(status));
}

const struct rp_profiler rp_cuda_profiler = {.open = profile_open,
                                             .begin = profile_begin,
                                             .is_due = profile_is_due,
                                             .end = profile_end,
                                             .read = profile_read,
                                             .close = profile_close};
