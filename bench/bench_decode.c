#include "bench/bench_decode.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/membw.h"
#include "bench/settled.h"

#include <string.h>

/* Prompt tokens that are not found in the prefix cache: those of its last page. */
#define UNCACHED_TOKENS 64u
/* Steps that the first sequences may have made before the last one is submitted. */
#define SUBMIT_STEPS 2u
/* A round in which all sequences decoded together for too few steps (this thread was descheduled
 * between submits) is repeated. */
#define ATTEMPTS 8u

/* Step times of the current pair, all rounds. */
struct samples {
    double *ms, *device_ms, *gap_us, *host_us;
    uint32_t count, device_count, gap_count;
};

struct run {
    const struct rp_bench_decode_config *config;
    struct rp_bench_engine bench;
    struct rp_request *requests;  /* (largest batch) */
    int32_t *prompts;             /* (largest batch, largest context) */
    bool *has_token;              /* (largest batch) */
    uint32_t context_max, budget; /* budget: tokens per step */
    double *round_ms;             /* steps of the current round */
    uint32_t round_count;
    double *values; /* sample values, for sorting */
    struct samples samples;
    double gpu_bandwidth; /* 0: not on a GPU */
    double bandwidths[RP_BENCH_ROUNDS_MAX], shares[RP_BENCH_ROUNDS_MAX];
    /* the current pair */
    uint32_t batch, context, max_tokens, pair;
    uint32_t prompts_left;
    uint64_t start_ns, prompts_ns; /* from the first submit until every prompt produced a token */
};

static uint32_t largest(const uint32_t *values, uint32_t count) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        most = RP_MAX(most, values[i]);
    return most;
}

/* Some sequences decode while others are still in prefill; each gets extra tokens, so that all
 * decode together for `tokens` steps. */
static uint32_t output_tokens(const struct run *run, uint32_t batch) {
    uint32_t others = batch - 1;
    return run->config->tokens + (others ? SUBMIT_STEPS : 0) +
           RP_CEIL_DIV(others * UNCACHED_TOKENS, RP_MAX(run->budget - batch, 1u));
}

/* Any ids work, the same ones in every run; but no two sequences may share pages, or the K and V of
 * all of them would be read from memory only once. */
static void make_prompts(struct run *run, uint32_t batch_max) {
    uint32_t state = 1, vocab = run->bench.model.config.vocab;
    for (size_t i = 0; i < (size_t)batch_max * run->context_max; i++) {
        state = state * 1664525u + 1013904223u;
        run->prompts[i] = (int32_t)((state >> 8) % vocab);
    }
}

static int submit_all(struct run *run, struct rp_error *err) {
    if (run->start_ns == 0)
        run->start_ns = rp_clock_ns();
    for (uint32_t i = 0; i < run->batch; i++) {
        struct rp_request *request = &run->requests[i];
        memset(request, 0, sizeof *request);
        request->id = i;
        request->prompt = run->prompts + (size_t)i * run->context_max;
        request->prompt_count = run->context;
        request->max_tokens = run->max_tokens;
        request->cache_salt = run->pair + 1; /* prompts of different pairs have the same prefix */
        request->sampling = (struct rp_sampling){.temperature = 0.0f, .top_p = 1.0f, .seed = i};
        int status = rp_engine_submit(run->bench.engine, request);
        if (status != RP_OK)
            return rp_error_set(err, (enum rp_status)status, "submit: %s", rp_status_text(status));
    }
    return RP_OK;
}

/* Drains events until every request closed; the gaps between distinct result times are the steps.
 * All sequences decode together once the slowest prompt is done, and only those steps count. */
static int drain(struct run *run, struct rp_error *err) {
    uint32_t closed = 0, early = 0, tokens_at = 0;
    uint64_t time = 0, previous = 0;
    run->round_count = 0;
    while (closed < run->batch) {
        struct rp_event event;
        sem_wait(&run->bench.wake);
        while (rp_engine_next_event(run->bench.engine, &event)) {
            if (event.kind == RP_EVENT_CLOSED) {
                early += event.finish_reason != RP_FINISH_LENGTH;
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
            if (++tokens_at == run->batch) {
                if (previous)
                    run->round_ms[run->round_count++] = (double)(time - previous) * 1e-6;
                previous = time;
            }
        }
    }
    int status = rp_bench_wait_idle(run->bench.engine, err);
    if (status == RP_OK && early)
        status = rp_error_set(err, RP_STATUS_DEVICE, "%u of %u sequences ended early", early,
                              run->batch);
    return status;
}

/* Copies the engine's own times of the steps of this round. */
static void collect_times(struct run *run, uint64_t since) {
    struct samples *samples = &run->samples;
    uint32_t count = rp_bench_engine_times(&run->bench, since);
    uint32_t skip = run->config->warm_up + 1; /* the first step has no gap before it */
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_step_times *times = &run->bench.times[i];
        if (times->rows != run->batch || times->tokens != run->batch)
            continue;
        if (skip) {
            skip--;
            continue;
        }
        samples->device_ms[samples->device_count] = (double)times->device_ns * 1e-6;
        samples->host_us[samples->device_count++] = (double)times->host_ns * 1e-3;
        if (times->gap_ns)
            samples->gap_us[samples->gap_count++] = (double)times->gap_ns * 1e-3;
    }
}

