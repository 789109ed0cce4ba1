#include "text/tokenizer/tokenizer.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

/* Positions inside a piece are 32-bit, and the normalizer may lengthen a text. */
#define TEXT_BYTES_MAX ((size_t)1 << 30)

void rp_tokenizer_close(struct rp_tokenizer *tok) {
    if (!tok)
        return;
    for (size_t i = 0; i < tok->normalizer_count; i++)
        pcre2_code_free(tok->normalizers[i].regex);
    for (size_t i = 0; i < tok->step_count; i++)
        pcre2_code_free(tok->steps[i].regex);
    rp_buffer_deinit(&tok->blob);
    rp_arena_deinit(&tok->arena);
    rp_free(tok);
}

/* \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control. */
static bool is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D || rp_unicode_record(c)->flags & RP_UNICODE_ALPHABETIC)
        return true;
    switch (rp_unicode_category(c)) {
    case RP_UNICODE_MN:
    case RP_UNICODE_MC:
    case RP_UNICODE_ME:
    case RP_UNICODE_ND:
    case RP_UNICODE_PC:
        return true;
    default:
        return false;
    }
}

/* The character that ends at `end`, and where it begins. */
static uint32_t char_before(const char *text, size_t end, size_t *begin) {
    uint32_t code = 0;
    *begin = end - 1;
    while (*begin > 0 && ((unsigned char)text[*begin] & 0xC0) == 0x80)
        (*begin)--;
    (void)rp_utf8_decode(text + *begin, end - *begin, &code);
    return code;
}

static bool is_single_word(const struct rp_tok_text *text, size_t begin, size_t end) {
    size_t at;
    uint32_t code = 0;
    if (begin > 0 && is_word(char_before(text->data, begin, &at)))
        return false;
    return end == text->len || rp_utf8_decode(text->data + end, text->len - end, &code) <= 0 ||
           !is_word(code);
}

struct added_match {
    size_t begin, end;
    const struct rp_tok_added *token;
};

/* The first place at or after `from` where an added token may begin; text->len when there is
 * none. */
static inline size_t find_first(const struct rp_tok_trie *trie, const struct rp_tok_text *text,
                                size_t from) {
    if (trie->common_len) {
        size_t at = from + trie->anchor_at;
        const char *hit =
            at < text->len ? memchr(text->data + at, trie->anchor, text->len - at) : NULL;
        return hit ? (size_t)(hit - text->data) - trie->anchor_at : text->len;
    }
    while (from < text->len && !trie->first[(unsigned char)text->data[from]])
        from++;
    return from;
}

/* The leftmost and there the longest added token at or after `from`. Special tokens are ignored
 * where the text does not allow them. */
static bool find_added(const struct rp_tokenizer *tok, const struct rp_tok_trie *trie,
                       const struct rp_tok_text *text, size_t from, struct added_match *match) {
    for (size_t begin = from; (begin = find_first(trie, text, begin)) < text->len; begin++) {
        if (text->len - begin >= 4) {
            uint32_t head = rp_tok_trie_head(text->data + begin);
            if (RP_LIKELY(!(trie->heads[head / 64] >> (head % 64) & 1)))
                continue;
        }
        bool allowed = true;
        uint32_t node = 0;
        match->token = NULL;
        for (size_t i = begin; i < text->len; i++) {
            node = rp_tok_trie_step(trie, node, (unsigned char)text->data[i]);
            if (!node)
                break;
            allowed = allowed && (!text->allow || text->allow[i]);
            int32_t value = trie->values[node];
            if (value >= 0 && (allowed || !tok->added[value].special)) {
                match->begin = begin;
                match->end = i + 1;
                match->token = &tok->added[value];
            }
        }
        if (match->token)
            return true;
    }
    return false;
}

typedef void (*segment_fn)(struct rp_tokenizer_scratch *s, const struct rp_tok_text *text,
                           bool at_start);

