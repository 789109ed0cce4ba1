/* cublaslt_cuda.h - GEMMs by NVIDIA's cuBLASLt, for --numerics fast and for comparison.
 *
 * out(m, n) = in(m, k) * weight(n, k)^T [+ bias] [+ out]; in and weight bf16 or f32, sums f32
 * (never TF32), out f32 or bf16. The order of the sums depends on m: the reduction contract of
 * matmul_cuda.h does not hold.
 *
 * The library is opened by soname when the program runs; without it rp_cublaslt_open says why, and
 * GEMMs go to our own kernels. For each problem (m, n, k, types, strides, alignment) up to 16
 * algorithms are timed once, with weights that come from memory and not from L2; the fastest is
 * cached in memory and, if a folder is given, on disk: cublaslt-<version>-<GPU>.txt, written whole
 * and renamed. A damaged file, or an algorithm that the library rejects, is ignored and replaced.
 *
 * Thread: the engine's. Planning may run kernels and allocate device memory for the search: call it
 * before anything is captured or in flight on the device. Launching follows cuda_launch.h. */
#ifndef RP_QUANT_CUBLASLT_CUDA_H
#define RP_QUANT_CUBLASLT_CUDA_H

#include "quant/matmul_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_CUBLASLT_WORKSPACE_BYTES ((size_t)32 << 20)

struct rp_cublaslt;

struct rp_cublaslt_config {
    const char *cache_dir; /* created when missing; NULL: algorithms are cached only in memory */
    void *workspace;       /* on the device, 256-byte aligned, shared by all GEMMs; outlives all */
    size_t workspace_bytes;
};

struct rp_cublaslt_stats {
    uint32_t problems;  /* known in memory */
    uint32_t from_disk; /* read from the file at open */
    uint32_t searched;  /* timed since open */
};

/* RP_STATUS_NOT_FOUND, with the reason in err, when no usable library is found. */
int rp_cublaslt_open(const struct rp_cublaslt_config *config, struct rp_cublaslt **out,
                     struct rp_error *err);
/* No launch of a plan may be replayed afterwards. */
void rp_cublaslt_close(struct rp_cublaslt *lt);
/* "cuBLASLt 13.1.0, /usr/local/cuda/lib64/libcublasLt.so.13" */
void rp_cublaslt_describe(const struct rp_cublaslt *lt, char *out, size_t size);
void rp_cublaslt_stats(const struct rp_cublaslt *lt, struct rp_cublaslt_stats *out);

/* Fills the launch (args are allocated from memory and point to objects that live until close). All
 * op->rows.max_rows rows are computed, whatever the live count. A search overwrites op->out.
 * RP_STATUS_UNSUPPORTED when the library has no algorithm for it. */
int rp_cublaslt_plan(struct rp_cublaslt *lt, const struct rp_matmul_cuda *op,
                     struct rp_arena *memory, struct rp_cuda_launch *out_launch,
                     struct rp_error *err);
/* Frees device memory allocated by searches; a later search allocates it again. */
void rp_cublaslt_trim(struct rp_cublaslt *lt);

int rp_cublaslt_run(const void *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
