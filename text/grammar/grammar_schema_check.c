/* grammar_schema_check.c - which keywords exist, and whether their values have the right form. */
#include "text/grammar/grammar_schema.h"

#include <math.h>
#include <string.h>

/* Names that are in neither list are annotations, as the standard says. */
static const char *const applies[] = {"$ref",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependentSchemas",
                                      "dependentRequired",
                                      "dependencies",
                                      "prefixItems",
                                      "items",
                                      "additionalItems",
                                      "properties",
                                      "patternProperties",
                                      "additionalProperties",
                                      "propertyNames",
                                      "type",
                                      "const",
                                      "enum",
                                      "multipleOf",
                                      "maximum",
                                      "exclusiveMaximum",
                                      "minimum",
                                      "exclusiveMinimum",
                                      "maxLength",
                                      "minLength",
                                      "pattern",
                                      "maxItems",
                                      "minItems",
                                      "uniqueItems",
                                      "maxProperties",
                                      "minProperties",
                                      "required",
                                      "format",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "unevaluatedItems",
                                      "unevaluatedProperties"};
static const char *const refused[] = {"$dynamicRef", "$recursiveRef", "extends", "disallow",
                                      "divisibleBy"};

enum keyword_kind schema_keyword(const char *key) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(applies); i++)
        if (strcmp(key, applies[i]) == 0)
            return KEYWORD_APPLIES;
    for (size_t i = 0; i < RP_ARRAY_COUNT(refused); i++)
        if (strcmp(key, refused[i]) == 0)
            return KEYWORD_REFUSED;
    return KEYWORD_UNKNOWN;
}

static bool is_schema(const json_t *value) {
    return json_is_object(value) || json_is_boolean(value);
}

static bool all_schemas(const json_t *value) {
    const char *key;
    json_t *child;
    size_t index;
    if (json_is_array(value)) {
        json_array_foreach(value, index, child) if (!is_schema(child)) return false;
        return true;
    }
    if (!json_is_object(value))
        return false;
    json_object_foreach((json_t *)value, key, child) if (!is_schema(child)) return false;
    return true;
}

/* Names: keys of jansson's objects have no U+0000. */
static bool all_strings(const json_t *value) {
    json_t *child;
    size_t index;
    json_array_foreach(value, index, child) {
        if (!json_is_string(child) ||
            memchr(json_string_value(child), 0, json_string_length(child)))
            return false;
    }
    return json_is_array(value);
}

enum form {
    FORM_SCHEMA,
    FORM_SCHEMAS, /* an array of at least one */
    FORM_MAP,
    FORM_STRING,
    FORM_STRINGS,
    FORM_NUMBER,
    FORM_BOOLEAN,
    FORM_ARRAY,
};
static const struct {
    const char *key;
    enum form form;
    const char *text;
} forms[] = {
    {"allOf", FORM_SCHEMAS, "not a list of schemas"},
    {"anyOf", FORM_SCHEMAS, "not a list of schemas"},
    {"oneOf", FORM_SCHEMAS, "not a list of schemas"},
    {"prefixItems", FORM_SCHEMAS, "not a list of schemas"},
    {"not", FORM_SCHEMA, "not a schema"},
    {"if", FORM_SCHEMA, "not a schema"},
    {"then", FORM_SCHEMA, "not a schema"},
    {"else", FORM_SCHEMA, "not a schema"},
    {"additionalItems", FORM_SCHEMA, "not a schema"},
    {"additionalProperties", FORM_SCHEMA, "not a schema"},
    {"propertyNames", FORM_SCHEMA, "not a schema"},
    {"contains", FORM_SCHEMA, "not a schema"},
    {"properties", FORM_MAP, "not a map of schemas"},
    {"patternProperties", FORM_MAP, "not a map of schemas"},
    {"dependentSchemas", FORM_MAP, "not a map of schemas"},
    {"pattern", FORM_STRING, "not a string"},
    {"format", FORM_STRING, "not a string"},
    {"multipleOf", FORM_NUMBER, "not a number"},
    {"maximum", FORM_NUMBER, "not a number"},
    {"minimum", FORM_NUMBER, "not a number"},
    {"uniqueItems", FORM_BOOLEAN, "not true or false"},
    {"enum", FORM_ARRAY, "not a list"},
};

static bool has_form(const json_t *value, enum form form) {
    switch (form) {
    case FORM_SCHEMA:
        return is_schema(value);
    case FORM_SCHEMAS:
        return json_is_array(value) && json_array_size(value) > 0 && all_schemas(value);
    case FORM_MAP:
        return json_is_object(value) && all_schemas(value);
    case FORM_STRING:
        return json_is_string(value);
    case FORM_STRINGS:
        return all_strings(value);
    case FORM_NUMBER:
        return json_is_number(value);
    case FORM_BOOLEAN:
        return json_is_boolean(value);
    default:
        return json_is_array(value);
    }
}

int schema_check_keywords(struct schema_compiler *c, const json_t *schema) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        enum keyword_kind kind = schema_keyword(key);
        if (kind == KEYWORD_REFUSED)
            return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, key, "not supported");
        if (kind != KEYWORD_APPLIES)
            continue;
        for (size_t i = 0; i < RP_ARRAY_COUNT(forms); i++)
            if (strcmp(forms[i].key, key) == 0 && !has_form(value, forms[i].form))
                return schema_refuse(c, RP_STATUS_FORMAT, schema, key, forms[i].text);
        if (strncmp(key, "unevaluated", 11) == 0 && !json_is_true(value))
            return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, key, "not supported");
        if (strcmp(key, "required") == 0 && !all_strings(value) && !json_is_boolean(value))
            return schema_refuse(c, RP_STATUS_FORMAT, schema, key, "not a list of strings");
        if (strcmp(key, "required") == 0 && json_is_boolean(value))
            return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, key,
                                 "true and false are of draft 3: name the keys in a list");
        if (strcmp(key, "items") == 0 && !is_schema(value) && !all_schemas(value))
            return schema_refuse(c, RP_STATUS_FORMAT, schema, key, "not a schema");
    }
    return RP_OK;
}

static unsigned named_type(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
                 {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_NUMBER},
                 {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT},   {"\1fraction", TYPE_NUMBER}};
    for (size_t i = 0; name && i < RP_ARRAY_COUNT(names); i++)
        if (strcmp(name, names[i].name) == 0)
            return names[i].bits;
    return 0;
}

int schema_type_bits(struct schema_compiler *c, const json_t *schema, unsigned *out) {
    const json_t *type = json_object_get(schema, "type");
    size_t count = json_is_array(type) ? json_array_size(type) : 1;
    *out = type ? 0 : TYPE_ANY;
    for (size_t i = 0; type && i < count; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        unsigned bits = named_type(json_string_value(one));
        if (!bits)
            return schema_refuse(c, RP_STATUS_FORMAT, schema, "type", "not a type of JSON");
        *out |= bits;
    }
    return RP_OK;
}

unsigned schema_value_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return floor(json_real_value(value)) == json_real_value(value) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}
