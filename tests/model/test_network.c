/* Goal: the program is the network: the operators of each family in order, with the columns, types,
 * rows and parameters of the formula. */
#include "base/memory.h"
#include "model/model.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_model model;
    struct rp_program program;
    struct rp_error err;
};

static int setup(void **state) {
    static struct fixture fixture;
    memset(&fixture, 0, sizeof fixture);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_program_deinit(&f->program);
    rp_model_deinit(&f->model);
    return 0;
}

static const struct rp_model_config tiny = {
    .family = RP_FAMILY_LLAMA,
    .architecture = "LlamaForCausalLM",
    .hidden = 24,
    .intermediate = 20,
    .layers = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .vocab = 40,
    .max_position = 16,
    .norm_eps = 1e-5f,
    .rope = {.theta = 10000},
    .file_dtype = RP_DTYPE_BF16,
};

static void emit(struct fixture *f, const struct rp_model_config *config, enum rp_dtype dtype) {
    assert_int_equal(rp_model_describe(config, dtype, &f->model, &f->err), RP_OK);
    assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
}

static const struct rp_op *find(const struct fixture *f, const char *name) {
    for (uint32_t i = 0; i < f->program.op_count; i++)
        if (strcmp(f->program.ops[i].name, name) == 0)
            return &f->program.ops[i];
    fail_msg("no operator is called %s", name);
    return NULL;
}

static const struct rp_tensor *tensor_of(const struct fixture *f, struct rp_view view) {
    assert_in_range(view.tensor, 0, f->program.tensor_count - 1);
    return &f->program.tensors[view.tensor];
}

static void assert_names(const struct fixture *f, const char *const *names, size_t count) {
    for (size_t i = 0; i < count && i < f->program.op_count; i++)
        assert_string_equal(f->program.ops[i].name, names[i]);
    assert_int_equal(f->program.op_count, count);
}

static void test_a_llama_layer_has_its_operators_in_order(void **state) {
    struct fixture *f = *state;
    static const char *const names[] = {"step_begin",
                                        "embed",
                                        "layer.0.attn.norm",
                                        "layer.0.attn.qkv",
                                        "layer.0.attn.rope",
                                        "layer.0.attn.kv_write",
                                        "layer.0.attn.attention",
                                        "layer.0.attn.o",
                                        "layer.0.attn.add",
                                        "layer.0.mlp.norm",
                                        "layer.0.mlp.gate_up",
                                        "layer.0.mlp.act",
                                        "layer.0.mlp.down",
                                        "layer.0.mlp.add",
                                        "final.gather",
                                        "final.norm",
                                        "lm_head",
                                        "sample"};
    struct rp_model_config config = tiny;
    config.layers = 1;
    emit(f, &config, RP_DTYPE_F32);
    assert_names(f, names, RP_ARRAY_COUNT(names));
    assert_int_equal(f->program.sample_begin, 17);
    assert_int_equal(f->program.ops[0].kind, RP_OP_STEP_BEGIN);
    assert_int_equal(f->program.ops[17].kind, RP_OP_SAMPLE);
    assert_int_equal(f->program.ops[17].u.sample.vocab, 40);
}

static void test_q_k_and_v_are_columns_of_one_product(void **state) {
    struct fixture *f = *state;
    emit(f, &tiny, RP_DTYPE_BF16);
    const struct rp_op *qkv = find(f, "layer.1.attn.qkv"), *rope = find(f, "layer.1.attn.rope");
    const struct rp_op *write = find(f, "layer.1.attn.kv_write");
    const struct rp_op *attention = find(f, "layer.1.attn.attention");
    assert_int_equal(qkv->out.cols, 64);
    assert_int_equal(qkv->weight->rows, 64);
    assert_int_equal(qkv->layer, 1);
    assert_int_equal(rope->in[0].tensor, qkv->out.tensor);
    assert_int_equal(rope->in[0].col, 0);
    assert_int_equal(rope->in[0].cols, 48);
    assert_memory_equal(&rope->in[0], &rope->out, sizeof rope->out);
    assert_int_equal(rope->u.rope.heads, 6);
    assert_int_equal(rope->u.rope.rotary_dim, 8);
    assert_int_equal(rope->u.rope.position_count, 16);
    assert_int_equal(write->in[0].col, 32);
    assert_int_equal(write->in[0].cols, 16);
    assert_int_equal(write->in[1].col, 48);
    assert_int_equal(write->in[1].cols, 16);
    assert_int_equal(write->out.tensor, RP_NO_TENSOR);
    assert_int_equal(attention->in[0].col, 0);
    assert_int_equal(attention->in[0].cols, 32);
    assert_int_equal(attention->out.cols, 32);
    assert_float_equal(attention->u.attention.scale, 0.35355339f, 1e-7f);
}

