/* Goal: an answer depends only on its request.
 * Method: 64 requests of mixed lengths, seeds, filters and stop ids, many with penalties, biases,
 * masks, bad words and logprobs of prompt and answer, on the demo model, first each alone on the
 * simplest engine (one slot, no prefix cache, no run-ahead, eager, one thread), then all at once
 * with the prefix cache on and off, run-ahead 0 and 1, graphs and eager, and a pool so small that
 * sequences are swapped. Every token and every finish reason must be equal; afterwards free +
 * cached = total. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tests/support/data.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

static void on_wake(void *ctx) {
    (void)ctx;
    sem_post(&wake);
}

static uint32_t mix(uint32_t value) {
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ value >> 16;
}

/* Bad words of one to four tokens, from few ids, so that their beginnings are sampled. */
static void add_bad_words(struct rp_request *request, uint32_t i) {
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
static void add_asks(struct rp_request *request, uint32_t i) {
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
static void make_requests(void) {
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

static void hash(uint64_t *sum, const void *bytes, size_t count) {
    for (size_t b = 0; b < count; b++)
        *sum = (*sum ^ ((const unsigned char *)bytes)[b]) * 1099511628211u;
}

static void take_scores(struct answer *answer, const struct rp_event *event) {
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

static int setup(void **state) {
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

static int teardown(void **state) {
    (void)state;
    rp_model_deinit(&model);
    rp_free(requests);
    sem_destroy(&wake);
    return 0;
}

static int close_engine(void **state) {
    (void)state;
    rp_engine_destroy(engine);
    engine = NULL;
    return 0;
}

static struct rp_engine_config config_default(void) {
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
                                     .wake = on_wake};
}

static void create_engine(const struct rp_engine_config *config) {
    struct rp_error err = {0};
    int status = rp_engine_create(config, &model, &engine, &err);
    if (status != RP_OK)
        fprintf(stderr, "%s\n", err.text);
    assert_int_equal(status, RP_OK);
}

static void open_engine(const struct rp_engine_config *config) {
    create_engine(config);
    assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
}

/* Reads events until at least `count` requests have closed. */
static void drain(struct answer *answers, uint32_t count) {
    while (count > 0) {
        struct rp_event event;
        sem_wait(&wake);
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
static void run_alone_with(enum rp_dtype kv_dtype) {
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

static void run_alone(void) { run_alone_with(RP_DTYPE_BF16); }

static void assert_pages_are_back(void) {
    /* Gauges are written after the events; stopping the thread orders them. */
    rp_engine_stop(engine);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    assert_int_equal(rp_gauge_read(&metrics->pages_free) + rp_gauge_read(&metrics->pages_cached),
                     rp_gauge_read(&metrics->pages_total));
    assert_int_equal(rp_gauge_read(&metrics->running) + rp_gauge_read(&metrics->waiting) +
                         rp_gauge_read(&metrics->swapped),
                     0);
}

static void assert_answers_equal(uint32_t i) {
    assert_int_equal(together[i].closed, 1);
    assert_int_equal(together[i].finish, alone[i].finish);
    assert_int_equal(together[i].count, alone[i].count);
    assert_int_equal(together[i].scored, alone[i].scored);
    assert_true(together[i].scores == alone[i].scores);
    assert_memory_equal(together[i].tokens, alone[i].tokens,
                        alone[i].count * sizeof alone[i].tokens[0]);
}

/* A new engine with every request in its queue before its first step, on any machine. */
static void submit_all(const struct rp_engine_config *config) {
    make_requests();
    memset(together, 0, sizeof together);
    create_engine(config);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(rp_engine_submit(engine, &requests[i]), RP_OK);
    assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
}

/* After a stop: every request has closed once. */
static void assert_all_closed_once(void) {
    struct rp_event event;
    rp_engine_stop(engine);
    while (rp_engine_next_event(engine, &event))
        together[event.request->id].closed += event.kind == RP_EVENT_CLOSED;
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(together[i].closed, 1);
}

/* All at once; returns preemptions. */
static uint64_t run_together(const struct rp_engine_config *config) {
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

static void test_64_streams_equal_each_one_alone(void **state) {
    (void)state;
    run_alone();
    /* Under the sanitizers a run takes 15 s, so each option has both values, but not all eight
     * combinations. */
    for (int variant = 0; variant < 8; variant += RP_DEBUG ? 3 : 1) {
        struct rp_engine_config config = config_default();
        bool small = variant & 4;
        config.prefix_cache = variant & 1;
        config.run_ahead = variant & 2;
        if (small) { /* room for one of the longest sequences, or a dozen short ones */
            config.page_count_override = SMALL_POOL;
            config.page_tokens = SMALL_PAGE;
        }
        config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
        uint64_t preemptions = run_together(&config);
        printf("prefix cache %d, run-ahead %d, %u pages: %llu preemptions\n", config.prefix_cache,
               config.run_ahead, config.page_count_override, (unsigned long long)preemptions);
        if (small)
            assert_true(preemptions > 0);
    }
}

/* A layer with an MLP, then one with experts in groups and a shared expert. */
static const struct rp_model_config experts_config = {.family = RP_FAMILY_GLM4_MOE,
                                                      .hidden = 64,
                                                      .intermediate = 96,
                                                      .layers = 3,
                                                      .heads = 4,
                                                      .kv_heads = 2,
                                                      .head_dim = 24,
                                                      .vocab = 600,
                                                      .max_position = 256,
                                                      .norm_eps = 1e-5f,
                                                      .rope = {.theta = 10000.0},
                                                      .bos_id = RP_ID_NONE,
                                                      .experts = {.count = 12,
                                                                  .used = 3,
                                                                  .intermediate = 48,
                                                                  .shared = 32,
                                                                  .score = RP_ROUTE_SIGMOID,
                                                                  .bias = true,
                                                                  .renormalize = true,
                                                                  .groups = 4,
                                                                  .groups_used = 2,
                                                                  .group_best = 2,
                                                                  .factor = 1.5f,
                                                                  .dense_layers = {1}}};

/* Every choice of a row in the two layers is counted once, in the step that computes the row. */
static void check_expert_counts(const struct rp_engine_config *config) {
    submit_all(config);
    drain(together, REQUESTS);
    assert_pages_are_back();
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    double rows = rp_histogram_sum(&metrics->expert_rows);
    uint64_t layers = rp_counter_read(&metrics->expert_layer_steps);
    assert_true(rows > 0 && rows <= 2 * 3 * rp_histogram_sum(&metrics->step_tokens));
    assert_true(layers > 0 && layers % 2 == 0 && layers <= 2 * rp_counter_read(&metrics->steps));
    assert_true(rp_histogram_sum(&metrics->expert_imbalance) >= (double)layers);
    close_engine(NULL);
}

static void test_64_streams_of_a_model_with_experts_equal_each_one_alone(void **state) {
    (void)state;
    struct rp_model demo = model;
    alone_done = RP_DTYPE_I32;
    assert_int_equal(rp_model_random(&experts_config, RP_DTYPE_BF16, 3, 0, &model, NULL), RP_OK);
    run_alone();
    for (int variant = 0; variant < 4; variant++) {
        struct rp_engine_config config = config_default();
        config.prefix_cache = variant & 1;
        config.run_ahead = config.enforce_eager = variant & 2;
        config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
        config.max_num_batched_tokens = variant ? 37 : 128; /* other chunks */
        if (variant) {
            config.page_count_override = SMALL_POOL;
            config.page_tokens = SMALL_PAGE;
        }
        uint64_t preemptions = run_together(&config);
        assert_true(!variant || preemptions > 0);
    }
    struct rp_engine_config config = config_default();
    check_expert_counts(&config);
    rp_model_deinit(&model);
    model = demo;
    alone_done = RP_DTYPE_I32;
}

static void test_eager_unfused_and_poisoned_engines_and_short_steps_give_the_same(void **state) {
    (void)state;
    run_alone();
    for (int variant = 0; variant < 5; variant += RP_DEBUG ? 2 : 1) {
        struct rp_engine_config config = config_default();
        config.device.short_steps_here = variant >= 3;
        config.device.threads = variant == 4 ? 1 : config.device.threads;
        config.enforce_eager = variant == 0;
        config.no_fusion = variant == 1;
        config.debug_poison = variant == 2;
        run_together(&config);
    }
}

static void test_cancelled_requests_close_and_leave_the_others_alone(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.page_count_override = SMALL_POOL;
    config.page_tokens = SMALL_PAGE;
    config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
    run_alone();
    submit_all(&config);
    for (uint32_t i = 0; i < REQUESTS; i += 4) {
        drain(together, i % 8 == 0 && i < 32 ? 1 : 0);
        atomic_store(&requests[i].cancelled, true);
        rp_engine_notify(engine);
    }
    uint32_t open = 0;
    for (uint32_t i = 0; i < REQUESTS; i++)
        open += together[i].closed == 0;
    drain(together, open);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(together[i].closed, 1);
        if (together[i].finish == RP_FINISH_CANCELLED) {
            assert_int_equal(i % 4, 0);
            /* The delivered tokens are the beginning of the answer that it gets alone. */
            assert_memory_equal(together[i].tokens, alone[i].tokens,
                                together[i].count * sizeof alone[i].tokens[0]);
        } else {
            assert_answers_equal(i);
        }
    }
    assert_pages_are_back();
}

static void test_stopping_closes_every_open_request_once(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    submit_all(&config);
    assert_all_closed_once();
}

/* The same with a ring of two events: the others are delivered later. */
static void test_a_full_event_ring_loses_nothing(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.event_capacity = 2;
    run_alone();
    run_together(&config);
    submit_all(&config);
    assert_all_closed_once();
}

/* Nothing is left to plan then, only CLOSED events to deliver, two at a time. */
static void test_ends_follow_at_once_when_a_full_ring_is_drained(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.event_capacity = 2;
    config.max_num_seqs = 1;
    submit_all(&config);
    for (uint32_t i = 0; i < REQUESTS; i++)
        atomic_store(&requests[i].cancelled, true);
    rp_engine_notify(engine);
    uint64_t begin = rp_clock_ns();
    drain(together, REQUESTS);
    assert_true(rp_clock_ns() - begin < 1500000000u); /* 3 s with a sleep of 100 ms each */
}

static void test_a_full_queue_refuses_until_it_has_room(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.queue_capacity = 4;
    config.max_num_seqs = 1;
    make_requests();
    memset(together, 0, sizeof together);
    open_engine(&config);
    uint32_t taken = 0;
    while (taken < REQUESTS && rp_engine_submit(engine, &requests[taken]) == RP_OK)
        taken++;
    assert_in_range(taken, 4, REQUESTS - 1);
    drain(together, taken);
    assert_int_equal(rp_engine_submit(engine, &requests[taken]), RP_OK);
    drain(together, 1);
}

static void test_pages_of_8_bits_are_shared_and_swapped_like_others(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.kv_dtype = RP_DTYPE_INT8;
    config.page_count_override = SMALL_POOL;
    config.page_tokens = SMALL_PAGE;
    config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
    run_alone_with(RP_DTYPE_INT8);
    assert_true(run_together(&config) > 0);
}

/* 100 tokens with the scalar kernels take most of a second. Without the watch inside the step only
 * its beginning and end would be visible. */
static void test_a_long_step_shows_progress_while_it_runs(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    struct rp_event event;
    config.device.scalar_only = true;
    config.device.threads = 1;
    make_requests();
    open_engine(&config);
    requests[0].prompt_count = PROMPT_MAX;
    requests[0].max_tokens = 1;
    assert_int_equal(rp_engine_submit(engine, &requests[0]), RP_OK);
    uint64_t begin = rp_clock_ns(), seen = 0;
    uint32_t changes = 0;
    while (!rp_engine_next_event(engine, &event)) {
        uint64_t progress = rp_engine_last_progress_ns(engine);
        changes += progress != seen;
        seen = progress;
        const struct timespec pause = {.tv_nsec = 5000000};
        nanosleep(&pause, NULL);
    }
    assert_true(rp_clock_ns() - begin < 500000000u || changes > 2);
    rp_engine_stop(engine);
}

static void test_nothing_allocates_while_serving(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    make_requests();
    memset(together, 0, sizeof together);
    open_engine(&config);
    uint64_t before = rp_alloc_count();
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(rp_engine_submit(engine, &requests[i]), RP_OK);
    drain(together, REQUESTS);
    assert_int_equal(rp_alloc_count(), before);
}

static void test_an_allocation_that_fails_at_start_fails_cleanly(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    struct rp_error err = {0};
    config.max_num_seqs = 2;
    config.max_num_batched_tokens = 16;
    int status = RP_STATUS_NO_MEMORY;
    uint32_t failures = 0;
    for (uint32_t n = 1; status != RP_OK; n += 1 + n / 8) {
        rp_alloc_fail_at(n);
        status = rp_engine_create(&config, &model, &engine, &err);
        rp_alloc_fail_at(0);
        failures += status != RP_OK;
        if (status != RP_OK)
            assert_int_not_equal(err.text[0], '\0');
    }
    assert_true(failures > 10);
}

/* For each failing allocation: an engine that starts can run every step that it may plan. */
static void test_an_engine_that_starts_has_its_largest_set(void **state) {
    (void)state;
    struct rp_engine_config config = config_default();
    config.max_num_seqs = 2;
    config.max_num_batched_tokens = 16;
    config.page_count_override = 64;
    config.swap_bytes = 0;
    config.device.threads = 1;
    uint64_t before = rp_alloc_count();
    open_engine(&config);
    uint64_t total = rp_alloc_count() - before;
    close_engine(NULL);
    uint32_t survived = 0;
    const uint64_t stride = RP_DEBUG ? 7 : 1; /* under the sanitizers each start costs a second */
    for (uint64_t n = 1; n <= total; n += stride) {
        struct rp_error err = {0};
        rp_alloc_fail_at(n);
        int status = rp_engine_create(&config, &model, &engine, &err);
        rp_alloc_fail_at(0);
        if (status != RP_OK)
            continue;
        survived++;
        make_requests();
        memset(together, 0, sizeof together);
        requests[0].prompt_count = 40; /* three steps, of which two fill the largest set */
        requests[0].max_tokens = 2;
        assert_int_equal(rp_engine_start(engine, NULL), RP_OK);
        assert_int_equal(rp_engine_submit(engine, &requests[0]), RP_OK);
        drain(together, 1);
        assert_int_not_equal(together[0].finish, RP_FINISH_ERROR);
        close_engine(NULL);
    }
    assert_true(survived > 0); /* smaller sets may be missing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_64_streams_equal_each_one_alone, close_engine),
        cmocka_unit_test_teardown(test_64_streams_of_a_model_with_experts_equal_each_one_alone,
                                  close_engine),
        cmocka_unit_test_teardown(
            test_eager_unfused_and_poisoned_engines_and_short_steps_give_the_same, close_engine),
        cmocka_unit_test_teardown(test_cancelled_requests_close_and_leave_the_others_alone,
                                  close_engine),
        cmocka_unit_test_teardown(test_stopping_closes_every_open_request_once, close_engine),
        cmocka_unit_test_teardown(test_a_full_event_ring_loses_nothing, close_engine),
        cmocka_unit_test_teardown(test_ends_follow_at_once_when_a_full_ring_is_drained,
                                  close_engine),
        cmocka_unit_test_teardown(test_a_full_queue_refuses_until_it_has_room, close_engine),
        cmocka_unit_test_teardown(test_pages_of_8_bits_are_shared_and_swapped_like_others,
                                  close_engine),
        cmocka_unit_test_teardown(test_a_long_step_shows_progress_while_it_runs, close_engine),
        cmocka_unit_test_teardown(test_nothing_allocates_while_serving, close_engine),
        cmocka_unit_test_teardown(test_an_allocation_that_fails_at_start_fails_cleanly,
                                  close_engine),
        cmocka_unit_test_teardown(test_an_engine_that_starts_has_its_largest_set, close_engine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
