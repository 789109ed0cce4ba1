/* engine.c - making an engine, and the two rings between it and the loop thread.
 * The thread's own work, step after step, is in step_loop.c. */
#include "engine/engine_internal.h"

#include "backend/group.h"
#include "backend/module.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/gpu_plan.h"
#include "engine/weights_on_device.h"

#include <string.h>

/* Copies the weights to the device, or reserves their memory and starts a thread that fills it.
 * With fast numerics cuBLASLt times its algorithms during capture, and copies would disturb it. On
 * a GPU the weights are counted by what the device allocated. */
static int prepare_weights(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_backend *backend = engine->backend;
    bool reserves =
        rp_weights_can_reserve(backend, engine->model) && !engine->config.device.fast_numerics;
    struct rp_device_memory before, after;
    backend->memory(engine->device, &before);
    int status =
        reserves
            ? rp_weights_reserve(backend, engine->device, engine->model, &engine->prepared, err)
            : rp_weights_prepare(backend, engine->device, engine->model, &engine->prepared,
                                 engine->config.progress, engine->config.progress_ctx, err);
    if (status == RP_STATUS_NO_MEMORY && engine->layout.on_gpu)
        return rp_gpu_plan_no_room(&engine->config, &engine->layout, engine->layout.page_count,
                                   err);
    if (status != RP_OK)
        return status;
    backend->memory(engine->device, &after);
    engine->weights_bytes = after.allocated_bytes - before.allocated_bytes;
    if (reserves)
        rp_weights_loader_begin(&engine->loader, backend, engine->device, engine->model);
    return RP_OK;
}

static int await_weights(struct rp_engine *engine, struct rp_error *err) {
    return rp_weights_loader_end(&engine->loader, engine->config.progress,
                                 engine->config.progress_ctx, err);
}

/* Stops the loader after another part failed with `status`. If reading the weights has failed, that
 * error is returned instead: it came first, or explains the other. */
static int cancel_weights(struct rp_engine *engine, int status, struct rp_error *err) {
    int loaded = rp_weights_loader_cancel(&engine->loader, err);
    return loaded == RP_OK ? status : loaded;
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
                                         .geometry = &engine->layout.geometry,
                                         .options = {.no_fusion = config->no_fusion},
                                         .eager = config->enforce_eager,
                                         .poison = config->debug_poison,
                                         .progress = config->progress,
                                         .progress_ctx = config->progress_ctx,
                                         .captured = rp_engine_replay_first,
                                         .captured_ctx = engine};
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
        rp_engine_scheduler_config(&engine->config, &engine->layout, &engine->device_info);
    if (!rp_random_fill(&config.hash_key, sizeof config.hash_key))
        return rp_error_set(err, RP_STATUS_IO, "the system has no source of random numbers");
    engine->scheduler_config = config;
    int status = rp_scheduler_create(&config, &engine->scheduler, err);
    if (status != RP_OK)
        return status;
    if (!rp_page_life_init(&engine->observer.page_watch.life, config.page_count, &engine->metrics))
        return rp_engine_no_memory(err, "times of pages", config.page_count);
    rp_scheduler_watch_pages(engine->scheduler, rp_page_watch_note, &engine->observer.page_watch);
    if (engine->config.kv_event_capacity && config.prefix_cache) {
        if (!rp_kv_events_init(&engine->kv_events, engine->config.kv_event_capacity,
                               config.page_tokens))
            return rp_engine_no_memory(err, "events of the prefix cache",
                                       engine->config.kv_event_capacity);
        rp_scheduler_watch_prefix(engine->scheduler, rp_kv_events_note, &engine->kv_events);
    }
    if (!rp_ring_init(&engine->requests, engine->config.queue_capacity, sizeof(void *)) ||
        !rp_ring_init(&engine->events, engine->layout.event_capacity, sizeof(struct rp_event)))
        return rp_engine_no_memory(err, "request and event rings", engine->layout.event_capacity);
    return RP_OK;
}

static int open_device(struct rp_engine *engine, struct rp_error *err) {
    engine->backend = engine->config.backend ? engine->config.backend : rp_backend_cpu();
    engine->device = engine->config.opened;
    int status = engine->device ? RP_OK
                                : rp_group_open(engine->backend, &engine->config.device,
                                                &engine->backend, &engine->device, err);
    if (status != RP_OK)
        return status;
    engine->backend->info(engine->device, &engine->device_info);
    engine->backend->memory(engine->device, &engine->memory_opened);
    rp_engine_config_resolve(&engine->config, &engine->device_info);
    if (!engine->model->ranks)
        return rp_model_shard(engine->model, engine->device_info.ranks, err);
    if (engine->model->ranks == engine->device_info.ranks)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_INVALID,
                        "the weights are divided among %u ranks, the device has %u",
                        engine->model->ranks, engine->device_info.ranks);
}

