/* Schemes that cannot be computed exactly as the checkpoint specifies are rejected here, before a
 * weight is read. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "model/quant_config.h"

#include "model/family.h"
#include "text/json_file.h"

#include <pcre2.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORKS                                                                                      \
    "8 bits: compressed-tensors float-quantized, int-quantized, fp8, ModelOpt FP8; 4 bits: "       \
    "pack-quantized, nvfp4- and mxfp4-pack-quantized, awq, gptq, ModelOpt NVFP4, gpt-oss's mxfp4"
#define MATCH_LIMIT   100000u /* steps of a pattern on one name: patterns come with the file */
#define PATTERN_BYTES 512u

/* ---- which modules -------------------------------------------------------------------------- */

static const struct {
    enum rp_weight_role role;
    enum rp_weight_span span;
} module_parts[RP_MODULE_COUNT] = {
    [RP_MODULE_Q] = {RP_WEIGHT_QKV, RP_SPAN_Q},
    [RP_MODULE_K] = {RP_WEIGHT_QKV, RP_SPAN_K},
    [RP_MODULE_V] = {RP_WEIGHT_QKV, RP_SPAN_V},
    [RP_MODULE_Q_B] = {RP_WEIGHT_Q_B, RP_SPAN_ALL},
    [RP_MODULE_KV_B] = {RP_WEIGHT_K_B, RP_SPAN_ALL},
    [RP_MODULE_O] = {RP_WEIGHT_O, RP_SPAN_ALL},
    [RP_MODULE_GATE] = {RP_WEIGHT_GATE_UP, RP_SPAN_GATE},
    [RP_MODULE_UP] = {RP_WEIGHT_GATE_UP, RP_SPAN_UP},
    [RP_MODULE_DOWN] = {RP_WEIGHT_DOWN, RP_SPAN_ALL},
    [RP_MODULE_EXPERT_GATE] = {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_GATE},
    [RP_MODULE_EXPERT_UP] = {RP_WEIGHT_EXPERT_GATE_UP, RP_SPAN_UP},
    [RP_MODULE_EXPERT_DOWN] = {RP_WEIGHT_EXPERT_DOWN, RP_SPAN_ALL},
    [RP_MODULE_SHARED_GATE] = {RP_WEIGHT_SHARED_GATE_UP, RP_SPAN_GATE},
    [RP_MODULE_SHARED_UP] = {RP_WEIGHT_SHARED_GATE_UP, RP_SPAN_UP},
    [RP_MODULE_SHARED_DOWN] = {RP_WEIGHT_SHARED_DOWN, RP_SPAN_ALL}};

/* "model.layers.3.self_attn.q_proj", as the family calls it; a tensor of several modules is the
 * name of each of them, and expert 0 stands for all. false: the family has no such module. */
static bool module_name(const struct rp_model_config *config, uint32_t layer, uint32_t module,
                        char *out, size_t out_bytes) {
    const struct rp_model_family *family = rp_model_family(config->family);
    const char *name = "";
    enum rp_weight_span span = module_parts[module].span;
    if (span == RP_SPAN_Q && config->latent.q_rank)
        span = RP_SPAN_Q_A;
    for (uint32_t i = 0; i < family->tensor_count; i++) {
        const struct rp_tensor_rule *rule = &family->tensors[i];
        if (rule->role == module_parts[module].role &&
            (rule->span == span || rule->span == RP_SPAN_ALL))
            name = rule->name;
    }
    const char *suffix = strstr(name, ".weight"), *star = strchr(name, '*');
    int len = suffix ? (int)(suffix - name) : (int)strlen(name);
    int head = star ? (int)(star - name) : len;
    snprintf(out, out_bytes, "model.layers.%u.%.*s%s%.*s", layer, head, name, star ? "0" : "",
             star ? len - head - 1 : 0, star ? star + 1 : "");
    return len > 0;
}

