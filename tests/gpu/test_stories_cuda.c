/* Goal: a real model has the same text and loss on a GPU as on the CPU. Method:
 * stories260K in f32. The reference tokens are fed one at a time, as prompt rows and as decode
 * rows, and the mean negative log-likelihood is compared; then both write a story greedily,
 * token by token. */
#include "tests/support/data.h"
#include "tests/support/driver.h"
#include "tests/support/dump_logits.h"
#include "tests/support/gpu_test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PROMPT = 8, STORY = 300 };

static struct rp_model model;
static struct rp_driver driver;
static json_t *reference;

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    json_decref(reference);
    reference = NULL;
    return 0;
}

static void open_all(const struct rp_backend *backend) {
    static const struct rp_bucket buckets[] = {{1, 1, 1, true}, {16, 1, 1, false}};
    char path[1024];
    teardown(NULL);
    if (!rp_test_data("weights/stories260K/ref_llama2c_tinystories.json", path, sizeof path))
        skip();
    reference = json_load_file(path, 0, NULL);
    assert_non_null(reference);
    assert_true(rp_test_data("weights/stories260K/hf_derived", path, sizeof path));
    assert_int_equal(rp_model_load(path, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &model, NULL), RP_OK);
    assert_int_equal(model.dtype, RP_DTYPE_F32);
    struct rp_driver_config config = {.backend = backend,
                                      .slots = 1,
                                      .pages_per_slot = 8,
                                      .page_tokens = 64,
                                      .threads = 2,
                                      .buckets = buckets,
                                      .bucket_count = RP_ARRAY_COUNT(buckets),
                                      .kv_dtype = RP_DTYPE_F32};
    rp_driver_open(&driver, &model, &config);
}

static int32_t reference_token(size_t i) {
    return (int32_t)json_integer_value(json_array_get(json_object_get(reference, "tokens"), i));
}

static double log_prob(const float *logits, int32_t token) {
    double max = -INFINITY, sum = 0.0;
    for (uint32_t v = 0; v < model.config.vocab; v++)
        max = fmax(max, logits[v]);
    for (uint32_t v = 0; v < model.config.vocab; v++)
        sum += exp(logits[v] - max);
    return logits[token] - max - log(sum);
}

/* Mean loss of the reference tokens, each fed alone. */
static double loss(const struct rp_backend *backend, bool decode_rows) {
    double sum = 0.0;
    open_all(backend);
    size_t count = json_array_size(json_object_get(reference, "tokens"));
    for (size_t i = 0; i + 1 < count; i++) {
        int32_t token = reference_token(i);
        if (decode_rows)
            rp_driver_edit(&driver, 0, RP_SLOT_LAST_TOKEN, 0, (uint32_t)token);
        rp_driver_row(&driver, 0, decode_rows ? NULL : &token, 1, true);
        rp_driver_run(&driver, decode_rows ? NULL : rp_graph_set_entry(driver.graphs, 1));
        sum -= log_prob(rp_driver_logits(&driver, 0), reference_token(i + 1));
    }
    return sum / (double)(count - 1);
}

static void test_the_loss_of_a_story_is_the_cpus(void **state) {
    (void)state;
    double want = loss(NULL, false);
    for (int decode_rows = 0; decode_rows < 2; decode_rows++) {
        double got = loss(rp_backend_cuda_table(), decode_rows);
        printf("mean NLL %.6f by %s rows, on the CPU %.6f\n", got,
               decode_rows ? "decode" : "prompt", want);
        assert_true(fabs(got - want) <= 1e-5);
        assert_true(fabs(got - 1.422202) <= 1e-5);
    }
}

static void write_story(const struct rp_backend *backend, int32_t *out) {
    int32_t prompt[PROMPT];
    open_all(backend);
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = reference_token(i);
    rp_driver_row(&driver, 0, prompt, PROMPT, true);
    for (uint32_t i = 0; i < STORY; i++) {
        rp_driver_run(&driver, NULL);
        out[i] = rp_driver_result(&driver, 0)->token;
        rp_driver_row(&driver, 0, NULL, 1, true);
    }
}

static void test_a_greedy_story_is_the_cpus_token_by_token(void **state) {
    (void)state;
    int32_t cpu[STORY], gpu[STORY];
    write_story(NULL, cpu);
    write_story(rp_backend_cuda_table(), gpu);
    for (uint32_t i = 0; i < STORY; i++)
        assert_int_equal(gpu[i], cpu[i]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_loss_of_a_story_is_the_cpus, teardown),
        cmocka_unit_test_teardown(test_a_greedy_story_is_the_cpus_token_by_token, teardown),
    };
    if (rp_gpu_skip_code())
        return 77;
    if (argc > 6 && strcmp(argv[1], "--logits") == 0)
        return rp_dump_logits(rp_backend_cuda_table(), argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
