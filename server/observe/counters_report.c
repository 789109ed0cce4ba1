#include "server/observe/counters_report.h"

#include "base/json_writer.h"

#include <string.h>

/* ---- JSON
 *
 --------------------------------------------------------------------------------------------- */

static void write_counter(const struct rp_device_counter *counter, struct rp_json *json) {
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", counter->name);
    rp_json_string(json, "unit", counter->unit);
    rp_json_string(json, "about", counter->about);
    rp_json_string(json, "metric", counter->metric);
    if (counter->why[0]) {
        rp_json_string(json, "why", counter->why);
    } else if (counter->samples == 0) {
        rp_json_uint(json, "samples", 0);
    } else {
        rp_json_uint(json, "samples", counter->samples);
        rp_json_double(json, "mean", counter->mean);
        rp_json_double(json, "p50", counter->p50);
        rp_json_double(json, "p99", counter->p99);
        rp_json_double(json, "max", counter->max);
    }
    rp_json_object_end(json);
}

static void write_counters(const struct rp_device_counters *device, bool left_out, const char *key,
                           struct rp_json *json) {
    rp_json_array_begin(json, key);
    for (uint32_t i = 0; i < device->count; i++)
        if ((device->counters[i].why[0] != '\0') == left_out)
            write_counter(&device->counters[i], json);
    rp_json_array_end(json);
}

static void write_ratio(const char *key, const struct rp_profile_ratio *ratio,
                        struct rp_json *json) {
    rp_json_object_begin(json, key);
    rp_json_uint(json, "steps", ratio->steps);
    if (ratio->steps) {
        rp_json_double(json, "ratio", ratio->value);
        rp_json_double(json, "spread", ratio->spread);
    } else {
        rp_json_null(json, "ratio");
        rp_json_null(json, "spread");
    }
    rp_json_object_end(json);
}

static void write_cost(const struct rp_counters_report *report, struct rp_json *json) {
    const struct rp_device_counters *device = &report->device;
    rp_json_object_begin(json, "cost");
    rp_json_double(json, "setup_seconds", device->setup_seconds);
    rp_json_double(json, "teardown_seconds", device->teardown_seconds);
    rp_json_double(json, "cpu_seconds", device->cpu_seconds);
    rp_json_uint(json, "hardware_buffer_bytes", device->hardware_buffer_bytes);
    rp_json_uint(json, "host_bytes", device->host_bytes);
    rp_json_object_begin(json, "slowdown");
    rp_json_uint(json, "steps_before", report->slowdown.before_steps);
    write_ratio("during", &report->slowdown.during, json);
    write_ratio("after", &report->slowdown.after, json);
    rp_json_object_end(json);
    rp_json_object_end(json);
}

static void write_device(const struct rp_counters_report *report, struct rp_json *json) {
    const struct rp_device_counters *device = &report->device;
    rp_json_object_begin(json, "device");
    if (!report->has_device) {
        rp_json_string(json, "error", report->device_why.text);
        if (report->device_why.hint[0])
            rp_json_string(json, "hint", report->device_why.hint);
        rp_json_object_end(json);
        return;
    }
    rp_json_string(json, "source", device->source);
    rp_json_string(json, "chip", device->chip);
    rp_json_double(json, "seconds", device->seconds);
    rp_json_double(json, "covered_seconds", device->covered_seconds);
    rp_json_uint(json, "interval_us", device->interval_us);
    rp_json_uint(json, "samples", device->samples);
    rp_json_uint(json, "missing", device->missing);
    rp_json_bool(json, "overflowed", device->overflowed);
    write_counters(device, false, "counters", json);
    write_counters(device, true, "left_out", json);
    write_cost(report, json);
    rp_json_object_end(json);
}

void rp_counters_write_json(const struct rp_counters_report *report, struct rp_buffer *out) {
    struct rp_json json;
    rp_json_init(&json, out);
    rp_json_object_begin(&json, NULL);
    if (report->has_host) {
        rp_perf_write_json(&report->host, &json);
    } else if (report->asked_host) {
        rp_json_object_begin(&json, "host");
        rp_json_string(&json, "error", report->host_why.text);
        rp_json_object_end(&json);
    }
    if (report->asked_device)
        write_device(report, &json);
    rp_json_object_end(&json);
    rp_buffer_puts(out, "\n");
}

/* ---- text
 *
 --------------------------------------------------------------------------------------------- */

