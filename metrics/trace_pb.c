#include "metrics/trace_pb.h"

#include "base/hash.h"
#include "base/memory.h"
#include "metrics/trace_build.h"

#include <stdio.h>
#include <string.h>

/* Numbers of perfetto_trace.proto; fields of a message share its prefix. */
enum {
    TRACE_PACKET = 1,
    PACKET_CLOCK_SNAPSHOT = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED_DATA = 12,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACE_PACKET_DEFAULTS = 59,
    PACKET_TRACK_DESCRIPTOR = 60,
    SNAPSHOT_CLOCKS = 1,
    SNAPSHOT_PRIMARY_TRACE_CLOCK = 2,
    CLOCK_ID = 1,
    CLOCK_TIMESTAMP = 2,
    DEFAULTS_TIMESTAMP_CLOCK_ID = 58,
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PARENT_UUID = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDERING = 11,
    TRACK_SIBLING_ORDER_RANK = 12,
    TRACK_SIBLING_MERGE_BEHAVIOR = 15,
    EVENT_DEBUG_ANNOTATIONS = 4,
    EVENT_TYPE = 9,
    EVENT_NAME_IID = 10,
    EVENT_TRACK_UUID = 11,
    EVENT_COUNTER_VALUE = 30,
    EVENT_FLOW_IDS = 47,
    EVENT_TERMINATING_FLOW_IDS = 48,
    ANNOTATION_NAME_IID = 1,
    ANNOTATION_UINT = 3,
    ANNOTATION_STRING = 6,
    INTERNED_EVENT_NAMES = 2,
    INTERNED_ANNOTATION_NAMES = 3,
    INTERNED_IID = 1,
    INTERNED_NAME = 2
};
enum { SLICE_BEGIN = 1, SLICE_END = 2, INSTANT = 3, COUNTER = 4 };   /* TrackEvent.Type */
enum { REALTIME = 1, MONOTONIC = 3, BOOTTIME = 6 };                  /* BuiltinClock */
enum { INCREMENTAL_STATE_CLEARED = 1, NEEDS_INCREMENTAL_STATE = 2 }; /* SequenceFlags */
enum { ORDER_EXPLICIT = 3, MERGE_NONE = 2 };
enum { SEQUENCE = 1 };
/* Ours: groups from 1, counters from 100, tracks from 1000. */
enum { UUID_GROUP = 1, UUID_TRACE = 50, UUID_COUNTER = 100, UUID_TRACK = 1000, SERIES_MAX = 4 };

enum stage { HEADER, TRACKS, SERIES, SAMPLES, ITEMS, DONE };

/* --- The wire format ------------------------------------------------------------------------- */

static void put_varint(struct rp_buffer *out, uint64_t value) {
    unsigned char bytes[10];
    size_t n = 0;
    do {
        bytes[n] = (unsigned char)(value & 0x7F);
        value >>= 7;
        bytes[n] |= value ? 0x80 : 0;
        n++;
    } while (value);
    rp_buffer_append(out, bytes, n);
}

static void put_uint(struct rp_buffer *out, uint32_t field, uint64_t value) {
    put_varint(out, (uint64_t)field << 3);
    put_varint(out, value);
}

static void put_fixed64(struct rp_buffer *out, uint32_t field, uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    put_varint(out, (uint64_t)field << 3 | 1);
    rp_buffer_append(out, bytes, sizeof bytes);
}

static void put_bytes(struct rp_buffer *out, uint32_t field, const void *bytes, size_t len) {
    put_varint(out, (uint64_t)field << 3 | 2);
    put_varint(out, len);
    rp_buffer_append(out, bytes, len);
}

static void put_text(struct rp_buffer *out, uint32_t field, const char *text) {
    put_bytes(out, field, text, strlen(text));
}

/* Appends `part` as a message, and empties it. */
static void put_message(struct rp_buffer *out, uint32_t field, struct rp_buffer *part) {
    put_bytes(out, field, part->data, part->len);
    out->failed |= part->failed;
    rp_buffer_clear(part);
}

/* --- Packets --------------------------------------------------------------------------------- */

static void end_packet(struct rp_trace_pb *writer, struct rp_buffer *out) {
    struct rp_buffer *packet = &writer->packet;
    put_uint(packet, PACKET_SEQUENCE_ID, SEQUENCE);
    if (writer->interned.len)
        put_message(packet, PACKET_INTERNED_DATA, &writer->interned);
    put_message(out, TRACE_PACKET, packet);
}

