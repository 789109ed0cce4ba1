/* grammar_schema_one_of.c - oneOf as anyOf: each branch and not those others that may share a value
 * with it. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define DEPTH_MAX 8

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
    if (!json_is_object(s) || depth > DEPTH_MAX || !grammar_burn(c->g, 2))
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

static bool forbids(const json_t *s, const char *name) {
    const json_t *own = json_object_get(json_object_get(s, "properties"), name);
    if (own)
        return json_is_false(own);
    return json_is_false(json_object_get(s, "additionalProperties")) &&
           json_object_size(json_object_get(s, "patternProperties")) == 0;
}

static bool value_in(struct schema_compiler *c, const json_t *s, const json_t *value) {
    const json_t *constant = json_object_get(s, "const");
    return constant ? schema_same_value(constant, value)
                    : schema_has_value(c, json_object_get(s, "enum"), value);
}

static bool has_values(const json_t *s) {
    return json_object_get(s, "const") || json_is_array(json_object_get(s, "enum"));
}

static bool no_common_value(struct schema_compiler *c, const json_t *a, const json_t *b) {
    json_t *child;
    size_t index;
    if (!has_values(a) || !has_values(b))
        return false;
    if (json_object_get(a, "const"))
        return !value_in(c, b, json_object_get(a, "const"));
    json_array_foreach(json_object_get(a, "enum"), index, child) {
        if (c->g->status != RP_OK || value_in(c, b, child))
            return false;
    }
    return true;
}

/* The value does not satisfy s, as far as a few keywords show. */
static bool refutes(struct schema_compiler *c, const json_t *s, const json_t *value, int depth) {
    const char *name;
    json_t *child;
    size_t index;
    if (!json_is_object(s) || depth > DEPTH_MAX || !grammar_burn(c->g, 4))
        return json_is_false(s);
    if (!(possible_types(c, s, 0) & schema_value_type(value)) ||
        (has_values(s) && !value_in(c, s, value)))
        return true;
    const json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    if (json_is_array(value) && ((min && json_array_size(value) < json_number_value(min)) ||
                                 (max && json_array_size(value) > json_number_value(max))))
        return true;
    const json_t *items = json_object_get(s, "prefixItems") ? NULL : json_object_get(s, "items");
    json_array_foreach(value, index,
                       child) if (items && refutes(c, items, child, depth + 1)) return true;
    json_array_foreach(json_object_get(s, "required"), index, child) {
        const char *text = json_string_value(child);
        if (!json_is_object(value) || !grammar_burn(c->g, 1))
            break;
        if (text && !json_object_get(value, text))
            return true;
    }
    json_object_foreach((json_t *)value, name, child) {
        const json_t *own = json_object_get(json_object_get(s, "properties"), name);
        if (own && refutes(c, own, child, depth + 1))
            return true;
    }
    return json_object_get(s, "$ref") && refutes(c, target_of(c, s, 1), value, depth + 1);
}

/* x has a list of values, and y refutes each. */
static bool values_refuted(struct schema_compiler *c, const json_t *x, const json_t *y) {
    json_t *child;
    size_t index;
    if (!has_values(x))
        return false;
    if (json_object_get(x, "const"))
        return refutes(c, y, json_object_get(x, "const"), 0);
    json_array_foreach(json_object_get(x, "enum"), index,
                       child) if (!refutes(c, y, child, 0)) return false;
    return true;
}

/* No value of these types satisfies both: proved by types, values, or a key. */
static bool disjoint(struct schema_compiler *c, const json_t *a, const json_t *b, unsigned types,
                     int depth) {
    if (depth > DEPTH_MAX || !grammar_burn(c->g, 4))
        return false;
    unsigned common = types & possible_types(c, a, 0) & possible_types(c, b, 0);
    if (common == 0)
        return true;
    const json_t *x = target_of(c, a, 4), *y = target_of(c, b, 4);
    if (!json_is_object(x) || !json_is_object(y))
        return false;
    if (no_common_value(c, x, y) || values_refuted(c, x, y) || values_refuted(c, y, x))
        return true;
    if (common != TYPE_OBJECT)
        return false;
    for (int turn = 0; turn < 2; turn++) {
        json_t *child;
        size_t index;
        json_array_foreach(json_object_get(x, "required"), index, child) {
            const char *name = json_string_value(child);
            if (!name || !grammar_burn(c->g, 1))
                continue;
            if (forbids(y, name))
                return true;
            const json_t *of_x = json_object_get(json_object_get(x, "properties"), name);
            const json_t *of_y = json_object_get(json_object_get(y, "properties"), name);
            if (of_x && of_y && disjoint(c, of_x, of_y, TYPE_ANY, depth + 1))
                return true;
        }
        const json_t *swap = x;
        x = y;
        y = swap;
    }
    return false;
}

bool schema_disjoint(struct schema_compiler *c, const json_t *a, const json_t *b) {
    return disjoint(c, a, b, TYPE_ANY, 0);
}

int schema_one_of(struct schema_compiler *c, const json_t *schema, unsigned types,
                  json_t **out_branches) {
    const json_t *list = json_object_get(schema, "oneOf");
    json_t *out = json_array(), *a, *b;
    size_t i, k;
    json_array_foreach(list, i, a) {
        json_t *all = json_pack("[O]", a);
        json_array_foreach(list, k, b) {
            if (!grammar_burn(c->g, 8))
                break;
            if (i != k && !disjoint(c, a, b, types, 0) &&
                json_array_append_new(all, json_pack("{s:O}", "not", b)) != 0)
                grammar_fail(c->g, RP_STATUS_NO_MEMORY);
        }
        json_t *branch =
            json_array_size(all) == 1 ? json_incref(a) : json_pack("{s:O}", "allOf", all);
        json_decref(all);
        if (!branch || json_array_append_new(out, branch) != 0)
            grammar_fail(c->g, RP_STATUS_NO_MEMORY);
    }
    if (c->g->status != RP_OK) {
        json_decref(out);
        return c->g->status;
    }
    *out_branches = out;
    return RP_OK;
}

bool schema_contradicts(struct schema_compiler *c, const struct conj *conj) {
    json_t *name;
    size_t index;
    for (size_t i = 0; i < conj->count; i++)
        json_array_foreach(json_object_get(conj->items[i].schema, "required"), index, name) {
            const char *text = json_string_value(name);
            for (size_t k = 0; k < conj->count && text && grammar_burn(c->g, 1); k++)
                if (forbids(conj->items[k].schema, text))
                    return true;
        }
    return false;
}
