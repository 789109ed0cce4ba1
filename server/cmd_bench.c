/* reprise bench WHAT: speed, measured. Each subcommand prints a line for a person or, with --json, one
 * JSON object. */
#include "backend/module.h"
#include "base/json_writer.h"
#include "bench/bench_decode.h"
#include "bench/bench_matmul.h"
#include "bench/membw.h"
#include "model/model.h"
#include "server/cmd_stack.h"
#include "server/commands.h"

#include <stdio.h>
#include <string.h>

struct decode_options {
    const char *shape;
    uint32_t dtype, device, numerics, batch, context, tokens, rounds, warm_up, threads, run_ahead;
    bool enforce_eager, disable_fusion, json;
};

#define AT(field) offsetof(struct decode_options, field)

static const struct rp_flag decode_flags[] = {
    {"shape", RP_FLAG_TEXT, AT(shape), "NAME", 0, 0, "llama-3.2-1b",
     "model shape with random weights (an unknown name lists them)"},
    {"dtype", RP_FLAG_CHOICE, AT(dtype), "bfloat16|float32", 0, 0, "bfloat16", "weights and pages"},
    {"device", RP_FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, "auto",
     "where to run; auto: a card when there is one"},
    {"numerics", RP_FLAG_CHOICE, AT(numerics), "invariant|fast", 0, 0, "invariant",
     "fast: kernels that may depend on the batch"},
    {"batch", RP_FLAG_UINT, AT(batch), "N", 1, 4096, "1", "sequences that decode together"},
    {"context", RP_FLAG_UINT, AT(context), "N", 1, 1048576, "512", "prompt tokens of each"},
    {"tokens", RP_FLAG_UINT, AT(tokens), "N", 2, 1048576, "32",
     "output tokens of each in each round"},
    {"rounds", RP_FLAG_UINT, AT(rounds), "N", 1, RP_BENCH_ROUNDS_MAX, "5",
     "rounds, each beside two readings of the bandwidth"},
    {"warm-up", RP_FLAG_UINT, AT(warm_up), "N", 0, 1048576, "4",
     "first steps of a round that do not count"},
    {"threads", RP_FLAG_UINT, AT(threads), "N", 0, 1024, "0", "CPU workers; 0: one per core"},
    {"run-ahead", RP_FLAG_UINT, AT(run_ahead), "0|1", 0, 1, "1",
     "launch a step before the last one was read"},
    {"enforce-eager", RP_FLAG_SWITCH, AT(enforce_eager), NULL, 0, 0, NULL, "no replay"},
    {"disable-fusion", RP_FLAG_SWITCH, AT(disable_fusion), NULL, 0, 0, NULL,
     "one kernel per operator"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "one JSON object"},
};

static const struct rp_command_spec decode_spec = {
    .name = "bench decode",
    .positionals = "",
    .summary =
        "Time per decode step of a model shape through the whole engine, and its share of the\n"
        "read bandwidth measured in the same run.",
    .flags = decode_flags,
    .flag_count = RP_ARRAY_COUNT(decode_flags),
};

