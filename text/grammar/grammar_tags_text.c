/* grammar_tags_text.c - the strings of structural tags. */
#include "text/grammar/grammar_tags.h"

#include <stdlib.h>
#include <string.h>

#define SHARE_DEPTH 64 /* branching points in a row of strings that begin alike */

int tag_encode(struct tag_compiler *c, const char *text, size_t len, struct tag_text *out) {
    char *bytes = rp_arena_alloc(&c->arena, len * SPECIAL_BYTES + 1);
    uint32_t used = 0;
    if (!bytes)
        return rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: the strings are too long");
    for (size_t i = 0; i < len;) {
        const struct trie_special *special = trie_special_at(c->trie, text + i, len - i);
        if (special) {
            trie_special_code(special->token, bytes + used);
            used += SPECIAL_BYTES;
            i += special->len;
        } else {
            bytes[used++] = text[i++];
        }
    }
    *out = (struct tag_text){bytes, used, text, (uint32_t)len};
    return RP_OK;
}

int tag_token(struct tag_compiler *c, const json_t *f, const char *key, const json_t *value,
              struct tag_text *out) {
    if (json_is_object(value))
        value = json_object_get(value, "token");
    if (json_is_string(value) && json_string_length(value) > 0) {
        int rc = tag_encode(c, json_string_value(value), json_string_length(value), out);
        out->raw = NULL;
        return rc;
    }
    if (!json_is_integer(value))
        return tag_refuse(c, RP_STATUS_FORMAT, f, key, "a token is its id or its text");
    json_int_t id = json_integer_value(value);
    if (!c->trie || id < 0 || id >= (json_int_t)c->trie->token_count ||
        c->trie->tokens[id].len == 0)
        return tag_refuse(c, RP_STATUS_RANGE, f, key, "the model has no token with this id");
    *out = (struct tag_text){c->trie->tokens[id].bytes, c->trie->tokens[id].len, NULL, 0};
    return RP_OK;
}

int tag_string(struct tag_compiler *c, const json_t *f, const char *key, const json_t *value,
               struct tag_text *out) {
    if (json_is_object(value))
        return tag_token(c, f, key, value, out);
    if (!json_is_string(value))
        return tag_refuse(c, RP_STATUS_FORMAT, f, key, "a string was expected");
    return tag_encode(c, json_string_value(value), json_string_length(value), out);
}

/* ---- Text within bounds ------------------------------------------------------------ */

static int read_size(struct tag_compiler *c, const json_t *f, const char *key, uint32_t *out) {
    const json_t *value = json_object_get(f, key);
    if (value && (!json_is_number(value) || json_number_value(value) < 0))
        return tag_refuse(c, RP_STATUS_FORMAT, f, key, "not a natural number");
    if (value)
        *out = (uint32_t)RP_MIN(json_number_value(value), (double)REP_INF);
    return RP_OK;
}

static int add_pattern(struct tag_compiler *c, const json_t *f, const char *key,
                       const char *pattern, bool search, uint32_t *rx) {
    struct rp_error inner;
    uint32_t one;
    int rc = regex_parse(c->g, pattern, strlen(pattern), RX_PLAIN, search, &one, &inner);
    if (rc != RP_OK)
        return tag_refuse(c, rc, f, key, inner.text);
    *rx = rx_and2(c->g, *rx, one);
    return RP_OK;
}

/* Texts with the string in them are left out, if there are any. */
static void exclude(struct rp_grammar *g, const char *text, size_t len, uint32_t *rx) {
    uint32_t any = rx_rep(g, rx_chars(g, CHARSET_ANY, RX_PLAIN), 0, REP_INF);
    uint32_t with = rx_cat(g, any, rx_cat(g, rx_text(g, text, len, RX_PLAIN), any));
    if (rx_live(g, rx_and2(g, *rx, with)))
        *rx = rx_and2(g, *rx, rx_not(g, with));
}

