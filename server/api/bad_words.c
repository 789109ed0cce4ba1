#include "server/api/bad_words.h"

#include "base/memory.h"
#include "server/api/text_work.h"
#include "server/server_internal.h"

#include <string.h>

static bool fail(struct rp_http_error *error, int status) {
    if (status == RP_STATUS_NO_MEMORY)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    return rp_http_error_set(error, 400, "bad_words", "out_of_range",
                             "bad_words accepts words of up to %d tokens, %d tokens in total",
                             RP_BAD_WORD_MAX, RP_BAD_TOKENS_MAX);
}

/* Tokenizes the word, with or without a leading space. */
static int encode(struct rp_server *server, const char *word, size_t len, bool spaced,
                  struct rp_token_ids *out) {
    char text[RP_BAD_WORD_BYTES_MAX + 1];
    out->count = 0;
    memcpy(text + spaced, word, len);
    if (spaced)
        text[0] = ' ';
    return rp_text_encode_now(server, text, len + spaced, out);
}

/* False: too many. */
static bool add(struct rp_completion_params *params, const struct rp_token_ids *ids,
                uint32_t *tokens) {
    if (ids->count > RP_BAD_WORD_MAX || *tokens + ids->count > RP_BAD_TOKENS_MAX)
        return false;
    if (ids->count == 0)
        return true;
    *tokens += (uint32_t)ids->count;
    params->bad_tokens[params->bad_token_ints++] = (int32_t)ids->count;
    memcpy(params->bad_tokens + params->bad_token_ints, ids->ids, ids->count * sizeof ids->ids[0]);
    params->bad_token_ints += (uint32_t)ids->count;
    return true;
}

static bool known_ids(const struct rp_server *server, const struct rp_token_ids *ids) {
    for (size_t i = 0; i < ids->count; i++)
        if ((uint32_t)ids->ids[i] >= server->serving.vocab_size)
            return false; /* the model cannot produce this id */
    return true;
}

static bool add_word(struct rp_server *server, struct rp_completion_params *params,
                     const json_t *item, uint32_t *tokens, struct rp_http_error *error) {
    struct rp_token_ids plain = {.ids = NULL}, spaced = {.ids = NULL};
    const char *word = json_string_value(item);
    size_t len = json_string_length(item);
    bool fits = true;
    while (len > 1 && *word == ' ') {
        word++;
        len--;
    }
    int status = encode(server, word, len, false, &plain);
    if (status == RP_OK)
        status = encode(server, word, len, true, &spaced);
    if (status == RP_OK && known_ids(server, &plain))
        fits = add(params, &plain, tokens);
    /* The variant with a leading space counts only if it differs in the first token alone;
     * otherwise its tokens are a space followed by the plain word. */
    if (status == RP_OK && fits && known_ids(server, &spaced) && plain.count &&
        spaced.count == plain.count && spaced.ids[0] != plain.ids[0])
        fits = add(params, &spaced, tokens);
    rp_token_ids_deinit(&plain);
    rp_token_ids_deinit(&spaced);
    return status == RP_OK && fits ? true : fail(error, status == RP_OK ? RP_STATUS_RANGE : status);
}

bool rp_bad_words_read(struct rp_server *server, struct rp_completion_params *params,
                       struct rp_http_error *error) {
    uint32_t tokens = 0;
    size_t i;
    json_t *item;
    params->bad_tokens = rp_calloc(2 * RP_BAD_TOKENS_MAX, sizeof *params->bad_tokens);
    if (!params->bad_tokens)
        return fail(error, RP_STATUS_NO_MEMORY);
    json_array_foreach(params->bad_words, i, item) {
        if (!add_word(server, params, item, &tokens, error))
            return false;
    }
    return true;
}
