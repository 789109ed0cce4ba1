/* Goal: the load generator parses URLs, event streams in pieces of any size, and chunks. */
#include "base/buffer.h"
#include "bench/load/load_chunk.h"
#include "bench/load/load_sse.h"
#include "bench/load/load_url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void base_urls_are_taken_apart(void **state) {
    static const struct {
        const char *text, *host, *authority, *prefix;
        uint16_t port;
    } cases[] = {
        {"http://127.0.0.1:8000", "127.0.0.1", "127.0.0.1:8000", "", 8000},
        {"localhost", "localhost", "localhost", "", 80},
        {"HTTP://gpu.example:81/", "gpu.example", "gpu.example:81", "", 81},
        {"http://h:8000/v1", "h", "h:8000", "", 8000},
        {"http://h:8000/v1/", "h", "h:8000", "", 8000},
        {"http://h/openai/v1", "h", "h", "/openai", 80},
        {"http://h/a/b//", "h", "h", "/a/b", 80},
        {"http://[::1]:9", "::1", "[::1]:9", "", 9},
        {"http://[fe80::1]", "fe80::1", "[fe80::1]", "", 80},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_load_url url;
        assert_int_equal(rp_load_url_parse(cases[i].text, &url, NULL), RP_OK);
        assert_string_equal(url.host, cases[i].host);
        assert_string_equal(url.authority, cases[i].authority);
        assert_string_equal(url.prefix, cases[i].prefix);
        assert_int_equal(url.port, cases[i].port);
    }
}

static void what_is_no_base_url_is_refused(void **state) {
    static const char *const cases[] = {
        "",           "http://",        "http:///v1",    "http://h:0",     "http://h:65536",
        "http://h:x", "http://h:",      "http://[::1",   "http://[::1]x",  "ftp://h",
        "http://a b", "http://h\r\nX:", "http://u:p@h/", "http://h/x?y=1", "http://:80"};
    struct rp_load_url url;
    struct rp_error err;
    char longest[1200];
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++)
        assert_int_equal(rp_load_url_parse(cases[i], &url, &err), RP_STATUS_INVALID);
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(rp_load_url_parse(longest, &url, &err), RP_STATUS_INVALID);
    longest[1] = '/';
    assert_int_equal(rp_load_url_parse(longest, &url, &err), RP_STATUS_INVALID);
}

static void https_is_refused_and_says_so(void **state) {
    struct rp_load_url url;
    struct rp_error err;
    (void)state;
    assert_int_equal(rp_load_url_parse("https://h", &url, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "https is not supported"));
}

/* --- Event streams --------------------------------------------------------------------------- */

static bool note(void *context, const char *data, size_t len) {
    rp_buffer_printf(context, "<%.*s>", (int)len, data);
    return true;
}

static void feed_in_pieces(const char *stream, size_t len, size_t first, size_t rest,
                           const char *expected) {
    struct rp_load_sse sse;
    struct rp_buffer seen = {.data = NULL};
    rp_load_sse_init(&sse);
    for (size_t at = 0, part = first; at < len; at += part, part = rest) {
        part = RP_MIN(part ? part : 1, len - at);
        /* A separate copy, so that the sanitizer detects reads past a piece. */
        char *piece = test_malloc(part);
        memcpy(piece, stream + at, part);
        assert_true(rp_load_sse_feed(&sse, piece, part, note, &seen));
        test_free(piece);
    }
    assert_true(rp_load_sse_finish(&sse, note, &seen));
    rp_buffer_append(&seen, "", 1);
    assert_string_equal(seen.data, expected);
    rp_buffer_deinit(&seen);
    rp_load_sse_deinit(&sse);
}

static void events_are_the_same_wherever_the_stream_is_split(void **state) {
    static const struct {
        const char *stream, *expected;
    } cases[] = {
        {"data: a\n\ndata: b\n\n", "<a><b>"},
        {"data: a\r\n\r\ndata: b\r\n\r\n", "<a><b>"},
        {"data:a\n\ndata:  b\n\n", "<a>< b>"},
        {": comment\n\nevent: x\nid: 1\ndata: a\nretry: 5\n\n\n\n", "<a>"},
        {"data: a\ndata: b\ndata\n\n", "<a\nb\n>"},
        {"data:\n\n", "<>"},
        {"\n\n\r\n", ""},
        {"datax: a\n\nxdata: b\n\n data: c\n\n", ""},
        {"data: a\n\ndata: [DONE]", "<a><[DONE]>"},
        {"data: a\n\ndata: b\n", "<a><b>"},
        {"data: \r\r\n\r\n", "<\r>"},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        size_t len = strlen(cases[i].stream);
        for (size_t first = 0; first <= len; first++) {
            feed_in_pieces(cases[i].stream, len, first, 1, cases[i].expected);
            feed_in_pieces(cases[i].stream, len, first, 3, cases[i].expected);
            feed_in_pieces(cases[i].stream, len, first, len, cases[i].expected);
        }
    }
}

