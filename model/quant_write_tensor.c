/* quant_write_tensor.c - converts one tensor for a checkpoint of 8 or 4 bits. */
#include "model/quant_write_internal.h"

#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "quant/rounding/fp4.h"
#include "quant/rounding/int4.h"

#include <errno.h>
#include <math.h>
#include <string.h>

bool rp_quant_is_folded(const struct rp_quant_writer *w, const struct rp_safetensor *tensor) {
    const struct rp_quant_folding *f = &w->foldings[tensor - w->files.tensors];
    return f->times || f->divided;
}

uint64_t rp_quant_folded_bytes(const struct rp_safetensor *tensor) {
    return tensor->type == RP_SAFETENSOR_F16 ? tensor->bytes * 2 : tensor->bytes;
}

static int read_f32(struct rp_quant_writer *w, const struct rp_safetensor *tensor, float *out) {
    uint32_t size = tensor->type == RP_SAFETENSOR_F32 ? 4 : 2;
    for (uint64_t at = 0; at < tensor->bytes; at += RP_QUANT_PIECE_BYTES) {
        uint64_t len = RP_MIN(RP_QUANT_PIECE_BYTES, tensor->bytes - at);
        int status = rp_safetensors_read(&w->files, tensor, at, w->piece, len, w->err);
        if (status != RP_OK)
            return status;
        float *to = out + at / size;
        if (size == 4)
            memcpy(to, w->piece, len);
        for (uint64_t i = 0; size == 2 && i < len / 2; i++) {
            uint16_t half;
            memcpy(&half, w->piece + i * 2, sizeof half);
            to[i] = tensor->type == RP_SAFETENSOR_BF16 ? rp_bf16_to_f32(half) : rp_f16_to_f32(half);
        }
    }
    return RP_OK;
}

/* The factor of row or element i: v has one row for a group of columns of o. */
static float factor_of(const struct rp_quant_folding *f, size_t i) {
    return f->divided[i / f->divided_run * f->divided_group * f->divided_run + i % f->divided_run];
}

/* Powers of two: nothing is rounded. */
static void fold(const struct rp_quant_folding *f, size_t rows, size_t cols, float *values) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            float *value = values + i * cols + j;
            if (f->times)
                *value *= f->times[j];
            if (f->divided)
                *value /= factor_of(f, i);
        }
}

int rp_quant_write_vector(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                          FILE *out) {
    size_t count = (size_t)tensor->shape[0];
    float *values = rp_alloc(count * sizeof *values);
    int status = values ? read_f32(w, tensor, values) : rp_quant_write_no_memory(w);
    if (status == RP_OK) {
        fold(&w->foldings[tensor - w->files.tensors], count, 1, values);
        for (size_t i = 0; tensor->type == RP_SAFETENSOR_BF16 && i < count; i++) {
            uint16_t half = rp_f32_to_bf16(values[i]);
            memcpy((unsigned char *)values + 2 * i, &half, sizeof half); /* never ahead of i */
        }
        if (fwrite(values, 1, rp_quant_folded_bytes(tensor), out) != rp_quant_folded_bytes(tensor))
            status = rp_quant_write_failed(w, w->files.shards[tensor->shard].name);
    }
    rp_free(values);
    return status;
}

/* ---- a matrix ------------------------------------------------------------------------------- */

/* State of one tensor being quantized. */
struct rounding {
    struct rp_quant_writer *w;
    const struct rp_safetensor *tensor;
    size_t rows, cols;
    size_t group, groups; /* columns per scale, and scales of a row */
    enum rp_dtype dtype;  /* of quantized; INT8, too, for codes of int4 less 8, and doubled E2M1 */
    float factor;         /* of NVFP4 */
    float *full, *scales; /* scales (rows, groups), of quantized as it is here */
    unsigned char *quantized; /* (rows, cols) */
    double *sums;             /* (rows) of outputs */
};

