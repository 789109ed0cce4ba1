/* backend_cpu.c - the CPU as a device: one table of functions over the worker team. */
#include "backend/cpu/cpu_exchange.h"
#include "backend/cpu/cpu_internal.h"

#include "base/bf16.h"
#include "base/clock.h"
#include "device/read_cpu.h"
#include "quant/matmul.h"
#include "quant/rounding/quantize.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int cpu_open(const struct rp_device_config *config, struct rp_device **out,
                    struct rp_error *err) {
    struct rp_device *device = rp_calloc(1, sizeof *device);
    if (!device)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cpu: out of memory");
    device->isa = config->scalar_only ? RP_ISA_SCALAR : rp_cpu_isa_detect();
    device->slow_share = config->slow_share;
    /* The thread that waits may not be worker 0 of one rank while it has another one to start. */
    device->short_steps_here = config->short_steps_here && config->ranks <= 1;
    int status =
        rp_cpu_team_create_shared(config->threads, RP_MAX(config->ranks, 1u), &device->team, err);
    if (status != RP_OK) {
        rp_free(device);
        return status;
    }
    *out = device;
    return RP_OK;
}

static void cpu_close(struct rp_device *device) {
    if (!device)
        return;
    atomic_store(&device->released, true);
    rp_cpu_exchange_break(device);
    rp_cpu_team_destroy(device->team);
    rp_cpu_exchange_leave(device);
    rp_free_aligned(device->sample_scratch);
    rp_free_aligned(device->sample_copies);
    rp_free(device);
}

/* First value of a `key : value` line of a proc file; false when there is none. */
static bool read_proc(const char *path, const char *key, char *out, size_t size) {
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) == 0 && colon) {
            colon += strspn(colon, ": \t");
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(out, size, "%s", colon);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

static void cpu_info(struct rp_device *device, struct rp_device_info *out) {
    char model[48] = "CPU";
    read_proc("/proc/cpuinfo", "model name", model, sizeof model);
    uint32_t threads = rp_cpu_team_size(device->team);
    memset(out, 0, sizeof *out);
    snprintf(out->kernels, sizeof out->kernels, "%s", rp_cpu_isa_name(device->isa));
    snprintf(out->name, sizeof out->name, "%s, %u thread%s, %s", model, threads,
             threads == 1 ? "" : "s", rp_cpu_isa_name(device->isa));
    out->memory_bytes = rp_cpu_memory_room();
    out->page_tokens = 16;
    out->ranks = 1;
}

static void *cpu_alloc(struct rp_device *device, size_t bytes, enum rp_memory_kind kind) {
    (void)kind;
    device->allocation_count++;
    return rp_alloc_aligned(bytes, RP_CACHE_LINE);
}

static void wait_for_jobs(struct rp_device *device) {
    rp_cpu_team_wait(device->team, device->last_job, UINT64_MAX);
}

static void cpu_free(struct rp_device *device, void *ptr, enum rp_memory_kind kind) {
    (void)kind;
    wait_for_jobs(device);
    rp_free_aligned(ptr);
}

/* The kernel gives pages of a large block when they are first touched: reserving is allocating. */
static void *cpu_reserve(struct rp_device *device, size_t bytes) {
    return cpu_alloc(device, bytes, RP_MEMORY_DEVICE);
}

static int cpu_commit(struct rp_device *device, void *base, size_t bytes) {
    (void)device;
    (void)base;
    (void)bytes;
    return RP_OK;
}

static void cpu_release(struct rp_device *device, void *base) {
    cpu_free(device, base, RP_MEMORY_DEVICE);
}

static size_t cpu_granule(struct rp_device *device) {
    (void)device;
    return 1;
}

static void cpu_memory(struct rp_device *device, struct rp_device_memory *out) {
    memset(out, 0, sizeof *out);
    out->total_bytes = out->free_bytes = rp_cpu_memory_room();
    out->allocation_count = device->allocation_count;
}

/* A job that moves less than this is short: on two cores of a virtual machine submitting a job and
 * waking its waiter took 10 to 25 us each. */
#define SHORT_NS    1000000u
#define SHORT_BYTES ((size_t)1 << 20) /* of a copy or fill */

/* Queues a job; when the stream is full, waits for the oldest to leave it. */
static int submit_kind(struct rp_device *device, rp_cpu_job job, void *arg0, uint64_t arg1,
                       bool is_short) {
    for (;;) {
        int status =
            is_short && device->short_steps_here
                ? rp_cpu_team_submit_short(device->team, job, arg0, arg1, &device->last_job)
                : rp_cpu_team_submit(device->team, job, arg0, arg1, &device->last_job);
        if (status != RP_STATUS_FULL)
            return status;
        rp_cpu_team_wait(device->team, rp_cpu_team_completed(device->team) + 1, UINT64_MAX);
    }
}

static int submit(struct rp_device *device, rp_cpu_job job, void *arg0, uint64_t arg1) {
    return submit_kind(device, job, arg0, arg1, false);
}

static void read_job(void *arg0, uint64_t bytes, const struct rp_cpu_worker *worker) {
    /* Which is faster differs between processors (rp_read_cpu): half in one way, half in the
     * other. */
    size_t half = bytes / 2 / 4096 * 4096;
    enum rp_cpu_isa isa = rp_cpu_isa_detect();
    rp_read_cpu(arg0, half, false, isa, worker);
    rp_read_cpu((const unsigned char *)arg0 + half, bytes - half, true, isa, worker);
}

static int cpu_read(struct rp_device *device, const void *data, size_t bytes) {
    return submit(device, read_job, (void *)(uintptr_t)data, bytes);
}

static void transfer_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    const struct rp_cpu_transfer *transfer = arg0;
    size_t begin, end;
    (void)arg1;
    rp_cpu_share(worker, transfer->bytes, 4096, &begin, &end);
    if (begin == end)
        return;
    if (transfer->from)
        memcpy(transfer->to + begin, transfer->from + begin, end - begin);
    else
        memset(transfer->to + begin, transfer->byte, end - begin);
}

