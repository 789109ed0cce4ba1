#include "bench/bench_step.h"

#include "backend/op_cost.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/membw.h"
#include "bench/random_pattern.h"
#include "bench/step_internal.h"
#include "engine/weights_on_device.h"
#include "quant/matrix.h"

#include <stdlib.h>
#include <string.h>

#define RUN_AHEAD   2u  /* steps launched and not read: as in the engine */
#define OWN_SAMPLES 21u /* of a graph of one step and of several, at most */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double take_quantile(double *values, uint32_t count, double q) {
    qsort(values, count, sizeof *values, compare_doubles);
    return values[(uint32_t)(q * (count - 1) + 0.5)];
}

/* ---- times ------------------------------------------------------------------------------------------ */

/* `count` steps with run-ahead. gaps[i]: ns between the completion of step i - 1 and of step i, the first
 * since the start; host[i]: ns of the host for step i. */
static int run_steps(struct step_case *what, uint32_t count, double *gaps, double *host,
                     struct rp_error *err) {
    uint64_t first = what->step + 1, before = rp_clock_ns();
    uint32_t launched = 0;
    for (uint32_t done = 0; done < count; done++) {
        for (; launched < count && launched - done < RUN_AHEAD; launched++) {
            uint64_t begin = rp_clock_ns();
            rp_step_case_write(what);
            if (rp_step_case_launch(what) != RP_OK)
                return rp_step_device_failed(what->bench, err);
            host[launched] = (double)(rp_clock_ns() - begin);
        }
        int status = rp_step_case_wait(what, first + done, err);
        uint64_t now = rp_clock_ns();
        if (status == RP_OK)
            status = rp_step_case_read(what, first + done, err);
        if (status != RP_OK)
            return status;
        host[done] += (double)(rp_clock_ns() - now);
        gaps[done] = (double)(now - before);
        before = now;
    }
    return RP_OK;
}

/* ns from the launch of an idle device until the graph's last step is complete. */
static int time_graph(struct step_case *what, const struct step_graph *graph, double *out,
                      struct rp_error *err) {
    struct step_bench *bench = what->bench;
    for (uint32_t i = 0; i < graph->count; i++)
        rp_step_case_write(what);
    uint64_t begin = rp_clock_ns();
    if (bench->backend->launch(bench->device, graph->graph) != RP_OK)
        return rp_step_device_failed(bench, err);
    int status = rp_step_case_wait(what, what->step, err);
    *out = (double)(rp_clock_ns() - begin);
    if (status == RP_OK && bench->backend->synchronize(bench->device) != RP_OK)
        status = rp_step_device_failed(bench, err);
    for (uint32_t i = 0; i < graph->count && status == RP_OK; i++)
        status = rp_step_case_read(what, what->step - i, err);
    return status;
}

static int measure_own(struct step_case *what, struct rp_bench_step *out, struct rp_error *err) {
    double one[OWN_SAMPLES], several[OWN_SAMPLES], ignored;
    uint32_t count = RP_MIN(OWN_SAMPLES, RP_MAX(what->bench->config->steps / 4, 1u));
    if (!what->one.graph)
        return RP_OK;
    int status = time_graph(what, &what->one, &ignored, err);
    if (status == RP_OK)
        status = time_graph(what, &what->several, &ignored, err);
    for (uint32_t i = 0; i < count && status == RP_OK; i++) {
        status = time_graph(what, &what->one, &one[i], err);
        if (status == RP_OK)
            status = time_graph(what, &what->several, &several[i], err);
    }
    if (status != RP_OK)
        return status;
    double ns = take_quantile(several, count, 0.5) - take_quantile(one, count, 0.5);
    out->ms_own = RP_MAX(ns, 0.0) / (STEP_SEVERAL - 1) * 1e-6;
    out->gap_us = RP_MAX(out->ms_p50 - out->ms_own, 0.0) * 1e3;
    return RP_OK;
}

static int measure_steps(struct step_case *what, struct rp_bench_step *out, struct rp_error *err) {
    const struct rp_bench_step_config *config = what->bench->config;
    uint32_t skip = RP_MAX(config->warm_up, 1u), count = skip + config->steps;
    double *gaps = rp_calloc(count, sizeof *gaps), *host = rp_calloc(count, sizeof *host);
    int status = gaps && host ? run_steps(what, count, gaps, host, err)
                              : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK) {
        out->steps = config->steps;
        out->ms_p50 = take_quantile(gaps + skip, config->steps, 0.5) * 1e-6;
        out->ms_p99 = take_quantile(gaps + skip, config->steps, 0.99) * 1e-6;
        out->host_us_p50 = take_quantile(host + skip, config->steps, 0.5) * 1e-3;
        out->host_us_p99 = take_quantile(host + skip, config->steps, 0.99) * 1e-3;
    }
    rp_free(gaps);
    rp_free(host);
    return status;
}

