/* Goal: unicode.h follows the Unicode standard in edge cases, and no input makes a normal form
 * slow. tests/oracle/unicode_oracle.py compares all code points. */
#include "tests/text/tokenizer_fixture.h"
#include "text/unicode/unicode.h"

#include <time.h>

static void check_form(enum rp_unicode_form form, const uint32_t *in, size_t in_count,
                       const uint32_t *expected, size_t expected_count) {
    uint32_t points[64], spare[64];
    size_t count = 0;
    for (size_t i = 0; i < in_count; i++)
        count += rp_unicode_decompose(in[i], form >= RP_UNICODE_NFKC, points + count);
    rp_unicode_order(points, spare, count);
    if (form == RP_UNICODE_NFC || form == RP_UNICODE_NFKC)
        count = rp_unicode_compose(points, count);
    assert_int_equal(count, expected_count);
    assert_memory_equal(points, expected, count * sizeof *points);
}
#define POINTS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

static void test_categories_of_unicode_16(void **state) {
    (void)state;
    assert_int_equal(rp_unicode_category('A'), RP_UNICODE_LU);
    assert_int_equal(rp_unicode_category(0x1C5), RP_UNICODE_LT);
    assert_int_equal(rp_unicode_category(0x4E00), RP_UNICODE_LO);
    assert_int_equal(rp_unicode_category(0x9FFF), RP_UNICODE_LO);
    /* New in 15.1 and 16: a CJK ideograph, a Garay letter and a Garay digit. */
    assert_int_equal(rp_unicode_category(0x2EBF0), RP_UNICODE_LO);
    assert_int_equal(rp_unicode_category(0x10D50), RP_UNICODE_LU);
    assert_int_equal(rp_unicode_category(0x10D40), RP_UNICODE_ND);
    assert_int_equal(rp_unicode_category(0xD800), RP_UNICODE_CS);
    assert_int_equal(rp_unicode_category(0x1FFFF), RP_UNICODE_CN);
    assert_int_equal(rp_unicode_category(0x20000), RP_UNICODE_LO);
    assert_int_equal(rp_unicode_category(0x10FFFD), RP_UNICODE_CO);
    assert_int_equal(rp_unicode_category(0x10FFFF), RP_UNICODE_CN);
    assert_int_equal(rp_unicode_category(UINT32_MAX), RP_UNICODE_CN);
}

static void test_case_mappings(void **state) {
    (void)state;
    assert_int_equal(rp_unicode_to_upper(0xFF), 0x178);
    assert_int_equal(rp_unicode_to_lower(0x1E9E), 0xDF);
    assert_int_equal(rp_unicode_to_title(0x1C4), 0x1C5);
    assert_int_equal(rp_unicode_to_lower('['), '[');
    assert_int_equal(rp_unicode_to_upper(0x10D70), 0x10D50);
    assert_string_equal(rp_unicode_special_case(0xDF, false), "SS");
    assert_string_equal(rp_unicode_special_case(0xFB03, true), "Ffi");
    assert_null(rp_unicode_special_case('s', false));
}

static void test_hangul_is_computed(void **state) {
    (void)state;
    check_form(RP_UNICODE_NFD, POINTS(0xAC00), POINTS(0x1100, 0x1161));
    check_form(RP_UNICODE_NFD, POINTS(0xD7A3), POINTS(0x1112, 0x1175, 0x11C2));
    check_form(RP_UNICODE_NFC, POINTS(0x1112, 0x1161, 0x11AB), POINTS(0xD55C));
    check_form(RP_UNICODE_NFC, POINTS(0xAC00, 0x11A7), POINTS(0xAC00, 0x11A7));
    check_form(RP_UNICODE_NFC, POINTS(0xAC01, 0x11A8), POINTS(0xAC01, 0x11A8));
}

