/* mask_parse.c - the text of a mask program as a tree: recursive descent, types checked where a
 * node is made. */
#include "attention/mask/mask_internal.h"
#include "attention/mask/mask_lex.h"
#include "base/nearest_name.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Enough for a tree of RP_MASK_DEPTH_MAX levels. */
#define NESTING_MAX (RP_MASK_DEPTH_MAX + 2)

enum place { IN_CONDITION, IN_RULE, IN_ARGUMENT, IN_RULE_ARGUMENT };

struct parser {
    struct rp_mask_lexer lexer;
    struct rp_mask_word word; /* lookahead, not yet consumed */
    struct rp_mask_draft *draft;
    struct rp_error *err;
    enum place place;
    uint32_t nesting;
    bool failed;
};

static uint16_t expression(struct parser *p);

/* Returns RP_MASK_NONE. The first error is kept, including one from the lexer. */
static uint16_t fail(struct parser *p, uint32_t column, const char *hint, const char *format, ...)
    RP_PRINTF(4, 5);
static uint16_t fail(struct parser *p, uint32_t column, const char *hint, const char *format, ...) {
    char text[256];
    va_list args;
    if (p->failed)
        return RP_MASK_NONE;
    p->failed = true;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int status = rp_error_set(p->err, RP_STATUS_INVALID, "column %u: %s", column, text);
    (void)status;
    rp_error_hint(p->err, "%s", hint);
    return RP_MASK_NONE;
}

static void advance(struct parser *p) {
    if (!p->failed && !rp_mask_next_word(&p->lexer, &p->word))
        p->failed = true;
}

static bool is(const struct parser *p, const char *text) {
    return !p->failed && rp_mask_word_is(&p->word, text);
}

static bool take(struct parser *p, const char *text) {
    bool found = is(p, text);
    if (found)
        advance(p);
    return found;
}

/* The word as printed in an error. */
static const char *shown(const struct parser *p, char out[48]) {
    if (p->word.kind == RP_MASK_WORD_END)
        return "the end";
    snprintf(out, 48, "\"%.*s\"", (int)RP_MIN(p->word.length, 40u), p->word.begin);
    return out;
}

static bool expect(struct parser *p, const char *text, const char *where) {
    char word[48];
    if (take(p, text))
        return true;
    (void)fail(p, p->word.column, "docs/masks.md has the grammar", "\"%s\" is missing %s, found %s",
               text, where, shown(p, word));
    return false;
}

/* --- Nodes with checked types ---------------------------------------------------------- */

static enum rp_mask_type type_of(const struct parser *p, uint16_t node) {
    return (enum rp_mask_type)p->draft->nodes[node].type;
}

static const char *type_name(enum rp_mask_type type) {
    static const char *const names[] = {"a condition", "an integer", "a number"};
    return names[type];
}

static uint16_t make(struct parser *p, enum rp_mask_op op, enum rp_mask_type type, uint32_t column,
                     uint16_t a, uint16_t b, uint16_t c) {
    uint16_t child[3] = {a, b, c};
    if (p->failed || a == RP_MASK_NONE || b == RP_MASK_NONE || c == RP_MASK_NONE)
        return RP_MASK_NONE;
    uint16_t node = rp_mask_add_node(p->draft, op, type, column, child);
    if (node == RP_MASK_NONE)
        return fail(p, column, "named blocks count as what they stand for",
                    "the program has more than %u nodes", RP_MASK_NODES_MAX);
    return node;
}

static uint16_t make_int(struct parser *p, uint32_t column, int32_t i) {
    uint16_t node = make(p, RP_MASK_OP_INT, RP_MASK_INT, column, 0, 0, 0);
    if (node != RP_MASK_NONE)
        p->draft->nodes[node].value.i = i;
    return node;
}

static uint16_t to_float(struct parser *p, uint16_t node) {
    if (node == RP_MASK_NONE || type_of(p, node) == RP_MASK_FLOAT)
        return node;
    return make(p, RP_MASK_OP_TO_FLOAT, RP_MASK_FLOAT, p->draft->nodes[node].column, node, 0, 0);
}

static const char *hint_for(enum rp_mask_type found) {
    return found == RP_MASK_BOOL ? "a condition becomes an integer by `condition ? 1 : 0`"
                                 : "compare it, as in `... != 0` or `... < n`";
}

