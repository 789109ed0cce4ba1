/* device_profile.h - a session's kernels as the device's driver traces them (device/profiler.h),
 * in addition to its stamps.
 *
 *   worker: open -> engine thread: begins when nothing is in flight -> session -> end requested, or a cap is reached:
 *   the engine thread ends it when nothing is in flight -> worker: table, close
 *
 * While it waits for a moment without work it plans nothing, so that this comes within two steps.
 * Threads: as named at each call; one profile at a time. */
#ifndef RP_ENGINE_DEVICE_PROFILE_H
#define RP_ENGINE_DEVICE_PROFILE_H

#include "engine/observe/profile_report.h"

enum rp_device_profile_state {
    RP_DEVICE_PROFILE_NONE,
    RP_DEVICE_PROFILE_OPEN,    /* to be begun */
    RP_DEVICE_PROFILE_RUNNING, /* steps are traced */
    RP_DEVICE_PROFILE_ENDING,  /* to be ended */
    RP_DEVICE_PROFILE_ENDED,
    RP_DEVICE_PROFILE_FAILED /* could not begin or end: why is known */
};

struct rp_device_profile {
    struct rp_profile *profile;
    _Atomic uint32_t state;
    uint64_t first_step;    /* the device's number of the first step that is traced */
    struct rp_error failed; /* set before FAILED */
};

/* Any thread: whether the backend has a profiler at all. */
bool rp_engine_has_profiler(const struct rp_engine *engine);
/* A worker: opens it, and has the engine thread begin. RP_STATUS_IN_USE while another is open. */
int rp_engine_profiler_open(struct rp_engine *engine, struct rp_error *err) RP_MUST_USE;
/* Loop thread. err (may be NULL): filled when it has failed. */
enum rp_device_profile_state rp_engine_profiler_state(const struct rp_engine *engine,
                                                      struct rp_error *err);
/* Loop thread: has the engine thread end it; one that has not begun is ended at once. */
void rp_engine_profiler_end(struct rp_engine *engine);
/* Any thread, once it has ended or failed, or when the engine thread is gone: forgets it. */
void rp_engine_profiler_close(struct rp_engine *engine);

/* A worker, after it has ended: reads the records once, for the tables. */
int rp_engine_profiler_read(struct rp_engine *engine, struct rp_profile_records *out,
                            struct rp_error *err) RP_MUST_USE;
/* As rp_engine_profile_table, of a session's steps that were traced, with kernels' times in place
 * of stamps: a launch is from the begin of its first kernel to the end of its last, a step
 * likewise. */
int rp_engine_profile_kernels(const struct rp_engine *engine, const struct rp_profile_query *query,
                              const struct rp_profile_records *records,
                              struct rp_profile_table *out) RP_MUST_USE;

/* Engine thread, before planning: begins or ends a session on request. True: nothing may be planned
 * now. */
bool rp_device_profile_turn(struct rp_engine *engine);

#endif
