#include "tests/support/fake_backend.h"

#include "base/bf16.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "kvcache/kv_layout.h"
#include "quant/matrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 4096, GRAPHS = 4096, ADDRESS_FACTOR = 16 };

/* Blocks of device memory; bytes 0: freed. */
struct block {
    size_t offset, bytes, committed;
    bool is_range;
};

/* A captured graph with what it borrows. */
struct fake_graph {
    struct rp_graph *graph;
    struct rp_matrix *matrices; /* with the kernels' addresses */
    bool launched;
};

/* What matrices_end writes to the GPU, or to scales, which stay with the host. */
struct fill {
    void *to, *from; /* from: owned */
    size_t bytes;
};

struct fake {
    struct rp_device *cpu;
    struct fake_backend_config config;
    unsigned char *seen, *given; /* mapped for kernels; inaccessible, for the host */
    size_t size, next;           /* addresses, and the next free one */
    struct block blocks[BLOCKS];
    uint32_t block_count;
    struct fake_graph graphs[GRAPHS];
    uint32_t graph_count, capture_count;
    struct fill fills[2 * BLOCKS];
    uint32_t fill_count, filled;
    uint64_t allocated, unseen, count;
    uint64_t exchange_bytes; /* of allocated: in a group, two blocks */
};

struct fake_backend_config fake_backend_config;
uint32_t fake_backend_quantized;
static struct fake *open_device;

void fake_backend_reset(void) {
    fake_backend_config = (struct fake_backend_config){.memory_bytes = (uint64_t)256 << 20,
                                                       .context_bytes = (uint64_t)8 << 20,
                                                       .capture_bytes = 64 << 10,
                                                       .first_replay_bytes = 64 << 10,
                                                       .granule = 128 << 10};
}

static struct fake *fake_of(struct rp_device *device) { return (struct fake *)(void *)device; }

/* The kernels' address; addresses outside the GPU are the host's. */
static void *seen_at(const struct fake *fake, const void *given) {
    const unsigned char *at = given;
    return at >= fake->given && at < fake->given + fake->size ? fake->seen + (at - fake->given)
                                                              : (void *)(uintptr_t)at;
}

static uint64_t free_bytes(const struct fake *fake) {
    uint64_t used = fake->allocated + fake->unseen;
    return fake->config.memory_bytes > used ? fake->config.memory_bytes - used : 0;
}

