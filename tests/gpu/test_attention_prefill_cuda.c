/* Goal: prompt rows get softmax(q k^T) v within the rounding of bf16, and a row's bits are the
 * same in every chunk, tile and step. Method: attention_fixture.h; K and V are NaN where the
 * step's rows may not read. */
#include "tests/gpu/attention_fixture.h"

static void test_prompt_rows_are_the_formula_for_all_shapes_pages_and_windows(void **state) {
    static const struct fixture_shape shapes[] = {
        /* heads, kv_heads, head_dim, page_tokens, window, kv, out, length */
        {4, 4, 64, 16, 0, BF16, F32, 333},      {4, 2, 64, 32, 33, BF16, BF16, 333},
        {4, 1, 128, 64, 0, BF16, F32, 333},     {7, 1, 128, 16, 0, BF16, BF16, 333},
        {8, 1, 128, 128, 100, BF16, BF16, 333}, {8, 2, 96, 64, 1, BF16, F32, 200},
        {3, 3, 96, 32, 0, BF16, BF16, 333},     {14, 2, 64, 64, 129, BF16, F32, 333},
        {4, 2, 256, 64, 0, BF16, F32, 333},     {2, 1, 256, 16, 65, BF16, BF16, 333},
        {8, 2, 128, 8, 40, BF16, BF16, 333},    {4, 1, 64, 256, 0, BF16, F32, 333},
    };
    fixture_check_prompts(*state, shapes, RP_ARRAY_COUNT(shapes), BF16);
}

static void test_sinks_join_the_softmax_of_their_head(void **state) {
    static const struct fixture_shape shapes[] = {
        {4, 4, 64, 16, 0, BF16, F32, 333},     {16, 2, 64, 32, 128, BF16, BF16, 333},
        {12, 4, 128, 64, 0, BF16, F32, 333},   {7, 1, 128, 16, 33, BF16, BF16, 333},
        {12, 4, 96, 64, 1, BF16, F32, 200},    {3, 3, 96, 4, 0, BF16, BF16, 200},
        {12, 2, 256, 64, 100, BF16, F32, 333}, {64, 8, 64, 64, 128, BF16, BF16, 300},
    };
    static const uint32_t chunks[] = {100, 7};
    fixture_has_sinks = true;
    fixture_check_prompts(*state, shapes, RP_ARRAY_COUNT(shapes), BF16);
    for (size_t i = 0; i < 6; i += 2) {
        fixture_open(*state, &shapes[i]);
        fixture_keep_prompt(*state, rp_attention_prefill_cuda_run, 1, 200);
        fixture_check_chunks(*state, rp_attention_prefill_cuda_run, 200, chunks,
                             RP_ARRAY_COUNT(chunks));
    }
}

static void test_a_prompt_has_the_same_bits_in_every_chunk(void **state) {
    static const struct fixture_shape shapes[] = {
        {8, 2, 128, 64, 0, BF16, F32, 700}, {8, 1, 128, 16, 150, BF16, F32, 700},
        {2, 2, 64, 64, 0, BF16, F32, 700},  {7, 1, 64, 32, 67, BF16, F32, 700},
        {4, 1, 96, 64, 0, BF16, F32, 700},  {2, 1, 256, 64, 300, BF16, F32, 700},
    };
    static const uint32_t chunks[] = {333, 100, 64, 7, 1};
    const bool tiny = rp_gpu_is_tiny();
    const uint32_t length = tiny ? 160 : 700;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        fixture_open(*state, &shapes[i]);
        fixture_keep_prompt(*state, rp_attention_prefill_cuda_run, 1, length);
        if (i == 0)
            fixture_check_truth(*state, 4e-3, 8);
        fixture_check_chunks(*state, rp_attention_prefill_cuda_run, length, chunks,
                             tiny    ? 2
                             : i < 2 ? RP_ARRAY_COUNT(chunks)
                                     : RP_ARRAY_COUNT(chunks) - 1);
    }
}

