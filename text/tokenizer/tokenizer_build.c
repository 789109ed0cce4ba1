/* Tokenizers from tables in memory. The vocabulary comes from the tables; normalizer, pre-tokenizer
 * and decoder are written as the sections of a tokenizer.json that mean the same. */
#include "text/tokenizer/tokenizer_build.h"

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How texts are cut, by the name of the model's file format for it: up to three of our scanners
 * (tokenizer_scan.c), the first applied first. */
static const struct pre {
    const char *name, *scanners[3];
    bool digits;        /* each digit alone, before the scanners */
    bool ignore_merges; /* a word that is a token is not merged */
} pres[] = {
    {"gpt-2", {"gpt2"}, false, false},
    {"phi-2", {"gpt2"}, false, false},
    {"olmo", {"gpt2"}, false, false},
    {"mpt", {"gpt2"}, false, false},
    {"llama-bpe", {"llama3"}, false, true},
    {"llama3", {"llama3"}, false, true},
    {"llama-v3", {"llama3"}, false, true},
    {"falcon3", {"llama3"}, false, true},
    {"lfm2", {"llama3"}, false, true},
    {"dbrx", {"llama3"}, false, false},
    {"smaug-bpe", {"llama3"}, false, false},
    {"glm4", {"llama3"}, false, false},
    {"qwen2", {"qwen2"}, false, false},
    {"deepseek-r1-qwen", {"qwen2"}, false, false},
    {"stablelm2", {"qwen2"}, false, false},
    {"qwen35", {"qwen3.5"}, false, false},
    {"gpt-4o", {"o200k"}, false, false},
    {"llama4", {"o200k"}, false, false},
    {"tekken", {"tekken"}, false, true},
    {"deepseek-v3", {"numbers", "han", "deepseek"}, false, false},
    {"smollm", {"gpt2"}, true, false},
    {"starcoder", {"gpt2"}, true, false},
    {"refact", {"gpt2"}, true, false},
    {"command-r", {"gpt2"}, true, false},
};

static int no_json(struct rp_tok_load *load, json_t *json) {
    return json ? RP_OK : rp_tok_no_memory(load);
}

static uint8_t type_of(const struct rp_tokenizer_tables *t, uint32_t id) {
    return t->types ? t->types[id] : RP_TOKENIZER_NORMAL;
}

static bool by_scores(const struct rp_tokenizer_tables *t) {
    return t->model == RP_TOKENIZER_SCORE_BPE || t->model == RP_TOKENIZER_UNIGRAM;
}

static int set_pre(struct rp_tok_load *load, const char *name) {
    const struct pre *pre = NULL;
    json_t *steps = json_array();
    for (size_t i = 0; i < RP_ARRAY_COUNT(pres); i++)
        if (strcmp(pres[i].name, name) == 0)
            pre = &pres[i];
    if (!pre) {
        json_decref(steps);
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: the pre-tokenizer \"%s\" is not supported", load->file,
                            rp_tok_quote(name, strlen(name)).text);
    }
    if (pre->digits)
        (void)json_array_append_new(
            steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    for (size_t i = 0; i < 3 && pre->scanners[i]; i++)
        for (size_t j = 0; j < RP_TOK_SCANNERS; j++)
            if (strcmp(rp_tok_scanners[j].name, pre->scanners[i]) == 0)
                (void)json_array_append_new(
                    steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern", "Regex",
                                     rp_tok_scanners[j].pattern, "behavior", "Isolated"));
    (void)json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                                 "add_prefix_space", 0, "use_regex", 0));
    json_t *section = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
    int status = no_json(load, section);
    if (status == RP_OK)
        status = rp_tok_config_pre_tokenizer(load, section);
    json_decref(section);
    load->tok->ignore_merges = pre->ignore_merges;
    return status;
}