static enum rp_quant_scheme scheme_of(const struct rounding *r) { return r->w->options.scheme; }
static bool has_4_bits(const struct rounding *r) {
    return rp_quant_scheme_has_blocks(scheme_of(r));
}
static uint32_t fp4_type(const struct rounding *r) {
    return scheme_of(r) == RP_QUANT_NVFP4 ? RP_BLOCK_NVFP4 : RP_BLOCK_MXFP4;
}

static bool round_group(const struct rounding *r, const float *values, int8_t *codes,
                        float *out_scale) {
    uint8_t scale;
    if (scheme_of(r) != RP_QUANT_INT4) {
        if (!rp_fp4_quantize_group(fp4_type(r), r->factor, values, r->group, &scale, codes))
            return false;
        *out_scale = rp_fp4_half_scale(fp4_type(r), scale, r->factor);
        return true;
    }
    for (size_t i = 0; i < r->group; i++)
        if (!isfinite(values[i]))
            return false;
    *out_scale = rp_bf16_to_f32(rp_int4_quantize_group(values, r->group, codes));
    return true;
}

static bool round_to_4_bits(struct rounding *r, size_t *out_bad_row) {
    for (size_t row = 0; row < r->rows; row++)
        for (size_t g = 0; g < r->groups; g++) {
            size_t at = row * r->cols + g * r->group;
            *out_bad_row = row;
            if (!round_group(r, r->full + at, (int8_t *)r->quantized + at,
                             &r->scales[row * r->groups + g]))
                return false;
        }
    return true;
}

/* q, k and v share it, and gate and up. */
static float *largest_of(const struct rp_quant_writer *w, const struct rp_safetensor *tensor) {
    const struct rp_quant_place *place = &w->places[tensor - w->files.tensors];
    return &w->largest[place->layer * (RP_BALANCE_SITES + 1) + place->site];
}

/* Reads the tensor's weights, applies their factors, and rounds to nearest. */
static int open_rounding(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                         struct rounding *r) {
    size_t bad;
    *r = (struct rounding){.w = w,
                           .tensor = tensor,
                           .rows = (size_t)tensor->shape[0],
                           .cols = (size_t)tensor->shape[1],
                           .group = (size_t)tensor->shape[1],
                           .groups = 1,
                           .dtype = RP_DTYPE_INT8};
    if (w->largest)
        r->factor = rp_nvfp4_factor(*largest_of(w, tensor));
    if (has_4_bits(r)) {
        r->group = w->options.group;
        r->groups = r->cols / r->group;
    } else {
        r->dtype = rp_quant_scheme_dtype(w->options.scheme);
    }
    r->full = rp_alloc(r->rows * r->cols * sizeof *r->full);
    r->scales = rp_alloc(r->rows * r->groups * sizeof *r->scales);
    r->sums = rp_alloc(r->rows * sizeof *r->sums);
    r->quantized = rp_alloc(r->rows * r->cols);
    if (!r->full || !r->scales || !r->sums || !r->quantized)
        return rp_quant_write_no_memory(w);
    int status = read_f32(w, tensor, r->full);
    if (status != RP_OK)
        return status;
    if (rp_quant_is_folded(w, tensor))
        fold(&w->foldings[tensor - w->files.tensors], r->rows, r->cols, r->full);
    if (has_4_bits(r)
            ? !round_to_4_bits(r, &bad)
            : !rp_quantize_weights_searched(r->full, RP_DTYPE_F32, r->rows, r->cols, r->dtype,
                                            r->quantized, r->scales, NULL, &bad))
        return rp_error_set(w->err, RP_STATUS_FORMAT,
                            "tensor %s: row %zu holds what is no number, infinite or too large",
                            tensor->name, bad);
    return RP_OK;
}

static void close_rounding(struct rounding *r) {
    rp_free(r->full);
    rp_free(r->scales);
    rp_free(r->sums);
    rp_free(r->quantized);
}

void rp_quant_drop_factors(struct rp_quant_writer *w) {
    for (int site = 0; site < RP_BALANCE_SITES; site++)
        rp_gptq_factor_deinit(&w->factors[site]);
}

/* q, k and v have one, and gate and up. Those of a layer stay until a tensor of another one
 * comes. */
