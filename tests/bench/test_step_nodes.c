/* Goal: self times of nodes by kernel: overlap with the preceding node counts once, and a node
 * without a stamp is counted as missing. */
#include "bench/step_nodes.h"
#include "device/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *kernel_of(void *ctx, uint32_t node) { return ((const char **)ctx)[node]; }

static void test_a_node_counts_from_the_end_of_the_one_before(void **state) {
    (void)state;
    const char *kernels[] = {"begin", "product", "norm", "product"};
    const struct rp_node_stamp stamps[] = {{100, 110}, {105, 150}, {145, 160}, {170, 200}};
    struct rp_step_nodes nodes = {0};
    rp_step_nodes_add(&nodes, stamps, 4, kernel_of, kernels);
    rp_step_nodes_add(&nodes, stamps, 4, kernel_of, kernels);
    assert_int_equal(nodes.steps, 2);
    assert_int_equal(nodes.kernel_count, 3);
    assert_int_equal(nodes.kernels[0].own_ns, 2 * 10);
    assert_int_equal(nodes.kernels[1].own_ns, 2 * (40 + 30));
    assert_int_equal(nodes.kernels[1].nodes, 4);
    assert_int_equal(nodes.kernels[2].own_ns, 2 * 10);
    assert_int_equal(nodes.own_ns, 2 * 90);
    assert_int_equal(nodes.run_ns, 2 * 100);
}

static void test_a_library_has_the_time_between_its_neighbors(void **state) {
    (void)state;
    const char *kernels[] = {"ours", "library", "ours"};
    const struct rp_node_stamp stamps[] = {{100, 110}, RP_NODE_STAMP_NONE, {150, 160}};
    struct rp_step_nodes nodes = {0};
    rp_step_nodes_add(&nodes, stamps, 3, kernel_of, kernels);
    assert_int_equal(nodes.kernels[1].missing, 0);
    assert_int_equal(nodes.kernels[1].own_ns, 40);
    assert_int_equal(nodes.own_ns, 60);
    assert_int_equal(nodes.run_ns, 60);
}

static void test_nodes_without_a_neighbor_are_missing(void **state) {
    (void)state;
    const char *kernels[] = {"a", "a", "b", "c", "a"};
    const struct rp_node_stamp stamps[] = {
        RP_NODE_STAMP_NONE, {100, 110}, RP_NODE_STAMP_NONE, RP_NODE_STAMP_NONE, {150, 160}};
    struct rp_step_nodes nodes = {0};
    rp_step_nodes_add(&nodes, stamps, 5, kernel_of, kernels);
    assert_int_equal(nodes.kernels[0].missing, 1);
    assert_int_equal(nodes.kernels[1].missing + nodes.kernels[2].missing, 2);
    assert_int_equal(nodes.own_ns, 20);
    rp_step_nodes_add(&nodes, stamps, 1, kernel_of, kernels); /* nothing at all */
    assert_int_equal(nodes.run_ns, 60);
}

static void test_kernels_without_room_share_the_last_place(void **state) {
    (void)state;
    static char names[40][8];
    const char *kernels[40];
    struct rp_node_stamp stamps[40];
    struct rp_step_nodes nodes = {0};
    for (uint32_t i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "k%u", i);
        kernels[i] = names[i];
        stamps[i] = (struct rp_node_stamp){i * 10 + 1, i * 10 + 11};
    }
    rp_step_nodes_add(&nodes, stamps, 40, kernel_of, kernels);
    assert_int_equal(nodes.kernel_count, RP_STEP_NODES_KERNELS_MAX);
    assert_string_equal(nodes.kernels[RP_STEP_NODES_KERNELS_MAX - 1].name, "others");
    assert_int_equal(nodes.kernels[RP_STEP_NODES_KERNELS_MAX - 1].nodes,
                     40 - (RP_STEP_NODES_KERNELS_MAX - 1));
    assert_int_equal(nodes.own_ns, 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_counts_from_the_end_of_the_one_before),
        cmocka_unit_test(test_a_library_has_the_time_between_its_neighbors),
        cmocka_unit_test(test_nodes_without_a_neighbor_are_missing),
        cmocka_unit_test(test_kernels_without_room_share_the_last_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
