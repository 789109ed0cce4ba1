/* api_debug_status.c - GET /debug/status, current values; GET /debug/steps, the most recent steps.
 * /debug/ui and `reprise top` display both and compute rates from the difference between two
 * answers. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/observe/power.h"
#include "engine/observe/step_record.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/router.h"

#include "metrics/tick.h"

#define STEPS_MAX     4096u
#define STEPS_DEFAULT 200u

static double seconds(uint64_t ns) { return (double)ns * 1e-9; }

static void write_engine(struct rp_json *json, const struct rp_engine_metrics *m) {
    rp_json_object_begin(json, "requests");
    rp_json_int(json, "running", rp_gauge_read(&m->running));
    rp_json_int(json, "waiting", rp_gauge_read(&m->waiting));
    rp_json_int(json, "swapped", rp_gauge_read(&m->swapped));
    rp_json_uint(json, "preemptions", rp_counter_read(&m->preemptions));
    rp_json_object_end(json);
    rp_json_object_begin(json, "tokens");
    rp_json_uint(json, "prompt", rp_counter_read(&m->prompt_tokens));
    rp_json_uint(json, "generated", rp_counter_read(&m->generation_tokens));
    rp_json_uint(json, "cached", rp_counter_read(&m->cached_tokens));
    rp_json_uint(json, "padded", rp_counter_read(&m->padded_tokens));
    rp_json_object_end(json);
    rp_json_object_begin(json, "steps");
    rp_json_uint(json, "decode", rp_counter_read(&m->decode_steps));
    rp_json_uint(json, "mixed", rp_counter_read(&m->mixed_steps));
    rp_json_object_end(json);
    rp_json_object_begin(json, "pages");
    rp_json_int(json, "total", rp_gauge_read(&m->pages_total));
    rp_json_int(json, "free", rp_gauge_read(&m->pages_free));
    rp_json_int(json, "held", rp_gauge_read(&m->pages_held));
    rp_json_int(json, "cached", rp_gauge_read(&m->pages_cached));
    rp_json_object_end(json);
    rp_json_object_begin(json, "device_seconds");
    rp_json_double(json, "busy", seconds(rp_counter_read(&m->device_busy_ns)));
    rp_json_object_begin(json, "idle");
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        rp_json_double(json, rp_idle_causes[cause], seconds(rp_counter_read(&m->idle_ns[cause])));
    rp_json_object_end(json);
    rp_json_object_end(json);
}

static void write_number(struct rp_json *json, const char *key, bool known, double value) {
    if (known)
        rp_json_double(json, key, value);
}

/* Power of the GPU or the CPU packages, at most a second old. Values without a reading are
 * omitted. */
static void write_power(struct rp_json *json, struct rp_power *power) {
    static const struct {
        uint64_t bit;
        const char *name;
    } reasons[] = {
#define X(name, bit, text) {bit, text},
        RP_NVML_REASON_MAP(X)
#undef X
    };
    struct rp_power_view view;
    if (!power)
        return;
    rp_power_read(power, &view);
    const struct rp_nvml_sample *now = &view.sample;
    if (!now->has)
        return;
    rp_json_object_begin(json, "power");
    bool told = now->has & RP_NVML_POWER;
    write_number(json, "watts", told || view.mean_mw, (told ? now->power_mw : view.mean_mw) * 1e-3);
    write_number(json, "limit_watts", now->has & RP_NVML_LIMIT, now->limit_mw * 1e-3);
    write_number(json, "sm_mhz", now->has & RP_NVML_SM_CLOCK, now->sm_mhz);
    write_number(json, "celsius", now->has & RP_NVML_TEMPERATURE, now->celsius);
    write_number(json, "memory_used_bytes", now->has & RP_NVML_MEMORY,
                 (double)now->memory_used_bytes);
    for (size_t i = 0; i < RP_ARRAY_COUNT(reasons); i++) {
        if (!(now->has & RP_NVML_REASONS) || !(now->reasons & reasons[i].bit))
            continue;
        rp_json_string(json, "throttled", reasons[i].name); /* only the first reason */
        break;
    }
    rp_json_object_end(json);
}

