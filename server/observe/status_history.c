#include "server/observe/status_history.h"

#include "engine/engine.h"
#include "server/observe/server_latency.h"

#define SECOND_NS ((uint64_t)1000000000)

const enum rp_latency_series rp_history_series[RP_HISTORY_SERIES_COUNT] = {
    [RP_HISTORY_TTFT] = RP_LATENCY_TTFT,
    [RP_HISTORY_INTER_TOKEN] = RP_LATENCY_INTER_TOKEN,
    [RP_HISTORY_DURATION] = RP_LATENCY_E2E,
};

static void read_counts(const struct rp_engine_metrics *engine, struct rp_history_counts *out) {
#define X(name, counter) out->name = rp_counter_read(&engine->counter);
    RP_HISTORY_COUNTERS(X)
#undef X
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        out->idle_ns[cause] = rp_counter_read(&engine->idle_ns[cause]);
}

static void take_sample(struct rp_status_history *history, uint64_t now_ns,
                        const struct rp_engine_metrics *engine,
                        const struct rp_server_latency *latency) {
    struct rp_history_counts now;
    const struct rp_history_counts *last = &history->last;
    struct rp_history_sample *sample = &history->samples[++history->sequence % RP_HISTORY_SECONDS];
    read_counts(engine, &now);
    sample->sequence = history->sequence;
    sample->begin_ns = history->last_ns;
    sample->end_ns = now_ns;
#define X(name, counter) sample->counts.name = now.name - last->name;
    RP_HISTORY_COUNTERS(X)
#undef X
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        sample->counts.idle_ns[cause] = now.idle_ns[cause] - last->idle_ns[cause];
#define X(name, gauge) sample->name = rp_gauge_read(&engine->gauge);
    RP_HISTORY_GAUGES(X)
#undef X
    for (int i = 0; i < RP_HISTORY_SERIES_COUNT; i++)
        rp_latency_since(&latency->series[rp_history_series[i]], &history->marks[i],
                         &sample->latency[i]);
    history->last = now;
    history->last_ns = now_ns;
}

void rp_status_history_tick(struct rp_status_history *history, uint64_t now_ns,
                            const struct rp_engine_metrics *engine,
                            const struct rp_server_latency *latency) {
    if (history->last_ns == 0) {
        struct rp_latency_stats unused;
        read_counts(engine, &history->last);
        for (int i = 0; i < RP_HISTORY_SERIES_COUNT; i++)
            rp_latency_since(&latency->series[rp_history_series[i]], &history->marks[i], &unused);
        history->last_ns = now_ns;
    } else if (now_ns / SECOND_NS > history->last_ns / SECOND_NS) {
        take_sample(history, now_ns, engine, latency);
    }
}

const struct rp_history_sample *rp_status_history_next(const struct rp_status_history *history,
                                                       uint64_t after, uint64_t now_ns) {
    uint64_t newest = history->sequence;
    uint64_t first = newest > RP_HISTORY_SECONDS ? newest - RP_HISTORY_SECONDS + 1 : 1;
    for (uint64_t n = RP_MAX(first, after < newest ? after + 1 : newest + 1); n <= newest; n++) {
        const struct rp_history_sample *sample = &history->samples[n % RP_HISTORY_SECONDS];
        if (now_ns <= sample->end_ns + RP_HISTORY_SECONDS * SECOND_NS)
            return sample;
    }
    return NULL;
}
