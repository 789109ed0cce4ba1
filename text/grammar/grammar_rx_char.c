/* grammar_rx_char.c - one character of a set as bytes: UTF-8, or inside a JSON string.
 * A prefix of a character after which every completion is in the set becomes the same nodes for
 * all such prefixes, so large sets have few states. */
#include "text/grammar/grammar_internal.h"

#include "base/utf8.h"

static uint32_t leaf(struct rp_grammar *g, enum node_kind kind, uint32_t set, uint32_t lo,
                     uint32_t hi) {
    return grammar_intern(g, (struct node){.kind = (uint8_t)kind,
                                           .flags = NODE_LIVE | NODE_LIVE_KNOWN | NODE_FINITE,
                                           .a = set,
                                           .lo = lo,
                                           .hi = hi});
}

/* Characters that a JSON string cannot have as they are, and those that RX_JSON escapes. */
static uint32_t raw_of_json(struct rp_grammar *g) {
    struct charset_range ranges[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    return charset_make(g, ranges, RP_ARRAY_COUNT(ranges));
}
static uint32_t escaped_of_json(struct rp_grammar *g) {
    struct charset_range ranges[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x10FFFF}};
    return charset_make(g, ranges, RP_ARRAY_COUNT(ranges));
}

uint32_t rx_chars(struct rp_grammar *g, uint32_t set, enum rx_mode mode) {
    uint32_t raw = set, escaped = CHARSET_EMPTY;
    if (mode != RX_PLAIN) {
        raw = charset_intersect(g, set, raw_of_json(g));
        escaped = mode == RX_JSON_EVERY ? set : charset_intersect(g, set, escaped_of_json(g));
    }
    if (raw == CHARSET_EMPTY && escaped == CHARSET_EMPTY)
        return NODE_NONE;
    return grammar_intern(g, (struct node){.kind = RX_CHARS,
                                           .flags = NODE_LIVE | NODE_LIVE_KNOWN | NODE_FINITE,
                                           .a = raw,
                                           .b = escaped});
}

uint32_t rx_text(struct rp_grammar *g, const char *text, size_t len, enum rx_mode mode) {
    size_t base = g->work.count;
    for (size_t i = 0; i < len;) {
        uint32_t code;
        int n = rp_utf8_decode(text + i, len - i, &code);
        if (n <= 0 || !VEC_PUSH(g, &g->work, code))
            break;
        i += (size_t)n;
    }
    uint32_t rx = NODE_EPS;
    while (g->work.count > base) {
        uint32_t code = g->work.at[--g->work.count];
        rx = rx_cat(g, rx_chars(g, charset_range(g, code, code), mode), rx);
    }
    return rx;
}

static uint32_t continuations(struct rp_grammar *g, uint32_t count) {
    uint32_t byte = rx_range(g, 0x80, 0xBF);
    return rx_rep(g, byte, count, count);
}

/* After some bytes of a sequence of `all`: `code` so far, `left` bytes more. */
static uint32_t utf8_part(struct rp_grammar *g, uint32_t set, uint32_t code, uint32_t left,
                          uint32_t all) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t first = code << 6 * left, last = first + ((1u << 6 * left) - 1);
    if (last < least[all] || first > 0x10FFFF)
        return NODE_NONE;
    bool all_in;
    if (!charset_touches(g, set, RP_MAX(first, least[all]), RP_MIN(last, 0x10FFFFu), &all_in))
        return NODE_NONE;
    if (left == 0)
        return NODE_EPS;
    if (all_in && first >= least[all] && last <= 0x10FFFF)
        return continuations(g, left);
    return leaf(g, RX_PART, set, code, left | all << 8);
}

static uint32_t first_byte(struct rp_grammar *g, uint32_t raw, uint32_t escaped, uint8_t byte) {
    if (byte == '\\' && escaped != CHARSET_EMPTY)
        return leaf(g, RX_ESC, escaped, 0, 0);
    if (raw == CHARSET_EMPTY)
        return NODE_NONE;
    if (byte < 0x80)
        return charset_has(g, raw, byte) ? NODE_EPS : NODE_NONE;
    if (byte >= 0xC2 && byte <= 0xDF)
        return utf8_part(g, raw, byte & 0x1Fu, 1, 2);
    if (byte >= 0xE0 && byte <= 0xEF)
        return utf8_part(g, raw, byte & 0x0Fu, 2, 3);
    if (byte >= 0xF0 && byte <= 0xF4)
        return utf8_part(g, raw, byte & 0x07u, 3, 4);
    return NODE_NONE;
}

