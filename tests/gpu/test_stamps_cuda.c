/* Goal: a stamped step records the begin and end of each node, and nothing else changes.
 * Method: steps of a large shape with random weights, as in bench (bench/step_internal.h): rows,
 * tiles of every width, prompts. One step at a time, so that a step is between two publications.
 * The same steps run with and without stamps: tokens, slots and all pages must have equal bits. */
#include "base/memory.h"
#include "bench/random_pattern.h"
#include "bench/step_internal.h"
#include "engine/weights_on_device.h"
#include "tests/support/gpu_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, TICK_NS = 64, PUBLISHING_NS = 10000, LAUNCHES_MAX = 2048 };
#define POISON 0xA5

static struct step_bench bench;
static struct rp_bench_step_config config;
static struct step_case at;

static bool is_tiny(void) { return getenv("REPRISE_TEST_TINY") != NULL; }

static void open_device(bool fast) {
    struct rp_device_config device = {.fast_numerics = fast};
    struct rp_model_config shape;
    assert_int_equal(rp_backend_cuda_table()->open(&device, &bench.device, NULL), RP_OK);
    bench.backend = rp_backend_cuda_table();
    bench.config = &config;
    bench.backend->info(bench.device, &bench.info);
    bench.pattern = rp_random_pattern();
    assert_non_null(bench.pattern);
    assert_int_equal(rp_model_shape("llama-3.2-1b", &shape, NULL), RP_OK);
    if (is_tiny())
        shape.layers = 2;
    assert_int_equal(rp_model_random_vectors(&shape, RP_DTYPE_BF16, 1, 2048, &bench.model, NULL),
                     RP_OK);
    assert_int_equal(rp_weights_prepare(bench.backend, bench.device, &bench.model, &bench.prepared,
                                        NULL, NULL, NULL),
                     RP_OK);
}

static void close_device(void) {
    if (at.bench)
        rp_step_case_close(&at);
    if (!bench.device)
        return;
    rp_weights_release(bench.backend, bench.device, &bench.model, bench.prepared);
    rp_model_deinit(&bench.model);
    rp_free_aligned(bench.pattern);
    bench.backend->close(bench.device);
    memset(&bench, 0, sizeof bench);
}

static int tear_down(void **state) {
    (void)state;
    close_device();
    return 0;
}

static void open_case(uint32_t batch, uint32_t context, bool prompt, uint32_t stamp_every) {
    config = (struct rp_bench_step_config){
        .kv_dtype = RP_DTYPE_BF16, .prompt = prompt, .stamp_every = stamp_every};
    struct rp_error err = {0};
    if (rp_step_case_open(&bench, batch, context, &at, &err) != RP_OK)
        fail_msg("%s", err.text);
}

static size_t stamp_bytes(void) {
    return at.view.config.stamp_capacity * sizeof(struct rp_node_stamp);
}

static void poison_stamps(void) {
    assert_int_equal(bench.backend->fill(bench.device, at.view.stamps, POISON, stamp_bytes()),
                     RP_OK);
    assert_int_equal(bench.backend->synchronize(bench.device), RP_OK);
    memset(at.view.stamp_ring, POISON, RP_STEP_RING_ENTRIES * stamp_bytes());
}

static bool is_poison(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)data)[i] != POISON)
            return false;
    return true;
}

static struct step_stamps run_step(void) {
    struct step_stamps when;
    struct rp_error err = {0};
    rp_step_case_write(&at);
    assert_int_equal(rp_step_case_launch(&at), RP_OK);
    assert_int_equal(rp_step_case_wait(&at, at.step, &err), RP_OK);
    if (rp_step_case_read(&at, at.step, &when, &err) != RP_OK)
        fail_msg("%s", err.text);
    return when;
}

static const struct rp_node_stamp *stamps_of(uint64_t step) {
    return at.view.stamp_ring + step % RP_STEP_RING_ENTRIES * at.view.config.stamp_capacity;
}

static uint32_t launches(void) { return rp_graph_set_entry(at.graphs, 0)->launches; }

