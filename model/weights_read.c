/* Tensors of a checkpoint into host memory: copied, converted, or quantized row by row. */
#include "base/bf16.h"
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"
#include "quant/rounding/quantize.h"

#include <math.h>
#include <string.h>

static uint32_t element_bytes(const struct rp_safetensor *tensor) {
    return tensor->type == RP_SAFETENSOR_F32 ? 4 : 2;
}

static enum rp_dtype dtype_of(const struct rp_safetensor *tensor) {
    return tensor->type == RP_SAFETENSOR_F32   ? RP_DTYPE_F32
           : tensor->type == RP_SAFETENSOR_F16 ? RP_DTYPE_F16
                                               : RP_DTYPE_BF16;
}

static float element(const unsigned char *bytes, size_t i, enum rp_safetensor_type type) {
    uint16_t half;
    float value;
    if (type == RP_SAFETENSOR_F32) {
        memcpy(&value, bytes + i * 4, sizeof value);
        return value;
    }
    memcpy(&half, bytes + i * 2, sizeof half);
    return type == RP_SAFETENSOR_BF16 ? rp_bf16_to_f32(half) : rp_f16_to_f32(half);
}

static void convert(const unsigned char *bytes, enum rp_safetensor_type type, void *out,
                    enum rp_dtype out_dtype, size_t count) {
    if (out_dtype == RP_DTYPE_F32)
        for (size_t i = 0; i < count; i++)
            ((float *)out)[i] = element(bytes, i, type);
    else
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = rp_f32_to_bf16(element(bytes, i, type));
}

/* Elements [first, first + count) of the tensor to `out`; read in place where no conversion is
 * needed. */
static int read_values(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                       size_t first, size_t count, unsigned char *out, enum rp_dtype out_dtype,
                       unsigned char *staging, struct rp_error *err) {
    size_t size = element_bytes(tensor);
    if (dtype_of(tensor) == out_dtype)
        return rp_safetensors_read(files, tensor, first * size, out, count * size, err);
    size_t piece = RP_WEIGHT_STAGING_BYTES / size;
    for (size_t at = 0; at < count; at += piece) {
        size_t some = RP_MIN(piece, count - at);
        int status =
            rp_safetensors_read(files, tensor, (first + at) * size, staging, some * size, err);
        if (status != RP_OK)
            return status;
        convert(staging, tensor->type, out + at * rp_dtype_bytes(out_dtype), out_dtype, some);
    }
    return RP_OK;
}

/* One row of a tensor's values, of its type, to row `to` of the matrix. */
static bool quantize_row(struct rp_matrix *matrix, const void *values, enum rp_dtype dtype,
                         size_t to, float *row) {
    size_t cols = matrix->cols, bad;
    if (matrix->dtype != RP_DTYPE_BLOCKS)
        return rp_quantize_weights_searched(values, dtype, 1, cols, matrix->dtype,
                                            (unsigned char *)matrix->data + to * cols,
                                            (float *)(uintptr_t)&matrix->scales[to], NULL, &bad);
    const struct rp_matrix_part *part = &matrix->parts[0];
    for (size_t i = 0; i < cols && dtype == RP_DTYPE_BF16; i++)
        row[i] = rp_bf16_to_f32(((const uint16_t *)values)[i]);
    return rp_quantize_row_to_blocks(
        part, dtype == RP_DTYPE_BF16 ? row : values, cols,
        (unsigned char *)matrix->data + to * rp_blocks_row_bytes(part->type, cols), NULL);
}

/* A row of values in host memory, of the tensor's type, to row `to` of the matrix. */
static bool store_row(struct rp_matrix *matrix, const unsigned char *from,
                      enum rp_safetensor_type type, size_t to, float *values) {
    if (rp_dtype_bytes(matrix->dtype) > 1) {
        size_t at = to * matrix->cols * rp_dtype_bytes(matrix->dtype);
        convert(from, type, (unsigned char *)matrix->data + at, matrix->dtype, matrix->cols);
        return true;
    }
    if (type == RP_SAFETENSOR_F16)
        convert(from, type, values, RP_DTYPE_F32, matrix->cols);
    return quantize_row(matrix, type == RP_SAFETENSOR_F16 ? (const void *)values : from,
                        type == RP_SAFETENSOR_BF16 ? RP_DTYPE_BF16 : RP_DTYPE_F32, to, values);
}