static void pass_gap(struct rp_tokenizer_scratch *s, const struct rp_tok_text *text, size_t begin,
                     size_t end, bool at_start, segment_fn rest) {
    if (begin >= end || s->status != RP_OK)
        return;
    struct rp_tok_text part = {text->data + begin, end - begin,
                               text->allow ? text->allow + begin : NULL};
    rest(s, &part, at_start && begin == 0);
}

/* Emits the added tokens of the set and passes on what lies between them. The order of the rules is
 * the package's: search goes on after the match itself, while rstrip moves only the gap. */
static void match_added(struct rp_tokenizer_scratch *s, const struct rp_tok_trie *trie,
                        const struct rp_tok_text *text, bool at_start, segment_fn rest) {
    struct added_match match = {.token = NULL};
    size_t gap = 0; /* where the text that is not passed on yet begins */
    size_t from = 0;
    while (trie->values && s->status == RP_OK && find_added(s->tok, trie, text, from, &match)) {
        size_t begin = match.begin, end = match.end, at;
        uint32_t code;
        int size;
        from = match.end;
        if (match.token->single_word && !is_single_word(text, begin, end))
            continue;
        if (match.token->lstrip)
            while (begin > gap && rp_tok_is_space(char_before(text->data, begin, &at)))
                begin = at;
        if (match.token->rstrip)
            while ((size = rp_utf8_decode(text->data + end, text->len - end, &code)) > 0 &&
                   rp_tok_is_space(code))
                end += (size_t)size;
        pass_gap(s, text, gap, begin, at_start, rest);
        if (s->status == RP_OK)
            rp_tok_emit(s, match.token->id);
        gap = end;
    }
    pass_gap(s, text, gap, text->len, at_start, rest);
}

static void segment_normalized(struct rp_tokenizer_scratch *s, const struct rp_tok_text *text,
                               bool at_start) {
    rp_tok_split(s, text->data, text->len, at_start);
}

static void segment_raw(struct rp_tokenizer_scratch *s, const struct rp_tok_text *text,
                        bool at_start) {
    struct rp_tok_text plain = *text, normalized;
    if (!s->tok->normalized_special)
        plain.allow = NULL; /* not read any more */
    int status = rp_tok_normalize(s->tok, s, &plain, at_start, &normalized);
    if (status != RP_OK) {
        s->status = status;
        return;
    }
    match_added(s, &s->tok->normalized_trie, &normalized, at_start, segment_normalized);
}

static void append_lossy(struct rp_buffer *out, const char *text, size_t len) {
    size_t begin = 0;
    if (rp_utf8_valid(text, len)) {
        rp_buffer_append(out, text, len);
        return;
    }
    for (size_t i = 0; i < len;) {
        int n = rp_utf8_decode(text + i, len - i, NULL);
        if (n > 0) {
            i += (size_t)n;
            continue;
        }
        rp_buffer_append(out, text + begin, i - begin);
        rp_buffer_append(out, "\xEF\xBF\xBD", 3);
        begin = ++i;
    }
    rp_buffer_append(out, text + begin, len - begin);
}

/* The spans as one valid text. A single valid span is used where it is. */
static int gather(struct rp_tokenizer_scratch *s, const struct rp_text_span *spans,
                  size_t span_count, struct rp_tok_text *out) {
    struct rp_buffer *text = &s->input.text, *allow = &s->input.allow;
    bool all_allow = true;
    size_t total = 0;
    for (size_t i = 0; i < span_count; i++) {
        all_allow = all_allow && (spans[i].allow_special || spans[i].len == 0);
        if (spans[i].len >= TEXT_BYTES_MAX - total)
            return RP_STATUS_RANGE;
        total += spans[i].len;
    }
    if (span_count == 1 && all_allow && rp_utf8_valid(spans[0].text, spans[0].len)) {
        *out = (struct rp_tok_text){spans[0].text, spans[0].len, NULL};
        return RP_OK;
    }
    rp_buffer_clear(text);
    rp_buffer_clear(allow);
    for (size_t i = 0; i < span_count; i++) {
        size_t before = text->len;
        append_lossy(text, spans[i].text, spans[i].len);
        size_t added = text->len - before;
        if (!all_allow && added && rp_buffer_reserve(allow, added)) {
            memset(allow->data + allow->len, spans[i].allow_special, added);
            allow->len += added;
        }
    }
    if (text->failed || allow->failed)
        return RP_STATUS_NO_MEMORY;
    *out = (struct rp_tok_text){text->len ? text->data : "", text->len,
                                all_allow || !text->len ? NULL : (const uint8_t *)allow->data};
    return RP_OK;
}

