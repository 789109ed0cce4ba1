/* cpu_team.c - every waiting place is a gate: a counter that its signaller advances.
 *
 *   handed      how many jobs went to the stream thread;  waited on by it
 *   begun       how many jobs the others may join;        waited on by them
 *   phase       advanced by the last to reach a barrier;  waited on by the others
 *   finished    advanced by the stream thread per job;    waited on by the owner
 *
 * All workers take the jobs from the same queue by counting; a barrier at the end of each job keeps
 * them in step, so a queue entry is free again once its job is completed. Jobs after `handed` wait
 * for their owner to run them; the owner does so only when all that were handed over are completed,
 * and hands over all at once: so there is one worker 0 at any time, and jobs are in order. The
 * barrier's phase counter is sense reversal with more than two senses: a worker waits for it to
 * differ from what it read before it arrived. */
#include "device/cpu_team.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "device/cpu_gate.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(__linux__)
#include <unistd.h>
#endif

#define QUEUE_JOBS 64

struct queued_job {
    rp_cpu_job run; /* NULL: leave */
    void *arg0;
    uint64_t arg1;
};

struct team_thread {
    /* Parts of this worker's share that somebody has begun, by turns of operators: while one
     * counter is in use, its worker sets the other one, which nobody has looked at since the last
     * barrier, back for the operator to come. */
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t begun[2];
    uint32_t turn; /* its worker only */
    struct rp_cpu_worker worker;
    pthread_t thread;
};

struct rp_cpu_team {
    struct rp_cpu_gate handed, begun, phase, finished;
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t arrived; /* at the barrier of this phase */
    uint64_t arrival_ns[2]; /* of the last worker at a timed barrier, by phase % 2 */
    _Alignas(RP_CACHE_LINE) _Atomic uint64_t completed;
    uint64_t submit_count; /* owner only */
    uint64_t handed_count; /* owner only: jobs that the stream thread runs or that are completed */
    uint32_t worker_count;
    uint32_t thread_count; /* threads that run; below worker_count only when create failed */
    bool crowded;          /* as many workers as cores: a spinning one blocks another */
    struct queued_job queue[QUEUE_JOBS];
    struct team_thread threads[];
};

static uint64_t pass_barrier(const struct rp_cpu_worker *worker, bool timed) {
    if (worker->count == 1)
        return timed ? rp_clock_ns() : 0;
    struct rp_cpu_team *team = worker->team;
    /* relaxed: the phase cannot move before this worker has arrived. */
    uint32_t seen = atomic_load_explicit(&team->phase.word, memory_order_relaxed);
    /* acq_rel: the last to arrive has seen everything that the others wrote, and passes it on. */
    uint32_t before = atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    if (before + 1 == worker->count) {
        if (timed)
            team->arrival_ns[seen % 2] = rp_clock_ns();
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        rp_cpu_gate_open(&team->phase, seen + 1);
    } else if (!rp_cpu_gate_spin(&team->phase, seen, team->crowded)) {
        rp_cpu_gate_wait(&team->phase, seen, RP_CPU_NO_DEADLINE);
    }
    /* Written again two phases later, when this worker has arrived at the one between. */
    return timed ? team->arrival_ns[seen % 2] : 0;
}

void rp_cpu_barrier(const struct rp_cpu_worker *worker) { (void)pass_barrier(worker, false); }

uint64_t rp_cpu_barrier_timed(const struct rp_cpu_worker *worker) {
    return pass_barrier(worker, true);
}

void rp_cpu_parts_begin(struct rp_cpu_parts *parts, const struct rp_cpu_worker *worker, size_t n,
                        size_t unit, size_t grain) {
    size_t units = RP_CEIL_DIV(n, unit);
    *parts = (struct rp_cpu_parts){
        .worker = worker, .items = n, .unit = unit, .owner = worker->index, .untouched = true};
    if (!worker->team || worker->count == 1 || RP_CEIL_DIV(units, worker->count) * unit <= grain)
        return;
    struct team_thread *self = &worker->team->threads[worker->index];
    parts->grain = grain;
    parts->set = self->turn++ % 2;
    atomic_store_explicit(&self->begun[1 - parts->set], 0, memory_order_relaxed);
}

bool rp_cpu_parts_next(struct rp_cpu_parts *parts, size_t *out_begin, size_t *out_end) {
    const struct rp_cpu_worker *worker = parts->worker;
    size_t begin, end;
    if (parts->grain == 0) {
        bool first = parts->untouched;
        parts->untouched = false;
        rp_cpu_share(worker, parts->items, parts->unit, out_begin, out_end);
        return first && *out_begin < *out_end;
    }
    do {
        struct rp_cpu_worker owner = {.index = parts->owner, .count = worker->count};
        rp_cpu_share(&owner, parts->items, parts->unit, &begin, &end);
        /* relaxed: only who gets which part is decided here; the barriers publish what was
         * computed. */
        begin += parts->grain *
                 atomic_fetch_add_explicit(&worker->team->threads[parts->owner].begun[parts->set],
                                           1, memory_order_relaxed);
        if (begin < end) {
            *out_begin = begin;
            *out_end = RP_MIN(begin + parts->grain, end);
            return true;
        }
        parts->owner = (parts->owner + 1) % worker->count;
    } while (parts->owner != worker->index);
    return false;
}

