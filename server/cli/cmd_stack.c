#include "server/cli/cmd_stack.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct progress {
    bool shown, on_terminal, line_open;
    uint64_t next_ns;
    uint64_t weights_ns; /* time at which the weights were on the device */
    char stage[16];
};

struct rp_model_quantization rp_stack_quantization(const struct rp_engine_options *options) {
    return (struct rp_model_quantization){(enum rp_quant_scheme)options->quantization,
                                          options->quantize_head};
}

enum rp_dtype rp_stack_dtype(uint32_t choice) {
    static const enum rp_dtype types[] = {[RP_DTYPE_CHOICE_AUTO] = RP_MODEL_DTYPE_AUTO,
                                          [RP_DTYPE_CHOICE_FLOAT32] = RP_DTYPE_F32,
                                          [RP_DTYPE_CHOICE_BFLOAT16] = RP_DTYPE_BF16,
                                          [RP_DTYPE_CHOICE_FP8] = RP_DTYPE_FP8_E4M3,
                                          [RP_DTYPE_CHOICE_INT8] = RP_DTYPE_INT8,
                                          [RP_DTYPE_CHOICE_FP8_E4M3] = RP_DTYPE_FP8_E4M3};
    RP_ASSERT(choice < RP_ARRAY_COUNT(types));
    return types[choice];
}

const char *rp_stack_cache_dir(void) {
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"REPRISE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/reprise"}, {"HOME", "/.cache/reprise"}};
    static char path[512];
    for (size_t i = 0; i < RP_ARRAY_COUNT(places); i++) {
        const char *value = getenv(places[i].variable);
        if (!value || (i > 0 && !*value))
            continue;
        int len = snprintf(path, sizeof path, "%s%s", value, places[i].below);
        return len > 0 && (size_t)len < sizeof path ? path : NULL;
    }
    return NULL;
}

/* Parses --debug-plant: a comma-separated list of node, allocation and slow:SHARE; false:
 * invalid. */
static bool parse_plants(const char *text, struct rp_engine_config *out) {
    while (*text) {
        size_t len = strcspn(text, ",");
        char *end = NULL;
        if (len == 4 && strncmp(text, "node", len) == 0)
            out->plant_node = true;
        else if (len == 10 && strncmp(text, "allocation", len) == 0)
            out->plant_allocation = true;
        else if (len > 5 && strncmp(text, "slow:", 5) == 0 &&
                 (out->device.slow_share = strtod(text + 5, &end), end == text + len) &&
                 out->device.slow_share > 0.0 && out->device.slow_share <= 100.0)
            ;
        else
            return false;
        text += len + (text[len] == ',');
    }
    return true;
}

static struct rp_device_config device_config(const struct rp_engine_options *options) {
    struct rp_engine_config plants = {.plant_node = false};
    if (options->debug_plant)
        (void)parse_plants(options->debug_plant, &plants); /* validated with the options */
    return (struct rp_device_config){.ranks = options->tensor_parallel_size,
                                     .threads = options->threads,
                                     .short_steps_here = true,
                                     .fast_numerics = options->numerics == 1,
                                     .nvtx = options->nvtx,
                                     .cache_dir = rp_stack_cache_dir(),
                                     .slow_share = plants.device.slow_share};
}

int rp_stack_select(const struct rp_engine_options *options, struct rp_backend_selection *out,
                    struct rp_error *err) {
    const struct rp_device_config config = device_config(options);
    return rp_backend_select((enum rp_device_choice)options->device, &config, out, err);
}

/* Parses --debug-fault, KIND@STEP; false: invalid. */
static bool parse_fault(const char *text, struct rp_engine_config *out) {
    static const char *const kinds[] = {[RP_DEVICE_FAULT_ILLEGAL_ADDRESS] = "illegal_address",
                                        [RP_DEVICE_FAULT_TRAP] = "trap",
                                        [RP_DEVICE_FAULT_HANG] = "hang"};
    const char *at = strchr(text, '@');
    char *end = NULL;
    for (size_t i = 0; at && i < RP_ARRAY_COUNT(kinds); i++) {
        if (strlen(kinds[i]) != (size_t)(at - text) ||
            strncmp(kinds[i], text, (size_t)(at - text)) != 0)
            continue;
        out->fault = (enum rp_device_fault)i;
        out->fault_step = strtoull(at + 1, &end, 10);
        return *end == '\0' && out->fault_step > 0;
    }
    return false;
}

