#include "bench/bench_step.h"

#include "backend/op_cost.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench_engine.h"
#include "bench/membw.h"
#include "bench/random_pattern.h"
#include "bench/settled.h"
#include "bench/step_internal.h"
#include "engine/buckets.h"
#include "engine/weights_on_device.h"
#include "quant/matrix.h"

#include <string.h>

#define RUN_AHEAD 2u /* steps launched but not yet read, as in the engine */

/* ---- times ---------------------------------------------------------------------------------- */

/* Step times in ns. */
struct samples {
    double *step; /* from the completion of the previous step, or the start, to its own */
    double *device, *gap, *host;
};

/* Runs `count` steps with run-ahead. */
static int run_steps(struct step_case *c, uint32_t count, const struct samples *out,
                     struct rp_error *err) {
    uint64_t first = c->step + 1, before = rp_clock_ns(), device_end = 0;
    uint32_t launched = 0;
    for (uint32_t done = 0; done < count; done++) {
        struct step_stamps stamps;
        for (; launched < count && launched - done < RUN_AHEAD; launched++) {
            uint64_t begin = rp_clock_ns();
            rp_step_case_write(c);
            if (rp_step_case_launch(c) != RP_OK)
                return rp_step_device_failed(c->bench, err);
            out->host[launched] = (double)(rp_clock_ns() - begin);
        }
        int status = rp_step_case_wait(c, first + done, err);
        uint64_t now = rp_clock_ns();
        if (status == RP_OK)
            status = rp_step_case_read(c, first + done, &stamps, err);
        if (status != RP_OK)
            return status;
        out->host[done] += (double)(rp_clock_ns() - now);
        out->step[done] = (double)(now - before);
        out->device[done] = (double)(stamps.end_ns - stamps.begin_ns);
        /* 0: with dependent launch a step's first kernel may begin before the previous step's last
         * one has ended. */
        out->gap[done] =
            stamps.begin_ns > device_end ? (double)(stamps.begin_ns - device_end) : 0.0;
        device_end = stamps.end_ns;
        before = now;
    }
    return RP_OK;
}

/* Summarizes steps [after, count). */
static void summarize_steps(const struct samples *samples, uint32_t after, uint32_t count,
                            struct rp_bench_step *out) {
    uint32_t n = out->steps = count - after;
    out->ms_p50 = rp_bench_quantile(samples->step + after, n, 0.5) * 1e-6;
    out->ms_p99 = rp_bench_quantile(samples->step + after, n, 0.99) * 1e-6;
    out->device_ms_p50 = rp_bench_quantile(samples->device + after, n, 0.5) * 1e-6;
    out->gap_us_p50 = rp_bench_quantile(samples->gap + after, n, 0.5) * 1e-3;
    out->gap_us_p99 = rp_bench_quantile(samples->gap + after, n, 0.99) * 1e-3;
    out->host_us_p50 = rp_bench_quantile(samples->host + after, n, 0.5) * 1e-3;
    out->host_us_p99 = rp_bench_quantile(samples->host + after, n, 0.99) * 1e-3;
}

/* Appends `steps` steps to the first `done` samples, after a warm-up of `skip` steps that are not
 * stored. */
static int append_steps(struct step_case *c, uint32_t skip, uint32_t steps, uint32_t done,
                        const struct samples *samples, struct rp_error *err) {
    const struct samples end = {samples->step + done, samples->device + done, samples->gap + done,
                                samples->host + done};
    double *const columns[] = {end.step, end.device, end.gap, end.host};
    int status = run_steps(c, skip + steps, &end, err);
    for (size_t i = 0; status == RP_OK && i < RP_ARRAY_COUNT(columns); i++)
        memmove(columns[i], columns[i] + skip, steps * sizeof *columns[i]);
    return status;
}

