#include "server/cli/top_view.h"

#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct screen {
    struct rp_buffer *out;
    uint32_t columns, rows_left;
};

/* Appends one line, truncated to the width. */
static void line(struct screen *screen, const char *format, ...) RP_PRINTF(2, 3);
static void line(struct screen *screen, const char *format, ...) {
    char text[RP_TOP_COLUMNS_MAX + 1];
    va_list args;
    if (screen->rows_left == 0)
        return;
    screen->rows_left--;
    va_start(args, format);
    vsnprintf(text, screen->columns + 1, format, args);
    va_end(args);
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || (unsigned char)*at > 0x7E)
            *at = '?';
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == ' ')
        len--;
    rp_buffer_append(screen->out, text, len);
    rp_buffer_puts(screen->out, "\n");
}

/* The value at "a.b.c", or NULL. */
static const json_t *find(const json_t *root, const char *path) {
    while (root && *path) {
        size_t len = strcspn(path, ".");
        root = json_object_getn(root, path, len);
        path += len + (path[len] == '.');
    }
    return root;
}

static double number(const json_t *root, const char *path) {
    const json_t *value = find(root, path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text_of(const json_t *root, const char *path) {
    const char *text = json_string_value(find(root, path));
    return text ? text : "";
}

/* Formats a number; "-" if there is none. */
static const char *shown(double value, int digits, char out[32]) {
    if (isnan(value))
        snprintf(out, 32, "-");
    else
        snprintf(out, 32, "%.*f", digits, value);
    return out;
}

/* [####++++ ]: held and cached share of all pages. */
static void bar(double first, double second, uint32_t width, char *out) {
    for (uint32_t i = 0; i < width; i++) {
        double at = (i + 0.5) / width;
        out[i] = at < first ? '#' : at < first + second ? '+' : ' ';
    }
    out[width] = '\0';
}

static double rate(const struct rp_top_answers *now, const struct rp_top_answers *before,
                   const char *path) {
    if (!before)
        return NAN;
    double seconds = number(now->status, "now_seconds") - number(before->status, "now_seconds");
    return seconds > 0 ? (number(now->status, path) - number(before->status, path)) / seconds : NAN;
}

static void write_head(struct screen *screen, const json_t *status) {
    double up = number(status, "uptime_seconds");
    unsigned long seconds = up > 0 && up < 1e12 ? (unsigned long)up : 0;
    const char *reason = json_string_value(find(status, "not_ready"));
    line(screen, "%.40s on %.60s, up %lu:%02lu:%02lu, %s", text_of(status, "model"),
         text_of(status, "device"), seconds / 3600, seconds / 60 % 60, seconds % 60,
         reason ? reason : "ready");
}

static void write_rates(struct screen *screen, const struct rp_top_answers *now,
                        const struct rp_top_answers *before) {
    char out[32], in[32], steps[32];
    double decode = rate(now, before, "steps.decode"), mixed = rate(now, before, "steps.mixed");
    line(screen, "tokens/s  %8s out %8s in   %8s steps/s",
         shown(rate(now, before, "tokens.generated"), 0, out),
         shown(rate(now, before, "tokens.prompt"), 0, in), shown(decode + mixed, 0, steps));
    line(screen, "requests  %8s running %4s waiting %4s swapped out",
         shown(number(now->status, "requests.running"), 0, out),
         shown(number(now->status, "requests.waiting"), 0, in),
         shown(number(now->status, "requests.swapped"), 0, steps));
}

/* How busy the device was since `before`, and the largest cause of idle time. */
static void write_device(struct screen *screen, const struct rp_top_answers *now,
                         const struct rp_top_answers *before) {
    char busy_text[32], idle_text[32], picture[32], path[96];
    double busy = rate(now, before, "device_seconds.busy"), all = busy, most = 0;
    const char *cause = "", *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)find(now->status, "device_seconds.idle"), name,
                        value) {
        snprintf(path, sizeof path, "device_seconds.idle.%.40s", name);
        double idle = rate(now, before, path);
        all += isnan(idle) ? 0 : idle;
        if (idle > most) {
            most = idle;
            cause = name;
        }
    }
    double share = all > 0 ? busy / all : NAN;
    bar(isnan(share) ? 0 : share, 0, 20, picture);
    line(screen, "device    %8s %% busy [%s] %s %s", shown(share * 100, 1, busy_text), picture,
         *cause ? "idle most:" : "", cause);
    double total = number(now->status, "pages.total"),
           held = number(now->status, "pages.held") / total,
           cached = number(now->status, "pages.cached") / total;
    bar(held, cached, 20, picture);
    line(screen, "KV pages  %8s %% held [%s] %s %% cached, of %.0f",
         shown(held * 100, 1, busy_text), picture, shown(cached * 100, 1, idle_text),
         isnan(total) ? 0.0 : total);
    double watts = number(now->status, "power.watts");
    if (!isnan(watts) && isnan(number(now->status, "power.sm_mhz")))
        line(screen, "power     %8.0f W of the CPU", watts);
    else if (!isnan(watts))
        line(screen, "power     %8.0f W, %.0f MHz, %.0f C%s%.40s", watts,
             number(now->status, "power.sm_mhz"), number(now->status, "power.celsius"),
             *text_of(now->status, "power.throttled") ? ", throttled: " : "",
             text_of(now->status, "power.throttled"));
    double bytes = number(now->status, "memory.device_bytes"),
           most_bytes = number(now->status, "memory.total_bytes");
    if (!isnan(bytes))
        line(screen, "memory    %8.2f GiB%s%s", bytes / 0x1p30, most_bytes > 0 ? " of " : "",
             most_bytes > 0 ? shown(most_bytes / 0x1p30, 2, busy_text) : "");
}

