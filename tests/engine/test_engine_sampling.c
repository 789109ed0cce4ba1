/* Goal: sampling options of a request affect its answer, and scores of prompts equal the
 * reference's.
 * Method: engines on the CPU; stories260K's log-probabilities by llama2.c; on the demo model,
 * answers whose tokens can be checked without knowing the model, and an answer scored once during
 * generation and once as a prompt. */
#include "base/memory.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tests/support/data.h"
#include "tests/support/engine_wait.h"

#include <jansson.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { EVENTS_MAX = 1024, PROMPT = 40, OUTPUT = 60 };

static struct rp_model model;
static struct rp_engine *engine;
static sem_t wake;
static struct rp_event prompt_events[EVENTS_MAX], events[EVENTS_MAX];
static uint32_t prompt_event_count, event_count;
static int32_t prompt[EVENTS_MAX];

static void on_wake(void *ctx) {
    (void)ctx;
    sem_post(&wake);
}

static void open_engine(const char *path, uint32_t max_num_seqs) {
    struct rp_error err = {0};
    sem_init(&wake, 0, 0);
    if (rp_model_load(path, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &model, &err) != RP_OK)
        fail_msg("%s", err.text);
    const struct rp_engine_config config = {.max_num_seqs = max_num_seqs,
                                            .max_num_batched_tokens = 64,
                                            .queue_capacity = 4,
                                            .kv_dtype = RP_DTYPE_F32,
                                            .kv_cache_bytes = (uint64_t)16 << 20,
                                            .prefix_cache = true,
                                            .run_ahead = true,
                                            .device.threads = 2,
                                            .wake = on_wake};
    if (rp_engine_create(&config, &model, &engine, &err) != RP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
}

static int open_demo(void **state) {
    char path[1024];
    (void)state;
    rp_test_source("models/demo", path, sizeof path);
    open_engine(path, 8);
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)((i * 97 + 5) % model.config.vocab);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_engine_destroy(engine);
    engine = NULL;
    rp_model_deinit(&model);
    sem_destroy(&wake);
    return 0;
}

static struct rp_request request_default(void) {
    return (struct rp_request){.prompt = prompt,
                               .prompt_count = PROMPT,
                               .max_tokens = OUTPUT,
                               .sampling = {.temperature = 0.0f, .top_p = 1.0f, .seed = 3}};
}

/* Runs it and records its events. */
static enum rp_finish_reason run(struct rp_request *request) {
    prompt_event_count = event_count = 0;
    assert_int_equal(rp_engine_submit(engine, request), RP_OK);
    for (;;) {
        struct rp_event event;
        rp_test_await_events(&wake, engine);
        while (rp_engine_next_event(engine, &event)) {
            if (event.kind == RP_EVENT_CLOSED)
                return event.finish_reason;
            if (event.kind == RP_EVENT_PROMPT)
                prompt_events[prompt_event_count++] = event;
            else
                events[event_count++] = event;
        }
    }
}

