/* Goal: invalid or unsupported keys of config.json, and what is no model directory, are refused
 * with the name of the file and the key. Method: tables of changes to a valid configuration. */
#include "tests/model/config_fixture.h"

#define HUGE_INT "9223372036854775808" /* 2^63 */
#define LLAMA3(factor, low, high, original)                                                        \
    "{\"rope_type\":\"llama3\",\"factor\":" factor ",\"low_freq_factor\":" low                     \
    ",\"high_freq_factor\":" high ",\"original_max_position_embeddings\":" original "}"

static const struct bad {
    struct entry change;
    enum rp_status status;
    const char *text; /* how the message begins */
} bad_configs[] = {
    {{"architectures", "[\"GPT2LMHeadModel\"]"},
     RP_STATUS_UNSUPPORTED,
     "config.json: architectures[0] is \"GPT2LMHeadModel\", supported: llama, mistral, qwen2, "
     "qwen3, "
     "gemma2, phi3, gemma3_text, granite, granitemoehybrid, olmo2, olmo3, smollm3, ministral, "
     "ministral3, internlm2, internlm3, stablelm, glm, glm4, cohere, cohere2, mixtral, "
     "qwen2_moe, qwen3_moe, olmoe, granitemoe, glm4_moe, deepseek_v2, deepseek_v3, kimi_k2"},
    {{"model_type", "\"granite\""},
     RP_STATUS_UNSUPPORTED,
     "config.json: model_type is \"granite\", supported: llama"},
    {{"model_type", "\"gpt2\""},
     RP_STATUS_UNSUPPORTED,
     "config.json: model_type is \"gpt2\", supported: llama, mistral, "},
    {{"is_causal", "false"}, RP_STATUS_UNSUPPORTED, "config.json: is_causal must be true"},
    {{"is_causal", "0"}, RP_STATUS_FORMAT, "config.json: is_causal"},
    {{"architectures", "\"LlamaForCausalLM\""}, RP_STATUS_FORMAT, "config.json: architectures"},
    {{"architectures", "[1]"}, RP_STATUS_FORMAT, "config.json: architectures"},
    {{"architectures", "[\"a\\u001b[31m\\n\"]"},
     RP_STATUS_UNSUPPORTED,
     "config.json: architectures[0] is \"a?[31m?\""},
    {{"quantization_config", "{\"quant_method\":\"aqlm\",\"bits\":4}"},
     RP_STATUS_UNSUPPORTED,
     "config.json: quantization_config.quant_method \"aqlm\" is not supported"},
    {{"quantization_config", "[]"},
     RP_STATUS_FORMAT,
     "config.json: quantization_config must be an object"},
    {{"num_attention_heads", "0"}, RP_STATUS_RANGE, "config.json: num_attention_heads is 0"},
    {{"num_attention_heads", "7"},
     RP_STATUS_RANGE,
     "config.json: num_key_value_heads is 4, must "
     "divide num_attention_heads 7"},
    {{"num_key_value_heads", "3"},
     RP_STATUS_RANGE,
     "config.json: num_key_value_heads is 3, must "
     "divide num_attention_heads 8"},
    {{"num_key_value_heads", "0"}, RP_STATUS_RANGE, "config.json: num_key_value_heads is 0"},
    {{"head_dim", "0"}, RP_STATUS_RANGE, "config.json: head_dim is 0"},
    {{"head_dim", "7"}, RP_STATUS_RANGE, "config.json: head_dim is 7, must be even"},
    {{"head_dim", "514"}, RP_STATUS_RANGE, "config.json: head_dim is 514"},
    {{"hidden_size", "60"},
     RP_STATUS_RANGE,
     "config.json: num_attention_heads is 8, must divide "
     "hidden_size 60"},
    {{"hidden_size", "-64"}, RP_STATUS_RANGE, "config.json: hidden_size is -64"},
    {{"hidden_size", "64.0"}, RP_STATUS_FORMAT, "config.json: hidden_size must be an integer"},
    {{"hidden_size", "\"64\""}, RP_STATUS_FORMAT, "config.json: hidden_size must be an integer"},
    {{"hidden_size", NULL}, RP_STATUS_FORMAT, "config.json: hidden_size is missing"},
    {{"hidden_size", "1099511627776"},
     RP_STATUS_RANGE,
     "config.json: hidden_size is 1099511627776"},
    {{"intermediate_size", "[64,64]"}, RP_STATUS_FORMAT, "config.json: intermediate_size must be"},
    {{"num_hidden_layers", "1000000000"},
     RP_STATUS_RANGE,
     "config.json: num_hidden_layers is 1000000000, must be 1 to 1024"},
    {{"num_hidden_layers", "0"}, RP_STATUS_RANGE, "config.json: num_hidden_layers is 0"},
    {{"vocab_size", "16777217"}, RP_STATUS_RANGE, "config.json: vocab_size is 16777217"},
    {{"vocab_size", "0"}, RP_STATUS_RANGE, "config.json: vocab_size is 0"},
    {{"max_position_embeddings", HUGE_INT}, RP_STATUS_FORMAT, "config.json: not valid JSON"},
    {{"max_position_embeddings", "16777217"},
     RP_STATUS_RANGE,
     "config.json: max_position_embeddings is 16777217"},
    {{"max_position_embeddings", "0"},
     RP_STATUS_RANGE,
     "config.json: max_position_embeddings is 0"},
    {{"rope_theta", "0"}, RP_STATUS_RANGE, "config.json: rope_theta is 0, must be above 0"},
    {{"rope_theta", "-1"}, RP_STATUS_RANGE, "config.json: rope_theta is -1"},
    {{"rope_theta", "1e309"}, RP_STATUS_FORMAT, "config.json: not valid JSON"},
    {{"rope_theta", "NaN"}, RP_STATUS_FORMAT, "config.json: not valid JSON"},
    {{"rope_theta", "true"}, RP_STATUS_FORMAT, "config.json: rope_theta must be a number"},
    {{"rms_norm_eps", "-1e-6"}, RP_STATUS_RANGE, "config.json: rms_norm_eps is -1e-06"},
    {{"rms_norm_eps", "1e300"}, RP_STATUS_RANGE, "config.json: rms_norm_eps is 1e+300"},
    {{"hidden_act", "\"relu2\""}, RP_STATUS_UNSUPPORTED, "config.json: hidden_act is \"relu2\""},
    {{"hidden_act", "1"}, RP_STATUS_FORMAT, "config.json: hidden_act must be a string"},
    {{"tie_word_embeddings", "1"}, RP_STATUS_FORMAT, "config.json: tie_word_embeddings must be"},
    {{"torch_dtype", "\"float8_e4m3fn\""},
     RP_STATUS_UNSUPPORTED,
     "config.json: torch_dtype is \"float8_e4m3fn\", supported: float32, bfloat16, float16"},
    {{"partial_rotary_factor", "0.5"}, RP_STATUS_UNSUPPORTED, "config.json: partial_rotary_factor"},
    {{"rope_scaling", "[]"}, RP_STATUS_FORMAT, "config.json: rope_scaling must be an object"},
    {{"rope_scaling", "{\"rope_type\":\"proportional\",\"factor\":4.0}"},
     RP_STATUS_UNSUPPORTED,
     "config.json: rope_scaling: rope_type is \"proportional\", supported: default, linear, "
     "dynamic, "
     "llama3, yarn, longrope"},
    {{"rope_scaling", "{\"type\":\"longrope\",\"long_factor\":[1,1,1,1]}"},
     RP_STATUS_FORMAT,
     "config.json: rope_scaling: short_factor must be a list of 4 numbers"},
    {{"rope_scaling", "{\"type\":\"longrope\",\"short_factor\":[1,1,1],\"long_factor\":[1,1,1,1]}"},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: short_factor must be a list of 4 numbers"},
    {{"rope_scaling",
      "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,0,1,1]}"},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: long_factor must be a list of 4 numbers"},
    {{"rope_scaling", "{\"type\":\"dynamic\"}"},
     RP_STATUS_FORMAT,
     "config.json: rope_scaling: factor is missing"},
    {{"rope_scaling", "{\"type\":\"yarn\",\"rope_type\":\"linear\",\"factor\":2}"},
     RP_STATUS_FORMAT,
     "config.json: rope_scaling: type differs from rope_type"},
    {{"rope_scaling", "{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":0.5}"},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: beta_fast must be at least beta_slow"},
    {{"rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1]}"},
     RP_STATUS_UNSUPPORTED,
     "config.json: rope_scaling: mrope_section is not supported"},
    {{"rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"rope_theta\":5}"},
     RP_STATUS_FORMAT,
     "config.json: rope_scaling: rope_theta differs from the key outside"},
    {{"rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"llama_4_scaling_beta\":0.1}"},
     RP_STATUS_UNSUPPORTED,
     "config.json: rope_scaling: llama_4_scaling_beta is not supported"},
    {{"logits_scaling", "8"},
     RP_STATUS_UNSUPPORTED,
     "config.json: logits_scaling is not known in this family"},
    {{"scale_attn_by_layer", "true"},
     RP_STATUS_UNSUPPORTED,
     "config.json: scale_attn_by_layer is not known in this family"},
    {{"rope_scaling", "{\"type\":\"linear\"}"},
     RP_STATUS_FORMAT,
     "config.json: rope_scaling: factor is missing"},
    {{"rope_scaling", "{\"type\":\"linear\",\"factor\":0}"},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: factor is 0"},
    {{"rope_scaling", LLAMA3("8", "4", "4", "8192")},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: high_freq_factor must be above low_freq_factor"},
    {{"rope_scaling", LLAMA3("8", "1", "4", "0")},
     RP_STATUS_RANGE,
     "config.json: rope_scaling: original_max_position_embeddings is 0"},
    {{"rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}"},
     RP_STATUS_UNSUPPORTED,
     "config.json: rope_parameters per layer type"},
    {{"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":-5}"},
     RP_STATUS_RANGE,
     "config.json: rope_parameters: rope_theta is -5"},
    {{"layer_types", "[\"full_attention\"]"},
     RP_STATUS_FORMAT,
     "config.json: layer_types must be a list of num_hidden_layers 6"},
    {{"layer_types", "[\"linear_attention\",\"full_attention\",\"full_attention\","
                     "\"full_attention\",\"full_attention\",\"full_attention\"]"},
     RP_STATUS_UNSUPPORTED,
     "config.json: layer_types[0] is \"linear_attention\""},
    {{"layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\","
                     "\"full_attention\",\"full_attention\",\"full_attention\"]"},
     RP_STATUS_UNSUPPORTED,
     "config.json: layer_types has sliding_attention, but"},
    {{"eos_token_id", "512"},
     RP_STATUS_RANGE,
     "config.json: eos_token_id is 512, must be 0 to 511"},
    {{"eos_token_id", "[2,-1]"}, RP_STATUS_RANGE, "config.json: eos_token_id is -1"},
    {{"eos_token_id", "\"</s>\""},
     RP_STATUS_FORMAT,
     "config.json: eos_token_id must be an integer"},
    {{"eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"},
     RP_STATUS_RANGE,
     "config.json: eos_token_id has more than 16"},
    {{"bos_token_id", "4294967296"}, RP_STATUS_RANGE, "config.json: bos_token_id is 4294967296"},
    {{"a\":1,\"a", "2"}, RP_STATUS_FORMAT, "config.json: not valid JSON: line 1"},
};

static void test_bad_values_are_refused_with_file_and_key(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad_configs); i++) {
        const struct bad *bad = &bad_configs[i];
        write_config(f, &bad->change, 1);
        int status = load(f);
        if (status != (int)bad->status || f->err.status != bad->status ||
            strncmp(f->err.text, bad->text, strlen(bad->text)) != 0)
            fail_msg("%s = %s: expected %s \"%s\", got %s \"%s\"", bad->change.key,
                     bad->change.value ? bad->change.value : "(absent)",
                     rp_status_name(bad->status), bad->text, rp_status_name(status),
                     status ? f->err.text : "");
    }
}

static void test_the_first_of_several_mistakes_is_reported_whole(void **state) {
    struct fixture *f = *state;
    const struct entry changes[] = {
        {"rope_theta", "\"x\""}, {"rope_scaling", "{\"rope_type\":\"x\"}"}, {"attention_y", "1"}};
    write_config(f, changes, 3);
    assert_int_equal(load(f), RP_STATUS_FORMAT);
    assert_int_equal(f->err.status, RP_STATUS_FORMAT);
    assert_string_equal(f->err.text, "config.json: rope_theta must be a number");
    assert_string_equal(f->err.hint, "");
}

static void test_weights_that_a_family_lacks_are_refused(void **state) {
    struct fixture *f = *state;
    const struct entry mistral[] = {{"architectures", "[\"MistralForCausalLM\"]"},
                                    {"attention_bias", "true"}};
    const struct entry qwen[] = {{"architectures", "[\"Qwen3ForCausalLM\"]"}, {"mlp_bias", "true"}};
    write_config(f, mistral, 2);
    assert_int_equal(load(f), RP_STATUS_UNSUPPORTED);
    assert_string_equal(f->err.text, "config.json: attention_bias is not supported in this family");
    write_config(f, qwen, 2);
    assert_int_equal(load(f), RP_STATUS_UNSUPPORTED);
}

static void test_what_gemma2_cannot_have_is_refused(void **state) {
    struct fixture *f = *state;
    static const struct {
        struct entry change;
        const char *text;
    } bad[] = {
        {{"final_logit_softcapping", "0"},
         "config.json: final_logit_softcapping is 0, must be above 0"},
        {{"attn_logit_softcapping", "-1"}, "config.json: attn_logit_softcapping is -1"},
        {{"query_pre_attn_scalar", "0"}, "config.json: query_pre_attn_scalar is 0"},
        {{"hidden_activation", "\"gelu\""}, "config.json: hidden_activation is \"gelu\""},
        {{"use_bidirectional_attention", "true"}, "config.json: use_bidirectional_attention must"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        const struct entry changes[] = {GEMMA, bad[i].change};
        write_config(f, changes, RP_ARRAY_COUNT(changes));
        assert_int_not_equal(load(f), RP_OK);
        assert_memory_equal(f->err.text, bad[i].text, strlen(bad[i].text));
    }
}

static void test_files_that_are_no_configuration_are_refused(void **state) {
    struct fixture *f = *state;
    static const char *const texts[] = {
        "", "[]", "null", "{", "{}x", "\xEF\xBB\xBF{}", "{\"a\":\"\xC0\x80\"}"};
    assert_int_equal(load(f), RP_STATUS_NOT_FOUND);
    assert_non_null(strstr(f->err.text, "config.json"));
    assert_true(f->err.hint[0] != '\0');
    for (size_t i = 0; i < RP_ARRAY_COUNT(texts); i++) {
        rp_test_file_text(&f->dir, "config.json", texts[i]);
        assert_int_equal(load(f), RP_STATUS_FORMAT);
        assert_non_null(strstr(f->err.text, "config.json: "));
    }
}

static void check_refusal(struct fixture *f, const char *path, int status, const char *text,
                          const char *hint) {
    assert_int_equal(rp_model_dir_check(path, &f->err), status);
    if (!strstr(f->err.text, text) || !strstr(f->err.hint, hint))
        fail_msg("%s: \"%s\", hint \"%s\"", path, f->err.text, f->err.hint);
}

static void test_what_is_no_model_directory_is_refused_by_what_it_is(void **state) {
    struct fixture *f = *state;
    char path[300];
    check_refusal(f, "/nowhere/at/all", RP_STATUS_NOT_FOUND,
                  "/nowhere/at/all: no such model directory", "config.json");
    check_refusal(f, "some-org/some-model", RP_STATUS_NOT_FOUND, "no such model directory",
                  "reprise pull");
    check_refusal(f, "./nowhere", RP_STATUS_NOT_FOUND, "no such model directory", "config.json");
    assert_int_equal(rp_model_dir_check(f->dir.path, &f->err), RP_OK); /* names what is missing */
    rp_test_file_text(&f->dir, "model.gguf", "GGUF");
    check_refusal(f, f->dir.path, RP_STATUS_INVALID, "directory with GGUF files",
                  "the path of one");
    snprintf(path, sizeof path, "%s/model.gguf", f->dir.path);
    assert_int_equal(rp_model_dir_check(path, &f->err), RP_OK);
    rp_test_file_text(&f->dir, "adapter_config.json", "{}");
    check_refusal(f, f->dir.path, RP_STATUS_UNSUPPORTED, "LoRA", "merge");
    rp_test_file_text(&f->dir, "config.json", "{}");
    assert_int_equal(rp_model_dir_check(f->dir.path, &f->err), RP_OK);
    rp_test_file_text(&f->dir, "tokenizer.model", "x");
    assert_int_equal(rp_model_dir_check(f->dir.path, &f->err), RP_OK); /* read directly */
    rp_test_file_text(&f->dir, "tokenizer.json", "{}");
    assert_int_equal(rp_model_dir_check(f->dir.path, &f->err), RP_OK);
    snprintf(path, sizeof path, "%s/config.json", f->dir.path);
    assert_int_equal(rp_model_dir_check(path, &f->err), RP_STATUS_INVALID);
}

static void test_a_git_lfs_pointer_is_named(void **state) {
    struct fixture *f = *state;
    rp_test_file_text(&f->dir, "config.json",
                      "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
    assert_int_equal(load(f), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "config.json: a git-lfs pointer"));
    assert_non_null(strstr(f->err.hint, "git lfs pull"));
}

static void test_a_deep_or_wide_file_costs_little_and_is_refused(void **state) {
    struct fixture *f = *state;
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    for (int i = 0; i < 100000; i++)
        rp_buffer_puts(&text, "[");
    rp_test_file_write(&f->dir, "config.json", text.data, text.len);
    assert_int_equal(load(f), RP_STATUS_FORMAT);
    rp_buffer_clear(&text);
    rp_buffer_puts(&text, "[");
    for (int i = 0; i < 1000000; i++)
        rp_buffer_puts(&text, "{},");
    rp_buffer_puts(&text, "{}]");
    rp_test_file_write(&f->dir, "config.json", text.data, text.len);
    rp_buffer_deinit(&text);
    assert_int_equal(load(f), RP_STATUS_RANGE);
    assert_string_equal(f->err.text, "config.json: JSON with too many values");
}

static void test_a_bad_generation_config_is_refused_by_its_own_name(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *json, *text;
    } bad[] = {
        {"{\"temperature\":-1}", "generation_config.json: temperature is -1"},
        {"{\"top_p\":1.5}", "generation_config.json: top_p is 1.5"},
        {"{\"top_k\":-2}", "generation_config.json: top_k is -2"},
        {"{\"eos_token_id\":[600]}", "generation_config.json: eos_token_id is 600"},
        {"[]", "generation_config.json: must be an object"},
        {"{", "generation_config.json: not valid JSON"},
    };
    write_config(f, NULL, 0);
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        rp_test_file_text(&f->dir, "generation_config.json", bad[i].json);
        assert_int_not_equal(load(f), RP_OK);
        assert_memory_equal(f->err.text, bad[i].text, strlen(bad[i].text));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_bad_values_are_refused_with_file_and_key),
        TEST(test_the_first_of_several_mistakes_is_reported_whole),
        TEST(test_weights_that_a_family_lacks_are_refused),
        TEST(test_what_gemma2_cannot_have_is_refused),
        TEST(test_files_that_are_no_configuration_are_refused),
        TEST(test_what_is_no_model_directory_is_refused_by_what_it_is),
        TEST(test_a_git_lfs_pointer_is_named),
        TEST(test_a_deep_or_wide_file_costs_little_and_is_refused),
        TEST(test_a_bad_generation_config_is_refused_by_its_own_name),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
