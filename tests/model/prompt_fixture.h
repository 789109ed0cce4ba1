/* prompt_fixture.h - a model directory, a model, and a prompt that is fed to it in one piece or in
 * two. */
#ifndef RP_TESTS_MODEL_PROMPT_FIXTURE_H
#define RP_TESTS_MODEL_PROMPT_FIXTURE_H

#include "base/log.h"
#include "tests/support/driver.h"
#include "tests/support/model_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 96, PROMPT = 45 };

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model;
    struct rp_driver driver;
    struct rp_model_config config;
    struct rp_error err;
};

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_driver_close(&f->driver);
    rp_model_deinit(&f->model);
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* Logits of the prompt's last token, fed as [0, cut) and the rest. */
static void feed(struct fixture *f, uint32_t cut, float *logits) {
    static const struct rp_bucket bucket = {PROMPT, 1, 1, false};
    struct rp_driver_config config = {.slots = 1,
                                      .pages_per_slot = 16,
                                      .page_tokens = 4,
                                      .threads = 2,
                                      .buckets = &bucket,
                                      .bucket_count = 1,
                                      .kv_dtype = RP_DTYPE_BF16};
    int32_t prompt[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = i * 37 % VOCAB;
    rp_driver_close(&f->driver);
    rp_driver_open(&f->driver, &f->model, &config);
    if (cut > 0) {
        rp_driver_row(&f->driver, 0, prompt, cut, false);
        rp_driver_run(&f->driver, NULL);
    }
    rp_driver_row(&f->driver, 0, prompt + cut, PROMPT - cut, true);
    rp_driver_run(&f->driver, NULL);
    memcpy(logits, rp_driver_logits(&f->driver, 0), VOCAB * sizeof *logits);
}

/* Wherever the prompt is cut, the logits are those of the whole prompt. */
static void assert_cuts_keep_the_bits(struct fixture *f) {
    float at_once[VOCAB], in_two[VOCAB];
    feed(f, 0, at_once);
    for (uint32_t cut = 1; cut < PROMPT; cut++) {
        feed(f, cut, in_two);
        assert_memory_equal(in_two, at_once, sizeof at_once);
    }
}

#endif
