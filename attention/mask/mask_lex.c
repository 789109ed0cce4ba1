#include "attention/mask/mask_lex.h"

#include "attention/mask/mask_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 64 /* digits of one */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static char at(const struct rp_mask_lexer *lexer, uint32_t ahead) {
    return lexer->at + ahead < lexer->bytes ? lexer->text[lexer->at + ahead] : '\0';
}

static bool bad_number(struct rp_mask_lexer *lexer, const struct rp_mask_word *word,
                       const char *why, const char *hint) {
    int status = rp_error_set(lexer->err, RP_STATUS_INVALID, "column %u: the number %.*s%s %s",
                              word->column, (int)RP_MIN(word->length, 24u), word->begin,
                              word->length > 24 ? "..." : "", why);
    rp_error_hint(lexer->err, "%s", hint);
    return status == RP_OK;
}

static bool read_number(struct rp_mask_lexer *lexer, struct rp_mask_word *word) {
    char digits[NUMBER_MAX + 1];
    word->kind = RP_MASK_WORD_INT;
    while (is_digit(at(lexer, 0)))
        lexer->at++;
    /* `1..8` is a range, not the number 1. */
    if (at(lexer, 0) == '.' && at(lexer, 1) != '.') {
        word->kind = RP_MASK_WORD_FLOAT;
        for (lexer->at++; is_digit(at(lexer, 0));)
            lexer->at++;
    }
    uint32_t sign = at(lexer, 1) == '+' || at(lexer, 1) == '-';
    if ((at(lexer, 0) == 'e' || at(lexer, 0) == 'E') && is_digit(at(lexer, 1 + sign))) {
        word->kind = RP_MASK_WORD_FLOAT;
        for (lexer->at += 1 + sign; is_digit(at(lexer, 0));)
            lexer->at++;
    }
    word->length = (uint32_t)(lexer->text + lexer->at - word->begin);
    if (is_name(at(lexer, 0)) || (at(lexer, 0) == '.' && at(lexer, 1) != '.'))
        return bad_number(lexer, word, "runs into what follows it",
                          "put a space or an operator between them; numbers are decimal");
    if (word->length > NUMBER_MAX)
        return bad_number(lexer, word, "is too long", "numbers have at most 64 characters");
    memcpy(digits, word->begin, word->length);
    digits[word->length] = '\0';
    if (word->kind == RP_MASK_WORD_FLOAT) {
        word->f = strtof(digits, NULL);
        return isfinite(word->f) ||
               bad_number(lexer, word, "is too large", "numbers end at 3.4e38");
    }
    uint64_t value = 0;
    for (const char *c = digits; *c && value <= RP_MASK_INT_MAX; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    if (value > RP_MASK_INT_MAX)
        return bad_number(lexer, word, "is too large",
                          "integers end at 2147483647; write 1.0e10 for a number in a score rule");
    word->i = (int32_t)value;
    return true;
}

static bool bad_byte(struct rp_mask_lexer *lexer, const struct rp_mask_word *word) {
    unsigned char c = (unsigned char)*word->begin;
    int status;
    if (c > ' ' && c < 0x7f)
        status = rp_error_set(lexer->err, RP_STATUS_INVALID,
                              "column %u: '%c' is not part of the mask language", word->column, c);
    else
        status = rp_error_set(lexer->err, RP_STATUS_INVALID,
                              "column %u: byte 0x%02x is not part of the mask language",
                              word->column, c);
    rp_error_hint(lexer->err, "%s",
                  c == '&'   ? "conditions are joined by &&"
                  : c == '|' ? "conditions are joined by ||"
                             : "docs/masks.md has the grammar");
    return status == RP_OK;
}

static bool read_sign(struct rp_mask_lexer *lexer, struct rp_mask_word *word) {
    static const char doubles[][3] = {"&&", "||", "==", "!=", "<=", ">=", ".."};
    word->kind = RP_MASK_WORD_SIGN;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(doubles); i++)
        if (at(lexer, 0) == doubles[i][0] && at(lexer, 1) == doubles[i][1])
            word->length = 2;
    if (word->length == 0 && at(lexer, 0) != '\0' && strchr("+-*/%<>!?:(),;=", at(lexer, 0)))
        word->length = 1;
    lexer->at += word->length;
    return word->length != 0 || bad_byte(lexer, word);
}

bool rp_mask_next_word(struct rp_mask_lexer *lexer, struct rp_mask_word *word) {
    char c = at(lexer, 0);
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
        lexer->at++;
        c = at(lexer, 0);
    }
    *word = (struct rp_mask_word){
        .kind = RP_MASK_WORD_END, .begin = lexer->text + lexer->at, .column = lexer->at + 1};
    if (lexer->at == lexer->bytes)
        return true;
    if (is_digit(c) || (c == '.' && is_digit(at(lexer, 1))))
        return read_number(lexer, word);
    if (!is_name(c))
        return read_sign(lexer, word);
    word->kind = RP_MASK_WORD_NAME;
    while (is_name(at(lexer, 0)))
        lexer->at++;
    word->length = (uint32_t)(lexer->text + lexer->at - word->begin);
    return true;
}

bool rp_mask_word_is(const struct rp_mask_word *word, const char *text) {
    bool named = word->kind == RP_MASK_WORD_NAME || word->kind == RP_MASK_WORD_SIGN;
    return named && word->length == strlen(text) && memcmp(word->begin, text, word->length) == 0;
}
