/* grammar_ebnf.c - rules and expressions of GBNF and Lark. */
#include "text/grammar/grammar_ebnf.h"

#include <stdio.h>
#include <string.h>

#define DEPTH_MAX  64 /* of groups and inlined rules together */
#define INLINE_MAX 32 /* deeper rules are called */

int ebnf_refuse(struct ebnf *p, int status, const char *what, const char *name, size_t len) {
    unsigned line = 1;
    for (size_t i = 0; i < RP_MIN(p->at, p->len); i++)
        line += p->text[i] == '\n';
    return rp_error_set(p->err, status, "grammar, line %u: %s%s%.*s", line, what, len ? " " : "",
                        (int)RP_MIN(len, (size_t)100), name);
}

bool ebnf_peek(const struct ebnf *p, const char *text) {
    size_t len = strlen(text);
    return p->at <= p->len && p->len - p->at >= len && memcmp(p->text + p->at, text, len) == 0;
}

bool ebnf_take(struct ebnf *p, const char *text) {
    bool here = ebnf_peek(p, text);
    p->at += here ? strlen(text) : 0;
    return here;
}

void ebnf_space(struct ebnf *p) {
    for (; p->at < p->len; p->at++) {
        if (ebnf_peek(p, "#") || (p->lark && ebnf_peek(p, "//")))
            while (p->at + 1 < p->len && p->text[p->at] != '\n')
                p->at++;
        else if (!strchr(" \t\r\n", p->text[p->at]) || p->text[p->at] == 0)
            return;
    }
}