static int fake_open(const struct rp_device_config *config, struct rp_device **out,
                     struct rp_error *err) {
    struct fake *fake = rp_calloc(1, sizeof *fake);
    if (!fake)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "fake: out of memory");
    int status = rp_backend_cpu()->open(config, &fake->cpu, err);
    if (status != RP_OK) {
        rp_free(fake);
        return status;
    }
    fake->config = fake_backend_config;
    fake->unseen = fake->config.context_bytes;
    fake->size = fake->config.memory_bytes * ADDRESS_FACTOR;
    fake->seen = mmap(NULL, fake->size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fake->given =
        mmap(NULL, fake->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RP_ASSERT(fake->seen != MAP_FAILED && fake->given != MAP_FAILED);
    open_device = fake;
    *out = (struct rp_device *)(void *)fake;
    return RP_OK;
}

static void fake_close(struct rp_device *device) {
    struct fake *fake = fake_of(device);
    RP_ASSERT_CMP(fake->allocated, ==, fake->exchange_bytes); /* everything was freed */
    rp_backend_cpu()->close(fake->cpu);
    munmap(fake->seen, fake->size);
    munmap(fake->given, fake->size);
    open_device = NULL;
    rp_free(fake);
}

static void fake_info(struct rp_device *device, struct rp_device_info *out) {
    struct fake *fake = fake_of(device);
    rp_backend_cpu()->info(fake->cpu, out);
    snprintf(out->name, sizeof out->name, "fake GPU");
    out->memory_bytes = fake->config.memory_bytes;
    out->separate_memory = true;
    out->decode_differs = fake->config.decode_differs;
}

static struct block *new_block(struct fake *fake, size_t bytes, bool is_range) {
    size_t granule = fake->config.granule, rounded = RP_CEIL_DIV(bytes, granule) * granule;
    if (fake->next + rounded > fake->size || fake->block_count == BLOCKS)
        return NULL;
    struct block *block = &fake->blocks[fake->block_count++];
    *block = (struct block){fake->next, bytes, 0, is_range};
    fake->next += rounded + granule; /* never reused, followed by a gap */
    return block;
}

static struct block *find_block(struct fake *fake, const void *given) {
    size_t offset = (size_t)((const unsigned char *)given - fake->given);
    for (uint32_t i = 0; i < fake->block_count; i++)
        if (fake->blocks[i].offset == offset)
            return &fake->blocks[i];
    RP_ASSERT(!"an address of this GPU");
    return NULL;
}

static void *fake_alloc(struct rp_device *device, size_t bytes, enum rp_memory_kind kind) {
    struct fake *fake = fake_of(device);
    if (kind != RP_MEMORY_DEVICE)
        return rp_backend_cpu()->alloc(fake->cpu, bytes, kind);
    struct block *block = bytes <= free_bytes(fake) ? new_block(fake, bytes, false) : NULL;
    if (!block)
        return NULL;
    fake->allocated += bytes;
    fake->count++;
    memset(fake->seen + block->offset, 0xFF, bytes);
    return fake->given + block->offset;
}

static void fake_free(struct rp_device *device, void *ptr, enum rp_memory_kind kind) {
    struct fake *fake = fake_of(device);
    if (kind != RP_MEMORY_DEVICE || !ptr) {
        rp_backend_cpu()->free(fake->cpu, ptr, RP_MEMORY_HOST);
        return;
    }
    struct block *block = find_block(fake, ptr);
    fake->allocated -= block->bytes;
    madvise(fake->seen + block->offset, block->bytes, MADV_DONTNEED);
    block->bytes = 0;
}

static int fake_copy(struct rp_device *device, void *to, const void *from, size_t bytes) {
    struct fake *fake = fake_of(device);
    return rp_backend_cpu()->copy(fake->cpu, seen_at(fake, to), seen_at(fake, from), bytes);
}

static int fake_fill(struct rp_device *device, void *to, int byte, size_t bytes) {
    struct fake *fake = fake_of(device);
    return rp_backend_cpu()->fill(fake->cpu, seen_at(fake, to), byte, bytes);
}

static int fake_synchronize(struct rp_device *device) {
    return rp_backend_cpu()->synchronize(fake_of(device)->cpu);
}

static void *fake_reserve(struct rp_device *device, size_t bytes) {
    struct fake *fake = fake_of(device);
    struct block *block = new_block(fake, bytes, true);
    if (!block)
        return NULL;
    mprotect(fake->seen + block->offset, bytes, PROT_NONE);
    return fake->given + block->offset;
}

static int fake_commit(struct rp_device *device, void *base, size_t bytes) {
    struct fake *fake = fake_of(device);
    struct block *block = find_block(fake, base);
    RP_ASSERT(block->is_range && bytes <= block->bytes && bytes % fake->config.granule == 0);
    if (bytes <= block->committed)
        return RP_OK;
    size_t more = bytes - block->committed;
    if (more > free_bytes(fake))
        return RP_STATUS_NO_MEMORY;
    mprotect(fake->seen + block->offset, bytes, PROT_READ | PROT_WRITE);
    memset(fake->seen + block->offset + block->committed, 0xFF, more);
    block->committed = bytes;
    fake->allocated += more;
    fake->count++;
    return RP_OK;
}

static void fake_release(struct rp_device *device, void *base) {
    struct fake *fake = fake_of(device);
    struct block *block = find_block(fake, base);
    fake->allocated -= block->committed;
    block->committed = 0;
    mprotect(fake->seen + block->offset, block->bytes, PROT_NONE);
}

static size_t fake_granule(struct rp_device *device) { return fake_of(device)->config.granule; }

static void fake_memory(struct rp_device *device, struct rp_device_memory *out) {
    struct fake *fake = fake_of(device);
    *out = (struct rp_device_memory){.total_bytes = fake->config.memory_bytes,
                                     .free_bytes = free_bytes(fake),
                                     .allocated_bytes = fake->allocated,
                                     .allocation_count = fake->count};
}

void fake_backend_memory(struct rp_device_memory *out) {
    fake_memory((struct rp_device *)(void *)open_device, out);
}

/* Copies a matrix repacked by the CPU to the GPU. */
static int upload(struct fake *fake, struct rp_matrix *matrix, struct rp_error *err) {
    size_t bytes = rp_matrix_bytes(matrix);
    void *given = fake_alloc((struct rp_device *)(void *)fake, bytes, RP_MEMORY_DEVICE);
    if (!given)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "fake: no memory for a matrix");
    memcpy(seen_at(fake, given), matrix->data, bytes);
    rp_free_aligned(matrix->data);
    matrix->data = given;
    return RP_OK;
}

