/* Goal: the kernels of a session, traced by the device's driver, are reported as a table of its
 * steps; tracing begins and ends with no step in flight, also under load; errors are reported.
 * Method: the CPU backend with a fake profiler, which records each replay and computes a kernel's
 * times from its index: launch i of replay r takes (i + 1) us, 1 us after its predecessor; the
 * first launch of a replay is two kernels. */
#include "engine/observe/device_profile.h"
#include "tests/engine/engine_fixture.h"

#include <time.h>

enum { REPLAYS = 4096, RECORDS = 1 << 18, REPLAY_NS = 10000000 };

static struct rp_profile {
    struct rp_device *device;
    _Atomic bool recording; /* the engine thread reads it at every launch */
    uint32_t replays, due_after;
    const struct rp_graph *graphs[REPLAYS];
} fake;
static struct rp_kernel_record records[RECORDS];
static struct rp_backend backend;
static int begin_status, opened;

static int fake_open(struct rp_device *device, uint32_t records_max, struct rp_profile **out,
                     struct rp_error *err) {
    (void)err;
    assert_int_equal(records_max, 0);
    fake.device = device;
    fake.replays = 0;
    *out = &fake;
    opened++;
    return RP_OK;
}

static int fake_begin(struct rp_profile *profile, struct rp_error *err) {
    if (begin_status != RP_OK)
        return rp_error_set(err, (enum rp_status)begin_status, "another tool is there");
    profile->recording = true;
    return RP_OK;
}

static bool fake_is_due(const struct rp_profile *profile, uint64_t now_ns) {
    (void)now_ns;
    return profile->due_after && profile->replays >= profile->due_after;
}

static int fake_end(struct rp_profile *profile, struct rp_error *err) {
    (void)err;
    assert_true(profile->recording);
    profile->recording = false;
    assert_int_equal(profile->replays % 2, 0); /* no step is in flight */
    return RP_OK;
}

static int fake_read(struct rp_profile *profile, struct rp_profile_records *out,
                     struct rp_error *err) {
    uint32_t count = 0;
    (void)err;
    for (uint32_t r = 0; r < profile->replays; r++) {
        uint64_t at = 1000000000u + (uint64_t)r * REPLAY_NS;
        uint32_t launches = backend.graph_launch_count(profile->graphs[r]);
        for (uint32_t i = 0; i < launches; i++) {
            uint64_t end = at + 1000 * (i + 1);
            records[count++] =
                (struct rp_kernel_record){at, i ? end : at + 400, profile->graphs[r], i, r};
            if (i == 0)
                records[count++] =
                    (struct rp_kernel_record){at + 600, end, profile->graphs[r], i, r};
            at = end + 1000;
        }
    }
    *out = (struct rp_profile_records){
        .records = records, .count = count, .replays = profile->replays, .source = "fake 1"};
    return RP_OK;
}

static void fake_close(struct rp_profile *profile) {
    assert_false(profile->recording);
    opened--;
}

static int fake_launch(struct rp_device *device, struct rp_graph *graph) {
    if (fake.recording && fake.replays < REPLAYS)
        fake.graphs[fake.replays++] = graph;
    return rp_backend_cpu()->launch(device, graph);
}

static const struct rp_profiler profiler = {.open = fake_open,
                                            .begin = fake_begin,
                                            .is_due = fake_is_due,
                                            .end = fake_end,
                                            .read = fake_read,
                                            .close = fake_close};

static int setup(void **state) {
    backend = *rp_backend_cpu();
    backend.launch = fake_launch;
    backend.profiler = &profiler;
    memset(&fake, 0, sizeof fake);
    begin_status = RP_OK;
    fixture_setup(state);
    struct rp_engine_config config = fixture_config(&backend);
    fixture_open(&config);
    return 0;
}

static int teardown(void **state) {
    fixture_teardown(state);
    assert_int_equal(opened, 0);
    return 0;
}

