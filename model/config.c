/* config.json and generation_config.json, with the defaults that transformers gives to absent keys.
 * What we cannot run exactly is refused by name here; nothing is ignored that changes the output.
 */
#include "model/config_reader.h"
#include "model/family.h"
#include "model/gguf_model.h"
#include "model/quant_config.h"
#include "text/gguf.h"
#include "text/json_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_FILE            "config.json"
#define GENERATION_CONFIG_FILE "generation_config.json"
#define MODELOPT_FILE          "hf_quant_config.json"

static const struct rp_model_family *const families[RP_FAMILY_COUNT] = {
#define X(id, name, title) [RP_FAMILY_##id] = &rp_family_##name,
    RP_FAMILY_MAP(X)
#undef X
};

const struct rp_model_family *rp_model_family(enum rp_family id) {
    RP_ASSERT((size_t)id < RP_ARRAY_COUNT(families) && families[id]->id == id);
    return families[id];
}

static bool is_type_of(const struct rp_model_family *family, const char *model_type) {
    return strcmp(model_type, family->model_type) == 0 ||
           (family->other_type && strcmp(model_type, family->other_type) == 0);
}

const struct rp_model_family *rp_model_family_find(const char *architecture,
                                                   const char *model_type) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        if (architecture ? strcmp(architecture, families[i]->architecture) == 0
                         : model_type && is_type_of(families[i], model_type))
            return families[i];
    return NULL;
}

const char *rp_family_embed_name(const struct rp_model_family *family) {
    return family->embed_name ? family->embed_name : "model.embed_tokens.weight";
}

const char *rp_family_head_name(const struct rp_model_family *family) {
    return family->head_name ? family->head_name : "lm_head.weight";
}

const char *rp_family_final_norm_name(const struct rp_model_family *family) {
    return family->final_norm_name ? family->final_norm_name : "model.norm.weight";
}

#define FAMILIES_MAX 640

/* "llama, mistral, ...": by model_type, which is shorter than the architecture. */
static const char *list_families(char out[FAMILIES_MAX]) {
    size_t len = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++) {
        const char *other = families[i]->other_type;
        len += (size_t)snprintf(out + len, FAMILIES_MAX - len, "%s%s%s%s", i ? ", " : "",
                                families[i]->model_type, other ? ", " : "", other ? other : "");
        RP_ASSERT_CMP(len, <, FAMILIES_MAX);
    }
    return out;
}

static const struct rp_model_family *read_family(struct rp_config_reader *reader) {
    char supported[FAMILIES_MAX];
    const json_t *list = rp_config_get(reader, "architectures");
    const json_t *first = json_is_array(list) ? json_array_get(list, 0) : NULL;
    if (list && (!json_is_array(list) || (json_array_size(list) > 0 && !json_is_string(first)))) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, "architectures", "must be a list of strings");
        return NULL;
    }
    const char *name = json_string_value(first), *type = rp_config_string(reader, "model_type");
    const struct rp_model_family *family = rp_model_family_find(name, type);
    /* Granite's early files name LlamaForCausalLM, but multiply embeddings, residuals and logits:
     * transformers goes by model_type. */
    bool known_type = !type || rp_model_family_find(NULL, type);
    bool one_family = family && (!name || !type || rp_model_family_find(NULL, type) == family);
    if (family && known_type && one_family)
        return family;
    if (name && family && known_type)
        rp_config_refuse_name(reader, "model_type", type, family->model_type);
    else if (name && !family)
        rp_config_refuse_name(reader, "architectures[0]", name, list_families(supported));
    else if (type)
        rp_config_refuse_name(reader, "model_type", type, list_families(supported));
    else
        rp_config_refuse(reader, RP_STATUS_FORMAT, "architectures", "is missing");
    return NULL;
}

static double or_required(uint32_t fallback) {
    return fallback ? (double)fallback : RP_CONFIG_REQUIRED;
}

