/* Goal: the decisions that scheduler.h promises, one by one: rows, chunks, limits and ends. Method:
 * small hand-made cases. Prefix hits and page shortages are in test_scheduler_pages.c,
 * combinations of everything in test_scheduler_sim.c. */
#include "tests/engine/scheduler_fixture.h"

/* ---- one request ---- */

static void test_a_prompt_is_computed_then_each_token_takes_one_decode_row(void **state) {
    (void)state;
    create();
    struct rp_request *request = submit(0, 6, 3);
    assert_true(plan());
    assert_int_equal(fixture.step.id, 1);
    assert_int_equal(fixture.step.join_count, 1);
    assert_int_equal(fixture.step.joins[0].length, 0);
    assert_int_equal(fixture.step.row_count, 1);
    assert_int_equal(fixture.step.rows[0].count, 6);
    assert_true(fixture.step.rows[0].samples);
    assert_false(fixture.step.decode_only);
    /* Pages for the prompt and one more token: positions 0 .. 6. */
    assert_int_equal(fixture.step.page_count, 2);
    commit();
    struct rp_event event = next_event();
    assert_int_equal(event.kind, RP_EVENT_TOKEN);
    assert_int_equal(event.token, 100);
    assert_int_equal(request->scheduled_ns, 1000);
    assert_int_equal(request->first_token_ns, 2000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(plan());
        assert_true(fixture.step.decode_only);
        assert_int_equal(fixture.step.rows[0].start, 6 + i);
        assert_int_equal(fixture.step.page_count, 0);
        commit();
        assert_int_equal(next_event().kind, RP_EVENT_TOKEN);
    }
    assert_closed(request, RP_FINISH_LENGTH);
    assert_no_event();
    assert_false(plan());
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_a_stop_token_is_delivered_and_ends_the_request(void **state) {
    (void)state;
    create();
    struct rp_request *request = submit(0, 3, 10);
    assert_true(plan());
    fixture.results[0].flags = RP_SCHED_RESULT_STOPPED;
    commit();
    struct rp_event event = next_event();
    assert_int_equal(event.kind, RP_EVENT_TOKEN);
    assert_int_equal(event.is_stop, 1);
    assert_closed(request, RP_FINISH_STOP);
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_a_row_planned_past_a_stop_is_wasted_and_holds_its_pages(void **state) {
    (void)state;
    fixture.config.run_ahead = true;
    create();
    struct rp_request *request = submit(0, 3, 10);
    assert_true(plan());
    assert_true(plan());
    assert_true(fixture.step.rows[0].decode);
    assert_false(plan());
    assert_int_equal(rp_scheduler_in_flight(fixture.scheduler), 2);
    fixture.results[0].flags = RP_SCHED_RESULT_STOPPED;
    commit();
    assert_int_equal(next_event().kind, RP_EVENT_TOKEN);
    assert_closed(request, RP_FINISH_STOP);
    assert_int_equal(stats().pages_pending, 1);
    assert_false(rp_scheduler_is_idle(fixture.scheduler));
    fixture.results[0] = (struct rp_sched_result){.token = -1, .flags = RP_SCHED_RESULT_SKIPPED};
    commit();
    assert_no_event();
    assert_int_equal(stats().pages_pending, 0);
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_no_row_is_planned_past_max_tokens(void **state) {
    (void)state;
    fixture.config.run_ahead = true;
    create();
    submit(0, 3, 2);
    assert_true(plan());
    assert_true(plan());
    commit();
    assert_false(plan());
    commit();
    drain();
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_nan_fails_only_its_request_and_its_pages_are_zeroed_before_reuse(void **state) {
    (void)state;
    fixture.config.page_count = 5;
    fixture.config.max_model_len = 16;
    create();
    struct rp_request *bad = submit(0, 8, 1), *good = submit(1, 7, 1);
    good->cache_salt = 1;
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, 2);
    fixture.results[0] = (struct rp_sched_result){.token = -1, .flags = RP_SCHED_RESULT_NAN};
    commit();
    assert_closed(bad, RP_FINISH_NUMERIC);
    assert_int_equal(next_event().kind, RP_EVENT_TOKEN);
    assert_closed(good, RP_FINISH_LENGTH);
    assert_int_equal(stats().pages_cached, 1);
    /* Four pages, two of which held NaN. */
    submit(2, 14, 2);
    assert_true(plan());
    assert_int_equal(fixture.step.joins[0].length, 0);
    assert_int_equal(fixture.step.page_count, 4);
    assert_int_equal(fixture.step.zero_page_count, 2);
    commit();
    run_to_idle();
}

/* ---- cancel ---- */

static void test_a_waiting_request_is_cancelled_at_the_next_plan(void **state) {
    (void)state;
    fixture.config.slot_count = 1;
    create();
    submit(0, 4, 8);
    struct rp_request *second = submit(1, 4, 8), *third = submit(2, 4, 8);
    assert_true(plan());
    atomic_store(&second->cancelled, true);
    commit();
    drain();
    assert_true(plan());
    assert_closed(second, RP_FINISH_CANCELLED);
    commit();
    drain();
    assert_int_equal(stats().waiting, 1);
    atomic_store(&third->cancelled, true);
    assert_true(plan());
    assert_closed(third, RP_FINISH_CANCELLED);
    commit();
    run_to_idle();
}

static void test_a_running_request_is_closed_at_once_but_its_pages_wait(void **state) {
    (void)state;
    fixture.config.run_ahead = true;
    create();
    struct rp_request *request = submit(0, 4, 8);
    assert_true(plan());
    atomic_store(&request->cancelled, true);
    assert_false(plan());
    assert_closed(request, RP_FINISH_CANCELLED);
    assert_int_equal(stats().running, 0);
    assert_int_equal(stats().pages_pending, 2);
    commit();
    assert_no_event();
    assert_int_equal(stats().pages_free, stats().pages_total);
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

/* ---- limits ---- */

static void test_fits_is_exact_at_page_borders(void **state) {
    (void)state;
    fixture.config.page_count = 4; /* three pages, twelve tokens */
    fixture.config.max_model_len = 20;
    /* The last sampled token is not stored: 13 tokens write 12. */
    assert_true(rp_scheduler_fits(&fixture.config, 10, 3));
    assert_false(rp_scheduler_fits(&fixture.config, 10, 4));
    assert_true(rp_scheduler_fits(&fixture.config, 12, 1));
    assert_false(rp_scheduler_fits(&fixture.config, 13, 1));
    assert_false(rp_scheduler_fits(&fixture.config, 0, 1));
    assert_false(rp_scheduler_fits(&fixture.config, 1, 0));
    fixture.config.page_count = 100;
    assert_true(rp_scheduler_fits(&fixture.config, 19, 1));
    assert_false(rp_scheduler_fits(&fixture.config, 20, 1));
    assert_false(rp_scheduler_fits(&fixture.config, UINT32_MAX, UINT32_MAX));
}

static void test_the_largest_request_that_fits_runs_in_exactly_all_pages(void **state) {
    (void)state;
    fixture.config.page_count = 4;
    fixture.config.max_model_len = 20;
    fixture.config.host_page_count = 0;
    create();
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, prepare(1, 10, 4)), RP_STATUS_RANGE);
    submit(0, 10, 3);
    step_once();
    assert_int_equal(stats().pages_held, 3);
    run_to_idle();
}

static void test_a_page_is_taken_when_a_token_crosses_its_border(void **state) {
    (void)state;
    create();
    submit(0, 3, 8);
    assert_true(plan());
    assert_int_equal(fixture.step.page_count, 1); /* positions 0 .. 3 */
    commit();
    assert_true(plan()); /* position 3 */
    assert_int_equal(fixture.step.page_count, 0);
    commit();
    assert_true(plan()); /* position 4 */
    assert_int_equal(fixture.step.page_count, 1);
    assert_int_equal(fixture.step.pages[0].index, 1);
    commit();
    run_to_idle();
}

static void test_a_full_queue_says_so(void **state) {
    (void)state;
    fixture.config.queue_capacity = 2;
    create();
    submit(0, 1, 1);
    submit(1, 1, 1);
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, prepare(2, 1, 1)), RP_STATUS_FULL);
    run_to_idle();
}

