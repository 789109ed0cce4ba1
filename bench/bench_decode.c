#include "bench/bench_decode.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/membw.h"
#include "engine/engine.h"
#include "model/model.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct rp_engine *engine;
    struct rp_request *requests;
    int32_t *prompts; /* (batch, context) */
    sem_t wake;
    double *gaps_ms; /* steps of the round in work */
    uint32_t gap_count;
    double *steps_ms; /* of all rounds, without warm-up */
    uint32_t step_count;
    bool *has_token; /* (batch) */
    uint32_t prompts_left;
    bool on_card;
    double card_bandwidth;         /* 0: not on a card */
    uint64_t start_ns, prompts_ns; /* from the first submit until every prompt gave a token */
    double shares[RP_BENCH_ROUNDS_MAX], bandwidths[RP_BENCH_ROUNDS_MAX];
};

static void on_wake(void *ctx) { sem_post(&((struct run *)ctx)->wake); }

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static int submit_all(struct run *run, const struct rp_bench_decode_config *config,
                      const struct rp_model_config *model, struct rp_error *err) {
    uint32_t state = 1;
    /* Any ids do, and the same ones every time; but no two sequences may share pages, or K and V of all
     * of them would be read from memory once. */
    for (size_t i = 0; i < (size_t)config->batch * config->context; i++) {
        state = state * 1664525u + 1013904223u;
        run->prompts[i] = (int32_t)((state >> 8) % model->vocab);
    }
    if (run->start_ns == 0)
        run->start_ns = rp_clock_ns();
    for (uint32_t i = 0; i < config->batch; i++) {
        struct rp_request *request = &run->requests[i];
        memset(request, 0, sizeof *request);
        request->id = i;
        request->prompt = run->prompts + (size_t)i * config->context;
        request->prompt_count = config->context;
        request->max_tokens = config->tokens;
        request->sampling = (struct rp_sampling){.temperature = 0.0f, .top_p = 1.0f, .seed = i};
        int status = rp_engine_submit(run->engine, request);
        if (status != RP_OK)
            return rp_error_set(err, (enum rp_status)status, "submit: %s", rp_status_text(status));
    }
    return RP_OK;
}

/* Drains events until every request closed; the gaps between distinct result times are the steps. All
 * sequences decode together once the slowest prompt is done, and only those steps are wanted. */
static void drain(struct run *run, const struct rp_bench_decode_config *config) {
    uint32_t closed = 0, tokens_at = 0;
    uint64_t time = 0, previous = 0;
    while (closed < config->batch) {
        struct rp_event event;
        sem_wait(&run->wake);
        while (rp_engine_next_event(run->engine, &event)) {
            if (event.kind == RP_EVENT_CLOSED) {
                closed++;
                continue;
            }
            bool *has_token = &run->has_token[event.request->id];
            if (!*has_token && --run->prompts_left == 0)
                run->prompts_ns = event.time_ns - run->start_ns;
            *has_token = true;
            if (event.time_ns != time) {
                time = event.time_ns;
                tokens_at = 0;
            }
            if (++tokens_at == config->batch) {
                if (previous)
                    run->gaps_ms[run->gap_count++] = (double)(time - previous) * 1e-6;
                previous = time;
            }
        }
    }
}

static double sorted_quantile(double *values, uint32_t count, double q) {
    qsort(values, count, sizeof *values, compare_doubles);
    return values[(uint32_t)(q * (count - 1) + 0.5)];
}

/* Bytes per second. A card's was read before the engine took its memory, and does not move. */
static double read_bandwidth(const struct run *run, const struct rp_bench_decode_config *config) {
    return run->on_card ? run->card_bandwidth
                        : rp_membw_read(config->device.threads, (size_t)1 << 30, 4);
}

