/* Goal: traceparent is read by the rules of W3C Trace Context, and invalid values are ignored. */
#include "server/observe/trace_context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN  "00f067aa0ba902b7"
#define ZEROS "00000000000000000000000000000000"

static const struct {
    const char *text;
    bool valid;
    uint8_t flags;
} cases[] = {
    {"00-" TRACE "-" SPAN "-01", true, 1},
    {"00-" TRACE "-" SPAN "-00", true, 0},
    {"00-" TRACE "-" SPAN "-03", true, 3},
    {"00-" TRACE "-" SPAN "-ff", true, 3}, /* unknown flags are not passed on */
    {"00-" TRACE "-0000000000000001-02", true, 2},
    {"00-00000000000000000000000000000001-" SPAN "-01", true, 1},
    {"01-" TRACE "-" SPAN "-01", true, 1}, /* a later version with the same fields */
    {"cc-" TRACE "-" SPAN "-01-what-comes-later", true, 1},
    {"fe-" TRACE "-" SPAN "-01-", true, 1},
    {"00-" TRACE "-" SPAN "-01-", false, 0}, /* version 00 ends here */
    {"00-" TRACE "-" SPAN "-01-extra", false, 0},
    {"00-" TRACE "-" SPAN "-01 ", false, 0},
    {"01-" TRACE "-" SPAN "-01x", false, 0},
    {"ff-" TRACE "-" SPAN "-01", false, 0},
    {"FF-" TRACE "-" SPAN "-01", false, 0},
    {"00-" ZEROS "-" SPAN "-01", false, 0},
    {"00-" TRACE "-0000000000000000-01", false, 0},
    {"00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01", false, 0},
    {"00-" TRACE "-00F067AA0BA902B7-01", false, 0},
    {"0X-" TRACE "-" SPAN "-01", false, 0},
    {"00-" TRACE "-" SPAN "-0X", false, 0},
    {"00-" TRACE "-" SPAN "-0", false, 0},
    {"00-" TRACE "-" SPAN, false, 0},
    {"00-" TRACE "-" SPAN "_01", false, 0},
    {"00_" TRACE "-" SPAN "-01", false, 0},
    {"00-" TRACE "0" SPAN "-01", false, 0},
    {"00-4bf92f3577b34da6a3ce929d0e0e473-" SPAN "-011", false, 0},
    {"00-4bf92f3577b34da6a3ce929d0e0e473g-" SPAN "-01", false, 0},
    {" 00-" TRACE "-" SPAN "-01", false, 0},
    {"0-" TRACE "-" SPAN "-001", false, 0},
    {"-1-" TRACE "-" SPAN "-01", false, 0},
    {"00-" TRACE "-+0f067aa0ba902b7-01", false, 0},
    {"00-0x92f3577b34da6a3ce929d0e0e4736a-" SPAN "-01", false, 0},
    {"00-----------------------------------------------------", false, 0},
    {"", false, 0},
    {"00", false, 0},
    {"null", false, 0},
};

static void test_headers_are_judged_by_the_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_trace_context context = {.span = 77, .flags = 9};
        if (rp_trace_context_parse(cases[i].text, &context) != cases[i].valid)
            fail_msg("%s was judged wrongly", cases[i].text);
        if (cases[i].valid)
            assert_int_equal(context.flags, cases[i].flags);
        else /* untouched */
            assert_true(context.span == 77 && context.flags == 9 && context.parent == 0);
    }
    struct rp_trace_context context = {.span = 77};
    assert_false(rp_trace_context_parse(NULL, &context));
}

static void test_every_cut_and_every_changed_byte_is_judged_without_harm(void **state) {
    static const char good[] = "00-" TRACE "-" SPAN "-01";
    struct rp_trace_context context;
    (void)state;
    for (size_t len = 0; len < sizeof good - 1; len++) {
        char *cut = malloc(len + 1); /* exactly as long: the sanitizer sees a read past it */
        memcpy(cut, good, len);
        cut[len] = '\0';
        assert_false(rp_trace_context_parse(cut, &context));
        free(cut);
    }
    for (size_t at = 0; at < sizeof good - 1; at++) {
        for (int byte = 1; byte < 256; byte++) {
            char changed[sizeof good];
            memcpy(changed, good, sizeof good);
            changed[at] = (char)byte;
            bool hex = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
            bool dash = at == 2 || at == 35 || at == 52;
            bool valid = dash ? byte == '-' : hex;
            assert_int_equal(rp_trace_context_parse(changed, &context), valid);
        }
    }
}

static void test_the_answer_names_our_span_in_the_same_trace(void **state) {
    struct rp_trace_context context;
    char text[RP_TRACEPARENT_LENGTH + 1], id[RP_TRACE_ID_HEX + 1];
    (void)state;
    assert_true(rp_trace_context_parse("cc-" TRACE "-" SPAN "-03-more", &context));
    assert_true(context.parent == 0x00f067aa0ba902b7u);
    context.span = 0xabc;
    rp_trace_context_header(&context, text);
    assert_string_equal(text, "00-" TRACE "-0000000000000abc-03");
    rp_trace_id_text(&context, id);
    assert_string_equal(id, TRACE);
}

static void test_a_trace_of_our_own_is_valid_whatever_the_numbers(void **state) {
    static const uint64_t numbers[][2] = {{0, 0}, {1, 0}, {0, 1}, {UINT64_MAX, UINT64_MAX}};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(numbers); i++) {
        struct rp_trace_context begun, read;
        char text[RP_TRACEPARENT_LENGTH + 1];
        rp_trace_context_begin(&begun, numbers[i][0], numbers[i][1]);
        assert_int_equal(begun.parent, 0);
        begun.span = 5;
        rp_trace_context_header(&begun, text);
        assert_int_equal(strlen(text), RP_TRACEPARENT_LENGTH);
        assert_true(rp_trace_context_parse(text, &read));
        assert_int_equal(read.flags, RP_TRACE_SAMPLED | RP_TRACE_RANDOM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers_are_judged_by_the_rules),
        cmocka_unit_test(test_every_cut_and_every_changed_byte_is_judged_without_harm),
        cmocka_unit_test(test_the_answer_names_our_span_in_the_same_trace),
        cmocka_unit_test(test_a_trace_of_our_own_is_valid_whatever_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
