/* Goal: a session stores kernel records, counts invalid ones, and reports why it cannot begin.
 * Method: a fake library (tests/support/fake_cupti.c) records what the test launches and fails on
 * demand. */
#include "backend/cupti/cupti_match.h"
#include "base/clock.h"
#include "base/memory.h"
#include "tests/support/fake_cupti.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void *library;
static struct fake_cupti *fake;
static fake_cupti_kernel_fn put;
static struct rp_cupti_session *session;
static struct rp_error err;

static int set_up(void **state) {
    const char *path = getenv("REPRISE_FAKE_CUPTI");
    (void)state;
    library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        return -1;
    fake = dlsym(library, "fake_cupti_state");
    *(void **)&put = dlsym(library, "fake_cupti_kernel");
    memset(fake, 0, sizeof *fake);
    fake->version = 130001;
    return fake && put ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    rp_cupti_close(session);
    session = NULL;
    return 0; /* the library stays open: buffers may still be returned */
}

static void open_session(uint32_t records_max) {
    assert_int_equal(rp_cupti_open(library, records_max, &session, &err), RP_OK);
}

static void begin(void) { assert_int_equal(rp_cupti_begin(session, &err), RP_OK); }

static const struct rp_cupti_kernel *end(uint32_t *count, struct rp_cupti_counts *counts) {
    assert_int_equal(rp_cupti_end(session, &err), RP_OK);
    return rp_cupti_read(session, count, counts);
}

/* A replay of `kernels` consecutive nodes, from *at on. */
static void replay(uint32_t graph, uint64_t first_node, uint32_t kernels, uint64_t *at) {
    for (uint32_t i = 0; i < kernels; i++, *at += 10)
        put(graph, first_node + i, *at, *at + 8);
}

static void test_records_come_back_sorted_with_graph_and_node(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    open_session(0);
    begin();
    put(5, 102, 2000, 2100);
    put(5, 101, 1000, 1100);
    put(0, 0, 1500, 1600); /* outside graphs */
    const struct rp_cupti_kernel *kernels = end(&count, &counts);
    assert_int_equal(count, 2);
    assert_true(kernels[0].begin_ns == 1000 && kernels[0].end_ns == 1100);
    assert_true(kernels[0].node == 101 && kernels[0].graph == 5 && kernels[1].node == 102);
    assert_int_equal(counts.outside, 1);
    assert_int_equal(counts.without_time + counts.over + counts.dropped, 0);
    assert_int_equal(fake->subscribed + fake->unsubscribed + fake->enabled + fake->disabled, 4);
    assert_int_equal(fake->finalized, 0);
}

static void test_more_than_all_buffers_hold_comes_through(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    open_session(300000);
    begin();
    for (uint32_t i = 0; i < 200000; i++) /* 43 MB, of buffers of 32 */
        put(1, 1 + i % 100, 1000 + i * 10, 1008 + i * 10);
    const struct rp_cupti_kernel *kernels = end(&count, &counts);
    assert_int_equal(count, 200000);
    for (uint32_t i = 0; i < count; i++)
        assert_true(kernels[i].begin_ns == 1000 + i * 10 && kernels[i].node == 1 + i % 100);
}

static void test_zero_times_are_counted_and_never_kept(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    open_session(0);
    begin();
    put(1, 1, 1000, 1100);
    put(1, 2, 0, 0);
    put(1, 3, 1300, 1200); /* ends before it begins */
    end(&count, &counts);
    assert_int_equal(count, 1);
    assert_int_equal(counts.without_time, 2);
}

static void test_a_full_session_is_due_and_counts_what_it_leaves_out(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    uint64_t at = 1000;
    open_session(16);
    begin();
    assert_false(rp_cupti_is_due(session, rp_clock_ns()));
    replay(1, 1, 20000, &at); /* more than a buffer holds */
    assert_true(rp_cupti_is_due(session, rp_clock_ns()));
    end(&count, &counts);
    assert_int_equal(count, 16);
    assert_int_equal(counts.over, 19984);
}

static void test_a_session_is_due_at_its_caps(void **state) {
    (void)state;
    open_session(2);
    assert_false(rp_cupti_is_due(session, UINT64_MAX));
    begin();
    assert_true(rp_cupti_is_due(session, UINT64_MAX));
    assert_int_equal(rp_cupti_end(session, &err), RP_OK);
    assert_false(rp_cupti_is_due(session, UINT64_MAX));
}

static void test_dropped_records_are_told(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    fake->dropped = 77;
    open_session(0);
    begin();
    end(&count, &counts);
    assert_int_equal(counts.dropped, 77);
}

static void test_another_subscriber_is_named(void **state) {
    (void)state;
    fake->other_subscriber = "nsys";
    open_session(0);
    assert_int_equal(rp_cupti_begin(session, &err), RP_STATUS_IN_USE);
    assert_non_null(strstr(err.text, "nsys"));
    assert_int_equal(fake->enabled, 0);
}

