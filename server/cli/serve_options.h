/* serve_options.h - flags of `serve`, and of every command that creates an engine. Names are vLLM's
 * where the option is the same. */
#ifndef RP_SERVER_SERVE_OPTIONS_H
#define RP_SERVER_SERVE_OPTIONS_H

#include "server/cli/flags.h"

/* Index into the choices of --dtype (the first three) and --kv-cache-dtype. fp8_e4m3 is an alias of
 * fp8, as in vLLM. */
#define RP_KV_DTYPE_CHOICES "auto|float32|bfloat16|fp8|int8|fp8_e4m3"
enum rp_dtype_choice {
    RP_DTYPE_CHOICE_AUTO,
    RP_DTYPE_CHOICE_FLOAT32,
    RP_DTYPE_CHOICE_BFLOAT16,
    RP_DTYPE_CHOICE_FP8,
    RP_DTYPE_CHOICE_INT8,
    RP_DTYPE_CHOICE_FP8_E4M3
};

/* Options for creating an engine. */
struct rp_engine_options {
    uint32_t dtype, kv_cache_dtype; /* rp_dtype_choice */
    uint32_t device;                /* rp_device_choice of backend/module.h */
    uint32_t quantization;          /* enum rp_quant_scheme */
    bool quantize_head;
    uint32_t numerics; /* invariant|fast */
    uint32_t tensor_parallel_size;
    uint32_t max_model_len, max_num_seqs, max_num_batched_tokens, max_num_queued_reqs;
    uint32_t block_size, num_gpu_blocks_override, threads, run_ahead;
    uint64_t kv_cache_memory_bytes, state_snapshot_bytes;
    uint32_t state_snapshot_interval;
    double swap_space_gib; /* -1: from the free memory */
    double gpu_memory_utilization, watchdog_timeout_s;
    uint32_t mask_deadline_ms;
    const char *debug_fault, *debug_plant;
    uint32_t profile_every;
    bool enable_prefix_caching, enforce_eager, disable_fusion, nvtx;
    uint32_t kv_event_capacity; /* no flag: from --kv-events-config */
    const char *attention_mask; /* only for commands with RP_MASK_FLAGS */
    bool allow_noncausal;
    uint32_t random_weights; /* --load-format auto|dummy; only of serve, as is the next */
    double slo_itl_ms;
};

struct rp_serve_options {
    struct rp_engine_options engine;
    const char *host, *served_model_name, *api_key, *api_key_file, *admin_host, *chat_template;
    const char *tool_call_parser, *reasoning_parser;
    const char *uds, *allowed_origins, *allowed_hosts, *tls_cert, *tls_key;
    uint32_t port, admin_port, max_connections, key_limit;
    uint32_t sandbox;                  /* enum rp_sandbox_mode */
    uint32_t log_level;                /* enum rp_log_level */
    uint32_t trace_seconds, trace_mib; /* the flight recorder */
    const char *trace_dir;             /* automatic trace dumps */
    const char *cpu_affinity, *numa;
    uint32_t trace_dir_mib, trace_interval_s, trace_preemptions;
    double trace_dump_seconds, slow_step_factor;
    double shutdown_timeout_s, drain_delay_s, timeout_keep_alive_s, request_timeout_s,
        queue_timeout_s;
    double price_per_hour;
    const char *rapl_dir, *otlp_endpoint, *kv_events_config;
    double otlp_sample_ratio, otlp_interval_s;
    double slo_ttft_ms, slo_tpot_ms, slo_e2e_ms;
    const char *model_alias;
    uint64_t seed, responses_store_bytes;
    bool ollama;
    bool insecure_no_auth, metrics_on_main, vllm_metrics, core_dumps;
    bool enforce_tools;
    bool auto_tool_choice; /* no effect */
};

/* vllm_flags.c */
#define RP_VLLM_FLAGS 30
extern const struct rp_foreign_flag rp_vllm_flags[RP_VLLM_FLAGS];

