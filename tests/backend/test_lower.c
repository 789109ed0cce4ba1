/* Goal: a sequence gets the same bits with any lowering, capture, padding or batch.
 * Method: small random models of all families, f32 and bf16; a script of steps (chunked
 * prompts of three sequences, then decodes) is run in many ways, and the logits of every step are
 * compared bit for bit with those of the simplest way. The KV pool starts as NaN, so that reads of
 * unwritten memory show. */
#include "tests/backend/lower_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 3, PROMPT = 21, DECODES = 6, ROWS_MAX = SEQUENCES * (1 + DECODES) };

/* The result of a run: the logits of every sampling row, in order of the script. */
struct record {
    float logits[ROWS_MAX][VOCAB];
    int32_t tokens[ROWS_MAX];
    uint32_t count;
};

static struct record plain, other;

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
    open_way(way);
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

/* Runs `check` with `way` for every family in f32 and bf16; `plain` has the logits of the simplest
 * way. */
static void for_every_model(void (*check)(struct rp_driver_config way),
                            struct rp_driver_config way) {
    for (size_t f = 0; f < RP_ARRAY_COUNT(families); f++) {
        for (int half = 0; half < 2; half++) {
            enum rp_dtype dtype = half ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            struct rp_driver_config simplest = way_default(dtype);
            make_model(families[f], dtype);
            simplest.no_fusion = true;
            run_way(&plain, &simplest);
            way.kv_dtype = dtype;
            check(way);
        }
    }
}

static void check_way(struct rp_driver_config way) {
    run_way(&other, &way);
    assert_same(&plain, &other);
}

static void test_fused_and_unfused_lowering_give_equal_bits(void **state) {
    (void)state;
    for_every_model(check_way, way_default(RP_DTYPE_F32));
}

static void test_replay_needs_nothing_of_the_program(void **state) {
    (void)state;
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    way.free_program = true;
    for_every_model(check_way, way);
}

static void test_graph_equals_eager(void **state) {
    (void)state;
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    way.eager = true;
    way.threads = 2;
    for_every_model(check_way, way);
}

/* From way.threads to 3. */
static void check_threads(struct rp_driver_config way) {
    for (; way.threads <= 3; way.threads++)
        check_way(way);
}

static void test_the_number_of_threads_changes_nothing(void **state) {
    (void)state;
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    way.threads = 2;
    for_every_model(check_threads, way);
}

static void test_who_runs_a_step_changes_nothing(void **state) {
    (void)state;
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    way.short_steps_here = true;
    for_every_model(check_threads, way);
}

static void test_an_arena_of_nan_between_replays_changes_nothing(void **state) {
    (void)state;
    struct rp_driver_config way = way_default(RP_DTYPE_F32);
    way.poison = true;
    for_every_model(check_way, way);
}

/* Every bucket that holds the decode step, then every one that holds the prompts: captured and
 * eager, with padding rows that are NaN. */
static void check_buckets(struct rp_driver_config way) {
    for (int eager = 0; eager < 2; eager++) {
        way.poison = true;
        way.eager = eager;
        open_way(&way);
        for (uint32_t i = 0; i < rp_graph_set_count(driver.graphs); i++) {
            struct rp_graph_entry *entry = rp_graph_set_entry(driver.graphs, i);
            bool holds_prompts =
                entry->bucket.tokens >= SEQUENCES * PROMPT && !entry->bucket.decode;
            if (entry->bucket.tokens < SEQUENCES)
                continue;
            for (uint32_t s = 0; s < SEQUENCES; s++)
                empty_slot(s);
            other.count = 0;
            run_prompts(&other, 0, PROMPT, holds_prompts ? entry : NULL);
            run_decodes(&other, 0, entry);
            assert_same(&plain, &other);
        }
    }
}

static void test_every_bucket_gives_equal_bits_captured_and_eager(void **state) {
    (void)state;
    for_every_model(check_buckets, way_default(RP_DTYPE_F32));
}

