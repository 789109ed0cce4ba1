/* JSON-Schema-Test-Suite, draft 2020-12: what is not refused by name is right. Where the suite's
 * values are valid and refused here, the reasons are known: keys in another order than declared,
 * integers written as 1.0, a custom vocabulary, and formats, which are enforced here. */
#include "tests/support/data.h"
#include "tests/text/grammar_fixture.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static size_t right, refused, wrong_accepts, wrong_refusals;

static void one_value(struct rp_matcher *m, const json_t *test, const char *where) {
    char *text = json_dumps(json_object_get(test, "data"),
                            JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    bool valid = json_is_true(json_object_get(test, "valid"));
    assert_non_null(text);
    bool accepted = matcher_takes(m, text, strlen(text));
    if (accepted == valid)
        right++;
    else if (accepted)
        wrong_accepts++;
    else
        wrong_refusals++;
    if (accepted != valid)
        print_message("%s: %s %s: %s\n", where, valid ? "valid and refused" : "WRONGLY ACCEPTED",
                      json_string_value(json_object_get(test, "description")), text);
    free(text);
}

static void one_file(const char *path) {
    json_error_t where;
    json_t *groups = json_load_file(path, JSON_ALLOW_NUL, &where), *group, *test;
    size_t i, k;
    if (!groups) { /* integers beyond 64 bits, which jansson does not read */
        print_message("%s: not read: %s\n", path, where.text);
        return;
    }
    json_array_foreach(groups, i, group) {
        char *schema = json_dumps(json_object_get(group, "schema"), JSON_COMPACT | JSON_ENCODE_ANY);
        struct rp_grammar *g;
        struct rp_error err;
        const json_t *tests = json_object_get(group, "tests");
        assert_non_null(schema);
        int rc = rp_grammar_compile_json_schema(schema, strlen(schema), NULL, &g, &err);
        if (rc != RP_OK) {
            refused += json_array_size(tests);
            assert_true(strlen(err.text) > 10);
        } else {
            struct rp_matcher *m = grammar_match(g);
            json_array_foreach(tests, k, test)
                one_value(m, test, json_string_value(json_object_get(group, "description")));
            rp_matcher_free(m);
        }
        free(schema);
    }
    json_decref(groups);
}

static void required_tests_are_right_or_their_schema_is_refused_by_name(void **state) {
    char dir[1024], path[2048];
    (void)state;
    if (!rp_test_data("json/JSON-Schema-Test-Suite/tests/draft2020-12", dir, sizeof dir))
        skip();
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!strstr(entry->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        one_file(path);
    }
    closedir(d);
    print_message("right %zu, refused by name %zu, valid and refused %zu, wrongly accepted %zu\n",
                  right, refused, wrong_refusals, wrong_accepts);
    assert_int_equal(wrong_accepts, 0);
    assert_true(right > 850);
    assert_true(wrong_refusals <= 34);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(required_tests_are_right_or_their_schema_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, grammar_make_trie, grammar_free_trie);
}
