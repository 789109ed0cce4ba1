/* The keys of RoPE: rope_theta, and rope_scaling or its newer spelling rope_parameters, which
 * holds rope_theta as well and, in families whose layers with a window rotate by other angles,
 * one object for each type of layer. Absent keys have the defaults of transformers' classes;
 * where its versions differ, or two keys contradict each other, the configuration is refused. */
#include "model/config_reader.h"
#include "model/family.h"
#include "text/json_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KINDS "default, linear, dynamic, llama3, yarn, longrope"

/* One table in work. */
struct rope_reader {
    struct rp_config_reader json; /* rope_scaling, or an object of rope_parameters */
    const struct rp_model_family *family;
    struct rp_model_config *config;
    struct rp_rope *rope;
};

/* Keys that any kind may have; which of them count depends on the kind. */
static const char *const known_keys[] = {"rope_type",
                                         "type",
                                         "rope_theta",
                                         "partial_rotary_factor",
                                         "factor",
                                         "original_max_position_embeddings",
                                         "max_position_embeddings",
                                         "attention_factor",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "mscale",
                                         "mscale_all_dim",
                                         "truncate",
                                         "short_factor",
                                         "long_factor",
                                         "llama_4_scaling_beta",
                                         "finetuned"};

/* How positions in images are rotated; a token of text has one position. */
static bool is_of_images(const struct rp_model_family *family, const char *key) {
    return family->image_rope &&
           (strcmp(key, "mrope_section") == 0 || strcmp(key, "mrope_interleaved") == 0);
}

static void refuse_unknown(struct rp_config_reader *json, const struct rp_model_family *family) {
    const char *key;
    json_t *value;
    char shown[80];
    json_object_foreach((json_t *)json->object, key, value) {
        bool known = json_is_null(value) || is_of_images(family, key);
        for (size_t i = 0; i < RP_ARRAY_COUNT(known_keys); i++)
            known = known || strcmp(key, known_keys[i]) == 0;
        if (!known)
            rp_config_refuse(json, RP_STATUS_UNSUPPORTED,
                             rp_text_for_message(shown, sizeof shown, key), "is not supported");
    }
}

static double factor_of(struct rope_reader *r, double fallback) {
    return rp_config_double(&r->json, "factor", fallback, 0, true, 1e6);
}

static void read_llama3(struct rope_reader *r) {
    struct rp_rope *rope = r->rope;
    rope->kind = RP_ROPE_LLAMA3;
    rope->factor = factor_of(r, RP_CONFIG_REQUIRED);
    rope->low_freq_factor =
        rp_config_double(&r->json, "low_freq_factor", RP_CONFIG_REQUIRED, 0, true, 1e6);
    rope->high_freq_factor =
        rp_config_double(&r->json, "high_freq_factor", RP_CONFIG_REQUIRED, 0, true, 1e6);
    if (rope->high_freq_factor <= rope->low_freq_factor)
        rp_config_refuse(&r->json, RP_STATUS_RANGE, "high_freq_factor",
                         "must be above low_freq_factor");
}

/* 0: absent */
static double optional(struct rope_reader *r, const char *key) {
    return rp_config_double(&r->json, key, 0, 0, false, 1e6);
}