static bool is_name(const struct ebnf *p, char c) {
    char low = c | 0x20;
    return (low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           (c == '-' && !p->lark);
}

size_t ebnf_name(const struct ebnf *p) {
    size_t len = 0;
    while (p->at + len < p->len && is_name(p, p->text[p->at + len]))
        len++;
    return len;
}

bool ebnf_is_terminal(const char *name, size_t len) {
    size_t i = 0;
    while (i < len && name[i] == '_')
        i++;
    return i < len && name[i] >= 'A' && name[i] <= 'Z';
}

bool ebnf_defines(struct ebnf *p, size_t *out_name, size_t *out_len, size_t *out_body) {
    size_t begin = p->at;
    uint32_t priority;
    while (p->lark && (ebnf_take(p, "?") || ebnf_take(p, "!")))
        continue;
    *out_name = p->at;
    *out_len = ebnf_name(p);
    p->at += *out_len;
    if (p->lark && ebnf_peek(p, ".") && !ebnf_peek(p, "..")) {
        p->at++;
        (void)ebnf_take(p, "-");
        (void)ebnf_number(p, &priority);
    }
    ebnf_space(p);
    bool defines = *out_len > 0 && ebnf_take(p, p->lark ? ":" : "::=");
    *out_body = p->at;
    p->at = begin;
    return defines;
}

/* ---- Values ------------------------------------------------------------ */

uint32_t ebnf_node(struct ebnf *p, struct ebnf_value v) {
    if (!v.regular)
        return v.id;
    return v.lit != NODE_NONE ? v.lit : g_lex(p->g, v.id);
}

struct ebnf_value ebnf_cat(struct ebnf *p, struct ebnf_value a, struct ebnf_value b) {
    if (a.regular && a.id == NODE_EPS)
        return b;
    if (b.regular && b.id == NODE_EPS)
        return a;
    if (a.regular && b.regular)
        return ebnf_regular(rx_cat(p->g, a.id, b.id));
    return ebnf_other(g_cat(p->g, ebnf_node(p, a), ebnf_node(p, b)));
}

struct ebnf_value ebnf_repeat(struct ebnf *p, struct ebnf_value a, uint32_t low, uint32_t high) {
    if (a.regular)
        return ebnf_regular(rx_rep(p->g, a.id, low, high));
    return ebnf_other(g_rep(p->g, a.id, low, high));
}

struct ebnf_value ebnf_or(struct ebnf *p, struct ebnf_value *values, size_t count) {
    struct rp_grammar *g = p->g;
    size_t base = g->work.count, others = 0;
    if (count == 1)
        return values[0];
    for (size_t i = 0; i < count; i++)
        if (values[i].regular)
            (void)VEC_PUSH(g, &g->work, values[i].id);
        else
            others++;
    uint32_t rx =
        g->status == RP_OK ? rx_or(g, g->work.at + base, g->work.count - base) : NODE_NONE;
    g->work.count = base;
    if (others == 0)
        return ebnf_regular(rx);
    if (others < count)
        (void)VEC_PUSH(g, &g->work, g_lex(g, rx));
    for (size_t i = 0; i < count; i++)
        if (!values[i].regular)
            (void)VEC_PUSH(g, &g->work, values[i].id);
    uint32_t node =
        g->status == RP_OK ? g_or(g, g->work.at + base, g->work.count - base) : NODE_NONE;
    g->work.count = base;
    return ebnf_other(node);
}

/* ---- Rules ------------------------------------------------------------ */

int ebnf_add_rule(struct ebnf *p, struct ebnf_rule rule) {
    if (!grammar_burn(p->g, 1 + p->rules.count / 64))
        return p->g->status;
    for (size_t i = 0; i < p->rules.count; i++)
        if (p->rules.at[i].len == rule.len && memcmp(p->rules.at[i].name, rule.name, rule.len) == 0)
            return ebnf_refuse(p, RP_STATUS_FORMAT, "a second definition of", rule.name, rule.len);
    return VEC_PUSH(p->g, &p->rules, rule) ? RP_OK : p->g->status;
}

/* A ::= A x | y is y x*. */
static uint32_t without_left_recursion(struct rp_grammar *g, uint32_t body, uint32_t ref) {
    struct node n = *node_at(g, body);
    size_t base = g->work.count, count = n.kind == G_OR ? n.b : 1, tails = 0;
    for (int pass = 0; pass < 2; pass++) /* what follows A, then the others */
        for (size_t i = 0; i < count; i++) {
            uint32_t id = n.kind == G_OR ? g->lists.at[n.a + i] : body;
            struct node one = *node_at(g, id);
            bool left = id == ref || (one.kind == G_CAT && one.a == ref);
            if (left == (pass == 0) && id != ref) {
                (void)VEC_PUSH(g, &g->work, left ? one.b : id);
                tails += left;
            }
        }
    uint32_t result = body;
    if (g->status == RP_OK && (tails > 0 || g->work.count - base < count)) {
        uint32_t repeated = g_or(g, g->work.at + base, tails);
        result = g_or(g, g->work.at + base + tails, g->work.count - base - tails);
        result = g_cat(g, result, g_rep(g, repeated, 0, REP_INF));
    }
    g->work.count = base;
    return result;
}

/* The pattern of a terminal of Lark's library. */
static int library_rule(struct ebnf *p, const char *pattern, struct ebnf_value *out) {
    uint32_t rx;
    int rc =
        regex_parse_flags(p->g, pattern, strlen(pattern), p->mode, REGEX_LINE_DOT, &rx, p->err);
    if (rc == RP_OK)
        *out = ebnf_regular(rx);
    return rc;
}

static int compile_rule(struct ebnf *p, size_t index) {
    struct ebnf_rule rule = p->rules.at[index];
    size_t at = p->at, name, len, body;
    bool in_terminal = p->in_terminal;
    struct ebnf_value v = ebnf_regular(NODE_NONE);
    p->rules.at[index].state = EBNF_BUSY;
    p->at = rule.body;
    p->in_terminal = p->lark && ebnf_is_terminal(rule.name, rule.len);
    int rc = rule.body == SIZE_MAX ? library_rule(p, rule.pattern, &v) : ebnf_expression(p, &v);
    if (rc == RP_OK && p->at < p->len && !ebnf_peek(p, "%") && !ebnf_defines(p, &name, &len, &body))
        rc = ebnf_refuse(p, RP_STATUS_FORMAT, "unexpected:", p->text + p->at, 1);
    if (rc != RP_OK)
        return rc;
    p->at = at;
    p->in_terminal = in_terminal;
    uint32_t ref = p->rules.at[index].ref; /* it may have been called from within */
    if (ref != NODE_NONE) {
        g_rule_set(p->g, ref, without_left_recursion(p->g, ebnf_node(p, v), ref));
        v = ebnf_other(ref);
    }
    p->rules.at[index].value = v;
    p->rules.at[index].state = EBNF_DONE;
    return p->g->status;
}

static int call(struct ebnf *p, struct ebnf_value *out) {
    const char *name = p->text + p->at;
    size_t len = ebnf_name(p), i = 0;
    if (!grammar_burn(p->g, 1 + p->rules.count / 64))
        return p->g->status;
    while (i < p->rules.count &&
           (p->rules.at[i].len != len || memcmp(p->rules.at[i].name, name, len) != 0))
        i++;
    if (i == p->rules.count)
        return ebnf_refuse(p, RP_STATUS_FORMAT, "no definition of", name, len);
    p->at += len;
    if (p->lark && ebnf_peek(p, "{"))
        return ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "templates are not supported:", name, len);
    if (p->rules.at[i].state == EBNF_UNSEEN && p->depth < INLINE_MAX) {
        p->depth++;
        int rc = compile_rule(p, i);
        p->depth--;
        if (rc != RP_OK)
            return rc;
    }
    struct ebnf_rule *rule = &p->rules.at[i];
    if (rule->state != EBNF_DONE && rule->ref == NODE_NONE)
        rule->ref = g_rule(p->g);
    *out = rule->state == EBNF_DONE ? rule->value : ebnf_other(rule->ref);
    return p->g->status;
}

