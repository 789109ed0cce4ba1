/* grammar_schema_enum.c - enum and const: values as JSON texts. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define VALUE_DEPTH       32
#define COMPARES_PER_FUEL 32 /* of two values */

/* A value with the usual gaps. */
static uint32_t value_node(struct schema_compiler *c, const json_t *value, int depth) {
    struct rp_grammar *g = c->g;
    char text[64];
    const char *key;
    json_t *child;
    size_t index;
    uint32_t node = NODE_NONE;
    if (depth > VALUE_DEPTH) {
        grammar_fail(g, RP_STATUS_FULL);
        return NODE_NONE;
    }
    switch (json_typeof(value)) {
    case JSON_STRING:
        return schema_quoted(c, json_string_value(value), json_string_length(value));
    case JSON_NULL:
        return g_lit(g, "null", 4);
    case JSON_TRUE:
        return g_lit(g, "true", 4);
    case JSON_FALSE:
        return g_lit(g, "false", 5);
    case JSON_INTEGER:
    case JSON_REAL: {
        schema_number_text(value, text, sizeof text);
        uint32_t number = g_lit(g, text, strlen(text));
        bool plain = strpbrk(text, ".e") == NULL;
        return plain && json_is_real(value) ? g_or2(g, number, g_cat(g, number, g_lit(g, ".0", 2)))
                                            : number;
    }
    case JSON_ARRAY:
        json_array_foreach(value, index, child) {
            uint32_t one = value_node(c, child, depth + 1);
            node = index ? g_cat(g, node, g_cat(g, c->comma, one)) : one;
        }
        node = json_array_size(value) ? g_cat(g, c->ws, node) : NODE_EPS;
        return g_cat(g, g_lit(g, "[", 1), g_cat(g, node, g_cat(g, c->ws, g_lit(g, "]", 1))));
    default:
        index = 0;
        json_object_foreach((json_t *)value, key, child) {
            uint32_t one = g_cat(g, schema_quoted(c, key, strlen(key)),
                                 g_cat(g, c->colon, value_node(c, child, depth + 1)));
            node = index++ ? g_cat(g, node, g_cat(g, c->comma, one)) : one;
        }
        node = index ? g_cat(g, c->ws, node) : NODE_EPS;
        return g_cat(g, g_lit(g, "{", 1), g_cat(g, node, g_cat(g, c->ws, g_lit(g, "}", 1))));
    }
}

bool schema_same_value(const json_t *a, const json_t *b) {
    const char *key;
    json_t *child, *other;
    size_t index;
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a))
        return json_equal(a, b);
    json_array_foreach(a, index,
                       child) if (!schema_same_value(child, json_array_get(b, index))) return false;
    json_object_foreach((json_t *)a, key, child) {
        other = json_object_get(b, key);
        if (!other || !schema_same_value(child, other))
            return false;
    }
    return true;
}

bool schema_has_value(struct schema_compiler *c, const json_t *list, const json_t *value) {
    size_t index;
    json_t *one;
    if (!grammar_burn(c->g, 1 + json_array_size(list) / COMPARES_PER_FUEL))
        return false;
    json_array_foreach(list, index, one) if (schema_same_value(one, value)) return true;
    return false;
}

/* Keeps of *values those that are in list, or takes list when there are none yet. */
static bool keep_common(struct schema_compiler *c, json_t **values, const json_t *list) {
    json_t *kept = json_array(), *one;
    size_t index;
    const json_t *from = *values ? *values : list;
    json_array_foreach(from, index, one) {
        if ((!*values || schema_has_value(c, list, one)) && !schema_has_value(c, kept, one) &&
            (c->g->status != RP_OK || json_array_append(kept, one) != 0))
            break;
    }
    json_decref(*values);
    *values = kept;
    return kept != NULL;
}

/* Other keywords than the type apply, so values must be tried. */
static bool needs_trial(const struct conj *conj) {
    for (size_t i = 0; i < conj->count; i++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)conj->items[i].schema, key, value) {
            static const char *const harmless[] = {"type", "enum", "const", "$ref", "allOf"};
            bool fine = schema_keyword(key) != KEYWORD_APPLIES && key[0] != '\1';
            for (size_t k = 0; k < RP_ARRAY_COUNT(harmless) && !fine; k++)
                fine = strcmp(key, harmless[k]) == 0;
            if (!fine)
                return true;
        }
    }
    return false;
}

