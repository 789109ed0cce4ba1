/* gguf.h - GGUF files: metadata and tensors, version 2 and 3, little-endian, split files.
 *
 *   "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensors | padding | data
 *   key:    string name | u32 type | value            string: u64 length | bytes
 *   tensor: string name | u32 rank | u64 dims[rank] | u32 type | u64 offset in the data
 *
 * dims[0] is the number of columns, contiguous in memory. Data begins at the next multiple of
 * general.alignment. A file split into NAME-00001-of-0000N.gguf has its metadata in the first one.
 *
 * A file is trusted only after all of it was checked: counts against limits and against the bytes
 * that are there, types, names without duplicates, each tensor's bytes within the data and apart
 * from the others'. Files are read with pread, never mapped. Values point into memory of the file's
 * struct. Thread: one owner. Errors name the file and the key or tensor. */
#ifndef RP_TEXT_GGUF_H
#define RP_TEXT_GGUF_H

#include "base/block_type.h"
#include "base/memory.h"
#include "base/status.h"

#define RP_GGUF_HEAD_BYTES_MAX ((size_t)256 << 20) /* metadata; the largest known has 20 MiB */
#define RP_GGUF_KEYS_MAX       65536u
#define RP_GGUF_TENSORS_MAX    65536u
#define RP_GGUF_DIMS_MAX       4u
#define RP_GGUF_FILES_MAX      512u /* each keeps a file open */

enum rp_gguf_type {
    RP_GGUF_U8,
    RP_GGUF_I8,
    RP_GGUF_U16,
    RP_GGUF_I16,
    RP_GGUF_U32,
    RP_GGUF_I32,
    RP_GGUF_F32,
    RP_GGUF_BOOL,
    RP_GGUF_STRING,
    RP_GGUF_ARRAY,
    RP_GGUF_U64,
    RP_GGUF_I64,
    RP_GGUF_F64,
    RP_GGUF_TYPE_COUNT
};

/* Bytes of the head: no terminator. */
struct rp_gguf_text {
    const char *text;
    size_t len;
};

struct rp_gguf_key {
    const char *name;
    enum rp_gguf_type type;
    enum rp_gguf_type element;  /* of an array */
    uint64_t count;             /* of an array; else 1 */
    const unsigned char *value; /* the first value, or the string's length */
};

struct rp_gguf_tensor {
    const char *name;
    uint32_t type; /* rp_block_type */
    uint32_t rank;
    uint64_t dims[RP_GGUF_DIMS_MAX]; /* dims[0]: columns */
    uint64_t offset;                 /* in its file's data */
    uint64_t bytes;
    uint32_t file;
};

struct rp_gguf_file {
    const char *name;
    int fd;
    uint64_t data_begin;
};

/* Bytes of a value; 0 for strings and arrays. */
uint32_t rp_gguf_type_bytes(enum rp_gguf_type type);

/* Zero-initialized is valid and empty. */
struct rp_gguf {
    const char *name;         /* of the first file, without its folder */
    struct rp_gguf_key *keys; /* by name */
    uint32_t key_count;
    struct rp_gguf_tensor *tensors; /* by name */
    uint32_t tensor_count;
    struct rp_gguf_file *files;
    uint32_t file_count;
    unsigned char *head; /* the first file's bytes before its data */
    struct rp_arena arena;
};

/* Whether a path names a GGUF file: it ends in .gguf. */
bool rp_gguf_is_path(const char *path);

/* Opens a file, and the others that it was split into; of a split file `path` is the first. */
int rp_gguf_open(struct rp_gguf *gguf, const char *path, struct rp_error *err) RP_MUST_USE;
void rp_gguf_close(struct rp_gguf *gguf);

/* NULL when there is none of this name. */
const struct rp_gguf_key *rp_gguf_find(const struct rp_gguf *gguf, const char *name);
const struct rp_gguf_tensor *rp_gguf_find_tensor(const struct rp_gguf *gguf, const char *name);

/* Values of a key. Each returns RP_OK with *out unchanged when the key is absent, and FORMAT or
 * RANGE when its value is of another type or out of range. */
int rp_gguf_u32(const struct rp_gguf *gguf, const char *name, uint32_t *out,
                struct rp_error *err) RP_MUST_USE;
int rp_gguf_f64(const struct rp_gguf *gguf, const char *name, double *out,
                struct rp_error *err) RP_MUST_USE;
int rp_gguf_bool(const struct rp_gguf *gguf, const char *name, bool *out,
                 struct rp_error *err) RP_MUST_USE;
int rp_gguf_string(const struct rp_gguf *gguf, const char *name, struct rp_gguf_text *out,
                   struct rp_error *err) RP_MUST_USE;
/* Arrays: *out (*out_count) is allocated with rp_calloc, the caller frees it; NULL and 0 when the
 * key is absent. */
int rp_gguf_strings(const struct rp_gguf *gguf, const char *name, struct rp_gguf_text **out,
                    uint32_t *out_count, struct rp_error *err) RP_MUST_USE;
int rp_gguf_floats(const struct rp_gguf *gguf, const char *name, float **out, uint32_t *out_count,
                   struct rp_error *err) RP_MUST_USE;
int rp_gguf_ints(const struct rp_gguf *gguf, const char *name, int32_t **out, uint32_t *out_count,
                 struct rp_error *err) RP_MUST_USE;

/* Sets err: "FILE: key NAME WHAT". Returns the status. */
int rp_gguf_refuse(const struct rp_gguf *gguf, enum rp_status status, const char *name,
                   const char *what, struct rp_error *err);

/* Reads `len` bytes of the tensor from its byte `begin`. */
int rp_gguf_read(const struct rp_gguf *gguf, const struct rp_gguf_tensor *tensor, uint64_t begin,
                 void *out, uint64_t len, struct rp_error *err) RP_MUST_USE;

/* Checks the first `len` bytes of a file of file_bytes, and lists keys and tensors, by name, in
 * gguf->arena; gguf->name is for messages. *out_short: more bytes of the file are needed (then the
 * status is RP_OK and nothing is listed). */
int rp_gguf_parse(struct rp_gguf *gguf, const unsigned char *head, size_t len, uint64_t file_bytes,
                  uint64_t *out_data_begin, bool *out_short, struct rp_error *err) RP_MUST_USE;

#endif
