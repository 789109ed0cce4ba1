/* Goal: cuBLASLt's GEMMs are correct, each problem is searched once, and the file stores the
 * result. */
#include "base/bf16.h"
#include "device/shared_library_cuda.h"
#include "quant/cublaslt/cublaslt_cuda.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_values.h"

#include <cuda_runtime_api.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64]; /* of the files */

struct problem {
    uint32_t m, n, k;
    enum rp_dtype dtype, out_dtype;
    bool bias, accumulate;
    uint32_t in_pad, out_pad;
};

struct data {
    void *in, *weight, *out; /* on the host */
    float *bias, *old;
    size_t in_stride, out_stride, in_bytes, weight_bytes, out_bytes;
    /* on the GPU */
    unsigned char *device_in, *device_weight, *device_out;
    float *device_bias;
    struct rp_matrix matrix;
    struct rp_matmul_cuda op;
};

static uint32_t random_state = 1;

static float next_value(void) { return rp_test_next_value(&random_state); }

static void *allocate(size_t bytes) {
    void *data = rp_calloc(bytes + 1, 1);
    assert_non_null(data);
    return data;
}

static void make(const struct problem *p, struct data *d) {
    size_t element = rp_dtype_bytes(p->dtype);
    memset(d, 0, sizeof *d);
    d->in_stride = p->k + p->in_pad;
    d->out_stride = p->n + p->out_pad;
    d->in_bytes = p->m * d->in_stride * element;
    d->weight_bytes = (size_t)p->n * p->k * element;
    d->out_bytes = p->m * d->out_stride * rp_dtype_bytes(p->out_dtype);
    d->in = allocate(d->in_bytes);
    d->weight = allocate(d->weight_bytes);
    d->out = allocate(d->out_bytes);
    d->bias = allocate(p->n * sizeof(float));
    d->old = allocate((size_t)p->m * p->n * sizeof(float));
    memset(d->in, 0xFF, d->in_bytes);
    memset(d->out, 0xFF, d->out_bytes);
    for (size_t i = 0; i < (size_t)p->n * p->k; i++)
        rp_test_put(d->weight, p->dtype, i, next_value());
    for (size_t row = 0; row < p->m; row++)
        for (size_t c = 0; c < p->k; c++)
            rp_test_put(d->in, p->dtype, row * d->in_stride + c, next_value());
    for (size_t c = 0; c < p->n; c++)
        d->bias[c] = next_value();
    for (size_t row = 0; row < p->m && p->accumulate; row++)
        for (size_t c = 0; c < p->n; c++)
            rp_test_put(d->out, p->out_dtype, row * d->out_stride + c,
                        d->old[row * p->n + c] = next_value());
    d->device_in = rp_gpu_upload(d->in, d->in_bytes);
    d->device_weight = rp_gpu_upload(d->weight, d->weight_bytes);
    d->device_out = rp_gpu_poisoned(d->out_bytes);
    d->device_bias = p->bias ? rp_gpu_upload(d->bias, p->n * sizeof(float)) : NULL;
    d->matrix =
        (struct rp_matrix){.rows = p->n, .cols = p->k, .dtype = p->dtype, .data = d->device_weight};
    d->op = (struct rp_matmul_cuda){.rows = {.rows = RP_ROWS_TOKEN, .max_rows = p->m},
                                    .weight = &d->matrix,
                                    .bias = d->device_bias,
                                    .in = d->device_in,
                                    .in_stride = d->in_stride,
                                    .out = {d->device_out, d->out_stride, p->out_dtype},
                                    .accumulate = p->accumulate};
}

static void destroy(struct data *d) {
    rp_free(d->in);
    rp_free(d->weight);
    rp_free(d->out);
    rp_free(d->bias);
    rp_free(d->old);
}

static struct rp_cublaslt *open_library(const char *cache_dir) {
    struct rp_cublaslt_config config = {.cache_dir = cache_dir,
                                        .workspace = rp_gpu_zeroed(RP_CUBLASLT_WORKSPACE_BYTES),
                                        .workspace_bytes = RP_CUBLASLT_WORKSPACE_BYTES};
    struct rp_cublaslt *lt;
    struct rp_error err = {0};
    int status = rp_cublaslt_open(&config, &lt, &err);
    if (status == RP_STATUS_NOT_FOUND) {
        printf("%s\n", err.text);
        rp_gpu_free_all();
        skip();
    }
    assert_int_equal(status, RP_OK);
    return lt;
}

