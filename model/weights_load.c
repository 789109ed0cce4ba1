/* rp_model_open: every tensor of a checkpoint is checked, and the vectors are read. */
#include "base/log.h"
#include "base/memory.h"
#include "model/family.h"
#include "model/gguf_arch.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"
#include "text/json_file.h"

#include <stdio.h>
#include <string.h>

struct loader {
    const struct rp_safetensors *files;
    struct rp_model_config *config; /* the types of 4-bit weights are noted in it */
    struct rp_error *err;
    unsigned char *used; /* per tensor of the files */
    bool all_bf16;       /* every matrix */
    unsigned char *staging;
};

static int missing(const struct loader *loader, const struct rp_weight_part *part) {
    char name[160];
    int status =
        rp_error_set(loader->err, RP_STATUS_NOT_FOUND, "%s: tensor %s is missing",
                     loader->files->shard_count == 1 ? loader->files->shards[0].name
                     : loader->files->arch           ? "the split files"
                                                     : RP_SAFETENSORS_INDEX,
                     loader->files->arch
                         ? rp_gguf_tensor_name(loader->files->arch, part->name, name, sizeof name)
                         : part->name);
    if (rp_weight_is_matrix(part->weight) && part->weight->role == RP_WEIGHT_HEAD)
        rp_error_hint(loader->err, "if the output layer is the embedding, config.json must say "
                                   "\"tie_word_embeddings\": true");
    return status;
}

/* Cohere's norms of q and k: (heads, head_dim) in the file. */
static bool is_by_heads(const struct rp_model_config *config, const struct rp_weight_part *part,
                        const struct rp_safetensor *tensor) {
    return config->qk_norm == RP_QK_NORM_EACH_HEAD && tensor->rank == 2 &&
           (part->weight->role == RP_WEIGHT_Q_NORM || part->weight->role == RP_WEIGHT_K_NORM);
}

/* The tensor is there, has the shape that the configuration implies, and a type that we convert. */
static int check_part(void *ctx, const struct rp_weight_part *part) {
    struct loader *loader = ctx;
    if (part->quantized && loader->config->quant.layout != RP_QUANT_8_BITS)
        return rp_weight_4bit_check(loader->files, loader->config, part, loader->used, loader->err);
    const struct rp_safetensor *tensor = rp_safetensors_find(loader->files, part->name), *scales;
    if (!tensor)
        return missing(loader, part);
    const char *file = rp_safetensors_file(loader->files, tensor);
    uint64_t expected[3] = {part->rows, part->cols};
    uint32_t rank = rp_weight_is_matrix(part->weight) ? 2 : 1;
    if (rank == 1 && is_by_heads(loader->config, part, tensor)) {
        rank = 2;
        expected[0] = part->rows / loader->config->head_dim;
        expected[1] = loader->config->head_dim;
    }
    if (part->weight->role == RP_WEIGHT_CONV) { /* (columns, 1, width) */
        rank = 3;
        expected[0] = part->rows / loader->config->state.conv_width;
        expected[1] = 1;
        expected[2] = loader->config->state.conv_width;
    }
    if (part->stacked) {
        rank++; /* of a matrix 3 */
        expected[0] = part->weight->experts;
        expected[1 + part->transposed] = part->rows / part->weight->experts;
        expected[2 - part->transposed] = part->cols;
    }
    if (tensor->rank != rank || memcmp(tensor->shape, expected, rank * sizeof expected[0]) != 0) {
        char has[128], wants[64];
        return rp_error_set(loader->err, RP_STATUS_FORMAT,
                            "%s: tensor %s has shape %s, %s implies %s", file, tensor->name,
                            rp_safetensors_shape_text(tensor->shape, tensor->rank, has, sizeof has),
                            loader->files->arch ? "the metadata" : "config.json",
                            rp_safetensors_shape_text(expected, rank, wants, sizeof wants));
    }
    if (part->quantized && part->stacked)
        return rp_error_set(loader->err, RP_STATUS_UNSUPPORTED,
                            "%s: tensor %s: 8-bit weights of all experts in one tensor are not "
                            "supported, a tensor for each expert is",
                            file, tensor->name);
    if (part->quantized) {
        int status = rp_weight_quant_check(loader->files, loader->config, part, tensor, &scales,
                                           loader->err);
        if (status != RP_OK)
            return status;
        loader->used[scales - loader->files->tensors] = 1;
    } else if (tensor->type > RP_SAFETENSOR_BF16 &&
               !(tensor->type == RP_SAFETENSOR_BLOCKS && rp_weight_is_matrix(part->weight))) {
        int status = rp_error_set(loader->err, RP_STATUS_UNSUPPORTED,
                                  "%s: tensor %s is of type %s, supported: F32, F16, BF16", file,
                                  tensor->name, tensor->type_name);
        if (tensor->type == RP_SAFETENSOR_I8 || tensor->type == RP_SAFETENSOR_F8_E4M3)
            rp_error_hint(loader->err,
                          "8-bit weights need a quantization_config in config.json that "
                          "does not leave this one out");
        return status;
    }
    if (rp_weight_is_matrix(part->weight) && !part->quantized && tensor->type != RP_SAFETENSOR_BF16)
        loader->all_bf16 = false;
    loader->used[tensor - loader->files->tensors] = 1;
    return RP_OK;
}

