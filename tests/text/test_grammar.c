/* Goal: a mask is exactly the tokens whose bytes can come next, states are values, and every bound
 * is kept. */
#include "base/memory.h"
#include "tests/text/grammar_fixture.h"
#include "text/grammar/grammar_internal.h"

#include <stdlib.h>

static const char *const schemas[] = {
    "{}",
    "{\"type\":\"object\"}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}",
    "{\"type\":\"string\",\"minLength\":3}",
    "{\"type\":\"string\",\"maxLength\":300}",
    "{\"type\":\"string\",\"pattern\":\"^(abc|[a-f]+)$\"}",
    "{\"type\":\"string\",\"pattern\":\"the\",\"maxLength\":9}",
    "{\"type\":\"string\",\"pattern\":\"^([^@\\\\s]+@|..)+\\\\p{L}?$\",\"minLength\":4,"
    "\"maxLength\":7}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":1023}",
    "{\"type\":\"number\",\"exclusiveMinimum\":0.05,\"maximum\":99.5}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"foo\",1,null]},\"minItems\":1,\"maxItems\":"
    "3}",
    "{\"properties\":{\"name\":{\"type\":\"string\"},\"foo\":{\"type\":\"integer\"}},\"required\":["
    "\"foo\"]}",
    "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"}},\"minProperties\":1}",
    "{\"anyOf\":[{\"const\":\"foo\"},{\"type\":\"string\",\"pattern\":\"^fo+$\"},{\"type\":"
    "\"object\"}]}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"additionalProperties\":false}",
    "{\"not\":{\"enum\":[\"foo\",\"the\",1]}}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z ]{2,9}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^(?:\\\\S+\\\\s+){0,9}\\\\S+$\",\"minLength\":1,"
    "\"maxLength\":"
    "40}",
    "{\"type\":\"string\",\"pattern\":\"[0-9a-f]{12}\"}",
    "{\"type\":\"string\",\"pattern\":\"[a-f]+\",\"minLength\":7,\"maxLength\":7}",
    "{\"type\":\"string\",\"pattern\":\"^[^/\\u00e9]+$\"}",
    "{\"type\":\"string\",\"pattern\":\"^\\\\S+$\",\"maxLength\":5}",
    "{\"type\":\"string\",\"pattern\":\"^(?:aa|bbbbb)+$\",\"minLength\":6,\"maxLength\":13}",
    "{\"type\":\"string\",\"pattern\":\"^(?:[a-z]{3}){1,3}$\",\"minLength\":4,\"maxLength\":8}",
    "{\"type\":\"object\",\"patternProperties\":{\"^mode\":{\"const\":1},\"[0-9a-f]{3}\":{\"type\":"
    "\"integer\"}},\"additionalProperties\":{\"const\":\"a\"}}",
    "{\"type\":\"object\",\"patternProperties\":{\"^[^ ]*$\":{\"const\":1}},\"minProperties\":1}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^[^t]*$"
    "\"},{"
    "\"type\":\"string\",\"pattern\":\"^t\"}]}",
    "{\"type\":\"array\",\"contains\":{\"enum\":[\"the\",1]},\"minItems\":1}",
    "{\"type\":\"object\",\"properties\":{\"a\":{},\"foo\":{}},\"not\":{\"properties\":{\"a\":{}},"
    "\"additionalProperties\":false}}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"foo\":{\"const\":1}},\"required\":[\"foo\"]"
    "},{"
    "\"type\":\"object\",\"properties\":{\"foo\":{\"const\":2},\"the\":{}},\"required\":[\"foo\"]}]"
    "}",
    "{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":-3,\"maximum\":70}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z0-9]{3}-[0-9A-Za-z]{2,34}-[A-Z]?$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z0-9()]+(?:[-(][a-z0-9]+)*$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[\\\\w.\\u00a0-\\uffff ]{1,39}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z\\u00a0-\\u00bf]+:?[^:]*$\",\"minLength\":3,"
    "\"maxLength\":60}",
    "{\"type\":\"string\",\"pattern\":\"^(?:(?:ab|c)[a-z]{4}|[0-9]a?)+$\"}",
    "{\"type\":\"string\",\"format\":\"uri\"}",
    "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[a-z_]*$\"},{\"type\":\"string\",\"pattern\":"
    "\"^[^a]+$\",\"maxLength\":35}]}",
};

static void test_masks_are_the_tokens_whose_bytes_fit(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemas); i++)
        for (int turn = 0; turn < 6; turn++) {
            struct rp_matcher *m = schema_matcher(schemas[i]);
            grammar_walk(m, schemas[i], 25);
            rp_matcher_free(m);
        }
}

