/* Tokenizers from tables in memory, and damaged tables. Ids are compared with other packages in
 * tests/oracle. */
#include "text/tokenizer/tokenizer_build.h"

#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <math.h>

#define TOKEN(text)                                                                                \
    { text, sizeof(text) - 1 }
#define MARK "\xE2\x96\x81"

static const struct rp_tokenizer_text pieces[] = {
    TOKEN("<unk>"), TOKEN("<s>"),    TOKEN("</s>"),   TOKEN(MARK), TOKEN("a"),   TOKEN("b"),
    TOKEN("ab"),    TOKEN(MARK "a"), TOKEN("<user>"), TOKEN("bb"), TOKEN("abb"), TOKEN("<0x21>"),
};
static const uint8_t types[] = {2, 3, 3, 1, 1, 1, 1, 1, 4, 5, 1, 6};
static const float scores[] = {0, 0, 0, -9, -8, -7, -3, -2, 0, -4, -1, 0};

static struct rp_tokenizer_tables sentencepiece(enum rp_tokenizer_model model) {
    return (struct rp_tokenizer_tables){.source = "tables",
                                        .model = model,
                                        .count = RP_ARRAY_COUNT(pieces),
                                        .tokens = pieces,
                                        .types = types,
                                        .scores = scores,
                                        .bos_id = 1,
                                        .eos_id = 2,
                                        .add_bos = true,
                                        .add_space_prefix = true};
}

static int build(struct fixture *f, const struct rp_tokenizer_tables *tables) {
    fixture_reset(f);
    int status = rp_tokenizer_build(tables, &f->tok, &f->err);
    if (status == RP_OK)
        f->scratch = rp_tokenizer_scratch_create(f->tok);
    return status;
}

static void must_build(struct fixture *f, const struct rp_tokenizer_tables *tables) {
    if (build(f, tables) != RP_OK)
        fail_msg("%s", f->err.text);
    assert_non_null(f->scratch);
}

static const char *encode(struct fixture *f, const char *text, bool special) {
    const struct rp_text_span span = {text, strlen(text), special};
    return fixture_spans(f, &span, 1, special ? RP_ENCODE_ADD_SPECIAL : 0);
}

static const char *decode(struct fixture *f, const int32_t *ids, size_t count) {
    struct rp_detokenizer d;
    rp_detokenizer_init(&d, f->tok, true);
    rp_buffer_clear(&f->text);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(rp_detokenizer_push(&d, ids[i], &f->text), RP_OK);
    assert_int_equal(rp_detokenizer_finish(&d, &f->text), RP_OK);
    rp_buffer_append(&f->text, "", 1);
    return f->text.data;
}

static void test_neighbors_of_the_highest_score_are_joined_first(void **state) {
    struct fixture *f = *state;
    const struct rp_tokenizer_tables tables = sentencepiece(RP_TOKENIZER_SCORE_BPE);
    must_build(f, &tables);
    assert_string_equal(encode(f, "ab", false), "7 5");      /* _a is worth more than ab */
    assert_string_equal(encode(f, "bab", false), "3 5 6");   /* not at the start */
    assert_string_equal(encode(f, "bbb", false), "3 5 5 5"); /* bb is unused: cut again */
    assert_string_equal(encode(f, "a<user>b", false), "7 8 5");
    assert_string_equal(encode(f, "a!", false), "7 11");  /* no piece: its byte */
    assert_string_equal(encode(f, "a?!?", false), "7 0"); /* some byte has no token */
    assert_string_equal(encode(f, "<s>a</s>", true), "1 1 7 2");
    const int32_t ids[] = {1, 7, 3, 5, 11};
    assert_string_equal(decode(f, ids, 5), "a b!");
    assert_int_equal(rp_tokenizer_bos(f->tok), 1);
    assert_int_equal(rp_tokenizer_eos(f->tok), 2);
}

