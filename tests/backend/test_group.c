/* Goal: a group of ranks computes what one device does: with any family, format, mask, lowering and
 * batch; sums are in rank order, rounded where the contract says.
 * Method: small random models on one CPU device and on groups of 2 and 4, whose logits are
 * compared; an all-reduce of numbers whose f32 sum depends on the order. */
#include "tests/backend/group_fixture.h"
#include "tests/support/fake_backend.h"

#include <sched.h>

static void test_every_family_gives_the_logits_of_one_device(void **state) {
    static const enum rp_family families[] = {
        RP_FAMILY_LLAMA,      RP_FAMILY_MISTRAL,  RP_FAMILY_QWEN2,   RP_FAMILY_QWEN3,
        RP_FAMILY_GEMMA2,     RP_FAMILY_GRANITE,  RP_FAMILY_OLMO3,   RP_FAMILY_SMOLLM3,
        RP_FAMILY_MINISTRAL3, RP_FAMILY_STABLELM, RP_FAMILY_COHERE,  RP_FAMILY_MIXTRAL,
        RP_FAMILY_QWEN2_MOE,  RP_FAMILY_GLM4_MOE, RP_FAMILY_GPT_OSS,
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        compare(families[i], RP_DTYPE_F32, RP_QUANT_NONE, NULL, RP_DTYPE_F32, 1e-5);
}

static void test_every_format_gives_the_logits_of_one_device_up_to_its_rounding(void **state) {
    (void)state;
    compare(RP_FAMILY_LLAMA, RP_DTYPE_BF16, RP_QUANT_NONE, NULL, RP_DTYPE_BF16, 1.5e-2);
    compare(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, NULL, RP_DTYPE_INT8, 3e-2);
    for (enum rp_quant_scheme scheme = RP_QUANT_NONE + 1; scheme < RP_QUANT_SCHEME_COUNT; scheme++)
        compare(RP_FAMILY_MISTRAL, RP_DTYPE_BF16, scheme, NULL, RP_DTYPE_BF16, 5e-2);
}

static void test_a_mask_sees_the_numbers_of_all_heads(void **state) {
    (void)state;
    compare(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, "q >= kv && q - kv < 2 + 2 * h",
            RP_DTYPE_F32, 1e-5);
}

static void test_a_group_has_equal_bits_in_any_lowering_and_batch(void **state) {
    static const enum rp_family families[] = {RP_FAMILY_LLAMA, RP_FAMILY_OLMO3, RP_FAMILY_COHERE,
                                              RP_FAMILY_GLM4_MOE};
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++) {
        struct rp_driver_config way = way_of(2, RP_DTYPE_BF16);
        make_model(families[i], RP_DTYPE_BF16, RP_QUANT_NONE, NULL);
        run(&many, &way, PROMPT, NULL);
        for (int change = 0; change < 5; change++) {
            way = way_of(2, RP_DTYPE_BF16);
            way.no_fusion = change == 0;
            way.eager = change == 1;
            way.poison = change == 2;
            way.threads = change == 3 ? 6 : 2; /* three workers for each rank */
            run(&again, &way, change == 4 ? 4 : PROMPT, NULL);
            assert_same(&many, &again);
        }
    }
}

static void test_a_group_of_gpus_gives_the_bits_of_a_group_of_cpus(void **state) {
    (void)state;
    struct rp_driver_config way = way_of(2, RP_DTYPE_BF16);
    make_model(RP_FAMILY_MISTRAL, RP_DTYPE_BF16, RP_QUANT_NONE, NULL);
    run(&many, &way, PROMPT, NULL);
    make_model(RP_FAMILY_MISTRAL, RP_DTYPE_BF16, RP_QUANT_NONE, NULL);
    fake_backend_reset();
    way.backend = fake_backend();
    run(&again, &way, PROMPT, NULL);
    assert_same(&many, &again);
}

/* --- the contract of the sum ----------------------------------------------------------------- */

enum { RANKS = 4, COLS = 5, TOKENS = 3 };