static void read_sizes(struct rp_config_reader *reader, const struct rp_model_family *family,
                       struct rp_model_config *config) {
    char message[96];
    config->hidden = rp_config_uint(reader, "hidden_size", RP_CONFIG_REQUIRED, 1, 1u << 18);
    const char *other = family->intermediate_key;
    config->intermediate =
        rp_config_uint(reader, other && rp_config_get(reader, other) ? other : "intermediate_size",
                       or_required(family->intermediate_default), 1, 1u << 20);
    config->layers =
        rp_config_uint(reader, "num_hidden_layers", RP_CONFIG_REQUIRED, 1, RP_LAYERS_MAX);
    config->heads =
        rp_config_uint(reader, "num_attention_heads", or_required(family->heads_default), 1, 1024);
    config->kv_heads = rp_config_uint(
        reader, "num_key_value_heads",
        family->kv_heads_default ? family->kv_heads_default : config->heads, 1, 1024);
    config->vocab =
        rp_config_uint(reader, "vocab_size", or_required(family->vocab_default), 1, 1u << 24);
    /* 2048 is LlamaConfig's; most classes' defaults are larger than their models. */
    config->max_position = rp_config_uint(
        reader, "max_position_embeddings",
        family->max_position_default ? family->max_position_default : 2048, 1, 1u << 24);
    if (config->heads % config->kv_heads != 0) {
        snprintf(message, sizeof message, "is %u, must divide num_attention_heads %u",
                 config->kv_heads, config->heads);
        rp_config_refuse(reader, RP_STATUS_RANGE, "num_key_value_heads", message);
    }
    uint32_t fallback = family->head_dim_default;
    if (!rp_config_get(reader, "head_dim") && fallback == 0) {
        fallback = config->hidden / config->heads;
        if (fallback * config->heads != config->hidden || fallback > 512) {
            snprintf(message, sizeof message,
                     "is %u, must divide hidden_size %u into heads of at most 512", config->heads,
                     config->hidden);
            rp_config_refuse(reader, RP_STATUS_RANGE, "num_attention_heads", message);
        }
    }
    config->head_dim = rp_config_uint(reader, "head_dim", fallback, 1, 512);
    if (config->head_dim % 2 != 0) {
        snprintf(message, sizeof message, "is %u, must be even", config->head_dim);
        rp_config_refuse(reader, RP_STATUS_RANGE, "head_dim", message);
    }
}

void rp_config_attention_bias(struct rp_config_reader *reader, struct rp_model_config *config) {
    config->qkv_bias = config->o_bias = rp_config_bool(reader, "attention_bias", false);
}

void rp_config_no_bias(struct rp_config_reader *reader, const char *key) {
    if (rp_config_bool(reader, key, false))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, "is not supported in this family");
}

void rp_config_activation(struct rp_config_reader *reader, const char *key, const char *fallback,
                          struct rp_model_config *config) {
    const char *name = rp_config_string(reader, key);
    if (!name)
        name = fallback;
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        config->activation = RP_ACTIVATION_SILU;
    else if (strcmp(name, "gelu_pytorch_tanh") == 0)
        config->activation = RP_ACTIVATION_GELU_TANH;
    else
        rp_config_refuse_name(reader, key, name, "silu, gelu_pytorch_tanh");
}

uint32_t rp_config_window(struct rp_config_reader *reader, uint32_t fallback) {
    bool present = rp_config_has(reader, "sliding_window"); /* null: no window */
    return rp_config_uint(reader, "sliding_window", present ? 0 : fallback, 1, 1u << 24);
}

void rp_config_set_full(struct rp_model_config *config, uint32_t layer, bool full) {
    uint32_t bit = 1u << layer % 32, *word = &config->full_layers[layer / 32];
    *word = full ? *word | bit : *word & ~bit;
}

void rp_config_qwen_window(struct rp_config_reader *reader, struct rp_model_config *config) {
    if (!rp_config_bool(reader, "use_sliding_window", false))
        return;
    config->window = rp_config_window(reader, 4096);
    if (config->window == 0)
        return;
    uint32_t begin = rp_config_uint(reader, "max_window_layers", 28, 0, 1u << 16);
    for (uint32_t i = 0; i < RP_MIN(begin, config->layers); i++)
        rp_config_set_full(config, i, true);
}

