/* attention_decode_cases.h - the tests of decode attention for pages of `page_type`: bf16 in
 * test_attention_decode_cuda.c, 8 bits in test_attention_decode_8_cuda.c. */
#ifndef RP_TESTS_GPU_ATTENTION_DECODE_CASES_H
#define RP_TESTS_GPU_ATTENTION_DECODE_CASES_H

#include "tests/gpu/attention_decode_fixture.h"

static void a_row_agrees_with_the_truth_at_lengths_around_pages_and_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1,    2,    15,   16,   17,   31,   32,  33,  63,   64,
                                       65,   66,   100,  127,  128,  129,  191, 192, 193,  255,
                                       256,  257,  383,  511,  512,  513,  640, 999, 1023, 1024,
                                       1025, 1500, 1919, 1920, 1921, 1999, 2000};
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_BF16, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 7 : 1) {
        store(i, i, lengths[i]);
        add_row(i, i, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
    }
    /* Tiny: blocks still process several heads and rows. */
    check(0, run(0, rp_gpu_is_tiny() ? 3 : f.config.limits.sm_count, true));
}

static void every_head_dim_group_page_size_and_output_type_agrees(void **state) {
    (void)state;
    static const uint32_t dims[] = {64, 96, 128, 256}, groups[] = {1, 2, 3, 4, 7, 8, 9, 16},
                          pages[] = {16, 32, 64, 128};
    uint32_t turn = 0;
    for (uint32_t d = 0; d < RP_ARRAY_COUNT(dims); d++)
        for (uint32_t g = 0; g < RP_ARRAY_COUNT(groups); g++, turn++) {
            if (rp_gpu_is_tiny() && g % 4 != 3)
                continue;
            uint32_t page = pages[(turn + d) % RP_ARRAY_COUNT(pages)];
            const struct shape shape = {groups[g] * 2, 2,
                                        dims[d],       page,
                                        512 / page,    turn % 2 ? RP_DTYPE_F32 : RP_DTYPE_BF16,
                                        turn % 3};
            make(&shape);
            begin_step();
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t longest = rp_gpu_is_tiny() ? 300 : 500;
                store(i, i, i == 0 ? 1 + turn : i == 1 ? 130 + turn : longest - turn * 3);
                add_row(i, i, 1, RP_ROW_DECODE);
            }
            check(0, run(0, 1 + turn * 5, turn % 2 == 0));
        }
}

static void queries_and_values_of_any_size_agree(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 16, RP_DTYPE_F32, 0};
    make(&shape);
    has_odd_sizes = true;
    begin_step();
    for (uint32_t i = 0; i < 8; i += rp_gpu_is_tiny() ? 3 : 1) {
        store(i, i, 40 + i * 130);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    /* And a row whose queries are all zero. */
    memset(f.q, 0, (size_t)f.args.heads * f.args.head_dim * sizeof(float));
    check(0, run(0, rp_gpu_is_tiny() ? 3 : f.config.limits.sm_count, true));
}

static void windows_begin_anywhere_and_nothing_before_them_is_read(void **state) {
    (void)state;
    static const uint32_t windows[] = {1000, 512, 300, 129, 128, 100, 64, 17, 16, 15, 2, 1};
    const struct shape shape = {8, 2, 64, 32, 32, RP_DTYPE_F32, 1};
    make(&shape);
    for (uint32_t i = 0; i < 12; i++)
        store(i, i, i == 0 ? 1 : 47 + i * 85);
    for (uint32_t w = 0; w < RP_ARRAY_COUNT(windows); w += rp_gpu_is_tiny() ? 5 : 1) {
        begin_step();
        for (uint32_t i = 0; i < (rp_gpu_is_tiny() ? 5u : 12u); i++) {
            add_row(i, i, 1, RP_ROW_DECODE);
            forget(i, windows[w]);
            give_back(i, windows[w]);
        }
        check(windows[w], run(windows[w], w % 2 ? 132 : 3, true));
    }
}

/* A row of one key, rows of one split, of several, and of wider ones; on grids on which a block has
 * many rows, and on which many blocks have one. */