static const char *kernel_of(uint32_t node) {
    const struct rp_graph_entry *entry = rp_graph_set_entry(at.graphs, 0);
    uint32_t forward = bench.backend->graph_launch_count(entry->forward);
    struct rp_launch_info info;
    bench.backend->graph_launch_info(node < forward ? entry->forward : entry->sample,
                                     node < forward ? node : node - forward, &info);
    return info.kernel;
}

/* Between the preceding step's publication and its own; each node after its predecessor. SAMPLE
 * ends when its result has reached host memory; the step's own end is written before that. */
static void check_order(const struct rp_node_stamp *stamps, uint64_t before,
                        struct step_stamps when) {
    uint64_t begin = before, end = before;
    for (uint32_t i = 0; i < launches(); i++) {
        if (stamps[i].begin_ns > stamps[i].end_ns || stamps[i].begin_ns + TICK_NS < begin ||
            stamps[i].end_ns + TICK_NS < end || stamps[i].end_ns > when.end_ns + PUBLISHING_NS)
            fail_msg("node %u (%s): from %lld to %lld ns of a step of %llu ns", i, kernel_of(i),
                     (long long)(stamps[i].begin_ns - when.begin_ns),
                     (long long)(stamps[i].end_ns - when.begin_ns),
                     (unsigned long long)(when.end_ns - when.begin_ns));
        begin = RP_MAX(begin, stamps[i].begin_ns);
        end = RP_MAX(end, stamps[i].end_ns);
    }
}

static void check_times(uint32_t batch, uint32_t context, bool prompt) {
    double own = 0, run = 0;
    open_case(batch, context, prompt, 1);
    uint64_t before = run_step().end_ns;
    for (uint32_t i = 0; i < STEPS; i++) {
        memset(&at.nodes, 0, sizeof at.nodes);
        struct step_stamps when = run_step();
        check_order(stamps_of(at.step), before, when);
        own += (double)at.nodes.own_ns;
        run += (double)(when.end_ns - when.begin_ns);
        before = when.end_ns;
    }
    printf("batch %u, context %u: nodes %.1f us of %.1f us a step (%.2f%%), %u launches\n", batch,
           context, own / STEPS * 1e-3, run / STEPS * 1e-3, 100 * own / run, launches());
    assert_true(own > 0.97 * run && own < 1.03 * run);
    rp_step_case_close(&at);
}

static void test_nodes_follow_one_another_and_fill_the_step(void **state) {
    (void)state;
    open_device(false);
    check_times(1, 512, false);
    check_times(8, 512, false);
    if (is_tiny())
        return;
    check_times(40, 512, false);
    check_times(128, 512, false);
    check_times(320, 64, false);
    check_times(1, 400, true);
    check_times(1, 1500, true);
}

/* Each step stores begins; only stamped ones store ends and the host's copy. */
static void test_a_step_without_the_bit_stores_no_end_and_hands_nothing_over(void **state) {
    (void)state;
    struct rp_node_stamp *copy = rp_alloc(sizeof *copy * LAUNCHES_MAX);
    open_device(false);
    open_case(8, 512, false, 0);
    assert_true(copy && at.view.config.stamp_capacity <= LAUNCHES_MAX);
    poison_stamps();
    for (uint32_t i = 0; i < 6; i++)
        run_step();
    assert_int_equal(bench.backend->copy(bench.device, copy, at.view.stamps, stamp_bytes()), RP_OK);
    assert_int_equal(bench.backend->synchronize(bench.device), RP_OK);
    for (uint32_t i = 0; i < at.view.config.stamp_capacity; i++)
        assert_true(is_poison(&copy[i].end_ns, sizeof copy[i].end_ns));
    assert_true(is_poison(copy + launches(), stamp_bytes() - launches() * sizeof *copy));
    assert_true(is_poison(at.view.stamp_ring, RP_STEP_RING_ENTRIES * stamp_bytes()));
    rp_free(copy);
}