float rp_config_cap(struct rp_config_reader *reader, const char *key, double fallback) {
    bool off = rp_config_has(reader, key) && !rp_config_get(reader, key);
    return off || (fallback == 0 && !rp_config_has(reader, key))
               ? 0.0f
               : (float)rp_config_double(reader, key, fallback, 0, true, 1e6);
}

void rp_config_window_pattern(struct rp_config_reader *reader, const char *key, uint32_t fallback,
                              struct rp_model_config *config) {
    uint32_t every = key ? rp_config_uint(reader, key, fallback, 1, 1u << 16) : fallback;
    if (config->window == 0)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, "sliding_window",
                         "must be a number in this family");
    for (uint32_t i = every - 1; i < config->layers; i += every)
        rp_config_set_full(config, i, true);
}

void rp_config_layer_types(struct rp_config_reader *reader, const char *key,
                           struct rp_model_config *config) {
    char at[40], message[64];
    const json_t *types = rp_config_get(reader, key);
    if (!types || *reader->status != RP_OK)
        return;
    if (!json_is_array(types) || json_array_size(types) != config->layers) {
        snprintf(message, sizeof message, "must be a list of num_hidden_layers %u strings",
                 config->layers);
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, message);
        return;
    }
    bool any = false;
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (rp_model_has_state(config, i)) /* the family has checked its name */
            continue;
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        bool full = type && (strcmp(type, "full_attention") == 0 ||
                             (strcmp(type, "attention") == 0 && config->window == 0));
        snprintf(at, sizeof at, "%s[%u]", key, i);
        if (!sliding && !full)
            rp_config_refuse_name(reader, at, type ? type : "",
                                  "full_attention, sliding_attention");
        rp_config_set_full(config, i, !sliding);
        any = any || sliding;
    }
    if (any && config->window == 0)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key,
                         "has sliding_attention, but the configuration gives no window");
}

/* Layers with a window, after the family has set its own rule: layer_types, where present, wins. */
static void read_windows(struct rp_config_reader *reader, struct rp_model_config *config) {
    rp_config_layer_types(reader, "layer_types", config);
    bool any = false;
    for (uint32_t i = 0; i < config->layers; i++)
        any = any || rp_model_window(config, i) != 0;
    if (!any)
        config->window = 0;
    if (config->window == 0)
        memset(config->full_layers, 0, sizeof config->full_layers);
}

static void read_dtype(struct rp_config_reader *reader, struct rp_model_config *config) {
    const char *key = rp_config_get(reader, "dtype") ? "dtype" : "torch_dtype";
    const char *name = rp_config_string(reader, key);
    if (!name || strcmp(name, "float32") == 0)
        config->file_dtype = RP_DTYPE_F32;
    else if (strcmp(name, "bfloat16") == 0)
        config->file_dtype = RP_DTYPE_BF16;
    else if (strcmp(name, "float16") == 0)
        config->file_dtype = RP_DTYPE_F16;
    else
        rp_config_refuse_name(reader, key, name, "float32, bfloat16, float16");
}

/* Adds the ids of eos_token_id (an integer or a list) that are not there yet. */
static void read_eos_ids(struct rp_config_reader *reader, struct rp_model_config *config) {
    const json_t *value = rp_config_get(reader, "eos_token_id");
    size_t count = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    for (size_t i = 0; i < count && *reader->status == RP_OK; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        uint32_t id = rp_config_uint_value(reader, item, "eos_token_id", 0, config->vocab - 1),
                 at = 0;
        while (at < config->eos_count && config->eos_ids[at] != id)
            at++;
        if (at == RP_EOS_IDS_MAX)
            rp_config_refuse(reader, RP_STATUS_RANGE, "eos_token_id",
                             "has more than 16 different ids");
        else if (at == config->eos_count && *reader->status == RP_OK)
            config->eos_ids[config->eos_count++] = id;
    }
}

