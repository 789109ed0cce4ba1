/* step_case.c - memory, graphs and packets of one case of bench_step. */
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

static uint32_t sequence_tokens(const struct step_case *what) {
    return what->bench->config->prompt ? what->context : what->context + STEP_REWIND;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int out_of_memory(const struct step_case *what, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "not enough memory for batch %u, context %u",
                        what->batch, what->context);
}

static struct rp_step_config step_config(const struct step_case *what) {
    uint32_t tokens = RP_MAX(sequence_tokens(what), what->bench->config->max_model_len);
    struct rp_step_config step = {.slot_count = what->bucket.rows,
                                  .pages_per_slot =
                                      RP_CEIL_DIV(tokens, what->bench->info.page_tokens),
                                  .row_capacity = what->bucket.rows,
                                  .token_capacity = what->bucket.tokens,
                                  .logit_row_capacity = what->bucket.logit_rows,
                                  .edit_capacity = what->bucket.rows,
                                  .prompt_ring_capacity = 1};
    /* An operator has at most a few launches, and most operators are fused. */
    step.stamp_capacity = 2 * what->program.op_count + 8;
    while (step.prompt_ring_capacity < RP_STEP_RING_ENTRIES * what->bucket.tokens)
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
static void fill_slots(const struct step_case *what, const struct rp_step_view *host) {
    uint32_t pages = RP_CEIL_DIV(sequence_tokens(what), what->bench->info.page_tokens);
    for (uint32_t i = 0; i < what->batch; i++) {
        uint32_t *slot = host->slots + (size_t)i * host->slot_words;
        slot[RP_SLOT_LENGTH] = what->bench->config->prompt ? 0 : what->context;
        slot[RP_SLOT_LAST_TOKEN] = i * 7919u % what->bench->model.config.vocab;
        slot[RP_SLOT_TOP_P] = float_bits(1.0f);
        slot[RP_SLOT_SEED_LOW] = i + 1;
        for (uint32_t page = 0; page < pages; page++)
            slot[RP_SLOT_PAGES + page] = 1 + page * what->batch + (i + page * 3) % what->batch;
    }
}

static int make_state(struct step_case *what, struct rp_error *err) {
    const struct rp_backend *backend = what->bench->backend;
    struct rp_device *device = what->bench->device;
    struct rp_step_config step = step_config(what);
    struct rp_step_view host;
    size_t state = rp_step_state_carve(&step, NULL, &what->view);
    size_t rings = rp_step_rings_carve(&step, NULL, &what->view);
    unsigned char *copy = rp_alloc_aligned(state, RP_CACHE_LINE);
    what->state = backend->alloc(device, state, RP_MEMORY_DEVICE);
    what->rings = backend->alloc(device, rings, RP_MEMORY_HOST);
    if (!copy || !what->state || !what->rings) {
        rp_free_aligned(copy);
        return out_of_memory(what, err);
    }
    memset(copy, 0, state);
    memset(what->rings, 0, rings);
    rp_step_state_carve(&step, what->state, &what->view);
    rp_step_rings_carve(&step, what->rings, &what->view);
    host = what->view;
    rp_step_state_carve(&step, copy, &host);
    fill_slots(what, &host);
    int status = backend->copy(device, what->state, copy, state);
    if (status == RP_OK)
        status = backend->synchronize(device);
    rp_free_aligned(copy);
    return status == RP_OK ? RP_OK : rp_step_device_failed(what->bench, err);
}

static int make_pages(struct step_case *what, struct rp_error *err) {
    struct step_bench *bench = what->bench;
    const struct rp_model_config *model = &bench->model.config;
    struct rp_device_memory memory;
    size_t count =
        1 + (size_t)what->batch * RP_CEIL_DIV(sequence_tokens(what), bench->info.page_tokens);
    if (!rp_kv_layout_init(&what->kv, model->layers, model->kv_heads, model->head_dim,
                           bench->info.page_tokens, bench->config->kv_dtype))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    size_t bytes = count * what->kv.page_stride;
    bench->backend->memory(bench->device, &memory);
    if ((double)bytes > MEMORY_SHARE_MAX * (double)memory.free_bytes ||
        !(what->pages = bench->backend->alloc(bench->device, bytes, RP_MEMORY_DEVICE)))
        return out_of_memory(what, err);
    what->kv.base = what->pages;
    if (rp_random_pattern_fill(bench->backend, bench->device, what->pages, bench->pattern, bytes) !=
            RP_OK ||
        bench->backend->synchronize(bench->device) != RP_OK)
        return rp_step_device_failed(bench, err);
    return RP_OK;
}

/* ---- graphs --------------------------------------------------------------------------------- */

static int make_graphs(struct step_case *what, struct rp_error *err) {
    const struct rp_bench_step_config *config = what->bench->config;
    struct rp_graph_set_config graphs = {.backend = what->bench->backend,
                                         .device = what->bench->device,
                                         .program = &what->program,
                                         .buckets = &what->bucket,
                                         .bucket_count = 1,
                                         .step = what->view,
                                         .kv = &what->kv,
                                         .options = {.no_fusion = config->no_fusion},
                                         .eager = config->enforce_eager};
    return rp_graph_set_create(&graphs, &what->graphs, err);
}

int rp_step_case_open(struct step_bench *bench, uint32_t batch, uint32_t context,
                      struct step_case *what, struct rp_error *err) {
    memset(what, 0, sizeof *what);
    what->bench = bench;
    what->batch = batch;
    what->context = context;
    what->bucket = bench->config->prompt
                       ? (struct rp_bucket){context, PROMPT_LOGITS, PROMPT_LOGITS, false}
                       : (struct rp_bucket){batch, batch, batch, true};
    int status = rp_model_emit(&bench->model, &what->program, err);
    if (status == RP_OK)
        status = make_state(what, err);
    if (status == RP_OK)
        status = make_pages(what, err);
    return status == RP_OK ? make_graphs(what, err) : status;
}

void rp_step_case_close(struct step_case *what) {
    const struct rp_backend *backend = what->bench->backend;
    struct rp_device *device = what->bench->device;
    (void)backend->synchronize(device);
    rp_graph_set_destroy(what->graphs);
    if (what->pages)
        backend->free(device, what->pages, RP_MEMORY_DEVICE);
    if (what->state)
        backend->free(device, what->state, RP_MEMORY_DEVICE);
    if (what->rings)
        backend->free(device, what->rings, RP_MEMORY_HOST);
    rp_program_deinit(&what->program);
    memset(what, 0, sizeof *what);
}

/* ---- packets -------------------------------------------------------------------------------- */

static uint32_t write_prompt(struct step_case *what, struct rp_step_row *row) {
    uint32_t mask = what->view.config.prompt_ring_capacity - 1;
    int32_t *ring = (int32_t *)what->view.prompt_ring;
    *row = (struct rp_step_row){0, what->context, what->prompt_cursor & mask, RP_ROW_SAMPLE};
    for (uint32_t i = 0; i < what->context; i++)
        ring[what->prompt_cursor++ & mask] =
            (int32_t)((i + 1) * 2654435761u % what->bench->model.config.vocab);
    return what->context;
}

static bool is_stamped(const struct step_case *what, uint64_t step) {
    uint32_t every = what->bench->config->stamp_every;
    return every != 0 && step % every == 0;
}

void rp_step_case_write(struct step_case *what) {
    bool prompt = what->bench->config->prompt;
    uint64_t step = ++what->step;
    unsigned char *packet = (unsigned char *)what->view.packets +
                            (step % RP_STEP_RING_ENTRIES) * what->view.packet_bytes;
    struct rp_step_row *rows = rp_packet_rows(packet);
    struct rp_slot_edit *edits = rp_packet_edits(packet, &what->view.config);
    struct rp_packet_header header = {.step = step,
                                      .row_count = what->batch,
                                      .token_count = what->batch,
                                      .logit_row_count = what->batch};
    if (is_stamped(what, step))
        header.flags = RP_PACKET_STAMP;
    if (prompt)
        header.token_count = write_prompt(what, rows);
    for (uint32_t i = 0; i < what->batch && !prompt; i++)
        rows[i] = (struct rp_step_row){i, 1, 0, RP_ROW_DECODE | RP_ROW_SAMPLE};
    if (prompt || step % STEP_REWIND == 0)
        for (uint32_t i = 0; i < what->batch; i++)
            edits[header.edit_count++] =
                (struct rp_slot_edit){i, RP_SLOT_LENGTH, 0, prompt ? 0 : what->context};
    memcpy(packet, &header, sizeof header);
}

int rp_step_case_launch(struct step_case *what) {
    return rp_graph_set_launch(what->graphs, rp_graph_set_entry(what->graphs, 0),
                               what->bench->config->prompt ? what->context : what->batch);
}

int rp_step_case_wait(struct step_case *what, uint64_t step, struct rp_error *err) {
    struct step_bench *bench = what->bench;
    int status =
        bench->backend->wait_step(bench->device, &what->view, step, rp_clock_ns() + WAIT_NS);
    if (status == RP_STATUS_NOT_FOUND)
        return rp_error_set(err, RP_STATUS_DEVICE, "step %llu did not complete within %llu s",
                            (unsigned long long)step, (unsigned long long)(WAIT_NS / 1000000000u));
    return status == RP_OK ? RP_OK : rp_step_device_failed(bench, err);
}

static const char *kernel_name(void *ctx, uint32_t node) {
    const struct step_case *what = ctx;
    const struct rp_graph_entry *entry = rp_graph_set_entry(what->graphs, 0);
    const struct rp_backend *backend = what->bench->backend;
    uint32_t forward = backend->graph_launch_count(entry->forward);
    struct rp_launch_info info;
    backend->graph_launch_info(node < forward ? entry->forward : entry->sample,
                               node < forward ? node : node - forward, &info);
    return info.kernel;
}

static void read_stamps(struct step_case *what, uint64_t step) {
    uint32_t capacity = what->view.config.stamp_capacity;
    uint32_t launches = rp_graph_set_entry(what->graphs, 0)->launches;
    const struct rp_node_stamp *stamps =
        what->view.stamp_ring + step % RP_STEP_RING_ENTRIES * capacity;
    rp_step_nodes_add(&what->nodes, stamps, RP_MIN(launches, capacity), kernel_name, what);
}

int rp_step_case_read(struct step_case *what, uint64_t step, struct step_stamps *out,
                      struct rp_error *err) {
    unsigned char *entry =
        what->view.results + (step % RP_STEP_RING_ENTRIES) * what->view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_row_result *rows = rp_result_rows(entry);
    *out = (struct step_stamps){header->begin_ns, header->end_ns};
    if (is_stamped(what, step))
        read_stamps(what, step);
    if (header->error != 0 || header->row_count != what->batch)
        return rp_error_set(err, RP_STATUS_DEVICE, "step %llu: error %u, %u rows of %u",
                            (unsigned long long)step, header->error, header->row_count,
                            what->batch);
    for (uint32_t i = 0; i < what->batch; i++)
        if (rows[i].flags != 0 || rows[i].token < 0)
            return rp_error_set(
                err, RP_STATUS_DEVICE, "step %llu: row %u has no token: %d, flags %u, length %u",
                (unsigned long long)step, i, rows[i].token, rows[i].flags, rows[i].length);
    return RP_OK;
}

/* ---- the largest GEMM ----------------------------------------------------------------------- */

static int make_gemm_program(const struct step_case *what, uint32_t count, struct rp_program *out) {
    const struct rp_model *model = &what->bench->model;
    const struct rp_matrix *first = rp_model_matrix(model, RP_WEIGHT_GATE_UP, 0);
    rp_program_init(out);
    int32_t x = rp_program_add_tensor(out, RP_ROWS_TOKEN, model->dtype, first->cols, "x");
    int32_t y = rp_program_add_tensor(out, RP_ROWS_TOKEN, RP_DTYPE_F32, first->rows, "y");
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
                           .weight = rp_model_matrix(model, RP_WEIGHT_GATE_UP, i)};
        if (rp_program_add_op(out, &op) < 0)
            return RP_STATUS_NO_MEMORY;
    }
    return RP_OK;
}

