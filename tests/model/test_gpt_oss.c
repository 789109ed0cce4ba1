/* Goal: gpt-oss's two kinds of files, MXFP4 and 16 bits, give the weights that they hold, bit for
 * bit; what is missing, misshapen or of another model is refused by name; and a prompt gives the
 * same bits wherever it is cut into chunks, past windows too. Logits are compared with
 * transformers' in transformers_oracle.py.
 * Method: checkpoints of one layer; values are decoded here from the formula of E2M1. */
#include "base/bf16.h"
#include "base/memory.h"
#include "quant/matmul.h"
#include "tests/model/prompt_fixture.h"

#include <math.h>
enum { HIDDEN = 64, INNER = 32, EXPERTS = 3, HEADS = 4, DIM = 8 };

/* --- files ----------------------------------------------------------------------------------- */

static float byte_of(uint64_t i, uint64_t seed) {
    return (float)((i * 2654435761u + seed) >> 7 & 255);
}
static float gate_up_blocks(uint64_t i) { return byte_of(i, 11); }
static float down_blocks(uint64_t i) { return byte_of(i, 77); }
static float gate_up_scales(uint64_t i) { return (float)(118 + i % 9); }
static float down_scales(uint64_t i) { return (float)(120 + i * 5 % 7); }
static float gate_up_bias(uint64_t i) { return (float)i * 0.125f - 3.0f; }
static float down_bias(uint64_t i) { return 2.0f - (float)i * 0.0625f; }
static float router_bias(uint64_t i) { return (float)i - 0.5f; }
static float sinks(uint64_t i) { return 1.5f - (float)i; }

