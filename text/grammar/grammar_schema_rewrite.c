/* grammar_schema_rewrite.c - not, if, dependent keywords and oneOf as schemas without them.
 * "\1notPattern" and "\1notValues" are ours: a string that does not match, none of these values. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define DEPTH_MAX 8

static int no_memory(struct schema_compiler *c) { return grammar_fail(c->g, RP_STATUS_NO_MEMORY); }

/* ---- not ---------------------------------------------------------------------------------------- */

static json_t *other_types(unsigned bits) {
    static const struct {
        unsigned bits;
        const char *name;
    } names[] = {
        {TYPE_NULL, "null"},     {TYPE_BOOLEAN, "boolean"}, {TYPE_INTEGER | TYPE_NUMBER, "number"},
        {TYPE_STRING, "string"}, {TYPE_ARRAY, "array"},     {TYPE_OBJECT, "object"}};
    json_t *list = json_array();
    for (size_t i = 0; list && i < RP_ARRAY_COUNT(names); i++)
        if (!(bits & names[i].bits))
            json_array_append_new(list, json_string(names[i].name));
    return list;
}

/* {type, key: value + by} */
static json_t *bound(const char *type, const char *key, const json_t *value, int by) {
    return json_pack("{s:s, s:I}", "type", type, key, (json_int_t)json_number_value(value) + by);
}

/* Appends the schemas of which one holds when keyword `key` of `s` does not. */
static int negate_keyword(struct schema_compiler *c, const json_t *s, const char *key,
                          json_t *value, json_t *out) {
    static const struct {
        const char *key, *type, *other;
        int by;
    } sizes[] = {{"minLength", "string", "maxLength", -1},
                 {"maxLength", "string", "minLength", 1},
                 {"minItems", "array", "maxItems", -1},
                 {"maxItems", "array", "minItems", 1},
                 {"minProperties", "object", "maxProperties", -1},
                 {"maxProperties", "object", "minProperties", 1}};
    static const struct {
        const char *key, *other;
    } ranges[] = {{"minimum", "exclusiveMaximum"},
                  {"maximum", "exclusiveMinimum"},
                  {"exclusiveMinimum", "maximum"},
                  {"exclusiveMaximum", "minimum"}};
    json_t *child;
    const char *name;
    size_t index;
    int bad = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++)
        if (strcmp(key, sizes[i].key) == 0) {
            if (sizes[i].by > 0 || json_number_value(value) > 0)
                bad = json_array_append_new(
                    out, bound(sizes[i].type, sizes[i].other, value, sizes[i].by));
            return bad ? no_memory(c) : RP_OK;
        }
    for (size_t i = 0; i < RP_ARRAY_COUNT(ranges); i++)
        if (strcmp(key, ranges[i].key) == 0 && json_is_number(value) &&
            !json_is_boolean(json_object_get(s, "exclusiveMinimum")) &&
            !json_is_boolean(json_object_get(s, "exclusiveMaximum")))
            return json_array_append_new(
                       out, json_pack("{s:s, s:O}", "type", "number", ranges[i].other, value))
                       ? no_memory(c)
                       : RP_OK;
    if (strcmp(key, "type") == 0) {
        unsigned bits;
        int rc = schema_type_bits(c, s, &bits);
        if (rc != RP_OK)
            return rc;
        if ((bits & TYPE_INTEGER) && !(bits & TYPE_NUMBER))
            return schema_refuse(c, RP_STATUS_UNSUPPORTED, s, "not", "integers cannot be excluded");
        bad = json_array_append_new(out, json_pack("{s:o}", "type", other_types(bits)));
    } else if (strcmp(key, "const") == 0) {
        bad = json_array_append_new(out, json_pack("{s:[O]}", "\1notValues", value));
    } else if (strcmp(key, "enum") == 0) {
        bad = json_array_append_new(out, json_pack("{s:O}", "\1notValues", value));
    } else if (strcmp(key, "pattern") == 0) {
        bad = json_array_append_new(
            out, json_pack("{s:s, s:O}", "type", "string", "\1notPattern", value));
    } else if (strcmp(key, "required") == 0) {
        json_array_foreach(value, index, child) bad |=
            json_array_append_new(out, json_pack("{s:s, s:{s:b}}", "type", "object", "properties",
                                                 json_string_value(child), 0));
    } else if (strcmp(key, "properties") == 0) {
        json_object_foreach(value, name, child) bad |= json_array_append_new(
            out, json_pack("{s:s, s:[s], s:{s:{s:O}}}", "type", "object", "required", name,
                           "properties", name, "not", child));
    } else if (strcmp(key, "anyOf") == 0 || strcmp(key, "allOf") == 0) {
        json_t *list = json_array();
        json_array_foreach(value, index, child) bad |=
            json_array_append_new(list, json_pack("{s:O}", "not", child));
        bad |=
            json_array_append_new(out, json_pack("{s:o}", key[1] == 'n' ? "allOf" : "anyOf", list));
    } else if (strcmp(key, "not") == 0) {
        bad = json_array_append(out, value);
    } else if (strcmp(key, "$ref") == 0) {
        const json_t *target;
        int rc = schema_resolve(c, s, json_string_value(value), &target);
        if (rc != RP_OK)
            return rc;
        bad = json_array_append_new(out, json_pack("{s:O}", "not", target));
    } else {
        char text[96];
        snprintf(text, sizeof text, "cannot be enforced together with \"%.40s\"", key);
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, s, "not", text);
    }
    return bad ? no_memory(c) : RP_OK;
}

