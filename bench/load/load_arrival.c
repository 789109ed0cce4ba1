/* load_arrival.c - intended send times. */
#include "bench/load/load_plan_internal.h"
#include "bench/load/load_random.h"

#include <math.h>

/* Longer than any run, and small enough that nanoseconds do not overflow. */
#define SECONDS_MAX 3e9

static double rate_at(const struct rp_load_source *source, double progress) {
    switch (source->ramp) {
    case RP_LOAD_RAMP_LINEAR:
        return source->ramp_begin + (source->ramp_end - source->ramp_begin) * progress;
    case RP_LOAD_RAMP_EXPONENTIAL:
        return source->ramp_begin *
               rp_load_exp(progress * rp_load_log(source->ramp_end / source->ramp_begin));
    default:
        return source->rate;
    }
}

/* Draws a gap with mean 1. */
static double draw_gap(const struct rp_load_source *source, struct rp_load_random *random) {
    return source->arrival == RP_LOAD_GAMMA
               ? rp_load_random_gamma(random, source->burstiness) / source->burstiness
               : 1;
}

static int too_long(struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_RANGE, "the plan would last longer than %.0f years",
                        SECONDS_MAX / 31557600);
}

static int draw_times(const struct rp_load_source *source, struct rp_load_plan *out,
                      struct rp_error *err) {
    struct rp_load_random random = rp_load_random_begin(source->seed, RP_LOAD_STREAM_ARRIVAL, 0);
    struct rp_load_random again = random;
    double sum = 0, seconds = 0, last = out->count > 1 ? out->count - 1 : 1;
    for (uint32_t i = 1; i < out->count; i++)
        sum += draw_gap(source, &random);
    /* Scales the gaps so that their mean is exactly 1. All can be 0 when the shape is tiny. */
    double scale = sum > 0 ? last / sum : 1;
    out->requests[0].at_ns = 0;
    for (uint32_t i = 1; i < out->count; i++) {
        double gap = sum > 0 ? draw_gap(source, &again) * scale : 1;
        /* Without a ramp gaps are summed before dividing by the rate, which is exact for constant
         * gaps. */
        seconds += source->ramp == RP_LOAD_NO_RAMP ? gap : gap / rate_at(source, i / last);
        double at = source->ramp == RP_LOAD_NO_RAMP ? seconds / source->rate : seconds;
        if (!(at <= SECONDS_MAX))
            return too_long(err);
        out->requests[i].at_ns = (uint64_t)floor(at * 1e9 + 0.5);
    }
    return RP_OK;
}

static int trace_times(const struct rp_load_source *source, const struct rp_load_rows *rows,
                       struct rp_load_plan *out, struct rp_error *err) {
    for (uint32_t i = 0; i < out->count; i++) {
        double at = (double)(rows->rows[i].at_ns - rows->rows[0].at_ns) * source->time_scale;
        if (!(at <= SECONDS_MAX * 1e9))
            return too_long(err);
        out->requests[i].at_ns = (uint64_t)floor(at + 0.5);
    }
    return RP_OK;
}

int rp_load_arrival_times(const struct rp_load_source *source, const struct rp_load_rows *rows,
                          struct rp_load_plan *out, struct rp_error *err) {
    switch (source->arrival) {
    case RP_LOAD_CONSTANT:
    case RP_LOAD_GAMMA:
        return draw_times(source, out, err);
    case RP_LOAD_TRACE:
        return trace_times(source, rows, out, err);
    default: /* closed */
        for (uint32_t i = 0; i < out->count; i++)
            out->requests[i].at_ns = 0;
        return RP_OK;
    }
}
