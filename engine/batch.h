/* batch.h - a planned step as the bytes that the device reads: packet, prompt ring, results.
 * Thread: the engine thread. Memory: the rings belong to the device; nothing allocates. */
#ifndef RP_ENGINE_BATCH_H
#define RP_ENGINE_BATCH_H

#include "device/step.h"
#include "engine/scheduler.h"

struct rp_batch {
    struct rp_step_view view;                  /* packets and prompt_ring are written here */
    uint32_t prompt_cursor;                    /* next free index of the prompt ring; wraps */
    struct rp_sched_result *results;           /* (row_capacity) of the step read last */
    uint64_t begin_ns, end_ns;                 /* of the step read last, by the device's clock */
    uint32_t mask_param_count;                 /* of the model's mask program */
    int32_t mask_defaults[RP_MASK_PARAMS_MAX]; /* of requests that give no values */
};

/* The values of a request (NULL: none) for the program's parameters. */
static inline const int32_t *rp_batch_mask_params(const struct rp_batch *batch,
                                                  const struct rp_request *request) {
    return request && request->mask_param_count ? request->mask_params : batch->mask_defaults;
}

/* Edits of one joining sequence at most (its page entries come apart). */
#define RP_JOIN_EDITS_MAX (RP_SLOT_STOP_IDS + RP_STOP_IDS_MAX + RP_MASK_PARAMS_MAX + 1)
/* Edits for the snapshot of a row. */
#define RP_SAVE_EDITS 2

/* Writes the packet of device step `device_step` from the plan, and the sample inputs of slots that
 * join; returns its bytes in use (header, rows and edits), which is what travels. The entry's
 * previous step must have been read. flags: rp_packet_flags. */
uint32_t rp_batch_encode(struct rp_batch *batch, const struct rp_sched_step *step,
                         uint64_t device_step, uint32_t flags);

/* Reads the results of a completed step into batch->results; false when the device reported its
 * sticky error or the entry is not this step's. Scores stay in the ring: they are there until the
 * entry is used again. */
bool rp_batch_decode(struct rp_batch *batch, uint64_t device_step,
                     const struct rp_sched_step *step);

#endif
