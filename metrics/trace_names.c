/* trace_names.c - what a trace calls things, and the arguments that it shows of them. */
#include "metrics/trace_model.h"

#include "base/utf8.h"
#include "metrics/trace_build.h"

#include <stdio.h>
#include <string.h>

static const char *const made_names[RP_MADE_END - RP_TRACE_KIND_COUNT] = {
    "request", "queued", "prefill", "prefill chunk", "decode", "swapped", "stream wait"};

static const char *what_name(uint16_t what) {
    return what < RP_TRACE_KIND_COUNT ? rp_trace_kinds[what].name
                                      : made_names[what - RP_TRACE_KIND_COUNT];
}

void rp_trace_clean(char *text) {
    for (size_t left = strlen(text); left > 0;) {
        uint32_t code = 0;
        int len = rp_utf8_decode(text, left, &code);
        if (len <= 0 || code < 0x20) {
            *text = '?';
            len = 1;
        }
        text += len;
        left -= (size_t)len;
    }
}

/* The given name of a number, or "prefix number". */
static void look_up(const struct rp_trace_model *model, enum rp_trace_name_of of, uint32_t bucket,
                    uint32_t value, const char *prefix, char out[RP_TRACE_NAME_MAX]) {
    const struct rp_trace_names *names = &model->info.names;
    if (names->name && names->name(names->ctx, of, bucket, value, out, RP_TRACE_NAME_MAX)) {
        out[RP_TRACE_NAME_MAX - 1] = '\0';
        rp_trace_clean(out);
        return;
    }
    snprintf(out, RP_TRACE_NAME_MAX, "%s%u", prefix, value);
}

void rp_trace_item_name(const struct rp_trace_model *model, const struct rp_trace_item *item,
                        char out[RP_TRACE_NAME_MAX]) {
    const struct rp_trace_event *event =
        item->what < RP_TRACE_KIND_COUNT ? &model->events[item->source] : NULL;
    const struct rp_trace_track *track = &model->tracks[item->track];
    char text[RP_TRACE_NAME_MAX];
    if (item->what == RP_TRACE_REPLAY) {
        look_up(model, RP_NAME_BUCKET, 0, event->b, "bucket ", out);
    } else if (item->what == RP_TRACE_NODE) {
        look_up(model, RP_NAME_NODE, event->b, event->a, "node ", out);
    } else if (item->what == RP_TRACE_RANK_NODE) {
        look_up(model, RP_NAME_NODE, event->b, event->a & 0xFFFFu, "node ", out);
    } else if (item->what == RP_TRACE_IDLE) {
        snprintf(out, RP_TRACE_NAME_MAX, "idle: %s",
                 event->b < RP_IDLE_CAUSE_COUNT ? rp_idle_causes[event->b] : "?");
    } else if (item->what == RP_TRACE_COPY) {
        snprintf(out, RP_TRACE_NAME_MAX, "copy %s",
                 event->b < RP_COPIES_DIRECTION_COUNT ? rp_copy_directions[event->b] : "?");
    } else if (item->what == RP_TRACE_WORK) {
        snprintf(out, RP_TRACE_NAME_MAX, "work: %s",
                 event->b < RP_TRACE_JOB_COUNT ? rp_trace_jobs[event->b] : "?");
    } else if (item->what == RP_MADE_REQUEST) {
        snprintf(out, RP_TRACE_NAME_MAX, "request %llu",
                 (unsigned long long)model->requests[item->source].id);
    } else if (track->group == RP_GROUP_BATCH) {
        snprintf(out, RP_TRACE_NAME_MAX, "%s %llu", what_name(item->what),
                 (unsigned long long)model->requests[item->source].id);
    } else {
        snprintf(text, sizeof text, "%s", what_name(item->what));
        memcpy(out, text, sizeof text);
    }
}

struct args {
    struct rp_trace_arg *out;
    uint32_t count;
};

static void add(struct args *args, const char *name, uint64_t value) {
    if (args->count < RP_TRACE_ARGS_MAX && name[0])
        args->out[args->count++] = (struct rp_trace_arg){.name = name, .value = value};
}

static void add_text(struct args *args, const char *name, const char *text) {
    if (args->count < RP_TRACE_ARGS_MAX)
        args->out[args->count++] = (struct rp_trace_arg){.name = name, .text = text};
}

