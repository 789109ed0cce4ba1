/* The section "model" of a tokenizer.json for Unigram and WordPiece. */
#include "text/tokenizer/tokenizer_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A longer word costs its length times that of the longest token. Published files have 100. */
#define WORD_CHARS_MAX 1000

int rp_tok_pieces_build(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    size_t bytes = 0;
    for (uint32_t id = 0; id < tok->id_limit; id++)
        if (tok->entries[id].flags & RP_TOK_HAS_PIECE)
            bytes += tok->entries[id].piece.len;
    if (!rp_tok_trie_init(&tok->pieces, &tok->arena, bytes))
        return rp_tok_no_memory(load);
    for (uint32_t id = 0; id < tok->id_limit; id++) {
        const struct rp_tok_entry *e = &tok->entries[id];
        if (e->flags & RP_TOK_HAS_PIECE)
            rp_tok_trie_put(&tok->pieces, rp_tok_ptr(tok, e->piece), e->piece.len, (int32_t)id);
    }
    return RP_OK;
}

static int load_scored(struct rp_tok_load *load, const json_t *vocab) {
    struct rp_tokenizer *tok = load->tok;
    const json_t *value;
    size_t i;
    json_array_foreach(vocab, i, value) {
        const json_t *piece = json_array_get(value, 0), *score = json_array_get(value, 1);
        if (!json_is_string(piece) || !json_is_number(score))
            return rp_error_set(load->err, RP_STATUS_FORMAT,
                                "%s: model.vocab[%zu] must be [piece, score]", load->file, i);
        if (json_string_length(piece) > RP_TOK_PIECE_LEN_MAX)
            return rp_error_set(load->err, RP_STATUS_RANGE,
                                "%s: model.vocab[%zu]: longer than %d bytes", load->file, i,
                                RP_TOK_PIECE_LEN_MAX);
        int status = rp_tok_vocab_add(load, "model.vocab", json_string_value(piece),
                                      json_string_length(piece), (int32_t)i, RP_TOK_HAS_PIECE);
        if (status != RP_OK)
            return status;
        tok->scores[i] = json_number_value(score);
        tok->min_score = RP_MIN(tok->min_score, tok->scores[i]);
    }
    return RP_OK;
}

int rp_tok_load_unigram(struct rp_tok_load *load, const json_t *model) {
    struct rp_tokenizer *tok = load->tok;
    const json_t *vocab = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
    json_int_t unk_id = json_integer_value(unk);
    tok->scores = rp_arena_calloc(&tok->arena, (size_t)tok->id_limit + 1, sizeof *tok->scores);
    if (!tok->scores)
        return rp_tok_no_memory(load);
    tok->min_score = DBL_MAX;
    int status =
        rp_tok_json_bool(load, "model", model, "byte_fallback", false, &tok->byte_fallback);
    if (status == RP_OK)
        status = load_scored(load, vocab);
    if (status == RP_OK &&
        (!json_is_integer(unk) || unk_id < 0 || (size_t)unk_id >= json_array_size(vocab)))
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: model.unk_id must be the place of a token in model.vocab: texts "
                            "with other characters have no ids without it",
                            load->file);
    tok->unk_id = (int32_t)unk_id;
    if (status == RP_OK)
        status = rp_tok_vocab_finish(load);
    return status == RP_OK ? rp_tok_pieces_build(load) : status;
}

void rp_tok_continuations(struct rp_tokenizer *tok, const char *prefix, size_t len) {
    uint32_t node = 0;
    tok->has_continuations = true;
    for (size_t i = 0; i < len && tok->has_continuations; i++) {
        node = rp_tok_trie_step(&tok->pieces, node, (unsigned char)prefix[i]);
        tok->has_continuations = node != 0;
    }
    tok->continuation_node = node;
}

int rp_tok_load_wordpiece(struct rp_tok_load *load, const json_t *model) {
    struct rp_tokenizer *tok = load->tok;
    const char *unk, *prefix = "##";
    size_t unk_len, prefix_len = 2;
    const json_t *limit = json_object_get(model, "max_input_chars_per_word");
    json_int_t chars = limit ? json_integer_value(limit) : 100;
    int status = rp_tok_json_string(load, "model", model, "unk_token", &unk, &unk_len);
    if (status == RP_OK && json_object_get(model, "continuing_subword_prefix"))
        status = rp_tok_json_string(load, "model", model, "continuing_subword_prefix", &prefix,
                                    &prefix_len);
    if (status != RP_OK)
        return status;
    if (chars < 1 || chars > WORD_CHARS_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE,
                            "%s: model.max_input_chars_per_word must be from 1 to %d", load->file,
                            WORD_CHARS_MAX);
    tok->word_chars_max = (uint32_t)chars;
    tok->unk_id = rp_tok_map_find(&tok->content_map, tok, unk, unk_len);
    if (tok->unk_id < 0)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: model.unk_token \"%s\" is not in model.vocab", load->file,
                            rp_tok_quote(unk, unk_len).text);
    status = rp_tok_pieces_build(load);
    if (status == RP_OK)
        rp_tok_continuations(tok, prefix, prefix_len);
    return status;
}