static void test_what_a_product_reads_has_the_type_of_its_weights(void **state) {
    struct fixture *f = *state;
    emit(f, &tiny, RP_DTYPE_BF16);
    uint32_t products = 0;
    for (uint32_t i = 0; i < f->program.op_count; i++) {
        const struct rp_op *op = &f->program.ops[i];
        if (op->kind != RP_OP_LINEAR)
            continue;
        products++;
        assert_int_equal(tensor_of(f, op->in[0])->dtype, RP_DTYPE_BF16);
        assert_int_equal(tensor_of(f, op->out)->dtype, RP_DTYPE_F32);
        assert_int_equal(op->in[0].cols, op->weight->cols);
        assert_int_equal(op->out.cols, op->weight->rows);
    }
    assert_int_equal(products, 4 * 2 + 1);
}

static void test_every_tensor_is_written_before_it_is_read(void **state) {
    struct fixture *f = *state;
    bool written[64] = {false};
    emit(f, &tiny, RP_DTYPE_BF16);
    assert_in_range(f->program.tensor_count, 1, RP_ARRAY_COUNT(written));
    for (uint32_t i = 0; i < f->program.op_count; i++) {
        const struct rp_op *op = &f->program.ops[i];
        for (uint32_t at = 0; at < op->in_count; at++)
            assert_true(written[op->in[at].tensor]);
        if (op->out.tensor != RP_NO_TENSOR)
            written[op->out.tensor] = true;
    }
    for (uint32_t i = 0; i < f->program.tensor_count; i++)
        assert_true(written[i]);
}

static void test_rows_past_the_gather_are_logit_rows(void **state) {
    struct fixture *f = *state;
    emit(f, &tiny, RP_DTYPE_F32);
    assert_int_equal(find(f, "layer.1.mlp.add")->rows, RP_ROWS_TOKEN);
    assert_int_equal(find(f, "final.gather")->rows, RP_ROWS_LOGIT);
    assert_int_equal(tensor_of(f, find(f, "final.gather")->in[0])->rows, RP_ROWS_TOKEN);
    assert_int_equal(tensor_of(f, find(f, "final.gather")->out)->rows, RP_ROWS_LOGIT);
    assert_int_equal(find(f, "lm_head")->rows, RP_ROWS_LOGIT);
    assert_int_equal(tensor_of(f, find(f, "sample")->in[0])->rows, RP_ROWS_LOGIT);
    assert_int_equal(find(f, "sample")->in[0].cols, 40);
}

static void test_qwen3_normalizes_each_head_of_q_and_k_in_place(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.family = RP_FAMILY_QWEN3;
    config.qk_norm = RP_QK_NORM_HEAD;
    emit(f, &config, RP_DTYPE_F32);
    const struct rp_op *q = find(f, "layer.0.attn.q_norm"), *k = find(f, "layer.0.attn.k_norm");
    assert_int_equal(q->u.norm.group, 8);
    assert_int_equal(q->in[0].cols, 32);
    assert_memory_equal(&q->in[0], &q->out, sizeof q->out);
    assert_int_equal(k->in[0].col, 32);
    assert_int_equal(k->in[0].cols, 16);
    assert_true(k < find(f, "layer.0.attn.rope"));
}

