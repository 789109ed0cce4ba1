/* Goal: models with experts are read from every spelling of their files, described, counted and
 * emitted as their configuration says, and what does not fit is refused by its name.
 * Method: checkpoints of one layer whose tensors differ from each other; each expert's tensors have
 * values of their own. */
#include "backend/fuse.h"
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/model.h"
#include "tests/support/family_configs.h"
#include "tests/support/model_files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { HIDDEN = 16, INNER = 16, EXPERTS = 3, TENSORS_MAX = 48 };

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model, other;
    struct rp_program program;
    struct rp_model_config config;
    struct rp_error err;
    struct rp_test_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][96];
    size_t count;
    const char *dtype;
    uint32_t hidden, inner;
};

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
    fixture.dtype = "F32";
    fixture.hidden = HIDDEN;
    fixture.inner = INNER;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_program_deinit(&f->program);
    rp_model_deinit(&f->model);
    rp_model_deinit(&f->other);
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* The value of element i of expert e's gate, up and down, and of the stacked tensors, which have
 * these in the same order. Exact in bf16. */
static float expert_value(uint32_t e, uint32_t which, uint64_t i) {
    return (float)(e * 3 + which + 1) * 8.0f + (float)(i % 7) * 0.25f;
}
static float value_0_0(uint64_t i) { return expert_value(0, 0, i); }
static float value_0_1(uint64_t i) { return expert_value(0, 1, i); }
static float value_0_2(uint64_t i) { return expert_value(0, 2, i); }
static float value_1_0(uint64_t i) { return expert_value(1, 0, i); }
static float value_1_1(uint64_t i) { return expert_value(1, 1, i); }
static float value_1_2(uint64_t i) { return expert_value(1, 2, i); }
static float value_2_0(uint64_t i) { return expert_value(2, 0, i); }
static float value_2_1(uint64_t i) { return expert_value(2, 1, i); }
static float value_2_2(uint64_t i) { return expert_value(2, 2, i); }
typedef float (*value_fn)(uint64_t);
static const value_fn expert_values[EXPERTS][3] = {{value_0_0, value_0_1, value_0_2},
                                                   {value_1_0, value_1_1, value_1_2},
                                                   {value_2_0, value_2_1, value_2_2}};

static float stacked_gate_up(uint64_t i) {
    uint64_t one = (uint64_t)INNER * HIDDEN;
    return expert_value((uint32_t)(i / (2 * one)), (uint32_t)(i / one % 2), i % one);
}
static float stacked_down(uint64_t i) {
    uint64_t one = (uint64_t)INNER * HIDDEN;
    return expert_value((uint32_t)(i / one), 2, i % one);
}
static float value_router(uint64_t i) { return 0.5f - (float)(i % 5) * 0.125f; }

static void tensor(struct fixture *f, const char *name, const char *dtype, uint32_t rank,
                   uint32_t rows, uint32_t cols, uint32_t depth, value_fn value) {
    assert_true(f->count < TENSORS_MAX);
    snprintf(f->names[f->count], sizeof f->names[0], "%s", name);
    f->tensors[f->count] =
        (struct rp_test_tensor){f->names[f->count], dtype, rank, {rows, cols, depth}, value};
    f->count++;
}

static void matrix(struct fixture *f, const char *name, uint32_t rows, uint32_t cols,
                   value_fn value) {
    char full[96];
    snprintf(full, sizeof full, "model.layers.0.%.80s", name);
    tensor(f, full, f->dtype, 2, rows, cols, 0, value);
}

/* Everything but the experts. */
static void add_dense(struct fixture *f) {
    uint32_t hidden = f->hidden;
    f->count = 0;
    tensor(f, "model.embed_tokens.weight", "F32", 2, 5, hidden, 0, NULL);
    tensor(f, "model.norm.weight", "F32", 1, hidden, 0, 0, NULL);
    tensor(f, "model.layers.0.input_layernorm.weight", "F32", 1, hidden, 0, 0, NULL);
    tensor(f, "model.layers.0.post_attention_layernorm.weight", "F32", 1, hidden, 0, 0, NULL);
    tensor(f, "model.layers.0.self_attn.q_norm.weight", "F32", 1, 8, 0, 0, NULL);
    tensor(f, "model.layers.0.self_attn.k_norm.weight", "F32", 1, 8, 0, 0, NULL);
    f->dtype = "F32";
    matrix(f, "self_attn.q_proj.weight", 16, hidden, NULL);
    matrix(f, "self_attn.k_proj.weight", 8, hidden, NULL);
    matrix(f, "self_attn.v_proj.weight", 8, hidden, NULL);
    matrix(f, "self_attn.o_proj.weight", hidden, 16, NULL);
}

