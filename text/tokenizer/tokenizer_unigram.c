/* Unigram: the segmentation with the highest sum of scores, by Viterbi over the ends of pieces. The
 * sums are doubles as in the package tokenizers, or floats as in SentencePiece, and a tie keeps the
 * piece that was found first, so that ids are equal. Each position walks the trie at most as deep
 * as the longest piece. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

/* What a character without a piece costs more than the worst piece. */
#define UNKNOWN_PENALTY 10.0

struct search {
    const struct rp_tokenizer *tok;
    struct rp_tok_best *ends; /* the best path to each position */
};

static void offer(struct search *s, size_t begin, size_t end, double score, int32_t id) {
    struct rp_tok_best *to = &s->ends[end];
    if (s->tok->float_scores)
        score = (double)(float)score;
    if (to->id >= 0 && !(score > to->score))
        return;
    to->score = score;
    to->begin = (uint32_t)begin;
    to->id = id;
}

static void walk(struct search *s, const char *text, size_t len, size_t begin, size_t char_len) {
    const struct rp_tokenizer *tok = s->tok;
    double before = s->ends[begin].score;
    bool single = false;
    uint32_t node = 0;
    for (size_t end = begin; end < len;) {
        node = rp_tok_trie_step(&tok->pieces, node, (unsigned char)text[end++]);
        if (!node)
            break;
        int32_t id = tok->pieces.values[node];
        if (id < 0 || tok->entries[id].flags & RP_TOK_UNUSED)
            continue;
        double score = tok->scores[id];
        /* SentencePiece's bonus for symbols that the user has defined. */
        if (tok->entries[id].flags & RP_TOK_USER)
            score = (double)((float)(end - begin) * (float)tok->max_score) - 0.1;
        offer(s, begin, end, score + before, id);
        single = single || end - begin == char_len;
    }
    if (single)
        return;
    double score = tok->min_score - UNKNOWN_PENALTY;
    if (tok->float_scores)
        score = (double)(float)score;
    offer(s, begin, begin + char_len, score + before, tok->unk_id);
}

/* A run of unknown characters: their bytes if all have tokens, else one unknown token. */
void rp_tok_emit_unknown(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    const struct rp_tokenizer *tok = s->tok;
    bool all = tok->byte_fallback;
    for (size_t i = 0; i < len && all; i++)
        all = tok->byte_ids[(unsigned char)text[i]] >= 0;
    if (!all) {
        rp_tok_emit(s, tok->unk_id);
        return;
    }
    for (size_t i = 0; i < len; i++)
        rp_tok_emit(s, tok->byte_ids[(unsigned char)text[i]]);
}

static bool reserve(struct rp_tokenizer_scratch *s, size_t count) {
    if (count <= s->best_capacity)
        return true;
    size_t capacity = RP_MAX(count, s->best_capacity * 2);
    struct rp_tok_best *grown =
        capacity > SIZE_MAX / sizeof *grown ? NULL : rp_realloc(s->best, capacity * sizeof *grown);
    if (!grown) {
        s->status = RP_STATUS_NO_MEMORY;
        return false;
    }
    s->best = grown;
    s->best_capacity = capacity;
    return true;
}

/* Turns the chain from the end round: best[position].next is where the piece ends. */
static void emit_path(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    struct rp_tok_best *best = s->best;
    for (size_t end = len; end > 0; end = best[end].begin)
        best[best[end].begin].next = (uint32_t)end;
    for (size_t at = 0; at < len && s->status == RP_OK;) {
        size_t end = best[at].next;
        if (best[end].id != s->tok->unk_id) {
            rp_tok_emit(s, best[end].id);
        } else {
            while (end < len && best[best[end].next].id == s->tok->unk_id)
                end = best[end].next;
            /* The package looks the run up again: a text may spell the unknown token. */
            int32_t id = s->tok->float_scores
                             ? -1
                             : rp_tok_map_find(&s->tok->piece_map, s->tok, text + at, end - at);
            if (id >= 0)
                rp_tok_emit(s, id);
            else
                rp_tok_emit_unknown(s, text + at, end - at);
        }
        at = end;
    }
}

void rp_tok_unigram_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    if (!reserve(s, len + 1))
        return;
    for (size_t i = 0; i <= len; i++)
        s->best[i] = (struct rp_tok_best){.id = -1};
    struct search search = {s->tok, s->best};
    for (size_t at = 0; at < len;) {
        int size = rp_utf8_decode(text + at, len - at, NULL);
        size_t char_len = size > 0 ? (size_t)size : 1;
        walk(&search, text, len, at, char_len);
        at += char_len;
    }
    emit_path(s, text, len);
}
