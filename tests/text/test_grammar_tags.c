/* Goal: a structural tag accepts exactly the texts and special tokens that its formats describe. */
#include "base/memory.h"
#include "tests/text/grammar_fixture.h"

#include <stdio.h>

#define CALL "\x01" /* in texts: the special tokens <tool_call>, </tool_call> and <|end|> */
#define DONE "\x02"
#define STOP "\x04"

static struct rp_matcher *tag_matcher(const char *tag) {
    const struct rp_grammar_limits limits = {.trie = grammar_trie};
    struct rp_grammar *g;
    struct rp_error err;
    if (rp_grammar_compile_structural_tag(tag, strlen(tag), &limits, &g, &err) != RP_OK)
        fail_msg("%s: %s", tag, err.text);
    return grammar_match(g);
}

/* The tokens of a text: bytes 1 to 4 are special tokens, all others are bytes. */
static uint32_t token_of(char c) {
    unsigned char byte = (unsigned char)c;
    return byte >= 1 && byte <= 4 ? (uint32_t)GRAMMAR_SPECIAL(byte - 1u) : 1u + byte;
}

static bool takes(struct rp_matcher *m, const char *text, const char *what) {
    uint32_t state = rp_matcher_start(m);
    for (; *text; text++) {
        if (what)
            (void)grammar_check_mask(m, state, what);
        if (rp_matcher_advance(m, state, token_of(*text), &state) != RP_OK)
            return false;
    }
    return rp_matcher_is_accepting(m, state);
}

/* Texts that are accepted, NULL, texts that are refused, NULL. */
static void check_tag(const char *tag, const char *const *texts) {
    struct rp_matcher *m = tag_matcher(tag);
    for (int wanted = 1; wanted >= 0; wanted--, texts++)
        for (; *texts; texts++) {
            if (takes(m, *texts, NULL) != (wanted == 1))
                fail_msg("%s: %s is %s", tag, *texts, wanted ? "refused" : "accepted");
            (void)takes(m, *texts, tag);
        }
    rp_matcher_free(m);
}
#define CHECK_TAG(tag, ...) check_tag(tag, (const char *const[]){__VA_ARGS__})

static void check_refused(const char *tag, const char *message) {
    const struct rp_grammar_limits limits = {.trie = grammar_trie};
    struct rp_grammar *g;
    struct rp_error err;
    if (rp_grammar_compile_structural_tag(tag, strlen(tag), &limits, &g, &err) == RP_OK)
        fail_msg("%s was compiled", tag);
    assert_null(g);
    if (!strstr(err.text, message))
        fail_msg("%s: \"%s\" is not in \"%s\"", tag, message, err.text);
}

#define S(text) "{\"type\":\"const_string\",\"value\":\"" text "\"}"
#define INTEGER "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"integer\"}}"

static void test_formats_compose(void **state) {
    (void)state;
    CHECK_TAG("{\"type\":\"structural_tag\",\"format\":" S("abc") "}", "abc", NULL, "", "ab",
              "abcd", NULL);
    CHECK_TAG(
        "{\"type\":\"sequence\",\"elements\":[" S("a") "," INTEGER
                                                       ",{\"type\":\"optional\",\"content\":" S(
                                                           ";") "},{\"type\":\"regex\",\"pattern\":"
                                                                "\"[xy]{2}\"}]}",
        "a12xy", "a-3;yy", NULL, "a1x", "axy", "a1;;xy", NULL);
    CHECK_TAG("{\"type\":\"or\",\"elements\":[" S("yes") "," S(
                  "no") ",{\"type\":\"repeat\",\"min\":2,"
                        "\"max\":3,\"content\":" S("ab") "}]}",
              "yes", "no", "abab", "ababab", NULL, "ab", "abababab", "yesno", NULL);
    CHECK_TAG("{\"type\":\"sequence\",\"elements\":[{\"type\":\"star\",\"content\":" S(
                  "a") "},"
                       "{\"type\":\"plus\",\"content\":" S(
                           "b") "},{\"type\":\"repeat\",\"min\":0,\"max\":-1,"
                                "\"content\":" S("c") "}]}",
              "b", "aabbb", "abccc", NULL, "", "a", "ac", NULL);
    CHECK_TAG("{\"type\":\"sequence\",\"elements\":[]}", "", NULL, "a", NULL);
}