static void add_experts(struct fixture *f, const char *form) {
    static const char *const parts[2][3] = {{"gate_proj", "up_proj", "down_proj"},
                                            {"w1", "w3", "w2"}};
    bool mixtral = strstr(form, "block_sparse") != NULL;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t part = 0; part < 3; part++) {
            char name[96];
            snprintf(name, sizeof name, form, e, parts[mixtral][part]);
            matrix(f, name, part == 2 ? f->hidden : f->inner, part == 2 ? f->inner : f->hidden,
                   expert_values[e][part]);
        }
}

#define QWEN_EXPERTS    "mlp.experts.%u.%s.weight"
#define MIXTRAL_EXPERTS "block_sparse_moe.experts.%u.%s.weight"
#define QWEN3           "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":3"
#define MIXTRAL         "\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":3"
#define GRANITE         "\"architectures\":[\"GraniteMoeForCausalLM\"],\"num_local_experts\":3"
#define GLM             "\"architectures\":[\"Glm4MoeForCausalLM\"],\"n_routed_experts\":12"

/* `more` may have the keys of experts' sizes, too. */
static void write_config(struct fixture *f, const char *more) {
    char text[1024], width[48] = "", used[48] = "";
    if (!strstr(more, "moe_intermediate_size"))
        snprintf(width, sizeof width, "\"moe_intermediate_size\":%u,", f->inner);
    if (!strstr(more, "num_experts_per_tok"))
        snprintf(used, sizeof used, "\"num_experts_per_tok\":2,");
    snprintf(text, sizeof text,
             "{\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
             "\"vocab_size\":5,\"max_position_embeddings\":8,\"tie_word_embeddings\":true,%s%s%s}",
             f->hidden, f->inner, width, used, more);
    rp_test_file_text(&f->dir, "config.json", text);
}

static int load(struct fixture *f, enum rp_dtype dtype) {
    rp_model_deinit(&f->model);
    memset(&f->err, 0, sizeof f->err);
    rp_test_checkpoint_write(&f->dir, "model.safetensors", f->tensors, f->count);
    return rp_model_load(f->dir.path, dtype, 0, NULL, NULL, &f->model, &f->err);
}

static void must_load(struct fixture *f, enum rp_dtype dtype) {
    if (load(f, dtype) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void assert_experts(struct fixture *f) {
    const struct rp_matrix *gate_up = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_GATE_UP, 0);
    const struct rp_matrix *down = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_DOWN, 0);
    assert_int_equal(gate_up->rows, EXPERTS * 2 * INNER);
    assert_int_equal(down->rows, EXPERTS * HIDDEN);
    assert_int_equal(rp_model_weight(&f->model, RP_WEIGHT_EXPERT_DOWN, 0)->experts, EXPERTS);
    for (uint64_t i = 0; i < (uint64_t)gate_up->rows * HIDDEN; i++)
        assert_true(((float *)gate_up->data)[i] == stacked_gate_up(i));
    for (uint64_t i = 0; i < (uint64_t)down->rows * INNER; i++)
        assert_true(((float *)down->data)[i] == stacked_down(i));
}

static void add_qwen(struct fixture *f) {
    add_dense(f);
    matrix(f, "mlp.gate.weight", EXPERTS, f->hidden, value_router);
    add_experts(f, QWEN_EXPERTS);
}

static void test_each_experts_tensors_lie_one_after_the_other(void **state) {
    struct fixture *f = *state;
    write_config(f, QWEN3);
    add_qwen(f);
    must_load(f, RP_DTYPE_F32);
    assert_experts(f);
    const struct rp_matrix *router = rp_model_matrix(&f->model, RP_WEIGHT_ROUTER, 0);
    assert_int_equal(router->rows, EXPERTS);
    assert_true(((float *)router->data)[1] == value_router(1));
    assert_null(rp_model_weight(&f->model, RP_WEIGHT_GATE_UP, 0));
    assert_null(rp_model_weight(&f->model, RP_WEIGHT_SHARED_DOWN, 0));
}