/* ---- Expressions ------------------------------------------------------------ */

static int atom(struct ebnf *p, struct ebnf_value *out) {
    const char *name = p->text + p->at;
    size_t len = ebnf_name(p);
    int rc;
    if (ebnf_peek(p, "(") || (p->lark && ebnf_peek(p, "["))) {
        bool optional = p->text[p->at++] == '[';
        if (++p->depth > DEPTH_MAX)
            return ebnf_refuse(p, RP_STATUS_FULL, "groups are nested too deeply", "", 0);
        rc = ebnf_expression(p, out);
        p->depth--;
        if (rc == RP_OK && !ebnf_take(p, optional ? "]" : ")"))
            rc = ebnf_refuse(p, RP_STATUS_FORMAT, "a group has no end", "", 0);
        if (rc == RP_OK && optional)
            *out = ebnf_repeat(p, *out, 0, 1);
        return rc;
    }
    if (len > 0) {
        rc = call(p, out);
        if (rc != RP_OK || !ebnf_is_terminal(name, len))
            return rc;
    } else if (ebnf_peek(p, "\"")) {
        rc = ebnf_string(p, out);
    } else if (ebnf_peek(p, "[")) {
        rc = ebnf_class(p, out);
    } else if (ebnf_peek(p, "/") && p->lark) {
        rc = ebnf_pattern(p, out);
    } else if (p->mode != RX_PLAIN && (ebnf_peek(p, "<") || ebnf_peek(p, "!<"))) {
        rc = ebnf_refuse(p, RP_STATUS_UNSUPPORTED, "tokens are not supported in a string", "", 0);
    } else if (ebnf_peek(p, "<")) {
        rc = ebnf_token(p, out);
    } else if (ebnf_peek(p, "!<") && !p->lark) {
        rc = ebnf_not_token(p, out);
    } else if (ebnf_peek(p, "%") && p->lark) {
        rc = lark_inline(p, out);
    } else if (ebnf_peek(p, ".") && !p->lark) {
        p->at++;
        *out = ebnf_regular(rx_chars(p->g, CHARSET_ANY, p->mode));
        rc = RP_OK;
    } else {
        return ebnf_refuse(p, RP_STATUS_FORMAT, "unexpected:", name, p->at < p->len);
    }
    if (rc == RP_OK && p->lark && !p->in_terminal)
        *out = ebnf_cat(p, *out, p->ignore);
    return rc;
}

