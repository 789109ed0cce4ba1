/* Goal: a page is never allocated while it may still be in use, and none is ever lost. */
#include "kvcache/kv_pool.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGES 5u /* page 0 is reserved */

static struct rp_kv_pool pool;

static int setup(void **state) {
    (void)state;
    return rp_kv_pool_init(&pool, PAGES, 1, NULL);
}

static int teardown(void **state) {
    (void)state;
    const char *broken = rp_kv_pool_check(&pool, NULL);
    rp_kv_pool_deinit(&pool);
    return broken != NULL;
}

static void assert_counts(uint32_t free_count, uint32_t held, uint32_t cached, uint32_t pending) {
    assert_null(rp_kv_pool_check(&pool, NULL));
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_FREE), free_count);
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_HELD), held);
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_CACHED), cached);
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_PENDING), pending);
}

static void test_every_page_but_the_reserved_one_is_given_out_once(void **state) {
    (void)state;
    bool seen[PAGES] = {true};
    for (uint32_t i = 1; i < PAGES; i++) {
        uint32_t page = rp_kv_pool_try_alloc(&pool);
        assert_in_range(page, 1, PAGES - 1);
        assert_false(seen[page]);
        seen[page] = true;
    }
    assert_int_equal(rp_kv_pool_try_alloc(&pool), RP_KV_NO_PAGE);
    assert_counts(0, 4, 0, 0);
}

static void test_release_of_a_shared_page_keeps_it(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_acquire(&pool, page);
    rp_kv_pool_release(&pool, page, 0);
    assert_counts(3, 1, 0, 0);
    rp_kv_pool_release(&pool, page, 0);
    assert_counts(4, 0, 0, 0);
}

static void test_a_page_waits_until_its_fence_is_retired(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_release(&pool, page, 2);
    assert_counts(3, 0, 0, 1);
    rp_kv_pool_retire(&pool, 1);
    assert_counts(3, 0, 0, 1);
    rp_kv_pool_retire(&pool, 2);
    assert_counts(4, 0, 0, 0);
}

static void test_the_latest_fence_counts_whoever_lets_go_last(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_acquire(&pool, page);
    rp_kv_pool_release(&pool, page, 7);
    rp_kv_pool_release(&pool, page, 6);
    rp_kv_pool_retire(&pool, 6);
    assert_counts(3, 0, 0, 1);
    rp_kv_pool_retire(&pool, 7);
    assert_counts(4, 0, 0, 0);
}

static void test_a_fence_does_not_outlive_its_page(void **state) {
    (void)state;
    for (uint32_t i = 1; i < PAGES; i++)
        assert_int_not_equal(rp_kv_pool_try_alloc(&pool), RP_KV_NO_PAGE);
    rp_kv_pool_release(&pool, 1, 5);
    rp_kv_pool_retire(&pool, 5);
    assert_int_equal(rp_kv_pool_try_alloc(&pool), 1);
    rp_kv_pool_release(&pool, 1, 0);
    assert_counts(1, 3, 0, 0);
}

static void test_a_kept_page_is_cached_and_can_be_taken_back(void **state) {
    (void)state;
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    rp_kv_pool_keep(&pool, page);
    rp_kv_pool_release(&pool, page, 1);
    assert_counts(3, 0, 0, 1);
    rp_kv_pool_acquire(&pool, page);
    assert_counts(3, 1, 0, 0);
    rp_kv_pool_release(&pool, page, 1);
    rp_kv_pool_retire(&pool, 1);
    assert_counts(3, 0, 1, 0);
    assert_int_equal(rp_kv_pool_available(&pool), 4);
    rp_kv_pool_acquire(&pool, page);
    assert_counts(3, 1, 0, 0);
    rp_kv_pool_forget(&pool, page);
    rp_kv_pool_release(&pool, page, 0);
    assert_counts(4, 0, 0, 0);
}

static void test_cached_pages_are_in_the_order_of_their_last_use(void **state) {
    (void)state;
    uint32_t pages[3];
    for (uint32_t i = 0; i < 3; i++) {
        pages[i] = rp_kv_pool_try_alloc(&pool);
        rp_kv_pool_keep(&pool, pages[i]);
    }
    for (uint32_t i = 0; i < 3; i++)
        rp_kv_pool_release(&pool, pages[i], 0);
    rp_kv_pool_acquire(&pool, pages[0]);
    rp_kv_pool_release(&pool, pages[0], 0);
    const uint32_t order[] = {pages[1], pages[2], pages[0]};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rp_kv_pool_oldest_cached(&pool), order[i]);
        rp_kv_pool_forget(&pool, order[i]);
    }
    assert_int_equal(rp_kv_pool_oldest_cached(&pool), RP_KV_NO_PAGE);
    assert_counts(4, 0, 0, 0);
}

static void test_the_check_sees_a_lost_reference(void **state) {
    (void)state;
    uint32_t refs[PAGES] = {0};
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    refs[page] = 1;
    assert_null(rp_kv_pool_check(&pool, refs));
    refs[page] = 2;
    assert_non_null(rp_kv_pool_check(&pool, refs));
}

static void test_init_says_what_is_wrong_and_deinit_is_always_legal(void **state) {
    (void)state;
    struct rp_kv_pool other;
    struct rp_error err;
    assert_int_equal(rp_kv_pool_init(&other, 2, 3, &err), RP_STATUS_INVALID);
    rp_kv_pool_deinit(&other);
    rp_alloc_fail_at(1);
    assert_int_equal(rp_kv_pool_init(&other, 4, 1, &err), RP_STATUS_NO_MEMORY);
    rp_alloc_fail_at(0);
    rp_kv_pool_deinit(&other);
    assert_int_equal(rp_kv_pool_init(&other, 0, 0, &err), RP_OK);
    assert_int_equal(rp_kv_pool_try_alloc(&other), RP_KV_NO_PAGE);
    rp_kv_pool_deinit(&other);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_page_but_the_reserved_one_is_given_out_once),
        TEST(test_release_of_a_shared_page_keeps_it),
        TEST(test_a_page_waits_until_its_fence_is_retired),
        TEST(test_the_latest_fence_counts_whoever_lets_go_last),
        TEST(test_a_fence_does_not_outlive_its_page),
        TEST(test_a_kept_page_is_cached_and_can_be_taken_back),
        TEST(test_cached_pages_are_in_the_order_of_their_last_use),
        TEST(test_the_check_sees_a_lost_reference),
        TEST(test_init_says_what_is_wrong_and_deinit_is_always_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
