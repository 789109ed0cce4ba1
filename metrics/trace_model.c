#include "metrics/trace_build.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = RP_TRACE_ROWS_MAX, NEST_MAX = 8, RANKS_MAX = 8 };

const char *const rp_trace_groups[RP_GROUP_COUNT] = {"requests", "batch", "host", "device",
                                                     "counters"};

/* --- Helpers --------------------------------------------------------------------------------- */

uint64_t rp_trace_end(const struct rp_trace_event *event) {
    if (rp_trace_kinds[event->kind].shape != RP_TRACE_SPAN)
        return event->ns;
    return event->v > UINT64_MAX - event->ns ? UINT64_MAX : event->ns + event->v;
}

bool rp_trace_grow(void *array, uint32_t count, uint32_t *capacity, size_t element) {
    size_t bytes;
    void *grown, *old;
    if (count < *capacity)
        return true;
    uint32_t more = *capacity ? *capacity : 64;
    if (more > UINT32_MAX / 4 || rp_mul_overflow((size_t)more * 2, element, &bytes))
        return false;
    memcpy(&old, array, sizeof old); /* array: address of a pointer of any type */
    grown = rp_realloc(old, bytes);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = more * 2;
    return true;
}

static uint32_t place_of(const struct rp_trace_map *map, uint64_t key) {
    uint32_t mask = map->capacity - 1;
    uint32_t at = (uint32_t)rp_hash64(&key, sizeof key, 0) & mask;
    while (map->values[at] && map->keys[at] != key)
        at = (at + 1) & mask;
    return at;
}

uint32_t rp_trace_map_find(const struct rp_trace_map *map, uint64_t key) {
    if (!map->count)
        return RP_TRACE_NONE;
    return map->values[place_of(map, key)] - 1; /* 0 - 1: none */
}

static bool map_grow(struct rp_trace_map *map) {
    struct rp_trace_map old = *map;
    map->capacity = old.capacity ? old.capacity * 2 : 64;
    map->keys = rp_calloc(map->capacity, sizeof *map->keys);
    map->values = rp_calloc(map->capacity, sizeof *map->values);
    if (!map->keys || !map->values) {
        rp_trace_map_deinit(map);
        *map = old;
        return false;
    }
    for (uint32_t i = 0; i < old.capacity; i++)
        if (old.values[i]) {
            uint32_t at = place_of(map, old.keys[i]);
            map->keys[at] = old.keys[i];
            map->values[at] = old.values[i];
        }
    rp_trace_map_deinit(&old);
    return true;
}

bool rp_trace_map_put(struct rp_trace_map *map, uint64_t key, uint32_t index) {
    if (map->count >= map->capacity / 2 && !map_grow(map))
        return false;
    uint32_t at = place_of(map, key);
    map->count += map->values[at] == 0;
    map->keys[at] = key;
    map->values[at] = index + 1;
    return true;
}

void rp_trace_map_deinit(struct rp_trace_map *map) {
    rp_free(map->keys);
    rp_free(map->values);
    memset(map, 0, sizeof *map);
}

uint32_t rp_trace_add_item(struct rp_trace_builder *builder, const struct rp_trace_item *item) {
    struct rp_trace_model *model = builder->model;
    struct rp_trace_item cut = *item;
    uint64_t begin = model->info.begin_ns, end = model->info.end_ns;
    bool empty = cut.begin_ns == cut.end_ns;
    if (cut.end_ns < begin || cut.begin_ns > end ||
        (!empty && (cut.end_ns == begin || cut.begin_ns == end)))
        return RP_TRACE_NONE;
    if (cut.begin_ns < begin) {
        cut.begin_ns = begin;
        cut.flags |= RP_ITEM_BEGAN_EARLIER;
    }
    if (cut.end_ns > end) {
        cut.end_ns = end;
        cut.flags |= RP_ITEM_UNFINISHED;
    }
    if (!rp_trace_grow(&model->items, model->item_count, &model->item_capacity,
                       sizeof *model->items)) {
        builder->failed = true;
        return RP_TRACE_NONE;
    }
    model->items[model->item_count] = cut;
    return model->item_count++;
}

