/* Goal: the hand-written scanners and the normalizer do what the libraries do, only faster.
 * Method: seeded random texts of characters that matter to the patterns; the scanner against its
 * own pattern under PCRE2, the normalizer by stretches against utf8proc on the whole text. */
#include "base/utf8.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <utf8proc.h>

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u; /* Numerical Recipes */
    return *seed >> 8;
}

/* A text of up to `chars` characters out of those that the patterns treat differently. */
static size_t random_text(uint32_t *seed, char *out, size_t chars) {
    static const uint32_t special[] = {
        '\'',   '\'',   's',    'S',     't',     'r',     'e',     'E',    'v',    'l',
        'L',    'm',    'd',    'D',     ' ',     ' ',     ' ',     '\t',   '\n',   '\r',
        '\n',   0x0B,   0x1C,   0x85,    0xA0,    '0',     '1',     '9',    'x',    'Z',
        '!',    '.',    '/',    '_',     0x17F,   0x180E,  0xE9,    0xB2,   0x3B1,  0x300,
        0x301,  0x5D0,  0x661,  0x2003,  0x01C5,  0x02B0,  0x30A2,  0x9FA6, '-',    '@',
        0x2028, 0x200B, 0x200D, 0x2160,  0x3000,  0x4E2D,  0x3042,  0xAC00, 0x1100, 0x1161,
        0x11A8, 0xFFFD, 0xFEFF, 0x1F642, 0x1D7D8, 0x1D400, 0x20000, 0xE0100};
    size_t len = 0, count = next_random(seed) % chars + 1;
    for (size_t i = 0; i < count; i++) {
        uint32_t code = special[next_random(seed) % RP_ARRAY_COUNT(special)];
        size_t times = next_random(seed) % 8 == 0 ? next_random(seed) % 5 : 1;
        while (times-- && len < 4 * chars)
            len += (size_t)rp_utf8_encode(code, out + len);
    }
    return len;
}

/* Where the pattern cuts behind `pos`: the end of its match there, or of what it leaves before the
 * next. */
static size_t cut_by_pattern(struct fixture *f, const pcre2_code *regex, const char *text,
                             size_t len, size_t pos) {
    size_t begin, end;
    int rc = rp_tok_regex_match(regex, f->scratch, text, len, pos, &begin, &end);
    return rc != 1 ? len : begin > pos ? begin : end;
}

static void compare_scanner(struct fixture *f, const struct rp_tok_scanner *scanner) {
    struct rp_tok_load load = {.tok = f->tok, .file = "test", .err = &f->err};
    size_t pattern_len = strlen(scanner->pattern), most = 0;
    pcre2_code *regex;
    char text[1024], bad[160] = "";
    uint32_t seed = 1;
    assert_ptr_equal(rp_tok_scan_find(scanner->pattern, pattern_len), scanner->scan);
    assert_int_equal(rp_tok_regex_compile(&load, "test", scanner->pattern, pattern_len, &regex),
                     RP_OK);
    for (int round = 0; round < 20000 && !*bad; round++) {
        size_t len = random_text(&seed, text, round % 8 ? 60 : 6), end;
        for (size_t pos = 0; pos < len && !*bad; pos = end) {
            end = cut_by_pattern(f, regex, text, len, pos);
            size_t ours = scanner->scan(f->tok->classes, text, len, pos);
            most = RP_MAX(most, end - pos);
            if (end != ours || end <= pos)
                snprintf(bad, sizeof bad, "%s, round %d at %zu of %zu: PCRE2 to %zu, ours to %zu",
                         scanner->name, round, pos, len, end, ours);
        }
    }
    pcre2_code_free(regex);
    assert_string_equal(bad, "");
    assert_true(most > 8);
}

static void test_scanners_cut_where_their_patterns_cut(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    for (size_t i = 0; i < RP_TOK_SCANNERS; i++)
        compare_scanner(f, &rp_tok_scanners[i]);
}

