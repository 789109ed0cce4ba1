/* Goal: a step whose packet requests stamps stores the begin and end of each launch; other steps do
 * not, and no result depends on it.
 * Method: a small random model, replayed and eager, one and three workers, alternating steps
 * stamped. */
#include "tests/support/driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { CAPACITY = 128, STEPS = 9, PROMPT = 5 };

static const struct rp_bucket buckets[] = {{1, 1, 1, true}, {16, 2, 2, false}};
static struct rp_model model; /* freed in teardown */
static struct rp_driver driver;

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

static void open_driver(bool eager, uint32_t threads, uint32_t capacity) {
    const struct rp_model_config config = {.family = RP_FAMILY_LLAMA,
                                           .hidden = 64,
                                           .intermediate = 96,
                                           .layers = 3,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 16,
                                           .vocab = 97,
                                           .max_position = 64,
                                           .norm_eps = 1e-5f,
                                           .rope_theta = 10000.0,
                                           .bos_id = RP_ID_NONE};
    const struct rp_driver_config way = {.slots = 2,
                                         .pages_per_slot = 16,
                                         .page_tokens = 4,
                                         .threads = threads,
                                         .buckets = buckets,
                                         .bucket_count = RP_ARRAY_COUNT(buckets),
                                         .kv_dtype = RP_DTYPE_F32,
                                         .eager = eager,
                                         .stamp_capacity = capacity};
    teardown(NULL);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_F32, 5, 64, &model, NULL), RP_OK);
    rp_driver_open(&driver, &model, &way);
}

/* Nodes follow each other, inside the step. */
static void check_stamps(uint64_t step) {
    const unsigned char *entry =
        driver.view.results + (step % RP_STEP_RING_ENTRIES) * driver.view.result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)entry;
    const struct rp_node_stamp *stamps = rp_driver_stamps_of(&driver, step);
    uint32_t count = driver.entry->launches;
    assert_true(count > 10 && count < CAPACITY);
    assert_true(stamps[0].begin_ns == header->begin_ns);
    assert_true(stamps[count - 1].end_ns == header->end_ns);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(stamps[i].begin_ns <= stamps[i].end_ns);
        if (i)
            assert_true(stamps[i].begin_ns >= stamps[i - 1].end_ns);
    }
    for (uint32_t i = count; i < CAPACITY; i++)
        assert_true(stamps[i].begin_ns > stamps[i].end_ns);
}

static int32_t run_step(uint64_t step, bool stamped) {
    static const int32_t prompt[PROMPT] = {3, 14, 15, 92, 65};
    driver.packet_flags = stamped ? RP_PACKET_STAMP : 0;
    rp_driver_row(&driver, 0, step == 1 ? prompt : NULL, step == 1 ? PROMPT : 1, true);
    rp_driver_run(&driver, NULL);
    return rp_driver_result(&driver, 0)->token;
}

static void test_every_launch_of_a_stamped_step_is_timed_and_nothing_else_changes(void **state) {
    (void)state;
    int32_t expected[STEPS];
    open_driver(false, 1, 0);
    for (uint64_t step = 1; step <= STEPS; step++)
        expected[step - 1] = run_step(step, true); /* no room for stamps: the bit has no effect */
    for (uint32_t way = 0; way < 4; way++) {
        open_driver(way % 2, way < 2 ? 1 : 3, CAPACITY);
        for (uint64_t step = 1; step <= STEPS; step++) {
            bool stamped = step % 3 != 0;
            struct rp_node_stamp *ring =
                driver.view.stamp_ring + step % RP_STEP_RING_ENTRIES * CAPACITY;
            memset(ring, 0x5A, CAPACITY * sizeof *ring);
            assert_int_equal(run_step(step, stamped), expected[step - 1]);
            if (stamped)
                check_stamps(step);
            else
                assert_true(ring[0].begin_ns == 0x5A5A5A5A5A5A5A5Au); /* untouched */
        }
    }
}

static void test_a_step_that_fails_stores_no_stamps(void **state) {
    (void)state;
    open_driver(false, 1, CAPACITY);
    (void)run_step(1, true);
    driver.packet_flags = RP_PACKET_STAMP;
    rp_driver_edit(&driver, 77, RP_SLOT_LENGTH, 0, 0); /* no such slot */
    rp_driver_row(&driver, 0, NULL, 1, true);
    struct rp_node_stamp *ring = driver.view.stamp_ring + (size_t)2 * CAPACITY;
    memset(ring, 0x5A, CAPACITY * sizeof *ring);
    rp_driver_run(&driver, NULL);
    assert_true(ring[0].begin_ns == 0x5A5A5A5A5A5A5A5Au);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(
            test_every_launch_of_a_stamped_step_is_timed_and_nothing_else_changes, teardown),
        cmocka_unit_test_teardown(test_a_step_that_fails_stores_no_stamps, teardown),
    };
    return cmocka_run_group_tests_name("node_stamps", tests, NULL, NULL);
}
