/* Reads 8-bit tensors and their scales into the rows of a matrix.
 *
 * Values that would corrupt a GEMM are rejected with the tensor's name: quantized values that are
 * NaN, scales that are not finite and positive. Scales per tensor are written to every row that the
 * tensor becomes; none is rounded again. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 128u

/* model.layers.3.self_attn.q_proj.weight -> ...q_proj.<suffix> */
static void sibling(const struct rp_weight_part *part, const char *suffix, char out[128]) {
    size_t len = strlen(part->name) - strlen("weight");
    snprintf(out, 128, "%.*s%s", (int)len, part->name, suffix);
}

static int refuse(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                  enum rp_status status, const char *what, struct rp_error *err) {
    return rp_error_set(err, status, "%s: tensor %s %s", rp_safetensors_file(files, tensor),
                        tensor->name, what);
}

static const struct rp_safetensor *find_scales(const struct rp_safetensors *files,
                                               const struct rp_model_config *config,
                                               const struct rp_weight_part *part) {
    char name[128];
    sibling(part, config->quant.scale_inv ? "weight_scale_inv" : "weight_scale", name);
    return rp_safetensors_find(files, name);
}

/* One number: [] or [1], and [1, 1] of those who keep a dimension. */
static bool is_one(const struct rp_safetensor *scales) {
    for (uint32_t i = 0; i < scales->rank; i++)
        if (scales->shape[i] != 1)
            return false;
    return true;
}

static int check_shape(const struct rp_safetensors *files, const struct rp_model_config *config,
                       const struct rp_weight_part *part, const struct rp_safetensor *scales,
                       struct rp_error *err) {
    const uint64_t channel[2] = {part->rows, 1};
    const uint64_t block[2] = {RP_CEIL_DIV(part->rows, BLOCK), RP_CEIL_DIV(part->cols, BLOCK)};
    const uint64_t *wants = config->quant.scales == RP_SCALE_CHANNEL ? channel : block;
    char what[256], has[96], wanted[64];
    bool right;
    if (config->quant.scales == RP_SCALE_TENSOR)
        right = is_one(scales);
    else
        right = scales->rank == 2 && scales->shape[0] == wants[0] && scales->shape[1] == wants[1];
    if (config->quant.scales == RP_SCALE_CHANNEL && scales->rank == 1)
        right = scales->shape[0] == part->rows;
    if (right)
        return RP_OK;
    snprintf(what, sizeof what, "has shape %s, must have %s",
             rp_safetensors_shape_text(scales->shape, scales->rank, has, sizeof has),
             config->quant.scales == RP_SCALE_TENSOR
                 ? "one number"
                 : rp_safetensors_shape_text(wants, 2, wanted, sizeof wanted));
    return refuse(files, scales, RP_STATUS_FORMAT, what, err);
}

/* Reads one f32 from any supported scale type. */
static float element(const unsigned char *bytes, enum rp_safetensor_type type) {
    uint16_t half;
    float value;
    if (type == RP_SAFETENSOR_F32) {
        memcpy(&value, bytes, sizeof value);
        return value;
    }
    memcpy(&half, bytes, sizeof half);
    return type == RP_SAFETENSOR_BF16 ? rp_bf16_to_f32(half) : rp_f16_to_f32(half);
}

/* `count` scales from the `first` on. */
static int read_scales(const struct rp_safetensors *files, const struct rp_safetensor *scales,
                       uint64_t first, uint64_t count, float *out, struct rp_error *err) {
    unsigned char bytes[4096];
    uint32_t size = scales->type == RP_SAFETENSOR_F32 ? 4 : 2;
    for (uint64_t at = 0; at < count; at += sizeof bytes / 4) {
        uint64_t some = RP_MIN(count - at, (uint64_t)sizeof bytes / 4);
        int status =
            rp_safetensors_read(files, scales, (first + at) * size, bytes, some * size, err);
        if (status != RP_OK)
            return status;
        for (uint64_t i = 0; i < some; i++) {
            float value = element(bytes + i * size, scales->type);
            char what[96];
            out[at + i] = value;
            if (isfinite(value) && value > 0.0f)
                continue;
            snprintf(what, sizeof what, "holds the scale %g at %llu: scales are finite and above 0",
                     (double)value, (unsigned long long)(first + at + i));
            return refuse(files, scales, RP_STATUS_FORMAT, what, err);
        }
    }
    return RP_OK;
}

