/* Goal: a step whose packet asks for it stores when each of its launches began and ended; no other
 * does, and no result depends on it.
 * Method: a small random model, replayed and eager, one and three workers, steps stamped in turns.
 * Where in a barrier a launch ends is seen on a clock of ours, which counts its readings. */
#include "base/clock.h"
#include "device/cpu_team.h"
#include "tests/support/driver.h"

#include <sched.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { CAPACITY = 128, STEPS = 9, PROMPT = 5 };

static const struct rp_bucket buckets[] = {{1, 1, 1, true}, {16, 2, 2, false}};
static struct rp_model model; /* freed in teardown */
static struct rp_driver driver;

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

static void open_driver(bool eager, uint32_t threads, uint32_t capacity) {
    const struct rp_model_config config = {.family = RP_FAMILY_LLAMA,
                                           .hidden = 64,
                                           .intermediate = 96,
                                           .layers = 3,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 16,
                                           .vocab = 97,
                                           .max_position = 64,
                                           .norm_eps = 1e-5f,
                                           .rope = {.theta = 10000.0},
                                           .bos_id = RP_ID_NONE};
    const struct rp_driver_config way = {.slots = 2,
                                         .pages_per_slot = 16,
                                         .page_tokens = 4,
                                         .threads = threads,
                                         .buckets = buckets,
                                         .bucket_count = RP_ARRAY_COUNT(buckets),
                                         .kv_dtype = RP_DTYPE_F32,
                                         .eager = eager,
                                         .stamp_capacity = capacity};
    teardown(NULL);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_F32, 5, 64, &model, NULL), RP_OK);
    rp_driver_open(&driver, &model, &way);
}

/* Nodes follow each other, inside the step. */
static void check_stamps(uint64_t step) {
    const unsigned char *entry =
        driver.view.results + (step % RP_STEP_RING_ENTRIES) * driver.view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_node_stamp *stamps = rp_driver_stamps_of(&driver, step);
    uint32_t count = driver.entry->launches;
    assert_true(count > 10 && count < CAPACITY);
    assert_true(stamps[0].begin_ns == header->begin_ns);
    assert_true(stamps[count - 1].end_ns == header->end_ns);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(stamps[i].begin_ns <= stamps[i].end_ns);
        if (i)
            assert_true(stamps[i].begin_ns >= stamps[i - 1].end_ns);
    }
    for (uint32_t i = count; i < CAPACITY; i++)
        assert_true(stamps[i].begin_ns > stamps[i].end_ns);
}

static int32_t run_step(uint64_t step, bool stamped) {
    static const int32_t prompt[PROMPT] = {3, 14, 15, 92, 65};
    driver.packet_flags = stamped ? RP_PACKET_STAMP : 0;
    rp_driver_row(&driver, 0, step == 1 ? prompt : NULL, step == 1 ? PROMPT : 1, true);
    rp_driver_run(&driver, NULL);
    return rp_driver_result(&driver, 0)->token;
}

static void test_every_launch_of_a_stamped_step_is_timed_and_nothing_else_changes(void **state) {
    (void)state;
    int32_t expected[STEPS];
    open_driver(false, 1, 0);
    for (uint64_t step = 1; step <= STEPS; step++)
        expected[step - 1] = run_step(step, true); /* no room for stamps: the bit has no effect */
    for (uint32_t way = 0; way < 4; way++) {
        open_driver(way % 2, way < 2 ? 1 : 3, CAPACITY);
        for (uint64_t step = 1; step <= STEPS; step++) {
            bool stamped = step % 3 != 0;
            struct rp_node_stamp *ring =
                driver.view.stamp_ring + step % RP_STEP_RING_ENTRIES * CAPACITY;
            memset(ring, 0x5A, CAPACITY * sizeof *ring);
            assert_int_equal(run_step(step, stamped), expected[step - 1]);
            if (stamped)
                check_stamps(step);
            else
                assert_true(ring[0].begin_ns == 0x5A5A5A5A5A5A5A5Au); /* untouched */
        }
    }
}

static void test_a_step_that_fails_stores_no_stamps(void **state) {
    (void)state;
    open_driver(false, 1, CAPACITY);
    (void)run_step(1, true);
    driver.packet_flags = RP_PACKET_STAMP;
    rp_driver_edit(&driver, 77, RP_SLOT_LENGTH, 0, 0); /* no such slot */
    rp_driver_row(&driver, 0, NULL, 1, true);
    struct rp_node_stamp *ring = driver.view.stamp_ring + (size_t)2 * CAPACITY;
    memset(ring, 0x5A, CAPACITY * sizeof *ring);
    rp_driver_run(&driver, NULL);
    assert_true(ring[0].begin_ns == 0x5A5A5A5A5A5A5A5Au);
}