static void test_stamps_are_only_in_their_steps_entry(void **state) {
    (void)state;
    open_device(false);
    open_case(8, 512, false, 3);
    poison_stamps();
    for (uint32_t i = 1; i <= 3; i++)
        run_step();
    size_t used = launches() * sizeof(struct rp_node_stamp);
    assert_true(is_poison(stamps_of(1), stamp_bytes()) && is_poison(stamps_of(2), stamp_bytes()));
    assert_true(is_poison(stamps_of(4), stamp_bytes()));
    assert_true(!is_poison(stamps_of(3), used));
    assert_true(is_poison((const unsigned char *)stamps_of(3) + used, stamp_bytes() - used));
}

/* Slots, tokens and pages after some steps. */
static unsigned char *run_to_state(uint32_t batch, uint32_t context, bool prompt,
                                   uint32_t stamp_every, size_t *out_bytes) {
    open_case(batch, context, prompt, stamp_every);
    for (uint32_t i = 0; i < 12; i++)
        run_step();
    uint32_t pages = RP_CEIL_DIV(prompt ? context : context + STEP_REWIND, bench.info.page_tokens);
    size_t page_bytes = (1 + (size_t)batch * pages) * at.kv.page_stride;
    size_t slot_bytes = (size_t)at.view.config.slot_count * at.view.slot_words * 4;
    unsigned char *out = rp_alloc(page_bytes + slot_bytes);
    assert_non_null(out);
    assert_int_equal(bench.backend->copy(bench.device, out, at.pages, page_bytes), RP_OK);
    assert_int_equal(bench.backend->copy(bench.device, out + page_bytes, at.view.slots, slot_bytes),
                     RP_OK);
    assert_int_equal(bench.backend->synchronize(bench.device), RP_OK);
    rp_step_case_close(&at);
    *out_bytes = page_bytes + slot_bytes;
    return out;
}

static void check_bits(uint32_t batch, uint32_t context, bool prompt) {
    size_t bytes, others;
    unsigned char *plain = run_to_state(batch, context, prompt, 0, &bytes);
    unsigned char *stamped = run_to_state(batch, context, prompt, 1, &others);
    assert_int_equal(bytes, others);
    assert_memory_equal(plain, stamped, bytes);
    rp_free(plain);
    rp_free(stamped);
}

static void test_stamping_changes_no_bit(void **state) {
    (void)state;
    open_device(false);
    check_bits(1, 200, false);
    check_bits(8, 200, false);
    if (is_tiny())
        return;
    check_bits(72, 100, false);
    check_bits(1, 300, true);
}

static void test_all_but_the_gemms_of_a_library_are_stamped_under_fast_numerics(void **state) {
    (void)state;
    if (is_tiny())
        skip();
    open_device(true);
    open_case(128, 128, false, 1);
    uint32_t library = 0, taken = 0;
    for (uint32_t i = 0; i < 3; i++)
        run_step();
    const struct rp_node_stamp *stamps = stamps_of(at.step);
    for (uint32_t i = 0; i < launches(); i++) {
        bool is_taken = stamps[i].begin_ns <= stamps[i].end_ns;
        bool is_library = strncmp(kernel_of(i), "cublaslt", 8) == 0;
        if (is_taken == is_library)
            fail_msg("node %u (%s) %s", i, kernel_of(i), is_taken ? "is stamped" : "is not");
        library += is_library;
        taken += is_taken;
    }
    printf("%u nodes of the library, %u of our own\n", library, taken);
    assert_true(taken > 0);
}

RP_GPU_TEST_MAIN(
    NULL, NULL,
    cmocka_unit_test_teardown(test_nodes_follow_one_another_and_fill_the_step, tear_down),
    cmocka_unit_test_teardown(test_a_step_without_the_bit_stores_no_end_and_hands_nothing_over,
                              tear_down),
    cmocka_unit_test_teardown(test_stamps_are_only_in_their_steps_entry, tear_down),
    cmocka_unit_test_teardown(test_stamping_changes_no_bit, tear_down),
    cmocka_unit_test_teardown(test_all_but_the_gemms_of_a_library_are_stamped_under_fast_numerics,
                              tear_down))
