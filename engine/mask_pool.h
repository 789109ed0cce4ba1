/* mask_pool.h - the masks that sampling of held rows reads (device/step.h: mask pool).
 *
 * A row's mask is placed in the step that samples with it. If a mask with its key is in the pool
 * already, nothing is written or copied; otherwise it replaces the oldest mask that the step does
 * not use. The copies precede the step's SAMPLE in the stream, and the steps before have been read
 * when masks are placed (sample_hold.h), so nothing that is still read is overwritten.
 * Thread: the engine thread. Nothing allocates after init. */
#ifndef RP_ENGINE_MASK_POOL_H
#define RP_ENGINE_MASK_POOL_H

#include "device/device.h"
#include "device/step.h"
#include "engine/request.h"

struct rp_mask_entry {
    uint64_t key, step; /* 0: none; the last step that uses it */
};

struct rp_mask_pool {
    const struct rp_step_view *view;
    struct rp_mask_entry *entries; /* (mask_capacity), replaced in turns */
    uint32_t *by_key;              /* hash of a key: the entry that was last given such a key */
    uint32_t table_mask;           /* entries of by_key - 1 */
    uint32_t next, new_count;      /* replaced next; how many before it are not copied yet */
};

/* RP_OK or NO_MEMORY. The pool has more masks than two steps have rows. */
int rp_mask_pool_init(struct rp_mask_pool *pool, const struct rp_step_view *view) RP_MUST_USE;
void rp_mask_pool_deinit(struct rp_mask_pool *pool);
/* The index of the mask for a row of step `step`. */
uint32_t rp_mask_pool_place(struct rp_mask_pool *pool, const struct rp_sample_hold *hold,
                            uint64_t step);
/* Queues the copies of what was placed, before SAMPLE is launched. */
int rp_mask_pool_upload(struct rp_mask_pool *pool, const struct rp_backend *backend,
                        struct rp_device *device) RP_MUST_USE;

#endif
