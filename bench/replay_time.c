#include "bench/replay_time.h"

#include "base/clock.h"
#include "bench/bench_engine.h"

#include <stdio.h>

#define SAMPLES_MAX 64u
#define SAMPLES_MIN 5u
#define SAMPLE_NS   2000000.0
#define LONG_NS     25000000.0
#define REPEATS_MAX 512u

void rp_replay_kernels(const struct rp_replay *replay, char out[RP_REPLAY_KERNELS_MAX]) {
    const struct rp_backend *backend = replay->backend;
    uint32_t first = replay->start ? backend->graph_launch_count(replay->start) : 0;
    uint32_t count = (backend->graph_launch_count(replay->graph) - first) / replay->repeats;
    count = RP_MAX(count, 1u); /* the CPU chains small operators, also across repetitions */
    size_t used = 0;
    for (uint32_t i = 0; i < count && used < RP_REPLAY_KERNELS_MAX; i++) {
        struct rp_launch_info info;
        backend->graph_launch_info(replay->graph, first + i, &info);
        used += (size_t)snprintf(out + used, RP_REPLAY_KERNELS_MAX - used, "%s%s", i ? "+" : "",
                                 info.kernel);
    }
}

double rp_replay_ns(const struct rp_replay *replay, uint32_t count) {
    uint64_t begin = rp_clock_ns();
    for (uint32_t i = 0; i < count; i++)
        if (replay->backend->launch(replay->device, replay->graph) != RP_OK)
            return -1.0;
    if (replay->backend->synchronize(replay->device) != RP_OK)
        return -1.0;
    return (double)(rp_clock_ns() - begin);
}

uint32_t rp_replay_repeats(double ns, uint32_t copies) {
    double wanted = SAMPLE_NS / ns + 1;
    uint32_t repeats = wanted < REPEATS_MAX ? (uint32_t)wanted : REPEATS_MAX;
    uint32_t least = ns > LONG_NS ? 1 : copies;
    return RP_CEIL_DIV(RP_MAX(repeats, least), least) * least;
}

/* Median time of the start graph, in ns. */
static double time_start(const struct rp_replay *replay) {
    struct rp_replay start = *replay;
    double ns[9];
    start.graph = replay->start;
    if (!start.graph)
        return 0.0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(ns); i++)
        ns[i] = rp_replay_ns(&start, 32) / 32;
    return rp_bench_quantile(ns, RP_ARRAY_COUNT(ns), 0.5);
}

int rp_replay_measure(const struct rp_replay *replay, uint64_t begin_ns, double budget_ns,
                      struct rp_replay_times *out) {
    double samples[SAMPLES_MAX];
    out->start = time_start(replay);
    double once = rp_replay_ns(replay, 1);
    uint32_t replays = once > 0 && once < SAMPLE_NS ? (uint32_t)(SAMPLE_NS / once) + 1 : 1;
    uint32_t count = 0;
    while (count < SAMPLES_MAX) {
        double spent = (double)(rp_clock_ns() - begin_ns);
        if ((spent > budget_ns && count >= SAMPLES_MIN) || (spent > 4 * budget_ns && count >= 1))
            break;
        double ns = rp_replay_ns(replay, replays);
        if (ns < 0)
            return RP_STATUS_DEVICE;
        samples[count++] = RP_MAX(ns / replays - out->start, 0.0) / replay->repeats;
    }
    out->samples = count;
    out->p50 = rp_bench_quantile(samples, count, 0.5); /* sorts */
    out->min = samples[0];
    out->p99 = samples[(count * 99 - 1) / 100];
    return RP_OK;
}
