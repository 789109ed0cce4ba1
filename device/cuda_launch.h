/* cuda_launch.h - what a CUDA kernel looks like to the lowering: a name, a function, frozen
 * arguments.
 *
 * Every launcher has the form `int run(const void *args, stream)` and returns a cudaError_t (0:
 * fine). It only launches: no allocation, no synchronization, nothing that a stream capture
 * forbids. The same function runs while a graph is captured and, eagerly, without one: so both give
 * equal bits.
 *
 * Rows: a kernel's grid is made for `max_rows` of its bucket; it reads the live counts on the
 * device and skips dead rows and empty tiles. Rows past the live count may hold anything, NaN too.
 *
 * Dependent launch (PDL): every kernel starts with rp_pdl_begin() (device/cuda_kernel.cuh) in every
 * block: it lets the next kernel start early, then waits until everything before is complete and
 * visible. Before it only constants may be read: weights, tables, the arguments. GEMMs wait
 * first and let the next one start then (quant/matmul_cuda.h); so a kernel after a GEMM may
 * read before its wait what was complete when that GEMM began: its launcher must be told
 * (behind_product).
 *
 * Our GEMMs (quant/matmul_*_cuda.cu) call rp_pdl_wait first and rp_pdl_trigger afterwards. So a
 * kernel that follows one directly may read before its own wait whatever was complete when the
 * GEMM began: all that the kernels before the GEMM have written, with loads that do not go
 * through L1 (__ldcg). Nobody promises this of other kernels, or of cuBLASLt's.
 *
 * Plain C, no CUDA header: tests and the lowering include it from C. */
#ifndef RP_DEVICE_CUDA_LAUNCH_H
#define RP_DEVICE_CUDA_LAUNCH_H

#include "device/ops.h"

struct CUstream_st; /* cudaStream_t points to it */

typedef int (*rp_cuda_run)(const void *args, struct CUstream_st *stream);

struct rp_cuda_launch {
    const char *kernel; /* static text: "matmul_stream_64" */
    rp_cuda_run run;
    const void *args; /* outlives the launch; device pointers inside */
};

/* GPU limits needed to plan a launch. */
struct rp_cuda_limits {
    uint32_t sm_count;
    uint32_t compute_capability; /* 90 for 9.0 */
    uint32_t shared_bytes_block; /* limit of dynamic shared memory per block */
    uint32_t l2_bytes;
    uint64_t memory_bytes; /* of the GPU */
    bool dependent_launch; /* launch with the programmatic serialization attribute */
    bool fast_numerics;    /* --numerics fast: cuBLASLt and the best tile per size */
};

/* Kernels for sm_90a run on 9.0 alone: neither before nor after. */
static inline bool rp_cuda_has_hopper(const struct rp_cuda_limits *limits) {
    return limits->compute_capability == 90;
}

/* Where a launch stores when it began and ended, if the step in work says so
 * (device/cuda_stamp.cuh). All zeros: nowhere. The kernels of one launch share it. */
struct rp_cuda_stamp {
    struct rp_node_stamp *slot;
    uint64_t *wait;        /* rp_step_view.stamp_waits */
    const uint32_t *flags; /* of the step in work: rp_packet_flags */
};

/* The stamp of the step's node `index`; all zeros when there is no room. */
static inline struct rp_cuda_stamp rp_cuda_stamp_at(const struct rp_step_view *step,
                                                    uint32_t index) {
    bool has = step->stamps && index < step->config.stamp_capacity;
    struct rp_cuda_stamp stamp = {has ? &step->stamps[index] : NULL,
                                  has ? &step->stamp_waits[index] : NULL,
                                  has ? &step->counts->flags : NULL};
    return stamp;
}

/* The stamp of the next launch. */
static inline struct rp_cuda_stamp rp_cuda_stamp_next(struct rp_cuda_stamp stamp) {
    if (stamp.slot) {
        stamp.slot++;
        stamp.wait++;
    }
    return stamp;
}

/* Which rows an operator has, and how many of them its bucket holds. */
struct rp_cuda_rows {
    struct rp_step_view step;
    enum rp_rows rows;
    uint32_t max_rows;
    bool plain_edges; /* programmatic dependent launch is unsupported or disabled */
    struct rp_cuda_stamp stamp;
};

/* A GEMM that is not summed up yet: its K segments, in order, each (max_rows, row_stride) f32.
 * value(row, col) = ((data[0] + data[1]) + ...)(row, col) + bias[col]. count 0: there is none. */
struct rp_cuda_partials {
    const float *data;
    const float *bias; /* NULL: none */
    uint32_t count;
    size_t split_stride, row_stride; /* elements */
};

#endif
