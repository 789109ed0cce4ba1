/* Statements to a tree, and what a compiled template is. */
#include "base/utf8.h"
#include "text/template/template_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void syntax_error(struct rp_tcompile *c, int line, const char *message) {
    rp_template_fail(c, line, "TemplateSyntaxError", "%s", message);
}

static bool at(struct rp_tcompile *c, enum rp_ttoken_type type) {
    return rp_template_token(c)->type == type;
}

/* "'elif' or 'else' or 'endif'" */
static void list_ends(const char *const *ends, char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; ends[i] && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s'%s'", i ? " or " : "", ends[i]);
}

/* Unknown tag, or (name NULL) the end of the template too early. */
static void fail_tag(struct rp_tcompile *c, const struct rp_value *name, int line) {
    char message[400], looking[120] = "";
    size_t n;
    bool expected = false;
    if (name)
        n = (size_t)snprintf(message, sizeof message, "Encountered unknown tag '%.*s'.",
                             (int)RP_MIN(name->len, 80u), name->u.s);
    else
        n = (size_t)snprintf(message, sizeof message, "Unexpected end of template.");
    for (int i = 0; name && i < c->end_count; i++)
        for (size_t k = 0; c->ends[i][k]; k++)
            expected = expected || rp_value_is(*name, c->ends[i][k]);
    if (c->end_count) {
        list_ends(c->ends[c->end_count - 1], looking, sizeof looking);
        n += (size_t)snprintf(message + n, sizeof message - n,
                              expected ? " You probably made a nesting mistake. Jinja is expecting "
                                         "this tag, but currently looking for %s."
                                       : " Jinja was looking for the following tags: %s.",
                              looking);
    }
    if (c->tag_count)
        snprintf(message + n, sizeof message - n,
                 " The innermost block that needs to be closed is '%s'.",
                 c->tags[c->tag_count - 1]);
    syntax_error(c, line, message);
}

static struct rp_template_node *parse_statement(struct rp_tcompile *c);

static bool at_end(struct rp_tcompile *c, const char *const *ends) {
    for (size_t i = 0; ends && ends[i]; i++)
        if (rp_template_at_name(c, ends[i]))
            return true;
    return false;
}

/* Text and {{ }} up to the next statement, as one output. */
static void flush_output(struct rp_tcompile *c, struct rp_template_nodes *out,
                         struct rp_template_node **output) {
    rp_template_add(c, out, *output);
    *output = NULL;
}

static void add_output(struct rp_tcompile *c, struct rp_template_node **output,
                       struct rp_template_node *child) {
    if (c->failed || !child)
        return;
    if (!*output)
        *output = rp_template_node(c, RP_NODE_OUTPUT, child->line);
    if (*output)
        rp_template_add(c, &(*output)->list, child);
}

/* Up to one of the end tags, which becomes the current token. */
static void subparse(struct rp_tcompile *c, const char *const *ends,
                     struct rp_template_nodes *out) {
    struct rp_template_node *output = NULL;
    if (ends)
        c->ends[c->end_count++] = ends;
    while (!c->failed && !at(c, RP_TT_EOF)) {
        const struct rp_ttoken token = *rp_template_token(c);
        if (token.type == RP_TT_DATA) {
            struct rp_template_node *text = rp_template_node(c, RP_NODE_TEXT, token.line);
            if (text)
                text->value = token.value;
            add_output(c, &output, text);
            (void)rp_template_next(c);
        } else if (token.type == RP_TT_VARIABLE_BEGIN) {
            (void)rp_template_next(c);
            add_output(c, &output, rp_template_tuple(c, false, true, false, false));
            (void)rp_template_expect(c, RP_TT_VARIABLE_END);
        } else {
            flush_output(c, out, &output);
            (void)rp_template_next(c);
            if (at_end(c, ends))
                break;
            rp_template_add(c, out, parse_statement(c));
            (void)rp_template_expect(c, RP_TT_BLOCK_END);
        }
    }
    flush_output(c, out, &output);
    if (ends && !c->failed && at(c, RP_TT_EOF))
        fail_tag(c, NULL, rp_template_token(c)->line);
    if (ends)
        c->end_count--;
}

static void parse_body(struct rp_tcompile *c, const char *const *ends, bool drop,
                       struct rp_template_nodes *out) {
    if (at(c, RP_TT_COLON))
        (void)rp_template_next(c);
    if (!rp_template_expect(c, RP_TT_BLOCK_END))
        return;
    subparse(c, ends, out);
    if (drop && !c->failed)
        (void)rp_template_next(c);
}

