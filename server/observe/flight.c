#include "server/observe/flight.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "metrics/crash_dump.h"
#include "metrics/dump_dir.h"
#include "metrics/tick.h"
#include "metrics/trace_take.h"
#include "server/observe/trace_words.h"
#include "server/server_internal.h"

#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between two polls; between two samples of run-queue waits, while steps run and otherwise. */
enum { LOOK_MS = 500, SAMPLE_BUSY_MS = 10, SAMPLE_MS = 50, STEPS_A_LOOK = 4096, NICE = 10 };
#define PIECE_BYTES    262144u
#define DUMP_BYTES_MAX ((uint64_t)1 << 30) /* before gzip */
#define SIGNAL_GAP_NS  UINT64_C(1000000000)

struct rp_flight {
    struct rp_server *server; /* borrowed; only its thread-safe parts are used */
    struct rp_flight_config config;
    pthread_t thread;
    sem_t wake;
    _Atomic bool stopping, asked; /* dump_requested: by SIGUSR2 */
    struct rp_counter dumps[RP_FLIGHT_TRIGGER_COUNT];
    char labels[RP_FLIGHT_TRIGGER_COUNT][40];

    /* Used only by the flight thread. */
    struct rp_flight_watch watch;
    struct rp_sched_waits waits;
    struct rp_step_record *steps;                /* (STEPS_A_LOOK) */
    uint64_t polled_ns;                          /* time of the last poll */
    uint64_t looked_ns;                          /* steps that ended before were seen */
    uint64_t dumped_ns[RP_FLIGHT_TRIGGER_COUNT]; /* of the last dump; 0: never */
    uint64_t sampled_steps;                      /* steps_total at the last sample */

    pthread_mutex_t lock; /* protects the members below, shared with the loop thread */
    struct rp_dump_dir dir;
    uint64_t suppressed[RP_FLIGHT_TRIGGER_COUNT]; /* counts since the start */
    uint64_t failures;
    char error[512]; /* text of the last failure */
};

/* --- A dump ---------------------------------------------------------------------------------- */

static int write_trace(struct rp_flight *flight, const char *stem, const char *reason,
                       struct rp_trace_take *take, struct rp_error *err) {
    const struct rp_trace_order order = {.window_ns = (uint64_t)(flight->config.seconds * 1e9),
                                         .max_bytes = DUMP_BYTES_MAX,
                                         .format = RP_TRACE_PERFETTO,
                                         .gzip = true,
                                         .version = RP_VERSION,
                                         .model = flight->server->serving.model_name,
                                         .reason = reason,
                                         .names =
                                             rp_server_trace_names(flight->server->serving.engine)};
    struct rp_dump_file file;
    struct rp_buffer piece = {.data = NULL};
    int status = rp_trace_take_begin(take, &order, flight->server->recorder);
    if (status != RP_OK)
        return rp_error_set(err, status, "no memory for the trace");
    status = rp_dump_file_begin(&file, &flight->dir, stem,
                                rp_trace_suffix(order.format, order.gzip), err);
    if (status != RP_OK)
        return status;
    while (status == RP_OK && !take->done) {
        rp_buffer_clear(&piece);
        if (rp_trace_take_next(take, &piece, PIECE_BYTES) != RP_OK)
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the trace");
        else
            status = rp_dump_file_write(&file, &flight->dir, piece.data, piece.len, err);
    }
    rp_buffer_deinit(&piece);
    if (status != RP_OK) {
        rp_dump_file_end(&file, false, NULL);
        return status;
    }
    return rp_dump_file_end(&file, true, err);
}

static void describe_cause(struct rp_json *json, const struct rp_flight_cause *cause) {
    rp_json_string(json, "trigger", rp_flight_triggers[cause->trigger]);
    rp_json_string(json, "text", cause->text);
    if (cause->value > 0)
        rp_json_double(json, "value", cause->value);
    if (cause->limit > 0)
        rp_json_double(json, "limit", cause->limit);
    if (cause->trigger == RP_FLIGHT_SLOW_STEP || cause->trigger == RP_FLIGHT_DESCHEDULED)
        rp_json_uint(json, "step", cause->step);
    if (cause->wait_known) {
        rp_json_object_begin(json, "run_queue");
        rp_json_int(json, "tid", cause->wait.tid);
        rp_json_double(json, "waited", (double)cause->wait.waited_ns / 1e9);
        rp_json_double(json, "window", (double)cause->wait.window_ns / 1e9);
        rp_json_object_end(json);
    }
}

