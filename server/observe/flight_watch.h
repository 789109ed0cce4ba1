/* flight_watch.h - decides when to dump a trace, from a snapshot taken at each poll. It uses no
 * clocks, threads or files, so that tests can drive it.
 * Thread: the flight thread (flight.h). */
#ifndef RP_SERVER_FLIGHT_WATCH_H
#define RP_SERVER_FLIGHT_WATCH_H

#include "engine/observe/step_record.h"
#include "metrics/sched_waits.h"

/* clang-format off */
#define RP_FLIGHT_TRIGGERS(X)                                                                       \
    X(SIGNAL, "signal")             /* SIGUSR2 */                                                   \
    X(SLO_TTFT, "slo_ttft")         /* p99 of 10 s above the objective */                           \
    X(SLO_TPOT, "slo_tpot")                                                                         \
    X(SLO_E2E, "slo_e2e")                                                                           \
    X(SLO_ITL, "slo_itl")                                                                           \
    X(SLOW_STEP, "slow_step")       /* many times the median of its bucket */                       \
    X(GRAPH_MISSING, "graph_missing") /* a size was not captured, steps run in a larger one */      \
    X(PAGES_OUT, "pages_out")       /* a burst of preemptions */                                    \
    X(DEVICE, "device_failed")                                                                      \
    X(DESCHEDULED, "descheduled")   /* as slow_step, while its threads had no processor */
/* clang-format on */
enum rp_flight_trigger {
#define X(name, text) RP_FLIGHT_##name,
    RP_FLIGHT_TRIGGERS(X)
#undef X
        RP_FLIGHT_TRIGGER_COUNT
};
extern const char *const rp_flight_triggers[RP_FLIGHT_TRIGGER_COUNT];

#define RP_FLIGHT_SLOS 4 /* in the order of the triggers */
struct rp_flight_rules {
    uint64_t slo_ns[RP_FLIGHT_SLOS]; /* TTFT, TPOT, E2E, ITL; 0: none */
    uint32_t slo_count_min;          /* minimum values in the window for a percentile to count */
    double step_factor;              /* 0: step durations are not watched */
    uint64_t step_excess_ns;         /* a slow step exceeds the median by at least this */
    uint32_t step_count_min;         /* steps of a bucket before its median is used */
    uint64_t wait_slack_ns; /* run-queue wait counts whole if measured over at most this much more
                               than the step */
    uint32_t preemptions;   /* preemptions within burst_ns that trigger; 0: not watched */
    uint64_t burst_ns;
};
/* The default rules; no objectives. */
struct rp_flight_rules rp_flight_rules_default(void);

/* State of the server at one poll. */
struct rp_flight_view {
    uint64_t now_ns;
    struct {
        uint64_t count;
        double p99_ns;
    } latency
        [RP_FLIGHT_SLOS]; /* of the last 10 s: TTFT, TPOT, E2E; ITL: each time between two tokens */
    const struct rp_step_record *steps; /* steps that ended since the previous poll */
    uint32_t step_count;
    const struct rp_sched_waits *waits; /* of the threads that compute steps; NULL: not known */
    uint64_t preemptions, steps_total;  /* since the start */
    uint32_t graphs_missing;
    const char *failure; /* device failure, or NULL */
};

/* The cause of a dump, as text and numbers. */
struct rp_flight_cause {
    enum rp_flight_trigger trigger;
    char text[256];
    double value, limit;       /* seconds; for pages_out and graph_missing, counts */
    uint64_t step;             /* slow_step, descheduled: the device's step number */
    struct rp_sched_wait wait; /* the same: the longest run-queue wait around the step */
    bool wait_known;
};

#define RP_FLIGHT_BUCKETS 128
#define RP_FLIGHT_KEPT    63
struct rp_flight_watch {
    struct rp_flight_rules rules;
    struct {
        uint32_t kept[RP_FLIGHT_KEPT]; /* us, ring buffer */
        uint32_t count, median, until; /* steps seen; of the ring, renewed when so many were seen */
    } buckets[RP_FLIGHT_BUCKETS];
    uint64_t preemptions[8], looked_ns[8]; /* at the last polls */
    uint32_t looks;
    struct rp_flight_cause descheduled; /* of the current poll; value 0: none */
    bool graphs_said, failure_said,
        slo_said[RP_FLIGHT_SLOS]; /* breaches that go on are said once */
};

void rp_flight_watch_init(struct rp_flight_watch *watch, const struct rp_flight_rules *rules);
/* Evaluates one snapshot; true when a trigger fires. Of several causes the most severe is
 * reported. */
bool rp_flight_watch_look(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                          struct rp_flight_cause *out);

#endif
