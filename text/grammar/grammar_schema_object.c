/* grammar_schema_object.c - objects of a conjunction.
 * Keys come in a fixed order: as declared, then other required keys, then free ones. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define PATTERNS_MAX 16   /* of patternProperties */
#define CLASSES_MAX  64   /* of free keys, by the patterns that they match */
#define SOMES_MAX    5    /* pairs that must be there, whatever their keys are */
#define CHAIN_MAX    8192 /* keys times counts */

struct key {
    const char *name;
    size_t len;
    bool required;
    unsigned somes; /* that this key may be */
    /* the key, a colon and a value that satisfies these somes; NODE_NONE: cannot be there */
    uint32_t pairs[1 << SOMES_MAX];
};

struct key_pattern {
    const json_t *schema; /* of the matching values */
    size_t item;          /* whose patternProperties */
    uint32_t plain, json, every;
};

/* A pair that must be there: "\1some" (grammar_schema_rewrite.c). Expressions of its key: */
struct some {
    const json_t *except; /* not one of these */
    uint32_t plain, json; /* matches */
    uint32_t except_plain, except_every;
    uint32_t no_name; /* not one of these texts, in every spelling */
    const json_t *value;
    bool any_value;
    uint32_t free_pairs; /* of free keys */
};

struct object {
    struct schema_compiler *c;
    const struct conj *conj;
    VEC(struct key) keys;
    struct key_pattern patterns[PATTERNS_MAX];
    size_t pattern_count, class_count;
    struct some somes[SOMES_MAX];
    unsigned some_count;
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
    struct key key = {.name = name, .len = len, .required = required};
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
                                     "at most 16 patterns are supported");
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
    int rc = RP_OK;
    o->names = NODE_ALL;
    for (size_t i = 0; rc == RP_OK && i < o->conj->count; i++) {
        const json_t *names = json_object_get(o->conj->items[i].schema, "propertyNames");
        uint32_t one = NODE_ALL;
        if (names)
            rc = schema_names_rx(o->c, names, false, 0, &one);
        o->names = rx_and2(o->c->g, o->names, one);
    }
    return rc;
}

/* One of the conditions of a "\1some". */
static int collect_some(struct object *o, const json_t *schema, const json_t *made) {
    struct rp_grammar *g = o->c->g;
    const char *pattern = json_string_value(json_object_get(made, "pattern")), *other;
    const json_t *no_name = json_object_get(made, "notName");
    json_t *unused;
    if (o->some_count == SOMES_MAX)
        return schema_refuse(o->c, RP_STATUS_UNSUPPORTED, schema, "not",
                             "too many pairs of this object must be there");
    struct some *s = &o->somes[o->some_count++];
    *s = (struct some){.except = json_object_get(made, "except"),
                       .plain = NODE_ALL,
                       .json = NODE_ALL,
                       .value = json_object_get(made, "value")};
    s->any_value = json_is_true(s->value);
    int rc = RP_OK;
    if (pattern)
        rc = parse_key_pattern(o, schema, pattern, RX_PLAIN, &s->plain);
    if (rc == RP_OK && pattern)
        rc = parse_key_pattern(o, schema, pattern, RX_JSON, &s->json);
    json_object_foreach(json_object_get(made, "exceptPatterns"), other, unused) {
        uint32_t plain = NODE_NONE, every = NODE_NONE;
        if (rc == RP_OK)
            rc = parse_key_pattern(o, schema, other, RX_PLAIN, &plain);
        if (rc == RP_OK)
            rc = parse_key_pattern(o, schema, other, RX_JSON_EVERY, &every);
        s->except_plain = rx_or2(g, s->except_plain, plain);
        s->except_every = rx_or2(g, s->except_every, every);
    }
    if (rc == RP_OK && no_name)
        rc = schema_names_rx(o->c, no_name, true, 0, &s->no_name);
    return rc;
}

static int collect_somes(struct object *o) {
    int rc = RP_OK;
    for (size_t i = 0; rc == RP_OK && i < o->conj->count; i++) {
        const json_t *s = o->conj->items[i].schema, *made = json_object_get(s, "\1some");
        if (made)
            rc = collect_some(o, s, made);
    }
    return rc;
}

/* The rule of the values of a key: of one with a name, or (name NULL) of free keys that match
 * exactly the patterns in `matches`. The values satisfy the somes in `somes` as well. */
static int value_rule(struct object *o, const char *name, size_t len, unsigned matches,
                      unsigned somes, uint32_t *out) {
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
    for (unsigned i = 0; rc == RP_OK && i < o->some_count; i++)
        if (somes >> i & 1)
            rc = schema_add(o->c, &items, o->somes[i].value, 0);
    int made = schema_rule(o->c, &items, out);
    return rc != RP_OK ? rc : made;
}

/* The somes that any value satisfies. */
static unsigned free_somes(const struct object *o) {
    unsigned free = 0;
    for (unsigned i = 0; i < o->some_count; i++)
        free |= o->somes[i].any_value ? 1u << i : 0;
    return free;
}

