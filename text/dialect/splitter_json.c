/* Calls that are a JSON object, and arguments that are JSON: the bytes pass as they are. */
#include "base/utf8.h"
#include "text/dialect/splitter_internal.h"

#include <string.h>

/* --- JSON and escapes ------------------------------------------------------------------------ */

enum scan_result rp_json_scan(struct json_scan *scan, unsigned char c) {
    if (scan->in_string) {
        if (scan->escape) {
            scan->escape = false;
        } else if (c == '\\') {
            scan->escape = true;
        } else if (c == '"') {
            scan->in_string = false;
            return scan->depth == 0 ? SCAN_LAST : SCAN_MORE;
        }
        return SCAN_MORE;
    }
    switch (c) {
    case '"':
        scan->in_string = scan->started = true;
        return SCAN_MORE;
    case '{':
    case '[':
        scan->depth++;
        scan->started = true;
        return SCAN_MORE;
    case '}':
    case ']':
        if (scan->depth == 0)
            return SCAN_BEFORE;
        return --scan->depth == 0 ? SCAN_LAST : SCAN_MORE;
    case ',':
    case ' ':
    case '\n':
    case '\t':
    case '\r':
        return scan->depth == 0 && scan->started ? SCAN_BEFORE : SCAN_MORE;
    default:
        scan->started = true;
        return SCAN_MORE;
    }
}

static int encode(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = count - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 63));
    out[0] = (char)(first[count] | code);
    return count;
}

/* A code of an escape is complete. Halves of pairs that do not fit are U+FFFD. */
static int put_code(struct unescape *u, char *out) {
    uint32_t code = u->code, high = u->high;
    int len = 0;
    u->high = 0;
    if (high && code >= 0xDC00 && code < 0xE000)
        return encode(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00), out);
    if (high)
        len = encode(0xFFFD, out);
    if (code >= 0xD800 && code < 0xDC00) {
        u->high = code;
        return len;
    }
    bool is_legal = code < 0x110000 && (code < 0xDC00 || code >= 0xE000);
    return len + encode(is_legal ? code : 0xFFFD, out + len);
}

