/* api_debug_latency.c - GET /debug/latency: latency percentiles of requests, and of steps per
 * captured size. */
#include "base/json_writer.h"
#include "engine/engine.h"
#include "metrics/tick.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_query.h"
#include "server/http/router.h"

#include <stdio.h>

/* One series with all its windows. */
struct row {
    const char *name; /* NULL: a step series */
    const char *meaning;
    struct rp_engine_graph graph;
    uint32_t index;
    struct rp_latency_stats stats[RP_LATENCY_WINDOWS];
};

static void read_all(const struct rp_latency *latency, uint64_t now_ns, struct row *row) {
    for (uint32_t w = 0; w < RP_LATENCY_WINDOWS; w++)
        rp_latency_read(&latency, 1, (enum rp_latency_window)w, now_ns, &row->stats[w]);
}

static void step_name(const struct rp_engine_graph *graph, char *out, size_t size) {
    snprintf(out, size, "step %s %u tokens %u rows", graph->bucket.decode ? "decode" : "mixed",
             graph->bucket.tokens, graph->bucket.logit_rows);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void write_windows(struct rp_json *json, const struct row *row) {
    rp_json_object_begin(json, "windows");
    for (uint32_t w = 0; w < RP_LATENCY_WINDOWS; w++) {
        const struct rp_latency_stats *stats = &row->stats[w];
        const struct {
            const char *name;
            double ns;
        } members[] = {{"mean", stats->mean}, {"p50", stats->p50}, {"p90", stats->p90},
                       {"p95", stats->p95},   {"p99", stats->p99}, {"max", stats->max}};
        rp_json_object_begin(json, rp_latency_windows[w]);
        rp_json_uint(json, "count", stats->count);
        for (size_t m = 0; m < RP_ARRAY_COUNT(members); m++) {
            if (stats->count)
                rp_json_double(json, members[m].name, members[m].ns * 1e-9);
            else
                rp_json_null(json, members[m].name);
        }
        rp_json_object_end(json);
    }
    rp_json_object_end(json);
}

static void write_row(struct rp_json *json, const struct row *row) {
    rp_json_object_begin(json, NULL);
    if (row->name) {
        rp_json_string(json, "name", row->name);
        rp_json_string(json, "meaning", row->meaning);
    } else {
        rp_json_uint(json, "graph", row->index);
        rp_json_uint(json, "tokens", row->graph.bucket.tokens);
        rp_json_uint(json, "rows", row->graph.bucket.rows);
        rp_json_uint(json, "logit_rows", row->graph.bucket.logit_rows);
        rp_json_bool(json, "decode", row->graph.bucket.decode);
    }
    write_windows(json, row);
    rp_json_object_end(json);
}

/* --- Text ------------------------------------------------------------------------------------ */

static void print_row(struct rp_buffer *text, const struct row *row) {
    char name[64];
    if (row->name)
        snprintf(name, sizeof name, "%s", row->name);
    else
        step_name(&row->graph, name, sizeof name);
    for (uint32_t w = 0; w < RP_LATENCY_WINDOWS; w++) {
        const struct rp_latency_stats *stats = &row->stats[w];
        rp_buffer_printf(text, "%-32s %-6s %9llu", w ? "" : name, rp_latency_windows[w],
                         (unsigned long long)stats->count);
        const double values[] = {stats->mean, stats->p50, stats->p90,
                                 stats->p95,  stats->p99, stats->max};
        for (size_t i = 0; i < RP_ARRAY_COUNT(values); i++) {
            if (stats->count)
                rp_buffer_printf(text, " %10.3f", values[i] * 1e-6);
            else
                rp_buffer_printf(text, " %10s", "-");
        }
        rp_buffer_puts(text, "\n");
    }
}

/* --- The route ------------------------------------------------------------------------------- */

enum { JSON, TEXT };

struct out {
    uint32_t format;
    struct rp_buffer body;
    struct rp_json json;
};

static void put(struct out *out, const struct row *row) {
    if (out->format == JSON)
        write_row(&out->json, row);
    else
        print_row(&out->body, row);
}

static void put_steps(struct out *out, const struct rp_engine *engine, uint64_t now_ns) {
    for (uint32_t i = 0, count = rp_engine_graph_count(engine); i < count; i++) {
        const struct rp_latency *latency = rp_engine_step_latency(engine, i);
        struct row row = {.index = i};
        rp_engine_graph(engine, i, &row.graph);
        if (!latency || !row.graph.replays)
            continue;
        read_all(latency, now_ns, &row);
        put(out, &row);
    }
}

void rp_api_debug_latency(struct rp_conn *conn) {
    struct rp_server *server = conn->server;
    struct out out = {.format = JSON};
    uint64_t now_ns = rp_tick_ns();
    const struct rp_query_param params[] = {
        {.name = "format", .type = RP_QUERY_CHOICE, .choices = "json|text", .value = &out.format}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    if (out.format == JSON) {
        rp_json_init(&out.json, &out.body);
        rp_json_object_begin(&out.json, NULL);
        rp_json_string(&out.json, "unit", "seconds");
        rp_json_array_begin(&out.json, "series");
    } else {
        rp_buffer_printf(&out.body, "%-32s %-6s %9s %10s %10s %10s %10s %10s %10s\n",
                         "milliseconds", "window", "count", "mean", "p50", "p90", "p95", "p99",
                         "max");
    }
    for (uint32_t s = 0; s < RP_LATENCY_SERIES_COUNT; s++) {
        struct row row = {.name = rp_latency_series[s].name,
                          .meaning = rp_latency_series[s].meaning};
        read_all(&server->metrics.latency.series[s], now_ns, &row);
        put(&out, &row);
    }
    if (out.format == JSON) {
        rp_json_array_end(&out.json);
        rp_json_array_begin(&out.json, "steps");
    }
    put_steps(&out, server->serving.engine, now_ns);
    if (out.format == TEXT) {
        rp_api_reply_text(conn, 200, "text/plain; charset=utf-8", &out.body);
        return;
    }
    rp_json_array_end(&out.json);
    rp_json_object_end(&out.json);
    rp_api_reply_json(conn, 200, &out.body);
}
