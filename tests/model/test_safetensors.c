/* Goal: a safetensors file is accepted only if its header and its length agree completely; an
 * invalid one is refused with the name of the file, and of the tensor if there is one. Method:
 * tables of files as bytes. */
#include "base/buffer.h"
#include "model/safetensors.h"
#include "tests/support/model_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME "model.safetensors"

struct fixture {
    struct rp_test_dir dir, other;
    struct rp_safetensors files;
    struct rp_error err;
};

static int setup(void **state) {
    static struct fixture fixture;
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_safetensors_close(&f->files);
    rp_test_dir_remove(&f->dir);
    rp_test_dir_remove(&f->other);
    return 0;
}

static int open_dir(struct fixture *f) {
    rp_safetensors_close(&f->files);
    memset(&f->err, 0, sizeof f->err);
    return rp_safetensors_open(&f->files, f->dir.path, &f->err);
}

static void must_open(struct fixture *f) {
    if (open_dir(f) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void expect(struct fixture *f, const char *what, enum rp_status status, const char *text) {
    int got = open_dir(f);
    if (got != (int)status || f->err.status != status || !strstr(f->err.text, text))
        fail_msg("%s: expected %s \"%s\", got %s \"%s\"", what, rp_status_name(status), text,
                 rp_status_name(got), f->err.text);
    assert_null(f->files.tensors);
    assert_int_equal(f->files.shard_count, 0);
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void test_tensors_are_found_and_read(void **state) {
    struct fixture *f = *state;
    unsigned char bytes[8];
    rp_test_safetensors_write(&f->dir, FILE_NAME,
                              "{\"__metadata__\":{\"format\":\"pt\"},\"b\":" T("F32", "[2,3]", "4",
                                                                               "28") //
                              ",\"a\":" T("BF16", "[2]", "0", "4") "}",
                              NULL, 28);
    must_open(f);
    assert_int_equal(f->files.count, 2);
    assert_null(rp_safetensors_find(&f->files, "c"));
    const struct rp_safetensor *b = rp_safetensors_find(&f->files, "b");
    assert_non_null(b);
    assert_int_equal(b->type, RP_SAFETENSOR_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->bytes, 24);
    assert_string_equal(rp_safetensors_file(&f->files, b), FILE_NAME);
    assert_int_equal(rp_safetensors_read(&f->files, b, 16, bytes, 8, &f->err), RP_OK);
    for (int i = 0; i < 8; i++)
        assert_int_equal(bytes[i], 4 + 16 + i);
}

static const struct header_case {
    const char *what, *header;
    size_t data_len;
    enum rp_status status;
    const char *text;
} headers[] = {
    {"no tensor", "{}", 0, RP_OK, ""},
    {"whitespace around the header", " \n\t{\"a\":" T("U8", "[4]", "0", "4") "}  \r\n ", 4, RP_OK,
     ""},
    {"rank 0", "{\"a\":" T("F32", "[]", "0", "4") "}", 4, RP_OK, ""},
    {"a dimension of 0",
     "{\"a\":" T("F32", "[0,7]", "0", "0") ",\"b\":" T("I8", "[1]", "0", "1") "}", 1, RP_OK, ""},
    {"eight dimensions", "{\"a\":" T("I8", "[1,1,1,1,1,1,1,2]", "0", "2") "}", 2, RP_OK, ""},
    {"4-bit elements, even", "{\"a\":" T("F4", "[2]", "0", "1") "}", 1, RP_OK, ""},
    {"an entry with a key more",
     "{\"a\":{\"x\":[1,{}],\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, RP_OK, ""},
    {"empty", "", 0, RP_STATUS_FORMAT, "model.safetensors: not valid JSON"},
    {"a list", "[]", 0, RP_STATUS_FORMAT, "model.safetensors: the header must be a JSON object"},
    {"only {", "{", 0, RP_STATUS_FORMAT, "model.safetensors: not valid JSON"},
    {"bytes after the object", "{}x", 0, RP_STATUS_FORMAT, "model.safetensors: not valid JSON"},
    {"not UTF-8", "{\"\xC3\x28\":1}", 0, RP_STATUS_FORMAT, "model.safetensors: not valid JSON"},
    {"the same name twice",
     "{\"a\":" T("I8", "[1]", "0", "1") ",\"a\":" T("I8", "[1]", "1", "2") "}", 2, RP_STATUS_FORMAT,
     "model.safetensors: not valid JSON: line 1"},
    {"overlap", "{\"a\":" T("I8", "[4]", "0", "4") ",\"b\":" T("I8", "[4]", "3", "7") "}", 7,
     RP_STATUS_FORMAT, "model.safetensors: tensor b: its data overlaps"},
    {"the same bytes twice",
     "{\"a\":" T("I8", "[4]", "0", "4") ",\"b\":" T("I8", "[4]", "0", "4") "}", 4, RP_STATUS_FORMAT,
     "its data overlaps"},
    {"a hole", "{\"a\":" T("I8", "[4]", "0", "4") ",\"b\":" T("I8", "[4]", "5", "9") "}", 9,
     RP_STATUS_FORMAT, "model.safetensors: tensor b: there is a hole before its data"},
    {"a hole at the start", "{\"a\":" T("I8", "[4]", "1", "5") "}", 5, RP_STATUS_FORMAT,
     "model.safetensors: tensor a: there is a hole before its data"},
    {"reversed", "{\"a\":" T("I8", "[4]", "4", "0") "}", 4, RP_STATUS_FORMAT,
     "model.safetensors: tensor a: data_offsets end before they begin"},
    {"past the end", "{\"a\":" T("I8", "[5]", "0", "5") "}", 4, RP_STATUS_FORMAT,
     "model.safetensors: tensor a: data_offsets end at 5, the file has 4 bytes of data"},
    {"an offset of 2^64-1", "{\"a\":" T("I8", "[4]", "0", "18446744073709551615") "}", 4,
     RP_STATUS_FORMAT, "model.safetensors: not valid JSON"},
    {"an offset of 2^63-1", "{\"a\":" T("I8", "[4]", "0", "9223372036854775807") "}", 4,
     RP_STATUS_FORMAT, "tensor a: data_offsets end at 9223372036854775807"},
    {"a negative offset", "{\"a\":" T("I8", "[4]", "-4", "0") "}", 4, RP_STATUS_FORMAT,
     "tensor a: data_offsets must be two integers"},
    {"one offset", "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0]}}", 4,
     RP_STATUS_FORMAT, "tensor a: data_offsets must be two integers"},
    {"a shape that overflows",
     "{\"a\":" T("I8", "[4294967296,4294967296,4294967296]", "0", "4") "}", 4, RP_STATUS_OVERFLOW,
     "tensor a: the product of its shape overflows"},
    {"a shape whose bits overflow", "{\"a\":" T("F32", "[4611686018427387904]", "0", "4") "}", 4,
     RP_STATUS_OVERFLOW, "tensor a: the product of its shape overflows"},
    {"a negative dimension", "{\"a\":" T("I8", "[-4]", "0", "4") "}", 4, RP_STATUS_FORMAT,
     "tensor a: shape must hold integers"},
    {"a dimension of 4.0", "{\"a\":" T("I8", "[4.0]", "0", "4") "}", 4, RP_STATUS_FORMAT,
     "tensor a: shape must hold integers"},
    {"nine dimensions", "{\"a\":" T("I8", "[1,1,1,1,1,1,1,1,4]", "0", "4") "}", 4, RP_STATUS_RANGE,
     "tensor a: shape has more than 8 dimensions"},
    {"no shape", "{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,4]}}", 4, RP_STATUS_FORMAT,
     "tensor a: shape must be a list"},
    {"a byte too few for the shape", "{\"a\":" T("F32", "[2]", "0", "7") "}", 7, RP_STATUS_FORMAT,
     "tensor a: data_offsets span 7 bytes, shape and dtype give 8"},
    {"a byte after the last tensor", "{\"a\":" T("F32", "[2]", "0", "8") "}", 9, RP_STATUS_FORMAT,
     "model.safetensors: 1 bytes after the last tensor"},
    {"a file cut by a byte", "{\"a\":" T("F32", "[2]", "0", "8") "}", 7, RP_STATUS_FORMAT,
     "tensor a: data_offsets end at 8, the file has 7 bytes of data"},
    {"an unknown type", "{\"a\":" T("F128", "[1]", "0", "16") "}", 16, RP_STATUS_FORMAT,
     "tensor a: dtype \"F128\" is not known"},
    {"no type", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, RP_STATUS_FORMAT,
     "tensor a: dtype must be a string"},
    {"4-bit elements, odd", "{\"a\":" T("F4", "[3]", "0", "1") "}", 1, RP_STATUS_FORMAT,
     "tensor a: its elements do not fill whole bytes"},
    {"an entry that is a number", "{\"a\":1}", 0, RP_STATUS_FORMAT,
     "tensor a: its entry must be an object"},
    {"metadata that is no object", "{\"__metadata__\":1}", 0, RP_STATUS_FORMAT,
     "model.safetensors: __metadata__ must be an object"},
    {"metadata with a number", "{\"__metadata__\":{\"a\":1}}", 0, RP_STATUS_FORMAT,
     "model.safetensors: __metadata__ must hold strings only"},
    {"a name with control bytes", "{\"a\\u001b\\n\":1}", 0, RP_STATUS_FORMAT,
     "tensor a??: its entry"},
};

static void test_headers_are_accepted_or_refused_as_the_format_says(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(headers); i++) {
        rp_test_safetensors_write(&f->dir, FILE_NAME, headers[i].header, NULL, headers[i].data_len);
        if (headers[i].status != RP_OK)
            expect(f, headers[i].what, headers[i].status, headers[i].text);
        else if (open_dir(f) != RP_OK)
            fail_msg("%s: %s", headers[i].what, f->err.text);
    }
}

static void test_files_too_short_for_their_header_are_refused(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *what, *bytes;
        size_t len;
        enum rp_status status;
        const char *text;
    } files[] = {
        {"0 bytes", "", 0, RP_STATUS_FORMAT, "model.safetensors: too short"},
        {"7 bytes", "\2\0\0\0\0\0\0", 7, RP_STATUS_FORMAT, "model.safetensors: too short"},
        {"8 bytes, no header", "\0\0\0\0\0\0\0\0", 8, RP_STATUS_FORMAT, "not valid JSON"},
        {"8 bytes, header of 2", "\2\0\0\0\0\0\0\0", 8, RP_STATUS_FORMAT,
         "header of 2 bytes in a file of 8 bytes"},
        {"header of 2^63", "\0\0\0\0\0\0\0\x80{}", 10, RP_STATUS_RANGE,
         "header of 9223372036854775808 bytes"},
        {"header of 2^64-1", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, RP_STATUS_RANGE,
         "header of 18446744073709551615 bytes"},
        {"header of 100,000,001", "\x01\xE1\xF5\x05\0\0\0\0{}", 10, RP_STATUS_RANGE,
         "header of 100000001 bytes, at most 100000000"},
        {"header of 100,000,000 in a short file", "\0\xE1\xF5\x05\0\0\0\0{}", 10, RP_STATUS_FORMAT,
         "header of 100000000 bytes in a file of 10 bytes"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(files); i++) {
        rp_test_file_write(&f->dir, FILE_NAME, files[i].bytes, files[i].len);
        expect(f, files[i].what, files[i].status, files[i].text);
    }
}

static void test_deep_wide_and_many_are_refused_within_limits(void **state) {
    struct fixture *f = *state;
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    rp_buffer_puts(&text, "{\"a\":");
    for (int i = 0; i < 2049; i++)
        rp_buffer_puts(&text, "[");
    rp_buffer_append(&text, "", 1);
    rp_test_safetensors_write(&f->dir, FILE_NAME, text.data, NULL, 0);
    rp_buffer_clear(&text);
    expect(f, "2,049 deep", RP_STATUS_FORMAT, "model.safetensors: not valid JSON");

    rp_buffer_puts(&text, "{\"a\":"
                          "{\"dtype\":\"I8\",\"data_offsets\":[0,0],\"shape\":[0");
    for (int i = 0; i < 100000; i++)
        rp_buffer_puts(&text, ",1");
    rp_buffer_append(&text, "]}}", 4);
    rp_test_safetensors_write(&f->dir, FILE_NAME, text.data, NULL, 0);
    rp_buffer_clear(&text);
    expect(f, "100,001 dimensions", RP_STATUS_RANGE, "tensor a: shape has more than 8 dimensions");

    rp_buffer_puts(&text, "{");
    for (int i = 0; i < 65537; i++)
        rp_buffer_printf(&text, "%s\"%x\":" T("I8", "[0]", "0", "0"), i ? "," : "", (unsigned)i);
    rp_buffer_append(&text, "}", 2);
    rp_test_safetensors_write(&f->dir, FILE_NAME, text.data, NULL, 0);
    rp_buffer_clear(&text);
    expect(f, "65,537 tensors", RP_STATUS_RANGE,
           "model.safetensors: 65537 tensors, at most 65536 are read");

    rp_buffer_puts(&text, "{\"a\":[0");
    for (int i = 0; i < 2000000; i++)
        rp_buffer_puts(&text, ",[]");
    rp_buffer_append(&text, "]}", 3);
    rp_test_safetensors_write(&f->dir, FILE_NAME, text.data, NULL, 0);
    rp_buffer_deinit(&text);
    expect(f, "2 M empty lists", RP_STATUS_RANGE, "model.safetensors: JSON with too many values");
}

/* --- shards ---------------------------------------------------------------------------------- */

#define INDEX_NAME "model.safetensors.index.json"

static void write_two_shards(struct fixture *f) {
    rp_test_safetensors_write(&f->dir, "s1", "{\"a\":" T("I8", "[4]", "0", "4") "}", NULL, 4);
    rp_test_safetensors_write(
        &f->dir, "s2",
        "{\"b\":" T("I8", "[4]", "0", "4") ",\"extra\":" T("I8", "[2]", "4", "6") "}", NULL, 6);
}

static void test_each_tensor_comes_from_the_shard_that_the_index_says(void **state) {
    struct fixture *f = *state;
    unsigned char byte;
    write_two_shards(f);
    rp_test_file_text(
        &f->dir, INDEX_NAME,
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"s2\",\"a\":\"s1\"}}");
    must_open(f);
    assert_int_equal(f->files.count, 2);
    assert_string_equal(rp_safetensors_file(&f->files, rp_safetensors_find(&f->files, "a")), "s1");
    const struct rp_safetensor *b = rp_safetensors_find(&f->files, "b");
    assert_string_equal(rp_safetensors_file(&f->files, b), "s2");
    assert_int_equal(rp_safetensors_read(&f->files, b, 3, &byte, 1, &f->err), RP_OK);
    assert_int_equal(byte, 3);
}

static void test_bad_indexes_are_refused(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *what, *json;
        enum rp_status status;
        const char *text;
    } indexes[] = {
        {"up and out", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}", RP_STATUS_FORMAT,
         "model.safetensors.index.json: weight_map: \"../../etc/passwd\" is not the name"},
        {"absolute", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", RP_STATUS_FORMAT,
         "weight_map: \"/etc/passwd\" is not the name"},
        {"a subdirectory", "{\"weight_map\":{\"a\":\"d/s1\"}}", RP_STATUS_FORMAT,
         "is not the name"},
        {"the parent", "{\"weight_map\":{\"a\":\"..\"}}", RP_STATUS_FORMAT, "is not the name"},
        {"the directory", "{\"weight_map\":{\"a\":\".\"}}", RP_STATUS_FORMAT, "is not the name"},
        {"a control byte", "{\"weight_map\":{\"a\":\"s\\n1\"}}", RP_STATUS_FORMAT,
         "\"s?1\" is not the name"},
        {"no name", "{\"weight_map\":{\"a\":\"\"}}", RP_STATUS_FORMAT, "is not the name"},
        {"a number", "{\"weight_map\":{\"a\":1}}", RP_STATUS_FORMAT,
         "the file of a must be a string"},
        {"no file", "{\"weight_map\":{\"a\":\"s1\",\"c\":\"s3\"}}", RP_STATUS_NOT_FOUND,
         "s3: cannot open"},
        {"not in its file", "{\"weight_map\":{\"a\":\"s2\"}}", RP_STATUS_FORMAT,
         "s2: tensor a: not in the file, though model.safetensors.index.json says so"},
        {"a link in a loop", "{\"weight_map\":{\"a\":\"loop\"}}", RP_STATUS_IO,
         "loop: cannot open"},
        {"no map", "{}", RP_STATUS_FORMAT, "weight_map must be an object"},
        {"a list", "[]", RP_STATUS_FORMAT, "weight_map must be an object"},
        {"not JSON", "{\"weight_map\":", RP_STATUS_FORMAT,
         "model.safetensors.index.json: not valid JSON"},
    };
    write_two_shards(f);
    rp_test_file_link(&f->dir, "loop", "loop");
    for (size_t i = 0; i < RP_ARRAY_COUNT(indexes); i++) {
        rp_test_file_text(&f->dir, INDEX_NAME, indexes[i].json);
        expect(f, indexes[i].what, indexes[i].status, indexes[i].text);
    }
}

static void test_links_to_a_blob_store_are_followed(void **state) {
    struct fixture *f = *state;
    char target[512];
    rp_test_dir_create(&f->other);
    rp_test_safetensors_write(&f->other, "blob", "{\"a\":" T("I8", "[4]", "0", "4") "}", NULL, 4);
    snprintf(target, sizeof target, "%s/blob", f->other.path);
    rp_test_file_link(&f->dir, FILE_NAME, target);
    must_open(f);
    assert_non_null(rp_safetensors_find(&f->files, "a"));
}

static void test_what_is_no_regular_file_is_refused(void **state) {
    struct fixture *f = *state;
    rp_test_file_link(&f->dir, FILE_NAME, "/dev/zero");
    expect(f, "a device", RP_STATUS_IO, "model.safetensors: not a regular file");
}

static void test_a_directory_without_weights_says_what_was_looked_for(void **state) {
    struct fixture *f = *state;
    expect(f, "nothing", RP_STATUS_NOT_FOUND,
           "model.safetensors: no such file, and no model.safetensors.index.json either");
    assert_true(f->err.hint[0] != '\0');
}

static void
test_a_file_that_shrinks_while_it_is_read_is_an_error_that_names_the_tensor(void **state) {
    struct fixture *f = *state;
    unsigned char bytes[64];
    rp_test_safetensors_write(&f->dir, FILE_NAME, "{\"a\":" T("I8", "[64]", "0", "64") "}", NULL,
                              64);
    must_open(f);
    rp_test_file_truncate(&f->dir, FILE_NAME, 80);
    const struct rp_safetensor *a = rp_safetensors_find(&f->files, "a");
    assert_int_equal(rp_safetensors_read(&f->files, a, 0, bytes, 64, &f->err), RP_STATUS_IO);
    assert_string_equal(
        f->err.text,
        "model.safetensors: tensor a: the file ends inside its data: was it cut short?");
}

static void test_every_failed_allocation_is_an_error_and_leaks_nothing(void **state) {
    struct fixture *f = *state;
    write_two_shards(f);
    rp_test_file_text(&f->dir, INDEX_NAME, "{\"weight_map\":{\"b\":\"s2\",\"a\":\"s1\"}}");
    int status = RP_STATUS_NO_MEMORY;
    for (uint64_t n = 1; n < 100 && status != RP_OK; n++) {
        rp_alloc_fail_at(n);
        status = open_dir(f);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
    }
    assert_int_equal(status, RP_OK);
}

/* --verdict DIR..: prints "ok" or the error for each directory, for oracles in other languages. */
static int verdicts(char **dirs, int count) {
    for (int i = 0; i < count; i++) {
        struct rp_safetensors files;
        struct rp_error err;
        bool ok = rp_safetensors_open(&files, dirs[i], &err) == RP_OK;
        printf("%s\n", ok ? "ok" : err.text);
        if (ok)
            rp_safetensors_close(&files);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--verdict") == 0)
        return verdicts(argv + 2, argc - 2);
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_tensors_are_found_and_read),
        TEST(test_headers_are_accepted_or_refused_as_the_format_says),
        TEST(test_files_too_short_for_their_header_are_refused),
        TEST(test_deep_wide_and_many_are_refused_within_limits),
        TEST(test_each_tensor_comes_from_the_shard_that_the_index_says),
        TEST(test_bad_indexes_are_refused),
        TEST(test_links_to_a_blob_store_are_followed),
        TEST(test_what_is_no_regular_file_is_refused),
        TEST(test_a_directory_without_weights_says_what_was_looked_for),
        TEST(test_a_file_that_shrinks_while_it_is_read_is_an_error_that_names_the_tensor),
        TEST(test_every_failed_allocation_is_an_error_and_leaks_nothing),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
