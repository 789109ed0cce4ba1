/* check_steps.c - counts the engine's work per step and per token of a fixed load. */
#include "base/memory.h"
#include "bench/check_internal.h"

#include <string.h>

#define SEQUENCES 8u
#define PROMPT    40u
#define TOKENS    64u

/* Call counters of the wrapped CPU backend. One engine at a time; counted by the engine thread,
 * read while it is idle. */
static struct { _Atomic uint64_t work, allocations; /* work: launches, copies and fills */ } calls;

static int counted_launch(struct rp_device *device, struct rp_graph *graph) {
    atomic_fetch_add(&calls.work, 1);
    return rp_backend_cpu()->launch(device, graph);
}

static int counted_copy(struct rp_device *device, void *to, const void *from, size_t bytes) {
    atomic_fetch_add(&calls.work, 1);
    return rp_backend_cpu()->copy(device, to, from, bytes);
}

static int counted_fill(struct rp_device *device, void *to, int byte, size_t bytes) {
    atomic_fetch_add(&calls.work, 1);
    return rp_backend_cpu()->fill(device, to, byte, bytes);
}

static void *counted_alloc(struct rp_device *device, size_t bytes, enum rp_memory_kind kind) {
    atomic_fetch_add(&calls.allocations, 1);
    return rp_backend_cpu()->alloc(device, bytes, kind);
}

struct counts {
    uint64_t steps, packet_bytes, allocations, device_allocations, work, wakes, events, tokens;
};

static struct counts read_counts(const struct rp_engine_run *run) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(run->engine);
    return (struct counts){.steps = rp_counter_read(&metrics->steps),
                           .packet_bytes = rp_counter_read(&metrics->packet_bytes),
                           .allocations = rp_alloc_count(),
                           .device_allocations = atomic_load(&calls.allocations),
                           .work = atomic_load(&calls.work),
                           .wakes = atomic_load(&run->wakes)};
}

static void count_event(void *ctx, const struct rp_event *event) {
    struct counts *counts = ctx;
    counts->events++;
    counts->tokens += event->kind == RP_EVENT_TOKEN;
}

static bool add(struct rp_expectations *out, const char *what, const char *load, uint64_t count,
                uint64_t of) {
    struct rp_expectation *row = rp_expectations_add(out, "%s.%s", what, load);
    if (!row)
        return false;
    row->value = (double)count / (double)RP_MAX(of, 1u);
    return true;
}

static bool add_rows(struct rp_expectations *out, const char *load, const struct counts *before,
                     const struct counts *after, const struct counts *seen) {
    uint64_t steps = after->steps - before->steps, tokens = seen->tokens;
    return add(out, "steps.count", load, steps, 1) &&
           add(out, "packets.bytes_per_step", load, after->packet_bytes - before->packet_bytes,
               steps) &&
           add(out, "allocations.per_token", load, after->allocations - before->allocations,
               tokens) &&
           add(out, "allocations.device_per_token", load,
               after->device_allocations - before->device_allocations, tokens) &&
           add(out, "events.per_token", load, seen->events, tokens) &&
           add(out, "events.wakes_per_token", load, after->wakes - before->wakes, tokens) &&
           add(out, "device_calls.per_step", load, after->work - before->work, steps);
}

/* Runs the load on a new engine: all requests are queued before its thread starts. */
static int run_load(const struct rp_check_config *config, const struct rp_backend *backend,
                    const char *load, uint32_t sequences, struct rp_expectations *out,
                    struct rp_error *err) {
    static int32_t prompts[SEQUENCES][PROMPT];
    static struct rp_request requests[SEQUENCES];
    const struct rp_engine_run_model model = {.dir = config->model_dir,
                                              .dtype = RP_MODEL_DTYPE_AUTO};
    struct rp_engine_config engine = rp_check_engine_config(config);
    struct rp_engine_run run;
    struct counts seen = {0};
    engine.backend = backend;
    engine.prefix_cache = true;
    engine.max_num_seqs = SEQUENCES;
    engine.max_num_batched_tokens = 64;
    int status = rp_engine_run_open(&model, &engine, &run, err);
    memset(requests, 0, sizeof requests);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        for (uint32_t t = 0; t < PROMPT; t++)
            prompts[i][t] = (int32_t)(3 + (i * 977 + t * 31) % 4000);
        requests[i] = (struct rp_request){.id = i,
                                          .prompt = prompts[i],
                                          .prompt_count = PROMPT - i,
                                          .max_tokens = TOKENS,
                                          .sampling = {.top_p = 1.0f, .seed = i}};
    }
    if (status == RP_OK) {
        struct counts before = read_counts(&run);
        status = rp_engine_run_requests(&run, requests, sequences, count_event, &seen, err);
        struct counts after = read_counts(&run);
        if (status == RP_OK && !add_rows(out, load, &before, &after, &seen))
            status = rp_check_no_memory(err);
    }
    rp_engine_run_close(&run);
    return status;
}

int rp_check_steps(const struct rp_check_config *config, struct rp_expectations *out,
                   struct rp_error *err) {
    static struct rp_backend counted;
    counted = *rp_backend_cpu();
    counted.launch = counted_launch;
    counted.copy = counted_copy;
    counted.fill = counted_fill;
    counted.alloc = counted_alloc;
    int status = run_load(config, &counted, "alone", 1, out, err);
    return status == RP_OK ? run_load(config, &counted, "batched", SEQUENCES, out, err) : status;
}