static void describe_state(struct rp_json *json, const struct rp_engine *engine) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    rp_json_object_begin(json, "state");
    rp_json_int(json, "running", rp_gauge_read(&metrics->running));
    rp_json_int(json, "waiting", rp_gauge_read(&metrics->waiting));
    rp_json_int(json, "swapped", rp_gauge_read(&metrics->swapped));
    rp_json_int(json, "pages_free", rp_gauge_read(&metrics->pages_free));
    rp_json_int(json, "pages_total", rp_gauge_read(&metrics->pages_total));
    rp_json_uint(json, "preemptions", rp_counter_read(&metrics->preemptions));
    rp_json_uint(json, "steps", rp_counter_read(&metrics->steps));
    rp_json_object_end(json);
}

static void describe_suppressed(struct rp_flight *flight, struct rp_json *json) {
    rp_json_object_begin(json, "suppressed");
    for (uint32_t i = 0; i < RP_FLIGHT_TRIGGER_COUNT; i++)
        if (flight->suppressed[i])
            rp_json_uint(json, rp_flight_triggers[i], flight->suppressed[i]);
    rp_json_object_end(json);
}

static int write_reason(struct rp_flight *flight, const char *stem,
                        const struct rp_flight_cause *cause, const struct rp_trace_take *take,
                        uint64_t unix_ns, struct rp_error *err) {
    const struct rp_trace_info *info = &take->model.info;
    struct rp_dump_file file;
    struct rp_buffer text = {.data = NULL};
    struct rp_json json;
    char name[RP_DUMP_STEM_MAX + 16];
    snprintf(name, sizeof name, "%s.%s", stem, rp_trace_suffix(RP_TRACE_PERFETTO, true));
    rp_json_init(&json, &text);
    rp_json_object_begin(&json, NULL);
    describe_cause(&json, cause);
    rp_json_uint(&json, "unix_ms", unix_ns / 1000000);
    rp_json_string(&json, "trace", name);
    rp_json_uint(&json, "trace_bytes", take->bytes);
    rp_json_double(&json, "seconds", (double)(info->end_ns - info->begin_ns) / 1e9);
    rp_json_bool(&json, "whole", info->whole);
    rp_json_string(&json, "version", RP_VERSION);
    rp_json_string(&json, "model", flight->server->serving.model_name);
    rp_json_int(&json, "pid", getpid());
    describe_state(&json, flight->server->serving.engine);
    pthread_mutex_lock(&flight->lock);
    describe_suppressed(flight, &json);
    pthread_mutex_unlock(&flight->lock);
    rp_json_object_end(&json);
    rp_buffer_puts(&text, "\n");
    int status = text.failed ? rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the reason")
                             : rp_dump_file_begin(&file, &flight->dir, stem, "json", err);
    if (status == RP_OK) {
        status = rp_dump_file_write(&file, &flight->dir, text.data, text.len, err);
        int ended = rp_dump_file_end(&file, status == RP_OK, err);
        status = status == RP_OK ? ended : status;
    }
    rp_buffer_deinit(&text);
    return status;
}

