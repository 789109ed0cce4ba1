/* cublaslt_cuda.c - loading the library, GEMM descriptors, and the launch.
 *
 * cuBLASLt is column-major: out^T(n, m) = weight(k, n)^T * in^T(k, m), without copying any
 * matrix. */
#include "device/shared_library_cuda.h"
#include "quant/cublaslt/cublaslt_internal_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static bool load_api(struct cublaslt_api *api, void *library) {
#define X(name)                                                                                    \
    *(void **)&api->name = dlsym(library, #name);                                                  \
    if (!api->name)                                                                                \
        return false;
    RP_CUBLASLT_FUNCTIONS(X)
#undef X
    return true;
}

/* A library for another driver version loads, but cannot create a handle. */
static bool accept(void *ctx, void *library) {
    struct rp_cublaslt *lt = ctx;
    return load_api(&lt->api, library) &&
           lt->api.cublasLtCreate(&lt->handle) == CUBLAS_STATUS_SUCCESS;
}

static void describe_gpu(struct rp_cublaslt *lt) {
    struct cudaDeviceProp prop;
    int ordinal = 0;
    snprintf(lt->gpu, sizeof lt->gpu, "unknown");
    if (cudaGetDevice(&ordinal) != cudaSuccess ||
        cudaGetDeviceProperties(&prop, ordinal) != cudaSuccess)
        return;
    snprintf(lt->gpu, sizeof lt->gpu, "%.100s, %d SMs", prop.name, prop.multiProcessorCount);
    lt->l2_bytes = (uint32_t)prop.l2CacheSize;
}

