#include "tests/http/fake_engine.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/ring.h"
#include "engine/observe/device_counting.h"
#include "engine/observe/page_watch.h"
#include "engine/observe/step_record.h"
#include "metrics/tick.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    SEED_NAN = 9001,
    SEED_DEVICE = 9002,
    SEED_STUCK = 9003,
    SEED_MASK = 9004,
    SEED_BROKEN = 9005,
    FAULT_TOKEN = 3,
    EVENTS = 4096,
    VOCAB = 263
};

struct sequence {
    struct rp_request *request;
    uint32_t tokens;
};

struct rp_engine {
    struct rp_fake_config config;
    struct rp_ring requests, events;
    struct sequence *sequences; /* the first max_num_seqs run, the others wait */
    uint32_t count;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken, stopping, started;
    _Atomic bool healthy, broken;
    _Atomic uint32_t open;
    _Atomic uint64_t progress_ns;
    struct rp_engine_metrics metrics;
    struct rp_memory_plan plan;
};

static const double step_bounds[] = {0.001, 0.01, 0.1, 1};

struct rp_engine *rp_fake_engine_create(const struct rp_fake_config *config) {
    struct rp_engine *engine = rp_calloc(1, sizeof *engine);
    RP_ASSERT(engine);
    engine->config = *config;
    uint32_t capacity = config->max_num_seqs + config->queue_capacity;
    RP_ASSERT(rp_ring_init(&engine->requests, capacity, sizeof(struct rp_request *)));
    RP_ASSERT(rp_ring_init(&engine->events, EVENTS, sizeof(struct rp_event)));
    engine->sequences = rp_calloc(capacity, sizeof *engine->sequences);
    RP_ASSERT(engine->sequences);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->changed, NULL);
    atomic_store(&engine->healthy, true);
    rp_gauge_set(&engine->metrics.healthy, 1);
    for (int i = 0; i < 2; i++)
        rp_histogram_init(&engine->metrics.step_seconds[i], step_bounds,
                          RP_ARRAY_COUNT(step_bounds));
    atomic_store(&engine->progress_ns, rp_clock_ns());
    engine->plan.item_count = 1;
    snprintf(engine->plan.items[0].name, sizeof engine->plan.items[0].name, "nothing");
    engine->plan.kv_tokens = config->kv_tokens;
    engine->plan.max_model_len = config->max_model_len;
    return engine;
}