static void emit_all(struct rp_tokenizer_scratch *s, const int32_t *ids, size_t count) {
    for (size_t i = 0; i < count; i++)
        rp_tok_emit(s, ids[i]);
}

int rp_tokenizer_encode(const struct rp_tokenizer *tok, const struct rp_text_span *spans,
                        size_t span_count, unsigned flags, size_t limit,
                        struct rp_tokenizer_scratch *s, struct rp_token_ids *out) {
    struct rp_tok_text text;
    RP_ASSERT(s->tok == tok);
    int status = gather(s, spans, span_count, &text);
    if (status != RP_OK)
        return status;
    size_t before = out->count;
    s->out = out;
    s->out_max = limit ? before + limit : 0;
    s->status = RP_OK;
    if (flags & RP_ENCODE_ADD_SPECIAL)
        emit_all(s, tok->prefix_ids, tok->prefix_count);
    match_added(s, &tok->raw_trie, &text, true, segment_raw);
    if (flags & RP_ENCODE_ADD_SPECIAL)
        emit_all(s, tok->suffix_ids, tok->suffix_count);
    if (s->status != RP_OK)
        out->count = before;
    s->out = NULL;
    return s->status;
}

bool rp_token_ids_add(struct rp_token_ids *ids, int32_t id) {
    if (ids->count == ids->capacity) {
        size_t capacity = RP_MAX(2 * ids->capacity, (size_t)64);
        int32_t *grown = rp_realloc(ids->ids, capacity * sizeof *grown);
        if (!grown)
            return false;
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = id;
    return true;
}

void rp_token_ids_deinit(struct rp_token_ids *ids) {
    rp_free(ids->ids);
    memset(ids, 0, sizeof *ids);
}

uint32_t rp_tokenizer_vocab_size(const struct rp_tokenizer *tok) { return tok->id_limit; }

int32_t rp_tokenizer_find(const struct rp_tokenizer *tok, const char *text, size_t len) {
    return rp_tok_map_find(&tok->content_map, tok, text, len);
}

static const struct rp_tok_entry *entry_of(const struct rp_tokenizer *tok, int32_t id) {
    if (id < 0 || (uint32_t)id >= tok->id_limit || !(tok->entries[id].flags & RP_TOK_KNOWN))
        return NULL;
    return &tok->entries[id];
}

struct rp_token_bytes rp_tokenizer_token(const struct rp_tokenizer *tok, int32_t id) {
    const struct rp_tok_entry *e = entry_of(tok, id);
    if (!e)
        return (struct rp_token_bytes){.bytes = ""};
    return (struct rp_token_bytes){.bytes = rp_tok_ptr(tok, e->bytes),
                                   .len = e->bytes.len,
                                   .special = e->flags & RP_TOK_SPECIAL,
                                   .known = true};
}

const char *rp_tokenizer_content(const struct rp_tokenizer *tok, int32_t id, size_t *out_len) {
    const struct rp_tok_entry *e = entry_of(tok, id);
    *out_len = e ? e->content.len : 0;
    return e ? rp_tok_ptr(tok, e->content) : "";
}

int32_t rp_tokenizer_bos(const struct rp_tokenizer *tok) { return tok->bos_id; }
int32_t rp_tokenizer_eos(const struct rp_tokenizer *tok) { return tok->eos_id; }