/* Returns true when `node` has a type that `op` accepts: a condition, or an integer or number. */
static bool check(struct parser *p, const char *op, uint32_t column, uint16_t node, bool condition,
                  const char *side) {
    if (node == RP_MASK_NONE)
        return false;
    enum rp_mask_type found = type_of(p, node);
    if ((found == RP_MASK_BOOL) == condition)
        return true;
    (void)fail(p, column, hint_for(found), "%s takes %s, %s is %s", op,
               condition ? "conditions" : "integers and numbers", side, type_name(found));
    return false;
}

/* Converts both to float when one of them is. Returns their type. */
static enum rp_mask_type unite(struct parser *p, uint16_t *a, uint16_t *b) {
    if (type_of(p, *a) == type_of(p, *b))
        return type_of(p, *a);
    *a = to_float(p, *a);
    *b = to_float(p, *b);
    return RP_MASK_FLOAT;
}

static uint16_t make_binary(struct parser *p, enum rp_mask_op op, uint32_t column, uint16_t a,
                            uint16_t b) {
    const char *text = rp_mask_ops[op].text;
    bool joins = op == RP_MASK_OP_AND || op == RP_MASK_OP_OR;
    bool equals = op == RP_MASK_OP_EQ || op == RP_MASK_OP_NE;
    if (a == RP_MASK_NONE || b == RP_MASK_NONE)
        return RP_MASK_NONE;
    bool conditions = joins || (equals && type_of(p, a) == RP_MASK_BOOL);
    if (!check(p, text, column, a, conditions, "its left side") ||
        !check(p, text, column, b, conditions, "its right side"))
        return RP_MASK_NONE;
    enum rp_mask_type type = conditions ? RP_MASK_BOOL : unite(p, &a, &b);
    if (op == RP_MASK_OP_MOD && type == RP_MASK_FLOAT)
        return fail(p, column, "take the remainder of integers", "%% takes integers only");
    if (rp_mask_ops[op].precedence <= rp_mask_ops[RP_MASK_OP_LT].precedence)
        type = RP_MASK_BOOL;
    return make(p, op, type, column, a, b, 0);
}

/* --- Names ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum rp_mask_op op;
} functions[] = {{"min", RP_MASK_OP_MIN},   {"max", RP_MASK_OP_MAX}, {"abs", RP_MASK_OP_ABS},
                 {"tanh", RP_MASK_OP_TANH}, {"exp", RP_MASK_OP_EXP}, {"slope", RP_MASK_OP_SLOPE}},
  positions[] = {{"q", RP_MASK_OP_Q},
                 {"kv", RP_MASK_OP_KV},
                 {"h", RP_MASK_OP_H},
                 {"layer", RP_MASK_OP_LAYER},
                 {"score", RP_MASK_OP_SCORE}};
static const char *const words[] = {"param", "in", "true", "false"};

static const struct rp_mask_block *find_block(const struct rp_mask_word *word) {
    for (uint32_t i = 0; i < rp_mask_block_count; i++)
        if (rp_mask_word_is(word, rp_mask_blocks[i].name))
            return &rp_mask_blocks[i];
    return NULL;
}

static int find_param(const struct parser *p, const struct rp_mask_word *word) {
    for (uint32_t i = 0; i < p->draft->param_count; i++)
        if (rp_mask_word_is(word, p->draft->params[i].name))
            return (int)i;
    return -1;
}

static bool is_reserved(const struct rp_mask_word *word) {
    bool found = find_block(word) != NULL;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(functions); i++)
        found |= rp_mask_word_is(word, functions[i].name);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(positions); i++)
        found |= rp_mask_word_is(word, positions[i].name);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        found |= rp_mask_word_is(word, words[i]);
    return found;
}

static uint16_t unknown_name(struct parser *p) {
    const char *names[64];
    uint32_t count = 0;
    char name[RP_MASK_NAME_MAX + 8], hint[128];
    if (is(p, "param") || is(p, "in"))
        return fail(p, p->word.column,
                    "a declaration is a clause of its own: `param w = 256 in 1..8192;`",
                    "%.*s is not expected here", (int)p->word.length, p->word.begin);
    for (uint32_t i = 0; i < rp_mask_block_count; i++)
        names[count++] = rp_mask_blocks[i].name;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(functions); i++)
        names[count++] = functions[i].name;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(positions); i++)
        names[count++] = positions[i].name;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        names[count++] = words[i];
    for (uint32_t i = 0; i < p->draft->param_count; i++)
        names[count++] = p->draft->params[i].name;
    snprintf(name, sizeof name, "%.*s", (int)p->word.length, p->word.begin);
    const char *nearest = rp_nearest_name(name, names, count);
    if (nearest)
        snprintf(hint, sizeof hint, "did you mean %s?", nearest);
    else
        snprintf(hint, sizeof hint, "a parameter is declared by `param %s = 1;`", name);
    return fail(p, p->word.column, hint, "the name %s is not known", name);
}

/* --- Arguments ------------------------------------------------------------------------- */