static void test_gemma2_norms_what_it_adds_and_caps_its_logits(void **state) {
    struct fixture *f = *state;
    static const char *const names[] = {"step_begin",
                                        "embed",
                                        "layer.0.attn.norm",
                                        "layer.0.attn.qkv",
                                        "layer.0.attn.rope",
                                        "layer.0.attn.kv_write",
                                        "layer.0.attn.attention",
                                        "layer.0.attn.o",
                                        "layer.0.attn.post_norm",
                                        "layer.0.attn.add",
                                        "layer.0.mlp.norm",
                                        "layer.0.mlp.gate_up",
                                        "layer.0.mlp.act",
                                        "layer.0.mlp.down",
                                        "layer.0.mlp.post_norm",
                                        "layer.0.mlp.add",
                                        "final.gather",
                                        "final.norm",
                                        "lm_head",
                                        "soft_cap",
                                        "sample"};
    struct rp_model_config config = tiny;
    config.family = RP_FAMILY_GEMMA2;
    config.layers = 1;
    config.norm_offset = 1;
    config.post_norms = config.embed_scaled = true;
    config.attention_cap = 50;
    config.logit_cap = 30;
    config.query_scalar = 16;
    emit(f, &config, RP_DTYPE_BF16);
    assert_names(f, names, RP_ARRAY_COUNT(names));
    assert_true(find(f, "embed")->u.embed.scale == 4.90625f); /* sqrt(24) in bf16 */
    assert_true(find(f, "layer.0.attn.attention")->u.attention.scale == 0.25f);
    assert_true(find(f, "layer.0.attn.attention")->u.attention.soft_cap == 50);
    assert_true(find(f, "layer.0.mlp.post_norm")->u.norm.weight_offset == 1);
    const struct rp_op *cap = find(f, "soft_cap");
    assert_true(cap->u.soft_cap.cap == 30);
    assert_memory_equal(&cap->in[0], &cap->out, sizeof cap->out);
    assert_int_equal(f->program.sample_begin, RP_ARRAY_COUNT(names) - 1);
    teardown(state);
    emit(f, &config, RP_DTYPE_F32);
    assert_true(find(f, "embed")->u.embed.scale == (float)sqrt(24.0));
}

static void test_factors_are_operators_before_sums_and_after_the_head(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.family = RP_FAMILY_GRANITE;
    config.embed_factor = 12;
    config.residual_factor = 0.25f;
    config.attention_scale = 0.5;
    config.logit_factor = 0.125f;
    emit(f, &config, RP_DTYPE_BF16);
    const struct rp_op *o = find(f, "layer.1.attn.o"), *scale = find(f, "layer.1.attn.scale");
    const struct rp_op *add = find(f, "layer.1.attn.add"), *logits = find(f, "logit_scale");
    assert_true(find(f, "embed")->u.embed.scale == 12);
    assert_true(find(f, "layer.0.attn.attention")->u.attention.scale == 0.5f);
    assert_true(o < scale && scale < add && scale->u.scale.factor == 0.25f);
    assert_memory_equal(&scale->out, &o->out, sizeof o->out);
    assert_memory_equal(&add->in[1], &o->out, sizeof o->out);
    assert_int_equal(logits->rows, RP_ROWS_LOGIT);
    assert_true(logits->u.scale.factor == 0.125f);
}