uint32_t rp_trace_add_track(struct rp_trace_builder *builder, const struct rp_trace_track *track) {
    struct rp_trace_model *model = builder->model;
    if (!rp_trace_grow(&model->tracks, model->track_count, &model->track_capacity,
                       sizeof *model->tracks)) {
        builder->failed = true;
        return RP_TRACE_NONE;
    }
    model->tracks[model->track_count] = *track;
    return model->track_count++;
}

/* --- Order ----------------------------------------------------------------------------------- */

#define ORDER(a, b)                                                                                \
    if ((a) != (b))                                                                                \
    return (a) < (b) ? -1 : 1

/* By begin; of those that begin together the longer span first, and what comes first in a request's
 * life. */
static int compare_events(const void *left, const void *right) {
    const struct rp_trace_event *a = left, *b = right;
    ORDER(a->ns, b->ns);
    bool spans = a->kind < RP_TRACE_KIND_COUNT && b->kind < RP_TRACE_KIND_COUNT &&
                 rp_trace_kinds[a->kind].shape == RP_TRACE_SPAN &&
                 rp_trace_kinds[b->kind].shape == RP_TRACE_SPAN &&
                 rp_trace_kinds[a->kind].lane == rp_trace_kinds[b->kind].lane;
    if (spans)
        ORDER(b->v, a->v);
    ORDER(a->kind, b->kind);
    ORDER(a->id, b->id);
    ORDER(a->a, b->a);
    ORDER(a->b, b->b);
    ORDER(a->v, b->v);
    return 0;
}

void rp_trace_sort(struct rp_trace_event *events, uint64_t count) {
    if (count)
        qsort(events, count, sizeof *events, compare_events);
}

static int compare_items(const void *left, const void *right) {
    const struct rp_trace_item *a = left, *b = right;
    ORDER(a->track, b->track);
    ORDER(a->begin_ns, b->begin_ns);
    ORDER(a->flags & RP_ITEM_INSTANT, b->flags & RP_ITEM_INSTANT);
    ORDER(a->depth, b->depth);
    ORDER(a->end_ns, b->end_ns); /* an empty one before the one that begins as it ends */
    ORDER(a->what, b->what);
    ORDER(a->source, b->source);
    return 0;
}

static void order_items(struct rp_trace_model *model) {
    if (model->item_count)
        qsort(model->items, model->item_count, sizeof *model->items, compare_items);
    for (uint32_t i = 0; i < model->item_count; i++) {
        struct rp_trace_track *track = &model->tracks[model->items[i].track];
        if (track->item_count++ == 0)
            track->first_item = i;
    }
}

/* --- Lanes of spans -------------------------------------------------------------------------- */

struct row {
    uint32_t track;
    uint32_t open[NEST_MAX]; /* items, outermost first */
    uint32_t depth;
    uint64_t free_ns; /* what ended here last */
};

struct lane {
    enum rp_trace_group group;
    enum rp_trace_lane lane;
    bool nests;
    uint32_t rank; /* of RP_LANE_RANKS */
    struct row rows[ROWS_MAX];
    uint32_t row_count;
};

/* Whether a slice from begin to end has a place in the row; makes it by closing what has ended. */
static bool fits(struct rp_trace_model *model, struct row *row, bool nests, uint64_t begin,
                 uint64_t end) {
    while (row->depth > 0) {
        struct rp_trace_item *top = &model->items[row->open[row->depth - 1]];
        bool over = top->end_ns <= begin;
        /* An empty slice is over, but not for those that begin with it: their order is settled. */
        if (!over && nests && end <= top->end_ns)
            break;
        if (!over && top->end_ns - begin <= RP_TRACE_JITTER_NS) {
            top->end_ns = begin;
            over = true;
        }
        if (!over)
            return false;
        row->depth--;
    }
    return row->depth < NEST_MAX;
}

static struct row *find_row(struct rp_trace_builder *builder, struct lane *lane, uint64_t begin,
                            uint64_t end) {
    for (uint32_t i = 0; i < lane->row_count; i++)
        if (fits(builder->model, &lane->rows[i], lane->nests, begin, end))
            return &lane->rows[i];
    if (lane->row_count == ROWS_MAX)
        return NULL;
    struct row *row = &lane->rows[lane->row_count];
    struct rp_trace_track track = {.group = lane->group,
                                   .lane = lane->lane,
                                   .row = lane->rank ? (lane->rank - 1) * ROWS_MAX + lane->row_count
                                                     : lane->row_count};
    row->track = rp_trace_add_track(builder, &track);
    if (row->track == RP_TRACE_NONE)
        return NULL;
    lane->row_count++;
    return row;
}