static bool ends_in(const char *name, const char *suffix) {
    size_t len = strlen(name), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(name + len - suffix_len, suffix) == 0;
}

/* Scales of K and V in pages of 8 bits. */
static bool is_kv_scale(const char *name) {
    static const char *const suffixes[] = {".k_scale", ".v_scale", ".kv_scale"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(suffixes); i++)
        if (ends_in(name, suffixes[i]))
            return true;
    return false;
}

/* Names in older checkpoints that no model needs; a tied model's head was compared. */
static bool is_known_extra(const struct rp_model_config *config, const char *name) {
    if (ends_in(name, ".rotary_emb.inv_freq"))
        return true;
    if (config->gguf.present && strncmp(name, "rope_f", 6) == 0) /* in the configuration */
        return true;
    if ((config->quant.static_input || config->quant.input_ignored) &&
        (ends_in(name, ".input_scale") || ends_in(name, ".input_global_scale")))
        return true;
    char head[96];
    rp_tensor_name(config, rp_family_head_name(rp_model_family(config->family)), head, sizeof head);
    return config->tied && strcmp(name, head) == 0;
}

static void log_extras(const struct loader *loader) {
    uint32_t extras = 0, first = 0, kv_scales = 0;
    for (uint32_t i = loader->files->count; i-- > 0;)
        if (is_kv_scale(loader->files->tensors[i].name))
            kv_scales++;
        else if (!loader->used[i] &&
                 !is_known_extra(loader->config, loader->files->tensors[i].name)) {
            extras++;
            first = i;
        }
    if (kv_scales > 0)
        rp_log(RP_LOG_INFO,
               "model: scales of K and V are not used: pages of 8 bits have a scale for each "
               "token and head count=%u",
               kv_scales);
    if (loader->config->quant.static_input)
        rp_log(RP_LOG_INFO,
               "model: static scales of inputs are checked and not used: each row gets "
               "a scale of its own");
    if (loader->config->quant.input_ignored)
        rp_log(RP_LOG_INFO, "model: inputs of 4-bit weights are not quantized: they stay bf16");
    if (extras > 0) {
        char name[128];
        rp_log(RP_LOG_WARN,
               "model: tensors that the network does not use are ignored count=%u first=%s", extras,
               rp_text_for_message(name, sizeof name, loader->files->tensors[first].name));
    }
}

/* A tied model uses the embedding as its output layer: another lm_head.weight in the file would be
 * dropped silently. The staging buffer holds a piece of each tensor. */
