/* Goal: attention over 8-bit pages on a GPU is the formula on the dequantized values, for prompt
 * rows and for any shape, with the same bits in every batch and chunk. Method:
 * attention_fixture.h with pages of INT8 and FP8; quantized values and scales are NaN where the
 * step's rows may not read. Decode rows: test_attention_decode_8_cuda.c. */
#include "tests/gpu/attention_fixture.h"

static const enum rp_dtype types[] = {RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};

static void prompt_rows_are_the_formula_for_all_shapes_pages_and_windows(void **state) {
    static const struct fixture_shape shapes[] = {
        {4, 4, 64, 16, 0, F32, F32, 333},
        {4, 2, 64, 32, 33, F32, BF16, 333},
        {4, 1, 128, 64, 0, F32, F32, 333},
        {7, 1, 128, 16, 0, F32, BF16, 333},
        {8, 1, 128, 128, 100, F32, F32, 333},
        {8, 2, 96, 64, 1, F32, F32, 200},
        {3, 3, 96, 32, 0, F32, BF16, 333},
        {14, 2, 64, 64, 129, F32, F32, 333},
        {4, 2, 256, 64, 0, F32, F32, 333},
        {2, 1, 256, 16, 65, F32, BF16, 333},
        {4, 2, 128, 4, 0, F32, F32, 150},
        {2, 1, 64, 1, 50, F32, F32, 100},
        /* the most copies of a block, and pages of more keys than one copy */
        {8, 2, 128, 8, 0, F32, BF16, 333},
        {6, 2, 64, 8, 77, F32, F32, 333},
        {4, 1, 128, 256, 70, F32, BF16, 333},
        {5, 1, 64, 256, 0, F32, F32, 333},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++)
        fixture_check_prompts(*state, shapes, RP_ARRAY_COUNT(shapes), types[i]);
}

static void sinks_join_the_softmax_of_their_head(void **state) {
    static const struct fixture_shape shapes[] = {{16, 2, 64, 64, 128, F32, F32, 333},
                                                  {12, 4, 128, 32, 0, F32, BF16, 333},
                                                  {12, 4, 96, 64, 50, F32, F32, 200},
                                                  {2, 1, 256, 16, 65, F32, BF16, 200}};
    fixture_has_sinks = true;
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++)
        fixture_check_prompts(*state, shapes, RP_ARRAY_COUNT(shapes), types[i]);
}

static void a_prompt_has_the_same_bits_in_every_chunk(void **state) {
    static const struct fixture_shape shapes[] = {{8, 2, 128, 64, 0, F32, F32, 500},
                                                  {7, 1, 64, 32, 67, F32, F32, 500},
                                                  {4, 1, 96, 64, 0, F32, F32, 500},
                                                  {2, 1, 256, 64, 300, F32, F32, 500}};
    static const uint32_t chunks[] = {233, 64, 7};
    const uint32_t length = rp_gpu_is_tiny() ? 160 : 500;
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(shapes); i++) {
        struct fixture_shape shape = shapes[i / 2];
        shape.kv = types[i % 2];
        fixture_open(*state, &shape);
        fixture_keep_prompt(*state, rp_attention_prefill_cuda_run, 1, length);
        fixture_check_chunks(*state, rp_attention_prefill_cuda_run, length, chunks,
                             rp_gpu_is_tiny() ? 1 : RP_ARRAY_COUNT(chunks));
    }
}

/* Rings of stages, halves, scales and tiles come around; tiles of one block of keys, which begin
 * while the tile before the last one is being stored. */
static void many_tiles_of_a_block_give_the_same_bits(void **state) {
    static const struct fixture_shape shapes[] = {{8, 2, 128, 64, 0, F32, BF16, 500},
                                                  {8, 2, 128, 16, 33, F32, F32, 500},
                                                  {8, 1, 64, 64, 0, F32, BF16, 500}};
    struct fixture *f = *state;
    const uint32_t length = rp_gpu_is_tiny() ? 160 : 500;
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(shapes); i++) {
        struct fixture_shape shape = shapes[i / 2];
        shape.kv = types[i % 2];
        fixture_open(f, &shape);
        fixture_keep_prompt(f, rp_attention_prefill_cuda_run, 1, length);
        for (uint32_t blocks = 1; blocks <= 3; blocks += 2) {
            f->call.config.limits.sm_count = blocks;
            fixture_run(f, rp_attention_prefill_cuda_run, 0);
            fixture_check_bits(f, "few blocks");
        }
    }
}

