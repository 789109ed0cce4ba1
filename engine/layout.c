#include "engine/layout.h"

#include "backend/cpu/cpu_memory.h"
#include "base/checked.h"
#include "base/memory.h"
#include "device/step_cpu.h"
#include "engine/batch.h"
#include "engine/gpu_plan.h"
#include "graphs/graph_set.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

/* Default size of the pool as a share of the memory left after the weights; the rest is for the
 * page cache, the swap pool and everything else on the machine. */
#define KV_SHARE_PERCENT 40

/* Tokens between possible snapshots: what the chunked form of a recurrence computes at once. */
#define STATE_UNIT 64
/* Snapshots of each slot, and their share of the memory left, where no size is given. */
#define SNAPSHOTS_PER_SLOT     2
#define SNAPSHOT_SHARE_PERCENT 5

_Static_assert(RP_KV_LAYERS_MAX >= RP_LAYERS_MAX, "layers of a model without a place in pages");

/* Tokens of a step where prompts gain little from more, on a CPU and on a GPU; the default limit of
 * a GPU with much memory. */
#define STEP_TOKENS_CPU   512
#define STEP_TOKENS_GPU   2048
#define STEP_TOKENS_LARGE 8192
#define LARGE_GPU_BYTES   ((uint64_t)64 << 30)

static uint32_t step_tokens(bool gpu) { return gpu ? STEP_TOKENS_GPU : STEP_TOKENS_CPU; }

/* The most tokens of one sequence that a step computes where layers have windows. */
static uint32_t chunk_of(const struct rp_engine_layout *layout) {
    const struct rp_bucket_list *list = &layout->buckets;
    return RP_MIN(step_tokens(layout->on_gpu), list->token_buckets[list->token_bucket_count - 1]);
}

uint64_t rp_engine_layout_pages(const struct rp_engine_layout *layout, uint64_t tokens) {
    return rp_kv_pages_max(&layout->geometry.groups, layout->kv.page_tokens, chunk_of(layout),
                           tokens);
}

uint32_t rp_engine_layout_longest(const struct rp_engine_layout *layout, uint64_t pages,
                                  uint32_t limit) {
    return (uint32_t)rp_kv_tokens_max(&layout->geometry.groups, layout->kv.page_tokens,
                                      chunk_of(layout), pages, limit);
}

static uint32_t ceil_pow2(uint32_t value) {
    uint32_t rounded = 1;
    while (rounded < value)
        rounded *= 2;
    return rounded;
}

void rp_engine_config_resolve(struct rp_engine_config *config,
                              const struct rp_device_info *device) {
    bool gpu = device->separate_memory;
    if (!config->max_num_seqs)
        config->max_num_seqs = gpu ? 256 : 64;
    if (!config->max_num_batched_tokens)
        config->max_num_batched_tokens =
            gpu && device->memory_bytes >= LARGE_GPU_BYTES ? STEP_TOKENS_LARGE : step_tokens(gpu);
    if (!config->page_tokens)
        config->page_tokens = device->page_tokens;
    if (!(config->memory_utilization > 0.0))
        config->memory_utilization = 0.92;
    if (!config->snapshot_interval)
        config->snapshot_interval = 2048;
    if (!config->mask_deadline_ns)
        config->mask_deadline_ns = 200000000u;
    if (config->swap_bytes == RP_SWAP_BYTES_AUTO)
        config->swap_bytes = RP_MIN((uint64_t)4 << 30, rp_cpu_memory_room() / 4);
}

/* on_host: not the device's memory, where the two are apart. */
static void add_item(struct rp_memory_plan *plan, const char *name, uint64_t bytes, bool on_host,
                     const char *detail) {
    RP_ASSERT(plan->item_count < RP_MEMORY_ITEMS_MAX);
    struct rp_memory_item *item = &plan->items[plan->item_count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->detail, sizeof item->detail, "%s", detail);
    item->bytes = bytes;
    item->on_host = on_host;
    plan->total_bytes += on_host ? 0 : bytes;
}

/* Pages of the device pool: as configured, or, on the host, as many as the longest sequences of all
 * slots need within the memory that is left; on a GPU all that is left, for the prefix cache. */