static int match_pattern(const char *pattern, const char *module, const char *what, bool *out,
                         struct rp_error *err) {
    int code;
    size_t at;
    char shown[96];
    pcre2_code *compiled = NULL;
    if (strlen(pattern) <= PATTERN_BYTES)
        compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code,
                                 &at, NULL);
    pcre2_match_context *limits = compiled ? pcre2_match_context_create(NULL) : NULL;
    pcre2_match_data *match = limits ? pcre2_match_data_create(1, NULL) : NULL;
    int found = PCRE2_ERROR_NOMEMORY;
    if (match) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        found = pcre2_match(compiled, (PCRE2_SPTR)module, strlen(module), 0, 0, match, limits);
    }
    pcre2_match_data_free(match);
    pcre2_match_context_free(limits);
    pcre2_code_free(compiled);
    *out = found >= 0;
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: \"re:%s\" is no pattern that can be matched",
                        what, rp_text_for_message(shown, sizeof shown, pattern));
}

/* '*' stands for any text. Linear in both lengths times each other. */
static bool match_stars(const char *pattern, const char *text) {
    const char *star = NULL, *from = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            from = text;
        } else if (*pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

static bool match_name(const char *name, const char *module) {
    size_t len = strlen(name), module_len = strlen(module);
    if (len == 0 || len > module_len)
        return false;
    if (strncmp(name, module, len) == 0 && (module[len] == '\0' || module[len] == '.'))
        return true;
    return strcmp(module + module_len - len, name) == 0 && module[module_len - len - 1] == '.';
}

int rp_quant_list_names(const json_t *list, const char *module, const char *what, bool *out,
                        struct rp_error *err) {
    *out = false;
    if (!list || json_is_null(list))
        return RP_OK;
    if (!json_is_array(list))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s must be a list of strings", what);
    for (size_t i = 0; i < json_array_size(list) && !*out; i++) {
        const char *entry = json_string_value(json_array_get(list, i));
        int status = RP_OK;
        if (!entry)
            return rp_error_set(err, RP_STATUS_FORMAT, "%s must be a list of strings", what);
        if (strncmp(entry, "re:", 3) == 0)
            status = match_pattern(entry + 3, module, what, out, err);
        else if (strchr(entry, '*'))
            *out = match_stars(entry, module);
        else
            *out = strcmp(entry, "Linear") == 0 || match_name(entry, module);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

struct reader {
    const char *file, *key;
    struct rp_model_config *config;
    struct rp_error *err;
    int status;
};

static void refuse(struct reader *reader, enum rp_status status, const char *format, ...)
    RP_PRINTF(3, 4);

static void refuse(struct reader *reader, enum rp_status status, const char *format, ...) {
    char text[320];
    va_list args;
    if (reader->status != RP_OK)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reader->status = rp_error_set(reader->err, status, "%s: %s%s", reader->file, reader->key, text);
    if (status == RP_STATUS_UNSUPPORTED)
        rp_error_hint(reader->err, WORKS);
}

static const json_t *get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* "" when the key is absent. */
static const char *get_text(struct reader *reader, const json_t *object, const char *key) {
    const json_t *value = get(object, key);
    if (value && !json_is_string(value))
        refuse(reader, RP_STATUS_FORMAT, ".%s must be a string", key);
    return json_is_string(value) ? json_string_value(value) : "";
}

static bool get_bool(struct reader *reader, const json_t *object, const char *key, bool fallback) {
    const json_t *value = get(object, key);
    if (value && !json_is_boolean(value))
        refuse(reader, RP_STATUS_FORMAT, ".%s must be true or false", key);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

static void refuse_name(struct reader *reader, const char *key, const char *text) {
    char shown[80];
    refuse(reader, RP_STATUS_UNSUPPORTED, ".%s \"%s\" is not supported", key,
           rp_text_for_message(shown, sizeof shown, text));
}

/* Fills which modules are quantized: in `targets` (NULL: all) and not in `ignore`. */
static void read_modules(struct reader *reader, const json_t *targets, const json_t *ignore,
                         bool head_too) {
    struct rp_model_quant *quant = &reader->config->quant;
    for (uint32_t i = 0; i <= reader->config->layers && reader->status == RP_OK; i++) {
        bool head = i == reader->config->layers;
        for (uint32_t m = 0; m < (head ? 1u : RP_MODULE_COUNT) && reader->status == RP_OK; m++) {
            char name[96] = "lm_head";
            bool is_target = true, ignored = false;
            if (!head && !module_name(reader->config, i, m, name, sizeof name))
                continue;
            if (targets)
                reader->status =
                    rp_quant_list_names(targets, name, "config.json: quantization_config: targets",
                                        &is_target, reader->err);
            if (reader->status == RP_OK)
                reader->status = rp_quant_list_names(
                    ignore, name, "config.json: quantization_config: ignored modules", &ignored,
                    reader->err);
            bool covered = is_target && !ignored;
            if (head)
                quant->head = covered && head_too;
            else if (covered)
                quant->modules[i] |= 1u << m;
        }
    }
}

/* All parts of one matrix in memory must have the same type. */
static void check_fused(struct reader *reader) {
    static const struct {
        uint32_t bits;
        const char *text;
    } fused[] = {
        {1u << RP_MODULE_Q | 1u << RP_MODULE_K | 1u << RP_MODULE_V, "q, k and v"},
        {1u << RP_MODULE_GATE | 1u << RP_MODULE_UP, "gate and up"},
        {1u << RP_MODULE_EXPERT_GATE | 1u << RP_MODULE_EXPERT_UP, "the experts' gate and up"},
        {1u << RP_MODULE_SHARED_GATE | 1u << RP_MODULE_SHARED_UP,
         "the shared expert's gate and up"}};
    uint32_t there = 0; /* modules that the family has */
    char name[96];
    for (uint32_t m = 0; m < RP_MODULE_COUNT; m++)
        there |= (uint32_t)module_name(reader->config, 0, m, name, sizeof name) << m;
    for (uint32_t i = 0; i < reader->config->layers; i++)
        for (size_t f = 0; f < RP_ARRAY_COUNT(fused); f++) {
            uint32_t bits = reader->config->quant.modules[i] & fused[f].bits;
            if (bits != 0 && bits != (fused[f].bits & there))
                refuse(reader, RP_STATUS_UNSUPPORTED,
                       ": of layer %u some of %s are quantized and others are not: they are one "
                       "matrix here",
                       i, fused[f].text);
        }
}

/* 4 bits: the GEMMs of experts take blocks of one type for a whole layer. */
static void check_experts(struct reader *reader) {
    if (reader->config->latent.rank)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": 4-bit weights of models with latent attention are not supported, 8-bit ones are");
    if (reader->config->quant.layout == RP_QUANT_MXFP4_EXPERTS)
        return;
    for (uint32_t i = 0; i < reader->config->layers; i++)
        if (reader->config->quant.modules[i] >> RP_MODULE_EXPERT_GATE)
            refuse(reader, RP_STATUS_UNSUPPORTED,
                   ": 4-bit weights of experts are not supported, 8-bit ones are");
}

static bool is_block_128(const json_t *size) {
    return json_is_array(size) && json_array_size(size) == 2 &&
           json_integer_value(json_array_get(size, 0)) == 128 &&
           json_integer_value(json_array_get(size, 1)) == 128;
}

/* ---- 4 bits --------------------------------------------------------------------------------- */

#define GROUP_MAX 32768

/* The types of all modules; those of the scales until the tensors are known. */
static void set_types(struct reader *reader, uint32_t type) {
    struct rp_model_quant *quant = &reader->config->quant;
    quant->dtype = RP_DTYPE_BLOCKS;
    quant->scales = RP_SCALE_GROUP_K;
    quant->input = RP_INPUT_BF16;
    quant->head_type = (uint8_t)type;
    memset(quant->types, (int)type, sizeof quant->types);
}

void rp_quant_set_mxfp4_experts(struct rp_model_config *config) {
    struct rp_model_quant *quant = &config->quant;
    quant->dtype = RP_DTYPE_BLOCKS;
    quant->scales = RP_SCALE_GROUP_K;
    quant->input = RP_INPUT_BF16;
    quant->layout = RP_QUANT_MXFP4_EXPERTS;
    quant->group = 32;
    memset(quant->types, RP_BLOCK_MXFP4, sizeof quant->types);
}

/* A group size that is a multiple of 32, or one scale for each output: -1, or `channel`. */
static void read_group(struct reader *reader, const char *key, const json_t *size, bool channel) {
    json_int_t value = channel ? -1 : json_integer_value(size);
    if (size && !json_is_integer(size))
        refuse(reader, RP_STATUS_FORMAT, ".%s must be an integer", key);
    else if (value != -1 && (value < 32 || value > GROUP_MAX || value % 32 != 0))
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ".%s %" JSON_INTEGER_FORMAT
               " is not supported: groups are multiples of 32 columns, or -1",
               key, value);
    else
        reader->config->quant.group = value == -1 ? 0 : (uint32_t)value;
}

static void read_bits_4(struct reader *reader, const json_t *object) {
    const json_t *bits = get(object, "bits");
    if (!json_is_integer(bits) || json_integer_value(bits) != 4)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ".bits: weights of %" JSON_INTEGER_FORMAT " bits are not supported, 4 are",
               json_integer_value(bits));
}

/* gpt-oss: only experts have 4 bits, those of layers that the list does not name. */
static void read_mxfp4(struct reader *reader, const json_t *object) {
    struct rp_model_quant *quant = &reader->config->quant;
    if (reader->config->family != RP_FAMILY_GPT_OSS) {
        refuse(reader, RP_STATUS_UNSUPPORTED, ".quant_method \"mxfp4\" is gpt-oss's alone");
        return;
    }
    read_modules(reader, NULL, get(object, "modules_to_not_convert"), false);
    rp_quant_set_mxfp4_experts(reader->config);
    for (uint32_t i = 0; i < reader->config->layers; i++)
        quant->modules[i] &= RP_MXFP4_MODULES;
    if (reader->config->hidden % 32 || reader->config->experts.intermediate % 32)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ".quant_method \"mxfp4\": hidden_size and intermediate_size must be multiples of "
               "32, which share a scale");
}

