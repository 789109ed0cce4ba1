/* trace_lives.c - requests out of events: a small state machine each, fed in order of time.
 *
 *   RECEIVED  TOKENIZED  QUEUED  ADMITTED   ROW ... ROW    TOKEN   ROW, TOKEN ...   CLOSED       ANSWERED
 *   |---------|tokenize|-|queued-|prefill, chunk ... chunk-|decode -----------------|stream_wait-|
 *                                        SWAP_OUT ends a phase, SWAP_IN (or a ROW) resumes it
 *
 * What is missing (older than the events, or not over yet) is deduced: a request that is first seen
 * in a decode row was decoding. Rows of decode steps need no ROW: their TOKEN implies them. With
 * run-ahead a ROW may come before the TOKEN of the step before, and TOKENs after a SWAP_OUT. */
#include "metrics/trace_build.h"

#include "base/memory.h"

#include <string.h>

enum { ROWS_IN_FLIGHT = 4, CHUNKS_IN_FLIGHT = 4 };

struct life {
    uint64_t begin_ns, phase_ns, end_ns;     /* end: of CLOSED and ANSWERED the later one so far */
    uint32_t track, batch_track, left_track; /* left: the place that it had last */
    uint32_t phase_source;
    uint16_t phase, resumed; /* rp_trace_made; 0: none */
    bool began_earlier, phase_earlier;
    bool fresh; /* no phase began yet */
    struct {
        uint64_t step;
        uint32_t flow;
    } rows[ROWS_IN_FLIGHT]; /* flow RP_TRACE_NONE: free */
    uint32_t next_row;
    /* Prompt chunks that were planned, and may have to be cut when the phase ends. */
    struct {
        uint64_t begin_ns, end_ns;
        uint32_t source;
    } chunks[CHUNKS_IN_FLIGHT];
    uint32_t chunk_count;
};

/* Tracks of the batch. */
struct place {
    uint32_t track;
    bool taken;
    uint64_t free_ns; /* who had it last left it then */
};

struct lives {
    struct rp_trace_builder *builder;
    struct rp_trace_map by_id;
    struct life *lives; /* parallel to model->requests */
    uint32_t capacity;
    struct place *places;
    uint32_t place_count, place_capacity;
};

/* --- Places in the batch --------------------------------------------------------------------- */

/* For a request that is in the batch from ns on: it may be known of later than others that came
 * after it. */
static uint32_t take_place(struct lives *all, uint64_t ns) {
    struct rp_trace_track track = {.group = RP_GROUP_BATCH, .row = all->place_count};
    for (uint32_t i = 0; i < all->place_count; i++) {
        struct place *place = &all->places[i];
        if (place->taken || place->free_ns > ns)
            continue;
        place->taken = true;
        return place->track;
    }
    if (!rp_trace_grow(&all->places, all->place_count, &all->place_capacity, sizeof *all->places)) {
        all->builder->failed = true;
        return RP_TRACE_NONE;
    }
    uint32_t index = rp_trace_add_track(all->builder, &track);
    if (index != RP_TRACE_NONE)
        all->places[all->place_count++] = (struct place){.track = index, .taken = true};
    return index;
}

/* At the end of its phase. */
static void leave_place(struct lives *all, struct life *life) {
    if (life->batch_track == RP_TRACE_NONE)
        return;
    struct place *place = &all->places[all->builder->model->tracks[life->batch_track].row];
    place->taken = false;
    place->free_ns = life->phase_ns;
    life->left_track = life->batch_track;
    life->batch_track = RP_TRACE_NONE;
}

/* --- Phases ---------------------------------------------------------------------------------- */

static bool in_batch(uint16_t phase) { return phase == RP_MADE_PREFILL || phase == RP_MADE_DECODE; }

