/* Goal: every weight of a checkpoint is loaded to where the network reads it, converted as
 * promised, and a checkpoint that does not match its configuration is refused with file and tensor.
 * Method: a checkpoint of one layer in which each tensor has distinct values. */
#include "base/bf16.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/model.h"
#include "quant/matrix.h"
#include "tests/support/dump_weights.h"
#include "tests/support/model_files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME "model.safetensors"

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model;
    struct rp_error err;
    uint64_t done, total, calls;
};

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_model_deinit(&f->model);
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* hidden 4, intermediate 3, heads 2, kv heads 1, head_dim 2, vocab 5: small integers and halves are
 * exact in every type. */
static float value_1(uint64_t i) { return 1.0f + (float)i * 0.5f; }
static float value_2(uint64_t i) { return 32.0f + (float)i; }
static float value_3(uint64_t i) { return 64.0f + (float)i; }
static float value_neg(uint64_t i) { return -1.0f - (float)i; }
static float value_wave(uint64_t i) { return (float)(i % 127) - 63.0f; }
static float value_nan(uint64_t i) { return i == 2 ? NAN : 1.0f; }
static float value_inf(uint64_t i) { return i == 3 ? -INFINITY : 1.0f; }
/* Between two bf16 values: 1 + 2^-8 is a tie and goes to even (1), 1 + 3 * 2^-8 to 1 + 2^-6. */
static float value_tie(uint64_t i) { return i % 2 ? 1.0f + 3.0f / 256 : 1.0f + 1.0f / 256; }

#define LAYER "model.layers.0."
#define LLAMA_TENSORS(dtype)                                                                       \
    {"model.embed_tokens.weight", dtype, 2, {5, 4}, value_1},                                      \
        {"model.norm.weight", dtype, 1, {4}, value_2},                                             \
        {LAYER "input_layernorm.weight", dtype, 1, {4}, value_1},                                  \
        {LAYER "post_attention_layernorm.weight", dtype, 1, {4}, value_neg},                       \
        {LAYER "self_attn.q_proj.weight", dtype, 2, {4, 4}, value_1},                              \
        {LAYER "self_attn.k_proj.weight", dtype, 2, {2, 4}, value_2},                              \
        {LAYER "self_attn.v_proj.weight", dtype, 2, {2, 4}, value_3},                              \
        {LAYER "self_attn.o_proj.weight", dtype, 2, {4, 4}, value_neg},                            \
        {LAYER "mlp.gate_proj.weight", dtype, 2, {3, 4}, value_2},                                 \
        {LAYER "mlp.up_proj.weight", dtype, 2, {3, 4}, value_3}, {                                 \
        LAYER "mlp.down_proj.weight", dtype, 2, {4, 3}, value_1                                    \
    }
#define LLAMA_COUNT 11

static void write_config_vocab(struct fixture *f, const char *more, unsigned vocab) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"hidden_size\":4,\"intermediate_size\":3,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":%u,"
             "\"max_position_embeddings\":8,%s}",
             vocab, more);
    rp_test_file_text(&f->dir, "config.json", text);
}
static void write_config(struct fixture *f, const char *more) { write_config_vocab(f, more, 5); }
#define TIED "\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true"

static void on_progress(void *ctx, uint64_t done, uint64_t total) {
    struct fixture *f = ctx;
    assert_true(done > f->done && done <= total);
    f->done = done;
    f->total = total;
    f->calls++;
}

static int load(struct fixture *f, enum rp_dtype dtype) {
    rp_model_deinit(&f->model);
    memset(&f->err, 0, sizeof f->err);
    f->done = f->total = f->calls = 0;
    return rp_model_load(f->dir.path, dtype, 0, on_progress, f, &f->model, &f->err);
}

static void must_load(struct fixture *f, enum rp_dtype dtype) {
    if (load(f, dtype) != RP_OK)
        fail_msg("%s", f->err.text);
}

