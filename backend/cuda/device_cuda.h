/* device_cuda.h - what the files of the CUDA backend share: the device and its captured graphs.
 * Thread: the engine's; at the start another one is in matrix_fill, in upload_cuda.c. */
#ifndef RP_BACKEND_DEVICE_CUDA_H
#define RP_BACKEND_DEVICE_CUDA_H

#include "attention/attention_cuda.h"
#include "backend/cuda/weight_rows_cuda.h"
#include "base/memory.h"
#include "device/cuda_launch.h"
#include "device/device.h"
#include "device/exchange_cuda.h"
#include "quant/cublaslt/cublaslt_cuda.h"
#include "quant/matrix.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>

/* The driver's calls that the runtime has no name for, found through it: nothing links libcuda. */
struct rp_cuda_driver {
    CUresult (*address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
};

/* A range of addresses that is committed piece by piece. */
#define RP_CUDA_RANGES_MAX 4
#define RP_CUDA_PIECES_MAX 8
struct rp_cuda_range {
    unsigned char *base;
    size_t reserved, committed;
    struct {
        CUmemGenericAllocationHandle handle;
        size_t bytes;
    } pieces[RP_CUDA_PIECES_MAX];
    uint32_t piece_count;
};

/* A copy on the device of a host array that operators read: norm weights, biases, rope tables. */
struct rp_cuda_constant {
    const void *host;
    size_t bytes;
    /* hash over a few of its bytes: another array at a reused address is noticed */
    uint64_t sample;
    void *device;
    struct rp_cuda_constant *next;
};

/* A block that kernels scribble in. It never moves: earlier graphs keep theirs. */
struct rp_cuda_scratch {
    unsigned char *data;
    size_t bytes;
    uint64_t layout;
    struct rp_cuda_scratch *older;
};

enum rp_cuda_scratch_kind {
    RP_CUDA_SCRATCH_MATMUL,
    RP_CUDA_SCRATCH_MATMUL_SIDE, /* of a side branch: its kernels run beside others */
    RP_CUDA_SCRATCH_CUBLASLT,
    RP_CUDA_SCRATCH_ATTENTION,
    RP_CUDA_SCRATCH_SAMPLE,
    RP_CUDA_SCRATCH_QUANTIZED, /* rows of 8-bit GEMMs */
    RP_CUDA_SCRATCH_QUANTIZED_SIDE,
    RP_CUDA_SCRATCH_ORDERED, /* rows in the order of a matrix's columns */
    RP_CUDA_SCRATCH_WEIGHTS, /* a matrix of blocks in bf16, for GEMMs of many rows */
    RP_CUDA_SCRATCH_WEIGHTS_SIDE,
    RP_CUDA_SCRATCH_EXPERTS,
    RP_CUDA_SCRATCH_EXPERT_ROWS, /* of their 8-bit GEMMs */
    RP_CUDA_SCRATCH_COUNT
};

struct rp_device {
    int ordinal;
    cudaStream_t stream;
    cudaStream_t side; /* captures side branches; forked and joined order it with `stream` */
    cudaEvent_t forked, joined;
    char name[64];
    struct rp_cuda_limits limits;
    struct rp_cuda_driver driver;
    size_t granule;
    uint64_t allocated_bytes, allocation_count;
    struct rp_cuda_allocation *allocations; /* for free() */
    struct rp_cuda_host_block *host_blocks; /* large ones: ours, registered */
    struct rp_cuda_range ranges[RP_CUDA_RANGES_MAX];
    struct rp_cuda_constant *constants;
    struct rp_cuda_scratch *scratch[RP_CUDA_SCRATCH_COUNT];
    struct rp_cuda_upload *upload; /* while weights are loaded, or NULL */
    char *cache_dir;               /* NULL: nothing is kept on disk */
    struct rp_nvrtc *nvrtc;        /* since the first mask program */
    struct rp_cuda_mask_program *mask_programs;
    struct rp_cublaslt *cublaslt;      /* --numerics fast, when the library was found */
    char cublaslt_text[64];            /* its version, or why there is none; "" under invariant */
    struct rp_step_view watched;       /* of the last capture: whose results tell of progress */
    struct rp_profile *profile;        /* under way, or NULL */
    struct rp_cuda_group *group;       /* the ranks that this one exchanges data with, or NULL */
    struct rp_cuda_exchange *exchange; /* the group as this rank's kernels see it, or NULL */
    bool no_peers;                     /* of device.h's configuration: no_peer_access */
    uint64_t usual_wait_ns;            /* mean of the last waits for a step */
    bool nvtx;
    char error[256];
    atomic_bool failed; /* error is written before */
};

struct rp_cuda_node {
    struct rp_cuda_launch launch;
    enum rp_branch branch; /* RP_BRANCH_NONE throughout where the bucket has none */
    uint32_t first_kernel; /* of the captured graph */
    struct rp_launch_info info;
};

struct rp_graph {
    struct rp_arena memory; /* arguments and the list */
    struct rp_cuda_node *nodes;
    uint32_t node_count;
    cudaGraphExec_t exec; /* NULL: eager */
    uint32_t captured_nodes, captured_kernels;
    char name[48]; /* of NVTX ranges: "forward, decode 8" */
};

/* Before calls of the runtime: a thread has one GPU at a time, and serves all ranks of a group. */
static inline void rp_cuda_select(const struct rp_device *device) {
    (void)cudaSetDevice(device->ordinal);
}

/* RP_OK, RP_STATUS_NO_MEMORY or RP_STATUS_DEVICE; keeps the text of the first error. Any thread. */
int rp_cuda_check(struct rp_device *device, cudaError_t error, const char *what);
#define RP_CUDA_TRY(device, call) rp_cuda_check((device), (call), #call)

/* --- memory_cuda.c */
int rp_cuda_memory_open(struct rp_device *device, struct rp_error *err);
void rp_cuda_memory_close(struct rp_device *device);
void *rp_cuda_alloc(struct rp_device *device, size_t bytes, enum rp_memory_kind kind);
void rp_cuda_free(struct rp_device *device, void *ptr, enum rp_memory_kind kind);
void *rp_cuda_reserve(struct rp_device *device, size_t bytes);
int rp_cuda_commit(struct rp_device *device, void *base, size_t bytes);
void rp_cuda_release(struct rp_device *device, void *base);
void rp_cuda_memory(struct rp_device *device, struct rp_device_memory *out);
/* Device copy of a host array, made once. NULL: memory is out. */
void *rp_cuda_constant(struct rp_device *device, const void *host, size_t bytes);
/* At least `bytes`, zeroed when made, for all who say the same `layout`: kernels leave their
 * counters at zero, but where one layout has its counters another one has sums. NULL: memory is
 * out. */
unsigned char *rp_cuda_scratch(struct rp_device *device, enum rp_cuda_scratch_kind kind,
                               size_t bytes, uint64_t layout);
/* Device memory for the matrix's bytes. */
int rp_cuda_matrix_block(struct rp_device *device, const struct rp_matrix *matrix, void **out,
                         struct rp_error *err);
/* Matrices of 8 bits: their scales go to the GPU, too; one per tensor becomes one per output. */
int rp_cuda_matrix_prepare(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err);
int rp_cuda_matrix_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                          float scale, struct rp_error *err);
void rp_cuda_matrix_release(struct rp_device *device, struct rp_matrix *matrix);

