/* grammar_schema_value.c - numbers, strings and arrays of a conjunction. */
#include "text/grammar/grammar_ebnf.h"
#include "text/grammar/grammar_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *schema_number_text(const json_t *number, char *out, size_t size) {
    if (json_is_integer(number)) {
        snprintf(out, size, "%lld", (long long)json_integer_value(number));
        return out;
    }
    double value = json_real_value(number);
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

/* ---- Numbers ------------------------------------------------------------ */

static int bound(struct schema_compiler *c, const json_t *schema, const char *key, bool up,
                 bool strict, uint32_t *rx, bool *out_bounded) {
    const json_t *value = json_object_get(schema, key);
    char text[64];
    struct decimal decimal;
    if (!value || json_is_boolean(value)) /* a boolean is draft 4's: read beside its bound */
        return RP_OK;
    if (!json_is_number(value))
        return schema_refuse(c, RP_STATUS_FORMAT, schema, key, "not a number");
    if (!decimal_read(&decimal, schema_number_text(value, text, sizeof text)))
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, key,
                             "the bound has too many digits");
    uint32_t one = up ? rx_at_least(c->g, &decimal, strict) : rx_at_most(c->g, &decimal, strict);
    *rx = rx_and2(c->g, *rx, one);
    *out_bounded = true;
    return RP_OK;
}

/* Every spelling without exponent of a number that `not` excludes. */
static int exclude(struct schema_compiler *c, const json_t *schema, const json_t *value,
                   uint32_t *rx) {
    struct rp_grammar *g = c->g;
    char text[64];
    schema_number_text(value, text, sizeof text);
    if (strchr(text, 'e'))
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, "not", "a number with an exponent");
    uint32_t zeros = rx_rep(g, rx_range(g, '0', '0'), 0, REP_INF);
    uint32_t tail =
        strchr(text, '.') ? zeros : rx_or2(g, NODE_EPS, rx_cat(g, rx_bytes(g, ".0", 2), zeros));
    const char *digits = text;
    uint32_t whole = rx_cat(g, rx_bytes(g, digits, strlen(digits)), tail);
    if (json_number_value(value) == 0)
        whole = rx_or2(g, whole, rx_cat(g, rx_bytes(g, "-", 1), whole));
    *rx = rx_and2(g, *rx, rx_not(g, whole));
    return RP_OK;
}

/* Multiples of a number, or all but these. */
static int multiples(struct schema_compiler *c, const json_t *schema, const char *key, uint32_t *rx,
                     bool *out_bounded) {
    struct rp_grammar *g = c->g;
    const json_t *value = json_object_get(schema, key);
    char text[64];
    struct decimal decimal;
    uint32_t one = NODE_NONE;
    if (!value)
        return RP_OK;
    if (decimal_read(&decimal, schema_number_text(value, text, sizeof text)))
        one = rx_multiple(g, &decimal);
    if (one == NODE_NONE)
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, key[0] == '\1' ? "not" : key,
                             "only numbers of up to six decimals that are at most 1000 without "
                             "their point are supported");
    if (key[0] == '\1') /* a multiple may have zeros after its decimals */
        one = rx_not(g, rx_multiple_padded(g, one));
    *rx = rx_and2(g, *rx, one);
    *out_bounded = true;
    return RP_OK;
}

int schema_number(struct schema_compiler *c, const struct conj *conj, unsigned types,
                  uint32_t *out) {
    struct rp_grammar *g = c->g;
    uint32_t rx = NODE_ALL;
    bool bounded = false;
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < conj->count; i++) {
        const json_t *s = conj->items[i].schema;
        bool strict_min = json_is_true(json_object_get(s, "exclusiveMinimum"));
        bool strict_max = json_is_true(json_object_get(s, "exclusiveMaximum"));
        rc = bound(c, s, "minimum", true, strict_min, &rx, &bounded);
        if (rc == RP_OK)
            rc = bound(c, s, "maximum", false, strict_max, &rx, &bounded);
        if (rc == RP_OK)
            rc = bound(c, s, "exclusiveMinimum", true, true, &rx, &bounded);
        if (rc == RP_OK)
            rc = bound(c, s, "exclusiveMaximum", false, true, &rx, &bounded);
        if (rc == RP_OK)
            rc = multiples(c, s, "multipleOf", &rx, &bounded);
        if (rc == RP_OK)
            rc = multiples(c, s, "\1notMultipleOf", &rx, &bounded);
        const json_t *excluded = json_object_get(s, "\1notValues");
        for (size_t k = 0; rc == RP_OK && k < json_array_size(excluded); k++)
            if (json_is_number(json_array_get(excluded, k))) {
                rc = exclude(c, s, json_array_get(excluded, k), &rx);
                rx = bounded ? rx
                             : rx_and2(g, rx, rx_cat(g, rx_integer(g), rx_rep(g, NODE_ALL, 0, 1)));
                bounded = true;
            }
    }
    if (rc != RP_OK)
        return rc;
    if (!(types & TYPE_INTEGER)) {
        rx = rx_and2(g, rx, rx_fraction(g));
        bounded = true;
    }
    if (!(types & TYPE_NUMBER)) {
        *out = g_lex(g, rx_and2(g, rx, rx_integer(g)));
    } else if (bounded) {
        struct decimal zero = {.negative = false};
        uint32_t plain = rx_or2(g, rx_at_least(g, &zero, false), rx_at_most(g, &zero, false));
        *out = g_lex(g, rx_and2(g, rx, plain));
    } else {
        *out = g_lex(g, rx_number(g));
    }
    return RP_OK;
}

