/* observer.h - everything that watches the engine thread: metrics, the flight recorder's events,
 * step records, profiles, and the account of device time by request. The step loop calls it at
 * these points:
 *
 *   a turn:     turn_begin .......................................................... turn_end
 *   a step:        planned -> launching -> launched -> waited -> read -> committed
 *   a request:  accepted -> event (tokens) -> closed
 *
 * Thread: the engine thread; other threads read what each part of it documents as readable.
 * Memory: all at init. Cost: one clock read for each span; nothing allocates, locks or calls the
 * system. */
#ifndef RP_ENGINE_OBSERVER_H
#define RP_ENGINE_OBSERVER_H

#include "engine/observe/device_profile.h"
#include "engine/observe/page_watch.h"
#include "engine/observe/request_account.h"
#include "engine/observe/step_profile.h"
#include "engine/observe/step_record.h"
#include "engine/observe/step_trace.h"

#include <stdatomic.h>

struct rp_engine;
struct rp_event;
struct rp_graph_entry;
struct rp_latency;
struct rp_pending_step;
struct rp_sched_step;
struct rp_step_times;

/* Part of an engine. */
struct rp_observer {
    struct rp_account account;       /* device time by request */
    struct rp_step_profile *profile; /* never NULL after init */
    struct rp_device_profile device_profile;
    struct rp_step_trace trace;
    struct rp_step_records records;  /* any thread reads them */
    struct rp_latency *step_latency; /* (graphs) on the device; any thread reads them */
    struct rp_page_watch page_watch;
    struct rp_step_times *times;  /* (RP_STEP_TIMES) ring */
    uint64_t times_count;         /* steps read since the start */
    _Atomic uint64_t times_known; /* those of them that are complete; any thread reads it */
    uint64_t waited_ns;           /* for the device or for holds, in the current turn */
    uint64_t device_end_ns;       /* of the step read last, by the device's clock; 0: none */
    uint64_t memory_seen_ns;      /* when the device's allocations were counted last */
    /* The scheduler's counts that are already in the metrics. */
    uint64_t seen_preempted[RP_PREEMPTED_COUNT], seen_query_tokens, seen_hit_tokens;
};

/* After the graphs and the scheduler are made. */
int rp_observer_init(struct rp_engine *engine, const struct rp_program *program,
                     struct rp_error *err) RP_MUST_USE;
void rp_observer_deinit(struct rp_observer *observer); /* legal on a zeroed struct */

void rp_observe_start(struct rp_engine *engine); /* the thread begins */
/* Returns now, as the begin of the turn. */
uint64_t rp_observe_turn_begin(struct rp_engine *engine);
/* has_read: a step was read in this turn. */
void rp_observe_turn_end(struct rp_engine *engine, uint64_t began_ns, bool has_read);

/* The scheduler has accepted the request. */
void rp_observe_accepted(struct rp_engine *engine, const struct rp_request *request);
/* End of a span in which `count` requests were accepted, or `count` events emitted. */
void rp_observe_accepted_all(struct rp_engine *engine, uint32_t count);
void rp_observe_emitted(struct rp_engine *engine, uint32_t count);
/* An event is pushed to the loop thread. */
void rp_observe_event(struct rp_engine *engine, const struct rp_event *event);
/* The request's CLOSED event is about to be pushed: completes its stats. */
void rp_observe_closed(struct rp_engine *engine, struct rp_request *request);

/* The scheduler was called at began_ns with so much room in the event ring. step: NULL: nothing to
 * do. Returns now. */
uint64_t rp_observe_planned(struct rp_engine *engine, const struct rp_sched_step *step,
                            uint32_t event_room, uint64_t began_ns);
/* Before the packet is written. Returns rp_packet_flags to add to it. */
uint32_t rp_observe_launching(struct rp_engine *engine, const struct rp_sched_step *step,
                              const struct rp_graph_entry *entry, uint64_t plan_ns);
/* A step was picked a graph for, or there was none: counts why it is no replay. */
void rp_observe_miss(struct rp_engine *engine);
/* It is the newest pending step; its launched_ns is filled in. */
void rp_observe_launched(struct rp_engine *engine, struct rp_pending_step *step,
                         uint32_t packet_bytes);
/* The thread has waited since began_ns for the step, its result or its holds. Returns now. */
uint64_t rp_observe_waited(struct rp_engine *engine, uint64_t began_ns, uint64_t device_step);
/* The step was read at read_ns (engine->batch has its results) and is not committed yet. */
void rp_observe_read(struct rp_engine *engine, const struct rp_pending_step *step,
                     uint64_t read_ns);
void rp_observe_committed(struct rp_engine *engine, const struct rp_pending_step *step);

/* The thread has slept. cause: rp_step_trace_why_idle before it. */
void rp_observe_slept(struct rp_engine *engine, enum rp_idle_cause cause);
/* Nothing to do at now_ns: counts the device's allocations, at most once a second. */
void rp_observe_idle(struct rp_engine *engine, uint64_t now_ns);

/* Copies the scheduler's numbers to the gauges. */
void rp_engine_update_gauges(struct rp_engine *engine);
/* Copies the device's count of allocations. */
void rp_engine_count_allocations(struct rp_engine *engine);

/* step_times.c */
bool rp_engine_times_init(struct rp_engine *engine);
/* A step was read: its time on the device, and how long that was idle before it. */
void rp_engine_note_step(struct rp_engine *engine, const struct rp_pending_step *step);
/* The turn that read it took turn_ns, waiting included. */
void rp_engine_note_turn(struct rp_engine *engine, uint64_t turn_ns);

#endif