static void dump(struct rp_flight *flight, const struct rp_flight_cause *cause) {
    struct rp_trace_take take = {.done = false};
    struct rp_error err = {0};
    char stem[RP_DUMP_STEM_MAX];
    uint64_t unix_ns = rp_unix_ns(), began = rp_tick_ns();
    rp_dump_dir_name(&flight->dir, unix_ns, rp_flight_triggers[cause->trigger], stem);
    rp_dump_dir_trim(&flight->dir, 1, 0);
    int status = write_trace(flight, stem, cause->text, &take, &err);
    if (status == RP_OK)
        status = write_reason(flight, stem, cause, &take, unix_ns, &err);
    rp_dump_dir_trim(&flight->dir, 0, 0);
    if (status == RP_OK) {
        rp_counter_add(&flight->dumps[cause->trigger], 1);
        rp_log(RP_LOG_WARN, "flight: dumped trace=%s bytes=%llu ms=%llu cause=\"%s\"", stem,
               (unsigned long long)take.bytes,
               (unsigned long long)((rp_tick_ns() - began) / 1000000), cause->text);
    } else {
        rp_log(RP_LOG_ERROR, "flight: no dump cause=\"%s\" error=\"%s\"", cause->text, err.text);
        pthread_mutex_lock(&flight->lock);
        flight->failures++;
        memcpy(flight->error, err.text, sizeof flight->error);
        pthread_mutex_unlock(&flight->lock);
    }
    rp_trace_take_end(&take);
}

/* --- The thread ------------------------------------------------------------------------------ */

static uint32_t graphs_missing(const struct rp_engine *engine) {
    uint32_t missing = 0, count = rp_engine_graph_count(engine);
    for (uint32_t i = 0; i < count; i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(engine, i, &graph);
        missing += !graph.captured;
    }
    return missing;
}

/* p99 over the last 10 s of each latency with an objective. */
static void see_latency(const struct rp_flight *flight, struct rp_flight_view *view) {
    static const enum rp_latency_series series[RP_FLIGHT_SLOS] = {
        RP_LATENCY_TTFT, RP_LATENCY_PER_TOKEN, RP_LATENCY_E2E, RP_LATENCY_INTER_TOKEN};
    for (size_t i = 0; i < RP_FLIGHT_SLOS; i++) {
        const struct rp_latency *latency = &flight->server->metrics.latency.series[series[i]];
        struct rp_latency_stats stats = {.count = 0};
        if (flight->watch.rules.slo_ns[i])
            rp_latency_read(&latency, 1, RP_LATENCY_10S, view->now_ns, &stats);
        view->latency[i].count = stats.count;
        view->latency[i].p99_ns = stats.p99;
    }
}

static bool look(struct rp_flight *flight, struct rp_flight_cause *cause) {
    const struct rp_engine *engine = flight->server->serving.engine;
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    struct rp_flight_view view = {.now_ns = rp_tick_ns(),
                                  .steps = flight->steps,
                                  .waits = &flight->waits,
                                  .preemptions = rp_counter_read(&metrics->preemptions),
                                  .steps_total = rp_counter_read(&metrics->steps),
                                  .graphs_missing = graphs_missing(engine),
                                  .failure = rp_engine_failure(engine)};
    see_latency(flight, &view);
    view.step_count = rp_engine_copy_steps(engine, flight->looked_ns, flight->steps, STEPS_A_LOOK);
    if (view.step_count) /* steps that end later */
        flight->looked_ns = flight->steps[view.step_count - 1].end_ns + 1;
    /* After the copy, so that a sample follows the end of every step. */
    rp_sched_waits_take(&flight->waits, rp_tick_ns());
    return rp_flight_watch_look(&flight->watch, &view, cause);
}

/* Writes a dump, unless the last one is too recent. */
static void consider(struct rp_flight *flight, const struct rp_flight_cause *cause) {
    uint64_t now = rp_tick_ns(), gap = (uint64_t)flight->config.interval_s * 1000000000u;
    if (cause->trigger == RP_FLIGHT_SIGNAL)
        gap = RP_MIN(gap, SIGNAL_GAP_NS);
    uint64_t *dumped_ns = &flight->dumped_ns[cause->trigger];
    if (*dumped_ns && now - *dumped_ns < gap && cause->trigger != RP_FLIGHT_DEVICE) {
        pthread_mutex_lock(&flight->lock);
        flight->suppressed[cause->trigger]++;
        pthread_mutex_unlock(&flight->lock);
        return;
    }
    dump(flight, cause);
    *dumped_ns = rp_tick_ns();
}