static void read_awq(struct reader *reader, const json_t *object) {
    struct rp_model_quant *quant = &reader->config->quant;
    const char *version = get_text(reader, object, "version");
    read_bits_4(reader, object);
    read_group(reader, "group_size", get(object, "group_size"), false);
    if (*version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        refuse_name(reader, "version", version);
    if (!get_bool(reader, object, "zero_point", true))
        refuse(reader, RP_STATUS_UNSUPPORTED, ".zero_point false is not supported");
    quant->layout = RP_QUANT_AWQ;
    quant->zeros = true;
    set_types(reader, rp_block_int4(quant->group, RP_INT4_F16, true));
    read_modules(reader, NULL, get(object, "modules_to_not_convert"), false);
}

static void read_gptq(struct reader *reader, const json_t *object) {
    struct rp_model_quant *quant = &reader->config->quant;
    const char *format = get_text(reader, object, "checkpoint_format");
    const char *words = get_text(reader, object, "pack_dtype");
    const json_t *dynamic = get(object, "dynamic");
    read_bits_4(reader, object);
    read_group(reader, "group_size", get(object, "group_size"), false);
    if (*format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        refuse_name(reader, "checkpoint_format", format);
    if (*words && strcmp(words, "int32") != 0)
        refuse_name(reader, "pack_dtype", words);
    if (get_bool(reader, object, "is_marlin_format", false))
        refuse(reader, RP_STATUS_UNSUPPORTED, ".is_marlin_format is not supported");
    if (dynamic && (!json_is_object(dynamic) || json_object_size(dynamic) > 0))
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ".dynamic: modules with settings of their own are not supported");
    quant->layout = RP_QUANT_GPTQ;
    quant->zeros = true;
    quant->zeros_less_one = strcmp(format, "gptq_v2") != 0;
    set_types(reader, rp_block_int4(quant->group, RP_INT4_F16, true));
    read_modules(reader, NULL, NULL, get_bool(reader, object, "lm_head", false));
}

/* compressed-tensors: weights of integers in groups, or of E2M1. */
static void read_weights_4(struct reader *reader, const json_t *weights) {
    struct rp_model_quant *quant = &reader->config->quant;
    const char *type = get_text(reader, weights, "type");
    const char *strategy = get_text(reader, weights, "strategy");
    const json_t *size = get(weights, "group_size");
    bool symmetric = get_bool(reader, weights, "symmetric", true);
    bool channel = strcmp(strategy, "channel") == 0;
    if (get_bool(reader, weights, "dynamic", false))
        refuse(reader, RP_STATUS_UNSUPPORTED, ": dynamic weights are not supported");
    if (strcmp(type, "float") == 0) {
        json_int_t group = json_integer_value(size);
        if ((group != 16 && group != 32) || !symmetric)
            refuse(
                reader, RP_STATUS_UNSUPPORTED,
                ": float weights of 4 bits must be symmetric, with weights.group_size 16 (nvfp4) "
                "or 32 (mxfp4)");
        quant->layout = group == 16 ? RP_QUANT_NVFP4_PACKED : RP_QUANT_MXFP4_PACKED;
        quant->group = (uint32_t)group;
        set_types(reader, group == 16 ? RP_BLOCK_NVFP4 : RP_BLOCK_MXFP4);
        return;
    }
    if (strcmp(type, "int") != 0)
        refuse_name(reader, "weights.type", type);
    if (!channel && strcmp(strategy, "group") != 0)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": weights of 4 bits with scales per %.40s are not supported; per group and per "
               "channel are",
               *strategy ? strategy : "(none)");
    read_group(reader, "weights.group_size", size, channel);
    quant->layout = RP_QUANT_PACKED;
    quant->zeros = !symmetric;
    set_types(reader, rp_block_int4(quant->group, RP_INT4_BF16, quant->zeros));
}

