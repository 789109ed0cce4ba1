/* Goal: a GEMM of each head gives the bits of the GEMM with that head's matrix alone, copies the
 * columns that follow, and writes nothing else.
 * Method: odd sizes in f32 and bf16, every instruction set, layouts and numbers of workers; outputs
 * are poisoned. The GEMM itself is tested in test_matmul.c. */
#include "base/bf16.h"
#include "base/memory.h"
#include "quant/matmul_heads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS   37u
#define POISON 0x7F

struct shape {
    uint32_t heads, outputs, k, in_step, copied;
};

static const struct shape shapes[] = {
    {3, 16, 7, 7, 0}, {5, 80, 10, 16, 6}, {2, 144, 33, 40, 4}, {1, 32, 16, 20, 2}};

static float value_of(size_t i) { return (float)((i * 2654435761u >> 7) % 2048) / 1024.0f - 1.0f; }

static void *make_values(size_t count, enum rp_dtype dtype, size_t seed) {
    void *values = rp_alloc_aligned(RP_ALIGN_UP(count * rp_dtype_bytes(dtype), 64), 64);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        if (dtype == RP_DTYPE_F32)
            ((float *)values)[i] = value_of(seed + i);
        else
            ((uint16_t *)values)[i] = rp_f32_to_bf16(value_of(seed + i));
    return values;
}

static struct rp_matrix make_matrix(const struct shape *s, uint32_t head, uint32_t heads,
                                    enum rp_dtype dtype, enum rp_cpu_isa isa, bool panels) {
    struct rp_matrix matrix = {.rows = heads * s->outputs, .cols = s->k, .dtype = dtype};
    matrix.data = make_values((size_t)matrix.rows * s->k, dtype, (size_t)head * s->outputs * s->k);
    if (panels)
        assert_int_equal(rp_matrix_prepare_cpu(&matrix, isa, NULL), RP_OK);
    return matrix;
}

static void check(const struct shape *s, enum rp_dtype dtype, enum rp_dtype out_dtype,
                  enum rp_cpu_isa isa, bool panels) {
    const struct rp_cpu_worker single = {.index = 0, .count = 1};
    size_t in_stride = s->heads * s->in_step + 3, step = s->outputs + s->copied;
    size_t out_stride = s->heads * step + 5, size = rp_dtype_bytes(out_dtype);
    size_t out_bytes = ROWS * out_stride * size;
    struct rp_matrix all = make_matrix(s, 0, s->heads, dtype, isa, panels);
    unsigned char *in = make_values(ROWS * in_stride, dtype, 77);
    float *copy = make_values(ROWS * in_stride, RP_DTYPE_F32, 5);
    unsigned char *out = rp_alloc(out_bytes), *want = rp_alloc(out_bytes);
    assert_true(out && want);
    memset(want, POISON, out_bytes);
    for (uint32_t head = 0; head < s->heads; head++) {
        struct rp_matrix one = make_matrix(s, head, 1, dtype, isa, panels);
        struct rp_matmul_args args = {.weight = &one,
                                      .in = in + head * s->in_step * rp_dtype_bytes(dtype),
                                      .out = want + head * step * size,
                                      .in_stride = in_stride,
                                      .out_stride = out_stride,
                                      .out_dtype = out_dtype};
        rp_matmul_select(isa, &one)(&args, ROWS - 2, &single);
        for (uint32_t row = 0; row < ROWS - 2; row++)
            memcpy((float *)(void *)want + row * out_stride + head * step + s->outputs,
                   copy + row * in_stride + head * s->in_step, s->copied * sizeof *copy);
        rp_matrix_deinit(&one);
    }
    const struct rp_head_matmul_args args = {.gemm = {.weight = &all,
                                                      .in = in,
                                                      .out = out,
                                                      .in_stride = in_stride,
                                                      .out_stride = out_stride,
                                                      .out_dtype = out_dtype},
                                             .heads = s->heads,
                                             .in_step = s->in_step,
                                             .out_step = (uint32_t)step,
                                             .run = rp_matmul_select(isa, &all),
                                             .copy = copy,
                                             .copy_stride = in_stride,
                                             .copied = s->copied,
                                             .copied_step = s->in_step};
    for (uint32_t workers = 1; workers <= 7; workers += 3) {
        memset(out, POISON, out_bytes);
        for (uint32_t w = 0; w < workers; w++) {
            const struct rp_cpu_worker worker = {.index = w, .count = workers};
            rp_head_matmul(&args, ROWS - 2, &worker);
        }
        assert_memory_equal(out, want, out_bytes);
        rp_head_matmul(&args, 0, &single); /* no rows */
        assert_memory_equal(out, want, out_bytes);
    }
    rp_matrix_deinit(&all);
    rp_free_aligned(in);
    rp_free_aligned(copy);
    rp_free(out);
    rp_free(want);
}

static void test_each_head_has_the_bits_of_its_own_gemm(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
            for (int half = 0; half < 2; half++)
                for (int panels = 0; panels < 2; panels++) {
                    enum rp_dtype dtype = half ? RP_DTYPE_BF16 : RP_DTYPE_F32;
                    check(&shapes[i], dtype, RP_DTYPE_F32, (enum rp_cpu_isa)isa, panels);
                    if (shapes[i].copied == 0)
                        check(&shapes[i], dtype, RP_DTYPE_BF16, (enum rp_cpu_isa)isa, panels);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_head_has_the_bits_of_its_own_gemm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
