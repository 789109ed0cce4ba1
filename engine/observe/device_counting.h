/* device_counting.h - what the device's hardware counts while steps run (device/counters.h), and
 * what that did to them.
 * Threads: as named at each call. */
#ifndef RP_ENGINE_DEVICE_COUNTING_H
#define RP_ENGINE_DEVICE_COUNTING_H

#include "device/counters.h"
#include "engine/observe/profile_report.h"

struct rp_engine;

/* A worker: device/counters.h, measure. UNSUPPORTED where the backend has none. Does not
 * involve the engine thread. slowdown: steps meanwhile and during the second after it, relative to
 * those of the ten seconds before. */
int rp_engine_count_device(struct rp_engine *engine,
                           const struct rp_device_counter_options *options,
                           struct rp_device_counters *out, struct rp_profile_slowdown *slowdown,
                           struct rp_error *err) RP_MUST_USE;

#endif