static int size_pool(const struct rp_engine_config *config, struct rp_engine_layout *out,
                     uint64_t free_bytes, uint32_t wanted_len, struct rp_error *err) {
    size_t page_bytes = out->kv.page_stride;
    uint64_t pages,
        useful = (uint64_t)config->max_num_seqs * rp_engine_layout_pages(out, wanted_len);
    if (config->page_count_override)
        pages = config->page_count_override;
    else if (config->kv_cache_bytes)
        pages = config->kv_cache_bytes / page_bytes;
    else if (out->on_gpu)
        pages = RP_MIN(free_bytes / page_bytes - 1, UINT32_MAX - 2); /* without the padding page */
    else
        pages = RP_MIN(useful, free_bytes / 100 * KV_SHARE_PERCENT / page_bytes);
    if (pages < out->geometry.groups.count || pages >= UINT32_MAX - 1)
        return rp_error_set(
            err, RP_STATUS_NO_MEMORY,
            "the KV pool would have %llu pages of %zu bytes (memory left: %llu bytes)",
            (unsigned long long)pages, page_bytes, (unsigned long long)free_bytes);
    bool told = config->page_count_override || config->kv_cache_bytes;
    uint64_t beside = out->gpu.total - RP_MIN(out->gpu.total, out->gpu.limit - free_bytes);
    if (out->on_gpu && told && (pages + 1) * page_bytes > beside)
        return rp_gpu_plan_no_room(config, out, pages + 1, err);
    out->page_count = (uint32_t)pages + 1; /* and the padding page */
    out->host_page_count = (uint32_t)RP_MIN(config->swap_bytes / page_bytes, useful);
    return RP_OK;
}

/* The effective context: as configured, or the model's, limited by the pool. */
static int settle_context(const struct rp_engine_config *config, const struct rp_model *model,
                          struct rp_engine_layout *out, struct rp_error *err) {
    uint32_t longest =
        rp_engine_layout_longest(out, out->page_count - 1, model->config.max_position);
    if (config->max_model_len > model->config.max_position) {
        int status =
            rp_error_set(err, RP_STATUS_RANGE,
                         "max_model_len %u is more than the model's max_position_embeddings "
                         "%u",
                         config->max_model_len, model->config.max_position);
        rp_error_hint(err, "try --max-model-len %u", model->config.max_position);
        return status;
    }
    if (config->max_model_len > longest) {
        int status = rp_error_set(err, RP_STATUS_NO_MEMORY,
                                  "one sequence of max_model_len %u does not fit the KV pool of %u "
                                  "tokens",
                                  config->max_model_len, longest);
        rp_error_hint(err, "try --max-model-len %u", longest);
        return status;
    }
    out->max_model_len = config->max_model_len ? config->max_model_len : longest;
    out->plan.longest_context = longest;
    return RP_OK;
}

/* Launches that a backend makes of one operator at most: attention's on a GPU. */
#define LAUNCHES_PER_OP 4

/* Places of recurrent state; *left: memory that is left, before and after. */
static int size_state(const struct rp_engine_config *config, const struct rp_program *program,
                      struct rp_engine_layout *out, uint64_t *left, struct rp_error *err) {
    struct rp_step_config *step = &out->step;
    uint64_t stride = program->state_bytes, slots = config->max_num_seqs, snapshots;
    if (stride == 0)
        return RP_OK;
    if (slots * stride > *left) {
        int status = rp_error_set(
            err, RP_STATUS_NO_MEMORY,
            "the recurrent state of %u sequences needs %llu bytes each, %llu bytes are left",
            config->max_num_seqs, (unsigned long long)stride, (unsigned long long)*left);
        if (*left >= stride)
            rp_error_hint(err, "try --max-num-seqs %llu",
                          (unsigned long long)RP_MAX(*left / 2 / stride, (uint64_t)1));
        return status;
    }
    *left -= slots * stride;
    snapshots = config->snapshot_bytes ? config->snapshot_bytes / stride
                                       : RP_MIN(SNAPSHOTS_PER_SLOT * slots,
                                                *left / 100 * SNAPSHOT_SHARE_PERCENT / stride);
    if (!config->prefix_cache || out->whole_prompts)
        snapshots = 0;
    if (snapshots * stride > *left || slots + snapshots > UINT32_MAX / 2) {
        int status = rp_error_set(
            err, RP_STATUS_NO_MEMORY,
            "%llu snapshots of recurrent state need %llu bytes each, %llu are left",
            (unsigned long long)snapshots, (unsigned long long)stride, (unsigned long long)*left);
        rp_error_hint(err, "try a smaller --state-snapshot-memory-bytes");
        return status;
    }
    *left -= snapshots * stride;
    step->state_stride = stride;
    step->state_places = (uint32_t)(slots + snapshots);
    out->recurrent_bytes = (slots + snapshots) * stride;
    return RP_OK;
}

