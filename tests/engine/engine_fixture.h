/* engine_fixture.h - shared by tests of an engine on a fake GPU: the demo model, an engine, a few
 * requests and their results. Included once per test program. */
#ifndef RP_TESTS_ENGINE_FIXTURE_H
#define RP_TESTS_ENGINE_FIXTURE_H

#include "base/memory.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tests/support/data.h"
#include "tests/support/engine_wait.h"
#include "tests/support/fake_backend.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifndef FIXTURE_REQUEST_COUNT
#define FIXTURE_REQUEST_COUNT 12
#endif
#ifndef FIXTURE_SLOT_COUNT
#define FIXTURE_SLOT_COUNT 8
#endif

enum { FIXTURE_REQUESTS = FIXTURE_REQUEST_COUNT, FIXTURE_PROMPT = 120, FIXTURE_OUTPUT = 24 };

struct fixture_answer {
    int32_t tokens[FIXTURE_OUTPUT];
    uint32_t count, closed;
    enum rp_finish_reason finish;
};

static struct rp_model fixture_model;
static struct rp_engine *fixture_engine;
static sem_t fixture_wake;
static struct rp_request fixture_requests[FIXTURE_REQUESTS];
static int32_t fixture_prompts[FIXTURE_REQUESTS][FIXTURE_PROMPT];
static struct fixture_answer fixture_answers[FIXTURE_REQUESTS];

static void fixture_on_wake(void *ctx) {
    (void)ctx;
    sem_post(&fixture_wake);
}

/* Weights are moved to the GPU, so each engine needs a separate model. */
static inline void fixture_load_model(void) {
    char path[1024];
    struct rp_error err = {0};
    rp_test_source("models/demo", path, sizeof path);
    int status = rp_model_load(path, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &fixture_model, &err);
    if (status != RP_OK)
        fail_msg("%s", err.text);
}

static inline int fixture_setup(void **state) {
    (void)state;
    sem_init(&fixture_wake, 0, 0);
    fake_backend_reset();
    fixture_load_model();
    return 0;
}

static int fixture_teardown(void **state) {
    (void)state;
    rp_engine_destroy(fixture_engine);
    fixture_engine = NULL;
    rp_model_deinit(&fixture_model);
    sem_destroy(&fixture_wake);
    return 0;
}

static struct rp_engine_config fixture_config(const struct rp_backend *backend) {
    return (struct rp_engine_config){.backend = backend,
                                     .device = {.threads = 2},
                                     .max_num_seqs = FIXTURE_SLOT_COUNT,
                                     .max_num_batched_tokens = 64,
                                     .queue_capacity = FIXTURE_REQUESTS,
                                     .kv_dtype = RP_DTYPE_BF16,
                                     .swap_bytes = (uint64_t)64 << 20,
                                     .prefix_cache = true,
                                     .run_ahead = true,
                                     .wake = fixture_on_wake};
}

/* Nothing runs before fixture_start, so requests submitted until then arrive at the same time on
 * any machine. */
static void fixture_create(const struct rp_engine_config *config) {
    struct rp_error err = {0};
    int status = rp_engine_create(config, &fixture_model, &fixture_engine, &err);
    if (status != RP_OK)
        fail_msg("%s", err.text);
}

static void fixture_start(void) { assert_int_equal(rp_engine_start(fixture_engine, NULL), RP_OK); }

static inline void fixture_open(const struct rp_engine_config *config) {
    fixture_create(config);
    fixture_start();
}

/* Prompts of 1 to FIXTURE_PROMPT tokens; every third one shares its beginning with the others of
 * its kind. */
static void fixture_make_requests(void) {
    memset(fixture_requests, 0, sizeof fixture_requests);
    memset(fixture_answers, 0, sizeof fixture_answers);
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++) {
        struct rp_request *request = &fixture_requests[i];
        for (uint32_t t = 0; t < FIXTURE_PROMPT; t++)
            fixture_prompts[i][t] =
                (int32_t)(((i % 3 ? i : 0) * 977 + t * 31 + 11) % fixture_model.config.vocab);
        request->id = i;
        request->prompt = fixture_prompts[i];
        request->prompt_count = 1 + i * 37 % FIXTURE_PROMPT;
        request->max_tokens = FIXTURE_OUTPUT;
        request->sampling =
            (struct rp_sampling){.temperature = i % 2 ? 0.8f : 0.0f, .top_p = 1.0f, .seed = i + 1};
    }
}

/* Reads events until this many requests have closed. */
static inline void fixture_drain(uint32_t count) {
    struct rp_event event;
    while (count > 0) {
        rp_test_await_events(&fixture_wake, fixture_engine);
        while (rp_engine_next_event(fixture_engine, &event)) {
            struct fixture_answer *answer = &fixture_answers[event.request->id];
            assert_int_equal(answer->closed, 0);
            if (event.kind == RP_EVENT_CLOSED) {
                answer->finish = event.finish_reason;
                answer->closed++;
                count -= count > 0;
            } else {
                answer->tokens[answer->count++] = event.token;
            }
        }
    }
}

static inline void fixture_submit_all(void) {
    fixture_make_requests();
    for (uint32_t i = 0; i < FIXTURE_REQUESTS; i++)
        assert_int_equal(rp_engine_submit(fixture_engine, &fixture_requests[i]), RP_OK);
}

#endif
