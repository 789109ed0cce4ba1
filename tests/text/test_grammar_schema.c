/* Goal: a JSON Schema accepts its values and no others; what cannot be enforced is refused with
 * keyword and JSON pointer. */
#include "tests/text/grammar_fixture.h"

#include <stdio.h>

static void test_types_and_values(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":[\"null\",\"boolean\"]}", "null", "true", NULL, "1", "nul", NULL);
    CHECK_SCHEMA("{\"enum\":[\"a\\\"b\",1.5,[1,{\"x\":null}]]}", "\"a\\\"b\"", "1.5",
                 "[ 1, {\"x\" : null}]", NULL, "\"a\"", "1", "[1]", NULL);
    CHECK_SCHEMA("{\"enum\":[1,\"a\",\"abc\",null],\"type\":\"string\",\"minLength\":2}", "\"abc\"",
                 NULL, "\"a\"", "1", "null", NULL);
    CHECK_SCHEMA("true", "{\"a\":[1,2.5e-3,\"\\ud83d\\ude00\"]}", NULL, "{", "01", "\"\\ud83d\"",
                 "\"\x01\"", "[1,]", "\"\xC3\"", NULL);
    check_schema_refused("false", "no value can satisfy");
    check_schema_refused("{\"type\":\"strng\"}", "\"type\"");
}

static void test_ranges_of_numbers(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}", "-12", "-3", "0", "9",
                 "99", "100", "105", NULL, "-13", "106", "1000", "05", "1.0", NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"minimum\":1.25,\"exclusiveMaximum\":12}", "1.25", "1.3",
                 "2", "11.999", "10.0", "1.250", NULL, "1.2", "1.24999", "12", "12.0", "-2", "1",
                 NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":-0.5,\"maximum\":0}", "-0.4", "0",
                 "-0.0", "0.0", "-0", NULL, "-0.5", "-0.50", "0.1", "-1", NULL);
    CHECK_SCHEMA("{\"type\":\"integer\",\"multipleOf\":7}", "0", "-7", "42", "1001", NULL, "1",
                 "43", NULL);
    CHECK_SCHEMA("{\"multipleOf\":0.01,\"type\":\"number\"}", "1", "1.25", NULL, "1.255", NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"minimum\":5,\"exclusiveMinimum\":true}", "5.1", "6", NULL,
                 "5", "5.0", NULL);
    CHECK_SCHEMA("{\"multipleOf\":0.25,\"type\":\"number\",\"maximum\":30}", "1", "-0.75", "1.5",
                 "1.50", "30", NULL, "1.1", "0.3", "0.125", "1.", "30.25", NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"not\":{\"multipleOf\":2.5}}", "1", "2.25", NULL, "5",
                 "2.5", "2.50", "0", "-7.5", "5.0", NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1.5", "-0.01", NULL, "1",
                 "1.0", "0", NULL);
    check_schema_refused("{\"multipleOf\":1001}", "#: \"multipleOf\"");
    check_schema_refused("{\"multipleOf\":0.0000001}", "#: \"multipleOf\"");
}

/* Every integer near the bounds, by the digit automata and by arithmetic. */
static void test_ranges_agree_with_arithmetic(void **state) {
    static const int bounds[] = {-1001, -100, -19, -1, 0, 1, 9, 10, 99, 120, 999};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(bounds); i++)
        for (size_t k = i; k < RP_ARRAY_COUNT(bounds); k++) {
            char schema[96], text[16];
            snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}",
                     bounds[i], bounds[k]);
            struct rp_matcher *m = schema_matcher(schema);
            for (int value = -1105; value <= 1105; value++) {
                int len = snprintf(text, sizeof text, "%d", value);
                if (matcher_takes(m, text, (size_t)len) !=
                    (value >= bounds[i] && value <= bounds[k]))
                    fail_msg("%s: %s", schema, text);
            }
            rp_matcher_free(m);
        }
}

