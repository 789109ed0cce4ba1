/* group_fixture.h - a small random model of any family on one device and on a group of ranks, and
 * how their logits differ. Included once per test program. */
#ifndef RP_TESTS_BACKEND_GROUP_FIXTURE_H
#define RP_TESTS_BACKEND_GROUP_FIXTURE_H

#include "backend/group.h"
#include "base/memory.h"
#include "tests/support/driver.h"
#include "tests/support/family_configs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 300, SEQUENCES = 3, PROMPT = 9, DECODES = 3, ROWS = SEQUENCES * (1 + DECODES) };

static const struct rp_bucket buckets[] = {{4, 4, 4, true}, {8, 4, 4, false}, {32, 4, 4, false}};

struct record {
    float logits[ROWS][VOCAB];
    int32_t tokens[ROWS];
    uint32_t count;
};

/* What the test program says of every device that it opens. */
static struct rp_driver_config group_base;
/* GPUs; groups of more ranks share one. 0: the ranks are not GPUs. */
static uint32_t group_gpus;

static struct rp_model model;
static struct rp_driver driver;
static struct record one, many, again;

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

static void make_model(enum rp_family family, enum rp_dtype dtype, enum rp_quant_scheme scheme,
                       const char *mask_text) {
    struct rp_model_config config = {.family = family,
                                     .hidden = 64,
                                     .intermediate = family % 2 ? 88 : 96,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2, /* fewer than 4 ranks */
                                     .head_dim = 24,
                                     .vocab = VOCAB, /* the last rank has rows of padding alone */
                                     .max_position = 64,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .quantization = scheme,
                                     .bos_id = RP_ID_NONE};
    if (rp_quant_scheme_has_blocks(scheme)) { /* whole groups of 128 for each of 4 ranks */
        config.head_dim = 128;
        config.intermediate = 512;
    }
    config.tied = family == RP_FAMILY_LLAMA || family == RP_FAMILY_GEMMA2;
    config.o_bias = config.mlp_bias = family == RP_FAMILY_LLAMA;
    if (family == RP_FAMILY_MISTRAL || family == RP_FAMILY_GEMMA2 || family == RP_FAMILY_OLMO3)
        config.window = 7;
    rp_test_set_family(&config);
    config.experts.intermediate *= 4; /* 16 columns of each for a rank */
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    assert_int_equal(rp_model_random(&config, dtype, 5, 64, &model, NULL), RP_OK);
    if (mask_text) {
        const struct rp_mask_limits limits = rp_model_mask_limits(&config, 64);
        struct rp_mask *mask;
        struct rp_error err = {0};
        if (rp_mask_parse(mask_text, strlen(mask_text), &limits, &mask, &err) != RP_OK)
            fail_msg("%s", err.text);
        assert_int_equal(rp_model_set_mask(&model, mask, NULL), RP_OK);
    }
}

static struct rp_driver_config way_of(uint32_t ranks, enum rp_dtype kv_dtype) {
    struct rp_driver_config way = group_base;
    way.ranks = way.threads = ranks;
    /* A kernel that waits for its peer must leave room for the peer's kernels: none is launched
     * before those ahead of it have ended. */
    way.ranks_share_device = way.no_dependent_launch = group_gpus && ranks > group_gpus;
    way.slots = way.pages_per_slot = 4;
    way.page_tokens = way.page_tokens ? way.page_tokens : 4;
    way.buckets = buckets;
    way.bucket_count = RP_ARRAY_COUNT(buckets);
    way.kv_dtype = kv_dtype;
    return way;
}

static void keep(struct record *record, uint32_t row) {
    memcpy(record->logits[record->count], rp_driver_logits(&driver, row), sizeof record->logits[0]);
    record->tokens[record->count++] = rp_driver_result(&driver, row)->token;
}

/* Prompts in chunks, then decode steps. Decode rows get `tokens`, those of another record: what was
 * sampled may differ after a rounding. */
static void run(struct record *record, const struct rp_driver_config *way, uint32_t chunk,
                const int32_t *tokens) {
    rp_driver_close(&driver);
    rp_driver_open(&driver, &model, way);
    record->count = 0;
    for (uint32_t start = 0; start < PROMPT; start += chunk) {
        uint32_t count = RP_MIN(chunk, PROMPT - start);
        bool last = start + count == PROMPT;
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            int32_t prompt[PROMPT];
            for (uint32_t i = 0; i < count; i++)
                prompt[i] = (int32_t)((s * 131 + (start + i) * 57 + 3) % VOCAB);
            rp_driver_row(&driver, s, prompt, count, last);
        }
        rp_driver_run(&driver, NULL);
        for (uint32_t s = 0; last && s < SEQUENCES; s++)
            keep(record, s);
    }
    for (uint32_t step = 0; step < DECODES; step++) {
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            if (tokens)
                rp_driver_edit(&driver, s, RP_SLOT_LAST_TOKEN, 0,
                               (uint32_t)tokens[step * SEQUENCES + s]);
            rp_driver_row(&driver, s, NULL, 1, true);
        }
        rp_driver_run(&driver, NULL);
        for (uint32_t s = 0; s < SEQUENCES; s++)
            keep(record, s);
    }
}

static double relative_error(const struct record *a, const struct record *b) {
    double difference = 0.0, norm = 0.0;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t v = 0; v < VOCAB; v++) {
            difference += pow((double)a->logits[i][v] - b->logits[i][v], 2);
            norm += pow((double)a->logits[i][v], 2);
        }
    return sqrt(difference / norm); /* a NaN fails every comparison with it */
}

static void assert_same(const struct record *a, const struct record *b) {
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
}

/* Groups of 2 and, unless the test program says otherwise, 4 against one device. */
static uint32_t group_ranks_max = 4;

static void compare(enum rp_family family, enum rp_dtype dtype, enum rp_quant_scheme scheme,
                    const char *mask, enum rp_dtype kv_dtype, double limit) {
    struct rp_driver_config way = way_of(1, kv_dtype);
    make_model(family, dtype, scheme, mask);
    run(&one, &way, PROMPT, NULL);
    for (uint32_t ranks = 2; ranks <= group_ranks_max; ranks *= 2) {
        way = way_of(ranks, kv_dtype);
        make_model(family, dtype, scheme, mask);
        run(&many, &way, PROMPT, one.tokens);
        double error = relative_error(&one, &many);
        printf("family %d %s, %u ranks: relative error %.2e\n", (int)family, rp_dtype_name(dtype),
               ranks, error);
        assert_true(error <= limit);
        if (dtype == RP_DTYPE_F32)
            assert_memory_equal(one.tokens, many.tokens, sizeof one.tokens);
    }
}

#endif
