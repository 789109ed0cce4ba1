/* grammar_schema_object.c - objects of a conjunction.
 * Keys come in a fixed order: as declared, then other required keys, then free ones. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define PATTERNS_MAX 4    /* of patternProperties: 2^n classes of free keys */
#define CHAIN_MAX    8192 /* keys times counts */

struct key {
    const char *name;
    size_t len;
    bool required;
    uint32_t pair; /* the key, a colon and the value; NODE_NONE: cannot be there */
};

struct key_pattern {
    const json_t *schema; /* of the matching values */
    size_t item;          /* whose patternProperties */
    uint32_t plain, json, every;
};

struct object {
    struct schema_compiler *c;
    const struct conj *conj;
    VEC(struct key) keys;
    struct key_pattern patterns[PATTERNS_MAX];
    size_t pattern_count;
    uint32_t names;      /* expression of propertyNames, or NODE_ALL */
    uint32_t free_pairs; /* a free key and its value */
    uint32_t min, max;
};

static int add_key(struct object *o, const char *name, size_t len, bool required) {
    for (size_t i = 0; i < o->keys.count; i++)
        if (o->keys.at[i].len == len && memcmp(o->keys.at[i].name, name, len) == 0) {
            o->keys.at[i].required |= required;
            return RP_OK;
        }
    struct key key = {name, len, required, NODE_NONE};
    if (!grammar_burn(o->c->g, 1 + o->keys.count / 32))
        return o->c->g->status;
    return VEC_PUSH(o->c->g, &o->keys, key) ? RP_OK : o->c->g->status;
}

static int collect_keys(struct object *o) {
    const char *name;
    json_t *value;
    size_t index;
    int rc = RP_OK;
    for (size_t i = 0; i < o->conj->count; i++) {
        json_t *properties = json_object_get(o->conj->items[i].schema, "properties");
        json_object_foreach(properties, name, value) if (rc == RP_OK) rc =
            add_key(o, name, strlen(name), false);
    }
    for (size_t i = 0; i < o->conj->count; i++) {
        const json_t *required = json_object_get(o->conj->items[i].schema, "required");
        json_array_foreach(required, index, value) if (rc == RP_OK) rc =
            add_key(o, json_string_value(value), json_string_length(value), true);
    }
    return rc;
}

static int parse_key_pattern(struct object *o, const json_t *schema, const char *pattern,
                             enum rx_mode mode, uint32_t *out) {
    struct rp_error inner;
    int rc = regex_parse(o->c->g, pattern, strlen(pattern), mode, true, out, &inner);
    return rc == RP_OK ? rc : schema_refuse(o->c, rc, schema, "patternProperties", inner.text);
}

static int collect_patterns(struct object *o) {
    const char *pattern;
    json_t *value;
    for (size_t i = 0; i < o->conj->count; i++) {
        const json_t *s = o->conj->items[i].schema;
        json_object_foreach(json_object_get(s, "patternProperties"), pattern, value) {
            if (o->pattern_count == PATTERNS_MAX)
                return schema_refuse(o->c, RP_STATUS_UNSUPPORTED, s, "patternProperties",
                                     "at most four patterns are supported");
            struct key_pattern *p = &o->patterns[o->pattern_count++];
            *p = (struct key_pattern){.schema = value, .item = i};
            int rc = parse_key_pattern(o, s, pattern, RX_PLAIN, &p->plain);
            if (rc == RP_OK)
                rc = parse_key_pattern(o, s, pattern, RX_JSON, &p->json);
            if (rc == RP_OK)
                rc = parse_key_pattern(o, s, pattern, RX_JSON_EVERY, &p->every);
            if (rc != RP_OK)
                return rc;
        }
    }
    return RP_OK;
}

