#include "quant/rounding/quantize.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "device/quantize_row.h"
#include "quant/matmul.h"
#include "quant/rounding/fp4.h"
#include "quant/rounding/int4.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const scheme_names[RP_QUANT_SCHEME_COUNT] = {
    "none", "int8", "fp8", "int8-w8a16", "fp8-w8a16", "int4", "nvfp4", "mxfp4"};

const char *rp_quant_scheme_name(enum rp_quant_scheme scheme) {
    return (uint32_t)scheme < RP_QUANT_SCHEME_COUNT ? scheme_names[scheme] : "?";
}

bool rp_quant_scheme_find(const char *name, enum rp_quant_scheme *out) {
    for (uint32_t i = 0; i < RP_QUANT_SCHEME_COUNT; i++)
        if (strcmp(name, scheme_names[i]) == 0) {
            *out = (enum rp_quant_scheme)i;
            return true;
        }
    return false;
}

enum rp_dtype rp_quant_scheme_dtype(enum rp_quant_scheme scheme) {
    RP_ASSERT(scheme != RP_QUANT_NONE);
    if (rp_quant_scheme_has_blocks(scheme))
        return RP_DTYPE_BLOCKS;
    return scheme == RP_QUANT_INT8 || scheme == RP_QUANT_INT8_W8A16 ? RP_DTYPE_INT8
                                                                    : RP_DTYPE_FP8_E4M3;
}

double rp_quant_sqnr_db(const struct rp_quant_loss *loss) {
    return loss->noise > 0 ? 10 * log10(loss->signal / loss->noise) : INFINITY;
}

void rp_quant_describe(struct rp_matrix *matrix, enum rp_quant_scheme scheme) {
    if (scheme == RP_QUANT_NONE)
        return;
    matrix->dtype = rp_quant_scheme_dtype(scheme);
    matrix->layout = RP_LAYOUT_ROW_MAJOR;
    if (rp_quant_scheme_has_blocks(scheme)) {
        bool nvfp4 = scheme == RP_QUANT_NVFP4;
        matrix->input = RP_INPUT_BF16;
        matrix->part_count = 1;
        matrix->parts[0] = (struct rp_matrix_part){
            .rows = matrix->rows,
            .type = nvfp4                      ? RP_BLOCK_NVFP4
                    : scheme == RP_QUANT_MXFP4 ? RP_BLOCK_MXFP4
                                               : rp_int4_type(RP_INT4_GROUP_DEFAULT),
            .factor = nvfp4 ? RP_NVFP4_FACTOR : 0.0f};
        return;
    }
    matrix->scale_kind = RP_SCALE_CHANNEL;
    matrix->input =
        scheme == RP_QUANT_INT8 || scheme == RP_QUANT_FP8 ? RP_INPUT_QUANTIZED : RP_INPUT_PLAIN;
}

static inline float value_at(const void *from, enum rp_dtype dtype, size_t i) {
    return dtype == RP_DTYPE_F32 ? ((const float *)from)[i]
                                 : rp_bf16_to_f32(((const uint16_t *)from)[i]);
}

static struct rp_quant_loss loss_of_row(const void *values, enum rp_dtype from_dtype, size_t cols,
                                        const void *quantized, enum rp_dtype dtype, float scale) {
    struct rp_quant_loss loss = {0, 0};
    for (size_t i = 0; i < cols; i++) {
        double w = (double)value_at(values, from_dtype, i);
        double lost = w - (double)rp_quantized_to_f32(quantized, dtype, i) * (double)scale;
        loss.signal += w * w;
        loss.noise += lost * lost;
    }
    return loss;
}

static void add_loss(struct rp_quant_loss *loss, struct rp_quant_loss lost) {
    loss->signal += lost.signal;
    loss->noise += lost.noise;
}

void rp_quant_add_loss(const float *weights, size_t cols, const void *quantized,
                       enum rp_dtype dtype, float scale, struct rp_quant_loss *loss) {
    add_loss(loss, loss_of_row(weights, RP_DTYPE_F32, cols, quantized, dtype, scale));
}

/* ---- the search for a scale ----------------------------------------------------------- */

