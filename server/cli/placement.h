/* placement.h - the processors and the NUMA node of this process (--cpu-affinity, --numa).
 * Thread: main, before any other thread is created: threads inherit both. */
#ifndef RP_SERVER_PLACEMENT_H
#define RP_SERVER_PLACEMENT_H

#include "base/status.h"

/* cpus: a list such as 0-3,8; node: a number; NULL or "": not restricted. With a node its
 * processors are used (of cpus, if both are given), and its memory is preferred. INVALID names the
 * flag and what this process may use. */
int rp_placement_apply(const char *cpus, const char *node, struct rp_error *err) RP_MUST_USE;

#endif
