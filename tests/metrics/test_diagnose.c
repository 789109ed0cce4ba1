/* Goal: each class of bottleneck is reported by name, with the decisive number.
 * Method: one synthetic case for each class, its neighbors across each threshold, and every input
 * at its extremes. */
#include "metrics/diagnose.h"

#include "base/json_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A busy server that decodes: memory bound. */
static struct rp_diagnose_input busy_input(void) {
    struct rp_diagnose_input input = {.seconds = 30,
                                      .steps = 1000,
                                      .busy_share = 0.93,
                                      .running = 32,
                                      .slots = 64,
                                      .pages_free_share = 0.4,
                                      .step_seconds = 0.004,
                                      .host_seconds = 0.00004,
                                      .tokens_per_step = 32,
                                      .stamped_steps = 15,
                                      .memory_share = 0.8,
                                      .compute_share = 0.05,
                                      .latency_share = 0.15,
                                      .bandwidth_used = 0.7};
    input.idle_share[RP_IDLE_NO_WORK] = 0.05;
    input.idle_share[RP_IDLE_START] = 0.02;
    return input;
}

static struct rp_diagnosis expect(const struct rp_diagnose_input *input, enum rp_verdict verdict,
                                  enum rp_verdict limit) {
    struct rp_diagnosis diagnosis;
    bool decided = verdict == RP_VERDICT_UNKNOWN;
    rp_diagnose(input, &diagnosis);
    assert_string_equal(rp_verdicts[diagnosis.verdict], rp_verdicts[verdict]);
    assert_string_equal(rp_verdicts[diagnosis.limit], rp_verdicts[limit]);
    assert_true(diagnosis.summary && diagnosis.next_count > 0);
    for (uint32_t i = 0; i < diagnosis.evidence_count; i++)
        decided =
            decided || (diagnosis.evidence[i].holds && diagnosis.evidence[i].speaks_for == verdict);
    assert_true(decided); /* a true row of evidence supports it */
    return diagnosis;
}

static void test_each_class_is_reported_by_its_name(void **state) {
    (void)state;
    struct rp_diagnose_input input = busy_input();
    expect(&input, RP_VERDICT_MEMORY_BOUND, RP_VERDICT_MEMORY_BOUND);
    input.memory_share = 0.1;
    input.compute_share = 0.8;
    expect(&input, RP_VERDICT_COMPUTE_BOUND, RP_VERDICT_COMPUTE_BOUND);
    input.latency_share = 0.6;
    expect(&input, RP_VERDICT_LAUNCH_BOUND, RP_VERDICT_LAUNCH_BOUND);
    input.idle_share[RP_IDLE_PLAN] = 0.10;
    input.idle_share[RP_IDLE_LAUNCH] = 0.05;
    expect(&input, RP_VERDICT_CPU_BOUND, RP_VERDICT_CPU_BOUND);
    input.waiting = 16;
    expect(&input, RP_VERDICT_QUEUEING, RP_VERDICT_CPU_BOUND);
    input.running = 63;
    expect(&input, RP_VERDICT_SLOT_LIMITED, RP_VERDICT_CPU_BOUND);
    input.pages_free_share = 0.01;
    expect(&input, RP_VERDICT_KV_LIMITED, RP_VERDICT_CPU_BOUND);
    input.pages_free_share = 0.4;
    input.waiting = 0;
    input.preempted = 1; /* also when no request is waiting now */
    expect(&input, RP_VERDICT_KV_LIMITED, RP_VERDICT_CPU_BOUND);
    input.preempted = 0;
    input.swapped = 1;
    expect(&input, RP_VERDICT_KV_LIMITED, RP_VERDICT_CPU_BOUND);
    input.idle_share[RP_IDLE_NO_WORK] = 0.7;
    expect(&input, RP_VERDICT_STARVED, RP_VERDICT_UNKNOWN);
}

