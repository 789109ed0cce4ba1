/* config.json and generation_config.json, with the defaults that transformers gives to absent keys.
 * What we cannot run exactly is refused by name here; nothing is ignored that changes the output.
 */
#include "model/model.h"
#include "model/quant_config.h"
#include "text/json_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_FILE            "config.json"
#define GENERATION_CONFIG_FILE "generation_config.json"
#define MODELOPT_FILE          "hf_quant_config.json"

#define REQUIRED (-1.0)

/* Per family, what its class in transformers fixes or takes when config.json is silent. */
struct family_rules {
    enum rp_family family;
    const char *architecture, *model_type;
    uint32_t head_dim_default; /* 0: hidden_size / num_attention_heads */
    uint32_t window_default;   /* sliding_window when the key is absent */
    bool qkv_bias_always, qk_norm;
    bool reads_attention_bias, reads_mlp_bias; /* others have no such weights */
    bool gemma; /* norms, caps, scales and the tied head of Gemma 2 */
};
static const struct family_rules families[] = {
    {RP_FAMILY_LLAMA, "LlamaForCausalLM", "llama", 0, 0, false, false, true, true, false},
    {RP_FAMILY_MISTRAL, "MistralForCausalLM", "mistral", 0, 4096, false, false, false, false,
     false},
    {RP_FAMILY_QWEN2, "Qwen2ForCausalLM", "qwen2", 0, 4096, true, false, false, false, false},
    {RP_FAMILY_QWEN3, "Qwen3ForCausalLM", "qwen3", 128, 4096, false, true, true, false, false},
    {RP_FAMILY_GEMMA2, "Gemma2ForCausalLM", "gemma2", 256, 4096, false, false, true, false, true},
};

/* Reads keys of one object. The first failure sticks in `status`; after it every call does nothing.
 */
struct reader {
    const char *file;
    const json_t *object;
    struct rp_error *err;
    int status;
};

/* NULL also when the key is null: transformers treats both as "not set". */
static const json_t *get(const struct reader *reader, const char *key) {
    const json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

static void refuse(struct reader *reader, enum rp_status status, const char *key,
                   const char *message) {
    if (reader->status == RP_OK)
        reader->status = rp_error_set(reader->err, status, "%s: %s %s", reader->file, key, message);
}

/* The value of a failed read is `min`, so that nobody divides by a zero while errors stick. */
static uint32_t read_uint_value(struct reader *reader, const json_t *value, const char *key,
                                uint32_t min, uint32_t max) {
    char message[96];
    if (!json_is_integer(value)) {
        refuse(reader, RP_STATUS_FORMAT, key, "must be an integer");
        return min;
    }
    json_int_t number = json_integer_value(value);
    if (number < min || number > max) {
        snprintf(message, sizeof message,
                 "is %" JSON_INTEGER_FORMAT ", must be %" PRIu32 " to %" PRIu32, number, min, max);
        refuse(reader, RP_STATUS_RANGE, key, message);
        return min;
    }
    return (uint32_t)number;
}

/* fallback REQUIRED: the key must be there. */
static uint32_t read_uint(struct reader *reader, const char *key, double fallback, uint32_t min,
                          uint32_t max) {
    const json_t *value = get(reader, key);
    if (value)
        return read_uint_value(reader, value, key, min, max);
    if (fallback == REQUIRED) {
        refuse(reader, RP_STATUS_FORMAT, key, "is missing");
        return min;
    }
    return (uint32_t)fallback;
}

/* min_exclusive: min itself is refused as well. */
static double read_double(struct reader *reader, const char *key, double fallback, double min,
                          bool min_exclusive, double max) {
    char message[96];
    const json_t *value = get(reader, key);
    if (!value) {
        if (fallback == REQUIRED)
            refuse(reader, RP_STATUS_FORMAT, key, "is missing");
        return fallback;
    }
    if (!json_is_number(value)) {
        refuse(reader, RP_STATUS_FORMAT, key, "must be a number");
        return fallback;
    }
    double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max || (min_exclusive && number == min)) {
        snprintf(message, sizeof message, "is %g, must be %s %g and at most %g", number,
                 min_exclusive ? "above" : "at least", min, max);
        refuse(reader, RP_STATUS_RANGE, key, message);
        return fallback;
    }
    return number;
}

