/* step_trace.h - trace of the engine thread: spans, steps, causes of idle time, counters. Events go
 * to config.ring; the sums to struct rp_engine_metrics; steps to the records (step_record.h).
 * Thread: the engine thread. Nothing allocates, locks or calls the system. */
#ifndef RP_ENGINE_STEP_TRACE_H
#define RP_ENGINE_STEP_TRACE_H

#include "engine/observe/device_clock.h"
#include "engine/observe/idle_timeline.h"
#include "metrics/trace_ring.h"

struct rp_engine;
struct rp_event;
struct rp_pending_step;
struct rp_sched_step;

/* Page bytes that a step copies to and from the host before it runs. */
struct rp_swap_bytes {
    uint64_t out, in;
};
struct rp_swap_bytes rp_step_swap_bytes(const struct rp_engine *engine,
                                        const struct rp_sched_step *step);

struct rp_step_trace {
    struct rp_trace_ring *ring; /* never NULL */
    struct rp_device_clock clock;
    struct rp_idle_timeline timeline;
    uint64_t mark_ns; /* end of the last span recorded: the next one begins here */
    /* the device is known to be idle, or was, from here on: not yet settled */
    uint64_t idle_from_ns;
    uint64_t gap_ns[RP_IDLE_CAUSE_COUNT]; /* settled since the last step */
    struct rp_idle_piece idle;            /* not yet recorded */
    uint64_t read_step;                   /* the device step that was read last */
    uint64_t read_begin_ns, read_end_ns;  /* of it, on the device */
    uint64_t load_ns, rate_ns;            /* when LOAD and PAGES, and RATE, were last recorded */
    uint64_t load[6];                     /* what they said */
    uint64_t rate_prompt, rate_generated; /* tokens by then */
    bool swapped;                         /* the step launched last copied pages: SWAP */
};

/* The thread begins: everything before is forgotten. */
void rp_step_trace_begin(struct rp_engine *engine);
/* The time since the last span was spent so. cause: of a device that is idle meanwhile. Returns
 * now. */
uint64_t rp_step_trace_span(struct rp_engine *engine, enum rp_trace_kind kind,
                            enum rp_idle_cause cause, uint32_t a, uint16_t b, uint64_t id);
/* Why nothing can be planned at this moment. */
enum rp_idle_cause rp_step_trace_why_idle(const struct rp_engine *engine);
/* A step is about to be launched: who joins, is swapped, and has prompt rows in it; planned at
 * plan_ns. */
void rp_step_trace_launch(struct rp_engine *engine, const struct rp_sched_step *step,
                          uint64_t device_step, uint64_t plan_ns);
/* A step was read (engine->batch has its times); before it is committed. */
void rp_step_trace_read(struct rp_engine *engine, const struct rp_pending_step *step,
                        uint64_t read_ns);
/* An event goes to the loop thread. */
void rp_step_trace_event(struct rp_engine *engine, const struct rp_event *event);
/* LOAD, PAGES and RATE, when it is time. The gauges are up to date. */
void rp_step_trace_counters(struct rp_engine *engine);

#endif
