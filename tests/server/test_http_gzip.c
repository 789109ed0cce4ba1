/* Goal: compressed bodies decompress to the same bytes, and gzip is used only if the client accepts
 * it. */
#include "server/http/http_gzip.h"

#include "base/memory.h"
#include "metrics/exposition.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

static void test_compressed_data_decompresses(void **state) {
    static char text[200000], back[200000];
    uint64_t random = 88172645463325252u;
    (void)state;
    for (size_t i = 0; i < sizeof text; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64 */
        text[i] = i % 3 ? "abcdef\n"[random % 7] : (char)random;
    }
    const size_t lengths[] = {0, 1, 1399, sizeof text};
    for (size_t i = 0; i < RP_ARRAY_COUNT(lengths); i++) {
        struct rp_buffer out = {.data = NULL};
        z_stream stream = {.zalloc = NULL};
        rp_buffer_puts(&out, "before");
        assert_true(rp_http_gzip(text, lengths[i], 1, &out));
        assert_memory_equal(out.data, "before", 6);
        assert_int_equal(inflateInit2(&stream, 15 + 16), Z_OK);
        stream.next_in = (unsigned char *)out.data + 6;
        stream.avail_in = (unsigned)(out.len - 6);
        stream.next_out = (unsigned char *)back;
        stream.avail_out = sizeof back;
        assert_int_equal(inflate(&stream, Z_FINISH), Z_STREAM_END);
        assert_int_equal(stream.total_out, lengths[i]);
        assert_int_equal(stream.avail_in, 0);
        assert_memory_equal(back, text, lengths[i]);
        inflateEnd(&stream);
        rp_buffer_deinit(&out);
    }
}

static void test_without_memory_nothing_is_packed_and_nothing_lost(void **state) {
    static const char text[4096];
    bool packed = false;
    (void)state;
    for (uint64_t n = 1; n < 20 && !packed; n++) {
        struct rp_buffer out = {.data = NULL};
        rp_alloc_fail_at(n);
        packed = rp_http_gzip(text, sizeof text, 1, &out);
        rp_alloc_fail_at(0);
        assert_int_equal(packed, out.len > 0);
        assert_int_equal(packed, n > 1 && out.len > 0);
        rp_buffer_deinit(&out);
    }
    assert_true(packed);
    struct rp_buffer small;
    rp_buffer_init(&small, 16);
    assert_false(rp_http_gzip(text, sizeof text, 1, &small));
    assert_int_equal(small.len, 0);
    rp_buffer_deinit(&small);
}

static void test_any_bytes_may_stand_in_the_fields(void **state) {
    uint64_t random = 88172645463325252u;
    char field[64];
    (void)state;
    for (int i = 0; i < 200000; i++) {
        size_t len = (size_t)i % (sizeof field - 1);
        for (size_t n = 0; n < len; n++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            field[n] = "gzip*;q=0.1, \t\"/application/openmetrics-text;version\xFF"[random % 53];
            field[n] = field[n] ? field[n] : ',';
        }
        field[len] = '\0';
        (void)rp_http_accepts_gzip(field);
        (void)rp_exposition_accepted(field);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressed_data_decompresses),
        cmocka_unit_test(test_without_memory_nothing_is_packed_and_nothing_lost),
        cmocka_unit_test(test_any_bytes_may_stand_in_the_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