static int check_scale_type(const struct rp_safetensors *files, const struct rp_safetensor *scales,
                            struct rp_error *err) {
    char what[96];
    if (scales->type <= RP_SAFETENSOR_BF16)
        return RP_OK;
    snprintf(what, sizeof what, "is of type %s, scales are F32, F16 or BF16", scales->type_name);
    return refuse(files, scales, RP_STATUS_UNSUPPORTED, what, err);
}

/* A static input scale is read only to validate it. */
static int check_input_scale(const struct rp_safetensors *files, const struct rp_weight_part *part,
                             struct rp_error *err) {
    char name[128];
    float value;
    sibling(part, "input_scale", name);
    const struct rp_safetensor *scale = rp_safetensors_find(files, name);
    if (!scale)
        return rp_error_set(err, RP_STATUS_NOT_FOUND,
                            "tensor %s is missing: quantization_config says that inputs have "
                            "static scales",
                            name);
    int status = check_scale_type(files, scale, err);
    if (status == RP_OK && !is_one(scale))
        status = refuse(files, scale, RP_STATUS_FORMAT, "must hold one number", err);
    return status == RP_OK ? read_scales(files, scale, 0, 1, &value, err) : status;
}

/* Whether the part's order leaves every row in its block of scales. */
static bool keeps_blocks(const struct rp_weight_part *part) {
    const struct rp_row_order *order = &part->order;
    for (uint32_t head = 0; order->pairs && head < part->rows / order->head_dim; head++) {
        uint32_t first = head * order->head_dim + order->skip;
        if (first / BLOCK != (first + order->pairs - 1) / BLOCK)
            return false;
    }
    return order->group == 0;
}

int rp_weight_quant_check(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, const struct rp_safetensor *tensor,
                          const struct rp_safetensor **out_scales, struct rp_error *err) {
    const struct rp_model_quant *quant = &config->quant;
    const struct rp_safetensor *scales = find_scales(files, config, part);
    bool fp8 = quant->dtype == RP_DTYPE_FP8_E4M3;
    char name[128], what[160];
    if (tensor->type != (fp8 ? RP_SAFETENSOR_F8_E4M3 : RP_SAFETENSOR_I8)) {
        snprintf(what, sizeof what, "is of type %s, quantization_config says %s", tensor->type_name,
                 fp8 ? "F8_E4M3" : "I8");
        int status = refuse(files, tensor, RP_STATUS_FORMAT, what, err);
        rp_error_hint(err, "modules of other types must be in the list of those left out");
        return status;
    }
    if (!scales) {
        sibling(part, quant->scale_inv ? "weight_scale_inv" : "weight_scale", name);
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: tensor %s is missing",
                            rp_safetensors_file(files, tensor), name);
    }
    sibling(part, "weight_zero_point", name);
    if (rp_safetensors_find(files, name))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "tensor %s: asymmetric weights (zero points) are not supported, "
                            "symmetric ones are",
                            name);
    if (quant->scales == RP_SCALE_BLOCK_128 && !keeps_blocks(part))
        return refuse(files, tensor, RP_STATUS_UNSUPPORTED,
                      "has scales per block of 128 x 128, but its rows are brought into another "
                      "order at load: scales per tensor or channel work",
                      err);
    /* A fused matrix has whole blocks of each part. */
    if (quant->scales == RP_SCALE_BLOCK_128 && !part->split &&
        (part->row_begin % BLOCK != 0 ||
         (part->rows % BLOCK != 0 && part->row_begin + part->rows != part->weight->matrix.rows)))
        return refuse(files, tensor, RP_STATUS_UNSUPPORTED,
                      "shares a block of 128 rows with another part of its fused matrix: the rows "
                      "of q and k, and of gate, must be multiples of 128",
                      err);
    int status = check_scale_type(files, scales, err);
    if (status == RP_OK)
        status = check_shape(files, config, part, scales, err);
    if (status == RP_OK && quant->static_input)
        status = check_input_scale(files, part, err);
    *out_scales = scales;
    return status;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* The tensor's scales as they are in the file, per row for one of the whole tensor. */