static void test_free_text_ends_at_the_first_end(void **state) {
    (void)state;
    const char *tag = "{\"type\":\"tag\",\"begin\":\"<a>\",\"content\":{\"type\":\"any_text\"},"
                      "\"end\":[\"</a>\",\"</b>\"]}";
    CHECK_TAG(tag, "<a></a>", "<a>x</b>", "<a><<</a>", "<a>\xC3\xA9\xE4\xB8\xAD</c></a>",
              "<a></</a>", NULL, "<a>", "<a>x</a>y</a>", "<a>\xC3</a>", "<a>\x80</a>",
              "<a>" STOP "</a>", "<a>" CALL "</a>", NULL);
    CHECK_TAG("{\"type\":\"any_text\",\"excludes\":[\"aab\",\"c\"]}", "", "aaa", "aaxb", "ab", NULL,
              "aaab", "xaab", "c", STOP, NULL);
    CHECK_TAG("{\"type\":\"tag\",\"begin\":\"\",\"content\":{\"type\":\"or\",\"elements\":[{"
              "\"type\":\"sequence\",\"elements\":[" S("x") ",{\"type\":\"any_text\"}]}," S(
                  "12") "]},\"end\":\".\"}",
              "x.", "xyz.", "12.", NULL, "12", "x.y.", "13.", NULL);
    CHECK_TAG(
        "{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\",\"excludes\":[\"#\"]}," S(
            "#!") "]}",
        "#!", "ab#!", NULL, "a#", "#a#!", NULL);
}

#define TWO_TAGS                                                                                   \
    "\"tags\":[{\"type\":\"tag\",\"begin\":\"<function=a>\",\"content\":" INTEGER                  \
    ",\"end\":\"</function>\"},{\"begin\":\"<function=ab>\",\"content\":{\"type\":\"any_text\"},"  \
    "\"end\":\"</function>\"}]"

static void test_a_trigger_forces_one_of_its_tags(void **state) {
    (void)state;
    CHECK_TAG("{\"type\":\"triggered_tags\",\"triggers\":[\"<function=\"]," TWO_TAGS "}", "",
              "text <b> <function", "<function=a>12</function>",
              "x<<function=ab>any</function>y<function=a>1</function>z", NULL,
              "<function=", "<function=c>", "<function=a>x</function>", "<function=a>1", "a" CALL,
              NULL);
    CHECK_TAG(
        "{\"type\":\"triggered_tags\",\"triggers\":[\"<function=\"],\"at_least_one\":true," TWO_TAGS
        "}",
        "<function=a>12</function>", "<function=a>1</function> then", NULL, "", "text",
        " <function=a>1</function>", NULL);
    CHECK_TAG("{\"type\":\"triggered_tags\",\"triggers\":[\"<function=\"],\"stop_after_first\":"
              "true," TWO_TAGS "}",
              "", "text", "ab<function=a>12</function>", NULL, "<function=a>1</function> then",
              NULL);
    CHECK_TAG(
        "{\"type\":\"triggered_tags\",\"triggers\":[\"<function=\"],\"stop_after_first\":true,"
        "\"at_least_one\":true,\"excludes\":[\"zz\"]," TWO_TAGS "}",
        "<function=ab>zz</function>", NULL, "", "<function=a>1</function> ", NULL);
    CHECK_TAG("{\"type\":\"triggered_tags\",\"triggers\":[\"<fun\",\"unused\"],\"excludes\":["
              "\"zz\"]," TWO_TAGS "}",
              "z", "<fu", "<function=a>1</function>z", NULL, "<fun", "zz", "an unused", NULL);
    /* of two triggers that overlap in the text the first to end decides */
    CHECK_TAG(
        "{\"type\":\"triggered_tags\",\"triggers\":[\"abc\",\"bcd\"],\"tags\":[{\"begin\":\"abc\","
        "\"content\":" INTEGER
        ",\"end\":\"\"},{\"begin\":\"bcd\",\"content\":" S("!") ",\"end\":\"\"}]}",
        "abc1", "bcd!", "xbcd!", NULL, "abcd!", "abcd", NULL);
}