static void test_a_refusal_leaves_nothing_switched_on(void **state) {
    (void)state;
    fake->enable_result = 35;
    open_session(0);
    assert_int_equal(rp_cupti_begin(session, &err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "INSUFFICIENT_PRIVILEGES"));
    assert_int_equal(fake->subscribed, 1);
    assert_int_equal(fake->unsubscribed, 1);
}

static void test_versions_that_are_not_known_are_refused(void **state) {
    (void)state;
    const uint32_t versions[] = {0, 18, 26, 140000, 200000};
    for (size_t i = 0; i < RP_ARRAY_COUNT(versions); i++) {
        fake->version = versions[i];
        assert_int_equal(rp_cupti_open(library, 0, &session, &err), RP_STATUS_UNSUPPORTED);
        assert_null(session);
    }
    fake->version = 27;
    open_session(0);
    assert_int_equal(rp_cupti_version(session), 27);
}

static void test_a_library_without_the_functions_is_refused(void **state) {
    (void)state;
    void *other = dlopen(NULL, RTLD_NOW);
    assert_int_equal(rp_cupti_open(other, 0, &session, &err), RP_STATUS_UNSUPPORTED);
    dlclose(other);
}

static void test_one_session_at_a_time(void **state) {
    (void)state;
    struct rp_cupti_session *second;
    open_session(0);
    assert_int_equal(rp_cupti_open(library, 0, &second, &err), RP_STATUS_IN_USE);
    assert_null(second);
}

static void test_a_lying_library_is_survived(void **state) {
    (void)state;
    uint32_t count;
    struct rp_cupti_counts counts;
    uint64_t at = 1000;
    fake->foreign_buffer = fake->torn_record = true;
    fake->flush_result = 999;
    open_session(0);
    begin();
    replay(1, 1, 3, &at);
    assert_int_equal(rp_cupti_end(session, &err), RP_STATUS_DEVICE);
    rp_cupti_read(session, &count, &counts);
    assert_int_equal(count, 2); /* not the torn one */
}

static void test_buffers_that_come_back_late_are_free_again(void **state) {
    (void)state;
    fake_cupti_late_fn late;
    *(void **)&late = dlsym(library, "fake_cupti_late");
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t count;
        struct rp_cupti_counts counts;
        uint64_t at = 1000;
        open_session(100);
        begin();
        replay(1, 1, 5, &at);
        end(&count, &counts);
        assert_int_equal(count, 5);
        assert_int_equal(counts.dropped, 0);
        rp_cupti_close(session);
        session = NULL;
        late();
    }
}

static void test_no_memory_is_told_and_leaves_the_place_free(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        rp_alloc_fail_at(n);
        assert_int_equal(rp_cupti_open(library, 0, &session, &err), RP_STATUS_NO_MEMORY);
        rp_alloc_fail_at(0);
    }
    open_session(0);
}

/* ---- nodes and replays of records ----------------------------------------------------------- */

enum { FORWARD = 0, SAMPLE = 1, OTHER = 2 };
static const uint32_t graph_kernels[] = {30, 4, 12};

static struct rp_cupti_match matches[4096];

static uint32_t match(const uint32_t *replays, uint32_t replay_count, uint32_t *count,
                      int *status) {
    struct rp_cupti_counts counts;
    uint32_t unmatched;
    const struct rp_cupti_kernel *kernels = end(count, &counts);
    struct rp_cupti_matching from = {kernels, *count, graph_kernels, 3, replays, replay_count};
    *status = rp_cupti_match(&from, matches, &unmatched);
    return unmatched;
}

static void test_kernels_are_told_by_graph_and_order(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD, SAMPLE, OTHER, SAMPLE, FORWARD, SAMPLE};
    uint32_t count;
    int status;
    for (uint32_t round = 0; round < 2; round++) {
        uint64_t at = 1000;
        fake->wrong_correlation = round == 1;
        open_session(0);
        begin();
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(replays); i++) {
            uint32_t graph = replays[i];
            replay(70 + graph, 1000 * graph + 5, graph_kernels[graph], &at);
        }
        uint32_t unmatched = match(replays, RP_ARRAY_COUNT(replays), &count, &status);
        assert_int_equal(status, RP_OK);
        assert_int_equal(unmatched, 0);
        for (uint32_t i = 0, record = 0; i < RP_ARRAY_COUNT(replays); i++)
            for (uint32_t k = 0; k < graph_kernels[replays[i]]; k++, record++)
                assert_true(matches[record].replay == i && matches[record].graph == replays[i] &&
                            matches[record].kernel == k);
        rp_cupti_close(session);
        session = NULL;
    }
}

