/* fuzz_grammar.c - any bytes as a schema or a pattern.
 *
 * What is refused says why. What is compiled has no dead ends: each token of a mask can be taken,
 * and where no token is allowed the text may end. Bounds end work by their status. */
#include "text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

static struct rp_token_trie *trie;

static void make_trie(void) {
    static char bytes[256];
    static const char *const words[] = {"\":", "\",\"", "the", "{\"", "12", "\xC3\xA9", "\\u00"};
    struct rp_trie_token tokens[257 + RP_ARRAY_COUNT(words)];
    const uint32_t end = 0;
    tokens[0] = (struct rp_trie_token){"", 0, false};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[1 + i] = (struct rp_trie_token){&bytes[i], 1, false};
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        tokens[257 + i] = (struct rp_trie_token){words[i], (uint32_t)strlen(words[i]), false};
    if (rp_token_trie_make(tokens, RP_ARRAY_COUNT(tokens), RP_ARRAY_COUNT(tokens), &end, 1, &trie,
                           NULL) != RP_OK)
        abort();
}

static void walk(struct rp_matcher *m, uint32_t random) {
    uint32_t bits[(257 + 32 + 31) / 32], state = rp_matcher_start(m);
    for (int i = 0; i < 24; i++) {
        if (rp_matcher_mask(m, state, bits, RP_MASK_FUEL) != RP_OK)
            return;
        uint32_t chosen = 0;
        random = random * 1103515245u + 12345u;
        for (uint32_t k = 0; k < 264 && chosen == 0; k++) {
            uint32_t token = 1 + (random / 65536 + k) % 263;
            if (bits[token / 32] >> token % 32 & 1)
                chosen = token;
        }
        if (chosen == 0) {
            RP_ASSERT(rp_matcher_is_accepting(m, state));
            return;
        }
        int rc = rp_matcher_advance(m, state, chosen, &state);
        RP_ASSERT(rc == RP_OK || rc == RP_STATUS_FULL);
        if (rc != RP_OK)
            return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct rp_grammar_limits limits = {.memory_bytes = 4 << 20, .fuel = 200000};
    struct rp_grammar *g = NULL;
    struct rp_matcher *m;
    struct rp_error err = {.status = RP_STATUS_OK};
    if (!trie)
        make_trie();
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    int rc = data[0] == 'r' ? rp_grammar_compile_regex(text, size - 1, &limits, &g, &err)
                            : rp_grammar_compile_json_schema(text, size - 1, &limits, &g, &err);
    RP_ASSERT(rc == RP_OK || err.text[0] != 0);
    if (rc != RP_OK || rp_matcher_make(g, trie, 0, &m) != RP_OK)
        return 0;
    walk(m, (uint32_t)size);
    rp_matcher_free(m);
    return 0;
}