/* A section that has only a type and one text. */
static int set_section(struct rp_tok_load *load, const char *type, const char *key,
                       const char *value, int (*fn)(struct rp_tok_load *, const json_t *)) {
    json_t *section = json_pack("{s:s, s:s}", "type", type, key, value);
    int status = no_json(load, section);
    if (status == RP_OK)
        status = fn(load, section);
    json_decref(section);
    return status;
}

static int set_pipeline(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    struct rp_tokenizer *tok = load->tok;
    int status;
    if (t->model == RP_TOKENIZER_BYTE_BPE) {
        status = set_pre(load, t->pre ? t->pre : "gpt-2");
        return status != RP_OK ? status
                               : set_section(load, "ByteLevel", "", "", rp_tok_config_decoder);
    }
    if (t->model == RP_TOKENIZER_WORDPIECE) {
        status = set_section(load, "BertNormalizer", "", "", rp_tok_config_normalizer);
        if (status == RP_OK)
            status = set_section(load, "BertPreTokenizer", "", "", rp_tok_config_pre_tokenizer);
        return status != RP_OK
                   ? status
                   : set_section(load, "WordPiece", "prefix", "##", rp_tok_config_decoder);
    }
    struct rp_tok_normalizer *n = &tok->normalizers[tok->normalizer_count++];
    n->kind = RP_TOK_SENTENCEPIECE;
    n->prefix = t->add_space_prefix;
    n->prefix_first_only = t->space_prefix_first_only;
    n->trim = t->remove_extra_whitespaces;
    tok->decoder =
        (struct rp_tok_decoder){.kind = RP_TOK_DECODER_SEQUENCE,
                                .replaces = {{RP_TOK_MARKER, " ", strlen(RP_TOK_MARKER), 1}},
                                .replace_count = 1,
                                .byte_fallback = tok->byte_fallback,
                                .fused = true,
                                .strip_char = ' ',
                                .strip_left = n->trim ? UINT32_MAX : n->prefix,
                                .strip_markers = true};
    return t->charsmap_len ? rp_tok_charsmap_open(load, "normalizer", t->charsmap, t->charsmap_len,
                                                  &n->charsmap)
                           : RP_OK;
}

/* GGUF's spelling of WordPiece: "▁word", "ing" and "[CLS]" become "word", "##ing" and "[CLS]". */
static int add_marked(struct rp_tok_load *load, const struct rp_tokenizer_text *token, int32_t id) {
    size_t marker = strlen(RP_TOK_MARKER);
    struct rp_buffer text = {.data = NULL};
    bool word = token->len > marker && memcmp(token->text, RP_TOK_MARKER, marker) == 0;
    bool name = token->len > 1 && token->text[0] == '[' && token->text[token->len - 1] == ']';
    if (!word && !name)
        rp_buffer_puts(&text, "##");
    rp_buffer_append(&text, token->text + (word ? marker : 0), token->len - (word ? marker : 0));
    int status = text.failed
                     ? rp_tok_no_memory(load)
                     : rp_tok_vocab_add(load, "tokens", text.data, text.len, id, RP_TOK_HAS_PIECE);
    rp_buffer_deinit(&text);
    return status;
}

