/* rp_model_load: reads a checkpoint's tensors into the matrices and vectors of a model.
 *
 * First every tensor is checked, then several threads read: one alone copies 2 to 3 GB/s out of the page cache. Which
 * error is told does not depend on them: that of the first bad tensor in the network's order. */
#include "base/bf16.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"
#include "text/json_file.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What is read at once: progress is told after each, and it is the staging buffer of a conversion.
 */
#define PIECE_BYTES   ((uint64_t)64 << 20)
#define STAGING_BYTES ((uint64_t)1 << 20)
#define READERS_MAX   8

struct loader {
    const struct rp_safetensors *files;
    const struct rp_model_config *config;
    struct rp_error *err;
    unsigned char *used; /* per tensor of the files */
    bool all_bf16;       /* every matrix */
    uint64_t total_bytes, told_bytes;
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;

    struct rp_weight_part *parts; /* all of them */
    uint32_t part_count;
    _Atomic uint32_t next_part; /* that no reader has taken */
    _Atomic uint64_t done_bytes;
    atomic_bool failed; /* no further part is begun */
};

/* A thread that reads part after part. */
struct reader {
    struct loader *loader;
    bool tells; /* of the progress: the caller's thread */
    unsigned char *staging;
    pthread_t thread;
    int status;
    uint32_t failed_part;
    struct rp_error err;
};

static uint32_t element_bytes(const struct rp_safetensor *tensor) {
    return tensor->type == RP_SAFETENSOR_F32 ? 4 : 2;
}

static int missing(const struct loader *loader, const struct rp_weight_part *part) {
    int status = rp_error_set(loader->err, RP_STATUS_NOT_FOUND, "%s: tensor %s is missing",
                              loader->files->shard_count == 1 ? loader->files->shards[0].name
                                                              : RP_SAFETENSORS_INDEX,
                              part->name);
    if (part->matrix && strcmp(part->name, "lm_head.weight") == 0)
        rp_error_hint(loader->err, "if the output layer is the embedding, config.json must say "
                                   "\"tie_word_embeddings\": true");
    return status;
}

/* The tensor is there, has the shape that the configuration implies, and a type that we convert. */
static int check_part(void *ctx, const struct rp_weight_part *part) {
    struct loader *loader = ctx;
    const struct rp_safetensor *tensor = rp_safetensors_find(loader->files, part->name), *scales;
    if (!tensor)
        return missing(loader, part);
    const char *file = rp_safetensors_file(loader->files, tensor);
    uint64_t expected[2] = {part->rows, part->cols};
    uint32_t rank = part->matrix ? 2 : 1;
    if (tensor->rank != rank || memcmp(tensor->shape, expected, rank * sizeof expected[0]) != 0) {
        char has[128], wants[64];
        return rp_error_set(loader->err, RP_STATUS_FORMAT,
                            "%s: tensor %s has shape %s, config.json implies %s", file, part->name,
                            rp_safetensors_shape_text(tensor->shape, tensor->rank, has, sizeof has),
                            rp_safetensors_shape_text(expected, rank, wants, sizeof wants));
    }
    if (part->quantized) {
        int status = rp_weight_quant_check(loader->files, loader->config, part, tensor, &scales,
                                           loader->err);
        if (status != RP_OK)
            return status;
        loader->used[scales - loader->files->tensors] = 1;
    } else if (tensor->type > RP_SAFETENSOR_BF16) {
        int status = rp_error_set(loader->err, RP_STATUS_UNSUPPORTED,
                                  "%s: tensor %s is of type %s, supported: F32, F16, BF16", file,
                                  part->name, tensor->type_name);
        if (tensor->type == RP_SAFETENSOR_I8 || tensor->type == RP_SAFETENSOR_F8_E4M3)
            rp_error_hint(loader->err,
                          "8-bit weights need a quantization_config in config.json that "
                          "does not leave this one out");
        return status;
    }
    if (part->matrix && !part->quantized && tensor->type != RP_SAFETENSOR_BF16)
        loader->all_bf16 = false;
    loader->used[tensor - loader->files->tensors] = 1;
    loader->total_bytes += tensor->bytes;
    return RP_OK;
}

static bool ends_in(const char *name, const char *suffix) {
    size_t len = strlen(name), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(name + len - suffix_len, suffix) == 0;
}