void rp_api_debug_status(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    const struct rp_engine *engine = server->serving.engine;
    const char *reason = rp_server_not_ready(server);
    struct rp_device_info device;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    if (!rp_query_read_conn(conn, NULL, 0))
        return;
    rp_engine_device_info(engine, &device);
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_double(&json, "now_seconds", seconds(rp_tick_ns()));
    rp_json_double(&json, "uptime_seconds", seconds(rp_tick_ns() - server->start_ns));
    rp_json_string(&json, "version", RP_VERSION);
    rp_json_string(&json, "model", server->serving.model_name);
    rp_json_string(&json, "device", device.name);
    rp_json_uint(&json, "max_model_len", rp_engine_max_model_len(engine));
    if (reason)
        rp_json_string(&json, "not_ready", reason);
    else
        rp_json_null(&json, "not_ready");
    rp_json_int(&json, "connections", server->conn_count);
    write_engine(&json, rp_engine_metrics(engine));
    rp_json_object_begin(&json, "memory");
    rp_json_uint(&json, "device_bytes", rp_engine_memory_plan(engine)->total_bytes);
    rp_json_uint(&json, "total_bytes", rp_engine_memory_plan(engine)->device_bytes);
    rp_json_object_end(&json);
    write_power(&json, server->serving.power);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}

static void write_step(struct rp_json *json, const struct rp_step_record *step, uint64_t origin) {
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "step", step->step);
    rp_json_uint(json, "graph", step->graph);
    rp_json_uint(json, "rows", step->rows);
    rp_json_uint(json, "tokens", step->tokens);
    rp_json_uint(json, "samples", step->samples);
    rp_json_uint(json, "decode_rows", step->decode_rows);
    rp_json_uint(json, "prompt_tokens", step->prompt_tokens);
    rp_json_uint(json, "padded_tokens", step->padded_tokens);
    rp_json_uint(json, "kv_tokens", step->kv_tokens);
    rp_json_uint(json, "swap_out_bytes", step->swap_out_bytes);
    rp_json_uint(json, "swap_in_bytes", step->swap_in_bytes);
    rp_json_bool(json, "decode_only", step->decode_only);
    rp_json_bool(json, "stamped", step->stamped);
    const struct {
        const char *name;
        uint64_t ns;
    } times[] = {{"plan", step->plan_ns},     {"planned", step->planned_ns},
                 {"launch", step->launch_ns}, {"launched", step->launched_ns},
                 {"begin", step->begin_ns},   {"end", step->end_ns},
                 {"read", step->read_ns}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(times); i++)
        rp_json_double(json, times[i].name, ((double)times[i].ns - (double)origin) * 1e-9);
    rp_json_object_begin(json, "idle");
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        if (step->idle_ns[cause])
            rp_json_double(json, rp_idle_causes[cause], seconds(step->idle_ns[cause]));
    rp_json_object_end(json);
    rp_json_object_end(json);
}

void rp_api_debug_steps(struct rp_conn *conn) {
    const struct rp_engine *engine = conn->server->serving.engine;
    uint64_t limit = STEPS_DEFAULT, now = rp_tick_ns();
    double past = 60;
    const struct rp_query_param params[] = {
        {.name = "limit", .type = RP_QUERY_UINT, .min = 1, .max = STEPS_MAX, .value = &limit},
        {.name = "seconds", .type = RP_QUERY_DOUBLE, .max = 3600, .value = &past},
    };
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    struct rp_step_record *steps = rp_calloc(limit, sizeof *steps);
    if (!steps) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    uint64_t since = (uint64_t)(past * 1e9);
    uint32_t count =
        rp_engine_copy_steps(engine, now > since ? now - since : 0, steps, (uint32_t)limit);
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_double(&json, "now_seconds", seconds(now));
    rp_json_array_begin(&json, "steps"); /* times are in seconds relative to now, negative */
    for (uint32_t i = 0; i < count; i++)
        write_step(&json, &steps[i], now);
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_free(steps);
    rp_api_reply_json(conn, 200, &body);
}
