/* grammar_tags.c - structural tags: formats that do not begin with free text, and the compile. */
#include "text/grammar/grammar_tags.h"

#include "text/grammar/grammar_ebnf.h"
#include "text/json_file.h"

#include <string.h>

#define SOURCE_BYTES ((size_t)2 << 20)
#define DEPTH_MAX    128
#define REPEAT_MAX   65535

int tag_refuse(struct tag_compiler *c, int status, const json_t *f, const char *key,
               const char *what) {
    const struct schema_compiler where = {.root = c->root};
    char pointer[256];
    schema_pointer(&where, f, pointer, sizeof pointer);
    return rp_error_set(c->err, status, "structural_tag, #%s: \"%s\": %s", pointer, key, what);
}

uint32_t tag_with_end(struct tag_compiler *c, uint32_t node, const struct tag_ends *ends) {
    return ends ? g_cat(c->g, node, ends->node) : node;
}

int tag_list(struct tag_compiler *c, const json_t *f, const char *key, bool needed,
             const json_t **out) {
    const json_t *list = json_object_get(f, key);
    *out = json_is_array(list) ? list : NULL;
    if (*out || (!needed && (!list || json_is_null(list))))
        return RP_OK;
    return tag_refuse(c, RP_STATUS_FORMAT, f, key, "a list was expected");
}

/* ---- Formats ------------------------------------------------------------ */

static int const_string(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                        uint32_t *out) {
    struct tag_text text;
    int rc = tag_string(c, f, "value", json_object_get(f, "value"), &text);
    if (rc == RP_OK)
        *out = tag_with_end(c, g_lit(c->g, text.bytes, text.len), ends);
    return rc;
}

static int token(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out) {
    struct tag_text text;
    int rc = tag_token(c, f, "token", json_object_get(f, "token"), &text);
    if (rc == RP_OK)
        *out = tag_with_end(c, g_lit(c->g, text.bytes, text.len), ends);
    return rc;
}

static int exclude_token(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                         uint32_t *out) {
    (void)ends;
    (void)out;
    return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "type",
                      "exclude_token is not supported: use any_tokens or any_text");
}

static int regex(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                 uint32_t *out) {
    const json_t *pattern = json_object_get(f, "pattern");
    struct rp_error inner;
    uint32_t rx;
    if (!json_is_string(pattern))
        return tag_refuse(c, RP_STATUS_FORMAT, f, "pattern", "a string was expected");
    int rc = regex_parse(c->g, json_string_value(pattern), json_string_length(pattern), RX_PLAIN,
                         false, &rx, &inner);
    if (rc != RP_OK)
        return tag_refuse(c, rc, f, "pattern", inner.text);
    *out = tag_with_end(c, g_lex(c->g, rx), ends);
    return RP_OK;
}

static int grammar(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                   uint32_t *out) {
    const json_t *source = json_object_get(f, "grammar");
    const char *text = json_string_value(source);
    const char *syntax = json_string_value(json_object_get(f, "syntax"));
    struct rp_error inner;
    uint32_t node;
    if (!text)
        return tag_refuse(c, RP_STATUS_FORMAT, f, "grammar", "a string was expected");
    bool lark = syntax ? strcmp(syntax, "lark") == 0 : !strstr(text, "::=");
    if (syntax && !lark && strcmp(syntax, "gbnf") != 0)
        return tag_refuse(c, RP_STATUS_FORMAT, f, "syntax", "must be \"lark\" or \"gbnf\"");
    int rc =
        ebnf_parse(c->g, c->trie, text, json_string_length(source), lark, RX_PLAIN, &node, &inner);
    if (rc != RP_OK)
        return tag_refuse(c, rc, f, "grammar", inner.text);
    *out = tag_with_end(c, node, ends);
    return RP_OK;
}

