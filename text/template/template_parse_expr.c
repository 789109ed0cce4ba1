/* Expressions: jinja2's grammar, and the lines that it gives to nodes. */
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

bool rp_template_enter(struct rp_tcompile *c) {
    if (c->depth >= RP_TEMPLATE_DEPTH_MAX)
        rp_template_fail(c, rp_template_token(c)->line, "BudgetError",
                         "the template is nested more than %d deep", RP_TEMPLATE_DEPTH_MAX);
    else
        c->depth++;
    return !c->failed;
}

struct rp_template_node *rp_template_node(struct rp_tcompile *c, enum rp_template_node_kind kind,
                                          int line) {
    struct rp_template_node *node = rp_tmem_alloc(c->mem, sizeof *node);
    if (!node) {
        rp_template_fail(c, 0, "MemoryError", "out of memory");
        return NULL;
    }
    node->kind = (uint8_t)kind;
    node->line = line;
    node->depth = 1;
    return node;
}

static void deepen(struct rp_tcompile *c, struct rp_template_node *node,
                   const struct rp_template_node *child) {
    if (!child)
        return;
    node->depth = (uint16_t)RP_MAX(node->depth, child->depth + 1);
    if (node->depth > 2 * RP_TEMPLATE_DEPTH_MAX)
        rp_template_fail(c, node->line, "BudgetError", "an expression has more than %d levels",
                         2 * RP_TEMPLATE_DEPTH_MAX);
}

/* A node over up to three children; NULL once something failed. */
struct rp_template_node *rp_template_over(struct rp_tcompile *c, enum rp_template_node_kind kind,
                                          int line, struct rp_template_node *a,
                                          struct rp_template_node *b) {
    struct rp_template_node *node = c->failed ? NULL : rp_template_node(c, kind, line);
    if (!node)
        return NULL;
    node->a = a;
    node->b = b;
    deepen(c, node, a);
    deepen(c, node, b);
    return c->failed ? NULL : node;
}

void rp_template_third(struct rp_tcompile *c, struct rp_template_node *node,
                       struct rp_template_node *child) {
    if (c->failed || !node || !child)
        return;
    node->c = child;
    deepen(c, node, child);
}

void rp_template_add(struct rp_tcompile *c, struct rp_template_nodes *nodes,
                     struct rp_template_node *node) {
    if (c->failed || !node)
        return;
    struct rp_template_node **items = rp_tmem_grow(
        c->mem, nodes->items, nodes->count, &nodes->capacity, nodes->count + 1, sizeof *items);
    if (!items) {
        rp_template_fail(c, 0, "MemoryError", "out of memory");
        return;
    }
    nodes->items = items;
    nodes->items[nodes->count++] = node;
}

void rp_template_child(struct rp_tcompile *c, struct rp_template_node *node,
                       struct rp_template_node *child) {
    if (c->failed || !node || !child)
        return;
    deepen(c, node, child);
    rp_template_add(c, &node->list, child);
}

int32_t rp_template_symbol(struct rp_tcompile *c, struct rp_value name) {
    struct rp_chat_template *t = c->tmpl;
    const struct rp_value *found = rp_tdict_get(t->symbol_map.u.dict, name);
    if (found)
        return (int32_t)found->u.i;
    struct rp_value *symbols =
        rp_tmem_grow(c->mem, t->symbols, t->symbol_count, &t->symbol_capacity, t->symbol_count + 1,
                     sizeof *symbols);
    if (!symbols) {
        rp_template_fail(c, 0, "MemoryError", "out of memory");
        return 0;
    }
    t->symbols = symbols;
    symbols[t->symbol_count] = name;
    rp_tdict_put(c->mem, t->symbol_map.u.dict, name, rp_value_int((int64_t)t->symbol_count));
    return (int32_t)t->symbol_count++;
}

static bool at(struct rp_tcompile *c, enum rp_ttoken_type type) {
    return rp_template_token(c)->type == type;
}

/* ---- Expressions ---------------------------------------------------------------------- */

