/* Goal: steps of models with 8-bit weights use the intended kernels, and quantized rows in the
 * shared buffer are read by their GEMM before the buffer is overwritten. Method: small models with
 * shapes that the fast kernels support, lowered for 1, 8, 64 and 2,048 rows; the list of
 * launches. */
#include "base/memory.h"
#include "tests/gpu/lowered_fixture.h"

enum { POSITIONS = 2048, LAUNCHES_MAX = 256 };

static const struct rp_bucket buckets[] = {
    {1, 1, 1, true}, {8, 8, 8, true}, {64, 64, 64, true}, {2048, 8, 8, false}};

static void make_blocks(struct rp_matrix *matrix) {
    matrix->scale_kind = RP_SCALE_BLOCK_128;
    size_t count = rp_matrix_scale_count(matrix);
    float *scales = rp_alloc_aligned(count * sizeof *scales, RP_CACHE_LINE);
    assert_non_null(scales);
    for (size_t i = 0; i < count; i++)
        scales[i] = 0.01f;
    rp_free_aligned((void *)(uintptr_t)matrix->scales);
    matrix->scales = scales;
}

static void lower(enum rp_quant_scheme scheme, bool head, bool blocks, bool no_fusion) {
    struct rp_model_config config = config_of(RP_FAMILY_LLAMA, POSITIONS, scheme);
    config.hidden = 1024;
    config.intermediate = 2048;
    config.quantize_head = head;
    make_model(&config);
    for (uint32_t i = 0; i < model.weights.count && blocks; i++) {
        struct rp_weight *weight = &model.weights.entries[i];
        if (rp_weight_is_matrix(weight) && weight->layer != RP_LAYER_NONE)
            make_blocks(&weight->matrix);
    }
    lower_model(buckets, RP_ARRAY_COUNT(buckets), POSITIONS, no_fusion);
}

/* The launches of the graph that runs the layers. */
static uint32_t launches_of(uint32_t bucket, struct rp_launch_info *out) {
    struct rp_graph *graph = NULL;
    for (uint32_t i = 0; i < rp_graph_set_count(driver.graphs); i++) {
        struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, i);
        if (entry->bucket.tokens == buckets[bucket].tokens)
            graph = entry->forward;
    }
    assert_non_null(graph);
    uint32_t count = driver.backend->graph_launch_count(graph);
    assert_true(count <= LAUNCHES_MAX);
    for (uint32_t i = 0; i < count; i++)
        driver.backend->graph_launch_info(graph, i, &out[i]);
    return count;
}

static bool ends_in(const char *text, const char *end) {
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

static bool quantizes_output(const struct rp_launch_info *launch) {
    return strcmp(launch->kernel, "quantize") == 0 || ends_in(launch->kernel, "_quantize");
}

/* The GEMM of a launch, or NULL. */
static const struct rp_op *product_of(const struct rp_launch_info *launch) {
    for (uint32_t i = 0; i < launch->op_count; i++)
        if (driver.program.ops[launch->ops[i]].kind == RP_OP_LINEAR)
            return &driver.program.ops[launch->ops[i]];
    return NULL;
}

static bool takes_quantized(const struct rp_op *op) {
    return op && rp_dtype_bytes(op->weight->dtype) == 1 && op->weight->input == RP_INPUT_QUANTIZED;
}

/* Kernels that quantize their own rows. */
static bool may_quantize(const struct rp_launch_info *launch) {
    return strcmp(launch->kernel, "matmul_rows") == 0 ||
           strcmp(launch->kernel, "matmul_gated") == 0;
}

static void fail_with_list(const struct rp_launch_info *launches, uint32_t count, uint32_t at,
                           const char *what) {
    for (uint32_t i = 0; i < count; i++)
        print_error("%c %-18s %s\n", i == at ? '>' : ' ', launches[i].kernel, launches[i].name);
    fail_msg("%s", what);
}

/* Rows are quantized immediately before the GEMM that reads them. */
static void check_quantized(const struct rp_launch_info *launches, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_op *op = product_of(&launches[i]);
        bool own = strcmp(launches[i].kernel, "quantize") == 0;
        if (quantizes_output(&launches[i])) {
            const struct rp_op *next = i + 1 < count ? product_of(&launches[i + 1]) : NULL;
            uint32_t behind = launches[i].ops[0] + (own ? 0 : launches[i].op_count);
            if (!takes_quantized(next) || launches[i + 1].ops[0] != behind ||
                launches[i].prepares != own || launches[i + 1].prepares)
                fail_with_list(launches, count, i, "codes that the next launch does not take");
        } else if (takes_quantized(op) && !own) {
            if (i == 0 || (!quantizes_output(&launches[i - 1]) && !may_quantize(&launches[i])))
                fail_with_list(launches, count, i, "a product without codes");
        }
    }
}