static const float e2m1[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                               -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* Column k of file row `row` (of all experts) of a matrix with `cols` columns. */
static float decoded(float (*blocks)(uint64_t), float (*scales)(uint64_t), uint64_t row,
                     uint64_t cols, uint64_t k) {
    uint64_t group = row * (cols / 32) + k / 32;
    unsigned byte = (unsigned)blocks(group * 16 + k % 32 / 2);
    return ldexpf(e2m1[k % 2 ? byte >> 4 : byte & 15], (int)scales(group) - 127);
}

/* The same weights as transformers stores them: (experts, columns, rows). */
static float gate_up_values(uint64_t i) {
    uint64_t each = 2 * INNER, e = i / (HIDDEN * each), k = i / each % HIDDEN;
    return decoded(gate_up_blocks, gate_up_scales, e * each + i % each, HIDDEN, k);
}
static float down_values(uint64_t i) {
    uint64_t e = i / (INNER * HIDDEN), k = i / HIDDEN % INNER;
    return decoded(down_blocks, down_scales, e * HIDDEN + i % HIDDEN, INNER, k);
}

#define LAYER "model.layers.0."
static const struct rp_test_tensor dense[] = {
    {"model.embed_tokens.weight", "BF16", 2, {VOCAB, HIDDEN}, NULL},
    {"model.norm.weight", "BF16", 1, {HIDDEN}, NULL},
    {"lm_head.weight", "BF16", 2, {VOCAB, HIDDEN}, NULL},
    {LAYER "input_layernorm.weight", "BF16", 1, {HIDDEN}, NULL},
    {LAYER "post_attention_layernorm.weight", "BF16", 1, {HIDDEN}, NULL},
    {LAYER "self_attn.q_proj.weight", "BF16", 2, {HEADS * DIM, HIDDEN}, NULL},
    {LAYER "self_attn.q_proj.bias", "BF16", 1, {HEADS * DIM}, NULL},
    {LAYER "self_attn.k_proj.weight", "BF16", 2, {2 * DIM, HIDDEN}, NULL},
    {LAYER "self_attn.k_proj.bias", "BF16", 1, {2 * DIM}, NULL},
    {LAYER "self_attn.v_proj.weight", "BF16", 2, {2 * DIM, HIDDEN}, NULL},
    {LAYER "self_attn.v_proj.bias", "BF16", 1, {2 * DIM}, NULL},
    {LAYER "self_attn.o_proj.weight", "BF16", 2, {HIDDEN, HEADS *DIM}, NULL},
    {LAYER "self_attn.o_proj.bias", "BF16", 1, {HIDDEN}, NULL},
    {LAYER "self_attn.sinks", "BF16", 1, {HEADS}, sinks},
    {LAYER "mlp.router.weight", "BF16", 2, {EXPERTS, HIDDEN}, NULL},
    {LAYER "mlp.router.bias", "BF16", 1, {EXPERTS}, router_bias},
    {LAYER "mlp.experts.gate_up_proj_bias", "BF16", 2, {EXPERTS, 2 * INNER}, gate_up_bias},
    {LAYER "mlp.experts.down_proj_bias", "BF16", 2, {EXPERTS, HIDDEN}, down_bias},
};
static const struct rp_test_tensor mxfp4[] = {
    {LAYER "mlp.experts.gate_up_proj_blocks",
     "U8",
     4,
     {EXPERTS, 2 * INNER, HIDDEN / 32, 16},
     gate_up_blocks},
    {LAYER "mlp.experts.gate_up_proj_scales",
     "U8",
     3,
     {EXPERTS, 2 * INNER, HIDDEN / 32},
     gate_up_scales},
    {LAYER "mlp.experts.down_proj_blocks", "U8", 4, {EXPERTS, HIDDEN, INNER / 32, 16}, down_blocks},
    {LAYER "mlp.experts.down_proj_scales", "U8", 3, {EXPERTS, HIDDEN, INNER / 32}, down_scales},
};
static const struct rp_test_tensor whole[] = {
    {LAYER "mlp.experts.gate_up_proj", "BF16", 3, {EXPERTS, HIDDEN, 2 * INNER}, gate_up_values},
    {LAYER "mlp.experts.down_proj", "BF16", 3, {EXPERTS, INNER, HIDDEN}, down_values},
};
enum { TENSORS = RP_ARRAY_COUNT(dense) + RP_ARRAY_COUNT(mxfp4) };

/* The keys of the published config.json, with other sizes. */
#define QUANTIZED                                                                                  \
    ",\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\","          \
    "\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],\"quant_method\":"          \
    "\"mxfp4\"}"
#define YARN                                                                                       \
    "\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"                      \
    "\"original_max_position_embeddings\":16,\"rope_type\":\"yarn\",\"truncate\":false}"

/* `more` replaces nothing: keys that it has must not be among the others. */
static void write_config(struct fixture *f, const char *rope, const char *more) {
    char text[2048];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\","
             "\"attention_bias\":true,\"attention_dropout\":0.0,\"eos_token_id\":2,"
             "\"experts_per_token\":2,\"head_dim\":%d,\"hidden_act\":\"silu\",\"hidden_size\":%d,"
             "\"initial_context_length\":16,\"initializer_range\":0.02,\"intermediate_size\":%d,"
             "\"layer_types\":[\"sliding_attention\"],\"max_position_embeddings\":64,"
             "\"num_attention_heads\":%d,\"num_experts_per_tok\":2,\"num_hidden_layers\":1,"
             "\"num_key_value_heads\":2,\"num_local_experts\":%d,\"output_router_logits\":false,"
             "\"pad_token_id\":1,\"rms_norm_eps\":1e-05,%s,\"rope_theta\":150000,"
             "\"router_aux_loss_coef\":0.9,\"tie_word_embeddings\":false,\"torch_dtype\":"
             "\"bfloat16\",\"use_cache\":true,\"vocab_size\":%d%s}",
             DIM, HIDDEN, INNER, HEADS, EXPERTS, rope, VOCAB, more);
    rp_test_file_text(&f->dir, "config.json", text);
}

