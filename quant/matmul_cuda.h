/* matmul_cuda.h - GEMMs on CUDA: out = in * weight^T + bias (+ out).
 *
 * Weights stay row-major (n, k) on the device: one copy serves every kernel.
 *
 * Reduction contract. bf16 weights on tensor cores: K is cut into segments of
 * rp_matmul_cuda_segment columns, a property of the matrix alone; a segment is one chain of
 * m*n*k16 instructions from zero in rising k (mma.sync and wgmma of any width give equal bits:
 * tests/gpu/test_numerics_probe); the segments are added in rising order: ((s0 + s1) + s2) + ...;
 * then bias, then the old value of out. So the bits of a row never depend on the number of rows,
 * its index, the tile or the distribution of segments. f32 weights and sizes outside the tile
 * rules: one f32 fma chain in rising k per output.
 *
 * 8-bit weights, W8A8 (weight->input RP_INPUT_QUANTIZED): the same segments, counted in bytes:
 * twice as many columns. A segment is one chain of wgmma k32 from zero in rising k, exact in int32
 * for INT8 and in the tensor cores' few bits for FP8 (relative error 1.0e-3 at 2,048 columns,
 * 2.1e-3 at 8,192: tests/gpu/test_numerics_probe; FP8's own rounding costs 25 times that), then
 * one f32 product: (f32)sum * (in_scales[row] * scales[n]). From there on it is added up as above.
 * RP_SCALE_BLOCK_128: a chain each 128 columns, total = fma(chain, scales[n / 128][k / 128],
 * total) within a segment, then * in_scales[row]. Sizes outside the tile rules: INT8 the same
 * bits; FP8 f32 chains in place of the tensor cores', within segments.
 *
 * W8A16 (RP_INPUT_PLAIN), for any number of rows: quantized values are bf16 numbers, exactly, and
 * the segments those of W8A8. A segment is one chain of m*n*k16 from zero in rising k, as of bf16
 * weights, then * scales[n] in f32, and is added up as above. RP_SCALE_BLOCK_128: a chain each 128
 * columns, total = fma(chain, scales[n / 128][k / 128], total) within a segment. Sizes outside the
 * tile rules (any number of rows of such a matrix, too): 32 f32 fma chains of bf16 * quantized
 * value, chain l of columns [16 l + 512 j, + 16) in rising k, added by halves (l and l ^ 16, l ^
 * 8, ...), then * scales[n]; with blocks, sums of 16 columns times their scale go into the chain
 * (matmul_generic_8_cuda.cu).
 *
 * Weights in tiles (BLOCKS: GGUF's, or of 4 bits), rows in bf16: those of bf16 weights with the
 * values of rp_tiles_weight (quant/tiles.h), in segments of their own
 * (quant/tiles/matmul_tiles_cuda.h).
 *
 * --numerics fast may break this contract.
 *
 * Dependent launch: a GEMM lets its successors start only after its own wait. So everything that
 * was complete when it began is complete when any later kernel starts, however early: kernels
 * after a GEMM may read it before their own wait, as long as every kernel in between also triggers
 * or waits.
 *
 * Thread: the engine's. Planning may allocate from `memory` and nowhere else. */
#ifndef RP_QUANT_MATMUL_CUDA_H
#define RP_QUANT_MATMUL_CUDA_H

#include "base/memory.h"
#include "device/cuda_launch.h"
#include "quant/matrix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* RMSNorm of whole rows, as in rp_norm_cuda. */
#define RP_MATMUL_NORM_ROWS 4    /* most rows */
#define RP_MATMUL_NORM_COLS 4096 /* and columns */
struct rp_matmul_norm {
    const float *in;     /* (max_rows, in_stride), 16-byte aligned */
    const float *weight; /* (cols) on the device; NULL: no norm */
    size_t in_stride;
    uint32_t cols;
    float eps, weight_offset;
};

/* Another place for a GEMM's output in bf16: (max_rows, n) without gaps, at to + (*number % 2) *
 * bytes, a multiple of 16. It may be another GPU's memory. to NULL: there is none. */
struct rp_matmul_copy {
    unsigned char *to;
    const uint32_t *number; /* on the device; constant while the kernel runs */
    size_t bytes;
};

