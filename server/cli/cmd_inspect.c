/* reprise inspect DIR [--program] [--json]: the model, the memory plan and the longest context that
 * fits; with --program the operators and the launches of each bucket. Reads no weights. */
#include "backend/op_cost.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "device/step_cpu.h"
#include "engine/layout.h"
#include "engine/memory_plan.h"
#include "graphs/arena_plan.h"
#include "model/model.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"

#include <stdio.h>
#include <string.h>

/* Everything that is printed; computed once. */
struct inspection {
    struct rp_mask *mask; /* owned here until the model takes it over */
    const char *dir;
    struct rp_model model;
    struct rp_program program;
    struct rp_engine_config config;
    struct rp_engine_layout *layout;
    struct rp_backend_selection selection;
};

static const char *family_name(enum rp_family family) {
    static const char *const names[RP_FAMILY_COUNT] = {
#define X(id, name, title) [RP_FAMILY_##id] = (title),
        RP_FAMILY_MAP(X)
#undef X
    };
    return names[family];
}

/* Bytes of all matrices of blocks: as in the file, and in panels. */
static void count_blocks(const struct rp_model *model, uint64_t *out_values, uint64_t *out_file,
                         uint64_t *out_memory) {
    *out_values = *out_file = *out_memory = 0;
    for (uint32_t i = 0; i < model->weights.count; i++) {
        struct rp_matrix matrix = model->weights.entries[i].matrix;
        if (matrix.dtype != RP_DTYPE_BLOCKS)
            continue;
        *out_values += (uint64_t)matrix.rows * matrix.cols;
        *out_file += rp_matrix_bytes(&matrix);
        matrix.layout = RP_LAYOUT_PANEL_16;
        *out_memory += rp_matrix_bytes(&matrix);
    }
}

static uint64_t values_of_type(const struct rp_model *model, uint32_t type) {
    uint64_t values = 0;
    for (uint32_t i = 0; i < model->weights.count; i++) {
        const struct rp_matrix *matrix = &model->weights.entries[i].matrix;
        for (uint32_t p = 0; p < matrix->part_count; p++)
            if (matrix->parts[p].type == type)
                values += (uint64_t)matrix->parts[p].rows * matrix->cols;
    }
    return values;
}

static void print_blocks(const struct rp_model *model, struct rp_buffer *out) {
    uint64_t values, file, memory;
    count_blocks(model, &values, &file, &memory);
    if (!values)
        return;
    rp_buffer_puts(out, "blocks         ");
    const char *comma = "";
    for (uint32_t type = 0; type < RP_BLOCK_TYPE_LIMIT; type++) {
        uint64_t of_type = values_of_type(model, type);
        if (!of_type)
            continue;
        rp_buffer_printf(out, "%s%s %.1f %%", comma, rp_block_info(type).name,
                         100.0 * (double)of_type / (double)values);
        comma = ", ";
    }
    rp_buffer_printf(out, "; %.3f bits per weight in memory",
                     8.0 * (double)memory / (double)values);
    if (model->config.gguf.blocks)
        rp_buffer_printf(out, ", %.3f in the file", 8.0 * (double)file / (double)values);
    rp_buffer_printf(out, "; inputs of %s\n",
                     !model->config.gguf.blocks      ? "bf16"
                     : model->dtype == RP_DTYPE_BF16 ? "8 bits"
                                                     : "f32");
}

/* Bytes of weights that one token alone reads: of the experts' matrices those that it uses, of the
 * embedding a row. */
static uint64_t bytes_per_token(const struct inspection *in) {
    const struct rp_bucket one = {.tokens = 1, .rows = 1, .logit_rows = 1, .decode = true};
    const struct rp_program *program = &in->program;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].weight)
            bytes += rp_op_cost(program, &program->ops[i], &one, in->config.kv_dtype, 0).bytes_read;
    return bytes;
}

