/* Checks that jinja2 makes when it generates code, after parsing: unknown filters and tests. They
 * are reported in the order of its code, and inside if (or an inline if) only when reached. */
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

static void complain(struct rp_tcompile *c, int line, const char *format, struct rp_value name) {
    if (c->failed)
        return;
    char text[204];
    snprintf(text, sizeof text, "%.*s", (int)RP_MIN(name.len, 200u), name.u.s);
    rp_template_fail(c, line, "TemplateAssertionError", format, text);
}

static void check(struct rp_tcompile *c, const struct rp_template_node *node, bool soft);

static void check_list(struct rp_tcompile *c, const struct rp_template_nodes *nodes, bool soft) {
    for (size_t i = 0; i < nodes->count && !c->failed; i++)
        check(c, nodes->items[i], soft);
}

static void check_args(struct rp_tcompile *c, const struct rp_targs *args, bool soft) {
    if (!args)
        return;
    check_list(c, &args->positional, soft);
    for (size_t i = 0; i < args->keyword_count; i++)
        check(c, args->keywords[i].value, soft);
    check(c, args->star, soft);
    check(c, args->star_star, soft);
}

static bool names_loop(const struct rp_tcompile *c, const struct rp_template_node *target) {
    if (target->kind == RP_NODE_NAME)
        return target->name == c->tmpl->sym_loop;
    for (size_t i = 0; i < target->list.count; i++)
        if (names_loop(c, target->list.items[i]))
            return true;
    return false;
}

static void check_for(struct rp_tcompile *c, const struct rp_template_node *node, bool soft) {
    check(c, node->c, false);
    if (names_loop(c, node->a))
        complain(c, node->a->line, "Can't assign to special loop variable in for-loop target%s",
                 rp_value_cstr(""));
    check(c, node->b, soft);
    check_list(c, &node->list, false);
    check_list(c, &node->other, false);
}

static void check_macro(struct rp_tcompile *c, const struct rp_template_node *node, bool soft) {
    for (size_t i = 0; i < node->params->count; i++)
        check(c, node->params->defaults[i], false);
    check_list(c, &node->list, false);
    check(c, node->a, soft);
}

static void check(struct rp_tcompile *c, const struct rp_template_node *node, bool soft) {
    if (!node || c->failed)
        return;
    switch (node->kind) {
    case RP_NODE_IF: /* a chain, which may be long */
        for (; node && !c->failed; node = node->b) {
            check(c, node->a, true);
            check_list(c, &node->list, true);
        }
        return;
    case RP_NODE_FOR:
        check_for(c, node, soft);
        return;
    case RP_NODE_MACRO:
    case RP_NODE_CALL_BLOCK:
        check_macro(c, node, soft);
        return;
    case RP_NODE_SET_BLOCK:
    case RP_NODE_FILTER_BLOCK:
        check_list(c, &node->list, false);
        check(c, node->b, false);
        return;
    case RP_NODE_WITH:
        check_list(c, &node->other, soft);
        check_list(c, &node->list, false);
        return;
    case RP_NODE_SCOPE:
        check_list(c, &node->list, false);
        return;
    case RP_NODE_COND:
        check(c, node->b, true);
        check(c, node->a, true);
        check(c, node->c, true);
        return;
    case RP_NODE_FILTER:
        if (!node->filter && !soft)
            complain(c, node->line, "No filter named '%s'.", node->value);
        break;
    case RP_NODE_TEST:
        if (!node->test && !soft)
            complain(c, node->line, "No test named '%s'.", node->value);
        break;
    default:
        break;
    }
    check(c, node->a, soft);
    check(c, node->b, soft);
    check(c, node->c, soft);
    check_list(c, &node->list, soft);
    check_args(c, node->args, soft);
}

void rp_template_check(struct rp_tcompile *c) {
    check_list(c, &c->tmpl->body, false);
    if (!c->failed && c->assertion.kind) { /* Python's compiler comes last */
        c->failed = true;
        *c->fault = c->assertion;
    }
}
