/* step_case.c - memory, graphs and packets of one case of bench_step. */
#include "backend/module.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/random_pattern.h"
#include "bench/step_internal.h"
#include "device/step_cpu.h"
#include "graphs/arena_plan.h"

#include <string.h>

#define WAIT_NS          ((uint64_t)120 * 1000000000u)
#define PROMPT_LOGITS    8u /* logit rows of the smallest mixed bucket */
#define GEMMS_MAX        8u
#define GEMM_SAMPLES     9u
#define GEMM_REPEATS     4u /* replays per sample */
#define MEMORY_SHARE_MAX 0.95

int rp_step_device_failed(const struct step_bench *bench, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_DEVICE, "%s", bench->backend->last_error(bench->device));
}

static uint32_t sequence_tokens(const struct step_case *c) {
    return c->bench->config->prompt ? c->context : c->context + STEP_REWIND;
}

uint32_t rp_step_case_tokens(const struct step_case *c) {
    return c->bench->config->prompt ? c->context * c->batch : c->batch;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int out_of_memory(const struct step_case *c, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "not enough memory for batch %u, context %u",
                        c->batch, c->context);
}

static struct rp_step_config step_config(const struct step_case *c) {
    uint32_t tokens = RP_MAX(sequence_tokens(c), c->bench->config->max_model_len);
    struct rp_step_config step = {.slot_count = c->bucket.rows,
                                  .pages_per_slot = RP_CEIL_DIV(tokens, c->bench->info.page_tokens),
                                  .row_capacity = c->bucket.rows,
                                  .token_capacity = c->bucket.tokens,
                                  .logit_row_capacity = c->bucket.logit_rows,
                                  .edit_capacity = c->bucket.rows,
                                  .prompt_ring_capacity = 1};
    step.state_stride = c->program.state_bytes;
    step.state_places = step.state_stride ? step.slot_count : 0;
    /* An operator has at most a few launches, and most operators are fused. */
    step.stamp_capacity = 2 * c->program.op_count + 8;
    while (step.prompt_ring_capacity < RP_STEP_RING_ENTRIES * c->bucket.tokens)
        step.prompt_ring_capacity *= 2;
    return step;
}

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The pages of a sequence are scattered: the i-th pages of all sequences are contiguous, in an
 * order rotated by i. */
static void fill_slots(const struct step_case *c, const struct rp_step_view *host) {
    uint32_t pages = RP_CEIL_DIV(sequence_tokens(c), c->bench->info.page_tokens);
    for (uint32_t i = 0; i < c->batch; i++) {
        uint32_t *slot = host->slots + (size_t)i * host->slot_words;
        slot[RP_SLOT_LENGTH] = c->bench->config->prompt ? 0 : c->context;
        slot[RP_SLOT_LAST_TOKEN] = i * 7919u % c->bench->model.config.vocab;
        slot[RP_SLOT_TOP_P] = float_bits(1.0f);
        slot[RP_SLOT_SEED_LOW] = i + 1;
        for (uint32_t page = 0; page < pages; page++)
            slot[RP_SLOT_PAGES + page] = 1 + page * c->batch + (i + page * 3) % c->batch;
    }
}

static int make_state(struct step_case *c, struct rp_error *err) {
    const struct rp_backend *backend = c->bench->backend;
    struct rp_device *device = c->bench->device;
    struct rp_step_config step = step_config(c);
    struct rp_step_view host;
    size_t state = rp_step_state_carve(&step, NULL, &c->view);
    size_t rings = rp_step_rings_carve(&step, NULL, &c->view);
    unsigned char *copy = rp_alloc_aligned(state, RP_CACHE_LINE);
    c->state = backend->alloc(device, state, RP_MEMORY_DEVICE);
    c->rings = backend->alloc(device, rings, RP_MEMORY_HOST);
    if (!copy || !c->state || !c->rings) {
        rp_free_aligned(copy);
        return out_of_memory(c, err);
    }
    memset(copy, 0, state);
    memset(c->rings, 0, rings);
    rp_step_state_carve(&step, c->state, &c->view);
    rp_step_rings_carve(&step, c->rings, &c->view);
    host = c->view;
    rp_step_state_carve(&step, copy, &host);
    fill_slots(c, &host);
    int status = backend->copy(device, c->state, copy, state);
    if (status == RP_OK)
        status = backend->synchronize(device);
    rp_free_aligned(copy);
    return status == RP_OK ? RP_OK : rp_step_device_failed(c->bench, err);
}

