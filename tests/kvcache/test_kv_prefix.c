/* Goal: a page is found by its tokens and all tokens before, and by nothing else. */
#include "kvcache/kv_prefix.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGES       9u
#define PAGE_TOKENS 4u

static struct rp_kv_pool pool;
static struct rp_kv_prefix prefix;

static const int32_t one[PAGE_TOKENS] = {1, 2, 3, 4}, two[PAGE_TOKENS] = {5, 6, 7, 8};

static int setup(void **state) {
    (void)state;
    return rp_kv_pool_init(&pool, PAGES, 1, NULL) ||
           rp_kv_prefix_init(&prefix, &pool, PAGE_TOKENS, 0x1234, NULL);
}

static int teardown(void **state) {
    (void)state;
    const char *broken = rp_kv_prefix_check(&prefix);
    rp_kv_prefix_deinit(&prefix);
    rp_kv_pool_deinit(&pool);
    return broken != NULL;
}

static uint32_t find(uint64_t salt, struct rp_hash128 before, const int32_t *tokens) {
    return rp_kv_prefix_find(&prefix, salt, rp_kv_prefix_next(&prefix, before, tokens), tokens);
}

static uint32_t insert(uint64_t salt, struct rp_hash128 before, const int32_t *tokens) {
    uint32_t page = rp_kv_pool_try_alloc(&pool);
    assert_int_not_equal(page, RP_KV_NO_PAGE);
    assert_true(rp_kv_prefix_insert(&prefix, page, salt, before,
                                    rp_kv_prefix_next(&prefix, before, tokens), tokens));
    return page;
}

static void test_a_page_is_found_after_the_same_beginning_only(void **state) {
    (void)state;
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 0);
    struct rp_hash128 after_one = rp_kv_prefix_next(&prefix, root, one);
    uint32_t first = insert(0, root, one), second = insert(0, after_one, two);
    assert_int_equal(find(0, root, one), first);
    assert_int_equal(find(0, after_one, two), second);
    assert_int_equal(find(0, root, two), RP_KV_NO_PAGE);
    assert_int_equal(find(0, after_one, one), RP_KV_NO_PAGE);
}

static void test_salts_do_not_share(void **state) {
    (void)state;
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 7), other = rp_kv_prefix_root(&prefix, 8);
    uint32_t page = insert(7, root, one);
    assert_false(rp_hash128_equal(root, other));
    assert_int_equal(find(7, root, one), page);
    assert_int_equal(find(8, other, one), RP_KV_NO_PAGE);
    /* Even if the hashes were equal. */
    assert_int_equal(find(8, root, one), RP_KV_NO_PAGE);
}

static void test_an_equal_hash_of_other_tokens_is_no_hit_and_no_entry(void **state) {
    (void)state;
    struct rp_hash128 before = {1, 2}, hash = {3, 4};
    uint32_t page = rp_kv_pool_try_alloc(&pool), other = rp_kv_pool_try_alloc(&pool);
    assert_true(rp_kv_prefix_insert(&prefix, page, 0, before, hash, one));
    assert_int_equal(rp_kv_prefix_find(&prefix, 0, hash, two), RP_KV_NO_PAGE);
    assert_false(rp_kv_prefix_insert(&prefix, other, 0, before, hash, two));
    assert_int_equal(rp_kv_prefix_find(&prefix, 0, hash, one), page);
}

static void test_content_computed_twice_keeps_the_first_page(void **state) {
    (void)state;
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 0);
    uint32_t first = insert(0, root, one), second = rp_kv_pool_try_alloc(&pool);
    assert_false(
        rp_kv_prefix_insert(&prefix, second, 0, root, rp_kv_prefix_next(&prefix, root, one), one));
    assert_int_equal(find(0, root, one), first);
    assert_false(rp_kv_prefix_contains(&prefix, second));
    rp_kv_pool_release(&pool, second, 0);
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_CACHED), 0);
}

static void test_entries_that_share_a_bucket_live_and_go_apart(void **state) {
    (void)state;
    uint32_t pages[4];
    for (uint64_t i = 0; i < 4; i++) {
        pages[i] = rp_kv_pool_try_alloc(&pool);
        struct rp_hash128 before = {1, 2}, hash = {5, 100 + i};
        assert_true(rp_kv_prefix_insert(&prefix, pages[i], 0, before, hash, one));
    }
    rp_kv_prefix_remove(&prefix, pages[1]);
    rp_kv_prefix_remove(&prefix, pages[3]);
    rp_kv_prefix_remove(&prefix, pages[3]);
    assert_null(rp_kv_prefix_check(&prefix));
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rp_kv_prefix_find(&prefix, 0, (struct rp_hash128){5, 100 + i}, one),
                         i % 2 ? RP_KV_NO_PAGE : pages[i]);
}

