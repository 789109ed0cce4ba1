/* Goal: every kernel computes softmax(q k^T) v over the page table, writes nothing else, and gives
 * a token the same bits in every chunk, batch, page size and team. Method: q, k and v are functions
 * of (slot, position, head), so one token can be computed in many ways and compared; unwritten
 * parts of pages are NaN, outputs are poisoned, and the reference sums in f64. */
#include "tests/attention/attention_cpu_fixture.h"

static void reference(const struct fixture *f, uint32_t slot, uint32_t position, uint32_t head,
                      double *out) {
    const struct rp_attention_args *args = &f->args;
    uint32_t kv_head = head / (args->heads / args->kv_heads);
    uint32_t first = args->window && position >= args->window ? position + 1 - args->window : 0;
    double total = 0, max = -1e300;
    double scores[TOKENS_MAX];
    for (uint32_t j = first; j <= position; j++) {
        double sum = 0;
        for (uint32_t d = 0; d < args->head_dim; d++)
            sum += (double)q_value(slot, position, head, d) *
                   (double)kv_value(f, 0, slot, j, kv_head, d);
        scores[j] = sum * (double)args->scale;
        max = RP_MAX(max, scores[j]);
    }
    if (args->sinks) {
        max = RP_MAX(max, (double)args->sinks[head]);
        total = exp((double)args->sinks[head] - max);
    }
    memset(out, 0, args->head_dim * sizeof *out);
    for (uint32_t j = first; j <= position; j++) {
        double weight = exp(scores[j] - max);
        total += weight;
        for (uint32_t d = 0; d < args->head_dim; d++)
            out[d] += weight * (double)kv_value(f, 1, slot, j, kv_head, d);
    }
    for (uint32_t d = 0; d < args->head_dim; d++)
        out[d] /= total;
}

/* Error of the step, one row of slot 0 from its begin, against the reference. */
static double relative_error(const struct fixture *f) {
    const struct rp_attention_args *args = &f->args;
    double error = 0, norm = 0;
    for (uint32_t t = 0; t < f->counts.token_count; t++)
        for (uint32_t head = 0; head < args->heads; head++) {
            size_t at = t * args->out_stride + (size_t)head * args->head_dim;
            const double *want = f->want + ((size_t)t * args->heads + head) * args->head_dim;
            for (uint32_t d = 0; d < args->head_dim; d++) {
                double got = args->out_dtype == RP_DTYPE_F32
                                 ? (double)f->out[at + d]
                                 : (double)rp_bf16_to_f32(((uint16_t *)args->out)[at + d]);
                error += (got - want[d]) * (got - want[d]);
                norm += want[d] * want[d];
            }
        }
    return sqrt(error / norm);
}

/* Below, among and above the scores. */
static const float sinks[] = {-6.0f, 1.5f, 0.25f, 9.0f, -0.5f, 3.0f, 30.0f, -30.0f, 2.0f, 0, -1, 5};

static void check_shape(struct fixture *f, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                        uint32_t page_tokens, uint32_t window, bool has_sinks) {
    const uint32_t length = 83;
    for (size_t type = 0; type < RP_ARRAY_COUNT(kv_dtypes); type++) {
        make(f, heads, kv_heads, head_dim, page_tokens, kv_dtypes[type], length);
        f->args.window = window;
        f->args.sinks = has_sinks ? sinks : NULL;
        store_kv(f, 0, 0, length);
        begin_step(f);
        add_row(f, 0, 0, length, 0);
        f->want = rp_alloc((size_t)length * heads * head_dim * sizeof *f->want);
        assert_non_null(f->want);
        for (uint32_t t = 0; t < length; t++)
            for (uint32_t head = 0; head < heads; head++)
                reference(f, 0, t, head, f->want + ((size_t)t * heads + head) * head_dim);
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
            for (int out_type = 0; out_type < 2; out_type++) {
                f->args.out_dtype = out_type ? RP_DTYPE_BF16 : RP_DTYPE_F32;
                run(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv), 2);
                double error = relative_error(f);
                if (!(error <= (out_type ? 4e-3 : 2e-6)))
                    fail_msg("%s heads=%u/%u dim=%u page=%u window=%u kv=%s out=%d: error %g",
                             rp_cpu_isa_name((enum rp_cpu_isa)isa), heads, kv_heads, head_dim,
                             page_tokens, window, rp_dtype_name(kv_dtypes[type]), out_type, error);
            }
    }
}

