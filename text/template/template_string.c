/* Strings by code points, as Python's str; every byte keeps its origin. */
#include "base/utf8.h"
#include "text/template/template_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

bool rp_tchar_is_space(uint32_t c) { /* str.isspace */
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Strings are valid UTF-8, but a slice of hostile bytes must not loop. */
uint32_t rp_tstr_char(struct rp_value s, size_t at, size_t *size) {
    uint32_t code = 0xFFFD;
    int n = at < s.len ? rp_utf8_decode(s.u.s + at, s.len - at, &code) : 1;
    *size = n > 0 ? (size_t)n : 1;
    return n > 0 ? code : 0xFFFD;
}

size_t rp_tstr_count(struct rp_value s) {
    size_t count = 0;
    for (size_t i = 0; i < s.len; i++)
        count += ((unsigned char)s.u.s[i] & 0xC0) != 0x80;
    return count;
}

size_t rp_tstr_offset(struct rp_value s, size_t index) {
    size_t i = 0;
    for (; i < s.len; i++)
        if (((unsigned char)s.u.s[i] & 0xC0) != 0x80 && index-- == 0)
            break;
    return i;
}

size_t rp_tstr_find(struct rp_value s, struct rp_value needle, size_t from) {
    if (from > s.len || needle.len > s.len - from)
        return SIZE_MAX;
    if (needle.len == 0)
        return from;
    const char *at = memmem(s.u.s + from, s.len - from, needle.u.s, needle.len);
    return at ? (size_t)(at - s.u.s) : SIZE_MAX;
}

/* ---- Case ----------------------------------------------------------------------------- */

static void put_code(struct rp_tbuf *buf, uint32_t code, bool input) {
    char bytes[4];
    rp_tbuf_bytes(buf, bytes, (size_t)rp_utf8_encode(code, bytes), input);
}

static bool is_cased(uint32_t c) { return rp_unicode_record(c)->flags & RP_UNICODE_CASED; }

static bool is_case_ignorable(uint32_t c) {
    return rp_unicode_record(c)->flags & RP_UNICODE_CASE_IGNORABLE;
}

/* Sigma is final after a letter and before none. */
static bool final_sigma(struct rp_value s, size_t begin, size_t end) {
    uint32_t code = 0;
    size_t at = begin, size;
    bool before = false;
    while (at > 0) {
        do
            at--;
        while (at > 0 && ((unsigned char)s.u.s[at] & 0xC0) == 0x80);
        code = rp_tstr_char(s, at, &size);
        if (!is_case_ignorable(code)) {
            before = is_cased(code);
            break;
        }
    }
    for (at = end; before && at < s.len; at += size) {
        code = rp_tstr_char(s, at, &size);
        if (!is_case_ignorable(code))
            return !is_cased(code);
    }
    return before;
}

static void put_cased(struct rp_tbuf *buf, struct rp_value s, size_t at, size_t size, uint32_t code,
                      enum rp_tcase to) {
    bool input = rp_value_mark(s, at);
    if (to == RP_TCASE_LOWER) {
        if (code == 0x130) /* i with a dot above */
            rp_tbuf_bytes(buf, "i\xCC\x87", 3, input);
        else if (code == 0x3A3)
            put_code(buf, final_sigma(s, at, at + size) ? 0x3C2 : 0x3C3, input);
        else
            put_code(buf, rp_unicode_to_lower(code), input);
        return;
    }
    const char *several = rp_unicode_special_case(code, to == RP_TCASE_TITLE);
    if (several)
        rp_tbuf_bytes(buf, several, strlen(several), input);
    else if (to == RP_TCASE_UPPER)
        put_code(buf, rp_unicode_to_upper(code), input);
    else
        put_code(buf, rp_unicode_to_title(code), input);
}

struct rp_value rp_tstr_case(struct rp_trender *r, struct rp_value s, enum rp_tcase to) {
    struct rp_tbuf buf;
    bool in_word = false;
    rp_tbuf_init(&buf, &r->mem);
    if (!rp_render_charge_bytes(r, s.len * 4u))
        return rp_value_none();
    for (size_t at = 0, size; at < s.len; at += size) {
        uint32_t code = rp_tstr_char(s, at, &size);
        enum rp_tcase one = to;
        if (to == RP_TCASE_TITLE)
            one = in_word ? RP_TCASE_LOWER : RP_TCASE_TITLE;
        else if (to == RP_TCASE_CAPITALIZE)
            one = at == 0 ? RP_TCASE_TITLE : RP_TCASE_LOWER;
        else if (to == RP_TCASE_SWAP)
            one = rp_unicode_record(code)->flags & RP_UNICODE_UPPERCASE ? RP_TCASE_LOWER
                  : rp_unicode_category(code) == RP_UNICODE_LT ? RP_TCASE_TITLE /* stays itself */
                                                               : RP_TCASE_UPPER;
        in_word = is_cased(code);
        put_cased(&buf, s, at, size, code, one);
    }
    struct rp_value out = rp_tbuf_finish(&buf);
    out.markup = s.markup;
    return out;
}

/* ---- Strip, replace, split, join ------------------------------------------------------ */

static bool strips(uint32_t code, struct rp_value chars) {
    if (chars.type != RP_VALUE_STRING)
        return rp_tchar_is_space(code);
    for (size_t at = 0, size; at < chars.len; at += size)
        if (rp_tstr_char(chars, at, &size) == code)
            return true;
    return false;
}

struct rp_value rp_tstr_strip(struct rp_trender *r, struct rp_value s, struct rp_value chars,
                              int sides) {
    size_t begin = 0, end = s.len, size;
    size_t cost = chars.type == RP_VALUE_STRING ? (size_t)chars.len + 1 : 1;
    while ((sides & 1) && begin < end && strips(rp_tstr_char(s, begin, &size), chars) &&
           rp_render_charge_bytes(r, cost))
        begin += size;
    while ((sides & 2) && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)s.u.s[at] & 0xC0) == 0x80)
            at--;
        if (!strips(rp_tstr_char(s, at, &size), chars) || !rp_render_charge_bytes(r, cost))
            break;
        end = at;
    }
    return rp_value_sub(s, begin, end - begin);
}