struct rp_engine_config rp_stack_engine_config(const struct rp_engine_options *options,
                                               const struct rp_backend_selection *selection,
                                               enum rp_dtype matrix_dtype) {
    enum rp_dtype kv_dtype = rp_stack_dtype(options->kv_cache_dtype);
    struct rp_engine_config config = {
        .backend = selection->backend,
        .opened = selection->device,
        .device = device_config(options),
        .max_num_seqs = options->max_num_seqs,
        .max_num_batched_tokens = options->max_num_batched_tokens,
        .step_ns_max = (uint64_t)(options->slo_itl_ms * 1e6),
        .max_model_len = options->max_model_len,
        .queue_capacity = options->max_num_queued_reqs,
        .kv_event_capacity = options->kv_event_capacity,
        .kv_cache_bytes = options->kv_cache_memory_bytes,
        .page_count_override = options->num_gpu_blocks_override,
        .memory_utilization = options->gpu_memory_utilization,
        .swap_bytes = options->swap_space_gib < 0
                          ? RP_SWAP_BYTES_AUTO
                          : (uint64_t)(options->swap_space_gib * 1024.0 * 1024.0 * 1024.0),
        .page_tokens = options->block_size,
        .kv_dtype = kv_dtype == RP_MODEL_DTYPE_AUTO ? matrix_dtype : kv_dtype,
        .prefix_cache = options->enable_prefix_caching,
        .snapshot_bytes = options->state_snapshot_bytes,
        .snapshot_interval = options->state_snapshot_interval,
        .run_ahead = options->run_ahead != 0,
        .enforce_eager = options->enforce_eager,
        .no_fusion = options->disable_fusion,
        .watchdog_seconds = options->watchdog_timeout_s,
        .mask_deadline_ns = options->mask_deadline_ms * 1000000ull,
        .profile_every = options->profile_every,
    };
    if (options->debug_fault && *options->debug_fault)
        (void)parse_fault(options->debug_fault, &config); /* validated with the options */
    if (options->debug_plant)
        (void)parse_plants(options->debug_plant, &config);
    return config;
}

int rp_stack_check_options(const struct rp_engine_options *options, struct rp_error *err) {
    struct rp_engine_config config;
    if ((options->block_size & (options->block_size - 1)) != 0) /* 0: the device's choice */
        return rp_error_set(err, RP_STATUS_INVALID, "--block-size: %u is not a power of two",
                            options->block_size);
    if ((options->tensor_parallel_size & (options->tensor_parallel_size - 1)) != 0)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--tensor-parallel-size: %u is not 1, 2, 4 or 8",
                            options->tensor_parallel_size);
    if (options->quantization && options->dtype == RP_DTYPE_CHOICE_FLOAT32)
        return rp_error_set(
            err, RP_STATUS_INVALID,
            "--quantization: quantized weights require bf16; remove --dtype float32");
    if (options->quantize_head && !options->quantization)
        return rp_error_set(err, RP_STATUS_INVALID, "--quantization-head: requires --quantization");
    if (options->max_num_batched_tokens && options->max_num_batched_tokens < 16)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--max-num-batched-tokens: %u is not 0 (the device's choice) and not "
                            "between 16 and 65536",
                            options->max_num_batched_tokens);
    if (options->swap_space_gib < 0 && options->swap_space_gib > -1)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--swap-space: %g is neither -1 nor a valid size",
                            options->swap_space_gib);
    if (options->debug_fault && *options->debug_fault &&
        !parse_fault(options->debug_fault, &config))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--debug-fault: not illegal_address, trap or hang followed by @STEP");
    if (options->debug_plant && !parse_plants(options->debug_plant, &config))
        return rp_error_set(
            err, RP_STATUS_INVALID,
            "--debug-plant: not a comma-separated list of node, allocation and slow:SHARE");
    return RP_OK;
}

enum rp_exit rp_stack_exit_code(int status) {
    switch (status) {
    case RP_STATUS_NO_MEMORY:
    case RP_STATUS_DEVICE:
    case RP_STATUS_RANGE:
        return RP_EXIT_DEVICE;
    default:
        return RP_EXIT_MODEL;
    }
}

/* Shows a stage's progress on one terminal line, at most 20 times a second. */
static void show(struct progress *progress, const char *stage, double share) {
    uint64_t now = rp_clock_ns();
    bool fresh = strcmp(progress->stage, stage) != 0;
    if (!progress->shown || !progress->on_terminal ||
        (!fresh && share < 1.0 && now < progress->next_ns))
        return;
    snprintf(progress->stage, sizeof progress->stage, "%s", stage);
    progress->next_ns = now + 50000000;
    progress->line_open = true;
    int filled = (int)(share * 30.0);
    fprintf(stderr, "\r%-8s [%.*s%.*s] %3d %%", stage, filled, "##############################",
            30 - filled, "..............................", (int)(share * 100.0));
    fflush(stderr);
}

