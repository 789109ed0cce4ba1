/* Goal: a profile through CUPTI names every kernel of every replay, agrees with the nodes' own
 * stamps, and changes neither tokens nor the device's memory. Method: steps of a large shape with
 * random weights, as in bench; sessions around some of them. Stamps and records are of the same
 * steps. Prints the cost of a session, during and afterwards. */
#include "backend/cupti/cupti_api.h"
#include "base/clock.h"
#include "tests/gpu/step_bench_fixture.h"

#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(offsetof(CUpti_ActivityKernel10, start) == RP_CUPTI_AT_START, "start");
static_assert(offsetof(CUpti_ActivityKernel10, end) == RP_CUPTI_AT_END, "end");
static_assert(offsetof(CUpti_ActivityKernel10, graphNodeId) == RP_CUPTI_AT_GRAPH_NODE, "node");
static_assert(offsetof(CUpti_ActivityKernel10, graphId) == RP_CUPTI_AT_GRAPH, "graph");
static_assert(offsetof(CUpti_ActivityKernel9, graphId) == RP_CUPTI_AT_GRAPH, "12.9");
static_assert((int)CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL == RP_CUPTI_KIND_CONCURRENT_KERNEL,
              "kind");
static_assert((int)CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED == RP_CUPTI_MULTIPLE_SUBSCRIBERS,
              "busy");
static_assert(sizeof(CUpti_SubscriberParams) == sizeof(struct rp_cupti_subscriber_params),
              "parameters");

enum { STEPS = 40, SESSIONS = 20, LAUNCHES_MAX = 2048 };
#define AGREE_FROM_NS 3000.0

static int32_t tokens[2][STEPS];
static double stamp_ns[LAUNCHES_MAX], cupti_ns[LAUNCHES_MAX];

/* Adds the stamps of the step that was read last. */
static void add_stamps(void) {
    uint64_t end = 0;
    const struct rp_node_stamp *stamps =
        at.view.stamp_ring + at.step % RP_STEP_RING_ENTRIES * at.view.config.stamp_capacity;
    for (uint32_t i = 0; i < rp_graph_set_entry(at.graphs, 0)->launches; i++) {
        uint64_t begin = RP_MAX(stamps[i].begin_ns, end);
        stamp_ns[i] += stamps[i].end_ns > begin ? (double)(stamps[i].end_ns - begin) / STEPS : 0;
        end = RP_MAX(end, stamps[i].end_ns);
    }
}

/* ns per step, the mean of `count`. */
static double run_steps(uint32_t count, int32_t *out_tokens) {
    uint64_t begin = rp_clock_ns();
    struct rp_error err = {0};
    for (uint32_t i = 0; i < count; i++) {
        struct step_stamps when;
        rp_step_case_write(&at);
        assert_int_equal(rp_step_case_launch(&at), RP_OK);
        assert_int_equal(rp_step_case_wait(&at, at.step, &err), RP_OK);
        assert_int_equal(rp_step_case_read(&at, at.step, &when, &err), RP_OK);
        unsigned char *entry =
            at.view.results + at.step % RP_STEP_RING_ENTRIES * at.view.result_bytes;
        if (config.stamp_every)
            add_stamps();
        if (out_tokens)
            out_tokens[i] = rp_result_rows(entry)[0].token;
    }
    return (double)(rp_clock_ns() - begin) / count;
}

static struct rp_profile *open_profile(void) {
    struct rp_error err = {0};
    struct rp_profile *profile;
    int status = bench.backend->profiler->open(bench.device, 100000, &profile, &err);
    if (status == RP_STATUS_NOT_FOUND) {
        printf("%s\n", err.text);
        skip();
    }
    if (status != RP_OK)
        fail_msg("%s", err.text);
    return profile;
}

/* Runs `count` steps inside a session; returns ns per step. */
static double run_session(uint32_t count, struct rp_profile **out_profile, int32_t *out_tokens) {
    struct rp_error err = {0};
    struct rp_profile *profile = open_profile();
    assert_int_equal(bench.backend->synchronize(bench.device), RP_OK);
    if (bench.backend->profiler->begin(profile, &err) != RP_OK)
        fail_msg("%s", err.text);
    double ns = run_steps(count, out_tokens);
    if (bench.backend->profiler->end(profile, &err) != RP_OK)
        fail_msg("%s", err.text);
    *out_profile = profile;
    return ns;
}

static uint32_t launch_index(const struct rp_kernel_record *record) {
    const struct rp_graph_entry *entry = rp_graph_set_entry(at.graphs, 0);
    return record->launch +
           (record->graph == entry->sample ? bench.backend->graph_launch_count(entry->forward) : 0);
}

static const char *kernel_of(uint32_t node) {
    const struct rp_graph_entry *entry = rp_graph_set_entry(at.graphs, 0);
    uint32_t forward = bench.backend->graph_launch_count(entry->forward);
    struct rp_launch_info info;
    bench.backend->graph_launch_info(node < forward ? entry->forward : entry->sample,
                                     node < forward ? node : node - forward, &info);
    return info.kernel;
}

/* Self times of launches from their records, means over all replays. */
static void sum_records(const struct rp_profile_records *records) {
    uint64_t end = 0;
    memset(cupti_ns, 0, sizeof cupti_ns);
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_kernel_record *record = &records->records[i];
        uint64_t begin = RP_MAX(record->begin_ns, end);
        if (record->end_ns > begin)
            cupti_ns[launch_index(record)] +=
                (double)(record->end_ns - begin) * 2 / records->replays;
        end = RP_MAX(end, record->end_ns);
    }
}

static double apart_of(uint32_t node) {
    return cupti_ns[node] > stamp_ns[node] ? cupti_ns[node] - stamp_ns[node]
                                           : stamp_ns[node] - cupti_ns[node];
}

