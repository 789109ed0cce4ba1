/* sample_hold.h - steps whose sample launch waits for the host (struct rp_sample_hold,
 * engine/request.h).
 *
 *   launch forward n+1 | read n, emit its tokens | their owners release the holds of n+1 | launch sample n+1
 *
 * A held step is released once the step before it has been read, when all its rows' holds are
 * released or mask_deadline_ns after its forward has ended. The rows that are not released by then
 * are withheld: they get no token and their requests end. Without holds nothing here is called.
 * Thread: the engine thread. Nothing allocates. */
#ifndef RP_ENGINE_SAMPLE_HOLD_H
#define RP_ENGINE_SAMPLE_HOLD_H

#include "base/status.h"

#include <stdint.h>

struct rp_engine;
struct rp_pending_step;

/* A device that makes no progress for config.watchdog_seconds while work is queued hangs. */
struct rp_watchdog {
    uint64_t progress, moved_ns;
};
void rp_watchdog_start(struct rp_watchdog *watchdog, struct rp_engine *engine);
/* False: it hangs, and engine->hangs is set. Progress updates engine->last_progress_ns. */
bool rp_watchdog_check(struct rp_watchdog *watchdog, struct rp_engine *engine, uint64_t now_ns);

/* Waits for the step's holds, then writes its late flags and queues the copies of its masks: its
 * sample graph may be launched.
 * RP_STATUS_SHUTTING_DOWN: rp_engine_stop was called meanwhile. RP_STATUS_DEVICE: the device
 * failed. */
int rp_sample_hold_resolve(struct rp_engine *engine, const struct rp_pending_step *step);

#endif
