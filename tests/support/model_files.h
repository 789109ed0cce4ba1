/* model_files.h - model directories for tests: a temporary directory, files from bytes, and a
 * writer of safetensors files that also writes invalid ones.
 * Errors: a failed call ends the test program with a message. */
#ifndef RP_TESTS_MODEL_FILES_H
#define RP_TESTS_MODEL_FILES_H

#include "base/base.h"

struct rp_test_dir {
    char path[256];
};

void rp_test_dir_create(struct rp_test_dir *dir);
/* Removes the directory and the files in it (no subdirectories). Legal on a zeroed struct. */
void rp_test_dir_remove(struct rp_test_dir *dir);
/* For a setup of cmocka: a zeroed fixture, in *state, and its directory. Returns 0. */
int rp_test_fixture_create(void **state, void *fixture, size_t size, struct rp_test_dir *dir);

void rp_test_file_write(const struct rp_test_dir *dir, const char *name, const void *bytes,
                        size_t len);
void rp_test_file_text(const struct rp_test_dir *dir, const char *name, const char *text);
/* dir/name is a link to `target`. */
void rp_test_file_link(const struct rp_test_dir *dir, const char *name, const char *target);
/* Cuts the file to `len` bytes. */
void rp_test_file_truncate(const struct rp_test_dir *dir, const char *name, size_t len);
void rp_test_file_delete(const struct rp_test_dir *dir, const char *name);

/* A safetensors file: the header's JSON, then `data_len` bytes of data (NULL: byte i is i % 251).
 */
void rp_test_safetensors_write(const struct rp_test_dir *dir, const char *name, const char *header,
                               const void *data, size_t data_len);

/* A tensor for rp_test_checkpoint_write. Its values are `value(index)` for every element, or
 * 0.001 * (index % 1000) when value is NULL. */
struct rp_test_tensor {
    const char *name;
    const char *dtype; /* "F32", "F16", "BF16"; "F8_E4M3", "U8": value is the byte */
    uint32_t rank;
    uint32_t shape[4];
    float (*value)(uint64_t index);
};
void rp_test_checkpoint_write(const struct rp_test_dir *dir, const char *file_name,
                              const struct rp_test_tensor *tensors, size_t count);

#endif
