#include "text/tokenizer/detokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

/* "<0x0A>" to 10, anything else to -1. */
static int byte_token(const char *text, size_t len) {
    int value = 0;
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void replace_all(const struct rp_tok_replace *r, const char *text, size_t len,
                        struct rp_buffer *out) {
    const char *hit;
    while ((hit = memmem(text, len, r->pattern, r->pattern_len))) {
        rp_buffer_append(out, text, (size_t)(hit - text));
        rp_buffer_append(out, r->content, r->content_len);
        len -= (size_t)(hit - text) + r->pattern_len;
        text = hit + r->pattern_len;
    }
    rp_buffer_append(out, text, len);
}

/* ByteLevel: bytes of the characters, or, when one is outside the map, the text itself. That is
 * also how added tokens pass. */
static void unmap_bytes(const char *text, size_t len, struct rp_buffer *out) {
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        int n = rp_utf8_decode(text + i, len - i, &code);
        int byte = n > 0 ? rp_tok_char_to_byte(code) : -1;
        if (byte < 0) {
            rp_buffer_clear(out);
            rp_buffer_append(out, text, len);
            return;
        }
        char c = (char)byte;
        rp_buffer_append(out, &c, 1);
        i += (size_t)n;
    }
}

/* The package's "cleanup", on one token after the first: it begins with a space or continues. */
static void clean_up(struct rp_buffer *out, struct rp_buffer *spare) {
    static const struct rp_tok_replace rules[] = {
        {" .", ".", 2, 1},     {" ?", "?", 2, 1},           {" !", "!", 2, 1},
        {" ,", ",", 2, 1},     {" ' ", "'", 3, 1},          {" n't", "n't", 4, 3},
        {" 'm", "'m", 3, 2},   {" do not", " don't", 7, 6}, {" 's", "'s", 3, 2},
        {" 've", "'ve", 4, 3}, {" 're", "'re", 4, 3}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(rules); i++) {
        struct rp_buffer swap = *out;
        rp_buffer_clear(spare);
        replace_all(&rules[i], out->data ? out->data : "", out->len, spare);
        *out = *spare;
        *spare = swap;
    }
}

/* The bytes of one token into `out` (empty before), with `spare` as working space. */
static void token_bytes(const struct rp_tokenizer *tok, struct rp_tok_entry *e,
                        struct rp_buffer *out, struct rp_buffer *spare) {
    const struct rp_tok_decoder *d = &tok->decoder;
    const char *text = rp_tok_ptr(tok, e->content);
    if (d->kind == RP_TOK_DECODER_BYTE_LEVEL) {
        unmap_bytes(text, e->content.len, out);
        return;
    }
    if (d->kind == RP_TOK_DECODER_WORDPIECE) {
        const struct rp_tok_replace *prefix = &d->replaces[0];
        size_t len = prefix->pattern_len;
        bool continues = e->content.len >= len && memcmp(text, prefix->pattern, len) == 0;
        rp_buffer_append(out, " ", !continues);
        rp_buffer_append(out, text + (continues ? len : 0), e->content.len - (continues ? len : 0));
        if (d->cleanup)
            clean_up(out, spare);
        return;
    }
    rp_buffer_append(out, text, e->content.len);
    for (size_t i = 0; i < d->replace_count; i++) {
        struct rp_buffer swap = *out;
        rp_buffer_clear(spare);
        replace_all(&d->replaces[i], out->data ? out->data : "", out->len, spare);
        *out = *spare;
        *spare = swap;
    }
    int byte = d->byte_fallback ? byte_token(out->data, out->len) : -1;
    if (byte >= 0) {
        out->data[0] = (char)byte;
        out->len = 1;
        e->flags |= RP_TOK_BYTE;
    }
}

int rp_tok_decoder_apply(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    struct rp_buffer out, spare;
    int status = RP_OK;
    rp_buffer_init(&out, 0);
    rp_buffer_init(&spare, 0);
    for (uint32_t id = 0; id < tok->id_limit && status == RP_OK; id++) {
        struct rp_tok_entry *e = &tok->entries[id];
        if (!(e->flags & RP_TOK_KNOWN))
            continue;
        rp_buffer_clear(&out);
        token_bytes(tok, e, &out, &spare);
        if (out.failed || spare.failed) {
            status = rp_tok_no_memory(load);
            break;
        }
        if (rp_utf8_valid(out.data, out.len) && !(e->flags & RP_TOK_BYTE))
            e->flags |= RP_TOK_WHOLE;
        if (out.len == e->content.len && !memcmp(out.data, rp_tok_ptr(tok, e->content), out.len))
            e->bytes = e->content;
        else
            status = rp_tok_blob_add(load, out.data, out.len, &e->bytes);
    }
    rp_buffer_deinit(&out);
    rp_buffer_deinit(&spare);
    if (status == RP_OK && !rp_buffer_reserve(&tok->blob, RP_TOK_BLOB_SLACK))
        status = rp_tok_no_memory(load);
    if (status == RP_OK)
        memset(tok->blob.data + tok->blob.len, 0, RP_TOK_BLOB_SLACK);
    return status;
}