static int make_pages(struct step_case *c, struct rp_error *err) {
    struct step_bench *bench = c->bench;
    struct rp_device_memory memory;
    size_t count = 1 + (size_t)c->batch * RP_CEIL_DIV(sequence_tokens(c), bench->info.page_tokens);
    if (!rp_model_has_equal_layers(&bench->model.config))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "bench step: this model's layers have different K and V, for which it "
                            "has no pages");
    if (!rp_model_kv_layout(&bench->model, bench->info.page_tokens, bench->config->kv_dtype,
                            &c->kv))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    size_t bytes = count * c->kv.page_stride;
    bench->backend->memory(bench->device, &memory);
    if ((double)bytes > MEMORY_SHARE_MAX * (double)memory.free_bytes ||
        !(c->pages = bench->backend->alloc(bench->device, bytes, RP_MEMORY_DEVICE)))
        return out_of_memory(c, err);
    c->kv.base = c->pages;
    if (rp_random_pattern_fill(bench->backend, bench->device, c->pages, bench->pattern, bytes) !=
            RP_OK ||
        bench->backend->synchronize(bench->device) != RP_OK)
        return rp_step_device_failed(bench, err);
    return RP_OK;
}

/* ---- graphs --------------------------------------------------------------------------------- */

static int make_graphs(struct step_case *c, struct rp_error *err) {
    const struct rp_bench_step_config *config = c->bench->config;
    struct rp_graph_set_config graphs = {.backend = c->bench->backend,
                                         .device = c->bench->device,
                                         .program = &c->program,
                                         .buckets = &c->bucket,
                                         .bucket_count = 1,
                                         .step = c->view,
                                         .kv = &c->kv,
                                         .options = {.no_fusion = config->no_fusion},
                                         .eager = config->enforce_eager};
    return rp_graph_set_create(&graphs, &c->graphs, err);
}

int rp_step_case_open(struct step_bench *bench, uint32_t batch, uint32_t context,
                      struct step_case *c, struct rp_error *err) {
    memset(c, 0, sizeof *c);
    c->bench = bench;
    c->batch = batch;
    c->context = context;
    uint32_t rows = bench->config->prompt ? RP_MAX(batch, PROMPT_LOGITS) : batch;
    c->bucket = (struct rp_bucket){rp_step_case_tokens(c), rows, rows, !bench->config->prompt};
    int status = rp_model_emit(&bench->model, &c->program, err);
    if (status == RP_OK)
        status = rp_backend_check_program(bench->backend, &c->program, err);
    if (status == RP_OK)
        status = make_state(c, err);
    if (status == RP_OK)
        status = make_pages(c, err);
    return status == RP_OK ? make_graphs(c, err) : status;
}

void rp_step_case_close(struct step_case *c) {
    const struct rp_backend *backend = c->bench->backend;
    struct rp_device *device = c->bench->device;
    (void)backend->synchronize(device);
    rp_graph_set_destroy(c->graphs);
    if (c->pages)
        backend->free(device, c->pages, RP_MEMORY_DEVICE);
    if (c->state)
        backend->free(device, c->state, RP_MEMORY_DEVICE);
    if (c->rings)
        backend->free(device, c->rings, RP_MEMORY_HOST);
    rp_program_deinit(&c->program);
    memset(c, 0, sizeof *c);
}

/* ---- packets -------------------------------------------------------------------------------- */

static void write_prompt(struct step_case *c, uint32_t slot, struct rp_step_row *row) {
    uint32_t mask = c->view.config.prompt_ring_capacity - 1;
    int32_t *ring = (int32_t *)c->view.prompt_ring;
    *row = (struct rp_step_row){slot, c->context, c->prompt_cursor & mask, RP_ROW_SAMPLE};
    for (uint32_t i = 0; i < c->context; i++)
        ring[c->prompt_cursor++ & mask] =
            (int32_t)((i + 1) * 2654435761u % c->bench->model.config.vocab);
}

static bool is_stamped(const struct step_case *c, uint64_t step) {
    uint32_t every = c->bench->config->stamp_every;
    return every != 0 && step % every == 0;
}