static int queue_transfer(struct rp_device *device, struct rp_cpu_transfer transfer) {
    struct rp_cpu_transfer *slot = &device->transfers[device->next_transfer];
    /* The job that used this slot is at least 64 jobs behind, which the queue cannot hold. */
    device->next_transfer = (device->next_transfer + 1) % RP_CPU_TRANSFERS;
    *slot = transfer;
    return submit_kind(device, transfer_job, slot, 0, transfer.bytes <= SHORT_BYTES);
}

static int cpu_copy(struct rp_device *device, void *to, const void *from, size_t bytes) {
    return queue_transfer(device, (struct rp_cpu_transfer){to, from, bytes, 0});
}

static int cpu_fill(struct rp_device *device, void *to, int byte, size_t bytes) {
    return queue_transfer(device, (struct rp_cpu_transfer){to, NULL, bytes, byte});
}

static int cpu_synchronize(struct rp_device *device) {
    wait_for_jobs(device);
    return atomic_load(&device->failed) ? RP_STATUS_DEVICE : RP_OK;
}

static int cpu_matrix_prepare(struct rp_device *device, struct rp_matrix *matrix,
                              struct rp_error *err) {
    return rp_matrix_prepare_cpu(matrix, device->isa, err);
}

static void cpu_matrix_release(struct rp_device *device, struct rp_matrix *matrix) {
    wait_for_jobs(device);
    rp_matrix_deinit(matrix);
}

/* Uniform in (-1, 1): splitmix64 (Steele et al. 2014) of the element's number. */
static float random_unit(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((double)(z >> 11) * 0x1p-52 - 1.0);
}