static void test_strings_are_counted_in_characters(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"ab\"",
                 "\"\xC3\xA9\xF0\x9F\x98\x80\"", "\"\\n\\ud83d\\ude00a\"", NULL, "\"a\"",
                 "\"abcd\"", "\"\xF0\x9F\x98\x80\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^a+$\",\"minLength\":2,\"maxLength\":3}",
                 "\"aa\"", "\"aaa\"", NULL, "\"a\"", "\"aaaa\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^[A-Z\\\\\\\\a-z]*d$\"}", "\"\\\\d\"",
                 "\"AZ\\\\\\\\ad\"", NULL, "\"]d\"", "\"[d\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^\\\\\\\\d+/\\\\\\\\d$\"}", "\"\\\\d/\\\\d\"",
                 NULL, "\"d/d\"", "\"1/1\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", "\"1999-12-31\"",
                 NULL, "\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"",
                 NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"format\":\"ipv6\"}", "\"::1\"", "\"fe80::1:2\"",
                 "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\"", NULL, "\"1:2:3\"", "\"1::2::3\"",
                 "\"12345::\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"format\":\"uuid\"}",
                 "\"123e4567-e89b-12d3-a456-426614174000\"", NULL,
                 "\"123e4567e89b12d3a456426614174000\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"format\":\"regex\"}", "\"^[a-z_]+(?:x|y\\\\d){2}$\"",
                 "\"^[a-z]{3,16}b{0,1}$\"", NULL, "\"a{3,2}\"", "\"a{11,9}\"", "\"(\"", "\"[a\"",
                 "\"*\"", "\"a**\"", "\"\\\\\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"not\":{\"format\":\"ipv4\"}}", "\"a\"", NULL,
                 "\"1.2.3.4\"", "\"\\u0031.2.3.4\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^/[^\\u0000]+$\"}", "\"/a\"", NULL,
                 "\"/\\u0000\"", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"pattern\":\"^(?:ab|cde)+$\",\"minLength\":4,"
                 "\"maxLength\":6}",
                 "\"abab\"", "\"abcde\"", "\"cdecde\"", NULL, "\"ab\"", "\"ababcde\"", "\"cdea\"",
                 NULL);
}

static void test_arrays(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":2}",
                 "[null]", "[null , null]", NULL, "[]", "[null,null,null]", "[1]", NULL);
    CHECK_SCHEMA(
        "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", "[]",
        "[1]", "[1,2]", NULL, "[2]", "[1,2,3]", NULL);
    CHECK_SCHEMA("{\"type\":\"array\",\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2},"
                 "\"minItems\":2}",
                 "[1,2]", "[1,2,2]", NULL, "[1]", "[1,1]", NULL);
    CHECK_SCHEMA("{\"type\":\"array\",\"maxItems\":0}", "[]", "[  ]", NULL, "[1]", "[         ]",
                 NULL);
    check_schema_refused("{\"properties\":{\"a/b\":{\"uniqueItems\":true}}}",
                         "#/properties/a~1b: \"uniqueItems\"");
    CHECK_SCHEMA("{\"contains\":{\"type\":\"null\"}}", "[null]", "[1,null,2]", "1", NULL, "[]",
                 "[1]", NULL);
    CHECK_SCHEMA(
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},"
        "\"minContains\":1,\"maxContains\":2,\"maxItems\":3}",
        "[5]", "[1,7,2]", "[6,6]", NULL, "[]", "[1]", "[6,6,6]", "[1,2,3,7]", NULL);
    CHECK_SCHEMA("{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":0,"
                 "\"maxContains\":0}",
                 "[]", "[2]", NULL, "[1]", "[2,1]", NULL);
    CHECK_SCHEMA("{\"type\":\"array\",\"minItems\":2,\"not\":{\"contains\":{\"const\":1}}}",
                 "[2,3]", NULL, "[2]", "[1,2]", "[2,1]", NULL);
    check_schema_refused("{\"contains\":true,\"minContains\":5000}", "\"contains\"");
}