static void test_a_threshold_is_where_a_verdict_changes(void **state) {
    (void)state;
    struct rp_diagnose_input input = busy_input();
    input.idle_share[RP_IDLE_START] = 0.0;
    input.idle_share[RP_IDLE_RESULT] =
        0.95 * RP_DIAGNOSE_HOST_SHARE - 1e-6; /* of the time with work */
    expect(&input, RP_VERDICT_MEMORY_BOUND, RP_VERDICT_MEMORY_BOUND);
    input.idle_share[RP_IDLE_RESULT] += 2e-6;
    expect(&input, RP_VERDICT_CPU_BOUND, RP_VERDICT_CPU_BOUND);
    input = busy_input();
    input.waiting = 7;
    expect(&input, RP_VERDICT_MEMORY_BOUND, RP_VERDICT_MEMORY_BOUND);
    input.waiting = 8;
    expect(&input, RP_VERDICT_QUEUEING, RP_VERDICT_MEMORY_BOUND);
    input = busy_input();
    input.idle_share[RP_IDLE_NO_WORK] = 0.5;
    expect(&input, RP_VERDICT_STARVED, RP_VERDICT_UNKNOWN);
}

static void test_too_little_is_not_judged(void **state) {
    (void)state;
    struct rp_diagnose_input input = busy_input();
    input.steps = 7;
    expect(&input, RP_VERDICT_UNKNOWN, RP_VERDICT_UNKNOWN);
    input = busy_input();
    input.stamped_steps = 0;
    input.memory_share = input.compute_share = input.latency_share = 0;
    expect(&input, RP_VERDICT_UNKNOWN, RP_VERDICT_UNKNOWN);
    memset(&input, 0, sizeof input);
    expect(&input, RP_VERDICT_UNKNOWN, RP_VERDICT_UNKNOWN);
    input.idle_share[RP_IDLE_NO_WORK] = 1;
    expect(&input, RP_VERDICT_STARVED, RP_VERDICT_UNKNOWN);
}

static void test_advice_fits_the_verdict(void **state) {
    (void)state;
    struct rp_diagnose_input input = busy_input();
    input.waiting = 40;
    input.running = 64;
    struct rp_diagnosis slots = expect(&input, RP_VERDICT_SLOT_LIMITED, RP_VERDICT_MEMORY_BOUND);
    input.pages_free_share = 0;
    struct rp_diagnosis pages = expect(&input, RP_VERDICT_KV_LIMITED, RP_VERDICT_MEMORY_BOUND);
    assert_non_null(strstr(slots.next[0], "--max-num-seqs"));
    for (uint32_t i = 0; i < slots.next_count; i++)
        assert_null(strstr(slots.next[i], "kv-cache"));
    assert_non_null(strstr(pages.next[0], "--kv-cache-dtype"));
    for (uint32_t i = 0; i < pages.next_count; i++)
        assert_null(strstr(pages.next[i], "--max-num-seqs"));
}

static void test_it_is_written_as_json_and_as_text(void **state) {
    (void)state;
    struct rp_diagnose_input input = busy_input();
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    input.waiting = 40;
    struct rp_diagnosis diagnosis = expect(&input, RP_VERDICT_QUEUEING, RP_VERDICT_MEMORY_BOUND);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_diagnosis_write_json(&input, &diagnosis, &json);
    rp_json_object_end(&json);
    rp_buffer_append(&out, "", 1);
    assert_non_null(
        strstr(out.data, "{\"verdict\":\"queueing\",\"device_limit\":\"memory_bound\","));
    assert_non_null(strstr(out.data,
                           "\"value\":1.25,\"compared\":\">=\",\"threshold\":0.25,"
                           "\"unit\":\"requests\",\"holds\":true,\"speaks_for\":\"queueing\"}"));
    rp_buffer_clear(&out);
    rp_diagnosis_write_text(&input, &diagnosis, &out);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "verdict     queueing: requests wait"));
    assert_non_null(strstr(out.data, "the device  memory_bound: "));
    assert_non_null(strstr(out.data, "32 running of 64, 40 waiting"));
    rp_buffer_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_class_is_reported_by_its_name),
        cmocka_unit_test(test_a_threshold_is_where_a_verdict_changes),
        cmocka_unit_test(test_too_little_is_not_judged),
        cmocka_unit_test(test_advice_fits_the_verdict),
        cmocka_unit_test(test_it_is_written_as_json_and_as_text),
    };
    return cmocka_run_group_tests_name("diagnose", tests, NULL, NULL);
}