static void test_rows_without_room_for_their_events_are_not_planned(void **state) {
    (void)state;
    fixture.config.run_ahead = true;
    create();
    submit(0, 4, 8);
    submit(1, 4, 8);
    /* A row may have a token and an end. */
    assert_false(rp_scheduler_plan(fixture.scheduler, 0, 1, &fixture.step));
    assert_true(rp_scheduler_plan(fixture.scheduler, 0, 3, &fixture.step));
    assert_int_equal(fixture.step.sample_count, 1);
    /* Steps in flight are committed first. */
    assert_false(rp_scheduler_plan(fixture.scheduler, 0, 3, &fixture.step));
    assert_true(plan());
    commit();
    commit();
    run_to_idle();
}

static void test_decode_rows_take_turns_when_there_are_too_many(void **state) {
    (void)state;
    fixture.config.row_capacity = 2;
    fixture.config.slot_count = 3;
    create();
    for (uint32_t i = 0; i < 3; i++)
        submit(i, 2, 30);
    while (stats().running < 3)
        step_once();
    for (uint32_t i = 0; i < 2; i++)
        step_once();
    drain();
    uint32_t rows[3] = {0};
    for (uint32_t i = 0; i < 9; i++) {
        assert_true(plan());
        assert_int_equal(fixture.step.row_count, 2);
        for (uint32_t k = 0; k < 2; k++)
            rows[fixture.step.rows[k].request->id]++;
        commit();
        drain();
    }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rows[i], 6);
}