static const char *type_name(const struct rp_matrix *matrix) {
    if (matrix->dtype != RP_DTYPE_BLOCKS)
        return rp_dtype_name(matrix->dtype);
    uint32_t type = matrix->parts[0].type;
    return type == RP_BLOCK_NVFP4 ? "nvfp4" : type == RP_BLOCK_MXFP4 ? "mxfp4" : "int4";
}

static int refuse_row(const struct rp_safetensors *files, const struct rp_weight_part *part,
                      size_t row, const struct rp_matrix *made, struct rp_error *err) {
    return rp_error_set(
        err, RP_STATUS_FORMAT,
        "%s: tensor %s: row %zu holds a NaN, an infinity or a weight too large for %s",
        rp_safetensors_file(files, rp_safetensors_find(files, part->name)), part->name, row,
        type_name(made));
}

/* Whole rows through the staging buffer, quantized from there to rows of the matrix from `to`
 * on; f16 by way of f32. */
static int quantize_rows(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                         const struct rp_weight_part *part, uint32_t first, uint32_t count,
                         uint32_t to, unsigned char *staging, struct rp_error *err) {
    struct rp_matrix *matrix = &part->weight->matrix;
    size_t row_bytes = (size_t)part->cols * element_bytes(tensor);
    size_t piece_rows = RP_MAX(RP_WEIGHT_STAGING_BYTES / row_bytes, (size_t)1);
    if (row_bytes > RP_WEIGHT_STAGING_BYTES)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "%s: tensor %s: rows of %u weights are too long to be quantized",
                            rp_safetensors_file(files, tensor), part->name, part->cols);
    float *values = rp_alloc(part->cols * sizeof *values);
    int status = values ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    for (size_t row = first; status == RP_OK && row < (size_t)first + count; row += piece_rows) {
        size_t rows = RP_MIN(piece_rows, (size_t)first + count - row);
        status =
            rp_safetensors_read(files, tensor, row * row_bytes, staging, rows * row_bytes, err);
        if (status != RP_OK)
            break;
        for (size_t i = 0; i < rows && status == RP_OK; i++)
            if (!store_row(matrix, staging + i * row_bytes, tensor->type, to + (row - first) + i,
                           values))
                status = refuse_row(files, part, row + i, matrix, err);
    }
    rp_free(values);
    return status;
}

/* The (cols, rows) tensor of one expert to `out` (rows, cols), values of its own type. */
static int transpose_expert(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                            uint32_t expert, size_t rows, size_t cols, unsigned char *staging,
                            unsigned char *out, struct rp_error *err) {
    size_t size = element_bytes(tensor), line = rows * size, piece = RP_WEIGHT_STAGING_BYTES / line;
    if (piece == 0)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "%s: tensor %s: rows of %zu weights are "
                            "too long",
                            rp_safetensors_file(files, tensor), tensor->name, rows);
    for (size_t k = 0; k < cols; k += piece) {
        size_t count = RP_MIN(piece, cols - k);
        int status = rp_safetensors_read(files, tensor, (expert * cols + k) * line, staging,
                                         count * line, err);
        if (status != RP_OK)
            return status;
        for (size_t n = 0; n < rows; n++)
            for (size_t i = 0; i < count; i++)
                memcpy(out + (n * cols + k + i) * size, staging + i * line + n * size, size);
    }
    return RP_OK;
}

static int read_transposed(const struct rp_safetensors *files, const struct rp_weight_part *part,
                           unsigned char *staging, struct rp_error *err) {
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    struct rp_matrix *matrix = &part->weight->matrix;
    uint32_t experts = part->weight->experts, each = part->rows / experts;
    size_t row_bytes = (size_t)part->cols * element_bytes(tensor);
    unsigned char *rows = rp_alloc(each * row_bytes);
    float *values = rp_alloc(part->cols * sizeof *values);
    int status =
        rows && values ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    for (uint32_t e = 0; e < experts && status == RP_OK; e++) {
        status = transpose_expert(files, tensor, e, each, part->cols, staging, rows, err);
        for (uint32_t n = 0; n < each && status == RP_OK; n++) {
            uint32_t row = e * each + n;
            uint32_t to =
                rp_row_order_is_plain(&part->order) ? row : rp_row_order_place(&part->order, row);
            if (!store_row(matrix, rows + n * row_bytes, tensor->type, part->row_begin + to,
                           values))
                status = rp_error_set(err, RP_STATUS_FORMAT,
                                      "%s: tensor %s: column %u of expert %u holds a NaN or an "
                                      "infinity, which %s weights cannot",
                                      rp_safetensors_file(files, tensor), part->name, n, e,
                                      rp_dtype_name(matrix->dtype));
        }
    }
    rp_free(values);
    rp_free(rows);
    return status;
}

