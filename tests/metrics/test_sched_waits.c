/* Goal: the run-queue wait of a thread is measured over the span that was named, and only threads
 * that compute steps are sampled. */
#include "metrics/sched_waits.h"

#include "base/threads.h"
#include "metrics/tick.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static struct rp_sched_waits waits;

static int setup(void **state) {
    (void)state;
    memset(&waits, 0, sizeof waits);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_sched_waits_deinit(&waits);
    return 0;
}

static void put_sample(uint64_t at_ns, uint64_t first_ns, uint64_t second_ns) {
    struct rp_sched_sample *sample = &waits.samples[waits.sample_count % RP_SCHED_WAITS_SAMPLES];
    *sample = (struct rp_sched_sample){.at_ns = at_ns, .waited_ns = {first_ns, second_ns}};
    waits.thread_count = 2;
    waits.fds[0] = waits.fds[1] = -1;
    waits.tids[0] = 10;
    waits.tids[1] = 20;
    waits.sample_count++;
}

static void test_the_samples_next_to_a_span_enclose_it(void **state) {
    struct rp_sched_wait wait;
    (void)state;
    put_sample(100, 0, 0);
    put_sample(200, 5, 1);
    put_sample(300, 6, 21);
    put_sample(400, 30, 22);
    assert_true(rp_sched_waits_between(&waits, 200, 300, &wait));
    assert_int_equal(wait.window_ns, 100);
    assert_int_equal(wait.tid, 20);
    assert_int_equal(wait.waited_ns, 20);
    assert_true(rp_sched_waits_between(&waits, 299, 301, &wait));
    assert_int_equal(wait.window_ns, 200);
    assert_int_equal(wait.tid, 10);
    assert_int_equal(wait.waited_ns, 25);
    assert_false(rp_sched_waits_between(&waits, 99, 300, &wait));
    assert_false(rp_sched_waits_between(&waits, 300, 401, &wait));
}

static void test_samples_that_were_written_over_are_gone(void **state) {
    struct rp_sched_wait wait;
    (void)state;
    for (uint64_t i = 0; i < RP_SCHED_WAITS_SAMPLES + 10; i++)
        put_sample(1000 * (i + 1), i, 0);
    assert_false(rp_sched_waits_between(&waits, 10999, 20000, &wait));
    assert_true(rp_sched_waits_between(&waits, 11000, 20000, &wait));
    assert_int_equal(wait.waited_ns, 9);
}

struct spinner {
    pthread_t thread;
    sem_t named;
    _Atomic bool stop;
    int32_t tid;
};

static void *spin(void *arg) {
    struct spinner *spinner = arg;
    spinner->tid = (int32_t)syscall(SYS_gettid);
    rp_thread_begin("spinner", RP_THREAD_STEP);
    sem_post(&spinner->named);
    while (!spinner->stop) {
    }
    rp_thread_end();
    return NULL;
}

/* Two threads that share one processor wait for each other. */
static void test_threads_on_one_processor_wait(void **state) {
    struct spinner spinners[2];
    struct rp_sched_wait wait = {0};
    cpu_set_t before, one;
    (void)state;
    if (access("/proc/self/schedstat", R_OK) != 0)
        skip();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    rp_thread_begin(NULL, RP_THREAD_HOST); /* is not sampled */
    for (int i = 0; i < 2; i++) {
        spinners[i].stop = false;
        sem_init(&spinners[i].named, 0, 0);
        assert_int_equal(pthread_create(&spinners[i].thread, NULL, spin, &spinners[i]), 0);
    }
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    for (int i = 0; i < 2; i++)
        sem_wait(&spinners[i].named);
    rp_sched_waits_choose(&waits);
    assert_int_equal(waits.thread_count, 2);
    uint64_t begin_ns = rp_tick_ns();
    rp_sched_waits_take(&waits, begin_ns);
    while (wait.waited_ns < 20000000) { /* as long as it takes */
        usleep(5000);
        uint64_t now_ns = rp_tick_ns();
        rp_sched_waits_take(&waits, now_ns);
        /* A processor that others use too may delay this thread beyond the ring's samples. */
        if (!rp_sched_waits_between(&waits, begin_ns, now_ns, &wait))
            rp_sched_waits_take(&waits, begin_ns = rp_tick_ns());
    }
    assert_true(wait.tid == spinners[0].tid || wait.tid == spinners[1].tid);
    uint64_t samples = waits.sample_count;
    rp_sched_waits_choose(&waits); /* the same threads: nothing is dropped */
    assert_int_equal(waits.sample_count, samples);
    for (int i = 0; i < 2; i++) {
        spinners[i].stop = true;
        pthread_join(spinners[i].thread, NULL);
        sem_destroy(&spinners[i].named);
    }
    rp_sched_waits_choose(&waits);
    assert_int_equal(waits.thread_count, 0);
    rp_thread_end();
}

int main(void) {
#define RUN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        RUN(test_the_samples_next_to_a_span_enclose_it),
        RUN(test_samples_that_were_written_over_are_gone),
        RUN(test_threads_on_one_processor_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
