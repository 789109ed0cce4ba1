/* fuzz_grammar.c - any bytes as a schema, a pattern (r), structural tag (t), GBNF (g), Lark (l).
 *
 * What is refused says why. What is compiled has no dead ends: each token of a mask can be taken,
 * and where no token is allowed the text may end. Bounds end work by their status. */
#include "text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 9, TOKENS = 256 + WORDS }; /* token 0 ends the text */

static struct rp_token_trie *trie;

static void make_trie(void) {
    static char bytes[256];
    static const char *const words[WORDS] = {"\":",      "\",\"", "the",    "{\"", "12",
                                             "\xC3\xA9", "\\u00", "<tool>", "<a>"};
    struct rp_trie_token tokens[1 + TOKENS];
    const uint32_t end = 0;
    tokens[0] = (struct rp_trie_token){"", 0, false};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[1 + i] = (struct rp_trie_token){&bytes[i], 1, false};
    }
    for (size_t i = 0; i < WORDS; i++)
        tokens[257 + i] = (struct rp_trie_token){words[i], (uint32_t)strlen(words[i]), false};
    if (rp_token_trie_make(tokens, RP_ARRAY_COUNT(tokens), RP_ARRAY_COUNT(tokens), &end, 1, &trie,
                           NULL) != RP_OK)
        abort();
}

static void walk(struct rp_matcher *m, uint32_t random) {
    uint32_t bits[(1 + TOKENS + 31) / 32], state = rp_matcher_start(m);
    for (int i = 0; i < 24; i++) {
        if (rp_matcher_mask(m, state, bits, RP_MASK_FUEL) != RP_OK)
            return;
        uint32_t chosen = 0;
        random = random * 1103515245u + 12345u;
        for (uint32_t k = 0; k < TOKENS && chosen == 0; k++) {
            uint32_t token = 1 + (random / 65536 + k) % TOKENS;
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

static int compile(const char *text, size_t len, char kind, struct rp_grammar **out,
                   struct rp_error *err) {
    const struct rp_grammar_limits limits = {.memory_bytes = 4 << 20, .fuel = 200000, .trie = trie};
    switch (kind) {
    case 'r':
        return rp_grammar_compile_regex(text, len, &limits, out, err);
    case 't':
        return rp_grammar_compile_structural_tag(text, len, &limits, out, err);
    case 'g':
        return rp_grammar_compile_gbnf(text, len, &limits, out, err);
    case 'l':
        return rp_grammar_compile_lark(text, len, &limits, out, err);
    default:
        return rp_grammar_compile_json_schema(text, len, &limits, out, err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rp_grammar *g = NULL;
    struct rp_matcher *m;
    struct rp_error err = {.status = RP_STATUS_OK};
    if (!trie)
        make_trie();
    if (size == 0)
        return 0;
    int rc = compile((const char *)data + 1, size - 1, (char)data[0], &g, &err);
    RP_ASSERT(rc == RP_OK || err.text[0] != 0);
    if (rc != RP_OK || rp_matcher_make(g, trie, 0, &m) != RP_OK)
        return 0;
    walk(m, (uint32_t)size);
    rp_matcher_free(m);
    return 0;
}