/* parallel sums: vectorizable, with the same order on every machine */
#define LANES  8u
#define STEPS  16             /* scales tried within a factor of two */
#define NARROW 0x1.ea4afap-1f /* 2^(-1/16) */
static_assert(RP_QUANT_SEARCH_COLS % LANES == 0, "a row is padded to whole lanes");

/* |value| minus the nearest E4M3, as rp_f32_to_fp8 rounds; for up to 448 and without a branch. */
static inline float fp8_error(float value) {
    uint32_t bits, denormal, normal;
    float shifted, rounded;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7FFFFFFFu;
    memcpy(&value, &bits, sizeof value);
    shifted = value + 0x1p14f - 0x1p14f; /* steps of 2^-9 */
    memcpy(&denormal, &shifted, sizeof denormal);
    normal = (bits + 0x7FFFFu + (bits >> 20 & 1u)) & 0xFFF00000u;
    uint32_t small = 0u - (uint32_t)(bits < 0x3C800000u); /* all ones below 2^-6 */
    bits = (denormal & small) | (normal & ~small);
    memcpy(&rounded, &bits, sizeof rounded);
    return value - rounded;
}

/* Squared errors of values * inverse, in units of the scale; cols is a multiple of LANES. */
static float fp8_noise(const float *values, size_t cols, float inverse) {
    float lost[RP_QUANT_SEARCH_COLS], sums[LANES] = {0};
    for (size_t i = 0; i < cols; i++)
        lost[i] = fp8_error(values[i] * inverse);
    for (size_t i = 0; i < cols; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += lost[i + lane] * lost[i + lane];
    for (size_t lane = 1; lane < LANES; lane++)
        sums[0] += sums[lane];
    return sums[0];
}

/* The factor that the inverse of `scale` is best narrowed by. */
static float narrowest_noise(const float *values, size_t cols, float scale) {
    float best = 1.0f, least = INFINITY, factor = 1.0f;
    for (int step = 0; step < STEPS; step++, factor *= NARROW) {
        float noise = fp8_noise(values, cols, factor / scale) / (factor * factor);
        if (noise < least) {
            least = noise;
            best = factor;
        }
    }
    return best;
}

/* Replaces the quantized values and the scale by better ones than those from the row's maximum, if
 * there are any. E4M3 is the same grid in each binade: what matters is where the few largest
 * weights fall in it. The scale is then the one of least squares for the quantized values. */
static void search_scale(const void *from, enum rp_dtype from_dtype, size_t cols,
                         uint8_t *quantized, float *scale) {
    float values[RP_QUANT_SEARCH_COLS] = {0};
    uint8_t tried[RP_QUANT_SEARCH_COLS];
    double along = 0, square = 0;
    for (size_t i = 0; i < cols; i++)
        values[i] = value_at(from, from_dtype, i);
    float inverse = narrowest_noise(values, RP_CEIL_DIV(cols, LANES) * LANES, *scale) / *scale;
    for (size_t i = 0; i < cols; i++) {
        tried[i] = rp_f32_to_fp8(values[i] * inverse);
        double code = (double)rp_fp8_to_f32(tried[i]);
        along += (double)values[i] * code;
        square += code * code;
    }
    float fitted = (float)(along / square); /* NaN where all quantized values are zero */
    if (loss_of_row(values, RP_DTYPE_F32, cols, tried, RP_DTYPE_FP8_E4M3, fitted).noise <
        loss_of_row(values, RP_DTYPE_F32, cols, quantized, RP_DTYPE_FP8_E4M3, *scale).noise) {
        memcpy(quantized, tried, cols);
        *scale = fitted;
    }
}

static bool quantize_weights(const void *from, enum rp_dtype from_dtype, size_t rows, size_t cols,
                             enum rp_dtype dtype, void *quantized, float *scales,
                             struct rp_quant_loss *loss, size_t *out_bad_row, bool search) {
    for (size_t row = 0; row < rows; row++) {
        unsigned char *to = (unsigned char *)quantized + row * cols;
        const unsigned char *values =
            (const unsigned char *)from + row * cols * rp_dtype_bytes(from_dtype);
        scales[row] = rp_quantize_row(values, from_dtype, cols, dtype, to);
        if (isnan(scales[row])) {
            *out_bad_row = row;
            return false;
        }
        if (search)
            search_scale(values, from_dtype, cols, to, &scales[row]);
        if (loss)
            add_loss(loss, loss_of_row(values, from_dtype, cols, to, dtype, scales[row]));
    }
    return true;
}

bool rp_quantize_weights(const void *from, enum rp_dtype from_dtype, size_t rows, size_t cols,
                         enum rp_dtype dtype, void *quantized, float *scales,
                         struct rp_quant_loss *loss, size_t *out_bad_row) {
    return quantize_weights(from, from_dtype, rows, cols, dtype, quantized, scales, loss,
                            out_bad_row, false);
}

bool rp_quantize_weights_searched(const void *from, enum rp_dtype from_dtype, size_t rows,
                                  size_t cols, enum rp_dtype dtype, void *quantized, float *scales,
                                  struct rp_quant_loss *loss, size_t *out_bad_row) {
    bool search = dtype == RP_DTYPE_FP8_E4M3 && cols <= RP_QUANT_SEARCH_COLS;
    return quantize_weights(from, from_dtype, rows, cols, dtype, quantized, scales, loss,
                            out_bad_row, search);
}

bool rp_quantize_row_to_blocks(const struct rp_matrix_part *part, const float *values, size_t cols,
                               unsigned char *blocks, struct rp_quant_loss *loss) {
    return rp_block_is_int4(part->type)
               ? rp_int4_quantize_row(values, cols, part->type, blocks, loss)
               : rp_fp4_quantize_row(part->type, part->factor, values, cols, blocks, loss);
}

static bool quantize_to_blocks(const struct rp_matrix *from, struct rp_matrix *made,
                               float *row_values, struct rp_quant_loss *loss, size_t *out_bad_row) {
    size_t row_bytes = rp_blocks_row_bytes(made->parts[0].type, made->cols);
    for (uint32_t row = 0; row < made->rows; row++) {
        rp_matrix_row_f32(from, row, row_values);
        *out_bad_row = row;
        if (!rp_quantize_row_to_blocks(&made->parts[0], row_values, made->cols,
                                       (unsigned char *)made->data + row * row_bytes, loss))
            return false;
    }
    return true;
}

int rp_quantize_matrix(const struct rp_matrix *from, enum rp_quant_scheme scheme,
                       struct rp_matrix *out, struct rp_quant_loss *loss, struct rp_error *err) {
    if ((from->dtype != RP_DTYPE_F32 && from->dtype != RP_DTYPE_BF16) ||
        from->layout != RP_LAYOUT_ROW_MAJOR || scheme == RP_QUANT_NONE)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "only row-major f32 and bf16 can be quantized, not %s",
                            rp_dtype_name(from->dtype));
    struct rp_matrix made = {.rows = from->rows, .cols = from->cols};
    rp_quant_describe(&made, scheme);
    size_t bytes = rp_matrix_bytes(&made), bad = 0;
    if (bytes == 0 && from->rows != 0 && from->cols != 0)
        return rp_error_set(err, RP_STATUS_OVERFLOW, "matrix of %u x %u is too large", from->rows,
                            from->cols);
    bool in_blocks = made.dtype == RP_DTYPE_BLOCKS; /* have the scales: a row of f32 instead */
    float *scales =
        rp_alloc_aligned((in_blocks ? from->cols : from->rows) * sizeof *scales, RP_CACHE_LINE);
    made.data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    made.scales = scales;
    if (!made.data || !scales) {
        rp_matrix_deinit(&made);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory to quantize a matrix of %u x %u",
                            from->rows, from->cols);
    }
    bool finite = in_blocks ? quantize_to_blocks(from, &made, scales, loss, &bad)
                            : rp_quantize_weights(from->data, from->dtype, from->rows, from->cols,
                                                  made.dtype, made.data, scales, loss, &bad);
    if (in_blocks) {
        rp_free_aligned(scales);
        made.scales = NULL;
    }
    if (!finite) {
        rp_matrix_deinit(&made);
        return rp_error_set(err, RP_STATUS_FORMAT,
                            "row %zu holds a NaN, an infinity or a weight too large", bad);
    }
    *out = made;
    return RP_OK;
}

void rp_dequantize_row(const struct rp_matrix *matrix, uint32_t row, float *out) {
    rp_matrix_row_f32(matrix, row, out);
}