static void test_one_tensor_of_all_experts_gives_the_same(void **state) {
    struct fixture *f = *state;
    write_config(f, QWEN3);
    add_dense(f);
    matrix(f, "mlp.gate.weight", EXPERTS, HIDDEN, value_router);
    tensor(f, "model.layers.0.mlp.experts.gate_up_proj", "F32", 3, EXPERTS, 2 * INNER, HIDDEN,
           stacked_gate_up);
    tensor(f, "model.layers.0.mlp.experts.down_proj", "F32", 3, EXPERTS, HIDDEN, INNER,
           stacked_down);
    must_load(f, RP_DTYPE_F32);
    assert_experts(f);
}

static void test_mixtrals_and_granites_names_are_known(void **state) {
    struct fixture *f = *state;
    write_config(f, MIXTRAL);
    add_dense(f);
    matrix(f, "block_sparse_moe.gate.weight", EXPERTS, HIDDEN, value_router);
    add_experts(f, MIXTRAL_EXPERTS);
    must_load(f, RP_DTYPE_F32);
    assert_experts(f);
    write_config(f, GRANITE);
    add_dense(f);
    matrix(f, "block_sparse_moe.router.layer.weight", EXPERTS, HIDDEN, value_router);
    tensor(f, "model.layers.0.block_sparse_moe.input_linear.weight", "F32", 3, EXPERTS, 2 * INNER,
           HIDDEN, stacked_gate_up);
    tensor(f, "model.layers.0.block_sparse_moe.output_linear.weight", "F32", 3, EXPERTS, HIDDEN,
           INNER, stacked_down);
    must_load(f, RP_DTYPE_F32);
    assert_experts(f);
}

static size_t find(const struct fixture *f, const char *name) {
    for (size_t i = 0; i < f->count; i++)
        if (strstr(f->names[i], name))
            return i;
    fail_msg("no tensor is called %s", name);
    return 0;
}

static void test_missing_and_misshapen_experts_are_refused_by_tensor(void **state) {
    struct fixture *f = *state;
    write_config(f, QWEN3);
    add_qwen(f);
    f->tensors[find(f, "experts.2.up_proj")] = f->tensors[--f->count];
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_NOT_FOUND);
    assert_non_null(
        strstr(f->err.text, "tensor model.layers.0.mlp.experts.2.up_proj.weight is missing"));
    add_qwen(f);
    f->tensors[find(f, "experts.1.down_proj")].shape[0] = HIDDEN - 1;
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "experts.1.down_proj.weight has shape [15, 16]"));
    add_dense(f);
    matrix(f, "mlp.gate.weight", EXPERTS, HIDDEN, value_router);
    tensor(f, "model.layers.0.mlp.experts.gate_up_proj", "F32", 3, EXPERTS, INNER, HIDDEN, NULL);
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "has shape [3, 16, 16], config.json implies [3, 32, 16]"));
}

static void test_quantization_at_load_scales_each_row_and_leaves_the_router(void **state) {
    struct fixture *f = *state;
    const struct rp_model_quantization fp8 = {RP_QUANT_FP8, false};
    write_config(f, QWEN3 ",\"torch_dtype\":\"bfloat16\"");
    add_qwen(f);
    rp_test_checkpoint_write(&f->dir, "model.safetensors", f->tensors, f->count);
    assert_int_equal(rp_model_load_quantized(f->dir.path, RP_DTYPE_BF16, &fp8, 0, NULL, NULL,
                                             &f->model, &f->err),
                     RP_OK);
    const struct rp_matrix *down = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_DOWN, 0);
    assert_int_equal(down->dtype, RP_DTYPE_FP8_E4M3);
    assert_int_equal(rp_model_matrix(&f->model, RP_WEIGHT_ROUTER, 0)->dtype, RP_DTYPE_BF16);
    for (uint32_t row = 0; row < down->rows; row += 5)
        for (uint32_t k = 0; k < down->cols; k++) {
            float value = rp_matrix_quantized(down, row, k) * rp_matrix_scale(down, row, k);
            float wanted = stacked_down((uint64_t)row * INNER + k);
            assert_true(fabsf(value - wanted) <= 0.0626f * wanted);
        }
}