/* Rows of blocks, to the part of the matrix that has their type. */
static int read_blocks(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                       const struct rp_weight_part *part, uint32_t first, uint32_t count,
                       unsigned char *staging, struct rp_error *err) {
    struct rp_matrix *matrix = &part->weight->matrix;
    uint32_t index = 0, bytes = rp_block_info(tensor->block_type).bytes;
    while (matrix->parts[index].row_begin != part->row_begin)
        index++;
    RP_ASSERT(matrix->parts[index].type == tensor->block_type);
    size_t row_bytes = rp_blocks_row_bytes(tensor->block_type, part->cols), bad;
    size_t piece_rows = RP_WEIGHT_STAGING_BYTES / row_bytes;
    unsigned char *to = (unsigned char *)matrix->data + rp_matrix_part_offset(matrix, index);
    if (piece_rows == 0)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "%s: tensor %s: rows of %u weights are too long",
                            rp_safetensors_file(files, tensor), tensor->name, part->cols);
    for (size_t row = first; row < (size_t)first + count; row += piece_rows) {
        size_t rows = RP_MIN(piece_rows, (size_t)first + count - row);
        int status =
            rp_safetensors_read(files, tensor, row * row_bytes, staging, rows * row_bytes, err);
        if (status != RP_OK)
            return status;
        if (!rp_blocks_finite(tensor->block_type, staging, rows * row_bytes / bytes, &bad))
            return rp_error_set(
                err, RP_STATUS_FORMAT, "%s: tensor %s: a scale or value of row %zu is not finite",
                rp_safetensors_file(files, tensor), tensor->name, row + bad * bytes / row_bytes);
        for (size_t i = 0; i < rows; i++) {
            size_t place = rp_row_order_is_plain(&part->order)
                               ? row + i
                               : rp_row_order_place(&part->order, (uint32_t)(row + i));
            memcpy(to + place * row_bytes, staging + i * row_bytes, row_bytes);
        }
    }
    return RP_OK;
}

/* Tensor rows [row, row + rows) to rows of the matrix from `to` on. */
static int read_rows(const struct rp_safetensors *files, const struct rp_weight_part *part,
                     uint32_t row, uint32_t rows, uint32_t to, unsigned char *staging,
                     struct rp_error *err) {
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    struct rp_matrix *matrix = &part->weight->matrix;
    if (rp_dtype_bytes(matrix->dtype) == 1 || matrix->dtype == RP_DTYPE_BLOCKS)
        return quantize_rows(files, tensor, part, row, rows, to, staging, err);
    size_t at = (size_t)to * part->cols;
    return read_values(files, tensor, (size_t)row * part->cols, (size_t)rows * part->cols,
                       (unsigned char *)matrix->data + at * rp_dtype_bytes(matrix->dtype),
                       matrix->dtype, staging, err);
}

/* Brings the rows of a part that was read whole, and their scales, into our order. No row leaves
 * its block of scales (rp_weight_quant_check). */
static int reorder_rows(const struct rp_weight_part *part, struct rp_error *err) {
    struct rp_matrix *matrix = &part->weight->matrix;
    size_t row_bytes = (size_t)part->cols * rp_dtype_bytes(matrix->dtype);
    unsigned char *rows = (unsigned char *)matrix->data + part->row_begin * row_bytes;
    bool by_row = matrix->scales && matrix->scale_kind == RP_SCALE_CHANNEL;
    float *scales = by_row ? (float *)(uintptr_t)matrix->scales + part->row_begin : NULL;
    unsigned char *copy = rp_alloc(part->rows * row_bytes);
    float *scales_copy = scales ? rp_alloc(part->rows * sizeof *scales) : NULL;
    bool ok = copy && (!scales || scales_copy);
    if (ok) {
        memcpy(copy, rows, part->rows * row_bytes);
        if (scales)
            memcpy(scales_copy, scales, part->rows * sizeof *scales);
        for (uint32_t row = 0; row < part->rows; row++) {
            uint32_t place = rp_row_order_place(&part->order, row);
            memcpy(rows + place * row_bytes, copy + row * row_bytes, row_bytes);
            if (scales)
                scales[place] = scales_copy[row];
        }
    }
    rp_free(copy);
    rp_free(scales_copy);
    return ok ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
}