static int hex_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* After the first escape of a pair: its second begins with \u. */
static uint32_t low_start(struct rp_grammar *g, uint32_t set, uint32_t high) {
    uint32_t first = 0x10000 + ((high - 0xD800) << 10);
    bool all;
    if (!charset_touches(g, set, first, first + 0x3FF, &all))
        return NODE_NONE;
    if (!all)
        return leaf(g, RX_LOW, set, (high - 0xD800) << 16, 6);
    return leaf(g, RX_LOW, CHARSET_ANY, 0, 6);
}

static uint32_t hex_part(struct rp_grammar *g, uint32_t set, uint32_t value, uint32_t left) {
    if (left == 0) {
        if (value >= 0xD800 && value <= 0xDBFF)
            return low_start(g, set, value);
        return charset_has(g, set, value) ? NODE_EPS : NODE_NONE;
    }
    uint32_t first = value << 4 * left, last = first + ((1u << 4 * left) - 1);
    bool all, touched = charset_touches(g, set, first, last, &all);
    if (all)
        return leaf(g, RX_HEX, CHARSET_ANY, 0, left);
    /* High surrogates among first..last stand for characters beyond U+FFFF, low ones for none. */
    if (first <= 0xDFFF && last >= 0xD800) {
        bool part = true;
        all = first >= 0xD800 || (charset_touches(g, set, first, 0xD7FF, &part) && part);
        if (last > 0xDFFF)
            all = charset_touches(g, set, 0xE000, last, &part) && part && all;
        if (first <= 0xDBFF) {
            uint32_t from = RP_MAX(first, 0xD800u), to = RP_MIN(last, 0xDBFFu);
            touched |= charset_touches(g, set, 0x10000 + ((from - 0xD800) << 10),
                                       0x10000 + ((to - 0xD800) << 10) + 0x3FF, &part);
            all = all && part;
        }
    }
    return touched ? leaf(g, RX_HEX, all ? CHARSET_ANY : set, value, left) : NODE_NONE;
}

static uint32_t low_part(struct rp_grammar *g, const struct node *n, uint8_t byte) {
    uint32_t left = n->hi, high = n->lo >> 16, value = n->lo & 0xFFFF;
    if (left > 4) {
        bool fits = byte == (left == 6 ? '\\' : 'u');
        return fits ? leaf(g, RX_LOW, n->a, n->lo, left - 1) : NODE_NONE;
    }
    int digit = hex_value(byte);
    if (digit < 0)
        return NODE_NONE;
    value = value << 4 | (uint32_t)digit;
    left--;
    uint32_t first = RP_MAX(value << 4 * left, 0xDC00u);
    uint32_t last = RP_MIN((value << 4 * left) + ((1u << 4 * left) - 1), 0xDFFFu);
    bool all;
    if (first > last || !charset_touches(g, n->a, 0x10000 + (high << 10) + (first - 0xDC00),
                                         0x10000 + (high << 10) + (last - 0xDC00), &all))
        return NODE_NONE;
    if (left == 0)
        return NODE_EPS;
    return all ? leaf(g, RX_LOW, CHARSET_ANY, value, left)
               : leaf(g, RX_LOW, n->a, high << 16 | value, left);
}

static uint32_t escape(struct rp_grammar *g, uint32_t set, uint8_t byte) {
    static const char letters[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    if (byte == 'u')
        return hex_part(g, set, 0, 4);
    for (size_t i = 0; i < sizeof letters - 1; i++)
        if (byte == (uint8_t)letters[i])
            return charset_has(g, set, (uint8_t)codes[i]) ? NODE_EPS : NODE_NONE;
    return NODE_NONE;
}

uint32_t rx_char_derivative(struct rp_grammar *g, const struct node *n, uint8_t byte) {
    switch (n->kind) {
    case RX_CHARS:
        return first_byte(g, n->a, n->b, byte);
    case RX_PART:
        if ((byte & 0xC0) != 0x80)
            return NODE_NONE;
        return utf8_part(g, n->a, n->lo << 6 | (byte & 0x3Fu), (n->hi & 0xFF) - 1, n->hi >> 8);
    case RX_ESC:
        return escape(g, n->a, byte);
    case RX_HEX: {
        int digit = hex_value(byte);
        return digit < 0 ? NODE_NONE : hex_part(g, n->a, n->lo << 4 | (uint32_t)digit, n->hi - 1);
    }
    default:
        return low_part(g, n, byte);
    }
}
