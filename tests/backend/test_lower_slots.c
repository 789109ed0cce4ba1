/* Goal: the state of a slot decides what becomes of its row, and of no other row.
 * Method: one small random model samples after a short prompt; then slots are edited. */
#include "tests/backend/lower_fixture.h"

static const int32_t tokens[] = {1, 2, 3};

/* Opens the model; what it samples after `tokens` in slot 0. */
static int32_t sample_first(void) {
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32);
    open_way(&way);
    rp_driver_row(&driver, 0, tokens, RP_ARRAY_COUNT(tokens), true);
    rp_driver_run(&driver, NULL);
    return rp_driver_result(&driver, 0)->token;
}

static void stop_at(uint32_t slot, uint32_t id) {
    rp_driver_edit(&driver, slot, RP_SLOT_STOP_COUNT, 0, 1);
    rp_driver_edit(&driver, slot, RP_SLOT_STOP_IDS, 0, id);
}

static void test_a_row_of_a_finished_slot_is_skipped(void **state) {
    (void)state;
    uint32_t stop = (uint32_t)sample_first();
    empty_slot(0);
    stop_at(0, stop);
    rp_driver_row(&driver, 0, tokens, RP_ARRAY_COUNT(tokens), true);
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_STOPPED);
    rp_driver_row(&driver, 0, NULL, 1, true); /* the wasted row of a run-ahead step */
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_SKIPPED);
    assert_int_equal(rp_driver_result(&driver, 0)->token, -1);
    assert_int_equal(rp_driver_result(&driver, 0)->length, 3);
}

static void test_min_tokens_keeps_a_stop_id_away(void **state) {
    (void)state;
    uint32_t stop = (uint32_t)sample_first();
    stop_at(1, stop);
    rp_driver_edit(&driver, 1, RP_SLOT_MIN_TOKENS, 0, 1);
    rp_driver_row(&driver, 1, tokens, RP_ARRAY_COUNT(tokens), true);
    rp_driver_run(&driver, NULL);
    assert_int_not_equal(rp_driver_result(&driver, 0)->token, stop);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, 0);
}

static void test_a_nan_in_one_row_spares_the_others(void **state) {
    (void)state;
    int32_t want = sample_first();
    /* Slot 1 claims four unwritten tokens, so it reads the NaN of a fresh page. */
    rp_driver_edit(&driver, 1, RP_SLOT_LENGTH, 0, 4);
    rp_driver_row(&driver, 1, tokens, RP_ARRAY_COUNT(tokens), true);
    rp_driver_row(&driver, 2, tokens, RP_ARRAY_COUNT(tokens), true);
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_NAN);
    assert_int_equal(rp_driver_result(&driver, 0)->token, -1);
    assert_int_equal(rp_driver_result(&driver, 1)->flags, 0);
    assert_int_equal(rp_driver_result(&driver, 1)->token, want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, teardown)
        TEST(test_a_row_of_a_finished_slot_is_skipped),
        TEST(test_min_tokens_keeps_a_stop_id_away),
        TEST(test_a_nan_in_one_row_spares_the_others),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