/* bandwidth, decode, bandwidth. */
static int run_round(struct run *run, const struct rp_bench_decode_config *config,
                     const struct rp_model_config *model, uint32_t round, double bytes_per_step,
                     struct rp_error *err) {
    double before = read_bandwidth(run, config);
    run->gap_count = 0;
    int status = submit_all(run, config, model, err);
    if (status != RP_OK)
        return status;
    drain(run, config);
    double after = read_bandwidth(run, config);
    run->bandwidths[round] = RP_MAX(before, after) * 1e-9;
    uint32_t skip = RP_MIN(config->warm_up, run->gap_count);
    double *gaps = run->gaps_ms + skip;
    uint32_t count = run->gap_count - skip;
    if (count == 0)
        return rp_error_set(err, RP_STATUS_RANGE, "no step is left after %u of warm-up",
                            config->warm_up);
    memcpy(run->steps_ms + run->step_count, gaps, count * sizeof *gaps);
    run->step_count += count;
    double achieved = bytes_per_step / (sorted_quantile(gaps, count, 0.5) * 1e-3) * 1e-9;
    run->shares[round] = run->bandwidths[round] > 0 ? achieved / run->bandwidths[round] : 0;
    return RP_OK;
}

/* What the engine itself measured of the decode steps of all sequences. */
static void summarise_times(const struct run *run, uint32_t batch,
                            struct rp_bench_decode_result *out) {
    struct rp_step_times *times = rp_calloc(RP_STEP_TIMES, sizeof *times);
    double *values = rp_calloc(3 * RP_STEP_TIMES, sizeof *values);
    double *device = values, *gap = values + RP_STEP_TIMES, *host = gap + RP_STEP_TIMES;
    uint32_t count = times ? rp_engine_step_times(run->engine, times, RP_STEP_TIMES) : 0;
    uint32_t steps = 0, gaps = 0;
    for (uint32_t i = 0; values && i < count; i++) {
        if (times[i].rows != batch || times[i].tokens != batch)
            continue;
        device[steps] = (double)times[i].device_ns * 1e-6;
        host[steps++] = (double)times[i].host_ns * 1e-3;
        if (times[i].gap_ns)
            gap[gaps++] = (double)times[i].gap_ns * 1e-3;
    }
    if (steps) {
        out->device_ms_p50 = sorted_quantile(device, steps, 0.5);
        out->host_us_p50 = sorted_quantile(host, steps, 0.5);
        out->host_us_p99 = sorted_quantile(host, steps, 0.99);
    }
    if (gaps) {
        out->gap_us_p50 = sorted_quantile(gap, gaps, 0.5);
        out->gap_us_p99 = sorted_quantile(gap, gaps, 0.99);
    }
    rp_free(times);
    rp_free(values);
}

static void summarise(struct run *run, const struct rp_bench_decode_config *config,
                      struct rp_bench_decode_result *out) {
    double sum = 0.0;
    for (uint32_t i = 0; i < run->step_count; i++)
        sum += run->steps_ms[i];
    out->steps = run->step_count;
    out->ms_mean = sum / run->step_count;
    out->ms_p10 = sorted_quantile(run->steps_ms, run->step_count, 0.1);
    out->ms_p50 = sorted_quantile(run->steps_ms, run->step_count, 0.5);
    out->ms_p90 = sorted_quantile(run->steps_ms, run->step_count, 0.9);
    out->ms_p99 = sorted_quantile(run->steps_ms, run->step_count, 0.99);
    summarise_times(run, config->batch, out);
    out->tokens_per_second = config->batch * 1000.0 / out->ms_p50;
    out->achieved_gbps = out->bytes_per_step / (out->ms_p50 * 1e-3) * 1e-9;
    out->read_bandwidth_gbps = sorted_quantile(run->bandwidths, config->rounds, 0.5);
    out->share = sorted_quantile(run->shares, config->rounds, 0.5);
    out->share_min = run->shares[0];
    out->share_max = run->shares[config->rounds - 1];
    out->prefill_tokens_per_second =
        (double)config->batch * config->context / ((double)run->prompts_ns * 1e-9);
}

static double kv_bytes_per_token(const struct rp_model_config *model, enum rp_dtype dtype) {
    return 2.0 * model->layers * model->kv_heads * model->head_dim * rp_dtype_bytes(dtype);
}

