/* Goal: only a complete key is accepted, and a file of keys that others can read is refused. */
#include "server/http/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct rp_auth auth;
    struct rp_error err;
    char path[64];
};

static int setup(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof f);
    snprintf(f.path, sizeof f.path, "/tmp/reprise-test-keys-XXXXXX");
    int fd = mkstemp(f.path); /* mode 600 */
    close(fd);
    *state = &f;
    return fd < 0;
}

static int teardown(void **state) {
    unlink(((struct fixture *)*state)->path);
    return 0;
}

static void write_file(const struct fixture *f, const char *text) {
    FILE *file = fopen(f->path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void add(struct fixture *f, const char *key) {
    assert_int_equal(rp_auth_add(&f->auth, key, strlen(key), &f->err), RP_OK);
}

static void test_the_index_of_the_key_is_found(void **state) {
    struct fixture *f = *state;
    add(f, "first");
    add(f, "second-and-longer");
    assert_int_equal(rp_auth_check(&f->auth, "Bearer first"), 0);
    assert_int_equal(rp_auth_check(&f->auth, "Bearer second-and-longer"), 1);
    assert_int_equal(rp_auth_check(&f->auth, "bEARER   first"), 0);
}

static void test_nothing_else_opens(void **state) {
    static const char *const wrong[] = {"",
                                        "first",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer firs",
                                        "Bearer first2",
                                        "Bearer first ",
                                        "Bearer First",
                                        "Basic first",
                                        "Bearerfirst",
                                        "Bearer second"};
    struct fixture *f = *state;
    add(f, "first");
    add(f, "second-and-longer");
    assert_int_equal(rp_auth_check(&f->auth, NULL), -1);
    for (size_t i = 0; i < RP_ARRAY_COUNT(wrong); i++)
        assert_int_equal(rp_auth_check(&f->auth, wrong[i]), -1);
}

static void test_a_key_that_repeats_a_longest_key_is_another(void **state) {
    char key[RP_KEY_BYTES_MAX + 1] = "", header[16 + 2 * RP_KEY_BYTES_MAX];
    struct fixture *f = *state;
    memset(key, 'k', RP_KEY_BYTES_MAX);
    add(f, key);
    snprintf(header, sizeof header, "Bearer %s", key);
    assert_int_equal(rp_auth_check(&f->auth, header), 0);
    snprintf(header, sizeof header, "Bearer %s%s", key, key);
    assert_int_equal(rp_auth_check(&f->auth, header), -1);
}

static void test_no_keys_open_nothing(void **state) {
    struct fixture *f = *state;
    assert_int_equal(rp_auth_check(&f->auth, "Bearer x"), -1);
}

static void test_a_file_has_a_key_a_line(void **state) {
    struct fixture *f = *state;
    write_file(f, "# who may\nfirst\n\r\n\nsecond \r\n#third\nlast");
    assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_OK);
    assert_int_equal(f->auth.count, 3);
    assert_int_equal(rp_auth_check(&f->auth, "Bearer second"), 1);
    assert_int_equal(rp_auth_check(&f->auth, "Bearer last"), 2);
}

static void test_a_file_that_others_may_read_is_refused(void **state) {
    struct fixture *f = *state;
    static const mode_t modes[] = {0640, 0604, 0660, 0601};
    write_file(f, "first\n");
    for (size_t i = 0; i < RP_ARRAY_COUNT(modes); i++) {
        assert_int_equal(chmod(f->path, modes[i]), 0);
        assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_STATUS_INVALID);
        assert_non_null(strstr(f->err.hint, "chmod 600"));
    }
    assert_int_equal(f->auth.count, 0);
}

static void test_bad_files_and_keys_are_refused(void **state) {
    struct fixture *f = *state;
    write_file(f, "# nothing\n\n");
    assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_STATUS_FORMAT);
    write_file(f, "two words\n");
    assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_STATUS_FORMAT);
    assert_null(strstr(f->err.text, "words")); /* a key is never shown */
    assert_int_equal(rp_auth_read_file(&f->auth, "/nonexistent/keys", &f->err),
                     RP_STATUS_NOT_FOUND);
    assert_int_equal(rp_auth_add(&f->auth, "", 0, &f->err), RP_STATUS_RANGE);
    for (int i = 0; i < RP_KEYS_MAX; i++)
        assert_int_equal(rp_auth_add(&f->auth, "k", 1, &f->err), RP_OK);
    assert_int_equal(rp_auth_add(&f->auth, "k", 1, &f->err), RP_STATUS_RANGE);
}