/* ---- compressed-tensors --------------------------------------------------------------------- */

static void read_weights(struct reader *reader, const json_t *weights) {
    struct rp_model_quant *quant = &reader->config->quant;
    const char *type = get_text(reader, weights, "type");
    const char *strategy = get_text(reader, weights, "strategy");
    const json_t *bits = get(weights, "num_bits");
    if (json_is_integer(bits) && json_integer_value(bits) == 4) {
        read_weights_4(reader, weights);
        return;
    }
    if (!json_is_integer(bits) || json_integer_value(bits) != 8)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": weights of %" JSON_INTEGER_FORMAT " bits are not supported, 8 and 4 are",
               json_integer_value(bits));
    if (!get_bool(reader, weights, "symmetric", true))
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": asymmetric weights (zero points) are not supported, symmetric ones are");
    if (get_bool(reader, weights, "dynamic", false))
        refuse(reader, RP_STATUS_UNSUPPORTED, ": dynamic weights are not supported");
    quant->dtype = strcmp(type, "float") == 0 ? RP_DTYPE_FP8_E4M3 : RP_DTYPE_INT8;
    if (strcmp(type, "float") != 0 && strcmp(type, "int") != 0)
        refuse_name(reader, "weights.type", type);
    if (strcmp(strategy, "tensor") == 0)
        quant->scales = RP_SCALE_TENSOR;
    else if (strcmp(strategy, "channel") == 0)
        quant->scales = RP_SCALE_CHANNEL;
    else if (strcmp(strategy, "block") == 0 && quant->dtype == RP_DTYPE_FP8_E4M3 &&
             is_block_128(get(weights, "block_structure")))
        quant->scales = RP_SCALE_BLOCK_128;
    else
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": weights with scales per %.40s are not supported; per tensor, per channel and "
               "(float) per block of 128 x 128 are",
               *strategy ? strategy : "(none)");
}