/* At most 5 significant digits in 9 columns; bytes with a unit prefix. */
static void put_value(double value, bool bytes, struct rp_buffer *out) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T"};
    size_t prefix = 0;
    for (; bytes && value >= 1000 && prefix + 1 < RP_ARRAY_COUNT(prefixes); prefix++)
        value /= 1000;
    rp_buffer_printf(out, " %8.2f%-1s", value, prefixes[prefix]);
}

static void put_counter(const struct rp_device_counter *counter, struct rp_buffer *out) {
    bool bytes = strcmp(counter->unit, "bytes/s") == 0;
    if (counter->why[0])
        return;
    rp_buffer_printf(out, "%-18s", counter->name);
    if (counter->samples) {
        put_value(counter->mean, bytes, out);
        put_value(counter->p50, bytes, out);
        put_value(counter->p99, bytes, out);
        put_value(counter->max, bytes, out);
    } else {
        rp_buffer_printf(out, " %8s  %8s  %8s  %8s ", "-", "-", "-", "-");
    }
    rp_buffer_printf(out, " %-18s %s\n", counter->unit, counter->about);
}

static void put_slowdown(const char *when, const struct rp_profile_ratio *ratio,
                         struct rp_buffer *out) {
    if (ratio->steps)
        rp_buffer_printf(out, ", %s %+.2f %% a step (+- %.2f)", when, 100.0 * (ratio->value - 1.0),
                         100.0 * ratio->spread);
    else
        rp_buffer_printf(out, ", %s not known", when);
}

static void put_device(const struct rp_counters_report *report, struct rp_buffer *out) {
    const struct rp_device_counters *device = &report->device;
    if (!report->has_device) {
        rp_buffer_printf(out, "device      none: %s%s%s\n", report->device_why.text,
                         report->device_why.hint[0] ? "; " : "", report->device_why.hint);
        return;
    }
    rp_buffer_printf(out,
                     "device      %s, %s; %u samples of %u us in %.3f s, %u missing%s\n"
                     "cost        setup %.0f ms, teardown %.0f ms, CPU %.0f ms",
                     device->chip, device->source, device->samples, device->interval_us,
                     device->seconds, device->missing,
                     device->overflowed ? "; ended early: the hardware's buffer was full, use a "
                                          "longer interval_us"
                                        : "",
                     device->setup_seconds * 1e3, device->teardown_seconds * 1e3,
                     device->cpu_seconds * 1e3);
    put_slowdown("during", &report->slowdown.during, out);
    put_slowdown("after", &report->slowdown.after, out);
    rp_buffer_printf(out, "\n\n%-18s %8s  %8s  %8s  %8s \n", "counter", "mean", "p50", "p99",
                     "max");
    for (uint32_t i = 0; i < device->count; i++)
        put_counter(&device->counters[i], out);
    for (uint32_t i = 0; i < device->count; i++)
        if (device->counters[i].why[0])
            rp_buffer_printf(out, "left out: %s: %s\n", device->counters[i].name,
                             device->counters[i].why);
}

static void put_count(const struct rp_perf_thread *thread, enum rp_perf_event event,
                      struct rp_buffer *out) {
    if (thread->has[event])
        rp_buffer_printf(out, " %16llu", (unsigned long long)thread->counts[event]);
    else
        rp_buffer_printf(out, " %16s", "-");
}

static void put_host(const struct rp_counters_report *report, struct rp_buffer *out) {
    static const char *const names[] = {
#define X(name, text) text,
        RP_PERF_EVENTS(X)
#undef X
    };
    if (!report->has_host) {
        rp_buffer_printf(out, "host        none: %s\n", report->host_why.text);
        return;
    }
    rp_buffer_printf(out, "host        %u threads, %.3f s\n\n%-16s", report->host.count,
                     report->host.seconds, "thread");
    for (int event = 0; event < RP_PERF_EVENT_COUNT; event++)
        rp_buffer_printf(out, " %16s", names[event]);
    rp_buffer_puts(out, "\n");
    for (uint32_t i = 0; i < report->host.count; i++) {
        const struct rp_perf_thread *thread = &report->host.threads[i];
        rp_buffer_printf(out, "%-16s", thread->name);
        for (int event = 0; event < RP_PERF_EVENT_COUNT; event++)
            put_count(thread, (enum rp_perf_event)event, out);
        rp_buffer_puts(out, "\n");
    }
}

void rp_counters_write_text(const struct rp_counters_report *report, struct rp_buffer *out) {
    if (report->asked_host)
        put_host(report, out);
    if (report->asked_host && report->asked_device)
        rp_buffer_puts(out, "\n");
    if (report->asked_device)
        put_device(report, out);
}
