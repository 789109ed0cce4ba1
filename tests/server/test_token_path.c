/* Goal: a token costs no allocation and no lock while everything is recorded (events, records,
 * percentiles, shares, the nodes of one step in three, a session, a request's own profile,
 * exemplars and objectives) and read concurrently. Counted by thread: readers may allocate. */
#include "engine/engine_internal.h"
#include "engine/observe/profile_report.h"
#include "metrics/latency.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"
#include "server/observe/goodput.h"
#include "server/observe/request_log.h"
#include "server/observe/server_metrics.h"
#include "tests/engine/engine_fixture.h"

#include <pthread.h>
#include <stdlib.h>

/* --- Counting -------------------------------------------------------------------------------- */

/* The linker redirects our calls of these functions (tests/CMakeLists.txt). Counted in all threads
 * that have not opted out: the engine's, the stream's, the pool's. */
static _Thread_local bool uncounted;
static _Atomic uint64_t counted;

static void count(void) {
    if (!uncounted)
        atomic_fetch_add(&counted, 1);
}

#define WRAP(type, name, parameters, arguments)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        count();                                                                                   \
        return __real_##name arguments;                                                            \
    }
WRAP(void *, malloc, (size_t bytes), (bytes))
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes))
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes))
WRAP(int, posix_memalign, (void **out, size_t align, size_t bytes), (out, align, bytes))
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
WRAP(void, free, (void *old), (old))
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
WRAP(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))

static void test_calls_are_counted(void **state) {
    (void)state;
    uncounted = false;
    uint64_t before = atomic_load(&counted);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    void *memory = rp_alloc(10);
    void *volatile aligned = rp_alloc_aligned(64, 64);
    rp_free(memory);
    rp_free_aligned(aligned);
    assert_true(atomic_load(&counted) - before >= 5);
    uncounted = true;
    before = atomic_load(&counted);
    rp_free(rp_alloc(10));
    assert_true(atomic_load(&counted) == before);
}

/* --- Readers --------------------------------------------------------------------------------- */

static struct rp_recorder *recorder;
static _Atomic bool reading, failed;
static _Atomic uint64_t reads;

/* The data of /debug/trace, /debug/profile, /debug/diagnose, /debug/latency and /debug/memory. */
static void *read_everything(void *arg) {
    static _Atomic uint32_t readers;
    static struct rp_step_record records[2][RP_STEP_RECORDS];
    static uint32_t pages[2][256];
    uint32_t me = atomic_fetch_add(&readers, 1) % 2;
    (void)arg;
    uncounted = true;
    while (atomic_load(&reading)) {
        struct rp_recording recording;
        struct rp_profile_table table;
        struct rp_latency_stats stats;
        const struct rp_profile_query query = {.group = RP_PROFILE_BY_REQUEST};
        const struct rp_latency *latency = &fixture_engine->observer.step_latency[0];
        bool copied = rp_recorder_copy(recorder, 0, &recording);
        rp_recording_deinit(&recording);
        copied &= rp_engine_profile_table(fixture_engine, &query, &table) == RP_OK;
        rp_profile_table_deinit(&table);
        rp_engine_copy_steps(fixture_engine, 0, records[me], RP_STEP_RECORDS);
        rp_latency_read(&latency, 1, RP_LATENCY_10S, rp_tick_ns(), &stats);
        rp_scheduler_page_map(fixture_engine->scheduler, pages[me], 256);
        if (!copied)
            atomic_store(&failed, true);
        atomic_fetch_add(&reads, 1);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return NULL;
}

/* --- The engine's part ----------------------------------------------------------------------- */

static int setup(void **state) {
    struct rp_error err = {0};
    const struct rp_recorder_config config = {.seconds = 8, .mib = 8};
    uncounted = true;
    rp_tick_start();
    assert_int_equal(rp_recorder_create(&config, &recorder, &err), RP_OK);
    return fixture_setup(state);
}

static int teardown(void **state) {
    fixture_teardown(state);
    rp_recorder_destroy(recorder);
    recorder = NULL;
    rp_tick_stop();
    return 0;
}

static void
test_the_engine_allocates_and_locks_nothing_while_all_is_recorded_and_read(void **state) {
    struct rp_engine_config config = fixture_config(NULL);
    const struct rp_profile_schedule schedule = {.wait = 1, .warmup = 1, .active = 8, .repeat = 2};
    pthread_t readers[2];
    (void)state;
    config.ring = rp_recorder_add(recorder, "engine", RP_RECORDER_ENGINE);
    config.profile_every = 3;
    config.page_tokens = 4;
    config.page_count_override = 90; /* some are swapped out */
    config.max_model_len = 200;
    fixture_open(&config);
    assert_int_equal(rp_step_profile_start(rp_engine_profile(fixture_engine), &schedule), 1);
    atomic_store(&reading, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_everything, NULL), 0);
    while (atomic_load(&reads) < 2)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    uint64_t before = atomic_load(&counted), read_before = atomic_load(&reads);
    fixture_submit_all();
    fixture_drain(FIXTURE_REQUESTS);
    fixture_make_requests();
    fixture_requests[2].profile = true;
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
    fixture_drain(FIXTURE_REQUESTS);
    while (atomic_load(&reads) == read_before)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(atomic_load(&counted), before);
    atomic_store(&reading, false);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    rp_engine_stop(fixture_engine);
    /* All of it happened. */
    const struct rp_engine_metrics *metrics = rp_engine_metrics(fixture_engine);
    uint64_t done;
    assert_false(atomic_load(&failed));
    assert_int_equal(rp_step_profile_state(rp_engine_profile(fixture_engine), &done),
                     RP_PROFILE_DONE);
    assert_int_equal(done, 16);
    assert_true(rp_counter_read(&metrics->preemptions) > 0);
    assert_true(rp_counter_read(&metrics->attributed_ns) > 0);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        assert_int_equal(fixture_answers[i].closed, 1);
        assert_int_equal(fixture_requests[i].stats.tokens, FIXTURE_OUTPUT);
        assert_int_equal(fixture_requests[i].stats.streak, 0);
    }
}

