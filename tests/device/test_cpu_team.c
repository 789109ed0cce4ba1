/* Goal: jobs run in order, each on every worker, and writes before a barrier are visible to all
 * workers after it. Method: non-atomic memory synchronized by barriers and completion only, so that
 * the thread sanitizer checks the ordering too; teams smaller and larger than the machine. */
#include "base/clock.h"
#include "base/memory.h"
#include "device/cpu_team.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define WORKERS_MAX 8
#define FOREVER     UINT64_MAX

static const uint32_t team_sizes[] = {1, 2, 3, 5};

struct fixture {
    struct rp_cpu_team *team;
    uint64_t sums[WORKERS_MAX]; /* one per worker */
    uint64_t total;             /* written by worker 0 */
    uint64_t order[200];
    uint32_t order_count;
    _Atomic bool hold;
    _Atomic uint32_t mismatches;
};

static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    atomic_store(&f->hold, false);
    rp_cpu_team_destroy(f->team);
    f->team = NULL;
    rp_alloc_fail_at(0);
    return 0;
}

static void make_team(struct fixture *f, uint32_t threads) {
    rp_cpu_team_destroy(f->team);
    f->team = NULL;
    assert_int_equal(rp_cpu_team_create(threads, &f->team, NULL), RP_OK);
    assert_int_equal(rp_cpu_team_size(f->team), threads);
}

static uint64_t submit(struct fixture *f, rp_cpu_job job, uint64_t arg1) {
    uint64_t number = 0;
    assert_int_equal(rp_cpu_team_submit(f->team, job, f, arg1, &number), RP_OK);
    return number;
}

/* Each round: every worker writes its cell; barrier; worker 0 sums; barrier; all check the sum. */
static void barrier_job(void *arg0, uint64_t rounds, const struct rp_cpu_worker *worker) {
    struct fixture *f = arg0;
    for (uint64_t round = 1; round <= rounds; round++) {
        f->sums[worker->index] = round * (worker->index + 1);
        rp_cpu_barrier(worker);
        if (worker->index == 0) {
            f->total = 0;
            for (uint32_t i = 0; i < worker->count; i++)
                f->total += f->sums[i];
        }
        rp_cpu_barrier(worker);
        if (f->total != round * worker->count * (worker->count + 1) / 2)
            atomic_fetch_add(&f->mismatches, 1);
    }
}

static void count_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct fixture *f = arg0;
    f->sums[worker->index] += arg1;
    if (worker->index == 0)
        f->order[f->order_count++] = arg1;
}

static void hold_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct fixture *f = arg0;
    (void)arg1;
    (void)worker;
    const struct timespec nap = {.tv_nsec = 100000};
    while (atomic_load(&f->hold))
        nanosleep(&nap, NULL);
}

static void test_what_is_written_before_a_barrier_is_seen_after_it(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(team_sizes); i++) {
        make_team(f, team_sizes[i]);
        uint64_t job = submit(f, barrier_job, 300);
        assert_true(rp_cpu_team_wait(f->team, job, FOREVER));
        assert_int_equal(f->mismatches, 0);
    }
}

/* Each worker records when it reached and left the barrier; all get one time between the two of
 * each worker. */
struct passages {
    uint64_t came[WORKERS_MAX], left[WORKERS_MAX], arrival[WORKERS_MAX];
};

static void pass_timed(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct passages *passages = arg0;
    for (uint64_t i = 0; i < arg1; i++) {
        passages->came[worker->index] = rp_clock_ns();
        passages->arrival[worker->index] = rp_cpu_barrier_timed(worker);
        passages->left[worker->index] = rp_clock_ns();
    }
}

