#include "tests/support/driver.h"

#include "backend/group.h"
#include "base/memory.h"
#include "device/step_cpu.h"
#include "engine/weights_on_device.h"
#include "graphs/arena_plan.h"

#include <stdio.h>
#include <string.h>

static struct rp_step_config step_config(const struct rp_driver_config *config, uint32_t tables) {
    struct rp_step_config step = {.slot_count = config->slots,
                                  .pages_per_slot = tables * config->pages_per_slot,
                                  .row_capacity = config->slots,
                                  .logit_row_capacity = 1,
                                  .edit_capacity = 4096,
                                  .stamp_capacity = config->stamp_capacity};
    for (uint32_t i = 0; i < config->bucket_count; i++) {
        step.token_capacity = RP_MAX(step.token_capacity, config->buckets[i].tokens);
        step.logit_row_capacity = RP_MAX(step.logit_row_capacity, config->buckets[i].logit_rows);
    }
    step.prompt_ring_capacity = 1;
    while (step.prompt_ring_capacity < 4 * step.token_capacity)
        step.prompt_ring_capacity *= 2;
    return step;
}

static int32_t find_tensor(const struct rp_program *program, const char *name) {
    for (uint32_t i = 0; i < program->tensor_count; i++)
        if (strcmp(program->tensors[i].name, name) == 0)
            return (int32_t)i;
    return RP_NO_TENSOR;
}

static void find_logits(struct rp_driver *driver) {
    int32_t logits = find_tensor(&driver->program, "logits");
    RP_ASSERT(logits != RP_NO_TENSOR);
    driver->logits_cols = driver->program.tensors[logits].cols;
    uint32_t count = rp_graph_set_count(driver->graphs);
    driver->logits_offsets = rp_calloc(count, sizeof *driver->logits_offsets);
    size_t *offsets = rp_calloc(driver->program.tensor_count, sizeof *offsets), bytes;
    for (uint32_t i = 0; i < count; i++) {
        RP_ASSERT(rp_arena_plan(&driver->program, &rp_graph_set_entry(driver->graphs, i)->bucket,
                                driver->config.guarded, offsets, &bytes) == RP_OK);
        driver->logits_offsets[i] = offsets[logits];
    }
    rp_free(offsets);
}

static void make_graphs(struct rp_driver *driver) {
    const struct rp_driver_config *config = &driver->config;
    struct rp_error err = {0};
    struct rp_graph_set_config graphs = {.backend = driver->backend,
                                         .device = driver->device,
                                         .program = &driver->program,
                                         .buckets = config->buckets,
                                         .bucket_count = config->bucket_count,
                                         .step = driver->view,
                                         .kv = &driver->kv,
                                         .geometry = &driver->geometry,
                                         .options = {.no_fusion = config->no_fusion},
                                         .eager = config->eager,
                                         .poison = config->poison,
                                         .guarded = config->guarded};
    RP_ASSERT(rp_graph_set_create(&graphs, &driver->graphs, &err) == RP_OK);
    find_logits(driver);
    if (config->free_program) {
        memset(driver->program.ops, 0xFF, driver->program.op_count * sizeof *driver->program.ops);
        memset(driver->program.tensors, 0xFF,
               driver->program.tensor_count * sizeof *driver->program.tensors);
        rp_program_deinit(&driver->program);
    }
}

static void make_geometry(struct rp_driver *driver) {
    const struct rp_driver_config *config = &driver->config;
    const struct rp_program *program = &driver->program;
    struct rp_kv_layer layers[RP_KV_LAYERS_MAX];
    for (uint32_t i = 0; i < driver->model->config.layers; i++)
        layers[i] = (struct rp_kv_layer){.source = i};
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        if (op->kind != RP_OP_ATTENTION)
            continue;
        layers[op->layer].kv_heads = op->u.attention.kv_heads;
        layers[op->layer].head_dim = op->u.attention.head_dim;
        layers[op->layer].latent = op->u.attention.value_dim != 0;
        layers[op->layer].source = op->layer - op->u.attention.kv_back;
        layers[op->layer].window = config->groups ? op->u.attention.window : 0;
    }
    RP_ASSERT(rp_kv_geometry_make(&driver->geometry, layers, driver->model->config.layers,
                                  config->page_tokens, config->kv_dtype));
    driver->kv = driver->geometry.layouts[0];
}

