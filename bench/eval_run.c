#include "bench/eval_run.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/memory.h"
#include "device/step_cpu.h"
#include "graphs/arena_plan.h"

#include <string.h>

#define WAIT_NS      ((uint64_t)120 * 1000000000u)
#define LOGITS_BYTES ((size_t)64 << 20)

uint32_t rp_eval_run_chunk(uint32_t vocab, uint32_t window) {
    size_t fit = LOGITS_BYTES / (RP_MAX(vocab, 1u) * sizeof(float));
    return RP_MIN((uint32_t)RP_MIN(RP_MAX(fit, (size_t)16), (size_t)512), RP_MAX(window, 1u));
}

static int out_of_memory(struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_NO_MEMORY, "not enough memory for this window");
    rp_error_hint(err, "try a smaller --window");
    return status;
}

static int device_failed(const struct rp_eval_run *run, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_DEVICE, "%s",
                        run->config.backend->last_error(run->config.device));
}

static uint32_t page_count(const struct rp_eval_run *run) {
    return RP_CEIL_DIV(run->config.window, run->kv.page_tokens);
}

static struct rp_step_config step_config(const struct rp_eval_run *run) {
    uint32_t chunk = run->config.chunk, pages = page_count(run);
    struct rp_step_config step = {.slot_count = 1,
                                  .pages_per_slot = pages,
                                  .row_capacity = 1,
                                  .token_capacity = chunk,
                                  .logit_row_capacity = chunk,
                                  .edit_capacity = pages + 8,
                                  .prompt_ring_capacity = 1,
                                  .vocab = run->vocab,
                                  .state_places = run->program.state_bytes ? 1 : 0,
                                  .state_stride = run->program.state_bytes};
    while (step.prompt_ring_capacity < RP_STEP_RING_ENTRIES * chunk)
        step.prompt_ring_capacity *= 2;
    return step;
}

static int make_memory(struct rp_eval_run *run, struct rp_error *err) {
    const struct rp_backend *backend = run->config.backend;
    struct rp_device *device = run->config.device;
    size_t kv_bytes, logits_bytes;
    struct rp_step_config step = step_config(run);
    size_t state = rp_step_state_carve(&step, NULL, &run->view);
    size_t rings = rp_step_rings_carve(&step, NULL, &run->view);
    if (rp_mul_overflow((size_t)page_count(run) + 1, run->kv.page_stride, &kv_bytes) ||
        rp_mul_overflow((size_t)run->config.chunk * run->logits_cols, sizeof(float), &logits_bytes))
        return out_of_memory(err);
    run->state = backend->alloc(device, state, RP_MEMORY_DEVICE);
    run->rings = backend->alloc(device, rings, RP_MEMORY_HOST);
    run->pages = backend->alloc(device, kv_bytes, RP_MEMORY_DEVICE);
    run->logits = rp_alloc_aligned(logits_bytes, RP_CACHE_LINE);
    if (!run->state || !run->rings || !run->pages || !run->logits)
        return out_of_memory(err);
    run->kv.base = run->pages;
    memset(run->rings, 0, rings);
    if (backend->fill(device, run->state, 0, state) != RP_OK ||
        backend->fill(device, run->pages, 0, kv_bytes) != RP_OK ||
        backend->synchronize(device) != RP_OK)
        return device_failed(run, err);
    rp_step_state_carve(&step, run->state, &run->view);
    rp_step_rings_carve(&step, run->rings, &run->view);
    return RP_OK;
}

/* Looks up the arena offset of the tensor `logits`. */
static int find_logits(struct rp_eval_run *run, const struct rp_bucket *bucket,
                       struct rp_error *err) {
    size_t bytes, *offsets = rp_calloc(run->program.tensor_count, sizeof *offsets);
    int status = offsets
                     ? rp_arena_plan(&run->program, bucket, run->config.guarded, offsets, &bytes)
                     : RP_STATUS_NO_MEMORY;
    if (status == RP_OK) {
        status = RP_STATUS_NOT_FOUND;
        for (uint32_t i = 0; i < run->program.tensor_count; i++)
            if (strcmp(run->program.tensors[i].name, "logits") == 0) {
                run->logits_offset = offsets[i];
                status = RP_OK;
            }
    }
    rp_free(offsets);
    return status == RP_OK ? RP_OK
                           : rp_error_set(err, status, "arena plan: %s", rp_status_text(status));
}

static int make_graphs(struct rp_eval_run *run, struct rp_error *err) {
    const struct rp_bucket bucket = {run->config.chunk, 1, run->config.chunk, false};
    struct rp_graph_set_config graphs = {.backend = run->config.backend,
                                         .device = run->config.device,
                                         .program = &run->program,
                                         .buckets = &bucket,
                                         .bucket_count = 1,
                                         .step = run->view,
                                         .kv = &run->kv,
                                         .options = {.no_fusion = run->config.no_fusion},
                                         .eager = run->config.eager,
                                         .guarded = run->config.guarded};
    int status = rp_graph_set_create(&graphs, &run->graphs, err);
    return status == RP_OK ? find_logits(run, &bucket, err) : status;
}