static void size_step(const struct rp_engine_config *config, const struct rp_model *model,
                      const struct rp_program *program, struct rp_engine_layout *out) {
    struct rp_step_config *step = &out->step;
    uint32_t page_tokens = out->kv.page_tokens, groups = out->geometry.groups.count;
    step->slot_count = config->max_num_seqs;
    step->pages_per_slot = groups * RP_CEIL_DIV(out->max_model_len, page_tokens);
    step->row_capacity = config->max_num_seqs;
    step->token_capacity = RP_MAX(config->max_num_batched_tokens, config->max_num_seqs);
    step->logit_row_capacity = config->max_num_seqs;
    /* Joins of every slot at once, and pages: those of a step's own tokens and of one long hit. */
    step->edit_capacity = config->max_num_seqs * RP_JOIN_EDITS_MAX + step->pages_per_slot +
                          groups * (config->max_num_seqs + step->token_capacity / page_tokens);
    /* Two steps in flight and the one being written, each at most token_capacity, and a token more
     * for each row that is scored. */
    step->prompt_ring_capacity = ceil_pow2(4 * (step->token_capacity + step->row_capacity));
    step->edit_capacity += RP_SAVE_EDITS * (step->state_places ? config->max_num_seqs : 0);
    step->vocab = model->config.vocab;
    step->mask_capacity = rp_mask_capacity(step->row_capacity);
    step->late_copies = out->on_gpu;
    /* On the CPU an exchange between ranks is two launches. */
    step->stamp_capacity = program->op_count * (out->on_gpu          ? LAUNCHES_PER_OP
                                                : program->ranks > 1 ? 2
                                                                     : 1);
}

/* Groups of the same window and format, together. */
static void describe_layers(struct rp_engine_layout *out) {
    const struct rp_kv_geometry *geometry = &out->geometry;
    struct rp_memory_plan *plan = &out->plan;
    plan->layers_count = 0;
    for (uint32_t g = 0; g < geometry->groups.count; g++) {
        const struct rp_kv_layout *kv = &geometry->layouts[g];
        struct rp_kv_groups one = {.count = 1, .window = {geometry->groups.window[g]}};
        uint32_t i = 0;
        while (i < plan->layers_count &&
               (plan->layers[i].window != one.window[0] ||
                plan->layers[i].kv_heads != kv->kv_heads ||
                plan->layers[i].head_dim != kv->head_dim || plan->layers[i].latent != kv->latent))
            i++;
        if (i == plan->layers_count)
            plan->layers[plan->layers_count++] = (struct rp_memory_layers){.kv_heads = kv->kv_heads,
                                                                           .head_dim = kv->head_dim,
                                                                           .latent = kv->latent,
                                                                           .window = one.window[0]};
        plan->layers[i].layers += geometry->layers_in[g];
        plan->layers[i].tables++;
        plan->layers[i].pages +=
            rp_kv_pages_max(&one, kv->page_tokens, chunk_of(out), out->max_model_len);
    }
}

static void describe_state(struct rp_engine_layout *out) {
    struct rp_memory_plan *plan = &out->plan;
    const struct rp_step_config *step = &out->step;
    char detail[96];
    plan->state_bytes = step->state_stride;
    plan->snapshot_count = step->state_places - step->slot_count;
    if (step->state_places == 0) {
        plan->snapshot_count = 0;
        return;
    }
    snprintf(detail, sizeof detail, "recurrent: %zu bytes for each of %u sequences",
             step->state_stride, step->slot_count);
    add_item(plan, "state", step->slot_count * step->state_stride, false, detail);
    snprintf(detail, sizeof detail, "%u states of prompt prefixes", plan->snapshot_count);
    add_item(plan, "snapshots", plan->snapshot_count * step->state_stride, false, detail);
}

