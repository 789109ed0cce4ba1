/* group_launch.h - a thread that launches the graphs of one rank of a group, so that launching them
 * takes the engine's thread no longer than launching those of one device.
 *
 * The owner posts graphs and goes on; the thread launches them in that order. Nothing else may use
 * the rank in the meantime: the owner settles it first. After a launch that failed none is tried,
 * and the group is of no use any more.
 *
 * Waiting: decode steps come at equal intervals, so the thread sleeps until shortly before the next
 * one is due and then spins, for at most a quarter of the interval. A step that is on time costs
 * the owner no system call, one that is not a call of futex.
 * Threads: one owner. Memory: all at create. */
#ifndef RP_BACKEND_GROUP_LAUNCH_H
#define RP_BACKEND_GROUP_LAUNCH_H

#include "device/device.h"

struct rp_group_launcher;

/* rank: of the thread's name. NO_MEMORY: no memory or no thread. */
int rp_group_launcher_create(const struct rp_backend *member, struct rp_device *device,
                             uint32_t rank, struct rp_group_launcher **out,
                             struct rp_error *err) RP_MUST_USE;
/* Launches what was posted first. Legal with NULL, as is settle. */
void rp_group_launcher_destroy(struct rp_group_launcher *launcher);

void rp_group_launcher_post(struct rp_group_launcher *launcher, struct rp_graph *graph);
/* Returns when nothing is posted any more; false: the deadline (rp_clock_ns) passed first, after at
 * least 20 us. */
bool rp_group_launcher_settle(struct rp_group_launcher *launcher, uint64_t deadline_ns);
/* Status of the first launch that failed, or RP_OK; complete once it is settled. */
int rp_group_launcher_status(const struct rp_group_launcher *launcher);

#endif
