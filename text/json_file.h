/* json_file.h - reads a JSON file of a model directory into a jansson tree, with limits. A tree
 * takes up to 80 times the bytes of its text (`{},` is 232 bytes), so its size is estimated before
 * it is built and refused past RP_JSON_TREE_BYTES_MAX. Thread: any. Memory: the caller owns the
 * tree (json_decref). */
#ifndef RP_TEXT_JSON_FILE_H
#define RP_TEXT_JSON_FILE_H

#include "base/status.h"

#include <jansson.h>

#define RP_JSON_FILE_BYTES_MAX ((size_t)16 << 20)
#define RP_JSON_TREE_BYTES_MAX ((size_t)160 << 20)

/* NOT_FOUND when there is no such file; every text names `name`, the file's name in dir. */
int rp_json_file_load(const char *dir, const char *name, json_t **out_root,
                      struct rp_error *err) RP_MUST_USE;

/* The same for text in memory: refuses duplicate keys, trailing bytes, and trees that are too big.
 */
int rp_json_text_load(const char *text, size_t len, const char *name, json_t **out_root,
                      struct rp_error *err) RP_MUST_USE;

/* The same; `flags` of jansson are added. */
int rp_json_text_load_with(const char *text, size_t len, const char *name, size_t flags,
                           json_t **out_root, struct rp_error *err) RP_MUST_USE;

/* json_loadb that reports out-of-memory: returns NULL with *out_no_memory set. jansson 2.14 reports
 * that as an error of the text, or drops a byte of a string and continues. Allocators that a
 * program gives jansson must call rp_json_note_no_memory on the thread where they fail. */
json_t *rp_json_parse(const char *text, size_t len, size_t flags, json_error_t *where,
                      bool *out_no_memory);
void rp_json_note_no_memory(void);

/* Opens dir/name for reading, only if it is a regular file (links are followed) and not a git-lfs
 * pointer. */
int rp_model_file_open(const char *dir, const char *name, int *out_fd, uint64_t *out_bytes,
                       struct rp_error *err) RP_MUST_USE;

/* pread of exactly `len` bytes, in pieces, through signals and short reads. Returns the bytes read:
 * fewer than len at the end of the file; -1 with errno set on an error. */
int64_t rp_model_file_read(int fd, void *out, uint64_t len, uint64_t offset);

/* Text of a file, sanitized for a message: control bytes become '?', a long text ends in "...".
 * Returns `out`. */
const char *rp_text_for_message(char *out, size_t out_bytes, const char *text);

#endif
