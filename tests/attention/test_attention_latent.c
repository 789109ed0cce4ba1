/* Goal: over pages of latents every kernel computes softmax(q k^T) v, v the beginning of k; the
 * bits of a token do not depend on chunks, workers or pages; K alone is written.
 * Method: values are functions of (slot, position), the reference sums in f64, unwritten parts of
 * pages are NaN. */
#include "tests/attention/attention_cpu_fixture.h"

struct shape {
    uint32_t heads, head_dim, value_dim, page_tokens, window;
    const char *mask;
};

/* make() of the fixture, with pages of latents in its memory. */
static void make_latent(struct fixture *f, const struct shape *shape, enum rp_dtype dtype,
                        uint32_t length) {
    make(f, shape->heads, 1, shape->head_dim, shape->page_tokens, dtype, length);
    unsigned char *base = f->args.kv.base;
    assert_true(
        rp_kv_layout_init_latent(&f->args.kv, LAYERS, shape->head_dim, shape->page_tokens, dtype));
    f->args.kv.base = base;
    f->args.value_dim = shape->value_dim;
    f->args.out_stride = shape->heads * shape->value_dim + PAD;
    f->args.window = shape->window;
}

static void store_latents(struct fixture *f, uint32_t slot, uint32_t begin, uint32_t end) {
    for (uint32_t position = begin; position < end; position++)
        store_row(f, 0, slot, position, 0);
}

/* The output of one (token, head) of slot 0, in f64. */
static void reference(const struct fixture *f, uint32_t position, uint32_t head, double *out) {
    const struct rp_attention_args *args = &f->args;
    uint32_t first = args->window && position >= args->window ? position + 1 - args->window : 0;
    double total = 0, max = -1e300, scores[TOKENS_MAX];
    for (uint32_t j = first; j <= position; j++) {
        double sum = 0;
        for (uint32_t d = 0; d < args->head_dim; d++)
            sum += (double)q_value(0, position, head, d) * (double)kv_value(f, 0, 0, j, 0, d);
        scores[j] = sum * (double)args->scale;
        max = RP_MAX(max, scores[j]);
    }
    memset(out, 0, args->value_dim * sizeof *out);
    for (uint32_t j = first; j <= position; j++) {
        double weight = exp(scores[j] - max);
        total += weight;
        for (uint32_t d = 0; d < args->value_dim; d++)
            out[d] += weight * (double)kv_value(f, 0, 0, j, 0, d);
    }
    for (uint32_t d = 0; d < args->value_dim; d++)
        out[d] /= total;
}

static double error_of(const struct fixture *f, uint32_t token, uint32_t head, const double *want) {
    const struct rp_attention_args *args = &f->args;
    size_t at = token * args->out_stride + (size_t)head * args->value_dim;
    double error = 0, norm = 0;
    for (uint32_t d = 0; d < args->value_dim; d++) {
        double got = args->out_dtype == RP_DTYPE_F32
                         ? (double)f->out[at + d]
                         : (double)rp_bf16_to_f32(((uint16_t *)args->out)[at + d]);
        error += (got - want[d]) * (got - want[d]);
        norm += want[d] * want[d];
    }
    return sqrt(error / norm);
}

/* Some tokens of one prompt, all heads. */
static void check_kernels(struct fixture *f, const struct shape *shape, uint32_t length) {
    for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
        for (int half = 0; half < 2; half++) {
            f->args.out_dtype = half ? RP_DTYPE_BF16 : RP_DTYPE_F32;
            run(f, rp_attention_select((enum rp_cpu_isa)isa, &f->args.kv), 3);
            for (uint32_t t = 0; t < length; t += t + 17 < length ? 17 : length)
                for (uint32_t head = 0; head < shape->heads; head++) {
                    double error = error_of(f, t, head,
                                            f->want + (t * shape->heads + head) * shape->value_dim);
                    if (!(error <= (half ? 6e-3 : 4e-6)))
                        fail_msg("%s heads=%u dims=%u/%u kv=%s mask=%s: token %u head %u: error %g",
                                 rp_cpu_isa_name((enum rp_cpu_isa)isa), shape->heads,
                                 shape->head_dim, shape->value_dim, rp_dtype_name(f->args.kv.dtype),
                                 shape->mask ? shape->mask : "none", t, head, error);
                }
        }
}

static void test_every_kernel_is_the_formula(void **state) {
    static const struct shape shapes[] = {
        {5, 576, 512, 16, 0, NULL}, /* DeepSeek's */
        {17, 40, 32, 4, 0, NULL},   /* three units of heads */
        {1, 24, 16, 1, 9, NULL},    {4, 64, 48, 16, 0, NULL},
        {9, 23, 16, 8, 30, NULL},   {3, 80, 64, 32, 11, "causal && q - kv < 11"},
    };
    const uint32_t length = 83;
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (size_t type = 0; type < RP_ARRAY_COUNT(kv_dtypes); type++) {
            const struct shape *shape = &shapes[i];
            const struct rp_mask_limits limits = {1024, shape->heads, LAYERS};
            struct rp_mask *mask = NULL;
            make_latent(f, shape, kv_dtypes[type], length);
            store_latents(f, 0, 0, length);
            begin_step(f);
            add_row(f, 0, 0, length, 0);
            f->want = rp_calloc((size_t)length * shape->heads * shape->value_dim, sizeof(double));
            assert_non_null(f->want);
            for (uint32_t t = 0; t < length; t += 17)
                for (uint32_t head = 0; head < shape->heads; head++)
                    reference(f, t, head, f->want + (t * shape->heads + head) * shape->value_dim);
            if (shape->mask)
                assert_int_equal(
                    rp_mask_parse(shape->mask, strlen(shape->mask), &limits, &mask, NULL), RP_OK);
            f->args.mask = mask;
            check_kernels(f, shape, length);
            f->args.mask = NULL;
            rp_mask_free(mask);
        }
}

