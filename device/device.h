/* device.h - the seam between the engine and what runs the operators.
 *
 * A backend is one table of functions (struct rp_backend): the CPU's is linked in
 * (backend/cpu/backend_cpu.c), CUDA's comes from a module. The engine knows only this table.
 *
 * Thread: the engine thread only, except wait_step's wake (any thread).
 * Memory: device memory comes from `alloc` before ready; nothing allocates after.
 * Errors: a negative status; RP_STATUS_DEVICE is sticky: nothing works on this device any more. */
#ifndef RP_DEVICE_DEVICE_H
#define RP_DEVICE_DEVICE_H

#include "device/counters.h"
#include "device/profiler.h"
#include "device/program.h"
#include "device/step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_BACKEND_ABI 14

struct rp_graph; /* a captured list of launches with fixed arguments */
struct rp_kv_layout;
struct rp_kv_geometry;

struct rp_device_config {
    uint32_t ranks;           /* of the group that it is for (backend/group.h); 0 and 1: none */
    uint32_t threads;         /* CPU: workers, of all ranks together; 0 = one per core */
    bool scalar_only;         /* CPU: only the scalar reference (tests) */
    uint32_t ordinal;         /* CUDA: GPU ordinal, of a group's first rank */
    bool ranks_share_device;  /* all ranks of a group on that one (tests) */
    bool launch_threads;      /* a group's, also without a driver's launch (tests) */
    bool no_peer_access;      /* CUDA: as if GPUs could not map each other's memory (tests) */
    bool fast_numerics;       /* CUDA: --numerics fast */
    bool no_dependent_launch; /* CUDA: plain edges between kernels (tests, comparisons) */
    bool nvtx;                /* CUDA: NVTX ranges around captures, launches and waits */
    /* CUDA: where searched algorithms and compiled masks are kept; NULL: nowhere */
    const char *cache_dir;
    double slow_share; /* CPU, tests: every replay is slowed down by this share of its own time */
    /* CPU: whoever waits for a step runs it, when it was below a millisecond the last time: handing
     * it to the stream's thread and back takes longer than that saves. Else every step is as
     * asynchronous as on a GPU. */
    bool short_steps_here;
};

struct rp_device_info {
    char name[96];         /* "AMD EPYC, 2 threads, avx512_bf16" */
    char kernels[32];      /* "avx512_bf16", "avx2", "scalar" */
    uint64_t memory_bytes; /* what may be allocated; of a GPU: its whole memory */
    uint32_t page_tokens;  /* preferred KV page */
    bool separate_memory;  /* device memory cannot be read by the host */
    uint32_t ranks;        /* of a group, whose memory_bytes are of one rank; else 1 */
    /* Prompt and decode kernels give different bits: pages that decode wrote may not be reused for
     * prompts where answers must not depend on the batch. */
    bool decode_differs;
    char pci_bus_id[32]; /* of a GPU: "0000:1b:00.0"; else "" */
};

/* What the device's memory looks like now. */
struct rp_device_memory {
    uint64_t total_bytes, free_bytes; /* as the driver says; the CPU: what may be allocated */
    uint64_t allocated_bytes;         /* by this backend, pools' committed bytes included */
    uint64_t allocation_count;        /* since open: must not rise after ready */
};

/* Graph of one bucket, as the device sees it. */
struct rp_graph_info {
    uint32_t nodes, kernels;
    size_t bytes; /* host: arguments and lists; what the device adds is seen in its free memory */
};

/* What the symbols of a program mean: the same for all buckets but the tensor offsets. */
struct rp_bindings {
    unsigned char *arena;
    const size_t *tensor_offsets; /* bytes into the arena, one per tensor of the program */
    struct rp_step_view step;
    const struct rp_kv_layout *kv; /* copied */
    uint32_t stamp_base;           /* the first launch's index among the step's stamps */
    /* Where each layer's pages are; base is that of kv. NULL: layer i has place i in pages of one
     * group. */
    const struct rp_kv_geometry *geometry;
};

struct rp_lower_options {
    bool no_fusion;
    bool explain; /* rp_launch_info.why_not is filled in */
};

#define RP_LAUNCH_OPS_MAX 6

/* One launch of a lowered program, for inspect, /debug and costs. */
struct rp_launch_info {
    char name[96];      /* names of the operators it runs, joined with '+' */
    const char *kernel; /* name of the kernel */
    uint32_t op_count,
        ops[RP_LAUNCH_OPS_MAX]; /* indexes into the program, rising; not always adjacent */
    bool prepares;              /* the next launch runs the same operators, and they count there */
    const char *why_not; /* why these operators are not fused further; NULL: nothing to say */
};

