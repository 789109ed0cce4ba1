/* Names, shapes and types of 4-bit tensors in files; weights_4bit_read.c reads them.
 *
 *   K inputs, N outputs, G groups of K                 scales              zero points
 *   PACKED     weight_packed I32 (N, K/8)              weight_scale (N, G)  weight_zero_point I32
 *                                                                           (N/8, G)
 *   AWQ        qweight I32 (K, N/8): nibble i of a     scales (G, N)        qzeros I32 (G, N/8),
 *              word is output {0,2,4,6,1,3,5,7}[i]                          in the same order
 *   GPTQ       qweight I32 (K/8, N): nibble i of a     scales (G, N)        qzeros I32 (G, N/8),
 *              word is input i                                              v1: less one
 *   NVFP4      weight_packed U8 (N, K/2)               weight_scale E4M3 (N, K/16), divided by
 *                                                      weight_global_scale
 *   NVFP4_OPT  weight U8 (N, K/2)                      the same, times weight_scale_2
 *   MXFP4      weight_packed U8 (N, K/2)               weight_scale U8 (N, K/32): exponents
 *   MXFP4_EXPERTS  _blocks U8 (experts, N, K/32, 16)   _scales U8 (experts, N, K/32)
 *
 * The low nibble is the lower index. GPTQ's g_idx and weight_g_idx I32 (K) are the group of each
 * input column: the columns are then ordered by group, and the matrix knows their order. */
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"
#include "quant/matmul.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct rp_weight_4bit_names rp_weight_4bit_layouts[] = {
    [RP_QUANT_PACKED] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", NULL,
                         true, true},
    [RP_QUANT_AWQ] = {"qweight", "scales", "qzeros", NULL, NULL, true, false},
    [RP_QUANT_GPTQ] = {"qweight", "scales", "qzeros", "g_idx", NULL, true, false},
    [RP_QUANT_NVFP4_PACKED] = {"weight_packed", "weight_scale", NULL, NULL, "weight_global_scale",
                               false, true},
    [RP_QUANT_NVFP4_OPT] = {"weight", "weight_scale", NULL, NULL, "weight_scale_2", false, true},
    [RP_QUANT_MXFP4_PACKED] = {"weight_packed", "weight_scale", NULL, NULL, NULL, false, true},
    [RP_QUANT_MXFP4_EXPERTS] = {"_blocks", "_scales", NULL, NULL, NULL, false, true},
};

const struct rp_safetensor *rp_weight_4bit_find(const struct rp_safetensors *files,
                                                const struct rp_weight_part *part,
                                                const char *suffix, char name[128]) {
    size_t len = strlen(part->name) - (part->stacked ? 0 : strlen("weight"));
    snprintf(name, 128, "%.*s%s", (int)len, part->name, suffix);
    return rp_safetensors_find(files, name);
}

const struct rp_safetensor *rp_weight_main_tensor(const struct rp_safetensors *files,
                                                  const struct rp_model_config *config,
                                                  const struct rp_weight_part *part) {
    char name[128];
    if (!part->quantized || config->quant.layout == RP_QUANT_8_BITS)
        return rp_safetensors_find(files, part->name);
    return rp_weight_4bit_find(files, part, rp_weight_4bit_layouts[config->quant.layout].codes,
                               name);
}

int rp_weight_4bit_refuse(const struct rp_safetensors *files, const struct rp_safetensor *tensor,
                          enum rp_status status, const char *what, struct rp_error *err) {
    return rp_error_set(err, status, "%s: tensor %s %s", rp_safetensors_file(files, tensor),
                        tensor->name, what);
}

/* --- checks ---------------------------------------------------------------------------------- */

struct check {
    const struct rp_safetensors *files;
    const struct rp_weight_part *part;
    unsigned char *used;
    struct rp_error *err;
    int status;
};

static const struct rp_safetensor *need(struct check *c, const char *suffix) {
    char name[128];
    const struct rp_safetensor *tensor = rp_weight_4bit_find(c->files, c->part, suffix, name);
    if (c->status != RP_OK)
        return NULL;
    if (tensor)
        c->used[tensor - c->files->tensors] = 1;
    else
        c->status =
            rp_error_set(c->err, RP_STATUS_NOT_FOUND,
                         "tensor %s is missing: quantization_config says that its module has 4-bit "
                         "weights; others belong in the list of modules left out",
                         name);
    return tensor;
}

