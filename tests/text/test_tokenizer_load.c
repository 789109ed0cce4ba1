/* Goal: a damaged tokenizer.json is refused with a line that names the place, or handled; it never
 * crashes the loader. Method: one file for each kind of damage, then every
 * prefix and thousands of damaged copies of a valid file under the sanitizers. */
#include "base/memory.h"
#include "tests/text/tokenizer_fixture.h"

#define VOCAB "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}"
#define MODEL "\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"a b\"]}"

static const struct {
    const char *json;
    int status;
    const char *says;
} refused[] = {
    {"", RP_STATUS_FORMAT, "line"},
    {"[]", RP_STATUS_FORMAT, "not a JSON object"},
    {"{}", RP_STATUS_FORMAT, "model must be an object"},
    {"{\"model\": 3}", RP_STATUS_FORMAT, "model must be an object"},
    {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}", RP_STATUS_UNSUPPORTED,
     "model.type \"WordLevel\" is not supported"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", RP_STATUS_UNSUPPORTED, "model.unk_id"},
    {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"a\", \"b\"]]}}",
     RP_STATUS_FORMAT, "model.vocab[0] must be [piece, score]"},
    {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 1, \"vocab\": [[\"a\", 0]]}}",
     RP_STATUS_UNSUPPORTED, "model.unk_id"},
    {"{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"x\", \"vocab\": {\"a\": 0}}}",
     RP_STATUS_FORMAT, "model.unk_token \"x\" is not in model.vocab"},
    {"{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"a\", "
     "\"max_input_chars_per_word\": 100000, \"vocab\": {\"a\": 0}}}",
     RP_STATUS_RANGE, "model.max_input_chars_per_word"},
    {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"#\"}, " MODEL "}",
     RP_STATUS_FORMAT, "precompiled_charsmap is not base64"},
    {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/////w==\"}, " MODEL
     "}",
     RP_STATUS_FORMAT, "precompiled_charsmap is damaged"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}", RP_STATUS_FORMAT,
     "model.vocab"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", RP_STATUS_FORMAT, "model.merges"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"a c\"]}}", RP_STATUS_FORMAT,
     "model.merges[0] a c"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"a b\", \"b a\"]}}",
     RP_STATUS_FORMAT, "model.merges[1] b a"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"ab\"]}}", RP_STATUS_FORMAT,
     "[0] ab"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [[\"a\"]]}}", RP_STATUS_FORMAT, "[0]"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [7]}}", RP_STATUS_FORMAT, "[0]"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\": 0, \"a\": 1}, \"merges\": [\" a\"]}}",
     RP_STATUS_FORMAT, "[0]"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}", RP_STATUS_RANGE,
     "the id of \"a\""},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 2147483648}, \"merges\": []}}",
     RP_STATUS_RANGE, "the id of \"a\""},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999999999999999}, \"merges\": []}}",
     RP_STATUS_FORMAT, "line 1"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1.5}, \"merges\": []}}", RP_STATUS_RANGE,
     "the id of \"a\""},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 16000000}, \"merges\": []}}",
     RP_STATUS_RANGE, "only 1 tokens"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}",
     RP_STATUS_FORMAT, "\"b\" and \"a\" have the same id 1"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []}}",
     RP_STATUS_FORMAT, "duplicate"},
    {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, " VOCAB ", \"merges\": []}}",
     RP_STATUS_UNSUPPORTED, "model.dropout"},
    {"{\"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\", " VOCAB
     ", \"merges\": []}}",
     RP_STATUS_UNSUPPORTED, "model.end_of_word_suffix"},
    {"{\"model\": {\"type\": \"BPE\", \"fuse_unk\": 1, " VOCAB ", \"merges\": []}}",
     RP_STATUS_FORMAT, "model.fuse_unk"},
    {"{\"added_tokens\": {}, " MODEL "}", RP_STATUS_FORMAT, "added_tokens must be an array"},
    {"{\"added_tokens\": [{\"id\": 3}], " MODEL "}", RP_STATUS_FORMAT, "added_tokens[0].content"},
    {"{\"added_tokens\": [{\"id\": \"3\", \"content\": \"c\"}], " MODEL "}", RP_STATUS_RANGE,
     "\"c\""},
    {"{\"added_tokens\": [{\"id\": 1, \"content\": \"c\"}], " MODEL "}", RP_STATUS_FORMAT,
     "same id 1"},
    {"{\"added_tokens\": [{\"id\": 5, \"content\": \"a\"}], " MODEL "}", RP_STATUS_FORMAT,
     "the id 5 and also 0"},
    {"{\"normalizer\": {\"type\": \"ByteLevel\"}, " MODEL "}", RP_STATUS_UNSUPPORTED,
     "normalizer \"ByteLevel\""},
    {"{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
     "\"Sequence\"}]}, " MODEL "}",
     RP_STATUS_UNSUPPORTED, "normalizer.normalizers[0] \"Sequence\""},
    {"{\"normalizer\": {}, " MODEL "}", RP_STATUS_FORMAT, "normalizer.type"},
    {"{\"pre_tokenizer\": {\"type\": \"Bert\"}, " MODEL "}", RP_STATUS_UNSUPPORTED, "\"Bert\""},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\":"
     "\"Isolated\", \"invert\": false}, " MODEL "}",
     RP_STATUS_FORMAT, "pre_tokenizer: invalid pattern"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:ss)\"}, "
     "\"behavior\":"
     "\"Isolated\", \"invert\": false}, " MODEL "}",
     RP_STATUS_UNSUPPORTED,
     "letters up to U+0073, of which several equal one under (?i), is not supported"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"\"}, \"behavior\":"
     "\"Isolated\", \"invert\": false}, " MODEL "}",
     RP_STATUS_FORMAT, "pattern"},
    {"{\"decoder\": {\"type\": \"CTC\"}, " MODEL "}", RP_STATUS_UNSUPPORTED, "\"CTC\""},
    {"{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}, " MODEL
     "}",
     RP_STATUS_UNSUPPORTED, "Strip"},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
     "{\"id\":"
     "\"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {}}, " MODEL "}",
     RP_STATUS_FORMAT, "special_tokens lacks \"<s>\""},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
     "{\"id\":"
     "\"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": "
     "[7]}}}, " MODEL "}",
     RP_STATUS_RANGE, "an id that no token has"},
    {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}, " MODEL "}",
     RP_STATUS_UNSUPPORTED, "once"},
};