static int json_schema(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                       uint32_t *out) {
    json_t *root = json_object_get(f, "json_schema");
    const json_t *schema = root, *pointer = json_object_get(f, "pointer");
    const json_t *style = json_object_get(f, "style");
    const json_t *space = json_object_get(f, "max_whitespace_cnt");
    json_int_t whitespace = SCHEMA_WHITESPACE;
    struct rp_error inner;
    uint32_t node;
    if (style && (!json_is_string(style) || strcmp(json_string_value(style), "json") != 0))
        return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "style", "only \"json\" is supported");
    if (json_is_true(json_object_get(f, "any_order")))
        return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "any_order",
                          "keys come in the order of \"properties\"");
    if (json_is_integer(space))
        whitespace = json_integer_value(space);
    if (whitespace < 0 || (space && !json_is_integer(space) && !json_is_null(space)))
        return tag_refuse(c, RP_STATUS_FORMAT, f, "max_whitespace_cnt", "not a natural number");
    whitespace = RP_MIN(whitespace, SCHEMA_WHITESPACE);
    if (!json_is_object(root) && !json_is_boolean(root))
        return tag_refuse(c, RP_STATUS_FORMAT, f, "json_schema", "a JSON Schema was expected");
    if (json_is_string(pointer)) {
        struct schema_compiler whole = {.g = c->g, .err = &inner, .root = root};
        int rc = schema_resolve(&whole, root, json_string_value(pointer), &schema);
        if (rc != RP_OK)
            return tag_refuse(c, rc, f, "pointer", inner.text);
    }
    int rc = schema_compile(c->g, root, schema, (uint32_t)whitespace, &node, &inner);
    if (rc != RP_OK)
        return tag_refuse(c, rc, f, "json_schema", inner.text);
    if (node == NODE_NONE)
        return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "json_schema", "no value can satisfy it");
    *out = tag_with_end(c, node, ends);
    return RP_OK;
}

static int sequence(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                    uint32_t *out) {
    struct rp_grammar *g = c->g;
    const json_t *list;
    size_t base = g->work.count;
    int rc = tag_list(c, f, "elements", true, &list);
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count && rc == RP_OK; i++) {
        uint32_t node = NODE_NONE;
        rc = tag_format(c, json_array_get(list, i), i + 1 == count ? ends : NULL, &node);
        if (rc == RP_OK && !VEC_PUSH(g, &g->work, node))
            rc = g->status;
    }
    *out = count > 0 ? NODE_EPS : tag_with_end(c, NODE_EPS, ends);
    while (g->work.count > base)
        *out = g_cat(g, g->work.at[--g->work.count], *out);
    return rc;
}

static int alternatives(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                        uint32_t *out) {
    struct rp_grammar *g = c->g;
    const json_t *list;
    size_t base = g->work.count;
    int rc = tag_list(c, f, "elements", true, &list);
    if (rc == RP_OK && json_array_size(list) == 0)
        rc = tag_refuse(c, RP_STATUS_FORMAT, f, "elements", "the list is empty");
    for (size_t i = 0; i < json_array_size(list) && rc == RP_OK; i++) {
        uint32_t node = NODE_NONE;
        rc = tag_format(c, json_array_get(list, i), ends, &node);
        if (rc == RP_OK && !VEC_PUSH(g, &g->work, node))
            rc = g->status;
    }
    if (rc == RP_OK)
        *out = g_or(g, g->work.at + base, g->work.count - base);
    g->work.count = base;
    return rc;
}

/* optional, star, plus and repeat. */
static int repeat(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                  uint32_t *out) {
    const char *type = json_string_value(json_object_get(f, "type"));
    uint32_t low = *type == 'p', high = *type == 'o' ? 1 : REP_INF, node;
    if (*type == 'r') {
        const json_t *min = json_object_get(f, "min"), *max = json_object_get(f, "max");
        json_int_t least = json_integer_value(min), most = json_integer_value(max);
        if (!json_is_integer(min) || !json_is_integer(max) || least < 0 || most < -1 ||
            least > REPEAT_MAX || most > REPEAT_MAX || (most >= 0 && least > most))
            return tag_refuse(c, RP_STATUS_RANGE, f, "min",
                              "min and max are 0 to 65535 in order; max -1: no bound");
        low = (uint32_t)least;
        high = most < 0 ? REP_INF : (uint32_t)most;
    }
    int rc = tag_format(c, json_object_get(f, "content"), NULL, &node);
    if (rc == RP_OK)
        *out = tag_with_end(c, g_rep(c->g, node, low, high), ends);
    return rc;
}