static void test_segmentation_of_the_highest_sum_is_found(void **state) {
    struct fixture *f = *state;
    const struct rp_tokenizer_tables tables = sentencepiece(RP_TOKENIZER_UNIGRAM);
    must_build(f, &tables);
    assert_string_equal(encode(f, "ab", false), "7 5");   /* -2-7 against -9-3 */
    assert_string_equal(encode(f, "abb", false), "3 10"); /* -9-1 against -2-7-7 */
    assert_string_equal(encode(f, "bb", false), "3 5 5"); /* never the unused bb */
    assert_string_equal(encode(f, "<user>", false), "3 8");
}

static void test_prefix_is_put_before_the_first_segment_only_on_request(void **state) {
    struct fixture *f = *state;
    struct rp_tokenizer_tables tables = sentencepiece(RP_TOKENIZER_SCORE_BPE);
    must_build(f, &tables);
    assert_string_equal(encode(f, "a</s>a", true), "1 7 2 7");
    tables.space_prefix_first_only = true;
    must_build(f, &tables);
    assert_string_equal(encode(f, "a</s>a", true), "1 7 2 4");
    tables.add_space_prefix = false;
    tables.remove_extra_whitespaces = true;
    must_build(f, &tables);
    assert_string_equal(encode(f, "  b  a ", false), "5 7");
}

static void test_byte_level_merges_follow_the_named_split(void **state) {
    static const struct rp_tokenizer_text tokens[] = {TOKEN("a"),
                                                      TOKEN("1"),
                                                      TOKEN("2"),
                                                      TOKEN("\xC4\xA0"),
                                                      TOKEN("\xC4\xA0"
                                                            "a"),
                                                      TOKEN("12"),
                                                      TOKEN("<|x|>"),
                                                      TOKEN("<tool>")};
    static const uint8_t kinds[] = {1, 1, 1, 1, 1, 1, 3, 4};
    static const struct rp_tokenizer_text merges[] = {TOKEN("\xC4\xA0 a"), TOKEN("1 2")};
    struct fixture *f = *state;
    struct rp_tokenizer_tables tables = {.source = "tables",
                                         .model = RP_TOKENIZER_BYTE_BPE,
                                         .count = 8,
                                         .tokens = tokens,
                                         .types = kinds,
                                         .merges = merges,
                                         .merge_count = 2,
                                         .pre = "llama-bpe",
                                         .bos_id = -1,
                                         .eos_id = 6,
                                         .unk_id = -1};
    must_build(f, &tables);
    assert_string_equal(encode(f, "a a12<tool><|x|>", false), "0 4 5 7");
    assert_string_equal(encode(f, "a<|x|>", true), "0 6");
    tables.pre = "qwen2"; /* each digit alone */
    must_build(f, &tables);
    assert_string_equal(encode(f, " a12", false), "4 1 2");
    tables.pre = "nobody";
    assert_int_equal(build(f, &tables), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "\"nobody\""));
}

static void test_word_pieces_in_both_spellings(void **state) {
    static const struct rp_tokenizer_text plain[] = {TOKEN("[UNK]"), TOKEN("[CLS]"), TOKEN("[SEP]"),
                                                     TOKEN("un"),    TOKEN("##do"),  TOKEN("!")};
    static const struct rp_tokenizer_text marked[] = {TOKEN("[UNK]"), TOKEN("[CLS]"),
                                                      TOKEN("[SEP]"), TOKEN(MARK "un"),
                                                      TOKEN("do"),    TOKEN(MARK "!")};
    static const uint8_t kinds[] = {2, 3, 3, 1, 1, 1};
    struct fixture *f = *state;
    struct rp_tokenizer_tables tables = {.source = "tables",
                                         .model = RP_TOKENIZER_WORDPIECE,
                                         .count = 6,
                                         .types = kinds,
                                         .bos_id = 1,
                                         .eos_id = 2,
                                         .add_bos = true,
                                         .add_eos = true};
    for (int i = 0; i < 2; i++) {
        tables.tokens = i ? marked : plain;
        tables.marked_words = i == 1;
        must_build(f, &tables);
        assert_string_equal(encode(f, "\xC3\x9Cndo! do", true), "1 3 4 5 0 2");
        const int32_t ids[] = {3, 4, 5, 3};
        assert_string_equal(decode(f, ids, 4), "undo! un");
    }
}

