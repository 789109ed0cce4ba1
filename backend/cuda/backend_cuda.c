/* backend_cuda.c - a CUDA GPU as a device: the table that the module exports.
 *
 * One stream. A captured graph is frozen: what changes from step to step lies in the packet
 * ring. */
#include "backend/cuda/device_cuda.h"

#include "base/clock.h"
#include "device/read_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void rp_cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Protects rp_device.error: at the start one thread copies weights while another captures. */
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;

int rp_cuda_check(struct rp_device *device, cudaError_t error, const char *what) {
    if (RP_LIKELY(error == cudaSuccess))
        return RP_OK;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* not sticky */
        return RP_STATUS_NO_MEMORY;
    }
    pthread_mutex_lock(&error_lock);
    if (!atomic_load(&device->failed)) {
        snprintf(device->error, sizeof device->error, "CUDA error %d (%s: %s) in %s", (int)error,
                 cudaGetErrorName(error), cudaGetErrorString(error), what);
        atomic_store(&device->failed, true);
    }
    pthread_mutex_unlock(&error_lock);
    return RP_STATUS_DEVICE;
}

static int fail_open(struct rp_device *device, struct rp_error *err, const char *what,
                     cudaError_t error) {
    if (device)
        rp_free(device);
    return rp_error_set(err, RP_STATUS_DEVICE, "cuda: %s: %s", what, cudaGetErrorString(error));
}

static void read_limits(struct rp_device *device, const struct cudaDeviceProp *prop,
                        const struct rp_device_config *config) {
    snprintf(device->name, sizeof device->name, "%.60s", prop->name);
    device->limits = (struct rp_cuda_limits){
        .sm_count = (uint32_t)prop->multiProcessorCount,
        .compute_capability = (uint32_t)(prop->major * 10 + prop->minor),
        .shared_bytes_block = (uint32_t)prop->sharedMemPerBlockOptin,
        .l2_bytes = (uint32_t)prop->l2CacheSize,
        .memory_bytes = prop->totalGlobalMem,
        .dependent_launch = prop->major >= 9 && !config->no_dependent_launch,
        .fast_numerics = config->fast_numerics,
    };
    device->nvtx = config->nvtx;
    device->no_peers = config->no_peer_access;
}

/* cuBLASLt, for --numerics fast. Without it our own GEMMs are used. */
static void open_cublaslt(struct rp_device *device, const char *cache_dir) {
    struct rp_error err = {0};
    struct rp_cublaslt_config config = {
        .cache_dir = cache_dir,
        .workspace =
            rp_cuda_scratch(device, RP_CUDA_SCRATCH_CUBLASLT, RP_CUBLASLT_WORKSPACE_BYTES, 0),
        .workspace_bytes = RP_CUBLASLT_WORKSPACE_BYTES};
    if (!config.workspace || rp_cublaslt_open(&config, &device->cublaslt, &err) != RP_OK) {
        snprintf(device->cublaslt_text, sizeof device->cublaslt_text, "no cuBLASLt");
        return;
    }
    rp_cublaslt_describe(device->cublaslt, device->cublaslt_text, sizeof device->cublaslt_text);
    device->cublaslt_text[strcspn(device->cublaslt_text, ",")] = '\0'; /* without its path */
}

static cudaError_t open_side(struct rp_device *device) {
    cudaError_t error = cudaStreamCreateWithFlags(&device->side, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&device->forked, cudaEventDisableTiming);
    return error == cudaSuccess ? cudaEventCreateWithFlags(&device->joined, cudaEventDisableTiming)
                                : error;
}

static void close_side(struct rp_device *device) {
    if (device->forked)
        (void)cudaEventDestroy(device->forked);
    if (device->joined)
        (void)cudaEventDestroy(device->joined);
    if (device->side)
        (void)cudaStreamDestroy(device->side);
}

static void cuda_close(struct rp_device *device) {
    if (!device)
        return;
    rp_cuda_group_break(device); /* of a group that failed: a kernel may still wait for a peer */
    rp_cuda_select(device);
    (void)cudaStreamSynchronize(device->stream);
    rp_cuda_group_leave(device);
    rp_cublaslt_close(device->cublaslt);
    rp_cuda_mask_programs_close(device);
    rp_cuda_memory_close(device);
    (void)cudaStreamDestroy(device->stream);
    close_side(device);
    rp_free(device->cache_dir);
    rp_free(device);
}