static void a_sink_joins_the_softmax_once_however_a_row_is_split(void **state) {
    (void)state;
    static const struct shape shapes[] = {{16, 2, 64, 64, 48, RP_DTYPE_F32, 0},
                                          {12, 4, 128, 32, 96, RP_DTYPE_BF16, 0},
                                          {12, 1, 96, 16, 192, RP_DTYPE_F32, 4},
                                          {4, 2, 256, 64, 48, RP_DTYPE_BF16, 0}};
    static const uint32_t lengths[] = {1, 17, 128, 129, 700, 2000, 3000};
    has_sinks = true;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        make(&shapes[i]);
        begin_step();
        for (uint32_t s = 0; s < RP_ARRAY_COUNT(lengths); s += rp_gpu_is_tiny() ? 3 : 1) {
            store(s, s, lengths[s]);
            add_row(s, s, 1, RP_ROW_DECODE);
        }
        check(0, run(0, 3, true));
        check(0, run(0, 500, true));
        check(128, run(128, 132, true));
    }
}

static void long_rows_have_wider_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {4095, 4096, 4097, 8192, 8193, 9999};
    const struct shape shape = {4, 1, 64, 64, 160, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 2 : 1) {
        store(i, i, lengths[i]);
        add_row(i, i, 1, RP_ROW_DECODE);
        if (rp_gpu_is_tiny() && i == 2)
            break;
    }
    check(0, run(0, f.config.limits.sm_count, true));
    check(4500, run(4500, 20, true));
}

static void prompt_rows_dead_rows_and_padding_are_left_alone(void **state) {
    (void)state;
    const struct shape shape = {12, 3, 128, 16, 20, RP_DTYPE_BF16, 0};
    make(&shape);
    for (uint32_t i = 0; i < 8; i++)
        store(i, i, 40 * i + 33);
    f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    begin_step();
    add_row(0, 0, 1, RP_ROW_DECODE);
    add_row(1, 1, 17, 0);
    add_row(2, 2, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
    add_row(3, 3, 1, RP_ROW_DECODE);
    add_row(4, 4, 30, RP_ROW_SAMPLE);
    add_row(5, 5, 1, RP_ROW_SAMPLE); /* a prompt's last token alone is not a decode row */
    add_row(6, 6, 1, RP_ROW_DECODE);
    add_padding(7);
    check(0, run(0, 132, true));
    begin_step();
    check(0, run(0, 132, true));
    begin_step();
    add_row(3, 3, 1, RP_ROW_DECODE);
    check(0, run(0, 132, true));
}

/* The output of the row that holds the sequence. */
static const void *row_of(const void *out, uint32_t sequence) {
    for (uint32_t row = 0; row < f.args.step.counts->row_count; row++)
        if (f.sequences[row] == sequence)
            return (const unsigned char *)out + f.args.step.rows[row].token_begin *
                                                    f.args.out_stride *
                                                    rp_dtype_bytes(f.args.out_dtype);
    fail();
    return NULL;
}

/* Four sequences among others, also prompt rows, in slots that depend on the turn. */
static void mixed_step(uint32_t turn, const uint32_t sequences[4]) {
    begin_step();
    for (uint32_t i = 4; i < 30; i++) {
        if (i % (5 + turn) == 0)
            add_row(i, i, 3, 0);
        else
            add_row(i, i, 1, RP_ROW_DECODE);
        if (i % 7 == 6)
            add_row(turn % 2 ? i / 7 : 30 + i / 7 * 3 % 4, sequences[i / 7], 1, RP_ROW_DECODE);
    }
}

static void a_row_has_the_same_bits_alone_in_any_batch_slot_and_grid(void **state) {
    (void)state;
    static const uint32_t grids[] = {1, 2, 5, 13, 66, 132, 500};
    static const uint32_t sequences[4] = {700, 701, 702, 703};
    static const uint32_t lengths[4] = {1, 200, 777, 2000};
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_F32, 0};
    make(&shape);
    size_t bytes = f.args.heads * f.args.head_dim * sizeof(float);
    for (uint32_t i = 0; i < 4; i++) {
        store(i, sequences[i], lengths[i]);
        store(30 + i * 3 % 4, sequences[i], lengths[i]);
    }
    for (uint32_t i = 4; i < 30; i++)
        store(i, i, 3 + i * 61 % (rp_gpu_is_tiny() ? 200 : 1900));
    for (uint32_t window = 0; window <= (rp_gpu_is_tiny() ? 0u : 600u); window += 600) {
        void *alone[4];
        for (uint32_t i = 0; i < 4; i++) {
            begin_step();
            add_row(i, sequences[i], 1, RP_ROW_DECODE);
            alone[i] = run(window, 132, true);
        }
        for (uint32_t g = rp_gpu_is_tiny() ? 1 : 0; g < RP_ARRAY_COUNT(grids);
             g += rp_gpu_is_tiny() ? 4 : 1) {
            mixed_step(g, sequences);
            for (uint32_t again = 0; again < 2; again++) {
                const void *out = run(window, grids[g], again != 0);
                for (uint32_t i = 0; i < 4; i++)
                    assert_memory_equal(row_of(out, sequences[i]), alone[i], bytes);
            }
        }
    }
}

