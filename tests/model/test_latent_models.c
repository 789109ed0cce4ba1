/* Goal: models with multi-head latent attention compute what transformers computes, in chunks of
 * any size; their tensors become the matrices of the absorbed form, from 8 bits too; keys that do
 * not fit are refused by name.
 * Method: logits in latent_goldens.h, of weights that are a formula of their index; the same with
 * one mistake planted into the program must differ. */
#include "base/bf16.h"
#include "base/fp8.h"
#include "base/log.h"
#include "tests/support/driver.h"
#include "tests/support/model_files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS_MAX = 24, TOKENS = 12, VOCAB = 11 };

struct golden {
    const char *config;
    float logits[TOKENS * VOCAB];
};
#include "tests/model/latent_goldens.h"

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model;
    struct rp_driver driver;
    struct rp_model_config config;
    struct rp_program program;
    struct rp_error err;
    struct rp_test_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][96];
    size_t count;
};

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_driver_close(&f->driver);
    rp_program_deinit(&f->program);
    rp_model_deinit(&f->model);
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* --- weights by a formula: tensors are numbered in the order in which they are written ------- */

static uint32_t tensor_number;

static float golden_matrix(uint64_t i) {
    tensor_number += i == 0;
    uint32_t x = (uint32_t)i + tensor_number * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (float)((x ^ x >> 16) >> 16) / 32768.0f - 1.0f;
}
static float golden_norm(uint64_t i) { return golden_matrix(i) + 1.0f; }

static void tensor(struct fixture *f, const char *name, uint32_t rows, uint32_t cols) {
    bool outside = strncmp(name, "model.", 6) == 0 || strncmp(name, "lm_head", 7) == 0;
    assert_true(f->count < TENSORS_MAX);
    snprintf(f->names[f->count], sizeof f->names[0], "%s%.60s", outside ? "" : "model.layers.0.",
             name);
    f->tensors[f->count] = (struct rp_test_tensor){
        f->names[f->count], "F32", cols ? 2 : 1, {rows, cols}, cols ? golden_matrix : golden_norm};
    f->count++;
}

/* The tensors of one layer with an MLP, in the order of make_latent_goldens.py. */
static void add_tensors(struct fixture *f) {
    const struct rp_model_config *c = &f->config;
    const struct rp_model_latent *l = &c->latent;
    uint32_t hidden = c->hidden, q = c->heads * c->head_dim;
    f->count = 0;
    tensor(f, "model.embed_tokens.weight", c->vocab, hidden);
    tensor(f, "model.norm.weight", hidden, 0);
    tensor(f, "lm_head.weight", c->vocab, hidden);
    tensor(f, "input_layernorm.weight", hidden, 0);
    if (l->q_rank) {
        tensor(f, "self_attn.q_a_proj.weight", l->q_rank, hidden);
        tensor(f, "self_attn.q_a_layernorm.weight", l->q_rank, 0);
        tensor(f, "self_attn.q_b_proj.weight", q, l->q_rank);
    } else {
        tensor(f, "self_attn.q_proj.weight", q, hidden);
    }
    tensor(f, "self_attn.kv_a_proj_with_mqa.weight", rp_model_latent_cols(l), hidden);
    tensor(f, "self_attn.kv_a_layernorm.weight", l->rank, 0);
    tensor(f, "self_attn.kv_b_proj.weight", c->heads * (l->nope_dim + l->value_dim), l->rank);
    tensor(f, "self_attn.o_proj.weight", hidden, c->heads * l->value_dim);
    tensor(f, "post_attention_layernorm.weight", hidden, 0);
    tensor(f, "mlp.gate_proj.weight", c->intermediate, hidden);
    tensor(f, "mlp.up_proj.weight", c->intermediate, hidden);
    tensor(f, "mlp.down_proj.weight", hidden, c->intermediate);
}

static int load(struct fixture *f, enum rp_dtype dtype) {
    rp_model_deinit(&f->model);
    memset(&f->err, 0, sizeof f->err);
    tensor_number = 0;
    rp_test_checkpoint_write(&f->dir, "model.safetensors", f->tensors, f->count);
    return rp_model_load(f->dir.path, dtype, 0, NULL, NULL, &f->model, &f->err);
}

