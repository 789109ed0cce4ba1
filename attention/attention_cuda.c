#include "attention/attention_cuda.h"

#include "attention/attention_internal_cuda.h"
#include "attention/program/attention_program_cuda.h"

#include <string.h>

/* Bump allocator: returns the next `bytes` of the workspace; base NULL: only counts. */
static void *carve(unsigned char *base, size_t *used, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += RP_ALIGN_UP(bytes, 256);
    return at;
}

/* Allocates the lists of a program's mask class. */
static void carve_program(const struct rp_attention_cuda_workspace *workspace, unsigned char *base,
                          size_t *used, struct rp_attention_cuda_plan_view *plan) {
    size_t rows = workspace->row_capacity, tiles = workspace->tile_capacity;
    plan->units = carve(base, used, rows * workspace->unit_capacity * sizeof *plan->units);
    plan->blocks = carve(base, used, tiles * workspace->block_words * 2 * sizeof *plan->blocks);
    plan->bounds = carve(base, used, tiles * 2 * sizeof *plan->bounds);
    plan->order = carve(base, used, tiles * sizeof *plan->order);
    plan->done = carve(base, used, sizeof *plan->done);
}

/* Queries of a prompt tile of the plan. */
static uint32_t tile_of(const struct rp_attention_cuda_config *config) {
    return rp_attention_latent_cuda_supports(config) ? rp_attention_latent_cuda_tile(config)
                                                     : rp_attention_prefill_cuda_tile(config);
}

/* The tokens of the longest sequence. */
static uint64_t most_tokens(const struct rp_attention_cuda_config *config) {
    return (uint64_t)(config->step.config.pages_per_slot / RP_MAX(config->tables, 1u)) *
           config->kv.page_tokens;
}

size_t rp_attention_cuda_carve(const struct rp_attention_cuda_config *config, unsigned char *base,
                               struct rp_attention_cuda_workspace *out) {
    const struct rp_step_config *step = &config->step.config;
    bool decode = rp_attention_decode_cuda_supports(config);
    bool prefill = rp_attention_prefill_cuda_supports(config);
    bool latent = rp_attention_latent_cuda_supports(config);
    size_t used = 0;
    *out = (struct rp_attention_cuda_workspace){0};
    out->row_capacity = step->row_capacity;
    if (prefill || latent)
        out->tile_capacity = step->token_capacity / tile_of(config) + step->row_capacity;
    /* At most 2^24 tokens in the longest sequence (mask.h), so nothing below overflows. */
    uint32_t tokens = (uint32_t)most_tokens(config);
    if (decode)
        out->unit_capacity = RP_CEIL_DIV(tokens, RP_ATTENTION_SPLIT);
    if (prefill)
        out->block_words = RP_CEIL_DIV(tokens, 32 * rp_attention_prefill_cuda_keys(config));
    for (uint32_t i = 0; i < config->window_count && (decode || prefill || latent); i++) {
        struct rp_attention_cuda_plan_view *plan = &out->plans[i];
        plan->head = carve(base, &used, sizeof *plan->head);
        plan->rows = carve(base, &used, (size_t)out->row_capacity * sizeof *plan->rows);
        plan->tiles = carve(base, &used, (size_t)out->tile_capacity * sizeof *plan->tiles);
        if (config->programs[i])
            carve_program(out, base, &used, plan);
    }
    out->claims = carve(base, &used, RP_ATTENTION_CLAIMS * sizeof *out->claims);
    if (decode) {
        size_t floats = rp_attention_decode_cuda_partial_floats(config);
        out->arrivals = carve(base, &used, (size_t)out->row_capacity * config->kv_heads * 4);
        out->partial_blocks = rp_attention_decode_cuda_blocks(config);
        out->partials = carve(base, &used, out->partial_blocks * floats * sizeof(float));
    }
    if (latent) {
        size_t floats = rp_attention_latent_cuda_partial_floats(config);
        uint32_t groups = rp_attention_latent_cuda_groups(config);
        out->arrivals = carve(base, &used, (size_t)out->row_capacity * groups * 4);
        out->partial_blocks = rp_attention_latent_cuda_blocks(config);
        out->partials = carve(base, &used, out->partial_blocks * floats * sizeof(float));
    }
    return used;
}