static void test_olmo_rounds_the_residual_and_norms_all_heads_at_once(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.family = RP_FAMILY_OLMO3;
    config.qk_norm = RP_QK_NORM_WHOLE;
    config.no_pre_norms = config.post_norms = true;
    config.window = 7;
    config.full_layers[0] = 2;
    config.local_rope = (struct rp_rope){.theta = 500, .rotary_dim = 4};
    emit(f, &config, RP_DTYPE_BF16);
    const struct rp_op *in = find(f, "layer.0.attn.in"), *q = find(f, "layer.0.attn.q_norm");
    assert_int_equal(in->kind, RP_OP_SCALE);
    assert_int_equal(tensor_of(f, in->in[0])->dtype, RP_DTYPE_F32);
    assert_int_equal(tensor_of(f, in->out)->dtype, RP_DTYPE_BF16);
    assert_int_equal(q->u.norm.group, 32);
    assert_int_equal(find(f, "layer.0.attn.k_norm")->u.norm.group, 16);
    assert_int_equal(find(f, "layer.0.attn.rope")->u.rope.rotary_dim,
                     4); /* a layer with a window */
    assert_int_equal(find(f, "layer.1.attn.rope")->u.rope.rotary_dim, 8);
    uint32_t rounded = f->program.op_count;
    teardown(state);
    emit(f, &config, RP_DTYPE_F32);
    assert_int_equal(f->program.op_count, rounded - 4); /* in f32 nothing is to be rounded */
}

static void test_cohere_norms_once_and_full_layers_do_not_rotate(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.family = RP_FAMILY_COHERE2;
    config.layer_norm = config.parallel = config.nope_full_layers = true;
    config.window = 7;
    config.full_layers[0] = 2;
    emit(f, &config, RP_DTYPE_BF16);
    const struct rp_op *norm = find(f, "layer.1.attn.norm");
    assert_int_equal(norm->kind, RP_OP_LAYER_NORM);
    assert_true(norm->u.layer_norm.group == 24 && !norm->u.layer_norm.bias);
    assert_int_equal(find(f, "layer.1.mlp.gate_up")->in[0].tensor, norm->out.tensor);
    assert_int_equal(find(f, "layer.1.attn.qkv")->in[0].tensor, norm->out.tensor);
    (void)find(f, "layer.0.attn.rope");
    for (uint32_t i = 0; i < f->program.op_count; i++)
        assert_false(f->program.ops[i].kind == RP_OP_ROPE && f->program.ops[i].layer == 1);
}

static void set_mask(struct fixture *f, const char *text) {
    struct rp_mask_limits limits = rp_model_mask_limits(&f->model.config, 0);
    struct rp_mask *mask;
    assert_int_equal(rp_mask_parse(text, strlen(text), &limits, &mask, &f->err), RP_OK);
    assert_int_equal(rp_model_set_mask(&f->model, mask, &f->err), RP_OK);
}

static void test_a_mask_without_score_rules_leaves_the_models_cap(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.window = 5;
    config.attention_cap = 50;
    assert_int_equal(rp_model_describe(&config, RP_DTYPE_F32, &f->model, &f->err), RP_OK);
    set_mask(f, "causal && sliding_window(3)");
    assert_int_equal(rp_model_layer_mask(&f->model, 1).window, 3);
    assert_true(rp_model_layer_mask(&f->model, 1).soft_cap == 50);
    set_mask(f, "causal && sliding_window(3); soft_cap(7)");
    assert_true(rp_model_layer_mask(&f->model, 1).soft_cap == 7);
    set_mask(f, "causal && (kv < 2 || layer == 0)");
    assert_true(rp_model_layer_mask(&f->model, 0).soft_cap == 50); /* plain there */
    assert_true(rp_mask_has_score(rp_model_layer_mask(&f->model, 1).program));
}

static void test_a_layer_has_the_window_unless_it_is_a_full_one(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.layers = 3;
    config.window = 7;
    config.full_layers[0] = 5; /* bits of layers 0 and 2 */
    emit(f, &config, RP_DTYPE_F32);
    assert_int_equal(find(f, "layer.0.attn.attention")->u.attention.window, 0);
    assert_int_equal(find(f, "layer.1.attn.attention")->u.attention.window, 7);
    assert_int_equal(find(f, "layer.2.attn.attention")->u.attention.window, 0);
}

