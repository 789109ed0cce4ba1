/* gpu_plan.h - the memory of a GPU, estimated before anything is allocated.
 *
 *   limit = total * utilization
 *   limit = context + weights + activations + workspace + graphs + slots + KV pool
 *
 * What graphs and kernels need is only known once they are captured and were replayed. Until then
 * a generous margin is used for them: the reported context must fit the pool that is mapped
 * afterwards.
 * Thread: any. */
#ifndef RP_ENGINE_GPU_PLAN_H
#define RP_ENGINE_GPU_PLAN_H

#include "engine/layout.h"

/* Fills out->gpu but the KV pool, and *out_left: bytes for the pool within the limit.
 * wanted_len: the longest context that there may be. */
int rp_gpu_plan_estimate(const struct rp_engine_config *config, const struct rp_model *model,
                         const struct rp_program *program, const struct rp_device_memory *memory,
                         uint32_t wanted_len, struct rp_engine_layout *out, uint64_t *out_left,
                         struct rp_error *err) RP_MUST_USE;

/* NO_MEMORY: `pages` pages do not fit beside the rest. Says what was needed, what there was, and
 * which flag would fit. */
int rp_gpu_plan_no_room(const struct rp_engine_config *config,
                        const struct rp_engine_layout *layout, uint64_t pages,
                        struct rp_error *err);

#endif
