/* Goal: the engine's trace is complete and consistent: every request from its admission to its end,
 * steps that never overlap, idle time that adds up to the nanosecond with a cause for each, records
 * that a concurrent reader sees whole. Recording allocates nothing and takes no lock. */
#include "engine/engine_internal.h"
#include "engine/observe/step_record.h"
#include "engine/scheduler_internal.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"
#include "tests/engine/engine_fixture.h"

#include <pthread.h>

static struct rp_recorder *recorder;
static struct rp_recording recording;
static struct rp_step_record records[RP_STEP_RECORDS];

static int setup(void **state) {
    struct rp_error err = {0};
    struct rp_recorder_config config = {.seconds = 8, .mib = 8};
    rp_tick_start();
    assert_int_equal(rp_recorder_create(&config, &recorder, &err), RP_OK);
    return fixture_setup(state);
}

static int teardown(void **state) {
    fixture_teardown(state);
    rp_recording_deinit(&recording);
    rp_recorder_destroy(recorder);
    recorder = NULL;
    rp_tick_stop();
    return 0;
}

static void rest(void) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    while (rp_engine_steps_timed(fixture_engine) < rp_counter_read(&metrics->steps) ||
           rp_gauge_read(&metrics->running) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void serve_with(const struct rp_backend *backend, bool run_ahead, uint32_t pages,
                       bool eager) {
    struct rp_engine_config config = fixture_config(backend);
    config.enforce_eager = eager;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    assert_ptr_not_equal(config.ring, &rp_trace_nowhere);
    config.run_ahead = run_ahead;
    config.page_count_override = pages;
    fixture_open(&config);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    rest();
    rp_engine_stop(fixture_engine);
    assert_true(rp_recorder_copy(recorder, 0, &recording));
    assert_int_equal(recording.ring_count, 1);
    assert_true(recording.rings[0].whole);
}

static void serve(const struct rp_backend *backend, bool run_ahead, uint32_t pages) {
    serve_with(backend, run_ahead, pages, false);
}

static uint64_t count_of(enum rp_trace_kind kind) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < recording.event_count; i++)
        count += recording.events[i].kind == kind;
    return count;
}

/* Admitted, prompt in parts, tokens in order, closed with their number. */
static void check_request(uint32_t id) {
    uint32_t admitted = 0, prompt = 0, tokens = 0, closed = 0;
    uint64_t step = 0;
    for (uint64_t i = 0; i < recording.event_count; i++) {
        const struct rp_trace_event *event = &recording.events[i];
        if (event->id != id || rp_trace_kinds[event->kind].lane != RP_LANE_REQUESTS)
            continue;
        assert_int_equal(closed, 0);
        switch (event->kind) {
        case RP_TRACE_ADMITTED:
            admitted++;
            prompt = event->a;
            assert_int_equal(event->a, fixture_requests[id].cached_tokens);
            assert_int_equal(event->ns, fixture_requests[id].scheduled_ns);
            break;
        case RP_TRACE_ROW:
            assert_int_equal(admitted, 1);
            prompt += event->a;
            assert_int_equal(event->b, prompt == fixture_requests[id].prompt_count);
            break;
        case RP_TRACE_TOKEN:
            assert_int_equal(event->a, tokens);
            assert_true(event->v > step);
            step = event->v;
            if (tokens++ == 0)
                assert_int_equal(event->ns, fixture_requests[id].first_token_ns);
            break;
        case RP_TRACE_CLOSED:
            closed++;
            assert_int_equal(event->a, tokens);
            assert_int_equal(event->b, fixture_answers[id].finish);
            break;
        default:
            break;
        }
    }
    assert_int_equal(admitted, 1);
    assert_int_equal(prompt, fixture_requests[id].prompt_count);
    assert_int_equal(tokens, fixture_answers[id].count);
    assert_int_equal(closed, 1);
}

/* Spans of the thread do not overlap, nor do replays and the idle time between them. */
static void check_lanes(void) {
    uint64_t thread_end = 0, device_end = 0;
    for (uint64_t i = 0; i < recording.event_count; i++) {
        const struct rp_trace_event *event = &recording.events[i];
        const struct rp_trace_kind_info *kind = &rp_trace_kinds[event->kind];
        if (kind->shape != RP_TRACE_SPAN)
            continue;
        assert_true(event->v < (uint64_t)1 << 40);
        if (kind->lane == RP_LANE_SCHEDULER) {
            assert_true(event->ns >= thread_end);
            thread_end = event->ns + event->v;
        } else if (kind->lane != RP_LANE_COPIES) {
            assert_true(kind->lane == RP_LANE_REPLAYS || kind->lane == RP_LANE_IDLE);
            assert_true(event->ns >= device_end);
            assert_true(device_end == 0 || event->ns == device_end);
            device_end = event->ns + event->v;
        }
    }
}