/* Bytes/s. A GPU's was measured before the engine allocated its memory, and is constant. */
static double read_bandwidth(const struct run *run) {
    if (run->config->no_bandwidth)
        return 0;
    return run->bench.on_gpu
               ? run->gpu_bandwidth
               : rp_membw_read(run->config->target.device.threads, (size_t)1 << 30, 4);
}

/* Steps with all sequences that a round should have: half of those that it has when nothing
 * disturbs it. */
static uint32_t steps_wanted(const struct rp_bench_decode_config *config) {
    return RP_MIN(RP_MAX(config->warm_up + 2, config->tokens / 2), config->tokens - 1);
}

/* bandwidth, decode, bandwidth. */
static int run_round(struct run *run, uint32_t round, double bytes_per_step, struct rp_error *err) {
    struct samples *samples = &run->samples;
    double before = read_bandwidth(run);
    uint64_t since = 0;
    uint32_t wanted = steps_wanted(run->config);
    int status = RP_OK;
    for (uint32_t i = 0; i < ATTEMPTS && (i == 0 || run->round_count < wanted); i++) {
        since = rp_engine_steps_timed(run->bench.engine);
        status = submit_all(run, err);
        if (status == RP_OK)
            status = drain(run, err);
        if (status != RP_OK)
            return status;
    }
    double after = read_bandwidth(run);
    run->bandwidths[round] = RP_MAX(before, after) * 1e-9;
    uint32_t skip = RP_MIN(run->config->warm_up, run->round_count);
    double *steps = run->round_ms + skip;
    uint32_t count = run->round_count - skip;
    if (count == 0)
        return rp_error_set(err, RP_STATUS_RANGE, "no step is left after a warm-up of %u",
                            run->config->warm_up);
    memcpy(samples->ms + samples->count, steps, count * sizeof *steps);
    samples->count += count;
    collect_times(run, since);
    double achieved = bytes_per_step / (rp_bench_quantile(steps, count, 0.5) * 1e-3) * 1e-9;
    run->shares[round] = run->bandwidths[round] > 0 ? achieved / run->bandwidths[round] : 0;
    return RP_OK;
}

/* Skips the first values, if there are more: the engine times nearly the same steps, and some have
 * no gap. */
static void skip_first(double **values, uint32_t *count, uint32_t first) {
    first = *count > first ? first : 0;
    *values += first;
    *count -= first;
}

static void summarize(struct run *run, struct rp_bench_decode_result *out) {
    struct samples counted = run->samples, *samples = &counted;
    uint32_t rounds = run->config->rounds;
    struct rp_settled settled = rp_settled_find(samples->ms, samples->count);
    double sum = 0.0;
    skip_first(&counted.ms, &counted.count, settled.after);
    uint32_t devices = counted.device_count;
    skip_first(&counted.device_ms, &devices, settled.after);
    skip_first(&counted.host_us, &counted.device_count, settled.after);
    skip_first(&counted.gap_us, &counted.gap_count, settled.after);
    for (uint32_t i = 0; i < samples->count; i++)
        sum += samples->ms[i];
    out->steps = samples->count;
    out->reliable = settled.reliable;
    out->settled_after = settled.after;
    out->ms_mean = sum / samples->count;
    out->ms_p10 = rp_bench_quantile(samples->ms, samples->count, 0.1);
    out->ms_p50 = rp_bench_quantile(samples->ms, samples->count, 0.5);
    out->ms_p90 = rp_bench_quantile(samples->ms, samples->count, 0.9);
    out->ms_p99 = rp_bench_quantile(samples->ms, samples->count, 0.99);
    out->device_ms_p50 = rp_bench_quantile(samples->device_ms, samples->device_count, 0.5);
    out->host_us_p50 = rp_bench_quantile(samples->host_us, samples->device_count, 0.5);
    out->host_us_p99 = rp_bench_quantile(samples->host_us, samples->device_count, 0.99);
    out->gap_us_p50 = rp_bench_quantile(samples->gap_us, samples->gap_count, 0.5);
    out->gap_us_p99 = rp_bench_quantile(samples->gap_us, samples->gap_count, 0.99);
    out->tokens_per_second = run->batch * 1000.0 / out->ms_p50;
    out->achieved_gbps = out->bytes_per_step / (out->ms_p50 * 1e-3) * 1e-9;
    out->read_bandwidth_gbps = rp_bench_quantile(run->bandwidths, rounds, 0.5);
    out->share = rp_bench_quantile(run->shares, rounds, 0.5);
    out->share_min = run->shares[0];
    out->share_max = run->shares[rounds - 1];
    out->prefill_tokens_per_second =
        (double)run->batch * run->context / ((double)run->prompts_ns * 1e-9);
}

