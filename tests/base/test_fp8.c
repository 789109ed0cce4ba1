/* Goal: FP8 E4M3 is what the format says. Method: all 256 bit patterns against the formula in f64,
 * every tie and its neighbors between two representable values, and values out of range. */
#include "base/fp8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static double formula(unsigned code) {
    unsigned e = code >> 3 & 15, m = code & 7;
    double value = e ? (1 + m / 8.0) * pow(2, (int)e - 7) : m / 8.0 * pow(2, -6);
    return code & 0x80 ? -value : value;
}

static void test_every_code_has_the_value_of_the_formula_and_comes_back(void **state) {
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        float value = rp_fp8_to_f32((uint8_t)code);
        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(value));
            continue;
        }
        assert_true((double)value == formula(code));
        assert_int_equal(signbit(value) != 0, code >> 7);
        assert_int_equal(rp_f32_to_fp8(value), code);
    }
}

static void test_halfway_rounds_to_the_even_code_and_its_neighbors_to_the_nearest(void **state) {
    (void)state;
    for (unsigned code = 0; code < 0x7E; code++) {
        float low = rp_fp8_to_f32((uint8_t)code), high = rp_fp8_to_f32((uint8_t)(code + 1));
        float middle = (low + high) / 2;
        unsigned even = code & 1 ? code + 1 : code;
        assert_int_equal(rp_f32_to_fp8(middle), even);
        assert_int_equal(rp_f32_to_fp8(-middle), even | 0x80);
        assert_int_equal(rp_f32_to_fp8(nextafterf(middle, 0)), code);
        assert_int_equal(rp_f32_to_fp8(nextafterf(middle, 1e9f)), code + 1);
    }
}

static void test_what_is_too_large_saturates_and_nan_stays_nan(void **state) {
    (void)state;
    static const float large[] = {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, INFINITY};
    for (size_t i = 0; i < RP_ARRAY_COUNT(large); i++) {
        assert_int_equal(rp_f32_to_fp8(large[i]), 0x7E);
        assert_int_equal(rp_f32_to_fp8(-large[i]), 0xFE);
    }
    assert_int_equal(rp_f32_to_fp8(NAN) & 0x7F, 0x7F);
    assert_int_equal(rp_f32_to_fp8(0x1p-149f), 0);
    assert_int_equal(rp_f32_to_fp8(-0.0f), 0x80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_has_the_value_of_the_formula_and_comes_back),
        cmocka_unit_test(test_halfway_rounds_to_the_even_code_and_its_neighbors_to_the_nearest),
        cmocka_unit_test(test_what_is_too_large_saturates_and_nan_stays_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