static void test_many_long_answers_leave_room_for_a_new_prompt(void **state) {
    (void)state;
    static const uint32_t small[] = {4};
    fixture.config.token_buckets = small;
    fixture.config.token_bucket_count = 1;
    create();
    for (uint32_t i = 0; i < 4; i++)
        submit(i, 1, 60);
    for (uint32_t i = 0; i < 4; i++) {
        step_once();
        drain();
    }
    assert_int_equal(stats().running, 4);
    submit(4, 3, 4);
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, 4);
    assert_false(fixture.step.rows[3].decode);
    assert_ptr_equal(fixture.step.rows[3].request, &fixture.requests[4]);
    commit();
}

/* ---- chunks ---- */

static void test_a_long_prompt_is_cut_into_chunks_of_the_largest_bucket(void **state) {
    (void)state;
    static const uint32_t small[] = {8, 16};
    fixture.config.token_buckets = small;
    fixture.config.token_bucket_count = 2;
    create();
    submit(0, 40, 2);
    const uint32_t counts[] = {16, 16, 8};
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(plan());
        assert_int_equal(fixture.step.rows[0].start, 16 * i);
        assert_int_equal(fixture.step.rows[0].count, counts[i]);
        assert_int_equal(fixture.step.sample_count, i == 2);
        fixture.results[0].token = i == 2 ? 5 : -1;
        commit();
    }
    assert_int_equal(next_event().token, 5);
    run_to_idle();
}

/* Starts `decodes` answers, then a prompt; returns the tokens of its first chunk. */
static uint32_t chunk_beside(uint32_t decodes, uint32_t prompt_count) {
    for (uint32_t i = 0; i < decodes; i++)
        submit(i, 1, 100)->cache_salt = i;
    while (stats().waiting)
        step_once();
    drain();
    submit(decodes, prompt_count, 2)->cache_salt = 99;
    assert_true(plan());
    assert_int_equal(fixture.step.row_count, decodes + 1);
    uint32_t count = fixture.step.rows[decodes].count;
    assert_int_equal(fixture.step.rows[decodes].samples, count == prompt_count);
    commit();
    drain();
    return count;
}

static void use_large_pool(void) {
    fixture.config.page_count = 1000;
    fixture.config.page_edit_capacity = 256;
    fixture.config.max_model_len = 256;
}

