#include "backend/group_launch.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "device/cpu_gate.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Two graphs for each of the steps in flight, and more than that. */
#define QUEUE_LAUNCHES 16u
/* Shorter pauses are within a step, longer ones are those of an idle server: neither tells when the
 * next step comes. */
#define INTERVAL_MIN_NS 100000u
#define INTERVAL_MAX_NS 50000000u

struct rp_group_launcher {
    struct rp_cpu_gate posted;   /* launches that were posted */
    struct rp_cpu_gate returned; /* launches that have returned */
    const struct rp_backend *member;
    struct rp_device *device;
    struct rp_graph *queue[QUEUE_LAUNCHES]; /* NULL: leave */
    uint32_t posts;                         /* owner only */
    _Atomic int status;
    uint64_t woken_ns, interval_ns; /* thread only: of the last step; mean between steps */
    pthread_t thread;
    char name[16];
};

/* After a wait: the first graph of a step has come. */
static void note_interval(struct rp_group_launcher *launcher) {
    uint64_t now = rp_clock_ns(), interval = now - launcher->woken_ns;
    if (interval < INTERVAL_MIN_NS)
        return;
    launcher->woken_ns = now;
    if (interval <= INTERVAL_MAX_NS)
        launcher->interval_ns = launcher->interval_ns * 3 / 4 + interval / 4;
}

/* Until more than `seen` launches were posted. */
static void await_post(struct rp_group_launcher *launcher, uint32_t seen) {
    struct rp_cpu_gate *gate = &launcher->posted;
    if (rp_cpu_gate_spin(gate, seen, false))
        return;
    uint64_t due = launcher->woken_ns + launcher->interval_ns, early = launcher->interval_ns / 8;
    if (!rp_cpu_gate_wait(gate, seen, due - early)) {
        while (!rp_cpu_gate_spin(gate, seen, false) && rp_clock_ns() < due + early)
            ;
        (void)rp_cpu_gate_wait(gate, seen, RP_CPU_NO_DEADLINE);
    }
    note_interval(launcher);
}

static void *launcher_main(void *arg) {
    struct rp_group_launcher *launcher = arg;
    rp_thread_begin(launcher->name, RP_THREAD_STEP);
    for (uint32_t taken = 0;; taken++) {
        await_post(launcher, taken);
        struct rp_graph *graph = launcher->queue[taken % QUEUE_LAUNCHES];
        if (!graph)
            break;
        int status = atomic_load_explicit(&launcher->status, memory_order_relaxed);
        if (status == RP_OK) {
            status = launcher->member->launch(launcher->device, graph);
            /* release: what the device says of its failure was written before. */
            atomic_store_explicit(&launcher->status, status, memory_order_release);
        }
        rp_cpu_gate_open(&launcher->returned, taken + 1);
    }
    rp_thread_end();
    return NULL;
}

/* Signals are for the loop thread (device/cpu_team.c has the two that are not). */
static int start_thread(struct rp_group_launcher *launcher) {
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGPROF);
    sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failure = pthread_create(&launcher->thread, NULL, launcher_main, launcher);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failure;
}

int rp_group_launcher_create(const struct rp_backend *member, struct rp_device *device,
                             uint32_t rank, struct rp_group_launcher **out, struct rp_error *err) {
    struct rp_group_launcher *launcher = rp_alloc_aligned(sizeof *launcher, RP_CACHE_LINE);
    if (!launcher)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "group: out of memory");
    memset(launcher, 0, sizeof *launcher);
    launcher->member = member;
    launcher->device = device;
    snprintf(launcher->name, sizeof launcher->name, "rp-launch-%u", rank % 100u);
    bool posted = rp_cpu_gate_init(&launcher->posted);
    bool returned = posted && rp_cpu_gate_init(&launcher->returned);
    int failure = returned ? start_thread(launcher) : 0;
    if (returned && failure == 0) {
        *out = launcher;
        return RP_OK;
    }
    if (returned)
        rp_cpu_gate_deinit(&launcher->returned);
    if (posted)
        rp_cpu_gate_deinit(&launcher->posted);
    rp_free_aligned(launcher);
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "group: the launch thread of rank %u: %s", rank,
                        failure ? strerror(failure) : "out of memory");
}

void rp_group_launcher_destroy(struct rp_group_launcher *launcher) {
    if (!launcher)
        return;
    rp_group_launcher_post(launcher, NULL);
    pthread_join(launcher->thread, NULL);
    rp_cpu_gate_deinit(&launcher->returned);
    rp_cpu_gate_deinit(&launcher->posted);
    rp_free_aligned(launcher);
}

/* Until at most `left` launches have not returned. */
static bool settle_to(struct rp_group_launcher *launcher, uint32_t left, uint64_t deadline_ns) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&launcher->returned.word, memory_order_acquire);
        if (launcher->posts - seen <= left)
            return true;
        if (!rp_cpu_gate_spin(&launcher->returned, seen, false) &&
            !rp_cpu_gate_wait(&launcher->returned, seen, deadline_ns))
            return false;
    }
}

bool rp_group_launcher_settle(struct rp_group_launcher *launcher, uint64_t deadline_ns) {
    return !launcher || settle_to(launcher, 0, deadline_ns);
}

void rp_group_launcher_post(struct rp_group_launcher *launcher, struct rp_graph *graph) {
    (void)settle_to(launcher, QUEUE_LAUNCHES - 1, RP_CPU_NO_DEADLINE);
    launcher->queue[launcher->posts % QUEUE_LAUNCHES] = graph;
    rp_cpu_gate_open(&launcher->posted, ++launcher->posts);
}

int rp_group_launcher_status(const struct rp_group_launcher *launcher) {
    /* acquire: pairs with the thread's store. */
    return atomic_load_explicit(&launcher->status, memory_order_acquire);
}
