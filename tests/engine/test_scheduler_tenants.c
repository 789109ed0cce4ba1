/* Goal: a client with many requests gets no more than its share beside one with few: admission,
 * slots, the queue, and the rows of a step. */
#include "tests/engine/scheduler_fixture.h"

enum { GREEDY = 7, NEIGHBOR = 8, MANY = 100 };

static struct rp_request crowd[MANY];

static void tenants_config(uint32_t slots, uint32_t queue) {
    static const uint32_t wide[] = {16, 32, 64, 128, 256};
    fixture.config.slot_count = slots;
    fixture.config.queue_capacity = queue;
    fixture.config.row_capacity = fixture.config.decode_rows_max = slots;
    fixture.config.logit_rows_max = slots;
    fixture.config.page_count = fixture.config.host_page_count = 4001;
    fixture.config.page_edit_capacity = 400;
    fixture.config.token_buckets = wide;
    fixture.config.token_bucket_count = RP_ARRAY_COUNT(wide);
    fixture.config.prefix_cache = false;
    create();
}

static int submit_of(struct rp_request *request, uint64_t tenant, uint32_t prompt,
                     uint32_t max_tokens) {
    memset(request, 0, sizeof *request);
    request->prompt = fixture.prompt;
    request->prompt_count = prompt;
    request->max_tokens = max_tokens;
    request->tenant = tenant;
    return rp_scheduler_submit(fixture.scheduler, request);
}

static void submit_crowd(uint64_t tenant, uint32_t count, uint32_t prompt, uint32_t max_tokens) {
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(submit_of(&crowd[i], tenant, prompt, max_tokens), RP_OK);
}

/* Plans and commits one step and advances the time: by `step_ns` and 100 ns a token. */
static uint64_t clock_ns, step_ns;

static bool run_step(void) {
    static struct rp_sched_result results[512];
    if (!rp_scheduler_plan(fixture.scheduler, clock_ns, 10000, &fixture.step))
        return false;
    assert_null(rp_scheduler_check(fixture.scheduler));
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(results); i++)
        results[i] = (struct rp_sched_result){.token = 100};
    clock_ns += step_ns + 100 * fixture.step.token_count;
    rp_scheduler_commit(fixture.scheduler, ++fixture.committed, results, clock_ns);
    assert_null(rp_scheduler_check(fixture.scheduler));
    return true;
}

static uint32_t rows_of(uint64_t tenant, bool decode) {
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < fixture.step.row_count; i++)
        if (fixture.step.rows[i].request->tenant == tenant && fixture.step.rows[i].decode == decode)
            tokens += fixture.step.rows[i].count;
    return tokens;
}