static int measure_steps(struct step_case *c, struct rp_bench_step *out, struct rp_error *err) {
    const struct rp_bench_step_config *config = c->bench->config;
    uint32_t skip = RP_MAX(config->warm_up, 1u), steps = config->steps, done = steps;
    size_t room = skip + 2 * (size_t)steps;
    double *values = rp_calloc(room * 4, sizeof *values);
    if (!values)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    struct samples samples = {values, values + room, values + 2 * room, values + 3 * room};
    struct rp_settled settled = {.reliable = false};
    int status = append_steps(c, skip, steps, 0, &samples, err);
    if (status == RP_OK)
        settled = rp_settled_find(samples.step, done);
    if (status == RP_OK && !settled.reliable && steps >= RP_SETTLED_SAMPLES) {
        status = append_steps(c, skip, steps, done, &samples, err);
        done += steps;
        settled = rp_settled_find(samples.step, done);
    }
    if (status == RP_OK) {
        out->reliable = settled.reliable;
        out->settled_after = settled.after;
        summarize_steps(&samples, settled.after, done, out);
    }
    rp_free(values);
    return status;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void sum_costs(const struct step_case *c, struct rp_bench_step *out) {
    bool prompt = c->bench->config->prompt;
    enum rp_dtype kv_dtype = c->kv.dtype;
    struct rp_bucket live = {rp_step_case_tokens(c), c->batch, c->batch, !prompt};
    /* On average a prompt token attends to half of the prompt; decode rows grow from `context` by
     * STEP_REWIND tokens before they are reset. */
    uint32_t mean_keys = prompt ? c->context / 2 : c->context + STEP_REWIND / 2;
    for (uint32_t i = 0; i < c->program.op_count; i++) {
        const struct rp_op *op = &c->program.ops[i];
        uint32_t keys = mean_keys;
        if (op->kind == RP_OP_ATTENTION && op->u.attention.window)
            keys = RP_MIN(keys, op->u.attention.window);
        struct rp_cost cost = rp_op_cost(&c->program, op, &live, kv_dtype, keys);
        out->flops += (double)cost.flops;
        out->weight_bytes += (double)rp_op_weight_bytes(&c->program, op, &live);
        if (op->kind == RP_OP_ATTENTION)
            out->kv_bytes += (double)(cost.bytes_read -
                                      rp_op_cost(&c->program, op, &live, kv_dtype, 0).bytes_read);
    }
}

static int run_case(struct step_bench *bench, uint32_t batch, uint32_t context,
                    struct rp_bench_step *out, struct rp_error *err) {
    const struct rp_bench_step_config *config = bench->config;
    struct step_case c;
    memset(out, 0, sizeof *out);
    out->batch = batch;
    out->context = context;
    if (config->progress)
        config->progress(config->progress_ctx, config->prompt ? "prompt" : "decode", batch,
                         context);
    int status = rp_step_case_open(bench, batch, context, &c, err);
    if (status == RP_OK)
        status = measure_steps(&c, out, err);
    if (status == RP_OK && config->prompt)
        status = rp_step_case_gemm_rate(&c, &out->gemm_flops, err);
    if (status == RP_OK) {
        const struct rp_graph_entry *entry = rp_graph_set_entry(c.graphs, 0);
        out->capture_ms = (double)entry->capture_ns * 1e-6;
        out->graph_bytes = entry->graph_bytes;
        out->arena_bytes = entry->arena_bytes;
        out->launches = entry->launches;
        out->nodes = c.nodes;
        out->tokens_per_second = rp_step_case_tokens(&c) * 1e3 / out->ms_p50;
        sum_costs(&c, out);
    }
    rp_step_case_close(&c);
    return status;
}

static int run_cases(struct step_bench *bench, struct rp_bench_step_result *out,
                     struct rp_error *err) {
    const struct rp_bench_step_config *config = bench->config;
    for (uint32_t b = 0; b < config->batch_count; b++)
        for (uint32_t c = 0; c < config->context_count; c++) {
            int status = run_case(bench, config->batches[b], config->contexts[c],
                                  &out->cases[out->case_count], err);
            if (status == RP_STATUS_NO_MEMORY)
                out->skipped++;
            else if (status != RP_OK)
                return status;
            else
                out->case_count++;
        }
    return RP_OK;
}

/* Computes the number of positions that the cases need. RANGE: the model has fewer. */
static int count_positions(const struct rp_bench_step_config *config,
                           const struct rp_model_config *model, uint32_t *out,
                           struct rp_error *err) {
    if ((uint64_t)config->batch_count * config->context_count > RP_BENCH_STEP_CASES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "more than %u cases", RP_BENCH_STEP_CASES_MAX);
    *out = 0;
    uint32_t batch_max = 0;
    for (uint32_t b = 0; b < config->batch_count; b++)
        batch_max = RP_MAX(batch_max, config->batches[b]);
    for (uint32_t c = 0; c < config->context_count; c++)
        *out = RP_MAX(*out, config->contexts[c] + (config->prompt ? 0 : STEP_REWIND));
    uint64_t tokens = config->prompt ? (uint64_t)batch_max * *out : batch_max;
    if (tokens > RP_STEP_TOKENS_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%llu tokens in a step; at most %u",
                            (unsigned long long)tokens, RP_STEP_TOKENS_MAX);
    if (*out > model->max_position)
        return rp_error_set(err, RP_STATUS_RANGE, "%u positions are needed, but the model has %u",
                            *out, model->max_position);
    return RP_OK;
}

/* Random weights are generated on the GPU, if there is one. */
static int make_model(struct step_bench *bench, struct rp_error *err) {
    const struct rp_bench_step_config *config = bench->config;
    struct rp_model_config shape;
    uint32_t positions;
    int status = config->shape ? rp_model_shape(config->shape, &shape, err)
                               : rp_model_config_load(config->model_dir, &shape, err);
    if (status == RP_OK)
        status = count_positions(config, &shape, &positions, err);
    if (status != RP_OK)
        return status;
    shape.quantization = config->quantization.scheme;
    shape.quantize_head = config->quantization.head;
    if (!config->shape)
        status = rp_model_open(config->model_dir, config->dtype, &config->quantization, positions,
                               &bench->model, err);
    else
        status = (bench->info.separate_memory ? rp_model_random_vectors : rp_model_random)(
            &shape, config->dtype, 1, positions, &bench->model, err);
    if (status == RP_OK)
        status = rp_model_shard(&bench->model, bench->info.ranks, err);
    return status == RP_OK ? rp_weights_prepare(bench->backend, bench->device, &bench->model,
                                                &bench->prepared, NULL, NULL, err)
                           : status;
}

int rp_bench_step(const struct rp_bench_step_config *config, struct rp_bench_step_result *out,
                  struct rp_error *err) {
    struct step_bench bench = {
        .config = config, .backend = config->backend, .device = config->device};
    memset(out, 0, sizeof *out);
    bench.backend->info(bench.device, &bench.info);
    out->kv_dtype = config->kv_dtype;
    memcpy(out->device, bench.info.name, sizeof out->device);
    bench.pattern = rp_random_pattern();
    int status = bench.pattern ? make_model(&bench, err)
                               : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK) {
        if (config->progress)
            config->progress(config->progress_ctx, "bandwidth", 0, 0);
        out->read_bandwidth = rp_membw_device(bench.backend, bench.device, config->threads);
        status = run_cases(&bench, out, err);
    }
    rp_weights_release(bench.backend, bench.device, &bench.model, bench.prepared);
    rp_model_deinit(&bench.model);
    rp_free_aligned(bench.pattern);
    return status;
}