static void test_damaged_tables_are_refused(void **state) {
    struct fixture *f = *state;
    static const uint8_t wrong_types[RP_ARRAY_COUNT(pieces)] = {2, 3, 3, 9};
    static const float no_number[RP_ARRAY_COUNT(pieces)] = {0, 0, 0, INFINITY};
    static const struct rp_tokenizer_text twice[] = {TOKEN("<unk>"), TOKEN("a"), TOKEN("a")};
    static const struct rp_tokenizer_text bytes[] = {TOKEN("<unk>"), TOKEN("\xFF")};
    static const struct rp_tokenizer_text merges[] = {TOKEN("a z")};
    struct rp_tokenizer_tables t[10];
    const char *says[] = {
        "1 to",      "no scores", "type 9",        "not a number",         "there twice",
        "not UTF-8", "merges[0]", "the EOS token", "precompiled_charsmap", "no unknown"};
    for (size_t i = 0; i < 10; i++)
        t[i] = sentencepiece(i % 2 ? RP_TOKENIZER_UNIGRAM : RP_TOKENIZER_SCORE_BPE);
    t[0].count = 0;
    t[1].scores = NULL;
    t[2].types = wrong_types;
    t[3].scores = no_number;
    t[4].tokens = twice;
    t[4].types = NULL;
    t[4].count = 3;
    t[5].tokens = bytes;
    t[5].types = NULL;
    t[5].count = 2;
    t[5].bos_id = t[5].eos_id = t[4].eos_id = 1;
    t[6].model = RP_TOKENIZER_BYTE_BPE;
    t[6].merges = merges;
    t[6].merge_count = 1;
    t[7].eos_id = (int32_t)RP_ARRAY_COUNT(pieces);
    t[8].charsmap = "\xFF\xFF\xFF\xFF";
    t[8].charsmap_len = 4;
    t[9].unk_id = -1;
    for (size_t i = 0; i < 10; i++) {
        int status = build(f, &t[i]);
        if (status == RP_OK || strncmp(f->err.text, "tables: ", 8) != 0 ||
            !strstr(f->err.text, says[i]))
            fail_msg("%zu: status %d, \"%s\"", i, status, f->err.text);
    }
}

static void test_cost_of_a_long_text_is_nearly_linear(void **state) {
    struct fixture *f = *state;
    struct rp_tokenizer_tables tables = sentencepiece(RP_TOKENIZER_SCORE_BPE);
    uint64_t work[2];
    must_build(f, &tables);
    for (int i = 0; i < 2; i++) {
        size_t len = (size_t)20000 << i;
        char *text = malloc(len + 1);
        assert_non_null(text);
        for (size_t j = 0; j < len; j++)
            text[j] = "ab"[j * j % 7 < 3];
        text[len] = '\0';
        f->scratch->work = 0;
        (void)encode(f, text, false);
        work[i] = f->scratch->work;
        free(text);
    }
    assert_true(work[0] > 0 && work[1] < 3 * work[0]);
}

static void test_every_failed_allocation_is_reported(void **state) {
    struct fixture *f = *state;
    for (int model = 1; model < 3; model++) {
        struct rp_tokenizer_tables tables = sentencepiece((enum rp_tokenizer_model)model);
        int status = RP_STATUS_NO_MEMORY;
        for (uint64_t n = 1; status != RP_OK; n++) {
            fixture_reset(f);
            rp_alloc_fail_at(n);
            status = rp_tokenizer_build(&tables, &f->tok, &f->err);
            rp_alloc_fail_at(0);
            assert_true(status == RP_OK || (status == RP_STATUS_NO_MEMORY && !f->tok));
        }
    }
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(test_neighbors_of_the_highest_score_are_joined_first),
        T(test_segmentation_of_the_highest_sum_is_found),
        T(test_prefix_is_put_before_the_first_segment_only_on_request),
        T(test_byte_level_merges_follow_the_named_split),
        T(test_word_pieces_in_both_spellings),
        T(test_damaged_tables_are_refused),
        T(test_cost_of_a_long_text_is_nearly_linear),
        T(test_every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
