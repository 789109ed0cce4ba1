/* The head of a GGUF file: every count and length is checked before it is used. */
#include "base/checked.h"
#include "base/utf8.h"
#include "text/gguf.h"
#include "text/json_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES_MAX 65535u
/* Arrays of arrays are in no file that has been seen. */
#define ALIGNMENT_MAX 65536u

struct parser {
    struct rp_gguf *gguf;
    const unsigned char *bytes;
    size_t len, at;
    uint64_t file_bytes;
    bool is_short; /* the bytes ended, the file does not */
    struct rp_error *err;
};

static int refuse(struct parser *p, enum rp_status status, const char *kind, const char *name,
                  const char *what) {
    char shown[160];
    return rp_error_set(p->err, status, "%s: %s %s %s", p->gguf->name, kind,
                        rp_text_for_message(shown, sizeof shown, name), what);
}

/* The next `bytes`; NULL with a status: the file ends, or more of it is needed. */
static int take(struct parser *p, uint64_t bytes, const unsigned char **out) {
    if (bytes <= p->len - p->at) {
        *out = p->bytes + p->at;
        p->at += (size_t)bytes;
        return RP_OK;
    }
    if (bytes <= p->file_bytes - p->at && p->len < p->file_bytes) {
        p->is_short = true;
        return RP_STATUS_RANGE;
    }
    return rp_error_set(p->err, RP_STATUS_FORMAT, "%s: the file ends inside its header",
                        p->gguf->name);
}

static uint64_t load_u64(const unsigned char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static uint32_t load_u32(const unsigned char *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static int take_u32(struct parser *p, uint32_t *out) {
    const unsigned char *at;
    int status = take(p, 4, &at);
    if (status == RP_OK)
        *out = load_u32(at);
    return status;
}

static int take_u64(struct parser *p, uint64_t *out) {
    const unsigned char *at;
    int status = take(p, 8, &at);
    if (status == RP_OK)
        *out = load_u64(at);
    return status;
}

static int take_text(struct parser *p, struct rp_gguf_text *out) {
    uint64_t len;
    const unsigned char *at;
    int status = take_u64(p, &len);
    if (status == RP_OK)
        status = take(p, len, &at);
    if (status == RP_OK)
        *out = (struct rp_gguf_text){(const char *)at, (size_t)len};
    return status;
}

/* A name as a C string in the arena. */
static int take_name(struct parser *p, const char *kind, const char **out) {
    struct rp_gguf_text text;
    int status = take_text(p, &text);
    if (status != RP_OK)
        return status;
    if (text.len == 0 || text.len > NAME_BYTES_MAX || memchr(text.text, 0, text.len))
        return rp_error_set(p->err, RP_STATUS_FORMAT, "%s: the name of a %s is not a text",
                            p->gguf->name, kind);
    *out = rp_arena_strndup(&p->gguf->arena, text.text, text.len);
    return *out ? RP_OK
                : rp_error_set(p->err, RP_STATUS_NO_MEMORY, "%s: out of memory", p->gguf->name);
}

uint32_t rp_gguf_type_bytes(enum rp_gguf_type type) {
    static const uint8_t bytes[RP_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

/* Steps over the value; key->value is where it begins. */
static int take_value(struct parser *p, struct rp_gguf_key *key) {
    uint32_t element = key->type;
    struct rp_gguf_text text;
    const unsigned char *at;
    uint64_t bytes;
    int status = RP_OK;
    key->count = 1;
    if (key->type == RP_GGUF_ARRAY) {
        status = take_u32(p, &element);
        if (status == RP_OK)
            status = take_u64(p, &key->count);
        if (status != RP_OK)
            return status;
        if (element >= RP_GGUF_TYPE_COUNT || element == RP_GGUF_ARRAY)
            return refuse(p, RP_STATUS_FORMAT, "key", key->name,
                          "is an array of elements of an unknown type");
    }
    key->element = (enum rp_gguf_type)element;
    key->value = p->bytes + p->at;
    if (key->element != RP_GGUF_STRING) {
        if (key->count > p->file_bytes)
            return refuse(p, RP_STATUS_FORMAT, "key", key->name, "is longer than the file");
        bytes = key->count * rp_gguf_type_bytes(key->element);
        return take(p, bytes, &at);
    }
    if (key->count > p->file_bytes / 8)
        return refuse(p, RP_STATUS_FORMAT, "key", key->name, "is longer than the file");
    for (uint64_t i = 0; i < key->count && status == RP_OK; i++)
        status = take_text(p, &text);
    return status;
}

static int compare_keys(const void *left, const void *right) {
    return strcmp(((const struct rp_gguf_key *)left)->name,
                  ((const struct rp_gguf_key *)right)->name);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const struct rp_gguf_tensor *)left)->name,
                  ((const struct rp_gguf_tensor *)right)->name);
}

static int compare_offsets(const void *left, const void *right) {
    const struct rp_gguf_tensor *a = left, *b = right;
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1)
                                  : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int take_keys(struct parser *p, uint32_t count) {
    struct rp_gguf_key *keys = rp_arena_calloc(&p->gguf->arena, count, sizeof *keys);
    if (!keys)
        return rp_error_set(p->err, RP_STATUS_NO_MEMORY, "%s: out of memory", p->gguf->name);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t type = 0;
        int status = take_name(p, "key", &keys[i].name);
        if (status == RP_OK)
            status = take_u32(p, &type);
        if (status == RP_OK && type >= RP_GGUF_TYPE_COUNT)
            status = refuse(p, RP_STATUS_FORMAT, "key", keys[i].name, "is of an unknown type");
        keys[i].type = (enum rp_gguf_type)type;
        if (status == RP_OK)
            status = take_value(p, &keys[i]);
        if (status != RP_OK)
            return status;
    }
    if (count > 0)
        qsort(keys, count, sizeof *keys, compare_keys);
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(keys[i - 1].name, keys[i].name) == 0)
            return refuse(p, RP_STATUS_FORMAT, "key", keys[i].name, "is there twice");
    p->gguf->keys = keys;
    p->gguf->key_count = count;
    return RP_OK;
}

