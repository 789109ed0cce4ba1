/* Goal: the engine's profile reports where the selected steps spent all of their time, and changes
 * no answer.
 * Method: the demo model on the CPU, twelve requests, with every step, every fourth or no step
 * stamped; tables of every group are compared with each other and with the device's times of its
 * steps; sessions; a reader that copies while the engine writes. */
#include "engine/observe/profile_report.h"
#include "engine/observe/step_record.h"
#include "tests/engine/engine_fixture.h"

#include <pthread.h>

static struct fixture_answer plain[FIXTURE_REQUESTS];

static void run_all(const struct rp_engine_config *config) {
    if (!fixture_engine)
        fixture_open(config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
}

static struct rp_engine_config config_every(uint32_t every) {
    struct rp_engine_config config = fixture_config(rp_backend_cpu());
    config.profile_every = every;
    return config;
}

static struct rp_profile_table table_of(const struct rp_profile_query *query) {
    struct rp_profile_table table;
    assert_int_equal(rp_engine_profile_table(fixture_engine, query, &table), RP_OK);
    return table;
}

static const struct rp_profile_line *find(const struct rp_profile_table *table, const char *name) {
    for (uint32_t i = 0; i < table->count; i++)
        if (strcmp(table->lines[i].name, name) == 0)
            return &table->lines[i];
    fail_msg("no row %s", name);
    return NULL;
}

/* Self times and unattributed time add up to the replays; rows are in order; no self time is above
 * its total. */
static void check_table(const struct rp_profile_table *table, uint64_t slack_ns) {
    const struct rp_profile_footer *footer = &table->footer;
    uint64_t sum = footer->unattributed_ns;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct rp_profile_line *line = &table->lines[i];
        sum += line->self_ns;
        assert_true(line->self_ns <= line->total_ns && line->calls > 0);
        assert_true(line->p50_ns <= line->p99_ns && line->p99_ns <= line->max_ns);
        assert_true(i == 0 || line->self_ns <= line[-1].self_ns);
    }
    assert_true(sum + slack_ns >= footer->replay_ns && sum <= footer->replay_ns + slack_ns);
}

static void test_every_group_adds_up_to_the_replays(void **state) {
    (void)state;
    const struct rp_engine_config config = config_every(1);
    run_all(&config);
    uint64_t replay = 0;
    for (int group = RP_PROFILE_BY_OP; group <= RP_PROFILE_BY_REQUEST; group++) {
        struct rp_profile_query query = {.group = (enum rp_profile_group)group};
        struct rp_profile_table table = table_of(&query);
        uint64_t steps = rp_counter_read(&rp_engine_metrics(fixture_engine)->steps);
        assert_int_equal(table.footer.steps_stamped, steps);
        assert_int_equal(table.footer.steps_seen, steps);
        assert_int_equal(table.footer.dropped, 0);
        assert_true(table.footer.whole);
        /* A step's share of each request is rounded to a nanosecond. */
        check_table(&table, group == RP_PROFILE_BY_REQUEST ? steps * 8 : steps);
        replay = replay ? replay : table.footer.replay_ns;
        assert_true(table.footer.replay_ns == replay);
        rp_profile_table_deinit(&table);
    }
    /* And to the steps' records. */
    static struct rp_step_record records[RP_STEP_RECORDS];
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    uint64_t busy = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(records[i].stamped);
        busy += records[i].end_ns - records[i].begin_ns;
    }
    assert_true(busy <= replay + replay / 50 && replay <= busy + busy / 50);
}