static uint32_t body_of_values(struct schema_compiler *c, const json_t *values) {
    size_t base = c->g->work.count, index;
    json_t *one;
    json_array_foreach(values, index, one) {
        uint32_t node = value_node(c, one, 0);
        if (!grammar_burn(c->g, 4) || !VEC_PUSH(c->g, &c->g->work, node))
            break;
    }
    uint32_t body = g_or(c->g, c->g->work.at + base, c->g->work.count - base);
    c->g->work.count = base;
    return body;
}

int schema_values(struct schema_compiler *c, const struct conj *conj, uint32_t *out) {
    struct item_list rest = {.nothing = false};
    json_t *values = NULL;
    unsigned types = TYPE_ANY;
    bool ok = true;
    for (size_t i = 0; ok && i < conj->count; i++) {
        struct item item = conj->items[i];
        const json_t *s = item.schema, *list = json_object_get(s, "enum");
        json_t *constant = json_object_get(s, "const");
        unsigned bits = TYPE_ANY;
        ok = schema_type_bits(c, s, &bits) == RP_OK;
        types &= bits;
        if (ok && list)
            ok = keep_common(c, &values, list);
        if (ok && constant) {
            json_t *single = json_pack("[O]", constant);
            ok = single && keep_common(c, &values, single);
            json_decref(single);
        }
        item.done |= DONE_VALUES;
        ok = ok && VEC_PUSH(c->g, &rest.list, item);
    }
    for (size_t i = json_array_size(values); i-- > 0;)
        if (!(schema_value_type(json_array_get(values, i)) & types))
            json_array_remove(values, i);
    bool trial = needs_trial(conj);
    struct values_job job = {.ref = NODE_NONE, .rest = NODE_NONE, .values = values};
    rest.nothing = !trial || !ok; /* then no rule is made of it */
    int rc = schema_rule(c, &rest, &job.rest);
    rc = rc == RP_OK ? c->g->status : rc;
    if (!ok || rc != RP_OK) {
        json_decref(values);
        return rc != RP_OK ? rc : grammar_fail(c->g, RP_STATUS_NO_MEMORY);
    }
    if (!trial) {
        *out = body_of_values(c, values);
        json_decref(values);
        return c->g->status;
    }
    *out = job.ref = g_rule(c->g);
    if (!VEC_PUSH(c->g, &c->values, job)) {
        json_decref(values);
        return c->g->status;
    }
    g_rule_set(c->g, job.ref, body_of_values(c, values));
    return c->g->status;
}

/* Whether the rule accepts the compact text of the value. */
static bool accepts(struct schema_compiler *c, uint32_t rule, const json_t *value) {
    struct rp_grammar *g = c->g;
    char number[64];
    char *text =
        json_is_number(value) ? rp_strdup(schema_number_text(value, number, sizeof number)) : NULL;
    char *dumped = text ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    const char *at = text ? text : dumped;
    uint32_t state = at ? g_state(g, rule) : NODE_NONE;
    for (; at && *at && state != NODE_NONE; at++)
        state = g_step(g, state, (uint8_t)*at);
    if (!text && !dumped)
        grammar_fail(g, RP_STATUS_NO_MEMORY);
    rp_free(text);
    if (dumped) {
        json_malloc_t unused;
        json_free_t release;
        json_get_alloc_funcs(&unused, &release);
        release(dumped);
    }
    return g_accepting(g, state);
}

int schema_filter_values(struct schema_compiler *c) {
    struct rp_grammar *g = c->g;
    g_settle(g, c->first_node);
    for (bool changed = true; changed && g->status == RP_OK;) {
        changed = false;
        for (size_t i = 0; i < c->values.count; i++) {
            struct values_job *job = &c->values.at[i];
            size_t before = json_array_size(job->values);
            for (size_t k = before; k-- > 0 && g->status == RP_OK;)
                if (!accepts(c, job->rest, json_array_get(job->values, k)))
                    json_array_remove(job->values, k);
            if (json_array_size(job->values) == before)
                continue;
            changed = true;
            g_rule_set(g, job->ref, body_of_values(c, job->values));
        }
        if (!changed)
            break;
        g_settle(g, c->first_node);
        /* steps were remembered for the rules as they were */
        memset(g->memo.at, 0, g->memo.count * sizeof *g->memo.at);
        g->memo_used = 0;
    }
    return g->status;
}