static void emit(struct rp_engine *engine, const struct rp_event *event) {
    while (!rp_ring_try_push(&engine->events, event)) {
        engine->config.wake(engine->config.wake_ctx);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

static void close_sequence(struct rp_engine *engine, uint32_t index, enum rp_finish_reason reason) {
    struct rp_request *request = engine->sequences[index].request;
    struct rp_event event = {.request = request,
                             .kind = RP_EVENT_CLOSED,
                             .finish_reason = (uint8_t)reason,
                             .time_ns = rp_clock_ns()};
    request->closed_ns = event.time_ns;
    if (request->sampling.seed == SEED_BROKEN)
        atomic_store(&engine->broken, false);
    engine->count--;
    memmove(&engine->sequences[index], &engine->sequences[index + 1],
            (engine->count - index) * sizeof engine->sequences[0]);
    atomic_fetch_sub(&engine->open, 1);
    emit(engine, &event);
}

float rp_fake_logprob(int32_t token) { return -(float)(token % 40 + 1) / 4; }

static void add_logprobs(struct rp_event *event, bool asked, uint32_t top) {
    event->logprob = rp_fake_logprob(event->token);
    if (!asked)
        return;
    event->rank = (uint32_t)event->token % 7 + 1;
    event->top_count = (uint8_t)top;
    for (uint32_t i = 0; i < top; i++)
        event->top[i] = (struct rp_logprob){(int32_t)(((uint32_t)event->token + 1 + i) % VOCAB),
                                            -(float)(i + 1) / 8};
}

static void emit_prompt(struct rp_engine *engine, struct rp_request *request) {
    for (uint32_t i = 1; i < request->prompt_count && request->prompt_logprobs; i++) {
        struct rp_event event = {.request = request,
                                 .kind = RP_EVENT_PROMPT,
                                 .token = request->prompt[i],
                                 .index = i,
                                 .time_ns = rp_clock_ns()};
        add_logprobs(&event, true, request->top_prompt_logprobs);
        emit(engine, &event);
    }
}

/* True if the fault of this seed happens now. */
static bool plays(const struct rp_engine *engine, const struct sequence *sequence, uint64_t seed) {
    return sequence->tokens == FAULT_TOKEN && sequence->request->sampling.seed == seed &&
           !engine->config.no_faults;
}

/* The next token of the sequence's answer. */
static int32_t pick_token(const struct rp_engine *engine, const struct sequence *sequence) {
    const struct rp_fake_config *config = &engine->config;
    const struct rp_request *request = sequence->request;
    uint32_t count = request->prompt_count, length = 0;
    if (count == 1)
        return request->prompt[0];
    if (!config->answer_open || request->prompt[1] != config->answer_open)
        return request->prompt[1 + sequence->tokens % (count - 1)];
    while (2 + length < count && request->prompt[2 + length] != config->answer_close)
        length++;
    return sequence->tokens < length ? request->prompt[2 + sequence->tokens] : config->answer_end;
}

static bool is_held(const struct sequence *sequence) {
    const struct rp_sample_hold *hold = sequence->request->hold;
    return hold && atomic_load_explicit(&hold->released, memory_order_acquire) <= sequence->tokens;
}

/* One token of one sequence; false when it closed. */
static bool advance(struct rp_engine *engine, uint32_t index) {
    struct sequence *sequence = &engine->sequences[index];
    struct rp_request *request = sequence->request;
    if (is_held(sequence))
        return true;
    struct rp_event event = {.request = request,
                             .kind = RP_EVENT_TOKEN,
                             .token = pick_token(engine, sequence),
                             .time_ns = rp_clock_ns()};
    add_logprobs(&event, request->logprobs, request->top_logprobs);
    if (sequence->tokens == 0) {
        emit_prompt(engine, request);
        request->first_token_ns = event.time_ns;
        rp_counter_add(&engine->metrics.prompt_tokens, request->prompt_count);
    }
    sequence->tokens++;
    if (plays(engine, sequence, SEED_NAN)) {
        close_sequence(engine, index, RP_FINISH_NUMERIC);
        return false;
    }
    if (plays(engine, sequence, SEED_MASK)) {
        close_sequence(engine, index, RP_FINISH_MASK_DEADLINE);
        return false;
    }
    if (plays(engine, sequence, SEED_DEVICE)) {
        atomic_store(&engine->healthy, false);
        rp_gauge_set(&engine->metrics.healthy, 0);
    }
    if (plays(engine, sequence, SEED_BROKEN))
        atomic_store(&engine->broken, true);
    for (uint32_t i = 0; i < request->stop_count && sequence->tokens > request->min_tokens; i++)
        event.is_stop = event.is_stop || request->stop_ids[i] == event.token;
    rp_counter_add(&engine->metrics.generation_tokens, 1);
    bool last = sequence->tokens >= request->max_tokens;
    emit(engine, &event);
    if (event.is_stop || last)
        close_sequence(engine, index, event.is_stop ? RP_FINISH_STOP : RP_FINISH_LENGTH);
    return !event.is_stop && !last;
}

static bool is_stuck(const struct rp_engine *engine) {
    uint32_t running = RP_MIN(engine->count, engine->config.max_num_seqs);
    for (uint32_t i = 0; i < running && !engine->config.no_faults; i++)
        if (engine->sequences[i].request->sampling.seed == SEED_STUCK)
            return true;
    return false;
}

static bool is_late(uint64_t deadline_ns) { return deadline_ns && rp_tick_ns() >= deadline_ns; }

static void step(struct rp_engine *engine) {
    struct rp_request *request;
    while (rp_ring_try_pop(&engine->requests, &request))
        engine->sequences[engine->count++] = (struct sequence){.request = request};
    for (uint32_t i = 0; i < engine->count;)
        if (atomic_load(&engine->sequences[i].request->cancelled))
            close_sequence(engine, i, RP_FINISH_CANCELLED);
        else if (is_late(engine->sequences[i].request->deadline_ns))
            close_sequence(engine, i, RP_FINISH_TIMEOUT);
        else if (i >= engine->config.max_num_seqs &&
                 is_late(engine->sequences[i].request->queue_deadline_ns))
            close_sequence(engine, i, RP_FINISH_QUEUE_TIMEOUT);
        else
            i++;
    uint32_t running = RP_MIN(engine->count, engine->config.max_num_seqs);
    if (!is_stuck(engine)) {
        for (uint32_t i = 0, n = running; n > 0; n--) {
            if (engine->sequences[i].request->scheduled_ns == 0)
                engine->sequences[i].request->scheduled_ns = rp_clock_ns();
            i += advance(engine, i);
        }
        rp_counter_add(&engine->metrics.steps, 1);
        rp_counter_add(&engine->metrics.decode_steps, 1);
        atomic_store(&engine->progress_ns, rp_clock_ns());
    }
    running = RP_MIN(engine->count, engine->config.max_num_seqs);
    rp_gauge_set(&engine->metrics.running, running);
    rp_gauge_set(&engine->metrics.waiting, engine->count - running);
    engine->config.wake(engine->config.wake_ctx);
}

void rp_fake_engine_step(struct rp_engine *engine) { step(engine); }

static void close_rest(struct rp_engine *engine) {
    struct rp_request *request;
    while (rp_ring_try_pop(&engine->requests, &request))
        engine->sequences[engine->count++] = (struct sequence){.request = request};
    while (engine->count)
        close_sequence(engine, 0, RP_FINISH_ERROR);
    engine->config.wake(engine->config.wake_ctx);
}

static void *run(void *arg) {
    struct rp_engine *engine = arg;
    bool stopping = false;
    while (!stopping) {
        pthread_mutex_lock(&engine->lock);
        while (!engine->woken && !engine->stopping && engine->count == 0)
            pthread_cond_wait(&engine->changed, &engine->lock);
        engine->woken = false;
        stopping = engine->stopping;
        pthread_mutex_unlock(&engine->lock);
        if (!stopping && atomic_load(&engine->healthy)) {
            step(engine);
            nanosleep(&(struct timespec){.tv_sec = engine->config.step_us / 1000000,
                                         .tv_nsec = engine->config.step_us % 1000000 * 1000},
                      NULL);
        }
        if (!atomic_load(&engine->healthy))
            close_rest(engine);
    }
    close_rest(engine);
    return NULL;
}

int rp_engine_start(struct rp_engine *engine, struct rp_error *err) {
    (void)err;
    engine->started = pthread_create(&engine->thread, NULL, run, engine) == 0;
    return engine->started ? RP_OK : RP_STATUS_NO_MEMORY;
}

void rp_engine_notify(struct rp_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->woken = true;
    pthread_cond_signal(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void rp_engine_stop(struct rp_engine *engine) {
    if (!engine->started)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    pthread_cond_signal(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    engine->started = false;
}

void rp_engine_destroy(struct rp_engine *engine) {
    rp_engine_stop(engine);
    rp_ring_deinit(&engine->requests);
    rp_ring_deinit(&engine->events);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->changed);
    rp_free(engine->sequences);
    rp_free(engine);
}

int rp_engine_submit(struct rp_engine *engine, struct rp_request *request) {
    if (!atomic_load(&engine->healthy))
        return RP_STATUS_DEVICE;
    uint32_t capacity = engine->config.max_num_seqs + engine->config.queue_capacity;
    if (atomic_load(&engine->open) >= capacity || !rp_ring_try_push(&engine->requests, &request))
        return RP_STATUS_FULL;
    atomic_fetch_add(&engine->open, 1);
    rp_engine_notify(engine);
    return RP_OK;
}

bool rp_engine_next_event(struct rp_engine *engine, struct rp_event *out_event) {
    return rp_ring_try_pop(&engine->events, out_event);
}

bool rp_engine_prompt_fits(const struct rp_engine *engine, uint32_t prompt_count) {
    return prompt_count &&
           prompt_count <= RP_MIN(engine->config.kv_tokens, engine->config.max_model_len);
}

uint32_t rp_engine_output_max(const struct rp_engine *engine, uint32_t prompt_count) {
    uint64_t tokens_max =
        RP_MIN((uint64_t)engine->config.kv_tokens, (uint64_t)engine->config.max_model_len);
    return prompt_count < tokens_max ? (uint32_t)(tokens_max - prompt_count) : 0;
}

uint32_t rp_engine_whole_prompt_max(const struct rp_engine *engine, bool scored) {
    (void)engine;
    (void)scored;
    return 0;
}

uint32_t rp_engine_layer_count(const struct rp_engine *engine) {
    (void)engine;
    return 1;
}

void rp_engine_layer_mask(const struct rp_engine *engine, uint32_t layer,
                          struct rp_engine_layer_mask *out) {
    (void)engine;
    (void)layer;
    *out = (struct rp_engine_layer_mask){.kernels = "attention"};
}

uint32_t rp_engine_queue_capacity(const struct rp_engine *engine) {
    return engine->config.queue_capacity;
}

uint32_t rp_engine_max_model_len(const struct rp_engine *engine) {
    return engine->config.max_model_len;
}

const char *rp_engine_failure(const struct rp_engine *engine) {
    return rp_engine_is_healthy(engine) ? NULL : "seed 9002";
}

uint32_t rp_engine_graph_count(const struct rp_engine *engine) {
    (void)engine;
    return 2;
}

/* The second one could not be captured. */
void rp_engine_graph(const struct rp_engine *engine, uint32_t index,
                     struct rp_engine_graph *out_graph) {
    *out_graph = (struct rp_engine_graph){
        .bucket = {.tokens = 8 << index, .rows = 8, .logit_rows = 8, .decode = index == 0},
        .captured = index == 0,
        .replays = rp_counter_read(&engine->metrics.steps)};
}

const struct rp_latency *rp_engine_step_latency(const struct rp_engine *engine, uint32_t index) {
    (void)engine;
    (void)index;
    return NULL;
}

bool rp_engine_is_healthy(const struct rp_engine *engine) {
    return atomic_load(&((struct rp_engine *)engine)->healthy);
}

bool rp_engine_is_consistent(const struct rp_engine *engine) {
    return !atomic_load(&((struct rp_engine *)engine)->broken);
}

uint64_t rp_engine_last_progress_ns(const struct rp_engine *engine) {
    return atomic_load(&((struct rp_engine *)engine)->progress_ns);
}

const struct rp_memory_plan *rp_engine_memory_plan(const struct rp_engine *engine) {
    return &engine->plan;
}

const struct rp_engine_metrics *rp_engine_metrics(const struct rp_engine *engine) {
    return &engine->metrics;
}

void rp_engine_device_info(const struct rp_engine *engine, struct rp_device_info *out_info) {
    (void)engine;
    snprintf(out_info->name, sizeof out_info->name, "fake");
    snprintf(out_info->kernels, sizeof out_info->kernels, "none");
}

uint32_t rp_engine_copy_steps(const struct rp_engine *engine, uint64_t since_ns,
                              struct rp_step_record *out, uint32_t capacity) {
    (void)engine, (void)since_ns, (void)out, (void)capacity;
    return 0;
}

uint32_t rp_fake_engine_open(const struct rp_engine *engine) {
    return atomic_load(&((struct rp_engine *)engine)->open);
}

const struct rp_engine_peaks *rp_engine_get_peaks(const struct rp_engine *engine) {
    static const struct rp_engine_peaks none;
    (void)engine;
    return &none;
}

/* It has no steps to profile. */
struct rp_step_profile *rp_engine_profile(const struct rp_engine *engine) {
    (void)engine;
    return NULL;
}

/* --- Pages: it has none. The engine's own functions would read another struct.
 * ---- */

void rp_engine_page_use(const struct rp_engine *engine, struct rp_page_use *out) {
    (void)engine;
    memset(out, 0, sizeof *out);
}

uint32_t rp_engine_page_map(const struct rp_engine *engine, uint32_t *out, uint32_t capacity) {
    (void)engine, (void)out, (void)capacity;
    return 0;
}

void rp_engine_page_reset_peaks(struct rp_engine *engine) { (void)engine; }

bool rp_engine_page_history_start(struct rp_engine *engine) {
    (void)engine;
    return false;
}

void rp_engine_page_history_stop(struct rp_engine *engine) { (void)engine; }

bool rp_engine_page_history_is_on(const struct rp_engine *engine) {
    (void)engine;
    return false;
}

const struct rp_trace_ring *rp_engine_page_history(const struct rp_engine *engine) {
    static const struct rp_trace_ring empty;
    (void)engine;
    return &empty;
}

uint64_t rp_engine_page_address(const struct rp_engine *engine) {
    (void)engine;
    return 0;
}

/* --- Counters of a device: it has none. ------------------------------------------------------ */

int rp_engine_count_device(struct rp_engine *engine,
                           const struct rp_device_counter_options *options,
                           struct rp_device_counters *out, struct rp_profile_slowdown *slowdown,
                           struct rp_error *err) {
    (void)engine, (void)options, (void)out, (void)slowdown;
    return rp_error_set(err, RP_STATUS_UNSUPPORTED, "a fake engine has no counters");
}