int rp_cuda_matrix_quantize(struct rp_device *device, const struct rp_matrix *values, uint32_t col,
                            struct rp_matrix *matrix, struct rp_error *err);
int rp_cuda_matrix_reserve(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err);
int rp_cuda_matrix_fill(struct rp_device *device, const struct rp_matrix *values,
                        const struct rp_matrix *matrix, struct rp_error *err);

/* --- host_memory_cuda.c: pinned, mapped, at one address for both. NULL: memory is out */
void *rp_cuda_host_alloc(struct rp_device *device, size_t bytes);
void rp_cuda_host_free(struct rp_device *device, void *ptr);

/* --- blocks_cuda.c: matrix_prepare and matrix_random of BLOCKS */
int rp_cuda_blocks_prepare(struct rp_device *device, struct rp_matrix *matrix,
                           struct rp_error *err);
int rp_cuda_blocks_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                          float scale, struct rp_error *err);

/* --- upload_cuda.c */
/* Allocates what the two below keep until rp_cuda_upload_end: 32 MiB of pinned memory; with rows
 * also 16 MiB of device memory, which allocated_bytes does not count. From then on they allocate
 * nothing and stay off the device's stream, so that another thread may capture on it. RP_OK,
 * RP_STATUS_NO_MEMORY or RP_STATUS_DEVICE. */