static int add_token(struct rp_tok_load *load, const struct rp_tokenizer_tables *t, uint32_t id) {
    const struct rp_tokenizer_text *token = &t->tokens[id];
    struct rp_tokenizer *tok = load->tok;
    uint8_t type = type_of(t, id);
    uint32_t flags = 0;
    if (type < RP_TOKENIZER_NORMAL || type > RP_TOKENIZER_BYTE)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: token %" PRIu32 " has the type %d",
                            load->file, id, type);
    if (!rp_utf8_valid(token->text, token->len))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: token %" PRIu32 " is not UTF-8",
                            load->file, id);
    if (t->model == RP_TOKENIZER_WORDPIECE && t->marked_words)
        return add_marked(load, token, (int32_t)id);
    if (type == RP_TOKENIZER_NORMAL || t->model == RP_TOKENIZER_WORDPIECE)
        flags = RP_TOK_HAS_PIECE;
    if (by_scores(t) && type == RP_TOKENIZER_USER_DEFINED)
        flags = RP_TOK_HAS_PIECE | RP_TOK_USER;
    if (by_scores(t) && type == RP_TOKENIZER_UNUSED)
        flags = RP_TOK_HAS_PIECE | RP_TOK_UNUSED;
    tok->has_unused = tok->has_unused || flags & RP_TOK_UNUSED;
    if (by_scores(t) && flags && token->len > RP_TOK_PIECE_LEN_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE,
                            "%s: token %" PRIu32 " is longer than %d bytes", load->file, id,
                            RP_TOK_PIECE_LEN_MAX);
    if (by_scores(t) && flags && !(flags & RP_TOK_UNUSED) &&
        rp_tok_map_find(&tok->piece_map, tok, token->text, token->len) >= 0)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: token %" PRIu32 " \"%s\" is there twice", load->file, id,
                            rp_tok_quote(token->text, token->len).text);
    return rp_tok_vocab_add(load, "tokens", token->text, token->len, (int32_t)id, flags);
}

/* The ids of `more` may lie behind the tables. */
static int size_tables(struct rp_tok_load *load, const struct rp_tokenizer_tables *t,
                       const json_t *more) {
    uint32_t limit = t->count;
    const json_t *value;
    size_t i;
    json_array_foreach(more, i, value) {
        json_int_t id = json_integer_value(json_object_get(value, "id"));
        if (id < 0 || id >= (json_int_t)t->count + 65536)
            return rp_error_set(load->err, RP_STATUS_RANGE,
                                "%s: an added token has the id %" PRIdMAX, load->file,
                                (intmax_t)id);
        limit = RP_MAX(limit, (uint32_t)id + 1);
    }
    return rp_tok_tables_init(load, limit, (size_t)t->count + json_array_size(more));
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Equal scores have equal ranks. */
static int set_ranks(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    struct rp_tokenizer *tok = load->tok;
    float *sorted = rp_calloc((size_t)t->count + 1, sizeof *sorted);
    tok->ranks = rp_arena_calloc(&tok->arena, (size_t)tok->id_limit + 1, sizeof *tok->ranks);
    if (!sorted || !tok->ranks) {
        rp_free(sorted);
        return rp_tok_no_memory(load);
    }
    memcpy(sorted, t->scores, t->count * sizeof *sorted);
    qsort(sorted, t->count, sizeof *sorted, descending);
    for (uint32_t id = 0; id < t->count; id++) {
        uint32_t low = 0, high = t->count; /* the first that is not above */
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (sorted[middle] > t->scores[id])
                low = middle + 1;
            else
                high = middle;
        }
        tok->ranks[id] = low;
    }
    rp_free(sorted);
    return RP_OK;
}

static int set_scores(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    struct rp_tokenizer *tok = load->tok;
    tok->scores = rp_arena_calloc(&tok->arena, (size_t)tok->id_limit + 1, sizeof *tok->scores);
    if (!tok->scores)
        return rp_tok_no_memory(load);
    /* SentencePiece's initial values, of floats. */
    tok->min_score = (double)FLT_MAX;
    tok->max_score = (double)FLT_MIN;
    tok->float_scores = true;
    for (uint32_t id = 0; id < t->count; id++) {
        if (!isfinite(t->scores[id]))
            return rp_error_set(load->err, RP_STATUS_FORMAT,
                                "%s: the score of token %" PRIu32 " is not a number", load->file,
                                id);
        tok->scores[id] = (double)t->scores[id];
        if (type_of(t, id) != RP_TOKENIZER_NORMAL)
            continue;
        tok->min_score = RP_MIN(tok->min_score, tok->scores[id]);
        tok->max_score = RP_MAX(tok->max_score, tok->scores[id]);
    }
    return t->model == RP_TOKENIZER_UNIGRAM ? rp_tok_pieces_build(load) : set_ranks(load, t);
}

