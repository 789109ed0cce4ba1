/* What may follow an operand: members, subscripts, calls, filters and tests. */
#include "text/template/template_internal.h"

#include <string.h>

static void syntax_error(struct rp_tcompile *c, int line, const char *message) {
    rp_template_fail(c, line, "TemplateSyntaxError", "%s", message);
}

static bool at(struct rp_tcompile *c, enum rp_ttoken_type type) {
    return rp_template_token(c)->type == type;
}

static struct rp_template_node *constant(struct rp_tcompile *c, struct rp_value value, int line) {
    struct rp_template_node *node = rp_template_node(c, RP_NODE_CONST, line);
    if (node)
        node->value = value;
    return node;
}

static void add_keyword(struct rp_tcompile *c, struct rp_targs *args, struct rp_value name,
                        struct rp_template_node *value) {
    struct rp_tkeyword *grown =
        rp_tmem_grow(c->mem, args->keywords, args->keyword_count, &args->keyword_capacity,
                     args->keyword_count + 1, sizeof *grown);
    if (!grown || c->failed)
        return;
    args->keywords = grown;
    grown[args->keyword_count++] = (struct rp_tkeyword){name, value};
}

static bool parse_argument(struct rp_tcompile *c, struct rp_targs *args) {
    bool plain = !args->star && !args->star_star;
    if (at(c, RP_TT_MUL)) {
        (void)rp_template_next(c);
        args->star = rp_template_expression(c, true);
        return plain;
    }
    if (at(c, RP_TT_POW)) {
        plain = !args->star_star;
        (void)rp_template_next(c);
        args->star_star = rp_template_expression(c, true);
        return plain;
    }
    if (at(c, RP_TT_NAME) && rp_template_look(c)->type == RP_TT_ASSIGN) {
        struct rp_value name = rp_template_next(c)->value;
        plain = !args->star_star;
        (void)rp_template_next(c);
        if (plain)
            add_keyword(c, args, name, rp_template_expression(c, true));
        return plain;
    }
    if (!plain || args->keyword_count)
        return false;
    rp_template_add(c, &args->positional, rp_template_expression(c, true));
    return true;
}

static struct rp_targs *parse_args(struct rp_tcompile *c) {
    struct rp_targs *args = rp_tmem_alloc(c->mem, sizeof *args);
    int line = rp_template_token(c)->line;
    bool comma = false;
    if (!args)
        rp_template_fail(c, 0, "MemoryError", "out of memory");
    (void)rp_template_expect(c, RP_TT_LPAREN);
    while (!c->failed && !at(c, RP_TT_RPAREN)) {
        if (comma && !rp_template_expect(c, RP_TT_COMMA))
            break;
        if (comma && at(c, RP_TT_RPAREN))
            break;
        if (!parse_argument(c, args))
            syntax_error(c, line, "invalid syntax for function call expression");
        comma = true;
    }
    (void)rp_template_expect(c, RP_TT_RPAREN);
    return args;
}

static struct rp_template_node *parse_call(struct rp_tcompile *c, struct rp_template_node *callee) {
    struct rp_template_node *node =
        rp_template_over(c, RP_NODE_CALL, rp_template_token(c)->line, callee, NULL);
    struct rp_targs *args = parse_args(c);
    if (node)
        node->args = args;
    return c->failed ? NULL : node;
}

static struct rp_template_node *parse_subscribed(struct rp_tcompile *c) {
    int line = rp_template_token(c)->line;
    struct rp_template_node *parts[3] = {NULL, NULL, NULL};
    if (!at(c, RP_TT_COLON)) {
        parts[0] = rp_template_expression(c, true);
        if (c->failed || !at(c, RP_TT_COLON))
            return parts[0];
    }
    for (int i = 1; i < 3 && !c->failed && at(c, RP_TT_COLON); i++) {
        (void)rp_template_next(c);
        bool empty = at(c, RP_TT_RBRACKET) || at(c, RP_TT_COMMA) || (i == 1 && at(c, RP_TT_COLON));
        parts[i] = empty ? NULL : rp_template_expression(c, true);
    }
    struct rp_template_node *node = rp_template_over(c, RP_NODE_SLICE, line, parts[0], parts[1]);
    rp_template_third(c, node, parts[2]);
    return c->failed ? NULL : node;
}

