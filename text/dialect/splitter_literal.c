/* Python's and Gemma's literals to JSON, as they come. JSON itself passes, without its spaces. */
#include "text/dialect/splitter_internal.h"
#include "text/json_file.h"

#include <string.h>

/* The call of a pythonic dialect is read as a container of kind '(': name=value items. */
void rp_split_start_literal(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    rp_split_begin(s);
    memset(lit, 0, sizeof *lit);
    lit->place = LIT_VALUE;
    if (s->bound->row.shape == RP_CALL_PYTHONIC) {
        rp_split_take(s, 1);
        rp_split_argument(s, '{');
        lit->depth = 1;
        lit->kind[0] = '(';
        lit->place = LIT_KEY;
    }
    s->key_len = 0;
    s->mode = MODE_LITERAL;
}

static char top(const struct literal *lit) {
    return lit->depth > 0 ? lit->kind[lit->depth - 1] : '\0';
}

/* The comma before an item of a container, and of a list. */
static void before_item(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    if (lit->depth == 0)
        return;
    if (lit->has_item[lit->depth - 1])
        rp_split_arguments(s, ", ");
    lit->has_item[lit->depth - 1] = true;
}

static bool end_literal(struct rp_splitter *s, bool complete) {
    rp_split_end(s, complete);
    return true;
}

static void value_is_done(struct rp_splitter *s) { s->literal.place = LIT_AFTER; }

static bool close_container(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    rp_split_argument(s, top(lit) == '[' ? ']' : '}');
    rp_split_take(s, 1);
    if (--lit->depth == 0)
        return end_literal(s, true);
    value_is_done(s);
    return true;
}

static bool open_container(struct rp_splitter *s, int c) {
    struct literal *lit = &s->literal;
    if (lit->depth == LITERAL_DEPTH)
        return end_literal(s, false);
    lit->kind[lit->depth] = c == '{' ? '{' : '[';
    lit->has_item[lit->depth++] = false;
    lit->place = c == '{' ? LIT_KEY : LIT_VALUE;
    rp_split_argument(s, c == '{' ? '{' : '[');
    rp_split_take(s, 1);
    return true;
}

static bool closes(const struct literal *lit, int c) {
    return (c == '}' && top(lit) == '{') || ((c == ']' || c == ')') && top(lit) == '[') ||
           (c == ')' && top(lit) == '(');
}

static void open_string(struct rp_splitter *s, rp_symbol quote, uint32_t count, bool is_key) {
    struct literal *lit = &s->literal;
    rp_split_take(s, count);
    rp_split_argument(s, '"');
    lit->quote = quote;
    lit->is_key = is_key;
    memset(&lit->unescape, 0, sizeof lit->unescape);
    lit->place = LIT_STRING;
}

/* At the start of a key or a value: a quote opens a string. */
static bool see_string(struct rp_splitter *s, bool is_key, bool *partial) {
    rp_symbol c = s->pending[0];
    uint32_t end = 1;
    bool quoted = rp_split_sees(s, MK_QUOTE, &end, partial);
    bool plain = !s->bound->row.quote[0] && (c == '"' || c == '\'');
    if (!quoted && !plain)
        return false;
    before_item(s);
    open_string(s, quoted ? 0 : c, quoted ? end : 1, is_key);
    return true;
}

static void close_string(struct rp_splitter *s, uint32_t count) {
    struct literal *lit = &s->literal;
    rp_split_take(s, count);
    if (lit->unescape.high) /* half of a pair */
        rp_split_arguments(s, "\xef\xbf\xbd");
    rp_split_argument(s, '"');
    if (lit->is_key)
        lit->place = LIT_COLON;
    else
        value_is_done(s);
}

static bool in_string(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    int c = symbol_byte(s->pending[0]);
    bool partial = false;
    uint32_t end;
    char bytes[8];
    if (lit->quote == 0) {
        if (rp_split_sees(s, MK_QUOTE, &end, &partial)) {
            close_string(s, end);
            return true;
        }
        if (partial)
            return false;
        if (c < 0)
            return end_literal(s, false);
        rp_split_escaped(s, (unsigned char)c);
        rp_split_take(s, 1);
        return true;
    }
    if (c < 0)
        return end_literal(s, false);
    if (s->pending[0] == lit->quote && !lit->unescape.escape) {
        close_string(s, 1);
        return true;
    }
    int count = rp_unescape(&lit->unescape, (unsigned char)c, bytes);
    rp_split_escaped_text(s, bytes, (size_t)count);
    rp_split_take(s, 1);
    return true;
}

