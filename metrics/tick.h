/* tick.h - the clock of everything that is recorded: nanoseconds of CLOCK_MONOTONIC (the epoch and
 * unit of rp_clock_ns), read from the processor's time stamp counter where that is constant, does
 * not stop, and the kernel itself keeps time by it. Elsewhere, and before rp_tick_start, it is
 * rp_clock_ns.
 *
 * One owner thread compares the two clocks once a second and publishes a linear mapping: from a
 * moment one millisecond in the future the rate changes, so that the old and the new line intersect
 * there and no thread sees time go back. Two exceptions: an owner that is descheduled for more than
 * that millisecond between its last comparison and its store (a step of at most 0.5 ns per
 * microsecond of delay), and a counter that is wrong by more than a millisecond (a machine that was
 * suspended or migrated), which is abandoned in one step.
 *
 * Accuracy: within 5 us of CLOCK_MONOTONIC after the first second, 1 us later; deadlines and sleeps
 * use rp_clock_ns. Thread: rp_tick_ns any; the rest one owner. Memory: static. */
#ifndef RP_METRICS_TICK_H
#define RP_METRICS_TICK_H

#include "base/clock.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#define RP_TICK_COUNTER 1
static inline uint64_t rp_tick_counter(void) { return __builtin_ia32_rdtsc(); }
#else
#define RP_TICK_COUNTER 0
static inline uint64_t rp_tick_counter(void) { return 0; }
#endif

#define RP_TICK_LINES 8
/* ns = ns0 + (counter - counter0) * rate / 2^32; `before` is the rate of counters below
 * counter0. */
struct rp_tick_line {
    _Atomic uint64_t counter0, ns0, before, after;
};
extern struct rp_tick_line rp_tick_lines[RP_TICK_LINES];
/* Lines published since the start; the newest is [version % RP_TICK_LINES]. 0: the counter is not
 * used. */
extern _Atomic uint64_t rp_tick_version;

__extension__ typedef unsigned __int128 rp_tick_wide;

static inline uint64_t rp_tick_line_ns(uint64_t counter, uint64_t counter0, uint64_t ns0,
                                       uint64_t before, uint64_t after) {
    if (counter >= counter0)
        return ns0 + (uint64_t)(((rp_tick_wide)(counter - counter0) * after) >> 32);
    return ns0 - (uint64_t)(((rp_tick_wide)(counter0 - counter) * before) >> 32);
}

static inline uint64_t rp_tick_ns(void) {
    for (;;) {
        /* acquire: who sees the version sees its line. */
        uint64_t version = atomic_load_explicit(&rp_tick_version, memory_order_acquire);
        if (!RP_TICK_COUNTER || version == 0)
            return rp_clock_ns();
        const struct rp_tick_line *line = &rp_tick_lines[version % RP_TICK_LINES];
        uint64_t counter0 = atomic_load_explicit(&line->counter0, memory_order_acquire);
        uint64_t ns0 = atomic_load_explicit(&line->ns0, memory_order_acquire);
        uint64_t before = atomic_load_explicit(&line->before, memory_order_acquire);
        uint64_t after = atomic_load_explicit(&line->after, memory_order_acquire);
        uint64_t ns = rp_tick_line_ns(rp_tick_counter(), counter0, ns0, before, after);
        /* A newer line may hold by now, or this one's place may have been written over. */
        if (atomic_load_explicit(&rp_tick_version, memory_order_relaxed) == version)
            return ns;
    }
}

/* Takes the counter into use if it can be; waits 10 ms to learn its rate. True when it is in use. A
 * second call changes nothing. */
bool rp_tick_start(void);
/* Owner: compares and corrects, if a second has passed since it last did; else cheap. */
void rp_tick_check(void);
/* Back to rp_clock_ns (tests). No other thread may be reading. */
void rp_tick_stop(void);
/* What the counter runs at, in Hz; 0 while it is not used. Any thread. */
double rp_tick_hertz(void);

/* For tests: the next line after one whose value is `ours` where CLOCK_MONOTONIC is `truth`, both
 * at `counter`; rate: the counter's, ns * 2^32 a tick, in the last interval. The new line
 * intersects the old one at counter + ahead ticks and reaches the truth a second later, changing
 * the rate by 500 ppm at most. */
struct rp_tick_next {
    uint64_t counter0, ns0, before, after;
};
struct rp_tick_next rp_tick_follow(uint64_t counter, uint64_t ours, uint64_t truth,
                                   uint64_t old_rate, uint64_t rate, uint64_t ahead);

#endif