static void print_experts(const struct inspection *in, struct rp_buffer *out) {
    const struct rp_model_experts *experts = &in->model.config.experts;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < in->model.config.layers; i++)
        layers += rp_model_has_experts(&in->model.config, i);
    if (layers == 0)
        return;
    rp_buffer_printf(out, "experts        %u of %u a token in %u layers, intermediate %u",
                     experts->used, experts->count, layers, experts->intermediate);
    if (experts->shared)
        rp_buffer_printf(out, ", a shared one of %u", experts->shared);
    if (experts->groups > 1)
        rp_buffer_printf(out, ", from %u of %u groups", experts->groups_used, experts->groups);
    if (experts->linear_bias)
        rp_buffer_puts(out, ", biases");
    rp_buffer_printf(out, "\nactive         %.1f M parameters, %.1f MiB of weights a token alone\n",
                     (double)rp_model_active_parameter_count(&in->model) * 1e-6,
                     (double)bytes_per_token(in) / (1 << 20));
}

static void print_model(const struct inspection *in, struct rp_buffer *out) {
    const struct rp_model_config *config = &in->model.config;
    rp_buffer_printf(out, "model          %s\n", in->dir);
    rp_buffer_printf(out, "architecture   %s (%s)\n", config->architecture,
                     family_name(config->family));
    rp_buffer_printf(out, "parameters     %.1f M, %s on disk, %s%s%s%s in memory\n",
                     (double)rp_model_parameter_count(&in->model) * 1e-6,
                     rp_dtype_name(config->file_dtype), rp_dtype_name(in->model.dtype),
                     config->quantization ? " and " : "",
                     config->quantization ? rp_quant_scheme_name(config->quantization) : "",
                     config->quantize_head ? " (head, too)" : "");
    print_blocks(&in->model, out);
    rp_buffer_printf(out, "layers         %u, hidden %u, intermediate %u, vocabulary %u%s\n",
                     config->layers, config->hidden, config->intermediate, config->vocab,
                     config->tied ? ", tied head" : "");
    print_experts(in, out);
    rp_buffer_printf(out, "attention      %u heads of %u, ", config->heads, config->head_dim);
    if (config->latent.rank)
        rp_buffer_printf(out, "latents of %u + %u, V of %u", config->latent.rank,
                         config->latent.rope_dim, config->latent.value_dim);
    else
        rp_buffer_printf(out, "%u KV heads", config->kv_heads);
    if (config->full_head_dim) /* Gemma 4 */
        rp_buffer_printf(out, ", without a window heads of %u, %u KV heads", config->full_head_dim,
                         config->full_kv_heads ? config->full_kv_heads : config->kv_heads);
    if (config->kv_shared)
        rp_buffer_printf(out, ", %u layers share K and V", config->kv_shared);
    uint32_t windows = 0;
    for (uint32_t i = 0; i < config->layers; i++)
        windows += rp_model_window(config, i) != 0;
    if (windows)
        rp_buffer_printf(out, ", window %u in %u layers", config->window, windows);
    if (config->attention_cap > 0)
        rp_buffer_printf(out, ", scores capped at %g", (double)config->attention_cap);
    rp_buffer_printf(out, "%s%s%s\n", config->attention_sinks ? ", sinks" : "",
                     config->qkv_bias ? ", qkv bias" : "", config->qk_norm ? ", q/k norm" : "");
    rp_buffer_printf(out, "positions      %u, RoPE theta %g\n", config->max_position,
                     config->rope.theta);
}

/* What a token takes of the KV pool. */
static void print_token_bytes(const struct inspection *in, struct rp_buffer *out) {
    const struct rp_kv_geometry *geometry = &in->layout->geometry;
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < geometry->groups.count; g++) {
        const struct rp_kv_layout *kv = &geometry->layouts[g];
        bytes += geometry->layers_in[g] *
                 rp_kv_layer_token_bytes(kv->dtype, kv->kv_heads, kv->head_dim, kv->latent);
    }
    rp_buffer_printf(out, "KV             %llu bytes a token%s\n", (unsigned long long)bytes,
                     geometry->layouts[0].latent ? ": latents" : "");
}

static void print_text(const struct inspection *in, struct rp_buffer *out) {
    print_model(in, out);
    rp_buffer_printf(out, "device         %s: %s (%s)\n", in->selection.backend->name,
                     in->selection.info.name, in->selection.reason);
    rp_buffer_puts(out, "memory plan\n");
    rp_memory_plan_text(&in->layout->plan, out);
    print_token_bytes(in, out);
    rp_buffer_printf(out, "longest context that fits: %u tokens\n",
                     in->layout->plan.longest_context);
    rp_buffer_printf(out, "program        %u operators, %u buckets, fingerprint %016llx\n",
                     in->program.op_count, in->layout->buckets.count,
                     (unsigned long long)rp_program_fingerprint(&in->program));
}

