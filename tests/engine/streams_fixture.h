/* streams_fixture.h - an answer depends only on its request: 64 requests of mixed lengths, seeds,
 * filters and stop ids, many with penalties, biases, masks, bad words and logprobs of prompt and
 * answer, first each alone on the simplest engine (one slot, no prefix cache, no run-ahead, eager,
 * one thread), then all at once. Every token, score and finish reason must be equal; afterwards
 * free + cached = total. Included once per test program; the model is the demo model unless a test
 * replaces it. */
#ifndef RP_TESTS_STREAMS_FIXTURE_H
#define RP_TESTS_STREAMS_FIXTURE_H

#include "base/memory.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tests/support/data.h"
#include "tests/support/engine_wait.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    REQUESTS = 64,
    PROMPT_MAX = 100,
    OUTPUT_MAX = 60,
    SHARED = 48,
    SMALL_POOL = 32,
    SMALL_PAGE = 8
};

struct answer {
    int32_t tokens[OUTPUT_MAX];
    uint32_t count, scored; /* scored tokens of the prompt */
    uint64_t scores;        /* hash over all scores of prompt and answer */
    enum rp_finish_reason finish;
    uint32_t closed; /* CLOSED events: must be 1 at the end */
    uint32_t cached;
};

static struct rp_model model;
static struct rp_engine *engine;
static sem_t wake;
static int32_t prompts[REQUESTS][PROMPT_MAX];
static struct rp_request *requests;
static struct rp_logit_bias biases[REQUESTS][RP_LOGIT_BIAS_MAX];
static uint32_t allowed[REQUESTS][8192 / 32];
static int32_t bad_words[REQUESTS][2 * RP_BAD_TOKENS_MAX];
static struct answer alone[REQUESTS], together[REQUESTS];

static inline void on_wake(void *ctx) {
    (void)ctx;
    sem_post(&wake);
}

static inline uint32_t mix(uint32_t value) {
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ value >> 16;
}

/* Bad words of one to four tokens, from few ids, so that their beginnings are sampled. */
static inline void add_bad_words(struct rp_request *request, uint32_t i) {
    uint32_t ints = 0, tokens = 0;
    while (tokens + 4 <= RP_BAD_TOKENS_MAX) {
        uint32_t count = 1 + mix(i * 1009 + ints) % 4;
        bad_words[i][ints++] = (int32_t)count;
        for (uint32_t t = 0; t < count; t++, tokens++, ints++)
            bad_words[i][ints] = (int32_t)(mix(i * 2003 + ints) % (t + 1 < count ? 12 : 64));
    }
    request->bad_words = bad_words[i];
    request->bad_word_ints = ints;
}

/* All sampling options of a request, in many combinations. */
static inline void add_asks(struct rp_request *request, uint32_t i) {
    uint32_t asks = i % 3 == 1 ? 0 : mix(i + 77), vocab = model.config.vocab;
    assert_true(vocab <= 8192);
    if (asks & 1) {
        request->sampling.repetition_penalty = 0.8f + (float)(i % 4) * 0.2f;
        request->sampling.presence_penalty = (float)(i % 5) * 0.5f - 1.0f;
        request->sampling.frequency_penalty = (float)(i % 3) * 0.4f - 0.2f;
    }
    if (asks & 2) {
        request->biases = biases[i];
        request->bias_count = 1 + mix(i + 3) % RP_LOGIT_BIAS_MAX;
        uint32_t step = vocab / request->bias_count;
        for (uint32_t b = 0; b < request->bias_count; b++)
            biases[i][b] = (struct rp_logit_bias){(int32_t)(b * step),
                                                  (float)(mix(i * 400 + b) % 100) * 0.1f - 5.0f};
    }
    if (asks & 4) {
        request->allowed = allowed[i];
        for (uint32_t w = 0; w < 8192 / 32; w++)
            allowed[i][w] = mix(i * 300 + w);
    }
    if (asks & 8)
        add_bad_words(request, i);
    request->logprobs = asks & 16;
    request->top_logprobs = (uint8_t)(asks & 16 ? mix(i) % (RP_LOGPROBS_MAX + 1) : 0);
    request->prompt_logprobs = (asks & 96) == 96;
    request->top_prompt_logprobs = (uint8_t)(i % 4);
}

