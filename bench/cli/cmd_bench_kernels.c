/* reprise bench kernels: times every operator separately; prints a table or JSON. */
#include "backend/module.h"
#include "base/json_writer.h"
#include "bench/bench_kernels.h"
#include "model/model.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIST_MAX 16u

struct kernels_options {
    const char *shape, *rows, *contexts, *only;
    uint32_t dtype, quantization, device, numerics, threads, cold_mb;
    double seconds;
    bool json, no_dependent_launch;
};

#define AT(field) offsetof(struct kernels_options, field)

static const struct rp_flag kernels_flags[] = {
    {"shape", RP_FLAG_TEXT, AT(shape), "NAME", 0, 0, "llama-3.1-8b",
     "model shape whose operators are run (an unknown name lists the known ones)"},
    {"dtype", RP_FLAG_CHOICE, AT(dtype), "bfloat16|float32", 0, 0, "bfloat16",
     "type of weights and KV pages"},
    {"quantization", RP_FLAG_CHOICE, AT(quantization),
     "none|int8|fp8|int8-w8a16|fp8-w8a16|int4|nvfp4|mxfp4", 0, 0, "none",
     "GEMM weights in 8 or 4 bits; of 8, the error of the outputs is printed as well"},
    {"device", RP_FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, "auto", "where to run"},
    {"rows", RP_FLAG_TEXT, AT(rows), "N,N,...", 0, 0, "1,8,32,128,2048",
     "decode rows; above 256: one prompt of that many tokens"},
    {"contexts", RP_FLAG_TEXT, AT(contexts), "N,N,...", 0, 0, "512,4096",
     "cached tokens of each row, for attention"},
    {"op", RP_FLAG_TEXT, AT(only), "NAME", 0, 0, "", "only operators whose names begin with NAME"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "S", 1, 3600, "28",
     "approximate time limit; cases that do not fit are skipped"},
    {"cold-mb", RP_FLAG_UINT, AT(cold_mb), "MB", 0, 65536, "0",
     "rotate among copies of weights and pages of this total size; 0: 512 on the CPU, else 256"},
    {"threads", RP_FLAG_UINT, AT(threads), "N", 0, 1024, "0", "CPU workers; 0: one per core"},
    {"numerics", RP_FLAG_CHOICE, AT(numerics), "invariant|fast", 0, 0, "invariant",
     "fast: kernels whose results may depend on the batch"},
    {"no-dependent-launch", RP_FLAG_SWITCH, AT(no_dependent_launch), NULL, 0, 0, NULL,
     "CUDA: plain graph edges, no programmatic dependent launch"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
};

static const struct rp_command_spec kernels_spec = {
    .name = "bench kernels",
    .positionals = "",
    .summary =
        "Time of every operator of a model shape, its share of the read bandwidth and, for GEMMs,\n"
        "of the rate of the fastest one, all measured in the same run.",
    .flags = kernels_flags,
    .flag_count = RP_ARRAY_COUNT(kernels_flags),
};

static void show_progress(void *ctx, const char *op, uint32_t rows) {
    (void)ctx;
    fprintf(stderr, "\r\033[K%s, %u rows", op, rows);
}

static double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

static void print_table(const struct rp_bench_kernels_result *result, bool with_error) {
    /* Digits depend on the magnitude, which differs between a CPU and a GPU. */
    int digits = result->gemm_flops < 1e13 ? 3 : 1;
    printf("%-16s %5s %7s %10s %10s %7s %6s %8s %6s%s  %s\n", "operator", "rows", "context", "us",
           "us p99", "TB/s", "share", "TFLOP/s", "share", with_error ? "  error" : "", "kernel");
    for (uint32_t i = 0; i < result->kernel_count; i++) {
        const struct rp_bench_kernel *k = &result->kernels[i];
        double seconds = k->us_p50 * 1e-6;
        double bandwidth = share(k->bytes, seconds), rate = share(k->flops, seconds);
        char context[16] = "-";
        if (k->context)
            snprintf(context, sizeof context, "%u", k->context);
        char error[16] = "";
        if (k->sqnr_db != 0)
            snprintf(error, sizeof error, " %3.0f dB", -k->sqnr_db);
        printf("%-16s %5u %7s %10.2f %10.2f %7.3f %5.0f%% %8.*f %5.1f%%%*s  %s\n", k->op, k->rows,
               context, k->us_p50, k->us_p99, bandwidth * 1e-12,
               100 * share(bandwidth, result->read_bandwidth), digits, rate * 1e-12,
               100 * share(rate, result->gemm_flops), with_error ? 7 : 0, error, k->kernel);
    }
    printf("%s: read bandwidth %.3f TB/s", result->device, result->read_bandwidth * 1e-12);
    if (result->gemm_op)
        printf(", fastest GEMM %.*f TFLOP/s (%s, %u rows)", digits, result->gemm_flops * 1e-12,
               result->gemm_op, result->gemm_rows);
    printf("; %.1f s", result->seconds);
    if (result->skipped)
        printf("; %u cases skipped", result->skipped);
    printf("\n");
}

static void print_json(const struct kernels_options *options,
                       const struct rp_bench_kernels_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "kernels");
    rp_json_string(&json, "device", result->device);
    rp_json_string(&json, "shape", options->shape);
    rp_json_string(&json, "dtype", options->dtype ? "float32" : "bfloat16");
    rp_json_string(&json, "quantization",
                   rp_quant_scheme_name((enum rp_quant_scheme)options->quantization));
    rp_json_double(&json, "read_bandwidth_gb_per_second", result->read_bandwidth * 1e-9);
    rp_json_double(&json, "fastest_product_tflops", result->gemm_flops * 1e-12);
    rp_json_double(&json, "seconds", result->seconds);
    rp_json_uint(&json, "left_out", result->skipped);
    rp_json_array_begin(&json, "kernels");
    for (uint32_t i = 0; i < result->kernel_count; i++) {
        const struct rp_bench_kernel *k = &result->kernels[i];
        double seconds = k->us_p50 * 1e-6;
        rp_json_object_begin(&json, NULL);
        rp_json_string(&json, "op", k->op);
        rp_json_string(&json, "kernel", k->kernel);
        rp_json_uint(&json, "rows", k->rows);
        rp_json_uint(&json, "context", k->context);
        rp_json_uint(&json, "samples", k->samples);
        rp_json_uint(&json, "repeats", k->repeats);
        rp_json_double(&json, "us_p50", k->us_p50);
        rp_json_double(&json, "us_p99", k->us_p99);
        rp_json_double(&json, "bytes", k->bytes);
        rp_json_double(&json, "flops", k->flops);
        if (k->sqnr_db != 0)
            rp_json_double(&json, "sqnr_db", k->sqnr_db);
        rp_json_double(&json, "bandwidth_share",
                       share(share(k->bytes, seconds), result->read_bandwidth));
        rp_json_double(&json, "product_share", share(share(k->flops, seconds), result->gemm_flops));
        rp_json_object_end(&json);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

int rp_cmd_bench_kernels(int argc, char **argv) {
    static struct rp_bench_kernels_result result; /* large */
    const char *positionals[RP_POSITIONALS_MAX];
    struct kernels_options options = {0};
    uint32_t rows[LIST_MAX], contexts[LIST_MAX];
    struct rp_backend_selection selection;
    struct rp_error err = {0};
    int status = rp_flags_parse(&kernels_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_device_config device = {.threads = options.threads,
                                      .short_steps_here = true,
                                      .fast_numerics = options.numerics == 1,
                                      .no_dependent_launch = options.no_dependent_launch,
                                      .cache_dir = rp_stack_cache_dir()};
    struct rp_bench_kernels_config config = {.threads = options.threads,
                                             .shape = options.shape,
                                             .dtype = options.dtype ? RP_DTYPE_F32 : RP_DTYPE_BF16,
                                             .scheme = (enum rp_quant_scheme)options.quantization,
                                             .rows = rows,
                                             .contexts = contexts,
                                             .only = options.only,
                                             .cold_bytes = (uint64_t)options.cold_mb << 20,
                                             .seconds = options.seconds,
                                             .progress =
                                                 isatty(STDERR_FILENO) ? show_progress : NULL};
    status =
        rp_flag_list("rows", options.rows, 1, 1048576, rows, LIST_MAX, &config.row_count, &err);
    if (status == RP_OK)
        status = rp_flag_list("contexts", options.contexts, 1, 1048576, contexts, LIST_MAX,
                              &config.context_count, &err);
    bool quantized = config.scheme != RP_QUANT_NONE;
    bool with_error = quantized && !rp_quant_scheme_has_blocks(config.scheme);
    if (status == RP_OK && quantized && config.dtype == RP_DTYPE_F32)
        status =
            rp_error_set(&err, RP_STATUS_INVALID, "--quantization: it requires --dtype bfloat16");
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    status = rp_backend_select((enum rp_device_choice)options.device, &device, &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    config.backend = selection.backend;
    config.device = selection.device;
    status = rp_bench_kernels(&config, &result, &err);
    selection.backend->close(selection.device);
    if (config.progress)
        fprintf(stderr, "\r\033[K");
    if (status == RP_STATUS_NOT_FOUND)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (status != RP_OK) {
        print_table(&result, with_error); /* the cases measured before the error */
        return rp_fail(RP_EXIT_DEVICE, &err);
    }
    if (options.json)
        print_json(&options, &result);
    else
        print_table(&result, with_error);
    return RP_EXIT_OK;
}