static void print_layers(struct rp_json *json, const struct rp_memory_plan *plan) {
    rp_json_array_begin(json, "kv_layers");
    for (uint32_t i = 0; i < plan->layers_count; i++) {
        const struct rp_memory_layers *at = &plan->layers[i];
        rp_json_object_begin(json, NULL);
        rp_json_uint(json, "layers", at->layers);
        rp_json_uint(json, "kv_heads", at->kv_heads);
        rp_json_uint(json, "head_dim", at->head_dim);
        rp_json_bool(json, "latent", at->latent);
        rp_json_uint(json, "window", at->window);
        rp_json_uint(json, "page_tables", at->tables);
        rp_json_uint(json, "pages_per_sequence", at->pages);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
}

static void print_json(const struct inspection *in, struct rp_buffer *out) {
    const struct rp_model_config *config = &in->model.config;
    const struct rp_memory_plan *plan = &in->layout->plan;
    struct rp_json json;
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             (unsigned long long)rp_program_fingerprint(&in->program));
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_object_begin(&json, "model");
    rp_json_string(&json, "architecture", config->architecture);
    rp_json_uint(&json, "parameters", rp_model_parameter_count(&in->model));
    rp_json_string(&json, "dtype", rp_dtype_name(in->model.dtype));
    rp_json_string(&json, "quantization", rp_quant_scheme_name(in->model.config.quantization));
    rp_json_string(&json, "file_dtype", rp_dtype_name(config->file_dtype));
    if (config->gguf.blocks) {
        uint64_t values, file, memory;
        count_blocks(&in->model, &values, &file, &memory);
        rp_json_uint(&json, "block_file_bytes", file);
        rp_json_uint(&json, "block_memory_bytes", memory);
    }
    rp_json_uint(&json, "layers", config->layers);
    rp_json_uint(&json, "hidden_size", config->hidden);
    rp_json_uint(&json, "intermediate_size", config->intermediate);
    if (config->experts.count) {
        rp_json_uint(&json, "experts", config->experts.count);
        rp_json_uint(&json, "experts_per_token", config->experts.used);
        rp_json_uint(&json, "expert_intermediate_size", config->experts.intermediate);
        rp_json_uint(&json, "active_parameters", rp_model_active_parameter_count(&in->model));
        rp_json_uint(&json, "weight_bytes_per_token", bytes_per_token(in));
    }
    rp_json_uint(&json, "heads", config->heads);
    rp_json_uint(&json, "kv_heads", config->kv_heads);
    rp_json_uint(&json, "head_dim", config->head_dim);
    if (config->latent.rank)
        rp_json_uint(&json, "latent_values", rp_model_latent_cols(&config->latent));
    rp_json_uint(&json, "vocab_size", config->vocab);
    rp_json_uint(&json, "max_position_embeddings", config->max_position);
    rp_json_bool(&json, "tied", config->tied);
    rp_json_object_end(&json);
    rp_json_object_begin(&json, "memory");
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (!plan->items[i].on_host)
            rp_json_uint(&json, plan->items[i].name, plan->items[i].bytes);
    rp_json_uint(&json, "total", plan->total_bytes);
    rp_json_object_end(&json);
    if (in->layout->on_gpu) {
        rp_json_object_begin(&json, "host_memory");
        for (uint32_t i = 0; i < plan->item_count; i++)
            if (plan->items[i].on_host)
                rp_json_uint(&json, plan->items[i].name, plan->items[i].bytes);
        rp_json_object_end(&json);
        rp_json_uint(&json, "device_memory", plan->device_bytes);
    }
    rp_json_string(&json, "device", in->selection.backend->name);
    rp_json_uint(&json, "max_model_len", plan->max_model_len);
    rp_json_uint(&json, "longest_context", plan->longest_context);
    rp_json_uint(&json, "kv_tokens", plan->kv_tokens);
    rp_json_uint(&json, "page_tokens", plan->page_tokens);
    rp_json_uint(&json, "pages", plan->page_count);
    rp_json_uint(&json, "swap_pages", plan->host_page_count);
    print_layers(&json, plan);
    if (plan->state_bytes) {
        rp_json_uint(&json, "state_bytes_per_sequence", plan->state_bytes);
        rp_json_uint(&json, "state_snapshots", plan->snapshot_count);
    }
    rp_json_uint(&json, "buckets", in->layout->buckets.count);
    rp_json_uint(&json, "operators", in->program.op_count);
    rp_json_string(&json, "fingerprint", fingerprint);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}

