/* Goal: in every step SAMPLE finds each row's mask at its index; what the device has already is not
 * copied again, and nothing that the step uses is overwritten. Method: random steps over a small
 * pool, on a backend that only copies. */
#include "base/memory.h"
#include "device/step_cpu.h"
#include "engine/mask_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, MASKS = 7, VOCAB = 77, WORDS = 3, KEYS = 9 };

static struct rp_step_config config = {.slot_count = ROWS,
                                       .pages_per_slot = 1,
                                       .row_capacity = ROWS,
                                       .token_capacity = ROWS,
                                       .logit_row_capacity = ROWS,
                                       .edit_capacity = 1,
                                       .prompt_ring_capacity = 4,
                                       .vocab = VOCAB,
                                       .mask_capacity = MASKS};
static struct rp_step_view view;
static struct rp_mask_pool pool;
static unsigned char *state_block, *rings_block;
static uint32_t copies, copied_masks;

static int copy(struct rp_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    copies++;
    copied_masks += (uint32_t)(bytes / 4 / rp_mask_words(&config));
    memcpy(to, from, bytes);
    return RP_OK;
}

static const struct rp_backend backend = {.copy = copy};

static void open_pool(bool on_device) {
    config.late_copies = on_device;
    size_t state_bytes = rp_step_state_carve(&config, NULL, &view);
    size_t ring_bytes = rp_step_rings_carve(&config, NULL, &view);
    state_block = rp_alloc_aligned(state_bytes, RP_CACHE_LINE);
    rings_block = rp_alloc_aligned(ring_bytes, RP_CACHE_LINE);
    memset(state_block, 0xA5, state_bytes);
    memset(rings_block, 0x5A, ring_bytes);
    rp_step_state_carve(&config, state_block, &view);
    rp_step_rings_carve(&config, rings_block, &view);
    assert_int_equal(rp_mask_pool_init(&pool, &view), RP_OK);
    copies = copied_masks = 0;
}

static void close_pool(void) {
    rp_mask_pool_deinit(&pool);
    rp_free_aligned(state_block);
    rp_free_aligned(rings_block);
}

/* The bits of a key; those of key 0 are different each time. */
static void fill(struct rp_sample_hold *hold, uint32_t *bits, uint64_t key, uint32_t number) {
    for (uint32_t w = 0; w < WORDS; w++)
        bits[w] = key ? (uint32_t)key * 2654435761u + w : number * 2246822519u + w;
    hold->allowed = bits;
    hold->key = key;
}

static void run_step(uint64_t step, const uint64_t keys[ROWS], uint32_t *number) {
    uint32_t bits[ROWS][WORDS], places[ROWS];
    for (uint32_t row = 0; row < ROWS; row++) {
        struct rp_sample_hold hold = {.released = 0};
        fill(&hold, bits[row], keys[row], ++*number);
        places[row] = rp_mask_pool_place(&pool, &hold, step);
        assert_in_range(places[row], 0, MASKS - 1);
    }
    assert_int_equal(rp_mask_pool_upload(&pool, &backend, NULL), RP_OK);
    for (uint32_t row = 0; row < ROWS; row++)
        assert_memory_equal(view.masks + places[row] * rp_mask_words(&config), bits[row],
                            sizeof bits[row]);
}

static void check_random_steps(bool on_device) {
    uint32_t number = 0;
    open_pool(on_device);
    srand(11);
    for (uint64_t step = 1; step <= 2000; step++) {
        const uint64_t keys[ROWS] = {(uint64_t)(rand() % (KEYS + 1)) << 32,
                                     (uint64_t)(rand() % (KEYS + 1)),
                                     (uint64_t)(rand() % (KEYS + 1)) << (rand() % 2 * 32)};
        run_step(step, keys, &number);
    }
    close_pool();
}

static void test_each_row_of_random_steps_finds_its_mask(void **state) {
    (void)state;
    check_random_steps(true);
    assert_in_range(copied_masks, 1, 2000 * 2 * ROWS);
    check_random_steps(false);
    assert_int_equal(copies, 0); /* SAMPLE reads what the host has written */
}

static void test_masks_that_are_there_are_not_copied(void **state) {
    (void)state;
    const uint64_t keys[ROWS] = {1, 2, 1}, others[ROWS] = {3, 4, 2};
    uint32_t number = 0;
    open_pool(true);
    run_step(1, keys, &number);
    assert_int_equal(copied_masks, 2);
    for (uint64_t step = 2; step < 9; step++)
        run_step(step, keys, &number);
    assert_int_equal(copies, 1);
    run_step(9, others, &number);
    assert_int_equal(copied_masks, 4);
    run_step(10, keys, &number);
    assert_int_equal(copied_masks, 4);
    close_pool();
}

static void test_without_keys_every_mask_is_copied(void **state) {
    (void)state;
    const uint64_t keys[ROWS] = {0};
    uint32_t number = 0;
    open_pool(true);
    for (uint64_t step = 1; step <= 100; step++)
        run_step(step, keys, &number);
    assert_int_equal(copied_masks, 100 * ROWS);
    close_pool();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_row_of_random_steps_finds_its_mask),
        cmocka_unit_test(test_masks_that_are_there_are_not_copied),
        cmocka_unit_test(test_without_keys_every_mask_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
