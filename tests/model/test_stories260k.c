/* Goal: a real model's numbers equal those of llama2.c, an independent implementation.
 * Method: the reference tokens are fed one at a time (each with logits), in one chunk of 16 and in
 * decode-sized steps, with the scalar reference and with the fast kernels; next-token
 * log-probabilities and six whole rows of logits are compared. */
#include "tests/support/data.h"
#include "tests/support/driver.h"
#include "tests/support/dump_logits.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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

static void open_all(bool scalar_only) {
    static const struct rp_bucket bucket = {1, 1, 1, false};
    char path[1024];
    if (!rp_test_data("weights/stories260K/ref_llama2c_tinystories.json", path, sizeof path))
        skip();
    reference = json_load_file(path, 0, NULL);
    assert_non_null(reference);
    assert_true(rp_test_data("weights/stories260K/hf_derived", path, sizeof path));
    assert_int_equal(rp_model_load(path, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &model, NULL), RP_OK);
    assert_int_equal(model.dtype, RP_DTYPE_F32);
    struct rp_driver_config config = {.slots = 1,
                                      .pages_per_slot = 32,
                                      .page_tokens = 16,
                                      .threads = 2,
                                      .buckets = &bucket,
                                      .bucket_count = 1,
                                      .kv_dtype = RP_DTYPE_F32,
                                      .scalar_only = scalar_only};
    rp_driver_open(&driver, &model, &config);
}

static double log_prob(const float *logits, uint32_t vocab, uint32_t token) {
    double max = -INFINITY, sum = 0.0;
    for (uint32_t v = 0; v < vocab; v++)
        max = fmax(max, logits[v]);
    for (uint32_t v = 0; v < vocab; v++)
        sum += exp(logits[v] - max);
    return logits[token] - max - log(sum);
}

/* Largest difference from the reference's logits at this position, if it lists them. */
static double logits_difference(size_t position) {
    char key[24];
    double worst = 0.0;
    snprintf(key, sizeof key, "%zu", position);
    json_t *row = json_object_get(json_object_get(reference, "logits"), key), *value;
    size_t v;
    json_array_foreach(row, v, value) worst =
        fmax(worst, fabs(json_number_value(value) - rp_driver_logits(&driver, 0)[v]));
    return worst;
}

static void check_reference(bool scalar_only) {
    double nll = 0.0, worst_logprob = 0.0, worst_logit = 0.0;
    open_all(scalar_only);
    json_t *tokens = json_object_get(reference, "tokens");
    json_t *logprobs = json_object_get(reference, "logprob_next");
    size_t count = json_array_size(tokens);
    for (size_t i = 0; i < count; i++) {
        int32_t token = (int32_t)json_integer_value(json_array_get(tokens, i));
        rp_driver_row(&driver, 0, &token, 1, true);
        rp_driver_run(&driver, NULL);
        worst_logit = fmax(worst_logit, logits_difference(i));
        if (i + 1 == count)
            break;
        uint32_t next = (uint32_t)json_integer_value(json_array_get(tokens, i + 1));
        double got = log_prob(rp_driver_logits(&driver, 0), model.config.vocab, next);
        worst_logprob =
            fmax(worst_logprob, fabs(got - json_number_value(json_array_get(logprobs, i))));
        nll -= got / (double)(count - 1);
    }
    printf("mean NLL %.6f, worst log-probability %.2e, worst logit %.2e\n", nll, worst_logprob,
           worst_logit);
    assert_true(fabs(nll - 1.42220) <= 1e-4);
    assert_true(worst_logit <= 1e-3);
    assert_true(worst_logprob <= 1e-3);
}

static void test_scalar_kernels_have_the_reference_nll_and_logits(void **state) {
    (void)state;
    check_reference(true);
}

static void test_fast_kernels_give_the_reference_nll_and_logits(void **state) {
    (void)state;
    check_reference(false);
}

int main(int argc, char **argv) {
    if (argc > 6 && strcmp(argv[1], "--logits") == 0)
        return rp_dump_logits(NULL, argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_scalar_kernels_have_the_reference_nll_and_logits, teardown),
        cmocka_unit_test_teardown(test_fast_kernels_give_the_reference_nll_and_logits, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
