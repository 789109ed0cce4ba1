/* layout.h - every size of the engine, computed once from the configuration, the model and the
 * device, before anything is made. `reprise inspect` prints it; rp_engine_create makes exactly
 * this.
 * Thread: any. Memory: none kept. */
#ifndef RP_ENGINE_LAYOUT_H
#define RP_ENGINE_LAYOUT_H

#include "engine/buckets.h"
#include "engine/engine.h"
#include "kvcache/kv_geometry.h"

/* Bytes on a GPU. An estimate until the engine has captured its graphs and measured them. */
struct rp_gpu_bytes {
    uint64_t total; /* the GPU's memory */
    uint64_t limit; /* what --gpu-memory-utilization allows, of everybody together */
    uint64_t uses[RP_MEMORY_USE_COUNT];
    bool measured;
};

/* In a group these are the sizes of each rank; rings in host memory are there once. */
struct rp_engine_layout {
    struct rp_bucket_list buckets;
    struct rp_step_config step;
    struct rp_kv_geometry geometry;
    struct rp_kv_layout kv; /* that of the first group; page_stride is that of all. base NULL */
    uint32_t max_model_len;
    bool whole_prompts;      /* the model's mask is not causal */
    bool on_gpu;             /* the device has memory of its own: page_count is first an estimate */
    struct rp_gpu_bytes gpu; /* only with on_gpu */
    uint32_t page_count;     /* the padding page included */
    uint32_t host_page_count;
    uint32_t event_capacity;
    size_t arena_bytes, state_bytes, ring_bytes; /* state_bytes: slots, with recurrent_bytes */
    size_t recurrent_bytes;                      /* recurrent state of slots, and snapshots */
    size_t exchange_bytes; /* of a group: two blocks of the largest exchange */
    struct rp_memory_plan plan;
};

/* config: resolved. program: the model's, emitted. device, memory: as they are now, before the
 * weights are on a GPU. NO_MEMORY on a GPU: the error states what is needed, what is available and
 * what would fit. */
int rp_engine_layout_make(const struct rp_engine_config *config, const struct rp_model *model,
                          const struct rp_program *program, const struct rp_device_info *device,
                          const struct rp_device_memory *memory, struct rp_engine_layout *out,
                          struct rp_error *err) RP_MUST_USE;
/* Writes out->plan from the sizes again: after the pool of a GPU was mapped. */
void rp_engine_layout_describe(struct rp_engine_layout *layout, const struct rp_model *model);

/* Pages that a sequence of so many tokens holds at most, tokens of the longest sequence that fits
 * `pages`, at most `limit`, and the tokens that the pool holds. */
uint64_t rp_engine_layout_pages(const struct rp_engine_layout *layout, uint64_t tokens);
uint32_t rp_engine_layout_longest(const struct rp_engine_layout *layout, uint64_t pages,
                                  uint32_t limit);

/* The scheduler's view of the same numbers. */
struct rp_scheduler_config rp_engine_scheduler_config(const struct rp_engine_config *config,
                                                      const struct rp_engine_layout *layout,
                                                      const struct rp_device_info *device);

#endif