static void test_a_timed_barrier_gives_all_workers_the_last_arrival(void **state) {
    struct fixture *f = *state;
    for (size_t t = 0; t < RP_ARRAY_COUNT(team_sizes); t++) {
        struct passages passages;
        uint64_t job;
        make_team(f, team_sizes[t]);
        for (uint64_t rounds = 1; rounds < 40; rounds++) {
            assert_int_equal(rp_cpu_team_submit(f->team, pass_timed, &passages, rounds, &job),
                             RP_OK);
            assert_true(rp_cpu_team_wait(f->team, job, FOREVER));
            for (uint32_t i = 0; i < team_sizes[t]; i++) {
                assert_int_equal(passages.arrival[i], passages.arrival[0]);
                assert_true(passages.came[i] <= passages.arrival[i]);
                assert_true(passages.arrival[i] <= passages.left[i]);
            }
        }
    }
}

static void test_jobs_run_in_order_and_every_worker_runs_each_once(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(team_sizes); i++) {
        memset(f->sums, 0, sizeof f->sums);
        f->order_count = 0;
        make_team(f, team_sizes[i]);
        uint64_t last = 0;
        for (uint64_t n = 1; n <= RP_ARRAY_COUNT(f->order); n++) {
            while (rp_cpu_team_submit(f->team, count_job, f, n, &last) == RP_STATUS_FULL)
                assert_true(rp_cpu_team_wait(f->team, last - 10, FOREVER));
            assert_int_equal(last, n);
        }
        assert_true(rp_cpu_team_wait(f->team, last, FOREVER));
        assert_int_equal(rp_cpu_team_completed(f->team), RP_ARRAY_COUNT(f->order));
        assert_int_equal(f->order_count, RP_ARRAY_COUNT(f->order));
        for (uint64_t n = 0; n < RP_ARRAY_COUNT(f->order); n++)
            assert_int_equal(f->order[n], n + 1);
        for (uint32_t w = 0; w < team_sizes[i]; w++)
            assert_int_equal(f->sums[w], 200 * 201 / 2);
    }
}

static void test_a_queue_of_64_jobs_is_full(void **state) {
    struct fixture *f = *state;
    make_team(f, 2);
    atomic_store(&f->hold, true);
    submit(f, hold_job, 0);
    for (int i = 1; i < 64; i++)
        submit(f, count_job, 1);
    assert_int_equal(rp_cpu_team_submit(f->team, count_job, f, 1, NULL), RP_STATUS_FULL);
    assert_int_equal(rp_cpu_team_completed(f->team), 0);
    atomic_store(&f->hold, false);
    assert_true(rp_cpu_team_wait(f->team, 64, FOREVER));
    assert_int_equal(f->sums[1], 63);
}

static void test_waiting_ends_at_the_deadline(void **state) {
    struct fixture *f = *state;
    make_team(f, 2);
    atomic_store(&f->hold, true);
    uint64_t job = submit(f, hold_job, 0);
    assert_false(rp_cpu_team_wait(f->team, job, 0));
    assert_false(rp_cpu_team_wait(f->team, job, rp_clock_ns() + 2000000));
    atomic_store(&f->hold, false);
    assert_true(rp_cpu_team_wait(f->team, job, FOREVER));
    assert_true(rp_cpu_team_wait(f->team, job, 0));
}

static void test_sleeping_workers_wake_for_the_next_job(void **state) {
    struct fixture *f = *state;
    const struct timespec nap = {.tv_nsec = 3000000}; /* well past the spinning */
    make_team(f, 3);
    for (uint64_t n = 1; n <= 10; n++) {
        nanosleep(&nap, NULL);
        uint64_t job = submit(f, barrier_job, 2);
        assert_true(rp_cpu_team_wait(f->team, job, FOREVER));
    }
    assert_int_equal(f->mismatches, 0);
}

static void test_destroy_finishes_the_jobs_in_the_queue(void **state) {
    struct fixture *f = *state;
    make_team(f, 3);
    for (int i = 0; i < 64; i++)
        submit(f, count_job, 1);
    rp_cpu_team_destroy(f->team);
    f->team = NULL;
    for (uint32_t w = 0; w < 3; w++)
        assert_int_equal(f->sums[w], 64);
}