/* --- The moment in a barrier at which a launch ends ------------------------------------------- */

enum { WORKERS_MAX = 4 };

/* The linker sends the backend's calls of these here (tests/CMakeLists.txt). While `watching`, the
 * clock counts its readings, worker 1 comes to each timed barrier last, and worker 0 leaves it
 * last. */
static _Atomic bool watching;
static _Atomic uint64_t readings;
static _Atomic uint64_t came[WORKERS_MAX][CAPACITY], left[WORKERS_MAX][CAPACITY]; /* 0: not yet */
static uint32_t rounds[WORKERS_MAX]; /* each worker's own */
int __real_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out) {
    if (id != CLOCK_MONOTONIC || !atomic_load(&watching))
        return __real_clock_gettime(id, out);
    uint64_t us = 1 + atomic_fetch_add(&readings, 1);
    *out =
        (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    return 0;
}

static void wait_for_others(_Atomic uint64_t seen[WORKERS_MAX][CAPACITY],
                            const struct rp_cpu_worker *worker, uint32_t round) {
    for (uint32_t w = 0; w < worker->count; w++)
        while (w != worker->index && atomic_load(&seen[w][round]) == 0)
            sched_yield();
}

uint64_t __real_rp_cpu_barrier_timed(const struct rp_cpu_worker *worker);
uint64_t __wrap_rp_cpu_barrier_timed(const struct rp_cpu_worker *worker);
uint64_t __wrap_rp_cpu_barrier_timed(const struct rp_cpu_worker *worker) {
    if (!atomic_load(&watching))
        return __real_rp_cpu_barrier_timed(worker);
    uint32_t round = rounds[worker->index]++ % CAPACITY;
    if (worker->index == 1)
        wait_for_others(came, worker, round);
    atomic_store(&came[worker->index][round], rp_clock_ns());
    uint64_t arrival_ns = __real_rp_cpu_barrier_timed(worker);
    atomic_store(&left[worker->index][round], rp_clock_ns());
    if (worker->index == 0)
        wait_for_others(left, worker, round);
    return arrival_ns;
}

static void watch_a_step(uint64_t step, uint32_t threads) {
    assert_int_equal(driver.backend->synchronize(driver.device), RP_OK);
    memset(rounds, 0, sizeof rounds);
    memset(came, 0, sizeof came);
    memset(left, 0, sizeof left);
    atomic_store(&readings, 0);
    atomic_store(&watching, true);
    (void)run_step(step, true);
    assert_int_equal(driver.backend->synchronize(driver.device), RP_OK);
    atomic_store(&watching, false);
    const struct rp_node_stamp *stamps = rp_driver_stamps_of(&driver, step);
    uint32_t count = driver.entry->launches, equal = 0;
    for (uint32_t w = 0; w < threads; w++)
        assert_int_equal(rounds[w], count);
    /* The last launch ends when the result is published, before its barrier. */
    for (uint32_t i = 0; i + 1 < count; i++) {
        for (uint32_t w = 0; w < threads; w++) {
            assert_true(stamps[i].end_ns > atomic_load(&came[w][i]));
            if (w > 0 || threads == 1)
                assert_true(stamps[i].end_ns < atomic_load(&left[w][i]));
        }
        assert_true(stamps[i + 1].begin_ns >= stamps[i].end_ns);
        equal += stamps[i + 1].begin_ns == stamps[i].end_ns;
    }
    assert_int_equal(equal, count - 2); /* the sample graph's first launch begins by itself */
}

/* No part of a launch is counted as the next one's, however many workers there are: it ends when
 * the last of them arrives at its barrier. Not when worker 0 does, and not when that wakes. */
static void test_a_launch_ends_when_the_last_worker_arrives(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads < WORKERS_MAX; threads++) {
        open_driver(false, threads, CAPACITY);
        for (uint64_t step = 1; step <= 3; step++)
            watch_a_step(step, threads);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_launch_ends_when_the_last_worker_arrives, teardown),
        cmocka_unit_test_teardown(
            test_every_launch_of_a_stamped_step_is_timed_and_nothing_else_changes, teardown),
        cmocka_unit_test_teardown(test_a_step_that_fails_stores_no_stamps, teardown),
    };
    return cmocka_run_group_tests_name("node_stamps", tests, NULL, NULL);
}