static void test_objects(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"b\":{\"const\":1},\"a\":{\"const\":2}},"
                 "\"required\":[\"a\"],"
                 "\"additionalProperties\":false}",
                 "{\"a\":2}", "{ \"b\" : 1 , \"a\":2 }", NULL, "{}", "{\"b\":1}",
                 "{\"a\":2,\"b\":1}", "{\"a\":1}", "{\"a\":2,\"c\":1}", "{\"a\":2,}", "{,\"a\":2}",
                 NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},"
                 "\"additionalProperties\":{\"const\":2}}",
                 "{\"ab\":1,\"abc\":2}", "{\"a\":2}", "{}", NULL, "{\"ab\":2}",
                 "{\"c\":2,\"ab\":2}", "{\"\\u0061b\":2}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"const\":1},\"y$\":{"
                 "\"type\":\"integer\"}},"
                 "\"additionalProperties\":{\"const\":3}}",
                 "{\"x\":1,\"y\":7,\"xy\":1,\"z\":3}", NULL, "{\"xy\":2}", "{\"z\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"const\":1},\"minProperties\":1,"
                 "\"maxProperties\":2}",
                 "{\"a\":1}", "{\"a\":1,\"b\":1}", NULL, "{}", "{\"a\":1,\"b\":1,\"c\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":1},"
                 "\"c\":{\"const\":1}},"
                 "\"additionalProperties\":false,\"minProperties\":2,\"maxProperties\":2}",
                 "{\"a\":1,\"b\":1}", "{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}", NULL, "{\"a\":1}",
                 "{\"a\":1,\"b\":1,\"c\":1}", "{}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[ab]+$\"}}", "{\"ab\":1}",
                 "{}", NULL, "{\"c\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"b\"]}",
                 "{\"b\":1}", NULL, "{\"a\":1,\"b\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]},\"properties\":{\"a\":"
                 "{},\"b\":{}}}",
                 "{\"a\":1,\"b\":1}", "{\"b\":1}", "{}", NULL, "{\"a\":1}", NULL);
}

static void test_combined_schemas(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", "12",
                 "\"a\"", NULL, "\"ab\"", "null", NULL);
    CHECK_SCHEMA("{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}],\"type\":\"string\"}",
                 "\"ab\"", "\"axb\"", NULL, "\"a\"", "\"b\"", NULL);
    CHECK_SCHEMA("{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
                 "\"properties\":{"
                 "\"a\":{},\"b\":{}}}",
                 "{\"a\":1}", "{\"b\":1}", NULL, "{\"a\":1,\"b\":1}", "{}", NULL);
    CHECK_SCHEMA(
        "{\"oneOf\":[{\"type\":\"number\",\"maximum\":5},{\"type\":\"number\",\"minimum\":3}]}",
        "2", "6", NULL, "4", "3", "5", NULL);
    CHECK_SCHEMA("{\"not\":{\"type\":[\"string\",\"object\"]}}", "1", "null", "[]", NULL, "\"a\"",
                 "{}", NULL);
    CHECK_SCHEMA("{\"type\":\"string\",\"not\":{\"enum\":[\"no\",\"never\"]}}", "\"non\"", "\"n\"",
                 NULL, "\"no\"", "\"\\u006eo\"", "\"never\"", NULL);
    CHECK_SCHEMA("{\"type\":\"array\",\"not\":{\"enum\":[[1,{\"a\":2}],[]]}}", "[1]",
                 "[1,{\"a\":3}]", "[1,{}]", "[1,{\"a\":2,\"b\":1}]", "[1,{\"a\":2},3]", NULL, "[]",
                 "[ ]", "[1,{\"a\":2}]", NULL);
    CHECK_SCHEMA("{\"type\":\"number\",\"not\":{\"const\":1}}", "10", "1.5", "0", NULL, "1", "1.0",
                 NULL);
    CHECK_SCHEMA(
        "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"v\":{}},"
        "\"required\":[\"k\"],"
        "\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},\"then\":{\"required\":[\"v\"]},"
        "\"else\":{\"properties\":{\"v\":false}}}",
        "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\"}", NULL, "{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":1}",
        NULL);
    CHECK_SCHEMA("{\"oneOf\":[{\"items\":{}},{\"items\":{\"type\":\"null\"}}]}", "[1]", "[null,1]",
                 NULL, "[null]", "[]", "1", NULL);
    CHECK_SCHEMA("{\"not\":{\"oneOf\":[{\"minimum\":3},{\"maximum\":5}]},\"type\":\"integer\"}",
                 "3", "4", NULL, "2", "6", NULL);
    check_schema_refused("{\"not\":{\"uniqueItems\":true}}", "\"uniqueItems\"");
}

