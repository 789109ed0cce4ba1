/* trace_pb.h - a trace model in Perfetto's own format (perfetto_trace.proto: Trace, TracePacket,
 * TrackDescriptor, TrackEvent), which is a fifth of the JSON and which trace_processor queries.
 * Written in pieces.
 *
 * One packet sequence; names of events and arguments are interned in it; times are CLOCK_MONOTONIC,
 * and a clock snapshot ties them to the time of day. Tracks: a group, below it its lanes, requests
 * and counters. */
#ifndef RP_METRICS_TRACE_PB_H
#define RP_METRICS_TRACE_PB_H

#include "base/buffer.h"
#include "metrics/trace_model.h"

struct rp_trace_pb {
    const struct rp_trace_model *model; /* borrowed until the last piece */
    uint32_t stage, index;
    uint32_t open[8], open_count; /* slices of the track in work, outermost first */
    struct rp_buffer packet, event, part, interned; /* of the packet in work */
    struct rp_buffer names;                         /* those interned so far, each with a NUL */
    struct rp_trace_map name_places;                /* hash -> index of offsets, also the iid - 1 */
    uint32_t *offsets;
    uint32_t name_count, name_capacity;
    bool failed; /* memory was out */
};

void rp_trace_pb_init(struct rp_trace_pb *writer, const struct rp_trace_model *model);
void rp_trace_pb_deinit(struct rp_trace_pb *writer); /* legal on a zeroed struct */
/* Appends at least `bytes` more, or all that is left: then false. out->failed when memory is
 * out. */
bool rp_trace_pb_next(struct rp_trace_pb *writer, struct rp_buffer *out, size_t bytes);

#endif