/* Plans and runs; d->out is the downloaded result. */
static int run(struct rp_cublaslt *lt, struct data *d) {
    struct rp_arena memory = {0};
    struct rp_cuda_launch launch;
    struct rp_error err = {0};
    int status = rp_cublaslt_plan(lt, &d->op, &memory, &launch, &err);
    if (status == RP_OK) {
        assert_int_equal(cudaMemcpy(d->device_out, d->out, d->out_bytes, cudaMemcpyHostToDevice),
                         cudaSuccess);
        assert_int_equal(launch.run(launch.args, NULL), 0);
        rp_gpu_download(d->out, d->device_out, d->out_bytes);
        assert_true(rp_gpu_canaries_hold());
    } else {
        assert_true(err.text[0] != '\0');
    }
    rp_arena_deinit(&memory);
    return status;
}

static void check(const struct problem *p, const struct data *d) {
    double difference = 0.0, size = 0.0;
    for (size_t row = 0; row < p->m; row++)
        for (size_t c = 0; c < d->out_stride; c++) {
            double value = rp_test_get(d->out, p->out_dtype, row * d->out_stride + c);
            double exact = p->bias ? d->bias[c < p->n ? c : 0] : 0.0;
            if (c >= p->n) {
                assert_true(isnan(value));
                continue;
            }
            for (size_t k = 0; k < p->k; k++)
                exact += (double)rp_test_get(d->in, p->dtype, row * d->in_stride + k) *
                         rp_test_get(d->weight, p->dtype, c * p->k + k);
            if (p->accumulate)
                exact += d->old[row * p->n + c];
            difference += (value - exact) * (value - exact);
            size += exact * exact;
        }
    double error = sqrt(difference / size);
    if (!(error < (p->out_dtype == RP_DTYPE_F32 ? 1e-5 : 4e-3)))
        fail_msg("m %u, n %u, k %u, %s into %s: relative error %g", p->m, p->n, p->k,
                 rp_dtype_name(p->dtype), rp_dtype_name(p->out_dtype), error);
}

static const struct problem problems[] = {
    {1, 256, 512, RP_DTYPE_BF16, RP_DTYPE_F32, false, false, 0, 0},
    {8, 256, 512, RP_DTYPE_BF16, RP_DTYPE_F32, false, true, 0, 0},
    {33, 264, 520, RP_DTYPE_BF16, RP_DTYPE_F32, true, false, 8, 8},
    {64, 128, 256, RP_DTYPE_BF16, RP_DTYPE_BF16, false, false, 0, 0},
    {1, 256, 512, RP_DTYPE_F32, RP_DTYPE_F32, false, false, 0, 0},
    {40, 256, 512, RP_DTYPE_F32, RP_DTYPE_F32, true, true, 4, 4}, /* not TF32: 1e-3 would show */
};

static void products_agree_with_f64_and_f32_ones_are_not_tf32(void **state) {
    (void)state;
    struct rp_cublaslt *lt = open_library(NULL);
    char text[320];
    rp_cublaslt_describe(lt, text, sizeof text);
    printf("%s\n", text);
    for (size_t i = 0; i < RP_ARRAY_COUNT(problems); i++) {
        struct data d;
        make(&problems[i], &d);
        assert_int_equal(run(lt, &d), RP_OK);
        check(&problems[i], &d);
        destroy(&d);
    }
    rp_cublaslt_close(lt);
    rp_gpu_free_all();
}

static void a_problem_is_searched_once_and_each_bias_is_its_own(void **state) {
    (void)state;
    struct rp_cublaslt *lt = open_library(NULL);
    struct rp_cublaslt_stats stats;
    for (int turn = 0; turn < 3; turn++) {
        struct data d;
        make(&problems[2], &d);
        assert_int_equal(run(lt, &d), RP_OK);
        check(&problems[2], &d);
        destroy(&d);
    }
    rp_cublaslt_stats(lt, &stats);
    assert_int_equal(stats.searched, 1);
    assert_int_equal(stats.problems, 1);
    rp_cublaslt_trim(lt);
    rp_cublaslt_close(lt);
    rp_gpu_free_all();
}

static void f32_into_bf16_is_refused_with_a_reason(void **state) {
    (void)state;
    struct problem p = {4, 64, 64, RP_DTYPE_F32, RP_DTYPE_BF16, false, false, 0, 0};
    struct rp_cublaslt *lt = open_library(NULL);
    struct data d;
    make(&p, &d);
    assert_int_equal(run(lt, &d), RP_STATUS_UNSUPPORTED);
    destroy(&d);
    rp_cublaslt_close(lt);
    rp_gpu_free_all();
}

