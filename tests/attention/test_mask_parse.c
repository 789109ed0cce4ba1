/* Goal: a text is a program or an error with a column and a hint; programs print as their canonical
 * text.
 * Method: tables of texts. */
#include "attention/mask/mask.h"
#include "attention/mask/mask_internal.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct rp_mask_limits limits = {.length = 40000, .heads = 32, .layers = 8};

struct fixture {
    struct rp_mask *mask;
    struct rp_buffer text;
    struct rp_error err;
};

static int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_mask_free(f->mask);
    rp_buffer_deinit(&f->text);
    rp_free(f);
    return 0;
}

static int parse_bytes(struct fixture *f, const char *text, size_t bytes) {
    rp_mask_free(f->mask);
    f->mask = NULL;
    f->err = (struct rp_error){.status = RP_OK};
    return rp_mask_parse(text, bytes, &limits, &f->mask, &f->err);
}

static int parse(struct fixture *f, const char *text) { return parse_bytes(f, text, strlen(text)); }

static void must_parse(struct fixture *f, const char *text) {
    if (parse(f, text) != RP_OK)
        fail_msg("%s: %s", text, f->err.text);
}

static void must_fail(struct fixture *f, const char *text, const char *error) {
    if (parse(f, text) != RP_STATUS_INVALID || f->mask)
        fail_msg("%s: not refused", text);
    if (strcmp(f->err.text, error) != 0)
        fail_msg("%s:\n %s, not\n %s", text, f->err.text, error);
    if (!f->err.hint[0])
        fail_msg("%s: no hint", text);
}

