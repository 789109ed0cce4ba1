/* layout.h - every size of the engine, computed once from the configuration, the model and the device,
 * before anything is made. `reprise inspect` prints it; rp_engine_create makes exactly this.
 * Thread: any. Memory: none kept. */
#ifndef RP_ENGINE_LAYOUT_H
#define RP_ENGINE_LAYOUT_H

#include "engine/buckets.h"
#include "engine/engine.h"
#include "kvcache/kv_layout.h"

struct rp_engine_layout {
    struct rp_bucket_list buckets;
    struct rp_step_config step;
    struct rp_kv_layout kv; /* base NULL */
    uint32_t max_model_len;
    uint32_t page_count; /* the padding page included */
    uint32_t host_page_count;
    uint32_t event_capacity;
    size_t arena_bytes, state_bytes, ring_bytes;
    struct rp_memory_plan plan;
};

/* program: the model's, emitted. device: what may be used now. */
int rp_engine_layout_make(const struct rp_engine_config *config, const struct rp_model *model,
                          const struct rp_program *program, const struct rp_device_info *device,
                          struct rp_engine_layout *out, struct rp_error *err) RP_MUST_USE;

/* The scheduler's view of the same numbers. */
struct rp_scheduler_config rp_engine_scheduler_config(const struct rp_engine_config *config,
                                                      const struct rp_engine_layout *layout);

#endif