static void load_golden(struct fixture *f, const struct golden *golden) {
    rp_driver_close(&f->driver);
    rp_test_file_text(&f->dir, "config.json", golden->config);
    if (rp_model_config_load(f->dir.path, &f->config, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
    add_tensors(f);
    if (load(f, RP_DTYPE_F32) != RP_OK)
        fail_msg("%s", f->err.text);
}

/* --- goldens --------------------------------------------------------------------------------- */

static void open_driver(struct fixture *f, void (*edit)(struct rp_program *program)) {
    static const struct rp_bucket buckets[] = {{1, 1, 1, true}, {TOKENS, 1, 1, false}};
    struct rp_driver_config config = {.slots = 1,
                                      .pages_per_slot = 8,
                                      .page_tokens = 4,
                                      .threads = 2,
                                      .buckets = buckets,
                                      .bucket_count = RP_ARRAY_COUNT(buckets),
                                      .kv_dtype = RP_DTYPE_F32,
                                      .edit = edit};
    rp_driver_close(&f->driver);
    rp_driver_open(&f->driver, &f->model, &config);
}

/* Feeds tokens [begin, end) as one chunk; the largest difference of the logits after the last. */
static double feed(struct fixture *f, const struct golden *golden, uint32_t begin, uint32_t end) {
    double worst = 0;
    rp_driver_row(&f->driver, 0, golden_ids + begin, end - begin, true);
    rp_driver_run(&f->driver, NULL);
    const float *got = rp_driver_logits(&f->driver, 0);
    for (uint32_t i = 0; i < VOCAB; i++) {
        double error = fabs((double)got[i] - (double)golden->logits[(end - 1) * VOCAB + i]);
        worst = error <= worst ? worst : error; /* NaN becomes the worst */
    }
    return worst;
}

static double in_two_chunks(struct fixture *f, const struct golden *golden, uint32_t cut,
                            void (*edit)(struct rp_program *program)) {
    open_driver(f, edit);
    double first = feed(f, golden, 0, cut);
    return fmax(first, cut < TOKENS ? feed(f, golden, cut, TOKENS) : 0);
}

static void test_logits_are_those_of_transformers_wherever_a_prompt_is_cut(void **state) {
    struct fixture *f = *state;
    for (size_t g = 0; g < RP_ARRAY_COUNT(goldens); g++) {
        load_golden(f, &goldens[g]);
        for (uint32_t cut = 1; cut <= TOKENS; cut++) {
            double error = in_two_chunks(f, &goldens[g], cut, NULL);
            if (!(error < 2e-5))
                fail_msg("golden %zu cut at %u: logits differ by %g", g, cut, error);
        }
        open_driver(f, NULL); /* token by token */
        for (uint32_t t = 0; t < TOKENS; t++)
            assert_true(feed(f, &goldens[g], t, t + 1) < 2e-5);
    }
}

static struct rp_op *find(struct rp_program *program, const char *name) {
    for (uint32_t i = 0; i < program->op_count; i++)
        if (strcmp(program->ops[i].name, name) == 0)
            return &program->ops[i];
    fail_msg("no operator is called %s", name);
    return NULL;
}

static void rotate_one_head_less(struct rp_program *program) {
    find(program, "layer.0.attn.q_rope")->u.rope.heads--;
}
static void leave_keys_unrotated(struct rp_program *program) {
    find(program, "layer.0.attn.k_rope")->u.rope.heads = 0;
}
static void forget_mscale(struct rp_program *program) {
    find(program, "layer.0.attn.attention")->u.attention.scale = 1.0f / sqrtf(10.0f);
}
static void take_eps_of_the_other_norms(struct rp_program *program) {
    find(program, "layer.0.attn.k_norm")->u.norm.eps = 0.01f;
}

static void test_a_planted_mistake_changes_the_logits(void **state) {
    static void (*const mistakes[])(struct rp_program * program) = {
        rotate_one_head_less, leave_keys_unrotated, forget_mscale, take_eps_of_the_other_norms};
    struct fixture *f = *state;
    load_golden(f, &goldens[1]);
    for (size_t i = 0; i < RP_ARRAY_COUNT(mistakes); i++)
        assert_true(in_two_chunks(f, &goldens[1], 5, mistakes[i]) > 1e-3);
}

/* --- tensors --------------------------------------------------------------------------------- */

static float value_code(uint64_t i) { return (float)(i * 7 % 61); } /* FP8 codes, below 0x40 */
static float value_scale(uint64_t i) { return 0.25f + 0.25f * (float)i; }

#define FP8                                                                                        \
    "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","                          \
    "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]},"