static void test_a_chunk_is_cut_when_the_step_would_sit_just_above_a_bucket(void **state) {
    (void)state;
    use_large_pool();
    create();
    /* 6 + 59 = 65: 63 tokens of padding, or one token moved to a bucket of 16. */
    assert_int_equal(chunk_beside(6, 59), 58);
    assert_true(plan());
    assert_int_equal(fixture.step.rows[6].start, 58);
    assert_int_equal(fixture.step.rows[6].count, 1);
    assert_true(fixture.step.rows[6].samples);
    commit();
}

static void test_a_chunk_is_not_cut_when_that_saves_little(void **state) {
    (void)state;
    use_large_pool();
    create();
    /* 6 + 100 = 106: 22 tokens of padding, or 42 moved tokens. */
    assert_int_equal(chunk_beside(6, 100), 100);
}

/* The rest would be a separate step. */
static void test_a_prompt_alone_is_not_cut(void **state) {
    (void)state;
    use_large_pool();
    create();
    assert_int_equal(chunk_beside(0, 65), 65);
}

/* ---- the end ---- */

static void test_fail_all_closes_everything_once_and_nothing_runs_after(void **state) {
    (void)state;
    fixture.config.run_ahead = true;
    fixture.config.slot_count = 1;
    create();
    struct rp_request *running = submit(0, 4, 8), *waiting = submit(1, 4, 8);
    assert_true(plan());
    assert_true(plan());
    rp_scheduler_fail_all(fixture.scheduler, RP_FINISH_ERROR, 5);
    assert_closed(running, RP_FINISH_ERROR);
    assert_closed(waiting, RP_FINISH_ERROR);
    assert_no_event();
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
    assert_int_equal(stats().pages_free, stats().pages_total);
    assert_false(plan());
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, prepare(2, 1, 1)),
                     RP_STATUS_SHUTTING_DOWN);
}

static void test_create_names_what_is_wrong_and_survives_every_failed_allocation(void **state) {
    (void)state;
    struct rp_error err;
    struct rp_scheduler_config config = fixture.config;
    config.page_tokens = 3;
    assert_int_equal(rp_scheduler_create(&config, &fixture.scheduler, &err), RP_STATUS_INVALID);
    config = fixture.config;
    config.page_edit_capacity = 31;
    assert_int_equal(rp_scheduler_create(&config, &fixture.scheduler, &err), RP_STATUS_INVALID);
    int status = RP_STATUS_NO_MEMORY;
    uint64_t n = 0;
    while (status == RP_STATUS_NO_MEMORY) {
        rp_alloc_fail_at(++n);
        status = rp_scheduler_create(&fixture.config, &fixture.scheduler, &err);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK || fixture.scheduler == NULL);
    }
    assert_int_equal(status, RP_OK);
    assert_true(n > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_prompt_is_computed_then_each_token_takes_one_decode_row),
        TEST(test_a_stop_token_is_delivered_and_ends_the_request),
        TEST(test_a_row_planned_past_a_stop_is_wasted_and_holds_its_pages),
        TEST(test_no_row_is_planned_past_max_tokens),
        TEST(test_nan_fails_only_its_request_and_its_pages_are_zeroed_before_reuse),
        TEST(test_a_waiting_request_is_cancelled_at_the_next_plan),
        TEST(test_a_running_request_is_closed_at_once_but_its_pages_wait),
        TEST(test_fits_is_exact_at_page_borders),
        TEST(test_the_largest_request_that_fits_runs_in_exactly_all_pages),
        TEST(test_a_page_is_taken_when_a_token_crosses_its_border),
        TEST(test_a_full_queue_says_so),
        TEST(test_rows_without_room_for_their_events_are_not_planned),
        TEST(test_decode_rows_take_turns_when_there_are_too_many),
        TEST(test_many_long_answers_leave_room_for_a_new_prompt),
        TEST(test_a_long_prompt_is_cut_into_chunks_of_the_largest_bucket),
        TEST(test_a_chunk_is_cut_when_the_step_would_sit_just_above_a_bucket),
        TEST(test_a_chunk_is_not_cut_when_that_saves_little),
        TEST(test_a_prompt_alone_is_not_cut),
        TEST(test_fail_all_closes_everything_once_and_nothing_runs_after),
        TEST(test_create_names_what_is_wrong_and_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