static int load_scales(const struct rp_safetensors *files, const struct rp_model_config *config,
                       const struct rp_weight_part *part, float *out, struct rp_error *err) {
    const struct rp_safetensor *scales = find_scales(files, config, part);
    uint64_t count =
        config->quant.scales == RP_SCALE_TENSOR ? 1
        : config->quant.scales == RP_SCALE_CHANNEL
            ? part->rows
            : (uint64_t)RP_CEIL_DIV(part->rows, BLOCK) * RP_CEIL_DIV(part->cols, BLOCK);
    int status = read_scales(files, scales, 0, count, out, err);
    for (uint32_t i = 1;
         status == RP_OK && count == 1 && config->quant.scales == RP_SCALE_TENSOR && i < part->rows;
         i++)
        out[i] = out[0];
    return status;
}

static int check_quantized(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                           const unsigned char *quantized, size_t begin, size_t count,
                           struct rp_error *err) {
    char what[64];
    if (tensor->type != RP_SAFETENSOR_F8_E4M3)
        return RP_OK;
    for (size_t i = 0; i < count; i++)
        if ((quantized[i] & 0x7Fu) == 0x7Fu) {
            snprintf(what, sizeof what, "element %zu is not a number", begin + i);
            return refuse(files, tensor, RP_STATUS_FORMAT, what, err);
        }
    return RP_OK;
}

/* Elements [begin, begin + count) of the part as products with their scales. */
static void multiply(const struct rp_weight_part *part, enum rp_scale_kind kind,
                     const unsigned char *quantized, bool fp8, const float *scales, size_t begin,
                     size_t count, float *out) {
    size_t cols = part->cols, across = RP_CEIL_DIV(cols, BLOCK);
    for (size_t i = 0; i < count; i++) {
        size_t row = (begin + i) / cols, col = (begin + i) % cols;
        float scale = scales[kind == RP_SCALE_BLOCK_128 ? row / BLOCK * across + col / BLOCK : row];
        float code = fp8 ? rp_fp8_to_f32(quantized[i]) : (float)(int8_t)quantized[i];
        out[i] = code * scale;
    }
}

static int load_quantized(const struct rp_safetensors *files, const struct rp_model_config *config,
                          const struct rp_weight_part *part, const float *scales,
                          unsigned char *staging, size_t staging_bytes, struct rp_error *err) {
    const struct rp_safetensor *tensor = rp_safetensors_find(files, part->name);
    size_t place = (size_t)part->row_begin * part->cols;
    bool products = part->weight->matrix.dtype == RP_DTYPE_F32;
    for (uint64_t begin = 0; begin < tensor->bytes; begin += staging_bytes) {
        size_t len = (size_t)RP_MIN((uint64_t)staging_bytes, tensor->bytes - begin);
        unsigned char *to =
            products ? staging : (unsigned char *)part->weight->matrix.data + place + begin;
        int status = rp_safetensors_read(files, tensor, begin, to, len, err);
        if (status == RP_OK)
            status = check_quantized(files, tensor, to, (size_t)begin, len, err);
        if (status != RP_OK)
            return status;
        if (products)
            multiply(part, config->quant.scales, to, tensor->type == RP_SAFETENSOR_F8_E4M3, scales,
                     (size_t)begin, len, (float *)part->weight->matrix.data + place + begin);
    }
    return RP_OK;
}

int rp_weight_quant_load(const struct rp_safetensors *files, const struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *staging,
                         size_t staging_bytes, struct rp_error *err) {
    bool products = part->weight->matrix.dtype == RP_DTYPE_F32;
    bool blocks = config->quant.scales == RP_SCALE_BLOCK_128;
    size_t across = RP_CEIL_DIV((size_t)part->cols, BLOCK);
    size_t count = blocks ? RP_CEIL_DIV((size_t)part->rows, BLOCK) * across : part->rows;
    size_t first = blocks ? part->row_begin / BLOCK * across : part->row_begin;
    float *own = products ? rp_calloc(count, sizeof *own) : NULL;
    if (products && !own)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    /* The model's own memory: const for its readers. */
    float *scales = products ? own : (float *)(uintptr_t)part->weight->matrix.scales + first;
    int status = load_scales(files, config, part, scales, err);
    if (status == RP_OK)
        status = load_quantized(files, config, part, scales, staging, staging_bytes, err);
    rp_free(own);
    return status;
}