static void check_records(void) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    uint64_t idle[RP_IDLE_CAUSE_COUNT] = {0}, busy = 0, idle_all = 0, tokens = 0;
    assert_int_equal(count, rp_counter_read(&metrics->steps));
    assert_int_equal(count, count_of(RP_TRACE_REPLAY));
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_step_record *record = &records[i];
        uint64_t gap = 0;
        assert_true(record->plan_ns <= record->planned_ns);
        assert_true(record->planned_ns <= record->launch_ns);
        assert_true(record->launch_ns <= record->launched_ns);
        assert_true(record->launch_ns <= record->begin_ns);
        assert_true(record->begin_ns <= record->end_ns);
        assert_true(record->end_ns <= record->read_ns);
        for (int c = 0; c < RP_IDLE_CAUSE_COUNT; c++) {
            gap += record->idle_ns[c];
            idle[c] += record->idle_ns[c];
        }
        if (i > 0) {
            assert_int_equal(record->step, records[i - 1].step + 1);
            assert_int_equal(gap, record->begin_ns - records[i - 1].end_ns);
        }
        busy += record->end_ns - record->begin_ns;
        idle_all += gap;
        tokens += record->prompt_tokens + record->decode_rows;
        assert_int_equal(record->prompt_tokens + record->decode_rows, record->tokens);
    }
    assert_true(tokens > FIXTURE_REQUESTS * (FIXTURE_OUTPUT - 1));
    assert_int_equal(busy, rp_counter_read(&metrics->device_busy_ns));
    for (int c = 0; c < RP_IDLE_CAUSE_COUNT; c++)
        assert_true(idle[c] <=
                    rp_counter_read(&metrics->idle_ns[c])); /* the rest: after the last */
    assert_true(idle[RP_IDLE_UNKNOWN] * 50 <= idle_all);
    /* The newest ones, and those since a given time. */
    assert_int_equal(rp_engine_copy_steps(fixture_engine, 0, records, 3), 3);
    uint64_t since = records[1].end_ns;
    assert_int_equal(rp_engine_copy_steps(fixture_engine, since, records, 100), 2);
}

static void check_everything(void) {
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        check_request(i);
    check_lanes();
    check_records();
    assert_true(count_of(RP_TRACE_LOAD) > 0 && count_of(RP_TRACE_PAGES) > 0);
    assert_true(count_of(RP_TRACE_RATE) > 0);
    assert_true(count_of(RP_TRACE_PLAN) == count_of(RP_TRACE_LAUNCH));
    assert_true(count_of(RP_TRACE_WAIT) == count_of(RP_TRACE_COMMIT));
    assert_true(count_of(RP_TRACE_EMIT) > 0 && count_of(RP_TRACE_ACCEPT) > 0);
}

static void test_requests_steps_and_idle_time_agree_with_run_ahead(void **state) {
    (void)state;
    serve(NULL, true, 0);
    check_everything();
}

static void test_requests_steps_and_idle_time_agree_one_step_at_a_time(void **state) {
    (void)state;
    serve(NULL, false, 0);
    check_everything();
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    uint64_t result = 0, plan = 0, launch = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_false(records[i].behind);
        result += records[i].idle_ns[RP_IDLE_RESULT];
        plan += records[i].idle_ns[RP_IDLE_PLAN];
        launch += records[i].idle_ns[RP_IDLE_LAUNCH];
    }
    assert_true(result > 0 && plan > 0 && launch > 0); /* nothing overlaps with the device */
}

static void test_a_device_with_its_own_memory_and_clock_is_mapped(void **state) {
    (void)state;
    serve(fake_backend(), true, 0);
    check_everything();
}