/* --- The loop thread's part ------------------------------------------------------------------ */

static void test_a_token_and_an_end_allocate_and_lock_nothing_on_the_loop_thread(void **state) {
    static struct rp_server_metrics metrics;
    static struct rp_request_record record;
    static struct rp_goodput goodput;
    static struct rp_request_log log;
    const struct rp_slo slo = {.ttft_ns = 1, .tpot_ns = 1000000000, .e2e_ns = 1};
    struct rp_request request = {.id = 1, .prompt_count = 5, .submit_ns = 1000};
    (void)state;
    uncounted = false;
    rp_server_metrics_init(&metrics);
    rp_goodput_init(&goodput, &slo);
    assert_true(rp_request_log_init(&log));
    record.trace = (struct rp_trace_context){.trace_high = 7, .trace_low = 8};
    record.first_byte_ns = 500;
    request.scheduled_ns = 2000;
    rp_record_queued(&record, &request);
    uint64_t before = atomic_load(&counted), now = 2000;
    for (uint32_t i = 0; i < 500; i++) {
        struct rp_event event = {.request = &request, .index = i, .time_ns = now += 12345678 + i};
        rp_record_token(&record, &event);
        rp_server_metrics_token(&metrics, i == 0, now, 12345678 + i, &record.trace);
    }
    request.first_token_ns = 12347678;
    request.closed_ns = now;
    rp_record_closed(&record, &request, RP_FINISH_LENGTH);
    rp_server_metrics_closed(&metrics, &(struct rp_closed_request){.request = &request,
                                                                   .trace = &record.trace,
                                                                   .first_byte_ns = 500,
                                                                   .last_token_ns = now,
                                                                   .tokens = 500,
                                                                   .outcome = RP_OUTCOME_LENGTH});
    rp_request_log_add(&log, &record);
    rp_goodput_note(&goodput, &record);
    assert_int_equal(atomic_load(&counted), before);
    uncounted = true;
    struct rp_exemplar_copy exemplar;
    uint32_t exemplars = 0, misses = 0;
    for (uint32_t i = 0; i <= metrics.inter_token.bound_count; i++)
        exemplars += rp_histogram_exemplar(&metrics.inter_token, i, &exemplar);
    for (uint32_t i = 0; i < RP_SLO_CAUSE_COUNT; i++)
        misses += rp_counter_read(&goodput.misses[RP_SLO_TTFT][i]) > 0;
    assert_true(exemplars > 0 && misses == 1);
    rp_request_log_deinit(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_counted),
        cmocka_unit_test_setup_teardown(
            test_the_engine_allocates_and_locks_nothing_while_all_is_recorded_and_read, setup,
            teardown),
        cmocka_unit_test(test_a_token_and_an_end_allocate_and_lock_nothing_on_the_loop_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