void rp_step_case_write(struct step_case *c) {
    bool prompt = c->bench->config->prompt;
    uint64_t step = ++c->step;
    unsigned char *packet =
        (unsigned char *)c->view.packets + (step % RP_STEP_RING_ENTRIES) * c->view.packet_bytes;
    struct rp_step_row *rows = rp_packet_rows(packet);
    struct rp_slot_edit *edits = rp_packet_edits(packet, &c->view.config);
    struct rp_packet_header header = {.step = step,
                                      .row_count = c->batch,
                                      .token_count = rp_step_case_tokens(c),
                                      .logit_row_count = c->batch};
    if (is_stamped(c, step))
        header.flags = RP_PACKET_STAMP;
    for (uint32_t i = 0; i < c->batch; i++)
        if (prompt)
            write_prompt(c, i, &rows[i]);
        else
            rows[i] = (struct rp_step_row){i, 1, 0, RP_ROW_DECODE | RP_ROW_SAMPLE};
    if (prompt || step % STEP_REWIND == 0)
        for (uint32_t i = 0; i < c->batch; i++)
            edits[header.edit_count++] =
                (struct rp_slot_edit){i, RP_SLOT_LENGTH, 0, prompt ? 0 : c->context};
    memcpy(packet, &header, sizeof header);
}

int rp_step_case_launch(struct step_case *c) {
    return rp_graph_set_launch(c->graphs, rp_graph_set_entry(c->graphs, 0), rp_step_case_tokens(c));
}

int rp_step_case_wait(struct step_case *c, uint64_t step, struct rp_error *err) {
    struct step_bench *bench = c->bench;
    int status = bench->backend->wait_step(bench->device, &c->view, step, rp_clock_ns() + WAIT_NS);
    if (status == RP_STATUS_NOT_FOUND)
        return rp_error_set(err, RP_STATUS_DEVICE, "step %llu did not complete within %llu s",
                            (unsigned long long)step, (unsigned long long)(WAIT_NS / 1000000000u));
    return status == RP_OK ? RP_OK : rp_step_device_failed(bench, err);
}

static const char *kernel_name(void *ctx, uint32_t node) {
    const struct step_case *c = ctx;
    const struct rp_graph_entry *entry = rp_graph_set_entry(c->graphs, 0);
    const struct rp_backend *backend = c->bench->backend;
    uint32_t forward = backend->graph_launch_count(entry->forward);
    struct rp_launch_info info;
    backend->graph_launch_info(node < forward ? entry->forward : entry->sample,
                               node < forward ? node : node - forward, &info);
    return info.kernel;
}

static void read_stamps(struct step_case *c, uint64_t step) {
    uint32_t capacity = c->view.config.stamp_capacity;
    uint32_t launches = rp_graph_set_entry(c->graphs, 0)->launches;
    const struct rp_node_stamp *stamps =
        c->view.stamp_ring + step % RP_STEP_RING_ENTRIES * capacity;
    rp_step_nodes_add(&c->nodes, stamps, RP_MIN(launches, capacity), kernel_name, c);
}

int rp_step_case_read(struct step_case *c, uint64_t step, struct step_stamps *out,
                      struct rp_error *err) {
    unsigned char *entry = c->view.results + (step % RP_STEP_RING_ENTRIES) * c->view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_row_result *rows = rp_result_rows(entry);
    *out = (struct step_stamps){header->begin_ns, header->end_ns};
    if (is_stamped(c, step))
        read_stamps(c, step);
    if (header->error != 0 || header->row_count != c->batch)
        return rp_error_set(err, RP_STATUS_DEVICE, "step %llu: error %u, %u rows of %u",
                            (unsigned long long)step, header->error, header->row_count, c->batch);
    for (uint32_t i = 0; i < c->batch; i++)
        if (rows[i].flags != 0 || rows[i].token < 0)
            return rp_error_set(
                err, RP_STATUS_DEVICE, "step %llu: row %u has no token: %d, flags %u, length %u",
                (unsigned long long)step, i, rows[i].token, rows[i].flags, rows[i].length);
    return RP_OK;
}

/* ---- the largest GEMM ----------------------------------------------------------------------- */

/* Matrices of one shape from up to GEMMS_MAX layers, of the role whose matrices are the largest
 * together; experts' GEMMs are not counted. Returns how many. */
static uint32_t large_matrices(const struct rp_model *model,
                               const struct rp_matrix *out[GEMMS_MAX]) {
    const struct rp_weights *weights = &model->weights;
    size_t values[RP_WEIGHT_ROLE_COUNT] = {0};
    uint32_t role = 0, count = 0;
    for (uint32_t i = 0; i < weights->count; i++) {
        const struct rp_weight *weight = &weights->entries[i];
        if (weight->layer == RP_LAYER_NONE || weight->experts || !rp_weight_is_matrix(weight))
            continue;
        values[weight->role] += (size_t)weight->matrix.rows * weight->matrix.cols;
        if (values[weight->role] > values[role])
            role = weight->role;
    }
    for (uint32_t layer = 0; layer < model->config.layers && count < GEMMS_MAX; layer++) {
        if (!rp_model_weight(model, (enum rp_weight_role)role, layer))
            continue;
        out[count] = rp_model_matrix(model, (enum rp_weight_role)role, layer);
        count += out[count]->rows == out[0]->rows && out[count]->cols == out[0]->cols;
    }
    return count;
}