static bool can_assign(struct rp_tcompile *c, const struct rp_template_node *node) {
    static const char *const names[] = {
        [RP_NODE_CONST] = "const", [RP_NODE_LIST] = "list", [RP_NODE_DICT] = "dict"};
    if (!node || c->failed)
        return false;
    if (node->kind == RP_NODE_TUPLE) {
        for (size_t i = 0; i < node->list.count; i++)
            if (node->list.items[i]->kind != RP_NODE_NAME &&
                node->list.items[i]->kind != RP_NODE_NSREF &&
                node->list.items[i]->kind != RP_NODE_TUPLE) {
                syntax_error(c, node->line, "can't assign to 'tuple'");
                return false;
            }
        return true;
    }
    if (node->kind == RP_NODE_NAME || node->kind == RP_NODE_NSREF)
        return true;
    const char *name = node->kind < RP_ARRAY_COUNT(names) ? names[node->kind] : NULL;
    rp_template_fail(c, node->line, "TemplateSyntaxError", "can't assign to '%s'",
                     name ? name : "expression");
    return false;
}

static struct rp_template_node *parse_target(struct rp_tcompile *c, bool with_namespace) {
    struct rp_template_node *node = rp_template_tuple(c, true, true, false, with_namespace);
    return can_assign(c, node) ? node : NULL;
}

static int32_t parse_target_name(struct rp_tcompile *c) {
    struct rp_value name = rp_template_token(c)->value;
    if (!rp_template_expect(c, RP_TT_NAME))
        return 0;
    return rp_template_symbol(c, name);
}

static struct rp_template_node *parse_set(struct rp_tcompile *c) {
    static const char *const ends[] = {"endset", NULL};
    int line = rp_template_next(c)->line;
    struct rp_template_node *node = rp_template_node(c, RP_NODE_SET, line);
    struct rp_template_node *target = parse_target(c, true);
    if (c->failed || !node)
        return NULL;
    node->a = target;
    if (at(c, RP_TT_ASSIGN)) {
        (void)rp_template_next(c);
        node->b = rp_template_tuple(c, false, true, false, false);
        return node;
    }
    node->kind = RP_NODE_SET_BLOCK;
    node->b = rp_template_filter(c, NULL, false);
    parse_body(c, ends, true, &node->list);
    return node;
}

/* A loop over message.content, message['content'] or a variable of that name. */
static bool is_content(const struct rp_tcompile *c, const struct rp_template_node *node) {
    while (node && node->kind == RP_NODE_FILTER)
        node = node->a;
    if (!node)
        return false;
    if (node->kind == RP_NODE_NAME)
        return rp_value_is(c->tmpl->symbols[node->name], "content");
    if (node->kind == RP_NODE_GETATTR)
        return rp_value_is(node->value, "content");
    return node->kind == RP_NODE_GETITEM && node->b && node->b->kind == RP_NODE_CONST &&
           rp_value_is(node->b->value, "content");
}

static struct rp_template_node *parse_for(struct rp_tcompile *c) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    struct rp_template_node *node = rp_template_node(c, RP_NODE_FOR, rp_template_next(c)->line);
    struct rp_template_node *target = parse_target(c, false);
    char text[80];
    if (c->failed || !node)
        return NULL;
    node->a = target;
    if (!rp_template_skip_name(c, "in")) {
        rp_template_fail(c, rp_template_token(c)->line, "TemplateSyntaxError",
                         at(c, RP_TT_EOF) ? "unexpected end of template, expected '%s'.%s"
                                          : "expected token '%s', got '%s'",
                         "in",
                         at(c, RP_TT_EOF) ? "" : rp_template_describe(rp_template_token(c), text));
        return NULL;
    }
    node->b = rp_template_tuple(c, false, false, false, false);
    if (!c->failed && is_content(c, node->b))
        c->tmpl->content_parts = true;
    if (rp_template_skip_name(c, "if"))
        node->c = rp_template_expression(c, true);
    node->recursive = rp_template_skip_name(c, "recursive");
    c->loops++;
    parse_body(c, ends, false, &node->list);
    c->loops--;
    if (c->failed)
        return NULL;
    bool has_else = rp_template_at_name(c, "else");
    (void)rp_template_next(c);
    if (has_else)
        parse_body(c, last, true, &node->other);
    return node;
}

