/* Goal: the scanner of the header block refuses the forms used for request smuggling, with the same
 * result for any split of the bytes. */
#include "server/http/http_head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct rp_http_limits limits;

static int setup_group(void **state) {
    (void)state;
    rp_http_limits_init(&limits);
    return 0;
}

#define CASE(verdict, text)                                                                        \
    { verdict, text, sizeof text - 1 }
#define GET "GET / HTTP/1.1\r\n"

static const struct {
    enum rp_head_verdict verdict;
    const char *text;
    size_t len;
} cases[] = {
    CASE(RP_HEAD_DONE, GET "\r\n"),
    CASE(RP_HEAD_DONE, "\r\n\r\n" GET "\r\n"),
    CASE(RP_HEAD_DONE, GET "Host: a\r\nX-!#$%&'*+.^_`|~09: \t b \xFF\r\nEmpty:\r\n\r\n"),
    CASE(RP_HEAD_MORE, GET "Host: a\r\n"),
    CASE(RP_HEAD_MORE, GET "Host: a\r\n\r"),
    CASE(RP_HEAD_FOLDED, GET "A: b\r\n c\r\n\r\n"),
    CASE(RP_HEAD_FOLDED, GET "A: b\r\n\tc\r\n\r\n"),
    CASE(RP_HEAD_FOLDED, GET " A: b\r\n\r\n"),
    CASE(RP_HEAD_BAD, "GET / HTTP/1.1\nHost: a\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A: b\nB: c\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A: b\rB: c\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A: b\r\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A: b\r\n\rX"),
    CASE(RP_HEAD_BAD, GET "A: b\0c\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A: b\x7F\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A : b\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET ": b\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "A(: b\r\n\r\n"),
    CASE(RP_HEAD_BAD, GET "\xC3\xA9: b\r\n\r\n"),
    CASE(RP_HEAD_BAD, "GET /\xC3\xA9 HTTP/1.1\r\n\r\n"),
};

static enum rp_head_verdict scan(const char *text, size_t len, size_t piece, size_t *out_end) {
    struct rp_head_scan state = {.bytes = 0};
    enum rp_head_verdict verdict = RP_HEAD_MORE;
    size_t at = 0, used;
    while (at < len && verdict == RP_HEAD_MORE) {
        verdict = rp_head_scan(&state, &limits, text + at, RP_MIN(piece, len - at), &used);
        at += used;
    }
    *out_end = at;
    return verdict;
}

static void test_verdicts_do_not_depend_on_the_pieces(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        size_t whole, part;
        print_message("%.*s\n", (int)strcspn(cases[i].text, "\r"), cases[i].text);
        assert_int_equal(scan(cases[i].text, cases[i].len, cases[i].len, &whole), cases[i].verdict);
        for (size_t piece = 1; piece < cases[i].len; piece++) {
            assert_int_equal(scan(cases[i].text, cases[i].len, piece, &part), cases[i].verdict);
            assert_int_equal(part, whole);
        }
    }
}

static void test_the_block_ends_after_its_blank_line(void **state) {
    static const char text[] = GET "Host: a\r\n\r\nGET /next HTTP/1.1\r\n";
    size_t end;
    (void)state;
    assert_int_equal(scan(text, sizeof text - 1, 1000, &end), RP_HEAD_DONE);
    assert_string_equal(text + end, "GET /next HTTP/1.1\r\n");
}

static void test_sizes_have_limits(void **state) {
    static char text[40000];
    size_t end, len;
    (void)state;
    for (size_t n = limits.target_bytes; n <= limits.target_bytes + 1; n++) {
        memcpy(text, "GET ", 4);
        memset(text + 4, '/', n);
        memcpy(text + 4 + n, " HTTP/1.1\r\n\r\n", 13);
        assert_int_equal(scan(text, n + 17, 997, &end),
                         n > limits.target_bytes ? RP_HEAD_TARGET_LONG : RP_HEAD_DONE);
    }
    for (uint32_t fields = limits.header_count; fields <= limits.header_count + 1; fields++) {
        memcpy(text, GET, sizeof GET - 1);
        len = sizeof GET - 1;
        for (uint32_t i = 0; i < fields; i++, len += 5)
            memcpy(text + len, "A:b\r\n", 5);
        memcpy(text + len, "\r\n", 2);
        assert_int_equal(scan(text, len + 2, 61, &end),
                         fields > limits.header_count ? RP_HEAD_TOO_LARGE : RP_HEAD_DONE);
    }
    memset(text, 'a', sizeof text);
    memcpy(text, GET "A:", sizeof GET + 1);
    assert_int_equal(scan(text, sizeof text, 4096, &end), RP_HEAD_TOO_LARGE);
    assert_in_range(end, limits.header_bytes, limits.header_bytes + 2);
}

static void test_fields_are_found_whatever_the_pieces(void **state) {
    struct rp_http_head head = {.field_count = 0};
    uint32_t count;
    (void)state;
    assert_true(rp_http_head_target(&head, "/pa", 3) && rp_http_head_target(&head, "th", 2));
    assert_true(rp_http_head_name(&head, "Em", 2) && rp_http_head_name(&head, "pty", 3));
    assert_true(rp_http_head_field_done(&head));
    assert_true(rp_http_head_name(&head, "Type", 4) && rp_http_head_value(&head, "a ", 2));
    assert_true(rp_http_head_value(&head, "b \t ", 4));
    assert_true(rp_http_head_name(&head, "tYPE", 4) && rp_http_head_value(&head, "c", 1));
    assert_true(rp_http_head_finish(&head));
    assert_string_equal(rp_http_head_get_target(&head), "/path");
    assert_string_equal(rp_http_head_find(&head, "empty", &count), "");
    assert_string_equal(rp_http_head_find(&head, "TYPE", &count), "a b");
    assert_int_equal(count, 2);
    assert_null(rp_http_head_find(&head, "other", &count));
    rp_http_head_deinit(&head);
}

static void test_hosts(void **state) {
    static const char *const local[] = {"localhost",     "LOCALHOST:80", "127.0.0.1",
                                        "10.1.2.3:8000", "[::1]:8000",   "[fe80::1]"};
    static const char *const named[] = {"example.com", "localhost.example.com:80", "1.2.3", "a_b"};
    static const char *const bad[] = {"",    "x/?",     "a b",     "a@b", "[::1", "[::1]x",
                                      "a:b", "a:80:90", "[zz]:80", ":80", "a\"b", "a\\b"};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(local); i++)
        assert_true(rp_http_host_is_local(local[i], strlen(local[i])));
    for (size_t i = 0; i < RP_ARRAY_COUNT(named); i++) {
        assert_true(rp_http_host_is_valid(named[i], strlen(named[i])));
        assert_false(rp_http_host_is_local(named[i], strlen(named[i])));
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++)
        assert_false(rp_http_host_is_valid(bad[i], strlen(bad[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts_do_not_depend_on_the_pieces),
        cmocka_unit_test(test_the_block_ends_after_its_blank_line),
        cmocka_unit_test(test_sizes_have_limits),
        cmocka_unit_test(test_fields_are_found_whatever_the_pieces),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
