/* cublaslt_internal_cuda.h - shared by planning, search and the file on disk. */
#ifndef RP_QUANT_CUBLASLT_INTERNAL_CUDA_H
#define RP_QUANT_CUBLASLT_INTERNAL_CUDA_H

#include "base/buffer.h"
#include "quant/cublaslt/cublaslt_cuda.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#define RP_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

struct cublaslt_api {
#define X(name) __typeof__(&name) name;
    RP_CUBLASLT_FUNCTIONS(X)
#undef X
};

/* The key of an algorithm. */
struct cublaslt_problem {
    uint32_t m, n, k;
    uint32_t dtype, out_dtype; /* enum rp_dtype */
    uint32_t bias, accumulate; /* 0 or 1 */
    uint32_t alignment;        /* bytes that every pointer is a multiple of: 1 to 256 */
    uint64_t in_stride, out_stride;
};

/* Fields after the problem are zero until it is first planned in this process. */
struct cublaslt_entry {
    struct cublaslt_problem problem;
    cublasLtMatmulAlgo_t algorithm;
    uint64_t time_ns; /* of the best, as it was searched */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t weight, in, out;
};

/* A GEMM with a known bias: the address of the bias is part of cuBLASLt's descriptor. */
struct cublaslt_args {
    const struct rp_cublaslt *lt;
    const struct cublaslt_entry *entry;
    cublasLtMatmulDesc_t desc;
    const void *weight, *in;
    void *out;
};

struct rp_cublaslt {
    struct cublaslt_api api;
    void *library;
    char path[256], gpu[128], file[512]; /* file: "" when nothing is stored on disk */
    size_t version;
    uint32_t l2_bytes;
    cublasLtHandle_t handle;
    cudaStream_t stream; /* of the search */
    void *workspace;
    size_t workspace_bytes;
    struct cublaslt_entry **entries; /* allocated separately, since plans point to them */
    uint32_t entry_count, entry_capacity;
    cublasLtMatmulDesc_t *descs; /* of plans with a bias */
    uint32_t desc_count, desc_capacity;
    unsigned char *scratch; /* of the search: inputs, then copies of weights */
    size_t scratch_bytes;
    struct rp_cublaslt_stats stats;
};

/* Looks up the entry of this problem; NULL when there is none. */
struct cublaslt_entry *rp_cublaslt_find(struct rp_cublaslt *lt,
                                        const struct cublaslt_problem *problem);
/* Copies the problem and the algorithm; NULL when memory is out. */
struct cublaslt_entry *rp_cublaslt_add(struct rp_cublaslt *lt, const struct cublaslt_entry *entry);

/* One launch of args with this algorithm. */
cublasStatus_t rp_cublaslt_launch(const struct cublaslt_args *args, const void *weight,
                                  const void *in, const cublasLtMatmulAlgo_t *algorithm,
                                  cudaStream_t stream);

/* Times the algorithms that the library proposes and fills args->entry's algorithm and time.
 * args->entry's desc and layouts are made. */
int rp_cublaslt_search(struct rp_cublaslt *lt, struct cublaslt_entry *entry,
                       const struct cublaslt_args *args, struct rp_error *err);

/* Reads lt->file into entries; a missing or damaged file, or one for another library or GPU, adds
 * nothing. */
void rp_cublaslt_file_read(struct rp_cublaslt *lt);
/* Writes all entries; false when that failed (nothing is lost but the time of the next search). */
bool rp_cublaslt_file_write(const struct rp_cublaslt *lt);

#endif