struct rp_matmul_cuda {
    struct rp_cuda_rows rows;
    struct rp_cuda_limits limits;
    /* data on the device, row-major; of 8 bits: scales too, RP_SCALE_CHANNEL or
     * RP_SCALE_BLOCK_128 */
    const struct rp_matrix *weight;
    const float *bias; /* (n) on the device, or NULL */
    const void *in;    /* (max_rows, in_stride) of the weight's dtype; for W8A16 bf16 */
    size_t in_stride;
    /* W8A8: (max_rows) on the device: row r of the input is in[r] * in_scales[r]. NULL: `in`, or
     * the norm's output, is bf16 and the kernel quantizes its rows as rp_quantize_row does; only
     * where rp_matmul_cuda_quantizes says so. */
    const float *in_scales;
    struct rp_values out; /* f32 or bf16 */
    bool accumulate;      /* out += (f32 only) */
    /* the reader of out can sum up partials: the plan may leave them unsummed */
    bool partials_wanted;
    bool gate_up; /* an activation reads out, here (gated) or later */
    /* Gated: the weight's first n / 2 rows are gates, the others ups, and out has n / 2 columns:
     * out[c] = fn(gate c) * up c, computed in f32 from the finished sums. Not with bias or
     * accumulate; only where rp_matmul_cuda_gates says that a kernel does it. */
    bool gated;
    enum rp_activation fn;
    /* Normed: the GEMM is of this norm's output, rounded to bf16, and `in` is not read. Only
     * where rp_matmul_cuda_norms says that a kernel does it. */
    struct rp_matmul_norm norm;
    /* Where out is stored a second time; only where rp_matmul_cuda_copies says so. */
    struct rp_matmul_copy copy;
    uint32_t segment; /* columns of K in a segment, of bf16 and of tiles; 0: the rule's */
    /* Weights in tiles: room for (n, k) bf16, where rp_matmul_cuda_weight_scratch wants it */
    void *weight_scratch;
    /* rp_matmul_cuda_workspace_bytes; zeroed once, shared by all GEMMs */
    unsigned char *workspace;
    size_t workspace_bytes;
};

/* Columns of K per segment for a bf16 matrix of (n, k); of 8 bits, W8A16 too, k and the result
 * count pairs of columns. gate_up: its output goes through an activation; such a matrix is one
 * segment, so that one block has an output whole and can finish it. */
uint32_t rp_matmul_cuda_segment(uint32_t n, uint32_t k, bool gate_up);

/* Workspace size for GEMMs of up to row_capacity rows and n_max outputs. */
size_t rp_matmul_cuda_workspace_bytes(const struct rp_cuda_limits *limits, uint32_t row_capacity,
                                      uint32_t n_max);

/* Bytes of weight_scratch that the plan of this GEMM needs: 0 for all but weights in tiles. */
size_t rp_matmul_cuda_weight_scratch(const struct rp_matmul_cuda *op);

/* True when a plan for this GEMM with `gated` set exists; the choice depends on sizes, types and
 * alignment alone. */
bool rp_matmul_cuda_gates(const struct rp_matmul_cuda *op);

/* True when the plan can store a copy of the output. */
bool rp_matmul_cuda_copies(const struct rp_matmul_cuda *op);

/* The same for the norm before it. */
bool rp_matmul_cuda_norms(const struct rp_matmul_cuda *op);

/* The same for a W8A8 GEMM whose rows come in bf16, without in_scales. Not needed for normed
 * GEMMs. */
bool rp_matmul_cuda_quantizes(const struct rp_matmul_cuda *op);

/* True when the bits are those of bf16 weights on tensor cores, in segments. */
bool rp_matmul_cuda_chains(const struct rp_matmul_cuda *op);

/* Chooses the kernel: fills one launch (args are allocated from memory) and, when the sums were
 * left to the reader, out_partials (else its count is 0). Partials lie in the workspace: they live
 * until the next GEMM runs. */
int rp_matmul_cuda_plan(const struct rp_matmul_cuda *op, struct rp_arena *memory,
                        struct rp_cuda_launch *out_launch, struct rp_cuda_partials *out_partials,
                        struct rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