static bool read_bool(struct reader *reader, const char *key, bool fallback) {
    const json_t *value = get(reader, key);
    if (value && !json_is_boolean(value))
        refuse(reader, RP_STATUS_FORMAT, key, "must be true or false");
    return value ? json_is_true(value) : fallback;
}

/* NULL when absent. */
static const char *read_string(struct reader *reader, const char *key) {
    const json_t *value = get(reader, key);
    if (value && !json_is_string(value))
        refuse(reader, RP_STATUS_FORMAT, key, "must be a string");
    return json_string_value(value);
}

/* "<key> is "<text>", supported: <list>" */
static void refuse_name(struct reader *reader, const char *key, const char *text,
                        const char *supported) {
    char message[320], shown[80];
    snprintf(message, sizeof message, "is \"%s\", supported: %s",
             rp_text_for_message(shown, sizeof shown, text), supported);
    refuse(reader, RP_STATUS_UNSUPPORTED, key, message);
}

static const struct family_rules *read_family(struct reader *reader) {
    static const char supported[] = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
                                    "Qwen3ForCausalLM, Gemma2ForCausalLM";
    const json_t *list = get(reader, "architectures");
    const json_t *first = json_is_array(list) ? json_array_get(list, 0) : NULL;
    if (list && (!json_is_array(list) || (json_array_size(list) > 0 && !json_is_string(first)))) {
        refuse(reader, RP_STATUS_FORMAT, "architectures", "must be a list of strings");
        return NULL;
    }
    const char *name = json_string_value(first), *type = read_string(reader, "model_type");
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        if (name ? strcmp(name, families[i].architecture) == 0
                 : type && strcmp(type, families[i].model_type) == 0)
            return &families[i];
    if (name)
        refuse_name(reader, "architectures[0]", name, supported);
    else if (type)
        refuse_name(reader, "model_type", type, "llama, mistral, qwen2, qwen3, gemma2");
    else
        refuse(reader, RP_STATUS_FORMAT, "architectures", "is missing");
    return NULL;
}

static void read_sizes(struct reader *reader, const struct family_rules *rules,
                       struct rp_model_config *config) {
    char message[96];
    config->hidden = read_uint(reader, "hidden_size", REQUIRED, 1, 1u << 18);
    config->intermediate = read_uint(reader, "intermediate_size", REQUIRED, 1, 1u << 20);
    config->layers = read_uint(reader, "num_hidden_layers", REQUIRED, 1, RP_LAYERS_MAX);
    config->heads = read_uint(reader, "num_attention_heads", REQUIRED, 1, 1024);
    config->kv_heads = read_uint(reader, "num_key_value_heads", config->heads, 1, 1024);
    config->vocab = read_uint(reader, "vocab_size", REQUIRED, 1, 1u << 24);
    /* 2048 is LlamaConfig's; the other classes' defaults are larger than their models. */
    config->max_position = read_uint(reader, "max_position_embeddings", 2048, 1, 1u << 24);
    if (config->heads % config->kv_heads != 0) {
        snprintf(message, sizeof message, "is %u, must divide num_attention_heads %u",
                 config->kv_heads, config->heads);
        refuse(reader, RP_STATUS_RANGE, "num_key_value_heads", message);
    }
    uint32_t fallback = rules->head_dim_default;
    if (!get(reader, "head_dim") && fallback == 0) {
        fallback = config->hidden / config->heads;
        if (fallback * config->heads != config->hidden || fallback > 512) {
            snprintf(message, sizeof message,
                     "is %u, must divide hidden_size %u into heads of at most 512", config->heads,
                     config->hidden);
            refuse(reader, RP_STATUS_RANGE, "num_attention_heads", message);
        }
    }
    config->head_dim = read_uint(reader, "head_dim", fallback, 1, 512);
    if (config->head_dim % 2 != 0) {
        snprintf(message, sizeof message, "is %u, must be even", config->head_dim);
        refuse(reader, RP_STATUS_RANGE, "head_dim", message);
    }
}

