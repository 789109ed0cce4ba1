#include "model/gguf_model.h"

#include "model/config_reader.h"
#include "model/gguf_arch.h"
#include "model/weights_internal.h"
#include "text/gguf.h"
#include "text/json_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- metadata to config.json's keys ---------------------------------------------------------- */

struct source {
    struct rp_gguf gguf;
    const struct rp_gguf_arch *arch;
    json_t *root; /* what config.json would hold */
    struct rp_error *err;
    int status; /* the first failure; later calls do nothing */
    char key[160];
};

static const char *key_of(struct source *s, const char *name) {
    snprintf(s->key, sizeof s->key, "%s.%s", s->arch->name, name);
    return s->key;
}

static bool has(struct source *s, const char *name) {
    return rp_gguf_find(&s->gguf, key_of(s, name)) != NULL;
}

static void refuse(struct source *s, enum rp_status status, const char *name, const char *what) {
    if (s->status == RP_OK)
        s->status = rp_gguf_refuse(&s->gguf, status, key_of(s, name), what, s->err);
}

static void put(struct source *s, const char *key, json_t *value) {
    if (json_object_set_new(s->root, key, value) != 0 && s->status == RP_OK)
        s->status = rp_error_set(s->err, RP_STATUS_NO_MEMORY, "%s: out of memory", s->gguf.name);
}

/* An integer, or a list of equal ones for every layer; absent: `fallback`. */
static uint32_t integer(struct source *s, const char *name, uint32_t fallback) {
    uint32_t value = fallback, count;
    int32_t *list;
    const struct rp_gguf_key *key = rp_gguf_find(&s->gguf, key_of(s, name));
    if (s->status != RP_OK || !key)
        return fallback;
    if (key->type != RP_GGUF_ARRAY) {
        s->status = rp_gguf_u32(&s->gguf, s->key, &value, s->err);
        return value;
    }
    s->status = rp_gguf_ints(&s->gguf, s->key, &list, &count, s->err);
    if (s->status != RP_OK)
        return fallback;
    for (uint32_t i = 0; i < count; i++)
        if (list[i] != list[0] || list[i] < 0)
            refuse(s, RP_STATUS_UNSUPPORTED, name, "differs from layer to layer");
    value = count ? (uint32_t)list[0] : fallback;
    rp_free(list);
    return value;
}

static double number(struct source *s, const char *name, double fallback) {
    double value = fallback;
    if (s->status == RP_OK)
        s->status = rp_gguf_f64(&s->gguf, key_of(s, name), &value, s->err);
    if (s->status == RP_OK && !isfinite(value))
        refuse(s, RP_STATUS_RANGE, name, "must be finite");
    return s->status == RP_OK ? value : fallback;
}

/* Copies an integer that may be absent. */
static void copy_integer(struct source *s, const char *name, const char *key) {
    if (has(s, name))
        put(s, key, json_integer(integer(s, name, 0)));
}

static void copy_number(struct source *s, const char *name, const char *key) {
    if (has(s, name))
        put(s, key, json_real(number(s, name, 0)));
}

static bool text_is(struct rp_gguf_text text, const char *wanted) {
    return text.len == strlen(wanted) && memcmp(text.text, wanted, text.len) == 0;
}

static void find_arch(struct source *s) {
    struct rp_gguf_text name = {NULL, 0};
    char shown[64], safe[64], list[256];
    if (s->status == RP_OK)
        s->status = rp_gguf_string(&s->gguf, "general.architecture", &name, s->err);
    if (s->status != RP_OK)
        return;
    s->arch = rp_gguf_arch_find(name.text ? name.text : "", name.len);
    if (s->arch)
        return;
    snprintf(shown, sizeof shown, "%.*s", (int)RP_MIN(name.len, (size_t)48),
             name.text ? name.text : "");
    s->status = rp_error_set(s->err, RP_STATUS_UNSUPPORTED,
                             "%s: general.architecture is \"%s\", supported: %s", s->gguf.name,
                             rp_text_for_message(safe, sizeof safe, shown),
                             rp_gguf_arch_names(list, sizeof list));
}

/* Keys of the architecture that are read below, or change nothing. */
static const char *const known_keys[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "use_parallel_residual",
    "expert_count",
    "expert_used_count",
};

