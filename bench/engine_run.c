#include "bench/engine_run.h"

#include "bench/bench_engine.h"

#include <string.h>

static void on_wake(void *ctx) {
    struct rp_engine_run *run = ctx;
    atomic_fetch_add_explicit(&run->wakes, 1, memory_order_relaxed);
    sem_post(&run->wake);
}

static int open_model(const struct rp_engine_run_model *model,
                      const struct rp_engine_config *config, struct rp_model *out,
                      struct rp_error *err) {
    struct rp_device_info info = {.separate_memory = false};
    if (model->dir)
        return rp_model_open(model->dir, model->dtype, &model->quantization, 0, out, err);
    if (config->opened)
        config->backend->info(config->opened, &info);
    /* A GPU generates random weights itself, in a fraction of the time. */
    return (info.separate_memory ? rp_model_random_vectors
                                 : rp_model_random)(model->shape, model->dtype, 1, 0, out, err);
}

int rp_engine_run_open(const struct rp_engine_run_model *model,
                       const struct rp_engine_config *config, struct rp_engine_run *out,
                       struct rp_error *err) {
    memset(out, 0, sizeof *out);
    sem_init(&out->wake, 0, 0);
    int status = open_model(model, config, &out->model, err);
    if (status != RP_OK) {
        if (config->opened)
            config->backend->close(config->opened);
        return status;
    }
    struct rp_engine_config mine = *config;
    if (mine.kv_dtype == RP_MODEL_DTYPE_AUTO)
        mine.kv_dtype = out->model.dtype;
    mine.wake = on_wake;
    mine.wake_ctx = out;
    return rp_engine_create(&mine, &out->model, &out->engine, err);
}

void rp_engine_run_close(struct rp_engine_run *run) {
    rp_engine_destroy(run->engine);
    rp_model_deinit(&run->model);
    sem_destroy(&run->wake);
    memset(run, 0, sizeof *run);
}

int rp_engine_run_requests(struct rp_engine_run *run, struct rp_request *requests, uint32_t count,
                           void (*on_event)(void *ctx, const struct rp_event *event), void *ctx,
                           struct rp_error *err) {
    uint32_t open = 0, failed = 0;
    int status = RP_OK;
    for (uint32_t i = 0; i < count && status == RP_OK; i++) {
        status = rp_engine_submit(run->engine, &requests[i]);
        if (status == RP_OK)
            open++;
        else
            status = rp_error_set(err, status, "submit: %s", rp_status_text(status));
    }
    if (status == RP_OK && !run->started) {
        status = rp_engine_start(run->engine, err);
        run->started = status == RP_OK;
    }
    if (!run->started)
        return status;
    while (open > 0) {
        struct rp_event event;
        while (sem_wait(&run->wake) != 0) {
        }
        while (rp_engine_next_event(run->engine, &event)) {
            on_event(ctx, &event);
            if (event.kind != RP_EVENT_CLOSED)
                continue;
            open--;
            failed +=
                event.finish_reason != RP_FINISH_LENGTH && event.finish_reason != RP_FINISH_STOP;
        }
    }
    if (status == RP_OK)
        status = rp_bench_wait_idle(run->engine, err);
    if (status == RP_OK && failed)
        status = rp_error_set(err, RP_STATUS_DEVICE, "%u of %u requests failed", failed, count);
    return status;
}
