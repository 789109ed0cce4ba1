/* SentencePiece's precompiled_charsmap: u32 bytes of a double array, the array, then strings that
 * end with a NUL. A unit of the array (darts-clone): bits 0-7 a label, 8 "a value follows", 9 a
 * shift of the offset by 8, 10-30 the offset; of a value bit 31 is set. The bytes come from a file:
 * every position is checked. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

/* A grapheme that is longer is mapped character by character (the package's rule). */
#define GRAPHEME_BYTES_MAX 5
/* A damaged map could go on matching, or write much for each character. SentencePiece's own keys
 * have at most 12 bytes, its strings 33. */
#define KEY_BYTES_MAX    64
#define STRING_BYTES_MAX 256

int rp_tok_charsmap_open(struct rp_tok_load *load, const char *where, const void *bytes, size_t len,
                         struct rp_tok_charsmap *out) {
    uint32_t size = 0;
    if (len >= 4)
        memcpy(&size, bytes, 4);
    if (len < 4 || size > len - 4 || size % 4 != 0 || size == 0)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: %s: precompiled_charsmap is damaged: its size does not fit",
                            load->file, where);
    uint32_t *units = rp_arena_alloc(&load->tok->arena, size);
    size_t strings_len = len - 4 - size;
    char *strings = units ? rp_arena_alloc(&load->tok->arena, strings_len + 1) : NULL;
    if (!strings)
        return rp_tok_no_memory(load);
    memcpy(units, (const char *)bytes + 4, size);
    memcpy(strings, (const char *)bytes + 4 + size, strings_len);
    strings[strings_len] = '\0';
    *out = (struct rp_tok_charsmap){units, size / 4, strings, strings_len};
    return RP_OK;
}

bool rp_tok_base64_decode(const char *text, size_t len, char *out, size_t *out_len) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0, count = 0;
    *out_len = 0;
    while (len && text[len - 1] == '=')
        len--;
    for (size_t i = 0; i < len; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return false;
        bits = (bits << 6 | (uint32_t)(digit - digits)) & 0xFFFFFF;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[(*out_len)++] = (char)(bits >> count);
        }
    }
    return true;
}

static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

/* The longest (or the shortest) key that the text begins with: its length, 0 for none, and its
 * string. */
static size_t find(const struct rp_tok_charsmap *map, const char *text, size_t len, bool shortest,
                   const char **to) {
    size_t found = 0;
    if (map->unit_count == 0)
        return 0;
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < RP_MIN(len, (size_t)KEY_BYTES_MAX); i++) {
        unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= map->unit_count || (shortest && byte == 0))
            break;
        uint32_t unit = map->units[at];
        if ((unit & (1u << 31 | 0xFF)) != byte)
            break;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1))
            continue;
        if (at >= map->unit_count)
            break;
        uint32_t value = map->units[at] & 0x7FFFFFFF;
        if (value > map->strings_len ||
            strnlen(map->strings + value, STRING_BYTES_MAX + 1) > STRING_BYTES_MAX)
            break;
        *to = map->strings + value;
        found = i + 1;
        if (shortest)
            break;
    }
    return found;
}

static size_t char_size(const struct rp_tok_text *in, size_t at, uint32_t *code) {
    int size = rp_utf8_decode(in->data + at, in->len - at, code);
    return size > 0 ? (size_t)size : 1;
}

/* Unicode's grapheme clusters (UAX 29), as far as they can have at most five bytes. */
enum grapheme_class { GRAPHEME_OTHER, GRAPHEME_CONTROL, GRAPHEME_EXTEND, GRAPHEME_PREPEND };

static enum grapheme_class grapheme_class(uint32_t c) {
    if ((c >= 0x600 && c <= 0x605) || c == 0x6DD || c == 0x70F)
        return GRAPHEME_PREPEND;
    if (c == 0x200C || c == 0x200D || c == 0xFF9E || c == 0xFF9F || c == 0xE33 || c == 0xEB3 ||
        (c >= 0x1F3FB && c <= 0x1F3FF) || (c >= 0xE0020 && c <= 0xE007F))
        return GRAPHEME_EXTEND;
    switch (rp_unicode_category(c)) {
    case RP_UNICODE_CC:
    case RP_UNICODE_CF:
    case RP_UNICODE_ZL:
    case RP_UNICODE_ZP:
        return GRAPHEME_CONTROL;
    case RP_UNICODE_CN:
        return c == 0x2065 || (c >= 0xFFF0 && c <= 0xFFF8) ? GRAPHEME_CONTROL : GRAPHEME_OTHER;
    case RP_UNICODE_MC: /* those of Myanmar that are no SpacingMark */
        return c == 0x102B || c == 0x102C || c == 0x1038 || (c >= 0x1062 && c <= 0x1064) ||
                       (c >= 0x1067 && c <= 0x106D) || c == 0x1083 ||
                       (c >= 0x1087 && c <= 0x108C) || c == 0x108F ||
                       (c >= 0x109A && c <= 0x109C) || c == 0x1A61 || c == 0x1A63 || c == 0x1A64 ||
                       c == 0xAA7B || c == 0xAA7D || c == 0x11720 || c == 0x11721
                   ? GRAPHEME_OTHER
                   : GRAPHEME_EXTEND;
    case RP_UNICODE_MN:
    case RP_UNICODE_ME:
        return GRAPHEME_EXTEND;
    default:
        return GRAPHEME_OTHER;
    }
}