/* Zero and false mean that a model has no such thing. */
static bool is_off(const struct rp_gguf_key *key) {
    static const unsigned char zero[8];
    if (key->type == RP_GGUF_ARRAY || key->type == RP_GGUF_STRING)
        return false;
    size_t bytes = rp_gguf_type_bytes(key->type);
    return memcmp(key->value, zero, bytes) == 0;
}

/* `name`: after "ARCHITECTURE." */
static bool is_known(const struct rp_gguf_arch *arch, const char *name) {
    bool known = arch->layer_types && strcmp(name, "attention.sliding_window_pattern") == 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(known_keys) && !known; i++)
        known = strcmp(name, known_keys[i]) == 0;
    for (size_t i = 0; i < RP_GGUF_NUMBERS_MAX && arch->numbers[i].gguf && !known; i++)
        known = strcmp(name, arch->numbers[i].gguf) == 0;
    return known;
}

static void refuse_unknown_keys(struct source *s) {
    size_t prefix = strlen(s->arch->name);
    bool causal = true, parallel = false, rotates = true;
    for (uint32_t i = 0; i < s->gguf.key_count && s->status == RP_OK; i++) {
        const struct rp_gguf_key *key = &s->gguf.keys[i];
        bool known = strncmp(key->name, s->arch->name, prefix) != 0 || key->name[prefix] != '.' ||
                     is_known(s->arch, key->name + prefix + 1);
        char shown[96];
        if (!known && !is_off(key))
            refuse(s, RP_STATUS_UNSUPPORTED,
                   rp_text_for_message(shown, sizeof shown, key->name + prefix + 1),
                   "is not supported");
    }
    if (s->status == RP_OK)
        s->status = rp_gguf_bool(&s->gguf, key_of(s, "attention.causal"), &causal, s->err);
    if (s->status == RP_OK)
        s->status = rp_gguf_bool(&s->gguf, key_of(s, "use_parallel_residual"), &parallel, s->err);
    if (!causal)
        refuse(s, RP_STATUS_UNSUPPORTED, "attention.causal", "must be true");
    /* StableLM's layers show what they are by their tensors. */
    if (parallel && strcmp(s->arch->name, "stablelm") != 0)
        refuse(s, RP_STATUS_UNSUPPORTED, "use_parallel_residual", "must be false");
    /* Granite's files without RoPE. */
    if (s->status == RP_OK)
        s->status = rp_gguf_bool(&s->gguf, key_of(s, "rope.scaling.finetuned"), &rotates, s->err);
    if (!rotates && strcmp(s->arch->name, "granite") == 0)
        refuse(s, RP_STATUS_UNSUPPORTED, "rope.scaling.finetuned", "must be true");
    if (integer(s, "expert_count", 0) > 0)
        refuse(s, RP_STATUS_UNSUPPORTED, "expert_count", "must be 0: experts are not supported");
}

static void read_head_size(struct source *s) {
    uint32_t hidden = integer(s, "embedding_length", 0);
    uint32_t heads = integer(s, "attention.head_count", 0);
    uint32_t head = integer(s, "attention.key_length", heads ? hidden / heads : 0);
    if (integer(s, "attention.value_length", head) != head)
        refuse(s, RP_STATUS_UNSUPPORTED, "attention.value_length",
               "must be equal to attention.key_length");
    uint32_t rotated = integer(s, "rope.dimension_count", head);
    if (s->arch->partial && head) /* a quarter keeps the division from rounding down */
        put(s, "partial_rotary_factor",
            json_real(rotated == head ? 1 : ((double)rotated + 0.25) / head));
    else if (rotated != head)
        refuse(s, RP_STATUS_UNSUPPORTED, "rope.dimension_count",
               "must be the size of a head: partial rotary embeddings are not supported");
    if (has(s, "attention.key_length"))
        put(s, "head_dim", json_integer(head));
    if (s->arch->gemma && heads)
        put(s, "query_pre_attn_scalar",
            json_integer(integer(s, "block_count", 0) == s->arch->large_layers ? hidden / heads
                                                                               : head));
}

