/* Goal: the memory that GPTQ rounding allocates equals the estimate, and sizes do not overflow.
 * tests/oracle/quantize_oracle.py reads written checkpoints. */
#include "bench/calibrate.h"
#include "model/quant_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static void test_bytes_are_rows_of_all_layers_and_matrices_of_one(void **state) {
    (void)state;
    struct rp_model_config config = {
        .hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32, .head_dim = 128};
    size_t matrices = (3 * (size_t)4096 * 4096 + (size_t)14336 * 14336) * sizeof(double);
    size_t row = (3 * (size_t)4096 + 14336) * 32 * sizeof(uint16_t);
    size_t none = rp_quant_write_bytes(&config, 0), some = rp_quant_write_bytes(&config, 4096);
    assert_true(none >= matrices && none < matrices + 128 * MIB);
    assert_int_equal(some - none, 4096 * row);
    assert_true(rp_quant_write_bytes(&config, SIZE_MAX / 4096) == SIZE_MAX);
    config.intermediate = UINT32_MAX;
    assert_true(rp_quant_write_bytes(&config, 1) == SIZE_MAX);
}

static void test_a_text_has_a_bos_in_each_window(void **state) {
    (void)state;
    struct rp_eval_text text = {.count = 1023, .bos = 1, .window = 512};
    assert_int_equal(rp_calibrate_tokens(&text), 1023 + 3);
    text.count = 1022;
    assert_int_equal(rp_calibrate_tokens(&text), 1022 + 2);
    text.bos = -1;
    assert_int_equal(rp_calibrate_tokens(&text), 1022);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_rows_of_all_layers_and_matrices_of_one),
        cmocka_unit_test(test_a_text_has_a_bos_in_each_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
