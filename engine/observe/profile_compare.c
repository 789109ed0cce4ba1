/* profile_compare.c - durations of steps against those of others: what stamping and sessions
 * cost. */
#include "base/memory.h"
#include "engine/engine_internal.h"
#include "engine/observe/profile_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_numbers(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Durations of the records of one bucket. */
struct durations {
    double median, error; /* +-, 95 %: 1.57 IQR / sqrt n */
    uint32_t count;
};

static struct durations durations_of(const struct rp_step_record *records, uint32_t count,
                                     uint32_t graph, uint64_t *scratch) {
    struct durations out = {.count = 0};
    for (uint32_t i = 0; i < count; i++)
        if (records[i].graph == graph && records[i].end_ns > records[i].begin_ns)
            scratch[out.count++] = records[i].end_ns - records[i].begin_ns;
    if (!out.count)
        return out;
    qsort(scratch, out.count, sizeof *scratch, compare_numbers);
    uint64_t low = scratch[out.count / 4], high = scratch[(3 * (out.count - 1) + 3) / 4];
    out.median = 0.5 * ((double)scratch[(out.count - 1) / 2] + (double)scratch[out.count / 2]);
    /* Few steps say little of their spread: a single one is taken to be as far off as it is
     * long. */
    out.error = out.count < 4 ? out.median
                              : 1.57 * (double)(high - RP_MIN(low, high)) / sqrt((double)out.count);
    return out;
}

struct rp_profile_ratio rp_profile_compare(const struct rp_step_record *a, uint32_t a_count,
                                           const struct rp_step_record *b, uint32_t b_count) {
    struct rp_profile_ratio out = {.steps = 0};
    uint64_t *scratch = rp_alloc((RP_MAX(a_count, b_count) + 1) * sizeof *scratch);
    uint32_t graphs = 0;
    double sum_of = 0.0, square = 0.0;
    for (uint32_t i = 0; i < a_count; i++)
        graphs = RP_MAX(graphs, a[i].graph + 1);
    for (uint32_t graph = 0; graph < graphs && scratch; graph++) {
        struct durations mine = durations_of(a, a_count, graph, scratch), other = {.count = 0};
        if (mine.count)
            other = durations_of(b, b_count, graph, scratch);
        if (!other.count)
            continue;
        double ratio = mine.median / other.median;
        double error =
            mine.count * ratio * hypot(mine.error / mine.median, other.error / other.median);
        sum_of += mine.count * ratio;
        square += error * error;
        out.steps += mine.count;
    }
    if (out.steps) {
        out.value = sum_of / (double)out.steps;
        out.spread = sqrt(square) / (double)out.steps;
    }
    rp_free(scratch);
    return out;
}

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double duration_of(const struct rp_step_record *record) {
    return (double)(record->end_ns - RP_MIN(record->begin_ns, record->end_ns));
}

/* The nearest step of record `at`'s bucket that is not stamped, that many steps away at most; NULL:
 * none. */
#define NEAR_STEPS 64

static const struct rp_step_record *find_near(const struct rp_step_record *records, uint32_t count,
                                              uint32_t at, int step) {
    int64_t i = (int64_t)at + step;
    for (int left = NEAR_STEPS; left > 0 && i >= 0 && i < count; left--, i += step)
        if (records[i].graph == records[at].graph && !records[i].stamped &&
            records[i].end_ns > records[i].begin_ns)
            return &records[i];
    return NULL;
}

struct rp_profile_ratio rp_profile_compare_stamped(const struct rp_step_record *records,
                                                   uint32_t count) {
    struct rp_profile_ratio out = {.steps = 0};
    double *ratios = rp_alloc((count + 1) * sizeof *ratios);
    for (uint32_t i = 0; i < count && ratios; i++) {
        const struct rp_step_record *before = NULL, *after = NULL;
        if (records[i].stamped) {
            before = find_near(records, count, i, -1);
            after = find_near(records, count, i, 1);
        }
        if (before && after)
            ratios[out.steps++] =
                2.0 * duration_of(&records[i]) / (duration_of(before) + duration_of(after));
    }
    if (out.steps) {
        qsort(ratios, out.steps, sizeof *ratios, compare_doubles);
        double low = ratios[out.steps / 4], high = ratios[(3 * (out.steps - 1) + 3) / 4];
        out.value = 0.5 * (ratios[(out.steps - 1) / 2] + ratios[out.steps / 2]);
        out.spread =
            out.steps < 4 ? out.value : 1.57 * RP_MAX(high - low, 0.0) / sqrt((double)out.steps);
    }
    rp_free(ratios);
    return out;
}

#define BEFORE_NS 10000000000u

void rp_engine_profile_slowdown(const struct rp_engine *engine, uint64_t started_ns,
                                uint64_t done_ns, struct rp_profile_slowdown *out) {
    struct rp_step_record *records = rp_calloc(RP_STEP_RECORDS, sizeof *records);
    uint64_t since = started_ns - RP_MIN(started_ns, (uint64_t)BEFORE_NS);
    memset(out, 0, sizeof *out);
    uint32_t count = records ? rp_engine_copy_steps(engine, since, records, RP_STEP_RECORDS) : 0;
    uint32_t before = 0, during = 0, after = count;
    while (before < count && records[before].read_ns < started_ns)
        before++;
    while (after > before && records[after - 1].begin_ns > done_ns)
        after--;
    /* Stamped steps in between. */
    for (uint32_t i = before; i < after; i++)
        if (records[i].stamped)
            records[before + during++] = records[i];
    out->before_steps = before;
    if (count) {
        out->during = rp_profile_compare(records + before, during, records, before);
        out->after = rp_profile_compare(records + after, count - after, records, before);
    }
    rp_free(records);
}
