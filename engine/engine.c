/* engine.c - making an engine, and the two rings between it and the loop thread.
 * The thread's own work, step after step, is in step_loop.c. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

#include <string.h>

static const double step_bounds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                     0.05,   0.1,    0.2,    0.5,   1.0,   2.0,   5.0,  10.0};

/* Repacks every weight for the device. A tied head is the embedding's matrix, prepared once. */
static int prepare_weights(struct rp_engine *engine, struct rp_error *err) {
    struct rp_model *model = engine->model;
    uint32_t done = 0, total = model->config.layers + 1;
    for (uint32_t i = 0; i < model->config.layers; i++) {
        struct rp_layer_weights *layer = &model->layers[i];
        struct rp_matrix *matrices[] = {&layer->qkv, &layer->o, &layer->gate_up, &layer->down};
        for (size_t m = 0; m < RP_ARRAY_COUNT(matrices); m++) {
            int status = engine->backend->matrix_prepare(engine->device, matrices[m], err);
            if (status != RP_OK)
                return status;
        }
        if (engine->config.progress)
            engine->config.progress(engine->config.progress_ctx, "prepare", ++done, total);
    }
    bool tied = model->config.tied;
    int status = engine->backend->matrix_prepare(engine->device,
                                                 tied ? &model->embed : &model->lm_head, err);
    if (status == RP_OK && tied)
        model->lm_head = model->embed;
    return status;
}

static int no_memory(struct rp_error *err, const char *what, size_t bytes) {
    int status =
        rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the %s (%zu bytes)", what, bytes);
    rp_error_hint(err, "try a smaller --kv-cache-memory-bytes, --swap-space or --max-num-seqs");
    return status;
}

/* Slots, rings, pages. */
static int make_buffers(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_backend *backend = engine->backend;
    struct rp_engine_layout *layout = &engine->layout;
    struct rp_step_view *view = &engine->batch.view;
    size_t kv_bytes = (size_t)layout->page_count * layout->kv.page_stride;
    size_t host_bytes = (size_t)layout->host_page_count * layout->kv.page_stride;
    engine->state = backend->alloc(engine->device, layout->state_bytes, RP_MEMORY_DEVICE);
    if (!engine->state)
        return no_memory(err, "slots", layout->state_bytes);
    engine->rings = backend->alloc(engine->device, layout->ring_bytes, RP_MEMORY_HOST);
    if (!engine->rings)
        return no_memory(err, "rings", layout->ring_bytes);
    layout->kv.base = backend->alloc(engine->device, kv_bytes, RP_MEMORY_DEVICE);
    if (!layout->kv.base)
        return no_memory(err, "KV pool", kv_bytes);
    engine->host_pages = backend->alloc(engine->device, host_bytes, RP_MEMORY_HOST);
    if (!engine->host_pages)
        return no_memory(err, "swap pool", host_bytes);
    rp_step_state_carve(&layout->step, engine->state, view);
    rp_step_rings_carve(&layout->step, engine->rings, view);
    int status = backend->fill(engine->device, engine->state, 0, layout->state_bytes);
    if (status == RP_OK)
        status = backend->fill(engine->device, engine->rings, 0, layout->ring_bytes);
    if (status == RP_OK)
        status = backend->fill(engine->device, layout->kv.base, 0, layout->kv.page_stride);
    if (status != RP_OK || backend->synchronize(engine->device) != RP_OK)
        return rp_error_set(err, RP_STATUS_DEVICE, "the device failed while being filled");
    engine->batch.results = rp_calloc(layout->step.row_capacity, sizeof *engine->batch.results);
    if (!engine->batch.results)
        return no_memory(err, "results", layout->step.row_capacity);
    return RP_OK;
}