static void print_view(const struct rp_program *program, const struct rp_view *view,
                       const struct rp_bucket *bucket, char out[96]) {
    if (view->tensor == RP_NO_TENSOR) {
        snprintf(out, 96, "-");
        return;
    }
    const struct rp_tensor *tensor = &program->tensors[view->tensor];
    int len = snprintf(out, 96, "%s(%u, %u) %s", tensor->name,
                       rp_program_rows(program, bucket, tensor->rows), view->cols,
                       rp_dtype_name(tensor->dtype));
    if (view->cols != tensor->cols && len > 0 && len < 96)
        snprintf(out + len, (size_t)(96 - len), " at %u", view->col);
}

/* The mask of an attention operator, if other than causal. */
static void print_mask(const struct rp_op *op, struct rp_buffer *out) {
    if (op->kind != RP_OP_ATTENTION)
        return;
    if (op->u.attention.mask_text)
        rp_buffer_printf(out, "     mask: %s\n", op->u.attention.mask_text);
    if (op->u.attention.window)
        rp_buffer_printf(out, "     window: %u\n", op->u.attention.window);
    if (op->u.attention.soft_cap != 0.0f)
        rp_buffer_printf(out, "     soft_cap: %g\n", (double)op->u.attention.soft_cap);
}

static void print_ops(const struct inspection *in, const struct rp_bucket *bucket,
                      struct rp_buffer *out) {
    const struct rp_program *program = &in->program;
    rp_buffer_printf(out,
                     "operators of the bucket of %u tokens, %u logit rows (K and V: %u tokens)\n",
                     bucket->tokens, bucket->logit_rows, in->layout->max_model_len);
    rp_buffer_printf(out, "%4s %-24s %-12s %-44s %-36s %12s %12s %14s\n", "#", "name", "kind",
                     "input", "output", "read B", "written B", "FLOP");
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        char input[96], output[96];
        struct rp_cost cost =
            rp_op_cost(program, op, bucket, in->config.kv_dtype, in->layout->max_model_len);
        print_view(program, &op->in[0], bucket, input);
        print_view(program, &op->out, bucket, output);
        if (i == program->sample_begin)
            rp_buffer_puts(out, "     -- sample graph --\n");
        rp_buffer_printf(out, "%4u %-24s %-12s %-44s %-36s %12llu %12llu %14llu\n", i, op->name,
                         rp_op_kind_name(op->kind), input, output,
                         (unsigned long long)cost.bytes_read,
                         (unsigned long long)cost.bytes_written, (unsigned long long)cost.flops);
        print_mask(op, out);
    }
}

static int print_tensors(const struct inspection *in, const struct rp_bucket *bucket,
                         struct rp_buffer *out, struct rp_error *err) {
    const struct rp_program *program = &in->program;
    size_t bytes, arena_bytes, *offsets = rp_calloc(program->tensor_count, sizeof *offsets);
    struct rp_lifetime *lives = rp_calloc(program->tensor_count, sizeof *lives);
    int status = offsets && lives ? rp_arena_plan(program, bucket, false, offsets, &arena_bytes)
                                  : RP_STATUS_NO_MEMORY;
    if (status != RP_OK) {
        rp_error_set(err, status, "arena plan: %s", rp_status_text(status));
        goto done;
    }
    rp_program_lifetimes(program, bucket, lives);
    rp_buffer_printf(out, "tensors in the arena of %zu bytes\n", arena_bytes);
    rp_buffer_printf(out, "%-32s %-6s %10s %12s %12s  %s\n", "name", "dtype", "columns", "bytes",
                     "offset", "first..last operator");
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const struct rp_tensor *tensor = &program->tensors[i];
        if (lives[i].first > lives[i].last || !rp_tensor_bytes(program, tensor, bucket, &bytes))
            continue;
        rp_buffer_printf(out, "%-32s %-6s %10u %12zu %12zu  %u..%u\n", tensor->name,
                         rp_dtype_name(tensor->dtype), tensor->cols, bytes, offsets[i],
                         lives[i].first, lives[i].last);
    }
done:
    rp_free(offsets);
    rp_free(lives);
    return status;
}