static void test_masks_of_patterns_are_the_tokens_whose_bytes_fit(void **state) {
    static const char *const patterns[] = {"(the|abc)+[0-9]{2,4}", "[^\"]*", "\\p{L}+ \\w*",
                                           ".*foo.*", "(a|b|ab)*c?"};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(patterns); i++)
        for (int turn = 0; turn < 4; turn++) {
            struct rp_matcher *m = regex_matcher(patterns[i]);
            grammar_walk(m, patterns[i], 12);
            rp_matcher_free(m);
        }
}

static void test_choices_end_only_where_one_is_whole(void **state) {
    static const char *const choices[] = {"abc", "abcdef", "the", "\xC3\xA9"};
    struct rp_grammar *g;
    (void)state;
    assert_int_equal(rp_grammar_compile_choice(choices, 4, NULL, &g, NULL), RP_OK);
    struct rp_matcher *m = grammar_match(g);
    for (int turn = 0; turn < 10; turn++)
        grammar_walk(m, "choices", 10);
    for (size_t i = 0; i < 4; i++)
        assert_true(matcher_takes(m, choices[i], strlen(choices[i])));
    assert_false(matcher_takes(m, "abcd", 4));
    assert_false(matcher_takes(m, "", 0));
    rp_matcher_free(m);
    assert_int_equal(rp_grammar_compile_choice(choices, 0, NULL, &g, NULL), RP_STATUS_RANGE);
}

static void test_states_can_be_gone_back_to_and_are_equal_when_what_follows_is(void **state) {
    uint32_t before[GRAMMAR_WIDTH / 32], after[GRAMMAR_WIDTH / 32], one, two, far;
    (void)state;
    struct rp_matcher *m = schema_matcher(schemas[1]);
    uint32_t start = rp_matcher_start(m);
    assert_int_equal(rp_matcher_advance_bytes(m, start, "{\"k\": [1, 2", 11, &one), RP_OK);
    assert_int_equal(rp_matcher_mask(m, one, before, RP_MASK_FUEL), RP_OK);
    assert_int_equal(rp_matcher_advance_bytes(m, one, "3, {\"deep\": [[[[\"x", 18, &far), RP_OK);
    assert_int_not_equal(far, one);
    assert_int_equal(rp_matcher_mask(m, one, after, RP_MASK_FUEL), RP_OK);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(rp_matcher_advance_bytes(m, start, "{ \"other\":[true,42", 18, &two), RP_OK);
    assert_int_equal(one, two);
    assert_int_equal(rp_matcher_advance_bytes(m, one, "}", 1, &two), RP_STATUS_INVALID);
    rp_matcher_free(m);
}

static void test_the_end_is_allowed_only_where_the_text_may_end(void **state) {
    uint32_t at, bits[GRAMMAR_WIDTH / 32];
    (void)state;
    struct rp_matcher *m = schema_matcher("{\"type\":\"integer\"}");
    uint32_t start = rp_matcher_start(m);
    assert_int_equal(rp_matcher_advance(m, start, GRAMMAR_END, &at), RP_STATUS_INVALID);
    assert_int_equal(rp_matcher_advance_bytes(m, start, "17", 2, &at), RP_OK);
    assert_int_equal(rp_matcher_mask(m, at, bits, RP_MASK_FUEL), RP_OK);
    assert_true(bits[0] & 1u << GRAMMAR_END);
    rp_matcher_free(m);
}

static void test_forced_bytes_go_on_until_there_is_a_choice(void **state) {
    char out[64];
    (void)state;
    struct rp_matcher *m = regex_matcher("hello (world|there)!");
    size_t len = rp_matcher_forced(m, rp_matcher_start(m), out, sizeof out);
    assert_int_equal(len, 6);
    assert_memory_equal(out, "hello ", 6);
    rp_matcher_free(m);
}

static void test_fuel_ends_a_mask_the_same_way_with_and_without_its_cache(void **state) {
    uint32_t bits[GRAMMAR_WIDTH / 32];
    (void)state;
    struct rp_matcher *m = schema_matcher("{\"type\":\"string\",\"pattern\":\"[a-z]+x\"}");
    uint32_t at;
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "\"ab", 3, &at), RP_OK);
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(rp_matcher_mask(m, at, bits, 5), RP_STATUS_FULL);
        assert_int_equal(rp_matcher_mask(m, at, bits, RP_MASK_FUEL), RP_OK);
    }
    rp_matcher_free(m);
}