/* Sleeps until the next poll or sample. */
static void sleep_a_while(struct rp_flight *flight) {
    uint64_t steps = rp_counter_read(&rp_engine_metrics(flight->server->serving.engine)->steps);
    uint64_t ms = flight->config.step_factor > 0 ? SAMPLE_MS : LOOK_MS;
    if (ms == SAMPLE_MS && steps != flight->sampled_steps)
        ms = SAMPLE_BUSY_MS;
    flight->sampled_steps = steps;
    (void)rp_sem_wait_ns(&flight->wake, ms * 1000000u);
}

static void *flight_main(void *arg) {
    struct rp_flight *flight = arg;
    /* Affects only this thread: on Linux niceness is per thread. */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    rp_thread_begin("rp-flight", RP_THREAD_HOST);
    for (bool last = false; !last;) {
        struct rp_flight_cause cause;
        sleep_a_while(flight);
        last = atomic_load(&flight->stopping); /* after one more poll: the device may have failed */
        if (last ||
            rp_tick_ns() - flight->polled_ns >= (LOOK_MS - SAMPLE_BUSY_MS) * UINT64_C(1000000)) {
            flight->polled_ns = rp_tick_ns();
            if (flight->config.step_factor > 0)
                rp_sched_waits_choose(&flight->waits);
            if (look(flight, &cause))
                consider(flight, &cause);
        } else {
            rp_sched_waits_take(&flight->waits, rp_tick_ns());
        }
        if (atomic_exchange(&flight->asked, false)) {
            cause = (struct rp_flight_cause){.trigger = RP_FLIGHT_SIGNAL,
                                             .text = "SIGUSR2 was received"};
            consider(flight, &cause);
        }
    }
    rp_thread_end();
    return NULL;
}

/* --- The loop thread's ----------------------------------------------------------------------- */

static int arm(struct rp_flight *flight, struct rp_error *err) {
    const struct rp_engine *engine = flight->server->serving.engine;
    const struct rp_crash_about about = {.version = RP_VERSION,
                                         .model = flight->server->serving.model_name,
                                         .names = rp_server_trace_names(engine),
                                         .bucket_count = rp_engine_graph_count(engine)};
    char stem[RP_DUMP_STEM_MAX], path[PATH_MAX];
    rp_dump_dir_name(&flight->dir, rp_unix_ns(), "crash", stem);
    int n = snprintf(path, sizeof path, "%s/%s.raw", flight->dir.path, stem);
    if (n < 0 || (size_t)n >= sizeof path)
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s: the path is too long",
                            flight->dir.path);
    return rp_crash_arm(path, flight->server->recorder, &about, err);
}

static void destroy(struct rp_flight *flight) {
    rp_crash_disarm();
    sem_destroy(&flight->wake);
    pthread_mutex_destroy(&flight->lock);
    rp_sched_waits_deinit(&flight->waits);
    rp_free(flight->steps);
    rp_free(flight);
}

int rp_flight_check(const struct rp_flight_config *config, struct rp_error *err) {
    struct rp_dump_dir dir;
    if (!config->dir || !*config->dir)
        return RP_OK;
    return rp_dump_dir_open(&dir, config->dir, RP_FLIGHT_DUMPS_MAX, config->bytes_max, err);
}

int rp_flight_start(struct rp_server *server, struct rp_flight **out, struct rp_error *err) {
    const struct rp_flight_config *config = &server->config.flight;
    const struct rp_slo *slo = &server->config.slo;
    struct rp_flight_rules rules = rp_flight_rules_default();
    *out = NULL;
    if (!config->dir || !*config->dir)
        return RP_OK;
    struct rp_flight *flight = rp_calloc(1, sizeof *flight);
    if (flight)
        flight->steps = rp_calloc(STEPS_A_LOOK, sizeof *flight->steps);
    if (!flight || !flight->steps) {
        rp_free(flight);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for automatic dumps");
    }
    flight->server = server;
    flight->config = *config;
    flight->looked_ns = rp_tick_ns();
    pthread_mutex_init(&flight->lock, NULL);
    sem_init(&flight->wake, 0, 0);
    rules.slo_ns[0] = slo->ttft_ns;
    rules.slo_ns[1] = slo->tpot_ns;
    rules.slo_ns[2] = slo->e2e_ns;
    rules.slo_ns[3] = slo->itl_ns;
    rules.step_factor = config->step_factor;
    rules.preemptions = config->preemptions;
    rp_flight_watch_init(&flight->watch, &rules);
    int status =
        rp_dump_dir_open(&flight->dir, config->dir, RP_FLIGHT_DUMPS_MAX, config->bytes_max, err);
    flight->dir.trigger_max = RP_FLIGHT_DUMPS_MAX / 4;
    if (status == RP_OK)
        status = arm(flight, err);
    if (status == RP_OK && pthread_create(&flight->thread, NULL, flight_main, flight) != 0)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no thread for automatic dumps");
    if (status != RP_OK) {
        destroy(flight);
        return status;
    }
    *out = flight;
    return RP_OK;
}

