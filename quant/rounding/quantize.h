/* quantize.h - quantizes matrices and rows to 8 or 4 bits, and measures the error.
 *
 *   weights (n, k)                         value used in a GEMM
 *     row 0   [ q q q q ... ]  scales[0]     w(n, k) ~ q(n, k) * scales[n]
 *     row 1   [ q q q q ... ]  scales[1]     INT8: scale = max|w(n, .)| / 127, q in [-127, 127]
 *     ...                                    FP8:  scale = max|w(n, .)| / 448 or near, q an E4M3
 *     value
 *
 * How a row becomes quantized values: device/quantize_row.h.
 *
 *   scheme        weights    input rows (matrix.h: input)
 *   int8          INT8       INT8, one scale per row, quantized on the fly
 *   fp8           FP8        FP8, the same
 *   int8-w8a16    INT8       bf16, as they are
 *   fp8-w8a16     FP8        bf16, as they are
 *   int4          INT4       bf16, as they are; one scale per 128 columns (int4.h)
 *   nvfp4         E2M1       the same; one scale per 16 columns (fp4.h)
 *   mxfp4         E2M1       the same; one scale per 32 columns
 *
 * Threads: no shared state. */
#ifndef RP_QUANT_QUANTIZE_H
#define RP_QUANT_QUANTIZE_H

#include "quant/matrix.h"

enum rp_quant_scheme {
    RP_QUANT_NONE,
    RP_QUANT_INT8,
    RP_QUANT_FP8,
    RP_QUANT_INT8_W8A16,
    RP_QUANT_FP8_W8A16,
    RP_QUANT_INT4,
    RP_QUANT_NVFP4,
    RP_QUANT_MXFP4
};
#define RP_QUANT_SCHEME_COUNT 8

const char *rp_quant_scheme_name(enum rp_quant_scheme scheme); /* "none", "int8", ... */
bool rp_quant_scheme_find(const char *name, enum rp_quant_scheme *out);
enum rp_dtype rp_quant_scheme_dtype(
    enum rp_quant_scheme scheme); /* of the weights; not of NONE; BLOCKS: 4 bits */
static inline bool rp_quant_scheme_has_blocks(enum rp_quant_scheme scheme) {
    return scheme >= RP_QUANT_INT4;
}

/* Sums over weights, to be added up: signal = sum w^2, noise = sum (w - q * scale)^2. */
struct rp_quant_loss {
    double signal, noise;
};
/* 10 log10(signal / noise) in dB; infinity without error. */
double rp_quant_sqnr_db(const struct rp_quant_loss *loss);

/* Adds the quantization error of a row of weights. dtype: INT8 or FP8_E4M3. */
void rp_quant_add_loss(const float *weights, size_t cols, const void *quantized,
                       enum rp_dtype dtype, float scale, struct rp_quant_loss *loss);

/* Sets dtype, scale kind and input of a matrix to those of the scheme. No data is touched. */
void rp_quant_describe(struct rp_matrix *matrix, enum rp_quant_scheme scheme);

/* Rows [0, rows) of `from` (rows, cols; F32 or BF16, no gaps) to quantized values (rows, cols) and
 * scales (rows). dtype: INT8 or FP8_E4M3. Adds to loss unless NULL. False: row *out_bad_row holds a
 * NaN or an infinity; what was written is void. */
bool rp_quantize_weights(const void *from, enum rp_dtype from_dtype, size_t rows, size_t cols,
                         enum rp_dtype dtype, void *quantized, float *scales,
                         struct rp_quant_loss *loss, size_t *out_bad_row) RP_MUST_USE;

/* The same for a model's weights, where they are read or written: FP8 rows of up to
 * RP_QUANT_SEARCH_COLS take the best, in the sum of squares, of 16 scales from max / 448 to twice
 * that, and with its quantized values the scale of least squares. The error is never above
 * rp_quantize_weights's: its quantized values stay where it would be. 1.5 dB less noise in rows of
 * 64 normal weights, 0.8 in 256, 0.6 in 512; what wider ones and INT8 would gain (0.5 dB and less)
 * is not worth the time. */
#define RP_QUANT_SEARCH_COLS 512
bool rp_quantize_weights_searched(const void *from, enum rp_dtype from_dtype, size_t rows,
                                  size_t cols, enum rp_dtype dtype, void *quantized, float *scales,
                                  struct rp_quant_loss *loss, size_t *out_bad_row) RP_MUST_USE;

/* `cols` values to blocks of the part's type: INT4 with bf16 scales, NVFP4 or MXFP4 (int4.h,
 * fp4.h). Adds to loss unless NULL. False: a value is not finite, or too large for NVFP4's factor
 * or for MXFP4; what was written is void. */
bool rp_quantize_row_to_blocks(const struct rp_matrix_part *part, const float *values, size_t cols,
                               unsigned char *blocks, struct rp_quant_loss *loss) RP_MUST_USE;

/* A new row-major matrix out of a row-major F32 or BF16 one, which stays as it is. loss may be
 * NULL. Errors: FORMAT (NaN or infinity, with the row), UNSUPPORTED (another type or layout),
 * OVERFLOW, NO_MEMORY; out is untouched then. */
int rp_quantize_matrix(const struct rp_matrix *from, enum rp_quant_scheme scheme,
                       struct rp_matrix *out, struct rp_quant_loss *loss,
                       struct rp_error *err) RP_MUST_USE;

/* Row `row` as f32 into out(cols): quantized values times scales, one f32 product each. Any layout,
 * any type. */
void rp_dequantize_row(const struct rp_matrix *matrix, uint32_t row, float *out);

#endif