/* x = in * w^T of each rank, then the sum. */
static void reduce(enum rp_dtype payload, const float weights[RANKS], float out[RANKS]) {
    const struct rp_device_config config = {.ranks = RANKS, .threads = RANKS};
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_program program;
    struct rp_matrix matrices[RANKS];
    struct rp_graph *graph;
    assert_int_equal(rp_group_open(rp_backend_cpu(), &config, &backend, &device, NULL), RP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct rp_matrix *matrix = &matrices[rank];
        *matrix = (struct rp_matrix){.rows = COLS, .cols = 1, .dtype = RP_DTYPE_F32, .rank = rank};
        matrix->data = rp_alloc_aligned(COLS * sizeof(float), 64);
        for (uint32_t c = 0; c < COLS; c++)
            ((float *)matrix->data)[c] = weights[rank];
        assert_int_equal(backend->matrix_prepare(device, matrix, NULL), RP_OK);
    }
    rp_program_init(&program);
    program.ranks = RANKS;
    int32_t in = rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, 1, "in");
    int32_t x = rp_program_add_tensor(&program, RP_ROWS_TOKEN, RP_DTYPE_F32, COLS, "x");
    struct rp_op linear = {.kind = RP_OP_LINEAR, .rows = RP_ROWS_TOKEN, .name = "linear"};
    rp_op_add_input(&linear, rp_view_all(&program, in));
    linear.out = rp_view_all(&program, x);
    linear.weight = matrices;
    struct rp_op sum = {.kind = RP_OP_ALLREDUCE, .rows = RP_ROWS_TOKEN, .name = "sum"};
    rp_op_add_input(&sum, linear.out);
    sum.out = linear.out;
    sum.u.exchange.payload = payload;
    assert_true(rp_program_add_op(&program, &linear) >= 0 &&
                rp_program_add_op(&program, &sum) >= 0);
    const struct rp_bucket bucket = {.tokens = TOKENS, .rows = 1, .logit_rows = 1};
    const struct rp_lower_options options = {.no_fusion = false};
    const size_t offsets[] = {0, 64};
    unsigned char *arena = backend->alloc(device, 512, RP_MEMORY_DEVICE);
    struct rp_live_counts counts = {.token_count = TOKENS}, *live;
    struct rp_bindings bindings = {.arena = arena, .tensor_offsets = offsets};
    const float ones[TOKENS] = {1, 1, 1};
    live = backend->alloc(device, sizeof *live, RP_MEMORY_DEVICE);
    bindings.step.counts = live;
    assert_int_equal(backend->copy(device, live, &counts, sizeof counts), RP_OK);
    assert_int_equal(backend->copy(device, arena, ones, sizeof ones), RP_OK);
    assert_int_equal(
        backend->capture(device, &program, 0, 2, &bucket, &bindings, &options, false, &graph, NULL),
        RP_OK);
    for (int i = 0; i < 3; i++) /* both blocks of the exchange, and one of them again */
        assert_int_equal(backend->launch(device, graph), RP_OK);
    assert_int_equal(backend->synchronize(device), RP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const float *values = backend->rank_address(device, rank, arena + 64);
        out[rank] = values[0];
        for (uint32_t i = 1; i < TOKENS * COLS; i++)
            assert_memory_equal(&values[i], &values[0], sizeof values[0]);
    }
    backend->graph_destroy(device, graph);
    backend->free(device, live, RP_MEMORY_DEVICE);
    backend->free(device, arena, RP_MEMORY_DEVICE);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        backend->matrix_release(device, &matrices[rank]);
    rp_program_deinit(&program);
    backend->close(device);
}

static void test_sums_are_in_rank_order_on_every_rank(void **state) {
    /* In f32 ((1e8 + 1) - 1e8) + 3 is 3, and 4 in most other orders. */
    static const float weights[RANKS] = {1e8f, 1, -1e8f, 3};
    float out[RANKS];
    (void)state;
    reduce(RP_DTYPE_F32, weights, out);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(out[rank] == 3.0f);
}

