/* Goal: GBNF and Lark grammars accept exactly the texts that they describe, and what cannot be
 * enforced is refused with its line. */
#include "base/memory.h"
#include "tests/text/grammar_fixture.h"

#include <stdio.h>

static int compile(const char *text, bool lark, struct rp_grammar **out, struct rp_error *err) {
    const struct rp_grammar_limits limits = {.trie = grammar_trie};
    return lark ? rp_grammar_compile_lark(text, strlen(text), &limits, out, err)
                : rp_grammar_compile_gbnf(text, strlen(text), &limits, out, err);
}

static struct rp_matcher *ebnf_matcher(const char *text, bool lark) {
    struct rp_grammar *g;
    struct rp_error err;
    if (compile(text, lark, &g, &err) != RP_OK)
        fail_msg("%s: %s", text, err.text);
    return grammar_match(g);
}

static void check_masks(const char *text, bool lark) {
    for (int turn = 0; turn < 3; turn++) {
        struct rp_matcher *m = ebnf_matcher(text, lark);
        grammar_walk(m, text, 20);
        rp_matcher_free(m);
    }
}

#define CHECK_GBNF(text, ...)                                                                      \
    check_matcher(ebnf_matcher(text, false), text, (const char *const[]){__VA_ARGS__});            \
    check_masks(text, false)
#define CHECK_LARK(text, ...)                                                                      \
    check_matcher(ebnf_matcher(text, true), text, (const char *const[]){__VA_ARGS__});             \
    check_masks(text, true)

static void check_refused(const char *text, bool lark, const char *message) {
    struct rp_grammar *g;
    struct rp_error err;
    if (compile(text, lark, &g, &err) == RP_OK)
        fail_msg("%s was compiled", text);
    assert_null(g);
    if (!strstr(err.text, message))
        fail_msg("%s: \"%s\" is not in \"%s\"", text, message, err.text);
}

static void test_gbnf_rules_and_repeats(void **state) {
    (void)state;
    CHECK_GBNF("root ::= \"yes\" | \"no\" # a comment\n", "yes", "no", NULL, "", "yesno", NULL);
    CHECK_GBNF("root ::= item (\", \" item){1,2}\nitem ::= [a-c]+ | [^a-z\\n]\n", "a, b",
               "abc, 1, "
               "\xC3\xA9",
               NULL, "a", "a, b, c, a", "a, \n", "a, d", NULL);
    CHECK_GBNF(
        "root ::= (\n  \"1. \" move\n  \"\\n\")+\nmove ::=\n   [NBK]? [a-h] [1-8] |\n   \"O-O\"\n",
        "1. Nf3\n", "1. O-O\n1. e4\n", NULL, "1. Nf9\n", "1. \n", NULL);
    CHECK_GBNF("root ::= \"\\x41\\u00e9\\U0001F600\" .* \"]\"", "A\xC3\xA9\xF0\x9F\x98\x80]",
               "A\xC3\xA9\xF0\x9F\x98\x80x\n]]", NULL, "A]", NULL);
    CHECK_GBNF("root ::= x{3} y{2,} z{0,1}\nx ::= \"a\"\ny ::= \"b\"\nz ::= \"c\"", "aaabb",
               "aaabbbbc", NULL, "aabb", "aaab", "aaabbcc", NULL);
    CHECK_GBNF("root ::= \"\" | \"a\" root \"b\"", "", "ab", "aaabbb", NULL, "aab", "ba", NULL);
}

static void test_gbnf_recursion(void **state) {
    (void)state;
    CHECK_GBNF("root ::= value\nvalue ::= \"[\" (value (\",\" value)*)? \"]\" | [0-9]+\n", "[]",
               "[1,[22,[]]]", "7", NULL, "[", "[1,]", "[1]]", NULL);
    CHECK_GBNF(
        "root ::= root \"+\" term | root \"-\" term | term\nterm ::= [0-9]+ | \"(\" root \")\"",
        "1", "1+2-3", "(1-2)+3", NULL, "+1", "1+", "(1", NULL);
    check_refused("root ::= a \"x\"\na ::= root \"y\" | \"z\"", false, "begins with itself");
    check_refused("root ::= \"a\"? root \"b\" | \"c\"", false, "begins with itself");
    check_refused("root ::= root \"b\"", false, "no text can satisfy it");
}

static void test_gbnf_tokens(void **state) {
    uint32_t at;
    char text[64];
    (void)state;
    struct rp_matcher *m =
        ebnf_matcher("root ::= <tool_call> !</tool_call>* </tool_call> \"end\"", false);
    assert_int_equal(rp_matcher_advance(m, rp_matcher_start(m), GRAMMAR_SPECIAL(0), &at), RP_OK);
    (void)grammar_check_mask(m, at, "tokens");
    assert_int_equal(rp_matcher_advance_bytes(m, at, "a </tool_call> b", 16, &at), RP_OK);
    assert_int_equal(rp_matcher_advance(m, at, GRAMMAR_SPECIAL(0), &at), RP_STATUS_INVALID);
    assert_int_equal(rp_matcher_advance(m, at, GRAMMAR_SPECIAL(1), &at), RP_OK);
    assert_int_equal(rp_matcher_advance_bytes(m, at, "end", 3, &at), RP_OK);
    assert_true(rp_matcher_is_accepting(m, at));
    rp_matcher_free(m);
    snprintf(text, sizeof text, "root ::= <[%zu]> \"a\"", (size_t)GRAMMAR_SPECIAL(3));
    m = ebnf_matcher(text, false);
    assert_int_equal(rp_matcher_advance(m, rp_matcher_start(m), GRAMMAR_SPECIAL(3), &at), RP_OK);
    rp_matcher_free(m);
    check_refused("root ::= <[99999]>", false, "no token");
    check_refused("root ::= !<tool_call>", false, "!<token>*");
}