/* A third shares the first 40 tokens of its prompt with others. */
static inline void make_requests(void) {
    memset(requests, 0, REQUESTS * sizeof *requests);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct rp_request *request = &requests[i];
        request->id = i;
        request->prompt = prompts[i];
        request->prompt_count = 1 + mix(i) % PROMPT_MAX;
        if (i % 3 == 0)
            request->prompt_count = SHARED + 1 + mix(i) % (PROMPT_MAX - SHARED);
        for (uint32_t t = 0; t < request->prompt_count; t++) {
            uint32_t stream = i % 3 == 0 && t < SHARED ? 1000000 : i * 1000;
            prompts[i][t] = (int32_t)(mix(stream + t + 7) % model.config.vocab);
        }
        request->max_tokens = 1 + mix(i + 500) % OUTPUT_MAX;
        request->sampling = (struct rp_sampling){.top_p = 1.0f, .seed = mix(i + 900)};
        if (i % 2) {
            request->sampling.temperature = 0.5f + (float)(i % 5) * 0.25f;
            request->sampling.top_k = i % 4 == 1 ? 50 : 0;
            request->sampling.top_p = i % 8 == 3 ? 0.9f : 1.0f;
            request->sampling.min_p = i % 8 == 7 ? 0.05f : 0.0f;
        }
        if (i % 5 == 0) { /* many stop ids, so that some answers stop early */
            request->stop_count = RP_STOP_IDS_MAX;
            for (uint32_t s = 0; s < RP_STOP_IDS_MAX; s++)
                request->stop_ids[s] = (int32_t)(mix(i + s) % model.config.vocab);
            request->min_tokens = i % 10 == 0 ? RP_MIN(3u, request->max_tokens) : 0;
        }
        add_asks(request, i);
    }
}

static inline void hash(uint64_t *sum, const void *bytes, size_t count) {
    for (size_t b = 0; b < count; b++)
        *sum = (*sum ^ ((const unsigned char *)bytes)[b]) * 1099511628211u;
}

static inline void take_scores(struct answer *answer, const struct rp_event *event) {
    uint32_t top = event->kind == RP_EVENT_PROMPT ? event->request->top_prompt_logprobs
                                                  : event->request->top_logprobs;
    if (event->kind == RP_EVENT_PROMPT) {
        assert_true(event->request->prompt_logprobs);
        assert_int_equal(answer->count, 0);
        assert_int_equal(event->index, ++answer->scored);
        assert_int_equal(event->token, event->request->prompt[event->index]);
    } else if (!event->request->logprobs) {
        assert_int_equal(event->rank + event->top_count, 0);
        assert_true(event->logprob == 0.0f);
        return;
    } else if (event->request->prompt_logprobs) {
        assert_int_equal(answer->scored, event->request->prompt_count - 1);
    }
    assert_true(event->logprob <= 0.0f && event->rank >= 1);
    assert_int_equal(event->top_count, RP_MIN(top, model.config.vocab));
    for (uint32_t t = 0; t < event->top_count; t++) {
        if (event->top[t].token == event->token)
            assert_true(event->top[t].logprob == event->logprob && event->rank <= t + 1);
        assert_true(t == 0 || event->top[t].logprob < event->top[t - 1].logprob ||
                    (event->top[t].logprob == event->top[t - 1].logprob));
    }
    hash(&answer->scores, &event->logprob, sizeof event->logprob);
    hash(&answer->scores, &event->rank, sizeof event->rank);
    hash(&answer->scores, event->top, event->top_count * sizeof event->top[0]);
}

