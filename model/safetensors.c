#include "model/safetensors.h"

#include "base/checked.h"
#include "model/gguf_arch.h"
#include "model/gguf_model.h"
#include "text/gguf.h"
#include "text/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bits per element, as safetensors/src/tensor.rs has them. */
static const struct element_type {
    const char *name;
    uint32_t bits;
    enum rp_safetensor_type type;
} element_types[] = {
    {"F32", 32, RP_SAFETENSOR_F32},
    {"F16", 16, RP_SAFETENSOR_F16},
    {"BF16", 16, RP_SAFETENSOR_BF16},
    {"BOOL", 8, RP_SAFETENSOR_OTHER},
    {"F4", 4, RP_SAFETENSOR_OTHER},
    {"F6_E2M3", 6, RP_SAFETENSOR_OTHER},
    {"F6_E3M2", 6, RP_SAFETENSOR_OTHER},
    {"U8", 8, RP_SAFETENSOR_OTHER},
    {"I8", 8, RP_SAFETENSOR_I8},
    {"F8_E5M2", 8, RP_SAFETENSOR_OTHER},
    {"F8_E4M3", 8, RP_SAFETENSOR_F8_E4M3},
    {"F8_E8M0", 8, RP_SAFETENSOR_OTHER},
    {"F8_E5M2FNUZ", 8, RP_SAFETENSOR_OTHER},
    {"F8_E4M3FNUZ", 8, RP_SAFETENSOR_OTHER},
    {"I16", 16, RP_SAFETENSOR_OTHER},
    {"U16", 16, RP_SAFETENSOR_OTHER},
    {"I32", 32, RP_SAFETENSOR_OTHER},
    {"U32", 32, RP_SAFETENSOR_OTHER},
    {"F64", 64, RP_SAFETENSOR_OTHER},
    {"I64", 64, RP_SAFETENSOR_OTHER},
    {"U64", 64, RP_SAFETENSOR_OTHER},
    {"C64", 64, RP_SAFETENSOR_OTHER},
};

const char *rp_safetensors_shape_text(const uint64_t *shape, uint32_t rank, char *out,
                                      size_t out_bytes) {
    size_t len = (size_t)snprintf(out, out_bytes, "[");
    for (uint32_t i = 0; i < rank && len < out_bytes; i++)
        len += (size_t)snprintf(out + len, out_bytes - len, "%s%llu", i ? ", " : "",
                                (unsigned long long)shape[i]);
    if (len < out_bytes)
        snprintf(out + len, out_bytes - len, "]");
    return out;
}

/* --- the header ----------------------------------------------------------------------------------
 */

/* Prefix of a message about a tensor. */
struct context {
    const char *file;
    const char *tensor;
    struct rp_error *err;
};

static int refuse(const struct context *context, enum rp_status status, const char *what) {
    char name[160];
    return rp_error_set(context->err, status, "%s: tensor %s: %s", context->file,
                        rp_text_for_message(name, sizeof name, context->tensor), what);
}

/* A non-negative integer of the header. */
static bool as_size(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int parse_type(const struct context *context, const json_t *entry,
                      struct rp_safetensor *tensor, uint32_t *out_bits) {
    char message[96], shown[48];
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return refuse(context, RP_STATUS_FORMAT, "dtype must be a string");
    for (size_t i = 0; i < RP_ARRAY_COUNT(element_types); i++)
        if (strcmp(name, element_types[i].name) == 0) {
            tensor->type = element_types[i].type;
            tensor->type_name = element_types[i].name;
            *out_bits = element_types[i].bits;
            return RP_OK;
        }
    snprintf(message, sizeof message, "dtype \"%s\" is not known",
             rp_text_for_message(shown, sizeof shown, name));
    return refuse(context, RP_STATUS_FORMAT, message);
}

static int parse_shape(const struct context *context, const json_t *entry,
                       struct rp_safetensor *tensor, uint64_t *out_elements) {
    const json_t *shape = json_object_get(entry, "shape");
    uint64_t elements = 1;
    if (!json_is_array(shape))
        return refuse(context, RP_STATUS_FORMAT, "shape must be a list");
    if (json_array_size(shape) > RP_SAFETENSORS_DIMS_MAX)
        return refuse(context, RP_STATUS_RANGE, "shape has more than 8 dimensions");
    tensor->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!as_size(json_array_get(shape, i), &tensor->shape[i]))
            return refuse(context, RP_STATUS_FORMAT, "shape must hold integers of at least 0");
        if (rp_mul_overflow(elements, tensor->shape[i], &elements))
            return refuse(context, RP_STATUS_OVERFLOW, "the product of its shape overflows");
    }
    *out_elements = elements;
    return RP_OK;
}