struct gemm_graph {
    struct rp_graph *graph;
    unsigned char *arena;
};

static int capture_gemms(struct step_case *what, const struct rp_program *program,
                         struct gemm_graph *out, struct rp_error *err) {
    struct step_bench *bench = what->bench;
    struct rp_lower_options options = {.no_fusion = bench->config->no_fusion};
    size_t bytes, *offsets = rp_calloc(program->tensor_count, sizeof *offsets);
    int status = offsets ? rp_arena_plan(program, &what->bucket, false, offsets, &bytes)
                         : RP_STATUS_NO_MEMORY;
    if (status == RP_OK &&
        !(out->arena = bench->backend->alloc(bench->device, bytes, RP_MEMORY_DEVICE)))
        status = RP_STATUS_NO_MEMORY;
    if (status == RP_STATUS_NO_MEMORY)
        (void)out_of_memory(what, err);
    if (status == RP_OK &&
        (status = rp_random_pattern_fill(bench->backend, bench->device, out->arena, bench->pattern,
                                         bytes)) != RP_OK)
        status = rp_step_device_failed(bench, err);
    struct rp_bindings bindings = {out->arena, offsets, what->view, &what->kv, 0};
    if (status == RP_OK)
        status =
            bench->backend->capture(bench->device, program, 0, program->op_count, &what->bucket,
                                    &bindings, &options, false, &out->graph, err);
    rp_free(offsets);
    return status;
}

static void free_gemms(struct step_case *what, struct gemm_graph *graph) {
    const struct rp_backend *backend = what->bench->backend;
    if (graph->graph)
        backend->graph_destroy(what->bench->device, graph->graph);
    if (graph->arena)
        backend->free(what->bench->device, graph->arena, RP_MEMORY_DEVICE);
}

int rp_step_case_gemm_rate(struct step_case *what, double *out, struct rp_error *err) {
    struct step_bench *bench = what->bench;
    const struct rp_matrix *matrix = rp_model_matrix(&bench->model, RP_WEIGHT_GATE_UP, 0);
    uint32_t count = RP_MIN(bench->model.config.layers, GEMMS_MAX);
    double flops = 2.0 * what->context * matrix->rows * matrix->cols * count * GEMM_REPEATS;
    struct rp_program program;
    struct gemm_graph graph = {0};
    *out = 0.0;
    int status = make_gemm_program(what, count, &program);
    status =
        status == RP_OK ? capture_gemms(what, &program, &graph, err) : out_of_memory(what, err);
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
    free_gemms(what, &graph);
    rp_program_deinit(&program);
    return status;
}
