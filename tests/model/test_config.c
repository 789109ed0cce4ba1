/* Goal: config.json is read as transformers reads it. Method: a valid configuration, and changes to
 * it. */
#include "tests/model/config_fixture.h"

#include <math.h>

static void load_changed(struct fixture *f, const struct entry *changes, size_t count) {
    write_config(f, changes, count);
    if (load(f) != RP_OK)
        fail_msg("%s", f->err.text);
}
#define LOAD(f, ...)                                                                               \
    do {                                                                                           \
        const struct entry changes[] = {__VA_ARGS__};                                              \
        load_changed(f, changes, RP_ARRAY_COUNT(changes));                                         \
    } while (0)

static void test_a_llama_configuration_is_read(void **state) {
    struct fixture *f = *state;
    LOAD(f, {NULL, NULL});
    const struct rp_model_config *c = &f->config;
    assert_int_equal(c->family, RP_FAMILY_LLAMA);
    assert_string_equal(c->architecture, "LlamaForCausalLM");
    assert_int_equal(c->hidden, 64);
    assert_int_equal(c->intermediate, 172);
    assert_int_equal(c->layers, 6);
    assert_int_equal(c->heads, 8);
    assert_int_equal(c->kv_heads, 4);
    assert_int_equal(c->head_dim, 8);
    assert_int_equal(c->vocab, 512);
    assert_int_equal(c->max_position, 2048);
    assert_true(c->norm_eps == 1e-5f);
    assert_true(c->rope.theta == 10000.0);
    assert_int_equal(c->rope.kind, RP_ROPE_DEFAULT);
    assert_int_equal(c->activation, RP_ACTIVATION_SILU);
    assert_int_equal(c->file_dtype, RP_DTYPE_BF16);
    assert_int_equal(c->bos_id, 1);
    assert_int_equal(c->eos_count, 1);
    assert_int_equal(c->eos_ids[0], 2);
    assert_int_equal(c->window, 0);
    assert_false(c->tied || c->qkv_bias || c->o_bias || c->mlp_bias || c->qk_norm);
    assert_true(isnan(c->default_temperature) && isnan(c->default_top_p));
}

static void test_absent_keys_have_the_defaults_of_transformers(void **state) {
    struct fixture *f = *state;
    LOAD(f, {"architectures", NULL}, {"num_key_value_heads", NULL}, {"rms_norm_eps", NULL},
         {"rope_theta", NULL}, {"hidden_act", NULL}, {"tie_word_embeddings", NULL},
         {"torch_dtype", NULL}, {"bos_token_id", "null"}, {"eos_token_id", NULL},
         {"max_position_embeddings", NULL});
    assert_int_equal(f->config.family, RP_FAMILY_LLAMA);
    assert_int_equal(f->config.kv_heads, 8);
    assert_true(f->config.norm_eps == 1e-6f);
    assert_true(f->config.rope.theta == 10000.0);
    assert_false(f->config.tied);
    assert_int_equal(f->config.file_dtype, RP_DTYPE_F32);
    assert_int_equal(f->config.bos_id, RP_ID_NONE);
    assert_int_equal(f->config.eos_count, 0);
    assert_int_equal(f->config.max_position, 2048);
}

static void test_each_family_has_its_biases_norms_and_head_size(void **state) {
    struct fixture *f = *state;
    LOAD(f, {"attention_bias", "true"}, {"mlp_bias", "true"});
    assert_true(f->config.qkv_bias && f->config.o_bias && f->config.mlp_bias);
    LOAD(f, {"architectures", "[\"Qwen2ForCausalLM\"]"}, {"attention_bias", "true"});
    assert_true(f->config.qkv_bias && !f->config.o_bias); /* fixed by its class */
    LOAD(f, {"architectures", "[\"Qwen2ForCausalLM\"]"});
    assert_true(f->config.qkv_bias && !f->config.o_bias && !f->config.qk_norm);
    assert_int_equal(f->config.head_dim, 8);
    LOAD(f, {"architectures", "[\"Qwen3ForCausalLM\"]"});
    assert_true(!f->config.qkv_bias && f->config.qk_norm);
    assert_int_equal(f->config.head_dim, 128);
    LOAD(f, {"architectures", "[\"Qwen3ForCausalLM\"]"}, {"head_dim", "32"},
         {"attention_bias", "true"});
    assert_int_equal(f->config.head_dim, 32);
    assert_true(f->config.qkv_bias && f->config.o_bias);
    LOAD(f, {"architectures", "[\"MistralForCausalLM\"]"}, {"head_dim", "16"});
    assert_int_equal(f->config.family, RP_FAMILY_MISTRAL);
    assert_int_equal(f->config.head_dim, 16);
}

/* Bit i is set if layer i has the window. */
static uint32_t windows(const struct fixture *f) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < f->config.layers; i++)
        bits |= (rp_model_window(&f->config, i) ? 1u : 0u) << i;
    return bits;
}

