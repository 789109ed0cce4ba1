/* reprise bench prompt: a table, one row for each length of prompt, or as JSON. */
#include "base/base.h"
#include "bench/bench_prompt.h"
#include "server/cmd_bench_options.h"
#include "server/commands.h"

#include <stdio.h>

struct prompt_options {
    struct rp_bench_options bench;
    const char *tokens;
    uint32_t repetitions, warm_up;
};

#define AT(field) offsetof(struct prompt_options, field)

static const struct rp_flag prompt_flags[] = {
    RP_BENCH_FLAGS(AT(bench)),
    {"tokens", RP_FLAG_TEXT, AT(tokens), "N,N,...", 0, 0, "512,2048",
     "tokens of the prompt, which is one step"},
    {"repetitions", RP_FLAG_UINT, AT(repetitions), "N", 1, 65536, "20", "prompts of each length"},
    {"warm-up", RP_FLAG_UINT, AT(warm_up), "N", 0, 65536, "3",
     "first prompts of a length that do not count"},
};

static const struct rp_command_spec prompt_spec = {
    .name = "bench prompt",
    .positionals = "",
    .summary =
        "Time of one prompt as one step of the whole engine, by the device's clock, and its\n"
        "share of the rate of the model's gate_up product with 2048 rows by itself (on a\n"
        "card with cuBLASLt, where that is there), measured in the same run.",
    .flags = prompt_flags,
    .flag_count = RP_ARRAY_COUNT(prompt_flags),
};

static void print_row_json(struct rp_bench_output *output, const struct rp_bench_ready *ready,
                           const struct rp_bench_prompt_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    rp_bench_row_begin(output, &json, &out, "prompt", ready);
    rp_json_uint(&json, "tokens", result->tokens);
    rp_json_uint(&json, "repetitions", result->samples);
    rp_json_double(&json, "device_ms_p50", result->ms_p50);
    rp_json_double(&json, "device_ms_p99", result->ms_p99);
    rp_json_double(&json, "device_ms_min", result->ms_min);
    rp_json_double(&json, "first_token_ms_p50", result->first_token_ms_p50);
    rp_json_double(&json, "tokens_per_second", result->tokens_per_second);
    rp_json_double(&json, "flops", result->flops);
    rp_json_double(&json, "tflops", result->flops_per_second * 1e-12);
    rp_json_double(&json, "product_tflops", result->product_flops * 1e-12);
    rp_json_string(&json, "product_kernel", result->product_kernel);
    rp_json_double(&json, "product_share", result->share);
    rp_bench_row_end(output, &json, &out);
}

static void print_row(struct rp_bench_output *output, const struct rp_bench_ready *ready,
                      const struct rp_bench_prompt_result *result) {
    if (output->rows++ == 0) {
        rp_bench_print_ready(output, ready);
        if (result->product_flops > 0)
            printf("gate_up with 2048 rows by itself: %.1f TFLOP/s (%s)\n",
                   result->product_flops * 1e-12, result->product_kernel);
        else
            printf("gate_up with 2048 rows by itself: not measured\n");
        printf("%7s %10s %10s %10s %14s %10s %9s %6s %8s\n", "tokens", "ms p50", "ms p99", "ms min",
               "first token ms", "tokens/s", "TFLOP/s", "share", "prompts");
    }
    printf("%7u %10.3f %10.3f %10.3f %14.3f %10.0f %9.2f %5.1f%% %8u\n", result->tokens,
           result->ms_p50, result->ms_p99, result->ms_min, result->first_token_ms_p50,
           result->tokens_per_second, result->flops_per_second * 1e-12, 100 * result->share,
           result->samples);
    fflush(stdout);
}

static void report(void *ctx, const struct rp_bench_ready *ready,
                   const struct rp_bench_prompt_result *result) {
    struct rp_bench_output *output = ctx;
    (output->options->json ? print_row_json : print_row)(output, ready, result);
}

int rp_cmd_bench_prompt(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct prompt_options options = {.warm_up = 0};
    uint32_t tokens[RP_BENCH_LIST_MAX];
    struct rp_bench_output output = {.options = &options.bench};
    struct rp_backend_selection selection;
    struct rp_error err = {0};
    int status = rp_flags_parse(&prompt_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    struct rp_bench_prompt_config config = {.tokens = tokens,
                                            .repetitions = options.repetitions,
                                            .warm_up = options.warm_up,
                                            .report = report,
                                            .report_ctx = &output};
    if (status == RP_OK)
        status =
            rp_bench_list("tokens", options.tokens, 2, 65536, tokens, &config.token_count, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    config.target = rp_bench_options_target(&options.bench);
    /* The product may take the fastest kernel that there is. */
    struct rp_device_config fast = config.target.device;
    fast.fast_numerics = true;
    status =
        rp_backend_select((enum rp_device_choice)options.bench.device, &fast, &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    config.target.backend = selection.backend;
    config.target.opened = selection.device;
    status = rp_bench_prompt(&config, &err);
    return rp_bench_finish(&output, status, &err);
}