static void an_event_without_end_is_refused(void **state) {
    static char filler[1 << 16];
    struct rp_load_sse sse;
    (void)state;
    memset(filler, 'x', sizeof filler);
    for (int as_lines = 0; as_lines < 2; as_lines++) {
        struct rp_buffer seen = {.data = NULL};
        size_t fed = 0;
        rp_load_sse_init(&sse);
        memcpy(filler, "data: ", 6);
        filler[sizeof filler - 1] = as_lines ? '\n' : 'x';
        while (rp_load_sse_feed(&sse, filler, sizeof filler, note, &seen))
            fed += sizeof filler;
        assert_in_range(fed, RP_LOAD_EVENT_BYTES / 2, RP_LOAD_EVENT_BYTES);
        assert_null(seen.data);
        rp_load_sse_deinit(&sse);
    }
}

/* --- Chunks ---------------------------------------------------------------------------------- */

static bool read_chunk(const char *json, struct rp_load_chunk *out,
                       struct rp_load_text_hash *text) {
    size_t len = strlen(json);
    char *copy =
        test_malloc(len ? len : 1); /* without the NUL, so that reads past the end are detected */
    memcpy(copy, json, len);
    rp_load_text_hash_init(text);
    bool fine = rp_load_chunk_read(copy, len, out, text);
    test_free(copy);
    return fine;
}

static void a_chunk_has_content_when_a_text_is_not_empty(void **state) {
    static const struct {
        const char *json;
        bool content, finished, stopped;
    } cases[] = {
        {"{\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}", true, false, false},
        {"{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}", false, true, false},
        {"{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}],\"usage\":null}", true, true,
         true},
        {" { \"choices\" : [ { \"index\" : 0 , \"delta\" : { \"content\" : \"x\" } } ] } ", true,
         false, false},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", false, false,
         false},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}", false, false,
         false},
        {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}", true, false, false},
        {"{\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}", true, false, false},
        {"{\"choices\":[{\"delta\":null,\"text\":7}]}", false, false, false},
        {"{\"choices\":[{\"logprobs\":{\"tokens\":[\"}\",\"\\\"\"],\"top\":[[1,2.5e-3]]},\"text\":"
         "\"a\"}]}",
         true, false, false},
        {"{\"choices\":[]}", false, false, false},
        {"{\"choices\":null,\"text\":\"elsewhere\",\"delta\":{\"content\":\"x\"}}", false, false,
         false},
        {"{\"choices\":[{\"text\":\"\"},{\"text\":\"b\"}]}", true, false, false},
        {"{}", false, false, false},
    };
    struct rp_load_text_hash text;
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_load_chunk chunk;
        assert_true(read_chunk(cases[i].json, &chunk, &text));
        assert_int_equal(chunk.has_content, cases[i].content);
        assert_int_equal(chunk.finished, cases[i].finished);
        assert_int_equal(chunk.stopped, cases[i].stopped);
        assert_false(chunk.has_error);
        assert_false(chunk.has_usage);
    }
}

static void an_empty_text_is_told_from_none_and_from_the_role(void **state) {
    static const struct {
        const char *json;
        bool has_empty;
    } cases[] = {
        {"{\"choices\":[{\"text\":\"\"}]}", true},
        {"{\"choices\":[{\"text\":null}]}", false},
        {"{\"choices\":[]}", false},
        {"{\"choices\":[{\"delta\":{\"content\":\"\"}}]}", true},
        {"{\"choices\":[{\"delta\":{\"content\":\"\",\"role\":\"assistant\"}}]}", false},
        {"{\"choices\":[{\"delta\":{}}]}", false},
    };
    struct rp_load_text_hash text;
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_load_chunk chunk;
        assert_true(read_chunk(cases[i].json, &chunk, &text));
        assert_int_equal(chunk.has_empty, cases[i].has_empty);
    }
}