void rp_driver_open(struct rp_driver *driver, struct rp_model *model,
                    const struct rp_driver_config *config) {
    struct rp_device_config device = {.ranks = config->ranks,
                                      .threads = config->threads,
                                      .scalar_only = config->scalar_only,
                                      .no_dependent_launch = config->no_dependent_launch,
                                      .ranks_share_device = config->ranks_share_device,
                                      .launch_threads = config->launch_threads,
                                      .short_steps_here = config->short_steps_here};
    memset(driver, 0, sizeof *driver);
    driver->config = *config;
    driver->model = model;
    RP_ASSERT(rp_group_open(config->backend ? config->backend : rp_backend_cpu(), &device,
                            &driver->backend, &driver->device, NULL) == RP_OK);
    RP_ASSERT(model->ranks || rp_model_shard(model, config->ranks, NULL) == RP_OK);
    RP_ASSERT(rp_weights_prepare(driver->backend, driver->device, model, &driver->prepared, NULL,
                                 NULL, NULL) == RP_OK);
    RP_ASSERT(rp_model_emit(model, &driver->program, NULL) == RP_OK);
    if (config->edit)
        config->edit(&driver->program);
    make_geometry(driver);
    struct rp_step_config step = step_config(config, driver->geometry.groups.count);
    step.state_stride = driver->program.state_bytes;
    step.state_places = step.state_stride ? 2 * config->slots : 0;
    size_t kv_bytes = ((size_t)config->slots * step.pages_per_slot + 1) * driver->kv.page_stride;
    driver->kv.base = driver->backend->alloc(driver->device, kv_bytes, RP_MEMORY_DEVICE);
    /* NaN shows reads of unwritten memory */
    RP_ASSERT(driver->backend->fill(driver->device, driver->kv.base, 0xFF, kv_bytes) == RP_OK);
    size_t state = rp_step_state_carve(&step, NULL, &driver->view);
    size_t rings = rp_step_rings_carve(&step, NULL, &driver->view);
    driver->state = driver->backend->alloc(driver->device, state, RP_MEMORY_DEVICE);
    driver->rings = driver->backend->alloc(driver->device, rings, RP_MEMORY_HOST);
    RP_ASSERT(driver->backend->fill(driver->device, driver->state, 0, state) == RP_OK);
    RP_ASSERT(driver->backend->synchronize(driver->device) == RP_OK);
    memset(driver->rings, 0, rings);
    rp_step_state_carve(&step, driver->state, &driver->view);
    rp_step_rings_carve(&step, driver->rings, &driver->view);
    RP_ASSERT(!step.state_places ||
              driver->backend->fill(driver->device, driver->view.state, 0xFF,
                                    step.state_places * step.state_stride) == RP_OK);
    for (uint32_t slot = 0; slot < config->slots; slot++) {
        rp_driver_edit_float(driver, slot, RP_SLOT_TOP_P, 1.0f);
        for (uint32_t i = 0; i < step.pages_per_slot; i++)
            rp_driver_edit(driver, slot, RP_SLOT_PAGES, i, 1 + slot * step.pages_per_slot + i);
    }
    make_graphs(driver);
    driver->decode_only = true;
}

void rp_driver_close(struct rp_driver *driver) {
    if (!driver->device)
        return;
    rp_graph_set_destroy(driver->graphs);
    driver->backend->free(driver->device, driver->kv.base, RP_MEMORY_DEVICE);
    driver->backend->free(driver->device, driver->state, RP_MEMORY_DEVICE);
    driver->backend->free(driver->device, driver->rings, RP_MEMORY_HOST);
    rp_weights_release(driver->backend, driver->device, driver->model, driver->prepared);
    driver->backend->close(driver->device);
    rp_program_deinit(&driver->program);
    rp_free(driver->logits_offsets);
    rp_free(driver->logits);
    memset(driver, 0, sizeof *driver);
}

static unsigned char *packet_of(struct rp_driver *driver, uint64_t step) {
    return (unsigned char *)driver->view.packets +
           (step % RP_STEP_RING_ENTRIES) * driver->view.packet_bytes;
}

void rp_driver_edit(struct rp_driver *driver, uint32_t slot, uint32_t field, uint32_t index,
                    uint32_t value) {
    struct rp_slot_edit *edits =
        rp_packet_edits(packet_of(driver, driver->step + 1), &driver->view.config);
    RP_ASSERT(driver->edit_count < driver->view.config.edit_capacity);
    edits[driver->edit_count++] = (struct rp_slot_edit){slot, field, index, value};
}

void rp_driver_edit_float(struct rp_driver *driver, uint32_t slot, uint32_t field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    rp_driver_edit(driver, slot, field, 0, bits);
}

