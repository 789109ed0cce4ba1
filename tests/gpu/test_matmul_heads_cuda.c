/* Goal: the GEMMs of heads on a GPU agree with the CPU's scalar ones, copy the columns that follow,
 * give a row the same bits with any number of rows, and write nothing else.
 * Method: sizes that the fast kernel has and has not; dead rows and gaps are NaN, outputs are
 * poisoned. */
#include "base/bf16.h"
#include "base/memory.h"
#include "quant/heads/matmul_heads_cuda.h"
#include "quant/matmul_heads.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <string.h>

#define BF16 RP_DTYPE_BF16
#define F32  RP_DTYPE_F32

struct shape {
    uint32_t heads, n, k, in_step, copied;
    enum rp_dtype dtype, out;
    uint32_t pad; /* added to the strides */
};

static const struct shape shapes[] = {
    {16, 512, 128, 192, 64, BF16, F32, 0}, {16, 128, 512, 512, 0, BF16, BF16, 0}, /* V2-Lite */
    {3, 512, 192, 256, 64, BF16, F32, 8},  {5, 48, 32, 32, 0, BF16, BF16, 0},
    {4, 32, 16, 24, 8, BF16, F32, 16},     {2, 144, 40, 40, 4, BF16, F32, 8},
    {3, 16, 7, 9, 2, BF16, F32, 1},        {2, 80, 33, 40, 6, F32, F32, 3},
    {20, 32, 16, 24, 8, F32, F32, 0},      {2, 272, 520, 528, 0, BF16, BF16, 8},
};

struct data {
    unsigned char *weight, *in, *out, *want;
    float *copy;
    size_t in_stride, out_stride, out_step, weight_bytes, in_bytes, copy_bytes, out_bytes;
};

static void *allocate(size_t bytes) {
    void *data = rp_alloc_aligned(RP_ALIGN_UP(bytes, 64), 64);
    assert_non_null(data);
    memset(data, 0xFF, RP_ALIGN_UP(bytes, 64));
    return data;
}

static void make(const struct shape *s, uint32_t rows, uint32_t live, struct data *d) {
    *d = (struct data){.in_stride = s->heads * s->in_step + s->pad, .out_step = s->n + s->copied};
    d->out_stride = s->heads * d->out_step + s->pad;
    d->weight_bytes = (size_t)s->heads * s->n * s->k * rp_dtype_bytes(s->dtype);
    d->in_bytes = rows * d->in_stride * rp_dtype_bytes(s->dtype);
    d->copy_bytes = rows * d->in_stride * sizeof(float);
    d->out_bytes = rows * d->out_stride * rp_dtype_bytes(s->out);
    d->weight = allocate(d->weight_bytes);
    d->in = allocate(d->in_bytes);
    d->copy = allocate(d->copy_bytes);
    d->out = allocate(d->out_bytes);
    d->want = allocate(d->out_bytes);
    for (size_t i = 0; i < (size_t)s->heads * s->n * s->k; i++)
        rp_test_put(d->weight, s->dtype, i, rp_test_value_of(1, 0, 0, 0, (uint32_t)i));
    for (uint32_t row = 0; row < live; row++)
        for (uint32_t head = 0; head < s->heads; head++)
            for (uint32_t c = 0; c < RP_MAX(s->k, s->copied); c++) {
                size_t at = row * d->in_stride + (size_t)head * s->in_step + c;
                if (c < s->k)
                    rp_test_put(d->in, s->dtype, at, rp_test_value_of(2, row, 0, head, c));
                if (c < s->copied)
                    d->copy[at] = rp_test_value_of(3, row, 0, head, c);
            }
}

static void destroy(struct data *d) {
    rp_free_aligned(d->weight);
    rp_free_aligned(d->in);
    rp_free_aligned(d->copy);
    rp_free_aligned(d->out);
    rp_free_aligned(d->want);
}

static void run_cpu(const struct shape *s, uint32_t live, struct data *d) {
    const struct rp_cpu_worker alone = {.index = 0, .count = 1};
    const struct rp_matrix weight = {
        .rows = s->heads * s->n, .cols = s->k, .dtype = s->dtype, .data = d->weight};
    const struct rp_head_matmul_args args = {.gemm = {.weight = &weight,
                                                      .in = d->in,
                                                      .out = d->want,
                                                      .in_stride = d->in_stride,
                                                      .out_stride = d->out_stride,
                                                      .out_dtype = s->out},
                                             .heads = s->heads,
                                             .in_step = s->in_step,
                                             .out_step = (uint32_t)d->out_step,
                                             .run = rp_matmul_scalar,
                                             .copy = d->copy,
                                             .copy_stride = d->in_stride,
                                             .copied = s->copied,
                                             .copied_step = s->in_step};
    rp_head_matmul(&args, live, &alone);
}