static void test_every_kernel_is_the_formula_for_all_heads_pages_and_windows(void **state) {
    static const uint32_t shapes[][4] = {/* heads, kv_heads, head_dim, page_tokens */
                                         {4, 2, 8, 1},    {1, 1, 64, 2},  {3, 1, 96, 4},
                                         {4, 4, 20, 8},   {8, 1, 64, 16}, {5, 1, 128, 32},
                                         {12, 4, 17, 64}, {9, 1, 33, 16}, {2, 2, 256, 16}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        check_shape(*state, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], 0, false);
        check_shape(*state, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3],
                    i % 2 ? 16 : 1 + 10 * (uint32_t)i, i % 3 == 1);
    }
}

static void test_sinks_join_the_softmax_of_their_head(void **state) {
    check_shape(*state, 12, 4, 64, 16, 0, true);
    check_shape(*state, 8, 1, 64, 16, 5, true);
    check_shape(*state, 5, 1, 17, 4, 0, true);
    check_shape(*state, 3, 3, 128, 16, 1, true); /* one key */
}

/* --- bits --- */

#define LENGTH 150u /* of every sequence: three blocks, the last one partial */

static float *expected(struct fixture *f, uint32_t slot, uint32_t position) {
    return f->expect + ((size_t)slot * LENGTH + position) * f->args.heads * f->args.head_dim;
}

static void keep_outputs(struct fixture *f) {
    for (uint32_t t = 0; t < f->counts.token_count; t++)
        memcpy(expected(f, f->rows[f->token_rows[t]].slot, f->positions[t]),
               f->out + t * f->args.out_stride,
               (size_t)f->args.heads * f->args.head_dim * sizeof(float));
}

static void assert_same_bits(struct fixture *f, const char *what) {
    size_t count = (size_t)f->args.heads * f->args.head_dim;
    for (uint32_t t = 0; t < f->counts.token_count; t++) {
        const float *out = f->out + t * f->args.out_stride;
        if (f->token_rows[t] == RP_ROW_NONE) {
            if (!is_untouched(out, count))
                fail_msg("%s: padding token %u was written", what, t);
            continue;
        }
        uint32_t slot = f->rows[f->token_rows[t]].slot;
        if (memcmp(out, expected(f, slot, f->positions[t]), count * sizeof(float)) != 0)
            fail_msg("%s changes the bits of slot %u position %u", what, slot, f->positions[t]);
        if (!is_untouched(out + count, PAD))
            fail_msg("%s: written behind token %u", what, t);
    }
}

static void check_steps(struct fixture *f, rp_attention_fn fn) {
    static const uint32_t worker_counts[] = {1, 2, 3, 5};
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        begin_step(f);
        add_row(f, slot, 0, LENGTH, 0);
        run(f, fn, 1);
        keep_outputs(f);
    }
    for (size_t w = 0; w < RP_ARRAY_COUNT(worker_counts); w++) {
        begin_step(f);
        add_row(f, 1, 0, LENGTH, 0);
        run(f, fn, worker_counts[w]);
        assert_same_bits(f, "the number of workers");
        for (uint32_t begin = 0; begin < LENGTH; begin += 37) {
            begin_step(f);
            add_row(f, 2, begin, RP_MIN(37, LENGTH - begin), 0);
            run(f, fn, worker_counts[w]);
            assert_same_bits(f, "a chunk");
        }
        begin_step(f);
        add_row(f, 0, 63, 1, RP_ROW_DECODE);
        add_row(f, 3, 20, 77, 0);
        add_row(f, 1, 64, 1, RP_ROW_DECODE | RP_ROW_SAMPLE);
        add_row(f, 2, LENGTH - 1, 1, RP_ROW_DECODE);
        add_padding(f, 5);
        run(f, fn, worker_counts[w]);
        assert_same_bits(f, "a mixed batch");
    }
    for (uint32_t position = 0; position < LENGTH; position++) {
        begin_step(f);
        add_row(f, 3, position, 1, RP_ROW_DECODE);
        run(f, fn, 2);
        assert_same_bits(f, "decoding");
    }
}

static void check_bits(struct fixture *f, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                       uint32_t window, enum rp_dtype dtype) {
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        make(f, heads, kv_heads, head_dim, 16, dtype, LENGTH);
        f->args.window = window;
        f->args.sinks = heads % 2 ? sinks : NULL;
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            store_kv(f, slot, 0, LENGTH);
        check_steps(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv));
    }
}