/* `(a, b, ...)`, after the name. */
static bool arguments(struct parser *p, const char *name, uint32_t min, uint32_t max,
                      const char *example, struct rp_mask_block_args *args) {
    char hint[64];
    snprintf(hint, sizeof hint, "write %s", example);
    args->count = 0;
    if (is(p, "(")) {
        do {
            advance(p);
            if (args->count == RP_MASK_PARAMS_MAX) {
                (void)fail(p, p->word.column, hint, "%s has more than %u arguments", name, max);
                return false;
            }
            uint16_t node = expression(p);
            if (node == RP_MASK_NONE)
                return false;
            args->node[args->count++] = node;
        } while (is(p, ","));
        if (!expect(p, ")", "after the arguments"))
            return false;
    }
    if (args->count >= min && args->count <= max)
        return true;
    (void)fail(p, args->column, hint, "%s takes %s%u argument%s, not %u", name,
               min == max ? "" : "at least ", min, min == 1 ? "" : "s", args->count);
    return false;
}

static uint16_t call(struct parser *p, uint32_t index) {
    static const char *const examples[] = {"min(a, b)", "max(a, b)", "abs(a)",
                                           "tanh(x)",   "exp(x)",    "slope(h)"};
    enum rp_mask_op op = functions[index].op;
    const char *name = functions[index].name;
    struct rp_mask_block_args args = {.column = p->word.column};
    bool real = op == RP_MASK_OP_TANH || op == RP_MASK_OP_EXP || op == RP_MASK_OP_SLOPE;
    if (real && p->place != IN_RULE && p->place != IN_RULE_ARGUMENT)
        return fail(p, p->word.column, "conditions compute with integers",
                    "%s belongs into score rules", name);
    advance(p);
    uint32_t arity = rp_mask_ops[op].arity;
    if (!arguments(p, name, arity, arity, examples[index], &args))
        return RP_MASK_NONE;
    if (arity == 2)
        return make_binary(p, op, args.column, args.node[0], args.node[1]);
    if (!check(p, name, args.column, args.node[0], false, "its argument"))
        return RP_MASK_NONE;
    if (op == RP_MASK_OP_SLOPE && type_of(p, args.node[0]) != RP_MASK_INT)
        return fail(p, args.column, "write slope(h)", "slope takes an integer, not a number");
    if (op == RP_MASK_OP_ABS)
        return make(p, op, type_of(p, args.node[0]), args.column, args.node[0], 0, 0);
    uint16_t x = op == RP_MASK_OP_SLOPE ? args.node[0] : to_float(p, args.node[0]);
    return make(p, op, RP_MASK_FLOAT, args.column, x, 0, 0);
}

/* Arguments of a named block must be the same for every pair of one head. */
static uint16_t block(struct parser *p, const struct rp_mask_block *block) {
    struct rp_mask_block_args args = {.column = p->word.column};
    enum place place = p->place;
    if (!block->is_rule && place != IN_CONDITION && place != IN_RULE)
        return fail(p, args.column, "arguments are made of constants, parameters, h and layer",
                    "%s cannot be an argument of a block", block->name);
    advance(p);
    p->place = block->is_rule ? IN_RULE_ARGUMENT : IN_ARGUMENT;
    bool good = arguments(p, block->name, block->args_min, block->args_max, block->example, &args);
    p->place = place;
    for (uint32_t i = 0; good && i < args.count; i++) {
        good = check(p, block->name, args.column, args.node[i], false, "its argument");
        if (good && block->is_rule)
            args.node[i] = to_float(p, args.node[i]);
    }
    if (!good || p->failed)
        return RP_MASK_NONE;
    uint16_t node = rp_mask_expand(p->draft, block, &args);
    if (node == RP_MASK_NONE)
        return fail(p, args.column, "named blocks count as what they stand for",
                    "the program has more than %u nodes", RP_MASK_NODES_MAX);
    return node;
}

