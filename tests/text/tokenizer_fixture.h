/* tokenizer_fixture.h - tokenizers for tests, written as JSON in the test. */
#ifndef RP_TESTS_MODEL_TOKENIZER_FIXTURE_H
#define RP_TESTS_MODEL_TOKENIZER_FIXTURE_H

#include "base/buffer.h"
#include "text/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Resources of a test; the teardown frees them, also after a failed assertion. */
struct fixture {
    struct rp_tokenizer *tok;
    struct rp_tokenizer_scratch *scratch;
    struct rp_token_ids ids;
    struct rp_buffer text;
    struct rp_error err;
};

static inline int fixture_setup(void **state) {
    *state = calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static inline void fixture_reset(struct fixture *f) {
    rp_tokenizer_scratch_destroy(f->scratch);
    rp_tokenizer_close(f->tok);
    rp_token_ids_deinit(&f->ids);
    rp_buffer_deinit(&f->text);
    memset(f, 0, sizeof *f);
}

static inline int fixture_teardown(void **state) {
    fixture_reset(*state);
    free(*state);
    return 0;
}

/* Loads `json` through a file; returns the status of rp_tokenizer_open. */
static inline int fixture_load(struct fixture *f, const char *json, size_t len) {
    char path[] = "/tmp/reprise-tokenizer-XXXXXX";
    fixture_reset(f);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(write(fd, json, len) == (ssize_t)len);
    close(fd);
    int status = rp_tokenizer_open(path, &f->tok, &f->err);
    unlink(path);
    if (status == RP_OK) {
        f->scratch = rp_tokenizer_scratch_create(f->tok);
        assert_non_null(f->scratch);
    }
    return status;
}

static inline void fixture_must_load(struct fixture *f, const char *json) {
    if (fixture_load(f, json, strlen(json)) != RP_OK)
        fail_msg("%s", f->err.text);
}

/* The ids as text: "1 2 3". */
static inline const char *fixture_spans(struct fixture *f, const struct rp_text_span *spans,
                                        size_t count, unsigned flags) {
    f->ids.count = 0;
    assert_int_equal(rp_tokenizer_encode(f->tok, spans, count, flags, 0, f->scratch, &f->ids),
                     RP_OK);
    rp_buffer_clear(&f->text);
    for (size_t i = 0; i < f->ids.count; i++)
        rp_buffer_printf(&f->text, i ? " %d" : "%d", (int)f->ids.ids[i]);
    rp_buffer_append(&f->text, "", 1);
    return f->text.data;
}

static inline const char *fixture_ids(struct fixture *f, const char *text) {
    struct rp_text_span span = {text, strlen(text), true};
    return fixture_spans(f, &span, 1, 0);
}

/* A SentencePiece-like model: 0-2 are <unk> <s> </s>, 3 + b the byte tokens, 259 "▁", 260 "a",
 * 261 "b", 262 "▁a", 263 "ab", 264 "▁ab"; 300 "<|x|>" is special, 301 "<tool>" an added token that
 * is not. `extra` are further added tokens, `sections` further sections, each with its comma. */
static inline void fixture_sentencepiece(struct fixture *f, const char *extra,
                                         const char *sections) {
    struct rp_buffer json;
    rp_buffer_init(&json, 0);
    rp_buffer_printf(
        &json,
        "{\"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true},"
        "{\"id\": 1, \"content\": \"<s>\", \"special\": true},"
        "{\"id\": 2, \"content\": \"</s>\", \"special\": true},"
        "{\"id\": 300, \"content\": \"<|x|>\", \"special\": true},"
        "{\"id\": 301, \"content\": \"<tool>\", \"special\": false}%s],%s"
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\":"
        "{\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"},"
        "{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": "
        "0}]},"
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\":"
        "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}},"
        "{\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\":"
        "{\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": [\"<s>\"]},"
        "\"</s>\": {\"id\": \"</s>\", \"ids\": [2], \"tokens\": [\"</s>\"]}}},"
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": \"<unk>\","
        "\"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, \"<s>\": 1,"
        "\"</s>\": 2,",
        extra, sections);
    for (int b = 0; b < 256; b++)
        rp_buffer_printf(&json, "\"<0x%02X>\": %d,", b, b + 3);
    rp_buffer_puts(&json, "\"\xE2\x96\x81\": 259, \"a\": 260, \"b\": 261, \"\xE2\x96\x81"
                          "a\": 262, \"ab\": 263, \"\xE2\x96\x81"
                          "ab\": 264}, \"merges\": [\"\xE2\x96\x81 a\", [\"a\", \"b\"],"
                          "\"\xE2\x96\x81 ab\", \"\xE2\x96\x81"
                          "a b\"]}}");
    rp_buffer_append(&json, "", 1);
    fixture_must_load(f, json.data);
    rp_buffer_deinit(&json);
}

#define FIXTURE_PREPEND                                                                            \
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "          \
    "\"prepend\": \"\xE2\x96\x81\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "   \
    "\"content\": \"\xE2\x96\x81\"}]},"

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

#endif