/* The iid of a name, new ones go into the packet in work. Event and argument names share the
 * numbers, each is interned for both uses at once. 0: memory is out, or two names have one hash. */
static uint64_t intern(struct rp_trace_pb *writer, const char *name) {
    size_t len = strlen(name);
    uint64_t hash = rp_hash64(name, len, 0);
    uint32_t at = rp_trace_map_find(&writer->name_places, hash);
    if (at != RP_TRACE_NONE)
        return strcmp(writer->names.data + writer->offsets[at], name) == 0 ? at + 1 : 0;
    at = writer->name_count;
    if (writer->names.len > UINT32_MAX / 2 ||
        !rp_trace_grow(&writer->offsets, at, &writer->name_capacity, sizeof *writer->offsets) ||
        !rp_buffer_reserve(&writer->names, len + 1) ||
        !rp_trace_map_put(&writer->name_places, hash, at)) {
        writer->failed = true;
        return 0;
    }
    writer->offsets[at] = (uint32_t)writer->names.len;
    rp_buffer_append(&writer->names, name, len + 1);
    writer->name_count++;
    for (uint32_t field = INTERNED_EVENT_NAMES; field <= INTERNED_ANNOTATION_NAMES; field++) {
        put_uint(&writer->part, INTERNED_IID, at + 1);
        put_text(&writer->part, INTERNED_NAME, name);
        put_message(&writer->interned, field, &writer->part);
    }
    return at + 1;
}

static void add_annotation(struct rp_trace_pb *writer, const char *name, const char *text,
                           uint64_t value) {
    char clean[256];
    uint64_t iid = intern(writer, name);
    if (text) {
        snprintf(clean, sizeof clean, "%s", text);
        rp_trace_clean(clean);
        text = clean;
    }
    put_uint(&writer->part, ANNOTATION_NAME_IID, iid);
    if (text)
        put_text(&writer->part, ANNOTATION_STRING, text);
    else
        put_uint(&writer->part, ANNOTATION_UINT, value);
    put_message(&writer->event, EVENT_DEBUG_ANNOTATIONS, &writer->part);
}

static void begin_event(struct rp_trace_pb *writer, int type, uint64_t track, uint64_t ns) {
    put_uint(&writer->packet, PACKET_TIMESTAMP, ns);
    put_uint(&writer->packet, PACKET_SEQUENCE_FLAGS, NEEDS_INCREMENTAL_STATE);
    put_uint(&writer->event, EVENT_TYPE, (uint64_t)type);
    put_uint(&writer->event, EVENT_TRACK_UUID, track);
}

static void end_event(struct rp_trace_pb *writer, struct rp_buffer *out) {
    put_message(&writer->packet, PACKET_TRACK_EVENT, &writer->event);
    end_packet(writer, out);
}

static void set_name(struct rp_trace_pb *writer, const char *name) {
    uint64_t iid = intern(writer, name);
    put_uint(&writer->event, EVENT_NAME_IID, iid);
}

/* --- Tracks ---------------------------------------------------------------------------------- */

/* A track's fields; the caller may add more before end_track. */
static void begin_track(struct rp_trace_pb *writer, uint64_t uuid, uint64_t parent,
                        const char *name, uint32_t rank) {
    struct rp_buffer *event = &writer->event;
    put_uint(event, TRACK_UUID, uuid);
    put_text(event, TRACK_NAME, name);
    if (parent)
        put_uint(event, TRACK_PARENT_UUID, parent);
    put_uint(event, TRACK_CHILD_ORDERING, ORDER_EXPLICIT);
    put_uint(event, TRACK_SIBLING_ORDER_RANK, rank);
    put_uint(event, TRACK_SIBLING_MERGE_BEHAVIOR, MERGE_NONE);
}

static void end_track(struct rp_trace_pb *writer, struct rp_buffer *out) {
    put_message(&writer->packet, PACKET_TRACK_DESCRIPTOR, &writer->event);
    end_packet(writer, out);
}

static void put_clock(struct rp_trace_pb *writer, uint32_t clock, uint64_t ns) {
    put_uint(&writer->part, CLOCK_ID, clock);
    put_uint(&writer->part, CLOCK_TIMESTAMP, ns);
    put_message(&writer->event, SNAPSHOT_CLOCKS, &writer->part);
}

