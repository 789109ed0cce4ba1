/* Goal: a sequence gets the same bits with any lowering, capture, padding or batch.
 * Method: small random models of all families, f32 and bf16; a script of steps (chunked
 * prompts of three sequences, then decodes) is run in many ways, and the logits of every step are
 * compared bit for bit with those of the simplest way. The KV pool starts as NaN, so that reads of
 * unwritten memory show. */
#include "backend/module.h"
#include "base/memory.h"
#include "tests/support/driver.h"
#include "tests/support/family_configs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 97, SEQUENCES = 3, PROMPT = 21, DECODES = 6, ROWS_MAX = SEQUENCES * (1 + DECODES) };

static const struct rp_bucket buckets[] = {
    {1, 1, 1, true},  {2, 2, 2, true},   {4, 4, 4, true},   {8, 8, 8, true},
    {8, 8, 8, false}, {16, 8, 8, false}, {32, 8, 8, false}, {96, 8, 8, false},
};

/* The result of a run: the logits of every sampling row, in order of the script. */
struct record {
    float logits[ROWS_MAX][VOCAB];
    int32_t tokens[ROWS_MAX];
    uint32_t count;
};

static struct rp_model model; /* all freed in teardown */
static struct rp_driver driver;
static struct record *plain, *other;

static int setup(void **state) {
    (void)state;
    plain = rp_calloc(1, sizeof *plain);
    other = rp_calloc(1, sizeof *other);
    return plain && other ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    rp_driver_close(&driver);
    rp_model_deinit(&model);
    rp_free(plain);
    rp_free(other);
    return 0;
}

/* Each of the other families has the operators of one of these. */
static const enum rp_family families[] = {
    RP_FAMILY_LLAMA,       RP_FAMILY_MISTRAL,  RP_FAMILY_QWEN2,       RP_FAMILY_QWEN3,
    RP_FAMILY_GEMMA2,      RP_FAMILY_GRANITE,  RP_FAMILY_OLMO3,       RP_FAMILY_SMOLLM3,
    RP_FAMILY_MINISTRAL3,  RP_FAMILY_STABLELM, RP_FAMILY_COHERE,      RP_FAMILY_MIXTRAL,
    RP_FAMILY_QWEN2_MOE,   RP_FAMILY_GLM4_MOE, RP_FAMILY_DEEPSEEK_V2, RP_FAMILY_DEEPSEEK_V3,
    RP_FAMILY_GPT_OSS,     RP_FAMILY_GEMMA4,   RP_FAMILY_LFM2,        RP_FAMILY_QWEN3_NEXT,
    RP_FAMILY_GRANITE_MOE,
};

static void make_model(enum rp_family family, enum rp_dtype dtype) {
    struct rp_model_config config = {.family = family,
                                     .hidden = 64,
                                     /* with complete and partial panels */
                                     .intermediate = family % 2 ? 88 : 96,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 24,
                                     .vocab = VOCAB,
                                     .max_position = 128,
                                     .norm_eps = 1e-5f,
                                     .rope = {.theta = 10000.0},
                                     .bos_id = RP_ID_NONE};
    config.tied = family == RP_FAMILY_LLAMA || family == RP_FAMILY_GEMMA2;
    if (family == RP_FAMILY_MISTRAL || family == RP_FAMILY_GEMMA2 || family == RP_FAMILY_OLMO3)
        config.window = 7;
    rp_test_set_family(&config);
    rp_model_deinit(&model);
    assert_int_equal(rp_model_random(&config, dtype, 5, 128, &model, NULL), RP_OK);
}

static struct rp_driver_config way_default(enum rp_dtype dtype) {
    return (struct rp_driver_config){.slots = 8,
                                     .pages_per_slot = 16,
                                     .page_tokens = 4,
                                     .threads = 1,
                                     .buckets = buckets,
                                     .bucket_count = RP_ARRAY_COUNT(buckets),
                                     .kv_dtype = dtype};
}

