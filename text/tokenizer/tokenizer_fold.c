/* The normalizers that look at one character at a time: what BERT's pipelines need. Characters are
 * classed as in the package tokenizers (unicode.h). */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* The package's Nmt: what is dropped. */
static bool nmt_drops(uint32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
}

static bool nmt_spaces(uint32_t c) {
    return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
}

static void strip(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                  struct rp_tok_text_buffer *out) {
    size_t begin = 0, end = in->len;
    uint32_t code = 0;
    int size;
    while (n->left && (size = rp_utf8_decode(in->data + begin, end - begin, &code)) > 0 &&
           rp_tok_is_space(code))
        begin += (size_t)size;
    while (n->right && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)in->data[at] & 0xC0) == 0x80)
            at--;
        if (rp_utf8_decode(in->data + at, end - at, &code) <= 0 || !rp_tok_is_space(code))
            break;
        end = at;
    }
    rp_tok_text_copy(out, in, begin, end);
}

/* What the character becomes: UTF-8 in `to`, of the returned length; -1: itself. */
static int fold_char(enum rp_tok_normalizer_kind kind, uint32_t code, char to[12]) {
    unsigned flags = rp_unicode_record(code)->flags;
    uint32_t lower;
    int n = 0;
    switch (kind) {
    case RP_TOK_STRIP_ACCENTS:
        return flags & RP_UNICODE_ACCENT ? 0 : -1;
    case RP_TOK_BERT_ACCENTS:
        return flags & RP_UNICODE_BERT_ACCENT ? 0 : -1;
    case RP_TOK_BERT_CLEAN:
        if (flags & RP_UNICODE_BERT_DROPPED)
            return 0;
        to[0] = ' ';
        return rp_tok_is_space(code) ? 1 : -1;
    case RP_TOK_BERT_CHINESE:
        if (!is_chinese(code))
            return -1;
        to[n++] = ' ';
        n += rp_utf8_encode(code, to + n);
        to[n++] = ' ';
        return n;
    case RP_TOK_NMT:
        to[0] = ' ';
        return nmt_drops(code) ? 0 : nmt_spaces(code) ? 1 : -1;
    case RP_TOK_LOWERCASE:
        if (code == 0x130) { /* the only one whose lower case is two characters */
            n = rp_utf8_encode('i', to);
            return n + rp_utf8_encode(0x307, to + n);
        }
        lower = rp_unicode_to_lower(code);
        return lower == code ? -1 : rp_utf8_encode(lower, to);
    default:
        return -1;
    }
}

void rp_tok_fold(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                 struct rp_tok_text_buffer *out) {
    size_t done = 0;
    if (n->kind == RP_TOK_STRIP) {
        strip(n, in, out);
        return;
    }
    for (size_t i = 0; i < in->len;) {
        char to[12];
        uint32_t code = 0;
        int size = rp_utf8_decode(in->data + i, in->len - i, &code);
        size_t next = i + (size > 0 ? (size_t)size : 1);
        int len = fold_char(n->kind, code, to);
        if (len >= 0) {
            rp_tok_text_copy(out, in, done, i);
            rp_tok_text_append(out, to, (size_t)len, rp_tok_text_allow(in, i, next));
            done = next;
        }
        i = next;
    }
    rp_tok_text_copy(out, in, done, in->len);
}