static void test_the_text_of_a_special_token_is_that_token(void **state) {
    (void)state;
    const char *tag =
        "{\"type\":\"triggered_tags\",\"triggers\":[\"<tool_call>\"],\"tags\":[{\"begin\":"
        "\"<tool_call>\\n{\",\"content\":" INTEGER ",\"end\":\"}</tool_call>\"}]}";
    CHECK_TAG(tag, "", "text", "a" CALL "\n{12}" DONE "b", "<tool_call>", NULL, CALL,
              CALL "\n{1}</tool_call>", CALL "{1}" DONE, "\x03", STOP, DONE, NULL);
    struct rp_matcher *m = tag_matcher(tag);
    uint32_t bits[GRAMMAR_WIDTH / 32];
    assert_int_equal(rp_matcher_mask(m, rp_matcher_start(m), bits, RP_MASK_FUEL), RP_OK);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(grammar_specials); i++)
        assert_int_equal(bits[GRAMMAR_SPECIAL(i) / 32] >> GRAMMAR_SPECIAL(i) % 32 & 1, i == 0);
    rp_matcher_free(m);
    /* the longest special token; a trigger that ends inside of one */
    CHECK_TAG(S("<tool_call>x"), "\x03", NULL, CALL "x", "<tool_call>x", NULL);
    CHECK_TAG(
        "{\"type\":\"triggered_tags\",\"triggers\":[\"<tool\"],\"tags\":[{\"begin\":"
        "\"<tool_call>\",\"content\":" S("1") ",\"end\":{\"type\":\"token\",\"token\":\"<|end|>\""
                                              "}}]}",
        "a" CALL "1" STOP "b", NULL, CALL "1<|end|>", NULL);
    CHECK_TAG("{\"type\":\"tag\",\"begin\":\"<tool_call>\",\"content\":{\"type\":\"any_text\"},"
              "\"end\":\"</tool_call>\"}",
              CALL DONE, CALL "a</tool_call>" DONE, NULL, CALL CALL DONE, CALL STOP, NULL);
    char by_id[256];
    snprintf(by_id, sizeof by_id,
             "{\"type\":\"token_triggered_tags\",\"trigger_tokens\":[%zu],\"tags\":[{\"begin\":{"
             "\"type\":\"token\",\"token\":\"<|end|>\"},\"content\":" INTEGER ",\"end\":\"\"}]}",
             (size_t)GRAMMAR_SPECIAL(3));
    CHECK_TAG(by_id, "ab" STOP "12", NULL, STOP, "<|end|>1" STOP, NULL);
}

static void test_without_a_trie_special_tokens_are_their_text(void **state) {
    struct rp_grammar *g;
    (void)state;
    const char *tag = S("<tool_call>");
    assert_int_equal(rp_grammar_compile_structural_tag(tag, strlen(tag), NULL, &g, NULL), RP_OK);
    struct rp_matcher *m = grammar_match(g);
    assert_true(takes(m, "<tool_call>", "no trie"));
    assert_false(takes(m, CALL, NULL));
    rp_matcher_free(m);
}

