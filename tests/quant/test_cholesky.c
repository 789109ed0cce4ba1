/* Goal: the upper factor reproduces its matrix, equals the known one, and has the same bits with
 * any team and instruction set.
 * Method: matrices computed from chosen factors, sizes around the blocks, teams and instruction
 * sets. */
#include "base/memory.h"
#include "quant/rounding/cholesky.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define POISON -7.25

struct job {
    double *h;
    size_t n;
    double least;
    rp_dots_fn add;
};

static void factor_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    const struct job *job = arg0;
    (void)arg1;
    rp_cholesky_upper(job->h, job->n, job->least, job->add, worker);
}

static void factor(double *h, size_t n, double least, uint32_t threads, enum rp_cpu_isa isa) {
    struct job job = {h, n, least, rp_dots_find(isa)};
    struct rp_cpu_team *team = NULL;
    uint64_t number;
    assert_int_equal(rp_cpu_team_create(threads, &team, NULL), RP_OK);
    assert_int_equal(rp_cpu_team_submit(team, factor_job, &job, 0, &number), RP_OK);
    assert_true(rp_cpu_team_wait(team, number, UINT64_MAX));
    rp_cpu_team_destroy(team);
}

static double next_value(uint32_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return (double)(int32_t)*seed * 0x1p-31;
}

/* R of small integers, and H = R R^T exactly; poison below the diagonal. */
static void make_known(size_t n, double *r, double *h) {
    uint32_t seed = 5;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            r[i * n + j] = j < i    ? POISON
                           : j == i ? 16.0 + (double)(i % 5)
                                    : rint(next_value(&seed) * 3);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            h[i * n + j] = j < i ? POISON : 0.0;
            for (size_t m = j; m < n && j >= i; m++)
                h[i * n + j] += r[i * n + m] * r[j * n + m];
        }
}

static void test_three_by_three_equals_the_result_by_hand(void **state) {
    (void)state;
    /* R = 1 2 3; 0 4 5; 0 0 6 */
    double h[9] = {14, 23, 18, POISON, 41, 30, POISON, POISON, 36};
    static const double want[9] = {1, 2, 3, POISON, 4, 5, POISON, POISON, 6};
    factor(h, 3, 1e-9, 1, RP_ISA_SCALAR);
    assert_memory_equal(h, want, sizeof h);
}

static void test_the_factor_is_the_one_that_made_the_matrix(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 63, 64, 65, 130, 700};
    for (size_t s = 0; s < RP_ARRAY_COUNT(sizes); s++) {
        size_t n = sizes[s];
        double *r = rp_calloc(n * n, sizeof *r), *h = rp_calloc(n * n, sizeof *h);
        assert_true(r && h);
        make_known(n, r, h);
        factor(h, n, 1e-9, 2, rp_cpu_isa_detect());
        for (size_t i = 0; i < n * n; i++)
            assert_true(fabs(h[i] - r[i]) < 1e-9);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++)
                assert_true(h[i * n + j] == POISON);
        rp_free(r);
        rp_free(h);
    }
}

static void test_bits_depend_neither_on_workers_nor_on_instructions(void **state) {
    (void)state;
    enum { N = 333 };
    size_t bytes = (size_t)N * N * sizeof(double);
    double *r = rp_alloc(bytes), *from = rp_alloc(bytes), *one = rp_alloc(bytes),
           *other = rp_alloc(bytes);
    assert_true(r && from && one && other);
    make_known(N, r, from);
    for (size_t i = 0; i < (size_t)N * N; i++)
        from[i] *= 1.0 / 3.0; /* so that sums are rounded */
    memcpy(one, from, bytes);
    factor(one, N, 1e-9, 1, RP_ISA_SCALAR);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        memcpy(other, from, bytes);
        factor(other, N, 1e-9, threads, rp_cpu_isa_detect());
        assert_memory_equal(one, other, bytes);
    }
    rp_free(r);
    rp_free(from);
    rp_free(one);
    rp_free(other);
}

static void test_a_pivot_lost_to_rounding_is_the_least_one(void **state) {
    (void)state;
    double h[4] = {1, 1, POISON, 1}; /* of rank 1: R(0, 0) would be 0 */
    factor(h, 2, 0.25, 1, RP_ISA_SCALAR);
    assert_true(h[0] == 0.5 && h[1] == 1 && h[3] == 1);
    double bad[4] = {NAN, 1, POISON, 1};
    factor(bad, 2, 0.25, 1, RP_ISA_SCALAR);
    assert_true(bad[0] == 0.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_by_three_equals_the_result_by_hand),
        cmocka_unit_test(test_the_factor_is_the_one_that_made_the_matrix),
        cmocka_unit_test(test_bits_depend_neither_on_workers_nor_on_instructions),
        cmocka_unit_test(test_a_pivot_lost_to_rounding_is_the_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
