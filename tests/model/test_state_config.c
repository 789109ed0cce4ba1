/* Goal: configurations of models with recurrent state are read as transformers reads them, and what
 * is not supported is refused with file and key.
 * Method: small config.json files; the published keys of LFM2 and Qwen3.5 among them. */
#include "model/model.h"
#include "tests/support/model_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct rp_test_dir dir;
static struct rp_model_config config;
static struct rp_error err;

static int setup(void **state) {
    (void)state;
    rp_test_dir_create(&dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rp_test_dir_remove(&dir);
    return 0;
}

#define LFM2                                                                                       \
    "\"architectures\":[\"Lfm2ForCausalLM\"],\"model_type\":\"lfm2\",\"hidden_size\":64,"          \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":"  \
    "100,\"torch_dtype\":\"bfloat16\""
#define QWEN                                                                                       \
    "\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"hidden_size\":"  \
    "64,\"num_hidden_layers\":8,\"num_attention_heads\":4,\"num_key_value_heads\":2,"              \
    "\"vocab_size\":100,\"intermediate_size\":96"

static int load(const char *keys, const char *more) {
    char text[2048];
    snprintf(text, sizeof text, "{%s%s}", keys, more);
    rp_test_file_text(&dir, "config.json", text);
    memset(&err, 0, sizeof err);
    return rp_model_config_load(dir.path, &config, &err);
}

static void load_or_fail(const char *keys, const char *more) {
    if (load(keys, more) != RP_OK)
        fail_msg("%s", err.text);
}

static void test_published_keys_of_lfm2_are_read(void **state) {
    (void)state;
    load_or_fail(LFM2, ",\"block_auto_adjust_ff_dim\":true,\"block_dim\":64,\"block_ff_dim\":12288,"
                       "\"block_ffn_dim_multiplier\":1.0,\"block_mlp_init_scale\":1.0,"
                       "\"block_multiple_of\":256,\"block_norm_eps\":1e-5,"
                       "\"block_out_init_scale\":1.0,\"block_use_swiglu\":true,\"conv_L_cache\":3,"
                       "\"conv_bias\":false,\"conv_dim\":64,\"full_attn_idxs\":[1,3],"
                       "\"norm_eps\":1e-5,\"num_heads\":4,\"rope_theta\":1000000.0,"
                       "\"use_pos_enc\":true,\"use_cache\":true");
    assert_int_equal(config.family, RP_FAMILY_LFM2);
    assert_int_equal(config.state.layers[0], 5); /* layers 0 and 2 */
    assert_int_equal(config.state.conv_width, 3);
    assert_int_equal(config.state.value_heads, 0);
    assert_int_equal(config.intermediate, 8192); /* 2 / 3 of 12288, a multiple of 256 */
    assert_true(config.tied && config.qk_norm == RP_QK_NORM_HEAD);
    assert_int_equal(rp_model_conv_cols(&config), 64);
}

static void test_layer_types_win_and_the_mlp_may_keep_its_width(void **state) {
    (void)state;
    load_or_fail(LFM2, ",\"layer_types\":[\"full_attention\",\"conv\",\"conv\",\"conv\"],"
                       "\"full_attn_idxs\":[0],\"intermediate_size\":96,\"tie_embedding\":false,"
                       "\"block_auto_adjust_ff_dim\":false");
    assert_int_equal(config.state.layers[0], 14);
    assert_int_equal(config.intermediate, 96);
    assert_false(config.tied);
    load_or_fail(LFM2, ",\"intermediate_size\":96,\"block_ffn_dim_multiplier\":1.5,"
                       "\"block_multiple_of\":10");
    assert_int_equal(config.intermediate, 100);  /* 64 * 1.5 = 96, rounded up */
    assert_int_equal(config.state.layers[0], 0); /* all have attention */
}

static void test_published_keys_of_qwen3_5_are_read(void **state) {
    (void)state;
    load_or_fail(QWEN,
                 ",\"attn_output_gate\":true,\"full_attention_interval\":4,\"head_dim\":32,"
                 "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":12,"
                 "\"linear_num_key_heads\":2,\"linear_num_value_heads\":6,"
                 "\"linear_value_head_dim\":20,\"mamba_ssm_dtype\":\"float32\","
                 "\"mtp_num_hidden_layers\":1,\"rope_parameters\":{\"mrope_interleaved\":true,"
                 "\"mrope_section\":[11,11,10],\"rope_type\":\"default\",\"rope_theta\":10000000,"
                 "\"partial_rotary_factor\":0.25}");
    assert_int_equal(config.state.layers[0], 0x77); /* every fourth has attention */
    assert_int_equal(rp_model_conv_cols(&config), 2 * 2 * 12 + 6 * 20);
    assert_true(config.output_gate && config.norm_offset == 1.0f);
    assert_int_equal(config.rope.rotary_dim, 8);
}

static void test_the_text_part_of_a_qwen3_5_with_images_is_read(void **state) {
    (void)state;
    load_or_fail("\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":"
                 "\"qwen3_5\",\"text_config\":{" QWEN "}",
                 ",\"vision_config\":{\"hidden_size\":8}");
    assert_int_equal(config.family, RP_FAMILY_QWEN3_5);
    assert_true(config.wrapped);
}

static void test_what_is_not_supported_is_refused_with_its_key(void **state) {
    static const struct {
        const char *keys, *more, *text;
    } bad[] = {
        {LFM2, ",\"conv_bias\":true", "conv_bias is not supported"},
        {LFM2, ",\"conv_L_cache\":9", "conv_L_cache is 9"},
        {LFM2, ",\"layer_types\":[\"conv\"]", "layer_types must be a list of num_hidden_layers 4"},
        {LFM2, ",\"layer_types\":[\"conv\",\"mamba\",\"conv\",\"full_attention\"]",
         "layer_types[1] is \"mamba\", supported: full_attention, conv"},
        {LFM2, ",\"layer_types\":[\"conv\",\"conv\",\"conv\",\"conv\"]",
         "layer_types leaves no layer with attention"},
        {LFM2, ",\"layer_types\":[1,2,3,4]", "layer_types[0]"},
        {LFM2, ",\"full_attn_idxs\":3", "full_attn_idxs must be a list"},
        {LFM2, ",\"full_attn_idxs\":[-1]", "full_attn_idxs"},
        {LFM2, ",\"intermediate_size\":1", "intermediate_size gives an MLP of no width"},
        {LFM2, ",\"block_ffn_dim_multiplier\":0", "block_ffn_dim_multiplier"},
        {QWEN, ",\"attn_output_gate\":false", "attn_output_gate must be true"},
        {QWEN, ",\"hidden_act\":\"gelu_pytorch_tanh\"", "hidden_act must be silu"},
        {QWEN, ",\"linear_num_key_heads\":3,\"linear_num_value_heads\":4",
         "linear_num_value_heads must be a multiple of linear_num_key_heads"},
        {QWEN, ",\"linear_key_head_dim\":257", "linear_key_head_dim is 257"},
        {QWEN, ",\"full_attention_interval\":1",
         "layer_types must have a linear_attention in this family"},
        {QWEN, ",\"full_attention_interval\":9",
         "num_hidden_layers leaves no layer with attention"},
    };
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        assert_int_not_equal(load(bad[i].keys, bad[i].more), RP_OK);
        if (strncmp(err.text, "config.json: ", 13) != 0 ||
            strncmp(err.text + 13, bad[i].text, strlen(bad[i].text)) != 0)
            fail_msg("%s: expected \"%s\", got \"%s\"", bad[i].more, bad[i].text, err.text);
    }
}