static void test_swaps_are_charged_to_the_request_that_moved(void **state) {
    uint32_t swaps = 0, out = 0, in = 0;
    (void)state;
    serve(NULL, true, 16);
    check_everything();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        uint32_t told = 0;
        for (uint64_t e = 0; e < recording.event_count; e++)
            if (recording.events[e].id == i && recording.events[e].kind == RP_TRACE_SWAP_OUT) {
                assert_true(recording.events[e].a > 0);
                told++;
            }
        assert_int_equal(told, fixture_requests[i].swap_count);
        swaps += told;
    }
    out = (uint32_t)count_of(RP_TRACE_SWAP_OUT);
    in = (uint32_t)count_of(RP_TRACE_SWAP_IN);
    assert_true(swaps > 0);
    assert_int_equal(out, swaps);
    assert_int_equal(in, swaps); /* all were released */
}

static const struct rp_step_record *record_of(uint32_t count, uint64_t step) {
    for (uint32_t i = 0; i < count; i++)
        if (records[i].step == step)
            return &records[i];
    fail_msg("step %llu has no record", (unsigned long long)step);
    return NULL;
}

/* The lane's spans are the swaps', page by page, and fill the gap before the step that they are
 * for: they never overlap with a step. */
static void test_copies_of_a_gpu_are_a_lane_between_the_steps(void **state) {
    uint64_t pages = 0, moved = 0;
    (void)state;
    serve(fake_backend(), true, 16);
    check_everything();
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    for (uint64_t i = 0; i < recording.event_count; i++) {
        const struct rp_trace_event *event = &recording.events[i];
        if (event->kind == RP_TRACE_SWAP_OUT || event->kind == RP_TRACE_SWAP_IN)
            moved += event->a;
        if (event->kind != RP_TRACE_COPY)
            continue;
        const struct rp_step_record *record = record_of(count, event->id);
        pages += event->a;
        assert_int_equal(event->a, record->copied_in + record->copied_out);
        assert_int_equal(event->b, !record->copied_out  ? RP_COPIES_IN
                                   : !record->copied_in ? RP_COPIES_OUT
                                                        : RP_COPIES_BOTH);
        assert_int_equal(event->ns + event->v, record->begin_ns);
        assert_true(event->ns >= record->launch_ns);
        assert_true(record == records || event->ns >= record[-1].end_ns);
    }
    assert_true(pages > 0);
    assert_int_equal(pages, moved);
}

static void test_a_device_without_memory_of_its_own_has_no_lane_of_copies(void **state) {
    (void)state;
    serve(NULL, true, 16);
    assert_true(count_of(RP_TRACE_SWAP_OUT) > 0);
    assert_int_equal(count_of(RP_TRACE_COPY), 0);
}

static void check_misses(enum rp_replay_miss expected) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint64_t steps = rp_counter_read(&metrics->steps);
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    assert_int_equal(rp_counter_read(&metrics->misses[expected]), steps);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(records[i].miss, expected);
    assert_int_equal(count_of(RP_TRACE_MISS), expected == RP_MISS_NONE ? 0 : steps);
    for (uint64_t i = 0; i < recording.event_count; i++)
        if (recording.events[i].kind == RP_TRACE_MISS) {
            const struct rp_step_record *record = record_of(count, recording.events[i].id);
            assert_int_equal(recording.events[i].b, expected);
            assert_int_equal(recording.events[i].a, record->tokens);
        }
}

static void test_every_step_says_whether_it_replayed_its_graphs_and_why_not(void **state) {
    (void)state;
    serve(NULL, true, 0);
    check_misses(RP_MISS_NONE);
    teardown(state);
    setup(state);
    serve_with(NULL, true, 0, true);
    check_misses(RP_MISS_ENFORCE_EAGER);
}

/* Pages that the events of one kind moved. */
static uint64_t pages_of(enum rp_trace_kind kind) {
    uint64_t pages = 0;
    for (uint64_t i = 0; i < recording.event_count; i++)
        pages += recording.events[i].kind == kind ? recording.events[i].a : 0;
    return pages;
}