static void test_branches_that_share_no_value_are_told_by_their_values(void **state) {
    static const char schema[] =
        "{\"oneOf\":[{\"required\":[\"k\"],\"properties\":{\"k\":{\"type\":\"array\",\"items\":{"
        "\"enum\":[\"a\",\"b\"]},\"minItems\":1}}},{\"required\":[\"k\"],\"properties\":{\"k\":{"
        "\"enum\":[["
        "\"the\"],[\"a\",1],[]]}}},{\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":{\"a\":1}"
        "}}}]}";
    (void)state;
    CHECK_SCHEMA(schema, "{\"k\":[\"a\"]}", "{\"k\":[\"the\"]}", "{\"k\":[\"a\",1]}", "{\"k\":[]}",
                 "{\"k\":{\"a\":1},\"x\":2}", NULL, "{\"k\":[\"the\",\"a\"]}", "{\"k\":{\"a\":2}}",
                 "{}", NULL);
    CHECK_SCHEMA(
        "{\"oneOf\":[{\"enum\":[[1],[2],{\"a\":1}]},{\"type\":\"array\",\"items\":{\"maximum\":"
        "1}},{\"type\":\"object\",\"required\":[\"b\"]}]}",
        "[2]", "[0]", "{\"a\":1}", "{\"b\":1}", NULL, "[1]", "{\"a\":2}", NULL);
    /* 1 and 1.0 are equal, also inside */
    CHECK_SCHEMA("{\"oneOf\":[{\"enum\":[[1],[3]]},{\"enum\":[[1.0],[4]]}]}", "[3]", "[4]", NULL,
                 "[1]", NULL);
    CHECK_SCHEMA("{\"allOf\":[{\"enum\":[{\"a\":[1]},2]},{\"enum\":[{\"a\":[1.0]},3]}]}",
                 "{\"a\":[1]}", NULL, "2", "3", NULL);
    /* objects alone: other types would satisfy both branches */
    CHECK_SCHEMA(
        "{\"type\":\"object\",\"oneOf\":[{\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":1}"
        "}},{\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":2}}}]}",
        "{\"k\":1}", "{\"k\":2}", NULL, "null", "{}", "{\"k\":3}", NULL);
    CHECK_SCHEMA(
        "{\"type\":[\"object\",\"null\"],\"oneOf\":[{\"required\":[\"k\"],\"properties\":{\"k\":{"
        "\"const\":1}}},{\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":2}}}]}",
        "{\"k\":1}", "{\"k\":2}", NULL, "null", "{}", "{\"k\":3}", NULL);
}

static void test_what_pairs_must_not_all_be(void **state) {
    (void)state;
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"properties\":{"
                 "\"a\":{}},\"additionalProperties\":false}}",
                 "{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"c\":1}", "{\"c\":1,\"d\":2}", NULL, "{}",
                 "{\"a\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":[\"integer\",\"null\"]},"
                 "\"not\":{\"additionalProperties\":{\"type\":\"integer\"}}}",
                 "{\"a\":null}", "{\"a\":1,\"b\":null}", NULL, "{}", "{\"a\":1}",
                 /* readers may take the last of two equal keys */
                 "{\"a\":null,\"a\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"not\":{\"patternProperties\":{\"^x\":{\"const\":1}}}}",
                 "{\"x\":2}", "{\"a\":1,\"xy\":0}", NULL, "{}", "{\"x\":1}", "{\"a\":2}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"not\":{\"propertyNames\":{\"enum\":[\"a\",\"b\"]}},"
                 "\"maxProperties\":1}",
                 "{\"c\":1}", NULL, "{}", "{\"a\":1}", "{\"\\u0061\":1}", "{\"c\":1,\"d\":1}",
                 NULL);
    CHECK_SCHEMA(
        "{\"type\":\"object\",\"properties\":{\"k\":{}},\"oneOf\":[{\"additionalProperties\":"
        "{\"type\":\"string\"}},{\"required\":[\"k\"]}]}",
        "{}", "{\"a\":\"s\"}", "{\"k\":1}", NULL, "{\"k\":\"s\"}", "{\"a\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[{\"const\":\"a\"},{\"not\":{"
                 "\"pattern\":\"^.$\"}}]}}",
                 "{\"a\":1,\"bc\":2}", NULL, "{\"b\":1}", NULL);
    CHECK_SCHEMA(
        "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"const\":1},\"^b\":{\"const\":2"
        "},\"^c\":{\"const\":3},\"^d\":{\"const\":4},\"z$\":{\"minimum\":2}},"
        "\"additionalProperties\":false}",
        "{\"a\":1,\"bz\":2,\"dx\":4,\"z\":9}", NULL, "{\"az\":1}", "{\"e\":1}", NULL);
    CHECK_SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"not\":{"
                 "\"dependentRequired\":{\"a\":[\"b\"]}}}",
                 "{\"a\":1}", NULL, "{}", "{\"b\":1}", "{\"a\":1,\"b\":1}", NULL);
    check_schema_refused("{\"required\":[\"a\\u0000\"]}", "\"required\"");
}

