/* Goal: attention over pages of latents on a GPU agrees with the scalar reference for decode and
 * prompt rows, writes nothing else, and a row's bits depend on its sequence alone. Method: latents
 * and q are functions of (sequence, position, head), so a sequence can be in any slot, row and
 * pages; keys that no row may see are NaN and their pages invalid, outputs are poisoned, and the
 * number of blocks is varied, which moves every border between blocks. */
#include "tests/gpu/attention_latent_fixture.h"

static const enum rp_dtype page_types[] = {BF16, INT8, FP8};

/* Latents of published models. */
static struct shape published(uint32_t heads, enum rp_dtype pages, enum rp_dtype out,
                              uint32_t length) {
    return (struct shape){.heads = heads,
                          .head_dim = 576,
                          .value_dim = 512,
                          .page_tokens = 64,
                          .pages = pages,
                          .out = out,
                          .length = length};
}

static void decode_rows_agree_with_the_reference_around_tiles_and_splits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1,   2,   31,  32,  33,   63,   64,   65,
                                       96,  127, 128, 129, 160,  161,  225,  255,
                                       256, 257, 384, 513, 1023, 1025, 1999, 2049};
    for (size_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        const struct shape shape = published(16, page_types[type], BF16, 2100);
        make(&shape);
        begin_step();
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i += rp_gpu_is_tiny() ? 6 : 1)
            add_decode(i, i, lengths[i]);
        check(run(f.config.limits.sm_count, true));
    }
}

static void every_number_of_heads_page_size_and_type_agrees(void **state) {
    (void)state;
    static const uint32_t heads[] = {1, 5, 15, 16, 17, 20, 32, 33, 64, 65, 100, 128};
    static const uint32_t pages[] = {16, 64, 32, 128, 1};
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(heads); i += rp_gpu_is_tiny() ? 4 : 1) {
        const struct shape shape = {.heads = heads[i],
                                    .head_dim = 576,
                                    .value_dim = 512,
                                    .page_tokens = pages[i % RP_ARRAY_COUNT(pages)],
                                    .pages = page_types[i % RP_ARRAY_COUNT(page_types)],
                                    .out = i % 2 ? F32 : BF16,
                                    .window = i % 4 == 3 ? 40 + i : 0,
                                    .pad = i % 3,
                                    .sinks = i % 5 == 1,
                                    .length = 700};
        make(&shape);
        begin_step();
        add_decode(0, 0, 1 + i);
        add_prompt(1, 1, 45 + i, 45 + i);
        add_decode(2, 2, 130 + i);
        add_prompt(3, 3, 210 + i, 7);
        add_decode(4, 4, 680 + i);
        check(run(1 + i * 11, i % 2 == 0));
    }
}

/* Rows that begin and end in even and odd tiles of 32 keys, of one tile or two, and splits that
 * have tiles of one parity alone. */
static void every_begin_and_end_of_a_row_agrees_whichever_blocks_compute_it(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1,   32,  33,  64,  65,  96,  97,  129, 161,
                                       193, 225, 257, 320, 353, 512, 513, 640, 700};
    static const struct shape shapes[] = {
        {16, 576, 512, 64, BF16, F32, 1, 0, false, 700},
        {16, 576, 512, 32, BF16, BF16, 20, 1, true, 700},
        {5, 576, 512, 16, BF16, F32, 33, 2, false, 700},
        {12, 576, 512, 1, BF16, BF16, 0, 3, true, 700},
        {16, 576, 512, 64, BF16, BF16, 100, 4, false, 700},
        {16, 576, 512, 128, BF16, F32, 130, 0, true, 700},
        {20, 576, 512, 64, INT8, F32, 100, 0, false, 700},
    };
    static const uint32_t blocks[] = {132, 1, 7};
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i += rp_gpu_is_tiny() ? 3 : 1) {
        const unsigned char *out = NULL;
        make(&shapes[i]);
        f.args.soft_cap = i % 3 == 2 ? 4.0f : 0.0f;
        begin_step();
        for (uint32_t row = 0; row < RP_ARRAY_COUNT(lengths); row += rp_gpu_is_tiny() ? 5 : 1)
            add_decode(row, row, lengths[row]);
        for (uint32_t b = 0; b < RP_ARRAY_COUNT(blocks); b++) {
            const unsigned char *next = run(blocks[b], b % 2 == 0);
            check(next);
            if (out)
                assert_memory_equal(next, out, f.out_bytes);
            out = next;
        }
    }
}

/* More rows than a block has threads. */
static void many_rows_agree_whichever_blocks_compute_them(void **state) {
    (void)state;
    const struct shape shape = published(16, BF16, BF16, 200);
    const uint32_t rows = rp_gpu_is_tiny() ? 30 : 398;
    make(&shape);
    begin_step();
    for (uint32_t i = 0; i < rows; i++)
        add_decode(i % SLOTS, i % SLOTS, 1 + i % SLOTS * 37 % 190);
    const unsigned char *one = run(1, true), *all = run(132, true);
    check(one);
    assert_memory_equal(one, all, f.out_bytes);
}