static const char *const windows[RP_TOP_WINDOW_COUNT] = {"10s", "1m", "5m", "total"};

static void write_window(struct screen *screen, const char *name, const json_t *series,
                         enum rp_top_window window) {
    static const char *const columns[] = {"p50", "p90", "p95", "p99", "max"};
    const json_t *numbers = find(find(series, "windows"), windows[window]);
    char cells[RP_ARRAY_COUNT(columns)][32], count[32];
    for (size_t i = 0; i < RP_ARRAY_COUNT(columns); i++)
        shown(number(numbers, columns[i]) * 1e3, 2, cells[i]);
    line(screen, "%-24.24s %8s %8s %8s %8s %8s %8s", name,
         shown(number(numbers, "count"), 0, count), cells[0], cells[1], cells[2], cells[3],
         cells[4]);
}

static void write_latency(struct screen *screen, const json_t *latency, enum rp_top_window window) {
    size_t i;
    const json_t *series;
    char name[64];
    line(screen, "%s", "");
    snprintf(name, sizeof name, "ms, %s",
             window == RP_TOP_TOTAL ? "since the start" : windows[window]);
    line(screen, "%-24s %8s %8s %8s %8s %8s %8s", name, "count", "p50", "p90", "p95", "p99", "max");
    json_array_foreach(find(latency, "series"), i, series) {
        snprintf(name, sizeof name, "%.40s", text_of(series, "name"));
        for (char *at = name; *at; at++)
            *at = *at == '_' ? ' ' : *at;
        write_window(screen, name, series, window);
    }
}

/* Captured sizes used in the window, those with the most steps first. */
static void write_graphs(struct screen *screen, const json_t *latency, enum rp_top_window window) {
    const json_t *steps = find(latency, "steps"), *one;
    double below = INFINITY;
    for (uint32_t shown_count = 0; shown_count < 4; shown_count++) {
        const json_t *best = NULL;
        double most = 0;
        size_t i;
        json_array_foreach(steps, i, one) {
            double count = number(find(find(one, "windows"), windows[window]), "count");
            if (count > most && count < below) {
                most = count;
                best = one;
            }
        }
        if (!best)
            return;
        char name[64];
        snprintf(name, sizeof name, "step, %s %.0f",
                 json_is_true(find(best, "decode")) ? "decode" : "mixed", number(best, "tokens"));
        write_window(screen, name, best, window);
        below = most;
    }
}

static void write_requests(struct screen *screen, const json_t *requests) {
    size_t i;
    const json_t *one;
    if (!json_array_size(find(requests, "requests")))
        return;
    line(screen, "%s", "");
    line(screen, "%-18s %-10s %6s %6s %9s %9s %9s %s", "slowest requests", "finish", "in", "out",
         "ttft ms", "total ms", "worst gap", "because of");
    json_array_foreach(find(requests, "requests"), i, one) {
        char ttft[32], total[32], gap[32];
        const char *finish = text_of(one, "finish_reason");
        line(screen, "%-18.18s %-10.10s %6.0f %6.0f %9s %9s %9s %.20s", text_of(one, "id"),
             *finish ? finish : text_of(one, "state"), number(one, "tokens.prompt"),
             number(one, "tokens.output"),
             shown(number(one, "durations_seconds.time_to_first_token") * 1e3, 1, ttft),
             shown(number(one, "durations_seconds.total") * 1e3, 1, total),
             shown(number(one, "inter_token.worst.seconds") * 1e3, 1, gap),
             text_of(one, "inter_token.worst.cause"));
    }
}

void rp_top_write(const struct rp_top_answers *now, const struct rp_top_answers *before,
                  enum rp_top_window window, uint32_t columns, uint32_t rows,
                  struct rp_buffer *out) {
    struct screen screen = {out, RP_MAX(RP_TOP_COLUMNS_MIN, RP_MIN(columns, RP_TOP_COLUMNS_MAX)),
                            rows};
    write_head(&screen, now->status);
    write_rates(&screen, now, before);
    write_device(&screen, now, before);
    write_latency(&screen, now->latency, window);
    write_graphs(&screen, now->latency, window);
    write_requests(&screen, now->requests);
}