static float at(const struct rp_matrix *matrix, uint32_t row, uint32_t col) {
    size_t i = (size_t)row * matrix->cols + col;
    if (rp_dtype_bytes(matrix->dtype) == 1)
        return rp_matrix_quantized(matrix, row, col) * rp_matrix_scale(matrix, row, col);
    return matrix->dtype == RP_DTYPE_F32 ? ((float *)matrix->data)[i]
                                         : rp_bf16_to_f32(((uint16_t *)matrix->data)[i]);
}

/* Checks that rows [begin, begin + rows) are value(0), value(1), ... */
static void assert_rows(const struct rp_matrix *matrix, uint32_t begin, uint32_t rows,
                        float (*value)(uint64_t)) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < matrix->cols; c++)
            assert_true(at(matrix, begin + r, c) == value((uint64_t)r * matrix->cols + c));
}

static void assert_vector(const float *vector, uint32_t len, float (*value)(uint64_t)) {
    assert_non_null(vector);
    for (uint32_t i = 0; i < len; i++)
        assert_true(vector[i] == value(i));
}

/* Weights of the first layer. */
static const struct rp_matrix *matrix(const struct rp_model *model, enum rp_weight_role role) {
    return rp_model_matrix(model, role, 0);
}

static const float *vector(const struct rp_model *model, enum rp_weight_role role) {
    return rp_model_vector(model, role, 0);
}

static const struct rp_matrix *embedding(const struct rp_model *model) {
    return rp_model_matrix(model, RP_WEIGHT_EMBED, RP_LAYER_NONE);
}

static void assert_llama(const struct rp_model *model) {
    assert_true(model->loaded);
    assert_rows(embedding(model), 0, 5, value_1);
    assert_vector(rp_model_vector(model, RP_WEIGHT_FINAL_NORM, RP_LAYER_NONE), 4, value_2);
    assert_vector(vector(model, RP_WEIGHT_ATTN_NORM), 4, value_1);
    assert_vector(vector(model, RP_WEIGHT_MLP_NORM), 4, value_neg);
    assert_int_equal(matrix(model, RP_WEIGHT_QKV)->rows, 8);
    assert_rows(matrix(model, RP_WEIGHT_QKV), 0, 4, value_1);
    assert_rows(matrix(model, RP_WEIGHT_QKV), 4, 2, value_2);
    assert_rows(matrix(model, RP_WEIGHT_QKV), 6, 2, value_3);
    assert_rows(matrix(model, RP_WEIGHT_O), 0, 4, value_neg);
    assert_int_equal(matrix(model, RP_WEIGHT_GATE_UP)->rows, 6);
    assert_rows(matrix(model, RP_WEIGHT_GATE_UP), 0, 3, value_2);
    assert_rows(matrix(model, RP_WEIGHT_GATE_UP), 3, 3, value_3);
    assert_rows(matrix(model, RP_WEIGHT_DOWN), 0, 4, value_1);
    assert_null(vector(model, RP_WEIGHT_Q_NORM));
    assert_null(vector(model, RP_WEIGHT_QKV_BIAS));
}

static void test_each_file_type_lands_in_each_memory_type(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *file;
        enum rp_dtype automatic;
    } types[] = {{"F32", RP_DTYPE_F32}, {"F16", RP_DTYPE_F32}, {"BF16", RP_DTYPE_BF16}};
    write_config(f, TIED);
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++) {
        const struct rp_test_tensor tensors[] = {LLAMA_TENSORS(types[i].file)};
        rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
        must_load(f, RP_DTYPE_F32);
        assert_int_equal(f->model.dtype, RP_DTYPE_F32);
        assert_llama(&f->model);
        must_load(f, RP_DTYPE_BF16);
        assert_int_equal(embedding(&f->model)->dtype, RP_DTYPE_BF16);
        assert_llama(&f->model);
        must_load(f, RP_MODEL_DTYPE_AUTO);
        assert_int_equal(f->model.dtype, types[i].automatic);
        assert_llama(&f->model);
    }
}