/* ---- Strings ------------------------------------------------------------ */

int schema_format_rx(struct schema_compiler *c, const json_t *s, bool every, uint32_t *out) {
    const char *name = json_string_value(json_object_get(s, "format"));
    const char *pattern = !name   ? ""
                          : every ? schema_format_outline(name)
                                  : schema_format_pattern(name);
    *out = NODE_ALL;
    if (!pattern || !*pattern)
        return RP_OK;
    return regex_parse(c->g, pattern, strlen(pattern), every ? RX_JSON_EVERY : RX_JSON, false, out,
                       c->err);
}

/* A format that JSON Schema does not define asserts nothing. */
static int one_format(struct schema_compiler *c, const json_t *s, uint32_t *rx) {
    uint32_t one;
    int rc = schema_format_rx(c, s, false, &one);
    *rx = rx_and2(c->g, *rx, one);
    const json_t *name = json_object_get(s, "\1notFormat");
    const char *outline = name ? schema_format_outline(json_string_value(name)) : NULL;
    if (rc != RP_OK || !outline)
        return rc;
    rc = regex_parse(c->g, outline, strlen(outline), RX_JSON_EVERY, false, &one, c->err);
    *rx = rx_and2(c->g, *rx, rx_not(c->g, one));
    return rc;
}

static int one_pattern(struct schema_compiler *c, const json_t *s, const char *key, uint32_t *rx) {
    const json_t *pattern = json_object_get(s, key);
    struct rp_error inner;
    uint32_t one;
    if (!pattern)
        return RP_OK;
    bool invert = key[0] == '\1';
    int rc = regex_parse(c->g, json_string_value(pattern), json_string_length(pattern),
                         invert ? RX_JSON_EVERY : RX_JSON, true, &one, &inner);
    if (rc != RP_OK)
        return schema_refuse(c, rc, s, invert ? "not" : key, inner.text);
    *rx = rx_and2(c->g, *rx, invert ? rx_not(c->g, one) : one);
    return RP_OK;
}

static void exclude_strings(struct schema_compiler *c, const json_t *s, uint32_t *rx) {
    const json_t *excluded = json_object_get(s, "\1notValues");
    for (size_t k = 0; k < json_array_size(excluded); k++) {
        const json_t *value = json_array_get(excluded, k);
        if (json_is_string(value))
            *rx = rx_and2(c->g, *rx,
                          rx_not(c->g, rx_text(c->g, json_string_value(value),
                                               json_string_length(value), RX_JSON_EVERY)));
    }
}

int schema_string_rx(struct schema_compiler *c, const struct conj *conj, uint32_t *out_rx,
                     uint32_t *out_count) {
    struct rp_grammar *g = c->g;
    uint32_t rx = NODE_ALL, min, max;
    int rc = schema_sizes(c, conj, "minLength", "maxLength", &min, &max);
    for (size_t i = 0; rc == RP_OK && i < conj->count; i++) {
        const json_t *s = conj->items[i].schema;
        rc = one_pattern(c, s, "pattern", &rx);
        if (rc == RP_OK)
            rc = one_pattern(c, s, "\1notPattern", &rx);
        if (rc == RP_OK)
            rc = one_format(c, s, &rx);
        exclude_strings(c, s, &rx);
    }
    uint32_t any = min > max ? NODE_NONE : rx_rep(g, g->json_char, min, max);
    /* Positive expressions have whole characters of a string already. */
    bool whole = rx != NODE_ALL && !(node_at(g, rx)->flags & NODE_MIXED);
    if (out_count) {
        out_count[0] = min;
        out_count[1] = max;
        *out_rx = rx == NODE_ALL ? g->json_any : whole ? rx : rx_and2(g, rx, g->json_any);
        return rc;
    }
    *out_rx = whole && min == 0 && max == REP_INF ? rx : rx_and2(g, rx, any);
    return rc;
}

/* The characters of a string whose text a Lark grammar accepts; *out stays as it is without one. */
static int string_grammar(struct schema_compiler *c, const struct conj *conj, uint32_t rx,
                          uint32_t *out) {
    const json_t *schema = NULL, *text = NULL;
    struct rp_error inner;
    for (size_t i = 0; i < conj->count && !text; i++) {
        schema = conj->items[i].schema;
        text = json_object_get(schema, RP_SCHEMA_LARK);
    }
    if (!text)
        return RP_OK;
    if (!json_is_string(text) || rx != c->g->json_any)
        return schema_refuse(c, RP_STATUS_UNSUPPORTED, schema, "grammar",
                             "no other keyword of strings is supported beside it");
    int rc = ebnf_parse(c->g, NULL, json_string_value(text), json_string_length(text), true,
                        RX_JSON, out, &inner);
    return rc == RP_OK ? rc : schema_refuse(c, rc, schema, "grammar", inner.text);
}

int schema_string(struct schema_compiler *c, const struct conj *conj, uint32_t *out) {
    struct rp_grammar *g = c->g;
    uint32_t rx, count[2], inner = NODE_NONE;
    int rc = schema_string_rx(c, conj, &rx, count);
    if (rc == RP_OK)
        rc = string_grammar(c, conj, count[0] == 0 && count[1] == REP_INF ? rx : NODE_NONE, &inner);
    if (rc != RP_OK)
        return rc;
    if (inner == NODE_NONE)
        inner = g_lex_counted(g, rx, count[0], count[1]);
    *out = g_cat(g, c->string_end, g_cat(g, inner, c->string_end));
    return RP_OK;
}
