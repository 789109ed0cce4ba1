#include "text/dialect/dialect_internal.h"

#include <string.h>

enum { REFERENCES_MAX = 8, BRANCHES_MAX = 64 };

static unsigned type_of_name(const char *name) {
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"null", TYPE_NULL},      {"boolean", TYPE_BOOLEAN}, {"number", TYPE_NUMBER},
                 {"integer", TYPE_NUMBER}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT},
                 {"string", TYPE_STRING}};
    for (size_t i = 0; name && i < RP_ARRAY_COUNT(names); i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].types;
    return 0;
}

unsigned rp_dialect_type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

/* Follows "#/a/b" references. */
static const json_t *follow(const json_t *root, const json_t *schema) {
    for (int left = REFERENCES_MAX; left > 0; left--) {
        const char *at = json_string_value(json_object_get(schema, "$ref"));
        if (!at || at[0] != '#' || (at[1] != '/' && at[1] != '\0'))
            return schema;
        const json_t *target = root;
        for (at++; *at == '/' && target;) {
            size_t len = strcspn(++at, "/");
            target = json_object_getn(target, at, len);
            at += len;
        }
        if (!target)
            return schema;
        schema = target;
    }
    return schema;
}

/* `left`: schemas that may still be looked at, so that no schema costs more than a few. */
static unsigned types_of(const json_t *root, const json_t *schema, int *left) {
    unsigned types = 0;
    size_t i;
    json_t *item;
    schema = follow(root, schema);
    if (!json_is_object(schema) || --*left < 0)
        return TYPE_ALL;
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type))
        return type_of_name(json_string_value(type));
    if (json_is_array(type)) {
        json_array_foreach((json_t *)type, i, item) types |= type_of_name(json_string_value(item));
        return types;
    }
    const json_t *list = json_object_get(schema, "enum");
    if (json_is_array(list)) {
        json_array_foreach((json_t *)list, i, item) types |= rp_dialect_type_of(item);
        return types;
    }
    if (json_object_get(schema, "const"))
        return rp_dialect_type_of(json_object_get(schema, "const"));
    types = TYPE_ALL;
    static const char *const unions[] = {"anyOf", "oneOf"};
    for (size_t u = 0; u < RP_ARRAY_COUNT(unions); u++) {
        const json_t *branches = json_object_get(schema, unions[u]);
        unsigned any = 0;
        json_array_foreach((json_t *)branches, i, item) any |= types_of(root, item, left);
        types &= json_array_size(branches) ? any : TYPE_ALL;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, item) types &=
        types_of(root, item, left);
    return types;
}

const json_t *rp_dialect_follow(const json_t *parameters, const json_t *schema) {
    return follow(parameters, schema);
}

unsigned rp_dialect_schema_types(const json_t *parameters, const json_t *schema) {
    int left = BRANCHES_MAX;
    unsigned types = types_of(parameters, schema, &left);
    return types ? types : TYPE_ALL;
}

unsigned rp_dialect_types(const json_t *parameters, const char *key, size_t key_len) {
    const json_t *object = follow(parameters, parameters);
    const json_t *property = json_object_getn(json_object_get(object, "properties"), key, key_len);
    return property ? rp_dialect_schema_types(parameters, property) : (unsigned)TYPE_ALL;
}