/* Codes below 0x40, whose values are exact. */
static float value_code(uint64_t i) { return (float)(i * 7 % 61); }
static float value_scale(uint64_t i) { return 0.25f + (float)i; }

/* A checkpoint with 8 bits in the experts alone, as Qwen's FP8 models have them. */
static void add_fp8(struct fixture *f, bool blocks) {
    add_qwen(f);
    size_t count = f->count;
    for (size_t i = 0; i < count; i++) {
        char name[96];
        if (!strstr(f->names[i], "experts."))
            continue;
        struct rp_test_tensor *t = &f->tensors[i];
        snprintf(name, sizeof name, "%.80s%s", f->names[i], blocks ? "_scale_inv" : "_scale");
        t->dtype = "F8_E4M3";
        t->value = value_code;
        if (blocks)
            tensor(f, name, "F32", 2, t->shape[0] / 128, t->shape[1] / 128, 0, value_scale);
        else
            tensor(f, name, "F32", 2, t->shape[0], 1, 0, value_scale);
    }
}

static void assert_fp8(struct fixture *f, bool blocks) {
    const struct rp_matrix *gate_up = rp_model_matrix(&f->model, RP_WEIGHT_EXPERT_GATE_UP, 0);
    assert_int_equal(gate_up->dtype, RP_DTYPE_FP8_E4M3);
    assert_int_equal(gate_up->scale_kind, blocks ? RP_SCALE_BLOCK_128 : RP_SCALE_CHANNEL);
    for (uint32_t row = 0; row < gate_up->rows; row += 13)
        for (uint32_t k = 0; k < gate_up->cols; k += 11) {
            uint32_t in = row % f->inner; /* of its tensor */
            uint64_t at = (uint64_t)in * f->hidden + k;
            uint64_t scale = blocks ? in / 128 * (f->hidden / 128) + k / 128 : in;
            assert_true(rp_matrix_quantized(gate_up, row, k) ==
                        rp_fp8_to_f32((uint8_t)value_code(at)));
            assert_true(rp_matrix_scale(gate_up, row, k) == value_scale(scale));
        }
}

static void test_experts_of_8_bits_keep_their_scales_per_channel_and_per_block(void **state) {
    struct fixture *f = *state;
    f->hidden = 256;
    f->inner = 128;
    write_config(f, QWEN3 ",\"quantization_config\":{\"quant_method\":\"fp8\","
                          "\"weight_block_size\":[128,128],\"modules_to_not_convert\":["
                          "\"re:.*self_attn\",\"mlp.gate\"]}");
    add_fp8(f, true);
    must_load(f, RP_DTYPE_BF16);
    assert_fp8(f, true);
    assert_int_equal(rp_model_matrix(&f->model, RP_WEIGHT_QKV, 0)->dtype, RP_DTYPE_BF16);
    write_config(f, QWEN3 ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                          "\"format\":\"float-quantized\",\"ignore\":[\"re:.*self_attn\","
                          "\"lm_head\"],\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],"
                          "\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":"
                          "\"channel\"},\"input_activations\":{\"num_bits\":8,\"type\":"
                          "\"float\",\"dynamic\":true}}}}");
    add_fp8(f, false);
    must_load(f, RP_DTYPE_BF16);
    assert_fp8(f, false);
}

static void test_8_bit_experts_in_one_tensor_are_refused(void **state) {
    struct fixture *f = *state;
    write_config(f, QWEN3 ",\"quantization_config\":{\"quant_method\":\"fp8\","
                          "\"modules_to_not_convert\":[\"re:.*self_attn\"]}");
    add_dense(f);
    matrix(f, "mlp.gate.weight", EXPERTS, HIDDEN, value_router);
    tensor(f, "model.layers.0.mlp.experts.gate_up_proj", "F8_E4M3", 3, EXPERTS, 2 * INNER, HIDDEN,
           value_code);
    assert_int_equal(load(f, RP_DTYPE_BF16), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "8-bit weights of all experts in one tensor"));
}

/* --- configuration --------------------------------------------------------------------------- */

