/* Goal: `bench step` and `bench prefill` run whole steps, only through a backend's table, with the
 * bytes and operations of their shapes. Times are not checked. */
#include "base/memory.h"
#include "bench/bench_step.h"
#include "engine/buckets.h"
#include "tests/support/fake_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_device *device;
static struct rp_bench_step_result *result;
static struct rp_error err;

static int setup(void **state) {
    struct rp_device_config config = {.threads = 2};
    (void)state;
    result = rp_calloc(1, sizeof *result);
    return result && rp_backend_cpu()->open(&config, &device, NULL) == RP_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    rp_backend_cpu()->close(device);
    rp_free(result);
    return 0;
}

static struct rp_bench_step_config decode_config(void) {
    static const uint32_t batches[] = {1, 5}, contexts[] = {3, 40};
    return (struct rp_bench_step_config){.backend = rp_backend_cpu(),
                                         .device = device,
                                         .threads = 1,
                                         .shape = "demo",
                                         .dtype = RP_DTYPE_BF16,
                                         .kv_dtype = RP_DTYPE_BF16,
                                         .batches = batches,
                                         .batch_count = 2,
                                         .contexts = contexts,
                                         .context_count = 2,
                                         .steps = 40, /* lengths are set back on the way */
                                         .warm_up = 1};
}

static struct rp_bench_step_config prompt_config(void) {
    static const uint32_t batches[] = {1, 3}, contexts[] = {1, 33, 200};
    struct rp_bench_step_config config = decode_config();
    config.prompt = true;
    config.batches = batches;
    config.contexts = contexts;
    config.context_count = 3;
    config.steps = 3;
    return config;
}

static void check_case(const struct rp_bench_step *c, uint32_t steps) {
    assert_int_equal(c->steps, steps);
    assert_false(c->reliable); /* fewer than 100 */
    assert_int_equal(c->settled_after, 0);
    assert_true(c->ms_p50 > 0 && c->ms_p50 <= c->ms_p99);
    assert_true(c->host_us_p50 >= 0 && c->host_us_p50 <= c->host_us_p99);
    assert_true(c->device_ms_p50 > 0 && c->gap_us_p50 >= 0 && c->gap_us_p50 <= c->gap_us_p99);
    assert_true(c->tokens_per_second > 0);
    assert_true(c->launches > 0 && c->arena_bytes > 0);
    assert_true(c->weight_bytes > 0 && c->kv_bytes > 0 && c->flops > 0);
}

/* The demo: 8 layers, 2 heads of K and V of 64, its 7.3 M parameters all but vectors in
 * matrices. */
static void decode_steps_have_the_bytes_of_every_batch_and_context(void **state) {
    (void)state;
    struct rp_bench_step_config config = decode_config();
    assert_int_equal(rp_bench_step(&config, result, &err), RP_OK);
    assert_int_equal(result->case_count, 4);
    assert_int_equal(result->skipped, 0);
    assert_true(result->read_bandwidth > 0);
    for (uint32_t i = 0; i < 4; i++) {
        const struct rp_bench_step *c = &result->cases[i];
        assert_int_equal(c->batch, config.batches[i / 2]);
        assert_int_equal(c->context, config.contexts[i % 2]);
        check_case(c, 40);
        assert_true(c->weight_bytes == 2.0 * (7344384 - 17 * 256));
        assert_true(c->kv_bytes == 2.0 * 2 * 8 * 2 * 64 * c->batch * (c->context + 8));
    }
}

/* Whether they settle depends on the machine. */
static void steps_count_from_where_they_have_settled(void **state) {
    (void)state;
    static const uint32_t one[] = {1}, context[] = {3};
    struct rp_bench_step_config config = decode_config();
    config.batches = one;
    config.contexts = context;
    config.batch_count = config.context_count = 1;
    config.steps = 100;
    assert_int_equal(rp_bench_step(&config, result, &err), RP_OK);
    const struct rp_bench_step *c = &result->cases[0];
    uint32_t measured = c->steps + c->settled_after;
    assert_true(measured == 200 || (c->reliable && measured == 100));
    assert_true(c->steps >= 100);
    assert_true(c->reliable || c->settled_after == 0);
    assert_true(c->gap_us_p99 < 1e9); /* no gap includes a pause between runs */
}

