#include "engine/observe/power.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "metrics/exposition.h"
#include "metrics/tick.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PERIOD_NS ((uint64_t)1000000000u)
/* Between the first two samples of RAPL, which tells no power before there are two. */
#define FIRST_NS ((uint64_t)50000000u)

static const uint64_t reason_bits[RP_POWER_REASONS] = {
#define X(name, bit, text) bit,
    RP_NVML_REASON_MAP(X)
#undef X
};
static const char *const reason_labels[RP_POWER_REASONS] = {
#define X(name, bit, text) "reason=\"" text "\"",
    RP_NVML_REASON_MAP(X)
#undef X
};

/* --- arithmetic ------------------------------------------------------------------------------- */

static uint64_t energy_since(const struct rp_power_sums *sums, const struct rp_nvml_sample *sample,
                             uint64_t ms) {
    if (sample->has & sums->view.sample.has & RP_NVML_ENERGY)
        return sample->energy_mj > sums->last_energy_mj ? sample->energy_mj - sums->last_energy_mj
                                                        : 0;
    return sample->has & RP_NVML_POWER ? sample->power_mw * ms / 1000 : 0;
}

void rp_power_add(struct rp_power_sums *sums, uint64_t now_ns, const struct rp_nvml_sample *sample,
                  uint64_t tokens) {
    struct rp_power_view *view = &sums->view;
    if (sample->has & RP_NVML_POWER)
        view->mean_mw = sample->power_mw;
    if (sums->count > 0 && now_ns > sums->last_ns) {
        uint32_t at = (sums->count - 1) % RP_POWER_WINDOW;
        uint64_t ms = (now_ns - sums->last_ns) / 1000000u, mj = energy_since(sums, sample, ms);
        uint64_t made = tokens > sums->last_tokens ? tokens - sums->last_tokens : 0;
        view->energy_mj += mj;
        if (ms)
            view->mean_mw = (uint32_t)RP_MIN(mj * 1000 / ms, (uint64_t)UINT32_MAX);
        view->window_mj += mj - sums->window[at].mj;
        view->window_tokens += made - sums->window[at].tokens;
        view->window_ms += ms - sums->window[at].ms;
        sums->window[at].mj = mj;
        sums->window[at].tokens = made;
        sums->window[at].ms = ms;
        for (uint32_t i = 0; i < RP_POWER_REASONS; i++)
            if (sample->has & RP_NVML_REASONS && sample->reasons & reason_bits[i])
                view->slowed_ms[i] += ms;
    }
    sums->count += sums->count < UINT32_MAX;
    sums->last_ns = now_ns;
    sums->last_tokens = tokens;
    if (sample->has & RP_NVML_ENERGY)
        sums->last_energy_mj = sample->energy_mj;
    view->sample = *sample;
}

/* --- the thread ------------------------------------------------------------------------------- */

struct rp_power {
    struct rp_power_config config;
    uint64_t period_ns;
    struct rp_nvml *nvml; /* NULL: rapl */
    struct rp_rapl rapl;
    struct rp_power_sums sums; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* of shown and stopping */
    pthread_cond_t changed;
    struct rp_power_view shown;
    bool stopping;
};

static void read_sample(struct rp_power *power, struct rp_nvml_sample *out) {
    if (power->nvml) {
        rp_nvml_read(power->nvml, out);
        return;
    }
    memset(out, 0, sizeof *out);
    if (rp_rapl_read(&power->rapl, &out->energy_mj))
        out->has = RP_NVML_ENERGY;
}

static void take_sample(struct rp_power *power) {
    const struct rp_power_config *config = &power->config;
    struct rp_nvml_sample sample;
    read_sample(power, &sample);
    rp_power_add(&power->sums, rp_clock_ns(), &sample,
                 config->tokens ? rp_counter_read(config->tokens) : 0);
    if (config->publish)
        config->publish(config->publish_ctx, power->sums.view.mean_mw);
    if (config->ring && power->sums.view.mean_mw)
        rp_trace_put(config->ring, RP_TRACE_POWER, rp_tick_ns(),
                     sample.has & RP_NVML_POWER ? sample.power_mw : power->sums.view.mean_mw,
                     (uint16_t)sample.celsius, sample.sm_mhz, 0);
    pthread_mutex_lock(&power->lock);
    power->shown = power->sums.view;
    pthread_mutex_unlock(&power->lock);
}

static void *run(void *arg) {
    struct rp_power *power = arg;
    uint64_t due = rp_clock_ns(), period_ns = power->period_ns;
    rp_thread_begin("rp-power", RP_THREAD_HOST);
    if (!power->nvml)
        period_ns = RP_MIN(FIRST_NS, period_ns);
    for (;; period_ns = power->period_ns) {
        take_sample(power);
        due = RP_MAX(due + period_ns, rp_clock_ns());
        struct timespec until = {.tv_sec = (time_t)(due / 1000000000u),
                                 .tv_nsec = (long)(due % 1000000000u)};
        pthread_mutex_lock(&power->lock);
        while (!power->stopping && rp_clock_ns() < due)
            pthread_cond_timedwait(&power->changed, &power->lock, &until);
        bool stopping = power->stopping;
        pthread_mutex_unlock(&power->lock);
        if (stopping)
            break;
    }
    rp_thread_end();
    return NULL;
}

static void close_source(struct rp_power *power) {
    rp_nvml_close(power->nvml);
    rp_rapl_close(&power->rapl);
}