static float fake_value(const struct rp_matrix *values, size_t i) {
    if (values->dtype == RP_DTYPE_F32)
        return ((const float *)values->data)[i];
    uint16_t half = ((const uint16_t *)values->data)[i];
    return values->dtype == RP_DTYPE_F16 ? rp_f16_to_f32(half) : rp_bf16_to_f32(half);
}

static int fake_matrix_prepare(struct rp_device *device, struct rp_matrix *matrix,
                               struct rp_error *err) {
    struct fake *fake = fake_of(device);
    int status = rp_backend_cpu()->matrix_prepare(fake->cpu, matrix, err);
    return status == RP_OK ? upload(fake, matrix, err) : status;
}

/* By the host's rule, row by row: *made is a matrix that the host quantized. */
static int quantize_host(const struct rp_matrix *values, uint32_t col,
                         const struct rp_matrix *matrix, struct rp_matrix *made,
                         struct rp_error *err) {
    size_t cols = matrix->cols, wide = values->cols;
    float *scales = rp_alloc_aligned(matrix->rows * sizeof *scales, RP_CACHE_LINE);
    unsigned char *data = rp_alloc_aligned(matrix->rows * cols, RP_CACHE_LINE);
    float *row = rp_alloc(wide * sizeof *row);
    unsigned char *quantized = rp_alloc(wide);
    RP_ASSERT(scales && data && row && quantized);
    bool is_finite = true;
    for (uint32_t r = 0; r < matrix->rows; r++) {
        for (size_t i = 0; i < wide; i++)
            row[i] = fake_value(values, r * wide + i);
        scales[r] = rp_quantize_row(row, RP_DTYPE_F32, wide, matrix->dtype, quantized);
        memcpy(data + r * cols, quantized + col, cols);
        is_finite = is_finite && !isnan(scales[r]);
    }
    rp_free(row);
    rp_free(quantized);
    made->data = data;
    made->scales = scales;
    return is_finite ? RP_OK : rp_error_set(err, RP_STATUS_FORMAT, "fake: a weight is not finite");
}

static int fake_matrix_quantize(struct rp_device *device, const struct rp_matrix *values,
                                uint32_t col, struct rp_matrix *matrix, struct rp_error *err) {
    struct rp_matrix made = *matrix;
    RP_ASSERT(!matrix->data);
    int status = quantize_host(values, col, matrix, &made, err);
    if (status == RP_OK)
        status = fake_matrix_prepare(device, &made, err);
    if (status == RP_OK)
        *matrix = made;
    else
        rp_matrix_deinit(&made);
    fake_backend_quantized += status == RP_OK;
    return status;
}

