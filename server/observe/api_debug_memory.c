/* api_debug_memory.c - GET /debug/memory; POST /debug/memory/history and
 * /debug/memory/reset_peak. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/observe/page_watch.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_error.h"
#include "server/http/http_query.h"
#include "server/http/json_body.h"
#include "server/http/router.h"
#include "server/observe/memory_snapshot.h"
#include "server/observe/report_work.h"

#include <stdio.h>
#include <string.h>

/* Limit on entries in the JSON page map and history. */
#define RUNS_MAX    4096u
#define HISTORY_MAX 4096u

/* A field of /proc/self/status such as "VmHWM:", in bytes; 0 when missing. */
static uint64_t status_bytes(const char *name) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file)) {
        size_t len = strlen(name);
        if (strncmp(line, name, len) == 0 && sscanf(line + len, " %llu", &kib) == 1)
            break;
    }
    if (file)
        fclose(file);
    return (uint64_t)kib * 1024;
}

static void write_owner(struct rp_json *json, const char *name, uint64_t bytes, uint64_t peak) {
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", name);
    rp_json_uint(json, "bytes", bytes);
    rp_json_uint(json, "peak_bytes", peak);
    rp_json_object_end(json);
}

static void write_device(struct rp_json *json, const struct rp_engine *engine) {
    const struct rp_engine_metrics *metrics = rp_engine_metrics(engine);
    const struct rp_memory_plan *plan = rp_engine_memory_plan(engine);
    uint64_t sum = 0;
    rp_json_object_begin(json, "device");
    rp_json_array_begin(json, "owners");
    for (uint32_t i = 0; i < plan->item_count; i++) {
        if (plan->items[i].on_host)
            continue;
        /* These sizes are fixed after startup: the peak equals the size. */
        write_owner(json, plan->items[i].name, plan->items[i].bytes, plan->items[i].bytes);
        sum += plan->items[i].bytes;
    }
    rp_json_array_end(json);
    rp_json_uint(json, "owned_bytes", sum);
    rp_json_uint(json, "total_bytes", plan->device_bytes);
    rp_json_uint(json, "allocations", rp_counter_read(&metrics->allocations));
    rp_json_uint(json, "ranks", plan->ranks);
    rp_json_object_end(json);
}

static void write_host(struct rp_json *json, const struct rp_server *server,
                       const struct rp_page_use *use) {
    const struct rp_memory_plan *plan = rp_engine_memory_plan(server->serving.engine);
    struct rp_recorder_stats recorder;
    rp_recorder_stats(server->recorder, &recorder);
    rp_json_object_begin(json, "host");
    rp_json_uint(json, "resident_bytes", status_bytes("VmRSS:"));
    rp_json_uint(json, "peak_resident_bytes", status_bytes("VmHWM:"));
    rp_json_array_begin(json, "owners");
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (plan->items[i].on_host)
            write_owner(json, plan->items[i].name, plan->items[i].bytes, plan->items[i].bytes);
    write_owner(json, "swap pages in use",
                (uint64_t)(use->host_total - use->host_free) * use->page_bytes,
                (uint64_t)use->peak_host * use->page_bytes);
    write_owner(json, "flight recorder", recorder.bytes, recorder.bytes);
    write_owner(json, "request records", rp_request_log_bytes(), rp_request_log_bytes());
    write_owner(json, "status history", sizeof server->history, sizeof server->history);
    write_owner(json, "request bodies", server->bodies_bytes, server->bodies_peak_bytes);
    write_owner(json, "JSON trees", rp_json_body_live_bytes(), rp_json_body_peak_bytes());
    rp_json_array_end(json);
    rp_json_object_end(json);
}

static enum rp_kv_state state_of(uint32_t word) {
    return (enum rp_kv_state)(word & ((1u << RP_KV_MAP_STATE_BITS) - 1));
}

