/* server_metrics_device.c - device time: busy, idle by cause, and attributed to requests. */
#include "engine/engine.h"
#include "engine/observe/step_profile.h"
#include "metrics/exposition.h"
#include "server/observe/server_metrics.h"

#include <stdio.h>

static const struct rp_metric_family busy = {
    "reprise_device_busy_seconds_total", "seconds",
    "Time that the device was busy with steps since the server was ready.", RP_METRIC_COUNTER,
    RP_METRICS_OWN};
static const struct rp_metric_family idle = {
    "reprise_device_idle_seconds_total", "seconds",
    "Time that the device was idle since the server was ready, by cause.", RP_METRIC_COUNTER,
    RP_METRICS_OWN};
static const struct rp_metric_family steps = {
    "reprise_device_step_seconds_total", "seconds",
    "Device time of steps by use: rows of requests, rows that only pad a "
    "captured size, rows of requests that had already ended.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};

static const struct rp_metric_family energy = {
    "reprise_step_energy_joules_total", "joules",
    "Energy of steps by the same uses: device time at the device's mean power of the last second; "
    "absent where no power can be read.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family cost = {
    "reprise_cost_total", NULL,
    "Cost of the device's time by the same uses, and of its idle time, at --price-per-hour; absent "
    "without a price.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family model_bytes = {
    "reprise_model_bytes_total", "bytes",
    "Bytes read and written by steps, computed from their shapes, including padding.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family model_flops = {
    "reprise_model_flops_total", NULL,
    "Floating-point operations of steps, computed from their shapes, including padding.",
    RP_METRIC_COUNTER, RP_METRICS_OWN};

static const struct rp_metric_family nodes = {
    "reprise_device_node_seconds_total", "seconds",
    "Device time inside steps by operator, estimated from steps whose nodes were timed "
    "(--profile-every).",
    RP_METRIC_COUNTER, RP_METRICS_OWN};
static const struct rp_metric_family sessions = {"reprise_profiler_sessions_total", NULL,
                                                 "Profiling sessions started.", RP_METRIC_COUNTER,
                                                 RP_METRICS_OWN};

static const struct rp_metric_family peaks = {
    "reprise_device_peak_per_second", NULL,
    "Peak device bandwidth (bytes) and compute rate (operations) per second, measured at startup; "
    "absent when not measured.",
    RP_METRIC_GAUGE, RP_METRICS_OWN};
static const struct rp_metric_family roofline = {
    "reprise_roofline_ratio", "ratio",
    "Share of these peaks used by steps while the device was busy, since the start.",
    RP_METRIC_GAUGE, RP_METRICS_OWN};

static double read_seconds(const struct rp_counter *counter) {
    return (double)rp_counter_read(counter) * 1e-9;
}

static void collect_busy(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_metrics *metrics = ctx;
    rp_metric_put(out, NULL, read_seconds(&metrics->device_busy_ns));
}

static void collect_idle(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_metrics *metrics = ctx;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++) {
        char labels[64];
        snprintf(labels, sizeof labels, "cause=\"%s\"", rp_idle_causes[cause]);
        rp_metric_put(out, labels, read_seconds(&metrics->idle_ns[cause]));
    }
}

static void collect_steps(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_metrics *metrics = ctx;
    rp_metric_put(out, "use=\"requests\"", read_seconds(&metrics->attributed_ns));
    rp_metric_put(out, "use=\"padding\"", read_seconds(&metrics->padding_ns));
    rp_metric_put(out, "use=\"ended\"", read_seconds(&metrics->unused_ns));
}

static double read_joules(const struct rp_counter *counter) {
    return (double)rp_counter_read(counter) * 1e-6;
}

