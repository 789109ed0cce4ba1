/* Goal: encoding follows the rules that a server depends on: where special tokens are recognized,
 * how added tokens consume white space, the handling of bytes that no token covers, and linear
 * cost. Method: small vocabularies; tests/oracle/tokenizer_oracle.py compares large ones with the
 * `tokenizers` package. */
#include "base/memory.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/tokenizer_internal.h"

static void test_special_text_is_a_token_only_where_its_span_allows_it(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span allowed[] = {{"a<|x|>", 6, true}};
    const struct rp_text_span refused[] = {{"a<|x|>", 6, false}};
    assert_string_equal(fixture_spans(f, allowed, 1, 0), "260 300");
    assert_string_equal(fixture_spans(f, refused, 1, 0), "260 63 127 123 127 65");
}

static void test_special_token_across_a_forbidden_span_is_text(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span cut[] = {{"<|", 2, true}, {"x", 1, false}, {"|>", 2, true}};
    const struct rp_text_span joined[] = {{"<|", 2, true}, {"x|>", 3, true}};
    const struct rp_text_span user[] = {
        {"<|x|>", 5, true}, {"<|x|>", 5, false}, {"<|x|>", 5, true}};
    assert_string_equal(fixture_spans(f, cut, 3, 0), "63 127 123 127 65");
    assert_string_equal(fixture_spans(f, joined, 2, 0), "300");
    assert_string_equal(fixture_spans(f, user, 3, 0), "300 63 127 123 127 65 300");
}

static void test_added_token_that_is_not_special_matches_in_every_span(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span refused[] = {{"<tool>", 6, false}};
    assert_string_equal(fixture_spans(f, refused, 1, 0), "301");
}

static void test_spans_are_one_text(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", FIXTURE_PREPEND);
    const struct rp_text_span spans[] = {{"a", 1, true}, {"b", 1, false}, {"", 0, true}};
    assert_string_equal(fixture_spans(f, spans, 3, 0), "264");
    assert_string_equal(fixture_spans(f, NULL, 0, 0), "");
}

static void test_special_token_found_after_the_normalizer_obeys_its_span(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f,
                          ", {\"id\": 302, \"content\": \"<n>\", \"special\": true, "
                          "\"normalized\": true}",
                          FIXTURE_PREPEND);
    const struct rp_text_span allowed[] = {{"a", 1, false}, {" <n>", 4, true}};
    const struct rp_text_span refused[] = {{"a", 1, true}, {" <n>", 4, false}};
    assert_string_equal(fixture_spans(f, allowed, 2, 0), "262 302");
    assert_string_equal(fixture_spans(f, refused, 2, 0), "262 259 63 113 65");
}

static void test_lstrip_and_rstrip_swallow_white_space(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f,
                          ", {\"id\": 302, \"content\": \"<l>\", \"lstrip\": true},"
                          "{\"id\": 303, \"content\": \"<r>\", \"rstrip\": true}",
                          "");
    assert_string_equal(fixture_ids(f, "a \n\xE3\x80\x80<l> b"), "260 302 35 261");
    assert_string_equal(fixture_ids(f, "a <r> \t\xC2\xA0"
                                       "b"),
                        "260 35 303 261");
    assert_string_equal(fixture_ids(f, "<r>  <l>"), "303 302");
}

static void test_single_word_needs_no_letter_beside_it(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, ", {\"id\": 302, \"content\": \"cat\", \"single_word\": true}", "");
    assert_string_equal(fixture_ids(f, "cat"), "302");
    assert_string_equal(fixture_ids(f, "!cat!"), "36 302 36");
    assert_string_equal(fixture_ids(f, "acat"), "260 102 260 119");
    assert_string_equal(fixture_ids(f, "cat\xC3\xA9"), "102 260 119 198 172");
}

static void test_longest_added_token_wins_at_the_leftmost_place(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(
        f,
        ", {\"id\": 302, \"content\": \"xy\"}, {\"id\": 303, \"content\": \"xyz\"},"
        "{\"id\": 304, \"content\": \"yzzzz\"}",
        "");
    assert_string_equal(fixture_ids(f, "xyzzzzxy"), "303 125 125 125 302");
}

