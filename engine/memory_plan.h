/* memory_plan.h - the memory plan for a person to read: start-up lines and `reprise inspect`. */
#ifndef RP_ENGINE_MEMORY_PLAN_H
#define RP_ENGINE_MEMORY_PLAN_H

#include "base/buffer.h"
#include "engine/engine.h"

/* "1.23 GiB" */
void rp_format_bytes(double bytes, char out[16]);
/* One line per item of the device, the total, and, of a GPU, one for what lies on the host. */
void rp_memory_plan_text(const struct rp_memory_plan *plan, struct rp_buffer *out);

#endif