/* Blocks with several tiles, prompts together with decode rows, finished rows and padding. */
static void a_mixed_step_on_any_grid_keeps_the_bits_of_its_prompts(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++) {
        const struct fixture_shape shape = {8, 2, 128, 64, 90, types[i], BF16, 300};
        fixture_open(f, &shape);
        f->call.rows = RP_ATTENTION_PROMPT_ROWS;
        for (uint32_t slot = 1; slot < FIXTURE_SLOTS; slot += 2) {
            fixture_keep_prompt(f, rp_attention_prefill_cuda_run, slot, 300);
        }
        const uint32_t sm_count = f->call.config.limits.sm_count;
        for (uint32_t blocks = 1; blocks <= 133; blocks += 66) {
            f->call.config.limits.sm_count = RP_MIN(blocks, sm_count);
            fixture_begin(f);
            fixture_slot(f, 2)[RP_SLOT_FINISHED] = 1;
            fixture_add_row(f, 0, 63, 1, RP_ROW_DECODE);
            fixture_add_row(f, 3, 20, 77, 0);
            fixture_add_row(f, 2, 100, 50, 0);
            fixture_add_row(f, 1, 155, 130, RP_ROW_SAMPLE);
            fixture_add_padding(f, 5);
            fixture_run(f, rp_attention_prefill_cuda_run, 64);
            fixture_check_bits(f, "a mixed step");
        }
        fixture_check_truth(f, 4e-3, 8);
        fixture_begin(f);
        fixture_run(f, rp_attention_prefill_cuda_run, 64);
        fixture_check_untouched(f, "an empty step");
    }
}

static void a_nan_in_a_key_that_is_seen_stays_visible(void **state) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++)
        fixture_check_nan_key(*state, types[i]);
}

static void any_shape_is_the_formula_in_f32(void **state) {
    static const struct fixture_shape shapes[] = {
        {4, 2, 8, 16, 0, F32, F32, 150},    {4, 4, 20, 8, 16, F32, F32, 150},
        {12, 4, 17, 64, 33, F32, F32, 150}, {9, 1, 33, 1, 0, F32, F32, 100},
        {32, 1, 64, 64, 0, F32, F32, 100},  {2, 1, 256, 32, 1, F32, BF16, 150},
        {12, 4, 24, 16, 0, F32, F32, 150},  {1, 1, 512, 16, 40, F32, F32, 120},
    };
    static const uint32_t chunks[] = {50, 7};
    struct fixture *f = *state;
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(shapes); i++) {
        struct fixture_shape shape = shapes[i / 2];
        bool wide = shape.out == F32;
        shape.kv = types[i % 2];
        fixture_has_sinks = i / 2 % 3 == 0;
        fixture_check_generic(f, &shape, wide ? 1e-5 : 4e-3, wide ? 1e-5 * 128 : 8);
        fixture_keep_prompt(f, rp_attention_generic_cuda_run, 1, 100);
        fixture_check_chunks(f, rp_attention_generic_cuda_run, 100, chunks, RP_ARRAY_COUNT(chunks));
    }
}

RP_GPU_TEST_MAIN(NULL, NULL,
                 FIXTURE_TEST(prompt_rows_are_the_formula_for_all_shapes_pages_and_windows),
                 FIXTURE_TEST(sinks_join_the_softmax_of_their_head),
                 FIXTURE_TEST(a_prompt_has_the_same_bits_in_every_chunk),
                 FIXTURE_TEST(many_tiles_of_a_block_give_the_same_bits),
                 FIXTURE_TEST(a_mixed_step_on_any_grid_keeps_the_bits_of_its_prompts),
                 FIXTURE_TEST(a_nan_in_a_key_that_is_seen_stays_visible),
                 FIXTURE_TEST(any_shape_is_the_formula_in_f32))