/* Scales of groups and tensors become one scale a row: finer than the one, coarser than the
 * other. */
static void read_activations(struct reader *reader, const json_t *activations) {
    struct rp_model_quant *quant = &reader->config->quant;
    quant->input_ignored = activations && quant->dtype == RP_DTYPE_BLOCKS;
    if (quant->dtype == RP_DTYPE_BLOCKS) /* inputs of 4-bit weights stay bf16, which is finer */
        return;
    quant->input = activations ? RP_INPUT_QUANTIZED : RP_INPUT_PLAIN;
    if (!activations)
        return;
    const char *type = get_text(reader, activations, "type");
    const json_t *bits = get(activations, "num_bits");
    if (!json_is_integer(bits) || json_integer_value(bits) != 8 ||
        strcmp(type, quant->dtype == RP_DTYPE_INT8 ? "int" : "float") != 0)
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": input_activations must have 8 bits and the type of the weights");
    if (!get_bool(reader, activations, "symmetric", true))
        refuse(reader, RP_STATUS_UNSUPPORTED,
               ": asymmetric input_activations are not supported, symmetric ones are");
    const json_t *dynamic = get(activations, "dynamic");
    quant->static_input = !json_is_true(dynamic);
    if (dynamic && !json_is_boolean(dynamic))
        refuse(reader, RP_STATUS_UNSUPPORTED, ": input_activations.dynamic must be true or false");
}