static void place_span(struct rp_trace_builder *builder, struct lane *lane, uint32_t index) {
    struct rp_trace_model *model = builder->model;
    const struct rp_trace_event *event = &model->events[index];
    uint64_t begin = event->ns, end = rp_trace_end(event);
    if (end < model->info.begin_ns || begin > model->info.end_ns)
        return;
    begin = RP_MAX(begin, model->info.begin_ns);
    end = RP_MIN(end, model->info.end_ns);
    struct row *row = find_row(builder, lane, begin, end);
    if (!row) {
        model->dropped++;
        return;
    }
    struct rp_trace_item item = {.begin_ns = event->ns,
                                 .end_ns = rp_trace_end(event),
                                 .track = row->track,
                                 .source = index,
                                 .what = event->kind,
                                 .depth = (uint8_t)row->depth};
    uint32_t added = rp_trace_add_item(builder, &item);
    if (added != RP_TRACE_NONE)
        row->open[row->depth++] = added;
}

static void build_lanes(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    static const struct lane made[] = {
        {.group = RP_GROUP_HOST, .lane = RP_LANE_SCHEDULER, .nests = true},
        {.group = RP_GROUP_HOST, .lane = RP_LANE_LOOP, .nests = true},
        {.group = RP_GROUP_HOST, .lane = RP_LANE_WORKERS},
        {.group = RP_GROUP_DEVICE, .lane = RP_LANE_REPLAYS},
        {.group = RP_GROUP_DEVICE, .lane = RP_LANE_NODES},
        {.group = RP_GROUP_DEVICE, .lane = RP_LANE_IDLE},
        {.group = RP_GROUP_DEVICE, .lane = RP_LANE_COPIES}};
    enum { LANES = RP_ARRAY_COUNT(made) + RANKS_MAX - 1 };
    struct lane *lanes = rp_calloc(LANES, sizeof *lanes);
    if (!lanes) {
        builder->failed = true;
        return;
    }
    memcpy(lanes, made, sizeof made);
    for (uint32_t rank = 1; rank < RANKS_MAX; rank++)
        lanes[RP_ARRAY_COUNT(made) + rank - 1] =
            (struct lane){.group = RP_GROUP_DEVICE, .lane = RP_LANE_RANKS, .rank = rank};
    for (uint32_t i = 0; i < model->event_count && !builder->failed; i++) {
        const struct rp_trace_event *event = &model->events[i];
        const struct rp_trace_kind_info *kind = &rp_trace_kinds[event->kind];
        uint32_t rank = event->kind == RP_TRACE_RANK_NODE ? event->a >> 16 : 0;
        for (size_t k = 0; k < LANES; k++)
            if (kind->shape == RP_TRACE_SPAN && kind->lane == lanes[k].lane &&
                rank == lanes[k].rank)
                place_span(builder, &lanes[k], i);
    }
    rp_free(lanes);
}

/* --- Counters -------------------------------------------------------------------------------- */

static void add_sample(struct rp_trace_builder *builder, uint64_t ns, uint32_t event) {
    struct rp_trace_model *model = builder->model;
    if (!rp_trace_grow(&model->samples, model->sample_count, &model->sample_capacity,
                       sizeof *model->samples)) {
        builder->failed = true;
        return;
    }
    model->samples[model->sample_count++] = (struct rp_trace_sample){.ns = ns, .event = event};
}

/* Those of the window, and at its begin the values in force. */
static void build_counters(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    uint32_t before[RP_TRACE_KIND_COUNT], i = 0;
    for (uint32_t k = 0; k < RP_TRACE_KIND_COUNT; k++)
        before[k] = RP_TRACE_NONE;
    for (; i < model->event_count && model->events[i].ns < model->info.begin_ns; i++)
        before[model->events[i].kind] = i;
    for (uint32_t k = 0; k < RP_TRACE_KIND_COUNT; k++)
        if (rp_trace_kinds[k].shape == RP_TRACE_COUNTER && before[k] != RP_TRACE_NONE)
            add_sample(builder, model->info.begin_ns, before[k]);
    for (; i < model->event_count && model->events[i].ns <= model->info.end_ns; i++)
        if (rp_trace_kinds[model->events[i].kind].shape == RP_TRACE_COUNTER)
            add_sample(builder, model->events[i].ns, i);
}