/* rope_factors_long.weight, rope_factors_short.weight: Phi-3's divisors, one for each pair. */
static json_t *divisors(struct source *s, const char *name) {
    const struct rp_gguf_tensor *tensor = rp_gguf_find_tensor(&s->gguf, name);
    float values[RP_ROPE_PAIRS_MAX];
    json_t *list = json_array();
    if (!tensor || tensor->type != RP_BLOCK_F32 || tensor->rank != 1 ||
        tensor->dims[0] > RP_ROPE_PAIRS_MAX) {
        if (s->status == RP_OK)
            s->status = rp_error_set(s->err, RP_STATUS_FORMAT,
                                     "%s: tensor %s must have up to %u values of type F32",
                                     s->gguf.name, name, RP_ROPE_PAIRS_MAX);
        return list;
    }
    if (s->status == RP_OK)
        s->status = rp_gguf_read(&s->gguf, tensor, 0, values,
                                 (size_t)tensor->dims[0] * sizeof *values, s->err);
    for (uint64_t i = 0; s->status == RP_OK && i < tensor->dims[0]; i++)
        (void)json_array_append_new(list, json_real((double)values[i]));
    return list;
}

static void copy_into(struct source *s, json_t *object, const char *name, const char *key) {
    if (has(s, name) && json_object_set_new(object, key, json_real(number(s, name, 0))) != 0 &&
        s->status == RP_OK)
        s->status = rp_error_set(s->err, RP_STATUS_NO_MEMORY, "%s: out of memory", s->gguf.name);
}

/* Keys that YaRN and LongRoPE share, which config.json has outside and inside. */
static json_t *scaling_of(struct source *s, const char *type, const char *attention) {
    json_t *scaling = json_pack("{s:s}", "type", type);
    copy_integer(s, "rope.scaling.original_context_length", "original_max_position_embeddings");
    copy_into(s, scaling, attention, "attention_factor");
    return scaling;
}

static void read_rope(struct source *s) {
    struct rp_gguf_text type = {"none", 4};
    if (s->status == RP_OK)
        s->status = rp_gguf_string(&s->gguf, key_of(s, "rope.scaling.type"), &type, s->err);
    double factor = number(s, "rope.scaling.factor", number(s, "rope.scale_linear", 1));
    copy_number(s, "rope.freq_base", "rope_theta");
    bool old = has(s, "rope.scale_linear") && !has(s, "rope.scaling.type");
    if (rp_gguf_find_tensor(&s->gguf, "rope_factors_long.weight") &&
        strcmp(s->arch->name, "phi3") == 0) {
        json_t *scaling = scaling_of(s, "longrope", "rope.scaling.attn_factor");
        (void)json_object_set_new(scaling, "long_factor", divisors(s, "rope_factors_long.weight"));
        (void)json_object_set_new(scaling, "short_factor",
                                  divisors(s, "rope_factors_short.weight"));
        put(s, "rope_scaling", scaling);
        return;
    }
    if (has(s, "rope.scaling.attn_factor"))
        refuse(s, RP_STATUS_UNSUPPORTED, "rope.scaling.attn_factor", "is not supported");
    if (text_is(type, "none") && !(old && factor != 1))
        return;
    if (text_is(type, "yarn")) {
        json_t *scaling = scaling_of(s, "yarn", "rope.scaling.yarn_attn_factor");
        copy_into(s, scaling, "rope.scaling.factor", "factor");
        copy_into(s, scaling, "rope.scaling.yarn_beta_fast", "beta_fast");
        copy_into(s, scaling, "rope.scaling.yarn_beta_slow", "beta_slow");
        put(s, "rope_scaling", scaling);
        return;
    }
    if (!old && !text_is(type, "linear"))
        refuse(s, RP_STATUS_UNSUPPORTED, "rope.scaling.type", "must be none, linear or yarn");
    put(s, "rope_scaling", json_pack("{s:s, s:f}", "type", "linear", "factor", factor));
}

/* Layers with a window: a list of them, or every so many layers one without. */
static void read_pattern(struct source *s) {
    const char *name = "attention.sliding_window_pattern";
    const struct rp_gguf_key *key = rp_gguf_find(&s->gguf, key_of(s, name));
    if (!key || s->status != RP_OK)
        return;
    if (key->type != RP_GGUF_ARRAY) {
        copy_integer(s, name, "sliding_window_pattern");
        return;
    }
    json_t *types = json_array();
    if (key->element != RP_GGUF_BOOL)
        refuse(s, RP_STATUS_FORMAT, name, "must be an array of booleans");
    for (uint64_t i = 0; s->status == RP_OK && i < RP_MIN(key->count, (uint64_t)RP_LAYERS_MAX); i++)
        (void)json_array_append_new(
            types, json_string(key->value[i] ? "sliding_attention" : "full_attention"));
    put(s, "layer_types", types);
}