static void name_file(struct rp_cublaslt *lt, const char *cache_dir) {
    char gpu[sizeof lt->gpu];
    if (!cache_dir)
        return;
    snprintf(gpu, sizeof gpu, "%s", lt->gpu);
    for (char *c = gpu; *c; c++)
        if (!((*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z')))
            *c = '_';
    int len =
        snprintf(lt->file, sizeof lt->file, "%s/cublaslt-%zu-%s.txt", cache_dir, lt->version, gpu);
    if (len >= (int)sizeof lt->file)
        lt->file[0] = '\0';
}

int rp_cublaslt_open(const struct rp_cublaslt_config *config, struct rp_cublaslt **out,
                     struct rp_error *err) {
    static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    struct rp_cublaslt *lt = rp_calloc(1, sizeof *lt);
    *out = NULL;
    if (!lt)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    lt->library = rp_shared_library_open(sonames, RP_ARRAY_COUNT(sonames), accept, lt, lt->path,
                                         sizeof lt->path, err);
    if (!lt->library) {
        rp_free(lt);
        return RP_STATUS_NOT_FOUND;
    }
    lt->version = lt->api.cublasLtGetVersion();
    lt->workspace = config->workspace;
    lt->workspace_bytes = config->workspace_bytes;
    describe_gpu(lt);
    name_file(lt, config->cache_dir);
    cudaError_t error = cudaStreamCreateWithFlags(&lt->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        lt->stream = NULL;
        rp_cublaslt_close(lt);
        return rp_error_set(err, RP_STATUS_DEVICE, "cuBLASLt: no stream: %s",
                            cudaGetErrorString(error));
    }
    rp_cublaslt_file_read(lt);
    lt->stats.from_disk = lt->entry_count;
    *out = lt;
    return RP_OK;
}

static void destroy_objects(struct rp_cublaslt *lt, struct cublaslt_entry *entry) {
    if (entry->desc)
        lt->api.cublasLtMatmulDescDestroy(entry->desc);
    if (entry->weight)
        lt->api.cublasLtMatrixLayoutDestroy(entry->weight);
    if (entry->in)
        lt->api.cublasLtMatrixLayoutDestroy(entry->in);
    if (entry->out)
        lt->api.cublasLtMatrixLayoutDestroy(entry->out);
    entry->desc = NULL;
    entry->weight = entry->in = entry->out = NULL;
}

void rp_cublaslt_close(struct rp_cublaslt *lt) {
    if (!lt)
        return;
    rp_cublaslt_trim(lt);
    for (uint32_t i = 0; i < lt->entry_count; i++) {
        destroy_objects(lt, lt->entries[i]);
        rp_free(lt->entries[i]);
    }
    for (uint32_t i = 0; i < lt->desc_count; i++)
        lt->api.cublasLtMatmulDescDestroy(lt->descs[i]);
    rp_free(lt->entries);
    rp_free(lt->descs);
    if (lt->stream)
        (void)cudaStreamDestroy(lt->stream);
    lt->api.cublasLtDestroy(lt->handle);
    dlclose(lt->library);
    rp_free(lt);
}

void rp_cublaslt_describe(const struct rp_cublaslt *lt, char *out, size_t size) {
    snprintf(out, size, "cuBLASLt %zu.%zu.%zu, %s", lt->version / 10000, lt->version / 100 % 100,
             lt->version % 100, lt->path);
}

void rp_cublaslt_stats(const struct rp_cublaslt *lt, struct rp_cublaslt_stats *out) {
    *out = lt->stats;
    out->problems = lt->entry_count;
}

void rp_cublaslt_trim(struct rp_cublaslt *lt) {
    if (lt->scratch)
        (void)cudaFree(lt->scratch);
    lt->scratch = NULL;
    lt->scratch_bytes = 0;
}

struct cublaslt_entry *rp_cublaslt_find(struct rp_cublaslt *lt,
                                        const struct cublaslt_problem *problem) {
    for (uint32_t i = 0; i < lt->entry_count; i++)
        if (memcmp(&lt->entries[i]->problem, problem, sizeof *problem) == 0)
            return lt->entries[i];
    return NULL;
}

/* Grows the array by one element; NULL, with the array unchanged, when out of memory. */
static void *grown(void *array, size_t element, uint32_t count, uint32_t *capacity) {
    if (count < *capacity)
        return array;
    uint32_t wanted = *capacity ? *capacity * 2 : 64;
    void *larger = rp_realloc(array, wanted * element);
    if (larger)
        *capacity = wanted;
    return larger;
}

struct cublaslt_entry *rp_cublaslt_add(struct rp_cublaslt *lt, const struct cublaslt_entry *entry) {
    struct cublaslt_entry **entries =
        grown(lt->entries, sizeof *entries, lt->entry_count, &lt->entry_capacity);
    if (!entries)
        return NULL;
    lt->entries = entries;
    struct cublaslt_entry *copy = rp_alloc(sizeof *copy);
    if (!copy)
        return NULL;
    *copy = *entry;
    entries[lt->entry_count++] = copy;
    return copy;
}

static cudaDataType_t type_of(uint32_t dtype) {
    return dtype == RP_DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static bool make_desc(const struct rp_cublaslt *lt, const struct cublaslt_problem *problem,
                      const float *bias, cublasLtMatmulDesc_t *out) {
    const struct cublaslt_api *api = &lt->api;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bias_type = CUDA_R_32F;
    if (api->cublasLtMatmulDescCreate(out, CUBLAS_COMPUTE_32F, CUDA_R_32F))
        return false;
    if (api->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                            sizeof transpose))
        return false;
    if (!problem->bias)
        return true;
    return !api->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                sizeof epilogue) &&
           !api->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                &bias_type, sizeof bias_type) &&
           !api->cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias);
}

static bool make_objects(struct rp_cublaslt *lt, struct cublaslt_entry *entry, const float *bias) {
    const struct cublaslt_problem *p = &entry->problem;
    cudaDataType_t type = type_of(p->dtype);
    if (entry->desc)
        return true;
    if (make_desc(lt, p, bias, &entry->desc) &&
        !lt->api.cublasLtMatrixLayoutCreate(&entry->weight, type, p->k, p->n, p->k) &&
        !lt->api.cublasLtMatrixLayoutCreate(&entry->in, type, p->k, p->m, (int64_t)p->in_stride) &&
        !lt->api.cublasLtMatrixLayoutCreate(&entry->out, type_of(p->out_dtype), p->n, p->m,
                                            (int64_t)p->out_stride))
        return true;
    destroy_objects(lt, entry);
    return false;
}