static int hex_digit(unsigned char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static int escaped(struct unescape *u, unsigned char c, char *out) {
    static const char from[] = "ntrbfav0", to[] = "\n\t\r\b\f\a\v\0";
    const char *found = c ? strchr(from, c) : NULL;
    if (c == 'u' || c == 'U' || c == 'x') {
        u->digits_left = c == 'u' ? 4 : c == 'x' ? 2 : 8;
        u->code = 0;
        return 0;
    }
    if (c == '\n') /* Python: the line goes on */
        return 0;
    int len = 0;
    if (!found && c != '"' && c != '\'' && c != '\\' && c != '/')
        out[len++] = '\\'; /* as in Python, no escape */
    out[len++] = found ? to[found - from] : (char)c;
    return len;
}

int rp_unescape(struct unescape *u, unsigned char c, char out[8]) {
    int len = 0;
    if (u->digits_left > 0) {
        int digit = hex_digit(c);
        if (digit >= 0) {
            u->code = u->code << 4 | (uint32_t)digit;
            return --u->digits_left == 0 ? put_code(u, out) : 0;
        }
        u->digits_left = 0;
    }
    if (u->high && c != '\\' && !u->escape) {
        u->high = 0;
        len = encode(0xFFFD, out);
    }
    if (u->escape) {
        u->escape = false;
        if (u->high && c != 'u') {
            u->high = 0;
            len = encode(0xFFFD, out);
        }
        return len + escaped(u, c, out + len);
    }
    if (c == '\\') {
        u->escape = true;
        return len;
    }
    out[len] = (char)c;
    return len + 1;
}

/* --- {"name": .., "arguments": ..} ----------------------------------------------------------- */

void rp_split_start_json(struct rp_splitter *s) {
    s->mode = MODE_JSON;
    s->place = AT_OPEN;
    s->nest = 0;
    s->decode = s->has_arguments = false;
}

/* Takes one symbol that belongs to the call. */
static void accept(struct rp_splitter *s) {
    if (s->begun)
        rp_split_take(s, 1);
    else
        rp_split_hold(s, 1);
}

/* Not an object that is a call, or no more. */
static bool give_up(struct rp_splitter *s) {
    if (s->begun)
        rp_split_end(s, s->arguments_done);
    else
        rp_split_broken(s);
    return true;
}

static bool key_is(const struct rp_splitter *s, const char *name) {
    return s->key_len == strlen(name) && memcmp(s->key, name, s->key_len) == 0;
}

static void start_value(struct rp_splitter *s, int c) {
    s->scan = (struct json_scan){.depth = 0};
    s->unescape = (struct unescape){.digits_left = 0};
    if (!s->begun && s->name_len == 0 && c == '"' && (key_is(s, "name") || key_is(s, "function"))) {
        s->place = IN_NAME;
    } else if (key_is(s, "id") && c == '"' && s->id_len == 0) {
        s->place = IN_ID;
    } else if (key_is(s, "function") && c == '{' && s->nest == 0) {
        s->nest = 1;
        s->place = AT_KEY;
    } else if ((key_is(s, "arguments") || key_is(s, "parameters")) && !s->has_arguments) {
        s->place = IN_ARGUMENTS;
        s->has_arguments = true;
        s->decode = c == '"';
        if (s->name_len > 0)
            rp_split_begin(s);
        return;
    } else {
        s->place = IN_SKIPPED;
        return; /* looks at this byte again */
    }
    accept(s);
}

/* The bytes of a name or an id, without its quotes. */
static bool in_string(struct rp_splitter *s, int c, char *text, uint32_t *len) {
    char bytes[8];
    if (c == '"' && !s->unescape.escape) {
        text[*len] = '\0';
        s->place = AT_COMMA;
        accept(s);
        return !(text == s->name && !rp_split_name_done(s)) || give_up(s);
    }
    int count = c < 0 ? NAME_MAX_BYTES : rp_unescape(&s->unescape, (unsigned char)c, bytes);
    if (*len + (uint32_t)count > NAME_MAX_BYTES)
        return give_up(s);
    for (int i = 0; i < count; i++)
        if (bytes[i] == '\0')
            return give_up(s);
    memcpy(text + *len, bytes, (size_t)count);
    *len += (uint32_t)count;
    accept(s);
    return true;
}

static void put_argument(struct rp_splitter *s, unsigned char c) {
    char bytes[8];
    if (!s->decode) {
        rp_split_argument(s, (char)c);
    } else if (s->scan.in_string) { /* the quotes stay away */
        int count = rp_unescape(&s->unescape, c, bytes);
        for (int i = 0; i < count; i++)
            rp_split_argument(s, bytes[i]);
    }
}

static bool in_value(struct rp_splitter *s, int c) {
    bool is_argument = s->place == IN_ARGUMENTS, partial = false;
    if (!s->scan.in_string) {
        if (rp_split_cut(s, &partial) && c != ']' && c != '}')
            return give_up(s);
        if (partial && c != ']' && c != '}')
            return false;
    }
    if (c < 0)
        return give_up(s);
    bool was_open = s->scan.in_string;
    enum scan_result result = rp_json_scan(&s->scan, (unsigned char)c);
    if (result != SCAN_BEFORE) {
        if (is_argument && was_open == s->scan.in_string)
            put_argument(s, (unsigned char)c);
        else if (is_argument && !s->decode)
            rp_split_argument(s, (char)c);
        if (!s->begun && s->scan.depth > LITERAL_DEPTH)
            return give_up(s);
        accept(s);
    }
    if (result != SCAN_MORE) {
        s->place = AT_COMMA;
        s->arguments_done |= is_argument;
    }
    return true;
}

static bool object_ends(struct rp_splitter *s) {
    if (s->nest > 0) {
        s->nest--;
        s->place = AT_COMMA;
        accept(s);
        return true;
    }
    if (!s->begun && (s->name_len == 0 || (s->plain && !s->has_arguments)))
        return give_up(s);
    accept(s);
    if (!s->begun) {
        rp_split_begin(s);
        if (!s->has_arguments)
            rp_split_arguments(s, "{}");
    }
    rp_split_end(s, true);
    return true;
}

static bool at_open(struct rp_splitter *s, int c) {
    bool partial = false;
    uint32_t end;
    if (c == '{') {
        s->place = AT_KEY;
        accept(s);
        return true;
    }
    if (rp_split_sees(s, MK_CALL_OPEN, &end, &partial)) {
        rp_split_hold(s, end); /* a second one */
        return true;
    }
    return !partial && give_up(s);
}

static bool between_items(struct rp_splitter *s, int c) {
    if (s->place == AT_COLON && c == ':') {
        s->place = AT_VALUE;
    } else if (s->place == AT_COMMA && c == ',') {
        s->place = AT_KEY;
    } else if (s->place == AT_KEY && c == '"') {
        s->place = IN_KEY;
        s->key_len = 0;
        s->scan.escape = false;
    } else if (c == '}' && s->place != AT_COLON) {
        return object_ends(s);
    } else {
        return give_up(s);
    }
    accept(s);
    return true;
}

bool rp_split_step_json(struct rp_splitter *s) {
    int c = symbol_byte(s->pending[0]);
    switch (s->place) {
    case IN_NAME:
        return in_string(s, c, s->name, &s->name_len);
    case IN_ID:
        return in_string(s, c, s->id, &s->id_len);
    case IN_KEY:
        if (c < 0 || s->key_len == KEY_MAX_BYTES)
            return give_up(s);
        if (c == '"' && !s->scan.escape)
            s->place = AT_COLON;
        else
            s->key[s->key_len++] = (char)c;
        s->scan.escape = c == '\\' && !s->scan.escape;
        accept(s);
        return true;
    case IN_ARGUMENTS:
    case IN_SKIPPED:
        return in_value(s, c);
    default:
        break;
    }
    if (symbol_is_space(s->pending[0])) {
        accept(s);
        return true;
    }
    if (s->place == AT_OPEN)
        return at_open(s, c);
    if (s->place != AT_VALUE)
        return between_items(s, c);
    if (c < 0)
        return give_up(s);
    start_value(s, c);
    return true;
}

/* --- Arguments alone ------------------------------------------------------------------------- */

void rp_split_start_arguments(struct rp_splitter *s) {
    s->mode = MODE_ARGUMENTS;
    s->scan = (struct json_scan){.depth = 0};
}

bool rp_split_step_arguments(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    int c = symbol_byte(s->pending[0]);
    if (!s->begun) {
        if (symbol_is_space(s->pending[0])) {
            rp_split_hold(s, 1);
            return true;
        }
        bool empty = rp_split_sees(s, MK_CALL_CLOSE, &end, &partial);
        if (!empty && partial)
            return false;
        if (!empty && c != '{') {
            rp_split_broken(s);
            return true;
        }
        rp_split_begin(s);
        if (empty) {
            rp_split_arguments(s, "{}");
            rp_split_end(s, true);
        }
        return true;
    }
    if (!s->scan.in_string && c != '}' && c != ']') {
        bool cut = rp_split_cut(s, &partial);
        if (!cut && partial)
            return false;
        if (cut) {
            rp_split_end(s, false);
            return true;
        }
    }
    if (c < 0) {
        rp_split_end(s, false);
        return true;
    }
    rp_split_argument(s, (char)c);
    rp_split_take(s, 1);
    if (rp_json_scan(&s->scan, (unsigned char)c) != SCAN_MORE)
        rp_split_end(s, true);
    return true;
}
