/* grammar_fixture.h - a small vocabulary, and questions about grammars. */
#ifndef RP_TESTS_TEXT_GRAMMAR_FIXTURE_H
#define RP_TESTS_TEXT_GRAMMAR_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "text/grammar/grammar.h"
#include <cmocka.h>

#include <string.h>

#define GRAMMAR_WIDTH 448 /* of a mask: more than there are tokens */
#define GRAMMAR_END   0

/* Token 0 ends the text, 1 to 256 are bytes, the rest are these. */
static const char *const grammar_words[] = {"the",
                                            "a\":",
                                            "\":",
                                            "\": ",
                                            "\",",
                                            "\", \"",
                                            "\"}",
                                            "\"},",
                                            "{\"",
                                            "{\"a",
                                            "},",
                                            "[{",
                                            "[[",
                                            "]]",
                                            "]}",
                                            "true",
                                            "fal",
                                            "se,",
                                            "null",
                                            "nul",
                                            "-1",
                                            "12",
                                            "123",
                                            "0.",
                                            ".5",
                                            "e+",
                                            "10,",
                                            "  ",
                                            "\n  ",
                                            "\n\t\"",
                                            " \"",
                                            " the",
                                            "\\u00",
                                            "\\n",
                                            "\\\"",
                                            "\\",
                                            "\\ud8",
                                            "34\\ud",
                                            "\xC3",
                                            "\xC3\xA9",
                                            "\x80",
                                            "\xE2\x80",
                                            "\xE2\x80\xA8",
                                            "\xF0\x9F\x98",
                                            "x\xF0\x9F",
                                            "\x98\x80",
                                            "abc",
                                            "abcdef",
                                            "ab",
                                            "foo\"",
                                            "foo",
                                            "bar\":",
                                            "oo",
                                            "name",
                                            "\"name",
                                            "\"name\":",
                                            "2024-",
                                            "-02-",
                                            "T1",
                                            "http",
                                            "://",
                                            "@b.c",
                                            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                            "the",
                                            ", ",
                                            ": ",
                                            "{}",
                                            "[]",
                                            "\"\"",
                                            "\"a\"",
                                            "  }",
                                            "} ",
                                            "\xE4\xB8\xAD\xE6\x96\x87",
                                            "zz\"]",
                                            "1]",
                                            "00",
                                            "99",
                                            "-",
                                            "+",
                                            "<",
                                            "</",
                                            "<fun",
                                            "ction=",
                                            "a<",
                                            "<function=",
                                            "=a>{",
                                            "</function>",
                                            "x</fun",
                                            "}</",
                                            "tion>",
                                            "<tool",
                                            "<tool_call>",
                                            "call>"};
/* Special tokens: never their text. */
static const char *const grammar_specials[] = {"<tool_call>", "</tool_call>", "<tool_call>x",
                                               "<|end|>"};
#define GRAMMAR_SPECIAL(i) (257 + RP_ARRAY_COUNT(grammar_words) + (i))
#define GRAMMAR_TOKENS     GRAMMAR_SPECIAL(RP_ARRAY_COUNT(grammar_specials))

static struct rp_token_trie *grammar_trie;

static inline int grammar_make_trie(void **state) {
    static char bytes[256];
    struct rp_trie_token tokens[GRAMMAR_TOKENS];
    const uint32_t end = GRAMMAR_END;
    (void)state;
    tokens[0] = (struct rp_trie_token){"", 0, false};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[1 + i] = (struct rp_trie_token){&bytes[i], 1, false};
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(grammar_words); i++)
        tokens[257 + i] =
            (struct rp_trie_token){grammar_words[i], (uint32_t)strlen(grammar_words[i]), false};
    for (size_t i = 0; i < RP_ARRAY_COUNT(grammar_specials); i++)
        tokens[GRAMMAR_SPECIAL(i)] = (struct rp_trie_token){
            grammar_specials[i], (uint32_t)strlen(grammar_specials[i]), true};
    return rp_token_trie_make(tokens, RP_ARRAY_COUNT(tokens), GRAMMAR_WIDTH, &end, 1, &grammar_trie,
                              NULL);
}

static inline int grammar_free_trie(void **state) {
    (void)state;
    rp_token_trie_free(grammar_trie);
    return 0;
}

