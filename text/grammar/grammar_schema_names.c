/* grammar_schema_names.c - propertyNames: the strings of a schema as an expression. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define DEPTH_MAX 32

static int texts(struct schema_compiler *c, const json_t *list, enum rx_mode mode, uint32_t *out) {
    const json_t *value;
    size_t index;
    *out = NODE_NONE;
    json_array_foreach((json_t *)list, index, value) {
        if (!json_is_string(value))
            continue;
        uint32_t one = rx_text(c->g, json_string_value(value), json_string_length(value), mode);
        *out = rx_or2(c->g, *out, one);
    }
    return c->g->status;
}

/* Any, or with `all` every one, of the schemas of a list. */
static int list_rx(struct schema_compiler *c, const json_t *list, bool all, bool every, int depth,
                   uint32_t *out) {
    const json_t *one;
    size_t index;
    int rc = RP_OK;
    *out = all ? NODE_ALL : NODE_NONE;
    json_array_foreach((json_t *)list, index, one) {
        uint32_t rx = NODE_NONE;
        if (rc == RP_OK)
            rc = schema_names_rx(c, one, every, depth, &rx);
        *out = all ? rx_and2(c->g, *out, rx) : rx_or2(c->g, *out, rx);
    }
    return rc;
}

static int type_rx(struct schema_compiler *c, const json_t *s, uint32_t *out) {
    unsigned types = TYPE_ANY;
    int rc = schema_type_bits(c, s, &types);
    *out = types & TYPE_STRING ? NODE_ALL : NODE_NONE;
    return rc;
}

/* The strings that keyword `key` accepts. */
static int keyword_rx(struct schema_compiler *c, const json_t *s, const char *key,
                      const json_t *value, bool every, int depth, uint32_t *out) {
    static const char *const others[] = {
        "minimum",          "maximum",           "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf",        "items",
        "prefixItems",      "additionalItems",   "minItems",
        "maxItems",         "uniqueItems",       "properties",
        "required",         "patternProperties", "additionalProperties",
        "minProperties",    "maxProperties",     "propertyNames",
        "contains",         "minContains",       "maxContains"};
    struct rp_grammar *g = c->g;
    enum rx_mode mode = every ? RX_JSON_EVERY : RX_JSON;
    struct conj conj = {&(struct item){s, 0}, 1, false};
    struct rp_error inner;
    *out = NODE_ALL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(others); i++)
        if (strcmp(key, others[i]) == 0)
            return RP_OK; /* says nothing of strings */
    if (!strcmp(key, "type"))
        return type_rx(c, s, out);
    if (!strcmp(key, "enum"))
        return texts(c, value, mode, out);
    if (!strcmp(key, "const")) {
        *out = json_is_string(value)
                   ? rx_text(g, json_string_value(value), json_string_length(value), mode)
                   : NODE_NONE;
        return g->status;
    }
    if (!strcmp(key, "anyOf") || !strcmp(key, "allOf"))
        return list_rx(c, value, key[1] == 'l', every, depth, out);
    if (!strcmp(key, "not")) {
        int rc = schema_names_rx(c, value, !every, depth, out);
        *out = rx_not(g, *out);
        return rc;
    }
    if (!strcmp(key, "$ref")) {
        const json_t *target;
        int rc = schema_resolve(c, s, json_string_value(value), &target);
        return rc == RP_OK ? schema_names_rx(c, target, every, depth, out) : rc;
    }
    if (!strcmp(key, "pattern")) {
        int rc = regex_parse(g, json_string_value(value), json_string_length(value), mode, true,
                             out, &inner);
        return rc == RP_OK ? rc : schema_refuse(c, rc, s, key, inner.text);
    }
    if (!strcmp(key, "format"))
        return schema_format_rx(c, s, every, out);
    if (!strcmp(key, "minLength") || !strcmp(key, "maxLength")) {
        uint32_t min, max;
        int rc = schema_sizes(c, &conj, "minLength", "maxLength", &min, &max);
        *out = min > max ? NODE_NONE : rx_rep(g, g->json_char, min, max);
        return rc;
    }
    return schema_refuse(c, RP_STATUS_UNSUPPORTED, s, key, "not supported in propertyNames");
}

int schema_names_rx(struct schema_compiler *c, const json_t *schema, bool every, int depth,
                    uint32_t *out) {
    const char *key;
    json_t *value;
    *out = json_is_false(schema) ? NODE_NONE : NODE_ALL;
    if (json_is_boolean(schema))
        return RP_OK;
    if (depth > DEPTH_MAX || !grammar_burn(c->g, 4))
        return schema_refuse(c, RP_STATUS_FULL, schema, "propertyNames", "nested too deep");
    if (!json_is_object(schema))
        return rp_error_set(c->err, RP_STATUS_FORMAT, "schema: not an object or a boolean");
    int rc = schema_check_keywords(c, schema);
    json_object_foreach((json_t *)schema, key, value) {
        uint32_t one = NODE_ALL;
        if (rc == RP_OK && (schema_keyword(key) == KEYWORD_APPLIES || key[0] == '\1'))
            rc = keyword_rx(c, schema, key, value, every, depth + 1, &one);
        *out = rx_and2(c->g, *out, one);
    }
    return rc == RP_OK ? c->g->status : rc;
}