/* Runs of equal pages: [first page, pages, state, references]. */
static void write_map(struct rp_json *json, const uint32_t *map, uint32_t count) {
    uint32_t runs = 0;
    rp_json_array_begin(json, "map");
    for (uint32_t page = 0, run; page < count && runs < RUNS_MAX; page += run, runs++) {
        for (run = 1; page + run < count && map[page + run] == map[page];)
            run++;
        rp_json_array_begin(json, NULL);
        rp_json_uint(json, NULL, page);
        rp_json_uint(json, NULL, run);
        rp_json_string(json, NULL, rp_kv_states[state_of(map[page])]);
        rp_json_uint(json, NULL, map[page] >> RP_KV_MAP_STATE_BITS);
        rp_json_array_end(json);
    }
    rp_json_array_end(json);
    rp_json_bool(json, "map_is_whole", runs < RUNS_MAX);
}

static double share(int64_t part, int64_t whole) {
    return whole > 0 ? (double)part / (double)whole : 0.0;
}

static void write_pages(struct rp_json *json, const struct rp_engine *engine,
                        const struct rp_page_use *use, const uint32_t *map, uint32_t count) {
    rp_json_object_begin(json, "kv");
    rp_json_uint(json, "page_tokens", use->page_tokens);
    rp_json_uint(json, "page_bytes", use->page_bytes);
    rp_json_int(json, "pages", use->total);
    rp_json_int(json, "free", use->free);
    rp_json_int(json, "held", use->held);
    rp_json_int(json, "pending", use->pending);
    rp_json_int(json, "cached", use->cached);
    rp_json_int(json, "peak_held", use->peak_held);
    rp_json_int(json, "host_pages", use->host_total);
    rp_json_int(json, "host_free", use->host_free);
    rp_json_int(json, "peak_host_used", use->peak_host);
    /* All pages have the same size, so there is no external fragmentation; waste is the unused rest
     * of each request's last page. */
    rp_json_int(json, "wasted_tokens", use->wasted_tokens);
    rp_json_double(json, "fragmentation_ratio",
                   share(use->wasted_tokens, use->held * (int64_t)use->page_tokens));
    if (map)
        write_map(json, map, count);
    rp_json_bool(json, "history", rp_engine_page_history_is_on(engine));
    rp_json_object_end(json);
}

