#include "quant/quantise.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/memory.h"
#include "device/quantise_row.h"
#include "quant/matmul.h"

#include <math.h>
#include <string.h>

static const char *const scheme_names[RP_QUANT_SCHEME_COUNT] = {"none", "int8", "fp8", "int8-w8a16",
                                                                "fp8-w8a16"};

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
    matrix->scale_kind = RP_SCALE_CHANNEL;
    matrix->input =
        scheme == RP_QUANT_INT8 || scheme == RP_QUANT_FP8 ? RP_INPUT_QUANTISED : RP_INPUT_PLAIN;
}

static inline float value_at(const void *from, enum rp_dtype dtype, size_t i) {
    return dtype == RP_DTYPE_F32 ? ((const float *)from)[i]
                                 : rp_bf16_to_f32(((const uint16_t *)from)[i]);
}

bool rp_quantise_weights(const void *from, enum rp_dtype from_dtype, size_t rows, size_t cols,
                         enum rp_dtype dtype, void *codes, float *scales,
                         struct rp_quant_loss *loss, size_t *out_bad_row) {
    for (size_t row = 0; row < rows; row++) {
        unsigned char *to = (unsigned char *)codes + row * cols;
        const unsigned char *values =
            (const unsigned char *)from + row * cols * rp_dtype_bytes(from_dtype);
        scales[row] = rp_quantise_row(values, from_dtype, cols, dtype, to);
        if (isnan(scales[row])) {
            *out_bad_row = row;
            return false;
        }
        if (!loss)
            continue;
        for (size_t i = 0; i < cols; i++) {
            double w = (double)value_at(from, from_dtype, row * cols + i);
            double lost = w - (double)rp_code_to_f32(to, dtype, i) * (double)scales[row];
            loss->signal += w * w;
            loss->noise += lost * lost;
        }
    }
    return true;
}

int rp_quantise_matrix(const struct rp_matrix *from, enum rp_quant_scheme scheme,
                       struct rp_matrix *out, struct rp_quant_loss *loss, struct rp_error *err) {
    if ((from->dtype != RP_DTYPE_F32 && from->dtype != RP_DTYPE_BF16) ||
        from->layout != RP_LAYOUT_ROW_MAJOR || scheme == RP_QUANT_NONE)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "only row-major f32 and bf16 can be quantised, not %s",
                            rp_dtype_name(from->dtype));
    struct rp_matrix made = {.rows = from->rows, .cols = from->cols};
    rp_quant_describe(&made, scheme);
    size_t bytes = rp_matrix_bytes(&made), bad = 0;
    if (bytes == 0 && from->rows != 0 && from->cols != 0)
        return rp_error_set(err, RP_STATUS_OVERFLOW, "matrix of %u x %u is too large", from->rows,
                            from->cols);
    float *scales = rp_alloc_aligned(from->rows * sizeof *scales, RP_CACHE_LINE);
    made.data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    made.scales = scales;
    if (!made.data || !scales) {
        rp_matrix_deinit(&made);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory to quantise a matrix of %u x %u",
                            from->rows, from->cols);
    }
    if (!rp_quantise_weights(from->data, from->dtype, from->rows, from->cols, made.dtype, made.data,
                             scales, loss, &bad)) {
        rp_matrix_deinit(&made);
        return rp_error_set(err, RP_STATUS_FORMAT, "row %zu holds a NaN or an infinity", bad);
    }
    *out = made;
    return RP_OK;
}

void rp_dequantise_row(const struct rp_matrix *matrix, uint32_t row, float *out) {
    rp_matrix_row_f32(matrix, row, out);
}
