/* params_grammar.c - the fields that say what an answer must match: OpenAI's response_format and
 * the extensions of vLLM, SGLang and llama.cpp. At most one of them may be set. */
#include "base/memory.h"
#include "server/api/params.h"

#include <string.h>

static bool wrong_type(struct rp_http_error *error, const char *field, const char *expected) {
    return rp_http_error_set(error, 400, field, "invalid_type", "%s must be %s", field, expected);
}

/* Takes `source` over; NULL: memory is out. */
static bool set(struct rp_completion_params *out, enum rp_grammar_kind kind, const char *field,
                char *source, size_t len, struct rp_http_error *error) {
    struct rp_grammar_spec *spec = &out->grammar;
    if (!source)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (spec->kind != RP_GRAMMAR_NONE) {
        rp_free(source);
        return rp_http_error_set(error, 400, field, "invalid_value",
                                 "%s and %s cannot be combined: both say what the answer must "
                                 "match",
                                 spec->field, field);
    }
    *spec = (struct rp_grammar_spec){.kind = kind, .field = field, .source = source, .len = len};
    return true;
}

static bool set_dump(struct rp_completion_params *out, enum rp_grammar_kind kind, const char *field,
                     const json_t *value, struct rp_http_error *error) {
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY, len = json_dumpb(value, NULL, 0, flags);
    char *source = rp_alloc(len + 1);
    if (source)
        json_dumpb(value, source, len, flags);
    return set(out, kind, field, source, len, error);
}

static bool set_object(struct rp_completion_params *out, const char *field,
                       struct rp_http_error *error) {
    return set(out, RP_GRAMMAR_JSON_OBJECT, field, rp_calloc(1, 1), 0, error);
}

static bool read_object(struct rp_completion_params *out, const char *field, const json_t *value,
                        struct rp_http_error *error) {
    if (!json_is_boolean(value))
        return wrong_type(error, field, "true or false");
    return !json_is_true(value) || set_object(out, field, error);
}