static void prompts_of_any_length_and_number_run_in_one_step(void **state) {
    (void)state;
    struct rp_bench_step_config config = prompt_config();
    config.dtype = RP_DTYPE_F32;
    assert_int_equal(rp_bench_step(&config, result, &err), RP_OK);
    assert_int_equal(result->case_count, 6);
    for (uint32_t i = 1; i < 3; i++) {
        const struct rp_bench_step *one = &result->cases[i], *three = &result->cases[3 + i];
        check_case(one, 3);
        check_case(three, 3);
        assert_true(one->gemm_flops > 0 && three->gemm_flops > 0);
        assert_int_equal(three->batch, 3);
        assert_true(three->flops == 3 * one->flops);
        assert_true(three->kv_bytes == 3 * one->kv_bytes);
        assert_true(three->weight_bytes == one->weight_bytes);
    }
}

static void more_tokens_than_a_step_has_are_refused(void **state) {
    (void)state;
    static const uint32_t batches[] = {RP_STEP_TOKENS_MAX};
    struct rp_bench_step_config config = prompt_config();
    config.batches = batches;
    config.batch_count = 1;
    assert_int_equal(rp_bench_step(&config, result, &err), RP_STATUS_RANGE);
    assert_non_null(strstr(err.text, "tokens in a step"));
}

static void steps_run_eager_and_unfused_and_with_wide_page_tables(void **state) {
    (void)state;
    struct rp_bench_step_config config = decode_config();
    config.enforce_eager = config.no_fusion = true;
    config.max_model_len = 1000;
    assert_int_equal(rp_bench_step(&config, result, &err), RP_OK);
    assert_int_equal(result->case_count, 4);
    for (uint32_t i = 0; i < 4; i++)
        check_case(&result->cases[i], 40);
}

/* The host cannot access its memory; 400 sequences of 300 tokens exceed its 256 MiB. */
static void a_gpu_runs_what_fits_its_memory(void **state) {
    (void)state;
    static const uint32_t batches[] = {2, 400}, contexts[] = {40, 300};
    struct rp_device_config gpu = {.threads = 2};
    struct rp_bench_step_config config = decode_config();
    fake_backend_reset();
    config.backend = fake_backend();
    config.batches = batches;
    config.contexts = contexts;
    config.steps = 8;
    assert_int_equal(config.backend->open(&gpu, &config.device, &err), RP_OK);
    int status = rp_bench_step(&config, result, &err);
    if (status == RP_OK) {
        assert_int_equal(result->case_count, 3);
        assert_int_equal(result->skipped, 1);
        for (uint32_t i = 0; i < 3; i++)
            check_case(&result->cases[i], 8);
    }
    config.backend->close(config.device);
    assert_int_equal(status, RP_OK);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    static const uint32_t long_contexts[] = {1020};
    struct rp_bench_step_config config = decode_config();
    config.shape = "no-such-shape";
    assert_int_equal(rp_bench_step(&config, result, &err), RP_STATUS_NOT_FOUND);
    config = decode_config();
    config.contexts = long_contexts;
    config.context_count = 1;
    assert_int_equal(rp_bench_step(&config, result, &err), RP_STATUS_RANGE);
    assert_int_equal(result->case_count, 0);
    config = decode_config();
    config.shape = NULL;
    config.model_dir = "/nowhere";
    assert_int_not_equal(rp_bench_step(&config, result, &err), RP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_steps_have_the_bytes_of_every_batch_and_context),
        cmocka_unit_test(steps_count_from_where_they_have_settled),
        cmocka_unit_test(prompts_of_any_length_and_number_run_in_one_step),
        cmocka_unit_test(more_tokens_than_a_step_has_are_refused),
        cmocka_unit_test(steps_run_eager_and_unfused_and_with_wide_page_tables),
        cmocka_unit_test(a_gpu_runs_what_fits_its_memory),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
