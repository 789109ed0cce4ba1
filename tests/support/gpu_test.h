/* gpu_test.h - main() of a GPU test program, with the headers that cmocka needs. */
#ifndef RP_TESTS_SUPPORT_GPU_TEST_H
#define RP_TESTS_SUPPORT_GPU_TEST_H

#include "tests/support/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Usage of the program: [PATTERN of test names]. True: the caller returns 77, there is no GPU. */
static inline bool rp_gpu_test_skips(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return rp_gpu_skip_code() != 0;
}

/* main() of one group of cmocka tests; group_set_up and group_tear_down may be NULL. */
#define RP_GPU_TEST_MAIN(group_set_up, group_tear_down, ...)                                       \
    int main(int argc, char **argv) {                                                              \
        if (rp_gpu_test_skips(argc, argv))                                                         \
            return 77;                                                                             \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                           \
        return cmocka_run_group_tests(tests, group_set_up, group_tear_down);                       \
    }

#endif