/* Sets the device address of every matrix, or clears it (NULL). Nothing is read from there, but
 * kernel selection on a GPU depends on alignment. */
static void set_addresses(const struct inspection *in, void *data) {
    for (uint32_t i = 0; i < in->program.op_count; i++)
        if (in->program.ops[i].weight)
            ((struct rp_matrix *)(uintptr_t)in->program.ops[i].weight)->data = data;
}

/* Prints one bucket's launches, forward and sample; repeated texts are printed once. */
static int lower_bucket(const struct inspection *in, const struct rp_bucket *bucket,
                        struct rp_buffer *out, struct rp_error *err) {
    const struct rp_backend *backend = in->selection.backend;
    struct rp_device *device = in->selection.device;
    const struct rp_program *program = &in->program;
    const struct rp_lower_options options = {.no_fusion = in->config.no_fusion, .explain = true};
    struct rp_bindings bindings = {.kv = &in->layout->kv, .geometry = &in->layout->geometry};
    size_t arena_bytes, *offsets = rp_calloc(program->tensor_count, sizeof *offsets);
    int status = offsets ? rp_arena_plan(program, bucket, false, offsets, &arena_bytes)
                         : RP_STATUS_NO_MEMORY;
    /* Addresses are computed and never dereferenced: any block of the right size works. */
    bindings.arena = status == RP_OK ? backend->alloc(device, arena_bytes, RP_MEMORY_DEVICE) : NULL;
    bindings.tensor_offsets = offsets;
    rp_step_state_carve(&in->layout->step, NULL, &bindings.step);
    rp_step_rings_carve(&in->layout->step, NULL, &bindings.step);
    set_addresses(in, in->selection.info.separate_memory ? bindings.arena : NULL);
    if (!bindings.arena)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory to lower the program");
    for (int sample = 0; sample < 2 && status == RP_OK; sample++) {
        struct rp_graph *graph = NULL;
        status = backend->capture(device, program, sample ? program->sample_begin : 0,
                                  sample ? program->op_count : program->sample_begin, bucket,
                                  &bindings, &options, true, &graph, err);
        for (uint32_t i = 0; status == RP_OK && i < backend->graph_launch_count(graph); i++) {
            struct rp_launch_info info;
            backend->graph_launch_info(graph, i, &info);
            rp_buffer_printf(out, "  %-8s %4u %-14s %s\n", sample ? "sample" : "forward", i,
                             info.kernel, info.name);
            if (info.why_not && !info.prepares)
                rp_buffer_printf(out, "                not fused further: %s\n", info.why_not);
        }
        backend->graph_destroy(device, graph);
    }
    set_addresses(in, NULL);
    backend->free(device, bindings.arena, RP_MEMORY_DEVICE);
    rp_free(offsets);
    return status;
}

static int print_lowered(const struct inspection *in, struct rp_buffer *out, struct rp_error *err) {
    const struct rp_bucket_list *list = &in->layout->buckets;
    struct rp_buffer one, previous;
    int status = RP_OK;
    rp_buffer_init(&one, 0);
    rp_buffer_init(&previous, 0);
    for (uint32_t i = 0; i < list->count && status == RP_OK; i++) {
        const struct rp_bucket *bucket = &list->buckets[i];
        rp_buffer_clear(&one);
        status = lower_bucket(in, bucket, &one, err);
        rp_buffer_printf(out, "bucket %s tokens %u, rows %u, logit rows %u: ",
                         bucket->decode ? "decode" : "mixed", bucket->tokens, bucket->rows,
                         bucket->logit_rows);
        if (previous.len == one.len && memcmp(previous.data, one.data, one.len) == 0) {
            rp_buffer_puts(out, "same launches as the previous bucket\n");
            continue;
        }
        rp_buffer_puts(out, "launches\n");
        rp_buffer_append(out, one.data, one.len);
        rp_buffer_clear(&previous);
        rp_buffer_append(&previous, one.data, one.len);
    }
    rp_buffer_deinit(&one);
    rp_buffer_deinit(&previous);
    return status;
}

static int print_program(const struct inspection *in, struct rp_buffer *out, struct rp_error *err) {
    const struct rp_bucket *largest = &in->layout->buckets.buckets[in->layout->buckets.count - 1];
    print_ops(in, largest, out);
    int status = print_tensors(in, largest, out, err);
    return status == RP_OK ? print_lowered(in, out, err) : status;
}

