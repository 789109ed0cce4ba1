/* engine_internal.h - the engine's state, shared by engine.c (making it, the loop thread's calls),
 * engine_memory.c (slots, rings, pages), step_loop.c, engine_rings.c and sample_hold.c (the engine
 * thread). Every field without a remark belongs to the engine thread. */
#ifndef RP_ENGINE_ENGINE_INTERNAL_H
#define RP_ENGINE_ENGINE_INTERNAL_H

#include "base/memory.h"
#include "base/ring.h"
#include "device/step_cpu.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/invariant_watch.h"
#include "engine/layout.h"
#include "engine/mask_pool.h"
#include "engine/observe/kv_events.h"
#include "engine/observe/observer.h"
#include "engine/sample_hold.h"
#include "engine/weights_loader.h"
#include "graphs/graph_set.h"
#include "model/model.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/* A step that was launched and not yet read. */
struct rp_pending_step {
    struct rp_sched_step plan; /* its arrays live until it is committed */
    struct rp_graph_entry *entry;
    uint64_t device_step;
    uint64_t plan_ns, planned_ns, launch_ns, launched_ns;
    bool behind;  /* launched while another was still unread: the device need not have waited */
    bool stamped; /* its nodes store their times */
    bool held;    /* forward is launched, sample is not (sample_hold.h) */
    enum rp_replay_miss miss;
};
#define RP_PENDING_MAX 2

struct rp_engine {
    struct rp_engine_config config; /* constant */
    struct rp_model *model;         /* borrowed */
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_device_info device_info;           /* constant */
    struct rp_engine_layout layout;              /* constant */
    struct rp_scheduler_config scheduler_config; /* constant */
    struct rp_scheduler *scheduler;
    struct rp_graph_set *graphs;
    struct rp_graph_entry *first_replay; /* at the start: in flight */
    struct rp_batch batch;
    unsigned char *state, *rings, *host_pages;
    pthread_t host_pages_thread; /* while makes_host_pages: it writes host_pages */
    bool makes_host_pages;
    struct rp_weights_loader loader;       /* while graphs are captured */
    struct rp_device_memory memory_opened; /* when the device was opened */
    uint64_t weights_bytes;                /* on a GPU: that the weights were given */
    uint32_t prepared;                     /* matrices that were given to the device */
    size_t kv_reserved, kv_committed;      /* bytes of the pool's range */

    uint64_t device_step; /* of the last step launched */
    struct rp_pending_step pending[RP_PENDING_MAX];
    uint32_t pending_count;
    struct rp_engine_peaks peaks; /* constant */
    struct rp_observer observer;
    struct rp_invariant_watch invariants;
    bool failed; /* sticky device error: everything is closed, nothing is launched */
    bool hangs;  /* failed by the watchdog: nothing may wait for the device */
    char failure_text[384];
    _Atomic(const char *) failure; /* failure_text once it is written; any thread */

    struct rp_request *held; /* taken from the ring, not yet by the scheduler */
    struct rp_ring requests; /* loop -> engine: struct rp_request * */
    struct rp_ring events;   /* engine -> loop: struct rp_event */
    _Atomic uint32_t queued; /* submitted, not admitted; both threads */
    sem_t wake_up;           /* posted by the loop thread; the engine sleeps on it when idle */
    _Atomic bool stopping;
    /* set by the engine thread before it sleeps, taken by the loop thread */
    _Atomic bool wants_room;
    _Atomic uint64_t last_progress_ns;
    pthread_t thread;
    bool started, stopped; /* loop thread */

    struct rp_kv_events kv_events; /* only with config.kv_event_capacity */
    struct rp_mask_pool mask_pool;
    struct rp_engine_metrics metrics; /* written by the engine thread */
};

void *rp_engine_main(void *engine);
static inline uint32_t rp_engine_graph_index(const struct rp_engine *engine,
                                             const struct rp_graph_entry *entry) {
    return (uint32_t)(entry - rp_graph_set_entry(engine->graphs, 0));
}
/* Replays a graph that was just captured with an empty step, and waits for the one before: a GPU
 * replays one while the host captures the next. ctx: the engine. */
int rp_engine_replay_first(void *ctx, struct rp_graph_set *set, struct rp_graph_entry *entry,
                           struct rp_error *err);
int rp_engine_end_replays(struct rp_engine *engine, struct rp_error *err);

/* engine_rings.c */
/* Submits new requests to the scheduler; returns how many. One that it cannot queue now (its own
 * event store is full because the loop does not drain) is held and submitted again later. */
uint32_t rp_engine_accept(struct rp_engine *engine);
/* Moves events to the loop's ring as far as it has room, and wakes the loop; returns how many. */
uint32_t rp_engine_pump_events(struct rp_engine *engine);
/* After the thread has ended: moves events that had no room in the event ring. */
void rp_engine_flush(struct rp_engine *engine);
/* Sleeps until another thread posts, at most ns (below a second). */
void rp_engine_wait_for_post(struct rp_engine *engine, uint32_t ns);
/* Nothing to do: sleeps until the loop thread posts for a request, a cancel, or, when something
 * could not be planned or an event not be pushed for want of room in the event ring, for having
 * drained it. */
void rp_engine_sleep(struct rp_engine *engine);

/* peaks.c: config.measure_peaks: fills engine->peaks. Device memory that it needs is free again
 * afterwards. */
int rp_engine_measure_peaks(struct rp_engine *engine, struct rp_error *err);

/* engine_mask.c: the parameters' defaults. */
void rp_engine_init_mask(struct rp_engine *engine);

/* engine_memory.c. The swap pool is pinned while the weights are read: a thread of its own makes it
 * until make_buffers or free_buffers waits for it. */
void rp_engine_begin_host_pages(struct rp_engine *engine);
int rp_engine_make_buffers(struct rp_engine *engine, struct rp_error *err);
/* After the warm-up: on a GPU, maps the rest of the KV pool, settles page_count and the plan. */
int rp_engine_map_pool(struct rp_engine *engine, struct rp_error *err);
void rp_engine_free_buffers(struct rp_engine *engine);
int rp_engine_no_memory(struct rp_error *err, const char *what, size_t bytes);
/* RP_STATUS_DEVICE: what, and what the device said of it. */
int rp_engine_device_error(struct rp_engine *engine, const char *what, struct rp_error *err);

#endif