/* The branches are a chain over b; else is a branch without a test. */
static struct rp_template_node *parse_if(struct rp_tcompile *c) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    struct rp_template_node *first = rp_template_node(c, RP_NODE_IF, rp_template_next(c)->line);
    struct rp_template_node *node = first;
    while (!c->failed && node) {
        node->a = rp_template_tuple(c, false, false, false, false);
        parse_body(c, ends, false, &node->list);
        if (c->failed)
            break;
        bool is_elif = rp_template_at_name(c, "elif"), is_else = rp_template_at_name(c, "else");
        (void)rp_template_next(c);
        if (is_elif || is_else)
            node->b = rp_template_node(c, RP_NODE_IF, rp_template_token(c)->line);
        node = node->b;
        if (!is_elif) {
            if (is_else && node)
                parse_body(c, last, true, &node->list);
            break;
        }
    }
    return first;
}

static void add_param(struct rp_tcompile *c, struct rp_tparams *params, int32_t name,
                      struct rp_template_node *value) {
    size_t room = params->capacity;
    int32_t *names =
        rp_tmem_grow(c->mem, params->names, params->count, &room, params->count + 1, sizeof *names);
    struct rp_template_node **defaults =
        rp_tmem_grow(c->mem, params->defaults, params->count, &params->capacity, params->count + 1,
                     sizeof(struct rp_template_node *));
    if (!names || !defaults)
        return;
    params->names = names;
    params->defaults = defaults;
    names[params->count] = name;
    defaults[params->count++] = value;
}

