/* Goal: a route's query parameters are read or refused by name, also hostile ones. */
#include "server/http/http_query.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char text[RP_QUERY_VALUE_MAX];
static uint32_t choice;
static uint64_t limit;
static double seconds;
static bool given;
static struct rp_http_error error;

static bool read_target(const char *target) {
    const struct rp_query_param params[] = {
        {.name = "name", .type = RP_QUERY_TEXT, .value = text},
        {.name = "format", .type = RP_QUERY_CHOICE, .choices = "json|text|csv", .value = &choice},
        {.name = "limit", .type = RP_QUERY_UINT, .min = 1, .max = 100, .value = &limit},
        {.name = "seconds", .max = 60, .type = RP_QUERY_DOUBLE, .value = &seconds, .given = &given},
    };
    memset(&error, 0, sizeof error);
    memcpy(text, "before", 7);
    choice = 0, limit = 7, seconds = 5, given = false;
    return rp_query_read(target, params, RP_ARRAY_COUNT(params), &error);
}

static void test_values_are_read_and_absent_ones_keep_what_they_had(void **state) {
    (void)state;
    assert_true(read_target("/debug/x"));
    assert_true(read_target("/debug/x?"));
    assert_string_equal(text, "before");
    assert_int_equal(limit, 7);
    assert_true(read_target("/debug/x?format=csv&limit=20&seconds=0.5&name=a%20b+c#end"));
    assert_string_equal(text, "a b c");
    assert_int_equal(choice, 2);
    assert_int_equal(limit, 20);
    assert_true(seconds == 0.5 && given);
}

static void test_what_is_wrong_is_refused_by_name(void **state) {
    static const struct {
        const char *target, *param, *words;
    } cases[] = {
        {"/x?color=1", "", "\"color\""},          {"/x?format=xml", "format", "json|text|csv"},
        {"/x?format", "format", "json|text|csv"}, {"/x?limit=0", "limit", "from 1 to 100"},
        {"/x?limit=1.5", "limit", "whole"},       {"/x?limit=-1", "limit", "whole"},
        {"/x?limit=1e400", "limit", "whole"},     {"/x?seconds=nan", "seconds", "number"},
        {"/x?seconds=inf", "seconds", "number"},  {"/x?seconds=0x10000", "seconds", "number"},
        {"/x?seconds=5x", "seconds", "number"},   {"/x?limit=5&limit=6", "limit", "repeated"},
        {"/x?name=%00", "name", "encoded"},       {"/x?name=%2", "name", "encoded"},
        {"/x?name=%zz", "name", "encoded"},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        if (read_target(cases[i].target))
            fail_msg("%s was taken", cases[i].target);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.param, cases[i].param);
        assert_non_null(strstr(error.message, cases[i].words));
    }
}

static void test_a_value_that_is_too_long_is_refused(void **state) {
    char target[RP_QUERY_VALUE_MAX + 64] = "/x?name=";
    (void)state;
    memset(target + 8, 'a', RP_QUERY_VALUE_MAX - 1);
    assert_true(read_target(target));
    assert_int_equal(strlen(text), RP_QUERY_VALUE_MAX - 1);
    memset(target + 8, 'a', RP_QUERY_VALUE_MAX);
    assert_false(read_target(target));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_read_and_absent_ones_keep_what_they_had),
        cmocka_unit_test(test_what_is_wrong_is_refused_by_name),
        cmocka_unit_test(test_a_value_that_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
