/* reprise bench decode: prints a row per batch and context, or JSON. */
#include "base/base.h"
#include "bench/bench_decode.h"
#include "bench/cli/cmd_bench_options.h"
#include "server/cli/commands.h"

#include <stdio.h>

struct decode_options {
    struct rp_bench_options bench;
    const char *batches, *contexts;
    uint32_t tokens, rounds, warm_up;
};

#define AT(field) offsetof(struct decode_options, field)

static const struct rp_flag decode_flags[] = {
    RP_BENCH_FLAGS(AT(bench)),
    {"run-ahead", RP_FLAG_UINT, AT(bench.run_ahead), "0|1", 0, 1, "1",
     "launch a step before the previous one was read"},
    {"batch", RP_FLAG_TEXT, AT(batches), "N,N,...", 0, 0, "1", "sequences that decode together"},
    {"context", RP_FLAG_TEXT, AT(contexts), "N,N,...", 0, 0, "512",
     "prompt tokens of each sequence"},
    {"tokens", RP_FLAG_UINT, AT(tokens), "N", 2, 1048576, "32",
     "output tokens of each sequence per round"},
    {"rounds", RP_FLAG_UINT, AT(rounds), "N", 1, RP_BENCH_ROUNDS_MAX, "5",
     "rounds; on the CPU the read bandwidth is measured before and after each"},
    {"warm-up", RP_FLAG_UINT, AT(warm_up), "N", 0, 1048576, "4",
     "steps at the start of a round that do not count"},
};

static const struct rp_command_spec decode_spec = {
    .name = "bench decode",
    .positionals = "",
    .summary =
        "Time per decode step of a model through the whole engine, and its share of the read\n"
        "bandwidth measured in the same run, for every batch with every context in one engine.",
    .flags = decode_flags,
    .flag_count = RP_ARRAY_COUNT(decode_flags),
};

struct decode_output {
    struct rp_bench_output base;
    const struct decode_options *options;
};

static void print_row_json(struct decode_output *output, const struct rp_bench_ready *ready,
                           const struct rp_bench_decode_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    rp_bench_row_begin(&output->base, &json, &out, "decode", ready);
    rp_json_uint(&json, "batch", result->batch);
    rp_json_uint(&json, "context", result->context);
    rp_json_bool(&json, "left_out", result->skipped);
    if (!result->skipped) {
        rp_json_uint(&json, "steps", result->steps);
        rp_json_bool(&json, "reliable", result->reliable);
        rp_json_uint(&json, "settled_after", result->settled_after);
        rp_json_double(&json, "ms_per_step_p50", result->ms_p50);
        rp_json_double(&json, "ms_per_step_p10", result->ms_p10);
        rp_json_double(&json, "ms_per_step_p90", result->ms_p90);
        rp_json_double(&json, "ms_per_step_p99", result->ms_p99);
        rp_json_double(&json, "device_ms_per_step_p50", result->device_ms_p50);
        rp_json_double(&json, "gap_us_p50", result->gap_us_p50);
        rp_json_double(&json, "gap_us_p99", result->gap_us_p99);
        rp_json_double(&json, "host_us_p50", result->host_us_p50);
        rp_json_double(&json, "host_us_p99", result->host_us_p99);
        rp_json_double(&json, "ms_per_step_mean", result->ms_mean);
        rp_json_double(&json, "ms_per_token", result->ms_p50 / result->batch);
        rp_json_double(&json, "tokens_per_second", result->tokens_per_second);
        rp_json_double(&json, "prompt_tokens_per_second", result->prefill_tokens_per_second);
        rp_json_double(&json, "bytes_per_step", result->bytes_per_step);
        rp_json_double(&json, "weight_bytes", result->weight_bytes);
        rp_json_double(&json, "achieved_gb_per_second", result->achieved_gbps);
        rp_json_double(&json, "read_bandwidth_gb_per_second", result->read_bandwidth_gbps);
        rp_json_double(&json, "bandwidth_share", result->share);
        rp_json_double(&json, "bandwidth_share_min", result->share_min);
        rp_json_double(&json, "bandwidth_share_max", result->share_max);
        rp_json_uint(&json, "rounds", output->options->rounds);
    }
    rp_bench_row_end(&output->base, &json, &out);
}