static int find_factor(struct rounding *r, const struct rp_gptq_factor **out) {
    struct rp_quant_writer *w = r->w;
    size_t tensor = (size_t)(r->tensor - w->files.tensors);
    const struct rp_quant_place *place = &w->places[tensor];
    const struct rp_quant_inputs *inputs =
        &w->options.inputs[place->layer * RP_BALANCE_SITES + place->site];
    struct rp_gptq_factor *factor = &w->factors[place->site];
    *out = factor;
    if (place->layer != w->factor_layer)
        rp_quant_drop_factors(w);
    w->factor_layer = place->layer;
    RP_ASSERT(inputs->cols == r->cols);
    if (factor->values)
        return RP_OK;
    int status = rp_gptq_factor_make(inputs->values, inputs->count, inputs->cols,
                                     w->foldings[tensor].times, w->options.team, factor, w->err);
    if (status != RP_OK)
        rp_error_hint(w->err, "tensor %s; --rounding nearest needs no such matrix",
                      r->tensor->name);
    return status;
}

static double sum_of(const double *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static int round_by_inputs(struct rounding *r, struct rp_quant_module *module) {
    bool int4 = scheme_of(r) == RP_QUANT_INT4;
    const struct rp_gptq_matrix matrix = {.rows = r->rows,
                                          .weights = r->full,
                                          .scales = r->scales,
                                          .group = has_4_bits(r) ? r->group : 0,
                                          .grid = int4            ? RP_GPTQ_INT4
                                                  : has_4_bits(r) ? RP_GPTQ_E2M1
                                                                  : RP_GPTQ_8_BITS,
                                          .dtype = r->dtype,
                                          .quantized = r->quantized};
    const struct rp_gptq_factor *factor;
    struct rp_cpu_team *team = r->w->options.team;
    struct rp_quant_loss outputs = {0, 0}, nearest = {0, 0};
    bool measure = r->w->options.measure_outputs;
    int status = find_factor(r, &factor);
    if (status == RP_OK && measure) {
        status = rp_gptq_signals(factor, &matrix, team, r->sums, r->w->err);
        outputs.signal = nearest.signal = sum_of(r->sums, r->rows);
    }
    if (status == RP_OK && measure) {
        status = rp_gptq_errors(factor, &matrix, team, r->sums, r->w->err);
        nearest.noise = sum_of(r->sums, r->rows);
    }
    if (status == RP_OK)
        status = rp_gptq_round(factor, &matrix, team, r->sums, r->w->err);
    if (status == RP_OK && measure) {
        outputs.noise = sum_of(r->sums, r->rows);
        module->output_db = rp_quant_sqnr_db(&outputs);
        module->nearest_output_db = rp_quant_sqnr_db(&nearest);
    }
    return status;
}

/* Row by row, so that the worst one is known. */
static void count_losses(const struct rounding *r, struct rp_quant_module *module) {
    for (size_t row = 0; row < r->rows; row++) {
        struct rp_quant_loss loss = {0, 0};
        for (size_t g = 0; g < r->groups; g++) {
            size_t at = row * r->cols + g * r->group;
            rp_quant_add_loss(r->full + at, r->group, r->quantized + at, r->dtype,
                              r->scales[row * r->groups + g], &loss);
        }
        double db = rp_quant_sqnr_db(&loss);
        if (row == 0 || db < module->worst_db) {
            module->worst_db = db;
            module->worst_row = (uint32_t)row;
        }
        module->loss.signal += loss.signal;
        module->loss.noise += loss.noise;
    }
    module->sqnr_db = rp_quant_sqnr_db(&module->loss);
}

static int write_bytes(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                       const void *from, size_t bytes, FILE *out) {
    errno = 0;
    return fwrite(from, 1, bytes, out) == bytes
               ? RP_OK
               : rp_quant_write_failed(w, w->files.shards[tensor->shard].name);
}

/* Scales as they are stored, in place, which loses nothing. Returns the bytes. */
static size_t pack_scales(const struct rounding *r) {
    size_t count = r->rows * r->groups;
    unsigned char *to = (unsigned char *)r->scales;
    for (size_t i = 0; i < count; i++) {
        uint16_t half = rp_f32_to_bf16(r->scales[i]);
        int exponent;
        switch (scheme_of(r)) {
        case RP_QUANT_INT4:
            memcpy(to + 2 * i, &half, sizeof half);
            break;
        case RP_QUANT_NVFP4:
            to[i] = rp_f32_to_fp8(r->scales[i] * 2.0f / r->factor);
            break;
        case RP_QUANT_MXFP4:
            frexpf(r->scales[i], &exponent); /* half of 2^exponent is half of the scale */
            to[i] = (unsigned char)(exponent + 127);
            break;
        default:
            return count * sizeof *r->scales;
        }
    }
    return scheme_of(r) == RP_QUANT_INT4 ? 2 * count : count;
}

int rp_quant_write_scales(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                          FILE *out) {
    struct rounding r;
    int status = open_rounding(w, tensor, &r);
    if (status == RP_OK)
        status = write_bytes(w, tensor, r.scales, pack_scales(&r), out);
    close_rounding(&r);
    return status;
}

int rp_quant_write_measure(struct rp_quant_writer *w, const struct rp_safetensor *tensor) {
    size_t count = (size_t)(tensor->shape[0] * tensor->shape[1]);
    float *values = rp_alloc(count * sizeof *values), *largest = largest_of(w, tensor);
    int status = values ? read_f32(w, tensor, values) : rp_quant_write_no_memory(w);
    for (size_t i = 0; i < count && status == RP_OK; i++)
        *largest = RP_MAX(*largest, fabsf(values[i]));
    rp_free(values);
    return status;
}

int rp_quant_write_global_scale(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                                FILE *out) {
    float divisor = 1.0f / rp_nvfp4_factor(*largest_of(w, tensor)); /* a power of two */
    return write_bytes(w, tensor, &divisor, sizeof divisor, out);
}

int rp_quant_write_shape(struct rp_quant_writer *w, const struct rp_safetensor *tensor, FILE *out) {
    const int64_t shape[2] = {(int64_t)tensor->shape[0], (int64_t)tensor->shape[1]};
    return write_bytes(w, tensor, shape, sizeof shape, out);
}

/* Packs codes in place: column 2 i of a row in the low nibble of its byte i. */
static size_t pack_nibbles(struct rounding *r) {
    bool int4 = scheme_of(r) == RP_QUANT_INT4;
    size_t step = r->cols / 2; /* columns are a multiple of 16 */
    for (size_t row = 0; row < r->rows; row++) {
        const int8_t *codes = (const int8_t *)r->quantized + row * r->cols;
        unsigned char *to = r->quantized + row * step; /* never ahead of the codes */
        for (size_t i = 0; i < r->cols / 2; i++)
            to[i] = (unsigned char)(int4 ? (codes[2 * i] + 8) | (codes[2 * i + 1] + 8) << 4
                                         : rp_fp4_code(codes[2 * i]) | rp_fp4_code(codes[2 * i + 1])
                                                                           << 4);
    }
    return r->rows * step;
}

int rp_quant_write_values(struct rp_quant_writer *w, const struct rp_safetensor *tensor,
                          FILE *out) {
    struct rounding r;
    struct rp_quant_module module = {.name = tensor->name,
                                     .rows = (uint32_t)tensor->shape[0],
                                     .cols = (uint32_t)tensor->shape[1],
                                     .output_db = NAN,
                                     .nearest_output_db = NAN};
    int status = open_rounding(w, tensor, &r);
    if (status == RP_OK && w->options.inputs)
        status = round_by_inputs(&r, &module);
    if (status == RP_OK) {
        count_losses(&r, &module);
        status = write_bytes(w, tensor, r.quantized,
                             has_4_bits(&r) ? pack_nibbles(&r) : r.rows * r.cols, out);
    }
    if (status == RP_OK)
        w->options.told(w->options.ctx, &module);
    close_rounding(&r);
    return status;
}
