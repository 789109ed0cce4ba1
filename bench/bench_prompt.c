#include "bench/bench_prompt.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench_kernels.h"

#include <string.h>

#define PRODUCT_ROWS    2048u
#define PRODUCT_SECONDS 20.0

struct run {
    const struct rp_bench_prompt_config *config;
    struct rp_bench_engine bench;
    int32_t *prompt;
    double *device_ms, *first_token_ms; /* (repetitions) */
    uint32_t random;
    double product_flops;
    char product_kernel[64];
};

/* The model's gate_up with many rows. Leaves the rate 0 where it cannot be measured. */
static int measure_product(struct run *run, struct rp_error *err) {
    static const uint32_t rows[] = {PRODUCT_ROWS};
    const struct rp_bench_target *target = &run->config->target;
    struct rp_model_config model;
    int status = rp_bench_model_config(target, &model, err);
    struct rp_bench_kernels_result *result = rp_calloc(1, sizeof *result);
    struct rp_bench_kernels_config config = {.backend = target->backend,
                                             .device = target->opened,
                                             .threads = target->device.threads,
                                             .model = &model,
                                             .dtype = target->dtype,
                                             .rows = rows,
                                             .row_count = 1,
                                             .only = "gate_up",
                                             .case_seconds = 1.0,
                                             .seconds = PRODUCT_SECONDS};
    if (status == RP_OK && !result)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK)
        status = rp_bench_kernels(&config, result, err);
    if (status == RP_OK && result->kernel_count) {
        run->product_flops = result->product_flops;
        memcpy(run->product_kernel, result->kernels[0].kernel, sizeof run->product_kernel);
    }
    rp_free(result);
    return status;
}

/* Pairs of a query and a key that it sees, of one layer. */
static double visible_pairs(uint32_t tokens, uint32_t window) {
    double n = tokens;
    if (window == 0 || window >= tokens)
        return n * (n + 1) / 2;
    double w = window;
    return w * (w + 1) / 2 + (n - w) * w;
}

static double step_flops(const struct rp_model_config *model, uint32_t tokens) {
    double q = (double)model->heads * model->head_dim,
           kv = (double)model->kv_heads * model->head_dim;
    double layer = model->hidden * (q + 2 * kv) + q * model->hidden +
                   3.0 * model->hidden * model->intermediate;
    double flops = 2 * tokens * layer * model->layers + 2.0 * model->vocab * model->hidden;
    for (uint32_t i = 0; i < model->layers; i++)
        flops += 4 * q * visible_pairs(tokens, i >= model->window_layer_begin ? model->window : 0);
    return flops;
}

/* One prompt, until the engine is at rest again; *out_ms: until its token was there. */
static int run_prompt(struct run *run, uint32_t tokens, double *out_ms, struct rp_error *err) {
    struct rp_request request = {.prompt = run->prompt,
                                 .prompt_count = tokens,
                                 .max_tokens = 1,
                                 .sampling = {.top_p = 1.0f, .seed = 1}};
    struct rp_event event = {.kind = RP_EVENT_TOKEN};
    for (uint32_t i = 0; i < tokens; i++) {
        run->random = run->random * 1664525u + 1013904223u;
        run->prompt[i] = (int32_t)((run->random >> 8) % run->bench.model.config.vocab);
    }
    uint64_t begin_ns = rp_clock_ns();
    int status = rp_engine_submit(run->bench.engine, &request);
    if (status != RP_OK)
        return rp_error_set(err, (enum rp_status)status, "submit: %s", rp_status_text(status));
    while (event.kind != RP_EVENT_CLOSED) {
        sem_wait(&run->bench.wake);
        while (event.kind != RP_EVENT_CLOSED && rp_engine_next_event(run->bench.engine, &event))
            if (event.kind == RP_EVENT_TOKEN)
                *out_ms = (double)(event.time_ns - begin_ns) * 1e-6;
    }
    status = rp_bench_engine_rest(&run->bench, err);
    if (status == RP_OK && event.finish_reason != RP_FINISH_LENGTH)
        status = rp_error_set(err, RP_STATUS_DEVICE, "a prompt ended before its time");
    return status;
}