static int read_config(struct fixture *f, const char *more) {
    write_config(f, more);
    memset(&f->err, 0, sizeof f->err);
    return rp_model_config_load(f->dir.path, &f->config, &f->err);
}

static const struct rp_model_experts *must_read(struct fixture *f, const char *more) {
    if (read_config(f, more) != RP_OK)
        fail_msg("%s", f->err.text);
    return &f->config.experts;
}

static void test_each_family_routes_by_its_own_rule(void **state) {
    struct fixture *f = *state;
    const struct rp_model_experts *e = must_read(f, MIXTRAL);
    assert_true(e->count == 3 && e->used == 2 && e->intermediate == INNER && e->renormalize);
    assert_true(e->score == RP_ROUTE_SOFTMAX && e->groups == 1 && e->factor == 1.0f);
    assert_true(!e->shared && !e->bias && !e->shared_gate);
    e = must_read(f, QWEN3);
    assert_false(e->renormalize);
    e = must_read(f, QWEN3 ",\"norm_topk_prob\":true");
    assert_true(e->renormalize && f->config.qk_norm == RP_QK_NORM_HEAD);
    e = must_read(f, GRANITE);
    assert_int_equal(e->score, RP_ROUTE_SOFTMAX_CHOSEN);
    e = must_read(f, "\"architectures\":[\"OlmoeForCausalLM\"],\"num_experts\":4");
    assert_true(e->count == 4 && !e->renormalize && f->config.qk_norm == RP_QK_NORM_WHOLE);
    e = must_read(f, "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"num_experts\":4,"
                     "\"shared_expert_intermediate_size\":20");
    assert_true(e->shared == 20 && e->shared_gate && f->config.qkv_bias);
    e = must_read(f, GLM ",\"n_group\":4,\"topk_group\":2,\"routed_scaling_factor\":1.5,"
                         "\"n_shared_experts\":2,\"first_k_dense_replace\":0");
    assert_true(e->count == 12 && e->groups == 4 && e->groups_used == 2 && e->group_best == 2);
    assert_true(e->score == RP_ROUTE_SIGMOID && e->bias && e->renormalize && e->factor == 1.5f);
    assert_true(e->shared == 2 * INNER && !e->shared_gate && rp_model_has_experts(&f->config, 0));
}

static void test_some_layers_may_be_dense(void **state) {
    struct fixture *f = *state;
    must_read(f, GLM);
    assert_false(rp_model_has_experts(&f->config, 0)); /* first_k_dense_replace is 1 */
    must_read(f, QWEN3 ",\"mlp_only_layers\":[0]");
    assert_false(rp_model_has_experts(&f->config, 0));
    must_read(f, QWEN3 ",\"decoder_sparse_step\":2");
    assert_false(rp_model_has_experts(&f->config, 0));
    must_read(f, QWEN3 ",\"decoder_sparse_step\":1,\"mlp_only_layers\":[]");
    assert_true(rp_model_has_experts(&f->config, 0));
    assert_false(rp_model_has_experts(&f->config, RP_LAYER_NONE));
}

static void test_what_experts_cannot_be_is_refused_by_key(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *config, *text;
    } cases[] = {
        {MIXTRAL ",\"num_experts_per_tok\":4", "num_experts_per_tok is 4, more than the 3 experts"},
        {QWEN3 ",\"moe_intermediate_size\":24",
         "moe_intermediate_size is 24, must be a multiple of 16"},
        {"\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":0", "num_experts is 0"},
        {"\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":5000",
         "num_experts is 5000, must be 1 to 1024"},
        {QWEN3 ",\"mlp_only_layers\":1", "mlp_only_layers must be a list"},
        {QWEN3 ",\"mlp_only_layers\":[-1]", "mlp_only_layers[0] is -1"},
        {QWEN3 ",\"decoder_sparse_step\":0", "decoder_sparse_step is 0"},
        {QWEN3 ",\"n_shared_experts\":1", "n_shared_experts is not known in this family"},
        {"\"architectures\":[\"OlmoeForCausalLM\"],\"num_experts\":4,\"clip_qkv\":8.0",
         "clip_qkv must be null"},
        {"\"architectures\":[\"Qwen2MoeForCausalLM\"],\"use_sliding_window\":true",
         "use_sliding_window must be false"},
        {GLM ",\"n_group\":5", "n_group must divide the experts"},
        {GLM ",\"n_group\":12", "n_group leaves less than 2 experts a group"},
        {GLM ",\"n_group\":6,\"num_experts_per_tok\":3",
         "topk_group groups have less experts than num_experts_per_tok"},
        {GLM ",\"topk_group\":2", "topk_group is 2, must be 1 to 1"},
        {GLM ",\"routed_scaling_factor\":0", "routed_scaling_factor is 0"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        int status = read_config(f, cases[i].config);
        if (status == RP_OK || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].text, f->err.text);
    }
    f->hidden = 24;
    assert_int_equal(read_config(f, MIXTRAL), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "hidden_size is 24, must be a multiple of 16"));
}