static int negate(struct schema_compiler *c, const json_t *s, json_t **out) {
    const char *key;
    json_t *value;
    *out = NULL;
    if (json_is_boolean(s)) {
        *out = json_boolean(json_is_false(s));
        return RP_OK;
    }
    int rc = schema_check_keywords(c, s);
    json_t *any = json_array();
    json_object_foreach((json_t *)s, key, value) {
        bool applies = schema_keyword(key) == KEYWORD_APPLIES || key[0] == '\1';
        bool without_if =
            (!strcmp(key, "then") || !strcmp(key, "else")) && !json_object_get(s, "if");
        if (rc == RP_OK && applies && !without_if)
            rc = negate_keyword(c, s, key, value, any);
    }
    if (rc != RP_OK) {
        json_decref(any);
        return rc;
    }
    if (json_array_size(any) == 0) {
        json_decref(any);
        *out = json_false();
    } else {
        *out = json_pack("{s:o}", "anyOf", any);
    }
    return *out ? RP_OK : no_memory(c);
}

/* ---- if, dependent ---------------------------------------------------------------------------- */

static json_t *condition(const json_t *s) {
    json_t *yes = json_object_get(s, "then"), *no = json_object_get(s, "else");
    json_t *when = json_object_get(s, "if");
    json_t *first =
        yes ? json_pack("{s:[O,O]}", "allOf", when, yes) : json_pack("{s:[O]}", "allOf", when);
    json_t *second =
        no ? json_pack("{s:[{s:O},O]}", "allOf", "not", when, no) : json_pack("{s:O}", "not", when);
    return json_pack("{s:[o,o]}", "anyOf", first, second);
}