static void test_f32_is_rounded_to_the_nearest_even_bf16(void **state) {
    struct fixture *f = *state;
    struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F32")};
    tensors[7].value = value_tie; /* o_proj */
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
    must_load(f, RP_DTYPE_BF16);
    assert_true(at(rp_model_matrix(&f->model, RP_WEIGHT_O, 0), 0, 0) == 1.0f);
    assert_true(at(rp_model_matrix(&f->model, RP_WEIGHT_O, 0), 0, 1) == 1.0f + 1.0f / 64);
}

static void test_a_tensor_of_several_pieces_is_converted_whole(void **state) {
    struct fixture *f = *state;
    struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F16")};
    /* 4 x 300,000 f16 values are 2.3 MiB, and conversions process 1 MiB at a time. */
    tensors[0].shape[0] = 300000;
    tensors[0].value = value_wave;
    write_config_vocab(f, TIED, 300000);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
    must_load(f, RP_DTYPE_F32);
    assert_rows(embedding(&f->model), 0, 300000, value_wave);
    must_load(f, RP_DTYPE_BF16);
    assert_rows(embedding(&f->model), 0, 300000, value_wave);
    assert_int_equal(f->done, f->total);
}

static void test_a_tied_output_layer_is_the_embedding_if_the_file_has_an_equal_one(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F32"),
                                             {"lm_head.weight", "F32", 2, {5, 4}, value_1}};
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT + 1);
    must_load(f, RP_DTYPE_F32);
    assert_ptr_equal(rp_model_matrix(&f->model, RP_WEIGHT_HEAD, RP_LAYER_NONE)->data,
                     embedding(&f->model)->data);
    assert_int_equal(rp_model_weight_bytes(&f->model), (20 + 4 + 8 + 32 + 16 + 24 + 12) * 4);
}

static float value_wave_but_last(uint64_t i) { return i == 4 * 100000 - 1 ? 0.5f : value_wave(i); }

static void test_a_tied_output_layer_that_differs_from_the_embedding_is_refused(void **state) {
    struct fixture *f = *state;
    struct rp_test_tensor tensors[] = {
        LLAMA_TENSORS("F32"), {"lm_head.weight", "F32", 2, {100000, 4}, value_wave_but_last}};
    tensors[0].shape[0] = 100000;
    tensors[0].value = value_wave;
    write_config_vocab(f, TIED, 100000);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT + 1);
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "lm_head.weight differs from model.embed_tokens.weight"));
    assert_non_null(strstr(f->err.hint, "tie_word_embeddings"));
    tensors[LLAMA_COUNT].value = value_wave;
    tensors[LLAMA_COUNT].dtype = "F16";
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT + 1);
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_FORMAT);
    tensors[LLAMA_COUNT].dtype = "F32";
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT + 1);
    must_load(f, RP_DTYPE_F32);
}

static void test_an_untied_output_layer_is_loaded_and_missed(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F32"),
                                             {"lm_head.weight", "F32", 2, {5, 4}, value_neg}};
    write_config(f, "\"model_type\":\"llama\"");
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT + 1);
    must_load(f, RP_DTYPE_F32);
    assert_rows(rp_model_matrix(&f->model, RP_WEIGHT_HEAD, RP_LAYER_NONE), 0, 5, value_neg);
    assert_rows(embedding(&f->model), 0, 5, value_1);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_NOT_FOUND);
    assert_string_equal(f->err.text, "model.safetensors: tensor lm_head.weight is missing");
    assert_non_null(strstr(f->err.hint, "tie_word_embeddings"));
    assert_null(f->model.weights.entries);
}