static void request_args(const struct rp_trace_model *model, const struct rp_trace_item *item,
                         struct args *args, char text[RP_TRACE_NAME_MAX]) {
    const struct rp_trace_request *request = &model->requests[item->source];
    add(args, "request", request->id);
    if (request->prompt_tokens)
        add(args, "prompt_tokens", request->prompt_tokens);
    if (request->max_tokens)
        add(args, "max_tokens", request->max_tokens);
    add(args, "cached_tokens", request->cached_tokens);
    add(args, "chunks", request->chunks);
    add(args, "tokens", request->tokens);
    add(args, "swaps", request->swaps);
    if (request->closed) {
        look_up(model, RP_NAME_REASON, 0, request->reason, "", text);
        add_text(args, "finish_reason", text);
    }
    if (request->answered)
        add(args, "status", request->status);
}

static void event_args(const struct rp_trace_model *model, const struct rp_trace_item *item,
                       struct args *args) {
    const struct rp_trace_event *event = &model->events[item->source];
    const struct rp_trace_kind_info *kind = &rp_trace_kinds[event->kind];
    if (event->kind == RP_TRACE_RANK_NODE) {
        add(args, "rank", event->a >> 16);
        add(args, "node", event->a & 0xFFFFu);
    } else {
        add(args, kind->a, event->a);
    }
    add(args, kind->b, event->b);
    bool on_its_track = model->tracks[item->track].group == RP_GROUP_REQUESTS;
    if (!on_its_track || strcmp(kind->id, "request") != 0)
        add(args, kind->id, event->id);
    if (kind->shape != RP_TRACE_SPAN)
        add(args, kind->v, event->v);
    if (event->kind != RP_TRACE_REPLAY)
        return;
    uint32_t padding = rp_trace_map_find(&model->paddings, event->id);
    if (padding != RP_TRACE_NONE) {
        add(args, "padded_tokens", model->events[padding].a);
        add(args, "rows", model->events[padding].v);
    }
    uint32_t miss = rp_trace_map_find(&model->misses, event->id);
    if (miss != RP_TRACE_NONE)
        add_text(args, rp_trace_kinds[RP_TRACE_MISS].name,
                 model->events[miss].b < RP_MISS_COUNT ? rp_replay_misses[model->events[miss].b]
                                                       : "?");
}

uint32_t rp_trace_item_args(const struct rp_trace_model *model, const struct rp_trace_item *item,
                            struct rp_trace_arg out[RP_TRACE_ARGS_MAX],
                            char text[RP_TRACE_NAME_MAX]) {
    struct args args = {out, 0};
    if (item->what == RP_MADE_REQUEST)
        request_args(model, item, &args, text);
    else if (model->tracks[item->track].group == RP_GROUP_BATCH)
        add(&args, "request", model->requests[item->source].id);
    else if (item->source != RP_TRACE_NONE)
        event_args(model, item, &args);
    if (item->flags & RP_ITEM_BEGAN_EARLIER)
        add(&args, "began_earlier", 1);
    if (item->flags & RP_ITEM_UNFINISHED)
        add(&args, "unfinished", 1);
    return args.count;
}

void rp_trace_track_name(const struct rp_trace_model *model, const struct rp_trace_track *track,
                         char out[RP_TRACE_NAME_MAX]) {
    (void)model;
    if (track->group == RP_GROUP_REQUESTS)
        snprintf(out, RP_TRACE_NAME_MAX, "request %llu", (unsigned long long)track->request);
    else if (track->group == RP_GROUP_BATCH)
        snprintf(out, RP_TRACE_NAME_MAX, "place %u", track->row);
    else if (track->lane == RP_LANE_RANKS && track->group == RP_GROUP_DEVICE)
        snprintf(out, RP_TRACE_NAME_MAX, "nodes of rank %u", track->row / RP_TRACE_ROWS_MAX + 1);
    else if (track->row)
        snprintf(out, RP_TRACE_NAME_MAX, "%s (%u)", rp_trace_lanes[track->lane], track->row + 1);
    else
        snprintf(out, RP_TRACE_NAME_MAX, "%s", rp_trace_lanes[track->lane]);
}

uint32_t rp_trace_track_number(const struct rp_trace_track *track) {
    bool lane = track->group == RP_GROUP_HOST || track->group == RP_GROUP_DEVICE;
    return 1 + track->row + (lane ? 1000u * (uint32_t)track->lane : 0);
}

const char *rp_trace_series(const struct rp_trace_event *event, uint32_t i, uint64_t *out_value) {
    const struct rp_trace_kind_info *kind = &rp_trace_kinds[event->kind];
    const struct {
        const char *name;
        uint64_t value;
    } series[] = {
        {kind->a, event->a}, {kind->b, event->b}, {kind->id, event->id}, {kind->v, event->v}};
    for (size_t k = 0; k < RP_ARRAY_COUNT(series); k++) {
        if (series[k].name[0] == '\0')
            continue;
        if (i-- == 0) {
            *out_value = series[k].value;
            return series[k].name;
        }
    }
    return NULL;
}
