/* Goal: Gemma 4's configuration gives each layer its heads, its K and V and its width, in the keys
 * of published files and in those of transformers; what cannot be computed is refused by key; and a
 * prompt gives the same bits wherever it is cut into chunks, past windows too. Logits are compared
 * with numpy's in families_oracle.py, with transformers' in transformers_oracle.py.
 * Method: configurations alone; a random model with every part that the family has. */
#include "tests/model/prompt_fixture.h"
#include "tests/support/family_configs.h"

#define ROPE                                                                                       \
    ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","                    \
    "\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0},\"sliding_attention\":{"             \
    "\"rope_type\":\"default\",\"rope_theta\":10000.0}}"
#define TYPES                                                                                      \
    ",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","            \
    "\"sliding_attention\",\"full_attention\"]"

static int read_config(struct fixture *f, const char *more) {
    char text[2048];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"Gemma4ForCausalLM\"],\"model_type\":\"gemma4_text\","
             "\"hidden_size\":64,\"intermediate_size\":40,\"num_hidden_layers\":5,"
             "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
             "\"vocab_size\":96,\"sliding_window\":7,"
             "\"max_position_embeddings\":64,\"hidden_activation\":\"gelu_pytorch_tanh\"%s}",
             more);
    rp_test_file_text(&f->dir, "config.json", text);
    memset(&f->err, 0, sizeof f->err);
    return rp_model_config_load(f->dir.path, &f->config, &f->err);
}

static void assert_heads(const struct fixture *f, uint32_t layer, uint32_t dim, uint32_t kv_heads,
                         uint32_t source, bool k_is_v) {
    const struct rp_layer_heads heads = rp_model_layer_heads(&f->config, layer);
    assert_int_equal(heads.head_dim, dim);
    assert_int_equal(heads.kv_heads, kv_heads);
    assert_int_equal(heads.source, source);
    assert_int_equal(heads.k_is_v, k_is_v);
}

static void must_read(struct fixture *f, const char *more) {
    if (read_config(f, more) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void test_each_kind_of_layer_has_its_heads(void **state) {
    struct fixture *f = *state;
    must_read(f, ROPE TYPES ",\"global_head_dim\":32,\"num_global_key_value_heads\":2,"
                            "\"attention_k_eq_v\":true");
    assert_heads(f, 0, 16, 4, 0, false);
    assert_heads(f, 1, 32, 2, 1, true);
    assert_heads(f, 4, 32, 2, 4, true);
    assert_int_equal(f->config.rope.kind, RP_ROPE_PROPORTIONAL);
    assert_int_equal(f->config.rope.live_pairs, 4); /* a quarter of 16 */
    assert_false(rp_model_has_equal_layers(&f->config));
    /* Other KV heads come with attention_k_eq_v alone. */
    must_read(f, ROPE TYPES ",\"global_head_dim\":32,\"num_global_key_value_heads\":2");
    assert_heads(f, 1, 32, 4, 1, false);
    /* As transformers saves it. */
    must_read(f, ROPE TYPES ",\"attention_k_eq_v\":true,\"per_layer_config\":{\"1\":{\"head_dim\":"
                            "24,\"num_key_value_heads\":1},\"4\":{\"head_dim\":24,"
                            "\"num_key_value_heads\":1}}");
    assert_heads(f, 1, 24, 1, 1, true);
    assert_heads(f, 3, 16, 4, 3, false);
    /* Without a list every sixth layer and the last one have no window; the default size is 512. */
    must_read(f, ROPE);
    assert_heads(f, 3, 16, 4, 3, false);
    assert_heads(f, 4, 512, 4, 4, false);
}

static void test_the_last_layers_share_the_k_and_v_of_their_kind(void **state) {
    struct fixture *f = *state;
    static const uint32_t sources[] = {0, 1, 0, 0, 1};
    uint32_t rows[3];
    must_read(f, ROPE TYPES ",\"num_kv_shared_layers\":3,\"use_double_wide_mlp\":true");
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(rp_model_layer_heads(&f->config, i).source, sources[i]);
        assert_int_equal(rp_model_intermediate(&f->config, i), sources[i] == i ? 40 : 80);
    }
    rp_model_qkv_rows(&f->config, 1, rows);
    assert_true(rows[0] == 8 * 512 && rows[1] == 4 * 512 && rows[2] == 4 * 512);
    rp_model_qkv_rows(&f->config, 2, rows);
    assert_true(rows[0] == 8 * 16 && rows[1] == 0 && rows[2] == 0);
    /* Such a layer has no weights of k. */
    assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_F32, &f->model, &f->err), RP_OK);
    assert_null(rp_model_weight(&f->model, RP_WEIGHT_K_NORM, 2));
    assert_int_equal(rp_model_matrix(&f->model, RP_WEIGHT_QKV, 2)->rows, 8 * 16);
    assert_int_equal(rp_model_shard(&f->model, 2, &f->err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "layers with different heads"));
}