/* The equivalent of otherData in JSON: an instant at the begin of a separate track. */
static void write_about(struct rp_trace_pb *writer, struct rp_buffer *out) {
    const struct rp_trace_info *info = &writer->model->info;
    begin_track(writer, UUID_TRACE, 0, "trace", 0);
    end_track(writer, out);
    begin_event(writer, INSTANT, UUID_TRACE, info->begin_ns);
    set_name(writer, "trace");
    add_annotation(writer, "producer", "reprise", 0);
    add_annotation(writer, "version", info->version ? info->version : "", 0);
    if (info->model)
        add_annotation(writer, "model", info->model, 0);
    if (info->reason)
        add_annotation(writer, "reason", info->reason, 0);
    add_annotation(writer, "wanted_ns", NULL, info->wanted_ns);
    add_annotation(writer, "window_ns", NULL, info->end_ns - info->begin_ns);
    add_annotation(writer, "whole", NULL, info->whole);
    add_annotation(writer, "end_unix_ns", NULL, info->unix_ns);
    add_annotation(writer, "slices_without_a_row", NULL, writer->model->dropped);
    end_event(writer, out);
}

static void write_header(struct rp_trace_pb *writer, struct rp_buffer *out) {
    const struct rp_trace_info *info = &writer->model->info;
    put_uint(&writer->packet, PACKET_SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
    put_uint(&writer->part, DEFAULTS_TIMESTAMP_CLOCK_ID, MONOTONIC);
    put_message(&writer->packet, PACKET_TRACE_PACKET_DEFAULTS, &writer->part);
    put_clock(writer, MONOTONIC, info->end_ns);
    put_clock(writer, BOOTTIME, info->end_ns);
    put_clock(writer, REALTIME, info->unix_ns);
    put_uint(&writer->event, SNAPSHOT_PRIMARY_TRACE_CLOCK, MONOTONIC);
    put_message(&writer->packet, PACKET_CLOCK_SNAPSHOT, &writer->event);
    end_packet(writer, out);
    write_about(writer, out);
    for (uint32_t i = 0; i < RP_GROUP_COUNT; i++) {
        begin_track(writer, UUID_GROUP + i, 0, rp_trace_groups[i], i + 1);
        end_track(writer, out);
    }
}

static void write_track(struct rp_trace_pb *writer, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_track *track = &writer->model->tracks[index];
    char name[RP_TRACE_NAME_MAX];
    if (track->item_count == 0)
        return;
    rp_trace_track_name(writer->model, track, name);
    begin_track(writer, UUID_TRACK + index, UUID_GROUP + track->group, name,
                rp_trace_track_number(track));
    end_track(writer, out);
}

/* The track of a series: numbered over counters, so that further kinds of events change nothing. */
static uint32_t series_number(uint32_t kind, uint32_t series) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < kind; i++)
        before += rp_trace_kinds[i].shape == RP_TRACE_COUNTER;
    return before * SERIES_MAX + series;
}

/* The tracks of one kind of counter. */
static void write_series(struct rp_trace_pb *writer, struct rp_buffer *out, uint32_t kind) {
    const struct rp_trace_event event = {.kind = (uint16_t)kind};
    char text[RP_TRACE_NAME_MAX];
    const char *name;
    uint64_t value;
    if (rp_trace_kinds[kind].shape != RP_TRACE_COUNTER)
        return;
    for (uint32_t i = 0; (name = rp_trace_series(&event, i, &value)); i++) {
        snprintf(text, sizeof text, "%s %s", rp_trace_kinds[kind].name, name);
        begin_track(writer, UUID_COUNTER + series_number(kind, i), UUID_GROUP + RP_GROUP_COUNTERS,
                    text, series_number(kind, i));
        put_bytes(&writer->event, TRACK_COUNTER, NULL, 0);
        end_track(writer, out);
    }
}

/* --- Events ---------------------------------------------------------------------------------- */

static void write_sample(struct rp_trace_pb *writer, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_sample *sample = &writer->model->samples[index];
    const struct rp_trace_event *event = &writer->model->events[sample->event];
    uint64_t value = 0;
    for (uint32_t i = 0; rp_trace_series(event, i, &value); i++) {
        begin_event(writer, COUNTER, UUID_COUNTER + series_number(event->kind, i), sample->ns);
        put_uint(&writer->event, EVENT_COUNTER_VALUE, RP_MIN(value, (uint64_t)INT64_MAX));
        end_event(writer, out);
    }
}

