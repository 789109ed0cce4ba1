/* attention_rows.h - shared by the fixtures of decode and latent attention: where their layer is,
 * and the comparison of output rows. Included once per test program. */
#ifndef RP_TESTS_GPU_ATTENTION_ROWS_H
#define RP_TESTS_GPU_ATTENTION_ROWS_H

#include "attention/attention_internal_cuda.h"
#include "base/bf16.h"
#include "device/quantize_row.h"
#include "kvcache/kv_groups.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYERS  2
#define LAYER   1 /* half of a layer's bytes is a plane: an odd one tells */
#define NO_PAGE 0x7FFFFFFFu

static bool all_poisoned(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

/* The largest difference; *ulp: of bf16, at the largest value of `want`. */
static float worst_of(const float *got, const float *want, uint32_t n, float *ulp) {
    float largest = 0, worst = 0;
    for (uint32_t c = 0; c < n; c++) {
        largest = fmaxf(largest, fabsf(want[c]));
        worst = fmaxf(worst, fabsf(want[c] - got[c]));
    }
    *ulp = exp2f(floorf(log2f(largest)) - 7.0f);
    return worst;
}

#endif