/* Names of types that are not read, for messages; "" where there is none. */
static const char *type_name(uint32_t type) {
    static const char *const names[] = {
        [4] = "Q4_2",    [5] = "Q4_3",     [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",
        [24] = "I8",     [25] = "I16",     [26] = "I32",   [27] = "I64",   [28] = "F64",
        [29] = "IQ1_M",  [34] = "TQ1_0",   [35] = "TQ2_0", [40] = "NVFP4"};
    return type < RP_ARRAY_COUNT(names) && names[type] ? names[type] : "unknown";
}

static int take_tensor(struct parser *p, struct rp_gguf_tensor *tensor) {
    char what[128];
    uint64_t elements = 1;
    int status = take_name(p, "tensor", &tensor->name);
    if (status == RP_OK)
        status = take_u32(p, &tensor->rank);
    if (status != RP_OK)
        return status;
    if (tensor->rank == 0 || tensor->rank > RP_GGUF_DIMS_MAX)
        return refuse(p, RP_STATUS_FORMAT, "tensor", tensor->name, "must have 1 to 4 dimensions");
    for (uint32_t i = 0; i < tensor->rank && status == RP_OK; i++) {
        status = take_u64(p, &tensor->dims[i]);
        if (status == RP_OK && rp_mul_overflow(elements, tensor->dims[i], &elements))
            status = refuse(p, RP_STATUS_OVERFLOW, "tensor", tensor->name, "is too large");
    }
    if (status == RP_OK)
        status = take_u32(p, &tensor->type);
    if (status == RP_OK)
        status = take_u64(p, &tensor->offset);
    if (status != RP_OK)
        return status;
    struct rp_block_info info = rp_block_info(tensor->type);
    if (!info.name || tensor->type >= RP_BLOCK_FILE_LIMIT) {
        snprintf(what, sizeof what, "is of type %u (%s), which is not supported", tensor->type,
                 type_name(tensor->type));
        return refuse(p, RP_STATUS_UNSUPPORTED, "tensor", tensor->name, what);
    }
    if (tensor->dims[0] % info.values != 0) {
        snprintf(what, sizeof what, "has rows of %llu values, %s needs a multiple of %u",
                 (unsigned long long)tensor->dims[0], info.name, info.values);
        return refuse(p, RP_STATUS_FORMAT, "tensor", tensor->name, what);
    }
    if (rp_mul_overflow(elements / info.values, info.bytes, &tensor->bytes))
        return refuse(p, RP_STATUS_OVERFLOW, "tensor", tensor->name, "is too large");
    return RP_OK;
}

/* Every tensor lies in the data, aligned, and overlaps no other. */
static int check_tensors(struct parser *p, struct rp_gguf_tensor *tensors, uint32_t count,
                         uint32_t alignment, uint64_t data_bytes) {
    char what[128];
    uint64_t covered = 0;
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, compare_offsets);
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_gguf_tensor *tensor = &tensors[i];
        if (tensor->offset % alignment != 0) {
            snprintf(what, sizeof what, "begins at %llu, no multiple of general.alignment %u",
                     (unsigned long long)tensor->offset, alignment);
            return refuse(p, RP_STATUS_FORMAT, "tensor", tensor->name, what);
        }
        if (tensor->offset > data_bytes || tensor->bytes > data_bytes - tensor->offset)
            return refuse(p, RP_STATUS_FORMAT, "tensor", tensor->name,
                          "ends past the end of the file: was it cut short?");
        if (tensor->offset < covered)
            return refuse(p, RP_STATUS_FORMAT, "tensor", tensor->name,
                          "overlaps the data of another tensor");
        covered = tensor->offset + tensor->bytes;
    }
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, compare_names);
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0)
            return refuse(p, RP_STATUS_FORMAT, "tensor", tensors[i].name, "is there twice");
    return RP_OK;
}