/* The bf16 values that a matrix without 8 bits would have, quantized row by row. */
static int random_8_bits(struct rp_matrix *matrix, uint64_t seed, float scale,
                         struct rp_error *err) {
    size_t cols = matrix->cols, bad;
    uint16_t *row = rp_alloc(cols * sizeof *row);
    float *scales = rp_alloc_aligned(matrix->rows * sizeof *scales, RP_CACHE_LINE);
    matrix->scales = scales;
    if (!row || !scales) {
        rp_free(row);
        rp_matrix_deinit(matrix);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cpu: no memory for a row of a matrix");
    }
    for (size_t i = 0; i < matrix->rows; i++) {
        for (size_t k = 0; k < cols; k++)
            row[k] = rp_f32_to_bf16(random_unit(seed, i * cols + k) * scale);
        bool finite =
            rp_quantize_weights(row, RP_DTYPE_BF16, 1, cols, matrix->dtype,
                                (unsigned char *)matrix->data + i * cols, &scales[i], NULL, &bad);
        RP_ASSERT(finite);
    }
    rp_free(row);
    return RP_OK;
}

static int cpu_matrix_random(struct rp_device *device, struct rp_matrix *matrix, uint64_t seed,
                             float scale, struct rp_error *err) {
    size_t bytes = rp_matrix_bytes(matrix), count = (size_t)matrix->rows * matrix->cols;
    matrix->data = bytes ? rp_alloc_aligned(bytes, RP_CACHE_LINE) : NULL;
    if (!matrix->data)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cpu: no memory for a matrix of %zu bytes",
                            bytes);
    if (rp_dtype_bytes(matrix->dtype) == 1) {
        int status = random_8_bits(matrix, seed, scale, err);
        return status == RP_OK ? cpu_matrix_prepare(device, matrix, err) : status;
    }
    for (size_t i = 0; i < count; i++) {
        float value = random_unit(seed, i) * scale;
        if (matrix->dtype == RP_DTYPE_F32)
            ((float *)matrix->data)[i] = value;
        else
            ((uint16_t *)matrix->data)[i] = rp_f32_to_bf16(value);
    }
    return cpu_matrix_prepare(device, matrix, err);
}

static void cpu_graph_destroy(struct rp_device *device, struct rp_graph *graph) {
    if (!graph)
        return;
    wait_for_jobs(device);
    rp_arena_deinit(&graph->memory);
    rp_free(graph);
}

static int cpu_capture(struct rp_device *device, const struct rp_program *program, uint32_t begin,
                       uint32_t end, const struct rp_bucket *bucket,
                       const struct rp_bindings *bindings, const struct rp_lower_options *options,
                       bool eager, struct rp_graph **out, struct rp_error *err) {
    struct rp_graph *graph = rp_calloc(1, sizeof *graph);
    if (!graph)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cpu: out of memory");
    graph->device = device;
    /* Launches of one rank, each a job, would fill its queue before the other ranks have begun. */
    graph->eager = eager && !device->exchange;
    int status = rp_cpu_lower(graph, program, begin, end, bucket, bindings, options, err);
    if (status != RP_OK) {
        cpu_graph_destroy(device, graph);
        return status;
    }
    uint32_t capacity = bindings->step.config.stamp_capacity;
    if (capacity) {
        RP_ASSERT_CMP(bindings->stamp_base + graph->launch_count, <=, capacity);
        graph->stamps = bindings->step.stamps + bindings->stamp_base;
        graph->counts = bindings->step.counts;
    }
    *out = graph;
    return RP_OK;
}

static uint32_t cpu_launch_count(const struct rp_graph *graph) { return graph->launch_count; }

static void cpu_launch_info(const struct rp_graph *graph, uint32_t index,
                            struct rp_launch_info *out) {
    *out = graph->launches[index].info;
}

static void cpu_graph_info(const struct rp_graph *graph, struct rp_graph_info *out) {
    out->nodes = out->kernels = graph->launch_count;
    out->bytes = sizeof *graph + graph->memory.used_bytes;
}

/* Worker 0 alone writes it. */
static void count_launch(struct rp_device *device) {
    uint64_t launches = atomic_load_explicit(&device->launches, memory_order_relaxed);
    atomic_store_explicit(&device->launches, launches + 1, memory_order_relaxed);
}

/* Processor time of this thread: what somebody else's work on a shared machine does not
 * lengthen. */