/* The flags of the mask program, as rows for a command's table; base: as below. */
#define RP_MASK_FLAGS(base)                                                                        \
    RP_FLAG_ROW("attention-mask", TEXT, base, rp_engine_options, attention_mask, "EXPR|@FILE", 0,  \
                0, NULL,                                                                           \
                "attention mask program, instead of the model's own mask (docs/masks.md)"),        \
        RP_FLAG_ROW("allow-noncausal", SWITCH, base, rp_engine_options, allow_noncausal, NULL, 0,  \
                    0, NULL,                                                                       \
                    "allow a mask that attends to later positions: each prompt is then computed "  \
                    "in one step")

/* The flags of struct rp_engine_options, as rows for a command's table; base: offsetof the struct
 * in the command's options. */
#define RP_ENGINE_FLAGS(base)                                                                      \
    RP_FLAG_ROW(                                                                                   \
        "dtype", CHOICE, base, rp_engine_options, dtype, "auto|float32|bfloat16", 0, 0, "auto",    \
        "type of weights in memory; auto keeps bf16 and f32 files as they are, f16 becomes f32"),  \
        RP_FLAG_ROW("quantization", CHOICE, base, rp_engine_options, quantization,                 \
                    "none|int8|fp8|int8-w8a16|fp8-w8a16|int4|nvfp4|mxfp4", 0, 0, "none",           \
                    "layer weights in 8 or 4 bits; w8a16, 4 bits: activations stay bf16"),         \
        RP_FLAG_ROW("quantization-head", SWITCH, base, rp_engine_options, quantize_head, NULL, 0,  \
                    0, NULL,                                                                       \
                    "with --quantization: also the head; if it is tied, also the embedding"),      \
        RP_FLAG_ROW("kv-cache-dtype", CHOICE, base, rp_engine_options, kv_cache_dtype,             \
                    RP_KV_DTYPE_CHOICES, 0, 0, "auto",                                             \
                    "type of K and V in pages; auto: as the weights, or bfloat16; fp8, int8: a "   \
                    "scale per token and head"),                                                   \
        RP_FLAG_ROW("device", CHOICE, base, rp_engine_options, device, "auto|cpu|cuda", 0, 0,      \
                    "auto", "where to run; auto: a GPU when there is one"),                        \
        RP_FLAG_ROW("tensor-parallel-size", UINT, base, rp_engine_options, tensor_parallel_size,   \
                    "1|2|4|8", 1, 8, "1",                                                          \
                    "devices that the weights and the KV pool are divided among (also -tp); on "   \
                    "the CPU, groups of workers"),                                                 \
        RP_FLAG_ROW("nvtx", SWITCH, base, rp_engine_options, nvtx, NULL, 0, 0, NULL,               \
                    "CUDA: NVTX ranges around captures, launches and waits, for Nsight"),          \
        RP_FLAG_ROW("numerics", CHOICE, base, rp_engine_options, numerics, "invariant|fast", 0, 0, \
                    "invariant",                                                                   \
                    "invariant: a request's answer does not depend on the others; fast: the "      \
                    "fastest kernels"),                                                            \
        RP_FLAG_ROW("max-model-len", UINT, base, rp_engine_options, max_model_len, "N", 0,         \
                    16777216, "0",                                                                 \
                    "tokens of prompt and answer together; 0: the model's, as memory allows"),     \
        RP_FLAG_ROW("max-num-seqs", UINT, base, rp_engine_options, max_num_seqs, "N", 0, 4096,     \
                    "0", "maximum running sequences; 0: 64 on the CPU, 256 on a GPU"),             \
        RP_FLAG_ROW("max-num-batched-tokens", UINT, base, rp_engine_options,                       \
                    max_num_batched_tokens, "N", 0, 65536, "0",                                    \
                    "tokens of the largest step, at least 16; 0: 512 on the CPU, 2048 on a GPU, "  \
                    "8192 on one of 64 GiB or more"),                                              \
        RP_FLAG_ROW("max-num-queued-reqs", UINT, base, rp_engine_options, max_num_queued_reqs,     \
                    "N", 1, 65536, "1024", "waiting requests before answering 429"),               \
        RP_FLAG_ROW("block-size", UINT, base, rp_engine_options, block_size, "N", 0, 256, "0",     \
                    "tokens per KV page, a power of two; 0: the device's default"),                \
        RP_FLAG_ROW("num-gpu-blocks-override", UINT, base, rp_engine_options,                      \
                    num_gpu_blocks_override, "N", 0, 1073741824, "0",                              \
                    "pages of the KV pool; 0: from free memory"),                                  \
        RP_FLAG_ROW("kv-cache-memory-bytes", SIZE, base, rp_engine_options, kv_cache_memory_bytes, \
                    "SIZE", 0, 1e15, "0", "bytes of the KV pool (K, M, G); 0: from free memory"),  \
        RP_FLAG_ROW("gpu-memory-utilization", REAL, base, rp_engine_options,                       \
                    gpu_memory_utilization, "SHARE", 0.01, 1, "0.92",                              \
                    "share of GPU memory that may be in use, by all processes together"),          \
        RP_FLAG_ROW("swap-space", REAL, base, rp_engine_options, swap_space_gib, "GIB", -1, 65536, \
                    "-1",                                                                          \
                    "GiB of host memory for sequences that are swapped out; -1: at most 4, and "   \
                    "at most a quarter of what is free"),                                          \
        RP_FLAG_ROW("enable-prefix-caching", SWITCH, base, rp_engine_options,                      \
                    enable_prefix_caching, NULL, 0, 0, "true",                                     \
                    "reuse KV pages of equal prompt prefixes"),                                    \
        RP_FLAG_ROW("state-snapshot-memory-bytes", SIZE, base, rp_engine_options,                  \
                    state_snapshot_bytes, "SIZE", 0, 1e15, "0",                                    \
                    "models with recurrent state: bytes of the snapshots that prefix caching "     \
                    "keeps (K, M, G); 0: two for each sequence, as memory allows"),                \
        RP_FLAG_ROW("state-snapshot-interval", UINT, base, rp_engine_options,                      \
                    state_snapshot_interval, "N", 1, 16777216, "2048",                             \
                    "tokens between snapshots of a long prompt or answer, rounded up to a "        \
                    "multiple of 64; one more is kept near the end of each prompt"),               \
        RP_FLAG_ROW("run-ahead", UINT, base, rp_engine_options, run_ahead, "0|1", 0, 1, "1",       \
                    "launch a step before the previous one was read"),                             \
        RP_FLAG_ROW("enforce-eager", SWITCH, base, rp_engine_options, enforce_eager, NULL, 0, 0,   \
                    NULL,                                                                          \
                    "launch every kernel of a step individually instead of replaying graphs"),     \
        RP_FLAG_ROW("disable-fusion", SWITCH, base, rp_engine_options, disable_fusion, NULL, 0, 0, \
                    NULL, "run one kernel per operator"),                                          \
        RP_FLAG_ROW(                                                                               \
            "watchdog-timeout", REAL, base, rp_engine_options, watchdog_timeout_s, "SECONDS", 0,   \
            86400, "30",                                                                           \
            "a device that makes no progress in a step for this long has failed; 0: never"),       \
        RP_FLAG_ROW("mask-deadline-ms", UINT, base, rp_engine_options, mask_deadline_ms, "MS", 1,  \
                    3600000, "200",                                                                \
                    "how long a step waits for a grammar's mask after its forward pass; an "       \
                    "answer whose mask is late ends with an error"),                               \
        RP_FLAG_ROW("profile-every", UINT, base, rp_engine_options, profile_every, "N", 0,         \
                    1000000000, "64",                                                              \
                    "time every kernel of one step in N, for /debug/profile; 0: only on request"), \
        RP_FLAG_ROW("debug-fault", TEXT, base, rp_engine_options, debug_fault,                     \
                    "illegal_address|trap|hang@STEP", 0, 0, NULL, NULL),                           \
        RP_FLAG_ROW("debug-plant", TEXT, base, rp_engine_options, debug_plant,                     \
                    "node|allocation|slow:SHARE", 0, 0, NULL, NULL),                               \
        RP_FLAG_ROW("threads", UINT, base, rp_engine_options, threads, "N", 0, 1024, "0",          \
                    "CPU workers; 0: one per core")

/* The command `serve`. */
extern const struct rp_command_spec rp_serve_spec;

#endif
