/* Goal: lists of processors are read as the kernel writes them, and anything else is refused with
 * its place. */
#include "base/cpu_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, const char *formatted, int count) {
    char out[RP_CPU_LIST_MAX];
    struct rp_error err = {0};
    cpu_set_t set;
    assert_int_equal(rp_cpu_list_parse(text, &set, &err), RP_OK);
    assert_int_equal(CPU_COUNT(&set), count);
    rp_cpu_list_format(&set, out, sizeof out);
    assert_string_equal(out, formatted);
}

static void test_lists_are_read_and_written(void **state) {
    (void)state;
    check("0", "0", 1);
    check("0-3,8", "0-3,8", 5);
    check("8,0,1,2-3\n", "0-3,8", 5);
    check("5-5", "5", 1);
    check("1,1,1", "1", 1);
    check("0-1023", "0-1023", 1024);
}

static void refuse(const char *text, const char *reason) {
    struct rp_error err = {0};
    cpu_set_t set;
    assert_int_equal(rp_cpu_list_parse(text, &set, &err), RP_STATUS_INVALID);
    if (!strstr(err.text, reason))
        fail_msg("%s: %s", text, err.text);
}

static void test_anything_else_is_refused(void **state) {
    (void)state;
    refuse("", "at byte 0");
    refuse("\n", "at byte 0");
    refuse("a", "at byte 0");
    refuse("-1", "at byte 0");
    refuse(" 1", "at byte 0");
    refuse("0,", "at byte 2");
    refuse("0,,1", "at byte 2");
    refuse("0-", "at byte 2");
    refuse("0-3-5", "at byte 3");
    refuse("0 1", "at byte 1");
    refuse("0\n1", "at byte 1");
    refuse("0x3", "at byte 1");
    refuse("3-1", "runs backwards");
    refuse("1024", "no processor of this number");
    refuse("0-99999999999999999999", "no processor of this number");
}

static void test_a_text_that_does_not_fit_is_cut(void **state) {
    char out[16];
    cpu_set_t set;
    (void)state;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < 1024; cpu += 2)
        CPU_SET(cpu, &set);
    rp_cpu_list_format(&set, out, sizeof out);
    assert_string_equal(out, "0,2,4,6,8,...");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_are_read_and_written),
        cmocka_unit_test(test_anything_else_is_refused),
        cmocka_unit_test(test_a_text_that_does_not_fit_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
