#include "bench/bench_attention.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/attention_case.h"
#include "bench/bench_kernels.h"
#include "bench/membw.h"
#include "bench/random_pattern.h"
#include "bench/replay_time.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define COLD_BYTES   ((uint64_t)512 << 20)
#define CASE_SECONDS 0.6
#define GEMM_SECONDS 1.0
#define HEAD_DIM     64u

/* ---- limits --------------------------------------------------------------------------------- */

/* The read bandwidth, and the rate of a GEMM with n = k = rows = size. */
static int measure_limits(const struct attention_bench *bench,
                          struct rp_bench_attention_result *out, struct rp_error *err) {
    const struct rp_bench_attention_config *config = bench->config;
    uint32_t size = config->gemm_size;
    if (!size)
        size = bench->info.separate_memory ? 8192 : 1024;
    /* "o" of this model: n = k = size. */
    struct rp_model_config model = {.hidden = size,
                                    .heads = size / HEAD_DIM,
                                    .kv_heads = 1,
                                    .head_dim = HEAD_DIM,
                                    .intermediate = size,
                                    .vocab = 1,
                                    .layers = 1,
                                    .norm_eps = 1e-5f};
    struct rp_bench_kernels_config kernels = {.backend = bench->backend,
                                              .device = bench->device,
                                              .threads = config->threads,
                                              .model = &model,
                                              .dtype = config->dtype,
                                              .rows = &size,
                                              .row_count = 1,
                                              .only = "o",
                                              .cold_bytes = 1,
                                              .case_seconds = GEMM_SECONDS,
                                              .seconds = 60};
    struct rp_bench_kernels_result *result = rp_calloc(1, sizeof *result);
    if (!result)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    int status = rp_bench_kernels(&kernels, result, err);
    out->read_bandwidth = result->read_bandwidth;
    out->gemm_flops = result->gemm_flops;
    rp_free(result);
    return status;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int device_failed(const struct attention_bench *bench, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_DEVICE, "%s", bench->backend->last_error(bench->device));
}

static struct rp_replay replay_of(const struct attention_case *c) {
    return (struct rp_replay){c->bench->backend, c->bench->device, c->graph, c->start, c->repeats};
}

/* Captures enough repetitions for one sample, at least one per copy. */
static int fit_repeats(struct attention_case *c, struct rp_error *err) {
    int status = rp_attention_case_capture(c, 1, err);
    if (status != RP_OK)
        return status;
    struct rp_replay replay = replay_of(c);
    (void)rp_replay_ns(&replay, 1); /* the first replay loads the graph */
    double ns = rp_replay_ns(&replay, 1);
    if (ns < 0)
        return device_failed(c->bench, err);
    return rp_attention_case_capture(c, rp_replay_repeats(ns, c->copies), err);
}

static int measure(struct attention_case *c, double budget_ns, struct rp_bench_attention *out,
                   struct rp_error *err) {
    struct rp_replay_times times;
    uint64_t begin = rp_clock_ns();
    int status = fit_repeats(c, err);
    if (status != RP_OK)
        return status;
    struct rp_replay replay = replay_of(c);
    if (rp_replay_measure(&replay, begin, budget_ns, &times) != RP_OK)
        return device_failed(c->bench, err);
    struct rp_attention_seen seen = rp_attention_count_seen(&c->shape);
    *out = (struct rp_bench_attention){.shape = c->shape,
                                       .samples = times.samples,
                                       .repeats = c->repeats,
                                       .copies = c->copies,
                                       .us_min = times.min * 1e-3,
                                       .us_p50 = times.p50 * 1e-3,
                                       .us_p99 = times.p99 * 1e-3,
                                       .start_us = times.start * 1e-3,
                                       .bytes = 2 * seen.keys *
                                                rp_kv_token_bytes(c->kv.dtype, c->shape.head_dim),
                                       .flops = 4 * seen.pairs * c->shape.head_dim};
    memcpy(out->kernel, c->kernel, sizeof out->kernel);
    return RP_OK;
}

static int run_case(struct attention_bench *bench, uint32_t index, double budget_ns,
                    struct rp_bench_attention *out, struct rp_error *err) {
    const struct rp_bench_attention_config *config = bench->config;
    struct attention_case c;
    int status = rp_attention_case_open(bench, &config->shapes[index], &c, err);
    if (status == RP_OK && config->dump_dir) {
        status = rp_attention_case_dump(&c, config->dump_dir, index, err);
        *out = (struct rp_bench_attention){.shape = c.shape};
    } else if (status == RP_OK) {
        status = measure(&c, budget_ns, out, err);
    }
    rp_attention_case_close(&c);
    return status;
}

/* Prefixes the error with the shape. */
static int name_failure(const struct rp_attention_shape *shape, int status, struct rp_error *err) {
    char text[384];
    if (!err)
        return status;
    snprintf(text, sizeof text, "%.383s", err->text);
    return rp_error_set(err, status, "%s, %u x %u, %u/%u heads of %u: %s",
                        shape->prompt ? "prefill" : "decode", shape->batch, shape->length,
                        shape->heads, shape->kv_heads, shape->head_dim, text);
}

static int run_cases(struct attention_bench *bench, uint64_t begin_ns,
                     struct rp_bench_attention_result *out, struct rp_error *err) {
    const struct rp_bench_attention_config *config = bench->config;
    double max_seconds = config->case_seconds > 0 ? config->case_seconds : CASE_SECONDS;
    for (uint32_t i = 0; i < config->shape_count; i++) {
        double left = config->seconds * 1e9 - (double)(rp_clock_ns() - begin_ns);
        if (left <= 0) {
            out->skipped += config->shape_count - i;
            break;
        }
        if (config->progress)
            config->progress(config->progress_ctx, &config->shapes[i]);
        double budget =
            /* half of the time is setup */
            RP_MIN(left / (config->shape_count - i), max_seconds * 1e9) / 2;
        int status = run_case(bench, i, budget, &out->cases[out->case_count], err);
        if (status == RP_STATUS_NO_MEMORY)
            out->skipped++;
        else if (status != RP_OK)
            return name_failure(&config->shapes[i], status, err);
        else
            out->case_count++;
    }
    return RP_OK;
}

int rp_bench_attention(const struct rp_bench_attention_config *config,
                       struct rp_bench_attention_result *out, struct rp_error *err) {
    struct attention_bench bench = {
        .config = config, .backend = config->backend, .device = config->device};
    uint64_t begin_ns = rp_clock_ns();
    memset(out, 0, sizeof *out);
    if (config->shape_count > RP_BENCH_ATTENTION_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "more than %u shapes", RP_BENCH_ATTENTION_MAX);
    bench.backend->info(bench.device, &bench.info);
    bench.cold_bytes = config->cold_bytes ? config->cold_bytes : COLD_BYTES;
    memcpy(out->device, bench.info.name, sizeof out->device);
    bench.pattern = rp_random_pattern();
    int status = bench.pattern ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK && !config->dump_dir)
        status = measure_limits(&bench, out, err);
    if (status == RP_OK)
        status = run_cases(&bench, begin_ns, out, err);
    rp_free_aligned(bench.pattern);
    out->seconds = (double)(rp_clock_ns() - begin_ns) * 1e-9;
    return status;
}
