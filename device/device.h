/* device.h - the seam between the engine and what runs the operators.
 *
 * A backend is one table of functions (struct rp_backend): the CPU's is linked in
 * (backend/backend_cpu.c), CUDA's comes from a module. The engine knows only this table.
 *
 * Thread: the engine thread only, except wait_step's wake (any thread).
 * Memory: device memory comes from `alloc` before ready; nothing allocates after.
 * Errors: a negative status; RP_STATUS_DEVICE is sticky: nothing works on this device any more. */
#ifndef RP_DEVICE_DEVICE_H
#define RP_DEVICE_DEVICE_H

#include "device/program.h"
#include "device/step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_BACKEND_ABI 1

struct rp_device;
struct rp_graph; /* a captured list of launches with fixed arguments */
struct rp_kv_layout;

struct rp_device_config {
    uint32_t threads; /* CPU: workers; 0 = one per core */
    bool scalar_only; /* CPU: only the scalar truth (tests) */
};

struct rp_device_info {
    char name[96];         /* "AMD EPYC, 2 threads, avx512_bf16" */
    char kernels[32];      /* "avx512_bf16", "avx2", "scalar" */
    uint64_t memory_bytes; /* what may be allocated */
    uint32_t page_tokens;  /* preferred KV page */
};

/* What the symbols of a program mean: the same for all buckets but the tensor offsets. */
struct rp_bindings {
    unsigned char *arena;
    const size_t *tensor_offsets; /* bytes into the arena, one per tensor of the program */
    struct rp_step_view step;
    const struct rp_kv_layout *kv; /* copied */
};

struct rp_lower_options {
    bool no_fusion;
};

/* One launch of a lowered program, for inspect, /debug and costs. */
struct rp_launch_info {
    char name[96];      /* names of the operators it runs, joined with '+' */
    const char *kernel; /* name of the kernel */
    uint32_t op_begin, op_count;
};

/* Bytes and operations of one operator in one bucket, from the shapes alone. Attention counts K and V
 * of `kv_tokens` tokens per row. */
struct rp_cost {
    uint64_t bytes_read, bytes_written, flops;
};

enum rp_memory_kind {
    RP_MEMORY_DEVICE,
    RP_MEMORY_HOST /* visible to both: rings, swapped pages */
};

struct rp_backend {
    uint32_t abi; /* RP_BACKEND_ABI */
    const char *name;

    int (*open)(const struct rp_device_config *config, struct rp_device **out,
                struct rp_error *err);
    void (*close)(struct rp_device *device); /* waits for all work */
    void (*info)(struct rp_device *device, struct rp_device_info *out);

    /* 64-byte aligned, contents undefined; NULL when memory is out. */
    void *(*alloc)(struct rp_device *device, size_t bytes, enum rp_memory_kind kind);
    void (*free)(struct rp_device *device, void *ptr, enum rp_memory_kind kind);
    /* All asynchronous, in stream order with launches. */
    int (*copy)(struct rp_device *device, void *to, const void *from, size_t bytes);
    int (*fill)(struct rp_device *device, void *to, int byte, size_t bytes);
    int (*synchronize)(struct rp_device *device);

    /* Repacks *matrix (row-major) in place for this device; takes over its data. */
    int (*matrix_prepare)(struct rp_device *device, struct rp_matrix *matrix, struct rp_error *err);

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
    size_t (*graph_bytes)(const struct rp_graph *graph);

    /* Asynchronous: runs after everything submitted before. */
    int (*launch)(struct rp_device *device, struct rp_graph *graph);

    /* Returns RP_OK once results[step % entries] of the step ring is complete, RP_STATUS_NOT_FOUND when
     * the deadline (rp_clock_ns; 0 = only look) passed first. */
    int (*wait_step)(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                     uint64_t deadline_ns);
    /* A count that changes while the device is at work, within a step too: one that stands still for
     * long while a step is awaited means that the device hangs. */
    uint64_t (*progress)(struct rp_device *device);
    /* Device ns spent in the last completed replay; 0 when unknown. */
    uint64_t (*last_replay_ns)(struct rp_device *device);
};

/* backend/backend_cpu.c */
const struct rp_backend *rp_backend_cpu(void);

#ifdef __cplusplus
}
#endif
#endif