static int32_t prompt_token(uint32_t sequence, uint32_t i) {
    return (int32_t)((sequence * 31 + i * 17 + 3) % VOCAB);
}

static void keep(struct record *record, uint32_t row, uint32_t logit_row) {
    memcpy(record->logits[record->count], rp_driver_logits(&driver, logit_row),
           sizeof record->logits[0]);
    record->tokens[record->count++] = rp_driver_result(&driver, row)->token;
}

/* The prompts of all sequences, `chunk` tokens of each in every step. */
static void run_prompts(struct record *record, uint32_t first_slot, uint32_t chunk,
                        struct rp_graph_entry *entry) {
    for (uint32_t start = 0; start < PROMPT; start += chunk) {
        uint32_t count = RP_MIN(chunk, PROMPT - start);
        bool last = start + count == PROMPT;
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            int32_t tokens[PROMPT];
            for (uint32_t i = 0; i < count; i++)
                tokens[i] = prompt_token(s, start + i);
            rp_driver_row(&driver, first_slot + s, tokens, count, last);
        }
        rp_driver_run(&driver, entry);
        for (uint32_t s = 0; last && s < SEQUENCES; s++)
            keep(record, s, s);
    }
}

static void run_decodes(struct record *record, uint32_t first_slot, struct rp_graph_entry *entry) {
    for (uint32_t step = 0; step < DECODES; step++) {
        for (uint32_t s = 0; s < SEQUENCES; s++)
            rp_driver_row(&driver, first_slot + s, NULL, 1, true);
        rp_driver_run(&driver, entry);
        for (uint32_t s = 0; s < SEQUENCES; s++)
            keep(record, s, s);
    }
}

static void run_script(struct record *record, uint32_t first_slot, uint32_t chunk,
                       struct rp_graph_entry *entry) {
    record->count = 0;
    run_prompts(record, first_slot, chunk, entry);
    run_decodes(record, first_slot, entry);
}

static void run_way(struct record *record, const struct rp_driver_config *way) {
    rp_driver_close(&driver);
    rp_driver_open(&driver, &model, way);
    run_script(record, 0, PROMPT, NULL);
}

static void assert_same(const struct record *a, const struct record *b) {
    assert_int_equal(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        assert_int_equal(a->tokens[i], b->tokens[i]);
        assert_memory_equal(a->logits[i], b->logits[i], sizeof a->logits[i]);
        for (uint32_t v = 0; v < VOCAB; v++)
            assert_false(isnan(a->logits[i][v]));
    }
}

static void check_way(const struct rp_driver_config *way) {
    run_way(other, way);
    assert_same(plain, other);
}

/* Runs `check` for every family in f32 and bf16; `plain` has the logits of the simplest way. */
static void for_every_model(void (*check)(enum rp_dtype dtype)) {
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        enum rp_family family = families[f];
        for (int half = 0; half < 2; half++) {
            enum rp_dtype dtype = half ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            struct rp_driver_config way = way_default(dtype);
            rp_driver_close(&driver);
            make_model(family, dtype);
            way.no_fusion = true;
            run_way(plain, &way);
            check(dtype);
        }
    }
}

static void check_fusion(enum rp_dtype dtype) {
    struct rp_driver_config way = way_default(dtype);
    check_way(&way);
}

static void test_fused_and_unfused_lowering_give_equal_bits(void **state) {
    (void)state;
    for_every_model(check_fusion);
}