static void gate_pass(struct rp_cpu_team *team, struct rp_cpu_gate *gate, uint32_t seen) {
    if (!rp_cpu_gate_spin(gate, seen, team->crowded))
        rp_cpu_gate_wait(gate, seen, RP_CPU_NO_DEADLINE);
}

/* Worker 0 of job `number` (from 0): lets the others join, and completes it. */
static void run_job(struct rp_cpu_team *team, uint64_t number, const struct rp_cpu_worker *worker) {
    const struct queued_job *job = &team->queue[number % QUEUE_JOBS];
    if (worker->count > 1)
        rp_cpu_gate_open(&team->begun, (uint32_t)(number + 1));
    job->run(job->arg0, job->arg1, worker);
    rp_cpu_barrier(worker);
    /* release: with the barrier before, publishes what all workers wrote. */
    atomic_store_explicit(&team->completed, number + 1, memory_order_release);
}

static void run_stream(const struct rp_cpu_worker *worker) {
    struct rp_cpu_team *team = worker->team;
    for (uint32_t seen = 0;;) {
        gate_pass(team, &team->handed, seen);
        seen = atomic_load_explicit(&team->handed.word, memory_order_acquire);
        uint64_t next = atomic_load_explicit(&team->completed, memory_order_acquire);
        for (; (uint32_t)next != seen; next++) {
            if (!team->queue[next % QUEUE_JOBS].run) {
                rp_cpu_gate_open(&team->begun, (uint32_t)(next + 1));
                return;
            }
            run_job(team, next, worker);
            rp_cpu_gate_open(&team->finished, (uint32_t)(next + 1));
        }
    }
}

static void run_jobs(const struct rp_cpu_worker *worker) {
    struct rp_cpu_team *team = worker->team;
    for (uint64_t taken = 0;; taken++) {
        gate_pass(team, &team->begun, (uint32_t)taken);
        const struct queued_job *job = &team->queue[taken % QUEUE_JOBS];
        if (!job->run)
            return;
        job->run(job->arg0, job->arg1, worker);
        rp_cpu_barrier(worker);
    }
}

static void *worker_main(void *arg) {
    struct team_thread *self = arg;
    char name[16]; /* the kernel's limit */
    snprintf(name, sizeof name, "rp-cpu-%u", self->worker.index % 10000u);
    rp_thread_begin(name, RP_THREAD_STEP);
    if (self->worker.index == 0)
        run_stream(&self->worker);
    else
        run_jobs(&self->worker);
    rp_thread_end();
    return NULL;
}

/* Cores that this process may use: its affinity, and the quota of its control group (rounded up).
 */
static uint32_t usable_cores(void) {
    uint32_t cores = 1;
#if defined(__linux__)
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = (uint32_t)CPU_COUNT(&set);
    else if (online > 0)
        cores = (uint32_t)online;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (file) {
        unsigned long long quota, period;
        if (fscanf(file, "%llu %llu", &quota, &period) == 2 && quota > 0 && period > 0)
            cores = (uint32_t)RP_MIN((unsigned long long)cores, RP_CEIL_DIV(quota, period));
        fclose(file);
    }
#endif
    return RP_MAX(cores, 1u);
}

static int start_thread(struct rp_cpu_team *team, uint32_t index) {
    struct team_thread *self = &team->threads[index];
    self->worker =
        (struct rp_cpu_worker){.index = index, .count = team->worker_count, .team = team};
    return pthread_create(&self->thread, NULL, worker_main, self);
}

static void enqueue(struct rp_cpu_team *team, rp_cpu_job run, void *arg0, uint64_t arg1) {
    team->queue[team->submit_count % QUEUE_JOBS] =
        (struct queued_job){.run = run, .arg0 = arg0, .arg1 = arg1};
    team->submit_count++;
}

/* All that waits goes to the stream thread. */
static void hand_over(struct rp_cpu_team *team) {
    team->handed_count = team->submit_count;
    rp_cpu_gate_open(&team->handed, (uint32_t)team->handed_count);
}

int rp_cpu_team_create(uint32_t threads, struct rp_cpu_team **out, struct rp_error *err) {
    return rp_cpu_team_create_shared(threads, 1, out, err);
}

