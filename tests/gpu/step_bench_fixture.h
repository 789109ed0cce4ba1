/* step_bench_fixture.h - steps of a 1B shape with random weights on a GPU, as in `reprise bench
 * step`. Included once per test program. */
#ifndef RP_TESTS_GPU_STEP_BENCH_FIXTURE_H
#define RP_TESTS_GPU_STEP_BENCH_FIXTURE_H

#include "base/memory.h"
#include "bench/random_pattern.h"
#include "bench/step_internal.h"
#include "engine/weights_on_device.h"
#include "tests/support/gpu_test.h"

static struct step_bench bench;
static struct rp_bench_step_config config;
static struct step_case at;

static int set_up(void **state) {
    struct rp_device_config device = {0};
    struct rp_model_config shape;
    (void)state;
    bench.backend = rp_backend_cuda_table();
    bench.config = &config;
    bench.pattern = rp_random_pattern();
    return bench.pattern && bench.backend->open(&device, &bench.device, NULL) == RP_OK &&
                   (bench.backend->info(bench.device, &bench.info), true) &&
                   rp_model_shape("llama-3.2-1b", &shape, NULL) == RP_OK &&
                   rp_model_random_vectors(&shape, RP_DTYPE_BF16, 1, 1024, &bench.model, NULL) ==
                       RP_OK &&
                   rp_weights_prepare(bench.backend, bench.device, &bench.model, &bench.prepared,
                                      NULL, NULL, NULL) == RP_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    (void)state;
    rp_weights_release(bench.backend, bench.device, &bench.model, bench.prepared);
    rp_model_deinit(&bench.model);
    rp_free_aligned(bench.pattern);
    bench.backend->close(bench.device);
    return 0;
}

static int close_case(void **state) {
    (void)state;
    if (at.bench)
        rp_step_case_close(&at);
    return 0;
}

/* stamp_every: 0: no stamps. */
static void open_case(uint32_t batch, uint32_t stamp_every) {
    struct rp_error err = {0};
    config = (struct rp_bench_step_config){.kv_dtype = RP_DTYPE_BF16, .stamp_every = stamp_every};
    if (rp_step_case_open(&bench, batch, 512, &at, &err) != RP_OK)
        fail_msg("%s", err.text);
}

static uint64_t free_memory(void) {
    struct rp_device_memory memory;
    bench.backend->memory(bench.device, &memory);
    return memory.free_bytes;
}

#endif
