/* Goal: prompts that must be computed whole are one row each, wait for a step with room for them,
 * and neither starve decode rows nor are starved by them. Method: the scheduler with results
 * written by the test. */
#include "tests/engine/scheduler_fixture.h"

static int setup_whole(void **state) {
    int status = setup(state);
    fixture.config.whole_prompts = true;
    fixture.config.prefix_cache = false;
    return status;
}

static const struct rp_sched_row *row_of(const struct rp_request *request) {
    for (uint32_t i = 0; i < fixture.step.row_count; i++)
        if (fixture.step.rows[i].request == request)
            return &fixture.step.rows[i];
    return NULL;
}

static void test_a_prompt_is_one_row_or_none(void **state) {
    (void)state;
    create();
    struct rp_request *a = submit(0, 100, 4), *b = submit(1, 60, 4), *c = submit(2, 28, 4);
    assert_true(plan());
    assert_int_equal(row_of(a)->count, 100);
    assert_true(row_of(a)->samples);
    assert_null(row_of(b)); /* 28 tokens of 128 are left, and c waits */
    assert_null(row_of(c));
    commit();
    assert_true(plan());
    assert_int_equal(row_of(b)->count, 60);
    assert_int_equal(row_of(c)->count, 28);
    assert_true(row_of(a)->decode);
    commit();
    drain();
    run_to_idle();
}

static void test_a_prompt_of_the_largest_step_comes_in_beside_decode_rows(void **state) {
    (void)state;
    fixture.config.page_count = 129;
    fixture.config.page_edit_capacity = 128;
    create();
    struct rp_request *a = submit(0, 3, 60), *b = submit(1, 3, 60);
    step_once();
    drain();
    struct rp_request *whole = submit(2, 128 - 60, 20), *behind = submit(3, 128 - 20, 20);
    uint32_t decodes[2] = {0, 0}, first = 0, second = 0;
    for (uint32_t i = 1; i <= 6; i++) {
        assert_true(plan());
        decodes[0] += row_of(a) != NULL;
        decodes[1] += row_of(b) != NULL;
        if (row_of(whole) && !row_of(whole)->decode)
            first = i;
        if (row_of(behind) && !row_of(behind)->decode)
            second = i;
        commit();
        drain();
    }
    assert_int_equal(first, 1);
    assert_true(second > 1);
    assert_true(decodes[0] >= 4 && decodes[1] >= 4);
    run_to_idle();
}

static void test_decode_rows_make_room_in_every_other_step_only(void **state) {
    (void)state;
    fixture.config.max_model_len = 256;
    fixture.config.page_count = 1025;
    fixture.config.page_edit_capacity = 1024;
    create();
    struct rp_request *old = submit(0, 3, 100);
    step_once();
    drain();
    uint32_t rows = 0, prompts = 0;
    for (uint32_t i = 1; i < 8; i++) /* each needs the whole step */
        submit(i, 128, 1);
    bool had_row = true;
    for (uint32_t i = 0; i < 14; i++) {
        assert_true(plan());
        assert_true(had_row || row_of(old));
        had_row = row_of(old) != NULL;
        rows += had_row;
        for (uint32_t r = 0; r < fixture.step.row_count; r++)
            prompts += fixture.step.rows[r].count == 128;
        commit();
        drain();
    }
    assert_int_equal(prompts, 7);
    assert_true(rows >= 7);
    run_to_idle();
}

static void test_nobody_waits_for_a_prompt_that_finds_no_pages(void **state) {
    (void)state;
    fixture.config.page_count = 41; /* 160 tokens */
    fixture.config.host_page_count = 0;
    create();
    struct rp_request *a = submit(0, 3, 40);
    step_once();
    drain();
    submit(1, 126, 1); /* a's 42 tokens leave no room for it */
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(plan());
        assert_int_equal(fixture.step.row_count, 1);
        assert_non_null(row_of(a));
        commit();
        drain();
    }
    run_to_idle();
}

static void test_a_scored_prompt_is_whole_too(void **state) {
    (void)state;
    create();
    struct rp_request *a = submit(0, 3, 60);
    step_once();
    drain();
    struct rp_request *scored = prepare(1, 8, 2);
    scored->prompt_logprobs = true;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, scored), RP_OK);
    assert_int_equal(rp_scheduler_whole_prompt_max(&fixture.config, true), 8);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(plan());
        const struct rp_sched_row *row = row_of(scored);
        if (row && !row->decode) {
            assert_int_equal(row->count, 8);
            assert_null(row_of(a)); /* all eight rows of logits are its own */
            return;
        }
        commit();
        drain();
    }
    fail_msg("it found no step");
}

static void test_what_no_step_holds_does_not_fit(void **state) {
    (void)state;
    create();
    assert_true(rp_scheduler_fits(&fixture.config, 127, 1));
    fixture.config.max_model_len = 256;
    assert_true(rp_scheduler_fits(&fixture.config, 128, 1));
    assert_false(rp_scheduler_fits(&fixture.config, 129, 1));
    fixture.config.prefix_cache = true;
    struct rp_scheduler *other;
    assert_int_equal(rp_scheduler_create(&fixture.config, &other, NULL), RP_STATUS_INVALID);
}

int main(void) {
#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_whole, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_prompt_is_one_row_or_none),
        TEST(test_a_prompt_of_the_largest_step_comes_in_beside_decode_rows),
        TEST(test_decode_rows_make_room_in_every_other_step_only),
        TEST(test_nobody_waits_for_a_prompt_that_finds_no_pages),
        TEST(test_a_scored_prompt_is_whole_too),
        TEST(test_what_no_step_holds_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