static inline struct rp_matcher *grammar_match(struct rp_grammar *grammar) {
    struct rp_matcher *m;
    assert_int_equal(rp_matcher_make(grammar, grammar_trie, 0, &m), RP_OK);
    return m;
}

static inline struct rp_matcher *schema_matcher(const char *schema) {
    struct rp_grammar *g;
    struct rp_error err;
    if (rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, &err) != RP_OK)
        fail_msg("%s: %s", schema, err.text);
    return grammar_match(g);
}

static inline struct rp_matcher *regex_matcher(const char *pattern) {
    struct rp_grammar *g;
    struct rp_error err;
    if (rp_grammar_compile_regex(pattern, strlen(pattern), NULL, &g, &err) != RP_OK)
        fail_msg("%s: %s", pattern, err.text);
    return grammar_match(g);
}

static inline bool matcher_takes(struct rp_matcher *m, const char *text, size_t len) {
    uint32_t state;
    return rp_matcher_advance_bytes(m, rp_matcher_start(m), text, len, &state) == RP_OK &&
           rp_matcher_is_accepting(m, state);
}

static uint32_t grammar_random_state = 1;
static inline uint32_t grammar_random(void) {
    grammar_random_state ^= grammar_random_state << 13;
    grammar_random_state ^= grammar_random_state >> 17;
    grammar_random_state ^= grammar_random_state << 5;
    return grammar_random_state;
}

/* Every bit against advancing by bytes; returns an allowed token, or GRAMMAR_END. */
static inline uint32_t grammar_check_mask(struct rp_matcher *m, uint32_t state, const char *what) {
    uint32_t bits[GRAMMAR_WIDTH / 32], next, allowed[GRAMMAR_WIDTH], count = 0;

    assert_int_equal(rp_matcher_mask(m, state, bits, RP_MASK_FUEL), RP_OK);
    for (uint32_t t = 0; t < GRAMMAR_WIDTH; t++) {
        bool set = bits[t / 32] >> t % 32 & 1;
        bool wanted = t < GRAMMAR_TOKENS && rp_matcher_advance(m, state, t, &next) == RP_OK;
        if (set != wanted)
            fail_msg("%s: token %u is %s", what, t, set ? "allowed" : "missing");
        if (set && t != GRAMMAR_END)
            allowed[count++] = t;
    }
    assert_true(count > 0 || rp_matcher_is_accepting(m, state)); /* no dead end */
    return count ? allowed[grammar_random() % count] : GRAMMAR_END;
}

static inline void grammar_walk(struct rp_matcher *m, const char *what, int steps) {
    uint32_t state = rp_matcher_start(m);
    for (int i = 0; i < steps; i++) {
        uint32_t token = grammar_check_mask(m, state, what);
        if (token == GRAMMAR_END)
            return;
        assert_int_equal(rp_matcher_advance(m, state, token, &state), RP_OK);
    }
}

/* Ends with NULL; then texts that are refused, and NULL. */
static inline void check_matcher(struct rp_matcher *m, const char *what, const char *const *texts) {
    for (int wanted = 1; wanted >= 0; wanted--, texts++)
        for (; *texts; texts++)
            if (matcher_takes(m, *texts, strlen(*texts)) != (wanted == 1))
                fail_msg("%s: %s is %s", what, *texts, wanted ? "refused" : "accepted");
    rp_matcher_free(m);
}
#define CHECK_SCHEMA(schema, ...)                                                                  \
    check_matcher(schema_matcher(schema), schema, (const char *const[]){__VA_ARGS__})
#define CHECK_REGEX(pattern, ...)                                                                  \
    check_matcher(regex_matcher(pattern), pattern, (const char *const[]){__VA_ARGS__})

/* The schema is refused, and the message has this in it. */
static inline void check_schema_refused(const char *schema, const char *message) {
    struct rp_grammar *g;
    struct rp_error err;
    int rc = rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, &err);
    if (rc == RP_OK)
        fail_msg("%s was compiled", schema);
    assert_null(g);
    if (!strstr(err.text, message))
        fail_msg("%s: \"%s\" is not in \"%s\"", schema, message, err.text);
}

#endif