static int make_graphs(struct rp_engine *engine, const struct rp_program *program,
                       struct rp_error *err) {
    const struct rp_engine_config *config = &engine->config;
    struct rp_graph_set_config graphs = {.backend = engine->backend,
                                         .device = engine->device,
                                         .program = program,
                                         .buckets = engine->layout.buckets.buckets,
                                         .bucket_count = engine->layout.buckets.count,
                                         .step = engine->batch.view,
                                         .kv = &engine->layout.kv,
                                         .options = {.no_fusion = config->no_fusion},
                                         .eager = config->enforce_eager,
                                         .poison = config->debug_poison,
                                         .progress = config->progress,
                                         .progress_ctx = config->progress_ctx};
    int status = rp_graph_set_create(&graphs, &engine->graphs, err);
    if (status != RP_OK)
        return status;
    /* A set that is missing is replaced by the next larger one; for the largest there is none. */
    const struct rp_bucket_list *list = &engine->layout.buckets;
    uint32_t tokens = list->token_buckets[list->token_bucket_count - 1];
    uint32_t rows = RP_MIN(tokens, config->max_num_seqs);
    if (rp_graph_set_pick(engine->graphs, tokens, rows, list->logit_rows_max, false))
        return RP_OK;
    status = rp_error_set(err, RP_STATUS_NO_MEMORY,
                          "the graphs of a step of %u tokens could not be captured", tokens);
    rp_error_hint(err, "try a smaller --max-num-batched-tokens or --max-num-seqs");
    return status;
}

static int make_scheduler(struct rp_engine *engine, struct rp_error *err) {
    struct rp_scheduler_config config =
        rp_engine_scheduler_config(&engine->config, &engine->layout);
    if (!rp_random_fill(&config.hash_key, sizeof config.hash_key))
        return rp_error_set(err, RP_STATUS_IO, "the system has no source of random numbers");
    engine->scheduler_config = config;
    int status = rp_scheduler_create(&config, &engine->scheduler, err);
    if (status != RP_OK)
        return status;
    if (!rp_ring_init(&engine->requests, engine->config.queue_capacity, sizeof(void *)) ||
        !rp_ring_init(&engine->events, engine->layout.event_capacity, sizeof(struct rp_event)))
        return no_memory(err, "request and event rings", engine->layout.event_capacity);
    return RP_OK;
}

int rp_engine_create(const struct rp_engine_config *config, struct rp_model *model,
                     struct rp_engine **out, struct rp_error *err) {
    struct rp_program program;
    struct rp_engine *engine = rp_calloc(1, sizeof *engine);
    if (!engine)
        return no_memory(err, "engine", sizeof *engine);
    rp_program_init(&program);
    engine->config = *config;
    engine->model = model;
    engine->backend = rp_backend_cpu();
    rp_histogram_init(&engine->metrics.step_seconds, step_bounds, RP_ARRAY_COUNT(step_bounds));
    struct rp_device_config device = {.threads = config->threads,
                                      .scalar_only = config->scalar_only};
    int status = engine->backend->open(&device, &engine->device, err);
    if (status != RP_OK)
        goto fail;
    engine->backend->info(engine->device, &engine->device_info);
    status = rp_model_emit(model, &program, err);
    if (status == RP_OK)
        status = rp_engine_layout_make(config, model, &program, &engine->device_info,
                                       &engine->layout, err);
    if (status == RP_OK)
        status = prepare_weights(engine, err);
    if (status == RP_OK)
        status = make_buffers(engine, err);
    if (status == RP_OK)
        status = make_graphs(engine, &program, err);
    if (status == RP_OK)
        status = make_scheduler(engine, err);
    if (status == RP_OK)
        status = rp_engine_warm_up(engine, err);
    if (status != RP_OK)
        goto fail;
    sem_init(&engine->wake_up, 0, 0);
    rp_engine_update_gauges(engine);
    rp_gauge_set(&engine->metrics.healthy, 1);
    atomic_store(&engine->last_progress_ns, rp_clock_ns());
    rp_program_deinit(&program); /* graphs hold what they need */
    *out = engine;
    return RP_OK;
fail:
    rp_program_deinit(&program);
    rp_engine_destroy(engine);
    return status;
}

