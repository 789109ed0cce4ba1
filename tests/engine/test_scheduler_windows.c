/* Goal: groups of layers with a window hold few pages, however long the sequence, and nobody finds
 * a page that was given back before it was proven clean. Method: small hand-made cases
 * (scheduler_fixture.h): pages of 4 tokens, chunks of at most 16. */
#include "engine/scheduler_internal.h"
#include "tests/engine/scheduler_fixture.h"

#define WINDOW 8u

static const uint32_t chunks[] = {16};

/* One group without a window when `full`, and `windowed` groups with one. */
static void create_groups(uint32_t full, uint32_t windowed) {
    struct rp_kv_groups *groups = &fixture.config.groups;
    fixture.config.token_buckets = chunks;
    fixture.config.token_bucket_count = 1;
    fixture.config.max_model_len = 256;
    fixture.config.page_edit_capacity = 512;
    groups->count = full + windowed;
    for (uint32_t g = full; g < groups->count; g++)
        groups->window[g] = WINDOW;
    create();
}

/* Plans and commits `count` steps; the most pages that were held after any of them. */
static uint32_t most_held(uint32_t count) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(plan());
        most = RP_MAX(most, stats().pages_held);
        commit();
        drain();
    }
    return most;
}

static void test_a_long_answer_holds_no_more_than_its_window(void **state) {
    (void)state;
    create_groups(0, 2);
    submit(0, 5, 100);
    /* 8 tokens lie in three pages at most, and the two before them are not yet known. */
    assert_true(most_held(100) <= 2 * 4);
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_a_long_prompt_takes_pages_chunk_by_chunk(void **state) {
    (void)state;
    create_groups(0, 1);
    submit(0, 200, 1);
    /* 16 tokens and the window before them. */
    assert_true(most_held(13) <= 7);
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_groups_without_a_window_keep_all_pages(void **state) {
    (void)state;
    create_groups(1, 1);
    struct rp_request *request = submit(0, 100, 4);
    most_held(7);
    uint32_t slot = 0, pages;
    while (rp_scheduler_request_of(fixture.scheduler, slot, &pages) != request)
        slot++;
    const struct rp_sequence *sequence = &fixture.scheduler->sequences[slot];
    assert_int_equal(sequence->held[0].first, 0);
    assert_int_equal(sequence->held[0].end, 26); /* with the first token of the answer */
    assert_true(sequence->held[1].first > 0);
    assert_int_equal(pages, 26 + sequence->held[1].end - sequence->held[1].first);
    run_to_idle();
}

/* A page table entry of group g lies behind those of the groups before. */
static void test_edits_name_the_table_of_their_group(void **state) {
    (void)state;
    create_groups(1, 2);
    uint32_t per_slot = rp_scheduler_pages_per_slot(&fixture.config), count[3] = {0};
    assert_int_equal(per_slot, 64);
    submit(0, 12, 1);
    assert_true(plan());
    for (uint32_t i = 0; i < fixture.step.page_count; i++) {
        assert_int_equal(fixture.step.pages[i].index % per_slot,
                         count[fixture.step.pages[i].index / per_slot]);
        count[fixture.step.pages[i].index / per_slot]++;
    }
    for (uint32_t g = 0; g < 3; g++)
        assert_int_equal(count[g], 3);
    commit();
}

static void test_a_pool_too_small_for_the_whole_takes_what_windows_need(void **state) {
    (void)state;
    fixture.config.page_count = 1 + 9; /* 36 tokens */
    create_groups(0, 1);
    assert_true(rp_scheduler_fits(&fixture.config, 150, 100));
    submit(0, 150, 100);
    run_to_idle();
    assert_int_equal(stats().preemptions, 0);
    fixture.config.groups.window[0] = 0;
    assert_false(rp_scheduler_fits(&fixture.config, 150, 100));
}

static void test_passed_pages_are_found_only_after_their_proof(void **state) {
    (void)state;
    create_groups(1, 1);
    submit(0, 100, 1); /* seven chunks: the last one gives the proof */
    most_held(6);
    assert_true(stats().pages_cached > 0);
    struct rp_request *early = submit(1, 40, 1);
    most_held(1);
    assert_int_equal(early->cached_tokens, 0);
    run_to_idle();
    struct rp_request *late = submit(2, 41, 1);
    run_to_idle();
    assert_int_equal(late->cached_tokens, 40);
}

static void test_a_cancelled_prompt_leaves_nothing_in_the_cache(void **state) {
    (void)state;
    create_groups(1, 2);
    struct rp_request *request = submit(0, 100, 1);
    most_held(4);
    assert_true(stats().pages_cached > 0);
    atomic_store(&request->cancelled, true);
    assert_false(plan());
    assert_int_equal(stats().pages_cached, 0);
    assert_int_equal(stats().pages_free, stats().pages_total);
    drain();
    /* They may hold NaN: whoever gets them next has them zeroed. */
    submit(1, 200, 1);
    uint32_t zeroed = 0;
    while (!rp_scheduler_is_idle(fixture.scheduler)) {
        assert_true(plan());
        zeroed += fixture.step.zero_page_count;
        commit();
        drain();
    }
    assert_true(zeroed > 0);
}

static void test_nan_removes_the_pages_that_the_window_has_passed(void **state) {
    (void)state;
    create_groups(0, 1);
    submit(0, 40, 1);
    run_to_idle(); /* its pages 0 to 9 are in the cache */
    struct rp_request *failing = submit(1, 100, 1);
    most_held(3); /* finds pages 8 and 9, and passes them */
    assert_int_equal(failing->cached_tokens, 40);
    assert_true(plan());
    fixture.results[0].flags = RP_SCHED_RESULT_NAN;
    commit();
    drain();
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
    struct rp_request *next = submit(2, 41, 1);
    run_to_idle();
    assert_int_equal(next->cached_tokens, 32);
}

static void test_what_is_held_is_swapped_and_comes_back(void **state) {
    (void)state;
    fixture.config.page_count = 1 + 24;
    fixture.config.host_page_count = 64;
    fixture.config.prefix_cache = false;
    create_groups(1, 1);
    submit(0, 20, 40);
    struct rp_request *young = submit(1, 20, 40);
    uint32_t out = 0, in = 0;
    while (!rp_scheduler_is_idle(fixture.scheduler)) {
        if (plan()) {
            for (uint32_t i = 0; i < fixture.step.copy_count; i++)
                *(fixture.step.copies[i].kind == RP_COPY_TO_HOST ? &out : &in) += 1;
            commit();
        }
        drain();
    }
    assert_int_equal(young->swap_count, 1);
    assert_int_equal(out, in);
    /* All pages of one group, the last three or four of the other. */
    assert_true(out > 0 && out < 2 * 15);
    assert_int_equal(stats().host_pages_free, stats().host_pages_total);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_long_answer_holds_no_more_than_its_window),
        TEST(test_a_long_prompt_takes_pages_chunk_by_chunk),
        TEST(test_groups_without_a_window_keep_all_pages),
        TEST(test_edits_name_the_table_of_their_group),
        TEST(test_a_pool_too_small_for_the_whole_takes_what_windows_need),
        TEST(test_passed_pages_are_found_only_after_their_proof),
        TEST(test_a_cancelled_prompt_leaves_nothing_in_the_cache),
        TEST(test_nan_removes_the_pages_that_the_window_has_passed),
        TEST(test_what_is_held_is_swapped_and_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