static int collect_names(struct object *o) {
    struct item_list items = {.nothing = false};
    int rc = RP_OK;
    o->names = NODE_ALL;
    for (size_t i = 0; rc == RP_OK && i < o->conj->count; i++) {
        const json_t *s = o->conj->items[i].schema;
        const json_t *names = json_object_get(s, "propertyNames");
        if (names)
            rc = schema_add(o->c, &items, names, 0);
    }
    static const char *const simple[] = {"pattern", "minLength", "maxLength", "format", "type"};
    for (size_t i = 0; rc == RP_OK && i < items.list.count; i++) {
        const char *key;
        json_t *value;
        const json_t *s = items.list.at[i].schema;
        json_object_foreach((json_t *)s, key, value) {
            bool known = schema_keyword(key) != KEYWORD_APPLIES;
            for (size_t k = 0; k < RP_ARRAY_COUNT(simple) && !known; k++)
                known = strcmp(simple[k], key) == 0;
            if (!known && rc == RP_OK)
                rc = schema_refuse(o->c, RP_STATUS_UNSUPPORTED, s, key,
                                   "not supported in propertyNames");
        }
        unsigned types = TYPE_ANY;
        if (rc == RP_OK)
            rc = schema_type_bits(o->c, s, &types);
        items.nothing |= !(types & TYPE_STRING);
    }
    if (rc == RP_OK && items.list.count > 0) {
        struct conj conj = {items.list.at, items.list.count, false};
        rc = schema_string_rx(o->c, &conj, &o->names);
    }
    if (items.nothing)
        o->names = NODE_NONE;
    o->c->g->memory_bytes -= items.list.capacity * sizeof *items.list.at;
    rp_free(items.list.at);
    return rc;
}

/* The rule of the values of a key: of one with a name, or (name NULL) of free keys that match
 * exactly the patterns in `matches`. */
static int value_rule(struct object *o, const char *name, size_t len, unsigned matches,
                      uint32_t *out) {
    struct item_list items = {.nothing = false};
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < o->conj->count; i++) {
        const json_t *s = o->conj->items[i].schema;
        const json_t *own =
            name ? json_object_getn(json_object_get(s, "properties"), name, len) : NULL;
        const json_t *additional = json_object_get(s, "additionalProperties");
        bool evaluated = own != NULL;
        if (own)
            rc = schema_add(o->c, &items, own, 0);
        for (size_t p = 0; rc == RP_OK && p < o->pattern_count; p++) {
            if (o->patterns[p].item != i)
                continue;
            bool match = name ? rx_matches(o->c->g, o->patterns[p].plain, name, len)
                              : (matches >> p & 1) != 0;
            if (match)
                rc = schema_add(o->c, &items, o->patterns[p].schema, 0);
            evaluated |= match;
        }
        if (rc == RP_OK && !evaluated && additional)
            rc = schema_add(o->c, &items, additional, 0);
    }
    int made = schema_rule(o->c, &items, out);
    return rc != RP_OK ? rc : made;
}

static int make_pairs(struct object *o) {
    struct schema_compiler *c = o->c;
    for (size_t i = 0; i < o->keys.count; i++) {
        struct key *key = &o->keys.at[i];
        uint32_t value, quoted = schema_quoted(c, key->name, key->len);
        int rc = value_rule(o, key->name, key->len, 0, &value);
        if (rc != RP_OK)
            return rc;
        struct node lit = *node_at(c->g, quoted);
        if (o->names != NODE_ALL && /* without its quotes */
            !rx_matches(c->g, o->names, c->g->text.at + lit.a + 1, lit.b - 2))
            value = NODE_NONE;
        key->pair = g_cat(c->g, quoted, g_cat(c->g, c->colon, value));
    }
    return RP_OK;
}

static int make_free_pairs(struct object *o) {
    struct schema_compiler *c = o->c;
    struct rp_grammar *g = c->g;
    size_t base = g->work.count;
    for (size_t i = 0; i < o->keys.count; i++) {
        uint32_t name = rx_text(g, o->keys.at[i].name, o->keys.at[i].len, RX_JSON_EVERY);
        if (!VEC_PUSH(g, &g->work, name))
            return g->status;
    }
    uint32_t declared = rx_or(g, g->work.at + base, g->work.count - base);
    g->work.count = base;
    uint32_t any = rx_rep(g, g->json_char, 0, REP_INF);
    for (unsigned matches = 0; matches < 1u << o->pattern_count; matches++) {
        uint32_t value, key = declared == NODE_NONE ? NODE_ALL : rx_not(g, declared);
        int rc = value_rule(o, NULL, 0, matches, &value);
        if (rc != RP_OK)
            return rc;
        if (value == NODE_NONE)
            continue;
        for (size_t p = 0; p < o->pattern_count; p++)
            key = rx_and2(g, key,
                          matches >> p & 1 ? o->patterns[p].json : rx_not(g, o->patterns[p].every));
        key = rx_and2(g, rx_and2(g, key, o->names), any);
        uint32_t end = g_cat(g, c->string_end, g_cat(g, c->colon, value));
        uint32_t pair = g_cat(g, c->string_end, g_cat(g, g_lex(g, key), end));
        o->free_pairs = g_or2(g, o->free_pairs, pair);
    }
    return g->status;
}