size_t rp_attention_cuda_workspace_bytes(const struct rp_attention_cuda_config *config) {
    struct rp_attention_cuda_workspace workspace;
    return rp_attention_cuda_carve(config, NULL, &workspace);
}

/* Selects the kernels for the rows of a bucket. */
struct routes {
    bool decode, prefill, latent, latent_prefill;
    uint32_t generic_rows; /* enum rp_attention_cuda_rows; 0: none */
};

static struct routes routes_of(const struct rp_attention_cuda_config *config) {
    struct routes routes = {.decode = rp_attention_decode_cuda_supports(config),
                            .latent = rp_attention_latent_cuda_supports(config)};
    if (routes.latent) {
        routes.latent_prefill = !config->bucket.decode;
        return routes;
    }
    if (!routes.decode)
        routes.generic_rows |= RP_ATTENTION_DECODE_ROWS;
    if (!config->bucket.decode) {
        routes.prefill = rp_attention_prefill_cuda_supports(config);
        if (!routes.prefill)
            routes.generic_rows |= RP_ATTENTION_PROMPT_ROWS;
    }
    return routes;
}

static int check_config(const struct rp_attention_cuda_config *config, struct rp_error *err) {
    if (config->window_count == 0 || config->window_count > RP_ATTENTION_CLASSES_MAX)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "attention: %u different windows and mask programs, at most %u",
                            config->window_count, RP_ATTENTION_CLASSES_MAX);
    uint64_t tokens = most_tokens(config);
    for (uint32_t i = 0; i < config->window_count; i++)
        if (config->programs[i] && tokens > 1u << 24)
            return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                "attention: a mask program over %llu tokens, at most 2^24",
                                (unsigned long long)tokens);
    if (config->head_dim > RP_ATTENTION_CUDA_DIM_MAX)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "attention: heads of %u columns, at most %u on CUDA", config->head_dim,
                            RP_ATTENTION_CUDA_DIM_MAX);
    if (config->kv_heads == 0 || config->heads % config->kv_heads != 0)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "attention: %u query heads over %u KV heads", config->heads,
                            config->kv_heads);
    if (config->workspace_bytes < rp_attention_cuda_workspace_bytes(config))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "attention: a workspace of %zu bytes, %zu needed",
                            config->workspace_bytes, rp_attention_cuda_workspace_bytes(config));
    return RP_OK;
}

/* One more launch per program class, after the planner. */
static int plan_programs(const struct rp_attention_cuda_config *config, struct rp_arena *memory,
                         const struct rp_attention_plan_cuda *plan, struct rp_cuda_launch *out,
                         uint32_t *out_count, struct rp_error *err) {
    struct rp_cuda_stamp stamp = plan->stamp;
    for (uint32_t i = 0; i < config->window_count; i++) {
        const struct rp_attention_cuda_workspace *workspace = &plan->workspace;
        if (!config->programs[i])
            continue;
        struct rp_attention_plan_program *args = rp_arena_alloc(memory, sizeof *args);
        if (!args)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "attention: out of memory");
        uint32_t items = config->bucket.rows;
        if (plan->tile_queries != 0)
            items += config->bucket.tokens / plan->tile_queries + config->bucket.rows;
        stamp = rp_cuda_stamp_next(stamp);
        args->args = (struct rp_attention_plan_program_args){
            .step = config->step,
            .plan = workspace->plans[i],
            .row_capacity = workspace->row_capacity,
            .tile_capacity = workspace->tile_capacity,
            .unit_capacity = workspace->unit_capacity,
            .block_words = workspace->block_words,
            .heads = config->heads,
            .block_keys = plan->tile_queries != 0 ? rp_attention_prefill_cuda_keys(config) : 0,
            .stamp = stamp};
        args->program = config->programs[i];
        args->dependent_launch = config->limits.dependent_launch;
        /* One warp per row or tile. */
        args->blocks = RP_MIN(RP_CEIL_DIV(items, RP_ATTENTION_PLAN_PROGRAM_THREADS / 32),
                              config->limits.sm_count);
        out[(*out_count)++] =
            (struct rp_cuda_launch){"attention_plan_mask", rp_attention_plan_program_run, args};
    }
    return RP_OK;
}