/* --- Expressions ----------------------------------------------------------------------- */

static uint16_t position(struct parser *p, uint32_t index) {
    enum rp_mask_op op = positions[index].op;
    uint32_t column = p->word.column;
    bool argument = p->place == IN_ARGUMENT || p->place == IN_RULE_ARGUMENT;
    if (argument && op != RP_MASK_OP_H && op != RP_MASK_OP_LAYER)
        return fail(p, column, "arguments are made of constants, parameters, h and layer",
                    "%s cannot be in an argument of a block", positions[index].name);
    if (op == RP_MASK_OP_SCORE && p->place != IN_RULE)
        return fail(p, column, "a rule is a clause of its own: `score = ...`",
                    "score is known in score rules only");
    advance(p);
    return make(p, op, op == RP_MASK_OP_SCORE ? RP_MASK_FLOAT : RP_MASK_INT, column, 0, 0, 0);
}

static uint16_t name(struct parser *p) {
    uint32_t column = p->word.column;
    const struct rp_mask_block *named = find_block(&p->word);
    if (named && named->is_rule)
        return fail(p, column, "put it after a `;`, as in `causal; soft_cap(50)`",
                    "%s is a score rule, a clause of its own", named->name);
    if (named)
        return block(p, named);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(functions); i++)
        if (is(p, functions[i].name))
            return call(p, i);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(positions); i++)
        if (is(p, positions[i].name))
            return position(p, i);
    int param = find_param(p, &p->word);
    bool truth = is(p, "true");
    if (param < 0 && !truth && !is(p, "false"))
        return unknown_name(p);
    advance(p);
    uint16_t node = param >= 0 ? make(p, RP_MASK_OP_PARAM, RP_MASK_INT, column, 0, 0, 0)
                               : make(p, RP_MASK_OP_BOOL, RP_MASK_BOOL, column, 0, 0, 0);
    if (node != RP_MASK_NONE)
        p->draft->nodes[node].value.i = param >= 0 ? param : truth;
    return node;
}

static uint16_t number(struct parser *p) {
    struct rp_mask_word word = p->word;
    if (word.kind == RP_MASK_WORD_INT) {
        advance(p);
        return make_int(p, word.column, word.i);
    }
    if (p->place == IN_CONDITION || p->place == IN_ARGUMENT)
        return fail(p, word.column, "write an integer", "conditions compute with integers");
    advance(p);
    uint16_t node = make(p, RP_MASK_OP_FLOAT, RP_MASK_FLOAT, word.column, 0, 0, 0);
    if (node != RP_MASK_NONE)
        p->draft->nodes[node].value.f = word.f;
    return node;
}

static bool enter(struct parser *p) {
    if (p->nesting == NESTING_MAX) {
        (void)fail(p, p->word.column, "take it apart: clauses must all hold",
                   "nested deeper than %d levels", RP_MASK_DEPTH_MAX);
        return false;
    }
    p->nesting++;
    return true;
}

static uint16_t primary(struct parser *p) {
    char word[48];
    if (p->failed)
        return RP_MASK_NONE;
    if (p->word.kind == RP_MASK_WORD_NAME)
        return name(p);
    if (p->word.kind == RP_MASK_WORD_INT || p->word.kind == RP_MASK_WORD_FLOAT)
        return number(p);
    if (!take(p, "("))
        return fail(p, p->word.column, "a name, a number or a bracket is expected here",
                    "an expression is missing, found %s", shown(p, word));
    uint16_t node = expression(p);
    return node != RP_MASK_NONE && expect(p, ")", "after the expression") ? node : RP_MASK_NONE;
}

