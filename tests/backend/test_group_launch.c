/* Goal: launch threads launch every rank's graphs in the order in which they were posted, each rank
 * on one thread of its own; a launch that fails there is reported like one that fails on the
 * owner's thread; a group stops cleanly whatever they are doing.
 * Method: a launcher with a backend that only records and waits where the test says; groups of the
 * fake GPU and the CPU with launch threads, compared with groups of the CPU, which have none. */
#include "backend/group_launch.h"
#include "base/clock.h"
#include "tests/backend/group_fixture.h"
#include "tests/support/fake_backend.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

/* --- a launcher by itself -------------------------------------------------------------------- */

enum { LAUNCHES = 100 };

static struct {
    uintptr_t graphs[LAUNCHES];
    _Atomic uint32_t count;
    uint32_t failing; /* this launch fails, from 1; 0: none */
    pthread_t thread;
    sem_t may_go; /* a launch waits for it, where `blocks` */
    bool blocks;
} recorded;

static int record_launch(struct rp_device *device, struct rp_graph *graph) {
    RP_ASSERT((void *)device == (void *)&recorded);
    if (recorded.blocks)
        while (sem_wait(&recorded.may_go) != 0)
            ;
    uint32_t count = atomic_load(&recorded.count);
    recorded.thread = pthread_self();
    recorded.graphs[count] = (uintptr_t)graph;
    atomic_store(&recorded.count, count + 1);
    return count + 1 == recorded.failing ? RP_STATUS_DEVICE : RP_OK;
}

static const struct rp_backend recorder = {.launch = record_launch};

static struct rp_group_launcher *make_launcher(void) {
    struct rp_group_launcher *launcher = NULL;
    memset(&recorded, 0, sizeof recorded);
    sem_init(&recorded.may_go, 0, 0);
    assert_int_equal(rp_group_launcher_create(&recorder, (struct rp_device *)(void *)&recorded, 1,
                                              &launcher, NULL),
                     RP_OK);
    return launcher;
}

static void post(struct rp_group_launcher *launcher, uintptr_t number) {
    rp_group_launcher_post(launcher, (struct rp_graph *)number); /* never read */
}

static void test_launches_are_in_the_order_of_posts_on_another_thread(void **state) {
    (void)state;
    struct rp_group_launcher *launcher = make_launcher();
    for (uintptr_t i = 1; i <= LAUNCHES; i++) {
        post(launcher, i);
        if (i % 7 == 0) /* else the queue becomes full */
            assert_true(rp_group_launcher_settle(launcher, UINT64_MAX));
    }
    assert_true(rp_group_launcher_settle(launcher, UINT64_MAX));
    assert_int_equal(atomic_load(&recorded.count), LAUNCHES);
    assert_false(pthread_equal(recorded.thread, pthread_self()));
    for (uint32_t i = 0; i < LAUNCHES; i++)
        assert_int_equal(recorded.graphs[i], i + 1);
    assert_int_equal(rp_group_launcher_status(launcher), RP_OK);
    rp_group_launcher_destroy(launcher);
}

static void test_nothing_is_launched_after_a_failure(void **state) {
    (void)state;
    struct rp_group_launcher *launcher = make_launcher();
    recorded.failing = 2;
    for (uintptr_t i = 1; i <= 5; i++)
        post(launcher, i);
    assert_true(rp_group_launcher_settle(launcher, UINT64_MAX));
    assert_int_equal(rp_group_launcher_status(launcher), RP_STATUS_DEVICE);
    assert_int_equal(atomic_load(&recorded.count), 2);
    rp_group_launcher_destroy(launcher);
}

static void test_a_launch_that_hangs_lets_the_owner_go_at_its_deadline(void **state) {
    (void)state;
    struct rp_group_launcher *launcher = make_launcher();
    recorded.blocks = true;
    post(launcher, 1);
    assert_false(rp_group_launcher_settle(launcher, 0));
    assert_false(rp_group_launcher_settle(launcher, rp_clock_ns() + 1000000));
    sem_post(&recorded.may_go);
    assert_true(rp_group_launcher_settle(launcher, UINT64_MAX));
    rp_group_launcher_destroy(launcher);
}

static void test_a_launcher_stops_asleep_and_with_launches_under_way(void **state) {
    (void)state;
    rp_group_launcher_destroy(NULL);
    rp_group_launcher_destroy(make_launcher()); /* never used */
    struct rp_group_launcher *launcher = make_launcher();
    recorded.blocks = true;
    for (uintptr_t i = 1; i <= 5; i++)
        post(launcher, i);
    for (uint32_t i = 0; i < 5; i++)
        sem_post(&recorded.may_go);
    rp_group_launcher_destroy(launcher); /* launches what was posted first */
    assert_int_equal(atomic_load(&recorded.count), 5);
    launcher = make_launcher();
    const struct timespec pause = {.tv_nsec = 1000000}; /* it has an interval, and sleeps */
    for (uintptr_t i = 1; i <= 5; i++) {
        post(launcher, i);
        (void)nanosleep(&pause, NULL);
    }
    rp_group_launcher_destroy(launcher);
    assert_int_equal(atomic_load(&recorded.count), 5);
}