/* Scales of K and V in pages of 8 bits. */
static bool is_kv_scale(const char *name) {
    static const char *const suffixes[] = {".k_scale", ".v_scale", ".kv_scale"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(suffixes); i++)
        if (ends_in(name, suffixes[i]))
            return true;
    return false;
}

/* Names that older checkpoints carry and that no model needs, or that a tied model ignores. */
static bool is_known_extra(const struct rp_model_config *config, const char *name) {
    if (ends_in(name, ".rotary_emb.inv_freq"))
        return true;
    if (config->quant.static_input && ends_in(name, ".input_scale"))
        return true;
    return config->tied && strcmp(name, "lm_head.weight") == 0;
}

static void log_extras(const struct loader *loader) {
    uint32_t extras = 0, first = 0, kv_scales = 0;
    for (uint32_t i = loader->files->count; i-- > 0;)
        if (is_kv_scale(loader->files->tensors[i].name))
            kv_scales++;
        else if (!loader->used[i] &&
                 !is_known_extra(loader->config, loader->files->tensors[i].name)) {
            extras++;
            first = i;
        }
    if (kv_scales > 0)
        rp_log(RP_LOG_INFO,
               "model: scales of K and V are not used: pages of 8 bits have a scale for each "
               "token and head count=%u",
               kv_scales);
    if (loader->config->quant.static_input)
        rp_log(RP_LOG_INFO,
               "model: static scales of inputs are checked and not used: each row gets "
               "a scale of its own");
    if (extras > 0) {
        char name[128];
        rp_log(RP_LOG_WARN,
               "model: tensors that the network does not use are ignored count=%u first=%s", extras,
               rp_text_for_message(name, sizeof name, loader->files->tensors[first].name));
    }
}

static float element(const unsigned char *bytes, size_t i, enum rp_safetensor_type type) {
    uint16_t half;
    float value;
    if (type == RP_SAFETENSOR_F32) {
        memcpy(&value, bytes + i * 4, sizeof value);
        return value;
    }
    memcpy(&half, bytes + i * 2, sizeof half);
    return type == RP_SAFETENSOR_BF16 ? rp_bf16_to_f32(half) : rp_f16_to_f32(half);
}

static void convert(const unsigned char *bytes, enum rp_safetensor_type type, void *out,
                    enum rp_dtype out_dtype, size_t count) {
    if (out_dtype == RP_DTYPE_F32)
        for (size_t i = 0; i < count; i++)
            ((float *)out)[i] = element(bytes, i, type);
    else
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = rp_f32_to_bf16(element(bytes, i, type));
}

static void count_read(struct reader *reader, uint64_t len) {
    struct loader *loader = reader->loader;
    uint64_t done = atomic_fetch_add(&loader->done_bytes, len) + len;
    if (reader->tells && loader->progress) {
        loader->told_bytes = done;
        loader->progress(loader->progress_ctx, done, loader->total_bytes);
    }
}

/* Reads the whole tensor into `out`, straight where no conversion is needed. */
static int read_tensor(struct reader *reader, const struct rp_safetensor *tensor,
                       unsigned char *out, enum rp_dtype out_dtype) {
    struct loader *loader = reader->loader;
    bool same = (tensor->type == RP_SAFETENSOR_F32 && out_dtype == RP_DTYPE_F32) ||
                (tensor->type == RP_SAFETENSOR_BF16 && out_dtype == RP_DTYPE_BF16);
    uint64_t piece = same ? PIECE_BYTES : STAGING_BYTES;
    for (uint64_t begin = 0; begin < tensor->bytes; begin += piece) {
        uint64_t len = RP_MIN(piece, tensor->bytes - begin);
        size_t first = (size_t)(begin / element_bytes(tensor));
        unsigned char *to = out + first * rp_dtype_bytes(out_dtype);
        int status = rp_safetensors_read(loader->files, tensor, begin, same ? to : reader->staging,
                                         len, &reader->err);
        if (status != RP_OK)
            return status;
        if (!same)
            convert(reader->staging, tensor->type, to, out_dtype,
                    (size_t)(len / element_bytes(tensor)));
        count_read(reader, len);
    }
    return RP_OK;
}

