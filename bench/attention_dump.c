/* attention_dump.c - writes inputs and outputs of a shape to files, for comparison with other
 * implementations. */
#include "base/bf16.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/attention_case.h"

#include <stdio.h>
#include <string.h>

/* In +-2: spreads the scores, so that the softmax is not uniform. */
static float next_value(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(*state >> 32) * 0x1p-30f;
}

static void fill(void *to, size_t count, enum rp_dtype dtype, uint64_t *state) {
    for (size_t i = 0; i < count; i++) {
        float value = next_value(state);
        if (dtype == RP_DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = rp_f32_to_bf16(value);
    }
}

/* q is f32; with bf16 pages its values are rounded to bf16, as a GPU does. */
static void fill_q(float *to, size_t count, enum rp_dtype dtype, uint64_t *state) {
    for (size_t i = 0; i < count; i++) {
        float value = next_value(state);
        to[i] = dtype == RP_DTYPE_BF16 ? rp_bf16_to_f32(rp_f32_to_bf16(value)) : value;
    }
}

static int write_file(const char *dir, uint32_t number, const char *suffix, const void *data,
                      size_t bytes, struct rp_error *err) {
    char path[1024];
    snprintf(path, sizeof path, "%s/case%u.%s", dir, number, suffix);
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(data, 1, bytes, file) == bytes;
    if (file && fclose(file) != 0)
        good = false;
    return good ? RP_OK : rp_error_set(err, RP_STATUS_IO, "%s: cannot be written", path);
}

/* Gathers K (0) or V (1) of all sequences from copied pages: (batch, kv_heads, length,
 * head_dim). */
static void gather(const struct attention_case *c, const unsigned char *pages, uint32_t kv,
                   unsigned char *out) {
    const struct rp_attention_shape *shape = &c->shape;
    struct rp_kv_layout layout = c->kv;
    size_t row = (size_t)shape->head_dim * rp_dtype_bytes(layout.dtype);
    layout.base = (unsigned char *)(uintptr_t)pages;
    for (uint32_t i = 0; i < shape->batch; i++)
        for (uint32_t head = 0; head < shape->kv_heads; head++)
            for (uint32_t p = 0; p < shape->length; p++) {
                uint32_t page = rp_attention_case_page(c, i, p / shape->page_tokens);
                memcpy(out, rp_kv_run(&layout, page, 0, kv, head) + p % shape->page_tokens * row,
                       row);
                out += row;
            }
}

static int write_description(const struct attention_case *c, const char *dir, uint32_t number,
                             struct rp_error *err) {
    const struct rp_attention_shape *shape = &c->shape;
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "device", c->bench->info.name);
    rp_json_string(&json, "backend", c->bench->backend->name);
    rp_json_string(&json, "kernel", c->kernel);
    rp_json_string(&json, "dtype", rp_dtype_name(c->bench->config->dtype));
    rp_attention_shape_json(shape, &json);
    rp_json_object_end(&json);
    int status = write_file(dir, number, "json", out.data, out.len, err);
    rp_buffer_deinit(&out);
    return status;
}

/* Writes all files from host copies of the arena and the pages. */
static int write_all(const struct attention_case *c, const char *dir, uint32_t number,
                     const unsigned char *arena, const unsigned char *pages, unsigned char *run,
                     struct rp_error *err) {
    const struct rp_attention_shape *shape = &c->shape;
    size_t dtype = rp_dtype_bytes(c->bench->config->dtype);
    size_t values = (size_t)c->bucket.tokens * shape->heads * shape->head_dim;
    size_t kv = (size_t)shape->batch * shape->kv_heads * shape->length * shape->head_dim * dtype;
    int status = write_file(dir, number, "q", arena, values * sizeof(float), err);
    if (status == RP_OK)
        status = write_file(dir, number, "out", arena + rp_attention_case_offset(c, 1),
                            values * dtype, err);
    for (uint32_t i = 0; i < 2 && status == RP_OK; i++) {
        gather(c, pages, i, run);
        status = write_file(dir, number, i ? "v" : "k", run, kv, err);
    }
    return status == RP_OK ? write_description(c, dir, number, err) : status;
}

int rp_attention_case_dump(struct attention_case *c, const char *dir, uint32_t number,
                           struct rp_error *err) {
    const struct rp_backend *backend = c->bench->backend;
    struct rp_device *device = c->bench->device;
    size_t arena_bytes = rp_attention_case_offset(c, 2), page_bytes = c->kv.page_stride;
    size_t pool = (1 + (size_t)c->shape.batch * c->slot_pages) * page_bytes;
    unsigned char *arena = rp_alloc_aligned(arena_bytes, RP_CACHE_LINE);
    unsigned char *pages = rp_alloc_aligned(pool, RP_CACHE_LINE);
    unsigned char *run = rp_alloc_aligned(pool, RP_CACHE_LINE);
    uint64_t state = 0x9E3779B97F4A7C15ull + number;
    int status = arena && pages && run ? rp_attention_case_capture(c, 1, err)
                                       : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status != RP_OK)
        goto done;
    memset(arena, 0xFF, arena_bytes); /* outputs that are not written stay NaN */
    fill_q((float *)(void *)arena, rp_attention_case_offset(c, 1) / sizeof(float), c->kv.dtype,
           &state);
    fill(pages, pool / rp_dtype_bytes(c->kv.dtype), c->kv.dtype, &state);
    if (backend->copy(device, c->arena, arena, arena_bytes) != RP_OK ||
        backend->copy(device, c->pages, pages, pool) != RP_OK ||
        backend->launch(device, c->graph) != RP_OK ||
        backend->copy(device, arena, c->arena, arena_bytes) != RP_OK ||
        backend->synchronize(device) != RP_OK)
        status = rp_error_set(err, RP_STATUS_DEVICE, "%s", backend->last_error(device));
    else
        status = write_all(c, dir, number, arena, pages, run, err);
done:
    rp_free_aligned(arena);
    rp_free_aligned(pages);
    rp_free_aligned(run);
    return status;
}
