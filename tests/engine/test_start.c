/* Goal: an engine whose weights are read while its graphs are captured gives the answers of one
 * that reads them first, and every error of either part ends the start without a leak.
 * Method: the demo model on a fake GPU that reserves matrices (tests/support/fake_backend.h, which
 * asserts that everything is freed). Semaphores make captures and fills wait for each other. */
#include "engine/weights_on_device.h"
#include "tests/engine/engine_fixture.h"

#include <pthread.h>

static sem_t captured, filled;
static uint32_t last_fill;
static int fill_status;

static void load(enum rp_quant_scheme scheme) {
    const struct rp_model_quantization quantization = {scheme, true};
    struct rp_error err = {0};
    char path[1024];
    rp_model_deinit(&fixture_model);
    rp_test_source("models/demo", path, sizeof path);
    if (rp_model_open(path, RP_MODEL_DTYPE_AUTO, &quantization, 0, &fixture_model, &err) != RP_OK)
        fail_msg("%s", err.text);
}

static int setup(void **state) {
    fixture_setup(state);
    sem_init(&captured, 0, 0);
    sem_init(&filled, 0, 0);
    last_fill = 0;
    fill_status = RP_STATUS_IO;
    fake_backend_config.reserves = true;
    load(RP_QUANT_NONE);
    return 0;
}

static int teardown(void **state) {
    rp_alloc_fail_at(0);
    fixture_teardown(state);
    sem_destroy(&captured);
    sem_destroy(&filled);
    return 0;
}

static void await(sem_t *sem) {
    while (sem_wait(sem) != 0)
        ;
}

static int fails_to_start(struct rp_engine_config *config, struct rp_error *err) {
    int status = rp_engine_create(config, &fixture_model, &fixture_engine, err);
    assert_true(status != RP_OK);
    assert_null(fixture_engine);
    for (uint32_t i = 0; i < fixture_model.weights.count; i++)
        assert_null(fixture_model.weights.entries[i].matrix.data);
    return status;
}

/* --- values ---------------------------------------------------------------------------------- */

static void answers_of(bool reserves, enum rp_quant_scheme scheme, struct fixture_answer *out,
                       uint64_t *out_bytes) {
    fake_backend_config.reserves = reserves;
    struct rp_engine_config config = fixture_config(fake_backend());
    load(scheme);
    fixture_create(&config);
    *out_bytes = rp_engine_memory_plan(fixture_engine)->total_bytes;
    fixture_submit_all();
    fixture_start();
    fixture_drain(FIXTURE_REQUESTS);
    memcpy(out, fixture_answers, sizeof fixture_answers);
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
}

static void test_values_are_in_place_before_the_first_step_and_the_plan_is_the_same(void **state) {
    (void)state;
    static struct fixture_answer first[FIXTURE_REQUESTS], beside[FIXTURE_REQUESTS];
    const enum rp_quant_scheme schemes[] = {RP_QUANT_NONE, RP_QUANT_INT8, RP_QUANT_FP8_W8A16};
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes) * 2; i++) {
        uint64_t bytes, bytes_beside;
        fake_backend_config.host_quantizes = i % 2;
        answers_of(false, schemes[i / 2], first, &bytes);
        uint32_t quantized = fake_backend_quantized;
        answers_of(true, schemes[i / 2], beside, &bytes_beside);
        assert_int_equal(bytes, bytes_beside);
        assert_int_equal(fake_backend_quantized > quantized, i % 2 == 0 && i > 1);
        for (uint32_t r = 0; r < FIXTURE_REQUESTS; r++) {
            assert_int_equal(first[r].count, beside[r].count);
            assert_memory_equal(first[r].tokens, beside[r].tokens, sizeof first[r].tokens);
        }
    }
}

/* --- both at once ---------------------------------------------------------------------------- */

static int fill_after_a_capture(uint32_t count) {
    if (count == 2)
        await(&captured);
    return RP_OK;
}

static int post_first_capture(uint32_t count) {
    if (count == 1)
        sem_post(&captured);
    return RP_OK;
}

static void test_graphs_are_captured_before_the_weights_are_there(void **state) {
    (void)state;
    fake_backend_config.on_fill = fill_after_a_capture;
    fake_backend_config.on_capture = post_first_capture;
    struct rp_engine_config config = fixture_config(fake_backend());
    fixture_create(&config); /* weights first: it would wait forever */
}

static int fill_2_fails(uint32_t count) {
    last_fill = count;
    if (count < 2)
        return RP_OK;
    await(&captured);
    sem_post(&filled);
    return fill_status;
}

static int capture_beside_the_error(uint32_t count) {
    if (count == 1) {
        sem_post(&captured);
        await(&filled);
    }
    return RP_OK;
}

static void test_a_loader_that_fails_during_a_capture_ends_the_start_with_its_error(void **state) {
    (void)state;
    /* The device memory is there, so that the lack of memory is the host's. */
    static const int statuses[] = {RP_STATUS_IO, RP_STATUS_NO_MEMORY};
    fake_backend_config.on_fill = fill_2_fails;
    fake_backend_config.on_capture = capture_beside_the_error;
    for (size_t i = 0; i < RP_ARRAY_COUNT(statuses); i++) {
        struct rp_error err = {0};
        load(RP_QUANT_NONE);
        fill_status = statuses[i];
        struct rp_engine_config config = fixture_config(fake_backend());
        assert_int_equal(fails_to_start(&config, &err), fill_status);
        assert_string_equal(err.text, "fake: matrix 2 cannot be filled");
        assert_int_equal(last_fill, 2);
    }
}