static int parse_tensor(const struct context *context, const json_t *entry, uint64_t data_bytes,
                        struct rp_safetensor *tensor) {
    char message[160];
    uint64_t elements = 0, bits, begin, end;
    uint32_t element_bits = 0;
    if (!json_is_object(entry))
        return refuse(context, RP_STATUS_FORMAT, "its entry must be an object");
    int status = parse_type(context, entry, tensor, &element_bits);
    if (status == RP_OK)
        status = parse_shape(context, entry, tensor, &elements);
    if (status != RP_OK)
        return status;
    if (rp_mul_overflow(elements, element_bits, &bits))
        return refuse(context, RP_STATUS_OVERFLOW, "the product of its shape overflows");
    if (bits % 8 != 0)
        return refuse(context, RP_STATUS_FORMAT, "its elements do not fill whole bytes");

    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !as_size(json_array_get(offsets, 0), &begin) || !as_size(json_array_get(offsets, 1), &end))
        return refuse(context, RP_STATUS_FORMAT, "data_offsets must be two integers of at least 0");
    if (begin > end)
        return refuse(context, RP_STATUS_FORMAT, "data_offsets end before they begin");
    if (end > data_bytes) {
        snprintf(message, sizeof message,
                 "data_offsets end at %llu, the file has %llu bytes of data",
                 (unsigned long long)end, (unsigned long long)data_bytes);
        return refuse(context, RP_STATUS_FORMAT, message);
    }
    if (end - begin != bits / 8) {
        snprintf(message, sizeof message, "data_offsets span %llu bytes, shape and dtype give %llu",
                 (unsigned long long)(end - begin), (unsigned long long)(bits / 8));
        return refuse(context, RP_STATUS_FORMAT, message);
    }
    tensor->offset = begin;
    tensor->bytes = end - begin;
    return RP_OK;
}

static int compare_offsets(const void *left, const void *right) {
    const struct rp_safetensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const struct rp_safetensor *)left)->name,
                  ((const struct rp_safetensor *)right)->name);
}

/* The tensors cover [0, data_bytes) one after the other. */
static int check_coverage(const char *file, struct rp_safetensor *tensors, uint32_t count,
                          uint64_t data_bytes, struct rp_error *err) {
    uint64_t covered = 0;
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, compare_offsets);
    for (uint32_t i = 0; i < count; i++) {
        struct context context = {file, tensors[i].name, err};
        if (tensors[i].offset < covered)
            return refuse(&context, RP_STATUS_FORMAT, "its data overlaps that of another tensor");
        if (tensors[i].offset > covered)
            return refuse(&context, RP_STATUS_FORMAT, "there is a hole before its data");
        covered += tensors[i].bytes;
    }
    if (covered != data_bytes)
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: %llu bytes after the last tensor", file,
                            (unsigned long long)(data_bytes - covered));
    return RP_OK;
}

static int check_metadata(const char *file, const json_t *metadata, struct rp_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: __metadata__ must be an object", file);
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return rp_error_set(err, RP_STATUS_FORMAT, "%s: __metadata__ must hold strings only",
                                file);
    }
    return RP_OK;
}

static int list_tensors(const json_t *root, uint64_t data_bytes, const char *file,
                        struct rp_arena *arena, struct rp_safetensor **out_tensors,
                        uint32_t *out_count, struct rp_error *err) {
    const char *name;
    json_t *entry;
    uint32_t count = 0;
    if (!json_is_object(root))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: the header must be a JSON object", file);
    size_t entries = json_object_size(root);
    if (entries > RP_SAFETENSORS_COUNT_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: %zu tensors, at most %u are read", file,
                            entries, RP_SAFETENSORS_COUNT_MAX);
    struct rp_safetensor *tensors = rp_arena_calloc(arena, entries, sizeof *tensors);
    if (!tensors)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", file);
    json_object_foreach((json_t *)root, name, entry) {
        int status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(file, entry, err);
        } else {
            struct context context = {file, name, err};
            struct rp_safetensor *tensor = &tensors[count++];
            status = parse_tensor(&context, entry, data_bytes, tensor);
            tensor->name = rp_arena_strndup(arena, name, strlen(name));
            if (status == RP_OK && !tensor->name)
                status = rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", file);
        }
        if (status != RP_OK)
            return status;
    }
    int status = check_coverage(file, tensors, count, data_bytes, err);
    if (status == RP_OK && count > 0)
        qsort(tensors, count, sizeof *tensors, compare_names);
    *out_tensors = tensors;
    *out_count = count;
    return status;
}

int rp_safetensors_parse(const char *header, size_t len, uint64_t data_bytes, const char *file,
                         struct rp_arena *arena, struct rp_safetensor **out_tensors,
                         uint32_t *out_count, struct rp_error *err) {
    json_t *root = NULL;
    int status = rp_json_text_load(header, len, file, &root, err);
    if (status == RP_OK)
        status = list_tensors(root, data_bytes, file, arena, out_tensors, out_count, err);
    json_decref(root);
    return status;
}