/* The constructs of patch formats for agents: nested rules, optional line ends, free lines. */
static const char patch[] = "start: open change+ close\n"
                            "open: \"=== Edit\" LF\n"
                            "close: \"=== Done\" LF?\n\n"
                            "change: create | remove | edit\n"
                            "create: \"=== New: \" path LF line+\n"
                            "remove: \"=== Remove: \" path LF\n"
                            "edit: \"=== Edit: \" path LF rename? parts?\n\n"
                            "path: /(.+)/\n"
                            "line: \"+\" /(.*)/ LF -> added\n\n"
                            "rename: \"=== To: \" path LF\n"
                            "parts: (place | part)+ tail?\n"
                            "place: (\"@@\" | \"@@ \" /(.+)/) LF\n"
                            "part: (\"+\" | \"-\" | \" \") /(.*)/ LF\n"
                            "tail: \"=== End of File\" LF\n\n"
                            "%import common.LF\n";

static void test_lark_grammars_of_patches(void **state) {
    (void)state;
    CHECK_LARK(
        patch, "=== Edit\n=== Remove: a.c\n=== Done", "=== Edit\n=== New: a b\n+x\n+\n=== Done\n",
        "=== Edit\n=== Edit: f\n=== To: g\n@@ here\n a\n-b\n+c\n@@\n+d\n=== End of File\n=== "
        "Done\n",
        NULL, "=== Edit\n=== Done", "=== Edit\n=== New: a\n=== Done",
        "=== Edit\n=== Edit: f\nx\n=== Done", "=== Edit\n=== Remove: a.c\n=== Done\n\n", NULL);
}

static void test_lark_terminals_and_operators(void **state) {
    (void)state;
    CHECK_LARK("start: \"a\" [\"b\"] (\"c\" | \"d\")~2..3\n", "acc", "abcdc", NULL, "ac", "abcccc",
               NULL);
    CHECK_LARK("?start.2: A | b -> x\n!b: \"0\"..\"5\"~3\nA.1: /x+/i | \"select\"i\n", "xX",
               "SeLect", "012", NULL, "", "016", "x0", NULL);
    CHECK_LARK("start: NUMBER (\",\" NAME)*\n%import common (NUMBER)\n"
               "%import common.CNAME -> NAME\n",
               "1", "2.5e3,a_1,B", NULL, "x", "1,2", NULL);
}

static void test_lark_ignores_between_terminals(void **state) {
    (void)state;
    CHECK_LARK("start: sum\nsum: sum \"+\" term | term\nterm: INT | \"(\" sum \")\"\n"
               "%import common (INT, WS)\n%ignore WS\n%ignore /#[^\\n]*/\n",
               "1+2", " ( 1 +\t2 ) ", "1 #x\n+2", NULL, "1 2 +", "", "1+", NULL);
    CHECK_LARK("start: \"ab\" C\nC: \"c\" \"d\"\n%ignore \" \"", "abcd", " ab  cd ", NULL, "a bcd",
               "abc d", NULL);
}

static void test_lark_with_schemas_and_patterns(void **state) {
    (void)state;
    CHECK_LARK(
        "start: \"call \" name %json {\"type\": \"object\", \"properties\": {\"a\": {\"enum\": "
        "[\"}\", 1]}}, \"required\": [\"a\"], \"additionalProperties\": false} \".\"\n"
        "name: /[a-z]+/\n",
        "call f{\"a\":1}.", "call fg{ \"a\": \"}\" }.", NULL, "call f{}.", "call f{\"a\":2}.",
        NULL);
    CHECK_LARK("start: /a.b/s /[^x]/\n", "a\nby", "aab\n", NULL, "a\nbx", NULL);
}

static void test_a_lark_grammar_within_a_json_string(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"string\",\"\\u0001lark\":\"start: \\\"a\\\" part+ \\\"b\\\"\\npart: "
                 "/[\\\"\\\\n]+/ | \\\"\\\\\\\\\\\" part \\\"/\\\"\\n\"}",
                 "\"a\\\"b\"", "\"a\\n\\\"b\"", "\"a\\\\\\\"/b\"", NULL, "\"ab\"", "\"a\\tb\"",
                 "\"a\\\\\\\"b\"", "a\"b", NULL);
    check_schema_refused(
        "{\"type\":\"string\",\"minLength\":2,\"\\u0001lark\":\"start: \\\"a\\\"\"}", "grammar");
    check_schema_refused("{\"type\":\"string\",\"\\u0001lark\":\"start: %json {}\"}", "%json");
    check_schema_refused("{\"type\":\"string\",\"\\u0001lark\":\"start: <a>\"}", "tokens");
    check_schema_refused("{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\","
                         "\"\\u0001lark\":\"start: other\"}}}",
                         "other");
}