/* changed: in place of the tensor of its name; NULL: none. */
static int load(struct fixture *f, const struct rp_test_tensor *experts, size_t count,
                const struct rp_test_tensor *changed, enum rp_dtype dtype) {
    struct rp_test_tensor all[TENSORS];
    memcpy(all, dense, sizeof dense);
    memcpy(all + RP_ARRAY_COUNT(dense), experts, count * sizeof *experts);
    for (size_t i = 0; changed && i < RP_ARRAY_COUNT(dense) + count; i++)
        if (strcmp(all[i].name, changed->name) == 0)
            all[i] = *changed;
    rp_test_checkpoint_write(&f->dir, "model.safetensors", all, RP_ARRAY_COUNT(dense) + count);
    rp_model_deinit(&f->model);
    memset(&f->err, 0, sizeof f->err);
    return rp_model_load(f->dir.path, dtype, 0, NULL, NULL, &f->model, &f->err);
}

/* Every weight of the layer's experts, in our order: all gates of an expert, then its ups. */
static void assert_experts(const struct rp_model *model) {
    const struct rp_matrix *gate_up = rp_model_matrix(model, RP_WEIGHT_EXPERT_GATE_UP, 0);
    const struct rp_matrix *down = rp_model_matrix(model, RP_WEIGHT_EXPERT_DOWN, 0);
    float row[HIDDEN];
    assert_int_equal(gate_up->rows, EXPERTS * 2 * INNER);
    assert_int_equal(down->rows, EXPERTS * HIDDEN);
    for (uint32_t n = 0; n < gate_up->rows; n++) {
        uint32_t in = n % (2 * INNER), file = n - in + in % INNER * 2 + in / INNER;
        rp_matrix_row_f32(gate_up, n, row);
        for (uint32_t k = 0; k < HIDDEN; k++)
            assert_true(row[k] == decoded(gate_up_blocks, gate_up_scales, file, HIDDEN, k));
        assert_true(rp_model_vector(model, RP_WEIGHT_EXPERT_GATE_UP_BIAS, 0)[n] ==
                    rp_bf16_to_f32(rp_f32_to_bf16(gate_up_bias(file))));
    }
    for (uint32_t n = 0; n < down->rows; n++) {
        rp_matrix_row_f32(down, n, row);
        for (uint32_t k = 0; k < INNER; k++)
            assert_true(row[k] == decoded(down_blocks, down_scales, n, INNER, k));
        assert_true(rp_model_vector(model, RP_WEIGHT_EXPERT_DOWN_BIAS, 0)[n] ==
                    rp_bf16_to_f32(rp_f32_to_bf16(down_bias(n))));
    }
}

static void must_load(struct fixture *f, const struct rp_test_tensor *experts, size_t count,
                      enum rp_dtype dtype) {
    if (load(f, experts, count, NULL, dtype) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void test_mxfp4_experts_keep_every_bit_in_four_bits_and_in_f32(void **state) {
    struct fixture *f = *state;
    write_config(f, YARN, QUANTIZED ",\"swiglu_limit\":7.0,\"sliding_window\":8");
    must_load(f, mxfp4, RP_ARRAY_COUNT(mxfp4), RP_DTYPE_BF16);
    const struct rp_matrix *down = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_DOWN, 0);
    assert_int_equal(down->dtype, RP_DTYPE_BLOCKS);
    assert_int_equal(rp_matrix_bytes(down), EXPERTS * HIDDEN * 17);
    assert_experts(&f->model);
    for (uint32_t i = 0; i < HEADS; i++)
        assert_true(rp_model_vector(&f->model, RP_WEIGHT_SINKS, 0)[i] == sinks(i));
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_true(rp_model_vector(&f->model, RP_WEIGHT_ROUTER_LOGIT_BIAS, 0)[i] ==
                    router_bias(i));
    must_load(f, mxfp4, RP_ARRAY_COUNT(mxfp4), RP_DTYPE_F32);
    assert_int_equal(rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_DOWN, 0)->dtype, RP_DTYPE_F32);
    assert_experts(&f->model);
}