static uint64_t thread_ns(const struct rp_device *device) {
    struct timespec now = {0};
    if (device->slow_share > 0.0)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* rp_device_config.slow_share: worker 0 stays busy for that share of what it did since
 * `start_ns`. */
static void stay_busy(const struct rp_device *device, uint64_t start_ns) {
    if (device->slow_share <= 0.0)
        return;
    uint64_t now = thread_ns(device);
    uint64_t until = now + (uint64_t)((double)(now - start_ns) * device->slow_share);
    while (now < until)
        now = thread_ns(device);
}

/* Whether the step in work stores its nodes' times; before STEP_BEGIN has run, whether the one
 * before did. */
static bool is_stamped(const struct rp_graph *graph) {
    return graph->stamps && (graph->counts->flags & RP_PACKET_STAMP);
}

/* Worker 0, after the barrier of launch `index`: it ends, and the next one begins, when the last
 * worker arrived there. */
static void stamp_launch(const struct rp_graph *graph, uint32_t index, uint64_t arrival_ns) {
    graph->stamps[index].end_ns = arrival_ns;
    if (index + 1 < graph->launch_count)
        graph->stamps[index + 1].begin_ns = arrival_ns;
}

static void replay_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct rp_graph *graph = arg0;
    uint64_t start = worker->index == 0 ? rp_clock_ns() : 0, busy = thread_ns(graph->device);
    (void)arg1;
    if (atomic_load(&graph->device->failed)) /* set by an earlier job: the same for all workers */
        return;
    if (worker->index == 0 && is_stamped(graph))
        graph->stamps[0].begin_ns = start;
    for (uint32_t i = 0; i < graph->launch_count; i++) {
        graph->launches[i].run(graph->launches[i].args, worker);
        /* The next launch reads what this one wrote. The first one, STEP_BEGIN, decides about
         * stamps: before its barrier only worker 0 may read them. */
        uint64_t arrival_ns = 0;
        if (graph->stamps && (i == 0 || is_stamped(graph)))
            arrival_ns = rp_cpu_barrier_timed(worker);
        else
            rp_cpu_barrier(worker);
        /* Set by worker 0 in the launch: all see it. What is left would publish wrong tokens. */
        if (graph->device->exchange && atomic_load(&graph->device->failed))
            return;
        if (worker->index != 0)
            continue;
        count_launch(graph->device);
        if (is_stamped(graph))
            stamp_launch(graph, i, arrival_ns);
    }
    if (worker->index == 0) {
        stay_busy(graph->device, busy);
        uint64_t ns = rp_clock_ns() - start;
        atomic_store_explicit(&graph->device->last_replay_ns, ns, memory_order_relaxed);
        atomic_store_explicit(&graph->last_ns, RP_MAX(ns, 1u), memory_order_relaxed);
    }
}

/* STEP_BEGIN, which decides about stamps, runs on worker 0 alone; after it all workers see the same
 * flag. */
static void eager_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    const struct rp_cpu_launch *launch = arg0;
    const struct rp_graph *graph = launch->graph;
    uint64_t busy = thread_ns(graph->device);
    (void)arg1;
    if (atomic_load(&graph->device->failed))
        return;
    uint32_t index = (uint32_t)(launch - graph->launches);
    bool begins = launch->run == rp_step_begin_cpu, stamped = !begins && is_stamped(graph);
    if (stamped && worker->index == 0)
        graph->stamps[index].begin_ns = rp_clock_ns();
    launch->run(launch->args, worker);
    uint64_t end_ns = stamped ? rp_cpu_barrier_timed(worker) : 0;
    if (worker->index != 0)
        return;
    if (stamped || (begins && is_stamped(graph)))
        stamp_launch(graph, index, stamped ? end_ns : rp_clock_ns());
    stay_busy(graph->device, busy);
}