static void run(const struct shape *s, uint32_t rows, uint32_t live, struct data *d) {
    struct rp_gpu_step step;
    rp_gpu_step_open_rows(&step, rows);
    step.host.counts->token_count = live;
    rp_gpu_step_upload(&step);
    unsigned char *out = rp_gpu_poisoned(d->out_bytes);
    const struct rp_matmul_heads_cuda op = {.rows = {step.device, RP_ROWS_TOKEN, rows, false},
                                            .weight = rp_gpu_upload(d->weight, d->weight_bytes),
                                            .in = rp_gpu_upload(d->in, d->in_bytes),
                                            .in_stride = d->in_stride,
                                            .out = {out, d->out_stride, s->out},
                                            .dtype = s->dtype,
                                            .heads = s->heads,
                                            .n = s->n,
                                            .k = s->k,
                                            .in_step = s->in_step,
                                            .out_step = (uint32_t)d->out_step,
                                            .copy = rp_gpu_upload(d->copy, d->copy_bytes),
                                            .copy_stride = d->in_stride,
                                            .copied = s->copied,
                                            .copied_step = s->in_step};
    assert_int_equal(rp_matmul_heads_cuda_run(&op, NULL), 0);
    rp_gpu_download(d->out, out, d->out_bytes);
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
    rp_gpu_step_close(&step);
}

/* Against the CPU's outputs, which hold NaN where nothing may be written. */
static void check(const struct shape *s, uint32_t rows, uint32_t live) {
    struct data d;
    double difference = 0, size = 1e-300;
    make(s, rows, live, &d);
    run_cpu(s, live, &d);
    run(s, rows, live, &d);
    for (size_t i = 0; i < rows * d.out_stride; i++) {
        float got = rp_test_get(d.out, s->out, i), want = rp_test_get(d.want, s->out, i);
        size_t in_row = i % d.out_stride;
        bool copied = in_row < s->heads * d.out_step && in_row % d.out_step >= s->n;
        if (isnan(want) != isnan(got) || (copied && got != want && !isnan(want)))
            fail_msg("heads %u, n %u, k %u, %u rows: output %zu is %g, not %g", s->heads, s->n,
                     s->k, live, i, (double)got, (double)want);
        if (isnan(want))
            continue;
        difference += ((double)got - want) * ((double)got - want);
        size += (double)want * want;
    }
    double error = sqrt(difference / size);
    if (!(error <= (s->out == F32 ? 1e-6 : 4e-3)))
        fail_msg("heads %u, n %u, k %u, %u rows: error %g", s->heads, s->n, s->k, live, error);
    destroy(&d);
}

static void every_size_is_the_gemm_of_each_head(void **state) {
    (void)state;
    static const uint32_t rows[][2] = {{1, 1}, {16, 9}, {17, 17}, {64, 0}, {70, 64}, {300, 289}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (size_t r = 0; r < RP_ARRAY_COUNT(rows); r += rp_gpu_is_tiny() ? 3 : 1)
            check(&shapes[i], rows[r][0], rows[r][1]);
}

static void the_number_of_rows_changes_no_bit(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 13, 40, 256, 257};
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        struct data all, some;
        size_t size = rp_dtype_bytes(shapes[i].out);
        make(&shapes[i], 300, 300, &all);
        run(&shapes[i], 300, 300, &all);
        for (size_t r = 0; r < RP_ARRAY_COUNT(rows); r += rp_gpu_is_tiny() ? 2 : 1) {
            make(&shapes[i], rows[r], rows[r], &some);
            run(&shapes[i], rows[r], rows[r], &some);
            assert_memory_equal(some.out, all.out, rows[r] * all.out_stride * size);
            destroy(&some);
        }
        destroy(&all);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, cmocka_unit_test(every_size_is_the_gemm_of_each_head),
                 cmocka_unit_test(the_number_of_rows_changes_no_bit))
