/* Goal: the GPU's hardware counters of a step agree with its known costs, counting changes neither
 * tokens nor memory, and a refusal by the driver has its reason. Method: steps of a large shape
 * with random weights, as in bench, while another thread counts. A decode step of one row reads
 * the weights once. Prints the cost of counting, during and afterwards. */
#include "base/clock.h"
#include "tests/gpu/step_bench_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 40, LATER = 4 };

static int32_t tokens[2][STEPS];

static struct counting {
    struct rp_device_counter_options options;
    struct rp_device_counters out;
    struct rp_error err;
    int status;
    atomic_bool done;
} counting;

static double longest_ns; /* steps since it was 0 */

static void run_step(int32_t *out_token) {
    uint64_t begin = rp_clock_ns();
    struct rp_error err = {0};
    struct step_stamps when;
    rp_step_case_write(&at);
    assert_int_equal(rp_step_case_launch(&at), RP_OK);
    assert_int_equal(rp_step_case_wait(&at, at.step, &err), RP_OK);
    if (rp_step_case_read(&at, at.step, &when, &err) != RP_OK)
        fail_msg("%s", err.text);
    unsigned char *entry = at.view.results + at.step % RP_STEP_RING_ENTRIES * at.view.result_bytes;
    if (out_token)
        *out_token = rp_result_rows(entry)[0].token;
    longest_ns = RP_MAX(longest_ns, (double)(rp_clock_ns() - begin));
}

/* ns of a step. */
static double run_steps(uint32_t count, int32_t *out_tokens) {
    uint64_t begin = rp_clock_ns();
    for (uint32_t i = 0; i < count; i++)
        run_step(out_tokens ? &out_tokens[i] : NULL);
    return (double)(rp_clock_ns() - begin) / count;
}

static void *count_on_a_thread(void *unused) {
    (void)unused;
    counting.status = bench.backend->counting->measure(bench.device, &counting.options,
                                                       &counting.out, &counting.err);
    counting.done = true;
    return NULL;
}

/* Runs steps until the counting is over, stores the first STEPS tokens; returns ns per step. A
 * refusal skips the test. */
static double run_counted(double seconds, uint32_t interval_us, int32_t *out_tokens) {
    pthread_t thread;
    uint32_t steps = 0;
    uint64_t begin = rp_clock_ns();
    memset(&counting, 0, sizeof counting);
    counting.options = (struct rp_device_counter_options){seconds, interval_us};
    assert_int_equal(pthread_create(&thread, NULL, count_on_a_thread, NULL), 0);
    for (; !counting.done || steps < STEPS; steps++)
        run_step(out_tokens && steps < STEPS ? &out_tokens[steps] : NULL);
    double ns = (double)(rp_clock_ns() - begin) / steps;
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (counting.status == RP_STATUS_NOT_FOUND || counting.status == RP_STATUS_UNSUPPORTED) {
        printf("not counted: %s: %s\n", counting.err.text, counting.err.hint);
        assert_true(counting.err.text[0]);
        rp_step_case_close(&at);
        skip();
    }
    if (counting.status != RP_OK)
        fail_msg("%s", counting.err.text);
    return ns;
}

static double mean_of(const char *name) {
    for (uint32_t i = 0; i < counting.out.count; i++)
        if (strcmp(counting.out.counters[i].name, name) == 0)
            return counting.out.counters[i].mean;
    fail_msg("no %s", name);
    return 0;
}

static void print_counters(void) {
    const struct rp_device_counters *out = &counting.out;
    printf("  %s, %s: %u samples of %u us in %.3f s (%.3f covered), %u missing%s; up %.0f ms, "
           "down %.0f ms, processor %.0f ms; %llu KiB of images\n",
           out->source, out->chip, out->samples, out->interval_us, out->seconds,
           out->covered_seconds, out->missing, out->overflowed ? ", OVERFLOWED" : "",
           out->setup_seconds * 1e3, out->teardown_seconds * 1e3, out->cpu_seconds * 1e3,
           (unsigned long long)out->host_bytes / 1024);
    for (uint32_t i = 0; i < out->count; i++) {
        const struct rp_device_counter *c = &out->counters[i];
        printf("  %-18s %6u  mean %14.3f p50 %14.3f p99 %14.3f max %14.3f %s %s\n", c->name,
               c->samples, c->mean, c->p50, c->p99, c->max, c->unit, c->why);
    }
}

