/* The tokenizer in the metadata of a GGUF file: keys tokenizer.ggml.*. */
#include "text/gguf.h"
#include "text/json_file.h"
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

#define KEY "tokenizer.ggml."

/* Arrays of one file, as the tables want them. */
struct arrays {
    struct rp_gguf_text *tokens, *merges;
    float *scores;
    int32_t *types;
    uint8_t *narrow_types;
    uint32_t token_count, merge_count, score_count, type_count;
    char pre[64];
};

static bool text_is(struct rp_gguf_text text, const char *wanted) {
    return text.len == strlen(wanted) && memcmp(text.text, wanted, text.len) == 0;
}

static int read_arrays(const struct rp_gguf *gguf, struct arrays *a, struct rp_error *err) {
    int status = rp_gguf_strings(gguf, KEY "tokens", &a->tokens, &a->token_count, err);
    if (status == RP_OK && !a->tokens)
        return rp_gguf_refuse(gguf, RP_STATUS_NOT_FOUND, KEY "tokens", "is missing", err);
    if (status == RP_OK)
        status = rp_gguf_strings(gguf, KEY "merges", &a->merges, &a->merge_count, err);
    if (status == RP_OK)
        status = rp_gguf_floats(gguf, KEY "scores", &a->scores, &a->score_count, err);
    if (status == RP_OK)
        status = rp_gguf_ints(gguf, KEY "token_type", &a->types, &a->type_count, err);
    if (status != RP_OK)
        return status;
    if (a->scores && a->score_count != a->token_count)
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, KEY "scores",
                              "must have an element for each token", err);
    if (!a->types)
        return RP_OK;
    if (a->type_count != a->token_count)
        return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, KEY "token_type",
                              "must have an element for each token", err);
    a->narrow_types = rp_calloc(a->type_count, 1);
    if (!a->narrow_types)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", gguf->name);
    for (uint32_t i = 0; i < a->type_count; i++) {
        if (a->types[i] < RP_TOKENIZER_NORMAL || a->types[i] > RP_TOKENIZER_BYTE)
            return rp_gguf_refuse(gguf, RP_STATUS_FORMAT, KEY "token_type",
                                  "must hold numbers from 1 to 6", err);
        a->narrow_types[i] = (uint8_t)a->types[i];
    }
    return RP_OK;
}

/* An id that a token must have; -1 when the key is absent. */
static int read_id(const struct rp_gguf *gguf, const char *key, uint32_t count, int32_t *out,
                   struct rp_error *err) {
    uint32_t id = UINT32_MAX;
    int status = rp_gguf_u32(gguf, key, &id, err);
    *out = id == UINT32_MAX ? -1 : (int32_t)RP_MIN(id, (uint32_t)INT32_MAX);
    if (status == RP_OK && id != UINT32_MAX && id >= count)
        return rp_gguf_refuse(gguf, RP_STATUS_RANGE, key, "is an id that no token has", err);
    return status;
}

static int read_model(const struct rp_gguf *gguf, struct arrays *a,
                      struct rp_tokenizer_tables *tables, struct rp_error *err) {
    struct rp_gguf_text model = {NULL, 0}, pre = {NULL, 0};
    char shown[48], safe[64], what[128];
    int status = rp_gguf_string(gguf, KEY "model", &model, err);
    if (status == RP_OK)
        status = rp_gguf_string(gguf, KEY "pre", &pre, err);
    if (status != RP_OK)
        return status;
    if (pre.text && pre.len < sizeof a->pre && !text_is(pre, "default")) {
        memcpy(a->pre, pre.text, pre.len);
        tables->pre = a->pre;
    }
    if (text_is(model, "gpt2")) {
        tables->model = RP_TOKENIZER_BYTE_BPE;
    } else if (text_is(model, "llama")) {
        tables->model = RP_TOKENIZER_SCORE_BPE;
        tables->add_space_prefix = tables->add_bos = true;
        tables->space_prefix_first_only = true;
        if (!a->scores)
            return rp_gguf_refuse(gguf, RP_STATUS_NOT_FOUND, KEY "scores", "is missing", err);
    } else {
        snprintf(shown, sizeof shown, "%.*s", (int)RP_MIN(model.len, (size_t)40),
                 model.text ? model.text : "");
        snprintf(what, sizeof what, "is \"%s\", supported: gpt2, llama",
                 rp_text_for_message(safe, sizeof safe, shown));
        return rp_gguf_refuse(gguf, RP_STATUS_UNSUPPORTED, KEY "model", what, err);
    }
    return RP_OK;
}

