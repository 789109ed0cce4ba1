/* Moving over the tokens, and how faults name them. */
#include "text/template/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rp_template_fail(struct rp_tcompile *c, int line, const char *kind, const char *format, ...) {
    va_list args;
    if (c->failed)
        return;
    c->failed = true;
    c->fault->line = line;
    c->fault->kind = kind;
    va_start(args, format);
    vsnprintf(c->fault->message, sizeof c->fault->message, format, args);
    va_end(args);
}

static struct rp_ttoken *token_at(struct rp_tcompile *c, size_t at) {
    struct rp_ttoken *token = &c->tokens[RP_MIN(at, c->token_count - 1)];
    if (token->type == RP_TT_ERROR) {
        rp_template_fail(c, token->line, "TemplateSyntaxError", "%.*s", (int)token->value.len,
                         token->value.u.s);
        token = &c->tokens[c->token_count - 1]; /* the end */
    }
    return token;
}

struct rp_ttoken *rp_template_token(struct rp_tcompile *c) {
    return token_at(c, c->at);
}
struct rp_ttoken *rp_template_look(struct rp_tcompile *c) {
    return token_at(c, c->at + 1);
}

/* The token that was current; moves on. */
struct rp_ttoken *rp_template_next(struct rp_tcompile *c) {
    struct rp_ttoken *token = rp_template_token(c);
    if (token->type != RP_TT_EOF) {
        c->at++;
        (void)rp_template_token(c); /* a fault of the lexer counts as soon as it is reached */
    }
    return token;
}

bool rp_template_at_name(struct rp_tcompile *c, const char *name) {
    const struct rp_ttoken *token = rp_template_token(c);
    return token->type == RP_TT_NAME && rp_value_is(token->value, name);
}

bool rp_template_skip_name(struct rp_tcompile *c, const char *name) {
    if (!rp_template_at_name(c, name))
        return false;
    (void)rp_template_next(c);
    return true;
}

const char *rp_template_describe_type(enum rp_ttoken_type type) {
    static const char *const names[] = {
        [RP_TT_EOF] = "end of template",
        [RP_TT_ERROR] = "error",
        [RP_TT_DATA] = "template data / text",
        [RP_TT_BLOCK_BEGIN] = "begin of statement block",
        [RP_TT_BLOCK_END] = "end of statement block",
        [RP_TT_VARIABLE_BEGIN] = "begin of print statement",
        [RP_TT_VARIABLE_END] = "end of print statement",
        [RP_TT_NAME] = "name",
        [RP_TT_STRING] = "string",
        [RP_TT_INTEGER] = "integer",
        [RP_TT_FLOAT] = "float",
        [RP_TT_ADD] = "+",
        [RP_TT_SUB] = "-",
        [RP_TT_DIV] = "/",
        [RP_TT_FLOORDIV] = "//",
        [RP_TT_MUL] = "*",
        [RP_TT_MOD] = "%",
        [RP_TT_POW] = "**",
        [RP_TT_TILDE] = "~",
        [RP_TT_LBRACKET] = "[",
        [RP_TT_RBRACKET] = "]",
        [RP_TT_LPAREN] = "(",
        [RP_TT_RPAREN] = ")",
        [RP_TT_LBRACE] = "{",
        [RP_TT_RBRACE] = "}",
        [RP_TT_EQ] = "==",
        [RP_TT_NE] = "!=",
        [RP_TT_GT] = ">",
        [RP_TT_GTEQ] = ">=",
        [RP_TT_LT] = "<",
        [RP_TT_LTEQ] = "<=",
        [RP_TT_ASSIGN] = "=",
        [RP_TT_DOT] = ".",
        [RP_TT_COLON] = ":",
        [RP_TT_PIPE] = "|",
        [RP_TT_COMMA] = ",",
        [RP_TT_SEMICOLON] = ";",
    };
    return names[type];
}

const char *rp_template_describe(const struct rp_ttoken *token, char out[80]) {
    if (token->type != RP_TT_NAME)
        return rp_template_describe_type(token->type);
    snprintf(out, 80, "%.*s", (int)token->value.len, token->value.u.s);
    return out;
}

bool rp_template_expect(struct rp_tcompile *c, enum rp_ttoken_type type) {
    char text[80];
    const struct rp_ttoken *token = rp_template_token(c);
    if (token->type == type) {
        (void)rp_template_next(c);
        return !c->failed;
    }
    if (token->type == RP_TT_EOF)
        rp_template_fail(c, token->line, "TemplateSyntaxError",
                         "unexpected end of template, expected '%s'.",
                         rp_template_describe_type(type));
    else
        rp_template_fail(c, token->line, "TemplateSyntaxError", "expected token '%s', got '%s'",
                         rp_template_describe_type(type), rp_template_describe(token, text));
    return false;
}
