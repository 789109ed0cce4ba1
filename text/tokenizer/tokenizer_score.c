/* SentencePiece's byte-pair encoding: the neighbors whose joint text is the piece of the highest
 * score are joined first, of equal scores the leftmost. Symbols are stretches of the text, whether
 * or not they are pieces themselves. A piece of type UNUSED takes part, and is cut again at the end
 * where its last pair was. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

struct joining {
    struct rp_tokenizer_scratch *s;
    const char *text;
    size_t len;
};

/* s->symbols[i] is the length of the symbol that begins at byte i, 0: none does. s->prev and
 * s->next are the bytes where the neighbors begin; UINT32_MAX and len at the ends. */
static void offer_pair(struct joining *j, uint32_t left, uint32_t right) {
    struct rp_tokenizer_scratch *s = j->s;
    const struct rp_tokenizer *tok = s->tok;
    if (left == UINT32_MAX || right >= j->len)
        return;
    size_t len = (size_t)s->symbols[left] + (size_t)s->symbols[right];
    if (len > tok->piece_max)
        return;
    int32_t id = rp_tok_map_find(&tok->piece_map, tok, j->text + left, len);
    if (id < 0)
        return;
    if (tok->entries[id].flags & RP_TOK_UNUSED)
        s->unused_cuts[id] = (uint32_t)s->symbols[left];
    rp_tok_heap_push(s, (struct rp_tok_heap_entry){(uint64_t)tok->ranks[id] << 32 | left,
                                                   (int32_t)len, (int32_t)right});
}

static bool start(struct joining *j) {
    struct rp_tokenizer_scratch *s = j->s;
    if (!rp_tok_reserve_symbols(s, j->len) || !rp_tok_reserve_links(s, j->len) ||
        !rp_tok_reserve_heap(s, j->len * 3))
        return false;
    if (s->tok->has_unused && !s->unused_cuts) {
        s->unused_cuts = rp_calloc(s->tok->id_limit, sizeof *s->unused_cuts);
        if (!s->unused_cuts) {
            s->status = RP_STATUS_NO_MEMORY;
            return false;
        }
    }
    uint32_t last = UINT32_MAX;
    s->heap_count = 0;
    for (uint32_t at = 0; at < j->len;) {
        int size = rp_utf8_decode(j->text + at, j->len - at, NULL);
        uint32_t char_len = size > 0 ? (uint32_t)size : 1;
        memset(s->symbols + at, 0, char_len * sizeof *s->symbols);
        s->symbols[at] = (int32_t)char_len;
        s->prev[at] = last;
        s->next[at] = at + char_len;
        last = at;
        at += char_len;
    }
    for (uint32_t at = 0; at < j->len; at = s->next[at])
        offer_pair(j, at, s->next[at]);
    return true;
}

static void join(struct joining *j) {
    struct rp_tokenizer_scratch *s = j->s;
    while (s->heap_count) {
        struct rp_tok_heap_entry top = rp_tok_heap_pop(s);
        uint32_t left = (uint32_t)top.key, right = (uint32_t)top.right;
        if (!s->symbols[left] || !s->symbols[right] ||
            s->symbols[left] + s->symbols[right] != top.left)
            continue;
        s->symbols[left] = top.left;
        s->symbols[right] = 0;
        s->next[left] = s->next[right];
        if (s->next[left] < j->len)
            s->prev[s->next[left]] = left;
        offer_pair(j, s->prev[left], left);
        offer_pair(j, left, s->next[left]);
    }
}

/* Emits the tokens of text[begin, end), one symbol. Unknown ones wait in *unknown, because a run of
 * them is one token. The cuts of unused pieces are followed with a list of what is left. */
static void emit_symbol(struct joining *j, size_t begin, size_t end, size_t *unknown) {
    struct rp_tokenizer_scratch *s = j->s;
    const struct rp_tokenizer *tok = s->tok;
    uint32_t ends[RP_TOK_PIECE_LEN_MAX + 1];
    size_t depth = 0;
    ends[depth++] = (uint32_t)end;
    while (depth && s->status == RP_OK) {
        size_t stop = ends[depth - 1];
        int32_t id = rp_tok_map_find(&tok->piece_map, tok, j->text + begin, stop - begin);
        if (id >= 0 && tok->entries[id].flags & RP_TOK_UNUSED && s->unused_cuts[id]) {
            ends[depth++] = (uint32_t)begin + s->unused_cuts[id];
            continue;
        }
        depth--;
        if (id >= 0) {
            if (*unknown < begin)
                rp_tok_emit_unknown(s, j->text + *unknown, begin - *unknown);
            if (s->status == RP_OK)
                rp_tok_emit(s, id);
            *unknown = stop;
        }
        begin = stop;
    }
}

void rp_tok_score_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    struct joining j = {s, text, len};
    size_t unknown = 0;
    if (!start(&j))
        return;
    join(&j);
    for (size_t at = 0; at < len && s->status == RP_OK; at = s->next[at])
        emit_symbol(&j, at, s->next[at], &unknown);
    if (s->status == RP_OK && unknown < len)
        rp_tok_emit_unknown(s, text + unknown, len - unknown);
}

/* Learns which bytes stand side by side in a piece: elsewhere a text may be cut. */
void rp_tok_learn_joins(struct rp_tokenizer *tok, const char *text, size_t len) {
    for (size_t i = 1; i < len; i++) {
        unsigned char left = (unsigned char)text[i - 1], right = (unsigned char)text[i];
        tok->joins[left][right >> 3] |= (uint8_t)(1u << (right & 7));
        if (len - i >= 3 && memcmp(text + i, RP_TOK_MARKER, 3) == 0)
            tok->joins_marker[left] = true;
    }
}

void rp_tok_set_cuts(struct rp_tokenizer *tok) {
    for (int left = 0; left < 256; left++)
        for (int right = 0; right < 256; right++)
            if ((right & 0xC0) != 0x80)
                tok->cuts[left][right >> 3] |=
                    (uint8_t)(~tok->joins[left][right >> 3] & 1u << (right & 7));
}