static struct rp_template_node *parse_list(struct rp_tcompile *c) {
    struct rp_template_node *node = rp_template_node(c, RP_NODE_LIST, rp_template_next(c)->line);
    while (!c->failed && !at(c, RP_TT_RBRACKET)) {
        if (node->list.count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        if (at(c, RP_TT_RBRACKET))
            break;
        rp_template_child(c, node, rp_template_expression(c, true));
    }
    (void)rp_template_expect(c, RP_TT_RBRACKET);
    return node;
}

static struct rp_template_node *parse_dict(struct rp_tcompile *c) {
    struct rp_template_node *node = rp_template_node(c, RP_NODE_DICT, rp_template_next(c)->line);
    while (!c->failed && !at(c, RP_TT_RBRACE)) {
        if (node->list.count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        if (at(c, RP_TT_RBRACE))
            break;
        rp_template_child(c, node, rp_template_expression(c, true));
        (void)rp_template_expect(c, RP_TT_COLON);
        rp_template_child(c, node, rp_template_expression(c, true));
    }
    (void)rp_template_expect(c, RP_TT_RBRACE);
    return node;
}

static struct rp_template_node *constant(struct rp_tcompile *c, struct rp_value value, int line) {
    struct rp_template_node *node = rp_template_node(c, RP_NODE_CONST, line);
    if (node)
        node->value = value;
    return node;
}

/* The names used in a macro's body determine which extra arguments its calls may pass. */
static void note_name(struct rp_tcompile *c, int32_t name) {
    const struct rp_chat_template *t = c->tmpl;
    for (int i = 0; i < c->macro_count; i++) {
        struct rp_tparams *params = c->macros[i];
        params->uses_caller = params->uses_caller || name == t->sym_caller;
        params->uses_kwargs = params->uses_kwargs || name == t->sym_kwargs;
        params->uses_varargs = params->uses_varargs || name == t->sym_varargs;
    }
}

static struct rp_template_node *parse_name(struct rp_tcompile *c, bool with_namespace) {
    const struct rp_ttoken token = *rp_template_next(c);
    const struct rp_value v = token.value;
    if (rp_value_is(v, "true") || rp_value_is(v, "True"))
        return constant(c, rp_value_bool(true), token.line);
    if (rp_value_is(v, "false") || rp_value_is(v, "False"))
        return constant(c, rp_value_bool(false), token.line);
    if (rp_value_is(v, "none") || rp_value_is(v, "None"))
        return constant(c, rp_value_none(), token.line);
    bool reference = with_namespace && at(c, RP_TT_DOT);
    struct rp_template_node *node =
        rp_template_node(c, reference ? RP_NODE_NSREF : RP_NODE_NAME, token.line);
    if (!node)
        return NULL;
    node->name = rp_template_symbol(c, v);
    note_name(c, node->name);
    if (reference) {
        (void)rp_template_next(c);
        node->value = rp_template_token(c)->value;
        (void)rp_template_expect(c, RP_TT_NAME);
    }
    return node;
}

static struct rp_template_node *parse_string(struct rp_tcompile *c) {
    const struct rp_ttoken first = *rp_template_next(c);
    if (!at(c, RP_TT_STRING))
        return constant(c, first.value, first.line);
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, c->mem);
    rp_tbuf_string(&buf, first.value);
    while (!c->failed && at(c, RP_TT_STRING))
        rp_tbuf_string(&buf, rp_template_next(c)->value);
    return constant(c, rp_tbuf_finish(&buf), first.line);
}

struct rp_template_node *rp_template_primary(struct rp_tcompile *c, bool with_namespace) {
    const struct rp_ttoken *token = rp_template_token(c);
    struct rp_template_node *node = NULL;
    char text[80];
    if (c->failed || !rp_template_enter(c))
        return NULL;
    switch (token->type) {
    case RP_TT_NAME:
        node = parse_name(c, with_namespace);
        break;
    case RP_TT_STRING:
        node = parse_string(c);
        break;
    case RP_TT_INTEGER:
    case RP_TT_FLOAT:
        node = constant(c, token->value, token->line);
        (void)rp_template_next(c);
        break;
    case RP_TT_LPAREN:
        (void)rp_template_next(c);
        node = rp_template_tuple(c, false, true, true, false);
        (void)rp_template_expect(c, RP_TT_RPAREN);
        break;
    case RP_TT_LBRACKET:
        node = parse_list(c);
        break;
    case RP_TT_LBRACE:
        node = parse_dict(c);
        break;
    default:
        rp_template_fail(c, token->line, "TemplateSyntaxError", "unexpected '%s'",
                         rp_template_describe(token, text));
    }
    c->depth--;
    return c->failed ? NULL : node;
}

static bool tuple_ends(struct rp_tcompile *c) {
    return at(c, RP_TT_VARIABLE_END) || at(c, RP_TT_BLOCK_END) || at(c, RP_TT_RPAREN);
}

struct rp_template_node *rp_template_tuple(struct rp_tcompile *c, bool simplified,
                                           bool with_condition, bool parentheses,
                                           bool with_namespace) {
    int line = rp_template_token(c)->line;
    struct rp_template_nodes items = {NULL, 0, 0};
    bool is_tuple = false;
    char text[80];
    while (!c->failed) {
        if (items.count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        if (tuple_ends(c))
            break;
        rp_template_add(c, &items,
                        simplified ? rp_template_primary(c, with_namespace)
                                   : rp_template_expression(c, with_condition));
        if (!at(c, RP_TT_COMMA))
            break;
        is_tuple = true;
        line = rp_template_token(c)->line;
    }
    if (c->failed)
        return NULL;
    if (!is_tuple && items.count)
        return items.items[0];
    if (!is_tuple && !parentheses) {
        rp_template_fail(c, rp_template_token(c)->line, "TemplateSyntaxError",
                         "Expected an expression, got '%s'",
                         rp_template_describe(rp_template_token(c), text));
        return NULL;
    }
    struct rp_template_node *node = rp_template_node(c, RP_NODE_TUPLE, line);
    for (size_t i = 0; node && i < items.count; i++)
        rp_template_child(c, node, items.items[i]);
    return node;
}

static struct rp_template_node *parse_unary(struct rp_tcompile *c, bool with_filter) {
    struct rp_template_node *node;
    int line = rp_template_token(c)->line;
    if (c->failed || !rp_template_enter(c))
        return NULL;
    if (at(c, RP_TT_SUB) || at(c, RP_TT_ADD)) {
        enum rp_template_node_kind kind = at(c, RP_TT_SUB) ? RP_NODE_NEG : RP_NODE_POS;
        (void)rp_template_next(c);
        node = rp_template_over(c, kind, line, parse_unary(c, false), NULL);
    } else {
        node = rp_template_primary(c, false);
    }
    node = rp_template_postfix(c, node);
    if (with_filter)
        node = rp_template_suffix(c, node);
    c->depth--;
    return c->failed ? NULL : node;
}

static const struct level {
    uint8_t token, op;
} levels[3][4] = {
    {{RP_TT_POW, RP_TOP_POW}},
    {{RP_TT_MUL, RP_TOP_MUL},
     {RP_TT_DIV, RP_TOP_DIV},
     {RP_TT_FLOORDIV, RP_TOP_FLOORDIV},
     {RP_TT_MOD, RP_TOP_MOD}},
    {{RP_TT_ADD, RP_TOP_ADD}, {RP_TT_SUB, RP_TOP_SUB}},
};

static struct rp_template_node *parse_concat(struct rp_tcompile *c);

/* level 0: **, 1: * / // %, 2: + - */
static struct rp_template_node *parse_binary(struct rp_tcompile *c, int level) {
    int line = rp_template_token(c)->line;
    struct rp_template_node *left = level == 0   ? parse_unary(c, true)
                                    : level == 1 ? parse_binary(c, 0)
                                                 : parse_concat(c);
    while (!c->failed) {
        int found = -1;
        for (int i = 0; i < 4; i++)
            if (levels[level][i].token && at(c, (enum rp_ttoken_type)levels[level][i].token))
                found = levels[level][i].op;
        if (found < 0)
            break;
        (void)rp_template_next(c);
        struct rp_template_node *right = level == 0   ? parse_unary(c, true)
                                         : level == 1 ? parse_binary(c, 0)
                                                      : parse_concat(c);
        left = rp_template_over(c, RP_NODE_BINARY, line, left, right);
        if (left)
            left->op = (uint8_t)found;
        line = rp_template_token(c)->line;
    }
    return left;
}

static struct rp_template_node *parse_concat(struct rp_tcompile *c) {
    int line = rp_template_token(c)->line;
    struct rp_template_node *first = parse_binary(c, 1);
    if (c->failed || !at(c, RP_TT_TILDE))
        return first;
    struct rp_template_node *node = rp_template_node(c, RP_NODE_CONCAT, line);
    rp_template_child(c, node, first);
    while (!c->failed && at(c, RP_TT_TILDE)) {
        (void)rp_template_next(c);
        rp_template_child(c, node, parse_binary(c, 1));
    }
    return c->failed ? NULL : node;
}

/* The operator at the current token, consumed; -1: none. */
static int comparison(struct rp_tcompile *c) {
    static const struct level ops[] = {{RP_TT_EQ, RP_TOP_EQ}, {RP_TT_NE, RP_TOP_NE},
                                       {RP_TT_LT, RP_TOP_LT}, {RP_TT_LTEQ, RP_TOP_LE},
                                       {RP_TT_GT, RP_TOP_GT}, {RP_TT_GTEQ, RP_TOP_GE}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(ops); i++)
        if (at(c, (enum rp_ttoken_type)ops[i].token)) {
            (void)rp_template_next(c);
            return ops[i].op;
        }
    if (rp_template_skip_name(c, "in"))
        return RP_TOP_IN;
    if (!rp_template_at_name(c, "not"))
        return -1;
    const struct rp_ttoken *next = rp_template_look(c);
    if (next->type != RP_TT_NAME || !rp_value_is(next->value, "in"))
        return -1;
    (void)rp_template_next(c);
    (void)rp_template_next(c);
    return RP_TOP_NOT_IN;
}

static struct rp_template_node *parse_compare(struct rp_tcompile *c) {
    int line = rp_template_token(c)->line, op;
    struct rp_template_node *first = parse_binary(c, 2), *node = NULL;
    while (!c->failed && (op = comparison(c)) >= 0) {
        if (!node)
            node = rp_template_over(c, RP_NODE_COMPARE, line, first, NULL);
        struct rp_template_node *operand =
            rp_template_over(c, RP_NODE_OPERAND, line, parse_binary(c, 2), NULL);
        if (!operand)
            return NULL;
        operand->op = (uint8_t)op;
        rp_template_child(c, node, operand);
        node->line = rp_template_token(c)->line;
    }
    return node ? node : first;
}

static struct rp_template_node *parse_not(struct rp_tcompile *c) {
    if (!rp_template_at_name(c, "not"))
        return parse_compare(c);
    int line = rp_template_next(c)->line;
    if (!rp_template_enter(c))
        return NULL;
    struct rp_template_node *node = rp_template_over(c, RP_NODE_NOT, line, parse_not(c), NULL);
    c->depth--;
    return node;
}

static struct rp_template_node *parse_logic(struct rp_tcompile *c, bool is_or) {
    int line = rp_template_token(c)->line;
    struct rp_template_node *left = is_or ? parse_logic(c, false) : parse_not(c);
    while (!c->failed && rp_template_skip_name(c, is_or ? "or" : "and")) {
        left = rp_template_over(c, is_or ? RP_NODE_OR : RP_NODE_AND, line, left,
                                is_or ? parse_logic(c, false) : parse_not(c));
        line = rp_template_token(c)->line;
    }
    return left;
}

struct rp_template_node *rp_template_expression(struct rp_tcompile *c, bool with_condition) {
    if (c->failed || !rp_template_enter(c))
        return NULL;
    int line = rp_template_token(c)->line;
    struct rp_template_node *node = parse_logic(c, true);
    while (with_condition && !c->failed && rp_template_skip_name(c, "if")) {
        struct rp_template_node *test = parse_logic(c, true);
        struct rp_template_node *otherwise =
            rp_template_skip_name(c, "else") ? rp_template_expression(c, true) : NULL;
        struct rp_template_node *condition = rp_template_over(c, RP_NODE_COND, line, test, node);
        rp_template_third(c, condition, otherwise);
        node = condition;
        line = rp_template_token(c)->line;
    }
    c->depth--;
    return c->failed ? NULL : node;
}
