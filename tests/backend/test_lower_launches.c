/* Goal: a program becomes the launches that the table of fusions promises, and a backend that lacks
 * a kernel refuses it by the operator's name.
 * Method: small random models; their launches are counted, and read by kernel and member. */
#include "backend/module.h"
#include "tests/backend/lower_fixture.h"

#include <string.h>

static void test_fusion_saves_launches_and_covers_every_operator(void **state) {
    (void)state;
    uint32_t launches[2];
    make_model(RP_FAMILY_QWEN3, RP_DTYPE_BF16);
    for (int fused = 0; fused < 2; fused++) {
        struct rp_driver_config way = way_default(RP_DTYPE_BF16);
        way.no_fusion = !fused;
        open_way(&way);
        struct rp_graph *graph = rp_graph_set_entry(driver.graphs, 0)->forward;
        uint32_t next = 0;
        launches[fused] = driver.backend->graph_launch_count(graph);
        for (uint32_t i = 0; i < launches[fused]; i++) {
            struct rp_launch_info info;
            driver.backend->graph_launch_info(graph, i, &info);
            for (uint32_t op = 0; op < info.op_count; op++)
                assert_int_equal(info.ops[op], next++);
        }
        assert_int_equal(next, driver.program.sample_begin);
        if (!fused)
            assert_int_equal(launches[0], next);
    }
    assert_true(launches[1] < launches[0]);
}

static bool runs_dense_models(enum rp_op_kind kind) {
    return kind != RP_OP_ROUTE && kind != RP_OP_EXPERT_SUM && kind != RP_OP_CONV;
}

static bool runs_all(enum rp_op_kind kind) {
    (void)kind;
    return true;
}

static void test_a_backend_without_a_kernel_refuses_the_program_by_operator(void **state) {
    (void)state;
    struct rp_backend without = *rp_backend_cpu();
    struct rp_program program;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        struct rp_error err = {0};
        make_model(families[f], RP_DTYPE_F32);
        assert_int_equal(rp_model_emit(&model, &program, NULL), RP_OK);
        assert_int_equal(rp_backend_check_program(rp_backend_cpu(), &program, &err), RP_OK);
        without.runs = runs_all;
        int status = rp_backend_check_program(&without, &program, &err);
        assert_int_equal(status, RP_OK);
        without.runs = runs_dense_models;
        status = rp_backend_check_program(&without, &program, &err);
        if (families[f] < RP_FAMILY_MIXTRAL) {
            assert_int_equal(status, RP_OK);
        } else {
            assert_int_equal(status, RP_STATUS_UNSUPPORTED);
            assert_non_null(strstr(err.text, model.config.state.conv_width
                                                 ? "state.conv needs the operator \"conv\""
                                                 : "moe.route needs the operator \"route\""));
            assert_non_null(strstr(err.hint, "--device cpu"));
        }
        rp_program_deinit(&program);
    }
}

static uint32_t launches_of(enum rp_family family, const char *kernel) {
    uint32_t found = 0;
    struct rp_driver_config way = way_default(RP_DTYPE_BF16);
    make_model(family, RP_DTYPE_BF16);
    open_way(&way);
    struct rp_graph *graph = rp_graph_set_entry(driver.graphs, 0)->forward;
    for (uint32_t i = 0; i < driver.backend->graph_launch_count(graph); i++) {
        struct rp_launch_info info;
        driver.backend->graph_launch_info(graph, i, &info);
        found += strcmp(info.kernel, kernel) == 0;
    }
    return found;
}

static void test_gate_up_does_the_activation_where_its_halves_are_whole_panels(void **state) {
    (void)state;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        enum rp_family family = families[f];
        if (family >= RP_FAMILY_MIXTRAL) /* experts' GEMMs always do */
            continue;
        assert_int_equal(launches_of(family, "linear_gated"), family % 2 ? 0 : 2);
        assert_int_equal(launches_of(family, "activation"), family % 2 ? 2 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, teardown)
        TEST(test_fusion_saves_launches_and_covers_every_operator),
        TEST(test_a_backend_without_a_kernel_refuses_the_program_by_operator),
        TEST(test_gate_up_does_the_activation_where_its_halves_are_whole_panels),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
