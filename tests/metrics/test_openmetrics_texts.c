/* Goal: the checker of /metrics agrees with the OpenMetrics project's suite on every text. */
#include "base/buffer.h"
#include "tests/support/data.h"
#include "tests/support/exposition_check.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool read_file(const char *folder, const char *name, const char *file,
                      struct rp_buffer *out) {
    char path[2048], bytes[4096];
    int n_path = snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    FILE *in = n_path < (int)sizeof path ? fopen(path, "rbe") : NULL;
    size_t n;
    rp_buffer_clear(out);
    if (!in)
        return false;
    while ((n = fread(bytes, 1, sizeof bytes, in)) > 0)
        rp_buffer_append(out, bytes, n);
    fclose(in);
    return true;
}

static void test_every_text_of_the_suite_is_judged_rightly(void **state) {
    char folder[1024];
    uint32_t valid = 0, invalid = 0, wrong = 0;
    (void)state;
    if (!rp_test_data("openmetrics/tests/testdata/parsers", folder, sizeof folder))
        skip();
    struct rp_buffer text = {.data = NULL}, facts = {.data = NULL};
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct rp_exposition_report report;
        if (!read_file(folder, entry->d_name, "test.json", &facts) ||
            !read_file(folder, entry->d_name, "metrics", &text))
            continue;
        rp_buffer_append(&facts, "", 1);
        bool expected = strstr(facts.data, "\"shouldParse\": true") != NULL;
        assert_true(expected || strstr(facts.data, "\"shouldParse\": false"));
        rp_exposition_check(RP_EXPOSITION_OPENMETRICS, text.data ? text.data : "", text.len,
                            &report);
        valid += expected;
        invalid += !expected;
        if ((report.fault_count == 0) == expected)
            continue;
        print_error("%s: %s, line %u: %s\n", entry->d_name, expected ? "is valid" : "is not valid",
                    report.faults[0].line, report.faults[0].text);
        wrong++;
    }
    closedir(dir);
    rp_buffer_deinit(&text);
    rp_buffer_deinit(&facts);
    print_message("%u valid, %u invalid\n", valid, invalid);
    assert_int_equal(valid, 44);
    assert_int_equal(invalid, 167);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_text_of_the_suite_is_judged_rightly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