int rp_engine_start(struct rp_engine *engine, struct rp_error *err) {
    if (pthread_create(&engine->thread, NULL, rp_engine_main, engine) != 0)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "the engine thread could not be started");
    engine->started = true;
    return RP_OK;
}

void rp_engine_stop(struct rp_engine *engine) {
    if (!engine->started)
        return;
    atomic_store(&engine->stopping, true);
    sem_post(&engine->wake_up);
    pthread_join(engine->thread, NULL);
    engine->started = false;
    engine->stopped = true;
}

void rp_engine_destroy(struct rp_engine *engine) {
    if (!engine)
        return;
    const struct rp_backend *backend = engine->backend;
    rp_engine_stop(engine);
    rp_graph_set_destroy(engine->graphs);
    rp_scheduler_destroy(engine->scheduler);
    rp_ring_deinit(&engine->requests);
    rp_ring_deinit(&engine->events);
    rp_free(engine->batch.results);
    if (engine->device) {
        backend->free(engine->device, engine->state, RP_MEMORY_DEVICE);
        backend->free(engine->device, engine->rings, RP_MEMORY_HOST);
        backend->free(engine->device, engine->layout.kv.base, RP_MEMORY_DEVICE);
        backend->free(engine->device, engine->host_pages, RP_MEMORY_HOST);
        backend->close(engine->device);
    }
    rp_free(engine);
}

int rp_engine_submit(struct rp_engine *engine, struct rp_request *request) {
    if (!rp_engine_is_healthy(engine))
        return RP_STATUS_DEVICE;
    /* Counts what was submitted and not yet admitted, in the ring or in the scheduler's queue. */
    /* acquire: who was counted out has left the ring, and its place is seen to be free. */
    uint32_t queued = atomic_load_explicit(&engine->queued, memory_order_acquire);
    if (queued >= engine->config.queue_capacity)
        return RP_STATUS_FULL;
    atomic_fetch_add_explicit(&engine->queued, 1, memory_order_relaxed);
    bool pushed = rp_ring_try_push(&engine->requests, &request);
    RP_ASSERT(pushed); /* the ring is as large as the queue */
    sem_post(&engine->wake_up);
    return RP_OK;
}

void rp_engine_notify(struct rp_engine *engine) { sem_post(&engine->wake_up); }

bool rp_engine_next_event(struct rp_engine *engine, struct rp_event *out_event) {
    if (rp_ring_try_pop(&engine->events, out_event)) {
        if (atomic_load_explicit(&engine->wants_room, memory_order_relaxed) &&
            atomic_exchange(&engine->wants_room, false))
            sem_post(&engine->wake_up);
        return true;
    }
    if (!engine->stopped)
        return false;
    rp_engine_flush(engine); /* the thread is gone: its side of the ring is ours */
    return rp_ring_try_pop(&engine->events, out_event);
}

bool rp_engine_fits(const struct rp_engine *engine, uint32_t prompt_count, uint32_t max_tokens) {
    return rp_scheduler_fits(&engine->scheduler_config, prompt_count, max_tokens);
}

uint32_t rp_engine_queue_capacity(const struct rp_engine *engine) {
    return engine->config.queue_capacity;
}

uint32_t rp_engine_max_model_len(const struct rp_engine *engine) {
    return engine->layout.max_model_len;
}

bool rp_engine_is_healthy(const struct rp_engine *engine) {
    return rp_gauge_read(&engine->metrics.healthy) != 0;
}

uint64_t rp_engine_last_progress_ns(const struct rp_engine *engine) {
    return atomic_load_explicit(&((struct rp_engine *)engine)->last_progress_ns,
                                memory_order_relaxed);
}

const struct rp_memory_plan *rp_engine_memory_plan(const struct rp_engine *engine) {
    return &engine->layout.plan;
}

const struct rp_engine_metrics *rp_engine_metrics(const struct rp_engine *engine) {
    return &engine->metrics;
}

void rp_engine_device_info(const struct rp_engine *engine, struct rp_device_info *out_info) {
    *out_info = engine->device_info;
}