static void set_memory_metrics(struct rp_engine *engine) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    const struct rp_engine_layout *layout = &engine->layout;
    for (int use = 0; use < RP_MEMORY_USE_COUNT; use++)
        rp_gauge_set(&metrics->memory[use], (int64_t)layout->gpu.uses[use]);
    if (!layout->on_gpu) {
        rp_gauge_set(&metrics->memory[RP_MEMORY_WEIGHTS],
                     (int64_t)rp_model_weight_bytes(engine->model));
        rp_gauge_set(&metrics->memory[RP_MEMORY_ACTIVATIONS], (int64_t)layout->arena_bytes);
        rp_gauge_set(&metrics->memory[RP_MEMORY_WORKSPACE], (int64_t)layout->exchange_bytes);
        rp_gauge_set(&metrics->memory[RP_MEMORY_SLOTS],
                     (int64_t)(layout->state_bytes - layout->recurrent_bytes));
        rp_gauge_set(&metrics->memory[RP_MEMORY_STATE], (int64_t)layout->recurrent_bytes);
        rp_gauge_set(&metrics->memory[RP_MEMORY_KV], (int64_t)engine->kv_committed);
    }
    rp_gauge_set(&metrics->snapshots_capacity, layout->plan.snapshot_count);
    rp_engine_count_allocations(engine);
}

/* Logs how long a part of the start took since *since_ns. */
static void log_part(const char *part, uint64_t *since_ns) {
    uint64_t now = rp_clock_ns();
    rp_log(RP_LOG_DEBUG, "start: %s seconds=%.3f", part, (double)(now - *since_ns) * 1e-9);
    *since_ns = now;
}

/* Everything on the device, in this order: what is left at the end is the KV pool. Reserved weights
 * are complete after "rest of the weights"; the first replays before it may read zeros or a part of
 * the values, and their results are not used. */
static int make_all(struct rp_engine *engine, const struct rp_program *program,
                    struct rp_error *err) {
    static const struct {
        const char *name;
        int (*make)(struct rp_engine *engine, struct rp_error *err);
    } parts[] = {{"weights on the device", prepare_weights},
                 {"slots, rings, swap pool", rp_engine_make_buffers},
                 {NULL, NULL}, /* graphs */
                 {"last replay", rp_engine_end_replays},
                 {"rest of the weights", await_weights},
                 {"peaks", rp_engine_measure_peaks},
                 {"KV pool", rp_engine_map_pool},
                 {"scheduler", make_scheduler}};
    uint64_t since_ns = rp_clock_ns();
    int status =
        rp_engine_layout_make(&engine->config, engine->model, program, &engine->device_info,
                              &engine->memory_opened, &engine->layout, err);
    if (status == RP_OK && engine->layout.on_gpu)
        rp_engine_begin_host_pages(engine);
    for (size_t i = 0; i < RP_ARRAY_COUNT(parts) && status == RP_OK; i++) {
        status = parts[i].make ? parts[i].make(engine, err) : make_graphs(engine, program, err);
        log_part(parts[i].make ? parts[i].name : "graphs", &since_ns);
    }
    return status == RP_OK ? RP_OK : cancel_weights(engine, status, err);
}

/* config->plant_node: emits the embedding twice; it only reads the step and weights. */
static int plant_node(struct rp_program *program, struct rp_error *err) {
    uint32_t at = 0;
    while (at < program->op_count && program->ops[at].kind != RP_OP_EMBED)
        at++;
    RP_ASSERT_CMP(at, <, program->op_count);
    const struct rp_op copy = program->ops[at];
    if (rp_program_add_op(program, &copy) < 0)
        return rp_engine_no_memory(err, "program", sizeof copy);
    memmove(&program->ops[at + 1], &program->ops[at],
            (program->op_count - 1 - at) * sizeof program->ops[0]);
    program->sample_begin++;
    return RP_OK;
}

