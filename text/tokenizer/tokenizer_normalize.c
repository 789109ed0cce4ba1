#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

void rp_tok_text_append(struct rp_tok_text_buffer *out, const char *data, size_t len, int allow) {
    rp_buffer_append(&out->text, data, len);
    if (allow >= 0 && len && rp_buffer_reserve(&out->allow, len)) {
        memset(out->allow.data + out->allow.len, allow, len);
        out->allow.len += len;
    }
}

/* -1 when nothing is tracked; else whether all of [begin, end) may be part of a special token. */
int rp_tok_text_allow(const struct rp_tok_text *in, size_t begin, size_t end) {
    if (!in->allow)
        return -1;
    return end <= begin || !memchr(in->allow + begin, 0, end - begin);
}

void rp_tok_text_copy(struct rp_tok_text_buffer *out, const struct rp_tok_text *in, size_t begin,
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
        rp_tok_text_copy(out, in, at, begin);
        at = begin + n->pattern_len;
        rp_tok_text_append(out, n->content, n->content_len, rp_tok_text_allow(in, begin, at));
    }
    rp_tok_text_copy(out, in, at, in->len);
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
        rp_tok_text_copy(out, in, at, begin);
        rp_tok_text_append(out, n->content, n->content_len, rp_tok_text_allow(in, begin, end));
        at = from = end;
        if (begin == end) { /* an empty match: step over one character */
            int size = rp_utf8_decode(in->data + end, in->len - end, NULL);
            from = end + (size > 0 ? (size_t)size : 1);
        }
    }
    rp_tok_text_copy(out, in, at, in->len);
    return RP_OK;
}

/* Whether the character begins a new stretch and stays itself: it neither joins or passes the one
 * before it nor comes apart. The kinds are in the order of enum rp_unicode_form. */
static bool is_stable(const struct rp_tokenizer *tok, enum rp_tok_normalizer_kind kind,
                      uint32_t code) {
    if (code < 0x10000)
        return !(tok->moves[code] >> kind & 1);
    return !(rp_unicode_record(code)->flags & (unsigned)RP_UNICODE_MOVES << kind);
}

static bool reserve_points(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->point_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->point_capacity * 2);
    uint32_t *points = rp_realloc(s->points, capacity * sizeof *points);
    if (points)
        s->points = points;
    uint32_t *spare = rp_realloc(s->points_spare, capacity * sizeof *spare);
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
    size_t count = 0;
    for (size_t i = begin; i < end;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(in->data + i, end - i, &code);
        if (!reserve_points(s, count + RP_UNICODE_DECOMPOSED_MAX))
            return RP_STATUS_NO_MEMORY;
        count += rp_unicode_decompose(code, compat, s->points + count);
        i += size > 0 ? (size_t)size : 1;
    }
    rp_unicode_order(s->points, s->points_spare, count);
    if (compose)
        count = rp_unicode_compose(s->points, count);
    int allow = rp_tok_text_allow(in, begin, end);
    for (size_t i = 0; i < count; i++) {
        char utf8[4];
        rp_tok_text_append(out, utf8, (size_t)rp_utf8_encode(s->points[i], utf8), allow);
    }
    return RP_OK;
}

/* Copies what is normal already, and normalizes the stretches around the characters that may not
 * be: from the stable character before to the next one. */
static int normalize_unicode(const struct rp_tokenizer *tok, enum rp_tok_normalizer_kind kind,
                             struct rp_tokenizer_scratch *s, const struct rp_tok_text *in,
                             struct rp_tok_text_buffer *out) {
    size_t done = 0, stable = 0; /* copied so far; where the last stable character began */
    for (size_t i = 0; i < in->len;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(in->data + i, in->len - i, &code);
        size_t next = i + (size > 0 ? (size_t)size : 1);
        if (is_stable(tok, kind, code)) {
            stable = i;
            i = next;
            continue;
        }
        size_t begin = RP_MAX(stable, done);
        rp_tok_text_copy(out, in, done, begin);
        for (i = next; i<in->len; i += size> 0 ? (size_t)size : 1) {
            size = rp_utf8_decode(in->data + i, in->len - i, &code);
            if (is_stable(tok, kind, code))
                break;
        }
        int status = normalize_stretch(kind, s, in, begin, i, out);
        if (status != RP_OK)
            return status;
        done = i;
    }
    rp_tok_text_copy(out, in, done, in->len);
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
    case RP_TOK_NFC:
    case RP_TOK_NFD:
    case RP_TOK_NFKC:
    case RP_TOK_NFKD:
    case RP_TOK_STRIP_ACCENTS:
    case RP_TOK_BERT_CHINESE:
    case RP_TOK_BERT_ACCENTS:
        return is_ascii(in->data, in->len);
    default:
        return false;
    }
}

static int apply(const struct rp_tokenizer *tok, const struct rp_tok_normalizer *n,
                 struct rp_tokenizer_scratch *scratch, const struct rp_tok_text *in, bool at_start,
                 struct rp_tok_text_buffer *out) {
    switch (n->kind) {
    case RP_TOK_NFC:
    case RP_TOK_NFD:
    case RP_TOK_NFKC:
    case RP_TOK_NFKD:
        return normalize_unicode(tok, n->kind, scratch, in, out);
    case RP_TOK_PREPEND:
        rp_tok_text_append(out, n->content, n->content_len, in->allow ? in->allow[0] : -1);
        rp_tok_text_copy(out, in, 0, in->len);
        break;
    case RP_TOK_REPLACE:
        return n->regex ? replace_regex(n, scratch, in, out) : replace_literal(n, in, out);
    case RP_TOK_PRECOMPILED:
        rp_tok_charsmap_apply(n, in, out);
        break;
    case RP_TOK_SENTENCEPIECE:
        rp_tok_sentencepiece_apply(tok, n, in, at_start, out);
        break;
    default:
        rp_tok_fold(n, in, out);
        break;
    }
    return RP_OK;
}

int rp_tok_normalize(const struct rp_tokenizer *tok, struct rp_tokenizer_scratch *scratch,
                     const struct rp_tok_text *in, bool at_start, struct rp_tok_text *out) {
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
        status = apply(tok, n, scratch, &now, at_start, to);
        if (to->text.failed || to->allow.failed)
            status = RP_STATUS_NO_MEMORY;
        now = (struct rp_tok_text){to->text.data ? to->text.data : "", to->text.len,
                                   now.allow ? (const uint8_t *)to->allow.data : NULL};
    }
    *out = now;
    return status;
}