/* Reads whole rows into the staging buffer, and quantizes them from there; f16 by way of f32. */
static int quantize_tensor(struct reader *reader, const struct rp_safetensor *tensor,
                           const struct rp_weight_part *part) {
    struct loader *loader = reader->loader;
    struct rp_matrix *matrix = part->matrix;
    size_t element_size = element_bytes(tensor), row_bytes = part->cols * element_size, bad;
    size_t piece_rows = RP_MAX((size_t)(STAGING_BYTES / row_bytes), (size_t)1);
    bool half = tensor->type == RP_SAFETENSOR_F16;
    if (row_bytes > STAGING_BYTES)
        return rp_error_set(&reader->err, RP_STATUS_UNSUPPORTED,
                            "%s: tensor %s: rows of %u weights are too long to be quantized",
                            rp_safetensors_file(loader->files, tensor), part->name, part->cols);
    float *values = half ? rp_alloc(piece_rows * part->cols * sizeof *values) : NULL;
    int status = half && !values
                     ? rp_error_set(&reader->err, RP_STATUS_NO_MEMORY, "model: out of memory")
                     : RP_OK;
    for (size_t row = 0; status == RP_OK && row < part->rows; row += piece_rows) {
        size_t rows = RP_MIN(piece_rows, part->rows - row), at = part->row_begin + row;
        status = rp_safetensors_read(loader->files, tensor, row * row_bytes, reader->staging,
                                     rows * row_bytes, &reader->err);
        if (status != RP_OK)
            break;
        if (half)
            convert(reader->staging, tensor->type, values, RP_DTYPE_F32, rows * part->cols);
        if (!rp_quantize_weights_searched(
                half ? (const void *)values : reader->staging,
                tensor->type == RP_SAFETENSOR_BF16 ? RP_DTYPE_BF16 : RP_DTYPE_F32, rows, part->cols,
                matrix->dtype, (unsigned char *)matrix->data + at * part->cols,
                (float *)(uintptr_t)&matrix->scales[at], NULL, &bad))
            status = rp_error_set(&reader->err, RP_STATUS_FORMAT,
                                  "%s: tensor %s: row %zu holds a NaN or an infinity, which %s "
                                  "weights cannot",
                                  rp_safetensors_file(loader->files, tensor), part->name, row + bad,
                                  rp_dtype_name(matrix->dtype));
        count_read(reader, rows * row_bytes);
    }
    rp_free(values);
    return status;
}

static int load_part(struct reader *reader, const struct rp_weight_part *part) {
    const struct rp_safetensors *files = reader->loader->files;
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    if (part->quantized) {
        int status = rp_weight_quant_load(files, reader->loader->config, part, reader->staging,
                                          STAGING_BYTES, &reader->err);
        count_read(reader, tensor->bytes);
        return status;
    }
    if (part->matrix && rp_dtype_bytes(part->matrix->dtype) == 1)
        return quantize_tensor(reader, tensor, part);
    if (part->matrix) {
        size_t row_bytes = (size_t)part->cols * rp_dtype_bytes(part->matrix->dtype);
        return read_tensor(reader, tensor,
                           (unsigned char *)part->matrix->data + part->row_begin * row_bytes,
                           part->matrix->dtype);
    }
    float *values = *part->vector + part->row_begin;
    int status = read_tensor(reader, tensor, (unsigned char *)values, RP_DTYPE_F32);
    /* One bad element here spoils every token; in a matrix it would show in the NaN flag of a row.
     */
    for (uint32_t i = 0; status == RP_OK && i < part->rows; i++)
        if (!isfinite(values[i]))
            status = rp_error_set(&reader->err, RP_STATUS_FORMAT, "%s: tensor %s: element %u is %s",
                                  rp_safetensors_file(files, tensor), part->name, i,
                                  isnan(values[i]) ? "not a number" : "infinite");
    return status;
}

static void *read_parts(void *arg) {
    struct reader *reader = arg;
    struct loader *loader = reader->loader;
    while (reader->status == RP_OK && !atomic_load(&loader->failed)) {
        uint32_t part = atomic_fetch_add(&loader->next_part, 1);
        if (part >= loader->part_count)
            break;
        reader->status = load_part(reader, &loader->parts[part]);
        reader->failed_part = part;
    }
    if (reader->status != RP_OK)
        atomic_store(&loader->failed, true);
    return NULL;
}

/* Lists a part; without a list only counts it. */
static int list_part(void *ctx, const struct rp_weight_part *part) {
    struct loader *loader = ctx;
    if (loader->parts)
        loader->parts[loader->part_count] = *part;
    loader->part_count++;
    return RP_OK;
}

static int no_memory(struct loader *loader) {
    return rp_error_set(loader->err, RP_STATUS_NO_MEMORY, "model: out of memory");
}

