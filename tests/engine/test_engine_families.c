/* Goal: an answer depends only on its request, for models with experts, layers with windows, sinks
 * and latents. Method: streams_fixture.h with small random models, other chunks, and a pool so
 * small that sequences are swapped. */
/* First: it has parameters named as globals of the other. */
#include "tests/support/family_configs.h"

#include "tests/engine/streams_fixture.h"

/* A layer with an MLP, then two with experts in groups and a shared expert. */
static const struct rp_model_config experts_config = {.family = RP_FAMILY_GLM4_MOE,
                                                      .hidden = 64,
                                                      .intermediate = 96,
                                                      .layers = 3,
                                                      .heads = 4,
                                                      .kv_heads = 2,
                                                      .head_dim = 24,
                                                      .vocab = 600,
                                                      .max_position = 256,
                                                      .norm_eps = 1e-5f,
                                                      .rope = {.theta = 10000.0},
                                                      .bos_id = RP_ID_NONE,
                                                      .experts = {.count = 12,
                                                                  .used = 3,
                                                                  .intermediate = 48,
                                                                  .shared = 32,
                                                                  .score = RP_ROUTE_SIGMOID,
                                                                  .bias = true,
                                                                  .renormalize = true,
                                                                  .groups = 4,
                                                                  .groups_used = 2,
                                                                  .group_best = 2,
                                                                  .factor = 1.5f,
                                                                  .dense_layers = {1}}};

/* As gpt-oss: layers with a window and without, sinks, biases, experts of MXFP4. */
static void gpt_oss_config(struct rp_model_config *out) {
    assert_int_equal(rp_model_shape("gpt-oss-20b", out, NULL), RP_OK);
    out->hidden = out->experts.intermediate = 64;
    out->layers = 3;
    out->heads = 4;
    out->kv_heads = 2;
    out->head_dim = 24;
    out->vocab = 600;
    out->max_position = 256;
    out->window = 24;
    out->rope.original_max_position = 32;
    out->experts.count = 12;
    out->experts.used = 3;
    out->eos_count = 0;
}

/* As Gemma 4, every part of it. */
static void gemma4_config(struct rp_model_config *out) {
    *out = experts_config;
    out->family = RP_FAMILY_GEMMA4;
    rp_test_set_family(out);
    out->window = 24;
}

/* Every choice of a row in the layers with experts is counted once, in the step that computes the
 * row. */
static void check_expert_counts(const struct rp_engine_config *config, uint64_t sparse) {
    submit_all(config);
    drain(together, REQUESTS);
    assert_pages_are_back();
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    double rows = rp_histogram_sum(&metrics->expert_rows);
    uint64_t layers = rp_counter_read(&metrics->expert_layer_steps);
    assert_true(rows > 0 && rows <= (double)sparse * 3 * rp_histogram_sum(&metrics->step_tokens));
    assert_true(layers > 0 && layers % sparse == 0 &&
                layers <= sparse * rp_counter_read(&metrics->steps));
    assert_true(rp_histogram_sum(&metrics->expert_imbalance) >= (double)layers);
    close_engine(NULL);
}

/* Latents of 32 + 8 values in place of K and V. */
static struct rp_model_config latent_config(void) {
    struct rp_model_config config = experts_config;
    config.family = RP_FAMILY_DEEPSEEK_V3;
    config.kv_heads = 1;
    config.rope.rotary_dim = 8;
    config.latent = (struct rp_model_latent){
        .rank = 32, .rope_dim = 8, .nope_dim = 16, .value_dim = 32, .q_rank = 40};
    return config;
}

/* Variants [first, 4), in steps of `step`: all but 0 have the small pool. */
static void check_64_streams(const struct rp_model_config *model_config, uint32_t small_pool,
                             int first, int step) {
    struct rp_model demo = model;
    uint64_t sparse = 0;
    alone_done = RP_DTYPE_I32;
    assert_int_equal(rp_model_random(model_config, RP_DTYPE_BF16, 3, 0, &model, NULL), RP_OK);
    for (uint32_t layer = 0; layer < model_config->layers; layer++)
        sparse += rp_model_has_experts(model_config, layer);
    run_alone();
    for (int variant = first; variant < 4; variant += step) {
        struct rp_engine_config config = config_default();
        config.prefix_cache = variant & 1;
        config.run_ahead = config.enforce_eager = variant & 2;
        config.max_model_len = PROMPT_MAX + OUTPUT_MAX;
        config.max_num_batched_tokens = variant ? 37 : 128; /* other chunks */
        if (variant) {
            config.page_count_override = small_pool;
            config.page_tokens = SMALL_PAGE;
        }
        uint64_t preemptions = run_together(&config);
        assert_true(!variant || preemptions > 0);
    }
    struct rp_engine_config config = config_default();
    check_expert_counts(&config, sparse);
    rp_model_deinit(&model);
    model = demo;
    alone_done = RP_DTYPE_I32;
}

static void test_64_streams_of_a_model_with_experts_equal_each_one_alone(void **state) {
    (void)state;
    check_64_streams(&experts_config, SMALL_POOL, 0, 1);
}

static void test_64_streams_of_a_model_with_latents_equal_each_one_alone(void **state) {
    const struct rp_model_config config = latent_config();
    (void)state;
    check_64_streams(&config, SMALL_POOL, 1, 2);
}

static void test_64_streams_of_gpt_oss_equal_each_one_alone(void **state) {
    struct rp_model_config config;
    (void)state;
    gpt_oss_config(&config);
    check_64_streams(&config, SMALL_POOL * 3 / 2, 0,
                     1); /* a second group, of layers with a window */
}

static void test_64_streams_of_gemma4_equal_each_one_alone(void **state) {
    struct rp_model_config config;
    (void)state;
    gemma4_config(&config);
    check_64_streams(&config, SMALL_POOL, 0, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_64_streams_of_gpt_oss_equal_each_one_alone, close_engine),
        cmocka_unit_test_teardown(test_64_streams_of_gemma4_equal_each_one_alone, close_engine),
        cmocka_unit_test_teardown(test_64_streams_of_a_model_with_experts_equal_each_one_alone,
                                  close_engine),
        cmocka_unit_test_teardown(test_64_streams_of_a_model_with_latents_equal_each_one_alone,
                                  close_engine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