/* An algorithm from the file may no longer be supported. */
static bool is_usable(struct rp_cublaslt *lt, const struct cublaslt_entry *entry) {
    cublasLtMatmulHeuristicResult_t result = {0};
    return lt->api.cublasLtMatmulAlgoCheck(lt->handle, entry->desc, entry->weight, entry->in,
                                           entry->out, entry->out, &entry->algorithm,
                                           &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= lt->workspace_bytes;
}

static uint32_t alignment_of(const struct rp_matmul_cuda *op) {
    uintptr_t bits = (uintptr_t)op->weight->data | (uintptr_t)op->in | (uintptr_t)op->out.data |
                     (uintptr_t)op->bias | 256u;
    return (uint32_t)(bits & -bits);
}

static struct cublaslt_problem problem_of(const struct rp_matmul_cuda *op) {
    struct cublaslt_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.m = op->rows.max_rows;
    problem.n = op->weight->rows;
    problem.k = op->weight->cols;
    problem.dtype = op->weight->dtype;
    problem.out_dtype = op->out.dtype;
    problem.bias = op->bias != NULL;
    problem.accumulate = op->accumulate;
    problem.alignment = alignment_of(op);
    problem.in_stride = op->in_stride;
    problem.out_stride = op->out.stride;
    return problem;
}

/* One descriptor per bias. */
static int make_bias_desc(struct rp_cublaslt *lt, struct cublaslt_args *args, const float *bias,
                          struct rp_error *err) {
    cublasLtMatmulDesc_t *descs =
        grown(lt->descs, sizeof *descs, lt->desc_count, &lt->desc_capacity);
    if (!descs)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    lt->descs = descs;
    descs[lt->desc_count] = NULL;
    bool made = make_desc(lt, &args->entry->problem, bias, &descs[lt->desc_count]);
    if (descs[lt->desc_count])
        args->desc = descs[lt->desc_count++];
    return made ? RP_OK : rp_error_set(err, RP_STATUS_DEVICE, "cuBLASLt: no description");
}

static bool is_supported(const struct rp_matmul_cuda *op) {
    enum rp_dtype in = op->weight->dtype, out = op->out.dtype;
    return (in == RP_DTYPE_BF16 && (out == RP_DTYPE_F32 || out == RP_DTYPE_BF16)) ||
           (in == RP_DTYPE_F32 && out == RP_DTYPE_F32);
}

int rp_cublaslt_plan(struct rp_cublaslt *lt, const struct rp_matmul_cuda *op,
                     struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                     struct rp_error *err) {
    struct cublaslt_entry fresh = {.problem = problem_of(op)};
    struct cublaslt_entry *entry = rp_cublaslt_find(lt, &fresh.problem);
    struct cublaslt_args *args = rp_arena_alloc(memory, sizeof *args);
    int status = RP_OK;
    if (!is_supported(op) || op->weight->layout != RP_LAYOUT_ROW_MAJOR)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "cuBLASLt: no GEMM of %s into %s",
                            rp_dtype_name(op->weight->dtype), rp_dtype_name(op->out.dtype));
    if (!args)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    bool planned = entry && entry->desc; /* before, in this process */
    if (!entry)
        entry = rp_cublaslt_add(lt, &fresh);
    if (!entry)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (!make_objects(lt, entry, op->bias))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "cuBLASLt: does not support this GEMM shape");
    *args = (struct cublaslt_args){lt, entry, entry->desc, op->weight->data, op->in, op->out.data};
    if (entry->problem.bias)
        status = make_bias_desc(lt, args, op->bias, err);
    if (status != RP_OK)
        return status;
    if (!planned && (entry->time_ns == 0 || !is_usable(lt, entry))) {
        entry->time_ns = 0;
        status = rp_cublaslt_search(lt, entry, args, err);
        if (status != RP_OK) {
            destroy_objects(lt, entry); /* the next lookup searches again */
            return status;
        }
        lt->stats.searched++;
        (void)rp_cublaslt_file_write(lt);
    }
    *out_launch = (struct rp_cuda_launch){"cublaslt", rp_cublaslt_run, args};
    return RP_OK;
}

cublasStatus_t rp_cublaslt_launch(const struct cublaslt_args *args, const void *weight,
                                  const void *in, const cublasLtMatmulAlgo_t *algorithm,
                                  cudaStream_t stream) {
    const struct rp_cublaslt *lt = args->lt;
    const struct cublaslt_entry *entry = args->entry;
    float alpha = 1.0f, beta = entry->problem.accumulate ? 1.0f : 0.0f;
    return lt->api.cublasLtMatmul(lt->handle, args->desc, &alpha, weight, entry->weight, in,
                                  entry->in, &beta, args->out, entry->out, args->out, entry->out,
                                  algorithm, lt->workspace, lt->workspace_bytes, stream);
}

int rp_cublaslt_run(const void *args_void, struct CUstream_st *stream) {
    const struct cublaslt_args *args = args_void;
    cublasStatus_t status =
        rp_cublaslt_launch(args, args->weight, args->in, &args->entry->algorithm, stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
}
