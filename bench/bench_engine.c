#include "bench/bench_engine.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/load/load_metrics.h"

#include <string.h>
#include <time.h>

double rp_bench_quantile(double *values, uint32_t count, double q) {
    if (count == 0)
        return 0.0;
    rp_load_sort(values, count);
    return values[(uint32_t)(q * (count - 1) + 0.5)];
}

int rp_bench_model_config(const struct rp_bench_target *target, struct rp_model_config *out,
                          struct rp_error *err) {
    return target->dir ? rp_model_config_load(target->dir, out, err)
                       : rp_model_shape(target->shape, out, err);
}

bool rp_bench_on_gpu(const struct rp_bench_target *target) {
    struct rp_device_info info = {.separate_memory = false};
    if (target->opened)
        target->backend->info(target->opened, &info);
    return info.separate_memory;
}

static void on_wake(void *ctx) { sem_post(&((struct rp_bench_engine *)ctx)->wake); }

int rp_bench_make_model(const struct rp_bench_target *target, uint32_t positions, bool on_gpu,
                        struct rp_model *out, struct rp_error *err) {
    struct rp_model_config shape;
    if (target->dir)
        return rp_model_open(target->dir, target->dtype, &target->quantization, positions, out,
                             err);
    int status = rp_model_shape(target->shape, &shape, err);
    if (status != RP_OK)
        return status;
    shape.quantization = target->quantization.scheme;
    shape.quantize_head = target->quantization.head;
    return (on_gpu ? rp_model_random_vectors : rp_model_random)(&shape, target->dtype, 1, positions,
                                                                out, err);
}

/* The same values as GET /debug/graphs. */
static int note_graphs(struct rp_bench_engine *bench, struct rp_error *err) {
    struct rp_bench_ready *ready = &bench->ready;
    const struct rp_memory_plan *plan = rp_engine_memory_plan(bench->engine);
    uint32_t count = rp_engine_graph_count(bench->engine);
    double *capture_ms = rp_calloc(count + 1, sizeof *capture_ms);
    if (!capture_ms)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(bench->engine, i, &graph);
        if (!graph.captured) {
            ready->graphs_failed++;
            continue;
        }
        capture_ms[ready->graphs++] = (double)graph.capture_ns * 1e-6;
        ready->capture_ms += (double)graph.capture_ns * 1e-6;
        ready->argument_bytes += graph.bytes;
        ready->arena_bytes = RP_MAX(ready->arena_bytes, graph.arena_bytes);
    }
    ready->capture_ms_median = rp_bench_quantile(capture_ms, ready->graphs, 0.5);
    ready->capture_ms_largest = rp_bench_quantile(capture_ms, ready->graphs, 1.0);
    rp_free(capture_ms);
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, "graphs") == 0)
            ready->graph_bytes = plan->items[i].bytes;
    ready->kv_tokens = plan->kv_tokens;
    ready->page_tokens = plan->page_tokens;
    return RP_OK;
}

static int make_engine(const struct rp_bench_target *target, const struct rp_engine_config *sizes,
                       struct rp_bench_engine *bench, struct rp_error *err) {
    struct rp_device_info device;
    struct rp_engine_config config = {.backend = target->backend,
                                      .opened = target->opened,
                                      .device = target->device,
                                      .max_num_seqs = sizes->max_num_seqs,
                                      .max_num_batched_tokens = sizes->max_num_batched_tokens,
                                      .max_model_len = sizes->max_model_len,
                                      .queue_capacity = sizes->max_num_seqs,
                                      .kv_dtype = target->kv_dtype,
                                      .prefix_cache = sizes->prefix_cache,
                                      .run_ahead = target->run_ahead,
                                      .enforce_eager = target->enforce_eager,
                                      .no_fusion = target->no_fusion,
                                      .wake = on_wake,
                                      .wake_ctx = bench};
    int status = rp_engine_create(&config, &bench->model, &bench->engine, err);
    if (status != RP_OK)
        return status;
    rp_engine_device_info(bench->engine, &device);
    bench->on_gpu = device.separate_memory;
    memcpy(bench->ready.device, device.name, sizeof bench->ready.device);
    return RP_OK;
}

int rp_bench_engine_open(const struct rp_bench_target *target, const struct rp_engine_config *sizes,
                         struct rp_bench_engine *out, struct rp_error *err) {
    uint64_t begin_ns = rp_clock_ns();
    memset(out, 0, sizeof *out);
    sem_init(&out->wake, 0, 0);
    int status = rp_bench_make_model(target, sizes->max_model_len, rp_bench_on_gpu(target),
                                     &out->model, err);
    out->times = rp_calloc(RP_STEP_TIMES, sizeof *out->times);
    if (status == RP_OK && !out->times)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status != RP_OK) {
        if (target->opened)
            target->backend->close(target->opened);
        return status;
    }
    out->ready.model_seconds = (double)(rp_clock_ns() - begin_ns) * 1e-9;
    status = make_engine(target, sizes, out, err);
    out->ready.seconds = (double)(rp_clock_ns() - begin_ns) * 1e-9;
    if (status == RP_OK)
        status = note_graphs(out, err);
    return status == RP_OK ? rp_engine_start(out->engine, err) : status;
}

void rp_bench_engine_close(struct rp_bench_engine *bench) {
    rp_engine_destroy(bench->engine);
    rp_model_deinit(&bench->model);
    rp_free(bench->times);
    sem_destroy(&bench->wake);
    memset(bench, 0, sizeof *bench);
}

int rp_bench_wait_idle(const struct rp_engine *engine, struct rp_error *err) {
    const struct timespec interval = {.tv_nsec = 20000};
    /* No request is open, so no further step is launched. */
    while (rp_engine_steps_timed(engine) != rp_counter_read(&rp_engine_metrics(engine)->steps)) {
        if (!rp_engine_is_healthy(engine))
            return rp_error_set(err, RP_STATUS_DEVICE, "%s", rp_engine_failure(engine));
        nanosleep(&interval, NULL);
    }
    return RP_OK;
}

uint32_t rp_bench_engine_times(struct rp_bench_engine *bench, uint64_t since) {
    uint64_t count = rp_engine_steps_timed(bench->engine) - since;
    return rp_engine_step_times(bench->engine, bench->times,
                                (uint32_t)RP_MIN(count, (uint64_t)RP_STEP_TIMES));
}