static void run_until_idle(void) {
    for (uint32_t i = 0; i < 100000 && !rp_scheduler_is_idle(fixture.scheduler); i++) {
        run_step();
        drain();
    }
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static void test_the_least_served_tenant_enters_first(void **state) {
    (void)state;
    struct rp_request late;
    tenants_config(2, 64);
    submit_crowd(GREEDY, 20, 8, 10);
    for (uint32_t i = 0; i < 12; i++) { /* the first two run, the others wait */
        run_step();
        drain();
    }
    assert_int_equal(submit_of(&late, NEIGHBOR, 8, 10), RP_OK);
    uint32_t entered = 0;
    while (!late.scheduled_ns) {
        run_step();
        for (uint32_t i = 0; i < fixture.step.row_count; i++)
            entered += !fixture.step.rows[i].decode && fixture.step.rows[i].request != &late;
        drain();
    }
    assert_true(entered <= 1);
    run_until_idle();
}

static void test_a_slot_is_kept_for_whoever_has_none(void **state) {
    (void)state;
    struct rp_request late;
    tenants_config(16, 64);
    submit_crowd(GREEDY, 40, 8, 100);
    for (uint32_t i = 0; i < 20; i++) {
        run_step();
        drain();
    }
    assert_int_equal(stats().running, 15);
    assert_int_equal(submit_of(&late, NEIGHBOR, 8, 10), RP_OK);
    run_step();
    assert_true(late.scheduled_ns != 0);
    run_until_idle();
}

static void test_a_tenant_without_number_has_all_slots(void **state) {
    (void)state;
    tenants_config(16, 64);
    submit_crowd(0, 40, 8, 100);
    for (uint32_t i = 0; i < 20; i++) {
        run_step();
        drain();
    }
    assert_int_equal(stats().running, 16);
    run_until_idle();
}

static void test_the_queue_has_room_left_for_others(void **state) {
    (void)state;
    struct rp_request late;
    tenants_config(8, 32);
    submit_crowd(GREEDY, 28, 8, 4);
    assert_int_equal(submit_of(&crowd[28], GREEDY, 8, 4), RP_STATUS_FULL);
    assert_int_equal(submit_of(&late, NEIGHBOR, 8, 4), RP_OK);
    run_until_idle();
}

/* A request comes to a crowd of 90: it has a row in each step, and the crowd at most `rows`, in
 * turns. */
static void check_beside_a_crowd(uint32_t rows) {
    struct rp_request one;
    uint32_t seen[MANY] = {0}, steps = 0, most = 0, least = UINT32_MAX;
    tenants_config(96, 128);
    submit_crowd(GREEDY, 90, 4, 100);
    for (uint32_t i = 0; i < 10; i++) {
        run_step();
        drain();
    }
    assert_int_equal(rows_of(GREEDY, true), 90); /* a single client has everything */
    assert_int_equal(submit_of(&one, NEIGHBOR, 32, 40), RP_OK);
    run_step();
    assert_int_equal(rows_of(NEIGHBOR, false), 32); /* never cut by its share */
    assert_int_equal(rows_of(GREEDY, true), 0);     /* alone in its step */
    drain();
    while (run_step() && rows_of(NEIGHBOR, true)) {
        steps++;
        assert_int_equal(rows_of(NEIGHBOR, true), 1);
        assert_true(rows_of(GREEDY, true) <= rows);
        for (uint32_t i = 0; i < fixture.step.row_count; i++) {
            const struct rp_request *request = fixture.step.rows[i].request;
            if (request != &one)
                seen[request - crowd]++;
        }
        drain();
    }
    assert_int_equal(steps, 39);
    for (uint32_t i = 0; i < 90; i++) {
        most = RP_MAX(most, seen[i]);
        least = RP_MIN(least, seen[i]);
    }
    assert_true(most - least <= 1);
    /* Sizes that have not run yet are tried: the first steps have fewer rows. */
    assert_in_range((most + least) * 90 / 2, rows * steps * 3 / 4, rows * steps + 90);
    run_until_idle();
}

static void test_a_crowd_has_the_rows_that_cost_little_beside_a_single_request(void **state) {
    (void)state;
    step_ns = 10000; /* a step of 16 rows takes 14 % longer than one of 2 */
    check_beside_a_crowd(15);
}

static void test_a_crowd_has_an_equal_share_where_every_row_costs_as_much(void **state) {
    (void)state;
    step_ns = 0;
    check_beside_a_crowd(1);
}

static void test_a_waiting_crowd_has_no_part_in_the_step_of_a_single_prompt(void **state) {
    (void)state;
    struct rp_request one, next;
    tenants_config(96, 128);
    assert_int_equal(submit_of(&one, NEIGHBOR, 8, 4), RP_OK);
    submit_crowd(GREEDY, 60, 60, 60);
    for (uint32_t i = 0; i < 4;
         i++) { /* meanwhile the crowd's prompts are admitted in small chunks */
        run_step();
        drain();
    }
    assert_true(stats().waiting > 0 && stats().running < 96 / 2);
    /* It starts at the crowd's service and is last in the queue. */
    assert_int_equal(submit_of(&next, NEIGHBOR, 32, 40), RP_OK);
    run_step();
    assert_int_equal(rows_of(NEIGHBOR, false), 32);
    assert_int_equal(rows_of(GREEDY, true) + rows_of(GREEDY, false), 0);
    run_until_idle();
}

static void test_equals_do_not_limit_each_other(void **state) {
    (void)state;
    tenants_config(64, 128);
    submit_crowd(GREEDY, 30, 4, 60);
    for (uint32_t i = 30; i < 60; i++)
        assert_int_equal(submit_of(&crowd[i], NEIGHBOR, 4, 60), RP_OK);
    for (uint32_t i = 0; i < 12; i++) {
        run_step();
        drain();
    }
    assert_int_equal(rows_of(GREEDY, true), 30);
    assert_int_equal(rows_of(NEIGHBOR, true), 30);
    run_until_idle();
}

static void test_prompts_of_a_crowd_come_in_small_pieces_beside_a_single_request(void **state) {
    (void)state;
    struct rp_request one;
    tenants_config(32, 64);
    assert_int_equal(submit_of(&one, NEIGHBOR, 4, 100), RP_OK);
    run_step();
    submit_crowd(GREEDY, 20, 100, 4);
    run_step();
    assert_in_range(rows_of(GREEDY, false), 1, 32);
    assert_int_equal(rows_of(NEIGHBOR, true), 1);
    run_until_idle();
}

static void test_lower_priority_values_enter_first_within_a_tenant(void **state) {
    (void)state;
    tenants_config(1, 8);
    submit_crowd(GREEDY, 4, 4, 2);
    crowd[3].priority = -5;
    crowd[1].priority = 1;
    uint32_t order[4], count = 0;
    while (count < 4) {
        assert_true(run_step());
        for (uint32_t i = 0; i < fixture.step.join_count; i++)
            order[count++] = (uint32_t)(fixture.step.joins[i].request - crowd);
        drain();
    }
    const uint32_t wanted[] = {3, 0, 2, 1};
    assert_memory_equal(order, wanted, sizeof wanted);
    run_until_idle();
}

static void test_a_deadline_ends_a_request_wherever_it_is(void **state) {
    (void)state;
    tenants_config(1, 8);
    clock_ns = 1000000;
    submit_crowd(GREEDY, 3, 4, 100);
    crowd[0].deadline_ns = clock_ns + 5000;
    crowd[1].queue_deadline_ns = clock_ns + 2000;
    bool seen[3] = {false, false, false};
    for (uint32_t i = 0; i < 60 && !(seen[0] && seen[1]); i++) {
        struct rp_event event;
        run_step();
        while (rp_scheduler_next_event(fixture.scheduler, &event)) {
            if (event.kind != RP_EVENT_CLOSED)
                continue;
            uint32_t which = (uint32_t)(event.request - crowd);
            seen[which] = true;
            assert_int_equal(event.finish_reason,
                             which ? RP_FINISH_QUEUE_TIMEOUT : RP_FINISH_TIMEOUT);
        }
    }
    assert_true(seen[0] && seen[1] && !seen[2]);
    run_until_idle();
}

static void test_a_prompt_as_long_as_the_context_can_be_scored(void **state) {
    (void)state;
    struct rp_request *request = prepare(0, 128, 1);
    create();
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_STATUS_RANGE);
    request->prompt_only = true;
    request->prompt_logprobs = true;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_OK);
    request = prepare(1, 129, 1);
    request->prompt_only = true;
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_STATUS_RANGE);
    fixture.requests[0].prompt_logprobs = false; /* the results have no scores here */
    run_to_idle();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_the_least_served_tenant_enters_first),
        TEST(test_a_slot_is_kept_for_whoever_has_none),
        TEST(test_a_tenant_without_number_has_all_slots),
        TEST(test_the_queue_has_room_left_for_others),
        TEST(test_a_crowd_has_the_rows_that_cost_little_beside_a_single_request),
        TEST(test_a_crowd_has_an_equal_share_where_every_row_costs_as_much),
        TEST(test_a_waiting_crowd_has_no_part_in_the_step_of_a_single_prompt),
        TEST(test_equals_do_not_limit_each_other),
        TEST(test_prompts_of_a_crowd_come_in_small_pieces_beside_a_single_request),
        TEST(test_lower_priority_values_enter_first_within_a_tenant),
        TEST(test_a_deadline_ends_a_request_wherever_it_is),
        TEST(test_a_prompt_as_long_as_the_context_can_be_scored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
