#include "bench/load/load_timer.h"

#include "base/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)

#include <sys/timerfd.h>

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct rp_load_timer *timer = poll->data;
    uint64_t times;
    (void)status;
    (void)events;
    if (read(timer->fd, &times, sizeof times) == (ssize_t)sizeof times)
        timer->fire(timer->context);
}

int rp_load_timer_init(struct rp_load_timer *timer, uv_loop_t *loop, void (*fire)(void *context),
                       void *context, struct rp_error *err) {
    *timer = (struct rp_load_timer){.fire = fire, .context = context};
    timer->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer->fd < 0)
        return rp_error_set(err, RP_STATUS_IO, "timerfd: %s", strerror(errno));
    int rc = uv_poll_init(loop, &timer->uv.poll, timer->fd);
    if (rc != 0) {
        close(timer->fd);
        return rp_error_set(err, RP_STATUS_IO, "timerfd: %s", uv_strerror(rc));
    }
    timer->is_open = true;
    timer->uv.poll.data = timer;
    rc = uv_poll_start(&timer->uv.poll, UV_READABLE, on_readable);
    return rc == 0 ? RP_OK : rp_error_set(err, RP_STATUS_IO, "timerfd: %s", uv_strerror(rc));
}

void rp_load_timer_set(struct rp_load_timer *timer, uint64_t at_ns) {
    at_ns = at_ns ? at_ns : 1; /* 0 would disarm it */
    struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000u),
                                           .tv_nsec = (long)(at_ns % 1000000000u)}};
    RP_ASSERT(timerfd_settime(timer->fd, TFD_TIMER_ABSTIME, &spec, NULL) == 0);
}

static void on_closed(uv_handle_t *handle) {
    struct rp_load_timer *timer = handle->data;
    close(timer->fd);
}

#else

static void on_timer(uv_timer_t *uv) {
    struct rp_load_timer *timer = uv->data;
    timer->fire(timer->context);
}

int rp_load_timer_init(struct rp_load_timer *timer, uv_loop_t *loop, void (*fire)(void *context),
                       void *context, struct rp_error *err) {
    *timer = (struct rp_load_timer){.fire = fire, .context = context};
    int rc = uv_timer_init(loop, &timer->uv.timer);
    if (rc != 0)
        return rp_error_set(err, RP_STATUS_IO, "timer: %s", uv_strerror(rc));
    timer->uv.timer.data = timer;
    timer->is_open = true;
    return RP_OK;
}

void rp_load_timer_set(struct rp_load_timer *timer, uint64_t at_ns) {
    uint64_t now_ns = rp_clock_ns();
    uint64_t ms = at_ns > now_ns ? (at_ns - now_ns + 999999) / 1000000 : 0;
    uv_update_time(timer->uv.timer.loop);
    uv_timer_start(&timer->uv.timer, on_timer, ms, 0);
}

static void on_closed(uv_handle_t *handle) { (void)handle; }

#endif

void rp_load_timer_close(struct rp_load_timer *timer) {
    if (timer->is_open)
        uv_close(&timer->uv.handle, on_closed);
    timer->is_open = false;
}
