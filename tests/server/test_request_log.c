/* Goal: the log keeps the last records, the slowest of each minute and the refused ones, each once,
 * in bounded memory, and finds the largest by any measure; token times survive their encoding. */
#include "tests/server/record_fixture.h"

#include "base/memory.h"

static struct rp_request_log log_;
static const struct rp_request_record *found[RP_LOG_RECORDS];

static int setup(void **state) {
    (void)state;
    assert_true(rp_request_log_init(&log_));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_request_log_deinit(&log_);
    return 0;
}

/* A request of this many ms that ended in that minute. */
static uint64_t add(uint64_t minute, uint64_t total_ms) {
    struct rp_request_record record = {.engine_id = 1, .finish = RP_FINISH_STOP};
    record.closed_ns = minute * 60000 * MS + 30000 * MS;
    record.first_byte_ns = record.closed_ns - total_ms * MS;
    return rp_request_log_add(&log_, &record);
}

static const struct rp_request_record *find(uint64_t sequence, uint32_t count) {
    const struct rp_request_record *record = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if (found[i]->sequence != sequence)
            continue;
        assert_null(record); /* each once */
        record = found[i];
    }
    return record;
}

static void test_the_newest_are_kept_and_each_is_listed_once(void **state) {
    (void)state;
    assert_int_equal(rp_request_log_collect(&log_, found), 0);
    for (uint64_t i = 1; i <= RP_LOG_FINISHED + 1000; i++)
        assert_true(add(100, 10) == i);
    uint32_t count = rp_request_log_collect(&log_, found);
    /* The first ones have the minute's places, because none was slower. */
    assert_int_equal(count, RP_LOG_FINISHED + RP_LOG_SLOW);
    for (uint64_t i = 1; i <= RP_LOG_FINISHED + 1000; i++)
        assert_int_equal(find(i, count) != NULL, i > 1000 || i <= RP_LOG_SLOW);
}

static void test_the_slowest_of_each_minute_outlive_the_others(void **state) {
    uint64_t slow[3];
    (void)state;
    for (uint64_t minute = 0; minute < 3; minute++)
        for (uint64_t i = 0; i < 3000; i++) {
            uint64_t sequence = add(200 + minute, i == 1234 ? 5000 + minute : 10 + i % 7);
            if (i == 1234)
                slow[minute] = sequence;
        }
    uint32_t count = rp_request_log_collect(&log_, found);
    for (uint32_t i = 0; i < 3; i++)
        assert_non_null(find(slow[i], count));
    count = rp_request_log_select(found, count, RP_LOG_BY_E2E, 3);
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(found[i]->sequence == slow[2 - i]);
    /* Fifteen minutes later the first is dropped. */
    for (uint64_t minute = 0; minute < RP_LOG_MINUTES; minute++)
        for (uint64_t i = 0; i < 300; i++)
            add(300 + minute, 10);
    count = rp_request_log_collect(&log_, found);
    assert_null(find(slow[0], count));
    assert_true(count <= RP_LOG_RECORDS);
}

static void test_refused_requests_evict_no_others(void **state) {
    struct rp_request_record record = {.status = 429, .first_byte_ns = 5 * MS, .closed_ns = 6 * MS};
    (void)state;
    uint64_t kept = add(1, 10);
    for (uint32_t i = 0; i < 10000; i++)
        rp_request_log_add(&log_, &record);
    uint32_t count = rp_request_log_collect(&log_, found);
    assert_int_equal(count, 1 + RP_LOG_REFUSED);
    assert_non_null(find(kept, count));
    assert_string_equal(rp_record_finish(found[1]), "refused");
    assert_string_equal(rp_record_state(found[1]), "refused");
}

static void test_writing_is_noted_wherever_the_record_lies(void **state) {
    (void)state;
    uint64_t first = add(50, 900), second = add(50, 800), third = add(50, 700);
    rp_request_log_written(&log_, first, 2, 99 * MS, 3 * MS);
    rp_request_log_written(&log_, third, 1, 0, 0);
    for (uint64_t i = 0; i < RP_LOG_FINISHED; i++) /* only the minute's copies are left */
        add(51, 1);
    uint32_t count = rp_request_log_collect(&log_, found);
    assert_true(find(first, count)->written_ns == 99 * MS);
    assert_true(find(second, count)->stall_ns == 3 * MS);
    assert_false(find(second, count)->client_left);
    assert_true(find(third, count)->client_left);
    rp_request_log_written(&log_, UINT64_MAX - 5, 3, 1, 1); /* never ended */
}

static int by_total(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : -(x > y);
}

static uint64_t ended[8];
static uint32_t ended_count;

static void on_ended(void *ctx, const struct rp_request_record *record) {
    assert_ptr_equal(ctx, &log_);
    assert_true(record->written_ns == 7 && record->stall_ns == 9);
    ended[ended_count++] = record->sequence;
}

static void test_each_record_is_complete_once_when_its_answer_is_written(void **state) {
    (void)state;
    log_.ended = on_ended;
    log_.ended_ctx = &log_;
    ended_count = 0;
    for (uint64_t i = 1; i <= 6; i++)
        add(100, 5000);
    assert_int_equal(ended_count, 0);
    rp_request_log_written(&log_, 2, 3, 7, 9);
    assert_int_equal(ended_count, 3);
    assert_true(ended[0] + ended[1] + ended[2] == 2 + 3 + 4);
    rp_request_log_written(&log_, 6, 1, 7, 9);
    assert_true(ended_count == 4 && ended[3] == 6);
}

