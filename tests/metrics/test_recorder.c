/* Goal: the recorder stays within its memory, each thread has its own ring, and a copy contains the
 * events of all rings since a given time, while they are being written. */
#include "base/memory.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_recorder *recorder;
static struct rp_recording recording;

static void make(uint32_t seconds, uint32_t mib) {
    struct rp_error err = {0};
    struct rp_recorder_config config = {.seconds = seconds, .mib = mib};
    assert_int_equal(rp_recorder_create(&config, &recorder, &err), RP_OK);
}

static int teardown(void **state) {
    (void)state;
    rp_alloc_fail_at(0);
    rp_recording_deinit(&recording);
    rp_recorder_destroy(recorder);
    recorder = NULL;
    return 0;
}

static void test_rings_take_no_more_than_was_allowed(void **state) {
    static const uint32_t cases[][2] = {{60, 64}, {60, 7}, {5, 64}, {3600, 33}, {1, 1}};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_recorder_stats stats;
        make(cases[i][0], cases[i][1]);
        assert_ptr_not_equal(rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE),
                             &rp_trace_nowhere);
        assert_ptr_not_equal(rp_recorder_add(recorder, "loop", RP_RECORDER_LOOP),
                             &rp_trace_nowhere);
        rp_recorder_stats(recorder, &stats);
        uint64_t most = RP_MIN((uint64_t)cases[i][0] << 20, (uint64_t)cases[i][1] << 20);
        assert_true(stats.bytes <= most && stats.bytes > most / 4);
        rp_recorder_destroy(recorder);
        recorder = NULL;
    }
}

static void test_turned_off_it_takes_nothing_and_allocates_no_ring(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        make(i ? 60 : 0, i ? 0 : 64);
        struct rp_trace_ring *ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
        assert_ptr_equal(ring, &rp_trace_nowhere);
        assert_ptr_equal(rp_recorder_worker_ring(recorder), &rp_trace_nowhere);
        rp_trace_put(ring, RP_TRACE_TOKEN, 1, 2, 3, 4, 5);
        assert_true(rp_recorder_copy(recorder, 0, &recording));
        assert_int_equal(recording.event_count, 0);
        rp_recorder_destroy(recorder);
        recorder = NULL;
    }
    assert_ptr_equal(rp_recorder_worker_ring(NULL), &rp_trace_nowhere);
}

static void test_a_copy_holds_every_ring_since_a_moment(void **state) {
    (void)state;
    make(4, 4);
    struct rp_trace_ring *engine = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    struct rp_trace_ring *loop = rp_recorder_add(recorder, "loop", RP_RECORDER_LOOP);
    for (uint64_t i = 0; i < 100; i++) {
        rp_trace_put(engine, RP_TRACE_TOKEN, 1000 + i, (uint32_t)i, 0, 7, 8);
        if (i % 2)
            rp_trace_put(loop, RP_TRACE_WRITTEN, 1000 + i, (uint32_t)i, 0, 7, 8);
    }
    assert_true(rp_recorder_copy(recorder, 1050, &recording));
    assert_int_equal(recording.ring_count, 2);
    assert_int_equal(recording.event_count, 75);
    assert_string_equal(recording.rings[0].thread, "engine");
    assert_int_equal(recording.rings[0].count, 50);
    assert_true(recording.rings[0].whole);
    assert_string_equal(recording.rings[1].thread, "loop");
    assert_int_equal(recording.rings[1].count, 25);
    assert_int_equal(recording.events[recording.rings[1].first].ns, 1051);
}

static void test_a_late_event_does_not_hide_earlier_ones(void **state) {
    (void)state;
    make(4, 4);
    struct rp_trace_ring *loop = rp_recorder_add(recorder, "loop", RP_RECORDER_LOOP);
    rp_trace_put(loop, RP_TRACE_WRITTEN, 5000, 1, 0, 1, 0);
    rp_trace_put(loop, RP_TRACE_RECEIVED, 10, 2, 0, 2, 0); /* its body took long to arrive */
    rp_trace_put(loop, RP_TRACE_QUEUED, 5001, 3, 0, 2, 0);
    assert_true(rp_recorder_copy(recorder, 4000, &recording));
    assert_int_equal(recording.event_count, 2);
    assert_int_equal(recording.events[0].a, 1);
    assert_int_equal(recording.events[1].a, 3);
}

static void test_out_of_memory_is_reported(void **state) {
    struct rp_error err = {0};
    struct rp_recorder_config config = {.seconds = 1, .mib = 1};
    (void)state;
    for (uint64_t n = 1; n <= 1 + RP_RECORDER_WORKERS; n++) {
        rp_alloc_fail_at(n);
        assert_int_equal(rp_recorder_create(&config, &recorder, &err), RP_STATUS_NO_MEMORY);
        assert_null(recorder);
    }
    rp_alloc_fail_at(0);
    make(1, 1);
    rp_trace_put(rp_recorder_worker_ring(recorder), RP_TRACE_WORK, 1, 0, 0, 0, 0);
    rp_alloc_fail_at(1);
    assert_false(rp_recorder_copy(recorder, 0, &recording));
    assert_null(recording.events);
}

static void *take_ring(void *arg) {
    struct rp_trace_ring *ring = rp_recorder_worker_ring(recorder);
    assert_ptr_equal(ring, rp_recorder_worker_ring(recorder));
    for (uint32_t i = 0; i < 20000; i++)
        rp_trace_put(ring, RP_TRACE_WORK, rp_tick_ns(), i, 0, (uint64_t)(uintptr_t)arg, 0);
    *(struct rp_trace_ring **)arg = ring;
    return NULL;
}

static void test_threads_of_a_pool_get_a_ring_each_while_others_copy(void **state) {
    pthread_t threads[RP_RECORDER_WORKERS + 1];
    struct rp_trace_ring *rings[RP_RECORDER_WORKERS + 1];
    (void)state;
    make(16, 16);
    for (size_t i = 0; i < RP_ARRAY_COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_ring, &rings[i]), 0);
    for (int i = 0; i < 20; i++) {
        assert_true(rp_recorder_copy(recorder, 0, &recording));
        for (uint32_t r = 0; r < recording.ring_count; r++) {
            const struct rp_recording_ring *ring = &recording.rings[r];
            for (uint64_t e = ring->first + 1; e < ring->first + ring->count; e++)
                if (recording.events[e].a != recording.events[e - 1].a + 1 ||
                    recording.events[e].id != recording.events[e - 1].id)
                    fail_msg("ring %u has events of two threads, or a hole", r);
        }
        rp_recording_deinit(&recording);
    }
    int nowhere = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(threads); i++) {
        pthread_join(threads[i], NULL);
        nowhere += rings[i] == &rp_trace_nowhere;
        for (size_t j = 0; j < i; j++)
            assert_true(rings[i] != rings[j]);
    }
    assert_int_equal(nowhere, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_rings_take_no_more_than_was_allowed, teardown),
        cmocka_unit_test_teardown(test_turned_off_it_takes_nothing_and_allocates_no_ring, teardown),
        cmocka_unit_test_teardown(test_a_copy_holds_every_ring_since_a_moment, teardown),
        cmocka_unit_test_teardown(test_a_late_event_does_not_hide_earlier_ones, teardown),
        cmocka_unit_test_teardown(test_out_of_memory_is_reported, teardown),
        cmocka_unit_test_teardown(test_threads_of_a_pool_get_a_ring_each_while_others_copy,
                                  teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
