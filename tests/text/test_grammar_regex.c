/* Goal: patterns mean what ECMAScript says, or are refused by name. */
#include "tests/text/grammar_fixture.h"

static void test_patterns_match_whole_texts(void **state) {
    (void)state;
    CHECK_REGEX("a{2,3}b?", "aa", "aaa", "aab", NULL, "a", "aaaa", "aabb", NULL);
    CHECK_REGEX("(?:ab|c)*d+?", "d", "abcd", "cabdd", NULL, "ab", "abd ", NULL);
    CHECK_REGEX("[^a-c\\d]", "d", "\xC3\xA9", "\xF0\x9F\x98\x80", NULL, "a", "7", "\xC3", "dd",
                NULL);
    CHECK_REGEX("\\u{1F600}|\\xE9|\\u4e2d", "\xF0\x9F\x98\x80", "\xC3\xA9", "\xE4\xB8\xAD", NULL,
                "e", NULL);
    CHECK_REGEX(".", "x", "\xE4\xB8\xAD", NULL, "\n", "\xE2\x80\xA8", "", NULL);
    CHECK_REGEX("\\p{Lu}\\P{L}", "A1", "\xC3\x89 ", NULL, "a1", "AA", NULL);
    CHECK_REGEX("[\\w-]+@[a-z.]+", "a-b@c.d", NULL, "a b@c", NULL);
    CHECK_REGEX("x{", "x{", NULL, "x", NULL);
}

static void test_anchors_are_where_the_text_begins_and_ends(void **state) {
    (void)state;
    CHECK_REGEX("^abc$", "abc", NULL, "ab", "abcd", NULL);
    CHECK_REGEX("(^a|b)c", "ac", "bc", NULL, "c", NULL);
    CHECK_REGEX("a(b$|c)", "ab", "ac", NULL, "a", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^a|b$\"}", "\"axx\"", "\"xxb\"", "\"a\"", NULL,
                 "\"xa\"", "\"bx\"", "\"\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^$\"}", "\"\"", NULL, "\"a\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"x(a$)?\"}", "\"x\"", "\"xb\"", "\"xa\"", NULL,
                 "\"a\"", NULL);
}

static void test_patterns_in_a_schema_match_decoded_characters(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\\\n]+$\"}", "\"\\\"\"",
                 "\"\\\\\\n\"", "\"\\u000a\"", NULL, "\"n\"", "\"\\t\"", "\"\\\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^\xF0\x9F\x98\x80.$\"}",
                 "\"\xF0\x9F\x98\x80x\"", "\"\\ud83d\\ude00x\"", NULL, "\"\\ud83dx\"", "\"x\"",
                 NULL);
}

static void check_refused(const char *pattern, const char *message) {
    struct rp_grammar *g;
    struct rp_error err;
    assert_int_not_equal(rp_grammar_compile_regex(pattern, strlen(pattern), NULL, &g, &err), RP_OK);
    if (!strstr(err.text, message))
        fail_msg("%s: \"%s\" is not in \"%s\"", pattern, message, err.text);
}

static void test_what_is_not_regular_is_refused_by_name(void **state) {
    (void)state;
    check_refused("(?=a)", "look-ahead");
    check_refused("(?<!a)b", "look-behind");
    check_refused("(a)\\1", "back-references");
    check_refused("\\bword", "word boundaries");
    check_refused("(?i:a)", "flags");
    check_refused("(^a)*", "anchors");
    check_refused("a**", "nothing to repeat");
    check_refused("*a", "nothing to repeat");
    check_refused("(a", "( has no )");
    check_refused("a)", ") has no (");
    check_refused("[z-a]", "out of order");
    check_refused("[a", "[ has no ]");
    check_refused("a{3,2}", "out of order");
    check_refused("\\p{Nothing}", "unknown property");
    check_refused("a{70000}", "65535");
    check_refused("a$b", "no text can satisfy");
}

static void test_hostile_patterns_end_by_fuel(void **state) {
    struct rp_grammar *g;
    struct rp_error err;
    char deep[4000];
    (void)state;
    memset(deep, '(', sizeof deep);
    assert_int_equal(rp_grammar_compile_regex(deep, sizeof deep, NULL, &g, &err), RP_STATUS_FULL);
    static const char blow_up[] = "(a|b)*a(a|b){60}c";
    assert_int_equal(rp_grammar_compile_regex(blow_up, strlen(blow_up), NULL, &g, &err), RP_OK);
    struct rp_matcher *m = grammar_match(g);
    uint32_t at = rp_matcher_start(m), random = 7;
    int rc = RP_OK;
    for (int i = 0; i < 100000 && rc == RP_OK; i++) {
        random = random * 1103515245u + 12345u;
        rc = rp_matcher_advance_bytes(m, at, random >> 16 & 1 ? "a" : "b", 1, &at);
    }
    assert_int_equal(rc, RP_STATUS_FULL);
    rp_matcher_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns_match_whole_texts),
        cmocka_unit_test(test_anchors_are_where_the_text_begins_and_ends),
        cmocka_unit_test(test_patterns_in_a_schema_match_decoded_characters),
        cmocka_unit_test(test_what_is_not_regular_is_refused_by_name),
        cmocka_unit_test(test_hostile_patterns_end_by_fuel),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
