/* Goal: the matrices of an opened checkpoint arrive in the table's order, whole and equal to those
 * of a full load, with a bounded number of bytes in flight, and every failure ends without a leak.
 * Method: a checkpoint with several layers whose matrices are larger than a slice, and a consumer
 * that frees each matrix. */
#include "base/log.h"
#include "base/memory.h"
#include "model/model.h"
#include "tests/support/model_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME "model.safetensors"
#define LAYERS    5u
#define HIDDEN    24u
#define INNER     40u
#define VOCAB     70u
#define NAMES     (LAYERS * 9 + 3)

struct fixture {
    struct rp_test_dir dir;
    struct rp_model model, whole;
    struct rp_error err;
    uint32_t consumed, fail_at; /* fail_at: this matrix (from 1) is not consumed */
    int last_layer;
};

/* Every tensor of the checkpoint, with distinct values. */
static void write_checkpoint(struct fixture *f, bool tied) {
    static char names[NAMES][96];
    static struct rp_test_tensor tensors[NAMES];
    static const struct {
        const char *name;
        uint32_t rank, shape[2];
    } layer[] = {
        {"input_layernorm", 1, {HIDDEN, 0}},       {"post_attention_layernorm", 1, {HIDDEN, 0}},
        {"self_attn.q_proj", 2, {HIDDEN, HIDDEN}}, {"self_attn.k_proj", 2, {8, HIDDEN}},
        {"self_attn.v_proj", 2, {8, HIDDEN}},      {"self_attn.o_proj", 2, {HIDDEN, HIDDEN}},
        {"mlp.gate_proj", 2, {INNER, HIDDEN}},     {"mlp.up_proj", 2, {INNER, HIDDEN}},
        {"mlp.down_proj", 2, {HIDDEN, INNER}}};
    uint32_t count = 0;
    char config[512];
    for (uint32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(layer); i++, count++) {
            snprintf(names[count], sizeof names[count], "model.layers.%u.%s.weight", l,
                     layer[i].name);
            tensors[count] = (struct rp_test_tensor){
                names[count], "F32", layer[i].rank, {layer[i].shape[0], layer[i].shape[1]}, NULL};
        }
    tensors[count++] =
        (struct rp_test_tensor){"model.embed_tokens.weight", "F32", 2, {VOCAB, HIDDEN}, NULL};
    tensors[count++] = (struct rp_test_tensor){"model.norm.weight", "F32", 1, {HIDDEN}, NULL};
    if (!tied)
        tensors[count++] =
            (struct rp_test_tensor){"lm_head.weight", "F32", 2, {VOCAB, HIDDEN}, NULL};
    rp_test_checkpoint_write(&f->dir, FILE_NAME, tensors, count);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":%s,"
             "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,"
             "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"vocab_size\":%u,"
             "\"max_position_embeddings\":8}",
             tied ? "true" : "false", HIDDEN, INNER, LAYERS, VOCAB);
    rp_test_file_text(&f->dir, "config.json", config);
}

static int setup(void **state) {
    static struct fixture fixture;
    rp_log_set_level(RP_LOG_ERROR);
    rp_test_fixture_create(state, &fixture, sizeof fixture, &fixture.dir);
    fixture.last_layer = -1;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_alloc_fail_at(0);
    rp_model_deinit(&f->model);
    rp_model_deinit(&f->whole);
    rp_test_dir_remove(&f->dir);
    return 0;
}

/* Compares the matrix with that of the full load and frees its data. */
static int consume(void *ctx, struct rp_weight *weight, struct rp_error *err) {
    struct fixture *f = ctx;
    if (++f->consumed == f->fail_at)
        return rp_error_set(err, RP_STATUS_DEVICE, "the device is full");
    if (f->whole.weights.count) {
        const struct rp_matrix *other = rp_model_matrix(&f->whole, weight->role, weight->layer);
        assert_memory_equal(weight->matrix.data, other->data, rp_matrix_bytes(other));
    }
    int layer = weight->layer == RP_LAYER_NONE ? (int)LAYERS : weight->layer;
    assert_true(layer >= f->last_layer);
    f->last_layer = layer;
    rp_matrix_deinit(&weight->matrix);
    return RP_OK;
}

static int open_model(struct fixture *f) {
    return rp_model_open(f->dir.path, RP_DTYPE_F32, NULL, 0, &f->model, &f->err);
}

static void test_each_matrix_arrives_whole_and_in_order_within_the_window(void **state) {
    struct fixture *f = *state;
    for (int tied = 0; tied < 2; tied++) {
        write_checkpoint(f, tied);
        f->consumed = 0;
        f->last_layer = -1;
        rp_model_deinit(&f->whole);
        rp_model_deinit(&f->model);
        assert_int_equal(
            rp_model_load(f->dir.path, RP_DTYPE_F32, 0, NULL, NULL, &f->whole, &f->err), RP_OK);
        assert_int_equal(open_model(f), RP_OK);
        uint64_t largest = (uint64_t)2 * INNER * HIDDEN * sizeof(float);
        struct rp_weight_consumer consumer = {
            .consume = consume, .ctx = f, .window_bytes = 2 * largest};
        assert_int_equal(rp_model_stream(&f->model, &consumer, &f->err), RP_OK);
        assert_int_equal(f->consumed, LAYERS * 4 + (tied ? 1 : 2));
        assert_true(consumer.peak_bytes > 0 && consumer.peak_bytes <= 2 * largest);
        assert_true(f->model.loaded);
        assert_null(f->model.source);
    }
}

