/* Goal: a comparison of times says slower or faster where the samples show it, nothing where they
 * are too few or the change lies within their spread, and the same text whatever the order.
 * Method: samples whose medians and quartiles are known, mixes of sizes, seeded noise. */
#include "base/memory.h"
#include "metrics/time_diff.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct rp_time_diff diff; /* freed in teardown, as is out */
static struct rp_buffer out;

static int teardown(void **state) {
    (void)state;
    rp_time_diff_deinit(&diff);
    rp_buffer_deinit(&out);
    return 0;
}

/* count times around `middle`: the quartiles are middle - spread and middle + spread. */
static void add(enum rp_diff_side side, const char *name, const char *stratum, uint32_t count,
                uint64_t middle, uint64_t spread) {
    static const int64_t offsets[] = {-1, 0, 1, 0};
    for (uint32_t i = 0; i < count; i++)
        rp_time_diff_add(&diff, side, "1 operators", name, stratum,
                         (uint64_t)((int64_t)middle + offsets[i % 4] * (int64_t)spread));
}

static struct rp_time_change change_of(const char *name) {
    struct rp_time_change change;
    rp_time_diff_change(&diff, "1 operators", name, &change);
    return change;
}

static void test_a_change_beyond_the_spread_is_told_and_one_within_it_is_not(void **state) {
    (void)state;
    add(RP_DIFF_A, "slower", "", 400, 1000, 100);
    add(RP_DIFF_B, "slower", "", 400, 1200, 100);
    add(RP_DIFF_A, "faster", "", 400, 1000, 100);
    add(RP_DIFF_B, "faster", "", 400, 800, 100);
    add(RP_DIFF_A, "noise", "", 16, 1000, 400);
    add(RP_DIFF_B, "noise", "", 16, 1200, 400);
    rp_time_diff_finish(&diff);
    struct rp_time_change change = change_of("slower");
    assert_int_equal(change.verdict, RP_DIFF_SLOWER);
    assert_true(fabs(change.ratio - 1.2) < 1e-9);
    /* IQR 100 (rank n/4 is middle - spread, rank 3n/4 is middle), 1.57 / sqrt 400 of it each. */
    double error = 1.57 * 100 / 20.0;
    assert_true(fabs(change.spread - 1.2 * (error / 1000 + error / 1200)) < 1e-9);
    assert_int_equal(change_of("faster").verdict, RP_DIFF_FASTER);
    assert_int_equal(change_of("noise").verdict, RP_DIFF_SAME);
    assert_int_equal(change_of("unknown").verdict, RP_DIFF_TOO_FEW);
}

static void test_nothing_is_said_of_too_few_samples(void **state) {
    (void)state;
    add(RP_DIFF_A, "few", "", RP_DIFF_SAMPLES_MIN - 1, 10, 0);
    add(RP_DIFF_B, "few", "", 1000, 10000, 0);
    add(RP_DIFF_A, "enough", "", RP_DIFF_SAMPLES_MIN, 10, 0);
    add(RP_DIFF_B, "enough", "", RP_DIFF_SAMPLES_MIN, 10000, 0);
    add(RP_DIFF_B, "new", "", 1000, 10, 0);
    rp_time_diff_finish(&diff);
    assert_int_equal(change_of("few").verdict, RP_DIFF_TOO_FEW);
    assert_true(change_of("few").ratio == 0.0);
    assert_int_equal(change_of("enough").verdict, RP_DIFF_SLOWER);
    rp_time_diff_write(&diff, 0, &out);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "too few\n"));
    assert_non_null(strstr(out.data, "only in B\n"));
    assert_non_null(strstr(out.data, "slower 1, faster 0, no change shown 0, too few samples to "
                                     "say 2"));
}

/* Each size is as fast as before, but B runs the slow one more often: its median is 10 times
 * A's. */
static void test_another_mix_of_sizes_is_no_change(void **state) {
    (void)state;
    add(RP_DIFF_A, "attn.qkv", "decode 8", 900, 100, 2);
    add(RP_DIFF_A, "attn.qkv", "mixed 64", 100, 1000, 20);
    add(RP_DIFF_B, "attn.qkv", "decode 8", 100, 100, 2);
    add(RP_DIFF_B, "attn.qkv", "mixed 64", 900, 1000, 20);
    add(RP_DIFF_A, "one size", "decode 8", 100, 100, 1);
    add(RP_DIFF_B, "one size", "mixed 64", 100, 1000, 1);
    rp_time_diff_finish(&diff);
    assert_int_equal(change_of("attn.qkv").verdict, RP_DIFF_SAME);
    assert_true(fabs(change_of("attn.qkv").ratio - 1.0) < 1e-9);
    assert_int_equal(change_of("one size").verdict, RP_DIFF_TOO_FEW); /* no size in common */
}