static void check_chunks_and_slots(struct rp_driver_config way) {
    static const uint32_t chunks[] = {1, 2, 4, 5, 16};
    for (size_t i = 0; i < RP_ARRAY_COUNT(chunks); i++) {
        open_way(&way);
        run_script(&other, (uint32_t)i, chunks[i], NULL);
        assert_same(&plain, &other);
    }
}

static void test_chunking_and_slots_change_nothing(void **state) {
    (void)state;
    for_every_model(check_chunks_and_slots, way_default(RP_DTYPE_F32));
}

/* Each sequence alone has the bits that it has in a batch. */
static void check_alone(struct rp_driver_config way) {
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        int32_t tokens[PROMPT];
        for (uint32_t i = 0; i < PROMPT; i++)
            tokens[i] = prompt_token(s, i);
        open_way(&way);
        rp_driver_row(&driver, 5, tokens, PROMPT, true);
        rp_driver_run(&driver, NULL);
        for (uint32_t step = 0;; step++) {
            assert_memory_equal(rp_driver_logits(&driver, 0), plain.logits[step * SEQUENCES + s],
                                sizeof plain.logits[0]);
            if (step == DECODES)
                break;
            rp_driver_row(&driver, 5, NULL, 1, true);
            rp_driver_run(&driver, NULL);
        }
    }
}

static void test_a_sequence_has_equal_bits_alone_and_in_a_batch(void **state) {
    (void)state;
    for_every_model(check_alone, way_default(RP_DTYPE_F32));
}

/* No kernel writes outside its tensors. */
static void check_canaries(struct rp_driver_config way) {
    way.guarded = true;
    way.bucket_count = 1;
    for (size_t i = 4; i < RP_ARRAY_COUNT(buckets); i++) {
        int32_t tokens[PROMPT];
        uint32_t count = RP_MIN(buckets[i].tokens, (uint32_t)PROMPT);
        for (uint32_t t = 0; t < count; t++)
            tokens[t] = prompt_token(0, t);
        way.buckets = &buckets[i];
        open_way(&way);
        rp_driver_row(&driver, 0, tokens, count, true);
        rp_driver_run(&driver, NULL);
        assert_true(rp_graph_set_check(driver.graphs));
    }
}

static void test_no_kernel_writes_outside_its_tensors(void **state) {
    (void)state;
    for_every_model(check_canaries, way_default(RP_DTYPE_F32));
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
            make_model(family, dtype);
            run_way(&plain, &way);
            make_model(family, dtype); /* prepared again, for the fast kernels */
            way.scalar_only = false;
            run_way(&other, &way);
            double error = relative_error(&plain, &other, SEQUENCES);
            printf("family %d %s: relative error %.2e\n", family, rp_dtype_name(dtype), error);
            assert_true(error <= (half ? 4e-3 : 1e-5));
        }
    }
}

static void insert(struct rp_program *program, uint32_t after, struct rp_op op) {
    assert_true(rp_program_add_op(program, &op) >= 0);
    memmove(&program->ops[after + 2], &program->ops[after + 1],
            (program->op_count - 2 - after) * sizeof op);
    program->ops[after + 1] = op;
    program->sample_begin++;
}

/* In layer 0: [activation input capped,] an all-reduce of o's output, down's output added to
 * itself. */
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
        make_model(family, RP_DTYPE_BF16);
        run_way(&plain, &way);
        way.no_fusion = false;
        run_way(&other, &way);
        assert_same(&plain, &other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, teardown)
        TEST(test_fused_and_unfused_lowering_give_equal_bits),
        TEST(test_replay_needs_nothing_of_the_program),
        TEST(test_graph_equals_eager),
        TEST(test_the_number_of_threads_changes_nothing),
        TEST(test_who_runs_a_step_changes_nothing),
        TEST(test_an_arena_of_nan_between_replays_changes_nothing),
        TEST(test_every_bucket_gives_equal_bits_captured_and_eager),
        TEST(test_chunking_and_slots_change_nothing),
        TEST(test_a_sequence_has_equal_bits_alone_and_in_a_batch),
        TEST(test_no_kernel_writes_outside_its_tensors),
        TEST(test_fast_kernels_agree_with_the_scalar_reference),
        TEST(test_inserted_operators_give_equal_bits_fused_and_unfused),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