static int fill_tables(const struct rp_gguf *gguf, struct arrays *a,
                       struct rp_tokenizer_tables *tables, struct rp_error *err) {
    int status = read_arrays(gguf, a, err);
    if (status == RP_OK)
        status = read_model(gguf, a, tables, err);
    if (status == RP_OK)
        status = read_id(gguf, KEY "bos_token_id", a->token_count, &tables->bos_id, err);
    if (status == RP_OK)
        status = read_id(gguf, KEY "eos_token_id", a->token_count, &tables->eos_id, err);
    if (status == RP_OK)
        status = read_id(gguf, KEY "unknown_token_id", a->token_count, &tables->unk_id, err);
    if (status == RP_OK)
        status = rp_gguf_bool(gguf, KEY "add_bos_token", &tables->add_bos, err);
    if (status == RP_OK)
        status = rp_gguf_bool(gguf, KEY "add_eos_token", &tables->add_eos, err);
    if (status == RP_OK)
        status = rp_gguf_bool(gguf, KEY "add_space_prefix", &tables->add_space_prefix, err);
    if (status == RP_OK)
        status = rp_gguf_bool(gguf, KEY "remove_extra_whitespaces",
                              &tables->remove_extra_whitespaces, err);
    tables->add_bos = tables->add_bos && tables->bos_id >= 0;
    tables->add_eos = tables->add_eos && tables->eos_id >= 0;
    return status;
}

/* User-defined tokens have spaces where the pieces of SentencePiece have markers, which they are
 * compared with. */
static bool mark_spaces(struct rp_arena *arena, struct rp_tokenizer_text *token) {
    size_t marker = strlen(RP_TOK_MARKER), spaces = 0, at = 0;
    for (size_t i = 0; i < token->len; i++)
        spaces += token->text[i] == ' ';
    if (spaces == 0)
        return true;
    char *marked = rp_arena_calloc(arena, token->len + spaces * (marker - 1), 1);
    for (size_t i = 0; marked && i < token->len; i++) {
        bool space = token->text[i] == ' ';
        memcpy(marked + at, space ? RP_TOK_MARKER : &token->text[i], space ? marker : 1);
        at += space ? marker : 1;
    }
    *token = (struct rp_tokenizer_text){marked, at};
    return marked != NULL;
}

static bool mark_user_tokens(struct rp_arena *arena, const struct rp_tokenizer_tables *tables,
                             struct rp_tokenizer_text *tokens) {
    bool ok = true;
    for (uint32_t i = 0; ok && i < tables->count && tables->model == RP_TOKENIZER_SCORE_BPE; i++)
        if (tables->types && tables->types[i] == RP_TOKENIZER_USER_DEFINED)
            ok = mark_spaces(arena, &tokens[i]);
    return ok;
}

/* The same members. */
static struct rp_tokenizer_text *texts_of(const struct rp_gguf_text *from, uint32_t count) {
    struct rp_tokenizer_text *texts = rp_calloc(count, sizeof *texts);
    for (uint32_t i = 0; texts && i < count; i++)
        texts[i] = (struct rp_tokenizer_text){from[i].text, from[i].len};
    return texts;
}

int rp_tok_open_gguf(const char *path, struct rp_tokenizer **out, struct rp_error *err) {
    struct rp_gguf gguf;
    struct arrays arrays = {.tokens = NULL};
    struct rp_tokenizer_tables tables = {.bos_id = -1, .eos_id = -1, .unk_id = -1};
    *out = NULL;
    int status = rp_gguf_open(&gguf, path, err);
    if (status != RP_OK)
        return status;
    struct rp_arena arena = {0};
    status = fill_tables(&gguf, &arrays, &tables, err);
    struct rp_tokenizer_text *tokens = texts_of(arrays.tokens, arrays.token_count);
    struct rp_tokenizer_text *merges = texts_of(arrays.merges, arrays.merge_count);
    tables.count = arrays.token_count;
    tables.types = arrays.narrow_types;
    if (status == RP_OK && (!tokens || !merges || !mark_user_tokens(&arena, &tables, tokens)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", gguf.name);
    if (status == RP_OK) {
        tables.source = gguf.name;
        tables.tokens = tokens;
        tables.scores = arrays.scores;
        tables.merges = merges;
        tables.merge_count = arrays.merge_count;
        status = rp_tokenizer_build(&tables, out, err);
    }
    rp_arena_deinit(&arena);
    rp_free(tokens);
    rp_free(merges);
    rp_free(arrays.tokens);
    rp_free(arrays.merges);
    rp_free(arrays.scores);
    rp_free(arrays.types);
    rp_free(arrays.narrow_types);
    rp_gguf_close(&gguf);
    return status;
}