static void test_damaged_files_are_refused_with_one_line_that_names_the_entry(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(refused); i++) {
        int status = fixture_load(f, refused[i].json, strlen(refused[i].json));
        if (status != refused[i].status || !strstr(f->err.text, refused[i].says) ||
            strncmp(f->err.text, "/tmp/", 5) != 0 || strchr(f->err.text, '\n'))
            fail_msg("%s: status %d, \"%s\"", refused[i].json, status, f->err.text);
    }
}

static void test_deep_nesting_is_refused(void **state) {
    struct fixture *f = *state;
    char json[40000];
    memset(json, '[', sizeof json);
    memcpy(json, "{\"model\": ", 10);
    assert_int_equal(fixture_load(f, json, sizeof json), RP_STATUS_FORMAT);
}

static void test_missing_file_has_a_hint(void **state) {
    struct fixture *f = *state;
    assert_int_equal(rp_tokenizer_open("/nonexistent/model", &f->tok, &f->err),
                     RP_STATUS_NOT_FOUND);
    assert_true(f->err.hint[0] != '\0');
    assert_int_not_equal(rp_tokenizer_open("/tmp", &f->tok, &f->err), RP_OK);
}

static void test_odd_but_valid_files_load(void **state) {
    struct fixture *f = *state;
    fixture_must_load(f, "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}");
    assert_int_equal(rp_tokenizer_vocab_size(f->tok), 0);
    assert_string_equal(fixture_ids(f, "abc"), "");
    fixture_must_load(f, "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {"
                         "\"<0x-1>\": 0, \"<0x4>\": 1, \"<0xGG>\": 2, \"\": 3, \"a\": 60000},"
                         "\"merges\": []}}");
    assert_string_equal(fixture_ids(f, "ab\n"), "60000");
    fixture_must_load(f,
                      "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \" \": 1, \"a \": 2},"
                      "\"merges\": [\"#version: 0.2\", \"a  \", \"a  \"]}}");
    assert_string_equal(fixture_ids(f, "a a"), "2 0");
}