static int check_tied_head(const struct loader *loader) {
    const struct rp_safetensors *files = loader->files;
    const struct rp_model_family *family = rp_model_family(loader->config->family);
    char head_name[96], embed_name[96];
    rp_tensor_name(loader->config, rp_family_head_name(family), head_name, sizeof head_name);
    rp_tensor_name(loader->config, rp_family_embed_name(family), embed_name, sizeof embed_name);
    const struct rp_safetensor *head = rp_safetensors_find(files, head_name);
    const struct rp_safetensor *embed = rp_safetensors_find(files, embed_name);
    if (!loader->config->tied || !head || !embed)
        return RP_OK;
    size_t half = RP_WEIGHT_STAGING_BYTES / 2;
    unsigned char *other = loader->staging + half;
    bool same = head->type == embed->type && head->bytes == embed->bytes;
    for (uint64_t at = 0; same && at < head->bytes; at += half) {
        size_t bytes = RP_MIN(half, (size_t)(head->bytes - at));
        int status = rp_safetensors_read(files, head, at, loader->staging, bytes, loader->err);
        if (status == RP_OK)
            status = rp_safetensors_read(files, embed, at, other, bytes, loader->err);
        if (status != RP_OK)
            return status;
        same = memcmp(loader->staging, other, bytes) == 0;
    }
    if (same) {
        rp_log(RP_LOG_WARN, "model: %s equals the tied embedding, which is used", head_name);
        return RP_OK;
    }
    int status = rp_error_set(loader->err, RP_STATUS_FORMAT,
                              "%s: tensor %s differs from %s, but the configuration ties them",
                              rp_safetensors_file(files, head), head_name, embed_name);
    rp_error_hint(loader->err, "if the output layer is right, config.json must say "
                               "\"tie_word_embeddings\": false; or else remove the tensor");
    return status;
}

/* Tools of 4-bit weights write a bias of zeros for every module. */
static int is_zero(const struct loader *loader, const struct rp_safetensor *tensor, bool *out) {
    *out = true;
    for (uint64_t at = 0; *out && at < tensor->bytes; at += RP_WEIGHT_STAGING_BYTES) {
        size_t bytes = RP_MIN(RP_WEIGHT_STAGING_BYTES, (size_t)(tensor->bytes - at));
        int status =
            rp_safetensors_read(loader->files, tensor, at, loader->staging, bytes, loader->err);
        if (status != RP_OK)
            return status;
        for (size_t i = 0; i < bytes; i++)
            *out = *out && loader->staging[i] == 0;
    }
    return RP_OK;
}

/* A bias in the files that the configuration switches off would be dropped silently. */
static int check_unused_biases(const struct loader *loader, const struct rp_model *model) {
    const struct rp_model_family *family = rp_model_family(loader->config->family);
    char name[96], inner[80];
    for (uint32_t layer = 0; layer < loader->config->layers; layer++)
        for (uint32_t i = 0; i < family->tensor_count; i++) {
            const struct rp_tensor_rule *rule = &family->tensors[i];
            if (!ends_in(rule->name, ".bias") || rp_model_weight(model, rule->role, layer))
                continue;
            snprintf(inner, sizeof inner, "model.layers.%u.%s", layer, rule->name);
            rp_tensor_name(loader->config, inner, name, sizeof name);
            const struct rp_safetensor *tensor = rp_safetensors_find(loader->files, name);
            bool zero = true;
            int status = tensor ? is_zero(loader, tensor, &zero) : RP_OK;
            if (status != RP_OK)
                return status;
            if (tensor && zero)
                loader->used[tensor - loader->files->tensors] = 1;
            else if (tensor)
                return rp_error_set(loader->err, RP_STATUS_FORMAT,
                                    "%s: tensor %s is there, but config.json says that there is no "
                                    "such bias",
                                    rp_safetensors_file(loader->files, tensor), name);
        }
    return RP_OK;
}

static int read_vector(void *ctx, const struct rp_weight_part *part) {
    struct loader *loader = ctx;
    if (rp_weight_is_matrix(part->weight))
        return RP_OK;
    return rp_weight_read_vector(loader->files, part, loader->staging, loader->err);
}

