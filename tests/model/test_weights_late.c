/* Goal: which weights a consumer quantizes is decided by one rule, their values arrive as the file
 * has them, and matrices, shards and errors are those of a model that was quantized by the host.
 * Method: a checkpoint with tensors of three types and one wide matrix, and a consumer that
 * quantizes as a device would, row by row. */
#include "base/bf16.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/quantize_row.h"
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

#define FILE_NAME "model.safetensors"
#define LAYER     "model.layers.0."
enum { HIDDEN = 32, KV = 16, INNER = 1040, VOCAB = 70, RANKS = 2 };

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model, whole; /* whole: quantized by the host */
    struct rp_error err;
    uint32_t late, plain;
    enum rp_dtype seen[RP_WEIGHT_ROLE_COUNT]; /* of the values; BLOCKS: they were not late */
    const char *nan_tensor;
    bool cohere; /* rows of q and k are brought into another order */
};

static float value(uint64_t i) { return ((float)(i * 7919 % 1021) - 510.0f) / 4096.0f; }
static float value_nan(uint64_t i) { return i == 5 * HIDDEN + 3 ? NAN : value(i); }

static void write_checkpoint(struct fixture *f) {
    struct rp_test_tensor tensors[] = {
        {LAYER "self_attn.q_proj.weight", "BF16", 2, {HIDDEN, HIDDEN}, value},
        {LAYER "self_attn.k_proj.weight", "F16", 2, {KV, HIDDEN}, value},
        {LAYER "self_attn.v_proj.weight", "F32", 2, {KV, HIDDEN}, value},
        {LAYER "self_attn.o_proj.weight", "F16", 2, {HIDDEN, HIDDEN}, value},
        {LAYER "mlp.gate_proj.weight", "BF16", 2, {INNER, HIDDEN}, value},
        {LAYER "mlp.up_proj.weight", "BF16", 2, {INNER, HIDDEN}, value},
        {LAYER "mlp.down_proj.weight", "BF16", 2, {HIDDEN, INNER}, value},
        {LAYER "input_layernorm.weight", "BF16", 1, {HIDDEN}, value},
        {LAYER "post_attention_layernorm.weight", "BF16", 1, {HIDDEN}, value},
        {"model.norm.weight", "BF16", 1, {HIDDEN}, value},
        {"model.embed_tokens.weight", "BF16", 2, {VOCAB, HIDDEN}, value}};
    char config[512];
    for (size_t i = 0; i < RP_ARRAY_COUNT(tensors); i++)
        if (f->nan_tensor && strstr(tensors[i].name, f->nan_tensor))
            tensors[i].value = value_nan;
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, RP_ARRAY_COUNT(tensors));
    snprintf(config, sizeof config,
             "{\"architectures\":[\"%s\"],\"tie_word_embeddings\":true,%s"
             "\"hidden_size\":32,\"intermediate_size\":1040,\"num_hidden_layers\":1,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":70,"
             "\"max_position_embeddings\":8}",
             f->cohere ? "CohereForCausalLM" : "LlamaForCausalLM",
             f->cohere ? "\"logit_scale\":0.5,\"use_qk_norm\":false," : "");
    rp_test_file_text(&f->dir, "config.json", config);
}

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    return rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_model_deinit(&f->model);
    rp_model_deinit(&f->whole);
    rp_test_dir_remove(&f->dir);
    return 0;
}

static float value_at(const struct rp_matrix *values, size_t i) {
    if (values->dtype == RP_DTYPE_F32)
        return ((const float *)values->data)[i];
    uint16_t half = ((const uint16_t *)values->data)[i];
    return values->dtype == RP_DTYPE_F16 ? rp_f16_to_f32(half) : rp_bf16_to_f32(half);
}

/* The rows of `values` become those of `made`: columns [col, col + made->cols). */
static void check_rows(const struct rp_matrix *values, uint32_t col, const struct rp_matrix *made) {
    float row[INNER];
    unsigned char quantized[INNER];
    assert_true(values->cols <= INNER && values->rows == made->rows);
    for (uint32_t r = 0; r < values->rows; r++) {
        for (uint32_t i = 0; i < values->cols; i++)
            row[i] = value_at(values, (size_t)r * values->cols + i);
        float scale = rp_quantize_row(row, RP_DTYPE_F32, values->cols, made->dtype, quantized);
        assert_memory_equal(&scale, &made->scales[r], sizeof scale);
        assert_memory_equal(quantized + col,
                            (const unsigned char *)made->data + (size_t)r * made->cols, made->cols);
    }
}

