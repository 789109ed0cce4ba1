/* Goal: decode attention on a GPU agrees with the scalar reference, writes nothing else, and a
 * row's bits depend on its sequence alone. Method: K, V and q are functions of (sequence,
 * position, head), so a sequence can be in any slot, row and pages; unwritten parts of pages are
 * NaN, outputs are poisoned, and the number of blocks is varied, which moves every border between
 * blocks. */
#include "tests/gpu/attention_decode_cases.h"

static void the_plan_cuts_prompt_rows_into_tiles_longest_first(void **state) {
    (void)state;
    const struct shape shape = {8, 2, 128, 64, 8, RP_DTYPE_BF16, 0};
    make(&shape);
    for (uint32_t i = 0; i < 6; i++)
        store(i, i, 80 + i * 60);
    f.args.step.slots[4 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    begin_step();
    add_row(0, 0, 1, RP_ROW_DECODE);
    add_row(1, 1, 50, 0);
    add_row(2, 2, 16, RP_ROW_SAMPLE);
    add_row(3, 3, 1, RP_ROW_SAMPLE);
    add_row(4, 4, 20, 0);
    add_row(5, 5, 33, 0);
    rp_gpu_step_upload(&f.step);
    struct rp_attention_plan_cuda plan = {.config = f.config, .tile_queries = 16};
    struct rp_attention_plan_head head;
    struct rp_attention_plan_tile tiles[ROWS];
    const struct rp_attention_cuda_plan_view view = {.head = rp_gpu_poisoned(sizeof head),
                                                     .rows = rp_gpu_poisoned(ROWS * 32),
                                                     .tiles = rp_gpu_poisoned(sizeof tiles)};
    plan.config.step = f.step.device;
    plan.config.window_count = 1;
    plan.workspace.plans[0] = view;
    assert_int_equal(rp_attention_plan_cuda_run(&plan, NULL), 0);
    rp_gpu_download(&head, view.head, sizeof head);
    rp_gpu_download(tiles, view.tiles, sizeof tiles);
    assert_int_equal(head.decode_rows, 1);
    assert_int_equal(head.decode_splits, 1);
    assert_int_equal(head.tiles, 4 + 1 + 1 + 3);
    uint32_t seen[TOKENS] = {0}, last = UINT32_MAX;
    for (uint32_t i = 0; i < head.tiles; i++) {
        const struct rp_attention_plan_tile *tile = &tiles[i];
        const struct rp_live_row *row = &f.args.step.rows[tile->slot]; /* row i has slot i */
        assert_true(tile->count >= 1 && tile->count <= 16);
        assert_true(tile->position + tile->count <= last);
        last = tile->position + tile->count;
        assert_int_equal(tile->position - row->kv_begin, tile->token - row->token_begin);
        for (uint32_t t = 0; t < tile->count; t++)
            seen[tile->token + t]++;
    }
    for (uint32_t t = 0; t < f.args.step.counts->token_count; t++) {
        uint32_t row = f.args.step.token_rows[t];
        assert_int_equal(seen[t], row != RP_ROW_NONE && !is_decoded(row));
    }
    assert_true(rp_gpu_canaries_hold());
}

RP_GPU_TEST_MAIN(NULL, NULL, DECODE_CASES,
                 cmocka_unit_test_teardown(the_plan_cuts_prompt_rows_into_tiles_longest_first,
                                           teardown))