static int run_length(struct run *run, uint32_t tokens, struct rp_bench_prompt_result *out,
                      struct rp_error *err) {
    const struct rp_bench_prompt_config *config = run->config;
    *out = (struct rp_bench_prompt_result){.tokens = tokens};
    for (uint32_t i = 0; i < config->warm_up + config->repetitions; i++) {
        uint64_t since = rp_engine_steps_timed(run->bench.engine);
        double first_token_ms = 0.0;
        int status = run_prompt(run, tokens, &first_token_ms, err);
        if (status != RP_OK)
            return status;
        if (rp_bench_engine_times(&run->bench, since) != 1 || run->bench.times[0].tokens != tokens)
            return rp_error_set(err, RP_STATUS_RANGE, "a prompt of %u tokens was not one step",
                                tokens);
        if (i < config->warm_up)
            continue;
        run->first_token_ms[out->samples] = first_token_ms;
        run->device_ms[out->samples++] = (double)run->bench.times[0].device_ns * 1e-6;
    }
    out->first_token_ms_p50 = rp_bench_quantile(run->first_token_ms, out->samples, 0.5);
    out->ms_p50 = rp_bench_quantile(run->device_ms, out->samples, 0.5);
    out->ms_p99 = rp_bench_quantile(run->device_ms, out->samples, 0.99);
    out->ms_min = run->device_ms[0];
    out->flops = step_flops(&run->bench.model.config, tokens);
    if (out->ms_p50 > 0) {
        out->tokens_per_second = tokens * 1000.0 / out->ms_p50;
        out->flops_per_second = out->flops * 1000.0 / out->ms_p50;
    }
    out->product_flops = run->product_flops;
    memcpy(out->product_kernel, run->product_kernel, sizeof out->product_kernel);
    if (run->product_flops > 0)
        out->share = out->flops_per_second / run->product_flops;
    return RP_OK;
}

static int run_lengths(struct run *run, uint32_t tokens_max, struct rp_error *err) {
    const struct rp_bench_prompt_config *config = run->config;
    int status = RP_OK;
    run->random = 1;
    run->prompt = rp_calloc(tokens_max, sizeof *run->prompt);
    run->device_ms = rp_calloc(config->repetitions, sizeof *run->device_ms);
    run->first_token_ms = rp_calloc(config->repetitions, sizeof *run->first_token_ms);
    if (!run->prompt || !run->device_ms || !run->first_token_ms)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < config->token_count && status == RP_OK; i++) {
        struct rp_bench_prompt_result result;
        status = run_length(run, config->tokens[i], &result, err);
        if (status == RP_OK)
            config->report(config->report_ctx, &run->bench.ready, &result);
    }
    rp_free(run->prompt);
    rp_free(run->device_ms);
    rp_free(run->first_token_ms);
    return status;
}

int rp_bench_prompt(const struct rp_bench_prompt_config *config, struct rp_error *err) {
    struct run run = {.config = config};
    struct rp_bench_target target = config->target;
    uint32_t tokens_max = 16;
    for (uint32_t i = 0; i < config->token_count; i++)
        tokens_max = RP_MAX(tokens_max, config->tokens[i]);
    int status = measure_product(&run, err);
    target.backend->close(target.opened);
    target.opened = NULL;
    if (status == RP_OK)
        status = target.backend->open(&target.device, &target.opened, err);
    if (status != RP_OK)
        return status;
    struct rp_engine_config sizes = {
        .max_num_seqs = 1, .max_num_batched_tokens = tokens_max, .max_model_len = tokens_max + 1};
    status = rp_bench_engine_open(&target, &sizes, &run.bench, err);
    if (status == RP_OK)
        status = run_lengths(&run, tokens_max, err);
    rp_bench_engine_close(&run.bench);
    return status;
}
