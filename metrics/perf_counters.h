/* perf_counters.h - the processor's counters for each thread of this process (perf_event_open),
 * where it is permitted.
 *
 * Thread: any. measure blocks for as long as it measures. Memory: none kept. */
#ifndef RP_METRICS_PERF_COUNTERS_H
#define RP_METRICS_PERF_COUNTERS_H

#include "base/buffer.h"
#include "base/status.h"

struct rp_json;

/* clang-format off */
#define RP_PERF_EVENTS(X)                                                                          \
    X(CYCLES, "cycles") X(INSTRUCTIONS, "instructions") X(REFERENCES, "cache_references")           \
    X(MISSES, "cache_misses") X(BRANCH_MISSES, "branch_misses")
/* clang-format on */
enum rp_perf_event {
#define X(name, text) RP_PERF_##name,
    RP_PERF_EVENTS(X)
#undef X
        RP_PERF_EVENT_COUNT
};

#define RP_PERF_THREADS_MAX 64

struct rp_perf_thread {
    char name[16];
    int32_t tid;
    bool has[RP_PERF_EVENT_COUNT];        /* false: this machine does not count it */
    uint64_t counts[RP_PERF_EVENT_COUNT]; /* scaled up where the kernel took turns between events */
};

struct rp_perf_result {
    double seconds;
    struct rp_perf_thread threads[RP_PERF_THREADS_MAX];
    uint32_t count;
};

/* Whether this process may count at all: RP_OK; RP_STATUS_UNSUPPORTED with the reason in *err (no
 * permission, no such counters in this machine, no such call in this kernel). */
int rp_perf_check(struct rp_error *err) RP_MUST_USE;
/* Counts all threads that live at begin until end; threads without any event are left out. `run`
 * holds descriptors in between: an end belongs to every begin. */
struct rp_perf_run {
    int fds[RP_PERF_THREADS_MAX][RP_PERF_EVENT_COUNT]; /* -1: not counted */
    uint64_t begin_ns;
};
void rp_perf_begin(struct rp_perf_run *run, struct rp_perf_result *out);
void rp_perf_end(const struct rp_perf_run *run, struct rp_perf_result *out);
/* The two, with so much sleep in between. */
void rp_perf_measure(double seconds, struct rp_perf_result *out);
/* The members of an object: "seconds", "threads": [{..., "ipc", "cache_miss_share"}]. */
void rp_perf_write_json(const struct rp_perf_result *result, struct rp_json *json);

/* perf_event_open of the calling process's thread tid; a descriptor, or -errno. Tests put their own
 * here. */
extern int (*rp_perf_open)(enum rp_perf_event event, int32_t tid);

#endif