static void read_biases(struct reader *reader, const struct family_rules *rules,
                        struct rp_model_config *config) {
    bool attention_bias = read_bool(reader, "attention_bias", false);
    bool mlp_bias = read_bool(reader, "mlp_bias", false);
    if (attention_bias && !rules->reads_attention_bias && !rules->qkv_bias_always)
        refuse(reader, RP_STATUS_UNSUPPORTED, "attention_bias", "is not supported in this family");
    if (mlp_bias && !rules->reads_mlp_bias)
        refuse(reader, RP_STATUS_UNSUPPORTED, "mlp_bias", "is not supported in this family");
    config->qkv_bias = rules->qkv_bias_always || attention_bias;
    /* Qwen2 has a bias on q, k, v and none on o, whatever the key says. */
    config->o_bias = !rules->qkv_bias_always && attention_bias;
    config->mlp_bias = mlp_bias;
    config->qk_norm = rules->qk_norm;
}

static void read_activation(struct reader *reader, const struct family_rules *rules,
                            struct rp_model_config *config) {
    /* Gemma's files have both keys; its class reads the second. */
    const char *key = rules->gemma ? "hidden_activation" : "hidden_act";
    const char *name = read_string(reader, key);
    if (!name)
        name = rules->gemma ? "gelu_pytorch_tanh" : "silu";
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        config->activation = RP_ACTIVATION_SILU;
    else if (strcmp(name, "gelu_pytorch_tanh") == 0)
        config->activation = RP_ACTIVATION_GELU_TANH;
    else
        refuse_name(reader, key, name, "silu, gelu_pytorch_tanh");
}

/* A cap that is null is off. */
static float read_cap(struct reader *reader, const char *key, double fallback) {
    bool off = json_is_null(json_object_get(reader->object, key));
    return off ? 0.0f : (float)read_double(reader, key, fallback, 0, true, 1e6);
}

static void read_gemma(struct reader *reader, const struct family_rules *rules,
                       struct rp_model_config *config) {
    if (!rules->gemma)
        return;
    config->norm_offset = 1.0f;
    config->post_norms = config->embed_scaled = true;
    config->attention_cap = read_cap(reader, "attn_logit_softcapping", 50);
    config->logit_cap = read_cap(reader, "final_logit_softcapping", 30);
    config->query_scalar = read_double(reader, "query_pre_attn_scalar", 256, 0, true, 1e6);
    if (read_bool(reader, "use_bidirectional_attention", false))
        refuse(reader, RP_STATUS_UNSUPPORTED, "use_bidirectional_attention", "must be false");
}

static void set_full(struct rp_model_config *config, uint32_t layer, bool full) {
    uint32_t bit = 1u << layer % 32, *word = &config->full_layers[layer / 32];
    *word = full ? *word | bit : *word & ~bit;
}

/* layer_types, where present, has the last word on which layers have the window. */
static void read_layer_types(struct reader *reader, struct rp_model_config *config) {
    char key[32], message[64];
    const json_t *types = get(reader, "layer_types");
    if (!types || reader->status != RP_OK)
        return;
    if (!json_is_array(types) || json_array_size(types) != config->layers) {
        snprintf(message, sizeof message, "must be a list of num_hidden_layers %u strings",
                 config->layers);
        refuse(reader, RP_STATUS_FORMAT, "layer_types", message);
        return;
    }
    bool any = false;
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        snprintf(key, sizeof key, "layer_types[%u]", i);
        if (!sliding && (!type || strcmp(type, "full_attention") != 0))
            refuse_name(reader, key, type ? type : "", "full_attention, sliding_attention");
        set_full(config, i, !sliding);
        any = any || sliding;
    }
    if (any && config->window == 0)
        refuse(reader, RP_STATUS_UNSUPPORTED, "layer_types",
               "has sliding_attention, but the configuration gives no window");
}

static void read_window(struct reader *reader, const struct family_rules *rules,
                        struct rp_model_config *config) {
    bool qwen = config->family == RP_FAMILY_QWEN2 || config->family == RP_FAMILY_QWEN3;
    bool present = json_object_get(reader->object, "sliding_window") != NULL;
    uint32_t begin = 0;
    config->window = 0;
    /* LlamaForCausalLM has no window, whatever the key says. */
    if (config->family == RP_FAMILY_MISTRAL || rules->gemma ||
        (qwen && read_bool(reader, "use_sliding_window", false)))
        config->window =
            read_uint(reader, "sliding_window", present ? 0 : rules->window_default, 1, 1u << 24);
    if (qwen && config->window)
        begin = RP_MIN(read_uint(reader, "max_window_layers", 28, 0, 1u << 16), config->layers);
    for (uint32_t i = 0; i < config->layers; i++) /* Gemma 2: every second one, from the first */
        set_full(config, i, i < begin || (rules->gemma && i % 2 != 0));
    read_layer_types(reader, config);
    bool any = false;
    for (uint32_t i = 0; i < config->layers; i++)
        any = any || rp_model_window(config, i) != 0;
    if (!any)
        config->window = 0;
    if (config->window == 0)
        memset(config->full_layers, 0, sizeof config->full_layers);
}