/* --- Flows ----------------------------------------------------------------------------------- */

static int compare_flows(const void *left, const void *right) {
    const struct rp_trace_flow *a = left, *b = right;
    ORDER(a->step, b->step);
    ORDER(a->made, b->made);
    return 0;
}

/* By step, so that those of a launch are a range; instants keep naming the same ones. */
static void order_flows(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    uint32_t *places = rp_calloc((size_t)model->flow_count + 1, sizeof *places);
    if (!places) {
        builder->failed = true;
        return;
    }
    if (model->flow_count)
        qsort(model->flows, model->flow_count, sizeof *model->flows, compare_flows);
    for (uint32_t i = 0; i < model->flow_count; i++)
        places[model->flows[i].made] = i;
    for (uint32_t i = 0; i < model->item_count; i++)
        if (model->items[i].flow_count)
            model->items[i].flow = places[model->items[i].flow];
    rp_free(places);
}

/* The flows of a step; those of each step are contiguous. */
static uint32_t flows_of(const struct rp_trace_model *model, const struct rp_trace_map *map,
                         uint64_t step, uint32_t *out_count) {
    uint32_t first = rp_trace_map_find(map, step), end = first;
    if (first == RP_TRACE_NONE)
        return *out_count = 0;
    while (end < model->flow_count && model->flows[end].step == step)
        end++;
    *out_count = end - first;
    return first;
}

/* The first moment inside a slice: not its begin, where the slice before it may end. */
static uint64_t first_inside(const struct rp_trace_item *slice) {
    return slice->begin_ns + (slice->end_ns - slice->begin_ns > 1);
}

/* The slice of the flow's request on its place that holds ns in its interior or begins there; NULL:
 * none. */