static void
test_swap_bytes_of_records_counters_and_trace_are_those_of_the_pages_moved(void **state) {
    (void)state;
    serve(NULL, true, 16);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint64_t page_bytes = fixture_engine->layout.kv.page_stride, out = 0, in = 0, steps = 0;
    uint64_t told_out = 0, told_in = 0, counted = 0;
    uint32_t count = rp_engine_copy_steps(fixture_engine, 0, records, RP_STEP_RECORDS);
    for (uint32_t i = 0; i < count; i++) {
        out += records[i].swap_out_bytes;
        in += records[i].swap_in_bytes;
        steps += records[i].swap_out_bytes + records[i].swap_in_bytes > 0;
    }
    for (uint64_t i = 0; i < recording.event_count; i++) {
        told_out += recording.events[i].kind == RP_TRACE_SWAP ? recording.events[i].id : 0;
        told_in += recording.events[i].kind == RP_TRACE_SWAP ? recording.events[i].v : 0;
    }
    assert_true(out > 0 && in > 0);
    assert_int_equal(out, pages_of(RP_TRACE_SWAP_OUT) * page_bytes);
    assert_int_equal(in, pages_of(RP_TRACE_SWAP_IN) * page_bytes);
    assert_int_equal(told_out, out);
    assert_int_equal(told_in, in);
    assert_true(count_of(RP_TRACE_SWAP) > steps); /* zeros after the last step that swaps */
    assert_int_equal(rp_counter_read(&metrics->swap_out_bytes), out);
    assert_int_equal(rp_counter_read(&metrics->swap_in_bytes), in);
    assert_true(rp_histogram_sum(&metrics->step_swap_bytes) == (double)(out + in));
    for (uint32_t i = 0; i <= metrics->step_swap_bytes.bound_count; i++)
        counted += metrics->step_swap_bytes.buckets[i];
    assert_int_equal(counted, steps);
}

static void test_waiting_for_work_is_told_as_such_while_it_lasts(void **state) {
    const struct rp_engine_metrics *metrics;
    struct rp_engine_config config = fixture_config(NULL);
    (void)state;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    fixture_open(&config);
    metrics = rp_engine_metrics(fixture_engine);
    while (rp_counter_read(&metrics->idle_ns[RP_IDLE_NO_WORK]) < 50000000)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(rp_counter_read(&metrics->device_busy_ns), 0);
    rp_engine_stop(fixture_engine);
    assert_true(rp_recorder_copy(recorder, 0, &recording));
    assert_true(count_of(RP_TRACE_IDLE) > 0 && count_of(RP_TRACE_SLEEP) > 0);
}

static void test_a_client_that_does_not_read_is_the_reported_cause(void **state) {
    struct rp_engine_config config = fixture_config(NULL);
    (void)state;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    config.event_capacity = 24; /* two answers of 24 tokens do not fit */
    fixture_open(&config);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    fixture_submit_all();
    while (rp_counter_read(&metrics->idle_ns[RP_IDLE_CLIENT]) < 50000000)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    fixture_drain(FIXTURE_REQUESTS);
    rest();
    assert_int_equal(rp_counter_read(&metrics->idle_ns[RP_IDLE_UNKNOWN]), 0);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(fixture_answers[i].closed, 1);
}

/* The oldest request can always run, so the case is constructed: a scheduler that may allocate one
 * page per step, and a prompt of two. */
static void test_a_request_that_is_not_admitted_is_the_reported_cause(void **state) {
    struct rp_engine_config config = fixture_config(NULL);
    struct rp_error err = {0};
    uint64_t told = 0;
    (void)state;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    assert_int_equal(rp_engine_create(&config, &fixture_model, &fixture_engine, &err), RP_OK);
    fixture_engine->scheduler->config.page_edit_capacity = 1;
    assert_int_equal(rp_engine_start(fixture_engine, NULL), RP_OK);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    fixture_make_requests();
    fixture_requests[0].prompt_count = FIXTURE_PROMPT;
    assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[0]), RP_OK);
    while (rp_counter_read(&metrics->idle_ns[RP_IDLE_ADMISSION]) < 150000000) {
        assert_true(rp_counter_read(&metrics->idle_ns[RP_IDLE_NO_WORK]) < 5000000000u);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_int_equal(rp_gauge_read(&metrics->waiting), 1);
    atomic_store(&fixture_requests[0].cancelled, true);
    rp_engine_notify(fixture_engine);
    fixture_drain(1);
    assert_int_equal(fixture_answers[0].finish, RP_FINISH_CANCELLED);
    /* No request waits any more: from here on the cause is a lack of work. */
    uint64_t no_work = rp_counter_read(&metrics->idle_ns[RP_IDLE_NO_WORK]);
    while (rp_counter_read(&metrics->idle_ns[RP_IDLE_NO_WORK]) < no_work + 50000000)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    rp_engine_stop(fixture_engine);
    assert_true(rp_recorder_copy(recorder, 0, &recording));
    uint64_t counted = rp_counter_read(&metrics->idle_ns[RP_IDLE_ADMISSION]);
    for (uint64_t i = 0; i < recording.event_count; i++)
        if (recording.events[i].kind == RP_TRACE_IDLE && recording.events[i].b == RP_IDLE_ADMISSION)
            told += recording.events[i].v;
    assert_int_equal(told, counted);
    assert_int_equal(rp_counter_read(&metrics->idle_ns[RP_IDLE_UNKNOWN]), 0);
    assert_int_equal(rp_counter_read(&metrics->device_busy_ns), 0);
}