static uint16_t unary(struct parser *p) {
    bool negates = is(p, "!");
    if (!negates && !is(p, "-"))
        return primary(p);
    uint32_t column = p->word.column;
    if (!enter(p))
        return RP_MASK_NONE;
    advance(p);
    uint16_t a = unary(p);
    p->nesting--;
    if (!check(p, negates ? "!" : "-", column, a, negates, "its operand"))
        return RP_MASK_NONE;
    return make(p, negates ? RP_MASK_OP_NOT : RP_MASK_OP_NEG, type_of(p, a), column, a, 0, 0);
}

static bool find_binary(const struct parser *p, enum rp_mask_op *out) {
    for (int op = RP_MASK_OP_MUL; op <= RP_MASK_OP_OR; op++)
        if (is(p, rp_mask_ops[op].text)) {
            *out = (enum rp_mask_op)op;
            return true;
        }
    return false;
}

static uint16_t binary(struct parser *p, uint32_t precedence) {
    enum rp_mask_op op;
    uint16_t left = unary(p);
    while (left != RP_MASK_NONE && find_binary(p, &op) &&
           rp_mask_ops[op].precedence >= precedence) {
        uint32_t column = p->word.column;
        advance(p);
        uint16_t right = binary(p, rp_mask_ops[op].precedence + 1u);
        left = make_binary(p, op, column, left, right);
    }
    return left;
}

static uint16_t select_operands(struct parser *p, uint16_t condition) {
    uint32_t column = p->word.column;
    advance(p);
    if (!check(p, "?:", column, condition, true, "the one before `?`"))
        return RP_MASK_NONE;
    uint16_t yes = expression(p);
    if (yes == RP_MASK_NONE || !expect(p, ":", "between the two results of `?`"))
        return RP_MASK_NONE;
    uint16_t no = expression(p);
    if (no == RP_MASK_NONE)
        return RP_MASK_NONE;
    if (!check(p, "?:", column, no, type_of(p, yes) == RP_MASK_BOOL,
               "unlike the first, the second"))
        return RP_MASK_NONE;
    enum rp_mask_type type = unite(p, &yes, &no);
    return make(p, RP_MASK_OP_SELECT, type, column, condition, yes, no);
}

static uint16_t expression(struct parser *p) {
    if (!enter(p))
        return RP_MASK_NONE;
    uint16_t node = binary(p, 0);
    if (node != RP_MASK_NONE && is(p, "?"))
        node = select_operands(p, node);
    p->nesting--;
    return node;
}

/* --- Clauses --------------------------------------------------------------------------- */

static bool signed_int(struct parser *p, const char *what, int32_t *out) {
    char word[48];
    bool minus = take(p, "-");
    if (p->failed)
        return false;
    if (p->word.kind != RP_MASK_WORD_INT) {
        (void)fail(p, p->word.column, "as in `param w = 256 in 1..8192`",
                   "%s of a parameter is an integer, found %s", what, shown(p, word));
        return false;
    }
    *out = minus ? -p->word.i : p->word.i;
    advance(p);
    return !p->failed;
}

static bool param_name(struct parser *p, char out[RP_MASK_NAME_MAX]) {
    char word[48];
    const char *hint = "as in `param w = 256 in 1..8192`";
    if (p->failed)
        return false;
    if (p->word.kind != RP_MASK_WORD_NAME)
        (void)fail(p, p->word.column, hint, "the name of a parameter is missing, found %s",
                   shown(p, word));
    else if (p->word.length >= RP_MASK_NAME_MAX)
        (void)fail(p, p->word.column, hint, "the name of a parameter has more than %u bytes",
                   RP_MASK_NAME_MAX - 1);
    else if (is_reserved(&p->word))
        (void)fail(p, p->word.column, "choose another name", "%s means something already",
                   shown(p, word));
    else if (find_param(p, &p->word) >= 0)
        (void)fail(p, p->word.column, "choose another name", "the parameter %s is declared twice",
                   shown(p, word));
    else if (p->draft->param_count == RP_MASK_PARAMS_MAX)
        (void)fail(p, p->word.column, "compute one from others, or make some constants",
                   "more than %d parameters", RP_MASK_PARAMS_MAX);
    if (p->failed)
        return false;
    memcpy(out, p->word.begin, p->word.length);
    out[p->word.length] = '\0';
    advance(p);
    return true;
}