static int dependent(struct schema_compiler *c, const json_t *s, json_t **out) {
    static const char *const keys[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    json_t *all = json_array();
    for (size_t i = 0; i < RP_ARRAY_COUNT(keys); i++) {
        const char *name;
        json_t *value;
        json_object_foreach(json_object_get(s, keys[i]), name, value) {
            json_t *then = json_is_string(value)  ? json_pack("{s:[O]}", "required", value)
                           : json_is_array(value) ? json_pack("{s:O}", "required", value)
                                                  : json_incref(value);
            json_t *one = json_pack("{s:[{s:{s:b}},{s:[s],s:[o]}]}", "anyOf", "properties", name, 0,
                                    "required", name, "allOf", then);
            if (!one || json_array_append_new(all, one) != 0) {
                json_decref(all);
                return no_memory(c);
            }
        }
    }
    *out = json_array_size(all) ? json_pack("{s:o}", "allOf", all) : json_object();
    if (json_array_size(all) == 0 && json_object_size(*out) == 0)
        json_decref(all);
    return *out ? RP_OK : no_memory(c);
}

int schema_rewrite(struct schema_compiler *c, const json_t *schema, unsigned done, json_t **out,
                   unsigned *out_done) {
    const json_t *inverted = json_object_get(schema, "not");
    *out_done = 0;
    if (inverted && !(done & DONE_NOT)) {
        *out_done = DONE_NOT;
        return negate(c, inverted, out);
    }
    if (json_object_get(schema, "if") && !(done & DONE_IF) &&
        (json_object_get(schema, "then") || json_object_get(schema, "else"))) {
        *out_done = DONE_IF;
        *out = condition(schema);
        return *out ? RP_OK : no_memory(c);
    }
    if (!(done & DONE_DEPENDENT) &&
        (json_object_get(schema, "dependentRequired") ||
         json_object_get(schema, "dependentSchemas") || json_object_get(schema, "dependencies"))) {
        *out_done = DONE_DEPENDENT;
        return dependent(c, schema, out);
    }
    return RP_OK;
}

/* ---- oneOf ---------------------------------------------------------------------------------------- */

/* $ref alone is followed. */
static const json_t *target_of(struct schema_compiler *c, const json_t *s, int depth) {
    struct rp_error *err = c->err;
    const json_t *to = s;
    c->err = NULL;
    while (depth-- > 0 && json_object_size(s) >= 1 && json_object_get(s, "$ref")) {
        if (schema_resolve(c, s, json_string_value(json_object_get(s, "$ref")), &to) != RP_OK)
            break;
        s = to;
    }
    c->err = err;
    return s;
}

/* At least the types that values of s can have. */
static unsigned possible_types(struct schema_compiler *c, const json_t *s, int depth) {
    unsigned bits = TYPE_ANY, any = 0;
    json_t *child;
    size_t index;
    if (json_is_false(s))
        return 0;
    if (!json_is_object(s) || depth > DEPTH_MAX)
        return TYPE_ANY;
    const json_t *values = json_object_get(s, "enum"), *constant = json_object_get(s, "const");
    struct rp_error *err = c->err;
    c->err = NULL;
    if (schema_type_bits(c, s, &bits) != RP_OK)
        bits = TYPE_ANY;
    c->err = err;
    json_array_foreach(values, index, child) any |= schema_value_type(child);
    if (json_array_size(values) > 0)
        bits &= any;
    if (constant)
        bits &= schema_value_type(constant);
    if (json_object_get(s, "$ref"))
        bits &= possible_types(c, target_of(c, s, 1), depth + 1);
    json_array_foreach(json_object_get(s, "allOf"), index, child) bits &=
        possible_types(c, child, depth + 1);
    static const char *const keys[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *list = json_object_get(s, keys[i]);
        any = 0;
        json_array_foreach(list, index, child) any |= possible_types(c, child, depth + 1);
        if (list)
            bits &= any;
    }
    return bits;
}

static bool requires(const json_t *s, const char *name) {
    json_t *child;
    size_t index;
    json_array_foreach(json_object_get(s, "required"), index, child) {
        const char *text = json_string_value(child);
        if (text && strcmp(text, name) == 0)
            return true;
    }
    return false;
}

static bool forbids(const json_t *s, const char *name) {
    const json_t *own = json_object_get(json_object_get(s, "properties"), name);
    if (own)
        return json_is_false(own);
    return json_is_false(json_object_get(s, "additionalProperties")) &&
           json_object_size(json_object_get(s, "patternProperties")) == 0;
}

static bool value_in(const json_t *s, const json_t *value) {
    json_t *child;
    size_t index;
    const json_t *constant = json_object_get(s, "const");
    if (constant)
        return json_is_number(constant) && json_is_number(value)
                   ? json_number_value(constant) == json_number_value(value)
                   : json_equal(constant, value);
    json_array_foreach(json_object_get(s, "enum"), index, child) {
        if (json_is_number(child) && json_is_number(value)
                ? json_number_value(child) == json_number_value(value)
                : json_equal(child, value))
            return true;
    }
    return false;
}

static bool has_values(const json_t *s) {
    return json_object_get(s, "const") || json_is_array(json_object_get(s, "enum"));
}

static bool no_common_value(const json_t *a, const json_t *b) {
    json_t *child;
    size_t index;
    if (!has_values(a) || !has_values(b))
        return false;
    if (json_object_get(a, "const"))
        return !value_in(b, json_object_get(a, "const"));
    json_array_foreach(json_object_get(a, "enum"), index,
                       child) if (value_in(b, child)) return false;
    return true;
}

/* No value satisfies both: proved by types, values, or a key that tells them apart. */
static bool disjoint(struct schema_compiler *c, const json_t *a, const json_t *b, int depth) {
    if (depth > DEPTH_MAX)
        return false;
    unsigned common = possible_types(c, a, 0) & possible_types(c, b, 0);
    if (common == 0)
        return true;
    const json_t *x = target_of(c, a, 4), *y = target_of(c, b, 4);
    if (!json_is_object(x) || !json_is_object(y))
        return false;
    if (no_common_value(x, y))
        return true;
    if (common != TYPE_OBJECT)
        return false;
    for (int turn = 0; turn < 2; turn++) {
        json_t *child;
        size_t index;
        json_array_foreach(json_object_get(x, "required"), index, child) {
            const char *name = json_string_value(child);
            if (!name)
                continue;
            if (forbids(y, name))
                return true;
            const json_t *of_x = json_object_get(json_object_get(x, "properties"), name);
            const json_t *of_y = json_object_get(json_object_get(y, "properties"), name);
            if (of_x && of_y && (requires(x, name) || requires(y, name)) &&
                disjoint(c, of_x, of_y, depth + 1))
                return true;
        }
        const json_t *swap = x;
        x = y;
        y = swap;
    }
    return false;
}

int schema_one_of(struct schema_compiler *c, const json_t *schema, json_t **out_branches) {
    const json_t *list = json_object_get(schema, "oneOf");
    json_t *out = json_array(), *a, *b;
    size_t i, k;
    json_array_foreach(list, i, a) {
        json_t *all = json_pack("[O]", a);
        json_array_foreach(list, k, b) {
            if (!grammar_burn(c->g, 8))
                break;
            if (i != k && !disjoint(c, a, b, 0) &&
                json_array_append_new(all, json_pack("{s:O}", "not", b)) != 0)
                no_memory(c);
        }
        json_t *branch =
            json_array_size(all) == 1 ? json_incref(a) : json_pack("{s:O}", "allOf", all);
        json_decref(all);
        if (!branch || json_array_append_new(out, branch) != 0)
            no_memory(c);
    }
    if (c->g->status != RP_OK) {
        json_decref(out);
        return c->g->status;
    }
    *out_branches = out;
    return RP_OK;
}