/* Adds the oldest chunk, cut to what of it lies before ns. */
static void settle_chunk(struct lives *all, struct life *life, uint64_t ns) {
    struct rp_trace_item item = {.begin_ns = life->chunks[0].begin_ns,
                                 .end_ns = RP_MIN(life->chunks[0].end_ns, ns),
                                 .track = life->track,
                                 .source = life->chunks[0].source,
                                 .what = RP_MADE_CHUNK,
                                 .depth = 2};
    if (item.begin_ns < item.end_ns)
        rp_trace_add_item(all->builder, &item);
    life->chunk_count--;
    memmove(life->chunks, life->chunks + 1, life->chunk_count * sizeof life->chunks[0]);
}

static void end_phase(struct lives *all, struct life *life, uint64_t ns, uint8_t flags) {
    struct rp_trace_builder *builder = all->builder;
    if (!life->phase)
        return;
    ns = RP_MAX(ns, life->phase_ns);
    while (life->chunk_count)
        settle_chunk(all, life, ns);
    struct rp_trace_item item = {
        .begin_ns = life->phase_ns,
        .end_ns = ns,
        .track = life->track,
        .source = life->phase_source,
        .what = life->phase,
        .flags = (uint8_t)(flags | (life->phase_earlier ? RP_ITEM_BEGAN_EARLIER : 0)),
        .depth = 1};
    rp_trace_add_item(builder, &item);
    if (in_batch(life->phase) && life->batch_track != RP_TRACE_NONE) {
        item.track = life->batch_track;
        item.depth = 0;
        item.source = (uint32_t)(life - all->lives);
        rp_trace_add_item(builder, &item);
    }
    life->phase = 0;
    life->phase_ns = ns;
    life->phase_earlier = false;
}

static void begin_phase(struct lives *all, struct life *life, uint16_t phase, uint64_t ns,
                        uint32_t source) {
    end_phase(all, life, ns, 0);
    if (!in_batch(phase))
        leave_place(all, life);
    life->phase = phase;
    life->phase_ns = RP_MAX(ns, life->phase_ns);
    life->phase_source = source;
    life->fresh = false;
    if (in_batch(phase) && life->batch_track == RP_TRACE_NONE)
        life->batch_track = take_place(all, life->phase_ns);
}

/* A request that is met as it decodes did so at ns already, which may be earlier than what was seen
 * of it. */
static void begin_in_decode(struct lives *all, struct life *life, uint64_t ns) {
    if (life->fresh) {
        life->phase_ns = RP_MIN(life->phase_ns, ns);
        life->begin_ns = RP_MIN(life->begin_ns, ns);
    }
    begin_phase(all, life, RP_MADE_DECODE, ns, RP_TRACE_NONE);
    life->phase_earlier = true;
}

/* One prompt chunk, for as long as its step was on the device. */
static void add_chunk(struct lives *all, struct life *life, const struct rp_trace_event *row,
                      uint32_t source) {
    struct rp_trace_model *model = all->builder->model;
    uint32_t replay = rp_trace_map_find(&model->replays, row->v);
    uint64_t begin = RP_MAX(row->ns, life->phase_ns), end;
    if (replay == RP_TRACE_NONE)
        return;
    begin = RP_MAX(begin, model->events[replay].ns);
    end = rp_trace_end(&model->events[replay]);
    while (life->chunk_count &&
           (life->chunks[0].end_ns <= row->ns || life->chunk_count == CHUNKS_IN_FLIGHT))
        settle_chunk(all, life, row->ns);
    if (life->chunk_count)
        begin = RP_MAX(begin, life->chunks[life->chunk_count - 1].end_ns);
    if (begin >= end)
        return;
    life->chunks[life->chunk_count].begin_ns = begin;
    life->chunks[life->chunk_count].end_ns = end;
    life->chunks[life->chunk_count++].source = source;
}

static uint32_t add_instant(struct lives *all, const struct life *life, uint32_t source) {
    const struct rp_trace_event *event = &all->builder->model->events[source];
    struct rp_trace_item item = {.begin_ns = event->ns,
                                 .end_ns = event->ns,
                                 .track = life->track,
                                 .source = source,
                                 .what = event->kind,
                                 .flags = RP_ITEM_INSTANT};
    return rp_trace_add_item(all->builder, &item);
}