static int check_all(struct loader *loader) {
    struct rp_model shapes;
    int status = rp_weights_describe(loader->config, RP_DTYPE_F32, &shapes, loader->err);
    if (status != RP_OK)
        return status;
    status = rp_weight_parts(&shapes, check_part, loader);
    if (status == RP_OK)
        status = check_unused_biases(loader, &shapes);
    rp_model_deinit(&shapes);
    if (status == RP_OK)
        status = check_tied_head(loader);
    if (status == RP_OK)
        log_extras(loader);
    return status;
}

/* The model with its vectors, matrices without data. */
static int open_weights(struct loader *loader, enum rp_dtype dtype, uint32_t max_position,
                        struct rp_model *out_model) {
    loader->used = rp_calloc(loader->files->count, 1);
    loader->staging = rp_alloc(RP_WEIGHT_STAGING_BYTES);
    if (!loader->used || !loader->staging)
        return rp_error_set(loader->err, RP_STATUS_NO_MEMORY, "model: out of memory");
    int status = check_all(loader);
    if (status != RP_OK)
        return status;
    if (dtype == RP_MODEL_DTYPE_AUTO && loader->config->gguf.blocks)
        dtype = rp_weights_blocks_dtype(loader->config);
    bool quantized = loader->config->quant.scales != RP_SCALE_NONE ||
                     loader->config->quantization != RP_QUANT_NONE;
    if (dtype == RP_MODEL_DTYPE_AUTO)
        dtype = loader->all_bf16 || quantized ? RP_DTYPE_BF16 : RP_DTYPE_F32;
    status = rp_weights_describe(loader->config, dtype, out_model, loader->err);
    if (status == RP_OK)
        status = rp_weights_allocate_vectors(out_model, max_position, loader->err);
    return status == RP_OK ? rp_weight_parts(out_model, read_vector, loader) : status;
}

int rp_model_open(const char *dir, enum rp_dtype dtype,
                  const struct rp_model_quantization *quantization, uint32_t max_position,
                  struct rp_model *out_model, struct rp_error *err) {
    struct rp_model_config config;
    struct rp_safetensors files;
    memset(out_model, 0, sizeof *out_model);
    int status = rp_model_config_load(dir, &config, err);
    if (status == RP_OK && quantization) {
        config.quantization = quantization->scheme;
        config.quantize_head = quantization->head;
    }
    if (status == RP_OK)
        status = rp_weights_check_dtype(&config, dtype, err);
    if (status != RP_OK)
        return status;
    status = rp_safetensors_open(&files, dir, err);
    if (status != RP_OK)
        return status;
    rp_tensor_choose_prefix(&files, &config);
    rp_tensor_choose_stacked(&files, &config);
    struct loader loader = {.files = &files, .config = &config, .err = err, .all_bf16 = true};
    status = open_weights(&loader, dtype, max_position, out_model);
    rp_free(loader.used);
    rp_free(loader.staging);
    if (status == RP_OK && !(out_model->source = rp_weight_source_create(&files)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    if (status == RP_OK)
        return RP_OK;
    rp_safetensors_close(&files);
    rp_model_deinit(out_model);
    return status;
}

static int keep(void *ctx, struct rp_weight *weight, struct rp_error *err) {
    (void)ctx;
    (void)weight;
    (void)err;
    return RP_OK;
}

int rp_model_load_quantized(const char *dir, enum rp_dtype dtype,
                            const struct rp_model_quantization *quantization, uint32_t max_position,
                            void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes),
                            void *ctx, struct rp_model *out_model, struct rp_error *err) {
    struct rp_weight_consumer all = {
        .consume = keep, .progress = progress, .ctx = ctx, .window_bytes = UINT64_MAX};
    int status = rp_model_open(dir, dtype, quantization, max_position, out_model, err);
    if (status != RP_OK)
        return status;
    status = rp_model_stream(out_model, &all, err);
    if (status != RP_OK)
        rp_model_deinit(out_model);
    return status;
}

int rp_model_load(const char *dir, enum rp_dtype dtype, uint32_t max_position,
                  void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes), void *ctx,
                  struct rp_model *out_model, struct rp_error *err) {
    return rp_model_load_quantized(dir, dtype, NULL, max_position, progress, ctx, out_model, err);
}