/* A free pair and all that may follow it, when `count` keys were written before. */
static uint32_t free_tail(struct object *o, uint32_t count, uint32_t close) {
    struct rp_grammar *g = o->c->g;
    if (o->free_pairs == NODE_NONE || (o->max != REP_INF && count >= o->max))
        return NODE_NONE;
    uint32_t more = g_cat(g, o->c->comma, o->free_pairs);
    uint32_t low = o->min > count + 1 ? o->min - count - 1 : 0;
    uint32_t high = o->max == REP_INF ? REP_INF : o->max - count - 1;
    return g_cat(g, o->free_pairs, g_cat(g, g_rep(g, more, low, high), close));
}

/* From the last key to the first, for each number n of keys written before (from `cap` on more make
 * no difference). more[n]: what begins with the next pair; rest[n]: what follows the one before. */
static int make_chain(struct object *o, uint32_t cap, uint32_t *out) {
    struct schema_compiler *c = o->c;
    struct rp_grammar *g = c->g;
    uint32_t *rest = rp_arena_calloc(&c->arena, (size_t)cap + 1, sizeof *rest);
    uint32_t *more = rp_arena_calloc(&c->arena, (size_t)cap + 1, sizeof *more);
    uint32_t close = g_cat(g, c->ws, g_lit(g, "}", 1));
    bool may_end = true; /* all keys from here on are optional */
    if (!rest || !more)
        return grammar_fail(g, RP_STATUS_FULL);
    for (size_t i = o->keys.count + 1; i-- > 0 && g->status == RP_OK;) {
        const struct key *key = i < o->keys.count ? &o->keys.at[i] : NULL;
        may_end &= !key || !key->required;
        for (uint32_t n = 0; n <= cap; n++) {
            if (!key) {
                more[n] = free_tail(o, n, close);
                continue;
            }
            uint32_t pair = o->max != REP_INF && n >= o->max ? NODE_NONE : key->pair;
            uint32_t with = g_cat(g, pair, rest[RP_MIN(n + 1, cap)]);
            more[n] = key->required ? with : g_or2(g, with, more[n]);
        }
        for (uint32_t n = 0; n <= cap; n++)
            rest[n] = g_or2(g, g_cat(g, n == 0 ? c->ws : c->comma, more[n]),
                            may_end && n >= o->min ? close : NODE_NONE);
    }
    *out = rest[0];
    return g->status;
}

int schema_object(struct schema_compiler *c, const struct conj *conj, uint32_t *out) {
    struct rp_grammar *g = c->g;
    struct object o = {.c = c, .conj = conj, .free_pairs = NODE_NONE};
    int rc = schema_sizes(c, conj, "minProperties", "maxProperties", &o.min, &o.max);
    if (rc == RP_OK)
        rc = collect_keys(&o);
    if (rc == RP_OK)
        rc = collect_patterns(&o);
    if (rc == RP_OK)
        rc = collect_names(&o);
    if (rc == RP_OK)
        rc = make_pairs(&o);
    if (rc == RP_OK)
        rc = make_free_pairs(&o);
    size_t required = 0;
    for (size_t i = 0; i < o.keys.count; i++)
        required += o.keys.at[i].required;
    if (o.min <= required) /* nothing more to count */
        o.min = 0;
    if (o.free_pairs == NODE_NONE && o.max >= o.keys.count)
        o.max = REP_INF;
    uint32_t cap = o.max != REP_INF ? o.max : o.min;
    cap = RP_MAX(RP_MIN(cap, (uint32_t)o.keys.count), 1);
    if (rc == RP_OK && o.keys.count * (size_t)(cap - 1) > CHAIN_MAX)
        rc = schema_refuse(c, RP_STATUS_FULL, conj->items[0].schema, "minProperties",
                           "too many keys for this bound");
    uint32_t chain = NODE_NONE;
    if (rc == RP_OK)
        rc = make_chain(&o, cap, &chain);
    *out = g_cat(g, g_lit(g, "{", 1), chain);
    g->memory_bytes -= o.keys.capacity * sizeof *o.keys.at;
    rp_free(o.keys.at);
    return rc;
}
