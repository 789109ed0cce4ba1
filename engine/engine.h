/* engine.h - the engine thread: takes requests, plans, launches, emits events.
 *
 * Only the engine thread uses the scheduler, the pages and the device. It communicates with the
 * loop thread through two bounded rings and a wake call:
 *
 *   loop  -- rp_engine_submit -->  request ring  --> engine thread
 *   loop  <-- rp_engine_next_event -- event ring <-- engine thread, which calls `wake` after pushing
 *
 * wake may coalesce: the loop drains the whole ring each time. An event ring that is full stops
 * planning; nothing is lost.
 * Memory: everything at create, printed as a plan; nothing after start. */
#ifndef RP_ENGINE_ENGINE_H
#define RP_ENGINE_ENGINE_H

#include "base/status.h"
#include "device/device.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "metrics/latency.h"
#include "metrics/metrics.h"
#include "metrics/trace_ring.h"

struct rp_engine;
struct rp_kv_events; /* engine/observe/kv_events.h */
struct rp_mask;      /* attention/mask/mask.h */
struct rp_model;     /* model/model.h */

/* swap_bytes: a quarter of the host memory that is free, at most 4 GiB. */
#define RP_SWAP_BYTES_AUTO UINT64_MAX

struct rp_engine_config {
    const struct rp_backend *backend; /* NULL: the CPU's */
    /* by that backend; rp_engine_create takes it over, also when it fails. NULL: opened with
     * `device` */
    struct rp_device *opened;
    struct rp_device_config device;
    uint32_t max_num_seqs; /* slots; 0: 64 on the CPU, 256 on a GPU */
    /* largest token bucket; 0: 512 on the CPU, 2,048 on a GPU, 8,192 on one of 64 GiB or more */
    uint32_t max_num_batched_tokens;
    uint64_t step_ns_max;         /* of steps that running answers wait for; 0: no limit */
    uint32_t max_model_len;       /* 0: the model's */
    uint32_t queue_capacity;      /* --max-num-queued-reqs, default 256 */
    uint32_t event_capacity;      /* 0: derived */
    uint32_t kv_event_capacity;   /* changes of the prefix cache that wait; 0: not collected */
    uint64_t kv_cache_bytes;      /* device pool; 0: derived from free memory, capped */
    double memory_utilization;    /* of a GPU: share that may be used; 0: 0.92 */
    uint32_t page_count_override; /* --num-gpu-blocks-override; 0: from kv_cache_bytes */
    uint64_t swap_bytes;          /* host pool, or RP_SWAP_BYTES_AUTO */
    uint32_t page_tokens;         /* --block-size; 0: the device's */
    enum rp_dtype kv_dtype;       /* F32, BF16, FP8_E4M3 or INT8 */
    bool prefix_cache;            /* default on */
    /* Snapshots of recurrent state, for the prefix cache: bytes of their pool (0: two for each
     * slot, at most a twentieth of the memory that is left), and tokens between those of a long
     * prompt or answer (0: 2048). */
    uint64_t snapshot_bytes;
    uint32_t snapshot_interval;
    bool no_kv_groups; /* layers with a window keep all pages (tests, comparisons) */
    bool run_ahead;    /* default on */
    bool enforce_eager;
    bool no_fusion;
    bool debug_poison; /* fill the arena with NaN before each step */
    /* one step in so many of each bucket is stamped; 0: only on request */
    uint32_t profile_every;
    bool measure_peaks; /* what the device reads and computes in a second, before it is ready */
    double watchdog_seconds; /* a step without progress for so long: the device hangs; 0: never */
    uint64_t fault_step;     /* tests: before this step (1, 2, ...) `fault` is injected; 0: none */
    enum rp_device_fault fault;
    bool plant_node;       /* tests: emits the embedding twice, which changes no result */
    bool plant_allocation; /* tests: each step allocates once */
    bool no_recording; /* benchmarks: no events, step records, idle times, nothing per request */
    /* How long the sample launch of a step may wait for holds after its forward has ended; 0: 200
     * ms. */
    uint64_t mask_deadline_ns;
    uint64_t (*hold_clock)(void *ctx); /* tests: clock of that deadline; NULL: rp_clock_ns */
    void *hold_clock_ctx;
    /* the engine thread's events; NULL: nothing is recorded. Borrowed */
    struct rp_trace_ring *ring;
    void (*wake)(void *ctx); /* called from the engine thread */
    void *wake_ctx;
    void (*progress)(void *ctx, const char *stage, uint32_t done,
                     uint32_t total); /* while starting */
    void *progress_ctx;
};