static void test_a_token_has_the_same_bits_in_every_chunk_batch_and_team(void **state) {
    check_bits(*state, 4, 2, 32, 0, RP_DTYPE_BF16);
    check_bits(*state, 3, 3, 24, 0, RP_DTYPE_F32);
    check_bits(*state, 7, 1, 8, 70, RP_DTYPE_BF16);
    check_bits(*state, 10, 1, 8, 5, RP_DTYPE_F32);
    check_bits(*state, 5, 1, 112, 40, RP_DTYPE_BF16);
    check_bits(*state, 3, 3, 64, 0, RP_DTYPE_BF16);
    check_bits(*state, 2, 1, 128, 0, RP_DTYPE_F32);
    check_bits(*state, 4, 2, 32, 0, RP_DTYPE_INT8);
    check_bits(*state, 3, 1, 20, 70, RP_DTYPE_INT8);
    check_bits(*state, 5, 1, 112, 40, RP_DTYPE_FP8_E4M3);
    check_bits(*state, 2, 1, 160, 0, RP_DTYPE_FP8_E4M3);
}

static void check_page_sizes(struct fixture *f, enum rp_dtype dtype) {
    float *first = NULL;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (uint32_t page_tokens = 1; page_tokens <= 128; page_tokens *= 2) {
            make(f, 4, 2, 18, page_tokens, dtype, LENGTH);
            f->args.window = 90;
            store_kv(f, 0, 0, LENGTH);
            begin_step(f);
            add_row(f, 0, 0, LENGTH, 0);
            run(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv), 1);
            if (page_tokens == 1) {
                rp_free(first);
                first = rp_alloc(f->out_elements * sizeof(float));
                memcpy(first, f->out, f->out_elements * sizeof(float));
            }
            assert_memory_equal(first, f->out, f->out_elements * sizeof(float));
        }
    rp_free(first);
}

static void test_the_page_size_does_not_change_bits(void **state) {
    check_page_sizes(*state, RP_DTYPE_BF16);
    check_page_sizes(*state, RP_DTYPE_INT8);
}

/* --- writing --- */

static void test_rows_of_finished_slots_and_padding_write_nothing(void **state) {
    struct fixture *f = *state;
    make(f, 4, 2, 16, 16, RP_DTYPE_BF16, LENGTH);
    store_kv(f, 0, 0, LENGTH);
    f->args.step.slots[f->args.step.slot_words + RP_SLOT_FINISHED] = 1; /* slot 1 */
    begin_step(f);
    add_row(f, 1, 7, 3, 0);
    add_padding(f, 4);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        run(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv), 2);
        assert_true(is_untouched(f->out, f->out_elements));
    }
    begin_step(f);
    run(f, rp_attention_select(rp_cpu_isa_detect(), &f->args.kv), 2);
    assert_true(is_untouched(f->out, f->out_elements));
}

static void test_one_sequence_with_two_kv_heads_keeps_two_workers_busy(void **state) {
    struct fixture *f = *state;
    const struct rp_cpu_worker second = {.index = 1, .count = 2};
    make(f, 8, 2, 64, 16, RP_DTYPE_BF16, LENGTH);
    store_kv(f, 0, 0, LENGTH);
    begin_step(f);
    add_row(f, 0, LENGTH - 1, 1, RP_ROW_DECODE);
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        memset(f->out, 0xFF, f->out_elements * sizeof(float));
        rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv)(&f->args, &second);
        assert_true(is_untouched(f->out, 4 * 64));
        for (int i = 4 * 64; i < 8 * 64; i++)
            assert_true(isfinite(f->out[i]));
    }
}

