/* Goal: runs do not overlap, begin on cache lines, and stay inside their page; sizes that overflow
 * are refused. */
#include "kvcache/kv_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_runs_follow_each_other_without_overlap(void **state) {
    (void)state;
    static const uint32_t head_dims[] = {8, 64, 96, 128};
    for (int type = 0; type < 3; type++) {
        for (size_t i = 0; i < RP_ARRAY_COUNT(head_dims); i++) {
            for (uint32_t tokens = 1; tokens <= 64; tokens *= 2) {
                struct rp_kv_layout kv;
                static const enum rp_dtype dtypes[] = {RP_DTYPE_F32, RP_DTYPE_BF16, RP_DTYPE_INT8};
                enum rp_dtype dtype = dtypes[type];
                size_t run = (size_t)tokens * rp_kv_token_bytes(dtype, head_dims[i]), next = 0;
                assert_true(rp_kv_layout_init(&kv, 3, 2, head_dims[i], tokens, dtype));
                for (uint32_t page = 0; page < 2; page++)
                    for (uint32_t layer = 0; layer < 3; layer++)
                        for (uint32_t plane = 0; plane < 2; plane++)
                            for (uint32_t head = 0; head < 2; head++) {
                                size_t at = page * kv.page_stride +
                                            (layer * 2 + plane) * kv.plane_stride +
                                            head * kv.head_stride;
                                assert_true(at >= next && at - next < 64);
                                assert_int_equal(at % 64, 0);
                                next = at + run;
                            }
                assert_true(next <= 2 * kv.page_stride);
            }
        }
    }
}

static void test_the_address_of_a_run_is_the_formula_of_the_header(void **state) {
    (void)state;
    static unsigned char memory[4 * 2 * 2 * 3 * 64 * 16];
    struct rp_kv_layout kv;
    assert_true(rp_kv_layout_init(&kv, 2, 3, 16, 4, RP_DTYPE_BF16));
    kv.base = memory;
    assert_ptr_equal(rp_kv_run(&kv, 0, 0, 0, 0), memory);
    assert_ptr_equal(rp_kv_run(&kv, 2, 1, 1, 2),
                     memory + 2 * kv.page_stride + 3 * kv.plane_stride + 2 * kv.head_stride);
}

static void test_scales_follow_the_quantized_values_of_their_run(void **state) {
    (void)state;
    struct rp_kv_layout kv;
    assert_true(rp_kv_layout_init(&kv, 2, 3, 128, 64, RP_DTYPE_FP8_E4M3));
    assert_int_equal(kv.scales_at, 64 * 128);
    assert_int_equal(kv.head_stride, 64 * 128 + 64 * sizeof(float));
    assert_int_equal(rp_kv_token_bytes(RP_DTYPE_FP8_E4M3, 128), 132);
    assert_int_equal(rp_kv_token_bytes(RP_DTYPE_BF16, 128), 256);
    /* A run of odd size: scales are aligned nevertheless. */
    assert_true(rp_kv_layout_init(&kv, 1, 1, 17, 1, RP_DTYPE_INT8));
    assert_int_equal(kv.scales_at, 20);
    assert_int_equal(kv.head_stride, 64);
    assert_true(rp_kv_layout_init(&kv, 1, 1, 17, 1, RP_DTYPE_BF16));
    assert_int_equal(kv.scales_at, 0);
}

static void test_latents_take_one_row_a_token_and_have_no_v(void **state) {
    (void)state;
    static const enum rp_dtype dtypes[] = {RP_DTYPE_F32, RP_DTYPE_BF16, RP_DTYPE_INT8};
    static unsigned char memory[2 * 3 * (18 * 4 * 16 + 64)];
    for (int type = 0; type < 3; type++) {
        struct rp_kv_layout kv;
        size_t run = 16 * rp_kv_token_bytes(dtypes[type], 18);
        assert_true(rp_kv_layout_init_latent(&kv, 3, 18, 16, dtypes[type]));
        kv.base = memory;
        for (uint32_t page = 0; page < 2; page++)
            for (uint32_t layer = 0; layer < 3; layer++) {
                size_t at = (size_t)(rp_kv_run(&kv, page, layer, 0, 0) - memory);
                assert_int_equal(at, (page * 3 + layer) * RP_ALIGN_UP(run, 64));
            }
        assert_int_equal(kv.page_stride, 3 * RP_ALIGN_UP(run, 64));
        assert_true(kv.latent && kv.kv_heads == 1);
    }
    assert_int_equal(rp_kv_layer_token_bytes(RP_DTYPE_BF16, 1, 576, true), 1152);
    assert_int_equal(rp_kv_layer_token_bytes(RP_DTYPE_INT8, 1, 576, true), 580);
    assert_int_equal(rp_kv_layer_token_bytes(RP_DTYPE_BF16, 8, 128, false), 4096);
}

static void test_sizes_that_overflow_are_refused(void **state) {
    (void)state;
    struct rp_kv_layout kv;
    assert_false(rp_kv_layout_init(&kv, UINT32_MAX, UINT32_MAX, UINT32_MAX, 64, RP_DTYPE_F32));
    assert_false(rp_kv_layout_init(&kv, 1u << 31, 1u << 20, 1u << 10, 64, RP_DTYPE_F32));
    assert_false(rp_kv_layout_init(&kv, 1, 1, UINT32_MAX, 256, RP_DTYPE_INT8));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_follow_each_other_without_overlap),
        cmocka_unit_test(test_the_address_of_a_run_is_the_formula_of_the_header),
        cmocka_unit_test(test_scales_follow_the_quantized_values_of_their_run),
        cmocka_unit_test(test_latents_take_one_row_a_token_and_have_no_v),
        cmocka_unit_test(test_sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