/* One layer in FP8 with scales per block: q_a 128 rows, q_b 2 x 128, the latent 128 + 32, kv_b 2 x
 * (96 + 64). */
static void write_fp8(struct fixture *f, const char *sizes) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"DeepseekV3ForCausalLM\"],%s" FP8
             "\"vocab_size\":5,\"hidden_size\":128,\"intermediate_size\":128,"
             "\"moe_intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
             "\"num_key_value_heads\":2,\"max_position_embeddings\":16,\"n_group\":1,"
             "\"topk_group\":1,\"q_lora_rank\":128,\"kv_lora_rank\":128,\"v_head_dim\":64}",
             sizes);
    rp_test_file_text(&f->dir, "config.json", text);
    if (rp_model_config_load(f->dir.path, &f->config, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
    add_tensors(f);
    size_t count = f->count;
    for (size_t i = 0; i < count; i++) {
        struct rp_test_tensor *t = &f->tensors[i];
        if (t->rank != 2 || !strstr(t->name, "layers") || !strstr(t->name, "proj"))
            continue;
        snprintf(f->names[f->count], sizeof f->names[0], "%.80s_scale_inv", t->name);
        f->tensors[f->count] =
            (struct rp_test_tensor){f->names[f->count],
                                    "F32",
                                    2,
                                    {RP_CEIL_DIV(t->shape[0], 128), RP_CEIL_DIV(t->shape[1], 128)},
                                    value_scale};
        t->dtype = "F8_E4M3";
        t->value = value_code;
        f->count++;
    }
}

static const struct rp_matrix *matrix(struct fixture *f, enum rp_weight_role role) {
    return rp_model_matrix(&f->model, role, 0);
}

/* Element (row, col) of the FP8 tensor of `cols` columns, times the scale of its block. */
static float product(uint32_t row, uint32_t col, uint32_t cols) {
    float code = rp_fp8_to_f32((uint8_t)value_code((uint64_t)row * cols + col));
    return code * value_scale(row / 128 * RP_CEIL_DIV(cols, 128) + col / 128);
}

static void check_split(struct fixture *f) {
    const struct rp_matrix *k = matrix(f, RP_WEIGHT_K_B), *v = matrix(f, RP_WEIGHT_V_B);
    assert_true(k->dtype == RP_DTYPE_BF16 && k->rows == 2 * 128 && k->cols == 96);
    assert_true(v->dtype == RP_DTYPE_BF16 && v->rows == 2 * 64 && v->cols == 128);
    for (uint32_t head = 0; head < 2; head++)
        for (uint32_t c = 0; c < 128; c++) {
            for (uint32_t n = 0; n < 96; n++)
                assert_int_equal(((uint16_t *)k->data)[(head * 128 + c) * 96 + n],
                                 rp_f32_to_bf16(product(head * 160 + n, c, 128)));
            for (uint32_t j = 0; j < 64; j++)
                assert_int_equal(((uint16_t *)v->data)[(head * 64 + j) * 128 + c],
                                 rp_f32_to_bf16(product(head * 160 + 96 + j, c, 128)));
        }
}

/* Rows [skip, skip + 32) of every `dim`: even ones, then odd ones; scales by block. */
static void check_rows(const struct rp_matrix *m, uint32_t begin, uint32_t rows, uint32_t dim,
                       uint32_t skip) {
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t i = row % dim, from = row;
        if (i >= skip && i < skip + 32)
            from = row - i + skip + (i - skip) % 16 * 2 + (i - skip) / 16;
        for (uint32_t col = 0; col < m->cols; col += 5)
            assert_true(rp_matrix_quantized(m, begin + row, col) *
                            rp_matrix_scale(m, begin + row, col) ==
                        product(from, col, m->cols));
    }
}