/* The somes that a declared key may be. `quoted`: its JSON text. */
static unsigned somes_of(struct object *o, const struct key *key, const struct node *quoted) {
    struct rp_grammar *g = o->c->g;
    unsigned out = 0;
    for (unsigned i = 0; i < o->some_count; i++) {
        const struct some *s = &o->somes[i];
        if (!json_object_getn(s->except, key->name, key->len) &&
            rx_matches(g, s->plain, key->name, key->len) &&
            !rx_matches(g, s->except_plain, key->name, key->len) &&
            !rx_matches(g, s->no_name, g->text.at + quoted->a + 1, quoted->b - 2))
            out |= 1u << i;
    }
    return out;
}

static int make_pairs(struct object *o) {
    struct schema_compiler *c = o->c;
    for (size_t i = 0; i < o->keys.count; i++) {
        struct key *key = &o->keys.at[i];
        uint32_t quoted = schema_quoted(c, key->name, key->len);
        struct node lit = *node_at(c->g, quoted);
        key->somes = somes_of(o, key, &lit);
        bool named = o->names == NODE_ALL || /* without its quotes */
                     rx_matches(c->g, o->names, c->g->text.at + lit.a + 1, lit.b - 2);
        for (unsigned somes = 0; somes < 1u << o->some_count; somes++) {
            uint32_t value;
            key->pairs[somes] = NODE_NONE;
            if (somes & (~key->somes | free_somes(o)) || !named)
                continue;
            int rc = value_rule(o, key->name, key->len, 0, somes, &value);
            if (rc != RP_OK)
                return rc;
            key->pairs[somes] = g_cat(c->g, quoted, g_cat(c->g, c->colon, value));
        }
    }
    return RP_OK;
}

/* Pairs of free keys in `key`, by the patterns from `p` on that they match: those before are in
 * `matches`. They satisfy the somes in `somes`. */
static int split_keys(struct object *o, uint32_t key, size_t p, unsigned matches, unsigned somes,
                      uint32_t *out) {
    struct schema_compiler *c = o->c;
    struct rp_grammar *g = c->g;
    uint32_t value;
    if (key == NODE_NONE || (p > 1 && !rx_live(g, key)))
        return g->status;
    if (p < o->pattern_count) {
        int rc = split_keys(o, rx_and2(g, key, o->patterns[p].json), p + 1, matches | 1u << p,
                            somes, out);
        if (rc != RP_OK)
            return rc;
        return split_keys(o, rx_and2(g, key, rx_not(g, o->patterns[p].every)), p + 1, matches,
                          somes, out);
    }
    if (++o->class_count > CLASSES_MAX)
        return schema_refuse(c, RP_STATUS_FULL, o->conj->items[0].schema, "patternProperties",
                             "too many ways to match them");
    int rc = value_rule(o, NULL, 0, matches, somes, &value);
    if (rc != RP_OK || value == NODE_NONE)
        return rc;
    uint32_t end = g_cat(g, c->string_end, g_cat(g, c->colon, value));
    uint32_t pair = g_cat(g, c->string_end, g_cat(g, g_lex(g, key), end));
    *out = g_or2(g, *out, pair);
    return g->status;
}

static uint32_t one_of_texts(struct rp_grammar *g, size_t base) {
    uint32_t out = rx_or(g, g->work.at + base, g->work.count - base);
    g->work.count = base;
    return out;
}

static int make_free_pairs(struct object *o) {
    struct rp_grammar *g = o->c->g;
    size_t base = g->work.count;
    for (size_t i = 0; i < o->keys.count; i++) {
        uint32_t name = rx_text(g, o->keys.at[i].name, o->keys.at[i].len, RX_JSON_EVERY);
        if (!VEC_PUSH(g, &g->work, name))
            return g->status;
    }
    uint32_t declared = one_of_texts(g, base);
    uint32_t key = declared == NODE_NONE ? NODE_ALL : rx_not(g, declared);
    key = rx_and2(g, rx_and2(g, key, o->names), g->json_any);
    int rc = split_keys(o, key, 0, 0, 0, &o->free_pairs);
    for (unsigned i = 0; rc == RP_OK && i < o->some_count; i++) {
        struct some *s = &o->somes[i];
        const char *name;
        json_t *unused;
        json_object_foreach((json_t *)s->except, name, unused) {
            if (!VEC_PUSH(g, &g->work, rx_text(g, name, strlen(name), RX_JSON_EVERY)))
                return g->status;
        }
        uint32_t some = rx_and2(g, key, rx_not(g, one_of_texts(g, base)));
        some = rx_and2(g, some, rx_not(g, rx_or2(g, s->except_every, s->no_name)));
        rc = split_keys(o, rx_and2(g, some, s->json), 0, 0, 1u << i, &s->free_pairs);
        o->class_count = 0;
    }
    return rc;
}