static void test_fusion_saves_launches_and_covers_every_operator(void **state) {
    (void)state;
    uint32_t launches[2];
    make_model(RP_FAMILY_QWEN3, RP_DTYPE_BF16);
    for (int fused = 0; fused < 2; fused++) {
        struct rp_driver_config way = way_default(RP_DTYPE_BF16);
        way.no_fusion = !fused;
        rp_driver_close(&driver);
        rp_driver_open(&driver, &model, &way);
        struct rp_graph *graph = rp_graph_set_entry(driver.graphs, 0)->forward;
        uint32_t next = 0;
        launches[fused] = driver.backend->graph_launch_count(graph);
        for (uint32_t i = 0; i < launches[fused]; i++) {
            struct rp_launch_info info;
            driver.backend->graph_launch_info(graph, i, &info);
            for (uint32_t op = 0; op < info.op_count; op++)
                assert_int_equal(info.ops[op], next++);
        }
        assert_int_equal(next, driver.program.sample_begin);
        if (!fused)
            assert_int_equal(launches[0], next);
    }
    assert_true(launches[1] < launches[0]);
}

static bool runs_dense_models(enum rp_op_kind kind) {
    return kind != RP_OP_ROUTE && kind != RP_OP_EXPERT_SUM && kind != RP_OP_CONV;
}

static bool runs_all(enum rp_op_kind kind) {
    (void)kind;
    return true;
}

static void test_a_backend_without_a_kernel_refuses_the_program_by_operator(void **state) {
    (void)state;
    struct rp_backend without = *rp_backend_cpu();
    struct rp_program program;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        struct rp_error err = {0};
        make_model(families[f], RP_DTYPE_F32);
        assert_int_equal(rp_model_emit(&model, &program, NULL), RP_OK);
        assert_int_equal(rp_backend_check_program(rp_backend_cpu(), &program, &err), RP_OK);
        without.runs = runs_all;
        int status = rp_backend_check_program(&without, &program, &err);
        assert_int_equal(status, RP_OK);
        without.runs = runs_dense_models;
        status = rp_backend_check_program(&without, &program, &err);
        if (families[f] < RP_FAMILY_MIXTRAL) {
            assert_int_equal(status, RP_OK);
        } else {
            assert_int_equal(status, RP_STATUS_UNSUPPORTED);
            assert_non_null(strstr(err.text, model.config.state.conv_width
                                                 ? "state.conv needs the operator \"conv\""
                                                 : "moe.route needs the operator \"route\""));
            assert_non_null(strstr(err.hint, "--device cpu"));
        }
        rp_program_deinit(&program);
    }
}

static uint32_t launches_of(enum rp_family family, const char *kernel) {
    uint32_t found = 0;
    struct rp_driver_config way = way_default(RP_DTYPE_BF16);
    rp_driver_close(&driver);
    make_model(family, RP_DTYPE_BF16);
    rp_driver_open(&driver, &model, &way);
    struct rp_graph *graph = rp_graph_set_entry(driver.graphs, 0)->forward;
    for (uint32_t i = 0; i < driver.backend->graph_launch_count(graph); i++) {
        struct rp_launch_info info;
        driver.backend->graph_launch_info(graph, i, &info);
        found += strcmp(info.kernel, kernel) == 0;
    }
    return found;
}

static void test_gate_up_does_the_activation_where_its_halves_are_whole_panels(void **state) {
    (void)state;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        enum rp_family family = families[f];
        if (family >= RP_FAMILY_MIXTRAL) /* experts' GEMMs always do */
            continue;
        assert_int_equal(launches_of(family, "linear_gated"), family % 2 ? 0 : 2);
        assert_int_equal(launches_of(family, "activation"), family % 2 ? 2 : 0);
    }
}

static void check_freed_program(enum rp_dtype dtype) {
    struct rp_driver_config way = way_default(dtype);
    way.free_program = true;
    check_way(&way);
}

static void test_replay_needs_nothing_of_the_program(void **state) {
    (void)state;
    for_every_model(check_freed_program);
}

static void check_eager(enum rp_dtype dtype) {
    struct rp_driver_config way = way_default(dtype);
    way.eager = true;
    way.threads = 2;
    check_way(&way);
}

static void test_graph_equals_eager(void **state) {
    (void)state;
    for_every_model(check_eager);
}

