/* Goal: the fields of a completion have their documented meaning: defaults, nulls, the model's
 * end tokens. Refusals are in tests/http/test_bad_inputs.py. */
#include "server/api/params.h"
#include "server/http/json_body.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct rp_serving serving;
static struct rp_completion_params params;
static struct rp_http_error error;
static char unknown[256];

static int setup(void **state) {
    (void)state;
    memset(&serving, 0, sizeof serving);
    memset(&error, 0, sizeof error);
    serving.model_name = "m";
    serving.vocab_size = 100;
    serving.stop_ids[0] = 7;
    serving.stop_id_count = 1;
    serving.default_temperature = serving.default_top_p = NAN;
    unknown[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_params_deinit(&params);
    return 0;
}

static void on_unknown(void *ctx, const char *name) {
    (void)ctx;
    strncat(unknown, name, sizeof unknown - strlen(unknown) - 1);
}

static bool read_text(const char *text) {
    json_error_t why;
    json_t *root = json_loads(text, 0, &why);
    assert_non_null(root);
    bool good =
        rp_params_read(root, RP_API_COMPLETIONS, &serving, on_unknown, NULL, &params, &error);
    json_decref(root);
    return good;
}

static void test_defaults_are_openais(void **state) {
    (void)state;
    assert_true(read_text("{\"prompt\":\"a\"}"));
    assert_int_equal(params.max_tokens, 16);
    assert_int_equal(params.min_tokens, 0);
    assert_true(params.temperature == 1 && params.top_p == 1 && params.min_p == 0);
    assert_int_equal(params.top_k, 0);
    assert_false(params.stream || params.has_seed || params.ignore_eos || params.include_stop);
    assert_true(params.add_special_tokens && params.skip_special_tokens);
    assert_int_equal(params.stop_id_count, 1);
    assert_int_equal(params.stop_ids[0], 7);
}

static void test_the_models_defaults_come_before_openais(void **state) {
    (void)state;
    serving.default_temperature = 0.6;
    serving.default_top_p = 0.9;
    serving.default_top_k = 20;
    assert_true(read_text("{\"prompt\":\"a\"}"));
    assert_true(params.temperature == 0.6 && params.top_p == 0.9);
    assert_int_equal(params.top_k, 20);
    assert_true(read_text("{\"prompt\":\"a\",\"temperature\":0,\"top_p\":1,\"top_k\":-1}"));
    assert_true(params.temperature == 0 && params.top_p == 1);
    assert_int_equal(params.top_k, 0);
}

static void test_null_is_absent(void **state) {
    (void)state;
    assert_true(
        read_text("{\"prompt\":\"a\",\"max_tokens\":null,\"temperature\":null,\"stop\":null,"
                  "\"n\":null,\"logprobs\":null,\"stream\":null,\"seed\":null,"
                  "\"stream_options\":null,\"stop_token_ids\":null,\"cache_salt\":null}"));
    assert_int_equal(params.max_tokens, 16);
    assert_true(params.temperature == 1);
    assert_false(params.has_seed);
    assert_int_equal(params.stop.count, 0);
}

static void test_every_field_arrives(void **state) {
    (void)state;
    assert_true(
        read_text("{\"prompt\":\"a\",\"max_tokens\":5,\"min_tokens\":5,\"temperature\":0.5,"
                  "\"top_p\":0.25,\"min_p\":0.125,\"top_k\":3,\"seed\":-4,\"stop\":[\"x\",\"yz\"],"
                  "\"stop_token_ids\":[1,99],\"stream\":true,\"cache_salt\":\"s\","
                  "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}"));
    assert_int_equal(params.max_tokens, 5);
    assert_int_equal(params.min_tokens, 5);
    assert_true(params.temperature == 0.5 && params.top_p == 0.25 && params.min_p == 0.125);
    assert_int_equal(params.top_k, 3);
    assert_true(params.has_seed && params.seed == -4);
    assert_int_equal(params.stop.count, 2);
    assert_int_equal(params.stop_id_count, 3);
    assert_int_equal(params.stop_ids[1], 99);
    assert_int_equal(params.stop_ids[2], 7);
    assert_true(params.include_usage && params.continuous_usage);
}

static void test_ignore_eos_keeps_the_clients_own_stop_ids(void **state) {
    (void)state;
    assert_true(read_text("{\"prompt\":\"a\",\"ignore_eos\":true,\"stop_token_ids\":[3]}"));
    assert_int_equal(params.stop_id_count, 1);
    assert_int_equal(params.stop_ids[0], 3);
}

static void test_all_stop_ids_fit_with_the_models(void **state) {
    char text[512] = "{\"prompt\":\"a\",\"stop_token_ids\":[1";
    (void)state;
    for (int i = 1; i < RP_STOP_IDS_MAX - 1; i++)
        strncat(text, ",1", 3);
    strncat(text, "]}", 3);
    assert_true(read_text(text));
    assert_int_equal(params.stop_id_count, RP_STOP_IDS_MAX);
}

static void test_unknown_fields_are_named_and_known_ones_are_not(void **state) {
    (void)state;
    assert_true(read_text(
        "{\"prompt\":\"a\",\"foo\":1,\"user\":\"u\",\"n\":1,\"bar\":null,\"model\":\"m\"}"));
    assert_string_equal(unknown, "foobar");
}

static void test_another_model_is_not_found(void **state) {
    json_t *root = json_pack("{s:s}", "model", "other");
    (void)state;
    assert_false(rp_params_check_model(root, &serving, &error));
    assert_int_equal(error.status, 404);
    assert_string_equal(error.param, "model");
    json_decref(root);
    memset(&params, 0, sizeof params);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_defaults_are_openais),
        TEST(test_the_models_defaults_come_before_openais),
        TEST(test_null_is_absent),
        TEST(test_every_field_arrives),
        TEST(test_ignore_eos_keeps_the_clients_own_stop_ids),
        TEST(test_all_stop_ids_fit_with_the_models),
        TEST(test_unknown_fields_are_named_and_known_ones_are_not),
        TEST(test_another_model_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