static void test_the_largest_are_found_by_every_measure(void **state) {
    static struct rp_request_record records[500];
    static uint64_t totals[500];
    uint64_t seed = 7;
    (void)state;
    for (uint32_t keep = 0; keep <= 500; keep += 1 + keep / 3) {
        for (uint32_t i = 0; i < 500; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            totals[i] = (seed >> 40) % 300 + 1;
            records[i] = (struct rp_request_record){.engine_id = 1,
                                                    .sequence = i + 1,
                                                    .first_byte_ns = 1000,
                                                    .first_token_ns = 1000 + totals[i] * 3,
                                                    .queued_ns = 500,
                                                    .admitted_ns = 500 + totals[i] * 2,
                                                    .closed_ns = 1000 + totals[i]};
            records[i].stats.worst_gap_ns = totals[i] * 5;
        }
        qsort(totals, 500, sizeof totals[0], by_total);
        for (enum rp_log_sort sort = RP_LOG_BY_E2E; sort <= RP_LOG_BY_END; sort++) {
            for (uint32_t i = 0; i < 500; i++)
                found[i] = &records[i];
            assert_int_equal(rp_request_log_select(found, 500, sort, keep), keep);
            for (uint32_t i = 0; i < keep; i++)
                assert_true(sort == RP_LOG_BY_END ? found[i]->sequence == 500 - i
                                                  : found[i]->closed_ns - 1000 == totals[i]);
        }
    }
    assert_int_equal(rp_request_log_select(found, 0, RP_LOG_BY_E2E, 5), 0);
}

static void test_token_times_survive_their_encoding(void **state) {
    struct rp_request request = {.scheduled_ns = 5};
    static uint64_t times[2000], read[2000];
    (void)state;
    /* Gaps from nothing to seventy minutes: one to five bytes each. */
    for (int kind = 0; kind < 3; kind++) {
        struct rp_request_record record = {0};
        uint64_t now = 123456789;
        for (uint32_t i = 0; i < 2000; i++) {
            times[i] = now;
            struct rp_event event = {.request = &request, .time_ns = now};
            rp_record_token(&record, &event);
            now += kind == 0   ? 999
                   : kind == 1 ? (uint64_t)1500001
                               : ((uint64_t)1 << (i % 42)) + i * 7;
        }
        uint32_t count = rp_record_token_times(&record, read, 2000);
        assert_int_equal(record.output_tokens, 2000);
        assert_int_equal(count, record.kept_tokens);
        assert_true(count >= 150 && count <= RP_RECORD_TOKEN_BYTES + 1);
        for (uint32_t i = 0; i < count; i++)
            assert_true(times[i] - read[i] < 1000); /* microseconds, and errors do not add up */
        assert_int_equal(rp_record_token_times(&record, read, 10), 10);
        assert_true(record.last_token_ns == times[1999]);
    }
}

static void test_phases_are_differences_of_stamps(void **state) {
    struct rp_request_record record;
    struct rp_record_times times;
    (void)state;
    record_make(&record);
    rp_record_times(&record, &times);
    assert_true(times.receive == 1 * MS && times.parse == MS / 2 && times.tokenize == MS / 2);
    assert_true(times.queue == 7 * MS && times.prefill == 20 * MS && times.ttft == 30 * MS);
    assert_true(times.decode == 50 * MS && times.per_token == 50 * MS / 3 &&
                times.total == 80 * MS);
    record.written_ns = 1090 * MS;
    rp_record_times(&record, &times);
    assert_true(times.total == 90 * MS);
    assert_string_equal(rp_record_state(&record), "decode");
    record.sequence = 1;
    assert_string_equal(rp_record_state(&record), "finished");
    assert_string_equal(rp_record_finish(&record), "length");
    record.finish = RP_FINISH_CANCELLED;
    record.stop_string = true;
    assert_string_equal(rp_record_finish(&record), "stop");
    /* Nothing has happened yet, so all times are zero. */
    memset(&record, 0, sizeof record);
    rp_record_times(&record, &times);
    assert_true(times.total == 0 && times.ttft == 0 && times.per_token == 0);
}

static void test_no_memory_is_an_answer(void **state) {
    struct rp_request_log other;
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        rp_alloc_fail_at(n);
        bool made = rp_request_log_init(&other);
        rp_alloc_fail_at(0);
        assert_false(made);
        rp_request_log_deinit(&other);
    }
    assert_true(rp_request_log_bytes() < (size_t)16 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_newest_are_kept_and_each_is_listed_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_the_slowest_of_each_minute_outlive_the_others, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_refused_requests_evict_no_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writing_is_noted_wherever_the_record_lies, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_each_record_is_complete_once_when_its_answer_is_written, setup, teardown),
        cmocka_unit_test(test_the_largest_are_found_by_every_measure),
        cmocka_unit_test(test_token_times_survive_their_encoding),
        cmocka_unit_test(test_phases_are_differences_of_stamps),
        cmocka_unit_test(test_no_memory_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