/* The least fuel with which the mask after `text` is made, in a new matcher. */
static uint64_t fuel_of(const char *schema, const char *text) {
    uint32_t bits[GRAMMAR_WIDTH / 32], at;
    struct rp_matcher *m = schema_matcher(schema);
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), text, strlen(text), &at),
                     RP_OK);
    uint64_t low = 1, high = (uint64_t)RP_MASK_FUEL * 64;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (rp_matcher_mask(m, at, bits, middle) == RP_OK)
            high = middle;
        else
            low = middle + 1;
    }
    rp_matcher_free(m);
    return low;
}

static void test_a_pattern_with_bounds_of_length_costs_no_search(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"string\",\"pattern\":\"^([a-z]+[.-]?)+[a-z]+$\","
                                 "\"minLength\":3000,\"maxLength\":4000}";
    struct rp_grammar *g;
    uint32_t at;
    assert_int_equal(rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, NULL), RP_OK);
    struct rp_matcher *m = grammar_match(g);
    uint64_t before = g->derivatives;
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "\"a", 2, &at), RP_OK);
    assert_in_range(g->derivatives - before, 1, 2000);
    rp_matcher_free(m);
    assert_in_range(fuel_of(schema, "\"ab"), 1, RP_MASK_FUEL / 10);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^(aaa)*$\",\"minLength\":4,\"maxLength\":8}",
                 "\"aaaaaa\"", NULL, "\"aaa\"", "\"aaaaaaa\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^(a{4}|b{9,11})*c?$\",\"minLength\":6,"
                 "\"maxLength\":9}",
                 "\"aaaaaaaa\"", "\"aaaaaaaac\"", "\"bbbbbbbbb\"", NULL, "\"aaaa\"", "\"aaaac\"",
                 "\"bbbbbbbbbc\"", NULL);
}

static void test_keys_that_match_no_pattern_need_few_searches(void **state) {
    (void)state;
    static const char some[] = "{\"type\":\"object\",\"patternProperties\":{\".+\":{\"type\":"
                               "\"integer\"}},\"properties\":{\"name\":true}}";
    static const char two[] =
        "{\"type\":\"object\",\"patternProperties\":{\"net_[a-z]+[0-9]\":{\"type\":\"integer\"},"
        "\"netdir_(work|share)\":{\"type\":\"null\"}},\"additionalProperties\":false}";
    assert_in_range(fuel_of(some, "{\""), 1, RP_MASK_FUEL / 4);
    assert_in_range(fuel_of(some, "{\"na"), 1, RP_MASK_FUEL / 4);
    assert_in_range(fuel_of(two, "{\"net"), 1, RP_MASK_FUEL / 4);
    CHECK_SCHEMA(some, "{\"x\":1}", "{\"\\n\":null}", "{\"name\":2}", "{}", NULL, "{\"x\":null}",
                 "{\"name\":null}", "{\"\\n \":null}", NULL);
    CHECK_SCHEMA(two, "{\"net_ab1\":1}", "{\"xnetdir_workx\":null}", NULL, "{\"net_ab\":1}",
                 "{\"netdir_work\":1}", "{\"net_a1netdir_work\":null}", "{\"x\":null}", NULL);
}

/* The forms that a normal form joins or drops, at every byte of a character. */
static void test_conditions_on_the_same_characters_are_joined(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^[^x]+$\",\"not\":{\"pattern\":\"^[^y]*$\"}}",
                 "\"y\"", "\"\xC3\xA9y\"", "\"\\u00e9y\"", "\"y\xF0\x9F\x98\x80\"", NULL, "\"a\"",
                 "\"\xC3\xA9\"", "\"xy\"", "\"\\ud83d\\ude00\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^.{2,3}$\",\"minLength\":1,\"maxLength\":9}",
                 "\"ab\"", "\"\xC3\xA9x\"", NULL, "\"a\"", "\"abcd\"", NULL);
    static const char none[] = "{\"type\":\"string\",\"pattern\":\"a\",\"not\":{\"pattern\":\"\"}}";
    struct rp_grammar *g;
    assert_int_equal(rp_grammar_compile_json_schema(none, strlen(none), NULL, &g, NULL),
                     RP_STATUS_UNSUPPORTED);
}