static void test_what_cannot_be_computed_is_refused_by_key(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *more, *text;
    } cases[] = {
        {TYPES, "rope_parameters is missing"},
        {ROPE ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\","
              "\"full_attention\",\"sliding_attention\"]",
         "layer_types must end with full_attention"},
        {ROPE TYPES ",\"num_kv_shared_layers\":4", "num_kv_shared_layers leaves no layer"},
        {ROPE TYPES ",\"num_kv_shared_layers\":5", "num_kv_shared_layers is 5"},
        {ROPE TYPES ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3",
         "num_global_key_value_heads must divide"},
        {ROPE TYPES ",\"global_head_dim\":31", "global_head_dim must be even"},
        {ROPE TYPES ",\"global_head_dim\":1024", "global_head_dim is 1024"},
        {ROPE TYPES ",\"use_bidirectional_attention\":\"all\"", "use_bidirectional_attention"},
        {ROPE TYPES ",\"enable_moe_block\":true", "num_experts is missing"},
        {ROPE TYPES ",\"enable_moe_block\":true,\"num_experts\":4,\"top_k_experts\":5,"
                    "\"moe_intermediate_size\":16",
         "top_k_experts is 5, more than the 4 experts"},
        {ROPE TYPES ",\"hidden_size_per_layer_input\":16,\"vocab_size_per_layer_input\":90",
         "vocab_size_per_layer_input must be at least vocab_size"},
        {ROPE TYPES ",\"per_layer_config\":{\"0\":{\"head_dim\":8}}",
         "per_layer_config must have objects for layers of full_attention alone"},
        {ROPE TYPES ",\"per_layer_config\":{\"1\":{\"head_dim\":8},\"4\":{\"head_dim\":10}}",
         "the same heads"},
        {ROPE TYPES ",\"per_layer_config\":{\"1\":{\"sliding_window\":8}}",
         "may have head_dim and num_key_value_heads alone"},
        {ROPE TYPES ",\"per_layer_config\":[]", "per_layer_config must be an object"},
        {ROPE TYPES ",\"attn_logit_softcapping\":5.0", "attn_logit_softcapping is not known"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        int status = read_config(f, cases[i].more);
        if (status == RP_OK || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].text, f->err.text);
    }
}

static void make_model(struct fixture *f) {
    f->config = (struct rp_model_config){.family = RP_FAMILY_GEMMA4,
                                         .hidden = 64,
                                         .intermediate = 96,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 24,
                                         .vocab = VOCAB,
                                         .max_position = 64,
                                         .norm_eps = 1e-5f,
                                         .bos_id = RP_ID_NONE};
    rp_test_set_family(&f->config);
    rp_model_deinit(&f->model);
    assert_int_equal(rp_model_random(&f->config, RP_DTYPE_BF16, 3, 0, &f->model, &f->err), RP_OK);
}

static void test_a_prompt_cut_anywhere_gives_the_same_bits(void **state) {
    struct fixture *f = *state;
    make_model(f);
    assert_cuts_keep_the_bits(f);
}

/* Layer 1's K and V, and its factor, reach the logits through the layers that share them. */
static void test_layers_read_the_k_and_v_of_an_earlier_one(void **state) {
    struct fixture *f = *state;
    float before[VOCAB], after[VOCAB];
    make_model(f);
    assert_int_equal(rp_model_emit(&f->model, &f->driver.program, &f->err), RP_OK);
    uint32_t writes = 0, back = 0;
    for (uint32_t i = 0; i < f->driver.program.op_count; i++) {
        const struct rp_op *op = &f->driver.program.ops[i];
        writes += op->kind == RP_OP_KV_WRITE;
        back += op->kind == RP_OP_ATTENTION && op->layer >= 2 && op->u.attention.kv_back == 2;
    }
    rp_program_deinit(&f->driver.program);
    assert_true(writes == 2 && back == 2);
    feed(f, 0, before);
    rp_model_weight(&f->model, RP_WEIGHT_LAYER_SCALAR, 1)->vector[0] *= 1.5f;
    feed(f, 0, after);
    assert_memory_not_equal(after, before, sizeof before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_each_kind_of_layer_has_its_heads),
        TEST(test_the_last_layers_share_the_k_and_v_of_their_kind),
        TEST(test_what_cannot_be_computed_is_refused_by_key),
        TEST(test_a_prompt_cut_anywhere_gives_the_same_bits),
        TEST(test_layers_read_the_k_and_v_of_an_earlier_one),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