/* ---- cases ------------------------------------------------------------------------------------------ */

static void sum_costs(const struct step_case *what, struct rp_bench_step *out) {
    bool prompt = what->bench->config->prompt;
    enum rp_dtype kv_dtype = what->bench->model.dtype;
    struct rp_bucket live = {prompt ? what->context : what->batch, what->batch, what->batch,
                             !prompt};
    /* Of a prompt, a token sees half of it on the average; lengths of decode rows run from the context
     * until they are set back. */
    uint32_t seen = prompt ? what->context / 2 : what->context + STEP_REWIND / 2;
    for (uint32_t i = 0; i < what->program.op_count; i++) {
        const struct rp_op *op = &what->program.ops[i];
        uint32_t keys = seen;
        if (op->kind == RP_OP_ATTENTION && op->u.attention.window)
            keys = RP_MIN(keys, op->u.attention.window);
        struct rp_cost cost = rp_op_cost(&what->program, op, &live, kv_dtype, keys);
        out->flops += (double)cost.flops;
        if (op->kind == RP_OP_LINEAR)
            out->weight_bytes +=
                (double)op->weight->rows * op->weight->cols * rp_dtype_bytes(op->weight->dtype);
        if (op->kind == RP_OP_ATTENTION)
            out->kv_bytes +=
                (double)(cost.bytes_read -
                         rp_op_cost(&what->program, op, &live, kv_dtype, 0).bytes_read);
    }
}

static int run_case(struct step_bench *bench, uint32_t batch, uint32_t context,
                    struct rp_bench_step *out, struct rp_error *err) {
    const struct rp_bench_step_config *config = bench->config;
    struct step_case what;
    memset(out, 0, sizeof *out);
    out->batch = batch;
    out->context = context;
    if (config->progress)
        config->progress(config->progress_ctx, config->prompt ? "prompt" : "decode", batch,
                         context);
    int status = rp_step_case_open(bench, batch, context, &what, err);
    if (status == RP_OK)
        status = measure_steps(&what, out, err);
    if (status == RP_OK)
        status = measure_own(&what, out, err);
    if (status == RP_OK && config->prompt && !config->enforce_eager)
        status = rp_step_case_product_rate(&what, &out->product_flops, err);
    if (status == RP_OK) {
        const struct rp_graph_entry *entry = rp_graph_set_entry(what.graphs, 0);
        out->capture_ms = (double)entry->capture_ns * 1e-6;
        out->graph_bytes = entry->graph_bytes;
        out->arena_bytes = entry->arena_bytes;
        out->launches = entry->launches;
        out->tokens_per_second = (config->prompt ? context : batch) * 1e3 / out->ms_p50;
        sum_costs(&what, out);
    }
    rp_step_case_close(&what);
    return status;
}

static int run_cases(struct step_bench *bench, struct rp_bench_step_result *out,
                     struct rp_error *err) {
    const struct rp_bench_step_config *config = bench->config;
    uint32_t batches = config->prompt ? 1 : config->batch_count;
    for (uint32_t b = 0; b < batches; b++)
        for (uint32_t c = 0; c < config->context_count; c++) {
            uint32_t batch = config->prompt ? 1 : config->batches[b];
            int status =
                run_case(bench, batch, config->contexts[c], &out->cases[out->case_count], err);
            if (status == RP_STATUS_NO_MEMORY)
                out->left_out++;
            else if (status != RP_OK)
                return status;
            else
                out->case_count++;
        }
    return RP_OK;
}

/* Positions that the cases need, or RANGE. */
static int count_positions(const struct rp_bench_step_config *config,
                           const struct rp_model_config *model, uint32_t *out,
                           struct rp_error *err) {
    uint32_t batches = config->prompt ? 1 : config->batch_count;
    if ((uint64_t)batches * config->context_count > RP_BENCH_STEP_CASES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "more than %u cases", RP_BENCH_STEP_CASES_MAX);
    *out = 0;
    for (uint32_t c = 0; c < config->context_count; c++)
        *out = RP_MAX(*out, config->contexts[c] + (config->prompt ? 0 : STEP_REWIND));
    if (*out > model->max_position)
        return rp_error_set(err, RP_STATUS_RANGE, "%u positions are needed, the model has %u", *out,
                            model->max_position);
    return RP_OK;
}

/* A card makes random weights by itself. */
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
    if (!config->shape)
        status = rp_model_load(config->model_dir, config->dtype, positions, NULL, NULL,
                               &bench->model, err);
    else
        status = (bench->info.separate_memory ? rp_model_random_vectors : rp_model_random)(
            &shape, config->dtype, 1, positions, &bench->model, err);
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
