/* Goal: config.json is read as transformers reads it, and invalid or unsupported keys are refused
 * with the name of the file and the key. Method: a valid configuration, and tables of changes to
 * it. */
#include "base/buffer.h"
#include "model/model.h"
#include "tests/support/model_files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_test_dir dir;
    struct rp_model_config config;
    struct rp_error err;
};

static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    rp_test_dir_create(&fixture.dir);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* A key and the JSON text of its value; value NULL removes the key. */
struct entry {
    const char *key, *value;
};

static const struct entry good[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"model_type", "\"llama\""},
    {"hidden_size", "64"},
    {"intermediate_size", "172"},
    {"num_hidden_layers", "6"},
    {"num_attention_heads", "8"},
    {"num_key_value_heads", "4"},
    {"vocab_size", "512"},
    {"max_position_embeddings", "2048"},
    {"rms_norm_eps", "1e-05"},
    {"rope_theta", "10000.0"},
    {"hidden_act", "\"silu\""},
    {"tie_word_embeddings", "false"},
    {"torch_dtype", "\"bfloat16\""},
    {"bos_token_id", "1"},
    {"eos_token_id", "2"},
};

/* Writes the valid configuration with up to `count` entries changed or added; another architecture
 * removes the model_type. */
static void write_config(struct fixture *f, const struct entry *changes, size_t count) {
    struct rp_buffer text;
    bool first = true;
    rp_buffer_init(&text, 0);
    rp_buffer_puts(&text, "{");
    for (size_t i = 0; i < RP_ARRAY_COUNT(good) + count; i++) {
        const struct entry *entry =
            i < RP_ARRAY_COUNT(good) ? &good[i] : &changes[i - RP_ARRAY_COUNT(good)];
        bool changed = false;
        for (size_t c = 0; i < RP_ARRAY_COUNT(good) && c < count; c++)
            changed =
                changed || (changes[c].key &&
                            (strcmp(changes[c].key, entry->key) == 0 ||
                             (strcmp(entry->key, "model_type") == 0 &&
                              strcmp(changes[c].key, "architectures") == 0 && changes[c].value)));
        if (changed || !entry->key || !entry->value)
            continue;
        rp_buffer_printf(&text, "%s\"%s\":%s", first ? "" : ",", entry->key, entry->value);
        first = false;
    }
    rp_buffer_puts(&text, "}");
    rp_test_file_write(&f->dir, "config.json", text.data, text.len);
    rp_buffer_deinit(&text);
}

static int load(struct fixture *f) {
    return rp_model_config_load(f->dir.path, &f->config, &f->err);
}

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

#define GEMMA                                                                                      \
    {"architectures", "[\"Gemma2ForCausalLM\"]"}, { "tie_word_embeddings", NULL }

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

static void test_what_gemma2_cannot_have_is_refused(void **state) {
    struct fixture *f = *state;
    static const struct bad {
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
        TEST(test_what_gemma2_cannot_have_is_refused),
        TEST(test_the_text_part_of_a_model_with_images_is_read),
        TEST(test_rope_scaling_is_read_in_its_old_and_new_spelling),
        TEST(test_the_newer_key_dtype_is_read_too),
        TEST(test_generation_config_adds_stop_ids_and_sampling_defaults),
        TEST(test_bad_values_are_refused_with_file_and_key),
        TEST(test_the_first_of_several_mistakes_is_reported_whole),
        TEST(test_weights_that_a_family_lacks_are_refused),
        TEST(test_files_that_are_no_configuration_are_refused),
        TEST(test_what_is_no_model_directory_is_refused_by_what_it_is),
        TEST(test_a_git_lfs_pointer_is_named),
        TEST(test_a_deep_or_wide_file_costs_little_and_is_refused),
        TEST(test_a_bad_generation_config_is_refused_by_its_own_name),
        TEST(test_named_shapes_are_found_and_unknown_ones_get_the_list),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