/* A name and where it stands: in rising order of both. */
static int compare_places(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Python's compiler finds a second argument of a name before it finds a break outside a loop. */
static void refuse_second(struct rp_tcompile *c, const struct rp_tparams *params, int line) {
    size_t first = SIZE_MAX;
    int64_t *places = rp_tmem_alloc(c->mem, (params->count + 1) * sizeof *places);
    for (size_t i = 0; places && i < params->count; i++)
        places[i] = (int64_t)params->names[i] << 32 | (int64_t)i;
    if (places)
        qsort(places, params->count, sizeof *places, compare_places);
    for (size_t i = 1; places && i < params->count; i++)
        if (places[i] >> 32 == places[i - 1] >> 32)
            first = RP_MIN(first, (size_t)(uint32_t)places[i]);
    if (first == SIZE_MAX || c->has_second_argument)
        return;
    struct rp_value text = c->tmpl->symbols[params->names[first]];
    c->has_second_argument = true;
    c->assertion = (struct rp_chat_fault){.line = line, .kind = "SyntaxError"};
    snprintf(c->assertion.message, sizeof c->assertion.message,
             "duplicate argument '%.*s' in function definition", (int)RP_MIN(text.len, 100u),
             text.u.s);
}

static void parse_signature(struct rp_tcompile *c, struct rp_tparams *params) {
    bool has_default = false;
    (void)rp_template_expect(c, RP_TT_LPAREN);
    while (!c->failed && !at(c, RP_TT_RPAREN)) {
        struct rp_template_node *value = NULL;
        if (params->count && !rp_template_expect(c, RP_TT_COMMA))
            return;
        int32_t name = parse_target_name(c);
        if (at(c, RP_TT_ASSIGN)) {
            (void)rp_template_next(c);
            value = rp_template_expression(c, true);
            has_default = true;
        } else if (has_default) {
            syntax_error(c, rp_template_token(c)->line,
                         "non-default argument follows default argument");
        }
        add_param(c, params, name, value);
    }
    if (!c->failed)
        refuse_second(c, params, rp_template_token(c)->line);
    (void)rp_template_expect(c, RP_TT_RPAREN);
}

static void parse_macro_body(struct rp_tcompile *c, struct rp_template_node *node,
                             const char *const *ends) {
    if (c->failed)
        return;
    int loops = c->loops;
    c->loops = 0;
    c->macros[c->macro_count++] = node->params;
    parse_body(c, ends, true, &node->list);
    c->macro_count--;
    c->loops = loops;
}

static struct rp_template_node *parse_macro(struct rp_tcompile *c) {
    static const char *const ends[] = {"endmacro", NULL};
    struct rp_template_node *node = rp_template_node(c, RP_NODE_MACRO, rp_template_next(c)->line);
    int32_t name = parse_target_name(c);
    if (c->failed || !node || !(node->params = rp_tmem_alloc(c->mem, sizeof *node->params)))
        return NULL;
    node->name = name;
    parse_signature(c, node->params);
    parse_macro_body(c, node, ends);
    return node;
}

static struct rp_template_node *parse_call_block(struct rp_tcompile *c) {
    static const char *const ends[] = {"endcall", NULL};
    struct rp_template_node *node =
        rp_template_node(c, RP_NODE_CALL_BLOCK, rp_template_next(c)->line);
    if (c->failed || !node || !(node->params = rp_tmem_alloc(c->mem, sizeof *node->params)))
        return NULL;
    if (at(c, RP_TT_LPAREN))
        parse_signature(c, node->params);
    node->a = rp_template_expression(c, true);
    if (node->a && node->a->kind != RP_NODE_CALL)
        syntax_error(c, node->line, "expected call");
    parse_macro_body(c, node, ends);
    return node;
}

static struct rp_template_node *parse_filter_block(struct rp_tcompile *c) {
    static const char *const ends[] = {"endfilter", NULL};
    struct rp_template_node *node =
        rp_template_node(c, RP_NODE_FILTER_BLOCK, rp_template_next(c)->line);
    struct rp_template_node *filter = rp_template_filter(c, NULL, true);
    if (c->failed || !node)
        return NULL;
    node->b = filter;
    parse_body(c, ends, true, &node->list);
    return node;
}

static struct rp_template_node *parse_with(struct rp_tcompile *c) {
    static const char *const ends[] = {"endwith", NULL};
    struct rp_template_node *node = rp_template_node(c, RP_NODE_WITH, rp_template_next(c)->line);
    while (!c->failed && node && !at(c, RP_TT_BLOCK_END)) {
        if (node->other.count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        struct rp_template_node *set = rp_template_node(c, RP_NODE_SET, node->line);
        struct rp_template_node *target = parse_target(c, false);
        (void)rp_template_expect(c, RP_TT_ASSIGN);
        struct rp_template_node *value = c->failed ? NULL : rp_template_expression(c, true);
        if (c->failed || !set)
            break;
        set->a = target;
        set->b = value;
        rp_template_add(c, &node->other, set);
    }
    if (node)
        parse_body(c, ends, true, &node->list);
    return node;
}

static struct rp_template_node *parse_generation(struct rp_tcompile *c) {
    static const char *const ends[] = {"endgeneration", NULL};
    struct rp_template_node *node = rp_template_node(c, RP_NODE_SCOPE, rp_template_next(c)->line);
    if (node)
        parse_body(c, ends, true, &node->list);
    return node;
}

static struct rp_template_node *parse_print(struct rp_tcompile *c) {
    struct rp_template_node *node = rp_template_node(c, RP_NODE_OUTPUT, rp_template_next(c)->line);
    while (!c->failed && node && !at(c, RP_TT_BLOCK_END)) {
        if (node->list.count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        rp_template_add(c, &node->list, rp_template_expression(c, true));
    }
    return node;
}

static struct rp_template_node *parse_jump(struct rp_tcompile *c) {
    const struct rp_ttoken token = *rp_template_next(c);
    bool is_break = rp_value_is(token.value, "break");
    if (!c->loops && !c->assertion.kind) {
        c->assertion = (struct rp_chat_fault){.line = token.line, .kind = "SyntaxError"};
        snprintf(c->assertion.message, sizeof c->assertion.message, "%s",
                 is_break ? "'break' outside loop" : "'continue' not properly in loop");
    }
    return rp_template_node(c, is_break ? RP_NODE_BREAK : RP_NODE_CONTINUE, token.line);
}

/* What needs other templates has nothing to load them from. */
static struct rp_template_node *parse_refused(struct rp_tcompile *c) {
    const struct rp_ttoken *token = rp_template_token(c);
    c->unsupported = true;
    rp_template_fail(c, token->line, "TemplateSyntaxError", "the tag '%.*s' is not supported",
                     (int)token->value.len, token->value.u.s);
    return NULL;
}

static const struct statement {
    const char *name;
    struct rp_template_node *(*parse)(struct rp_tcompile *c);
} statements[] = {{"set", parse_set},           {"if", parse_if},
                  {"for", parse_for},           {"macro", parse_macro},
                  {"call", parse_call_block},   {"filter", parse_filter_block},
                  {"with", parse_with},         {"generation", parse_generation},
                  {"print", parse_print},       {"break", parse_jump},
                  {"continue", parse_jump},     {"block", parse_refused},
                  {"extends", parse_refused},   {"include", parse_refused},
                  {"import", parse_refused},    {"from", parse_refused},
                  {"autoescape", parse_refused}};

static struct rp_template_node *parse_statement(struct rp_tcompile *c) {
    const struct rp_ttoken token = *rp_template_token(c);
    struct rp_template_node *node = NULL;
    if (c->failed)
        return NULL;
    if (token.type != RP_TT_NAME) {
        syntax_error(c, token.line, "tag name expected");
        return NULL;
    }
    if (!rp_template_enter(c))
        return NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(statements); i++) {
        if (!rp_value_is(token.value, statements[i].name))
            continue;
        c->tags[c->tag_count++] = statements[i].name;
        node = statements[i].parse(c);
        c->tag_count--;
        c->depth--;
        return node;
    }
    fail_tag(c, &token.value, token.line);
    c->depth--;
    return NULL;
}

static bool prepare(struct rp_tcompile *c) {
    struct rp_chat_template *t = c->tmpl;
    t->symbol_map = rp_tdict_make(c->mem, RP_VALUE_DICT);
    if (t->symbol_map.type != RP_VALUE_DICT)
        return false;
    t->sym_loop = rp_template_symbol(c, rp_value_cstr("loop"));
    t->sym_caller = rp_template_symbol(c, rp_value_cstr("caller"));
    t->sym_kwargs = rp_template_symbol(c, rp_value_cstr("kwargs"));
    t->sym_varargs = rp_template_symbol(c, rp_value_cstr("varargs"));
    return !c->mem->failed;
}

static int compile(struct rp_tcompile *c, const char *source, size_t len) {
    if (!prepare(c) || !rp_template_lex(c, source, len))
        return RP_STATUS_NO_MEMORY;
    subparse(c, NULL, &c->tmpl->body);
    if (!c->failed)
        rp_template_check(c);
    if (c->mem->failed)
        return RP_STATUS_NO_MEMORY;
    if (!c->failed)
        return RP_OK;
    if (c->unsupported)
        return RP_STATUS_UNSUPPORTED;
    return strcmp(c->fault->kind, "BudgetError") == 0 ? RP_STATUS_RANGE : RP_STATUS_FORMAT;
}

int rp_chat_template_compile(const char *source, size_t len, const char *name,
                             struct rp_chat_template **out, struct rp_chat_fault *fault,
                             struct rp_error *err) {
    struct rp_chat_fault own;
    struct rp_tcompile c = {.fault = fault ? fault : &own};
    *out = NULL;
    memset(c.fault, 0, sizeof *c.fault);
    c.fault->kind = "";
    if (len > RP_CHAT_TEMPLATE_BYTES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: longer than %zu bytes", name,
                            RP_CHAT_TEMPLATE_BYTES_MAX);
    if (!rp_utf8_valid(source, len))
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: is not UTF-8", name);
    struct rp_chat_template *t = rp_calloc(1, sizeof *t);
    if (!t || !(t->name = rp_strdup(name)) || !(t->text = rp_alloc(len + 1))) {
        rp_chat_template_destroy(t);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", name);
    }
    memcpy(t->text, source, len);
    t->text[len] = '\0';
    /* A token takes 40 bytes and a node 200: a hostile megabyte stays within this. */
    t->mem.arena.limit_bytes = (size_t)512 << 20;
    c.mem = &t->mem;
    c.tmpl = t;
    int status = compile(&c, source, len);
    if (status == RP_OK) {
        *out = t;
        return RP_OK;
    }
    rp_chat_template_destroy(t);
    if (status == RP_STATUS_NO_MEMORY)
        return rp_error_set(err, status, "%s: out of memory", name);
    return rp_error_set(err, status, "%s line %d: %s", name, c.fault->line, c.fault->message);
}

void rp_chat_template_destroy(struct rp_chat_template *t) {
    if (!t)
        return;
    rp_arena_deinit(&t->mem.arena);
    rp_free(t->name);
    rp_free(t->text);
    rp_free(t);
}

const char *rp_chat_template_text(const struct rp_chat_template *t) { return t->text; }

bool rp_chat_template_uses(const struct rp_chat_template *t, const char *variable) {
    return rp_tdict_get_text(t->symbol_map.u.dict, variable, strlen(variable)) != NULL;
}
