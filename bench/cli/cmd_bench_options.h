/* cmd_bench_options.h - shared by the benchmarks of a whole model (decode, step, prefill): flags,
 * and the report of the engine's startup. Thread: one. */
#ifndef RP_SERVER_CMD_BENCH_OPTIONS_H
#define RP_SERVER_CMD_BENCH_OPTIONS_H

#include "backend/module.h"
#include "base/json_writer.h"
#include "bench/quant_error.h"
#include "server/cli/flags.h"

#define RP_BENCH_LIST_MAX 16u

struct rp_bench_options {
    const char *shape, *model;
    uint32_t quantization;
    bool quantize_head;
    uint32_t dtype, kv_cache_dtype, device, numerics, threads, tensor_parallel_size;
    uint32_t run_ahead; /* not in RP_BENCH_FLAGS: only an engine has it */
    bool enforce_eager, disable_fusion, no_dependent_launch, json;
};

/* The flags of struct rp_bench_options as rows of a command's table; base: offsetof the struct in
 * the command's options. */
#define RP_BENCH_FLAGS(base)                                                                       \
    RP_FLAG_ROW("shape", TEXT, base, rp_bench_options, shape, "NAME", 0, 0, "llama-3.2-1b",        \
                "model shape with random weights (an unknown name lists the known ones)"),         \
        RP_FLAG_ROW("model", TEXT, base, rp_bench_options, model, "DIR", 0, 0, "",                 \
                    "model directory, instead of a shape with random weights"),                    \
        RP_FLAG_ROW("dtype", CHOICE, base, rp_bench_options, dtype, "bfloat16|float32", 0, 0,      \
                    "bfloat16", "type of weights and KV pages"),                                   \
        RP_FLAG_ROW(                                                                               \
            "kv-cache-dtype", CHOICE, base, rp_bench_options, kv_cache_dtype, "auto|fp8|int8", 0,  \
            0, "auto",                                                                             \
            "type of K and V in pages; auto: as --dtype; fp8, int8: a scale per token and head"),  \
        RP_FLAG_ROW("quantization", CHOICE, base, rp_bench_options, quantization,                  \
                    "none|int8|fp8|int8-w8a16|fp8-w8a16|int4|nvfp4|mxfp4", 0, 0, "none",           \
                    "layer weights in 8 or 4 bits; w8a16, 4 bits: activations stay bf16"),         \
        RP_FLAG_ROW("quantization-head", SWITCH, base, rp_bench_options, quantize_head, NULL, 0,   \
                    0, NULL,                                                                       \
                    "with --quantization: also the head; if it is tied, also the embedding"),      \
        RP_FLAG_ROW("device", CHOICE, base, rp_bench_options, device, "auto|cpu|cuda", 0, 0,       \
                    "auto", "where to run; auto: a GPU when there is one"),                        \
        RP_FLAG_ROW("numerics", CHOICE, base, rp_bench_options, numerics, "invariant|fast", 0, 0,  \
                    "invariant", "fast: kernels whose results may depend on the batch"),           \
        RP_FLAG_ROW("threads", UINT, base, rp_bench_options, threads, "N", 0, 1024, "0",           \
                    "CPU workers; 0: one per core"),                                               \
        RP_FLAG_ROW("tensor-parallel-size", UINT, base, rp_bench_options, tensor_parallel_size,    \
                    "N", 1, 8, "1", "ranks that share the model: GPUs, or parts of the workers"),  \
        RP_FLAG_ROW("enforce-eager", SWITCH, base, rp_bench_options, enforce_eager, NULL, 0, 0,    \
                    NULL, "no replay"),                                                            \
        RP_FLAG_ROW("disable-fusion", SWITCH, base, rp_bench_options, disable_fusion, NULL, 0, 0,  \
                    NULL, "run one kernel per operator"),                                          \
        RP_FLAG_ROW("no-dependent-launch", SWITCH, base, rp_bench_options, no_dependent_launch,    \
                    NULL, 0, 0, NULL,                                                              \
                    "CUDA: plain graph edges, no programmatic dependent launch"),                  \
        RP_FLAG_ROW("json", SWITCH, base, rp_bench_options, json, NULL, 0, 0, NULL,                \
                    "print one JSON array")

/* Page type chosen by --kv-cache-dtype; `dtype` is that of --dtype. */
enum rp_dtype rp_bench_kv_dtype(uint32_t choice, enum rp_dtype dtype);
/* Everything but the device. */
struct rp_bench_target rp_bench_options_target(const struct rp_bench_options *options);

/* Output of result rows, each written when it is complete. */
struct rp_bench_output {
    const struct rp_bench_options *options;
    uint32_t rows; /* rows written so far */
    struct rp_quant_error error;
};

/* Prints the error of 8-bit weights; nothing when there are none. */
void rp_bench_print_error(const struct rp_quant_error *error);
void rp_bench_write_error(struct rp_json *json, const struct rp_quant_error *error);

/* Begins the JSON object of a row: the configuration, and the engine's startup. */
void rp_bench_row_begin(struct rp_bench_output *output, struct rp_json *json, struct rp_buffer *out,
                        const char *bench, const struct rp_bench_ready *ready);
void rp_bench_row_end(struct rp_bench_output *output, struct rp_json *json, struct rp_buffer *out);
/* For the table, before the first row: model, device, and startup times. */
void rp_bench_print_ready(const struct rp_bench_output *output, const struct rp_bench_ready *ready);
/* After the last row: prints the end, or the error; returns the exit code. */
int rp_bench_finish(const struct rp_bench_output *output, int status, const struct rp_error *err);

#endif
