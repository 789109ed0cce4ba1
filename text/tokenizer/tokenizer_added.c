/* The section added_tokens: the two sets of strings that are found before and after the normalizer.
 */
#include "text/tokenizer/tokenizer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Makes the token of an entry of added_tokens known; it may be in the vocabulary already. */
static int add_added_token(struct rp_tok_load *load, const char *content, size_t len, int32_t id,
                           bool special) {
    struct rp_tokenizer *tok = load->tok;
    struct rp_tok_entry *e = &tok->entries[id];
    int32_t other = rp_tok_map_find(&tok->content_map, tok, content, len);
    if (other >= 0 && other != id)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: added_tokens: \"%s\" has the id %" PRId32 " and also %" PRId32,
                            load->file, rp_tok_quote(content, len).text, id, other);
    if (other < 0 && e->flags)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: added_tokens: \"%s\" and \"%s\" have the same id %" PRId32,
                            load->file, rp_tok_quote(content, len).text,
                            rp_tok_quote(rp_tok_ptr(tok, e->content), e->content.len).text, id);
    if (other < 0) {
        int status = rp_tok_blob_add(load, content, len, &e->content);
        if (status != RP_OK)
            return status;
        e->flags = RP_TOK_KNOWN;
        (void)rp_tok_map_put(&tok->content_map, tok, id);
    }
    if (special)
        e->flags |= RP_TOK_SPECIAL;
    return RP_OK;
}

static int load_added_token(struct rp_tok_load *load, const json_t *json, size_t index) {
    struct rp_tok_added added = {.id = (int32_t)json_integer_value(json_object_get(json, "id"))};
    const json_t *value = json_object_get(json, "content");
    const char *content = json_string_value(value);
    size_t len = json_string_length(value);
    const struct {
        const char *key;
        bool *to;
    } flags[] = {{"single_word", &added.single_word},
                 {"lstrip", &added.lstrip},
                 {"rstrip", &added.rstrip},
                 {"normalized", &added.normalized},
                 {"special", &added.special}};
    char where[40];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    if (len == 0)
        return RP_OK; /* the package ignores it as well */
    if (len > RP_TOK_ADDED_LEN_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s: \"%s\" is longer than %d bytes",
                            load->file, where, rp_tok_quote(content, len).text,
                            RP_TOK_ADDED_LEN_MAX);
    for (size_t i = 0; i < RP_ARRAY_COUNT(flags); i++) {
        int status = rp_tok_json_bool(load, where, json, flags[i].key, false, flags[i].to);
        if (status != RP_OK)
            return status;
    }
    int status = add_added_token(load, content, len, added.id, added.special);
    if (status != RP_OK)
        return status;
    added.content = load->tok->entries[added.id].content;
    load->tok->added[load->tok->added_count++] = added;
    return RP_OK;
}

/* A "normalized" token is searched for in the normalized text, so it is normalized itself. */
static int normalize_added(struct rp_tok_load *load, struct rp_tokenizer_scratch *scratch) {
    struct rp_tokenizer *tok = load->tok;
    for (uint32_t i = 0; i < tok->added_count; i++) {
        struct rp_tok_added *added = &tok->added[i];
        if (!added->normalized || tok->normalizer_count == 0 ||
            tok->entries[added->id].flags & RP_TOK_USER)
            continue;
        struct rp_tok_text in = {rp_tok_ptr(tok, added->content), added->content.len, NULL}, out;
        int status = rp_tok_normalize(tok, scratch, &in, true, &out);
        if (status != RP_OK)
            return rp_error_set(load->err, status, "%s: added_tokens[%u]: cannot be normalized",
                                load->file, i);
        if (out.data == in.data)
            continue;
        status = rp_tok_blob_add(load, out.data, out.len, &added->content);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static int build_tries(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    size_t bytes[2] = {0, 0};
    for (uint32_t i = 0; i < tok->added_count; i++)
        bytes[tok->added[i].normalized] += tok->added[i].content.len;
    struct rp_tok_trie *tries[2] = {&tok->raw_trie, &tok->normalized_trie};
    for (int i = 0; i < 2; i++)
        if (bytes[i] && !rp_tok_trie_init(tries[i], &tok->arena, bytes[i]))
            return rp_tok_no_memory(load);
    for (uint32_t i = 0; i < tok->added_count; i++) {
        const struct rp_tok_added *added = &tok->added[i];
        if (added->content.len == 0)
            continue; /* normalized to nothing */
        rp_tok_trie_put(tries[added->normalized], rp_tok_ptr(tok, added->content),
                        added->content.len, (int32_t)i);
        tok->normalized_special = tok->normalized_special || (added->normalized && added->special);
    }
    return RP_OK;
}

int rp_tok_config_added(struct rp_tok_load *load, const json_t *added) {
    struct rp_tokenizer *tok = load->tok;
    const json_t *value;
    size_t i;
    tok->added = rp_arena_calloc(&tok->arena, json_array_size(added) + 1, sizeof *tok->added);
    if (!tok->added)
        return rp_tok_no_memory(load);
    json_array_foreach(added, i, value) {
        int status = load_added_token(load, value, i);
        if (status != RP_OK)
            return status;
    }
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tok);
    if (!scratch)
        return rp_tok_no_memory(load);
    int status = normalize_added(load, scratch);
    rp_tokenizer_scratch_destroy(scratch);
    return status == RP_OK ? build_tries(load) : status;
}