static void test_16_bit_experts_are_turned_and_taken_apart(void **state) {
    struct fixture *f = *state;
    write_config(f, YARN, ",\"sliding_window\":8");
    for (int dtype = 0; dtype < 2; dtype++) {
        must_load(f, whole, RP_ARRAY_COUNT(whole), dtype ? RP_DTYPE_BF16 : RP_DTYPE_F32);
        assert_experts(&f->model);
    }
    /* The same weights rounded at load: each row within half a step of its own scale. */
    const struct rp_model_quantization int8 = {RP_QUANT_INT8, false};
    rp_model_deinit(&f->model);
    assert_int_equal(rp_model_load_quantized(f->dir.path, RP_DTYPE_BF16, &int8, 0, NULL, NULL,
                                             &f->model, &f->err),
                     RP_OK);
    const struct rp_matrix *down = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_DOWN, 0);
    assert_int_equal(down->dtype, RP_DTYPE_INT8);
    for (uint32_t n = 0; n < down->rows; n++)
        for (uint32_t k = 0; k < INNER; k++) {
            float scale = rp_matrix_scale(down, n, k);
            assert_true(fabsf(rp_matrix_quantized(down, n, k) * scale -
                              decoded(down_blocks, down_scales, n, INNER, k)) <= 0.51f * scale);
        }
}

static float scale_255(uint64_t i) { return i == 70 ? 255.0f : 120.0f; }

static void test_tensors_that_do_not_fit_are_refused_by_name(void **state) {
    struct fixture *f = *state;
    static const struct {
        struct rp_test_tensor tensor;
        const char *text;
    } cases[] = {
        {{LAYER "mlp.experts.down_proj_blocks", "U8", 4, {EXPERTS, HIDDEN, 2, 16}, down_blocks},
         "mlp.experts.down_proj_blocks has shape [3, 64, 2, 16], must have [3, 64, 1, 16]"},
        {{LAYER "mlp.experts.gate_up_proj_scales", "U8", 2, {EXPERTS, 2 * INNER}, down_scales},
         "mlp.experts.gate_up_proj_scales has shape [3, 64], must have [3, 64, 2]"},
        {{LAYER "mlp.experts.down_proj_scales", "BF16", 3, {EXPERTS, HIDDEN, 1}, NULL},
         "mlp.experts.down_proj_scales is of type BF16, must be U8"},
        {{LAYER "mlp.experts.down_proj_scales", "U8", 3, {EXPERTS, HIDDEN, 1}, scale_255},
         "mlp.experts.down_proj_scales holds a scale that is not finite"},
        {{LAYER "mlp.experts.down_proj_bias", "BF16", 1, {EXPERTS * HIDDEN}, NULL},
         "mlp.experts.down_proj_bias has shape [192], config.json implies [3, 64]"},
        {{LAYER "self_attn.sinks", "BF16", 1, {2}, NULL}, "self_attn.sinks has shape [2]"},
    };
    write_config(f, YARN, QUANTIZED ",\"sliding_window\":8");
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        int status = load(f, mxfp4, RP_ARRAY_COUNT(mxfp4), &cases[i].tensor, RP_DTYPE_BF16);
        if (status == RP_OK || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].text, f->err.text);
    }
    assert_int_equal(load(f, mxfp4, 3, NULL, RP_DTYPE_BF16), RP_STATUS_NOT_FOUND);
    assert_non_null(strstr(f->err.text, "mlp.experts.down_proj_scales is missing"));
    static const struct rp_test_tensor down_first = {
        LAYER "mlp.experts.down_proj", "BF16", 3, {EXPERTS, HIDDEN, INNER}, NULL};
    write_config(f, YARN, ",\"sliding_window\":8");
    assert_int_equal(load(f, whole, RP_ARRAY_COUNT(whole), &down_first, RP_DTYPE_BF16),
                     RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "has shape [3, 64, 32], config.json implies [3, 32, 64]"));
}

/* --- configuration --------------------------------------------------------------------------- */

