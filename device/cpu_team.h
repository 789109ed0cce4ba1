/* cpu_team.h - the worker pool of the CPU backend: one stream of jobs, each run by all workers.
 *
 * Worker 0 is the stream thread: it takes jobs in order from a bounded queue, so that submitting is
 * as asynchronous as a launch on a GPU. The others join it for every job. Inside a job the kernels
 * meet at rp_cpu_barrier between operators. With one worker there is no barrier and no wake-up at
 * all.
 *
 * A job below some hundred microseconds costs less than handing it over and being woken after it.
 * So a job may be submitted as short: as long as nothing else is in flight it stays where it is
 * until its owner waits, who then is worker 0 of it. Order and what is visible when are the same
 * either way.
 *
 * Waiting: workers spin at most 20 us, then sleep on a futex; all sleep when no job is queued, so
 * that other threads live on a two-core machine.
 * Thread: submit and wait from one owner thread. Memory: all at create. */
#ifndef RP_DEVICE_CPU_TEAM_H
#define RP_DEVICE_CPU_TEAM_H

#include "base/status.h"

struct rp_cpu_team;

/* Execution context of a CPU kernel. */
struct rp_cpu_worker {
    uint32_t index, count; /* this worker of that many */
    struct rp_cpu_team *team;
};

/* A job: every worker calls it once with the same arguments. */
typedef void (*rp_cpu_job)(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker);

/* threads 0: one per core that this process may use. */
int rp_cpu_team_create(uint32_t threads, struct rp_cpu_team **out, struct rp_error *err);
/* The same for one of `teams` that work at the same time and share `threads`, or the cores: each
 * gets an equal part, at least one thread. */
int rp_cpu_team_create_shared(uint32_t threads, uint32_t teams, struct rp_cpu_team **out,
                              struct rp_error *err);
void rp_cpu_team_destroy(struct rp_cpu_team *team); /* finishes queued jobs */
uint32_t rp_cpu_team_size(const struct rp_cpu_team *team);

/* RP_STATUS_FULL when 64 jobs are queued. Returns the job's number (from 1) in *out_job. */
int rp_cpu_team_submit(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                       uint64_t *out_job);
/* The same for a short job: it begins when its owner waits (for any job), submits one that is not
 * short, or destroys. */
int rp_cpu_team_submit_short(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                             uint64_t *out_job);
/* Jobs completed so far; everything a completed job wrote is visible to the caller. */
uint64_t rp_cpu_team_completed(struct rp_cpu_team *team);
/* Waits (spin 20 us, then sleep) until `job` is completed or the deadline (rp_clock_ns) passed;
 * true when completed. A short job that the owner runs meanwhile is not cut off at the deadline. */
bool rp_cpu_team_wait(struct rp_cpu_team *team, uint64_t job, uint64_t deadline_ns);

/* Barrier of all workers of the running job; writes before it are visible to all after it. */
void rp_cpu_barrier(const struct rp_cpu_worker *worker);
/* The same; returns when the last worker arrived (rp_clock_ns), to all of them alike. When a worker
 * wakes from the barrier depends on the scheduler. */
uint64_t rp_cpu_barrier_timed(const struct rp_cpu_worker *worker);

/* The work of one operator, taken part by part: first the parts of a worker's own share, in order,
 * then what others have not begun of theirs. So a worker that somebody else's process keeps from
 * its core does not hold up the rest, and an undisturbed one streams through one contiguous range.
 * Who computes a part never changes its bits. At most one user between two barriers, and every
 * worker of the job goes through it to its end. */
struct rp_cpu_parts {
    const struct rp_cpu_worker *worker;
    size_t items, unit;
    size_t grain;   /* items of a part; 0: the worker's own share in one */
    uint32_t owner; /* whose share is being taken from */
    uint32_t set;   /* which of the counters */
    bool untouched; /* the share in one is still to come */
};

/* n items; shares are multiples of `unit`, parts of `grain`, itself a multiple of unit. A share of
 * no more than one part is left whole, and nothing is shared between the workers. */
void rp_cpu_parts_begin(struct rp_cpu_parts *parts, const struct rp_cpu_worker *worker, size_t n,
                        size_t unit, size_t grain);
/* The next part [*begin, *end); false: none is left. */
bool rp_cpu_parts_next(struct rp_cpu_parts *parts, size_t *out_begin, size_t *out_end);

/* This worker's share [begin, end) of n items, in multiples of `grain`; contiguous, in worker
 * order. */
static inline void rp_cpu_share(const struct rp_cpu_worker *worker, size_t n, size_t grain,
                                size_t *out_begin, size_t *out_end) {
    size_t grains = (n + grain - 1) / grain;
    size_t begin = grains * worker->index / worker->count * grain;
    size_t end = grains * (worker->index + 1) / worker->count * grain;
    *out_begin = begin < n ? begin : n;
    *out_end = end < n ? end : n;
}

#endif
