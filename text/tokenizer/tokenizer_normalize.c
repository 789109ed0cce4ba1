#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

/* A stretch of at most this many marks is ordered by insertion, a longer one by counting:
 * utf8proc's own ordering is quadratic, and a text of nothing but marks is cheap to send. */
#define INSERTION_MAX 32

static void append(struct rp_tok_text_buffer *out, const char *data, size_t len, int allow) {
    rp_buffer_append(&out->text, data, len);
    if (allow >= 0 && len && rp_buffer_reserve(&out->allow, len)) {
        memset(out->allow.data + out->allow.len, allow, len);
        out->allow.len += len;
    }
}

/* -1 when nothing is tracked; else whether all of [begin, end) may be part of a special token. */
static int allow_of(const struct rp_tok_text *in, size_t begin, size_t end) {
    if (!in->allow)
        return -1;
    return end <= begin || !memchr(in->allow + begin, 0, end - begin);
}

static void copy(struct rp_tok_text_buffer *out, const struct rp_tok_text *in, size_t begin,
                 size_t end) {
    rp_buffer_append(&out->text, in->data + begin, end - begin);
    if (in->allow)
        rp_buffer_append(&out->allow, in->allow + begin, end - begin);
}

/* Replace " " by "▁" is what most texts pass; the general way would spend its time on calls. */
static int replace_byte(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                        struct rp_tok_text_buffer *out) {
    size_t count = 0;
    for (size_t i = 0; i < in->len; i++)
        count += in->data[i] == n->pattern[0];
    /* Four bytes are written for each character, whatever it becomes. */
    size_t most = in->len + count * n->content_len + sizeof(uint32_t);
    if (!rp_buffer_reserve(&out->text, most) ||
        (in->allow && !rp_buffer_reserve(&out->allow, most)))
        return RP_STATUS_NO_MEMORY;
    char *to = out->text.data;
    uint32_t content = 0;
    memcpy(&content, n->content, n->content_len);
    for (size_t i = 0; i < in->len; i++) {
        bool hit = in->data[i] == n->pattern[0];
        uint32_t word = hit ? content : (unsigned char)in->data[i];
        memcpy(to, &word, sizeof word); /* little-endian, as every machine that we run on */
        if (in->allow)
            memset(out->allow.data + (to - out->text.data), in->allow[i], sizeof word);
        to += hit ? n->content_len : 1;
    }
    out->text.len = (size_t)(to - out->text.data);
    out->allow.len = in->allow ? out->text.len : 0;
    return RP_OK;
}

static int replace_literal(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                           struct rp_tok_text_buffer *out) {
    size_t at = 0;
    const char *hit;
    if (n->pattern_len == 1 && n->content_len <= sizeof(uint32_t))
        return replace_byte(n, in, out);
    while ((hit = memmem(in->data + at, in->len - at, n->pattern, n->pattern_len))) {
        size_t begin = (size_t)(hit - in->data);
        copy(out, in, at, begin);
        at = begin + n->pattern_len;
        append(out, n->content, n->content_len, allow_of(in, begin, at));
    }
    copy(out, in, at, in->len);
    return RP_OK;
}

static int replace_regex(const struct rp_tok_normalizer *n, struct rp_tokenizer_scratch *s,
                         const struct rp_tok_text *in, struct rp_tok_text_buffer *out) {
    size_t at = 0, from = 0, begin, end;
    while (from <= in->len) {
        int rc = rp_tok_regex_match(n->regex, s, in->data, in->len, from, &begin, &end);
        if (rc < 0)
            return rc;
        if (rc == 0)
            break;
        copy(out, in, at, begin);
        append(out, n->content, n->content_len, allow_of(in, begin, end));
        at = from = end;
        if (begin == end) { /* an empty match: step over one character */
            int size = rp_utf8_decode(in->data + end, in->len - end, NULL);
            from = end + (size > 0 ? (size_t)size : 1);
        }
    }
    copy(out, in, at, in->len);
    return RP_OK;
}

/* Whether the character always begins a new stretch and stays itself: it neither joins the one
 * before it nor comes apart. Conservative: false costs time, never correctness. */
static bool is_stable(enum rp_tok_normalizer_kind kind, uint32_t code) {
    if (code < 0x80)
        return true;
    if (kind == RP_TOK_NFC && code < 0x300)
        return true;
    if ((code >= 0x1100 && code < 0x1200) || (code >= 0x16D63 && code <= 0x16D6A))
        return false; /* Hangul jamo and Kirat Rai vowels: composed, though not marks */
    if (code >= 0xAC00 && code <= 0xD7A3)
        return kind == RP_TOK_NFC || kind == RP_TOK_NFKC;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)code);
    if (p->combining_class || p->category == UTF8PROC_CATEGORY_MN ||
        p->category == UTF8PROC_CATEGORY_MC || p->category == UTF8PROC_CATEGORY_ME)
        return false;
    if (p->decomp_seqindex == UINT16_MAX)
        return true;
    return p->decomp_type != 0 && (kind == RP_TOK_NFC || kind == RP_TOK_NFD);
}

static unsigned combining_class(int32_t point) {
    return point < 0x300 ? 0 : (unsigned)utf8proc_get_property(point)->combining_class;
}

