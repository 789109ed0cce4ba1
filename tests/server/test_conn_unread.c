/* Goal: a stream counts as stalled when its client takes nothing although there is output, and for
 * exactly that time. */
#include "server/http/conn_unread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)

static void test_a_client_that_takes_something_at_each_look_never_stalls(void **state) {
    struct rp_unread unread = {.bytes = 0};
    (void)state;
    for (uint64_t i = 1; i < 100; i++) {
        assert_int_equal(rp_unread_look(&unread, i * 900 * MS, i * 1000, 999), 0);
        assert_false(unread.stalled);
    }
    assert_int_equal(unread.bytes, 999);
}

static void test_a_stream_without_output_never_stalls(void **state) {
    struct rp_unread unread = {.bytes = 0};
    (void)state;
    for (uint64_t i = 1; i < 100; i++)
        assert_int_equal(rp_unread_look(&unread, i * 900 * MS, 5000, 0), 0);
    assert_int_equal(unread.progress_ns, 99 * 900 * MS);
}

static void test_a_stall_counts_from_the_last_progress_to_the_next(void **state) {
    struct rp_unread unread = {.bytes = 0};
    uint64_t stalled_ns = 0;
    (void)state;
    stalled_ns += rp_unread_look(&unread, 1000 * MS, 1000, 500);
    stalled_ns += rp_unread_look(&unread, 1900 * MS, 2000, 1500); /* more output, nothing taken */
    assert_int_equal(stalled_ns, 0);
    stalled_ns += rp_unread_look(&unread, 2000 * MS, 3000, 2500);
    assert_true(unread.stalled);
    assert_int_equal(stalled_ns, 1000 * MS);
    stalled_ns += rp_unread_look(&unread, 2300 * MS, 3000, 2500);
    assert_int_equal(stalled_ns, 1300 * MS);
    stalled_ns += rp_unread_look(&unread, 2400 * MS, 3000, 2499);
    assert_false(unread.stalled);
    stalled_ns += rp_unread_look(&unread, 2500 * MS, 3000, 2499);
    assert_int_equal(stalled_ns, 1300 * MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_client_that_takes_something_at_each_look_never_stalls),
        cmocka_unit_test(test_a_stream_without_output_never_stalls),
        cmocka_unit_test(test_a_stall_counts_from_the_last_progress_to_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