/* The layout that the format's name implies must be that of the weights' description. */
static void check_format(struct reader *reader, const char *key, const char *format) {
    static const struct {
        const char *name;
        enum rp_quant_layout layout;
    } formats[] = {{"float-quantized", RP_QUANT_8_BITS},
                   {"int-quantized", RP_QUANT_8_BITS},
                   {"naive-quantized", RP_QUANT_8_BITS},
                   {"pack-quantized", RP_QUANT_PACKED},
                   {"nvfp4-pack-quantized", RP_QUANT_NVFP4_PACKED},
                   {"mxfp4-pack-quantized", RP_QUANT_MXFP4_PACKED}};
    if (!*format)
        return;
    for (size_t i = 0; i < RP_ARRAY_COUNT(formats); i++)
        if (strcmp(format, formats[i].name) == 0) {
            if (formats[i].layout != reader->config->quant.layout)
                refuse(reader, RP_STATUS_UNSUPPORTED,
                       ".%s \"%s\" is not supported for weights of this type and number of bits",
                       key, format);
            return;
        }
    refuse_name(reader, key, format);
}

static void read_compressed(struct reader *reader, const json_t *object) {
    const char *format = get_text(reader, object, "format");
    const json_t *groups = get(object, "config_groups");
    const char *sparsity = get_text(reader, get(object, "sparsity_config"), "format");
    if (*sparsity && strcmp(sparsity, "dense") != 0)
        refuse_name(reader, "sparsity_config.format", sparsity);
    if (!json_is_object(groups) || json_object_size(groups) != 1) {
        refuse(reader, RP_STATUS_UNSUPPORTED, ".config_groups must hold one group, not %zu",
               json_object_size(groups));
        return;
    }
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)groups));
    if (!json_is_object(group) || !json_is_object(get(group, "weights"))) {
        refuse(reader, RP_STATUS_FORMAT, ".config_groups: the group has no weights");
        return;
    }
    if (get(group, "output_activations"))
        refuse(reader, RP_STATUS_UNSUPPORTED, ": output_activations are not supported");
    read_weights(reader, get(group, "weights"));
    check_format(reader, "format", format);
    check_format(reader, "config_groups.format", get_text(reader, group, "format"));
    read_activations(reader, get(group, "input_activations"));
    read_modules(reader, get(group, "targets"), get(object, "ignore"), true);
}