static void check_threads(enum rp_dtype dtype) {
    for (uint32_t threads = 2; threads <= 3; threads++) {
        struct rp_driver_config way = way_default(dtype);
        way.threads = threads;
        check_way(&way);
    }
}

static void test_the_number_of_threads_changes_nothing(void **state) {
    (void)state;
    for_every_model(check_threads);
}

static void check_short_steps(enum rp_dtype dtype) {
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct rp_driver_config way = way_default(dtype);
        way.threads = threads;
        way.short_steps_here = true;
        check_way(&way);
    }
}

static void test_who_runs_a_step_changes_nothing(void **state) {
    (void)state;
    for_every_model(check_short_steps);
}

static void check_poison(enum rp_dtype dtype) {
    struct rp_driver_config way = way_default(dtype);
    way.poison = true;
    check_way(&way);
}

static void test_an_arena_of_nan_between_replays_changes_nothing(void **state) {
    (void)state;
    for_every_model(check_poison);
}

/* Every bucket that holds the decode step, then every one that holds the prompts: captured and
 * eager, with padding rows that are NaN. */
static void check_buckets(enum rp_dtype dtype) {
    for (int eager = 0; eager < 2; eager++) {
        struct rp_driver_config way = way_default(dtype);
        way.poison = true;
        way.eager = eager;
        rp_driver_close(&driver);
        rp_driver_open(&driver, &model, &way);
        for (uint32_t i = 0; i < rp_graph_set_count(driver.graphs); i++) {
            struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, i);
            bool holds_prompts =
                entry->bucket.tokens >= SEQUENCES * PROMPT && !entry->bucket.decode;
            if (entry->bucket.tokens < SEQUENCES)
                continue;
            for (uint32_t s = 0; s < SEQUENCES; s++) /* start over in the same slots */
                for (uint32_t field = RP_SLOT_LENGTH; field <= RP_SLOT_FINISHED; field++)
                    rp_driver_edit(&driver, s, field, 0, 0);
            other->count = 0;
            run_prompts(other, 0, PROMPT, holds_prompts ? entry : NULL);
            run_decodes(other, 0, entry);
            assert_same(plain, other);
        }
    }
}

static void test_every_bucket_gives_equal_bits_captured_and_eager(void **state) {
    (void)state;
    for_every_model(check_buckets);
}

static void check_chunks_and_slots(enum rp_dtype dtype) {
    static const uint32_t chunks[] = {1, 2, 4, 5, 16};
    for (size_t i = 0; i < RP_ARRAY_COUNT(chunks); i++) {
        struct rp_driver_config way = way_default(dtype);
        rp_driver_close(&driver);
        rp_driver_open(&driver, &model, &way);
        other->count = 0;
        run_script(other, (uint32_t)i, chunks[i], NULL);
        assert_same(plain, other);
    }
}

static void test_chunking_and_slots_change_nothing(void **state) {
    (void)state;
    for_every_model(check_chunks_and_slots);
}

/* Each sequence alone has the bits that it has in a batch. */
static void check_alone(enum rp_dtype dtype) {
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct rp_driver_config way = way_default(dtype);
        int32_t tokens[PROMPT];
        for (uint32_t i = 0; i < PROMPT; i++)
            tokens[i] = prompt_token(s, i);
        rp_driver_close(&driver);
        rp_driver_open(&driver, &model, &way);
        rp_driver_row(&driver, 5, tokens, PROMPT, true);
        rp_driver_run(&driver, NULL);
        for (uint32_t step = 0;; step++) {
            assert_memory_equal(rp_driver_logits(&driver, 0), plain->logits[step * SEQUENCES + s],
                                sizeof plain->logits[0]);
            if (step == DECODES)
                break;
            rp_driver_row(&driver, 5, NULL, 1, true);
            rp_driver_run(&driver, NULL);
        }
    }
}

static void test_a_sequence_has_equal_bits_alone_and_in_a_batch(void **state) {
    (void)state;
    for_every_model(check_alone);
}

