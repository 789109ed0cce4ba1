/* Goal: the sum of experts, the addition to the residual and the next norm are one launch where
 * rows are few, and so are a router's GEMM, the route and the order of choices; they are separate
 * launches where rows are many, and without fusion.
 * Method: small models lowered for 8 to 512 rows; the list of launches. */
#include "device/experts_cuda.h"
#include "tests/gpu/lowered_fixture.h"

enum { POSITIONS = 512 };

static const struct rp_bucket buckets[] = {
    {8, 8, 8, true}, {RP_EXPERT_SUM_NORM_ROWS, 64, 64, false}, {512, 8, 8, false}};

static void lower(enum rp_quant_scheme scheme, bool no_fusion) {
    struct rp_model_config config = config_of(RP_FAMILY_QWEN3_MOE, POSITIONS, scheme);
    config.hidden = 2048;
    config.intermediate = 512;
    rp_test_set_family(&config);
    make_model(&config);
    lower_model(buckets, RP_ARRAY_COUNT(buckets), POSITIONS, no_fusion);
}

/* Launches of the bucket whose kernel has this name. */
static uint32_t count_of(uint32_t tokens, const char *kernel) {
    struct rp_launch_info info;
    uint32_t found = 0;
    for (uint32_t i = 0; i < rp_graph_set_count(driver.graphs); i++) {
        struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, i);
        if (entry->bucket.tokens != tokens)
            continue;
        for (uint32_t l = 0; l < driver.backend->graph_launch_count(entry->forward); l++) {
            driver.backend->graph_launch_info(entry->forward, l, &info);
            found += strcmp(info.kernel, kernel) == 0;
        }
    }
    return found;
}

static void check(uint32_t tokens, uint32_t one, uint32_t quantized, uint32_t added,
                  uint32_t alone) {
    assert_int_equal(count_of(tokens, "expert_sum_norm"), one);
    assert_int_equal(count_of(tokens, "expert_sum_norm_quantize"), quantized);
    assert_int_equal(count_of(tokens, "expert_sum_add"), added);
    assert_int_equal(count_of(tokens, "expert_sum"), alone);
}

/* The last layer's rows are gathered before they are normed. */
static void test_few_rows_are_summed_added_and_normed_by_one_launch(void **state) {
    (void)state;
    lower(RP_QUANT_NONE, false);
    check(8, LAYERS - 1, 0, 1, 0);
    check(RP_EXPERT_SUM_NORM_ROWS, LAYERS - 1, 0, 1, 0);
    check(512, 0, 0, LAYERS, 0);
}

static void test_the_launch_quantizes_the_rows_of_an_8_bit_gemm(void **state) {
    (void)state;
    lower(RP_QUANT_FP8, false);
    check(8, 0, LAYERS - 1, 1, 0);
    check(RP_EXPERT_SUM_NORM_ROWS, 0, LAYERS - 1, 1, 0);
    check(512, 0, 0, LAYERS, 0);
}

static void test_a_router_of_few_rows_is_one_launch(void **state) {
    (void)state;
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_NONE, RP_QUANT_FP8};
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes); i++) {
        lower(schemes[i], false);
        assert_int_equal(count_of(8, "router_order"), LAYERS);
        assert_int_equal(count_of(8, "route_order") + count_of(8, "route"), 0);
        assert_int_equal(count_of(RP_EXPERT_SUM_NORM_ROWS, "router_order"), 0);
        assert_int_equal(count_of(512, "route"), LAYERS);
    }
    lower(RP_QUANT_NONE, true);
    assert_int_equal(count_of(8, "router_order"), 0);
    assert_int_equal(count_of(8, "route"), LAYERS);
}

static void test_without_fusion_the_sum_is_a_launch_of_its_own(void **state) {
    (void)state;
    lower(RP_QUANT_NONE, true);
    for (size_t b = 0; b < RP_ARRAY_COUNT(buckets); b++)
        check(buckets[b].tokens, 0, 0, 0, LAYERS);
}

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_few_rows_are_summed_added_and_normed_by_one_launch),
                 TEST(test_the_launch_quantizes_the_rows_of_an_8_bit_gemm),
                 TEST(test_a_router_of_few_rows_is_one_launch),
                 TEST(test_without_fusion_the_sum_is_a_launch_of_its_own))