/* One line of the memory plan. */
struct rp_memory_item {
    char name[32];
    char detail[96];
    uint64_t bytes;
    bool on_host; /* of a GPU's plan: pinned memory of the host, not part of total_bytes */
};
#define RP_MEMORY_ITEMS_MAX 14

/* Layers with the same window and the same KV heads, and the pages that they take of the pool. */
struct rp_memory_layers {
    uint32_t layers, kv_heads, head_dim;
    bool latent;     /* K alone is stored */
    uint32_t window; /* tokens; 0: none */
    uint32_t tables; /* page tables of a sequence: its layers do not all fit one page */
    uint64_t pages;  /* that a sequence of max_model_len holds at most */
};
#define RP_MEMORY_LAYERS_MAX 16

struct rp_memory_plan {
    struct rp_memory_item items[RP_MEMORY_ITEMS_MAX];
    uint32_t item_count;
    uint64_t total_bytes;
    uint32_t ranks;        /* devices of a group, each of which has all this; else 1 */
    uint64_t device_bytes; /* the GPU's whole memory; 0: the host's is the device's */
    bool measured;         /* a GPU: graphs and pool as they are, not as they were estimated */
    uint32_t page_tokens, page_count, host_page_count;
    /* tokens that the device pool holds; with windows: of sequences of max_model_len */
    uint64_t kv_tokens;
    struct rp_memory_layers layers[RP_MEMORY_LAYERS_MAX];
    uint32_t layers_count;    /* entries of layers */
    uint64_t state_bytes;     /* recurrent state of one sequence; 0: the model has none */
    uint32_t snapshot_count;  /* of such states, that the prefix cache keeps */
    uint32_t max_model_len;   /* in force */
    uint32_t longest_context; /* tokens of the longest sequence that fits the pool and the model */
};

/* What device memory is used for. The order of engine's and server's tables. */
enum rp_memory_use {
    RP_MEMORY_CONTEXT, /* in use before anything of ours: the driver, other processes */
    RP_MEMORY_WEIGHTS,
    RP_MEMORY_ACTIVATIONS,
    RP_MEMORY_WORKSPACE,
    RP_MEMORY_GRAPHS,
    RP_MEMORY_SLOTS,
    RP_MEMORY_STATE, /* recurrent state of the slots, and its snapshots */
    RP_MEMORY_KV,
    RP_MEMORY_USE_COUNT
};

/* One step, as measured. */
struct rp_step_times {
    uint64_t device_ns; /* from its first kernel to its published result, by the device's clock */
    /* device idle before it; 0 unless it was launched before its forerunner was read */
    uint64_t gap_ns;
    uint64_t host_ns; /* the engine thread's planning, launching and committing: no waiting */
    uint32_t rows, tokens;
};
#define RP_STEP_TIMES 4096 /* that an engine keeps */