/* A card makes its weights by itself, in a fraction of the time. */
static bool on_card(const struct rp_bench_decode_config *config) {
    struct rp_device_info info = {.separate_memory = false};
    if (config->opened)
        config->backend->info(config->opened, &info);
    return info.separate_memory;
}

int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_bench_decode_result *out,
                    struct rp_error *err) {
    struct rp_model_config shape;
    struct rp_model model = {0};
    struct run run = {0};
    struct rp_device_info device;
    uint32_t length = config->context + config->tokens;
    memset(out, 0, sizeof *out);
    if (on_card(config))
        run.card_bandwidth =
            rp_membw_device(config->backend, config->opened, config->device.threads);
    int status = rp_model_shape(config->shape, &shape, err);
    if (status == RP_OK)
        status = (on_card(config) ? rp_model_random_vectors
                                  : rp_model_random)(&shape, config->dtype, 1, length, &model, err);
    if (status != RP_OK) {
        if (config->opened)
            config->backend->close(config->opened);
        return status;
    }
    sem_init(&run.wake, 0, 0);
    struct rp_engine_config engine = {.backend = config->backend,
                                      .opened = config->opened,
                                      .device = config->device,
                                      .max_num_seqs = config->batch,
                                      .max_num_batched_tokens = RP_MAX(512u, config->batch),
                                      .max_model_len = length,
                                      .queue_capacity = config->batch,
                                      .kv_dtype = config->dtype,
                                      .prefix_cache = true,
                                      .run_ahead = config->run_ahead,
                                      .enforce_eager = config->enforce_eager,
                                      .no_fusion = config->no_fusion,
                                      .wake = on_wake,
                                      .wake_ctx = &run};
    run.requests = rp_calloc(config->batch, sizeof *run.requests);
    run.prompts = rp_calloc((size_t)config->batch * config->context, sizeof *run.prompts);
    run.has_token = rp_calloc(config->batch, sizeof *run.has_token);
    run.prompts_left = config->batch;
    run.gaps_ms = rp_calloc(config->tokens, sizeof *run.gaps_ms);
    run.steps_ms = rp_calloc((size_t)config->tokens * config->rounds, sizeof *run.steps_ms);
    if (!run.requests || !run.prompts || !run.has_token || !run.gaps_ms || !run.steps_ms) {
        if (config->opened)
            config->backend->close(config->opened);
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
        goto done;
    }
    status = rp_engine_create(&engine, &model, &run.engine, err);
    if (status != RP_OK)
        goto done;
    rp_engine_device_info(run.engine, &device);
    run.on_card = device.separate_memory;
    memcpy(out->device, device.name, sizeof out->device);
    out->weight_bytes = (double)rp_model_weight_bytes(&model);
    if (!shape.tied) /* the table is only looked up */
        out->weight_bytes -= (double)shape.vocab * shape.hidden * rp_dtype_bytes(config->dtype);
    out->bytes_per_step = out->weight_bytes + kv_bytes_per_token(&shape, config->dtype) *
                                                  config->batch *
                                                  (config->context + config->tokens / 2.0);
    status = rp_engine_start(run.engine, err);
    if (status != RP_OK)
        goto done;
    status = submit_all(&run, config, &shape, err);
    if (status == RP_OK)
        drain(&run, config); /* the prompts, for their time and for the cache */
    for (uint32_t round = 0; round < config->rounds && status == RP_OK; round++)
        status = run_round(&run, config, &shape, round, out->bytes_per_step, err);
    rp_engine_stop(run.engine);
    if (status == RP_OK)
        summarise(&run, config, out);
done:
    rp_engine_destroy(run.engine);
    rp_model_deinit(&model);
    rp_free(run.requests);
    rp_free(run.prompts);
    rp_free(run.has_token);
    rp_free(run.gaps_ms);
    rp_free(run.steps_ms);
    sem_destroy(&run.wake);
    return status;
}
