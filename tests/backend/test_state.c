/* Goal: recurrent state makes the logits of a prompt the same wherever it is cut and wherever its
 * state was stored in between; state that is not restored, or is another sequence's, is seen.
 * Method: small random models, f32 and bf16; a prompt is cut at every offset, its state is stored
 * at many positions on the way and continued from there in another slot, whose own state is NaN. */
#include "tests/support/driver.h"
#include "tests/support/family_configs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 61, PROMPT = 19, SLOTS = 4, PAGES = 8, PAGE_TOKENS = 4 };

static const struct rp_bucket buckets[] = {{1, 1, 1, true}, {64, SLOTS, SLOTS, false}};
static struct rp_model model;
static struct rp_driver driver;
static float whole[VOCAB], next[VOCAB]; /* after the prompt, and after one more token */
static int32_t tokens[PROMPT + 1];

static void open_model(enum rp_family family, enum rp_dtype dtype) {
    struct rp_model_config config = {.family = family,
                                     .hidden = 48,
                                     .intermediate = 32,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 24,
                                     .vocab = VOCAB,
                                     .max_position = 64,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .bos_id = RP_ID_NONE};
    struct rp_driver_config way = {.slots = SLOTS,
                                   .pages_per_slot = PAGES,
                                   .page_tokens = PAGE_TOKENS,
                                   .threads = 2,
                                   .buckets = buckets,
                                   .bucket_count = RP_ARRAY_COUNT(buckets),
                                   .kv_dtype = dtype,
                                   .poison = true};
    rp_test_set_family(&config);
    assert_int_equal(rp_model_random(&config, dtype, 9, 64, &model, NULL), RP_OK);
    rp_driver_open(&driver, &model, &way);
    for (uint32_t i = 0; i <= PROMPT; i++)
        tokens[i] = (int32_t)((i * 23 + 5) % VOCAB);
}

static int close_model(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    return 0;
}

/* Tokens [begin, end) of the prompt in a slot; its logits to `out`, or NULL. */
static void run(uint32_t slot, uint32_t begin, uint32_t end, float *out) {
    rp_driver_row(&driver, slot, tokens + begin, end - begin, out != NULL);
    rp_driver_run(&driver, NULL);
    if (out)
        memcpy(out, rp_driver_logits(&driver, 0), VOCAB * sizeof *out);
}

/* The slot is empty, or has `length` tokens in the pages of slot 0. */
static void start(uint32_t slot, uint32_t length) {
    rp_driver_edit(&driver, slot, RP_SLOT_LENGTH, 0, length);
    for (uint32_t i = 0; i < PAGES; i++)
        rp_driver_edit(&driver, slot, RP_SLOT_PAGES, i,
                       1 + (i < RP_CEIL_DIV(length, PAGE_TOKENS) ? 0 : slot) * PAGES + i);
}

static void make_plain(void) {
    start(0, 0);
    run(0, 0, PROMPT, whole);
    run(0, PROMPT, PROMPT + 1, next);
    for (uint32_t i = 0; i < VOCAB; i++)
        assert_false(isnan(whole[i]) || isnan(next[i]));
    assert_memory_not_equal(whole, next, sizeof whole);
}

static void for_every_model(void (*check)(void)) {
    static const enum rp_family families[] = {RP_FAMILY_LFM2, RP_FAMILY_QWEN3_NEXT};
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        for (int half = 0; half < 2; half++) {
            open_model(families[i], half ? RP_DTYPE_BF16 : RP_DTYPE_F32);
            make_plain();
            check();
            (void)close_model(NULL);
        }
}

static void check_cuts(void) {
    float logits[VOCAB];
    for (uint32_t cut = 1; cut < PROMPT; cut++) {
        start(0, 0); /* a slot that had another sequence begins with zeros */
        run(0, 0, cut, NULL);
        run(0, cut, PROMPT, logits);
        assert_memory_equal(logits, whole, sizeof whole);
        run(0, PROMPT, PROMPT + 1, logits);
        assert_memory_equal(logits, next, sizeof next);
    }
}

static void test_a_prompt_has_the_same_logits_wherever_it_is_cut(void **state) {
    (void)state;
    for_every_model(check_cuts);
}

static void store_at(uint32_t slot, uint32_t position, uint32_t place) {
    rp_driver_edit(&driver, slot, RP_SLOT_SAVE_AT, 0, position);
    rp_driver_edit(&driver, slot, RP_SLOT_SAVE_TO, 0, place);
}