static void test_the_published_keys_are_read(void **state) {
    struct fixture *f = *state;
    const struct rp_model_config *c = &f->config;
    write_config(f, YARN, QUANTIZED ",\"swiglu_limit\":7.0,\"sliding_window\":8");
    assert_int_equal(rp_model_config_load(f->dir.path, &f->config, &f->err), RP_OK);
    assert_true(c->qkv_bias && c->o_bias && c->attention_sinks && c->window == 8 && !c->tied);
    assert_int_equal(c->activation, RP_ACTIVATION_SWIGLU_CLAMPED);
    assert_int_equal(c->experts.score, RP_ROUTE_SOFTMAX_CHOSEN);
    assert_true(c->experts.count == EXPERTS && c->experts.used == 2 && c->experts.linear_bias);
    assert_int_equal(c->experts.intermediate, INNER);
    assert_int_equal(c->quant.layout, RP_QUANT_MXFP4_EXPERTS);
    assert_int_equal(c->quant.modules[0], 1u << RP_MODULE_EXPERT_GATE | 1u << RP_MODULE_EXPERT_UP |
                                              1u << RP_MODULE_EXPERT_DOWN);
    assert_true(c->rope.kind == RP_ROPE_YARN && c->rope.whole_range);
    assert_true(fabs(c->rope.attention_factor - 1.3465735902799727) < 1e-12);
}

static void test_what_the_kernels_do_not_compute_is_refused_by_key(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *rope, *more, *text;
    } cases[] = {
        {YARN, ",\"swiglu_limit\":6.0", "swiglu_limit must be 7"},
        {YARN, ",\"swiglu_alpha\":1.7", "swiglu_alpha must be 1.702"},
        {YARN, ",\"hidden_activation\":\"gelu\"", "hidden_activation is not known"},
        {YARN, ",\"sliding_window\":null", "sliding_window must be a number"},
        {"\"use_mscale\":1", "", "rope_scaling is missing"},
        {YARN, ",\"attention_scale\":2.0", "attention_scale is not known"},
        {YARN, ",\"n_shared_experts\":1", "n_shared_experts is not known"},
        {YARN, ",\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":1}",
         "must be a list of strings"},
        {YARN,
         ",\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":"
         "[\"model.layers.0.mlp.experts.gate_up_proj\"]}",
         ""}, /* read: down alone has four bits, and its tensors decide */
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        memset(&f->err, 0, sizeof f->err);
        write_config(f, cases[i].rope, cases[i].more);
        int status = rp_model_config_load(f->dir.path, &f->config, &f->err);
        if ((status == RP_OK) != !cases[i].text[0] || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].text, f->err.text);
    }
    assert_int_equal(f->config.quant.modules[0], 1u << RP_MODULE_EXPERT_DOWN);
    rp_test_file_text(&f->dir, "config.json",
                      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"intermediate_size\":64,"
                      "\"num_hidden_layers\":1,\"quantization_config\":{\"quant_method\":"
                      "\"mxfp4\"}}");
    assert_int_equal(rp_model_config_load(f->dir.path, &f->config, &f->err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "\"mxfp4\" is gpt-oss's alone"));
}

static void test_the_published_models_have_their_parameters(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *shape;
        double all, active, gib;
    } cases[] = {{"gpt-oss-20b", 20.91, 4.19, 12.8}, {"gpt-oss-120b", 116.83, 5.71, 60.8}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        assert_int_equal(rp_model_shape(cases[i].shape, &f->config, &f->err), RP_OK);
        assert_int_equal(rp_model_describe(&f->config, RP_MODEL_DTYPE_AUTO, &f->model, &f->err),
                         RP_OK);
        double all = (double)rp_model_parameter_count(&f->model) / 1e9;
        double active = (double)rp_model_active_parameter_count(&f->model) / 1e9;
        double gib = (double)rp_model_weight_bytes(&f->model) / (1u << 30);
        if (fabs(all - cases[i].all) > 0.01 || fabs(active - cases[i].active) > 0.01 ||
            fabs(gib - cases[i].gib) > 0.1)
            fail_msg("%s: %.2f, %.2f of 10^9 parameters, %.2f GiB", cases[i].shape, all, active,
                     gib);
        rp_model_deinit(&f->model);
    }
}

/* --- steps ----------------------------------------------------------------------------------- */

