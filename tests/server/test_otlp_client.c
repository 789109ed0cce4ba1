/* Goal: URLs and headers of a collector are read as written or refused with the reason, and the
 * same traces are sampled by every server. */
#include "server/observe/otlp_client.h"
#include "server/observe/otlp_export.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct rp_error err;

static void test_urls_have_a_host_a_port_and_a_path(void **state) {
    static const struct {
        const char *text, *host, *port, *base;
        bool https;
    } cases[] = {{"http://localhost:4318", "localhost", "4318", "", false},
                 {"http://localhost:4318/", "localhost", "4318", "", false},
                 {"HTTPS://otel.example.org", "otel.example.org", "443", "", true},
                 {"http://10.0.0.1/otlp//", "10.0.0.1", "80", "/otlp", false},
                 {"https://[2001:db8::1]:8443/a/b", "2001:db8::1", "8443", "/a/b", true},
                 {"http://[::1]", "::1", "80", "", false}};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_otlp_url url;
        assert_int_equal(rp_otlp_url_parse(cases[i].text, &url, &err), RP_OK);
        assert_string_equal(url.host, cases[i].host);
        assert_string_equal(url.port, cases[i].port);
        assert_string_equal(url.base, cases[i].base);
        assert_int_equal(url.https, cases[i].https);
    }
}

static void test_other_urls_are_refused_with_the_reason(void **state) {
    static const char *const cases[][2] = {{"localhost:4318", "must begin with"},
                                           {"ftp://x", "must begin with"},
                                           {"http://", "the host is missing"},
                                           {"http://:4318", "the host is missing"},
                                           {"http://a:", "the port"},
                                           {"http://a:0", "the port"},
                                           {"http://a:65536", "the port"},
                                           {"http://a:80x", "the port"},
                                           {"http://a:4 3", "only a host"},
                                           {"http://user@a", "only a host"},
                                           {"http://a/?x=1", "only a host"},
                                           {"http://a/\r\nX: y", "only a host"},
                                           {"http://[::1", "the bracket"},
                                           {"http://[::1]x", "the port"},
                                           {"http://[]", "the host is missing"}};
    char large[1024] = "http://a/";
    struct rp_otlp_url url;
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        assert_int_equal(rp_otlp_url_parse(cases[i][0], &url, &err), RP_STATUS_INVALID);
        assert_non_null(strstr(err.text, cases[i][1]));
    }
    memset(large + 9, 'x', sizeof large - 10);
    assert_int_equal(rp_otlp_url_parse(large, &url, &err), RP_STATUS_INVALID);
    memset(large + 7, 'x', sizeof large - 8);
    assert_int_equal(rp_otlp_url_parse(large, &url, &err), RP_STATUS_INVALID);
}

static void test_headers_become_lines(void **state) {
    char lines[RP_OTLP_HEADERS_MAX];
    (void)state;
    assert_int_equal(rp_otlp_headers_parse("", lines, &err), RP_OK);
    assert_string_equal(lines, "");
    assert_int_equal(rp_otlp_headers_parse("Authorization=Bearer%20a%3d, x-b=1,", lines, &err),
                     RP_OK);
    assert_string_equal(lines, "Authorization: Bearer a=\r\nx-b: 1\r\n");
    /* An incomplete escape stands for itself. */
    assert_int_equal(rp_otlp_headers_parse("a=50%,b=%4", lines, &err), RP_OK);
    assert_string_equal(lines, "a: 50%\r\nb: %4\r\n");
}

static void test_headers_that_would_break_a_post_are_refused(void **state) {
    static const char *const cases[] = {"a",       "=1",          "a b=1", "a=1%0d%0ab: 2",
                                        "a=\x01y", "a:b=1,c=%7f", "a=1;b", NULL};
    char lines[RP_OTLP_HEADERS_MAX], large[RP_OTLP_HEADERS_MAX + 8] = "a=";
    (void)state;
    for (size_t i = 0; cases[i]; i++) {
        int status = rp_otlp_headers_parse(cases[i], lines, &err);
        assert_int_equal(status, strcmp(cases[i], "a=1;b") == 0 ? RP_OK : RP_STATUS_INVALID);
    }
    memset(large + 2, 'x', sizeof large - 3);
    assert_int_equal(rp_otlp_headers_parse(large, lines, &err), RP_STATUS_INVALID);
}

static void test_the_sampled_share_follows_the_ratio_and_the_trace(void **state) {
    static const double ratios[] = {0, 0.01, 0.5, 0.9, 1};
    (void)state;
    uint64_t random = 88172645463325252u;
    uint32_t counts[RP_ARRAY_COUNT(ratios)] = {0};
    for (int i = 0; i < 100000; i++) {
        bool before = false;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        for (size_t r = 0; r < RP_ARRAY_COUNT(ratios); r++) {
            bool in = rp_otlp_is_in_share(random, ratios[r]);
            assert_true(in >= before); /* a larger share has what a smaller one has */
            before = in;
            counts[r] += in;
        }
    }
    assert_int_equal(counts[0], 0);
    assert_int_equal(counts[4], 100000);
    for (size_t r = 1; r < 4; r++)
        assert_true(counts[r] > ratios[r] * 1e5 - 1000 && counts[r] < ratios[r] * 1e5 + 1000);
    /* The random part of an id is its last 56 bits. */
    assert_true(rp_otlp_is_in_share(0x00ffffffffffffffu, 1e-9));
    assert_false(rp_otlp_is_in_share(0xff00000000000000u, 0.999));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls_have_a_host_a_port_and_a_path),
        cmocka_unit_test(test_other_urls_are_refused_with_the_reason),
        cmocka_unit_test(test_headers_become_lines),
        cmocka_unit_test(test_headers_that_would_break_a_post_are_refused),
        cmocka_unit_test(test_the_sampled_share_follows_the_ratio_and_the_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
