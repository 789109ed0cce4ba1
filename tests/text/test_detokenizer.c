/* Goal: a stream never emits part of a character, never holds back a complete one, and adds up to
 * the text. */
#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/detokenizer.h"

/* Pushes one id; returns the appended text. */
static const char *push(struct fixture *f, struct rp_detokenizer *d, int32_t id) {
    rp_buffer_clear(&f->text);
    assert_int_equal(rp_detokenizer_push(d, id, &f->text), RP_OK);
    rp_buffer_append(&f->text, "", 1);
    return f->text.data;
}

static const char *finish(struct fixture *f, struct rp_detokenizer *d) {
    rp_buffer_clear(&f->text);
    assert_int_equal(rp_detokenizer_finish(d, &f->text), RP_OK);
    rp_buffer_append(&f->text, "", 1);
    return f->text.data;
}

#define BYTE(b) (3 + (b))

static void test_character_in_several_tokens_comes_out_whole(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, BYTE(0xF0)), "");
    assert_string_equal(push(f, &d, BYTE(0x9F)), "");
    assert_string_equal(push(f, &d, BYTE(0x99)), "");
    assert_string_equal(push(f, &d, BYTE(0x82)), "\xF0\x9F\x99\x82");
    assert_string_equal(push(f, &d, 260), "a");
    assert_string_equal(finish(f, &d), "");
}

static void test_real_replacement_character_passes_at_once(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, BYTE(0xEF)), "");
    assert_string_equal(push(f, &d, BYTE(0xBF)), "");
    assert_string_equal(push(f, &d, BYTE(0xBD)), "\xEF\xBF\xBD");
}

static void test_only_the_first_space_of_the_stream_is_stripped(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, 1), "");
    assert_string_equal(push(f, &d, 264), "ab");
    assert_string_equal(push(f, &d, 264), " ab");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, 259), "");
    assert_string_equal(push(f, &d, 259), " ");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, 260), "a");
    assert_string_equal(push(f, &d, 259), " ");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, BYTE(0x20)), "");
    assert_string_equal(push(f, &d, 262), " a");
}

static void test_what_follows_a_text_keeps_its_space(void **state) {
    static const int32_t bos_only[] = {1}, text[] = {1, 264}, cut[] = {264, BYTE(0xF0)};
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_int_equal(rp_detokenizer_follow(&d, bos_only, 1), RP_OK);
    assert_string_equal(push(f, &d, 264), "ab"); /* a skipped special token has no text */
    rp_detokenizer_init(&d, f->tok, true);
    assert_int_equal(rp_detokenizer_follow(&d, text, 2), RP_OK);
    assert_string_equal(push(f, &d, 264), " ab");
    rp_detokenizer_init(&d, f->tok, true);
    assert_int_equal(rp_detokenizer_follow(&d, cut, 2),
                     RP_OK); /* part of a character belongs to the prompt */
    assert_string_equal(push(f, &d, 260), "a");
    assert_string_equal(finish(f, &d), "");
}

static void test_special_tokens_are_skipped_or_shown(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, 300), "");
    assert_string_equal(push(f, &d, 301), "<tool>");
    rp_detokenizer_init(&d, f->tok, false);
    assert_string_equal(push(f, &d, 300), "<|x|>");
    assert_string_equal(push(f, &d, 262), " a");
}

static void test_incomplete_bytes_become_one_replacement_each_with_byte_fallback(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, BYTE(0xE2)), "");
    assert_string_equal(push(f, &d, BYTE(0x82)), "");
    assert_string_equal(push(f, &d, 260), "\xEF\xBF\xBD\xEF\xBF\xBD"
                                          "a");
    assert_string_equal(push(f, &d, BYTE(0xFF)), "\xEF\xBF\xBD");
    assert_string_equal(push(f, &d, BYTE(0xC3)), "");
    assert_string_equal(push(f, &d, BYTE(0xC3)), "\xEF\xBF\xBD");
    assert_string_equal(push(f, &d, BYTE(0xA9)), "\xC3\xA9");
    assert_string_equal(push(f, &d, BYTE(0xE2)), "");
    assert_string_equal(finish(f, &d), "\xEF\xBF\xBD");
    assert_string_equal(finish(f, &d), "");
}

static void test_ids_without_token_append_nothing(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, -1), "");
    assert_string_equal(push(f, &d, 299), "");
    assert_string_equal(push(f, &d, INT32_MAX), "");
    assert_string_equal(push(f, &d, 262), "a");
}

static void test_byte_level_decodes_lossily_with_one_replacement_for_a_cut_character(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    /* U+0120 is the space, U+00E2 U+0124 the bytes E2 82, "Ω" is outside the map. */
    fixture_must_load(f,
                      "{\"decoder\": {\"type\": \"ByteLevel\"},"
                      "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
                      "\"model\": {\"type\": \"BPE\", \"vocab\": {\"\xC4\xA0\": 0,"
                      "\"\xC3\xA2\xC4\xA4\": 1, \"\xC2\xAC\": 2, \"\xCE\xA9\": 3},"
                      "\"merges\": []}}");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, 0), " ");
    assert_string_equal(push(f, &d, 1), "");
    assert_string_equal(push(f, &d, 2), "\xE2\x82\xAC");
    assert_string_equal(push(f, &d, 1), "");
    assert_string_equal(push(f, &d, 3), "\xEF\xBF\xBD\xCE\xA9");
    assert_string_equal(push(f, &d, 1), "");
    assert_string_equal(finish(f, &d), "\xEF\xBF\xBD");
}

static void test_copy_of_a_stream_goes_on_by_itself(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d, copy;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    assert_string_equal(push(f, &d, BYTE(0xC3)), "");
    copy = d;
    assert_string_equal(push(f, &d, BYTE(0xA9)), "\xC3\xA9");
    assert_string_equal(push(f, &copy, BYTE(0xB6)), "\xC3\xB6");
    assert_true(sizeof d <= 64);
}

static void test_full_buffer_is_an_error(void **state) {
    struct fixture *f = *state;
    struct rp_detokenizer d;
    struct rp_buffer small;
    fixture_sentencepiece(f, "", "");
    rp_detokenizer_init(&d, f->tok, true);
    rp_buffer_init(&small, 1);
    assert_int_equal(rp_detokenizer_push(&d, 263, &small), RP_STATUS_NO_MEMORY);
    assert_true(small.failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_character_in_several_tokens_comes_out_whole),
        FIXTURE_TEST(test_real_replacement_character_passes_at_once),
        FIXTURE_TEST(test_only_the_first_space_of_the_stream_is_stripped),
        FIXTURE_TEST(test_what_follows_a_text_keeps_its_space),
        FIXTURE_TEST(test_special_tokens_are_skipped_or_shown),
        FIXTURE_TEST(test_incomplete_bytes_become_one_replacement_each_with_byte_fallback),
        FIXTURE_TEST(test_ids_without_token_append_nothing),
        FIXTURE_TEST(test_byte_level_decodes_lossily_with_one_replacement_for_a_cut_character),
        FIXTURE_TEST(test_copy_of_a_stream_goes_on_by_itself),
        FIXTURE_TEST(test_full_buffer_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