/* --- files ---------------------------------------------------------------------------------------
 */

/* Opens one file, checks it, and lists its tensors in the files' arena. */
static int open_shard(struct rp_safetensors *files, const char *dir, const char *name,
                      struct rp_safetensor **out_tensors, uint32_t *out_count,
                      struct rp_error *err) {
    struct rp_safetensors_shard *shard = &files->shards[files->shard_count];
    unsigned char prefix[8];
    uint64_t file_bytes, header_bytes = 0;
    shard->name = rp_arena_strndup(&files->arena, name, strlen(name));
    if (!shard->name)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    int status = rp_model_file_open(dir, name, &shard->fd, &file_bytes, err);
    if (status != RP_OK)
        return status;
    files->shard_count++; /* from here on close() closes it */

    if (file_bytes < sizeof prefix ||
        rp_model_file_read(shard->fd, prefix, sizeof prefix, 0) != (int64_t)sizeof prefix)
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: too short for a safetensors file", name);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | prefix[i];
    if (header_bytes > RP_SAFETENSORS_HEADER_BYTES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: header of %llu bytes, at most %u are read",
                            name, (unsigned long long)header_bytes,
                            RP_SAFETENSORS_HEADER_BYTES_MAX);
    if (header_bytes > file_bytes - sizeof prefix)
        return rp_error_set(err, RP_STATUS_FORMAT,
                            "%s: header of %llu bytes in a file of %llu bytes", name,
                            (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    shard->data_begin = sizeof prefix + header_bytes;

    char *header = rp_alloc((size_t)header_bytes);
    if (!header)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    if (rp_model_file_read(shard->fd, header, header_bytes, sizeof prefix) != (int64_t)header_bytes)
        status = rp_error_set(err, RP_STATUS_IO, "%s: cannot read the header", name);
    else
        status = rp_safetensors_parse(header, (size_t)header_bytes, file_bytes - shard->data_begin,
                                      name, &files->arena, out_tensors, out_count, err);
    rp_free(header);
    return status;
}

static int open_single(struct rp_safetensors *files, const char *dir, struct rp_error *err) {
    files->shards = rp_arena_calloc(&files->arena, 1, sizeof *files->shards);
    if (!files->shards)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", RP_SAFETENSORS_FILE);
    return open_shard(files, dir, RP_SAFETENSORS_FILE, &files->tensors, &files->count, err);
}

/* A file name, nothing that leaves the directory. (A link out of it is fine: hub caches are made of
 * links into their blob store.) */
static bool is_plain_file_name(const char *name) {
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return false;
    return len > 0 && len <= 255 && !strchr(name, '/') && !strstr(name, "..") &&
           strcmp(name, ".") != 0;
}

/* The distinct values of weight_map, as an array of pointers into it, sorted. */
static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static int list_shards(struct rp_arena *arena, const json_t *map, const char ***out_names,
                       uint32_t *out_count, struct rp_error *err) {
    char shown[160];
    const char *tensor;
    json_t *value;
    uint32_t used = 0, count = 0;
    const char **names = rp_arena_calloc(arena, json_object_size(map), sizeof *names);
    if (!names)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", RP_SAFETENSORS_INDEX);
    json_object_foreach((json_t *)map, tensor, value) {
        const char *name = json_string_value(value);
        if (!name)
            return rp_error_set(
                err, RP_STATUS_FORMAT, "%s: weight_map: the file of %s must be a string",
                RP_SAFETENSORS_INDEX, rp_text_for_message(shown, sizeof shown, tensor));
        if (!is_plain_file_name(name))
            return rp_error_set(err, RP_STATUS_FORMAT,
                                "%s: weight_map: \"%s\" is not the name of a file in the directory",
                                RP_SAFETENSORS_INDEX,
                                rp_text_for_message(shown, sizeof shown, name));
        names[used++] = name;
    }
    if (used > 0)
        qsort(names, used, sizeof *names, compare_texts);
    for (uint32_t i = 0; i < used; i++)
        if (count == 0 || strcmp(names[i], names[count - 1]) != 0)
            names[count++] = names[i];
    if (count > RP_SAFETENSORS_SHARDS_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: weight_map: %u files, at most %u are opened",
                            RP_SAFETENSORS_INDEX, count, RP_SAFETENSORS_SHARDS_MAX);
    *out_names = names;
    *out_count = count;
    return RP_OK;
}

/* Keeps those tensors of the shard that the map says are there. */
static void take_mapped(struct rp_safetensors *files, const json_t *map, const char *shard_name,
                        const struct rp_safetensor *tensors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const char *mapped = json_string_value(json_object_get(map, tensors[i].name));
        if (!mapped || strcmp(mapped, shard_name) != 0)
            continue;
        files->tensors[files->count] = tensors[i];
        files->tensors[files->count++].shard = files->shard_count - 1;
    }
}

static int open_mapped(struct rp_safetensors *files, const char *dir, const json_t *map,
                       struct rp_error *err) {
    char shown[160];
    const char **names = NULL, *name;
    uint32_t name_count = 0;
    json_t *value;
    size_t tensor_count = json_object_size(map);
    if (tensor_count > RP_SAFETENSORS_COUNT_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: %zu tensors, at most %u are read",
                            RP_SAFETENSORS_INDEX, tensor_count, RP_SAFETENSORS_COUNT_MAX);
    int status = list_shards(&files->arena, map, &names, &name_count, err);
    if (status != RP_OK)
        return status;
    files->tensors = rp_arena_calloc(&files->arena, tensor_count, sizeof *files->tensors);
    files->shards = rp_arena_calloc(&files->arena, name_count, sizeof *files->shards);
    if (!files->tensors || !files->shards)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", RP_SAFETENSORS_INDEX);
    for (uint32_t i = 0; i < name_count; i++) {
        struct rp_safetensor *tensors;
        uint32_t count;
        status = open_shard(files, dir, names[i], &tensors, &count, err);
        if (status != RP_OK)
            return status;
        take_mapped(files, map, names[i], tensors, count);
    }
    if (files->count > 0)
        qsort(files->tensors, files->count, sizeof *files->tensors, compare_names);
    json_object_foreach((json_t *)map, name, value) {
        if (!rp_safetensors_find(files, name))
            return rp_error_set(err, RP_STATUS_FORMAT,
                                "%s: tensor %s: not in the file, though %s "
                                "says so",
                                json_string_value(value),
                                rp_text_for_message(shown, sizeof shown, name),
                                RP_SAFETENSORS_INDEX);
    }
    return RP_OK;
}

static int open_index(struct rp_safetensors *files, const char *dir, struct rp_error *err) {
    json_t *root = NULL;
    int status = rp_json_file_load(dir, RP_SAFETENSORS_INDEX, &root, err);
    if (status == RP_STATUS_NOT_FOUND) {
        rp_error_set(err, status, "%s: no such file, and no %s either", RP_SAFETENSORS_FILE,
                     RP_SAFETENSORS_INDEX);
        rp_error_hint(err, "weights in other formats (.bin) are not read: convert them to "
                           "safetensors");
        return status;
    }
    if (status == RP_OK) {
        const json_t *map = json_object_get(root, "weight_map");
        if (json_is_object(map))
            status = open_mapped(files, dir, map, err);
        else
            status = rp_error_set(err, RP_STATUS_FORMAT, "%s: weight_map must be an object",
                                  RP_SAFETENSORS_INDEX);
    }
    json_decref(root);
    return status;
}

int rp_safetensors_open(struct rp_safetensors *files, const char *dir, struct rp_error *err) {
    memset(files, 0, sizeof *files);
    if (rp_gguf_is_path(dir))
        return rp_gguf_model_files(files, dir, err);
    int status = open_single(files, dir, err);
    if (status == RP_STATUS_NOT_FOUND)
        status = open_index(files, dir, err);
    if (status != RP_OK)
        rp_safetensors_close(files);
    return status;
}

void rp_safetensors_close(struct rp_safetensors *files) {
    for (uint32_t i = 0; i < files->shard_count; i++)
        close(files->shards[i].fd);
    rp_arena_deinit(&files->arena);
    memset(files, 0, sizeof *files);
}

const struct rp_safetensor *rp_safetensors_find(const struct rp_safetensors *files,
                                                const char *name) {
    char gguf_name[160];
    if (files->arch)
        name = rp_gguf_tensor_name(files->arch, name, gguf_name, sizeof gguf_name);
    struct rp_safetensor key = {.name = name};
    if (files->count == 0)
        return NULL;
    return bsearch(&key, files->tensors, files->count, sizeof key, compare_names);
}

const char *rp_safetensors_file(const struct rp_safetensors *files,
                                const struct rp_safetensor *tensor) {
    return files->shards[tensor->shard].name;
}

int rp_safetensors_read(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                        uint64_t begin, void *out, uint64_t len, struct rp_error *err) {
    const struct rp_safetensors_shard *shard = &files->shards[tensor->shard];
    struct context context = {shard->name, tensor->name, err};
    RP_ASSERT(begin <= tensor->bytes && len <= tensor->bytes - begin);
    int64_t got =
        rp_model_file_read(shard->fd, out, len, shard->data_begin + tensor->offset + begin);
    if (got < 0)
        return refuse(&context, RP_STATUS_IO, strerror(errno));
    if ((uint64_t)got < len)
        return refuse(&context, RP_STATUS_IO, "the file ends inside its data: was it cut short?");
    return RP_OK;
}