int rp_engine_create(const struct rp_engine_config *config, struct rp_model *model,
                     struct rp_engine **out, struct rp_error *err) {
    struct rp_program program;
    struct rp_engine *engine = rp_calloc(1, sizeof *engine);
    if (!engine) {
        if (config->opened)
            config->backend->close(config->opened);
        return rp_engine_no_memory(err, "engine", sizeof *engine);
    }
    rp_program_init(&program);
    engine->config = *config;
    engine->model = model;
    rp_engine_init_mask(engine);
    int status = open_device(engine, err);
    if (status == RP_OK)
        status = rp_model_emit(model, &program, err);
    if (status == RP_OK && config->plant_node)
        status = plant_node(&program, err);
    if (status == RP_OK)
        status = rp_backend_check_program(engine->backend, &program, err);
    if (status == RP_OK)
        status = make_all(engine, &program, err);
    if (status == RP_OK)
        status = rp_observer_init(engine, &program, err);
    rp_program_deinit(&program); /* graphs hold what they need */
    if (status != RP_OK) {
        rp_engine_destroy(engine);
        return status;
    }
    sem_init(&engine->wake_up, 0, 0);
    rp_engine_update_gauges(engine);
    set_memory_metrics(engine);
    rp_gauge_set(&engine->metrics.healthy, 1);
    atomic_store(&engine->last_progress_ns, rp_clock_ns());
    *out = engine;
    return RP_OK;
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
    if (engine->hangs) /* the device may still write to all of it */
        return;
    rp_graph_set_destroy(engine->graphs);
    rp_scheduler_destroy(engine->scheduler);
    rp_ring_deinit(&engine->requests);
    rp_ring_deinit(&engine->events);
    rp_kv_events_deinit(&engine->kv_events);
    rp_free(engine->batch.results);
    rp_observer_deinit(&engine->observer);
    if (engine->device) {
        /* Without graphs nothing has waited: a start that failed may have fills in flight. */
        (void)backend->synchronize(engine->device);
        rp_engine_free_buffers(engine);
        rp_weights_release(backend, engine->device, engine->model, engine->prepared);
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

uint32_t rp_engine_output_max(const struct rp_engine *engine, uint32_t prompt_count) {
    return rp_scheduler_output_max(&engine->scheduler_config, prompt_count);
}

bool rp_engine_prompt_fits(const struct rp_engine *engine, uint32_t prompt_count) {
    return rp_scheduler_prompt_fits(&engine->scheduler_config, prompt_count);
}

struct rp_kv_events *rp_engine_kv_events(struct rp_engine *engine) {
    return engine->kv_events.next ? &engine->kv_events : NULL;
}

uint32_t rp_engine_queue_capacity(const struct rp_engine *engine) {
    return engine->config.queue_capacity;
}

uint32_t rp_engine_max_model_len(const struct rp_engine *engine) {
    return engine->layout.max_model_len;
}

bool rp_engine_is_healthy(const struct rp_engine *engine) {
    return rp_engine_failure(engine) == NULL;
}

bool rp_engine_is_consistent(const struct rp_engine *engine) {
    return !atomic_load_explicit(&((struct rp_engine *)engine)->invariants.broken,
                                 memory_order_relaxed);
}

const char *rp_engine_failure(const struct rp_engine *engine) {
    return atomic_load_explicit(&((struct rp_engine *)engine)->failure, memory_order_acquire);
}

uint64_t rp_engine_last_progress_ns(const struct rp_engine *engine) {
    return atomic_load_explicit(&((struct rp_engine *)engine)->last_progress_ns,
                                memory_order_relaxed);
}

const struct rp_memory_plan *rp_engine_memory_plan(const struct rp_engine *engine) {
    return &engine->layout.plan;
}

struct rp_step_profile *rp_engine_profile(const struct rp_engine *engine) {
    return engine->observer.profile;
}

const struct rp_engine_peaks *rp_engine_get_peaks(const struct rp_engine *engine) {
    return &engine->peaks;
}

void rp_engine_set_power(struct rp_engine *engine, uint32_t milliwatts) {
    rp_gauge_set(&engine->metrics.power_mw, milliwatts);
}

const struct rp_engine_metrics *rp_engine_metrics(const struct rp_engine *engine) {
    return &engine->metrics;
}

void rp_engine_device_info(const struct rp_engine *engine, struct rp_device_info *out_info) {
    *out_info = engine->device_info;
}

uint32_t rp_engine_graph_count(const struct rp_engine *engine) {
    return rp_graph_set_count(engine->graphs);
}

void rp_engine_graph(const struct rp_engine *engine, uint32_t index,
                     struct rp_engine_graph *out_graph) {
    const struct rp_graph_entry *entry = rp_graph_set_entry(engine->graphs, index);
    *out_graph = (struct rp_engine_graph){
        .bucket = entry->bucket,
        .captured = entry->forward != NULL,
        .nodes = entry->nodes,
        .kernels = entry->kernels,
        .launches = entry->launches,
        .bytes = entry->graph_bytes,
        .arena_bytes = entry->arena_bytes,
        .capture_ns = entry->capture_ns,
        .fingerprint = entry->fingerprint,
        .replays = rp_counter_read(&entry->replays),
        .padded_tokens = rp_counter_read(&entry->padded_tokens),
    };
}

const struct rp_latency *rp_engine_step_latency(const struct rp_engine *engine, uint32_t index) {
    return &engine->observer.step_latency[index];
}