/* No kernel writes outside its tensors. */
static void check_canaries(enum rp_dtype dtype) {
    struct rp_driver_config way = way_default(dtype);
    way.guarded = true;
    way.bucket_count = 1;
    for (size_t i = 4; i < RP_ARRAY_COUNT(buckets); i++) {
        int32_t tokens[PROMPT];
        uint32_t count = RP_MIN(buckets[i].tokens, (uint32_t)PROMPT);
        for (uint32_t t = 0; t < count; t++)
            tokens[t] = prompt_token(0, t);
        way.buckets = &buckets[i];
        rp_driver_close(&driver);
        rp_driver_open(&driver, &model, &way);
        rp_driver_row(&driver, 0, tokens, count, true);
        rp_driver_run(&driver, NULL);
        assert_true(rp_graph_set_check(driver.graphs));
    }
}

static void test_no_kernel_writes_outside_its_tensors(void **state) {
    (void)state;
    for_every_model(check_canaries);
}

static double relative_error(const struct record *a, const struct record *b, uint32_t rows) {
    double difference = 0.0, norm = 0.0;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t v = 0; v < VOCAB; v++) {
            difference += pow((double)a->logits[i][v] - b->logits[i][v], 2);
            norm += pow((double)a->logits[i][v], 2);
        }
    return sqrt(difference / norm);
}

/* Only the prompts: the sampled tokens may differ. */
static void test_fast_kernels_agree_with_the_scalar_reference(void **state) {
    (void)state;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        enum rp_family family = families[f];
        for (int half = 0; half < 2; half++) {
            enum rp_dtype dtype = half ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            struct rp_driver_config way = way_default(dtype);
            way.scalar_only = true;
            rp_driver_close(&driver);
            make_model(family, dtype);
            run_way(plain, &way);
            rp_driver_close(&driver);
            make_model(family, dtype); /* prepared again, for the fast kernels */
            way.scalar_only = false;
            run_way(other, &way);
            double error = relative_error(plain, other, SEQUENCES);
            printf("family %d %s: relative error %.2e\n", family, rp_dtype_name(dtype), error);
            assert_true(error <= (half ? 4e-3 : 1e-5));
        }
    }
}

static void test_a_row_of_a_finished_slot_is_skipped(void **state) {
    (void)state;
    int32_t tokens[3] = {1, 2, 3};
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32);
    rp_driver_open(&driver, &model, &way);
    rp_driver_row(&driver, 0, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    uint32_t stop = (uint32_t)rp_driver_result(&driver, 0)->token;
    for (uint32_t field = RP_SLOT_LENGTH; field <= RP_SLOT_FINISHED; field++)
        rp_driver_edit(&driver, 0, field, 0, 0);
    rp_driver_edit(&driver, 0, RP_SLOT_STOP_COUNT, 0, 1);
    rp_driver_edit(&driver, 0, RP_SLOT_STOP_IDS, 0, stop);
    rp_driver_row(&driver, 0, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_STOPPED);
    rp_driver_row(&driver, 0, NULL, 1, true); /* the wasted row of a run-ahead step */
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_SKIPPED);
    assert_int_equal(rp_driver_result(&driver, 0)->token, -1);
    assert_int_equal(rp_driver_result(&driver, 0)->length, 3);
}

static void test_min_tokens_keeps_a_stop_id_away(void **state) {
    (void)state;
    int32_t tokens[3] = {1, 2, 3};
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32);
    rp_driver_open(&driver, &model, &way);
    rp_driver_row(&driver, 0, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    uint32_t stop = (uint32_t)rp_driver_result(&driver, 0)->token;
    rp_driver_edit(&driver, 1, RP_SLOT_STOP_COUNT, 0, 1);
    rp_driver_edit(&driver, 1, RP_SLOT_STOP_IDS, 0, stop);
    rp_driver_edit(&driver, 1, RP_SLOT_MIN_TOKENS, 0, 1);
    rp_driver_row(&driver, 1, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    assert_int_not_equal(rp_driver_result(&driver, 0)->token, stop);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, 0);
}