static void test_programs_print_as_their_canonical_text(void **state) {
    static const char *const cases[][2] = {
        {"", "kv <= q"},
        {" ; ;\n\t", "kv <= q"},
        {"causal", "kv <= q"},
        {"causal && causal; causal", "kv <= q"},
        {"sliding_window(256)", "q - kv < 256"},
        {"sink(2 + 2)", "kv < 4"},
        {"prefix_lm(64)", "kv <= q || kv < 64"},
        {"chunked(64); causal", "q / 64 == kv / 64 && kv <= q"},
        {"document(100, 250)", "(q >= 100) == (kv >= 100) && (q >= 250) == (kv >= 250)"},
        {"dilated(4)", "(q - kv) % 4 == 0"},
        {"alibi", "kv <= q; score = score - slope(h) * (q - kv)"},
        {"soft_cap(50)", "kv <= q; score = 50.0 * tanh(score / 50.0)"},
        {"score = score / 2 + q / 2 * 1.5", "kv <= q; score = score / 2.0 + q / 2 * 1.5"},
        {"param w = 256;sliding_window(w)", "param w = 256 in 0..16777216; q - kv < w"},
        {"param a = -3 in -5..-1; q - kv > a * (2 - 3)", "param a = -3 in -5..-1; q - kv > a * -1"},
        {"(q <= kv || h == 1 && kv < 4) && !(q == 3)",
         "(q <= kv || (h == 1 && kv < 4)) && !(q == 3)"},
        {"q - (kv - 3) - 1 < 5 - (2 + 1)", "q - (kv - 3) - 1 < 2"},
        {"q / (kv / 2 + 1) * 3 % 7 != (q + kv) * 2", "q / (kv / 2 + 1) * 3 % 7 != (q + kv) * 2"},
        {"q < 5 ? kv < 3 : kv < 4 ? q < 2 : causal", "q < 5 ? kv < 3 : kv < 4 ? q < 2 : kv <= q"},
        {"(q < 5 ? kv : q) < 3", "(q < 5 ? kv : q) < 3"},
        {"(q < 5 ? kv < 1 : true) ? q < 2 : q < 3", "(q < 5 ? kv < 1 : true) ? q < 2 : q < 3"},
        {"1 < 2", "true"},
        {"causal && 1 > 2 || sink(1 * 4)", "kv < 4"},
        {"!!causal && -(-q) >= 0 && true", "kv <= q && q >= 0"},
        {"q * 1 + 0 < 0 * kv + kv / 1 - 0 + q % 1", "q < kv"},
        {"max(min(3, 5), abs(-7)) <= q", "7 <= q"},
        {"-7 / 2 == q + -7 % 2", "-3 == q + -1"},
        {"max(q, min(kv, 3)) == 2", "max(q, min(kv, 3)) == 2"},
        {"3 > 2 ? causal : sink(1)", "kv <= q"},
        {"h < 2 ? causal : causal", "kv <= q"},
        {"causal == sink(3)", "(kv <= q) == (kv < 3)"},
        {"score = -score * -2.5e-3 + abs(score)", "kv <= q; score = -score * -0.0025 + abs(score)"},
        {"score = exp(1) + tanh(0.5) + slope(3)",
         "kv <= q; score = exp(1.0) + tanh(0.5) + slope(3)"},
        {"score = 1e20 + 0.1 + 1e-7 - score * -0.0", "kv <= q; score = 1.0e+20 - score * -0.0"},
        {"score = causal ? score : 0 - 1", "kv <= q; score = kv <= q ? score : -1.0"},
        {"score = score + 1; score = score * 2",
         "kv <= q; score = score + 1.0; score = score * 2.0"},
        {"layer % 2 == 0 || sliding_window(64 * (h + 1)); causal",
         "(layer % 2 == 0 || q - kv < 64 * (h + 1)) && kv <= q"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        must_parse(f, cases[i][0]);
        assert_string_equal(rp_mask_text(f->mask), cases[i][1]);
        must_parse(f, cases[i][1]);
        assert_string_equal(rp_mask_text(f->mask), cases[i][1]);
    }
}

static void test_operators_bind_as_in_c(void **state) {
    struct fixture *f = *state;
    int32_t q = 37, kv = 11, h = 5;
    struct rp_mask_pair pair = {.q = 37, .kv = 11, .h = 5, .layer = 1};
#define CHECK(expression)                                                                          \
    do {                                                                                           \
        must_parse(f, "(" #expression ") == 0");                                                   \
        assert_int_equal(rp_mask_sees(f->mask, &pair, NULL), (expression) == 0);                   \
        must_parse(f, "(" #expression ") % 3 >= 1");                                               \
        assert_int_equal(rp_mask_sees(f->mask, &pair, NULL), (expression) % 3 >= 1);               \
    } while (0)
    CHECK(q + kv * h - kv / 3 % 2);
    CHECK(q - kv - h);
    CHECK(q / (h + 1) / 2 * 3);
    CHECK(-q % 7 + -kv / 4 - -h);
    CHECK((kv - q) % 7 + (kv - q) / 4);
    CHECK(q % -7 + kv / -4);
    CHECK(q < kv ? q : kv < h ? kv : h * 5);
    CHECK((q < kv ? q : kv) - 1);
    CHECK((q - 37 < 1 && kv != 3 ? 1 : 0) + (!(q > 3) || h == 5 ? 3 : 4));
#undef CHECK
}

static const char *const errors[][2] = {
    {"casual", "column 1: the name casual is not known"},
    {"causal && slidin_window(3)", "column 11: the name slidin_window is not known"},
    {"causal &", "column 8: '&' is not part of the mask language"},
    {"q | kv", "column 3: '|' is not part of the mask language"},
    {"q <= kv #", "column 9: '#' is not part of the mask language"},
    {"causal \x01", "column 8: byte 0x01 is not part of the mask language"},
    {"caus\xc3\xa4l", "column 1: the name caus is not known"},
    {"kv <=", "column 6: an expression is missing, found the end"},
    {"kv <= )", "column 7: an expression is missing, found \")\""},
    {"(kv <= q", "column 9: \")\" is missing after the expression, found the end"},
    {"kv <= q)", "column 8: \")\" is not expected here"},
    {"kv <= q causal", "column 9: \"causal\" is not expected here"},
    {"q = 3", "column 3: \"=\" is not expected here"},
    {"q", "column 1: a clause takes conditions, this one is an integer"},
    {"causal; q + 1", "column 9: a clause takes conditions, this one is an integer"},
    {"q && causal", "column 3: && takes conditions, its left side is an integer"},
    {"causal || 1", "column 8: || takes conditions, its right side is an integer"},
    {"1 < 2 < 3", "column 7: < takes integers and numbers, its left side is a condition"},
    {"causal + 1 < 3", "column 8: + takes integers and numbers, its left side is a condition"},
    {"causal == 1", "column 8: == takes conditions, its right side is an integer"},
    {"1 == causal", "column 3: == takes integers and numbers, its right side is a condition"},
    {"!q", "column 1: ! takes conditions, its operand is an integer"},
    {"-causal < 1", "column 1: - takes integers and numbers, its operand is a condition"},
    {"q ? causal : causal", "column 3: ?: takes conditions, the one before `?` is an integer"},
    {"causal ? 1 : causal",
     "column 8: ?: takes integers and numbers, unlike the first, the second is a condition"},
    {"causal ? 1", "column 11: \":\" is missing between the two results of `?`, found the end"},
    {"min(q) < 3", "column 1: min takes 2 arguments, not 1"},
    {"min < 3", "column 1: min takes 2 arguments, not 0"},
    {"abs(q, kv) < 3", "column 1: abs takes 1 argument, not 2"},
    {"abs(causal) < 3", "column 1: abs takes integers and numbers, its argument is a condition"},
    {"causal(3)", "column 1: causal takes 0 arguments, not 1"},
    {"sliding_window", "column 1: sliding_window takes 1 argument, not 0"},
    {"sliding_window(1, 2)", "column 1: sliding_window takes 1 argument, not 2"},
    {"document()", "column 10: an expression is missing, found \")\""},
    {"document", "column 1: document takes at least 1 argument, not 0"},
    {"document(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17)",
     "column 49: document has more than 16 arguments"},
    {"sliding_window(q)", "column 16: q cannot be in an argument of a block"},
    {"sink(min(kv, 3))", "column 10: kv cannot be in an argument of a block"},
    {"sink(causal)", "column 6: causal cannot be an argument of a block"},
    {"sink(3 < 4)", "column 1: sink takes integers and numbers, its argument is a condition"},
    {"sink(3.5)", "column 6: conditions compute with integers"},
    {"q < 1.0", "column 5: conditions compute with integers"},
    {"exp(q) < 3", "column 1: exp belongs into score rules"},
    {"score < 3", "column 7: \"=\" is missing after score, found \"<\""},
    {"q < score", "column 5: score is known in score rules only"},
    {"causal && soft_cap(3)", "column 11: soft_cap is a score rule, a clause of its own"},
    {"score = alibi", "column 9: alibi is a score rule, a clause of its own"},
    {"score = causal",
     "column 1: score = takes integers and numbers, its right side is a condition"},
    {"score = score % 2", "column 15: % takes integers only"},
    {"score = slope(score)", "column 9: slope takes an integer, not a number"},
    {"score = slope(q)", "column 9: the argument of slope() may not be a head, 0 to 31"},
    {"soft_cap(score)", "column 10: score cannot be in an argument of a block"},
    {"soft_cap(0)", "column 1: the divisor of / is 0"},
    {"score = score / (0.5 - 0.5)", "column 15: the divisor of / is 0"},
    {"param", "column 6: the name of a parameter is missing, found the end"},
    {"param 3 = 4", "column 7: the name of a parameter is missing, found \"3\""},
    {"param q = 4", "column 7: \"q\" means something already"},
    {"param causal = 4", "column 7: \"causal\" means something already"},
    {"param true = 4", "column 7: \"true\" means something already"},
    {"param w 4", "column 9: \"=\" is missing after the parameter's name, found \"4\""},
    {"param w = q", "column 11: the value of a parameter is an integer, found \"q\""},
    {"param w = 4 in 1",
     "column 17: \"..\" is missing between the least and the largest value, found the end"},
    {"param w = 4 in 1.5",
     "column 16: the least value of a parameter is an integer, found \"1.5\""},
    {"param w = 4 in 1..x",
     "column 19: the largest value of a parameter is an integer, found \"x\""},
    {"param w = 4 in 5..1", "column 7: the range 5..1 is empty"},
    {"param w = 4 in 5..9", "column 7: the value 4 of w is not in 5..9"},
    {"param w = -1", "column 7: the value -1 of w is not in 0..16777216"},
    {"param w = 1; param w = 2", "column 20: the parameter \"w\" is declared twice"},
    {"param w = 1 q < w", "column 13: \"q\" is not expected here"},
    {"q < w; param w = 1", "column 5: the name w is not known"},
    {"q < param", "column 5: param is not expected here"},
    {"param abcdefghijklmnopqrstuvwxyzabcdef = 1",
     "column 7: the name of a parameter has more than 31 bytes"},
    {"q < 2147483648", "column 5: the number 2147483648 is too large"},
    {"q < 99999999999999999999999999",
     "column 5: the number 999999999999999999999999... is too large"},
    {"score = 1e99", "column 9: the number 1e99 is too large"},
    {"q < 12abc", "column 5: the number 12 runs into what follows it"},
    {"q < 0x10", "column 5: the number 0 runs into what follows it"},
    {"score = 1.2.3", "column 9: the number 1.2 runs into what follows it"},
    {"q * 100000 < 5",
     "column 3: the result of * may not fit into 32 bits: it lies in 0..4095900000"},
    {"-2147483647 - q < 5", "column 13: the result of - may not fit into 32 bits: it lies in "
                            "-2147524606..-2147483647"},
    {"q / kv == 1", "column 3: the divisor of / may be 0: it lies in 0..40959"},
    {"q % (h - 3) == 1", "column 3: the divisor of % may be 0: it lies in -3..28"},
    {"q / 0 == 1", "column 3: the divisor of / is 0"},
    {"param n = 4; chunked(n)", "column 14: the divisor of / may be 0: it lies in 0..16777216"},
    {"causal; dilated(0)", "column 9: the divisor of % is 0"},
};

static void test_every_error_names_its_column(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(errors); i++)
        must_fail(f, errors[i][0], errors[i][1]);
}

static void test_hints_say_what_may_have_been_meant(void **state) {
    static const char *const cases[][2] = {
        {"casual", "did you mean causal?"},
        {"kb <= q", "did you mean kv?"},
        {"param window = 4; q - kv < windw", "did you mean window?"},
        {"xyz < 4", "a parameter is declared by `param xyz = 1;`"},
        {"param n = 4; dilated(n)",
         "declare the parameter above 0, as in `param n = 4 in 1..16777216`"},
        {"dilated(h)", "max(..., 1) keeps it above 0"},
        {"causal & sink(4)", "conditions are joined by &&"},
        {"q = 3", "== compares; a rule is `score = ...`"},
        {"param w = 0 in 1..8", "give a range, as in `param w = 256 in 1..8192`"},
        {"sliding_window", "write sliding_window(256)"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        assert_int_equal(parse(f, cases[i][0]), RP_STATUS_INVALID);
        assert_string_equal(f->err.hint, cases[i][1]);
    }
}

static void append_many(struct rp_buffer *out, const char *text, uint32_t times) {
    for (uint32_t i = 0; i < times; i++)
        rp_buffer_puts(out, text);
}

static void check_buffer(struct fixture *f, const char *error) {
    int status = parse_bytes(f, f->text.data, f->text.len);
    if (error) {
        assert_int_equal(status, RP_STATUS_INVALID);
        if (!strstr(f->err.text, error))
            fail_msg("%s, not %s", f->err.text, error);
    } else if (status != RP_OK) {
        fail_msg("%s", f->err.text);
    }
    rp_buffer_clear(&f->text);
}

static void test_depth_and_size_have_limits(void **state) {
    struct fixture *f = *state;
    append_many(&f->text, "(", 40);
    rp_buffer_puts(&f->text, "causal");
    append_many(&f->text, ")", 40);
    check_buffer(f, NULL);
    append_many(&f->text, "(", 3000);
    check_buffer(f, "column 51: nested deeper than 48 levels");
    append_many(&f->text, "!", 4000);
    check_buffer(f, "column 50: nested deeper than 48 levels");
    append_many(&f->text, "true ? ", 400);
    check_buffer(f, "nested deeper than 48 levels");
    append_many(&f->text, "abs(", 1000);
    check_buffer(f, "nested deeper than 48 levels");
    /* The root of a sum is its last sign; && and || are balanced. */
    rp_buffer_puts(&f->text, "q");
    append_many(&f->text, " + q", 60);
    rp_buffer_puts(&f->text, " < 3");
    check_buffer(f, "nested deeper than 48 levels");
    rp_buffer_puts(&f->text, "kv == 0");
    for (uint32_t i = 1; i < 128; i++)
        rp_buffer_printf(&f->text, " || kv == %u", i);
    check_buffer(f, NULL);
    rp_buffer_puts(&f->text, "kv == 0");
    for (uint32_t i = 1; i < 140; i++)
        rp_buffer_printf(&f->text, " || kv == %u", i);
    check_buffer(f, "the program has more than 512 nodes");
    append_many(&f->text, "document(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16);", 5);
    check_buffer(f, "the program has more than 512 nodes");
    append_many(&f->text, " ", RP_MASK_TEXT_MAX);
    check_buffer(f, NULL);
    append_many(&f->text, " ", RP_MASK_TEXT_MAX + 1);
    check_buffer(f, "column 4097: the program has 4097 bytes, at most 4096 are allowed");
    append_many(&f->text, "score = score + q;", 17);
    check_buffer(f, "column 289: more than 16 score rules");
}

static void test_sixteen_parameters_are_the_most(void **state) {
    struct fixture *f = *state;
    for (uint32_t i = 0; i < RP_MASK_PARAMS_MAX; i++)
        rp_buffer_printf(&f->text, "param p%u = %u;", i, i);
    check_buffer(f, NULL);
    assert_int_equal(rp_mask_param_count(f->mask), RP_MASK_PARAMS_MAX);
    assert_string_equal(rp_mask_param(f->mask, 15)->name, "p15");
    assert_int_equal(rp_mask_param(f->mask, 15)->value, 15);
    assert_int_equal(rp_mask_param(f->mask, 15)->max, 1 << 24);
    for (uint32_t i = 0; i <= RP_MASK_PARAMS_MAX; i++)
        rp_buffer_printf(&f->text, "param p%u = %u;", i, i);
    check_buffer(f, "column 227: more than 16 parameters");
}

static void test_a_program_written_out_is_no_longer_than_a_text(void **state) {
    struct fixture *f = *state;
    const char *name = "param abcdefghijklmnopqrstuvwxyz12345 = 1;";
    rp_buffer_puts(&f->text, name);
    for (uint32_t i = 0; i < 4; i++) {
        rp_buffer_puts(&f->text, "document(");
        for (uint32_t k = 0; k < 15; k++)
            rp_buffer_printf(&f->text, "abcdefghijklmnopqrstuvwxyz12345%s", k == 14 ? ");" : ",");
    }
    /* Fifteen equal terms are one. */
    check_buffer(f, NULL);
    rp_buffer_puts(&f->text, name);
    rp_buffer_puts(&f->text, "document(");
    for (uint32_t k = 0; k < 16; k++)
        rp_buffer_printf(&f->text,
                         "abcdefghijklmnopqrstuvwxyz12345+abcdefghijklmnopqrstuvwxyz12345"
                         "+%u%s",
                         k + 10000, k == 15 ? ");" : ",");
    rp_buffer_puts(&f->text, "document(");
    for (uint32_t k = 0; k < 9; k++)
        rp_buffer_printf(&f->text,
                         "abcdefghijklmnopqrstuvwxyz12345+abcdefghijklmnopqrstuvwxyz12345"
                         "+%u%s",
                         k + 20000, k == 8 ? ");" : ",");
    assert_true(f->text.len < RP_MASK_TEXT_MAX);
    check_buffer(f, "column 1: the program written out has more than 4096 bytes");
}

static void test_a_zero_byte_is_an_error_and_not_the_end(void **state) {
    struct fixture *f = *state;
    assert_int_equal(parse_bytes(f, "causal\0 && nonsense", 19), RP_STATUS_INVALID);
    assert_string_equal(f->err.text, "column 7: byte 0x00 is not part of the mask language");
    assert_int_equal(parse_bytes(f, "\0", 1), RP_STATUS_INVALID);
    /* Nothing after the given bytes is read. */
    assert_int_equal(parse_bytes(f, "causal &&", 6), RP_OK);
    assert_int_equal(parse_bytes(f, "q < 123", 5), RP_OK);
    assert_string_equal(rp_mask_text(f->mask), "q < 1");
}

static void test_limits_outside_the_contract_are_refused(void **state) {
    struct fixture *f = *state;
    const struct rp_mask_limits bad[] = {
        {0, 1, 1}, {(1u << 24) + 1, 1, 1}, {10, 0, 1}, {10, 1, 0}, {10, UINT32_MAX, 1}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++)
        assert_int_equal(rp_mask_parse("", 0, &bad[i], &f->mask, &f->err), RP_STATUS_INVALID);
    const struct rp_mask_limits large = {1u << 24, 1u << 20, 1u << 20};
    assert_int_equal(rp_mask_parse("alibi", 5, &large, &f->mask, &f->err), RP_STATUS_INVALID);
    assert_string_equal(f->err.text, "column 1: slope() knows 1024 heads, not 1048576");
    assert_int_equal(rp_mask_parse("causal", 6, &large, &f->mask, &f->err), RP_OK);
}

static void test_out_of_memory_is_an_error_and_leaks_nothing(void **state) {
    struct fixture *f = *state;
    const char *text = "causal; alibi";
    int status = RP_STATUS_NO_MEMORY;
    for (uint64_t n = 1; status != RP_OK; n++) {
        rp_mask_free(f->mask);
        f->mask = NULL;
        rp_alloc_fail_at(n);
        status = rp_mask_parse(text, strlen(text), &limits, &f->mask, &f->err);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK ? n > 3 : status == RP_STATUS_NO_MEMORY && !f->mask);
    }
}

static void test_the_tree_is_printed_one_node_a_line(void **state) {
    struct fixture *f = *state;
    must_parse(f, "param w = 8; causal && sliding_window(w); soft_cap(2)");
    rp_mask_print_tree(f->mask, &f->text);
    rp_buffer_append(&f->text, "", 1);
    assert_string_equal(f->text.data, "param w = 8 in 0..16777216\n"
                                      "condition\n"
                                      "  &&\n"
                                      "    <=\n"
                                      "      kv\n"
                                      "      q\n"
                                      "    <\n"
                                      "      -\n"
                                      "        q\n"
                                      "        kv\n"
                                      "      w\n"
                                      "score\n"
                                      "  *\n"
                                      "    2.0\n"
                                      "    tanh\n"
                                      "      /\n"
                                      "        score\n"
                                      "        2.0\n");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_programs_print_as_their_canonical_text),
        TEST(test_operators_bind_as_in_c),
        TEST(test_every_error_names_its_column),
        TEST(test_hints_say_what_may_have_been_meant),
        TEST(test_depth_and_size_have_limits),
        TEST(test_sixteen_parameters_are_the_most),
        TEST(test_a_program_written_out_is_no_longer_than_a_text),
        TEST(test_a_zero_byte_is_an_error_and_not_the_end),
        TEST(test_limits_outside_the_contract_are_refused),
        TEST(test_out_of_memory_is_an_error_and_leaks_nothing),
        TEST(test_the_tree_is_printed_one_node_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