void rp_flight_stop(struct rp_flight *flight) {
    if (!flight)
        return;
    atomic_store(&flight->stopping, true);
    sem_post(&flight->wake);
    pthread_join(flight->thread, NULL);
    destroy(flight);
}

void rp_flight_request(struct rp_flight *flight) {
    if (!flight) {
        rp_log(RP_LOG_WARN, "flight: SIGUSR2, but there is no --trace-dir to dump into");
        return;
    }
    atomic_store(&flight->asked, true);
    sem_post(&flight->wake);
}

static void describe_dump(const struct rp_dump_entry *dump, struct rp_json *json) {
    /* reprise-TIME-PID-N-TRIGGER */
    const char *time = strchr(dump->stem, '-'), *pid = time ? strchr(time + 1, '-') : NULL;
    const char *number = pid ? strchr(pid + 1, '-') : NULL;
    const char *trigger = number ? strchr(number + 1, '-') : NULL;
    if (!trigger)
        return;
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", dump->stem);
    rp_json_string(json, "trigger", trigger + 1);
    rp_json_string_len(json, "time", time + 1, (size_t)(pid - time - 1));
    rp_json_string_len(json, "pid", pid + 1, (size_t)(number - pid - 1));
    rp_json_string(json, "trace", dump->trace);
    rp_json_bool(json, "reason", dump->has_reason);
    rp_json_uint(json, "bytes", dump->bytes);
    rp_json_object_end(json);
}

void rp_flight_describe(struct rp_flight *flight, struct rp_json *json) {
    struct rp_dump_entry dumps[RP_DUMP_LIST_MAX];
    rp_json_bool(json, "enabled", flight != NULL);
    if (!flight)
        return;
    uint32_t count = rp_dump_dir_list(&flight->dir, dumps);
    rp_json_string(json, "dir", flight->dir.path);
    rp_json_uint(json, "interval_seconds", flight->config.interval_s);
    rp_json_double(json, "seconds", flight->config.seconds);
    rp_json_uint(json, "dumps_max", flight->dir.dumps_max);
    rp_json_uint(json, "bytes_max", flight->dir.bytes_max);
    pthread_mutex_lock(&flight->lock);
    describe_suppressed(flight, json);
    rp_json_uint(json, "failures", flight->failures);
    if (flight->error[0])
        rp_json_string(json, "last_error", flight->error);
    pthread_mutex_unlock(&flight->lock);
    rp_json_array_begin(json, "dumps");
    for (uint32_t i = count; i > 0; i--)
        if (!dumps[i - 1].armed)
            describe_dump(&dumps[i - 1], json);
    rp_json_array_end(json);
}

void rp_flight_register(struct rp_flight *flight, struct rp_registry *registry) {
    static const struct rp_metric_family family = {"reprise_flight_dumps_total", NULL,
                                                   "Trace dumps written, by trigger.",
                                                   RP_METRIC_COUNTER, RP_METRICS_OWN};
    for (uint32_t i = 0; flight && i < RP_FLIGHT_TRIGGER_COUNT; i++) {
        snprintf(flight->labels[i], sizeof flight->labels[i], "trigger=\"%s\"",
                 rp_flight_triggers[i]);
        rp_registry_add(registry, &family, flight->labels[i], &flight->dumps[i]);
    }
}