static void write_history(struct rp_json *json, const struct rp_engine *engine, uint64_t limit) {
    struct rp_trace_event *events = rp_calloc(limit, sizeof *events);
    bool whole = true;
    uint64_t count =
        events ? rp_trace_ring_copy(rp_engine_page_history(engine), 0, events, limit, &whole) : 0;
    rp_json_array_begin(json, "history");
    for (uint64_t i = 0; i < count; i++) {
        if (events[i].id >= RP_KV_STATE_COUNT || events[i].b >= RP_KV_STATE_COUNT)
            continue;
        rp_json_object_begin(json, NULL);
        rp_json_double(json, "seconds", (double)events[i].ns * 1e-9);
        rp_json_uint(json, "page", events[i].a);
        rp_json_string(json, "from", rp_kv_states[events[i].id]);
        rp_json_string(json, "to", rp_kv_states[events[i].b]);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
    rp_json_bool(json, "history_is_whole", whole && events);
    rp_free(events);
}

static uint32_t *copy_map(const struct rp_engine *engine, uint32_t *out_count) {
    uint32_t count = rp_engine_page_map(engine, NULL, 0);
    uint32_t *map = rp_calloc(count, sizeof *map);
    *out_count = map ? rp_engine_page_map(engine, map, count) : 0;
    return map;
}

static void reply_json(struct rp_conn *conn, bool with_map, uint64_t history) {
    const struct rp_engine *engine = conn->server->serving.engine;
    struct rp_page_use use;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    uint32_t count = 0, *map = with_map ? copy_map(engine, &count) : NULL;
    rp_engine_page_use(engine, &use);
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    write_device(&json, engine);
    write_host(&json, conn->server, &use);
    write_pages(&json, engine, &use, map, count);
    if (history > 0)
        write_history(&json, engine, history);
    rp_json_object_end(&json);
    rp_free(map);
    rp_api_reply_json(conn, 200, &body);
}

/* Input of the worker that writes the snapshot. */
struct snapshot_job {
    const struct rp_engine *engine;
    uint32_t *map, page_count;
    uint64_t page_bytes, start_ns;
};

static void build_snapshot(void *ctx, struct rp_buffer *out) {
    const struct snapshot_job *job = ctx;
    struct rp_trace_event *events = rp_calloc(RP_PAGE_HISTORY_EVENTS, sizeof *events);
    uint64_t count = events ? rp_trace_ring_copy(rp_engine_page_history(job->engine), 0, events,
                                                 RP_PAGE_HISTORY_EVENTS, NULL)
                            : 0;
    struct rp_memory_snapshot snapshot = {.plan = rp_engine_memory_plan(job->engine),
                                          .pool_address = rp_engine_page_address(job->engine),
                                          .page_bytes = job->page_bytes,
                                          .map = job->map,
                                          .page_count = job->page_count,
                                          .history = events,
                                          .history_count = count,
                                          .start_ns = job->start_ns};
    out->failed |= !events;
    rp_memory_snapshot_write(&snapshot, out);
    rp_free(events);
}

static void release_snapshot(void *ctx) {
    struct snapshot_job *job = ctx;
    rp_free(job->map);
    rp_free(job);
}

static void reply_snapshot(struct rp_conn *conn) {
    const struct rp_engine *engine = conn->server->serving.engine;
    struct rp_page_use use;
    struct snapshot_job *job = rp_calloc(1, sizeof *job);
    rp_engine_page_use(engine, &use);
    if (job)
        job->map = copy_map(engine, &job->page_count);
    if (!job || !job->map) {
        rp_free(job);
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    job->engine = engine;
    job->page_bytes = use.page_bytes;
    job->start_ns = conn->server->start_ns;
    rp_report_start(conn, build_snapshot, release_snapshot, job, "application/octet-stream");
}

void rp_api_debug_memory(struct rp_conn *conn) {
    uint32_t format = 0;
    uint64_t with_map = 0, history = 0;
    const struct rp_query_param params[] = {
        {.name = "format", .type = RP_QUERY_CHOICE, .choices = "json|torch", .value = &format},
        {.name = "map", .type = RP_QUERY_UINT, .max = 1, .value = &with_map},
        {.name = "history", .type = RP_QUERY_UINT, .max = HISTORY_MAX, .value = &history},
    };
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    if (format == 1)
        reply_snapshot(conn);
    else
        reply_json(conn, with_map != 0, history);
}

void rp_api_debug_memory_history(struct rp_conn *conn) {
    struct rp_engine *engine = conn->server->serving.engine;
    uint64_t on = 1;
    struct rp_buffer body = {.data = NULL};
    const struct rp_query_param params[] = {
        {.name = "on", .type = RP_QUERY_UINT, .max = 1, .value = &on},
    };
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    if (!on) {
        rp_engine_page_history_stop(engine);
    } else if (!rp_engine_page_history_start(engine)) {
        rp_conn_fail(conn, 503, "overloaded", "out of memory");
        return;
    }
    rp_buffer_printf(&body, "{\"history\":%s,\"events_kept\":%u}", on ? "true" : "false",
                     RP_PAGE_HISTORY_EVENTS);
    rp_api_reply_json(conn, 200, &body);
}

void rp_api_debug_memory_reset(struct rp_conn *conn) {
    struct rp_buffer body = {.data = NULL};
    rp_engine_page_reset_peaks(conn->server->serving.engine);
    conn->server->bodies_peak_bytes = conn->server->bodies_bytes;
    rp_json_body_reset_peak();
    rp_buffer_puts(&body, "{\"reset\":true}");
    rp_api_reply_json(conn, 200, &body);
}