int rp_attention_cuda_plan(const struct rp_attention_cuda_config *config, struct rp_arena *memory,
                           struct rp_cuda_launch *out, uint32_t *out_count, struct rp_error *err) {
    struct routes routes = routes_of(config);
    int status = check_config(config, err);
    *out_count = 0;
    if (status != RP_OK || (!routes.decode && !routes.prefill && !routes.latent))
        return status;
    struct rp_attention_plan_cuda *args = rp_arena_alloc(memory, sizeof *args);
    if (!args)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "attention: out of memory");
    args->config = *config;
    rp_attention_cuda_carve(config, config->workspace, &args->workspace);
    args->stamp = config->stamp;
    args->tile_queries = routes.prefill || routes.latent_prefill ? tile_of(config) : 0;
    args->pairs = routes.prefill && rp_attention_prefill_cuda_pairs(config);
    out[(*out_count)++] =
        (struct rp_cuda_launch){"attention_plan", rp_attention_plan_cuda_run, args};
    return plan_programs(config, memory, args, out, out_count, err);
}

static bool same_mask(const struct rp_mask *a, const struct rp_mask *b) {
    return a == b || (a && b && strcmp(rp_mask_text(a), rp_mask_text(b)) == 0);
}

int rp_attention_cuda_class(const struct rp_attention_cuda_config *config,
                            const struct rp_mask *mask, uint32_t window) {
    for (uint32_t i = 0; i < config->window_count; i++)
        if (same_mask(config->masks[i], mask) && (mask || config->windows[i] == window))
            return (int)i;
    return -1;
}

int rp_attention_cuda_lower(const struct rp_attention_cuda_config *config,
                            const struct rp_attention_args *args, struct rp_arena *memory,
                            struct rp_cuda_launch out[RP_ATTENTION_LAUNCHES_MAX],
                            uint32_t *out_count, struct rp_error *err) {
    struct routes routes = routes_of(config);
    int status = check_config(config, err),
        index = rp_attention_cuda_class(config, args->mask, args->window);
    *out_count = 0;
    if (status != RP_OK)
        return status;
    if (index < 0)
        return args->mask ? rp_error_set(err, RP_STATUS_INVALID,
                                         "attention: no plan for this mask program")
                          : rp_error_set(err, RP_STATUS_INVALID,
                                         "attention: no plan for a window of %u", args->window);
    /* Longest first: prompt tiles, then the many short decode rows. */
    const struct {
        bool wanted;
        struct rp_cuda_launch launch;
    } kernels[] = {
        {routes.prefill, {"attention_prefill", rp_attention_prefill_cuda_run, NULL}},
        {routes.latent_prefill,
         {"attention_latent_prefill", rp_attention_latent_prefill_cuda_run, NULL}},
        {routes.decode, {"attention_decode", rp_attention_decode_cuda_run, NULL}},
        {routes.latent, {"attention_latent", rp_attention_latent_cuda_run, NULL}},
        {routes.generic_rows != 0, {"attention_generic", rp_attention_generic_cuda_run, NULL}},
    };
    struct rp_attention_cuda_args *op =
        rp_arena_alloc(memory, RP_ARRAY_COUNT(kernels) * sizeof *op);
    if (!op)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "attention: out of memory");
    struct rp_cuda_stamp stamp = config->stamp;
    for (size_t i = 0; i < RP_ARRAY_COUNT(kernels); i++) {
        if (!kernels[i].wanted)
            continue;
        op->config = *config;
        op->args = *args;
        op->mask_class = (uint32_t)index;
        op->program = config->programs[index];
        op->rows = routes.generic_rows;
        op->stamp = stamp;
        rp_attention_cuda_carve(config, config->workspace, &op->workspace);
        out[*out_count] = kernels[i].launch;
        out[(*out_count)++].args = op++;
        stamp = rp_cuda_stamp_next(stamp);
    }
    return RP_OK;
}