/* Tokens that end an answer by their text, where they are control tokens: a file names one, but the
 * model may write others, too (the one of a turn, and the one of a text). */
static bool ends_answer(struct rp_gguf_text text) {
    static const char *const ends[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|return|>",
        "<|end_of_text|>",
        "<\xEF\xBD\x9C"
        "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(ends); i++)
        if (text_is(text, ends[i]))
            return true;
    return false;
}

static void add_ends(struct source *s, json_t *list) {
    struct rp_gguf_text *tokens = NULL;
    int32_t *types = NULL;
    uint32_t count = 0, type_count = 0;
    s->status = rp_gguf_strings(&s->gguf, "tokenizer.ggml.tokens", &tokens, &count, s->err);
    if (s->status == RP_OK)
        s->status =
            rp_gguf_ints(&s->gguf, "tokenizer.ggml.token_type", &types, &type_count, s->err);
    for (uint32_t i = 0; s->status == RP_OK && i < RP_MIN(count, type_count); i++)
        if (types[i] == 3 && ends_answer(tokens[i])) /* 3: control */
            (void)json_array_append_new(list, json_integer(i));
    rp_free(tokens);
    rp_free(types);
}

static void read_tokens(struct source *s) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    uint32_t id;
    for (size_t i = 0; i < RP_ARRAY_COUNT(ends); i++) {
        id = UINT32_MAX;
        if (s->status == RP_OK)
            s->status = rp_gguf_u32(&s->gguf, ends[i], &id, s->err);
        if (id != UINT32_MAX && list)
            (void)json_array_append_new(list, json_integer(id));
    }
    if (s->status == RP_OK)
        add_ends(s, list);
    put(s, "eos_token_id", list);
    id = UINT32_MAX;
    if (s->status == RP_OK)
        s->status = rp_gguf_u32(&s->gguf, "tokenizer.ggml.bos_token_id", &id, s->err);
    if (id != UINT32_MAX)
        put(s, "bos_token_id", json_integer(id));
}

/* Two families may have one architecture. */
static const char *architecture_of(struct source *s, uint32_t window) {
    if (window && strcmp(s->arch->name, "llama") == 0)
        return "MistralForCausalLM";
    if (window && strcmp(s->arch->name, "olmo2") == 0)
        return "Olmo3ForCausalLM";
    return s->arch->architecture;
}

static bool has_tensor(struct source *s, const char *name) {
    return rp_gguf_find_tensor(&s->gguf, name) != NULL;
}

/* What config.json says and files show by their tensors. */
static void read_switches(struct source *s) {
    bool qkv_bias = has_tensor(s, "blk.0.attn_q.bias");
    const char *architecture = s->arch->architecture;
    put(s, "tie_word_embeddings", json_boolean(!has_tensor(s, "output.weight")));
    put(s, "mlp_bias", json_boolean(has_tensor(s, "blk.0.ffn_up.bias")));
    if (strcmp(architecture, "StableLmForCausalLM") == 0) {
        put(s, "use_qkv_bias", json_boolean(qkv_bias));
        put(s, "use_parallel_residual", json_boolean(!has_tensor(s, "blk.0.ffn_norm.weight")));
        if (has_tensor(s, "blk.0.attn_q_norm.weight") && s->status == RP_OK)
            s->status = rp_error_set(s->err, RP_STATUS_UNSUPPORTED,
                                     "%s: tensor blk.0.attn_q_norm.weight: norms of q and k are "
                                     "not supported in files of stablelm",
                                     s->gguf.name);
        return;
    }
    if (strcmp(architecture, "CohereForCausalLM") == 0)
        put(s, "use_qk_norm", json_boolean(has_tensor(s, "blk.0.attn_q_norm.weight")));
    put(s, "attention_bias", json_boolean(qkv_bias && strcmp(s->arch->name, "qwen2") != 0));
}