void rp_detokenizer_init(struct rp_detokenizer *detok, const struct rp_tokenizer *tok,
                         bool skip_special_tokens) {
    memset(detok, 0, sizeof *detok);
    detok->tok = tok;
    detok->skip_special = skip_special_tokens;
    detok->strip_left = tok->decoder.strip_left;
}

/* Whole characters, less what Strip removes at the beginning of the stream. */
static void emit(struct rp_detokenizer *d, const char *text, size_t len, struct rp_buffer *out) {
    bool once = d->tok->decoder.strip_markers;
    for (size_t i = 0; d->strip_left && len && (i == 0 || !once); i++) {
        if (*text != d->tok->decoder.strip_char) {
            d->strip_left = 0;
            break;
        }
        d->strip_left--;
        text++;
        len--;
    }
    if (once && len)
        d->strip_left = 0;
    rp_buffer_append(out, text, len);
}

/* The pending bytes cannot become a character: one U+FFFD for each under ByteFallback, one for all
 * of them where the decoder converts lossily. */
static void drop_pending(struct rp_detokenizer *d, struct rp_buffer *out) {
    int count =
        d->tok->decoder.kind == RP_TOK_DECODER_BYTE_LEVEL ? d->pending_len > 0 : d->pending_len;
    for (int i = 0; i < count; i++)
        emit(d, REPLACEMENT, 3, out);
    d->pending_len = 0;
}

static void push_byte(struct rp_detokenizer *d, unsigned char byte, struct rp_buffer *out) {
    for (;;) {
        d->pending[d->pending_len] = byte;
        int n = rp_utf8_decode((const char *)d->pending, d->pending_len + 1u, NULL);
        if (n > 0) {
            emit(d, (const char *)d->pending, (size_t)n, out);
            d->pending_len = 0;
            return;
        }
        if (n < 0) {
            d->pending_len++;
            return;
        }
        if (d->pending_len == 0) {
            emit(d, REPLACEMENT, 3, out);
            return;
        }
        drop_pending(d, out); /* and the byte starts again */
    }
}

/* Metaspace: the first token loses its markers, so its bytes are made from its content. */
static void push_first_metaspace(struct rp_detokenizer *d, const struct rp_tok_entry *e,
                                 struct rp_buffer *out) {
    struct rp_tok_replace drop = d->tok->decoder.replaces[0];
    drop.content = "";
    drop.content_len = 0;
    replace_all(&drop, rp_tok_ptr(d->tok, e->content), e->content.len, out);
}

int rp_detokenizer_push(struct rp_detokenizer *d, int32_t id, struct rp_buffer *out) {
    const struct rp_tokenizer *tok = d->tok;
    if (id < 0 || (uint32_t)id >= tok->id_limit)
        return RP_OK;
    const struct rp_tok_entry *e = &tok->entries[id];
    if (!(e->flags & RP_TOK_KNOWN) || (d->skip_special && e->flags & RP_TOK_SPECIAL))
        return RP_OK;
    bool first = !d->started;
    d->started = true;
    if (tok->decoder.kind == RP_TOK_DECODER_NONE && !first)
        rp_buffer_append(out, " ", 1);
    if (first && tok->decoder.drop_first_markers) {
        push_first_metaspace(d, e, out);
    } else if (first && tok->decoder.kind == RP_TOK_DECODER_WORDPIECE) {
        rp_buffer_append(out, rp_tok_ptr(tok, e->content), e->content.len);
    } else if (RP_LIKELY(e->flags & RP_TOK_WHOLE)) {
        if (d->pending_len && e->bytes.len)
            drop_pending(d, out);
        size_t room = out->limit_bytes ? RP_MIN(out->capacity, out->limit_bytes) : out->capacity;
        if (RP_LIKELY(e->bytes.len <= RP_TOK_BLOB_SLACK && !d->strip_left && !out->failed &&
                      room >= RP_TOK_BLOB_SLACK && room - RP_TOK_BLOB_SLACK >= out->len)) {
            /* A copy of a fixed size is no call. */
            memcpy(out->data + out->len, rp_tok_ptr(tok, e->bytes), RP_TOK_BLOB_SLACK);
            out->len += e->bytes.len;
            return RP_OK;
        }
        emit(d, rp_tok_ptr(tok, e->bytes), e->bytes.len, out);
    } else {
        const char *bytes = rp_tok_ptr(tok, e->bytes);
        for (uint32_t i = 0; i < e->bytes.len; i++)
            push_byte(d, (unsigned char)bytes[i], out);
    }
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

int rp_detokenizer_finish(struct rp_detokenizer *d, struct rp_buffer *out) {
    drop_pending(d, out);
    return out->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

int rp_detokenizer_follow(struct rp_detokenizer *d, const int32_t *ids, size_t count) {
    struct rp_buffer before = {.data = NULL};
    int status = RP_OK;
    /* Only the beginning of a text is special. */
    for (size_t i = 0; i < count && status == RP_OK && !(d->started && d->strip_left == 0); i++) {
        rp_buffer_clear(&before);
        status = rp_detokenizer_push(d, ids[i], &before);
    }
    rp_buffer_deinit(&before);
    d->pending_len = 0;
    return status;
}
