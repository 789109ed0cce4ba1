/* Goal: the text of a custom tool's input is its JSON string unescaped, for any pieces.
 * Method: named cases, each fed in pieces of every size. */
#include "server/api/custom_input.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *json, const char *text) {
    size_t len = strlen(json);
    for (size_t piece = 1; piece <= len; piece++) {
        struct rp_custom_input input = {.state = 0};
        struct rp_buffer out = {.data = NULL};
        for (size_t i = 0; i < len; i += piece)
            rp_custom_input_push(&input, json + i, RP_MIN(piece, len - i), &out);
        assert_int_equal(out.len, strlen(text));
        if (out.len)
            assert_memory_equal(out.data, text, out.len);
        rp_buffer_deinit(&out);
    }
}

static void test_escapes_become_their_characters(void **state) {
    (void)state;
    check("{\"input\": \"plain\"}", "plain");
    check("{\"input\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    check("{\"input\":\"\\u0041\\u00e9\\u20AC\"}", "A\xc3\xa9\xe2\x82\xac");
    check("{\"input\":\"\\ud83d\\ude00!\"}", "\xf0\x9f\x98\x80!");
}

static void test_half_a_pair_is_replaced(void **state) {
    (void)state;
    check("{\"input\":\"\\ud83dx\"}", "\xef\xbf\xbdx");
    check("{\"input\":\"\\ude00\"}", "\xef\xbf\xbd");
    check("{\"input\":\"\\ud83d\\n\"}", "\xef\xbf\xbd\n");
    check("{\"input\":\"\\ud83d\\ud83d\\ude00\"}", "\xef\xbf\xbd\xf0\x9f\x98\x80");
    check("{\"input\":\"a\\ud83d\"}", "a\xef\xbf\xbd");
}

static void test_only_the_first_string_counts(void **state) {
    (void)state;
    check("{\"input\":\"one\",\"more\":\"two\"}", "one");
    check("{\"a\\\":b\" : 12, \"input\" : \"x\"}", "x");
    check("{\"input\":12}", "");
    check("{}", "");
    check("{\"input\":\"cut", "cut");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes_become_their_characters),
        cmocka_unit_test(test_half_a_pair_is_replaced),
        cmocka_unit_test(test_only_the_first_string_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