/* How many of the long nodes agree within a tenth; *out_large: how many there are, without a
 * step's two ends. */
static uint32_t count_agreeing(uint32_t launches, uint32_t *out_large) {
    uint32_t agree = 0;
    *out_large = 0;
    for (uint32_t i = 0; i < launches; i++) {
        bool agrees = apart_of(i) < 0.1 * stamp_ns[i];
        bool inner = i > 0 && i + 1 < launches;
        if (stamp_ns[i] < AGREE_FROM_NS)
            continue;
        *out_large += inner;
        agree += inner && agrees;
        if (!agrees)
            printf("  node %u, %s: stamps %.2f us, CUPTI %.2f us\n", i, kernel_of(i),
                   stamp_ns[i] * 1e-3, cupti_ns[i] * 1e-3);
    }
    return agree;
}

static void print_kernels(uint32_t launches) {
    struct {
        const char *name;
        double stamps, cupti;
        uint32_t count;
    } kernels[16] = {{0}};
    for (uint32_t i = 0; i < launches; i++) {
        uint32_t k = 0;
        while (kernels[k].name && strcmp(kernels[k].name, kernel_of(i)) != 0 && k < 15)
            k++;
        kernels[k].name = kernel_of(i);
        kernels[k].stamps += stamp_ns[i];
        kernels[k].cupti += cupti_ns[i];
        kernels[k].count++;
    }
    for (uint32_t k = 0; k < 16 && kernels[k].name; k++)
        printf("  %-20s %4u: stamps %8.2f us each, CUPTI %8.2f\n", kernels[k].name,
               kernels[k].count, kernels[k].stamps / kernels[k].count * 1e-3,
               kernels[k].cupti / kernels[k].count * 1e-3);
}

static void compare_with_stamps(uint32_t batch) {
    struct rp_profile_records records;
    struct rp_profile *profile;
    struct rp_error err = {0};
    open_case(batch, 1);
    uint32_t launches = rp_graph_set_entry(at.graphs, 0)->launches, large;
    double stamps = 0, cupti = 0;
    assert_true(launches < LAUNCHES_MAX);
    run_steps(10, NULL);
    memset(stamp_ns, 0, sizeof stamp_ns);
    run_session(STEPS, &profile, NULL);
    if (bench.backend->profiler->read(profile, &records, &err) != RP_OK)
        fail_msg("%s", err.text);
    assert_int_equal(records.replays, 2 * STEPS);
    assert_int_equal(records.count, STEPS * rp_graph_set_entry(at.graphs, 0)->kernels);
    assert_int_equal(records.without_time + records.outside + records.over + records.dropped +
                         records.unmatched,
                     0);
    sum_records(&records);
    for (uint32_t i = 0; i < launches; i++) {
        stamps += stamp_ns[i];
        cupti += cupti_ns[i];
    }
    uint32_t agree = count_agreeing(launches, &large);
    printf("%s, batch %u: stamps %.1f us a step, CUPTI %.1f us; of %u nodes above 3 us between "
           "its ends %u agree within 10%%\n",
           records.source, batch, stamps * 1e-3, cupti * 1e-3, large, agree);
    print_kernels(launches);
    bench.backend->profiler->close(profile);
    rp_step_case_close(&at);
    assert_true(cupti < 1.03 * stamps && cupti > 0.97 * stamps);
    assert_int_equal(agree, large);
    /* The ends: CUPTI counts the launch of the first kernel and the transfer of the result to the
     * host after the last instruction, too. How long those take is up to the bus. */
    assert_true(cupti_ns[0] > 0.9 * stamp_ns[0]);
    assert_true(cupti_ns[launches - 1] > 0.9 * stamp_ns[launches - 1]);
}

static void test_sessions_change_no_token_and_leave_memory_as_it_was(void **state) {
    (void)state;
    struct rp_profile *profile;
    open_case(8, 0);
    run_steps(20, NULL);
    run_steps(STEPS, tokens[0]);
    rp_step_case_close(&at);
    open_case(8, 0);
    run_steps(20, NULL);
    double before = run_steps(500, NULL), inside = 0;
    rp_step_case_close(&at);
    open_case(8, 0);
    run_steps(20, NULL);
    inside = run_session(STEPS, &profile, tokens[1]);
    bench.backend->profiler->close(profile);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    uint64_t free_after_first = free_memory();
    double after_first = run_steps(500, NULL);
    for (uint32_t i = 1; i < SESSIONS; i++) {
        struct rp_profile_records records;
        struct rp_error err = {0};
        inside = run_session(STEPS, &profile, NULL);
        assert_int_equal(bench.backend->profiler->read(profile, &records, &err), RP_OK);
        assert_int_equal(records.count, STEPS * rp_graph_set_entry(at.graphs, 0)->kernels);
        bench.backend->profiler->close(profile);
    }
    double after_all = run_steps(500, NULL);
    printf("us a step: before %.1f, in a session %.1f, after one %.1f, after %u %.1f; device "
           "memory %+lld KiB\n",
           before * 1e-3, inside * 1e-3, after_first * 1e-3, SESSIONS, after_all * 1e-3,
           ((long long)free_memory() - (long long)free_after_first) / 1024);
    assert_true(free_memory() + (4u << 20) >= free_after_first);
}

static void test_kernels_agree_with_their_stamps(void **state) {
    (void)state;
    compare_with_stamps(1);
    compare_with_stamps(8);
    compare_with_stamps(128);
}

RP_GPU_TEST_MAIN(set_up, tear_down,
                 cmocka_unit_test_teardown(test_sessions_change_no_token_and_leave_memory_as_it_was,
                                           close_case),
                 cmocka_unit_test_teardown(test_kernels_agree_with_their_stamps, close_case))
