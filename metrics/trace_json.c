#include "metrics/trace_json.h"

#include "base/json_writer.h"

#include <inttypes.h>
#include <string.h>

enum stage { HEADER, TRACKS, SAMPLES, ITEMS, FLOWS, TRAILER, DONE };
/* pid: the group and 1; of requests all share a thread, ids tell them apart. */
enum { REQUESTS_TID = 1, COUNTERS_TID = 1 };

static void write_time(struct rp_buffer *out, const char *key, uint64_t ns) {
    rp_buffer_printf(out, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static uint64_t since_begin(const struct rp_trace_model *model, uint64_t ns) {
    return ns > model->info.begin_ns ? ns - model->info.begin_ns : 0;
}

/* {"ph":"X","pid":1,"tid":2,"ts":3.000 - its end is the caller's. */
static void begin_event(struct rp_trace_cursor *cursor, struct rp_buffer *out, char phase,
                        uint32_t pid, uint32_t tid, uint64_t ns) {
    rp_buffer_puts(out, cursor->any ? ",\n" : "\n");
    cursor->any = true;
    rp_buffer_printf(out, "{\"ph\":\"%c\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32, phase, pid, tid);
    write_time(out, "ts", since_begin(cursor->model, ns));
}

static void write_name(struct rp_buffer *out, const char *name) {
    rp_buffer_puts(out, ",\"name\":");
    rp_json_escape(out, name, strlen(name));
}

static void write_args(const struct rp_trace_cursor *cursor, struct rp_buffer *out,
                       const struct rp_trace_item *item) {
    struct rp_trace_arg args[RP_TRACE_ARGS_MAX];
    char text[RP_TRACE_NAME_MAX];
    uint32_t count = rp_trace_item_args(cursor->model, item, args, text);
    for (uint32_t i = 0; i < count; i++) {
        rp_buffer_printf(out, "%s\"%s\":", i ? "," : ",\"args\":{", args[i].name);
        if (args[i].text)
            rp_json_escape(out, args[i].text, strlen(args[i].text));
        else
            rp_buffer_printf(out, "%" PRIu64, args[i].value);
    }
    if (count)
        rp_buffer_puts(out, "}");
}

/* --- Names ----------------------------------------------------------------------------------- */

static void write_meta(struct rp_trace_cursor *cursor, struct rp_buffer *out, const char *what,
                       uint32_t pid, uint32_t tid, const char *name, uint32_t order) {
    begin_event(cursor, out, 'M', pid, tid, 0);
    rp_buffer_printf(out, ",\"name\":\"%s_name\",\"args\":{\"name\":", what);
    rp_json_escape(out, name, strlen(name));
    rp_buffer_puts(out, "}}");
    begin_event(cursor, out, 'M', pid, tid, 0);
    rp_buffer_printf(out, ",\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
                     what, order);
}

static void write_header(struct rp_trace_cursor *cursor, struct rp_buffer *out) {
    /* With "ms" chrome://tracing rounds ends to microseconds: a shorter slice sinks into the one
     * before it, and it looks there in vain for where an arrow goes. */
    rp_buffer_puts(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (uint32_t i = 0; i < RP_GROUP_COUNT; i++)
        write_meta(cursor, out, "process", i + 1, 0, rp_trace_groups[i], i);
    write_meta(cursor, out, "thread", RP_GROUP_REQUESTS + 1, REQUESTS_TID, "requests", 0);
    write_meta(cursor, out, "thread", RP_GROUP_COUNTERS + 1, COUNTERS_TID, "counters", 0);
}

static void write_track(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_track *track = &cursor->model->tracks[index];
    char name[RP_TRACE_NAME_MAX];
    if (track->group == RP_GROUP_REQUESTS || track->item_count == 0)
        return;
    uint32_t tid = rp_trace_track_number(track);
    rp_trace_track_name(cursor->model, track, name);
    write_meta(cursor, out, "thread", track->group + 1, tid, name, tid);
}

/* --- Events ---------------------------------------------------------------------------------- */

static void write_sample(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_sample *sample = &cursor->model->samples[index];
    const struct rp_trace_event *event = &cursor->model->events[sample->event];
    const char *name;
    uint64_t value = 0;
    begin_event(cursor, out, 'C', RP_GROUP_COUNTERS + 1, COUNTERS_TID, sample->ns);
    write_name(out, rp_trace_kinds[event->kind].name);
    for (uint32_t i = 0; (name = rp_trace_series(event, i, &value)); i++)
        rp_buffer_printf(out, "%s\"%s\":%" PRIu64, i ? "," : ",\"args\":{", name, value);
    rp_buffer_puts(out, "}}");
}

/* An event of a request's own track; all of one id nest. */
static void write_async(struct rp_trace_cursor *cursor, struct rp_buffer *out,
                        const struct rp_trace_item *item, char phase, uint64_t ns) {
    const struct rp_trace_track *track = &cursor->model->tracks[item->track];
    char name[RP_TRACE_NAME_MAX];
    rp_trace_item_name(cursor->model, item, name);
    begin_event(cursor, out, phase, track->group + 1, REQUESTS_TID, ns);
    rp_buffer_printf(out, ",\"cat\":\"request\",\"id2\":{\"local\":\"0x%" PRIx64 "\"}",
                     track->request);
    write_name(out, name);
    if (phase != 'e')
        write_args(cursor, out, item);
    rp_buffer_puts(out, "}");
}

/* Ends the slices that an item of this depth cannot be in. */
static void close_slices(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint32_t depth) {
    while (cursor->open_count > depth) {
        const struct rp_trace_item *item =
            &cursor->model->items[cursor->open[--cursor->open_count]];
        write_async(cursor, out, item, 'e', item->end_ns);
    }
}

/* Those that are over before ns. */
static void close_ended(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint64_t ns) {
    while (cursor->open_count &&
           cursor->model->items[cursor->open[cursor->open_count - 1]].end_ns < ns)
        close_slices(cursor, out, cursor->open_count - 1);
}

static void write_request_item(struct rp_trace_cursor *cursor, struct rp_buffer *out,
                               uint32_t index) {
    const struct rp_trace_item *item = &cursor->model->items[index];
    if (item->flags & RP_ITEM_INSTANT) {
        close_ended(cursor, out, item->begin_ns);
        /* A row of a decode step shows in the batch. */
        if (item->what != RP_TRACE_ROW)
            write_async(cursor, out, item, 'n', item->begin_ns);
        return;
    }
    close_slices(cursor, out, item->depth);
    write_async(cursor, out, item, 'b', item->begin_ns);
    cursor->open[cursor->open_count++] = index;
}

static void write_item(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_item *item = &cursor->model->items[index];
    const struct rp_trace_track *track = &cursor->model->tracks[item->track];
    char name[RP_TRACE_NAME_MAX];
    if (index == track->first_item)
        close_slices(cursor, out, 0);
    if (track->group == RP_GROUP_REQUESTS) {
        write_request_item(cursor, out, index);
        return;
    }
    rp_trace_item_name(cursor->model, item, name);
    begin_event(cursor, out, 'X', track->group + 1, rp_trace_track_number(track), item->begin_ns);
    write_time(out, "dur", item->end_ns - item->begin_ns);
    write_name(out, name);
    write_args(cursor, out, item);
    rp_buffer_puts(out, "}");
}

static void write_flow_event(struct rp_trace_cursor *cursor, struct rp_buffer *out, char phase,
                             uint32_t track, uint64_t ns, uint32_t id) {
    const struct rp_trace_track *at = &cursor->model->tracks[track];
    begin_event(cursor, out, phase, at->group + 1, rp_trace_track_number(at), ns);
    rp_buffer_printf(out, ",\"cat\":\"flow\",\"name\":\"row\",\"id\":%" PRIu32 "%s}", id,
                     phase == 'f' ? ",\"bp\":\"e\"" : "");
}

static void write_flow(struct rp_trace_cursor *cursor, struct rp_buffer *out, uint32_t index) {
    const struct rp_trace_model *model = cursor->model;
    const struct rp_trace_flow *flow = &model->flows[index];
    if (!flow->whole)
        return;
    uint32_t launch = model->items[flow->launch_item].track;
    uint32_t replay = model->items[flow->replay_item].track;
    bool token = flow->has_token && flow->token_in_batch; /* else there is no slice to end in */
    write_flow_event(cursor, out, 's', flow->batch_track, flow->start_ns, index + 1);
    write_flow_event(cursor, out, 't', launch, flow->launch_ns, index + 1);
    write_flow_event(cursor, out, token ? 't' : 'f', replay, flow->replay_ns, index + 1);
    if (token)
        write_flow_event(cursor, out, 'f', flow->batch_track, flow->token_ns, index + 1);
}

static void write_trailer(struct rp_trace_cursor *cursor, struct rp_buffer *out) {
    const struct rp_trace_model *model = cursor->model;
    const struct rp_trace_info *info = &model->info;
    struct rp_json json;
    rp_buffer_puts(out, "\n],\"otherData\":");
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "producer", "reprise");
    rp_json_string(&json, "version", info->version ? info->version : "");
    if (info->model)
        rp_json_string(&json, "model", info->model);
    if (info->reason)
        rp_json_string(&json, "reason", info->reason);
    rp_json_double(&json, "seconds_wanted", (double)info->wanted_ns / 1e9);
    rp_json_double(&json, "seconds", (double)(info->end_ns - info->begin_ns) / 1e9);
    rp_json_bool(&json, "whole", info->whole);
    rp_json_uint(&json, "begin_monotonic_ns", info->begin_ns);
    rp_json_uint(&json, "end_unix_ns", info->unix_ns);
    rp_json_uint(&json, "slices_without_a_row", model->dropped);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "}\n");
}

/* One unit of the stage; moves on to the next stage after its last. */
static void step(struct rp_trace_cursor *cursor, struct rp_buffer *out) {
    const struct rp_trace_model *model = cursor->model;
    uint32_t counts[] = {[HEADER] = 1,
                         [TRACKS] = model->track_count,
                         [SAMPLES] = model->sample_count,
                         [ITEMS] = model->item_count,
                         [FLOWS] = model->flow_count,
                         [TRAILER] = 1};
    if (cursor->index == counts[cursor->stage]) {
        if (cursor->stage == ITEMS)
            close_slices(cursor, out, 0);
        cursor->stage++;
        cursor->index = 0;
        return;
    }
    uint32_t index = cursor->index++;
    switch ((enum stage)cursor->stage) {
    case HEADER:
        write_header(cursor, out);
        break;
    case TRACKS:
        write_track(cursor, out, index);
        break;
    case SAMPLES:
        write_sample(cursor, out, index);
        break;
    case ITEMS:
        write_item(cursor, out, index);
        break;
    case FLOWS:
        write_flow(cursor, out, index);
        break;
    default:
        write_trailer(cursor, out);
        break;
    }
}

bool rp_trace_json_next(struct rp_trace_cursor *cursor, struct rp_buffer *out, size_t bytes) {
    size_t begin = out->len;
    while (cursor->stage != DONE && !out->failed && out->len - begin < bytes)
        step(cursor, out);
    return cursor->stage != DONE && !out->failed;
}