static int take_tensors(struct parser *p, uint32_t count, uint64_t *out_data_begin) {
    uint32_t alignment = 32;
    struct rp_gguf_tensor *tensors = rp_arena_calloc(&p->gguf->arena, count, sizeof *tensors);
    if (!tensors)
        return rp_error_set(p->err, RP_STATUS_NO_MEMORY, "%s: out of memory", p->gguf->name);
    for (uint32_t i = 0; i < count; i++) {
        int status = take_tensor(p, &tensors[i]);
        if (status != RP_OK)
            return status;
    }
    int status = rp_gguf_u32(p->gguf, "general.alignment", &alignment, p->err);
    if (status != RP_OK)
        return status;
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return refuse(p, RP_STATUS_RANGE, "key", "general.alignment",
                      "must be a power of two from 8 to 65536");
    /* A file of metadata alone may end before the padding. */
    uint64_t begin = RP_ALIGN_UP((uint64_t)p->at, alignment);
    *out_data_begin = begin;
    status = check_tensors(p, tensors, count, alignment,
                           begin < p->file_bytes ? p->file_bytes - begin : 0);
    p->gguf->tensors = tensors;
    p->gguf->tensor_count = count;
    return status;
}

static int parse(struct parser *p, uint64_t *out_data_begin) {
    const unsigned char *magic;
    uint32_t version = 0;
    uint64_t tensors = 0, keys = 0;
    const char *name = p->gguf->name;
    if (p->file_bytes < 4)
        return rp_error_set(p->err, RP_STATUS_FORMAT, "%s: not a GGUF file", name);
    int status = take(p, 4, &magic);
    if (status != RP_OK)
        return status;
    if (memcmp(magic, "GGUF", 4) != 0)
        return rp_error_set(p->err, RP_STATUS_FORMAT, "%s: not a GGUF file", name);
    status = take_u32(p, &version);
    if (status != RP_OK)
        return status;
    if (version != 2 && version != 3)
        return rp_error_set(p->err, RP_STATUS_UNSUPPORTED, "%s: GGUF version %u is not %s", name,
                            version & 0xFFFF ? version : __builtin_bswap32(version),
                            version & 0xFFFF ? "supported, 2 and 3 are"
                                             : "supported in big-endian order");
    status = take_u64(p, &tensors);
    if (status == RP_OK)
        status = take_u64(p, &keys);
    if (status != RP_OK)
        return status;
    /* A tensor takes 33 bytes and a key 14 at least. */
    if (tensors > RP_GGUF_TENSORS_MAX || keys > RP_GGUF_KEYS_MAX || tensors > p->file_bytes / 33 ||
        keys > p->file_bytes / 14)
        return rp_error_set(p->err, RP_STATUS_RANGE,
                            "%s: %llu tensors and %llu keys, at most %u and %u are read and the "
                            "file has %llu bytes",
                            name, (unsigned long long)tensors, (unsigned long long)keys,
                            RP_GGUF_TENSORS_MAX, RP_GGUF_KEYS_MAX,
                            (unsigned long long)p->file_bytes);
    status = take_keys(p, (uint32_t)keys);
    return status == RP_OK ? take_tensors(p, (uint32_t)tensors, out_data_begin) : status;
}

