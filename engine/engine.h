/* engine.h - the engine thread: takes requests, plans, launches, emits events.
 *
 * The engine thread is the only one that touches the scheduler, the pages and the device. The loop
 * thread meets it in two bounded rings and a wake call:
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
#include "metrics/metrics.h"

struct rp_engine;
struct rp_model; /* model/model.h */

struct rp_engine_config {
    uint32_t max_num_seqs;           /* slots; default 64 on the CPU */
    uint32_t max_num_batched_tokens; /* largest token bucket; default 512 on the CPU */
    uint32_t max_model_len;          /* 0: the model's */
    uint32_t queue_capacity;         /* --max-num-queued-reqs, default 256 */
    uint32_t event_capacity;         /* 0: derived */
    uint64_t kv_cache_bytes;         /* device pool; 0: derived from free memory, capped */
    uint32_t page_count_override;    /* --num-gpu-blocks-override; 0: from kv_cache_bytes */
    uint64_t swap_bytes;             /* host pool, default 1 GiB */
    uint32_t page_tokens;            /* --block-size; 0: the device's */
    enum rp_dtype kv_dtype;          /* F32 or BF16 */
    uint32_t threads;                /* CPU workers; 0: one per core */
    bool prefix_cache;               /* default on */
    bool run_ahead;                  /* default on */
    bool enforce_eager;
    bool no_fusion;
    bool scalar_only;        /* tests */
    bool debug_poison;       /* fill the arena with NaN before each step */
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
};
#define RP_MEMORY_ITEMS_MAX 12
struct rp_memory_plan {
    struct rp_memory_item items[RP_MEMORY_ITEMS_MAX];
    uint32_t item_count;
    uint64_t total_bytes;
    uint32_t page_tokens, page_count, host_page_count;
    uint64_t kv_tokens;       /* tokens that the device pool holds */
    uint32_t max_model_len;   /* in force */
    uint32_t longest_context; /* tokens of the longest sequence that fits the pool and the model */
};

struct rp_engine_metrics {
    struct rp_gauge running, waiting, swapped;
    struct rp_gauge pages_total, pages_free, pages_cached, pages_held;
    struct rp_counter prompt_tokens, generation_tokens, cached_tokens, preemptions;
    struct rp_counter prefix_query_tokens, prefix_hit_tokens;
    struct rp_counter steps, decode_steps, mixed_steps, padded_tokens, packet_bytes;
    struct rp_histogram step_seconds;
    struct rp_gauge healthy; /* 1, or 0 after a device error */
};

/* The plan without making anything: `reprise inspect`. weights may be unloaded. */
int rp_engine_plan_memory(const struct rp_engine_config *config, const struct rp_model *model,
                          struct rp_memory_plan *out_plan, struct rp_error *err) RP_MUST_USE;

/* Prepares weights for the device (takes them out of *model), captures every graph, sizes the pool. The
 * model's config and tokenizer-independent parts stay readable. Nothing runs yet. */
int rp_engine_create(const struct rp_engine_config *config, struct rp_model *model,
                     struct rp_engine **out, struct rp_error *err) RP_MUST_USE;
int rp_engine_start(struct rp_engine *engine, struct rp_error *err) RP_MUST_USE; /* the thread */
/* Stops the thread: requests still open are closed with RP_FINISH_ERROR (their events can be drained
 * until destroy). */
void rp_engine_stop(struct rp_engine *engine);
void rp_engine_destroy(struct rp_engine *engine);

/* Loop thread. RP_STATUS_FULL: answer 429. RP_STATUS_DEVICE: the engine has failed, answer 503. */
int rp_engine_submit(struct rp_engine *engine, struct rp_request *request) RP_MUST_USE;
/* Loop thread: wakes the engine after request->cancelled was set. */
void rp_engine_notify(struct rp_engine *engine);
/* Loop thread: next event; false when the ring is empty. */
bool rp_engine_next_event(struct rp_engine *engine, struct rp_event *out_event);

/* Any thread. */
bool rp_engine_fits(const struct rp_engine *engine, uint32_t prompt_count, uint32_t max_tokens);
/* How many requests may wait: more than these in one go are never taken. */
uint32_t rp_engine_queue_capacity(const struct rp_engine *engine);
uint32_t rp_engine_max_model_len(const struct rp_engine *engine);
bool rp_engine_is_healthy(const struct rp_engine *engine);
/* Last moment at which a step ended, the device was seen at work inside one, or nothing was to do; old:
 * the device hangs. */
uint64_t rp_engine_last_progress_ns(const struct rp_engine *engine);
const struct rp_memory_plan *rp_engine_memory_plan(const struct rp_engine *engine);
const struct rp_engine_metrics *rp_engine_metrics(const struct rp_engine *engine);
void rp_engine_device_info(const struct rp_engine *engine, struct rp_device_info *out_info);

#endif
