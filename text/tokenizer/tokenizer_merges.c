/* The section model.merges: the rules of byte-pair encoding, and what they say about where a text
 * may be cut. */
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

/* "a b" or ["a", "b"]. Some converters wrote tokens that contain a space into the first form: then
 * the space to cut at is the first that leaves three known tokens. */
static bool parse_merge(struct rp_tok_load *load, const json_t *json, struct rp_tok_rule *ids) {
    if (json_is_array(json) && json_array_size(json) == 2) {
        const json_t *left = json_array_get(json, 0), *right = json_array_get(json, 1);
        return json_is_string(left) && json_is_string(right) &&
               find_merge(load, json_string_value(left), json_string_length(left),
                          json_string_value(right), json_string_length(right), ids);
    }
    const char *text = json_string_value(json);
    size_t len = json_string_length(json);
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

/* Learns which bytes a merge can put side by side; elsewhere a text may be cut. */
static void learn_joins(struct rp_tokenizer *tok, const struct rp_tok_rule *ids) {
    const char *text = rp_tok_ptr(tok, tok->entries[ids->merged].content);
    size_t len = tok->entries[ids->merged].content.len;
    for (size_t i = 1; i < len; i++) {
        unsigned char left = (unsigned char)text[i - 1], right = (unsigned char)text[i];
        tok->joins[left][right >> 3] |= (uint8_t)(1u << (right & 7));
        if (len - i >= 3 && memcmp(text + i, RP_TOK_MARKER, 3) == 0)
            tok->joins_marker[left] = true;
    }
    /* The content of such a token differs from the text that it decodes to. */
    const int32_t parts[2] = {ids->left, ids->right};
    for (int i = 0; i < 2; i++) {
        const struct rp_tok_entry *e = &tok->entries[parts[i]];
        bool byte = e->content.len == 6 && memcmp(rp_tok_ptr(tok, e->content), "<0x", 3) == 0;
        if (byte || parts[i] == tok->unk_id)
            tok->plain_symbols = false;
    }
}

/* Between characters that no merge brings together. */
static void set_cuts(struct rp_tokenizer *tok) {
    for (int left = 0; left < 256; left++)
        for (int right = 0; right < 256; right++)
            if ((right & 0xC0) != 0x80)
                tok->cuts[left][right >> 3] |=
                    (uint8_t)(~tok->joins[left][right >> 3] & 1u << (right & 7));
}

static int load_rules(struct rp_tok_load *load, const json_t *merges, struct rp_tok_rule *rules) {
    struct rp_tokenizer *tok = load->tok;
    const json_t *value;
    size_t i;
    json_array_foreach(merges, i, value) {
        const char *text = json_string_value(value);
        rules[i].merged = -1;
        if (text && i == 0 && strncmp(text, "#version", 8) == 0)
            continue;
        if (!parse_merge(load, value, &rules[i])) {
            if (tok->blob.failed)
                return rp_tok_no_memory(load);
            return rp_error_set(
                load->err, RP_STATUS_FORMAT,
                "%s: model.merges[%zu]%s%s does not join two tokens of the vocabulary to a third",
                load->file, i, text ? " " : "",
                text ? rp_tok_quote(text, json_string_length(value)).text : "");
        }
        /* A pair that is listed twice has its last rank, as in the package. */
        rp_tok_merges_put(&tok->merges, rules[i].left, rules[i].right, (uint32_t)i,
                          rules[i].merged);
        learn_joins(tok, &rules[i]);
    }
    return RP_OK;
}

int rp_tok_merges_load(struct rp_tok_load *load, const json_t *merges) {
    struct rp_tokenizer *tok = load->tok;
    size_t count = json_array_size(merges);
    if (!json_is_array(merges) || count > RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: model.merges must be an array of at most %d entries", load->file,
                            RP_TOKEN_ID_LIMIT);
    struct rp_tok_rule *rules = rp_calloc(count + 1, sizeof *rules);
    if (!rules || !rp_tok_merges_init(&tok->merges, &tok->arena, (uint32_t)count)) {
        rp_free(rules);
        return rp_tok_no_memory(load);
    }
    tok->plain_symbols = true;
    int status = load_rules(load, merges, rules);
    /* Unknown tokens are fused with their neighbors, so there must be none: every byte has a
     * token. */
    tok->all_bytes = tok->byte_level || (tok->byte_fallback && tok->plain_symbols);
    for (int byte = 0; byte < 256; byte++)
        tok->all_bytes = tok->all_bytes && tok->byte_ids[byte] >= 0;
    tok->cut_at_marker =
        !tok->byte_level && !tok->ignore_merges && tok->plain_symbols &&
        rp_tok_map_find(&tok->piece_map, tok, RP_TOK_MARKER, strlen(RP_TOK_MARKER)) >= 0;
    if (tok->cut_at_marker && tok->all_bytes)
        set_cuts(tok);
    if (status == RP_OK && tok->all_bytes)
        status = rp_tok_units_build(load, rules, (uint32_t)count);
    rp_free(rules);
    return status;
}
