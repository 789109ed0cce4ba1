/* Goal: pages with the same tokens are reused, and no request is stuck or loses a token when pages
 * run out. Method: small hand-made cases (scheduler_fixture.h). */
#include "engine/scheduler_internal.h"
#include "tests/engine/scheduler_fixture.h"

/* ---- prefix cache ---- */

static void test_a_second_equal_prompt_finds_all_full_pages_but_the_last_token(void **state) {
    (void)state;
    create();
    submit(0, 12, 1);
    run_to_idle();
    /* Three full pages are cached; the third holds the last token, which must give logits. */
    assert_int_equal(stats().pages_cached, 3);
    struct rp_request *second = submit(1, 12, 1);
    assert_true(plan());
    assert_int_equal(second->cached_tokens, 8);
    assert_int_equal(fixture.step.joins[0].length, 8);
    assert_int_equal(fixture.step.rows[0].start, 8);
    assert_int_equal(fixture.step.rows[0].count, 4);
    commit();
    struct rp_request *third = submit(2, 13, 1);
    assert_true(plan());
    assert_int_equal(third->cached_tokens, 12);
    commit();
    run_to_idle();
    assert_int_equal(stats().prefix_query_tokens, 37);
    assert_int_equal(stats().prefix_hit_tokens, 20);
    assert_int_equal(stats().pages_free + stats().pages_cached, stats().pages_total);
}

static void test_generated_tokens_are_found_by_the_next_turn(void **state) {
    (void)state;
    int32_t conversation[16];
    create();
    submit(0, 6, 7); /* writes positions 0 .. 11 */
    for (uint32_t i = 0; i < 7; i++) {
        assert_true(plan());
        fixture.results[0].token = 300 + (int32_t)i;
        commit();
        drain();
    }
    for (int32_t i = 0; i < 16; i++)
        conversation[i] = i < 6 ? i : 300 + i - 6;
    struct rp_request *next = prepare(1, 16, 1);
    next->prompt = conversation;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, next), RP_OK);
    assert_true(plan());
    assert_int_equal(next->cached_tokens, 12);
    commit();
    drain();
}

static void test_prompt_only_caching_leaves_generated_tokens_out(void **state) {
    (void)state;
    fixture.config.prefix_prompt_only = true;
    create();
    submit(0, 6, 7);
    run_to_idle();
    assert_int_equal(stats().pages_cached, 1);
}

static void test_no_more_than_join_capacity_come_in_at_once(void **state) {
    (void)state;
    fixture.config.join_capacity = 2;
    create();
    for (uint32_t i = 0; i < 3; i++)
        submit(i, 4, 2);
    assert_true(plan());
    assert_int_equal(fixture.step.join_count, 2);
    commit();
    run_to_idle();
}

static void test_other_salts_find_nothing(void **state) {
    (void)state;
    create();
    submit(0, 12, 1);
    run_to_idle();
    struct rp_request *other = prepare(1, 12, 1);
    other->cache_salt = 1;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, other), RP_OK);
    run_to_idle();
    assert_int_equal(other->cached_tokens, 0);
}

static void test_a_prompt_is_not_cached_before_its_logits_were_seen(void **state) {
    (void)state;
    static const uint32_t small[] = {8};
    fixture.config.token_buckets = small;
    fixture.config.token_bucket_count = 1;
    create();
    struct rp_request *request = submit(0, 20, 1);
    step_once();
    atomic_store(&request->cancelled, true);
    assert_false(plan());
    assert_int_equal(stats().pages_cached, 0);
    drain();
}

/* ---- pages run out ---- */

static void test_the_youngest_is_swapped_out_and_comes_back_with_its_tokens(void **state) {
    (void)state;
    fixture.config.page_count = 9; /* eight pages: 32 tokens */
    fixture.config.max_model_len = 32;
    fixture.config.prefix_cache = false;
    create();
    struct rp_request *old = submit(0, 8, 20), *young = submit(1, 8, 20);
    uint32_t out = 0, in = 0;
    for (uint32_t i = 0; i < 100 && !rp_scheduler_is_idle(fixture.scheduler); i++) {
        if (plan()) {
            for (uint32_t k = 0; k < fixture.step.copy_count; k++) {
                out += fixture.step.copies[k].kind == RP_COPY_TO_HOST;
                in += fixture.step.copies[k].kind == RP_COPY_TO_DEVICE;
            }
            commit();
        }
        drain();
    }
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
    assert_int_equal(old->swap_count, 0);
    assert_int_equal(young->swap_count, 1);
    assert_int_equal(out, 4);
    assert_int_equal(in, 4);
    assert_int_equal(stats().preemptions, 1);
    assert_int_equal(stats().preempted[RP_PREEMPTED_DECODE], 1);
    assert_int_equal(stats().host_pages_free, stats().host_pages_total);
}