void rp_driver_row(struct rp_driver *driver, uint32_t slot, const int32_t *tokens, uint32_t count,
                   bool sample) {
    struct rp_step_row *rows = rp_packet_rows(packet_of(driver, driver->step + 1));
    uint32_t mask = driver->view.config.prompt_ring_capacity - 1;
    int32_t *ring = (int32_t *)driver->view.prompt_ring;
    rows[driver->row_count++] =
        (struct rp_step_row){slot, count, driver->prompt_cursor & mask,
                             (tokens ? 0u : RP_ROW_DECODE) | (sample ? RP_ROW_SAMPLE : 0u)};
    for (uint32_t i = 0; tokens && i < count; i++)
        ring[driver->prompt_cursor++ & mask] = tokens[i];
    driver->token_count += count;
    driver->logit_row_count += sample;
    driver->decode_only = driver->decode_only && !tokens && sample;
}

uint64_t rp_driver_submit(struct rp_driver *driver, struct rp_graph_entry *entry) {
    uint64_t step = ++driver->step;
    struct rp_packet_header *header = (struct rp_packet_header *)(void *)packet_of(driver, step);
    *header = (struct rp_packet_header){.step = step,
                                        .row_count = driver->row_count,
                                        .token_count = driver->token_count,
                                        .logit_row_count = driver->logit_row_count,
                                        .edit_count = driver->edit_count,
                                        .flags = driver->packet_flags};
    driver->entry = entry
                        ? entry
                        : rp_graph_set_pick(driver->graphs, driver->token_count, driver->row_count,
                                            driver->logit_row_count, driver->decode_only);
    RP_ASSERT(driver->entry);
    RP_ASSERT(rp_graph_set_launch(driver->graphs, driver->entry, driver->token_count) == RP_OK);
    driver->row_count = driver->token_count = driver->logit_row_count = driver->edit_count = 0;
    driver->decode_only = true;
    return step;
}

void rp_driver_wait(struct rp_driver *driver, uint64_t step) {
    int status = driver->backend->wait_step(driver->device, &driver->view, step, UINT64_MAX);
    if (status != RP_OK)
        fprintf(stderr, "step %llu, bucket of %u tokens%s, hidden %u, head dim %u: %s: %s\n",
                (unsigned long long)step, driver->entry->bucket.tokens,
                driver->entry->bucket.decode ? ", decode" : "", driver->model->config.hidden,
                driver->model->config.head_dim, rp_status_name(status),
                driver->backend->last_error(driver->device));
    RP_ASSERT(status == RP_OK);
}

void rp_driver_run(struct rp_driver *driver, struct rp_graph_entry *entry) {
    rp_driver_wait(driver, rp_driver_submit(driver, entry));
    RP_ASSERT(driver->backend->synchronize(driver->device) == RP_OK);
}

const struct rp_row_result *rp_driver_result_of(const struct rp_driver *driver, uint64_t step,
                                                uint32_t row) {
    unsigned char *entry =
        driver->view.results + (step % RP_STEP_RING_ENTRIES) * driver->view.result_bytes;
    return &rp_result_rows(entry)[row];
}

const struct rp_row_result *rp_driver_result(const struct rp_driver *driver, uint32_t row) {
    return rp_driver_result_of(driver, driver->step, row);
}

const struct rp_node_stamp *rp_driver_stamps_of(const struct rp_driver *driver, uint64_t step) {
    return driver->view.stamp_ring +
           (size_t)(step % RP_STEP_RING_ENTRIES) * driver->config.stamp_capacity;
}

const float *rp_driver_logits(struct rp_driver *driver, uint32_t logit_row) {
    uint32_t vocab = driver->logits_cols, rows = driver->entry->bucket.logit_rows;
    size_t index = (size_t)(driver->entry - rp_graph_set_entry(driver->graphs, 0));
    if (driver->logits_step != driver->step) {
        const unsigned char *from =
            rp_graph_set_arena(driver->graphs) + driver->logits_offsets[index];
        size_t bytes = (size_t)rows * vocab * sizeof *driver->logits;
        if (!driver->logits)
            driver->logits = rp_calloc((size_t)driver->view.config.logit_row_capacity * vocab,
                                       sizeof *driver->logits);
        RP_ASSERT(driver->logits);
        RP_ASSERT(driver->backend->copy(driver->device, driver->logits, from, bytes) == RP_OK);
        RP_ASSERT(driver->backend->synchronize(driver->device) == RP_OK);
        driver->logits_step = driver->step;
    }
    return driver->logits + (size_t)logit_row * vocab;
}