static void test_kv_write_stores_live_tokens_and_nothing_else(void **state) {
    struct fixture *f = *state;
    for (size_t type = 0; type < RP_ARRAY_COUNT(kv_dtypes); type++) {
        make(f, 2, 2, 20, 4, kv_dtypes[type], LENGTH);
        size_t bytes = f->args.kv.page_stride * f->page_count, columns = 2 * 20 + PAD;
        float *k = rp_calloc(32 * columns, sizeof *k), *v = rp_calloc(32 * columns, sizeof *v);
        unsigned char *before = rp_alloc(bytes);
        f->args.step.slots[3 * f->args.step.slot_words + RP_SLOT_FINISHED] = 1;
        begin_step(f);
        add_row(f, 3, 0, 2, 0); /* finished */
        add_row(f, 1, 3, 6, 0); /* over two page borders */
        add_row(f, 0, 8, 1, RP_ROW_DECODE);
        add_padding(f, 3);
        struct rp_kv_write_args write = {.step = f->args.step,
                                         .kv = f->args.kv,
                                         .k = k,
                                         .v = v,
                                         .k_stride = columns,
                                         .v_stride = columns,
                                         .layer = LAYER};
        for (uint32_t t = 2; t < 9; t++)
            for (uint32_t head = 0; head < 2; head++)
                for (uint32_t d = 0; d < 20; d++) {
                    uint32_t slot = f->rows[f->token_rows[t]].slot;
                    k[t * columns + head * 20 + d] =
                        rp_test_value_of(0, slot, f->positions[t], head, d) * 3;
                    v[t * columns + head * 20 + d] =
                        rp_test_value_of(1, slot, f->positions[t], head, d);
                }
        /* The expected pages, written by the test, */
        store_kv(f, 1, 3, 9);
        store_kv(f, 0, 8, 9);
        memcpy(before, f->args.kv.base, bytes);
        memset(f->args.kv.base, 0xFF, bytes);
        /* and the operator's, in two ranges. */
        rp_kv_write_range(&write, 0, 5);
        rp_kv_write_range(&write, 5, f->counts.token_count);
        bool same = memcmp(before, f->args.kv.base, bytes) == 0;
        rp_free(k);
        rp_free(v);
        rp_free(before);
        assert_true(same);
    }
}

static void test_large_scores_do_not_overflow_and_nan_stays_visible(void **state) {
    struct fixture *f = *state;
    make(f, 4, 2, 16, 16, RP_DTYPE_F32, LENGTH);
    store_kv(f, 0, 0, LENGTH);
    begin_step(f);
    add_row(f, 0, LENGTH - 1, 1, RP_ROW_DECODE);
    f->args.scale = 1e4f;
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
        rp_attention_fn fn = rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv);
        run(f, fn, 1);
        for (int i = 0; i < 4 * 16; i++)
            assert_true(isfinite(f->out[i]) && fabsf(f->out[i]) <= 1.0f);
        /* One NaN in a key: its KV head's outputs are NaN, the other head's are not. */
        memset(kv_at(f, 0, 0, 70, 1), 0xFF, 4);
        run(f, fn, 1);
        for (int i = 0; i < 4 * 16; i++)
            assert_int_equal(isnan(f->out[i]) != 0, i >= 2 * 16);
        store_kv(f, 0, 70, 71);
    }
}

/* Rows that are not finite, or too small for a scale, written by the operator. */
static void test_pages_of_8_bits_keep_nan_and_zeros(void **state) {
    struct fixture *f = *state;
    const float odd[] = {NAN, INFINITY, -INFINITY, 0x1p-130f};
    for (size_t type = 2; type < RP_ARRAY_COUNT(kv_dtypes); type++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(odd); i++) {
            make(f, 4, 2, 16, 16, kv_dtypes[type], LENGTH);
            store_kv(f, 0, 0, LENGTH);
            float k[32] = {0}, v[32] = {0};
            k[16 + 3] = odd[i]; /* KV head 1 */
            begin_step(f);
            add_row(f, 0, 70, 1, RP_ROW_DECODE);
            struct rp_kv_write_args write = {.step = f->args.step,
                                             .kv = f->args.kv,
                                             .k = k,
                                             .v = v,
                                             .k_stride = 32,
                                             .v_stride = 32,
                                             .layer = LAYER};
            rp_kv_write_range(&write, 0, 1);
            for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
                run(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv), 1);
                for (int d = 0; d < 4 * 16; d++)
                    assert_int_equal(isnan(f->out[d]) != 0, d >= 2 * 16 && i < 3);
            }
        }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kernel_is_the_formula_for_all_heads_pages_and_windows),
        TEST(test_sinks_join_the_softmax_of_their_head),
        TEST(test_a_token_has_the_same_bits_in_every_chunk_batch_and_team),
        TEST(test_the_page_size_does_not_change_bits),
        TEST(test_rows_of_finished_slots_and_padding_write_nothing),
        TEST(test_one_sequence_with_two_kv_heads_keeps_two_workers_busy),
        TEST(test_kv_write_stores_live_tokens_and_nothing_else),
        TEST(test_large_scores_do_not_overflow_and_nan_stays_visible),
        TEST(test_pages_of_8_bits_keep_nan_and_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