static void test_token_of_a_mebibyte_loads(void **state) {
    struct fixture *f = *state;
    struct rp_buffer json;
    static char letters[1 << 20];
    memset(letters, 'a', sizeof letters);
    rp_buffer_init(&json, 0);
    rp_buffer_puts(&json, "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"");
    rp_buffer_append(&json, letters, sizeof letters);
    rp_buffer_puts(&json, "\": 2}, \"merges\": []}}");
    int status = fixture_load(f, json.data, json.len);
    rp_buffer_deinit(&json);
    assert_int_equal(status, RP_OK);
    assert_int_equal(rp_tokenizer_token(f->tok, 2).len, sizeof letters);
}

static const char whole[] =
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<x>\", \"special\": true, \"normalized\": "
    "true}],"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\":"
    "\"Replace\", \"pattern\": {\"Regex\": \" +\"}, \"content\": \"_\"}]},"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
    "\"pattern\":"
    "{\"Regex\": \"\\\\p{N}{1,3}|[\\\\s\\\\w]+\"}, \"behavior\": \"Isolated\", \"invert\": false},"
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}]},"
    "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"},"
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<x>\"}},"
    "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<x>\": {\"ids\": [5]}}}]},"
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\":"
    "{\"String\": \"_\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": "
    "\"Fuse\"}]},"
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": "
    "2,"
    "\"?\": 3, \"<0x0A>\": 4}, \"merges\": [[\"a\", \"b\"]]}}";

/* Loads it and, if that succeeds, uses it. */
static void try_file(struct fixture *f, const char *json, size_t len) {
    static const char text[] = " ab12 <x>b\xC3\xA9\xE4\xB8\xAD ?";
    struct rp_text_span span = {text, sizeof text - 1, true};
    if (fixture_load(f, json, len) != RP_OK) {
        assert_int_not_equal(f->err.status, RP_OK);
        assert_true(f->err.text[0] != '\0');
        return;
    }
    int status =
        rp_tokenizer_encode(f->tok, &span, 1, RP_ENCODE_ADD_SPECIAL, 0, f->scratch, &f->ids);
    assert_true(status == RP_OK || status == RP_STATUS_FORMAT);
}

static void test_no_prefix_of_a_file_crashes_the_loader(void **state) {
    struct fixture *f = *state;
    for (size_t len = 0; len < sizeof whole; len++)
        try_file(f, whole, len);
    fixture_must_load(f, whole);
}

static void test_no_damaged_copy_of_a_file_crashes_the_loader(void **state) {
    struct fixture *f = *state;
    static const char *const inserts[] = {"-1",   "null",  "[]",     "{}",  "\"\"",       "1e9",
                                          "true", "99999", "\"[a\"", "3.5", "\"\\u0000\""};
    char json[sizeof whole + 32];
    srand(1);
    for (int round = 0; round < 4000; round++) {
        size_t len = sizeof whole - 1, at = (size_t)rand() % len;
        memcpy(json, whole, len);
        if (round % 2) { /* another value */
            const char *colon = memchr(whole + at, ':', len - at);
            const char *insert = inserts[(size_t)rand() % RP_ARRAY_COUNT(inserts)];
            if (!colon)
                continue;
            size_t begin = (size_t)(colon - whole) + 1, end = begin + strcspn(colon + 1, ",}]");
            memcpy(json + begin, insert, strlen(insert));
            memcpy(json + begin + strlen(insert), whole + end, len - end);
            len = len - (end - begin) + strlen(insert);
        } else {
            json[at] = (char)(rand() % 128);
        }
        try_file(f, json, len);
    }
}

static void test_every_failed_allocation_of_the_loader_is_reported(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/reprise-tokenizer-XXXXXX";
    int fd = mkstemp(path), status = RP_STATUS_NO_MEMORY;
    assert_true(fd >= 0 && write(fd, whole, sizeof whole - 1) == (ssize_t)sizeof whole - 1);
    close(fd);
    for (uint64_t n = 1; n < 300 && status != RP_OK; n++) {
        rp_alloc_fail_at(n);
        status = rp_tokenizer_open(path, &f->tok, &f->err);
        rp_alloc_fail_at(0);
        if (status != RP_OK && status != RP_STATUS_NO_MEMORY)
            break;
    }
    unlink(path);
    assert_int_equal(status, RP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_damaged_files_are_refused_with_one_line_that_names_the_entry),
        FIXTURE_TEST(test_deep_nesting_is_refused),
        FIXTURE_TEST(test_missing_file_has_a_hint),
        FIXTURE_TEST(test_odd_but_valid_files_load),
        FIXTURE_TEST(test_token_of_a_mebibyte_loads),
        FIXTURE_TEST(test_no_prefix_of_a_file_crashes_the_loader),
        FIXTURE_TEST(test_no_damaged_copy_of_a_file_crashes_the_loader),
        FIXTURE_TEST(test_every_failed_allocation_of_the_loader_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