static void a_nan_in_one_row_stays_there(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 8, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < 3; i++) {
        store(i, i, 300);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    size_t row = f.args.out_stride;
    const float *before = run(0, 132, true);
    for (size_t c = 0; c < row; c++)
        f.q[row + c] = NAN;
    const float *after = run(0, 132, true);
    assert_memory_equal(after, before, row * sizeof(float));
    assert_memory_equal(after + 2 * row, before + 2 * row, row * sizeof(float));
    for (size_t c = 0; c < row; c++)
        assert_true(isnan(after[row + c]));
}

static void older_keys_may_be_read_before_the_last_ones_are_written(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 32, RP_DTYPE_F32, 0};
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < 12; i++) {
        store(i, i, i == 0 ? 1 : i * (rp_gpu_is_tiny() ? 40 : 150) + i % 3);
        add_row(i, i, 1, RP_ROW_DECODE);
    }
    const uint32_t width = f.args.kv_heads * f.args.head_dim, row = f.args.out_stride;
    for (uint32_t sm_count = rp_gpu_is_tiny() ? 4 : 1; sm_count <= 125;
         sm_count += rp_gpu_is_tiny() ? 121 : 31) {
        const float *want = run(0, sm_count, true);
        for (uint32_t which = 0; which < 2; which++) {
            f.own[which] = rp_arena_calloc(&f.memory, TOKENS * width, sizeof(float));
            assert_non_null(f.own[which]);
            for (uint32_t i = 0; i < width * 12; i++) {
                uint32_t slot = i / width, column = i % width;
                f.own[which][i] = kv_value(which, slot, f.lengths[slot] - 1,
                                           column / f.args.head_dim, column % f.args.head_dim);
            }
        }
        for (uint32_t slot = 0; slot < 12; slot++)
            forget_token(slot, f.lengths[slot] - 1);
        f.kv_device = NULL;
        const float *got = run(0, sm_count, true);
        f.own[0] = f.own[1] = NULL;
        for (uint32_t i = 0; i < 12; i++)
            store(i, i, f.lengths[i]);
        assert_memory_equal(got, want, 12 * row * sizeof(float));
    }
}

#define DECODE_CASES                                                                               \
    cmocka_unit_test_teardown(a_row_agrees_with_the_truth_at_lengths_around_pages_and_splits,      \
                              teardown),                                                           \
        cmocka_unit_test_teardown(every_head_dim_group_page_size_and_output_type_agrees,           \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(queries_and_values_of_any_size_agree, teardown),                 \
        cmocka_unit_test_teardown(windows_begin_anywhere_and_nothing_before_them_is_read,          \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(a_sink_joins_the_softmax_once_however_a_row_is_split, teardown), \
        cmocka_unit_test_teardown(long_rows_have_wider_splits, teardown),                          \
        cmocka_unit_test_teardown(prompt_rows_dead_rows_and_padding_are_left_alone, teardown),     \
        cmocka_unit_test_teardown(a_row_has_the_same_bits_alone_in_any_batch_slot_and_grid,        \
                                  teardown),                                                       \
        cmocka_unit_test_teardown(a_nan_in_one_row_stays_there, teardown),                         \
        cmocka_unit_test_teardown(older_keys_may_be_read_before_the_last_ones_are_written,         \
                                  teardown)

#endif
