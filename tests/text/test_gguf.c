/* Goal: a GGUF file is accepted only if its header agrees with its length; an invalid one is
 * refused with the name of the file and of the key or tensor. Method: files as bytes, whole and cut
 * at every length, one byte changed at a time. */
#include "tests/support/model_files.h"
#include "text/gguf.h"
#include "text/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_test_dir dir;
    struct rp_gguf gguf;
    struct rp_error err;
    unsigned char bytes[1024];
    size_t len;
    char path[320];
};

static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    rp_test_dir_create(&fixture.dir);
    snprintf(fixture.path, sizeof fixture.path, "%s/m.gguf", fixture.dir.path);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_gguf_close(&f->gguf);
    rp_test_dir_remove(&f->dir);
    return 0;
}

static void put(struct fixture *f, const void *bytes, size_t len) {
    assert_true(f->len + len <= sizeof f->bytes);
    memcpy(f->bytes + f->len, bytes, len);
    f->len += len;
}

static void put_u32(struct fixture *f, uint32_t value) { put(f, &value, sizeof value); }
static void put_u64(struct fixture *f, uint64_t value) { put(f, &value, sizeof value); }

static void put_text(struct fixture *f, const char *text) {
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void put_key(struct fixture *f, const char *name, uint32_t type) {
    put_text(f, name);
    put_u32(f, type);
}

static void put_head(struct fixture *f, uint32_t version, uint64_t tensors, uint64_t keys) {
    f->len = 0;
    put(f, "GGUF", 4);
    put_u32(f, version);
    put_u64(f, tensors);
    put_u64(f, keys);
}

static void put_tensor(struct fixture *f, const char *name, uint64_t cols, uint64_t rows,
                       uint32_t type, uint64_t offset) {
    put_text(f, name);
    put_u32(f, 2);
    put_u64(f, cols);
    put_u64(f, rows);
    put_u32(f, type);
    put_u64(f, offset);
}

static void put_data(struct fixture *f, size_t len) {
    static const unsigned char zeros[256];
    put(f, zeros, (32 - f->len % 32) % 32);
    put(f, zeros, len);
}

static int open_file(struct fixture *f) {
    rp_test_file_write(&f->dir, "m.gguf", f->bytes, f->len);
    rp_gguf_close(&f->gguf);
    memset(&f->err, 0, sizeof f->err);
    return rp_gguf_open(&f->gguf, f->path, &f->err);
}

static void expect(struct fixture *f, enum rp_status status, const char *text) {
    int got = open_file(f);
    if (got != (int)status || !strstr(f->err.text, text) || !strstr(f->err.text, "m.gguf"))
        fail_msg("expected %s \"%s\", got %s \"%s\"", rp_status_name(status), text,
                 rp_status_name(got), f->err.text);
    assert_null(f->gguf.keys);
}

/* Three keys and two tensors. */
static void put_whole(struct fixture *f) {
    put_head(f, 3, 2, 3);
    put_key(f, "a.number", RP_GGUF_I16);
    put(f, "\xFE\xFF", 2);
    put_key(f, "a.text", RP_GGUF_STRING);
    put_text(f, "hello");
    put_key(f, "a.list", RP_GGUF_ARRAY);
    put_u32(f, RP_GGUF_STRING);
    put_u64(f, 2);
    put_text(f, "x");
    put_text(f, "");
    put_tensor(f, "q", 32, 2, RP_BLOCK_Q8_0, 0);
    put_tensor(f, "b", 4, 1, RP_BLOCK_F32, 96);
    put_data(f, 112);
}

static void test_keys_and_tensors_are_found_with_their_values(void **state) {
    struct fixture *f = *state;
    struct rp_gguf_text text = {NULL, 0}, *texts;
    uint32_t count, number = 7;
    double real = 0;
    unsigned char bytes[68];
    put_whole(f);
    f->bytes[f->len - 112] = 5;
    if (open_file(f) != RP_OK)
        fail_msg("%s", f->err.text);
    assert_int_equal(f->gguf.key_count, 3);
    assert_int_equal(rp_gguf_f64(&f->gguf, "a.number", &real, &f->err), RP_OK);
    assert_true(real == -2);
    assert_int_equal(rp_gguf_u32(&f->gguf, "a.number", &number, &f->err), RP_STATUS_RANGE);
    assert_non_null(strstr(f->err.text, "m.gguf: key a.number"));
    assert_int_equal(rp_gguf_u32(&f->gguf, "a.text", &number, &f->err), RP_STATUS_FORMAT);
    assert_int_equal(rp_gguf_u32(&f->gguf, "absent", &number, &f->err), RP_OK);
    assert_int_equal(number, 7);
    assert_int_equal(rp_gguf_string(&f->gguf, "a.text", &text, &f->err), RP_OK);
    assert_int_equal(text.len, 5);
    assert_memory_equal(text.text, "hello", 5);
    assert_int_equal(rp_gguf_strings(&f->gguf, "a.list", &texts, &count, &f->err), RP_OK);
    assert_int_equal(count, 2);
    assert_int_equal(texts[0].len + texts[1].len, 1);
    rp_free(texts);
    const struct rp_gguf_tensor *q = rp_gguf_find_tensor(&f->gguf, "q");
    assert_non_null(q);
    assert_int_equal(q->bytes, 68);
    assert_int_equal(rp_gguf_read(&f->gguf, q, 0, bytes, 68, &f->err), RP_OK);
    assert_int_equal(bytes[0], 5);
    assert_null(rp_gguf_find_tensor(&f->gguf, "c"));
}

static void test_a_file_that_ends_anywhere_is_refused(void **state) {
    struct fixture *f = *state;
    put_whole(f);
    for (size_t len = f->len; len-- > 0;) {
        f->len = len;
        int status = open_file(f);
        if (status != RP_STATUS_FORMAT && status != RP_STATUS_RANGE)
            fail_msg("%zu bytes: %s", len, rp_status_name(status));
    }
}

static void test_any_changed_byte_is_an_error_or_a_file_within_its_limits(void **state) {
    struct fixture *f = *state;
    put_whole(f);
    size_t len = f->len;
    for (size_t i = 0; i < len - 112; i++)
        for (int value = 0; value < 256; value += 51) {
            struct rp_gguf gguf = {.name = "m.gguf"};
            uint64_t begin = 0;
            bool is_short = false;
            unsigned char before = f->bytes[i];
            f->bytes[i] = (unsigned char)value;
            if (rp_gguf_parse(&gguf, f->bytes, len, len, &begin, &is_short, NULL) == RP_OK)
                for (uint32_t t = 0; t < gguf.tensor_count; t++)
                    assert_true(begin + gguf.tensors[t].offset + gguf.tensors[t].bytes <= len ||
                                gguf.tensors[t].bytes == 0);
            rp_arena_deinit(&gguf.arena);
            f->bytes[i] = before;
        }
}

static void test_what_contradicts_itself_is_refused_by_name(void **state) {
    struct fixture *f = *state;
    put_head(f, 1, 0, 0);
    expect(f, RP_STATUS_UNSUPPORTED, "version 1");
    put_head(f, 0x03000000, 0, 0);
    expect(f, RP_STATUS_UNSUPPORTED, "big-endian");
    put_head(f, 3, (uint64_t)1 << 60, 0);
    expect(f, RP_STATUS_RANGE, "tensors");
    put_head(f, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_key(f, "twice", RP_GGUF_BOOL);
        put(f, "\1", 1);
    }
    expect(f, RP_STATUS_FORMAT, "key twice is there twice");
    put_head(f, 2, 0, 1);
    put_key(f, "general.alignment", RP_GGUF_U32);
    put_u32(f, 24);
    expect(f, RP_STATUS_RANGE, "general.alignment must be a power of two");
    put_head(f, 3, 0, 1);
    put_key(f, "odd", 13);
    put_data(f, 64);
    expect(f, RP_STATUS_FORMAT, "key odd is of an unknown type");
    put_head(f, 3, 0, 1);
    put_key(f, "nested", RP_GGUF_ARRAY);
    put_u32(f, RP_GGUF_ARRAY);
    put_u64(f, 1);
    expect(f, RP_STATUS_FORMAT, "key nested");
    put_head(f, 3, 1, 0);
    put_tensor(f, "old", 32, 1, 16, 0);
    put_data(f, 64);
    expect(f, RP_STATUS_UNSUPPORTED, "tensor old is of type 16 (IQ2_XXS)");
    put_head(f, 3, 1, 0);
    put_tensor(f, "odd", 48, 1, RP_BLOCK_Q4_0, 0);
    put_data(f, 64);
    expect(f, RP_STATUS_FORMAT, "tensor odd has rows of 48 values, Q4_0 needs a multiple of 32");
    put_head(f, 3, 2, 0);
    put_tensor(f, "one", 8, 2, RP_BLOCK_F32, 0);
    put_tensor(f, "two", 8, 1, RP_BLOCK_F32, 32);
    put_data(f, 64);
    expect(f, RP_STATUS_FORMAT, "tensor two overlaps");
    put_head(f, 3, 1, 0);
    put_tensor(f, "far", 8, 1, RP_BLOCK_F32, 4);
    put_data(f, 64);
    expect(f, RP_STATUS_FORMAT, "tensor far begins at 4");
    put_head(f, 3, 1, 0);
    put_tensor(f, "vast", (uint64_t)1 << 40, (uint64_t)1 << 40, RP_BLOCK_F32, 0);
    put_data(f, 64);
    expect(f, RP_STATUS_OVERFLOW, "tensor vast is too large");
}

/* "<unk>" unknown, a marker, "a" and a run of two spaces that the model's authors have defined. */
static void put_sentencepiece(struct fixture *f) {
    static const char *const tokens[] = {"<unk>", "\xE2\x96\x81", "a", "  "};
    static const int32_t types[] = {2, 1, 1, 4};
    put_head(f, 3, 0, 6);
    put_key(f, "tokenizer.ggml.model", RP_GGUF_STRING);
    put_text(f, "llama");
    put_key(f, "tokenizer.ggml.tokens", RP_GGUF_ARRAY);
    put_u32(f, RP_GGUF_STRING);
    put_u64(f, 4);
    for (int i = 0; i < 4; i++)
        put_text(f, tokens[i]);
    put_key(f, "tokenizer.ggml.scores", RP_GGUF_ARRAY);
    put_u32(f, RP_GGUF_F32);
    put_u64(f, 4);
    put(f, (const float[4]){0}, 16);
    put_key(f, "tokenizer.ggml.token_type", RP_GGUF_ARRAY);
    put_u32(f, RP_GGUF_I32);
    put_u64(f, 4);
    put(f, types, sizeof types);
    put_key(f, "tokenizer.ggml.unknown_token_id", RP_GGUF_U32);
    put_u32(f, 0);
    put_key(f, "tokenizer.ggml.add_space_prefix", RP_GGUF_BOOL);
    put(f, "", 1);
}

static void test_tokens_of_spaces_that_the_authors_defined_are_found_in_texts(void **state) {
    static const int32_t expected[] = {2, 3, 1, 2};
    struct fixture *f = *state;
    struct rp_tokenizer *tok;
    struct rp_token_ids ids = {NULL, 0, 0};
    const struct rp_text_span span = {"a   a", 5, false};
    put_sentencepiece(f);
    rp_test_file_write(&f->dir, "m.gguf", f->bytes, f->len);
    if (rp_tokenizer_open(f->path, &tok, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tok);
    assert_non_null(scratch);
    assert_int_equal(rp_tokenizer_encode(tok, &span, 1, 0, 16, scratch, &ids), RP_OK);
    assert_int_equal(ids.count, 4);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    rp_token_ids_deinit(&ids);
    rp_tokenizer_scratch_destroy(scratch);
    rp_tokenizer_close(tok);
}

static void test_every_failed_allocation_is_an_error_and_leaks_nothing(void **state) {
    struct fixture *f = *state;
    put_whole(f);
    for (uint64_t n = 1; n < 100; n++) {
        rp_test_file_write(&f->dir, "m.gguf", f->bytes, f->len);
        rp_gguf_close(&f->gguf);
        rp_alloc_fail_at(n);
        int status = rp_gguf_open(&f->gguf, f->path, &f->err);
        rp_alloc_fail_at(0);
        if (status == RP_OK)
            return;
        assert_int_equal(status, RP_STATUS_NO_MEMORY);
    }
    fail_msg("no end of allocations");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_keys_and_tensors_are_found_with_their_values),
        TEST(test_a_file_that_ends_anywhere_is_refused),
        TEST(test_any_changed_byte_is_an_error_or_a_file_within_its_limits),
        TEST(test_what_contradicts_itself_is_refused_by_name),
        TEST(test_tokens_of_spaces_that_the_authors_defined_are_found_in_texts),
        TEST(test_every_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
