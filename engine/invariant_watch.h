/* invariant_watch.h - checks the invariants of scheduler, pages and queues in release builds, about
 * once a second, between two steps. A violation is counted for as long as it lasts and logged once,
 * and the server is not ready meanwhile; the engine goes on, since what is broken may concern no
 * open request.
 * Thread: engine. Memory: none. Cost: about 8 ns a page, while the device runs a step. */
#ifndef RP_ENGINE_INVARIANT_WATCH_H
#define RP_ENGINE_INVARIANT_WATCH_H

#include "base/base.h"

struct rp_engine;

struct rp_invariant_watch {
    uint64_t next_ns; /* no check before this time */
    bool logged;
    _Atomic bool broken; /* the last check found one broken; read by any thread */
};

/* Between steps: no plan or commit is under way. now_ns: rp_tick_ns. */
void rp_invariant_watch_turn(struct rp_engine *engine, uint64_t now_ns);

#endif
