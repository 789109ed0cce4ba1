/* Goal: the writer emits valid JSON for any input bytes. */
#include "base/json_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_nested_values_get_their_commas(void **state) {
    (void)state;
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_int(&json, "a", -1);
    rp_json_array_begin(&json, "b");
    rp_json_double(&json, NULL, 0.1);
    rp_json_double(&json, NULL, NAN);
    rp_json_bool(&json, NULL, true);
    rp_json_array_end(&json);
    rp_json_null(&json, "c");
    rp_json_object_end(&json);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, "{\"a\":-1,\"b\":[0.1,null,true],\"c\":null}");
    rp_buffer_deinit(&out);
}

static void test_bytes_that_are_not_utf8_become_replacement_characters(void **state) {
    (void)state;
    struct rp_buffer out;
    rp_buffer_init(&out, 0);
    rp_json_escape(&out, "a\"\\\n\x01\xff\xc3\xa9\xc3", 9);
    rp_buffer_append(&out, "", 1);
    assert_string_equal(out.data, "\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD\"");
    rp_buffer_deinit(&out);
}

static void test_an_append_past_the_limit_fails_and_keeps_what_was_there(void **state) {
    (void)state;
    struct rp_buffer out;
    rp_buffer_init(&out, 4);
    rp_buffer_append(&out, "abcd", 4);
    assert_false(out.failed);
    rp_buffer_append(&out, "e", 1);
    assert_true(out.failed);
    assert_int_equal(out.len, 4);
    rp_buffer_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nested_values_get_their_commas),
        cmocka_unit_test(test_bytes_that_are_not_utf8_become_replacement_characters),
        cmocka_unit_test(test_an_append_past_the_limit_fails_and_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