static void print_decode_json(const struct decode_options *options,
                              const struct rp_bench_decode_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "decode");
    rp_json_string(&json, "device", result->device);
    rp_json_string(&json, "shape", options->shape);
    rp_json_string(&json, "dtype", options->dtype ? "float32" : "bfloat16");
    rp_json_uint(&json, "batch", options->batch);
    rp_json_uint(&json, "context", options->context);
    rp_json_uint(&json, "steps", result->steps);
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
    rp_json_double(&json, "ms_per_token", result->ms_p50 / options->batch);
    rp_json_double(&json, "tokens_per_second", result->tokens_per_second);
    rp_json_double(&json, "prompt_tokens_per_second", result->prefill_tokens_per_second);
    rp_json_double(&json, "bytes_per_step", result->bytes_per_step);
    rp_json_double(&json, "weight_bytes", result->weight_bytes);
    rp_json_double(&json, "achieved_gb_per_second", result->achieved_gbps);
    rp_json_double(&json, "read_bandwidth_gb_per_second", result->read_bandwidth_gbps);
    rp_json_double(&json, "bandwidth_share", result->share);
    rp_json_double(&json, "bandwidth_share_min", result->share_min);
    rp_json_double(&json, "bandwidth_share_max", result->share_max);
    rp_json_uint(&json, "rounds", options->rounds);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static int bench_decode(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct decode_options options = {0};
    struct rp_bench_decode_result result;
    struct rp_error err = {0};
    int status = rp_flags_parse(&decode_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_bench_decode_config config = {.shape = options.shape,
                                            .dtype = options.dtype ? RP_DTYPE_F32 : RP_DTYPE_BF16,
                                            .batch = options.batch,
                                            .context = options.context,
                                            .tokens = options.tokens,
                                            .rounds = options.rounds,
                                            .warm_up = options.warm_up,
                                            .run_ahead = options.run_ahead != 0,
                                            .enforce_eager = options.enforce_eager,
                                            .no_fusion = options.disable_fusion};
    struct rp_backend_selection selection;
    config.device.threads = options.threads;
    config.device.fast_numerics = options.numerics == 1;
    status =
        rp_backend_select((enum rp_device_choice)options.device, &config.device, &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    config.backend = selection.backend;
    config.opened = selection.device;
    status = rp_bench_decode(&config, &result, &err);
    if (status == RP_STATUS_NOT_FOUND)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    if (options.json) {
        print_decode_json(&options, &result);
        return RP_EXIT_OK;
    }
    printf("%s, %s, %s, batch %u, context %u\n", result.device, options.shape,
           options.dtype ? "float32" : "bfloat16", options.batch, options.context);
    printf("%.3f ms a step (p10 %.3f, p90 %.3f, p99 %.3f, %u steps), %.1f tokens/s, prompt %.1f "
           "tokens/s\n",
           result.ms_p50, result.ms_p10, result.ms_p90, result.ms_p99, result.steps,
           result.tokens_per_second, result.prefill_tokens_per_second);
    printf("on the device %.3f ms; idle between steps %.1f us (p99 %.1f); host's part %.1f us (p99 "
           "%.1f)\n",
           result.device_ms_p50, result.gap_us_p50, result.gap_us_p99, result.host_us_p50,
           result.host_us_p99);
    if (result.read_bandwidth_gbps == 0) {
        printf("%.1f GB/s; the read bandwidth of this device was not measured\n",
               result.achieved_gbps);
        return RP_EXIT_OK;
    }
    printf("%.1f GB/s, read bandwidth %.1f GB/s; share %.0f %% (%.0f to %.0f %% over %u rounds)\n",
           result.achieved_gbps, result.read_bandwidth_gbps, 100.0 * result.share,
           100.0 * result.share_min, 100.0 * result.share_max, options.rounds);
    return RP_EXIT_OK;
}

static int bench_membw(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: reprise bench membw\n");
        return RP_EXIT_USAGE;
    }
    printf("%.1f GB/s read bandwidth (best of 10 passes over 1 GiB, all cores)\n",
           rp_membw_read(0, (size_t)1 << 30, 10) * 1e-9);
    return RP_EXIT_OK;
}

int rp_cmd_bench(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
        const char *summary;
    } benches[] = {
        {"decode", bench_decode, "time per decode step of a model shape"},
        {"kernels", rp_cmd_bench_kernels, "every operator of a model shape by itself"},
        {"matmul", rp_bench_matmul, "one product, weights from memory"},
        {"step", rp_cmd_bench_step, "the device's decode step by itself"},
        {"prefill", rp_cmd_bench_prefill, "a prompt in one step, by itself"},
        {"membw", bench_membw, "read bandwidth of the machine"},
    };
    for (size_t i = 0; argc > 1 && i < RP_ARRAY_COUNT(benches); i++)
        if (strcmp(argv[1], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1);
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    FILE *out = help ? stdout : stderr;
    fprintf(out, "usage: reprise bench WHAT [flags]\n\n");
    for (size_t i = 0; i < RP_ARRAY_COUNT(benches); i++)
        fprintf(out, "  %-8s %s\n", benches[i].name, benches[i].summary);
    return help ? RP_EXIT_OK : RP_EXIT_USAGE;
}
