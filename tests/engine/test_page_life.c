/* Goal: the histograms of pages say how long each was in use, unused, and unused before its
 * eviction. Method: a pool whose pages are walked through every change of state at given times. */
#include "engine/engine.h"
#include "engine/observe/page_life.h"
#include "kvcache/kv_prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SECOND ((uint64_t)1000000000u)

static struct rp_engine_metrics metrics;
static struct rp_page_life life;
static struct rp_kv_pool pool;
static uint64_t now_s;

static void on_note(void *ctx, uint32_t page, enum rp_kv_state from, enum rp_kv_state to) {
    rp_page_life_note(ctx, page, from, to, now_s * SECOND);
}

static int set_up(void **state) {
    (void)state;
    memset(&metrics, 0, sizeof metrics);
    now_s = 1000;
    assert_int_equal(rp_kv_pool_init(&pool, 4, 1, NULL), RP_OK);
    assert_true(rp_page_life_init(&life, 4, &metrics));
    pool.note = on_note;
    pool.note_ctx = &life;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_page_life_deinit(&life);
    rp_kv_pool_deinit(&pool);
    return 0;
}

static uint64_t count_of(const struct rp_histogram *histogram) {
    uint64_t count = 0;
    for (uint32_t i = 0; i <= histogram->bound_count; i++)
        count += histogram->buckets[i];
    return count;
}

static void assert_seen(const struct rp_histogram *histogram, uint64_t count, double sum) {
    assert_int_equal(count_of(histogram), count);
    double seen = rp_histogram_sum(histogram);
    assert_true(seen > sum - 1e-6 && seen < sum + 1e-6);
}

static void test_a_page_that_is_not_cached_has_a_lifetime_alone(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    now_s += 7;
    rp_kv_pool_release(&pool, page, 0);
    assert_seen(&metrics.page_lifetime_seconds, 1, 7);
    assert_seen(&metrics.page_reuse_gap_seconds, 0, 0);
    assert_seen(&metrics.page_eviction_idle_seconds, 0, 0);
}

static void test_a_page_that_waits_for_its_step_lives_until_the_step_is_over(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    now_s += 2;
    rp_kv_pool_release(&pool, page, 5); /* pending */
    now_s += 3;
    assert_seen(&metrics.page_lifetime_seconds, 0, 0);
    rp_kv_pool_retire(&pool, 5);
    assert_seen(&metrics.page_lifetime_seconds, 1, 5);
    assert_seen(&metrics.page_eviction_idle_seconds, 0, 0);
}

static void test_reuse_and_eviction_count_from_the_last_request_that_used_the_page(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_keep(&pool, page);
    rp_kv_pool_acquire(&pool, page); /* shared: no gap */
    now_s += 1;
    rp_kv_pool_release(&pool, page, 0);
    now_s += 1;
    rp_kv_pool_release(&pool, page, 9); /* the last one, at 2 s; pending */
    now_s += 1;
    rp_kv_pool_retire(&pool, 9); /* cached at 3 s */
    now_s += 4;
    rp_kv_pool_acquire(&pool, page); /* 7 s */
    assert_seen(&metrics.page_reuse_gap_seconds, 1, 5);
    now_s += 1;
    rp_kv_pool_release(&pool, page, 9); /* cached at 8 s */
    now_s += 30;
    rp_kv_pool_forget(&pool, page); /* evicted at 38 s */
    assert_seen(&metrics.page_reuse_gap_seconds, 1, 5);
    assert_seen(&metrics.page_eviction_idle_seconds, 1, 30);
    assert_seen(&metrics.page_lifetime_seconds, 1, 38);
}

static void test_a_page_found_while_it_waits_for_its_step_is_reused(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_keep(&pool, page);
    rp_kv_pool_release(&pool, page, 3);
    now_s += 2;
    rp_kv_pool_acquire(&pool, page);
    assert_seen(&metrics.page_reuse_gap_seconds, 1, 2);
    assert_seen(&metrics.page_lifetime_seconds, 0, 0);
}

static void test_the_second_life_of_a_page_begins_anew(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) { /* three pages, twice each */
        uint32_t page = rp_kv_pool_try_alloc(&pool);
        now_s += 2;
        rp_kv_pool_release(&pool, page, 0);
        now_s += 100;
    }
    assert_seen(&metrics.page_lifetime_seconds, 6, 12);
}

static void test_evictions_by_the_prefix_table_are_counted(void **state) {
    (void)state;
    struct rp_kv_prefix prefix;
    const int32_t tokens[4] = {1, 2, 3, 4};
    assert_int_equal(rp_kv_prefix_init(&prefix, &pool, 4, 77, NULL), RP_OK);
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 0);
    struct rp_hash128 hash = rp_kv_prefix_next(&prefix, root, tokens);
    assert_true(rp_kv_prefix_insert(&prefix, page, 0, root, hash, tokens));
    rp_kv_pool_release(&pool, page, 0);
    now_s += 4;
    assert_true(rp_kv_prefix_evict(&prefix));
    assert_false(rp_kv_prefix_evict(&prefix));
    assert_seen(&metrics.page_eviction_idle_seconds, 1, 4);
    rp_kv_prefix_deinit(&prefix);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_a_page_that_is_not_cached_has_a_lifetime_alone),
        CASE(test_a_page_that_waits_for_its_step_lives_until_the_step_is_over),
        CASE(test_reuse_and_eviction_count_from_the_last_request_that_used_the_page),
        CASE(test_a_page_found_while_it_waits_for_its_step_is_reused),
        CASE(test_the_second_life_of_a_page_begins_anew),
        CASE(test_evictions_by_the_prefix_table_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