static inline int setup(void **state) {
    char path[1024];
    (void)state;
    rp_test_source("models/demo", path, sizeof path);
    sem_init(&wake, 0, 0);
    requests = rp_calloc(REQUESTS, sizeof *requests);
    struct rp_error err = {0};
    if (rp_model_load(path, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &model, &err) != RP_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    rp_model_deinit(&model);
    rp_free(requests);
    sem_destroy(&wake);
    return 0;
}

static inline int close_engine(void **state) {
    (void)state;
    rp_engine_destroy(engine);
    engine = NULL;
    return 0;
}

static inline struct rp_engine_config config_default(void) {
    return (struct rp_engine_config){.max_num_seqs = 32,
                                     .max_num_batched_tokens = 128,
                                     .queue_capacity = REQUESTS,
                                     .page_tokens = 16,
                                     .kv_dtype = RP_DTYPE_BF16,
                                     .page_count_override = 1024,
                                     .swap_bytes = (uint64_t)256 << 20,
                                     .device.threads = 2,
                                     .prefix_cache = true,
                                     .run_ahead = true,
                                     .watchdog_seconds = RP_TEST_STILL_SECONDS,
                                     .wake = on_wake};
}

static inline void create_engine(const struct rp_engine_config *config) {
    struct rp_error err = {0};
    int status = rp_engine_create(config, &model, &engine, &err);
    if (status != RP_OK)
        fprintf(stderr, "%s\n", err.text);
    assert_int_equal(status, RP_OK);
}

static inline void open_engine(const struct rp_engine_config *config) {
    create_engine(config);
    assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
}

/* Reads events until at least `count` requests have closed. */
static inline void drain(struct answer *answers, uint32_t count) {
    while (count > 0) {
        struct rp_event event;
        rp_test_await_events(&wake, engine);
        while (rp_engine_next_event(engine, &event)) {
            struct answer *answer = &answers[event.request->id];
            assert_int_equal(answer->closed, 0);
            if (event.kind == RP_EVENT_CLOSED) {
                answer->finish = event.finish_reason;
                answer->cached = event.request->cached_tokens;
                answer->closed++;
                count -= count > 0; /* more than `count` may have closed */
                continue;
            }
            take_scores(answer, &event);
            if (event.kind == RP_EVENT_PROMPT)
                continue;
            assert_true(answer->count < event.request->max_tokens);
            answer->tokens[answer->count++] = event.token;
        }
    }
}

static enum rp_dtype alone_done = RP_DTYPE_I32;

/* Fills `alone` when a test first needs it with pages of this type. */
static inline void run_alone_with(enum rp_dtype kv_dtype) {
    struct rp_engine_config config = config_default();
    if (alone_done == kv_dtype)
        return;
    alone_done = config.kv_dtype = kv_dtype;
    config.max_num_seqs = 1;
    config.device.threads = 1;
    config.prefix_cache = config.run_ahead = false;
    config.enforce_eager = true;
    make_requests();
    memset(alone, 0, sizeof alone);
    open_engine(&config);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(rp_engine_submit(engine, &requests[i]), RP_OK);
        drain(alone, 1);
    }
    close_engine(NULL);
}

static inline void run_alone(void) { run_alone_with(RP_DTYPE_BF16); }

static inline void assert_pages_are_back(void) {
    /* Gauges are written after the events; stopping the thread orders them. */
    rp_engine_stop(engine);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    assert_int_equal(rp_gauge_read(&metrics->pages_free) + rp_gauge_read(&metrics->pages_cached),
                     rp_gauge_read(&metrics->pages_total));
    assert_int_equal(rp_gauge_read(&metrics->running) + rp_gauge_read(&metrics->waiting) +
                         rp_gauge_read(&metrics->swapped),
                     0);
}

static inline void assert_answers_equal(uint32_t i) {
    assert_int_equal(together[i].closed, 1);
    assert_int_equal(together[i].finish, alone[i].finish);
    assert_int_equal(together[i].count, alone[i].count);
    assert_int_equal(together[i].scored, alone[i].scored);
    assert_true(together[i].scores == alone[i].scores);
    assert_memory_equal(together[i].tokens, alone[i].tokens,
                        alone[i].count * sizeof alone[i].tokens[0]);
}

/* A new engine with every request in its queue before its first step, on any machine. */
static inline void submit_all(const struct rp_engine_config *config) {
    make_requests();
    memset(together, 0, sizeof together);
    create_engine(config);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(rp_engine_submit(engine, &requests[i]), RP_OK);
    assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
}

/* All at once; returns preemptions. */
static inline uint64_t run_together(const struct rp_engine_config *config) {
    uint64_t cached = 0;
    submit_all(config);
    drain(together, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_answers_equal(i);
        cached += together[i].cached;
    }
    assert_pages_are_back();
    assert_true(config->prefix_cache || cached == 0);
    uint64_t preemptions = rp_counter_read(&rp_engine_metrics(engine)->preemptions);
    close_engine(NULL);
    return preemptions;
}

#endif
