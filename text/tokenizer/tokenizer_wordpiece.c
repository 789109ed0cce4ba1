/* WordPiece: the longest token that the word begins with, then the longest with the prefix of
 * continuations, and so on; one unknown token for a word that cannot be cut like that. */
#include "text/tokenizer/tokenizer_internal.h"

static size_t count_chars(const char *text, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

void rp_tok_wordpiece_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    const struct rp_tok_trie *trie = &tok->pieces;
    size_t before = s->out->count;
    bool known = count_chars(text, len) <= tok->word_chars_max;
    for (size_t begin = 0; begin < len && known && s->status == RP_OK;) {
        uint32_t node = begin ? tok->continuation_node : 0;
        int32_t id = -1;
        size_t end = begin;
        /* Node 0 is the root, and also what a step returns that leads nowhere. */
        bool open = begin == 0 || tok->has_continuations;
        for (size_t at = begin; at < len && open; at++) {
            node = rp_tok_trie_step(trie, node, (unsigned char)text[at]);
            open = node != 0;
            if (open && trie->values[node] >= 0) {
                id = trie->values[node];
                end = at + 1;
            }
        }
        known = id >= 0;
        if (known)
            rp_tok_emit(s, id);
        begin = end;
    }
    if (known || s->status != RP_OK)
        return;
    s->out->count = before;
    rp_tok_emit(s, tok->unk_id);
}