static void test_only_the_known_patterns_have_a_scanner(void **state) {
    (void)state;
    /* The same pattern, its line ends as characters. */
    static const char plain[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                                "?[^\\s\\p{L}\\p{N}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    const char *gpt2 = rp_tok_gpt2_pattern;
    char other[256];
    snprintf(other, sizeof other, "%s|x", gpt2);
    assert_non_null(rp_tok_scan_find(plain, strlen(plain)));
    assert_non_null(rp_tok_scan_find(gpt2, strlen(gpt2)));
    assert_null(rp_tok_scan_find(gpt2, strlen(gpt2) - 1));
    assert_null(rp_tok_scan_find(other, strlen(other)));
    assert_null(rp_tok_scan_find("", 0));
    assert_null(rp_tok_scan_find("\\p{N}{1,3}\0", 11));
}

/* Every assigned character below U+10000 has the class that PCRE2 sees, so that a newer Unicode in
 * one of the two libraries is noticed. It is reported, not failed, for characters that only one
 * knows. */
static void test_character_classes_agree_with_the_patterns(void **state) {
    struct fixture *f = *state;
    static const char *const patterns[] = {[RP_TOK_OTHER] = "[^\\s\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}]",
                                           [RP_TOK_UPPER] = "[\\p{Lu}\\p{Lt}]",
                                           [RP_TOK_LOWER] = "\\p{Ll}",
                                           [RP_TOK_LETTER] = "[\\p{Lm}\\p{Lo}]",
                                           [RP_TOK_MARK] = "\\p{M}",
                                           [RP_TOK_NUMBER] = "\\p{N}",
                                           [RP_TOK_SIGN] = "[\\p{P}\\p{S}]",
                                           [RP_TOK_SPACE] = "\\s"};
    struct rp_tok_load load = {.tok = NULL, .file = "test", .err = &f->err};
    unsigned wrong = 0, unknown = 0;
    pcre2_code *unassigned;
    fixture_sentencepiece(f, "", "");
    assert_int_equal(rp_tok_regex_compile(&load, "test", "\\p{Cn}", 6, &unassigned), RP_OK);
    for (int class = 0; class < (int)RP_ARRAY_COUNT(patterns); class ++) {
        pcre2_code *regex;
        assert_int_equal(
            rp_tok_regex_compile(&load, "test", patterns[class], strlen(patterns[class]), &regex),
            RP_OK);
        for (uint32_t code = 0; code < 0x10000; code++) {
            char utf8[4];
            size_t begin, end;
            if (code >= 0xD800 && code <= 0xDFFF)
                continue;
            size_t len = (size_t)rp_utf8_encode(code, utf8);
            bool match = rp_tok_regex_match(regex, f->scratch, utf8, len, 0, &begin, &end) == 1;
            if (match == (f->tok->classes[code] == class))
                continue;
            if (utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_CN ||
                rp_tok_regex_match(unassigned, f->scratch, utf8, len, 0, &begin, &end) == 1)
                unknown++;
            else
                wrong++;
        }
        pcre2_code_free(regex);
    }
    pcre2_code_free(unassigned);
    if (unknown)
        print_message("%u times a character is newer than one of the libraries\n", unknown);
    assert_int_equal(wrong, 0);
}

static void check_normal_form(struct fixture *f, enum rp_tok_normalizer_kind kind, int options) {
    char text[1024], bad[64] = "";
    uint32_t seed = 7;
    f->tok->normalizers[0] = (struct rp_tok_normalizer){.kind = kind};
    f->tok->normalizer_count = 1;
    for (int round = 0; round < 20000 && !*bad; round++) {
        struct rp_tok_text in = {text, random_text(&seed, text, 60), NULL}, out;
        utf8proc_uint8_t *expected;
        utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)in.len, &expected,
                         (utf8proc_option_t)(options | UTF8PROC_STABLE));
        int status = rp_tok_normalize(f->tok, f->scratch, &in, &out);
        if (n < 0 || status != RP_OK || out.len != (size_t)n || memcmp(out.data, expected, out.len))
            snprintf(bad, sizeof bad, "kind %d, round %d", kind, round);
        free(expected);
    }
    f->tok->normalizer_count = 0;
    assert_string_equal(bad, "");
}

static void test_normal_forms_by_stretches_equal_those_of_the_whole(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    check_normal_form(f, RP_TOK_NFC, UTF8PROC_COMPOSE);
    check_normal_form(f, RP_TOK_NFD, UTF8PROC_DECOMPOSE);
    check_normal_form(f, RP_TOK_NFKC, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    check_normal_form(f, RP_TOK_NFKD, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
}

/* utf8proc alone needs time quadratic in this text; here the test would run into its timeout. */
static void test_long_run_of_marks_in_the_wrong_order_is_sorted(void **state) {
    struct fixture *f = *state;
    static char text[400000];
    fixture_sentencepiece(f, "", "");
    f->tok->normalizers[0] = (struct rp_tok_normalizer){.kind = RP_TOK_NFD};
    f->tok->normalizer_count = 1;
    for (size_t i = 0; i < sizeof text; i += 4)
        memcpy(text + i, "\xCC\x81\xCC\xA3", 4); /* class 230, then 220 */
    struct rp_tok_text in = {text, sizeof text, NULL}, out;
    assert_int_equal(rp_tok_normalize(f->tok, f->scratch, &in, &out), RP_OK);
    f->tok->normalizer_count = 0;
    assert_int_equal(out.len, sizeof text);
    assert_memory_equal(out.data, "\xCC\xA3\xCC\xA3", 4);
    assert_memory_equal(out.data + out.len - 4, "\xCC\x81\xCC\x81", 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_scanners_cut_where_their_patterns_cut),
        FIXTURE_TEST(test_only_the_known_patterns_have_a_scanner),
        FIXTURE_TEST(test_character_classes_agree_with_the_patterns),
        FIXTURE_TEST(test_normal_forms_by_stretches_equal_those_of_the_whole),
        FIXTURE_TEST(test_long_run_of_marks_in_the_wrong_order_is_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