/* Where a text may be cut: no piece has those two bytes side by side. */
static void learn_cuts(struct rp_tokenizer *tok) {
    tok->plain_symbols = true;
    tok->all_bytes = tok->byte_fallback;
    for (int byte = 0; byte < 256; byte++)
        tok->all_bytes = tok->all_bytes && tok->byte_ids[byte] >= 0;
    for (uint32_t id = 0; id < tok->id_limit; id++)
        if (tok->entries[id].flags & RP_TOK_HAS_PIECE)
            rp_tok_learn_joins(tok, rp_tok_ptr(tok, tok->entries[id].piece),
                               tok->entries[id].piece.len);
    tok->cut_at_marker =
        rp_tok_map_find(&tok->piece_map, tok, RP_TOK_MARKER, strlen(RP_TOK_MARKER)) >= 0;
    if (tok->cut_at_marker && tok->all_bytes)
        rp_tok_set_cuts(tok);
}

static int fill_model(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    struct rp_tokenizer *tok = load->tok;
    int status = RP_OK;
    for (uint32_t id = 0; id < t->count && status == RP_OK; id++)
        status = add_token(load, t, id);
    if (status == RP_OK)
        status = rp_tok_vocab_finish(load);
    if (status != RP_OK)
        return status;
    if (t->model == RP_TOKENIZER_BYTE_BPE)
        return rp_tok_merges_build(load, t->merges, t->merge_count);
    if (t->model == RP_TOKENIZER_WORDPIECE) {
        tok->word_chars_max = 100;
        status = rp_tok_pieces_build(load);
        rp_tok_continuations(tok, "##", 2);
        return status;
    }
    status = set_scores(load, t);
    if (status == RP_OK && t->model == RP_TOKENIZER_SCORE_BPE)
        learn_cuts(tok);
    return status;
}

/* SentencePiece's symbols, which its normalizer leaves alone. */
static int build_user_trie(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    size_t bytes = 0;
    for (uint32_t id = 0; id < tok->id_limit; id++)
        bytes += tok->entries[id].flags & RP_TOK_USER ? tok->entries[id].content.len : 0;
    if (bytes && !rp_tok_trie_init(&tok->user_trie, &tok->arena, bytes))
        return rp_tok_no_memory(load);
    for (uint32_t id = 0; id < tok->id_limit && bytes; id++)
        if (tok->entries[id].flags & RP_TOK_USER)
            rp_tok_trie_put(&tok->user_trie, rp_tok_ptr(tok, tok->entries[id].content),
                            tok->entries[id].content.len, (int32_t)id);
    return RP_OK;
}

/* Control tokens, and the user's: those of SCORE_BPE are cut out of the normalized text, Unigram's
 * have no part in this. What `more` says of a token holds. */
static int set_added(struct rp_tok_load *load, const struct rp_tokenizer_tables *t, json_t *more) {
    struct rp_tokenizer *tok = load->tok;
    json_t *all = json_array();
    int status = no_json(load, all);
    for (uint32_t id = 0; id < t->count && status == RP_OK; id++) {
        uint8_t type = type_of(t, id);
        bool special = type == RP_TOKENIZER_CONTROL || type == RP_TOKENIZER_UNKNOWN;
        if (!special && (type != RP_TOKENIZER_USER_DEFINED || t->model == RP_TOKENIZER_UNIGRAM))
            continue;
        struct rp_tok_slice content = tok->entries[id].content;
        json_t *entry = json_pack("{s:i, s:s%, s:b, s:b}", "id", (int)id, "content",
                                  rp_tok_ptr(tok, content), (size_t)content.len, "special", special,
                                  "normalized", !special && t->model == RP_TOKENIZER_SCORE_BPE);
        if (json_array_append_new(all, entry) != 0)
            status = rp_tok_no_memory(load);
    }
    if (status == RP_OK && more && json_array_extend(all, more) != 0)
        status = rp_tok_no_memory(load);
    if (status == RP_OK)
        status = rp_tok_config_added(load, all);
    json_decref(all);
    return status;
}