void rp_engine_layout_describe(struct rp_engine_layout *out, const struct rp_model *model) {
    struct rp_memory_plan *plan = &out->plan;
    const uint64_t *uses = out->gpu.uses;
    bool gpu = out->on_gpu;
    char detail[96];
    size_t page_bytes = out->kv.page_stride;
    plan->item_count = 0;
    plan->total_bytes = 0;
    plan->device_bytes = out->gpu.total;
    plan->ranks = RP_MAX(model->ranks, 1u);
    plan->measured = out->gpu.measured;
    if (gpu)
        add_item(plan, "context", uses[RP_MEMORY_CONTEXT], false, "the driver, other processes");
    enum rp_dtype layers =
        rp_model_matrix(model,
                        rp_model_has_state(&model->config, 0) ? RP_WEIGHT_MIX_IN : RP_WEIGHT_QKV, 0)
            ->dtype;
    snprintf(detail, sizeof detail, "%s%s%s", rp_dtype_name(layers),
             layers != model->dtype ? ", the rest " : "",
             layers != model->dtype ? rp_dtype_name(model->dtype) : "");
    add_item(plan, "weights", gpu ? uses[RP_MEMORY_WEIGHTS] : rp_model_weight_bytes(model), false,
             detail);
    snprintf(detail, sizeof detail, "%u pages of %u tokens, %s, %zu bytes each", out->page_count,
             out->kv.page_tokens, rp_dtype_name(out->kv.dtype), page_bytes);
    add_item(plan, "KV pool",
             gpu && plan->measured ? uses[RP_MEMORY_KV] : (uint64_t)out->page_count * page_bytes,
             false, detail);
    snprintf(detail, sizeof detail, "%u pages", out->host_page_count);
    add_item(plan, "swap pool", (uint64_t)out->host_page_count * page_bytes, gpu, detail);
    snprintf(detail, sizeof detail, "shared by %u buckets", out->buckets.count);
    add_item(plan, "activations", out->arena_bytes, false, detail);
    if (out->exchange_bytes && !gpu) /* on a GPU it is workspace */
        add_item(plan, "exchange", out->exchange_bytes, false, "what a rank gives to the others");
    if (gpu) {
        add_item(plan, "workspace", uses[RP_MEMORY_WORKSPACE], false, "of kernels");
        add_item(plan, "graphs", uses[RP_MEMORY_GRAPHS], false,
                 plan->measured ? "and loaded kernels" : "and loaded kernels, an upper estimate");
    }
    snprintf(detail, sizeof detail, "%u slots, page tables of %u entries, counts of %u ids",
             out->step.slot_count, out->step.pages_per_slot, out->step.vocab);
    add_item(plan, "slots", out->state_bytes - out->recurrent_bytes, false, detail);
    describe_state(out);
    add_item(plan, "rings", out->ring_bytes, gpu,
             "packets, results, prompt staging, biases and masks");
    plan->page_tokens = out->kv.page_tokens;
    plan->page_count = out->page_count;
    plan->host_page_count = out->host_page_count;
    plan->kv_tokens = rp_kv_capacity(&out->geometry.groups, out->kv.page_tokens, chunk_of(out),
                                     out->page_count - 1, out->max_model_len);
    plan->max_model_len = out->max_model_len;
    describe_layers(out);
}

/* What each layer stores. A layer has KV where the program has attention, and gives pages back
 * where all that it sees is a window, much shorter than the longest sequence. */
static void describe_kv(const struct rp_engine_config *config, const struct rp_model *model,
                        const struct rp_program *program, const struct rp_engine_layout *layout,
                        uint32_t wanted_len, struct rp_kv_layer *layers) {
    bool groups = !config->no_kv_groups && !layout->whole_prompts;
    for (uint32_t i = 0; i < model->config.layers; i++)
        layers[i] = (struct rp_kv_layer){.source = i};
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        if (op->kind != RP_OP_ATTENTION)
            continue;
        struct rp_kv_layer *layer = &layers[op->layer];
        layer->kv_heads = op->u.attention.kv_heads;
        layer->head_dim = op->u.attention.head_dim;
        layer->latent = op->u.attention.value_dim != 0;
        layer->source = op->layer - op->u.attention.kv_back;
        if (groups && !op->u.attention.mask &&
            (uint64_t)op->u.attention.window + chunk_of(layout) < wanted_len)
            layer->window = op->u.attention.window;
    }
}

static int make_geometry(const struct rp_engine_config *config, const struct rp_model *model,
                         const struct rp_program *program, uint32_t wanted_len,
                         struct rp_engine_layout *out, struct rp_error *err) {
    struct rp_kv_layer layers[RP_KV_LAYERS_MAX];
    uint32_t count = model->config.layers, page_tokens = config->page_tokens;
    if (page_tokens > 256 || (page_tokens & (page_tokens - 1)))
        return rp_error_set(err, RP_STATUS_RANGE,
                            "block size %u must be a power of two of at most 256", page_tokens);
    describe_kv(config, model, program, out, wanted_len, layers);
    bool made = rp_kv_geometry_make(&out->geometry, layers, count, page_tokens, config->kv_dtype);
    for (uint32_t i = 0; i < count && !made; i++) /* too many groups: keep all pages */
        layers[i].window = 0;
    if (!made && !rp_kv_geometry_make(&out->geometry, layers, count, page_tokens, config->kv_dtype))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "no page can hold the K and V of this model's %u layers", count);
    out->kv = out->geometry.layouts[0];
    return RP_OK;
}