/* --- groups ---------------------------------------------------------------------------------- */

static int set_up(void **state) {
    (void)state;
    fake_backend_reset();
    group_base.launch_threads = true;
    return 0;
}

static void run_group(struct record *record, const struct rp_backend *backend, bool each,
                      bool eager) {
    struct rp_driver_config way = way_of(4, RP_DTYPE_BF16);
    way.backend = backend;
    way.eager = eager;
    way.launch_threads = each;
    make_model(RP_FAMILY_MISTRAL, RP_DTYPE_BF16, RP_QUANT_NONE, NULL);
    run(record, &way, PROMPT, NULL);
}

static void test_a_group_has_equal_bits_with_and_without_launch_threads(void **state) {
    (void)state;
    run_group(&many, NULL, false, false);
    for (int variant = 0; variant < 4; variant++) {
        run_group(&again, variant & 1 ? fake_backend() : NULL, true, variant & 2);
        assert_same(&many, &again);
    }
}

static void test_groups_with_launch_threads_give_the_logits_of_one_device(void **state) {
    (void)state;
    compare(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, NULL, RP_DTYPE_F32, 1e-5);
}

static void test_a_group_closes_with_a_step_under_way(void **state) {
    static const int32_t prompt[] = {1, 2, 3};
    struct rp_driver_config way = way_of(2, RP_DTYPE_F32);
    (void)state;
    for (int i = 0; i < 8; i++) {
        make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, NULL);
        rp_driver_open(&driver, &model, &way);
        rp_driver_row(&driver, 0, prompt, 3, true);
        (void)rp_driver_submit(&driver, NULL);
    }
}

/* --- a launch that fails --------------------------------------------------------------------- */

static struct rp_backend failing;
static struct rp_device *failing_device; /* the rank whose launches fail, or NULL */
static _Atomic bool device_failed;

static int fail_launch(struct rp_device *device, struct rp_graph *graph) {
    if (device != failing_device)
        return rp_backend_cpu()->launch(device, graph);
    /* The others learn of it, as on GPUs. */
    (void)rp_backend_cpu()->inject_fault(device, RP_DEVICE_FAULT_TRAP);
    atomic_store(&device_failed, true);
    return RP_STATUS_DEVICE;
}

static int join_failing(struct rp_device *const *ranks, uint32_t count, struct rp_error *err) {
    failing_device = ranks[count - 1];
    return rp_backend_cpu()->join(ranks, count, err);
}

static const char *failing_error(struct rp_device *device) {
    return device == failing_device && atomic_load(&device_failed) ? "no launch" : "";
}

static void test_a_launch_that_fails_in_its_thread_fails_the_step_with_its_rank(void **state) {
    static const int32_t prompt[] = {1, 2, 3};
    (void)state;
    failing = *rp_backend_cpu();
    failing.launch = fail_launch;
    failing.join = join_failing;
    failing.last_error = failing_error;
    atomic_store(&device_failed, false);
    struct rp_driver_config way = way_of(2, RP_DTYPE_F32);
    way.backend = &failing;
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, NULL);
    rp_driver_open(&driver, &model, &way);
    struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, 0);
    rp_driver_row(&driver, 0, prompt, 3, true);
    /* The launch may have been posted only: then whoever waits for the step is told. */
    int status = rp_graph_set_launch_forward(driver.graphs, entry, 3);
    if (status == RP_OK)
        status = driver.backend->wait_step(driver.device, &driver.view, 1, UINT64_MAX);
    assert_int_equal(status, RP_STATUS_DEVICE);
    assert_string_equal(driver.backend->last_error(driver.device), "rank 1 of 2: no launch");
    assert_int_equal(rp_graph_set_launch_forward(driver.graphs, entry, 3), RP_STATUS_DEVICE);
    assert_int_equal(driver.backend->synchronize(driver.device), RP_STATUS_DEVICE);
}

#define GROUP_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_are_in_the_order_of_posts_on_another_thread),
        cmocka_unit_test(test_nothing_is_launched_after_a_failure),
        cmocka_unit_test(test_a_launch_that_hangs_lets_the_owner_go_at_its_deadline),
        cmocka_unit_test(test_a_launcher_stops_asleep_and_with_launches_under_way),
        GROUP_TEST(test_a_group_has_equal_bits_with_and_without_launch_threads),
        GROUP_TEST(test_groups_with_launch_threads_give_the_logits_of_one_device),
        GROUP_TEST(test_a_group_closes_with_a_step_under_way),
        GROUP_TEST(test_a_launch_that_fails_in_its_thread_fails_the_step_with_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