/* Of 1,000 names that did not change (noise as of a lognormal), two in a hundred look as if they
 * had. */
static void test_names_that_did_not_change_rarely_look_as_if_they_had(void **state) {
    uint64_t random = 11;
    uint32_t told = 0;
    (void)state;
    for (int name = 0; name < 1000; name++) {
        char text[16];
        snprintf(text, sizeof text, "op %d", name);
        for (int i = 0; i < 80; i++) {
            double sum = 0;
            for (int k = 0; k < 4; k++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                sum += (double)(random >> 40) / (double)(1 << 24);
            }
            rp_time_diff_add(&diff, i % 2 ? RP_DIFF_B : RP_DIFF_A, "1 operators", text, "",
                             (uint64_t)(1000.0 * exp(sum)));
        }
    }
    rp_time_diff_finish(&diff);
    for (int name = 0; name < 1000; name++) {
        char text[16];
        snprintf(text, sizeof text, "op %d", name);
        told += change_of(text).verdict != RP_DIFF_SAME;
    }
    assert_true(told < 40); /* with errors that are squared and added it is more than twice this */
}

static void write_in_order(bool backwards) {
    static const char *const names[] = {"b", "a", "d", "c"};
    teardown(NULL);
    for (int i = 0; i < 4; i++) {
        const char *name = names[backwards ? 3 - i : i];
        uint64_t more = name[0] == 'a' ? 50 : name[0] == 'd' ? 90 : 0;
        add(RP_DIFF_A, name, "", 40, 100, 1);
        add(RP_DIFF_B, name, "", 40, 100 + more, 1);
    }
    rp_time_diff_add(&diff, RP_DIFF_A, "0 first", "x", "", 1);
    rp_time_diff_finish(&diff);
    rp_time_diff_write(&diff, 1, &out);
    rp_buffer_append(&out, "", 1);
}

static void test_the_text_does_not_depend_on_the_order_of_the_samples(void **state) {
    (void)state;
    static const char expected[] =
        "first\n"
        "  name   A times    median   B times    median              change\n"
        "  x            1         -         0         -                   -  only in A\n"
        "\n"
        "operators\n"
        "  name   A times    median   B times    median              change\n"
        "  d           40     100ns        40     190ns       +90.0 +-0.7 %  slower\n"
        "  a           40     100ns        40     150ns       +50.0 +-0.6 %  slower\n"
        "  b           40     100ns        40     100ns        +0.0 +-0.5 %  no change shown\n"
        "  1 more, neither slower nor faster\n"
        "\n"
        "slower 2, faster 0, no change shown 2, too few samples to say 1 (at least 8 on both "
        "sides, in one size)\n";
    write_in_order(false);
    assert_string_equal(out.data, expected);
    write_in_order(true);
    assert_string_equal(out.data, expected);
}

static void test_memory_that_runs_out_makes_it_fail_and_nothing_else(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 6; n++) {
        rp_alloc_fail_at(n);
        add(RP_DIFF_A, "a", "", 2, 10, 0);
        add(RP_DIFF_B, "b", "", 2, 10, 0);
        rp_alloc_fail_at(0);
        assert_true(diff.failed);
        rp_time_diff_finish(&diff);
        rp_time_diff_deinit(&diff);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_change_beyond_the_spread_is_told_and_one_within_it_is_not,
                                  teardown),
        cmocka_unit_test_teardown(test_nothing_is_said_of_too_few_samples, teardown),
        cmocka_unit_test_teardown(test_another_mix_of_sizes_is_no_change, teardown),
        cmocka_unit_test_teardown(test_names_that_did_not_change_rarely_look_as_if_they_had,
                                  teardown),
        cmocka_unit_test_teardown(test_the_text_does_not_depend_on_the_order_of_the_samples,
                                  teardown),
        cmocka_unit_test_teardown(test_memory_that_runs_out_makes_it_fail_and_nothing_else,
                                  teardown),
    };
    return cmocka_run_group_tests_name("time_diff", tests, NULL, NULL);
}