static void test_biases_and_head_norms_are_loaded(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {
        LLAMA_TENSORS("BF16"),
        {LAYER "self_attn.q_proj.bias", "BF16", 1, {4}, value_1},
        {LAYER "self_attn.k_proj.bias", "F32", 1, {2}, value_2},
        {LAYER "self_attn.v_proj.bias", "F16", 1, {2}, value_3},
        {LAYER "self_attn.o_proj.bias", "BF16", 1, {4}, value_neg},
        {LAYER "self_attn.q_norm.weight", "BF16", 1, {2}, value_2},
        {LAYER "self_attn.k_norm.weight", "BF16", 1, {2}, value_3},
    };
    write_config(f, "\"architectures\":[\"Qwen3ForCausalLM\"],\"tie_word_embeddings\":true,"
                    "\"head_dim\":2,\"attention_bias\":true");
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, RP_ARRAY_COUNT(tensors));
    must_load(f, RP_MODEL_DTYPE_AUTO);
    const struct rp_model *m = &f->model;
    assert_int_equal(f->model.dtype, RP_DTYPE_BF16);
    assert_vector(vector(m, RP_WEIGHT_QKV_BIAS), 4, value_1);
    assert_vector(vector(m, RP_WEIGHT_QKV_BIAS) + 4, 2, value_2);
    assert_vector(vector(m, RP_WEIGHT_QKV_BIAS) + 6, 2, value_3);
    assert_vector(vector(m, RP_WEIGHT_O_BIAS), 4, value_neg);
    assert_vector(vector(m, RP_WEIGHT_Q_NORM), 2, value_2);
    assert_vector(vector(m, RP_WEIGHT_K_NORM), 2, value_3);
}

static void test_mlp_biases_are_loaded(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {
        LLAMA_TENSORS("F32"),
        {LAYER "mlp.gate_proj.bias", "F32", 1, {3}, value_1},
        {LAYER "mlp.up_proj.bias", "F32", 1, {3}, value_2},
        {LAYER "mlp.down_proj.bias", "F32", 1, {4}, value_3},
    };
    write_config(f, TIED ",\"mlp_bias\":true");
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, RP_ARRAY_COUNT(tensors));
    must_load(f, RP_DTYPE_F32);
    assert_vector(rp_model_vector(&f->model, RP_WEIGHT_GATE_UP_BIAS, 0), 3, value_1);
    assert_vector(rp_model_vector(&f->model, RP_WEIGHT_GATE_UP_BIAS, 0) + 3, 3, value_2);
    assert_vector(rp_model_vector(&f->model, RP_WEIGHT_DOWN_BIAS, 0), 4, value_3);
}

static void test_a_sharded_checkpoint_loads(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {LLAMA_TENSORS("BF16")};
    char index[2048] = "{\"weight_map\":{";
    size_t len = strlen(index);
    for (size_t i = 0; i < LLAMA_COUNT; i++)
        len += (size_t)snprintf(index + len, sizeof index - len, "%s\"%s\":\"part-%d.safetensors\"",
                                i ? "," : "", tensors[i].name, i < 6 ? 1 : 2);
    snprintf(index + len, sizeof index - len, "}}");
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, "part-1.safetensors", tensors, 6);
    rp_test_checkpoint_write(&f->dir, "part-2.safetensors", tensors + 6, LLAMA_COUNT - 6);
    rp_test_file_text(&f->dir, "model.safetensors.index.json", index);
    must_load(f, RP_MODEL_DTYPE_AUTO);
    assert_llama(&f->model);
    rp_test_file_truncate(&f->dir, "part-2.safetensors", 100);
    assert_int_equal(load(f, RP_MODEL_DTYPE_AUTO), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "part-2.safetensors: "));
}

static void test_progress_ends_at_the_total(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F32")};
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
    must_load(f, RP_DTYPE_F32);
    assert_in_range(f->calls, 1, LLAMA_COUNT);
    assert_int_equal(f->done, f->total);
    assert_int_equal(f->total, 104 * 4); /* the matrices */
}

static void test_tensors_that_the_network_does_not_use_are_ignored(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {
        LLAMA_TENSORS("F32"),
        {LAYER "self_attn.rotary_emb.inv_freq", "F32", 1, {1}, value_1},
        {"vision.weight", "F16", 2, {2, 2}, value_1}};
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, RP_ARRAY_COUNT(tensors));
    must_load(f, RP_DTYPE_F32);
    assert_llama(&f->model);
}