struct rp_engine_metrics {
    struct rp_gauge running, waiting, swapped;
    struct rp_gauge pages_total, pages_free, pages_cached, pages_held;
    struct rp_counter prompt_tokens, generation_tokens, cached_tokens;
    struct rp_counter preemptions, preempted[RP_PREEMPTED_COUNT]; /* all, and by phase */
    struct rp_counter prefix_query_tokens, prefix_hit_tokens;
    /* Snapshots of recurrent state (kvcache/kv_snapshot.h). */
    struct rp_gauge snapshots_kept, snapshots_capacity; /* capacity 0: the model has no state */
    struct rp_counter snapshots_saved, snapshot_hits, snapshot_evictions;
    struct rp_counter steps, decode_steps, mixed_steps, padded_tokens, packet_bytes;
    struct rp_counter misses[RP_MISS_COUNT]; /* steps by reason, those replayed as well */
    struct rp_histogram step_seconds[2];     /* of steps with decode rows alone, and of others */
    struct rp_histogram step_tokens;         /* live ones */
    struct rp_histogram step_device_seconds; /* on the device, by its clock */
    /* As the device counts them (experts.h), for each layer with experts in each step: rows of an
     * expert that has any, and rows of the fullest one divided by the mean of all. No bounds: the
     * model has no experts. */
    struct rp_histogram expert_rows, expert_imbalance;
    struct rp_counter expert_layer_steps; /* layers with experts, summed over the steps */
    struct rp_histogram step_gap_seconds; /* device idle between two steps launched back to back */
    /* Pages of the KV pool (engine/observe/page_life.h): from the free list and back to it; unused
     * before their next request; unused when they were evicted. */
    struct rp_histogram page_lifetime_seconds, page_reuse_gap_seconds, page_eviction_idle_seconds;
    struct rp_counter swap_out_bytes, swap_in_bytes;
    struct rp_histogram step_swap_bytes;   /* both ways, of steps that swap */
    struct rp_histogram step_host_seconds; /* the engine thread's own part of a step: no waiting */
    /* Device time since the engine thread began: busy, and idle by cause. Updated with each step,
     * and while nothing is submitted. */
    struct rp_counter device_busy_ns, idle_ns[RP_IDLE_CAUSE_COUNT];
    /* Parts of device_busy_ns: requests, padding, rows of ended requests. */
    struct rp_counter attributed_ns, padding_ns, unused_ns;
    /* The energy of these, in microjoules: time times power_mw (rp_engine_set_power). */
    struct rp_counter attributed_uj, padding_uj, unused_uj;
    struct rp_gauge power_mw; /* 0: unknown */
    /* By the shapes of all steps, padding included: bytes read and written, operations (a multiply
     * and an add are two). */
    struct rp_counter model_bytes, model_flops;
    /* requests that ended since their hold was not released in time */
    struct rp_counter mask_deadlines;
    struct rp_counter masks_placed; /* written into the mask pool: not found there by their keys */
    /* checks, one a second, that found a broken invariant */
    struct rp_counter invariant_violations;
    struct rp_gauge healthy;                     /* 1, or 0 after a device error */
    struct rp_gauge memory[RP_MEMORY_USE_COUNT]; /* bytes */
    struct rp_counter allocations;               /* of device memory, since the device was opened */
};

/* Measured on the idle device at start; 0: not measured. */
struct rp_engine_peaks {
    double read_bytes, flops; /* per second: from memory; of GEMMs in the model's dtype */
};

/* A captured bucket, as /debug/graphs shows it. */
struct rp_engine_graph {
    struct rp_bucket bucket;
    bool captured; /* false: it failed, and the next larger one does its steps */
    uint32_t nodes, kernels, launches;
    uint64_t bytes, arena_bytes, capture_ns, fingerprint;
    uint64_t replays, padded_tokens; /* since ready */
};

/* Fills what is left to the device (zeros above) for this one. rp_engine_create does it by
 * itself. */
void rp_engine_config_resolve(struct rp_engine_config *config, const struct rp_device_info *device);

/* Prepares weights for the device (takes them out of *model), captures every graph, sizes the pool.
 * The model's config and tokenizer-independent parts stay readable. Nothing runs yet. On a GPU the
 * weights leave the model for good: it can be given to one engine only. */
int rp_engine_create(const struct rp_engine_config *config, struct rp_model *model,
                     struct rp_engine **out, struct rp_error *err) RP_MUST_USE;
int rp_engine_start(struct rp_engine *engine, struct rp_error *err) RP_MUST_USE; /* the thread */
/* Stops the thread: requests still open are closed with RP_FINISH_ERROR (their events can be
 * drained until destroy). A thread that hangs inside the device's driver is waited for: after a
 * failure leave the process by _Exit instead. */
void rp_engine_stop(struct rp_engine *engine);
/* Frees everything, except after a device that hangs: its memory may still be written to, and
 * stays. */
void rp_engine_destroy(struct rp_engine *engine);

/* Loop thread. RP_STATUS_FULL: answer 429. RP_STATUS_DEVICE: the engine has failed, answer 503.
 * What comes before rp_engine_start waits for it. */
int rp_engine_submit(struct rp_engine *engine, struct rp_request *request) RP_MUST_USE;
/* Any thread: wakes the engine after request->cancelled was set or a hold was released. */
void rp_engine_notify(struct rp_engine *engine);
/* Changes of the prefix cache, for one consumer on any thread, until destroy; NULL: they are not
 * collected. */
