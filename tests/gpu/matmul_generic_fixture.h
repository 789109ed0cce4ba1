/* matmul_generic_fixture.h - runs a generic GEMM for its tests. Included once per test program. */
#ifndef RP_TESTS_GPU_MATMUL_GENERIC_FIXTURE_H
#define RP_TESTS_GPU_MATMUL_GENERIC_FIXTURE_H

#include "base/bf16.h"
#include "base/memory.h"
#include "quant/matmul.h"
#include "quant/matmul_internal_cuda.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <math.h>
#include <string.h>

static void *allocate(size_t bytes) {
    void *data = rp_calloc(bytes + 1, 1);
    assert_non_null(data);
    return data;
}

static void open_step(struct rp_gpu_step *step, uint32_t max_rows, uint32_t live) {
    rp_gpu_step_open_rows(step, max_rows);
    step->host.counts->token_count = live;
    rp_gpu_step_upload(step);
}

/* Runs the GEMM, downloads `bytes` of its output, and frees the GPU's memory and the step. */
static void run_generic(struct rp_matmul_cuda *op, struct rp_matrix *weight, void *to, size_t bytes,
                        struct rp_gpu_step *step) {
    const void *out = op->out.data;
    rp_gpu_limits(&op->limits);
    assert_int_equal(rp_matmul_generic_cuda_run(op, NULL), 0);
    memset(op, 0xEE, sizeof *op); /* nothing is read after the call */
    memset(weight, 0xEE, sizeof *weight);
    rp_gpu_download(to, out, bytes);
    assert_true(rp_gpu_canaries_hold());
    rp_gpu_free_all();
    rp_gpu_step_close(step);
}

#endif