static void test_attention_reads_the_sinks_of_its_layer(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    emit(f, &config, RP_DTYPE_F32);
    uint64_t without = rp_program_fingerprint(&f->program);
    assert_false(find(f, "layer.1.attn.attention")->u.attention.sinks);
    assert_null(rp_model_weight(&f->model, RP_WEIGHT_SINKS, 1));
    rp_program_deinit(&f->program);
    rp_model_deinit(&f->model);
    config.attention_sinks = true;
    emit(f, &config, RP_DTYPE_F32);
    assert_true(find(f, "layer.1.attn.attention")->u.attention.sinks);
    assert_int_equal(rp_model_weight(&f->model, RP_WEIGHT_SINKS, 1)->length, config.heads);
    assert_true(rp_program_fingerprint(&f->program) != without);
}

static void test_a_described_and_a_loaded_model_have_one_fingerprint(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config = tiny;
    config.qkv_bias = config.attention_sinks = true;
    emit(f, &config, RP_DTYPE_BF16);
    uint64_t described = rp_program_fingerprint(&f->program);
    teardown(state);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_BF16, 1, 0, &f->model, &f->err), RP_OK);
    assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
    assert_true(rp_program_fingerprint(&f->program) == described);
    teardown(state);
    config.qkv_bias = false;
    emit(f, &config, RP_DTYPE_BF16);
    assert_true(rp_program_fingerprint(&f->program) != described);
}

static void test_a_failed_allocation_leaves_no_program(void **state) {
    struct fixture *f = *state;
    assert_int_equal(rp_model_describe(&tiny, RP_DTYPE_F32, &f->model, &f->err), RP_OK);
    for (uint64_t n = 1; n <= 2; n++) {
        rp_alloc_fail_at(n);
        int status = rp_model_emit(&f->model, &f->program, &f->err);
        rp_alloc_fail_at(0);
        assert_int_equal(status, RP_STATUS_NO_MEMORY);
        assert_null(f->program.ops);
    }
}

static void test_stories260k_loads_and_emits_its_program(void **state) {
    struct fixture *f = *state;
    char dir[512];
    if (!rp_test_data("weights/stories260K/hf_derived", dir, sizeof dir))
        skip();
    int status = rp_model_load(dir, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &f->model, &f->err);
    if (status != RP_OK)
        fail_msg("%s", f->err.text);
    assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
    assert_true(f->model.loaded);
    assert_int_equal(f->model.dtype, RP_DTYPE_F32);
    assert_int_equal(f->program.op_count, 2 + 5 * 12 + 4);
    assert_ptr_equal(rp_model_matrix(&f->model, RP_WEIGHT_HEAD, RP_LAYER_NONE)->data,
                     rp_model_matrix(&f->model, RP_WEIGHT_EMBED, RP_LAYER_NONE)->data);
    assert_int_equal(f->model.rope_positions, 512);
    /* The size in the file, without padding. */
    assert_int_equal(rp_model_weight_bytes(&f->model), 1040128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_a_llama_layer_has_its_operators_in_order),
        TEST(test_q_k_and_v_are_columns_of_one_product),
        TEST(test_attention_reads_the_sinks_of_its_layer),
        TEST(test_what_a_product_reads_has_the_type_of_its_weights),
        TEST(test_every_tensor_is_written_before_it_is_read),
        TEST(test_rows_past_the_gather_are_logit_rows),
        TEST(test_qwen3_normalizes_each_head_of_q_and_k_in_place),
        TEST(test_gemma2_norms_what_it_adds_and_caps_its_logits),
        TEST(test_factors_are_operators_before_sums_and_after_the_head),
        TEST(test_olmo_rounds_the_residual_and_norms_all_heads_at_once),
        TEST(test_cohere_norms_once_and_full_layers_do_not_rotate),
        TEST(test_a_mask_without_score_rules_leaves_the_models_cap),
        TEST(test_a_layer_has_the_window_unless_it_is_a_full_one),
        TEST(test_a_described_and_a_loaded_model_have_one_fingerprint),
        TEST(test_a_failed_allocation_leaves_no_program),
        TEST(test_stories260k_loads_and_emits_its_program),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
