/* Goal: a pickle has the right bytes, opcode by opcode, as listed by Lib/pickletools.py. */
#include "base/pickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rp_buffer out;

static int teardown(void **state) {
    (void)state;
    rp_buffer_deinit(&out);
    return 0;
}

#define assert_bytes(...)                                                                          \
    do {                                                                                           \
        const unsigned char expected[] = {__VA_ARGS__};                                            \
        assert_int_equal(out.len, sizeof expected);                                                \
        assert_memory_equal(out.data, expected, sizeof expected);                                  \
    } while (0)

static void test_a_single_value_is_a_document(void **state) {
    struct rp_pickle pickle;
    (void)state;
    rp_pickle_init(&pickle, &out);
    rp_pickle_int(&pickle, NULL, -2);
    rp_pickle_finish(&pickle);
    assert_bytes(0x80, 2, 'J', 0xFE, 0xFF, 0xFF, 0xFF, '.');
}

static void test_items_follow_their_container_and_end_with_its_opcode(void **state) {
    struct rp_pickle pickle;
    (void)state;
    rp_pickle_init(&pickle, &out);
    rp_pickle_dict_begin(&pickle, NULL);
    rp_pickle_list_begin(&pickle, "a");
    rp_pickle_bool(&pickle, NULL, true);
    rp_pickle_string(&pickle, NULL, "hi");
    rp_pickle_list_end(&pickle);
    rp_pickle_double(&pickle, "b", 1.0);
    rp_pickle_dict_end(&pickle);
    rp_pickle_finish(&pickle);
    assert_bytes(0x80, 2, '}', 'X', 1, 0, 0, 0, 'a', ']', 0x88, 'a', 'X', 2, 0, 0, 0, 'h', 'i', 'a',
                 's', 'X', 1, 0, 0, 0, 'b', 'G', 0x3F, 0xF0, 0, 0, 0, 0, 0, 0, 's', '.');
}

static void test_integers_beyond_32_bits_take_eight_bytes(void **state) {
    struct rp_pickle pickle;
    (void)state;
    rp_pickle_init(&pickle, &out);
    rp_pickle_int(&pickle, NULL, (int64_t)1 << 40);
    rp_pickle_finish(&pickle);
    assert_bytes(0x80, 2, 0x8A, 8, 0, 0, 0, 0, 0, 1, 0, 0, '.');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_single_value_is_a_document, teardown),
        cmocka_unit_test_teardown(test_items_follow_their_container_and_end_with_its_opcode,
                                  teardown),
        cmocka_unit_test_teardown(test_integers_beyond_32_bits_take_eight_bytes, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