static void read_keys(struct source *s) {
    const struct rp_gguf_tensor *embed = rp_gguf_find_tensor(&s->gguf, "token_embd.weight");
    uint32_t window = integer(s, "attention.sliding_window", 0);
    put(s, "architectures", json_pack("[s]", architecture_of(s, window)));
    copy_integer(s, "embedding_length", "hidden_size");
    copy_integer(s, "feed_forward_length", "intermediate_size");
    copy_integer(s, "block_count", "num_hidden_layers");
    copy_integer(s, "attention.head_count", "num_attention_heads");
    copy_integer(s, "attention.head_count_kv", "num_key_value_heads");
    copy_integer(s, "context_length", "max_position_embeddings");
    copy_number(s, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
    copy_number(s, "attn_logit_softcapping", "attn_logit_softcapping");
    copy_number(s, "final_logit_softcapping", "final_logit_softcapping");
    for (size_t i = 0; i < RP_GGUF_NUMBERS_MAX && s->arch->numbers[i].gguf; i++)
        copy_number(s, s->arch->numbers[i].gguf, s->arch->numbers[i].config);
    if (window)
        put(s, "sliding_window", json_integer(window));
    if (embed && embed->rank == 2)
        put(s, "vocab_size", json_integer((json_int_t)RP_MIN(embed->dims[1], (uint64_t)1 << 32)));
    put(s, "torch_dtype", json_string("bfloat16"));
    read_switches(s);
    read_head_size(s);
    read_rope(s);
    read_pattern(s);
    read_tokens(s);
}

/* --- types of tensors ------------------------------------------------------------------------ */

static uint8_t type_of(struct source *s, const char *family_name, bool *blocks) {
    char name[128];
    const struct rp_gguf_tensor *tensor =
        rp_gguf_find_tensor(&s->gguf, rp_gguf_tensor_name(s->arch, family_name, name, sizeof name));
    if (!tensor) /* is refused as missing when the weights are opened */
        return RP_BLOCK_F32;
    *blocks = *blocks || (tensor->type != RP_BLOCK_F32 && tensor->type != RP_BLOCK_BF16);
    return (uint8_t)tensor->type;
}

static void read_types(struct source *s, struct rp_model_config *config) {
    bool qkv = rp_weight_is_fused(config, RP_WEIGHT_QKV);
    bool gate_up = rp_weight_is_fused(config, RP_WEIGHT_GATE_UP);
    const char *modules[RP_MODULE_COUNT] = {
        [RP_MODULE_Q] = "self_attn.q_proj", [RP_MODULE_K] = "self_attn.k_proj",
        [RP_MODULE_V] = "self_attn.v_proj", [RP_MODULE_O] = "self_attn.o_proj",
        [RP_MODULE_GATE] = "mlp.gate_proj", [RP_MODULE_UP] = "mlp.up_proj",
        [RP_MODULE_DOWN] = "mlp.down_proj",
    };
    if (qkv)
        modules[RP_MODULE_Q] = modules[RP_MODULE_K] = modules[RP_MODULE_V] = "self_attn.qkv_proj";
    if (gate_up)
        modules[RP_MODULE_GATE] = modules[RP_MODULE_UP] = "mlp.gate_up_proj";
    struct rp_model_gguf *out = &config->gguf;
    bool blocks = false, all_bf16 = true;
    out->present = true;
    out->interleaved = s->arch->interleaved;
    out->embed = type_of(s, "model.embed_tokens.weight", &blocks);
    out->head = type_of(s, "lm_head.weight", &blocks);
    all_bf16 = out->embed == RP_BLOCK_BF16;
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (int i = 0; i < RP_MODULE_COUNT && modules[i]; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, modules[i]);
            out->types[layer][i] = type_of(s, name, &blocks);
            all_bf16 = all_bf16 && out->types[layer][i] == RP_BLOCK_BF16;
        }
    out->blocks = blocks;
    config->file_dtype = blocks ? RP_DTYPE_BLOCKS : all_bf16 ? RP_DTYPE_BF16 : RP_DTYPE_F32;
}

/* rope_freqs.weight: divisors of the frequencies, as the converter computed them for Llama 3. */
static void read_factors(struct source *s, struct rp_model_config *config) {
    const struct rp_gguf_tensor *tensor = rp_gguf_find_tensor(&s->gguf, "rope_freqs.weight");
    uint32_t pairs = config->head_dim / 2;
    if (!tensor || s->status != RP_OK)
        return;
    if (tensor->type != RP_BLOCK_F32 || tensor->rank != 1 || tensor->dims[0] != pairs ||
        pairs > RP_ROPE_PAIRS_MAX || config->rope.kind != RP_ROPE_DEFAULT) {
        s->status =
            rp_error_set(s->err, RP_STATUS_FORMAT,
                         "%s: tensor rope_freqs.weight must have %u values of type F32, and "
                         "no rope.scaling.type beside it",
                         s->gguf.name, pairs);
        return;
    }
    float *factors = config->rope.long_factor;
    s->status = rp_gguf_read(&s->gguf, tensor, 0, factors, pairs * sizeof *factors, s->err);
    for (uint32_t i = 0; i < pairs && s->status == RP_OK; i++)
        if (!(factors[i] > 0.0f) || !isfinite(factors[i]))
            s->status = rp_error_set(s->err, RP_STATUS_FORMAT,
                                     "%s: tensor rope_freqs.weight: element %u is not above 0",
                                     s->gguf.name, i);
    memcpy(config->rope.short_factor, factors, sizeof config->rope.short_factor);
    config->rope.kind = RP_ROPE_LONGROPE; /* the same factors at any length */
}