static void usage_is_read_with_its_cached_tokens(void **state) {
    struct rp_load_text_hash text;
    struct rp_load_chunk chunk;
    (void)state;
    assert_true(
        read_chunk("{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":19,"
                   "\"completion_tokens\":7,\"prompt_tokens_details\":{\"audio_tokens\":null,"
                   "\"cached_tokens\":8}}}",
                   &chunk, &text));
    assert_true(chunk.has_usage);
    assert_int_equal(chunk.prompt_tokens, 12);
    assert_int_equal(chunk.completion_tokens, 7);
    assert_int_equal(chunk.cached_tokens, 8);
    /* A count that is no uint32_t is skipped, however many digits it has. */
    assert_true(read_chunk("{\"usage\":{\"prompt_tokens\":99999999999999,\"completion_tokens\":3}}",
                           &chunk, &text));
    assert_int_equal(chunk.prompt_tokens, 0);
    assert_int_equal(chunk.completion_tokens, 3);
    assert_true(read_chunk("{\"usage\":{\"prompt_tokens\":1e3,\"completion_tokens\":-5,"
                           "\"prompt_tokens_details\":null}}",
                           &chunk, &text));
    assert_true(chunk.has_usage);
    assert_int_equal(chunk.prompt_tokens, 0);
    assert_int_equal(chunk.completion_tokens, 0);
    assert_int_equal(chunk.cached_tokens, UINT32_MAX);
}

static void what_is_no_chunk_is_refused(void **state) {
    static const char *const cases[] = {"",
                                        "[]",
                                        "null",
                                        "\"x\"",
                                        "{",
                                        "{\"a\"",
                                        "{\"a\":",
                                        "{\"a\":1",
                                        "{\"a\":1}x",
                                        "{\"a\":1}{}",
                                        "{\"choices\":[{\"text\":\"a\"}",
                                        "{\"choices\":[{\"text\":\"a\"]}",
                                        "{\"choices\":[{\"text\":\"a}]}",
                                        "{\"choices\":[{\"text\":\"a\\",
                                        "{\"choices\":[{\"text\":\"a\nb\"}]}",
                                        "{\"choices\":[{\"text\":\"\\x\"}]}",
                                        "{\"choices\":[{\"text\":\"\\u12\"}]}",
                                        "{\"choices\":[{\"text\":\"\\",
                                        "{\"choices\":[1]}",
                                        "{\"choices\":[{}{}]}",
                                        "{\"a\":[}",
                                        "{\"choices\":[{\"text\":\"x\" \"y\"",
                                        "<html>",
                                        "{\"error\":{\"message\":\"a\"",
                                        "{a:1}",
                                        "{\"a\":}"};
    struct rp_load_text_hash text;
    struct rp_load_chunk chunk;
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++)
        assert_false(read_chunk(cases[i], &chunk, &text));
}

static void depth_costs_no_stack(void **state) {
    enum { DEPTH = 1000000 };
    struct rp_load_text_hash text;
    struct rp_load_chunk chunk;
    (void)state;
    char *json = test_malloc(2 * DEPTH + 16);
    memcpy(json, "{\"a\":", 5);
    memset(json + 5, '[', DEPTH);
    memset(json + 5 + DEPTH, ']', DEPTH);
    json[5 + 2 * DEPTH] = '}';
    rp_load_text_hash_init(&text);
    assert_true(rp_load_chunk_read(json, 6 + 2 * DEPTH, &chunk, &text));
    assert_false(rp_load_chunk_read(json, 5 + 2 * DEPTH, &chunk, &text));
    test_free(json);
}

static void errors_of_a_stream_keep_the_beginning_of_their_message(void **state) {
    struct rp_load_text_hash text;
    struct rp_load_chunk chunk;
    char json[600], filler[400];
    (void)state;
    assert_true(read_chunk("{\"error\":{\"type\":\"x\",\"message\":\"out of \\u001b[2Jpages\"}}",
                           &chunk, &text));
    assert_true(chunk.has_error);
    assert_string_equal(chunk.error, "out of  [2Jpages");
    assert_true(read_chunk("{\"error\":\"text\"}", &chunk, &text));
    assert_string_equal(chunk.error, "text");
    assert_true(read_chunk("{\"error\":null}", &chunk, &text));
    assert_false(chunk.has_error);
    assert_true(read_chunk("{\"error\":{}}", &chunk, &text));
    assert_true(chunk.has_error);
    memset(filler, 'm', sizeof filler);
    snprintf(json, sizeof json, "{\"error\":{\"message\":\"%.399s\"}}", filler);
    assert_true(read_chunk(json, &chunk, &text));
    assert_int_equal(strlen(chunk.error), 95);
}