static void test_eviction_takes_the_least_recently_used_page_that_nobody_holds(void **state) {
    (void)state;
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 0);
    struct rp_hash128 after_one = rp_kv_prefix_next(&prefix, root, one);
    uint32_t first = insert(0, root, one), second = insert(0, after_one, two);
    assert_false(rp_kv_prefix_evict(&prefix));
    /* Like a sequence: last page first. */
    rp_kv_pool_release(&pool, second, 0);
    rp_kv_pool_release(&pool, first, 0);
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_CACHED), 2);
    assert_true(rp_kv_prefix_evict(&prefix));
    assert_int_equal(find(0, after_one, two), RP_KV_NO_PAGE);
    assert_int_equal(find(0, root, one), first);
    assert_true(rp_kv_prefix_evict(&prefix));
    assert_false(rp_kv_prefix_evict(&prefix));
    assert_int_equal(rp_kv_pool_count(&pool, RP_KV_FREE), PAGES - 1);
}

struct heard {
    struct rp_hash128 hash, previous;
    int32_t tokens[PAGE_TOKENS];
    bool entered, is_first;
};
static struct heard heard[8];
static uint32_t heard_count;

static void hear(void *ctx, const struct rp_kv_prefix_change *change) {
    struct heard *one_more = &heard[heard_count++];
    assert_ptr_equal(ctx, heard);
    *one_more = (struct heard){
        change->hash, change->previous, {0}, change->tokens != NULL, change->is_first};
    if (change->tokens)
        memcpy(one_more->tokens, change->tokens, sizeof one_more->tokens);
}

static void test_every_change_is_noted_once_with_what_came_before(void **state) {
    (void)state;
    struct rp_hash128 root = rp_kv_prefix_root(&prefix, 7);
    struct rp_hash128 after_one = rp_kv_prefix_next(&prefix, root, one);
    heard_count = 0;
    prefix.note = hear;
    prefix.note_ctx = heard;
    uint32_t first = insert(7, root, one), second = insert(7, after_one, two);
    uint32_t twice = rp_kv_pool_try_alloc(&pool);
    assert_false(rp_kv_prefix_insert(&prefix, twice, 7, root, after_one, one));
    rp_kv_prefix_remove(&prefix, twice);
    assert_int_equal(heard_count, 2);
    assert_true(heard[0].entered && heard[0].is_first && heard[1].entered && !heard[1].is_first);
    assert_true(rp_hash128_equal(heard[0].hash, after_one));
    assert_true(rp_hash128_equal(heard[1].previous, after_one));
    assert_memory_equal(heard[1].tokens, two, sizeof two);
    rp_kv_pool_release(&pool, second, 0);
    rp_kv_pool_release(&pool, first, 0);
    assert_true(rp_kv_prefix_evict(&prefix));
    rp_kv_prefix_remove(&prefix, first);
    rp_kv_prefix_remove(&prefix, first);
    assert_int_equal(heard_count, 4);
    assert_true(!heard[2].entered && rp_hash128_equal(heard[2].hash, heard[1].hash));
    assert_true(!heard[3].entered && rp_hash128_equal(heard[3].hash, after_one));
}

static void test_another_key_gives_other_hashes(void **state) {
    (void)state;
    struct rp_kv_prefix other;
    assert_int_equal(rp_kv_prefix_init(&other, &pool, PAGE_TOKENS, 0x9999, NULL), RP_OK);
    assert_false(rp_hash128_equal(rp_kv_prefix_root(&prefix, 0), rp_kv_prefix_root(&other, 0)));
    rp_kv_prefix_deinit(&other);
}

static void test_init_without_memory_leaves_nothing_behind(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        struct rp_kv_prefix other;
        struct rp_error err;
        rp_alloc_fail_at(n);
        assert_int_equal(rp_kv_prefix_init(&other, &pool, PAGE_TOKENS, 1, &err),
                         RP_STATUS_NO_MEMORY);
        rp_alloc_fail_at(0);
        rp_kv_prefix_deinit(&other);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_page_is_found_after_the_same_beginning_only),
        TEST(test_salts_do_not_share),
        TEST(test_an_equal_hash_of_other_tokens_is_no_hit_and_no_entry),
        TEST(test_content_computed_twice_keeps_the_first_page),
        TEST(test_entries_that_share_a_bucket_live_and_go_apart),
        TEST(test_eviction_takes_the_least_recently_used_page_that_nobody_holds),
        TEST(test_every_change_is_noted_once_with_what_came_before),
        TEST(test_another_key_gives_other_hashes),
        TEST(test_init_without_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
