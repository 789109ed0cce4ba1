#include "bench/cli/cmd_bench_options.h"

#include "engine/memory_plan.h"
#include "server/cli/cmd_stack.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static const char *dtype_name(const struct rp_bench_options *options) {
    return options->dtype ? "float32" : "bfloat16";
}

enum rp_dtype rp_bench_kv_dtype(uint32_t choice, enum rp_dtype dtype) {
    return choice == 0 ? dtype : choice == 1 ? RP_DTYPE_FP8_E4M3 : RP_DTYPE_INT8;
}

struct rp_bench_target rp_bench_options_target(const struct rp_bench_options *options) {
    enum rp_dtype dtype = options->dtype ? RP_DTYPE_F32 : RP_DTYPE_BF16;
    return (struct rp_bench_target){
        .device = {.ranks = options->tensor_parallel_size,
                   .threads = options->threads,
                   .short_steps_here = true,
                   .fast_numerics = options->numerics == 1,
                   .no_dependent_launch = options->no_dependent_launch,
                   .cache_dir = rp_stack_cache_dir()},
        .shape = options->shape,
        .dir = *options->model ? options->model : NULL,
        .dtype = dtype,
        .kv_dtype = rp_bench_kv_dtype(options->kv_cache_dtype, dtype),
        .quantization = {(enum rp_quant_scheme)options->quantization, options->quantize_head},
        .run_ahead = options->run_ahead != 0,
        .enforce_eager = options->enforce_eager,
        .no_fusion = options->disable_fusion};
}

void rp_bench_row_begin(struct rp_bench_output *output, struct rp_json *json, struct rp_buffer *out,
                        const char *bench, const struct rp_bench_ready *ready) {
    const struct rp_bench_options *options = output->options;
    rp_buffer_init(out, 0);
    rp_json_init(json, out);
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "bench", bench);
    rp_json_string(json, "device", ready->device);
    if (*options->model)
        rp_json_string(json, "model", options->model);
    else
        rp_json_string(json, "shape", options->shape);
    rp_json_string(json, "dtype", dtype_name(options));
    rp_json_string(json, "quantization",
                   rp_quant_scheme_name((enum rp_quant_scheme)options->quantization));
    rp_json_string(json, "kv_cache_dtype",
                   rp_dtype_name(rp_bench_options_target(options).kv_dtype));
    rp_json_string(json, "numerics", options->numerics ? "fast" : "invariant");
    rp_json_bool(json, "run_ahead", options->run_ahead != 0);
    rp_json_bool(json, "eager", options->enforce_eager);
    rp_json_bool(json, "fusion", !options->disable_fusion);
    rp_json_bool(json, "dependent_launch", !options->no_dependent_launch);
    rp_bench_write_error(json, &output->error);
    rp_json_object_begin(json, "ready");
    rp_json_double(json, "seconds", ready->seconds);
    rp_json_double(json, "weights_seconds", ready->model_seconds);
    rp_json_uint(json, "graphs", ready->graphs);
    rp_json_uint(json, "graphs_failed", ready->graphs_failed);
    rp_json_double(json, "capture_ms", ready->capture_ms);
    rp_json_double(json, "capture_ms_median", ready->capture_ms_median);
    rp_json_double(json, "capture_ms_largest", ready->capture_ms_largest);
    rp_json_uint(json, "arena_bytes", ready->arena_bytes);
    rp_json_uint(json, "graph_device_bytes", ready->graph_bytes);
    rp_json_uint(json, "graph_host_bytes", ready->argument_bytes);
    rp_json_uint(json, "kv_tokens", ready->kv_tokens);
    rp_json_object_end(json);
}

void rp_bench_row_end(struct rp_bench_output *output, struct rp_json *json, struct rp_buffer *out) {
    rp_json_object_end(json);
    printf("%s%.*s", output->rows++ ? ",\n" : "[", (int)out->len, out->data);
    fflush(stdout);
    rp_buffer_deinit(out);
}

void rp_bench_print_ready(const struct rp_bench_output *output,
                          const struct rp_bench_ready *ready) {
    const struct rp_bench_options *options = output->options;
    char arena[16], device[16], each[16], host[16];
    double graphs = ready->graphs ? ready->graphs : 1;
    rp_format_bytes((double)ready->arena_bytes, arena);
    rp_format_bytes((double)ready->graph_bytes, device);
    rp_format_bytes((double)ready->graph_bytes / graphs, each);
    rp_format_bytes((double)ready->argument_bytes, host);
    printf("%s, %s, %s, %s numerics%s%s%s\n", ready->device,
           *options->model ? options->model : options->shape, dtype_name(options),
           options->numerics ? "fast" : "invariant", options->enforce_eager ? ", eager" : "",
           options->disable_fusion ? ", no fusion" : "",
           options->no_dependent_launch ? ", no dependent launch" : "");
    printf("ready after %.2f s, of which %.2f s for the weights; %u graphs captured in %.1f ms "
           "(median "
           "%.2f, largest %.2f)",
           ready->seconds, ready->model_seconds, ready->graphs, ready->capture_ms,
           ready->capture_ms_median, ready->capture_ms_largest);
    if (ready->graphs_failed)
        printf(", %u failed", ready->graphs_failed);
    printf("\nactivations %s, shared by all graphs; graphs ", arena);
    if (ready->graph_bytes)
        printf("%s on the device (%s each, including kernels), ", device, each);
    printf("%s on the host; KV pool of %llu tokens\n", host, (unsigned long long)ready->kv_tokens);
    rp_bench_print_error(&output->error);
}

static const char *error_against(const struct rp_quant_error *error) {
    return error->against == RP_DTYPE_F32 ? "float32" : "bfloat16";
}

void rp_bench_print_error(const struct rp_quant_error *error) {
    if (error->tokens)
        printf("logits against %s, %u random tokens: cosine %.5f mean, %.5f min; KL %.3g; same "
               "top token %.1f %%\n",
               error_against(error), error->tokens, error->cosine_mean, error->cosine_min,
               error->kl_mean, 100.0 * error->top1_share);
}

void rp_bench_write_error(struct rp_json *json, const struct rp_quant_error *error) {
    if (!error->tokens)
        return;
    rp_json_object_begin(json, "error");
    rp_json_string(json, "against", error_against(error));
    rp_json_uint(json, "tokens", error->tokens);
    rp_json_double(json, "cosine_mean", error->cosine_mean);
    rp_json_double(json, "cosine_min", error->cosine_min);
    rp_json_double(json, "kl_mean", error->kl_mean);
    rp_json_double(json, "top1_agreement", error->top1_share);
    rp_json_object_end(json);
}

int rp_bench_finish(const struct rp_bench_output *output, int status, const struct rp_error *err) {
    if (output->options->json && (output->rows || status == RP_OK))
        printf("%s]\n", output->rows ? "" : "[");
    if (status == RP_OK)
        return RP_EXIT_OK;
    fflush(stdout);
    return rp_fail(status == RP_STATUS_NOT_FOUND && !*output->options->model
                       ? RP_EXIT_USAGE
                       : rp_stack_exit_code(status),
                   err);
}