static void finish(struct progress *progress) {
    if (progress->line_open)
        fprintf(stderr, "\r%60s\r", "");
    progress->line_open = false;
}

static void on_stage(void *ctx, const char *stage, uint32_t done, uint32_t total) {
    struct progress *progress = ctx;
    if (strcmp(stage, "weights") == 0)
        progress->weights_ns = rp_clock_ns();
    show(progress, stage, total ? (double)done / total : 1.0);
}

/* Seconds since *since_ns, which is set to now. */
static double lap(uint64_t *since_ns) {
    uint64_t before = *since_ns;
    *since_ns = rp_clock_ns();
    return (double)(*since_ns - before) * 1e-9;
}

/* The model whose files are in `dir`, or random weights of its shape. On a GPU they are made there,
 * when the engine prepares them. */
static int open_model(const char *dir, const struct rp_engine_options *options,
                      bool separate_memory, struct rp_model *out, struct rp_error *err) {
    const struct rp_model_quantization quantization = rp_stack_quantization(options);
    enum rp_dtype dtype = rp_stack_dtype(options->dtype);
    struct rp_model_config shape;
    if (!options->random_weights)
        return rp_model_open(dir, dtype, &quantization, options->max_model_len, out, err);
    int status = rp_model_config_load(dir, &shape, err);
    if (status != RP_OK)
        return status;
    shape.quantization = quantization.scheme;
    shape.quantize_head = quantization.head;
    return (separate_memory ? rp_model_random_vectors : rp_model_random)(
        &shape, dtype == RP_MODEL_DTYPE_AUTO ? RP_DTYPE_BF16 : dtype, 1, options->max_model_len,
        out, err);
}

int rp_stack_open(struct rp_stack *stack, const char *dir, const struct rp_engine_options *options,
                  void (*wake)(void *ctx), void *wake_ctx, struct rp_trace_ring *ring,
                  bool show_progress, enum rp_exit *out_code, struct rp_error *err) {
    struct progress progress = {.shown = show_progress, .on_terminal = isatty(STDERR_FILENO) == 1};
    memset(stack, 0, sizeof *stack);
    int status = rp_stack_check_options(options, err);
    if (status != RP_OK) {
        *out_code = RP_EXIT_USAGE;
        return status;
    }
    struct rp_mask *mask = NULL;
    status = rp_model_dir_check(dir, err);
    if (status != RP_OK) {
        *out_code = RP_EXIT_MODEL;
        return status;
    }
    status = rp_stack_open_mask(dir, options, &mask, out_code, err);
    if (status != RP_OK)
        return status;
    uint64_t since_ns = rp_clock_ns();
    status = rp_stack_select(options, &stack->selection, err);
    stack->device_s = lap(&since_ns);
    if (status != RP_OK) {
        *out_code = RP_EXIT_DEVICE;
        rp_mask_free(mask);
        return status;
    }
    status = rp_tokenizer_open(dir, &stack->tokenizer, err);
    stack->tokenizer_s = lap(&since_ns);
    if (status == RP_OK)
        status =
            open_model(dir, options, stack->selection.info.separate_memory, &stack->model, err);
    if (status == RP_OK && mask)
        status = rp_model_set_mask(&stack->model, mask, err);
    else
        rp_mask_free(mask);
    *out_code = RP_EXIT_MODEL;
    if (status == RP_OK) {
        struct rp_engine_config config =
            rp_stack_engine_config(options, &stack->selection, stack->model.dtype);
        stack->selection.device = NULL;
        config.wake = wake;
        config.wake_ctx = wake_ctx;
        config.ring = ring;
        config.measure_peaks = ring != NULL; /* only a server exposes profiles */
        config.progress = on_stage;
        config.progress_ctx = &progress;
        status = rp_engine_create(&config, &stack->model, &stack->engine, err);
        /* Time from the files to the device, then everything else. */
        if (progress.weights_ns) {
            stack->weights_s = (double)(progress.weights_ns - since_ns) * 1e-9;
            since_ns = progress.weights_ns;
        }
        stack->engine_s = lap(&since_ns);
        *out_code = rp_stack_exit_code(status);
    }
    finish(&progress);
    if (status != RP_OK)
        rp_stack_close(stack);
    return status;
}

void rp_stack_exit_failed(void) {
    fflush(NULL);
    _Exit(RP_EXIT_FATAL_DEVICE);
}

void rp_stack_close(struct rp_stack *stack) {
    rp_engine_destroy(stack->engine);
    if (stack->selection.device)
        stack->selection.backend->close(stack->selection.device);
    rp_model_deinit(&stack->model);
    rp_tokenizer_close(stack->tokenizer);
    memset(stack, 0, sizeof *stack);
}
