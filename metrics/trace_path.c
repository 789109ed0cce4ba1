#include "metrics/trace_path.h"

#include "base/memory.h"
#include "metrics/trace_build.h"

#include <stdlib.h>
#include <string.h>

const char *const rp_request_parts[RP_PART_COUNT] = {
#define X(part, text) [RP_PART_##part] = text,
    RP_REQUEST_PARTS(X)
#undef X
};

const char *const rp_step_parts[RP_STEP_PART_COUNT] = {
#define X(part, text) [RP_STEP_PART_##part] = text,
    RP_STEP_PARTS(X)
#undef X
};

static const char idle_prefix[] = "idle: ";

static enum rp_idle_cause cause_of(const struct rp_trace_span *idle) {
    if (strncmp(idle->name, idle_prefix, sizeof idle_prefix - 1) != 0)
        return RP_IDLE_UNKNOWN;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        if (strcmp(idle->name + sizeof idle_prefix - 1, rp_idle_causes[cause]) == 0)
            return (enum rp_idle_cause)cause;
    return RP_IDLE_UNKNOWN;
}

static uint64_t common_ns(const struct rp_trace_span *span, uint64_t begin, uint64_t end) {
    begin = RP_MAX(begin, span->begin_ns);
    end = RP_MIN(end, span->end_ns);
    return end > begin ? end - begin : 0;
}

/* Time of copies within [begin, end). */
static uint64_t copies_in(const struct rp_trace_spans *spans, uint64_t begin, uint64_t end) {
    uint32_t left;
    uint64_t sum = 0;
    const struct rp_trace_span *copy = rp_trace_spans_from(spans, RP_SPAN_COPY, begin, &left);
    for (; left > 0 && copy->begin_ns < end; copy++, left--)
        sum += common_ns(copy, begin, end);
    return RP_MIN(sum, end - begin);
}

/* --- A request -------------------------------------------------------------------------------- */

struct own {
    uint64_t step;
    bool chunk;
};

struct walk {
    const struct rp_trace_spans *spans;
    struct rp_request_path *path;
    struct own *own; /* its steps, sorted */
    uint32_t own_count;
    uint64_t last_own_ns; /* end of its last step on the device */
    enum rp_request_part last;
    uint64_t last_end_ns;
};

static void spend(struct walk *walk, enum rp_request_part part, uint64_t begin, uint64_t end) {
    if (end <= begin)
        return;
    walk->path->parts[part] += end - begin;
    /* What goes on is one piece. */
    walk->path->pieces[part] += walk->last != part || walk->last_end_ns != begin;
    walk->last = part;
    walk->last_end_ns = end;
}

static int compare_own(const void *left, const void *right) {
    const struct own *a = left, *b = right;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return (int)b->chunk - (int)a->chunk; /* a step that ends the prompt brings a token, too */
}

