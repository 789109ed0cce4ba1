/* matmul_8_cases.h - sizes of GEMMs with 8-bit weights that W8A8 and W8A16 both run. */
#ifndef RP_TESTS_GPU_MATMUL_8_CASES_H
#define RP_TESTS_GPU_MATMUL_8_CASES_H

#include "tests/support/gpu_matmul.h"

/* As planned. */
#define PLANNED_CASES_8                                                                            \
    {.max_rows = 1, .live = 1, .n = 64, .k = 128},                                                 \
        {.max_rows = 1, .live = 1, .n = 1, .k = 16, .bias = true},                                 \
        {.max_rows = 8, .live = 3, .n = 6144, .k = 4096, .bias = true, .accumulate = true},        \
        {.max_rows = 3, .live = 3, .n = 65, .k = 144, .accumulate = true},                         \
        {.max_rows = 7, .live = 5, .n = 127, .k = 400, .bias = true, .out_dtype = RP_DTYPE_BF16},  \
        {.max_rows = 8, .live = 0, .n = 129, .k = 1024, .bias = true},                             \
        {.max_rows = 4, .live = 2, .n = 2048, .k = 14336, .bias = true, .partials = true},         \
        {.max_rows = 16, .live = 15, .n = 1000, .k = 2048, .out_dtype = RP_DTYPE_BF16},            \
        {.max_rows = 13, .live = 13, .n = 768, .k = 8192, .bias = true, .partials = true},         \
        {.max_rows = 32, .live = 31, .n = 333, .k = 2192},                                         \
        {.max_rows = 48, .live = 33, .n = 200, .k = 4096, .bias = true, .partials = true},         \
        {.max_rows = 64, .live = 64, .n = 192, .k = 1296, .accumulate = true},                     \
        {.max_rows = 100, .live = 65, .n = 129, .k = 1040, .bias = true, .accumulate = true},      \
        {.max_rows = 128, .live = 99, .n = 1001, .k = 528, .bias = true, .partials = true},        \
        {.max_rows = 200, .live = 190, .n = 1000, .k = 1536, .partials = true}, {                  \
        .max_rows = 300, .live = 257, .n = 131, .k = 656, .accumulate = true                       \
    }

/* Every tile of the kernel for any number of rows. */
#define TILE_CASES_8                                                                               \
    {.max_rows = 300, .live = 283, .n = 260, .k = 1296, .segment = 192, .bias = true},             \
        {.max_rows = 64, .live = 64, .n = 600, .k = 4096, .segment = 512, .bias = true},           \
        {.max_rows = 8, .live = 8, .n = 4100, .k = 2064, .segment = 256, .accumulate = true}, {    \
        .max_rows = 130, .live = 130, .n = 200, .k = 4096, .segment = 2048                         \
    }

#endif
