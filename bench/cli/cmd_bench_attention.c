/* reprise bench attention: times attention by kind, batch, length, heads, page size and mask;
 * prints a table or JSON. */
#include "attention/mask/mask.h"
#include "backend/module.h"
#include "base/json_writer.h"
#include "bench/bench_attention.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIST_MAX 16u

struct attention_options {
    const char *batches, *lengths, *mask, *dump;
    uint32_t kind, device, dtype, pages, numerics, threads, cold_mb, page, window;
    uint32_t heads, kv_heads, head_dim;
    double seconds, case_seconds, soft_cap;
    bool json, no_dependent_launch;
};

#define AT(field) offsetof(struct attention_options, field)

enum { KIND_SET, KIND_DECODE, KIND_PREFILL };

static const struct rp_flag attention_flags[] = {
    {"kind", RP_FLAG_CHOICE, AT(kind), "set|decode|prefill", 0, 0, "set",
     "decode or prefill of every batch and length; set: eight reference shapes"},
    {"batch", RP_FLAG_TEXT, AT(batches), "N,N,...", 0, 0, "1", "sequences"},
    {"length", RP_FLAG_TEXT, AT(lengths), "N,N,...", 0, 0, "4096",
     "tokens of each sequence; decode: including the query's token"},
    {"heads", RP_FLAG_UINT, AT(heads), "N", 1, 1024, "32", "query heads"},
    {"kv-heads", RP_FLAG_UINT, AT(kv_heads), "N", 1, 1024, "8", "KV heads"},
    {"head-dim", RP_FLAG_UINT, AT(head_dim), "N", 1, 256, "128", "columns of a head"},
    {"page", RP_FLAG_UINT, AT(page), "N", 0, 1024, "0",
     "tokens per KV page, a power of two; 0: the device's default"},
    {"window", RP_FLAG_UINT, AT(window), "N", 0, 16777216, "0",
     "a token attends to itself and the N - 1 before it; 0: to all"},
    {"soft-cap", RP_FLAG_REAL, AT(soft_cap), "X", 0, 1e6, "0",
     "scores become X * tanh(score / X); 0: unchanged"},
    {"mask", RP_FLAG_TEXT, AT(mask), "PROGRAM", 0, 0, "",
     "a mask program for every shape, instead of --window and --soft-cap; its parameters have "
     "their "
     "default values"},
    {"dtype", RP_FLAG_CHOICE, AT(dtype), "bfloat16|float32", 0, 0, "bfloat16",
     "type of KV pages and output"},
    {"page-dtype", RP_FLAG_CHOICE, AT(pages), "auto|int8|fp8", 0, 0, "auto",
     "type of KV pages alone; auto: --dtype"},
    {"device", RP_FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, "auto", "where to run"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "S", 1, 3600, "28",
     "approximate time limit; shapes that do not fit are skipped"},
    {"case-seconds", RP_FLAG_REAL, AT(case_seconds), "S", 0, 600, "0.6", "time limit per shape"},
    {"cold-mb", RP_FLAG_UINT, AT(cold_mb), "MB", 0, 65536, "0",
     "rotate among copies of the pages of this total size; 0: 512"},
    {"threads", RP_FLAG_UINT, AT(threads), "N", 0, 1024, "0", "CPU workers; 0: one per core"},
    {"numerics", RP_FLAG_CHOICE, AT(numerics), "invariant|fast", 0, 0, "invariant",
     "fast: kernels whose results may depend on the batch"},
    {"no-dependent-launch", RP_FLAG_SWITCH, AT(no_dependent_launch), NULL, 0, 0, NULL,
     "CUDA: plain graph edges, no programmatic dependent launch"},
    {"dump", RP_FLAG_TEXT, AT(dump), "DIR", 0, 0, "",
     "instead of timing, write q, k, v and the output of every shape to files in this directory"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
};

static const struct rp_command_spec attention_spec = {
    .name = "bench attention",
    .positionals = "",
    .summary =
        "Time of attention with K and V read from memory: bytes of K and V read under the mask "
        "and\n"
        "their share of the read bandwidth, operations on unmasked pairs and their share of the "
        "rate\n"
        "of a large GEMM, all measured in the same run. The start of a step (its packet and the\n"
        "attention plan, once for all layers) is reported separately: start us.",
    .flags = attention_flags,
    .flag_count = RP_ARRAY_COUNT(attention_flags),
};

static void show_progress(void *ctx, const struct rp_attention_shape *shape) {
    (void)ctx;
    fprintf(stderr, "\r\033[K%s, %u x %u", shape->prompt ? "prefill" : "decode", shape->batch,
            shape->length);
}

static const char *const page_types[] = {"auto", "int8", "fp8"};

static double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

static void print_table(const struct rp_bench_attention_result *result) {
    /* Digits depend on the magnitude, which differs between a CPU and a GPU. */
    int digits = result->gemm_flops < 1e13 ? 3 : 1, tera = result->read_bandwidth < 1e12 ? 4 : 3;
    printf("%-7s %5s %6s %-9s %4s %10s %10s %10s %8s %7s %6s %8s %6s  %-36s %s\n", "kind", "batch",
           "length", "heads", "page", "us", "us min", "us p99", "start us", "TB/s", "share",
           "TFLOP/s", "share", "mask", "kernel");
    for (uint32_t i = 0; i < result->case_count; i++) {
        const struct rp_bench_attention *c = &result->cases[i];
        const struct rp_attention_shape *shape = &c->shape;
        double seconds = c->us_p50 * 1e-6;
        double bandwidth = share(c->bytes, seconds), rate = share(c->flops, seconds);
        char heads[32], mask[RP_ATTENTION_MASK_TEXT_MAX];
        snprintf(heads, sizeof heads, "%u/%ux%u", shape->heads, shape->kv_heads, shape->head_dim);
        printf("%-7s %5u %6u %-9s %4u %10.2f %10.2f %10.2f %8.2f %7.*f %5.1f%% %8.*f %5.1f%%  "
               "%-36s %s\n",
               shape->prompt ? "prefill" : "decode", shape->batch, shape->length, heads,
               shape->page_tokens, c->us_p50, c->us_min, c->us_p99, c->start_us, tera,
               bandwidth * 1e-12, 100 * share(bandwidth, result->read_bandwidth), digits,
               rate * 1e-12, 100 * share(rate, result->gemm_flops),
               rp_attention_shape_mask(shape, mask), c->kernel);
    }
    printf("%s: read bandwidth %.*f TB/s, large GEMM %.*f TFLOP/s; %.1f s", result->device, tera,
           result->read_bandwidth * 1e-12, digits, result->gemm_flops * 1e-12, result->seconds);
    if (result->skipped)
        printf("; %u shapes skipped", result->skipped);
    printf("\n");
}

static void print_json(const struct attention_options *options,
                       const struct rp_bench_attention_result *result) {
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "attention");
    rp_json_string(&json, "device", result->device);
    rp_json_string(&json, "dtype", options->dtype ? "float32" : "bfloat16");
    rp_json_string(&json, "page_dtype", page_types[options->pages]);
    rp_json_double(&json, "read_bandwidth_gb_per_second", result->read_bandwidth * 1e-9);
    rp_json_double(&json, "product_tflops", result->gemm_flops * 1e-12);
    rp_json_double(&json, "seconds", result->seconds);
    rp_json_uint(&json, "left_out", result->skipped);
    rp_json_array_begin(&json, "cases");
    for (uint32_t i = 0; i < result->case_count; i++) {
        const struct rp_bench_attention *c = &result->cases[i];
        double seconds = c->us_p50 * 1e-6;
        rp_json_object_begin(&json, NULL);
        rp_attention_shape_json(&c->shape, &json);
        rp_json_string(&json, "kernel", c->kernel);
        rp_json_uint(&json, "samples", c->samples);
        rp_json_uint(&json, "repeats", c->repeats);
        rp_json_uint(&json, "copies", c->copies);
        rp_json_double(&json, "us_p50", c->us_p50);
        rp_json_double(&json, "us_min", c->us_min);
        rp_json_double(&json, "us_p99", c->us_p99);
        rp_json_double(&json, "start_us", c->start_us);
        rp_json_double(&json, "bytes", c->bytes);
        rp_json_double(&json, "flops", c->flops);
        rp_json_double(&json, "bandwidth_share",
                       share(share(c->bytes, seconds), result->read_bandwidth));
        rp_json_double(&json, "product_share", share(share(c->flops, seconds), result->gemm_flops));
        rp_json_object_end(&json);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static struct rp_attention_shape make_shape(const struct attention_options *options, bool prompt,
                                            uint32_t batch, uint32_t length) {
    return (struct rp_attention_shape){.prompt = prompt,
                                       .batch = batch,
                                       .length = length,
                                       .heads = options->heads,
                                       .kv_heads = options->kv_heads,
                                       .head_dim = options->head_dim,
                                       .page_tokens = options->page,
                                       .window = options->window,
                                       .soft_cap = (float)options->soft_cap};
}

/* The eight reference shapes, with the requested heads and page size. */
static uint32_t list_set(const struct attention_options *options, struct rp_attention_shape *out) {
    static const struct {
        bool prompt;
        uint32_t batch, length, window;
        float soft_cap;
    } set[] = {{false, 32, 4096, 0, 0},   {false, 128, 2048, 0, 0}, {false, 1, 8192, 0, 0},
               {false, 1, 32768, 0, 0},   {true, 1, 8192, 0, 0},    {true, 1, 16384, 0, 0},
               {true, 1, 16384, 1024, 0}, {true, 1, 8192, 0, 50.0f}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(set); i++) {
        out[i] = make_shape(options, set[i].prompt, set[i].batch, set[i].length);
        out[i].window = set[i].window;
        out[i].soft_cap = set[i].soft_cap;
    }
    return RP_ARRAY_COUNT(set);
}

static int list_shapes(const struct attention_options *options, struct rp_attention_shape *out,
                       uint32_t *count, struct rp_error *err) {
    uint32_t batches[LIST_MAX], lengths[LIST_MAX], batch_count, length_count;
    *count = 0;
    if (options->heads % options->kv_heads != 0)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--heads: %u is not a multiple of --kv-heads %u", options->heads,
                            options->kv_heads);
    if (options->pages && *options->dump)
        return rp_error_set(err, RP_STATUS_INVALID, "--dump: not with --page-dtype");
    if (options->page & (options->page - 1))
        return rp_error_set(err, RP_STATUS_INVALID, "--page: %u is not a power of two",
                            options->page);
    if (options->kind == KIND_SET) {
        *count = list_set(options, out);
        return RP_OK;
    }
    int status =
        rp_flag_list("batch", options->batches, 1, 65536, batches, LIST_MAX, &batch_count, err);
    if (status == RP_OK)
        status = rp_flag_list("length", options->lengths, 1, 16777216, lengths, LIST_MAX,
                              &length_count, err);
    if (status != RP_OK)
        return status;
    if (batch_count * length_count > RP_BENCH_ATTENTION_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "more than %u shapes", RP_BENCH_ATTENTION_MAX);
    for (uint32_t b = 0; b < batch_count; b++)
        for (uint32_t l = 0; l < length_count; l++)
            out[(*count)++] =
                make_shape(options, options->kind == KIND_PREFILL, batches[b], lengths[l]);
    return RP_OK;
}

/* Parses --mask for all shapes. The caller owns *out, which is NULL for a mask that is only a
 * window and a soft cap. */
static int open_mask(const struct attention_options *options, struct rp_attention_shape *shapes,
                     uint32_t count, struct rp_mask **out, struct rp_error *err) {
    struct rp_mask_limits limits = {.heads = options->heads, .layers = 1};
    struct rp_mask *mask = NULL;
    uint32_t window;
    float cap;
    *out = NULL;
    if (!*options->mask)
        return RP_OK;
    for (uint32_t i = 0; i < count; i++)
        limits.length = RP_MAX(limits.length, shapes[i].length);
    int status = rp_mask_parse(options->mask, strlen(options->mask), &limits, &mask, err);
    if (status == RP_OK)
        status = rp_mask_at_layer(mask, 0, out, err);
    rp_mask_free(mask);
    if (status != RP_OK)
        return status;
    bool plain = rp_mask_is_plain(*out, &window, &cap);
    for (uint32_t i = 0; i < count; i++) {
        shapes[i].window = plain ? window : 0;
        shapes[i].soft_cap = plain ? cap : 0;
        shapes[i].mask = plain ? NULL : *out;
    }
    return RP_OK;
}

static void print_result(const struct attention_options *options,
                         const struct rp_bench_attention_result *result) {
    if (*options->dump)
        printf("%u shapes in %s\n", result->case_count, options->dump);
    else if (options->json)
        print_json(options, result);
    else
        print_table(result);
}

static int run(const struct attention_options *options, struct rp_bench_attention_config *config,
               struct rp_bench_attention_result *result) {
    struct rp_device_config device = {.threads = options->threads,
                                      .short_steps_here = true,
                                      .fast_numerics = options->numerics == 1,
                                      .no_dependent_launch = options->no_dependent_launch,
                                      .cache_dir = rp_stack_cache_dir()};
    struct rp_backend_selection selection;
    struct rp_error err = {0};
    int status =
        rp_backend_select((enum rp_device_choice)options->device, &device, &selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    config->backend = selection.backend;
    config->device = selection.device;
    status = rp_bench_attention(config, result, &err);
    selection.backend->close(selection.device);
    if (config->progress)
        fprintf(stderr, "\r\033[K");
    if (status == RP_OK || result->case_count)
        print_result(options, result); /* after an error: the shapes measured before it */
    fflush(stdout);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_DEVICE, &err);
}

int rp_cmd_bench_attention(int argc, char **argv) {
    static struct rp_bench_attention_result result; /* large */
    static struct rp_attention_shape shapes[RP_BENCH_ATTENTION_MAX];
    static const enum rp_dtype pages[] = {RP_DTYPE_F32, RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};
    const char *positionals[RP_POSITIONALS_MAX];
    struct attention_options options = {0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&attention_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_bench_attention_config config = {
        .threads = options.threads,
        .dtype = options.dtype ? RP_DTYPE_F32 : RP_DTYPE_BF16,
        .quantized = pages[options.pages],
        .shapes = shapes,
        .cold_bytes = (uint64_t)options.cold_mb << 20,
        .case_seconds = options.case_seconds,
        .seconds = options.seconds,
        .dump_dir = *options.dump ? options.dump : NULL,
        .progress = isatty(STDERR_FILENO) ? show_progress : NULL};
    struct rp_mask *mask = NULL;
    status = list_shapes(&options, shapes, &config.shape_count, &err);
    if (status == RP_OK)
        status = open_mask(&options, shapes, config.shape_count, &mask, &err);
    int code = status == RP_OK ? run(&options, &config, &result) : rp_fail(RP_EXIT_USAGE, &err);
    rp_mask_free(mask);
    return code;
}