static void test_composition_excludes_and_blocks(void **state) {
    (void)state;
    /* A singleton, and a composition exclusion. */
    check_form(RP_UNICODE_NFC, POINTS(0x212B), POINTS(0xC5));
    check_form(RP_UNICODE_NFC, POINTS(0x958), POINTS(0x915, 0x93C));
    /* The dot below comes first and composes first; a second mark of its class is blocked. */
    check_form(RP_UNICODE_NFC, POINTS('a', 0x307, 0x323), POINTS(0x1EA1, 0x307));
    check_form(RP_UNICODE_NFC, POINTS('a', 0x301, 0x301), POINTS(0xE1, 0x301));
    check_form(RP_UNICODE_NFC, POINTS('a', 0x334, 0x301), POINTS(0xE1, 0x334));
    check_form(RP_UNICODE_NFC, POINTS(0x301, 'a'), POINTS(0x301, 'a'));
    check_form(RP_UNICODE_NFKC, POINTS(0xFB01), POINTS('f', 'i'));
    check_form(RP_UNICODE_NFC, POINTS(0xFB01), POINTS(0xFB01));
    uint32_t longest[RP_UNICODE_DECOMPOSED_MAX];
    assert_int_equal(rp_unicode_decompose(0xFDFA, true, longest), RP_UNICODE_DECOMPOSED_MAX);
}

static void test_a_million_marks_are_ordered_in_linear_time(void **state) {
    (void)state;
    enum { COUNT = 1000000 };
    uint32_t *points = calloc(COUNT, sizeof *points), *spare = calloc(COUNT, sizeof *spare);
    assert_non_null(points);
    assert_non_null(spare);
    for (size_t i = 0; i < COUNT; i++)
        points[i] = i % 2 ? 0x323 : 0x301; /* classes 220 and 230 */
    clock_t begin = clock();
    rp_unicode_order(points, spare, COUNT);
    size_t count = rp_unicode_compose(points, COUNT);
    /* Insertion sort would take minutes. */
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    assert_int_equal(count, COUNT);
    assert_int_equal(points[COUNT / 2 - 1], 0x323);
    assert_int_equal(points[COUNT / 2], 0x301);
    free(points);
    free(spare);
}

static void test_sets_of_names_and_folds(void **state) {
    (void)state;
    static struct rp_unicode_set set;
    uint32_t first = 0, last;
    assert_true(rp_unicode_set_add_name(&set, "Uppercase_Letter", 16));
    assert_true(rp_unicode_set_has(&set, 'A'));
    assert_false(rp_unicode_set_has(&set, 'a'));
    assert_true(rp_unicode_set_next(&set, &first, &last));
    assert_int_equal(first, 'A');
    assert_int_equal(last, 'Z');
    assert_false(rp_unicode_set_add_name(&set, "NoSuchName", 10));
    memset(&set, 0, sizeof set);
    rp_unicode_set_add(&set, 'k', 'k');
    rp_unicode_set_add_folded(&set);
    assert_true(rp_unicode_set_has(&set, 'K') && rp_unicode_set_has(&set, 0x212A));
    assert_int_equal(rp_unicode_set_multi_fold(&set), 0);
    rp_unicode_set_invert(&set);
    assert_true(rp_unicode_set_has(&set, 'a') && rp_unicode_set_has(&set, 0x10FFFF));
    assert_false(rp_unicode_set_has(&set, 'k') || rp_unicode_set_has(&set, 0xD800));
    assert_int_equal(rp_unicode_set_multi_fold(&set), 0xDF);
    assert_true(rp_unicode_ends_multi_fold((const uint32_t[]){'x', 'S', 0x17F}, 3));
    assert_false(rp_unicode_ends_multi_fold((const uint32_t[]){'s', 'x', 'S'}, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_categories_of_unicode_16),
        cmocka_unit_test(test_case_mappings),
        cmocka_unit_test(test_hangul_is_computed),
        cmocka_unit_test(test_composition_excludes_and_blocks),
        cmocka_unit_test(test_a_million_marks_are_ordered_in_linear_time),
        cmocka_unit_test(test_sets_of_names_and_folds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