static int read_ends(struct tag_compiler *c, const json_t *f, struct tag_ends *ends) {
    const json_t *end = json_object_get(f, "end");
    bool list = json_is_array(end);
    size_t count = list ? json_array_size(end) : 1;
    *ends = (struct tag_ends){.node = NODE_NONE};
    ends->texts = rp_arena_calloc(&c->arena, count + 1, sizeof *ends->texts);
    if (!ends->texts)
        return rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: too many strings");
    if (count == 0)
        return tag_refuse(c, RP_STATUS_FORMAT, f, "end", "the list is empty");
    for (size_t i = 0; i < count; i++) {
        struct tag_text text;
        int rc = tag_string(c, f, "end", list ? json_array_get(end, i) : end, &text);
        if (rc != RP_OK)
            return rc;
        ends->node = g_or2(c->g, ends->node, g_lit(c->g, text.bytes, text.len));
        ends->may_be_empty |= text.len == 0;
        if (text.len > 0)
            ends->texts[ends->count++] = text;
    }
    return RP_OK;
}

int tag_parts(struct tag_compiler *c, const json_t *f, struct tag_text *out_begin, uint32_t *out) {
    struct tag_ends ends;
    const char *type = json_string_value(json_object_get(f, "type"));
    if (type && strcmp(type, "tag") != 0)
        return tag_refuse(c, RP_STATUS_FORMAT, f, "type", "a tag was expected");
    int rc = tag_string(c, f, "begin", json_object_get(f, "begin"), out_begin);
    if (rc == RP_OK)
        rc = read_ends(c, f, &ends);
    if (rc == RP_OK)
        rc = tag_format(c, json_object_get(f, "content"), &ends, out);
    return rc;
}

static int tag(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
               uint32_t *out) {
    struct tag_text begin;
    uint32_t rest;
    int rc = tag_parts(c, f, &begin, &rest);
    if (rc == RP_OK)
        *out = g_cat(c->g, g_lit(c->g, begin.bytes, begin.len), tag_with_end(c, rest, ends));
    return rc;
}

static int separated(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                     uint32_t *out) {
    struct rp_grammar *g = c->g;
    const json_t *list;
    struct tag_text separator;
    int rc = tag_string(c, f, "separator", json_object_get(f, "separator"), &separator);
    if (rc == RP_OK)
        rc = tag_list(c, f, "tags", true, &list);
    struct tag_branch *tags =
        rp_arena_calloc(&c->arena, rc == RP_OK ? json_array_size(list) : 1, sizeof *tags);
    if (rc == RP_OK && !tags)
        rc = rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: too many tags");
    size_t count = 0;
    for (; rc == RP_OK && count < json_array_size(list); count++)
        rc = tag_parts(c, json_array_get(list, count), &tags[count].begin, &tags[count].node);
    if (rc != RP_OK)
        return rc;
    uint32_t one = tag_branches(c, tags, count), all = one;
    if (!json_is_true(json_object_get(f, "stop_after_first")))
        all = g_cat(g, one,
                    g_rep(g, g_cat(g, g_lit(g, separator.bytes, separator.len), one), 0, REP_INF));
    if (!json_is_true(json_object_get(f, "at_least_one")))
        all = g_or2(g, all, NODE_EPS);
    *out = tag_with_end(c, all, ends);
    return RP_OK;
}

/* ---- Dispatch by type ------------------------------------------------------------ */

struct format {
    const char *type, *keys;
    int (*compile)(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
                   uint32_t *out);
};
static const struct format formats[] = {
    {"const_string", " value ", const_string},
    {"json_schema", " json_schema style any_order max_whitespace_cnt pointer ", json_schema},
    {"regex", " pattern ", regex},
    {"grammar", " grammar syntax ", grammar},
    {"text", " pattern format minLength maxLength trim excludes ", tag_bounded_text},
    {"token", " token ", token},
    {"exclude_token", " exclude_tokens ", exclude_token},
    {"any_text", " excludes max_tokens max_chars ", tag_any_text},
    {"any_tokens", " exclude_tokens max_tokens ", tag_any_tokens},
    {"sequence", " elements ", sequence},
    {"or", " elements ", alternatives},
    {"optional", " content ", repeat},
    {"star", " content ", repeat},
    {"plus", " content ", repeat},
    {"repeat", " min max content ", repeat},
    {"tag", " begin content end ", tag},
    {"triggered_tags", " triggers tags at_least_one stop_after_first excludes ", tag_triggered},
    {"token_triggered_tags", " trigger_tokens tags at_least_one stop_after_first exclude_tokens ",
     tag_triggered},
    {"tags_with_separator", " tags separator at_least_one stop_after_first ", separated},
    {"dispatch", " rules loop excludes ", tag_dispatch},
    {"token_dispatch", " rules loop exclude_tokens ", tag_dispatch},
};