static int run_pair(struct run *run, struct rp_bench_decode_result *out, struct rp_error *err) {
    const struct rp_model *model = &run->bench.model;
    const struct rp_bench_ready *ready = &run->bench.ready;
    enum rp_dtype dtype = run->config->target.dtype;
    uint32_t length = run->context + run->max_tokens;
    *out = (struct rp_bench_decode_result){.batch = run->batch, .context = run->context};
    out->weight_bytes = (double)rp_model_weight_bytes(model);
    if (!model->config.tied) { /* the embedding table is only indexed */
        const struct rp_matrix *embed = rp_model_matrix(model, RP_WEIGHT_EMBED, RP_LAYER_NONE);
        out->weight_bytes -=
            (double)(rp_matrix_bytes(embed) + rp_matrix_scale_count(embed) * sizeof(float));
    }
    out->bytes_per_step = out->weight_bytes + (double)rp_model_kv_token_bytes(model, dtype) *
                                                  run->batch *
                                                  (run->context + run->max_tokens / 2.0);
    out->skipped = (uint64_t)run->batch * RP_CEIL_DIV(length, ready->page_tokens) >
                   ready->kv_tokens / ready->page_tokens;
    if (out->skipped)
        return RP_OK;
    run->start_ns = run->prompts_ns = 0;
    run->prompts_left = run->batch;
    memset(run->has_token, 0, run->batch * sizeof *run->has_token);
    run->samples.count = run->samples.device_count = run->samples.gap_count = 0;
    int status = submit_all(run, err);
    if (status == RP_OK)
        status = drain(run, err); /* runs the prompts, to time them and to fill the prefix cache */
    for (uint32_t round = 0; round < run->config->rounds && status == RP_OK; round++)
        status = run_round(run, round, out->bytes_per_step, err);
    if (status == RP_OK)
        summarize(run, out);
    return status;
}

static int allocate(struct run *run, uint32_t batch_max, uint32_t max_tokens,
                    struct rp_error *err) {
    size_t steps = (size_t)max_tokens * run->config->rounds;
    run->requests = rp_calloc(batch_max, sizeof *run->requests);
    run->prompts = rp_calloc((size_t)batch_max * run->context_max, sizeof *run->prompts);
    run->has_token = rp_calloc(batch_max, sizeof *run->has_token);
    run->round_ms = rp_calloc(max_tokens, sizeof *run->round_ms);
    run->values = rp_calloc(4 * steps, sizeof *run->values);
    if (!run->requests || !run->prompts || !run->has_token || !run->round_ms || !run->values)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    run->samples.ms = run->values;
    run->samples.device_ms = run->values + steps;
    run->samples.gap_us = run->values + 2 * steps;
    run->samples.host_us = run->values + 3 * steps;
    make_prompts(run, batch_max);
    return RP_OK;
}

static int run_pairs(struct run *run, struct rp_error *err) {
    const struct rp_bench_decode_config *config = run->config;
    int status = RP_OK;
    for (uint32_t b = 0; b < config->batch_count; b++)
        for (uint32_t c = 0; c < config->context_count && status == RP_OK; c++) {
            struct rp_bench_decode_result result;
            run->batch = config->batches[b];
            run->context = config->contexts[c];
            run->max_tokens = output_tokens(run, run->batch);
            run->pair = b * config->context_count + c;
            status = run_pair(run, &result, err);
            if (status == RP_OK)
                config->report(config->report_ctx, &run->bench.ready, &result);
        }
    return status;
}

int rp_bench_decode(const struct rp_bench_decode_config *config, struct rp_error *err) {
    struct run run = {.config = config};
    uint32_t batch_max = largest(config->batches, config->batch_count);
    bool on_gpu = rp_bench_on_gpu(&config->target);
    run.context_max = largest(config->contexts, config->context_count);
    run.budget = RP_MAX(on_gpu ? 2048u : 512u, 2 * batch_max);
    if (on_gpu && !config->no_bandwidth)
        run.gpu_bandwidth = rp_membw_device(config->target.backend, config->target.opened,
                                            config->target.device.threads);
    uint32_t max_tokens = output_tokens(&run, batch_max);
    struct rp_engine_config sizes = {.max_num_seqs = batch_max,
                                     .max_num_batched_tokens = run.budget,
                                     .max_model_len = run.context_max + max_tokens,
                                     .prefix_cache = true};
    int status = rp_bench_engine_open(&config->target, &sizes, &run.bench, err);
    if (status == RP_OK)
        status = allocate(&run, batch_max, max_tokens, err);
    if (status == RP_OK)
        status = run_pairs(&run, err);
    rp_bench_engine_close(&run.bench);
    rp_free(run.requests);
    rp_free(run.prompts);
    rp_free(run.has_token);
    rp_free(run.round_ms);
    rp_free(run.values);
    return status;
}