static void collect_energy(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_metrics *metrics = ctx;
    double requests = read_joules(&metrics->attributed_uj);
    if (!rp_gauge_read(&metrics->power_mw) && requests <= 0)
        return;
    rp_metric_put(out, "use=\"requests\"", requests);
    rp_metric_put(out, "use=\"padding\"", read_joules(&metrics->padding_uj));
    rp_metric_put(out, "use=\"ended\"", read_joules(&metrics->unused_uj));
}

static void collect_cost(void *ctx, struct rp_metric_out *out) {
    const struct rp_server_metrics *server = ctx;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(server->engine);
    double price = server->price_per_hour / 3600, idle_s = 0;
    if (price <= 0)
        return;
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        idle_s += read_seconds(&metrics->idle_ns[cause]);
    rp_metric_put(out, "use=\"requests\"", read_seconds(&metrics->attributed_ns) * price);
    rp_metric_put(out, "use=\"padding\"", read_seconds(&metrics->padding_ns) * price);
    rp_metric_put(out, "use=\"ended\"", read_seconds(&metrics->unused_ns) * price);
    rp_metric_put(out, "use=\"idle\"", idle_s * price);
}

static void collect_nodes(void *ctx, struct rp_metric_out *out) {
    const char *name;
    uint64_t ns;
    for (uint32_t i = 0; rp_step_profile_op(ctx, i, &name, &ns); i++) {
        char labels[64];
        if (!ns)
            continue;
        snprintf(labels, sizeof labels, "op=\"%s\"", name);
        rp_metric_put(out, labels, (double)ns * 1e-9);
    }
}

static void collect_peaks(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_peaks *measured = rp_engine_get_peaks(ctx);
    if (measured->read_bytes > 0)
        rp_metric_put(out, "of=\"bytes\"", measured->read_bytes);
    if (measured->flops > 0)
        rp_metric_put(out, "of=\"flops\"", measured->flops);
}

static void collect_roofline(void *ctx, struct rp_metric_out *out) {
    const struct rp_engine_peaks *measured = rp_engine_get_peaks(ctx);
    const struct rp_engine_metrics *metrics = rp_engine_metrics(ctx);
    double seconds = read_seconds(&metrics->device_busy_ns);
    double bytes = (double)rp_counter_read(&metrics->model_bytes);
    double flops = (double)rp_counter_read(&metrics->model_flops);
    if (measured->read_bytes > 0)
        rp_metric_put(out, "of=\"bytes\"",
                      seconds > 0 ? bytes / seconds / measured->read_bytes : 0);
    if (measured->flops > 0)
        rp_metric_put(out, "of=\"flops\"", seconds > 0 ? flops / seconds / measured->flops : 0);
}

static void collect_sessions(void *ctx, struct rp_metric_out *out) {
    rp_metric_put_count(out, NULL, rp_step_profile_sessions(ctx));
}

void rp_server_metrics_add_device(struct rp_server_metrics *server, struct rp_registry *registry) {
    const struct rp_engine *engine = server->engine;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    struct rp_step_profile *profile = rp_engine_profile(engine);
    void *ctx = (void *)(uintptr_t)metrics;
    rp_registry_add_collected(registry, &busy, collect_busy, ctx);
    rp_registry_add_collected(registry, &idle, collect_idle, ctx);
    rp_registry_add_collected(registry, &steps, collect_steps, ctx);
    rp_registry_add_collected(registry, &energy, collect_energy, ctx);
    rp_registry_add_collected(registry, &cost, collect_cost, server);
    rp_registry_add(registry, &model_bytes, NULL, &metrics->model_bytes);
    rp_registry_add(registry, &model_flops, NULL, &metrics->model_flops);
    rp_registry_add_collected(registry, &peaks, collect_peaks, (void *)(uintptr_t)engine);
    rp_registry_add_collected(registry, &roofline, collect_roofline, (void *)(uintptr_t)engine);
    if (!profile)
        return;
    rp_registry_add_collected(registry, &nodes, collect_nodes, profile);
    rp_registry_add_collected(registry, &sessions, collect_sessions, profile);
}
