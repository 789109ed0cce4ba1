/* Goal: a large block of zeros has its pages before its first use. */
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { PAGE = 4096, BYTES = 1 << 20 };

static void test_the_pages_of_a_large_block_of_zeros_are_there(void **state) {
    (void)state;
    unsigned char there[BYTES / PAGE];
    char *block = rp_calloc(BYTES / 8, 8);
    assert_non_null(block);
    char *first = (char *)RP_ALIGN_UP((uintptr_t)block, PAGE);
    assert_int_equal(mincore(first, BYTES - PAGE, there), 0);
    for (int i = 0; i < BYTES / PAGE - 1; i++)
        assert_true(there[i] & 1);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(block[i], 0);
    rp_free(block);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_pages_of_a_large_block_of_zeros_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
