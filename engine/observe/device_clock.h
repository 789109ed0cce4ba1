/* device_clock.h - the device's clock in terms of the host's.
 *
 * A step's result is read after the step has ended: read - end is never less than the distance
 * between the two clocks, and about equal to it when the thread was waiting. So the distance is the
 * least of these over a slice of time, carried on by the drift between the minima of slices, and
 * never more than the newest one allows: a step mapped to the host's clock never ends after it was
 * read, however the clocks drift. A device that shares the host's clock (the CPU) is not mapped.
 * Thread: the engine thread. Memory: the struct; zeroed but for `same` it is ready. */
#ifndef RP_ENGINE_DEVICE_CLOCK_H
#define RP_ENGINE_DEVICE_CLOCK_H

#include "base/base.h"

#define RP_DEVICE_CLOCK_SLICE_NS 250000000u
/* Crystals are good for less; more would be a wrong minimum. */
#define RP_DEVICE_CLOCK_DRIFT_MAX 200e-6
/* A slice of fewer steps says nothing about drift, and an estimate that is older than this is begun
 * anew. */
#define RP_DEVICE_CLOCK_STEPS_MIN 8u
#define RP_DEVICE_CLOCK_OLD_NS    2000000000u

struct rp_device_clock {
    bool same;  /* the device's clock is the host's */
    bool known; /* a step was read */
    /* The newest estimate: host = device + offset at device time `at`, growing by `drift` ns a
     * ns. */
    uint64_t at_ns;
    int64_t offset_ns;
    double drift;
    /* The slice in progress, and the minimum of the one before. */
    uint64_t slice_ns, least_at_ns, before_at_ns;
    int64_t least_ns, before_ns;
    uint32_t steps; /* of the slice in progress */
    bool has_before;
};

/* A step ended at end_ns by the device's clock and was read at read_ns by the host's. */
void rp_device_clock_note(struct rp_device_clock *clock, uint64_t end_ns, uint64_t read_ns);
/* A time of the device near the step noted last, in the host's clock. */
uint64_t rp_device_clock_map(const struct rp_device_clock *clock, uint64_t device_ns);

#endif
