/* grammar_lark.c - statements of Lark, GBNF's definitions, and the compile of both. */
#include "base/utf8.h"
#include "text/grammar/grammar_ebnf.h"
#include "text/grammar/grammar_schema.h"
#include "text/json_file.h"

#include <string.h>

/* Terminals that %import takes from Lark's library `common`. */
static const struct {
    const char *name, *pattern;
} library[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z_0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
};

static int import_one(struct ebnf *p) {
    const char *name = p->text + p->at;
    size_t len = ebnf_name(p), i = 0;
    while (i < RP_ARRAY_COUNT(library) &&
           (strlen(library[i].name) != len || memcmp(library[i].name, name, len) != 0))
        i++;
    if (i == RP_ARRAY_COUNT(library))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "%import knows no terminal", name, len);
    p->at += len;
    struct ebnf_rule rule = {
        .name = name, .len = len, .body = SIZE_MAX, .pattern = library[i].pattern};
    ebnf_space(p);
    if (ebnf_take(p, "->")) {
        ebnf_space(p);
        rule.name = p->text + p->at;
        rule.len = ebnf_name(p);
        p->at += rule.len;
    }
    return ebnf_add_rule(p, rule);
}

/* %import common.NAME, common.NAME -> OTHER, common (A, B) */
static int import(struct ebnf *p) {
    ebnf_space(p);
    if (!ebnf_take(p, "common"))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "%import takes from common only", "", 0);
    if (ebnf_take(p, "."))
        return import_one(p);
    ebnf_space(p);
    if (!ebnf_take(p, "("))
        return ebnf_refuse(p, RP_STATUS_FORMAT, "%import common.NAME or common (A, B)", "", 0);
    for (;;) {
        ebnf_space(p);
        int rc = import_one(p);
        if (rc != RP_OK)
            return rc;
        ebnf_space(p);
        if (ebnf_take(p, ")"))
            return RP_OK;
        if (!ebnf_take(p, ","))
            return ebnf_refuse(p, RP_STATUS_FORMAT, "%import has no )", "", 0);
    }
}

static int statement(struct ebnf *p) {
    size_t begin = p->at;
    if (ebnf_take(p, "%import"))
        return import(p);
    if (ebnf_take(p, "%ignore"))
        return VEC_PUSH(p->g, &p->ignored, p->at) ? RP_OK : p->g->status;
    if (ebnf_take(p, "%json") || ebnf_take(p, "%regex") || ebnf_take(p, "%llguidance {}"))
        return RP_OK;
    p->at = begin + 1;
    size_t len = ebnf_name(p);
    return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "unsupported statement", p->text + begin, len + 1);
}

/* Passes over a name; what follows may say that it cannot be enforced. */
static int skip_name(struct ebnf *p) {
    const char *name = p->text + p->at;
    size_t len = ebnf_name(p);
    p->at += len;
    if (p->lark && p->at < p->len && (ebnf_peek(p, "[") || ebnf_peek(p, "{")))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED,
                           "templates and attributes are not supported:", name, len);
    return RP_OK;
}

/* Finds all definitions and statements. */
static int scan(struct ebnf *p) {
    int rc = RP_OK;
    for (ebnf_space(p); rc == RP_OK && p->at < p->len; ebnf_space(p)) {
        struct ebnf_rule rule = {.name = NULL};
        size_t name, body;
        if (p->lark && ebnf_peek(p, "%")) {
            rc = statement(p);
        } else if (ebnf_defines(p, &name, &rule.len, &body)) {
            rule.name = p->text + name;
            rule.body = body;
            rc = ebnf_add_rule(p, rule);
            p->at = body;
        } else if (p->rules.count == 0 && p->ignored.count == 0) {
            rc = ebnf_refuse(p, RP_STATUS_FORMAT, "a definition was expected: name",
                             p->lark ? ": .." : "::= ..", 6);
        } else if (ebnf_name(p) > 0) {
            rc = skip_name(p);
        } else {
            ebnf_skip(p);
        }
    }
    return rc;
}