static void read_bos_id(struct rp_config_reader *reader, struct rp_model_config *config) {
    if (config->bos_id == RP_ID_NONE && rp_config_get(reader, "bos_token_id"))
        config->bos_id =
            rp_config_uint(reader, "bos_token_id", RP_CONFIG_REQUIRED, 0, config->vocab - 1);
}

/* "compression_config" is what compressed-tensors called it first. */
static void read_quantization(struct rp_config_reader *reader, struct rp_model_config *config) {
    const char *key =
        rp_config_get(reader, "quantization_config") ? "quantization_config" : "compression_config";
    const json_t *object = rp_config_get(reader, key);
    if (object && *reader->status == RP_OK)
        *reader->status = rp_quant_config_read(object, CONFIG_FILE, key, config, reader->err);
}

/* Models with images, whose text part is served alone. */
static const struct {
    const char *architecture, *model_type, *text_type; /* text_type: where text_config has none */
} wrappers[] = {{"Gemma3ForConditionalGeneration", "gemma3", "gemma3_text"},
                {"Gemma4ForConditionalGeneration", "gemma4", "gemma4_text"},
                {"Mistral3ForConditionalGeneration", "mistral3", "mistral"},
                {"Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text"},
                {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text"}};

/* Index into wrappers, or -1. */
static int wrapper_of(const struct rp_config_reader *root) {
    const char *name =
        json_string_value(json_array_get(json_object_get(root->object, "architectures"), 0));
    const char *type = json_string_value(json_object_get(root->object, "model_type"));
    for (int i = 0; i < (int)RP_ARRAY_COUNT(wrappers); i++)
        if ((!name || strcmp(name, wrappers[i].architecture) == 0) && type &&
            strcmp(type, wrappers[i].model_type) == 0)
            return i;
    return -1;
}

/* Makes `reader` one of text_config, whose family is returned. */
static const struct rp_model_family *open_wrapped(struct rp_config_reader *reader, int wrapper) {
    const json_t *text = rp_config_get(reader, "text_config");
    char supported[FAMILIES_MAX];
    if (!json_is_object(text)) {
        rp_config_refuse(reader, RP_STATUS_FORMAT, "text_config", "must be an object");
        return NULL;
    }
    reader->object = text;
    reader->file = CONFIG_FILE ": text_config";
    const char *type = rp_config_string(reader, "model_type");
    if (!type)
        type = wrappers[wrapper].text_type;
    const struct rp_model_family *family = rp_model_family_find(NULL, type);
    if (!family)
        rp_config_refuse_name(reader, "model_type", type, list_families(supported));
    return family;
}

/* What may be in config.json beside text_config. */
static void read_outside(struct rp_config_reader *root, const struct rp_config_reader *text,
                         struct rp_model_config *config) {
    bool tied = rp_config_bool(root, "tie_word_embeddings", config->tied);
    if (rp_config_get(text, "tie_word_embeddings") && tied != config->tied)
        rp_config_refuse(root, RP_STATUS_FORMAT, "tie_word_embeddings",
                         "differs from that of text_config");
    config->tied = tied;
    if (!rp_config_get(text, "dtype") && !rp_config_get(text, "torch_dtype"))
        read_dtype(root, config);
    read_eos_ids(root, config);
    read_bos_id(root, config);
    if (config->quant.scales == RP_SCALE_NONE)
        read_quantization(root, config);
}

int rp_config_read(const json_t *root, const char *file, struct rp_model_config *config,
                   struct rp_error *err) {
    struct rp_config_keys keys = {.count = 0};
    int status = RP_OK;
    struct rp_config_reader reader = {file, root, err, &status, &keys};
    struct rp_config_reader outside = {file, root, err, &status, NULL};
    if (!json_is_object(root))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: must be an object", file);
    int wrapper = wrapper_of(&reader);
    const struct rp_model_family *family =
        wrapper >= 0 ? open_wrapped(&reader, wrapper) : read_family(&reader);
    if (!family)
        return status;
    config->family = family->id;
    config->wrapped = wrapper >= 0;
    snprintf(config->architecture, sizeof config->architecture, "%s", family->architecture);
    read_sizes(&reader, family, config);
    config->norm_eps = (float)rp_config_double(
        &reader, family->norm_eps_key ? family->norm_eps_key : "rms_norm_eps",
        family->norm_eps_default > 0 ? family->norm_eps_default : 1e-6, 0, false, 1);
    config->tied = rp_config_bool(&reader, "tie_word_embeddings", family->tied_default);
    if (!rp_config_bool(&reader, "is_causal", true))
        rp_config_refuse(&reader, RP_STATUS_UNSUPPORTED, "is_causal", "must be true");
    family->configure(&reader, config);
    read_windows(&reader, config);
    rp_config_rope(&reader, family, config);
    read_dtype(&reader, config);
    read_eos_ids(&reader, config);
    read_bos_id(&reader, config);
    read_quantization(&reader, config);
    rp_config_refuse_unread(&reader, family);
    if (config->wrapped)
        read_outside(&outside, &reader, config);
    return status;
}

static int read_generation_config(const json_t *root, struct rp_model_config *config,
                                  struct rp_error *err) {
    int status = RP_OK;
    struct rp_config_reader reader = {GENERATION_CONFIG_FILE, root, err, &status, NULL};
    if (!json_is_object(root))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: must be an object", GENERATION_CONFIG_FILE);
    read_eos_ids(&reader, config);
    read_bos_id(&reader, config);
    /* 100 and 2^24 only reject nonsense; the server enforces the limits of requests. */
    if (rp_config_get(&reader, "temperature"))
        config->default_temperature =
            (float)rp_config_double(&reader, "temperature", 1, 0, false, 100);
    if (rp_config_get(&reader, "top_p"))
        config->default_top_p = (float)rp_config_double(&reader, "top_p", 1, 0, true, 1);
    const json_t *top_k = rp_config_get(&reader, "top_k");
    if (json_is_integer(top_k) && json_integer_value(top_k) == -1)
        config->default_top_k = 0; /* both spell "off" */
    else
        config->default_top_k = rp_config_uint(&reader, "top_k", 0, 0, 1u << 24);
    return status;
}

int rp_model_config_load(const char *dir, struct rp_model_config *out_config,
                         struct rp_error *err) {
    struct rp_model_config config;
    json_t *root = NULL;
    if (rp_gguf_is_path(dir))
        return rp_gguf_model_config(dir, out_config, err);
    memset(&config, 0, sizeof config);
    config.bos_id = RP_ID_NONE;
    config.default_temperature = config.default_top_p = NAN;
    int status = rp_json_file_load(dir, CONFIG_FILE, &root, err);
    if (status == RP_STATUS_NOT_FOUND)
        rp_error_hint(err, "give the directory of a Hugging Face model: config.json, "
                           "model.safetensors, tokenizer.json");
    if (status == RP_OK)
        status = rp_config_read(root, CONFIG_FILE, &config, err);
    json_decref(root);
    if (status != RP_OK)
        return status;

    root = NULL;
    if (config.quant.scales == RP_SCALE_NONE) { /* ModelOpt may use a separate file */
        status = rp_json_file_load(dir, MODELOPT_FILE, &root, err);
        if (status == RP_OK)
            status = rp_quant_config_read(root, MODELOPT_FILE, "quantization", &config, err);
        else if (status == RP_STATUS_NOT_FOUND)
            status = RP_OK;
        json_decref(root);
        if (status != RP_OK)
            return status;
    }

    root = NULL;
    status = rp_json_file_load(dir, GENERATION_CONFIG_FILE, &root, err);
    if (status == RP_STATUS_NOT_FOUND)
        status = RP_OK; /* the file is optional */
    else if (status == RP_OK)
        status = read_generation_config(root, &config, err);
    json_decref(root);
    if (status == RP_OK)
        *out_config = config;
    return status;
}