#define LENGTH 75u /* a whole block of keys, and a part */

static void assert_bits(const struct fixture *f, const float *expect, const char *what,
                        uint32_t cut) {
    size_t row = f->args.out_stride;
    for (uint32_t t = 0; t < f->counts.token_count; t++)
        if (memcmp(f->out + t * row, expect + f->positions[t] * row,
                   (size_t)f->args.heads * f->args.value_dim * sizeof(float)) != 0)
            fail_msg("%s at %u: position %u has other bits", what, cut, f->positions[t]);
}

/* A prompt in two chunks, cut at every offset, then every token as a decode row. */
static void test_bits_do_not_depend_on_where_a_prompt_is_cut(void **state) {
    static const struct shape shapes[] = {{11, 40, 32, 4, 0, NULL}, {2, 576, 512, 16, 0, NULL}};
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (size_t type = 0; type < RP_ARRAY_COUNT(kv_dtypes); type++) {
            make_latent(f, &shapes[i], kv_dtypes[type], LENGTH);
            store_latents(f, 0, 0, LENGTH);
            rp_attention_fn fn = rp_attention_select(rp_cpu_isa_detect(), &f->args.kv);
            float *expect = rp_alloc(f->out_elements * sizeof *expect);
            assert_non_null(expect);
            begin_step(f);
            add_row(f, 0, 0, LENGTH, 0);
            run(f, fn, 1);
            memcpy(expect, f->out, f->out_elements * sizeof *expect);
            for (uint32_t cut = 1; cut < LENGTH; cut++) {
                for (uint32_t chunk = 0; chunk < 2; chunk++) {
                    begin_step(f);
                    add_row(f, 0, chunk ? cut : 0, chunk ? LENGTH - cut : cut, 0);
                    run(f, fn, 1 + cut % 4);
                    assert_bits(f, expect, "a prompt cut", cut);
                }
                begin_step(f);
                add_row(f, 0, cut, 1, RP_ROW_DECODE);
                run(f, fn, 1 + cut % 3);
                assert_bits(f, expect, "a decode row", cut);
            }
            rp_free(expect);
        }
}

static void test_one_decode_row_keeps_several_workers_busy(void **state) {
    const struct shape shape = {32, 40, 32, 4, 0, NULL};
    struct fixture *f = *state;
    make_latent(f, &shape, RP_DTYPE_F32, LENGTH);
    store_latents(f, 0, 0, LENGTH);
    begin_step(f);
    add_row(f, 0, LENGTH - 1, 1, RP_ROW_DECODE);
    if (rp_cpu_isa_detect() == RP_ISA_SCALAR)
        return;
    rp_attention_fn fn = rp_attention_select(rp_cpu_isa_detect(), &f->args.kv);
    for (uint32_t w = 0; w < 4; w++) { /* each of four has eight of the heads */
        struct rp_cpu_worker worker = {.index = w, .count = 4};
        memset(f->out, 0xFF, f->out_elements * sizeof(float));
        fn(&f->args, &worker);
        for (uint32_t head = 0; head < 32; head++)
            assert_true(is_untouched(f->out + head * 32, 32) == (head / 8 != w));
    }
}

static void test_kv_write_stores_one_row_a_token_and_nothing_else(void **state) {
    const struct shape shape = {1, 20, 16, 4, 0, NULL};
    struct fixture *f = *state;
    for (size_t type = 0; type < RP_ARRAY_COUNT(kv_dtypes); type++) {
        make_latent(f, &shape, kv_dtypes[type], LENGTH);
        size_t bytes = f->args.kv.page_stride * f->page_count;
        float k[9][23];
        unsigned char *before = rp_alloc(bytes);
        assert_non_null(before);
        begin_step(f);
        add_row(f, 1, 3, 6, 0);
        add_padding(f, 3);
        struct rp_kv_write_args write = {
            .step = f->args.step, .kv = f->args.kv, .k = &k[0][0], .k_stride = 23, .layer = LAYER};
        for (uint32_t t = 0; t < 6; t++)
            for (uint32_t d = 0; d < 20; d++)
                k[t][d] = kv_unrounded(0, 1, f->positions[t], 0, d);
        memset(f->args.kv.base, 0xFF, bytes);
        store_latents(f, 1, 3, 9); /* expected */
        memcpy(before, f->args.kv.base, bytes);
        memset(f->args.kv.base, 0xFF, bytes);
        rp_kv_write_range(&write, 0, f->counts.token_count);
        bool same = memcmp(before, f->args.kv.base, bytes) == 0;
        rp_free(before);
        assert_true(same);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_every_kernel_is_the_formula),
        TEST(test_bits_do_not_depend_on_where_a_prompt_is_cut),
        TEST(test_one_decode_row_keeps_several_workers_busy),
        TEST(test_kv_write_stores_one_row_a_token_and_nothing_else),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
