/* Goal: the fallback kernel computes the formula in f32 for any shape, and gives a token the same
 * bits as a prompt row, as a decode row and in every chunk. Method: attention_fixture.h. */
#include "tests/gpu/attention_fixture.h"

static void test_any_shape_is_the_formula_in_f32(void **state) {
    static const struct fixture_shape shapes[] = {
        {4, 2, 8, 16, 0, F32, F32, 150},    {4, 4, 20, 8, 16, F32, F32, 150},
        {12, 4, 17, 64, 33, F32, F32, 150}, {9, 1, 33, 1, 0, F32, F32, 100},
        {32, 1, 64, 64, 0, F32, F32, 100},  {7, 1, 128, 64, 65, F32, F32, 150},
        {2, 1, 256, 32, 1, F32, F32, 150},  {2, 1, 512, 16, 40, F32, F32, 120},
        {2, 2, 264, 64, 0, F32, F32, 100},  {12, 4, 24, 16, 0, F32, F32, 150},
        {8, 1, 80, 4, 37, F32, F32, 150},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (int type = 0; type < 2; type++) {
            struct fixture_shape shape = shapes[i];
            fixture_has_sinks = i % 2 == 1;
            shape.kv = type ? BF16 : F32; /* only the pages are rounded: one limit */
            fixture_check_generic(f, &shape, 1e-5, type ? 1e-5 * 128 : 1e-5);
        }
}

static void test_a_token_has_the_same_bits_in_every_chunk_and_as_a_decode_row(void **state) {
    static const struct fixture_shape shapes[] = {{4, 2, 8, 16, 0, F32, F32, 300},
                                                  {2, 1, 64, 64, 70, BF16, F32, 300},
                                                  {3, 1, 40, 16, 50, F32, F32, 300}};
    static const uint32_t chunks[] = {133, 64, 7};
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        fixture_has_sinks = i == 2;
        fixture_open(f, &shapes[i]);
        fixture_keep_prompt(f, rp_attention_generic_cuda_run, 1, 300);
        fixture_check_chunks(f, rp_attention_generic_cuda_run, 300, chunks, RP_ARRAY_COUNT(chunks));
        for (uint32_t position = 0; position < 300; position += 13) {
            fixture_begin(f);
            fixture_add_row(f, 1, position, 1, RP_ROW_DECODE);
            fixture_run(f, rp_attention_generic_cuda_run, 5);
            fixture_check_bits(f, "decoding");
        }
    }
}

static void test_only_rows_of_the_kind_asked_for_are_written(void **state) {
    const struct fixture_shape shape = {4, 2, 16, 16, 0, F32, BF16, 100};
    struct fixture *f = *state;
    fixture_open(f, &shape);
    for (uint32_t kind = RP_ATTENTION_DECODE_ROWS; kind <= RP_ATTENTION_ALL_ROWS; kind++) {
        f->call.rows = kind;
        fixture_begin(f);
        fixture_slot(f, 1)[RP_SLOT_FINISHED] = 1;
        fixture_add_row(f, 0, 50, 1, RP_ROW_DECODE);
        fixture_add_row(f, 1, 50, 20, 0);
        fixture_add_row(f, 2, 30, 40, 0);
        fixture_add_padding(f, 4);
        fixture_run(f, rp_attention_generic_cuda_run, 9);
        fixture_check_truth(f, 4e-3, 8);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, FIXTURE_TEST(test_any_shape_is_the_formula_in_f32),
                 FIXTURE_TEST(test_a_token_has_the_same_bits_in_every_chunk_and_as_a_decode_row),
                 FIXTURE_TEST(test_only_rows_of_the_kind_asked_for_are_written))