static void other_sizes_and_f32_pages_agree(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {3, 40, 32, 16, F32, F32, 0, 1, false, 100},
        {17, 40, 32, 4, BF16, BF16, 9, 0, true, 100},
        {4, 576, 512, 64, F32, F32, 33, 0, false, 100},
        {2, 640, 512, 64, BF16, F32, 0, 0, true, 90},
        {5, 23, 16, 8, INT8, F32, 0, 3, false, 100},
        {8, 128, 64, 64, BF16, F32, 0, 0, false, 90},
        {6, 320, 256, 32, FP8, F32, 0, 0, true, 100},
        {8, 64, 48, 64, BF16, F32, 0, 0, false, 90},
    };
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i += rp_gpu_is_tiny() ? 3 : 1) {
        make(&shapes[i]);
        begin_step();
        add_decode(0, 0, 1);
        add_prompt(1, 1, 61, 61);
        add_decode(2, 2, 88);
        check(run(f.config.limits.sm_count, true));
    }
}

/* Bits of a row in this step. */
static const unsigned char *row_of(const unsigned char *out, uint32_t token) {
    return out + token * f.args.out_stride * rp_dtype_bytes(f.args.out_dtype);
}

static void company_slot_and_number_of_blocks_change_no_bit(void **state) {
    (void)state;
    static const uint32_t lengths[] = {700, 129, 1, 1500, 64, 333}, blocks[] = {1, 2, 5, 50, 132};
    for (uint32_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        struct shape shape = published(type == 1 ? 40 : 16, page_types[type], F32, 1600);
        shape.sinks = type == 2;
        size_t bytes = (size_t)shape.heads * shape.value_dim * sizeof(float);
        unsigned char *alone = rp_alloc(bytes * RP_ARRAY_COUNT(lengths));
        assert_non_null(alone);
        make(&shape);
        for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++) {
            begin_step();
            add_decode(i, i, lengths[i]);
            memcpy(alone + i * bytes, row_of(run(132, true), 0), bytes);
        }
        for (uint32_t b = 0; b < RP_ARRAY_COUNT(blocks); b++) {
            begin_step();
            for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
                add_decode((i + b) % SLOTS, i, lengths[i]);
            const unsigned char *out = run(blocks[b], b % 2 == 0);
            for (uint32_t i = 0; i < RP_ARRAY_COUNT(lengths); i++)
                if (memcmp(row_of(out, i), alone + i * bytes, bytes) != 0)
                    fail_msg("%s: row %u has other bits with %u SMs",
                             rp_dtype_name(page_types[type]), i, blocks[b]);
        }
        rp_free(alone);
    }
}

static void bits_do_not_depend_on_where_a_prompt_is_cut(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {16, 576, 512, 64, BF16, F32, 0, 0, false, 200},
        {20, 576, 512, 16, BF16, F32, 50, 0, true, 200},
        {16, 576, 512, 64, INT8, F32, 0, 0, false, 200},
    };
    static const uint32_t chunks[] = {77, 64, 13, 1};
    const uint32_t length = 150;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        size_t bytes = (size_t)shapes[i].heads * shapes[i].value_dim * sizeof(float);
        unsigned char *whole = rp_alloc(bytes * length);
        assert_non_null(whole);
        make(&shapes[i]);
        begin_step();
        add_prompt(0, 9, length, length);
        const unsigned char *out = run(132, true);
        for (uint32_t t = 0; t < length; t++)
            memcpy(whole + t * bytes, row_of(out, t), bytes);
        for (uint32_t c = 0; c < RP_ARRAY_COUNT(chunks); c += rp_gpu_is_tiny() ? 2 : 1)
            for (uint32_t begin = 0; begin < length; begin += chunks[c] == 1 ? 31 : chunks[c]) {
                uint32_t count = RP_MIN(chunks[c], length - begin);
                begin_step();
                add_row(0, 9, begin, count, 0);
                out = run(1 + begin % 9, true);
                for (uint32_t t = 0; t < count; t++)
                    if (memcmp(row_of(out, t), whole + (begin + t) * bytes, bytes) != 0)
                        fail_msg("a chunk of %u from %u changes position %u", count, begin,
                                 begin + t);
            }
        rp_free(whole);
    }
}

static void older_keys_may_be_read_early_and_the_rows_own_key_may_not(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 32, 33, 64, 65, 97, 128, 129, 300, 1000, 1025};
    for (size_t type = 0; type < RP_ARRAY_COUNT(page_types); type++) {
        const struct shape shape = published(type == 2 ? 20 : 16, page_types[type], F32, 1100);
        make(&shape);
        begin_step();
        const uint32_t count = rp_gpu_is_tiny() ? 6 : RP_ARRAY_COUNT(lengths);
        for (uint32_t i = 0; i < count; i++)
            add_decode(i, i, lengths[i]);
        f.own = take_own_keys();
        const unsigned char *out = run(f.config.limits.sm_count, true), *few = run(3, true);
        for (uint32_t i = 0; i < count; i++)
            store_latent(i, i, lengths[i] - 1); /* for the reference */
        check(out);
        check(few);
    }
}

