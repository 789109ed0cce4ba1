/* Goal: norms of many rows, which have kernels of their own, give every row the bits that it has
 * among few rows, and write nothing else.
 * Method: the same operator on at most 256 rows at a time; rows that are not live, columns past a
 * row's, and an unused output are unchanged. The rows are more than the GPU computes at a time. */
#include "tests/gpu/ops_fixture.h"

#define FEW 256u /* rows of the other kernels */

static const uint32_t columns[] = {260, 1028, 2048, 3584, 4092, 4096, 4100, 5120, 8188, 8192};
static const struct {
    uint32_t max_rows, live;
} counts[] = {{257, 257}, {300, 0}, {300, 1}, {1201, 1199}, {2600, 2597}};

struct outputs {
    struct rp_values out;
    struct rp_cuda_quantized quantized;
    size_t out_bytes, code_bytes, scale_bytes;
};

static struct outputs make_outputs(uint32_t rows, uint32_t n, enum rp_dtype dtype, bool has_out) {
    uint32_t stride = (uint32_t)RP_ALIGN_UP(n, 16u) + (n % 3 == 0 ? 16 : 0);
    struct outputs to = {.out = {NULL, n + 4, RP_DTYPE_BF16}};
    if (has_out) {
        to.out_bytes = (size_t)rows * (n + 4) * sizeof(uint16_t);
        to.out.data = rp_gpu_poisoned(to.out_bytes);
    }
    if (dtype == RP_DTYPE_INT8 || dtype == RP_DTYPE_FP8_E4M3) {
        to.code_bytes = (size_t)rows * stride;
        to.scale_bytes = rows * sizeof(float);
        to.quantized = (struct rp_cuda_quantized){rp_gpu_poisoned(to.code_bytes),
                                                  rp_gpu_poisoned(to.scale_bytes), stride, dtype};
    }
    return to;
}

static void set_live(uint32_t live) {
    step.host.counts->token_count = live;
    rp_gpu_step_upload(&step);
}

/* The rows from `first` on, as one launch of `rows`. */
static void run_rows(const struct rp_norm_cuda *all, uint32_t first, uint32_t rows) {
    struct rp_norm_cuda part = *all;
    part.rows.max_rows = rows;
    part.in.data = (float *)part.in.data + first * part.in.stride;
    if (part.out.data)
        part.out.data = (uint16_t *)part.out.data + first * part.out.stride;
    if (part.quantized.data) {
        part.quantized.data =
            (unsigned char *)part.quantized.data + (size_t)first * part.quantized.stride;
        part.quantized.scales += first;
    }
    assert_int_equal(rp_norm_cuda_run(&part, NULL), 0);
}

static void assert_same(const void *got, const void *wanted, size_t bytes, uint32_t n) {
    unsigned char *a = make_host(bytes), *b = make_host(bytes);
    if (bytes > 0) {
        rp_gpu_download(a, got, bytes);
        rp_gpu_download(b, wanted, bytes);
    }
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%u columns: byte %zu of %zu is %02x, not %02x", n, i, bytes, a[i], b[i]);
    rp_free_aligned(a);
    rp_free_aligned(b);
}

/* dtype: of the quantized values; BF16: none. */
static void check_rows(uint32_t n, uint32_t max_rows, uint32_t live, enum rp_dtype dtype,
                       bool has_out) {
    struct twin in = twin_random(live, max_rows, n, n + 8, 4, RP_DTYPE_F32);
    struct twin weight = vector_random(n);
    struct outputs got = make_outputs(max_rows, n, dtype, has_out);
    struct outputs wanted = make_outputs(max_rows, n, dtype, has_out);
    struct rp_norm_cuda args = {.rows = token_rows,
                                .in = in.device,
                                .out = got.out,
                                .weight = weight.device.data,
                                .cols = n,
                                .group = n,
                                .eps = 1e-5f,
                                .weight_offset = n % 8 == 0 ? 0.0f : 1.0f,
                                .quantized = got.quantized};
    for (uint32_t c = 0; c < n && live > 1; c++) { /* zeros, and values that overflow a sum */
        twin_set(&in, 0, c, 0.0f);
        twin_set(&in, live - 1, c, c % 2 ? 3e38f : 1e-30f);
    }
    twin_upload(&in);
    set_live(live);
    run_rows(&args, 0, max_rows);
    args.out = wanted.out;
    args.quantized = wanted.quantized;
    for (uint32_t first = 0; first < live; first += FEW)
        run_rows(&args, first, RP_MIN(FEW, live - first));
    assert_same(got.out.data, wanted.out.data, got.out_bytes, n);
    assert_same(got.quantized.data, wanted.quantized.data, got.code_bytes, n);
    assert_same(got.quantized.scales, wanted.quantized.scales, got.scale_bytes, n);
    end_case();
}

static void test_many_rows_have_the_bits_of_few(void **state) {
    (void)state;
    EACH(n, columns) EACH(c, counts) {
        /* The last count is for blocks of few threads, of which more are resident. */
        if (counts[c].max_rows > 2000 && columns[n] > 2048)
            continue;
        check_rows(columns[n], counts[c].max_rows, counts[c].live, RP_DTYPE_BF16, true);
        check_rows(columns[n], counts[c].max_rows, counts[c].live, RP_DTYPE_FP8_E4M3, n % 2);
        if (n % 2 == 1 || c == 3)
            check_rows(columns[n], counts[c].max_rows, counts[c].live, RP_DTYPE_INT8, n % 2 == 0);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_many_rows_have_the_bits_of_few))