int rp_cpu_team_create_shared(uint32_t threads, uint32_t teams, struct rp_cpu_team **out,
                              struct rp_error *err) {
    const uint32_t workers_max = 1024;
    uint32_t cores = usable_cores();
    if (threads == 0)
        threads = RP_MIN(cores, workers_max);
    *out = NULL;
    if (threads > workers_max)
        return rp_error_set(err, RP_STATUS_RANGE, "%u CPU threads: at most %u", threads,
                            workers_max);
    threads = RP_MAX(threads / teams, 1u);
    size_t bytes = sizeof(struct rp_cpu_team) + threads * sizeof(struct team_thread);
    struct rp_cpu_team *team = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    if (!team)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for %u CPU threads", threads);
    memset(team, 0, bytes);
    team->worker_count = threads;
    team->crowded = threads * teams >= cores;
    if (!rp_cpu_gate_init(&team->handed))
        goto fail_handed;
    if (!rp_cpu_gate_init(&team->begun))
        goto fail_begun;
    if (!rp_cpu_gate_init(&team->phase))
        goto fail_phase;
    if (!rp_cpu_gate_init(&team->finished))
        goto fail_finished;
    /* Signals are for the loop thread: workers inherit a mask that blocks all but SIGPROF, which
     * samples call stacks (metrics/stack_sampler.h), and SIGSYS, which the kernel sends to the
     * thread whose system call the sandbox refused. */
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGPROF);
    sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failure = 0;
    for (uint32_t i = 0; i < threads && failure == 0; i++) {
        failure = start_thread(team, i);
        team->thread_count += failure == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failure != 0) {
        rp_error_set(err, RP_STATUS_NO_MEMORY, "starting CPU thread %u of %u: %s",
                     team->thread_count + 1, threads, strerror(failure));
        rp_error_hint(err, "try --threads %u", RP_MAX(team->thread_count, 1u));
        rp_cpu_team_destroy(team);
        return RP_STATUS_NO_MEMORY;
    }
    *out = team;
    return RP_OK;

fail_finished:
    rp_cpu_gate_deinit(&team->phase);
fail_phase:
    rp_cpu_gate_deinit(&team->begun);
fail_begun:
    rp_cpu_gate_deinit(&team->handed);
fail_handed:
    rp_free_aligned(team);
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for %u CPU threads", threads);
}

void rp_cpu_team_destroy(struct rp_cpu_team *team) {
    if (!team)
        return;
    /* A queue slot for the job that ends the thread. */
    if (team->submit_count >= QUEUE_JOBS)
        rp_cpu_team_wait(team, team->submit_count - QUEUE_JOBS + 1, RP_CPU_NO_DEADLINE);
    enqueue(team, NULL, NULL, 0);
    hand_over(team);
    for (uint32_t i = 0; i < team->thread_count; i++)
        pthread_join(team->threads[i].thread, NULL);
    rp_cpu_gate_deinit(&team->finished);
    rp_cpu_gate_deinit(&team->phase);
    rp_cpu_gate_deinit(&team->begun);
    rp_cpu_gate_deinit(&team->handed);
    rp_free_aligned(team);
}

uint32_t rp_cpu_team_size(const struct rp_cpu_team *team) { return team->worker_count; }

static int submit(struct rp_cpu_team *team, struct queued_job job, bool is_short,
                  uint64_t *out_job) {
    RP_ASSERT(job.run != NULL);
    uint64_t completed = rp_cpu_team_completed(team);
    if (team->submit_count - completed >= QUEUE_JOBS)
        return RP_STATUS_FULL;
    enqueue(team, job.run, job.arg0, job.arg1);
    /* Whatever was handed over is completed: nobody but the owner would be worker 0. */
    if (!is_short || team->handed_count > completed)
        hand_over(team);
    if (out_job)
        *out_job = team->submit_count;
    return RP_OK;
}

int rp_cpu_team_submit(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                       uint64_t *out_job) {
    return submit(team, (struct queued_job){job, arg0, arg1}, false, out_job);
}

int rp_cpu_team_submit_short(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                             uint64_t *out_job) {
    return submit(team, (struct queued_job){job, arg0, arg1}, true, out_job);
}

uint64_t rp_cpu_team_completed(struct rp_cpu_team *team) {
    return atomic_load_explicit(&team->completed, memory_order_acquire);
}

/* The oldest job that waits for its owner; false: there is none. */
static bool run_own(struct rp_cpu_team *team) {
    uint64_t next = rp_cpu_team_completed(team);
    if (next < team->handed_count || next == team->submit_count)
        return false;
    team->handed_count = next + 1;
    run_job(team, next, &team->threads[0].worker);
    return true;
}

bool rp_cpu_team_wait(struct rp_cpu_team *team, uint64_t job, uint64_t deadline_ns) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&team->finished.word, memory_order_acquire);
        if (rp_cpu_team_completed(team) >= job)
            return true;
        if (run_own(team))
            continue;
        /* On a crowded machine the owner's spinning would slow the workers that it waits for. */
        if (!team->crowded && rp_cpu_gate_spin(&team->finished, seen, false))
            continue;
        if (!rp_cpu_gate_wait(&team->finished, seen, deadline_ns))
            return rp_cpu_team_completed(team) >= job;
    }
}
