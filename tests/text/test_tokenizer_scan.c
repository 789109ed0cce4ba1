/* Goal: the hand-written scanners are equivalent to their patterns, and the incremental normalizer
 * to the normal form of the whole text. Method: seeded random texts of characters
 * that matter to the patterns; the scanner against its pattern under PCRE2, the normalizer
 * against the functions of unicode.h on the whole text. */
#include "base/utf8.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u; /* Numerical Recipes */
    return *seed >> 8;
}

/* A text of up to `chars` characters that the patterns treat differently. */
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

/* The pattern's first split after `pos`: the end of its match there, or the beginning of the next
 * match. */
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

/* Every character below U+10000 has the class that its pattern matches. */
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
    unsigned wrong = 0;
    fixture_sentencepiece(f, "", "");
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
            wrong += match != (f->tok->classes[code] == class);
        }
        pcre2_code_free(regex);
    }
    assert_int_equal(wrong, 0);
}

/* The normal form of the whole text; returns its length. */
static size_t normal_form(enum rp_unicode_form form, const char *text, size_t len, char *out) {
    static uint32_t points[1024 * RP_UNICODE_DECOMPOSED_MAX],
        spare[1024 * RP_UNICODE_DECOMPOSED_MAX];
    size_t count = 0, size = 0;
    for (size_t i = 0; i < len;) {
        uint32_t code;
        i += (size_t)rp_utf8_decode(text + i, len - i, &code);
        count += rp_unicode_decompose(code, form >= RP_UNICODE_NFKC, points + count);
    }
    rp_unicode_order(points, spare, count);
    if (form == RP_UNICODE_NFC || form == RP_UNICODE_NFKC)
        count = rp_unicode_compose(points, count);
    for (size_t i = 0; i < count; i++)
        size += (size_t)rp_utf8_encode(points[i], out + size);
    return size;
}

static void check_normal_form(struct fixture *f, enum rp_tok_normalizer_kind kind,
                              enum rp_unicode_form form) {
    char text[1024], bad[64] = "";
    static char expected[4 * 1024 * RP_UNICODE_DECOMPOSED_MAX];
    uint32_t seed = 7;
    f->tok->normalizers[0] = (struct rp_tok_normalizer){.kind = kind};
    f->tok->normalizer_count = 1;
    for (int round = 0; round < 20000 && !*bad; round++) {
        struct rp_tok_text in = {text, random_text(&seed, text, 60), NULL}, out;
        size_t n = normal_form(form, text, in.len, expected);
        int status = rp_tok_normalize(f->tok, f->scratch, &in, true, &out);
        if (status != RP_OK || out.len != n || memcmp(out.data, expected, n) != 0)
            snprintf(bad, sizeof bad, "kind %d, round %d", kind, round);
    }
    f->tok->normalizer_count = 0;
    assert_string_equal(bad, "");
}

static void test_normal_forms_by_stretches_equal_those_of_the_whole(void **state) {
    struct fixture *f = *state;
    fixture_sentencepiece(f, "", "");
    check_normal_form(f, RP_TOK_NFC, RP_UNICODE_NFC);
    check_normal_form(f, RP_TOK_NFD, RP_UNICODE_NFD);
    check_normal_form(f, RP_TOK_NFKC, RP_UNICODE_NFKC);
    check_normal_form(f, RP_TOK_NFKD, RP_UNICODE_NFKD);
}

/* Insertion sort is quadratic: the test would time out. */
static void test_long_run_of_marks_in_the_wrong_order_is_sorted(void **state) {
    struct fixture *f = *state;
    static char text[400000];
    fixture_sentencepiece(f, "", "");
    f->tok->normalizers[0] = (struct rp_tok_normalizer){.kind = RP_TOK_NFD};
    f->tok->normalizer_count = 1;
    for (size_t i = 0; i < sizeof text; i += 4)
        memcpy(text + i, "\xCC\x81\xCC\xA3", 4); /* class 230, then 220 */
    struct rp_tok_text in = {text, sizeof text, NULL}, out;
    assert_int_equal(rp_tok_normalize(f->tok, f->scratch, &in, true, &out), RP_OK);
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