static void test_json_never_contains_special_tokens(void **state) {
    (void)state;
    uint32_t at, bits[GRAMMAR_WIDTH / 32];
    struct rp_matcher *m = schema_matcher("{\"type\":\"object\"}");
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "{\"a", 3, &at), RP_OK);
    assert_int_equal(rp_matcher_mask(m, at, bits, RP_MASK_FUEL), RP_OK);
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(grammar_specials); i++)
        assert_false(bits[GRAMMAR_SPECIAL(i) / 32] >> GRAMMAR_SPECIAL(i) % 32 & 1);
    rp_matcher_free(m);
}

static void test_lists_of_tags_and_dispatch(void **state) {
    (void)state;
    const char *tags =
        ",\"tags\":[{\"begin\":\"a\",\"content\":" INTEGER ",\"end\":\".\"},{\"begin\":"
        "\"b\",\"content\":" S("") ",\"end\":\"\"}]}";
    char text[512];
    snprintf(text, sizeof text, "{\"type\":\"tags_with_separator\",\"separator\":\", \"%s", tags);
    CHECK_TAG(text, "", "a1.", "b, a12., b", NULL, "a1., ", "a1.b", "x", NULL);
    snprintf(text, sizeof text,
             "{\"type\":\"tags_with_separator\",\"separator\":\"\",\"at_least_one\":true,"
             "\"stop_after_first\":true%s",
             tags);
    CHECK_TAG(text, "a1.", "b", NULL, "", "bb", NULL);
    CHECK_TAG("{\"type\":\"dispatch\",\"rules\":[[\"<x>\"," INTEGER
              "],[\"<tool_call>\"," S("!") "]],\"excludes\":[\"no\"]}",
              "", "a<x>12 b" CALL "!", NULL, "<x>", "<x>a", "no", CALL, NULL);
    CHECK_TAG("{\"type\":\"tag\",\"begin\":\"(\",\"content\":{\"type\":\"dispatch\",\"loop\":false,"
              "\"rules\":[[\"<x>\"," INTEGER "]],\"excludes\":[\")\"]},\"end\":\")\"}",
              "()", "(ab)", "(<x>1)", NULL, "(", "(<x>1 )", "(a)b)", NULL);
}

static void test_bounds_of_free_text_force_its_end(void **state) {
    (void)state;
    CHECK_TAG(
        "{\"type\":\"tag\",\"begin\":\"<a>\",\"content\":{\"type\":\"any_text\",\"max_chars\":3},"
        "\"end\":\"</a>\"}",
        "<a></a>", "<a>abc</a>", "<a>\xC3\xA9\xE4\xB8\xAD.</a>", "<a></a</a>", NULL, "<a>abcd</a>",
        "<a></ax</a>", NULL);
    CHECK_TAG(
        "{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\",\"max_chars\":2}," S("!") "]}",
        "!", "ab!", "!!", NULL, "abc!", NULL);
    struct rp_matcher *m = tag_matcher(
        "{\"type\":\"tag\",\"begin\":\"<a>\",\"content\":{\"type\":\"any_text\",\"max_tokens\":2},"
        "\"end\":\"</a>\"}");
    uint32_t word = 257 + 46, begin, one, two, three; /* "abc" */
    assert_string_equal(grammar_words[46], "abc");
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "<a>", 3, &begin), RP_OK);
    assert_int_equal(rp_matcher_advance(m, begin, word, &one), RP_OK);
    assert_int_equal(rp_matcher_advance(m, one, word, &two), RP_OK);
    assert_int_equal(rp_matcher_advance(m, two, word, &three), RP_STATUS_INVALID);
    (void)grammar_check_mask(m, one, "max_tokens");
    (void)grammar_check_mask(m, two, "max_tokens");
    assert_true(takes(m, "<a>x<</a>", "max_tokens")); /* the end begins within the bound */
    assert_true(takes(m, "<a>\xC3\xA9\xE4</a>", NULL) == false);
    assert_false(takes(m, "<a>xyz</a>", NULL));
    /* a character is not cut off */
    assert_true(takes(m, "<a>\xE4\xB8\xAD</a>", "max_tokens"));
    rp_matcher_free(m);
}