int rp_gguf_parse(struct rp_gguf *gguf, const unsigned char *head, size_t len, uint64_t file_bytes,
                  uint64_t *out_data_begin, bool *out_short, struct rp_error *err) {
    struct parser parser = {
        .gguf = gguf, .bytes = head, .len = len, .file_bytes = file_bytes, .err = err};
    int status = parse(&parser, out_data_begin);
    *out_short = parser.is_short;
    if (parser.is_short || status != RP_OK) {
        gguf->keys = NULL;
        gguf->tensors = NULL;
        gguf->key_count = gguf->tensor_count = 0;
    }
    return parser.is_short ? RP_OK : status;
}

/* --- values --------------------------------------------------------------------------------- */

const struct rp_gguf_key *rp_gguf_find(const struct rp_gguf *gguf, const char *name) {
    struct rp_gguf_key wanted = {.name = name};
    return gguf->key_count
               ? bsearch(&wanted, gguf->keys, gguf->key_count, sizeof wanted, compare_keys)
               : NULL;
}

const struct rp_gguf_tensor *rp_gguf_find_tensor(const struct rp_gguf *gguf, const char *name) {
    struct rp_gguf_tensor wanted = {.name = name};
    return gguf->tensor_count
               ? bsearch(&wanted, gguf->tensors, gguf->tensor_count, sizeof wanted, compare_names)
               : NULL;
}

int rp_gguf_refuse(const struct rp_gguf *gguf, enum rp_status status, const char *name,
                   const char *what, struct rp_error *err) {
    return rp_error_set(err, status, "%s: key %s %s", gguf->name, name, what);
}

/* Element i of a key of numbers; false: it holds no integers. */
static bool integer_at(const struct rp_gguf_key *key, uint64_t i, int64_t *out) {
    uint32_t bytes = rp_gguf_type_bytes(key->element);
    const unsigned char *at = key->value + i * bytes;
    uint64_t value = 0;
    if (bytes == 0 || key->element == RP_GGUF_F32 || key->element == RP_GGUF_F64 ||
        key->element == RP_GGUF_BOOL)
        return false;
    memcpy(&value, at, bytes);
    bool is_signed = key->element == RP_GGUF_I8 || key->element == RP_GGUF_I16 ||
                     key->element == RP_GGUF_I32 || key->element == RP_GGUF_I64;
    if (is_signed && bytes < 8 && (value >> (8 * bytes - 1) & 1))
        value |= ~(uint64_t)0 << 8 * bytes;
    if (!is_signed && value > INT64_MAX)
        value = INT64_MAX; /* beyond every limit */
    *out = (int64_t)value;
    return true;
}

int rp_gguf_u32(const struct rp_gguf *gguf, const char *name, uint32_t *out, struct rp_error *err) {
    const struct rp_gguf_key *key = rp_gguf_find(gguf, name);
    int64_t value;
    if (!key)
        return RP_OK;
    if (key->type == RP_GGUF_ARRAY || !integer_at(key, 0, &value))
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must be an integer", err);
    if (value < 0 || value > UINT32_MAX)
        return rp_gguf_refuse(gguf, RP_STATUS_RANGE, name, "must be from 0 to 4294967295", err);
    *out = (uint32_t)value;
    return RP_OK;
}

