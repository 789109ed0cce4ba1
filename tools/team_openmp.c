/* team_openmp.c - implements device/cpu_team.h with OpenMP, for comparison with our worker pool.
 *
 * A job is one parallel region, entered by the thread that submits it, which is worker 0; barriers
 * between operators are OpenMP's; shares are static. A step therefore needs no signal between
 * threads of different roles, and there is no run-ahead. `ninja -C build/release reprise_openmp`
 * links it into a program that is otherwise reprise (needs libgomp); tools/compare_dispatch
 * compares both. */
#include "base/memory.h"
#include "device/cpu_team.h"

#include <omp.h>

struct rp_cpu_team {
    uint32_t worker_count;
    uint64_t completed;
};

int rp_cpu_team_create(uint32_t threads, struct rp_cpu_team **out, struct rp_error *err) {
    struct rp_cpu_team *team = rp_calloc(1, sizeof *team);
    *out = team;
    if (!team)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for %u CPU threads", threads);
    team->worker_count = threads ? threads : (uint32_t)omp_get_num_procs();
    return RP_OK;
}

void rp_cpu_team_destroy(struct rp_cpu_team *team) { rp_free(team); }

uint32_t rp_cpu_team_size(const struct rp_cpu_team *team) { return team->worker_count; }

int rp_cpu_team_submit(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                       uint64_t *out_job) {
    if (team->worker_count == 1) {
        struct rp_cpu_worker worker = {.index = 0, .count = 1, .team = team};
        job(arg0, arg1, &worker);
    } else {
#pragma omp parallel num_threads(team->worker_count)
        {
            struct rp_cpu_worker worker = {.index = (uint32_t)omp_get_thread_num(),
                                           .count = (uint32_t)omp_get_num_threads(),
                                           .team = team};
            job(arg0, arg1, &worker);
        }
    }
    team->completed++;
    if (out_job)
        *out_job = team->completed;
    return RP_OK;
}

int rp_cpu_team_submit_short(struct rp_cpu_team *team, rp_cpu_job job, void *arg0, uint64_t arg1,
                             uint64_t *out_job) {
    return rp_cpu_team_submit(team, job, arg0, arg1, out_job);
}

uint64_t rp_cpu_team_completed(struct rp_cpu_team *team) { return team->completed; }

bool rp_cpu_team_wait(struct rp_cpu_team *team, uint64_t job, uint64_t deadline_ns) {
    (void)deadline_ns;
    return team->completed >= job;
}

void rp_cpu_barrier(const struct rp_cpu_worker *worker) {
    if (worker->count > 1) {
#pragma omp barrier
    }
}

void rp_cpu_parts_begin(struct rp_cpu_parts *parts, const struct rp_cpu_worker *worker, size_t n,
                        size_t unit, size_t grain) {
    (void)grain;
    *parts = (struct rp_cpu_parts){.worker = worker, .items = n, .unit = unit, .untouched = true};
}

bool rp_cpu_parts_next(struct rp_cpu_parts *parts, size_t *out_begin, size_t *out_end) {
    bool first = parts->untouched;
    parts->untouched = false;
    rp_cpu_share(parts->worker, parts->items, parts->unit, out_begin, out_end);
    return first && *out_begin < *out_end;
}
