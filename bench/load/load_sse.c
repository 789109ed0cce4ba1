#include "bench/load/load_sse.h"

#include <string.h>

void rp_load_sse_init(struct rp_load_sse *sse) {
    rp_buffer_init(&sse->line, RP_LOAD_EVENT_BYTES);
    rp_buffer_init(&sse->event, RP_LOAD_EVENT_BYTES);
    sse->has_data = false;
}

void rp_load_sse_reset(struct rp_load_sse *sse) {
    rp_buffer_clear(&sse->line);
    rp_buffer_clear(&sse->event);
    sse->has_data = false;
}

void rp_load_sse_deinit(struct rp_load_sse *sse) {
    rp_buffer_deinit(&sse->line);
    rp_buffer_deinit(&sse->event);
}

static bool dispatch(struct rp_load_sse *sse, rp_load_event *event, void *context) {
    if (!sse->has_data)
        return true;
    bool ok = event(context, sse->event.len ? sse->event.data : "", sse->event.len);
    rp_buffer_clear(&sse->event);
    sse->has_data = false;
    return ok;
}

/* Whether the line is a data field; *out is its value. */
static bool data_of(const char *line, size_t len, const char **out, size_t *out_len) {
    if (len < 4 || memcmp(line, "data", 4) != 0 || (len > 4 && line[4] != ':'))
        return false;
    size_t skip = len == 4 ? 4 : len > 5 && line[5] == ' ' ? 6 : 5;
    *out = line + skip;
    *out_len = len - skip;
    return true;
}

static size_t without_cr(const char *line, size_t len) {
    return len && line[len - 1] == '\r' ? len - 1 : len;
}

static bool read_line(struct rp_load_sse *sse, const char *line, size_t len, rp_load_event *event,
                      void *context) {
    const char *data;
    size_t data_len;
    len = without_cr(line, len);
    if (len == 0)
        return dispatch(sse, event, context);
    if (!data_of(line, len, &data, &data_len))
        return true;
    if (sse->has_data)
        rp_buffer_append(&sse->event, "\n", 1);
    sse->has_data = true;
    rp_buffer_append(&sse->event, data, data_len);
    return !sse->event.failed;
}

/* The length of a blank line at `at`, including its newline; 0: not a blank line. */
static size_t blank_line(const char *at, const char *end) {
    if (at < end && *at == '\n')
        return 1;
    return end - at >= 2 && at[0] == '\r' && at[1] == '\n' ? 2 : 0;
}

bool rp_load_sse_feed(struct rp_load_sse *sse, const char *bytes, size_t len, rp_load_event *event,
                      void *context) {
    const char *at = bytes, *end = bytes + len;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) {
            rp_buffer_append(&sse->line, at, (size_t)(end - at));
            return !sse->line.failed;
        }
        const char *line = at, *data;
        size_t line_len = (size_t)(newline - at), data_len, blank;
        at = newline + 1;
        bool ok;
        if (sse->line.len) {
            rp_buffer_append(&sse->line, line, line_len);
            if (sse->line.failed)
                return false;
            ok = read_line(sse, sse->line.data, sse->line.len, event, context);
            rp_buffer_clear(&sse->line);
        } else if (!sse->has_data && data_of(line, without_cr(line, line_len), &data, &data_len) &&
                   (blank = blank_line(at, end)) != 0) {
            at += blank;
            ok = event(context, data, data_len);
        } else
            ok = read_line(sse, line, line_len, event, context);
        if (!ok)
            return false;
    }
    return true;
}

bool rp_load_sse_finish(struct rp_load_sse *sse, rp_load_event *event, void *context) {
    if (sse->line.len && !read_line(sse, sse->line.data, sse->line.len, event, context))
        return false;
    return dispatch(sse, event, context);
}
