#include "server/cmd_stack.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct progress {
    bool shown, on_terminal, line_open;
    uint64_t next_ns;
    char stage[16];
};

enum rp_dtype rp_stack_dtype(uint32_t choice) {
    return choice == RP_DTYPE_CHOICE_AUTO      ? RP_MODEL_DTYPE_AUTO
           : choice == RP_DTYPE_CHOICE_FLOAT32 ? RP_DTYPE_F32
                                               : RP_DTYPE_BF16;
}

struct rp_engine_config rp_stack_engine_config(const struct rp_engine_options *options,
                                               enum rp_dtype matrix_dtype) {
    enum rp_dtype kv_dtype = rp_stack_dtype(options->kv_cache_dtype);
    return (struct rp_engine_config){
        .max_num_seqs = options->max_num_seqs,
        .max_num_batched_tokens = options->max_num_batched_tokens,
        .max_model_len = options->max_model_len,
        .queue_capacity = options->max_num_queued_reqs,
        .kv_cache_bytes = options->kv_cache_memory_bytes,
        .page_count_override = options->num_gpu_blocks_override,
        .swap_bytes = (uint64_t)(options->swap_space_gib * 1024.0 * 1024.0 * 1024.0),
        .page_tokens = options->block_size,
        .kv_dtype = kv_dtype == RP_MODEL_DTYPE_AUTO ? matrix_dtype : kv_dtype,
        .threads = options->threads,
        .prefix_cache = options->enable_prefix_caching,
        .run_ahead = options->run_ahead != 0,
        .enforce_eager = options->enforce_eager,
        .no_fusion = options->disable_fusion,
    };
}

int rp_stack_check_options(const struct rp_engine_options *options, struct rp_error *err) {
    if ((options->block_size & (options->block_size - 1)) == 0) /* 0: the device's choice */
        return RP_OK;
    return rp_error_set(err, RP_STATUS_INVALID, "--block-size: %u is not a power of two",
                        options->block_size);
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

/* A stage's share done, on one line of a terminal, at most 20 times a second. */
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

static void on_load(void *ctx, uint64_t done, uint64_t total) {
    show(ctx, "load", total ? (double)done / (double)total : 1.0);
}

static void on_stage(void *ctx, const char *stage, uint32_t done, uint32_t total) {
    show(ctx, stage, total ? (double)done / total : 1.0);
}

int rp_stack_open(struct rp_stack *stack, const char *dir, const struct rp_engine_options *options,
                  void (*wake)(void *ctx), void *wake_ctx, bool show_progress,
                  enum rp_exit *out_code, struct rp_error *err) {
    struct progress progress = {.shown = show_progress, .on_terminal = isatty(STDERR_FILENO) == 1};
    memset(stack, 0, sizeof *stack);
    int status = rp_stack_check_options(options, err);
    if (status != RP_OK) {
        *out_code = RP_EXIT_USAGE;
        return status;
    }
    status = rp_tokenizer_open(dir, &stack->tokenizer, err);
    if (status == RP_OK)
        status = rp_model_load(dir, rp_stack_dtype(options->dtype), options->max_model_len, on_load,
                               &progress, &stack->model, err);
    *out_code = RP_EXIT_MODEL;
    if (status == RP_OK) {
        struct rp_engine_config config = rp_stack_engine_config(options, stack->model.dtype);
        config.wake = wake;
        config.wake_ctx = wake_ctx;
        config.progress = on_stage;
        config.progress_ctx = &progress;
        status = rp_engine_create(&config, &stack->model, &stack->engine, err);
        *out_code = rp_stack_exit_code(status);
    }
    finish(&progress);
    if (status != RP_OK)
        rp_stack_close(stack);
    return status;
}

void rp_stack_close(struct rp_stack *stack) {
    rp_engine_destroy(stack->engine);
    rp_model_deinit(&stack->model);
    rp_tokenizer_close(stack->tokenizer);
    memset(stack, 0, sizeof *stack);
}