/* --- Flows ----------------------------------------------------------------------------------- */

/* A row of `step` that was recorded or is implied, at ns; source: its event. */
static void add_flow(struct lives *all, struct life *life, uint64_t step, uint64_t ns,
                     uint32_t source) {
    struct rp_trace_model *model = all->builder->model;
    struct rp_trace_item item = {.begin_ns = ns,
                                 .end_ns = ns,
                                 .track = life->track,
                                 .source = source,
                                 .flow = model->flow_count,
                                 .flow_count = 1,
                                 .what = RP_TRACE_ROW,
                                 .flags = RP_ITEM_INSTANT};
    if (!rp_trace_grow(&model->flows, model->flow_count, &model->flow_capacity,
                       sizeof *model->flows)) {
        all->builder->failed = true;
        return;
    }
    if (rp_trace_add_item(all->builder, &item) == RP_TRACE_NONE)
        return;
    bool left = life->batch_track == RP_TRACE_NONE; /* swapped out with its row in work */
    model->flows[model->flow_count] =
        (struct rp_trace_flow){.step = step,
                               .start_ns = ns,
                               .request = (uint32_t)(life - all->lives),
                               .batch_track = left ? life->left_track : life->batch_track,
                               .launch_item = RP_TRACE_NONE,
                               .replay_item = RP_TRACE_NONE,
                               .made = model->flow_count};
    life->rows[life->next_row].step = step;
    life->rows[life->next_row].flow = model->flow_count++;
    life->next_row = (life->next_row + 1) % ROWS_IN_FLIGHT;
}

/* Decode rows are implied by their tokens: the row began when its step was launched. */
static void add_decode_row(struct lives *all, struct life *life, uint32_t source) {
    struct rp_trace_model *model = all->builder->model;
    const struct rp_trace_event *token = &model->events[source];
    uint32_t launch = rp_trace_map_find(&model->launches, token->v);
    for (int i = 0; i < ROWS_IN_FLIGHT; i++)
        if (life->rows[i].flow != RP_TRACE_NONE && life->rows[i].step == token->v)
            return;
    if (launch != RP_TRACE_NONE)
        add_flow(all, life, token->v, model->events[launch].ns, source);
}

static void end_flow(struct lives *all, struct life *life, const struct rp_trace_event *token,
                     uint32_t instant) {
    struct rp_trace_model *model = all->builder->model;
    for (int i = 0; i < ROWS_IN_FLIGHT; i++) {
        uint32_t index = life->rows[i].flow;
        if (index == RP_TRACE_NONE || life->rows[i].step != token->v)
            continue;
        struct rp_trace_flow *flow = &model->flows[index];
        flow->token_ns = token->ns;
        flow->has_token = true;
        if (instant != RP_TRACE_NONE) {
            model->items[instant].flow = index;
            model->items[instant].flow_count = 1;
        }
        life->rows[i].flow = RP_TRACE_NONE;
    }
}

/* --- Events ---------------------------------------------------------------------------------- */

static void on_row(struct lives *all, struct life *life, const struct rp_trace_event *event,
                   uint32_t index) {
    if (!in_batch(life->phase) && life->phase != RP_MADE_STREAM_WAIT) {
        bool unknown = life->phase == 0;
        begin_phase(all, life, RP_MADE_PREFILL, event->ns, RP_TRACE_NONE);
        life->phase_earlier = unknown;
    }
    add_chunk(all, life, event, index);
    all->builder->model->requests[life - all->lives].chunks++;
    add_flow(all, life, event->v, event->ns, index);
}

