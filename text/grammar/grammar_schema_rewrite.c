/* grammar_schema_rewrite.c - not, if and dependent keywords as schemas without them.
 * Some keywords are ours, and their names begin with \1:
 * notPattern, notFormat, notMultipleOf, notValues: what the keyword without "not" refuses.
 * someItem: an element from `first` on that satisfies `value`.
 * some: a key that is not in `except`, matches none of `exceptPatterns`, matches `pattern`, does
 * not satisfy `notName`, and whose value satisfies `value`.
 * The type "\1fraction" is that of numbers that are no integers. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

static int no_memory(struct schema_compiler *c) { return grammar_fail(c->g, RP_STATUS_NO_MEMORY); }

/* ---- not ------------------------------------------------------------ */

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
    if (list && (bits & (TYPE_INTEGER | TYPE_NUMBER)) == TYPE_INTEGER)
        json_array_append_new(list, json_string("\1fraction"));
    return list;
}

/* The schema that an array or an object alone satisfies. */
static json_t *schema_of_value(const json_t *value) {
    const char *name;
    json_t *child, *inner = json_is_array(value) ? json_array() : json_object();
    json_t *names = json_array();
    size_t index;
    int bad = 0;
    if (json_is_array(value)) {
        json_array_foreach(value, index, child) bad |=
            json_array_append_new(inner, json_pack("{s:O}", "const", child));
        json_decref(names);
        json_int_t size = (json_int_t)json_array_size(value);
        json_t *made =
            json_pack("{s:s, s:I, s:I}", "type", "array", "minItems", size, "maxItems", size);
        if (size > 0) /* an empty list is no prefixItems */
            bad |= json_object_set(made, "prefixItems", inner);
        json_decref(inner);
        return bad ? NULL : made;
    }
    json_object_foreach((json_t *)value, name, child) {
        bad |= json_array_append_new(names, json_string(name));
        bad |= json_object_set_new(inner, name, json_pack("{s:O}", "const", child));
    }
    json_t *made = json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "required", names,
                             "properties", inner, "additionalProperties", 0);
    if (!bad)
        return made;
    json_decref(made);
    return NULL;
}

/* None of these values. */
static json_t *none_of(const json_t *values) {
    json_t *simple = json_array(), *all = json_array(), *one;
    size_t index;
    int bad = 0;
    json_array_foreach(values, index, one) {
        if (json_is_array(one) || json_is_object(one))
            bad |= json_array_append_new(all, json_pack("{s:o}", "not", schema_of_value(one)));
        else
            bad |= json_array_append(simple, one);
    }
    bad |= json_array_append_new(all, json_pack("{s:o}", "\1notValues", simple));
    json_t *made = json_pack("{s:o}", "allOf", all);
    if (!bad)
        return made;
    json_decref(made);
    return NULL;
}

/* {type, key: value + by} */
static json_t *bound(const char *type, const char *key, const json_t *value, int by) {
    return json_pack("{s:s, s:I}", "type", type, key, (json_int_t)json_number_value(value) + by);
}

/* One schema of a list holds and no other one: the opposite. */
static int negate_one_of(struct schema_compiler *c, const json_t *list, json_t *out) {
    json_t *none = json_array(), *a, *b;
    size_t i, k;
    int bad = 0;
    json_array_foreach(list, i, a) {
        bad |= json_array_append_new(none, json_pack("{s:O}", "not", a));
        for (k = i + 1; k < json_array_size(list); k++) {
            b = json_array_get(list, k);
            if (!grammar_burn(c->g, 8))
                break;
            if (!schema_disjoint(c, a, b))
                bad |= json_array_append_new(out, json_pack("{s:[O,O]}", "allOf", a, b));
        }
    }
    bad |= json_array_append_new(out, json_pack("{s:o}", "allOf", none));
    return bad ? no_memory(c) : c->g->status;
}

static json_t *some_item(size_t first, const json_t *value) {
    return json_pack("{s:s, s:{s:I, s:{s:O}}}", "type", "array", "\1someItem", "first",
                     (json_int_t)first, "value", "not", value);
}

static json_t *some_pair(const char *what, json_t *detail, json_t *value) {
    return json_pack("{s:s, s:{s:o, s:o}}", "type", "object", "\1some", what, detail, "value",
                     value);
}

/* {"not": value}, or true or false. */
static json_t *opposite(json_t *value) {
    if (json_is_boolean(value))
        return json_boolean(json_is_false(value));
    return json_pack("{s:O}", "not", value);
}

