/* scheduler_fixture.h - a scheduler, requests with prompts 0, 1, 2, ..., and short names for its
 * calls. The test writes the results of a step: token 100 + row unless stated otherwise.
 * One per program. */
#ifndef RP_TESTS_ENGINE_SCHEDULER_FIXTURE_H
#define RP_TESTS_ENGINE_SCHEDULER_FIXTURE_H

#include "engine/scheduler.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 16u
#define ROOM     1000u
#define RESULTS  32u

static const uint32_t buckets[] = {16, 32, 64, 128};

/* A scheduler, requests with prompts 0, 1, 2, ..., and the results of the last calls. */
struct scheduler_fixture {
    struct rp_scheduler_config config;
    struct rp_scheduler *scheduler;
    struct rp_request requests[REQUESTS];
    int32_t prompt[512];
    struct rp_sched_step step;
    struct rp_sched_result results[RESULTS];
    uint64_t committed;
};
static struct scheduler_fixture fixture;

static inline int setup(void **state) {
    (void)state;
    memset(&fixture, 0, sizeof fixture);
    fixture.config = (struct rp_scheduler_config){.slot_count = 8,
                                                  .queue_capacity = 8,
                                                  .row_capacity = 16,
                                                  .page_tokens = 4,
                                                  .page_count = 65,
                                                  .host_page_count = 64,
                                                  .max_model_len = 128,
                                                  .page_edit_capacity = 64,
                                                  .token_buckets = buckets,
                                                  .token_bucket_count = RP_ARRAY_COUNT(buckets),
                                                  .decode_rows_max = 8,
                                                  .logit_rows_max = 8,
                                                  .prefix_cache = true,
                                                  .hash_key = 42};
    for (int32_t i = 0; i < 512; i++)
        fixture.prompt[i] = i;
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    rp_scheduler_destroy(fixture.scheduler);
    return 0;
}

static inline void create(void) {
    assert_int_equal(rp_scheduler_create(&fixture.config, &fixture.scheduler, NULL), RP_OK);
}

static inline struct rp_request *prepare(uint32_t index, uint32_t prompt_count,
                                         uint32_t max_tokens) {
    struct rp_request *request = &fixture.requests[index];
    memset(request, 0, sizeof *request);
    request->id = index;
    request->prompt = fixture.prompt;
    request->prompt_count = prompt_count;
    request->max_tokens = max_tokens;
    return request;
}

static inline struct rp_request *submit(uint32_t index, uint32_t prompt_count,
                                        uint32_t max_tokens) {
    struct rp_request *request = prepare(index, prompt_count, max_tokens);
    assert_int_equal(rp_scheduler_submit(fixture.scheduler, request), RP_OK);
    return request;
}

static inline bool plan(void) {
    bool planned = rp_scheduler_plan(fixture.scheduler, 1000, ROOM, &fixture.step);
    assert_null(rp_scheduler_check(fixture.scheduler));
    for (uint32_t i = 0; i < RESULTS; i++)
        fixture.results[i] = (struct rp_sched_result){.token = 100 + (int32_t)i};
    return planned;
}

static inline void commit(void) {
    rp_scheduler_commit(fixture.scheduler, ++fixture.committed, fixture.results, 2000);
    assert_null(rp_scheduler_check(fixture.scheduler));
}

static inline void step_once(void) {
    assert_true(plan());
    commit();
}

static inline struct rp_event next_event(void) {
    struct rp_event event;
    assert_true(rp_scheduler_next_event(fixture.scheduler, &event));
    return event;
}

static inline void assert_no_event(void) {
    struct rp_event event;
    assert_false(rp_scheduler_next_event(fixture.scheduler, &event));
}

static inline void assert_closed(const struct rp_request *request, enum rp_finish_reason reason) {
    struct rp_event event = next_event();
    assert_int_equal(event.kind, RP_EVENT_CLOSED);
    assert_ptr_equal(event.request, request);
    assert_int_equal(event.finish_reason, reason);
}

static inline void drain(void) {
    struct rp_event event;
    while (rp_scheduler_next_event(fixture.scheduler, &event)) {
    }
}

static inline void run_to_idle(void) {
    for (uint32_t i = 0; i < 10000 && !rp_scheduler_is_idle(fixture.scheduler); i++) {
        if (plan() || rp_scheduler_in_flight(fixture.scheduler))
            commit();
        drain();
    }
    assert_true(rp_scheduler_is_idle(fixture.scheduler));
}

static inline struct rp_sched_stats stats(void) {
    struct rp_sched_stats out;
    rp_scheduler_stats(fixture.scheduler, &out);
    return out;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