/* Bytes and operations of one operator in one bucket, from the shapes alone. Attention counts K and
 * V of `kv_tokens` tokens per row. */
struct rp_cost {
    uint64_t bytes_read, bytes_written, flops;
};

enum rp_device_fault {
    RP_DEVICE_FAULT_ILLEGAL_ADDRESS,
    RP_DEVICE_FAULT_TRAP,
    RP_DEVICE_FAULT_HANG
};

enum rp_memory_kind {
    RP_MEMORY_DEVICE,
    RP_MEMORY_HOST,     /* visible to both, and to all ranks, at one address: rings */
    RP_MEMORY_HOST_EACH /* the same, but each rank of a group has its own: swapped pages */
};

struct rp_backend {
    uint32_t abi; /* RP_BACKEND_ABI */
    const char *name;

    int (*open)(const struct rp_device_config *config, struct rp_device **out,
                struct rp_error *err);
    void (*close)(struct rp_device *device); /* waits for all work */
    void (*info)(struct rp_device *device, struct rp_device_info *out);

    /* 64-byte aligned, contents undefined; NULL when memory is out. Another thread may allocate
     * host memory while matrices are prepared or reserved. */
    void *(*alloc)(struct rp_device *device, size_t bytes, enum rp_memory_kind kind);
    /* Waits for the queued work first, as do matrix_release and graph_destroy: it may still use
     * the memory. */
    void (*free)(struct rp_device *device, void *ptr, enum rp_memory_kind kind);
    /* All asynchronous, in stream order with launches. */
    int (*copy)(struct rp_device *device, void *to, const void *from, size_t bytes);
    int (*fill)(struct rp_device *device, void *to, int byte, size_t bytes);
    int (*synchronize)(struct rp_device *device);

    /* A range of addresses whose memory comes later: the KV pool, sized after the graphs are
     * captured. NULL: no addresses. commit: [base, base + bytes) is usable from now on; it only
     * grows; bytes are rounded up to the device's granule. */
    void *(*reserve)(struct rp_device *device, size_t bytes);
    int (*commit)(struct rp_device *device, void *base, size_t bytes);
    void (*release)(struct rp_device *device, void *base);
    size_t (*granule)(struct rp_device *device); /* of commit; 1 where nothing is rounded */
    void (*memory)(struct rp_device *device, struct rp_device_memory *out);

    /* Repacks *matrix (row-major, host memory) for this device; takes over its data. */
    int (*matrix_prepare)(struct rp_device *device, struct rp_matrix *matrix, struct rp_error *err);
    /* NULL: the host quantizes. Or: makes *matrix (INT8 or FP8, a scale per channel; data and
     * scales NULL) on the device, of `values` (its rows, F32, F16 or BF16, row-major, host memory,
     * the caller's): columns [col, col + matrix->cols) of each row, with the scale of the whole row
     * and the bits of rp_quantize_row. FORMAT: a row holds a NaN or an infinity. */
    int (*matrix_quantize)(struct rp_device *device, const struct rp_matrix *values, uint32_t col,
                           struct rp_matrix *matrix, struct rp_error *err);
    /* NULL, or with matrix_fill: graphs can be captured, and replayed, before the weights are read.
     * Gives *matrix (row-major, not BLOCKS; data and scales NULL) the format and the memory that
     * matrix_prepare would give it, with zeros in stream order; matrix_release frees it. */
    int (*matrix_reserve)(struct rp_device *device, struct rp_matrix *matrix, struct rp_error *err);
    /* Writes values (row-major, host memory, the caller's) to a reserved matrix once its zeros are
     * there: of its own type, with its scales, or, where matrix_quantize is not NULL, values that
     * it would quantize. Done when it returns. One thread may call it while another captures and
     * launches graphs and allocates: it allocates nothing, and stays off the stream of launches. */
    int (*matrix_fill)(struct rp_device *device, const struct rp_matrix *values,
                       const struct rp_matrix *matrix, struct rp_error *err);
    /* NULL, or: frees what the four above keep for the next matrix. After it, launches see all that
     * was filled. */
    void (*matrices_end)(struct rp_device *device);
    /* matrix_prepare for a matrix of which only the shape is known: random values, uniform in
     * +-scale, the same for the same seed (benchmarks). Of 8 bits (with scales per channel): what
     * bf16 would hold, quantized as quant/rounding/quantize.h does it. */
    int (*matrix_random)(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                         float scale, struct rp_error *err);
    void (*matrix_release)(struct rp_device *device, struct rp_matrix *matrix);