int rp_power_start(const struct rp_power_config *config, struct rp_power **out,
                   struct rp_error *err) {
    pthread_condattr_t monotonic;
    *out = NULL;
    struct rp_power *power = rp_calloc(1, sizeof *power);
    if (!power)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "power: out of memory");
    power->config = *config;
    power->period_ns = config->period_ns ? config->period_ns : PERIOD_NS;
    int status = config->rapl_dir
                     ? rp_rapl_open(config->rapl_dir, &power->rapl, err)
                     : rp_nvml_open(config->pci_bus_id, config->library, &power->nvml, err);
    if (status != RP_OK) {
        rp_free(power);
        return status;
    }
    pthread_mutex_init(&power->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&power->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&power->thread, NULL, run, power) != 0) {
        close_source(power);
        pthread_cond_destroy(&power->changed);
        pthread_mutex_destroy(&power->lock);
        rp_free(power);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "power: no thread");
    }
    *out = power;
    return RP_OK;
}

void rp_power_stop(struct rp_power *power) {
    if (!power)
        return;
    pthread_mutex_lock(&power->lock);
    power->stopping = true;
    pthread_cond_signal(&power->changed);
    pthread_mutex_unlock(&power->lock);
    pthread_join(power->thread, NULL);
    close_source(power);
    pthread_cond_destroy(&power->changed);
    pthread_mutex_destroy(&power->lock);
    rp_free(power);
}

void rp_power_read(struct rp_power *power, struct rp_power_view *out) {
    pthread_mutex_lock(&power->lock); /* held for a copy of 200 bytes */
    *out = power->shown;
    pthread_mutex_unlock(&power->lock);
}

/* --- metrics ---------------------------------------------------------------------------------- */

/* X(what a sample must have, name, family, unit, help, value) */
#define GAUGES(X)                                                                                  \
    X(POWER, power, "reprise_gpu_power_watts", "watts",                                            \
      "Power of the board, its mean of a second.", sample->power_mw * 1e-3)                        \
    X(LIMIT, limit, "reprise_gpu_power_limit_watts", "watts", "What the board may draw.",          \
      sample->limit_mw * 1e-3)                                                                     \
    X(SM_CLOCK, sm_clock, "reprise_gpu_sm_clock_hertz", "hertz", "Clock of the multiprocessors.",  \
      sample->sm_mhz * 1e6)                                                                        \
    X(MEMORY_CLOCK, memory_clock, "reprise_gpu_memory_clock_hertz", "hertz",                       \
      "Clock of the GPU's memory.", sample->memory_mhz * 1e6)                                      \
    X(TEMPERATURE, temperature, "reprise_gpu_temperature_celsius", "celsius",                      \
      "Temperature of the chip.", sample->celsius)                                                 \
    X(MEMORY, memory, "reprise_gpu_memory_used_bytes", "bytes",                                    \
      "Memory of the GPU in use, by all processes.", (double)sample->memory_used_bytes)

#define X(flag, name, text, unit, help, expression)                                                \
    static void collect_##name(void *ctx, struct rp_metric_out *out) {                             \
        struct rp_power_view view;                                                                 \
        const struct rp_nvml_sample *sample = &view.sample;                                        \
        rp_power_read(ctx, &view);                                                                 \
        if (sample->has & RP_NVML_##flag)                                                          \
            rp_metric_put(out, NULL, expression);                                                  \
    }
GAUGES(X)
#undef X

static void collect_energy(void *ctx, struct rp_metric_out *out) {
    struct rp_power_view view;
    rp_power_read(ctx, &view);
    rp_metric_put(out, NULL, (double)view.energy_mj * 1e-3);
}

static void collect_slowed(void *ctx, struct rp_metric_out *out) {
    struct rp_power_view view;
    rp_power_read(ctx, &view);
    for (uint32_t i = 0; i < RP_POWER_REASONS; i++)
        rp_metric_put(out, reason_labels[i], (double)view.slowed_ms[i] * 1e-3);
}

static void collect_per_token(void *ctx, struct rp_metric_out *out) {
    struct rp_power_view view;
    rp_power_read(ctx, &view);
    if (view.window_tokens && view.window_ms >= 1000)
        rp_metric_put(out, NULL, (double)view.window_mj * 1e-3 / (double)view.window_tokens);
}

void rp_power_register(struct rp_power *power, struct rp_registry *registry) {
    static const struct rp_metric_family energy = {
        "reprise_energy_joules_total", "joules",
        "Energy since start: of the GPU's board, or of the CPU packages.", RP_METRIC_COUNTER,
        RP_METRICS_OWN};
    static const struct rp_metric_family slowed = {
        "reprise_gpu_throttle_seconds_total", "seconds",
        "Time in which clocks were held down, by reason, as seen once a second.", RP_METRIC_COUNTER,
        RP_METRICS_OWN};
    static const struct rp_metric_family per_token = {
        "reprise_generated_token_joules", "joules",
        "The same for a generated token, of the last ten seconds, idle time included.",
        RP_METRIC_GAUGE, RP_METRICS_OWN};
#define X(flag, name, text, unit, help, expression)                                                \
    static const struct rp_metric_family family_##name = {text, unit, help, RP_METRIC_GAUGE,       \
                                                          RP_METRICS_OWN};                         \
    rp_registry_add_collected(registry, &family_##name, collect_##name, power);
    GAUGES(X)
#undef X
    rp_registry_add_collected(registry, &energy, collect_energy, power);
    rp_registry_add_collected(registry, &slowed, collect_slowed, power);
    rp_registry_add_collected(registry, &per_token, collect_per_token, power);
}