struct rp_value rp_tstr_replace(struct rp_trender *r, struct rp_value s, struct rp_value old_text,
                                struct rp_value new_text, int64_t count) {
    struct rp_tbuf buf;
    size_t at = 0;
    rp_tbuf_init(&buf, &r->mem);
    if (!rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    while (count != 0) {
        size_t found = rp_tstr_find(s, old_text, at), size = old_text.len;
        if (found == SIZE_MAX || !rp_render_charge_bytes(r, new_text.len + 1u))
            break;
        rp_tbuf_sub(&buf, s, at, found - at);
        rp_tbuf_string(&buf, new_text);
        at = found + old_text.len;
        count--;
        if (old_text.len)
            continue;
        if (at == s.len) /* an empty one is found before each character and at the end */
            break;
        (void)rp_tstr_char(s, at, &size);
        rp_tbuf_sub(&buf, s, at, size);
        at += size;
    }
    if (at == 0 && buf.len == 0)
        return s;
    rp_tbuf_sub(&buf, s, at, s.len - at);
    struct rp_value out = rp_tbuf_finish(&buf);
    out.markup = s.markup;
    return out;
}

static void split_space(struct rp_trender *r, struct rp_value s, int64_t limit,
                        struct rp_tseq *out) {
    size_t at = 0, size;
    while (rp_render_charge(r, 1)) {
        while (at < s.len && rp_tchar_is_space(rp_tstr_char(s, at, &size)))
            at += size;
        if (at >= s.len)
            return;
        size_t end = at;
        if (limit-- == 0) { /* the rest, with the white space at its end */
            rp_tseq_add(&r->mem, out, rp_value_sub(s, at, s.len - at));
            return;
        }
        while (end < s.len && !rp_tchar_is_space(rp_tstr_char(s, end, &size)))
            end += size;
        rp_tseq_add(&r->mem, out, rp_value_sub(s, at, end - at));
        at = end;
    }
}

static size_t char_before(struct rp_value s, size_t end, uint32_t *code) {
    size_t at = end - 1, size;
    while (at > 0 && ((unsigned char)s.u.s[at] & 0xC0) == 0x80)
        at--;
    *code = rp_tstr_char(s, at, &size);
    return at;
}

/* From the right; the pieces come in reverse. */
static void rsplit_space(struct rp_trender *r, struct rp_value s, int64_t limit,
                         struct rp_tseq *out) {
    size_t end = s.len, at;
    uint32_t code;
    while (rp_render_charge(r, 1)) {
        while (end > 0 && (at = char_before(s, end, &code), rp_tchar_is_space(code)))
            end = at;
        if (end == 0)
            return;
        if (limit-- == 0) {
            rp_tseq_add(&r->mem, out, rp_value_sub(s, 0, end));
            return;
        }
        size_t begin = end;
        while (begin > 0 && (at = char_before(s, begin, &code), !rp_tchar_is_space(code)))
            begin = at;
        rp_tseq_add(&r->mem, out, rp_value_sub(s, begin, end - begin));
        end = begin;
    }
}

/* Ends at or before `end`. Comparing costs, since a needle may nearly match everywhere. */
size_t rp_tstr_find_last(struct rp_trender *r, struct rp_value s, struct rp_value needle,
                         size_t end) {
    if (needle.len == 0)
        return end;
    for (size_t at = end; at >= needle.len; at--) {
        const char *begin = s.u.s + at - needle.len;
        if (*begin != *needle.u.s)
            continue;
        if (!rp_render_charge_bytes(r, needle.len))
            break;
        if (memcmp(begin, needle.u.s, needle.len) == 0)
            return at - needle.len;
    }
    return SIZE_MAX;
}

static void reverse_items(struct rp_tseq *seq) {
    for (size_t i = 0; i < seq->count / 2; i++) {
        struct rp_value swap = seq->items[i];
        seq->items[i] = seq->items[seq->count - 1 - i];
        seq->items[seq->count - 1 - i] = swap;
    }
}

static void split_text(struct rp_trender *r, struct rp_value s, struct rp_value separator,
                       int64_t limit, bool from_right, struct rp_tseq *out) {
    size_t at = 0, end = s.len, found;
    while (limit-- != 0 && rp_render_charge(r, 1)) {
        found =
            from_right ? rp_tstr_find_last(r, s, separator, end) : rp_tstr_find(s, separator, at);
        if (found == SIZE_MAX)
            break;
        if (from_right) {
            rp_tseq_add(&r->mem, out,
                        rp_value_sub(s, found + separator.len, end - found - separator.len));
            end = found;
        } else {
            rp_tseq_add(&r->mem, out, rp_value_sub(s, at, found - at));
            at = found + separator.len;
        }
    }
    rp_tseq_add(&r->mem, out, rp_value_sub(s, at, end - at));
}

struct rp_value rp_tstr_split(struct rp_trender *r, struct rp_value s, struct rp_value separator,
                              int64_t limit, bool from_right) {
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_LIST, 0);
    if (out.type != RP_VALUE_LIST || !rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    if (separator.type != RP_VALUE_NONE && separator.type != RP_VALUE_STRING)
        return rp_render_fail(r, "TypeError", "must be str or None, not %s",
                              rp_value_type_name(separator));
    if (separator.type == RP_VALUE_STRING && separator.len == 0)
        return rp_render_fail(r, "ValueError", "empty separator");
    if (separator.type == RP_VALUE_STRING)
        split_text(r, s, separator, limit, from_right, out.u.seq);
    else if (from_right)
        rsplit_space(r, s, limit, out.u.seq);
    else
        split_space(r, s, limit, out.u.seq);
    if (from_right)
        reverse_items(out.u.seq);
    return out;
}

static bool is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct rp_value rp_tstr_lines(struct rp_trender *r, struct rp_value s, bool keep_ends) {
    struct rp_value out = rp_tseq_make(&r->mem, RP_VALUE_LIST, 0);
    size_t begin = 0, at = 0, size;
    if (out.type != RP_VALUE_LIST || !rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    while (at < s.len) {
        uint32_t code = rp_tstr_char(s, at, &size);
        size_t end = at;
        at += size;
        if (!is_line_end(code))
            continue;
        if (code == '\r' && at < s.len && s.u.s[at] == '\n')
            at++;
        rp_tseq_add(&r->mem, out.u.seq, rp_value_sub(s, begin, (keep_ends ? at : end) - begin));
        begin = at;
    }
    if (begin < s.len)
        rp_tseq_add(&r->mem, out.u.seq, rp_value_sub(s, begin, s.len - begin));
    return out;
}

/* `convert`: items become text (the filter join); else they must be strings (str.join). */
struct rp_value rp_tstr_join(struct rp_trender *r, struct rp_value separator, struct rp_value items,
                             bool convert) {
    struct rp_tseq *seq = rp_value_iterate(r, items);
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    for (size_t i = 0; seq && i < seq->count && !r->failed; i++) {
        struct rp_value item = seq->items[i];
        if (item.type != RP_VALUE_STRING && !convert)
            return rp_render_fail(r, "TypeError",
                                  "sequence item %zu: expected str instance, %s found", i,
                                  rp_value_type_name(item));
        item = rp_value_text(r, item);
        if (r->failed || !rp_render_charge_bytes(r, (size_t)item.len + separator.len + 16))
            break;
        if (i)
            rp_tbuf_string(&buf, separator);
        rp_tbuf_string(&buf, item);
    }
    return rp_tbuf_finish(&buf);
}

struct rp_value rp_tstr_repeat(struct rp_trender *r, struct rp_value s, int64_t times) {
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    for (int64_t i = 0; s.len && i < times && rp_render_charge_bytes(r, s.len + 16u); i++)
        rp_tbuf_string(&buf, s);
    return rp_tbuf_finish(&buf);
}

struct rp_value rp_tstr_pad(struct rp_trender *r, struct rp_value s, int64_t width,
                            struct rp_value fill, int sides) {
    struct rp_tbuf buf;
    int64_t missing = width - (int64_t)rp_tstr_count(s), left;
    if (missing <= 0)
        return s;
    left = sides == 1 ? missing : sides == 2 ? 0 : missing / 2 + (missing & width & 1);
    rp_tbuf_init(&buf, &r->mem);
    for (int64_t i = 0; i < left && rp_render_charge(r, 1) && !r->mem.failed; i++)
        rp_tbuf_string(&buf, fill);
    rp_tbuf_string(&buf, s);
    for (int64_t i = left; i < missing && rp_render_charge(r, 1) && !r->mem.failed; i++)
        rp_tbuf_string(&buf, fill);
    return rp_tbuf_finish(&buf);
}

/* HTML, as markupsafe does it. */
struct rp_value rp_tstr_escape(struct rp_trender *r, struct rp_value s) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct rp_tbuf buf;
    rp_tbuf_init(&buf, &r->mem);
    if (!rp_render_charge_bytes(r, s.len))
        return rp_value_none();
    for (size_t at = 0; at < s.len; at++) {
        const char *special = memchr(from, s.u.s[at], 5);
        if (special)
            rp_tbuf_bytes(&buf, to[special - from], strlen(to[special - from]),
                          rp_value_mark(s, at));
        else
            rp_tbuf_sub(&buf, s, at, 1);
    }
    struct rp_value out = rp_tbuf_finish(&buf);
    out.markup = true;
    return out;
}