    /* Whether there is a kernel for the operator. NULL: for every one. */
    bool (*runs)(enum rp_op_kind kind);
    /* Lowers ops [begin, end) for the bucket and captures them. The program may be freed after.
     * eager: keep the list uncaptured; launching it then walks the list (--enforce-eager). */
    int (*capture)(struct rp_device *device, const struct rp_program *program, uint32_t begin,
                   uint32_t end, const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                   const struct rp_lower_options *options, bool eager, struct rp_graph **out,
                   struct rp_error *err);
    void (*graph_destroy)(struct rp_device *device, struct rp_graph *graph);
    uint32_t (*graph_launch_count)(const struct rp_graph *graph);
    void (*graph_launch_info)(const struct rp_graph *graph, uint32_t index,
                              struct rp_launch_info *out);
    void (*graph_info)(const struct rp_graph *graph, struct rp_graph_info *out);

    /* Asynchronous: runs after everything submitted before. */
    int (*launch)(struct rp_device *device, struct rp_graph *graph);

    /* Returns RP_OK once results[step % entries] of the step ring is complete, RP_STATUS_NOT_FOUND
     * when the deadline (rp_clock_ns; 0 = only look) passed first. */
    int (*wait_step)(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                     uint64_t deadline_ns);
    /* Returns RP_OK once everything launched so far has run, RP_STATUS_NOT_FOUND when the deadline
     * (rp_clock_ns) passed first. It does not sleep longer than that, but a CPU device may run a
     * short job to its end on the calling thread. */
    int (*wait_idle)(struct rp_device *device, uint64_t deadline_ns);
    /* A count that changes while the device is at work, within a step too: one that stands still
     * for long while a step is awaited means that the device hangs. */
    uint64_t (*progress)(struct rp_device *device);
    /* Device ns spent in the last completed replay; 0 when unknown. */
    uint64_t (*last_replay_ns)(struct rp_device *device);
    /* Text of the error that made a call return RP_STATUS_DEVICE; "" when there was none. Any
     * thread. */
    const char *(*last_error)(struct rp_device *device);
    /* Tests: makes the device fail or hang at this point of the stream. RP_STATUS_UNSUPPORTED where
     * it cannot. */
    int (*inject_fault)(struct rp_device *device, enum rp_device_fault fault);
    /* NULL, or: what `reprise doctor` shows of driver and GPUs, as a JSON object, without opening
     * a device: {"driver": TEXT, "runtime": TEXT, "devices": [{"name": TEXT, "memory_bytes": N,
     * "compute_capability": TEXT}]}. The bytes written, without the NUL, or a negative status. */
    int (*describe)(char *json, size_t size);
    /* NULL, or: asynchronously reads [data, data + bytes) of device
     * memory once, as fast as the device can, and forgets it (bandwidth). */
    int (*read)(struct rp_device *device, const void *data, size_t bytes);
    /* Groups (backend/group.h). NULL: this backend has none. */
    /* Makes opened devices the ranks of a group, in this order, before anything is captured:
     * operators that exchange data do so from now on. A rank that fails makes the others fail. */
    int (*join)(struct rp_device *const *ranks, uint32_t count, struct rp_error *err);
    /* Memory for exchanges in which each rank gives `bytes` (rp_program_exchange_bytes): before
     * the capture of graphs that need it. Waits for the queued work where it grows. */
    int (*reserve_exchange)(struct rp_device *const *ranks, uint32_t count, size_t bytes,
                            struct rp_error *err);
    /* A group's alone, else NULL: what rank `rank` has at this address of the group's memory. */
    void *(*rank_address)(struct rp_device *group, uint32_t rank, const void *address);
    const struct rp_profiler *profiler;        /* NULL: node stamps are all there is */
    const struct rp_device_counting *counting; /* NULL: it has no counters of its own */
};

/* backend/cpu/backend_cpu.c */
const struct rp_backend *rp_backend_cpu(void);

/* The one symbol that the CUDA module exports (backend/cuda/backend_cuda.c). */
const struct rp_backend *rp_backend_cuda_table(void);

#ifdef __cplusplus
}
#endif
#endif