int rp_gguf_f64(const struct rp_gguf *gguf, const char *name, double *out, struct rp_error *err) {
    const struct rp_gguf_key *key = rp_gguf_find(gguf, name);
    int64_t value;
    float single;
    if (!key)
        return RP_OK;
    if (key->type == RP_GGUF_F32) {
        memcpy(&single, key->value, sizeof single);
        *out = (double)single;
    } else if (key->type == RP_GGUF_F64) {
        memcpy(out, key->value, sizeof *out);
    } else if (key->type != RP_GGUF_ARRAY && integer_at(key, 0, &value)) {
        *out = (double)value;
    } else {
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must be a number", err);
    }
    return RP_OK;
}

int rp_gguf_bool(const struct rp_gguf *gguf, const char *name, bool *out, struct rp_error *err) {
    const struct rp_gguf_key *key = rp_gguf_find(gguf, name);
    if (!key)
        return RP_OK;
    if (key->type != RP_GGUF_BOOL)
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must be true or false", err);
    *out = key->value[0] != 0;
    return RP_OK;
}

int rp_gguf_string(const struct rp_gguf *gguf, const char *name, struct rp_gguf_text *out,
                   struct rp_error *err) {
    const struct rp_gguf_key *key = rp_gguf_find(gguf, name);
    if (!key)
        return RP_OK;
    if (key->type != RP_GGUF_STRING)
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must be a string", err);
    *out = (struct rp_gguf_text){(const char *)key->value + 8, (size_t)load_u64(key->value)};
    return RP_OK;
}

/* *out: room for the elements; NULL with RP_OK: no such key. */
static int begin_array(const struct rp_gguf *gguf, const char *name, size_t bytes,
                       const struct rp_gguf_key **out_key, void **out, uint32_t *out_count,
                       struct rp_error *err) {
    const struct rp_gguf_key *key = rp_gguf_find(gguf, name);
    *out_key = key;
    *out = NULL;
    *out_count = 0;
    if (!key)
        return RP_OK;
    if (key->type != RP_GGUF_ARRAY)
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must be an array", err);
    if (key->count > 1u << 24)
        return rp_gguf_refuse(gguf, RP_STATUS_RANGE, name, "has more than 16777216 elements", err);
    *out = rp_calloc((size_t)key->count, bytes);
    *out_count = (uint32_t)key->count;
    return *out ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", gguf->name);
}

int rp_gguf_strings(const struct rp_gguf *gguf, const char *name, struct rp_gguf_text **out,
                    uint32_t *out_count, struct rp_error *err) {
    const struct rp_gguf_key *key;
    void *room;
    int status = begin_array(gguf, name, sizeof **out, &key, &room, out_count, err);
    *out = room;
    if (status != RP_OK || !key)
        return status;
    if (key->element != RP_GGUF_STRING) {
        rp_free(room);
        *out = NULL;
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must hold strings", err);
    }
    const unsigned char *at = key->value;
    for (uint32_t i = 0; i < *out_count; i++) {
        size_t len = (size_t)load_u64(at);
        (*out)[i] = (struct rp_gguf_text){(const char *)at + 8, len};
        at += 8 + len;
    }
    return RP_OK;
}

int rp_gguf_floats(const struct rp_gguf *gguf, const char *name, float **out, uint32_t *out_count,
                   struct rp_error *err) {
    const struct rp_gguf_key *key;
    void *room;
    int status = begin_array(gguf, name, sizeof **out, &key, &room, out_count, err);
    *out = room;
    if (status != RP_OK || !key)
        return status;
    if (key->element != RP_GGUF_F32) {
        rp_free(room);
        *out = NULL;
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must hold numbers of type F32", err);
    }
    memcpy(room, key->value, *out_count * sizeof **out);
    return RP_OK;
}

int rp_gguf_ints(const struct rp_gguf *gguf, const char *name, int32_t **out, uint32_t *out_count,
                 struct rp_error *err) {
    const struct rp_gguf_key *key;
    void *room;
    int status = begin_array(gguf, name, sizeof **out, &key, &room, out_count, err);
    *out = room;
    if (status != RP_OK || !key)
        return status;
    for (uint32_t i = 0; i < *out_count; i++) {
        int64_t value;
        if (integer_at(key, i, &value) && value >= INT32_MIN && value <= INT32_MAX) {
            (*out)[i] = (int32_t)value;
            continue;
        }
        rp_free(room);
        *out = NULL;
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, name, "must hold integers of 32 bits", err);
    }
    return RP_OK;
}