static void test_the_window_follows_each_familys_rules(void **state) {
    struct fixture *f = *state;
    LOAD(f, {"sliding_window", "128"}); /* Llama has none */
    assert_int_equal(f->config.window, 0);
    LOAD(f, {"architectures", "[\"MistralForCausalLM\"]"}, {"sliding_window", "128"});
    assert_int_equal(f->config.window, 128);
    assert_int_equal(windows(f), 0x3F);
    LOAD(f, {"architectures", "[\"MistralForCausalLM\"]"}, {"sliding_window", "null"});
    assert_int_equal(f->config.window, 0);
    LOAD(f, {"architectures", "[\"MistralForCausalLM\"]"});
    assert_int_equal(f->config.window, 4096);
    LOAD(f, {"architectures", "[\"Qwen2ForCausalLM\"]"}, {"sliding_window", "128"},
         {"use_sliding_window", "false"}, {"max_window_layers", "2"});
    assert_int_equal(f->config.window, 0);
    LOAD(f, {"architectures", "[\"Qwen2ForCausalLM\"]"}, {"sliding_window", "128"},
         {"use_sliding_window", "true"}, {"max_window_layers", "2"});
    assert_int_equal(f->config.window, 128);
    assert_int_equal(windows(f), 0x3C);
    LOAD(f, {"architectures", "[\"Qwen3ForCausalLM\"]"}, {"sliding_window", "128"},
         {"use_sliding_window", "true"}, {"max_window_layers", "6"});
    assert_int_equal(f->config.window, 0);
    LOAD(f, {"architectures", "[\"Qwen2ForCausalLM\"]"}, {"sliding_window", "128"},
         {"use_sliding_window", "true"}, {"max_window_layers", "6"},
         {"layer_types", "[\"full_attention\",\"full_attention\",\"full_attention\","
                         "\"full_attention\",\"full_attention\",\"sliding_attention\"]"});
    assert_int_equal(f->config.window, 128);
    assert_int_equal(windows(f), 0x20);
    LOAD(f, {"architectures", "[\"MistralForCausalLM\"]"}, {"sliding_window", "128"},
         {"layer_types", "[\"full_attention\",\"sliding_attention\",\"full_attention\","
                         "\"sliding_attention\",\"sliding_attention\",\"full_attention\"]"});
    assert_int_equal(windows(f), 0x1A);
}

static void test_gemma2_has_caps_norms_scales_and_a_window_in_every_second_layer(void **state) {
    struct fixture *f = *state;
    const struct rp_model_config *c = &f->config;
    LOAD(f, GEMMA, {"hidden_act", "\"silu\""}); /* its class reads hidden_activation */
    assert_int_equal(c->family, RP_FAMILY_GEMMA2);
    assert_int_equal(c->head_dim, 256);
    assert_int_equal(c->activation, RP_ACTIVATION_GELU_TANH);
    assert_int_equal(c->window, 4096);
    assert_int_equal(windows(f), 0x15);
    assert_true(c->tied && c->post_norms && c->embed_scaled && c->norm_offset == 1);
    assert_true(c->attention_cap == 50 && c->logit_cap == 30 && c->query_scalar == 256);
    LOAD(f, GEMMA, {"attn_logit_softcapping", "null"}, {"final_logit_softcapping", "12.5"},
         {"query_pre_attn_scalar", "144"}, {"head_dim", "32"}, {"sliding_window", "7"},
         {"layer_types", "[\"full_attention\",\"sliding_attention\",\"full_attention\","
                         "\"sliding_attention\",\"full_attention\",\"full_attention\"]"});
    assert_true(c->attention_cap == 0 && c->logit_cap == 12.5f && c->query_scalar == 144);
    assert_int_equal(c->head_dim, 32);
    assert_int_equal(c->window, 7);
    assert_int_equal(windows(f), 0x0A);
    LOAD(f, GEMMA, {"sliding_window", "null"});
    assert_int_equal(windows(f), 0);
}

#define TEXT                                                                                       \
    "{\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":7,\"sliding_window\":9,"   \
    "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}"

static void test_the_text_part_of_a_model_with_images_is_read(void **state) {
    struct fixture *f = *state;
    const struct rp_model_config *c = &f->config;
    rp_test_file_text(
        &f->dir, "config.json",
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\","
        "\"eos_token_id\":[1,106],\"torch_dtype\":\"bfloat16\",\"text_config\":" TEXT "}}");
    if (load(f) != RP_OK)
        fail_msg("%s", f->err.text);
    assert_true(c->wrapped && c->family == RP_FAMILY_GEMMA3 && c->tied);
    assert_true(c->heads == 8 && c->kv_heads == 4 && c->head_dim == 256 && c->vocab == 262208);
    assert_true(c->max_position == 131072 && c->file_dtype == RP_DTYPE_BF16 && c->eos_count == 2);
    assert_int_equal(windows(f), 0x5F); /* every sixth layer is full */
    assert_true(rp_model_rope(c, 5)->kind == RP_ROPE_LINEAR && rp_model_rope(c, 5)->theta == 1e6);
    assert_true(rp_model_rope(c, 0)->kind == RP_ROPE_DEFAULT && rp_model_rope(c, 0)->theta == 1e4);
    static const struct {
        const char *json, *text;
    } bad[] = {
        {"{\"model_type\":\"gemma3\"}", "config.json: text_config must be an object"},
        {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mamba\"}}",
         "config.json: text_config: model_type is \"mamba\", supported: llama, "},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":0}}",
         "config.json: text_config: hidden_size is 0"},
        {"{\"model_type\":\"gemma3\",\"tie_word_embeddings\":false,\"text_config\":" TEXT
         ",\"tie_word_embeddings\":true}}",
         "config.json: tie_word_embeddings differs from that of text_config"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        rp_test_file_text(&f->dir, "config.json", bad[i].json);
        assert_int_not_equal(load(f), RP_OK);
        if (strncmp(f->err.text, bad[i].text, strlen(bad[i].text)) != 0)
            fail_msg("%s", f->err.text);
    }
}