static void a_replayed_graph_gives_the_bits_of_the_eager_launch(void **state) {
    (void)state;
    struct rp_cublaslt *lt = open_library(NULL);
    struct rp_arena memory = {0};
    struct rp_cuda_launch launch;
    struct data d;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    make(&problems[0], &d);
    assert_int_equal(run(lt, &d), RP_OK);
    void *again = allocate(d.out_bytes);
    assert_int_equal(rp_cublaslt_plan(lt, &d.op, &memory, &launch, NULL), RP_OK);
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaMemset(d.device_out, 0xFF, d.out_bytes), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(launch.run(launch.args, stream), 0);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    rp_gpu_download(again, d.device_out, d.out_bytes);
    assert_memory_equal(again, d.out, d.out_bytes);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    rp_free(again);
    rp_arena_deinit(&memory);
    destroy(&d);
    rp_cublaslt_close(lt);
    rp_gpu_free_all();
}

/* ---- the file ------------------------------------------------------------ */

/* Opens with the folder and plans the first problem; returns the library's statistics. */
static struct rp_cublaslt_stats session(const struct problem *p) {
    struct rp_cublaslt *lt = open_library(folder);
    struct rp_cublaslt_stats stats;
    struct data d;
    make(p, &d);
    assert_int_equal(run(lt, &d), RP_OK);
    check(p, &d);
    rp_cublaslt_stats(lt, &stats);
    destroy(&d);
    rp_cublaslt_close(lt);
    rp_gpu_free_all();
    return stats;
}

static void path_of_file(char *out, size_t size) {
    char pattern[128];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/cublaslt-*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1); /* and no partial file is left */
    snprintf(out, size, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void a_second_start_reads_what_the_first_one_found(void **state) {
    (void)state;
    struct rp_cublaslt_stats stats = session(&problems[0]);
    assert_int_equal(stats.from_disk, 0);
    assert_int_equal(stats.searched, 1);
    stats = session(&problems[1]);
    assert_int_equal(stats.from_disk, 1);
    assert_int_equal(stats.searched, 1);
    for (int i = 0; i < 2; i++) {
        stats = session(&problems[i]);
        assert_int_equal(stats.from_disk, 2);
        assert_int_equal(stats.searched, 0);
    }
}

static void a_damaged_file_is_ignored_and_rewritten(void **state) {
    (void)state;
    char path[256], text[4096];
    for (int damage = 0; damage < 5; damage++) {
        (void)session(&problems[0]);
        path_of_file(path, sizeof path);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t len = fread(text, 1, sizeof text, file);
        assert_in_range(len, 100, sizeof text - 1);
        assert_int_equal(fclose(file), 0);
        if (damage == 0)
            text[len / 2] ^= 1;
        else if (damage == 1)
            len /= 2;
        else if (damage == 2)
            text[3] = '\0';
        else if (damage == 3)
            memset(text, '\n', len);
        else
            len = 0;
        file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, len, file), len);
        assert_int_equal(fclose(file), 0);
        struct rp_cublaslt_stats stats = session(&problems[0]);
        assert_int_equal(stats.from_disk, 0);
        assert_int_equal(stats.searched, 1);
        stats = session(&problems[0]);
        assert_int_equal(stats.from_disk, 1);
        assert_int_equal(stats.searched, 0);
    }
}

static void a_folder_that_cannot_be_written_changes_no_product(void **state) {
    (void)state;
    char kept[sizeof folder];
    memcpy(kept, folder, sizeof kept);
    snprintf(folder, sizeof folder, "/proc/no/such/folder");
    struct rp_cublaslt_stats stats = session(&problems[0]);
    memcpy(folder, kept, sizeof folder);
    assert_int_equal(stats.searched, 1);
}

static void a_missing_library_is_named(void **state) {
    (void)state;
    static const char *const sonames[] = {"libthere_is_no_such_thing.so.7"};
    char path[64];
    struct rp_error err = {0};
    assert_null(rp_shared_library_open(sonames, 1, NULL, NULL, path, sizeof path, &err));
    assert_non_null(strstr(err.text, sonames[0]));
    assert_true(err.hint[0] != '\0');
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/reprise-cublaslt-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char pattern[128];
    glob_t found = {0};
    (void)state;
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            (void)unlink(found.gl_pathv[i]);
    globfree(&found);
    return rmdir(folder);
}

RP_GPU_TEST_MAIN(make_folder, remove_folder, cmocka_unit_test(a_missing_library_is_named),
                 cmocka_unit_test(products_agree_with_f64_and_f32_ones_are_not_tf32),
                 cmocka_unit_test(a_problem_is_searched_once_and_each_bias_is_its_own),
                 cmocka_unit_test(f32_into_bf16_is_refused_with_a_reason),
                 cmocka_unit_test(a_replayed_graph_gives_the_bits_of_the_eager_launch),
                 cmocka_unit_test(a_second_start_reads_what_the_first_one_found),
                 cmocka_unit_test(a_damaged_file_is_ignored_and_rewritten),
                 cmocka_unit_test(a_folder_that_cannot_be_written_changes_no_product))