struct rp_kv_events *rp_engine_kv_events(struct rp_engine *engine);
/* Loop thread: next event; false when the ring is empty. */
bool rp_engine_next_event(struct rp_engine *engine, struct rp_event *out_event);

/* Any thread. */
/* The largest max_tokens that a request with this prompt may have; 0: the prompt does not fit. */
uint32_t rp_engine_output_max(const struct rp_engine *engine, uint32_t prompt_count);
static inline bool rp_engine_fits(const struct rp_engine *engine, uint32_t prompt_count,
                                  uint32_t max_tokens) {
    return max_tokens >= 1 && max_tokens <= rp_engine_output_max(engine, prompt_count);
}
/* Whether a prompt fits whose answer is not wanted (rp_request.prompt_only). */
bool rp_engine_prompt_fits(const struct rp_engine *engine, uint32_t prompt_count);
/* How many requests may wait: more than these in one go are never taken. */
uint32_t rp_engine_queue_capacity(const struct rp_engine *engine);
uint32_t rp_engine_max_model_len(const struct rp_engine *engine);
/* Tokens of the longest prompt where prompts are computed whole, since the mask is not causal; 0:
 * they may be cut. scored: of a prompt with prompt_logprobs. */
uint32_t rp_engine_whole_prompt_max(const struct rp_engine *engine, bool scored);
/* What attention of a layer sees. */
struct rp_engine_layer_mask {
    const struct rp_mask *program; /* NULL: causal, within the window, capped */
    uint32_t window, heads;
    float soft_cap;
    char kernels
        [64]; /* of the smallest and the largest captured step, one name when they are the same */
};
uint32_t rp_engine_layer_count(const struct rp_engine *engine);
void rp_engine_layer_mask(const struct rp_engine *engine, uint32_t layer,
                          struct rp_engine_layer_mask *out);
bool rp_engine_is_healthy(const struct rp_engine *engine);
/* Whether the last check of the engine's invariants, one a second, found all of them intact
 * (invariant_watch.h). */
bool rp_engine_is_consistent(const struct rp_engine *engine);
/* Why the device has failed, or NULL while it is healthy. */
const char *rp_engine_failure(const struct rp_engine *engine);
/* Last moment at which a step ended, the device was seen at work inside one, or nothing was to do;
 * old: the device hangs. */
uint64_t rp_engine_last_progress_ns(const struct rp_engine *engine);
const struct rp_memory_plan *rp_engine_memory_plan(const struct rp_engine *engine);
/* Steps since the start whose times are known: as many as metrics' `steps` once nothing is open and
 * the thread has come to rest. Any thread. */
uint64_t rp_engine_steps_timed(const struct rp_engine *engine);
/* Copies the times of up to `capacity` of the last steps, oldest first; returns how many. The
 * engine must be at rest (rp_engine_steps_timed) or stopped: for benchmarks and tests. */
uint32_t rp_engine_step_times(const struct rp_engine *engine, struct rp_step_times *out,
                              uint32_t capacity);
/* Where its steps spend their time (step_profile.h, profile_report.h); constant, never NULL. */
struct rp_step_profile *rp_engine_profile(const struct rp_engine *engine);
const struct rp_engine_peaks *rp_engine_get_peaks(const struct rp_engine *engine); /* constant */
const struct rp_engine_metrics *rp_engine_metrics(const struct rp_engine *engine);
void rp_engine_device_info(const struct rp_engine *engine, struct rp_device_info *out_info);
/* Captured buckets, smallest first; index below the count. */
uint32_t rp_engine_graph_count(const struct rp_engine *engine);
void rp_engine_graph(const struct rp_engine *engine, uint32_t index,
                     struct rp_engine_graph *out_graph);
/* The device's mean power lately, for the energy of steps from now on. One thread calls it. */
void rp_engine_set_power(struct rp_engine *engine, uint32_t milliwatts);
/* How long its steps took on the device; NULL: not known. Written by the engine thread, read by
 * any. */
const struct rp_latency *rp_engine_step_latency(const struct rp_engine *engine, uint32_t index);

#endif
