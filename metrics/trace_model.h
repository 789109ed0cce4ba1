/* trace_model.h - what happened in a window of time, reconstructed from the events of the flight
 * recorder: slices on tracks, instants, counters, and flows from a request through its steps to its
 * tokens. Writers of trace files (trace_json.h, trace_pb.h) turn it into bytes; only this
 * file interprets the events.
 *
 *   group     tracks
 *   requests  one for each request: its life, within it tokenize, queued, prefill (with its chunks), decode, swapped,
 *             stream_wait (all tokens are there, the client has not read them); tokens and writes as instants
 *   batch     one for each place in the running batch: who was in it, computing what
 *   host      scheduler (engine thread), loop, workers
 *   device    replays, nodes of sampled steps, idle time by cause
 *   counters
 *
 * Slices of one track nest by their depth and never overlap otherwise: those that would are put on
 * another row of the lane, or, up to RP_TRACE_JITTER_NS (clocks of devices are mapped to the
 * host's), cut short. Whatever the events hold (they may come out of a file), building ends, in
 * memory in proportion to their number.
 * Thread: one owner. Times: rp_tick_ns. */
#ifndef RP_METRICS_TRACE_MODEL_H
#define RP_METRICS_TRACE_MODEL_H

#include "base/status.h"
#include "metrics/event.h"

#define RP_TRACE_NAME_MAX  96
#define RP_TRACE_JITTER_NS 2000
#define RP_TRACE_NONE      UINT32_MAX

enum rp_trace_group {
    RP_GROUP_REQUESTS,
    RP_GROUP_BATCH,
    RP_GROUP_HOST,
    RP_GROUP_DEVICE,
    RP_GROUP_COUNTERS,
    RP_GROUP_COUNT
};
extern const char *const rp_trace_groups[RP_GROUP_COUNT];

/* What an item is: a kind of event, or one of these. */
enum rp_trace_made {
    RP_MADE_REQUEST = RP_TRACE_KIND_COUNT,
    RP_MADE_QUEUED,
    RP_MADE_PREFILL,
    RP_MADE_CHUNK,
    RP_MADE_DECODE,
    RP_MADE_SWAPPED,
    RP_MADE_STREAM_WAIT,
    RP_MADE_END
};

enum rp_trace_item_flags {
    RP_ITEM_INSTANT = 1,
    RP_ITEM_BEGAN_EARLIER = 2, /* than the window, or than what is known */
    RP_ITEM_UNFINISHED = 4     /* at the end of the window */
};

struct rp_trace_item {
    uint64_t begin_ns, end_ns; /* within the window; equal for an instant */
    uint32_t track;
    uint32_t source; /* the event it came from; of RP_MADE_REQUEST the request; or RP_TRACE_NONE */
    uint32_t flow, flow_count; /* flows that pass through it, a range; 0: none */
    uint16_t what;
    uint8_t flags, depth; /* depth: of slices, 0 outermost */
};

/* Rows of a lane; a track of RP_LANE_RANKS is row n of rank r at (r - 1) * these + n. */
#define RP_TRACE_ROWS_MAX 64u

struct rp_trace_track {
    enum rp_trace_group group;
    enum rp_trace_lane lane; /* of host and device */
    uint32_t row;
    uint64_t request; /* of requests */
    uint32_t first_item,
        item_count; /* its items are contiguous, in order of begin, outer before inner */
};

/* request -> step -> replay -> token: a row of a step. One whose row, launch or replay began before
 * the window is not whole, and not to be written. start_ns lies in a slice of its request on
 * batch_track, the next two in slices of the host's and the device's, token_ns, if the request
 * still had its place, in one of batch_track again; they never decrease. Each lies inside its
 * slice, not at its begin, as far as a nanosecond has room there: where one slice ends and the next
 * begins, viewers take the one that ends. */
struct rp_trace_flow {
    uint64_t step, start_ns, launch_ns, replay_ns, token_ns;
    uint32_t request; /* index */
    uint32_t batch_track, launch_item, replay_item;
    uint32_t made; /* which one it was as they were found; they are sorted by step */
    bool whole;
    /* a prompt chunk that is not the last brings none: the flow ends at the replay */
    bool has_token;
    bool token_in_batch; /* false: it came when the request was swapped out already */
};