/* --- the program ----------------------------------------------------------------------------- */

/* [main, side) is one branch and [side, end) the other: neither touches what the other writes. */
static void check_branches(const struct rp_program *program, uint32_t main, uint32_t side,
                           uint32_t end) {
    assert_int_equal(program->ops[main - 1].branch, RP_BRANCH_NONE);
    assert_int_equal(program->ops[end].branch, RP_BRANCH_NONE);
    for (uint32_t i = main; i < end; i++)
        assert_int_equal(program->ops[i].branch, i < side ? RP_BRANCH_MAIN : RP_BRANCH_SIDE);
    for (uint32_t a = main; a < side; a++)
        for (uint32_t b = side; b < end; b++) {
            const struct rp_op *x = &program->ops[a], *y = &program->ops[b];
            assert_false(rp_views_overlap(&x->out, &y->out));
            for (uint32_t i = 0; i < x->in_count; i++)
                assert_false(rp_views_overlap(&x->in[i], &y->out));
            for (uint32_t i = 0; i < y->in_count; i++)
                assert_false(rp_views_overlap(&y->in[i], &x->out));
        }
}

static void test_a_large_shared_expert_is_a_branch_for_one_token_alone(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *inner;
        uint32_t tokens;
    } sizes[] = {{"20", RP_BRANCH_TOKENS}, {"80000", RP_BRANCH_TOKENS}, {"100000", 1}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++) {
        char text[200];
        uint32_t seen = 0;
        snprintf(text, sizeof text,
                 "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"num_experts\":5,"
                 "\"shared_expert_intermediate_size\":%s",
                 sizes[i].inner);
        must_read(f, text);
        assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_BF16, &f->model, &f->err), RP_OK);
        assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
        for (uint32_t at = 0; at < f->program.op_count; at++)
            if (f->program.ops[at].branch != RP_BRANCH_NONE) {
                assert_int_equal(f->program.ops[at].branch_tokens, sizes[i].tokens);
                seen++;
            }
        assert_true(seen > 0 && seen % 9 == 0);
        rp_program_deinit(&f->program);
        rp_model_deinit(&f->model);
    }
}

static void test_a_layer_with_experts_has_their_operators_in_order(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *name;
        enum rp_op_kind kind;
    } ops[] = {{"layer.0.mlp.norm", RP_OP_NORM},
               {"layer.0.moe.router", RP_OP_LINEAR},
               {"layer.0.moe.route", RP_OP_ROUTE},
               {"layer.0.moe.order", RP_OP_EXPERT_ORDER},
               {"layer.0.moe.gate_up", RP_OP_EXPERT_GATE_UP},
               {"layer.0.moe.down", RP_OP_EXPERT_DOWN},
               {"layer.0.moe.shared_gate_up", RP_OP_LINEAR},
               {"layer.0.mlp.act", RP_OP_ACTIVATION},
               {"layer.0.moe.shared_down", RP_OP_LINEAR},
               {"layer.0.moe.shared_gate", RP_OP_LINEAR},
               {"layer.0.moe.sum", RP_OP_EXPERT_SUM},
               {"layer.0.mlp.add", RP_OP_ADD}};
    const struct rp_bucket bucket = {.tokens = 7, .rows = 7, .logit_rows = 7};
    must_read(f, "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"num_experts\":5,"
                 "\"shared_expert_intermediate_size\":20");
    assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_BF16, &f->model, &f->err), RP_OK);
    assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
    uint32_t at = 0;
    while (strcmp(f->program.ops[at].name, ops[0].name) != 0)
        at++;
    for (size_t i = 0; i < RP_ARRAY_COUNT(ops); i++) {
        assert_string_equal(f->program.ops[at + i].name, ops[i].name);
        assert_int_equal(f->program.ops[at + i].kind, ops[i].kind);
    }
    const struct rp_op *order = &f->program.ops[at + 3], *gate_up = order + 1, *sum = order + 7;
    assert_int_equal(
        rp_program_rows(&f->program, &bucket, f->program.tensors[order->out.tensor].rows),
        7 * 2 + 5 + 1);
    assert_int_equal(
        rp_program_rows(&f->program, &bucket, f->program.tensors[gate_up->out.tensor].rows), 7 * 2);
    assert_int_equal(sum->in_count, 4);
    assert_true(sum->u.expert_sum.shared && sum->u.expert_sum.gated);
    check_branches(&f->program, at + 1, at + 6, at + 10);
    uint64_t before = rp_program_fingerprint(&f->program);
    f->program.ops[at + 2].u.route.renormalize ^= true;
    assert_true(rp_program_fingerprint(&f->program) != before);
}