static void messages_are_found_in_the_bodies_of_errors(void **state) {
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"{\"error\":{\"message\":\"queue is full\"}}", "queue is full"},
        {"{\"object\":\"error\",\"message\":\"too long\"}", "too long"},
        {"{\"detail\":\"Not Found\"}", "Not Found"},
        {"{\"error\":\"x\",\"more\":[1,2", "x"},
        {"upstream\r\nis\tgone\n", "upstream  is gone"},
        {"{\"detail\":[{\"loc\":1}]}", "{\"detail\":[{\"loc\":1}]}"},
        {"", ""},
    };
    char message[96];
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        rp_load_error_message(cases[i].body, strlen(cases[i].body), message);
        assert_string_equal(message, cases[i].message);
    }
}

static uint64_t hash_of(const char *const *jsons) {
    struct rp_load_text_hash text;
    struct rp_load_chunk chunk;
    rp_load_text_hash_init(&text);
    for (; *jsons; jsons++)
        assert_true(rp_load_chunk_read(*jsons, strlen(*jsons), &chunk, &text));
    return rp_load_text_hash_get(&text);
}

static void the_same_text_has_the_same_hash_however_it_is_cut_and_escaped(void **state) {
    static const char *const whole[] = {
        "{\"choices\":[{\"text\":\"sch\xc3\xb6n \xf0\x9f\x99\x82/\\\"\\n\"}]}", NULL};
    static const char *const parts[] = {
        "{\"choices\":[{\"text\":\"sch\\u00F6\"}]}",
        "{\"choices\":[{\"delta\":{\"content\":\"\"}}]}",
        "{\"choices\":[{\"delta\":{\"content\":\"n \\ud83d\\uDE42\\/\"}}]}",
        "{\"choices\":[{\"text\":\"\\u0022\\u000a\"}]}", NULL};
    static const char *const other[] = {"{\"choices\":[{\"text\":\"sch\xc3\xb6n\"}]}", NULL};
    static const char *const half[] = {"{\"choices\":[{\"text\":\"\\ud83dx\"}]}", NULL};
    static const char *const replaced[] = {"{\"choices\":[{\"text\":\"\xef\xbf\xbdx\"}]}", NULL};
    struct rp_load_text_hash one, two;
    char byte;
    (void)state;
    assert_int_equal(hash_of(whole), hash_of(parts));
    assert_int_not_equal(hash_of(whole), hash_of(other));
    assert_int_equal(hash_of(half), hash_of(replaced));
    rp_load_text_hash_init(&one);
    rp_load_text_hash_init(&two);
    for (int i = 0; i < 3000; i++) {
        byte = (char)(i * 7);
        rp_load_text_hash_add(&one, &byte, 1);
    }
    for (int i = 0; i < 3000;) {
        char bytes[700];
        int part = RP_MIN(700, 3000 - i);
        for (int k = 0; k < part; k++)
            bytes[k] = (char)((i + k) * 7);
        rp_load_text_hash_add(&two, bytes, (size_t)part);
        i += part;
    }
    assert_int_equal(rp_load_text_hash_get(&one), rp_load_text_hash_get(&two));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_urls_are_taken_apart),
        cmocka_unit_test(what_is_no_base_url_is_refused),
        cmocka_unit_test(https_is_refused_and_says_so),
        cmocka_unit_test(events_are_the_same_wherever_the_stream_is_split),
        cmocka_unit_test(an_event_without_end_is_refused),
        cmocka_unit_test(a_chunk_has_content_when_a_text_is_not_empty),
        cmocka_unit_test(an_empty_text_is_told_from_none_and_from_the_role),
        cmocka_unit_test(usage_is_read_with_its_cached_tokens),
        cmocka_unit_test(what_is_no_chunk_is_refused),
        cmocka_unit_test(depth_costs_no_stack),
        cmocka_unit_test(errors_of_a_stream_keep_the_beginning_of_their_message),
        cmocka_unit_test(messages_are_found_in_the_bodies_of_errors),
        cmocka_unit_test(the_same_text_has_the_same_hash_however_it_is_cut_and_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