static double yarn_scale(double factor, double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

static void read_yarn(struct rope_reader *r) {
    struct rp_rope *rope = r->rope;
    double longer = (double)r->config->max_position / rope->original_max_position;
    rope->kind = RP_ROPE_YARN;
    rope->factor = factor_of(r, longer);
    rope->beta_fast = rp_config_double(&r->json, "beta_fast", 32, 0, true, 1e6);
    rope->beta_slow = rp_config_double(&r->json, "beta_slow", 1, 0, true, 1e6);
    rope->whole_range = !rp_config_bool(&r->json, "truncate", true);
    double mscale = optional(r, "mscale"), all = optional(r, "mscale_all_dim");
    double scale = mscale > 0 && all > 0
                       ? yarn_scale(rope->factor, mscale) / yarn_scale(rope->factor, all)
                       : yarn_scale(rope->factor, 1);
    rope->attention_factor = rp_config_double(&r->json, "attention_factor", scale, 0, true, 1e6);
    if (r->config->latent.rank) { /* so that cos and sin, and the columns beside them, have it */
        double all_dim = all > 0 ? yarn_scale(rope->factor, all) : 1.0;
        r->config->attention_scale = all_dim * all_dim / sqrt(r->config->head_dim);
    }
    if (rope->theta <= 1)
        rp_config_refuse(&r->json, RP_STATUS_RANGE, "rope_theta", "must be above 1 with yarn");
    if (rope->beta_fast < rope->beta_slow)
        rp_config_refuse(&r->json, RP_STATUS_RANGE, "beta_fast", "must be at least beta_slow");
}

/* Columns of the heads that the table is for. */
static uint32_t head_dim_of(const struct rope_reader *r) {
    bool full = r->rope == &r->config->rope && r->config->full_head_dim;
    return full ? r->config->full_head_dim : r->config->head_dim;
}

static void read_divisors(struct rope_reader *r, const char *key, float *out) {
    const json_t *list = rp_config_get(&r->json, key);
    uint32_t dim = r->rope->rotary_dim ? r->rope->rotary_dim : head_dim_of(r);
    char message[80];
    snprintf(message, sizeof message, "must be a list of %u numbers above 0", dim / 2);
    bool good = json_is_array(list) && json_array_size(list) == dim / 2;
    for (uint32_t i = 0; good && i < dim / 2; i++) {
        double value = json_number_value(json_array_get(list, i));
        good = value > 1e-6 && value < 1e6; /* 0 for what is no number */
        out[i] = (float)value;
    }
    if (!good)
        rp_config_refuse(&r->json, list ? RP_STATUS_RANGE : RP_STATUS_FORMAT, key, message);
}

static void read_longrope(struct rope_reader *r) {
    struct rp_rope *rope = r->rope;
    double longer = (double)r->config->max_position / rope->original_max_position;
    rope->kind = RP_ROPE_LONGROPE;
    rope->factor = factor_of(r, longer);
    read_divisors(r, "short_factor", rope->short_factor);
    read_divisors(r, "long_factor", rope->long_factor);
    double scale =
        rope->factor <= 1 ? 1.0 : sqrt(1.0 + log(rope->factor) / log(rope->original_max_position));
    rope->attention_factor = rp_config_double(&r->json, "attention_factor", scale, 0, true, 1e6);
    if (rope->original_max_position < 2)
        rp_config_refuse(&r->json, RP_STATUS_RANGE, "original_max_position_embeddings",
                         "must be above 1 with longrope");
}

static void read_kind(struct rope_reader *r) {
    const char *type = rp_config_string(&r->json, "rope_type");
    const char *old = rp_config_string(&r->json, "type");
    if (type && old && strcmp(type, old) != 0)
        rp_config_refuse(&r->json, RP_STATUS_FORMAT, "type", "differs from rope_type");
    if (!type)
        type = old ? old : "default";
    /* Names in older files of Phi-3. */
    bool phi3_name =
        r->family->id == RP_FAMILY_PHI3 && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    if (strcmp(type, "linear") == 0) {
        r->rope->kind = RP_ROPE_LINEAR;
        r->rope->factor = factor_of(r, RP_CONFIG_REQUIRED);
    } else if (strcmp(type, "llama3") == 0) {
        read_llama3(r);
    } else if (strcmp(type, "longrope") == 0 || phi3_name) {
        read_longrope(r);
    } else if (strcmp(type, "yarn") == 0) {
        read_yarn(r);
    } else if (strcmp(type, "dynamic") == 0) {
        (void)factor_of(r, RP_CONFIG_REQUIRED); /* enum rp_rope_kind */
    } else if (strcmp(type, "default") != 0) {
        rp_config_refuse_name(&r->json, "rope_type", type, KINDS);
    }
}

/* A number that the root and the object may both have. */
static double one_of_two(struct rp_config_reader *root, struct rp_config_reader *json,
                         const char *key, double fallback, double max) {
    double outer = rp_config_double(root, key, fallback, 0, true, max);
    double inner = rp_config_double(json, key, outer, 0, true, max);
    if (json->object != root->object && rp_config_get(root, key) && inner != outer)
        rp_config_refuse(json, RP_STATUS_FORMAT, key, "differs from the key outside");
    return inner;
}

static bool is_proportional(const struct rope_reader *r) {
    const char *type = json_string_value(rp_config_get(&r->json, "rope_type"));
    return type && strcmp(type, "proportional") == 0 && r->family->id == RP_FAMILY_GEMMA4;
}

/* Gemma 4: the exponents are those of whole heads, of which only the first part turns. */
static void read_proportional(struct rope_reader *r) {
    double part = rp_config_double(&r->json, "partial_rotary_factor", 1, 0, true, 1);
    r->rope->kind = RP_ROPE_PROPORTIONAL;
    r->rope->live_pairs = (uint32_t)(part * head_dim_of(r) / 2);
    r->rope->factor = factor_of(r, 1);
}

static void read_rotary_dim(struct rp_config_reader *root, struct rope_reader *r) {
    double fallback = r->family->partial_rotary_default;
    if (is_proportional(r))
        return;
    double part =
        one_of_two(root, &r->json, "partial_rotary_factor", fallback > 0 ? fallback : 1, 1);
    if (part == 1)
        return;
    r->rope->rotary_dim = (uint32_t)(r->config->head_dim * part);
    if (fallback == 0)
        rp_config_refuse(&r->json, RP_STATUS_UNSUPPORTED, "partial_rotary_factor", "must be 1");
    if (r->rope->rotary_dim < 2 || r->rope->rotary_dim % 2 != 0)
        rp_config_refuse(&r->json, RP_STATUS_RANGE, "partial_rotary_factor",
                         "must leave an even number of columns of a head, at least 2");
}

static void read_original_length(struct rp_config_reader *root, struct rope_reader *r) {
    static const char key[] = "original_max_position_embeddings";
    uint32_t outer = rp_config_uint(root, key, r->config->max_position, 1, 1u << 24);
    r->rope->original_max_position = rp_config_uint(&r->json, key, outer, 1, 1u << 24);
    if (rp_config_get(root, key) && r->rope->original_max_position != outer)
        rp_config_refuse(&r->json, RP_STATUS_FORMAT, key, "differs from the key outside");
}

static void read_table(struct rp_config_reader *root, const struct rp_model_family *family,
                       struct rp_model_config *config, const char *file, const json_t *object,
                       struct rp_rope *rope) {
    struct rope_reader r = {{file, object, root->err, root->status, NULL}, family, config, rope};
    double fallback = rope->theta;
    rope->theta = one_of_two(root, &r.json, "rope_theta", fallback, 1e12);
    read_original_length(root, &r);
    read_rotary_dim(root, &r);
    if (*root->status == RP_OK && is_proportional(&r))
        read_proportional(&r);
    else if (*root->status == RP_OK)
        read_kind(&r);
    if (config->latent.rank && rope->kind != RP_ROPE_YARN &&
        rp_config_get(&r.json, "mscale_all_dim"))
        rp_config_refuse(&r.json, RP_STATUS_UNSUPPORTED, "mscale_all_dim",
                         "is supported with yarn alone");
    bool scales_q = family->scales_q && rope == &config->rope;
    if (scales_q)
        config->q_scale_beta =
            rp_config_double(&r.json, "llama_4_scaling_beta", RP_CONFIG_REQUIRED, 0, false, 1e3);
    else if (rp_config_get(&r.json, "llama_4_scaling_beta"))
        rp_config_refuse(&r.json, RP_STATUS_UNSUPPORTED, "llama_4_scaling_beta",
                         "is not supported in this family");
    refuse_unknown(&r.json, family);
}

/* One object for each type of layer. */
static void read_by_layer_type(struct rp_config_reader *root, const struct rp_model_family *family,
                               struct rp_model_config *config, const json_t *object) {
    static const char *const types[] = {"full_attention", "sliding_attention"};
    const char *key;
    json_t *inner;
    char file[96];
    json_object_foreach((json_t *)object, key, inner) {
        if (strcmp(key, types[0]) != 0 && strcmp(key, types[1]) != 0)
            rp_config_refuse(root, RP_STATUS_UNSUPPORTED, "rope_parameters",
                             "must have full_attention and sliding_attention, and nothing else");
    }
    for (int i = 0; i < 2; i++) {
        inner = json_object_get(object, types[i]);
        if (!json_is_object(inner)) {
            rp_config_refuse(root, RP_STATUS_FORMAT, "rope_parameters",
                             "must have an object for full_attention and for sliding_attention");
            return;
        }
        snprintf(file, sizeof file, "%s: rope_parameters: %s", root->file, types[i]);
        read_table(root, family, config, file, inner, i ? &config->local_rope : &config->rope);
    }
}

static bool has_objects(const json_t *object) {
    const char *key;
    json_t *inner;
    json_object_foreach((json_t *)object, key, inner) {
        if (json_is_object(inner))
            return true;
    }
    return false;
}

void rp_config_rope(struct rp_config_reader *reader, const struct rp_model_family *family,
                    struct rp_model_config *config) {
    const json_t *newer = rp_config_get(reader, "rope_parameters");
    const json_t *older = rp_config_get(reader, "rope_scaling"), *object = newer ? newer : older;
    const char *key = newer ? "rope_parameters" : "rope_scaling";
    bool by_type = config->local_rope.theta > 0, nested = object && has_objects(object);
    char file[64];
    config->rope.theta = family->rope_theta_default > 0 ? family->rope_theta_default : 10000;
    if (object && !json_is_object(object))
        rp_config_refuse(reader, RP_STATUS_FORMAT, key, "must be an object");
    else if (newer && older && !json_equal(newer, older))
        rp_config_refuse(reader, RP_STATUS_FORMAT, "rope_scaling", "differs from rope_parameters");
    else if (nested && !(by_type && newer))
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key, "per layer type is not supported");
    else if (newer && by_type && !nested)
        rp_config_refuse(reader, RP_STATUS_UNSUPPORTED, key,
                         "must have an object per layer type in this family");
    if (*reader->status != RP_OK)
        return;
    if (nested) {
        read_by_layer_type(reader, family, config, object);
        return;
    }
    snprintf(file, sizeof file, "%s%s%s", reader->file, object ? ": " : "", object ? key : "");
    read_table(reader, family, config, file, object, &config->rope);
    config->local_rope.rotary_dim = config->rope.rotary_dim;
}
