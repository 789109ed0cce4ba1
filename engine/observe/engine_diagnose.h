/* engine_diagnose.h - the numbers that metrics/diagnose.h judges by, from the last seconds of an
 * engine.
 * Thread: any but the engine's; it allocates, and takes milliseconds. */
#ifndef RP_ENGINE_ENGINE_DIAGNOSE_H
#define RP_ENGINE_ENGINE_DIAGNOSE_H

#include "engine/engine.h"
#include "metrics/diagnose.h"

/* RP_STATUS_NO_MEMORY. */
int rp_engine_diagnose_input(const struct rp_engine *engine, double seconds,
                             struct rp_diagnose_input *out) RP_MUST_USE;

#endif