static void *new_host(size_t bytes, const void *from) {
    void *data = rp_alloc_aligned(RP_MAX(bytes, (size_t)1), RP_CACHE_LINE);
    RP_ASSERT(data);
    return from ? memcpy(data, from, bytes) : memset(data, 0, bytes);
}

static int fake_matrix_reserve(struct rp_device *device, struct rp_matrix *matrix,
                               struct rp_error *err) {
    struct rp_matrix made = *matrix;
    size_t scales = rp_matrix_scale_count(matrix) * sizeof(float);
    RP_ASSERT(!matrix->data && !matrix->scales && matrix->dtype != RP_DTYPE_BLOCKS);
    made.data = new_host(rp_matrix_bytes(matrix), NULL);
    made.scales = scales ? new_host(scales, NULL) : NULL;
    int status = fake_matrix_prepare(device, &made, err);
    if (status == RP_OK)
        *matrix = made;
    else
        rp_matrix_deinit(&made);
    return status;
}

static void keep_fill(struct fake *fake, const void *to, const void *from, size_t bytes) {
    RP_ASSERT_CMP(fake->fill_count, <, 2 * BLOCKS);
    fake->fills[fake->fill_count++] =
        (struct fill){(void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes};
}

static int fake_matrix_fill(struct rp_device *device, const struct rp_matrix *values,
                            const struct rp_matrix *matrix, struct rp_error *err) {
    struct fake *fake = fake_of(device);
    struct rp_matrix made = *matrix;
    size_t scales = rp_matrix_scale_count(matrix) * sizeof(float);
    uint32_t count = ++fake->filled;
    int status = fake->config.on_fill ? fake->config.on_fill(count) : RP_OK;
    if (status != RP_OK)
        return rp_error_set(err, status, "fake: matrix %u cannot be filled", count);
    made.layout = RP_LAYOUT_ROW_MAJOR;
    if (values->dtype != matrix->dtype) {
        status = quantize_host(values, 0, matrix, &made, err);
        fake_backend_quantized += status == RP_OK;
    } else {
        made.data = new_host(rp_matrix_bytes(values), values->data);
        made.scales = scales ? new_host(scales, values->scales) : NULL;
    }
    if (status == RP_OK)
        status = rp_backend_cpu()->matrix_prepare(fake->cpu, &made, err);
    if (status != RP_OK) {
        rp_matrix_deinit(&made);
        return status;
    }
    RP_ASSERT_CMP(rp_matrix_bytes(&made), ==, rp_matrix_bytes(matrix));
    keep_fill(fake, seen_at(fake, matrix->data), made.data, rp_matrix_bytes(&made));
    if (scales)
        keep_fill(fake, matrix->scales, made.scales, scales);
    return RP_OK;
}

static void fake_matrices_end(struct rp_device *device) {
    struct fake *fake = fake_of(device);
    for (; fake->fill_count > 0; fake->fill_count--) {
        struct fill *fill = &fake->fills[fake->fill_count - 1];
        memcpy(fill->to, fill->from, fill->bytes);
        rp_free_aligned(fill->from);
    }
}

static int fake_matrix_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                              float scale, struct rp_error *err) {
    struct fake *fake = fake_of(device);
    int status = rp_backend_cpu()->matrix_random(fake->cpu, matrix, seed, scale, err);
    return status == RP_OK ? upload(fake, matrix, err) : status;
}

static void fake_matrix_release(struct rp_device *device, struct rp_matrix *matrix) {
    fake_free(device, matrix->data, RP_MEMORY_DEVICE);
    matrix->data = NULL;
}