static void test_character_without_token_falls_back_to_its_bytes(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", FIXTURE_PREPEND);
    assert_string_equal(fixture_ids(f, "ab \xE2\x82\xAC"), "264 259 229 133 175");
    assert_string_equal(fixture_ids(f, "\n"), "259 13");
}

static void test_bytes_that_are_not_utf8_become_one_replacement_each(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span span = {"a\xE2\x82"
                                      "b\xFF",
                                      5, true};
    assert_string_equal(fixture_spans(f, &span, 1, 0),
                        "260 242 194 192 242 194 192 261 242 194 192");
}

static void test_unknown_characters_are_fused_or_kept_apart_or_dropped(void **state) {
    struct fixture *f = *state;
    fixture_must_load(f, "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": true,"
                         "\"vocab\": {\"?\": 0, \"a\": 1}, \"merges\": []}}");
    assert_string_equal(fixture_ids(f, "axxay"), "1 0 1 0");
    fixture_must_load(f, "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\","
                         "\"vocab\": {\"?\": 0, \"a\": 1}, \"merges\": []}}");
    assert_string_equal(fixture_ids(f, "axxay"), "1 0 0 1 0");
    fixture_must_load(f, "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1}, \"merges\": []}}");
    assert_string_equal(fixture_ids(f, "axxay"), "1 1");
}

static void test_template_goes_around_the_whole_text(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span spans[] = {{"a", 1, true}, {"b", 1, true}};
    assert_string_equal(fixture_spans(f, spans, 2, RP_ENCODE_ADD_SPECIAL), "1 263 2");
    assert_string_equal(fixture_spans(f, spans, 0, RP_ENCODE_ADD_SPECIAL), "1 2");
}

#define LETTERS                                                                                    \
    "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abc\": 5, \"\xC4\xA0\": 6}"

static void test_ignore_merges_takes_a_whole_piece_that_merging_cannot_reach(void **state) {
    struct fixture *f = *state;
    fixture_must_load(f,
                      "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
                      "\"model\": {\"type\": \"BPE\", \"ignore_merges\": true, " LETTERS
                      ", \"merges\": [\"b c\"]}}");
    assert_string_equal(fixture_ids(f, "abc"), "5");
    assert_string_equal(fixture_ids(f, "abcb"), "0 4 1");
    fixture_must_load(f,
                      "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
                      "\"model\": {\"type\": \"BPE\", " LETTERS ", \"merges\": [\"b c\"]}}");
    assert_string_equal(fixture_ids(f, "abc"), "0 4");
}

static void test_lowest_rank_merges_first_and_then_the_leftmost(void **state) {
    struct fixture *f = *state;
    fixture_must_load(f,
                      "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"aa\": 1, \"b\": 2,"
                      "\"ab\": 3, \"aaab\": 4}, \"merges\": [\"a b\", \"a a\", \"aa ab\"]}}");
    assert_string_equal(fixture_ids(f, "aaab"), "4");
    assert_string_equal(fixture_ids(f, "aaa"), "1 0");
    assert_string_equal(fixture_ids(f, "aab"), "0 3");
}

static void test_more_ids_than_the_limit_is_a_range_error_that_changes_nothing(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    const struct rp_text_span span = {"a a a", 5, true};
    assert_int_equal(rp_tokenizer_encode(f->tok, &span, 1, 0, 5, f->scratch, &f->ids), RP_OK);
    assert_int_equal(rp_tokenizer_encode(f->tok, &span, 1, 0, 4, f->scratch, &f->ids),
                     RP_STATUS_RANGE);
    assert_int_equal(f->ids.count, 5);
    assert_int_equal(rp_tokenizer_encode(f->tok, &span, 1, 0, 5, f->scratch, &f->ids), RP_OK);
    assert_int_equal(f->ids.count, 10);
}