static void expect_shape(struct check *c, const struct rp_safetensor *tensor, uint64_t rows,
                         uint64_t cols) {
    char what[192], has[96], wants[64];
    const uint64_t shape[2] = {rows, cols};
    if (c->status != RP_OK)
        return;
    if (tensor->rank == 2 && memcmp(tensor->shape, shape, sizeof shape) == 0)
        return;
    if (cols == 1 && tensor->rank == 1 && tensor->shape[0] == rows)
        return;
    snprintf(what, sizeof what, "has shape %s, must have %s",
             rp_safetensors_shape_text(tensor->shape, tensor->rank, has, sizeof has),
             rp_safetensors_shape_text(shape, 2, wants, sizeof wants));
    c->status = rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_FORMAT, what, c->err);
}

/* (experts, N, K/32 [, bytes]) */
static void expect_stack(struct check *c, const struct rp_safetensor *tensor, uint64_t bytes) {
    const struct rp_weight_part *part = c->part;
    uint32_t experts = part->weight->experts, rank = bytes ? 4 : 3;
    const uint64_t shape[4] = {experts, part->rows / experts, RP_CEIL_DIV(part->cols, 32), bytes};
    char what[192], has[96], wants[64];
    if (c->status != RP_OK)
        return;
    if (tensor->rank == rank && memcmp(tensor->shape, shape, rank * sizeof shape[0]) == 0)
        return;
    snprintf(what, sizeof what, "has shape %s, must have %s",
             rp_safetensors_shape_text(tensor->shape, tensor->rank, has, sizeof has),
             rp_safetensors_shape_text(shape, rank, wants, sizeof wants));
    c->status = rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_FORMAT, what, c->err);
}

static void expect_type(struct check *c, const struct rp_safetensor *tensor, const char *name) {
    char what[96];
    if (c->status != RP_OK || strcmp(tensor->type_name, name) == 0)
        return;
    snprintf(what, sizeof what, "is of type %s, must be %s", tensor->type_name, name);
    c->status = rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_UNSUPPORTED, what, c->err);
}

/* The rows of words: eight to a word must be whole. */
static void expect_eights(struct check *c, uint32_t count, const char *what) {
    if (c->status == RP_OK && count % 8 != 0)
        c->status = rp_error_set(c->err, RP_STATUS_FORMAT,
                                 "tensor %s: %u %s are no multiple of 8, which one word holds",
                                 c->part->name, count, what);
}

uint32_t rp_weight_4bit_groups(const struct rp_model_quant *quant, uint32_t cols) {
    return quant->group ? RP_CEIL_DIV(cols, quant->group) : 1;
}

static void check_codes(struct check *c, const struct rp_model_quant *quant) {
    const struct rp_weight_4bit_names *layout = &rp_weight_4bit_layouts[quant->layout];
    const struct rp_safetensor *codes = need(c, layout->codes);
    uint32_t rows = c->part->rows, cols = c->part->cols;
    if (!codes)
        return;
    expect_type(c, codes, layout->words ? "I32" : "U8");
    if (quant->layout == RP_QUANT_AWQ) {
        expect_eights(c, rows, "outputs");
        expect_shape(c, codes, cols, rows / 8);
    } else if (quant->layout == RP_QUANT_GPTQ) {
        expect_eights(c, rows, "outputs");
        expect_eights(c, cols, "inputs");
        expect_shape(c, codes, cols / 8, rows);
    } else if (quant->layout == RP_QUANT_MXFP4_EXPERTS) {
        expect_stack(c, codes, 16);
    } else {
        expect_shape(c, codes, rows, layout->words ? RP_CEIL_DIV(cols, 8) : RP_CEIL_DIV(cols, 2));
    }
}

/* Returns the type of blocks that the scales' type makes. */
static uint32_t check_scales(struct check *c, const struct rp_model_quant *quant) {
    const struct rp_weight_4bit_names *layout = &rp_weight_4bit_layouts[quant->layout];
    const struct rp_safetensor *scales = need(c, layout->scales);
    uint32_t rows = c->part->rows, groups = rp_weight_4bit_groups(quant, c->part->cols);
    enum rp_int4_scale kind = RP_INT4_F16;
    if (!scales)
        return 0;
    if (quant->layout == RP_QUANT_MXFP4_EXPERTS)
        expect_stack(c, scales, 0);
    else
        expect_shape(c, scales, layout->by_output ? rows : groups,
                     layout->by_output ? groups : rows);
    if (layout->factor) {
        expect_type(c, scales, "F8_E4M3");
        return RP_BLOCK_NVFP4;
    }
    if (quant->layout == RP_QUANT_MXFP4_PACKED || quant->layout == RP_QUANT_MXFP4_EXPERTS) {
        expect_type(c, scales, strcmp(scales->type_name, "F8_E8M0") == 0 ? "F8_E8M0" : "U8");
        return RP_BLOCK_MXFP4;
    }
    if (scales->type == RP_SAFETENSOR_BF16)
        kind = RP_INT4_BF16;
    else if (scales->type == RP_SAFETENSOR_F32)
        kind = RP_INT4_F32;
    else
        expect_type(c, scales, "F16");
    return rp_block_int4(quant->group, kind, quant->zeros);
}

