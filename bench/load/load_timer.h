/* load_timer.h - a timer of a libuv loop that fires at a nanosecond: libuv's own know milliseconds
 * only, and what they are late would be counted as the server's time. Where there is no timerfd it
 * is libuv's own. Thread: the loop's. */
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
/* Fires once when rp_clock_ns() is at_ns, at once when that is over; replaces what was set
 * before. */
void rp_load_timer_set(struct rp_load_timer *timer, uint64_t at_ns);
/* The loop must run once more before the memory is given back. Legal when init failed, on zeroed
 * memory. */
void rp_load_timer_close(struct rp_load_timer *timer);

#endif