static void param(struct parser *p) {
    struct rp_mask_param made = {.min = 0, .max = RP_MASK_PARAM_DEFAULT};
    advance(p);
    uint32_t column = p->word.column;
    if (!param_name(p, made.name) || !expect(p, "=", "after the parameter's name") ||
        !signed_int(p, "the value", &made.value))
        return;
    if (take(p, "in") && (!signed_int(p, "the least value", &made.min) ||
                          !expect(p, "..", "between the least and the largest value") ||
                          !signed_int(p, "the largest value", &made.max)))
        return;
    if (made.min > made.max)
        (void)fail(p, column, "write the smaller one first", "the range %d..%d is empty", made.min,
                   made.max);
    else if (made.value < made.min || made.value > made.max)
        (void)fail(p, column, "give a range, as in `param w = 256 in 1..8192`",
                   "the value %d of %s is not in %d..%d", made.value, made.name, made.min,
                   made.max);
    else
        p->draft->params[p->draft->param_count++] = made;
}

static void rule(struct parser *p, uint32_t column, const struct rp_mask_block *named) {
    p->place = IN_RULE;
    uint16_t node = named ? block(p, named) : expression(p);
    if (node == RP_MASK_NONE || !check(p, "score =", column, node, false, "its right side"))
        return;
    node = to_float(p, node);
    if (p->draft->rule_count == RP_MASK_RULES_MAX)
        (void)fail(p, column, "put several rules into one expression", "more than %d score rules",
                   RP_MASK_RULES_MAX);
    else if (node != RP_MASK_NONE)
        p->draft->rules[p->draft->rule_count++] = node;
}

static void condition(struct parser *p) {
    uint32_t column = p->word.column;
    p->place = IN_CONDITION;
    uint16_t node = expression(p);
    if (is(p, "="))
        (void)fail(p, p->word.column, "== compares; a rule is `score = ...`",
                   "\"=\" is not expected here");
    if (p->failed || !check(p, "a clause", column, node, true, "this one"))
        return;
    if (p->draft->condition != RP_MASK_NONE)
        node = make_binary(p, RP_MASK_OP_AND, column, p->draft->condition, node);
    p->draft->condition = node;
}

static void clause(struct parser *p) {
    uint32_t column = p->word.column;
    const struct rp_mask_block *named = find_block(&p->word);
    if (is(p, "param")) {
        param(p);
    } else if (is(p, "score")) {
        advance(p);
        if (expect(p, "=", "after score"))
            rule(p, column, NULL);
    } else if (named && named->is_rule) {
        rule(p, column, named);
    } else {
        condition(p);
    }
}

bool rp_mask_read(const char *text, size_t bytes, struct rp_mask_draft *draft,
                  struct rp_error *err) {
    struct parser p = {.draft = draft, .err = err};
    char word[48];
    draft->condition = RP_MASK_NONE;
    if (bytes > RP_MASK_TEXT_MAX) {
        (void)fail(&p, RP_MASK_TEXT_MAX + 1, "named blocks are shorter than what they stand for",
                   "the program has %zu bytes, at most %d are allowed", bytes, RP_MASK_TEXT_MAX);
        return false;
    }
    p.lexer = (struct rp_mask_lexer){.text = text, .bytes = (uint32_t)bytes, .err = err};
    advance(&p);
    while (!p.failed && p.word.kind != RP_MASK_WORD_END) {
        if (take(&p, ";"))
            continue;
        clause(&p);
        if (!p.failed && p.word.kind != RP_MASK_WORD_END && !is(&p, ";"))
            (void)fail(&p, p.word.column, "clauses are separated by `;`, conditions joined by &&",
                       "%s is not expected here", shown(&p, word));
    }
    struct rp_mask_block_args none = {.column = 1};
    if (!p.failed && draft->condition == RP_MASK_NONE) {
        draft->condition = rp_mask_expand(draft, &rp_mask_blocks[0], &none);
        if (draft->condition == RP_MASK_NONE)
            (void)fail(&p, 1, "make the score rules shorter", "the program has more than %u nodes",
                       RP_MASK_NODES_MAX);
    }
    return !p.failed;
}