/* Blocks with several tiles, of one block of keys too: buffers of q and tiles are reused. */
static void test_few_blocks_with_many_tiles_give_the_same_bits(void **state) {
    static const struct fixture_shape shapes[] = {
        {4, 2, 64, 64, 0, BF16, BF16, 300},   {4, 2, 128, 32, 0, BF16, F32, 300},
        {4, 2, 128, 64, 90, BF16, BF16, 300}, {4, 2, 256, 64, 0, BF16, F32, 300},
        {8, 1, 128, 64, 20, BF16, BF16, 300}, {8, 1, 256, 64, 20, BF16, BF16, 300}};
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        fixture_open(f, &shapes[i]);
        fixture_keep_prompt(f, rp_attention_prefill_cuda_run, 1, 300);
        for (uint32_t clusters = 1; clusters <= 3; clusters += 2) { /* of up to two blocks */
            f->call.config.limits.sm_count = clusters * 2;
            fixture_run(f, rp_attention_prefill_cuda_run, 0);
            fixture_check_bits(f, "few blocks");
        }
    }
}

static void check_mixed_step(struct fixture *f, uint32_t window) {
    const struct fixture_shape shape = {8, 2, 128, 64, window, BF16, BF16, 400};
    fixture_open(f, &shape);
    f->call.rows = RP_ATTENTION_PROMPT_ROWS;
    for (uint32_t slot = 0; slot < FIXTURE_SLOTS; slot++) {
        fixture_keep_prompt(f, rp_attention_prefill_cuda_run, slot, 400);
    }
    fixture_begin(f);
    fixture_add_row(f, 0, 63, 1, RP_ROW_DECODE);
    fixture_add_row(f, 3, 20, 77, 0);
    fixture_add_row(f, 2, 399, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
    fixture_add_row(f, 1, 255, 130, RP_ROW_SAMPLE);
    fixture_add_padding(f, 5);
    fixture_run(f, rp_attention_prefill_cuda_run, 64);
    fixture_check_bits(f, "a mixed step");
    fixture_check_truth(f, 4e-3, 8);

    fixture_begin(f);
    fixture_slot(f, 2)[RP_SLOT_FINISHED] = 1;
    fixture_add_row(f, 2, 100, 50, 0);
    fixture_add_row(f, 0, 0, 1, 0); /* a prompt of one token */
    fixture_add_row(f, 3, 399, 1, 0);
    fixture_add_row(f, 1, 128, 200, 0);
    fixture_run(f, rp_attention_prefill_cuda_run, 0);
    fixture_check_bits(f, "a step with a finished row");
}

static void test_prompts_beside_decode_rows_and_finished_rows_keep_their_bits(void **state) {
    check_mixed_step(*state, 0);
    check_mixed_step(*state, 90);
}

static void test_a_step_without_prompt_rows_writes_nothing(void **state) {
    const struct fixture_shape shape = {4, 2, 128, 64, 0, BF16, F32, 100};
    struct fixture *f = *state;
    fixture_open(f, &shape);
    f->call.rows = RP_ATTENTION_PROMPT_ROWS;
    fixture_begin(f);
    fixture_run(f, rp_attention_prefill_cuda_run, 64);
    fixture_check_untouched(f, "an empty step");
    fixture_add_row(f, 2, 64, 1, RP_ROW_DECODE);
    fixture_run(f, rp_attention_prefill_cuda_run, 64);
    fixture_check_untouched(f, "a decode step");
}

static void test_a_nan_in_a_key_that_is_seen_stays_visible(void **state) {
    fixture_check_nan_key(*state, BF16);
}

RP_GPU_TEST_MAIN(NULL, NULL,
                 FIXTURE_TEST(test_prompt_rows_are_the_formula_for_all_shapes_pages_and_windows),
                 FIXTURE_TEST(test_sinks_join_the_softmax_of_their_head),
                 FIXTURE_TEST(test_a_prompt_has_the_same_bits_in_every_chunk),
                 FIXTURE_TEST(test_few_blocks_with_many_tiles_give_the_same_bits),
                 FIXTURE_TEST(test_prompts_beside_decode_rows_and_finished_rows_keep_their_bits),
                 FIXTURE_TEST(test_a_step_without_prompt_rows_writes_nothing),
                 FIXTURE_TEST(test_a_nan_in_a_key_that_is_seen_stays_visible))
