/* engine_memory.c - what an engine has on its device: slots, rings, pages.
 *
 * The KV pool is a range of addresses. On the host all of it is allocated at once. On a GPU only
 * the granule with the padding page is mapped while the graphs are captured and replayed once; the
 * memory that is left within the limit is mapped afterwards. The number of pages is data: no
 * captured graph contains it. */
#include "engine/engine_internal.h"
#include "engine/gpu_plan.h"

#include <string.h>

int rp_engine_no_memory(struct rp_error *err, const char *what, size_t bytes) {
    int status =
        rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the %s (%zu bytes)", what, bytes);
    rp_error_hint(err, "try a smaller --kv-cache-memory-bytes, --swap-space or --max-num-seqs");
    return status;
}

int rp_engine_device_error(struct rp_engine *engine, const char *what, struct rp_error *err) {
    const char *said = engine->backend->last_error(engine->device);
    return rp_error_set(err, RP_STATUS_DEVICE, "%s%s%.300s", what, *said ? ": " : "", said);
}

static int reserve_pool(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_backend *backend = engine->backend;
    struct rp_engine_layout *layout = &engine->layout;
    size_t granule = backend->granule(engine->device), page_bytes = layout->kv.page_stride;
    size_t pool = (size_t)layout->page_count * page_bytes, first = pool;
    if (layout->on_gpu) {
        if (pool < layout->gpu.total)
            pool = layout->gpu.total; /* addresses cost nothing */
        first = page_bytes;
    }
    engine->kv_reserved = RP_CEIL_DIV(pool, granule) * granule;
    layout->kv.base = backend->reserve(engine->device, engine->kv_reserved);
    if (!layout->kv.base)
        return rp_engine_no_memory(err, "KV pool", pool);
    engine->kv_committed = RP_CEIL_DIV(first, granule) * granule;
    int status = backend->commit(engine->device, layout->kv.base, engine->kv_committed);
    if (status == RP_STATUS_NO_MEMORY)
        return rp_engine_no_memory(err, "first pages", engine->kv_committed);
    if (status == RP_OK)
        status = backend->fill(engine->device, layout->kv.base, 0, page_bytes);
    return status == RP_OK ? RP_OK
                           : rp_engine_device_error(engine, "the padding page cannot be made", err);
}

static size_t host_bytes(const struct rp_engine *engine) {
    return (size_t)engine->layout.host_page_count * engine->layout.kv.page_stride;
}

static void *make_host_pages(void *arg) {
    struct rp_engine *engine = arg;
    engine->host_pages =
        engine->backend->alloc(engine->device, host_bytes(engine), RP_MEMORY_HOST_EACH);
    return NULL;
}

void rp_engine_begin_host_pages(struct rp_engine *engine) {
    engine->makes_host_pages =
        pthread_create(&engine->host_pages_thread, NULL, make_host_pages, engine) == 0;
}

static void end_host_pages(struct rp_engine *engine) {
    if (engine->makes_host_pages)
        pthread_join(engine->host_pages_thread, NULL);
    engine->makes_host_pages = false;
}

int rp_engine_make_buffers(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_backend *backend = engine->backend;
    struct rp_engine_layout *layout = &engine->layout;
    struct rp_step_view *view = &engine->batch.view;
    end_host_pages(engine); /* nothing else is allocated meanwhile but matrices */
    engine->state = backend->alloc(engine->device, layout->state_bytes, RP_MEMORY_DEVICE);
    if (!engine->state)
        return rp_engine_no_memory(err, "slots", layout->state_bytes);
    engine->rings = backend->alloc(engine->device, layout->ring_bytes, RP_MEMORY_HOST);
    if (!engine->rings)
        return rp_engine_no_memory(err, "rings", layout->ring_bytes);
    int status = reserve_pool(engine, err);
    if (status != RP_OK)
        return status;
    if (!engine->host_pages)
        make_host_pages(engine);
    if (!engine->host_pages)
        return rp_engine_no_memory(err, "swap pool", host_bytes(engine));
    rp_step_state_carve(&layout->step, engine->state, view);
    rp_step_rings_carve(&layout->step, engine->rings, view);
    memset(engine->rings, 0, layout->ring_bytes);
    /* Recurrent state is written before it is read, and lies at the end. */
    if (backend->fill(engine->device, engine->state, 0,
                      layout->state_bytes - layout->recurrent_bytes) != RP_OK ||
        backend->synchronize(engine->device) != RP_OK)
        return rp_engine_device_error(engine, "the slots cannot be made", err);
    engine->batch.results = rp_calloc(layout->step.row_capacity, sizeof *engine->batch.results);
    if (!engine->batch.results)
        return rp_engine_no_memory(err, "results", layout->step.row_capacity);
    if (rp_mask_pool_init(&engine->mask_pool, view) != RP_OK)
        return rp_engine_no_memory(err, "index of masks", layout->step.mask_capacity);
    return RP_OK;
}