static void test_create_says_when_memory_is_out_and_when_the_count_is_absurd(void **state) {
    struct fixture *f = *state;
    struct rp_error err;
    rp_alloc_fail_at(1);
    assert_int_equal(rp_cpu_team_create(2, &f->team, &err), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    assert_null(f->team);
    assert_int_equal(rp_cpu_team_create(1000000, &f->team, &err), RP_STATUS_RANGE);
    assert_null(f->team);
    assert_int_equal(rp_cpu_team_create(0, &f->team, &err), RP_OK);
    assert_true(rp_cpu_team_size(f->team) >= 1);
}

static void test_shares_cover_everything_once_in_worker_order(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 15, 16, 17, 100, 4096};
    for (uint32_t workers = 1; workers <= 7; workers++) {
        for (size_t c = 0; c < RP_ARRAY_COUNT(counts); c++) {
            size_t next = 0;
            for (uint32_t w = 0; w < workers; w++) {
                struct rp_cpu_worker worker = {.index = w, .count = workers};
                size_t begin, end;
                rp_cpu_share(&worker, counts[c], 16, &begin, &end);
                assert_int_equal(begin, next);
                assert_true(begin % 16 == 0 || begin == counts[c]);
                next = end;
            }
            assert_int_equal(next, counts[c]);
        }
    }
}

/* --- Short jobs --- */

struct here_job {
    pthread_t owner;
    _Atomic uint32_t runs, by_owner;
};

static void here_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct here_job *here = arg0;
    (void)arg1;
    atomic_fetch_add(&here->runs, 1);
    if (worker->index == 0 && pthread_equal(pthread_self(), here->owner))
        atomic_fetch_add(&here->by_owner, 1);
}

static void test_a_short_job_waits_for_its_owner_and_is_run_by_it(void **state) {
    struct fixture *f = *state;
    const struct timespec nap = {.tv_nsec = 3000000};
    for (size_t i = 0; i < RP_ARRAY_COUNT(team_sizes); i++) {
        struct here_job here = {.owner = pthread_self()};
        uint64_t first = 0, second = 0;
        make_team(f, team_sizes[i]);
        assert_int_equal(rp_cpu_team_submit_short(f->team, here_job, &here, 0, &first), RP_OK);
        assert_int_equal(rp_cpu_team_submit_short(f->team, here_job, &here, 0, &second), RP_OK);
        nanosleep(&nap, NULL);
        assert_int_equal(here.runs, 0);
        assert_true(rp_cpu_team_wait(f->team, first, FOREVER));
        assert_int_equal(here.runs, team_sizes[i]);
        assert_int_equal(rp_cpu_team_completed(f->team), 1);
        assert_true(rp_cpu_team_wait(f->team, second, FOREVER));
        assert_int_equal(here.by_owner, 2);
        assert_int_equal(here.runs, 2 * team_sizes[i]);
    }
}

static void test_a_job_behind_short_ones_takes_them_to_the_stream(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(team_sizes); i++) {
        struct here_job here = {.owner = pthread_self()};
        uint64_t last = 0;
        make_team(f, team_sizes[i]);
        for (int n = 0; n < 3; n++)
            assert_int_equal(rp_cpu_team_submit_short(f->team, here_job, &here, 0, NULL), RP_OK);
        assert_int_equal(rp_cpu_team_submit(f->team, here_job, &here, 0, &last), RP_OK);
        const struct timespec nap = {.tv_nsec = 100000};
        while (rp_cpu_team_completed(f->team) < last) /* no thread waits for it, and it runs */
            nanosleep(&nap, NULL);
        assert_int_equal(here.runs, 4 * team_sizes[i]);
        assert_int_equal(here.by_owner, 0);
    }
}