/* The caller reads too; threads that cannot be had are done without. */
static int read_all(struct loader *loader) {
    struct reader readers[READERS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t wanted = (uint32_t)RP_MAX(1, RP_MIN(cores, READERS_MAX)), count = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        struct reader *reader = &readers[count];
        memset(reader, 0, sizeof *reader);
        reader->loader = loader;
        reader->tells = count == 0;
        reader->staging = rp_alloc(STAGING_BYTES);
        if (!reader->staging)
            break;
        if (count == 0 || pthread_create(&reader->thread, NULL, read_parts, reader) == 0)
            count++;
        else
            rp_free(reader->staging);
    }
    if (count == 0)
        return no_memory(loader);
    read_parts(&readers[0]);
    int status = RP_OK;
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            pthread_join(readers[i].thread, NULL);
        rp_free(readers[i].staging);
        if (readers[i].status != RP_OK && readers[i].failed_part < first) {
            first = readers[i].failed_part;
            status = readers[i].status;
            *loader->err = readers[i].err;
        }
    }
    return status;
}

static int read_weights(struct loader *loader, struct rp_model *model) {
    int status = rp_weight_parts(model, list_part, loader);
    if (status != RP_OK)
        return status;
    loader->parts = rp_calloc(loader->part_count, sizeof *loader->parts);
    if (!loader->parts)
        return no_memory(loader);
    loader->part_count = 0;
    status = rp_weight_parts(model, list_part, loader);
    if (status == RP_OK)
        status = read_all(loader);
    if (status == RP_OK && loader->progress && loader->told_bytes < loader->total_bytes)
        loader->progress(loader->progress_ctx, loader->total_bytes, loader->total_bytes);
    rp_free(loader->parts);
    return status;
}

static int load_weights(struct loader *loader, enum rp_dtype dtype, uint32_t max_position,
                        struct rp_model *out_model) {
    int status = rp_weights_describe(loader->config, RP_DTYPE_F32, out_model, loader->err);
    if (status == RP_OK)
        status = rp_weight_parts(out_model, check_part, loader);
    rp_model_deinit(out_model);
    if (status != RP_OK)
        return status;
    log_extras(loader);
    if (dtype == RP_MODEL_DTYPE_AUTO)
        dtype = loader->all_bf16 || loader->config->quant.scales != RP_SCALE_NONE ||
                        loader->config->quantization != RP_QUANT_NONE
                    ? RP_DTYPE_BF16
                    : RP_DTYPE_F32;
    status = rp_weights_describe(loader->config, dtype, out_model, loader->err);
    if (status == RP_OK)
        status = rp_weights_allocate(out_model, max_position, false, loader->err);
    if (status == RP_OK)
        status = read_weights(loader, out_model);
    if (status == RP_OK)
        out_model->loaded = true;
    else
        rp_model_deinit(out_model);
    return status;
}

int rp_model_load_quantized(const char *dir, enum rp_dtype dtype,
                            const struct rp_model_quantization *quantization, uint32_t max_position,
                            void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes),
                            void *ctx, struct rp_model *out_model, struct rp_error *err) {
    struct rp_model_config config;
    struct rp_safetensors files;
    memset(out_model, 0, sizeof *out_model);
    int status = rp_model_config_load(dir, &config, err);
    if (status == RP_OK) {
        config.quantization = quantization->scheme;
        config.quantize_head = quantization->head;
        status = rp_weights_check_dtype(&config, dtype, err);
    }
    if (status != RP_OK)
        return status;
    status = rp_safetensors_open(&files, dir, err);
    if (status != RP_OK)
        return status;
    struct loader loader = {.files = &files,
                            .config = &config,
                            .err = err,
                            .used = rp_calloc(files.count, 1),
                            .all_bf16 = true,
                            .progress = progress,
                            .progress_ctx = ctx};
    status =
        loader.used ? load_weights(&loader, dtype, max_position, out_model) : no_memory(&loader);
    rp_free(loader.used);
    rp_safetensors_close(&files);
    return status;
}

int rp_model_load(const char *dir, enum rp_dtype dtype, uint32_t max_position,
                  void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes), void *ctx,
                  struct rp_model *out_model, struct rp_error *err) {
    const struct rp_model_quantization none = {RP_QUANT_NONE, false};
    return rp_model_load_quantized(dir, dtype, &none, max_position, progress, ctx, out_model, err);
}