static int consume(void *ctx, struct rp_weight *weight, struct rp_error *err) {
    struct fixture *f = ctx;
    (void)err;
    f->plain++;
    if (f->whole.weights.count && !weight->shards) {
        const struct rp_matrix *other = rp_model_matrix(&f->whole, weight->role, weight->layer);
        assert_memory_equal(weight->matrix.data, other->data, rp_matrix_bytes(other));
    }
    rp_matrix_deinit(&weight->matrix);
    return RP_OK;
}

static int quantize(void *ctx, struct rp_weight *weight, const struct rp_matrix *values,
                    struct rp_error *err) {
    struct fixture *f = ctx;
    f->late++;
    f->seen[weight->role] = values->dtype;
    assert_null(weight->matrix.data);
    for (size_t i = 0; i < (size_t)values->rows * values->cols; i++)
        if (!isfinite(value_at(values, i)))
            return rp_error_set(err, RP_STATUS_FORMAT, "the device found a NaN");
    if (!f->whole.weights.count)
        return RP_OK;
    struct rp_weight *other = &f->whole.weights.entries[weight - f->model.weights.entries];
    if (!weight->shards) {
        check_rows(values, 0, &other->matrix);
        return RP_OK;
    }
    assert_int_equal(rp_weight_divide(&f->whole, other, err), RP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct rp_matrix part;
        uint32_t col;
        assert_int_equal(rp_weight_divide_values(&f->model, weight, rank, values, &part, &col, err),
                         RP_OK);
        check_rows(&part, col, &other->shards[rank]);
        if (part.data != values->data)
            rp_matrix_deinit(&part);
    }
    return RP_OK;
}

static int stream(struct fixture *f, uint64_t window, bool late) {
    struct rp_weight_consumer consumer = {
        .consume = consume, .ctx = f, .window_bytes = window, .quantize = late ? quantize : NULL};
    f->late = f->plain = 0;
    for (uint32_t i = 0; i < RP_WEIGHT_ROLE_COUNT; i++)
        f->seen[i] = RP_DTYPE_BLOCKS;
    memset(&f->err, 0, sizeof f->err);
    return rp_model_stream(&f->model, &consumer, &f->err);
}

static void open_model(struct fixture *f, enum rp_quant_scheme scheme) {
    const struct rp_model_quantization quantization = {scheme, false};
    rp_model_deinit(&f->model);
    if (rp_model_open(f->dir.path, RP_MODEL_DTYPE_AUTO, &quantization, 0, &f->model, &f->err) !=
        RP_OK)
        fail_msg("%s", f->err.text);
}

static void load_whole(struct fixture *f, enum rp_quant_scheme scheme) {
    const struct rp_model_quantization quantization = {scheme, false};
    rp_model_deinit(&f->whole);
    if (rp_model_load_quantized(f->dir.path, RP_MODEL_DTYPE_AUTO, &quantization, 0, NULL, NULL,
                                &f->whole, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void test_values_arrive_as_in_the_file_and_as_f32_where_types_differ(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f);
    load_whole(f, RP_QUANT_INT8);
    for (uint64_t window = 1; window; window = window == 1 ? UINT64_MAX : 0) {
        open_model(f, RP_QUANT_INT8);
        assert_int_equal(stream(f, window, true), RP_OK);
        assert_int_equal(f->late, 4);
        assert_int_equal(f->plain, 1);
        assert_int_equal(f->seen[RP_WEIGHT_QKV], RP_DTYPE_F32);
        assert_int_equal(f->seen[RP_WEIGHT_O], RP_DTYPE_F16);
        assert_int_equal(f->seen[RP_WEIGHT_GATE_UP], RP_DTYPE_BF16);
        assert_int_equal(f->seen[RP_WEIGHT_DOWN], RP_DTYPE_BF16);
        assert_int_equal(f->seen[RP_WEIGHT_EMBED], RP_DTYPE_BLOCKS); /* is not quantized */
    }
}

static void test_narrow_rows_of_fp8_stay_with_the_host_which_searches_their_scale(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f);
    load_whole(f, RP_QUANT_FP8_W8A16);
    open_model(f, RP_QUANT_FP8_W8A16);
    assert_int_equal(stream(f, 1, true), RP_OK);
    assert_int_equal(f->late, 1);
    assert_int_equal(f->plain, 4);
    assert_int_equal(f->seen[RP_WEIGHT_DOWN], RP_DTYPE_BF16);
}

static void test_nothing_else_is_late(void **state) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_NONE, RP_QUANT_INT4, RP_QUANT_MXFP4};
    struct fixture *f = *state;
    write_checkpoint(f);
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes); i++) {
        open_model(f, schemes[i]);
        assert_int_equal(stream(f, UINT64_MAX, true), RP_OK);
        assert_int_equal(f->late, 0);
        assert_int_equal(f->plain, 5);
    }
}