/* ---- fp8 and ModelOpt ----------------------------------------------------------------------- */

static void read_fp8(struct reader *reader, const json_t *object) {
    struct rp_model_quant *quant = &reader->config->quant;
    const json_t *block = get(object, "weight_block_size");
    const char *scheme = get_text(reader, object, "activation_scheme");
    const char *format = get_text(reader, object, "fmt");
    const json_t *ignore = get(object, "modules_to_not_convert");
    if (*format && strcmp(format, "e4m3") != 0)
        refuse_name(reader, "fmt", format);
    if (block && !is_block_128(block))
        refuse(reader, RP_STATUS_UNSUPPORTED, ".weight_block_size must be [128, 128]");
    if (*scheme && strcmp(scheme, "dynamic") != 0 && strcmp(scheme, "static") != 0)
        refuse_name(reader, "activation_scheme", scheme);
    quant->dtype = RP_DTYPE_FP8_E4M3;
    quant->scales = block ? RP_SCALE_BLOCK_128 : RP_SCALE_TENSOR;
    quant->scale_inv = block != NULL;
    quant->input = RP_INPUT_QUANTIZED;
    quant->static_input = strcmp(scheme, "static") == 0;
    read_modules(reader, NULL, ignore ? ignore : get(object, "ignored_layers"), false);
}

/* quantization_config, or the object "quantization" of hf_quant_config.json. */
static void read_modelopt(struct reader *reader, const json_t *object) {
    struct rp_model_quant *quant = &reader->config->quant;
    const json_t *inner = get(object, "quantization"), *ignore;
    const json_t *from = json_is_object(inner) ? inner : object;
    const char *algorithm = get_text(reader, from, "quant_algo");
    if (strcmp(algorithm, "NVFP4") == 0) {
        const json_t *size = get(from, "group_size");
        if (size && json_integer_value(size) != 16)
            refuse(reader, RP_STATUS_UNSUPPORTED, ".group_size must be 16");
        quant->layout = RP_QUANT_NVFP4_OPT;
        quant->group = 16;
        quant->input_ignored = true;
        set_types(reader, RP_BLOCK_NVFP4);
    } else {
        if (strcmp(algorithm, "FP8") != 0)
            refuse_name(reader, "quant_algo", *algorithm ? algorithm : "(none)");
        quant->dtype = RP_DTYPE_FP8_E4M3;
        quant->scales = RP_SCALE_TENSOR;
        quant->input = RP_INPUT_QUANTIZED;
        quant->static_input = true;
    }
    ignore = get(from, "exclude_modules");
    read_modules(reader, NULL, ignore ? ignore : get(from, "ignore"), false);
}

int rp_quant_config_read(const json_t *object, const char *file, const char *key,
                         struct rp_model_config *config, struct rp_error *err) {
    struct reader reader = {file, key, config, err, RP_OK};
    memset(&config->quant, 0, sizeof config->quant);
    if (!json_is_object(object))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: %s must be an object", file, key);
    const char *method = get_text(&reader, object, "quant_method");
    if (get(object, "quantization") || strcmp(method, "modelopt") == 0)
        read_modelopt(&reader, object);
    else if (strcmp(method, "compressed-tensors") == 0)
        read_compressed(&reader, object);
    else if (strcmp(method, "fp8") == 0)
        read_fp8(&reader, object);
    else if (strcmp(method, "awq") == 0)
        read_awq(&reader, object);
    else if (strcmp(method, "gptq") == 0)
        read_gptq(&reader, object);
    else if (strcmp(method, "mxfp4") == 0)
        read_mxfp4(&reader, object);
    else
        refuse_name(&reader, "quant_method", *method ? method : "(none)");
    if (config->tied)
        config->quant.head = false; /* the embedding's rows, which have no scales */
    if (reader.status == RP_OK && config->quant.dtype == RP_DTYPE_BLOCKS)
        check_experts(&reader);
    if (reader.status == RP_OK)
        check_fused(&reader);
    return reader.status;
}