static void test_a_short_job_behind_one_that_runs_is_not_held_up(void **state) {
    struct fixture *f = *state;
    struct here_job here = {.owner = pthread_self()};
    uint64_t last = 0;
    make_team(f, 2);
    atomic_store(&f->hold, true);
    submit(f, hold_job, 0);
    assert_int_equal(rp_cpu_team_submit_short(f->team, here_job, &here, 0, &last), RP_OK);
    assert_false(rp_cpu_team_wait(f->team, last, rp_clock_ns() + 2000000));
    atomic_store(&f->hold, false);
    assert_true(rp_cpu_team_wait(f->team, last, FOREVER));
    assert_int_equal(here.by_owner, 0);
}

static void test_destroy_finishes_short_jobs_too(void **state) {
    struct fixture *f = *state;
    make_team(f, 3);
    for (int i = 0; i < 64; i++)
        assert_int_equal(rp_cpu_team_submit_short(f->team, count_job, f, 1, NULL), RP_OK);
    assert_int_equal(rp_cpu_team_submit_short(f->team, count_job, f, 1, NULL), RP_STATUS_FULL);
    rp_cpu_team_destroy(f->team);
    f->team = NULL;
    for (uint32_t w = 0; w < 3; w++)
        assert_int_equal(f->sums[w], 64);
}

/* Here worker 0 changes between two threads, checked by the thread sanitizer. */
static void test_short_and_other_jobs_in_any_mixture_run_in_order(void **state) {
    struct fixture *f = *state;
    uint32_t random = 99;
    for (size_t i = 0; i < RP_ARRAY_COUNT(team_sizes); i++) {
        memset(f->sums, 0, sizeof f->sums);
        f->order_count = 0;
        make_team(f, team_sizes[i]);
        uint64_t last = 0;
        for (uint64_t n = 0; n < RP_ARRAY_COUNT(f->order); n++) {
            random = random * 1664525u + 1013904223u;
            if (random >> 30 == 0)
                assert_int_equal(rp_cpu_team_submit(f->team, count_job, f, n, &last), RP_OK);
            else
                assert_int_equal(rp_cpu_team_submit_short(f->team, count_job, f, n, &last), RP_OK);
            if ((random >> 28 & 3) == 0 || n % 32 == 31)
                assert_true(rp_cpu_team_wait(f->team, last - (random >> 27 & 1), FOREVER));
            if (n % 32 == 31)
                assert_true(rp_cpu_team_wait(f->team, last, FOREVER));
        }
        assert_true(rp_cpu_team_wait(f->team, last, FOREVER));
        assert_int_equal(f->order_count, RP_ARRAY_COUNT(f->order));
        for (uint64_t n = 0; n < RP_ARRAY_COUNT(f->order); n++)
            assert_int_equal(f->order[n], n);
        for (uint32_t w = 0; w < team_sizes[i]; w++)
            assert_int_equal(f->sums[w],
                             RP_ARRAY_COUNT(f->order) * (RP_ARRAY_COUNT(f->order) - 1) / 2);
    }
}

/* --- Parts --- */

#define ITEMS_MAX 1000

static _Atomic uint32_t touched[ITEMS_MAX];
static _Atomic uint32_t touched_count;

struct parts_job {
    size_t items, unit, grain;
    uint32_t rounds;
    bool worker_0_waits; /* after its first part, until the others have done the rest */
    _Atomic bool waited_in_vain;
};

static void parts_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct parts_job *job = arg0;
    (void)arg1;
    for (uint32_t round = 0; round < job->rounds; round++) {
        struct rp_cpu_parts parts;
        size_t begin, end;
        bool first = true;
        rp_cpu_parts_begin(&parts, worker, job->items, job->unit, job->grain);
        while (rp_cpu_parts_next(&parts, &begin, &end)) {
            uint64_t deadline = rp_clock_ns() + 20000000000u;
            uint32_t own = (uint32_t)(end - begin);
            for (size_t i = begin; i < end; i++)
                atomic_fetch_add(&touched[i], 1);
            while (first && job->worker_0_waits && worker->index == 0 &&
                   atomic_load(&touched_count) + own < job->items) {
                const struct timespec nap = {.tv_nsec = 100000};
                nanosleep(&nap, NULL);
                if (rp_clock_ns() > deadline) {
                    atomic_store(&job->waited_in_vain, true);
                    break;
                }
            }
            atomic_fetch_add(&touched_count, own);
            first = false;
        }
        rp_cpu_barrier(worker);
    }
}

