#include "metrics/event.h"

const struct rp_trace_kind_info rp_trace_kinds[RP_TRACE_KIND_COUNT] = {
#define X(kind, lane_, shape_, text, a_, b_, id_, v_)                                              \
    [RP_TRACE_##kind] = {.name = text,                                                             \
                         .a = a_,                                                                  \
                         .b = b_,                                                                  \
                         .id = id_,                                                                \
                         .v = v_,                                                                  \
                         .lane = RP_LANE_##lane_,                                                  \
                         .shape = RP_TRACE_##shape_},
    RP_TRACE_KINDS(X)
#undef X
};

const char *const rp_trace_lanes[RP_LANE_COUNT] = {
    [RP_LANE_REQUESTS] = "requests", [RP_LANE_SCHEDULER] = "scheduler",
    [RP_LANE_REPLAYS] = "replays",   [RP_LANE_NODES] = "nodes",
    [RP_LANE_IDLE] = "idle",         [RP_LANE_LOOP] = "loop",
    [RP_LANE_WORKERS] = "workers",   [RP_LANE_COUNTERS] = "counters",
    [RP_LANE_COPIES] = "copies",     [RP_LANE_RANKS] = "rank"};

const char *const rp_trace_jobs[RP_TRACE_JOB_COUNT] = {
#define X(job, text) [RP_TRACE_JOB_##job] = text,
    RP_TRACE_JOBS(X)
#undef X
};

const char *const rp_idle_causes[RP_IDLE_CAUSE_COUNT] = {
#define X(cause, text) [RP_IDLE_##cause] = text,
    RP_IDLE_CAUSES(X)
#undef X
};

const char *const rp_replay_misses[RP_MISS_COUNT] = {
#define X(miss, text) [RP_MISS_##miss] = text,
    RP_REPLAY_MISSES(X)
#undef X
};

const char *const rp_copy_directions[RP_COPIES_DIRECTION_COUNT] = {
    [RP_COPIES_IN] = "in", [RP_COPIES_OUT] = "out", [RP_COPIES_BOTH] = "in and out"};