/* Lengths of both patterns are known, but not what they have in common: each state is searched. */
static void test_searches_end_a_mask_the_same_way_whatever_was_done_before(void **state) {
    static const char schema[] = "{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^([a-z]{3})*$\"},"
                                 "{\"pattern\":\"^([a-z]{5})*x$\"}]}";
    uint32_t bits[GRAMMAR_WIDTH / 32], at;
    (void)state;
    uint64_t fuel = fuel_of(schema, "\"ab");
    assert_in_range(fuel, 2000, RP_MASK_FUEL);
    struct rp_matcher *m = schema_matcher(schema);
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "\"ab", 3, &at), RP_OK);
    grammar_walk(m, schema, 40); /* makes states and masks beyond */
    assert_int_equal(rp_matcher_mask(m, at, bits, fuel - 1), RP_STATUS_FULL);
    assert_int_equal(rp_matcher_mask(m, at, bits, fuel), RP_OK);
    assert_int_equal(rp_matcher_mask(m, at, bits, fuel - 1), RP_STATUS_FULL);
    rp_matcher_free(m);
}

static void test_a_search_without_end_ends_the_request(void **state) {
    static const char schema[] =
        "{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^y|^([a-z]{251})*$\"},"
        "{\"pattern\":\"^y|^([a-z]{257})*x$\"}]}";
    struct rp_grammar *g;
    uint32_t at;
    (void)state;
    assert_int_equal(rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, NULL), RP_OK);
    struct rp_matcher *m = grammar_match(g);
    uint64_t before = g->derivatives;
    for (int turn = 0; turn < 2; turn++)
        assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "\"a", 2, &at),
                         RP_STATUS_FULL);
    assert_in_range(g->derivatives - before, 1, RP_MASK_FUEL * 3);
    rp_matcher_free(m);
}

static void test_memory_of_a_grammar_is_bounded_while_it_matches(void **state) {
    struct rp_grammar_limits limits = {.memory_bytes = 256 << 10};
    static const char schema[] = "{\"type\":\"string\",\"maxLength\":1000000}";
    struct rp_grammar *g;
    uint32_t at;
    int rc = RP_OK;
    (void)state;
    assert_int_equal(rp_grammar_compile_json_schema(schema, strlen(schema), &limits, &g, NULL),
                     RP_OK);
    struct rp_matcher *m = grammar_match(g);
    assert_int_equal(rp_matcher_advance_bytes(m, rp_matcher_start(m), "\"", 1, &at), RP_OK);
    for (int i = 0; i < 100000 && rc == RP_OK; i++)
        rc = rp_matcher_advance_bytes(m, at, "a", 1, &at);
    assert_int_equal(rc, RP_STATUS_FULL);
    assert_true(rp_grammar_memory(g) <= limits.memory_bytes);
    rp_matcher_free(m);
}

static void test_compiling_survives_every_allocation_that_fails(void **state) {
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,\"x\"]},"
                                 "\"b\":{\"pattern\":\"^[a-z]+$\"},\"c\":{\"oneOf\":[{\"type\":"
                                 "\"null\"},{\"$ref\":\"#\"}]}}}";
    (void)state;
    for (uint64_t n = 1; n < 400; n++) {
        struct rp_grammar *g = NULL;
        rp_alloc_fail_at(n);
        int rc = rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, NULL);
        rp_alloc_fail_at(0);
        if (rc != RP_OK && rc != RP_STATUS_NO_MEMORY)
            fail_msg("allocation %u: %s", (unsigned)n, rp_status_name(rc));
        rp_grammar_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_the_tokens_whose_bytes_fit),
        cmocka_unit_test(test_masks_of_patterns_are_the_tokens_whose_bytes_fit),
        cmocka_unit_test(test_choices_end_only_where_one_is_whole),
        cmocka_unit_test(test_states_can_be_gone_back_to_and_are_equal_when_what_follows_is),
        cmocka_unit_test(test_the_end_is_allowed_only_where_the_text_may_end),
        cmocka_unit_test(test_forced_bytes_go_on_until_there_is_a_choice),
        cmocka_unit_test(test_fuel_ends_a_mask_the_same_way_with_and_without_its_cache),
        cmocka_unit_test(test_a_pattern_with_bounds_of_length_costs_no_search),
        cmocka_unit_test(test_keys_that_match_no_pattern_need_few_searches),
        cmocka_unit_test(test_conditions_on_the_same_characters_are_joined),
        cmocka_unit_test(test_searches_end_a_mask_the_same_way_whatever_was_done_before),
        cmocka_unit_test(test_a_search_without_end_ends_the_request),
        cmocka_unit_test(test_memory_of_a_grammar_is_bounded_while_it_matches),
        cmocka_unit_test(test_compiling_survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
