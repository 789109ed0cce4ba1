/* lowered_fixture.h - a small random model lowered on a GPU, for the tests of the list of launches.
 * Included once per test program. */
#ifndef RP_TESTS_GPU_LOWERED_FIXTURE_H
#define RP_TESTS_GPU_LOWERED_FIXTURE_H

#include "tests/support/driver.h"
#include "tests/support/family_configs.h"
#include "tests/support/gpu_test.h"

#include <stdio.h>
#include <string.h>

enum { LAYERS = 3, PAGE_TOKENS = 64 };

static struct rp_model model;
static struct rp_driver driver;

static int tear_down(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

#define TEST(name) cmocka_unit_test_teardown(name, tear_down)

static struct rp_model_config config_of(enum rp_family family, uint32_t positions,
                                        enum rp_quant_scheme scheme) {
    return (struct rp_model_config){.family = family,
                                    .layers = LAYERS,
                                    .heads = 8,
                                    .kv_heads = 2,
                                    .head_dim = 128,
                                    .vocab = 512,
                                    .max_position = positions,
                                    .norm_eps = 1e-5f,
                                    .rope = {.theta = 10000.0},
                                    .bos_id = RP_ID_NONE,
                                    .quantization = scheme};
}

static void make_model(const struct rp_model_config *config) {
    tear_down(NULL);
    assert_int_equal(rp_model_random(config, RP_DTYPE_BF16, 5, config->max_position, &model, NULL),
                     RP_OK);
}

static void lower_model(const struct rp_bucket *buckets, uint32_t bucket_count, uint32_t positions,
                        bool no_fusion) {
    struct rp_driver_config way = {.backend = rp_backend_cuda_table(),
                                   .slots = 64,
                                   .pages_per_slot = positions / PAGE_TOKENS,
                                   .page_tokens = PAGE_TOKENS,
                                   .buckets = buckets,
                                   .bucket_count = bucket_count,
                                   .kv_dtype = RP_DTYPE_BF16,
                                   .eager = true,
                                   .no_fusion = no_fusion};
    rp_driver_open(&driver, &model, &way);
    assert_int_equal(rp_graph_set_failed(driver.graphs), 0);
}

#endif