static void test_rows_in_another_order_are_those_of_the_host(void **state) {
    struct fixture *f = *state;
    f->cohere = true;
    write_checkpoint(f);
    load_whole(f, RP_QUANT_INT8);
    open_model(f, RP_QUANT_INT8);
    assert_int_equal(stream(f, 1, true), RP_OK);
    assert_int_equal(f->late, 4);
}

static void test_shards_of_values_give_the_shards_of_the_quantized_matrix(void **state) {
    static const enum rp_quant_scheme schemes[] = {RP_QUANT_INT8, RP_QUANT_FP8};
    struct fixture *f = *state;
    write_checkpoint(f);
    for (size_t i = 0; i < RP_ARRAY_COUNT(schemes); i++) {
        load_whole(f, schemes[i]);
        open_model(f, schemes[i]);
        assert_int_equal(rp_model_shard(&f->whole, RANKS, &f->err), RP_OK);
        assert_int_equal(rp_model_shard(&f->model, RANKS, &f->err), RP_OK);
        assert_int_equal(stream(f, UINT64_MAX, true), RP_OK);
        assert_int_equal(f->late, i == 0 ? 4 : 1);
    }
}

/* Text of the error of both ways, which must not differ. */
static void check_error(struct fixture *f, const char *word, size_t truncated) {
    struct rp_error host;
    for (int way = 0; way < 6; way++) { /* 0: the host quantizes */
        write_checkpoint(f);
        open_model(f, RP_QUANT_INT8);
        if (truncated)
            rp_test_file_truncate(&f->dir, FILE_NAME, truncated);
        assert_int_equal(stream(f, way % 2 ? 1 : UINT64_MAX, way > 0), RP_STATUS_FORMAT);
        if (way == 0)
            host = f->err;
        assert_non_null(strstr(f->err.text, word));
        assert_string_equal(f->err.text, host.text);
        assert_false(f->model.loaded);
    }
}

static void test_a_nan_is_reported_as_by_the_host(void **state) {
    struct fixture *f = *state;
    f->nan_tensor = "v_proj";
    check_error(f, "v_proj.weight: row 5 holds a NaN", 0);
    f->nan_tensor = "up_proj";
    check_error(f, "up_proj.weight: row 5 holds a NaN", 0);
    f->nan_tensor = "_proj"; /* in all of them: the first is named */
    check_error(f, "q_proj.weight: row 5 holds a NaN", 0);
    f->cohere = true;
    check_error(f, "q_proj.weight: row 5 holds a NaN", 0);
}

/* The reader of the embedding, which is the last in the file and in the table, may fail first. */
static void test_a_nan_comes_before_a_later_tensor_that_cannot_be_read(void **state) {
    struct fixture *f = *state;
    f->nan_tensor = "k_proj";
    check_error(f, "k_proj.weight: row 5 holds a NaN", 210000);
}

static void test_every_allocation_may_fail(void **state) {
    struct fixture *f = *state;
    int status = RP_STATUS_NO_MEMORY;
    write_checkpoint(f);
    for (uint64_t n = 1; status != RP_OK; n++) {
        const struct rp_model_quantization quantization = {RP_QUANT_INT8, false};
        assert_true(n < 1000);
        rp_alloc_fail_at(n);
        status =
            rp_model_open(f->dir.path, RP_MODEL_DTYPE_AUTO, &quantization, 0, &f->model, &f->err);
        if (status == RP_OK)
            status = stream(f, 1, true);
        rp_alloc_fail_at(0);
        if (status != RP_OK)
            assert_int_equal(status, RP_STATUS_NO_MEMORY);
        rp_model_deinit(&f->model);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_values_arrive_as_in_the_file_and_as_f32_where_types_differ),
        TEST(test_narrow_rows_of_fp8_stay_with_the_host_which_searches_their_scale),
        TEST(test_nothing_else_is_late),
        TEST(test_rows_in_another_order_are_those_of_the_host),
        TEST(test_shards_of_values_give_the_shards_of_the_quantized_matrix),
        TEST(test_a_nan_is_reported_as_by_the_host),
        TEST(test_a_nan_comes_before_a_later_tensor_that_cannot_be_read),
        TEST(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