static struct rp_template_node *parse_subscript(struct rp_tcompile *c,
                                                struct rp_template_node *object) {
    const struct rp_ttoken token = *rp_template_next(c);
    if (token.type == RP_TT_DOT) {
        const struct rp_ttoken member = *rp_template_token(c);
        if (c->failed)
            return NULL;
        (void)rp_template_next(c);
        if (member.type != RP_TT_NAME && member.type != RP_TT_INTEGER) {
            syntax_error(c, member.line, "expected name or number");
            return NULL;
        }
        bool name = member.type == RP_TT_NAME;
        struct rp_template_node *node =
            rp_template_over(c, name ? RP_NODE_GETATTR : RP_NODE_GETITEM, token.line, object,
                             name ? NULL : constant(c, member.value, member.line));
        if (node && name)
            node->value = member.value;
        return node;
    }
    struct rp_template_node *first = NULL, *tuple = NULL;
    size_t count = 0;
    while (!c->failed && !at(c, RP_TT_RBRACKET)) {
        if (count && !rp_template_expect(c, RP_TT_COMMA))
            break;
        struct rp_template_node *item = parse_subscribed(c);
        if (count++ == 0) {
            first = item;
            continue;
        }
        if (!tuple) {
            tuple = rp_template_node(c, RP_NODE_TUPLE, token.line);
            rp_template_child(c, tuple, first);
        }
        rp_template_child(c, tuple, item);
    }
    (void)rp_template_expect(c, RP_TT_RBRACKET);
    if (count == 0)
        tuple = rp_template_node(c, RP_NODE_TUPLE, token.line);
    return rp_template_over(c, RP_NODE_GETITEM, token.line, object, tuple ? tuple : first);
}

struct rp_template_node *rp_template_postfix(struct rp_tcompile *c, struct rp_template_node *node) {
    while (!c->failed) {
        if (at(c, RP_TT_DOT) || at(c, RP_TT_LBRACKET))
            node = parse_subscript(c, node);
        else if (at(c, RP_TT_LPAREN))
            node = parse_call(c, node);
        else
            break;
    }
    return node;
}

/* "a.b.c" as one name. */
static struct rp_value parse_dotted(struct rp_tcompile *c) {
    struct rp_value name = rp_template_token(c)->value;
    if (!rp_template_expect(c, RP_TT_NAME) || !at(c, RP_TT_DOT))
        return name;
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, c->mem);
    rp_tbuf_string(&buf, name);
    while (!c->failed && at(c, RP_TT_DOT)) {
        (void)rp_template_next(c);
        rp_tbuf_bytes(&buf, ".", 1, false);
        if (at(c, RP_TT_NAME))
            rp_tbuf_string(&buf, rp_template_token(c)->value);
        (void)rp_template_expect(c, RP_TT_NAME);
    }
    return rp_tbuf_finish(&buf);
}

struct rp_template_node *rp_template_filter(struct rp_tcompile *c, struct rp_template_node *node,
                                            bool start_inline) {
    while (!c->failed && (start_inline || at(c, RP_TT_PIPE))) {
        if (!start_inline)
            (void)rp_template_next(c);
        start_inline = false;
        int line = rp_template_token(c)->line;
        struct rp_value name = parse_dotted(c);
        struct rp_template_node *filter = rp_template_over(c, RP_NODE_FILTER, line, node, NULL);
        if (!filter)
            return NULL;
        filter->value = name;
        filter->filter = rp_tfilter_find(name);
        if (at(c, RP_TT_LPAREN))
            filter->args = parse_args(c);
        node = filter;
    }
    return c->failed ? NULL : node;
}

static bool test_has_argument(struct rp_tcompile *c) {
    static const uint8_t types[] = {RP_TT_NAME,   RP_TT_STRING,   RP_TT_INTEGER, RP_TT_FLOAT,
                                    RP_TT_LPAREN, RP_TT_LBRACKET, RP_TT_LBRACE};
    return memchr(types, rp_template_token(c)->type, sizeof types) &&
           !rp_template_at_name(c, "else") && !rp_template_at_name(c, "or") &&
           !rp_template_at_name(c, "and");
}

static struct rp_template_node *parse_test(struct rp_tcompile *c, struct rp_template_node *object) {
    int line = rp_template_next(c)->line;
    bool negated = rp_template_skip_name(c, "not");
    struct rp_value name = parse_dotted(c);
    struct rp_template_node *node = rp_template_over(c, RP_NODE_TEST, line, object, NULL);
    if (!node)
        return NULL;
    node->value = name;
    node->test = rp_ttest_find(name);
    if (at(c, RP_TT_LPAREN)) {
        node->args = parse_args(c);
    } else if (test_has_argument(c)) {
        if (rp_template_at_name(c, "is"))
            syntax_error(c, rp_template_token(c)->line, "You cannot chain multiple tests with is");
        node->args = rp_tmem_alloc(c->mem, sizeof *node->args);
        struct rp_template_node *argument = rp_template_primary(c, false);
        argument = rp_template_postfix(c, argument);
        if (node->args)
            rp_template_add(c, &node->args->positional, argument);
    }
    return negated ? rp_template_over(c, RP_NODE_NOT, line, node, NULL) : c->failed ? NULL : node;
}

struct rp_template_node *rp_template_suffix(struct rp_tcompile *c, struct rp_template_node *node) {
    while (!c->failed) {
        if (at(c, RP_TT_PIPE))
            node = rp_template_filter(c, node, false);
        else if (rp_template_at_name(c, "is"))
            node = parse_test(c, node);
        else if (at(c, RP_TT_LPAREN))
            node = parse_call(c, node);
        else
            break;
    }
    return node;
}
