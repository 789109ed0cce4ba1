/* template_tree.h - the compiled form of a chat template, and declarations shared by the compiler's
 * files. */
#ifndef RP_TEXT_TEMPLATE_TREE_H
#define RP_TEXT_TEMPLATE_TREE_H

#include "text/template/template_value.h"

/* ---- The compiled template ------------------------------------------------------------ */

enum rp_template_node_kind {
    /* statements */
    RP_NODE_OUTPUT, /* list: expressions and TEXT */
    /* a test, list body, b: the next elif or else (a NULL) */
    RP_NODE_TEXT,
    /* a target, b iter, c test; list body; other: else */
    RP_NODE_IF,
    /* a target, b value */
    RP_NODE_FOR,
    /* a target, b filter chain with an empty bottom or NULL, list body */
    RP_NODE_SET,
    /* name, params, list body */
    RP_NODE_SET_BLOCK,
    /* a call, params, list body */
    RP_NODE_MACRO,
    RP_NODE_CALL_BLOCK,
    /* other: SET nodes; list body */
    RP_NODE_FILTER_BLOCK,
    /* generation */
    RP_NODE_WITH,
    RP_NODE_SCOPE,
    RP_NODE_BREAK,
    RP_NODE_CONTINUE,
    /* expressions */
    RP_NODE_CONST,
    /* name, value: attribute */
    RP_NODE_NAME,
    RP_NODE_NSREF,
    RP_NODE_LIST,
    /* list: key, value, key, ... */
    RP_NODE_TUPLE,
    /* a test, b then, c else or NULL */
    RP_NODE_DICT,
    /* op, a, b */
    RP_NODE_COND,
    RP_NODE_BINARY,
    RP_NODE_AND,
    RP_NODE_OR,
    RP_NODE_NOT,
    RP_NODE_NEG,
    /* list */
    RP_NODE_POS,
    /* a, list of OPERAND */
    RP_NODE_CONCAT,
    /* op, a */
    RP_NODE_COMPARE,
    /* a, value: the name, name: method or 0 */
    RP_NODE_OPERAND,
    /* a, b */
    RP_NODE_GETATTR,
    /* a, b, c, each or NULL */
    RP_NODE_GETITEM,
    /* a, args */
    RP_NODE_SLICE,
    /* a (NULL: the buffer of a block), filter, args */
    RP_NODE_CALL,
    /* a, test, args */
    RP_NODE_FILTER,
    RP_NODE_TEST,
};

enum rp_top { /* operators */
              RP_TOP_ADD,
              RP_TOP_SUB,
              RP_TOP_MUL,
              RP_TOP_DIV,
              RP_TOP_FLOORDIV,
              RP_TOP_MOD,
              RP_TOP_POW,
              RP_TOP_EQ,
              RP_TOP_NE,
              RP_TOP_LT,
              RP_TOP_LE,
              RP_TOP_GT,
              RP_TOP_GE,
              RP_TOP_IN,
              RP_TOP_NOT_IN,
};

struct rp_template_node;

struct rp_template_nodes {
    struct rp_template_node **items;
    size_t count, capacity;
};

struct rp_tkeyword {
    struct rp_value name;
    struct rp_template_node *value;
};

struct rp_targs {
    struct rp_template_nodes positional;
    struct rp_tkeyword *keywords;
    size_t keyword_count, keyword_capacity;
    struct rp_template_node *star, *star_star;
};

/* Parameters of a macro or call block, and what its body requests. */
struct rp_tparams {
    int32_t *names;
    struct rp_template_node **defaults; /* NULL: none */
    size_t count, capacity;
    bool uses_caller, uses_kwargs, uses_varargs;
};

struct rp_tfilter;
struct rp_ttest;

struct rp_template_node {
    uint8_t kind, op;
    bool recursive; /* of FOR */
    uint16_t depth; /* of the tree below */
    int32_t line;
    int32_t name; /* symbol */
    struct rp_template_node *a, *b, *c;
    struct rp_template_nodes list, other;
    struct rp_value value;
    struct rp_targs *args;
    struct rp_tparams *params;
    const struct rp_tfilter *filter; /* NULL: unknown, fails when it is reached */
    const struct rp_ttest *test;
};

#define RP_TEMPLATE_DEPTH_MAX 200

struct rp_chat_template {
    struct rp_tmem mem;
    char *name, *text;
    struct rp_template_nodes body;
    struct rp_value *symbols; /* names of variables, by number */
    size_t symbol_count, symbol_capacity;
    struct rp_value symbol_map; /* dict: text to number */
    int32_t sym_loop, sym_caller, sym_kwargs, sym_varargs;
    bool content_parts;
};

/* ---- Compiling ------------------------------------------------------------------------ */