static int open_inspection(struct inspection *in, const struct rp_engine_options *options,
                           struct rp_error *err) {
    struct rp_model_config config;
    struct rp_device_memory memory;
    int status = rp_model_config_load(in->dir, &config, err);
    config.quantization = rp_stack_quantization(options).scheme;
    config.quantize_head = options->quantize_head;
    if (status == RP_OK)
        status = rp_model_describe(&config, rp_stack_dtype(options->dtype), &in->model, err);
    if (status == RP_OK && in->mask) {
        status = rp_model_set_mask(&in->model, in->mask, err);
        in->mask = NULL;
    }
    if (status == RP_OK)
        status = rp_model_shard(&in->model, options->tensor_parallel_size, err);
    if (status == RP_OK)
        status = rp_model_emit(&in->model, &in->program, err);
    if (status == RP_OK)
        status = rp_stack_select(options, &in->selection, err);
    if (status != RP_OK)
        return status;
    in->selection.backend->memory(in->selection.device, &memory);
    in->config = rp_stack_engine_config(options, &in->selection, in->model.dtype);
    rp_engine_config_resolve(&in->config, &in->selection.info);
    in->layout = rp_calloc(1, sizeof *in->layout);
    if (!in->layout)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    return rp_engine_layout_make(&in->config, &in->model, &in->program, &in->selection.info,
                                 &memory, in->layout, err);
}

static void close_inspection(struct inspection *in) {
    if (in->selection.device)
        in->selection.backend->close(in->selection.device);
    rp_free(in->layout);
    rp_mask_free(in->mask);
    rp_program_deinit(&in->program);
    rp_model_deinit(&in->model);
}

struct inspect_options {
    struct rp_engine_options engine;
    bool program, json;
};

static const struct rp_flag inspect_flags[] = {
    {"program", RP_FLAG_SWITCH, offsetof(struct inspect_options, program), NULL, 0, 0, NULL,
     "the operators, and the launches of each bucket"},
    {"json", RP_FLAG_SWITCH, offsetof(struct inspect_options, json), NULL, 0, 0, NULL,
     "one JSON object"},
    RP_MASK_FLAGS(offsetof(struct inspect_options, engine)),
    RP_ENGINE_FLAGS(offsetof(struct inspect_options, engine)),
};

static const struct rp_command_spec inspect_spec = {
    .name = "inspect",
    .positionals = "DIR",
    .positional_min = 1,
    .positional_max = 1,
    .summary = "Shows the model in DIR, its memory plan and the longest context that fits. Reads "
               "no weights.",
    .flags = inspect_flags,
    .flag_count = RP_ARRAY_COUNT(inspect_flags),
};

int rp_cmd_inspect(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct inspect_options options = {0};
    struct inspection in = {0};
    struct rp_error err = {0};
    struct rp_buffer out;
    enum rp_exit code = RP_EXIT_OK;
    int status = rp_flags_parse(&inspect_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    status = rp_stack_check_options(&options.engine, &err);
    if (status == RP_OK && options.json && options.program)
        status = rp_error_set(&err, RP_STATUS_INVALID,
                              "--json does not include the program yet: "
                              "use either --json or --program");
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (rp_model_locate(&positionals[0], &err) != RP_OK)
        return rp_fail(RP_EXIT_MODEL, &err);
    in.dir = positionals[0];
    if (rp_stack_open_mask(in.dir, &options.engine, &in.mask, &code, &err) != RP_OK)
        return rp_fail(code, &err);
    code = RP_EXIT_OK;
    rp_buffer_init(&out, 0);
    status = open_inspection(&in, &options.engine, &err);
    if (status == RP_OK) {
        if (options.json)
            print_json(&in, &out);
        else
            print_text(&in, &out);
        if (options.program)
            status = print_program(&in, &out, &err);
    }
    if (out.len && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0) &&
        status == RP_OK) {
        status = rp_error_set(&err, RP_STATUS_IO, "standard output cannot be written");
        code = RP_EXIT_FAILURE;
    }
    rp_buffer_deinit(&out);
    close_inspection(&in);
    if (status != RP_OK && code == RP_EXIT_OK)
        code = rp_stack_exit_code(status);
    return code == RP_EXIT_OK ? RP_EXIT_OK : rp_fail(code, &err);
}