/* `scaling` is rope_scaling, or the newer rope_parameters, which holds rope_theta as well. */
static void read_rope_scaling(struct reader *scaling, struct rp_model_config *config) {
    const char *type = read_string(scaling, "rope_type");
    if (!type)
        type = read_string(scaling, "type");
    if (!type || strcmp(type, "default") == 0) {
        config->rope = RP_ROPE_DEFAULT;
    } else if (strcmp(type, "linear") == 0) {
        config->rope = RP_ROPE_LINEAR;
        config->rope_factor = read_double(scaling, "factor", REQUIRED, 0, true, 1e6);
    } else if (strcmp(type, "llama3") == 0) {
        config->rope = RP_ROPE_LLAMA3;
        config->rope_factor = read_double(scaling, "factor", REQUIRED, 0, true, 1e6);
        config->rope_low_freq_factor =
            read_double(scaling, "low_freq_factor", REQUIRED, 0, true, 1e6);
        config->rope_high_freq_factor =
            read_double(scaling, "high_freq_factor", REQUIRED, 0, true, 1e6);
        config->rope_original_max_position =
            read_uint(scaling, "original_max_position_embeddings", REQUIRED, 1, 1u << 24);
        if (config->rope_high_freq_factor <= config->rope_low_freq_factor)
            refuse(scaling, RP_STATUS_RANGE, "high_freq_factor", "must be above low_freq_factor");
    } else {
        refuse_name(scaling, "rope_type", type, "default, linear, llama3");
    }
}

