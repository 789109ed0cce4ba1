#include "bench/attention_case.h"

#include "attention/mask/mask.h"
#include "base/memory.h"
#include "bench/random_pattern.h"
#include "bench/replay_time.h"
#include "device/step_cpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COPIES_MAX 64u

static const struct rp_view nothing = {RP_NO_TENSOR, 0, 0};

/* ---- the step ------------------------------------------------------------------------------- */

static uint32_t queries(const struct rp_attention_shape *shape) {
    return shape->prompt ? shape->length : 1;
}

static int open_step(struct attention_case *c, struct rp_error *err) {
    const struct attention_bench *bench = c->bench;
    struct rp_step_config step = {.slot_count = c->shape.batch,
                                  .pages_per_slot = c->slot_pages,
                                  .row_capacity = c->shape.batch,
                                  .token_capacity = c->bucket.tokens,
                                  .logit_row_capacity = c->shape.batch,
                                  .edit_capacity = 1,
                                  .prompt_ring_capacity = 1};
    while (step.prompt_ring_capacity < step.token_capacity)
        step.prompt_ring_capacity *= 2;
    c->state_bytes = rp_step_state_carve(&step, NULL, &c->host);
    size_t ring_bytes = rp_step_rings_carve(&step, NULL, &c->host);
    c->host_state = rp_alloc_aligned(c->state_bytes, RP_CACHE_LINE);
    c->device_state = bench->backend->alloc(bench->device, c->state_bytes, RP_MEMORY_DEVICE);
    c->rings = bench->backend->alloc(bench->device, ring_bytes, RP_MEMORY_HOST);
    if (!c->host_state || !c->device_state || !c->rings)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the step state");
    memset(c->host_state, 0, c->state_bytes);
    memset(c->rings, 0, ring_bytes);
    rp_step_state_carve(&step, c->host_state, &c->host);
    rp_step_rings_carve(&step, c->rings, &c->host);
    rp_step_state_carve(&step, c->device_state, &c->view);
    rp_step_rings_carve(&step, c->rings, &c->view);
    return RP_OK;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

uint32_t rp_attention_case_page(const struct attention_case *c, uint32_t sequence, uint32_t index) {
    uint64_t count = (uint64_t)c->shape.batch * c->slot_pages;
    uint64_t factor = (uint64_t)((double)count * 0.618) | 1u; /* neighboring pages are far apart */
    while (common_divisor(factor, count) != 1)
        factor += 2;
    return 1 + (uint32_t)(((uint64_t)sequence * c->slot_pages + index) * factor % count);
}

/* The state after STEP_BEGIN, and a packet that produces the same state in every replay. */
static int fill_step(struct attention_case *c) {
    const struct attention_bench *bench = c->bench;
    const struct rp_attention_shape *shape = &c->shape;
    int32_t params[RP_MASK_PARAMS_MAX];
    struct rp_cpu_worker worker = {.index = 0, .count = 1};
    unsigned char *packet = c->rings + c->host.packet_bytes; /* entry 1 belongs to step 1 */
    struct rp_packet_header header = {.step = 1,
                                      .row_count = shape->batch,
                                      .token_count = c->bucket.tokens,
                                      .logit_row_count = shape->batch};
    rp_attention_shape_params(shape, params);
    for (uint32_t i = 0; i < shape->batch; i++) {
        uint32_t *slot = c->host.slots + (size_t)i * c->host.slot_words;
        slot[RP_SLOT_LENGTH] = shape->length - queries(shape);
        memcpy(slot + RP_SLOT_MASK_PARAMS, params, sizeof params);
        for (uint32_t page = 0; page < c->slot_pages; page++)
            slot[RP_SLOT_PAGES + page] = rp_attention_case_page(c, i, page);
        rp_packet_rows(packet)[i] =
            (struct rp_step_row){.slot = i,
                                 .token_count = queries(shape),
                                 .flags = RP_ROW_SAMPLE | (shape->prompt ? 0 : RP_ROW_DECODE)};
    }
    memcpy(packet, &header, sizeof header);
    rp_step_begin_cpu(&(struct rp_step_begin_args){.step = c->host}, &worker);
    RP_ASSERT(c->host.counts->error == 0);
    return bench->backend->copy(bench->device, c->device_state, c->host_state, c->state_bytes);
}

/* ---- the program ---------------------------------------------------------------------------- */

static int add_attention(const struct attention_case *c, struct rp_program *program,
                         uint32_t repeat) {
    const struct rp_attention_shape *shape = &c->shape;
    uint32_t copy = repeat % c->copies;
    struct rp_op op = {.kind = RP_OP_ATTENTION,
                       .rows = RP_ROWS_TOKEN,
                       .layer = (uint16_t)copy,
                       .in_count = 1,
                       .in = {rp_view_all(program, (int32_t)(2 * copy))},
                       .out = rp_view_all(program, (int32_t)(2 * copy + 1))};
    op.u.attention.heads = shape->heads;
    op.u.attention.kv_heads = shape->kv_heads;
    op.u.attention.head_dim = shape->head_dim;
    op.u.attention.scale = shape->scale;
    op.u.attention.window = shape->window;
    op.u.attention.soft_cap = shape->soft_cap;
    op.u.attention.mask = shape->mask;
    op.u.attention.mask_text = shape->mask ? rp_mask_text(shape->mask) : NULL;
    snprintf(op.name, sizeof op.name, "attention.%u", repeat);
    return rp_program_add_op(program, &op) < 0 ? RP_STATUS_NO_MEMORY : RP_OK;
}

static int make_program(const struct attention_case *c, uint32_t repeats,
                        struct rp_program *program) {
    uint32_t columns = c->shape.heads * c->shape.head_dim;
    struct rp_op begin = {.kind = RP_OP_STEP_BEGIN,
                          .rows = RP_ROWS_NONE,
                          .layer = RP_LAYER_NONE,
                          .name = "step_begin",
                          .out = nothing};
    rp_program_init(program);
    for (uint32_t i = 0; i < c->copies; i++)
        if (rp_program_add_tensor(program, RP_ROWS_TOKEN, RP_DTYPE_F32, columns, "q.%u", i) < 0 ||
            rp_program_add_tensor(program, RP_ROWS_TOKEN, c->bench->config->dtype, columns,
                                  "out.%u", i) < 0)
            return RP_STATUS_NO_MEMORY;
    int status = rp_program_add_op(program, &begin) < 0 ? RP_STATUS_NO_MEMORY : RP_OK;
    for (uint32_t i = 0; i < repeats && status == RP_OK; i++)
        status = add_attention(c, program, i);
    program->sample_begin = program->op_count;
    return status;
}

enum rp_dtype rp_attention_page_dtype(const struct rp_bench_attention_config *config) {
    return rp_dtype_bytes(config->quantized) == 1 ? config->quantized : config->dtype;
}

/* Bytes of one q and one output. */
static void tensor_bytes(const struct attention_case *c, size_t out[2]) {
    size_t values = (size_t)c->bucket.tokens * c->shape.heads * c->shape.head_dim;
    out[0] = RP_ALIGN_UP(values * sizeof(float), 256);
    out[1] = RP_ALIGN_UP(values * rp_dtype_bytes(c->bench->config->dtype), 256);
}

size_t rp_attention_case_offset(const struct attention_case *c, uint32_t tensor) {
    size_t bytes[2];
    tensor_bytes(c, bytes);
    return tensor / 2 * (bytes[0] + bytes[1]) + tensor % 2 * bytes[0];
}

static void destroy_graphs(struct attention_case *c) {
    c->bench->backend->graph_destroy(c->bench->device, c->graph);
    c->bench->backend->graph_destroy(c->bench->device, c->start);
    c->graph = c->start = NULL;
}

int rp_attention_case_capture(struct attention_case *c, uint32_t repeats, struct rp_error *err) {
    const struct rp_backend *backend = c->bench->backend;
    struct rp_device *device = c->bench->device;
    struct rp_lower_options options = {.no_fusion = true};
    struct rp_program program;
    destroy_graphs(c);
    int status = make_program(c, repeats, &program);
    size_t *offsets = rp_calloc(program.tensor_count + 1, sizeof *offsets);
    if (status != RP_OK || !offsets) {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a program");
        goto done;
    }
    for (uint32_t i = 0; i < program.tensor_count; i++)
        offsets[i] = rp_attention_case_offset(c, i);
    struct rp_bindings bindings = {c->arena, offsets, c->view, &c->kv, 0, NULL};
    status = backend->capture(device, &program, 0, program.op_count, &c->bucket, &bindings,
                              &options, false, &c->graph, err);
    if (status == RP_OK) /* from the same program, because the start plans for its attention */
        status = backend->capture(device, &program, 0, 1, &c->bucket, &bindings, &options, false,
                                  &c->start, err);
    c->repeats = repeats;
    if (status == RP_OK) {
        struct rp_replay replay = {backend, device, c->graph, c->start, repeats};
        rp_replay_kernels(&replay, c->kernel);
    }
done:
    rp_free(offsets);
    rp_program_deinit(&program);
    return status;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int allocate(const struct attention_case *c, size_t bytes, unsigned char **out,
                    struct rp_error *err) {
    const struct attention_bench *bench = c->bench;
    return rp_random_pattern_alloc(bench->backend, bench->device, bench->pattern, bytes, out, err);
}

/* Enough copies that the K and V read under the mask fill cold_bytes; for prefill together with q
 * and output. */
static uint32_t count_copies(const struct attention_case *c) {
    struct rp_attention_seen seen = rp_attention_count_seen(&c->shape);
    double bytes = 2 * seen.keys *
                   rp_kv_token_bytes(rp_attention_page_dtype(c->bench->config), c->shape.head_dim);
    if (c->shape.prompt)
        bytes += (double)rp_attention_case_offset(c, 2);
    double copies = ceil((double)c->bench->cold_bytes / RP_MAX(bytes, 1.0));
    return copies < COPIES_MAX ? RP_MAX((uint32_t)copies, 1u) : COPIES_MAX;
}

static int make_memory(struct attention_case *c, struct rp_error *err) {
    const struct rp_attention_shape *shape = &c->shape;
    c->copies = c->bench->config->dump_dir ? 1 : count_copies(c);
    if (!rp_kv_layout_init(&c->kv, c->copies, shape->kv_heads, shape->head_dim, shape->page_tokens,
                           rp_attention_page_dtype(c->bench->config)))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    size_t pages = 1 + (size_t)shape->batch * c->slot_pages;
    int status = allocate(c, pages * c->kv.page_stride, &c->pages, err);
    c->kv.base = c->pages;
    if (status == RP_OK)
        status = allocate(c, rp_attention_case_offset(c, 2 * c->copies), &c->arena, err);
    return status;
}

int rp_attention_case_open(struct attention_bench *bench, const struct rp_attention_shape *shape,
                           struct attention_case *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    out->bench = bench;
    out->shape = *shape;
    if (!shape->page_tokens)
        out->shape.page_tokens = bench->info.page_tokens;
    if (shape->scale == 0.0f)
        out->shape.scale = 1.0f / sqrtf((float)shape->head_dim);
    uint64_t tokens = (uint64_t)shape->batch * queries(shape);
    if (tokens * shape->heads * shape->head_dim > UINT32_MAX)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%llu tokens in one step",
                            (unsigned long long)tokens);
    out->bucket = (struct rp_bucket){.tokens = (uint32_t)tokens,
                                     .rows = shape->batch,
                                     .logit_rows = shape->batch,
                                     .decode = !shape->prompt};
    out->slot_pages = RP_CEIL_DIV(shape->length, out->shape.page_tokens);
    int status = open_step(out, err);
    if (status == RP_OK)
        status = fill_step(out);
    if (status == RP_OK)
        status = make_memory(out, err);
    return status == RP_OK ? bench->backend->synchronize(bench->device) : status;
}

void rp_attention_case_close(struct attention_case *c) {
    const struct rp_backend *backend = c->bench->backend;
    struct rp_device *device = c->bench->device;
    destroy_graphs(c);
    rp_free_aligned(c->host_state);
    if (c->device_state)
        backend->free(device, c->device_state, RP_MEMORY_DEVICE);
    if (c->rings)
        backend->free(device, c->rings, RP_MEMORY_HOST);
    if (c->arena)
        backend->free(device, c->arena, RP_MEMORY_DEVICE);
    if (c->pages)
        backend->free(device, c->pages, RP_MEMORY_DEVICE);
    memset(c, 0, sizeof *c);
}
