/* load_timer.h - a libuv timer with nanosecond resolution: libuv's own timers have millisecond
 * resolution, and their lateness would count as server latency. Without timerfd it falls back to
 * libuv's. Thread: the loop's. */
#ifndef RP_BENCH_LOAD_TIMER_H
#define RP_BENCH_LOAD_TIMER_H

#include "base/status.h"

#include <uv.h>

struct rp_load_timer {
    union {
        uv_handle_t handle;
        uv_poll_t poll;
        uv_timer_t timer;
    } uv;
    int fd;
    bool is_open;
    void (*fire)(void *context);
    void *context;
};

int rp_load_timer_init(struct rp_load_timer *timer, uv_loop_t *loop, void (*fire)(void *context),
                       void *context, struct rp_error *err) RP_MUST_USE;
/* Fires once when rp_clock_ns() reaches at_ns, at once if that has passed; replaces an earlier
 * setting. */
void rp_load_timer_set(struct rp_load_timer *timer, uint64_t at_ns);
/* The loop must run once more before the memory is freed. Legal after a failed init, on zeroed
 * memory. */
void rp_load_timer_close(struct rp_load_timer *timer);

#endif