static void test_a_nan_in_one_row_spares_the_others(void **state) {
    (void)state;
    int32_t tokens[3] = {1, 2, 3};
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    make_model(RP_FAMILY_LLAMA, RP_DTYPE_F32);
    rp_driver_open(&driver, &model, &way);
    rp_driver_row(&driver, 0, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    int32_t want = rp_driver_result(&driver, 0)->token;
    /* Slot 1 claims four unwritten tokens, so it reads the NaN of a fresh page. */
    rp_driver_edit(&driver, 1, RP_SLOT_LENGTH, 0, 4);
    rp_driver_row(&driver, 1, tokens, 3, true);
    rp_driver_row(&driver, 2, tokens, 3, true);
    rp_driver_run(&driver, NULL);
    assert_int_equal(rp_driver_result(&driver, 0)->flags, RP_RESULT_NAN);
    assert_int_equal(rp_driver_result(&driver, 0)->token, -1);
    assert_int_equal(rp_driver_result(&driver, 1)->flags, 0);
    assert_int_equal(rp_driver_result(&driver, 1)->token, want);
}

/* In layer 0: [activation input capped,] an all-reduce of o's output, down's output added to
 * itself. */
static void insert(struct rp_program *program, uint32_t after, struct rp_op op) {
    assert_true(rp_program_add_op(program, &op) >= 0);
    memmove(&program->ops[after + 2], &program->ops[after + 1],
            (program->op_count - 2 - after) * sizeof op);
    program->ops[after + 1] = op;
    program->sample_begin++;
}

static void edit_program(struct rp_program *program) {
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct rp_op op = program->ops[i], more = op;
        if (op.kind != RP_OP_LINEAR || op.layer != 0 || strstr(op.name, "qkv"))
            continue;
        more.in_count = 0;
        more.weight = NULL;
        more.vector = NULL;
        rp_op_add_input(&more, op.out);
        more.kind = RP_OP_ALLREDUCE;
        if (strstr(op.name, "gate_up")) {
            more.kind = RP_OP_SOFT_CAP;
            more.u.soft_cap.cap = 2;
        } else if (strstr(op.name, "down")) {
            more.kind = RP_OP_ADD;
            rp_op_add_input(&more, op.out);
        }
        snprintf(more.name, sizeof more.name, "layer.0.more.%u", i);
        insert(program, i++, more);
    }
}

static void test_inserted_operators_give_equal_bits_fused_and_unfused(void **state) {
    (void)state;
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        enum rp_family family = families[f];
        struct rp_driver_config way = way_default(RP_DTYPE_BF16);
        way.edit = edit_program;
        way.no_fusion = true;
        rp_driver_close(&driver);
        make_model(family, RP_DTYPE_BF16);
        run_way(plain, &way);
        way.no_fusion = false;
        run_way(other, &way);
        assert_same(plain, other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fused_and_unfused_lowering_give_equal_bits, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fusion_saves_launches_and_covers_every_operator, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_a_backend_without_a_kernel_refuses_the_program_by_operator, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_gate_up_does_the_activation_where_its_halves_are_whole_panels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_replay_needs_nothing_of_the_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_graph_equals_eager, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_number_of_threads_changes_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_who_runs_a_step_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_arena_of_nan_between_replays_changes_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_every_bucket_gives_equal_bits_captured_and_eager,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_chunking_and_slots_change_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_sequence_has_equal_bits_alone_and_in_a_batch, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_no_kernel_writes_outside_its_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fast_kernels_agree_with_the_scalar_reference, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_row_of_a_finished_slot_is_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_min_tokens_keeps_a_stop_id_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_nan_in_one_row_spares_the_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inserted_operators_give_equal_bits_fused_and_unfused,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
