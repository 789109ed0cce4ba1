#include "engine/observe/device_clock.h"

static int64_t offset_at(const struct rp_device_clock *clock, uint64_t device_ns) {
    double since = (double)(int64_t)(device_ns - clock->at_ns);
    return clock->offset_ns + (int64_t)(since * clock->drift);
}

/* A slice is over: its minimum against the one before gives the drift, and is where the estimate
 * goes on from. */
static void end_slice(struct rp_device_clock *clock) {
    bool enough = clock->steps >= RP_DEVICE_CLOCK_STEPS_MIN;
    if (enough && clock->has_before && clock->least_at_ns > clock->before_at_ns) {
        double drift = (double)(clock->least_ns - clock->before_ns) /
                       (double)(clock->least_at_ns - clock->before_at_ns);
        drift = RP_MIN(RP_MAX(drift, -RP_DEVICE_CLOCK_DRIFT_MAX), RP_DEVICE_CLOCK_DRIFT_MAX);
        /* One slice's minimum may be late by some microseconds: an eighth of what it says. */
        clock->drift += (drift - clock->drift) / 8;
    }
    clock->at_ns = clock->least_at_ns;
    clock->offset_ns = clock->least_ns;
    clock->before_at_ns = clock->least_at_ns;
    clock->before_ns = clock->least_ns;
    clock->has_before = enough;
}

void rp_device_clock_note(struct rp_device_clock *clock, uint64_t end_ns, uint64_t read_ns) {
    int64_t distance = (int64_t)(read_ns - end_ns);
    if (clock->same)
        return;
    if (!clock->known || read_ns - clock->slice_ns >= RP_DEVICE_CLOCK_OLD_NS) {
        *clock = (struct rp_device_clock){.known = true,
                                          .drift = clock->drift,
                                          .at_ns = end_ns,
                                          .offset_ns = distance,
                                          .slice_ns = read_ns,
                                          .least_at_ns = end_ns,
                                          .least_ns = distance,
                                          .steps = 1};
        return;
    }
    if (read_ns - clock->slice_ns >= RP_DEVICE_CLOCK_SLICE_NS) {
        end_slice(clock);
        clock->slice_ns = read_ns;
        clock->least_ns = distance;
        clock->least_at_ns = end_ns;
        clock->steps = 0;
    } else if (distance < clock->least_ns) {
        clock->least_ns = distance;
        clock->least_at_ns = end_ns;
    }
    clock->steps++;
    if (distance < offset_at(clock, end_ns)) {
        clock->at_ns = end_ns;
        clock->offset_ns = distance;
    }
}

uint64_t rp_device_clock_map(const struct rp_device_clock *clock, uint64_t device_ns) {
    return clock->same ? device_ns : device_ns + (uint64_t)offset_at(clock, device_ns);
}