static void test_references(void **state) {
    (void)state;
    CHECK_SCHEMA(
        "{\"$ref\":\"#/$defs/"
        "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/t\"}},"
        "\"additionalProperties\":false}}}",
        "{}", "{\"n\":{\"n\":{}}}", NULL, "{\"n\":1}", "{\"n\":{\"n\":{}}", NULL);
    CHECK_SCHEMA("{\"$defs\":{\"a\":{\"$anchor\":\"x\",\"type\":\"null\"}},\"$ref\":\"#x\"}",
                 "null", NULL, "1", NULL);
    CHECK_SCHEMA("{\"$ref\":\"#/$defs/a%25b~1c\",\"$defs\":{\"a%b/c\":{\"const\":1}}}", "1", NULL,
                 "2", NULL);
    check_schema_refused("{\"$ref\":\"#/nowhere\"}", "leads nowhere");
    check_schema_refused("{\"$ref\":\"http://example.com/x\"}", "only references inside");
    check_schema_refused(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
        "no value can satisfy");
    check_schema_refused("{\"unevaluatedProperties\":false}", "\"unevaluatedProperties\"");
    check_schema_refused("{\"$dynamicRef\":\"#x\"}", "\"$dynamicRef\"");
}

static void test_hostile_schemas_are_refused_in_time(void **state) {
    static char schema[(1 << 20) + 1];
    struct rp_grammar *g;
    struct rp_error err;
    (void)state;
    memset(schema, ' ', sizeof schema);
    assert_int_equal(rp_grammar_compile_json_schema(schema, sizeof schema, NULL, &g, &err),
                     RP_STATUS_FULL);
    size_t len = 0; /* nested deeply */
    for (int i = 0; i < 1000; i++)
        len += (size_t)snprintf(schema + len, sizeof schema - len, "{\"items\":");
    len += (size_t)snprintf(schema + len, sizeof schema - len, "{}");
    memset(schema + len, '}', 1000);
    assert_int_not_equal(rp_grammar_compile_json_schema(schema, len + 1000, NULL, &g, &err), RP_OK);
    /* 3 branches twenty times: 3^20 conjunctions */
    len = (size_t)snprintf(schema, sizeof schema, "{\"allOf\":[");
    for (int i = 0; i < 20; i++)
        len += (size_t)snprintf(
            schema + len, sizeof schema - len,
            "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d},{\"pattern\":\"%c\"}]}",
            i ? "," : "", i, 100 - i, 'a' + i);
    len += (size_t)snprintf(schema + len, sizeof schema - len, "]}");
    assert_int_equal(rp_grammar_compile_json_schema(schema, len, NULL, &g, &err), RP_STATUS_FULL);
    assert_non_null(strstr(err.text, "too complex"));
    /* each value of one list against each of another */
    len = (size_t)snprintf(schema, sizeof schema, "{\"allOf\":[{\"enum\":[-1");
    for (int i = 0; i < 120000; i++)
        len += (size_t)snprintf(schema + len, sizeof schema - len,
                                i == 60000 ? "]},{\"enum\":[%d" : ",%d", i);
    len += (size_t)snprintf(schema + len, sizeof schema - len, "]}]}");
    assert_int_equal(rp_grammar_compile_json_schema(schema, len, NULL, &g, &err), RP_STATUS_FULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_values),
        cmocka_unit_test(test_ranges_of_numbers),
        cmocka_unit_test(test_ranges_agree_with_arithmetic),
        cmocka_unit_test(test_strings_are_counted_in_characters),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_combined_schemas),
        cmocka_unit_test(test_branches_that_share_no_value_are_told_by_their_values),
        cmocka_unit_test(test_what_pairs_must_not_all_be),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_hostile_schemas_are_refused_in_time),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