static void on_token(struct lives *all, struct life *life, const struct rp_trace_event *event,
                     uint32_t index) {
    struct rp_trace_request *request = &all->builder->model->requests[life - all->lives];
    bool waits = life->phase == 0 || life->phase == RP_MADE_QUEUED;
    if (!request->closed && life->phase == RP_MADE_PREFILL) {
        begin_phase(all, life, RP_MADE_DECODE, event->ns, RP_TRACE_NONE);
    } else if (!request->closed && waits) {
        const struct rp_trace_model *model = all->builder->model;
        uint32_t launch = rp_trace_map_find(&model->launches, event->v);
        uint64_t since = launch != RP_TRACE_NONE ? model->events[launch].ns : model->info.begin_ns;
        begin_in_decode(all, life, RP_MIN(since, event->ns));
    }
    if (life->phase == RP_MADE_SWAPPED)
        life->resumed = RP_MADE_DECODE;
    request->tokens += !request->closed; /* CLOSED has said how many */
    add_decode_row(all, life, index);
    end_flow(all, life, event, add_instant(all, life, index));
}

static void on_closed(struct lives *all, struct life *life, const struct rp_trace_event *event) {
    struct rp_trace_request *request = &all->builder->model->requests[life - all->lives];
    request->closed = true;
    request->reason = event->b;
    request->tokens = event->a;
    life->end_ns = RP_MAX(life->end_ns, event->ns);
    if (request->answered) {
        end_phase(all, life, event->ns, 0);
        leave_place(all, life);
    } else {
        begin_phase(all, life, RP_MADE_STREAM_WAIT, event->ns, RP_TRACE_NONE);
    }
}

static void on_answered(struct lives *all, struct life *life, const struct rp_trace_event *event) {
    struct rp_trace_request *request = &all->builder->model->requests[life - all->lives];
    request->answered = true;
    request->status = event->b;
    life->end_ns = RP_MAX(life->end_ns, event->ns);
    if (life->phase == RP_MADE_STREAM_WAIT)
        end_phase(all, life, event->ns, 0);
}

static void on_event(struct lives *all, struct life *life, uint32_t index) {
    const struct rp_trace_event *event = &all->builder->model->events[index];
    struct rp_trace_request *request = &all->builder->model->requests[life - all->lives];
    /* Nothing begins after the end; clocks of two threads may differ slightly. */
    if (request->closed && event->kind != RP_TRACE_ANSWERED && event->kind != RP_TRACE_WRITTEN &&
        event->kind != RP_TRACE_TOKEN)
        return;
    switch ((enum rp_trace_kind)event->kind) {
    case RP_TRACE_TOKENIZED:
        request->prompt_tokens = event->a;
        begin_phase(all, life, RP_TRACE_TOKENIZED, event->ns, index);
        end_phase(all, life, rp_trace_end(event), 0);
        break;
    case RP_TRACE_QUEUED:
        request->prompt_tokens = event->a;
        request->max_tokens = (uint32_t)RP_MIN(event->v, (uint64_t)UINT32_MAX);
        begin_phase(all, life, RP_MADE_QUEUED, event->ns, RP_TRACE_NONE);
        break;
    case RP_TRACE_ADMITTED:
        request->cached_tokens = event->a;
        begin_phase(all, life, RP_MADE_PREFILL, event->ns, RP_TRACE_NONE);
        break;
    case RP_TRACE_ROW:
        on_row(all, life, event, index);
        break;
    case RP_TRACE_TOKEN:
        on_token(all, life, event, index);
        break;
    case RP_TRACE_SWAP_OUT:
        request->swaps++;
        if (life->fresh)
            begin_in_decode(all, life, RP_MIN(event->ns, all->builder->model->info.begin_ns));
        life->resumed = life->phase == RP_MADE_PREFILL ? RP_MADE_PREFILL : RP_MADE_DECODE;
        begin_phase(all, life, RP_MADE_SWAPPED, event->ns, index);
        break;
    case RP_TRACE_SWAP_IN:
        if (life->phase == RP_MADE_SWAPPED || life->phase == 0)
            begin_phase(all, life, life->resumed ? life->resumed : RP_MADE_DECODE, event->ns,
                        RP_TRACE_NONE);
        break;
    case RP_TRACE_CLOSED:
        on_closed(all, life, event);
        break;
    case RP_TRACE_ANSWERED:
        on_answered(all, life, event);
        break;
    case RP_TRACE_WRITTEN:
        add_instant(all, life, index);
        break;
    default:
        break; /* RECEIVED: that it is there says it */
    }
}

