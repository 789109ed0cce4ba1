/* reprise bench step and bench prefill: time of a step without engine and scheduler
 * (bench/bench_step.h). */
#include "backend/module.h"
#include "base/json_writer.h"
#include "bench/bench_step.h"
#include "bench/cli/cmd_bench_options.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"

#include <stdio.h>
#include <unistd.h>

struct step_options {
    struct rp_bench_options bench;
    const char *batches, *contexts;
    uint32_t steps, warm_up, max_model_len, stamp_every;
};

#define AT(field) offsetof(struct step_options, field)

/* Flags of both commands. */
#define STEP_FLAGS                                                                                 \
    RP_BENCH_FLAGS(AT(bench)),                                                                     \
        {"max-model-len",                                                                          \
         RP_FLAG_UINT,                                                                             \
         AT(max_model_len),                                                                        \
         "N",                                                                                      \
         0,                                                                                        \
         1048576,                                                                                  \
         "0",                                                                                      \
         "capacity of the page tables in tokens; 0: what the context needs"},                      \
        {"steps", RP_FLAG_UINT, AT(steps), "N", 2, 1000000, "100", "number of measured steps"},    \
        {"warm-up", RP_FLAG_UINT, AT(warm_up), "N",                                                \
         1,         1000000,      "10",        "steps before the measured ones"},                  \
    {                                                                                              \
        "stamp-every", RP_FLAG_UINT, AT(stamp_every), "N", 0, 1000000, "0",                        \
            "record start and end of every node in one of N steps; 0: never"                       \
    }

static const struct rp_flag step_flags[] = {
    STEP_FLAGS,
    {"batch", RP_FLAG_TEXT, AT(batches), "N,N,...", 0, 0, "1,8,32,128",
     "sequences that decode together"},
    {"context", RP_FLAG_TEXT, AT(contexts), "N,N,...", 0, 0, "512",
     "cached tokens of each sequence"},
};

static const struct rp_flag prefill_flags[] = {
    STEP_FLAGS,
    {"batch", RP_FLAG_TEXT, AT(batches), "N,N,...", 0, 0, "1", "prompts in the step"},
    {"context", RP_FLAG_TEXT, AT(contexts), "N,N,...", 0, 0, "2048", "tokens of each prompt"},
};

static const struct rp_command_spec step_spec = {
    .name = "bench step",
    .positionals = "",
    .summary =
        "Time of a decode step without engine and scheduler, its share of the read bandwidth\n"
        "measured in the same run, host time per step and gaps between steps.",
    .flags = step_flags,
    .flag_count = RP_ARRAY_COUNT(step_flags),
};

static const struct rp_command_spec prefill_spec = {
    .name = "bench prefill",
    .positionals = "",
    .summary =
        "Time of prefill in one step, without engine and scheduler, and its share of the rate of\n"
        "the largest GEMM, measured in the same run.",
    .flags = prefill_flags,
    .flag_count = RP_ARRAY_COUNT(prefill_flags),
};

static void show_progress(void *ctx, const char *stage, uint32_t batch, uint32_t context) {
    (void)ctx;
    fprintf(stderr, "\r\033[K%s", stage);
    if (context)
        fprintf(stderr, ", batch %u, context %u", batch, context);
}

static double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

static double bandwidth(const struct rp_bench_step *c) {
    return share(c->weight_bytes + c->kv_bytes, c->ms_p50 * 1e-3);
}

static double flop_rate(const struct rp_bench_step *c) { return share(c->flops, c->ms_p50 * 1e-3); }

static const char *settled_text(const struct rp_bench_step *c, char out[16]) {
    snprintf(out, 16, c->reliable ? "%u" : "unreliable", c->settled_after);
    return out;
}

static void print_steps(const struct rp_bench_step_result *result) {
    printf("%5s %7s %9s %9s %10s %7s %6s %9s %8s %8s %10s %9s %13s\n", "batch", "context", "ms",
           "ms p99", "tokens/s", "TB/s", "share", "device ms", "gap us", "host us", "capture ms",
           "KiB graph", "settled after");
    for (uint32_t i = 0; i < result->case_count; i++) {
        const struct rp_bench_step *c = &result->cases[i];
        char text[16];
        printf("%5u %7u %9.3f %9.3f %10.1f %7.3f %5.1f%% %9.3f %8.1f %8.1f %10.1f %9.1f %13s\n",
               c->batch, c->context, c->ms_p50, c->ms_p99, c->tokens_per_second,
               bandwidth(c) * 1e-12, 100 * share(bandwidth(c), result->read_bandwidth),
               c->device_ms_p50, c->gap_us_p50, c->host_us_p50, c->capture_ms,
               (double)c->graph_bytes / 1024, settled_text(c, text));
    }
}

