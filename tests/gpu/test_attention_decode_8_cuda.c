/* Goal: the properties of test_attention_decode_cuda.c for INT8 and FP8 pages. Method: the same
 * cases; the reference reads the same quantized values and scales, and both are NaN where nothing
 * was stored. */
#include "tests/gpu/attention_decode_cases.h"

int main(int argc, char **argv) {
    static const enum rp_dtype types[] = {RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};
    if (rp_gpu_test_skips(argc, argv))
        return 77;
    const struct CMUnitTest tests[] = {DECODE_CASES};
    int failed = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++) {
        page_type = types[i];
        failed += cmocka_run_group_tests_name(rp_dtype_name(page_type), tests, NULL, NULL);
    }
    return failed != 0;
}