static int make_gemm_program(const struct rp_model *model, uint32_t count,
                             const struct rp_matrix *const matrices[GEMMS_MAX],
                             struct rp_program *out) {
    rp_program_init(out);
    int32_t x = rp_program_add_tensor(out, RP_ROWS_TOKEN, model->dtype, matrices[0]->cols, "x");
    int32_t y = rp_program_add_tensor(out, RP_ROWS_TOKEN, RP_DTYPE_F32, matrices[0]->rows, "y");
    if (x < 0 || y < 0)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        struct rp_op op = {.kind = RP_OP_LINEAR,
                           .rows = RP_ROWS_TOKEN,
                           .name = "gemm",
                           .layer = (uint16_t)i,
                           .in_count = 1,
                           .in = {rp_view_all(out, x)},
                           .out = rp_view_all(out, y),
                           .weight = matrices[i]};
        if (rp_program_add_op(out, &op) < 0)
            return RP_STATUS_NO_MEMORY;
    }
    return RP_OK;
}

struct gemm_graph {
    struct rp_graph *graph;
    unsigned char *arena;
};

static int capture_gemms(struct step_case *c, const struct rp_program *program,
                         struct gemm_graph *out, struct rp_error *err) {
    struct step_bench *bench = c->bench;
    struct rp_lower_options options = {.no_fusion = bench->config->no_fusion};
    size_t bytes, *offsets = rp_calloc(program->tensor_count, sizeof *offsets);
    int status =
        offsets ? rp_arena_plan(program, &c->bucket, false, offsets, &bytes) : RP_STATUS_NO_MEMORY;
    if (status == RP_OK &&
        !(out->arena = bench->backend->alloc(bench->device, bytes, RP_MEMORY_DEVICE)))
        status = RP_STATUS_NO_MEMORY;
    if (status == RP_STATUS_NO_MEMORY)
        (void)out_of_memory(c, err);
    if (status == RP_OK &&
        (status = rp_random_pattern_fill(bench->backend, bench->device, out->arena, bench->pattern,
                                         bytes)) != RP_OK)
        status = rp_step_device_failed(bench, err);
    struct rp_bindings bindings = {out->arena, offsets, c->view, &c->kv, 0, NULL};
    if (status == RP_OK)
        status = bench->backend->capture(bench->device, program, 0, program->op_count, &c->bucket,
                                         &bindings, &options, false, &out->graph, err);
    rp_free(offsets);
    return status;
}

static void free_gemms(struct step_case *c, struct gemm_graph *graph) {
    const struct rp_backend *backend = c->bench->backend;
    if (graph->graph)
        backend->graph_destroy(c->bench->device, graph->graph);
    if (graph->arena)
        backend->free(c->bench->device, graph->arena, RP_MEMORY_DEVICE);
}

int rp_step_case_gemm_rate(struct step_case *c, double *out, struct rp_error *err) {
    struct step_bench *bench = c->bench;
    const struct rp_matrix *matrices[GEMMS_MAX] = {NULL};
    uint32_t count = large_matrices(&bench->model, matrices);
    double flops =
        2.0 * rp_step_case_tokens(c) * matrices[0]->rows * matrices[0]->cols * count * GEMM_REPEATS;
    struct rp_program program;
    struct gemm_graph graph = {0};
    *out = 0.0;
    int status = make_gemm_program(&bench->model, count, matrices, &program);
    status = status == RP_OK ? capture_gemms(c, &program, &graph, err) : out_of_memory(c, err);
    for (uint32_t sample = 0; sample <= GEMM_SAMPLES && status == RP_OK; sample++) {
        uint64_t begin = rp_clock_ns();
        for (uint32_t i = 0; i < GEMM_REPEATS && status == RP_OK; i++)
            status = bench->backend->launch(bench->device, graph.graph);
        if (status == RP_OK)
            status = bench->backend->synchronize(bench->device);
        if (status != RP_OK)
            status = rp_step_device_failed(bench, err);
        else if (sample > 0) /* sample 0 warms up */
            *out = RP_MAX(*out, flops / (double)(rp_clock_ns() - begin) * 1e9);
    }
    free_gemms(c, &graph);
    rp_program_deinit(&program);
    return status;
}
