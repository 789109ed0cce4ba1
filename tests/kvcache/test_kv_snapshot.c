/* Goal: snapshots are found by their hash once they are kept, the least recently used one goes
 * first, and none that a step reads is given away in that step. */
#include "kvcache/kv_snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct rp_kv_snapshots pool;

static int setup(void **state) {
    (void)state;
    return rp_kv_snapshots_init(&pool, 3, NULL);
}

static int teardown(void **state) {
    (void)state;
    rp_kv_snapshots_deinit(&pool);
    return 0;
}

static struct rp_hash128 hash_of(uint64_t value) { return (struct rp_hash128){value, value * 3}; }

/* Takes, names and keeps one. */
static uint32_t add(uint32_t position, uint64_t step, uint64_t hash) {
    uint32_t list = RP_NO_SNAPSHOT;
    uint32_t at = rp_kv_snapshots_take(&pool, position, step, &list);
    rp_kv_snapshots_name(&pool, list, position, 7, hash_of(hash));
    rp_kv_snapshots_keep(&pool, &list, position);
    assert_int_equal(list, RP_NO_SNAPSHOT);
    assert_null(rp_kv_snapshots_check(&pool, 0));
    return at;
}

static uint32_t find(uint64_t hash) { return rp_kv_snapshots_find(&pool, 7, hash_of(hash)); }

static void test_a_pending_snapshot_is_found_only_once_it_is_named_and_proven(void **state) {
    (void)state;
    uint32_t list = RP_NO_SNAPSHOT;
    uint32_t first = rp_kv_snapshots_take(&pool, 64, 1, &list);
    uint32_t second = rp_kv_snapshots_take(&pool, 128, 2, &list);
    assert_null(rp_kv_snapshots_check(&pool, 2));
    rp_kv_snapshots_keep(&pool, &list, 1000); /* no hash yet */
    rp_kv_snapshots_name(&pool, list, 64, 7, hash_of(5));
    rp_kv_snapshots_name(&pool, list, 128, 7, hash_of(6));
    assert_int_equal(find(5), RP_NO_SNAPSHOT);
    rp_kv_snapshots_keep(&pool, &list, 127);
    assert_int_equal(find(5), first);
    assert_int_equal(find(6), RP_NO_SNAPSHOT);
    assert_int_equal(list, second);
    assert_int_equal(rp_kv_snapshots_find(&pool, 8, hash_of(5)), RP_NO_SNAPSHOT); /* other salt */
    rp_kv_snapshots_drop(&pool, &list);
    assert_null(rp_kv_snapshots_check(&pool, 0));
    assert_int_equal(pool.kept, 1);
}

static void test_the_least_recently_used_is_evicted_and_none_that_this_step_uses(void **state) {
    (void)state;
    uint32_t list = RP_NO_SNAPSHOT;
    add(64, 1, 1);
    add(64, 1, 2);
    add(64, 1, 3);
    rp_kv_snapshots_use(&pool, find(1), 5);
    uint32_t fourth = add(64, 5, 4);
    assert_int_equal(find(2), RP_NO_SNAPSHOT);
    assert_int_equal(find(4), fourth);
    assert_int_equal(pool.evictions, 1);
    rp_kv_snapshots_use(&pool, find(3), 6);
    rp_kv_snapshots_use(&pool, find(1), 6);
    rp_kv_snapshots_use(&pool, find(4), 6);
    assert_int_equal(rp_kv_snapshots_take(&pool, 64, 6, &list), RP_NO_SNAPSHOT);
    assert_int_not_equal(rp_kv_snapshots_take(&pool, 64, 7, &list), RP_NO_SNAPSHOT);
    assert_int_equal(find(3), RP_NO_SNAPSHOT);
    rp_kv_snapshots_drop(&pool, &list);
    assert_int_equal(pool.hits, 4);
}

static void test_pending_ones_are_never_evicted(void **state) {
    (void)state;
    uint32_t list = RP_NO_SNAPSHOT;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_not_equal(rp_kv_snapshots_take(&pool, 64 * i, i, &list), RP_NO_SNAPSHOT);
    assert_int_equal(rp_kv_snapshots_take(&pool, 640, 9, &list), RP_NO_SNAPSHOT);
    assert_null(rp_kv_snapshots_check(&pool, 3));
    assert_non_null(rp_kv_snapshots_check(&pool, 2));
    rp_kv_snapshots_drop(&pool, &list);
}

static void test_the_same_state_twice_keeps_the_first_and_removal_frees(void **state) {
    (void)state;
    uint32_t first = add(64, 1, 1);
    add(64, 2, 1);
    assert_int_equal(pool.kept, 1);
    assert_int_equal(find(1), first);
    rp_kv_snapshots_remove(&pool, first);
    assert_int_equal(find(1), RP_NO_SNAPSHOT);
    assert_null(rp_kv_snapshots_check(&pool, 0));
}

static void test_an_empty_pool_takes_and_finds_nothing(void **state) {
    struct rp_kv_snapshots none;
    uint32_t list = RP_NO_SNAPSHOT;
    (void)state;
    assert_int_equal(rp_kv_snapshots_init(&none, 0, NULL), RP_OK);
    assert_int_equal(rp_kv_snapshots_take(&none, 64, 1, &list), RP_NO_SNAPSHOT);
    assert_int_equal(rp_kv_snapshots_find(&none, 0, hash_of(1)), RP_NO_SNAPSHOT);
    assert_null(rp_kv_snapshots_check(&none, 0));
    rp_kv_snapshots_deinit(&none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_a_pending_snapshot_is_found_only_once_it_is_named_and_proven, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_the_least_recently_used_is_evicted_and_none_that_this_step_uses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pending_ones_are_never_evicted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_same_state_twice_keeps_the_first_and_removal_frees,
                                        setup, teardown),
        cmocka_unit_test(test_an_empty_pool_takes_and_finds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
