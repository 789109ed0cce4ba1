/* Goal: a sample holds what happened in its second alone; the newest 300 are kept; a late
 * tick makes one longer sample; seconds without steps are samples too. */
#include "server/observe/status_history.h"

#include "engine/engine.h"
#include "server/observe/server_latency.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SECOND ((uint64_t)1000000000)
#define MS     ((uint64_t)1000000)
#define START  (1000 * SECOND)

static struct rp_status_history history;
static struct rp_engine_metrics engine;
static struct rp_server_latency latency;

static int setup(void **state) {
    (void)state;
    memset(&history, 0, sizeof history);
    memset(&engine, 0, sizeof engine);
    memset(&latency, 0, sizeof latency);
    return 0;
}

static void tick(uint64_t now_ns) { rp_status_history_tick(&history, now_ns, &engine, &latency); }

static const struct rp_history_sample *next(uint64_t after, uint64_t now_ns) {
    return rp_status_history_next(&history, after, now_ns);
}

static uint32_t kept(uint64_t after, uint64_t now_ns) {
    uint32_t count = 0;
    for (const struct rp_history_sample *s = next(after, now_ns); s; s = next(s->sequence, now_ns))
        count++;
    return count;
}

static void test_a_sample_holds_what_happened_in_its_second(void **state) {
    (void)state;
    rp_counter_add(&engine.generation_tokens, 1000); /* before the history begins */
    rp_latency_record(&latency.series[RP_LATENCY_TTFT], START, 900 * MS);
    tick(START);
    assert_null(next(0, START));
    rp_counter_add(&engine.generation_tokens, 40);
    rp_counter_add(&engine.idle_ns[RP_IDLE_PLAN], 7);
    rp_counter_add(&engine.device_busy_ns, 300 * MS);
    rp_gauge_set(&engine.running, 3);
    rp_gauge_set(&engine.pages_held, 12);
    for (int i = 0; i < 9; i++)
        rp_latency_record(&latency.series[RP_LATENCY_TTFT], START, 20 * MS);
    tick(START + SECOND);
    const struct rp_history_sample *sample = next(0, START + SECOND);
    assert_non_null(sample);
    assert_int_equal(sample->sequence, 1);
    assert_true(sample->begin_ns == START && sample->end_ns == START + SECOND);
    assert_int_equal(sample->counts.generated, 40);
    assert_int_equal(sample->counts.idle_ns[RP_IDLE_PLAN], 7);
    assert_int_equal(sample->counts.busy_ns, 300 * MS);
    assert_int_equal(sample->running, 3);
    assert_int_equal(sample->held, 12);
    assert_int_equal(sample->latency[RP_HISTORY_TTFT].count, 9);
    assert_true(sample->latency[RP_HISTORY_TTFT].p99 < 21.0 * MS);
    rp_counter_add(&engine.generation_tokens, 2);
    tick(START + 2 * SECOND);
    sample = next(1, START + 2 * SECOND);
    assert_int_equal(sample->counts.generated, 2);
    assert_int_equal(sample->latency[RP_HISTORY_TTFT].count, 0);
}

static void test_ticks_within_a_second_make_one_sample(void **state) {
    (void)state;
    for (uint64_t ms = 0; ms <= 5000; ms += 100)
        tick(START + ms * MS + 37 * MS);
    assert_int_equal(history.sequence, 5);
    const struct rp_history_sample *sample = next(0, START + 6 * SECOND);
    for (; sample; sample = next(sample->sequence, START + 6 * SECOND))
        assert_int_equal(sample->end_ns % SECOND, 37 * MS);
}

static void test_seconds_without_steps_are_samples_of_zeros(void **state) {
    (void)state;
    tick(START);
    for (uint64_t s = 1; s <= 4; s++) {
        rp_counter_add(&engine.idle_ns[RP_IDLE_NO_WORK], SECOND);
        tick(START + s * SECOND);
    }
    assert_int_equal(kept(0, START + 4 * SECOND), 4);
    const struct rp_history_sample *sample = next(2, START + 4 * SECOND);
    assert_int_equal(sample->counts.decode + sample->counts.mixed, 0);
    assert_int_equal(sample->counts.generated, 0);
    assert_int_equal(sample->counts.idle_ns[RP_IDLE_NO_WORK], SECOND);
    for (int i = 0; i < RP_HISTORY_SERIES_COUNT; i++)
        assert_int_equal(sample->latency[i].count, 0);
}

static void test_a_late_tick_makes_one_longer_sample_that_loses_nothing(void **state) {
    uint64_t sum = 0;
    (void)state;
    tick(START);
    for (uint64_t s = 1; s <= 9; s++) {
        rp_counter_add(&engine.decode_steps, 1);
        if (s < 3 || s > 6)
            tick(START + s * SECOND);
    }
    assert_int_equal(kept(0, START + 9 * SECOND), 5);
    const struct rp_history_sample *late = next(2, START + 9 * SECOND);
    assert_int_equal(late->end_ns - late->begin_ns, 5 * SECOND);
    assert_int_equal(late->counts.decode, 5);
    uint64_t end_ns = START;
    for (const struct rp_history_sample *s = next(0, START + 9 * SECOND); s;
         s = next(s->sequence, START + 9 * SECOND)) {
        assert_int_equal(s->begin_ns, end_ns);
        end_ns = s->end_ns;
        sum += s->counts.decode;
    }
    assert_int_equal(sum, 9);
}

static void test_the_ring_wraps_and_keeps_the_newest_in_order(void **state) {
    uint64_t end = START + 1000 * SECOND, expected = 1000 - RP_HISTORY_SECONDS + 1;
    (void)state;
    tick(START);
    for (uint64_t s = 1; s <= 1000; s++) {
        rp_counter_add(&engine.prompt_tokens, s);
        tick(START + s * SECOND);
    }
    assert_int_equal(kept(0, end), RP_HISTORY_SECONDS);
    const struct rp_history_sample *sample = next(0, end);
    for (; sample; sample = next(sample->sequence, end), expected++) {
        assert_int_equal(sample->sequence, expected);
        assert_int_equal(sample->counts.prompt, expected);
    }
    assert_int_equal(kept(990, end), 10);
    assert_int_equal(kept(1000, end), 0);
    assert_int_equal(kept(UINT64_MAX, end), 0);
}

static void test_samples_older_than_five_minutes_are_left_out(void **state) {
    (void)state;
    tick(START);
    for (uint64_t s = 1; s <= 10; s++)
        tick(START + s * SECOND);
    uint64_t now = START + (RP_HISTORY_SECONDS + 7) * SECOND; /* the machine was suspended */
    tick(now);
    assert_int_equal(next(0, now)->sequence, 7);
    assert_int_equal(kept(0, now), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_sample_holds_what_happened_in_its_second, setup),
        cmocka_unit_test_setup(test_ticks_within_a_second_make_one_sample, setup),
        cmocka_unit_test_setup(test_seconds_without_steps_are_samples_of_zeros, setup),
        cmocka_unit_test_setup(test_a_late_tick_makes_one_longer_sample_that_loses_nothing, setup),
        cmocka_unit_test_setup(test_the_ring_wraps_and_keeps_the_newest_in_order, setup),
        cmocka_unit_test_setup(test_samples_older_than_five_minutes_are_left_out, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
