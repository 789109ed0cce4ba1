/* grammar_number.c - numbers of JSON, and ranges of them, as automata over decimal digits.
 * Bounded numbers have no exponent. */
#include "text/grammar/grammar_internal.h"

#include <string.h>

#define DECIMALS_MAX 6 /* of multipleOf */
#define DIVISOR_MAX  1000

static uint32_t digit(struct rp_grammar *g, char low, char high) {
    return low > high ? NODE_NONE : rx_range(g, (uint8_t)low, (uint8_t)high);
}
static uint32_t any_digits(struct rp_grammar *g, uint32_t low, uint32_t high) {
    return rx_rep(g, digit(g, '0', '9'), low, high);
}
static uint32_t optional(struct rp_grammar *g, uint32_t rx) { return rx_or2(g, NODE_EPS, rx); }
static uint32_t byte_then(struct rp_grammar *g, char byte, uint32_t rx) {
    return rx_cat(g, digit(g, byte, byte), rx);
}

/* 0, or digits that do not begin with 0. */
static uint32_t natural(struct rp_grammar *g) {
    return rx_or2(g, digit(g, '0', '0'), rx_cat(g, digit(g, '1', '9'), any_digits(g, 0, REP_INF)));
}
static uint32_t fraction(struct rp_grammar *g) {
    return optional(g, byte_then(g, '.', any_digits(g, 1, REP_INF)));
}

uint32_t rx_integer(struct rp_grammar *g) {
    return rx_cat(g, optional(g, digit(g, '-', '-')), natural(g));
}

uint32_t rx_number(struct rp_grammar *g) {
    uint32_t sign = rx_or2(g, digit(g, '+', '+'), digit(g, '-', '-'));
    uint32_t e = rx_or2(g, digit(g, 'e', 'e'), digit(g, 'E', 'E'));
    uint32_t exponent = rx_cat(g, e, rx_cat(g, optional(g, sign), any_digits(g, 1, REP_INF)));
    return rx_cat(g, rx_integer(g), rx_cat(g, fraction(g), optional(g, exponent)));
}

bool decimal_read(struct decimal *out, const char *text) {
    char digits[400];
    size_t count = 0, point = 0;
    bool after = false;
    long exponent = 0;
    *out = (struct decimal){.negative = *text == '-'};
    for (text += *text == '-'; *text && (*text | 0x20) != 'e'; text++) {
        if (*text == '.') {
            after = true;
            continue;
        }
        if (*text < '0' || *text > '9' || count == sizeof digits)
            return false;
        digits[count++] = *text;
        point += !after;
    }
    if ((*text | 0x20) == 'e') {
        bool minus = text[1] == '-';
        for (text += 1 + (text[1] == '-' || text[1] == '+'); *text; text++)
            exponent = RP_MIN(exponent * 10 + (*text - '0'), 100000L);
        exponent = minus ? -exponent : exponent;
    }
    while (count > 0 && digits[count - 1] == '0' && count > point)
        count--;
    size_t skip = 0;
    while (skip < count && digits[skip] == '0')
        skip++;
    if (skip == count) { /* zero */
        out->negative = false;
        return true;
    }
    long scale = (long)count - (long)point - exponent; /* digits after the point */
    size_t used = count - skip;
    while (scale > 0 && used > 0 && digits[skip + used - 1] == '0')
        used--, scale--;
    long total = (long)used + (scale < 0 ? -scale : 0);
    if (total > 400 || scale > 400)
        return false;
    memcpy(out->digits, digits + skip, used);
    memset(out->digits + used, '0', (size_t)total - used);
    out->scale = scale > 0 ? (uint32_t)scale : 0;
    out->count = (uint32_t)total;
    if (out->scale > out->count) { /* 0.05: leading zeros up to the point */
        uint32_t zeros = out->scale - out->count;
        memmove(out->digits + zeros, out->digits, out->count);
        memset(out->digits, '0', zeros);
        out->count = out->scale;
    }
    return true;
}

/* Naturals of exactly n digits that compare with d[0..n): >= when up, else <=. */
static uint32_t same_length(struct rp_grammar *g, const char *d, size_t n, bool up, bool equal) {
    uint32_t rx = equal ? NODE_EPS : NODE_NONE;
    for (size_t i = n; i-- > 0;) {
        char low = i == 0 && n > 1 ? '1' : '0';
        uint32_t other = up ? digit(g, (char)(d[i] + 1), '9') : digit(g, low, (char)(d[i] - 1));
        uint32_t free =
            rx_cat(g, other, any_digits(g, (uint32_t)(n - 1 - i), (uint32_t)(n - 1 - i)));
        rx = rx_or2(g, free, byte_then(g, d[i], rx));
    }
    return rx;
}

/* Naturals above (below) d[0..n), without the equal one. An empty d is zero. */
static uint32_t natural_beyond(struct rp_grammar *g, const char *d, size_t n, bool up) {
    if (n == 0) {
        d = "0";
        n = 1;
    }
    uint32_t rx = same_length(g, d, n, up, false);
    if (up)
        return rx_or2(g, rx, rx_cat(g, digit(g, '1', '9'), any_digits(g, (uint32_t)n, REP_INF)));
    if (n > 1) {
        rx = rx_or2(g, rx, digit(g, '0', '0'));
        rx = rx_or2(g, rx, rx_cat(g, digit(g, '1', '9'), any_digits(g, 0, (uint32_t)n - 2)));
    }
    return rx;
}