static const struct rp_trace_item *batch_slice(const struct rp_trace_model *model,
                                               const struct rp_trace_flow *flow, uint64_t ns) {
    const struct rp_trace_track *track = &model->tracks[flow->batch_track];
    uint32_t first = track->first_item, low = first, high = first + track->item_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (model->items[middle].begin_ns <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    const struct rp_trace_item *slice = low > first ? &model->items[low - 1] : NULL;
    return slice && slice->end_ns > ns && slice->source == flow->request ? slice : NULL;
}

/* A token belongs to the slice that it ends, not to the one that begins with it. */
static void settle_token(const struct rp_trace_model *model, struct rp_trace_flow *flow) {
    flow->token_ns = RP_MAX(flow->token_ns, flow->replay_ns);
    const struct rp_trace_item *slice = batch_slice(model, flow, flow->token_ns);
    bool at_edge = !slice || slice->begin_ns == flow->token_ns;
    if (at_edge && flow->token_ns > flow->replay_ns &&
        batch_slice(model, flow, flow->token_ns - 1)) {
        flow->token_ns--;
        flow->token_in_batch = true;
    } else {
        flow->token_in_batch = slice != NULL;
    }
}

/* Puts the four times in order inside their slices, or leaves the flow not whole. */
static void settle_flow(struct rp_trace_model *model, struct rp_trace_flow *flow) {
    if (flow->batch_track == RP_TRACE_NONE || flow->launch_item == RP_TRACE_NONE ||
        flow->replay_item == RP_TRACE_NONE)
        return;
    const struct rp_trace_item *launch = &model->items[flow->launch_item];
    const struct rp_trace_item *replay = &model->items[flow->replay_item];
    if (launch->begin_ns == launch->end_ns || replay->begin_ns == replay->end_ns)
        return; /* nothing there to be in */
    flow->launch_ns = first_inside(launch);
    flow->start_ns = RP_MIN(flow->start_ns, flow->launch_ns);
    flow->replay_ns = RP_MAX(first_inside(replay), flow->launch_ns);
    const struct rp_trace_item *row = batch_slice(model, flow, flow->start_ns);
    if (!row || flow->replay_ns >= replay->end_ns || flow->start_ns < model->info.begin_ns ||
        ((launch->flags | replay->flags) & RP_ITEM_BEGAN_EARLIER) ||
        (flow->has_token && flow->token_ns > model->info.end_ns))
        return;
    if (flow->start_ns == row->begin_ns)
        flow->start_ns = RP_MIN(first_inside(row), flow->launch_ns);
    if (flow->has_token)
        settle_token(model, flow);
    flow->whole = true;
}

static void link_flows(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    struct rp_trace_map firsts = {NULL, NULL, 0, 0};
    order_flows(builder);
    for (uint32_t i = 0; i < model->flow_count; i++) {
        bool first = i == 0 || model->flows[i].step != model->flows[i - 1].step;
        if (first && !rp_trace_map_put(&firsts, model->flows[i].step, i))
            builder->failed = true;
    }
    for (uint32_t i = 0; i < model->item_count && !builder->failed; i++) {
        struct rp_trace_item *item = &model->items[i];
        if (item->what != RP_TRACE_LAUNCH && item->what != RP_TRACE_REPLAY)
            continue;
        item->flow = flows_of(model, &firsts, model->events[item->source].id, &item->flow_count);
        for (uint32_t k = 0; k < item->flow_count; k++) {
            struct rp_trace_flow *flow = &model->flows[item->flow + k];
            if (item->what == RP_TRACE_LAUNCH)
                flow->launch_item = i;
            else
                flow->replay_item = i;
        }
    }
    rp_trace_map_deinit(&firsts);
    for (uint32_t i = 0; i < model->flow_count; i++)
        settle_flow(model, &model->flows[i]);
}

/* --- Building -------------------------------------------------------------------------------- */

static void index_steps(struct rp_trace_builder *builder) {
    struct rp_trace_model *model = builder->model;
    for (uint32_t i = 0; i < model->event_count; i++) {
        const struct rp_trace_event *event = &model->events[i];
        bool ok = true;
        if (event->kind == RP_TRACE_LAUNCH)
            ok = rp_trace_map_put(&model->launches, event->id, i);
        else if (event->kind == RP_TRACE_REPLAY)
            ok = rp_trace_map_put(&model->replays, event->id, i);
        else if (event->kind == RP_TRACE_PADDING)
            ok = rp_trace_map_put(&model->paddings, event->id, i);
        else if (event->kind == RP_TRACE_MISS)
            ok = rp_trace_map_put(&model->misses, event->id, i);
        builder->failed |= !ok;
    }
}

/* Unknown kinds (a file from elsewhere) would be read as indices: there must be none. */
static bool kinds_are_known(const struct rp_trace_event *events, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (events[i].kind >= RP_TRACE_KIND_COUNT)
            return false;
    return true;
}

int rp_trace_model_build(struct rp_trace_model *model, const struct rp_trace_info *info,
                         const struct rp_trace_event *events, uint64_t count) {
    struct rp_trace_builder builder = {.model = model};
    memset(model, 0, sizeof *model);
    if (count > INT32_MAX)
        return RP_STATUS_OVERFLOW;
    if (!kinds_are_known(events, count))
        return RP_STATUS_FORMAT;
    model->info = *info;
    model->events = events;
    model->event_count = (uint32_t)count;
    index_steps(&builder);
    if (!builder.failed)
        rp_trace_build_lives(&builder);
    if (!builder.failed)
        build_lanes(&builder);
    if (!builder.failed)
        build_counters(&builder);
    if (!builder.failed) {
        order_items(model);
        link_flows(&builder);
    }
    if (!builder.failed)
        return RP_OK;
    rp_trace_model_deinit(model);
    return RP_STATUS_NO_MEMORY;
}

void rp_trace_model_deinit(struct rp_trace_model *model) {
    rp_free(model->tracks);
    rp_free(model->items);
    rp_free(model->flows);
    rp_free(model->samples);
    rp_free(model->requests);
    rp_trace_map_deinit(&model->launches);
    rp_trace_map_deinit(&model->replays);
    rp_trace_map_deinit(&model->paddings);
    rp_trace_map_deinit(&model->misses);
    memset(model, 0, sizeof *model);
}
