/* lower_fixture.h - a small random model of any family, lowered for the CPU in the way that a test
 * says. Included once per test program. */
#ifndef RP_TESTS_BACKEND_LOWER_FIXTURE_H
#define RP_TESTS_BACKEND_LOWER_FIXTURE_H

#include "tests/support/driver.h"
#include "tests/support/family_configs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { VOCAB = 97 };

static const struct rp_bucket buckets[] = {
    {1, 1, 1, true},  {2, 2, 2, true},   {4, 4, 4, true},   {8, 8, 8, true},
    {8, 8, 8, false}, {16, 8, 8, false}, {32, 8, 8, false}, {96, 8, 8, false},
};

static struct rp_model model; /* freed in teardown */
static struct rp_driver driver;

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

/* Each of the other families has the operators of one of these. */
static const enum rp_family families[] = {
    RP_FAMILY_LLAMA,       RP_FAMILY_MISTRAL,  RP_FAMILY_QWEN2,       RP_FAMILY_QWEN3,
    RP_FAMILY_GEMMA2,      RP_FAMILY_GRANITE,  RP_FAMILY_OLMO3,       RP_FAMILY_SMOLLM3,
    RP_FAMILY_MINISTRAL3,  RP_FAMILY_STABLELM, RP_FAMILY_COHERE,      RP_FAMILY_MIXTRAL,
    RP_FAMILY_QWEN2_MOE,   RP_FAMILY_GLM4_MOE, RP_FAMILY_DEEPSEEK_V2, RP_FAMILY_DEEPSEEK_V3,
    RP_FAMILY_GPT_OSS,     RP_FAMILY_GEMMA4,   RP_FAMILY_LFM2,        RP_FAMILY_QWEN3_NEXT,
    RP_FAMILY_GRANITE_MOE,
};

static void make_model(enum rp_family family, enum rp_dtype dtype) {
    struct rp_model_config config = {.family = family,
                                     .hidden = 64,
                                     /* with complete and partial panels */
                                     .intermediate = family % 2 ? 88 : 96,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 24,
                                     .vocab = VOCAB,
                                     .max_position = 128,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .bos_id = RP_ID_NONE};
    config.tied = family == RP_FAMILY_LLAMA || family == RP_FAMILY_GEMMA2;
    if (family == RP_FAMILY_MISTRAL || family == RP_FAMILY_GEMMA2 || family == RP_FAMILY_OLMO3)
        config.window = 7;
    rp_test_set_family(&config);
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    assert_int_equal(rp_model_random(&config, dtype, 5, 128, &model, NULL), RP_OK);
}

static struct rp_driver_config way_default(enum rp_dtype dtype) {
    return (struct rp_driver_config){.slots = 8,
                                     .pages_per_slot = 16,
                                     .page_tokens = 4,
                                     .threads = 1,
                                     .buckets = buckets,
                                     .bucket_count = RP_ARRAY_COUNT(buckets),
                                     .kv_dtype = dtype};
}

static void open_way(const struct rp_driver_config *way) {
    rp_driver_close(&driver);
    rp_driver_open(&driver, &model, way);
}

/* The slot starts over. */
static inline void empty_slot(uint32_t slot) {
    for (uint32_t field = RP_SLOT_LENGTH; field <= RP_SLOT_FINISHED; field++)
        rp_driver_edit(&driver, slot, field, 0, 0);
}

#endif