static bool is_json_number(const char *text, size_t len) {
    json_error_t where;
    bool no_memory;
    json_t *value = rp_json_parse(text, len, JSON_DECODE_ANY, &where, &no_memory);
    bool is_number = json_is_number(value);
    json_decref(value);
    return is_number;
}

static void put_word(struct rp_splitter *s) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    while (s->key_len > 0 && symbol_is_space((unsigned char)s->key[s->key_len - 1]))
        s->key_len--;
    before_item(s);
    for (size_t i = 0; i < RP_ARRAY_COUNT(words) && !s->literal.is_key; i++)
        if (s->key_len == strlen(words[i][0]) && memcmp(s->key, words[i][0], s->key_len) == 0) {
            rp_split_arguments(s, words[i][1]);
            return;
        }
    bool number = !s->literal.is_key && is_json_number(s->key, s->key_len);
    for (uint32_t i = 0; number && i < s->key_len; i++)
        rp_split_argument(s, s->key[i]);
    if (number)
        return;
    rp_split_argument(s, '"');
    rp_split_escaped_text(s, s->key, s->key_len);
    rp_split_argument(s, '"');
}

static bool in_word(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    rp_symbol symbol = s->pending[0];
    int c = symbol_byte(symbol);
    bool ends =
        c < 0 || c == ',' || closes(lit, c) || (lit->is_key && c == (top(lit) == '(' ? '=' : ':'));
    if (!ends && s->key_len < KEY_MAX_BYTES) {
        s->key[s->key_len++] = (char)c;
        rp_split_take(s, 1);
        return true;
    }
    put_word(s);
    s->key_len = 0;
    if (!ends) /* no literal is that long */
        return end_literal(s, false);
    if (lit->is_key)
        lit->place = LIT_COLON;
    else
        value_is_done(s);
    return true;
}

static bool start_item(struct rp_splitter *s, int c) {
    struct literal *lit = &s->literal;
    bool is_key = lit->place == LIT_KEY, partial = false;
    if (c >= 0 && closes(lit, c))
        return close_container(s);
    if (see_string(s, is_key, &partial))
        return true;
    bool cut = rp_split_cut(s, &partial);
    if (!cut && partial)
        return false;
    if (c < 0 || cut)
        return end_literal(s, false);
    if (!is_key && (c == '{' || c == '[' || c == '(')) {
        before_item(s);
        return open_container(s, c);
    }
    if (c == ',' || c == '}' || c == ']' || c == ')')
        return end_literal(s, false);
    lit->is_key = is_key;
    lit->place = LIT_WORD;
    s->key_len = 0;
    return true;
}

/* A value after its key is no new item. */
static void after_key(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    rp_split_take(s, 1);
    rp_split_arguments(s, ": ");
    lit->has_item[lit->depth - 1] = false;
    lit->place = LIT_VALUE;
}

bool rp_split_step_literal(struct rp_splitter *s) {
    struct literal *lit = &s->literal;
    int c = symbol_byte(s->pending[0]);
    if (lit->place == LIT_STRING)
        return in_string(s);
    if (lit->place == LIT_WORD)
        return in_word(s);
    if (symbol_is_space(s->pending[0])) {
        rp_split_take(s, 1);
        return true;
    }
    switch (lit->place) {
    case LIT_COLON:
        if (c != (top(lit) == '(' ? '=' : ':'))
            return end_literal(s, false);
        after_key(s);
        return true;
    case LIT_AFTER:
        if (lit->depth > 0)
            lit->has_item[lit->depth - 1] = true;
        if (c >= 0 && closes(lit, c))
            return close_container(s);
        if (c != ',')
            return end_literal(s, false);
        rp_split_take(s, 1);
        lit->place = top(lit) == '[' ? LIT_VALUE : LIT_KEY;
        return true;
    default:
        return start_item(s, c);
    }
}

void rp_split_finish_literal(struct rp_splitter *s) {
    if (s->literal.place == LIT_WORD && s->key_len > 0)
        put_word(s);
    s->key_len = 0;
}