static const struct own *find_own(const struct walk *walk, uint64_t step) {
    uint32_t low = 0, high = walk->own_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (walk->own[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low < walk->own_count && walk->own[low].step == step ? &walk->own[low] : NULL;
}

/* The device was idle from begin to end, and the request in the batch. */
static void spend_gap(struct walk *walk, uint64_t begin, uint64_t end) {
    uint64_t copies = copies_in(walk->spans, begin, end), rest = end - begin - copies, left = rest;
    uint32_t count;
    const struct rp_trace_span *idle =
        rp_trace_spans_from(walk->spans, RP_SPAN_IDLE, begin, &count);
    /* Copies come last in a gap: directly before the step. */
    spend(walk, RP_PART_HOST, begin, begin + rest);
    spend(walk, RP_PART_COPIES, begin + rest, end);
    for (; count > 0 && idle->begin_ns < begin + rest; idle++, count--) {
        uint64_t ns = RP_MIN(common_ns(idle, begin, begin + rest), left);
        walk->path->gaps[cause_of(idle)] += ns;
        left -= ns;
    }
    walk->path->gaps[RP_IDLE_UNKNOWN] += left;
}

/* In the batch from begin to end. */
static void spend_in_batch(struct walk *walk, uint64_t begin, uint64_t end) {
    uint32_t left;
    uint64_t at = begin, stop = RP_MIN(end, RP_MAX(begin, walk->last_own_ns));
    const struct rp_trace_span *step = rp_trace_spans_from(walk->spans, RP_SPAN_STEP, begin, &left);
    for (; left > 0 && step->begin_ns < stop; step++, left--) {
        uint64_t from = RP_MAX(at, step->begin_ns), to = RP_MIN(stop, step->end_ns);
        const struct own *own = find_own(walk, step->number);
        if (to <= from)
            continue;
        if (from > at)
            spend_gap(walk, at, from);
        spend(walk, !own ? RP_PART_OTHERS : own->chunk ? RP_PART_CHUNKS : RP_PART_DECODE, from, to);
        at = to;
    }
    if (at < stop)
        spend_gap(walk, at, stop);
    spend(walk, RP_PART_RESULT, stop, end);
}

static bool find_own_steps(struct walk *walk, uint64_t request) {
    uint32_t chunk_count, token_count, count = 0;
    const struct rp_trace_span *chunks =
        rp_trace_spans_of_request(walk->spans, RP_SPAN_CHUNK, request, &chunk_count);
    const struct rp_trace_span *tokens =
        rp_trace_spans_of_request(walk->spans, RP_SPAN_TOKEN, request, &token_count);
    walk->own = rp_calloc((size_t)chunk_count + token_count + 1, sizeof *walk->own);
    if (!walk->own)
        return false;
    for (uint32_t i = 0; i < chunk_count; i++)
        walk->own[count++] = (struct own){chunks[i].step, true};
    for (uint32_t i = 0; i < token_count; i++)
        walk->own[count++] = (struct own){tokens[i].step, false};
    qsort(walk->own, count, sizeof *walk->own, compare_own);
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || walk->own[i].step != walk->own[i - 1].step)
            walk->own[walk->own_count++] = walk->own[i];
    walk->path->own_steps = walk->own_count;
    walk->path->tokens = token_count;
    return true;
}

static void find_last_own(struct walk *walk) {
    uint32_t count;
    const struct rp_trace_span *steps =
        rp_trace_spans_from(walk->spans, RP_SPAN_STEP, walk->path->begin_ns, &count);
    for (uint32_t i = 0; i < count && steps[i].begin_ns < walk->path->end_ns; i++)
        if (find_own(walk, steps[i].number))
            walk->last_own_ns = RP_MAX(walk->last_own_ns, steps[i].end_ns);
}

static void spend_phase(struct walk *walk, const char *name, uint64_t begin, uint64_t end) {
    static const struct {
        const char *name;
        enum rp_request_part part;
    } outside[] = {{"tokenize", RP_PART_TOKENIZE},
                   {"queued", RP_PART_QUEUE},
                   {"swapped", RP_PART_SWAPPED},
                   {"stream wait", RP_PART_WRITE}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(outside); i++)
        if (strcmp(name, outside[i].name) == 0) {
            spend(walk, outside[i].part, begin, end);
            return;
        }
    spend_in_batch(walk, begin, end);
}

bool rp_trace_request_path(const struct rp_trace_spans *spans, uint64_t request,
                           struct rp_request_path *out) {
    uint32_t count, phase_count;
    const struct rp_trace_span *life =
        rp_trace_spans_of_request(spans, RP_SPAN_REQUEST, request, &count);
    const struct rp_trace_span *phases =
        rp_trace_spans_of_request(spans, RP_SPAN_PHASE, request, &phase_count);
    struct walk walk = {.spans = spans, .path = out, .last = RP_PART_COUNT};
    memset(out, 0, sizeof *out);
    if (!life || life->cut)
        return false;
    out->request = request;
    out->begin_ns = life->begin_ns;
    out->end_ns = life->end_ns;
    if (!find_own_steps(&walk, request))
        return false;
    find_last_own(&walk);
    uint64_t at = life->begin_ns;
    for (uint32_t i = 0; i < phase_count; i++) {
        uint64_t begin = RP_MAX(phases[i].begin_ns, at),
                 end = RP_MIN(phases[i].end_ns, life->end_ns);
        if (end <= begin)
            continue;
        spend(&walk, RP_PART_RECEIVE, at, begin);
        spend_phase(&walk, phases[i].name, begin, end);
        at = end;
    }
    spend(&walk, RP_PART_WRITE, at, life->end_ns);
    rp_free(walk.own);
    return true;
}

/* --- Steps ------------------------------------------------------------------------------------ */

struct steps {
    const struct rp_trace_spans *spans;
    struct rp_trace_map by_step, reads, samples; /* step -> span of replay; end of WAIT; SAMPLE */
    bool failed;
};

static bool index_steps(struct steps *all) {
    uint32_t count;
    const struct rp_trace_span *spans = rp_trace_spans_of(all->spans, RP_SPAN_STEP, &count);
    bool ok = true;
    for (uint32_t i = 0; i < count; i++)
        ok = ok && rp_trace_map_put(&all->by_step, spans[i].number, i);
    spans = rp_trace_spans_of(all->spans, RP_SPAN_HOST, &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(spans[i].name, "wait") == 0)
            ok = ok && rp_trace_map_put(&all->reads, spans[i].number, i);
    spans = rp_trace_spans_of(all->spans, RP_SPAN_NODE, &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(spans[i].name, "sample") == 0)
            ok = ok && rp_trace_map_put(&all->samples, spans[i].number, i);
    return ok;
}

static void add_idle(struct rp_step_path *path, enum rp_idle_cause cause, uint64_t ns) {
    switch (cause) {
    case RP_IDLE_NO_WORK:
        break; /* no step waits */
    case RP_IDLE_PLAN:
        path->parts[RP_STEP_PART_PLAN] += ns;
        break;
    case RP_IDLE_LAUNCH:
        path->parts[RP_STEP_PART_UPLOAD] += ns;
        break;
    case RP_IDLE_RESULT:
        path->parts[RP_STEP_PART_RESULT] += ns;
        break;
    case RP_IDLE_EMIT:
        path->parts[RP_STEP_PART_EMIT] += ns;
        break;
    case RP_IDLE_START:
        path->parts[RP_STEP_PART_START] += ns;
        break;
    default:
        path->parts[RP_STEP_PART_OTHER] += ns;
        break;
    }
}

/* The gap before the step. */
static void add_gap(const struct steps *all, struct rp_step_path *path, uint64_t begin,
                    uint64_t end) {
    uint32_t count;
    uint64_t copies = copies_in(all->spans, begin, end);
    const struct rp_trace_span *idle = rp_trace_spans_from(all->spans, RP_SPAN_IDLE, begin, &count);
    path->parts[RP_STEP_PART_COPIES] += copies;
    for (; count > 0 && idle->begin_ns < end - copies; idle++, count--)
        add_idle(path, cause_of(idle), common_ns(idle, begin, end - copies));
}

static void add_step(const struct steps *all, struct rp_step_path *path, uint32_t index) {
    uint32_t count, host_count, node_count;
    const struct rp_trace_span *steps = rp_trace_spans_of(all->spans, RP_SPAN_STEP, &count);
    const struct rp_trace_span *host = rp_trace_spans_of(all->spans, RP_SPAN_HOST, &host_count);
    const struct rp_trace_span *nodes = rp_trace_spans_of(all->spans, RP_SPAN_NODE, &node_count);
    const struct rp_trace_span *step = &steps[index];
    uint64_t before = index ? RP_MIN(steps[index - 1].end_ns, step->begin_ns) : step->begin_ns;
    path->steps++;
    add_gap(all, path, before, step->begin_ns);
    uint32_t sample = rp_trace_map_find(&all->samples, step->number);
    if (sample == RP_TRACE_NONE) {
        path->parts[RP_STEP_PART_DEVICE] += step->end_ns - step->begin_ns;
    } else {
        uint64_t split = RP_MIN(RP_MAX(nodes[sample].begin_ns, step->begin_ns), step->end_ns);
        path->stamped++;
        path->parts[RP_STEP_PART_FORWARD] += split - step->begin_ns;
        path->parts[RP_STEP_PART_SAMPLE] += step->end_ns - split;
    }
    uint32_t read = rp_trace_map_find(&all->reads, step->number);
    if (read != RP_TRACE_NONE && host[read].end_ns > step->end_ns)
        path->parts[RP_STEP_PART_READ] += host[read].end_ns - step->end_ns;
}

static struct rp_step_path *find_path(struct rp_step_path *paths, uint32_t *count,
                                      uint32_t capacity, const char *name) {
    uint32_t at = 0;
    while (at < *count && strcmp(paths[at].name, name) < 0)
        at++;
    if (at < *count && strcmp(paths[at].name, name) == 0)
        return &paths[at];
    if (*count == capacity)
        return NULL;
    memmove(&paths[at + 1], &paths[at], (*count - at) * sizeof *paths);
    paths[at] = (struct rp_step_path){.name = name};
    ++*count;
    return &paths[at];
}

/* Planning and launching of each step while a replay ran. */
static void add_hidden(const struct steps *all, struct rp_step_path *paths, uint32_t count) {
    uint32_t host_count, step_count;
    const struct rp_trace_span *host = rp_trace_spans_of(all->spans, RP_SPAN_HOST, &host_count);
    const struct rp_trace_span *steps = rp_trace_spans_of(all->spans, RP_SPAN_STEP, &step_count);
    for (uint32_t i = 0; i < host_count; i++) {
        uint32_t left, at = rp_trace_map_find(&all->by_step, host[i].number);
        if (at == RP_TRACE_NONE ||
            (strcmp(host[i].name, "plan") != 0 && strcmp(host[i].name, "launch") != 0))
            continue;
        struct rp_step_path *path = find_path(paths, &count, count, steps[at].name);
        const struct rp_trace_span *busy =
            rp_trace_spans_from(all->spans, RP_SPAN_STEP, host[i].begin_ns, &left);
        for (; path && left > 0 && busy->begin_ns < host[i].end_ns; busy++, left--)
            path->hidden_ns += common_ns(busy, host[i].begin_ns, host[i].end_ns);
    }
}

uint32_t rp_trace_step_paths(const struct rp_trace_spans *spans, struct rp_step_path *out,
                             uint32_t capacity) {
    struct steps all = {.spans = spans};
    uint32_t count = 0, step_count;
    const struct rp_trace_span *steps = rp_trace_spans_of(spans, RP_SPAN_STEP, &step_count);
    if (index_steps(&all)) {
        for (uint32_t i = 0; i < step_count; i++) {
            struct rp_step_path *path =
                steps[i].cut ? NULL : find_path(out, &count, capacity, steps[i].name);
            if (path)
                add_step(&all, path, i);
        }
        add_hidden(&all, out, count);
    }
    rp_trace_map_deinit(&all.by_step);
    rp_trace_map_deinit(&all.reads);
    rp_trace_map_deinit(&all.samples);
    return count;
}