static void test_checkpoints_that_do_not_fit_are_refused_by_file_and_tensor(void **state) {
    struct fixture *f = *state;
    static const struct {
        uint32_t index;
        struct rp_test_tensor instead; /* name NULL: without the tensor */
        enum rp_status status;
        const char *text;
    } cases[] = {
        {0,
         {.name = NULL},
         RP_STATUS_NOT_FOUND,
         "model.safetensors: tensor model.embed_tokens.weight is missing"},
        {5,
         {.name = NULL},
         RP_STATUS_NOT_FOUND,
         "tensor model.layers.0.self_attn.k_proj.weight is missing"},
        {0,
         {"model.embed_tokens.weight", "F32", 2, {6, 4}, value_1},
         RP_STATUS_FORMAT,
         "model.safetensors: tensor model.embed_tokens.weight has shape [6, 4], config.json "
         "implies [5, 4]"},
        {5,
         {LAYER "self_attn.k_proj.weight", "F32", 2, {4, 2}, value_1},
         RP_STATUS_FORMAT,
         "has shape [4, 2], config.json implies [2, 4]"},
        {5,
         {LAYER "self_attn.k_proj.weight", "F32", 1, {8}, value_1},
         RP_STATUS_FORMAT,
         "has shape [8], config.json implies [2, 4]"},
        {1,
         {"model.norm.weight", "F32", 2, {4, 1}, value_1},
         RP_STATUS_FORMAT,
         "tensor model.norm.weight has shape [4, 1], config.json implies [4]"},
        {1,
         {"model.norm.weight", "F32", 1, {4}, value_nan},
         RP_STATUS_FORMAT,
         "model.safetensors: tensor model.norm.weight: element 2 is not a number"},
        {2,
         {LAYER "input_layernorm.weight", "BF16", 1, {4}, value_inf},
         RP_STATUS_FORMAT,
         "tensor model.layers.0.input_layernorm.weight: element 3 is infinite"},
        {2,
         {LAYER "input_layernorm.weight", "F16", 1, {4}, value_inf},
         RP_STATUS_FORMAT,
         "element 3 is infinite"},
    };
    write_config(f, TIED);
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F32")};
        size_t count = LLAMA_COUNT;
        tensors[cases[i].index] = cases[i].instead;
        if (!cases[i].instead.name)
            tensors[cases[i].index] = tensors[--count];
        rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, count);
        int status = load(f, RP_DTYPE_F32);
        if (status != (int)cases[i].status || !strstr(f->err.text, cases[i].text))
            fail_msg("case %zu: expected \"%s\", got %s \"%s\"", i, cases[i].text,
                     rp_status_name(status), f->err.text);
        assert_null(f->model.weights.entries);
    }
}

static void test_a_type_without_a_conversion_is_refused_by_name(void **state) {
    struct fixture *f = *state;
    write_config(f, TIED);
    rp_test_safetensors_write(
        &f->dir, FILE_NAME,
        "{\"model.embed_tokens.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[5,4],"
        "\"data_offsets\":[0,20]}}",
        NULL, 20);
    assert_int_equal(load(f, RP_DTYPE_F32), RP_STATUS_UNSUPPORTED);
    assert_string_equal(f->err.text,
                        "model.safetensors: tensor model.embed_tokens.weight is of type "
                        "F8_E4M3, supported: F32, F16, BF16");
    assert_int_equal(load(f, RP_DTYPE_FP8_E4M3), RP_STATUS_INVALID);
}

static void test_every_failed_allocation_is_an_error_and_leaks_nothing(void **state) {
    struct fixture *f = *state;
    const struct rp_test_tensor tensors[] = {LLAMA_TENSORS("F16")};
    write_config(f, TIED);
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, LLAMA_COUNT);
    int status = RP_STATUS_NO_MEMORY;
    for (uint64_t n = 1; n < 100 && status != RP_OK; n++) {
        rp_model_deinit(&f->model);
        rp_alloc_fail_at(n);
        status = load(f, RP_DTYPE_BF16);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY);
        assert_true(status == RP_OK || f->err.text[0] != '\0');
    }
    assert_int_equal(status, RP_OK);
    assert_llama(&f->model);
}