/* A prompt of slot 0 stores its state after `at` tokens; slot 1 goes on from there. Pages are
 * shared, so `at` is a multiple of their tokens. */
static void check_snapshots(void) {
    float logits[VOCAB];
    for (uint32_t at = PAGE_TOKENS; at < PROMPT; at += PAGE_TOKENS)
        for (uint32_t cut = 0; cut < at; cut += 3) {
            start(0, 0);
            if (cut)
                run(0, 0, cut, NULL);
            store_at(0, at, SLOTS + at % SLOTS);
            run(0, cut, PROMPT, logits);
            assert_memory_equal(logits, whole, sizeof whole);
            start(1, at);
            rp_driver_edit(&driver, 1, RP_SLOT_STATE, 0, 1 + SLOTS + at % SLOTS);
            run(1, at, PROMPT, logits);
            assert_memory_equal(logits, whole, sizeof whole);
            run(1, PROMPT, PROMPT + 1, logits); /* its own state from here on */
            assert_memory_equal(logits, next, sizeof next);
        }
}

static void test_a_sequence_goes_on_from_a_snapshot_with_the_same_logits(void **state) {
    (void)state;
    for_every_model(check_snapshots);
}

static void check_wrong_states(void) {
    float logits[VOCAB];
    start(2, 0);
    run(2, 1, PROMPT, NULL); /* another sequence */
    start(0, 0);
    store_at(0, 8, SLOTS);
    run(0, 0, PROMPT, logits);
    for (uint32_t from = 0; from < SLOTS + 1; from++) {
        bool right = from == SLOTS;
        if (from == 1) /* NaN: nobody has stored anything there */
            continue;
        start(3, 8);
        rp_driver_edit(&driver, 3, RP_SLOT_STATE, 0, from == 3 ? 0 : 1 + from);
        run(3, 8, PROMPT, logits);
        assert_int_equal(memcmp(logits, whole, sizeof whole) == 0, right);
    }
}

static void test_a_state_that_is_not_restored_or_is_of_other_tokens_is_seen(void **state) {
    (void)state;
    for_every_model(check_wrong_states);
}

/* A row of a finished slot, beside a live one. */
static void check_finished(void) {
    float logits[VOCAB];
    start(0, 0);
    run(0, 0, 9, NULL);
    start(1, 0);
    rp_driver_edit(&driver, 0, RP_SLOT_FINISHED, 0, 1);
    store_at(0, 12, SLOTS + 1);
    rp_driver_row(&driver, 0, tokens, 9, false);
    rp_driver_row(&driver, 1, tokens, PROMPT, true);
    rp_driver_run(&driver, NULL);
    assert_memory_equal(rp_driver_logits(&driver, 0), whole, sizeof whole);
    rp_driver_edit(&driver, 0, RP_SLOT_FINISHED, 0, 0);
    run(0, 9, PROMPT, logits);
    assert_memory_equal(logits, whole, sizeof whole);
}

static void test_a_row_of_a_finished_slot_leaves_its_state(void **state) {
    (void)state;
    for_every_model(check_finished);
}

static void test_a_packet_that_names_a_place_that_does_not_exist_fails_the_step(void **state) {
    static const struct {
        uint32_t field, value;
    } bad[] = {{RP_SLOT_STATE, 1 + 2 * SLOTS}, {RP_SLOT_SAVE_TO, 2 * SLOTS}};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        open_model(RP_FAMILY_LFM2, RP_DTYPE_F32);
        start(0, 0);
        rp_driver_edit(&driver, 0, bad[i].field, 0, bad[i].value);
        rp_driver_row(&driver, 0, tokens, 3, true);
        uint64_t step = rp_driver_submit(&driver, NULL);
        (void)driver.backend->synchronize(driver.device);
        const struct rp_result_header *header =
            (const void *)(driver.view.results +
                           (step % RP_STEP_RING_ENTRIES) * driver.view.result_bytes);
        assert_int_equal(header->error, 1);
        (void)close_model(NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_prompt_has_the_same_logits_wherever_it_is_cut,
                                  close_model),
        cmocka_unit_test_teardown(test_a_sequence_goes_on_from_a_snapshot_with_the_same_logits,
                                  close_model),
        cmocka_unit_test_teardown(test_a_state_that_is_not_restored_or_is_of_other_tokens_is_seen,
                                  close_model),
        cmocka_unit_test_teardown(test_a_row_of_a_finished_slot_leaves_its_state, close_model),
        cmocka_unit_test_teardown(
            test_a_packet_that_names_a_place_that_does_not_exist_fails_the_step, close_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