static void test_counting_changes_no_token_and_leaves_memory_as_it_was(void **state) {
    (void)state;
    open_case(8, 0);
    run_steps(20, NULL);
    run_steps(STEPS, tokens[0]);
    rp_step_case_close(&at);
    open_case(8, 0);
    run_steps(20, NULL);
    longest_ns = 0;
    double before = run_steps(800, NULL), longest_before = longest_ns;
    rp_step_case_close(&at);
    open_case(8, 0);
    run_steps(20, NULL);
    longest_ns = 0;
    double inside = run_counted(0.3, 1000, tokens[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    printf("longest step: %.2f ms before, %.2f ms while counting\n", longest_before * 1e-6,
           longest_ns * 1e-6);
    uint64_t free_after_first = free_memory();
    double after_first = run_steps(800, NULL);
    for (uint32_t i = 0; i < LATER; i++)
        inside = run_counted(0.1, 1000, NULL);
    double after_all = run_steps(800, NULL);
    printf("us a step: before %.1f, while counting %.1f, after one %.1f, after %u %.1f; device "
           "memory %+lld KiB\n",
           before * 1e-3, inside * 1e-3, after_first * 1e-3, LATER + 1, after_all * 1e-3,
           ((long long)free_memory() - (long long)free_after_first) / 1024);
    assert_true(free_memory() + (4u << 20) >= free_after_first);
}

static void test_a_step_of_one_row_reads_the_weights(void **state) {
    (void)state;
    const double weights = 2.0 * 1.235e9; /* bytes of llama-3.2-1b: its tied embedding once */
    open_case(1, 0);
    run_steps(50, NULL);
    double ns = run_steps(400, NULL);
    run_counted(1.0, 1000, NULL);
    print_counters();
    double expected = weights / ns * 1e9, read = mean_of("dram_read_bytes");
    printf("  weights / step: %.0f GB/s; counted: %.0f GB/s\n", expected * 1e-9, read * 1e-9);
    assert_true(counting.out.samples > 900 && counting.out.samples < 1100);
    assert_true(counting.out.missing < 20 && !counting.out.overflowed);
    assert_true(read > 0.9 * expected && read < 1.2 * expected);
    assert_true(mean_of("sm_active") > 40 && mean_of("sm_active") <= 100.5);
    assert_true(mean_of("dram_read") > 20 && mean_of("dram_read") <= 101);
    assert_true(mean_of("dram_write_bytes") < read);
}

static void test_a_wide_step_uses_the_tensor_pipes_more(void **state) {
    (void)state;
    open_case(1, 0);
    run_counted(0.3, 1000, NULL);
    double narrow = mean_of("tensor_active");
    rp_step_case_close(&at);
    open_case(128, 0);
    run_steps(50, NULL);
    run_counted(0.3, 100, NULL);
    print_counters();
    printf("  tensor pipes: %.2f %% at 1 row, %.2f %% at 128\n", narrow, mean_of("tensor_active"));
    assert_true(mean_of("tensor_active") > narrow);
    assert_true(counting.out.samples > 2500);
}

/* Graphs of other sizes store sums where these have counters, if both share scratch memory. */
static void test_graphs_of_other_sizes_before_change_no_token(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        open_case(8, 0);
        run_steps(STEPS, tokens[i]);
        rp_step_case_close(&at);
        open_case(128, 0);
        run_steps(20, NULL);
        rp_step_case_close(&at);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
}

/* Both use CUPTI: run one after the other they do not disturb each other. */
static void test_kernel_records_and_counters_take_turns(void **state) {
    (void)state;
    open_case(8, 0);
    run_steps(20, NULL);
    for (int i = 0; i < 2; i++) {
        struct rp_profile_records records;
        struct rp_profile *profile;
        struct rp_error err = {0};
        run_counted(0.1, 1000, NULL);
        assert_true(counting.out.samples > 90 && mean_of("sm_active") > 20);
        if (bench.backend->profiler->open(bench.device, 100000, &profile, &err) != RP_OK)
            fail_msg("%s", err.text);
        struct rp_device_counter_options options = {0.05, 0};
        assert_int_equal(
            bench.backend->counting->measure(bench.device, &options, &counting.out, &err),
            RP_STATUS_IN_USE);
        assert_int_equal(bench.backend->synchronize(bench.device), RP_OK);
        if (bench.backend->profiler->begin(profile, &err) != RP_OK)
            fail_msg("%s", err.text);
        run_steps(STEPS, NULL);
        if (bench.backend->profiler->end(profile, &err) != RP_OK)
            fail_msg("%s", err.text);
        assert_int_equal(bench.backend->profiler->read(profile, &records, &err), RP_OK);
        assert_int_equal(records.count, STEPS * rp_graph_set_entry(at.graphs, 0)->kernels);
        bench.backend->profiler->close(profile);
    }
    printf("us a step behind both: %.1f\n", run_steps(800, NULL) * 1e-3);
}

RP_GPU_TEST_MAIN(
    set_up, tear_down,
    cmocka_unit_test_teardown(test_graphs_of_other_sizes_before_change_no_token, close_case),
    cmocka_unit_test_teardown(test_counting_changes_no_token_and_leaves_memory_as_it_was,
                              close_case),
    cmocka_unit_test_teardown(test_a_step_of_one_row_reads_the_weights, close_case),
    cmocka_unit_test_teardown(test_a_wide_step_uses_the_tensor_pipes_more, close_case),
    cmocka_unit_test_teardown(test_kernel_records_and_counters_take_turns, close_case))
