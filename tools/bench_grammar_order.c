/* bench_grammar_order.c - whether a value is accepted with its keys in another order.
 * A search over orders; keys are tried as the schema's text first names them. */
#include "tools/bench_grammar_order.h"

#include <stdlib.h>
#include <string.h>

#define ENDS_MAX  8 /* states that a value may end in */
#define STEPS_MAX 3000000
#define KEYS_MAX  1024

struct search {
    struct rp_matcher *m;
    const char *schema;
    size_t schema_len;
    const char *end;
    uint64_t steps;
};
struct ends {
    uint32_t state[ENDS_MAX], count;
};

static void add_end(struct ends *e, uint32_t state) {
    for (uint32_t i = 0; i < e->count; i++)
        if (e->state[i] == state)
            return;
    if (e->count < ENDS_MAX)
        e->state[e->count++] = state;
}

static bool step(struct search *s, uint32_t *state, const char *at, size_t len) {
    s->steps += len + 1;
    return s->steps < STEPS_MAX && rp_matcher_advance_bytes(s->m, *state, at, len, state) == RP_OK;
}

static const char *skip_string(const char *at) {
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static const char *skip_value(const char *at, const char *end) {
    int depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (at < end && (depth > 0 || (*at != ',' && *at != '}' && *at != ']')));
    return at;
}

struct pair {
    const char *key, *value; /* the key with its quotes, colon and space */
    size_t place;            /* in the schema */
};

static size_t place_in(const struct search *s, const char *key, size_t len) {
    for (size_t i = 0; i + len <= s->schema_len; i++)
        if (s->schema[i] == '"' && memcmp(s->schema + i, key, len) == 0)
            return i;
    return s->schema_len;
}

static int compare_pairs(const void *a, const void *b) {
    const struct pair *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

static void ends_of(struct search *s, const char *at, uint32_t state, struct ends *out);

static void orders(struct search *s, struct pair *pairs, size_t count, size_t left, uint32_t state,
                   struct ends *out) {
    if (left == 0) {
        if (step(s, &state, "}", 1))
            add_end(out, state);
        return;
    }
    for (size_t i = 0; i < count && out->count == 0 && s->steps < STEPS_MAX; i++) {
        struct pair p = pairs[i];
        struct ends ends = {.count = 0};
        uint32_t next = state;
        if (!p.key || (left < count && !step(s, &next, ", ", 2)) ||
            !step(s, &next, p.key, (size_t)(p.value - p.key)))
            continue;
        ends_of(s, p.value, next, &ends);
        pairs[i].key = NULL;
        for (uint32_t k = 0; k < ends.count; k++)
            orders(s, pairs, count, left - 1, ends.state[k], out);
        pairs[i] = p;
    }
}

static void object(struct search *s, const char *at, uint32_t state, struct ends *out) {
    struct pair *pairs = malloc(KEYS_MAX * sizeof *pairs);
    size_t count = 0;
    for (at++; pairs && *at != '}' && count < KEYS_MAX;) {
        const char *end = skip_string(at);
        pairs[count++] = (struct pair){at, end + 2, place_in(s, at, (size_t)(end - at))};
        at = skip_value(end + 2, s->end);
        at += *at == ',' ? 2 : 0;
    }
    if (pairs && step(s, &state, "{", 1)) {
        qsort(pairs, count, sizeof *pairs, compare_pairs);
        orders(s, pairs, count, count, state, out);
    }
    free(pairs);
}

static void array(struct search *s, const char *at, uint32_t state, struct ends *out) {
    struct ends now = {.count = 0}, next;
    if (!step(s, &state, "[", 1))
        return;
    add_end(&now, state);
    for (at++; *at != ']' && now.count > 0;) {
        next.count = 0;
        for (uint32_t i = 0; i < now.count; i++)
            ends_of(s, at, now.state[i], &next);
        at = skip_value(at, s->end);
        now.count = 0;
        bool more = *at == ',';
        for (uint32_t i = 0; i < next.count; i++)
            if (!more || step(s, &next.state[i], ", ", 2))
                add_end(&now, next.state[i]);
        at += more ? 2 : 0;
    }
    for (uint32_t i = 0; i < now.count; i++)
        if (step(s, &now.state[i], "]", 1))
            add_end(out, now.state[i]);
}

/* The states after the value at `at`, appended to *out. */
static void ends_of(struct search *s, const char *at, uint32_t state, struct ends *out) {
    if (*at == '{') {
        struct ends own = {.count = 0};
        object(s, at, state, &own);
        for (uint32_t i = 0; i < own.count; i++)
            add_end(out, own.state[i]);
    } else if (*at == '[') {
        array(s, at, state, out);
    } else if (step(s, &state, at, (size_t)(skip_value(at, s->end) - at))) {
        add_end(out, state);
    }
}

bool bench_order(const struct rp_token_trie *trie, const char *schema, size_t schema_len,
                 const char *text, size_t len) {
    struct search s = {NULL, schema, schema_len, text + len, 0};
    struct ends ends = {.count = 0};
    struct rp_grammar *g;
    struct rp_error err;
    bool accepted = false;
    if (rp_grammar_compile_json_schema(schema, schema_len, NULL, &g, &err) != RP_OK ||
        rp_matcher_make(g, trie, 0, &s.m) != RP_OK)
        return false;
    ends_of(&s, text, rp_matcher_start(s.m), &ends);
    for (uint32_t i = 0; i < ends.count; i++)
        accepted |= rp_matcher_is_accepting(s.m, ends.state[i]);
    rp_matcher_free(s.m);
    return accepted;
}
