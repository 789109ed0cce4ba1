/* idle_timeline.h - what the engine thread did lately, and so why the device stood idle meanwhile.
 *
 * The thread's time is cut into spans without holes, each with the cause that an idle device would
 * have during it. A gap between two steps of the device is split by them, to the nanosecond; what
 * no span covers (they are forgotten after RP_TIMELINE_SPANS others) is RP_IDLE_UNKNOWN. Times: one
 * clock, the host's. Thread: the engine thread. Memory: the struct. */
#ifndef RP_ENGINE_IDLE_TIMELINE_H
#define RP_ENGINE_IDLE_TIMELINE_H

#include "metrics/event.h"

#define RP_TIMELINE_SPANS 64u

/* Part of a gap that has one cause. */
struct rp_idle_piece {
    uint64_t begin_ns, end_ns;
    enum rp_idle_cause cause;
};
/* Maximum pieces of a gap: one per span, a hole before each, one after the last, and the start. */
#define RP_IDLE_PIECES_MAX (2 * RP_TIMELINE_SPANS + 2)

struct rp_idle_timeline {
    struct rp_idle_piece spans[RP_TIMELINE_SPANS]; /* ring, oldest first from count */
    uint64_t count;                                /* ever added */
};

/* [begin, end) was spent so; begin is not before the end of the span added last. A span that goes
 * on with the cause of the last one makes that longer. */
void rp_idle_timeline_add(struct rp_idle_timeline *timeline, uint64_t begin_ns, uint64_t end_ns,
                          enum rp_idle_cause cause);

/* Splits the gap [begin, end) in front of a step whose launch had returned at launched_ns: from
 * then on the device had work that it had not begun (RP_IDLE_START). launched_ns UINT64_MAX:
 * nothing was launched yet. Pieces in order of time, neighbors of one cause joined; they add up to
 * end - begin. Returns how many. */
uint32_t rp_idle_timeline_split(const struct rp_idle_timeline *timeline, uint64_t begin_ns,
                                uint64_t end_ns, uint64_t launched_ns,
                                struct rp_idle_piece out[RP_IDLE_PIECES_MAX]);

#endif
