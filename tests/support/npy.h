/* npy.h - reads the .npy arrays of the operator goldens (format 1.0, C order) as f32.
 * Supported: <f4, <u2 (bf16 bits), <i8. The caller frees with rp_free. */
#ifndef RP_TESTS_SUPPORT_NPY_H
#define RP_TESTS_SUPPORT_NPY_H

#include "base/base.h"

struct rp_npy {
    float *values;
    size_t count;
};

/* False if the file is missing or has an unsupported format. */
bool rp_npy_read(const char *path, struct rp_npy *out);

#endif
