/* fuzz_input.h - what the fuzz targets share: reading an input piece by piece, and files for
 * loaders that read a directory. A target is a file fuzz_NAME.c with LLVMFuzzerTestOneInput; it
 * runs from the root of the source tree. Thread: one. */
#ifndef RP_TESTS_FUZZ_INPUT_H
#define RP_TESTS_FUZZ_INPUT_H

#include "base/base.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct fuzz_input {
    const char *bytes; /* not yet read */
    size_t len;
};

struct fuzz_part {
    const char *text;
    size_t len;
};

static inline struct fuzz_input fuzz_begin(const uint8_t *bytes, size_t len) {
    return (struct fuzz_input){(const char *)bytes, len};
}

/* The next byte; 0 at the end. */
uint8_t fuzz_byte(struct fuzz_input *input);
/* Everything up to the separator, which is skipped, or to the end. */
struct fuzz_part fuzz_until(struct fuzz_input *input, char separator);
/* A copy that ends in NUL, so that the sanitizer finds every byte read past it; rp_free. */
char *fuzz_string(struct fuzz_part part);

/* A private directory, removed at exit. */
const char *fuzz_dir(void);
/* Writes a file of that directory. */
void fuzz_write(const char *name, const void *bytes, size_t len);
/* Makes it absent. */
void fuzz_remove(const char *name);

#endif
