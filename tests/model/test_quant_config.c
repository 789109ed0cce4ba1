/* Goal: a checkpoint's description of its 8-bit or 4-bit weights has the meaning of the tools that
 * write it. Method: lists of names against one module each, and whole configurations with the
 * expected schemes. */
#include "model/model.h"
#include "model/quant_config.h"
#include "tests/support/model_files.h"
#include "text/json_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool names(const char *entry, const char *module) {
    struct rp_error err = {0};
    bool found;
    json_t *list = json_pack("[s]", entry);
    assert_int_equal(rp_quant_list_names(list, module, "list", &found, &err), RP_OK);
    json_decref(list);
    return found;
}

static void test_a_list_names_modules_by_name_prefix_last_part_star_and_pattern(void **state) {
    (void)state;
    static const char module[] = "model.layers.12.mlp.up_proj";
    assert_true(names("model.layers.12.mlp.up_proj", module));
    assert_true(names("model.layers.12", module));
    assert_true(names("model.layers.12.mlp", module));
    assert_true(names("up_proj", module));
    assert_true(names("mlp.up_proj", module));
    assert_true(names("Linear", module));
    assert_true(names("*.12.mlp*", module));
    assert_true(names("re:.*mlp\\.(gate|up)_proj$", module));
    assert_false(names("model.layers.1", module));
    assert_false(names("p_proj", module));
    assert_false(names("model.layers.12.mlp.up_projection", module));
    assert_false(names("*.1.mlp*", module));
    assert_false(names("re:mlp", module)); /* from the beginning */
    assert_false(names("", module));
}

static int read_text(const char *text, struct rp_model_config *config, struct rp_error *err) {
    json_t *root = NULL;
    memset(config, 0, sizeof *config);
    config->layers = 2;
    assert_int_equal(rp_json_text_load(text, strlen(text), "x", &root, err), RP_OK);
    int status = rp_quant_config_read(root, "config.json", "quantization_config", config, err);
    json_decref(root);
    return status;
}

static void test_lists_decide_for_each_module_and_the_head(void **state) {
    (void)state;
    struct rp_model_config config;
    struct rp_error err = {0};
    assert_int_equal(read_text("{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
                               "\"modules_to_not_convert\":[\"model.layers.1.self_attn\"]}",
                               &config, &err),
                     RP_OK);
    assert_int_equal(config.quant.dtype, RP_DTYPE_FP8_E4M3);
    assert_int_equal(config.quant.scales, RP_SCALE_BLOCK_128);
    assert_int_equal(config.quant.modules[0], 0x7F);
    assert_int_equal(config.quant.modules[1], 0x70);
    assert_int_equal(config.quant.modules[2], 0);
    assert_false(config.quant.head);
}

static void test_a_tied_head_keeps_the_embeddings_type(void **state) {
    (void)state;
    static const char text[] = "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-"
                               "quantized\",\"config_groups\":{\"g\":{"
                               "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":"
                               "\"int\",\"strategy\":\"channel\"}}}}";
    struct rp_model_config config;
    struct rp_error err = {0};
    assert_int_equal(read_text(text, &config, &err), RP_OK);
    assert_true(config.quant.head);
    assert_int_equal(config.quant.input, RP_INPUT_PLAIN);
    json_t *root = NULL;
    assert_int_equal(rp_json_text_load(text, strlen(text), "x", &root, &err), RP_OK);
    config.tied = true;
    assert_int_equal(rp_quant_config_read(root, "config.json", "q", &config, &err), RP_OK);
    json_decref(root);
    assert_false(config.quant.head);
}

static void test_4_bits_have_a_layout_groups_and_zero_points(void **state) {
    (void)state;
#define CT(weights)                                                                                \
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]," \
    "\"weights\":{\"num_bits\":4," weights "}}},\"ignore\":[\"lm_head\"]}"
    static const struct {
        const char *text;
        enum rp_quant_layout layout;
        uint32_t group, type;
        bool less_one;
    } cases[] = {
        {CT("\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128"), RP_QUANT_PACKED, 128,
         RP_BLOCK_INT4 + 2 + 4, false},
        {CT("\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,\"symmetric\":false"),
         RP_QUANT_PACKED, 32, RP_BLOCK_INT4 + 4 + 16, false},
        {CT("\"type\":\"int\",\"strategy\":\"channel\",\"group_size\":null"), RP_QUANT_PACKED, 0,
         RP_BLOCK_INT4 + 2 + 4, false},
        {CT("\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16"),
         RP_QUANT_NVFP4_PACKED, 16, RP_BLOCK_NVFP4, false},
        {CT("\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32"), RP_QUANT_MXFP4_PACKED,
         32, RP_BLOCK_MXFP4, false},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64}", RP_QUANT_AWQ, 64,
         RP_BLOCK_INT4 + 1 + 16, false},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1}", RP_QUANT_GPTQ, 0,
         RP_BLOCK_INT4 + 2 + 16, true},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":1024,\"checkpoint_format\":"
         "\"gptq_v2\"}",
         RP_QUANT_GPTQ, 1024, RP_BLOCK_INT4 + 2 + 16, false},
        {"{\"quantization\":{\"quant_algo\":\"NVFP4\",\"exclude_modules\":[\"lm_head\"]}}",
         RP_QUANT_NVFP4_OPT, 16, RP_BLOCK_NVFP4, false},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_model_config config;
        struct rp_error err = {0};
        if (read_text(cases[i].text, &config, &err) != RP_OK)
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(config.quant.dtype, RP_DTYPE_BLOCKS);
        assert_int_equal(config.quant.scales, RP_SCALE_GROUP_K);
        assert_int_equal(config.quant.input, RP_INPUT_BF16);
        assert_int_equal(config.quant.layout, cases[i].layout);
        assert_int_equal(config.quant.group, cases[i].group);
        assert_int_equal(config.quant.types[1][RP_MODULE_DOWN], cases[i].type);
        assert_int_equal(config.quant.zeros_less_one, cases[i].less_one);
        assert_int_equal(config.quant.modules[1], 0x7F);
        assert_false(config.quant.head);
    }
}

