/* Goal: counters that the machine does not provide are refused with the reason; others are read,
 * scaled, and their descriptors closed.
 * Method: an opener that fails like the kernel, and one whose descriptors are pipes that contain a
 * count. */
#include "metrics/perf_counters.h"

#include "base/json_writer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int answer;
static uint32_t opened;

static int refuse(enum rp_perf_event event, int32_t tid) {
    (void)event;
    (void)tid;
    return answer;
}

/* Counted half of the time; no branch misses. */
static int give(enum rp_perf_event event, int32_t tid) {
    const uint64_t values[3] = {1000 * ((uint64_t)event + 1), 200, 100};
    int ends[2];
    (void)tid;
    if (event == RP_PERF_BRANCH_MISSES)
        return -ENOENT;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], values, sizeof values), sizeof values);
    close(ends[1]);
    opened++;
    return ends[0];
}

static void test_a_refusal_has_its_reason(void **state) {
    (void)state;
    static const struct {
        int error;
        const char *says;
    } cases[] = {{-EACCES, "perf_event_paranoid is"},
                 {-EPERM, "may not count"},
                 {-ENOENT, "no such counters"},
                 {-EOPNOTSUPP, "no such counters"},
                 {-ENOSYS, "perf_event_open: "}};
    rp_perf_open = refuse;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_error err = {0};
        answer = cases[i].error;
        assert_int_equal(rp_perf_check(&err), RP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, cases[i].says));
        struct rp_perf_result result;
        rp_perf_measure(0, &result);
        assert_int_equal(result.count, 0);
    }
}

static void test_counts_are_scaled_and_written(void **state) {
    (void)state;
    struct rp_perf_result result;
    struct rp_buffer out = {.data = NULL};
    struct rp_json json;
    int before = dup(0);
    close(before);
    rp_perf_open = give;
    assert_int_equal(rp_perf_check(NULL), RP_OK);
    rp_perf_measure(0.001, &result);
    assert_true(result.count >= 1 && result.seconds >= 0.001 && opened >= 4);
    assert_int_equal(result.threads[0].counts[RP_PERF_CYCLES], 2000);
    assert_int_equal(result.threads[0].counts[RP_PERF_MISSES], 8000);
    assert_false(result.threads[0].has[RP_PERF_BRANCH_MISSES]);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_perf_write_json(&result, &json);
    rp_json_object_end(&json);
    rp_buffer_append(&out, "", 1);
    assert_non_null(strstr(out.data, "\"branch_misses\":null,\"ipc\":2,"));
    rp_buffer_deinit(&out);
    int after = dup(0);
    close(after);
    assert_int_equal(before, after); /* none is still open */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_has_its_reason),
        cmocka_unit_test(test_counts_are_scaled_and_written),
    };
    return cmocka_run_group_tests_name("perf_counters", tests, NULL, NULL);
}