static void print_prompts(const struct rp_bench_step_result *result) {
    printf("%5s %7s %9s %9s %10s %8s %8s %6s %9s %8s %10s %13s\n", "batch", "prompt", "ms",
           "ms p99", "tokens/s", "TFLOP/s", "GEMM", "share", "device ms", "host us", "capture ms",
           "settled after");
    for (uint32_t i = 0; i < result->case_count; i++) {
        const struct rp_bench_step *c = &result->cases[i];
        char text[16];
        printf("%5u %7u %9.3f %9.3f %10.1f %8.2f %8.2f %5.1f%% %9.3f %8.1f %10.1f %13s\n", c->batch,
               c->context, c->ms_p50, c->ms_p99, c->tokens_per_second, flop_rate(c) * 1e-12,
               c->gemm_flops * 1e-12, 100 * share(flop_rate(c), c->gemm_flops), c->device_ms_p50,
               c->host_us_p50, c->capture_ms, settled_text(c, text));
    }
}

/* Prints time per kernel, without overlap, averaged over the stamped steps. */
static void print_nodes(const struct rp_bench_step *c) {
    const struct rp_step_nodes *nodes = &c->nodes;
    if (nodes->steps == 0)
        return;
    printf("nodes of %u stamped steps, batch %u, context %u: %.3f ms of %.3f ms\n", nodes->steps,
           c->batch, c->context, (double)nodes->own_ns / nodes->steps * 1e-6,
           (double)nodes->run_ns / nodes->steps * 1e-6);
    for (uint32_t i = 0; i < nodes->kernel_count; i++) {
        double own = (double)nodes->kernels[i].own_ns, count = (double)nodes->kernels[i].nodes;
        printf("  %-28s %6.0f a step %9.2f us each %8.1f us %5.1f%%", nodes->kernels[i].name,
               count / nodes->steps, own / count * 1e-3, own / nodes->steps * 1e-3,
               100 * share(own, (double)nodes->own_ns));
        if (nodes->kernels[i].missing)
            printf("  (%llu without a stamp)", (unsigned long long)nodes->kernels[i].missing);
        printf("\n");
    }
}

static void write_nodes(struct rp_json *json, const struct rp_step_nodes *nodes) {
    rp_json_object_begin(json, "nodes");
    rp_json_uint(json, "steps", nodes->steps);
    rp_json_double(json, "own_ms", share((double)nodes->own_ns * 1e-6, nodes->steps));
    rp_json_double(json, "run_ms", share((double)nodes->run_ns * 1e-6, nodes->steps));
    rp_json_array_begin(json, "kernels");
    for (uint32_t i = 0; i < nodes->kernel_count; i++) {
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "kernel", nodes->kernels[i].name);
        rp_json_uint(json, "nodes", nodes->kernels[i].nodes);
        rp_json_uint(json, "missing", nodes->kernels[i].missing);
        rp_json_uint(json, "own_ns", nodes->kernels[i].own_ns);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
    rp_json_object_end(json);
}

static void write_case(struct rp_json *json, const struct rp_bench_step *c, double read_bandwidth) {
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "batch", c->batch);
    rp_json_uint(json, "context", c->context);
    rp_json_uint(json, "steps", c->steps);
    rp_json_bool(json, "reliable", c->reliable);
    rp_json_uint(json, "settled_after", c->settled_after);
    rp_json_double(json, "ms_p50", c->ms_p50);
    rp_json_double(json, "ms_p99", c->ms_p99);
    rp_json_double(json, "device_ms_p50", c->device_ms_p50);
    rp_json_double(json, "gap_us_p50", c->gap_us_p50);
    rp_json_double(json, "gap_us_p99", c->gap_us_p99);
    rp_json_double(json, "host_us_p50", c->host_us_p50);
    rp_json_double(json, "host_us_p99", c->host_us_p99);
    rp_json_double(json, "tokens_per_second", c->tokens_per_second);
    rp_json_double(json, "weight_bytes", c->weight_bytes);
    rp_json_double(json, "kv_bytes", c->kv_bytes);
    rp_json_double(json, "gb_per_second", bandwidth(c) * 1e-9);
    rp_json_double(json, "bandwidth_share", share(bandwidth(c), read_bandwidth));
    rp_json_double(json, "flops", c->flops);
    rp_json_double(json, "tflops", flop_rate(c) * 1e-12);
    rp_json_double(json, "product_tflops", c->gemm_flops * 1e-12);
    rp_json_double(json, "product_share", share(flop_rate(c), c->gemm_flops));
    rp_json_double(json, "capture_ms", c->capture_ms);
    rp_json_uint(json, "graph_bytes", c->graph_bytes);
    rp_json_uint(json, "arena_bytes", c->arena_bytes);
    rp_json_uint(json, "launches", c->launches);
    if (c->nodes.steps)
        write_nodes(json, &c->nodes);
    rp_json_object_end(json);
}