static int capture_fails_beside_the_error(uint32_t count) {
    capture_beside_the_error(count);
    return RP_STATUS_DEVICE;
}

static void test_of_two_errors_the_loaders_is_reported(void **state) {
    (void)state;
    struct rp_error err = {0};
    fake_backend_config.on_fill = fill_2_fails;
    fake_backend_config.on_capture = capture_fails_beside_the_error;
    struct rp_engine_config config = fixture_config(fake_backend());
    assert_int_equal(fails_to_start(&config, &err), RP_STATUS_IO);
    assert_string_equal(err.text, "fake: matrix 2 cannot be filled");
}

static int note_fill(uint32_t count) {
    if (count == 1)
        sem_post(&filled);
    return RP_OK;
}

static int capture_fails_during_loading(uint32_t count) {
    (void)count;
    await(&filled);
    return RP_STATUS_DEVICE;
}

static void test_a_capture_that_fails_during_loading_ends_the_start_with_its_error(void **state) {
    (void)state;
    struct rp_error err = {0};
    fake_backend_config.on_fill = note_fill;
    fake_backend_config.on_capture = capture_fails_during_loading;
    struct rp_engine_config config = fixture_config(fake_backend());
    assert_int_equal(fails_to_start(&config, &err), RP_STATUS_DEVICE);
    assert_non_null(strstr(err.text, "fake: graph 1 cannot be captured"));
}

static int stop_after_one(void *ctx, uint32_t done, uint32_t total) {
    (void)ctx;
    assert_int_equal(done, 1);
    assert_true(total > 1);
    return RP_STATUS_SHUTTING_DOWN;
}

static int count_fills(uint32_t count) {
    last_fill = count;
    return RP_OK;
}

static void test_a_fill_that_is_told_to_stop_reads_no_further_matrix(void **state) {
    (void)state;
    fake_backend_config.on_fill = count_fills;
    const struct rp_backend *backend = fake_backend();
    const struct rp_device_config one = {.threads = 1};
    struct rp_weights_fill fill = {
        .backend = backend, .model = &fixture_model, .filled = stop_after_one};
    uint32_t prepared;
    assert_int_equal(backend->open(&one, &fill.device, NULL), RP_OK);
    assert_true(rp_weights_can_reserve(backend, &fixture_model));
    assert_int_equal(rp_weights_reserve(backend, fill.device, &fixture_model, &prepared, NULL),
                     RP_OK);
    assert_int_equal(rp_weights_fill(&fill, NULL), RP_STATUS_SHUTTING_DOWN);
    assert_int_equal(last_fill, 1);
    backend->matrices_end(fill.device);
    rp_weights_release(backend, fill.device, &fixture_model, prepared);
    backend->close(fill.device);
}

/* --- memory and progress --------------------------------------------------------------------- */

static void test_without_room_for_the_weights_the_text_is_that_of_a_small_gpu(void **state) {
    (void)state;
    struct rp_error reserved = {0}, prepared = {0};
    for (int reserves = 0; reserves < 2; reserves++) {
        load(RP_QUANT_NONE);
        fake_backend_config.reserves = reserves;
        fake_backend_config.memory_bytes = rp_model_weight_bytes(&fixture_model) / 2;
        fake_backend_config.context_bytes = 0;
        struct rp_engine_config config = fixture_config(fake_backend());
        config.page_count_override = 8;
        assert_int_equal(fails_to_start(&config, reserves ? &reserved : &prepared),
                         RP_STATUS_NO_MEMORY);
    }
    assert_string_equal(reserved.text, prepared.text);
}

struct progress {
    pthread_t thread;
    uint32_t captures, weights, total;
};

static void on_progress(void *ctx, const char *stage, uint32_t done, uint32_t total) {
    struct progress *progress = ctx;
    bool weights = strcmp(stage, "weights") == 0;
    assert_true(pthread_equal(pthread_self(), progress->thread));
    assert_true(weights || progress->weights == 0);
    uint32_t *last = weights ? &progress->weights : &progress->captures;
    assert_true(done > *last && done <= total);
    *last = done;
    progress->total = total;
}

static void test_progress_comes_from_one_thread_graphs_before_weights(void **state) {
    (void)state;
    struct progress progress = {.thread = pthread_self()};
    struct rp_engine_config config = fixture_config(fake_backend());
    config.progress = on_progress;
    config.progress_ctx = &progress;
    fixture_create(&config);
    assert_int_equal(progress.captures, rp_engine_graph_count(fixture_engine));
    assert_true(progress.weights > 0);
    assert_int_equal(progress.weights, progress.total);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_values_are_in_place_before_the_first_step_and_the_plan_is_the_same),
        TEST(test_graphs_are_captured_before_the_weights_are_there),
        TEST(test_a_loader_that_fails_during_a_capture_ends_the_start_with_its_error),
        TEST(test_of_two_errors_the_loaders_is_reported),
        TEST(test_a_capture_that_fails_during_loading_ends_the_start_with_its_error),
        TEST(test_a_fill_that_is_told_to_stop_reads_no_further_matrix),
        TEST(test_without_room_for_the_weights_the_text_is_that_of_a_small_gpu),
        TEST(test_progress_comes_from_one_thread_graphs_before_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
