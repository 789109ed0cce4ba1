#include "bench/load/load_warmup.h"

#include <math.h>
#include <string.h>

#define PARTS     100u
#define WINDOW    10u /* number of parts averaged */
#define PARTS_MAX 50u /* the last part in which a run may settle */

/* Adds to each part the share of it covered by [from, to). Positions are in units of parts. */
static void add_span(double *out, uint32_t parts, double from, double to) {
    from = RP_MAX(from, 0.0);
    to = RP_MIN(to, (double)parts);
    if (!(from < to))
        return;
    uint32_t first = (uint32_t)from, last = RP_MIN((uint32_t)to, parts - 1);
    for (uint32_t i = first; i <= last; i++)
        out[i] += RP_MIN(to, i + 1.0) - RP_MAX(from, (double)i);
}

void rp_load_in_flight(const struct rp_load_records *records, uint64_t begin_ns, uint64_t end_ns,
                       double *out, uint32_t parts) {
    double scale = parts / (double)(end_ns - begin_ns), begin = (double)begin_ns;
    memset(out, 0, parts * sizeof *out);
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        if (record->outcome != RP_LOAD_NOT_SENT)
            add_span(out, parts, ((double)record->intended_ns - begin) * scale,
                     ((double)record->end_ns - begin) * scale);
    }
}

static double mean_of(const double *values, uint32_t count) {
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

/* Standard deviation of means over WINDOW parts, from differences of neighbors: a constant drift
 * does not contribute. */
static double deviation(const double *values, uint32_t count) {
    double mean = 0.0, squares = 0.0;
    uint32_t tens = count / WINDOW;
    for (uint32_t i = 0; i + 1 < tens; i++)
        mean += mean_of(values + (i + 1) * WINDOW, WINDOW) - mean_of(values + i * WINDOW, WINDOW);
    mean /= tens - 1;
    for (uint32_t i = 0; i + 1 < tens; i++) {
        double step =
            mean_of(values + (i + 1) * WINDOW, WINDOW) - mean_of(values + i * WINDOW, WINDOW);
        squares += (step - mean) * (step - mean);
    }
    return sqrt(squares / (tens - 2) / 2.0);
}

static bool has_stopped_rising(const double *values, uint32_t count) {
    double now = mean_of(values, WINDOW), later = mean_of(values + WINDOW, count - WINDOW);
    double allowance = RP_MAX(0.1 * later, 0.5);
    allowance = RP_MAX(allowance, 2.0 * deviation(values, count));
    return now >= later - allowance;
}

void rp_load_warm_up_find(const struct rp_load_records *records, struct rp_load_warm_up *out) {
    uint64_t first = UINT64_MAX, last = 0, first_end = UINT64_MAX;
    double in_flight[PARTS];
    uint32_t k = 0;
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        if (record->outcome == RP_LOAD_NOT_SENT)
            continue;
        first = RP_MIN(first, record->intended_ns);
        last = RP_MAX(last, record->intended_ns);
        if (record->outcome == RP_LOAD_OK)
            first_end = RP_MIN(first_end, record->end_ns);
    }
    *out = (struct rp_load_warm_up){.end_ns = records->begin_ns};
    if (first_end == UINT64_MAX) {
        out->why_not = "no request succeeded";
        return;
    }
    if (last <= first) {
        out->why_not = "all requests were sent at once";
        return;
    }
    uint64_t span = last - first;
    rp_load_in_flight(records, first, last, in_flight, PARTS);
    while (k <= PARTS_MAX && !has_stopped_rising(in_flight + k, PARTS - k))
        k++;
    uint64_t settled_ns = first + (uint64_t)((double)span * k / PARTS);
    if (k > PARTS_MAX)
        out->why_not = "the number in flight kept rising";
    else if (first_end > first && first_end - first > span / 2)
        out->why_not = "the first request ended after half of them had been sent";
    else
        *out = (struct rp_load_warm_up){.settled = true, .end_ns = RP_MAX(settled_ns, first_end)};
}