static void test_places_of_state_lie_one_after_the_other(void **state) {
    struct rp_model model;
    struct rp_program program;
    size_t end = 0;
    (void)state;
    load_or_fail(QWEN, ",\"head_dim\":16,\"linear_num_key_heads\":2,\"linear_num_value_heads\":6,"
                       "\"linear_key_head_dim\":12,\"linear_value_head_dim\":20,"
                       "\"max_position_embeddings\":64");
    assert_int_equal(rp_model_describe(&config, RP_DTYPE_F32, &model, &err), RP_OK);
    assert_int_equal(rp_model_emit(&model, &program, &err), RP_OK);
    for (uint32_t i = 0; i < program.op_count; i++) {
        const struct rp_op *op = &program.ops[i];
        if (op->kind == RP_OP_CONV) {
            assert_int_equal(op->u.conv.state_offset, end);
            end += RP_ALIGN_UP((size_t)3 * 168 * sizeof(float), RP_CACHE_LINE);
        }
        if (op->kind == RP_OP_GATED_DELTA) {
            assert_int_equal(op->u.delta.state_offset, end);
            end += RP_ALIGN_UP((size_t)6 * 12 * 20 * sizeof(float), RP_CACHE_LINE);
        }
    }
    assert_int_equal(program.state_bytes, end);
    assert_int_equal(rp_program_add_state(&program, (uint64_t)INT32_MAX), RP_STATUS_OVERFLOW);
    rp_program_deinit(&program);
    rp_model_deinit(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_keys_of_lfm2_are_read),
        cmocka_unit_test(test_layer_types_win_and_the_mlp_may_keep_its_width),
        cmocka_unit_test(test_published_keys_of_qwen3_5_are_read),
        cmocka_unit_test(test_the_text_part_of_a_qwen3_5_with_images_is_read),
        cmocka_unit_test(test_what_is_not_supported_is_refused_with_its_key),
        cmocka_unit_test(test_places_of_state_lie_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
