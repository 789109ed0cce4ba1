/* trace_build.h - what the files that build a trace model share (trace_model.c, trace_lives.c). */
#ifndef RP_METRICS_TRACE_BUILD_H
#define RP_METRICS_TRACE_BUILD_H

#include "metrics/trace_model.h"

struct rp_trace_builder {
    struct rp_trace_model *model;
    bool failed; /* memory was out */
};

/* RP_TRACE_NONE: not there. */
uint32_t rp_trace_map_find(const struct rp_trace_map *map, uint64_t key);
bool rp_trace_map_put(struct rp_trace_map *map, uint64_t key, uint32_t index);
void rp_trace_map_deinit(struct rp_trace_map *map);

/* Grows *array so that it holds one more; false when memory is out. */
bool rp_trace_grow(void *array, uint32_t count, uint32_t *capacity, size_t element);

/* Adds an item, cut to the window; returns its index, or RP_TRACE_NONE when it lies outside. */
uint32_t rp_trace_add_item(struct rp_trace_builder *builder, const struct rp_trace_item *item);
uint32_t rp_trace_add_track(struct rp_trace_builder *builder, const struct rp_trace_track *track);
uint64_t rp_trace_end(const struct rp_trace_event *event); /* saturates */

/* trace_lives.c: requests, their tracks, the batch, and flows as far as events tell. */
void rp_trace_build_lives(struct rp_trace_builder *builder);

#endif
