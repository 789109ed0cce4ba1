/* Goal: a request is good if it met every objective; a miss is counted with its main cause. */
#include "tests/server/record_fixture.h"

#include "server/observe/goodput.h"

static struct rp_goodput goodput;
static struct rp_request_record record;

static void begin(uint64_t ttft_ms, uint64_t tpot_ms, uint64_t e2e_ms) {
    const struct rp_slo slo = {
        .ttft_ns = ttft_ms * MS, .tpot_ns = tpot_ms * MS, .e2e_ns = e2e_ms * MS};
    rp_goodput_init(&goodput, &slo);
    record_make(&record); /* ttft 30 ms, mostly prefill; 16.7 ms per token, mostly a swap; 80 ms */
}

static uint64_t missed(enum rp_slo_kind kind, uint32_t cause) {
    return rp_counter_read(&goodput.misses[kind][cause]);
}

static void test_one_that_meets_all_is_good(void **state) {
    (void)state;
    begin(30, 17, 80);
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 1);
    assert_int_equal(rp_counter_read(&goodput.good_tokens), 4);
}

static void test_misses_name_the_objective_and_the_cause(void **state) {
    (void)state;
    begin(29, 16, 79);
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 0);
    assert_int_equal(missed(RP_SLO_TTFT, RP_SLO_PREFILL), 1);
    assert_int_equal(missed(RP_SLO_TPOT, RP_SLO_GAP + RP_GAP_SWAP), 1);
    assert_int_equal(missed(RP_SLO_E2E, RP_SLO_GAP + RP_GAP_SWAP), 1);
    record.queued_ns = 980 * MS;
    record.stall_ns = 45 * MS;
    record.stats.gap_ns[RP_GAP_PREFILL] = 41 * MS;
    rp_goodput_note(&goodput, &record);
    assert_int_equal(missed(RP_SLO_TTFT, RP_SLO_QUEUE), 1);
    assert_int_equal(missed(RP_SLO_TPOT, RP_SLO_GAP + RP_GAP_PREFILL), 1);
    assert_int_equal(missed(RP_SLO_E2E, RP_SLO_UNREAD), 1);
}

static void test_one_objective_is_enough(void **state) {
    (void)state;
    begin(0, 16, 0);
    rp_goodput_note(&goodput, &record);
    assert_int_equal(missed(RP_SLO_TPOT, RP_SLO_GAP + RP_GAP_SWAP), 1);
    record.output_tokens = 1; /* an answer of one token has no time between tokens */
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 1);
}

/* 40 ms for a swap, which the mean does not show. */
static void test_one_long_gap_misses_the_objective_between_tokens(void **state) {
    (void)state;
    begin(0, 1000, 0);
    goodput.slo.itl_ns = record.stats.worst_gap_ns;
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 1);
    goodput.slo.itl_ns--;
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 1);
    assert_int_equal(missed(RP_SLO_ITL, RP_SLO_GAP + RP_GAP_SWAP), 1);
    record.stats.worst_gap_cause = RP_GAP_PREFILL;
    rp_goodput_note(&goodput, &record);
    assert_int_equal(missed(RP_SLO_ITL, RP_SLO_GAP + RP_GAP_PREFILL), 1);
    record.stats.worst_gap_cause = UINT32_MAX; /* never read past the table */
    rp_goodput_note(&goodput, &record);
    assert_int_equal(missed(RP_SLO_TPOT, RP_SLO_GAP + RP_GAP_SWAP), 0);
    goodput.slo.tpot_ns = 0;
    assert_true(rp_slo_is_set(&goodput.slo));
}

static void test_those_that_did_not_end_by_themselves_do_not_count(void **state) {
    (void)state;
    begin(1, 1, 1);
    for (int i = 0; i < 5; i++) {
        record_make(&record);
        if (i == 0)
            record.client_left = true;
        if (i == 1)
            record.engine_id = 0;
        if (i >= 2)
            record.finish = (uint8_t)(RP_FINISH_CANCELLED + i - 2);
        rp_goodput_note(&goodput, &record);
    }
    begin(0, 0, 0);
    rp_goodput_note(&goodput, &record);
    assert_int_equal(rp_counter_read(&goodput.good_requests), 0);
    for (uint32_t kind = 0; kind < RP_SLO_COUNT; kind++)
        for (uint32_t cause = 0; cause < RP_SLO_CAUSE_COUNT; cause++)
            assert_int_equal(missed((enum rp_slo_kind)kind, cause), 0);
}

static void test_series_exist_only_with_an_objective(void **state) {
    static struct rp_registry registry;
    (void)state;
    begin(0, 0, 0);
    rp_goodput_register(&goodput, &registry);
    assert_int_equal(registry.count, 0);
    begin(5, 0, 0);
    rp_goodput_register(&goodput, &registry);
    assert_true(registry.count > 0);
    for (uint32_t i = 0; i < RP_SLO_CAUSE_COUNT; i++)
        assert_true(strlen(rp_slo_cause_name(i)) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_meets_all_is_good),
        cmocka_unit_test(test_misses_name_the_objective_and_the_cause),
        cmocka_unit_test(test_one_objective_is_enough),
        cmocka_unit_test(test_one_long_gap_misses_the_objective_between_tokens),
        cmocka_unit_test(test_those_that_did_not_end_by_themselves_do_not_count),
        cmocka_unit_test(test_series_exist_only_with_an_objective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