static void test_random_weights_are_those_of_their_seed_in_both_types(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config;
    struct rp_model other;
    assert_int_equal(rp_model_shape("stories260k", &config, &f->err), RP_OK);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_F32, 7, 16, &f->model, &f->err), RP_OK);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_BF16, 7, 16, &other, &f->err), RP_OK);
    double sum = 0, squares = 0;
    const struct rp_matrix *a = rp_model_matrix(&f->model, RP_WEIGHT_GATE_UP, 4),
                           *b = rp_model_matrix(&other, RP_WEIGHT_GATE_UP, 4);
    bool equal = true;
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t c = 0; c < a->cols; c++) {
            equal = equal && at(a, r, c) == at(b, r, c);
            sum += at(a, r, c);
            squares += at(a, r, c) * at(a, r, c);
        }
    rp_model_deinit(&other);
    double count = (double)a->rows * a->cols;
    assert_true(equal);
    assert_true(fabs(sum / count) < 0.001);
    assert_true(fabs(sqrt(squares / count) - 0.02) < 0.001);
    assert_true(rp_model_vector(&f->model, RP_WEIGHT_ATTN_NORM, 0)[0] > 0.9f &&
                rp_model_vector(&f->model, RP_WEIGHT_ATTN_NORM, 0)[0] < 1.1f);
    assert_int_equal(f->model.rope_positions, 16);
    assert_int_equal(rp_model_random(&config, RP_DTYPE_F32, 8, 16, &other, &f->err), RP_OK);
    bool differs = memcmp(embedding(&other)->data, embedding(&f->model)->data, 64) != 0;
    rp_model_deinit(&other);
    assert_true(differs);
}

static void test_a_described_model_has_shapes_and_bytes_but_no_memory(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config;
    assert_int_equal(rp_model_shape("llama-3.1-8b", &config, &f->err), RP_OK);
    assert_int_equal(rp_model_describe(&config, RP_MODEL_DTYPE_AUTO, &f->model, &f->err), RP_OK);
    assert_int_equal(f->model.dtype, RP_DTYPE_BF16);
    assert_false(f->model.loaded);
    assert_null(embedding(&f->model)->data);
    assert_null(rp_model_matrix(&f->model, RP_WEIGHT_DOWN, 31)->data);
    assert_null(rp_model_vector(&f->model, RP_WEIGHT_FINAL_NORM, RP_LAYER_NONE));
    /* 8,030,261,248 parameters of 2 bytes; the 266,240 of the norms have 4. */
    assert_int_equal(rp_model_weight_bytes(&f->model), 8030261248u * 2 + 266240u * 2);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--dump") == 0)
        return rp_dump_weights(argv[2], argv[3], argv[4]);
    if (argc == 3 && strcmp(argv[1], "--time") == 0)
        return rp_time_weights(argv[2]);
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_each_file_type_lands_in_each_memory_type),
        TEST(test_f32_is_rounded_to_the_nearest_even_bf16),
        TEST(test_a_tensor_of_several_pieces_is_converted_whole),
        TEST(test_a_tied_output_layer_is_the_embedding_if_the_file_has_an_equal_one),
        TEST(test_a_tied_output_layer_that_differs_from_the_embedding_is_refused),
        TEST(test_an_untied_output_layer_is_loaded_and_missed),
        TEST(test_biases_and_head_norms_are_loaded),
        TEST(test_mlp_biases_are_loaded),
        TEST(test_a_sharded_checkpoint_loads),
        TEST(test_progress_ends_at_the_total),
        TEST(test_tensors_that_the_network_does_not_use_are_ignored),
        TEST(test_checkpoints_that_do_not_fit_are_refused_by_file_and_tensor),
        TEST(test_a_type_without_a_conversion_is_refused_by_name),
        TEST(test_every_failed_allocation_is_an_error_and_leaks_nothing),
        TEST(test_random_weights_are_those_of_their_seed_in_both_types),
        TEST(test_a_described_model_has_shapes_and_bytes_but_no_memory),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