enum rp_ttoken_type {
    /* value: what the lexer complains of */
    RP_TT_EOF,
    RP_TT_ERROR,
    RP_TT_DATA,
    RP_TT_BLOCK_BEGIN,
    RP_TT_BLOCK_END,
    RP_TT_VARIABLE_BEGIN,
    RP_TT_VARIABLE_END,
    RP_TT_NAME,
    RP_TT_STRING,
    RP_TT_INTEGER,
    RP_TT_FLOAT,
    RP_TT_ADD,
    RP_TT_SUB,
    RP_TT_DIV,
    RP_TT_FLOORDIV,
    RP_TT_MUL,
    RP_TT_MOD,
    RP_TT_POW,
    RP_TT_TILDE,
    RP_TT_LBRACKET,
    RP_TT_RBRACKET,
    RP_TT_LPAREN,
    RP_TT_RPAREN,
    RP_TT_LBRACE,
    RP_TT_RBRACE,
    RP_TT_EQ,
    RP_TT_NE,
    RP_TT_GT,
    RP_TT_GTEQ,
    RP_TT_LT,
    RP_TT_LTEQ,
    RP_TT_ASSIGN,
    RP_TT_DOT,
    RP_TT_COLON,
    RP_TT_PIPE,
    RP_TT_COMMA,
    RP_TT_SEMICOLON,
};

struct rp_ttoken {
    uint8_t type;
    int32_t line;
    struct rp_value value; /* DATA, NAME, STRING: text; INTEGER, FLOAT: the number */
};

/* State of a compilation; `fault` is set once, then everything unwinds. */
struct rp_tcompile {
    struct rp_tmem *mem;
    struct rp_chat_template *tmpl;
    struct rp_chat_fault *fault;
    bool failed;
    bool unsupported;
    struct rp_ttoken *tokens;
    size_t token_count, token_capacity, at;
    int depth;
    /* what Python's compiler would find: break outside a loop, two arguments of one name */
    struct rp_chat_fault assertion;
    bool has_second_argument; /* it is that one */
    struct rp_tparams *macros[RP_TEMPLATE_DEPTH_MAX + 1];
    int macro_count;
    int loops;                                   /* how many surround this place */
    const char *tags[RP_TEMPLATE_DEPTH_MAX + 1]; /* open tags, for messages */
    int tag_count;
    const char *const *ends[RP_TEMPLATE_DEPTH_MAX + 1]; /* expected end tags of each */
    int end_count;
};

/* The whole source as tokens. The last is EOF. A fault of the lexer becomes a token, because the
 * parser may find another one before it. */
bool rp_template_lex(struct rp_tcompile *c, const char *source, size_t len);
void rp_template_fail(struct rp_tcompile *c, int line, const char *kind, const char *format, ...)
    RP_PRINTF(4, 5);
struct rp_template_node *rp_template_node(struct rp_tcompile *c, enum rp_template_node_kind kind,
                                          int line);
void rp_template_add(struct rp_tcompile *c, struct rp_template_nodes *nodes,
                     struct rp_template_node *node);
int32_t rp_template_symbol(struct rp_tcompile *c, struct rp_value name);
struct rp_ttoken *rp_template_token(struct rp_tcompile *c);
struct rp_ttoken *rp_template_look(struct rp_tcompile *c);
struct rp_ttoken *rp_template_next(struct rp_tcompile *c);
bool rp_template_at_name(struct rp_tcompile *c, const char *name);
bool rp_template_skip_name(struct rp_tcompile *c, const char *name);
bool rp_template_expect(struct rp_tcompile *c, enum rp_ttoken_type type);
/* "end of print statement", or the name itself. */
const char *rp_template_describe(const struct rp_ttoken *token, char out[80]);
const char *rp_template_describe_type(enum rp_ttoken_type type);
struct rp_template_node *rp_template_expression(struct rp_tcompile *c, bool with_condition);
/* jinja2's parse_tuple. */
struct rp_template_node *rp_template_tuple(struct rp_tcompile *c, bool simplified,
                                           bool with_condition, bool parentheses,
                                           bool with_namespace);
/* A node over one or two children; NULL once something failed. */
struct rp_template_node *rp_template_over(struct rp_tcompile *c, enum rp_template_node_kind kind,
                                          int line, struct rp_template_node *a,
                                          struct rp_template_node *b);
/* Sets node->c; a child may be NULL. */
void rp_template_third(struct rp_tcompile *c, struct rp_template_node *node,
                       struct rp_template_node *child);
/* Adds to node->list. */
void rp_template_child(struct rp_tcompile *c, struct rp_template_node *node,
                       struct rp_template_node *child);
/* Members, subscripts and calls; then filters and tests. */
struct rp_template_node *rp_template_postfix(struct rp_tcompile *c, struct rp_template_node *node);
struct rp_template_node *rp_template_suffix(struct rp_tcompile *c, struct rp_template_node *node);
struct rp_template_node *rp_template_primary(struct rp_tcompile *c, bool with_namespace);
struct rp_template_node *rp_template_filter(struct rp_tcompile *c, struct rp_template_node *node,
                                            bool start_inline);
/* Faults that are found after parsing. */
void rp_template_check(struct rp_tcompile *c);
bool rp_template_enter(struct rp_tcompile *c);

#endif
