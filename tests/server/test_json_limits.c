/* Goal: the installed jansson with our settings accepts and refuses the right documents, and its
 * memory is bounded.
 * Method: JSONTestSuite: y_ accepted, n_ refused. Each document is the value of a field, because a
 * body must be an object; a document that closes the object early is invalid too. */
#include "base/buffer.h"
#include "base/memory.h"
#include "server/http/json_body.h"
#include "tests/support/data.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Verdicts that differ from the suite's, with the reason. */
static const struct {
    const char *name, *why;
} exceptions[] = {
    {"y_object_duplicated_key.json", "refused: JSON_REJECT_DUPLICATES"},
    {"y_object_duplicated_key_and_value.json", "refused: JSON_REJECT_DUPLICATES"},
    {"y_object_escaped_null_in_key.json", "refused: no NUL in keys"},
    {"y_string_null_escape.json", "refused: no NUL in strings"},
};

static struct rp_http_limits limits;

static int setup_group(void **state) {
    (void)state;
    rp_json_body_init();
    rp_http_limits_init(&limits);
    return 0;
}

static json_t *parse(const char *text, size_t len, struct rp_http_error *error) {
    memset(error, 0, sizeof *error);
    return rp_json_body_parse(text, len, &limits, error);
}

static bool is_exception(const char *name) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(exceptions); i++)
        if (strcmp(exceptions[i].name, name) == 0)
            return true;
    return false;
}

/* {"v":<the file>} */
static void read_document(const char *folder, const char *name, struct rp_buffer *out) {
    char path[1400], chunk[4096];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    rp_buffer_clear(out);
    rp_buffer_puts(out, "{\"v\":");
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0)
        rp_buffer_append(out, chunk, n);
    fclose(file);
    rp_buffer_puts(out, "}");
}

static void test_the_suite_is_judged_as_it_says(void **state) {
    char folder[1024];
    struct rp_buffer body = {.data = NULL};
    struct rp_http_error error;
    int count = 0, wrong = 0, excepted = 0;
    (void)state;
    if (!rp_test_data("json/test_parsing", folder, sizeof folder))
        skip();
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        read_document(folder, entry->d_name, &body);
        json_t *root = parse(body.data, body.len, &error);
        bool wanted = entry->d_name[0] == 'y' && !is_exception(entry->d_name);
        if (entry->d_name[0] != 'i' && wanted != (root != NULL)) {
            print_message("%s: %s\n", entry->d_name, root ? "accepted" : error.message);
            wrong++;
        }
        if (!root && error.status != 400)
            wrong++;
        if (is_exception(entry->d_name))
            excepted++;
        json_decref(root);
        count++;
    }
    closedir(dir);
    rp_buffer_deinit(&body);
    assert_true(count > 250);
    assert_int_equal(wrong, 0);
    assert_int_equal(excepted, RP_ARRAY_COUNT(exceptions));
    assert_int_equal(rp_json_body_live_bytes(), 0);
}

static void test_depth_is_checked_before_parsing(void **state) {
    char text[400];
    struct rp_http_error error;
    (void)state;
    for (int depth = 1; depth <= 70; depth++) {
        size_t len = (size_t)snprintf(text, sizeof text, "{\"v\":");
        memset(text + len, '[', (size_t)depth - 1);
        memset(text + len + depth - 1, ']', (size_t)depth - 1);
        len += 2 * (size_t)depth - 2;
        if (depth == 1)
            text[len++] = '1';
        text[len++] = '}';
        json_t *root = parse(text, len, &error);
        assert_int_equal(root != NULL, depth <= 64);
        json_decref(root);
    }
    /* Brackets in strings do not count. */
    const char *strings = "{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                          "[[[[[[[[[[[\\\"[[\"}";
    json_t *root = parse(strings, strlen(strings), &error);
    assert_non_null(root);
    json_decref(root);
}

static void test_memory_is_counted_and_freed(void **state) {
    struct rp_http_error error;
    size_t count = 2000000, len = 0;
    (void)state;
    char *text = rp_alloc(3 * count + 16);
    assert_non_null(text);
    memcpy(text, "{\"v\":[", 6);
    len = 6;
    for (size_t i = 0; i < count; i++, len += 3)
        memcpy(text + len, "{},", 3);
    memcpy(text + len - 1, "]}", 2);
    json_t *root = parse(text, len + 1, &error);
    rp_free(text);
    assert_null(root);
    assert_int_equal(error.status, 413);
    assert_int_equal(rp_json_body_live_bytes(), 0);
}

static void test_all_trees_together_are_bounded(void **state) {
    struct rp_http_error error;
    struct rp_http_limits small = limits;
    const char *text = "{\"a\":[1,2,3]}";
    (void)state;
    small.json_live_bytes = 2000;
    small.json_bytes = 1500;
    json_t *trees[64] = {NULL};
    size_t count = 0;
    while (count < 64 &&
           (trees[count] = rp_json_body_parse(text, strlen(text), &small, &error)) != NULL)
        count++;
    assert_in_range(count, 1, 63);
    assert_int_equal(error.status, 503);
    for (size_t i = 0; i < count; i++)
        json_decref(trees[i]);
    assert_int_equal(rp_json_body_live_bytes(), 0);
}

static void test_an_error_inside_a_field_names_it(void **state) {
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"{\"a\":1,\"n\":9223372036854775808}", "n"},
        {"{\"a\":1,\"n\" : 1e999 ,\"b\":2}", "n"},
        {"{\"a\":[1,{\"x\":NaN}],\"b\":2}", "a"},
        {"{\"a\":\"\\ud83d\"}", "a"},
        {"{\"x,y:\\\"z\":tru}", "x,y:\\\"z"},
        {"{\"a\":1", "a"},
        {"{", ""},
        {"", ""},
        {"[1]", ""},
        {"{\"a\":1,\"a\":2}", ""},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_http_error error;
        assert_null(parse(cases[i].text, strlen(cases[i].text), &error));
        assert_int_equal(error.status, 400);
        if (strcmp(cases[i].text, "{\"a\":1,\"a\":2}") != 0) /* jansson stops at the second key */
            assert_string_equal(error.param, cases[i].param);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_suite_is_judged_as_it_says),
        cmocka_unit_test(test_depth_is_checked_before_parsing),
        cmocka_unit_test(test_memory_is_counted_and_freed),
        cmocka_unit_test(test_all_trees_together_are_bounded),
        cmocka_unit_test(test_an_error_inside_a_field_names_it),
    };
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