static void print_row(struct decode_output *output, const struct rp_bench_ready *ready,
                      const struct rp_bench_decode_result *result) {
    char settled[16];
    if (output->base.rows++ == 0) {
        rp_bench_print_ready(&output->base, ready);
        printf("%5s %7s %9s %9s %9s %10s %7s %7s %16s %7s %7s %7s %7s %6s %13s %10s\n", "batch",
               "context", "ms p50", "ms p99", "device ms", "tokens/s", "TB/s", "of TB/s",
               "share (rounds)", "gap us", "p99", "host us", "p99", "steps", "settled after",
               "prompt t/s");
    }
    printf("%5u %7u ", result->batch, result->context);
    if (result->skipped) {
        printf("skipped: the KV pool has room for %llu tokens\n",
               (unsigned long long)ready->kv_tokens);
        return;
    }
    printf("%9.3f %9.3f %9.3f %10.1f %7.3f %7.3f ", result->ms_p50, result->ms_p99,
           result->device_ms_p50, result->tokens_per_second, result->achieved_gbps * 1e-3,
           result->read_bandwidth_gbps * 1e-3);
    if (result->read_bandwidth_gbps > 0)
        printf("%3.0f%% (%3.0f to %3.0f)", 100 * result->share, 100 * result->share_min,
               100 * result->share_max);
    else
        printf("%17s", "not measured");
    snprintf(settled, sizeof settled, result->reliable ? "%u" : "unreliable",
             result->settled_after);
    printf(" %7.1f %7.1f %7.1f %7.1f %6u %13s %10.0f\n", result->gap_us_p50, result->gap_us_p99,
           result->host_us_p50, result->host_us_p99, result->steps, settled,
           result->prefill_tokens_per_second);
    fflush(stdout);
}

static void report(void *ctx, const struct rp_bench_ready *ready,
                   const struct rp_bench_decode_result *result) {
    struct decode_output *output = ctx;
    (output->options->bench.json ? print_row_json : print_row)(output, ready, result);
}

int rp_cmd_bench_decode(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct decode_options options = {.tokens = 0};
    uint32_t batches[RP_BENCH_LIST_MAX], contexts[RP_BENCH_LIST_MAX];
    struct decode_output output = {.base = {.options = &options.bench}, .options = &options};
    struct rp_backend_selection selection;
    struct rp_error err = {0};
    int status = rp_flags_parse(&decode_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    struct rp_bench_decode_config config = {.batches = batches,
                                            .contexts = contexts,
                                            .tokens = options.tokens,
                                            .rounds = options.rounds,
                                            .warm_up = options.warm_up,
                                            .report = report,
                                            .report_ctx = &output};
    if (status == RP_OK)
        status = rp_flag_list("batch", options.batches, 1, 4096, batches, RP_BENCH_LIST_MAX,
                              &config.batch_count, &err);
    if (status == RP_OK)
        status = rp_flag_list("context", options.contexts, 1, 1048576, contexts, RP_BENCH_LIST_MAX,
                              &config.context_count, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    config.target = rp_bench_options_target(&options.bench);
    status = rp_backend_select((enum rp_device_choice)options.bench.device, &config.target.device,
                               &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    config.target.backend = selection.backend;
    config.target.opened = selection.device;
    status = rp_quant_error_measure(&config.target, &output.base.error, &err);
    if (status == RP_OK)
        status = rp_bench_decode(&config, &err);
    else if (selection.device)
        selection.backend->close(selection.device);
    return rp_bench_finish(&output.base, status, &err);
}