/* --- All of them ----------------------------------------------------------------------------- */

static struct life *find_life(struct lives *all, const struct rp_trace_event *event) {
    struct rp_trace_model *model = all->builder->model;
    uint32_t at = rp_trace_map_find(&all->by_id, event->id);
    if (at != RP_TRACE_NONE)
        return &all->lives[at];
    at = model->request_count;
    struct rp_trace_track track = {.group = RP_GROUP_REQUESTS, .row = at, .request = event->id};
    if (!rp_trace_grow(&all->lives, at, &all->capacity, sizeof *all->lives) ||
        !rp_trace_grow(&model->requests, at, &model->request_capacity, sizeof *model->requests) ||
        !rp_trace_map_put(&all->by_id, event->id, at)) {
        all->builder->failed = true;
        return NULL;
    }
    struct life *life = &all->lives[at];
    *life = (struct life){.begin_ns = event->ns,
                          .phase_ns = event->ns,
                          .batch_track = RP_TRACE_NONE,
                          .left_track = RP_TRACE_NONE,
                          .phase_source = RP_TRACE_NONE,
                          .fresh = true,
                          .began_earlier = event->kind != RP_TRACE_RECEIVED &&
                                           event->kind != RP_TRACE_TOKENIZED &&
                                           event->kind != RP_TRACE_QUEUED};
    for (int i = 0; i < ROWS_IN_FLIGHT; i++)
        life->rows[i].flow = RP_TRACE_NONE;
    life->track = rp_trace_add_track(all->builder, &track);
    model->requests[at] = (struct rp_trace_request){.id = event->id};
    model->request_count++;
    return life->track == RP_TRACE_NONE ? NULL : life;
}

/* The slice around everything. What is not over reaches the end of the window. */
static void finish_life(struct lives *all, struct life *life) {
    const struct rp_trace_request *request = &all->builder->model->requests[life - all->lives];
    uint64_t end = all->builder->model->info.end_ns;
    bool open = life->phase != 0 || (!request->answered && !request->closed);
    end_phase(all, life, RP_MAX(end, life->phase_ns), RP_ITEM_UNFINISHED);
    struct rp_trace_item item = {.begin_ns = RP_MIN(life->begin_ns, end),
                                 .end_ns = open ? end : RP_MAX(life->end_ns, life->phase_ns),
                                 .track = life->track,
                                 .source = (uint32_t)(life - all->lives),
                                 .what = RP_MADE_REQUEST,
                                 .flags =
                                     (uint8_t)((life->began_earlier ? RP_ITEM_BEGAN_EARLIER : 0) |
                                               (open ? RP_ITEM_UNFINISHED : 0))};
    rp_trace_add_item(all->builder, &item);
}

void rp_trace_build_lives(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    struct lives all = {.builder = builder};
    for (uint32_t i = 0; i < model->event_count && !builder->failed; i++) {
        const struct rp_trace_event *event = &model->events[i];
        if (rp_trace_kinds[event->kind].lane != RP_LANE_REQUESTS || event->ns > model->info.end_ns)
            continue;
        struct life *life = find_life(&all, event);
        if (life)
            on_event(&all, life, i);
    }
    for (uint32_t i = 0; i < model->request_count && !builder->failed; i++)
        finish_life(&all, &all.lives[i]);
    rp_trace_map_deinit(&all.by_id);
    rp_free(all.lives);
    rp_free(all.places);
}