static void test_kv_b_of_8_bits_becomes_two_matrices_and_rope_rows_keep_their_scales(void **state) {
    struct fixture *f = *state;
    write_fp8(f, "\"qk_nope_head_dim\":96,\"qk_rope_head_dim\":32,");
    if (load(f, RP_DTYPE_BF16) != RP_OK)
        fail_msg("%s", f->err.text);
    check_split(f);
    const struct rp_matrix *qkv = matrix(f, RP_WEIGHT_QKV), *q_b = matrix(f, RP_WEIGHT_Q_B);
    assert_true(qkv->dtype == RP_DTYPE_FP8_E4M3 && q_b->dtype == RP_DTYPE_FP8_E4M3);
    check_rows(qkv, 0, 128, 128, 128); /* q_a: as in the file */
    check_rows(qkv, 128, 160, 160, 128);
    check_rows(q_b, 0, 256, 128, 96);
    assert_int_equal(matrix(f, RP_WEIGHT_O)->dtype, RP_DTYPE_FP8_E4M3);
    /* in f32: products */
    assert_int_equal(load(f, RP_DTYPE_F32), RP_OK);
    assert_true(((float *)matrix(f, RP_WEIGHT_K_B)->data)[96 + 3] == product(3, 1, 128));
    assert_true(((float *)matrix(f, RP_WEIGHT_Q_B)->data)[(96 + 16) * 128] == product(97, 0, 128));
}

static void test_rope_rows_that_lie_in_two_blocks_of_scales_are_refused(void **state) {
    struct fixture *f = *state;
    write_fp8(f, "\"qk_nope_head_dim\":112,\"qk_rope_head_dim\":32,");
    assert_int_equal(load(f, RP_DTYPE_BF16), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "q_b_proj.weight has scales per block of 128 x 128"));
}

static void test_missing_and_misshapen_tensors_are_refused_by_name(void **state) {
    struct fixture *f = *state;
    load_golden(f, &goldens[1]);
    for (size_t i = 0; i < f->count; i++) {
        if (!strstr(f->names[i], "self_attn"))
            continue;
        f->tensors[i].shape[0]++;
        assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_FORMAT);
        assert_non_null(strstr(f->err.text, f->names[i]));
        f->tensors[i].shape[0]--;
        struct rp_test_tensor last = f->tensors[f->count - 1], gone = f->tensors[i];
        f->tensors[i] = last;
        f->count--;
        assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_NOT_FOUND);
        assert_non_null(strstr(f->err.text, f->names[i]));
        f->count++;
        f->tensors[i] = gone;
    }
}

static void test_groups_of_ranks_are_refused_by_key(void **state) {
    struct fixture *f = *state;
    load_golden(f, &goldens[0]);
    assert_int_equal(rp_model_shard(&f->model, 2, &f->err), RP_STATUS_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "--tensor-parallel-size: models with latent attention"));
    assert_int_equal(f->model.ranks, 0);
}

/* --- configuration --------------------------------------------------------------------------- */

struct entry {
    const char *key, *value; /* NULL: absent */
};

