/* gpu_matmul.h - the harness of the GEMM tests on a GPU: a case describes a GEMM, the harness
 * makes random operands, uploads them, plans and runs the kernel that a test names, and
 * compares.
 *
 * Formats: bf16 weights with bf16 rows, W8A8 (FP8 or INT8 on both sides), W8A16. Output buffers are
 * poisoned (all bits set), rows past the live ones and columns between rows are NaN; matmul_run
 * fails if a byte around the outputs changes. One thread; device buffers are valid until
 * matmul_free. */
#ifndef RP_TESTS_SUPPORT_GPU_MATMUL_H
#define RP_TESTS_SUPPORT_GPU_MATMUL_H

#include "device/ops_cuda.h"
#include "quant/matmul_internal_cuda.h"
#include "quant/mid/matmul_mid_internal_cuda.h"
#include "quant/wide/matmul_wide_cuda.h"
#include "tests/support/gpu_test.h"

#define MATMUL_ROWS_MAX 2304u
#define BF16            RP_DTYPE_BF16
#define FP8             RP_DTYPE_FP8_E4M3
#define INT8            RP_DTYPE_INT8

/* The source of the input rows when the kernel under test computes them. */
enum matmul_source { READY, NORMED, QUANTIZED };

struct matmul_case {
    uint32_t max_rows, live, n, k;
    enum rp_dtype dtype, out_dtype; /* of the weights: BF16, FP8 or INT8 */
    bool block_scales, bias, accumulate, partials, gated, gate_up;
    bool plain; /* W8A16: rows are bf16, weights any finite values */
    enum matmul_source source;
    enum rp_activation fn;
    uint32_t segment;  /* columns of K for bf16, pairs of columns for 8 bits; 0: as planned */
    uint32_t sm_count; /* the plan's number of SMs; 0: the GPU's */
    /* Columns between rows. Unless exact_pads: in_pad is 16, and an out_pad of 0 means 3. */
    uint32_t in_pad, out_pad;
    bool exact_pads;
    float weight_offset; /* of the norm */
};

/* The kernel to run: at most one of tile, rows, mid and wide; none: the planned one. */
struct matmul_how {
    const struct rp_matmul_tile *tile;
    const struct rp_matmul_mid_tile *mid;
    bool rows, wide;
    uint32_t wide_cols; /* outputs per tile of the kernel for prompts; 0: its own choice */
    bool makes;         /* the planned kernel computes its rows from `source`; `rows` always does */
    uint32_t times;     /* 0: once */
};

/* Operands on the host, and their copies on the GPU. */
struct matmul_data {
    uint8_t *weight;                         /* (n, k), bf16 or 8 bits */
    uint8_t *in;                             /* W8A8: (max_rows, in_stride) */
    uint16_t *plain;                         /* bf16 rows: the input, or the source of `in` */
    float *weight_scales, *in_scales, *bias; /* bias: (n) */
    float *old;                              /* (max_rows, out_stride) of out before accumulating */
    size_t in_stride, out_stride, residual_stride;
    struct rp_matrix matrix;
    void *in_device, *plain_device;
    float *in_scales_device, *bias_device, *residual, *norm_weight;
    unsigned char *workspace;
    size_t workspace_bytes;
};

struct matmul_env {
    struct rp_gpu_step step;
    struct rp_cuda_limits limits;
    struct rp_arena memory; /* of plans; reset by each run */
};
extern struct matmul_env matmul_env;

/* main() of a program of GEMM tests. */
#define MATMUL_TEST_MAIN(...) RP_GPU_TEST_MAIN(matmul_set_up, matmul_tear_down, __VA_ARGS__)
int matmul_set_up(void **state);
int matmul_tear_down(void **state);

float matmul_random(void);                                     /* in [-1, 1) */
uint8_t *matmul_any_values(size_t count, enum rp_dtype dtype); /* 8-bit, finite; free() it */
void matmul_set_live(uint32_t live);
uint32_t matmul_outputs(const struct matmul_case *p); /* columns of out */
uint32_t matmul_segment(const struct matmul_case *p); /* columns of K in a segment */
/* The value of a stored weight. */
float matmul_weight_value(const struct matmul_case *p, const struct matmul_data *d, size_t at);

struct matmul_data matmul_make(const struct matmul_case *p);
void matmul_free(struct matmul_data *d); /* fails when a byte past a buffer was written */
/* Everything but `out`. makes: the kernel computes the rows from p->source. */
struct rp_matmul_cuda matmul_describe(const struct matmul_case *p, const struct matmul_data *d,
                                      bool makes);

/* Plans, runs and downloads: (max_rows, out_stride) f32, NaN around the outputs, partial sums
 * added up; free() it. A gated case with a tile runs as the GEMM and then the activation. */
float *matmul_run(const struct matmul_case *p, const struct matmul_data *d, struct matmul_how how);

/* Compares the live outputs of p bit for bit; frees got. */
void matmul_same(const struct matmul_case *p, const struct matmul_data *d, const float *expected,
                 float *got, const char *what);
/* bf16 weights: against sums in f64. */
void matmul_check_f64(const struct matmul_case *p, const struct matmul_data *d, const float *got);
/* W8A8: INT8 bit for bit, FP8 against sums in f64 of each segment. */
void matmul_check_scaled(const struct matmul_case *p, const struct matmul_data *d,
                         const float *got);

/* Tiles of the kernel for any number of rows. */
struct rp_matmul_tile matmul_tile(uint32_t tokens, uint32_t rows, uint32_t boxes, bool eager);
struct rp_matmul_tile matmul_tile_8(uint32_t tokens);
/* With REPRISE_TEST_TINY an 8-bit case with fewer thread blocks, else the same case. */
struct matmul_case matmul_shrunk_8(struct matmul_case p);
/* Variant 0 to 2 of each tile of the kernel for 65 to 256 rows against `expected`. index: of the
 * case. */
void matmul_check_mid_tiles(const struct matmul_case *p, const struct matmul_data *d,
                            const float *expected, const struct rp_matmul_mid_tile *tiles,
                            size_t count, size_t index, uint32_t times);

#endif