static int negate_elements(const json_t *s, const char *key, json_t *value, json_t *out) {
    bool list = json_is_array(value);
    int bad = 0;
    if (list) { /* prefixItems, or items of older drafts */
        for (size_t i = 0; i < json_array_size(value); i++) {
            json_t *prefix = json_array();
            for (size_t k = 0; k < i; k++)
                json_array_append_new(prefix, json_true());
            bad |= json_array_append_new(prefix, opposite(json_array_get(value, i)));
            bad |=
                json_array_append_new(out, json_pack("{s:s, s:I, s:o}", "type", "array", "minItems",
                                                     (json_int_t)i + 1, "prefixItems", prefix));
        }
        return bad;
    }
    const json_t *first = json_object_get(s, key[0] == 'a' ? "items" : "prefixItems");
    if (key[0] == 'a' && !json_is_array(first))
        return 0; /* additionalItems beside items that apply to all */
    return json_is_true(value)
               ? 0
               : json_array_append_new(out, some_item(json_array_size(first), value));
}

static int negate_contains(const json_t *s, json_t *value, json_t *out) {
    const json_t *min = json_object_get(s, "minContains"), *max = json_object_get(s, "maxContains");
    json_int_t least = min ? (json_int_t)json_number_value(min) : 1;
    int bad = 0;
    if (least > 0)
        bad |= json_array_append_new(out,
                                     json_pack("{s:s, s:O, s:i, s:I}", "type", "array", "contains",
                                               value, "minContains", 0, "maxContains", least - 1));
    if (max)
        bad |= json_array_append_new(out, json_pack("{s:s, s:O, s:I}", "type", "array", "contains",
                                                    value, "minContains",
                                                    (json_int_t)json_number_value(max) + 1));
    return bad;
}

static int negate_pairs(const json_t *s, const char *key, json_t *value, json_t *out) {
    const char *pattern;
    json_t *child;
    int bad = 0;
    if (strcmp(key, "propertyNames") == 0)
        return json_array_append_new(out, some_pair("notName", json_incref(value), json_true()));
    if (strcmp(key, "patternProperties") == 0) {
        json_object_foreach(value, pattern, child) if (!json_is_true(child)) bad |=
            json_array_append_new(out, some_pair("pattern", json_string(pattern), opposite(child)));
        return bad;
    }
    if (json_is_true(value))
        return 0;
    json_t *names = json_object_get(s, "properties");
    json_t *made = some_pair("except", names ? json_incref(names) : json_object(), opposite(value));
    json_t *patterns = json_object_get(s, "patternProperties");
    if (made && patterns)
        bad = json_object_set(json_object_get(made, "\1some"), "exceptPatterns", patterns);
    return bad | json_array_append_new(out, made);
}

static json_t *condition(const json_t *s);
static int dependent(struct schema_compiler *c, const json_t *s, json_t **out);

/* Keywords of elements, pairs and conditions. */
static int negate_container(struct schema_compiler *c, const json_t *s, const char *key,
                            json_t *value, json_t *out) {
    int bad = 0;
    if (!strcmp(key, "oneOf"))
        return negate_one_of(c, value, out);
    if (!strcmp(key, "items") || !strcmp(key, "additionalItems") || !strcmp(key, "prefixItems")) {
        bad = negate_elements(s, key, value, out);
    } else if (!strcmp(key, "contains")) {
        bad = negate_contains(s, value, out);
    } else if (!strcmp(key, "propertyNames") || !strcmp(key, "patternProperties") ||
               !strcmp(key, "additionalProperties")) {
        bad = negate_pairs(s, key, value, out);
    } else if (!strcmp(key, "multipleOf")) {
        bad = json_array_append_new(
            out, json_pack("{s:s, s:O}", "type", "number", "\1notMultipleOf", value));
    } else if (!strcmp(key, "format")) {
        if (schema_format_outline(json_string_value(value))) /* others say nothing */
            bad = json_array_append_new(
                out, json_pack("{s:s, s:O}", "type", "string", "\1notFormat", value));
    } else if (!strcmp(key, "if")) {
        if (json_object_get(s, "then") || json_object_get(s, "else"))
            bad = json_array_append_new(out, json_pack("{s:o}", "not", condition(s)));
    } else if (!strncmp(key, "depend", 6)) {
        json_t *made;
        int rc = dependent(c, s, &made);
        if (rc != RP_OK)
            return rc;
        bad = json_array_append_new(out, json_pack("{s:o}", "not", made));
    } else if (strcmp(key, "then") && strcmp(key, "else") && strcmp(key, "minContains") &&
               strcmp(key, "maxContains")) {
        char text[96];
        snprintf(text, sizeof text, "cannot be enforced together with \"%.40s\"", key);
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, s, "not", text);
    }
    return bad ? no_memory(c) : RP_OK;
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
        bad = json_array_append_new(out, json_pack("{s:o}", "type", other_types(bits)));
    } else if (strcmp(key, "const") == 0) {
        json_t *list = json_pack("[O]", value);
        bad = json_array_append_new(out, none_of(list));
        json_decref(list);
    } else if (strcmp(key, "enum") == 0) {
        bad = json_array_append_new(out, none_of(value));
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
        return negate_container(c, s, key, value, out);
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
        if (rc == RP_OK && applies)
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

/* ---- if, dependent ------------------------------------------------------------ */

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