/* Free pairs and the end, when `count` keys were written before, and the somes in `missing` are
 * not among them. Two free keys may be equal, and readers take the last one: so the pair with a
 * value of its own is the last. */
static uint32_t free_tail(struct object *o, uint32_t count, unsigned missing, uint32_t close) {
    struct rp_grammar *g = o->c->g;
    if (o->free_pairs == NODE_NONE || (o->max != REP_INF && count >= o->max))
        return NODE_NONE;
    uint32_t more = g_cat(g, o->c->comma, o->free_pairs);
    uint32_t low = o->min > count + 1 ? o->min - count - 1 : 0;
    uint32_t high = o->max == REP_INF ? REP_INF : o->max - count - 1;
    if (missing == 0)
        return g_cat(g, o->free_pairs, g_cat(g, g_rep(g, more, low, high), close));
    if (missing & (missing - 1)) /* two of them: no key is written for both */
        return NODE_NONE;
    const struct some *s = &o->somes[__builtin_ctz(missing)];
    uint32_t before = g_rep(g, g_cat(g, o->free_pairs, o->c->comma), low, high);
    if (s->any_value && low == 0 && high == REP_INF)
        close = g_cat(g, g_rep(g, more, 0, REP_INF), close);
    return g_cat(g, before, g_cat(g, s->free_pairs, close));
}

struct chain {
    uint32_t *rest, *more; /* by the number of keys written before and the somes among them */
    uint32_t cap, close;
};

/* What begins with the pair of a key, when n keys and the somes in `had` were written before. */
static uint32_t with_key(struct object *o, const struct chain *chain, const struct key *key,
                         uint32_t n, unsigned had) {
    struct rp_grammar *g = o->c->g;
    unsigned free = free_somes(o), open = key->somes & ~had, width = 1u << o->some_count;
    uint32_t out = NODE_NONE;
    if (o->max != REP_INF && n >= o->max)
        return NODE_NONE;
    const uint32_t *rest = chain->rest + (size_t)RP_MIN(n + 1, chain->cap) * width;
    for (unsigned somes = 0; somes < width; somes++)
        if (!(somes & (~open | free)))
            out = g_or2(g, out, g_cat(g, key->pairs[somes], rest[had | somes | (open & free)]));
    return out;
}

/* From the last key to the first, for each number n of keys written before (from `cap` on more make
 * no difference) and the somes among them. more: what begins with the next pair; rest: what follows
 * the one before. */
static int make_chain(struct object *o, uint32_t cap, uint32_t *out) {
    struct schema_compiler *c = o->c;
    struct rp_grammar *g = c->g;
    unsigned width = 1u << o->some_count;
    size_t cells = ((size_t)cap + 1) * width;
    struct chain chain = {rp_arena_calloc(&c->arena, cells, sizeof *chain.rest),
                          rp_arena_calloc(&c->arena, cells, sizeof *chain.more), cap,
                          g_cat(g, c->ws, g_lit(g, "}", 1))};
    bool may_end = true; /* all keys from here on are optional */
    if (!chain.rest || !chain.more)
        return grammar_fail(g, RP_STATUS_NO_MEMORY);
    for (size_t i = o->keys.count + 1; i-- > 0 && g->status == RP_OK;) {
        const struct key *key = i < o->keys.count ? &o->keys.at[i] : NULL;
        may_end &= !key || !key->required;
        for (size_t cell = 0; cell < cells; cell++) {
            uint32_t n = (uint32_t)(cell / width);
            unsigned had = (unsigned)(cell % width);
            if (!key) {
                chain.more[cell] = free_tail(o, n, (width - 1) & ~had, chain.close);
                continue;
            }
            uint32_t with = with_key(o, &chain, key, n, had);
            chain.more[cell] = key->required ? with : g_or2(g, with, chain.more[cell]);
        }
        for (size_t cell = 0; cell < cells; cell++) {
            bool ends = may_end && cell / width >= o->min && cell % width == width - 1;
            chain.rest[cell] = g_or2(g, g_cat(g, cell < width ? c->ws : c->comma, chain.more[cell]),
                                     ends ? chain.close : NODE_NONE);
        }
    }
    *out = chain.rest[0];
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
        rc = collect_somes(&o);
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
    size_t cells = o.keys.count * (size_t)cap << o.some_count;
    if (rc == RP_OK && cells > CHAIN_MAX + o.keys.count)
        rc = schema_refuse(c, RP_STATUS_FULL, conj->items[0].schema,
                           cap > 1 ? "minProperties" : "not", "too many keys for this bound");
    uint32_t chain = NODE_NONE;
    if (rc == RP_OK)
        rc = make_chain(&o, cap, &chain);
    *out = g_cat(g, g_lit(g, "{", 1), chain);
    g->memory_bytes -= o.keys.capacity * sizeof *o.keys.at;
    rp_free(o.keys.at);
    return rc;
}