int rp_eval_run_open(const struct rp_eval_run_config *config, struct rp_eval_run *out,
                     struct rp_error *err) {
    const struct rp_model_config *model = &config->model->config;
    struct rp_device_info info;
    memset(out, 0, sizeof *out);
    out->config = *config;
    out->vocab = model->vocab;
    config->backend->info(config->device, &info);
    if (!rp_model_has_equal_layers(model))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "eval: this model's layers have different K and V, for which it has no "
                            "pages");
    if (!rp_model_kv_layout(config->model, info.page_tokens, config->kv_dtype, &out->kv))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    int status = rp_model_emit(config->model, &out->program, err);
    for (uint32_t i = 0; status == RP_OK && i < out->program.tensor_count; i++)
        if (strcmp(out->program.tensors[i].name, "logits") == 0)
            out->logits_cols = out->program.tensors[i].cols;
    if (status == RP_OK)
        status = make_memory(out, err);
    return status == RP_OK ? make_graphs(out, err) : status;
}

void rp_eval_run_close(struct rp_eval_run *run) {
    const struct rp_backend *backend = run->config.backend;
    struct rp_device *device = run->config.device;
    if (!backend)
        return;
    (void)backend->synchronize(device);
    rp_graph_set_destroy(run->graphs);
    if (run->pages)
        backend->free(device, run->pages, RP_MEMORY_DEVICE);
    if (run->state)
        backend->free(device, run->state, RP_MEMORY_DEVICE);
    if (run->rings)
        backend->free(device, run->rings, RP_MEMORY_HOST);
    rp_free_aligned(run->logits);
    rp_program_deinit(&run->program);
    memset(run, 0, sizeof *run);
}

static uint32_t write_edits(struct rp_eval_run *run, struct rp_slot_edit *edits, bool restart) {
    uint32_t count = 0;
    const float one = 1.0f;
    uint32_t bits;
    memcpy(&bits, &one, sizeof bits);
    if (run->step == 1) { /* page 0 belongs to no sequence */
        edits[count++] = (struct rp_slot_edit){0, RP_SLOT_TOP_P, 0, bits};
        for (uint32_t i = 0; i < page_count(run); i++)
            edits[count++] = (struct rp_slot_edit){0, RP_SLOT_PAGES, i, 1 + i};
    }
    if (restart)
        edits[count++] = (struct rp_slot_edit){0, RP_SLOT_LENGTH, 0, 0};
    return count;
}

static void write_packet(struct rp_eval_run *run, const int32_t *ids, uint32_t count,
                         bool restart) {
    uint64_t step = ++run->step;
    uint32_t mask = run->view.config.prompt_ring_capacity - 1;
    int32_t *ring = (int32_t *)run->view.prompt_ring;
    unsigned char *packet =
        (unsigned char *)run->view.packets + (step % RP_STEP_RING_ENTRIES) * run->view.packet_bytes;
    rp_packet_rows(packet)[0] =
        (struct rp_step_row){0, count, run->prompt_cursor & mask, RP_ROW_SCORE};
    for (uint32_t i = 0; i < count; i++)
        ring[run->prompt_cursor++ & mask] = ids[i];
    struct rp_packet_header header = {
        .step = step, .row_count = 1, .token_count = count, .logit_row_count = count};
    header.edit_count = write_edits(run, rp_packet_edits(packet, &run->view.config), restart);
    memcpy(packet, &header, sizeof header);
}

static int check_result(const struct rp_eval_run *run, struct rp_error *err) {
    unsigned char *entry =
        run->view.results + (run->step % RP_STEP_RING_ENTRIES) * run->view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    if (header->error == 0 && header->row_count == 1)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_DEVICE, "step %llu: error %u", (unsigned long long)run->step,
                        header->error);
}

int rp_eval_run_feed(struct rp_eval_run *run, const int32_t *ids, uint32_t count, bool restart,
                     const float **out, struct rp_error *err) {
    const struct rp_backend *backend = run->config.backend;
    struct rp_device *device = run->config.device;
    if (restart)
        run->length = 0;
    RP_ASSERT(count > 0 && count <= run->config.chunk);
    RP_ASSERT_CMP(count, <=, run->config.window - run->length);
    run->length += count;
    write_packet(run, ids, count, restart);
    if (rp_graph_set_launch(run->graphs, rp_graph_set_entry(run->graphs, 0), count) != RP_OK)
        return device_failed(run, err);
    int status = backend->wait_step(device, &run->view, run->step, rp_clock_ns() + WAIT_NS);
    if (status == RP_STATUS_NOT_FOUND)
        return rp_error_set(err, RP_STATUS_DEVICE, "a step did not complete within %u s",
                            (unsigned)(WAIT_NS / 1000000000u));
    if (status != RP_OK ||
        backend->copy(device, run->logits, rp_graph_set_arena(run->graphs) + run->logits_offset,
                      (size_t)count * run->logits_cols * sizeof(float)) != RP_OK ||
        backend->synchronize(device) != RP_OK)
        return device_failed(run, err);
    /* In a group rows are padded. */
    for (uint32_t row = 1; row < count && run->logits_cols != run->vocab; row++)
        memmove(run->logits + (size_t)row * run->vocab,
                run->logits + (size_t)row * run->logits_cols, run->vocab * sizeof(float));
    *out = run->logits;
    return check_result(run, err);
}