static void dead_rows_padding_and_empty_steps_are_left_alone(void **state) {
    (void)state;
    struct shape shape = published(16, BF16, BF16, 300);
    shape.pad = 8;
    make(&shape);
    begin_step();
    check(run(132, true));
    f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    f.args.step.slots[5 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
    add_decode(0, 0, 33);
    add_prompt(1, 1, 90, 17);
    add_decode(3, 3, 200);
    add_prompt(5, 5, 70, 30);
    add_decode(6, 6, 290);
    f.args.step.counts->token_count += 7; /* padding */
    check(run(132, true));
    begin_step(); /* prompt rows alone */
    add_prompt(1, 1, 90, 17);
    check(run(2, false));
}

static void a_nan_key_shows_in_the_rows_that_see_it_alone(void **state) {
    (void)state;
    const struct shape shape = published(16, BF16, F32, 200);
    make(&shape);
    begin_step();
    add_decode(0, 0, 200);
    add_decode(1, 1, 150);
    unsigned char *key = rp_kv_run(&f.args.kv, table_of(0)[1], LAYER, 0, 0);
    memset(key + 6 * 576 * 2, 0xFF, 576 * 2);                 /* position 70 */
    for (uint32_t blocks = 1; blocks <= 132; blocks += 131) { /* one: both rows use its memory */
        const unsigned char *out = run(blocks, true);
        for (uint32_t t = 0; t < 2; t++)
            for (uint32_t c = 0; c < 16 * 512; c += 37)
                assert_int_equal(isnan(rp_test_get(row_of(out, t), F32, c)) != 0, t == 0);
    }
}

static void kv_write_stores_one_row_a_token_and_nothing_else(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {16, 576, 512, 64, BF16, BF16, 0, 0, false, 300},
        {2, 576, 512, 16, INT8, BF16, 0, 0, false, 300},
        {2, 576, 512, 32, FP8, BF16, 0, 0, false, 300},
        {2, 40, 32, 16, F32, F32, 0, 0, false, 300},
        {2, 23, 16, 1, BF16, F32, 0, 0, false, 300},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        make(&shapes[i]);
        const uint32_t cols = shapes[i].head_dim, stride = cols + 3;
        float *k = rp_calloc((size_t)TOKENS * stride, sizeof *k);
        unsigned char *got = rp_alloc(f.kv_bytes);
        assert_true(k && got);
        memset(k, 0xFF, (size_t)TOKENS * stride * sizeof *k);
        f.args.step.slots[3 * f.args.step.slot_words + RP_SLOT_FINISHED] = 1;
        begin_step();
        add_row(0, 0, 131, 1, RP_ROW_DECODE);
        add_row(3, 3, 9, 4, 0);
        add_row(1, 1, 3, 70, 0);
        f.args.step.counts->token_count += 5; /* padding */
        for (uint32_t t = 0; t < TOKENS; t++)
            for (uint32_t c = 0; c < cols && is_live(t); c++)
                k[t * stride + c] = rp_test_value_of(4, 0, t, 0, c);
        rp_gpu_step_upload(&f.step);
        struct rp_kv_write_args host = {.step = f.args.step,
                                        .kv = f.args.kv,
                                        .k = k,
                                        .k_stride = stride,
                                        .layer = LAYER,
                                        .table = f.args.table};
        struct rp_kv_write_cuda gpu = {.rows = {f.step.device, RP_ROWS_TOKEN, TOKENS, false},
                                       .write = host};
        gpu.write.step = f.step.device;
        gpu.write.kv.base = rp_gpu_upload(f.args.kv.base, f.kv_bytes);
        gpu.write.k = rp_gpu_upload(k, (size_t)TOKENS * stride * sizeof *k);
        rp_kv_write_range(&host, 0, f.args.step.counts->token_count);
        assert_int_equal(rp_kv_write_cuda_run(&gpu, NULL), 0);
        rp_gpu_download(got, gpu.write.kv.base, f.kv_bytes);
        assert_memory_equal(got, f.args.kv.base, f.kv_bytes);
        assert_true(rp_gpu_canaries_hold());
        rp_free(k);
        rp_free(got);
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

RP_GPU_TEST_MAIN(NULL, NULL, TEST(decode_rows_agree_with_the_reference_around_tiles_and_splits),
                 TEST(every_number_of_heads_page_size_and_type_agrees),
                 TEST(every_begin_and_end_of_a_row_agrees_whichever_blocks_compute_it),
                 TEST(many_rows_agree_whichever_blocks_compute_them),
                 TEST(other_sizes_and_f32_pages_agree),
                 TEST(company_slot_and_number_of_blocks_change_no_bit),
                 TEST(bits_do_not_depend_on_where_a_prompt_is_cut),
                 TEST(older_keys_may_be_read_early_and_the_rows_own_key_may_not),
                 TEST(dead_rows_padding_and_empty_steps_are_left_alone),
                 TEST(a_nan_key_shows_in_the_rows_that_see_it_alone),
                 TEST(kv_write_stores_one_row_a_token_and_nothing_else))
