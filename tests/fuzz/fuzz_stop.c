/* fuzz_stop.c - stop strings over a detokenized stream against an oracle that has the whole text.
 * Input: the number of stop strings, the strings, each ended by NUL, and token ids of two bytes
 * each. The oracle decodes every id on its own and searches by comparing at each byte. */
#include "base/memory.h"
#include "base/utf8.h"
#include "server/api/stop_match.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/tokenizer/detokenizer.h"

#include <string.h>

static const struct rp_tokenizer *tokenizer(void) {
    static struct rp_tokenizer *tok;
    struct rp_error err;
    if (!tok)
        RP_ASSERT(rp_tokenizer_open("models/demo", &tok, &err) == RP_OK);
    return tok;
}

/* The text of bytes: each maximal invalid sequence becomes U+FFFD, as in a lossy conversion. */
static void decode_lossy(const struct rp_buffer *bytes, struct rp_buffer *out) {
    for (size_t at = 0; at < bytes->len;) {
        int n = 0;
        size_t tried = 0, left = bytes->len - at;
        do
            n = rp_utf8_decode(bytes->data + at, ++tried, NULL);
        while (n < 0 && tried < left);
        if (n > 0) {
            rp_buffer_append(out, bytes->data + at, (size_t)n);
            at += (size_t)n;
            continue;
        }
        rp_buffer_puts(out, "\xef\xbf\xbd");
        /* The byte that ended the sequence begins the next one, unless it was the first. */
        at += n < 0 ? tried : tried > 1 ? tried - 1 : 1;
    }
}

/* Length of the text before the first stop string to complete; false when there is none. */
static bool find_stop(const struct rp_stop_set *set, const struct rp_buffer *text,
                      size_t *out_len) {
    for (size_t end = 1; end <= text->len; end++) {
        size_t longest = 0;
        for (uint32_t s = 0; s < set->count; s++) {
            size_t len = set->strings[s].len;
            if (len <= end && len > longest &&
                memcmp(text->data + end - len, set->strings[s].bytes, len) == 0)
                longest = len;
        }
        if (longest) {
            *out_len = end - longest;
            return true;
        }
    }
    *out_len = text->len;
    return false;
}

static bool stream(const struct rp_stop_set *set, const uint8_t *ids, size_t count,
                   struct rp_buffer *out) {
    struct rp_detokenizer detok;
    struct rp_stop_match match;
    struct rp_buffer piece = {.data = NULL};
    bool found = false;
    rp_detokenizer_init(&detok, tokenizer(), true);
    rp_stop_match_init(&match, set);
    for (size_t i = 0; i <= count && !found; i++) {
        rp_buffer_clear(&piece);
        int status = i < count
                         ? rp_detokenizer_push(&detok, ids[2 * i] | ids[2 * i + 1] << 8, &piece)
                         : rp_detokenizer_finish(&detok, &piece);
        RP_ASSERT(status == RP_OK && rp_utf8_valid(piece.data, piece.len));
        if (piece.len)
            found = rp_stop_match_push(&match, piece.data, piece.len, out);
    }
    if (!found)
        rp_stop_match_finish(&match, out);
    rp_buffer_deinit(&piece);
    return found;
}

static void check(const struct rp_stop_set *set, const uint8_t *ids, size_t count) {
    struct rp_buffer bytes = {.data = NULL}, text = {.data = NULL}, streamed = {.data = NULL};
    size_t len;
    for (size_t i = 0; i < count; i++) {
        struct rp_token_bytes token =
            rp_tokenizer_token(tokenizer(), ids[2 * i] | ids[2 * i + 1] << 8);
        if (token.known && !token.special)
            rp_buffer_append(&bytes, token.bytes, token.len);
    }
    decode_lossy(&bytes, &text);
    bool expected = find_stop(set, &text, &len);
    bool found = stream(set, ids, count, &streamed);
    RP_ASSERT(found == expected);
    RP_ASSERT_CMP(streamed.len, ==, len);
    RP_ASSERT(len == 0 || memcmp(streamed.data, text.data, len) == 0);
    rp_buffer_deinit(&bytes);
    rp_buffer_deinit(&text);
    rp_buffer_deinit(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    struct rp_stop_set set;
    memset(&set, 0, sizeof set);
    for (uint32_t left = fuzz_byte(&input) % (RP_STOP_STRINGS_MAX + 2); left > 0; left--) {
        struct fuzz_part part = fuzz_until(&input, '\0');
        bool fits =
            set.count < RP_STOP_STRINGS_MAX && part.len > 0 && part.len <= RP_STOP_BYTES_MAX;
        RP_ASSERT((rp_stop_set_add(&set, part.text, part.len) == RP_OK) == fits);
    }
    check(&set, (const uint8_t *)input.bytes, RP_MIN(input.len / 2, (size_t)1000));
    rp_stop_set_deinit(&set);
    return 0;
}
