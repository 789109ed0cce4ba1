/* cpu_ranks.h - where the ranks of a group of CPU devices wait for each other: one thread of each
 * comes to the same points in the same order.
 *
 * A rank that fails breaks it: everybody who waits, or comes later, is told at once. Nobody spins
 * for more than 20 us.
 * Memory: all at create. */
#ifndef RP_DEVICE_CPU_RANKS_H
#define RP_DEVICE_CPU_RANKS_H

#include "base/status.h"

struct rp_cpu_ranks;

/* NULL: out of memory. */
struct rp_cpu_ranks *rp_cpu_ranks_create(uint32_t count);
void rp_cpu_ranks_destroy(struct rp_cpu_ranks *ranks); /* nobody waits any more; legal with NULL */

/* Returns when all ranks have come: what they wrote before is visible. False: it is broken. */
bool rp_cpu_ranks_wait(struct rp_cpu_ranks *ranks);
/* Any thread. */
void rp_cpu_ranks_break(struct rp_cpu_ranks *ranks);

#endif