int rp_weight_read_rows(const struct rp_safetensors *files, const struct rp_model_config *config,
                        const struct rp_weight_part *part, uint32_t row, uint32_t rows,
                        unsigned char *staging, struct rp_error *err) {
    bool plain = rp_row_order_is_plain(&part->order);
    int status = RP_OK;
    if (part->split)
        return rp_weight_latent_load(files, config, part, staging, err);
    if (part->quantized && config->quant.layout != RP_QUANT_8_BITS)
        return rp_weight_4bit_load(files, config, part, staging, err);
    if (part->weight->matrix.dtype == RP_DTYPE_BLOCKS && config->gguf.blocks)
        return read_blocks(files, rp_safetensors_find(files, part->name), part, row, rows, staging,
                           err);
    if (part->quantized) {
        status = rp_weight_quant_load(files, config, part, staging, RP_WEIGHT_STAGING_BYTES, err);
        return status == RP_OK && !plain ? reorder_rows(part, err) : status;
    }
    if (part->transposed)
        return read_transposed(files, part, staging, err);
    if (plain)
        return read_rows(files, part, row, rows, part->row_begin + row, staging, err);
    for (uint32_t i = row; i < row + rows && status == RP_OK; i++)
        status = read_rows(files, part, i, 1, part->row_begin + rp_row_order_place(&part->order, i),
                           staging, err);
    return status;
}

enum rp_dtype rp_weight_late_dtype(const struct rp_safetensors *files,
                                   const struct rp_weight_part *part) {
    const struct rp_matrix *made = &part->weight->matrix;
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    bool is_searched = made->dtype == RP_DTYPE_FP8_E4M3 && made->cols <= RP_QUANT_SEARCH_COLS;
    bool is_late = rp_dtype_bytes(made->dtype) == 1 && made->scale_kind == RP_SCALE_CHANNEL &&
                   made->cols <= RP_INT8_COLS_MAX && !is_searched && !part->quantized &&
                   !part->split && !part->transposed && tensor->type <= RP_SAFETENSOR_BF16;
    return is_late ? dtype_of(tensor) : RP_DTYPE_BLOCKS;
}

int rp_weight_check_rows(const struct rp_safetensors *files, const struct rp_weight_part *part,
                         uint32_t row, uint32_t rows, const struct rp_matrix *made,
                         struct rp_error *err) {
    const struct rp_matrix *values = &part->weight->matrix;
    enum rp_safetensor_type type = values->dtype == RP_DTYPE_F32   ? RP_SAFETENSOR_F32
                                   : values->dtype == RP_DTYPE_F16 ? RP_SAFETENSOR_F16
                                                                   : RP_SAFETENSOR_BF16;
    for (uint32_t i = row; i < row + rows; i++) {
        size_t place =
            rp_row_order_is_plain(&part->order) ? i : rp_row_order_place(&part->order, i);
        const unsigned char *at =
            (const unsigned char *)values->data +
            (part->row_begin + place) * values->cols * rp_dtype_bytes(values->dtype);
        for (size_t col = 0; col < values->cols; col++)
            if (!isfinite(element(at, col, type)))
                return refuse_row(files, part, i, made, err);
    }
    return RP_OK;
}

static int reorder_vector(const struct rp_weight_part *part, struct rp_error *err) {
    float *values = part->weight->vector + part->row_begin;
    float *copy = rp_alloc(part->rows * sizeof *copy);
    if (!copy)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    memcpy(copy, values, part->rows * sizeof *copy);
    for (uint32_t i = 0; i < part->rows; i++)
        values[rp_row_order_place(&part->order, i)] = copy[i];
    rp_free(copy);
    return RP_OK;
}

int rp_weight_read_vector(const struct rp_safetensors *files, const struct rp_weight_part *part,
                          unsigned char *staging, struct rp_error *err) {
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    float *values = part->weight->vector + part->row_begin;
    int status = read_values(files, tensor, 0, part->rows, (unsigned char *)values, RP_DTYPE_F32,
                             staging, err);
    for (uint32_t i = 0; status == RP_OK && i < part->rows; i++)
        if (!isfinite(values[i]))
            status = rp_error_set(err, RP_STATUS_FORMAT, "%s: tensor %s: element %u is %s",
                                  rp_safetensors_file(files, tensor), part->name, i,
                                  isnan(values[i]) ? "not a number" : "infinite");
    if (status == RP_OK && !rp_row_order_is_plain(&part->order))
        status = reorder_vector(part, err);
    return status;
}
