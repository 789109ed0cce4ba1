/* Goal: jobs run in order, each by every worker, and what one wrote before a barrier all see after
 * it. Method: plain (not atomic) memory handed over by barriers and completion only, so that the
 * thread sanitizer judges the ordering too; teams smaller and larger than the machine. */
#include "base/clock.h"
#include "base/memory.h"
#include "device/cpu_team.h"

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

/* Rounds of: everybody writes its cell; barrier; worker 0 sums; barrier; everybody checks the sum.
 */
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

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_written_before_a_barrier_is_seen_after_it),
        TEST(test_jobs_run_in_order_and_every_worker_runs_each_once),
        TEST(test_a_queue_of_64_jobs_is_full),
        TEST(test_waiting_ends_at_the_deadline),
        TEST(test_sleeping_workers_wake_for_the_next_job),
        TEST(test_destroy_finishes_the_jobs_in_the_queue),
        TEST(test_create_says_when_memory_is_out_and_when_the_count_is_absurd),
        TEST(test_shares_cover_everything_once_in_worker_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