static size_t grapheme_end(const struct rp_tok_text *in, size_t at) {
    uint32_t code = 0;
    size_t end = at + char_size(in, at, &code);
    if (code == '\r' && end < in->len && in->data[end] == '\n')
        return end + 1;
    enum grapheme_class before = grapheme_class(code);
    if (before == GRAPHEME_CONTROL)
        return end;
    while (end < in->len) {
        size_t size = char_size(in, end, &code);
        enum grapheme_class here = grapheme_class(code);
        if (here == GRAPHEME_CONTROL || (here != GRAPHEME_EXTEND && before != GRAPHEME_PREPEND))
            break;
        before = here;
        end += size;
    }
    return end;
}

/* As the package: a short grapheme becomes what the shortest key at its beginning becomes, all of
 * it; else the same for each character. */
void rp_tok_charsmap_apply(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                           struct rp_tok_text_buffer *out) {
    size_t grapheme = 0; /* where the current one ends */
    for (size_t at = 0; at < in->len;) {
        const char *to;
        uint32_t code;
        size_t end = at + char_size(in, at, &code);
        if (at >= grapheme) {
            grapheme = grapheme_end(in, at);
            if (grapheme - at <= GRAPHEME_BYTES_MAX &&
                find(&n->charsmap, in->data + at, grapheme - at, true, &to))
                end = grapheme;
        }
        if (find(&n->charsmap, in->data + at, end - at, true, &to))
            rp_tok_text_append(out, to, strlen(to), rp_tok_text_allow(in, at, end));
        else
            rp_tok_text_copy(out, in, at, end);
        at = end;
    }
}

/* A symbol that the user has defined, or the longest key of the map, or one character. */
struct mapped {
    const char *text;
    size_t len, taken;
};

static struct mapped map_next(const struct rp_tokenizer *tok, const struct rp_tok_charsmap *map,
                              const struct rp_tok_text *in, size_t at) {
    const char *text = in->data + at;
    struct mapped m = {text, 0, 0};
    uint32_t node = 0, code;
    for (size_t i = at; tok->user_trie.values && i < in->len; i++) {
        node = rp_tok_trie_step(&tok->user_trie, node, (unsigned char)in->data[i]);
        if (!node)
            break;
        if (tok->user_trie.values[node] >= 0)
            m.len = m.taken = i + 1 - at;
    }
    if (m.taken)
        return m;
    m.taken = find(map, text, in->len - at, false, &m.text);
    if (m.taken)
        m.len = strlen(m.text);
    else
        m.len = m.taken = char_size(in, at, &code);
    return m;
}

static void append_marked(struct rp_tok_text_buffer *out, const char *text, size_t len, int allow) {
    const char *space;
    while ((space = memchr(text, ' ', len))) {
        rp_tok_text_append(out, text, (size_t)(space - text), allow);
        rp_tok_text_append(out, RP_TOK_MARKER, 3, allow);
        len -= (size_t)(space - text) + 1;
        text = space + 1;
    }
    rp_tok_text_append(out, text, len, allow);
}

void rp_tok_sentencepiece_apply(const struct rp_tokenizer *tok, const struct rp_tok_normalizer *n,
                                const struct rp_tok_text *in, bool at_start,
                                struct rp_tok_text_buffer *out) {
    size_t at = 0;
    bool after_space = n->trim;
    while (n->trim && at < in->len) {
        struct mapped m = map_next(tok, &n->charsmap, in, at);
        if (m.len != 1 || m.text[0] != ' ')
            break;
        at += m.taken;
    }
    if (at == in->len)
        return;
    if (n->prefix && (at_start || !n->prefix_first_only))
        rp_tok_text_append(out, RP_TOK_MARKER, 3, rp_tok_text_allow(in, at, at + 1));
    while (at < in->len) {
        struct mapped m = map_next(tok, &n->charsmap, in, at);
        int allow = rp_tok_text_allow(in, at, at + m.taken);
        at += m.taken;
        while (after_space && m.len && m.text[0] == ' ') {
            m.text++;
            m.len--;
        }
        if (m.len)
            after_space = n->trim && m.text[m.len - 1] == ' ';
        append_marked(out, m.text, m.len, allow);
    }
    struct rp_buffer *text = &out->text;
    while (n->trim && text->len >= 3 && memcmp(text->data + text->len - 3, RP_TOK_MARKER, 3) == 0) {
        text->len -= 3;
        out->allow.len -= in->allow ? 3 : 0;
    }
}
