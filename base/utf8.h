/* utf8.h - strict UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF). */
#ifndef RP_BASE_UTF8_H
#define RP_BASE_UTF8_H

#include "base/base.h"

#include <string.h>

/* Length (1-4) of the valid character at the start of text[0..len), 0 when the bytes there can
 * never become one, and -1 when they are the beginning of one that is cut off. *out_code (may be
 * NULL) gets the code point when the result is positive. */
static inline int rp_utf8_decode(const char *text, size_t len, uint32_t *out_code) {
    if (len == 0)
        return -1;
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0];
    if (lead < 0x80) {
        if (out_code)
            *out_code = lead;
        return 1;
    }
    int need;
    unsigned char low = 0x80,
                  high = 0xBF; /* allowed range of the second byte (RFC 3629 section 4) */
    uint32_t code;
    if (lead >= 0xC2 && lead <= 0xDF) {
        need = 2;
        code = lead & 0x1Fu;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 3;
        code = lead & 0x0Fu;
        if (lead == 0xE0)
            low = 0xA0;
        if (lead == 0xED)
            high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 4;
        code = lead & 0x07u;
        if (lead == 0xF0)
            low = 0x90;
        if (lead == 0xF4)
            high = 0x8F;
    } else {
        return 0;
    }
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= len)
            return -1;
        if (s[i] < low || s[i] > high)
            return 0;
        low = 0x80;
        high = 0xBF;
        code = (code << 6) | (s[i] & 0x3Fu);
    }
    if (out_code)
        *out_code = code;
    return need;
}

/* Writes 1-4 bytes; code must be a scalar value. */
static inline int rp_utf8_encode(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | (code >> 12));
        out[1] = (char)(0x80 | ((code >> 6) & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | (code >> 18));
    out[1] = (char)(0x80 | ((code >> 12) & 0x3F));
    out[2] = (char)(0x80 | ((code >> 6) & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

static inline bool rp_utf8_valid(const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        uint64_t word;
        if (len - i >= sizeof word) { /* eight ASCII characters at once */
            memcpy(&word, text + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        int n = rp_utf8_decode(text + i, len - i, NULL);
        if (n <= 0)
            return false;
        i += (size_t)n;
    }
    return true;
}

#endif
