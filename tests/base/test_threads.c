/* Goal: a wait for a semaphore sees each post, and ends without one. */
#include "base/clock.h"
#include "base/threads.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static sem_t sem;

static void test_a_wait_without_a_post_ends_when_its_time_has_passed(void **state) {
    (void)state;
    uint64_t began = rp_clock_ns();
    assert_false(rp_sem_wait_ns(&sem, 0));
    assert_false(rp_sem_wait_ns(&sem, 2000000));
    assert_true(rp_clock_ns() - began >= 2000000);
}

static void test_each_post_ends_one_wait(void **state) {
    (void)state;
    const uint64_t hour_ns = (uint64_t)3600 * 1000000000;
    sem_post(&sem);
    sem_post(&sem);
    assert_true(rp_sem_wait_ns(&sem, hour_ns));
    assert_true(rp_sem_wait_ns(&sem, 0));
    assert_false(rp_sem_wait_ns(&sem, 0));
}

static void *post(void *arg) {
    sem_post(arg);
    return NULL;
}

static void test_a_post_of_another_thread_ends_a_long_wait(void **state) {
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, post, &sem), 0);
    assert_true(rp_sem_wait_ns(&sem, (uint64_t)3600 * 1000000000));
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_without_a_post_ends_when_its_time_has_passed),
        cmocka_unit_test(test_each_post_ends_one_wait),
        cmocka_unit_test(test_a_post_of_another_thread_ends_a_long_wait),
    };
    sem_init(&sem, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