static void check_others(struct check *c, const struct rp_model_quant *quant) {
    const struct rp_weight_4bit_names *layout = &rp_weight_4bit_layouts[quant->layout];
    const struct rp_safetensor *tensor;
    uint32_t rows = c->part->rows, groups = rp_weight_4bit_groups(quant, c->part->cols);
    char name[128];
    if (quant->zeros && (tensor = need(c, layout->zeros)) != NULL) {
        expect_type(c, tensor, "I32");
        expect_shape(c, tensor, layout->by_output ? RP_CEIL_DIV(rows, 8) : groups,
                     layout->by_output ? groups : rows / 8);
    }
    if (!quant->zeros && c->status == RP_OK && layout->zeros &&
        (tensor = rp_weight_4bit_find(c->files, c->part, layout->zeros, name)) != NULL)
        c->status =
            rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_FORMAT,
                                  "is there, but quantization_config says symmetric", c->err);
    if (layout->factor && (tensor = need(c, layout->factor)) != NULL) {
        expect_type(c, tensor, "F32");
        if (c->status == RP_OK && tensor->bytes != sizeof(float))
            c->status = rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_FORMAT,
                                              "must hold one number", c->err);
    }
    if (layout->order &&
        (tensor = rp_weight_4bit_find(c->files, c->part, layout->order, name)) != NULL) {
        c->used[tensor - c->files->tensors] = 1;
        expect_type(c, tensor, "I32");
        if (c->status == RP_OK && (tensor->rank != 1 || tensor->shape[0] != c->part->cols))
            c->status = rp_weight_4bit_refuse(c->files, tensor, RP_STATUS_FORMAT,
                                              "must have one number a column", c->err);
    }
    if ((tensor = rp_weight_4bit_find(c->files, c->part, "weight_shape", name)) != NULL)
        c->used[tensor - c->files->tensors] = 1;
}

/* Notes the type of each module whose rows the part has. */
static void set_type(struct rp_model_config *config, const struct rp_weight_part *part,
                     uint32_t type) {
    const struct rp_weight *weight = part->weight;
    if (weight->layer == RP_LAYER_NONE) {
        config->quant.head_type = (uint8_t)type;
        return;
    }
    uint8_t *types = config->quant.types[weight->layer];
    uint32_t qkv[3];
    rp_model_qkv_rows(config, weight->layer, qkv);
    uint32_t q_rows = qkv[0];
    bool whole = part->rows == weight->matrix.rows, first = part->row_begin == 0;
    switch (weight->role) {
    case RP_WEIGHT_QKV:
        types[first                       ? RP_MODULE_Q
              : part->row_begin == q_rows ? RP_MODULE_K
                                          : RP_MODULE_V] = (uint8_t)type;
        if (whole)
            types[RP_MODULE_K] = types[RP_MODULE_V] = (uint8_t)type;
        break;
    case RP_WEIGHT_GATE_UP:
        types[first ? RP_MODULE_GATE : RP_MODULE_UP] = (uint8_t)type;
        if (whole)
            types[RP_MODULE_UP] = (uint8_t)type;
        break;
    case RP_WEIGHT_EXPERT_GATE_UP:
        types[RP_MODULE_EXPERT_GATE] = types[RP_MODULE_EXPERT_UP] = (uint8_t)type;
        break;
    case RP_WEIGHT_EXPERT_DOWN:
        types[RP_MODULE_EXPERT_DOWN] = (uint8_t)type;
        break;
    default:
        types[weight->role == RP_WEIGHT_O ? RP_MODULE_O : RP_MODULE_DOWN] = (uint8_t)type;
        break;
    }
}

int rp_weight_4bit_check(const struct rp_safetensors *files, struct rp_model_config *config,
                         const struct rp_weight_part *part, unsigned char *used,
                         struct rp_error *err) {
    struct check c = {files, part, used, err, RP_OK};
    check_codes(&c, &config->quant);
    uint32_t type = check_scales(&c, &config->quant);
    check_others(&c, &config->quant);
    if (c.status == RP_OK)
        set_type(config, part, type);
    return c.status;
}