/* {n}, {n,}, {n,m}; Lark: ~n, ~n..m. */
static int counted(struct ebnf *p, uint32_t *low, uint32_t *high) {
    bool brace = p->text[p->at++] == '{', ok = true;
    ebnf_space(p);
    *low = 0;
    if (!ebnf_number(p, low))
        ok = brace && ebnf_peek(p, ",");
    *high = *low;
    ebnf_space(p);
    if (ebnf_take(p, brace ? "," : "..")) {
        ebnf_space(p);
        if (!ebnf_number(p, high))
            *high = REP_INF, ok = ok && brace;
        ebnf_space(p);
    }
    if (!ok || (brace && !ebnf_take(p, "}")) || *low > *high)
        return ebnf_refuse(p, RP_STATUS_FORMAT, "a repeat is {n}, {n,} or {n,m}; in Lark ~n..m", "",
                           0);
    if (*low > EBNF_REPEAT_MAX || (*high > EBNF_REPEAT_MAX && *high != REP_INF))
        return ebnf_refuse(p, RP_STATUS_FULL, "a repeat is above 65535", "", 0);
    return RP_OK;
}

static int item(struct ebnf *p, struct ebnf_value *out) {
    int rc = atom(p, out);
    for (; rc == RP_OK; ebnf_space(p)) {
        uint32_t low = 0, high = REP_INF;
        size_t name, len, body;
        ebnf_space(p);
        if (p->lark && ebnf_peek(p, "?") && ebnf_defines(p, &name, &len, &body))
            return rc;
        if (ebnf_take(p, "+"))
            low = 1;
        else if (ebnf_take(p, "?"))
            high = 1;
        else if (ebnf_peek(p, p->lark ? "~" : "{"))
            rc = counted(p, &low, &high);
        else if (!ebnf_take(p, "*"))
            return rc;
        if (rc == RP_OK)
            *out = ebnf_repeat(p, *out, low, high);
        if (rc == RP_OK)
            rc = p->g->status;
    }
    return rc;
}

static bool at_end(struct ebnf *p) {
    size_t name, len, body;
    ebnf_space(p);
    if (p->at >= p->len || ebnf_peek(p, "|") || ebnf_peek(p, ")"))
        return true;
    if (p->lark && (ebnf_peek(p, "]") || ebnf_peek(p, "->") ||
                    (ebnf_peek(p, "%") && !ebnf_peek(p, "%json") && !ebnf_peek(p, "%regex"))))
        return true;
    return ebnf_defines(p, &name, &len, &body);
}

static int sequence(struct ebnf *p, struct ebnf_value *out) {
    struct rp_grammar *g = p->g;
    size_t base = g->work.count; /* from right to left, so that chains are built once */
    int rc = RP_OK;
    while (rc == RP_OK && !at_end(p)) {
        struct ebnf_value v = ebnf_regular(NODE_NONE);
        rc = item(p, &v);
        if (rc == RP_OK && (!VEC_PUSH(g, &g->work, v.regular) || !VEC_PUSH(g, &g->work, v.id) ||
                            !VEC_PUSH(g, &g->work, v.lit)))
            rc = g->status;
    }
    *out = ebnf_regular(NODE_EPS);
    for (; g->work.count > base && rc == RP_OK; g->work.count -= 3) {
        const uint32_t *at = g->work.at + g->work.count - 3;
        struct ebnf_value v = {at[0] != 0, at[1], at[2]};
        *out = ebnf_cat(p, v, *out);
    }
    g->work.count = base;
    if (rc == RP_OK && p->lark && ebnf_take(p, "->")) { /* an alias names a tree's node */
        ebnf_space(p);
        p->at += ebnf_name(p);
        ebnf_space(p);
    }
    return rc != RP_OK ? rc : g->status;
}