/* The same view with the kernels' addresses; the rings are in host memory. */
static struct rp_step_view seen_view(const struct fake *fake, const struct rp_step_view *view) {
    struct rp_step_view seen = *view;
    seen.slots = seen_at(fake, view->slots);
    seen.counts = seen_at(fake, view->counts);
    seen.rows = seen_at(fake, view->rows);
    seen.token_ids = seen_at(fake, view->token_ids);
    seen.positions = seen_at(fake, view->positions);
    seen.token_rows = seen_at(fake, view->token_rows);
    seen.logit_tokens = seen_at(fake, view->logit_tokens);
    seen.logit_rows = seen_at(fake, view->logit_rows);
    seen.logit_targets = seen_at(fake, view->logit_targets);
    seen.sample_state = seen_at(fake, view->sample_state);
    seen.state = seen_at(fake, view->state);
    seen.masks = seen_at(fake, view->masks);
    seen.late_flags = seen_at(fake, view->late_flags);
    seen.stamps = seen_at(fake, view->stamps);
    seen.stamp_waits = seen_at(fake, view->stamp_waits);
    return seen;
}

static int fake_capture(struct rp_device *device, const struct rp_program *program, uint32_t begin,
                        uint32_t end, const struct rp_bucket *bucket,
                        const struct rp_bindings *bindings, const struct rp_lower_options *options,
                        bool eager, struct rp_graph **out, struct rp_error *err) {
    struct fake *fake = fake_of(device);
    int (*hook)(uint32_t count) = fake->config.on_capture;
    int hooked = hook ? hook(++fake->capture_count) : RP_OK;
    if (hooked != RP_OK)
        return rp_error_set(err, hooked, "fake: graph %u cannot be captured", fake->capture_count);
    if (bucket->tokens == fake_backend_config.failing_tokens ||
        free_bytes(fake) < fake->config.capture_bytes || fake->graph_count == GRAPHS)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "fake: no memory for a graph");
    struct fake_graph *graph = &fake->graphs[fake->graph_count];
    struct rp_kv_layout kv = *bindings->kv;
    struct rp_bindings seen = *bindings;
    struct rp_program copy = *program;
    kv.base = seen_at(fake, kv.base);
    seen.kv = &kv;
    seen.arena = seen_at(fake, bindings->arena);
    seen.step = seen_view(fake, &bindings->step);
    graph->matrices = rp_calloc(program->op_count, sizeof *graph->matrices);
    copy.ops = rp_calloc(program->op_count, sizeof *copy.ops);
    RP_ASSERT(graph->matrices && copy.ops);
    for (uint32_t i = 0; i < program->op_count; i++) {
        copy.ops[i] = program->ops[i];
        if (!program->ops[i].weight)
            continue;
        graph->matrices[i] = *program->ops[i].weight;
        graph->matrices[i].data = seen_at(fake, graph->matrices[i].data);
        copy.ops[i].weight = &graph->matrices[i];
    }
    int status = rp_backend_cpu()->capture(fake->cpu, &copy, begin, end, bucket, &seen, options,
                                           eager, &graph->graph, err);
    rp_free(copy.ops);
    if (status != RP_OK) {
        rp_free(graph->matrices);
        return status;
    }
    fake->graph_count++;
    fake->unseen += fake->config.capture_bytes;
    graph->launched = false;
    *out = graph->graph;
    return RP_OK;
}

static void fake_graph_destroy(struct rp_device *device, struct rp_graph *graph) {
    struct fake *fake = fake_of(device);
    for (uint32_t i = 0; i < fake->graph_count; i++) {
        if (fake->graphs[i].graph != graph)
            continue;
        rp_free(fake->graphs[i].matrices);
        fake->graphs[i] = fake->graphs[--fake->graph_count];
        break;
    }
    rp_backend_cpu()->graph_destroy(fake->cpu, graph);
}

static int fake_launch(struct rp_device *device, struct rp_graph *graph) {
    struct fake *fake = fake_of(device);
    for (uint32_t i = 0; i < fake->graph_count; i++)
        if (fake->graphs[i].graph == graph && !fake->graphs[i].launched) {
            fake->graphs[i].launched = true;
            fake->unseen += fake->config.first_replay_bytes;
        }
    return rp_backend_cpu()->launch(fake->cpu, graph);
}