/* --- Cost, and concurrent readers ------------------------------------------------------------- */

/* The linker redirects our calls of these functions (tests/CMakeLists.txt). */
static _Atomic uint64_t locks;
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    atomic_fetch_add(&locks, 1);
    return __real_pthread_mutex_lock(mutex);
}
int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
    atomic_fetch_add(&locks, 1);
    return __real_pthread_mutex_trylock(mutex);
}

static void
test_serving_with_everything_recorded_allocates_nothing_and_takes_no_lock(void **state) {
    struct rp_engine_config config = fixture_config(NULL);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    (void)state;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    assert_true(atomic_load(&locks) > 0); /* calls are redirected */
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    fixture_open(&config);
    uint64_t allocated = rp_alloc_count(), locked = atomic_load(&locks);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    rest();
    assert_int_equal(rp_alloc_count(), allocated);
    assert_int_equal(atomic_load(&locks), locked);
    rp_trace_put(rp_recorder_worker_ring(recorder), RP_TRACE_WORK, rp_tick_ns(), 0, 0, 0, 0);
    rp_tick_check();
    assert_int_equal(rp_alloc_count(), allocated);
    assert_int_equal(atomic_load(&locks), locked);
}

static struct rp_step_records ring;
static _Atomic bool done;

static struct rp_step_record made(uint64_t i) {
    struct rp_step_record record = {.step = i, .graph = (uint32_t)(i * 3), .end_ns = 1000 + i};
    record.kv_tokens = i * 5;
    record.idle_ns[RP_IDLE_UNKNOWN] = i * 7;
    return record;
}

static void *write_records(void *arg) {
    for (uint64_t i = 1; i <= *(uint64_t *)arg; i++) {
        struct rp_step_record record = made(i);
        rp_step_records_put(&ring, &record);
    }
    atomic_store(&done, true);
    return NULL;
}

static void test_a_reader_that_races_sees_whole_records_in_order(void **state) {
    pthread_t writer;
    uint64_t total = 6 * RP_STEP_RECORDS, seen = 0;
    (void)state;
    assert_true(rp_step_records_init(&ring));
    assert_int_equal(rp_step_records_copy(&ring, 0, records, RP_STEP_RECORDS), 0);
    atomic_store(&done, false);
    assert_int_equal(pthread_create(&writer, NULL, write_records, &total), 0);
    for (bool last = false; !last;) {
        last = atomic_load(&done);
        uint32_t count = rp_step_records_copy(&ring, 0, records, RP_STEP_RECORDS);
        for (uint32_t i = 0; i < count; i++) {
            struct rp_step_record expected = made(records[i].step);
            if (memcmp(&records[i], &expected, sizeof expected) != 0 ||
                (i > 0 && records[i].step != records[i - 1].step + 1))
                fail_msg("record %u of a copy is torn", i);
        }
        seen += count;
        if (last)
            assert_int_equal(records[count - 1].step, total);
    }
    pthread_join(writer, NULL);
    assert_true(seen >= RP_STEP_RECORDS - 1);
    rp_step_records_deinit(&ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests_steps_and_idle_time_agree_with_run_ahead,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_steps_and_idle_time_agree_one_step_at_a_time,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_device_with_its_own_memory_and_clock_is_mapped,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_swap_bytes_of_records_counters_and_trace_are_those_of_the_pages_moved, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_swaps_are_charged_to_the_request_that_moved, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_copies_of_a_gpu_are_a_lane_between_the_steps, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_a_device_without_memory_of_its_own_has_no_lane_of_copies, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_every_step_says_whether_it_replayed_its_graphs_and_why_not, setup, teardown),
        cmocka_unit_test_setup_teardown(test_waiting_for_work_is_told_as_such_while_it_lasts, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_serving_with_everything_recorded_allocates_nothing_and_takes_no_lock, setup,
            teardown),
        cmocka_unit_test_setup_teardown(test_a_client_that_does_not_read_is_the_reported_cause,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_request_that_is_not_admitted_is_the_reported_cause,
                                        setup, teardown),
        cmocka_unit_test(test_a_reader_that_races_sees_whole_records_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