static void test_a_key_that_differs_in_one_bit_is_another(void **state) {
    struct fixture *f = *state;
    char header[] = "Bearer sk-0123456789abcdef";
    add(f, header + 7);
    assert_int_equal(rp_auth_check(&f->auth, header), 0);
    for (size_t i = 7; header[i]; i++)
        for (int bit = 0; bit < 7; bit++) {
            header[i] = (char)(header[i] ^ (1 << bit));
            assert_int_equal(rp_auth_check(&f->auth, header), -1);
            header[i] = (char)(header[i] ^ (1 << bit));
        }
}

static void test_the_key_itself_is_not_kept(void **state) {
    struct fixture *f = *state;
    add(f, "sk-0123456789abcdef");
    assert_null(memmem(&f->auth, sizeof f->auth, "sk-0123", 7));
    assert_null(memmem(&f->auth, sizeof f->auth, "9abcdef", 7));
}

static void test_a_key_is_recognized_in_another_set(void **state) {
    struct fixture *f = *state;
    static struct rp_auth other;
    memset(&other, 0, sizeof other);
    add(f, "first");
    add(f, "second");
    assert_int_equal(rp_auth_add(&other, "second", 6, &f->err), RP_OK);
    assert_int_equal(rp_auth_same(&f->auth, 1, &other), 0);
    assert_int_equal(rp_auth_same(&f->auth, 0, &other), -1);
    assert_int_equal(rp_auth_same(&f->auth, -1, &other), -1);
}

static void test_a_line_names_a_key_and_gives_it_a_share(void **state) {
    static const char *const bad[] = {"k other",
                                      "k name=",
                                      "k name=a b",
                                      "k limit=0",
                                      "k limit=-1",
                                      "k limit=1000000",
                                      "k limit=x",
                                      "k limit=",
                                      "k name=a name=b",
                                      "k limit=1 limit=2",
                                      "k tokens=0",
                                      "k tokens=1000000000000",
                                      "k tokens=1 tokens=2",
                                      "k name=a/b",
                                      "k Name=a",
                                      "k name=123456789012345678901234567890123"};
    struct fixture *f = *state;
    write_file(f, "one name=first limit=2\ntwo\tlimit=999999\t name=a.b-C_9 tokens=7\nthree\n");
    assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_OK);
    assert_string_equal(f->auth.keys[0].name, "first");
    assert_int_equal(f->auth.keys[0].limit, 2);
    assert_string_equal(f->auth.keys[1].name, "a.b-C_9");
    assert_int_equal(f->auth.keys[1].limit, 999999);
    assert_int_equal(f->auth.keys[1].token_limit, 7);
    assert_string_equal(f->auth.keys[2].name, "");
    assert_int_equal(f->auth.keys[2].limit, 0);
    assert_int_equal(rp_auth_check(&f->auth, "Bearer two"), 1);
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        rp_auth_deinit(&f->auth);
        write_file(f, bad[i]);
        assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_STATUS_FORMAT);
    }
    rp_auth_deinit(&f->auth);
    write_file(f, "k name=a\nl name=a\n");
    assert_int_equal(rp_auth_read_file(&f->auth, f->path, &f->err), RP_STATUS_FORMAT);
}

static void test_a_key_is_found_in_another_set(void **state) {
    static struct rp_auth other;
    struct fixture *f = *state;
    memset(&other, 0, sizeof other);
    add(f, "one");
    add(f, "two");
    assert_int_equal(rp_auth_add(&other, "two", 3, &f->err), RP_OK);
    assert_int_equal(rp_auth_same(&f->auth, 1, &other), 0);
    assert_int_equal(rp_auth_same(&f->auth, 0, &other), -1);
    assert_int_equal(rp_auth_same(&f->auth, -1, &other), -1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_the_index_of_the_key_is_found),
        TEST(test_nothing_else_opens),
        TEST(test_a_key_that_repeats_a_longest_key_is_another),
        TEST(test_no_keys_open_nothing),
        TEST(test_a_file_has_a_key_a_line),
        TEST(test_a_file_that_others_may_read_is_refused),
        TEST(test_bad_files_and_keys_are_refused),
        TEST(test_a_key_that_differs_in_one_bit_is_another),
        TEST(test_the_key_itself_is_not_kept),
        TEST(test_a_key_is_recognized_in_another_set),
        TEST(test_a_line_names_a_key_and_gives_it_a_share),
        TEST(test_a_key_is_found_in_another_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
