/* group.h - several devices as one: the ranks of a tensor-parallel group behind one rp_backend.
 *
 * The engine sees one device. Its memory is allocated on every rank at once, and named by rank 0's
 * address; copies, fills, captures and launches are done on every rank with its own addresses.
 *
 *   RP_MEMORY_DEVICE, ranges, HOST_EACH   one block for each rank, of the same size
 *   RP_MEMORY_HOST                        one block that all ranks read: packets, prompts, masks
 *   copy from other host memory           every rank gets it
 *   copy to other host memory             rank 0's
 *   matrices                              go to the rank that they name
 *
 * Results and stamps, which devices write, are each rank's own. A step is complete when every rank
 * has published it; the host reads rank 0's, and the others' are equal: all ranks sample the same
 * logits. The group fails with the first rank that does.
 *
 * A member backend has `join` and `reserve_exchange` (device.h); group.c knows nothing of how ranks
 * exchange data.
 * Threads: one owner, for last_error too. Memory: at open and while capturing. */
#ifndef RP_BACKEND_GROUP_H
#define RP_BACKEND_GROUP_H

#include "device/device.h"

#define RP_GROUP_RANKS_MAX 8u

/* Opens a device of the backend or, with config->ranks above 1, a group of them; *out_backend is
 * the table for it: `member`, or the group's, which lives as long as the group. UNSUPPORTED: the
 * backend has no groups. */
int rp_group_open(const struct rp_backend *member, const struct rp_device_config *config,
                  const struct rp_backend **out_backend, struct rp_device **out,
                  struct rp_error *err) RP_MUST_USE;

#endif