static int set_special(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    struct rp_tokenizer *tok = load->tok;
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"BOS", t->bos_id}, {"EOS", t->eos_id}, {"unknown", t->unk_id}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(ids); i++)
        if (ids[i].id < -1 || ids[i].id >= (int32_t)t->count)
            return rp_error_set(load->err, RP_STATUS_RANGE,
                                "%s: the %s token has the id %" PRId32
                                ", but there are only %" PRIu32 " tokens",
                                load->file, ids[i].name, ids[i].id, t->count);
    if (t->unk_id < 0 && t->model != RP_TOKENIZER_BYTE_BPE)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: there is no unknown token",
                            load->file);
    tok->bos_id = t->bos_id;
    tok->eos_id = t->eos_id;
    tok->unk_id = t->unk_id;
    tok->prefix_ids = rp_arena_calloc(&tok->arena, 1, sizeof(int32_t));
    tok->suffix_ids = rp_arena_calloc(&tok->arena, 1, sizeof(int32_t));
    if (!tok->prefix_ids || !tok->suffix_ids)
        return rp_tok_no_memory(load);
    tok->prefix_ids[0] = t->bos_id;
    tok->suffix_ids[0] = t->eos_id;
    tok->prefix_count = t->add_bos && t->bos_id >= 0;
    tok->suffix_count = t->add_eos && t->eos_id >= 0;
    return RP_OK;
}

static int check_tables(struct rp_tok_load *load, const struct rp_tokenizer_tables *t) {
    if (t->count == 0 || t->count > RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %" PRIu32 " tokens: 1 to %d can be",
                            load->file, t->count, RP_TOKEN_ID_LIMIT);
    if (by_scores(t) && !t->scores)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: the tokens have no scores",
                            load->file);
    if (t->merge_count > RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: more than %d merges", load->file,
                            RP_TOKEN_ID_LIMIT);
    return RP_OK;
}

int rp_tok_fill(struct rp_tok_load *load, const struct rp_tokenizer_tables *t, json_t *more) {
    static const enum rp_tok_model models[] = {RP_TOK_BPE, RP_TOK_SCORE, RP_TOK_UNIGRAM,
                                               RP_TOK_WORDPIECE};
    struct rp_tokenizer *tok = load->tok;
    int status = check_tables(load, t);
    if (status != RP_OK)
        return status;
    tok->model = models[t->model];
    rp_tok_classes_fill(tok->classes, tok->moves);
    for (uint32_t id = 0; id < t->count && by_scores(t); id++)
        tok->byte_fallback = tok->byte_fallback || type_of(t, id) == RP_TOKENIZER_BYTE;
    status = set_special(load, t);
    if (status == RP_OK)
        status = set_pipeline(load, t);
    if (status == RP_OK)
        status = size_tables(load, t, more);
    if (status == RP_OK)
        status = fill_model(load, t);
    if (status == RP_OK)
        status = build_user_trie(load);
    if (status == RP_OK)
        status = set_added(load, t, more);
    return status == RP_OK ? rp_tok_decoder_apply(load) : status;
}

int rp_tokenizer_build(const struct rp_tokenizer_tables *tables, struct rp_tokenizer **out,
                       struct rp_error *err) {
    *out = NULL;
    struct rp_tok_load load = {.tok = rp_tok_create(), .file = tables->source, .err = err};
    if (!load.tok)
        return rp_tok_no_memory(&load);
    int status = rp_tok_fill(&load, tables, NULL);
    if (status != RP_OK)
        rp_tokenizer_close(load.tok);
    else
        *out = load.tok;
    return status;
}