/* A schema, also as a string that contains one. */
static bool read_schema(struct rp_completion_params *out, const char *field, const json_t *value,
                        struct rp_http_error *error) {
    json_t *parsed = NULL;
    if (json_is_string(value)) {
        parsed = json_loadb(json_string_value(value), json_string_length(value),
                            JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
        value = parsed;
    }
    bool ok =
        json_is_object(value) || json_is_boolean(value)
            ? set_dump(out, RP_GRAMMAR_JSON_SCHEMA, field, value, error)
            : wrong_type(error, field, "a JSON Schema: an object, or a string that holds one");
    json_decref(parsed);
    return ok;
}

static bool read_text(struct rp_completion_params *out, enum rp_grammar_kind kind,
                      const char *field, const json_t *value, const char *expected,
                      struct rp_http_error *error) {
    if (!json_is_string(value))
        return wrong_type(error, field, expected);
    size_t len = json_string_length(value);
    char *source = rp_alloc(len + 1);
    if (source)
        memcpy(source, json_string_value(value), len);
    return set(out, kind, field, source, len, error);
}

static bool read_regex(struct rp_completion_params *out, const char *field, const json_t *value,
                       struct rp_http_error *error) {
    return read_text(out, RP_GRAMMAR_REGEX, field, value, "a regular expression, which is a string",
                     error);
}

static bool read_gbnf(struct rp_completion_params *out, const char *field, const json_t *value,
                      struct rp_http_error *error) {
    return read_text(out, RP_GRAMMAR_GBNF, field, value, "a grammar in GBNF, which is a string",
                     error);
}

/* GBNF, or Lark when no rule is defined by ::=, as vLLM tells them apart. */
static bool read_grammar(struct rp_completion_params *out, const char *field, const json_t *value,
                         struct rp_http_error *error) {
    const char *text = json_string_value(value);
    bool lark = text && !strstr(text, "::=");
    return read_text(out, lark ? RP_GRAMMAR_LARK : RP_GRAMMAR_GBNF, field, value,
                     "a grammar in GBNF or Lark, which is a string", error);
}

/* An object, or a string that contains one. */
static bool read_tag(struct rp_completion_params *out, const char *field, const json_t *value,
                     struct rp_http_error *error) {
    if (json_is_object(value))
        return set_dump(out, RP_GRAMMAR_STRUCTURAL_TAG, field, value, error);
    return read_text(out, RP_GRAMMAR_STRUCTURAL_TAG, field, value,
                     "a structural tag: an object, or a string that holds one", error);
}

static bool read_choice(struct rp_completion_params *out, const char *field, const json_t *value,
                        struct rp_http_error *error) {
    size_t i;
    json_t *item;
    if (!json_is_array(value) || json_array_size(value) == 0)
        return wrong_type(error, field, "a list of strings that is not empty");
    json_array_foreach(value, i, item) if (!json_is_string(item)) return wrong_type(
        error, field, "a list of strings");
    return set_dump(out, RP_GRAMMAR_CHOICE, field, value, error);
}

struct reader {
    const char *name; /* of the field, or of the member of structured_outputs */
    const char *field;
    bool (*read)(struct rp_completion_params *out, const char *field, const json_t *value,
                 struct rp_http_error *error);
};

static const struct reader top_level[] = {
    {"guided_json", "guided_json", read_schema},
    {"guided_json_object", "guided_json_object", read_object},
    {"guided_regex", "guided_regex", read_regex},
    {"guided_choice", "guided_choice", read_choice},
    {"guided_grammar", "guided_grammar", read_grammar},
    {"json_schema", "json_schema", read_schema},
    {"regex", "regex", read_regex},
    {"ebnf", "ebnf", read_gbnf},
    {"grammar", "grammar", read_gbnf},
    {"structural_tag", "structural_tag", read_tag},
};

static const struct reader outputs[] = {
    {"json", "structured_outputs.json", read_schema},
    {"json_object", "structured_outputs.json_object", read_object},
    {"regex", "structured_outputs.regex", read_regex},
    {"choice", "structured_outputs.choice", read_choice},
    {"grammar", "structured_outputs.grammar", read_grammar},
    {"structural_tag", "structured_outputs.structural_tag", read_tag},
};

static bool read_response_format(json_t *value, struct rp_completion_params *out,
                                 struct rp_http_error *error) {
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type)
        return wrong_type(error, "response_format", "an object with a type");
    if (strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_object") == 0)
        return set_object(out, "response_format", error);
    if (strcmp(type, "structural_tag") == 0)
        return read_tag(out, "response_format", value, error);
    if (strcmp(type, "json_schema") != 0)
        return rp_http_error_set(error, 400, "response_format.type", "unsupported_parameter",
                                 "response_format.type must be text, json_object, "
                                 "json_schema or structural_tag");
    json_t *described = json_object_get(value, "json_schema");
    if (!json_is_object(described))
        return wrong_type(error, "response_format.json_schema", "an object with name and schema");
    json_t *schema = rp_params_get(described, "schema");
    if (schema)
        return read_schema(out, "response_format.json_schema.schema", schema, error);
    return set_object(out, "response_format", error);
}

static bool read_outputs(json_t *value, struct rp_completion_params *out,
                         struct rp_http_error *error) {
    const char *name;
    json_t *item;
    if (!json_is_object(value))
        return wrong_type(error, "structured_outputs", "an object");
    json_object_foreach(value, name, item) {
        size_t i = 0;
        while (i < RP_ARRAY_COUNT(outputs) && strcmp(outputs[i].name, name) != 0)
            i++;
        /* null and false mean absent, as in vLLM, also for options that change nothing here */
        if (json_is_null(item) || (i == RP_ARRAY_COUNT(outputs) && json_is_false(item)))
            continue;
        if (i == RP_ARRAY_COUNT(outputs))
            return rp_http_error_set(error, 400, "structured_outputs", "unsupported_parameter",
                                     "structured_outputs accepts json, json_object, regex, "
                                     "choice, grammar and structural_tag");
        if (!outputs[i].read(out, outputs[i].field, item, error))
            return false;
    }
    return true;
}

bool rp_params_read_grammar(json_t *root, struct rp_completion_params *out,
                            struct rp_http_error *error) {
    json_t *value = rp_params_get(root, "response_format");
    if (value && !read_response_format(value, out, error))
        return false;
    value = rp_params_get(root, "structured_outputs");
    if (value && !read_outputs(value, out, error))
        return false;
    for (size_t i = 0; i < RP_ARRAY_COUNT(top_level); i++) {
        value = rp_params_get(root, top_level[i].name);
        if (value && !top_level[i].read(out, top_level[i].field, value, error))
            return false;
    }
    return true;
}