/* Orders one stretch of marks by combining class, equal ones as they were. */
static void order_marks(int32_t *points, int32_t *spare, size_t count) {
    if (count <= INSERTION_MAX) {
        for (size_t i = 1; i < count; i++) {
            int32_t point = points[i];
            size_t j = i;
            for (; j > 0 && combining_class(points[j - 1]) > combining_class(point); j--)
                points[j] = points[j - 1];
            points[j] = point;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++)
        start[(combining_class(points[i]) & 0xFF) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    memcpy(spare, points, count * sizeof *points);
    for (size_t i = 0; i < count; i++)
        points[start[combining_class(spare[i]) & 0xFF]++] = spare[i];
}

static bool reserve_points(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->point_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->point_capacity * 2);
    int32_t *points = rp_realloc(s->points, capacity * sizeof *points);
    if (points)
        s->points = points;
    int32_t *spare = rp_realloc(s->points_spare, capacity * sizeof *spare);
    if (spare)
        s->points_spare = spare;
    if (!points || !spare)
        return false;
    s->point_capacity = capacity;
    return true;
}

/* Decomposes, orders and, for the C forms, composes in[begin, end). */
static int normalize_stretch(enum rp_tok_normalizer_kind kind, struct rp_tokenizer_scratch *s,
                             const struct rp_tok_text *in, size_t begin, size_t end,
                             struct rp_tok_text_buffer *out) {
    bool compose = kind == RP_TOK_NFC || kind == RP_TOK_NFKC;
    bool compat = kind == RP_TOK_NFKC || kind == RP_TOK_NFKD;
    int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                  (compat ? UTF8PROC_COMPAT : 0);
    size_t count = 0;
    for (size_t i = begin; i < end;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(in->data + i, end - i, &code), boundclass = 0;
        /* No character comes apart into more than 18 (U+FDFA). */
        if (!reserve_points(s, count + 32))
            return RP_STATUS_NO_MEMORY;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, s->points + count, 32,
                                                     (utf8proc_option_t)options, &boundclass);
        if (n < 0 || n > 32)
            return RP_STATUS_FORMAT;
        count += (size_t)n;
        i += size > 0 ? (size_t)size : 1;
    }
    for (size_t i = 0; i < count;) {
        size_t first = i;
        while (i < count && combining_class(s->points[i]))
            i++;
        if (i - first > 1)
            order_marks(s->points + first, s->points_spare, i - first);
        if (i == first)
            i++;
    }
    if (compose) {
        utf8proc_ssize_t n = utf8proc_normalize_utf32(s->points, (utf8proc_ssize_t)count,
                                                      (utf8proc_option_t)options);
        if (n < 0)
            return RP_STATUS_FORMAT;
        count = (size_t)n;
    }
    int allow = allow_of(in, begin, end);
    for (size_t i = 0; i < count; i++) {
        char utf8[4];
        append(out, utf8, (size_t)rp_utf8_encode((uint32_t)s->points[i], utf8), allow);
    }
    return RP_OK;
}

/* Copies what is normal already, and normalizes the stretches around the characters that may not
 * be: from the stable character before to the next one. */
static int normalize_unicode(enum rp_tok_normalizer_kind kind, struct rp_tokenizer_scratch *s,
                             const struct rp_tok_text *in, struct rp_tok_text_buffer *out) {
    size_t done = 0, stable = 0; /* copied so far; where the last stable character began */
    for (size_t i = 0; i < in->len;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(in->data + i, in->len - i, &code);
        size_t next = i + (size > 0 ? (size_t)size : 1);
        if (is_stable(kind, code)) {
            stable = i;
            i = next;
            continue;
        }
        size_t begin = RP_MAX(stable, done);
        copy(out, in, done, begin);
        for (i = next; i<in->len; i += size> 0 ? (size_t)size : 1) {
            size = rp_utf8_decode(in->data + i, in->len - i, &code);
            if (is_stable(kind, code))
                break;
        }
        int status = normalize_stretch(kind, s, in, begin, i, out);
        if (status != RP_OK)
            return status;
        done = i;
    }
    copy(out, in, done, in->len);
    return RP_OK;
}

static bool is_ascii(const char *text, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        if (word & 0x8080808080808080u)
            return false;
    }
    for (; i < len; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

/* Whether the normalizer leaves this text alone, found without copying. */
static bool leaves(const struct rp_tok_normalizer *n, const struct rp_tok_text *in) {
    if (in->len == 0)
        return n->kind != RP_TOK_REPLACE || !n->regex;
    switch (n->kind) {
    case RP_TOK_PREPEND:
        return false;
    case RP_TOK_REPLACE:
        return !n->regex && !memmem(in->data, in->len, n->pattern, n->pattern_len);
    default:
        return is_ascii(in->data, in->len);
    }
}

int rp_tok_normalize(const struct rp_tokenizer *tok, struct rp_tokenizer_scratch *scratch,
                     const struct rp_tok_text *in, struct rp_tok_text *out) {
    struct rp_tok_text now = *in;
    int turn = 0, status = RP_OK;
    for (size_t i = 0; i < tok->normalizer_count && status == RP_OK; i++) {
        const struct rp_tok_normalizer *n = &tok->normalizers[i];
        if (leaves(n, &now))
            continue;
        struct rp_tok_text_buffer *to = &scratch->normalized[turn];
        turn = !turn;
        rp_buffer_clear(&to->text);
        rp_buffer_clear(&to->allow);
        if (n->kind == RP_TOK_PREPEND) {
            append(to, n->content, n->content_len, now.allow ? now.allow[0] : -1);
            copy(to, &now, 0, now.len);
        } else if (n->kind == RP_TOK_REPLACE) {
            status = n->regex ? replace_regex(n, scratch, &now, to) : replace_literal(n, &now, to);
        } else {
            status = normalize_unicode(n->kind, scratch, &now, to);
        }
        if (to->text.failed || to->allow.failed)
            status = RP_STATUS_NO_MEMORY;
        now = (struct rp_tok_text){to->text.data ? to->text.data : "", to->text.len,
                                   now.allow ? (const uint8_t *)to->allow.data : NULL};
    }
    *out = now;
    return status;
}