int rp_gguf_model_config(const char *path, struct rp_model_config *out_config,
                         struct rp_error *err) {
    struct rp_model_config config;
    struct source s = {.err = err};
    memset(&config, 0, sizeof config);
    config.bos_id = RP_ID_NONE;
    config.default_temperature = config.default_top_p = NAN;
    s.status = rp_gguf_open(&s.gguf, path, err);
    if (s.status != RP_OK)
        return s.status;
    s.root = json_object();
    find_arch(&s);
    if (s.status == RP_OK)
        refuse_unknown_keys(&s);
    if (s.status == RP_OK)
        read_keys(&s);
    if (s.status == RP_OK)
        s.status = rp_config_read(s.root, s.gguf.name, &config, err);
    if (s.status == RP_OK) {
        read_types(&s, &config);
        read_factors(&s, &config);
        if (s.arch->gemma)
            config.norm_offset = 0.0f;
    }
    json_decref(s.root);
    rp_gguf_close(&s.gguf);
    if (s.status == RP_OK)
        *out_config = config;
    return s.status;
}

/* --- files ------------------------------------------------------------------------------------ */

static enum rp_safetensor_type entry_type(uint32_t type) {
    return type == RP_BLOCK_F32    ? RP_SAFETENSOR_F32
           : type == RP_BLOCK_F16  ? RP_SAFETENSOR_F16
           : type == RP_BLOCK_BF16 ? RP_SAFETENSOR_BF16
                                   : RP_SAFETENSOR_BLOCKS;
}

int rp_gguf_model_files(struct rp_safetensors *files, const char *path, struct rp_error *err) {
    struct source s = {.err = err};
    memset(files, 0, sizeof *files);
    int status = rp_gguf_open(&s.gguf, path, err);
    if (status != RP_OK)
        return status;
    find_arch(&s);
    files->arch = s.arch;
    files->tensors = rp_arena_calloc(&files->arena, s.gguf.tensor_count, sizeof *files->tensors);
    files->shards = rp_arena_calloc(&files->arena, s.gguf.file_count, sizeof *files->shards);
    bool ok = files->tensors && files->shards;
    for (uint32_t i = 0; ok && i < s.gguf.tensor_count; i++) {
        const struct rp_gguf_tensor *from = &s.gguf.tensors[i];
        struct rp_safetensor *to = &files->tensors[files->count++];
        *to = (struct rp_safetensor){
            .name = rp_arena_strndup(&files->arena, from->name, strlen(from->name)),
            .type = entry_type(from->type),
            .type_name = rp_block_info(from->type).name,
            .block_type = from->type,
            .rank = from->rank,
            .offset = from->offset,
            .bytes = from->bytes,
            .shard = from->file};
        for (uint32_t d = 0; d < from->rank; d++)
            to->shape[d] = from->dims[from->rank - 1 - d];
        ok = to->name != NULL;
    }
    for (uint32_t i = 0; ok && i < s.gguf.file_count; i++) {
        struct rp_safetensors_shard *shard = &files->shards[i];
        shard->name =
            rp_arena_strndup(&files->arena, s.gguf.files[i].name, strlen(s.gguf.files[i].name));
        shard->fd = s.gguf.files[i].fd;
        shard->data_begin = s.gguf.files[i].data_begin;
        ok = shard->name != NULL;
    }
    if (ok && s.status == RP_OK) {
        files->shard_count = s.gguf.file_count;
        s.gguf.file_count = 0; /* the descriptors are the table's now */
    } else {
        status = s.status != RP_OK
                     ? s.status
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", s.gguf.name);
        rp_safetensors_close(files);
    }
    rp_gguf_close(&s.gguf);
    return status;
}
