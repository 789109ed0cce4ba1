#include "metrics/sched_waits.h"

#include "base/threads.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_schedstat(int32_t tid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool is_chosen(const struct rp_sched_waits *waits, const int32_t *tids, uint32_t count) {
    return count == waits->thread_count && memcmp(waits->tids, tids, count * sizeof *tids) == 0;
}

void rp_sched_waits_choose(struct rp_sched_waits *waits) {
    struct rp_thread threads[RP_THREADS_MAX];
    int32_t tids[RP_SCHED_WAITS_THREADS];
    uint32_t count = 0, all = rp_thread_list(threads, RP_THREADS_MAX);
    for (uint32_t i = 0; i < all && count < RP_SCHED_WAITS_THREADS; i++)
        if (threads[i].role == RP_THREAD_STEP)
            tids[count++] = threads[i].tid;
    if (is_chosen(waits, tids, count))
        return;
    rp_sched_waits_deinit(waits);
    for (uint32_t i = 0; i < count; i++) {
        waits->tids[i] = tids[i];
        waits->fds[i] = open_schedstat(tids[i]);
    }
    waits->thread_count = count;
}

void rp_sched_waits_deinit(struct rp_sched_waits *waits) {
    for (uint32_t i = 0; i < waits->thread_count; i++)
        if (waits->fds[i] >= 0)
            close(waits->fds[i]);
    waits->thread_count = 0;
    waits->sample_count = 0;
}

/* "running waiting slices", in ns; 0 when the thread is gone or the kernel does not count. */
static uint64_t read_wait(int fd) {
    char text[96];
    ssize_t len = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (len <= 0)
        return 0;
    text[len] = '\0';
    char *end = text;
    strtoull(text, &end, 10);
    return strtoull(end, NULL, 10);
}

void rp_sched_waits_take(struct rp_sched_waits *waits, uint64_t now_ns) {
    if (!waits->thread_count)
        return;
    struct rp_sched_sample *sample = &waits->samples[waits->sample_count % RP_SCHED_WAITS_SAMPLES];
    sample->at_ns = now_ns;
    for (uint32_t i = 0; i < waits->thread_count; i++)
        sample->waited_ns[i] = read_wait(waits->fds[i]);
    waits->sample_count++;
}

bool rp_sched_waits_between(const struct rp_sched_waits *waits, uint64_t begin_ns, uint64_t end_ns,
                            struct rp_sched_wait *out) {
    const struct rp_sched_sample *before = NULL, *after = NULL;
    uint64_t kept = RP_MIN(waits->sample_count, (uint64_t)RP_SCHED_WAITS_SAMPLES);
    for (uint64_t age = 1; age <= kept && !before; age++) { /* newest first */
        const struct rp_sched_sample *sample =
            &waits->samples[(waits->sample_count - age) % RP_SCHED_WAITS_SAMPLES];
        if (sample->at_ns >= end_ns)
            after = sample;
        if (sample->at_ns <= begin_ns)
            before = sample;
    }
    if (!before || !after)
        return false;
    *out = (struct rp_sched_wait){.window_ns = after->at_ns - before->at_ns};
    for (uint32_t i = 0; i < waits->thread_count; i++) {
        uint64_t waited = after->waited_ns[i] - RP_MIN(before->waited_ns[i], after->waited_ns[i]);
        if (waited > out->waited_ns) {
            out->waited_ns = waited;
            out->tid = waits->tids[i];
        }
    }
    return true;
}