static void test_active_parameters_are_those_that_one_token_uses(void **state) {
    struct fixture *f = *state;
    assert_int_equal(rp_model_shape("qwen3-30b-a3b", &f->config, &f->err), RP_OK);
    assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_BF16, &f->model, &f->err), RP_OK);
    assert_true(rp_model_parameter_count(&f->model) / 10000000 == 3053);       /* 30.53 B */
    assert_true(rp_model_active_parameter_count(&f->model) / 10000000 == 335); /* 3.35 B */
    assert_int_equal(rp_model_shape("llama-3.2-1b", &f->config, &f->err), RP_OK);
    assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_BF16, &f->other, &f->err), RP_OK);
    assert_true(rp_model_active_parameter_count(&f->other) == rp_model_parameter_count(&f->other));
}

/* A weight that no part of the files fills would have what its memory held, zeros or not. */
static void test_a_random_model_has_drawn_all_weights_of_experts(void **state) {
    struct fixture *f = *state;
    static const enum rp_weight_role roles[] = {RP_WEIGHT_EXPERT_GATE_UP, RP_WEIGHT_EXPERT_DOWN};
    for (int family = 0; family < RP_FAMILY_COUNT; family++) {
        f->config = (struct rp_model_config){.family = (enum rp_family)family,
                                             .hidden = 64,
                                             .intermediate = 96,
                                             .layers = 2,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 24,
                                             .vocab = 31,
                                             .max_position = 16,
                                             .norm_eps = 1e-5f,
                                             .rope = {.theta = 10000.0}};
        rp_test_set_family(&f->config);
        rp_model_deinit(&f->model);
        assert_int_equal(rp_model_random(&f->config, RP_DTYPE_F32, 7, 16, &f->model, NULL), RP_OK);
        for (size_t r = 0; f->config.experts.count && r < RP_ARRAY_COUNT(roles); r++) {
            const struct rp_matrix *w = rp_model_matrix(&f->model, roles[r], 1);
            const float *values = w->data;
            for (size_t i = 0; i < (size_t)w->rows * w->cols; i++)
                assert_true(values[i] != 0 && fabsf(values[i]) < 0.0352f);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_each_experts_tensors_lie_one_after_the_other),
        TEST(test_one_tensor_of_all_experts_gives_the_same),
        TEST(test_mixtrals_and_granites_names_are_known),
        TEST(test_missing_and_misshapen_experts_are_refused_by_tensor),
        TEST(test_quantization_at_load_scales_each_row_and_leaves_the_router),
        TEST(test_experts_of_8_bits_keep_their_scales_per_channel_and_per_block),
        TEST(test_8_bit_experts_in_one_tensor_are_refused),
        TEST(test_each_family_routes_by_its_own_rule),
        TEST(test_some_layers_may_be_dense),
        TEST(test_what_experts_cannot_be_is_refused_by_key),
        TEST(test_a_large_shared_expert_is_a_branch_for_one_token_alone),
        TEST(test_a_layer_with_experts_has_their_operators_in_order),
        TEST(test_active_parameters_are_those_that_one_token_uses),
        TEST(test_a_random_model_has_drawn_all_weights_of_experts),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
