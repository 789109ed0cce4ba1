/* safetensors.h - tensors by name, from model.safetensors or the shards of its index.
 *
 *   file: | header length N, u64 LE | header, N bytes of JSON | data |
 *   header: {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ..,
 *            "__metadata__": {"key": "string"}}       offsets count from the start of data
 *
 * A file is trusted only after its whole header was checked: the tensors cover the data from 0 to
 * the file's last byte without hole or overlap, and each has the bytes that shape and dtype give.
 * So a read needs no further check but for a file that shrinks while it is read. Thread: one owner.
 * Memory: one arena, and one open file per shard; rp_safetensors_close frees. Errors: texts name
 * the file, and the tensor where there is one. */
#ifndef RP_MODEL_SAFETENSORS_H
#define RP_MODEL_SAFETENSORS_H

#include "base/memory.h"
#include "base/status.h"

#define RP_SAFETENSORS_HEADER_BYTES_MAX 100000000u /* the format's own limit */
#define RP_SAFETENSORS_COUNT_MAX        65536u
#define RP_SAFETENSORS_DIMS_MAX         8
#define RP_SAFETENSORS_SHARDS_MAX       512u /* each keeps a file open */

#define RP_SAFETENSORS_FILE  "model.safetensors"
#define RP_SAFETENSORS_INDEX "model.safetensors.index.json"

/* The element types that we convert; the others are only named. */
enum rp_safetensor_type {
    RP_SAFETENSOR_F32,
    RP_SAFETENSOR_F16,
    RP_SAFETENSOR_BF16,
    RP_SAFETENSOR_I8,      /* of quantized weights alone, as the next */
    RP_SAFETENSOR_F8_E4M3, /* with NaN, without infinities */
    RP_SAFETENSOR_BLOCKS,  /* of GGUF files: block_type */
    RP_SAFETENSOR_OTHER
};

struct rp_safetensor {
    const char *name;
    enum rp_safetensor_type type;
    const char *type_name; /* "BF16" */
    uint32_t block_type;   /* rp_block_type, of GGUF files */
    uint32_t rank;
    uint64_t shape[RP_SAFETENSORS_DIMS_MAX];
    uint64_t offset; /* of the first byte, in the file's data */
    uint64_t bytes;
    uint32_t shard;
};

struct rp_safetensors_shard {
    const char *name; /* file name in the directory */
    int fd;
    uint64_t data_begin;
};

struct rp_gguf_arch;

/* Zero-initialized is valid and empty. */
struct rp_safetensors {
    struct rp_safetensor *tensors; /* by name */
    uint32_t count;
    struct rp_safetensors_shard *shards;
    uint32_t shard_count;
    /* NULL, or the architecture of a GGUF file (model/gguf_model.h): tensors have its names, and
     * rp_safetensors_find takes the families'. */
    const struct rp_gguf_arch *arch;
    struct rp_arena arena;
};

/* Opens dir/model.safetensors, else the shards of dir/model.safetensors.index.json; or a GGUF
 * file. */
int rp_safetensors_open(struct rp_safetensors *files, const char *dir,
                        struct rp_error *err) RP_MUST_USE;
void rp_safetensors_close(struct rp_safetensors *files);

/* NULL when there is none of this name. */
const struct rp_safetensor *rp_safetensors_find(const struct rp_safetensors *files,
                                                const char *name);

/* Name of the file that holds the tensor. */
const char *rp_safetensors_file(const struct rp_safetensors *files,
                                const struct rp_safetensor *tensor);

/* Reads `len` bytes of the tensor from its byte `begin`. */
int rp_safetensors_read(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                        uint64_t begin, void *out, uint64_t len, struct rp_error *err) RP_MUST_USE;

/* Checks a header (the JSON alone) against the bytes of data that follow it, and lists its tensors,
 * by name, in `arena`. `file` is for messages. */
int rp_safetensors_parse(const char *header, size_t len, uint64_t data_bytes, const char *file,
                         struct rp_arena *arena, struct rp_safetensor **out_tensors,
                         uint32_t *out_count, struct rp_error *err) RP_MUST_USE;

/* "[32, 64]"; cut short where it does not fit. Returns out. */
const char *rp_safetensors_shape_text(const uint64_t *shape, uint32_t rank, char *out,
                                      size_t out_bytes);

#endif