static void print_json(const struct rp_bench_options *options, bool prompt,
                       const struct rp_bench_step_result *result,
                       const struct rp_quant_error *error) {
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", prompt ? "prefill" : "step");
    rp_json_string(&json, "device", result->device);
    rp_json_string(&json, "model", options->model[0] ? options->model : options->shape);
    rp_json_string(&json, "dtype", options->dtype ? "float32" : "bfloat16");
    rp_json_string(&json, "quantization",
                   rp_quant_scheme_name((enum rp_quant_scheme)options->quantization));
    rp_json_string(&json, "kv_cache_dtype", rp_dtype_name(result->kv_dtype));
    rp_json_string(&json, "numerics", options->numerics ? "fast" : "invariant");
    rp_json_double(&json, "read_bandwidth_gb_per_second", result->read_bandwidth * 1e-9);
    rp_json_uint(&json, "left_out", result->skipped);
    rp_bench_write_error(&json, error);
    rp_json_array_begin(&json, "cases");
    for (uint32_t i = 0; i < result->case_count; i++)
        write_case(&json, &result->cases[i], result->read_bandwidth);
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static void print_result(const struct rp_bench_options *options, bool prompt,
                         const struct rp_bench_step_result *result,
                         const struct rp_quant_error *error) {
    if (options->json) {
        print_json(options, prompt, result, error);
        return;
    }
    (prompt ? print_prompts : print_steps)(result);
    printf("%s, %s; read bandwidth %.3f TB/s", result->device,
           options->model[0] ? options->model : options->shape, result->read_bandwidth * 1e-12);
    if (result->skipped)
        printf("; %u cases skipped for lack of memory", result->skipped);
    printf("\n");
    rp_bench_print_error(error);
    for (uint32_t i = 0; i < result->case_count; i++)
        print_nodes(&result->cases[i]);
}

static int run_bench(const struct rp_bench_options *options, struct rp_bench_target *target,
                     struct rp_bench_step_config *config) {
    static struct rp_bench_step_result result; /* large */
    struct rp_backend_selection selection;
    struct rp_quant_error error;
    struct rp_error err = {0};
    int status = rp_backend_select((enum rp_device_choice)options->device, &target->device,
                                   &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    target->backend = config->backend = selection.backend;
    target->opened = config->device = selection.device;
    status = rp_quant_error_measure(target, &error, &err);
    if (status == RP_OK)
        status = rp_bench_step(config, &result, &err);
    selection.backend->close(selection.device);
    if (config->progress)
        fprintf(stderr, "\r\033[K");
    if (result.case_count || status == RP_OK) /* after an error: the cases measured before it */
        print_result(options, config->prompt, &result, &error);
    if (status == RP_STATUS_RANGE || (status == RP_STATUS_NOT_FOUND && config->shape))
        return rp_fail(RP_EXIT_USAGE, &err);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(rp_stack_exit_code(status), &err);
}

static int bench(const struct rp_command_spec *spec, bool prompt, int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct step_options options = {.steps = 0};
    uint32_t batches[RP_BENCH_LIST_MAX], contexts[RP_BENCH_LIST_MAX];
    struct rp_error err = {0};
    int status = rp_flags_parse(spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_bench_target target = rp_bench_options_target(&options.bench);
    struct rp_bench_step_config config = {.threads = options.bench.threads,
                                          .shape = target.dir ? NULL : target.shape,
                                          .model_dir = target.dir,
                                          .dtype = target.dtype,
                                          .kv_dtype = target.kv_dtype,
                                          .quantization = target.quantization,
                                          .prompt = prompt,
                                          .batches = batches,
                                          .contexts = contexts,
                                          .max_model_len = options.max_model_len,
                                          .steps = options.steps,
                                          .warm_up = options.warm_up,
                                          .enforce_eager = target.enforce_eager,
                                          .stamp_every = options.stamp_every,
                                          .no_fusion = target.no_fusion,
                                          .progress = isatty(STDERR_FILENO) ? show_progress : NULL};
    status = rp_flag_list("context", options.contexts, 1, 1048576, contexts, RP_BENCH_LIST_MAX,
                          &config.context_count, &err);
    if (status == RP_OK)
        status = rp_flag_list("batch", options.batches, 1, 1048576, batches, RP_BENCH_LIST_MAX,
                              &config.batch_count, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    return run_bench(&options.bench, &target, &config);
}

int rp_cmd_bench_step(int argc, char **argv) { return bench(&step_spec, false, argc, argv); }

int rp_cmd_bench_prefill(int argc, char **argv) { return bench(&prefill_spec, true, argc, argv); }