/* What follows the equal integer part: a fraction that compares with f[0..m), m > 0 without
 * trailing zeros, or m == 0. */
static uint32_t fraction_beyond(struct rp_grammar *g, const char *f, size_t m, bool up,
                                bool strict) {
    uint32_t zeros = rx_rep(g, digit(g, '0', '0'), 0, REP_INF), free = any_digits(g, 0, REP_INF);
    uint32_t above_zero = rx_cat(g, zeros, rx_cat(g, digit(g, '1', '9'), free));
    if (m == 0) {
        if (up)
            return strict ? byte_then(g, '.', above_zero) : fraction(g);
        uint32_t dot_zeros = byte_then(g, '.', rx_cat(g, digit(g, '0', '0'), zeros));
        return strict ? NODE_NONE : optional(g, dot_zeros);
    }
    uint32_t rx = up ? (strict ? above_zero : free) : (strict ? NODE_NONE : zeros);
    for (size_t i = m; i-- > 0;) {
        uint32_t other = up ? digit(g, (char)(f[i] + 1), '9') : digit(g, '0', (char)(f[i] - 1));
        rx = rx_or2(g, rx_cat(g, other, free), byte_then(g, f[i], rx));
        if (!up && i > 0)
            rx = optional(g, rx); /* fewer digits are a smaller fraction */
    }
    rx = byte_then(g, '.', rx);
    return up ? rx : optional(g, rx);
}

/* Absolute values >= |bound| (up) or <= |bound|. */
static uint32_t magnitude(struct rp_grammar *g, const struct decimal *bound, bool up, bool strict) {
    size_t n = bound->count - bound->scale;
    uint32_t beyond = rx_cat(g, natural_beyond(g, bound->digits, n, up), fraction(g));
    uint32_t whole = n ? rx_bytes(g, bound->digits, n) : digit(g, '0', '0');
    uint32_t equal =
        rx_cat(g, whole, fraction_beyond(g, bound->digits + n, bound->scale, up, strict));
    return rx_or2(g, beyond, equal);
}

static bool is_zero(const struct decimal *x) { return x->count == 0; }

uint32_t rx_at_least(struct rp_grammar *g, const struct decimal *bound, bool strict) {
    uint32_t all = rx_cat(g, natural(g), fraction(g));
    if (!bound->negative) {
        uint32_t rx = magnitude(g, bound, true, strict);
        if (is_zero(bound) && !strict) /* -0 */
            rx = rx_or2(g, rx, byte_then(g, '-', magnitude(g, bound, false, false)));
        return rx;
    }
    return rx_or2(g, all, byte_then(g, '-', magnitude(g, bound, false, strict)));
}

uint32_t rx_at_most(struct rp_grammar *g, const struct decimal *bound, bool strict) {
    uint32_t all = rx_cat(g, natural(g), fraction(g));
    if (bound->negative)
        return byte_then(g, '-', magnitude(g, bound, true, strict));
    uint32_t below = is_zero(bound) && strict ? magnitude(g, bound, true, true) : all;
    return rx_or2(g, magnitude(g, bound, false, strict), byte_then(g, '-', below));
}

uint32_t rx_multiple(struct rp_grammar *g, const struct decimal *m) {
    uint64_t value = 0;
    if (m->negative || is_zero(m) || m->scale > DECIMALS_MAX)
        return NODE_NONE;
    for (uint32_t i = 0; i < m->count && value <= DIVISOR_MAX; i++)
        value = value * 10 + (uint64_t)(m->digits[i] - '0');
    if (value > DIVISOR_MAX)
        return NODE_NONE;
    if (value == 1) {
        uint32_t decimals = any_digits(g, 1, m->scale);
        return rx_cat(g, rx_integer(g),
                      m->scale ? optional(g, byte_then(g, '.', decimals)) : NODE_EPS);
    }
    uint32_t digits = rx_mod(g, (uint32_t)value, 0, m->scale, 0);
    uint32_t number = rx_cat(g, rx_integer(g), m->scale ? fraction(g) : NODE_EPS);
    return rx_and2(g, number, rx_cat(g, optional(g, digit(g, '-', '-')), digits));
}

uint32_t rx_multiple_padded(struct rp_grammar *g, uint32_t multiples) {
    uint32_t zeros = rx_rep(g, digit(g, '0', '0'), 0, REP_INF);
    return rx_cat(g, multiples, optional(g, rx_cat(g, optional(g, digit(g, '.', '.')), zeros)));
}

uint32_t rx_fraction(struct rp_grammar *g) {
    uint32_t zeros = rx_rep(g, digit(g, '0', '0'), 0, REP_INF);
    uint32_t some = rx_cat(g, zeros, rx_cat(g, digit(g, '1', '9'), any_digits(g, 0, REP_INF)));
    return rx_cat(g, rx_integer(g), byte_then(g, '.', some));
}
