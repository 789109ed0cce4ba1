/* Goal: a ring keeps the newest events, reports when events were lost, and a concurrent reader
 * never sees a corrupt event. */
#include "metrics/trace_ring.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct rp_trace_ring ring;
static struct rp_trace_event out[4096];

static int teardown(void **state) {
    (void)state;
    rp_trace_ring_deinit(&ring);
    return 0;
}

static void put(uint64_t i) {
    rp_trace_put(&ring, RP_TRACE_TOKEN, 1000 + i, (uint32_t)i, (uint16_t)i, i * 3, i * 5);
}

static void test_a_copy_has_the_newest_events_oldest_first(void **state) {
    bool whole = false;
    (void)state;
    assert_true(rp_trace_ring_init(&ring, "engine", 6));
    assert_int_equal(ring.mask, 7);
    assert_int_equal(rp_trace_ring_copy(&ring, 0, out, 4096, &whole), 0);
    assert_true(whole);
    for (uint64_t i = 0; i < 5; i++)
        put(i);
    assert_int_equal(rp_trace_ring_copy(&ring, 0, out, 4096, &whole), 5);
    assert_true(whole);
    assert_int_equal(out[0].a, 0);
    assert_int_equal(out[4].id, 12);
    assert_int_equal(out[4].v, 20);
    assert_int_equal(out[4].b, 4);
    assert_int_equal(rp_trace_ring_copy(&ring, 0, out, 2, &whole), 2);
    assert_false(whole);
    assert_int_equal(out[0].a, 3);
    assert_int_equal(rp_trace_ring_copy(&ring, 1002, out, 4096, &whole), 3);
    assert_true(whole);
    assert_int_equal(out[0].ns, 1002);
}

static void test_what_was_overwritten_is_reported_as_missing(void **state) {
    bool whole = true;
    (void)state;
    assert_true(rp_trace_ring_init(&ring, "engine", 8));
    for (uint64_t i = 0; i < 20; i++)
        put(i);
    /* The eighth newest may be being overwritten. */
    assert_int_equal(rp_trace_ring_copy(&ring, 0, out, 4096, &whole), 7);
    assert_false(whole);
    assert_int_equal(out[0].a, 13);
    assert_int_equal(rp_trace_ring_copy(&ring, 1015, out, 4096, &whole), 5);
    assert_true(whole);
}

static void test_a_span_belongs_to_the_time_at_which_it_ended(void **state) {
    (void)state;
    assert_true(rp_trace_ring_init(&ring, "engine", 8));
    rp_trace_put(&ring, RP_TRACE_PLAN, 100, 0, 0, 1, 50);
    assert_int_equal(rp_trace_ring_copy(&ring, 150, out, 8, NULL), 1);
    assert_int_equal(rp_trace_ring_copy(&ring, 151, out, 8, NULL), 0);
}

static void test_a_ring_without_memory_stores_nothing(void **state) {
    (void)state;
    put(1);
    assert_int_equal(rp_trace_ring_copy(&ring, 0, out, 8, NULL), 0);
}

static void *write_many(void *arg) {
    for (uint64_t i = 0; i < *(uint64_t *)arg; i++)
        put(i);
    return NULL;
}

static void test_a_reader_that_races_sees_whole_events_in_order(void **state) {
    pthread_t writer;
    uint64_t total = 400000, seen = 0;
    (void)state;
    assert_true(rp_trace_ring_init(&ring, "engine", 256));
    assert_int_equal(pthread_create(&writer, NULL, write_many, &total), 0);
    for (bool last = false; !last;) {
        last = atomic_load(&ring.head) == total;
        uint64_t count = rp_trace_ring_copy(&ring, 0, out, 4096, NULL);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t n = out[i].ns - 1000;
            if (out[i].a != (uint32_t)n || out[i].b != (uint16_t)n || out[i].id != n * 3 ||
                out[i].v != n * 5 || (i > 0 && n != out[i - 1].ns - 1000 + 1))
                fail_msg("event %llu of a copy is torn", (unsigned long long)i);
        }
        seen += count;
    }
    pthread_join(writer, NULL);
    assert_true(seen > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_copy_has_the_newest_events_oldest_first, teardown),
        cmocka_unit_test_teardown(test_what_was_overwritten_is_reported_as_missing, teardown),
        cmocka_unit_test_teardown(test_a_span_belongs_to_the_time_at_which_it_ended, teardown),
        cmocka_unit_test_teardown(test_a_ring_without_memory_stores_nothing, teardown),
        cmocka_unit_test_teardown(test_a_reader_that_races_sees_whole_events_in_order, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