/* What DeepSeek-V3 and Kimi K2 have in config.json, with other numbers. */
static const struct entry v3[] = {
    {"architectures", "[\"DeepseekV3ForCausalLM\"]"},
    {"model_type", "\"deepseek_v3\""},
    {"attention_bias", "false"},
    {"ep_size", "1"},
    {"first_k_dense_replace", "3"},
    {"hidden_act", "\"silu\""},
    {"hidden_size", "64"},
    {"intermediate_size", "48"},
    {"kv_lora_rank", "32"},
    {"max_position_embeddings", "4096"},
    {"moe_intermediate_size", "16"},
    {"moe_layer_freq", "1"},
    {"n_group", "8"},
    {"n_routed_experts", "32"},
    {"n_shared_experts", "2"},
    {"norm_topk_prob", "true"},
    {"num_attention_heads", "6"},
    {"num_experts_per_tok", "5"},
    {"num_hidden_layers", "5"},
    {"num_key_value_heads", "6"},
    {"num_nextn_predict_layers", "1"},
    {"q_lora_rank", "20"},
    {"qk_nope_head_dim", "10"},
    {"qk_rope_head_dim", "6"},
    {"rms_norm_eps", "1e-06"},
    {"rope_scaling", "{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
                     "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":64,"
                     "\"type\":\"yarn\"}"},
    {"rope_theta", "10000"},
    {"routed_scaling_factor", "2.5"},
    {"scoring_func", "\"sigmoid\""},
    {"tie_word_embeddings", "false"},
    {"topk_group", "4"},
    {"topk_method", "\"noaux_tc\""},
    {"v_head_dim", "16"},
    {"vocab_size", "50"},
};
static const struct entry v2[] = {
    {"architectures", "[\"DeepseekV2ForCausalLM\"]"},
    {"model_type", "\"deepseek_v2\""},
    {"attention_bias", "false"},
    {"aux_loss_alpha", "0.001"},
    {"first_k_dense_replace", "1"},
    {"hidden_size", "64"},
    {"intermediate_size", "48"},
    {"kv_lora_rank", "32"},
    {"moe_intermediate_size", "16"},
    {"n_group", "8"},
    {"n_routed_experts", "32"},
    {"n_shared_experts", "2"},
    {"norm_topk_prob", "false"},
    {"num_attention_heads", "6"},
    {"num_experts_per_tok", "5"},
    {"num_hidden_layers", "5"},
    {"q_lora_rank", "null"},
    {"qk_nope_head_dim", "10"},
    {"qk_rope_head_dim", "6"},
    {"routed_scaling_factor", "16.0"},
    {"scoring_func", "\"softmax\""},
    {"seq_aux", "true"},
    {"topk_group", "3"},
    {"topk_method", "\"group_limited_greedy\""},
    {"v_head_dim", "16"},
    {"vocab_size", "50"},
};

static int read_config(struct fixture *f, bool is_v3, const struct entry *change) {
    const struct entry *entries = is_v3 ? v3 : v2;
    size_t count = is_v3 ? RP_ARRAY_COUNT(v3) : RP_ARRAY_COUNT(v2), len = 0;
    char text[2048];
    bool written = !change->key;
    for (size_t i = 0; i <= count; i++) {
        const struct entry *entry = i < count ? &entries[i] : change;
        if (i < count && change->key && strcmp(entry->key, change->key) == 0)
            entry = change;
        if ((entry == change && written) || !entry->key)
            continue;
        written |= entry == change;
        if (entry->value)
            len += (size_t)snprintf(text + len, sizeof text - len, "%c\"%s\":%s", len ? ',' : '{',
                                    entry->key, entry->value);
    }
    snprintf(text + len, sizeof text - len, "}");
    rp_test_file_text(&f->dir, "config.json", text);
    memset(&f->err, 0, sizeof f->err);
    return rp_model_config_load(f->dir.path, &f->config, &f->err);
}