static void test_what_cannot_be_enforced_is_refused_with_its_line(void **state) {
    (void)state;
    check_refused("root ::= \"a\"\n\nx ::= yy", false, "line 3: no definition of yy");
    check_refused("a ::= \"a\"", false, "no rule is called root");
    check_refused("root ::= \"a\"\nroot ::= \"b\"", false, "line 2: a second definition of root");
    check_refused("root ::= \"a", false, "line 1: a string has no end");
    check_refused("root ::= (\"a\"", false, "a group has no end");
    check_refused("root ::= [a", false, "[ has no ]");
    check_refused("root ::= \"\\q\"", false, "unknown escape");
    check_refused("root ::= \"a\"{3,2}", false, "a repeat is");
    check_refused("root ::= \"a\"{70000}", false, "65535");
    check_refused("hello", false, "a definition was expected");
    check_refused("start: x{\"a\"}\nx{y}: y\n", true, "templates");
    check_refused("start: \"a\"\n%declare B\n", true, "%declare");
    check_refused("start: B\n%import python.B\n", true, "common only");
    check_refused("start: B\n%import common.B\n", true, "no terminal B");
    check_refused("start: /(?=a)/\n", true, "look-ahead");
    check_refused("start: %json {\"uniqueItems\": true, \"type\": \"array\"}\n", true,
                  "uniqueItems");
    check_refused("start: %regex {}\n", true, "%regex");
    check_refused("start: /a/x\n", true, "flag of a pattern: x");
    check_refused("start: a\na: b \"x\"\nb: a | \"y\"\n", true, "begins with itself");
}

static void test_hostile_grammars_are_refused_in_time(void **state) {
    static char text[70000];
    struct rp_grammar *g;
    struct rp_error err;
    (void)state;
    size_t used = (size_t)snprintf(text, sizeof text, "root ::= ");
    memset(text + used, '(', 60000);
    text[used + 60000] = 0;
    check_refused(text, false, "nested too deeply");
    memset(text, 'a', sizeof text - 1);
    assert_int_equal(compile(text, false, &g, &err), RP_STATUS_FULL);
    for (used = 0; used < 60000;) /* a chain of rules, and quantifiers on quantifiers */
        used += (size_t)snprintf(text + used, sizeof text - used, "r%zu ::= \"a\" r%zu\n", used,
                                 used + 16 + (used >= 100) + (used >= 1000) + 0);
    assert_int_not_equal(compile(text, false, &g, &err), RP_OK);
    used = (size_t)snprintf(text, sizeof text, "root ::= \"a\"");
    memset(text + used, '*', 1000);
    text[used + 1000] = 0;
    struct rp_matcher *m = ebnf_matcher(text, false);
    assert_true(matcher_takes(m, "aaa", 3));
    rp_matcher_free(m);
    used = (size_t)snprintf(text, sizeof text, "root ::= a0\n");
    for (int i = 0; i < 2000; i++) /* calls deeper than what is inlined */
        used += (size_t)snprintf(text + used, sizeof text - used, "a%d ::= \"x\" a%d\n", i, i + 1);
    snprintf(text + used, sizeof text - used, "a2000 ::= \"y\"\n");
    m = ebnf_matcher(text, false);
    static char many[2002];
    memset(many, 'x', 2000);
    many[2000] = 'y';
    assert_true(matcher_takes(m, many, 2001));
    assert_false(matcher_takes(m, many, 2000));
    rp_matcher_free(m);
}

static void test_compiling_survives_every_allocation_that_fails(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 400; n++) {
        struct rp_grammar *g = NULL;
        struct rp_error err;
        rp_alloc_fail_at(n);
        int rc = compile(patch, true, &g, &err);
        rp_alloc_fail_at(0);
        if (rc != RP_OK && rc != RP_STATUS_NO_MEMORY && rc != RP_STATUS_FULL)
            fail_msg("allocation %u: %s", (unsigned)n, rp_status_name(rc));
        rp_grammar_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf_rules_and_repeats),
        cmocka_unit_test(test_gbnf_recursion),
        cmocka_unit_test(test_gbnf_tokens),
        cmocka_unit_test(test_lark_grammars_of_patches),
        cmocka_unit_test(test_lark_terminals_and_operators),
        cmocka_unit_test(test_lark_ignores_between_terminals),
        cmocka_unit_test(test_lark_with_schemas_and_patterns),
        cmocka_unit_test(test_a_lark_grammar_within_a_json_string),
        cmocka_unit_test(test_what_cannot_be_enforced_is_refused_with_its_line),
        cmocka_unit_test(test_hostile_grammars_are_refused_in_time),
        cmocka_unit_test(test_compiling_survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