static int fake_wait_step(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                          uint64_t deadline_ns) {
    return rp_backend_cpu()->wait_step(fake_of(device)->cpu, view, step, deadline_ns);
}

static int fake_wait_idle(struct rp_device *device, uint64_t deadline_ns) {
    return rp_backend_cpu()->wait_idle(fake_of(device)->cpu, deadline_ns);
}

static uint64_t fake_progress(struct rp_device *device) {
    return rp_backend_cpu()->progress(fake_of(device)->cpu);
}

static uint64_t fake_last_replay_ns(struct rp_device *device) {
    return rp_backend_cpu()->last_replay_ns(fake_of(device)->cpu);
}

static const char *fake_last_error(struct rp_device *device) {
    return rp_backend_cpu()->last_error(fake_of(device)->cpu);
}

static int fake_inject_fault(struct rp_device *device, enum rp_device_fault fault) {
    return rp_backend_cpu()->inject_fault(fake_of(device)->cpu, fault);
}

static uint32_t members(struct rp_device *const *ranks, uint32_t count, struct rp_device **out) {
    for (uint32_t i = 0; i < count; i++)
        out[i] = fake_of(ranks[i])->cpu;
    return count;
}

static int fake_join(struct rp_device *const *ranks, uint32_t count, struct rp_error *err) {
    struct rp_device *cpu[8];
    return rp_backend_cpu()->join(cpu, members(ranks, count, cpu), err);
}

static int fake_reserve_exchange(struct rp_device *const *ranks, uint32_t count, size_t bytes,
                                 struct rp_error *err) {
    struct rp_device *cpu[8];
    for (uint32_t i = 0; i < count; i++) {
        struct fake *fake = fake_of(ranks[i]);
        uint64_t more = 2 * bytes - RP_MIN(2 * bytes, fake->exchange_bytes);
        fake->allocated += more;
        fake->exchange_bytes += more;
        fake->count += more > 0;
    }
    return rp_backend_cpu()->reserve_exchange(cpu, members(ranks, count, cpu), bytes, err);
}

const struct rp_backend *fake_backend(void) {
    static struct rp_backend backend;
    backend = *rp_backend_cpu(); /* graph_launch_count, graph_launch_info, graph_info */
    backend.name = "fake";
    backend.open = fake_open;
    backend.read = NULL;
    backend.close = fake_close;
    backend.info = fake_info;
    backend.alloc = fake_alloc;
    backend.free = fake_free;
    backend.copy = fake_copy;
    backend.fill = fake_fill;
    backend.synchronize = fake_synchronize;
    backend.reserve = fake_reserve;
    backend.commit = fake_commit;
    backend.release = fake_release;
    backend.granule = fake_granule;
    backend.memory = fake_memory;
    backend.matrix_prepare = fake_matrix_prepare;
    backend.matrix_quantize = fake_backend_config.host_quantizes ? NULL : fake_matrix_quantize;
    backend.matrix_reserve = fake_backend_config.reserves ? fake_matrix_reserve : NULL;
    backend.matrix_fill = fake_backend_config.reserves ? fake_matrix_fill : NULL;
    backend.matrices_end = fake_matrices_end;
    backend.matrix_random = fake_matrix_random;
    backend.matrix_release = fake_matrix_release;
    backend.capture = fake_capture;
    backend.graph_destroy = fake_graph_destroy;
    backend.launch = fake_launch;
    backend.wait_step = fake_wait_step;
    backend.wait_idle = fake_wait_idle;
    backend.progress = fake_progress;
    backend.last_replay_ns = fake_last_replay_ns;
    backend.last_error = fake_last_error;
    backend.inject_fault = fake_inject_fault;
    backend.join = fake_join;
    backend.reserve_exchange = fake_reserve_exchange;
    return &backend;
}