static void read_rope(struct reader *reader, struct rp_model_config *config) {
    config->rope = RP_ROPE_DEFAULT;
    config->rope_factor = config->rope_low_freq_factor = config->rope_high_freq_factor = 1;
    config->rope_theta = read_double(reader, "rope_theta", 10000.0, 0, true, 1e12);
    if (read_double(reader, "partial_rotary_factor", 1, 0, true, 1) != 1)
        refuse(reader, RP_STATUS_UNSUPPORTED, "partial_rotary_factor", "must be 1");
    const char *key = get(reader, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *object = get(reader, key);
    if (!object || reader->status != RP_OK)
        return;
    if (!json_is_object(object)) {
        refuse(reader, RP_STATUS_FORMAT, key, "must be an object");
        return;
    }
    const char *inner_key;
    json_t *inner;
    json_object_foreach((json_t *)object, inner_key, inner) {
        if (json_is_object(inner))
            refuse(reader, RP_STATUS_UNSUPPORTED, key, "per layer type is not supported");
    }
    char file[64];
    snprintf(file, sizeof file, "%s: %s", reader->file, key);
    struct reader scaling = {file, object, reader->err, reader->status};
    config->rope_theta = read_double(&scaling, "rope_theta", config->rope_theta, 0, true, 1e12);
    if (read_double(&scaling, "partial_rotary_factor", 1, 0, true, 1) != 1)
        refuse(&scaling, RP_STATUS_UNSUPPORTED, "partial_rotary_factor", "must be 1");
    read_rope_scaling(&scaling, config);
    reader->status = scaling.status;
}

static void read_dtype(struct reader *reader, struct rp_model_config *config) {
    const char *key = get(reader, "dtype") ? "dtype" : "torch_dtype";
    const char *name = read_string(reader, key);
    if (!name || strcmp(name, "float32") == 0)
        config->file_dtype = RP_DTYPE_F32;
    else if (strcmp(name, "bfloat16") == 0)
        config->file_dtype = RP_DTYPE_BF16;
    else if (strcmp(name, "float16") == 0)
        config->file_dtype = RP_DTYPE_F16;
    else
        refuse_name(reader, key, name, "float32, bfloat16, float16");
}

/* Adds the ids of eos_token_id (an integer or a list) that are not there yet. */
static void read_eos_ids(struct reader *reader, struct rp_model_config *config) {
    const json_t *value = get(reader, "eos_token_id");
    size_t count = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    for (size_t i = 0; i < count && reader->status == RP_OK; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        uint32_t id = read_uint_value(reader, item, "eos_token_id", 0, config->vocab - 1), at = 0;
        while (at < config->eos_count && config->eos_ids[at] != id)
            at++;
        if (at == RP_EOS_IDS_MAX)
            refuse(reader, RP_STATUS_RANGE, "eos_token_id", "has more than 16 different ids");
        else if (at == config->eos_count && reader->status == RP_OK)
            config->eos_ids[config->eos_count++] = id;
    }
}

static void read_bos_id(struct reader *reader, struct rp_model_config *config) {
    if (config->bos_id == RP_ID_NONE && get(reader, "bos_token_id"))
        config->bos_id = read_uint(reader, "bos_token_id", REQUIRED, 0, config->vocab - 1);
}

/* "compression_config" is what compressed-tensors called it first. */
static void read_quantization(struct reader *reader, struct rp_model_config *config) {
    const char *key =
        get(reader, "quantization_config") ? "quantization_config" : "compression_config";
    const json_t *object = get(reader, key);
    if (object && reader->status == RP_OK)
        reader->status = rp_quant_config_read(object, CONFIG_FILE, key, config, reader->err);
}

static int read_config(const json_t *root, struct rp_model_config *config, struct rp_error *err) {
    struct reader reader = {CONFIG_FILE, root, err, RP_OK};
    if (!json_is_object(root))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: must be an object", CONFIG_FILE);
    const struct family_rules *rules = read_family(&reader);
    if (!rules)
        return reader.status;
    config->family = rules->family;
    snprintf(config->architecture, sizeof config->architecture, "%s", rules->architecture);
    read_sizes(&reader, rules, config);
    config->norm_eps = (float)read_double(&reader, "rms_norm_eps", 1e-6, 0, false, 1);
    config->tied = read_bool(&reader, "tie_word_embeddings", rules->gemma);
    read_activation(&reader, rules, config);
    read_gemma(&reader, rules, config);
    read_biases(&reader, rules, config);
    read_window(&reader, rules, config);
    read_rope(&reader, config);
    read_dtype(&reader, config);
    read_eos_ids(&reader, config);
    read_bos_id(&reader, config);
    read_quantization(&reader, config);
    return reader.status;
}

static int read_generation_config(const json_t *root, struct rp_model_config *config,
                                  struct rp_error *err) {
    struct reader reader = {GENERATION_CONFIG_FILE, root, err, RP_OK};
    if (!json_is_object(root))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: must be an object", GENERATION_CONFIG_FILE);
    read_eos_ids(&reader, config);
    read_bos_id(&reader, config);
    /* 100 and 2^24 only keep out nonsense; the request's own limits are the server's. */
    if (get(&reader, "temperature"))
        config->default_temperature = (float)read_double(&reader, "temperature", 1, 0, false, 100);
    if (get(&reader, "top_p"))
        config->default_top_p = (float)read_double(&reader, "top_p", 1, 0, true, 1);
    const json_t *top_k = get(&reader, "top_k");
    if (json_is_integer(top_k) && json_integer_value(top_k) == -1)
        config->default_top_k = 0; /* both spell "off" */
    else
        config->default_top_k = read_uint(&reader, "top_k", 0, 0, 1u << 24);
    return reader.status;
}

int rp_model_config_load(const char *dir, struct rp_model_config *out_config,
                         struct rp_error *err) {
    struct rp_model_config config;
    json_t *root = NULL;
    memset(&config, 0, sizeof config);
    config.bos_id = RP_ID_NONE;
    config.default_temperature = config.default_top_p = NAN;
    int status = rp_json_file_load(dir, CONFIG_FILE, &root, err);
    if (status == RP_STATUS_NOT_FOUND)
        rp_error_hint(err, "give the directory of a Hugging Face model: config.json, "
                           "model.safetensors, tokenizer.json");
    if (status == RP_OK)
        status = read_config(root, &config, err);
    json_decref(root);
    if (status != RP_OK)
        return status;

    root = NULL;
    if (config.quant.scales == RP_SCALE_NONE) { /* ModelOpt may say it in a file of its own */
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