/* What %ignore names may be before the first terminal and after each. */
static int read_ignored(struct ebnf *p) {
    struct ebnf_value all = ebnf_regular(NODE_NONE);
    p->ignore = ebnf_regular(NODE_EPS);
    p->in_terminal = true;
    for (size_t i = 0; i < p->ignored.count; i++) {
        struct ebnf_value v = ebnf_regular(NODE_NONE);
        p->at = p->ignored.at[i];
        int rc = ebnf_expression(p, &v);
        if (rc != RP_OK)
            return rc;
        if (!v.regular)
            return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "%ignore takes terminals", "", 0);
        all.id = rx_or2(p->g, all.id, v.id);
    }
    if (p->ignored.count > 0)
        p->ignore = ebnf_repeat(p, all, 0, REP_INF);
    p->in_terminal = false;
    return RP_OK;
}

int lark_inline(struct ebnf *p, struct ebnf_value *out) {
    if (!ebnf_take(p, "%json"))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "%regex is not supported: use /pattern/", "",
                           0);
    if (p->mode != RX_PLAIN)
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "%json is not supported in a string", "", 0);
    ebnf_space(p);
    size_t begin = p->at, depth = 0;
    do {
        if (p->at >= p->len)
            return ebnf_refuse(p, RP_STATUS_FORMAT, "%json is followed by a schema: {..}", "", 0);
        depth += ebnf_peek(p, "{");
        depth -= ebnf_peek(p, "}");
        if (depth == 0 && p->at == begin)
            return ebnf_refuse(p, RP_STATUS_FORMAT, "%json is followed by a schema: {..}", "", 0);
        if (ebnf_peek(p, "\""))
            ebnf_skip(p);
        else
            p->at++;
    } while (depth > 0);
    struct rp_error inner;
    json_t *root;
    uint32_t node;
    int rc = rp_json_text_load(p->text + begin, p->at - begin, "%json", &root, &inner);
    if (rc == RP_OK) {
        rc = schema_compile(p->g, root, root, SCHEMA_WHITESPACE, &node, &inner);
        json_decref(root);
    }
    if (rc != RP_OK)
        return ebnf_refuse(p, rc, inner.text, "", 0);
    *out = ebnf_other(node);
    return RP_OK;
}

int ebnf_parse(struct rp_grammar *g, const struct rp_token_trie *trie, const char *text, size_t len,
               bool lark, enum rx_mode mode, uint32_t *out, struct rp_error *err) {
    struct ebnf p = {.g = g, .trie = trie, .err = err, .text = text, .len = len, .lark = lark};
    p.mode = mode;
    p.arena.limit_bytes = (size_t)4 << 20;
    *out = NODE_NONE;
    int rc = memchr(text, 0, len) ? rp_error_set(err, RP_STATUS_FORMAT, "grammar: has a zero byte")
             : !rp_utf8_valid(text, len)
                 ? rp_error_set(err, RP_STATUS_FORMAT, "grammar: is not UTF-8")
                 : scan(&p);
    if (rc == RP_OK)
        rc = read_ignored(&p);
    if (rc == RP_OK)
        rc = ebnf_compile(&p, lark ? "start" : "root", out);
    g->memory_bytes -=
        p.rules.capacity * sizeof *p.rules.at + p.ignored.capacity * sizeof *p.ignored.at;
    rp_free(p.rules.at);
    rp_free(p.ignored.at);
    rp_arena_deinit(&p.arena);
    return rc;
}

static int compile(const char *text, size_t len, bool lark, const struct rp_grammar_limits *limits,
                   struct rp_grammar **out, struct rp_error *err) {
    size_t bytes = limits && limits->source_bytes ? limits->source_bytes : EBNF_SOURCE_BYTES;
    uint32_t node;
    *out = NULL;
    if (len > bytes)
        return rp_error_set(err, RP_STATUS_FULL, "grammar: has %zu bytes, at most %zu are taken",
                            len, bytes);
    struct rp_grammar *g = grammar_create(limits);
    if (!g)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "grammar: out of memory");
    int rc = ebnf_parse(g, limits ? limits->trie : NULL, text, len, lark, RX_PLAIN, &node, err);
    return grammar_finish(g, node, rc, "grammar", out, err);
}

int rp_grammar_compile_gbnf(const char *text, size_t len, const struct rp_grammar_limits *limits,
                            struct rp_grammar **out, struct rp_error *err) {
    return compile(text, len, false, limits, out, err);
}

int rp_grammar_compile_lark(const char *text, size_t len, const struct rp_grammar_limits *limits,
                            struct rp_grammar **out, struct rp_error *err) {
    return compile(text, len, true, limits, out, err);
}