static void make_model(struct fixture *f) {
    assert_int_equal(rp_model_shape("gpt-oss-20b", &f->config, &f->err), RP_OK);
    f->config.hidden = f->config.experts.intermediate = HIDDEN;
    f->config.layers = 4;
    f->config.heads = HEADS;
    f->config.kv_heads = 2;
    f->config.head_dim = DIM;
    f->config.vocab = VOCAB;
    f->config.max_position = 64;
    f->config.window = 9;
    f->config.rope.original_max_position = 16;
    f->config.experts.count = 7;
    rp_model_deinit(&f->model);
    assert_int_equal(rp_model_random(&f->config, RP_DTYPE_BF16, 3, 0, &f->model, &f->err), RP_OK);
    /* Larger weights, so that what attention sees decides. */
    for (uint32_t layer = 0; layer < f->config.layers; layer++)
        for (int o = 0; o < 2; o++) {
            struct rp_matrix *matrix =
                rp_model_matrix(&f->model, o ? RP_WEIGHT_O : RP_WEIGHT_QKV, layer);
            uint16_t *values = matrix->data;
            for (size_t i = 0; i < (size_t)matrix->rows * matrix->cols; i++)
                values[i] = rp_f32_to_bf16(rp_bf16_to_f32(values[i]) * 8.0f);
        }
}

static void test_a_prompt_cut_anywhere_gives_the_same_bits(void **state) {
    struct fixture *f = *state;
    make_model(f);
    assert_cuts_keep_the_bits(f);
}

/* What a network without one of these would compute differs by far more than rounding. */
static void test_sinks_and_every_bias_change_the_logits(void **state) {
    struct fixture *f = *state;
    static const enum rp_weight_role roles[] = {
        RP_WEIGHT_SINKS,  RP_WEIGHT_ROUTER_LOGIT_BIAS, RP_WEIGHT_EXPERT_GATE_UP_BIAS,
        RP_WEIGHT_O_BIAS, RP_WEIGHT_EXPERT_DOWN_BIAS,  RP_WEIGHT_QKV_BIAS};
    float with[VOCAB], without[VOCAB];
    make_model(f);
    for (size_t r = 0; r < RP_ARRAY_COUNT(roles); r++)
        for (uint32_t layer = 0; layer < f->config.layers; layer++) {
            struct rp_weight *weight = rp_model_weight(&f->model, roles[r], layer);
            for (uint32_t i = 0; i < weight->length; i++)
                weight->vector[i] = weight->vector[i] * 40.0f + (r == 0 ? 3.0f : 0.0f);
        }
    feed(f, 0, with);
    for (size_t r = 0; r < RP_ARRAY_COUNT(roles); r++) {
        struct rp_weight *weight = rp_model_weight(&f->model, roles[r], 1);
        float *kept = rp_alloc(weight->length * sizeof *kept), most = 0.0f, size = 0.0f;
        assert_non_null(kept);
        memcpy(kept, weight->vector, weight->length * sizeof *kept);
        memset(weight->vector, 0, weight->length * sizeof *kept);
        feed(f, 0, without);
        memcpy(weight->vector, kept, weight->length * sizeof *kept);
        rp_free(kept);
        for (uint32_t i = 0; i < VOCAB; i++) {
            most = fmaxf(most, fabsf(with[i] - without[i]));
            size = fmaxf(size, fabsf(with[i]));
        }
        if (!(most > 0.02f * size))
            fail_msg("without weight %d logits of up to %g differ by %g at most", (int)roles[r],
                     (double)size, (double)most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_mxfp4_experts_keep_every_bit_in_four_bits_and_in_f32),
        TEST(test_16_bit_experts_are_turned_and_taken_apart),
        TEST(test_tensors_that_do_not_fit_are_refused_by_name),
        TEST(test_the_published_keys_are_read),
        TEST(test_what_the_kernels_do_not_compute_is_refused_by_key),
        TEST(test_the_published_models_have_their_parameters),
        TEST(test_a_prompt_cut_anywhere_gives_the_same_bits),
        TEST(test_sinks_and_every_bias_change_the_logits),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