static int cuda_open(const struct rp_device_config *config, struct rp_device **out,
                     struct rp_error *err) {
    struct cudaDeviceProp prop;
    int count = 0;
    /* Kernels that are loaded at their first use would be loaded inside a capture. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return fail_open(NULL, err, "no driver or no GPU", error);
    if ((uint32_t)count <= config->ordinal)
        return rp_error_set(err, RP_STATUS_DEVICE, "cuda: GPU %u was asked for, there are %d",
                            config->ordinal, count);
    struct rp_device *device = rp_calloc(1, sizeof *device);
    if (!device)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: out of memory");
    device->ordinal = (int)config->ordinal;
    if ((error = cudaSetDevice(device->ordinal)) != cudaSuccess)
        return fail_open(device, err, "the GPU cannot be used", error);
    if ((error = cudaGetDeviceProperties(&prop, device->ordinal)) != cudaSuccess)
        return fail_open(device, err, "the GPU's properties", error);
    read_limits(device, &prop, config);
    if ((error = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking)) != cudaSuccess)
        return fail_open(device, err, "stream", error);
    int status = rp_cuda_memory_open(device, err);
    if (status != RP_OK) {
        cudaStreamDestroy(device->stream);
        rp_free(device);
        return status;
    }
    if ((error = open_side(device)) != cudaSuccess) {
        cuda_close(device);
        return fail_open(NULL, err, "stream", error);
    }
    if (config->cache_dir && !(device->cache_dir = rp_strdup(config->cache_dir))) {
        cuda_close(device);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: out of memory");
    }
    if (config->fast_numerics)
        open_cublaslt(device, config->cache_dir);
    *out = device;
    return RP_OK;
}

static void cuda_info(struct rp_device *device, struct rp_device_info *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.40s, %u SMs, sm_%u%s%.24s", device->name,
             device->limits.sm_count, device->limits.compute_capability,
             device->cublaslt_text[0] ? ", " : "", device->cublaslt_text);
    snprintf(out->kernels, sizeof out->kernels, "cuda sm_%u", device->limits.compute_capability);
    if (cudaDeviceGetPCIBusId(out->pci_bus_id, sizeof out->pci_bus_id, device->ordinal) !=
        cudaSuccess)
        out->pci_bus_id[0] = '\0';
    out->memory_bytes = device->limits.memory_bytes;
    out->page_tokens = 64;
    out->ranks = 1;
    out->separate_memory = true;
    out->decode_differs = true;
}

static int cuda_copy(struct rp_device *device, void *to, const void *from, size_t bytes) {
    rp_cuda_select(device);
    return RP_CUDA_TRY(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->stream));
}

static int cuda_fill(struct rp_device *device, void *to, int byte, size_t bytes) {
    rp_cuda_select(device);
    return RP_CUDA_TRY(device, cudaMemsetAsync(to, byte, bytes, device->stream));
}

static int cuda_synchronize(struct rp_device *device) {
    return RP_CUDA_TRY(device, cudaStreamSynchronize(device->stream));
}

static size_t cuda_granule(struct rp_device *device) { return device->granule; }

/* Nodes captured so far: kernels alone. */
static int count_captured(struct rp_device *device, uint32_t *out) {
    enum cudaStreamCaptureStatus capturing;
    cudaGraph_t graph = NULL;
    size_t count = 0;
    int status = RP_CUDA_TRY(device, cudaStreamGetCaptureInfo(device->stream, &capturing, NULL,
                                                              &graph, NULL, NULL, NULL));
    if (status == RP_OK && capturing == cudaStreamCaptureStatusActive)
        status = RP_CUDA_TRY(device, cudaGraphGetNodes(graph, NULL, &count));
    *out = (uint32_t)count;
    return status;
}

/* The stream on which node i is captured. A side branch begins where its run began and is joined by
 * what follows the run. */
static int turn_branch(struct rp_device *device, const struct rp_graph *graph, uint32_t i,
                       cudaStream_t *out) {
    enum rp_branch branch = graph->nodes[i].branch;
    enum rp_branch before = i > 0 ? graph->nodes[i - 1].branch : RP_BRANCH_NONE;
    int status = RP_OK;
    if (branch != RP_BRANCH_NONE && before == RP_BRANCH_NONE)
        status = RP_CUDA_TRY(device, cudaEventRecord(device->forked, device->stream));
    if (status == RP_OK && branch == RP_BRANCH_SIDE && before != RP_BRANCH_SIDE)
        status = RP_CUDA_TRY(device, cudaStreamWaitEvent(device->side, device->forked, 0));
    if (status == RP_OK && branch != RP_BRANCH_SIDE && before == RP_BRANCH_SIDE) {
        status = RP_CUDA_TRY(device, cudaEventRecord(device->joined, device->side));
        if (status == RP_OK)
            status = RP_CUDA_TRY(device, cudaStreamWaitEvent(device->stream, device->joined, 0));
    }
    *out = branch == RP_BRANCH_SIDE ? device->side : device->stream;
    return status;
}

/* Without a capture all runs on one stream, in order. */
static int run_list(struct rp_device *device, const struct rp_graph *graph, bool captures) {
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct rp_cuda_launch *launch = &graph->nodes[i].launch;
        cudaStream_t stream = device->stream;
        int status = captures ? count_captured(device, &graph->nodes[i].first_kernel) : RP_OK;
        if (status == RP_OK && captures)
            status = turn_branch(device, graph, i, &stream);
        if (status == RP_OK)
            status = rp_cuda_check(device, (cudaError_t)launch->run(launch->args, stream),
                                   launch->kernel);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static int count_nodes(struct rp_device *device, struct rp_graph *graph, cudaGraph_t captured) {
    size_t count = 0;
    int status = RP_CUDA_TRY(device, cudaGraphGetNodes(captured, NULL, &count));
    if (status != RP_OK)
        return status;
    cudaGraphNode_t *nodes = rp_calloc(count, sizeof *nodes);
    if (!nodes)
        return RP_STATUS_NO_MEMORY;
    status = RP_CUDA_TRY(device, cudaGraphGetNodes(captured, nodes, &count));
    for (size_t i = 0; i < count && status == RP_OK; i++) {
        enum cudaGraphNodeType type;
        status = RP_CUDA_TRY(device, cudaGraphNodeGetType(nodes[i], &type));
        graph->captured_kernels += status == RP_OK && type == cudaGraphNodeTypeKernel;
    }
    graph->captured_nodes = (uint32_t)count;
    rp_free(nodes);
    return status;
}

/* Records the list, makes it executable, and puts it on the GPU. */
static int record(struct rp_device *device, struct rp_graph *graph) {
    cudaGraph_t captured = NULL;
    int status = RP_CUDA_TRY(
        device, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal));
    if (status != RP_OK)
        return status;
    int run_status = run_list(device, graph, true);
    status = RP_CUDA_TRY(device, cudaStreamEndCapture(device->stream, &captured));
    if (run_status != RP_OK)
        status = run_status;
    if (status == RP_OK)
        status = count_nodes(device, graph, captured);
    if (status == RP_OK)
        status = RP_CUDA_TRY(device, cudaGraphInstantiate(&graph->exec, captured, 0));
    if (status == RP_OK)
        status = RP_CUDA_TRY(device, cudaGraphUpload(graph->exec, device->stream));
    if (captured)
        (void)cudaGraphDestroy(captured);
    return status;
}

static void cuda_graph_destroy(struct rp_device *device, struct rp_graph *graph) {
    if (!graph)
        return;
    rp_cuda_select(device);
    if (graph->exec)
        (void)RP_CUDA_TRY(device, cudaGraphExecDestroy(graph->exec));
    rp_arena_deinit(&graph->memory);
    rp_free(graph);
}

static int cuda_capture(struct rp_device *device, const struct rp_program *program, uint32_t begin,
                        uint32_t end, const struct rp_bucket *bucket,
                        const struct rp_bindings *bindings, const struct rp_lower_options *options,
                        bool eager, struct rp_graph **out, struct rp_error *err) {
    struct rp_graph *graph = rp_calloc(1, sizeof *graph);
    if (!graph)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cuda: out of memory");
    rp_cuda_select(device);
    snprintf(graph->name, sizeof graph->name, "%s, %s %u", begin == 0 ? "forward" : "sample",
             bucket->decode ? "decode" : "mixed", bucket->tokens);
    if (device->nvtx)
        rp_cuda_nvtx_push("capture");
    int status = rp_cuda_lower(device, graph, program, begin, end, bucket, bindings, options, err);
    if (device->cublaslt)
        rp_cublaslt_trim(device->cublaslt); /* what its searches took */
    if (status == RP_OK && !eager) {
        status = record(device, graph);
        if (status != RP_OK)
            status = rp_error_set(err, status, "cuda: capture of %u tokens: %s", bucket->tokens,
                                  status == RP_STATUS_NO_MEMORY ? "out of memory" : device->error);
    }
    if (device->nvtx)
        rp_cuda_nvtx_pop();
    if (status != RP_OK) {
        cuda_graph_destroy(device, graph);
        return status;
    }
    if (eager)
        graph->captured_nodes = graph->captured_kernels = graph->node_count;
    device->watched = bindings->step;
    *out = graph;
    return RP_OK;
}

static uint32_t cuda_launch_count(const struct rp_graph *graph) { return graph->node_count; }

static void cuda_launch_info(const struct rp_graph *graph, uint32_t index,
                             struct rp_launch_info *out) {
    *out = graph->nodes[index].info;
}

static void cuda_graph_info(const struct rp_graph *graph, struct rp_graph_info *out) {
    out->nodes = graph->captured_nodes;
    out->kernels = graph->captured_kernels;
    out->bytes = sizeof *graph + graph->memory.used_bytes;
}

static int cuda_launch(struct rp_device *device, struct rp_graph *graph) {
    if (RP_UNLIKELY(device->profile != NULL))
        rp_cuda_profile_launch(device->profile, graph);
    if (RP_UNLIKELY(device->nvtx))
        rp_cuda_nvtx_push(graph->name);
    rp_cuda_select(device);
    int status = graph->exec ? RP_CUDA_TRY(device, cudaGraphLaunch(graph->exec, device->stream))
                             : run_list(device, graph, false);
    if (RP_UNLIKELY(device->nvtx))
        rp_cuda_nvtx_pop();
    if (RP_UNLIKELY(status != RP_OK)) /* the other ranks' kernels would wait for these */
        rp_cuda_group_break(device);
    return status;
}

static uint64_t result_step(const struct rp_step_view *view, uint64_t entry) {
    const unsigned char *at = view->results + entry * view->result_bytes;
    const struct rp_result_header *header = (const struct rp_result_header *)(const void *)at;
    return __atomic_load_n(&header->step, __ATOMIC_ACQUIRE);
}

/* Looks are cheap, questions to the driver are not. */
#define LOOKS_PER_QUESTION 4096
/* Below this a sleep would come back too late. */
#define SLEEP_FROM_NS 400000u

/* Sleeps through the first part of a wait as long as those before it, so that a core is not burnt
 * for every millisecond of the GPU; the rest is spun. */
static void sleep_ahead(struct rp_device *device, uint64_t now, uint64_t deadline) {
    uint64_t ns = device->usual_wait_ns / 2;
    if (device->usual_wait_ns < SLEEP_FROM_NS || (deadline && now + ns > deadline))
        return;
    struct timespec duration = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    (void)nanosleep(&duration, NULL);
}

static int wait_step(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                     uint64_t deadline_ns) {
    uint64_t entry = step % RP_STEP_RING_ENTRIES, start = rp_clock_ns();
    if (result_step(view, entry) == step)
        return RP_OK;
    if (atomic_load(&device->failed))
        return RP_STATUS_DEVICE;
    if (deadline_ns && deadline_ns <= start)
        return RP_STATUS_NOT_FOUND;
    sleep_ahead(device, start, deadline_ns);
    for (;;) {
        for (int i = 0; i < LOOKS_PER_QUESTION; i++) {
            if (result_step(view, entry) == step) {
                uint64_t waited = rp_clock_ns() - start;
                device->usual_wait_ns = (device->usual_wait_ns * 7 + waited) / 8;
                return RP_OK;
            }
            rp_cpu_pause();
        }
        cudaError_t error = cudaStreamQuery(device->stream);
        if (error == cudaSuccess) /* idle: the result is there now, or it never comes */
            return result_step(view, entry) == step ? RP_OK : RP_STATUS_NOT_FOUND;
        if (error != cudaErrorNotReady)
            return rp_cuda_check(device, error, "a step");
        if (!rp_cuda_peers_work(device))
            return RP_STATUS_DEVICE;
        if (deadline_ns == 0 || rp_clock_ns() >= deadline_ns)
            return RP_STATUS_NOT_FOUND;
    }
}

static int cuda_wait_step(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                          uint64_t deadline_ns) {
    if (RP_UNLIKELY(device->nvtx))
        rp_cuda_nvtx_push("wait for a step");
    int status = wait_step(device, view, step, deadline_ns);
    if (RP_UNLIKELY(device->nvtx))
        rp_cuda_nvtx_pop();
    return status;
}

static int cuda_wait_idle(struct rp_device *device, uint64_t deadline_ns) {
    for (;;) {
        cudaError_t error = cudaStreamQuery(device->stream);
        if (error != cudaErrorNotReady)
            return rp_cuda_check(device, error, "a forward pass");
        if (!rp_cuda_peers_work(device))
            return RP_STATUS_DEVICE;
        if (rp_clock_ns() >= deadline_ns)
            return RP_STATUS_NOT_FOUND;
        for (int i = 0; i < LOOKS_PER_QUESTION; i++)
            rp_cpu_pause();
    }
}

/* Steps that have published their results. A step takes milliseconds: nothing finer is needed to
 * tell a GPU that works from one that hangs. */
static uint64_t cuda_progress(struct rp_device *device) {
    uint64_t newest = 0;
    for (uint64_t i = 0; i < RP_STEP_RING_ENTRIES && device->watched.results; i++)
        newest = RP_MAX(newest, result_step(&device->watched, i));
    return newest;
}

static uint64_t cuda_last_replay_ns(struct rp_device *device) {
    (void)device;
    return 0; /* unknown: events around each graph would cost more than they tell */
}

static const char *cuda_last_error(struct rp_device *device) {
    return atomic_load(&device->failed) ? device->error : "";
}

static int cuda_inject_fault(struct rp_device *device, enum rp_device_fault fault) {
    rp_cuda_select(device);
    return rp_cuda_check(device, (cudaError_t)rp_cuda_start_fault(fault, device->stream), "fault");
}

static int cuda_read(struct rp_device *device, const void *data, size_t bytes) {
    rp_cuda_select(device);
    struct rp_read_cuda args = {data, bytes, device->limits.sm_count, NULL};
    return rp_cuda_check(device, (cudaError_t)rp_read_cuda_run(&args, device->stream), "read");
}

__attribute__((visibility("default"))) const struct rp_backend *rp_backend_cuda_table(void) {
    static const struct rp_backend backend = {
        .abi = RP_BACKEND_ABI,
        .name = "cuda",
        /* clang-format off */
        .open = cuda_open, .close = cuda_close, .info = cuda_info, .alloc = rp_cuda_alloc,
        .free = rp_cuda_free, .copy = cuda_copy, .fill = cuda_fill,
        .synchronize = cuda_synchronize, .reserve = rp_cuda_reserve, .commit = rp_cuda_commit,
        .release = rp_cuda_release, .granule = cuda_granule, .memory = rp_cuda_memory,
        .matrix_prepare = rp_cuda_matrix_prepare, .matrix_quantize = rp_cuda_matrix_quantize,
        .matrix_reserve = rp_cuda_matrix_reserve, .matrix_fill = rp_cuda_matrix_fill,
        .matrices_end = rp_cuda_upload_end, .matrix_random = rp_cuda_matrix_random,
        .matrix_release = rp_cuda_matrix_release, .runs = rp_cuda_runs, .capture = cuda_capture,
        .graph_destroy = cuda_graph_destroy, .graph_launch_count = cuda_launch_count,
        .graph_launch_info = cuda_launch_info, .graph_info = cuda_graph_info,
        .launch = cuda_launch, .wait_step = cuda_wait_step, .wait_idle = cuda_wait_idle,
        .progress = cuda_progress, .last_replay_ns = cuda_last_replay_ns,
        .last_error = cuda_last_error, .inject_fault = cuda_inject_fault,
        .join = rp_cuda_join, .reserve_exchange = rp_cuda_reserve_exchange,
        .describe = rp_cuda_describe, .read = cuda_read, .profiler = &rp_cuda_profiler,
        .counting = &rp_cuda_counting,
        /* clang-format on */
    };
    return &backend;
}
