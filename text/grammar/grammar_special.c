/* grammar_special.c - special tokens by their text, and what free text needs of the tokens. */
#include "base/memory.h"
#include "text/grammar/grammar_internal.h"
#include "text/grammar/grammar_trie.h"

#include <stdlib.h>
#include <string.h>

void trie_special_code(uint32_t token, char out[SPECIAL_BYTES]) {
    out[0] = (char)SPECIAL_MARK;
    out[1] = (char)(token >> 16);
    out[2] = (char)(token >> 8);
    out[3] = (char)token;
}

static int compare_specials(const void *a, const void *b) {
    const struct trie_special *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, RP_MIN(x->len, y->len));
    if (order != 0)
        return order;
    if (x->len != y->len)
        return (x->len > y->len) - (x->len < y->len);
    return (x->token > y->token) - (x->token < y->token);
}

int trie_make_specials(struct rp_token_trie *trie, const struct rp_trie_token *tokens) {
    size_t bytes = 0, count = 0, at = 0;
    for (uint32_t i = 0; i < trie->token_count; i++)
        if (tokens[i].special && trie->tokens[i].len > 0)
            bytes += tokens[i].len, count++;
    trie->specials = rp_alloc(count * sizeof *trie->specials);
    trie->special_text = rp_alloc(bytes);
    trie->bytes += bytes + count * sizeof *trie->specials;
    if (!trie->specials || !trie->special_text)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < trie->token_count; i++) {
        if (!tokens[i].special || trie->tokens[i].len == 0)
            continue;
        memcpy(trie->special_text + at, tokens[i].bytes, tokens[i].len);
        trie->specials[trie->special_count++] =
            (struct trie_special){trie->special_text + at, tokens[i].len, i};
        at += tokens[i].len;
    }
    if (count > 1)
        qsort(trie->specials, count, sizeof *trie->specials, compare_specials);
    return RP_OK;
}

/* The first of [first, last) whose byte k is at least `byte`; all share the bytes before. */
static uint32_t lower_bound(const struct rp_token_trie *trie, uint32_t first, uint32_t last,
                            uint32_t k, uint32_t byte) {
    while (first < last) {
        uint32_t middle = first + (last - first) / 2;
        const struct trie_special *s = &trie->specials[middle];
        if (s->len <= k || (uint8_t)s->bytes[k] < byte)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

const struct trie_special *trie_special_at(const struct rp_token_trie *trie, const char *text,
                                           size_t len) {
    const struct trie_special *best = NULL;
    uint32_t first = 0, last = trie ? trie->special_count : 0;
    for (uint32_t k = 0; k < len && first < last; k++) {
        uint32_t byte = (uint8_t)text[k];
        first = lower_bound(trie, first, last, k, byte);
        last = lower_bound(trie, first, last, k, byte + 1);
        if (first < last && trie->specials[first].len == k + 1)
            best = &trie->specials[first];
    }
    return best;
}

static bool is_text(const struct rp_trie_token *t) {
    int place = 0;
    for (uint32_t i = 0; i < t->len && place >= 0; i++)
        place = utf8_step((uint32_t)place, (uint8_t)t->bytes[i]);
    return t->len > 0 && place >= 0;
}

/* Calls for each token of text_mask and each of its different bytes. */
static void count_bytes(struct rp_token_trie *trie, uint32_t *counts, bool store) {
    uint32_t seen[256] = {0}, mark = 0;
    for (uint32_t i = 0; i < trie->token_count; i++) {
        const struct rp_trie_token *t = &trie->tokens[i];
        if (!(trie->text_mask[i / 32] >> i % 32 & 1))
            continue;
        mark++;
        for (uint32_t k = 0; k < t->len; k++) {
            uint8_t byte = (uint8_t)t->bytes[k];
            if (seen[byte] == mark || (store && trie->having_too_many[byte]))
                continue;
            seen[byte] = mark;
            if (store)
                trie->having[counts[byte]] = i;
            counts[byte]++;
        }
    }
}

int trie_make_text(struct rp_token_trie *trie) {
    uint32_t counts[256] = {0}, total = 0;
    trie->text_mask = rp_calloc(trie->words, sizeof(uint32_t));
    if (!trie->text_mask)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < trie->token_count; i++)
        if (is_text(&trie->tokens[i]))
            trie->text_mask[i / 32] |= 1u << i % 32;
    count_bytes(trie, counts, false);
    for (int byte = 0; byte < 256; byte++) {
        trie->having_at[byte] = total;
        trie->having_too_many[byte] = counts[byte] > TRIE_HAVING_MAX;
        total += trie->having_too_many[byte] ? 0 : counts[byte];
        counts[byte] = trie->having_at[byte];
    }
    trie->having_at[256] = total;
    trie->having = rp_alloc(total * sizeof *trie->having);
    if (!trie->having)
        return RP_STATUS_NO_MEMORY;
    trie->bytes += (total + trie->words) * sizeof(uint32_t);
    count_bytes(trie, counts, true);
    return RP_OK;
}