static void add_flows(struct rp_trace_pb *writer, const struct rp_trace_item *item) {
    for (uint32_t i = 0; i < item->flow_count; i++) {
        const struct rp_trace_flow *flow = &writer->model->flows[item->flow + i];
        bool last = item->what == (flow->has_token ? RP_TRACE_TOKEN : RP_TRACE_REPLAY);
        if (flow->whole)
            put_fixed64(&writer->event, last ? EVENT_TERMINATING_FLOW_IDS : EVENT_FLOW_IDS,
                        (uint64_t)item->flow + i + 1);
    }
}

static void write_begin(struct rp_trace_pb *writer, struct rp_buffer *out, int type,
                        const struct rp_trace_item *item) {
    struct rp_trace_arg args[RP_TRACE_ARGS_MAX];
    char name[RP_TRACE_NAME_MAX], text[RP_TRACE_NAME_MAX];
    uint32_t count = rp_trace_item_args(writer->model, item, args, text);
    rp_trace_item_name(writer->model, item, name);
    begin_event(writer, type, UUID_TRACK + item->track, item->begin_ns);
    set_name(writer, name);
    for (uint32_t i = 0; i < count; i++)
        add_annotation(writer, args[i].name, args[i].text, args[i].value);
    add_flows(writer, item);
    end_event(writer, out);
}

static void close_slices(struct rp_trace_pb *writer, struct rp_buffer *out, uint32_t depth) {
    while (writer->open_count > depth) {
        const struct rp_trace_item *item =
            &writer->model->items[writer->open[--writer->open_count]];
        begin_event(writer, SLICE_END, UUID_TRACK + item->track, item->end_ns);
        end_event(writer, out);
    }
}

static void write_item(struct rp_trace_pb *writer, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_item *item = &writer->model->items[index];
    bool instant = item->flags & RP_ITEM_INSTANT;
    if (index == writer->model->tracks[item->track].first_item)
        close_slices(writer, out, 0);
    while (instant && writer->open_count &&
           writer->model->items[writer->open[writer->open_count - 1]].end_ns < item->begin_ns)
        close_slices(writer, out, writer->open_count - 1);
    if (!instant)
        close_slices(writer, out, item->depth);
    write_begin(writer, out, instant ? INSTANT : SLICE_BEGIN, item);
    if (!instant)
        writer->open[writer->open_count++] = index;
}

/* --- Pieces ---------------------------------------------------------------------------------- */

static void step(struct rp_trace_pb *writer, struct rp_buffer *out) {
    const struct rp_trace_model *model = writer->model;
    uint32_t counts[] = {[HEADER] = 1,
                         [TRACKS] = model->track_count,
                         [SERIES] = RP_TRACE_KIND_COUNT,
                         [SAMPLES] = model->sample_count,
                         [ITEMS] = model->item_count};
    if (writer->index == counts[writer->stage]) {
        close_slices(writer, out, 0);
        writer->stage++;
        writer->index = 0;
        return;
    }
    uint32_t index = writer->index++;
    switch ((enum stage)writer->stage) {
    case HEADER:
        write_header(writer, out);
        break;
    case TRACKS:
        write_track(writer, out, index);
        break;
    case SERIES:
        write_series(writer, out, index);
        break;
    case SAMPLES:
        write_sample(writer, out, index);
        break;
    default:
        write_item(writer, out, index);
        break;
    }
    out->failed |= writer->failed || writer->packet.failed || writer->event.failed;
}

bool rp_trace_pb_next(struct rp_trace_pb *writer, struct rp_buffer *out, size_t bytes) {
    size_t begin = out->len;
    while (writer->stage != DONE && !out->failed && out->len - begin < bytes)
        step(writer, out);
    return writer->stage != DONE && !out->failed;
}

void rp_trace_pb_init(struct rp_trace_pb *writer, const struct rp_trace_model *model) {
    memset(writer, 0, sizeof *writer);
    writer->model = model;
}

void rp_trace_pb_deinit(struct rp_trace_pb *writer) {
    rp_buffer_deinit(&writer->packet);
    rp_buffer_deinit(&writer->event);
    rp_buffer_deinit(&writer->part);
    rp_buffer_deinit(&writer->interned);
    rp_buffer_deinit(&writer->names);
    rp_trace_map_deinit(&writer->name_places);
    rp_free(writer->offsets);
    memset(writer, 0, sizeof *writer);
}