static void test_find_and_token_know_content_and_bytes(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    assert_int_equal(rp_tokenizer_vocab_size(f->tok), 302);
    assert_int_equal(rp_tokenizer_find(f->tok, "<|x|>", 5), 300);
    assert_int_equal(rp_tokenizer_find(f->tok, "<|y|>", 5), -1);
    struct rp_token_bytes token = rp_tokenizer_token(f->tok, 264);
    assert_memory_equal(token.bytes, " ab", 3);
    assert_int_equal(token.len, 3);
    assert_true(token.known && !token.special);
    token = rp_tokenizer_token(f->tok, 3 + 0xE2);
    assert_int_equal(token.len, 1);
    assert_int_equal((unsigned char)token.bytes[0], 0xE2);
    assert_true(rp_tokenizer_token(f->tok, 300).special);
    assert_false(rp_tokenizer_token(f->tok, 270).known);
    assert_false(rp_tokenizer_token(f->tok, -1).known);
    assert_false(rp_tokenizer_token(f->tok, INT32_MAX).known);
}

/* Merge operations for a text of `len` equal letters. */
static uint64_t work_of(struct fixture *f, char letter, size_t len) {
    char *text = malloc(len);
    assert_non_null(text);
    memset(text, letter, len);
    const struct rp_text_span span = {text, len, true};
    uint64_t before = f->scratch->work;
    int status = rp_tokenizer_encode(f->tok, &span, 1, 0, 0, f->scratch, &f->ids);
    free(text);
    assert_int_equal(status, RP_OK);
    return f->scratch->work - before;
}

static void test_work_grows_with_the_length_times_its_logarithm(void **state) {
    struct fixture *f = *state;
    fixture_must_load(
        f, "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"aa\": 1, \"aaaa\": 2,"
           "\"aaaaaaaa\": 3}, \"merges\": [\"a a\", \"aa aa\", \"aaaa aaaa\"]}}");
    uint64_t small = work_of(f, 'a', 1 << 14), large = work_of(f, 'a', 1 << 18);
    assert_true(small > 0);
    /* 16 times the text: at most 16 * 18/14 times the work; a quadratic merge would do 256 times.
     */
    assert_true(large < small * 24);
}

static void test_every_failed_allocation_is_reported_and_leaves_nothing_behind(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", FIXTURE_PREPEND);
    const struct rp_text_span spans[] = {
        {"ab a\xE2\x82\xAC <|x|>", 13, true},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 51, false}};
    for (uint64_t n = 1; n < 40; n++) {
        rp_alloc_fail_at(n);
        struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(f->tok);
        struct rp_token_ids ids = {0};
        int status = scratch ? rp_tokenizer_encode(f->tok, spans, 2, 1, 0, scratch, &ids)
                             : RP_STATUS_NO_MEMORY;
        rp_alloc_fail_at(0);
        size_t count = ids.count;
        rp_token_ids_deinit(&ids);
        rp_tokenizer_scratch_destroy(scratch);
        assert_true(status == RP_OK ? count > 0 : status == RP_STATUS_NO_MEMORY && count == 0);
        if (status == RP_OK)
            return;
    }
    fail_msg("encoding allocates more often than expected");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_special_text_is_a_token_only_where_its_span_allows_it),
        FIXTURE_TEST(test_special_token_across_a_forbidden_span_is_text),
        FIXTURE_TEST(test_added_token_that_is_not_special_matches_in_every_span),
        FIXTURE_TEST(test_spans_are_one_text),
        FIXTURE_TEST(test_special_token_found_after_the_normalizer_obeys_its_span),
        FIXTURE_TEST(test_lstrip_and_rstrip_swallow_white_space),
        FIXTURE_TEST(test_single_word_needs_no_letter_beside_it),
        FIXTURE_TEST(test_longest_added_token_wins_at_the_leftmost_place),
        FIXTURE_TEST(test_character_without_token_falls_back_to_its_bytes),
        FIXTURE_TEST(test_bytes_that_are_not_utf8_become_one_replacement_each),
        FIXTURE_TEST(test_unknown_characters_are_fused_or_kept_apart_or_dropped),
        FIXTURE_TEST(test_template_goes_around_the_whole_text),
        FIXTURE_TEST(test_ignore_merges_takes_a_whole_piece_that_merging_cannot_reach),
        FIXTURE_TEST(test_lowest_rank_merges_first_and_then_the_leftmost),
        FIXTURE_TEST(test_more_ids_than_the_limit_is_a_range_error_that_changes_nothing),
        FIXTURE_TEST(test_find_and_token_know_content_and_bytes),
        FIXTURE_TEST(test_work_grows_with_the_length_times_its_logarithm),
        FIXTURE_TEST(test_every_failed_allocation_is_reported_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