static int check_keys(struct tag_compiler *c, const json_t *f, const char *keys) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)f, key, value) {
        const char *at = keys;
        size_t len = strlen(key);
        while ((at = strchr(at, ' ')) && (strncmp(at + 1, key, len) != 0 || at[1 + len] != ' '))
            at++;
        if (!at && strcmp(key, "type") != 0)
            return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, key, "unknown key of this format");
    }
    return RP_OK;
}

int tag_format(struct tag_compiler *c, const json_t *f, const struct tag_ends *ends,
               uint32_t *out) {
    const char *type = json_string_value(json_object_get(f, "type"));
    *out = NODE_NONE;
    if (!type)
        return rp_error_set(c->err, RP_STATUS_FORMAT,
                            "structural_tag: a format is an object with a type");
    for (size_t i = 0; i < RP_ARRAY_COUNT(formats); i++)
        if (strcmp(formats[i].type, type) == 0) {
            int rc = check_keys(c, f, formats[i].keys);
            if (rc == RP_OK)
                rc = formats[i].compile(c, f, ends, out);
            return rc != RP_OK ? rc : c->g->status;
        }
    return tag_refuse(c, RP_STATUS_UNSUPPORTED, f, "type", "unknown format");
}

/* ---- The compile ------------------------------------------------------------ */

/* {"structures": .., "triggers": ..} as a format; schemas may be strings that hold one. */
static json_t *from_older_form(const json_t *root) {
    json_t *tags = json_array(), *structure;
    size_t i;
    json_array_foreach(json_object_get(root, "structures"), i, structure) {
        json_t *schema = json_object_get(structure, "schema");
        if (json_is_string(schema))
            schema = json_loadb(json_string_value(schema), json_string_length(schema),
                                JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
        else
            json_incref(schema);
        json_array_append_new(tags, json_pack("{s:s, s:O?, s:{s:s, s:o?}, s:O?}", "type", "tag",
                                              "begin", json_object_get(structure, "begin"),
                                              "content", "type", "json_schema", "json_schema",
                                              schema, "end", json_object_get(structure, "end")));
    }
    return json_pack("{s:s, s:O?, s:o}", "type", "triggered_tags", "triggers",
                     json_object_get(root, "triggers"), "tags", tags);
}

static int compile(struct tag_compiler *c, uint32_t *out) {
    if (schema_depth(c->root, DEPTH_MAX) < 0)
        return rp_error_set(c->err, RP_STATUS_FULL, "structural_tag: is nested deeper than %d",
                            DEPTH_MAX);
    if (json_object_get(c->root, "structures")) {
        json_t *format = from_older_form(c->root);
        if (!format)
            return rp_error_set(c->err, RP_STATUS_NO_MEMORY, "structural_tag: out of memory");
        json_decref(c->root);
        c->root = format;
    }
    const json_t *format = json_object_get(c->root, "format");
    return tag_format(c, format ? format : c->root, NULL, out);
}

int rp_grammar_compile_structural_tag(const char *json, size_t len,
                                      const struct rp_grammar_limits *limits,
                                      struct rp_grammar **out, struct rp_error *err) {
    size_t bytes = limits && limits->source_bytes ? limits->source_bytes : SOURCE_BYTES;
    struct tag_compiler c = {.trie = limits ? limits->trie : NULL, .err = err};
    uint32_t node = NODE_NONE;
    *out = NULL;
    if (len > bytes)
        return rp_error_set(err, RP_STATUS_FULL,
                            "structural_tag: has %zu bytes, at most %zu are taken", len, bytes);
    int rc = rp_json_text_load(json, len, "structural_tag", &c.root, err);
    if (rc != RP_OK)
        return rc;
    c.arena.limit_bytes = (size_t)16 << 20;
    c.g = grammar_create(limits);
    if (c.g)
        rc = compile(&c, &node);
    else
        rc = rp_error_set(err, RP_STATUS_NO_MEMORY, "structural_tag: out of memory");
    json_decref(c.root);
    rp_arena_deinit(&c.arena);
    return c.g ? grammar_finish(c.g, node, rc, "structural_tag", out, err) : rc;
}
