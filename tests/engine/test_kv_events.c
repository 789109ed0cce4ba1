/* Goal: changes of the prefix cache reach their consumer in order, and a full ring loses them
 * visibly, without waiting. */
#include "engine/observe/kv_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#define PAGE_TOKENS 5u

static struct rp_kv_events events;

static void enter(uint64_t hash, uint64_t previous, int32_t token) {
    const int32_t tokens[PAGE_TOKENS] = {token, token + 1, token + 2, token + 3, token + 4};
    rp_kv_events_note(&events, &(struct rp_kv_prefix_change){.hash = {hash, 99},
                                                             .previous = {previous, 99},
                                                             .tokens = tokens,
                                                             .is_first = previous == 0});
}

static void leave(uint64_t hash) {
    rp_kv_events_note(&events, &(struct rp_kv_prefix_change){.hash = {hash, 99}});
}

static struct rp_kv_event *take(void) {
    static _Alignas(8) unsigned char storage[sizeof(struct rp_kv_event) + 64];
    struct rp_kv_event *event = (struct rp_kv_event *)storage;
    return rp_kv_events_take(&events, event) ? event : NULL;
}

static void test_changes_arrive_in_order_with_their_tokens(void **state) {
    (void)state;
    assert_true(rp_kv_events_init(&events, 8, PAGE_TOKENS));
    assert_null(take());
    enter(10, 0, 100);
    enter(11, 10, 200);
    leave(10);
    struct rp_kv_event *event = take();
    assert_true(event->is_stored && !event->has_parent && !event->follows_gap);
    assert_int_equal(event->hash, 10);
    assert_int_equal(event->tokens[PAGE_TOKENS - 1], 104);
    event = take();
    assert_true(event->is_stored && event->has_parent);
    assert_int_equal(event->parent, 10);
    event = take();
    assert_true(!event->is_stored && !event->has_parent);
    assert_int_equal(event->hash, 10);
    assert_null(take());
    rp_kv_events_deinit(&events);
}

static void test_a_full_ring_drops_counts_and_marks_the_next_change(void **state) {
    (void)state;
    assert_true(rp_kv_events_init(&events, 4, PAGE_TOKENS));
    for (uint64_t i = 1; i <= 7; i++)
        enter(i, 0, 0);
    assert_int_equal(rp_counter_read(&events.dropped), 3);
    for (uint64_t i = 1; i <= 4; i++)
        assert_false(take()->follows_gap);
    assert_null(take());
    leave(8);
    leave(9);
    assert_true(take()->follows_gap);
    assert_false(take()->follows_gap);
    rp_kv_events_deinit(&events);
}

static void test_init_without_memory_leaves_nothing_behind(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        rp_alloc_fail_at(n);
        assert_false(rp_kv_events_init(&events, 4, PAGE_TOKENS));
        rp_alloc_fail_at(0);
        rp_kv_events_deinit(&events);
    }
}

#define CHANGES 20000u

static void *change_many(void *arg) {
    for (uint64_t i = 1; i <= CHANGES; i++)
        i % 3 ? enter(i, i - 1, (int32_t)i) : leave(i);
    return arg;
}

static void test_a_consumer_on_another_thread_sees_every_change_or_a_gap(void **state) {
    (void)state;
    pthread_t thread;
    uint64_t last = 0, taken = 0, gaps = 0;
    assert_true(rp_kv_events_init(&events, 64, PAGE_TOKENS));
    assert_int_equal(pthread_create(&thread, NULL, change_many, NULL), 0);
    while (taken + rp_counter_read(&events.dropped) < CHANGES) {
        struct rp_kv_event *event = take();
        if (!event)
            continue;
        assert_true(event->follows_gap ? event->hash > last + 1 : event->hash == last + 1);
        if (event->is_stored)
            assert_int_equal(event->tokens[PAGE_TOKENS - 1], event->hash + PAGE_TOKENS - 1);
        last = event->hash;
        gaps += event->follows_gap;
        taken++;
    }
    pthread_join(thread, NULL);
    assert_true(gaps <= rp_counter_read(&events.dropped));
    assert_null(take());
    rp_kv_events_deinit(&events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes_arrive_in_order_with_their_tokens),
        cmocka_unit_test(test_a_full_ring_drops_counts_and_marks_the_next_change),
        cmocka_unit_test(test_init_without_memory_leaves_nothing_behind),
        cmocka_unit_test(test_a_consumer_on_another_thread_sees_every_change_or_a_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