static void run_parts(struct fixture *f, struct parts_job *job) {
    uint64_t number = 0;
    memset((void *)touched, 0, sizeof touched);
    atomic_store(&touched_count, 0);
    assert_int_equal(rp_cpu_team_submit(f->team, parts_job, job, 0, &number), RP_OK);
    assert_true(rp_cpu_team_wait(f->team, number, FOREVER));
    for (size_t i = 0; i < job->items; i++)
        assert_int_equal(touched[i], job->rounds);
}

static void test_parts_cover_everything_once_round_after_round(void **state) {
    struct fixture *f = *state;
    static const size_t items[] = {0, 1, 7, 16, 97, 1000};
    static const size_t grains[][2] = {{1, 1}, {1, 4}, {16, 16}, {16, 64}, {1, 2000}};
    for (size_t t = 0; t < RP_ARRAY_COUNT(team_sizes); t++) {
        make_team(f, team_sizes[t]);
        for (size_t i = 0; i < RP_ARRAY_COUNT(items); i++)
            for (size_t g = 0; g < RP_ARRAY_COUNT(grains); g++) {
                struct parts_job job = {items[i], grains[g][0], grains[g][1], 7, false, false};
                run_parts(f, &job);
                job.rounds = 2; /* an even number after an odd one: each counter is first once */
                run_parts(f, &job);
            }
    }
}

static void test_the_parts_of_a_worker_that_does_not_come_are_done_by_the_others(void **state) {
    struct fixture *f = *state;
    for (uint32_t workers = 2; workers <= 5; workers++) {
        make_team(f, workers);
        struct parts_job job = {1000, 1, 10, 1, true, false};
        for (int again = 0; again < 3; again++)
            run_parts(f, &job);
        assert_false(job.waited_in_vain);
    }
}

static void test_a_worker_without_a_team_has_its_share_in_one_part(void **state) {
    (void)state;
    size_t next = 0, begin, end;
    for (uint32_t w = 0; w < 3; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = 3};
        struct rp_cpu_parts parts;
        rp_cpu_parts_begin(&parts, &worker, 100, 4, 4);
        assert_true(rp_cpu_parts_next(&parts, &begin, &end));
        assert_int_equal(begin, next);
        next = end;
        assert_false(rp_cpu_parts_next(&parts, &begin, &end));
    }
    assert_int_equal(next, 100);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_written_before_a_barrier_is_seen_after_it),
        TEST(test_a_timed_barrier_gives_all_workers_the_last_arrival),
        TEST(test_jobs_run_in_order_and_every_worker_runs_each_once),
        TEST(test_a_queue_of_64_jobs_is_full),
        TEST(test_waiting_ends_at_the_deadline),
        TEST(test_sleeping_workers_wake_for_the_next_job),
        TEST(test_destroy_finishes_the_jobs_in_the_queue),
        TEST(test_create_says_when_memory_is_out_and_when_the_count_is_absurd),
        TEST(test_shares_cover_everything_once_in_worker_order),
        TEST(test_a_short_job_waits_for_its_owner_and_is_run_by_it),
        TEST(test_a_job_behind_short_ones_takes_them_to_the_stream),
        TEST(test_a_short_job_behind_one_that_runs_is_not_held_up),
        TEST(test_destroy_finishes_short_jobs_too),
        TEST(test_short_and_other_jobs_in_any_mixture_run_in_order),
        TEST(test_parts_cover_everything_once_round_after_round),
        TEST(test_the_parts_of_a_worker_that_does_not_come_are_done_by_the_others),
        TEST(test_a_worker_without_a_team_has_its_share_in_one_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