static void test_text_within_bounds_excludes_its_ends(void **state) {
    (void)state;
    CHECK_TAG("{\"type\":\"sequence\",\"elements\":[{\"type\":\"text\",\"pattern\":\"^[^>]*$\","
              "\"minLength\":2,\"maxLength\":5,\"excludes\":[\"</\",\"\"]}," S("</a") "]}",
              "ab</a", "a\xC3\xA9\xE4\xB8\xAD</a", "a<</a", NULL, "a</a", "abcdef</a", "a></a",
              "a</</a", NULL);
    CHECK_TAG("{\"type\":\"sequence\",\"elements\":[{\"type\":\"text\",\"minLength\":0,\"trim\":"
              "true}," S("\\n.") "]}",
              "\n.", "a b\n.", "a\nb\n.", "x\n.\n.", NULL, " a\n.", "a \n.", "a\n", NULL);
    CHECK_TAG("{\"type\":\"optional\",\"content\":{\"type\":\"text\",\"format\":\"date\"}}", "",
              "2024-02-29", NULL, "2024-13-01", NULL);
    check_refused("{\"type\":\"text\",\"minLength\":3,\"maxLength\":2}", "no text can satisfy it");
    check_refused("{\"type\":\"text\",\"pattern\":\"(\"}", "pattern");
    check_refused("{\"type\":\"text\",\"minLength\":\"2\"}", "minLength");
}

static void test_the_older_form_of_structures_and_triggers(void **state) {
    (void)state;
    CHECK_TAG(
        "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":"
        "\"integer\"},\"end\":\"</f>\"},{\"begin\":\"<g>\",\"schema\":\"{\\\"const\\\":1}\","
        "\"end\":\"\"}],\"triggers\":[\"<\"]}",
        "", "a<f>12</f>b", "<g>1", NULL, "<", "<g>2", NULL);
}

static void test_a_pointer_chooses_a_schema_of_a_document(void **state) {
    (void)state;
    CHECK_TAG(
        "{\"type\":\"json_schema\",\"json_schema\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/x\"}"
        "},\"$defs\":{\"x\":{\"enum\":[1,2]}}},\"pointer\":\"#/properties/a\"}",
        "1", "2", NULL, "3", "{}", NULL);
}

static void test_what_cannot_be_enforced_is_refused_by_name(void **state) {
    (void)state;
    check_refused("{\"type\":\"nothing\"}", "unknown format");
    check_refused("[]", "structural_tag");
    check_refused("{\"type\":\"const_string\",\"value\":\"a\",\"mode\":1}", "\"mode\"");
    check_refused("{\"type\":\"sequence\",\"elements\":[" S("a") ",{\"type\":\"const_string\"}]}",
                  "#/elements/1: \"value\"");
    check_refused("{\"type\":\"exclude_token\"}", "exclude_token");
    check_refused("{\"type\":\"token\",\"token\":100000}", "no token");
    check_refused("{\"type\":\"json_schema\",\"json_schema\":{\"uniqueItems\":true}}",
                  "uniqueItems");
    check_refused("{\"type\":\"json_schema\",\"json_schema\":false}", "no value");
    check_refused("{\"type\":\"json_schema\",\"json_schema\":{},\"style\":\"qwen_xml\"}", "style");
    check_refused("{\"type\":\"regex\",\"pattern\":\"(?=a)\"}", "look-ahead");
    check_refused("{\"type\":\"triggered_tags\",\"triggers\":[\"<x\"]," TWO_TAGS "}", "no trigger");
    check_refused("{\"type\":\"triggered_tags\",\"triggers\":[\"<f\",\"<fu\"]," TWO_TAGS "}",
                  "two triggers");
    check_refused(
        "{\"type\":\"tag\",\"begin\":\"\",\"content\":{\"type\":\"any_text\",\"excludes\":"
        "[\"x\"]},\"end\":\"axb\"}",
        "contains the excluded string");
    check_refused("{\"type\":\"repeat\",\"min\":3,\"max\":2,\"content\":" S("a") "}", "min");
    check_refused("{\"type\":\"any_text\",\"max_tokens\":-1}", "max_tokens");
}