/* What the graphs took is what the driver says beyond what this backend allocated. */
static void measure_gpu(struct rp_engine *engine, const struct rp_device_memory *now) {
    struct rp_engine_layout *layout = &engine->layout;
    uint64_t *uses = layout->gpu.uses;
    const struct rp_device_memory *opened = &engine->memory_opened;
    uint64_t pool = RP_MIN(now->allocated_bytes, engine->kv_committed);
    uint64_t allocated = now->allocated_bytes - pool, used, ours;
    uses[RP_MEMORY_WEIGHTS] = engine->weights_bytes;
    uses[RP_MEMORY_ACTIVATIONS] = layout->arena_bytes;
    uses[RP_MEMORY_SLOTS] = layout->state_bytes - layout->recurrent_bytes;
    uses[RP_MEMORY_STATE] = layout->recurrent_bytes;
    ours = engine->weights_bytes + layout->arena_bytes + layout->state_bytes;
    uses[RP_MEMORY_WORKSPACE] = allocated - RP_MIN(allocated, ours);
    used = now->total_bytes - now->free_bytes;
    ours =
        opened->total_bytes - opened->free_bytes - opened->allocated_bytes + now->allocated_bytes;
    uses[RP_MEMORY_GRAPHS] = used - RP_MIN(used, ours);
}

/* Bytes of the pool: as configured, or what is left within the limit. */
static int pool_bytes(const struct rp_engine *engine, const struct rp_device_memory *now,
                      size_t *out, struct rp_error *err) {
    const struct rp_engine_layout *layout = &engine->layout;
    const struct rp_engine_config *config = &engine->config;
    size_t granule = engine->backend->granule(engine->device), page = layout->kv.page_stride;
    uint64_t used = now->total_bytes - now->free_bytes;
    uint64_t others = used - RP_MIN(used, engine->kv_committed);
    uint64_t free_bytes = now->free_bytes + engine->kv_committed;
    uint64_t room = layout->gpu.limit > others ? layout->gpu.limit - others : 0;
    room = RP_MIN(RP_MIN(room, free_bytes), engine->kv_reserved) / granule * granule;
    uint64_t least = rp_engine_layout_pages(layout, layout->max_model_len) + 1;
    if (config->page_count_override || config->kv_cache_bytes) {
        uint64_t told = (uint64_t)layout->page_count * page;
        if (told > free_bytes)
            return rp_gpu_plan_no_room(config, layout, layout->page_count, err);
        *out = RP_CEIL_DIV(told, granule) * granule;
        return RP_OK;
    }
    uint64_t pages = RP_MIN(room / page, UINT32_MAX - 1);
    if (pages < least) {
        int status = rp_gpu_plan_no_room(config, layout, least, err);
        if (pages > 2)
            rp_error_hint(err, "try --max-model-len %u",
                          rp_engine_layout_longest(layout, pages - 1, layout->max_model_len));
        return status;
    }
    *out = RP_CEIL_DIV(pages * page, granule) * granule;
    return RP_OK;
}

int rp_engine_map_pool(struct rp_engine *engine, struct rp_error *err) {
    const struct rp_backend *backend = engine->backend;
    struct rp_engine_layout *layout = &engine->layout;
    struct rp_device_memory now;
    size_t bytes, page = layout->kv.page_stride;
    if (!layout->on_gpu)
        return RP_OK;
    backend->memory(engine->device, &now);
    measure_gpu(engine, &now);
    int status = pool_bytes(engine, &now, &bytes, err);
    if (status != RP_OK)
        return status;
    if (bytes > engine->kv_committed) {
        status = backend->commit(engine->device, layout->kv.base, bytes);
        if (status == RP_STATUS_NO_MEMORY)
            return rp_gpu_plan_no_room(&engine->config, layout, bytes / page, err);
        if (status != RP_OK)
            return rp_engine_device_error(engine, "the KV pool cannot be mapped", err);
        engine->kv_committed = bytes;
    }
    /* Whatever lay there before may read as NaN. The first replays wrote to the padding page, maybe
     * before all weights were there. */
    if (backend->fill(engine->device, layout->kv.base, 0, engine->kv_committed) != RP_OK ||
        backend->synchronize(engine->device) != RP_OK)
        return rp_engine_device_error(engine, "the KV pool cannot be filled", err);
    if (!engine->config.page_count_override && !engine->config.kv_cache_bytes)
        layout->page_count = (uint32_t)RP_MIN(engine->kv_committed / page, UINT32_MAX - 1);
    layout->gpu.uses[RP_MEMORY_KV] = engine->kv_committed;
    layout->gpu.measured = true;
    layout->plan.longest_context = rp_engine_layout_longest(layout, layout->page_count - 1,
                                                            engine->model->config.max_position);
    rp_engine_layout_describe(layout, engine->model);
    return RP_OK;
}

void rp_engine_free_buffers(struct rp_engine *engine) {
    const struct rp_backend *backend = engine->backend;
    end_host_pages(engine);
    rp_mask_pool_deinit(&engine->mask_pool);
    backend->free(engine->device, engine->state, RP_MEMORY_DEVICE);
    backend->free(engine->device, engine->rings, RP_MEMORY_HOST);
    if (engine->layout.kv.base)
        backend->release(engine->device, engine->layout.kv.base);
    backend->free(engine->device, engine->host_pages, RP_MEMORY_HOST_EACH);
}