int ebnf_expression(struct ebnf *p, struct ebnf_value *out) {
    struct rp_grammar *g = p->g;
    VEC(struct ebnf_value) all = {.count = 0};
    int rc;
    do {
        struct ebnf_value v;
        rc = sequence(p, &v);
        if (rc == RP_OK && !VEC_PUSH(g, &all, v))
            rc = g->status;
    } while (rc == RP_OK && ebnf_take(p, "|"));
    if (rc == RP_OK)
        *out = ebnf_or(p, all.at, all.count);
    g->memory_bytes -= all.capacity * sizeof *all.at;
    rp_free(all.at);
    return rc != RP_OK ? rc : g->status;
}

/* ---- The whole ------------------------------------------------------------ */

/* What `id` may begin with: its i-th part, or NODE_NONE after the last. */
static uint32_t first_part(const struct rp_grammar *g, uint32_t id, uint32_t i) {
    const struct node *n = node_at(g, id);
    if (n->kind == G_OR)
        return i < n->b ? g->lists.at[n->a + i] : NODE_NONE;
    if (n->kind == G_CAT && i == 1)
        return node_nullable(g, n->a) ? n->b : NODE_NONE;
    if (i > 0)
        return NODE_NONE;
    return n->kind == G_REF                       ? g->rules.at[n->a]
           : n->kind == G_CAT || n->kind == G_REP ? n->a
                                                  : NODE_NONE;
}

/* A rule that may begin with itself would never be expanded to its end. */
static bool is_left_recursive(struct rp_grammar *g, uint32_t start) {
    uint32_t open = g->pass + 1, closed = g->pass + 2;
    size_t base = g->work.count;
    bool found = false;
    g->pass += 2;
    (void)(VEC_PUSH(g, &g->work, start) && VEC_PUSH(g, &g->work, 0));
    while (g->status == RP_OK && g->work.count > base && !found && grammar_burn(g, 1)) {
        uint32_t id = g->work.at[g->work.count - 2], i = g->work.at[g->work.count - 1]++;
        g->nodes.at[id].mark = open;
        uint32_t part = first_part(g, id, i);
        if (part == NODE_NONE) {
            if (node_at(g, id)->kind == G_OR && i < node_at(g, id)->b)
                continue;
            g->nodes.at[id].mark = closed;
            g->work.count -= 2;
            continue;
        }
        found = node_at(g, part)->mark == open;
        if (node_at(g, part)->mark < open)
            (void)(VEC_PUSH(g, &g->work, part) && VEC_PUSH(g, &g->work, 0));
    }
    g->work.count = base;
    return found;
}

int ebnf_compile(struct ebnf *p, const char *start, uint32_t *out) {
    size_t begin = SIZE_MAX;
    for (size_t i = 0; i < p->rules.count; i++) {
        int rc = p->rules.at[i].state == EBNF_UNSEEN ? compile_rule(p, i) : RP_OK;
        if (rc != RP_OK)
            return rc;
        if (p->rules.at[i].len == strlen(start) &&
            memcmp(p->rules.at[i].name, start, strlen(start)) == 0)
            begin = i;
    }
    if (begin == SIZE_MAX)
        return rp_error_set(p->err, RP_STATUS_FORMAT, "grammar: no rule is called %s", start);
    struct ebnf_value v = p->rules.at[begin].value;
    if (p->lark)
        v = ebnf_cat(p, p->ignore, v);
    *out = ebnf_node(p, v);
    g_settle(p->g, 0);
    if (p->g->status == RP_OK && is_left_recursive(p->g, *out))
        return rp_error_set(p->err, RP_STATUS_UNSUPPORTED,
                            "grammar: a rule begins with itself through other rules or what may "
                            "be empty: only A ::= A x | y is supported");
    return p->g->status;
}