static void test_many_tools_compile_and_share_their_prefix(void **state) {
    static char text[200000];
    size_t used =
        (size_t)snprintf(text, sizeof text,
                         "{\"type\":\"triggered_tags\",\"triggers\":[\"<tool_call>\"],\"tags\":[");
    (void)state;
    for (int i = 0; i < 200; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used,
            "%s{\"begin\":\"<tool_call>{\\\"name\\\": \\\"get_tool_%03d\\\", \\\"arguments\\\": "
            "\",\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"properties\":{\"p%d\":{"
            "\"type\":\"string\"},\"n\":{\"enum\":[%d,\"x\"]}},\"required\":[\"n\"]}},\"end\":\"}"
            "</tool_call>\"}",
            i ? "," : "", i, i, i);
    snprintf(text + used, sizeof text - used, "]}");
    struct rp_matcher *m = tag_matcher(text);
    uint32_t at;
    char forced[64];
    assert_int_equal(rp_matcher_advance(m, rp_matcher_start(m), GRAMMAR_SPECIAL(0), &at), RP_OK);
    size_t len = rp_matcher_forced(m, at, forced, sizeof forced);
    assert_int_equal(len, strlen("{\"name\": \"get_tool_"));
    assert_true(
        takes(m,
              "Hi " CALL "{\"name\": \"get_tool_137\", \"arguments\": {\"n\": 137}}" DONE CALL
              "{\"name\": \"get_tool_001\", \"arguments\": {\"p1\": \"<\", \"n\": \"x\"}}" DONE,
              "tools"));
    assert_false(
        takes(m, CALL "{\"name\": \"get_tool_137\", \"arguments\": {\"n\": 136}}" DONE, NULL));
    rp_matcher_free(m);
}

static void test_compiling_survives_every_allocation_that_fails(void **state) {
    const struct rp_grammar_limits limits = {.trie = grammar_trie};
    const char *tag = "{\"type\":\"triggered_tags\",\"triggers\":[\"<function=\"]," TWO_TAGS "}";
    (void)state;
    for (uint64_t n = 1; n < 400; n++) {
        struct rp_grammar *g = NULL;
        rp_alloc_fail_at(n);
        int rc = rp_grammar_compile_structural_tag(tag, strlen(tag), &limits, &g, NULL);
        rp_alloc_fail_at(0);
        if (rc != RP_OK && rc != RP_STATUS_NO_MEMORY && rc != RP_STATUS_FULL)
            fail_msg("allocation %u: %s", (unsigned)n, rp_status_name(rc));
        rp_grammar_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_compose),
        cmocka_unit_test(test_free_text_ends_at_the_first_end),
        cmocka_unit_test(test_a_trigger_forces_one_of_its_tags),
        cmocka_unit_test(test_the_text_of_a_special_token_is_that_token),
        cmocka_unit_test(test_without_a_trie_special_tokens_are_their_text),
        cmocka_unit_test(test_json_never_contains_special_tokens),
        cmocka_unit_test(test_lists_of_tags_and_dispatch),
        cmocka_unit_test(test_bounds_of_free_text_force_its_end),
        cmocka_unit_test(test_text_within_bounds_excludes_its_ends),
        cmocka_unit_test(test_the_older_form_of_structures_and_triggers),
        cmocka_unit_test(test_a_pointer_chooses_a_schema_of_a_document),
        cmocka_unit_test(test_what_cannot_be_enforced_is_refused_by_name),
        cmocka_unit_test(test_many_tools_compile_and_share_their_prefix),
        cmocka_unit_test(test_compiling_survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
