/* Goal: the environment can lower the instruction set and never raise it. Method: comparison with
 * the detected one. */
#include "device/cpu_isa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int clear_wish(void **state) {
    (void)state;
    return unsetenv("REPRISE_CPU_ISA");
}

static void test_the_environment_lowers_the_level_and_never_raises_it(void **state) {
    (void)state;
    enum rp_cpu_isa best = rp_cpu_isa_detect();
    for (int wish = RP_ISA_SCALAR; wish <= RP_ISA_AVX512_BF16; wish++) {
        setenv("REPRISE_CPU_ISA", rp_cpu_isa_name((enum rp_cpu_isa)wish), 1);
        enum rp_cpu_isa got = rp_cpu_isa_detect();
        assert_int_equal(got, wish < (int)best ? wish : (int)best);
    }
}

static void test_an_unknown_or_empty_level_changes_nothing(void **state) {
    (void)state;
    enum rp_cpu_isa best = rp_cpu_isa_detect();
    setenv("REPRISE_CPU_ISA", "sse9", 1);
    assert_int_equal(rp_cpu_isa_detect(), best);
    setenv("REPRISE_CPU_ISA", "", 1);
    assert_int_equal(rp_cpu_isa_detect(), best);
}

static void test_every_level_has_a_name(void **state) {
    (void)state;
    assert_string_equal(rp_cpu_isa_name(RP_ISA_SCALAR), "scalar");
    assert_string_equal(rp_cpu_isa_name(RP_ISA_AVX512_BF16), "avx512_bf16");
    assert_string_equal(rp_cpu_isa_name((enum rp_cpu_isa)99), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_environment_lowers_the_level_and_never_raises_it,
                                        clear_wish, clear_wish),
        cmocka_unit_test_setup_teardown(test_an_unknown_or_empty_level_changes_nothing, clear_wish,
                                        clear_wish),
        cmocka_unit_test(test_every_level_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