static void test_neighbors_may_begin_in_either_order(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD, FORWARD};
    uint32_t count;
    int status;
    open_session(0);
    begin();
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 30; k++) {
            uint32_t node = k % 7 == 3 ? k + 1 : k % 7 == 4 ? k - 1 : k;
            put(9, 100 + node, 1000 + i * 1000 + k * 10, 1008 + i * 1000 + k * 10);
        }
    assert_int_equal(match(replays, 2, &count, &status), 0);
    assert_int_equal(status, RP_OK);
    for (uint32_t i = 0; i < count; i++)
        assert_true(matches[i].replay == i / 30);
    assert_int_equal(matches[3].kernel, 4);
    assert_int_equal(matches[4].kernel, 3);
}

/* Three layers of ten kernels; of each, 2 to 5 are one branch and 6 to 9 the other. */
static void test_kernels_of_two_branches_may_take_turns(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD, FORWARD}, order[] = {0, 1, 2, 6, 3, 7, 4, 8, 5, 9};
    uint32_t count;
    int status;
    open_session(0);
    begin();
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 30; k++)
            put(9, 100 + k / 10 * 10 + order[k % 10], 1000 + i * 1000 + k * 10,
                1008 + i * 1000 + k * 10);
    assert_int_equal(match(replays, 2, &count, &status), 0);
    assert_int_equal(status, RP_OK);
    for (uint32_t i = 0; i < count; i++)
        assert_true(matches[i].replay == i / 30 &&
                    matches[i].kernel == i % 30 / 10 * 10 + order[i % 10]);
}

static void test_where_records_are_missing_graphs_are_told_by_size(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD, SAMPLE, FORWARD, SAMPLE, FORWARD, SAMPLE};
    uint32_t count;
    int status;
    uint64_t at = 1000;
    open_session(0);
    begin();
    replay(3, 100, 30, &at);
    replay(4, 900, 4, &at);
    for (uint32_t k = 0; k < 30; k++, at += 10) /* the second one is torn */
        if (k < 2 || k > 11)
            put(3, 100 + k, at, at + 8);
    replay(3, 100, 30, &at); /* the SAMPLE between was dropped */
    assert_int_equal(match(replays, 6, &count, &status), 0);
    assert_int_equal(status, RP_OK);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(matches[i].replay, UINT32_MAX);
        assert_int_equal(matches[i].graph, i >= 30 && i < 34 ? SAMPLE : FORWARD);
    }
    assert_int_equal(matches[34 + 2].kernel, 12);
}

static void test_what_is_in_doubt_is_left_out(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD};
    uint32_t count;
    int status;
    uint64_t at = 1000;
    open_session(0);
    begin();
    replay(3, 100, 29, &at); /* a node without any record */
    assert_int_equal(match(replays, 1, &count, &status), 29);
    assert_int_equal(status, RP_OK);
    assert_int_equal(matches[0].graph, UINT32_MAX);
}

static void test_nodes_out_of_order_are_refused(void **state) {
    (void)state;
    static const uint32_t replays[] = {FORWARD};
    uint32_t count;
    int status;
    open_session(0);
    begin();
    for (uint32_t k = 0; k < 30; k++)
        put(3, 100 + (k * 7) % 30, 1000 + k * 10, 1008 + k * 10);
    match(replays, 1, &count, &status);
    assert_int_equal(status, RP_STATUS_FORMAT);
}

static void test_an_empty_session_matches_nothing(void **state) {
    (void)state;
    uint32_t count;
    int status;
    open_session(0);
    begin();
    assert_int_equal(match(NULL, 0, &count, &status), 0);
    assert_int_equal(status, RP_OK);
    assert_int_equal(count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(test_records_come_back_sorted_with_graph_and_node),
        TEST(test_more_than_all_buffers_hold_comes_through),
        TEST(test_zero_times_are_counted_and_never_kept),
        TEST(test_a_full_session_is_due_and_counts_what_it_leaves_out),
        TEST(test_a_session_is_due_at_its_caps),
        TEST(test_dropped_records_are_told),
        TEST(test_another_subscriber_is_named),
        TEST(test_a_refusal_leaves_nothing_switched_on),
        TEST(test_versions_that_are_not_known_are_refused),
        TEST(test_a_library_without_the_functions_is_refused),
        TEST(test_one_session_at_a_time),
        TEST(test_a_lying_library_is_survived),
        TEST(test_buffers_that_come_back_late_are_free_again),
        TEST(test_no_memory_is_told_and_leaves_the_place_free),
        TEST(test_kernels_are_told_by_graph_and_order),
        TEST(test_neighbors_may_begin_in_either_order),
        TEST(test_kernels_of_two_branches_may_take_turns),
        TEST(test_where_records_are_missing_graphs_are_told_by_size),
        TEST(test_what_is_in_doubt_is_left_out),
        TEST(test_nodes_out_of_order_are_refused),
        TEST(test_an_empty_session_matches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