/* The kernels of layer 1, each followed by a space. */
static void kernels_of_layer(const struct rp_launch_info *launches, uint32_t count, char *text,
                             size_t size) {
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        if (driver.program.ops[launches[i].ops[0]].layer == 1)
            len += (size_t)snprintf(text + len, size - len, "%s ", launches[i].kernel);
}

static void check_scheme(enum rp_quant_scheme scheme, bool head, bool blocks, bool no_fusion) {
    struct rp_launch_info launches[LAUNCHES_MAX];
    lower(scheme, head, blocks, no_fusion);
    for (uint32_t b = 0; b < RP_ARRAY_COUNT(buckets); b++) {
        uint32_t count = launches_of(b, launches);
        char text[1024];
        kernels_of_layer(launches, count, text, sizeof text);
        print_message("%s%s, %u rows: %s\n", rp_quant_scheme_name(scheme),
                      no_fusion ? ", unfused" : "", buckets[b].tokens, text);
        check_quantized(launches, count);
        for (uint32_t i = 0; i < count; i++) {
            const struct rp_op *op = product_of(&launches[i]);
            bool generic = strcmp(launches[i].kernel, "matmul_generic") == 0;
            bool plain =
                op && rp_dtype_bytes(op->weight->dtype) == 1 && op->weight->input == RP_INPUT_PLAIN;
            if (op && generic)
                fail_with_list(launches, count, i, "generic");
            if (plain && strcmp(launches[i].kernel, "matmul_tc") != 0)
                fail_with_list(launches, count, i, "W8A16 has one kernel");
        }
    }
}

static void test_gemms_of_quantized_values_find_their_kernels_at_every_batch(void **state) {
    (void)state;
    check_scheme(RP_QUANT_INT8, true, false, false);
    check_scheme(RP_QUANT_FP8, false, false, false);
    check_scheme(RP_QUANT_FP8, true, true, false);
}

static void test_without_fusion_each_product_has_its_quantized_values_made(void **state) {
    (void)state;
    check_scheme(RP_QUANT_INT8, true, false, true);
}

static void test_w8a16_takes_rows_as_they_are(void **state) {
    (void)state;
    static const struct {
        enum rp_quant_scheme scheme;
        bool blocks;
    } kinds[] = {
        {RP_QUANT_INT8_W8A16, false}, {RP_QUANT_FP8_W8A16, false}, {RP_QUANT_FP8_W8A16, true}};
    struct rp_launch_info launches[LAUNCHES_MAX];
    for (size_t kind = 0; kind < RP_ARRAY_COUNT(kinds); kind++) {
        check_scheme(kinds[kind].scheme, false, kinds[kind].blocks, false);
        for (uint32_t b = 0; b < RP_ARRAY_COUNT(buckets); b++)
            for (uint32_t i = 0, count = launches_of(b, launches); i < count; i++)
                assert_false(quantizes_output(&launches[i]));
    }
}

/* After a norm that is not fused into its GEMM no launch quantizes its rows a second time. */
static void test_norms_make_quantized_values_of_what_they_give(void **state) {
    (void)state;
    struct rp_launch_info launches[LAUNCHES_MAX];
    char text[1024];
    lower(RP_QUANT_INT8, false, false, false);
    for (uint32_t b = 1; b < RP_ARRAY_COUNT(buckets); b++) {
        uint32_t count = launches_of(b, launches);
        kernels_of_layer(launches, count, text, sizeof text);
        if (!strstr(text, "norm_quantize matmul"))
            fail_with_list(launches, count, UINT32_MAX, "no norm makes codes");
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_gemms_of_quantized_values_find_their_kernels_at_every_batch),
                 TEST(test_without_fusion_each_product_has_its_quantized_values_made),
                 TEST(test_w8a16_takes_rows_as_they_are),
                 TEST(test_norms_make_quantized_values_of_what_they_give))