static void must_read(struct fixture *f, bool is_v3, const char *key, const char *value) {
    const struct entry change = {key, value};
    if (read_config(f, is_v3, &change) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void test_the_published_keys_say_what_is_computed(void **state) {
    struct fixture *f = *state;
    const struct rp_model_config *c = &f->config;
    must_read(f, true, NULL, NULL);
    assert_true(c->latent.rank == 32 && c->latent.rope_dim == 6 && c->latent.nope_dim == 10);
    assert_true(c->latent.value_dim == 16 && c->latent.q_rank == 20);
    assert_true(c->head_dim == 16 && c->kv_heads == 1 && c->rope.rotary_dim == 6);
    double m = 0.1 * log(40) + 1;
    assert_true(fabs(c->attention_scale - m * m / 4) < 1e-12);
    assert_true(c->rope.attention_factor == 1.0);
    assert_true(c->experts.score == RP_ROUTE_SIGMOID && c->experts.bias && c->experts.renormalize);
    assert_true(c->experts.groups == 8 && c->experts.groups_used == 4);
    assert_true(c->experts.group_best == 2 && c->experts.shared == 32);
    assert_true(c->experts.factor == 2.5f && c->experts.dense_layers[0] == 7);
    must_read(f, true, "model_type", "\"kimi_k2\"");
    assert_int_equal(c->family, RP_FAMILY_DEEPSEEK_V3);
    must_read(f, true, "q_lora_rank", "null"); /* Moonlight */
    assert_int_equal(c->latent.q_rank, 0);
    must_read(f, true, "rope_scaling", NULL);
    assert_true(c->attention_scale == 0);
    must_read(f, false, NULL, NULL);
    assert_true(c->latent.q_rank == 0 && c->experts.score == RP_ROUTE_SOFTMAX);
    assert_true(c->experts.groups == 8 && c->experts.groups_used == 3);
    assert_true(c->experts.group_best == 1 && !c->experts.bias && !c->experts.renormalize);
    must_read(f, false, "topk_method", "\"greedy\"");
    assert_int_equal(c->experts.groups, 1);
    must_read(f, false, "q_lora_rank", "24");
    assert_int_equal(c->latent.q_rank, 24);
    must_read(f, true, "head_dim", "6"); /* as transformers writes it */
    assert_int_equal(c->head_dim, 16);
}

static void test_what_cannot_be_computed_is_refused_by_key(void **state) {
    static const struct {
        bool is_v3;
        struct entry change;
        const char *text;
    } cases[] = {
        {true, {"attention_bias", "true"}, "attention_bias is not supported"},
        {false, {"mlp_bias", "true"}, "mlp_bias is not supported"},
        {true, {"hidden_act", "\"relu\""}, "hidden_act is \"relu\""},
        {true, {"kv_lora_rank", "24"}, "kv_lora_rank is 24, must be a multiple of 16"},
        {true, {"kv_lora_rank", "0"}, "kv_lora_rank is 0"},
        {true, {"kv_lora_rank", "656"}, "kv_lora_rank is 656, must be 1 to 640"},
        {true, {"kv_lora_rank", "640"}, "kv_lora_rank and qk_rope_head_dim must be at most 640"},
        {true, {"qk_rope_head_dim", "5"}, "qk_rope_head_dim is 5, must be a multiple of 2"},
        {true, {"qk_nope_head_dim", "-2"}, "qk_nope_head_dim is -2"},
        {true, {"v_head_dim", "20"}, "v_head_dim is 20, must be a multiple of 16"},
        {true, {"v_head_dim", "\"16\""}, "v_head_dim must be an integer"},
        {true, {"q_lora_rank", "0"}, "q_lora_rank is 0"},
        {true, {"head_dim", "12"}, "head_dim must be 6"},
        {true, {"qk_head_dim", "12"}, "qk_head_dim must be 16"},
        {true, {"num_key_value_heads", "2"}, "num_key_value_heads must equal num_attention_heads"},
        {true, {"num_key_value_heads", "5"}, "num_key_value_heads is 5"},
        {true, {"rope_interleave", "false"}, "rope_interleave must be true"},
        {true, {"scoring_func", "\"softmax\""}, "scoring_func is \"softmax\", supported: sigmoid"},
        {false, {"scoring_func", "\"sigmoid\""}, "scoring_func is \"sigmoid\", supported: softmax"},
        {true, {"topk_method", "\"greedy\""}, "topk_method is \"greedy\", supported: noaux_tc"},
        {false, {"topk_method", "\"noaux_tc\""}, "topk_method is \"noaux_tc\", supported: greedy"},
        {false, {"norm_topk_prob", "true"}, "norm_topk_prob must be false"},
        {true, {"n_group", "5"}, "n_group must divide the experts"},
        {true, {"n_group", "null"}, "n_group must be a number"},
        {false, {"n_group", NULL}, "n_group is missing"},
        {true, {"topk_group", "9"}, "topk_group is 9"},
        {true, {"topk_group", "1"}, "topk_group groups have less experts"},
        {true, {"n_routed_experts", "null"}, "n_routed_experts must be a number"},
        {true, {"n_shared_experts", "null"}, "n_shared_experts must be a number"},
        {true, {"num_experts_per_tok", "33"}, "num_experts_per_tok is 33"},
        {false, {"num_experts_per_tok", NULL}, "num_experts_per_tok is missing"},
        {true, {"moe_intermediate_size", "24"}, "moe_intermediate_size is 24, must be a multiple"},
        {true, {"moe_layer_freq", "2"}, "moe_layer_freq must be 1"},
        {true, {"routed_scaling_factor", "0"}, "routed_scaling_factor is 0"},
        {true, {"sliding_window_pattern", "2"}, "sliding_window_pattern is not known"},
        {true, {"attn_logit_softcapping", "3.0"}, "attn_logit_softcapping is not known"},
        {true,
         {"rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"mscale_all_dim\":1}"},
         "mscale_all_dim is supported with yarn alone"},
        {true, {"partial_rotary_factor", "0.5"}, "partial_rotary_factor must be 1"},
        {true, {"model_type", "\"deepseek_v2\""}, "model_type is \"deepseek_v2\""},
        {true,
         {"quantization_config", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}"},
         "4-bit weights of models with latent attention are not supported"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        int status = read_config(f, cases[i].is_v3, &cases[i].change);
        if (status == RP_OK || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].text, f->err.text);
    }
}

/* --- sizes ----------------------------------------------------------------------------------- */

static void test_a_token_takes_one_row_of_latents_a_layer(void **state) {
    struct fixture *f = *state;
    struct rp_kv_layout kv;
    assert_int_equal(rp_model_shape("deepseek-v2-lite", &f->config, &f->err), RP_OK);
    assert_int_equal(rp_model_describe(&f->config, RP_DTYPE_BF16, &f->model, &f->err), RP_OK);
    assert_int_equal(rp_model_kv_token_bytes(&f->model, RP_DTYPE_BF16), 27 * 576 * 2);
    assert_true(rp_model_kv_layout(&f->model, 16, RP_DTYPE_BF16, &kv));
    assert_int_equal(kv.page_stride, 16 * 27 * 576 * 2);
    assert_true(rp_model_parameter_count(&f->model) / 10000000 == 1570);       /* 15.7 B */
    assert_true(rp_model_active_parameter_count(&f->model) / 10000000 == 266); /* 2.66 B */
    assert_int_equal(rp_model_emit(&f->model, &f->program, &f->err), RP_OK);
    const struct rp_op *attention = find(&f->program, "layer.26.attn.attention");
    assert_true(attention->u.attention.head_dim == 576 && attention->u.attention.value_dim == 512);
    assert_true(attention->u.attention.kv_heads == 1 && attention->u.attention.heads == 16);
    assert_true(fabsf(attention->u.attention.scale - 0.1147214f) < 1e-6f);
    assert_int_equal(find(&f->program, "layer.0.attn.kv_write")->in_count, 1);
    assert_int_equal(find(&f->program, "layer.0.attn.v_b")->kind, RP_OP_HEAD_LINEAR);
    uint64_t before = rp_program_fingerprint(&f->program);
    find(&f->program, "layer.3.attn.k_b")->u.head_linear.copied--;
    assert_true(rp_program_fingerprint(&f->program) != before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_logits_are_those_of_transformers_wherever_a_prompt_is_cut),
        TEST(test_a_planted_mistake_changes_the_logits),
        TEST(test_kv_b_of_8_bits_becomes_two_matrices_and_rope_rows_keep_their_scales),
        TEST(test_rope_rows_that_lie_in_two_blocks_of_scales_are_refused),
        TEST(test_missing_and_misshapen_tensors_are_refused_by_name),
        TEST(test_groups_of_ranks_are_refused_by_key),
        TEST(test_the_published_keys_say_what_is_computed),
        TEST(test_what_cannot_be_computed_is_refused_by_key),
        TEST(test_a_token_takes_one_row_of_latents_a_layer),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
