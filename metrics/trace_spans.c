#include "metrics/trace_spans.h"

#include "base/hash.h"
#include "base/memory.h"
#include "metrics/trace_build.h"

#include <stdlib.h>
#include <string.h>

#define NAMES_FIRST 64

void rp_trace_spans_deinit(struct rp_trace_spans *spans) {
    for (uint32_t i = 0; i < spans->name_count; i++)
        rp_free(spans->names[i]);
    rp_free(spans->names);
    rp_free(spans->places);
    rp_free(spans->spans);
    memset(spans, 0, sizeof *spans);
}

/* --- Names ------------------------------------------------------------------------------------ */

static uint32_t *find_place(const struct rp_trace_spans *spans, const char *name) {
    uint64_t hash = rp_hash64(name, strlen(name), 0);
    for (uint32_t i = 0;; i++) {
        uint32_t *place = &spans->places[(hash + i) & (2 * spans->name_capacity - 1)];
        if (*place == 0 || strcmp(spans->names[*place - 1], name) == 0)
            return place;
    }
}

static bool grow_names(struct rp_trace_spans *spans) {
    if (spans->name_count < spans->name_capacity)
        return true;
    uint32_t capacity = spans->name_capacity ? 2 * spans->name_capacity : NAMES_FIRST;
    uint32_t *places = rp_calloc((size_t)2 * capacity, sizeof *places);
    char **names = rp_realloc(spans->names, capacity * sizeof *names);
    if (names)
        spans->names = names;
    if (!names || !places) {
        rp_free(places);
        return false;
    }
    rp_free(spans->places);
    spans->places = places;
    spans->name_capacity = capacity;
    for (uint32_t i = 0; i < spans->name_count; i++)
        *find_place(spans, names[i]) = i + 1;
    return true;
}

/* The one address of this text; NULL when memory is out. */
static const char *keep_name(struct rp_trace_spans *spans, const char *name) {
    if (!grow_names(spans))
        return NULL;
    uint32_t *place = find_place(spans, name);
    if (*place == 0) {
        spans->names[spans->name_count] = rp_strdup(name);
        if (!spans->names[spans->name_count])
            return NULL;
        *place = ++spans->name_count;
    }
    return spans->names[*place - 1];
}

/* --- Spans ------------------------------------------------------------------------------------ */

void rp_trace_spans_add(struct rp_trace_spans *spans, const struct rp_trace_span *span) {
    const char *name = spans->failed ? NULL : keep_name(spans, span->name);
    if (!name ||
        !rp_trace_grow(&spans->spans, spans->count, &spans->capacity, sizeof *spans->spans)) {
        spans->failed = true;
        return;
    }
    struct rp_trace_span *added = &spans->spans[spans->count++];
    *added = *span;
    added->name = name;
    added->end_ns = RP_MAX(span->end_ns, span->begin_ns);
    spans->end_ns = RP_MAX(spans->end_ns, added->end_ns);
}

#define ORDER(a, b)                                                                                \
    if ((a) != (b))                                                                                \
    return (a) < (b) ? -1 : 1

static int compare_spans(const void *left, const void *right) {
    const struct rp_trace_span *a = left, *b = right;
    ORDER(a->kind, b->kind);
    if (a->kind >= RP_SPAN_REQUEST)
        ORDER(a->number, b->number);
    ORDER(a->begin_ns, b->begin_ns);
    ORDER(a->end_ns, b->end_ns);
    ORDER(a->number, b->number);
    ORDER(a->step, b->step);
    return strcmp(a->name, b->name);
}

void rp_trace_spans_finish(struct rp_trace_spans *spans) {
    uint32_t at = 0;
    if (spans->count)
        qsort(spans->spans, spans->count, sizeof *spans->spans, compare_spans);
    for (uint32_t kind = 0; kind <= RP_SPAN_KIND_COUNT; kind++) {
        while (at < spans->count && spans->spans[at].kind < kind)
            at++;
        spans->first[kind] = at;
    }
}

const struct rp_trace_span *rp_trace_spans_of_request(const struct rp_trace_spans *spans,
                                                      enum rp_trace_span_kind kind,
                                                      uint64_t request, uint32_t *out_count) {
    uint32_t low = spans->first[kind], high = spans->first[kind + 1], end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spans->spans[middle].number < request)
            low = middle + 1;
        else
            high = middle;
    }
    high = low;
    while (high < end && spans->spans[high].number == request)
        high++;
    *out_count = high - low;
    return *out_count ? spans->spans + low : NULL;
}

const struct rp_trace_span *rp_trace_spans_from(const struct rp_trace_spans *spans,
                                                enum rp_trace_span_kind kind, uint64_t ns,
                                                uint32_t *out_count) {
    uint32_t low = spans->first[kind], high = spans->first[kind + 1], end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spans->spans[middle].end_ns <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    *out_count = end - low;
    return *out_count ? spans->spans + low : NULL;
}

static uint64_t common_ns(const struct rp_trace_span *a, const struct rp_trace_span *b) {
    uint64_t begin = RP_MAX(a->begin_ns, b->begin_ns), end = RP_MIN(a->end_ns, b->end_ns);
    return end > begin ? end - begin : 0;
}

void rp_trace_spans_overlap(const struct rp_trace_spans *spans, struct rp_trace_overlap *out) {
    uint32_t count;
    const struct rp_trace_span *copies = rp_trace_spans_of(spans, RP_SPAN_COPY, &count);
    memset(out, 0, sizeof *out);
    out->copies = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t left;
        const struct rp_trace_span *copy = &copies[i];
        const struct rp_trace_span *step =
            rp_trace_spans_from(spans, RP_SPAN_STEP, copy->begin_ns, &left);
        out->copy_ns += copy->end_ns - copy->begin_ns;
        for (; left > 0 && step->begin_ns < copy->end_ns; step++, left--)
            out->overlapped_ns += common_ns(step, copy);
    }
}