static enum rp_device_profile_state wait_for(enum rp_device_profile_state wanted,
                                             struct rp_error *err) {
    for (int i = 0; i < 10000; i++) {
        enum rp_device_profile_state state = rp_engine_profiler_state(fixture_engine, err);
        if (state == wanted || state == RP_DEVICE_PROFILE_FAILED)
            return state;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return RP_DEVICE_PROFILE_NONE;
}

/* A table of kernels: five decode steps with invented times. */
static void check_kernels(uint32_t session, uint32_t steps) {
    struct rp_profile_query query = {.group = RP_PROFILE_BY_NODE, .session = session};
    struct rp_profile_records read;
    struct rp_profile_table table;
    assert_int_equal(rp_engine_profiler_read(fixture_engine, &read, NULL), RP_OK);
    assert_int_equal(rp_engine_profile_kernels(fixture_engine, &query, &read, &table), RP_OK);
    assert_int_equal(table.footer.steps_stamped, steps);
    assert_int_equal(table.footer.dropped, 0);
    uint64_t sum = table.footer.unattributed_ns + table.self_ns;
    assert_true(sum == table.footer.replay_ns);
    for (uint32_t i = 0; i < table.count; i++) {
        const struct rp_profile_line *line = &table.lines[i];
        uint64_t us = 0;
        if (strcmp(line->name, "step_begin") == 0)
            us = 1;
        else if (strcmp(line->name, "embed") == 0)
            us = 2;
        else if (strcmp(line->name, "layer.0.attn.norm") == 0)
            us = 3;
        else
            continue;
        assert_int_equal(line->calls, steps);
        assert_true(line->self_ns == 1000 * us * steps && line->total_ns == line->self_ns);
        assert_true(line->p50_ns == 1000 * us);
    }
    rp_profile_table_deinit(&table);
}

static void test_kernels_of_a_session_make_its_table(void **state) {
    (void)state;
    const struct rp_profile_schedule schedule = {
        .wait = 1, .warmup = 1, .active = 5, .repeat = 1, .phase = RP_PROFILE_DECODE};
    struct rp_step_profile *profile = rp_engine_profile(fixture_engine);
    struct rp_error err = {0};
    for (int round = 0; round < 3; round++) {
        bool loaded = round > 0; /* with steps in flight */
        if (loaded)
            fixture_submit_all();
        assert_int_equal(rp_engine_profiler_open(fixture_engine, &err), RP_OK);
        assert_int_equal(rp_engine_profiler_open(fixture_engine, &err), RP_STATUS_IN_USE);
        assert_int_equal(wait_for(RP_DEVICE_PROFILE_RUNNING, &err), RP_DEVICE_PROFILE_RUNNING);
        uint32_t session = rp_step_profile_start(profile, &schedule);
        if (loaded)
            fixture_drain(FIXTURE_REQUESTS);
        fixture_submit_all();
        rp_engine_notify(fixture_engine);
        fixture_drain(FIXTURE_REQUESTS);
        assert_int_equal(rp_step_profile_state(profile, NULL), RP_PROFILE_DONE);
        rp_engine_profiler_end(fixture_engine);
        assert_int_equal(wait_for(RP_DEVICE_PROFILE_ENDED, &err), RP_DEVICE_PROFILE_ENDED);
        check_kernels(session, 5);
        rp_engine_profiler_close(fixture_engine);
        rp_step_profile_stop(profile);
    }
}

static void test_a_cap_ends_it_and_later_steps_are_not_recorded(void **state) {
    (void)state;
    const struct rp_profile_schedule schedule = {.active = 20, .repeat = 1};
    struct rp_step_profile *profile = rp_engine_profile(fixture_engine);
    struct rp_error err = {0};
    fake.due_after = 12; /* six steps, and one planned meanwhile */
    assert_int_equal(rp_engine_profiler_open(fixture_engine, &err), RP_OK);
    assert_int_equal(wait_for(RP_DEVICE_PROFILE_RUNNING, &err), RP_DEVICE_PROFILE_RUNNING);
    uint32_t session = rp_step_profile_start(profile, &schedule);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    assert_int_equal(rp_step_profile_state(profile, NULL), RP_PROFILE_DONE);
    assert_int_equal(wait_for(RP_DEVICE_PROFILE_ENDED, &err), RP_DEVICE_PROFILE_ENDED);
    assert_in_range(fake.replays, 12, 14);
    check_kernels(session, fake.replays / 2);
    rp_engine_profiler_end(fixture_engine); /* it has: nothing happens */
    rp_engine_profiler_close(fixture_engine);
}

static void test_errors_are_reported(void **state) {
    (void)state;
    struct rp_error err = {0};
    begin_status = RP_STATUS_IN_USE;
    assert_int_equal(rp_engine_profiler_open(fixture_engine, &err), RP_OK);
    assert_int_equal(wait_for(RP_DEVICE_PROFILE_FAILED, &err), RP_DEVICE_PROFILE_FAILED);
    assert_int_equal(err.status, RP_STATUS_IN_USE);
    assert_string_equal(err.text, "another tool is there");
    rp_engine_profiler_close(fixture_engine);
    assert_int_equal(rp_engine_profiler_state(fixture_engine, NULL), RP_DEVICE_PROFILE_NONE);
    begin_status = RP_OK; /* another session; ended before it began, and while it runs */
    assert_int_equal(rp_engine_profiler_open(fixture_engine, &err), RP_OK);
    rp_engine_profiler_end(fixture_engine);
    assert_int_equal(wait_for(RP_DEVICE_PROFILE_ENDED, &err), RP_DEVICE_PROFILE_ENDED);
    rp_engine_profiler_close(fixture_engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kernels_of_a_session_make_its_table, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_cap_ends_it_and_later_steps_are_not_recorded, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_errors_are_reported, setup, teardown),
    };
    return cmocka_run_group_tests_name("device_profile", tests, NULL, NULL);
}