static void test_rows_know_their_operators_shapes_and_costs(void **state) {
    (void)state;
    const struct rp_engine_config config = config_every(1);
    run_all(&config);
    struct rp_profile_query query = {.group = RP_PROFILE_BY_OP};
    struct rp_profile_table table = table_of(&query);
    const struct rp_model_config *model = &fixture_model.config;
    uint64_t tokens = find(&table, "attn.qkv")->tokens, kv = 0, pairs = 0;
    const struct rp_profile_line *qkv = find(&table, "attn.qkv");
    uint32_t outputs = (model->heads + 2 * model->kv_heads) * model->head_dim;
    char shape[48];
    snprintf(shape, sizeof shape, "%u x %u", outputs, model->hidden);
    assert_string_equal(qkv->shape, shape);
    assert_string_equal(qkv->layer, "*");
    assert_int_equal(qkv->calls, table.footer.steps_stamped * model->layers);
    double matrix = (double)outputs * model->hidden * model->layers;
    assert_true(qkv->flops == 2.0 * (double)tokens * matrix);
    assert_true(qkv->bytes > 2.0 * matrix * (double)table.footer.steps_stamped);
    assert_int_equal(find(&table, "mlp.gate_up+mlp.act")->calls, qkv->calls);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        /* All tokens but the answer's last went through attention, unless pages were cached. */
        uint64_t length = fixture_requests[i].prompt_count + fixture_answers[i].count - 1;
        uint64_t cached = fixture_requests[i].cached_tokens;
        kv += length - cached;
        pairs += length * (length + 1) / 2 - cached * (cached + 1) / 2;
    }
    assert_true(tokens >= kv); /* a run-ahead step at a sequence's end wastes a row */
    const struct rp_profile_line *attention = find(&table, "attn.attention");
    double least = 4.0 * (double)pairs * model->heads * model->head_dim * model->layers;
    assert_true(attention->flops >= least && attention->flops <= 1.2 * least);
    rp_profile_table_deinit(&table);
    query.group = RP_PROFILE_BY_NODE;
    table = table_of(&query);
    assert_int_equal(find(&table, "layer.1.attn.qkv")->calls, table.footer.steps_stamped);
    assert_string_equal(find(&table, "layer.1.attn.qkv")->layer, "1");
    rp_profile_table_deinit(&table);
}

static void test_one_step_in_n_of_each_bucket_is_stamped_and_no_answer_changes(void **state) {
    (void)state;
    struct rp_engine_config config = config_every(0);
    static struct rp_step_record records[RP_STEP_RECORDS];
    run_all(&config);
    memcpy(plain, fixture_answers, sizeof plain);
    struct rp_profile_query query = {.group = RP_PROFILE_BY_OP};
    struct rp_profile_table table = table_of(&query);
    assert_int_equal(table.footer.steps_stamped, 0);
    assert_int_equal(table.count, 0);
    rp_profile_table_deinit(&table);
    for (uint32_t way = 0; way < 3; way++) {
        fixture_teardown(NULL);
        fixture_setup(NULL);
        config = config_every(way ? 1 : 4);
        config.enforce_eager = way == 2;
        run_all(&config);
        assert_memory_equal(plain, fixture_answers, sizeof plain);
        uint32_t since[64] = {0};
        uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
        assert_true(count > 20 && rp_engine_graph_count(fixture_engine) < 64);
        for (uint32_t i = 0; i < count; i++) {
            bool due = ++since[records[i].graph] == config.profile_every;
            assert_int_equal(records[i].stamped, due);
            if (due)
                since[records[i].graph] = 0;
        }
    }
}

static void test_a_request_with_a_profile_has_its_own_steps_stamped(void **state) {
    (void)state;
    const struct rp_engine_config config = config_every(0);
    const uint64_t id = 5;
    fixture_open(&config);
    fixture_make_requests();
    fixture_requests[id].profile = true;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
    fixture_drain(FIXTURE_REQUESTS);
    struct rp_profile_query query = {
        .group = RP_PROFILE_BY_REQUEST, .requests = &id, .request_count = 1};
    struct rp_profile_table table = table_of(&query);
    assert_int_equal(table.count, 1);
    assert_string_equal(table.lines[0].name, "request 5");
    assert_true(table.lines[0].calls >= FIXTURE_OUTPUT);
    assert_true(table.lines[0].tokens + fixture_requests[id].cached_tokens >=
                fixture_requests[id].prompt_count + FIXTURE_OUTPUT - 1);
    uint64_t own = table.lines[0].self_ns, steps = table.footer.steps_stamped;
    rp_profile_table_deinit(&table);
    query.group = RP_PROFILE_BY_OP; /* only its share */
    table = table_of(&query);
    assert_int_equal(table.footer.steps_stamped, steps);
    uint64_t slack = table.call_count;
    assert_true(table.self_ns <= own + slack && own <= table.self_ns + slack);
    rp_profile_table_deinit(&table);
    query.request_count = 0;
    table = table_of(&query);
    assert_int_equal(table.footer.steps_stamped, steps); /* no other request's */
    rp_profile_table_deinit(&table);
}