static void test_a_window_smaller_than_a_matrix_holds_one_at_a_time(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f, true);
    assert_int_equal(open_model(f), RP_OK);
    struct rp_weight_consumer consumer = {.consume = consume, .ctx = f, .window_bytes = 1};
    assert_int_equal(rp_model_stream(&f->model, &consumer, &f->err), RP_OK);
    assert_int_equal(f->consumed, LAYERS * 4 + 1);
    assert_int_equal(consumer.peak_bytes, (uint64_t)2 * INNER * HIDDEN * sizeof(float));
}

static void test_a_consumer_that_fails_ends_the_stream_with_its_error(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f, true);
    assert_int_equal(open_model(f), RP_OK);
    f->fail_at = 7;
    struct rp_weight_consumer consumer = {.consume = consume, .ctx = f, .window_bytes = 1};
    assert_int_equal(rp_model_stream(&f->model, &consumer, &f->err), RP_STATUS_DEVICE);
    assert_string_equal(f->err.text, "the device is full");
    assert_int_equal(f->consumed, 7);
    assert_false(f->model.loaded);
}

/* The file shrinks after it was checked. */
static void test_a_read_that_fails_names_the_first_bad_tensor(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f, true);
    assert_int_equal(open_model(f), RP_OK);
    rp_test_file_truncate(&f->dir, FILE_NAME, 20000);
    struct rp_weight_consumer consumer = {.consume = consume, .ctx = f, .window_bytes = UINT64_MAX};
    int status = rp_model_stream(&f->model, &consumer, &f->err);
    assert_true(status < 0);
    assert_non_null(strstr(f->err.text, FILE_NAME));
    assert_non_null(strstr(f->err.text, "model.layers.0"));
    assert_null(f->model.source);
}

static void test_every_allocation_may_fail(void **state) {
    struct fixture *f = *state;
    write_checkpoint(f, true);
    int status = RP_STATUS_NO_MEMORY;
    for (uint64_t n = 1; status != RP_OK; n++) {
        assert_true(n < 1000);
        f->last_layer = -1;
        rp_alloc_fail_at(n);
        status = open_model(f);
        struct rp_weight_consumer consumer = {.consume = consume, .ctx = f, .window_bytes = 1};
        if (status == RP_OK)
            status = rp_model_stream(&f->model, &consumer, &f->err);
        rp_alloc_fail_at(0);
        if (status != RP_OK)
            assert_int_equal(status, RP_STATUS_NO_MEMORY);
        rp_model_deinit(&f->model);
    }
}

static void test_the_table_has_each_role_once_and_a_tied_head_is_the_embedding(void **state) {
    struct fixture *f = *state;
    struct rp_model_config config;
    assert_int_equal(rp_model_shape("qwen2.5-0.5b", &config, &f->err), RP_OK);
    assert_int_equal(rp_model_describe(&config, RP_DTYPE_BF16, &f->model, &f->err), RP_OK);
    for (uint32_t i = 0; i < f->model.weights.count; i++) {
        const struct rp_weight *weight = &f->model.weights.entries[i];
        assert_ptr_equal(rp_model_weight(&f->model, weight->role, weight->layer), weight);
        assert_true(weight->role != RP_WEIGHT_HEAD);
        assert_int_equal(weight->experts, 0);
    }
    assert_ptr_equal(rp_model_weight(&f->model, RP_WEIGHT_HEAD, RP_LAYER_NONE),
                     rp_model_weight(&f->model, RP_WEIGHT_EMBED, RP_LAYER_NONE));
    assert_null(rp_model_weight(&f->model, RP_WEIGHT_Q_NORM, 0));
    assert_non_null(rp_model_weight(&f->model, RP_WEIGHT_QKV_BIAS, 23));
    assert_int_equal(rp_model_weight(&f->model, RP_WEIGHT_QKV, 3)->shard, RP_SHARD_ROWS);
    assert_int_equal(rp_model_weight(&f->model, RP_WEIGHT_DOWN, 3)->shard, RP_SHARD_COLS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_each_matrix_arrives_whole_and_in_order_within_the_window),
        TEST(test_a_window_smaller_than_a_matrix_holds_one_at_a_time),
        TEST(test_a_consumer_that_fails_ends_the_stream_with_its_error),
        TEST(test_a_read_that_fails_names_the_first_bad_tensor),
        TEST(test_every_allocation_may_fail),
        TEST(test_the_table_has_each_role_once_and_a_tied_head_is_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