static int cpu_launch(struct rp_device *device, struct rp_graph *graph) {
    if (atomic_load(&device->failed))
        return RP_STATUS_DEVICE;
    if (!graph->eager) {
        uint64_t last = atomic_load_explicit(&graph->last_ns, memory_order_relaxed);
        return submit_kind(device, replay_job, graph, 0, last != 0 && last < SHORT_NS);
    }
    for (uint32_t i = 0; i < graph->launch_count; i++) {
        int status = submit(device, eager_job, &graph->launches[i], 0);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static int cpu_wait_step(struct rp_device *device, const struct rp_step_view *view, uint64_t step,
                         uint64_t deadline_ns) {
    const struct rp_result_header *header =
        (const struct rp_result_header *)(const void *)(view->results +
                                                        (step % RP_STEP_RING_ENTRIES) *
                                                            view->result_bytes);
    for (;;) {
        if (__atomic_load_n(&header->step, __ATOMIC_ACQUIRE) == step)
            return RP_OK;
        if (atomic_load(&device->failed))
            return RP_STATUS_DEVICE;
        uint64_t next = rp_cpu_team_completed(device->team) + 1;
        if (next > device->last_job) {
            /* Nothing is queued any more: the result is there now, or it never comes. */
            if (__atomic_load_n(&header->step, __ATOMIC_ACQUIRE) == step)
                return RP_OK;
            return atomic_load(&device->failed) ? RP_STATUS_DEVICE : RP_STATUS_NOT_FOUND;
        }
        if (!rp_cpu_team_wait(device->team, next, deadline_ns))
            return RP_STATUS_NOT_FOUND;
    }
}

static int cpu_wait_idle(struct rp_device *device, uint64_t deadline_ns) {
    if (!rp_cpu_team_wait(device->team, device->last_job, deadline_ns))
        return RP_STATUS_NOT_FOUND;
    return atomic_load(&device->failed) ? RP_STATUS_DEVICE : RP_OK;
}

static uint64_t cpu_progress(struct rp_device *device) {
    /* Jobs that are no replay: eager launches, copies and fills. */
    return atomic_load_explicit(&device->launches, memory_order_relaxed) +
           rp_cpu_team_completed(device->team);
}

static uint64_t cpu_last_replay_ns(struct rp_device *device) {
    return atomic_load_explicit(&device->last_replay_ns, memory_order_relaxed);
}

static const char *cpu_last_error(struct rp_device *device) {
    return atomic_load(&device->failed) && device->fault ? device->fault : "";
}

/* All that follows in the stream finds the device failed. */
static void fault_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct rp_device *device = arg0;
    (void)arg1;
    if (worker->index != 0)
        return;
    atomic_store(&device->failed, true);
    rp_cpu_exchange_break(device);
}

static void hang_job(void *arg0, uint64_t arg1, const struct rp_cpu_worker *worker) {
    struct rp_device *device = arg0;
    (void)arg1;
    while (worker->index == 0 && !atomic_load(&device->released)) {
        const struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
}

static int cpu_inject_fault(struct rp_device *device, enum rp_device_fault fault) {
    device->fault = fault == RP_DEVICE_FAULT_TRAP ? "injected: trap" : "injected: illegal address";
    return submit(device, fault == RP_DEVICE_FAULT_HANG ? hang_job : fault_job, device, 0);
}

const struct rp_backend *rp_backend_cpu(void) {
    static const struct rp_backend backend = {
        .abi = RP_BACKEND_ABI,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .info = cpu_info,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .copy = cpu_copy,
        .fill = cpu_fill,
        .synchronize = cpu_synchronize,
        .reserve = cpu_reserve,
        .commit = cpu_commit,
        .release = cpu_release,
        .granule = cpu_granule,
        .memory = cpu_memory,
        .matrix_prepare = cpu_matrix_prepare,
        .matrix_random = cpu_matrix_random,
        .matrix_release = cpu_matrix_release,
        .capture = cpu_capture,
        .graph_destroy = cpu_graph_destroy,
        .graph_launch_count = cpu_launch_count,
        .graph_launch_info = cpu_launch_info,
        .graph_info = cpu_graph_info,
        .launch = cpu_launch,
        .wait_step = cpu_wait_step,
        .wait_idle = cpu_wait_idle,
        .progress = cpu_progress,
        .last_replay_ns = cpu_last_replay_ns,
        .last_error = cpu_last_error,
        .inject_fault = cpu_inject_fault,
        .read = cpu_read,
        .join = rp_cpu_exchange_join,
        .reserve_exchange = rp_cpu_exchange_reserve,
    };
    return &backend;
}