/* A prompt in chunks has all its pages from admission on. */
static void test_one_that_is_swapped_out_in_its_prompt_is_counted_as_such(void **state) {
    (void)state;
    fixture.config.page_count = 15;
    fixture.config.max_model_len = 48;
    fixture.config.prefix_cache = false;
    create();
    fixture.scheduler->token_budget = 3; /* two of them for the prompt, per step */
    submit(0, 4, 40);
    struct rp_request *young = submit(1, 36, 2);
    for (uint32_t i = 0; i < 300 && !rp_scheduler_is_idle(fixture.scheduler); i++) {
        if (plan())
            commit();
        drain();
    }
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
    assert_int_equal(young->swap_count, 1);
    assert_int_equal(stats().preempted[RP_PREEMPTED_PREFILL], 1);
    assert_int_equal(stats().preempted[RP_PREEMPTED_DECODE], 0);
    assert_int_equal(stats().preemptions, 1);
}

static void test_without_a_host_pool_only_what_fits_at_its_worst_is_admitted(void **state) {
    (void)state;
    fixture.config.page_count = 9;
    fixture.config.max_model_len = 32;
    fixture.config.host_page_count = 0;
    create();
    submit(0, 4, 13); /* four pages at most */
    submit(1, 4, 13);
    submit(2, 4, 13);
    step_once();
    assert_int_equal(stats().running, 2);
    assert_int_equal(stats().waiting, 1);
    run_to_idle();
    assert_int_equal(stats().preemptions, 0);
}

static void test_a_sequence_cancelled_while_swapped_gives_its_host_pages_back(void **state) {
    (void)state;
    fixture.config.page_count = 9;
    fixture.config.max_model_len = 32;
    create();
    submit(0, 8, 20);
    struct rp_request *young = submit(1, 8, 20);
    young->cache_salt = 1;
    while (stats().swapped == 0) {
        step_once();
        drain();
    }
    assert_true(stats().host_pages_free < stats().host_pages_total);
    atomic_store(&young->cancelled, true);
    plan();
    assert_closed(young, RP_FINISH_CANCELLED);
    assert_int_equal(stats().host_pages_free, stats().host_pages_total);
    commit();
    run_to_idle();
}

/* n = 3: the prompt of ten tokens is computed once, except for its last page. */
static void test_answers_to_one_prompt_share_its_full_pages(void **state) {
    (void)state;
    fixture.config.token_buckets = buckets;
    create();
    for (uint32_t i = 0; i < 3; i++) {
        struct rp_request *request = prepare(i, 10, 4);
        request->choice = i;
        assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_OK);
    }
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, 1); /* the others wait */
    assert_int_equal(fixture.step.token_count, 10);
    commit();
    drain();
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, 3);
    assert_int_equal(fixture.step.token_count, 1 + 2 + 2);
    for (uint32_t i = 1; i < 3; i++) {
        assert_int_equal(fixture.requests[i].cached_tokens, 8);
        assert_int_equal(fixture.step.rows[i].start, 8);
    }
    /* Two shared pages, and one each: a page that is written is not shared. */
    uint32_t held = stats().pages_held;
    assert_int_equal(held, 2 + 3);
    commit();
    run_to_idle();
}

static void test_answers_do_not_wait_for_a_first_one_that_is_gone(void **state) {
    (void)state;
    create();
    struct rp_request *first = prepare(0, 100, 4), *second = prepare(1, 100, 4);
    second->choice = 1;
    fixture.config.token_buckets = buckets;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, first), RP_OK);
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, second), RP_OK);
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, 1);
    atomic_store(&first->cancelled, true);
    commit();
    drain();
    assert_true(plan());
    assert_ptr_equal(fixture.step.rows[0].request, second);
    assert_int_equal(second->cached_tokens, 96); /* it had been computed by then */
    commit();
    run_to_idle();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_second_equal_prompt_finds_all_full_pages_but_the_last_token),
        TEST(test_generated_tokens_are_found_by_the_next_turn),
        TEST(test_prompt_only_caching_leaves_generated_tokens_out),
        TEST(test_no_more_than_join_capacity_come_in_at_once),
        TEST(test_other_salts_find_nothing),
        TEST(test_a_prompt_is_not_cached_before_its_logits_were_seen),
        TEST(test_the_youngest_is_swapped_out_and_comes_back_with_its_tokens),
        TEST(test_one_that_is_swapped_out_in_its_prompt_is_counted_as_such),
        TEST(test_without_a_host_pool_only_what_fits_at_its_worst_is_admitted),
        TEST(test_a_sequence_cancelled_while_swapped_gives_its_host_pages_back),
        TEST(test_answers_to_one_prompt_share_its_full_pages),
        TEST(test_answers_do_not_wait_for_a_first_one_that_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