static void test_what_is_refused_is_named_with_what_works(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{}", "quant_method \"(none)\""},
        {"{\"quant_method\":\"bitsandbytes\"}", "quant_method \"bitsandbytes\""},
        {"{\"quant_method\":\"awq\"}", "bits: weights of 0 bits"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":100}", "group_size 100"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}", "group_size 0"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"is_marlin_format\":true}",
         "is_marlin_format"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}", "quant_algo \"W4A8_AWQ\""},
        {"{\"quant_method\":\"modelopt\"}", "quant_algo \"(none)\""},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "fmt \"e5m2\""},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{}}", "one group, not 0"},
        {"{\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{\"format\":\"sparse-24-"
         "bitmask\"}}",
         "sparse-24-bitmask"},
        {"{\"quant_method\":\"fp8\",\"ignored_layers\":[\"q_proj\"]}", "one matrix here"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_model_config config;
        struct rp_error err = {0};
        assert_int_equal(read_text(cases[i].text, &config, &err), RP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, cases[i].message));
        assert_non_null(strstr(err.hint, "compressed-tensors float-quantized"));
    }
}

/* q has 128 rows, k 64: v's first row would be in k's block of the fused matrix. */
static void test_a_block_that_two_parts_of_a_matrix_share_is_refused(void **state) {
    (void)state;
#define K "model.layers.0.self_attn.k_proj.weight"
#define Q "model.layers.0.self_attn.q_proj.weight"
    struct rp_test_dir dir;
    struct rp_model model;
    struct rp_error err = {0};
    rp_test_dir_create(&dir);
    rp_test_file_text(&dir, "config.json",
                      "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4,"
                      "\"intermediate_size\":3,\"num_hidden_layers\":1,\"head_dim\":64,"
                      "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":5,"
                      "\"tie_word_embeddings\":true,\"quantization_config\":{"
                      "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}");
    /* Zeros in every tensor; a scale is only read after this check. */
    static const unsigned char zeros[80 + 16 + 512 + 4 + 256 + 4];
    rp_test_safetensors_write(
        &dir, "model.safetensors",
        "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[5,4],"
        "\"data_offsets\":[0,80]},"
        "\"model.layers.0.input_layernorm.weight\":{\"dtype\":\"F32\",\"shape\":[4],"
        "\"data_offsets\":[80,96]},"
        "\"" Q "\":{\"dtype\":\"F8_E4M3\",\"shape\":[128,4],\"data_offsets\":[96,608]},"
        "\"" Q "_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[608,612]},"
        "\"" K "\":{\"dtype\":\"F8_E4M3\",\"shape\":[64,4],\"data_offsets\":[612,868]},"
        "\"" K "_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[868,872]}}",
        zeros, sizeof zeros);
    int status = rp_model_open(dir.path, RP_DTYPE_BF16, NULL, 8, &model, &err);
    rp_test_dir_remove(&dir);
    assert_string_equal(err.text, "model.safetensors: tensor " K
                                  " shares a block of 128 rows with another part of its fused "
                                  "matrix: the rows of q and k, and of gate, must be multiples "
                                  "of 128");
    assert_int_equal(status, RP_STATUS_UNSUPPORTED);
#undef K
#undef Q
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list_names_modules_by_name_prefix_last_part_star_and_pattern),
        cmocka_unit_test(test_lists_decide_for_each_module_and_the_head),
        cmocka_unit_test(test_a_tied_head_keeps_the_embeddings_type),
        cmocka_unit_test(test_a_block_that_two_parts_of_a_matrix_share_is_refused),
        cmocka_unit_test(test_4_bits_have_a_layout_groups_and_zero_points),
        cmocka_unit_test(test_what_is_refused_is_named_with_what_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