static void test_a_session_keeps_exactly_its_active_steps(void **state) {
    (void)state;
    const struct rp_engine_config config = config_every(0);
    fixture_open(&config);
    struct rp_step_profile *profile = rp_engine_profile(fixture_engine);
    const struct rp_profile_schedule schedule = {
        .wait = 1, .warmup = 2, .active = 3, .repeat = 2, .phase = RP_PROFILE_DECODE};
    uint32_t number = rp_step_profile_start(profile, &schedule);
    uint64_t done;
    assert_int_not_equal(number, 0);
    assert_int_equal(rp_step_profile_start(profile, &schedule), 0); /* one at a time */
    assert_int_equal(rp_step_profile_state(profile, &done), RP_PROFILE_ASKED);
    run_all(&config);
    assert_int_equal(rp_step_profile_state(profile, &done), RP_PROFILE_DONE);
    assert_int_equal(done, 6);
    for (uint32_t repeat = 0; repeat <= 2; repeat++) {
        struct rp_profile_query query = {
            .group = RP_PROFILE_BY_PHASE, .session = number, .repeat = repeat};
        struct rp_profile_table table = table_of(&query);
        assert_int_equal(table.footer.steps_stamped, repeat ? 3 : 6);
        assert_int_equal(table.count, 1);
        assert_string_equal(table.lines[0].name, "decode");
        rp_profile_table_deinit(&table);
    }
    struct rp_profile_query all = {.group = RP_PROFILE_BY_PHASE};
    struct rp_profile_table table = table_of(&all);
    assert_int_equal(table.footer.steps_stamped, 10); /* warm-up too; nothing after its end */
    rp_profile_table_deinit(&table);
    /* Cancelled before a step: nothing is stamped, and the next session has a new number. */
    rp_step_profile_stop(profile);
    assert_int_equal(rp_step_profile_start(profile, &schedule), number + 1);
    rp_step_profile_stop(profile);
    run_all(&config);
    table = table_of(&all);
    assert_int_equal(table.footer.steps_stamped, 10);
    rp_profile_table_deinit(&table);
    /* Cancelled in the middle. */
    const struct rp_profile_schedule endless = {.active = 1000000, .repeat = 1};
    assert_int_equal(rp_step_profile_start(profile, &endless), number + 2);
    fixture_submit_all();
    rp_step_profile_stop(profile);
    fixture_drain(FIXTURE_REQUESTS);
    assert_int_equal(rp_step_profile_state(profile, NULL), RP_PROFILE_IDLE);
}

static _Atomic bool reading;

static void *read_tables(void *arg) {
    struct rp_profile_query query = {.group = RP_PROFILE_BY_NODE};
    uint64_t *steps = arg;
    while (atomic_load(&reading)) {
        struct rp_profile_table table = table_of(&query);
        check_table(&table, table.footer.steps_stamped);
        *steps = table.footer.steps_stamped;
        rp_profile_table_deinit(&table);
    }
    return NULL;
}

static void test_a_table_is_whole_while_the_engine_goes_on(void **state) {
    (void)state;
    const struct rp_engine_config config = config_every(1);
    pthread_t thread;
    uint64_t steps = 0;
    fixture_open(&config);
    atomic_store(&reading, true);
    assert_int_equal(pthread_create(&thread, NULL, read_tables, &steps), 0);
    for (int i = 0; i < 4; i++)
        run_all(&config);
    atomic_store(&reading, false);
    pthread_join(thread, NULL);
    assert_true(steps > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_group_adds_up_to_the_replays, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(test_rows_know_their_operators_shapes_and_costs,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_one_step_in_n_of_each_bucket_is_stamped_and_no_answer_changes, fixture_setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_request_with_a_profile_has_its_own_steps_stamped,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_session_keeps_exactly_its_active_steps,
                                        fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_table_is_whole_while_the_engine_goes_on,
                                        fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests_name("step_profile", tests, NULL, NULL);
}