static void test_rope_scaling_is_read_in_its_old_and_new_spelling(void **state) {
    struct fixture *f = *state;
    LOAD(f,
         {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,"
                          "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"},
         {"rope_theta", "500000"});
    assert_int_equal(f->config.rope.kind, RP_ROPE_LLAMA3);
    assert_true(f->config.rope.factor == 32 && f->config.rope.low_freq_factor == 1 &&
                f->config.rope.high_freq_factor == 4 && f->config.rope.theta == 500000);
    assert_int_equal(f->config.rope.original_max_position, 8192);
    LOAD(f, {"rope_scaling", "{\"type\":\"linear\",\"factor\":2.5}"});
    assert_int_equal(f->config.rope.kind, RP_ROPE_LINEAR);
    assert_true(f->config.rope.factor == 2.5);
    LOAD(f, {"rope_theta", NULL},
         {"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":1000000.0}"});
    assert_int_equal(f->config.rope.kind, RP_ROPE_DEFAULT);
    assert_true(f->config.rope.theta == 1000000.0);
    LOAD(f, {"rope_scaling", "null"});
    assert_int_equal(f->config.rope.kind, RP_ROPE_DEFAULT);
}

static void test_the_newer_key_dtype_is_read_too(void **state) {
    struct fixture *f = *state;
    LOAD(f, {"torch_dtype", NULL}, {"dtype", "\"float16\""});
    assert_int_equal(f->config.file_dtype, RP_DTYPE_F16);
    LOAD(f, {"hidden_act", "\"gelu_pytorch_tanh\""});
    assert_int_equal(f->config.activation, RP_ACTIVATION_GELU_TANH);
}

static void test_generation_config_adds_stop_ids_and_sampling_defaults(void **state) {
    struct fixture *f = *state;
    rp_test_file_text(&f->dir, "generation_config.json",
                      "{\"eos_token_id\":[7,2,9],\"bos_token_id\":3,\"temperature\":0.6,"
                      "\"top_p\":0.9,\"top_k\":20,\"do_sample\":true}");
    LOAD(f, {"bos_token_id", NULL});
    assert_int_equal(f->config.eos_count, 3);
    assert_int_equal(f->config.eos_ids[0], 2);
    assert_int_equal(f->config.eos_ids[1], 7);
    assert_int_equal(f->config.eos_ids[2], 9);
    assert_int_equal(f->config.bos_id, 3);
    assert_true(f->config.default_temperature == 0.6f && f->config.default_top_p == 0.9f);
    assert_int_equal(f->config.default_top_k, 20);
    rp_test_file_text(&f->dir, "generation_config.json", "{\"top_k\":-1}");
    LOAD(f, {NULL, NULL});
    assert_int_equal(f->config.default_top_k, 0);
}

static void test_named_shapes_are_found_and_unknown_ones_get_the_list(void **state) {
    struct fixture *f = *state;
    static const char *const names[] = {"llama-3.2-1b",  "llama-3.2-3b",
                                        "llama-3.1-8b",  "qwen2.5-0.5b",
                                        "qwen3-0.6b",    "qwen3-8b",
                                        "mistral-7b",    "demo",
                                        "stories260k",   "gemma-2-2b",
                                        "gemma-2-9b",    "gemma-2-27b",
                                        "qwen3-30b-a3b", "qwen3-30b-a3b-8-layers",
                                        "lfm2-1.2b",     "qwen3.5-35b-a3b"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
        assert_int_equal(rp_model_shape(names[i], &f->config, &f->err), RP_OK);
    assert_int_equal(rp_model_shape("gpt-5", &f->config, &f->err), RP_STATUS_NOT_FOUND);
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++)
        assert_non_null(strstr(f->err.text, names[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_a_llama_configuration_is_read),
        TEST(test_absent_keys_have_the_defaults_of_transformers),
        TEST(test_each_family_has_its_biases_norms_and_head_size),
        TEST(test_the_window_follows_each_familys_rules),
        TEST(test_gemma2_has_caps_norms_scales_and_a_window_in_every_second_layer),
        TEST(test_the_text_part_of_a_model_with_images_is_read),
        TEST(test_rope_scaling_is_read_in_its_old_and_new_spelling),
        TEST(test_the_newer_key_dtype_is_read_too),
        TEST(test_generation_config_adds_stop_ids_and_sampling_defaults),
        TEST(test_named_shapes_are_found_and_unknown_ones_get_the_list),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
