/* Goal: a step with prompts has as many tokens as pay: few where running answers wait for it, more
 * where its time depends little on them, and none that miss the objective for the time between
 * tokens. */
#include "tests/engine/scheduler_fixture.h"

enum { BASE = 64, LARGEST = 512, SLOTS = 64, ANSWER = 100 };

static const uint32_t sizes[] = {16, 32, 64, 128, 256, 512};
static struct rp_request many[SLOTS], prompts[8];
static int32_t tokens[LARGEST];

/* What the pretended device takes: for a step, a decode row, a prompt's token. */
static struct { uint64_t step_ns, row_ns, token_ns; } cost;
static uint64_t clock_ns;

static void times_config(void) {
    fixture.config.slot_count = fixture.config.row_capacity = SLOTS;
    fixture.config.queue_capacity = SLOTS;
    fixture.config.decode_rows_max = fixture.config.logit_rows_max = SLOTS;
    fixture.config.page_count = fixture.config.host_page_count = 20001;
    fixture.config.max_model_len = 2 * LARGEST;
    fixture.config.page_edit_capacity = 4096;
    fixture.config.token_buckets = sizes;
    fixture.config.token_bucket_count = RP_ARRAY_COUNT(sizes);
    fixture.config.step_tokens = BASE;
    fixture.config.prefix_cache = false;
    clock_ns = 1;
}

static void submit_to(struct rp_request *request, uint32_t prompt, uint32_t max_tokens) {
    *request =
        (struct rp_request){.prompt = tokens, .prompt_count = prompt, .max_tokens = max_tokens};
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_OK);
}

static bool run_step(void) {
    static struct rp_sched_result results[SLOTS];
    if (!rp_scheduler_plan(fixture.scheduler, clock_ns, 10000, &fixture.step))
        return false;
    assert_null(rp_scheduler_check(fixture.scheduler));
    clock_ns += cost.step_ns;
    for (uint32_t i = 0; i < fixture.step.row_count; i++) {
        const struct rp_sched_row *row = &fixture.step.rows[i];
        clock_ns += row->decode ? cost.row_ns : row->count * cost.token_ns;
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        results[i] = (struct rp_sched_result){.token = 100};
    rp_scheduler_commit(fixture.scheduler, ++fixture.committed, results, clock_ns);
    assert_null(rp_scheduler_check(fixture.scheduler));
    drain();
    return true;
}

/* So many answers run, and steps of their size and of BASE and half of it were timed. */
static void start_answers(uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        submit_to(&many[i], 4, ANSWER);
    for (uint32_t i = 0; i < 8; i++)
        run_step();
    for (uint32_t prompt = BASE - count; prompt > 0; prompt = prompt == BASE / 2 ? 0 : BASE / 2) {
        submit_to(&prompts[0], prompt, 1);
        run_step();
        run_step();
    }
}

/* The tokens of prompts in the step after so many others, where more than fit wait. */
static uint32_t prompt_tokens(uint32_t steps) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < 4; i++)
        submit_to(&prompts[1 + i], LARGEST, 1);
    for (uint32_t i = 0; i <= steps; i++)
        assert_true(run_step());
    for (uint32_t i = 0; i < fixture.step.row_count; i++)
        count += fixture.step.rows[i].decode ? 0 : fixture.step.rows[i].count;
    return count;
}

/* A server with `count` answers; a step takes step_ns, and a row or token 1 us more. */
static void begin(uint64_t step_ns, uint64_t step_ns_max, uint32_t count) {
    cost.step_ns = step_ns, cost.row_ns = 1000, cost.token_ns = 1000;
    times_config();
    fixture.config.step_ns_max = step_ns_max;
    create();
    start_answers(count);
}

static void test_a_few_answers_wait_for_a_short_step(void **state) {
    (void)state;
    begin(100, 0, 4);
    assert_int_equal(prompt_tokens(0), BASE - 4);
}

static void test_prompts_get_longer_steps_beside_many_answers(void **state) {
    (void)state;
    /* 20 rows take the time of 20 tokens; 14 times as many fill the size of 256. */
    begin(100, 0, 20);
    assert_int_equal(prompt_tokens(0), 256 - 20);
}

static void test_prompts_get_longer_steps_where_a_step_costs_much(void **state) {
    (void)state;
    begin(100000, 0, 1);
    assert_int_equal(prompt_tokens(0), LARGEST - 1);
}

static void test_nothing_measured_means_a_short_step(void **state) {
    (void)state;
    times_config();
    create();
    assert_int_equal(prompt_tokens(0), BASE);
}

static void test_a_step_beside_answers_ends_in_time(void **state) {
    (void)state;
    begin(100, 40000, 4);
    assert_int_equal(prompt_tokens(2), 32 - 4);
}

static void test_prompts_keep_some_tokens_however_long_steps_take(void **state) {
    (void)state;
    begin(100000, 1000, 4);
    assert_int_equal(prompt_tokens(2), BASE / 8);
}

/* The device becomes faster: a size that was too slow is tried again, and then stays. */
static void test_a_refused_size_is_tried_again(void **state) {
    (void)state;
    uint32_t steps = 0;
    begin(100, 60000, 4);
    assert_int_equal(prompt_tokens(2), 32 - 4);
    cost.token_ns = 500;
    for (; fixture.step.token_count < BASE; steps++) {
        assert_true(steps < 64);
        if (rp_scheduler_is_idle(fixture.scheduler) || stats().waiting == 0)
            submit_to(&prompts[5 + steps % 3], LARGEST, 1);
        assert_true(run_step());
    }
    assert_true(run_step());
    assert_int_equal(fixture.step.token_count, BASE);
}

static void test_a_sequence_with_windows_has_a_short_chunk_in_a_long_step(void **state) {
    (void)state;
    fixture.config.groups = (struct rp_kv_groups){.count = 2, .window = {0, 16}};
    begin(100000, 0, 1);
    assert_int_equal(prompt_tokens(0), 4 * BASE - 1); /* with the decode row a bucket */
    for (uint32_t i = 0; i < fixture.step.row_count; i++)
        assert_true(fixture.step.rows[i].count <= BASE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_few_answers_wait_for_a_short_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prompts_get_longer_steps_beside_many_answers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_prompts_get_longer_steps_where_a_step_costs_much,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_measured_means_a_short_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_step_beside_answers_ends_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prompts_keep_some_tokens_however_long_steps_take,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_size_is_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_a_sequence_with_windows_has_a_short_chunk_in_a_long_step, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