int rp_cuda_upload_begin(struct rp_device *device, bool rows);
/* Copies pageable host memory to the GPU; done when it returns. RP_OK or RP_STATUS_DEVICE. A large
 * copy begins the upload by itself. */
int rp_cuda_upload(struct rp_device *device, void *to, const void *from, size_t bytes);
/* `count` rows from `from`, of up to 4 MiB each, which the GPU quantizes; done when it returns.
 * *out_bad: a row holds a NaN or an infinity. RP_OK, RP_STATUS_DEVICE or NO_MEMORY. Begins the
 * upload by itself. */
int rp_cuda_upload_rows(struct rp_device *device, const struct rp_cuda_weight_rows *rows,
                        const void *from, uint32_t count, bool *out_bad);
/* A small copy; done when it returns. */
int rp_cuda_copy_in(struct rp_device *device, void *to, const void *from, size_t bytes);
void rp_cuda_upload_end(struct rp_device *device);

/* --- lower_cuda.c */
int rp_cuda_lower(struct rp_device *device, struct rp_graph *graph,
                  const struct rp_program *program, uint32_t begin, uint32_t end,
                  const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                  const struct rp_lower_options *options, struct rp_error *err);

/* --- masks_cuda.c */
/* Adds the mask class of an attention operator to those of config, whose sizes are set, unless it
 * is there. A program's kernels are made once and kept until the device closes: seconds, where the
 * disk does not have them. */
int rp_cuda_mask_class(struct rp_device *device, struct rp_attention_cuda_config *config,
                       const struct rp_op *op, struct rp_error *err);
void rp_cuda_mask_programs_close(struct rp_device *device);

/* --- describe_cuda.c */
int rp_cuda_describe(char *json, size_t size);

/* --- nvtx_cuda.c: where device->nvtx says so. text is copied. */
void rp_cuda_nvtx_push(const char *text);
void rp_cuda_nvtx_pop(void);

/* --- cupti_library_cuda.c: any thread */
/* NULL: there is none. */
void *rp_cuda_cupti_library(struct rp_error *err);
/* Loads the other libraries that PM sampling needs. */
void rp_cuda_cupti_load_host(void *library);

/* --- fusions_cuda.c: rp_backend.runs */
bool rp_cuda_runs(enum rp_op_kind kind);

/* --- exchange_cuda.c: rp_backend.join and reserve_exchange */
int rp_cuda_join(struct rp_device *const *ranks, uint32_t count, struct rp_error *err);
int rp_cuda_reserve_exchange(struct rp_device *const *ranks, uint32_t count, size_t bytes,
                             struct rp_error *err);
/* False when another rank has failed: then this one's kernels no longer wait for it. */
bool rp_cuda_peers_work(struct rp_device *device);
/* Ends the waits of all ranks' kernels, now and later; legal without a group. */
void rp_cuda_group_break(struct rp_device *device);
void rp_cuda_group_leave(struct rp_device *device);

/* --- counters_cuda.c */
extern const struct rp_device_counting rp_cuda_counting;

/* --- profile_cuda.c */
extern const struct rp_profiler rp_cuda_profiler;
/* Tells an active profile that the graph is launched. */
void rp_cuda_profile_launch(struct rp_profile *profile, const struct rp_graph *graph);

/* --- support_cuda.cu: cudaError_t as int */
int rp_cuda_fill_random(void *data, enum rp_dtype dtype, size_t count, uint64_t seed, float scale,
                        struct CUstream_st *stream);
/* The bf16 values that a matrix without 8 bits would have, quantized row by row as
 * rp_quantize_weights does it. */
int rp_cuda_fill_random_quantized(void *quantized, float *scales, enum rp_dtype dtype,
                                  uint32_t rows, uint32_t cols, uint64_t seed, float scale,
                                  struct CUstream_st *stream);
int rp_cuda_start_fault(enum rp_device_fault fault, struct CUstream_st *stream);

#endif