static void test_scores_of_a_prompt_are_those_of_the_reference(void **state) {
    (void)state;
    char path[1024];
    if (!rp_test_data("weights/stories260K/ref_llama2c_tinystories.json", path, sizeof path))
        skip();
    json_t *reference = json_load_file(path, 0, NULL);
    assert_non_null(reference);
    assert_true(rp_test_data("weights/stories260K/hf_derived", path, sizeof path));
    static const uint32_t seqs[] = {1, 3, 40};
    for (size_t s = 0; s < RP_ARRAY_COUNT(seqs); s++) { /* logit rows of a step */
        open_engine(path, seqs[s]);
        json_t *tokens = json_object_get(reference, "tokens");
        json_t *logprobs = json_object_get(reference, "logprob_next");
        struct rp_request request = request_default();
        request.prompt_count =
            (uint32_t)RP_MIN(json_array_size(tokens), model.config.max_position - 1);
        request.max_tokens = 1;
        request.prompt_logprobs = true;
        request.top_prompt_logprobs = 3;
        for (uint32_t i = 0; i < request.prompt_count; i++)
            prompt[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
        double worst = 0.0;
        assert_int_equal(run(&request), RP_FINISH_LENGTH);
        assert_int_equal(prompt_event_count, request.prompt_count - 1);
        for (uint32_t i = 0; i + 1 < request.prompt_count; i++) {
            const struct rp_event *event = &prompt_events[i];
            assert_int_equal(event->token, prompt[i + 1]);
            worst = fmax(worst, fabs((double)event->logprob -
                                     json_number_value(json_array_get(logprobs, i))));
            if (event->rank <= 3)
                assert_int_equal(event->top[event->rank - 1].token, event->token);
        }
        printf("%u prompt tokens, worst log-probability %.2e\n", request.prompt_count, worst);
        assert_true(worst <= 1e-3);
        teardown(NULL);
    }
    json_decref(reference);
}

static void test_an_answer_is_scored_alike_as_it_is_chosen_and_as_a_prompt(void **state) {
    (void)state;
    static struct rp_event chosen[OUTPUT];
    struct rp_request request = request_default();
    request.sampling.temperature = 0.8f;
    request.logprobs = true;
    request.top_logprobs = RP_LOGPROBS_MAX;
    run(&request);
    assert_int_equal(event_count, OUTPUT);
    memcpy(chosen, events, sizeof chosen);
    for (uint32_t i = 0; i < OUTPUT; i++)
        prompt[PROMPT + i] = chosen[i].token;
    request = request_default();
    request.prompt_count = PROMPT + OUTPUT;
    request.max_tokens = 1;
    request.prompt_logprobs = true;
    request.top_prompt_logprobs = RP_LOGPROBS_MAX;
    run(&request);
    assert_int_equal(request.cached_tokens, 0); /* although the beginning is in the prefix cache */
    for (uint32_t i = 0; i < OUTPUT; i++) {
        const struct rp_event *a = &chosen[i], *b = &prompt_events[PROMPT - 1 + i];
        assert_int_equal(b->index, PROMPT + i);
        assert_int_equal(a->token, b->token);
        assert_int_equal(a->rank, b->rank);
        assert_true(a->logprob == b->logprob);
        assert_int_equal(a->top_count, RP_LOGPROBS_MAX);
        assert_memory_equal(a->top, b->top, sizeof a->top);
    }
    /* The next one finds its pages. */
    request = request_default();
    run(&request);
    assert_true(request.cached_tokens > 0);
}

static void test_a_great_presence_penalty_repeats_nothing(void **state) {
    (void)state;
    for (int answer = 0; answer < 2; answer++) {
        struct rp_request request = request_default();
        if (answer == 0)
            request.sampling.presence_penalty = 1000.0f;
        else
            request.sampling.repetition_penalty = 1e30f;
        run(&request);
        for (uint32_t i = 0; i < event_count; i++) {
            for (uint32_t j = 0; j < i; j++)
                assert_int_not_equal(events[i].token, events[j].token);
            for (uint32_t j = 0; answer == 1 && j < PROMPT; j++)
                assert_int_not_equal(events[i].token, prompt[j]);
        }
        request = request_default(); /* the slot's next request has none */
        run(&request);
        uint32_t repeated = 0;
        for (uint32_t i = 1; i < event_count; i++)
            for (uint32_t j = 0; j < i; j++)
                repeated += events[i].token == events[j].token;
        assert_true(repeated > 0);
    }
}

static void test_biases_masks_and_bad_words_rule_the_answer(void **state) {
    (void)state;
    struct rp_request request = request_default();
    const struct rp_logit_bias biases[] = {{7, -1000.0f}, {11, 1000.0f}, {13, 1000.0f}};
    request.biases = biases;
    request.bias_count = 3;
    run(&request);
    for (uint32_t i = 0; i < event_count; i++)
        assert_true(events[i].token == 11 || events[i].token == 13);
    uint32_t *mask = rp_calloc(RP_CEIL_DIV(model.config.vocab, 32), 4);
    for (uint32_t id = 20; id < 24; id++)
        mask[id / 32] |= 1u << id % 32;
    request = request_default();
    request.allowed = mask;
    request.sampling.temperature = 2.0f;
    /* Never 20, never 21 after 22, never 23 after 22 22. */
    static const int32_t words[] = {1, 20, 2, 22, 21, 3, 22, 22, 23};
    request.bad_words = words;
    request.bad_word_ints = RP_ARRAY_COUNT(words);
    uint32_t seen[24] = {0};
    run(&request);
    for (uint32_t i = 0; i < event_count; i++) {
        int32_t token = events[i].token, one = i > 0 ? events[i - 1].token : -1;
        int32_t two = i > 1 ? events[i - 2].token : -1;
        assert_in_range(token, 21, 23);
        seen[token]++;
        assert_false(token == 21 && one == 22);
        assert_false(token == 23 && one == 22 && two == 22);
    }
    assert_true(seen[21] && seen[22] && seen[23]);
    rp_free(mask);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_demo, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_of_a_prompt_are_those_of_the_reference),
        TEST(test_an_answer_is_scored_alike_as_it_is_chosen_and_as_a_prompt),
        TEST(test_a_great_presence_penalty_repeats_nothing),
        TEST(test_biases_masks_and_bad_words_rule_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