int tag_bounded_text(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                     uint32_t *out) {
    static const char trimmed[] = "^$|^[^ \\n\\t\\r]([\\s\\S]*[^ \\n\\t\\r])?$";
    struct rp_grammar *g = c->g;
    const char *pattern = json_string_value(json_object_get(f, "pattern"));
    const char *name = json_string_value(json_object_get(f, "format"));
    const char *format = name ? schema_format_pattern(name) : "";
    const json_t *excludes = json_object_get(f, "excludes");
    uint32_t low = 0, high = REP_INF, rx;
    int rc = read_size(c, f, "minLength", &low);
    if (rc == RP_OK)
        rc = read_size(c, f, "maxLength", &high);
    rx = rx_rep(g, rx_chars(g, CHARSET_ANY, RX_PLAIN), low, high);
    if (low > high)
        rx = NODE_NONE;
    if (rc == RP_OK && pattern)
        rc = add_pattern(c, f, "pattern", pattern, true, &rx);
    if (rc == RP_OK && !format)
        rc = tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "format", "this format cannot be enforced");
    if (rc == RP_OK && format[0])
        rc = add_pattern(c, f, "format", format, false, &rx);
    if (rc == RP_OK && json_is_true(json_object_get(f, "trim")))
        rc = add_pattern(c, f, "trim", trimmed, true, &rx);
    for (size_t i = 0; rc == RP_OK && i < json_array_size(excludes); i++) {
        const json_t *text = json_array_get(excludes, i);
        if (json_string_length(text) > 0)
            exclude(g, json_string_value(text), json_string_length(text), &rx);
    }
    if (rc == RP_OK && g->status == RP_OK && !rx_live(g, rx))
        rc = tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "type", "no text can satisfy it");
    if (rc == RP_OK)
        *out = tag_with_end(c, g_lex(g, rx), ends);
    return rc != RP_OK ? rc : g->status;
}

/* ---- Branches ------------------------------------------------------------ */

static int compare_branches(const void *a, const void *b) {
    const struct tag_branch *x = a, *y = b;
    int order = memcmp(x->begin.bytes, y->begin.bytes, RP_MIN(x->begin.len, y->begin.len));
    return order ? order : (x->begin.len > y->begin.len) - (x->begin.len < y->begin.len);
}

/* Sorted branches, whose first `skip` bytes are equal and done. */
static uint32_t share(struct tag_compiler *c, const struct tag_branch *b, size_t count,
                      uint32_t skip, int depth) {
    struct rp_grammar *g = c->g;
    struct tag_text first = b[0].begin, last = b[count - 1].begin;
    uint32_t common = skip;
    while (common < first.len && common < last.len && first.bytes[common] == last.bytes[common])
        common++;
    size_t base = g->work.count;
    for (size_t i = 0; i < count && g->status == RP_OK;) {
        size_t end = i + 1;
        uint32_t node;
        bool whole = b[i].begin.len == common;
        while (!whole && depth < SHARE_DEPTH && end < count &&
               b[end].begin.bytes[common] == b[i].begin.bytes[common])
            end++;
        if (whole || end == i + 1)
            node =
                g_cat(g, g_lit(g, b[i].begin.bytes + common, b[i].begin.len - common), b[i].node);
        else
            node = share(c, b + i, end - i, common, depth + 1);
        (void)VEC_PUSH(g, &g->work, node);
        i = end;
    }
    uint32_t any =
        g->status == RP_OK ? g_or(g, g->work.at + base, g->work.count - base) : NODE_NONE;
    g->work.count = base;
    return g_cat(g, g_lit(g, first.bytes + skip, common - skip), any);
}

uint32_t tag_branches(struct tag_compiler *c, struct tag_branch *branches, size_t count) {
    if (count == 0)
        return NODE_NONE;
    qsort(branches, count, sizeof *branches, compare_branches);
    return share(c, branches, count, 0, 0);
}