struct rp_trace_request {
    uint64_t id;
    uint32_t prompt_tokens, max_tokens, cached_tokens, tokens, swaps;
    uint32_t chunks;
    uint16_t reason, status;
    bool closed, answered;
};

/* A counter's values at a time: those of the event. */
struct rp_trace_sample {
    uint64_t ns;
    uint32_t event;
};

enum rp_trace_name_of { RP_NAME_BUCKET, RP_NAME_NODE, RP_NAME_REASON };
/* Names for numbers: value of `of`; a node is one of `bucket`. False: there is none, the number is
 * shown. The text is cut to `size`, need not be UTF-8, and holds nothing that a client wrote. */
struct rp_trace_names {
    bool (*name)(void *ctx, enum rp_trace_name_of of, uint32_t bucket, uint32_t value, char *out,
                 size_t size);
    void *ctx;
};

/* Describes the whole trace; everything is borrowed by the model. */
struct rp_trace_info {
    uint64_t begin_ns, end_ns; /* the window */
    uint64_t wanted_ns;        /* the requested length */
    bool whole; /* false: the rings no longer held all of it, or it was cut to its size limit */
    uint64_t unix_ns;            /* time of day at end_ns */
    const char *version, *model; /* model: what is served; may be NULL */
    const char *reason;          /* why it was taken, or NULL */
    struct rp_trace_names names;
};

/* Numbers to indices, open addressing. */
struct rp_trace_map {
    uint64_t *keys;
    uint32_t *values; /* index + 1; 0: free */
    uint32_t capacity, count;
};

struct rp_trace_model {
    struct rp_trace_info info;
    const struct rp_trace_event *events; /* borrowed, sorted */
    uint32_t event_count;
    struct rp_trace_track *tracks;
    struct rp_trace_item *items;
    struct rp_trace_flow *flows;
    struct rp_trace_sample *samples;
    struct rp_trace_request *requests;
    uint32_t track_count, item_count, flow_count, sample_count, request_count;
    uint32_t dropped;                                        /* slices that found no row */
    struct rp_trace_map launches, replays, paddings, misses; /* step -> its event */
    uint32_t track_capacity, item_capacity, flow_capacity, sample_capacity, request_capacity;
};

/* Into the order that building needs. */
void rp_trace_sort(struct rp_trace_event *events, uint64_t count);

/* events: sorted, borrowed until deinit, some of them older than the window (they tell what was
 * going on when it began). NO_MEMORY, or OVERFLOW for more than 2^31 of them. */
int rp_trace_model_build(struct rp_trace_model *model, const struct rp_trace_info *info,
                         const struct rp_trace_event *events, uint64_t count) RP_MUST_USE;
void rp_trace_model_deinit(struct rp_trace_model *model); /* legal on a zeroed struct */

/* For writers. */
struct rp_trace_arg {
    const char *name;
    const char *text; /* NULL: value */
    uint64_t value;
};
#define RP_TRACE_ARGS_MAX 12
/* text: room for what an argument's text may need. */
uint32_t rp_trace_item_args(const struct rp_trace_model *model, const struct rp_trace_item *item,
                            struct rp_trace_arg out[RP_TRACE_ARGS_MAX],
                            char text[RP_TRACE_NAME_MAX]);
/* Puts '?' for what is not UTF-8, and for control characters. */
void rp_trace_clean(char *text);
void rp_trace_item_name(const struct rp_trace_model *model, const struct rp_trace_item *item,
                        char out[RP_TRACE_NAME_MAX]);
void rp_trace_track_name(const struct rp_trace_model *model, const struct rp_trace_track *track,
                         char out[RP_TRACE_NAME_MAX]);
/* Unique within its group, and small. */
uint32_t rp_trace_track_number(const struct rp_trace_track *track);
/* Series of a counter event: the i-th name and value; NULL after the last. */
const char *rp_trace_series(const struct rp_trace_event *event, uint32_t i, uint64_t *out_value);

#endif
