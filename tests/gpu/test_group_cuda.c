/* Goal: a group of GPUs computes what one GPU does, up to the rounding of its sums, and has the
 * same bits however it is run. Method: that of tests/backend/test_group.c. Ranks share a GPU where
 * there are too few. */
#include "tests/backend/group_fixture.h"
#include "tests/support/gpu_test.h"

#include <cuda_runtime_api.h>

static int set_up(void **state) {
    int count = 0;
    (void)state;
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        return -1;
    group_base = (struct rp_driver_config){.backend = rp_backend_cuda_table(), .page_tokens = 64};
    group_gpus = (uint32_t)count;
    if (rp_gpu_is_tiny())
        group_ranks_max = 2;
    printf("%d GPUs\n", count);
    return 0;
}

static void test_every_family_gives_the_logits_of_one_gpu(void **state) {
    static const enum rp_family families[] = {
        RP_FAMILY_LLAMA, RP_FAMILY_MISTRAL, RP_FAMILY_QWEN2,    RP_FAMILY_QWEN3,  RP_FAMILY_GEMMA2,
        RP_FAMILY_OLMO3, RP_FAMILY_SMOLLM3, RP_FAMILY_STABLELM, RP_FAMILY_COHERE,
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i += rp_gpu_is_tiny() ? 5 : 1)
        compare(families[i], RP_DTYPE_F32, RP_QUANT_NONE, NULL, RP_DTYPE_F32, 1e-5);
}

static void test_every_format_gives_the_logits_of_one_gpu_up_to_its_rounding(void **state) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_NONE, RP_QUANT_INT8, RP_QUANT_FP8,
                                                   RP_QUANT_INT8_W8A16, RP_QUANT_FP8_W8A16};
    (void)state;
    compare(RP_FAMILY_LLAMA, RP_DTYPE_BF16, RP_QUANT_NONE, NULL, RP_DTYPE_INT8, 3e-2);
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes); i += rp_gpu_is_tiny() ? 2 : 1)
        compare(RP_FAMILY_MISTRAL, RP_DTYPE_BF16, schemes[i], NULL, RP_DTYPE_BF16, 5e-2);
}

static void test_a_group_has_equal_bits_in_any_lowering_and_batch(void **state) {
    static const enum rp_family families[] = {RP_FAMILY_LLAMA, RP_FAMILY_OLMO3, RP_FAMILY_COHERE};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i += rp_gpu_is_tiny() ? 2 : 1)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            struct rp_driver_config way = way_of(2, RP_DTYPE_BF16);
            enum rp_quant_scheme scheme = fp8 ? RP_QUANT_FP8 : RP_QUANT_NONE;
            make_model(families[i], RP_DTYPE_BF16, scheme, NULL);
            run(&many, &way, PROMPT, NULL);
            for (int change = 0; change < 4; change++) {
                way = way_of(2, RP_DTYPE_BF16);
                way.no_fusion = change == 0;
                way.eager = change == 1;
                way.poison = change == 2;
                make_model(families[i], RP_DTYPE_BF16, scheme, NULL);
                run(&again, &way, change == 3 ? 4 : PROMPT, NULL);
                assert_same(&many, &again);
            }
        }
}

static void test_a_mask_sees_the_numbers_of_all_heads(void **state) {
    (void)state;
    compare(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, "q >= kv && q - kv < 2 + 2 * h",
            RP_DTYPE_F32, 1e-5);
}

/* --- prompts of more rows than SMs ----------------------------------------------------------- */

enum { LONG = 700, LONG_PAGES = 12 };
static const struct rp_bucket long_buckets[] = {{768, 4, 4, false}};

static void run_long(const struct rp_model_config *config, const struct rp_driver_config *way,
                     float out[VOCAB]) {
    int32_t prompt[LONG];
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    assert_int_equal(rp_model_random(config, RP_DTYPE_BF16, 5, 1024, &model, NULL), RP_OK);
    rp_driver_open(&driver, &model, way);
    for (uint32_t i = 0; i < LONG; i++)
        prompt[i] = (int32_t)((i * 57 + 3) % VOCAB);
    rp_driver_row(&driver, 0, prompt, LONG, true);
    rp_driver_run(&driver, NULL);
    memcpy(out, rp_driver_logits(&driver, 0), VOCAB * sizeof *out);
}

static double distance(const float a[VOCAB], const float b[VOCAB]) {
    double difference = 0.0, norm = 0.0;
    for (uint32_t v = 0; v < VOCAB; v++) {
        difference += pow((double)a[v] - b[v], 2);
        norm += pow((double)a[v], 2);
    }
    return sqrt(difference / norm);
}

/* GEMMs of so many rows store what they give into the peer's memory (RP_EXCHANGE_PUSHED). Against
 * one GPU, FP8 differs by no more than its own rounding, since each rank quantizes rows of its
 * own. */
static void test_long_prompts_have_the_bits_of_unfused_operators(void **state) {
    enum { PLAIN, ONE, GROUP, UNFUSED, RUNS };
    static float logits[RUNS][VOCAB];
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        struct rp_model_config config = {.family = RP_FAMILY_LLAMA,
                                         .hidden = 4096,
                                         .intermediate = 1024,
                                         .layers = 2,
                                         .heads = 8,
                                         .kv_heads = 4,
                                         .head_dim = 128,
                                         .vocab = VOCAB,
                                         .max_position = 1024,
                                         .norm_eps = 1e-5f,
                                         .rope = {.theta = 10000.0},
                                         .bos_id = RP_ID_NONE};
        for (uint32_t i = 0; i < RUNS; i++) {
            struct rp_driver_config way = way_of(i < GROUP ? 1 : 2, RP_DTYPE_BF16);
            way.pages_per_slot = LONG_PAGES;
            way.buckets = long_buckets;
            way.bucket_count = RP_ARRAY_COUNT(long_buckets);
            way.no_fusion = i == UNFUSED;
            config.quantization = fp8 && i != PLAIN ? RP_QUANT_FP8 : RP_QUANT_NONE;
            run_long(&config, &way, logits[i]);
        }
        assert_memory_equal(logits[GROUP], logits[UNFUSED], sizeof logits[GROUP]);
        double rounding = fp8 ? distance(logits[PLAIN], logits[ONE]) : 1.5e-2;
        double error = distance(logits[ONE], logits[GROUP]);
        printf("%s: relative error %.2e, limit %.2e\n", fp8 ? "fp8" : "bf16", error, rounding);
        assert_true(error <= rounding);
    }
}

RP_GPU_TEST_MAIN(
    set_up, NULL,
    cmocka_unit_test_teardown(test_long_prompts_have_the_bits_of_unfused_operators, teardown),
    cmocka_unit_test_teardown(test_every_family_gives_the_logits_of_one_gpu, teardown),
    cmocka_unit_test_teardown(test_every_format_gives_the_logits_of_one_gpu_up_to_its_rounding,
                              teardown),
    cmocka_unit_test_teardown(test_a_mask_sees_the_numbers_of_all_heads, teardown),
    cmocka_unit_test_teardown(test_a_group_has_equal_bits_in_any_lowering_and_batch, teardown))
