#include "bench/bench_tokenize.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench_engine.h"
#include "bench/settled.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

enum { COLD, WARM, DECODE, KINDS };

struct run {
    const struct rp_bench_tokenize_config *config;
    struct rp_tokenizer *tok;
    struct rp_tokenizer_scratch *cold, *warm;
    struct rp_token_ids ids;
    struct rp_buffer text;
    double *seconds[KINDS];
    uint32_t count;
};

static double now(const struct run *run) {
    struct timespec t;
    if (run->config->clock == RP_PAIR_WALL)
        return (double)rp_clock_ns() * 1e-9;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int encode(struct run *run, struct rp_tokenizer_scratch *scratch, double *seconds,
                  struct rp_error *err) {
    const struct rp_text_span span = {run->config->text, run->config->len, false};
    run->ids.count = 0;
    double begin = now(run);
    int status = rp_tokenizer_encode(run->tok, &span, 1, 0, 0, scratch, &run->ids);
    *seconds = now(run) - begin;
    return status == RP_OK
               ? RP_OK
               : rp_error_set(err, (enum rp_status)status, "encoding: %s", rp_status_text(status));
}

static int decode(struct run *run, double *seconds, struct rp_error *err) {
    struct rp_detokenizer detok;
    int status = RP_OK;
    rp_buffer_clear(&run->text);
    double begin = now(run);
    rp_detokenizer_init(&detok, run->tok, false);
    for (size_t i = 0; i < run->ids.count && status == RP_OK; i++)
        status = rp_detokenizer_push(&detok, run->ids.ids[i], &run->text);
    if (status == RP_OK)
        status = rp_detokenizer_finish(&detok, &run->text);
    *seconds = now(run) - begin;
    return status == RP_OK
               ? RP_OK
               : rp_error_set(err, (enum rp_status)status, "decoding: %s", rp_status_text(status));
}

static int pass(struct run *run, struct rp_error *err) {
    rp_tokenizer_scratch_destroy(run->cold);
    run->cold = rp_tokenizer_scratch_create(run->tok);
    if (!run->cold)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    int status = encode(run, run->cold, &run->seconds[COLD][run->count], err);
    if (status == RP_OK)
        status = encode(run, run->warm, &run->seconds[WARM][run->count], err);
    if (status == RP_OK)
        status = decode(run, &run->seconds[DECODE][run->count], err);
    run->count += status == RP_OK;
    return status;
}

static int open_run(struct run *run, struct rp_bench_tokenize_result *out, bool *loaded,
                    struct rp_error *err) {
    double begin = now(run);
    int status = rp_tokenizer_open(run->config->tokenizer, &run->tok, err);
    *loaded = status == RP_OK;
    out->load_seconds = now(run) - begin;
    if (status != RP_OK)
        return status;
    run->warm = rp_tokenizer_scratch_create(run->tok);
    for (int kind = 0; kind < KINDS; kind++) {
        run->seconds[kind] = rp_calloc(RP_MAX(run->config->passes, 1u), sizeof(double));
        if (!run->seconds[kind])
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    }
    double unused;
    return run->warm ? encode(run, run->warm, &unused, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
}

static void close_run(struct run *run) {
    rp_tokenizer_scratch_destroy(run->cold);
    rp_tokenizer_scratch_destroy(run->warm);
    rp_tokenizer_close(run->tok);
    rp_token_ids_deinit(&run->ids);
    rp_buffer_deinit(&run->text);
    for (int kind = 0; kind < KINDS; kind++)
        rp_free(run->seconds[kind]);
}

static struct rp_bench_rate rate(double *seconds, uint32_t count, double bytes) {
    double median = rp_bench_quantile(seconds, count, 0.5);
    double low = rp_bench_quantile(seconds, count, 0.1);
    double high = rp_bench_quantile(seconds, count, 0.9);
    double best = rp_bench_quantile(seconds, count, 0.0);
    /* The clock may not advance while an empty text is processed. */
    return (struct rp_bench_rate){.best = best > 0 ? bytes * 1e-6 / best : 0,
                                  .median = median > 0 ? bytes * 1e-6 / median : 0,
                                  .spread = median > 0 ? (high - low) / median : 0};
}

static void summarize(struct run *run, struct rp_bench_tokenize_result *out) {
    const struct rp_bench_tokenize_config *config = run->config;
    struct rp_settled settled = rp_settled_find(run->seconds[COLD], run->count);
    uint32_t after = settled.after, count = run->count - after;
    out->tokens = run->ids.count;
    out->decoded_bytes = run->text.len;
    out->round_trips = run->text.len == config->len &&
                       (config->len == 0 || memcmp(run->text.data, config->text, config->len) == 0);
    out->passes = count;
    out->reliable = settled.reliable;
    out->settled_after = after;
    out->cold = rate(run->seconds[COLD] + after, count, (double)config->len);
    out->warm = rate(run->seconds[WARM] + after, count, (double)config->len);
    out->decode = rate(run->seconds[DECODE] + after, count, (double)run->text.len);
    out->tokenizer_bytes = rp_tokenizer_memory(run->tok);
    out->scratch_bytes = rp_tokenizer_scratch_memory(run->warm);
}

int rp_bench_tokenize(const struct rp_bench_tokenize_config *config,
                      struct rp_bench_tokenize_result *out, bool *loaded, struct rp_error *err) {
    struct run run = {.config = config};
    memset(out, 0, sizeof *out);
    int status = open_run(&run, out, loaded, err);
    double begin = (double)rp_clock_ns() * 1e-9;
    while (status == RP_OK &&
           (run.count == 0 ||
            (run.count < config->passes && (double)rp_clock_ns() * 1e-9 - begin < config->seconds)))
        status = pass(&run, err);
    if (status == RP_OK)
        summarize(&run, out);
    close_run(&run);
    return status;
}
