/* The section model.merges: the rules of byte-pair encoding, and what they say about where a text
 * may be cut. */
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

static bool find_merge(struct rp_tok_load *load, const char *left, size_t left_len,
                       const char *right, size_t right_len, struct rp_tok_rule *ids) {
    struct rp_tokenizer *tok = load->tok;
    struct rp_buffer *blob = &tok->blob;
    size_t before = blob->len;
    ids->left = rp_tok_map_find(&tok->content_map, tok, left, left_len);
    ids->right = rp_tok_map_find(&tok->content_map, tok, right, right_len);
    if (ids->left < 0 || ids->right < 0 || left_len == 0 || right_len == 0)
        return false;
    rp_buffer_append(blob, left, left_len); /* the end of the blob serves as working space */
    rp_buffer_append(blob, right, right_len);
    if (blob->failed)
        return false;
    ids->merged =
        rp_tok_map_find(&tok->content_map, tok, blob->data + before, left_len + right_len);
    blob->len = before;
    return ids->merged >= 0;
}

/* "a b". Some converters wrote tokens that contain a space into this form: then the space to cut at
 * is the first that leaves three known tokens. */
static bool parse_text(struct rp_tok_load *load, const char *text, size_t len,
                       struct rp_tok_rule *ids) {
    /* A hostile string of spaces must not cost len^2. */
    int tries = 64;
    for (const char *at = text; text && tries-- > 0; at++) {
        at = memchr(at, ' ', len - (size_t)(at - text));
        if (!at)
            return false;
        size_t left_len = (size_t)(at - text);
        if (find_merge(load, text, left_len, at + 1, len - left_len - 1, ids))
            return true;
    }
    return false;
}

/* "a b" or ["a", "b"]. */
static bool parse_merge(struct rp_tok_load *load, const json_t *json, struct rp_tok_rule *ids) {
    if (json_is_array(json) && json_array_size(json) == 2) {
        const json_t *left = json_array_get(json, 0), *right = json_array_get(json, 1);
        return json_is_string(left) && json_is_string(right) &&
               find_merge(load, json_string_value(left), json_string_length(left),
                          json_string_value(right), json_string_length(right), ids);
    }
    return parse_text(load, json_string_value(json), json_string_length(json), ids);
}

/* Learns which bytes a merge can put side by side; elsewhere a text may be cut. */
static void learn_joins(struct rp_tokenizer *tok, const struct rp_tok_rule *ids) {
    struct rp_tok_slice merged = tok->entries[ids->merged].content;
    rp_tok_learn_joins(tok, rp_tok_ptr(tok, merged), merged.len);
    /* The content of such a token differs from the text that it decodes to. */
    const int32_t parts[2] = {ids->left, ids->right};
    for (int i = 0; i < 2; i++) {
        const struct rp_tok_entry *e = &tok->entries[parts[i]];
        bool byte = e->content.len == 6 && memcmp(rp_tok_ptr(tok, e->content), "<0x", 3) == 0;
        if (byte || parts[i] == tok->unk_id)
            tok->plain_symbols = false;
    }
}

static int refuse(struct rp_tok_load *load, size_t at, const char *text, size_t len) {
    if (load->tok->blob.failed)
        return rp_tok_no_memory(load);
    return rp_error_set(
        load->err, RP_STATUS_FORMAT,
        "%s: model.merges[%zu]%s%s does not join two tokens of the vocabulary to a third",
        load->file, at, text ? " " : "", text ? rp_tok_quote(text, len).text : "");
}

static void add_rule(struct rp_tok_load *load, size_t at, const struct rp_tok_rule *rule) {
    /* A pair that is listed twice has its last rank, as in the package. */
    rp_tok_merges_put(&load->tok->merges, rule->left, rule->right, (uint32_t)at, rule->merged);
    learn_joins(load->tok, rule);
}

static int load_rules(struct rp_tok_load *load, const json_t *merges, struct rp_tok_rule *rules) {
    const json_t *value;
    size_t i;
    json_array_foreach(merges, i, value) {
        const char *text = json_string_value(value);
        rules[i].merged = -1;
        if (text && i == 0 && strncmp(text, "#version", 8) == 0)
            continue;
        if (!parse_merge(load, value, &rules[i]))
            return refuse(load, i, text, json_string_length(value));
        add_rule(load, i, &rules[i]);
    }
    return RP_OK;
}

static struct rp_tok_rule *begin(struct rp_tok_load *load, size_t count) {
    struct rp_tok_rule *rules = rp_calloc(count + 1, sizeof *rules);
    load->tok->plain_symbols = true;
    if (rules && rp_tok_merges_init(&load->tok->merges, &load->tok->arena, (uint32_t)count))
        return rules;
    rp_free(rules);
    (void)rp_tok_no_memory(load);
    return NULL;
}

/* Frees the rules. */
static int finish(struct rp_tok_load *load, struct rp_tok_rule *rules, size_t count, int status) {
    struct rp_tokenizer *tok = load->tok;
    /* Unknown tokens are fused with their neighbors, so there must be none: every byte has a
     * token. */
    tok->all_bytes = tok->byte_level || (tok->byte_fallback && tok->plain_symbols);
    for (int byte = 0; byte < 256; byte++)
        tok->all_bytes = tok->all_bytes && tok->byte_ids[byte] >= 0;
    tok->cut_at_marker =
        !tok->byte_level && !tok->ignore_merges && tok->plain_symbols &&
        rp_tok_map_find(&tok->piece_map, tok, RP_TOK_MARKER, strlen(RP_TOK_MARKER)) >= 0;
    if (tok->cut_at_marker && tok->all_bytes)
        rp_tok_set_cuts(tok);
    if (status == RP_OK && tok->all_bytes)
        status = rp_tok_units_build(load, rules, (uint32_t)count);
    rp_free(rules);
    return status;
}

int rp_tok_merges_load(struct rp_tok_load *load, const json_t *merges) {
    size_t count = json_array_size(merges);
    if (!json_is_array(merges) || count > RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: model.merges must be an array of at most %d entries", load->file,
                            RP_TOKEN_ID_LIMIT);
    struct rp_tok_rule *rules = begin(load, count);
    return rules ? finish(load, rules, count, load_rules(load, merges, rules))
                 : RP_STATUS_NO_MEMORY;
}

int rp_tok_merges_build(struct rp_tok_load *load, const struct rp_tokenizer_text *merges,
                        size_t count) {
    struct rp_tok_rule *rules = begin(load, count);
    int status = rules ? RP_OK : RP_STATUS_NO_MEMORY;
    for (size_t i = 0; i < count && status == RP_OK; i++) {
        if (parse_text(load, merges[i].text, merges[i].len, &rules[i]))
            add_rule(load, i, &rules[i]);
        else
            status = refuse(load, i, merges[i].text, merges[i].len);
    }
    return rules ? finish(load, rules, count, status) : status;
}
