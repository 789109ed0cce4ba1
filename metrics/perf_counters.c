#include "metrics/perf_counters.h"

#include "base/clock.h"
#include "base/json_writer.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/perf_event.h>
#include <sys/syscall.h>

static int open_event(enum rp_perf_event event, int32_t tid) {
    static const uint64_t configs[] = {PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
                                       PERF_COUNT_HW_CACHE_REFERENCES, PERF_COUNT_HW_CACHE_MISSES,
                                       PERF_COUNT_HW_BRANCH_MISSES};
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_HARDWARE;
    attr.config = configs[event];
    attr.exclude_kernel = attr.exclude_hv = 1; /* what perf_event_paranoid 2 allows */
    attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    long fd = syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}
#else
static int open_event(enum rp_perf_event event, int32_t tid) {
    (void)event;
    (void)tid;
    return -ENOSYS;
}
#endif

int (*rp_perf_open)(enum rp_perf_event event, int32_t tid) = open_event;

static int paranoid_level(void) {
    int level = -100;
    FILE *file = fopen("/proc/sys/kernel/perf_event_paranoid", "re");
    if (file && fscanf(file, "%d", &level) != 1)
        level = -100;
    if (file)
        fclose(file);
    return level;
}

int rp_perf_check(struct rp_error *err) {
    int fd = rp_perf_open(RP_PERF_CYCLES, 0);
    if (fd >= 0) {
        close(fd);
        return RP_OK;
    }
    int level = paranoid_level();
    if (fd == -EACCES || fd == -EPERM)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "this process may not count (perf_event_open: %s; "
                            "kernel.perf_event_paranoid is %d, 2 allows it)",
                            strerror(-fd), level);
    if (fd == -ENOENT || fd == -EOPNOTSUPP || fd == -ENODEV)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "this machine has no such counters, as most virtual ones "
                            "(perf_event_open: %s)",
                            strerror(-fd));
    return rp_error_set(err, RP_STATUS_UNSUPPORTED, "perf_event_open: %s", strerror(-fd));
}

/* ---- measuring ------------------------------------------------------------------------------ */

static void read_name(int32_t tid, char out[16]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
    FILE *file = fopen(path, "re");
    out[0] = '\0';
    if (file && fgets(out, 16, file))
        out[strcspn(out, "\n")] = '\0';
    if (file)
        fclose(file);
}

/* False: no event of this thread is counted. */
static bool open_thread(int32_t tid, struct rp_perf_thread *thread, int *fds) {
    bool any = false;
    *thread = (struct rp_perf_thread){.tid = tid};
    for (int event = 0; event < RP_PERF_EVENT_COUNT; event++) {
        fds[event] = rp_perf_open((enum rp_perf_event)event, tid);
        any = any || fds[event] >= 0;
    }
    if (any)
        read_name(tid, thread->name);
    return any;
}

static void close_thread(struct rp_perf_thread *thread, const int *fds) {
    for (int event = 0; event < RP_PERF_EVENT_COUNT; event++) {
        uint64_t values[3]; /* count, enabled, running */
        if (fds[event] < 0)
            continue;
        ssize_t got = read(fds[event], values, sizeof values);
        close(fds[event]);
        if (got != (ssize_t)sizeof values)
            continue;
        thread->has[event] = true;
        double turns = values[2] ? (double)values[1] / (double)values[2] : 0.0;
        thread->counts[event] = (uint64_t)((double)values[0] * turns);
    }
}

void rp_perf_begin(struct rp_perf_run *run, struct rp_perf_result *out) {
    memset(out, 0, sizeof *out);
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    while (tasks && out->count < RP_PERF_THREADS_MAX && (entry = readdir(tasks))) {
        int32_t tid = atoi(entry->d_name);
        if (tid > 0 && open_thread(tid, &out->threads[out->count], run->fds[out->count]))
            out->count++;
    }
    if (tasks)
        closedir(tasks);
    run->begin_ns = rp_clock_ns();
}

void rp_perf_end(const struct rp_perf_run *run, struct rp_perf_result *out) {
    for (uint32_t i = 0; i < out->count; i++)
        close_thread(&out->threads[i], run->fds[i]);
    out->seconds = (double)(rp_clock_ns() - run->begin_ns) * 1e-9;
}

void rp_perf_measure(double seconds, struct rp_perf_result *out) {
    struct rp_perf_run run;
    rp_perf_begin(&run, out);
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    rp_perf_end(&run, out);
}

static void write_ratio(struct rp_json *json, const char *key, const struct rp_perf_thread *thread,
                        enum rp_perf_event part, enum rp_perf_event whole) {
    if (thread->has[part] && thread->has[whole] && thread->counts[whole])
        rp_json_double(json, key, (double)thread->counts[part] / (double)thread->counts[whole]);
    else
        rp_json_null(json, key);
}

void rp_perf_write_json(const struct rp_perf_result *result, struct rp_json *json) {
    static const char *const names[] = {
#define X(name, text) text,
        RP_PERF_EVENTS(X)
#undef X
    };
    rp_json_double(json, "seconds", result->seconds);
    rp_json_array_begin(json, "threads");
    for (uint32_t i = 0; i < result->count; i++) {
        const struct rp_perf_thread *thread = &result->threads[i];
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "name", thread->name);
        rp_json_int(json, "tid", thread->tid);
        for (int event = 0; event < RP_PERF_EVENT_COUNT; event++) {
            if (thread->has[event])
                rp_json_uint(json, names[event], thread->counts[event]);
            else
                rp_json_null(json, names[event]);
        }
        write_ratio(json, "ipc", thread, RP_PERF_INSTRUCTIONS, RP_PERF_CYCLES);
        write_ratio(json, "cache_miss_share", thread, RP_PERF_MISSES, RP_PERF_REFERENCES);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
}