int rp_engine_layout_make(const struct rp_engine_config *config, const struct rp_model *model,
                          const struct rp_program *program, const struct rp_device_info *device,
                          const struct rp_device_memory *memory, struct rp_engine_layout *out,
                          struct rp_error *err) {
    memset(out, 0, sizeof *out);
    out->on_gpu = device->separate_memory;
    out->whole_prompts = model->mask && !rp_mask_is_causal(model->mask);
    int status =
        rp_buckets_plan(config->max_num_seqs, config->max_num_batched_tokens, &out->buckets, err);
    if (status != RP_OK)
        return status;
    uint32_t wanted_len =
        config->max_model_len ? config->max_model_len : model->config.max_position;
    status = make_geometry(config, model, program, wanted_len, out, err);
    if (status != RP_OK)
        return status;
    struct rp_graph_set_config graphs = {
        .program = program, .buckets = out->buckets.buckets, .bucket_count = out->buckets.count};
    status = rp_graph_set_arena_bytes(&graphs, &out->arena_bytes, err);
    if (status != RP_OK)
        return status;
    uint64_t weights = model->loaded ? 0 : rp_model_weight_bytes(model);
    for (uint32_t i = 0; i < out->buckets.count && program->ranks > 1; i++)
        out->exchange_bytes = RP_MAX(
            out->exchange_bytes, 2 * rp_program_exchange_bytes(program, &out->buckets.buckets[i]));
    uint64_t used = weights + out->arena_bytes + out->exchange_bytes;
    uint64_t left = device->memory_bytes > used ? device->memory_bytes - used : 0;
    if (out->on_gpu)
        status = rp_gpu_plan_estimate(config, model, program, memory, wanted_len, out, &left, err);
    if (status == RP_OK)
        status = size_state(config, program, out, &left, err);
    if (status == RP_OK)
        status = size_pool(config, out, left, wanted_len, err);
    if (status == RP_OK)
        status = settle_context(config, model, out, err);
    if (status != RP_OK)
        return status;
    size_step(config, model, program, out);
    struct rp_step_view view;
    out->state_bytes = rp_step_state_carve(&out->step, NULL, &view);
    out->ring_bytes = rp_step_rings_carve(&out->step, NULL, &view);
    /* A step gives each row two events at most, two steps are in flight; cancelled ones close
     * too. */
    out->event_capacity =
        config->event_capacity
            ? config->event_capacity
            : RP_MAX(1024u, 8 * config->max_num_seqs + 2 * config->queue_capacity);
    rp_engine_layout_describe(out, model);
    return RP_OK;
}

struct rp_scheduler_config rp_engine_scheduler_config(const struct rp_engine_config *config,
                                                      const struct rp_engine_layout *layout,
                                                      const struct rp_device_info *device) {
    return (struct rp_scheduler_config){
        .slot_count = layout->step.slot_count,
        .queue_capacity = config->queue_capacity,
        .row_capacity = layout->step.row_capacity,
        .page_tokens = layout->kv.page_tokens,
        .groups = layout->geometry.groups,
        .page_count = layout->page_count,
        .host_page_count = layout->host_page_count,
        .max_model_len = layout->max_model_len,
        .page_edit_capacity =
            layout->step.pages_per_slot +
            layout->geometry.groups.count *
                (layout->step.slot_count + layout->step.token_capacity / layout->kv.page_tokens),
        .token_buckets = layout->buckets.token_buckets,
        .token_bucket_count = layout->buckets.token_bucket_count,
        .step_tokens = step_tokens(layout->on_gpu),
        .step_ns_max = config->step_ns_max,
        .decode_rows_max = layout->buckets.decode_rows_max,
        .logit_rows_max = layout->buckets.logit_rows_max,
        .prefix_cache = config->prefix_cache && !layout->whole_prompts,
        .whole_prompts = layout->whole_prompts,
        .prefix_prompt_only = device->decode_differs && !config->device.fast_numerics,
        .run_ahead = config->run_ahead,
        .state_unit = layout->step.state_places ? STATE_UNIT : 0,
        .snapshot_count =
            layout->step.state_places ? layout->step.state_places - layout->step.slot_count : 0,
        .snapshot_interval = config->snapshot_interval,
    };
}