static void test_each_rank_is_rounded_once_and_sums_are_f32(void **state) {
    /* 1 + 2^-8 rounds to 1 in bf16 (even), 1 + 3 * 2^-8 to 1 + 2^-6. */
    static const float weights[RANKS] = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 256.0f, 0x1p-7f};
    float out[RANKS];
    (void)state;
    reduce(RP_DTYPE_BF16, weights, out);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_true(out[rank] == 1.0f + (1.0f + 0x1p-6f) + 256.0f + 0x1p-7f);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void test_memory_is_there_once_for_each_rank_and_host_memory_once(void **state) {
    const struct rp_device_config config = {.ranks = 2, .threads = 2};
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_device_info info;
    (void)state;
    assert_int_equal(rp_group_open(rp_backend_cpu(), &config, &backend, &device, NULL), RP_OK);
    backend->info(device, &info);
    assert_int_equal(info.ranks, 2);
    assert_string_equal(backend->name, "cpu");
    assert_non_null(strstr(info.name, "2 x "));
    unsigned char *each = backend->alloc(device, 64, RP_MEMORY_DEVICE);
    unsigned char *swap = backend->alloc(device, 64, RP_MEMORY_HOST_EACH);
    unsigned char *shared = backend->alloc(device, 64, RP_MEMORY_HOST), back[64];
    assert_ptr_equal(backend->rank_address(device, 1, shared), shared);
    assert_ptr_not_equal(backend->rank_address(device, 1, each + 5), each + 5);
    assert_int_equal(backend->fill(device, each, 7, 64), RP_OK);
    assert_int_equal(backend->synchronize(device), RP_OK);
    unsigned char *second = backend->rank_address(device, 1, each);
    assert_int_equal(second[63], 7);
    second[0] = 9; /* ranks may differ */
    assert_int_equal(backend->copy(device, swap, each, 64), RP_OK);
    assert_int_equal(backend->copy(device, back, each, 64), RP_OK);
    assert_int_equal(backend->synchronize(device), RP_OK);
    assert_int_equal(swap[0], 7);
    assert_int_equal(*(unsigned char *)backend->rank_address(device, 1, swap), 9);
    assert_int_equal(back[0], 7);
    backend->free(device, each, RP_MEMORY_DEVICE);
    backend->free(device, swap, RP_MEMORY_HOST_EACH);
    backend->free(device, shared, RP_MEMORY_HOST);
    backend->close(device);
}

static void test_a_backend_without_groups_says_so(void **state) {
    struct rp_backend alone = *rp_backend_cpu();
    const struct rp_device_config config = {.ranks = 2};
    const struct rp_backend *backend;
    struct rp_device *device = NULL;
    struct rp_error err = {0};
    (void)state;
    alone.join = NULL;
    alone.name = "cuda";
    assert_int_equal(rp_group_open(&alone, &config, &backend, &device, &err),
                     RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--tensor-parallel-size 2"));
    assert_non_null(strstr(err.text, "cuda"));
    assert_null(device);
}

/* A device that hangs cannot be freed; referenced here for the leak checker. */
static struct rp_driver hanging;
static struct rp_model hanging_model;

static void test_a_rank_that_the_others_wait_for_is_named(void **state) {
    static const int32_t prompt[] = {1, 2, 3};
    struct rp_driver_config way = way_of(2, RP_DTYPE_F32);
    (void)state;
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32, RP_QUANT_NONE, NULL);
    hanging_model = model;
    memset(&model, 0, sizeof model);
    rp_driver_open(&hanging, &hanging_model, &way);
    const struct rp_backend *backend = hanging.backend;
    rp_driver_row(&hanging, 0, prompt, 3, true);
    rp_driver_run(&hanging, NULL);
    assert_string_equal(backend->last_error(hanging.device), "");
    assert_int_equal(backend->inject_fault(hanging.device, RP_DEVICE_FAULT_HANG), RP_OK);
    rp_driver_row(&hanging, 0, NULL, 1, true);
    (void)rp_driver_submit(&hanging, NULL);
    const char *said;
    do { /* rank 0 comes to the first exchange */
        said = backend->last_error(hanging.device);
        sched_yield();
    } while (!*said);
    assert_string_equal(said, "the others wait for rank 1 of 2");
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_every_family_gives_the_logits_of_one_device),
        TEST(test_every_format_gives_the_logits_of_one_device_up_to_its_rounding),
        TEST(test_a_mask_sees_the_numbers_of_all_heads),
        TEST(test_a_group_has_equal_bits_in_any_lowering_and_batch),
        TEST(test_a_group_of_gpus_gives_the_bits_of_a_group_of_cpus),
        TEST(test_sums_are_in_rank_order_on_every_rank),
        TEST(test_each_rank_is_rounded_once_and_sums_are_f32),
        TEST(test_memory_is_there_once_for_each_rank_and_host_memory_once),
        TEST(test_a_backend_without_groups_says_so),
        TEST(test_a_rank_that_the_others_wait_for_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
